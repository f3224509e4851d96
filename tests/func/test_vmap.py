"""vmap against a loop over slices, alone and together with the other transforms."""

import numpy as np
import pytest

import probtorch as pt
from probtorch.autograd import Function
from probtorch.errors import ArgumentError, AutogradError, DomainError, ShapeError
from probtorch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from probtorch.ode import odeint
from probtorch.testing.compare import assert_close

RNG = np.random.default_rng(0)
X = pt.tensor(RNG.standard_normal((4, 3)))
W = pt.tensor(RNG.standard_normal(3))


def loop(fn, *args):
    return pt.stack([fn(*(a[i] for a in args)) for i in range(args[0].shape[0])])


def loss(w, row):
    return pt.tanh((w * row).sum()) + (w**2).sum() * row[0]


def test_rows_columns_and_shared_arguments():
    assert_close(vmap(pt.dot, (0, None))(X, W), X @ W)
    assert_close(vmap(pt.dot, (1, 0))(X.T, X), (X * X).sum(-1))
    assert_close(vmap(lambda r: r * 2, out_dims=1)(X), X.T * 2)
    assert_close(vmap(lambda r: r * 2, in_dims=-1, out_dims=-1)(X), X * 2)


def test_trees_of_arguments_and_results():
    def fn(d, pair):
        return {"a": d["x"] + pair[1], "b": (pair[0] * 2, d["x"].sum())}

    out = vmap(fn, in_dims=({"x": 0}, (None, 0)), out_dims={"a": 1, "b": (0, 0)})(
        {"x": X}, (W, X[:, 0])
    )
    assert_close(out["a"], (X + X[:, :1]).T)
    assert_close(out["b"][0], pt.stack([W * 2] * 4))
    assert_close(out["b"][1], X.sum(-1))


def test_keyword_arguments_are_mapped():
    assert_close(vmap(lambda r, s: r * s)(X, s=X[:, 0]), X * X[:, :1])


def test_chunks_give_the_same():
    for size in (1, 3, 4, 9):
        assert_close(vmap(lambda r: r.cumsum(0), chunk_size=size)(X), X.cumsum(-1))


def test_empty_batch_has_the_right_shape():
    assert vmap(lambda r: r.sum() * W)(pt.zeros(0, 3).double()).shape == (0, 3)


def test_vmap_nests():
    assert_close(
        vmap(vmap(lambda a, b: a * b, (None, 0)), (0, None))(W, X[:, 0]), pt.outer(W, X[:, 0])
    )
    inner = vmap(lambda r, s: (r * s).sum(), (0, None))
    expected = pt.stack([pt.stack([(r * s).sum() for r in X]) for s in X])
    assert_close(vmap(inner, (None, 0))(X, X), expected)


def test_gradients_per_example():
    found = vmap(grad(loss), (None, 0))(W, X)
    assert_close(found, loop(lambda r: grad(loss)(W, r), X))


@pytest.mark.parametrize("inner", [grad, jacrev, jacfwd, hessian], ids=lambda f: f.__name__)
def test_derivatives_inside(inner):
    found = vmap(inner(loss), (None, 0))(W, X)
    assert_close(found, loop(lambda r: inner(loss)(W, r), X))


@pytest.mark.parametrize("outer", [grad, jacrev, jacfwd, hessian], ids=lambda f: f.__name__)
def test_derivatives_outside(outer):
    found = outer(lambda w: vmap(loss, (None, 0))(w, X).sum())(W)
    assert_close(found, outer(lambda w: loop(lambda r: loss(w, r), X).sum())(W))


@pytest.mark.parametrize("outer", [jacrev, jacfwd], ids=lambda f: f.__name__)
def test_derivatives_outside_and_inside(outer):
    found = outer(lambda w: vmap(grad(loss), (None, 0))(w, X))(W)
    assert_close(found, loop(lambda r: hessian(loss)(W, r), X))


def test_forward_mode_and_pull_back_inside():
    found = vmap(lambda r: jvp(lambda w: loss(w, r), (W,), (r,))[1])(X)
    assert_close(found, loop(lambda r: (grad(loss)(W, r) * r).sum(), X))
    found = vmap(lambda g: vjp(pt.sin, W)[1](g)[0])(X)
    assert_close(found, X * pt.cos(W))


def test_gradient_reaches_the_tape():
    x = X.clone().requires_grad_()
    w = W.clone().requires_grad_()
    vmap(lambda r: loss(w, r))(x).sum().backward()
    assert_close(w.grad, grad(lambda w: loop(lambda r: loss(w, r), X).sum())(W))
    assert_close(x.grad, grad(lambda x: loop(lambda r: loss(W, r), x).sum())(X))


