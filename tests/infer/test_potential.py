"""`Target`: densities against SciPy, log-dets against the autodiff Jacobian, refusals."""

import re

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, log_expit

from probtorch.autograd.tape import grad
from probtorch.config import configure
from probtorch.core.dispatch import wrap
from probtorch.distributions import (
    Beta,
    Categorical,
    Delta,
    Dirichlet,
    Exponential,
    HalfNormal,
    ImproperUniform,
    LKJCholesky,
    LogNormal,
    Normal,
    Poisson,
    Uniform,
    constraints,
)
from probtorch.effects import deterministic, factor, handlers, param, plate, sample
from probtorch.errors import ArgumentError, DomainError, InferenceError, ModelError, ShapeError
from probtorch.infer import Target
from probtorch.infer.potential import ModelTarget
from probtorch.ops.arithmetic import where
from probtorch.ops.exponentials import exp
from probtorch.tensor import tensor

POINTS = np.random.default_rng(0).uniform(-2, 2, size=(3, 10))


def at(target, k=0):
    return POINTS[k, : target.dim]


def jacobian(target, q, pick):
    """Jacobian of the picked elements of site "x" by one backward pass per element."""
    leaf = wrap(q.copy())
    leaf.requires_grad = True
    x = pick(target.constrain(leaf)["x"])
    rows = [grad(x[i], leaf, retain_graph=True)[0].array for i in range(len(q))]
    return np.stack(rows)


def whole(x):
    return x.reshape((-1,))


def but_last(x):
    return x[..., :-1].reshape((-1,))


def below_diagonal(x):
    n = x.shape[-1]
    return x[tuple(tensor(i) for i in np.tril_indices(n, -1))]


@pytest.mark.parametrize(
    "fn, pick",
    [
        (LogNormal(0.3, 0.7), whole),
        (HalfNormal(2.0).expand((3,)).to_event(1), whole),
        (Beta(2.0, 3.0), whole),
        (Uniform(-1.0, 3.0), whole),
        (Dirichlet(tensor([1.0, 2.0, 3.0])), but_last),
        (ImproperUniform(constraints.ordered_vector, (), (3,)), whole),
        (ImproperUniform(constraints.positive_ordered_vector, (), (3,)), whole),
        (LKJCholesky(3, 2.0), below_diagonal),
        (Normal(0.0, 1.0), whole),
    ],
    ids=lambda x: type(x).__name__ if hasattr(x, "log_prob") else "",
)
def test_log_density_is_that_of_the_value_plus_the_log_det_of_the_jacobian(fn, pick):
    def model():
        sample("x", fn)

    target = Target.from_model(model)
    for k in range(3):
        q = at(target, k)
        value = target.constrain(wrap(q))["x"]
        _, log_det = np.linalg.slogdet(jacobian(target, q, pick))
        expected = float(fn.log_prob(value).array) + log_det
        np.testing.assert_allclose(target.value_and_grad(q)[0], expected, rtol=1e-10, atol=1e-10)


def test_support_may_depend_on_another_site():
    def model():
        a = sample("a", Uniform(0.0, 1.0))
        sample("b", Uniform(0.0, 1.0 - a))

    target = Target.from_model(model)
    for q in POINTS[:, :2]:
        a = expit(q[0])
        expected = log_expit(q).sum() + log_expit(-q).sum()  # log(1 - a) cancels
        np.testing.assert_allclose(target.value_and_grad(q)[0], expected, rtol=1e-12)
        values = target.constrain(wrap(q))
        np.testing.assert_allclose(values["b"].array, (1 - a) * expit(q[1]), rtol=1e-12)


def test_float32_data_are_met_in_float64():
    y = tensor([0.1, 0.2, 0.3])
    assert y.array.dtype == np.float32

    def with_argument(y):
        mu = sample("mu", Normal(0.0, 1.0))
        with plate("data", 3):
            sample("y", Normal(mu, 0.01), obs=y)

    def with_closure():
        with_argument(y)

    exact = stats.norm.logpdf(0.5) + stats.norm.logpdf(y.numpy().astype(float), 0.5, 0.01).sum()
    for target in (Target.from_model(with_argument, y), Target.from_model(with_closure)):
        # In float32 the error would be about 1e-7 of 5000.
        assert abs(target.value_and_grad([0.5])[0] - exact) < 1e-9


