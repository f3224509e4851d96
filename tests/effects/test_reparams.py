"""Reparameterisations keep the joint law of the named values."""

import math

import numpy as np
import pytest
import scipy.fft
from scipy import special, stats

from probtorch.distributions import constraints
from probtorch.distributions.beta import Dirichlet
from probtorch.distributions.directional import ProjectedNormal
from probtorch.distributions.heavy_tailed import StudentT
from probtorch.distributions.normal import HalfNormal, Normal
from probtorch.distributions.relaxed import RelaxedOneHotCategorical
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.registry import biject_to
from probtorch.distributions.transforms.rotations import HaarTransform
from probtorch.distributions.transforms.scalar import AffineTransform, ExpTransform
from probtorch.distributions.uniform import Uniform
from probtorch.effects.further_reparams import (
    DiscreteCosineReparam,
    ExplicitReparam,
    GumbelSoftmaxReparam,
    HaarReparam,
    ProjectedNormalReparam,
    StudentTReparam,
    UnitJacobianReparam,
)
from probtorch.effects.handlers import condition, scope, seed, substitute, trace
from probtorch.effects.params import get_param_store
from probtorch.effects.plates import plate
from probtorch.effects.primitives import param, sample
from probtorch.effects.reparam_strategies import AutoReparam
from probtorch.effects.reparams import LocScaleReparam, TransformReparam, reparam
from probtorch.effects.trace import plate_info
from probtorch.errors import ArgumentError, ModelError
from probtorch.tensor import tensor


def model():
    mu = sample("mu", Normal(3.0, 1.0))
    tau = sample("tau", HalfNormal(2.0))
    with plate("school", 4):
        return sample("theta", Normal(mu, tau))


@pytest.mark.parametrize("c", [0.0, 0.3, 1.0, None])
def test_decentred_density_is_the_old_one_times_the_jacobian(c):
    # theta = loc + scale**(1 - c) * (z - c * loc), so p(z) = p(theta) * scale**(1 - c) per element.
    z = np.array([0.4, -1.0, 2.0, 0.1])
    fixed = {"mu": 1.5, "tau": 0.7, "theta_decentered": z}
    changed = reparam(model, {"theta": LocScaleReparam(c)})
    tr = trace(substitute(changed, fixed, strict=True)).get_trace()
    used = 0.5 if c is None else c
    theta = 1.5 + 0.7 ** (1 - used) * (z - used * 1.5)
    np.testing.assert_allclose(tr.returned.detach().numpy(), theta, rtol=1e-6)
    want = stats.norm(1.5, 0.7).logpdf(theta).sum() + 4 * (1 - used) * math.log(0.7)
    got = tr["theta_decentered"].compute_log_prob_sum().item()
    assert math.isclose(got, want, rel_tol=1e-6)


def test_non_centred_site_has_constant_parameters():
    tau = tensor(0.7, requires_grad=True)
    fixed = {"mu": 1.5, "tau": tau}
    changed = seed(reparam(model, {"theta": LocScaleReparam(0.0)}), rng_seed=0)
    tr = trace(substitute(changed, fixed)).get_trace()
    assert not tr["theta_decentered"].compute_log_prob_sum().requires_grad
    assert tr["theta"]["value"].requires_grad


def test_learned_centring_is_a_parameter_in_the_unit_interval():
    trace(reparam(model, {"theta": LocScaleReparam()})).get_trace()
    store = get_param_store()
    assert list(store) == ["theta_centered"] and store["theta_centered"].item() == 0.5
    assert store.get_state()["constraints"]["theta_centered"] == constraints.unit_interval


def test_reparameterised_site_is_deterministic_and_keeps_its_plate():
    tr = trace(reparam(model, {"theta": LocScaleReparam(0.0)})).get_trace()
    assert list(tr) == ["mu", "tau", "school", "theta_decentered", "theta"]
    assert tr["theta"].kind == "deterministic" and tr["theta"]["value"].shape == (4,)
    assert plate_info(tr).dims["theta"] == plate_info(tr).dims["theta_decentered"] == ("school",)


