"""Gradient estimators: E_q[f(z)] with a gradient, where z is drawn from q.

`expectation` is the way in: it takes a distribution, a function and an estimator, and returns a
differentiable estimate. In guides an estimator is chosen per site, by
``infer={"estimator": DisARM()}`` or by name, which `Trace_ELBO` and `TraceGraph_ELBO` honour. One
that does not apply raises, with the reason and what would; one that is biased says so
(``unbiased = False``).

| file | holds |
| --- | --- |
| protocol.py | the base class, `Problem`, and `SiteDraws`, the door to randomness |
| pathwise.py, score_function.py | gradients through draws; scores with baselines, DiCE |
| antithetic.py, control_variates.py | ARM, DisARM; REBAR, RELAX |
| finite.py | enumeration, sum-and-sample, unordered sets |
| measure_valued.py, multi_sample.py | weak derivatives; VIMCO |
| relaxed.py | Gumbel-softmax, straight-through: biased |
| expectation.py, variance.py | use them on functions; compare them |

docs/guide/gradient_estimators.md says when to use which.
"""

from probtorch.estimators.antithetic import ARM, DisARM
from probtorch.estimators.control_variates import REBAR, RELAX
from probtorch.estimators.expectation import (
    control_loss,
    expectation,
    gradient_variance,
    log_mean_exp_bound,
)
from probtorch.estimators.finite import Enumerate, SumAndSample, UnorderedSet
from probtorch.estimators.measure_valued import MeasureValued
from probtorch.estimators.multi_sample import VIMCO
from probtorch.estimators.pathwise import Pathwise
from probtorch.estimators.protocol import Estimated, Estimator, Problem, SiteDraws
from probtorch.estimators.registry import ESTIMATORS, applicable
from probtorch.estimators.relaxed import GumbelSoftmax, StraightThrough
from probtorch.estimators.score_function import DiCE, ScoreFunction
from probtorch.estimators.variance import VarianceTable

__all__ = [
    "ARM",
    "ESTIMATORS",
    "REBAR",
    "RELAX",
    "VIMCO",
    "DiCE",
    "DisARM",
    "Enumerate",
    "Estimated",
    "Estimator",
    "GumbelSoftmax",
    "MeasureValued",
    "Pathwise",
    "Problem",
    "ScoreFunction",
    "SiteDraws",
    "StraightThrough",
    "SumAndSample",
    "UnorderedSet",
    "VarianceTable",
    "applicable",
    "control_loss",
    "expectation",
    "gradient_variance",
    "log_mean_exp_bound",
]
