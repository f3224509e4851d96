"""func's transforms against closed forms, differences and each other."""

import numpy as np
import pytest

import probtorch
from probtorch.autograd import functional
from probtorch.autograd.checking import difference
from probtorch.core.dispatch import recorder
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.func import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    value_and_grad,
    vjp,
)
from probtorch.testing import assert_close


def vector(*values):
    return probtorch.tensor(list(values), dtype=probtorch.float64)


def curve(x):
    """A scalar function with a full Hessian."""
    return (x**3).sum() * probtorch.exp(x[0]) + probtorch.logsumexp(x, 0) * x.prod()


def curve_gradient(x):
    """Gradient by differences of `curve` on plain tensors."""
    fn = lambda a: np.asarray(curve(probtorch.from_numpy(a)).item())
    return np.array([difference(fn, x, d) for d in np.eye(len(x))])


X = np.array([0.3, -0.7, 1.2])


def test_grad_agrees_with_differences():
    assert_close(grad(curve)(vector(*X)), curve_gradient(X), rtol=1e-8)


def test_value_comes_along():
    value, gradient = value_and_grad(curve)(vector(*X))
    assert_close(value, curve(vector(*X)), rtol=0, atol=0)
    swapped = grad_and_value(curve)(vector(*X))
    assert_close(swapped[0], gradient, rtol=0, atol=0)
    assert_close(swapped[1], value, rtol=0, atol=0)


def test_results_are_off_the_tape_and_inputs_untouched():
    x = vector(*X)
    value, gradient = value_and_grad(curve)(x)
    assert not value.requires_grad and not gradient.requires_grad
    assert not x.requires_grad and x.grad is None


def test_hessian_is_symmetric_and_agrees_with_differences_of_the_gradient():
    h = hessian(curve)(vector(*X))
    assert_close(h, h.T, rtol=1e-12)
    numeric = [difference(curve_gradient, X, d) for d in np.eye(3)]
    assert_close(h, np.array(numeric), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "second",
    [
        lambda f: jacrev(jacrev(f)),
        lambda f: jacfwd(jacrev(f)),
        lambda f: jacrev(jacfwd(f)),
        lambda f: jacfwd(jacfwd(f)),
        lambda f: jacfwd(grad(f)),
        lambda f: jacrev(grad(f)),
    ],
    ids=["rev rev", "fwd rev", "rev fwd", "fwd fwd", "fwd grad", "rev grad"],
)
def test_every_way_to_nest_two_derivatives_gives_the_same(second):
    result = second(curve)(vector(*X))
    assert_close(result, hessian(curve)(vector(*X)), rtol=1e-11)
    assert not result.requires_grad


@pytest.mark.parametrize("mode", [jacrev, jacfwd])
def test_jacobian_of_a_matrix_valued_function(mode):
    a = np.arange(6.0).reshape(2, 3)
    jacobian = mode(lambda x: probtorch.from_numpy(a) * x * x)(vector(1.0, 2.0, 3.0))
    expected = np.einsum("ij,jk->ijk", a * 2 * np.array([1.0, 2.0, 3.0]), np.eye(3))
    assert_close(jacobian, expected)


@pytest.mark.parametrize("mode", [jacrev, jacfwd])
def test_jacobian_of_trees(mode):
    def fn(params, scale):
        return {"product": params["w"] * scale, "sum": params["b"].sum()}

    params = {"w": vector(1.0, 2.0), "b": vector(3.0)}
    jacobian = mode(fn)(params, 5.0)
    assert_close(jacobian["product"]["w"], 5.0 * np.eye(2))
    assert_close(jacobian["product"]["b"], np.zeros((2, 1)))
    assert_close(jacobian["sum"]["b"], [1.0])


@pytest.mark.parametrize("mode", [jacrev, jacfwd])
def test_jacobian_of_several_arguments_with_extra_results(mode):
    both, note = mode(lambda x, y: (x * y, "note"), (0, 1), has_aux=True)(vector(2.0), vector(3.0))
    assert note == "note"
    assert_close(both[0], [[3.0]])
    assert_close(both[1], [[2.0]])


@pytest.mark.parametrize("mode", [jacrev, jacfwd])
def test_jacobian_with_empty_sides(mode):
    assert mode(lambda x: x * 2.0)(probtorch.zeros(0)).shape == (0, 0)
    assert mode(lambda x: x.sum() + probtorch.zeros(2))(probtorch.zeros(0)).shape == (2, 0)


