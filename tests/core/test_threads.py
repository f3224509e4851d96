"""Switches of one thread leave the others alone, as in PyTorch."""

import threading

import numpy as np

import probtorch
from probtorch.autograd import detect_anomaly
from probtorch.compiler.record import record
from probtorch.core.dispatch import grad_enabled, recorder
from probtorch.core.dtype import default_dtype_as, promotion_rules


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
