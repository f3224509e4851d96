"""CTC by enumeration of alignments, the adaptive softmax by its definition, penalties, wrappers."""

import itertools

import numpy as np
import pytest

import probtorch
import probtorch.nn as nn
import probtorch.nn.functional as F
from probtorch.errors import ArgumentError, ShapeError, TensorIndexError
from probtorch.factories import ones, zeros
from probtorch.func import grad
from probtorch.nn.parallel import data_parallel
from probtorch.nn.regularize import L1, L2
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.derivatives import gradcheck

RNG = np.random.default_rng(8)


def normal(*shape):
    return RNG.standard_normal(shape)


def enumerated(logp, label, blank):
    """Minus the log of the sum over all paths that collapse to the label."""
    total = 0.0
    for path in itertools.product(range(logp.shape[1]), repeat=len(logp)):
        merged = [c for c, _ in itertools.groupby(path)]
        if [c for c in merged if c != blank] == list(label):
            total += np.exp(sum(logp[t, c] for t, c in enumerate(path)))
    return -np.log(total) if total else np.inf


LABELS = [[1, 2], [2, 2], [1], [], [1, 2, 1]]


@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_sums_over_all_alignments(blank):
    labels = [[(c + blank) % 3 for c in label] for label in LABELS]
    logp = F.log_softmax(tensor(normal(4, 5, 3)), 2)
    durations, sizes = [4, 4, 2, 3, 4], [len(label) for label in labels]
    padded = np.array([label + [0] * (3 - len(label)) for label in labels])
    joined = np.concatenate([np.array(label, int) for label in labels])
    expected = [
        enumerated(logp[:n, i].numpy(), label, blank)
        for i, (n, label) in enumerate(zip(durations, labels))
    ]
    for targets in (padded, joined):
        found = F.ctc_loss(logp, tensor(targets), durations, sizes, blank, "none")
        assert_close(found, np.array(expected), rtol=1e-12)
    mean = np.mean(np.array(expected) / np.maximum(sizes, 1))
    assert_close(F.ctc_loss(logp, tensor(padded), durations, sizes, blank), mean, rtol=1e-12)
    alone = F.ctc_loss(logp[:, 1], tensor(padded[1]), tensor(4), tensor(2), blank, "sum")
    assert_close(alone, expected[1], rtol=1e-12)


def test_what_cannot_be_aligned_is_infinite_or_nothing():
    x, targets = tensor(normal(3, 2, 3), requires_grad=True), tensor([[1, 1, 1], [1, 2, 1]])
    loss = F.ctc_loss(F.log_softmax(x, 2), targets, (3, 3), (3, 3), reduction="none")
    assert loss[0].item() == np.inf and np.isfinite(loss[1].item())
    F.ctc_loss(F.log_softmax(x, 2), targets, (3, 3), (3, 3), zero_infinity=True).backward()
    assert (x.grad[:, 0] == 0).all() and (x.grad[:, 1] != 0).any()


def test_gradient_of_ctc_and_its_compiled_loop():
    targets = tensor([[1, 2, 2], [3, 1, 1]])

    def loss(x, durations, sizes):
        return F.ctc_loss(F.log_softmax(x, 2), targets, durations, sizes)

    x = tensor(normal(7, 2, 4), requires_grad=True)
    lengths = tensor([7, 5]), tensor([3, 2])
    assert gradcheck(lambda x: loss(x, *lengths), x, fast_mode=True)
    slope = grad(loss)
    compiled = probtorch.compile(slope)
    for durations, sizes in (lengths, (tensor([6, 7]), tensor([1, 3]))):
        found = compiled(x.detach(), durations, sizes)
        assert_close(found, slope(x.detach(), durations, sizes), rtol=1e-10, atol=1e-13)
    assert compiled.reason is None


def test_mistakes_in_ctc_are_named():
    logp, targets = zeros(4, 2, 3), tensor([[1, 2], [1, 1]])
    with pytest.raises(ShapeError, match="input_lengths of at least 0 and at most 4"):
        F.ctc_loss(logp, targets, (5, 4), (2, 2))
    with pytest.raises(ShapeError, match=r"target_lengths of shape \(2,\)"):
        F.ctc_loss(logp, targets, (4, 4), (2, 2, 2))
    with pytest.raises(ShapeError, match=r"S >= 3"):
        F.ctc_loss(logp, targets, (4, 4), (3, 2))
    with pytest.raises(ArgumentError, match=r"blank in \[0, 2\]"):
        F.ctc_loss(logp, targets, (4, 4), (2, 2), blank=3)
    with pytest.raises(TensorIndexError, match=r"labels in \[0, 2\]"):
        F.ctc_loss(logp, targets + 2, (4, 4), (2, 2))


# --------------------------------------------------------------------------------- adaptive softmax