def test_detach_and_no_grad_cut_the_gradient_for_each_slice():
    def fn(r):
        with pt.no_grad():
            still = r * 3.0
        return (r * r.detach() * still).sum()

    assert_close(grad(lambda x: vmap(fn)(x).sum())(X), 3.0 * X * X)


def test_infinite_first_slice_leaves_the_others_alone():
    x = pt.tensor([0.0, 2.0])
    assert_close(vmap(grad(pt.log))(x), pt.tensor([np.inf, 0.5]))


def test_custom_function_has_its_own_gradient():
    class Twice(Function):
        @staticmethod
        def forward(ctx, x, k):
            return x * k

        @staticmethod
        def backward(ctx, g):
            return g * 7.0, None

    assert_close(vmap(lambda r: Twice.apply(r, 2.0))(X), X * 2.0)
    assert_close(grad(lambda x: vmap(lambda r: Twice.apply(r, 2.0))(x).sum())(X), X * 0 + 7.0)
    assert_close(vmap(grad(lambda r: Twice.apply(r, 2.0).sum()))(X), X * 0 + 7.0)


def test_buffer_made_inside_can_be_written_to():
    def fn(r):
        out = pt.zeros(3).double()
        out[1] = r[0]
        out += r
        return out

    expected = X.clone()
    expected[:, 1] += X[:, 0]
    assert_close(vmap(fn)(X), expected)


def test_view_of_a_buffer_written_to_since_is_refused():
    def fn(r):
        out = pt.zeros(2, 3).double()
        row = out[0]
        out[0] = r
        return row.sum()

    with pytest.raises(AutogradError, match="view taken before"):
        vmap(fn)(X)


def steps(r):
    return pt.while_loop(
        lambda s: s[0] < r[0], lambda s: (s[0] + 1.0, s[1] * r[1]), (0.0, r[0] * 0 + 1)
    )[1]


def test_loop_runs_until_each_slice_is_done():
    x = pt.tensor([[2.0, 3.0], [0.0, 5.0], [4.0, 0.5]])
    assert_close(vmap(steps)(x), pt.tensor([9.0, 1.0, 0.0625]))
    assert_close(vmap(grad(steps))(x)[:, 1], pt.tensor([6.0, 0.0, 0.5]))
    assert_close(grad(lambda x: vmap(steps)(x).sum())(x)[:, 1], pt.tensor([6.0, 0.0, 0.5]))
    nested = vmap(vmap(steps))(pt.stack([x, x + 1.0]))
    assert_close(nested, pt.stack([loop(steps, x), loop(steps, x + 1.0)]))


def test_loop_that_changes_its_state_in_place_keeps_finished_slices():
    def fn(n):
        def body(s):
            s[1].add_(10.0)
            return s[0] + 1.0, s[1]

        return pt.while_loop(lambda s: s[0] < n, body, (0.0, n * 0.0))[1]

    assert_close(vmap(fn)(pt.tensor([3.0, 0.0, 1.0])), pt.tensor([30.0, 0.0, 10.0]))


def test_loop_over_a_series_does_not_read_past_its_end():
    def fn(start, row):
        def body(s):
            return s[0] + 1, s[1] + row[s[0]]

        return pt.while_loop(lambda s: s[0] < 3, body, (start, row[0] * 0.0))[1]

    start = pt.tensor([2, 0, 1, 3])
    expected = pt.stack([X[i, int(start[i]) :].sum() for i in range(4)])
    assert_close(vmap(fn)(start, X), expected)
    assert_close(vmap(grad(fn, 1))(start, X), loop(grad(fn, 1), start, X))
    assert_close(grad(lambda x: vmap(fn)(start, x).sum())(X), loop(grad(fn, 1), start, X))
    starts = pt.stack([start, start.flip(0), start * 0 + 3])
    nested = vmap(vmap(fn), (0, None))(starts, X)
    assert_close(nested, pt.stack([vmap(fn)(s, X) for s in starts]))


def test_adaptive_solver_takes_the_steps_of_each_slice():
    t = pt.linspace(0.0, 1.0, 3).double()

    def fn(r):
        return odeint(lambda t, y: -y * r[0].exp() + pt.sin(t), r, t)[-1].sum()

    assert_close(vmap(fn)(X), loop(fn, X), rtol=1e-9)


def test_branch_is_taken_slice_by_slice():
    def fn(r):
        return pt.cond(r[0] > 0, lambda r: r.sum(), lambda r: r.prod(), r)

    assert_close(vmap(fn)(X), loop(fn, X))


def test_branch_not_taken_leaves_no_nan_in_the_gradient():
    def fn(x):
        return pt.cond(x > 0.0, lambda x: x.sqrt(), lambda x: x * 3.0, x)

    x = pt.tensor([4.0, -1.0, 0.25])
    assert_close(vmap(grad(fn))(x), pt.tensor([0.25, 3.0, 1.0]))
    assert_close(grad(lambda x: vmap(fn)(x).sum())(x), pt.tensor([0.25, 3.0, 1.0]))
    assert_close(vmap(grad(fn))(-x.abs()), pt.tensor([3.0, 3.0, 3.0]))


