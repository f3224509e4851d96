"""`CSIS` learns the posterior of a conjugate model for all data, and weights make it exact."""

import numpy as np
import pytest

import probtorch
from probtorch import distributions as dist
from probtorch.effects import param, sample
from probtorch.effects.handlers import substitute, trace
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer import CSIS, AutoProposal
from probtorch.infer.sequential.proposals import PRIOR_SHARE
from probtorch.optim import Adam

SIGMAS = 4.0


def model(observations=None):
    y = (observations or {"y": probtorch.tensor(0.0)})["y"]
    z = sample("z", dist.Normal(0.0, 1.0))
    sample("y", dist.Normal(z, 0.5), obs=y)


def guide(observations=None):
    y = (observations or {"y": probtorch.tensor(0.0)})["y"]
    slope = param("slope", probtorch.tensor(0.0))
    scale = param("scale", probtorch.tensor(1.0), constraint=dist.constraints.positive)
    sample("z", dist.Normal(slope * y, scale))


def made(**options):
    return CSIS(model, guide, Adam({"lr": 0.02}), seed=0, **options)


def test_guide_learns_the_posterior_for_all_data():
    csis = made(num_inference_samples=400, training_batch_size=20)
    csis.set_validation_batch()
    before = csis.validation_loss()
    losses = [csis.step() for _ in range(300)]
    assert csis.validation_loss() < before - 0.3
    assert np.mean(losses[-50:]) < np.mean(losses[:20])
    # E[z | y] = y / (1 + 0.25), with standard deviation sqrt(0.2).
    params = csis.svi.get_params()
    assert abs(params["slope"].item() - 0.8) < 0.1
    assert abs(params["scale"].item() - 0.2**0.5) < 0.1
    for y in (-1.0, 1.5):
        found = csis.run(observations={"y": probtorch.tensor(y)})
        assert found.ess > 300
        assert abs(found.expectation("z") - 0.8 * y) < SIGMAS * 0.2**0.5 / np.sqrt(found.ess)
        exact = dist.Normal(0.0, 1.25**0.5).log_prob(probtorch.tensor(y)).item()
        assert abs(found.log_evidence - exact) < SIGMAS * found.log_evidence_error + 1e-5


def test_what_does_not_fit_is_refused():
    with pytest.raises(InferenceError, match="validation_loss"):
        made().validation_loss()
    with pytest.raises(ArgumentError, match="training_batch_size"):
        made(training_batch_size=0)

    def stray(observations=None):
        sample("w", dist.Normal(param("loc", probtorch.tensor(0.0)), 1.0))

    with pytest.raises(ModelError, match="'w'"):
        CSIS(model, stray, Adam({"lr": 0.1}), seed=0).step()

    def unobserved(observations=None):
        sample("z", dist.Normal(0.0, 1.0))

    with pytest.raises(ModelError, match="obs=observations"):
        CSIS(unobserved, guide, Adam({"lr": 0.1}), seed=0).step()


def parts(observations=None):
    """A sum of as many parts as coins say: other sites in every run."""
    count = 1
    while count < 3 and sample(f"more_{count}", dist.Bernoulli(0.5)).item():
        count += 1
    total = sum(sample(f"part_{i}", dist.Exponential(1.0)) for i in range(count))
    probtorch.deterministic("total", total)
    y = (observations or {"y": probtorch.tensor(0.0)})["y"]
    sample("y", dist.Normal(total, 0.2), obs=y)


def test_a_proposal_that_writes_itself_meets_what_runs_come_to():
    guide = AutoProposal(parts, hidden=4, components=2)
    csis = CSIS(parts, guide, Adam({"lr": 0.03}), 10, training_batch_size=3, seed=0)
    assert all(np.isfinite(csis.step()) for _ in range(4))
    # Addresses share parameters: one coin and one part, whatever their numbers.
    heads = {n.split(".")[1] for n in csis.svi.get_params() if n.endswith("head.weight")}
    assert heads == {"part_#"} and "proposal.more_#.logits.bias" in csis.svi.get_params()
    # Each batch would be another program.
    assert "different sites" in csis.svi.compiled.reason
    found = csis.run(observations={"y": probtorch.tensor(2.5)})
    assert {len(run) for run in found.values} <= {3, 5, 6}


