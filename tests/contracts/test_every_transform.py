"""Laws that hold for every transform: inverse, log-determinant, codomain, shapes, recording.

The log-determinant is compared with the determinant of the Jacobian by autograd. Onto sets of lower
dimension than their arrays (a simplex, a Cholesky factor) the Jacobian is that of the free
coordinates, which each entry names.
"""

import copy
import inspect
import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import scipy.stats

import probtorch.distributions.transforms as tr
from probtorch.autograd import grad
from probtorch.compiler.record.record import record
from probtorch.core.rng import manual_seed
from probtorch.distributions import biject_to, constraints, transform_to
from probtorch.distributions.normal import Normal
from probtorch.errors import ArgumentError, ShapeError
from probtorch.nn import DenseNN, Module
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.distributions.test_flows import CONDITIONAL


@dataclass
class Case:
    """A transform, the shape of one argument, and the free coordinates of its result.

    Attributes
    ----------
    transform : Transform
    shape : tuple
        Event shape of an argument.
    free : callable
        From the result (one event) to a list of its coordinates that determine the others.
    positive : bool
        Whether arguments must be positive.
    """

    transform: Any
    shape: tuple = ()
    free: Any = lambda y: y.reshape(-1).unbind()
    positive: bool = False

    @property
    def id(self):
        return repr(self.transform)[:60]


def first(y):
    return y[:-1].unbind()


def lower(below):
    def free(y):
        n = y.shape[-1]
        return [y[i, j] for i, j in zip(*np.tril_indices(n, -below))]

    return free


def helmert_coordinates(y):
    return (y @ tensor(scipy.linalg.helmert(y.shape[-1]).T.copy())).unbind()


def helmert_matrix(y):
    rows, columns = (tensor(scipy.linalg.helmert(n).copy()) for n in y.shape)
    return (rows @ y @ columns.mT).reshape(-1).unbind()


def first_rows(y):
    return y[:-1].mT.reshape(-1).unbind()


def coefficients(n):
    """Fourier coefficients in real coordinates; an even size need not be told."""
    shape = (n,) if n % 2 else None
    back = tr.PackRealFastFourierCoefficientsTransform(shape).inv
    return tr.ComposeTransform([tr.RealFastFourierTransform(shape), back])


def inverse_factor():
    return tr.ComposeTransform([tr.LowerCholeskyTransform(), tr.CholeskyToInvCholeskyTransform()])


def chained():
    return tr.ComposeTransform(
        [
            tr.AffineTransform(0.3, -1.7),
            tr.SigmoidTransform(),
            tr.AffineTransform(tensor([1.0, 2.0]).double(), 3.0),
        ]
    )


def covariance(i):
    factors = np.array([[1.3, 0.0, 0.0], [0.4, 0.8, 0.0], [-0.2, 0.5, 1.1]])
    return tensor(factors @ factors.T + i * np.eye(3))


def flow(make, *args, **kwargs):
    """A transform with parameters in general position."""
    manual_seed(3)
    made = make(*args, **kwargs).double()
    rng = np.random.default_rng(3)
    for p in made.parameters():
        p.data.add_(tensor(0.3 * rng.standard_normal(p.shape)))
    return made


def factor():
    return tensor([[1.5, 0.0], [0.7, -0.4]]).double()


def normalisation():
    made = flow(tr.batchnorm, 3).eval()
    made.moving_mean.copy_(tensor([0.3, -0.2, 1.0]))
    made.moving_variance.copy_(tensor([0.5, 2.0, 1.3]))
    return made


def stack():
    parts = [tr.planar(3), tr.permute(3), tr.spline_coupling(3, count_bins=4, bound=2.0)]
    return tr.ComposeTransformModule([*parts, tr.AffineTransform(0.5, 2.0, 1)])


THRESHOLDS = tr.SimplexToOrderedTransform(0.4)

