/* The fastest config that fits.
 *
 * It is looked for among all combinations of where model state is (fsdp, optimizer), cp,
 * and what blocks keep and where; each with slices everywhere, then with few heads a stage, where
 * it does not fit otherwise. Combinations come by the number of their techniques, and those that
 * have all techniques of one that fits already, and more, are left out; so are those that cannot
 * fit by arithmetic. From the best of them on improve.c goes on. */
#include "trainer/advisor/advisor_impl.h"

#include <stdlib.h>

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
    struct up_search search;
    struct combination *all;
    int count;
};

static int level_of(const struct up_config *c)
{
    return c->fsdp + c->optimizer_host + (c->offload_layers > 0) + up_checkpoint_order(c);
}

static bool has_all_of(const struct up_config *more, const struct up_config *less)
{
    // Sharding need not be slower: gradients are then on their way before the backward ends.
    return more->cp == less->cp && more->fsdp == less->fsdp &&
           more->optimizer_host >= less->optimizer_host &&
           more->offload_layers >= less->offload_layers &&
           up_checkpoint_order(more) >= up_checkpoint_order(less);
}

static void add(struct lattice *lattice, const struct up_config *config)
{
    struct up_error error;
    if (lattice->count == MAX_COMBINATIONS || up_config_check(config, &error)) return;
    struct combination *c = &lattice->all[lattice->count++];
    *c = (struct combination){.config = *config, .sliced = *config, .level = level_of(config)};
    up_slice_all(&c->sliced);
    c->skipped = up_cannot_fit(config, lattice->search.limits);
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
        up_forecaster_ask_all(lattice->search.forecaster, list, count, UP_FORECAST_BRIEF, err);
    for (int i = 0; i < count && !rc; i++)
        which[i]->fits = up_limits_check(lattice->search.limits, &list[i]->config,
                                         list[i]->forecast) == UP_ROOM_FITS;
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

/* --- The fastest ---------------------------------------------------------------------------------
 */

static enum up_status find_fastest(const struct up_search *search, const struct up_config *config,
                                   struct up_candidate *best, bool *found, struct up_error *err)
{
    enum up_status rc = UP_OK;
    enum up_room room;
    struct lattice lattice = {.search = *search};
    *found = false;
    lattice.all = calloc(MAX_COMBINATIONS, sizeof *lattice.all);
    if (!lattice.all) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    build(&lattice, config);
    UP_TRY(try_all(&lattice, err));
    const struct combination *start = fastest(&lattice);
    if (start) *best = start->best;
    *found = start != NULL;
    // Only what is leanest in all respects is left, some of it neither here nor there.
    if (!*found)
        UP_TRY(
            up_advise_leanest(search->forecaster, config, search->limits, best, found, &room, err));
    if (*found) UP_TRY(up_improve(search, config, best, err));
out:
    free(lattice.all);
    return rc;
}

enum { PLANS = 4 }; // searches, each with less room than the one before, whose plan did not fit

static enum up_status try_planned(const struct up_search *search, struct up_candidate *best,
                                  bool *fits, struct up_error *err)
{
    enum up_room room;
    enum up_status rc = up_try_config(search, &best->config, UP_FORECAST_PLANNED, best, &room, err);
    *fits = rc == UP_OK && room == UP_ROOM_FITS;
    return rc;
}

// What placing the step's tensors takes more than they are is not to be had.
static void take_off(struct up_limits *less, const struct up_candidate *planned)
{
    const struct up_forecast *f = planned->forecast;
    int64_t device = f->arena_bytes[UP_SPACE_DEVICE] - f->peak_bytes;
    int64_t host = f->arena_bytes[UP_SPACE_HOST] - f->host_bytes;
    int64_t ranks = up_limits_ranks(less, &planned->config);
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
    const struct up_search search = {forecaster, limits}, with_less = {forecaster, &less};
    enum up_room room;
    bool fits = false;
    for (int tries = 0; tries < PLANS && !fits; tries++) {
        UP_TRY(find_fastest(&with_less, config, best, found, err));
        if (!*found) break;
        UP_TRY(try_planned(&search, best, &fits, err));
        if (!fits) take_off(&less, best);
    }
    // Plans differ in what they take more: that of the leanest may be one that fits.
    if (!fits) {
        UP_TRY(up_advise_leanest(forecaster, config, limits, best, found, &room, err));
        if (*found) UP_TRY(try_planned(&search, best, &fits, err));
    }
    *found = fits;
out:
    return rc;
}