def test_masks_scales_and_factors_enter_the_density():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        with handlers.scale(scale=3.0), plate("row", 2):
            sample("y", Normal(x, 1.0), obs=tensor([1.0, 2.0]))
        with handlers.mask(mask=tensor([True, False])), plate("other", 2):
            sample("z", Normal(x, 1.0), obs=tensor([0.5, np.nan]))
        factor("f", -x * x)

    target = Target.from_model(model)
    norm = stats.norm.logpdf
    x = 0.7
    expected = norm(x) + 3 * norm([1, 2], x).sum() + norm(0.5, x) - x * x
    value, gradient = target.value_and_grad([x])
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, [-x + 3 * (3 - 2 * x) + (0.5 - x) - 2 * x], rtol=1e-12)


def test_python_branch_on_a_latent_value_is_right_on_both_sides():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        if x > 0.0:
            factor("f", -x)
        else:
            factor("f", x * 3.0)

    target = Target.from_model(model)
    for x in (0.5, -0.5, 1.5, -1.5):
        expected = stats.norm.logpdf(x) + (-x if x > 0 else 3 * x)
        value, gradient = target.value_and_grad([x])
        np.testing.assert_allclose([value, *gradient], [expected, -x + (-1 if x > 0 else 3)])


def test_density_without_the_compiler_is_the_same():
    def model():
        x = sample("x", Exponential(1.0))
        sample("y", Normal(x, 1.0), obs=tensor(1.0))

    compiled = Target.from_model(model).value_and_grad([0.3])
    with configure(jit=False):
        target = Target.from_model(model)
        eager = target.value_and_grad([0.3])
        many = target.constrain_many(np.full((2, 20, 1), 0.3))
    np.testing.assert_allclose(eager[0], compiled[0], rtol=1e-14)
    np.testing.assert_allclose(eager[1], compiled[1], rtol=1e-14)
    np.testing.assert_allclose(many["x"], np.exp(0.3))


def test_point_mass_is_not_latent():
    def model():
        x = sample("x", Delta(tensor(2.0)))
        sample("y", Normal(x, 1.0))

    target = Target.from_model(model)
    assert list(target.slots) == ["y"]
    np.testing.assert_allclose(target.value_and_grad([2.5])[0], stats.norm.logpdf(0.5))


def test_parameters_are_constants():
    def model():
        w = param("target_test_w", tensor(3.0))
        sample("x", Normal(w, 1.0))

    np.testing.assert_allclose(
        Target.from_model(model).value_and_grad([2.0])[0], stats.norm.logpdf(1)
    )


def test_handlers_around_the_making_of_a_target_stay_in_force():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        sample("y", Normal(x, 1.0))

    with handlers.condition(data={"y": 2.0}), handlers.trace():
        target = Target.from_model(model)
    assert list(target.slots) == ["x"]
    expected = stats.norm.logpdf(0.5) + stats.norm.logpdf(1.5)
    np.testing.assert_allclose(target.value_and_grad([0.5])[0], expected)


# ------------------------------------------------------------------------------ names and labels


def schools(y, sigma, names=None, unused="text"):
    mu = sample("mu", Normal(0.0, 5.0))
    tau = sample("tau", HalfNormal(5.0))
    with plate("school", coords=["A", "B", "C"]):
        theta = sample("theta", Normal(mu, tau))
        deterministic("double", theta * 2.0)
        sample("y", Normal(theta, sigma), obs=y)


Y, SIGMA = np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.5, 2.0])


def test_plates_become_dims_with_coords():
    target = Target.from_model(schools, Y, sigma=SIGMA)
    assert target.dims == {"theta": ("school",), "double": ("school",), "y": ("school",)}
    assert target.coords == {"school": ["A", "B", "C"]}
    assert target.name == "schools"
    assert target.deterministic == ("double",)


