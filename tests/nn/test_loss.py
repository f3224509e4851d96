"""Losses against their formulas in NumPy and SciPy, their reductions, and their error messages."""

import math

import numpy as np
import pytest
from scipy import special, stats

import probtorch.nn as nn
import probtorch.nn.functional as F
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError, TensorIndexError
from probtorch.factories import ones, zeros
from probtorch.tensor import tensor
from probtorch.testing import assert_close

RNG = np.random.default_rng(9)


def normal(*shape):
    return RNG.standard_normal(shape)


def unit(*shape):
    return RNG.uniform(0.1, 0.9, shape)


def signs(*shape):
    return RNG.choice([-1.0, 1.0], shape)


def log_loss(p, t):
    return -(t * np.log(p) + (1 - t) * np.log(1 - p))


X, T, P, Q, S = normal(4, 3) * 2, normal(4, 3), unit(4, 3), unit(4, 3), signs(4, 3)
COUNTS = RNG.poisson(3.0, (4, 3)).astype(float)
D = np.abs(X - T)
STIRLING = np.where(
    COUNTS > 1,
    COUNTS * np.log(np.maximum(COUNTS, 1))
    - COUNTS
    + 0.5 * np.log(2 * np.pi * np.maximum(COUNTS, 1)),
    0.0,
)
# Name, settings, arguments and the loss of each element.
ELEMENTWISE = [
    ("mse_loss", {}, (X, T), D**2),
    ("l1_loss", {}, (X, T), D),
    ("smooth_l1_loss", {"beta": 0.7}, (X, T), np.where(D < 0.7, D**2 / 1.4, D - 0.35)),
    ("smooth_l1_loss", {"beta": 0.0}, (X, T), D),
    ("huber_loss", {"delta": 0.7}, (X, T), np.where(D < 0.7, D**2 / 2, 0.7 * (D - 0.35))),
    ("soft_margin_loss", {}, (X, S), np.log1p(np.exp(-S * X))),
    ("binary_cross_entropy", {}, (P, Q), log_loss(P, Q)),
    ("binary_cross_entropy_with_logits", {}, (X, Q), log_loss(special.expit(X), Q)),
    ("kl_div", {}, (np.log(P), Q), special.rel_entr(Q, P)),
    ("kl_div", {"log_target": True}, (np.log(P), np.log(Q)), special.rel_entr(Q, P)),
    ("poisson_nll_loss", {}, (X, COUNTS), np.exp(X) - COUNTS * X),
    ("poisson_nll_loss", {"log_input": False}, (P, COUNTS), P - COUNTS * np.log(P + 1e-8)),
    ("poisson_nll_loss", {"full": True}, (X, COUNTS), np.exp(X) - COUNTS * X + STIRLING),
    (
        "gaussian_nll_loss",
        {"full": True},
        (X, T, P),
        -stats.norm.logpdf(T, X, np.sqrt(P)),
    ),
    ("margin_ranking_loss", {"margin": 0.5}, (X, T, S), np.maximum(0, -S * (X - T) + 0.5)),
    (
        "hinge_embedding_loss",
        {"margin": 0.5},
        (X, S),
        np.where(S == 1, X, np.maximum(0, 0.5 - X)),
    ),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("name", "settings", "arguments", "expected"),
    ELEMENTWISE,
    ids=[f"{name}-{settings}" for name, settings, _, _ in ELEMENTWISE],
)
def test_loss_is_its_formula_reduced(name, settings, arguments, expected, reduction):
    got = getattr(F, name)(*map(tensor, arguments), **settings, reduction=reduction)
    reduced = {"mean": np.mean, "sum": np.sum, "none": np.asarray}[reduction](expected)
    assert_close(got, reduced, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss"])
def test_weighted_mean_divides_by_the_weights(name):
    each = getattr(F, name)(tensor(X), tensor(T), reduction="none").numpy()
    got = getattr(F, name)(tensor(X), tensor(T), weight=tensor(P))
    assert_close(got, np.average(each, weights=P), rtol=1e-12)
    total = getattr(F, name)(tensor(X), tensor(T), weight=tensor(P), reduction="sum")
    assert_close(total, (each * P).sum(), rtol=1e-12)


# ---------------------------------------------------------------------------------- classification


def classified(logits, labels, weight=None, ignore=-100, smoothing=0.0):
    """Losses and weights of single targets, one by one; logits (N, C)."""
    logp = special.log_softmax(logits, -1)
    classes = logits.shape[-1]
    weight = np.ones(classes) if weight is None else weight
    losses, shares = [], []
    for row, label in zip(logp, labels):
        if label == ignore:
            losses.append(0.0)
            shares.append(0.0)
            continue
        hard = -weight[label] * row[label]
        spread = -(weight * row).sum() / classes
        losses.append((1 - smoothing) * hard + smoothing * spread)
        shares.append(weight[label])
    return np.array(losses), np.array(shares)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight": unit(5)},
        {"ignore_index": 2},
        {"label_smoothing": 0.2},
        {"weight": unit(5), "ignore_index": 2, "label_smoothing": 0.2},
    ],
    ids=lambda s: ",".join(s) or "plain",
)
@pytest.mark.parametrize("shape", [(7, 5), (3, 5, 4), (2, 5, 2, 3)], ids=str)
def test_cross_entropy_of_class_indices(settings, shape):
    logits = normal(*shape)
    labels = RNG.integers(0, 5, (shape[0], *shape[2:]))
    rows = np.moveaxis(logits, 1, -1).reshape(-1, 5)
    losses, shares = classified(
        rows,
        labels.ravel(),
        settings.get("weight"),
        settings.get("ignore_index", -100),
        settings.get("label_smoothing", 0.0),
    )
    given = {k: tensor(v) if isinstance(v, np.ndarray) else v for k, v in settings.items()}
    arguments = tensor(logits), tensor(labels)
    none = F.cross_entropy(*arguments, **given, reduction="none")
    assert_close(none, losses.reshape(labels.shape), rtol=1e-10, atol=1e-12)
    assert_close(F.cross_entropy(*arguments, **given, reduction="sum"), losses.sum(), rtol=1e-10)
    assert_close(F.cross_entropy(*arguments, **given), losses.sum() / shares.sum(), rtol=1e-10)
    bytes_ = tensor(labels.astype(np.uint8))
    assert F.cross_entropy(arguments[0], bytes_, **given) == F.cross_entropy(*arguments, **given)


