/* Rotary position embedding, after an RMSNorm of each head where there is a weight.
 *
 * A block takes ROWS rows at a time: it finds cosine and sine of every pair's angle once per row,
 * for all heads, and then its teams of lanes rotate a head of a row each. A lane has UP_VEC pairs:
 * those elements of the head's first half, and their partners in the second.
 *
 * Angles are formed and reduced in fp64, counted in half turns: position f / pi, less the even
 * number next to it, is at most one, and only then goes to fp32.
 *
 * The norm's d_weight is added up in registers, by block, and through the scratch over the blocks,
 * in a fixed order.
 */
#include "ops/cuda/cuda_impl.cuh"

extern "C" {
#include "ops/rope.h"
}

#include <math.h>

enum {
    PAIRS_MAX = UP_VEC * UP_WARP, // a head is at most what a warp holds: 512 elements
    ROWS = 16,
    THREADS = 256,
    BACKWARD_THREADS = ROWS * UP_WARP, // so that the sums of d_weight fit where the rotations were
};

struct frequencies {
    double of[PAIRS_MAX]; // half turns per position
};

/* What forward and backward have in common. */
struct rope_shape {
    int64_t rows, first_position, period;
    int heads, pairs;
    int busy;  // lanes that a head needs: pairs / UP_VEC, rounded up
    int lanes; // of a team, a power of two: `busy` or more
};

/* Cosine and sine, [ROWS][UP_VEC + 1][busy]: pair p is at [p % UP_VEC][p / UP_VEC], so that the
 * lanes of a team read neighbours, and the last of each row is left empty, so that two teams with
 * different rows meet different banks. */
extern __shared__ float2 rotations[];

static __host__ __device__ inline int rotations_of_row(const struct rope_shape &s)
{
    return (UP_VEC + 1) * s.busy;
}

template <typename Args> static struct rope_shape shape_of(const Args *a)
{
    struct rope_shape s = {};
    s.rows = a->rows;
    s.first_position = a->first_position;
    s.period = a->period;
    s.heads = (int)a->heads;
    s.pairs = (int)a->head_dim / 2;
    s.busy = (int)up_divide_up(s.pairs, UP_VEC);
    s.lanes = 1;
    while (s.lanes < s.busy) s.lanes *= 2;
    return s;
}

static struct frequencies find_frequencies(const struct up_rope_config *config, int64_t head_dim)
{
    struct frequencies f = {};
    for (int64_t i = 0; i < head_dim / 2; i++)
        f.of[i] = up_rope_frequency(config, i, head_dim) / M_PI;
    return f;
}

/* Rotations of rows [first, first + rows). */
static __device__ inline void find_rotations(const struct rope_shape &s, const double *frequency,
                                             int64_t first, int rows)
{
    int64_t place = first % s.period; // in its sequence
    for (int i = threadIdx.x; i < rows * s.pairs; i += blockDim.x) {
        int row = i / s.pairs, pair = i % s.pairs;
        int64_t here = place + row;
        while (here >= s.period) here -= s.period;
        double half_turns = (double)(s.first_position + here) * frequency[pair];
        half_turns -= 2 * rint(half_turns / 2);
        float sine, cosine;
        sincospif((float)half_turns, &sine, &cosine);
        rotations[row * rotations_of_row(s) + pair % UP_VEC * s.busy + pair / UP_VEC] =
            make_float2(cosine, sine);
    }
}

/* A lane's part of a head: element e of `low` forms a pair with that of `high`. */
struct pairs {
    struct up_vec low, high;
};

template <bool WHOLE, typename T>
static __device__ inline struct pairs read_pairs(const T *head, int pairs, int first, bool exists)
{
    int left = exists ? pairs - first : 0;
    return {up_read<WHOLE>(head + first, left), up_read<WHOLE>(head + pairs + first, left)};
}

template <bool WHOLE, typename T>
static __device__ inline void write_pairs(T *head, int pairs, int first, bool exists,
                                          const struct pairs &v)
{
    int left = exists ? pairs - first : 0;
    up_write<WHOLE>(head + first, left, v.low);
    up_write<WHOLE>(head + pairs + first, left, v.high);
}

/* Multiplied, element by element, and all multiplied by `factor`. */
static __device__ inline struct pairs times(const struct pairs &a, const struct pairs &b,
                                            float factor)
{
    struct pairs c;
#pragma unroll
    for (int e = 0; e < UP_VEC; e++) {
        c.low.at[e] = a.low.at[e] * (b.low.at[e] * factor);
        c.high.at[e] = a.high.at[e] * (b.high.at[e] * factor);
    }
    return c;
}

/* Over all pairs of the head. Pairs that do not exist are zero. */
static __device__ inline float dot(const struct pairs &a, const struct pairs &b, int lanes)
{
    float sum = 0;
#pragma unroll
    for (int e = 0; e < UP_VEC; e++) sum += a.low.at[e] * b.low.at[e] + a.high.at[e] * b.high.at[e];
    return up_lanes_reduce(sum, lanes, up_plus());
}

