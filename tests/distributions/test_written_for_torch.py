"""Idioms of classes written for PyTorch: their own `expand`, mixins, modules that are priors."""

import probtorch
from probtorch import nn
from probtorch.distributions import Distribution, Independent, Normal, constraints
from probtorch.effects import plate, sample
from probtorch.tensor import tensor
from probtorch.testing import assert_close


class Shifted(Distribution):
    """A normal with unit scale and an `expand` in PyTorch's form."""

    arg_constraints = {"loc": constraints.real}
    support = constraints.real

    def __init__(self, loc, validate_args=None):
        self.loc = probtorch.as_tensor(loc)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(Shifted, _instance)
        batch_shape = probtorch.Size(batch_shape)
        new.loc = self.loc.expand(batch_shape)
        super(Shifted, new).__init__(batch_shape, validate_args=False)
        return new

    def sample(self, sample_shape=()):
        return self.loc + probtorch.randn(probtorch.Size(sample_shape) + self.batch_shape)

    def log_prob(self, value):
        return Normal(self.loc, 1.0).log_prob(value)


def test_expand_in_the_form_of_torch():
    wide = Shifted(tensor(1.0)).expand((3,))
    assert wide.batch_shape == (3,) and wide.loc.shape == (3,)
    assert_close(wide.log_prob(tensor(1.5)), Normal(1.0, 1.0).expand((3,)).log_prob(tensor(1.5)))

    def model():
        with plate("rows", 4):
            return sample("x", Shifted(tensor(0.0)))

    assert model().shape == (4,)


class Diagonal(Independent):
    def __init__(self, loc, scale):
        super().__init__(Normal(loc, scale), 1)

    def expand(self, batch_shape, new=None):
        new = self._get_checked_instance(Diagonal, new)
        return super().expand(batch_shape, new)


def test_the_instance_to_fill_is_handed_upwards():
    wide = Diagonal(tensor([0.0, 1.0]), tensor([1.0, 2.0])).expand((5,))
    assert type(wide) is Diagonal
    assert wide.batch_shape == (5,) and wide.sample().shape == (5, 2)


class Mixin(Distribution, nn.Module):
    pass


class NormalPrior(Mixin, Normal):
    """A mixin without parameters comes first; what is deleted is registered as a buffer."""

    def __init__(self, loc, scale, validate_args=None):
        nn.Module.__init__(self)
        Normal.__init__(self, loc=loc, scale=scale, validate_args=validate_args)
        kept = {name: getattr(self, name).clone() for name in ("loc", "scale")}
        for name, value in kept.items():
            delattr(self, name)
            self.register_buffer(name, value)


def test_fields_come_from_all_bases_and_may_be_buffers():
    prior = NormalPrior(tensor(1.0), tensor(2.0))
    assert list(prior.state_dict()) == ["loc", "scale"]
    assert_close(prior.log_prob(tensor(0.5)), Normal(1.0, 2.0).log_prob(tensor(0.5)))