def test_cross_entropy_of_probabilities():
    logits, target, weight = normal(6, 5), special.softmax(normal(6, 5), 1), unit(5)
    logp = special.log_softmax(logits, 1)
    plain = -(target * logp).sum(1)
    assert_close(F.cross_entropy(tensor(logits), tensor(target)), plain.mean(), rtol=1e-12)
    smooth = -((target * 0.9 + 0.1 / 5) * logp * weight).sum(1)
    got = F.cross_entropy(
        tensor(logits), tensor(target), tensor(weight), label_smoothing=0.1, reduction="none"
    )
    assert_close(got, smooth, rtol=1e-12)


def test_cross_entropy_is_nll_of_log_softmax_also_without_a_batch():
    logits, weight = normal(5), unit(5)
    logp = F.log_softmax(tensor(logits), 0)
    got = F.nll_loss(logp, tensor(3), tensor(weight), reduction="sum")
    assert_close(got, F.cross_entropy(tensor(logits), tensor(3), tensor(weight), reduction="sum"))
    assert F.cross_entropy(tensor(logits), tensor(3)).shape == ()


def test_gradient_of_cross_entropy_is_softmax_less_target():
    logits = tensor(normal(4, 3), requires_grad=True)
    F.cross_entropy(logits, tensor([0, 2, 1, 1])).backward()
    expected = (special.softmax(logits.detach().numpy(), 1) - np.eye(3)[[0, 2, 1, 1]]) / 4
    assert_close(logits.grad, expected, rtol=1e-10, atol=1e-14)