static __device__ inline float inverse_rms(const struct pairs &x, int pairs, int lanes,
                                           float epsilon)
{
    return rsqrtf(dot(x, x, lanes) / (float)(2 * pairs) + epsilon);
}

/* Of row `row` of the block's: direction 1 rotates as forward does, -1 back. `first`: the lane's
 * first pair. */
static __device__ inline void rotate(struct pairs &v, const struct rope_shape &s, int row,
                                     int first, float direction)
{
    const float2 *rotation = rotations + row * rotations_of_row(s) + first / UP_VEC;
#pragma unroll
    for (int e = 0; e < UP_VEC; e++) {
        if (first + e >= s.pairs) break;
        float cosine = rotation[e * s.busy].x, sine = direction * rotation[e * s.busy].y;
        float low = v.low.at[e], high = v.high.at[e];
        v.low.at[e] = low * cosine - high * sine;
        v.high.at[e] = high * cosine + low * sine;
    }
}

/* Which of the block's heads the thread works on; the same number of turns for every thread, so
 * that all lanes of a warp are there for its reductions. */
struct team {
    int index, count; // of the teams of the block
    int first;        // the lane's first pair
};

static __device__ inline struct team team_of(const struct rope_shape &s)
{
    return {(int)threadIdx.x / s.lanes, (int)blockDim.x / s.lanes,
            UP_VEC * (int)(threadIdx.x % s.lanes)};
}

static __device__ inline void copy_frequencies(const struct frequencies &f, int pairs, double *to)
{
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) to[i] = f.of[i];
}

template <typename T, bool WHOLE>
static __global__ void forward(const struct up_rope_args a, const struct rope_shape s,
                               const struct frequencies f)
{
    __shared__ double frequency[PAIRS_MAX];
    copy_frequencies(f, s.pairs, frequency);
    const struct team team = team_of(s);
    struct pairs weight = {};
    if (a.weight) weight = read_pairs<WHOLE>((const T *)a.weight, s.pairs, team.first, true);

    for (int64_t first = (int64_t)blockIdx.x * ROWS; first < s.rows;
         first += (int64_t)gridDim.x * ROWS) {
        int rows = s.rows - first < ROWS ? (int)(s.rows - first) : ROWS;
        __syncthreads(); // nobody needs the rotations before these
        find_rotations(s, frequency, first, rows);
        __syncthreads();
        for (int base = 0; base < rows * s.heads; base += team.count) {
            int head = base + team.index;
            bool exists = head < rows * s.heads;
            int64_t at = (first * s.heads + head) * (2 * s.pairs);
            struct pairs v = read_pairs<WHOLE>((const T *)a.x + at, s.pairs, team.first, exists);
            if (a.weight) v = times(weight, v, inverse_rms(v, s.pairs, s.lanes, a.epsilon));
            if (exists) rotate(v, s, head / s.heads, team.first, 1);
            write_pairs<WHOLE>((T *)a.y + at, s.pairs, team.first, exists, v);
        }
    }
}

/* From d, the gradient of the normed head, to that of x; d's part of d_weight is added to `sum`. */
static __device__ inline struct pairs
norm_backward(const struct pairs &x, const struct pairs &weight, const struct pairs &d,
              const struct rope_shape &s, float epsilon, struct pairs &sum)
{
    float r = inverse_rms(x, s.pairs, s.lanes, epsilon);
    struct pairs g = times(weight, d, 1);
    float along = dot(g, x, s.lanes) / (float)(2 * s.pairs) * r * r * r;
#pragma unroll
    for (int e = 0; e < UP_VEC; e++) {
        sum.low.at[e] += d.low.at[e] * (x.low.at[e] * r);
        sum.high.at[e] += d.high.at[e] * (x.high.at[e] * r);
        g.low.at[e] = g.low.at[e] * r - x.low.at[e] * along;
        g.high.at[e] = g.high.at[e] * r - x.high.at[e] * along;
    }
    return g;
}

/* The sums of all teams, to partial[head_dim]: over the teams of each warp, then over the warps,
 * whose sums are [warps][head_dim] in the place of the rotations. */
static __device__ inline void give_sums(struct pairs &sum, const struct rope_shape &s, int first,
                                        float *partial)
{
    float *of_warp = (float *)rotations;
    int lane = threadIdx.x % UP_WARP, warp = threadIdx.x / UP_WARP, width = 2 * s.pairs;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < UP_VEC; e++) {
        for (int distance = UP_WARP / 2; distance >= s.lanes; distance /= 2) {
            sum.low.at[e] += __shfl_xor_sync(0xffffffffu, sum.low.at[e], distance);
            sum.high.at[e] += __shfl_xor_sync(0xffffffffu, sum.high.at[e], distance);
        }
        if (lane >= s.lanes || first + e >= s.pairs) continue;
        of_warp[warp * width + first + e] = sum.low.at[e];
        of_warp[warp * width + s.pairs + first + e] = sum.high.at[e];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float total = 0;
        for (int w = 0; w < blockDim.x / UP_WARP; w++) total += of_warp[w * width + i];
        partial[i] = total;
    }
}

