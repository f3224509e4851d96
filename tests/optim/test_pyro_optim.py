"""Optimizers made from options alone, which meet their parameters later."""

import copy

import numpy as np
import pytest

import probtorch
from probtorch import optim
from probtorch.errors import ArgumentError, DTypeError
from probtorch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from probtorch.testing.compare import assert_close


def leaf(*values):
    return probtorch.tensor(list(values), dtype=probtorch.float64, requires_grad=True)


def give(p, *values):
    p.grad = probtorch.tensor(list(values), dtype=probtorch.float64)


def run(optimizer, params, steps, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        for p in params.values():
            p.grad = probtorch.tensor(rng.standard_normal(p.shape))
        optimizer(params)


@pytest.mark.parametrize(
    "kind, options",
    [(optim.SGD, {"lr": 0.1, "momentum": 0.9}), (optim.Adam, {"lr": 0.1}),
     (optim.ClippedAdam, {"lr": 0.1, "lrd": 0.9}), (optim.RMSprop, {"lr": 0.1})],
)  # fmt: skip
def test_dict_of_options_gives_the_same_numbers_as_an_optimizer_per_parameter(kind, options):
    params = {"a": leaf(1.0, 2.0), "b": leaf(3.0)}
    twins = {"a": leaf(1.0, 2.0), "b": leaf(3.0)}
    lazy = kind(options)
    assert isinstance(lazy, optim.PyroOptim)
    run(lazy, params, 5)
    single = {name: kind([p], **options) for name, p in twins.items()}
    run(lambda ps: [single[name].step() for name in ps], twins, 5)
    for name in params:
        assert params[name].array.tobytes() == twins[name].array.tobytes()


def test_parameter_that_comes_late_starts_from_the_beginning():
    a, b = leaf(1.0), leaf(1.0)
    optimizer = optim.Adam({"lr": 0.1})
    run(optimizer, {"a": a}, 3)
    give(a, 1.0)
    give(b, 1.0)
    optimizer({"a": a, "b": b})
    # The first step of Adam has length lr; a fourth step would not.
    assert_close(b, np.array([0.9]), rtol=1e-6)
    assert optimizer.optim_objs[a].state[a]["step"].item() == 4.0


def test_only_the_parameters_given_are_moved():
    a, b = leaf(1.0), leaf(1.0)
    optimizer = optim.SGD({"lr": 0.5})
    give(a, 1.0)
    give(b, 1.0)
    optimizer([a, b])
    optimizer([a])
    assert_close(a, np.array([0.0]))
    assert_close(b, np.array([0.5]))


def test_options_may_depend_on_the_name():
    params = {"encoder.weight": leaf(1.0), "loc": leaf(1.0)}
    asked = []

    def options(name):
        asked.append(name)
        return {"lr": 0.5 if name.startswith("encoder") else 0.1}

    optimizer = optim.SGD(options)
    for _ in range(2):
        for p in params.values():
            give(p, 1.0)
        optimizer(params)
    assert_close(params["encoder.weight"], np.array([0.0]))
    assert_close(params["loc"], np.array([0.8]))
    assert asked == ["encoder.weight", "loc"]


def test_older_two_argument_functions_get_module_and_name():
    asked = []

    def options(module_name, param_name):
        asked.append((module_name, param_name))
        return {"lr": 0.1}

    optimizer = optim.SGD(options)
    run(optimizer, {"net.fc.weight": leaf(1.0), "loc": leaf(1.0)}, 1)
    assert asked == [("net.fc", "weight"), (None, "loc")]


def test_gradients_are_clipped_by_norm_parameter_by_parameter():
    a, b = leaf(0.0, 0.0), leaf(0.0)
    optimizer = optim.SGD({"lr": 1.0}, {"clip_norm": 1.0})
    give(a, 3.0, 4.0)
    give(b, 0.25)
    optimizer({"a": a, "b": b})
    # 1e-6 is added to the norm, as in PyTorch.
    assert_close(a, -np.array([3.0, 4.0]) / (5.0 + 1e-6), rtol=1e-12)
    assert_close(b, np.array([-0.25]))


def test_gradients_are_clipped_by_value():
    a = leaf(0.0, 0.0, 0.0)
    optimizer = optim.SGD({"lr": 1.0}, clip_args=lambda name: {"clip_value": 0.5})
    give(a, 3.0, -4.0, 0.25)
    optimizer([("a", a)])
    assert_close(a, np.array([-0.5, 0.5, -0.25]))


def test_resumed_state_waits_for_its_parameters():
    start = {"a": (1.0, 2.0), "b": (3.0,)}
    whole = {name: leaf(*v) for name, v in start.items()}
    optimizer = optim.Adam({"lr": 0.1})
    run(optimizer, whole, 3)
    saved = copy.deepcopy(optimizer.get_state())
    middle = {name: leaf(*p.tolist()) for name, p in whole.items()}
    run(optimizer, whole, 4, seed=1)

    resumed = optim.Adam({"lr": 0.9})
    resumed.set_state(saved)
    assert resumed.get_state().keys() == saved.keys()
    run(resumed, middle, 4, seed=1)
    for name in start:
        assert middle[name].array.tobytes() == whole[name].array.tobytes()


def test_state_of_known_parameters_is_replaced():
    p = {"a": leaf(1.0)}
    optimizer = optim.Adam({"lr": 0.1})
    run(optimizer, p, 2)
    saved = copy.deepcopy(optimizer.get_state())
    run(optimizer, p, 2)
    optimizer.set_state(saved)
    assert optimizer.optim_objs[p["a"]].state[p["a"]]["step"].item() == 2.0


def test_any_constructor_may_stand_behind_it():
    p = leaf(1.0)
    optimizer = optim.PyroOptim(lambda params, lr: optim.SGD(params, lr), {"lr": 0.5})
    give(p, 1.0)
    optimizer([p])
    assert_close(p, np.array([0.5]))


def test_schedule_is_stepped_for_every_parameter():
    schedule = optim.PyroLRScheduler(
        ExponentialLR, {"optimizer": optim.SGD, "optim_args": {"lr": 1.0}, "gamma": 0.5}
    )
    p = leaf(0.0)
    for _ in range(3):
        give(p, 1.0)
        schedule({"p": p})
        schedule.step()
    assert_close(p, np.array([-1.75]))


def test_schedule_on_a_plateau_hears_of_the_loss():
    schedule = optim.PyroLRScheduler(
        ReduceLROnPlateau,
        {"optimizer": optim.SGD, "optim_args": {"lr": 1.0}, "patience": 0, "factor": 0.5},
    )
    p = leaf(0.0)
    for _ in range(3):
        give(p, 1.0)
        schedule({"p": p})
        schedule.step(1.0)
    assert_close(p, np.array([-2.5]))


def test_resumed_schedule_goes_on():
    def make():
        return optim.PyroLRScheduler(
            ExponentialLR, {"optimizer": optim.Adam, "optim_args": {"lr": 1.0}, "gamma": 0.5}
        )

    def go(schedule, p, steps):
        for _ in range(steps):
            give(p, 1.0)
            schedule({"p": p})
            schedule.step()

    whole = leaf(0.0)
    schedule = make()
    go(schedule, whole, 2)
    saved, middle = copy.deepcopy(schedule.get_state()), leaf(*whole.tolist())
    go(schedule, whole, 2)
    resumed = make()
    resumed.set_state(saved)
    go(resumed, middle, 2)
    assert middle.array.tobytes() == whole.array.tobytes()


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: optim.PyroOptim(optim.SGD, 0.1), DTypeError, "a dict, or a function"),
        (lambda: optim.SGD({"lr": 0.1}, {"norm": 1.0}), ArgumentError, "clip_norm, clip_value"),
        (lambda: optim.SGD({"lr": 0.1})([1.0]), DTypeError, "tensors, "),
        (lambda: optim.SGD(lambda name: 0.1)([leaf(1.0)]), DTypeError, "options of parameter '0'"),
        (lambda: optim.PyroLRScheduler(ExponentialLR, {"gamma": 1.0}), ArgumentError, "optimizer"),
    ],
)
def test_wrong_arguments_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_two_tensors_of_one_name_are_refused():
    optimizer = optim.SGD({"lr": 0.1})
    optimizer({"a": leaf(1.0)})
    with pytest.raises(ArgumentError, match="a new name for a new parameter"):
        optimizer({"a": leaf(1.0)})