FLOWS = [
    Case(flow(tr.affine_autoregressive, 3), (3,)),
    Case(flow(tr.affine_autoregressive, 3, [8, 8], stable=True), (3,)),
    Case(flow(tr.affine_autoregressive, 3).inv, (3,)),
    Case(flow(tr.iterated, 2, tr.affine_autoregressive, 3), (3,)),
    Case(flow(tr.affine_coupling, 3), (3,)),
    Case(flow(tr.affine_coupling, [3, 2], dim=-2), (3, 2)),
    Case(flow(tr.spline, 3, count_bins=5, bound=1.5), (3,)),
    Case(flow(tr.spline_coupling, 3), (3,)),
    Case(flow(tr.SplineCoupling, 3, 1, DenseNN(1, [6], [8, 8, 6]), 4, identity=True), (3,)),
    Case(flow(tr.spline_autoregressive, 3, count_bins=4), (3,)),
    Case(flow(tr.planar, 3), (3,)),
    Case(flow(tr.planar, 1), (1,)),
    Case(flow(tr.sylvester, 3), (3,)),
    Case(flow(tr.radial, 3), (3,)),
    Case(flow(tr.householder, 3), (3,)),
    Case(flow(tr.matrix_exponential, 3), (3,)),
    Case(flow(tr.generalized_channel_permute, 3), (3, 2, 2)),
    Case(flow(tr.GeneralizedChannelPermute, 3, [1, 2, 0]), (3, 2, 1)),
    Case(flow(tr.neural_autoregressive, 2, width=3), (2,)),
    Case(flow(tr.neural_autoregressive, 2, activation="tanh", width=3), (2,)),
    Case(flow(tr.neural_autoregressive, 2, activation="ELU", width=3), (2,)),
    Case(flow(tr.neural_autoregressive, 2, activation="LeakyReLU", width=3), (2,)),
    Case(flow(tr.polynomial, 2, [4]), (2,)),
    Case(flow(tr.block_autoregressive, 2, [3, 2]), (2,)),
    Case(flow(tr.block_autoregressive, 2, [3], "ELU", "gated"), (2,)),
    Case(flow(tr.block_autoregressive, 2, [3], "LeakyReLU", "normal"), (2,)),
    Case(flow(tr.continuous_flow, 2, [3], 0.2, rtol=1e-11, atol=1e-12), (2,)),
    Case(normalisation(), (3,)),
    Case(flow(stack), (3,)),
]

