"""The door to ArviZ: `Draws` as an `xarray.DataTree`, and back.

The only file that imports ArviZ or xarray, and only when called: together they take two seconds.
Datasets are built here rather than by ArviZ's converters, which lose groups (0.2x drops
``log_prior``) and rename statistics. One tree serves both generations: ArviZ 1 works on it as it
is, 0.22 and 0.23 wrap it in an InferenceData.

What the formats cannot hold is translated, and written down in the root attribute
``probtorch_layout`` so that `fields_from_datatree` can undo it: booleans among the draws become
integers (ArviZ subtracts them), complex variables become two real ones, "/" in a name becomes ".",
an empty name "_", a zero character or half of a surrogate pair an escape, a variable named as one
of the group's own dims gets the ending "_", a dim that shares its name with a variable or those
``_dim``, attributes that netCDF refuses (None, booleans, dicts) become JSON text.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import unicodedata
import warnings
from collections.abc import Mapping
from importlib import import_module, metadata
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from probtorch.diagnostics.layout import (
    GROUP_DIMS,
    dim_names,
    dims_key,
    real_parts,
)
from probtorch.diagnostics.netcdf_pieces import LargeArray, write_pieces
from probtorch.diagnostics.stored import ZARR
from probtorch.errors import ArgumentError, FileError, ProbtorchError
from probtorch.serialization.files import reading, replacing_folder, reserve

if TYPE_CHECKING:
    import h5netcdf
    import xarray

    from probtorch.diagnostics.draws import Draws

__all__ = [
    "fields_from_datatree",
    "json_ready",
    "read_datatree",
    "to_arviz",
    "to_datatree",
    "write_netcdf",
    "write_zarr",
]

LAYOUT = "probtorch_layout"

# Groups whose booleans are indicators that ArviZ reads as such.
BOOLEAN_GROUPS = ("sample_stats", "warmup_sample_stats", "sample_stats_prior", "constant_data")

# Dims that a group has anyway, chain and draw: no variable or plate can have their names.
_LEADING = frozenset(dim for lead in GROUP_DIMS.values() for dim in lead)


def to_arviz(draws: Draws) -> xarray.DataTree:
    """Return what the installed ArviZ works on.

    Parameters
    ----------
    draws : Draws
        What an inference engine returned.

    Returns
    -------
    xarray.DataTree or arviz.InferenceData
        A DataTree with ArviZ 1 or later, an InferenceData with 0.22 and 0.23. Of the latter
        `to_zarr` refuses zarr 3: `Draws.save` writes the store with either.
    """
    tree = to_datatree(draws)
    with warnings.catch_warnings():
        # ArviZ 0.2x announces its successor at import; nothing a reader of this table can act on.
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    if int(arviz.__version__.split(".")[0]) >= 1:
        return tree
    return arviz.from_datatree(tree)


def to_datatree(draws: Draws) -> xarray.DataTree:
    """Build an `xarray.DataTree` with one node per group, in ArviZ's schema.

    Parameters
    ----------
    draws : Draws
        What an inference engine returned.

    Returns
    -------
    xarray.DataTree
        Named for the model (``attrs["model_name"]``). Dims and coords come from the plates. Arrays
        are shared with `draws` where no conversion is needed.
    """
    return _datatree(draws, None)


def _datatree(draws: Draws, apart: list[LargeArray] | None) -> xarray.DataTree:
    """The tree of all draws; without what has to be written piece by piece, if that is wanted."""
    import xarray

    groups = {"posterior": draws.posterior, "sample_stats": draws.sample_stats, **draws.groups}
    groups = {group: variables for group, variables in groups.items() if variables}
    names = _spelling(groups)
    dims = _dim_spelling(draws, groups, names)
    layout: dict[str, Any] = {
        "names": {name: new for name, new in names.items() if new != name},
        "dims": {name: list(given) for name, given in draws.dims.items()},
        "dim_names": {dim: new for dim, new in dims.items() if new != dim},
        "labels": {},
        "dtypes": {},
        "complex": [],
        "attrs": list(draws.attrs),
        "json_attrs": [],
        "order": {},
    }
    own_attrs = _attrs(draws.attrs, layout)
    datasets = {}
    for group, variables in groups.items():
        lead = GROUP_DIMS[group]
        data, coords = {}, {}
        for name, values in variables.items():
            values = np.asarray(values)
            if values.dtype.kind == "c":
                layout["complex"].append(f"{group}/{name}")
            given = dim_names(name, values.ndim - len(lead), draws.dims, group)
            spelled = (*lead, *(dims[dim] for dim in given))
            for dim in given:
                if dim in draws.coords:
                    coords[dims[dim]] = _labels(dim, draws.coords[dim], layout)
            for part, array in real_parts({names[name]: values}):
                dtype = _storable(group, array.dtype)
                if dtype != array.dtype:
                    layout["dtypes"][f"{group}/{part}"] = array.dtype.str
                large = LargeArray(group, part, spelled, array, dtype)
                if apart is not None and large.needs_pieces:
                    apart.append(large)
                    layout["order"][group] = list(variables)
                else:
                    data[part] = (spelled, array.astype(dtype, copy=False))
        sizes = next(iter(variables.values())).shape
        coords |= {dim: np.arange(size) for dim, size in zip(lead, sizes)}
        attrs = own_attrs | ({"sample_dims": list(lead)} if lead else {})
        datasets[group] = xarray.Dataset(data, coords=coords, attrs=attrs)
    model_name = str(draws.attrs.get("model_name") or "") or None
    tree = xarray.DataTree.from_dict(datasets, name=model_name and _storable_name(model_name))
    tree.attrs = own_attrs | {LAYOUT: json.dumps(layout)}
    return tree


def write_netcdf(draws: Draws, stream: IO[bytes]) -> None:
    """Write draws as netCDF to an open file that has a name.

    Raises
    ------
    OSError
        If there is no room.
    """
    h5netcdf = import_module("h5netcdf")
    apart: list[LargeArray] = []
    tree = _datatree(draws, apart)
    with h5netcdf.File(stream.name, "w"):
        pass
    # HDF5 keeps what it could not write, tries again when its objects are freed, and crashes there.
    # So it gets a file that has its room; it cuts off what it does not use.
    large = sum(x.nbytes + NETCDF_NODE for x in apart)
    reserve(stream.fileno(), _netcdf_size(tree) + large)
    tree.to_netcdf(stream.name, mode="a", engine="h5netcdf")
    if apart:
        write_pieces(stream.name, apart)


def write_zarr(draws: Draws, path: str) -> None:
    """Write draws as a Zarr store: a folder, in format 2, which every release of zarr reads.

    Raises
    ------
    ArgumentError
        If the package zarr is not installed.
    FileError
        If it cannot be written, or something else is at the path.
    """
    try:
        import_module("zarr")
    except ModuleNotFoundError:
        raise ArgumentError(
            "Draws.save", expected="the package zarr, for the name of a Zarr store",
            got=f"{path!r}, and no such package", fix="pip install zarr; or give a name in .nc",
        ) from None  # fmt: skip
    with replacing_folder(path, marks=ZARR) as folder:
        to_datatree(draws).to_zarr(folder, mode="w", zarr_format=2)


def _netcdf_size(tree: xarray.DataTree) -> int:
    """Bytes that a tree takes in a file, or a little more."""
    total = NETCDF_LEAST
    for node in tree.subtree:
        total += NETCDF_NODE + len(repr(node.attrs))
        for variable in node.variables.values():
            total += NETCDF_NODE
            if variable.dtype.kind == "U":  # text of any length, and an address of each
                total += sum(len(str(x).encode()) + NETCDF_TEXT for x in variable.values.ravel())
            else:
                total += variable.nbytes
    return total


def fields_from_datatree(tree: xarray.DataTree) -> dict[str, Any]:
    """Return the fields of a `Draws` from a DataTree, as keyword arguments.

    Parameters
    ----------
    tree : xarray.DataTree
        Ours, whose translations are undone, or anybody's in ArviZ's schema.

    Returns
    -------
    dict
        ``posterior sample_stats dims coords groups attrs``. Groups outside the schema are left out.

    Raises
    ------
    ArgumentError
        If there is no posterior group with dims chain and draw.
    """
    if "posterior" not in tree.children or "chain" not in tree["posterior"].dims:
        raise ArgumentError(
            "Draws.load", expected="a group `posterior` with dims chain and draw",
            got=f"groups {', '.join(tree.children) or '(none)'}",
            fix="save with Draws.save, or with ArviZ's to_netcdf",
        )  # fmt: skip
    layout = json.loads(tree.attrs.get(LAYOUT, "{}"))
    names = {new: name for name, new in layout.get("names", {}).items()}
    dim_spelling = {new: dim for dim, new in layout.get("dim_names", {}).items()}
    dtypes = layout.get("dtypes", {})
    dims, coords, groups = {}, {}, {}
    for group, node in tree.children.items():
        if group not in GROUP_DIMS:
            continue
        lead = GROUP_DIMS[group]
        dataset = node.to_dataset()
        variables = {}
        for spelled, variable in dataset.data_vars.items():
            variable = variable.transpose(*lead, ...)
            values = _plain(variable.values)
            variables[spelled] = values.astype(dtypes.get(f"{group}/{spelled}", values.dtype))
            name = names.get(spelled, spelled)
            own = [dim_spelling.get(dim, dim) for dim in variable.dims[len(lead) :]]
            given = tuple(None if dim == f"{name}_dim_{i}" else dim for i, dim in enumerate(own))
            key = dims_key(group, name)
            if any(given) and len(given) > len(dims.get(key, ())):
                dims[key] = given
        for key in layout.get("complex", []):
            of_group, name = key.split("/", 1)
            if of_group == group:
                part = layout["names"].get(name, name)
                real, imag = variables.pop(f"{part}_real"), variables.pop(f"{part}_imag")
                variables[part] = real + 1j * imag
        found = {names.get(spelled, spelled): v for spelled, v in variables.items()}
        order = layout.get("order", {}).get(group, ())
        groups[group] = {name: found[name] for name in (*order, *found) if name in found}
        for dim, index in dataset.coords.items():
            if dim not in lead and index.dims == (dim,):
                dim = dim_spelling.get(dim, dim)
                labels = layout.get("labels", {}).get(dim)
                coords[dim] = _plain(index.values) if labels is None else np.array(labels)
    attrs = tree.attrs or tree["posterior"].attrs
    attrs = {key: attrs[key] for key in layout.get("attrs", attrs) if key != LAYOUT}
    for key in layout.get("json_attrs", []):
        attrs[key] = json.loads(attrs[key])
    if "dims" in layout:
        dims = {name: tuple(given) for name, given in layout["dims"].items()}
    return {
        "posterior": groups.pop("posterior"),
        "sample_stats": groups.pop("sample_stats", {}),
        "dims": dims,
        "coords": coords,
        "groups": groups,
        "attrs": {key: _plain_attr(value) for key, value in attrs.items()},
    }


# Bytes of a netCDF file besides its numbers: of any, of a group or variable, of a text.
NETCDF_LEAST, NETCDF_NODE, NETCDF_TEXT = 2**15, 2**13, 64
# The arrays of a file may take so many times its length in memory, and this much more. Compressed
# draws are hardly shorter; what compression makes short, indicators and counts, is small.
MOST_PER_BYTE = 64
ALWAYS = 2**24


def read_datatree(path: str | os.PathLike[str]) -> xarray.DataTree:
    """Read a netCDF file whole and close it: an open file could not be replaced by a new one.

    Raises
    ------
    FileError
        If it is none, is damaged, has parts in other files, or would unpack to far more than it
        holds.
    """
    import xarray

    with reading(path) as stream:
        length = os.fstat(stream.fileno()).st_size
    try:
        _check_sizes(path, MOST_PER_BYTE * length + ALWAYS)
        with xarray.open_datatree(path, engine="h5netcdf") as tree:
            return tree.load()
    except ProbtorchError:
        raise
    except (OSError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise FileError(
            f"loading {path}", expected="a netCDF file, as Draws.save writes it",
            got=f"{type(error).__name__}: {error}"[:500],
            fix="copy it again from where it came from",
        ) from error  # fmt: skip


def _check_sizes(path: str | os.PathLike[str], most: int) -> None:
    """Add up what all arrays take before any of them is read."""
    h5py = import_module("h5py")
    total = 0

    def add(name: str, item: h5netcdf.Group) -> None:
        nonlocal total
        if not isinstance(item, h5py.Dataset) or item.shape is None:
            return
        if item.is_virtual or item.external:
            raise ValueError(f"{name} lies in another file")
        # Dims without labels are arrays in name only.
        if not bytes(item.attrs.get("NAME", b"")).startswith(b"This is a netCDF dimension but not"):
            total += math.prod(item.shape) * item.dtype.itemsize

    with h5py.File(path, "r") as file:
        file.visititems(add)
    if total > most:
        raise FileError(
            f"loading {path}", expected=f"arrays of at most {most:,} bytes, by the file's length",
            got=f"arrays of {total:,} bytes",
            fix="if you trust it, open it with xarray.open_datatree and pass its arrays to Draws",
        )  # fmt: skip


def json_ready(value: Any) -> Any:
    """Turn attributes into what JSON can hold: NumPy numbers, arrays and tuples are made plain."""
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return json_ready(value.tolist())
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _spelling(groups: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, str]:
    """Map variable names to names that xarray and netCDF can hold, each to one of its own."""
    taken, spelling = set(_LEADING), {}
    for name in dict.fromkeys(name for variables in groups.values() for name in variables):
        new = _storable_name(name)
        while new in taken or (new != name and any(new in v for v in groups.values())):
            new += "_"
        taken.add(new)
        spelling[name] = new
    return spelling


def _dim_spelling(
    draws: Draws, groups: Mapping[str, Mapping[str, np.ndarray]], names: Mapping[str, str]
) -> dict[str, str]:
    """Map dim names to names that no variable has: xarray would take such a variable for coords."""
    taken = {part for name in names.values() for part in (name, f"{name}_real", f"{name}_imag")}
    taken |= _LEADING
    spelling = {}
    for group, variables in groups.items():
        for name, values in variables.items():
            for dim in dim_names(name, values.ndim - len(GROUP_DIMS[group]), draws.dims, group):
                if dim in spelling:
                    continue
                new = _storable_name(dim)
                while new in taken or new in spelling.values():
                    new += "_dim"
                spelling[dim] = new
    return spelling


def _storable_name(name: str) -> str:
    """Return a name that is no path ("/", "." and "..") and not empty."""
    # netCDF composes accents, and a name that it changed would not be found again.
    new = unicodedata.normalize("NFC", _storable_text(name.replace("/", ".")))
    return new if new.strip(".") else f"_{new}"


def _storable_text(text: str) -> str:
    """Return text that UTF-8 can hold, without zero characters, which end a text in netCDF."""
    if "\0" not in text and text.isascii():
        return text
    text = text.replace("\0", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _labels(dim: str, labels: Any, layout: dict[str, Any]) -> np.ndarray:
    """Return the labels of a dim as netCDF can hold them; `layout` keeps what they were."""
    labels = np.asarray(labels)
    if labels.dtype.kind != "U":
        return labels
    given = labels.tolist()
    stored = [_storable_text(label) for label in given]
    if stored == given:
        return labels
    layout["labels"][dim] = given
    return np.array(stored)


def _storable(group: str, dtype: np.dtype) -> np.dtype:
    if dtype.kind == "b" and group not in BOOLEAN_GROUPS:
        return np.dtype(np.int64)
    if dtype == np.float16:  # netCDF has no half precision
        return np.dtype(np.float32)
    return dtype


def _plain(values: np.ndarray) -> np.ndarray:
    """Strings come back from netCDF as Python objects; make them a NumPy string array again."""
    return values.astype(np.str_) if values.dtype.kind in "OT" else values


def _plain_attr(value: int | str) -> int | str:
    return value.item() if isinstance(value, np.generic) else value


def _attrs(given: Mapping[str, object], layout: Mapping[str, Any]) -> dict[str, object]:
    """Attributes of every group: who made it, when, and whatever the engine had to say."""
    library = {"creation_library": "probtorch", "creation_library_language": "Python"}
    library["inference_library"] = "probtorch"
    try:
        version = metadata.version("probtorch")
        library |= {"creation_library_version": version, "inference_library_version": version}
    except metadata.PackageNotFoundError:
        pass  # run from a source tree that was never installed: no version to state
    attrs: dict[str, object] = {
        **library,
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(),
    }
    for key, value in given.items():
        value = json_ready(value)
        text_list = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
        plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        texts = value if text_list else [value] if isinstance(value, str) else []
        lossless = all(_storable_text(text) == text for text in texts)
        if not (plain or text_list) or not lossless:
            layout["json_attrs"].append(key)
            value = json.dumps(value)
        attrs[key] = value
    return attrs
