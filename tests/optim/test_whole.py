"""Adafactor and Muon: their recursions in NumPy, singular values, recording, resume."""

import copy

import numpy as np
import pytest

import probtorch
from probtorch import optim
from probtorch.distributions import Normal
from probtorch.errors import ArgumentError, ShapeError
from probtorch.infer import SVI, AutoNormal, Trace_ELBO
from probtorch.testing.compare import assert_close

STEPS = 6
MATRICES = [(3, 4), (5, 2), (1, 6), (2, 0)]


def rms(x):
    return np.sqrt(np.mean(np.square(x))) if np.size(x) else 0.0


def adafactor(p, grads, *, lr, beta2_decay=-0.8, eps=(2.0**-52, 1e-3), d=1.0, decay=0.0):
    """Shazeer and Stern's algorithms 4 and 5, with PyTorch's clipping and floors."""
    rows = columns = v = 0.0
    for t, g in enumerate(grads, 1):
        newest = t**beta2_decay
        size = max(eps[1], rms(p)) * min(lr, t**-0.5)
        p = p - lr * decay * p
        if np.ndim(p) > 1:
            rows = (1 - newest) * rows + newest * np.mean(g**2, -1)
            columns = (1 - newest) * columns + newest * np.mean(g**2, -2)
            scale = np.maximum(np.mean(rows, -1), eps[0])[..., None, None]
            estimate = rows[..., :, None] * columns[..., None, :] / scale
        else:
            estimate = v = (1 - newest) * v + newest * g**2
        u = g / np.sqrt(np.maximum(estimate, eps[0] ** 2))
        p = p - size * u / max(1.0, rms(u) / d)
    return p


def muon(p, grads, *, lr, decay=0.1, momentum=0.95, nesterov=True, steps=5, size=1.0):
    """The polynomial applied to the singular values themselves."""
    b = 0.0
    for g in grads:
        b = momentum * b + (1 - momentum) * g
        x = momentum * b + (1 - momentum) * g if nesterov else b
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        s = s / np.linalg.norm(s)
        for _ in range(steps):
            s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
        p = p * (1 - lr * decay) - lr * size * (u * s) @ vt
    return p


def problem(shapes, dtype=np.float64):
    rng = np.random.default_rng(0)
    start = [rng.standard_normal(s).astype(dtype) for s in shapes]
    return start, [[rng.standard_normal(s).astype(dtype) for s in shapes] for _ in range(STEPS)]


def leaves(arrays):
    return [probtorch.tensor(a).requires_grad_() for a in arrays]


def run(optimizer, params, grads):
    for step in grads:
        for p, g in zip(params, step):
            p.grad = probtorch.tensor(g)
        optimizer.step()


CASES = {
    "adafactor": (optim.Adafactor, {"lr": 0.05}, adafactor, {}),
    "adafactor decay": (
        optim.Adafactor,
        {"lr": 0.9, "weight_decay": 0.1, "beta2_decay": -0.3, "d": 1.5, "eps": (0.02, 0.1)},
        adafactor,
        {"decay": 0.1, "beta2_decay": -0.3, "d": 1.5, "eps": (0.02, 0.1)},
    ),
    "muon": (optim.Muon, {"lr": 0.05}, muon, {}),
    "muon plain": (
        optim.Muon,
        {"lr": 0.05, "nesterov": False, "momentum": 0.5, "ns_steps": 2, "weight_decay": 0.0},
        muon,
        {"nesterov": False, "momentum": 0.5, "steps": 2, "decay": 0.0},
    ),
}
every_case = pytest.mark.parametrize("case", CASES)


@every_case
def test_update_follows_the_recursion(case):
    kind, options, oracle, theirs = CASES[case]
    shapes = MATRICES if kind is optim.Muon else [*MATRICES[:3], (), (5,), (2, 3, 4)]
    start, grads = problem(shapes)
    params = leaves(start)
    run(kind(params, **options), params, grads)
    for i, (p, shape) in enumerate(zip(params, shapes)):
        size = {"size": max(1.0, shape[0] / max(shape[1], 1)) ** 0.5} if kind is optim.Muon else {}
        expected = oracle(start[i], [g[i] for g in grads], lr=options["lr"], **theirs, **size)
        assert_close(p, expected, rtol=1e-10, atol=1e-12)


