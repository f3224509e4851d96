"""Schedules against their closed forms, chained, resumed, and PyTorch's."""

import copy
import inspect
import math

import numpy as np
import pytest

import probtorch
from probtorch import optim
from probtorch.errors import ArgumentError, DTypeError
from probtorch.optim import lr_scheduler

LR = 0.1


def optimizer(**options):
    return optim.SGD([probtorch.ones(2).requires_grad_()], lr=LR, **options)


def rates(schedule, count):
    """Learning rates at steps 0, ..., count - 1."""
    found = []
    for _ in range(count):
        found.append(schedule.get_last_lr()[0])
        schedule.step()
    return np.array(found)


def linear(t, start=1 / 3, end=1.0, total=5):
    return LR * (start + (end - start) * min(t, total) / total)


def warm_restarts(t, first, times, low):
    length = first
    while t >= length:
        t -= length
        length *= times
    return low + (LR - low) * (1 + math.cos(math.pi * t / length)) / 2


def triangle(t, up, down, height):
    """Height of a cycle at step `t`, which is `height(cycle)` at its turn."""
    cycle, place = divmod(t, up + down)
    return height(cycle) * min(place / up, (up + down - place) / down)


CLOSED_FORMS = {
    "multiplicative": (
        lr_scheduler.MultiplicativeLR,
        {"lr_lambda": lambda t: t / (t + 1)},  # 1/2 2/3 3/4 ...: the product telescopes
        lambda t: LR / (t + 1),
    ),
    "constant": (
        lr_scheduler.ConstantLR,
        {"factor": 0.25, "total_iters": 4},
        lambda t: LR * (0.25 if t < 4 else 1.0),
    ),
    "polynomial": (
        lr_scheduler.PolynomialLR,
        {"total_iters": 6, "power": 2.0},
        lambda t: LR * max(1 - t / 6, 0.0) ** 2,
    ),
    "cycles": (
        lr_scheduler.CyclicLR,
        {
            "base_lr": 0.1,
            "max_lr": 0.5,
            "step_size_up": 3,
            "step_size_down": 5,
            "cycle_momentum": False,
        },
        lambda t: 0.1 + triangle(t, 3, 5, lambda cycle: 0.4),
    ),
    "halved cycles": (
        lr_scheduler.CyclicLR,
        {
            "base_lr": 0.1,
            "max_lr": 0.5,
            "step_size_up": 4,
            "mode": "triangular2",
            "cycle_momentum": False,
        },
        lambda t: 0.1 + triangle(t, 4, 4, lambda cycle: 0.4 * 0.5**cycle),
    ),
    "decaying cycles": (
        lr_scheduler.CyclicLR,
        {
            "base_lr": 0.1,
            "max_lr": 0.5,
            "step_size_up": 4,
            "mode": "exp_range",
            "gamma": 0.9,
            "cycle_momentum": False,
        },
        lambda t: 0.1 + triangle(t, 4, 4, lambda cycle: 0.4 * 0.9**t),
    ),
    "lambda": (lr_scheduler.LambdaLR, {"lr_lambda": lambda t: 1 / (t + 1)}, lambda t: LR / (t + 1)),
    "step": (
        lr_scheduler.StepLR,
        {"step_size": 3, "gamma": 0.5},
        lambda t: LR * 0.5 ** (t // 3),
    ),
    "milestones": (
        lr_scheduler.MultiStepLR,
        {"milestones": [5, 2, 5], "gamma": 0.5},
        lambda t: LR * 0.5 ** ((t >= 2) + 2 * (t >= 5)),
    ),
    "exponential": (lr_scheduler.ExponentialLR, {"gamma": 0.8}, lambda t: LR * 0.8**t),
    "cosine": (
        lr_scheduler.CosineAnnealingLR,
        {"T_max": 6, "eta_min": 0.02},
        lambda t: 0.02 + (LR - 0.02) * (1 + math.cos(math.pi * t / 6)) / 2,
    ),
    "linear": (lr_scheduler.LinearLR, {}, linear),
    "linear down": (
        lr_scheduler.LinearLR,
        {"start_factor": 1.0, "end_factor": 0.0, "total_iters": 8},
        lambda t: linear(t, 1.0, 0.0, 8),
    ),
    "restarts": (
        lr_scheduler.CosineAnnealingWarmRestarts,
        {"T_0": 4},
        lambda t: warm_restarts(t, 4, 1, 0.0),
    ),
    "longer restarts": (
        lr_scheduler.CosineAnnealingWarmRestarts,
        {"T_0": 3, "T_mult": 2, "eta_min": 0.01},
        lambda t: warm_restarts(t, 3, 2, 0.01),
    ),
}
every_schedule = pytest.mark.parametrize("name", CLOSED_FORMS)


@every_schedule
def test_schedule_follows_its_closed_form(name):
    kind, options, formula = CLOSED_FORMS[name]
    found = rates(kind(optimizer(), **options), 25)
    np.testing.assert_allclose(found, [formula(t) for t in range(25)], rtol=1e-12, atol=1e-16)


@every_schedule
def test_resumed_schedule_goes_on_exactly(name):
    kind, options, _ = CLOSED_FORMS[name]
    whole = kind(optimizer(), **options)
    before, after = rates(whole, 7), rates(whole, 9)
    first = kind(optimizer(), **options)
    np.testing.assert_array_equal(rates(first, 7), before)
    second = kind(optimizer(), **options)
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(rates(second, 9), after)


@pytest.mark.parametrize(
    "name", ["step", "milestones", "exponential", "cosine", "linear", "constant", "polynomial"]
)
def test_step_to_an_epoch_uses_the_closed_form(name):
    kind, options, formula = CLOSED_FORMS[name]
    schedule = kind(optimizer(), **options)
    schedule.step(11)
    assert schedule.get_last_lr()[0] == pytest.approx(formula(11), rel=1e-12)


@pytest.mark.parametrize("name", ["exponential", "linear", "cosine", "polynomial", "step"])
def test_schedule_built_in_the_middle_begins_with_the_rate_there_is(name):
    kind, options, formula = CLOSED_FORMS[name]
    one = optimizer()
    one.param_groups[0].update(initial_lr=LR, lr=formula(5))
    found = rates(kind(one, **options, last_epoch=4), 4)
    np.testing.assert_allclose(found, [formula(t) for t in range(5, 9)], rtol=1e-12, atol=1e-16)


def test_restart_may_be_stepped_by_fractions():
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer(), T_0=4, T_mult=2)
    for epoch in (0.25, 3.5, 4.5, 11.75, 12.5):
        schedule.step(epoch)
        assert schedule.get_last_lr()[0] == pytest.approx(warm_restarts(epoch, 4, 2, 0.0))


