"""Packed sequences: what goes in comes out, and recurrent layers treat each sequence by itself."""

import numpy as np
import pytest

import probtorch
import probtorch.nn as nn
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import ones, zeros
from probtorch.nn.utils.rnn import (
    PackedSequence,
    invert_permutation,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpack_sequence,
    unpad_sequence,
)
from probtorch.tensor import tensor
from probtorch.testing import assert_close

RNG = np.random.default_rng(5)


def sequences(*lengths):
    return [tensor(RNG.standard_normal((n, 3)), requires_grad=True) for n in lengths]


def test_packing_lists_the_steps_of_the_sequences_that_go_on():
    packed = pack_sequence([tensor([1, 2, 3]), tensor([4, 5]), tensor([6])])
    assert packed.data.tolist() == [1, 4, 6, 2, 5, 3]
    assert packed.batch_sizes.tolist() == [3, 2, 1]
    assert packed.sorted_indices is None
    mixed = pack_sequence([tensor([6]), tensor([1, 2, 3]), tensor([4, 5])], enforce_sorted=False)
    assert mixed.data.tolist() == [1, 4, 6, 2, 5, 3]
    assert mixed.sorted_indices.tolist() == [1, 2, 0]
    assert mixed.unsorted_indices.tolist() == [2, 0, 1]
    assert invert_permutation(mixed.sorted_indices).tolist() == [2, 0, 1]
    assert invert_permutation(None) is None


@pytest.mark.parametrize("batch_first", [True, False])
def test_what_is_packed_is_unpacked_with_its_gradient(batch_first):
    found = sequences(2, 4, 1)
    padded = pad_sequence(found, batch_first, padding_value=7.0)
    packed = pack_padded_sequence(padded, [2, 4, 1], batch_first, enforce_sorted=False)
    again, lengths = pad_packed_sequence(packed, batch_first, 7.0, total_length=5)
    assert lengths.tolist() == [2, 4, 1]
    kept = again[:, :4] if batch_first else again[:4]
    assert_close(kept.detach(), padded.detach(), rtol=0, atol=0)
    (again * again).sum().backward()
    for a, b, c in zip(
        found, unpad_sequence(padded, lengths, batch_first), unpack_sequence(packed)
    ):
        assert_close(b.detach(), a.detach(), rtol=0, atol=0)
        assert_close(c.detach(), a.detach(), rtol=0, atol=0)
        assert_close(a.grad, 2.0 * a.detach(), rtol=1e-12)


def test_padding_goes_to_either_side():
    found = [tensor([1, 2]), tensor([3])]
    assert pad_sequence(found, True, 9).tolist() == [[1, 2], [3, 9]]
    assert pad_sequence(found, True, 9, "left").tolist() == [[1, 2], [9, 3]]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("RNN", {}),
        ("GRU", {"num_layers": 2, "bidirectional": True}),
        ("LSTM", {"bidirectional": True, "proj_size": 2}),
    ],
    ids=["RNN", "GRU", "LSTM"],
)
def test_recurrent_layers_treat_each_packed_sequence_by_itself(name, settings):
    module, lengths = getattr(nn, name)(3, 4, **settings).double(), (2, 4, 1, 4)
    found = sequences(*lengths)
    rows = module.num_layers * (1 + module.bidirectional)
    start = [tensor(RNG.standard_normal((rows, 4, n))) for n in (module.proj_size or 4, 4)]
    start = start if name == "LSTM" else start[:1]

    def states(parts):
        return tuple(parts) if name == "LSTM" else parts[0]

    packed, last = module(pack_sequence(found, enforce_sorted=False), states(start))
    assert isinstance(packed, PackedSequence)
    last = last if name == "LSTM" else (last,)
    total = sum((s * s).sum() for s in (packed.data, *last))
    total.backward()
    whole = {k: p.grad.clone() for k, p in module.named_parameters()}
    own = [x.grad.clone() for x in found]
    module.zero_grad()
    for i, (x, outputs) in enumerate(zip(found, unpack_sequence(packed))):
        x.grad = None
        alone, end = module(x, states([s[:, i] for s in start]))
        end = end if name == "LSTM" else (end,)
        assert_close(outputs.detach(), alone.detach(), rtol=1e-12)
        for a, b in zip(last, end):
            assert_close(a[:, i].detach(), b.detach(), rtol=1e-12)
        sum((s * s).sum() for s in (alone, *end)).backward()
        assert_close(own[i], x.grad, rtol=1e-10, atol=1e-13)
    for k, p in module.named_parameters():
        assert_close(whole[k], p.grad, rtol=1e-10, atol=1e-13, msg=k)


def test_packed_layers_compile_for_each_set_of_lengths():
    module = nn.GRU(3, 2).double()
    compiled = probtorch.compile(lambda packed: module(packed)[0].data.sum())
    for lengths in ((3, 2), (3, 3), (2, 1), (3, 2)):
        packed = pack_sequence([s.detach() for s in sequences(*lengths)])
        expected = module(packed)[0].data.sum().detach()
        assert_close(compiled(packed).detach(), expected, rtol=1e-12)


def test_conversions_keep_the_lengths():
    packed = pack_sequence(sequences(2, 1))
    assert packed.float().data.dtype == probtorch.float32
    assert packed.to(dtype=probtorch.float16).data.dtype == probtorch.float16
    assert packed.half().double().batch_sizes is packed.batch_sizes
    assert not packed.cpu().is_cuda


def test_lengths_that_do_not_fit_are_refused():
    x = ones(4, 2, 3)
    with pytest.raises(ArgumentError, match="decreasing order"):
        pack_padded_sequence(x, [2, 4])
    with pytest.raises(ArgumentError, match="at least 1"):
        pack_padded_sequence(x, [2, 0])
    with pytest.raises(ShapeError, match="2 lengths of at most 4"):
        pack_padded_sequence(x, [5, 1])
    with pytest.raises(ShapeError, match="batch_first=True"):
        pack_padded_sequence(x, [3, 2, 1])
    with pytest.raises(ShapeError, match="differ in their first dim only"):
        pad_sequence([ones(2, 3), ones(2, 4)])
    with pytest.raises(ArgumentError, match="a PackedSequence"):
        pad_packed_sequence(x)
    packed = pack_padded_sequence(x, [4, 2])
    with pytest.raises(ArgumentError, match="total_length of at least 4"):
        pad_packed_sequence(packed, total_length=3)
    with pytest.raises(ShapeError, match=r"packed data \(elements, 5\)"):
        nn.RNN(5, 2)(packed)
    with pytest.raises(ShapeError, match=r"a state of shape \(1, 2, 2\)"):
        nn.RNN(3, 2)(packed, zeros(1, 3, 2))
