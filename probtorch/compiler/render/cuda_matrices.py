"""Device functions for matrices, as CUDA C: products, solves with small triangles.

Each takes the number of this block among those that run it, and how many these are, and gives the
same bits however many there are: a block has whole tiles of a product, or whole matrices of a
batch. All threads of a block (256 of them, `THREADS`) reach every barrier. Read `cuda_factors.py`
next, which has factors and what is solved with them, made of the tiles of this file.
"""

from probtorch.compiler.render.cuda_factors import FACTORS

__all__ = ["MATRICES"]

# A thread per element of a product, or per column of a solution.
_SMALL = r"""
// C = A B for a batch, in tiles of 16 x 16, a thread per element; steps along the rows and columns
// of A and B, and from one matrix to the next.
template <class T>
static __device__ void pt_gemm(const unsigned block, const unsigned blocks, const T *as,
                               const T *bs, T *cs, i64 m, i64 n, i64 k, i64 ai, i64 ak, i64 bk,
                               i64 bj, i64 next_a, i64 next_b, i64 batch, void *shared) {
  T *left = (T *)shared, *right = left + 256;
  const int i = threadIdx.x / 16, j = threadIdx.x % 16;
  const i64 across = (n + 15) / 16, tiles = (m + 15) / 16 * across;
  for (i64 t = block; t < batch * tiles; t += blocks) {
    const i64 which = t / tiles, tile = t % tiles;
    const T *a = as + which * next_a, *b = bs + which * next_b;
    const i64 row = tile / across * 16 + i, column = tile % across * 16 + j;
    T total = 0;
    for (i64 first = 0; first < k; first += 16) {
      left[threadIdx.x] = row < m && first + j < k ? a[row * ai + (first + j) * ak] : (T)0;
      right[threadIdx.x] = column < n && first + i < k ? b[(first + i) * bk + column * bj] : (T)0;
      __syncthreads();
      for (int q = 0; q < 16; ++q) total += left[16 * i + q] * right[16 * q + j];
      __syncthreads();
    }
    if (row < m && column < n) cs[which * m * n + row * n + column] = total;
  }
}
// A x = b in place of b, a column of b for each thread; `apart` is the distance of the matrices.
template <class T>
static __device__ void pt_trsm(const unsigned block, const unsigned blocks, const T *a, T *b, i64 n,
                               i64 m, bool upper, bool unit, i64 batch, i64 apart) {
  for (i64 t = block * blockDim.x + threadIdx.x; t < batch * m; t += blocks * blockDim.x) {
    const T *l = a + t / m * apart;
    T *x = b + t / m * n * m + t % m;
    for (i64 r = 0; r < n; ++r) {
      const i64 i = upper ? n - 1 - r : r, first = upper ? i + 1 : 0, last = upper ? n : i;
      T rest = x[i * m];
      for (i64 k = first; k < last; ++k) rest -= l[i * n + k] * x[k * m];
      x[i * m] = unit ? rest : rest / l[i * n + i];
    }
  }
}
"""

