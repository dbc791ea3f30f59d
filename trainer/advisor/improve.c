/* From a config that fits to a faster one: one thing after the other is changed, as long as that
 * makes it faster, what blocks keep being shared anew between device and host each time. */
#include "trainer/advisor/advisor_impl.h"

#include <stdlib.h>

static int options_on(const struct up_config *c)
{
    return c->fsdp + c->optimizer_host + up_checkpoint_order(c) + (c->tile_mlp > 0) +
           (c->tile_attn > 0) + (c->tile_loss > 0) + (up_config_stage_heads(c) < c->model.heads);
}

// Faster by two thousandths, or not slower with fewer options: less is not worth a change.
static bool is_better(const struct up_candidate *a, const struct up_candidate *b)
{
    double x = a->forecast->step_s, y = b->forecast->step_s;
    return x < y * 0.998 || (x <= y && options_on(&a->config) < options_on(&b->config));
}

enum { MAX_MOVES = 128 };

// Configs one change away, with what blocks keep as is fastest: nothing in host memory, and
// attention's output of all, where any is kept.
struct moves {
    struct up_candidate all[MAX_MOVES];
    int count;
};

// Does not fit by arithmetic, however many blocks keep attention's output and wherever that waits.
static bool cannot_be_shared(const struct up_config *config, const struct up_limits *limits)
{
    struct up_config shared = *config;
    if (config->checkpoint != UP_CHECKPOINT_NONE) {
        shared.checkpoint = UP_CHECKPOINT_BLOCK;
        shared.offload_layers = up_most_sent(&shared, limits);
    }
    return up_cannot_fit(&shared, limits);
}

static void add_move(struct moves *moves, const struct up_limits *limits, struct up_config config)
{
    struct up_error error;
    config.offload_layers = 0;
    config.attn_layers = up_config_layers(&config);
    if (moves->count == MAX_MOVES || up_config_check(&config, &error)) return;
    if (cannot_be_shared(&config, limits)) return;
    moves->all[moves->count++].config = config;
}

static void add_kept_moves(struct moves *moves, const struct up_limits *limits,
                           struct up_config config)
{
    static const enum up_checkpoint kinds[] = {UP_CHECKPOINT_NONE, UP_CHECKPOINT_ATTN,
                                               UP_CHECKPOINT_BLOCK};
    for (int k = 0; k < UP_COUNT(kinds); k++) {
        config.checkpoint = kinds[k];
        add_move(moves, limits, config);
    }
}

static void add_stage_moves(struct moves *moves, const struct up_limits *limits,
                            struct up_config config)
{
    int64_t heads = config.model.heads;
    for (int64_t u = config.cp; u <= heads; u += config.cp) {
        config.upipe = u == heads ? 0 : u;
        if (heads % u == 0) add_move(moves, limits, config);
    }
}

// Slices of the usual size, or none, where the run has none.
static void add_slice_moves(struct moves *moves, const struct up_limits *limits,
                            const struct up_config *from, const struct up_config *config)
{
    static const size_t tiles[] = {offsetof(struct up_config, tile_attn),
                                   offsetof(struct up_config, tile_mlp),
                                   offsetof(struct up_config, tile_loss)};
    struct up_config sliced = *config;
    up_slice_all(&sliced);
    for (int i = 0; i < UP_COUNT(tiles); i++) {
        struct up_config other = *config;
        int64_t *tile = (int64_t *)((char *)&other + tiles[i]);
        if (*(const int64_t *)((const char *)from + tiles[i])) continue;
        *tile = *tile ? 0 : *(const int64_t *)((const char *)&sliced + tiles[i]);
        add_move(moves, limits, other);
    }
}

// Where model state is and how many share a sequence: what makes room within a rank may be needed
// with it, slices or few heads a stage as well.
static void add_layout(struct moves *moves, const struct up_limits *limits, struct up_config config)
{
    add_move(moves, limits, config);
    up_slice_all(&config);
    add_move(moves, limits, config);
    config.upipe = config.cp < config.model.heads ? config.cp : 0;
    add_move(moves, limits, config);
}

