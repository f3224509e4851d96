"""NumPyro's names for Gibbs samplers around a kernel, which make a `Gibbs` (gibbs.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.gibbs.gibbs import Gibbs
from probtorch.infer.mcmc.gibbs.given_updates import FullConditional
from probtorch.infer.mcmc.kernel import Kernel

__all__ = ["DiscreteHMCGibbs", "HMCGibbs"]


def DiscreteHMCGibbs(  # NumPyro's name
    inner_kernel: Kernel, *, random_walk: bool = False, modified: bool = False
) -> Gibbs:
    """Return a `Gibbs` kernel that moves continuous sites by a kernel, and draws discrete ones.

    NumPyro's class of that name; `Gibbs` says more, and takes more kinds of blocks.

    Parameters
    ----------
    inner_kernel : Kernel
        `HMC` or `NUTS` with the model; other kernels do as well.
    random_walk : bool
        Propose one of the other values, each as likely as any.
    modified : bool
        Propose another value in proportion to its probability [liu1996]_.

    Returns
    -------
    Gibbs

    Raises
    ------
    ArgumentError
        If the inner kernel is none, or both options are asked for.

    References
    ----------
    [liu1996]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, NUTS, DiscreteHMCGibbs
    >>> def model(probs, locs, y):
    ...     c = probtorch.sample("c", dist.Categorical(probs))
    ...     x = probtorch.sample("x", dist.Normal(locs[c], 0.5))
    ...     probtorch.sample("y", dist.Normal(x, 1.0), obs=y)
    >>> probs, locs = probtorch.tensor([0.15, 0.3, 0.55]), probtorch.tensor([-0.5, 0.0, 0.5])
    >>> kernel = DiscreteHMCGibbs(NUTS(model), modified=True)
    >>> mcmc = MCMC(kernel, num_samples=2000, num_chains=2, seed=0, progress_bar=False)
    >>> draws = mcmc.run(probs, locs, probtorch.tensor(0.5))
    >>> bool(abs((draws.posterior["c"] == 2).mean() - 0.596) < 0.05)
    True
    """
    _check_kernel("DiscreteHMCGibbs", inner_kernel)
    if random_walk and modified:
        raise ArgumentError(
            "DiscreteHMCGibbs(random_walk, modified)",
            expected="one of them",
            got="both",
            fix="modified=True looks at all values, random_walk=True at one",
        )
    return Gibbs(
        inner_kernel.model,
        potential_fn=inner_kernel.potential_fn,
        init_strategy=inner_kernel.init_strategy,
        reparam=inner_kernel.reparam,
        kernel=inner_kernel,
        discrete="metropolis" if random_walk else "modified" if modified else "conditional",
    )


def HMCGibbs(
    inner_kernel: Kernel,
    gibbs_fn: Callable[..., Mapping[str, TensorLike]],
    gibbs_sites: Sequence[str],
) -> Gibbs:
    """Return a `Gibbs` kernel that draws some sites by a function, and moves the rest by a kernel.

    NumPyro's class of that name; `Gibbs` takes several such functions, as `FullConditional`.

    Parameters
    ----------
    inner_kernel : Kernel
        `HMC` or `NUTS` with the model; other kernels do as well.
    gibbs_fn : callable
        ``gibbs_fn(rng_key=..., gibbs_sites=..., hmc_sites=...)``, which draws new values of
        `gibbs_sites` from their distribution given all others, a dict of tensors; `rng_key` is a
        Generator. See `FullConditional`.
    gibbs_sites : list of str

    Returns
    -------
    Gibbs

    Raises
    ------
    ArgumentError
        If the inner kernel is none, or `gibbs_sites` is empty.

    Notes
    -----
    Nothing can check that the function draws from the conditional distribution: try it on data that
    the model made, or against `NUTS`.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, NUTS, HMCGibbs
    >>> def model(total):
    ...     x = probtorch.sample("x", dist.Normal(0.0, 2.0))
    ...     y = probtorch.sample("y", dist.Normal(0.0, 2.0))
    ...     probtorch.sample("total", dist.Normal(x + y, 1.0), obs=total)
    >>> def draw_x(rng_key, gibbs_sites, hmc_sites):
    ...     new = dist.Normal(0.8 * (1.0 - hmc_sites["y"]), 0.8**0.5)
    ...     return {"x": new.sample(generator=rng_key)}
    >>> kernel = HMCGibbs(NUTS(model), draw_x, ["x"])
    >>> mcmc = MCMC(kernel, num_samples=2000, num_chains=2, seed=0, progress_bar=False)
    >>> draws = mcmc.run(probtorch.tensor(1.0))
    >>> bool(abs(draws.posterior["x"].mean() - 4.0 / 9.0) < 0.15)
    True
    """
    _check_kernel("HMCGibbs", inner_kernel)
    names = (gibbs_sites,) if isinstance(gibbs_sites, str) else tuple(gibbs_sites)
    if not names or not callable(gibbs_fn):
        raise ArgumentError(
            "HMCGibbs(inner_kernel, gibbs_fn, gibbs_sites)",
            expected="a function, and the sites that it draws",
            got=f"{gibbs_fn!r:.40} and {gibbs_sites!r:.40}",
            fix='write HMCGibbs(NUTS(model), draw, ["x"])',
        )
    return Gibbs(
        inner_kernel.model,
        {names: FullConditional(gibbs_fn)},
        init_strategy=inner_kernel.init_strategy,
        reparam=inner_kernel.reparam,
        kernel=inner_kernel,
    )


def _check_kernel(name: str, inner_kernel: object) -> None:
    if isinstance(inner_kernel, Kernel):
        return
    raise ArgumentError(
        f"{name}(inner_kernel)",
        expected="a kernel such as NUTS(model)",
        got=f"{inner_kernel!r:.60}",
        fix=f"wrap the model: {name}(NUTS(model), ...)",
    )


explain_calls(globals())
