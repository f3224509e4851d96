"""Every registered op on a batch gives what it gives slice by slice, gradients included."""

import importlib
import itertools
import pkgutil

import numpy as np
import pytest

import probtorch
import probtorch.nn.functional as F
import probtorch.ops
from probtorch.autograd import batching
from probtorch.autograd.batching import _RULES, batched, slow_ops
from probtorch.autograd.tape import grad
from probtorch.autograd.transforms import vjp
from probtorch.autograd.vmap import vmap
from probtorch.core.dispatch import apply, wrap
from probtorch.core.op import REGISTRY, core_dims
from probtorch.testing.compare import assert_close, to_array
from probtorch.testing.sweep import cases, differentiable_inputs, registered_ops

for _module in pkgutil.walk_packages(probtorch.ops.__path__, "probtorch.ops."):
    importlib.import_module(_module.name)

SIZE = 3
# Whose integers say together what a matrix is.
MATRICES = ("sparse_product",)


def batches_of(case, flags):
    """Inputs with `SIZE` different slices where the flag is set, and the slices."""
    rng = np.random.default_rng(0)
    whole = []
    for i, (a, flag) in enumerate(zip(case.arrays, flags, strict=True)):
        if not flag:
            whole.append(np.array(a))
        elif a.dtype.kind == "f":
            # Scaled: that keeps domains, definiteness and the like. Kinks and ties are the same
            # within a slice.
            scales = 1.0 - 0.02 * np.arange(SIZE) * (1 + i)
            rows = [a * s for s in scales]
            if case.op.name in ("det_hessian",):
                rows = [a + 0.01 * rng.standard_normal(a.shape) for _ in range(SIZE)]
            whole.append(np.stack(rows))
        elif a.dtype == bool or case.op.family == "elementwise" or case.op.name in MATRICES:
            whole.append(np.stack([a] * SIZE))
        elif a.ndim and i:
            whole.append(np.stack([np.roll(a, k) for k in range(SIZE)]))
        else:
            whole.append(np.stack([a] * SIZE))
    return whole


def tensors(case, arrays, flags, row=None):
    out = []
    for i, (a, f) in enumerate(zip(arrays, flags, strict=True)):
        t = wrap(np.array(a[row] if f and row is not None else a))
        t.requires_grad = i in differentiable_inputs(case.op, case.arrays)
        out.append(t)
    return out


def patterns(case):
    """Which inputs carry the batch: each alone, all, and all but the first."""
    n = len(case.arrays)
    one = [tuple(i == j for j in range(n)) for i in range(n)]
    found = [*one, (True,) * n, tuple(j > 0 for j in range(n))]
    if case.op.extra.get("sampler"):
        # Seed and stream are numbers.
        found = [f for f in found if not (f[-3] or f[-2])] + [(False,) * (n - 1) + (True,)]
    return list(dict.fromkeys(f for f in found if any(f)))