static void add_layout_moves(struct moves *moves, const struct up_limits *limits,
                             const struct up_config *config)
{
    struct up_config other = *config;
    add_layout(moves, limits, other);
    other.optimizer_host = !config->optimizer_host;
    add_layout(moves, limits, other);
    other = *config;
    other.fsdp = !config->fsdp;
    if (up_config_ranks(config) > 1) add_layout(moves, limits, other);
    for (int64_t cp = 1; cp <= up_config_ranks(config); cp++)
        if (cp != config->cp && up_config_set_cp(config, cp, &other))
            add_layout(moves, limits, other);
}

static void add_moves(struct moves *moves, const struct up_limits *limits,
                      const struct up_config *from, const struct up_config *config)
{
    add_kept_moves(moves, limits, *config);
    add_stage_moves(moves, limits, *config);
    add_slice_moves(moves, limits, from, config);
    add_layout_moves(moves, limits, config); // of very many ranks, as many as there is room for
}

// As few blocks in host memory as fit, which `at` does with more.
static enum up_status keep_on_device(const struct up_search *search, struct up_candidate *at,
                                     struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t low = 1, high = at->config.offload_layers;
    while (low < high) {
        struct up_config fewer = at->config;
        struct up_candidate here;
        enum up_room room;
        fewer.offload_layers = (low + high) / 2;
        UP_TRY(up_try_config(search, &fewer, UP_FORECAST_BRIEF, &here, &room, err));
        bool good = room == UP_ROOM_FITS && here.forecast->step_s <= at->forecast->step_s;
        if (good) *at = here;
        if (good)
            high = fewer.offload_layers;
        else
            low = fewer.offload_layers + 1;
    }
out:
    return rc;
}

// What blocks keep, shared between device and host so that it fits. Most that does not is known
// without a forecast.
static enum up_status share(const struct up_search *search, const struct up_config *config,
                            struct up_candidate *at, bool *fits, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_config sent = *config;
    enum up_room room = UP_ROOM_DEVICE;
    if (!up_cannot_fit(config, search->limits))
        UP_TRY(up_try_config(search, config, UP_FORECAST_BRIEF, at, &room, err));
    if (room != UP_ROOM_FITS && config->checkpoint != UP_CHECKPOINT_NONE) {
        sent.offload_layers = up_most_sent(config, search->limits);
        if (!up_cannot_fit(&sent, search->limits))
            UP_TRY(up_share_kept(search, &sent, at, &room, err));
    }
out:
    *fits = room == UP_ROOM_FITS;
    return rc;
}

// Attention's output kept by as many blocks as there is room for, `least` or more: all are too
// many.
static enum up_status share_attention(const struct up_search *search,
                                      const struct up_config *config, int64_t least,
                                      struct up_candidate *at, bool *fits, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t low = least - 1, high = up_config_layers(config) - 1, next = least;
    while (low < high) {
        struct up_config some = *config;
        struct up_candidate here;
        bool good;
        some.attn_layers = next;
        UP_TRY(share(search, &some, &here, &good, err));
        if (good) *at = here;
        *fits = *fits || good;
        if (good)
            low = next;
        else
            high = next - 1;
        // Mostly there is no room for even one more.
        next = low == least ? least + 1 : (low + high + 1) / 2;
    }
out:
    return rc;
}

// `config`, whose blocks keep nothing in host memory, changed in that so that it fits and may be
// better than `best`.
static enum up_status make_fit(const struct up_search *search, const struct up_config *config,
                               const struct up_candidate *best, struct up_candidate *at, bool *fits,
                               struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool alike = best->config.cp == config->cp && best->config.checkpoint == UP_CHECKPOINT_ATTN;
    UP_TRY(share(search, config, at, fits, err));
    if (!*fits && config->checkpoint == UP_CHECKPOINT_ATTN)
        UP_TRY(
            share_attention(search, config, alike ? best->config.attn_layers : 1, at, fits, err));
    if (*fits) UP_TRY(keep_on_device(search, at, err));
out:
    return rc;
}

