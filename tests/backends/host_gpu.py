"""CUDA C run on the processor: generated kernels are compiled by g++ and run block by block.

The same source that NVRTC gets is put behind a small header that declares what CUDA does
(`threadIdx`, `__syncthreads`, `erfinv` ...). Each thread of a block is a fiber; a barrier switches
to the next one. Kernels run one block after the other, in rising or, with ``backwards=True``, in
falling order of blocks and threads: a result that differs between the two is a race. A barrier that
only part of a block reaches is an error. Blocks that are started together take turns: the next one
runs when a thread pauses (`__nanosleep`) to wait for it. Blocks that all wait are an error. Shared
memory is one for all blocks: nothing in it may be wanted behind a barrier across blocks.

Functions of CUDA that the C library lacks (`erfinv`, `erfcx`, `normcdf` ...) are SciPy's here.
"""

import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from probtorch.compiler.native import library

__all__ = ["GXX", "Module", "compile_all", "needs_gxx"]

GXX = shutil.which("g++")
needs_gxx = pytest.mark.skipif(GXX is None, reason="there is no g++ to run kernels with")
_FLAGS = ["-O1", "-std=c++17", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-U_FORTIFY_SOURCE"]

_RUNTIME = r"""
#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>
enum { MOST = 1024, STACK = 1 << 16 };
enum { READY, AT_BARRIER, FINISHED };
enum { PART_OF_BLOCK = 1, WAITING_FOR_EACH_OTHER = 2 };
typedef struct { struct { unsigned x, y, z; } thread, block, threads, blocks; } Where;
Where *host_where;
static jmp_buf fibers[MOST], scheduler;
static ucontext_t boot, started;
static int made, current, state[MOST], paused;
static void (*kernel)(char **);
static char **arguments;
static void fiber(void) {
  const int me = current;
  if (!_setjmp(fibers[me])) swapcontext(&started, &boot);
  for (;;) {
    kernel(arguments);
    state[me] = FINISHED;
    if (!_setjmp(fibers[me])) _longjmp(scheduler, 1);
  }
}
void host_barrier(void) {
  state[current] = AT_BARRIER;
  if (!_setjmp(fibers[current])) _longjmp(scheduler, 1);
}
/* A thread that waits for what another block does. */
void host_pause(void) {
  paused = 1;
  if (!_setjmp(fibers[current])) _longjmp(scheduler, 1);
}
/* Run a block until it has finished or a thread of it pauses; whether it came any further. */
static int run_block(int first, int threads, unsigned block, int backwards, int *ended) {
  int further = 0;
  for (;;) {
    int at_barrier = 0;
    paused = 0;
    *ended = 0;
    host_where->block.x = block;
    for (volatile int t = 0; t < threads; ++t) {
      const int x = backwards ? threads - 1 - t : t;
      current = first + x;
      host_where->thread.x = x;
      if (state[current] == READY && !_setjmp(scheduler)) _longjmp(fibers[current], 1);
    }
    for (int i = first; i < first + threads; ++i) {
      *ended += state[i] == FINISHED;
      at_barrier += state[i] == AT_BARRIER;
    }
    if (*ended == threads) return 1;
    if (at_barrier + *ended == threads && *ended) return -1;
    if (at_barrier == threads) {
      for (int i = first; i < first + threads; ++i) state[i] = READY;
      further = 1;
    } else if (paused) {
      return further;
    }
  }
}
int host_launch(void (*k)(char **), char **a, unsigned blocks, unsigned threads, int backwards,
                int together) {
  const unsigned wave = together ? blocks : 1;
  if (wave * threads > MOST) return MOST;
  for (; made < (int)(wave * threads); ++made) {
    current = made;
    getcontext(&started);
    started.uc_stack.ss_sp = malloc(STACK);
    started.uc_stack.ss_size = STACK;
    started.uc_link = &boot;
    ucontext_t now = started;
    makecontext(&now, fiber, 0);
    swapcontext(&boot, &now);
  }
  kernel = k;
  arguments = a;
  host_where->threads.x = threads;
  host_where->blocks.x = blocks;
  for (unsigned first = 0; first < blocks; first += wave) {
    for (unsigned i = 0; i < wave * threads; ++i) state[i] = READY;
    for (unsigned left = wave; left;) {
      int further = 0;
      left = wave;
      for (unsigned w = 0; w < wave; ++w) {
        const unsigned x = backwards ? wave - 1 - w : w;
        const unsigned block = together ? x : backwards ? blocks - 1 - first : first;
        int ended = 0;
        if (state[x * threads] != FINISHED) {
          const int found = run_block(x * threads, threads, block, backwards, &ended);
          if (found < 0) return PART_OF_BLOCK;
          further |= found;
        }
        left -= state[x * threads] == FINISHED;
      }
      if (left && !further) return WAITING_FOR_EACH_OTHER;
    }
  }
  return 0;
}
"""

_ONE = (
    "exp log log1p expm1 tanh exp2 log2 log10 sqrt fabs floor ceil trunc rint sin cos tan asin "
    "acos atan sinh cosh asinh acosh atanh cbrt tgamma erf erfc"
).split()
_TWO = "copysign atan2 pow fmod nextafter".split()
_SCIPY = {
    "erfinv": "erfinv",
    "erfcx": "erfcx",
    "normcdf": "ndtr",
    "normcdfinv": "ndtri",
    "cyl_bessel_i0": "i0",
    "cyl_bessel_i1": "i1",
    "lgamma": "gammaln",
    **{name: name for name in ("j0", "j1", "y0", "y1")},
}


def _header():
    lines = []
    for name in _ONE:
        lines.append(f'extern "C" double {name}(double); extern "C" float {name}f(float);')
    for name in _TWO:
        lines.append(
            f'extern "C" double {name}(double, double); extern "C" float {name}f(float, float);'
        )
    for i, name in enumerate(_SCIPY):
        lines.append(f"static double {name}(double x) {{ return host_special[{i}](x, 0); }}")
    return "\n".join(
        [
            'extern "C" double (*host_special[])(double, int);',
            'extern "C" void host_barrier(void);',
            'extern "C" void host_pause(void);',
            "struct host_three { unsigned x, y, z; };",
            "struct host_place { host_three thread, block, threads, blocks; };",
            'extern "C" host_place host_now;',
            "#define threadIdx host_now.thread",
            "#define blockIdx host_now.block",
            "#define blockDim host_now.threads",
            "#define gridDim host_now.blocks",
            "#define __syncthreads host_barrier",
            "#define __nanosleep(n) host_pause()",
            "#define __threadfence()",
            "static unsigned atomicAdd(unsigned *p, unsigned n) {",
            "const unsigned x = *p; *p += n; return x; }",
            "#define __device__",
            "#define __global__",
            "#define __launch_bounds__(n)",
            "#define __shared__ static",
            "#define isinf __builtin_isinf",
            "static double __longlong_as_double(long long x) {",
            "double y; __builtin_memcpy(&y, &x, 8); return y; }",
            "static long long __double_as_longlong(double x) {",
            "long long y; __builtin_memcpy(&y, &x, 8); return y; }",
            "static int __float_as_int(float x) {",
            "int y; __builtin_memcpy(&y, &x, 4); return y; }",
            "static float __int_as_float(int x) {",
            "float y; __builtin_memcpy(&y, &x, 4); return y; }",
            "static unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {",
            "return (unsigned long long)((unsigned __int128)x * y >> 64); }",
            *(
                f"static double __d{name}_rn(double x, double y) {{ return x {sign} y; }}"
                for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))
            ),
            "static float sqrt(float x) { return __builtin_sqrtf(x); }",
            *lines,
        ]
    )


