"""What the base class makes of fields: arguments, validation and its messages, dtypes, shapes."""

import math

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.core.dtype import default_dtype_as, float32, float64
from probtorch.core.rng import Generator, default_generator, manual_seed
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import param, setting
from probtorch.errors import ArgumentError, DomainError, NotDifferentiableError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing import assert_close


class Triangular(Distribution):
    """A distribution of a user: symmetric triangle of a given half width, with a size setting."""

    centre = param(constraints.real)
    width = param(constraints.positive, default=1.0)
    corners = setting(default=3)
    support = constraints.real

    def _log_prob(self, x):
        return (self.width - (x - self.centre).abs()).clamp(0.0).log() - 2.0 * self.width.log()

    def _rsample(self, rng, shape):
        return self.centre + self.width * (rng.uniform(shape) - rng.uniform(shape))


# ------------------------------------------------------------------------------ arguments


def test_a_class_of_a_user_gets_everything_from_its_fields():
    d = Triangular(tensor([0.0, 1.0]), corners=4)
    assert d.batch_shape == (2,) and d.corners == 4 and d.has_rsample
    assert_close(d.expand((3, 2)).log_prob(tensor([0.25, 1.0])), [[math.log(0.75), 0.0]] * 3)
    assert repr(d) == "Triangular(centre=(2,), width=1, corners=4)"