static bool same_kept(const struct up_config *a, const struct up_config *b)
{
    return a->cp == b->cp && a->checkpoint == b->checkpoint;
}

// The change alone: what blocks keep stays where it is.
static struct up_config kept_as_in(const struct up_config *config, const struct up_config *now)
{
    struct up_config alike = *config;
    alike.attn_layers = now->attn_layers;
    alike.offload_layers = now->offload_layers;
    return alike;
}

// Forecasts that may_be_better asks for, at once.
static enum up_status ask_alike(const struct up_search *search, const struct moves *moves,
                                const struct up_candidate *best, struct up_error *err)
{
    struct up_candidate alike[MAX_MOVES], *list[MAX_MOVES] = {NULL};
    int count = 0;
    for (int i = 0; i < moves->count; i++) {
        const struct up_candidate *move = &moves->all[i];
        if (!same_kept(&move->config, &best->config) || !is_better(move, best)) continue;
        alike[count].config = kept_as_in(&move->config, &best->config);
        list[count] = &alike[count];
        count++;
    }
    return up_forecaster_ask_all(search->forecaster, list, count, UP_FORECAST_BRIEF, err);
}

/* False where a change alone makes nothing faster, nor with what the room that it leaves is good
 * for, attention's output of more blocks: what most changes come to, known by few forecasts. What
 * blocks keep must be looked for from the beginning with another cp or checkpoint, for which more
 * has to be in it. */
static enum up_status may_be_better(const struct up_search *search, const struct up_candidate *move,
                                    const struct up_candidate *best, bool *may,
                                    struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_config alike = kept_as_in(&move->config, &best->config);
    int64_t layers = up_config_layers(&alike);
    struct up_candidate here;
    enum up_room room;
    bool fits;
    *may = move->forecast->step_s < best->forecast->step_s * 0.995;
    if (!same_kept(&move->config, &best->config)) return UP_OK;
    UP_TRY(up_try_config(search, &alike, UP_FORECAST_BRIEF, &here, &room, err));
    *may = is_better(&here, best);
    fits = room == UP_ROOM_FITS;
    for (int64_t more = 1; !*may && fits && alike.attn_layers < layers; more *= 2) {
        alike.attn_layers = up_min(alike.attn_layers + more, layers);
        alike.offload_layers = 0;
        UP_TRY(share(search, &alike, &here, &fits, err));
        *may = fits && is_better(&here, best);
    }
out:
    return rc;
}

// The best change of all, if one is better than none.
static enum up_status improve_once(const struct up_search *search, const struct up_config *from,
                                   struct up_candidate *best, bool *improved, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct moves moves = {.count = 0};
    struct up_candidate *list[MAX_MOVES] = {NULL};
    *improved = false;
    add_moves(&moves, search->limits, from, &best->config);
    for (int i = 0; i < moves.count; i++) list[i] = &moves.all[i];
    UP_TRY(up_forecaster_ask_all(search->forecaster, list, moves.count, UP_FORECAST_BRIEF, err));
    qsort(moves.all, (size_t)moves.count, sizeof moves.all[0], up_by_step_time);
    UP_TRY(ask_alike(search, &moves, best, err));
    for (int i = 0; i < moves.count; i++) {
        struct up_candidate here;
        bool may = false, fits;
        if (is_better(&moves.all[i], best))
            UP_TRY(may_be_better(search, &moves.all[i], best, &may, err));
        if (!may) continue;
        UP_TRY(make_fit(search, &moves.all[i].config, best, &here, &fits, err));
        if (!fits || !is_better(&here, best)) continue;
        *best = here;
        *improved = true;
    }
out:
    return rc;
}

enum up_status up_improve(const struct up_search *search, const struct up_config *from,
                          struct up_candidate *best, struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool improved = true;
    UP_TRY(keep_on_device(search, best, err));
    while (improved) UP_TRY(improve_once(search, from, best, &improved, err));
out:
    return rc;
}
