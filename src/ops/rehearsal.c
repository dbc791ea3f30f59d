#include "ops/rehearsal.h"
#include "ops/ops_impl.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256 }; // libraries choose kernels by alignment up to this

union args {
    struct up_matmul_args matmul;
    struct up_attention_forward_args forward;
    struct up_attention_backward_args backward;
};

struct call {
    int op;
    union up_run run;
    union args args; // operands moved to one place but for their alignment
    size_t size;
};

struct up_rehearsal {
    struct call *calls;
    int count, room;
    int64_t bytes;
};

struct up_rehearsal *up_rehearsal_create(void)
{
    return calloc(1, sizeof(struct up_rehearsal));
}

void up_rehearsal_destroy(struct up_rehearsal *rehearsal)
{
    if (rehearsal) free(rehearsal->calls);
    free(rehearsal);
}

int up_rehearsal_count(const struct up_rehearsal *rehearsal)
{
    return rehearsal->count;
}

int64_t up_rehearsal_bytes(const struct up_rehearsal *rehearsal)
{
    return rehearsal->bytes + ALIGNMENT;
}

/* --- Operands ------------------------------------------------------------------------------------
 */

// Keeps how an operand is aligned.
static void *move(const void *operand, char *to)
{
    return operand ? to + (uintptr_t)operand % ALIGNMENT : NULL;
}

static int64_t matrix_bytes(int64_t rows, int64_t columns, int64_t ld, enum up_dtype dtype)
{
    return rows > 0 ? ((rows - 1) * ld + columns) * up_dtype_bytes[dtype] : 0;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static bool same_matmul(const struct up_matmul_args *a, const struct up_matmul_args *b)
{
    return a->a == b->a && a->b == b->b && a->c == b->c && a->m == b->m && a->n == b->n &&
           a->k == b->k && a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc &&
           a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           a->beta == b->beta && a->dtype == b->dtype && a->c_dtype == b->c_dtype;
}

static int64_t place_matmul(struct up_matmul_args *a, char *to)
{
    a->a = move(a->a, to);
    a->b = move(a->b, to);
    a->c = move(a->c, to);
    int64_t bytes =
        matrix_bytes(a->transpose_a ? a->k : a->m, a->transpose_a ? a->m : a->k, a->lda, a->dtype);
    bytes = larger(bytes, matrix_bytes(a->transpose_b ? a->n : a->k, a->transpose_b ? a->k : a->n,
                                       a->ldb, a->dtype));
    return larger(bytes, matrix_bytes(a->m, a->n, a->ldc, a->c_dtype));
}

// Keys have no more heads than queries; lse is fp32.
static int64_t attention_bytes(const struct up_attention_shape *shape, enum up_dtype dtype)
{
    int64_t rows = shape->batch * shape->seq * shape->heads;
    return larger(rows * shape->head_dim * up_dtype_bytes[dtype], rows * (int64_t)sizeof(float));
}

static int64_t place_forward(struct up_attention_forward_args *a, char *to)
{
    a->q = move(a->q, to);
    a->k = move(a->k, to);
    a->v = move(a->v, to);
    a->o = move(a->o, to);
    a->lse = move(a->lse, to);
    return attention_bytes(&a->shape, a->dtype);
}

static int64_t place_backward(struct up_attention_backward_args *a, char *to)
{
    a->q = move(a->q, to);
    a->k = move(a->k, to);
    a->v = move(a->v, to);
    a->o = move(a->o, to);
    a->d_o = move(a->d_o, to);
    a->lse = move(a->lse, to);
    a->dq = move(a->dq, to);
    a->dk = move(a->dk, to);
    a->dv = move(a->dv, to);
    a->scratch = move(a->scratch, to);
    return larger(attention_bytes(&a->shape, a->dtype),
                  up_scratch_attention_backward(UP_DEVICE_CUDA, &a->shape, a->accumulate));
}

// With one KV head it does not matter which of its query heads are the call's.
static bool same_shape(const struct up_attention_shape *a, const struct up_attention_shape *b)
{
    return a->batch == b->batch && a->seq == b->seq && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->group == b->group &&
           (a->kv_heads == 1 || a->first_head_in_group == b->first_head_in_group);
}

// Of two placed calls. Attention's kernels depend on shapes alone.
static bool same(const struct call *a, const struct call *b)
{
    if (a->op != b->op) return false;
    switch (a->op) {
    case UP_OP_matmul:
        return same_matmul(&a->args.matmul, &b->args.matmul);
    case UP_OP_attention_forward:
        return same_shape(&a->args.forward.shape, &b->args.forward.shape);
    default:
        return a->args.backward.accumulate == b->args.backward.accumulate &&
               same_shape(&a->args.backward.shape, &b->args.backward.shape);
    }
}

// Puts the call's operands at `to`; the bytes of the largest.
static int64_t place(struct call *call, char *to)
{
    switch (call->op) {
    case UP_OP_matmul:
        return place_matmul(&call->args.matmul, to);
    case UP_OP_attention_forward:
        return place_forward(&call->args.forward, to);
    case UP_OP_attention_backward:
        return place_backward(&call->args.backward, to);
    default:
        UP_BUG("an operation without library calls");
    }
}

/* --- Noting and making calls ---------------------------------------------------------------------
 */

static struct call *room_for_one(struct up_rehearsal *rehearsal)
{
    if (rehearsal->count == rehearsal->room) {
        int room = rehearsal->room ? 2 * rehearsal->room : 32;
        struct call *grown = realloc(rehearsal->calls, (size_t)room * sizeof *grown);
        if (!grown) return NULL;
        rehearsal->calls = grown;
        rehearsal->room = room;
    }
    return &rehearsal->calls[rehearsal->count];
}

void up_rehearsal_note(struct up_rank *rank, int op, union up_run run, const void *args,
                       size_t size)
{
    struct up_rehearsal *rehearsal = rank->rehearsal;
    struct call call;
    if (op != UP_OP_matmul && op != UP_OP_attention_forward && op != UP_OP_attention_backward)
        return;
    memset(&call, 0, sizeof call);
    call.op = op;
    call.run = run;
    call.size = size;
    memcpy(&call.args, args, size);
    int64_t bytes = place(&call, (char *)ALIGNMENT); // not NULL, which stays so
    for (int i = 0; i < rehearsal->count; i++)
        if (same(&rehearsal->calls[i], &call)) return;
    struct call *place_in = room_for_one(rehearsal);
    if (!place_in) {
        up_rank_fail(rank, UP_FAILED, "out of host memory for the rehearsal of a step");
        return;
    }
    *place_in = call;
    rehearsal->count++;
    rehearsal->bytes = larger(rehearsal->bytes, bytes);
}

void up_rehearse(struct up_rank *rank, const struct up_rehearsal *rehearsal, void *scrap)
{
    static const struct up_cost nothing = {.class = UP_COST_POINTWISE};
    struct up_device *device = rank->device;
    for (int i = 0; i < rehearsal->count; i++) {
        struct call call = rehearsal->calls[i];
        place(&call, scrap);
        struct up_bracket bracket = up_bracket_begin(rank);
        device->ops->launch(device, UP_STREAM_COMPUTE, call.run, &call.args, call.size, &nothing);
        up_bracket_end(rank, &bracket, call.op == UP_OP_matmul ? "cublas" : "cudnn");
    }
    up_stream_synchronize(rank, UP_STREAM_COMPUTE);
}
