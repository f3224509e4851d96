"""L-BFGS: known minima, conjugacy on quadratics, the Wolfe conditions, resume, PyTorch's steps."""

import copy

import numpy as np
import pytest
import scipy.optimize

import probtorch
from probtorch import optim
from probtorch.compiler.paths import CompileWarning
from probtorch.errors import ArgumentError
from probtorch.testing.compare import assert_close


def rosenbrock(x):
    return ((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2).sum()


class Problem:
    """A loss of one vector, its optimizer, and how often it was evaluated."""

    def __init__(self, loss, start, **options):
        self.x = probtorch.tensor(np.array(start, float), requires_grad=True)
        self.optimizer = optim.LBFGS([self.x], **options)
        self.loss, self.evaluations = loss, 0

    def closure(self):
        self.evaluations += 1
        self.optimizer.zero_grad()
        loss = self.loss(self.x)
        loss.backward()
        return loss

    def step(self):
        return float(self.optimizer.step(self.closure))


def test_rosenbrock_is_solved_within_fifty_iterations():
    problem = Problem(
        rosenbrock, [-1.2, 1.0], line_search_fn="strong_wolfe", max_iter=50, tolerance_change=1e-15
    )
    problem.step()
    assert_close(problem.x, np.ones(2), rtol=1e-6)
    assert problem.optimizer.state[problem.x]["n_iter"] <= 50


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_quadratic_is_solved(line_search):
    rng = np.random.default_rng(0)
    root = rng.standard_normal((6, 6))
    matrix = probtorch.tensor(root @ root.T + np.eye(6))
    target = rng.standard_normal(6)
    b = probtorch.tensor((root @ root.T + np.eye(6)) @ target)
    problem = Problem(
        lambda x: 0.5 * x @ (matrix @ x) - b @ x,
        np.zeros(6),
        lr=1.0 if line_search else 0.5,
        max_iter=100,
        line_search_fn=line_search,
    )
    problem.step()
    assert_close(problem.x, target, rtol=1e-4, atol=1e-5)


def test_minimum_agrees_with_scipy():
    def loss(x):
        return (x**4).sum() + rosenbrock(x) / 10

    start = [0.5, -1.0, 2.0, 0.3]
    problem = Problem(loss, start, line_search_fn="strong_wolfe", max_iter=200, tolerance_change=0)
    problem.step()

    def value_and_gradient(a):
        x = probtorch.tensor(a, requires_grad=True)
        value = loss(x)
        value.backward()
        return value.item(), x.grad.numpy()

    best = scipy.optimize.minimize(
        value_and_gradient, start, jac=True, method="BFGS", options={"gtol": 1e-9}
    )
    assert_close(problem.x, best.x, rtol=1e-5, atol=1e-6)


def test_accepted_steps_satisfy_the_strong_wolfe_conditions():
    problem = Problem(rosenbrock, [-1.2, 1.0], line_search_fn="strong_wolfe", max_iter=1)
    for _ in range(15):
        before = problem.x.detach().clone()
        loss0 = problem.step()
        x = problem.x.detach().clone().requires_grad_()
        loss = rosenbrock(x)
        loss.backward()
        state = problem.optimizer.state[problem.x]
        move, slope0 = x.detach() - before, (state["prev_flat_grad"] * state["d"]).sum().item()
        assert_close(move, state["d"] * state["t"], rtol=1e-9)
        # Sufficient decrease and curvature, with the constants 1e-4 and 0.9.
        assert loss.item() <= loss0 + 1e-4 * state["t"] * slope0 + 1e-12
        assert abs((x.grad * state["d"]).sum().item()) <= 0.9 * abs(slope0)


def test_several_parameters_are_one_vector():
    def loss(x, y):
        return ((x - 1.0) ** 2).sum() + ((y + 2.0) ** 4).sum() + (x.sum() * y.sum()) ** 2 / 10

    x = probtorch.zeros(2, 2).double().requires_grad_()
    y = probtorch.zeros(3).double().requires_grad_()
    unused = probtorch.ones(2).double().requires_grad_()
    optimizer = optim.LBFGS([x, unused, y], line_search_fn="strong_wolfe", max_iter=60)

    def closure():
        optimizer.zero_grad()
        value = loss(x, y)
        value.backward()
        return value

    optimizer.step(closure)
    together = Problem(
        lambda v: loss(v[:4].reshape(2, 2), v[6:]),
        np.array([0.0] * 4 + [1.0] * 2 + [0.0] * 3),
        line_search_fn="strong_wolfe",
        max_iter=60,
    )
    together.step()
    assert_close(x.detach().reshape(-1), together.x[:4], rtol=1e-9)
    assert_close(y, together.x[6:], rtol=1e-9)
    assert_close(unused, np.ones(2))


def test_evaluations_are_bounded_and_counted():
    problem = Problem(rosenbrock, [-1.2, 1.0], line_search_fn="strong_wolfe", max_eval=8)
    problem.step()
    state = problem.optimizer.state[problem.x]
    assert state["func_evals"] == problem.evaluations
    # The search that passes the bound is finished.
    assert 8 <= problem.evaluations <= 8 + 25


def test_nothing_moves_at_a_minimum():
    problem = Problem(lambda x: (x * x).sum(), [0.0, 0.0])
    assert problem.step() == 0.0
    assert problem.evaluations == 1


def test_history_is_bounded():
    problem = Problem(rosenbrock, np.zeros(6), history_size=3, line_search_fn="strong_wolfe")
    problem.step()
    assert len(problem.optimizer.state[problem.x]["old_dirs"]) == 3


def test_resumed_minimisation_is_the_same_bit_for_bit():
    options = {"line_search_fn": "strong_wolfe", "max_iter": 4}
    whole = Problem(rosenbrock, [-1.2, 1.0, 0.3], **options)
    for _ in range(4):
        whole.step()
    first = Problem(rosenbrock, [-1.2, 1.0, 0.3], **options)
    first.step()
    first.step()
    second = Problem(rosenbrock, first.x.detach().numpy(), **options)
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.step()
    second.step()
    assert second.x.array.tobytes() == whole.x.array.tobytes()


def test_closure_is_required():
    problem = Problem(rosenbrock, [0.0, 0.0])
    with pytest.raises(ArgumentError, match="a closure that computes the loss anew"):
        problem.optimizer.step()


def test_several_groups_and_unknown_searches_are_refused():
    x, y = (probtorch.ones(1).requires_grad_() for _ in range(2))
    with pytest.raises(ArgumentError, match="doesn't support per-parameter options"):
        optim.LBFGS([{"params": x}, {"params": y}])
    with pytest.raises(ArgumentError, match="strong_wolfe"):
        optim.LBFGS([x], line_search_fn="armijo")


@pytest.mark.parametrize(
    "options",
    [{"lr": 1e-3}, {"line_search_fn": "strong_wolfe"},
     {"line_search_fn": "strong_wolfe", "history_size": 2, "max_iter": 5}],
)  # fmt: skip
def test_steps_are_those_of_torch(options):
    torch = pytest.importorskip("torch")
    start = np.array([-1.2, 1.0, 0.3, 2.0])
    problem = Problem(rosenbrock, start, **options)
    x = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.LBFGS([x], **options)

    def closure():
        optimizer.zero_grad()
        loss = rosenbrock(x)
        loss.backward()
        return loss

    for _ in range(3):
        assert problem.step() == pytest.approx(optimizer.step(closure).item(), rel=1e-8)
    assert_close(problem.x, x.detach().numpy(), rtol=1e-7)
    assert problem.evaluations == optimizer.state[x]["func_evals"]


@pytest.mark.parametrize("line_search_fn", [None, "strong_wolfe"])
def test_zero_gradient_has_no_direction_whatever_the_tolerance(line_search_fn):
    problem = Problem(
        lambda x: (x * x).sum(), [0.0, 0.0], tolerance_grad=-1.0, line_search_fn=line_search_fn
    )
    assert float(problem.optimizer.step(problem.closure)) == 0.0
    assert problem.x.tolist() == [0.0, 0.0]


def test_negative_tolerance_goes_on_until_nothing_moves():
    problem = Problem(lambda x: ((x - 3.0) ** 2).sum(), [0.0], tolerance_grad=-1.0, lr=1.0)
    for _ in range(3):
        problem.optimizer.step(problem.closure)
    assert_close(problem.x, np.array([3.0]))


def test_a_compiled_closure_is_one_path_whatever_the_steps_remember():
    x = probtorch.tensor([3.0, -1.0], requires_grad=True)
    optimizer = optim.LBFGS([x], max_iter=4)

    @probtorch.compile
    def closure():
        optimizer.zero_grad()
        loss = ((x - 1.0) ** 4).sum()
        loss.backward()
        return loss.detach()

    losses = [optimizer.step(closure).item() for _ in range(4)]
    assert losses[-1] < 1e-2 * losses[0]
    assert len(optimizer.state[x]["old_dirs"]) > 4
    assert len(closure.paths) == 1 and closure.reason is None


def test_a_function_that_reads_what_the_steps_remember_runs_eagerly():
    x = probtorch.tensor([3.0, -1.0], requires_grad=True)
    optimizer = optim.LBFGS([x], max_iter=1)

    def closure():
        optimizer.zero_grad()
        loss = ((x - 1.0) ** 2).sum()
        loss.backward()
        return loss

    @probtorch.compile
    def scaled(y):
        return y * optimizer.state[x]["n_iter"]

    optimizer.step(closure)
    with pytest.warns(CompileWarning, match="LBFGS.state"):
        assert scaled(probtorch.tensor(2.0)).item() == 2.0
    optimizer.step(closure)
    assert scaled(probtorch.tensor(2.0)).item() == 4.0
