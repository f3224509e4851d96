"""`scan`: the numbers of a Python loop, rolled or not, and the same gradients."""

import numpy as np
import pytest

import probtorch
from probtorch.autograd import grad
from probtorch.autograd.scan import scan
from probtorch.compiler.compile import compile
from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError, ShapeError
from probtorch.func import hessian, jvp, value_and_grad
from probtorch.ops.control import cond, while_loop
from probtorch.ops.pieces import stack
from probtorch.ops.sampling import randn
from probtorch.tensor import tensor

RNG = np.random.default_rng(0)
Y = tensor(RNG.standard_normal(30))
X = tensor(RNG.standard_normal((7, 3)))
Q = tensor([0.3, -0.2], dtype=np.float64)
# A forward and a backward loop, and a few operations around them.
FEW = 60


def by_hand(f, init, xs, n, reverse=False):
    """The loop as a user writes it."""
    rows = []
    carry = init
    for t in reversed(range(n)) if reverse else range(n):
        carry, y = f(carry, xs[t])
        rows.append(y)
    if reverse:
        rows.reverse()
    return carry, stack(rows)


def autoregression(loop, reverse=False):
    def logp(q):
        phi, log_s = q[0], q[1]

        def step(last, y):
            mean = phi * last + (0.1 * last).sin()
            return y + 0.1 * mean, -0.5 * ((y - mean) / log_s.exp()) ** 2 - log_s

        last, terms = loop(step, tensor(0.5, dtype=np.float64), Y, reverse)
        return terms.sum() + last * terms[3]

    return logp


def rolled(f, init, xs, reverse):
    return scan(f, init, xs, reverse=reverse)


