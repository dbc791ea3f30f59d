#include "model/config.h"
#include "ops/attention.h"
#include "ops/norm.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum up_checkpoint up_config_checkpoint(const struct up_config *config, int64_t layer)
{
    bool plain_block = config->checkpoint == UP_CHECKPOINT_ATTN &&
                       layer < up_config_layers(config) - config->attn_layers;
    return plain_block ? UP_CHECKPOINT_BLOCK : config->checkpoint;
}

bool up_config_offloads_input(const struct up_config *config, int64_t layer)
{
    return layer < config->offload_layers && layer + 1 < up_config_layers(config);
}

bool up_config_offloads_attention(const struct up_config *config, int64_t layer)
{
    return layer < config->offload_layers &&
           up_config_checkpoint(config, layer) == UP_CHECKPOINT_ATTN;
}

int64_t up_config_tokens(const struct up_config *config, int64_t cp_rank)
{
    return config->seq / config->cp + (cp_rank < config->seq % config->cp);
}

int64_t up_config_first_token(const struct up_config *config, int64_t cp_rank)
{
    return config->seq / config->cp * cp_rank + up_min(cp_rank, config->seq % config->cp);
}

int64_t up_config_stage_heads(const struct up_config *config)
{
    return config->upipe ? config->upipe : config->model.heads;
}

int64_t up_config_stages(const struct up_config *config)
{
    return config->model.heads / up_config_stage_heads(config);
}

struct up_heads up_config_query_heads(const struct up_config *config, int64_t cp_rank,
                                      int64_t stage)
{
    int64_t count = up_config_stage_heads(config) / config->cp;
    return (struct up_heads){config->model.heads / config->cp * cp_rank + count * stage, count};
}

struct up_heads up_config_kv_heads(const struct up_config *config, int64_t cp_rank, int64_t stage)
{
    struct up_heads query = up_config_query_heads(config, cp_rank, stage);
    int64_t group = config->model.heads / config->model.kv_heads;
    int64_t first = query.first / group;
    return (struct up_heads){first, (query.first + query.count - 1) / group - first + 1};
}

bool up_config_kv_changes(const struct up_config *config, int64_t stage)
{
    for (int64_t r = 0; r < config->cp; r++) {
        struct up_heads now = up_config_kv_heads(config, r, stage);
        if (stage == 0) return true;
        struct up_heads before = up_config_kv_heads(config, r, stage - 1);
        if (now.first != before.first || now.count != before.count) return true;
    }
    return false;
}

// What its kernels take; the cpu takes any.
static enum up_status check_for_cuda(const struct up_model *m, struct up_error *err)
{
    if (m->hidden > UP_RMSNORM_CUDA_WIDTH)
        return up_fail(err, UP_USAGE, "hidden_size: expected at most %d on cuda, found %lld",
                       UP_RMSNORM_CUDA_WIDTH, (long long)m->hidden);
    if (m->head_dim > UP_ATTENTION_CUDA_WIDTH || m->head_dim % UP_ATTENTION_CUDA_STEP)
        return up_fail(err, UP_USAGE,
                       "head_dim: expected a multiple of %d, at most %d, on cuda, found %lld",
                       UP_ATTENTION_CUDA_STEP, UP_ATTENTION_CUDA_WIDTH, (long long)m->head_dim);
    return UP_OK;
}

static enum up_status check_sizes(const struct up_config *config, struct up_error *err)
{
    // Every tensor of the step is at most tokens x widest row x 8 bytes: kept below 2^62.
    const struct up_model *m = &config->model;
    int64_t widest = up_max(up_max(m->vocab, m->ff), up_max(m->hidden, m->heads * m->head_dim));
    int64_t most = ((int64_t)1 << 58) / widest;
    if (config->seq > most || config->batch > most / config->seq)
        return up_fail(err, UP_USAGE,
                       "--seq, --batch: %lld x %lld tokens are too many: expected at most %lld",
                       (long long)config->seq, (long long)config->batch, (long long)most);
    // Those of a step, over all replicas, are counted.
    int64_t micro_batch = config->seq * config->batch, all = (int64_t)1 << 58;
    if (config->dp > all / config->accum / micro_batch)
        return up_fail(err, UP_USAGE,
                       "--dp, --accum: %lld x %lld micro-batches of %lld tokens are too many for a "
                       "step: expected at most %lld tokens in all",
                       (long long)config->dp, (long long)config->accum, (long long)micro_batch,
                       (long long)all);
    return config->as == UP_DEVICE_CUDA ? check_for_cuda(m, err) : UP_OK;
}

