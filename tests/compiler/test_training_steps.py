"""Training steps as people write them are compiled whole, and equal to eager ones step by step."""

import warnings

import numpy as np
import pytest

import probtorch
from probtorch import nn, optim
from probtorch.compiler.paths import CompileWarning
from probtorch.errors import AutogradError
from probtorch.testing import assert_close
from tests.compiler.training_steps import OPTIMIZERS, Training, trained

X = probtorch.tensor([[1.0, -2.0, 0.5], [0.3, 0.1, -1.0]], dtype=probtorch.float64)


def agree(seed, optimizer=None, steps=6):
    """Compare a step with itself compiled; it is, and all is native but the first calls."""
    eager, other = (Training(seed, optimizer) for _ in range(2))
    compiled = probtorch.compile(other.step)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        state, results = trained(eager, eager.step, steps)
        found, others = trained(other, compiled, steps)
    assert compiled.reason is None and compiled.last is not None, (eager.features, compiled.reason)
    assert found.keys() == state.keys(), eager.features
    for name, expected in state.items():
        np.testing.assert_allclose(
            found[name], expected, 1e-9, 1e-12, err_msg=f"{name} {eager.features}"
        )
    for a, b in zip(others, results, strict=True):
        np.testing.assert_allclose(a, b, 1e-9, 1e-12, err_msg=str(eager.features))


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 200)]


@pytest.mark.parametrize("seed", [*range(3), *SLOW])
def test_random_steps_are_equal_to_eager_ones(seed):
    agree(seed)


def test_steps_of_every_optimizer_are_equal_to_eager_ones():
    def problem():
        # One function for all, since each has to be compiled.
        starts = [0.1 * probtorch.arange(6.0).reshape(3, 2).double() + k for k in range(len(made))]
        parameters = [nn.Parameter(x) for x in starts]
        optimizers = [make([p]) for make, p in zip(made, parameters, strict=True)]

        def step(x):
            losses = [((p - x) ** 2).sum() * (k + 1) for k, p in enumerate(parameters)]
            for optimizer, loss in zip(optimizers, losses, strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        return step, parameters, optimizers

    made = list(OPTIMIZERS.values())
    (eager, expected, _), (other, found, optimizers) = problem(), problem()
    compiled = probtorch.compile(other)
    for k in range(6):
        x = probtorch.tensor([[1.0, -1.0]], dtype=probtorch.float64) * k
        eager(x)
        compiled(x)
        for p, q, name in zip(expected, found, OPTIMIZERS, strict=True):
            np.testing.assert_allclose(q.tolist(), p.tolist(), 1e-11, 1e-12, err_msg=name)
    assert compiled.last is not None and compiled.reason is None
    public = {x for x in vars(optim).values() if isinstance(x, type)}
    kinds = {x for x in public if issubclass(x, optim.Optimizer)}
    # LBFGS searches along lines, and branches on each loss.
    assert kinds - {optim.Optimizer, optim.ElementwiseOptimizer, optim.LBFGS} == {
        type(x) for x in optimizers
    }


def test_line_searches_stay_eager_and_say_so_once():
    net, _ = linear()
    opt = optim.LBFGS(net.parameters(), max_iter=2)

    @probtorch.compile
    def step(x):
        def loss():
            opt.zero_grad()
            out = (net(x) ** 2).sum()
            out.backward()
            return out

        return opt.step(loss)

    with pytest.warns(CompileWarning, match=r"LBFGS\.step"):
        step(X)
    assert step(X).item() < 1.0


def linear(**options):
    probtorch.manual_seed(0)
    net = nn.Linear(3, 1).double()
    return net, optim.SGD(net.parameters(), lr=0.1, **options)


def test_gradients_are_found_where_they_were_left():
    net, opt = linear()

    @probtorch.compile
    def step(x):
        opt.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        return loss

    for k in range(1, 5):
        x = X * k
        step(x)
        expected = 2.0 * (net(x) * x).mean(0)
        assert_close(net.weight.grad[0], expected.detach())
    assert step.last is not None
    assert step.reason is None


def test_gradients_of_several_calls_add_up():
    net, opt = linear()

    @probtorch.compile
    def part(x):
        net(x).sum().backward()

    @probtorch.compile
    def update():
        opt.step()
        opt.zero_grad()

    for _ in range(4):
        before = net.weight.detach().clone()
        part(X)
        part(X * 2.0)
        assert_close(net.weight.grad[0], X.sum(0) * 3.0)
        update()
        assert net.weight.grad is None
        assert_close(net.weight[0].detach(), before[0] - 0.1 * 3.0 * X.sum(0))
    assert part.last is not None and update.last is not None
    assert part.reason is update.reason is None


def test_a_gradient_that_is_changed_in_place_stays_the_same_tensor():
    net, _ = linear()
    clip = probtorch.compile(lambda: nn.utils.clip_grad_value_(net.parameters(), 0.5))
    for _ in range(4):
        net.zero_grad()
        net(X).sum().backward()
        g = net.weight.grad
        clip()
        assert net.weight.grad is g
        assert_close(g[0], X.sum(0).clamp(-0.5, 0.5))
    assert clip.last is not None


def test_a_loss_whose_graph_is_freed_says_so_in_every_call():
    net, opt = linear()

    @probtorch.compile
    def step(x):
        opt.zero_grad()
        loss = net(x).sum()
        loss.backward()
        opt.step()
        return loss

    for _ in range(4):
        loss = step(X)
        assert loss.requires_grad and loss.grad_fn is not None
        with pytest.raises(AutogradError, match="already freed"):
            loss.backward()
    assert step.last is not None


@pytest.mark.parametrize(
    "end, reason",
    [
        (lambda w: setattr(w, "grad", w.grad.clone().requires_grad_()), "on the tape itself"),
        (lambda w: setattr(w, "grad", ZEROS), "made outside that is put into"),
    ],
    ids=["tape", "outside"],
)
def test_gradients_that_cannot_be_left_by_a_replay_stay_eager(end, reason):
    net, _ = linear()

    @probtorch.compile
    def step(x):
        net.zero_grad()
        net(x).sum().backward()
        end(net.weight)

    with pytest.warns(CompileWarning, match=reason):
        step(X)
    step(X)
    assert reason in step.reason[0]


ZEROS = probtorch.zeros(1, 3, dtype=probtorch.float64)


def test_a_gradient_known_by_another_name_stays_eager():
    net, _ = linear()
    net(X).sum().backward()
    g = net.weight.grad
    double = probtorch.compile(lambda: net.weight.grad + g)
    with pytest.warns(CompileWarning, match="elsewhere"):
        assert_close(double(), 2.0 * g)
    net.weight.grad = probtorch.zeros_like(g)
    assert_close(double(), g)


# --------------------------------------------------------------------------------------- schedules


def descent(opt, net, extra=lambda: None):
    @probtorch.compile
    def step(x):
        opt.zero_grad()
        net(x).sum().backward()
        opt.step()
        return extra()

    return step


def moved(net, step):
    """Return how far the bias moves in a step: the learning rate times the number of rows."""
    before = net.bias.item()
    step(X)
    return (before - net.bias.item()) / len(X)


def test_a_rate_that_is_set_by_hand_needs_no_new_path():
    net, opt = linear()
    step = descent(opt, net)
    for k in range(12):
        opt.param_groups[0]["lr"] = rate = 0.1 / (k + 1)
        assert moved(net, step) == pytest.approx(rate)
    assert len(step.paths) == 1 and step.last is not None
    opt.param_groups[0]["lr"] = probtorch.tensor(0.5)  # is no number any more: another path
    assert moved(net, step) == pytest.approx(0.5)


def test_a_schedule_ahead_of_the_step_is_taken_back_where_a_guard_fails():
    net, opt = linear()
    schedule = optim.lr_scheduler.ExponentialLR(opt, 0.5)

    @probtorch.compile
    def step(x):
        schedule.step()
        opt.zero_grad()
        out = net(x).sum()
        (out if x[0, 0] > 0 else 2.0 * out).backward()
        opt.step()

    for k in range(1, 9):
        x = X if k % 3 else -X
        step(x)
        assert schedule.last_epoch == k
        assert opt.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**k)
    assert step.last is not None and len(step.paths) == 2