def test_schedules_of_one_optimizer_compose():
    one = optimizer()
    by_three = lr_scheduler.StepLR(one, step_size=3, gamma=0.5)
    always = lr_scheduler.ExponentialLR(one, gamma=0.9)
    for _ in range(7):
        by_three.step()
        always.step()
    assert one.param_groups[0]["lr"] == pytest.approx(LR * 0.5**2 * 0.9**7)


def test_every_group_has_its_rate():
    p, q = (probtorch.ones(1).requires_grad_() for _ in range(2))
    groups = optim.SGD([{"params": p}, {"params": q, "lr": 1.0}], lr=LR)
    schedule = lr_scheduler.LambdaLR(groups, [lambda t: 0.5**t, lambda t: 0.1**t])
    schedule.step()
    assert schedule.get_last_lr() == pytest.approx([LR * 0.5, 0.1])
    assert [g["lr"] for g in groups.param_groups] == schedule.get_last_lr()


def test_rate_that_is_a_tensor_stays_that_tensor():
    rate = probtorch.tensor(LR, dtype=probtorch.float64)
    held = optim.SGD([probtorch.ones(1).requires_grad_()], lr=rate)
    schedule = lr_scheduler.ExponentialLR(held, gamma=0.5)
    schedule.step()
    assert held.param_groups[0]["lr"] is rate
    assert rate.item() == schedule.get_last_lr()[0] == pytest.approx(LR / 2)


