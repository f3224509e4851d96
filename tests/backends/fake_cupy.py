"""A stand-in for CuPy made of NumPy, so that code for the GPU is tested where there is none.

Its arrays refuse what CuPy's refuse (`np.asarray`, mixing with host arrays), it lacks the names
CuPy lacks, and it counts the copies between host and device: a test can state that there are none.
Kernels are compiled by g++ and run on the processor (`host_gpu.py`); a stream that is captured
notes them instead, for `launch` to run. `install(monkeypatch)` puts the fake in `sys.modules` as
`cupy` and `cupyx` and returns the counter.
"""

import functools
import operator
import sys
import types
import weakref

import numpy as np
import scipy.linalg
import scipy.special

from probtorch.backends import cupy_
from tests.backends import host_gpu

# Of the imagined device; each holds one block of those that wait for each other.
PROCESSORS = 3

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


# Which array it is. By `id`, what this module does would be taken for the user's asking for it.
_place = object.__hash__


class FakeArray:
    """An array on an imagined device: NumPy inside, CuPy's manners outside."""

    copies = Copies()
    known = weakref.WeakValueDictionary()  # by id of what they hold

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        """NumPy's ufuncs become CuPy's, as long as no host array takes part."""
        out = kwargs.pop("out", ())
        if any(isinstance(x, np.ndarray) for x in (*inputs, *out)):
            return NotImplemented
        if out:
            kwargs["out"] = tuple(map(lower, out))
        result = getattr(ufunc, method)(*map(lower, inputs), **kwargs)
        return out[0] if len(out) == 1 else lift(result)

    def __array_function__(self, function, kinds, args, kwargs):
        """NumPy's functions become CuPy's of the same name."""
        module = sys.modules["cupy"]
        for part in function.__module__.split(".")[1:]:
            module = getattr(module, part)
        return getattr(module, function.__name__)(*args, **kwargs)

    def __init__(self, host, device_id=0):
        self._host = host
        self.device = types.SimpleNamespace(id=device_id)
        FakeArray.known.setdefault(_place(host), self)

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def get(self):
        FakeArray.copies.to_host += 1
        return self._host.copy()

    def argsort(self, axis=-1):
        return lift(self._host.argsort(axis=axis, kind="stable"))

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

    def __setitem__(self, index, value):
        self._host[lower(index)] = lower(value)

    @property
    def base(self):
        """The array that owns the memory; views of the same one have the same."""
        owner = self._host.base
        if not isinstance(owner, np.ndarray):
            return None
        found = FakeArray.known.get(_place(owner))
        return FakeArray(owner, self.device.id) if found is None else found

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self._host.shape,
            "typestr": self._host.dtype.str,
            "data": (self.data.ptr, False),
            "version": 3,
        }

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self._host.__array_interface__["data"][0])


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
    if not (isinstance(value, tuple) and _holds_arrays(value)):
        return value
    lifted = [lift(v) for v in value]
    return tuple(lifted) if type(value) is tuple else type(value)(*lifted)


def _holds_arrays(values):
    return any(isinstance(v, np.ndarray) for v in values)


def on_device(fn):
    """Run the host function `fn` on fake arrays."""

    def run(*args, **kwargs):
        kwargs = {name: lower(value) for name, value in kwargs.items()}
        return lift(fn(*[lower(arg) for arg in args], **kwargs))

    if isinstance(fn, np.ufunc):
        run.at = on_device(fn.at)
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


class FakeKernels:
    """A module of kernels; all modules made since the last launch are compiled together."""

    pending = []
    launches = 0  # kernels started one by one
    graphs = 0  # graphs started

    def __init__(self, code, backend, options):
        self.code, self.built = code, None
        FakeKernels.pending.append(self)

    def get_function(self, name):
        return FakeKernel(self, name)

    def run(self, name, blocks, threads, args, together):
        if self.built is None:
            todo, FakeKernels.pending = FakeKernels.pending, []
            if self not in todo:
                todo.append(self)
            for module, built in zip(
                todo, host_gpu.compile_all([m.code for m in todo]), strict=True
            ):
                module.built = built
        self.built.launch(name, blocks, threads, [int(a) for a in args], together=together)


