/* Matrix products through CBLAS.
 *
 * C is cut into tiles that depend on the shape alone, and each tile is a serial product. Left to
 * itself a threaded BLAS cuts along k differently for one thread than for several, and rounds
 * differently; and this way small products with few threads' worth of work run in parallel too.
 */
#include "ops/ops_impl.h"

#include <cblas.h>
#include <limits.h>

enum {
    TILE_MAX = 512,   // beyond this, packing costs nothing to speak of
    TILE_MIN = 64,    // below it, it costs more than another thread gains
    TILES_WANTED = 8, // smaller tiles are chosen to have this many
    TILE_STEP = 16,   // tiles are multiples of the widest vector
};

struct tiling {
    int64_t m, n;          // extents of a tile; those at the edge are smaller
    int64_t rows, columns; // how many tiles there are
};

static int64_t halve(int64_t extent)
{
    return up_ceil_div(up_ceil_div(extent, 2), TILE_STEP) * TILE_STEP;
}

static struct tiling tile(int64_t m, int64_t n)
{
    struct tiling t = {.m = up_min(m, TILE_MAX), .n = up_min(n, TILE_MAX)};
    while (up_ceil_div(m, t.m) * up_ceil_div(n, t.n) < TILES_WANTED &&
           up_max(t.m, t.n) > TILE_MIN) {
        int64_t *larger = t.m >= t.n ? &t.m : &t.n;
        *larger = halve(*larger);
    }
    t.rows = up_ceil_div(m, t.m);
    t.columns = up_ceil_div(n, t.n);
    return t;
}

static void check(const struct up_matmul_args *a)
{
    UP_ASSERT(a->dtype == UP_F32 && a->c_dtype == UP_F32);
    UP_ASSERT(a->m <= INT_MAX && a->n <= INT_MAX && a->k <= INT_MAX);
    UP_ASSERT(a->lda <= INT_MAX && a->ldb <= INT_MAX && a->ldc <= INT_MAX);
    UP_ASSERT(a->lda >= (a->transpose_a ? a->m : a->k) || a->k == 0);
    UP_ASSERT(a->ldb >= (a->transpose_b ? a->k : a->n) || a->k == 0);
    UP_ASSERT(a->ldc >= a->n);
}

/* C = beta C, the product with no terms. */
static void scale(const struct up_matmul_args *a)
{
    float *c = a->c;
    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < a->n; j++)
            c[i * a->ldc + j] = a->beta == 0 ? 0 : a->beta * c[i * a->ldc + j];
}

/* The tile of C that begins at row i and column j. */
static void multiply(const struct up_matmul_args *a, const struct tiling *t, int64_t i, int64_t j)
{
    const float *left = (const float *)a->a + (a->transpose_a ? i : i * a->lda);
    const float *right = (const float *)a->b + (a->transpose_b ? j * a->ldb : j);
    cblas_sgemm(CblasRowMajor, a->transpose_a ? CblasTrans : CblasNoTrans,
                a->transpose_b ? CblasTrans : CblasNoTrans, (int)up_min(t->m, a->m - i),
                (int)up_min(t->n, a->n - j), (int)a->k, 1.0f, left, (int)a->lda, right, (int)a->ldb,
                a->beta, (float *)a->c + i * a->ldc + j, (int)a->ldc);
}

void up_cpu_matmul(const void *args)
{
    const struct up_matmul_args *a = args;
    check(a);
    if (a->m == 0 || a->n == 0) return;
    if (a->k == 0) {
        scale(a);
        return;
    }
    struct tiling t = tile(a->m, a->n);
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < t.rows * t.columns; i++)
        multiply(a, &t, i / t.columns * t.m, i % t.columns * t.n);
}
