"""Special functions: gamma, beta, error, Bessel and entropy functions with their derivatives.

Almost all are elementwise ops whose formula is one intrinsic of ops/scalar.py, so they fuse in
compiled code. Derivatives are written so that they neither overflow nor cancel where the function
itself does not. Those of gammainc and betainc in the shape parameters are structured ops (on the
CPU compiled too, through runtime functions).

- gamma.py: lgamma, digamma, polygamma, zeta, betaln
- kernels.py: the parts of densities of counts and their kin, without what cancels
- error_functions.py: erf and its kin, ndtr and its logarithm and inverse
- logarithms.py: xlogy, entr, log1mexp, logit
- bessel.py: i0, i1, iv, sinc
- oscillating.py: Bessel functions J, Y and K, and Airy's function
- polynomials.py: Chebyshev, Hermite, Laguerre, Legendre
- incomplete_gamma.py, incomplete_beta.py: gammainc, betainc, their densities and derivatives in the
  shape parameters, by the rules of shape_derivatives.py

Names are those of torch.special; `gammainc(a, x)` and `betainc(a, b, x)` have SciPy's order of
arguments.
"""

from probtorch.ops.special.bessel import i0, i0e, i1, i1e, iv, ive, log_i0e, mean_cosine_loss, sinc
from probtorch.ops.special.error_functions import erf, erfc, erfcx, erfinv, log_ndtr, ndtr, ndtri
from probtorch.ops.special.gamma import (
    betaln,
    digamma,
    digamma_difference,
    gammaln,
    lgamma,
    lgamma_difference,
    multigammaln,
    polygamma,
    psi,
    zeta,
)
from probtorch.ops.special.incomplete_beta import betainc, betainc_grad
from probtorch.ops.special.incomplete_gamma import (
    gamma_log_implicit,
    gammainc,
    gammainc_grad_a,
    gammaincc,
)
from probtorch.ops.special.kernels import (
    beta_binomial_kernel,
    beta_kernel,
    binomial_kernel,
    binomial_logits_kernel,
    factorial_rest,
    gamma_kernel,
    gamma_rest,
    poisson_kernel,
    stirling_rest,
)
from probtorch.ops.special.logarithms import (
    entr,
    expit,
    log1mexp,
    log1p_less,
    log1p_square,
    log_ratio,
    logit,
    safe_log,
    xlog1py,
    xlogy,
)
from probtorch.ops.special.oscillating import (
    airy_ai,
    bessel_j0,
    bessel_j1,
    bessel_y0,
    bessel_y1,
    kv,
    kve,
    modified_bessel_k0,
    modified_bessel_k1,
    scaled_modified_bessel_k0,
    scaled_modified_bessel_k1,
    spherical_bessel_j0,
)
from probtorch.ops.special.polynomials import (
    chebyshev_polynomial_t,
    chebyshev_polynomial_u,
    chebyshev_polynomial_v,
    chebyshev_polynomial_w,
    hermite_polynomial_h,
    hermite_polynomial_he,
    laguerre_polynomial_l,
    legendre_polynomial_p,
    shifted_chebyshev_polynomial_t,
    shifted_chebyshev_polynomial_u,
    shifted_chebyshev_polynomial_v,
    shifted_chebyshev_polynomial_w,
)

__all__ = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "beta_binomial_kernel",
    "beta_kernel",
    "betainc",
    "betainc_grad",
    "betaln",
    "binomial_kernel",
    "binomial_logits_kernel",
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "digamma",
    "digamma_difference",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "expit",
    "factorial_rest",
    "gamma_kernel",
    "gamma_log_implicit",
    "gamma_rest",
    "gammainc",
    "gammainc_grad_a",
    "gammaincc",
    "gammaln",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "iv",
    "ive",
    "kv",
    "kve",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "lgamma",
    "lgamma_difference",
    "log1mexp",
    "log1p_less",
    "log1p_square",
    "log_i0e",
    "log_ndtr",
    "log_ratio",
    "logit",
    "mean_cosine_loss",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "multigammaln",
    "ndtr",
    "ndtri",
    "poisson_kernel",
    "polygamma",
    "psi",
    "safe_log",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
    "sinc",
    "spherical_bessel_j0",
    "stirling_rest",
    "xlog1py",
    "xlogy",
    "zeta",
]
