"""Idioms of classes written for PyTorch: their own `expand`, mixins, modules that are priors."""

import pytest

import probtorch
from probtorch import nn
from probtorch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MultivariateNormal,
    Normal,
    constraints,
)
from probtorch.distributions.utils import _standard_normal, _sum_rightmost, broadcast_all
from probtorch.effects import plate, sample
from probtorch.errors import DomainError
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


class Scaled(Normal):
    """Sets the parameters of the class it is derived from itself, and goes past its constructor."""

    def __init__(self, loc, spread, validate_args=None):
        self.loc, self.scale = broadcast_all(loc, spread * 2.0)
        super(Normal, self).__init__(self.loc.size(), validate_args=validate_args)


def test_shapes_are_given_past_the_constructor_of_a_base():
    d, same = Scaled(probtorch.zeros(3), 1.0), Normal(probtorch.zeros(3), 2.0)
    assert d.batch_shape == (3,)
    assert_close(d.log_prob(tensor(0.5)), same.log_prob(tensor(0.5)))
    assert_close(d.expand((2, 3)).log_prob(tensor(0.5)), same.log_prob(tensor(0.5)).expand(2, 3))
    assert d.rsample((4,)).shape == (4, 3)
    with pytest.raises(DomainError, match="scale"):
        Scaled(probtorch.zeros(3), -1.0)


class Named(Categorical):
    def __init__(self, logits):
        self.logits = logits
        super(Categorical, self).__init__(logits.shape[:-1], validate_args=False)


def test_shapes_are_given_past_a_class_that_inherits_its_constructor():
    logits = tensor([[0.0, 1.0], [2.0, 0.0]])
    assert Named(logits).batch_shape == (2,)
    assert_close(Named(logits).log_prob(tensor(1)), Categorical(logits=logits).log_prob(tensor(1)))


class Factored(MultivariateNormal):
    """Has a covariance of another form, and says all that is asked of it."""

    def __init__(self, loc, diagonal):
        self.loc, self.diagonal = loc, diagonal
        super(MultivariateNormal, self).__init__(loc.shape[:-1], loc.shape[-1:], False)

    @property
    def covariance_matrix(self):
        return probtorch.diag_embed(self.diagonal)

    @property
    def mean(self):
        return self.loc

    @property
    def variance(self):
        return self.diagonal

    def rsample(self, sample_shape=()):
        noise = probtorch.randn(*sample_shape, *self.loc.shape)
        return self.loc + self.diagonal.sqrt() * noise

    def log_prob(self, value):
        return Normal(self.loc, self.diagonal.sqrt()).log_prob(value).sum(-1)


def test_class_that_goes_past_its_base_says_the_rest_itself():
    loc, diagonal = probtorch.zeros(2, 3), tensor([1.0, 2.0, 3.0])
    d = Factored(loc, diagonal)
    assert (d.batch_shape, d.event_shape) == ((2,), (3,))
    assert_close(d.stddev, diagonal.sqrt())
    assert sample("x", d).shape == (2, 3)
    value = tensor([0.5, 0.0, 1.0])
    same = MultivariateNormal(loc, probtorch.diag(diagonal))
    assert_close(d.log_prob(value), same.log_prob(value))


class Flow(Distribution):
    """Says its shapes by properties, which ask for what is not there at first."""

    has_rsample = True

    def __init__(self, base):
        super().__init__(validate_args=False)
        self.base = base

    @property
    def batch_shape(self):
        return self.base.batch_shape

    @property
    def event_shape(self):
        return self.base.event_shape

    def rsample(self, shape=()):
        return self.base.rsample(shape).exp()

    def log_prob(self, value):
        return self.base.log_prob(value.log()) - value.log().sum(-1)


class Relabelled(Normal):
    @property
    def batch_shape(self):
        return probtorch.Size((1, *self._batch_shape))


def test_properties_that_are_overridden_are_the_shapes():
    d = Flow(Normal(probtorch.zeros(2, 3), 1.0).to_event(1))
    assert d.sample((4,)).shape == (4, 2, 3)
    assert d.log_prob(d.sample()).shape == (2,)
    assert d.to_event(1).event_shape == (2, 3)
    with plate("rows", 2):
        assert sample("x", d).shape == (2, 3)
    assert Relabelled(probtorch.zeros(3), 1.0).batch_shape == (1, 3)


class Noisy(Normal):
    """Calls what PyTorch keeps for itself, and everybody uses."""

    def rsample(self, sample_shape=()):
        eps = _standard_normal(self._extended_shape(sample_shape), self.loc.dtype, self.loc.device)
        return self.loc + eps * self.scale

    def total(self, value):
        return _sum_rightmost(self.log_prob(value), 1)


def test_private_helpers_of_pytorch_that_classes_call():
    d = Noisy(probtorch.zeros(2, 3), probtorch.ones(3))
    assert d.rsample((4,)).shape == (4, 2, 3)
    assert_close(d.total(d.mean), Normal(0.0, 1.0).log_prob(tensor(0.0)).expand(2) * 3.0)
    fans = nn.init._calculate_fan_in_and_fan_out(probtorch.zeros(6, 4, 3, 3))
    assert fans == (36, 54)
