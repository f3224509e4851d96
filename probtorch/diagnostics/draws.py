"""`Draws`: what every inference engine returns.

One frozen record for MCMC, SVI, Laplace, SMC and the rest: arrays by name, with chains and draws in
front, the statistics of the sampler beside them, and the names of dims and coordinates that the
plates gave. Independent draws, as of a variational guide, are one chain. All arrays are plain
NumPy; names of groups and statistics are ArviZ's (`layout.py`), so `to_arviz` only changes the
container.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.arviz_ import (
    fields_from_datatree,
    read_datatree,
    to_arviz,
    to_datatree,
    write_netcdf,
    write_zarr,
)
from probtorch.diagnostics.layout import chosen, dim_names
from probtorch.diagnostics.stored import read_folder
from probtorch.diagnostics.summary import Summary, summary
from probtorch.errors import ArgumentError, ShapeError
from probtorch.serialization.files import replacing

if TYPE_CHECKING:
    import arviz
    import xarray

from probtorch.diagnostics.draw_checks import check_dims, check_groups
from probtorch.diagnostics.draw_files import read_npz, write_npz

__all__ = ["Draws"]


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """Draws from a posterior, with everything that is needed to judge, label and keep them.

    Parameters
    ----------
    posterior : dict of str to array_like, each (chain, draw, *event)
        Draws of the latent and deterministic sites, in the constrained space of the model.
    sample_stats : dict of str to array_like, each (chain, draw)
        What the sampler did, under ArviZ's names: ``diverging energy lp tree_depth n_steps
        reached_max_treedepth step_size acceptance_rate ...``.
    dims : dict of str to tuple of str
        Names of the event dims of a variable, outermost first. Dims left out at the end, or given
        as None, get names like ``theta_dim_1``. Those of a variable of the groups of predictions
        are under ``predictions/NAME``: its rows are not those of the data.
    coords : dict of str to sequence
        Labels along a dim.
    groups : dict of str to dict
        Other groups of ArviZ's schema: ``log_likelihood log_prior posterior_predictive predictions
        prior prior_predictive warmup_posterior warmup_sample_stats unconstrained_posterior`` with
        chain and draw in front, ``observed_data constant_data`` without.
    attrs : dict
        ``sampling_time`` (seconds), ``tuning_steps`` (per chain), ``model_name``,
        ``inference_library`` and the settings of the engine; values that JSON can hold.

    Raises
    ------
    ShapeError
        If chains, draws, or sizes of dims and coords do not agree.
    DTypeError
        If an array holds Python objects, or text where numbers are needed.
    ArgumentError
        If a group is unknown, or a dim is called ``chain``, ``draw`` or ``sample``.

    Notes
    -----
    Arrays are shared with the caller, never copied; memory-mapped arrays stay on disk.

    Examples
    --------
    >>> draws = Draws({"mu": np.zeros((4, 100)), "theta": np.zeros((4, 100, 2))},
    ...               dims={"theta": ("school",)}, coords={"school": ["Choate", "Deerfield"]})
    >>> draws
    Draws(4 chains x 100 draws: mu, theta (school: 2))
    """

    posterior: Mapping[str, np.ndarray]
    sample_stats: Mapping[str, np.ndarray] = field(default_factory=dict)
    dims: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    coords: Mapping[str, Sequence[object] | np.ndarray] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arrays = {
            group: {name: np.asarray(values) for name, values in variables.items()}
            for group, variables in self._given_groups().items()
        }
        coords = {dim: _coord(dim, labels) for dim, labels in self.coords.items()}
        dims = {
            name: (given,) if isinstance(given, str) else tuple(given)
            for name, given in self.dims.items()
        }
        check_groups(arrays)
        check_dims(arrays, dims, coords)
        fields = {
            "posterior": arrays.pop("posterior"), "sample_stats": arrays.pop("sample_stats"),
            "dims": dims, "coords": coords, "groups": arrays, "attrs": dict(self.attrs),
        }  # fmt: skip
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _given_groups(self) -> dict[str, Mapping[str, np.ndarray]]:
        return {"posterior": self.posterior, "sample_stats": self.sample_stats, **self.groups}

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return self._sizes()[0]

    @property
    def num_draws(self) -> int:
        """Number of draws per chain."""
        return self._sizes()[1]

    def _sizes(self) -> tuple[int, ...]:
        return next(iter((self.posterior or self.sample_stats).values())).shape[:2]

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the draws of a variable of the posterior, shape (chain, draw, *its shape)."""
        (known,) = chosen([name], self.posterior, f"draws[{name!r}]")
        return self.posterior[known]

    def __contains__(self, name: object) -> bool:
        return name in self.posterior

    def __iter__(self) -> Iterator[str]:
        return iter(self.posterior)

    def divergences(self) -> dict[str, np.ndarray]:
        """Return where the divergent transitions ended, for pair plots.

        Returns
        -------
        dict of str to ndarray
            "chain" and "draw", the numbers of the divergent draws, shape (count,); and each
            variable of the posterior at these draws, shape (count, *its shape).

        Examples
        --------
        >>> draws = Draws({"x": np.array([[0.5, 1.5]])}, {"diverging": np.array([[False, True]])})
        >>> draws.divergences()["x"]
        array([1.5])
        """
        diverging = self.sample_stats.get("diverging", np.zeros(self._sizes(), bool))
        chain, draw = np.nonzero(np.asarray(diverging, bool))
        values = {name: x[chain, draw] for name, x in self.posterior.items()}
        return {"chain": chain, "draw": draw, **values}

    def get_samples(
        self, group_by_chain: bool = False, names: str | Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the posterior draws as a dict of arrays.

        Parameters
        ----------
        group_by_chain : bool
            Keep the chain dim; by default chains are joined one after the other.
        names : str or sequence of str, optional
            Which variables; all by default.

        Returns
        -------
        dict of str to ndarray, each (chain * draw, *event) or (chain, draw, *event)
            Views of the draws where possible.
        """
        wanted = chosen(names, self.posterior, "get_samples")
        if group_by_chain:
            return {name: self.posterior[name] for name in wanted}
        total = self.num_chains * self.num_draws
        joined = {}
        for name in wanted:
            values = self.posterior[name]
            joined[name] = values.reshape((total, *values.shape[2:]))
        return joined

    def with_group(
        self,
        name: str,
        values: Mapping[str, ArrayLike],
        *,
        dims: Mapping[str, Sequence[str | None]] | None = None,
        coords: Mapping[str, Sequence[object]] | None = None,
    ) -> Self:
        """Return draws with a group added or replaced.

        Parameters
        ----------
        name : str
            A group of ArviZ's schema, such as ``log_likelihood``.
        values : dict of str to array_like
            Its variables.
        dims, coords : dict, optional
            Names and labels of dims that are new with this group.

        Returns
        -------
        Draws
        """
        added: dict[str, Any] = {
            "dims": {**self.dims, **(dims or {})},
            "coords": {**self.coords, **(coords or {})},
        }
        if name in ("posterior", "sample_stats"):
            added[name] = values
        else:
            added["groups"] = {**self.groups, name: values}
        return dataclasses.replace(self, **added)

    def select(self, names: str | Sequence[str]) -> Self:
        """Return draws of some variables only; statistics and the other groups are kept.

        Parameters
        ----------
        names : str or sequence of str
            Which variables of the posterior, in which order. The warm-up and the unconstrained
            draws are narrowed alike.

        Returns
        -------
        Draws
        """
        wanted = chosen(names, self.posterior, "select")
        narrowed = {
            group: {name: variables[name] for name in wanted if name in variables}
            for group, variables in self.groups.items()
            if group in ("warmup_posterior", "unconstrained_posterior")
        }
        return dataclasses.replace(
            self,
            posterior={name: self.posterior[name] for name in wanted},
            groups={**self.groups, **narrowed},
        )

    def summary(
        self,
        *,
        names: str | Sequence[str] | None = None,
        hdi_prob: float = 0.9,
        round_to: int | None = None,
    ) -> Summary:
        """Summarise each scalar parameter in one row; see `probtorch.diagnostics.summary`."""
        return summary(self, names=names, hdi_prob=hdi_prob, round_to=round_to)

    def log_likelihood(self) -> dict[str, np.ndarray]:
        """Return the log density of each observation at each draw.

        Returns
        -------
        dict of str to ndarray, each (chain, draw, *observations)
            By observed site, natural log.

        Raises
        ------
        ArgumentError
            If there is no group ``log_likelihood``.
        """
        found = self.groups.get("log_likelihood")
        if not found:
            raise ArgumentError(
                "log densities of the observations", expected="a group log_likelihood",
                got=f"groups {', '.join(self.groups) or '(none)'}",
                fix="compute them: probtorch.infer.log_likelihood(model, draws, *args); draws that "
                "know their model keep them by draws.extended(log_likelihood=True)",
            )  # fmt: skip
        return dict(found)

    def replications(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Return replications of the data, one per draw: the group ``posterior_predictive``.

        Parameters
        ----------
        seed : int
            For draws that know their model, and make the group where it is missing.

        Returns
        -------
        dict of str to ndarray, each (chain, draw, *shape)
        """
        return dict(self.groups.get("posterior_predictive", {}))

    def to_arviz(self) -> arviz.InferenceData | xarray.DataTree:
        """Return an `xarray.DataTree` (ArviZ 1 and later) or an InferenceData (0.22, 0.23).

        The latter's `to_zarr` refuses zarr 3: ``draws.save("x.zarr")`` writes such a store.
        """
        return to_arviz(self)

    def to_datatree(self) -> xarray.DataTree:
        """Return an `xarray.DataTree` with one node per group."""
        return to_datatree(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, or to a Zarr store.

        Parameters
        ----------
        path : str or path-like
            Ending in ``.npz`` for NumPy's format, which needs no other library; in ``.zarr`` for a
            Zarr store, a folder for ``xarray.open_datatree``, which needs the package zarr, and
            which `load` does not read; else netCDF, which ``arviz.from_netcdf`` reads.

        Notes
        -----
        The file appears complete or not at all, even if the process is killed meanwhile. Arrays
        that are mapped from the disk are written a piece at a time.

        Raises
        ------
        ArgumentError
            If a Zarr store is wanted, and the package is not there.
        FileError
            If the file cannot be written, say for want of room; what was there before is then
            unchanged.
        """
        path = os.fspath(path)
        if path.rstrip("/" + os.sep).endswith(".zarr"):
            write_zarr(self, path)
            return
        with replacing(path, shared=not path.endswith(".npz")) as stream:
            if path.endswith(".npz"):
                variables = {**self._given_groups(), "coords": self.coords}
                write_npz(stream, variables, self.dims, self.attrs, list(self.groups))
            else:
                write_netcdf(self, stream)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote, or any netCDF file in ArviZ's schema.

        Parameters
        ----------
        path : str or path-like
            The file. Nothing in it is executed: no pickles are read. Or the folder that
            ``MCMC.run(store=...)`` wrote to, of a run that has ended, was killed, or goes on.

        Returns
        -------
        Draws
            Everything in memory, the file closed; of a folder, arrays that are mapped from its
            files, with the draws that are there by now.

        Raises
        ------
        ArgumentError
            If the file holds no draws.
        FileError
            If the file is of another kind or damaged, or would unpack to far more than it holds.
        """
        path = os.fspath(path)
        if os.path.isdir(path):
            return cls(**read_folder(path))
        fields = read_npz(path) if path.endswith(".npz") else fields_from_datatree(
            read_datatree(path)
        )  # fmt: skip
        return cls(**fields)

    def __repr__(self) -> str:
        described = []
        for name, values in self.posterior.items():
            shape = values.shape[2:]
            named = (
                f"{size}" if dim == f"{name}_dim_{i}" else f"{dim}: {size}"
                for i, (dim, size) in enumerate(zip(dim_names(name, len(shape), self.dims), shape))
            )
            described.append(f"{name} ({', '.join(named)})" if shape else name)
        chains = "1 chain" if self.num_chains == 1 else f"{self.num_chains} chains"
        return f"Draws({chains} x {self.num_draws} draws: {', '.join(described)})"


# ------------------------------------------------------------------------------------------ checks


def _coord(dim: str, labels: Sequence[object] | np.ndarray) -> np.ndarray:
    """Labels as a flat array of numbers, dates or text; pairs, as of an index of two, as "a, 1"."""
    if not isinstance(labels, np.ndarray) and any(isinstance(label, tuple) for label in labels):
        labels = [
            ", ".join(map(str, label)) if isinstance(label, tuple) else label for label in labels
        ]
    labels = np.asarray(labels)
    if labels.dtype.kind == "O" and all(_is_plain_date(label) for label in labels.ravel()):
        labels = labels.astype("datetime64[us]")
        days = labels.astype("datetime64[D]")
        labels = days if (days == labels).all() else labels
    if labels.dtype.kind not in "biufUMm":
        labels = np.array([str(label) for label in labels.ravel()]).reshape(labels.shape)
    if labels.ndim != 1:
        raise ShapeError(
            f"coords of dim {dim!r}", expected="one label per entry, shape (n,)",
            got=f"shape {labels.shape}", fix="give a flat list of labels",
        )  # fmt: skip
    return labels


def _is_plain_date(label: object) -> bool:
    """Whether a label is a date of Python or pandas, of no time zone and no nanoseconds, which
    NumPy would lose.
    """
    zone, nanosecond = getattr(label, "tzinfo", None), getattr(label, "nanosecond", 0)
    return isinstance(label, date) and zone is None and nanosecond == 0 and label == label


# ------------------------------------------------------------------------------------------- files


explain_calls(globals(), methods={"Draws": "get_samples with_group select summary to_arviz"})
