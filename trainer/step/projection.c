/* The products before and after attention, for the heads of one stage.
 *
 * A stage has heads of every rank: some rows of Wq, Wk and Wv (columns of Wo) here and there, and
 * slots of q, k, v and o that each hold one rank's heads. A product per slot would be thin (a head
 * or two wide, at half the GPU's rate) and, where slots add up, would read and write its
 * result once per slot. So the stage's part of a weight is gathered once, a slice of tokens of all
 * slots lies side by side while it is worked on, and each product is one, as wide as the stage.
 * Where the weights of q, k and v follow each other the three are one product: K and V, of a
 * quarter of the heads or fewer, would be thin again by themselves. What that takes is small: a
 * slice of the stage's heads, and its part of the weights. With one rank, and for all heads in one
 * stage, what need not move stays where it is.
 */
#include "trainer/step/projection.h"

// A stage's part of a weight, [width, hidden] (of Wo [hidden, width]), and a slice of what it
// makes.
struct part {
    enum up_param_kind kind;
    const struct up_layout *layout;
    int64_t width; // of all ranks' heads
    const void *weight;
    float *grad;
    int64_t ld;    // of both
    bool gathered; // weight and grad are the pass's room, and not the model's own
    void *slice;   // [tile, width], rows slice_ld apart; NULL where slots need not be side by side
    int64_t slice_ld;
};

// Rows that lie side by side at a time: enough to fill a GPU, and little memory however long the
// sequence and the slice that is normalised are.
enum { SLICE_ROWS = 8192, PART_ALIGN = 512 };

static struct up_tiles slices_of(const struct up_attention *a, int64_t rows)
{
    return up_tiles_of(rows, a->config->cp > 1 ? SLICE_ROWS : 0);
}

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
    void *here = (char *)part->slice + column * size;
    (void)heads_apart;
    up_op_regroup(a->rank, UP_STREAM_COMPUTE,
                  &(struct up_regroup_args){.from = m->to_slots ? here : there,
                                            .to = m->to_slots ? there : here,
                                            .blocks = count,
                                            .rows = m->tile.rows,
                                            .width = width,
                                            .from_block = m->to_slots ? width : slot,
                                            .from_ld = m->to_slots ? part->slice_ld : width,
                                            .to_block = m->to_slots ? slot : width,
                                            .to_ld = m->to_slots ? width : part->slice_ld,
                                            .dtype = a->config->dtype});
}

// The slice of tokens of all slots, side by side; where there is one slot it lies there as it is.
static void *slice_of(const struct up_attention *a, const struct part *part,
                      const struct up_tensor *slots, struct up_tile tile)
{
    if (part->slice) return part->slice;
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
    void *whole, *part;
    enum up_dtype dtype;
    bool back; // from the part, adding
};

static void move_weight(const struct up_attention *a, const struct part *part,
                        struct up_heads first, int64_t r, int64_t count, int64_t heads_apart,
                        int64_t column, void *context)
{
    const struct weight_move *m = context;
    int64_t hidden = a->model->hidden, size = up_dtype_bytes[m->dtype];
    int64_t width = first.count * head_dim(a), apart = heads_apart * head_dim(a);
    bool out = is_out(part);
    // Of Wo columns: `hidden` rows of a block. Of the others whole rows: one row of a block.
    int64_t whole_at = first.first * head_dim(a) * (out ? 1 : hidden);
    int64_t part_at = column * (out ? 1 : hidden);
    int64_t whole_block = out ? apart : apart * hidden, part_block = out ? width : width * hidden;
    int64_t whole_ld = out ? a->model->heads * head_dim(a) : 0, part_ld = out ? part->width : 0;
    void *whole = (char *)m->whole + whole_at * size;
    void *here = (char *)m->part + part_at * size;
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
                                            .dtype = m->dtype,
                                            .add = m->back});
}

static struct up_part_room *room_of(struct up_attention *a, enum up_param_kind kind)
{
    return &a->room[kind == UP_PARAM_WK ? 1 : kind == UP_PARAM_WV ? 2 : 0];
}

static int64_t width_of(const struct up_attention *a, const struct up_stage *s,
                        enum up_param_kind kind)
{
    int64_t heads = 0;
    for (int64_t r = 0; r < a->config->cp; r++) heads += up_heads_of(a, s, kind, r).count;
    return heads * head_dim(a);
}

// Cuts a piece off the room; with `base` NULL it is only measured.
static void *cut(char *base, int64_t *used, int64_t bytes)
{
    int64_t at = *used;
    *used += up_ceil_div(bytes, PART_ALIGN) * PART_ALIGN;
    return base ? base + at : NULL;
}

