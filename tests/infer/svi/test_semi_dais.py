"""`AutoSemiDAIS`: rows moved by their own dynamics, weights that are right, subsamples."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

import probtorch
from probtorch.autograd.tape import grad
from probtorch.config import configure
from probtorch.core.rng import Generator
from probtorch.distributions import Bernoulli, LogNormal, Normal
from probtorch.effects import handlers, param, plate, sample
from probtorch.effects.params import ParamStore
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import (
    SVI,
    AutoDAIS,
    AutoGuideList,
    AutoNormal,
    AutoSemiDAIS,
    ImportanceWeightedELBO,
    Trace_ELBO,
    init_to_value,
)
from probtorch.infer.guides.annealing import AnnealingSteps
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.utils.data import DataLoader, TensorDataset
from tests.infer.svi.test_guides import fit

N, S, T = 6, 0.5, 0.7
Y = np.random.default_rng(0).normal(0.8, math.hypot(S, T), N)
DATA = tensor(Y)
MOVED = {"eta_init": 0.3, "eta_max": 0.5, "gamma_init": 0.6, "init_scale": 0.8}


def top():
    return sample("mu", Normal(0.0, 1.0))


def rows_of(mu, size=2):
    with plate("row", N, subsample_size=size) as rows:
        z = sample("z", Normal(mu, S))
        sample("y", Normal(z, T), obs=DATA[rows])


def model(size=2):
    rows_of(top(), size)


def exact():
    """Log evidence, and the best independent normal's bound; mean and covariance of mu, z."""
    covariance = 1.0 + np.eye(N) * (S**2 + T**2)
    _, log_det = np.linalg.slogdet(covariance)
    evidence = -0.5 * (N * math.log(2 * math.pi) + log_det + Y @ np.linalg.solve(covariance, Y))
    precision = np.diag(np.r_[1.0 + N / S**2, np.full(N, S**-2 + T**-2)])
    precision[0, 1:] = precision[1:, 0] = -(S**-2)
    _, log_det = np.linalg.slogdet(precision)
    lost = 0.5 * (np.log(np.diag(precision)).sum() - log_det)
    found = np.linalg.inv(precision)
    return evidence, evidence - lost, found @ np.r_[0.0, Y / T**2], found


# ---------------------------------------------------------------------------- weights and bounds


def positive(size=N):
    """Supports with Jacobians, a plate inside the plate, a vector: evidence as of `model`."""
    mu = top()
    with plate("row", N, size, dim=-1) as rows:
        z = sample("z", LogNormal(mu, S))
        sample("y", Normal(z.log(), T), obs=DATA[rows])
        with plate("inner", 2, dim=-2):
            sample(
                "w", Normal(0.1 * z.log()[..., None] + probtorch.zeros(2, size, 3), 0.8).to_event(1)
            )


def amortised(size=N):
    bend = param("bend", tensor(0.5).double())
    with plate("row", N, size, dim=-1) as rows:
        sample("z", LogNormal(bend * DATA[rows], 0.7))
        with plate("inner", 2, dim=-2):
            sample("w", Normal(0.05, 0.85).expand([2, size, 3]).to_event(1))


@pytest.mark.parametrize("local_guide", [None, amortised], ids=["normal", "given"])
def test_weights_are_right_whatever_the_parameters(local_guide):
    start = init_to_value(values={"mu": 0.5, "z": np.full(N, 1.6), "w": np.full((2, N, 3), 0.1)})
    guide = AutoSemiDAIS(
        positive, None, None, local_guide, K=3, init_loc_fn=start, subsample_plate="row", **MOVED
    )
    many = ImportanceWeightedELBO(num_particles=3000, vectorize_particles=True)
    svi = SVI(positive, guide, Adam({"lr": 0.0}), many, seed=0)
    found = np.exp([-svi.evaluate_loss() - exact()[0] for _ in range(8)])
    # A mean of 8: five of its standard errors are a false alarm in 1 of 600 seeds.
    assert abs(found.mean() - 1.0) < 5 * found.std(ddof=1) / math.sqrt(8)
    assert found.std(ddof=1) < 0.3


def on_all_rows(guide):
    """The guide with its parameters, in the model that works on all rows."""
    whole = AutoSemiDAIS(
        model, K=guide.steps.K, eta_init=0.1, eta_max=0.8, subsample_plate="row",
        use_global_dais_params=guide.use_global_dais_params,
    )  # fmt: skip
    whole.setup(N)
    whole.load_state_dict(guide.state_dict())
    return whole


def bounds(guide, times=40, particles=500, size=N):
    objective = Trace_ELBO(particles, vectorize_particles=True)
    svi = SVI(model, guide, Adam({"lr": 0.0}), objective, seed=1)
    found = [-svi.evaluate_loss(size) for _ in range(times)]
    return np.mean(found), np.std(found) / math.sqrt(times)