@pytest.mark.parametrize(
    "make, expected, got, fix",
    [
        (lambda: Triangular(), "a value for centre", "none", "Triangular(centre, width, corners)"),
        (lambda: Triangular(0.0, 1.0, 3, 4), "at most 3 arguments", "4", "one tensor"),
        (lambda: Triangular(0.0, widht=1.0), "named centre, width, corners", "widht", "width?"),
        (lambda: Triangular(0.0, centre=1.0), "one value for centre", "by position", "centre="),
        (lambda: dist.Bernoulli(), "exactly one of probs, logits", "none", "probs="),
        (
            lambda: dist.Bernoulli(0.5, 0.0),
            "exactly one of probs, logits",
            "probs and logits",
            "probs=",
        ),
        (lambda: dist.LKJCholesky(1), "from 2 on", "1", "dim 1"),
        (
            lambda: dist.TransformedDistribution(dist.Normal(), [3]),
            "a Transform",
            "int",
            "transforms",
        ),
    ],
)
def test_wrong_arguments_are_refused_in_three_parts(make, expected, got, fix):
    with pytest.raises(ArgumentError) as caught:
        make()
    assert expected in caught.value.expected
    assert got in caught.value.got
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    "make, expected, got",
    [
        (
            lambda: dist.Normal(tensor([0.0, 1.0]), tensor([1.0, 2.0, 3.0])),
            "broadcast",
            "(2,) and (3,)",
        ),
        (lambda: dist.Dirichlet(1.0), "at least 1 dims", "()"),
        (lambda: dist.Normal(tensor([0.0, 1.0]), 1.0).expand((3,)), "(2,)", "(3,)"),
        (lambda: dist.Normal().to_event(1), "between 0 and 0", "reinterpreted_batch_ndims=1"),
        (lambda: dist.Delta(1.0, event_dim=1), "event_dim=1", "()"),
        (
            lambda: dist.MultivariateNormal(tensor([0.0, 0.0]), scale_tril=tensor(np.eye(3))),
            "(..., 2, 2)",
            "(3, 3)",
        ),
        (
            lambda: dist.Dirichlet(tensor([1.0, 1.0])).log_prob(tensor([0.2, 0.3, 0.5])),
            "event shape (2,)",
            "(3,)",
        ),
        (
            lambda: dist.Dirichlet(tensor([1.0, 1.0])).log_prob(tensor(0.2)),
            "event shape (2,)",
            "()",
        ),
        (
            lambda: dist.Normal(tensor([0.0, 0.0]), 1.0).log_prob(tensor([1.0, 2.0, 3.0])),
            "broadcast",
            "(3,) and (2,)",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(make, expected, got):
    with pytest.raises(ShapeError) as caught:
        make()
    assert expected in caught.value.expected
    assert got in caught.value.got
    assert caught.value.fix


# ------------------------------------------------------------------------------ validation


def test_a_negative_scale_names_value_index_count_and_cure():
    with pytest.raises(DomainError) as caught:
        dist.Normal(0.0, tensor([[1.0, 2.0], [3.0, -1.5], [-2.0, 1.0]]))
    e = caught.value
    assert e.subject == "Normal: parameter scale" and e.expected == "values in positive"
    assert e.got == "-1.5 at index (1, 1), the first of 2 bad among 6"
    assert "constraint=constraints.positive" in e.fix and "softplus" in e.fix
    assert isinstance(e, ValueError) and __file__ in str(e)


def test_a_nan_parameter_names_the_op_that_made_it():
    x = tensor(-1.0, requires_grad=True)
    with pytest.raises(DomainError) as caught:
        dist.Normal(x.log(), 1.0)
    assert caught.value.got == "nan" and "log" in caught.value.fix


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_nan_among_data_that_come_one_by_one_is_refused(compiled):
    data = tensor(np.array([0.5, math.nan, 1.0]))

    def density(loc):
        return sum(dist.Normal(loc, 1.0).log_prob(data[t]) for t in range(3))

    fn = compile(density) if compiled else density
    for _ in range(2):
        with pytest.raises(DomainError, match="outside the support") as caught:
            fn(tensor(0.0))
        assert caught.value.got == "nan"


def test_an_indefinite_covariance_names_its_least_eigenvalue():
    with pytest.raises(DomainError) as caught:
        dist.MultivariateNormal(tensor([0.0, 0.0]), tensor([[1.0, 2.0], [2.0, 1.0]]))
    assert "least eigenvalue -1" in caught.value.got and "scale_tril" in caught.value.fix


def test_weights_that_are_all_zero_are_refused():
    with pytest.raises(DomainError) as caught:
        dist.Categorical(tensor([[0.5, 0.5], [0.0, 0.0]]))
    assert "index (1,)" in caught.value.got and "positive weight" in caught.value.expected


def test_a_value_outside_the_support_names_value_and_cure():
    with pytest.raises(DomainError) as caught:
        dist.Gamma(2.0, 1.0).log_prob(tensor([1.0, -2.0, 3.0]))
    e = caught.value
    assert "Gamma.log_prob" in e.subject and e.expected == "values in nonnegative"
    assert e.got == "-2 at index (1,), the first of 1 bad among 3"
    with pytest.raises(DomainError) as caught:
        dist.Normal().log_prob(tensor(math.nan))
    assert "mask" in caught.value.fix


def test_validation_is_switched_per_instance_per_block_and_for_all():
    bad = lambda **options: dist.Normal(0.0, -1.0, **options)
    assert bad(validate_args=False).scale.item() == -1.0
    with dist.validation_enabled(False):
        assert bad().scale.item() == -1.0
        with pytest.raises(DomainError):
            bad(validate_args=True)
    with pytest.raises(DomainError):
        bad()
    try:
        Distribution.set_default_validate_args(False)
        assert bad().scale.item() == -1.0
    finally:
        dist.enable_validation(True)


def test_validation_is_restored_after_an_error_inside_the_block():
    with pytest.raises(ZeroDivisionError), dist.validation_enabled(False):
        _ = 1 / 0
    with pytest.raises(DomainError):
        dist.Normal(0.0, -1.0)


def test_rsample_of_a_discrete_distribution_says_what_to_do():
    with pytest.raises(NotDifferentiableError) as caught:
        dist.Poisson(2.0).rsample()
    assert "Poisson" in caught.value.got and "score-function" in caught.value.fix


def test_what_a_distribution_lacks_is_said_by_name():
    with pytest.raises(NotImplementedError, match="ImproperUniform has no icdf"):
        dist.ImproperUniform(constraints.real).icdf(0.5)
    with pytest.raises(NotImplementedError, match="ImproperUniform has no sampler"):
        dist.ImproperUniform(constraints.real).sample()


# ------------------------------------------------------------------------------ dtypes


def test_python_numbers_are_weak_and_exact():
    d = dist.Normal(0.1, 5.0)
    x = np.array(0.3)
    exact = -0.5 * ((x - 0.1) / 5.0) ** 2 - math.log(5.0) - 0.5 * math.log(2 * math.pi)
    assert_close(d.log_prob(tensor(x)), exact, rtol=1e-15)
    assert d.log_prob(tensor([1.0, 2.0])).dtype == float32
    assert d.log_prob(tensor(np.array([1.0, 2.0]))).dtype == float64
    assert d.sample((3,)).dtype == float32
    assert d.mean.dtype == float32
    with default_dtype_as(float64):
        assert d.sample((3,)).dtype == float64


def test_a_tensor_parameter_decides_the_dtype_of_draws():
    assert dist.Normal(tensor(0.0), 1.0).sample().dtype == float32
    assert dist.Normal(tensor(np.zeros(2)), 1.0).sample().dtype == float64
    assert dist.Normal(tensor([0, 1]), 1.0).sample().dtype == float32
    assert dist.Categorical(tensor([0.5, 0.5])).sample().dtype == np.int64


def test_integer_observations_are_counted_in_the_dtype_of_the_parameters():
    rate = tensor(np.array(3.7))
    counts = tensor([0, 5, 1000])
    expected = [k * math.log(3.7) - 3.7 - math.lgamma(k + 1) for k in (0, 5, 1000)]
    assert_close(dist.Poisson(rate).log_prob(counts), np.array(expected), rtol=1e-14)


def test_numbers_lists_and_arrays_are_values():
    d = dist.Normal(0.0, 1.0)
    assert_close(d.log_prob(0.0), -0.5 * math.log(2 * math.pi))
    assert d.log_prob([0.0, 1.0]).shape == (2,)
    assert d.log_prob(np.zeros((2, 1))).dtype == float64


# ------------------------------------------------------------------------------ draws and shapes


def test_calling_a_distribution_draws_with_a_gradient_where_there_is_one():
    loc = tensor([1.0, 2.0], requires_grad=True)
    x = dist.Normal(loc, 1.0)((3,))
    assert x.shape == (3, 2) and x.requires_grad
    assert_close(grad(x.sum(), [loc])[0], [3.0, 3.0])
    assert not dist.Poisson(loc.exp())().requires_grad
    assert not dist.Normal(loc, 1.0).sample().requires_grad
    assert not dist.Delta(loc).sample().requires_grad


def test_draws_come_from_the_default_generator_unless_told():
    manual_seed(3)
    a = dist.Normal(0.0, 1.0).sample((4,))
    manual_seed(3)
    assert (dist.Normal(0.0, 1.0).sample((4,)) == a).numpy().all()
    before = default_generator.get_state()
    dist.Normal(0.0, 1.0).sample((4,), generator=Generator(0))
    assert default_generator.get_state() == before


def test_expand_is_lazy_and_can_be_repeated():
    d = dist.Normal(tensor([0.0, 1.0, 2.0]), 1.0)
    wide = d.expand((4, -1)).expand((2, 4, 3))
    assert wide.batch_shape == (2, 4, 3) and wide.loc.shape == (3,)
    assert wide.mean.shape == (2, 4, 3) == wide.entropy().shape
    assert wide.log_prob(0.0).shape == (2, 4, 3)
    joint = wide.to_event(2)
    assert joint.batch_shape == (2,) and joint.event_shape == (4, 3)
    assert_close(joint.log_prob(wide.mean), wide.log_prob(wide.mean).sum((-2, -1)))


def test_to_event_of_all_dims_and_of_none():
    d = dist.Normal(tensor([[0.0, 1.0]]), 1.0)
    assert d.to_event().event_shape == (1, 2) and d.to_event().event_dim == 2
    assert d.to_event(0) is d


def test_a_scalar_expanded_to_an_event_sums_every_term():
    joint = dist.Normal(0.0, 1.0).expand((3,)).to_event(1)
    assert_close(joint.log_prob(np.zeros(3)), -1.5 * math.log(2 * math.pi))


def test_alternatives_are_computed_from_the_one_given():
    p = tensor(np.array([0.2, 0.9]))
    d = dist.Bernoulli(p)
    assert_close(d.logits, np.log(p.numpy() / (1 - p.numpy())))
    assert_close(dist.Bernoulli(logits=d.logits).probs, p)
    cov = tensor(np.array([[2.0, 0.6], [0.6, 1.0]]))
    zero = tensor(np.zeros(2))
    m = dist.MultivariateNormal(zero, cov)
    assert_close(m.scale_tril @ m.scale_tril.mT, cov)
    assert_close(m.precision_matrix, np.linalg.inv(cov.numpy()))
    by_precision = dist.MultivariateNormal(zero, precision_matrix=m.precision_matrix)
    assert_close(by_precision.covariance_matrix, cov)
    assert_close(by_precision.variance, [2.0, 1.0])


def test_perplexity_is_the_exponential_of_the_entropy():
    assert_close(dist.Categorical(tensor(np.ones(4))).perplexity(), 4.0)


def test_an_attribute_that_is_no_field_is_an_attribute_error():
    with pytest.raises(AttributeError, match="rate"):
        _ = dist.Normal(0.0, 1.0).rate


@pytest.mark.parametrize("given", ["probs", "logits"])
@pytest.mark.parametrize(
    "batch, dim", [((), -1), ((), -3), ((3,), -2), ((2, 1, 3), -2), ((2, 1), -1)]
)
def test_masses_of_all_categories_are_those_one_by_one(given, batch, dim):
    rng = np.random.default_rng(0)
    weights = tensor(rng.random((*batch, 4)) + 0.1)
    fn = dist.Categorical(
        weights if given == "probs" else None, None if given == "probs" else weights
    )
    values = tensor(np.arange(4).reshape(4, *(1,) * (-dim - 1)))
    assert_close(fn.log_prob_of_all(dim), fn.log_prob(values))
    wide = fn.expand((5, *batch)) if dim != -1 - len(batch) else fn
    assert_close(wide.log_prob_of_all(dim), wide.log_prob(values))


def test_a_number_outside_the_bounds_of_one_batch_element_is_named_with_its_place():
    with pytest.raises(DomainError, match=r"outside the support") as caught:
        dist.Uniform(np.array([0.0, 4.0]), np.array([9.0, 5.0])).log_prob(2.0)
    assert "2 at index (1,), the first of 1 bad among 2" in caught.value.got
