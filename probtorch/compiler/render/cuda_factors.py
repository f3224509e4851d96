"""Device functions for Cholesky, LU and QR factors, and what is solved with them, as CUDA C.

A block has a matrix of a batch, from beginning to end; all blocks share large ones that are to have
a Cholesky factor. Symmetric and triangular matrices lie by
rows, others by columns, as for functions of the same names on a processor (`runtime/matrices.py`),
and are overwritten. Working space in the GPU's memory is not needed, however many matrices are
handled at once: solves apply their row exchanges on the way, and QR keeps the triangles of its
block reflectors in that half of R which will be 0.

All go by panels of 16 rows or columns, so that most of the work is products of tiles
(`cuda_matrices.py`). Sources: Golub and Van Loan (2013), algorithms 4.2.4 (Cholesky), 3.4.1
(elimination with partial pivoting) and 5.1.1 (reflections); Schreiber and Van Loan (1989) for
I - V T V', the product of reflections.
"""

__all__ = ["FACTORS"]

_TRIANGLES = r"""
// The 16 x 16 at a corner of a matrix by columns, element (i, j) at 17 i + j; 0 past `width`. Of
// one by rows, its transpose.
template <class T>
static __device__ void pt_corner(const T *a, i64 ld, int width, T *corner) {
  const int i = threadIdx.x % 16, j = threadIdx.x / 16;
  corner[17 * i + j] = i < width && j < width ? a[j * ld + i] : (T)0;
}
// The lower factor of a corner (width x width) of a matrix by rows, element (i, j) at 17 i + j;
// true if the corner is not positive definite.
template <class T>
static __device__ bool pt_factor_corner(const T *a, i64 n, int width, T *corner) {
  const int i = threadIdx.x / 16, j = threadIdx.x % 16;
  corner[17 * i + j] = j <= i && i < width ? a[i * n + j] : (T)0;
  __syncthreads();
  for (int q = 0; q < width; ++q) {
    const T pivot = corner[18 * q];
    if (!(pivot > 0)) return true;
    __syncthreads();
    const T root = sqrt(pivot);
    if (j == q && i >= q) corner[17 * i + q] = i == q ? root : corner[17 * i + q] / root;
    __syncthreads();
    if (j > q && i >= j) corner[17 * i + j] -= corner[17 * i + q] * corner[17 * j + q];
    __syncthreads();
  }
  return false;
}
// A barrier of one block, or of all blocks.
template <bool together> static __device__ void pt_barrier(char *M) {
  if (together) pt_meet(M);
  else __syncthreads();
}
// The lower factor of a matrix in its place, by rows; true, and nan, if it is not positive
// definite. By one block, or by all blocks `together`: then every block factors the corner for
// itself.
template <class T, bool together>
static __device__ bool pt_factor(const unsigned block, const unsigned blocks, T *a, i64 n,
                                 char *M) {
  T *shared = (T *)pt_room();
  const int i = threadIdx.x / 16, j = threadIdx.x % 16;
  const i64 thread = (i64)block * blockDim.x + threadIdx.x, step = (i64)blocks * blockDim.x;
  bool bad = false;
  for (i64 k = 0; k < n; k += 16) {
    const int width = (int)(n - k < 16 ? n - k : 16);
    T *panel = a + k * n + k;
    bad = pt_factor_corner(panel, n, width, shared);
    if (bad) break;
    for (i64 r = width + thread; r < n - k; r += step) {
      T *x = panel + r * n;
      for (int p = 0; p < width; ++p) {
        T rest = x[p];
        for (int q = 0; q < p; ++q) rest -= shared[17 * p + q] * x[q];
        x[p] = rest / shared[18 * p];
      }
    }
    // Nobody may read the old corner any more when the new one is stored.
    const T mine = shared[17 * i + j];
    pt_barrier<together>(M);
    if (block == 0 && j <= i && i < width) panel[i * n + j] = mine;
    // Tiles from the first column to the diagonal, numbered through, strip after strip; what they
    // leave above it is not read.
    const T *below = panel + width * n;
    const i64 rest = n - k - width;
    unsigned turn = block;
    for (i64 r = 0; r < rest; r += 64) {
      const i64 tall = rest - r < 64 ? rest - r : 64, across = r + tall;
      pt_tiles<T>(turn, blocks, below + r * n, below, panel + (width + r) * n + width, n, tall,
                  across, width, n, 1, 1, n, true, shared);
      turn = (turn + blocks - (unsigned)((across + 63) / 64 % blocks)) % blocks;
    }
    pt_barrier<together>(M);
  }
  // Somebody may still read the corner in which another found the wrong pivot.
  pt_barrier<together>(M);
  for (i64 t = thread; t < n * n; t += step)
    if (bad || t % n > t / n) a[t] = bad ? pt_nan<T>() : (T)0;
  return bad;
}
// Lower factors in place; what is not positive definite becomes nan, and fails if `check`.
template <class T>
static __device__ void pt_cholesky(const unsigned block, const unsigned blocks, T *all, i64 n,
                                   i64 batch, bool check, i64 *status) {
  for (i64 m = block; m < batch; m += blocks) {
    const bool bad = pt_factor<T, false>(0, 1, all + m * n * n, n, 0);
    if (bad && check && threadIdx.x == 0) pt_fail(status, -1);
    __syncthreads();
  }
}
// The same by all blocks for one matrix after the other.
template <class T>
static __device__ void pt_cholesky_together(const unsigned block, const unsigned blocks, T *all,
                                            i64 n, i64 batch, bool check, char *M) {
  for (i64 m = 0; m < batch; ++m) {
    const bool bad = pt_factor<T, true>(block, blocks, all + m * n * n, n, M);
    if (bad && check && block == 0 && threadIdx.x == 0) pt_fail((i64 *)M, -1);
  }
}
// A x = b in place of b, by rows; 64 columns of b for each block.
template <class T>
static __device__ void pt_trsm_wide(const unsigned block, const unsigned blocks, const T *as, T *bs,
                                    i64 n, i64 m, bool upper, bool unit, i64 batch, i64 apart) {
  T *shared = (T *)pt_room();
  const i64 strips = (m + 63) / 64;
  for (i64 t = block; t < batch * strips; t += blocks) {
    const i64 first = t % strips * 64, across = m - first < 64 ? m - first : 64;
    const T *a = as + t / strips * apart;
    T *b = bs + t / strips * n * m + first;
    for (i64 done = 0; done < n; done += 16) {
      const int width = (int)(n - done < 16 ? n - done : 16);
      const i64 k = upper ? n - done - width : done, next = upper ? 0 : k + width;
      pt_corner(a + k * n + k, n, width, shared);
      __syncthreads();
      if (threadIdx.x < across) {
        T *x = b + k * m + threadIdx.x;
        for (int r = 0; r < width; ++r) {
          const int i = upper ? width - 1 - r : r;
          T rest = x[i * m];
          for (int j = upper ? i + 1 : 0; j < (upper ? width : i); ++j)
            rest -= shared[17 * j + i] * x[j * m];
          x[i * m] = unit ? rest : rest / shared[18 * i];
        }
      }
      __syncthreads();
      pt_tiles<T>(0, 1, a + next * n + k, b + k * m, b + next * m, m, n - done - width, across,
                  width, n, 1, m, 1, true, shared);
      __syncthreads();
    }
  }
}
"""