CASES = [
    *FLOWS,
    Case(tr.ExpTransform()),
    Case(tr.SoftplusTransform()),
    Case(tr.SigmoidTransform()),
    Case(tr.TanhTransform()),
    Case(tr.ELUTransform()),
    Case(tr.LeakyReLUTransform()),
    Case(tr.LowerCholeskyAffine(tensor([0.5, -1.0]).double(), factor()), (2,)),
    Case(tr.AffineTransform(0.5, -2.0)),
    Case(tr.AffineTransform(tensor([0.5, 1.0]).double(), tensor([2.0, -3.0]).double(), 1), (2,)),
    Case(tr.PowerTransform(1.7), positive=True),
    Case(tr.PowerTransform(tensor(-0.6).double()), positive=True),
    Case(tr.IntervalTransform(-1.0, 2.5)),
    Case(tr.IntervalTransform(tensor(-1.0).double(), tensor(4.0).double())),
    Case(tr.StickBreakingTransform(), (3,), first),
    Case(tr.OrderedTransform(), (3,)),
    Case(tr.PositiveOrderedTransform(), (3,)),
    Case(tr.PermuteTransform([2, 0, 1]), (3,)),
    Case(tr.PermuteTransform([2, 0, 1], dim=-2), (3, 2)),
    Case(tr.ZeroSumTransform(), (3,), helmert_coordinates),
    Case(tr.LowerCholeskyTransform(), (6,), lower(0)),
    Case(tr.SoftplusLowerCholeskyTransform(), (6,), lower(0)),
    Case(tr.UnitLowerCholeskyTransform(), (6,), lower(1)),
    Case(tr.CorrCholeskyTransform(), (6,), lower(1)),
    Case(tr.PositiveDefiniteTransform(), (6,), lower(0)),
    Case(biject_to(constraints.corr_matrix), (6,), lower(1)),
    Case(chained(), (2,)),
    Case(tr.ComposeTransform([tr.ReshapeTransform((4,), (2, 2)), tr.ExpTransform()]), (4,)),
    Case(tr.IndependentTransform(tr.ExpTransform(), 2), (2, 3)),
    Case(tr.ReshapeTransform((2, 3), (6,)), (2, 3)),
    Case(tr.CatTransform([tr.ExpTransform(), tr.TanhTransform()], -1, [2, 1]), (3,)),
    Case(tr.StackTransform([tr.ExpTransform(), tr.AffineTransform(1.0, 2.0)], -1), (2,)),
    Case(tr.DiscreteCosineTransform(), (5,)),
    Case(tr.DiscreteCosineTransform(-2, 1.0), (4, 2)),
    Case(tr.HaarTransform(), (7,)),
    Case(tr.HaarTransform(-2, flip=True), (4, 2)),
    Case(tr.SinhArcsinhTransform(0.3, 1.4)),
    Case(tr.PositivePowerTransform(1.7)),
    Case(tr.CumulativeDistributionTransform(Normal(tensor(0.25), tensor(2.0)))),
    Case(tr.ComposeTransform([tr.StickBreakingTransform(), THRESHOLDS]), (3,)),
    Case(tr.ComposeTransform([tr.StickBreakingTransform(), tr.PartialSumsTransform()]), (3,)),
    Case(coefficients(5), (5,)),
    Case(coefficients(4), (4,)),
    Case(tr.ComposeTransform([tr.ComplexTransform(), tr.ComplexTransform().inv]), (2,)),
    Case(tr.FillTriangularTransform(), (6,), lower(0)),
    Case(inverse_factor(), (6,), lower(0)),
    Case(tr.LambertWTailTransform(0.3, 2.0, 0.4)),
    Case(tr.ScaledUnitLowerCholeskyTransform(), (6,), lower(0)),
    Case(tr.L1BallTransform(), (3,)),
    Case(tr.L1BallTransform(), (1,)),
    Case(tr.PositiveDefiniteCirculantTransform(), (3,), lambda y: y[:3].unbind()),
    Case(tr.PositiveDefiniteCirculantTransform(6), (4,), lambda y: y[:4].unbind()),
    Case(tr.TransposeTransform(), (2, 3)),
    Case(tr.RecursiveLinearTransform(factor()), (4, 2)),
    Case(tr.RecursiveLinearTransform(factor(), tensor([0.5, -1.0]).double()), (3, 2)),
    Case(tr.ZeroSumTransform(2), (3, 2), helmert_matrix),
    Case(biject_to(constraints.offset_multiplier(0.5, 2.0))),
    Case(biject_to(constraints.column_stochastic_matrix), (2, 3), first_rows),
    Case(tr.ExpTransform().inv, positive=True),
    Case(tr.ComposeTransform([tr.TanhTransform()]).inv.inv),
]

# Not bijective, or a map between matrices that is covered as the inverse inside another entry.
ELSEWHERE = {
    "AbsTransform",
    "PartialSumsTransform",
    "SimplexToOrderedTransform",
    "SoftmaxTransform",
    "CholeskyToInvCholeskyTransform",
    "CholeskyTransform",
    "CorrMatrixCholeskyTransform",
    "Transform",
    # Of complex numbers: inside other entries, which have real ones at both ends.
    "ComplexTransform",
    "PackRealFastFourierCoefficientsTransform",
    "RealFastFourierTransform",
    # Another name of CorrCholeskyTransform.
    "CorrLCholeskyTransform",
    # Augmented, not bijective: below.
    "AngleTransform",
    "UnitVectorTransform",
    # A transform for every context: tests/distributions/test_flows.py.
    "ConditionalTransform",
}
EACH = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)


def arguments(case, batch=(), seed=0, spread=1.0):
    x = spread * np.random.default_rng(seed).standard_normal((*batch, *case.shape))
    return tensor(np.exp(0.3 * x) if case.positive else x)


