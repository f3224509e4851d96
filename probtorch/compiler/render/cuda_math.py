"""What stands at the head of a CUDA program: what its kernels call, and C has no word for.

`PREAMBLE` is in every program: extremes in which nan wins, conversions that saturate, the status, a
barrier across blocks. Routines of the kernel language
(`lang/routines`) are added when a kernel calls them. The text is plain C++, so that it compiles for
the host too, where it is tested against SciPy.
"""

from probtorch.compiler.lang.cuda import CudaModule
from probtorch.compiler.lang.function import KernelRoutine
from probtorch.compiler.lang.routines import special
from probtorch.compiler.lang.routines.blocks import BLOCKS
from probtorch.compiler.lang.routines.draws import write_draw
from probtorch.compiler.lang.routines.elimination import ELIMINATION
from probtorch.compiler.lang.routines.incomplete import INCOMPLETE
from probtorch.compiler.lang.routines.integers import bits_to_integers, power
from probtorch.compiler.lang.routines.matrices import MATRICES
from probtorch.compiler.lang.routines.philox import philox
from probtorch.compiler.lang.routines.quantile import normal_of_uniform
from probtorch.compiler.lang.routines.sorting import SORTING
from probtorch.compiler.lang.routines.sparse import SPARSE

__all__ = ["FUNCTIONS", "NUMBERS", "PREAMBLE", "knows", "runtime_text"]

PREAMBLE = r"""
typedef long long i64;
typedef unsigned long long u64;
#define I64_MIN (-9223372036854775807LL - 1)
template <class T> static __device__ T pt_inf() {
  return (T)__longlong_as_double(0x7ff0000000000000LL);
}
template <class T> static __device__ T pt_nan() {
  return (T)__longlong_as_double(0x7ff8000000000000LL);
}
template <class T> static __device__ T pt_maximum(T a, T b) {
  return a != a ? a : b != b ? b : a > b ? a : b;
}
template <class T> static __device__ T pt_minimum(T a, T b) {
  return a != a ? a : b != b ? b : a < b ? a : b;
}
template <class T> static __device__ T pt_to_integer(double x) {
  const double low = (T)((u64)1 << (8 * sizeof(T) - 1)), high = -(low + 1);
  return x != x ? (T)0 : x >= high ? (T)~(T)low : x <= low ? (T)low : (T)x;
}
// The first failure stays: 0 is none, -1 what eager execution would raise, else 1 + a guard.
static __device__ void pt_fail(i64 *status, i64 code) { if (*status == 0) *status = code; }
// A barrier of all blocks of a kernel, which were started together. Behind the status lie how many
// have arrived, and how many barriers everybody has passed.
static __device__ void pt_meet(char *M) {
  unsigned *arrived = (unsigned *)(M + 8);
  volatile unsigned *passed = (volatile unsigned *)(M + 12);
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned before = *passed;
    __threadfence();
    if (atomicAdd(arrived, 1u) == gridDim.x - 1) {
      *arrived = 0;
      __threadfence();
      *passed = before + 1;
    } else {
      while (*passed == before) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 700
        __nanosleep(32);
#endif
      }
    }
    __threadfence();
  }
  __syncthreads();
}
"""

# Memory of a block for tiles, one for all functions of a kernel; one that has no use for it takes
# none. Products want most, 16 x 65 numbers of either matrix.
_ROOM = """
static __device__ char *pt_room() {
  __shared__ double room[2 * 16 * 65];
  return (char *)room;
}
"""

# Functions of numbers that kernels may call, but for samplers; and all functions.
NUMBERS = {
    **special.SPECIAL,
    **INCOMPLETE,
    "pt_bits_to_integers": KernelRoutine(bits_to_integers, "i64 i64 i64", "i64"),
    "pt_normal_of_uniform": KernelRoutine(normal_of_uniform, flags=""),
    "pt_philox": KernelRoutine(philox, "i64 i64 i64", "i64"),
    "pt_power": KernelRoutine(power, "i64 i64", "i64"),
}
FUNCTIONS = {**NUMBERS, **BLOCKS, **SORTING, **SPARSE, **MATRICES, **ELIMINATION}
_DRAW = "pt_draw_"


def knows(name):
    """Return whether a kernel may call a function of this name."""
    return name in FUNCTIONS or name.startswith(_DRAW)


def runtime_text(names):
    """Return the head of a program that calls the functions of these names."""
    done = {}

    def add(name):
        if name in done:
            return
        module = CudaModule(f"t_{name}")
        if name.startswith(_DRAW):
            write_draw(module, name.removeprefix(_DRAW))
        elif name != "pt_room":
            FUNCTIONS[name].write(module, name)
        for other in sorted(module.runtime):
            add(other)
        done[name] = module.text() if module.functions else _ROOM

    for name in sorted(names):
        add(name)
    return PREAMBLE + "".join(done.values())
