/* Configs that fit: the smallest change, and the fastest one.
 *
 * The fastest is looked for among all combinations of where model state is (fsdp, optimizer), cp,
 * and what blocks keep and where; each with slices everywhere, then with few heads a stage, where
 * it does not fit otherwise. Combinations come by the number of their techniques, and those that
 * have all techniques of one that fits already, and more, are left out; so are those that cannot
 * fit by arithmetic. The best are then refined by what is counted in blocks, and slices undone
 * where there is room. */
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

// Between as few as can be, which fit, and all, which do not: the most that fit.
static enum up_status widen_stages(struct lattice *lattice, struct combination *c,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t heads = c->config.model.heads;
    if (c->way != WAY_STAGED) return UP_OK;
    for (int64_t u = heads - c->config.cp; u > c->config.cp; u -= c->config.cp) {
        struct up_config wider = c->best.config;
        struct up_candidate here;
        enum up_room room;
        if (heads % u) continue;
        wider.upipe = u;
        UP_TRY(up_try_config(lattice->forecaster, &wider, lattice->limits, UP_FORECAST_BRIEF, &here,
                             &room, err));
        if (room != UP_ROOM_FITS) continue;
        if (here.forecast->step_s < c->best.forecast->step_s) c->best = here;
        break;
    }
out:
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

/* --- Blocks by number ----------------------------------------------------------------------------
 */

static void take_if_faster(struct up_candidate *best, const struct up_candidate *other)
{
    if (other->forecast->step_s < best->forecast->step_s) *best = *other;
}

// Some blocks keep attention's output, as many as there is room for.
static enum up_status keep_attention(struct lattice *lattice, const struct up_config *config,
                                     struct up_candidate *best, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t layers = up_config_layers(config), low = 0, high = layers;
    if (config->checkpoint != UP_CHECKPOINT_BLOCK) return UP_OK;
    while (low < high) {
        struct up_config some = *config;
        struct up_candidate here;
        enum up_room room;
        some.checkpoint = UP_CHECKPOINT_ATTN;
        some.offload_layers = config->offload_layers ? layers : 0;
        // All, if that is possible; otherwise by halves.
        some.attn_layers = low || high < layers ? (low + high + 1) / 2 : high;
        UP_TRY(up_share_kept(lattice->forecaster, &some, lattice->limits, &here, &room, err));
        if (room != UP_ROOM_FITS) {
            high = some.attn_layers - 1;
            continue;
        }
        low = some.attn_layers;
        take_if_faster(best, &here);
    }
out:
    return rc;
}

// What need not go to the host stays on the device.
static enum up_status keep_on_device(struct lattice *lattice, struct up_candidate *best,
                                     struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t low = 1, high = best->config.offload_layers;
    while (low < high) {
        struct up_config fewer = best->config;
        struct up_candidate here;
        enum up_room room;
        fewer.offload_layers = (low + high) / 2;
        UP_TRY(up_try_config(lattice->forecaster, &fewer, lattice->limits, UP_FORECAST_BRIEF, &here,
                             &room, err));
        bool good = room == UP_ROOM_FITS && here.forecast->step_s <= best->forecast->step_s;
        if (good) *best = here;
        if (good)
            high = fewer.offload_layers;
        else
            low = fewer.offload_layers + 1;
    }
out:
    return rc;
}

// Slices that the run has not, undone where that fits and takes no longer.
static enum up_status undo_slices(struct lattice *lattice, const struct up_config *from,
                                  struct up_candidate *best, struct up_error *err)
{
    enum up_status rc = UP_OK;
    static const size_t tiles[] = {offsetof(struct up_config, tile_attn),
                                   offsetof(struct up_config, tile_mlp),
                                   offsetof(struct up_config, tile_loss)};
    for (int i = 0; i < UP_COUNT(tiles); i++) {
        struct up_config whole = best->config;
        struct up_candidate here;
        enum up_room room;
        if (*(const int64_t *)((const char *)from + tiles[i])) continue;
        *(int64_t *)((char *)&whole + tiles[i]) = 0;
        UP_TRY(up_try_config(lattice->forecaster, &whole, lattice->limits, UP_FORECAST_BRIEF, &here,
                             &room, err));
        if (room == UP_ROOM_FITS && here.forecast->step_s <= best->forecast->step_s) *best = here;
    }
out:
    return rc;
}

// The one that had its turn, and those that differ from it only in where kept blocks wait.
static void skip_similar(struct lattice *lattice, const struct combination *done)
{
    const struct up_config *b = &done->config;
    for (int i = 0; i < lattice->count; i++) {
        const struct up_config *a = &lattice->all[i].config;
        if (a->cp == b->cp && a->fsdp == b->fsdp && a->optimizer_host == b->optimizer_host &&
            a->checkpoint == b->checkpoint)
            lattice->all[i].fits = false;
    }
}

enum { REFINED = 2 }; // combinations, the fastest first

static enum up_status refine(struct lattice *lattice, const struct up_config *from,
                             struct up_candidate *best, bool *found, struct up_error *err)
{
    enum up_status rc = UP_OK;
    for (int n = 0; n < REFINED; n++) {
        struct combination *c = fastest(lattice);
        if (!c) break;
        UP_TRY(widen_stages(lattice, c, err));
        UP_TRY(undo_slices(lattice, from, &c->best, err));
        if (!*found) *best = c->best;
        *found = true;
        take_if_faster(best, &c->best);
        UP_TRY(keep_attention(lattice, &c->best.config, best, err));
        skip_similar(lattice, c);
    }
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
    UP_TRY(refine(&lattice, config, best, found, err));
    // Only what is leanest in all respects is left, some of it neither here nor there.
    if (!*found) UP_TRY(up_advise_leanest(forecaster, config, limits, best, found, &room, err));
    if (!*found) goto out;
    UP_TRY(keep_on_device(&lattice, best, err));
    UP_TRY(undo_slices(&lattice, config, best, err));
out:
    free(lattice.all);
    return rc;
}

enum { PLANS = 4 }; // searches, each with less room than the one before, whose plan did not fit

enum up_status up_advise_cheapest(struct up_forecaster *forecaster, const struct up_config *config,
                                  const struct up_limits *limits, struct up_candidate *best,
                                  bool *found, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_limits less = *limits;
    enum up_room room = UP_ROOM_FITS;
    for (int tries = 0; tries < PLANS; tries++) {
        UP_TRY(search(forecaster, config, &less, best, found, err));
        if (!*found) return UP_OK;
        UP_TRY(up_try_config(forecaster, &best->config, limits, UP_FORECAST_PLANNED, best, &room,
                             err));
        if (room == UP_ROOM_FITS) return UP_OK;
        // Placing the step's tensors takes a little more than they are.
        const struct up_forecast *f = best->forecast;
        int64_t device = f->arena_bytes[UP_SPACE_DEVICE] - f->peak_bytes;
        int64_t host = f->arena_bytes[UP_SPACE_HOST] - f->host_bytes;
        host += limits->shared ? device : 0;
        if (less.device_bytes) less.device_bytes -= up_max(device, 1);
        if (less.host_bytes) less.host_bytes -= up_max(host * up_config_ranks(config), 1);
    }
    *found = false;
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
