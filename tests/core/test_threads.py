"""Switches of one thread leave the others alone, as in PyTorch."""

import threading
import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.autograd import detect_anomaly
from probtorch.compiler.record.record import record
from probtorch.core.dispatch import grad_enabled, recorder
from probtorch.core.dtype import default_dtype_as, promotion_rules
from probtorch.distributions.validation import validation_in_force
from probtorch.errors import DomainError
from probtorch.infer import MCMC, NUTS


class Elsewhere:
    """Runs a context manager's block in another thread while this one goes on."""

    def __init__(self, manager):
        self.manager = manager
        self.inside, self.leave = threading.Event(), threading.Event()

    def _hold(self):
        with self.manager():
            self.inside.set()
            self.leave.wait(10.0)

    def __enter__(self):
        self.thread = threading.Thread(target=self._hold)
        self.thread.start()
        assert self.inside.wait(10.0)

    def __exit__(self, *exc):
        self.leave.set()
        self.thread.join()


def test_no_grad_of_another_thread_leaves_this_tape_on():
    x = probtorch.tensor([1.0, 2.0], requires_grad=True)
    with Elsewhere(probtorch.no_grad):
        assert grad_enabled()
        (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    assert grad_enabled()


def test_overlapping_blocks_leave_no_thread_switched_off():
    mine = probtorch.no_grad()
    other = Elsewhere(probtorch.no_grad)
    mine.__enter__()
    other.__enter__()
    mine.__exit__(None, None, None)
    other.__exit__()
    assert grad_enabled()
    assert (probtorch.ones(1, requires_grad=True) * 2.0).requires_grad


def test_default_dtype_of_a_block_holds_in_its_thread_only():
    before = promotion_rules()
    with Elsewhere(lambda: default_dtype_as(probtorch.float64, strong_scalars=True)):
        assert probtorch.tensor(1.5).dtype == probtorch.float32
        assert promotion_rules() == before


def test_a_recording_misses_nothing_while_another_thread_watches_its_own_work():
    def double(x):
        with Elsewhere(detect_anomaly):
            return x * 2.0

    rec, out = record(double, [probtorch.tensor([1.0])])
    assert [node.name for node in rec.graph.nodes] == ["mul"]
    assert out.tolist() == [2.0]
    assert recorder() is None


def test_densities_made_beside_a_thread_without_tape_have_their_gradients():
    def model(y):
        mu = probtorch.sample("mu", probtorch.distributions.Normal(0.0, 1.0))
        with probtorch.plate("row", 3):
            probtorch.sample("y", probtorch.distributions.Normal(mu, 1.0), obs=y)

    y = probtorch.tensor([1.0, 2.0, 6.0])
    with Elsewhere(probtorch.no_grad):
        target = probtorch.infer.Target.from_model(model, y)
        _, gradient = target.value_and_grad(np.array([0.5]))
    # d/dmu of -mu^2/2 - sum (y - mu)^2 / 2
    assert gradient.tolist() == [9.0 - 3 * 0.5 - 0.5]


def test_validation_switched_off_in_another_thread_stays_on_here():
    with Elsewhere(lambda: dist.validation_enabled(False)):
        with pytest.raises(DomainError):
            dist.Normal(0.0, -1.0)


def test_overlapping_validation_blocks_leave_every_thread_as_it_was():
    first, second = (Elsewhere(lambda: dist.validation_enabled(False)) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__()
    second.__exit__()
    with pytest.raises(DomainError):
        dist.Normal(0.0, -1.0)


def test_validation_enabled_within_a_block_ends_with_the_block():
    with dist.validation_enabled(False):
        dist.enable_validation(True)
        with pytest.raises(DomainError):
            dist.Normal(0.0, -1.0)
        with Elsewhere(lambda: dist.validation_enabled(True)):
            dist.enable_validation(False)
            assert dist.Normal(0.0, -1.0).scale.item() == -1.0
    with pytest.raises(DomainError):
        dist.Normal(0.0, -1.0)


def test_chains_inherit_the_validation_of_the_thread_that_runs_them():
    seen = []

    def model():
        seen.append(validation_in_force())
        x = probtorch.sample("x", dist.Normal(0.0, 1.0))
        # Python on the value, so that the density is not compiled and chains run the model.
        with probtorch.stop_gradient():
            held = float(x.detach().numpy())
        probtorch.sample("y", dist.Normal(held, 1.0), obs=0.0)

    mcmc = MCMC(NUTS(model), num_warmup=5, num_samples=5, num_chains=2, seed=0, progress_bar=False)
    with dist.validation_enabled(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run()
        ran = len(seen)
    assert ran > 20
    assert not any(seen)