@pytest.mark.slow
def test_a_proposal_that_writes_itself_goes_where_each_run_goes():
    guide = AutoProposal(parts, hidden=8, components=2)
    csis = CSIS(parts, guide, Adam({"lr": 0.03}), 150, training_batch_size=4, seed=0)
    csis.set_validation_batch()
    before = csis.validation_loss()
    for _ in range(40):
        csis.step()
    assert csis.validation_loss() < before - 0.1
    found = csis.run(observations={"y": probtorch.tensor(2.5)})
    assert found.ess > 20
    # Erlang densities of the total, convolved with the noise, by quadrature.
    t = np.linspace(0.0, 8.0, 8001)
    prior = np.array([0.5, 0.25 * 1.0, 0.25])
    erlang = np.stack([np.exp(-t), t * np.exp(-t), t**2 / 2.0 * np.exp(-t)])
    noise = np.exp(-0.5 * ((2.5 - t) / 0.2) ** 2) / (0.2 * np.sqrt(2.0 * np.pi))
    weights = prior * (erlang * noise).sum(1) * (t[1] - t[0])
    assert abs(found.log_evidence - np.log(weights.sum())) < SIGMAS * found.log_evidence_error
    several = found.expectation(lambda run: "part_1" in run)
    exact = weights[1:].sum() / weights.sum()
    assert abs(several - exact) < SIGMAS * np.sqrt(exact * (1.0 - exact) / found.ess)


def test_a_network_of_the_users_reads_data_of_any_length():
    def series(observations=None):
        level = sample("level", dist.Normal(0.0, 1.0))
        y = (observations or {"y": probtorch.zeros(3)})["y"]
        with probtorch.plate("row", len(y)):
            sample("y", dist.Normal(level, 0.5), obs=y)

    net = probtorch.nn.Linear(1, 4)
    embed = lambda data: net(data["y"].mean().reshape(1))
    guide = AutoProposal(series, embed, hidden=4)
    csis = CSIS(series, guide, Adam({"lr": 0.02}), 30, training_batch_size=2, seed=0)
    csis.step()
    for length in (3, 5):
        assert csis.run(observations={"y": probtorch.ones(length)}).log_ratios.shape == (30,)
    plain = CSIS(series, AutoProposal(series, hidden=4), Adam({"lr": 0.02}), 10, seed=0)
    plain.step()
    with pytest.raises(ArgumentError, match=r"(?s)3 numbers to read.*got:      5.*embed="):
        plain.run(observations={"y": probtorch.ones(5)})
    with pytest.raises(ArgumentError, match="the data, by site name"):
        AutoProposal(series)()


def test_a_proposal_that_writes_itself_has_the_tails_of_the_prior():
    """Where normals have none: left of all but e^-9 of an exponential, on the scale of its log."""
    kinds = dist.Categorical(probs=[0.7, 0.2, 0.1])

    def tailed(observations=None):
        x = sample("x", dist.Exponential(1.0))
        v = sample("v", dist.Dirichlet(probtorch.ones(3)))
        on = sample("on", dist.Bernoulli(0.3))
        kind = sample("kind", kinds)
        y = (observations or {"y": probtorch.tensor(0.0)})["y"]
        sample("y", dist.Normal(x + v[0] + on + kind, 1.0), obs=y)

    guide = AutoProposal(tailed, hidden=4)
    far = {
        "x": probtorch.tensor(np.exp(-9.0)),
        "v": probtorch.tensor([1e-9, 0.5, 0.5 - 1e-9]),
        "on": probtorch.tensor(1.0),
        "kind": probtorch.tensor(2),
    }
    with trace() as found, substitute(far):
        guide(observations={"y": probtorch.tensor(0.0)})
    found.compute_log_prob()
    priors = [dist.Exponential(1.0), dist.Dirichlet(probtorch.ones(3)), dist.Bernoulli(0.3), kinds]
    for (name, value), prior in zip(far.items(), priors):
        ratio = prior.log_prob(value).item() - found[name].log_prob.item()
        assert ratio < np.log(1.0 / PRIOR_SHARE) + 1e-6, name