def test_event_dims_survive():
    def vector():
        return sample("x", Normal(np.zeros(3), 2.0).to_event(1))

    tr = trace(reparam(vector, {"x": LocScaleReparam(0.0)})).get_trace()
    assert tr["x_decentered"].fn.event_shape == (3,) and tr.returned.shape == (3,)
    assert tr["x_decentered"].compute_log_prob().shape == ()


def test_config_can_be_a_function_and_never_meets_its_own_sites():
    def config(site):
        return LocScaleReparam(0.0) if isinstance(site.fn, Normal) else None

    tr = trace(reparam(model, config)).get_trace()
    assert list(tr) == ["mu_decentered", "mu", "tau", "school", "theta_decentered", "theta"]


def test_trace_inside_sees_the_auxiliary_sites_too():
    with reparam(config={"theta": LocScaleReparam(0.0)}), trace() as tr:
        model()
    assert "theta_decentered" in tr and tr["theta"].kind == "deterministic"


def test_scope_inside_prefixes_once():
    changed = reparam(scope(model, prefix="a"), {"a/theta": LocScaleReparam(0.0)})
    assert "a/theta_decentered" in trace(changed).get_trace()


def test_observed_site_cannot_be_reparameterised():
    changed = reparam(condition(model, {"theta": np.zeros(4)}), {"theta": LocScaleReparam(0.0)})
    with pytest.raises(ModelError, match=r"'theta' cannot[\s\S]*latent[\s\S]*observed[\s\S]*fix"):
        changed()


def test_family_without_loc_cannot_be_decentred():
    with pytest.raises(ModelError, match=r"'tau' cannot be decentred[\s\S]*HalfNormal[\s\S]*fix"):
        reparam(model, {"tau": LocScaleReparam(0.0)})()


def test_transform_reparam_draws_the_base_and_transforms_it():
    def fn():
        base = Normal(np.array([0.3, -1.0]), 0.5)
        with plate("rows", 3):
            return sample("x", TransformedDistribution(base, ExpTransform()).to_event(1))

    z = np.linspace(-1.0, 1.0, 6).reshape(3, 2)
    changed = reparam(fn, {"x": TransformReparam()})
    tr = trace(substitute(changed, {"x_base": z}, strict=True)).get_trace()
    np.testing.assert_allclose(tr.returned.numpy(), np.exp(z), rtol=1e-14)
    want = stats.norm([0.3, -1.0], 0.5).logpdf(z).sum(-1)
    np.testing.assert_allclose(tr["x_base"].compute_log_prob().numpy(), want, rtol=1e-14)
    assert tr["x"].event_dim == 1 and plate_info(tr).dims["x"] == ("rows",)


def test_site_without_transforms_cannot_be_taken_apart():
    with pytest.raises(ModelError, match=r"'mu' has no transforms[\s\S]*Normal[\s\S]*fix"):
        reparam(model, {"mu": TransformReparam()})()


def test_bad_arguments_are_refused():
    with pytest.raises(ArgumentError, match=r"in \[0, 1\][\s\S]*2[\s\S]*non-centred"):
        LocScaleReparam(2.0)
    with pytest.raises(ArgumentError, match=r"config[\s\S]*None[\s\S]*reparam\(model"):
        reparam(model)
    with pytest.raises(ArgumentError, match=r"'auto'[\s\S]*choose_reparam"):
        reparam(model, config="auto")


def test_any_object_with_apply_is_a_reparameterisation():
    class Sum:
        def apply(self, site):
            parts = [sample(f"{site.name}_{i}", Normal(0.0, 1.0)) for i in range(2)]
            return parts[0] + parts[1]

    def fn():
        return sample("x", Normal(0.0, math.sqrt(2.0))) + param("w", tensor(0.0))

    assert list(trace(reparam(fn, {"x": Sum()})).get_trace()) == ["x_0", "x_1", "x", "w"]


