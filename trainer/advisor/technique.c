#include "trainer/advisor/technique.h"
#include "trainer/options/options.h"

#include <stdio.h>
#include <string.h>

const char *const up_technique_names[UP_TECHNIQUE_COUNT] = {
#define UP_TECHNIQUE(id, name, does) name,
#include "trainer/advisor/techniques.def"
#undef UP_TECHNIQUE
};
const char *const up_technique_texts[UP_TECHNIQUE_COUNT] = {
#define UP_TECHNIQUE(id, name, does) does,
#include "trainer/advisor/techniques.def"
#undef UP_TECHNIQUE
};

enum { TILE = 4096, LOSS_TILE = 1024 }; // --stack's
enum { LEAST_TILE_CUDA = 256, LEAST_TILE_CPU = 16, LEAST_TILES = 4 };

int64_t up_technique_tile(const struct up_config *config, int64_t usual)
{
    int64_t local = config->batch * up_config_tokens(config, 0);
    int64_t least = config->as == UP_DEVICE_CUDA ? LEAST_TILE_CUDA : LEAST_TILE_CPU;
    while (usual > least && usual > local / LEAST_TILES) usual /= 2;
    return usual;
}

static bool set_tile(const struct up_config *config, int64_t usual, int64_t *tile)
{
    int64_t local = config->batch * up_config_tokens(config, 0);
    if (*tile && *tile < local) return false; // on already
    int64_t wanted = up_technique_tile(config, usual);
    if (wanted >= local) return false;
    *tile = wanted;
    return true;
}

// The smallest number of heads a stage that is a multiple of cp and divides all heads: cp itself.
static void mend_stages(struct up_config *config)
{
    if (config->upipe && (config->upipe % config->cp || config->model.heads % config->upipe))
        config->upipe = config->cp;
}

bool up_config_set_cp(const struct up_config *from, int64_t cp, struct up_config *to)
{
    int64_t ranks = up_config_ranks(from), sequences = from->dp * from->accum;
    if (cp < 1 || ranks % cp || from->model.heads % cp || from->seq < cp) return false;
    int64_t dp = ranks / cp;
    if (sequences % dp) return false;
    struct up_config made = *from;
    made.cp = cp;
    made.dp = dp;
    made.accum = sequences / dp;
    mend_stages(&made);
    *to = made;
    return true;
}

static bool widen_cp(const struct up_config *from, struct up_config *to)
{
    for (int64_t cp = up_config_ranks(from); cp > from->cp; cp--)
        if (up_config_set_cp(from, cp, to)) return true;
    return false;
}

static bool halve_batch(struct up_config *c)
{
    if (c->batch < 2 || c->batch % 2) return false;
    c->batch /= 2;
    c->accum *= 2;
    return true;
}

static bool smaller_stages(struct up_config *c)
{
    if (up_config_stage_heads(c) <= c->cp) return false;
    c->upipe = c->cp;
    return true;
}

static bool checkpoint(struct up_config *c, enum up_checkpoint kind)
{
    if (c->checkpoint != UP_CHECKPOINT_NONE) return false;
    c->checkpoint = kind;
    c->attn_layers = up_config_layers(c);
    return true;
}

static bool apply(struct up_config *c, enum up_technique technique)
{
    switch (technique) {
    case UP_TECHNIQUE_FSDP:
        if (c->fsdp || up_config_ranks(c) == 1) return false;
        return c->fsdp = true;
    case UP_TECHNIQUE_ULYSSES:
        return widen_cp(c, c);
    case UP_TECHNIQUE_CHECKPOINT:
        return checkpoint(c, UP_CHECKPOINT_BLOCK);
    case UP_TECHNIQUE_CHECKPOINT_ATTN:
        return checkpoint(c, UP_CHECKPOINT_ATTN);
    case UP_TECHNIQUE_OFFLOAD:
        if (c->checkpoint == UP_CHECKPOINT_NONE || c->offload_layers >= up_config_layers(c))
            return false;
        c->offload_layers = up_config_layers(c);
        return true;
    case UP_TECHNIQUE_TILE_LOSS:
        return set_tile(c, LOSS_TILE, &c->tile_loss);
    case UP_TECHNIQUE_TILE_MLP:
        return set_tile(c, TILE, &c->tile_mlp);
    case UP_TECHNIQUE_TILE_ATTN:
        return set_tile(c, TILE, &c->tile_attn);
    case UP_TECHNIQUE_UPIPE:
        return smaller_stages(c);
    case UP_TECHNIQUE_OPTIMIZER:
        if (c->optimizer_host) return false;
        return c->optimizer_host = true;
    case UP_TECHNIQUE_MICRO_BATCH:
        return halve_batch(c);
    default:
        UP_BUG("unknown technique %d", technique);
    }
}

bool up_technique_apply(const struct up_config *from, enum up_technique technique,
                        struct up_config *to)
{
    struct up_config made = *from;
    struct up_error error;
    if (!apply(&made, technique) || up_config_check(&made, &error)) return false;
    *to = made;
    return true;
}

/* --- Changes as options --------------------------------------------------------------------------
 */

// In the order in which they are said.
static const char *const said[] = {"seq",      "batch",      "accum",   "cp",        "dp",
                                   "fsdp",     "checkpoint", "offload", "optimizer", "tile-loss",
                                   "tile-mlp", "tile-attn",  "upipe"};

// What an option is for the config, as one would type it.
static void option_text(const struct up_option *option, const struct up_config *config, char *text,
                        size_t size)
{
    struct up_train_options options = {.model = config->model.name,
                                       .seq = config->seq,
                                       .batch = config->batch,
                                       .accum = config->accum};
    up_train_options_settle(&options, config);
    up_option_text(option, &options, text, size);
    int64_t count;
    if (option->kind == UP_OPTION_SIZE && up_parse_integer(text, &count))
        up_format_count(text, count);
}

// The others of ranks = cp x dp follow from the one that changes: both are said.
static bool differs(const struct up_option *option, const struct up_config *from,
                    const struct up_config *to)
{
    char before[64], after[64];
    if (!strcmp(option->name, "dp") && from->cp != to->cp) return true;
    option_text(option, from, before, sizeof before);
    option_text(option, to, after, sizeof after);
    return strcmp(before, after) != 0;
}

void up_config_change_text(const struct up_config *from, const struct up_config *to, char *text,
                           size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < UP_COUNT(said) && used < size; i++) {
        const struct up_option *option = up_option_find(up_train_option_table, said[i]);
        char value[64];
        if (!differs(option, from, to)) continue;
        option_text(option, to, value, sizeof value);
        used += (size_t)snprintf(text + used, size - used, "%s--%s %s", used ? " " : "",
                                 option->name, value);
    }
}
