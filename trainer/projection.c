/* The products before and after attention, for the heads of one stage.
 *
 * A stage has heads of every rank: some rows of Wq, Wk and Wv (columns of Wo) here and there, and
 * slots of q, k, v and o that each hold one rank's heads. A product per slot would be thin (a head
 * or two wide, at an eighth of the GPU's rate) and, where slots add up, would read and write its
 * result once per slot. So the stage's part of a weight is gathered once, a slice of tokens of all
 * slots lies side by side while it is worked on, and each product is one, as wide as the stage.
 * What that takes is small: a slice of the stage's heads, and its part of the weights. With one
 * rank, and for all heads in one stage, what need not move stays where it is.
 */
#include "trainer/attention_impl.h"

enum { NO_GRADIENT, GRADIENT };

// A stage's part of a weight, [width, hidden] (of Wo [hidden, width]), and a slice of what it
// makes.
struct part {
    enum up_param_kind kind;
    const struct up_layout *layout;
    int64_t width; // of all ranks' heads
    const void *weight;
    float *grad;
    int64_t ld;                    // of both
    struct up_tensor *weight_copy; // NULL where the weight itself serves
    struct up_tensor *grad_copy;   // fp32; likewise
    struct up_tensor *slice;       // [tile, width]; NULL where slots need not be put side by side
};

static bool is_out(const struct part *part)
{
    return part->kind == UP_PARAM_WO;
}

static int64_t head_dim(const struct up_attention *a)
{
    return a->model->head_dim;
}

// Whether the ranks' heads follow each other in the model, so that the weight's part is one piece.
static bool in_one_piece(const struct up_attention *a, const struct up_stage *s,
                         enum up_param_kind kind)
{
    for (int64_t r = 1; r < a->config->cp; r++) {
        struct up_heads before = up_heads_of(a, s, kind, r - 1), here = up_heads_of(a, s, kind, r);
        if (here.first != before.first + before.count) return false;
    }
    return true;
}

/* --- Slots and parts -----------------------------------------------------------------------------
 */

// Calls `move` for runs of ranks whose heads, and so their slots and places, are equally far apart.
static void for_runs(const struct up_attention *a, const struct up_stage *s,
                     const struct part *part, void *context,
                     void (*move)(const struct up_attention *a, const struct part *part,
                                  struct up_heads first, int64_t r, int64_t count,
                                  int64_t heads_apart, int64_t column, void *context))
{
    int64_t column = 0, cp = a->config->cp;
    for (int64_t r = 0, count; r < cp; r += count) {
        struct up_heads first = up_heads_of(a, s, part->kind, r);
        int64_t apart = r + 1 < cp ? up_heads_of(a, s, part->kind, r + 1).first - first.first : 0;
        // Shared heads go one by one: gradients of several are added at the same place.
        for (count = 1; r + count < cp && apart >= first.count; count++) {
            struct up_heads next = up_heads_of(a, s, part->kind, r + count);
            if (next.count != first.count || next.first != first.first + count * apart) break;
        }
        move(a, part, first, r, count, apart, column, context);
        column += count * first.count * head_dim(a);
    }
}

struct slots_move {
    const struct up_tensor *slots; // in sequence layout
    struct up_tile tile;
    bool to_slots;
};

static void move_slots(const struct up_attention *a, const struct part *part, struct up_heads first,
                       int64_t r, int64_t count, int64_t heads_apart, int64_t column, void *context)
{
    const struct slots_move *m = context;
    const struct up_layout *layout = part->layout;
    int64_t width = first.count * head_dim(a), size = up_dtype_bytes[a->config->dtype];
    int64_t slot = count > 1 ? layout->slot_at[r + 1] - layout->slot_at[r] : 0;
    void *there = up_slot_row(a, m->slots, layout, r, first.count, m->tile.first);
    void *here = (char *)part->slice->data + column * size;
    (void)heads_apart;
    up_op_regroup(a->rank, UP_STREAM_COMPUTE,
                  &(struct up_regroup_args){.from = m->to_slots ? here : there,
                                            .to = m->to_slots ? there : here,
                                            .blocks = count,
                                            .rows = m->tile.rows,
                                            .width = width,
                                            .from_block = m->to_slots ? width : slot,
                                            .from_ld = m->to_slots ? part->width : width,
                                            .to_block = m->to_slots ? slot : width,
                                            .to_ld = m->to_slots ? width : part->width,
                                            .dtype = a->config->dtype});
}