def test_ignored_rows_may_hold_infinities():
    logits = tensor([[0.0, 1.0], [-np.inf, 2.0]], requires_grad=True)
    loss = F.cross_entropy(logits, tensor([1, -100]))
    loss.backward()
    assert np.isfinite(loss.item()) and np.isfinite(logits.grad.numpy()).all()
    assert math.isnan(F.cross_entropy(logits, tensor([-100, -100])).item())


def test_huge_logits_are_no_trouble():
    loss = F.cross_entropy(tensor([[1e4, -1e4]]), tensor([1]))
    assert loss.item() == 2e4
    x = tensor([-1e4, 1e4], requires_grad=True)
    F.binary_cross_entropy_with_logits(x, tensor([1.0, 0.0]), reduction="sum").backward()
    assert x.grad.tolist() == [-1.0, 1.0]


def test_log_loss_is_cut_at_one_hundred():
    x = tensor([0.0, 1.0, 0.0], requires_grad=True)
    loss = F.binary_cross_entropy(x, tensor([1.0, 0.0, 0.0]), reduction="none")
    assert_close(loss.detach(), np.array([100.0, 100.0, 0.0], np.float32), rtol=1e-3)
    loss.sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_factors_of_binary_losses():
    weight, pos = unit(3), unit(3)
    each = log_loss(P, Q) * weight
    got = F.binary_cross_entropy(tensor(P), tensor(Q), tensor(weight), reduction="none")
    assert_close(got, each, rtol=1e-11)
    p = special.expit(X)
    expected = -(pos * Q * np.log(p) + (1 - Q) * np.log(1 - p)) * weight
    got = nn.BCEWithLogitsLoss(tensor(weight), pos_weight=tensor(pos), reduction="none")(
        tensor(X), tensor(Q)
    )
    assert_close(got, expected, rtol=1e-10)


def test_kl_divergence_over_the_batch():
    p, q = special.softmax(X, 1), special.softmax(T, 1)
    expected = stats.entropy(q, p, axis=1).mean()
    got = nn.KLDivLoss(reduction="batchmean")(tensor(np.log(p)), tensor(q))
    assert_close(got, expected, rtol=1e-11)
    assert F.kl_div(zeros(2), tensor([0.0, 1.0]), reduction="sum").item() == 0.0


@pytest.mark.parametrize("shape", [(), (4,), (4, 1), (4, 3)], ids=str)
def test_variance_may_be_shared_over_the_last_dim(shape):
    var = unit(*shape)
    full = np.broadcast_to(var[:, None] if shape == (4,) else var, (4, 3))
    expected = 0.5 * (np.log(full) + (X - T) ** 2 / full)
    assert_close(
        F.gaussian_nll_loss(tensor(X), tensor(T), tensor(var)), expected.mean(), rtol=1e-11
    )


def test_small_variances_are_lifted_with_their_gradient():
    v = tensor([1e-12], requires_grad=True)
    loss = F.gaussian_nll_loss(tensor([0.0]), tensor([0.0]), v, eps=1e-6)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * math.log(1e-6), rel=1e-5)
    assert v.grad.item() == pytest.approx(0.5e6, rel=1e-4)


# ------------------------------------------------------------------------------------------ margins