# ---------------------------------------------------------------------------------------- one cycle


def test_one_cycle_rises_to_the_peak_and_ends_low():
    one = optimizer(momentum=0.9)
    schedule = lr_scheduler.OneCycleLR(one, max_lr=1.0, total_steps=21, pct_start=0.5 - 1e-9)
    found, momenta = [], []
    for t in range(21):
        found.append(one.param_groups[0]["lr"])
        momenta.append(one.param_groups[0]["momentum"])
        if t < 20:
            schedule.step()
    assert found[0] == pytest.approx(1 / 25)
    assert found[-1] == pytest.approx(1 / 25 / 1e4)
    assert np.argmax(found) in (9, 10)
    assert momenta[0] == pytest.approx(0.95)
    assert momenta[-1] == pytest.approx(0.95)
    assert np.argmin(momenta) == np.argmax(found)
    # Half a cosine between start and peak, at step t of a rise that ends at step 9.5.
    for t in range(9):
        part = (1 - math.cos(math.pi * t / 9.5)) / 2
        assert found[t] == pytest.approx(1 / 25 + (1 - 1 / 25) * part, rel=1e-6)


def test_one_cycle_in_three_straight_phases():
    one = optim.Adam([probtorch.ones(1).requires_grad_()])
    schedule = lr_scheduler.OneCycleLR(
        one, max_lr=1.0, epochs=2, steps_per_epoch=10, pct_start=0.25, three_phase=True,
        anneal_strategy="linear", div_factor=10.0, final_div_factor=10.0,
    )  # fmt: skip
    found = rates(schedule, 20)
    corners = np.interp(np.arange(20), [0, 4, 8, 19], [0.1, 1.0, 0.1, 0.01])
    np.testing.assert_allclose(found, corners, rtol=1e-12)
    assert one.param_groups[0]["betas"][1] == 0.999


def test_one_cycle_ends():
    schedule = lr_scheduler.OneCycleLR(optimizer(momentum=0.9), max_lr=1.0, total_steps=3)
    for _ in range(3):
        schedule.step()
    with pytest.raises(ArgumentError, match="Tried to step 4 times"):
        schedule.step()


def test_cycles_move_the_momentum_the_other_way():
    one = optim.Adam([probtorch.ones(1).requires_grad_()])
    schedule = lr_scheduler.CyclicLR(one, 0.1, 0.5, step_size_up=2)
    found = []
    for _ in range(6):
        found.append((one.param_groups[0]["lr"], one.param_groups[0]["betas"]))
        schedule.step()
    expected = [0.1, 0.3, 0.5, 0.3, 0.1, 0.3]
    assert [lr for lr, _ in found] == pytest.approx(expected)
    momenta = [0.9, 0.85, 0.8, 0.85, 0.9, 0.85]
    assert [b1 for _, (b1, _) in found] == pytest.approx(momenta)
    assert {b2 for _, (_, b2) in found} == {0.999}


