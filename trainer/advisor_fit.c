/* Configs that fit: the smallest change, and the fastest one.
 *
 * The fastest is looked for among all combinations of where model state is (fsdp, optimizer), cp,
 * and what blocks keep and where; each with slices everywhere, then with few heads a stage, where
 * it does not fit otherwise. Combinations come by the number of their techniques, and those that
 * have all techniques of one that fits already, and more, are left out; so are those that cannot
 * fit by arithmetic. From the best of them on one thing after the other is changed, as long as that
 * makes it faster, what blocks keep being shared anew between device and host each time. */
#include "trainer/advisor_impl.h"

#include <stdlib.h>

enum up_status up_try_config(struct up_forecaster *forecaster, const struct up_config *config,
                             const struct up_limits *limits, enum up_forecast_depth depth,
                             struct up_candidate *candidate, enum up_room *room,
                             struct up_error *err)
{
    const struct up_forecast *forecast;
    enum up_status rc = up_forecaster_ask(forecaster, config, depth, &forecast, err);
    if (rc) return rc;
    *candidate = (struct up_candidate){*config, forecast};
    *room = up_limits_check(limits, config, forecast);
    return UP_OK;
}

/* --- The leanest ---------------------------------------------------------------------------------
 */

int64_t up_widest_cp(const struct up_config *config)
{
    struct up_config made;
    int64_t cp = up_config_ranks(config);
    while (cp > 1 && !up_config_set_cp(config, cp, &made)) cp--;
    return cp;
}

static void slice(const struct up_config *config, int64_t usual, int64_t *tile)
{
    int64_t local = config->batch * up_config_tokens(config, 0);
    int64_t wanted = up_technique_tile(config, usual);
    if ((!*tile || *tile >= local) && wanted < local) *tile = wanted;
}

void up_slice_all(struct up_config *config)
{
    slice(config, 4096, &config->tile_mlp);
    slice(config, 4096, &config->tile_attn);
    slice(config, 1024, &config->tile_loss);
}

struct up_config up_leanest(const struct up_config *config, bool optimizer_host)
{
    struct up_config lean = *config;
    lean.accum *= lean.batch;
    lean.batch = 1;
    up_config_set_cp(&lean, up_widest_cp(&lean), &lean);
    lean.fsdp = up_config_ranks(&lean) > 1;
    lean.optimizer_host = optimizer_host;
    lean.checkpoint = UP_CHECKPOINT_BLOCK;
    lean.attn_layers = lean.offload_layers = up_config_layers(&lean);
    lean.upipe = lean.cp < lean.model.heads ? lean.cp : 0;
    up_slice_all(&lean);
    return lean;
}

// How many blocks' outputs the host can take, as far as arithmetic tells: at most so many.
static int64_t blocks_that_go(const struct up_config *config, const struct up_limits *limits,
                              int64_t room)
{
    struct up_config fewer = *config;
    int64_t ranks = up_config_ranks(config), low = 0, high = config->offload_layers;
    if (limits->node_ranks) ranks = up_min(ranks, limits->node_ranks);
    while (low < high) {
        int64_t need;
        fewer.offload_layers = (low + high + 1) / 2;
        bool over = __builtin_mul_overflow(up_limits_host_floor(&fewer), ranks, &need);
        if (!over && need <= room)
            low = fewer.offload_layers;
        else
            high = fewer.offload_layers - 1;
    }
    return low;
}

/* The device is no better off with fewer than go, and the host no worse. Where device memory is the
 * host's, what goes makes no difference to the sum. */
enum up_status up_share_kept(struct up_forecaster *forecaster, const struct up_config *config,
                             const struct up_limits *limits, struct up_candidate *candidate,
                             enum up_room *room, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_config fewer = *config;
    int64_t spare = limits->host_bytes;
    for (int tries = 0; tries < 3; tries++) {
        if (limits->host_bytes && !limits->shared && config->offload_layers)
            fewer.offload_layers = blocks_that_go(config, limits, spare);
        UP_TRY(up_try_config(forecaster, &fewer, limits, UP_FORECAST_BRIEF, candidate, room, err));
        if (*room != UP_ROOM_HOST || limits->shared) break;
        // Besides the blocks there is a little more, which the arithmetic does not know.
        int64_t need = up_limits_host_need(limits, &fewer, candidate->forecast);
        spare -= up_max(1, need - limits->host_bytes);
        if (spare < 0 || !fewer.offload_layers) break;
    }
out:
    return rc;
}

