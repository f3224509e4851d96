"""SGD, Adam and their kin: the recursions of the papers, flat and loop form, recording, resume.

The oracle of each optimizer is its recursion on one float64 array, written here in NumPy.
"""

import copy
import inspect
import math
import pickle

import numpy as np
import pytest

import probtorch
from probtorch import optim, tensor
from probtorch.errors import ArgumentError, AutogradError, DTypeError, ShapeError
from probtorch.testing.compare import assert_close

STEPS = 7
SHAPES = [(3, 4), (), (5,), (2, 0), (5000,)]  # the last one is moved on its own, not gathered


def sgd(p, grads, *, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
    b = None
    for g in grads:
        g = g + weight_decay * p
        b = g if b is None else momentum * b + (1 - dampening) * g
        p = p - lr * ((g + momentum * b) if nesterov else b)
    return p


def adam(p, grads, *, lr, betas=(0.9, 0.999), eps=1e-8, l2=0.0, decay=0.0, amsgrad=False):
    m, v, top = 0.0, 0.0, 0.0
    for t, g in enumerate(grads, 1):
        p = p - lr * decay * p
        g = g + l2 * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        top = np.maximum(top, v)
        v_hat = (top if amsgrad else v) / (1 - betas[1] ** t)
        p = p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(v_hat) + eps)
    return p


def adamax(p, grads, *, lr, betas=(0.9, 0.999), eps=1e-8):
    m, u = 0.0, 0.0
    for t, g in enumerate(grads, 1):
        m = betas[0] * m + (1 - betas[0]) * g
        u = np.maximum(betas[1] * u, np.abs(g) + eps)
        p = p - lr / (1 - betas[0] ** t) * m / u
    return p


def clipped_adam(p, grads, *, lr, clip_norm=10.0, lrd=1.0, centered_variance=False):
    m, v = 0.0, 0.0
    for t, g in enumerate(grads, 1):
        g = np.clip(g, -clip_norm, clip_norm)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * ((g - m) if centered_variance else g) ** 2
        size = lr * lrd**t * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        p = p - size * m / (np.sqrt(v) + 1e-8)
    return p


def rmsprop(p, grads, *, lr, alpha=0.99, momentum=0.0, centered=False):
    v, mean, b = 0.0, 0.0, 0.0
    for g in grads:
        v = alpha * v + (1 - alpha) * g**2
        mean = alpha * mean + (1 - alpha) * g
        b = momentum * b + g / (np.sqrt(v - mean**2 if centered else v) + 1e-8)
        p = p - lr * b
    return p


def adagrad(p, grads, *, lr, lr_decay=0.0, start=0.0):
    total = start
    for t, g in enumerate(grads):
        total = total + g**2
        p = p - lr / (1 + t * lr_decay) * g / (np.sqrt(total) + 1e-10)
    return p


def adadelta(p, grads, *, lr, rho=0.9, eps=1e-6):
    v, u = 0.0, 0.0
    for g in grads:
        v = rho * v + (1 - rho) * g**2
        d = np.sqrt(u + eps) / np.sqrt(v + eps) * g
        u = rho * u + (1 - rho) * d**2
        p = p - lr * d
    return p


def asgd(p, grads, *, lr, lambd=1e-4, alpha=0.75, t0=1e6, averaged=False):
    average = p
    for t, g in enumerate(grads):
        eta = lr / (1 + lambd * lr * t) ** alpha
        p = p * (1 - lambd * eta) - eta * g
        average = average + (p - average) / max(1.0, t - t0)
    return average if averaged else p


def rprop(p, grads, *, lr, etas=(0.5, 1.2), step_sizes=(1e-6, 50)):
    p, shape = np.array(p).reshape(-1), np.shape(p)
    for i in range(p.size):
        size, before = lr, 0.0
        for g in (np.reshape(step, -1)[i] for step in grads):
            if g * before > 0:
                size = min(size * etas[1], step_sizes[1])
            elif g * before < 0:
                size, g = max(size * etas[0], step_sizes[0]), 0.0
            p[i] -= size * np.sign(g)
            before = g
    return p.reshape(shape)


