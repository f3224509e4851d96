"""Sorting and searching on a GPU: device functions as CUDA C, and the calls that they carry out.

What ops/sorting.py declares, with the order of ops/sorting.py: stable, nan behind every number.
That leaves one answer, so every function here may share its work out as it likes, and gives the
same bits however many blocks run it. None needs working space:

- **argsort**: each thread sorts runs of `_RUN` by counting; then a block merges the runs of its
  rows pass by pass. A thread finds by bisection where its `_RUN` places begin in the two runs that
  are merged (the merge path of Green, McColl and Bader 2012). Indices fit into 32 bits, results
  have 64: the halves of the results are the two arrays that a pass reads and writes. Rows are of
  the same length, so a block sorts as many as keep its threads busy in the same passes.
- **order_statistic**: in short rows each thread counts what comes before one element, and the one
  with k before it writes. In long rows a block finds the key of the element bit by bit, by counting
  the keys below; then its place among equal ones, so that even the sign of a zero is the right one.
- **searchsorted**: a bisection per thread.

A row is the work of one block. Above `_LONG_ROW` it goes through CuPy, whose sort occupies the
whole device, unless there is no place for a library call.
"""

from probtorch.compiler.render.cuda_own import OwnKernel
from probtorch.compiler.render.cuda_phases import THREADS

__all__ = ["SORTING", "sorting_kernel"]

# Not measured on a GPU. An estimate: in each of 11 passes a thread makes 8 times 43 loads that wait
# for each other, of 50 cycles: 0.1 ms, about what a call through CuPy between two graphs costs.
_LONG_ROW = 2**14
# Elements of a row up to which an order statistic is found by counting. Not measured either: to
# narrow a row down takes 70 to 80 passes over it, with some barriers each.
_COUNTED = 256
# Indices while they are sorted have 32 bits.
_MOST = 2**31
# Elements that a thread orders at a time, a power of 2.
_RUN = 8

