/* One decoder block: attention and MLP, each added to the residual stream. */
#include "trainer/step/parts.h"

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
    const struct up_config *config = trainer->config;
    struct up_units *units = &trainer->units;
    struct up_unit *unit = up_units_block(units, layer);
    enum up_checkpoint keep = up_config_checkpoint(config, layer);
    bool all = keep == UP_CHECKPOINT_NONE, last = layer + 1 == up_config_layers(config);
    struct up_tag next =
        last ? UP_TAG(CHECKPOINT, "x.final") : UP_TAG_LAYER(CHECKPOINT, "x", layer + 1);
    up_unit_acquire(units, unit);
    trainer->kept[layer].x.device = x;
    if (up_config_offloads_input(config, layer)) up_store_begin(rank, &trainer->kept[layer].x);

    // Without a middle to keep, the MLP adds to attention's output in place: one tensor, first the
    // middle, then the next block's input.
    up_range_begin(rank, "attn", (int)layer);
    struct up_tensor *mid =
        up_alloc(rank, all ? UP_TAG_LAYER(ATTENTION, "x.mid", layer) : next, x->dtype, x->shape);
    up_attention_forward(trainer, layer, x, mid, keep, false);
    up_range_end(rank);

    up_range_begin(rank, "mlp", (int)layer);
    // The weights' cast keeps memory busy, so it comes behind the copy, beside the products.
    struct up_tensor *out = all ? copy_of(trainer, mid, next) : mid;
    if (!last) up_unit_prefetch(units, up_units_block(units, layer + 1));
    up_mlp_forward(trainer, layer, mid, out, all);
    up_range_end(rank);

    if (all) trainer->kept[layer].x_mid = mid;
    up_unit_drop(units, unit);
    up_trainer_advance(trainer, 1);
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
    const struct up_tensor *x = kept->x.device;
    mid = up_alloc(trainer->rank, UP_TAG_LAYER(ATTENTION, "x.mid", layer), x->dtype, x->shape);
    if (up_config_checkpoint(trainer->config, layer) == UP_CHECKPOINT_ATTN)
        up_attention_residual(trainer, layer, x, mid);
    else
        up_attention_forward(trainer, layer, x, mid, UP_CHECKPOINT_ATTN, true);
    up_range_end(trainer->rank);
    return mid;
}

void up_block_backward(struct up_trainer *trainer, int64_t layer, struct up_tensor *d)
{
    struct up_rank *rank = trainer->rank;
    struct up_units *units = &trainer->units;
    struct up_unit *unit = up_units_block(units, layer);
    struct up_kept *kept = &trainer->kept[layer];
    up_unit_acquire(units, unit);
    up_fetch_begin(rank, &kept->x, false); // already done, but for the uppermost block
    up_fetch_end(rank);
    struct up_tensor *mid = rebuild_mid(trainer, layer);
    up_unit_grads_begin(units, unit);

    up_range_begin(rank, "mlp", (int)layer);
    up_mlp_backward(trainer, layer, mid, d);
    up_free(rank, &mid);
    up_range_end(rank);

    up_range_begin(rank, "attn", (int)layer);
    up_attention_backward(trainer, layer, kept->x.device, d);
    up_stored_free(rank, &kept->x);
    up_range_end(rank);

    up_unit_grads_end(units, unit);
    up_unit_drop(units, unit);
    up_trainer_advance(trainer, 2);
}