def test_data_are_kept_by_name():
    target = Target.from_model(schools, Y, sigma=SIGMA)
    assert list(target.observed_data) == ["y"] and list(target.constant_data) == ["sigma"]
    np.testing.assert_array_equal(target.observed_data["y"], Y)
    np.testing.assert_array_equal(target.constant_data["sigma"], SIGMA)


def test_argument_that_shares_its_name_with_a_site_gets_another():
    def model(x):
        x = sample("x", Normal(tensor(x).sum(), 1.0))

    assert list(Target.from_model(model, [1.0, 2.0]).constant_data) == ["x_data"]


def test_plate_called_like_a_dim_of_results_gets_another_name():
    def model():
        with plate("draw", 2):
            sample("x", Normal(0.0, 1.0))

    assert Target.from_model(model).dims == {"x": ("draw_dim",)}


def test_unconstrain_undoes_constrain():
    target = Target.from_model(schools, Y, SIGMA)
    q = at(target)
    values = {k: v for k, v in target.constrain(wrap(q)).items() if k != "double"}
    np.testing.assert_allclose(target.unconstrain(values), q, rtol=1e-12)
    np.testing.assert_allclose(target.pack(target.unpack(wrap(q))), q, rtol=0)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 2), (2, 1), (0,)], ids=str)
def test_points_of_another_shape_are_refused(shape):
    def pair():
        x = sample("x", Normal(0.0, 1.0))
        sample("y", Normal(x, 1.0))

    named = Target.from_model(pair)
    plain = Target.from_density(lambda q: -(q * q).sum(), dim=2)
    for target in named, plain:
        for ask in target.value_and_grad, target.logdensity, target.constrain:
            point = tensor(np.zeros(shape))
            with pytest.raises(ShapeError, match=r"shape \(2,\)[\s\S]*got:[^\n]*shape"):
                ask(point if ask != target.value_and_grad else point.numpy())
        assert (
            target.value_and_grad(np.zeros(2))[0] == target.logdensity(tensor(np.zeros(2))).item()
        )


def test_constrain_many_keeps_leading_dims():
    target = Target.from_model(schools, Y, SIGMA)
    draws = np.random.default_rng(1).normal(size=(2, 300, target.dim))
    many = target.constrain_many(draws)
    assert {k: v.shape for k, v in many.items()} == {
        "mu": (2, 300), "tau": (2, 300), "theta": (2, 300, 3), "double": (2, 300, 3),
    }  # fmt: skip
    np.testing.assert_allclose(many["tau"], np.exp(draws[..., 1]))
    np.testing.assert_allclose(many["double"], 2 * draws[..., 2:])


def test_constrain_many_checks_no_parameters_again():
    """What only checks need, here a factor and a sum over time, is no part of the program."""

    def model():
        x = sample("x", Normal(0.0, 1.0).expand([2]).to_event(1))
        size = deterministic("size", x.abs())
        scale = size[0]
        for _ in range(3):
            scale = scale + x[1]
        sample("y", Normal(0.0, scale), obs=tensor(1.0))

    target, draws = Target.from_model(model), np.full((30, 2), [0.5, -1.0])
    with pytest.raises(DomainError):
        target.constrain(wrap(draws[0]))
    for some in (draws, draws[:2]):
        np.testing.assert_array_equal(target.constrain_many(some)["size"], np.abs(some))
    assert "demand" not in target._constrain_map._program.explain()


def test_constrain_many_of_a_model_with_branches_is_right():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        deterministic("size", x if x > 0.0 else -x)

    draws = np.random.default_rng(2).normal(size=(50, 1))
    np.testing.assert_allclose(
        Target.from_model(model).constrain_many(draws)["size"], np.abs(draws[:, 0])
    )


def test_log_likelihood_of_many_draws_is_that_of_scipy():
    target = Target.from_model(schools, Y, SIGMA)
    draws = np.random.default_rng(3).normal(size=(2, 40, target.dim))
    found = target.log_likelihood(draws)["y"]
    np.testing.assert_allclose(found, stats.norm.logpdf(Y, draws[..., 2:], SIGMA), rtol=1e-12)


