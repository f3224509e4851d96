"""Every reparameterisation leaves the posterior as it is, in NUTS and in SVI.

The oracle is importance sampling from the prior, which knows nothing of reparameterisations. Its
own error and that of the chain enter the bound: 5 standard errors, 1e-5 of false alarms in all.
"""

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch import effects, infer, tensor
from probtorch.core.rng import Generator, manual_seed
from probtorch.distributions import transforms
from probtorch.effects import clear_param_store, reparam, sample
from probtorch.infer import MCMC, NUTS, SVI, AutoNormal
from probtorch.optim import Adam
from tests.distributions.test_names_of_others import REPARAMETERISATIONS

pytestmark = pytest.mark.slow
OBSERVED, SPREAD = 0.7, 1.0


def t(x):
    return tensor(np.asarray(x, float))


def whole(x):
    return x


def summed(x):
    return x.sum(-1)


def first(x):
    return x[..., 0]


class Law:
    """A prior, what of it is seen with noise, and a configuration for `reparam`."""

    def __init__(self, prior, change, read=whole):
        self.prior, self.change, self.read = prior, change, read

    def model(self):
        x = sample("x", self.prior())
        sample("y", dist.Normal(self.read(x), SPREAD), obs=t(OBSERVED))


def normal():
    return dist.Normal(t(0.0), t(1.0))


def series():
    return dist.Normal(t(np.zeros(8)), t(1.0)).to_event(1)


def stable(skew):
    return dist.Stable(t(1.7), t(skew), t(1.0), t(0.0))


def trained(kind):
    clear_param_store()
    manual_seed(1)
    guide = kind(Law(normal, None).model)
    fit = SVI(guide.model, guide, Adam({"lr": 0.02}))
    for _ in range(50):
        fit.step()
    return guide


def structured(model):
    return infer.AutoStructured(model, conditionals="normal")


PAIRS = transforms.PermuteTransform([1, 0, 3, 2, 5, 4, 7, 6])
ROWS = {
    "Auto": Law(normal, lambda C: C()),
    "Minimal": Law(normal, lambda C: C()),
    "LocScale": Law(lambda: dist.Normal(t(1.0), t(2.0)), lambda C: {"x": C(0.3)}),
    "Transform": Law(
        lambda: dist.TransformedDistribution(normal(), transforms.ExpTransform()),
        lambda C: {"x": C()},
    ),
    "StudentT": Law(lambda: dist.StudentT(t(4.0), t(0.0), t(1.0)), lambda C: {"x": C()}),
    "Stable": Law(lambda: stable(0.2), lambda C: {"x": C()}),
    "LatentStable": Law(lambda: stable(0.2), lambda C: {"x": C()}),
    "SymmetricStable": Law(lambda: stable(0.0), lambda C: {"x": C()}),
    "GumbelSoftmax": Law(
        lambda: dist.RelaxedOneHotCategorical(t(0.8), logits=t([0.0, 1.0, 2.0])),
        lambda C: {"x": C()},
        first,
    ),
    "Haar": Law(series, lambda C: {"x": C(dim=-1)}, summed),
    "DiscreteCosine": Law(series, lambda C: {"x": C(dim=-1)}, summed),
    "UnitJacobian": Law(series, lambda C: {"x": C(PAIRS)}, summed),
    "Split": Law(series, lambda C: {"x": C([3, 5], -1)}, summed),
    "Structured": Law(normal, lambda C: C(trained(structured))),
    "NeuTra": Law(normal, lambda C: C(trained(infer.AutoDiagonalNormal))),
    "Conjugate": Law(
        lambda: dist.Gamma(t(2.0), t(1.0)), lambda C: {"x": C(dist.Gamma(t(3.0), t(2.0)))}
    ),
    "ProjectedNormal": Law(
        lambda: dist.ProjectedNormal(t([1.0, 0.0, 0.0])), lambda C: {"x": C()}, first
    ),
    "Circular": Law(lambda: dist.VonMises(t(0.3), t(2.0)), lambda C: {"x": C()}),
    "Explicit": Law(
        lambda: dist.Normal(t(1.0), t(2.0)),
        lambda C: {"x": C(transforms.AffineTransform(t(1.0), t(2.0)).inv)},
    ),
}
# Of a series that is seen itself: the density of its scale, in a test of its own.
SEEN = {"LinearHMM"}


def kind(name):
    return getattr(effects, f"{name}Reparam", None) or getattr(infer, f"{name}Reparam")


def changed(law, name):
    change = law.change(kind(name))
    if name in ("Structured", "NeuTra"):
        return change.reparam(law.model)
    return reparam(law.model, change)


def expected(law):
    """Posterior means of what is read and of its square, with their standard errors."""
    at = law.read(law.prior().sample((40_000,), Generator(3))).numpy().astype(float)
    weight = np.exp(-0.5 * ((OBSERVED - at) / SPREAD) ** 2)
    found = []
    for values in (np.tanh(at), np.tanh(at) ** 2):
        mean = (weight * values).sum() / weight.sum()
        error = np.sqrt((weight**2 * (values - mean) ** 2).sum()) / weight.sum()
        found.append((mean, error))
    return found


def test_every_reparameterisation_has_a_row():
    assert {*ROWS, *SEEN} == {*REPARAMETERISATIONS}


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize("name", ROWS)
def test_the_posterior_is_that_of_the_model_as_it_was(name):
    law = ROWS[name]
    run = MCMC(NUTS(changed(law, name)), num_samples=1000, warmup_steps=500, num_chains=2, seed=5)
    run.run()
    draws = law.read(run.get_samples(group_by_chain=True)["x"]).numpy()
    for power, (mean, error) in enumerate(expected(law), 1):
        values = np.tanh(draws) ** power
        # Means of batches of 50 draws are nearly independent.
        batches = values.reshape(-1, 50).mean(1)
        chain = batches.std(ddof=1) / np.sqrt(len(batches))
        assert abs(values.mean() - mean) < 5 * np.hypot(chain, error)


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize("name", ROWS)
def test_a_guide_is_trained_on_the_sites_that_are_left(name):
    law = ROWS[name]
    model = changed(law, name)
    clear_param_store()
    manual_seed(2)
    fit = SVI(model, AutoNormal(model), Adam({"lr": 0.05}))
    losses = [fit.step() for _ in range(150)]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-50:]) < np.mean(losses[:20]) + 0.5