def test_subsamples_estimate_the_bound_of_all_rows_without_bias():
    guide = AutoSemiDAIS(model, K=2, eta_init=0.1, eta_max=0.8)
    with configure(jit=False):
        SVI(model, guide, Adam({"lr": 0.05}), seed=0).run(5, progress_bar=False)
    few, error = bounds(guide, 60, 200, size=2)
    all_rows, other = bounds(on_all_rows(guide))
    # Five standard errors: a false alarm in 1 of 10**5 seeds, nearly.
    assert abs(few - all_rows) < 5 * math.hypot(error, other)


@pytest.mark.parametrize(
    "shared", [pytest.param(True), pytest.param(False, marks=pytest.mark.slow)], ids=str
)
def test_a_fitted_guide_is_between_the_best_independent_normal_and_the_evidence(shared):
    guide = AutoSemiDAIS(model, K=4, eta_init=0.1, eta_max=0.8, use_global_dais_params=shared)
    objective = Trace_ELBO(10, vectorize_particles=True)
    result = fit(model, guide, 600 if shared else 3000, objective=objective, lr=0.05)
    assert result.svi.explain().startswith("SVI.step: 1 compiled path")
    evidence, best, mean, covariance = exact()
    found, error = bounds(on_all_rows(guide))
    # Five standard errors on either side: a false alarm in 1 of 10**6 seeds.
    assert best + 5 * error < found < evidence + 5 * error
    draws = guide.sample_posterior(4000, generator=Generator(0))
    x = np.column_stack([draws["mu"].numpy(), draws["z"].numpy()])
    sd = np.sqrt(np.diag(covariance))
    # Of draws the errors are 0.016 and 0.011; what is left is the guide's own, of a fit this short.
    assert (abs(x.mean(0) - mean) < 0.3 * sd).all()
    assert (abs(x.std(0) / sd - 1.0) < 0.3).all()
    # Rows follow what they share, which no independent normal knows of.
    assert (np.corrcoef(x.T)[0, 1:] > 0.3).all()


def test_steps_that_have_shrunk_to_nothing_grow_again():
    """As far down as a learning rate of 0.05 gets in a thousand steps, and up again."""
    steps = AnnealingSteps("guide", 3, eta_init=0.1, eta_max=0.8, gamma_init=0.9)
    store = ParamStore()
    with store.activate():
        steps.schedule("auto", 1, np.dtype(float))
        for name, to in (("auto_eta_0", -30.0), ("auto_eta_coeff", -20.0)):
            with probtorch.no_grad():
                store.unconstrained(name).fill_(to)
        found = steps.schedule("auto", 1, np.dtype(float)).etas
        assert 0.0 < found.min().item() < found.max().item() < 1e-12
        leaves = [store.unconstrained(name) for name in ("auto_eta_0", "auto_eta_coeff")]
        assert all(slope.item() > 0.0 for slope in grad(found.sum(), leaves))
        with probtorch.no_grad():  # and where rounding makes it the largest
            leaves[0].fill_(100.0)
        found = steps.schedule("auto", 1, np.dtype(float)).etas
        assert_allclose(found.detach().numpy(), 0.8)
        assert all(np.isfinite(slope.item()) for slope in grad(found.sum(), leaves))


def test_the_gradient_is_that_of_finite_differences():
    guide, store = (
        AutoSemiDAIS(model, K=2, init_loc_fn=init_to_value(values={"mu": 0.4}), **MOVED),
        ParamStore(),
    )

    def loss():
        with store.activate(), handlers.seed(rng_seed=3):
            return Trace_ELBO().differentiable_loss(model, guide)

    loss()
    leaves = {name: store.unconstrained(name) for name in store}
    assert {"mu_auto_scale", "auto_loc", "auto_eta_0", "auto_gamma"} <= set(leaves)
    slopes = grad(loss(), list(leaves.values()), allow_unused=True)
    moved = 0
    for (name, leaf), slope in zip(leaves.items(), slopes, strict=True):
        mine = np.zeros(leaf.shape) if slope is None else slope.detach().numpy()
        before = leaf.detach().numpy().copy()
        for at in np.ndindex(before.shape):
            quotient = 0.0
            for sign in (1.0, -1.0):
                after = before.copy()
                after[at] += sign * 1e-5
                with probtorch.no_grad():
                    leaf.copy_(tensor(after))
                quotient += sign * loss().item() / 2e-5
            with probtorch.no_grad():
                leaf.copy_(tensor(before))
            assert_allclose(mine[at], quotient, rtol=1e-5, atol=1e-7, err_msg=f"{name} {at}")
            moved += abs(quotient) > 1e-4
    # Two of six rows have a gradient, of loc, scale, masses and so on; none of the others has.
    assert moved >= 12


# ------------------------------------------------------------------------------------- the parts


def losses(guide, steps=4, **options):
    with configure(**options):
        svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO(), seed=3)
        return [svi.step() for _ in range(steps)]