# ------------------------------------------------------------------------------ densities by hand


def test_hand_written_density_of_a_vector():
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 3)
    value, gradient = target.value_and_grad([1.0, 2.0, 3.0])
    assert value == -7.0
    np.testing.assert_array_equal(gradient, [-1.0, -2.0, -3.0])
    assert target.constrain_many(np.zeros((2, 30, 3)))["x"].shape == (2, 30, 3)


def test_potential_of_named_variables():
    def potential(z):
        return 0.5 * (z["a"] - 1.0) ** 2 + (z["b"] ** 2).sum()

    target = Target.from_potential(potential, {"a": 0.0, "b": np.zeros(2)})
    value, gradient = target.value_and_grad([3.0, 1.0, 2.0])
    assert value == -7.0 and target.name == "potential"
    np.testing.assert_array_equal(gradient, [-2.0, -2.0, -4.0])
    np.testing.assert_array_equal(target.pack({"b": [5.0, 6.0], "a": 4.0}), [4.0, 5.0, 6.0])


def test_density_without_a_dimension_is_refused():
    with pytest.raises(ArgumentError, match=r"(?s)expected: dim, or an example.*fix: .*dim=n"):
        Target.from_density(lambda q: q.sum())


# ------------------------------------------------------------------------------ refusals


def refused(error, model, *args):
    """The message with which making a target fails; it names this file."""
    with pytest.raises(error) as caught:
        Target.from_model(model, *args)
    message = str(caught.value)
    assert all(part in message for part in ("expected:", "got:", "fix:"))
    return message


def test_infinite_discrete_site_is_refused_with_a_way_out():
    def model():
        sample("n", Poisson(tensor(3.0)))

    message = refused(InferenceError, model)
    assert "'n'" in message and "Poisson" in message and "infinite" in message
    assert "marginalise" in message


def test_discrete_sites_alone_are_refused_with_a_way_out():
    message = refused(InferenceError, lambda: sample("z", Categorical(probs=tensor([0.5, 0.5]))))
    assert "'z'" in message and "infer_discrete(model)" in message


def test_model_without_latent_sites_says_what_was_found():
    def model():
        sample("y", Normal(0.0, 1.0), obs=tensor(1.0))

    message = refused(InferenceError, model)
    assert "no latent sites" in message and "observed sites 'y'" in message


def test_random_subsample_is_refused():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        with plate("data", 10, subsample_size=2):
            sample("y", Normal(x, 1.0), obs=tensor(1.0))

    message = refused(InferenceError, model)
    assert "plate 'data' draws 2 of 10 rows" in message and "subsample_size" in message


def test_chosen_subsample_is_allowed_and_scaled():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        with plate("data", 10, subsample=tensor([0, 1])):
            sample("y", Normal(x, 1.0), obs=tensor([1.0, 2.0]))

    expected = stats.norm.logpdf(0) + 5 * stats.norm.logpdf([1, 2]).sum()
    np.testing.assert_allclose(Target.from_model(model).value_and_grad([0.0])[0], expected)


def test_values_outside_any_plate_are_refused():
    def model(y):
        x = sample("x", Normal(0.0, 1.0))
        sample("y", Normal(x, tensor(np.ones(10))), obs=y)

    message = refused(ModelError, model, np.zeros(10))
    assert "site 'y' has 10 values outside any plate" in message


def test_site_that_comes_and_goes_is_refused():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        if x > 0.5:
            sample("late", Normal(0.0, 1.0))

    target = Target.from_model(model)
    with pytest.raises(ModelError, match="site 'late' was not there when inference began"):
        target.value_and_grad([1.0])

    def other():
        x = sample("x", Normal(0.0, 1.0))
        if x < 0.5:
            sample("early", Normal(0.0, 1.0))

    target = Target.from_model(other)
    with pytest.raises(ModelError, match="site 'early' was not met in this run"):
        target.value_and_grad([1.0, 0.0])