@pytest.mark.parametrize("mode, x", [("cycle", lambda t: t // 4 + 1), ("iterations", lambda t: t)])
def test_cycles_follow_a_function_of_ones_own(mode, x):
    schedule = lr_scheduler.CyclicLR(
        optimizer(), 0.1, 0.5, 2, scale_fn=lambda x: 1 / (x + 1), scale_mode=mode,
        cycle_momentum=False,
    )  # fmt: skip
    expected = [0.1 + triangle(t, 2, 2, lambda cycle, t=t: 0.4 / (x(t) + 1)) for t in range(13)]
    np.testing.assert_allclose(rates(schedule, 13), expected, rtol=1e-12)


# ----------------------------------------------------------------------------------------- plateaus


def test_plateau_lowers_the_rate_after_its_patience():
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer(), patience=2, factor=0.5)
    found = []
    for loss in [5.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 3.0]:
        schedule.step(probtorch.tensor(loss))
        found.append(schedule.get_last_lr()[0] / LR)
    assert found == pytest.approx([1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5])


def test_plateau_waits_while_it_cools_down():
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer(), patience=0, cooldown=2, factor=0.5)
    found = []
    for _ in range(7):
        schedule.step(1.0)
        found.append(schedule.get_last_lr()[0] / LR)
    # Best at the first, falls at the second, then two steps do not count.
    assert found == pytest.approx([1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25])


@pytest.mark.parametrize(
    "mode, threshold_mode, better, worse",
    [("min", "rel", 8.9, 9.1), ("max", "rel", 11.1, 10.9),
     ("min", "abs", 9.8, 9.95), ("max", "abs", 10.2, 10.05)],
)  # fmt: skip
def test_plateau_counts_what_beats_the_threshold(mode, threshold_mode, better, worse):
    schedule = lr_scheduler.ReduceLROnPlateau(
        optimizer(), mode, threshold=0.1, threshold_mode=threshold_mode
    )
    assert schedule.is_better(better, 10.0)
    assert not schedule.is_better(worse, 10.0)


def test_plateau_keeps_above_the_least_rate():
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer(), patience=0, factor=0.1, min_lr=0.02)
    for _ in range(5):
        schedule.step(1.0)
    assert schedule.get_last_lr() == [0.02]


# ---------------------------------------------------------------------------------------- sequences


def sequence(one):
    return lr_scheduler.SequentialLR(
        one,
        [
            lr_scheduler.LinearLR(one, total_iters=4),
            lr_scheduler.ExponentialLR(one, gamma=0.5),
            lr_scheduler.StepLR(one, step_size=2),
        ],
        milestones=[4, 7],
    )


def test_sequence_starts_each_schedule_from_the_beginning():
    found = rates(sequence(optimizer()), 12)
    expected = [linear(t, total=4) for t in range(4)]
    expected += [LR * 0.5**t for t in range(3)]
    expected += [LR * 0.1 ** (t // 2) for t in range(5)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_resumed_sequence_goes_on_exactly():
    whole = rates(sequence(optimizer()), 12)
    first = sequence(optimizer())
    rates(first, 5)
    second = sequence(optimizer())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(rates(second, 7), whole[5:])


def chain(one):
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(one, 0.5, 3), lr_scheduler.ExponentialLR(one, 0.9)]
    )


def test_chain_multiplies_what_its_parts_say():
    found = rates(chain(optimizer()), 8)
    expected = [LR * (0.5 if t < 3 else 1.0) * 0.9**t for t in range(8)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_resumed_chain_goes_on_exactly():
    whole = rates(chain(optimizer()), 9)
    first, second = chain(optimizer()), chain(optimizer())
    rates(first, 4)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(rates(second, 5), whole[4:])


def test_chain_may_be_part_of_a_sequence():
    one = optimizer()
    parts = [chain(one), lr_scheduler.StepLR(one, step_size=2, gamma=0.5)]
    found = rates(lr_scheduler.SequentialLR(one, parts, [4]), 8)
    expected = [LR * (0.5 if t < 3 else 1.0) * 0.9**t for t in range(4)]
    expected += [LR * 0.5 ** (t // 2) for t in range(4)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda o: lr_scheduler.LinearLR(o, start_factor=0.0), "start_factor in"),
        (lambda o: lr_scheduler.LambdaLR(o, [abs, abs]), r"one per parameter group \(1\)"),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 0), "an integer >= 1"),
        (lambda o: lr_scheduler.OneCycleLR(o, 1.0), "total_steps, or epochs"),
        (lambda o: lr_scheduler.OneCycleLR(o, 1.0, 5, pct_start=2.0), "pct_start"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=1.0), "factor"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, "mean"), "mode"),
        (lambda o: lr_scheduler.SequentialLR(o, [], []), "one milestone less"),
        (
            lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ReduceLROnPlateau(o)], []),
            "ReduceLROnPlateau",
        ),
        (lambda o: lr_scheduler.StepLR(o, 3, last_epoch=4), "initial_lr"),
        (lambda o: sequence(o).step(3), "call step"),
        (lambda o: lr_scheduler.ConstantLR(o, factor=0.0), r"factor in \(0, 1\]"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2, mode="square"), "triangular2"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2, step_size_down=0), "step_size_down > 0"),
        (lambda o: lr_scheduler.CyclicLR(o, [0.1, 0.1], 0.2), r"one per parameter group \(1\)"),
        (lambda o: lr_scheduler.ChainedScheduler([]), "at least one scheduler"),
        (lambda o: lr_scheduler.ChainedScheduler([chain(o)], optimizer()), "the same optimizer"),
        (
            lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ReduceLROnPlateau(o)]),
            "beside the chain",
        ),
    ],
)
def test_wrong_arguments_are_refused(make, text):
    with pytest.raises(ArgumentError, match=text):
        make(optimizer())