def test_gradient_is_structured_like_the_argument():
    def loss(params, x):
        return (params["w"] * x).sum() + params["b"][0] ** 2

    found = grad(loss)({"w": vector(1.0, 2.0), "b": (vector(3.0).sum(),)}, vector(5.0, 6.0))
    assert_close(found["w"], [5.0, 6.0])
    assert_close(found["b"][0], 6.0)


def test_argnums_choose_arguments():
    fn = lambda x, y, *, z: x * y * y * z
    x, y = probtorch.tensor(2.0), probtorch.tensor(3.0)
    assert grad(fn, 1)(x, y, z=10.0).item() == 120.0
    gx, gy = grad(fn, (0, -1))(x, y, z=1.0)
    assert (gx.item(), gy.item()) == (9.0, 12.0)
    with pytest.raises(ArgumentError, match="argnums below 2"):
        grad(fn, 2)(x, y, z=1.0)


def test_aux_is_passed_on_detached():
    gradient, aux = grad(lambda x: ((x * x).sum(), {"double": x * 2}), has_aux=True)(vector(3.0))
    assert_close(gradient, [6.0])
    assert_close(aux["double"], [6.0])
    assert not aux["double"].requires_grad


def test_gradient_flows_to_outer_variables():
    a = probtorch.tensor(2.0, requires_grad=True)
    gradient = grad(lambda x: a * x * x)(probtorch.tensor(3.0))
    gradient.backward()
    assert gradient.item() == 12.0
    assert a.grad.item() == 6.0


def test_gradient_flows_to_an_argument_on_the_tape():
    x = probtorch.tensor(3.0, requires_grad=True)
    grad(lambda x: x**3)(x * 1.0).backward()
    assert x.grad.item() == 18.0


def test_under_no_grad_the_gradient_is_there_but_not_on_the_tape():
    a = probtorch.tensor(2.0, requires_grad=True)
    with probtorch.no_grad():
        found = grad(lambda x: a * x * x)(probtorch.tensor(3.0))
    assert found.item() == 12.0 and not found.requires_grad


def test_no_grad_inside_stops_both_modes():
    def fn(x):
        with probtorch.no_grad():
            constant = x * x
        return (constant * x).sum()

    x = vector(3.0)
    assert_close(grad(fn)(x), [9.0])
    assert_close(jvp(fn, (x,), (vector(1.0),))[1], 9.0)


def test_detach_inside_stops_both_modes():
    fn = lambda x: (x.detach() * x).sum()
    assert_close(grad(fn)(vector(3.0)), [3.0])
    assert_close(jvp(fn, (vector(3.0),), (vector(1.0),))[1], 3.0)


def test_third_derivative():
    assert grad(grad(grad(lambda x: x**5)))(probtorch.tensor(2.0)).item() == 60.0 * 4.0
    first = lambda f: lambda x: jvp(f, (x,), (probtorch.tensor(1.0),))[1]
    assert first(first(first(lambda x: x**5)))(probtorch.tensor(2.0)).item() == 240.0


def test_inner_derivative_does_not_see_the_outer_direction():
    # d/dx (x * d/dy (x + y)) is 1; confusing the two directions gives 2.
    inner = lambda x: jvp(lambda y: x + y, (x,), (probtorch.tensor(1.0),))[1]
    one = probtorch.tensor(1.0)
    assert jvp(lambda x: x * inner(x), (one,), (one,))[1].item() == 1.0
    assert grad(lambda x: x * grad(lambda y: x + y)(x))(one).item() == 1.0


def test_vjp_may_be_pulled_again_and_again():
    value, pull = vjp(lambda x, y: (x * y, x.sum()), vector(1.0, 2.0), vector(3.0, 4.0))
    zero = probtorch.tensor(0.0, dtype=probtorch.float64)
    for scale in (1.0, 10.0):
        gx, gy = pull((vector(scale, scale), zero))
        assert_close(gx, [3.0 * scale, 4.0 * scale])
        assert_close(gy, [1.0 * scale, 2.0 * scale])
    assert_close(value[0], [3.0, 8.0])
    assert not value[0].requires_grad


def test_cotangent_must_be_structured_like_the_value():
    _, pull = vjp(lambda x: (x, x), vector(1.0))
    with pytest.raises(ArgumentError, match="structured like the value"):
        pull(vector(1.0))


def test_pull_back_is_the_transpose_of_the_push_forward():
    rng = np.random.default_rng(0)
    x, t, g = (probtorch.from_numpy(rng.standard_normal(3)) for _ in range(3))
    fn = lambda x: probtorch.cumsum(probtorch.sin(x) * x.sum(), 0)
    _, tangent = jvp(fn, (x,), (t,))
    (pulled,) = vjp(fn, x)[1](g)
    assert_close((g * tangent).sum(), (pulled * t).sum(), rtol=1e-12)


