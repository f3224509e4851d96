"""Models whose rows several processes share: the same densities, chains and fits as on one."""

import os
import signal
import time
import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.distributed import DistributedError, spawn
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer import HMC, MCMC, NUTS, SVI, AutoNormal, Target
from probtorch.optim import Adam
from probtorch.utils.data import ArrayDataset, DataLoader, DistributedSampler, TensorDataset

ROWS = 101
rng = np.random.default_rng(0)
X = probtorch.tensor(rng.normal(size=(ROWS, 2)))
Y = probtorch.tensor(rng.normal(size=ROWS) + X.numpy() @ np.array([1.0, -2.0]))
POINT = np.array([0.3, -0.2, 0.1])


def regression(shard=True):
    b = probtorch.sample("b", dist.Normal(probtorch.zeros(2), 2.0).to_event(1))
    scale = probtorch.sample("scale", dist.HalfNormal(2.0))
    with probtorch.plate("row", ROWS, shard=shard) as rows:
        probtorch.sample("y", dist.Normal(X[rows] @ b, scale), obs=Y[rows])


def mixture(shard=True):
    loc = probtorch.sample("loc", dist.Normal(probtorch.zeros(2), 2.0).to_event(1))
    weight = probtorch.sample("weight", dist.Beta(2.0, 2.0))
    with probtorch.plate("row", ROWS, shard=shard) as rows:
        z = probtorch.sample("z", dist.Bernoulli(weight), infer={"enumerate": "parallel"})
        probtorch.sample("y", dist.Normal(loc[z.long()], 1.0), obs=Y[rows])


def densities(rank):
    found = [Target.from_model(m).value_and_grad(POINT) for m in (regression, mixture)]

    # More ranks than rows: one has none.
    def few():
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", 2, shard=True) as rows:
            probtorch.sample("y", dist.Normal(a, 1.0), obs=Y[:2][rows])

    return [*found, Target.from_model(few).value_and_grad([0.5])]


def test_sharded_densities_are_those_of_all_rows_with_the_same_bits_on_each_rank():
    whole = [Target.from_model(m, shard=False).value_and_grad(POINT) for m in (regression, mixture)]
    near = Y[:2].numpy()
    value = -0.5 * (0.25 + ((near - 0.5) ** 2).sum()) - 1.5 * np.log(2 * np.pi)
    whole.append((value, np.array([-0.5 + (near - 0.5).sum()])))
    found = spawn(densities, nprocs=3, timeout=60)
    for one in found:
        for (value, slope), (expected, gradient), (first, first_slope) in zip(one, whole, found[0]):
            np.testing.assert_allclose(value, expected, rtol=1e-10)
            np.testing.assert_allclose(slope, gradient, rtol=1e-10, atol=1e-10)
            assert value == first and slope.tobytes() == first_slope.tobytes()


def chains(rank):
    mcmc = MCMC(
        HMC(regression, num_steps=3), num_samples=60, warmup_steps=60, num_chains=2, seed=1,
        progress_bar=False,
    )  # fmt: skip
    mcmc.diagnose = False
    draws = mcmc.run()
    try:
        mcmc.run(max_seconds=10.0)
    except ArgumentError as error:
        return draws.posterior["b"], draws.sample_stats["lp"], str(error)


def test_chains_are_identical_on_all_ranks():
    found = spawn(chains, nprocs=2, timeout=60)
    for b, lp, said in found:
        assert b.tobytes() == found[0][0].tobytes() and lp.tobytes() == found[0][1].tobytes()
        assert "their clocks would stop them at different draws" in said
    # Log density and draws belong together, by the density of one process.
    target = Target.from_model(regression, shard=False)
    assert np.ptp(found[0][0], axis=(0, 1)).min() > 0.05
    near = np.linalg.lstsq(X.numpy(), Y.numpy(), rcond=None)[0]
    np.testing.assert_allclose(found[0][0].mean(axis=(0, 1)), near, atol=0.15)
    assert target.dim == 3