_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\)')


@functools.cache
def _folder():
    return Path(tempfile.mkdtemp(prefix="probtorch_host_gpu"))


def _build(text, name, compiler, flags):
    source = _folder() / name
    source.write_text(text)
    target = source.with_suffix(".so")
    run = subprocess.run(
        [compiler, *flags, str(source), "-o", str(target)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[:4000] + "\n" + text[-6000:]
    return target


@functools.cache
def _runtime():
    target = _build(
        _RUNTIME,
        "runtime.c",
        shutil.which("gcc") or GXX,
        ["-O1", "-fPIC", "-shared", "-w", "-U_FORTIFY_SOURCE"],
    )
    return ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)


def _wrapped(source, space):
    """Return a source in a namespace of its own, with its kernels callable from outside."""
    lines = []
    for name, params in _KERNEL.findall(source):
        arguments = ", ".join(
            f"a[{i}]" if "*" in p else f"(long long)a[{i}]" for i, p in enumerate(params.split(","))
        )
        lines.append(
            f'extern "C" void {space}_{name}(char **a) {{ {space}::{name}({arguments}); }}'
        )
    body = source.replace('extern "C" ', "")
    return f"namespace {space} {{\n{body}\n}}\n" + "\n".join(lines)


def compile_all(sources, flags=()):
    """Compile several sources at once; returns a `Module` for each."""
    runtime = _runtime()
    spaces = [f"s{i}" for i in range(len(sources))]
    text = "\n".join(
        [
            _header(),
            'extern "C" { host_place host_now; }',
            f'extern "C" {{ double (*host_special[{len(_SCIPY)}])(double, int); }}',
            *(_wrapped(s, space) for s, space in zip(sources, spaces, strict=True)),
            "",
        ]
    )
    name = hashlib.sha256(("".join(flags) + text).encode()).hexdigest()[:24] + ".cpp"
    built = ctypes.CDLL(str(_build(text, name, GXX, [*_FLAGS, *flags])))
    table = (ctypes.c_void_p * len(_SCIPY)).in_dll(built, "host_special")
    found = library.require([f"pt_{x}" for x in _SCIPY.values()])
    for i, x in enumerate(_SCIPY.values()):
        table[i] = found[f"pt_{x}"]
    return [Module(runtime, built, space) for space in spaces]


_FAILURES = {
    1: "a barrier that only part of the block reached",
    2: "blocks that wait for each other",
}


class Module:
    """The kernels of one source."""

    backwards = False  # order of blocks and threads, for all modules

    def __init__(self, runtime, built, space):
        self.runtime, self.built, self.space = runtime, built, space

    def launch(self, kernel, blocks, threads, addresses, *, together=False):
        """Run a kernel on host memory; `together` for blocks that wait for each other."""
        function = ctypes.cast(getattr(self.built, f"{self.space}_{kernel}"), ctypes.c_void_p)
        table = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        where = ctypes.c_void_p.in_dll(self.runtime, "host_where")
        where.value = ctypes.addressof(ctypes.c_char.in_dll(self.built, "host_now"))
        failed = self.runtime.host_launch(
            function, table, blocks, threads, int(Module.backwards), int(together)
        )
        assert not failed, f"{kernel}: {_FAILURES.get(failed, 'too many threads at once')}"


def address(array):
    """Return the address of an array's first element."""
    return np.asarray(array).__array_interface__["data"][0]
