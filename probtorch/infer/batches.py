"""`Batches`: the arguments of model and guide, step by step.

Arguments stay the same from step to step, except for a `DataLoader`: each step gets its next batch
in its place, epoch after epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probtorch.core.rng import default_generator
from probtorch.errors import ArgumentError
from probtorch.infer.potential import lifted
from probtorch.utils.data.loader import DataLoader

__all__ = ["Batches"]


class Batches:
    """Arguments for step after step.

    Parameters
    ----------
    args, kwargs
        As given. A loader among `args` whose batches are lists or tuples stands for as many
        arguments; any other batch, and each in `kwargs`, is one.
    precise : bool
        Whether arrays of floats are handed on in float64.

    Attributes
    ----------
    constant : bool
        Whether all steps get the same.
    objects : dict of str to object
        Arguments with a state of their own (`state_dict` and `load_state_dict`), by place.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], precise: bool) -> None:
        places = {**{f"args.{i}": x for i, x in enumerate(args)}}
        places |= {f"kwargs.{name}": x for name, x in kwargs.items()}
        self.objects = {
            name: x
            for name, x in places.items()
            if callable(getattr(x, "state_dict", None))
            and callable(getattr(x, "load_state_dict", None))
        }
        self.constant = not any(isinstance(x, DataLoader) for x in places.values())
        self._precise = precise
        self._given = (args, dict(kwargs))
        if self.constant and precise:
            # Once, and not at every step.
            self._given = lifted(args), lifted(dict(kwargs))
        self._last = self._given
        self._epochs: dict[str, Iterator[Any]] = {}

    def next(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return ``(args, kwargs)`` of the next step."""
        if self.constant:
            return self._given
        args: list[Any] = []
        for i, x in enumerate(self._given[0]):
            if not isinstance(x, DataLoader):
                args.append(x)
                continue
            batch = self._batch(f"args.{i}", x)
            if isinstance(batch, (list, tuple)):
                args += batch
            else:
                args.append(batch)
        kwargs = {
            name: self._batch(f"kwargs.{name}", x) if isinstance(x, DataLoader) else x
            for name, x in self._given[1].items()
        }
        self._last = (tuple(args), kwargs)
        if self._precise:
            self._last = lifted(self._last[0]), lifted(self._last[1])
        return self._last

    def last(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return ``(args, kwargs)`` of the last step; without any, those of the first."""
        if self.constant or self._last is not self._given:
            return self._last
        loaders = [x for x in self.objects.values() if isinstance(x, DataLoader)]
        states, default = [x.state_dict() for x in loaders], default_generator.get_state()
        try:
            return self.next()
        finally:
            for loader, state in zip(loaders, states, strict=True):
                loader.load_state_dict(state)
            default_generator.set_state(default)
            self._epochs.clear()

    def _batch(self, place, loader):
        """The next batch of a loader, of a new epoch if the present one is over."""
        for _ in range(2):
            if place not in self._epochs:
                self._epochs[place] = iter(loader)
            for batch in self._epochs[place]:
                return batch
            del self._epochs[place]
        raise ArgumentError(
            "SVI.run",
            expected="a DataLoader with batches in it",
            got="one without any",
            fix="check its dataset, and batch_size with drop_last",
        )