def sparse_adam(p, grads, *, lr, betas=(0.9, 0.999), eps=1e-8):
    m, v, p = np.zeros_like(p), np.zeros_like(p), p.copy()
    for t, g in enumerate(grads, 1):
        rows = np.abs(g).reshape(len(g), -1).sum(1) > 0
        m[rows] = betas[0] * m[rows] + (1 - betas[0]) * g[rows]
        v[rows] = betas[1] * v[rows] + (1 - betas[1]) * g[rows] ** 2
        size = lr * np.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)
        p[rows] -= size * m[rows] / (np.sqrt(v[rows]) + eps)
    return p


def test_sparse_adam_leaves_rows_alone_that_a_step_has_not_seen():
    shapes = [(6,), (6, 2), (6, 2, 3)]
    start, grads = problem(shapes)
    rng = np.random.default_rng(1)
    grads = [[g * (rng.random(6) < 0.4).reshape(6, *[1] * (g.ndim - 1)) for g in step]
             for step in grads]  # fmt: skip
    params = leaves(start)
    run(optim.SparseAdam(params, lr=0.1), params, grads)
    for i, p in enumerate(params):
        assert_close(p, sparse_adam(start[i], [g[i] for g in grads], lr=0.1), rtol=1e-11)


def test_sparse_adam_of_an_embedding_is_that_of_torch():
    torch = pytest.importorskip("torch")
    start = np.random.default_rng(0).standard_normal((7, 3))
    batches = np.random.default_rng(1).integers(0, 7, (8, 4))
    theirs = torch.nn.Embedding.from_pretrained(torch.tensor(start), freeze=False, sparse=True)
    ours = probtorch.nn.Embedding.from_pretrained(probtorch.tensor(start), freeze=False)
    for table, package in ((theirs, torch), (ours, probtorch)):
        optimizer = package.optim.SparseAdam(table.parameters(), lr=0.1)
        for batch in batches:
            optimizer.zero_grad()
            (table(package.tensor(batch)) ** 3).sum().backward()
            optimizer.step()
    assert_close(ours.weight, theirs.weight.detach().numpy(), rtol=1e-11)


