"""Bayesian optimal experimental design: how much an experiment is expected to tell.

The expected information gain of a design d is the mutual information of targets and outcomes,
``E log p(y | theta, d) - log p(y | d)`` in nats: how far, on average over what the experiment may
show, the entropy of the targets falls. The best design has the largest. A model takes the design
and draws targets and outcomes; estimators take all designs at once. Names are Pyro's.

| estimator | what it learns | error |
| --- | --- | --- |
| `nmc_eig` | nothing | above by 1 / M on average |
| `vnmc_eig` | a guide for inner draws | from above, exact in the limit of M |
| `posterior_eig` | the posterior | from below |
| `marginal_eig` | the distribution of outcomes | from above |
| `marginal_likelihood_eig` | that, and of outcomes given targets | either way |
| `donsker_varadhan_eig` | a function of both | from below, but for the log of a mean |
| `lfire_eig` | classifiers of outcomes | either way |
| `laplace_eig` | nothing | that of normal posteriors |

terms.py has what all of them do; read nested.py next. Foster et al. (2019), "Variational Bayesian
optimal experimental design"; Rainforth et al. (2018), "On nesting Monte Carlo estimators".
"""

from typing import TYPE_CHECKING

from probtorch.contrib.oed.bounds import marginal_eig, marginal_likelihood_eig, posterior_eig
from probtorch.contrib.oed.laplace import laplace_eig
from probtorch.contrib.oed.nested import nmc_eig, vnmc_eig
from probtorch.contrib.oed.ratios import donsker_varadhan_eig, lfire_eig
from probtorch.core.rooms import late_beside

__all__ = [
    "donsker_varadhan_eig",
    "laplace_eig",
    "lfire_eig",
    "marginal_eig",
    "marginal_likelihood_eig",
    "nmc_eig",
    "posterior_eig",
    "vnmc_eig",
]

# What does the work of Pyro's that are not here.
INSTEAD = {
    "glmm": "write the model: a plate of designs, and GLM likelihoods of distributions",
    "search": "infer.Importance with a guide, or TraceEnum_ELBO, which sums finite sites out",
    "vi_eig": "posterior_eig learns a posterior for each outcome; laplace_eig takes a normal one",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, INSTEAD)