/* `partial` [blocks][head_dim] is written with NORM only. */
template <typename T, bool WHOLE, bool NORM>
static __global__ void __launch_bounds__(BACKWARD_THREADS)
    backward(const struct up_rope_backward_args a, const struct rope_shape s,
             const struct frequencies f, float *partial)
{
    __shared__ double frequency[PAIRS_MAX];
    copy_frequencies(f, s.pairs, frequency);
    const struct team team = team_of(s);
    struct pairs weight = {}, sum = {};
    if (NORM) weight = read_pairs<WHOLE>((const T *)a.weight, s.pairs, team.first, true);

    for (int64_t first = (int64_t)blockIdx.x * ROWS; first < s.rows;
         first += (int64_t)gridDim.x * ROWS) {
        int rows = s.rows - first < ROWS ? (int)(s.rows - first) : ROWS;
        __syncthreads();
        find_rotations(s, frequency, first, rows);
        __syncthreads();
        for (int base = 0; base < rows * s.heads; base += team.count) {
            int head = base + team.index;
            bool exists = head < rows * s.heads;
            int64_t at = (first * s.heads + head) * (2 * s.pairs);
            struct pairs d = read_pairs<WHOLE>((const T *)a.dy + at, s.pairs, team.first, exists);
            if (exists) rotate(d, s, head / s.heads, team.first, -1);
            if (NORM) {
                struct pairs x =
                    read_pairs<WHOLE>((const T *)a.x + at, s.pairs, team.first, exists);
                d = norm_backward(x, weight, d, s, a.epsilon, sum);
            }
            write_pairs<WHOLE>((T *)a.dx + at, s.pairs, team.first, exists, d);
        }
    }
    if (NORM) give_sums(sum, s, team.first, partial + blockIdx.x * (int64_t)a.head_dim);
}

static void check(int64_t heads, int64_t head_dim, enum up_dtype dtype)
{
    UP_ASSERT(up_is_float(dtype));
    UP_ASSERT(head_dim % 2 == 0 && head_dim <= 2 * PAIRS_MAX);
    UP_ASSERT(heads <= INT32_MAX / ROWS);
}

static size_t rotations_bytes(const struct rope_shape *s)
{
    return (size_t)ROWS * rotations_of_row(*s) * sizeof(float2);
}

void up_cuda_rope(const void *args, struct up_cuda *cuda)
{
    const struct up_rope_args *a = (const struct up_rope_args *)args;
    enum { RESIDENT = 4 };
    check(a->heads, a->head_dim, a->dtype);
    if (a->rows * a->heads * a->head_dim == 0) return;
    struct rope_shape s = shape_of(a);
    bool whole = s.pairs % UP_VEC == 0 && up_aligned(a->x, a->y, a->weight);
    struct up_grid grid = {up_blocks(cuda, up_divide_up(a->rows, ROWS), RESIDENT), THREADS,
                           rotations_bytes(&s)};
    up_cuda_launch(cuda, "rope", UP_CUDA_PICK(forward, a->dtype, whole), grid, *a, s,
                   find_frequencies(&a->config, a->head_dim));
}

static void back_through_norm(const struct up_rope_backward_args *a, const struct rope_shape *s,
                              bool whole, struct up_cuda *cuda)
{
    int64_t blocks = up_blocks(cuda, up_divide_up(a->rows, ROWS), 2);
    float *partial = up_cuda_partials(cuda, &blocks, a->head_dim);
    struct up_grid grid = {blocks, BACKWARD_THREADS, rotations_bytes(s)};
    up_cuda_launch(cuda, "rope_backward", UP_CUDA_PICK(backward, a->dtype, whole, true), grid, *a,
                   *s, find_frequencies(&a->config, a->head_dim), partial);
    up_cuda_add_partials(cuda, partial, blocks, a->head_dim, a->d_weight);
}

void up_cuda_rope_backward(const void *args, struct up_cuda *cuda)
{
    const struct up_rope_backward_args *a = (const struct up_rope_backward_args *)args;
    enum { RESIDENT = 3 };
    check(a->heads, a->head_dim, a->dtype);
    UP_ASSERT(!a->weight || (a->x && a->d_weight));
    if (a->rows * a->heads * a->head_dim == 0) return;
    struct rope_shape s = shape_of(a);
    bool whole =
        s.pairs % UP_VEC == 0 && up_aligned(a->dy, a->dx, a->weight, a->weight ? a->x : NULL);
    if (a->weight) {
        back_through_norm(a, &s, whole, cuda);
        return;
    }
    struct up_grid grid = {up_blocks(cuda, up_divide_up(a->rows, ROWS), RESIDENT), BACKWARD_THREADS,
                           rotations_bytes(&s)};
    up_cuda_launch(cuda, "rope_backward", UP_CUDA_PICK(backward, a->dtype, whole, false), grid, *a,
                   s, find_frequencies(&a->config, a->head_dim), (float *)NULL);
}