def density(model, fixed):
    """Log density of all latent sites at fixed values, and the value of the site x."""
    tr = trace(substitute(model, fixed, strict=True)).get_trace()
    logs = [tr[n].compute_log_prob_sum().item() for n in tr if tr[n].kind == "sample"]
    return sum(logs), tr["x"]["value"].detach().numpy()


SERIES = np.array([0.3, -1.2, 0.7, 2.0, 0.1])
FLAT = Uniform(-1.0, 3.0).expand((4,)).to_event(1)
WALK = Normal(tensor(np.array([0.1, 0.2, 0.3, 0.4, 0.5])), 1.3).to_event(1)


@pytest.mark.parametrize(
    "change, suffix, matrix",
    [
        (DiscreteCosineReparam(), "dct", scipy.fft.dct(np.eye(5), norm="ortho", axis=0)),
        (HaarReparam(), "haar", None),
        (UnitJacobianReparam(HaarTransform(flip=True)), "transformed", None),
        (ExplicitReparam(AffineTransform(1.0, 2.0, 1)), "base", np.eye(5) / 2),
    ],
    ids=["dct", "haar", "unit", "explicit"],
)
def test_transformed_coordinates_keep_the_law_of_the_site(change, suffix, matrix):
    changed = reparam(lambda: sample("x", WALK), {"x": change})
    got, x = density(changed, {f"x_{suffix}": tensor(SERIES)})
    jacobian = 5 * math.log(2.0) if suffix == "base" else 0.0
    assert math.isclose(got, WALK.log_prob(tensor(x)).item() + jacobian, rel_tol=1e-9)
    if matrix is not None:
        shift = 1.0 if suffix == "base" else 0.0
        np.testing.assert_allclose(matrix @ (x - shift), SERIES, rtol=1e-9)


@pytest.mark.parametrize("change", [HaarReparam(), DiscreteCosineReparam()], ids=["haar", "dct"])
@pytest.mark.parametrize("law", [FLAT, Dirichlet(tensor([1.0, 2.0, 3.0]))], ids=str)
def test_sites_with_bounds_are_mixed_on_the_real_line(change, law):
    free = biject_to(law.support)
    series = tensor(np.array([0.3, -1.2, 0.7, 2.0])[: free.inv(law.sample()).shape[0]])
    name = f"x_{change.suffix}"
    changed = reparam(lambda: sample("x", law), {"x": change})
    got, x = density(changed, {name: series})
    mixed = change.transform(free.inv(tensor(x)))
    np.testing.assert_allclose(mixed.numpy(), series.numpy(), rtol=1e-9)
    slope = free.log_abs_det_jacobian(free.inv(tensor(x)), tensor(x)).sum()
    assert math.isclose(got, (law.log_prob(tensor(x)) + slope).item(), rel_tol=1e-9)


def test_a_student_t_is_a_normal_of_drawn_precision():
    law = StudentT(tensor(np.array(3.0)), 0.5, 2.0)
    changed = reparam(lambda: sample("x", law), {"x": StudentTReparam()})
    # Integrated over the precision, by Gauss-Legendre in its quantiles.
    nodes, weights = np.polynomial.legendre.leggauss(200)
    precisions = stats.gamma(1.5, scale=1 / 1.5).ppf(0.5 * (nodes + 1))
    total = 0.0
    for precision, weight in zip(precisions, weights, strict=True):
        fixed = {"x_gamma": tensor(precision), "x": tensor(np.array(1.7))}
        tr = trace(substitute(changed, fixed, strict=True)).get_trace()
        total += 0.5 * weight * math.exp(tr["x"].compute_log_prob_sum().item())
        gamma = tr["x_gamma"].compute_log_prob_sum().item()
        assert math.isclose(gamma, stats.gamma(1.5, scale=1 / 1.5).logpdf(precision), rel_tol=1e-6)
    assert math.isclose(total, stats.t(3, 0.5, 2.0).pdf(1.7), rel_tol=1e-4)


