"""Layouts against NumPy's views: the same elements at the same indices, without moving any."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probtorch.compiler.nests.layout import Layout, contiguous
from probtorch.ops.movement import python_slices

SIZES = st.sampled_from([0, 1, 1, 2, 3, 4, 6])


def elements(layout, buffer):
    """Read a buffer through a layout, one index at a time."""
    out = np.empty(layout.shape, buffer.dtype)
    for index in np.ndindex(*layout.shape):
        at = layout.offset + sum(i * s for i, s in zip(index, layout.strides, strict=True))
        assert 0 <= at < buffer.size
        out[index] = buffer[at]
    return out


def shape_of_size(draw, size):
    if size == 0:
        return draw(st.sampled_from([(0,), (2, 0), (0, 3), (1, 0, 1)]))
    primes = []
    for p in (2, 3):
        while size % p == 0:
            primes.append(p)
            size //= p
    shape = list(draw(st.permutations([*primes, size] if size > 1 else primes)))
    while len(shape) > 1 and draw(st.booleans()):
        shape[-2:] = [shape[-2] * shape[-1]]
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


def slice_spec(draw, shape):
    spec = []
    for n in shape:
        end = st.one_of(st.none(), st.integers(-n, n))
        step = draw(st.sampled_from([1, 2, -1, -2, 3]))
        start, stop, step = slice(draw(end), draw(end), step).indices(n)
        spec.append((start, step, len(range(start, stop, step))))
    return tuple(spec)


@st.composite
def view_chains(draw):
    """A shape, and movement ops in a row with what NumPy makes of each."""
    start = tuple(draw(st.lists(SIZES, max_size=3)))
    array = np.arange(math.prod(start)).reshape(start)
    chain = []
    for _ in range(draw(st.integers(1, 5))):
        shape = array.shape
        name = draw(st.sampled_from(["reshape", "permute", "expand", "slice", "diagonal"]))
        if name == "reshape":
            attrs = {"shape": shape_of_size(draw, array.size)}
            array = array.reshape(attrs["shape"])
        elif name == "permute":
            attrs = {"dims": tuple(draw(st.permutations(range(len(shape)))))}
            array = array.transpose(attrs["dims"])
        elif name == "expand":
            grown = tuple(draw(st.integers(1, 3)) if n == 1 else n for n in shape)
            attrs = {"shape": (*draw(st.sampled_from([(), (2,), (1,)])), *grown)}
            array = np.broadcast_to(array, attrs["shape"])
        elif name == "slice":
            attrs = {"spec": slice_spec(draw, shape)}
            array = array[python_slices(attrs["spec"])]
        elif len(shape) > 1:
            attrs = {"offset": draw(st.integers(-2, 2))}
            array = array.diagonal(attrs["offset"], -2, -1)
        else:
            continue
        chain.append((name, attrs, array))
        if array.size > 500:
            break
    return start, chain


def views(case):
    """Yield layout and buffer before and after each step of a chain; copies where one is needed."""
    start, chain = case
    layout, buffer = contiguous(start), np.arange(math.prod(start))
    yield layout, buffer
    for name, attrs, _ in chain:
        moved = layout.view(name, attrs)
        if moved is None:
            assert name == "reshape"
            buffer = elements(layout, buffer).reshape(-1)
            moved = contiguous(layout.shape).view(name, attrs)
        layout = moved
        yield layout, buffer


@given(view_chains())
def test_a_chain_of_views_reads_what_numpy_reads(case):
    _, chain = case
    steps = views(case)
    next(steps)
    for (layout, buffer), (*_, array) in zip(steps, chain, strict=True):
        assert layout.shape == array.shape
        np.testing.assert_array_equal(elements(layout, buffer), array)


@given(view_chains())
def test_a_layout_needs_a_copy_only_where_numpy_needs_one(case):
    start, chain = case
    array = np.arange(math.prod(start)).reshape(start)
    layout = contiguous(start)
    for name, attrs, result in chain:
        moved = layout.view(name, attrs)
        if moved is None:
            assert not np.may_share_memory(array, array.reshape(attrs["shape"]))
            return
        layout, array = moved, result


@given(view_chains(), st.lists(st.integers(1, 3), max_size=2))
def test_broadcast_strides_read_what_numpy_broadcasts(case, lead):
    *_, (layout, buffer) = views(case)
    target = (*lead, *(2 if n == 1 else n for n in layout.shape))
    wide = Layout(target, layout.broadcast(target), layout.offset)
    expected = np.broadcast_to(elements(layout, buffer), target)
    np.testing.assert_array_equal(elements(wide, buffer), expected)


@given(view_chains())
def test_a_whole_layout_reads_its_first_elements_in_order(case):
    *_, (layout, buffer) = views(case)
    read = elements(layout, np.arange(buffer.size)).reshape(-1)
    in_order = np.array_equal(read, np.arange(read.size))
    # An expanded single element is in order too, though not as a whole buffer would be.
    if layout.is_whole():
        assert in_order
    elif in_order and read.size > 1:
        assert 0 in layout.strides or layout.offset != 0


@pytest.mark.parametrize(
    "shape, strides", [((), ()), ((3,), (1,)), ((2, 3), (3, 1)), ((2, 0, 4), (4, 4, 1))], ids=str
)
def test_a_contiguous_layout_is_row_major(shape, strides):
    assert contiguous(shape) == Layout(shape, strides, 0)