def test_cosine_embedding_loss():
    a, b, t = normal(5, 3), normal(5, 3), np.array([1.0, -1.0, 1.0, -1.0, -1.0])
    cos = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    expected = np.where(t == 1, 1 - cos, np.maximum(0, cos - 0.1))
    got = F.cosine_embedding_loss(*map(tensor, (a, b, t)), margin=0.1, reduction="none")
    assert_close(got, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("swap", [False, True])
def test_triplet_margin_loss(swap):
    a, p, n = normal(5, 3), normal(5, 3), normal(5, 3)

    def distance(x, y):
        return np.linalg.norm(x - y + 1e-6, axis=1)

    far = np.minimum(distance(a, n), distance(p, n)) if swap else distance(a, n)
    expected = np.maximum(0, 0.7 + distance(a, p) - far)
    got = nn.TripletMarginLoss(0.7, swap=swap, reduction="none")(*map(tensor, (a, p, n)))
    assert_close(got, expected, rtol=1e-11)


@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(p):
    x, labels, weight = normal(4, 3), np.array([0, 2, 1, 1]), unit(3)
    expected = [
        sum(
            weight[y] * max(0, 0.8 - row[y] + row[i]) ** p for i in range(3) if i != y
        ) / 3
        for row, y in zip(x, labels)
    ]  # fmt: skip
    got = F.multi_margin_loss(tensor(x), tensor(labels), p, 0.8, tensor(weight), reduction="none")
    assert_close(got, np.array(expected), rtol=1e-11)
    alone = F.multi_margin_loss(tensor(x[0]), tensor(0), p, 0.8, tensor(weight))
    assert_close(alone, expected[0], rtol=1e-11)


def test_multilabel_margin_loss_stops_at_the_first_negative():
    x, target = normal(2, 4), np.array([[3, 0, -1, 1], [1, -1, -1, -1]])
    expected = []
    for row, labels in zip(x, ([3, 0], [1])):
        others = [i for i in range(4) if i not in labels]
        expected.append(sum(max(0, 1 - (row[j] - row[i])) for j in labels for i in others) / 4)
    got = F.multilabel_margin_loss(tensor(x), tensor(target), reduction="none")
    assert_close(got, np.array(expected), rtol=1e-11)
    assert_close(F.multilabel_margin_loss(tensor(x[0]), tensor(target[0])), expected[0], rtol=1e-11)


def test_multilabel_soft_margin_loss():
    weight = unit(3)
    expected = (log_loss(special.expit(X), Q) * weight).mean(1)
    got = F.multilabel_soft_margin_loss(tensor(X), tensor(Q), tensor(weight), reduction="none")
    assert_close(got, expected, rtol=1e-10)


# -------------------------------------------------------------------------------- modules, mistakes


def test_class_weights_are_saved_with_the_module():
    loss = nn.CrossEntropyLoss(weight=tensor([0.2, 0.2, 0.6]))
    assert list(loss.state_dict()) == ["weight"]
    assert loss.double().weight.dtype == np.float64
    x, y = normal(10, 3), np.ones(10, int)
    losses, shares = classified(x, y, np.array([0.2, 0.2, 0.6], np.float32))
    assert_close(loss(tensor(x), tensor(y)), losses.sum() / shares.sum(), rtol=1e-6)


def test_one_line_of_the_five_idioms_runs():
    model, images, labels = nn.Linear(4, 3), tensor(normal(5, 4)).float(), tensor([0, 1, 2, 1, 0])
    before = model.weight.tolist()
    nn.cross_entropy(model(images), labels).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert model.weight.tolist() == before


@pytest.mark.parametrize(
    ("old", "meant"),
    [
        ({"size_average": False}, "sum"),
        ({"reduce": False}, "none"),
        ({"size_average": True, "reduce": True}, "mean"),
    ],
    ids=str,
)
def test_old_spelling_of_reductions_is_understood_with_a_warning(old, meant):
    with pytest.warns(UserWarning, match=f"use reduction='{meant}'"):
        loss = nn.MSELoss(**old)
    assert loss.reduction == meant
    with pytest.warns(UserWarning, match="deprecated"):
        got = F.l1_loss(tensor(X), tensor(T), **old)
    assert_close(got, F.l1_loss(tensor(X), tensor(T), reduction=meant))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: F.mse_loss(ones(2), ones(2), reduction="avg"), ArgumentError, "'mean', 'sum'"),
        (lambda: nn.L1Loss(reduction="batchmean"), ArgumentError, "reduction among"),
        (lambda: F.cross_entropy(ones(2, 3), tensor([0, 3])), TensorIndexError, "target 3 is out"),
        (lambda: F.cross_entropy(ones(2, 3), tensor([0, -1])), TensorIndexError, "target -1"),
        (lambda: F.cross_entropy(ones(2, 3), tensor([[0, 1]])), ShapeError, r"of shape \(2,\)"),
        (lambda: F.cross_entropy(ones(2, 3), ones(2)), DTypeError, r"target.long\(\)"),
        (lambda: F.cross_entropy(ones(2, 3), ones(2, 4)), ShapeError, "input's shape"),
        (lambda: F.cross_entropy(ones(2, 3), tensor([[0], [1]])), ShapeError, r"squeeze\(-1\)"),
        (lambda: F.cross_entropy(ones(2, 3), ones(2, 3).long()), ShapeError, r"argmax\(1\)"),
        (
            lambda: F.cross_entropy(ones(2, 5, 3), ones(2, 5).long()),
            ShapeError,
            r"transpose\(1, 2\)",
        ),
        (lambda: F.cross_entropy(ones(()), tensor(0)), ShapeError, "0-d"),
        (lambda: F.nll_loss(ones(2, 3), ones(2)), DTypeError, "integer class indices"),
        (
            lambda: F.cross_entropy(ones(2, 3), tensor([0, 1]), ones(2)),
            ShapeError,
            r"per class, shape \(3,\)",
        ),
        (
            lambda: F.cross_entropy(ones(2, 3), tensor([0, 1]), label_smoothing=2.0),
            DomainError,
            "label_smoothing",
        ),
        (lambda: F.binary_cross_entropy(ones(2) * 2, ones(2)), DomainError, "between 0 and 1"),
        (lambda: F.binary_cross_entropy(ones(2), ones(3)), ShapeError, "input's shape"),
        (lambda: F.huber_loss(ones(2), ones(2), delta=0.0), DomainError, "delta > 0"),
        (lambda: F.smooth_l1_loss(ones(2), ones(2), beta=-1.0), DomainError, "beta >= 0"),
        (
            lambda: F.gaussian_nll_loss(ones(2), ones(2), -ones(2)),
            DomainError,
            "var >= 0",
        ),
        (lambda: F.gaussian_nll_loss(ones(2, 3), ones(2, 3), ones(3)), ShapeError, "var of shape"),
        (lambda: F.margin_ranking_loss(ones(2), ones(2), ones(())), ShapeError, "as many dims"),
        (lambda: F.cosine_embedding_loss(ones(2, 3), ones(2, 3), ones(3)), ShapeError, "a target"),
        (
            lambda: F.triplet_margin_loss(ones(1, 2), ones(1, 2), ones(1, 2), margin=0.0),
            ArgumentError,
            "margin > 0",
        ),
        (lambda: F.multi_margin_loss(ones(2, 3), tensor([0, 1]), 3), ArgumentError, "1 or 2"),
        (lambda: F.multi_margin_loss(ones(2, 3), tensor([0, 5])), TensorIndexError, "indices in"),
        (lambda: F.multilabel_margin_loss(ones(2, 3), tensor([0, 1])), ShapeError, "alike"),
    ],
)
def test_mistakes_are_named(call, error, match):
    with pytest.raises(error, match=match) as e:
        call()
    assert e.value.expected and e.value.got and e.value.fix


def test_other_sizes_broadcast_with_a_warning():
    with pytest.warns(UserWarning, match="different to the input size"):
        got = F.mse_loss(zeros(1, 3), tensor([1.0, 2.0, 3.0]))
    assert got.item() == pytest.approx(14 / 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.cross_entropy(F.softmax(x, -1), tensor([0, 1])),
        lambda x: nn.CrossEntropyLoss()(nn.Sequential(nn.Softmax(-1))(x), F.softmax(-x, -1)),
        lambda x: F.nll_loss(F.softmax(x, -1), tensor([0, 1])),
        lambda x: F.binary_cross_entropy_with_logits(x.sigmoid(), ones(2, 3)),
        lambda x: F.kl_div(F.softmax(x, -1), F.softmax(-x, -1)),
    ],
)
def test_probabilities_where_logits_or_logs_are_meant_are_warned_of(call):
    with pytest.warns(UserWarning, match="are probabilities"):
        call(ones(2, 3).requires_grad_())
