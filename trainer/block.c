/* One decoder block: attention and MLP, each added to the residual stream. */
#include "trainer/step_impl.h"

static struct up_tensor *copy_of(struct up_trainer *trainer, const struct up_tensor *x,
                                 struct up_tag tag)
{
    struct up_tensor *copy = up_alloc(trainer->rank, tag, x->dtype, x->shape);
    up_copy(trainer->rank, UP_STREAM_COMPUTE, copy, x);
    return copy;
}

struct up_tensor *up_block_forward(struct up_trainer *trainer, int64_t layer, struct up_tensor *x)
{
    struct up_rank *rank = trainer->rank;
    struct up_unit *unit = up_units_block(&trainer->units, layer);
    enum up_checkpoint keep = up_config_checkpoint(trainer->config, layer);
    bool all = keep == UP_CHECKPOINT_NONE, last = layer + 1 == trainer->config->model.layers;
    struct up_tag next = last ? UP_TAG(CHECKPOINT, "x.final")
                              : UP_TAG_LAYER(CHECKPOINT, "x", layer + 1);
    up_unit_acquire(&trainer->units, unit, rank);
    trainer->kept[layer].x = x;

    // Without a middle to keep, the MLP adds to attention's output in place: one tensor, first the
    // middle, then the next block's input.
    up_range_begin(rank, "attn", (int)layer);
    struct up_tensor *mid =
        copy_of(trainer, x, all ? UP_TAG_LAYER(ATTENTION, "x.mid", layer) : next);
    up_attention_forward(trainer, layer, x, mid, keep);
    up_range_end(rank);

    up_range_begin(rank, "mlp", (int)layer);
    struct up_tensor *out = all ? copy_of(trainer, mid, next) : mid;
    up_mlp_forward(trainer, layer, mid, out, all);
    up_range_end(rank);

    if (all) trainer->kept[layer].x_mid = mid;
    up_unit_drop(unit, rank);
    up_step_progress(trainer, 1);
    return out;
}

// The stream between attention and MLP, as kept or made again from x.
static struct up_tensor *rebuild_mid(struct up_trainer *trainer, int64_t layer)
{
    struct up_kept *kept = &trainer->kept[layer];
    struct up_tensor *mid = kept->x_mid;
    kept->x_mid = NULL;
    if (mid) return mid;
    up_range_begin(trainer->rank, "attn.rebuild", (int)layer);
    mid = copy_of(trainer, kept->x, UP_TAG_LAYER(ATTENTION, "x.mid", layer));
    if (kept->o[0])
        up_attention_residual(trainer, layer, mid);
    else
        up_attention_forward(trainer, layer, kept->x, mid, UP_CHECKPOINT_ATTN);
    up_range_end(trainer->rank);
    return mid;
}

void up_block_backward(struct up_trainer *trainer, int64_t layer, struct up_tensor *d)
{
    struct up_rank *rank = trainer->rank;
    struct up_unit *unit = up_units_block(&trainer->units, layer);
    struct up_kept *kept = &trainer->kept[layer];
    up_unit_acquire(&trainer->units, unit, rank);
    struct up_tensor *mid = rebuild_mid(trainer, layer);

    up_range_begin(rank, "mlp", (int)layer);
    up_mlp_backward(trainer, layer, mid, d);
    up_free(rank, &mid);
    up_range_end(rank);

    up_range_begin(rank, "attn", (int)layer);
    up_attention_backward(trainer, layer, kept->x, d);
    up_free(rank, &kept->x);
    up_range_end(rank);

    up_unit_drop(unit, rank);
    up_step_progress(trainer, 2);
}