def test_adaptive_softmax_is_a_distribution_over_all_classes():
    layer = nn.AdaptiveLogSoftmaxWithLoss(6, 9, [3, 7], div_value=2.0).double()
    x, t = tensor(normal(20, 6)), tensor(RNG.integers(0, 9, 20))
    logp = layer.log_prob(x).detach().numpy()
    assert_close(np.exp(logp).sum(1), np.ones(20), rtol=1e-12)
    head = layer.head.weight.detach().numpy()
    scores = x.numpy() @ head.T
    cluster = scores[:, 4] - np.log(np.exp(scores).sum(1))
    inner, outer = (m.weight.detach().numpy() for m in layer.tail[1])
    rare = x.numpy() @ inner.T @ outer.T
    rare = rare - np.log(np.exp(rare).sum(1, keepdims=True))
    assert_close(logp[:, 7:], cluster[:, None] + rare, rtol=1e-11)
    output, loss = layer(x, t)
    assert_close(output.detach(), logp[np.arange(20), t.numpy()], rtol=1e-12)
    assert_close(loss.detach(), -output.detach().mean(), rtol=1e-12)
    assert_close(layer.predict(x), logp.argmax(1))
    assert layer.predict(x[0]).shape == ()
    with pytest.raises(ArgumentError, match="cutoffs: ascending"):
        nn.AdaptiveLogSoftmaxWithLoss(6, 9, [7, 3])
    with pytest.raises(TensorIndexError, match=r"classes in \[0, 8\]"):
        layer(x, t + 9)


def test_compiled_adaptive_softmax_follows_its_targets():
    layer = nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2, 4], div_value=2.0).double()
    x, compiled = tensor(normal(5, 4)), probtorch.compile(lambda x, t: layer(x, t).loss)
    for t in ([0, 1, 0, 1, 1], [5, 2, 0, 3, 4]):
        expected = layer(x, tensor(t)).loss.detach()
        assert_close(compiled(x, tensor(t)).detach(), expected, rtol=1e-12)
    assert compiled.reason is None


# -------------------------------------------------------------------------------- bags and wrappers


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_combine_the_rows_of_a_table(mode):
    table, index, begins = normal(6, 3), np.array([4, 1, 2, 2, 0, 5]), [0, 2, 2, 5]
    expected = np.zeros((4, 3))
    for i, (a, b) in enumerate(zip(begins, [*begins[1:], 6])):
        rows = table[[k for k in index[a:b] if k != 2]]
        if len(rows):
            expected[i] = getattr(rows, mode)(0)
    found = F.embedding_bag(tensor(index), tensor(table), tensor(begins), mode=mode, padding_idx=2)
    assert_close(found, expected, rtol=1e-12)
    whole = nn.EmbeddingBag.from_pretrained(tensor(table), mode=mode)
    assert_close(whole(tensor(index.reshape(2, 3))), getattr(table[index.reshape(2, 3)], mode)(1))
    assert not whole.weight.requires_grad


def test_bags_that_do_not_fit_are_refused():
    index, table = tensor([0, 1, 2]), ones(3, 2)
    with pytest.raises(ShapeError, match="offsets say where each bag begins"):
        F.embedding_bag(index, table)
    with pytest.raises(TensorIndexError, match="ascend from 0"):
        F.embedding_bag(index, table, tensor([1, 2]))
    with pytest.raises(ArgumentError, match="per_sample_weights in mode 'sum'"):
        F.embedding_bag(index, table, tensor([0]), per_sample_weights=ones(3))


@pytest.mark.parametrize("decayed", [False, True])
def test_penalties_add_their_gradient_to_that_of_the_loss(decayed):
    x, layer = tensor(normal(5, 3)), nn.Linear(3, 2).double()
    layer(x).square().sum().backward()
    plain = {name: p.grad.clone() for name, p in layer.named_parameters()}
    for penalty, slope in ((L1, np.sign), (L2, lambda w: w)):
        layer.zero_grad()
        wrapped = penalty(layer, 0.3, "weight" if decayed else None)
        wrapped(x).square().sum().backward()
        for name, p in layer.named_parameters():
            factor = 0.0 if decayed and name == "bias" else 0.3
            expected = plain[name].numpy() + factor * slope(p.detach().numpy())
            assert_close(p.grad, expected, rtol=1e-12)
        assert_close(wrapped.eval()(x).detach(), layer(x).detach(), rtol=0, atol=0)
    assert repr(L2(nn.Identity(), 0.5)).startswith("L2(")
    with pytest.raises(ArgumentError, match="weight_decay >= 0"):
        L2(layer, -1.0)


def test_data_parallel_passes_on_to_its_module():
    layer, x = nn.Linear(3, 2), ones(4, 3)
    wrapped = nn.DataParallel(layer, device_ids=[0])
    assert wrapped.module is layer
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]
    assert_close(wrapped(x).detach(), layer(x).detach(), rtol=0, atol=0)
    assert_close(data_parallel(layer, x).detach(), layer(x).detach(), rtol=0, atol=0)