# Elimination, and what follows from it: matrices by columns, so C' -= B' A' is what tiles see.
_ELIMINATION = r"""
// Elimination with row exchanges in A (n x n), the same steps in B (n x m): U is left on and above
// A's diagonal, in B what U X = B is to be solved with. True, and unfinished, if a pivot is 0. Nan
// is a pivot where it comes first, elsewhere any number is larger, as in the BLAS that LAPACK came
// with. `odd`: whether the number of exchanges is.
template <class T>
static __device__ bool pt_eliminate(T *a, T *b, i64 n, i64 m, bool &odd, void *shared) {
  i64 *taken = (i64 *)shared + 512;
  T *corner = (T *)(taken + 16);
  odd = false;
  for (i64 k = 0; k < n; k += 16) {
    const i64 end = k + 16 < n ? k + 16 : n;
    for (i64 j = k; j < end; ++j) {
      T *column = a + j * n, best = 0;
      i64 at = -1;
      for (i64 i = j + threadIdx.x; i < n; i += blockDim.x) {
        const T unknown = i == j ? pt_inf<T>() : (T)-1;
        const T size = column[i] == column[i] ? (T)fabs(column[i]) : unknown;
        if (at < 0 || size > best) { best = size; at = i; }
      }
      at = pt_block_best(true, best, at, shared);
      if (threadIdx.x == 0) taken[j - k] = at;
      for (i64 c = k + threadIdx.x; c < end; c += blockDim.x) {
        const T other = a[c * n + at];
        a[c * n + at] = a[c * n + j];
        a[c * n + j] = other;
      }
      odd ^= at != j;
      __syncthreads();
      const T pivot = column[j];
      if (pivot == 0) return true;
      for (i64 i = j + 1 + threadIdx.x; i < n; i += blockDim.x) {
        const T factor = column[i] / pivot;
        column[i] = factor;
        for (i64 c = j + 1; c < end; ++c) a[c * n + i] -= factor * a[c * n + j];
      }
      __syncthreads();
    }
    const int width = (int)(end - k);
    pt_corner(a + k * n + k, n, width, corner);
    __syncthreads();
    const i64 right = n - end;
    for (i64 c = threadIdx.x; c < right + m; c += blockDim.x) {
      T *x = c < right ? a + (end + c) * n : b + (c - right) * n;
      for (int j = 0; j < width; ++j) {
        const T other = x[taken[j]];
        x[taken[j]] = x[k + j];
        x[k + j] = other;
      }
      x += k;
      for (int i = 1; i < width; ++i) {
        T rest = x[i];
        for (int j = 0; j < i; ++j) rest -= corner[17 * i + j] * x[j];
        x[i] = rest;
      }
    }
    __syncthreads();
    const T *lower = a + k * n + end;
    pt_tiles<T>(0, 1, a + end * n + k, lower, a + end * n + end, n, right, right, width, n, 1, n, 1,
                true, (T *)shared);
    pt_tiles<T>(0, 1, b + k, lower, b + end, n, m, right, width, n, 1, n, 1, true, (T *)shared);
    __syncthreads();
  }
  return false;
}
// U X = B in place of B.
template <class T>
static __device__ void pt_substitute(const T *a, T *b, i64 n, i64 m, void *shared) {
  T *corner = (T *)shared;
  for (i64 k = (n - 1) / 16 * 16; k >= 0; k -= 16) {
    const int width = (int)(n - k < 16 ? n - k : 16);
    pt_corner(a + k * n + k, n, width, corner);
    __syncthreads();
    for (i64 c = threadIdx.x; c < m; c += blockDim.x) {
      T *x = b + c * n + k;
      for (int i = width - 1; i >= 0; --i) {
        T rest = x[i];
        for (int j = i + 1; j < width; ++j) rest -= corner[17 * i + j] * x[j];
        x[i] = rest / corner[17 * i + i];
      }
    }
    __syncthreads();
    pt_tiles<T>(0, 1, b + k, a + k * n, b, n, m, k, width, n, 1, n, 1, true, (T *)shared);
    __syncthreads();
  }
}
// A X = B in place of B; A is overwritten. Fails if one is singular.
template <class T>
static __device__ void pt_solve(const unsigned block, const unsigned blocks, T *as, T *bs, i64 n,
                                i64 m, i64 batch, i64 *status) {
  void *shared = pt_room();
  for (i64 p = block; p < batch; p += blocks) {
    T *a = as + p * n * n, *b = bs + p * n * m;
    bool odd;
    if (!pt_eliminate(a, b, n, m, odd, shared)) pt_substitute(a, b, n, m, shared);
    else if (threadIdx.x == 0) pt_fail(status, -1);
    __syncthreads();
  }
}
// Inverses of A, which is overwritten; nan for singular ones, and those fail if `check`.
template <class T>
static __device__ void pt_inv(const unsigned block, const unsigned blocks, T *as, T *all, i64 n,
                              i64 batch, bool check, i64 *status) {
  void *shared = pt_room();
  for (i64 p = block; p < batch; p += blocks) {
    T *a = as + p * n * n, *out = all + p * n * n;
    for (i64 t = threadIdx.x; t < n * n; t += blockDim.x) out[t] = t % n == t / n ? (T)1 : (T)0;
    __syncthreads();
    bool odd;
    if (!pt_eliminate(a, out, n, n, odd, shared)) {
      pt_substitute(a, out, n, n, shared);
    } else {
      for (i64 t = threadIdx.x; t < n * n; t += blockDim.x) out[t] = pt_nan<T>();
      if (check && threadIdx.x == 0) pt_fail(status, -1);
    }
    __syncthreads();
  }
}
// Sign and logarithm of A's determinant, which thread 0 gets; 0 and -inf if A is singular.
template <class T>
static __device__ void pt_log_determinant(T *a, i64 n, T &sign, T &log_size, void *shared) {
  T *term = (T *)shared, *way = term + blockDim.x;
  bool odd;
  const bool singular = pt_eliminate(a, a, n, 0, odd, shared);
  sign = singular ? (T)0 : odd ? (T)-1 : (T)1;
  log_size = singular ? -pt_inf<T>() : (T)0;
  __syncthreads();
  for (i64 first = 0; first < n && !singular; first += blockDim.x) {
    const i64 i = first + threadIdx.x;
    if (i < n) {
      term[threadIdx.x] = log(fabs(a[i * n + i]));
      way[threadIdx.x] = a[i * n + i] < 0 ? (T)-1 : (T)1;
    }
    __syncthreads();
    for (i64 k = 0; threadIdx.x == 0 && k < blockDim.x && first + k < n; ++k) {
      log_size += term[k];
      sign *= way[k];
    }
    __syncthreads();
  }
}
// Signs and logarithms of determinants of A, which is overwritten.
template <class T>
static __device__ void pt_slogdet(const unsigned block, const unsigned blocks, T *as, T *signs,
                                  T *logs, i64 n, i64 batch) {
  for (i64 p = block; p < batch; p += blocks) {
    T sign, log_size;
    pt_log_determinant(as + p * n * n, n, sign, log_size, pt_room());
    if (threadIdx.x == 0) { signs[p] = sign; logs[p] = log_size; }
  }
}
// Determinants of A, which is overwritten.
template <class T>
static __device__ void pt_det(const unsigned block, const unsigned blocks, T *as, T *out, i64 n,
                              i64 batch) {
  for (i64 p = block; p < batch; p += blocks) {
    T sign, log_size;
    pt_log_determinant(as + p * n * n, n, sign, log_size, pt_room());
    if (threadIdx.x == 0) out[p] = sign * (T)exp(log_size);
  }
}
"""

