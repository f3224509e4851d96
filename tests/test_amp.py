"""autocast leaves numbers as they are; GradScaler scales and leaves out what is not finite."""

import pytest

import probtorch as torch
from probtorch import nn
from probtorch.amp import GradScaler
from probtorch.errors import ArgumentError
from probtorch.testing import assert_close


def test_autocast_leaves_numbers_as_they_are():
    x, net = torch.tensor([1.0, 2.0]), nn.Linear(2, 1)
    with torch.autocast(device_type="cpu", dtype=torch.float16):
        inside = net(x)
    assert inside.dtype == torch.float32
    assert_close(inside, net(x))
    assert_close(torch.amp.autocast("cuda", enabled=False)(net)(x), net(x))
    with pytest.raises(ArgumentError, match="device_type"):
        torch.autocast("mps")


def test_a_scaler_leaves_out_steps_that_are_not_finite_and_adapts():
    w = torch.tensor([1.0], requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.5)
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=2)
    seen = []
    for factor in (1.0, float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale((w * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((float(w), scaler.get_scale()))
    assert seen == [(0.5, 4.0), (0.5, 2.0), (0.0, 2.0), (-0.5, 4.0)]
    other = GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()


def test_gradients_are_unscaled_once_ahead_of_clipping():
    w = torch.tensor([3.0], requires_grad=True)
    optimizer, scaler = torch.optim.SGD([w], lr=1.0), GradScaler("cpu")
    scaler.scale((w * w).sum()).backward()
    scaler.unscale_(optimizer)
    assert_close(w.grad, torch.tensor([6.0]))
    with pytest.raises(ArgumentError, match="update"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert float(w) == -3.0


def test_a_step_whose_gradients_would_keep_the_scale_is_refused():
    w = torch.tensor([3.0], requires_grad=True)
    optimizer, scaler = torch.optim.SGD([w], lr=1.0), GradScaler("cpu")
    with pytest.raises(ArgumentError, match="a call of step"):
        scaler.update()
    with pytest.raises(ArgumentError, match="closure"):
        scaler.step(optimizer, lambda: 0.0)
    scaler.scale(w.sum()).backward()
    scaler.step(optimizer)
    with pytest.raises(ArgumentError, match="a second one"):
        scaler.step(optimizer)
    assert float(w) == 2.0


def test_a_disabled_scaler_hands_on_what_it_gets():
    w = torch.tensor([1.0], requires_grad=True)
    optimizer, scaler = torch.optim.SGD([w], lr=0.5), GradScaler(enabled=False)
    scaler.scale(w.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert float(w) == 0.5 and scaler.get_scale() == 1.0 and scaler.state_dict() == {}
    if not torch.cuda.is_available():
        with pytest.warns(UserWarning, match="no GPU"):
            assert not GradScaler().is_enabled()