// The nearest n at or below and at or above `asked` that divide `total` and are multiples of `of`.
static void nearest(int64_t asked, int64_t total, int64_t of, int64_t *below, int64_t *above)
{
    *below = up_min(asked, total);
    while (*below > of && (total % *below || *below % of)) --*below;
    if (total % *below || *below % of) *below = of;
    *above = up_min(up_max(asked, of), total);
    while (total % *above || *above % of) ++*above;
}

// "2 and 4", or the one that there is.
static const char *both(char out[48], int64_t below, int64_t above)
{
    int length = snprintf(out, 48, "%lld", (long long)below);
    if (above != below) snprintf(out + length, 48 - (size_t)length, " and %lld", (long long)above);
    return out;
}

static enum up_status check_cp(const struct up_config *config, struct up_error *err)
{
    int64_t heads = config->model.heads, below, above;
    char text[48];
    if (heads % config->cp) {
        nearest(config->cp, heads, 1, &below, &above);
        if (above > config->seq) above = below; // a rank would be without tokens
        return up_fail(
            err, UP_USAGE,
            "--cp: %lld ranks do not divide the model's %lld query heads: nearest that do: %s",
            (long long)config->cp, (long long)heads, both(text, below, above));
    }
    if (config->seq < config->cp)
        return up_fail(err, UP_USAGE,
                       "--seq: %lld tokens cannot be split over %lld ranks: expected at "
                       "least %lld",
                       (long long)config->seq, (long long)config->cp, (long long)config->cp);
    return UP_OK;
}

static enum up_status check_upipe(const struct up_config *config, struct up_error *err)
{
    int64_t heads = config->model.heads, below, above;
    char text[48];
    if (!config->upipe || (heads % config->upipe == 0 && config->upipe % config->cp == 0))
        return UP_OK;
    nearest(config->upipe, heads, config->cp, &below, &above);
    return up_fail(
        err, UP_USAGE,
        "--upipe: %lld is not a divisor of the model's %lld query heads and a multiple of the "
        "%lld context-parallel ranks: nearest legal: %s",
        (long long)config->upipe, (long long)heads, (long long)config->cp,
        both(text, below, above));
}

enum up_status up_config_check(const struct up_config *config, struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(check_sizes(config, err));
    UP_TRY(check_cp(config, err));
    UP_TRY(check_upipe(config, err));
    if (config->offload_layers && config->checkpoint == UP_CHECKPOINT_NONE)
        UP_TRY(up_fail(err, UP_USAGE,
                       "--offload host: expected --checkpoint block or attn beside it: without "
                       "checkpointing everything would have to be sent away"));
out:
    return rc;
}

static json_t *model_json(const struct up_model *m)
{
    return json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:b}", "family", m->family, "layers",
                     (json_int_t)m->layers, "hidden", (json_int_t)m->hidden, "ff",
                     (json_int_t)m->ff, "heads", (json_int_t)m->heads, "kv_heads",
                     (json_int_t)m->kv_heads, "head_dim", (json_int_t)m->head_dim, "vocab",
                     (json_int_t)m->vocab, "qk_norm", m->qk_norm, "tied", m->tied);
}

char *up_config_json(const struct up_config *config)
{
    static const char *const checkpoints[] = {"none", "block", "attn"};
    json_t *root = json_pack(
        "{s:o,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:b,s:b,s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "model",
        model_json(&config->model), "as", up_device_kind_names[config->as], "dtype",
        up_dtype_names[config->dtype], "seq", (json_int_t)config->seq, "batch",
        (json_int_t)config->batch, "accum", (json_int_t)config->accum, "cp", (json_int_t)config->cp,
        "dp", (json_int_t)config->dp, "fsdp", config->fsdp, "optimizer_host",
        config->optimizer_host, "checkpoint", checkpoints[config->checkpoint], "attn_layers",
        (json_int_t)(config->checkpoint == UP_CHECKPOINT_ATTN ? config->attn_layers : 0),
        "offload_layers", (json_int_t)config->offload_layers, "tile_mlp",
        (json_int_t)config->tile_mlp, "tile_loss", (json_int_t)config->tile_loss, "tile_attn",
        (json_int_t)config->tile_attn, "upipe", (json_int_t)up_config_stage_heads(config));
    // Left out where all are: runs of before then keep their hash.
    if (root && up_config_layers(config) < config->model.layers &&
        json_object_set_new(root, "active_layers", json_integer(config->active_layers))) {
        json_decref(root);
        return NULL;
    }
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(root);
    return text;
}

bool up_config_hash(const struct up_config *config, char out[17])
{
    char *text = up_config_json(config);
    uint64_t hash = 0;
    for (const char *c = text ? text : ""; *c; c++) hash = up_hash64(hash ^ (unsigned char)*c);
    snprintf(out, 17, "%016llx", (unsigned long long)hash);
    free(text);
    return text != NULL;
}
