"""What Python asks of tensors, and does to them, in a model that SVI compiles: eager steps give the
same losses, whatever changes between the steps.
"""

import warnings

import pytest

import probtorch
from probtorch import nn, sample
from probtorch.compiler.paths import CompileWarning
from probtorch.distributions import Normal
from probtorch.infer import SVI, Trace_ELBO
from probtorch.infer.guides import AutoNormal
from probtorch.optim import Adam
from probtorch.testing import assert_close

FAMOUS = probtorch.tensor(1.0, dtype=probtorch.float64)


def double(values, **options):
    return probtorch.tensor(values, dtype=probtorch.float64, **options)


def latent(factor):
    """A model of one latent number, scaled by what `factor` makes of the arguments."""

    def model(*args):
        z = sample("z", Normal(0.0, 1.0))
        x = args[0] if args else double(2.0)
        sample("y", Normal(z * factor(*args) + x * 0.0, 1.0).to_event(x.ndim), obs=x)

    return model, AutoNormal(model)


def asked_for_a_gradient():
    changes = [{"args": (double(1.0, requires_grad=True),)}, {"args": (double(1.0),)}]
    return *latent(lambda x: 2.0 if x.requires_grad else 1.0), changes[1], [*changes, changes[0]]


def asked_for_one_tensor():
    a, b = double(1.0), double(1.0)
    changes = [{"args": (a, a)}, {"args": (a, b)}]
    return *latent(lambda x, y: 2.0 if x is y else 1.0), changes[1], changes


def asked_for_a_famous_one():
    changes = [{"args": (FAMOUS,)}, {"args": (double(1.0),)}]
    return *latent(lambda x: 2.0 if x is FAMOUS else 1.0), changes[1], changes


def asked_for_strides():
    data = double([[1.0, 5.0], [2.0, 6.0]])
    changes = [{"args": (data[:, 0],)}, {"args": (data[1],)}]
    return *latent(lambda x: float(x.stride(0))), {"args": (data[0],)}, changes


def asked_for_grad():
    w = nn.Parameter(double([1.0, 2.0]))

    def to(value):
        return lambda: setattr(w, "grad", value)

    given = [to(double([1.0, 1.0])), to(double([2.0, 2.0])), to(None)]
    return *latent(lambda: 1.0 if w.grad is None else w.grad.sum()), {}, given


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, dtype=probtorch.float64)
        with probtorch.no_grad():
            self.layer.weight.fill_(0.5)
            self.layer.bias.fill_(0.1)

    def forward(self, x):
        return self.layer(x)


def network(hook):
    """A network whose parameters SVI learns, and that gets a hook on the way."""
    net = Net()

    def model():
        probtorch.module("net", net)
        sample("y", Normal(net(double([1.0])).sum(), 1.0), obs=double(2.0))

    factor, handle = [2.0], []

    def register():
        handle.append(hook(net.layer, factor))

    changes = [register, lambda: factor.__setitem__(0, 5.0), lambda: handle.pop().remove()]
    return model, lambda: None, {}, changes


def hooked_parameter():
    return network(lambda m, f: m.weight.register_hook(lambda g: g * 0.0))


def hooked_module():
    return network(lambda m, f: m.register_forward_hook(lambda m, i, out: out * f[0]))


def module_hooked_before():
    return network(lambda m, f: m.register_forward_pre_hook(lambda m, i: (i[0] * f[0],)))


def module_hooked_backwards():
    def hook(m, f):
        return m.register_full_backward_hook(lambda m, gi, go: tuple(g and g * f[0] for g in gi))

    return network(hook)


def frozen_parameter():
    class Thaw:
        def __init__(self, p):
            self.p = p.requires_grad_(False)

        def remove(self):
            self.p.requires_grad_(True)

    return network(lambda m, f: Thaw(m.weight))


def target_network():
    """A second copy of the parameters, which follows slowly."""
    q, p = nn.Parameter(double([3.0, 1.0])), nn.Parameter(double([1.0, 2.0]))

    class Values(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = q

    values = Values()

    def model():
        probtorch.module("values", values)
        p.data.mul_(0.9).add_(0.1 * q)
        p.detach().mul_(1.01)
        sample("y", Normal((values.q - p.detach()).sum(), 1.0), obs=double(2.0))

    return model, lambda: None, {}, [lambda: p.data.copy_(q)]


CASES = [
    asked_for_a_gradient,
    asked_for_one_tensor,
    asked_for_a_famous_one,
    asked_for_strides,
    asked_for_grad,
    hooked_parameter,
    hooked_module,
    module_hooked_before,
    module_hooked_backwards,
    frozen_parameter,
    target_network,
]


def losses(case, jit):
    model, guide, given, changes = case()
    found = []
    with probtorch.configure(jit=jit), warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO(), seed=1)
        for change in [None, *changes]:
            if callable(change):
                change()
            elif change is not None:
                given = change
            found += [svi.step(*given.get("args", ())) for _ in range(3)]
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_losses_are_those_of_eager_steps(case):
    assert_close(double(losses(case, True)), double(losses(case, False)))
