"""NumPy's ufuncs on tensors against NumPy itself: dtypes beside each other, ``dtype=``, methods."""

import itertools
import warnings

import numpy as np
import pytest

from probtorch.array_functions.elements import operation_of
from probtorch.errors import ProbtorchError
from probtorch.tensor import Tensor, tensor
from tests.interop.numpy_calls import DTYPES, array

SHAPES = ((), (5,), (3, 4), (0,))
REDUCED = ({}, {"axis": -1}, {"axis": np.int64(0)}, {"axis": 5}, {"axis": None}, {"axis": (0,)})
REDUCED += ({"dtype": np.float64}, {"keepdims": True}, {"initial": 1}, {"axis": ()})
NAMES = sorted(
    name
    for name in dir(np)
    if isinstance(getattr(np, name), np.ufunc)
    and operation_of(getattr(np, name)) is not None
    and getattr(np, name).__name__ == name
)

# Where we refuse and NumPy does not: names, and whether it is of these dtypes.
UNORDERED = "maximum minimum fmax fmin less less_equal greater greater_equal sign rint".split()
WITHOUT_ZERO = "remainder floor_divide fmod".split()
OF_INTEGERS = "gcd lcm".split()
# Where we answer and NumPy does not: booleans have a sign, ldexp takes doubles.
LENIENT = "sign positive ldexp".split()


def calls(u):
    """Yield dtypes, what is said of the call, and the call, given what makes a tensor."""
    for shape, dtype in itertools.product(SHAPES, DTYPES):
        x = array(dtype, shape)
        if u.nin == 1:
            yield (dtype,), "", lambda of, x=x: u(of(x))
            for to in (np.float32, "float64", np.int64):
                yield (dtype,), f"dtype={to}", lambda of, x=x, to=to: u(of(x), dtype=to)
            continue
        y = array(dtype, shape, 5).T
        y = y if u is np.matmul else y.T
        yield (dtype,), "", lambda of, x=x, y=y: u(of(x), of(y))
        yield (dtype,), "with an array", lambda of, x=x, y=y: u(of(x), y)
        yield (dtype,), "with 2", lambda of, x=x: u(of(x), 2)
        yield (dtype,), "2 with", lambda of, x=x: u(2, of(x))
        yield (dtype,), "with .5", lambda of, x=x: u(of(x), 0.5)
        for other in DTYPES:
            z = array(other, shape, 6)
            yield (dtype, other), "", lambda of, x=x, z=z: u(of(x), of(z))
        for to in (np.float32, "float64", np.int64):
            yield (dtype,), f"dtype={to}", lambda of, x=x, y=y, to=to: u(of(x), of(y), dtype=to)
        if shape and u is not np.matmul:
            for kw in REDUCED:
                yield (dtype,), f"reduce {kw}", lambda of, x=x, kw=kw: u.reduce(of(x), **kw)
            yield (dtype,), "accumulate", lambda of, x=x: u.accumulate(of(x))
            yield (dtype,), "outer", lambda of, x=x, y=y: u.outer(of(x), of(y))


def made(call, of):
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return call(of), None
    except Exception as error:
        return None, error


def refused(name, dtypes):
    if name in UNORDERED:
        return "complex128" in dtypes
    if name in WITHOUT_ZERO:
        return not {"float32", "float64"} & set(dtypes)  # of integers a divisor of 0
    return name in OF_INTEGERS and "bool" in dtypes


def difference(name, expected, found):
    if not isinstance(found, Tensor):
        return f"{type(found).__name__} in the place of a tensor"
    a, b = np.asarray(expected), found.numpy()
    if a.shape != b.shape:
        return f"shape {b.shape} for {a.shape}"
    whole = {a.dtype.kind, b.dtype.kind} <= set("biu")
    # One over an integer is a float here, as in PyTorch; NumPy's is 0.
    if a.size and a.dtype.kind != b.dtype.kind and not (whole or name == "reciprocal"):
        return f"{b.dtype} for {a.dtype}"
    if (
        name in ("reciprocal", "nextafter") and a.dtype.itemsize <= 2
    ) or a.dtype.kind != b.dtype.kind:
        return None
    single = min(a.dtype.itemsize, b.dtype.itemsize) <= 4 or b.dtype == np.complex64
    # NumPy's booleans become halves.
    tol = 2e-3 if a.dtype == np.float16 else 2e-5 if single else 1e-10
    with np.errstate(invalid="ignore"):
        near = np.allclose(a, b, rtol=tol, atol=tol, equal_nan=True)
    return None if near else f"{b.ravel()[:4]} for {a.ravel()[:4]}"


@pytest.mark.parametrize("name", NAMES)
def test_ufuncs_give_what_numpy_gives(name):
    faults = []
    for dtypes, said, call in calls(getattr(np, name)):
        expected, raised = made(call, np.copy)
        found, error = made(call, tensor)
        if raised is not None:
            what = None if error is not None or name in LENIENT else f"no error, {raised} there"
        elif error is not None:
            ours = isinstance(error, ProbtorchError) and refused(name, dtypes)
            what = None if ours else repr(error)
        elif name == "reciprocal" and "int64" in said:
            what = None  # one over 0 is no integer
        else:
            what = difference(name, expected, found)
        if what is not None:
            faults.append(f"{name} of {dtypes} {said}: {what:.200}")
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:15])


def test_a_result_is_no_other_name_of_its_argument():
    x, whole = tensor([1.0, -2.0]), tensor([1, -2])
    for fn in (np.positive, np.fabs, np.rint, np.trunc, np.conjugate, np.round, np.clip, np.copy):
        for given in (x, whole):
            fn(given)[0] = 7
    assert x.tolist() == [1.0, -2.0] and whole.tolist() == [1, -2]
