/* What operations cost, for the dry device's clock and the report, and what scratch they need: both
 * pure functions of shapes. */
#include "ops/cpu/attention_lanes_impl.h"
#include "ops/cuda/attention_runs_impl.h"
#include "ops/ops_impl.h"

/* `reads_and_writes` elements of `dtype`, each moved once. */
static struct up_cost pointwise(double reads_and_writes, enum up_dtype dtype)
{
    return (struct up_cost){.class = UP_COST_POINTWISE,
                            .bytes = reads_and_writes * up_dtype_bytes[dtype]};
}

// Work that moves its bytes at another pace than most.
static struct up_cost of_class(struct up_cost cost, enum up_cost_class class)
{
    cost.class = class;
    return cost;
}

static struct up_cost add_bytes(struct up_cost cost, double bytes)
{
    cost.bytes += bytes;
    return cost;
}

struct up_cost up_cost_matmul(const struct up_matmul_args *a)
{
    double m = (double)a->m, n = (double)a->n, k = (double)a->k;
    return (struct up_cost){
        .class = UP_COST_MATMUL,
        .flops = 2 * m * n * k,
        .bytes = (m * k + k * n) * up_dtype_bytes[a->dtype] +
                 m * n * up_dtype_bytes[a->c_dtype] * (a->beta == 0 ? 1 : 2),
    };
}

struct up_cost up_cost_embed_forward(const struct up_embed_forward_args *a)
{
    double rows = (double)a->rows;
    return add_bytes(pointwise(2 * rows * (double)a->width, a->dtype), 4 * rows);
}

/* The rows of the table are read and written in fp32. */
struct up_cost up_cost_embed_backward(const struct up_embed_backward_args *a)
{
    double elements = (double)a->rows * (double)a->width;
    return of_class(add_bytes(pointwise(elements, a->dtype), 8 * elements + 4 * (double)a->rows),
                    UP_COST_EMBED_BACKWARD);
}

struct up_cost up_cost_rmsnorm_forward(const struct up_rmsnorm_forward_args *a)
{
    double width = (double)a->width;
    return of_class(pointwise(2 * (double)a->rows * width + width, a->dtype), UP_COST_NORM_FORWARD);
}

struct up_cost up_cost_rmsnorm_backward(const struct up_rmsnorm_backward_args *a)
{
    double width = (double)a->width;
    double passes = a->accumulate ? 4 : 3;
    return of_class(
        add_bytes(pointwise(passes * (double)a->rows * width + width, a->dtype), 8 * width),
        UP_COST_NORM_BACKWARD);
}

struct up_cost up_cost_rope(const struct up_rope_args *a)
{
    double elements = (double)a->rows * (double)a->heads * (double)a->head_dim;
    return of_class(pointwise(2 * elements, a->dtype), UP_COST_ROPE);
}

struct up_cost up_cost_rope_backward(const struct up_rope_backward_args *a)
{
    double passes = a->weight ? 3 : 2;
    double elements = (double)a->rows * (double)a->heads * (double)a->head_dim;
    return of_class(pointwise(passes * elements, a->dtype), UP_COST_ROPE);
}

/* Elements of a tensor of `heads` heads, and bytes of a statistic per query row. */
static double head_elements(const struct up_attention_shape *s, int64_t heads)
{
    return (double)s->batch * (double)s->seq * (double)heads * (double)s->head_dim;
}

static double statistic_bytes(const struct up_attention_shape *s)
{
    return 4 * (double)s->batch * (double)s->heads * (double)s->seq;
}

bool up_attention_on_cudnn(int64_t head_dim)
{
    return head_dim == 64 || head_dim == 96 || head_dim == 128;
}

/* Two products over the half of [seq, seq] that is not masked. */
static double forward_flops(const struct up_attention_shape *s)
{
    return 2 * 2 * head_elements(s, s->heads) * (double)s->seq / 2;
}

struct up_cost up_cost_attention_forward(const struct up_attention_forward_args *a)
{
    const struct up_attention_shape *s = &a->shape;
    double elements = 2 * head_elements(s, s->heads) + 2 * head_elements(s, s->kv_heads);
    return (struct up_cost){
        .class = UP_COST_ATTENTION_FORWARD,
        .flops = forward_flops(s),
        .bytes = elements * up_dtype_bytes[a->dtype] + statistic_bytes(s),
        .head_dim = s->head_dim,
        .runs = up_attention_forward_runs(s),
        .own = !up_attention_fits_cudnn(s),
    };
}

