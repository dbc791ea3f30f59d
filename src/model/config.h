/* The run config: everything that the step's list of allocations depends on (docs/design.md, "the
 * exactness contract"), and nothing else but own_attention. Each technique is a number whose
 * degenerate value is the plain computation. */
#ifndef UP_MODEL_CONFIG_H
#define UP_MODEL_CONFIG_H

#include "device/device.h"
#include "model/model.h"

enum up_checkpoint { UP_CHECKPOINT_NONE, UP_CHECKPOINT_BLOCK, UP_CHECKPOINT_ATTN };

struct up_config {
    struct up_model model;
    enum up_device_kind as; // the kind of device the run is for
    enum up_dtype dtype;    // of activations and of the weights they meet
    int64_t seq;            // global tokens per sequence
    int64_t batch;          // sequences per micro-batch and data-parallel rank
    int64_t accum;          // micro-batches per step
    int64_t cp, dp;         // context- and data-parallel degrees; ranks = cp * dp
    bool fsdp;              // model state is sharded over all ranks
    bool optimizer_host;    // fp32 weights and moments live in host memory
    enum up_checkpoint checkpoint;
    int64_t attn_layers;    // under UP_CHECKPOINT_ATTN: the last so many blocks keep attention
    int64_t offload_layers; // the first so many blocks keep in host memory what they keep; 0: none
    int64_t tile_mlp, tile_loss, tile_attn; // tokens per slice; 0: off
    int64_t upipe;         // query heads per stage over the cp group; 0: off, all of them
    int64_t active_layers; // the first so many blocks are computed; 0: all. For measuring: the
                           // state of all of them is there
    bool own_attention; // upipe's own kernels alone do attention: of weight for time, not for the
                        // list nor its hash
};

static inline int64_t up_config_ranks(const struct up_config *config)
{
    return config->cp * config->dp;
}

/* The blocks that a step goes through: what "the first" and "the last N blocks" are of. */
static inline int64_t up_config_layers(const struct up_config *config)
{
    return config->active_layers ? config->active_layers : config->model.layers;
}

/* What block `layer` keeps for its backward. */
enum up_checkpoint up_config_checkpoint(const struct up_config *config, int64_t layer);

/* Whether the block's input, or its attention output, waits in host memory. The last block's input
 * is wanted at once and stays. */
bool up_config_offloads_input(const struct up_config *config, int64_t layer);
bool up_config_offloads_attention(const struct up_config *config, int64_t layer);

/* Rank r is cp rank r % cp of data-parallel replica r / cp. */
static inline int64_t up_config_cp_rank(const struct up_config *config, int64_t rank)
{
    return rank % config->cp;
}
static inline int64_t up_config_dp_rank(const struct up_config *config, int64_t rank)
{
    return rank / config->cp;
}

/* Attention goes over the batch in passes: all rows in one where nothing is exchanged, else one row
 * after the other. */
static inline int64_t up_config_passes(const struct up_config *config)
{
    return config->cp > 1 ? config->batch : 1;
}

/* Tokens of each sequence that cp rank r holds: floor(S/P) + (r < S mod P), and the first of them.
 */
int64_t up_config_tokens(const struct up_config *config, int64_t cp_rank);
int64_t up_config_first_token(const struct up_config *config, int64_t cp_rank);

/* Query heads per stage over the group, and stages. */
int64_t up_config_stage_heads(const struct up_config *config);
int64_t up_config_stages(const struct up_config *config);

/* The query heads [first, first + count) that cp rank r handles in a stage, the KV heads they use,
 * and whether K and V change for some rank between the stage before and this one (true for stage
 * 0). */
struct up_heads {
    int64_t first, count;
};
struct up_heads up_config_query_heads(const struct up_config *config, int64_t cp_rank,
                                      int64_t stage);
struct up_heads up_config_kv_heads(const struct up_config *config, int64_t cp_rank, int64_t stage);
bool up_config_kv_changes(const struct up_config *config, int64_t stage);

/* Refuses what is impossible, naming the option and the nearest legal values (UP_USAGE). */
enum up_status up_config_check(const struct up_config *config, struct up_error *err);

/* The config as JSON, and the hash of it that meta.config_hash holds (16 hex digits and a NUL). The
 * text is the caller's to free; NULL, and false, when memory is short. */
char *up_config_json(const struct up_config *config);
bool up_config_hash(const struct up_config *config, char out[17]);

#endif