// What the projections of a pass need between them, like beside like; returns its bytes.
static int64_t lay_out(struct up_attention *a, char *base, bool backward)
{
    static const enum up_param_kind kinds[UP_PARTS] = {UP_PARAM_WQ, UP_PARAM_WK, UP_PARAM_WV};
    int64_t used = 0, size = up_dtype_bytes[a->config->dtype];
    int64_t width[UP_PARTS] = {0}; // of the widest stage
    bool gathered[UP_PARTS] = {0};
    for (int i = 0; i < UP_PARTS; i++)
        for (int64_t stage = 0; stage < a->stages; stage++) {
            struct up_stage s = {.index = stage};
            width[i] = up_max(width[i], width_of(a, &s, kinds[i]));
            gathered[i] |= !in_one_piece(a, &s, kinds[i]);
        }
    for (int i = 0; i < UP_PARTS; i++)
        room_of(a, kinds[i])->slice =
            cut(base, &used, slices_of(a, a->rows).tile * width[i] * size);
    for (int i = 0; i < UP_PARTS; i++)
        if (gathered[i])
            room_of(a, kinds[i])->weight = cut(base, &used, width[i] * a->model->hidden * size);
    for (int i = 0; i < UP_PARTS && backward; i++)
        if (gathered[i])
            room_of(a, kinds[i])->grad =
                cut(base, &used, width[i] * a->model->hidden * (int64_t)sizeof(float));
    return used;
}

void up_parts_take(struct up_attention *a, bool backward)
{
    if (a->config->cp == 1) return;
    a->parts = up_alloc(a->rank, UP_TAG_LAYER(WORKSPACE, "attn.parts", a->layer), UP_U8,
                        UP_SHAPE(lay_out(a, NULL, backward)));
    lay_out(a, a->parts->data, backward);
}

void up_parts_drop(struct up_attention *a)
{
    up_free(a->rank, &a->parts);
}

static void gather(struct up_attention *a, const struct up_stage *s, struct part *part,
                   bool gradient)
{
    struct up_part_room *room = room_of(a, part->kind);
    void *weight = (void *)up_unit_weight(a->unit, part->kind);
    for_runs(a, s, part, &(struct weight_move){weight, room->weight, a->config->dtype, false},
             move_weight);
    part->weight = room->weight;
    part->gathered = true;
    if (!gradient) return;
    part->grad = room->grad;
    int64_t bytes = part->width * a->model->hidden * (int64_t)sizeof(float);
    up_op_fill(a->rank, UP_STREAM_COMPUTE, &(struct up_fill_args){.x = part->grad, .bytes = bytes});
}

static struct part part_of(struct up_attention *a, const struct up_stage *s,
                           enum up_param_kind kind, bool gradient)
{
    struct part part = {.kind = kind,
                        .layout = up_layout_of(a, s, kind),
                        .width = width_of(a, s, kind),
                        .slice = room_of(a, kind)->slice};
    part.slice_ld = part.width;
    bool whole = in_one_piece(a, s, kind);
    part.ld = is_out(&part) ? whole ? a->model->heads * head_dim(a) : part.width : a->model->hidden;
    if (!whole) {
        gather(a, s, &part, gradient);
        return part;
    }
    int64_t at = up_heads_of(a, s, kind, 0).first * head_dim(a);
    if (!is_out(&part)) at *= a->model->hidden;
    part.weight =
        (const char *)up_unit_weight(a->unit, kind) + at * up_dtype_bytes[a->config->dtype];
    if (gradient) part.grad = up_unit_grad(a->unit, kind) + at;
    return part;
}