def test_every_transform_has_an_entry():
    classes = {n for n in tr.__all__ if inspect.isclass(getattr(tr, n)) and n.endswith("Transform")}
    kinds = {type(c.transform).__name__ for c in CASES}
    assert classes - kinds - ELSEWHERE == set()
    shown = {n: getattr(tr, n) for n in tr.__all__ if inspect.isclass(getattr(tr, n))}
    modules = {n for n, cls in shown.items() if issubclass(cls, tr.TransformModule)}
    assert modules - kinds == {"TransformModule"}
    others = {n: cls for n, cls in shown.items() if issubclass(cls, tr.Transform)}
    others = {n for n, cls in others.items() if not n.endswith("Transform") and n not in modules}
    # Not bijective, and of directions: below. Another name of PermuteTransform.
    assert others - kinds == {"Normalize", "Permute"}
    # Those with a context, whose laws are in tests/distributions/test_flows.py.
    conditional = {n for n, cls in shown.items() if issubclass(cls, tr.ConditionalTransform)}
    bases = {"ConditionalTransform", "ConditionalTransformModule"}
    # Those of images and of differential equations have tests of their own there.
    elsewhere = {"ConditionalContinuousFlow", "ConditionalGeneralizedChannelPermute"}
    met = {type(make(2, 1)).__name__ for make in CONDITIONAL.values()} - {"_ConditionalInverse"}
    assert conditional - bases == met | elsewhere
    assert {f"Conditional{n}" for n in modules} <= conditional


@EACH
def test_the_inverse_undoes_the_transform(case):
    x = arguments(case, (4,))
    y = case.transform(x)
    assert_close(case.transform.inv(y), x, rtol=1e-9, atol=1e-9)
    assert case.transform.inv.inv is case.transform or case.transform.inv.inv == case.transform


@EACH
def test_the_log_determinant_is_that_of_the_jacobian(case):
    for seed in range(3):
        x = arguments(case, seed=seed).requires_grad_()
        y = case.transform(x)
        rows = []
        for out in case.free(y):
            (g,) = grad(out, [x], retain_graph=True, allow_unused=True)
            rows.append(np.zeros(x.numel()) if g is None else g.numpy().reshape(-1))
        _, expected = np.linalg.slogdet(np.array(rows))
        ladj = case.transform.log_abs_det_jacobian(x, y)
        extra = len(case.shape) - case.transform.domain.event_dim
        total = ladj.sum(tuple(range(-extra, 0))) if extra else ladj
        assert_close(total, expected, rtol=1e-8, atol=1e-9)
        again, both = case.transform.call_and_ladj(x)
        assert_close(again, y)
        assert_close(both, ladj)
        assert_close(case.transform.inv.log_abs_det_jacobian(y, x), -ladj.detach())
        back, minus = case.transform.inv.call_and_ladj(y)
        assert_close(back.detach(), x.detach(), rtol=1e-8, atol=1e-9)
        assert_close(minus.detach(), -ladj.detach(), rtol=1e-7, atol=1e-8)


@EACH
def test_results_lie_in_the_codomain(case):
    y = case.transform(arguments(case, (50,), spread=2.0))
    codomain = case.transform.codomain
    assert codomain.check(y).numpy().all()
    assert case.transform.domain.check(arguments(case, (50,))).numpy().all()


@EACH
def test_shapes_are_foretold(case):
    for batch in [(), (3,), (2, 3)]:
        x = arguments(case, batch)
        shape = tuple(x.shape)
        y = case.transform(x)
        assert case.transform.forward_shape(shape) == tuple(y.shape)
        assert case.transform.inverse_shape(tuple(y.shape)) == shape
        n = case.transform.domain.event_dim
        ladj = case.transform.log_abs_det_jacobian(x, y)
        assert tuple(ladj.shape) == shape[: len(shape) - n]


@EACH
def test_a_transform_is_recorded_without_guards(case):
    rec, (y, ladj) = record(case.transform.call_and_ladj, [arguments(case)])
    assert rec.graph.guards == [] and rec.unsupported == []
    assert_close(y, case.transform(arguments(case)))
    assert ladj.dtype == np.float64


@EACH
def test_float32_stays_float32(case):
    x, transform = arguments(case).float(), case.transform
    if isinstance(transform, Module):
        transform = copy.deepcopy(transform).float()
    y = transform(x)
    if not any(getattr(v, "dtype", None) == np.float64 for v in bounds(transform)):
        assert y.dtype == np.float32
        assert transform.log_abs_det_jacobian(x, y).dtype == np.float32