def test_site_that_changes_its_shape_is_refused():
    def model():
        n = 2 if float(sample("x", Normal(0.0, 1.0))) < 0.5 else 3
        with plate("row", n):
            sample("z", Normal(0.0, 1.0))

    target = Target.from_model(model)
    with pytest.raises(ModelError, match=r"(?s)site 'z' changed its shape.*\(2,\).*\(3,\)"):
        target.value_and_grad([1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    "values, error, words",
    [
        ({"mu": 0.0, "tau": 1.0, "thta": Y}, ModelError, "did you mean 'theta'"),
        ({"mu": 0.0, "tau": 1.0}, ModelError, "no value for site 'theta'"),
        ({"mu": 0.0, "tau": -1.0, "theta": Y}, DomainError, "-1"),
        ({"mu": 0.0, "tau": 1.0, "theta": Y[:2]}, ShapeError, "(3,)"),
        ({"mu": 0.0, "tau": 1.0, "theta": Y[:1]}, ShapeError, "got:      shape (1,)"),
        ({"mu": [0.0], "tau": 1.0, "theta": Y}, ShapeError, "expected: shape ()"),
    ],
)
def test_bad_values_are_refused_by_name(values, error, words):
    target = Target.from_model(schools, Y, SIGMA)
    with pytest.raises(error, match=re.escape(words)):
        target.unconstrain(values)


def test_one_number_is_the_value_of_all_elements():
    target = Target.from_model(schools, Y, SIGMA)
    values = {"mu": 0.0, "tau": 1.0}
    one, each = (target.unconstrain({**values, "theta": x}) for x in (2.0, np.full(3, 2.0)))
    np.testing.assert_array_equal(one, each)


def test_error_of_the_users_code_is_raised_as_it_is():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        if x > 0.5:
            raise LookupError("from the model")

    with pytest.raises(LookupError, match="from the model"):
        Target.from_model(model).value_and_grad([1.0])


def test_model_that_cannot_run_at_zero_is_found_elsewhere():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        sample("y", Normal(0.0, exp(where(x == 0.0, np.nan, x))), obs=tensor(1.0))

    assert Target.from_model(model).dim == 1


def test_sites_whose_spread_is_latent_are_the_centred_ones():
    def model():
        mu = sample("mu", Normal(0.0, 1.0))
        tau = sample("tau", HalfNormal(1.0))
        with plate("a", 3):
            sample("centred", Normal(mu, tau))
            sample("shifted", Normal(mu, 1.0))
            z = sample("z", Normal(0.0, 1.0))
        sample("vector", Normal(0.0, tau).expand([2]).to_event(1))
        sample("bounded", Uniform(0.0, tau))
        sample("share", Beta(1.0, tau))
        sample("y", Normal(mu + tau * z[0], tau), obs=tensor(1.0))

    target = Target.from_model(model)
    assert target.centred_sites(np.zeros(target.dim)) == ["centred", "vector"]


def test_centred_sites_are_looked_for_once_unless_the_model_branches(monkeypatch):
    def straight():
        sample("x", Normal(0.0, sample("s", HalfNormal(1.0))))

    def branching():
        s = sample("s", HalfNormal(1.0))
        sample("x", Normal(0.0, s if s > 1.0 else 1.0))

    looked, trace_at = [], ModelTarget.trace_at
    monkeypatch.setattr(
        ModelTarget, "trace_at", lambda self, q: looked.append(q) or trace_at(self, q)
    )
    for model, runs, below in ((straight, 1, ["x"]), (branching, 4, [])):
        target = Target.from_model(model)
        looked.clear()
        for log_scale in (1.0, -1.0):
            point = np.array([log_scale, 0.0])
            target.density.value_and_grad(point)
        for log_scale in (1.0, -1.0) * 2:
            found = target.centred_sites(np.array([log_scale, 0.0]))
            assert found == (["x"] if log_scale > 0.0 else below)
            found.append("changed")
        assert len(looked) == runs