enum up_status up_advise_leanest(struct up_forecaster *forecaster, const struct up_config *config,
                                 const struct up_limits *limits, struct up_candidate *best,
                                 bool *found, enum up_room *room, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_candidate here[2]; // the optimizer's state on the device, in host memory
    enum up_room lacks[2];
    for (int host = 0; host <= 1; host++) {
        struct up_config lean = up_leanest(config, host);
        UP_TRY(up_share_kept(forecaster, &lean, limits, &here[host], &lacks[host], err));
    }
    // Where neither fits, the one that could use less device memory says what stops it.
    bool first = lacks[0] == UP_ROOM_FITS &&
                 (lacks[1] != UP_ROOM_FITS || here[0].forecast->step_s <= here[1].forecast->step_s);
    bool host_stops = lacks[0] == UP_ROOM_HOST || lacks[1] == UP_ROOM_HOST;
    *best = here[!first];
    *found = lacks[0] == UP_ROOM_FITS || lacks[1] == UP_ROOM_FITS;
    *room = *found ? UP_ROOM_FITS : host_stops ? UP_ROOM_HOST : UP_ROOM_DEVICE;
out:
    return rc;
}

/* --- The lattice ---------------------------------------------------------------------------------
 */

enum { MAX_COMBINATIONS = 512 };

// A combination of techniques, its heads a stage not yet chosen.
struct combination {
    struct up_config config, sliced; // with the run's own slices, and everywhere
    int level;                       // how many techniques
    bool skipped;                    // a simpler one fits, or it cannot
    bool fits;
    int way;                  // enum way: what it took
    struct up_candidate best; // where it fits
};

struct lattice {
    struct up_forecaster *forecaster;
    const struct up_limits *limits;
    struct combination *all;
    int count;
};

static int level_of(const struct up_config *c)
{
    return c->fsdp + c->optimizer_host + (c->offload_layers > 0) +
           (c->checkpoint == UP_CHECKPOINT_NONE   ? 0
            : c->checkpoint == UP_CHECKPOINT_ATTN ? 1
                                                  : 2);
}

static int checkpoint_order(const struct up_config *c)
{
    return c->checkpoint == UP_CHECKPOINT_NONE ? 0 : c->checkpoint == UP_CHECKPOINT_ATTN ? 1 : 2;
}

static bool has_all_of(const struct up_config *more, const struct up_config *less)
{
    // Sharding need not be slower: gradients are then on their way before the backward ends.
    return more->cp == less->cp && more->fsdp == less->fsdp &&
           more->optimizer_host >= less->optimizer_host &&
           more->offload_layers >= less->offload_layers &&
           checkpoint_order(more) >= checkpoint_order(less);
}

static bool cannot_fit(const struct up_config *c, const struct up_limits *limits)
{
    int64_t ranks = up_config_ranks(c), device = up_limits_device_floor(c), host;
    if (limits->node_ranks) ranks = up_min(ranks, limits->node_ranks);
    if (limits->device_bytes && device > limits->device_bytes) return true;
    int64_t each = up_limits_host_floor(c) + (limits->shared ? device : 0);
    return limits->host_bytes &&
           (__builtin_mul_overflow(each, ranks, &host) || host > limits->host_bytes);
}

static void add(struct lattice *lattice, const struct up_config *config)
{
    struct up_error error;
    if (lattice->count == MAX_COMBINATIONS || up_config_check(config, &error)) return;
    struct combination *c = &lattice->all[lattice->count++];
    *c = (struct combination){.config = *config, .sliced = *config, .level = level_of(config)};
    up_slice_all(&c->sliced);
    c->skipped = cannot_fit(config, lattice->limits);
}

// All ways to keep what blocks keep.
static void add_kept(struct lattice *lattice, struct up_config config)
{
    static const enum up_checkpoint kinds[] = {UP_CHECKPOINT_NONE, UP_CHECKPOINT_ATTN,
                                               UP_CHECKPOINT_BLOCK};
    config.attn_layers = up_config_layers(&config);
    for (int k = 0; k < UP_COUNT(kinds); k++)
        for (int sent = 0; sent <= (kinds[k] != UP_CHECKPOINT_NONE); sent++) {
            config.checkpoint = kinds[k];
            config.offload_layers = sent ? up_config_layers(&config) : 0;
            add(lattice, &config);
        }
}