def bounds(transform):
    parts = getattr(transform, "parts", [transform])
    return [getattr(p, n) for p in parts for n in p._settings]


@EACH
def test_transforms_pickle(case):
    twin = pickle.loads(pickle.dumps(case.transform))
    x = arguments(case)
    assert_close(twin(x), case.transform(x))


# ------------------------------------------------------------------------------ registries

SETS = [
    (constraints.real, ()),
    (constraints.positive, ()),
    (constraints.nonnegative, ()),
    (constraints.softplus_positive, ()),
    (constraints.greater_than(2.0), ()),
    (constraints.greater_than(tensor([0.5, -1.0]).double()), (2,)),
    (constraints.greater_than_eq(-1.0), ()),
    (constraints.less_than(3.0), ()),
    (constraints.less_than_eq(3.0), ()),
    (constraints.unit_interval, ()),
    (constraints.interval(-1.0, 4.0), ()),
    (constraints.interval(tensor([0.5, -1.0]).double(), 2.0), (2,)),
    (constraints.half_open_interval(1.0, 4.0), ()),
    (constraints.left_open_interval(0.0, 1.0), ()),
    (constraints.open_interval(-2.0, 4.0), ()),
    (constraints.circular, ()),
    (constraints.offset_multiplier(1.0, tensor(3.0).double()), ()),
    (constraints.sphere, (3,)),
    (constraints.l1_ball, (3,)),
    (constraints.row_stochastic_matrix, (2, 3)),
    (constraints.column_stochastic_matrix, (3, 2)),
    (constraints.positive_definite_circulant_vector, (5,)),
    (constraints.PositiveDefiniteCirculantVector(4), (4,)),
    (constraints.scaled_unit_lower_cholesky, (3, 3)),
    (constraints.zero_sum(2), (3, 4)),
    (constraints.real_vector, (3,)),
    (constraints.real_matrix, (3, 2)),
    (constraints.simplex, (4,)),
    (constraints.ordered_vector, (3,)),
    (constraints.positive_ordered_vector, (3,)),
    (constraints.ordered_within(constraints.unit_interval), (3,)),
    (constraints.ordered_within(constraints.interval(-1.0, tensor([[4.0]]).double())), (3,)),
    (constraints.ordered_within(constraints.greater_than(2.0)), (3,)),
    (constraints.zero_sum(1), (4,)),
    (constraints.lower_cholesky, (3, 3)),
    (constraints.softplus_lower_cholesky, (3, 3)),
    (constraints.unit_lower_cholesky, (3, 3)),
    (constraints.corr_cholesky, (4, 4)),
    (constraints.positive_definite, (3, 3)),
    (constraints.positive_semidefinite, (3, 3)),
    (constraints.corr_matrix, (3, 3)),
    (constraints.independent(constraints.positive, 1), (3,)),
    (constraints.independent(constraints.simplex, 1), (2, 3)),
    (constraints.cat([constraints.positive, constraints.real], -1, [1, 2]), (3,)),
    (constraints.stack([constraints.unit_interval, constraints.positive], -1), (2,)),
]


@pytest.mark.parametrize("registry", [biject_to, transform_to], ids=lambda r: r.name)
@pytest.mark.parametrize("constraint, event", SETS, ids=lambda c: str(c)[:40])
def test_registered_transforms_reach_the_set_from_everywhere(registry, constraint, event):
    transform = registry(constraint)
    shape = transform.inverse_shape((200, *event))
    x = tensor(3.0 * np.random.default_rng(0).standard_normal(shape))
    y = transform(x)
    assert tuple(y.shape) == (200, *event)
    assert constraint.check(y).numpy().all()
    assert registry is transform_to or transform.bijective or transform.augmented
    assert_close(transform(transform.inv(y)), y, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "constraint",
    [constraints.boolean, constraints.nonnegative_integer, constraints.one_hot],
    ids=repr,
)
def test_discrete_sets_have_no_transform_and_the_error_says_so(constraint):
    with pytest.raises(ArgumentError) as caught:
        biject_to(constraint)
    assert repr(constraint) in caught.value.subject
    assert "discrete" in caught.value.got and "enumerate" in caught.value.fix