def plain(f, init, xs, reverse):
    return by_hand(f, init, xs, len(xs), reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_values_and_gradients_are_those_of_a_python_loop(reverse):
    value, gradient = value_and_grad(autoregression(rolled, reverse))(Q)
    expected, expected_gradient = value_and_grad(autoregression(plain, reverse))(Q)
    np.testing.assert_allclose(value.numpy(), expected.numpy(), rtol=1e-13)
    np.testing.assert_allclose(gradient.numpy(), expected_gradient.numpy(), rtol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
def test_compiled_it_is_two_loops_whatever_its_length(reverse):
    compiled = compile(value_and_grad(autoregression(rolled, reverse)))
    expected = value_and_grad(autoregression(plain, reverse))(Q)
    for _ in range(3):
        for found, right in zip(compiled(Q), expected, strict=True):
            np.testing.assert_allclose(found.numpy(), right.numpy(), rtol=1e-12)
    assert compiled.reason is None
    assert len(compiled.paths[0].program.graph.nodes) < FEW


def matrix_step(weights):
    def step(state, x):
        h, count = state["h"], state["count"]
        h = (weights @ h + x).tanh()
        return {"h": h, "count": count + 1}, (h.sum(), {"square": h * h})

    return step


def test_states_slices_and_outputs_may_be_trees():
    weights = tensor(RNG.standard_normal((3, 3)), requires_grad=True)
    h0 = tensor(RNG.standard_normal(3), requires_grad=True)
    x = tensor(X.numpy(), requires_grad=True)

    def loss(h0, x, weights):
        init = {"h": h0, "count": tensor(0)}
        last, (sums, rest) = scan(matrix_step(weights), init, x)
        total = last["h"].sum() + (sums**2).sum() + (rest["square"] * sums[:, None]).sum()
        return total, last["count"], rest["square"]

    def all_of_it(h0, x, weights):
        leaves = [t.detach().requires_grad_() for t in (h0, x, weights)]
        total, count, squares = loss(*leaves)
        return total.detach(), count, squares.detach(), grad(total, leaves)

    found, right = compile(all_of_it), all_of_it(h0, x, weights)
    arguments = [t.detach() for t in (h0, x, weights)]
    for _ in range(2):
        total, count, squares, gradients = found(*arguments)
        assert count.item() == 7
        np.testing.assert_allclose(total.numpy(), right[0].numpy(), rtol=1e-12)
        np.testing.assert_allclose(squares.numpy(), right[2].numpy(), rtol=1e-12)
        for g, expected in zip(gradients, right[3], strict=True):
            np.testing.assert_allclose(g.numpy(), expected.numpy(), rtol=1e-10, atol=1e-12)
    assert found.reason is None
    assert len(found.paths[0].program.graph.nodes) < FEW


def test_what_a_step_closes_over_gets_its_gradient():
    offset = tensor(0.5, dtype=np.float64, requires_grad=True)
    last, _ = scan(lambda c, x: (c * offset + x, None), tensor(1.0, dtype=np.float64), Y)
    (mine,) = grad(last, [offset])
    c = tensor(1.0, dtype=np.float64)
    for y in Y:
        c = c * offset + y
    assert mine.item() == pytest.approx(grad(c, [offset])[0].item(), rel=1e-12)


def test_what_a_step_closes_over_may_depend_on_each_other():
    def logp(q, loop):
        log_s = q[1]
        s = log_s.exp()
        last, terms = loop(
            lambda c, y: (c * q[0] + log_s, -0.5 * (y / s) ** 2 - log_s - s * c), q[0] * s, Y, False
        )
        return terms.sum() + last

    compiled = compile(value_and_grad(lambda q: logp(q, rolled)))
    value, gradient = value_and_grad(lambda q: logp(q, plain))(Q)
    for _ in range(2):
        mine, found = compiled(Q)
        np.testing.assert_allclose(mine.numpy(), value.numpy(), rtol=1e-12)
        np.testing.assert_allclose(found.numpy(), gradient.numpy(), rtol=1e-12)


def backward_names(compiled):
    """The names of what the body of the last loop does, without what nobody reads."""
    loops = [n for n in compiled.paths[0].program.graph.nodes if n.name == "while"]
    assert len(loops) == 2
    return [node.name for node in loops[1].attrs["body"].nodes]


@pytest.mark.parametrize("size", [4, 20])
def test_products_of_long_rows_are_kept_and_not_computed_again(size):
    weights = tensor(RNG.standard_normal((size, size)) / size)
    rows = tensor(RNG.standard_normal((12, 5, size)))

    def loss(weights, rows, loop):
        def step(h, x):
            return (h @ weights + x).tanh(), None

        if loop is scan:
            return scan(step, rows[0], rows)[0].square().sum()
        h = rows[0]
        for x in rows:
            h, _ = step(h, x)
        return h.square().sum()

    compiled = compile(value_and_grad(lambda w, x: loss(w, x, scan)))
    value, gradient = value_and_grad(lambda w, x: loss(w, x, None))(weights, rows)
    for _ in range(2):
        found, found_gradient = compiled(weights, rows)
        np.testing.assert_allclose(found.numpy(), value.numpy(), rtol=1e-12)
        np.testing.assert_allclose(found_gradient.numpy(), gradient.numpy(), rtol=1e-10)
    assert compiled.reason is None
    # Two for the gradients; short rows are multiplied again.
    assert backward_names(compiled).count("matmul") == (2 if size >= 16 else 3)


def chain(move, x):
    """The forward algorithm, and the largest of other numbers, whose derivative looks for them."""

    def step(alpha, y):
        alpha = (alpha[:, None] + move).logsumexp(0) - (y - 0.1 * alpha).square()
        return alpha, (alpha[:, None] * move).amax(0)

    alpha, largest = scan(step, x[0], x)
    return alpha.logsumexp(0) + 0.01 * largest.sum()


def test_sums_of_exponentials_are_kept_and_not_computed_again():
    move = tensor(RNG.standard_normal((30, 30)))
    x = tensor(RNG.standard_normal((9, 30)))
    compiled = compile(value_and_grad(chain, (0, 1)))
    value, gradients = value_and_grad(chain, (0, 1))(move, x)
    for _ in range(2):
        found, found_gradients = compiled(move, x)
        np.testing.assert_allclose(found.numpy(), value.numpy(), rtol=1e-12)
        for g, right in zip(found_gradients, gradients, strict=True):
            np.testing.assert_allclose(g.numpy(), right.numpy(), rtol=1e-9, atol=1e-12)
    assert compiled.reason is None
    assert backward_names(compiled).count("exp") == 1
    assert "peak" not in backward_names(compiled)


def test_a_step_that_does_something_else_without_the_tape_keeps_nothing():
    weights = tensor(RNG.standard_normal((20, 20)) / 20)
    rows = tensor(RNG.standard_normal((7, 20)))

    def loss(weights, rows):
        def step(h, x):
            if probtorch.is_grad_enabled():
                return (weights @ h + x).tanh(), None
            return (weights.mT.mT @ h + x + 0.0).tanh(), None

        return scan(step, rows[0], rows)[0].sum()

    compiled = compile(value_and_grad(loss))
    value, gradient = value_and_grad(loss)(weights, rows)
    found, found_gradient = compiled(weights, rows)
    np.testing.assert_allclose(found.numpy(), value.numpy(), rtol=1e-12)
    np.testing.assert_allclose(found_gradient.numpy(), gradient.numpy(), rtol=1e-10)
    assert compiled.reason is None
    assert backward_names(compiled).count("matmul") == 3


def test_rows_that_steps_write_are_not_filled_before():
    def loss(x):
        last, ys = scan(lambda h, y: ((h + y).sin(), h * y), x[0], x)
        return (last * ys.mean(0)).sum()

    compiled = compile(value_and_grad(loss))
    for _ in range(3):
        for found, right in zip(compiled(X), value_and_grad(loss)(X), strict=True):
            np.testing.assert_allclose(found.numpy(), right.numpy(), rtol=1e-12)
    nodes = compiled.paths[0].program.graph.nodes
    rooms = [node.outs[0] for node in nodes if node.name == "room"]
    # States, outputs and gradients of slices, each of which a loop gets as memory to write to.
    assert [v.shape for v in rooms] == [tuple(X.shape)] * 3
    carried = {id(v) for node in nodes if node.name == "while" for v in node.inputs}
    assert all(id(v) in carried for v in rooms)


def test_a_number_of_steps_without_slices():
    last, ys = scan(lambda c, _: (c * 2.0, c), tensor(1.0), length=5)
    assert last.item() == 32.0
    assert ys.tolist() == [1.0, 2.0, 4.0, 8.0, 16.0]
    compiled = compile(lambda c: scan(lambda c, _: (c * 2.0, c), c, length=5))
    for _ in range(2):
        last, ys = compiled(tensor(1.0))
        assert (last.item(), ys.tolist()) == (32.0, [1.0, 2.0, 4.0, 8.0, 16.0])


@pytest.mark.parametrize("n", [0, 1])
def test_few_steps(n):
    def fn(x):
        return scan(lambda c, x: (c + x.sum(), x * 2.0), tensor(1.0, dtype=np.float64), x)

    for run in (fn, compile(fn)):
        last, ys = run(X[:n])
        assert last.item() == pytest.approx(1.0 + X[:n].numpy().sum())
        assert ys.shape == (n, 3)


def test_loops_and_branches_within_a_step():
    def step(c, x):
        doubled = while_loop(lambda s: s.abs() < 1.0, lambda s: s * 2.0, x + 0.01)
        c = cond(c > 0.0, lambda c: c - 0.5, lambda c: c + 0.7, c)
        inner, _ = scan(lambda a, b: (a * 0.5 + b, None), c, X[:, 0])
        return c + 0.1 * doubled, inner

    def fn(y):
        last, ys = scan(step, tensor(0.2, dtype=np.float64), y)
        return last, ys

    compiled = compile(fn)
    with probtorch.no_grad():
        expected = by_hand(step, tensor(0.2, dtype=np.float64), Y, len(Y))
        for _ in range(2):
            for found, right in zip(compiled(Y), expected, strict=True):
                np.testing.assert_allclose(found.numpy(), right.numpy(), rtol=1e-12)
    assert compiled.reason is None


def test_a_step_that_draws_or_branches_is_unrolled():
    def fn(q, mine):
        def step(c, x):
            noise = randn((), generator=mine, dtype=np.float64)
            return (c + x if x > 0 else c - q * x * noise), c

        return scan(step, q, Y)[0]

    rng, other = Generator(3), Generator(3)
    compiled = compile(lambda q: fn(q, rng))
    for _ in range(3):
        found, right = compiled(Q[0]), fn(Q[0], other)
        assert found.item() == pytest.approx(right.item(), rel=1e-12)


def test_second_derivatives_and_forward_mode():
    mine, theirs = autoregression(rolled), autoregression(plain)
    np.testing.assert_allclose(hessian(mine)(Q).numpy(), hessian(theirs)(Q).numpy(), rtol=1e-10)
    tangent = tensor([1.0, 2.0], dtype=np.float64)
    np.testing.assert_allclose(
        jvp(mine, (Q,), (tangent,))[1].numpy(),
        jvp(theirs, (Q,), (tangent,))[1].numpy(),
        rtol=1e-12,
    )


def test_second_derivatives_of_compiled_scans():
    expected = hessian(autoregression(plain))(Q)
    compiled = compile(hessian(autoregression(rolled)))
    for _ in range(2):
        np.testing.assert_allclose(compiled(Q).numpy(), expected.numpy(), rtol=1e-9)
    assert compiled.reason is None


def test_a_model_with_a_scan_samples_natively():
    from probtorch.infer import Target

    def model(y):
        phi = probtorch.sample("phi", probtorch.distributions.Normal(0.0, 0.5))
        s = probtorch.sample("s", probtorch.distributions.HalfNormal(1.0))

        def step(last, y):
            return y, probtorch.distributions.Normal(phi * last, s).log_prob(y)

        _, terms = scan(step, y[0], y[1:])
        probtorch.factor("path", terms.sum())

    target = Target.from_model(model, Y)
    value, gradient = target.value_and_grad(np.array([0.3, -0.4]))

    def logp(q):
        phi, s = q[0], np.exp(q[1])
        y = Y.numpy()
        terms = -0.5 * ((y[1:] - phi * y[:-1]) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi)
        prior = -0.5 * (phi / 0.5) ** 2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
        return terms.sum() + prior - 0.5 * s**2 + 0.5 * np.log(2 / np.pi) + q[1]

    at, h = np.array([0.3, -0.4]), 1e-6
    assert value == pytest.approx(logp(at), rel=1e-12)
    numeric = [(logp(at + d) - logp(at - d)) / (2 * h) for d in np.eye(2) * h]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-7)


def test_what_is_wrong_is_said():
    with pytest.raises(ArgumentError, match="xs, or length="):
        scan(lambda c, x: (c, None), tensor(1.0))
    with pytest.raises(ShapeError, match="one length along dim 0"):
        scan(lambda c, x: (c, None), tensor(1.0), (X, Y))
    with pytest.raises(ArgumentError, match="agrees with xs"):
        scan(lambda c, x: (c, None), tensor(1.0), X, length=3)
    with pytest.raises(ArgumentError, match=r"returns \(carry, y\)"):
        scan(lambda c, x: c, tensor(1.0), X)
    with pytest.raises(ShapeError, match="keeps its shape"):
        scan(lambda c, x: (c + x, None), tensor(1.0, dtype=np.float64), X)


@pytest.mark.parametrize("compiled", [False, True])
def test_second_derivatives_of_a_loop_that_closes_over_its_own_slices_and_state(compiled):
    def loss(w):
        last, _ = scan(lambda h, t: (h + t * w[0] * h, None), w.sum(), w)
        return last * last

    def curvature(w):
        w = w.detach().requires_grad_()
        (g,) = grad(loss(w), [w], create_graph=True)
        return grad((g * g).sum(), [w])[0]

    def gradient(x):
        # The loss is (sum(x) (1 + x0^2) (1 + x0 x1))^2.
        def f(x):
            return (x.sum() * (1 + x[0] * x[0]) * (1 + x[0] * x[1])) ** 2

        h = 1e-5
        return np.array([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(2)])

    x = np.array([0.3, 0.5])
    h = 1e-4
    expected = [
        ((gradient(x + h * e) ** 2).sum() - (gradient(x - h * e) ** 2).sum()) / (2 * h)
        for e in np.eye(2)
    ]
    fn = probtorch.compile(curvature) if compiled else curvature
    for _ in range(2):
        np.testing.assert_allclose(fn(tensor(x)).numpy(), expected, rtol=1e-4)


def test_long_loops_take_few_turns_of_python_when_recorded():
    xs = tensor(np.random.default_rng(5).standard_normal(1000))

    class Turns:  # a list of them would have to get all that it gets eagerly
        count = 0

    def f(q, w):
        def step(h, x):
            Turns.count += 1
            h = (q[0] * h + w * x).tanh()
            return h, h * q[1]

        last, ys = scan(step, q[0] - q[1], xs)
        return last + ys.sum()

    w = tensor(0.7, dtype=np.float64)
    expected = value_and_grad(lambda q: f(q, w))(Q)
    Turns.count = 0
    compiled = compile(value_and_grad(lambda q: f(q, w)))
    found = compiled(Q)
    assert compiled.reason is None and 0 < Turns.count < 400
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)
    w.fill_(-0.2)
    for a, b in zip(compiled(Q), value_and_grad(lambda q: f(q, w))(Q), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)


def test_a_loop_that_native_code_gives_up_ends_as_python_does():
    table = tensor(np.arange(500.0))

    def f(start):
        # Beyond the table from turn 100 on: an error, with the line.
        return while_loop(lambda s: s[0] < 600, lambda s: (s[0] + 5, s[1] + table[s[0]]), start)

    with pytest.raises(IndexError, match="500"):
        compile(f)((tensor(0), tensor(0.0, dtype=np.float64)))
