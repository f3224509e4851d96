"""Where a loss that is not finite comes from: the first site to blame, in words."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.site import Site
from probtorch.infer.objectives.runs import Run

__all__ = ["bad_entries", "first_non_finite"]


def first_non_finite(runs: Iterable[Run]) -> tuple[str, str | None]:
    """Return what is wrong at the first site that is not finite, and the line it is at.

    Parameters
    ----------
    runs : iterable of Run
        Made with validation off: parameters and values are not refused on the way.

    Returns
    -------
    what : str
    at : str or None
        The "file:line" of the site; None when no site is to blame.
    """
    try:
        for run in runs:
            for where, found in (("guide", run.guide), ("model", run.model)):
                for site in found.nodes.values():
                    what = _wrong_with(site)
                    if what is not None:
                        return f"{what} ({where})", site.location
    except Exception as error:
        # What stops the run there is what stopped the step: the user has to read it.
        return f"{type(error).__name__}: {error}".split("\n")[0], getattr(error, "location", None)
    return "no site is to blame: the loss itself is not finite", None


def _wrong_with(site: Site) -> str | None:
    """What is not finite about a site, None if all is well."""
    if site.kind == "param":
        bad = bad_entries(site.value)
        return bad and f"param {site.name!r} is {bad}"
    if not site.has_density:
        return None
    fn = site.fn
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    for name in getattr(fn, "arg_constraints", ()):
        bad = bad_entries(getattr(fn, name))
        if bad:
            return f"parameter {name} of site {site.name!r} is {bad}"
    bad = bad_entries(site.value)
    if bad:
        return f"the value of site {site.name!r} is {bad}"
    if site.kind == "sample" and not hasattr(fn, "log_prob"):
        return None
    bad = bad_entries(site.compute_log_prob())
    return bad and f"the log density of site {site.name!r} is {bad}"


def bad_entries(value: object) -> str | None:
    """Say which entries of a tensor are not finite, the first one by its index; None if none."""
    if not isinstance(value, TensorBase) or value.array.dtype.kind != "f":
        return None
    array = to_host(value.array)
    wrong = ~np.isfinite(array)
    if not wrong.any():
        return None
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    if array.ndim == 0:
        return f"{array}"
    return f"{array[first]} at index {first} ({int(wrong.sum())} of {array.size} entries)"