# Householder's reflections: matrices by columns. V of a panel lies below its diagonal, with ones on
# it that are not stored; T is upper triangular, H1 H2 ... = I - V T V'.
_REFLECTIONS = r"""
// Reflections that make a panel (rows x width) triangular. Its diagonal gets their factors, T's
// diagonal; that of R, whose columns are k apart, goes to where R is to be, and what T has beside
// its diagonal goes below that, transposed.
template <class T>
static __device__ void pt_reflectors(T *v, i64 ld, i64 rows, int width, T *r, i64 k, T *shared) {
  T *gram = shared + 256, *triangle = shared + 272;
  const int o = threadIdx.x / 16, lane = threadIdx.x % 16;
  for (int c = 0; c < width; ++c) {
    T *x = v + c * ld, big = 0, squares = 0;
    const T alpha = x[c];
    for (i64 i = c + 1 + threadIdx.x; i < rows; i += blockDim.x)
      big = pt_maximum(big, (T)fabs(x[i]));
    big = pt_block<pt_amax>(big, shared);
    T beta = alpha, tau = 0;
    if (big != 0) {
      for (i64 i = c + 1 + threadIdx.x; i < rows; i += blockDim.x)
        squares += x[i] / big * (x[i] / big);
      squares = pt_block<pt_sum>(squares, shared);
      // Where quotients of infinities are nan, the larger number is the length.
      const T below = squares == squares ? big * (T)sqrt(squares) : big;
      const T high = pt_maximum((T)fabs(alpha), below), low = pt_minimum((T)fabs(alpha), below);
      const T ratio = low / high;
      const T length = ratio == ratio ? high * (T)sqrt(1 + ratio * ratio) : high;
      beta = alpha < 0 ? length : -length;
      tau = (beta - alpha) / beta;
      for (i64 i = c + 1 + threadIdx.x; i < rows; i += blockDim.x) x[i] /= alpha - beta;
    }
    if (threadIdx.x == 0) { x[c] = tau; r[c * k + c] = beta; }
    __syncthreads();
    // 16 threads for each other column: what the reflection takes from those to come, and the
    // products with those before, from which T is made.
    T *y = v + o * ld, part = 0;
    const bool used = o < width && o != c;
    if (used) {
      if (lane == 0) part = y[c];
      for (i64 i = c + 1 + lane; i < rows; i += 16) part += x[i] * y[i];
    }
    shared[threadIdx.x] = part;
    __syncthreads();
    T total = 0;
    for (int l = 0; l < 16; ++l) total += shared[16 * o + l];
    if (used && o > c) {
      if (lane == 0) y[c] -= tau * total;
      for (i64 i = c + 1 + lane; i < rows; i += 16) y[i] -= tau * total * x[i];
    }
    if (used && o < c && lane == 0) gram[o] = total;
    __syncthreads();
    if ((int)threadIdx.x <= c) {
      const int p = threadIdx.x;
      T sum = 0;
      for (int q = p; q < c; ++q) sum += triangle[17 * p + q] * gram[q];
      triangle[17 * p + c] = p < c ? -tau * sum : tau;
    }
  }
  __syncthreads();
  if (o < lane && lane < width) r[o * k + lane] = triangle[17 * o + lane];
  __syncthreads();
}
// An element of V.
template <class T>
static __device__ T pt_reflector(const T *v, i64 ld, i64 rows, int width, i64 i, int p) {
  return p >= width || i >= rows || i < p ? (T)0 : i == p ? (T)1 : v[p * ld + i];
}
// C -= V T V' C, or with T' (`turned`), in strips of 64 columns.
template <class T>
static __device__ void pt_reflect(const T *v, i64 ld, i64 rows, int width, const T *r, i64 k,
                                  bool turned, T *c, i64 columns, T *shared) {
  if (columns <= 0) return;
  T *triangle = shared, *product = triangle + 16 * 17, *left = product + 16 * 65;
  T *right = left + 16 * 17;
  const int t = threadIdx.x, low = t % 16, high = t / 16;
  const T beside = high < low && low < width ? r[high * k + low] : (T)0;
  const T entry = high == low && low < width ? v[low * ld + low] : beside;
  triangle[turned ? 17 * low + high : 17 * high + low] = entry;
  for (i64 first = 0; first < columns; first += 64) {
    T *x = c + first * ld, part[4] = {};
    const i64 across = columns - first;
    for (i64 top = 0; top < rows; top += 16) {
      const i64 i = top + low;
      left[17 * low + high] = pt_reflector(v, ld, rows, width, i, high);
      #pragma unroll
      for (int j = high; j < 64; j += 16)
        right[65 * low + j] = i < rows && j < across ? x[j * ld + i] : (T)0;
      __syncthreads();
      #pragma unroll
      for (int q = 0; q < 16; ++q) {
        #pragma unroll
        for (int s = 0; s < 4; ++s)
          part[s] += left[17 * q + high] * right[65 * q + low + 16 * s];
      }
      __syncthreads();
    }
    for (int s = 0; s < 4; ++s) product[65 * high + low + 16 * s] = part[s];
    __syncthreads();
    for (int s = 0; s < 4; ++s) {
      part[s] = 0;
      for (int q = 0; q < 16; ++q)
        part[s] += triangle[17 * high + q] * product[65 * q + low + 16 * s];
    }
    __syncthreads();
    for (int s = 0; s < 4; ++s) product[65 * high + low + 16 * s] = part[s];
    for (i64 top = 0; top < rows; top += 64) {
      for (int p = t / 64; p < 16; p += 4)
        left[65 * p + t % 64] = pt_reflector(v, ld, rows, width, top + t % 64, p);
      __syncthreads();
      T sum[4][4] = {};
      #pragma unroll
      for (int p = 0; p < 16; ++p) {
        #pragma unroll
        for (int a = 0; a < 4; ++a) {
          #pragma unroll
          for (int s = 0; s < 4; ++s)
            sum[a][s] += left[65 * p + low + 16 * a] * product[65 * p + high + 16 * s];
        }
      }
      #pragma unroll
      for (int a = 0; a < 4; ++a) {
        #pragma unroll
        for (int s = 0; s < 4; ++s) {
          const i64 i = top + low + 16 * a, j = high + 16 * s;
          if (i < rows && j < across) x[j * ld + i] -= sum[a][s];
        }
      }
      __syncthreads();
    }
  }
}
// Q (m x k) and R (k x n), k the smaller of m and n, of A, which is overwritten. R's diagonal is
// not negative.
template <class T>
static __device__ void pt_qr(const unsigned block, const unsigned blocks, T *as, T *qs, T *rs,
                             i64 m, i64 n, i64 batch) {
  T *shared = (T *)pt_room();
  const i64 k = m < n ? m : n;
  for (i64 b = block; b < batch; b += blocks) {
    T *a = as + b * m * n, *q = qs + b * m * k, *r = rs + b * k * n;
    for (i64 j = 0; j < k; j += 16) {
      const int width = (int)(k - j < 16 ? k - j : 16);
      T *v = a + j * m + j, *corner = r + j * k + j;
      pt_reflectors(v, m, m - j, width, corner, k, shared);
      pt_reflect(v, m, m - j, width, corner, k, true, v + width * m, n - j - width, shared);
    }
    for (i64 t = threadIdx.x; t < m * k; t += blockDim.x) q[t] = t % m == t / m ? (T)1 : (T)0;
    __syncthreads();
    for (i64 j = (k - 1) / 16 * 16; j >= 0; j -= 16) {
      const int width = (int)(k - j < 16 ? k - j : 16);
      pt_reflect(a + j * m + j, m, m - j, width, r + j * k + j, k, false, q + j * m + j, k - j,
                 shared);
    }
    for (i64 t = threadIdx.x; t < k * n; t += blockDim.x) {
      const i64 i = t % k, j = t / k;
      if (i != j) r[t] = i > j ? (T)0 : r[i * k + i] < 0 ? -a[j * m + i] : a[j * m + i];
    }
    for (i64 t = threadIdx.x; t < m * k; t += blockDim.x)
      if (r[t / m * k + t / m] < 0) q[t] = -q[t];
    __syncthreads();
    for (i64 i = threadIdx.x; i < k; i += blockDim.x)
      if (r[i * k + i] < 0) r[i * k + i] = -r[i * k + i];
    __syncthreads();
  }
}
"""

FACTORS = _TRIANGLES + _ELIMINATION + _REFLECTIONS
