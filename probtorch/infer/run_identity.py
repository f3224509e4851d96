"""What a run of SVI belongs to: data, model, guide, seed, optimizer, objective, as plain values.

A checkpoint keeps an `Identity`, so that the folder of another run is refused. What was given is
compared exactly: arguments by their bytes (`digests`), seed and options as they are. The model is
known by what it computes: it is run once with draws of a fixed seed, as is the guide, and the log
density of every site, and the values that were observed, have to be those that were saved; so data
in closures and priors count, and names of functions, comments and the release of Python do not.
What differs from one such run to the next (a model with a generator of its own) is left out.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol
from typing import cast as typed

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import overwrite
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.distributions.validation import validation_enabled
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import trace
from probtorch.effects.minibatches import Minibatch, RowSource
from probtorch.nn.module import Module
from probtorch.optim.optimizer import Optimizer
from probtorch.tensor import tensor
from probtorch.utils.data.fetching import streams_of

if TYPE_CHECKING:
    from probtorch.distributed.shards import Shard
    from probtorch.infer.vi.svi import SVI
    from probtorch.utils.data.loader import DataLoader


__all__ = ["differences", "digests", "objective_options", "options_of", "site_densities"]

# Log densities of one point that differ by more than rounding are of another model or other data.
TOLERANCE = {"f8": 1e-9, "f4": 1e-4, "f2": 1e-1}
# Before the names of a guide's sites.
GUIDE = "guide: "
# Rows of a loader's dataset that the model is run on.
ROWS = 64
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class _Digest(Protocol):
    """A hash that is fed bytes."""

    def update(self, data: bytes, /) -> None: ...


def digests(args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, str]:
    """Return the SHA-256 of each argument's content, by its name.

    Of objects with a state that a run changes (modules) their class counts alone, of loaders also
    the tensors that they load. Of what kind something is, its type says: an object may call itself
    an instance of another class and have nothing of it (doubles of tests).
    """
    named = {f"args[{i}]": x for i, x in enumerate(args)}
    named.update(kwargs)
    found = {}
    for name, value in named.items():
        digest = hashlib.sha256()
        _add(digest, value, set())
        found[name] = digest.hexdigest()
    return found


def _add(digest: _Digest, x: Tree, open_: set[int]) -> None:
    """Feed the content of `x` to a digest, lengths and kinds included."""
    kind = type(x)
    digest.update(f"<{kind.__name__}>".encode())
    if issubclass(kind, _PLAIN):
        digest.update(repr(x).encode())
    elif issubclass(kind, TensorBase):
        _add(digest, np.asarray(to_host(x.array)), open_)
    elif issubclass(kind, (np.ndarray, np.generic)):
        _add_array(digest, np.asarray(x))
    elif id(x) in open_:
        return
    elif issubclass(kind, (list, tuple, Mapping)):
        items = [i for pair in x.items() for i in pair] if issubclass(kind, Mapping) else list(x)
        digest.update(f"{len(items)}:".encode())
        for item in items:
            _add(digest, item, open_ | {id(x)})
    elif hasattr(x, "dataset"):
        tensors = getattr(x.dataset, "tensors", ())
        _add(digest, list(tensors) if type(tensors) in (tuple, list) else [], open_ | {id(x)})
    elif hasattr(kind, "__array__") and not callable(x):
        _add(digest, np.asarray(x), open_ | {id(x)})
    elif x.__class__ is not kind and isinstance(x, (np.ndarray, TensorBase)):
        with contextlib.suppress(Exception):  # a proxy has the elements of what it stands for
            array = np.asarray(to_host(x.array) if isinstance(x, TensorBase) else x)
            if not array.dtype.hasobject:
                _add_array(digest, array)


def _add_array(digest: _Digest, x: np.ndarray) -> None:
    digest.update(f"{x.dtype.str}{x.shape}".encode())
    digest.update(
        repr(x.tolist()).encode() if x.dtype.hasobject else np.ascontiguousarray(x).tobytes()
    )


def options_of(optim: object, options: Mapping[str, object]) -> dict[str, str]:
    """Return what an optimizer was asked for, by name, each as a text."""
    if issubclass(type(optim), Optimizer):
        found: dict[str, object] = {"optimizer": type(optim).__name__}
        for i, group in enumerate(typed(Optimizer, optim).param_groups):
            found |= {
                f"{k} of group {i}" if i else k: group.get("initial_lr", v) if k == "lr" else v
                for k, v in group.items()
                if k != "params"
            }
    elif hasattr(optim, "pt_optim_constructor"):
        made = getattr(optim, "pt_optim_constructor")  # noqa: B009
        found = {"optimizer": f"{type(optim).__name__} of {getattr(made, '__name__', '')}"}
        for kept in ("pt_optim_args", "pt_clip_args", "pt_scheduler_args", "kwargs"):
            given = getattr(optim, kept, None)
            found |= typed(dict[str, object], given if issubclass(type(given), Mapping) else {})
    else:
        found = {"optimizer": getattr(optim, "__name__", type(optim).__name__), **options}
    return {k: _shown(v) for k, v in found.items() if _shown(v)}


def _shown(value: Tree) -> str:
    """A text for plain values, classes and containers of them; "" for what has none that lasts."""
    kind = type(value)
    if issubclass(kind, _PLAIN):
        return repr(value)
    if issubclass(kind, type):
        return value.__name__
    if issubclass(kind, TensorBase):
        return repr(value.array.tolist())
    if issubclass(kind, (list, tuple)):
        return f"({', '.join(map(_shown, value))})"
    if issubclass(kind, Mapping):
        return f"{{{', '.join(f'{k}: {_shown(v)}' for k, v in value.items())}}}"
    return ""


class _FirstRows(RowSource):
    """The first rows of every loader, wherever it stands."""

    def __init__(self, convert: Callable[..., Tree] | None) -> None:
        self.convert = convert

    def minibatch(self, name: str, loader: DataLoader, shard: Shard | None) -> Minibatch:
        count = min(len(loader.dataset), ROWS)
        data = loader.load(range(count))
        data = data if self.convert is None else self.convert(data)
        return Minibatch(data, tensor(np.arange(count)), count)


def site_densities(
    svi: SVI,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    names: Collection[str] | None = None,
) -> dict[str, list[object]]:
    """Run model and guide of an SVI with draws of a fixed seed; nothing is moved by that.

    Parameters
    ----------
    svi : SVI
    args, kwargs
        What the model is called with.
    names : collection of str, optional
        The sites that count; those that are the same in two runs, if None.

    Returns
    -------
    dict
        By site: the sum of its log density, the kind of its numbers, and the SHA-256 of the values
        if they were observed, else "". Sites of the guide have `GUIDE` before their names: its
        parameters are those of the run at this step, so its densities tell one from another. Of
        model and guide, what cannot be run by itself is left out.
    """
    found = _densities_once(svi, args, kwargs)
    if names is None:
        again = _densities_once(svi, args, kwargs)
        names = {k for k, v in found.items() if repr(again.get(k)) == repr(v)}
    return {k: v for k, v in found.items() if k in names}


def _densities_once(
    svi: SVI, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, list[object]]:
    rows = _FirstRows(svi.feed.convert)
    # Batch normalisation counts what it sees.
    modules = _modules((svi.model, svi.guide, *args, *kwargs.values()))
    held = [(b, b.array.copy()) for b in svi.params.buffers.values()]
    held += [(b, b.array.copy()) for m in modules for b in m.buffers()]
    found = {}
    try:
        for prefix, fn in (("", svi.model), (GUIDE, svi.guide)):
            with (
                no_grad(), validation_enabled(False), streams_of(0, 0), svi.params.activate(),
                rows.activate(), seed_handler(None, Generator(0)), np.errstate(all="ignore"),
            ):  # fmt: skip
                found |= _densities_of(fn, prefix, args, kwargs)
        return found
    finally:
        for buffer, before in held:
            overwrite(buffer, before)


def _densities_of(
    fn: Callable[..., object], prefix: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, list[object]]:
    found = {}
    try:
        for name, site in trace(fn).get_trace(*args, **kwargs).nodes.items():
            if site.has_density and site.kind == "sample":
                density = site.compute_log_prob_sum()
                seen = hashlib.sha256()
                if site.observed:
                    _add(seen, site.value, set())
                found[prefix + name] = [
                    float(density),
                    density.array.dtype.str[1:],
                    seen.hexdigest() if site.observed else "",
                ]
    except Exception:  # flat priors cannot be drawn from, and a model may need its guide's values
        return {}
    return found


def _modules(roots: Iterable[Tree]) -> list[Module]:
    """The modules that functions and objects refer to: closures, globals, what methods are of."""
    found, seen, todo = [], set(), list(roots)
    while todo:
        x = todo.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        kind = type(x)
        if issubclass(kind, Module):
            found.append(x)
        elif kind is types.FunctionType:
            for cell in x.__closure__ or ():
                with contextlib.suppress(ValueError):  # not filled yet
                    todo.append(cell.cell_contents)
            todo += (x.__globals__[n] for n in x.__code__.co_names if n in x.__globals__)
            todo.append(getattr(x, "__wrapped__", None))
        elif kind is types.MethodType:
            todo += (x.__self__, x.__func__)
        elif issubclass(kind, functools.partial):
            todo += (x.func, *x.args, *x.keywords.values())
        elif issubclass(kind, (list, tuple)):
            todo += x
        elif issubclass(kind, dict):
            todo += x.values()
        elif callable(x) and not issubclass(kind, type):  # handlers and objects with a __call__
            held = getattr(x, "__dict__", {})
            todo += held.values() if type(held) is dict else ()
            todo.append(getattr(x, "__wrapped__", None))  # of a proxy
    return found


def differences(saved: Mapping[str, Tree], now: Mapping[str, Tree]) -> list[str]:
    """Say in which respects two identities differ; what one of them does not know is left out."""
    found = []
    if saved.get("seed") != now.get("seed"):
        one, other = (_seed_text(x.get("seed")) for x in (now, saved))
        found.append(f"another seed ({one}, saved was {other})")
    for part in ("optimizer", "objective"):
        was, here = saved.get(part) or {}, now.get(part) or {}
        for name in sorted({*was, *here}):
            if was.get(name) != here.get(name):
                found.append(
                    f"another {name} ({here.get(name, 'none')}, saved was {was.get(name, 'none')})"
                )
    was, here = saved.get("data") or {}, now.get("data") or {}
    found += [f"other data ({n})" for n in sorted({*was, *here}) if was.get(n) != here.get(n)]
    was, here = saved.get("sites") or {}, now.get("sites") or {}
    if was and here:
        found += _site_differences(was, here)
    return found


def _site_differences(was: Mapping[str, Tree], here: Mapping[str, Tree]) -> Iterator[str]:
    mine, theirs = ([n for n in x if not n.startswith(GUIDE)] for x in (here, was))
    if mine and theirs and not set(mine) & set(theirs):
        yield f"another model (sites {_listed(mine)}, saved were {_listed(theirs)})"
    # Sites that only one of two runs has may be those whose draws decide what is run.
    for name in [n for n in here if n in was]:
        (a, _, seen), (b, kind, sees) = was[name], here[name]
        if seen != sees:
            yield f"other data (observed at site {name!r})"
        elif not _close(a, b, TOLERANCE.get(kind, 1e-4)):
            what, site = "another model or other data", name
            if name.startswith(GUIDE):
                what, site = "another guide", name.removeprefix(GUIDE)
            yield f"{what} (site {site!r}: log density {b:.6g}, was {a:.6g})"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, names))[:5])


def _close(a: float, b: float, tolerance: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def _seed_text(seed: list[int] | None) -> str:
    return "none" if seed is None else str(seed[0])


def objective_options(objective: object) -> dict[str, str]:
    """Return the kind of an objective and its settings that are plain values."""
    found = {"objective": getattr(objective, "__name__", type(objective).__name__)}
    with contextlib.suppress(TypeError):
        for name, value in vars(objective).items():
            if not name.startswith("_") and issubclass(type(value), (bool, int, float, str)):
                found[name] = repr(value)
    return found