class FakeKernel:
    """One kernel, CuPy's `RawKernel` and its `Function` in one."""

    ptr = 1

    def __init__(self, module, name):
        self.module, self.name = module, name

    @property
    def kernel(self):
        return self

    def __call__(self, grid, block, args, enable_cooperative_groups=False):
        assert all(type(a) is np.uint64 for a in args), "8 bytes an argument"
        (blocks,), (threads,) = grid, block
        assert not enable_cooperative_groups or blocks <= PROCESSORS, "they do not fit"

        def run():
            self.module.run(self.name, blocks, threads, args, enable_cooperative_groups)

        FakeKernels.launches += FakeStream.captured is None
        FakeStream.enqueue(run)


class FakeGraph:
    """What was captured."""

    def __init__(self, steps):
        self.steps = steps

    def launch(self):
        FakeKernels.graphs += 1
        for run in self.steps:
            run()


class FakeError(RuntimeError):
    """What CUDA reports."""


class FakeStream:
    """A stream that can be captured; only one at a time, as is enough here. The class itself is the
    default stream.
    """

    current = []  # streams that were entered
    waits = 0  # for all that the device has to do
    captured = None
    refuses = False  # to be captured
    ptr = 7

    @staticmethod
    def enqueue(run):
        """Run something now, or when the graph that is being captured is launched."""
        if FakeStream.captured is None:
            run()
        else:
            FakeStream.captured.append(run)

    def __init__(self, non_blocking=False):
        assert non_blocking, "the default stream cannot be captured"

    def __enter__(self):
        FakeStream.current.append(self)
        return self

    def __exit__(self, *error):
        FakeStream.current.pop()
        return False

    def begin_capture(self):
        FakeStream.captured = []

    def end_capture(self):
        steps, FakeStream.captured = FakeStream.captured, None
        if FakeStream.refuses:
            raise FakeError("cudaErrorStreamCaptureUnsupported")
        return FakeGraph(steps)


def as_strided(x, shape, strides):
    """A view that ends inside the memory of `x`."""
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    assert last < x._host.nbytes, "a view beyond the array"
    return lift(np.lib.stride_tricks.as_strided(x._host, shape, strides))


def _no_library(major):
    raise OSError(f"libcublas.so.{major}: not here")


def install(monkeypatch, *, available=True, devices=2):
    """Make the fake the process's CuPy for one test; returns the fresh counter of copies."""
    FakeArray.copies = copies = Copies()
    current = [0]

    class Device:
        """A device; entered, it is the current one."""

        attributes = {"MultiProcessorCount": PROCESSORS}
        compute_capability = "90"

        def __init__(self, index=None):
            self.id = current[0] if index is None else index

        def __enter__(self):
            self.before, current[0] = current[0], self.id
            return self

        def __exit__(self, *error):
            current[0] = self.before

        def synchronize(self):
            FakeStream.waits += 1

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
    cupy.lib = types.SimpleNamespace(stride_tricks=types.SimpleNamespace(as_strided=as_strided))
    cupy.byte_bounds = lambda x: np.lib.array_utils.byte_bounds(x._host)
    cupy.RawModule = FakeKernels
    FakeKernels.launches = FakeKernels.graphs = 0
    cupy.linalg = mirror("cupy.linalg", np.linalg, MISSING["linalg"])
    cupy.cuda = types.SimpleNamespace(
        is_available=lambda: available,
        Device=Device,
        Stream=FakeStream,
        get_current_stream=lambda: FakeStream.current[-1] if FakeStream.current else FakeStream,
        runtime=types.SimpleNamespace(
            getDeviceCount=lambda: devices,
            runtimeGetVersion=lambda: 13020,
            CUDARuntimeError=FakeError,
        ),
        driver=types.SimpleNamespace(
            occupancyMaxActiveBlocksPerMultiprocessor=lambda kernel, threads, shared: 1,
            CUDADriverError=FakeError,
        ),
    )
    monkeypatch.setattr(FakeStream, "refuses", False)
    cupyx = types.ModuleType("cupyx")
    cupyx.scipy = types.ModuleType("cupyx.scipy")
    cupyx.scipy.special = mirror("cupyx.scipy.special", scipy.special, MISSING["special"])
    cupyx.scipy.linalg = types.ModuleType("cupyx.scipy.linalg")
    cupyx.scipy.linalg.solve_triangular = solve_triangular
    cupy.cublas = types.ModuleType("cupy.cublas")
    monkeypatch.setattr(cupy_, "_cublas", functools.cache(cupy_._cublas.__wrapped__))
    monkeypatch.setattr(cupy_, "load", _no_library)
    for module in (cupy, cupy.cublas, cupyx, cupyx.scipy, cupyx.scipy.special, cupyx.scipy.linalg):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return copies