def test_tangent_of_what_does_not_depend_is_zero():
    value, tangent = jvp(
        lambda x: (probtorch.ones(2), probtorch.floor(x)), (vector(1.5),), (vector(1.0),)
    )
    assert tangent[0].tolist() == [0.0, 0.0]
    assert tangent[1].tolist() == [0.0]
    assert value[1].tolist() == [1.0]


def test_forward_mode_through_in_place_changes():
    def fn(x):
        h = x * 2.0
        h[0] = x[1] * x[0]
        h[1:].mul_(x[0])
        return h

    x, t = vector(1.0, 2.0, 3.0), vector(0.1, -0.2, 0.3)
    _, tangent = jvp(fn, (x,), (t,))
    expected = difference(lambda a: fn(probtorch.from_numpy(a)).numpy(), x.numpy(), t.numpy())
    assert_close(tangent, expected, rtol=1e-9)


def test_the_same_tensor_in_two_places_has_two_tangents():
    x = vector(2.0)
    _, tangent = jvp(lambda a, b: a * b, (x, x), (vector(1.0), vector(10.0)))
    assert_close(tangent, [22.0])


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: jvp(curve, x, x), ArgumentError, "tuples of primals"),
        (lambda x: jvp(curve, (x,), (x, x)), ArgumentError, "structured like the primals"),
        (lambda x: jvp(curve, (x,), (x[:2],)), ShapeError, r"tangent of shape \(3,\)"),
        (lambda x: grad(lambda x: x * 2)(x), ShapeError, "one element"),
        (lambda x: grad(curve)(x.long()), DTypeError, "int64"),
        (lambda x: grad(curve, has_aux=True)(x), ArgumentError, "has_aux=True"),
    ],
    ids=["no tuples", "structure", "shape", "not scalar", "integers", "aux"],
)
def test_mistake_is_named(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call(vector(*X))
    assert "fix:" in str(caught.value)
    assert recorder() is None and probtorch.is_grad_enabled()


def test_error_inside_leaves_nothing_behind():
    def fail(x):
        raise KeyError("on purpose")

    for call in (
        lambda: grad(fail)(vector(1.0)),
        lambda: jvp(fail, (vector(1.0),), (vector(1.0),)),
    ):
        with pytest.raises(KeyError):
            call()
        assert recorder() is None and probtorch.is_grad_enabled()


# --------------------------------------------------------------------------- autograd.functional


def test_functional_spellings_agree_with_func():
    x, v = vector(*X), vector(1.0, -2.0, 0.5)
    h = hessian(curve)(x)
    assert_close(functional.hessian(curve, x), h, rtol=1e-12)
    assert_close(functional.jacobian(grad(curve), x), h, rtol=1e-12)
    assert_close(functional.hvp(curve, x, v)[1], h @ v, rtol=1e-12)
    assert_close(functional.vhp(curve, x, v)[1], v @ h, rtol=1e-12)
    assert_close(functional.jvp(curve, x, v)[1], grad(curve)(x) @ v, rtol=1e-12)
    assert_close(functional.vjp(curve, x)[1], grad(curve)(x), rtol=1e-12)


def test_functional_jacobian_of_several_inputs_and_outputs():
    x, y = vector(2.0), vector(3.0, 4.0)
    rows = functional.jacobian(lambda x, y: (x * y, y.sum()), (x, y))
    assert_close(rows[0][0], [[3.0], [4.0]])
    assert_close(rows[0][1], [[2.0, 0.0], [0.0, 2.0]])
    assert_close(rows[1][0], [0.0])
    assert_close(rows[1][1], [1.0, 1.0])


def test_functional_results_stay_on_the_tape_only_if_asked():
    x = vector(*X).requires_grad_()
    assert not functional.jacobian(lambda x: x * x, x).requires_grad
    connected = functional.jacobian(lambda x: x * x, x, create_graph=True)
    connected.sum().backward()
    assert_close(x.grad, [2.0, 2.0, 2.0])


def test_functional_needs_a_vector_where_one_is_not_implied():
    with pytest.raises(ArgumentError, match="pass a vector"):
        functional.vjp(lambda x: x * 2.0, vector(1.0, 2.0))
    with pytest.raises(ArgumentError, match="one element"):
        functional.hessian(lambda x: x * 2.0, vector(1.0, 2.0))


def test_gradient_where_the_value_is_infinite():
    assert_close(grad(lambda x: x.log())(vector(0.0)[0]), vector(np.inf)[0])