_TEXT = r"""
// Whether `a` comes strictly before `b`; nan is the largest number.
template <class T> static __device__ bool pt_before(T a, T b) {
  return a < b || (b != b && a == a);
}
template <class T> static __device__ bool pt_before(bool descending, T a, T b) {
  return descending ? pt_before(b, a) : pt_before(a, b);
}
// How many of the elements from `first` to `last` come before the one at `i`, in stable order.
template <class T>
static __device__ i64 pt_rank(bool descending, const T *row, i64 first, i64 last, i64 i) {
  const T v = row[i];
  i64 rank = 0;
  for (i64 j = first; j < last; ++j)
    rank += j < i ? !pt_before(descending, v, row[j]) : pt_before(descending, row[j], v);
  return rank;
}
// Places from `start` of the merge of the runs [low, middle) and [middle, high): indices in every
// second number of `from`, into every second number of `into`.
template <class T>
static __device__ void pt_merge(bool descending, const T *row, const unsigned *from, unsigned *into,
                                i64 low, i64 middle, i64 high, i64 start) {
  const i64 ahead = start - low, end = start + PT_RUN < high ? start + PT_RUN : high;
  i64 least = ahead > high - middle ? ahead - (high - middle) : 0;
  i64 most = ahead < middle - low ? ahead : middle - low;
  while (least < most) {
    const i64 half = (least + most) / 2;
    const T first = row[from[2 * (low + half)]];
    const T second = row[from[2 * (middle + ahead - 1 - half)]];
    if (pt_before(descending, second, first)) most = half;
    else least = half + 1;
  }
  i64 i = low + least, j = middle + ahead - least;
  unsigned a = i < middle ? from[2 * i] : 0, b = j < high ? from[2 * j] : 0;
  T key_a = row[a], key_b = row[b];
  for (i64 o = start; o < end; ++o) {
    if (i < middle && (j >= high || !pt_before(descending, key_b, key_a))) {
      into[2 * o] = a;
      if (++i < middle) key_a = row[a = from[2 * i]];
    } else {
      into[2 * o] = b;
      if (++j < high) key_b = row[b = from[2 * j]];
    }
  }
}
template <class T>
static __device__ void pt_argsort(const unsigned block, const unsigned blocks, const T *x, i64 rows,
                                  i64 n, bool descending, i64 *out) {
  const i64 most = n < PT_RUN * blockDim.x ? PT_RUN * blockDim.x / n : 1;
  const unsigned runs = (unsigned)((n + PT_RUN - 1) / PT_RUN);
  for (i64 first = block * most; first < rows; first += blocks * most) {
    const unsigned count = (unsigned)(rows - first < most ? rows - first : most);
    const T *keys = x + first * n;
    i64 *found = out + first * n;
    for (unsigned t = threadIdx.x; t < count * runs; t += blockDim.x) {
      const T *row = keys + t / runs * n;
      unsigned *places = (unsigned *)(found + t / runs * n);
      const i64 start = (i64)(t % runs) * PT_RUN, end = start + PT_RUN < n ? start + PT_RUN : n;
      for (i64 i = start; i < end; ++i)
        places[2 * (start + pt_rank(descending, row, start, end, i))] = (unsigned)i;
    }
    __syncthreads();
    int half = 0;
    for (i64 width = PT_RUN; width < n; width *= 2) {
      for (unsigned t = threadIdx.x; t < count * runs; t += blockDim.x) {
        unsigned *places = (unsigned *)(found + t / runs * n);
        const i64 start = (i64)(t % runs) * PT_RUN, low = start & -(2 * width);
        const i64 middle = low + width < n ? low + width : n;
        const i64 high = middle + width < n ? middle + width : n;
        pt_merge(descending, keys + t / runs * n, places + half, places + 1 - half, low, middle,
                 high, start);
      }
      half = 1 - half;
      __syncthreads();
    }
    for (i64 t = threadIdx.x; t < count * n; t += blockDim.x)
      found[t] = ((const unsigned *)found)[2 * t + half];
  }
}
// The element with `k` before it, in rows that are short.
template <class T>
static __device__ void pt_order_statistic(const unsigned block, const unsigned blocks, const T *x,
                                          i64 rows, i64 n, i64 k, T *out) {
  const i64 step = (i64)blocks * blockDim.x;
  for (i64 t = (i64)block * blockDim.x + threadIdx.x; t < rows * n; t += step)
    if (pt_rank(false, x + t / n * n, 0, n, t % n) == k) out[t / n] = x[t];
}
// Numbers of at most 8 * sizeof(T) + 3 bits that are ordered as `x` is, equal where it is.
template <class T> static __device__ u64 pt_key(T x) {
  return (u64)(i64)x + ((u64)1 << (8 * sizeof(T) - 1));
}
static __device__ u64 pt_key(double x) {
  if (x != x) return ~(u64)0;
  const i64 bits = __double_as_longlong(x == 0 ? 0.0 : x);
  return (u64)(bits < 0 ? ~bits : bits | I64_MIN);
}
// The lower 29 bits of a float as a double are 0.
static __device__ u64 pt_key(float x) { return pt_key((double)x) >> 29; }
// The element with `k` before it, in rows that are long.
template <class T>
static __device__ void pt_select(const unsigned block, const unsigned blocks, const T *x, i64 rows,
                                 i64 n, i64 k, T *out, void *shared) {
  for (i64 r = block; r < rows; r += blocks) {
    const T *row = x + r * n;
    // The largest key with at most k smaller ones.
    u64 key = 0;
    for (int bit = (sizeof(T) == 8 ? 64 : 8 * (int)sizeof(T) + 3) - 1; bit >= 0; --bit) {
      const u64 higher = key | (u64)1 << bit;
      i64 before = 0;
      for (i64 i = threadIdx.x; i < n; i += blockDim.x) before += pt_key(row[i]) < higher;
      if (pt_block<pt_sum>(before, shared) <= k) key = higher;
    }
    // The last place with at most k elements before it: of smaller keys, or equal and in front.
    i64 place = 0, step = 1;
    while (2 * step < n) step *= 2;
    for (; step > 0; step /= 2) {
      i64 before = 0;
      for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
        const u64 other = pt_key(row[i]);
        before += other < key || (other == key && i < place + step);
      }
      if (pt_block<pt_sum>(before, shared) <= k) place += step;
    }
    if (threadIdx.x == 0) out[r] = row[place];
  }
}
// Where `count` values per row would be inserted: in front of equal elements, or behind if `right`.
template <class T>
static __device__ void pt_searchsorted(const unsigned block, const unsigned blocks, const T *x,
                                       const T *values, i64 rows, i64 n, i64 count, bool right,
                                       i64 *out) {
  const i64 step = (i64)blocks * blockDim.x;
  for (i64 t = (i64)block * blockDim.x + threadIdx.x; t < rows * count; t += step) {
    const T *row = x + t / count * n, v = values[t];
    i64 low = 0, high = n;
    while (low < high) {
      const i64 middle = (low + high) / 2;
      const bool beyond = right ? pt_before(v, row[middle]) : !pt_before(row[middle], v);
      if (beyond) high = middle;
      else low = middle + 1;
    }
    out[t] = low;
  }
}
"""
SORTING = f"\nenum {{ PT_RUN = {_RUN} }};{_TEXT}"


def sorting_kernel(call, *, large=False):
    """Return the `OwnKernel` of a call that sorts or searches; None for others, and for long rows.

    `large` for a call that must be ours, however long its rows are.
    """
    name = call.attrs["symbol"].removeprefix("pt_").rpartition("_")[0]
    arguments = call.attrs["arguments"]
    if name == "searchsorted":
        x, values, rows, n, count, right, out = arguments
        passed = [x, values, rows, n, count, bool(right), out]
        work = rows * count * n.bit_length()
        return OwnKernel("pt_searchsorted", passed, rows * count, work, "sorting")
    if name not in ("argsort", "order_statistic"):
        return None
    x, rows, n, number, out, _ = arguments
    if n >= _MOST or (n > _LONG_ROW and not large):
        return None
    if name == "argsort":
        threads = -(-rows // max(1, _RUN * THREADS // n)) * THREADS
        work = rows * n * (n.bit_length() + _RUN)
        return OwnKernel("pt_argsort", [x, rows, n, bool(number), out], threads, work, "sorting")
    passed = [x, rows, n, number, out]
    if n <= _COUNTED:
        return OwnKernel("pt_order_statistic", passed, rows * n, rows * n * n, "sorting")
    work = rows * (n + THREADS) * (64 + n.bit_length())
    return OwnKernel("pt_select", [*passed, "shared"], rows * THREADS, work, "sorting")