static void build(struct lattice *lattice, const struct up_config *from)
{
    int64_t ranks = up_config_ranks(from);
    for (int64_t cp = 1; cp <= ranks; cp++) {
        struct up_config config;
        if (!up_config_set_cp(from, cp, &config)) continue;
        config.upipe = 0;
        for (int fsdp = 0; fsdp <= (ranks > 1); fsdp++)
            for (int host = 0; host <= 1; host++) {
                config.fsdp = fsdp;
                config.optimizer_host = host;
                add_kept(lattice, config);
            }
    }
}

/* --- Heads a stage -------------------------------------------------------------------------------
 */

// Ways to make room within a combination, by what they cost: none, slices, few heads as well.
enum way { WAY_PLAIN, WAY_SLICED, WAY_STAGED, WAYS };

// False where it is the same as the way before.
static bool take_way(const struct combination *c, enum way way, struct up_config *config)
{
    *config = way == WAY_PLAIN ? c->config : c->sliced;
    if (way == WAY_STAGED) config->upipe = config->cp;
    if (way == WAY_SLICED)
        return c->sliced.tile_mlp != c->config.tile_mlp ||
               c->sliced.tile_attn != c->config.tile_attn ||
               c->sliced.tile_loss != c->config.tile_loss;
    return way == WAY_PLAIN || config->cp < config->model.heads;
}

// Tries all combinations of a level that do not fit yet, at once.
static enum up_status try_level(struct lattice *lattice, int level, enum way way,
                                struct up_error *err)
{
    struct up_candidate *list[MAX_COMBINATIONS] = {NULL};
    struct combination *which[MAX_COMBINATIONS];
    int count = 0;
    for (int i = 0; i < lattice->count; i++) {
        struct combination *c = &lattice->all[i];
        if (c->level != level || c->skipped || c->fits || !take_way(c, way, &c->best.config))
            continue;
        c->way = way;
        which[count] = c;
        list[count++] = &c->best;
    }
    enum up_status rc =
        up_forecaster_ask_all(lattice->forecaster, list, count, UP_FORECAST_BRIEF, err);
    for (int i = 0; i < count && !rc; i++)
        which[i]->fits =
            up_limits_check(lattice->limits, &list[i]->config, list[i]->forecast) == UP_ROOM_FITS;
    return rc;
}

static void skip_dominated(struct lattice *lattice)
{
    for (int i = 0; i < lattice->count; i++)
        for (int j = 0; j < lattice->count && lattice->all[i].fits; j++) {
            struct combination *c = &lattice->all[j];
            if (j != i && !c->fits && c->level > lattice->all[i].level &&
                has_all_of(&c->config, &lattice->all[i].config) && lattice->all[i].way == WAY_PLAIN)
                c->skipped = true;
        }
}

enum { LEVELS = 6 }; // 0: no technique

static enum up_status try_all(struct lattice *lattice, struct up_error *err)
{
    enum up_status rc = UP_OK;
    for (int level = 0; level < LEVELS; level++) {
        for (int way = 0; way < WAYS; way++) UP_TRY(try_level(lattice, level, (enum way)way, err));
        skip_dominated(lattice);
    }
out:
    return rc;
}

static struct combination *fastest(struct lattice *lattice)
{
    struct combination *best = NULL;
    for (int i = 0; i < lattice->count; i++) {
        struct combination *c = &lattice->all[i];
        if (c->fits && (!best || c->best.forecast->step_s < best->best.forecast->step_s)) best = c;
    }
    return best;
}

/* --- One change after the other ------------------------------------------------------------------
 */

