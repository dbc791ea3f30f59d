#include "ops/rehearsal.h"
#include "ops/ops_impl.h"

#include <stdio.h>
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
    union up_call run;
    enum up_device_kind kind; // that it runs on
    union args args;          // operands moved to one place but for their alignment
    size_t size;
    int64_t times; // noted
};

struct up_rehearsal {
    struct call *calls;
    int count;
    int64_t room;
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

// Where operands go: all to one place, or one after the other.
struct place {
    char *at;
    bool apart;
    int64_t most, bytes; // of the largest so far; of all
};

// Keeps how an operand is aligned.
static void *put(struct place *place, const void *operand, int64_t bytes)
{
    if (!operand) return NULL;
    char *at = place->at + (place->apart ? place->bytes : 0) + (uintptr_t)operand % ALIGNMENT;
    place->most = bytes > place->most ? bytes : place->most;
    place->bytes += (bytes / ALIGNMENT + 2) * ALIGNMENT;
    return at;
}

static int64_t matrix_bytes(int64_t rows, int64_t columns, int64_t ld, enum up_dtype dtype)
{
    return rows > 0 ? ((rows - 1) * ld + columns) * up_dtype_bytes[dtype] : 0;
}

static bool same_matmul(const struct up_matmul_args *a, const struct up_matmul_args *b)
{
    return a->a == b->a && a->b == b->b && a->c == b->c && a->m == b->m && a->n == b->n &&
           a->k == b->k && a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc &&
           a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           a->beta == b->beta && a->dtype == b->dtype && a->c_dtype == b->c_dtype;
}

static void place_matmul(struct up_matmul_args *a, struct place *place)
{
    int64_t rows_a = a->transpose_a ? a->k : a->m, columns_a = a->transpose_a ? a->m : a->k;
    int64_t rows_b = a->transpose_b ? a->n : a->k, columns_b = a->transpose_b ? a->k : a->n;
    a->a = put(place, a->a, matrix_bytes(rows_a, columns_a, a->lda, a->dtype));
    a->b = put(place, a->b, matrix_bytes(rows_b, columns_b, a->ldb, a->dtype));
    a->c = put(place, a->c, matrix_bytes(a->m, a->n, a->ldc, a->c_dtype));
}

// What one of q, o and their gradients takes; of k, v and theirs; of lse.
struct attention_bytes {
    int64_t q, k, lse;
};

static struct attention_bytes attention_bytes(const struct up_attention_shape *s,
                                              enum up_dtype dtype)
{
    int64_t row = s->head_dim * up_dtype_bytes[dtype], rows = s->batch * s->seq;
    return (struct attention_bytes){rows * s->heads * row, rows * s->kv_heads * row,
                                    rows * s->heads * (int64_t)sizeof(float)};
}

static void place_forward(struct up_attention_forward_args *a, struct place *place)
{
    struct attention_bytes bytes = attention_bytes(&a->shape, a->dtype);
    a->q = put(place, a->q, bytes.q);
    a->k = put(place, a->k, bytes.k);
    a->v = put(place, a->v, bytes.k);
    a->o = put(place, a->o, bytes.q);
    a->lse = put(place, a->lse, bytes.lse);
}

static void place_backward(struct up_attention_backward_args *a, struct place *place,
                           enum up_device_kind kind)
{
    struct attention_bytes bytes = attention_bytes(&a->shape, a->dtype);
    bool in_place = a->dq == a->d_o && !place->apart;
    a->q = put(place, a->q, bytes.q);
    a->k = put(place, a->k, bytes.k);
    a->v = put(place, a->v, bytes.k);
    a->o = put(place, a->o, bytes.q);
    a->d_o = put(place, a->d_o, bytes.q);
    a->lse = put(place, a->lse, bytes.lse);
    a->dq = in_place ? (void *)a->d_o : put(place, a->dq, bytes.q);
    a->dk = put(place, a->dk, bytes.k);
    a->dv = put(place, a->dv, bytes.k);
    a->scratch =
        put(place, a->scratch, up_scratch_attention_backward(kind, &a->shape, a->accumulate));
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

static void place_operands(struct call *call, struct place *place)
{
    switch (call->op) {
    case UP_OP_matmul:
        place_matmul(&call->args.matmul, place);
        break;
    case UP_OP_attention_forward:
        place_forward(&call->args.forward, place);
        break;
    case UP_OP_attention_backward:
        place_backward(&call->args.backward, place, call->kind);
        break;
    default:
        UP_BUG("an operation without library calls");
    }
}

/* --- Noting and making calls ---------------------------------------------------------------------
 */

void up_rehearsal_note(struct up_rank *rank, int op, union up_call run, const void *args,
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
    call.kind = rank->device->as;
    call.times = 1;
    memcpy(&call.args, args, size);
    struct place one = {.at = (char *)ALIGNMENT}; // not NULL, which stays so
    place_operands(&call, &one);
    for (int i = 0; i < rehearsal->count; i++)
        if (same(&rehearsal->calls[i], &call)) {
            rehearsal->calls[i].times++;
            return;
        }
    if (up_grow(&rehearsal->calls, rehearsal->count, &rehearsal->room, sizeof call, NULL)) {
        up_rank_fail(rank, UP_FAILED, "out of host memory for the rehearsal of a step");
        return;
    }
    rehearsal->calls[rehearsal->count++] = call;
    rehearsal->bytes = one.most > rehearsal->bytes ? one.most : rehearsal->bytes;
}

static void make(struct up_rank *rank, struct call call, struct place place)
{
    static const struct up_cost nothing = {.class = UP_COST_POINTWISE};
    place_operands(&call, &place);
    rank->device->ops->launch(rank->device, UP_STREAM_COMPUTE, call.run, &call.args, call.size,
                              &nothing);
}

void up_rehearse(struct up_rank *rank, const struct up_rehearsal *rehearsal, void *scrap)
{
    for (int i = 0; i < rehearsal->count; i++) {
        struct up_bracket bracket = up_bracket_begin(rank);
        make(rank, rehearsal->calls[i], (struct place){.at = scrap});
        up_bracket_end(rank, &bracket, rehearsal->calls[i].op == UP_OP_matmul ? "cublas" : "cudnn");
    }
    up_stream_synchronize(rank, UP_STREAM_COMPUTE);
}

void up_rehearsal_make(struct up_rank *rank, const struct up_rehearsal *rehearsal, int index,
                       void *place)
{
    make(rank, rehearsal->calls[index], (struct place){.at = place, .apart = true});
}

static struct up_cost cost_of(const struct call *call)
{
    switch (call->op) {
    case UP_OP_matmul:
        return up_cost_matmul(&call->args.matmul);
    case UP_OP_attention_forward:
        return up_cost_attention_forward(&call->args.forward);
    default:
        return up_cost_attention_backward(&call->args.backward);
    }
}

static void describe(const struct call *call, char *text, size_t size)
{
    const struct up_matmul_args *m = &call->args.matmul;
    if (call->op == UP_OP_matmul) {
        snprintf(text, size, "matmul %lld x %lld x %lld%s", (long long)m->m, (long long)m->n,
                 (long long)m->k, m->c_dtype != m->dtype ? ", into fp32" : "");
        return;
    }
    bool forward = call->op == UP_OP_attention_forward;
    const struct up_attention_shape *s =
        forward ? &call->args.forward.shape : &call->args.backward.shape;
    snprintf(text, size, "attention %s, %lld/%lld heads of %lld, %lld tokens",
             forward ? "forward" : "backward", (long long)s->heads, (long long)s->kv_heads,
             (long long)s->head_dim, (long long)s->seq);
}

struct up_rehearsal_call up_rehearsal_call(const struct up_rehearsal *rehearsal, int index)
{
    struct call call = rehearsal->calls[index];
    struct place place = {.at = (char *)ALIGNMENT, .apart = true};
    struct up_rehearsal_call told = {.cost = cost_of(&call), .times = call.times};
    describe(&call, told.text, sizeof told.text);
    place_operands(&call, &place);
    told.bytes = place.bytes + ALIGNMENT;
    return told;
}
