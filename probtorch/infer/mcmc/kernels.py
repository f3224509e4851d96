"""`NUTS` and `HMC` as users construct them: settings, from which the driver builds a kernel for a
target.

Pyro's signatures, with NumPyro's names as keyword aliases. The settings hold no state of a run, so
one object serves any number of runs; the kernels proper are `HMCKernel` and `NUTSKernel`.
"""

import math

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explained
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.adaptive_steps import ENERGY_TOLERANCE, MAX_HALVINGS, AdaptiveSteps
from probtorch.infer.mcmc.hmc import HMCKernel
from probtorch.infer.mcmc.integrators import FixedSteps
from probtorch.infer.mcmc.metric_settings import (
    block_places,
    chosen_metric,
    form_of,
    given_inverse_mass,
    metric_of,
)
from probtorch.infer.mcmc.nuts import NUTSKernel
from probtorch.infer.path_starts import init_to_typical_set
from probtorch.infer.potential import Target

__all__ = ["HMC", "NUTS", "GradientKernel"]

DEEPEST_TREE = 20
MOST_HALVINGS = 20
# Settings of the driver that are given to the kernel, and where they go.
_ELSEWHERE = (
    "draws num_samples tune num_warmup warmup_steps chains num_chains seed rng_key random_seed "
    "progress_bar"
)
_DRIVER = "it belongs to the driver: MCMC(NUTS(model), num_samples=1000, num_chains=4, seed=0)"
# What other libraries call the settings, or where they belong.
MEANT = {
    "max_treedepth": "max_tree_depth",
    "max_depth": "max_tree_depth",
    "target_accept": "target_accept_prob",
    "adapt_delta": "target_accept_prob",
    "delta": "target_accept_prob",
    "init": "init_strategy",
    "mass_matrix": "inverse_mass_matrix",
    "mass_matrix_type": "metric",
    "path_length": "trajectory_length",
    **dict.fromkeys(_ELSEWHERE.split(), _DRIVER),
}


class GradientKernel:
    """What `HMC` and `NUTS` have in common: where the target comes from, and what is adapted to it.

    Attributes
    ----------
    model, potential_fn : callable or None
    step_size, target_accept_prob : float
    adapt_step_size, adapt_mass_matrix, search : bool
    metric : str or tuple of tuple of str
        "auto", "diag", "low_rank" or "dense", or the blocks of sites.
    inverse_mass_matrix : ndarray, dict or None
    init_strategy : callable
    """

    name = "kernel"

    def __init__(
        self,
        model,
        potential_fn,
        *,
        step_size,
        adapt_step_size,
        adapt_mass_matrix,
        metric,
        full_mass,
        dense_mass,
        inverse_mass_matrix,
        find_heuristic_step_size,
        target_accept_prob,
        init_strategy,
        transforms,
    ):
        if (model is None) == (potential_fn is None):
            raise ArgumentError(
                self.name,
                expected="one of model and potential_fn",
                got="both" if model is not None else "neither",
                fix=f"write {self.name}(model), or {self.name}(potential_fn=minus_log_density)",
            )
        if transforms is not None:
            raise ArgumentError(
                f"{self.name}(transforms=...)",
                expected="None",
                got=type(transforms).__name__,
                fix="a site is transformed by the support of its distribution; see reparam",
            )
        self.model, self.potential_fn = model, potential_fn
        self.step_size = _checked(self.name, "step_size", step_size, 0.0, math.inf)
        self.target_accept_prob = _checked(
            self.name, "target_accept_prob", target_accept_prob, 0.0, 1.0
        )
        self.adapt_step_size, self.adapt_mass_matrix = (
            bool(adapt_step_size),
            bool(adapt_mass_matrix),
        )
        self.search = (
            self.adapt_step_size
            if find_heuristic_step_size is None
            else bool(find_heuristic_step_size)
        )
        self.metric = chosen_metric(self.name, metric, full_mass, dense_mass)
        self.inverse_mass_matrix = given_inverse_mass(self.name, inverse_mass_matrix)
        if not callable(init_strategy):
            raise ArgumentError(
                f"{self.name}(init_strategy=...)",
                expected="a function, such as init_to_median()",
                got=repr(init_strategy),
                fix="import init_to_uniform, init_to_median or init_to_value from probtorch.infer",
            )
        self.init_strategy = init_strategy

    # ------------------------------------------------------------------------------- for the driver

    def target(self, args, kwargs, init_params=None):
        """Return the `Target` for the arguments of a run.

        `init_params`, for one chain, says what the variables of a potential look like.
        """
        if isinstance(self.model, Target):
            return self.model
        if self.model is not None:
            return Target.from_model(self.model, *args, **kwargs)
        if init_params is None:
            raise ArgumentError(
                f"{self.name}(potential_fn=...)",
                expected="run(init_params=...), which gives names and shapes",
                got="no init_params",
                fix="pass an array of shape (dim,), or a dict of arrays by name",
            )
        return Target.from_potential(self.potential_fn, init_params)

    @property
    def starts_with_metric(self):
        """Whether the user gave the metric to begin with."""
        return self.inverse_mass_matrix is not None

    def form(self, dim, places=()):
        """Return the `Form` of mass matrices for `dim` coordinates, with blocks at `places`."""
        return form_of(self.metric, self.inverse_mass_matrix, dim, places)

    def places(self, target):
        """Return the coordinates of each dense block, a list of arrays; empty if there are none."""
        return block_places(self.name, self.metric, self.inverse_mass_matrix, target)

    def first_metric(self, target):
        """Return the metric to begin with.

        Raises
        ------
        ShapeError
            If the inverse mass matrix that was given does not fit the target.
        """
        form = self.form(target.dim, self.places(target))
        if self.inverse_mass_matrix is None:
            return form.identity()
        return metric_of(self.name, self.inverse_mass_matrix, form, target)

    def build(self, density, metric):
        """Return the kernel for a density, with a metric."""
        raise NotImplementedError(f"{self.name} does not say which kernel it builds")

    def attrs(self):
        """Return the settings that results should carry."""
        return {
            "kernel": self.name,
            "target_accept_prob": self.target_accept_prob,
            "metric": self.metric if isinstance(self.metric, str) else str(self.metric),
            "adapt_step_size": self.adapt_step_size,
            "adapt_mass_matrix": self.adapt_mass_matrix,
        }

    def __repr__(self):
        what = self.model if self.model is not None else self.potential_fn
        return f"{self.name}({getattr(what, '__name__', type(what).__name__)})"