static int options_on(const struct up_config *c)
{
    return c->fsdp + c->optimizer_host + checkpoint_order(c) + (c->tile_mlp > 0) +
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

// All blocks, or as many as the host can take by arithmetic.
static int64_t most_sent(const struct up_config *config, const struct up_limits *limits)
{
    struct up_config sent = *config;
    sent.offload_layers = up_config_layers(config);
    if (!limits->host_bytes || limits->shared) return sent.offload_layers;
    return blocks_that_go(&sent, limits, limits->host_bytes);
}

// Does not fit by arithmetic, however many blocks keep attention's output and wherever that waits.
static bool cannot_be_shared(const struct up_config *config, const struct up_limits *limits)
{
    struct up_config shared = *config;
    if (config->checkpoint != UP_CHECKPOINT_NONE) {
        shared.checkpoint = UP_CHECKPOINT_BLOCK;
        shared.offload_layers = most_sent(&shared, limits);
    }
    return cannot_fit(&shared, limits);
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
static enum up_status keep_on_device(struct lattice *lattice, struct up_candidate *at,
                                     struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t low = 1, high = at->config.offload_layers;
    while (low < high) {
        struct up_config fewer = at->config;
        struct up_candidate here;
        enum up_room room;
        fewer.offload_layers = (low + high) / 2;
        UP_TRY(up_try_config(lattice->forecaster, &fewer, lattice->limits, UP_FORECAST_BRIEF, &here,
                             &room, err));
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
static enum up_status share(struct lattice *lattice, const struct up_config *config,
                            struct up_candidate *at, bool *fits, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_config sent = *config;
    enum up_room room = UP_ROOM_DEVICE;
    if (!cannot_fit(config, lattice->limits))
        UP_TRY(up_try_config(lattice->forecaster, config, lattice->limits, UP_FORECAST_BRIEF, at,
                             &room, err));
    if (room != UP_ROOM_FITS && config->checkpoint != UP_CHECKPOINT_NONE) {
        sent.offload_layers = most_sent(config, lattice->limits);
        if (!cannot_fit(&sent, lattice->limits))
            UP_TRY(up_share_kept(lattice->forecaster, &sent, lattice->limits, at, &room, err));
    }
out:
    *fits = room == UP_ROOM_FITS;
    return rc;
}

// Attention's output kept by as many blocks as there is room for, `least` or more: all are too
// many.
static enum up_status share_attention(struct lattice *lattice, const struct up_config *config,
                                      int64_t least, struct up_candidate *at, bool *fits,
                                      struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t low = least - 1, high = up_config_layers(config) - 1, next = least;
    while (low < high) {
        struct up_config some = *config;
        struct up_candidate here;
        bool good;
        some.attn_layers = next;
        UP_TRY(share(lattice, &some, &here, &good, err));
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
static enum up_status make_fit(struct lattice *lattice, const struct up_config *config,
                               const struct up_candidate *best, struct up_candidate *at, bool *fits,
                               struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool alike = best->config.cp == config->cp && best->config.checkpoint == UP_CHECKPOINT_ATTN;
    UP_TRY(share(lattice, config, at, fits, err));
    if (!*fits && config->checkpoint == UP_CHECKPOINT_ATTN)
        UP_TRY(
            share_attention(lattice, config, alike ? best->config.attn_layers : 1, at, fits, err));
    if (*fits) UP_TRY(keep_on_device(lattice, at, err));
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
static enum up_status ask_alike(struct lattice *lattice, const struct moves *moves,
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
    return up_forecaster_ask_all(lattice->forecaster, list, count, UP_FORECAST_BRIEF, err);
}

/* False where a change alone makes nothing faster, and leaves no room for one more block's
 * attention output: what most changes come to, known by few forecasts. What blocks keep must be
 * looked for from the beginning with another cp or checkpoint, for which more has to be in it. */
static enum up_status may_be_better(struct lattice *lattice, const struct up_candidate *move,
                                    const struct up_candidate *best, bool *may,
                                    struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_config alike = kept_as_in(&move->config, &best->config);
    struct up_candidate here;
    enum up_room room;
    *may = !same_kept(&move->config, &best->config) &&
           move->forecast->step_s < best->forecast->step_s * 0.995;
    if (*may || !same_kept(&move->config, &best->config)) return UP_OK;
    UP_TRY(up_try_config(lattice->forecaster, &alike, lattice->limits, UP_FORECAST_BRIEF, &here,
                         &room, err));
    *may = is_better(&here, best);
    if (*may || room != UP_ROOM_FITS || alike.attn_layers == up_config_layers(&alike)) return UP_OK;
    alike.attn_layers++;
    alike.offload_layers = 0;
    UP_TRY(share(lattice, &alike, &here, may, err));
    *may = *may && is_better(&here, best);
out:
    return rc;
}

static int fastest_first(const void *a, const void *b)
{
    double x = ((const struct up_candidate *)a)->forecast->step_s;
    double y = ((const struct up_candidate *)b)->forecast->step_s;
    return (x > y) - (x < y);
}

// The best change of all, if one is better than none.
static enum up_status improve_once(struct lattice *lattice, const struct up_config *from,
                                   struct up_candidate *best, bool *improved, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct moves moves = {.count = 0};
    struct up_candidate *list[MAX_MOVES] = {NULL};
    *improved = false;
    add_moves(&moves, lattice->limits, from, &best->config);
    for (int i = 0; i < moves.count; i++) list[i] = &moves.all[i];
    UP_TRY(up_forecaster_ask_all(lattice->forecaster, list, moves.count, UP_FORECAST_BRIEF, err));
    qsort(moves.all, (size_t)moves.count, sizeof moves.all[0], fastest_first);
    UP_TRY(ask_alike(lattice, &moves, best, err));
    for (int i = 0; i < moves.count; i++) {
        struct up_candidate here;
        bool may = false, fits;
        if (is_better(&moves.all[i], best))
            UP_TRY(may_be_better(lattice, &moves.all[i], best, &may, err));
        if (!may) continue;
        UP_TRY(make_fit(lattice, &moves.all[i].config, best, &here, &fits, err));
        if (!fits || !is_better(&here, best)) continue;
        *best = here;
        *improved = true;
    }
out:
    return rc;
}

// As few blocks in host memory as it takes, then one change after the other as long as that helps.
static enum up_status improve(struct lattice *lattice, const struct up_config *from,
                              struct up_candidate *best, struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool improved = true;
    UP_TRY(keep_on_device(lattice, best, err));
    while (improved) UP_TRY(improve_once(lattice, from, best, &improved, err));
out:
    return rc;
}

/* --- The fastest ---------------------------------------------------------------------------------
 */

static enum up_status search(struct up_forecaster *forecaster, const struct up_config *config,
                             const struct up_limits *limits, struct up_candidate *best, bool *found,
                             struct up_error *err)
{
    enum up_status rc = UP_OK;
    enum up_room room;
    struct lattice lattice = {.forecaster = forecaster, .limits = limits};
    *found = false;
    lattice.all = calloc(MAX_COMBINATIONS, sizeof *lattice.all);
    if (!lattice.all) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    build(&lattice, config);
    UP_TRY(try_all(&lattice, err));
    const struct combination *start = fastest(&lattice);
    if (start) *best = start->best;
    *found = start != NULL;
    // Only what is leanest in all respects is left, some of it neither here nor there.
    if (!*found) UP_TRY(up_advise_leanest(forecaster, config, limits, best, found, &room, err));
    if (*found) UP_TRY(improve(&lattice, config, best, err));
out:
    free(lattice.all);
    return rc;
}

enum { PLANS = 4 }; // searches, each with less room than the one before, whose plan did not fit

static enum up_status try_planned(struct up_forecaster *forecaster, const struct up_limits *limits,
                                  struct up_candidate *best, bool *fits, struct up_error *err)
{
    enum up_room room;
    enum up_status rc =
        up_try_config(forecaster, &best->config, limits, UP_FORECAST_PLANNED, best, &room, err);
    *fits = rc == UP_OK && room == UP_ROOM_FITS;
    return rc;
}

// What placing the step's tensors takes more than they are is not to be had.
static void take_off(struct up_limits *less, const struct up_candidate *planned)
{
    const struct up_forecast *f = planned->forecast;
    int64_t device = f->arena_bytes[UP_SPACE_DEVICE] - f->peak_bytes;
    int64_t host = f->arena_bytes[UP_SPACE_HOST] - f->host_bytes;
    int64_t ranks = up_config_ranks(&planned->config);
    if (less->node_ranks) ranks = up_min(ranks, less->node_ranks);
    host += less->shared ? device : 0;
    if (less->device_bytes) less->device_bytes -= up_max(device, 1);
    if (less->host_bytes) less->host_bytes -= up_max(host * ranks, 1);
}

enum up_status up_advise_cheapest(struct up_forecaster *forecaster, const struct up_config *config,
                                  const struct up_limits *limits, struct up_candidate *best,
                                  bool *found, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_limits less = *limits;
    enum up_room room;
    bool fits = false;
    for (int tries = 0; tries < PLANS && !fits; tries++) {
        UP_TRY(search(forecaster, config, &less, best, found, err));
        if (!*found) break;
        UP_TRY(try_planned(forecaster, limits, best, &fits, err));
        if (!fits) take_off(&less, best);
    }
    // Plans differ in what they take more: that of the leanest may be one that fits.
    if (!fits) {
        UP_TRY(up_advise_leanest(forecaster, config, limits, best, found, &room, err));
        if (*found) UP_TRY(try_planned(forecaster, limits, best, &fits, err));
    }
    *found = fits;
out:
    return rc;
}

/* --- The smallest change -------------------------------------------------------------------------
 */

enum { MOST_CHANGES = UP_TECHNIQUE_COUNT * UP_TECHNIQUE_COUNT };

static int by_step_time(const void *a, const void *b)
{
    double x = ((const struct up_candidate *)a)->forecast->step_s;
    double y = ((const struct up_candidate *)b)->forecast->step_s;
    return (x > y) - (x < y);
}

// The fastest of them whose plan fits.
static enum up_status pick(struct up_forecaster *forecaster, const struct up_limits *limits,
                           struct up_candidate *changes, int count, struct up_candidate *best,
                           bool *found, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_candidate *list[MOST_CHANGES] = {NULL};
    for (int i = 0; i < count; i++) list[i] = &changes[i];
    UP_TRY(up_forecaster_ask_all(forecaster, list, count, UP_FORECAST_BRIEF, err));
    qsort(changes, (size_t)count, sizeof *changes, by_step_time);
    for (int i = 0; i < count && !*found; i++) {
        enum up_room room = up_limits_check(limits, &changes[i].config, changes[i].forecast);
        if (room != UP_ROOM_FITS) continue;
        UP_TRY(up_try_config(forecaster, &changes[i].config, limits, UP_FORECAST_PLANNED, best,
                             &room, err));
        *found = room == UP_ROOM_FITS;
    }
out:
    return rc;
}

// Each of `from` with each technique after its last one on; returns how many.
static int extend(const struct up_candidate *from, const int *last, int count,
                  struct up_candidate *to, int *to_last)
{
    int made = 0;
    for (int i = 0; i < count; i++)
        for (int t = last[i] + 1; t < UP_TECHNIQUE_COUNT; t++)
            if (up_technique_apply(&from[i].config, (enum up_technique)t, &to[made].config))
                to_last[made++] = t;
    return made;
}

// One technique, in the order of their list, then pairs of them.
static enum up_status pick_few(struct up_forecaster *forecaster, const struct up_config *config,
                               const struct up_limits *limits, struct up_candidate *singles,
                               struct up_candidate *pairs, struct up_candidate *best, bool *found,
                               struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_candidate none = {.config = *config};
    int last[UP_TECHNIQUE_COUNT], last_of_pair[MOST_CHANGES], nothing = -1;
    int single_count = extend(&none, &nothing, 1, singles, last);
    int pair_count = extend(singles, last, single_count, pairs, last_of_pair);
    UP_TRY(pick(forecaster, limits, singles, single_count, best, found, err));
    if (!*found) UP_TRY(pick(forecaster, limits, pairs, pair_count, best, found, err));
out:
    return rc;
}

enum up_status up_advise_smallest(struct up_forecaster *forecaster, const struct up_config *config,
                                  const struct up_limits *limits, struct up_candidate *best,
                                  bool *found, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_candidate *changes = calloc(UP_TECHNIQUE_COUNT + MOST_CHANGES, sizeof *changes);
    *found = false;
    if (!changes) return up_fail(err, UP_FAILED, "out of host memory");
    UP_TRY(pick_few(forecaster, config, limits, changes, changes + UP_TECHNIQUE_COUNT, best, found,
                    err));
    if (!*found) UP_TRY(up_advise_cheapest(forecaster, config, limits, best, found, err));
out:
    free(changes);
    return rc;
}