def test_a_new_constraint_can_be_registered_and_is_then_found():
    class Even(constraints.Constraint):
        def check(self, value):
            return value == value

    with pytest.raises(ArgumentError, match="even"):
        biject_to(Even())
    biject_to.register(Even, lambda c: tr.ExpTransform())
    assert isinstance(biject_to(Even()), tr.ExpTransform)


# ------------------------------------------------------------------------------ augmented


def plane(step=0.05, reach=9.0):
    x = np.arange(-reach, reach, step) + 0.5 * step
    return np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2), step**2


def test_the_length_of_a_vector_integrates_out_of_an_angle():
    x, area = plane()
    y, log_det = tr.AngleTransform().call_and_ladj(tensor(x))
    assert constraints.circular.check(y).numpy().all() and np.abs(y.numpy()).max() <= math.pi
    weight = np.exp(log_det.numpy()) * area
    # The integral over angles of 1, and of a von Mises density times its cosine.
    assert_close(weight.sum(), 2 * math.pi, rtol=1e-6)
    density = scipy.stats.vonmises(2.0, loc=0.5).pdf(y.numpy())
    expected = scipy.special.iv(1, 2.0) / scipy.special.iv(0, 2.0)
    assert_close((weight * density * np.cos(y.numpy() - 0.5)).sum(), expected, rtol=1e-6)


@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_the_length_of_a_vector_integrates_out_of_a_direction(n):
    # By importance sampling from a normal: the surface of the sphere, and the mean of u_1^2.
    x = 1.6 * np.random.default_rng(n).standard_normal((200_000, n))
    u, log_det = tr.UnitVectorTransform().call_and_ladj(tensor(x))
    normal = scipy.stats.norm(0.0, 1.6).logpdf(x).sum(-1)
    weight = np.exp(log_det.numpy() - normal)
    surface = 2 * math.pi ** (n / 2) / math.gamma(n / 2)
    error = weight.std() / math.sqrt(len(x))
    assert abs(weight.mean() - surface) < 5 * error and error < 0.01 * surface
    assert_close((weight * u.numpy()[:, 0] ** 2).mean() / weight.mean(), 1 / n, rtol=0.05)


@pytest.mark.parametrize(
    "transform", [tr.UnitVectorTransform(), tr.AngleTransform()], ids=["direction", "angle"]
)
def test_augmented_transforms_have_a_right_inverse_and_are_recorded(transform):
    x = tensor(np.random.default_rng(0).standard_normal((5, 2)))
    y = transform(x)
    assert_close(transform(transform.inv(y)), y, rtol=1e-12)
    assert transform.forward_shape((5, 2)) == tuple(y.shape)
    assert transform.inverse_shape(tuple(y.shape)) == (5, 2)
    assert transform.augmented and not transform.bijective
    rec, (again, ladj) = record(transform.call_and_ladj, [x])
    assert rec.graph.guards == [] and rec.unsupported == []
    assert_close(again, y)
    assert_close(ladj, transform.log_abs_det_jacobian(x, y))


def test_the_direction_of_nothing_is_the_first():
    zero = tensor(np.zeros(3)).requires_grad_()
    for transform in (tr.UnitVectorTransform(), tr.Normalize(), tr.Normalize(1.0)):
        y = transform(zero)
        assert_close(y, np.array([1.0, 0.0, 0.0]))
        (slope,) = grad(y.sum(), [zero])
        assert np.isfinite(slope.numpy()).all()
    x = tensor([3.0, -1.0])
    assert_close(tr.Normalize(1.0)(x), np.array([0.75, -0.25]), rtol=1e-6)


def test_what_directions_cannot_take_is_refused():
    with pytest.raises(ArgumentError, match="p above 0"):
        tr.Normalize(0.0)
    with pytest.raises(ShapeError, match="vectors of 2"):
        tr.AngleTransform().forward_shape((3,))


