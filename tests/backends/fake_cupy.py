"""A stand-in for CuPy made of NumPy, so that code for the GPU is tested where there is none.

Its arrays refuse what CuPy's refuse (`np.asarray`, mixing with host arrays), it lacks the names
CuPy lacks, and it counts the copies between host and device: a test can state that there are none.
`install(monkeypatch)` puts it in `sys.modules` as `cupy` and `cupyx` and returns the counter.
"""

import contextlib
import operator
import sys
import types

import numpy as np
import scipy.linalg
import scipy.special

MISSING = {
    "numpy": "vecdot matvec geomspace errstate spacing insert nanquantile block unstack "
    "einsum_path",
    "linalg": "multi_dot svdvals vector_norm matrix_norm diagonal trace",
    "special": "iv ive jv kv kve stdtr stdtrit hyp1f1 hyp2f1 owens_t ndtri_exp spence comb "
    "dawsn wofz",
}


class Copies:
    """How often data crossed from host to device and back."""

    def __init__(self):
        self.to_device = 0
        self.to_host = 0


class FakeArray:
    """An array on an imagined device: NumPy inside, CuPy's manners outside."""

    __array_ufunc__ = None  # a host array on the left gives up, as it does with CuPy's arrays
    copies = Copies()

    def __init__(self, host, device_id=0):
        self._host = host
        self.device = types.SimpleNamespace(id=device_id)

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def get(self):
        FakeArray.copies.to_host += 1
        return self._host.copy()

    def item(self):
        return self.get().item()

    __float__ = __bool__ = __int__ = lambda self: self.item()

    def __getattr__(self, name):
        if name.startswith("__"):  # NumPy must not find a buffer or an array interface
            raise AttributeError(name)
        value = getattr(self._host, name)
        return on_device(value) if callable(value) else lift(value)

    def __getitem__(self, index):
        return lift(self._host[lower(index)])


def lower(value):
    """Replace fake arrays in `value` by what they hold; refuse host arrays, as a GPU must."""
    if isinstance(value, FakeArray):
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {np.ndarray}")
    if isinstance(value, (tuple, list)):
        return type(value)(lower(v) for v in value)
    return value


def lift(value):
    """Replace NumPy arrays in `value` by fake arrays."""
    if isinstance(value, (np.ndarray, np.generic)):
        return FakeArray(np.asarray(value))
    return tuple(lift(v) for v in value) if type(value) is tuple and _holds_arrays(value) else value


def _holds_arrays(values):
    return any(isinstance(v, np.ndarray) for v in values)


def on_device(fn):
    """Run the host function `fn` on fake arrays."""

    def run(*args, **kwargs):
        kwargs = {name: lower(value) for name, value in kwargs.items()}
        return lift(fn(*[lower(arg) for arg in args], **kwargs))

    return run


_ONE_SIDED = "lt le gt ge eq ne neg pos abs invert"
_TWO_SIDED = "add sub mul truediv pow matmul mod floordiv and_ or_"
for _name in f"{_ONE_SIDED} {_TWO_SIDED}".split():
    _fn, _dunder = getattr(operator, _name), _name.rstrip("_")
    setattr(FakeArray, f"__{_dunder}__", on_device(_fn))
    if _name in _TWO_SIDED.split():
        setattr(FakeArray, f"__r{_dunder}__", on_device(lambda a, b, f=_fn: f(b, a)))


def mirror(name, module, missing=""):
    """Return a module `name` with the functions of `module` lifted to fake arrays."""
    fake = types.ModuleType(name)
    for key in dir(module):
        value = getattr(module, key)
        if not key.startswith("_") and key not in missing.split():
            plain = isinstance(value, (type, types.ModuleType)) or not callable(value)
            setattr(fake, key, value if plain else on_device(value))
    return fake


def install(monkeypatch, *, available=True, devices=2):
    """Make the fake the process's CuPy for one test; returns the fresh counter of copies."""
    FakeArray.copies = copies = Copies()
    current = [0]

    @contextlib.contextmanager
    def device(index):
        before, current[0] = current[0], index
        yield
        current[0] = before

    def asarray(value, dtype=None):
        if isinstance(value, FakeArray):
            return FakeArray(value._host.astype(dtype or value.dtype), current[0])
        copies.to_device += 1
        return FakeArray(np.array(value, dtype), current[0])

    def solve_triangular(a, b, trans, lower, unit_diagonal):
        # CuPy's own wants equal batch dims.
        assert a.shape[:-2] == b.shape[:-2]
        solve = np.vectorize(
            lambda m, c: scipy.linalg.solve_triangular(
                m, c, trans=trans, lower=lower, unit_diagonal=unit_diagonal
            ),
            signature="(n,n),(n,k)->(n,k)",
        )
        return lift(solve(a._host, b._host))

    cupy = mirror("cupy", np, MISSING["numpy"])
    cupy.ndarray = FakeArray
    cupy.asarray = cupy.array = asarray
    cupy.asnumpy = lambda value: value.get() if isinstance(value, FakeArray) else np.asarray(value)
    cupy.linalg = mirror("cupy.linalg", np.linalg, MISSING["linalg"])
    cupy.cuda = types.SimpleNamespace(
        is_available=lambda: available,
        Device=device,
        runtime=types.SimpleNamespace(getDeviceCount=lambda: devices),
    )
    cupyx = types.ModuleType("cupyx")
    cupyx.scipy = types.ModuleType("cupyx.scipy")
    cupyx.scipy.special = mirror("cupyx.scipy.special", scipy.special, MISSING["special"])
    cupyx.scipy.linalg = types.ModuleType("cupyx.scipy.linalg")
    cupyx.scipy.linalg.solve_triangular = solve_triangular
    for module in (cupy, cupyx, cupyx.scipy, cupyx.scipy.special, cupyx.scipy.linalg):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return copies