// The slice of tokens of all slots, side by side; where there is one slot it lies there as it is.
static void *slice_of(const struct up_attention *a, const struct part *part,
                      const struct up_tensor *slots, struct up_tile tile)
{
    if (part->slice) return part->slice->data;
    return up_slot_row(a, slots, part->layout, 0, part->width / head_dim(a), tile.first);
}

static const void *read_slots(const struct up_attention *a, const struct up_stage *s,
                              const struct part *part, const struct up_tensor *slots,
                              struct up_tile tile)
{
    if (part->slice) for_runs(a, s, part, &(struct slots_move){slots, tile, false}, move_slots);
    return slice_of(a, part, slots, tile);
}

static void write_slots(const struct up_attention *a, const struct up_stage *s,
                        const struct part *part, struct up_tensor *slots, struct up_tile tile)
{
    if (part->slice) for_runs(a, s, part, &(struct slots_move){slots, tile, true}, move_slots);
}

// Between the whole weight (or gradient) and the stage's part of it.
struct weight_move {
    void *whole;
    struct up_tensor *part;
    bool back; // from the part, adding
};

static void move_weight(const struct up_attention *a, const struct part *part,
                        struct up_heads first, int64_t r, int64_t count, int64_t heads_apart,
                        int64_t column, void *context)
{
    const struct weight_move *m = context;
    int64_t hidden = a->model->hidden, size = up_dtype_bytes[m->part->dtype];
    int64_t width = first.count * head_dim(a), apart = heads_apart * head_dim(a);
    bool out = is_out(part);
    // Of Wo columns: `hidden` rows of a block. Of the others whole rows: one row of a block.
    int64_t whole_at = first.first * head_dim(a) * (out ? 1 : hidden);
    int64_t part_at = column * (out ? 1 : hidden);
    int64_t whole_block = out ? apart : apart * hidden, part_block = out ? width : width * hidden;
    int64_t whole_ld = out ? a->model->heads * head_dim(a) : 0, part_ld = out ? part->width : 0;
    void *whole = (char *)m->whole + whole_at * size;
    void *here = (char *)m->part->data + part_at * size;
    (void)r;
    up_op_regroup(a->rank, UP_STREAM_COMPUTE,
                  &(struct up_regroup_args){.from = m->back ? here : whole,
                                            .to = m->back ? whole : here,
                                            .blocks = count,
                                            .rows = out ? hidden : 1,
                                            .width = out ? width : width * hidden,
                                            .from_block = m->back ? part_block : whole_block,
                                            .from_ld = m->back ? part_ld : whole_ld,
                                            .to_block = m->back ? whole_block : part_block,
                                            .to_ld = m->back ? whole_ld : part_ld,
                                            .dtype = m->part->dtype,
                                            .add = m->back});
}

static struct up_tensor *alloc_part(struct up_attention *a, const struct part *part,
                                    const char *name, enum up_dtype dtype)
{
    int64_t hidden = a->model->hidden;
    return up_alloc(a->rank, UP_TAG_LAYER(WORKSPACE, name, a->layer), dtype,
                    is_out(part) ? UP_SHAPE(hidden, part->width) : UP_SHAPE(part->width, hidden));
}

static void gather_weight(struct up_attention *a, const struct up_stage *s, struct part *part)
{
    part->weight_copy = alloc_part(a, part, "attn.stage.weight", a->config->dtype);
    for_runs(a, s, part,
             &(struct weight_move){(void *)up_unit_weight(a->unit, part->kind), part->weight_copy,
                                   false},
             move_weight);
    part->weight = part->weight_copy->data;
}