// A gathered gradient goes where it belongs.
static void end_gradient(struct up_attention *a, const struct up_stage *s, const struct part *part)
{
    if (!part->gathered) return;
    float *whole = up_unit_grad(a->unit, part->kind);
    for_runs(a, s, part, &(struct weight_move){whole, part->grad, UP_F32, true}, move_weight);
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

static bool follows(const struct up_attention *a, const struct part *before,
                    const struct part *part)
{
    int64_t elements = before->width * a->model->hidden;
    const char *end = (const char *)before->weight + elements * up_dtype_bytes[a->config->dtype];
    return part->weight == (const void *)end &&
           (!part->grad || part->grad == before->grad + elements);
}

// Lays the slices of parts whose weights follow each other side by side too, for one product with
// all of them: how many products there are, each as wide as its first part's slice_ld. Parts come
// in the order in which their room is cut, so that what the first has goes on into the others'.
static int join(const struct up_attention *a, struct part *part, int count)
{
    int64_t column = 0, width = 0;
    for (int j = 0; j < count; j++) {
        if (!part[j].slice || (j && !follows(a, &part[j - 1], &part[j]))) return count;
        width += part[j].width;
    }
    for (int j = 0; j < count; column += part[j++].width) {
        part[j].slice = (char *)part[0].slice + column * up_dtype_bytes[a->config->dtype];
        part[j].slice_ld = width;
    }
    return 1;
}

// Parts of a stage's projections, and the products that make them.
struct parts {
    struct part part[UP_PARTS];
    int count, products;
};

static struct parts parts_of(struct up_attention *a, const struct up_stage *s,
                             const struct up_projection *p, int count, bool gradient)
{
    struct parts parts = {.count = count};
    for (int j = 0; j < count; j++) parts.part[j] = part_of(a, s, p[j].kind, gradient);
    parts.products = join(a, parts.part, count);
    return parts;
}

// A slice [first, first + rows) of a pass, whose normalised rows are `h`.
static void project_slice(struct up_attention *a, const struct up_stage *s,
                          const struct parts *parts, const struct up_projection *p, const void *h,
                          struct up_tile slice)
{
    for (int j = 0; j < parts->products; j++) {
        const struct part *part = &parts->part[j];
        up_project(a->trainer, h, part->weight, slice_of(a, part, p[j].y, slice), slice.rows,
                   part->slice_ld, a->model->hidden, part->ld, 0);
    }
    for (int j = 0; j < parts->count; j++) write_slots(a, s, &parts->part[j], p[j].y, slice);
}

static void *row_of_h(const struct up_attention *a, int64_t row)
{
    return (char *)a->h->data + row * a->model->hidden * up_dtype_bytes[a->config->dtype];
}

void up_stage_project(struct up_attention *a, const struct up_stage *s,
                      const struct up_projection *p, int count)
{
    struct parts parts = parts_of(a, s, p, count, false);
    for (int64_t i = 0; i < up_tiles_count(a->tiles); i++) {
        struct up_tile tile = up_tile_at(a->tiles, i);
        struct up_tiles slices = slices_of(a, tile.rows);
        normalise(a, s->row + tile.first, tile.rows);
        for (int64_t k = 0; k < up_tiles_count(slices); k++) {
            struct up_tile slice = up_tile_at(slices, k);
            const void *h = row_of_h(a, slice.first);
            slice.first += tile.first;
            project_slice(a, s, &parts, p, h, slice);
        }
    }
}

// Of a slice: the weights' gradients, and then, in the place of h, which has served, its own.
static void slice_back(struct up_attention *a, const struct up_stage *s, const struct parts *parts,
                       const struct up_projection *p, void *h, struct up_tile slice)
{
    const struct part *part = parts->part;
    const void *dy[UP_PARTS];
    int64_t hidden = a->model->hidden;
    for (int j = 0; j < parts->count; j++) dy[j] = read_slots(a, s, &part[j], p[j].y, slice);
    for (int j = 0; j < parts->products; j++)
        up_project_grad(a->trainer, dy[j], h, part[j].grad, slice.rows, part[j].slice_ld, hidden,
                        part[j].ld);
    for (int j = 0; j < parts->products; j++)
        up_project_back(a->trainer, dy[j], part[j].weight, h, slice.rows, part[j].slice_ld, hidden,
                        part[j].ld, j ? 1 : 0);
}

void up_stage_project_back(struct up_attention *a, const struct up_stage *s,
                           const struct up_projection *p, int count, struct up_tensor *dx)
{
    struct parts parts = parts_of(a, s, p, count, true);
    for (int64_t i = 0; i < up_tiles_count(a->tiles); i++) {
        struct up_tile tile = up_tile_at(a->tiles, i);
        struct up_tiles slices = slices_of(a, tile.rows);
        int64_t row = s->row + tile.first;
        normalise(a, row, tile.rows);
        for (int64_t k = 0; k < up_tiles_count(slices); k++) {
            struct up_tile slice = up_tile_at(slices, k);
            void *h = row_of_h(a, slice.first);
            slice.first += tile.first;
            slice_back(a, s, &parts, p, h, slice);
        }
        a->h_row = -1;
        up_norm_back(a->trainer, up_row(a->x, row), up_unit_weight(a->unit, UP_PARAM_ATTN_NORM),
                     a->h->data, up_row(dx, row), up_unit_grad(a->unit, UP_PARAM_ATTN_NORM),
                     tile.rows, true);
    }
    for (int j = 0; j < count; j++) end_gradient(a, s, &parts.part[j]);
}

/* --- After attention -----------------------------------------------------------------------------
 */

static void project_out(struct up_attention *a, const struct up_stage *s, const struct up_tensor *o,
                        struct up_tensor *out, float beta)
{
    struct part part = part_of(a, s, UP_PARAM_WO, false);
    struct up_tiles tiles = slices_of(a, a->rows);
    for (int64_t i = 0; i < up_tiles_count(tiles); i++) {
        struct up_tile tile = up_tile_at(tiles, i);
        up_project(a->trainer, read_slots(a, s, &part, o, tile), part.weight,
                   up_row(out, s->row + tile.first), tile.rows, a->model->hidden, part.width,
                   part.ld, beta);
    }
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
    struct part part = part_of(a, s, UP_PARAM_WO, true);
    struct up_tiles tiles = slices_of(a, a->rows);
    for (int64_t i = 0; i < up_tiles_count(tiles); i++) {
        struct up_tile tile = up_tile_at(tiles, i);
        const void *rows = up_row(d, s->row + tile.first);
        up_project_grad(a->trainer, rows, read_slots(a, s, &part, o, tile), part.grad, tile.rows,
                        a->model->hidden, part.width, part.ld);
        up_project_back(a->trainer, rows, part.weight, slice_of(a, &part, d_o, tile), tile.rows,
                        a->model->hidden, part.width, part.ld, 0);
        write_slots(a, s, &part, d_o, tile);
    }
    end_gradient(a, s, &part);
}
