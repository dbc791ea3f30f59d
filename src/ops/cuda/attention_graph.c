/* What cuDNN computes for attention, as graphs of its backend interface: forward with the
 * log-sum-exp, and backward. The engines recognise these graphs by their shape, so the operations,
 * their order and the types of what lies between them are fixed; freedom is in extents and strides
 * alone.
 *
 * The mask is the causal one, aligned at the end: of Q queries and K keys query i sees keys 0 to
 * i + K - Q. Where there are as many of each that is the plain one, and two operations fewer.
 *
 * Tensors are [1, heads, rows, columns]; row-major memory [rows, heads, columns] makes the strides.
 */
#include "ops/cuda/attention_graph.h"

enum { FIRST_VIRTUAL_ID = 100 };

struct graph {
    struct up_descriptors *list;
    const struct up_attention_view *view;
    int64_t next_id; // of tensors that never reach memory
    up_descriptor *operations;
    int count;
};

enum kind { REAL, VIRTUAL, BY_VALUE };

struct layout {
    int64_t dims[4], strides[4];
};

/* --- Tensors ---------------------------------------------------------------------------------- */

static up_descriptor tensor(struct graph *g, int64_t id, enum kind kind, cudnnDataType_t type,
                            struct layout layout)
{
    struct up_descriptors *list = g->list;
    up_descriptor t = up_descriptor_make(list, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    /* lse of one head begins at a multiple of seq floats, which may be odd. */
    int64_t alignment = id == UP_ATTENTION_LSE ? 4 : 16;
    bool yes = true;
    up_descriptor_set_one(list, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
    up_descriptor_set(list, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, layout.dims);
    up_descriptor_set(list, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, layout.strides);
    up_descriptor_set_one(list, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
    up_descriptor_set_one(list, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
    if (kind == VIRTUAL)
        up_descriptor_set_one(list, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &yes);
    if (kind == BY_VALUE)
        up_descriptor_set_one(list, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &yes);
    up_descriptor_finalize(list, t, "a tensor");
    return t;
}

static up_descriptor intermediate(struct graph *g, cudnnDataType_t type, struct layout layout)
{
    return tensor(g, g->next_id++, VIRTUAL, type, layout);
}

static up_descriptor number_of(struct graph *g, enum up_attention_id id, cudnnDataType_t type)
{
    return tensor(g, id, BY_VALUE, type, (struct layout){{1, 1, 1, 1}, {1, 1, 1, 1}});
}

static up_descriptor number(struct graph *g, enum up_attention_id id)
{
    return number_of(g, id, CUDNN_DATA_FLOAT);
}

/* bf16 in memory: rows `row` apart, heads side by side. */
static struct layout rows_layout(const struct graph *g, int64_t count, int64_t heads, int64_t row)
{
    int64_t width = g->view->head_dim;
    return (struct layout){{1, heads, count, width}, {count * row, width, row, 1}};
}

static struct layout transposed(struct layout layout)
{
    return (struct layout){
        {layout.dims[0], layout.dims[1], layout.dims[3], layout.dims[2]},
        {layout.strides[0], layout.strides[1], layout.strides[3], layout.strides[2]}};
}

/* [1, heads, rows, columns] without gaps. */
static struct layout packed(const struct graph *g, int64_t rows, int64_t columns)
{
    int64_t heads = g->view->heads;
    return (struct layout){{1, heads, rows, columns},
                           {heads * rows * columns, rows * columns, columns, 1}};
}

static up_descriptor query_rows(struct graph *g, enum up_attention_id id, int64_t row)
{
    const struct up_attention_view *v = g->view;
    return tensor(g, id, REAL, CUDNN_DATA_BFLOAT16, rows_layout(g, v->queries, v->heads, row));
}

static up_descriptor key_rows(struct graph *g, enum up_attention_id id, int64_t row)
{
    const struct up_attention_view *v = g->view;
    return tensor(g, id, REAL, CUDNN_DATA_BFLOAT16, rows_layout(g, v->keys, v->kv_heads, row));
}

static up_descriptor key_columns(struct graph *g, enum up_attention_id id)
{
    const struct up_attention_view *v = g->view;
    struct layout layout = rows_layout(g, v->keys, v->kv_heads, v->kv_row);
    return tensor(g, id, REAL, CUDNN_DATA_BFLOAT16, transposed(layout));
}

/* Scores [heads, queries, keys], and one number per query. */
static up_descriptor scores(struct graph *g, cudnnDataType_t type)
{
    return intermediate(g, type, packed(g, g->view->queries, g->view->keys));
}

static up_descriptor statistic(struct graph *g)
{
    return intermediate(g, CUDNN_DATA_FLOAT, packed(g, g->view->queries, 1));
}

/* --- Operations ------------------------------------------------------------------------------- */

static void add_operation(struct graph *g, up_descriptor operation, const char *what)
{
    up_descriptor_finalize(g->list, operation, what);
    UP_ASSERT(g->count < UP_OPERATIONS_MAX);
    g->operations[g->count++] = operation;
}

static void matmul(struct graph *g, up_descriptor a, up_descriptor b, up_descriptor c)
{
    struct up_descriptors *list = g->list;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    up_descriptor how = up_descriptor_make(list, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    up_descriptor_set_one(list, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
    up_descriptor_finalize(list, how, "a product's type");
    up_descriptor op = up_descriptor_make(list, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    add_operation(g, op, "a product");
}

struct pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t type;     // in which it is computed; 0 is fp32
    up_descriptor x, b, t, y; // y = x mode b, or t ? x : b; b and t may be NULL
    int64_t axis;             // of GEN_INDEX
};

static void pointwise(struct graph *g, struct pointwise p)
{
    struct up_descriptors *list = g->list;
    float one = 1;
    up_descriptor how = up_descriptor_make(list, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    up_descriptor_set_one(list, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &p.mode);
    up_descriptor_set_one(list, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &p.type);
    if (p.mode == CUDNN_POINTWISE_GEN_INDEX)
        up_descriptor_set_one(list, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &p.axis);
    up_descriptor_finalize(list, how, "a pointwise operation's mode");
    up_descriptor op = up_descriptor_make(list, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p.x);
    up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, p.y);
    if (p.b) up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p.b);
    if (p.t) up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p.t);
    up_descriptor_set_one(list, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, &one);
    up_descriptor_set_one(list, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, &one);
    add_operation(g, op, "a pointwise operation");
}

static up_descriptor apply(struct graph *g, cudnnPointwiseMode_t mode, up_descriptor x,
                           up_descriptor b, up_descriptor y)
{
    pointwise(g, (struct pointwise){.mode = mode, .x = x, .b = b, .y = y});
    return y;
}

static up_descriptor reduce(struct graph *g, cudnnReduceTensorOp_t mode, up_descriptor x,
                            up_descriptor y)
{
    struct up_descriptors *list = g->list;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    up_descriptor how = up_descriptor_make(list, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    up_descriptor_set_one(list, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
    up_descriptor_set_one(list, how, CUDNN_ATTR_REDUCTION_OPERATOR,
                          CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &mode);
    up_descriptor_finalize(list, how, "a reduction's mode");
    up_descriptor op = up_descriptor_make(list, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    up_descriptor_link(list, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_operation(g, op, "a reduction");
    return y;
}

/* bf16 of x in another order. */
static up_descriptor reshape(struct graph *g, up_descriptor x, struct layout layout)
{
    up_descriptor y = intermediate(g, CUDNN_DATA_BFLOAT16, layout);
    up_descriptor op = up_descriptor_make(g->list, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    up_descriptor_link(g->list, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    up_descriptor_link(g->list, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_operation(g, op, "a reshape");
    return y;
}

/* --- The graphs ------------------------------------------------------------------------------- */

static up_descriptor index_along(struct graph *g, up_descriptor x, int64_t axis)
{
    up_descriptor y = scores(g, CUDNN_DATA_INT32);
    pointwise(g,
              (struct pointwise){.mode = CUDNN_POINTWISE_GEN_INDEX, .x = x, .y = y, .axis = axis});
    return y;
}

static up_descriptor shifted(struct graph *g, up_descriptor x, cudnnPointwiseMode_t mode,
                             enum up_attention_id by)
{
    up_descriptor y = scores(g, CUDNN_DATA_INT32);
    pointwise(g, (struct pointwise){.mode = mode,
                                    .type = CUDNN_DATA_INT32,
                                    .x = x,
                                    .b = number_of(g, by, CUDNN_DATA_INT32),
                                    .y = y});
    return y;
}

static up_descriptor mask(struct graph *g, up_descriptor x)
{
    up_descriptor row = index_along(g, x, 2), column = index_along(g, x, 3);
    if (g->view->queries != g->view->keys) {
        row = shifted(g, row, CUDNN_POINTWISE_ADD, UP_ATTENTION_KEYS);
        row = shifted(g, row, CUDNN_POINTWISE_SUB, UP_ATTENTION_QUERIES);
    }
    up_descriptor seen = scores(g, CUDNN_DATA_BOOLEAN);
    pointwise(g, (struct pointwise){.mode = CUDNN_POINTWISE_CMP_GE,
                                    .type = CUDNN_DATA_BOOLEAN,
                                    .x = row,
                                    .b = column,
                                    .y = seen});
    up_descriptor y = scores(g, CUDNN_DATA_FLOAT);
    pointwise(g, (struct pointwise){.mode = CUDNN_POINTWISE_BINARY_SELECT,
                                    .x = x,
                                    .b = number(g, UP_ATTENTION_MASKED),
                                    .t = seen,
                                    .y = y});
    return y;
}

static up_descriptor scaled(struct graph *g, up_descriptor x, up_descriptor scale)
{
    return apply(g, CUDNN_POINTWISE_MUL, x, scale, scores(g, CUDNN_DATA_FLOAT));
}

static up_descriptor product_scores(struct graph *g, up_descriptor a, up_descriptor b)
{
    up_descriptor c = scores(g, CUDNN_DATA_FLOAT);
    matmul(g, a, b, c);
    return c;
}

static up_descriptor lse(struct graph *g)
{
    struct layout layout = packed(g, g->view->queries, 1);
    layout.strides[1] = g->view->lse_head;
    return tensor(g, UP_ATTENTION_LSE, REAL, CUDNN_DATA_FLOAT, layout);
}

static void forward(struct graph *g)
{
    const struct up_attention_view *v = g->view;
    up_descriptor q = query_rows(g, UP_ATTENTION_Q, v->q_row);
    up_descriptor k = key_columns(g, UP_ATTENTION_K);
    up_descriptor s = product_scores(g, q, k);
    s = mask(g, scaled(g, s, number(g, UP_ATTENTION_SCALE)));
    up_descriptor max = reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, statistic(g));
    s = apply(g, CUDNN_POINTWISE_SUB, s, max, scores(g, CUDNN_DATA_FLOAT));
    s = apply(g, CUDNN_POINTWISE_EXP, s, NULL, scores(g, CUDNN_DATA_FLOAT));
    up_descriptor sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, s, statistic(g));
    up_descriptor log = apply(g, CUDNN_POINTWISE_LOG, sum, NULL, statistic(g));
    apply(g, CUDNN_POINTWISE_ADD, max, log, lse(g));
    s = apply(g, CUDNN_POINTWISE_DIV, s, sum, scores(g, CUDNN_DATA_BFLOAT16));
    matmul(g, s, key_rows(g, UP_ATTENTION_V, v->kv_row), query_rows(g, UP_ATTENTION_O, v->o_row));
}

/* softmax_sum = rowsum(do o). */
static up_descriptor dot_rows(struct graph *g, up_descriptor d_o)
{
    const struct up_attention_view *v = g->view;
    struct layout layout = packed(g, v->queries, v->head_dim);
    layout.strides[2] = v->heads * v->head_dim; // the engines want this stride here, odd as it is
    up_descriptor o = query_rows(g, UP_ATTENTION_O, v->o_row);
    up_descriptor products = intermediate(g, CUDNN_DATA_FLOAT, layout);
    apply(g, CUDNN_POINTWISE_MUL, d_o, o, products);
    up_descriptor dot = reduce(g, CUDNN_REDUCE_TENSOR_ADD, products, statistic(g));
    up_descriptor kept =
        tensor(g, UP_ATTENTION_SOFTMAX_SUM, REAL, CUDNN_DATA_FLOAT, packed(g, v->queries, 1));
    return apply(g, CUDNN_POINTWISE_MUL, dot, number(g, UP_ATTENTION_ONE), kept);
}

/* d = transpose(p) x, of the KV heads: summed over the query heads of each where they are more. */
static void key_gradient(struct graph *g, up_descriptor p, up_descriptor x, enum up_attention_id id)
{
    const struct up_attention_view *v = g->view;
    up_descriptor p_transposed = reshape(g, p, transposed(packed(g, v->queries, v->keys)));
    up_descriptor d = key_rows(g, id, v->dkv_row);
    if (v->heads == v->kv_heads) {
        matmul(g, p_transposed, x, d);
        return;
    }
    up_descriptor each = intermediate(g, CUDNN_DATA_BFLOAT16, packed(g, v->keys, v->head_dim));
    matmul(g, p_transposed, x, each);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, each, d);
}

static void query_gradient(struct graph *g, up_descriptor ds, up_descriptor k)
{
    const struct up_attention_view *v = g->view;
    up_descriptor k_rows = reshape(g, k, rows_layout(g, v->keys, v->kv_heads, v->kv_row));
    up_descriptor sum =
        tensor(g, UP_ATTENTION_DQ_SUM, REAL, CUDNN_DATA_FLOAT, packed(g, v->queries, v->head_dim));
    matmul(g, ds, k_rows, sum);
    apply(g, CUDNN_POINTWISE_IDENTITY, sum, NULL, query_rows(g, UP_ATTENTION_DQ, v->o_row));
}

static void backward(struct graph *g)
{
    const struct up_attention_view *v = g->view;
    up_descriptor d_o = query_rows(g, UP_ATTENTION_D_O, v->o_row);
    up_descriptor q = query_rows(g, UP_ATTENTION_Q, v->q_row);
    up_descriptor k = key_columns(g, UP_ATTENTION_K);
    up_descriptor scale = number(g, UP_ATTENTION_SCALE);
    up_descriptor dot = dot_rows(g, d_o);

    up_descriptor p = scaled(g, product_scores(g, q, k), scale);
    p = apply(g, CUDNN_POINTWISE_SUB, p, lse(g), scores(g, CUDNN_DATA_FLOAT));
    p = apply(g, CUDNN_POINTWISE_EXP, mask(g, p), NULL, scores(g, CUDNN_DATA_FLOAT));
    key_gradient(g, p, d_o, UP_ATTENTION_DV);

    up_descriptor v_columns = key_columns(g, UP_ATTENTION_V);
    up_descriptor ds = product_scores(g, d_o, v_columns);
    ds = apply(g, CUDNN_POINTWISE_SUB, ds, dot, scores(g, CUDNN_DATA_FLOAT));
    ds = apply(g, CUDNN_POINTWISE_MUL, ds, p, scores(g, CUDNN_DATA_FLOAT));
    ds = scaled(g, ds, scale);
    key_gradient(g, ds, q, UP_ATTENTION_DK);
    query_gradient(g, ds, k);
}

int up_attention_graph(struct up_descriptors *list, const struct up_attention_view *view,
                       up_descriptor operations[UP_OPERATIONS_MAX])
{
    struct graph g = {
        .list = list, .view = view, .next_id = FIRST_VIRTUAL_ID, .operations = operations};
    if (view->backward)
        backward(&g);
    else
        forward(&g);
    return g.count;
}
