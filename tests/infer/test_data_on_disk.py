"""Models of data that lie on the disk: densities in blocks are those of all rows in memory."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import InferenceError, ModelError
from probtorch.infer import HMC, MCMC, SGLD, SVI, AutoNormal, Predictive, Target
from probtorch.infer.mcmc.subsampling import subsampled
from probtorch.optim import Adam
from probtorch.utils.data import ArrayDataset, DataLoader, TensorDataset

ROWS = 1003
rng = np.random.default_rng(0)
Z = np.column_stack([rng.normal(size=(ROWS, 2)), rng.integers(0, 3, ROWS)])
Z = np.column_stack([Z, Z[:, :2] @ [1.0, -1.0] + rng.normal(size=ROWS)])
LEVEL = Z[:, 2].astype(np.int32)
POINT = np.array([0.5, -0.5, 0.1, 0.2, -0.1, 0.3])


def regression(batch):
    b = probtorch.sample("b", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
    with probtorch.plate("level", 3):
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
    scale = probtorch.sample("scale", dist.HalfNormal(1.0))
    with probtorch.plate("row", *batch[:1]) as rows:
        z, level = batch[1:] if batch[1:] else rows
        probtorch.sample("y", dist.Normal(z[:, :2] @ b + a[level.long()], scale), obs=z[:, 3])


@pytest.fixture
def loader(tmp_path):
    np.save(tmp_path / "z.npy", Z)
    np.save(tmp_path / "level.npy", LEVEL)
    stored = [np.load(tmp_path / f"{n}.npy", mmap_mode="r") for n in ("z", "level")]
    return DataLoader(ArrayDataset(*stored, block_rows=100), batch_size=50, shuffle=True)


WHOLE = (ROWS, probtorch.tensor(Z), probtorch.tensor(LEVEL))


def test_density_in_blocks_is_that_of_all_rows(loader):
    inside, outside = Target.from_model(regression, WHOLE), Target.from_model(regression, [loader])
    for point in (POINT, -POINT, np.zeros(6)):
        value, slope = outside.value_and_grad(point)
        expected, gradient = inside.value_and_grad(point)
        np.testing.assert_allclose(value, expected, rtol=1e-10)
        np.testing.assert_allclose(slope, gradient, rtol=1e-10)
    assert "y" not in outside.observed_data


def test_sampler_reads_blocks_and_fit_reads_minibatches(loader):
    mcmc = MCMC(
        HMC(regression, num_steps=3), num_samples=30, warmup_steps=30, seed=0, progress_bar=False
    )
    mcmc.diagnose = False
    run = mcmc.run([loader])
    assert set(run.to_arviz().posterior) == {"b", "a", "scale"}  # without log likelihoods
    draws = run.posterior
    again = mcmc.run(WHOLE).posterior
    # Rounding grows along a chain.
    np.testing.assert_allclose(draws["b"], again["b"], atol=1e-3)
    svi = SVI(regression, AutoNormal(regression), Adam({"lr": 0.05}), seed=0)
    fit = svi.run(200, [loader], progress_bar=False)
    np.testing.assert_allclose(fit.params["b_auto_loc"].numpy(), [1.0, -1.0], atol=0.3)


def test_row_numbers_are_those_of_the_block(tmp_path):
    y = rng.normal(size=57)
    weights = probtorch.linspace(0.5, 1.5, 57, dtype=probtorch.float64)
    stored = DataLoader(ArrayDataset(y, block_rows=10), batch_size=5)

    def model():
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
        data = probtorch.plate("row", stored)
        with data as (part,):
            probtorch.sample("y", dist.Normal(a, weights[data.indices]), obs=part)

    w = weights.numpy()
    expected = -0.5 * 0.09 - 0.5 * (((y - 0.3) / w) ** 2).sum() - np.log(w).sum()
    value, slope = Target.from_model(model).value_and_grad([0.3])
    np.testing.assert_allclose(value, expected - 58 * 0.5 * np.log(2 * np.pi), rtol=1e-12)
    np.testing.assert_allclose(slope, [-0.3 + ((y - 0.3) / w**2).sum()], rtol=1e-10)


def test_what_needs_all_rows_at_once_is_refused(loader, tmp_path):
    target = Target.from_model(regression, [loader])
    with pytest.raises(InferenceError, match="rows on the disk, of which blocks"):
        target.log_likelihood(np.zeros((2, 6)))
    with pytest.raises(InferenceError, match="as one function of tensors"):
        target.logdensity(probtorch.zeros(6))

    def local():
        with probtorch.plate("row", loader) as (z, _):
            effect = probtorch.sample("effect", dist.Normal(0.0, 1.0))
            probtorch.sample("y", dist.Normal(effect, 1.0), obs=z[:, 3])

    with pytest.raises(InferenceError, match="whose rows are on the disk"):
        Target.from_model(local)
    other = DataLoader(ArrayDataset(Z), batch_size=5)

    def two():
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
        for name, rows in (("row", loader), ("other", other)):
            with probtorch.plate(name, rows) as batch:
                probtorch.sample(f"y of {name}", dist.Normal(a, 1.0), obs=batch[0][:, 3])

    with pytest.raises(ModelError, match="one plate of a model over a dataset on the disk"):
        Target.from_model(two)

    def pairs():
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
        with probtorch.plate("i", loader) as (z, _), probtorch.plate("j", loader) as (x, _):
            y = z[:, 3] - x[:, None, 3]
            probtorch.sample("y", dist.Normal(a, 1.0).expand(y.shape), obs=y)

    with pytest.raises(ModelError, match="a second plate over one dataset on the disk"):
        Target.from_model(pairs)


def test_deterministic_of_a_block_is_not_taken_for_that_of_all_rows(loader):
    def model(rows):
        a = probtorch.deterministic("a", 2.0 * probtorch.sample("half", dist.Normal(0.0, 1.0)))
        with probtorch.plate("row", rows) as (z, _):
            mean = probtorch.deterministic("mean", a * z[:, 0])
            probtorch.sample("y", dist.Normal(mean, 1.0), obs=z[:, 3])

    with pytest.warns(InferenceWarning, match="'mean', in a plate whose rows are taken a block"):
        target = Target.from_model(model, loader)
    assert target.deterministic == ("a",) and "mean" not in target.dims
    assert set(target.constrain(probtorch.tensor([0.3]))) == {"half", "a"}
    mcmc = MCMC(HMC(model, num_steps=3), num_samples=5, warmup_steps=5, seed=0, progress_bar=False)
    mcmc.diagnose = False
    with pytest.warns(InferenceWarning, match="let Predictive run"):
        draws = mcmc.run(loader).posterior
    assert set(draws) == {"half", "a"}
    # What the warning recommends.
    memory = DataLoader(TensorDataset(*WHOLE[1:]), batch_size=50)
    half = draws["half"].reshape(-1)
    found = Predictive(model, {"half": probtorch.tensor(half)})(memory)["mean"].numpy()
    np.testing.assert_allclose(found, 2.0 * half[:, None] * Z[:, 0])


def test_density_of_very_many_rows_is_taken_by_their_numbers(monkeypatch):
    z = probtorch.tensor(Z)

    def model():
        b = probtorch.sample("b", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
        with probtorch.plate("row", ROWS, subsample_size=50) as rows:
            part = z[rows]
            probtorch.sample("y", dist.Normal(part[:, :2] @ b, 1.0), obs=part[:, 3])

    few = subsampled.SubsampledTarget(model, (), {})
    expected, gradient = few.value_and_grad(POINT[:2])
    monkeypatch.setattr(subsampled, "MANY", 500)
    monkeypatch.setattr(subsampled, "BLOCK", 200)
    many = subsampled.SubsampledTarget(model, (), {})
    value, slope = many.value_and_grad(POINT[:2])
    assert not few.parts and many.parts
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(slope, gradient, rtol=1e-10)
    mcmc = MCMC(SGLD(model), num_samples=50, warmup_steps=20, seed=0, progress_bar=False)
    mcmc.diagnose = False
    near = np.linalg.lstsq(Z[:, :2], Z[:, 3], rcond=None)[0]
    np.testing.assert_allclose(mcmc.run().posterior["b"].mean(axis=(0, 1)), near, atol=0.2)
