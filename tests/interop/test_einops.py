"""The real einops on our tensors: results are those on arrays, gradients flow, compiling works."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch.core.op import REGISTRY
from probtorch.tensor import tensor
from probtorch.testing.compare import assert_close

einops = pytest.importorskip("einops")
ROOT = Path(__file__).resolve().parents[2]

REARRANGED = [
    ("b h w c -> b h w c", {}),
    ("b h w c -> (b h) w c", {}),
    ("b h w c -> h (b w) c", {}),
    ("b h w c -> b (c h w)", {}),
    ("(b1 b2) h w c -> (b1 h) (b2 w) c", {"b1": 2}),
    ("b (h h2) (w w2) c -> (h w2) (b w c) h2", {"h2": 2, "w2": 2}),
    ("b h w c -> w () c h b", {}),
    ("... c -> c ...", {}),
    ("b ... c -> b (...) c", {}),
]
REDUCED = [
    ("b h w c -> b c", {}),
    ("b h w c -> ", {}),
    ("b (h h2) (w w2) c -> h w c", {"h2": 2, "w2": 3}),
    ("b h w c -> b () () c", {}),
    ("b ... -> b", {}),
]
REPEATED = [
    ("b h w c -> b (repeat h) w c", {"repeat": 2}),
    ("b h w c -> b h (w repeat) c tail", {"repeat": 3, "tail": 2}),
    ("b h w c -> b new h w c", {"new": 2}),
]


@pytest.fixture
def array():
    return np.random.default_rng(0).normal(size=(4, 6, 6, 3))


@pytest.mark.parametrize("pattern, sizes", REARRANGED)
def test_rearrange_is_that_of_arrays(array, pattern, sizes):
    found = einops.rearrange(tensor(array), pattern, **sizes)
    assert type(found) is probtorch.Tensor
    assert_close(found, tensor(einops.rearrange(array, pattern, **sizes)))


@pytest.mark.parametrize("operation", ["sum", "mean", "min", "max", "prod", "any", "all"])
@pytest.mark.parametrize("pattern, sizes", REDUCED)
def test_reduce_is_that_of_arrays(array, pattern, sizes, operation):
    array = array > 1 if operation in ("any", "all") else array
    found = einops.reduce(tensor(array), pattern, operation, **sizes)
    assert_close(found, tensor(np.asarray(einops.reduce(array, pattern, operation, **sizes))))


@pytest.mark.parametrize("pattern, sizes", REPEATED)
def test_repeat_is_that_of_arrays(array, pattern, sizes):
    found = einops.repeat(tensor(array), pattern, **sizes)
    assert_close(found, tensor(einops.repeat(array, pattern, **sizes)))


def test_a_list_of_tensors_is_stacked(array):
    found = einops.rearrange([tensor(x) for x in array], "b h w c -> (b h) w c")
    assert_close(found, tensor(array.reshape(24, 6, 3)))


def test_pack_and_unpack_undo_each_other(array):
    parts = [tensor(array[0]), tensor(array[1, 0]), tensor(array)]
    packed, shapes = einops.pack(parts, "* w c")
    assert packed.shape == (6 + 1 + 24, 6, 3)
    for part, again in zip(parts, einops.unpack(packed, shapes, "* w c"), strict=True):
        assert_close(again, part)


def test_einsum_has_names_of_several_letters(array):
    x, w = tensor(array), tensor(array[0, 0])
    found = einops.einsum(x, w, "batch h width c, width other -> batch h c other")
    assert_close(found, tensor(np.einsum("bhwc,wo->bhco", array, array[0, 0])))


def test_others_of_its_functions(array):
    assert einops.parse_shape(tensor(array), "b _ w c") == {"b": 4, "w": 6, "c": 3}
    assert np.array_equal(einops.asnumpy(tensor(array)), array)


def test_a_wrong_pattern_is_its_own_error(array):
    with pytest.raises(einops.EinopsError, match="divide axis of length 6 in chunks of 4"):
        einops.rearrange(tensor(array), "b (h x) w c -> b h x w c", x=4)


def test_a_mean_of_integers_is_refused_as_for_arrays():
    with pytest.raises(NotImplementedError, match="reduce_mean is not available"):
        einops.reduce(probtorch.arange(6), "n -> ", "mean")


def attend(x):
    x = einops.rearrange(x, "b (h h2) (w w2) c -> (b h w) (h2 w2) c", h2=3, w2=3)
    scores = einops.einsum(x, x, "n i c, n j c -> n i j").softmax(-1)
    return einops.reduce(einops.repeat(scores, "n i j -> n i j k", k=2), "n i j k -> n", "max")


def test_gradients_flow_and_compiled_it_gives_the_same(array):
    def slope(x):
        return probtorch.func.grad(lambda x: attend(x).sum())(x)

    eager = slope(tensor(array))
    assert eager.abs().sum() > 1.0
    compiled = probtorch.compile(slope)
    for _ in range(3):
        assert_close(compiled(tensor(array)), eager)
    assert "eagerly" not in str(compiled.explain()).splitlines()[0]


def test_it_works_inside_vmap(array):
    found = probtorch.vmap(lambda x: einops.reduce(x, "h w c -> c", "sum"))(tensor(array))
    assert_close(found, tensor(array.sum((1, 2))))


@pytest.mark.parametrize("first, second", [("einops", "probtorch"), ("probtorch", "einops")])
def test_either_may_be_imported_first(first, second):
    code = (
        f"import {first}, sys; print('einops' in sys.modules); import {second}\n"
        "print(einops.rearrange(probtorch.arange(4), '(a b) -> b a', a=2).tolist())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.split("\n")[:2] == [str(first == "einops"), "[[0, 2], [1, 3]]"]


def test_no_operation_is_declared_for_it():
    assert not any("einops" in name for name in REGISTRY)
