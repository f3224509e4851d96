"""Checkpointed functions: the same gradients, bit for bit, and less memory in between."""

import contextlib
import gc
import weakref

import numpy as np
import pytest

import probtorch
from probtorch import nn
from probtorch.errors import ArgumentError, AutogradError
from probtorch.utils.checkpoint import checkpoint, checkpoint_sequential


def network():
    probtorch.manual_seed(0)
    block = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.4)]
    return nn.Sequential(*block, nn.Linear(6, 4), nn.Dropout(0.2), nn.Linear(4, 1))


def taken(call, net, x):
    """Return all that a forward and backward pass leaves."""
    probtorch.manual_seed(7)
    out = call(net, x)
    between = probtorch.rand(2)
    out.sum().backward()
    rest = *(p.grad for p in net.parameters()), x.grad, between, probtorch.rand(2)
    return [np.array(t.tolist()) for t in (out.detach(), *net.buffers(), *rest)]


def two_parts(net, x):
    x = checkpoint(net[:4], x, use_reentrant=False)
    return checkpoint(lambda x, part: part(x), x, part=net[4:])


@pytest.mark.parametrize(
    "call",
    [
        lambda net, x: checkpoint(net, x),
        two_parts,
        lambda net, x: checkpoint(lambda x: two_parts(net, x), x),
        lambda net, x: checkpoint_sequential(net, 3, x),
    ],
    ids=["whole", "parts", "nested", "sequential"],
)
def test_gradients_draws_and_buffers_are_the_same(call):
    results = []
    for way in (lambda net, x: net(x), call):
        x = probtorch.linspace(-1.0, 1.0, 20).reshape(5, 4).requires_grad_()
        results.append(taken(way, network(), x))
    # Batch normalisation has another rounding where somebody listens, as a checkpoint does.
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)
    for a, b in zip(results[0][-2:], results[1][-2:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_draws_are_not_the_same_where_that_is_not_asked_for():
    x = probtorch.ones(1000, requires_grad=True)
    probtorch.manual_seed(0)
    out = checkpoint(lambda x: x * probtorch.rand(1000), x, preserve_rng_state=False)
    out.sum().backward()
    assert not np.array_equal(out.tolist(), x.grad.tolist())


def test_activations_are_gone_until_the_backward_pass():
    kept = []

    def fn(x):
        y = x.exp()
        kept.append(weakref.ref(y))
        return (y * y.sin()).sum()

    x = probtorch.ones(3, requires_grad=True)
    loss = checkpoint(fn, x)
    gc.collect()
    assert [ref() for ref in kept] == [None]
    loss.backward()
    assert len(kept) == 2
    again = x.grad.tolist()
    x.grad = None
    fn(x).backward()
    assert x.grad.tolist() == again


def test_trees_constants_and_what_is_handed_on():
    x, w = (probtorch.tensor([k, 2.0], requires_grad=True) for k in (1.0, 3.0))
    late = x * 2.0

    def fn(a, scale):
        return {"out": (a * w * late).sum() * scale, "same": a, "n": 3, "fixed": w.detach()}

    found = checkpoint(fn, x, scale=2.0)
    assert found["same"] is x and found["n"] == 3 and not found["fixed"].requires_grad
    found["out"].backward()
    expected = fn(x.detach().requires_grad_(), 2.0)
    assert found["out"].item() == expected["out"].item()
    # 2 a w (2 x), of which x is both.
    np.testing.assert_allclose(x.grad.tolist(), (8.0 * x * w).tolist())
    np.testing.assert_allclose(w.grad.tolist(), (4.0 * x * x).tolist())
    with probtorch.no_grad():
        assert not checkpoint(fn, x, scale=2.0)["out"].requires_grad


def test_second_derivatives_pass_through():
    x = probtorch.tensor([0.5, -1.0], dtype=probtorch.float64, requires_grad=True)

    def fn(x):
        return (x.sin() * x.exp()).sum()

    slopes = []
    for out in (fn(x), checkpoint(fn, x)):
        (g,) = probtorch.autograd.grad(out, x, create_graph=True)
        slopes.append(probtorch.autograd.grad((g * g).sum(), x)[0].tolist())
    np.testing.assert_allclose(*slopes, rtol=1e-14)


def test_it_is_a_plain_call_for_transforms_and_compiled_functions():
    w = probtorch.tensor([0.5, -1.0])

    def loss(w, x):
        return checkpoint(lambda w: (w * x).sin().sum(), w)

    plain = probtorch.func.grad(lambda w, x: (w * x).sin().sum())
    xs = probtorch.linspace(0.0, 1.0, 6).reshape(3, 2)
    rows = probtorch.func.vmap(probtorch.func.grad(loss), in_dims=(None, 0))(w, xs)
    np.testing.assert_allclose(rows.tolist(), [plain(w, x).tolist() for x in xs], rtol=1e-6)
    compiled = probtorch.compile(probtorch.func.grad(loss))
    for x in xs:
        np.testing.assert_allclose(compiled(w, x).tolist(), plain(w, x).tolist(), rtol=1e-6)
    assert compiled.reason is None


def test_a_second_run_that_differs_is_an_error():
    calls = []

    def growing(x):
        calls.append(None)
        return x.exp()[: len(calls)]

    x = probtorch.ones(3, requires_grad=True)
    with pytest.raises(AutogradError, match=r"otherwise[\s\S]*exp"):
        checkpoint(growing, x, debug=True).sum().backward()
    calls.clear()
    with pytest.raises(Exception, match="gradient"):
        checkpoint(growing, x, determinism_check="none").sum().backward()
    y = x * 1.0
    out = checkpoint(lambda y: y.exp().sum(), y)
    y.mul_(2.0)
    with pytest.raises(AutogradError, match="modified in place"):
        out.backward()
    with pytest.raises(AutogradError, match="tensor from outside"):
        checkpoint(lambda y: y.mul_(2.0).sum(), x * 1.0)


def test_contexts_and_options():
    entered = []

    @contextlib.contextmanager
    def noting(name):
        entered.append(name)
        yield

    x = probtorch.ones(2, requires_grad=True)
    contexts = lambda: (noting("first"), noting("second"))
    out = checkpoint(lambda x: x.exp().sum(), x, context_fn=contexts)
    assert entered == ["first"]
    out.backward()
    assert entered == ["first", "second"]
    with pytest.raises(ArgumentError, match="determinism_check"):
        checkpoint(lambda x: x, x, determinism_check="always")
    with pytest.raises(ArgumentError, match="segments"):
        checkpoint_sequential([nn.Tanh()], 2, x)
