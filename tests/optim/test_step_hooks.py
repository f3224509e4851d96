"""Functions around the steps of an optimizer."""

import pytest

import probtorch
from probtorch import nn, optim
from probtorch.errors import ArgumentError


def weights():
    p = nn.Parameter(probtorch.ones(2))
    p.grad = probtorch.ones(2)
    return p


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.LBFGS], ids=lambda c: c.__name__)
def test_hooks_are_called_around_each_step(kind):
    p, seen = weights(), []
    opt = kind([p], lr=0.5)

    def closure():
        p.grad = probtorch.ones(2)
        return p.sum()

    before = opt.register_step_pre_hook(
        lambda o, args, kwargs: seen.append(("before", p[0].item()))
    )
    # As in PyTorch the optimizer is the first of the arguments.
    after = opt.register_step_post_hook(
        lambda o, args, kwargs: seen.append((args[0] is o is opt, len(args)))
    )
    loss = opt.step(closure)
    assert loss.item() == 2.0
    assert seen == [("before", 1.0), (True, 2)]
    assert p[0].item() < 1.0
    before.remove()
    opt.step(closure)
    assert seen[2:] == [(True, 2)]
    after.remove()
    after.remove()
    assert "step" not in vars(opt)


def test_a_hook_before_gives_the_step_other_arguments():
    p = weights()
    opt, called = optim.SGD([p], lr=0.5), []
    with opt.register_step_pre_hook(lambda o, a, k: ((lambda: called.append(1),), {})):
        opt.step()
    with opt.register_step_pre_hook(lambda o, a, k: ((*a, lambda: called.append(2)), k)):
        opt.step()
    assert called == [1, 2]
    with (
        opt.register_step_pre_hook(lambda o, a, k: 3),
        pytest.raises(ArgumentError, match="a pair"),
    ):
        opt.step()
    opt.step()
    with pytest.raises(ArgumentError, match="a function"):
        opt.register_step_post_hook(3)


def test_schedules_work_on_optimizers_with_hooks():
    p, rates = weights(), []
    opt = optim.SGD([p], lr=1.0)
    schedule = optim.lr_scheduler.ExponentialLR(opt, 0.5)
    opt.register_step_post_hook(lambda o, a, k: rates.append(o.param_groups[0]["lr"]))
    for _ in range(3):
        opt.step()
        schedule.step()
    assert rates == [1.0, 0.5, 0.25]