def test_cycle_of_momentum_needs_momentum():
    rms = optim.Adagrad([probtorch.ones(1).requires_grad_()])
    with pytest.raises(ArgumentError, match="cycle_momentum=False"):
        lr_scheduler.OneCycleLR(rms, 1.0, 5)
    with pytest.raises(ArgumentError, match="cycle_momentum=False"):
        lr_scheduler.CyclicLR(rms, 0.1, 1.0)


def test_schedule_of_something_else_is_refused():
    with pytest.raises(DTypeError, match="an Optimizer"):
        lr_scheduler.StepLR({"lr": 1.0}, 3)
    with pytest.raises(DTypeError, match="which has an optimizer"):
        lr_scheduler.ChainedScheduler([optimizer()])


# ---------------------------------------------------------------------------- against PyTorch's own


@pytest.mark.parametrize("name", sorted(set(lr_scheduler.__all__) - {"LRScheduler"}))
def test_signature_is_that_of_torch(name):
    theirs = pytest.importorskip("torch.optim.lr_scheduler")
    ours = inspect.signature(getattr(lr_scheduler, name)).parameters
    expected = inspect.signature(getattr(theirs, name)).parameters
    assert [(p.name, p.default) for p in ours.values()] == [
        (p.name, p.default) for p in expected.values()
    ]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    "name, options",
    [(kind.__name__, options) for kind, options, _ in CLOSED_FORMS.values()]
    + [
        ("OneCycleLR", {"max_lr": 1.0, "total_steps": 30}),
        ("OneCycleLR", {"max_lr": 1.0, "epochs": 5, "steps_per_epoch": 6, "three_phase": True}),
    ],
)
def test_rates_are_those_of_torch(name, options):
    torch = pytest.importorskip("torch")
    theirs = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=LR, momentum=0.9)
    expected = getattr(torch.optim.lr_scheduler, name)(theirs, **options)
    ours = getattr(lr_scheduler, name)(optimizer(momentum=0.9), **options)
    np.testing.assert_allclose(rates(ours, 29), rates(expected, 29), rtol=1e-13)


@pytest.mark.parametrize("kind", [lr_scheduler.LambdaLR, lr_scheduler.MultiplicativeLR])
def test_factors_are_numbers_and_become_pythons(kind):
    for factor in (0.5, 1, np.float64(0.5), np.float32(0.25), np.int64(1), np.array([0.5])):
        opt = optim.SGD([probtorch.ones(1, requires_grad=True)], lr=0.1)
        schedule = kind(opt, lambda step, factor=factor: factor)
        schedule.step()
        assert type(opt.param_groups[0]["lr"]) is float
        assert opt.param_groups[0]["lr"] == pytest.approx(0.1 * float(np.ravel(factor)[0]))
    for factor in ("a", None, np.ones(2), 1j):
        with pytest.raises(DTypeError, match="one real number"):
            kind(optimizer(), lambda step, factor=factor: factor).step()
