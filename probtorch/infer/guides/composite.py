"""`AutoGuideList`: one guide made of several, each for some of the sites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from probtorch.core.dtype import float64
from probtorch.core.rng import Generator, default_generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.effects.plates import plate
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.guides.base import AutoGuide
from probtorch.infer.guides.by_hand import FunctionGuide

__all__ = ["AutoGuideList"]


class AutoGuideList(AutoGuide):
    """Several guides as one, independent of each other.

    Parameters
    ----------
    model : callable
    create_plates, prefix, dtype
        See `AutoGuide`; `dtype` decides whether the model runs in float64.

    Notes
    -----
    Add guides of parts of the model with `append`: automatic ones of a model in which `block` hides
    the other sites, or functions with sample statements. Plates that work on subsamples use the
    same rows in all automatic parts.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.effects.handlers import block
    >>> from probtorch.infer import AutoDelta, AutoGuideList, AutoNormal
    >>> def model():
    ...     x = probtorch.sample("x", dist.Normal(0.0, 1.0))
    ...     return probtorch.sample("y", dist.Normal(x, 1.0))
    >>> guide = AutoGuideList(model)
    >>> guide.append(AutoNormal(block(model, hide=["y"])))
    >>> guide.append(AutoDelta(block(model, hide=["x"])))
    >>> sorted(guide())
    ['x', 'y']
    """

    def __init__(
        self,
        model: Callable[..., object],
        *,
        create_plates: Callable[..., plate | Iterable[plate]] | None = None,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(model, create_plates=create_plates, prefix=prefix, dtype=dtype)
        self.parts: list[AutoGuide | Callable[..., object]] = []

    def append(self, part: AutoGuide | Callable[..., object]) -> None:
        """Add a guide of some of the sites.

        Parameters
        ----------
        part : AutoGuide or callable
            A plain function is called with the model's arguments; what it returns is kept if it is
            a dict from names to values.

        Raises
        ------
        ArgumentError
            If it cannot be called, or is this guide itself.
        """
        if not callable(part) or part is self:
            raise ArgumentError(
                "AutoGuideList.append",
                expected="a guide of some of the sites",
                got="the list itself" if part is self else f"{type(part).__name__} {part!r:.60}",
                fix="write guide.append(AutoNormal(block(model, hide=[...])))",
            )
        if isinstance(part, AutoGuide):
            # Two parts of one kind need parameters and helper sites of different names.
            taken = [p.prefix for p in self._automatic()]
            if part.prefix in taken and not isinstance(part, FunctionGuide):
                part.prefix = f"{part.prefix}{len(taken)}"
        self.parts.append(part)

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[AutoGuide | Callable[..., object]]:
        return iter(self.parts)

    def __getitem__(self, index: int) -> AutoGuide | Callable[..., object]:
        return self.parts[index]

    def _automatic(self) -> list[AutoGuide]:
        """Parts that state their sites in given plates; functions make their own."""
        return [part for part in self._asking() if not isinstance(part, FunctionGuide)]

    def _asking(self) -> list[AutoGuide]:
        """Parts that can be asked for medians and draws."""
        return [part for part in self.parts if isinstance(part, AutoGuide)]

    @property
    def has_met(self) -> bool:
        """Whether a part has been run."""
        return any(part.has_met for part in self._asking())

    def setup(self, *args: object, **kwargs: object) -> None:
        """Let all automatic parts meet their models."""
        if not self.parts:
            raise InferenceError(
                "AutoGuideList",
                expected="at least one part",
                got="an empty list",
                fix="write guide.append(AutoNormal(block(model, hide=[...])))",
            )
        for part in self._automatic():
            part.setup(*args, **kwargs)
            # Only what is new: a compiled step would take an attribute that is set for a change.
            if not part._chosen_by_caller <= self._chosen_by_caller:
                self._chosen_by_caller |= part._chosen_by_caller
            self.latents.update(part.latents)

    def forward(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Draw all latent sites; return their values by name."""
        self.setup(*args, **kwargs)
        values: dict[str, TensorBase] = {}
        with self._in_store():
            plates = self._plates(args, kwargs)
            for part in self.parts:
                if isinstance(part, AutoGuide) and not isinstance(part, FunctionGuide):
                    with part._in_store():
                        values.update(part.draw(plates))
                else:
                    found = part(*args, **kwargs)
                    values.update(found if isinstance(found, dict) else {})
        return values

    def draw(self, plates: dict[str, plate]) -> dict[str, TensorBase]:
        """State the sites of all automatic parts."""
        values = {}
        for part in self._automatic():
            values.update(part.draw(plates))
        return values

    def median(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Return medians of the sites of all automatic parts, by name."""
        return self._joined(lambda part: part.median(*args, **kwargs))

    def quantiles(
        self, quantiles: Iterable[float], *args: object, **kwargs: object
    ) -> dict[str, TensorBase]:
        """Return quantiles of the sites of all automatic parts, by name."""
        return self._joined(lambda part: part.quantiles(quantiles))

    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return draws of the sites of all automatic parts on the unconstrained scale."""
        return self._joined(lambda part: part.free_draws(shape, generator))

    def sample_posterior(
        self,
        sample_shape: int | tuple[int, ...] = (),
        *,
        generator: Generator | None = None,
    ) -> dict[str, TensorBase]:
        """Return draws of the sites of all automatic parts by name."""
        generator = generator or default_generator
        return self._joined(lambda part: part.sample_posterior(sample_shape, generator=generator))

    def _joined(
        self, ask: Callable[[AutoGuide], Mapping[str, TensorBase]]
    ) -> dict[str, TensorBase]:
        with self._asked():
            return {n: x for part in self._asking() for n, x in ask(part).items()}
