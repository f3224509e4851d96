"""Averages of weights against means and recursions; statistics against those of all data."""

import copy
import math

import numpy as np
import pytest

import probtorch
from probtorch import nn, optim
from probtorch.errors import ArgumentError, ModelError
from probtorch.optim import swa_utils
from probtorch.optim.swa_utils import SWALR, AveragedModel
from probtorch.testing.compare import assert_close


def model():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()


def passing_through(averaged, net, count):
    """Give `net` new weights `count` times; returns all of the values of each parameter."""
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(count):
        with probtorch.no_grad():
            for t in [*net.parameters(), net[1].running_mean]:
                t.copy_(probtorch.tensor(rng.standard_normal(t.shape)))
            net[1].num_batches_tracked.fill_(int(rng.integers(100)))
        seen.append([np.array(t.array) for t in [*net.parameters(), *net.buffers()]])
        averaged.update_parameters(net)
    return [np.array(values) for values in zip(*seen)]


def recursion(values, decay):
    found = values[0]
    for value in values[1:]:
        found = decay * found + (1 - decay) * value
    return found


@pytest.mark.parametrize("buffers", [False, True])
@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, lambda v: v.mean(0)),
        ({"avg_fn": swa_utils.get_swa_avg_fn()}, lambda v: v.mean(0)),
        ({"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()}, lambda v: v.mean(0)),
        ({"avg_fn": swa_utils.get_ema_avg_fn(0.8)}, lambda v: recursion(v, 0.8)),
        ({"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.8)}, lambda v: recursion(v, 0.8)),
        ({"avg_fn": lambda a, x, n: a + x * (n + 1)}, lambda v: (v.T * [1, 2, 3, 4, 5]).T.sum(0)),
    ],
)  # fmt: skip
def test_average_is_that_of_the_values_seen(options, expected, buffers):
    net = model()
    averaged = AveragedModel(net, use_buffers=buffers, **options)
    values = passing_through(averaged, net, 5)
    parameters = list(averaged.module.parameters())
    for t, seen in zip(parameters, values):
        assert_close(t, expected(seen), rtol=1e-12)
    of_mean, _, of_count = values[len(parameters) :]
    norm = averaged.module[1]
    assert_close(norm.running_mean, expected(of_mean) if buffers else of_mean[-1], rtol=1e-12)
    assert norm.num_batches_tracked.dtype == probtorch.int64
    assert buffers or norm.num_batches_tracked.item() == of_count[-1]
    assert averaged.n_averaged.item() == 5


def test_average_computes_with_its_own_weights_and_is_saved_with_its_count():
    net = model().eval()
    averaged = AveragedModel(net).eval()
    passing_through(averaged, net, 3)
    x = probtorch.randn(4, 2).double()
    assert_close(averaged(x), averaged.module(x))
    assert not np.allclose(averaged(x).detach().array, net(x).detach().array)
    other = AveragedModel(model()).eval()
    other.load_state_dict(copy.deepcopy(averaged.state_dict()))
    assert other.n_averaged.item() == 3
    assert_close(other(x), averaged(x))


def test_gradients_do_not_flow_into_the_average():
    net = model()
    averaged = AveragedModel(net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn())
    for _ in range(2):
        averaged.update_parameters(net)
    assert all(p.grad_fn is None for p in averaged.parameters())
    assert all(p.grad_fn is None and p.grad is None for p in net.parameters())


def test_statistics_are_those_of_all_batches():
    net = model()
    batches = [probtorch.randn(8, 2).double() for _ in range(4)]
    net.eval()
    swa_utils.update_bn([(x, "label") for x in batches], net)
    hidden = [net[0](x).detach().array for x in batches]
    assert_close(net[1].running_mean, np.mean([h.mean(0) for h in hidden], 0), rtol=1e-10)
    assert_close(net[1].running_var, np.mean([h.var(0, ddof=1) for h in hidden], 0), rtol=1e-10)
    assert not net.training and net[1].momentum == 0.1


def test_statistics_are_left_as_they_are_set_where_a_batch_fails():
    net = model().eval()
    with pytest.raises(Exception, match="shape"):
        swa_utils.update_bn([probtorch.randn(8, 5).double()], net)
    assert not net.training and net[1].momentum == 0.1


@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_rate_goes_to_its_end_and_stays(strategy):
    optimizer = optim.SGD([probtorch.ones(1).requires_grad_()], lr=1.0)
    schedule = SWALR(optimizer, 0.2, anneal_epochs=4, anneal_strategy=strategy)
    found = []
    for _ in range(7):
        found.append(schedule.get_last_lr()[0])
        schedule.step()
    done = np.minimum(np.arange(7) / 4, 1.0)
    done = done if strategy == "linear" else (1 - np.cos(math.pi * done)) / 2
    np.testing.assert_allclose(found, 1.0 + (0.2 - 1.0) * done, rtol=1e-12)


def test_rate_changed_by_others_on_the_way_is_followed():
    optimizer = optim.SGD([probtorch.ones(1).requires_grad_()], lr=1.0)
    schedule = SWALR(optimizer, 0.0, anneal_epochs=2, anneal_strategy="linear")
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5)
    optimizer.param_groups[0]["lr"] = 5.0  # as if it had started from 10
    schedule.load_state_dict(copy.deepcopy(schedule.state_dict()))
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.0


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda net: AveragedModel(net, avg_fn=max, multi_avg_fn=max), ArgumentError, "only one"),
        (lambda net: swa_utils.get_ema_avg_fn(1.5), ArgumentError, "Invalid decay value 1.5"),
        (lambda net: swa_utils.get_ema_multi_avg_fn(-0.5), ArgumentError, "Invalid decay"),
        (
            lambda net: AveragedModel(net).update_parameters(nn.Linear(2, 3)),
            ModelError,
            "make a new AveragedModel",
        ),
        (
            lambda net: SWALR(optim.SGD(net.parameters()), 0.1, anneal_strategy="step"),
            ArgumentError,
            "'cos' or 'linear'",
        ),
        (
            lambda net: SWALR(optim.SGD(net.parameters()), 0.1, anneal_epochs=-1),
            ArgumentError,
            "an integer >= 0",
        ),
    ],
)
def test_wrong_arguments_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make(model())


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("epochs", [0, 3])
def test_rates_are_those_of_torch(epochs):
    torch = pytest.importorskip("torch")
    found = []
    for package, ones in ((torch.optim, torch.ones), (optim, probtorch.ones)):
        optimizer = package.SGD([ones(1).requires_grad_()], lr=1.0)
        schedule = package.swa_utils.SWALR(optimizer, 0.3, anneal_epochs=epochs)
        other = package.lr_scheduler.ExponentialLR(optimizer, 0.9)
        rates = []
        for _ in range(8):
            rates.append(optimizer.param_groups[0]["lr"])
            schedule.step()
            other.step()
        found.append(rates)
    np.testing.assert_allclose(*found, rtol=1e-12)