def nuts(rank=0):
    mcmc = MCMC(NUTS(regression), num_samples=20, warmup_steps=20, seed=3, progress_bar=False)
    mcmc.diagnose = False
    draws = mcmc.run()
    return draws.posterior["b"], draws.sample_stats["n_steps"], draws.sample_stats["lp"]


def test_nuts_on_shared_rows_draws_what_one_process_draws():
    # Rounding moves the step size's last digits, and a trajectory of this posterior no further.
    whole = nuts()
    for b, steps, lp in spawn(nuts, nprocs=2, timeout=200):
        assert steps.tolist() == whole[1].tolist() and steps.sum() > 50
        np.testing.assert_allclose(b, whole[0], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(lp, whole[2], rtol=1e-10)


def checkpointed(rank, folder, dies):
    def hook(kernel, params, stage, i):
        if dies and rank == 1 and stage == "Sample" and i % 60 == 30:
            time.sleep(0.5)  # so that a checkpoint is written
            os.kill(os.getpid(), signal.SIGKILL)

    mcmc = MCMC(
        HMC(regression, num_steps=3), num_samples=60, warmup_steps=60, seed=1,
        progress_bar=False, hook_fn=hook,
    )  # fmt: skip
    mcmc.diagnose = False
    return mcmc.run(checkpoint=folder, checkpoint_every=0.01).posterior["b"]


def test_run_that_lost_a_rank_goes_on_bit_for_bit(tmp_path):
    folders = [str(tmp_path / name) for name in ("killed", "whole")]
    with pytest.raises(DistributedError, match="rank 1 of 2 failed") as caught:
        spawn(checkpointed, (folders[0], True), 2, timeout=60)
    assert f"last checkpoint: {folders[0]}" in caught.value.got
    resumed = spawn(checkpointed, (folders[0], False), 2, timeout=60)
    whole = spawn(checkpointed, (folders[1], False), 2, timeout=60)
    assert [x.tobytes() for x in resumed] == [x.tobytes() for x in whole]


def stored(rank):
    loader = DataLoader(ArrayDataset(X.numpy(), Y.numpy(), block_rows=16), batch_size=5)

    def model():
        b = probtorch.sample("b", dist.Normal(probtorch.zeros(2), 2.0).to_event(1))
        scale = probtorch.sample("scale", dist.HalfNormal(2.0))
        with probtorch.plate("row", loader, shard=True) as (x, y):
            probtorch.sample("y", dist.Normal(x @ b, scale), obs=y)

    return Target.from_model(model).value_and_grad(POINT)


def test_shared_rows_may_lie_on_the_disk():
    expected, gradient = Target.from_model(regression, shard=False).value_and_grad(POINT)
    for value, slope in spawn(stored, nprocs=2, timeout=60):
        np.testing.assert_allclose(value, expected, rtol=1e-10)
        np.testing.assert_allclose(slope, gradient, rtol=1e-10)


def pairs(loop, first=True):
    """A model of all pairs of two plates' rows."""
    a = probtorch.sample("a", dist.Normal(0.0, 1.0))
    outer = probtorch.plate("left", 4, shard=first)
    inner = probtorch.plate("right", 6, shard=True)
    if loop:
        for i in outer:
            for j in inner:
                probtorch.sample(f"y {i} {j}", dist.Normal(a, 1.0), obs=Y[6 * i + j])
    else:
        with outer as i, inner as j:
            data = Y[:24].reshape(4, 6)[i][:, j].T
            probtorch.sample("y", dist.Normal(a, 1.0).expand(data.shape), obs=data)


def nested(rank):
    said = []
    for loop in (False, True):
        for run in (lambda loop: Target.from_model(pairs, loop), pairs):
            try:
                run(loop)
            except ModelError as error:
                said.append(str(error))
    own = [DataLoader(d, 2, sampler=DistributedSampler(d)) for d in (TensorDataset(Y[:4]),) * 2]

    def batches():
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
        left, right = (probtorch.plate(*x, shard=True) for x in zip(("left", "right"), own))
        with left as (x,), right as (z,):
            probtorch.sample("y", dist.Normal(a, 1.0).expand([2, 2]), obs=x - z[:, None])

    try:
        svi = SVI(batches, AutoNormal(batches), Adam({"lr": 0.05}), seed=0, distributed=True)
        svi.run(1, progress_bar=False)
    except ModelError as error:
        said.append(str(error))
    one = [Target.from_model(pairs, loop, first=False).value_and_grad([0.5])[0] for loop in (0, 1)]
    return said, one


def test_plate_in_a_plate_is_refused_where_both_are_shared_and_right_where_one_is():
    y = Y[:24].numpy()
    value = -0.5 * (0.25 + ((y - 0.5) ** 2).sum()) - 12.5 * np.log(2 * np.pi)
    for said, one in spawn(nested, nprocs=2, timeout=60):
        assert len(said) == 5
        assert all("shard one of them only" in x and "'left'" in x for x in said)
        np.testing.assert_allclose(one, value, rtol=1e-10)


def computed(rank):
    def model():
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", ROWS, shard=True) as rows:
            mean = probtorch.deterministic("mean", a * X[rows][:, 0])
            probtorch.sample("y", dist.Normal(mean, 1.0), obs=Y[rows])

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        target = Target.from_model(model)
    return list(target.constrain(probtorch.tensor([0.5]))), [str(x.message) for x in caught]


def test_deterministic_of_the_rows_of_a_rank_is_not_taken_for_that_of_all():
    for names, (said,) in spawn(computed, nprocs=2, timeout=60):
        assert names == ["a"]
        assert "deterministic 'mean', in a plate whose rows are shared by 2 processes" in said


def drifting(rank):
    Target.from_model(regression).value_and_grad(POINT + rank)


def failing(rank):
    def model():
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", ROWS, shard=True) as rows:
            if rank == 1 and float(a) > 1.0:
                raise OSError("the disk is gone")
            probtorch.sample("y", dist.Normal(a, 1.0), obs=Y[rows])

    target = Target.from_model(model)
    target.value_and_grad([0.0])
    target.value_and_grad([2.0])


def test_ranks_that_drift_or_fail_end_the_run(capfd):
    with pytest.raises(DistributedError) as caught:
        spawn(drifting, nprocs=2, timeout=60)
    assert "the chains have drifted apart" in caught.value.got
    with pytest.raises(DistributedError, match="rank 1 of 2 failed") as caught:
        spawn(failing, nprocs=2, timeout=60)
    assert "OSError: the disk is gone" in caught.value.got
    assert "rank 1 of 2" in capfd.readouterr().err


def refused(rank):
    def local():
        scale = probtorch.sample("scale", dist.HalfNormal(1.0))
        with probtorch.plate("row", ROWS, shard=True) as rows:
            effect = probtorch.sample("effect", dist.Normal(0.0, scale))
            probtorch.sample("y", dist.Normal(effect, 1.0), obs=Y[rows])

    def one_for_all():
        z = probtorch.sample("z", dist.Bernoulli(0.5))
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", ROWS, shard=True) as rows:
            probtorch.sample("y", dist.Normal(a + z, 1.0), obs=Y[rows])

    loader = DataLoader(TensorDataset(X, Y), batch_size=10)

    def same_batches():
        b = probtorch.sample("b", dist.Normal(probtorch.zeros(2), 2.0).to_event(1))
        with probtorch.plate("row", loader, shard=True) as (x, y):
            probtorch.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    def subsampled():
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", ROWS, subsample_size=5, shard=True) as rows:
            probtorch.sample("y", dist.Normal(a, 1.0), obs=Y[rows])

    def local_guide():
        probtorch.sample("scale", dist.HalfNormal(1.0))
        with probtorch.plate("row", ROWS, shard=True):
            probtorch.sample("effect", dist.Normal(0.0, 1.0))

    def svi(model, guide=None, distributed=True):
        guide = AutoNormal(model) if guide is None else guide
        SVI(model, guide, Adam({"lr": 0.1}), distributed=distributed).step()

    said = []
    for call, kind in (
        (lambda: Target.from_model(local), InferenceError),
        (lambda: Target.from_model(one_for_all), InferenceError),
        (lambda: Target.from_model(subsampled), ArgumentError),
        (lambda: Target.from_model(regression).logdensity(probtorch.tensor(POINT)), InferenceError),
        (lambda: svi(regression, distributed=False), ModelError),
        (lambda: svi(same_batches), ArgumentError),
        (lambda: svi(local, local_guide), InferenceError),
    ):
        with pytest.raises(kind) as caught:
            call()
        said.append(str(caught.value))
    return said


def test_what_cannot_be_shared_is_refused():
    for said in spawn(refused, nprocs=2, timeout=60):
        local, one, both, function, alone, batches, in_svi = said
        assert "latent site 'effect' in a plate which 2 processes share" in local
        assert "its sum does not come apart" in one
        assert "shard=True alone" in both
        assert "as one function of tensors" in function
        assert "SVI(..., distributed=True)" in alone
        assert "sampler=DistributedSampler(dataset)" in batches
        assert "latent site 'effect' in plate 'row'" in in_svi


def fit(rank, shard=True, folder=None, steps=30):
    svi = SVI(regression, AutoNormal(regression), Adam({"lr": 0.05}), seed=0, distributed=shard)
    result = svi.run(steps, shard=shard, progress_bar=False, checkpoint=folder)
    return result.losses, {name: p.numpy() for name, p in result.params.items()}


def test_fit_of_several_ranks_is_that_of_one(tmp_path):
    losses, params = fit(0, shard=False)
    folder = str(tmp_path / "run")
    spawn(fit, (True, folder, 20), 2, timeout=60)
    found = spawn(fit, (True, folder), 2, timeout=60)  # which goes on from step 20
    for shared_losses, shared in found:
        np.testing.assert_allclose(shared_losses, losses, rtol=1e-10)
        for name, p in params.items():
            np.testing.assert_allclose(shared[name], p, rtol=1e-10, atol=1e-10)
            assert shared[name].tobytes() == found[0][1][name].tobytes()


def told(rank):
    svi = SVI(regression, AutoNormal(regression), Adam({"lr": 0.05}), seed=0, distributed=True)
    for _ in range(6):
        svi.step()
    function = svi.gradients._function
    native = function is not None and function.last is not None

    def unsteady():
        regression()
        return open(__file__).read(1)

    other = SVI(unsteady, AutoNormal(regression), Adam({"lr": 0.05}), seed=0, distributed=True)
    losses = [other.step() for _ in range(4)]
    return native, svi.gradients.reason, str(svi.explain()), losses


def test_gradients_of_a_rank_are_compiled_and_python_is_as_good():
    losses, _ = fit(0, shard=False, steps=4)
    for native, reason, said, unsteady in spawn(told, nprocs=2, timeout=60):
        assert native and reason is None and "1 compiled path" in said
        np.testing.assert_allclose(unsteady, losses, rtol=1e-10)


def minibatches(rank):
    data = TensorDataset(X, Y)
    loader = DataLoader(data, batch_size=10, sampler=DistributedSampler(data))

    def model():
        b = probtorch.sample("b", dist.Normal(probtorch.zeros(2), 2.0).to_event(1))
        with probtorch.plate("row", loader, shard=True) as (x, y):
            probtorch.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.1}), seed=0, distributed=True)
    return svi.run(80, progress_bar=False).params["b_auto_loc"].numpy()


def test_minibatches_of_several_ranks_find_the_posterior():
    found = spawn(minibatches, nprocs=2, timeout=60)
    assert found[0].tobytes() == found[1].tobytes()
    near = np.linalg.lstsq(X.numpy(), Y.numpy(), rcond=None)[0]
    np.testing.assert_allclose(found[0], near, atol=0.2)


def test_sharded_plate_of_one_process_is_a_plain_plate():
    one, other = (Target.from_model(regression, shard=s).value_and_grad(POINT) for s in (0, 1))
    assert one[0] == other[0] and one[1].tobytes() == other[1].tobytes()