def test_parts_as_numpyro_has_them_are_the_whole_model_and_compiled_steps_are_eager_ones():
    start = {"init_loc_fn": init_to_value(values={"mu": 0.4, "z": np.zeros(2)})}
    whole = losses(AutoSemiDAIS(model, K=2, **start))
    parts = AutoSemiDAIS(
        model, rows_of, AutoNormal(top, init_to_value(values={"mu": 0.4})), K=2, **start
    )
    alone = AutoSemiDAIS(model, K=2, **start)
    assert_allclose(losses(alone, jit=False), whole, rtol=1e-10)
    assert_allclose(losses(parts), whole, rtol=1e-10)


def test_one_plate_of_all_is_dais_with_steps_shared():
    def local():
        with plate("row", N):
            z = sample("z", Normal(0.0, S))
            sample("y", Normal(z, T), obs=DATA)

    guides = AutoDAIS(local, K=2), AutoSemiDAIS(local, K=2, use_global_dais_params=True)
    found = []
    for guide in guides:
        many = Trace_ELBO(2000, vectorize_particles=True)
        svi = SVI(local, guide, Adam({"lr": 0.0}), many, seed=3)
        found.append([svi.evaluate_loss() for _ in range(4)])
    # Their draws differ, their bounds do not: errors are 0.01, five of them 1 in 10**5 seeds.
    errors = [np.std(x, ddof=1) / 2 for x in found]
    assert abs(np.mean(found[0]) - np.mean(found[1])) < 10 * math.hypot(*errors) + 1e-3


# ------------------------------------------------------------------------------------- questions


def test_draws_are_of_all_rows_a_minibatch_at_a_time():
    guide = AutoSemiDAIS(lambda: positive(4), K=2)
    guide()
    draws = guide.sample_posterior((2, 5))
    assert draws["mu"].shape == (2, 5) and draws["w"].shape == (2, 5, 2, N, 3)
    assert draws["z"].shape == (2, 5, N) and (draws["z"].numpy() > 0.0).all()
    assert guide.sample_posterior()["w"].shape == (2, N, 3)
    low, middle, high = guide.quantiles([0.1, 0.5, 0.9])["z"].numpy()
    assert (low < middle).all() and (middle < high).all()
    assert_allclose(guide.median()["z"].numpy(), middle)
    with pytest.raises(InferenceError, match="closed form"):
        guide.get_posterior()
    names = {n: p.shape for n, p in guide.named_parameters()}
    assert names["auto_loc"] == (N, 7) and names["auto_gamma"] == (N,)


def test_rows_come_from_loaders_and_callers():
    def loaded(loader):
        mu = top()
        with plate("row", loader=loader) as (y,):
            sample("y", Normal(sample("z", Normal(mu, S)), T), obs=y)

    def chosen(rows):
        mu = top()
        with plate("row", N, subsample=rows):
            sample("y", Normal(sample("z", Normal(mu, S)), T), obs=DATA[rows])

    loader = DataLoader(TensorDataset(DATA), batch_size=4, generator=Generator(0))
    guide = AutoSemiDAIS(loaded, K=2)
    SVI(loaded, guide, Adam({"lr": 0.01}), seed=0).run(3, loader, progress_bar=False)
    assert guide.sample_posterior(7)["z"].shape == (7, N)
    plates = {"create_plates": lambda rows: plate("row", N, subsample=rows)}
    start = init_to_value(values={"z": np.zeros(2)})
    guide = AutoSemiDAIS(chosen, K=2, init_loc_fn=start, **plates)
    svi = SVI(chosen, guide, Adam({"lr": 0.5}), seed=0)
    first = svi.run(1, tensor([1, 4]), progress_bar=False).params["auto_loc"].numpy()[:, 0]
    assert set(np.flatnonzero(first != first[0])) == {1, 4}
    with pytest.raises(InferenceError, match="caller chooses") as error:
        guide.sample_posterior()
    assert "subsample_size" in error.value.fix


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ArgumentError, match=r"AutoSemiDAIS\(K="):
        AutoSemiDAIS(model, K=0)
    with pytest.raises(ArgumentError, match="eta_init"):
        AutoSemiDAIS(model, eta_init=0.2)
    with pytest.raises(ArgumentError, match="local_model"):
        AutoSemiDAIS(model, 3)
    with pytest.raises(InferenceError, match="'k' is discrete"):
        AutoSemiDAIS(lambda: sample("x", Normal(1.0 * sample("k", Bernoulli(0.5)), 1.0)))()
    with pytest.raises(InferenceError, match=r"one plate with latent(.|\n)*AutoDAIS"):
        AutoSemiDAIS(top)()
    with pytest.raises(InferenceError, match="one plate with latent"):
        AutoSemiDAIS(model, subsample_plate="other")()
    with pytest.raises(InferenceError, match=r"the global guide(.|\n)*expected: 'mu'"):
        AutoSemiDAIS(model, None, lambda: None)()
    for part, at in (("local model", 1), ("local guide", 3)):
        parts = [None, None, None]
        parts[at - 1] = top
        with pytest.raises(InferenceError, match=rf"the {part}(.|\n)*expected: 'z'"):
            AutoSemiDAIS(model, *parts)()
    guide = AutoGuideList(model)
    guide.append(AutoSemiDAIS(model))
    with pytest.raises(InferenceError, match="this guide alone"):
        guide()