def test_muon_may_move_as_far_as_adam():
    (start,), grads = problem([(6, 3)])
    (p,) = params = leaves([start])
    run(optim.Muon(params, lr=0.05, adjust_lr_fn="match_rms_adamw"), params, grads)
    expected = muon(start, [g[0] for g in grads], lr=0.05, size=0.2 * 6**0.5)
    # Decay uses the rate itself, and `size` multiplies the step alone.
    assert_close(p, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", ["adafactor decay", "muon plain"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_step_agrees(case, dtype):
    kind, options, _, _ = CASES[case]

    def train(start, target):
        p = start.clone().requires_grad_()
        optimizer = kind([p], **options)
        for _ in range(2):
            optimizer.zero_grad()
            with probtorch.enable_grad():
                ((p - target) ** 2).sum().backward()
            optimizer.step()
        return p.detach().clone()

    compiled = probtorch.compile(train)
    rng = np.random.default_rng(2)
    for _ in range(2):
        start, target = (probtorch.tensor(rng.standard_normal((4, 3)).astype(dtype)) for _ in "ab")
        with probtorch.no_grad():
            assert_close(compiled(start, target), train(start, target))
    assert compiled.reason is None


@every_case
def test_resumed_training_is_the_same_bit_for_bit(case):
    kind, options, _, _ = CASES[case]
    start, grads = problem(MATRICES, np.float32)
    whole = leaves(start)
    run(kind(whole, **options), whole, grads)
    first = leaves(start)
    optimizer = kind(first, **options)
    run(optimizer, first, grads[:3])
    saved = copy.deepcopy(optimizer.state_dict())
    second = leaves([p.array for p in first])
    resumed = kind(second)
    resumed.load_state_dict(saved)
    run(resumed, second, grads[3:])
    for a, b in zip(whole, second):
        assert a.array.tobytes() == b.array.tobytes()


@pytest.mark.parametrize("kind", [optim.Adafactor, optim.NAdam, optim.ASGD, optim.Rprop])
def test_steps_of_a_fit_are_compiled_whatever_the_rate(kind):
    def model():
        loc = probtorch.sample("loc", Normal(0.0, 10.0))
        probtorch.sample("x", Normal(loc, 1.0), obs=probtorch.tensor(2.0))

    def fitted():
        svi = SVI(model, AutoNormal(model), kind({"lr": 0.05}), Trace_ELBO(), seed=0)
        for step in range(6):
            for made in svi.optim.optim_objs.values():
                made.param_groups[0]["lr"] = 0.05 / (step + 1)
            svi.step()
        return svi, [np.array(p.array) for p in svi.params.values()]

    svi, found = fitted()
    assert str(svi.explain()).startswith("SVI.step: 1 compiled path")
    with probtorch.configure(jit=False):
        _, expected = fitted()
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, rtol=1e-5)


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: optim.Muon(leaves([np.ones(3)])), ShapeError, "parameters that are matrices"),
        (lambda: optim.Muon(leaves([np.eye(2)]), ns_steps=100), ArgumentError, "ns_steps"),
        (
            lambda: optim.Muon(leaves([np.eye(2)]), adjust_lr_fn="rms"),
            ArgumentError,
            "adjust_lr_fn",
        ),
        (lambda: optim.SparseAdam(leaves([np.eye(2)]), eps=0.0), ArgumentError, "epsilon value"),
        (lambda: optim.Adafactor(leaves([np.eye(2)]), d=0.5), ArgumentError, "threshold d"),
        (
            lambda: optim.Adafactor(leaves([np.eye(2)]), beta2_decay=1.0),
            ArgumentError,
            "beta2_decay",
        ),
        (lambda: optim.Adafactor(leaves([np.eye(2)]), lr=-1.0), ArgumentError, "learning rate"),
    ],
)
def test_wrong_options_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_numbers_are_those_of_torch():
    torch = pytest.importorskip("torch")
    start, grads = problem([(3, 4), (), (5,), (2, 3, 4)])
    params = leaves(start)
    run(optim.Adafactor(params, lr=0.3, weight_decay=0.1, maximize=True), params, grads)
    theirs = [torch.tensor(a, requires_grad=True) for a in start]
    optimizer = torch.optim.Adafactor(theirs, lr=0.3, weight_decay=0.1, maximize=True)
    for step in grads:
        for p, g in zip(theirs, step):
            p.grad = torch.tensor(g)
        optimizer.step()
    for a, b in zip(params, theirs):
        assert_close(a, b.detach().numpy(), rtol=1e-12, atol=1e-14)


def test_an_option_that_is_set_on_the_optimizer_is_refused():
    optimizer = optim.SGD([probtorch.tensor([1.0], requires_grad=True)], lr=0.1)
    with pytest.raises(ArgumentError, match=r"group\['lr'\] = 0.01"):
        optimizer.lr = 0.01
    optimizer.note = "anything else is kept"
    assert optimizer.note


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "single"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.RMSprop(p, 0.01),
        lambda p: optim.RMSprop(p, 0.01, momentum=0.9),
        lambda p: optim.RMSprop(p, 0.01, centered=True),
        lambda p: optim.Adagrad(p, 0.1, lr_decay=0.1),
        lambda p: optim.Adadelta(p),
        lambda p: optim.Adagrad(p, 0.1, weight_decay=0.1),
        lambda p: optim.Adam(p, 0.01),
        lambda p: optim.SGD(p, 0.01, momentum=0.9),
    ],
    ids=["RMSprop", "momentum", "centered", "Adagrad", "Adadelta", "decay", "Adam", "SGD"],
)
def test_steps_in_native_code_have_the_bits_of_the_rule(make, dtype):
    start, grads = problem([(5000,), (70, 80)], dtype)

    def moved():
        params = leaves(start)
        run(make(params), params, grads)
        return [p.detach().numpy() for p in params]

    native = moved()
    with probtorch.configure(jit=False):
        expected = moved()
    for a, b in zip(native, expected, strict=True):
        np.testing.assert_array_equal(a, b)