def test_coefficients_are_those_of_numpy_and_pack_into_real_numbers():
    for n in (4, 5):
        x = np.random.default_rng(n).standard_normal((3, n))
        transform = tr.RealFastFourierTransform((n,))
        y = transform(tensor(x))
        assert_close(y, np.fft.rfft(x), rtol=1e-12)
        assert constraints.independent(constraints.complex, 1).check(y).numpy().all()
        pack = tr.PackRealFastFourierCoefficientsTransform((n,))
        packed = pack.inv(y)
        found = np.fft.rfft(x)
        imaginary = found.imag[:, 1 : (n + 1) // 2]
        assert_close(packed, np.concatenate([found.real, imaginary], -1), rtol=1e-12, atol=1e-14)
        assert_close(pack(packed), y, rtol=1e-12, atol=1e-14)


def test_sizes_of_coefficients_are_checked():
    with pytest.raises(ShapeError, match=r"even size[\s\S]*5 numbers[\s\S]*\(\(5,\)\)"):
        tr.RealFastFourierTransform()(tensor(np.zeros(5)))
    with pytest.raises(ArgumentError, match="one dim"):
        tr.PackRealFastFourierCoefficientsTransform((3, 4))
    with pytest.raises(ArgumentError, match="transform_ndims"):
        tr.RealFastFourierTransform(None, 2)
    with pytest.raises(ShapeError, match="real and imaginary"):
        tr.ComplexTransform().forward_shape((3,))
    pair = biject_to(constraints.complex)(tensor(np.array([1.0, -2.0])))
    assert pair.item() == 1 - 2j


def test_the_factor_of_an_inverse_is_that():
    x = tr.LowerCholeskyTransform()(tensor(np.random.default_rng(0).standard_normal((2, 6))))
    y = tr.CholeskyToInvCholeskyTransform()(x).numpy()
    matrices = x.numpy() @ np.swapaxes(x.numpy(), -1, -2)
    assert_close(y @ np.swapaxes(y, -1, -2), np.linalg.inv(matrices), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("y", [-1e6, -3.0, 0.0, 1e-8, 50.0, 1e12])
def test_tails_come_back_by_lamberts_function(y):
    x = tr.LambertWTailTransform(0.0, 1.0, 0.5).inv(tensor(np.array(y)))
    expected = np.sign(y) * np.sqrt(scipy.special.lambertw(0.5 * y * y).real / 0.5)
    assert_close(x, expected, rtol=1e-10)


def test_circulant_rows_are_odd_unless_a_size_says_otherwise():
    transform = biject_to(constraints.positive_definite_circulant_vector)
    row = transform(tensor([0.3, -1.0, 0.2]).double())
    matrix = scipy.linalg.circulant(row.numpy())
    assert_close(
        np.sort(np.linalg.eigvalsh(matrix)), np.sort(np.exp([0.3, -1.0, -1.0, 0.2, 0.2])), rtol=1e-6
    )
    with pytest.raises(ShapeError, match=r"odd[\s\S]*PositiveDefiniteCirculantVector\(4\)"):
        transform.inverse_shape((4,))
    with pytest.raises(ShapeError, match="3 numbers for a row of 4"):
        tr.PositiveDefiniteCirculantTransform(4)(tensor([1.0, 2.0]))


# ------------------------------------------------------------------------------ extremes


def test_the_l1_ball_is_reached_without_loss_at_extremes():
    x = tensor(np.array([-40.0, 25.0, 0.3]))
    y, log_det = tr.L1BallTransform().call_and_ladj(x)
    assert constraints.l1_ball.check(y).item() and np.isfinite(log_det.item())
    # 1 - tanh(s) is 2 exp(-2 s) to rounding.
    assert_close(y[2], np.tanh(0.3) * 4 * np.exp(-2 * 65.0), rtol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 10])
@pytest.mark.parametrize("spread", [30.0, 100.0])
def test_stick_breaking_is_exact_at_extremes(size, spread):
    x = tensor(spread * np.random.default_rng(size).choice([-1.0, 1.0], size))
    transform = tr.StickBreakingTransform()
    y, ladj = transform.call_and_ladj(x)
    assert constraints.simplex.check(y).item()
    # An independent form of the determinant: the product of all parts.
    assert_close(ladj, np.log(y.numpy()).sum(), rtol=1e-12)
    assert_close(transform.inv(y), x, rtol=1e-12)


def test_a_simplex_part_lost_in_float32_comes_back_infinite_not_wrong():
    transform = tr.StickBreakingTransform()
    y = transform(tensor([-200.0, 1.0]))
    x = transform.inv(y).numpy()
    assert y.numpy()[0] == 0.0 and x[0] == -np.inf
    assert_close(x[1], 1.0, rtol=1e-5)


@pytest.mark.parametrize("x", [-700.0, -40.0, 0.0, 40.0, 700.0])
def test_sigmoid_and_tanh_log_derivatives_keep_their_tails(x):
    # sigmoid' = 1 / (2 + 2 cosh x), tanh' = 1 / cosh(x)^2: both even.
    log_cosh = abs(x) + np.log1p(np.exp(-2 * abs(x))) - np.log(2)
    t = tensor(np.array(x))
    assert_close(
        tr.SigmoidTransform().log_abs_det_jacobian(t, None), -abs(x) - 2 * np.log1p(np.exp(-abs(x)))
    )
    assert_close(tr.TanhTransform().log_abs_det_jacobian(t, None), -2 * log_cosh, atol=1e-12)


@pytest.mark.parametrize("x", [20.0, 300.0])
def test_correlation_factors_survive_extreme_arguments(x):
    transform = tr.CorrCholeskyTransform()
    y, ladj = transform.call_and_ladj(tensor(np.array([x, -x, x, x, -x, 0.3])))
    assert constraints.corr_cholesky.check(y).item()
    assert np.isfinite(ladj.item())
    assert_close((y * y).sum(-1), np.ones(4))


def test_sizes_that_fill_no_triangle_are_refused():
    with pytest.raises(ShapeError) as caught:
        tr.LowerCholeskyTransform()(tensor([1.0, 2.0]))
    assert "n (n + 1) / 2" in caught.value.expected and caught.value.got == "2"


def test_half_open_maps_share_their_code_but_state_their_set():
    assert repr(biject_to(constraints.nonnegative).codomain) == "nonnegative"
    assert biject_to(constraints.positive) is biject_to(constraints.positive)


@pytest.mark.parametrize(
    "transform",
    [getattr(tr, name) for name in tr.__all__ if isinstance(getattr(tr, name), tr.Transform)]
    + [case.transform for case in CASES],
    ids=repr,
)
def test_the_inverse_of_the_inverse_is_the_transform(transform):
    assert transform.inv.inv is transform
    assert transform.inv == transform.inv


def test_the_identity_is_its_own_inverse():
    assert tr.identity_transform.inv == tr.identity_transform


@pytest.mark.parametrize("kind, lengths", [("cat", [2, 1]), ("cat", [1, 1]), ("stack", None)])
@pytest.mark.parametrize("dim", [1, 0, -1, -2])
def test_pieces_of_one_event_have_one_log_determinant_and_others_one_each(kind, lengths, dim):
    parts = [
        tr.IndependentTransform(tr.ExpTransform(), 1),
        tr.IndependentTransform(tr.AffineTransform(1.0, -2.0), 1),
    ]
    shape = [4, 4]
    shape[dim] = 2 if lengths is None else sum(lengths)
    x = tensor(np.random.default_rng(0).normal(size=shape))
    if kind == "stack" and dim in (1, -1):
        # The slices are vectors themselves: no batch dim is left.
        t, both = tr.StackTransform(parts, dim), lambda a, b: a.sum() + b.sum()
    elif kind == "stack":
        t, both = tr.StackTransform(parts, dim), lambda a, b: np.stack([a.sum(), b.sum()])
    else:
        t = tr.CatTransform(parts, dim, lengths)
        join = np.add if dim in (1, -1) else lambda a, b: np.concatenate([a, b])
        both = lambda a, b: join(a.sum(-1), b.sum(-1))
    first, rest = np.split(x.numpy(), [1 if lengths is None else lengths[0]], dim)
    expected = both(first, np.full(rest.shape, math.log(2.0)))
    y = t(x)
    assert_close(t.log_abs_det_jacobian(x, y), expected)
    assert_close(t.inv(y), x)
    inside = t.codomain.check(y)
    assert inside.shape == t.log_abs_det_jacobian(x, y).shape and inside.numpy().all()