def test_what_returns_a_distribution_takes_data_and_can_be_changed_again():
    def fn():
        with plate("rows", 3):
            sample("x", StudentT(3.0, 0.5, 2.0), obs=np.array([0.1, 2.0, -1.0]))
            return sample("z", StudentT(3.0, 0.5, 2.0))

    changes = {"x": StudentTReparam(), "z": StudentTReparam()}
    tr = trace(reparam(reparam(fn, changes), {"z": LocScaleReparam(0.0)})).get_trace()
    assert list(tr) == ["rows", "x_gamma", "x", "z_gamma", "z_decentered", "z"]
    assert tr["x"].observed and isinstance(tr["x"].fn, Normal)
    want = stats.norm(0.5, 2.0 / np.sqrt(tr["x_gamma"].value.numpy())).logpdf([0.1, 2.0, -1.0])
    np.testing.assert_allclose(tr["x"].compute_log_prob().numpy(), want, rtol=1e-6)


@pytest.mark.parametrize(
    "law, change, name, shape",
    [
        (StudentT(3.0, np.zeros(2), 1.0).to_event(1), StudentTReparam(), "x_gamma", (4, 2)),
        (
            RelaxedOneHotCategorical(0.7, logits=np.zeros((2, 3))).to_event(1),
            GumbelSoftmaxReparam(),
            "x_uniform",
            (4, 2, 3),
        ),
        (
            ProjectedNormal(np.ones((2, 3))).to_event(1),
            ProjectedNormalReparam(),
            "x_normal",
            (4, 2, 3),
        ),
    ],
    ids=["student", "gumbel", "projected"],
)
def test_each_row_of_a_plate_has_noise_of_its_own(law, change, name, shape):
    def fn():
        with plate("rows", 4):
            sample("x", law)

    tr = trace(reparam(fn, {"x": change})).get_trace()
    assert tr[name].value.shape == shape and len(np.unique(tr[name].value.numpy())) > 4


def test_relaxed_categories_are_made_of_uniform_noise():
    logits = np.log([0.2, 0.5, 0.3])
    law = RelaxedOneHotCategorical(tensor(np.array(0.7)), logits=tensor(logits))
    changed = reparam(lambda: sample("x", law), {"x": GumbelSoftmaxReparam()})
    u = np.array([0.3, 0.8, 0.1])
    _, x = density(changed, {"x_uniform": tensor(u)})
    np.testing.assert_allclose(x, special.softmax((logits - np.log(-np.log(u))) / 0.7), rtol=1e-9)


def test_a_direction_is_that_of_a_normal_vector():
    mean = np.array([1.0, -0.5, 2.0])
    law = ProjectedNormal(tensor(mean))
    changed = reparam(lambda: sample("x", law), {"x": ProjectedNormalReparam()})
    z = np.array([0.3, 1.0, -0.2])
    found, x = density(changed, {"x_normal": tensor(z)})
    np.testing.assert_allclose(x, (mean + z) / np.linalg.norm(mean + z), rtol=1e-12)
    assert math.isclose(found, stats.norm.logpdf(z).sum(), rel_tol=1e-12)


def test_auto_reparam_chooses_by_the_kind_of_site():
    def several():
        mu = sample("mu", Normal(0.0, 1.0))
        sample("tau", HalfNormal(1.0))
        sample("t", StudentT(3.0, mu, 2.0))
        sample("y", TransformedDistribution(Normal(0.0, 1.0), ExpTransform()))
        sample("data", Normal(mu, 1.0), obs=tensor(0.3))

    names = ["mu_decentered", "mu", "tau", "t_decentered", "t", "y_base", "y", "data"]
    assert list(trace(AutoReparam(0.0)(several)).get_trace()) == names
    assert list(trace(reparam(several, config=AutoReparam(0.0))).get_trace()) == names


@pytest.mark.parametrize(
    "change, expected",
    [
        (StudentTReparam(), "a StudentT"),
        (GumbelSoftmaxReparam(), "RelaxedOneHotCategorical"),
        (HaarReparam(), "at least 1"),
    ],
)
def test_sites_of_another_kind_are_refused(change, expected):
    with pytest.raises(ModelError, match=expected):
        reparam(model, {"mu": change})()