class NUTS(GradientKernel):
    """The no-U-turn sampler: Hamiltonian Monte Carlo that finds how far to go by itself.

    Parameters
    ----------
    model : callable or Target, optional
        A model with sample statements.
    potential_fn : callable, optional
        Instead of a model: minus a log density, of a vector or a dict of unconstrained values; then
        `run` needs `init_params`.
    step_size : float
        To begin with, or to keep.
    adapt_step_size, adapt_mass_matrix : bool
        What warm-up tunes.
    metric : str or sequence of sequences of str
        What the mass matrix looks like: "diag", variances; "low_rank", variances and a few
        directions; "dense", all covariances; blocks of sites, ``[("a", "b"), ("c",)]``, each dense,
        with variances elsewhere; or "auto", low rank where the draws of the warm-up say that it
        pays, else diagonal. It is made of draws and gradients (see estimates.py).
    full_mass : bool or sequence, optional
        Pyro's spelling: True for "dense", False for "diag", or blocks of sites; `dense_mass` is
        NumPyro's.
    target_accept_prob : float, in (0, 1)
        Acceptance that the step size is tuned to; higher is slower, with fewer divergences.
    max_tree_depth : int, in [1, 20]
        A trajectory has at most 2**max_tree_depth - 1 steps.
    init_strategy : callable
        Where chains start; see `init_to_typical_set` and its kin. Stan's rule is `init_to_uniform`.
    inverse_mass_matrix : array_like, shape (dim,) or (dim, dim), or dict, optional
        Variances, or covariance, of the unconstrained parameters, to begin with or to keep; or by
        site, ``{"site": variances of its shape}``, 1 for sites that are left out, and
        ``{("a", "b"): covariance}`` for dense blocks of sites.
    find_heuristic_step_size : bool, optional
        Whether to look for a step size before adapting it; by default whenever it is adapted.
    adaptive_steps : bool
        Whether each step of a trajectory is halved as often as its energy error asks for (WALNUTS)
        [bourabee2025]_: for densities with narrow places (a funnel's neck, a latent Gaussian
        process for a scale), where a fixed step size diverges. Where no step needs it, it costs
        nothing. `step_size` is then that of the undivided step, and `target_accept_prob` the
        acceptance it would have.
    energy_tolerance : float
        With `adaptive_steps`: greatest difference between two energies within a step, in nats.
    max_halvings : int, in [1, 20]
        With `adaptive_steps`: a step that needs more is a divergence.
    use_multinomial_sampling : bool
        Only True: slice sampling, the older scheme, is less efficient.
    max_plate_nesting, jit_compile, jit_options, ignore_jit_warnings
        Accepted so that scripts run unchanged, and not needed here: plates place themselves, and
        everything is compiled.
    forward_mode_differentiation, regularize_mass_matrix
        The same: estimates from draws and gradients need no shrinking.
    transforms
        Only None.

    References
    ----------
    [hoffman2014]_, [betancourt2017]_; see nuts.py for the algorithm, adaptive_steps.py for steps.

    Examples
    --------
    >>> from probtorch.infer import MCMC, NUTS
    >>> kernel = NUTS(potential_fn=lambda q: 0.5 * (q["x"] * q["x"]).sum(), full_mass=True)
    >>> mcmc = MCMC(kernel, num_samples=500, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run(init_params={"x": [0.0, 0.0]})
    Draws(4 chains x 500 draws: x (2))
    >>> mcmc.get_samples()["x"].shape
    Size([2000, 2])
    """

    name = "NUTS"

    @explained("NUTS", meant=MEANT)
    def __init__(
        self,
        model=None,
        potential_fn=None,
        step_size=1,
        adapt_step_size=True,
        adapt_mass_matrix=True,
        full_mass=None,
        use_multinomial_sampling=True,
        transforms=None,
        max_plate_nesting=None,
        jit_compile=False,
        jit_options=None,
        ignore_jit_warnings=False,
        target_accept_prob=0.8,
        max_tree_depth=10,
        init_strategy=init_to_typical_set,
        *,
        metric="auto",
        dense_mass=None,
        inverse_mass_matrix=None,
        regularize_mass_matrix=True,
        find_heuristic_step_size=None,
        forward_mode_differentiation=False,
        adaptive_steps=False,
        energy_tolerance=ENERGY_TOLERANCE,
        max_halvings=MAX_HALVINGS,
    ):
        if not use_multinomial_sampling:
            raise ArgumentError(
                "NUTS(use_multinomial_sampling=False)",
                expected="True",
                got="False",
                fix="leave the argument out",
            )
        super().__init__(
            model,
            potential_fn,
            step_size=step_size,
            adapt_step_size=adapt_step_size,
            adapt_mass_matrix=adapt_mass_matrix,
            metric=metric,
            full_mass=full_mass,
            dense_mass=dense_mass,
            inverse_mass_matrix=inverse_mass_matrix,
            find_heuristic_step_size=find_heuristic_step_size,
            target_accept_prob=target_accept_prob,
            init_strategy=init_strategy,
            transforms=transforms,
        )
        if not (isinstance(max_tree_depth, int) and 1 <= max_tree_depth <= DEEPEST_TREE):
            raise ArgumentError(
                "NUTS(max_tree_depth=...)",
                expected=f"an int from 1 to {DEEPEST_TREE}",
                got=repr(max_tree_depth),
                fix="leave it at 10, which allows 1023 steps",
            )
        self.max_tree_depth = max_tree_depth
        self.adaptive_steps = bool(adaptive_steps)
        self.energy_tolerance = _checked(
            "NUTS", "energy_tolerance", energy_tolerance, 0.0, math.inf
        )
        if not (isinstance(max_halvings, int) and 1 <= max_halvings <= MOST_HALVINGS):
            raise ArgumentError(
                "NUTS(max_halvings=...)",
                expected=f"an int from 1 to {MOST_HALVINGS}",
                got=repr(max_halvings),
                fix=f"leave it at {MAX_HALVINGS}, which allows steps of 1/{2**MAX_HALVINGS}",
            )
        self.max_halvings = max_halvings

    def build(self, density, metric):
        """Return the `NUTSKernel` for a density, with a metric."""
        integrator = (
            AdaptiveSteps(self.energy_tolerance, self.max_halvings)
            if self.adaptive_steps
            else FixedSteps()
        )
        return NUTSKernel(
            density,
            wrap(np.asarray(self.step_size)),
            metric,
            max_tree_depth=self.max_tree_depth,
            integrator=integrator,
        )

    def attrs(self):
        """Return the settings that results should carry."""
        attrs = {**super().attrs(), "max_tree_depth": self.max_tree_depth}
        if self.adaptive_steps:
            attrs |= {
                "adaptive_steps": True,
                "energy_tolerance": self.energy_tolerance,
                "max_halvings": self.max_halvings,
            }
        return attrs