def nadam(p, grads, *, lr, betas=(0.9, 0.999), eps=1e-8, momentum_decay=4e-3, l2=0.0, decay=0.0):
    m, v = 0.0, 0.0
    momenta = [betas[0] * (1 - 0.5 * 0.96 ** (t * momentum_decay)) for t in range(1, 99)]
    for t, g in enumerate(grads, 1):
        p = p - lr * decay * p
        g = g + l2 * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        ahead = momenta[t] * m / (1 - math.prod(momenta[: t + 1]))
        ahead = ahead + (1 - momenta[t - 1]) * g / (1 - math.prod(momenta[:t]))
        p = p - lr * ahead / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p


def radam(p, grads, *, lr, betas=(0.9, 0.999), eps=1e-8, l2=0.0, decay=0.0):
    m, v = 0.0, 0.0
    longest = 2 / (1 - betas[1]) - 1
    for t, g in enumerate(grads, 1):
        p = p - lr * decay * p
        g = g + l2 * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        step = m / (1 - betas[0] ** t)
        length = longest - 2 * t * betas[1] ** t / (1 - betas[1] ** t)
        if length > 5:
            share = (length - 4) * (length - 2) * longest
            share = share / ((longest - 4) * (longest - 2) * length)
            step = step * math.sqrt(share * (1 - betas[1] ** t)) / (np.sqrt(v) + eps)
        p = p - lr * step
    return p


CASES = {
    "adadelta": (optim.Adadelta, {"rho": 0.8}, adadelta, {"rho": 0.8}),
    "asgd": (optim.ASGD, {"lambd": 0.1}, asgd, {"lambd": 0.1}),
    "rprop": (optim.Rprop, {}, rprop, {}),
    "rprop bounded": (
        optim.Rprop,
        {"etas": (0.3, 2.0), "step_sizes": (0.03, 0.07)},
        rprop,
        {"etas": (0.3, 2.0), "step_sizes": (0.03, 0.07)},
    ),
    "nadam": (optim.NAdam, {"weight_decay": 0.1}, nadam, {"l2": 0.1}),
    "nadam decoupled": (
        optim.NAdam,
        {
            "betas": (0.5, 0.9),
            "momentum_decay": 0.3,
            "weight_decay": 0.1,
            "decoupled_weight_decay": True,
        },
        nadam,
        {"betas": (0.5, 0.9), "momentum_decay": 0.3, "decay": 0.1},
    ),
    "radam": (optim.RAdam, {"weight_decay": 0.1}, radam, {"l2": 0.1}),
    "radam short": (
        optim.RAdam,  # 0.85: from the sixth step on it divides; 0.5: never
        {"betas": (0.5, 0.85), "weight_decay": 0.1, "decoupled_weight_decay": True},
        radam,
        {"betas": (0.5, 0.85), "decay": 0.1},
    ),
    "radam never": (optim.RAdam, {"betas": (0.5, 0.5)}, radam, {"betas": (0.5, 0.5)}),
    "sgd": (optim.SGD, {}, sgd, {}),
    "sgd momentum": (optim.SGD, {"momentum": 0.9}, sgd, {"momentum": 0.9}),
    "sgd dampening": (
        optim.SGD,
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        sgd,
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    ),
    "sgd nesterov": (
        optim.SGD,
        {"momentum": 0.8, "nesterov": True},
        sgd,
        {"momentum": 0.8, "nesterov": True},
    ),
    "adam": (optim.Adam, {}, adam, {}),
    "adam betas": (optim.Adam, {"betas": (0.5, 0.9)}, adam, {"betas": (0.5, 0.9)}),
    "adam amsgrad": (
        optim.Adam,
        {"amsgrad": True, "weight_decay": 0.1},
        adam,
        {"amsgrad": True, "l2": 0.1},
    ),
    "adam decoupled": (
        optim.Adam,
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        adam,
        {"decay": 0.1},
    ),
    "adamw": (optim.AdamW, {}, adam, {"decay": 0.01}),
    "adamax": (optim.Adamax, {}, adamax, {}),
    "clipped adam": (
        optim.ClippedAdam,
        {"clip_norm": 0.5, "lrd": 0.9},
        clipped_adam,
        {"clip_norm": 0.5, "lrd": 0.9},
    ),
    "clipped adam centered": (
        optim.ClippedAdam,
        {"centered_variance": True},
        clipped_adam,
        {"centered_variance": True},
    ),
    "rmsprop": (optim.RMSprop, {}, rmsprop, {}),
    "rmsprop centered": (
        optim.RMSprop,
        {"centered": True, "momentum": 0.9},
        rmsprop,
        {"centered": True, "momentum": 0.9},
    ),
    "adagrad": (
        optim.Adagrad,
        {"lr_decay": 0.1, "initial_accumulator_value": 0.2},
        adagrad,
        {"lr_decay": 0.1, "start": 0.2},
    ),
}
every_case = pytest.mark.parametrize("case", CASES)
# Pyro's optimizer has neither PyTorch's options nor a counterpart there.
every_torch_case = pytest.mark.parametrize(
    "case", [name for name in CASES if not name.startswith("clipped")]
)


