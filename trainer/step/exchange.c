#include "trainer/step/exchange.h"

#include <stdlib.h>

// Fills both arrays of one layout; heads_of tells each rank's heads in the stage.
static struct up_layout
lay_out(const struct up_config *config, int64_t cp_rank, int64_t stage,
        struct up_heads (*heads_of)(const struct up_config *, int64_t, int64_t), int64_t *storage)
{
    int64_t cp = config->cp, head_dim = config->model.head_dim, slot = 0;
    int64_t *slot_at = storage, *tokens_at = storage + cp + 1;
    int64_t own = heads_of(config, cp_rank, stage).count, heads = 0;
    for (int64_t r = 0; r <= cp; r++) {
        slot_at[r] = slot;
        tokens_at[r] = r < cp ? up_config_first_token(config, r) * own * head_dim
                              : config->seq * own * head_dim;
        if (r == cp) break;
        int64_t count = heads_of(config, r, stage).count;
        slot += up_config_tokens(config, cp_rank) * count * head_dim;
        heads += count;
    }
    return (struct up_layout){slot_at, tokens_at, heads, own};
}

enum up_status up_layouts_init(struct up_layouts *layouts, const struct up_config *config,
                               int64_t cp_rank, struct up_error *err)
{
    int64_t stages = up_config_stages(config), each = 2 * (config->cp + 1);
    *layouts = (struct up_layouts){0};
    layouts->storage = calloc((size_t)((stages + 1) * each), sizeof(int64_t));
    layouts->kv = calloc((size_t)stages, sizeof *layouts->kv);
    if (!layouts->storage || !layouts->kv) {
        up_layouts_release(layouts);
        return up_fail(err, UP_FAILED, "out of host memory");
    }
    layouts->query = lay_out(config, cp_rank, 0, up_config_query_heads, layouts->storage);
    for (int64_t s = 0; s < stages; s++)
        layouts->kv[s] =
            lay_out(config, cp_rank, s, up_config_kv_heads, layouts->storage + (s + 1) * each);
    return UP_OK;
}

void up_layouts_release(struct up_layouts *layouts)
{
    free(layouts->storage);
    free(layouts->kv);
    *layouts = (struct up_layouts){0};
}

// Nothing was sent, and nobody has to wait.
static const struct up_moment nowhere = {UP_STREAM_COMM, 0};

static struct up_moment exchange(struct up_rank *rank, struct up_comm *cp,
                                 struct up_tensor **tensor, struct up_tag tag,
                                 struct up_shape shape, struct up_exchange offsets)
{
    struct up_tensor *from = *tensor;
    up_stream_wait(rank, UP_STREAM_COMM, UP_STREAM_COMPUTE);
    struct up_tensor *to =
        up_alloc_on(rank, UP_SPACE_DEVICE, UP_STREAM_COMM, tag, from->dtype, shape);
    up_comm_all_to_all(rank, cp, UP_STREAM_COMM, from->data, to->data, &offsets, from->dtype);
    up_free_on(rank, tensor, UP_STREAM_COMM);
    *tensor = to;
    return up_stream_moment(rank, UP_STREAM_COMM);
}

struct up_moment up_to_heads(struct up_rank *rank, struct up_comm *cp, struct up_tensor **tensor,
                             struct up_tag tag, const struct up_layout *layout,
                             const struct up_config *config)
{
    if (config->cp == 1) return nowhere;
    return exchange(rank, cp, tensor, tag,
                    UP_SHAPE(config->seq, layout->own_heads, config->model.head_dim),
                    (struct up_exchange){layout->slot_at, layout->tokens_at});
}

struct up_moment up_to_sequence(struct up_rank *rank, struct up_comm *cp, struct up_tensor **tensor,
                                struct up_tag tag, const struct up_layout *layout,
                                const struct up_config *config, int64_t cp_rank)
{
    if (config->cp == 1) return nowhere;
    return exchange(
        rank, cp, tensor, tag,
        UP_SHAPE(up_config_tokens(config, cp_rank), layout->slots_heads, config->model.head_dim),
        (struct up_exchange){layout->tokens_at, layout->slot_at});
}
