"""Goodness of fit: whether draws follow the density they are said to have.

`check(distribution)` tests a whole distribution, one of one's own as well, and says what speaks
against it: draws against density and cdf, its normalisation, support and stated moments. Beneath
it are tests that return a p-value, uniform on [0, 1] if all is right and near 0 if not; their names
and arguments are those of Pyro.

pvalues.py has the tests of numbers, checking.py the checks of a distribution, vectors.py those of
vectors, integrals.py the quadrature they use.
"""

from probtorch.testing.gof.checking import check
from probtorch.testing.gof.findings import FitFinding, Verdict
from probtorch.testing.gof.pvalues import (
    InvalidTest,
    auto_goodness_of_fit,
    density_goodness_of_fit,
    exp_goodness_of_fit,
    multinomial_goodness_of_fit,
    unif01_goodness_of_fit,
    vector_density_goodness_of_fit,
)

__all__ = [
    "FitFinding",
    "InvalidTest",
    "Verdict",
    "auto_goodness_of_fit",
    "check",
    "density_goodness_of_fit",
    "exp_goodness_of_fit",
    "multinomial_goodness_of_fit",
    "unif01_goodness_of_fit",
    "vector_density_goodness_of_fit",
]