def problem(dtype=np.float64, seed=0):
    """Starting values and gradients for `STEPS` steps."""
    rng = np.random.default_rng(seed)
    start = [rng.standard_normal(s).astype(dtype) for s in SHAPES]
    grads = [[rng.standard_normal(s).astype(dtype) for s in SHAPES] for _ in range(STEPS)]
    return start, grads


def leaves(arrays):
    return [probtorch.tensor(a).requires_grad_() for a in arrays]


def run(optimizer, params, grads):
    for step in grads:
        for p, g in zip(params, step):
            p.grad = None if g is None else probtorch.tensor(g)
        optimizer.step()


# ------------------------------------------------------------------------------------- the formulas


@pytest.mark.parametrize("foreach", [None, False], ids=["flat", "loop"])
@every_case
def test_update_follows_the_recursion(case, foreach):
    kind, options, oracle, oracle_options = CASES[case]
    start, grads = problem()
    params = leaves(start)
    optimizer = kind(params, lr=0.05, **options)
    for group in optimizer.param_groups:
        group["foreach"] = foreach
    run(optimizer, params, grads)
    for i, p in enumerate(params):
        expected = oracle(start[i], [step[i] for step in grads], lr=0.05, **oracle_options)
        assert_close(p, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@every_case
def test_flat_form_and_loop_form_agree_bit_for_bit(case, dtype):
    kind, options, _, _ = CASES[case]
    start, grads = problem(dtype)
    found = []
    for foreach in (None, False):
        params = leaves(start)
        optimizer = kind(params, lr=0.05, **options)
        optimizer.param_groups[0]["foreach"] = foreach
        run(optimizer, params, grads)
        found.append((params, [optimizer.state[p] for p in params]))
        assert bool(optimizer._layouts) is (foreach is None and dtype is not np.float16)
    (flat, flat_states), (loop, loop_states) = found
    for a, b in zip(flat, loop):
        assert a.array.tobytes() == b.array.tobytes()
    for a, b in zip(flat_states, loop_states):
        assert a.keys() == b.keys()
        assert all(a[k].array.tobytes() == b[k].array.tobytes() for k in a)


def test_a_subclass_with_a_rule_of_its_own_moves_large_parameters_by_it():
    class Signs(optim.SGD):
        def rule(self, s, group, numbers, p, g, *slots):
            return (p - s.sign(g) * numbers[0],)

    (p,) = leaves([np.zeros(5000)])
    run(Signs([p], lr=0.25), [p], [[np.full(5000, 8.0)]])
    assert_close(p, np.full(5000, -0.25), rtol=0, atol=0)


@every_torch_case
def test_maximize_is_a_step_on_the_negative(case):
    kind, options, _, _ = CASES[case]
    start, grads = problem()
    up, down = leaves(start), leaves(start)
    run(kind(up, lr=0.05, maximize=True, **options), up, grads)
    run(kind(down, lr=0.05, **options), down, [[-g for g in step] for step in grads])
    for a, b in zip(up, down):
        assert a.array.tobytes() == b.array.tobytes()


@pytest.mark.parametrize("t0", [0.0, 3.0])
def test_averaged_descent_keeps_the_average_of_where_it_was(t0):
    start, grads = problem()
    params = leaves(start)
    optimizer = optim.ASGD(params, lr=0.05, t0=t0)
    run(optimizer, params, grads)
    for i, p in enumerate(params):
        expected = asgd(start[i], [g[i] for g in grads], lr=0.05, t0=t0, averaged=True)
        assert_close(optimizer.state[p]["ax"], expected, rtol=1e-11, atol=1e-13)


def test_adam_moves_every_element_by_lr_at_first():
    y = probtorch.randn(5, 5).requires_grad_()
    before = y.detach().clone()
    x = probtorch.randn(5, 5)
    optimizer = optim.Adam([y], lr=2e-4, betas=(0.5, 0.999))
    x.mm(y).mean().backward()
    optimizer.step()
    assert_close(y.detach() - before, -2e-4 * y.grad.sign(), rtol=1e-2)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_gradient_that_is_not_finite_passes_without_a_warning(value):
    p, q = leaves([np.ones(3), np.ones(2)])
    optimizer = optim.Adam([p, q])
    p.grad, q.grad = probtorch.full((3,), value).double(), probtorch.ones(2).double()
    optimizer.step()
    assert np.isnan(p.array).all()
    assert np.isfinite(q.array).all()


def test_centered_rmsprop_of_a_constant_gradient_stays_finite():
    (p,) = leaves([np.zeros(1, np.float32)])
    optimizer = optim.RMSprop([p], centered=True, alpha=0.5)
    for _ in range(60):
        p.grad = probtorch.full((1,), 0.1)
        optimizer.step()
    assert np.isfinite(p.array).all()


# ----------------------------------------------------------------------------- which ones are moved


@every_case
def test_parameter_without_gradient_rests_and_its_count_with_it(case):
    kind, options, oracle, oracle_options = CASES[case]
    start, grads = problem()
    grads = [[None if i == 0 and t % 3 == 1 else g for i, g in enumerate(step)]
             for t, step in enumerate(grads)]  # fmt: skip
    params = leaves(start)
    run(kind(params, lr=0.05, **options), params, grads)
    for i in (0, 2):
        seen = [step[i] for step in grads if step[i] is not None]
        expected = oracle(start[i], seen, lr=0.05, **oracle_options)
        assert_close(params[i], expected, rtol=1e-11, atol=1e-13)


def test_parameter_that_never_has_a_gradient_gets_no_state():
    p, q = leaves([np.ones(2), np.ones(2)])
    optimizer = optim.Adam([p, q])
    p.grad = probtorch.ones(2).double()
    optimizer.step()
    assert set(map(id, optimizer.state)) <= {id(p), id(q)}
    assert not optimizer.state.get(q)


def test_groups_use_their_own_options():
    p, q = leaves([np.ones(2), np.ones(2)])
    optimizer = optim.SGD([{"params": [p]}, {"params": q, "lr": 0.5}], lr=0.1)
    run(optimizer, [p, q], [[np.ones(2), np.ones(2)]])
    assert_close(p, np.full(2, 0.9))
    assert_close(q, np.full(2, 0.5))


def test_options_are_read_at_every_step():
    (p,) = leaves([np.ones(1)])
    optimizer = optim.SGD([p], lr=0.1)
    run(optimizer, [p], [[np.ones(1)]])
    optimizer.param_groups[0]["lr"] = 0.2
    run(optimizer, [p], [[np.ones(1)]])
    assert_close(p, np.array([0.7]))


def test_learning_rate_may_be_a_tensor():
    start, grads = problem()
    numbers, tensors = leaves(start), leaves(start)
    run(optim.Adam(numbers, lr=0.05), numbers, grads)
    run(optim.Adam(tensors, lr=probtorch.tensor(0.05, dtype=probtorch.float64)), tensors, grads)
    for a, b in zip(numbers, tensors):
        assert_close(a, b)


def test_layer_added_during_training_is_moved():
    (p,) = leaves([np.ones(2)])
    optimizer = optim.Adam([p], lr=0.1)
    run(optimizer, [p], [[np.ones(2)]])
    (q,) = leaves([np.ones(3)])
    optimizer.add_param_group({"params": [("late", q)], "lr": 0.01})
    run(optimizer, [p, q], [[np.ones(2), np.ones(3)]])
    assert_close(q, np.full(3, 0.99), rtol=1e-6)
    assert optimizer.state[p]["step"].item() == 2.0
    assert optimizer.state[q]["step"].item() == 1.0


# ------------------------------------------------------------------------------------------- memory


def test_parameters_and_state_keep_their_memory():
    start, grads = problem()
    params = leaves(start)
    optimizer = optim.Adam(params)
    run(optimizer, params, grads[:1])
    arrays = [p.array for p in params]
    moments = [optimizer.state[p]["exp_avg"].array for p in params]
    run(optimizer, params, grads[1:])
    assert all(p.array is a for p, a in zip(params, arrays))
    assert all(optimizer.state[p]["exp_avg"].array is a for p, a in zip(params, moments))


def test_step_is_an_in_place_change_the_tape_hears_of():
    (p,) = leaves([np.ones(2)])
    loss = (p * p).sum()
    p.grad = probtorch.ones(2).double()
    optim.SGD([p], lr=0.1).step()
    with pytest.raises(AutogradError, match="modified in place"):
        loss.backward()


def test_new_memory_under_a_parameter_is_followed():
    p, q = leaves([np.ones(2), np.ones(2)])
    optimizer = optim.SGD([p, q], lr=0.5)
    run(optimizer, [p, q], [[np.ones(2)] * 2])
    p.data = probtorch.full((2,), 10.0).double()
    run(optimizer, [p, q], [[np.ones(2)] * 2])
    assert_close(p, np.full(2, 9.5))
    assert_close(q, np.zeros(2))


def test_transposed_and_shared_memory_is_moved_rightly():
    table = np.arange(6.0).reshape(2, 3)
    p = probtorch.from_numpy(table.T).requires_grad_()
    first = probtorch.from_numpy(table).requires_grad_()
    optimizer = optim.SGD([p, first], lr=1.0)
    p.grad, first.grad = probtorch.ones(3, 2).double(), probtorch.ones(2, 3).double()
    optimizer.step()
    # Two parameters on one memory: both updates count.
    assert_close(table, np.arange(6.0).reshape(2, 3) - 2.0)


def test_many_small_parameters_of_two_dtypes_are_moved():
    rng = np.random.default_rng(3)
    start = [rng.standard_normal(3 + i % 5).astype([np.float32, np.float64][i % 2])
             for i in range(60)]  # fmt: skip
    grads = [[rng.standard_normal(a.shape).astype(a.dtype) for a in start] for _ in range(3)]
    params = leaves(start)
    run(optim.Adam(params, lr=0.05), params, grads)
    for i, p in enumerate(params):
        assert p.array.dtype == start[i].dtype
        wide = [step[i].astype(float) for step in grads]
        assert_close(p, adam(start[i].astype(float), wide, lr=0.05), rtol=1e-5, atol=1e-6)


def test_gradient_of_another_dtype_is_converted():
    (p,) = leaves([np.ones(2, np.float32)])
    p.grad = probtorch.ones(2).double()
    optim.SGD([p], lr=0.5).step()
    assert p.array.dtype == np.float32
    assert_close(p, np.full(2, 0.5, np.float32))


def test_gradient_of_another_shape_is_refused():
    (p,) = leaves([np.ones(2)])
    p.grad = probtorch.ones(3).double()
    with pytest.raises(ShapeError, match=r"gradient of shape \(2,\)"):
        optim.SGD([p]).step()


def test_read_only_parameter_is_refused():
    array = np.ones(2)
    array.flags.writeable = False
    p = probtorch.from_numpy(array).requires_grad_()
    p.grad = probtorch.ones(2).double()
    with pytest.raises(ArgumentError, match="read-only"):
        optim.SGD([p]).step()


# --------------------------------------------------------------------------- recording, derivatives


@every_case
def test_step_inside_a_compiled_function_is_compiled_and_agrees(case):
    kind, options, _, _ = CASES[case]

    def train(start, target):
        p = start.clone().requires_grad_()
        optimizer = kind([p], lr=0.05, **options)
        for _ in range(2):
            optimizer.zero_grad()
            with probtorch.enable_grad():
                ((p - target) ** 2).sum().backward()
            optimizer.step()
        return p.detach().clone()

    compiled = probtorch.compile(train)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        start, target = (probtorch.tensor(rng.standard_normal(5)) for _ in range(2))
        with probtorch.no_grad():
            assert_close(compiled(start, target), train(start, target), rtol=1e-11)
    assert compiled.reason is None


def test_initial_state_is_that_of_a_first_step():
    start, grads = problem()
    early, late = leaves(start), leaves(start)
    first, second = optim.Adam(early, amsgrad=True), optim.Adam(late, amsgrad=True)
    first.init_state()
    assert first.state[early[0]]["step"].item() == 0.0
    assert {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"} < first.state[early[0]].keys()
    run(first, early, grads)
    run(second, late, grads)
    for a, b in zip(early, late):
        assert a.array.tobytes() == b.array.tobytes()


@pytest.mark.parametrize(
    "kind, options",
    [
        (optim.SGD, {"momentum": 0.9}),
        (optim.Adam, {"amsgrad": True}),
        (optim.RMSprop, {}),
        (optim.NAdam, {}),
        (optim.RAdam, {"betas": (0.5, 0.9)}),
        (optim.ASGD, {"lambd": 0.1}),
    ],
)
def test_step_can_be_differentiated(kind, options):
    def after_two_steps(x):
        p = x * 1.0
        optimizer = kind([p], lr=0.1, differentiable=True, **options)
        for _ in range(2):
            # Of a clone, as the step changes p itself.
            loss = (p.clone() ** 4).sum()
            (p.grad,) = probtorch.autograd.grad(loss, [p], create_graph=True)
            optimizer.step()
        return p.sum()

    x = probtorch.tensor([1.3, -0.7], dtype=probtorch.float64, requires_grad=True)
    after_two_steps(x).backward()
    step = 1e-6
    numeric = []
    for i in range(2):
        shift = np.zeros(2)
        shift[i] = step
        high = after_two_steps((x.detach() + probtorch.tensor(shift)).requires_grad_())
        low = after_two_steps((x.detach() - probtorch.tensor(shift)).requires_grad_())
        numeric.append((high.item() - low.item()) / (2 * step))
    assert_close(x.grad, np.array(numeric), rtol=1e-6, atol=1e-8)


# ---------------------------------------------------------------------------------- saving, loading


@every_case
def test_resumed_training_is_the_same_bit_for_bit(case):
    kind, options, _, _ = CASES[case]
    start, grads = problem(np.float32)
    grads[1][0] = None  # counts differ
    whole = leaves(start)
    run(kind(whole, lr=0.05, **options), whole, grads)

    first = leaves(start)
    optimizer = kind(first, lr=0.05, **options)
    run(optimizer, first, grads[:3])
    saved = copy.deepcopy(optimizer.state_dict())
    second = leaves([p.array for p in first])
    resumed = kind(second, lr=0.9, **options)
    resumed.load_state_dict(saved)
    assert resumed.param_groups[0]["lr"] == 0.05
    run(resumed, second, grads[3:])
    for a, b in zip(whole, second):
        assert a.array.tobytes() == b.array.tobytes()


def test_loaded_state_is_a_copy_in_the_dtype_of_the_parameter():
    start, grads = problem()
    params = leaves(start)
    optimizer = optim.Adam(params)
    run(optimizer, params, grads[:2])
    saved = optimizer.state_dict()
    singles = leaves([a.astype(np.float32) for a in start])
    other = optim.Adam(singles)
    other.load_state_dict(saved)
    state = other.state[singles[0]]
    assert state["exp_avg"].array.dtype == np.float32
    assert state["step"].item() == 2.0
    run(other, singles, [[g.astype(np.float32) for g in grads[2]]])
    assert saved["state"][0]["step"].item() == 2.0


def test_state_dict_names_parameters_by_position():
    p, q = leaves([np.ones(2), np.ones(2)])
    optimizer = optim.SGD([("w", p), ("b", q)], lr=0.1, momentum=0.9)
    run(optimizer, [p, q], [[np.ones(2)] * 2])
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["params"] == [0, 1]
    assert saved["param_groups"][0]["param_names"] == ["w", "b"]
    assert set(saved["state"]) == {0, 1}
    assert list(saved["state"][0]) == ["momentum_buffer"]


def test_state_of_other_groups_is_refused():
    p, q, r = leaves([np.ones(2)] * 3)
    saved = optim.SGD([p, q]).state_dict()
    with pytest.raises(ArgumentError, match="doesn't match the size of optimizer's group"):
        optim.SGD([r]).load_state_dict(saved)
    with pytest.raises(ArgumentError, match="different number of parameter groups"):
        optim.SGD([{"params": [p]}, {"params": [q]}]).load_state_dict(saved)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copy_of_an_optimizer_goes_on_alone(copied):
    start, grads = problem()
    params = leaves(start)
    optimizer = optim.Adam(params, lr=0.05)
    run(optimizer, params, grads[:2])
    twin = copied(optimizer)
    theirs = twin.param_groups[0]["params"]
    run(optimizer, params, grads[2:])
    run(twin, theirs, grads[2:])
    for a, b in zip(params, theirs):
        assert a is not b
        assert a.array.tobytes() == b.array.tobytes()


# ---------------------------------------------------------------------------------------- interface


def test_zero_grad_forgets_or_fills():
    (p,) = leaves([np.ones(2)])
    optimizer = optim.SGD([p])
    p.grad = kept = probtorch.ones(2).double()
    optimizer.zero_grad(set_to_none=False)
    assert p.grad is kept
    assert_close(kept, np.zeros(2))
    optimizer.zero_grad()
    assert p.grad is None


def test_closure_runs_with_the_tape_on_and_its_loss_is_returned():
    (p,) = leaves([np.array([2.0])])
    optimizer = optim.SGD([p], lr=0.25)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with probtorch.no_grad():
        assert optimizer.step(closure).item() == 4.0
    assert_close(p, np.array([1.0]))


def test_optimizer_prints_its_options():
    (p,) = leaves([np.ones(2)])
    assert "Parameter Group 0\n    dampening: 0" in repr(optim.SGD([p], lr=0.1))


def test_subclass_of_optimizer_works_as_in_torch():
    class Sign(optim.Optimizer):
        def __init__(self, params, lr=0.1):
            super().__init__(params, {"lr": lr})

        @probtorch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad.sign() * group["lr"])

    (p,) = leaves([np.ones(2)])
    run(Sign([p]), [p], [[np.array([3.0, -2.0])]])
    assert_close(p, np.array([0.9, 1.1]))


@pytest.mark.parametrize(
    "params, error, text",
    [
        (list, ArgumentError, "optimizer got an empty parameter list"),
        (lambda: iter(()), ArgumentError, "optimizer got an empty parameter list"),
        (lambda: probtorch.ones(2), DTypeError, "wrap it in a list"),
        (lambda: {probtorch.ones(2)}, DTypeError, "got:      a set"),
        (lambda: {"params": [probtorch.ones(2)]}, DTypeError, "got:      a dict"),
        (lambda: [np.ones(2)], DTypeError, "can only optimize Tensors"),
        (lambda: [probtorch.arange(3)], DTypeError, "real floating dtype"),
        (lambda: [probtorch.ones(2).requires_grad_() * 2], AutogradError, "non-leaf"),
        (lambda: [{"params": {probtorch.ones(2)}}], DTypeError, "got:      a set"),
        (lambda: [{"lr": 1.0}], DTypeError, 'under "params"'),
    ],
)
def test_wrong_parameters_are_refused(params, error, text):
    with pytest.raises(error, match=text):
        optim.SGD(params())


def test_results_whose_gradient_is_kept_are_optimized():
    x = probtorch.ones(2).requires_grad_() * 2
    x.retain_grad()
    optimizer = optim.SGD([x], lr=0.25)
    (x * x).sum().backward()
    optimizer.step()
    assert x.tolist() == [1.0, 1.0]


def test_module_in_place_of_its_parameters_is_refused():
    class Net:
        def parameters(self):
            return leaves([np.ones(2)])

        def __call__(self, x):
            return x

    with pytest.raises(DTypeError, match=r"pass its .parameters\(\)"):
        optim.SGD(Net())


RATES = [np.float32(0.1), np.array(0.1), np.array([0.1]), tensor(0.1), tensor([0.1])]


@pytest.mark.parametrize("kind", [optim.SGD, optim.ASGD, optim.Adam, optim.Adagrad, optim.NAdam])
@pytest.mark.parametrize("rate", RATES, ids=repr)
def test_rates_of_one_element_are_numbers(kind, rate):
    found = []
    for lr in (0.1, rate):
        (p,) = leaves([np.ones(2)])
        optimizer = kind([p], lr=lr)
        for _ in range(3):
            p.grad = p.detach() * 2.0
            optimizer.step()
        found.append(p.detach().numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_parameter_in_two_groups_is_refused():
    (p,) = leaves([np.ones(2)])
    optimizer = optim.SGD([p])
    with pytest.raises(ArgumentError, match="more than one parameter group"):
        optimizer.add_param_group({"params": p})
    with pytest.raises(ArgumentError, match="more than one parameter group"):
        optim.SGD([p, p])


@pytest.mark.parametrize(
    "kind, options, text",
    [
        (optim.SGD, {"lr": -1.0}, "Invalid learning rate: -1.0"),
        (optim.SGD, {"lr": np.array([0.1, 0.2])}, r"(?s)rate.*one element.*shape \(2,\)"),
        (optim.Adam, {"lr": tensor([0.1, 0.2])}, "Invalid learning rate"),
        (optim.SGD, {"momentum": -1.0}, "Invalid momentum value"),
        (optim.SGD, {"nesterov": True}, "Nesterov momentum requires"),
        (optim.SGD, {"fused": True, "foreach": True}, "cannot be `True` together"),
        (optim.Adam, {"fused": True, "differentiable": True}, "does not support"),
        (optim.Adam, {"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0: 1.0"),
        (optim.Adam, {"eps": -1.0}, "Invalid epsilon value"),
        (optim.RMSprop, {"alpha": -1.0}, "Invalid alpha value"),
        (optim.Adagrad, {"lr_decay": -1.0}, "Invalid lr_decay value"),
        (optim.Adadelta, {"rho": 1.1}, "Invalid rho value"),
        (optim.ASGD, {"weight_decay": -1.0}, "Invalid weight_decay value"),
        (optim.Rprop, {"etas": (1.2, 0.5)}, "Invalid eta values"),
        (optim.NAdam, {"momentum_decay": -1.0}, "Invalid momentum_decay value"),
        (optim.RAdam, {"betas": (0.9, 1.0)}, "Invalid beta parameter at index 1"),
        (optim.ClippedAdam, {"clip_norm": 0.0}, "Invalid clip_norm"),
        (optim.Adamax, {"weight_decay": -1.0}, "Invalid weight_decay value"),
    ],
)
def test_wrong_options_are_refused(kind, options, text):
    with pytest.raises(ArgumentError, match=text):
        kind(leaves([np.ones(2)]), **options)


# ---------------------------------------------------------------------------- against PyTorch's own


TORCH = [
    "SGD",
    "Adam",
    "AdamW",
    "Adamax",
    "RMSprop",
    "Adagrad",
    "LBFGS",
    "Adadelta",
    "ASGD",
    "Rprop",
    "NAdam",
    "RAdam",
    "Adafactor",
    "Muon",
    "SparseAdam",
]


@pytest.mark.parametrize("name", TORCH)
def test_signature_and_defaults_are_those_of_torch(name):
    torch = pytest.importorskip("torch")
    ours = inspect.signature(getattr(optim, name)).parameters
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    assert list(ours) == list(theirs)
    for key in ours:
        assert (ours[key].default, ours[key].kind) == (theirs[key].default, theirs[key].kind)
    made = getattr(optim, name)(leaves([np.ones((1, 1))])).param_groups[0]
    original = getattr(torch.optim, name)([torch.ones(1, 1, requires_grad=True)]).param_groups[0]
    assert {k: v for k, v in made.items() if k != "params"} == {
        k: v for k, v in original.items() if k != "params"
    }


@every_torch_case
def test_numbers_are_those_of_torch(case):
    torch = pytest.importorskip("torch")
    kind, options, _, _ = CASES[case]
    start, grads = problem()
    params = leaves(start)
    run(kind(params, lr=0.05, **options), params, grads)
    theirs = [torch.tensor(a, requires_grad=True) for a in start]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of the numbers that some carry from step to step
    try:
        optimizer = getattr(torch.optim, kind.__name__)(theirs, lr=0.05, **options)
        for step in grads:
            for p, g in zip(theirs, step):
                p.grad = torch.tensor(g)
            optimizer.step()
    finally:
        torch.set_default_dtype(before)
    for a, b in zip(params, theirs):
        assert_close(a, b.detach().numpy(), rtol=1e-12, atol=1e-14)