def pulled(outs, inputs, gs):
    pairs = [(o, g) for o, g in zip(outs, gs, strict=True) if o.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    if not pairs or not wanted:
        return []
    return grad([o for o, _ in pairs], wanted, [wrap(g) for _, g in pairs], materialize_grads=True)


@pytest.mark.parametrize("op", registered_ops(), ids=lambda op: op.name)
def test_batch_is_what_the_slices_are(op):
    rng = np.random.default_rng(1)
    for case in cases(op):
        for flags in patterns(case):
            label = f"{case.label}, batch in {flags}"
            arrays = batches_of(case, flags)
            together = tensors(case, arrays, flags)
            out = batched(op, together, flags, case.attrs, SIZE)
            outs = out if type(out) is tuple else (out,)
            gs = [rng.standard_normal(o.array.shape).astype(o.array.dtype) for o in outs]
            got = pulled(outs, together, gs)
            total = None
            for i in range(SIZE):
                alone = tensors(case, arrays, flags, i)
                one = apply(op, tuple(alone), case.attrs)
                ones = one if type(one) is tuple else (one,)
                for o, y in zip(outs, ones, strict=True):
                    assert o.array.dtype == y.array.dtype, label
                    assert_close(o[i], y, rtol=1e-9, atol=1e-10, msg=label)
                pieces = pulled(ones, alone, [g[i] for g in gs])
                rows = [to_array(p) for p in pieces]
                total = (
                    [[r] for r in rows]
                    if total is None
                    else [[*t, r] for t, r in zip(total, rows, strict=True)]
                )
            marked = [f for f, x in zip(flags, together, strict=True) if x.requires_grad]
            for f, g, rows in zip(marked, got, total, strict=True) if got else ():
                expected = np.stack(rows) if f else np.sum(rows, 0)
                scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
                assert_close(g, expected, rtol=1e-8, atol=1e-9 * scale, msg=label)


@pytest.mark.parametrize(
    "op", [op for op in registered_ops() if op.vjp is not None], ids=lambda op: op.name
)
def test_reverse_rule_on_many_cotangents_is_what_it_is_on_each(op):
    """Jacobians rest on this: nothing in a rule may look at one cotangent only."""
    for case in [c for c in cases(op) if all(a.size for a in c.arrays)][-2:]:
        inputs = case.tensors()
        wanted = [i for i, x in enumerate(inputs) if x.requires_grad]
        if not wanted or any(inputs[i].array.dtype != np.float64 for i in wanted):
            continue

        def outputs(*moved, inputs=inputs, wanted=wanted, case=case):
            given = [x.detach() for x in inputs]
            for i, x in zip(wanted, moved, strict=True):
                given[i] = x
            out = apply(case.op, tuple(given), case.attrs)
            out = out if type(out) is tuple else (out,)
            return [o for o in out if o.array.dtype.kind == "f"]

        values, pull = vjp(outputs, *(inputs[i].detach() for i in wanted))
        if not values:
            continue
        rng = np.random.default_rng(0)
        gs = [wrap(rng.standard_normal((5, *v.array.shape))) for v in values]
        together = vmap(lambda *g, pull=pull: pull(list(g)))(*gs)
        for k in range(5):
            alone = pull([g[k] for g in gs])
            for many, one in zip(together, alone, strict=True):
                assert_close(many[k], one, rtol=1e-9, atol=1e-10, msg=case.label)


def test_ops_without_a_rule_are_those_that_need_none():
    """A density compiled elsewhere is a function of one point; a classifier's mean loss is one
    operation only where nothing listens, `vmap` neither.
    """
    assert slow_ops() == ["class_loss", "class_mean", "native_density"]


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_mean_losses_of_classes_are_batched_as_their_parts(loss, monkeypatch):
    def refuse(op, *rest):
        raise AssertionError(f"{op.name} was run slice by slice")

    monkeypatch.setattr(batching, "_one_by_one", refuse)
    x, t = probtorch.randn(5, 4, 3), probtorch.tensor([[0, 1, 2, 1]] * 5)
    got = vmap(loss)(x, t)
    assert np.allclose(got.numpy(), [loss(a, b).item() for a, b in zip(x, t, strict=True)])


def test_rules_by_name_are_for_what_core_dims_do_not_say():
    """Attributes that speak of every dim, and products and solves that become one larger one."""
    assert set(_RULES) == {
        *("reshape", "permute", "expand", "slice", "unslice", "slice_put", "windows"),
        "strided",
        *("overlap_add", "argmax", "argmin", "searchsorted", "take", "untake", "put"),
        *("matmul", "sparse_product", "solve", "solve_triangular", "room"),
    }


@pytest.mark.parametrize(
    "op", [op for op in registered_ops() if op.core and "->" in op.core], ids=lambda op: op.name
)
def test_shapes_are_those_of_the_core_dims(op):
    inputs, outputs = core_dims(op.core)
    if "*" in op.core:
        inputs = outputs = [["h", "w"]]
    for case in cases(op):
        sizes, loops = {}, []
        for a, names in zip(case.arrays, inputs, strict=True):
            first = a.ndim - len(names)
            for name, n in zip(names, a.shape[first:], strict=True):
                assert sizes.setdefault(name, n) == n, case.label
            loops.append(a.shape[:first])
        loop = np.broadcast_shapes(*loops)
        for out, names in zip(case.run(case.tensors()), outputs, strict=True):
            first = out.ndim - len(names)
            assert out.shape[:first] == loop, case.label
            for name, n in zip(names, out.shape[first:], strict=True):
                assert "*" in op.core or sizes.setdefault(name, n) == n, case.label


@pytest.mark.parametrize(
    ("dims", "batch"),
    list(itertools.product([(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)], [(1, 0), (0, 1), (1, 1)])),
    ids=str,
)
@pytest.mark.parametrize("index_shape", [(), (2,), (2, 3)], ids=str)
def test_indexing_agrees_with_a_loop_wherever_the_indexed_dims_lie(dims, batch, index_shape):
    rng = np.random.default_rng(2)
    shape, size = (4, 3, 5), 3
    flags = (bool(batch[0]), *[bool(batch[1])] * len(dims))
    x = rng.standard_normal((size, *shape) if flags[0] else shape)
    lead = (size,) if flags[1] else ()
    index = [rng.integers(-shape[d], shape[d], (*lead, *index_shape)) for d in dims]
    take, untake, put = (REGISTRY[name] for name in ("take", "untake", "put"))
    out = batched(take, [wrap(x), *map(wrap, index)], flags, {"dims": dims}, size)

    def row(a, i, flag):
        return a[i] if flag else a

    for i in range(size):
        here = [wrap(np.asarray(row(a, i, flags[1]))) for a in index]
        one = apply(take, (wrap(row(x, i, flags[0])), *here), {"dims": dims})
        assert_close(out[i], one, rtol=0, atol=0)
    g = rng.standard_normal(out.array.shape if flags[0] else out.array.shape[1:])
    attrs = {"dims": dims, "shape": shape}
    back = batched(untake, [wrap(g), *map(wrap, index)], flags, attrs, size)
    attrs_put = {"dims": dims, "accumulate": True}
    value = rng.standard_normal(out.array.shape[1:])
    added = batched(
        put,
        [wrap(x), wrap(value), *map(wrap, index)],
        (flags[0], False, *flags[1:]),
        attrs_put,
        size,
    )
    for i in range(size):
        here = [wrap(np.asarray(row(a, i, flags[1]))) for a in index]
        assert_close(back[i], apply(untake, (wrap(row(g, i, flags[0])), *here), attrs), rtol=1e-14)
        one = apply(put, (wrap(row(x, i, flags[0])), wrap(value), *here), attrs_put)
        assert_close(added[i], one, rtol=1e-14)