static void begin_gradient(struct up_attention *a, struct part *part)
{
    part->grad_copy = alloc_part(a, part, "attn.stage.grad", UP_F32);
    part->grad = part->grad_copy->data;
    up_op_fill(a->rank, UP_STREAM_COMPUTE,
               &(struct up_fill_args){part->grad_copy->data, part->grad_copy->bytes});
}

static struct part take_part(struct up_attention *a, const struct up_stage *s,
                             enum up_param_kind kind, int gradient)
{
    struct part part = {.kind = kind, .layout = up_layout_of(a, s, kind)};
    for (int64_t r = 0; r < a->config->cp; r++)
        part.width += up_heads_of(a, s, kind, r).count * head_dim(a);
    bool whole = in_one_piece(a, s, kind);
    part.ld = is_out(&part) ? whole ? a->model->heads * head_dim(a) : part.width : a->model->hidden;
    if (whole) {
        int64_t at = up_heads_of(a, s, kind, 0).first * head_dim(a);
        if (!is_out(&part)) at *= a->model->hidden;
        part.weight =
            (const char *)up_unit_weight(a->unit, kind) + at * up_dtype_bytes[a->config->dtype];
        if (gradient) part.grad = up_unit_grad(a->unit, kind) + at;
    } else {
        gather_weight(a, s, &part);
        if (gradient) begin_gradient(a, &part);
    }
    if (a->config->cp > 1)
        part.slice = up_alloc(a->rank, UP_TAG_LAYER(WORKSPACE, "attn.stage.slice", a->layer),
                              a->config->dtype, UP_SHAPE(a->tiles.tile, part.width));
    return part;
}

static void drop_part(struct up_attention *a, const struct up_stage *s, struct part *part)
{
    if (part->grad_copy)
        for_runs(a, s, part,
                 &(struct weight_move){up_unit_grad(a->unit, part->kind), part->grad_copy, true},
                 move_weight);
    up_free(a->rank, &part->slice);
    up_free(a->rank, &part->grad_copy);
    up_free(a->rank, &part->weight_copy);
}

/* --- Before attention ----------------------------------------------------------------------------
 */

static void normalise(struct up_attention *a, int64_t row, int64_t rows)
{
    if (a->h_row == row) return;
    up_norm(a->trainer, up_row(a->x, row), up_unit_weight(a->unit, UP_PARAM_ATTN_NORM), a->h->data,
            rows);
    a->h_row = row;
}

void up_stage_project(struct up_attention *a, const struct up_stage *s,
                      const struct up_projection *p, int count)
{
    struct part part[3];
    int64_t hidden = a->model->hidden;
    for (int j = 0; j < count; j++) part[j] = take_part(a, s, p[j].kind, NO_GRADIENT);
    for (int64_t i = 0; i < up_tiles_count(a->tiles); i++) {
        struct up_tile tile = up_tile_at(a->tiles, i);
        normalise(a, s->row + tile.first, tile.rows);
        for (int j = 0; j < count; j++) {
            up_project(a->trainer, a->h->data, part[j].weight, slice_of(a, &part[j], p[j].y, tile),
                       tile.rows, part[j].width, hidden, part[j].ld, 0);
            write_slots(a, s, &part[j], p[j].y, tile);
        }
    }
    for (int j = 0; j < count; j++) drop_part(a, s, &part[j]);
}

