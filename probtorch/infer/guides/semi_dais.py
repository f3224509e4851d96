"""`AutoSemiDAIS`: annealed dynamics for the rows of a plate, another guide for what they share.

`AutoDAIS` needs all latent numbers at once, so it cannot follow a model that works on subsamples of
them. Given the global sites, rows are independent: each is moved by dynamics of its own, along the
gradient of its part of the density, and a step meets the rows of its minibatch alone. Which sites
are local is read off the plates. The steps are those of annealing.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import numpy as np

from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.distributions import constraints
from probtorch.distributions.normal import Normal
from probtorch.distributions.uniform import Delta
from probtorch.effects.handlers import block, replay, substitute, trace
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.minibatches import AllRows
from probtorch.effects.plates import plate
from probtorch.effects.primitives import param, sample
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Frame, Site
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.guides.annealing import (
    AnnealingSteps,
    annealed,
    depth_of,
    no_closed_form,
    no_part,
    run_of_continuous,
)
from probtorch.infer.guides.base import (
    SummarisedByDraws,
    check_scale,
    drawn_side_by_side,
    particles_here,
    plate_at,
)
from probtorch.infer.guides.layout import SiteBlock
from probtorch.infer.guides.local_numbers import AsBase, LocalCall, LocalNumbers
from probtorch.infer.guides.mean_field import AutoNormal
from probtorch.infer.model_runs import lifted
from probtorch.infer.starts.initialization import Strategy, init_to_median, init_to_value
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total

__all__ = ["AutoSemiDAIS"]


class AutoSemiDAIS(SummarisedByDraws):
    """Differentiable annealed importance sampling for the rows of a plate that works on subsamples.

    Parameters
    ----------
    model : callable
        With continuous latent sites, some of them in the plate: the local ones.
    local_model : callable, optional
        The part of the model inside the plate, whose gradients move the draws; the whole model, at
        the values of the global sites, if left out. Called with what the model of `global_guide`
        returns; with the model's arguments if that has no ``.model`` or is left out.
    global_guide : callable, optional
        Guide of the global latent sites, called with the model's arguments; an `AutoNormal` of them
        if left out.
    local_guide : callable, optional
        What draws begin with, called as `local_model` (as the model without one): a guide of the
        local sites in the same plate, from a network perhaps, with draws that are differentiable.
        An independent normal for each row if left out.
    prefix, dtype
        See `AutoGuide`.
    K, eta_init, eta_max, gamma_init
        As for `AutoDAIS`.
    init_scale : float
        Standard deviation of the normals to start with, on the unconstrained scale.
    init_loc_fn : callable
        Where their means start; see `AutoGuide`.
    create_plates : callable, optional
        See `AutoGuide`.
    subsample_plate : str, optional
        The plate of the local sites; the one that works on subsamples if left out, and if none
        does, the only one with latent sites.
    use_global_dais_params : bool
        Whether all rows have the same step sizes, temperatures, momenta and masses.

    Raises
    ------
    ArgumentError
        If a number is out of its bounds, or what is to be called cannot be.
    InferenceError
        At the first call: if the model has discrete latent sites, or not exactly one plate of local
        sites; if a guide or a local model states other sites than it should; in an `AutoGuideList`.
        When draws are asked for, if the model's caller chooses the rows.

    Notes
    -----
    The bound is below the log evidence whatever the parameters are, and with one particle of it
    each row has its own weight. Parameters are those of the global guide, ``auto_loc`` and
    ``auto_scale`` of the normals, shape (rows, ..., numbers of a row), and, with rows in front
    unless they are shared, ``auto_eta_0``, ``auto_eta_coeff``, ``auto_gamma``,
    ``auto_beta_increments`` and ``auto_inv_mass_matrix`` as of `AutoDAIS`.

    Steps that are small beside the scale of a row tell little of whether larger ones are better, so
    give an `eta_max` of about that scale. Shared steps learn from all rows at every step.

    Draws, medians and quantiles, those of 10 000 draws, are of all rows, made with the arguments of
    the first call a minibatch at a time. There is no `get_posterior`.

    References
    ----------
    Geffner and Domke (2022), "Variational inference with locally enhanced bounds for hierarchical
    models"; Jankowiak and Phan (2022), "Surrogate likelihoods for variational annealed importance
    sampling"; Zhang, Hsu, Li, Finn and Grosse (2021), as for `AutoDAIS`.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoSemiDAIS
    >>> from probtorch.optim import Adam
    >>> y = probtorch.linspace(-2.0, 2.0, 50)
    >>> def model():
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    ...     with probtorch.plate("row", 50, subsample_size=10) as rows:
    ...         z = probtorch.sample("z", dist.Normal(mu, 1.0))
    ...         probtorch.sample("y", dist.Normal(z, 0.5), obs=y[rows])
    >>> guide = AutoSemiDAIS(model, K=3)
    >>> result = SVI(model, guide, Adam({"lr": 0.01}), seed=0).run(3, progress_bar=False)
    >>> {name: tuple(x.shape) for name, x in guide.sample_posterior(100).items()}
    {'mu': (100,), 'z': (100, 50)}
    """

    def __init__(
        self,
        model: Callable[..., object],
        local_model: Callable[..., object] | None = None,
        global_guide: Callable[..., object] | None = None,
        local_guide: Callable[..., object] | None = None,
        *,
        prefix: str = "auto",
        K: int = 4,
        eta_init: float = 0.01,
        eta_max: float = 0.1,
        gamma_init: float = 0.9,
        init_scale: float = 0.1,
        init_loc_fn: Strategy = init_to_median,
        create_plates: Callable[..., plate | Iterable[plate]] | None = None,
        subsample_plate: str | None = None,
        use_global_dais_params: bool = False,
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(
            model, init_loc_fn=init_loc_fn, create_plates=create_plates, prefix=prefix, dtype=dtype
        )
        for name, part in (
            ("local_model", local_model),
            ("global_guide", global_guide),
            ("local_guide", local_guide),
        ):
            if part is not None and not callable(part):
                raise ArgumentError(
                    f"AutoSemiDAIS({name}=...)",
                    expected="a callable with sample statements, or None",
                    got=repr(part),
                    fix="leave it out for the default",
                )
        self.local_model, self.global_guide, self.local_guide = (
            local_model,
            global_guide,
            local_guide,
        )
        self.steps = AnnealingSteps("AutoSemiDAIS", K, eta_init, eta_max, gamma_init)
        self.init_scale = check_scale("AutoSemiDAIS", init_scale)
        self.subsample_plate = subsample_plate
        self.use_global_dais_params = use_global_dais_params
        # Known from the first call on: what it was given, how many batch dims the model has, the
        # plate, where the numbers of local sites are in a row, and the guide of the others.
        self._given: tuple[tuple[object, ...], dict[str, object]] = ((), {})
        self._depth = 0
        self._frame: Frame | None = None
        self._blocks: dict[str, SiteBlock] = {}
        self._shared: tuple[str, ...] = ()
        self._of_shared: Callable[..., object] | None = None

    # --------------------------------------------------------------------------- the first call

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the model to find its latent sites, and which of them are local."""
        if self.latents:
            return
        given = (lifted(args), lifted(kwargs)) if self.precise else (args, kwargs)
        self._depth, self._given = depth_of(run_of_continuous(self, *given)), given
        super().setup(*args, **kwargs)
        try:
            self._divide()
        except InferenceError:
            self.latents = {}
            raise

    def _divide(self) -> None:
        """Tell local sites from global ones, by the plate."""
        frames = [f for latent in self.latents.values() for f in latent.frames]
        few = {f.name for f in frames if f.subsampled}
        names = {self.subsample_plate} if self.subsample_plate is not None else few
        names = names or {f.name for f in frames}
        found = [f for f in frames if f.name in names]
        if len(names) != 1 or not few <= names or len({f.dim for f in found}) != 1:
            dims = {f.name: f.dim for f in frames}
            raise InferenceError(
                f"{self.__name__}: the plate of the local latent sites",
                expected="one plate with latent sites, at one dim, and no other whose latent sites "
                "come and go",
                got=(", ".join(f"{n!r} at dim {d}" for n, d in dims.items()) or "none")
                + f"; of these on subsamples: {', '.join(map(repr, sorted(few))) or 'none'}",
                fix="say which by subsample_plate=...; for a model without one use AutoDAIS, for "
                "several on subsamples AutoNormal",
            )
        self._frame = frame = found[0]
        local = {
            name: latent
            for name, latent in self.latents.items()
            if any(f.name == frame.name for f in latent.frames)
        }
        self._blocks = {name: SiteBlock.of(latent, (frame,)) for name, latent in local.items()}
        self._shared = tuple(name for name in self.latents if name not in local)
        self._of_shared = self.global_guide
        if self.global_guide is None and self._shared:
            starts = {name: self.latents[name].init for name in self._shared}
            self._of_shared = AutoNormal(
                block(self.model, expose=list(self._shared)),
                init_to_value(values=starts, fallback=init_to_median),
                self.init_scale,
                prefix=self.prefix,
                dtype=self.dtype,
            )

    @property
    def _rows(self) -> Frame:
        """The plate of the local sites, as the first call had it."""
        assert self._frame is not None  # a call has been made
        return self._frame

    @property
    def _local(self) -> LocalNumbers:
        """Where the numbers of local sites are in a row."""
        return LocalNumbers(self._blocks, len(self._shape_of_rows()))

    @property
    def _size(self) -> int:
        """Numbers of a row."""
        return self._local.size

    # -------------------------------------------------------------------------------- drawing

    def forward(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Draw all latent sites; return their values by name."""
        self.setup(*args, **kwargs)
        with self._in_store():
            with trace() as chosen:
                plates = self._plates(args, kwargs)
            values = self._values_of_shared(args, kwargs)
            z = self._annealed(values, plates, chosen, args, kwargs)
            for name, free in self._local.cut(z).items():
                latent = self.latents[name]
                with self._within(latent, plates):
                    values[name] = self._state(latent, free)
        return {name: values[name] for name in self.latents}

    def draw(self, plates: dict[str, plate]) -> dict[str, TensorBase]:
        """Refuse: in a list of guides the density of the other sites is not known here."""
        raise no_part(self.__name__)

    def _values_of_shared(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> dict[str, TensorBase]:
        """Draw the global sites by their guide."""
        if self._of_shared is None:
            return {}
        with trace() as seen:
            self._of_shared(*args, **kwargs)
        names = [n for n in seen.stochastic_nodes if n in self.latents]
        self._check_sites("the global guide", names, self._shared)
        return {name: seen[name].value for name in self._shared}

    def _check_sites(self, what: str, found: Iterable[str], wanted: Iterable[str]) -> None:
        if set(found) != set(wanted):
            raise InferenceError(
                f"{self.__name__}: the latent sites of {what}",
                expected=f"{', '.join(map(repr, wanted)) or 'none'}",
                got=", ".join(map(repr, found)) or "none",
                fix="state each with the name that it has in the model, and no other",
            )

    def _annealed(
        self,
        values: Mapping[str, TensorBase],
        plates: Mapping[str, plate],
        chosen: Mapping[str, Site],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> TensorBase:
        """Draw rows from the base, move them, and state them as the helper site of the rows."""
        if self.precise:
            args, kwargs = lifted(args), lifted(kwargs)
        args, kwargs = self._arguments(values, args, kwargs)
        rows = plate_at(plates, self._rows)
        call = LocalCall(
            values, {rows.name: chosen[rows.name]}, rows.size / rows.full_size, args, kwargs
        )
        helper = {"is_auxiliary": True}
        z, log_det, base = self._base(rows, call)
        unit = Normal(wrap(np.zeros((self.steps.K + 1, self._size), self.dtype)), 1.0).to_event(2)
        own = () if self.use_global_dais_params else self._shape_of_rows()
        with rows:
            # Their densities are in the ratios below.
            noise = sample(f"_{self.prefix}_momentum", unit.mask(False), infer=helper)
            schedule = self.steps.schedule(self.prefix, self._size, self.dtype, own)
        run, hidden = self.local_model, block(hide_fn=lambda site: site.kind != "param")
        if run is None:
            run, hidden = self.model, block()

        def slope(z: TensorBase, beta: TensorBase) -> TensorBase:
            recording = z.requires_grad
            with enable_grad():
                at = z if recording else z.detach().requires_grad_()
                # Neither particles nor rows see each other: the gradient of the sum is that of
                # each.
                density = self._log_prob(run, hidden, at, call)
                (up,) = grad(density, [at], create_graph=recording)
                (back,) = grad(base(at), [at], create_graph=recording)
            return beta * up + (1.0 - beta) * back

        z, log_ratio = annealed(z, noise, schedule, slope)
        with rows:
            return sample(f"_{self.prefix}_latent", Delta(z, log_det - log_ratio, 1), infer=helper)

    def _shape_of_rows(self) -> tuple[int, ...]:
        """Batch shape of what has a value for each row of the plate."""
        frame = self._rows
        assert frame.dim is not None  # a sequential plate is none of a latent site
        return (frame.full_size, *(1,) * (-frame.dim - 1))

    def _arguments(
        self,
        values: Mapping[str, TensorBase],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """What the local model and the local guide are called with."""
        model = getattr(self.global_guide, "model", None)
        if self.local_model is None or model is None:
            return args, kwargs
        with contextlib.ExitStack() as stack:
            for handler in (block(), *particles_here(), substitute(data=dict(values))):
                stack.enter_context(handler)
            return (model(*args, **kwargs),), {}

    def _base(
        self, rows: plate, call: LocalCall
    ) -> tuple[TensorBase, TensorBase, Callable[[TensorBase], TensorBase]]:
        """State what draws begin with: the rows, log Jacobians not stated yet, log density."""
        prefix, guide = self.prefix, self.local_guide
        if guide is not None:
            with AsBase(f"_{prefix}_base_"), replay(trace=call.rows), trace() as seen:
                guide(*call.args, **call.kwargs)
            start = len(f"_{prefix}_base_")
            drawn = {name[start:]: seen[name].value for name in seen.stochastic_nodes}
            self._check_sites("the local guide", drawn, self._blocks)
            z, log_det = self._local.packed(drawn)
            return z, log_det, lambda at: self._log_prob(guide, block(), at, call)
        with rows:
            loc = param(f"{prefix}_loc", self._start, constraints.real, 1)
            scale = param(
                f"{prefix}_scale",
                lambda: np.full((*self._shape_of_rows(), self._size), self.init_scale, self.dtype),
                constraints.softplus_positive,
                1,
            )
            base = Normal(loc, scale).to_event(1)
            z = sample(f"_{prefix}_base", base, infer={"is_auxiliary": True})
        return z, total(z, -1) * 0.0, lambda at: total(base.log_prob(at))

    def _start(self) -> np.ndarray:
        """Where the rows start, shape (rows, ..., numbers of a row)."""
        shape = self._shape_of_rows()
        parts = [p.laid_out(self._init(p.latent)) for p in self._blocks.values()]
        return np.concatenate([x.reshape(*shape, -1) for x in parts], axis=-1)

    def _log_prob(
        self, run: Callable[..., object], hidden: Handler, z: TensorBase, call: LocalCall
    ) -> TensorBase:
        """Log density of the rows in use, with Jacobians, summed over rows and particles."""
        values, found = dict(call.values), total(z) * 0.0
        for name, free in self._local.cut(z).items():
            values[name], log_det = self.latents[name].transform.call_and_ladj(free)
            found = found + total(log_det)
        # Handlers outside do not see this run, but several particles are several here too.
        with contextlib.ExitStack() as stack:
            for handler in (hidden, *particles_here(), replay(trace=call.rows)):
                stack.enter_context(handler)
            seen = stack.enter_context(trace())
            stack.enter_context(substitute(data=values))
            run(*call.args, **call.kwargs)
        if run is not self.model:
            names = [n for n in seen.stochastic_nodes if n not in call.values]
            what = "the local model" if run is self.local_model else "the local guide"
            self._check_sites(what, names, self._blocks)
        for site in seen.nodes.values():
            if site.has_density and any(f.name == self._rows.name for f in site.plates):
                # The plate counts its rows for all: the gradient is that of the rows themselves.
                found = found + call.share * total(site.compute_log_prob())
        return found

    # ------------------------------------------------------------------------------- questions

    def get_posterior(self) -> NoReturn:
        """Refuse: the guide has no density in closed form; ask for draws."""
        raise no_closed_form(self.__name__)

    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return draws on the unconstrained scale, of all rows; see `AutoGuide.free_draws`."""
        frame = self._rows
        if frame.name in self._chosen_by_caller:
            raise InferenceError(
                f"{self.__name__}: draws of all rows of plate {frame.name!r}",
                expected="a model that can be run on any of its rows",
                got="rows that the model's caller chooses, and data of these alone",
                fix=f"give the model all data and write plate({frame.name!r}, {frame.full_size}, "
                "subsample_size=...) in it",
            )
        with contextlib.ExitStack() as stack:
            stack.enter_context(block(hide_fn=lambda site: site.kind != "param"))
            stack.enter_context(seed_handler(None, generator))
            if frame.loader is not None:
                stack.enter_context(AllRows(lifted if self.precise else None).activate())
            return drawn_side_by_side(self._draw_all_rows, shape)

    def _draw_all_rows(self) -> dict[str, TensorBase]:
        """A draw of the shared numbers and of all rows given them, on the unconstrained scale."""
        frame, (args, kwargs) = self._rows, self._given
        values = self._values_of_shared(args, kwargs)
        size = frame.size if frame.loader is None else frame.full_size
        parts = []
        for first in range(0, frame.full_size, size):
            # As many rows as the model is used to; of the last some come twice.
            start = min(first, frame.full_size - size)
            with trace() as chosen:
                made = self._plate_of(frame, np.arange(start, start + size))
            drawn = self._annealed(values, {frame.name: made}, chosen, args, kwargs)
            parts.append(reshape(drawn.detach(), (size, self._size))[first - start :])
        found = {}
        for name in self._shared:
            latent = self.latents[name]
            found[name] = reshape(latent.transform.inv(values[name].detach()), latent.free_shape)
        depth = max(piece.latent.batch_ndim for piece in self._blocks.values())
        wide = self._shape_of_rows()
        vectors = reshape(cat(parts), (*(1,) * (depth - len(wide)), *wide, self._size))
        for name, free in self._local.cut(vectors).items():
            found[name] = reshape(free, self.latents[name].free_shape)
        return {name: found[name] for name in self.latents}

    def _plate_of(self, frame: Frame, rows: np.ndarray) -> plate:
        """The plate of the local sites on given rows, or on all of its loader."""
        if frame.loader is not None:
            return plate(frame.name, frame.full_size, dim=frame.dim, loader=frame.loader)
        return plate(frame.name, frame.full_size, subsample=wrap(rows), dim=frame.dim)