class Warmup(optim.lr_scheduler.LRScheduler):
    """A schedule of the user's, whose steps do more than ours know."""

    count = 0

    def get_lr(self):
        return [0.1 * (self.last_epoch + 1)]

    def step(self, epoch=None):
        self.count += 1
        super().step(epoch)


class Rates(optim.lr_scheduler.LRScheduler):
    """A schedule of the user's that only says which rates there are."""

    def get_lr(self):
        return [0.1 * (self.last_epoch + 1)]


def test_a_schedule_of_the_users_is_stepped_by_replays():
    net, opt = linear()
    schedule = Rates(opt)
    step = descent(opt, net, schedule.step)
    for k in range(6):
        assert moved(net, step) == pytest.approx(0.1 * (k + 1))
    assert step.last is not None


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda s: lambda: s.step() or s.get_last_lr()[0], "last_lr|last_epoch|'lr'|lr"),
        (lambda s: lambda: s.step() or s.last_epoch, "last_epoch"),
        (lambda s: lambda: s.step() or s.optimizer.param_groups[0]["lr"], "lr"),
        (lambda s: Warmup(s.optimizer).step, "count"),
    ],
    ids=["method", "attribute", "group", "own step"],
)
def test_numbers_of_schedules_that_python_looks_at_are_those_of_now(make, reason):
    found = []
    for compiled in (False, True):
        net, opt = linear()
        step = descent(opt, net, make(optim.lr_scheduler.ExponentialLR(opt, 0.5)))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", CompileWarning)
            found.append([(step if compiled else step.fn)(X) for _ in range(6)])
    assert found[0] == found[1]
    assert step.reason is not None
    assert len(told) == 1


def test_a_learning_rate_that_is_another_tensor_is_read():
    def play(wrap):
        weight = nn.Parameter(probtorch.tensor([0.3, 0.9, -0.6]))
        optimizer = optim.SGD([weight], lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = (weight * x).pow(2).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step, found = wrap(step), []
        for i in range(24):
            rate = 0.1 / (i + 1)
            optimizer.param_groups[0]["lr"] = rate if i % 8 == 7 else probtorch.tensor(rate)
            step(X[0])
            found.append(weight.tolist())
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        np.testing.assert_allclose(play(probtorch.compile), play(lambda fn: fn), rtol=1e-6)
