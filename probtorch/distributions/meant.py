"""What other libraries call parameters, and how to write what a distribution does not take."""

from __future__ import annotations

from collections.abc import Iterable

from probtorch.core.signatures import closest

__all__ = ["cure_for_name"]

# What other libraries call parameters; the first that the distribution has is meant.
_MEANT = {
    "mu": ("loc", "rate"),
    "mean": ("loc",),
    "sigma": ("scale",),
    "sd": ("scale",),
    "std": ("scale",),
    "stddev": ("scale",),
    "scale_diag": ("scale",),
    "lam": ("rate",),
    "lamda": ("rate",),
    "rate_parameter": ("rate",),
    "alpha": ("concentration1", "concentration"),
    "beta": ("concentration0", "rate", "scale"),
    "a": ("concentration1", "concentration"),
    "b": ("concentration0", "rate", "scale"),
    "shape": ("concentration",),
    "p": ("probs",),
    "prob": ("probs",),
    "logit_p": ("logits",),
    "n": ("total_count",),
    "nu": ("df",),
    "lower": ("low",),
    "upper": ("high",),
    "kappa": ("concentration",),
    "eta": ("concentration",),
    "cov": ("covariance_matrix",),
    "chol": ("scale_tril",),
    "tau": ("precision_matrix",),
}


# Other parameterisations, by distribution and what is given, and how to write them.
_OTHERWISE = {
    ("Beta", "mean"): "write BetaProportion(mean, concentration)",
    ("Exponential", "scale"): "write rate=1 / scale",
    ("Gamma", "mean"): "write concentration=(mean / sd) ** 2, rate=mean / sd**2",
    ("Gamma", "scale"): "write rate=1 / scale",
    ("InverseGamma", "scale"): "write rate=scale",
    ("NegativeBinomial", "mean"): "write NegativeBinomial2(mean, concentration)",
    ("Normal", "tau"): "write scale=tau**-0.5",
    ("Normal", "variance"): "write scale=sqrt(variance)",
}
# What PyMC, TFP and NumPy call the shape of independent copies.
_COPIES = {"shape", "size", "sample_shape", "batch_shape", "dims"}
_SAME = {"mu": "mean", "var": "variance", "precision": "tau"}


def cure_for_name(owner: str, name: str, fields: Iterable[str]) -> str:
    """What to write for an argument that a distribution does not have."""
    fields = list(fields)
    if name in _COPIES and not any(spelling in fields for spelling in _MEANT.get(name, ())):
        return "write .expand((n,)) behind it, or put the statement in a plate of that size"
    otherwise = _OTHERWISE.get((owner, _SAME.get(name, name)))
    spelled = any(spelling in fields for spelling in _MEANT.get(name, ()))
    if otherwise and not spelled:
        return otherwise
    near = closest(name, fields, _MEANT)
    return f"did you mean {near}?" if near else "see the signature of the class"
