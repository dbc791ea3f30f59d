/* The embedding table, read by row and added to by row. */
#include "ops/cpu/cpu_impl.h"
#include "ops/ops_impl.h"

enum {
    MASKED = -100,
    STRIPE = 32, // columns that one piece of the backward pass owns: two cache lines
};

void up_cpu_embed_forward(const void *args)
{
    const struct up_embed_forward_args *a = args;
    UP_ASSERT(a->dtype == UP_F32);
    const float *table = a->table;
    float *out = a->out;
    size_t bytes = (size_t)a->width * sizeof *out;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->rows; i++) {
        int32_t id = a->ids[i];
        UP_ASSERT(id == MASKED || (id >= 0 && id < a->vocab));
        if (id == MASKED)
            memset(out + i * a->width, 0, bytes);
        else
            memcpy(out + i * a->width, table + id * a->width, bytes);
    }
}

/* Columns [first, first + count) of all rows. */
static void add_stripe(const struct up_embed_backward_args *a, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < a->rows; i++) {
        int32_t id = a->ids[i];
        UP_ASSERT(id == MASKED || (id >= 0 && id < a->vocab));
        if (id == MASKED) continue;
        const float *from = (const float *)a->d_out + i * a->width + first;
        float *to = a->d_table + id * a->width + first;
#pragma omp simd
        for (int64_t j = 0; j < count; j++) to[j] += from[j];
    }
}

/* Several rows may have the same id: what is split is the columns, so that each element of the
 * table gets its rows in order. */
void up_cpu_embed_backward(const void *args)
{
    const struct up_embed_backward_args *a = args;
    UP_ASSERT(a->dtype == UP_F32);
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < a->width; first += STRIPE)
        add_stripe(a, first, up_min(STRIPE, a->width - first));
}
