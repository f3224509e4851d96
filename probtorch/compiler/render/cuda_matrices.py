"""Device functions for matrices, as CUDA C.

Each takes the number of this block among those that run it, and how many these are, and gives the
same bits however many there are.
"""

__all__ = ["MATRICES"]

# Device functions for matrices by rows.
MATRICES = r"""
// Lower factors in place; what is not positive definite becomes nan, and fails if `check`.
template <class T>
static __device__ void pt_cholesky(const unsigned block, const unsigned blocks, T *all, i64 n,
                                   i64 batch, bool check, i64 *status) {
  for (i64 m = block; m < batch; m += blocks) {
    T *a = all + m * n * n;
    bool bad = false;
    for (i64 k = 0; k < n; ++k) {
      const T pivot = a[k * n + k];
      __syncthreads();
      if (!(pivot > 0)) { bad = true; break; }
      const T root = sqrt(pivot);
      for (i64 i = k + threadIdx.x; i < n; i += blockDim.x)
        a[i * n + k] = i == k ? root : a[i * n + k] / root;
      __syncthreads();
      const i64 rest = n - k - 1;
      for (i64 t = threadIdx.x; t < rest * rest; t += blockDim.x) {
        const i64 i = k + 1 + t / rest, j = k + 1 + t % rest;
        if (j <= i) a[i * n + j] -= a[i * n + k] * a[j * n + k];
      }
      __syncthreads();
    }
    for (i64 t = threadIdx.x; t < n * n; t += blockDim.x)
      if (bad || t % n > t / n) a[t] = bad ? pt_nan<T>() : (T)0;
    if (bad && check && threadIdx.x == 0) pt_fail(status, -1);
    __syncthreads();
  }
}
// C = A B in tiles of 16 x 16, a thread per element; steps along the rows and columns of A and B.
template <class T>
static __device__ void pt_gemm(const unsigned block, const unsigned blocks, const T *a, const T *b,
                               T *c, i64 m, i64 n, i64 k, i64 ai, i64 ak, i64 bk, i64 bj,
                               void *shared) {
  T *left = (T *)shared, *right = left + 256;
  const int i = threadIdx.x / 16, j = threadIdx.x % 16;
  const i64 across = (n + 15) / 16, tiles = (m + 15) / 16 * across;
  for (i64 tile = block; tile < tiles; tile += blocks) {
    const i64 row = tile / across * 16 + i, column = tile % across * 16 + j;
    T total = 0;
    for (i64 first = 0; first < k; first += 16) {
      left[threadIdx.x] = row < m && first + j < k ? a[row * ai + (first + j) * ak] : (T)0;
      right[threadIdx.x] = column < n && first + i < k ? b[(first + i) * bk + column * bj] : (T)0;
      __syncthreads();
      for (int q = 0; q < 16; ++q) total += left[16 * i + q] * right[16 * q + j];
      __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = total;
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