def test_scan_inside():
    def fn(r):
        return pt.scan(lambda c, x: (c + x, c * x), r[0] * 0, r)[1]

    assert_close(vmap(fn)(X), loop(fn, X))
    assert_close(vmap(jacrev(fn))(X), loop(jacrev(fn), X))


def test_draws_differ_between_slices_or_are_shared_or_refused():
    x = pt.zeros(1000)
    pt.manual_seed(3)
    different = vmap(lambda r: pt.randn(2) + r, randomness="different")(x)
    assert len(set(different.reshape(-1).tolist())) == 2000
    assert abs(float(different.mean())) < 4 / np.sqrt(2000)  # 4 sigma
    same = vmap(lambda r: pt.randn(2) + r, randomness="same")(x)
    assert_close(same, same[0].expand(1000, 2), rtol=0, atol=0)
    with pytest.raises(ArgumentError, match="different"):
        vmap(lambda r: pt.randn(2) + r)(x)


def test_draws_without_an_argument_differ_too_and_go_on_after():
    pt.manual_seed(5)
    first = vmap(lambda r: pt.rand(3), randomness="different")(pt.zeros(2))
    after = pt.rand(1)
    pt.manual_seed(5)
    assert_close(pt.cat([first.reshape(-1), after]), pt.rand(7), rtol=0, atol=0)


@pytest.mark.parametrize(
    "draw",
    [lambda a: pt.distributions.Gamma(a, 1.0).rsample(), lambda a: pt.poisson(a)],
    ids=["gamma", "poisson"],
)
def test_draws_by_rejection_differ_between_slices(draw):
    out = vmap(draw, randomness="different")(pt.full((2000,), 4.0))
    # Mean 4 and variance 4 for both; 4.5 sigma.
    assert abs(float(out.mean()) - 4.0) < 4.5 * 2 / np.sqrt(2000)
    assert len(set(out.tolist())) > 5


def test_probabilities_of_later_slices_are_checked():
    with pytest.raises(DomainError, match="every slice"):
        vmap(pt.bernoulli, randomness="different")(pt.tensor([0.5, 1.5]))


def test_vmap_inside_a_compiled_function():
    fn = pt.compile(lambda w, x: vmap(grad(loss), (None, 0))(w, x))
    expected = loop(lambda r: grad(loss)(W, r), X)
    for _ in range(3):
        assert_close(fn(W, X), expected)
    assert fn.reason is None


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda r: r.sum() if r[0] > 0 else r.prod(), "bool"),
        (lambda r: r * float(r[0]), "float"),
        (lambda r: r.numpy(), "numpy"),
        (lambda r: r[r > 0], "nonzero"),
        (lambda r: r.add_(1.0), "argument"),
        (lambda r: W.clone().requires_grad_().sum().backward(), "backward"),
        (lambda r: OUTSIDE.add_(r), "outside"),
    ],
    ids=["branch", "number", "array", "mask", "argument", "backward", "outside"],
)
def test_what_differs_between_slices_is_refused(fn, what):
    with pytest.raises(AutogradError, match=what):
        vmap(fn)(X)
    assert pt.is_grad_enabled()


OUTSIDE = pt.zeros(3).double()


def test_branch_on_what_all_slices_share_is_fine():
    assert_close(vmap(lambda r: r if W.sum() > -100 else -r)(X), X)


@pytest.mark.parametrize(
    ("call", "error", "what"),
    [
        (lambda: vmap(lambda a, b: a * b)(X, W), ShapeError, "one batch size"),
        (lambda: vmap(lambda a: a, in_dims=2)(X), ShapeError, "in_dims 2"),
        (lambda: vmap(lambda a: a, in_dims=(0, 0))(X), ArgumentError, "in_dims"),
        (lambda: vmap(lambda a: a, in_dims=None)(X), ArgumentError, "map over"),
        (lambda: vmap(lambda a, b: a * b)(X, 2.0), ArgumentError, "share"),
        (lambda: vmap(lambda a: a, randomness="no"), ArgumentError, "randomness"),
        (lambda: vmap(lambda a: a, chunk_size=0), ArgumentError, "chunk_size"),
        (lambda: vmap(lambda a: a, out_dims=(0, 0))(X), ArgumentError, "dims"),
        (lambda: vmap(lambda a: a, out_dims=(None,))(X), ArgumentError, "dims"),
    ],
    ids=range(9),
)
def test_wrong_arguments_are_named(call, error, what):
    with pytest.raises(error, match=what):
        call()