/* Five products for forward's two. */
struct up_cost up_cost_attention_backward(const struct up_attention_backward_args *a)
{
    const struct up_attention_shape *s = &a->shape;
    double kv_passes = a->accumulate ? 6 : 4;
    double elements = 4 * head_elements(s, s->heads) + kv_passes * head_elements(s, s->kv_heads);
    return (struct up_cost){
        .class = UP_COST_ATTENTION_BACKWARD,
        .flops = 2.5 * forward_flops(s),
        .bytes = elements * up_dtype_bytes[a->dtype] + statistic_bytes(s),
        .head_dim = s->head_dim,
        .runs = up_attention_backward_runs(s),
        .own = !up_attention_fits_cudnn(s),
    };
}

struct up_cost up_cost_swiglu_forward(const struct up_swiglu_forward_args *a)
{
    return pointwise(3 * (double)a->count, a->dtype);
}

struct up_cost up_cost_swiglu_backward(const struct up_swiglu_backward_args *a)
{
    return pointwise(6 * (double)a->count, a->dtype);
}

struct up_cost up_cost_cross_entropy(const struct up_cross_entropy_args *a)
{
    double rows = (double)a->rows;
    return of_class(add_bytes(pointwise(2 * rows * (double)a->vocab, a->dtype), 4 * rows),
                    UP_COST_CROSS_ENTROPY);
}

struct up_cost up_cost_fill(const struct up_fill_args *a)
{
    return pointwise((double)a->bytes, UP_U8);
}

struct up_cost up_cost_add(const struct up_add_args *a)
{
    return pointwise(3 * (double)a->count, a->dtype);
}

struct up_cost up_cost_regroup(const struct up_regroup_args *a)
{
    double elements = (double)a->blocks * (double)a->rows * (double)a->width;
    return pointwise((a->add ? 3 : 2) * elements, a->dtype);
}

struct up_cost up_cost_cast(const struct up_cast_args *a)
{
    return add_bytes(pointwise((double)a->count, a->from),
                     (double)a->count * up_dtype_bytes[a->to]);
}

struct up_cost up_cost_sum_squares(const struct up_sum_squares_args *a)
{
    return pointwise((double)a->count, UP_F32);
}

/* Weight, m and v are read and written, the gradient is read. */
struct up_cost up_cost_adamw(const struct up_adamw_args *a)
{
    return of_class(pointwise(7 * (double)a->count, UP_F32), UP_COST_ADAMW);
}

static int64_t round_up(int64_t bytes)
{
    return up_ceil_div(bytes, 256) * 256;
}

/* The row dots of do and o, and the copies of blocks of do (attention_lanes_impl.h). */
static int64_t cpu_attention_scratch(const struct up_attention_shape *s)
{
    struct up_attention_lanes lanes = up_attention_lanes(s->batch, s->seq, s->kv_heads);
    int64_t copies = lanes.units * lanes.window * up_attention_lane_floats(s->seq, s->head_dim);
    return (s->batch * s->heads * s->seq + copies) * (int64_t)sizeof(float);
}

/* Sequences are handled one at a time. Our own kernels keep the row dots of do and o; where cuDNN
 * may serve, its largest run (attention_runs_impl.h) is what counts. */
static int64_t cuda_attention_scratch(const struct up_attention_shape *s, bool accumulate)
{
    int64_t most = round_up(4 * s->heads * s->seq);
    if (s->seq == 0 || !up_attention_fits_cudnn(s)) return most;
    struct up_attention_run run;
    for (int64_t head = 0; head < s->heads; head += run.heads) {
        run = up_attention_backward_run(s, head);
        bool adds = accumulate || run.shares;
        most = up_max(most, up_attention_scratch_of(s, &run, adds).bytes);
    }
    return most;
}

int64_t up_scratch_attention_backward(enum up_device_kind kind,
                                      const struct up_attention_shape *shape, bool accumulate)
{
    if (kind == UP_DEVICE_CUDA) return cuda_attention_scratch(shape, accumulate);
    return cpu_attention_scratch(shape);
}