# Products in tiles of 64 x 64, of which the block that has one tile holds 4 x 4 in each thread. The
# room is one for all functions of a kernel, and takes none in kernels that have no use for it.
# `pt_reflect` wants most, 16 x 17 for a triangle, 16 x 65 for a product, and 16 x 17 and 16 x 65
# for tiles of its operands. The odd numbers keep the columns of a tile in different banks.
_TILES = r"""
static __device__ void *pt_room() {
  __shared__ double room[2 * 16 * 17 + 2 * 16 * 65];
  return room;
}
// Elements of A B in a tile: a thread has those of rows t / 16 + 16 r and columns t % 16 + 16 s.
// `rows` and `columns` are how many there are from the tile's corner on. The next 16 terms are
// loaded while these are multiplied; neighbours among the threads load neighbours in memory.
template <class T>
static __device__ void pt_tile(const T *a, const T *b, i64 rows, i64 columns, i64 k, i64 ai, i64 ak,
                               i64 bk, i64 bj, T *shared, T (&sum)[4][4]) {
  T *left = shared, *right = shared + 16 * 65;
  const int t = threadIdx.x, i = t / 16, j = t % 16;
  const bool along = ak == 1, down = bk == 1;
  const int li = along ? i : t % 64, lk = along ? j : t / 64;
  const int rj = down ? i : t % 64, rk = down ? j : t / 64;
  for (i64 first = 0;; first += 16) {
    T x[4], y[4];
    #pragma unroll
    for (int u = 0; u < 4; ++u) {
      const i64 xi = along ? li + 16 * u : li, xk = first + (along ? lk : lk + 4 * u);
      const i64 yj = down ? rj + 16 * u : rj, yk = first + (down ? rk : rk + 4 * u);
      x[u] = xi < rows && xk < k ? a[xi * ai + xk * ak] : (T)0;
      y[u] = yj < columns && yk < k ? b[yk * bk + yj * bj] : (T)0;
    }
    if (first > 0) {
      #pragma unroll
      for (int q = 0; q < 16; ++q) {
        #pragma unroll
        for (int r = 0; r < 4; ++r) {
          #pragma unroll
          for (int s = 0; s < 4; ++s)
            sum[r][s] += left[65 * q + i + 16 * r] * right[65 * q + j + 16 * s];
        }
      }
    }
    __syncthreads();
    if (first >= k) break;
    #pragma unroll
    for (int u = 0; u < 4; ++u) {
      left[along ? 65 * lk + li + 16 * u : 65 * (lk + 4 * u) + li] = x[u];
      right[down ? 65 * rk + rj + 16 * u : 65 * (rk + 4 * u) + rj] = y[u];
    }
    __syncthreads();
  }
}
// C = A B, or C -= A B, for the tiles of these blocks; rows of C are `ld` apart.
template <class T>
static __device__ void pt_tiles(const unsigned block, const unsigned blocks, const T *a, const T *b,
                                T *c, i64 ld, i64 m, i64 n, i64 k, i64 ai, i64 ak, i64 bk, i64 bj,
                                bool subtract, T *shared) {
  const int i = threadIdx.x / 16, j = threadIdx.x % 16;
  const i64 across = (n + 63) / 64, tiles = (m + 63) / 64 * across;
  for (i64 tile = block; tile < tiles; tile += blocks) {
    const i64 row = tile / across * 64, column = tile % across * 64;
    T sum[4][4] = {};
    pt_tile(a + row * ai, b + column * bj, m - row, n - column, k, ai, ak, bk, bj, shared, sum);
    #pragma unroll
    for (int r = 0; r < 4; ++r) {
      #pragma unroll
      for (int s = 0; s < 4; ++s) {
        const i64 y = row + i + 16 * r, x = column + j + 16 * s;
        if (y < m && x < n) c[y * ld + x] = subtract ? c[y * ld + x] - sum[r][s] : sum[r][s];
      }
    }
  }
}
// C = A B as `pt_gemm` has it.
template <class T>
static __device__ void pt_gemm_wide(const unsigned block, const unsigned blocks, const T *a,
                                    const T *b, T *c, i64 m, i64 n, i64 k, i64 ai, i64 ak, i64 bk,
                                    i64 bj, i64 next_a, i64 next_b, i64 batch) {
  const unsigned tiles = (unsigned)((m + 63) / 64 * ((n + 63) / 64));
  for (i64 t = block; t < batch * tiles; t += blocks) {
    const i64 which = t / tiles;
    pt_tiles((unsigned)(t % tiles), tiles, a + which * next_a, b + which * next_b,
             c + which * m * n, n, m, n, k, ai, ak, bk, bj, false, (T *)pt_room());
  }
}
"""

MATRICES = _SMALL + _TILES + FACTORS