class HMC(GradientKernel):
    """Hamiltonian Monte Carlo with trajectories of a fixed length.

    Parameters
    ----------
    model, potential_fn, step_size, init_strategy
        As for `NUTS`.
    trajectory_length : float, optional
        Step size times number of steps, which follows the step size, up to 1024. 2 pi if neither it
        nor `num_steps` is given, as in Pyro; of a Gaussian that is a full period, which ends where
        it began, so give a length of 2 or so, or a `jitter`, where posteriors are near Gaussian.
    num_steps : int, optional
        A fixed number of leapfrog steps instead.
    jitter : float, in [0, 1)
        Each trajectory has its own step size, uniform within this share of the adapted one.
    adapt_step_size, adapt_mass_matrix, metric, full_mass, target_accept_prob, inverse_mass_matrix
        As for `NUTS`.
    regularize_mass_matrix, find_heuristic_step_size, forward_mode_differentiation
        As for `NUTS`; and like there, what the other keywords ask for needs no asking here.

    References
    ----------
    [neal2011]_.
    """

    name = "HMC"

    @explained("HMC", meant=MEANT)
    def __init__(
        self,
        model=None,
        potential_fn=None,
        step_size=1,
        trajectory_length=None,
        num_steps=None,
        adapt_step_size=True,
        adapt_mass_matrix=True,
        full_mass=None,
        transforms=None,
        max_plate_nesting=None,
        jit_compile=False,
        jit_options=None,
        ignore_jit_warnings=False,
        target_accept_prob=0.8,
        init_strategy=init_to_typical_set,
        *,
        metric="auto",
        jitter=0.0,
        dense_mass=None,
        inverse_mass_matrix=None,
        regularize_mass_matrix=True,
        find_heuristic_step_size=None,
        forward_mode_differentiation=False,
    ):
        super().__init__(
            model,
            potential_fn,
            step_size=step_size,
            adapt_step_size=adapt_step_size,
            adapt_mass_matrix=adapt_mass_matrix,
            metric=metric,
            full_mass=full_mass,
            dense_mass=dense_mass,
            inverse_mass_matrix=inverse_mass_matrix,
            find_heuristic_step_size=find_heuristic_step_size,
            target_accept_prob=target_accept_prob,
            init_strategy=init_strategy,
            transforms=transforms,
        )
        if trajectory_length is not None and num_steps is not None:
            raise ArgumentError(
                "HMC",
                expected="trajectory_length or num_steps",
                got="both",
                fix="give one; the other follows from the step size",
            )
        if num_steps is not None and not (isinstance(num_steps, int) and num_steps >= 1):
            raise ArgumentError(
                "HMC(num_steps=...)",
                expected="an int of at least 1",
                got=repr(num_steps),
                fix="try 10",
            )
        length = 2.0 * math.pi if trajectory_length is None else trajectory_length
        self.trajectory_length = _checked("HMC", "trajectory_length", length, 0.0, math.inf)
        self.num_steps = num_steps
        self.jitter = float(jitter)
        if not 0.0 <= self.jitter < 1.0:
            raise ArgumentError(
                "HMC(jitter=...)", expected="a number in [0, 1)", got=repr(jitter), fix="try 0.1"
            )

    def build(self, density, metric):
        """Return the `HMCKernel` for a density, with a metric."""
        step_size, length = (
            wrap(np.asarray(self.step_size)),
            wrap(np.asarray(self.trajectory_length)),
        )
        return HMCKernel(
            density,
            step_size,
            metric,
            length,
            num_steps=self.num_steps or 0,
            jitter=self.jitter,
        )

    def attrs(self):
        """Return the settings that results should carry."""
        length = (
            {"num_steps": self.num_steps}
            if self.num_steps
            else {"trajectory_length": self.trajectory_length}
        )
        return {**super().attrs(), **length}


def _checked(owner, name, value, low, high):
    """Return `value` as a float strictly between two bounds."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low < number < high:
        raise ArgumentError(
            f"{owner}({name}=...)",
            expected=f"a number in ({low:g}, {high:g})",
            got=f"{value!r:.60}",
            fix="leave it out for the default",
        )
    return number