void up_stage_project_back(struct up_attention *a, const struct up_stage *s,
                           const struct up_projection *p, int count, struct up_tensor *dx)
{
    struct part part[3];
    int64_t hidden = a->model->hidden;
    for (int j = 0; j < count; j++) part[j] = take_part(a, s, p[j].kind, GRADIENT);
    for (int64_t i = 0; i < up_tiles_count(a->tiles); i++) {
        struct up_tile tile = up_tile_at(a->tiles, i);
        const void *dy[3];
        int64_t row = s->row + tile.first;
        normalise(a, row, tile.rows);
        for (int j = 0; j < count; j++) {
            dy[j] = read_slots(a, s, &part[j], p[j].y, tile);
            up_project_grad(a->trainer, dy[j], a->h->data, part[j].grad, tile.rows, part[j].width,
                            hidden, part[j].ld);
        }
        // h has served: its place takes its own gradient.
        a->h_row = -1;
        for (int j = 0; j < count; j++)
            up_project_back(a->trainer, dy[j], part[j].weight, a->h->data, tile.rows, part[j].width,
                            hidden, part[j].ld, j ? 1 : 0);
        up_norm_back(a->trainer, up_row(a->x, row), up_unit_weight(a->unit, UP_PARAM_ATTN_NORM),
                     a->h->data, up_row(dx, row), up_unit_grad(a->unit, UP_PARAM_ATTN_NORM),
                     tile.rows, true);
    }
    for (int j = 0; j < count; j++) drop_part(a, s, &part[j]);
}

/* --- After attention -----------------------------------------------------------------------------
 */

// Slices are only cut where slots are to lie side by side.
static struct up_tiles tiles_of(const struct up_attention *a, const struct part *part)
{
    return part->slice ? a->tiles : up_tiles_of(a->rows, 0);
}

static void project_out(struct up_attention *a, const struct up_stage *s, const struct up_tensor *o,
                        struct up_tensor *out, float beta)
{
    struct part part = take_part(a, s, UP_PARAM_WO, NO_GRADIENT);
    struct up_tiles tiles = tiles_of(a, &part);
    for (int64_t i = 0; i < up_tiles_count(tiles); i++) {
        struct up_tile tile = up_tile_at(tiles, i);
        up_project(a->trainer, read_slots(a, s, &part, o, tile), part.weight,
                   up_row(out, s->row + tile.first), tile.rows, a->model->hidden, part.width,
                   part.ld, beta);
    }
    drop_part(a, s, &part);
}

// x comes to the sum as late as can be, before the last part: the parts are smaller than x, and
// what is lost in rounding their sum is as well.
void up_stage_add_to_out(struct up_attention *a, const struct up_stage *s,
                         const struct up_tensor *o, struct up_tensor *out)
{
    bool first = s->index == 0, last = s->index + 1 == a->stages;
    const void *x = up_row(a->x, s->row);
    void *sum = up_row(out, s->row);
    int64_t count = a->rows * a->model->hidden;
    enum up_dtype dtype = a->config->dtype;
    if (last && first)
        up_op_cast(a->rank, UP_STREAM_COMPUTE, &(struct up_cast_args){x, sum, count, dtype, dtype});
    else if (last)
        up_op_add(a->rank, UP_STREAM_COMPUTE, &(struct up_add_args){x, sum, count, dtype});
    project_out(a, s, o, out, first && !last ? 0 : 1);
}

void up_stage_out_back(struct up_attention *a, const struct up_stage *s, const struct up_tensor *d,
                       const struct up_tensor *o, struct up_tensor *d_o)
{
    struct part part = take_part(a, s, UP_PARAM_WO, GRADIENT);
    struct up_tiles tiles = tiles_of(a, &part);
    for (int64_t i = 0; i < up_tiles_count(tiles); i++) {
        struct up_tile tile = up_tile_at(tiles, i);
        const void *rows = up_row(d, s->row + tile.first);
        up_project_grad(a->trainer, rows, read_slots(a, s, &part, o, tile), part.grad, tile.rows,
                        a->model->hidden, part.width, part.ld);
        up_project_back(a->trainer, rows, part.weight, slice_of(a, &part, d_o, tile), tile.rows,
                        a->model->hidden, part.width, part.ld, 0);
        write_slots(a, s, &part, d_o, tile);
    }
    drop_part(a, s, &part);
}
