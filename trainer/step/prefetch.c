/* What the backward of the next block needs, begun to be fetched in the present one's. */
#include "trainer/step/parts.h"

/* Attention's outputs, from which the stream between attention and MLP is made again: while the
 * kernel of the block above runs they come for nothing, later their products wait for them (by
 * forecast 1% of a step of Llama3-8B at 128K tokens on two GPUs). Long ones come with their stages:
 * of 512K tokens it would be 0.2%, and they would be there at attention's peak.
 *
 * How long those of rank 0 are counts for all, which has the most tokens: a rank with one less must
 * not fetch what rank 0 does not, and be the fuller for it. */
static bool outputs_come_early(const struct up_config *config)
{
    static const int64_t most_bytes = 512 << 20;
    int64_t row = config->model.heads * config->model.head_dim * up_dtype_bytes[config->dtype];
    return config->batch * up_config_tokens(config, 0) * row <= most_bytes;
}

static void prefetch_outputs(struct up_trainer *trainer, int64_t layer)
{
    struct up_stored *o = trainer->kept[layer].o;
    int64_t slots = up_config_stages(trainer->config) * up_config_passes(trainer->config);
    if (!outputs_come_early(trainer->config)) return;
    for (int64_t i = 0; i < slots; i++) up_fetch_begin(trainer->rank, &o[i], true);
}

void up_prefetch_below(struct up_trainer *trainer, int64_t layer)
{
    if (layer == 0) return;
    up_fetch_begin(trainer->rank, &trainer->kept[layer - 1].x, false);
    prefetch_outputs(trainer, layer - 1);
    up_unit_prefetch(&trainer->units, up_units_block(&trainer->units, layer - 1));
}
