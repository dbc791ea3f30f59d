/* What a config takes at least: whether it can fit by arithmetic, how many blocks' outputs the host
 * can take, and the leanest config of all. */
#include "trainer/advisor/advisor_impl.h"

enum up_status up_try_config(const struct up_search *search, const struct up_config *config,
                             enum up_forecast_depth depth, struct up_candidate *candidate,
                             enum up_room *room, struct up_error *err)
{
    const struct up_forecast *forecast;
    enum up_status rc = up_forecaster_ask(search->forecaster, config, depth, &forecast, err);
    if (rc) return rc;
    *candidate = (struct up_candidate){*config, forecast};
    *room = up_limits_check(search->limits, config, forecast);
    return UP_OK;
}

bool up_cannot_fit(const struct up_config *c, const struct up_limits *limits)
{
    int64_t ranks = up_limits_ranks(limits, c), device = up_limits_device_floor(c), host;
    if (limits->device_bytes && device > limits->device_bytes) return true;
    int64_t each = up_limits_host_floor(c) + (limits->shared ? device : 0);
    return limits->host_bytes &&
           (__builtin_mul_overflow(each, ranks, &host) || host > limits->host_bytes);
}

// The largest legal cp.
static int64_t widest_cp(const struct up_config *config)
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

// Everything on: as many cp ranks as divide the heads, blocks' inputs alone kept and all sent away
// (up_advise_leanest tries attention's outputs, too), slices, the smallest stages, one sequence at
// a time.
static struct up_config leanest(const struct up_config *config, bool optimizer_host)
{
    struct up_config lean = *config;
    lean.accum *= lean.batch;
    lean.batch = 1;
    up_config_set_cp(&lean, widest_cp(&lean), &lean);
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
    int64_t ranks = up_limits_ranks(limits, config), low = 0, high = config->offload_layers;
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

int64_t up_most_sent(const struct up_config *config, const struct up_limits *limits)
{
    struct up_config sent = *config;
    sent.offload_layers = up_config_layers(config);
    if (!limits->host_bytes || limits->shared) return sent.offload_layers;
    return blocks_that_go(&sent, limits, limits->host_bytes);
}

/* The device is no better off with fewer than go, and the host no worse. Where device memory is the
 * host's, what goes makes no difference to the sum. */
enum up_status up_share_kept(const struct up_search *search, const struct up_config *config,
                             struct up_candidate *candidate, enum up_room *room,
                             struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_limits *limits = search->limits;
    struct up_config fewer = *config;
    int64_t spare = limits->host_bytes;
    for (int tries = 0; tries < 3; tries++) {
        if (limits->host_bytes && !limits->shared && config->offload_layers)
            fewer.offload_layers = blocks_that_go(config, limits, spare);
        UP_TRY(up_try_config(search, &fewer, UP_FORECAST_BRIEF, candidate, room, err));
        if (*room != UP_ROOM_HOST || limits->shared) break;
        // Besides the blocks there is a little more, which the arithmetic does not know.
        int64_t need = up_limits_host_need(limits, &fewer, candidate->forecast);
        spare -= up_max(1, need - limits->host_bytes);
        if (spare < 0 || !fewer.offload_layers) break;
    }
out:
    return rc;
}

// The leanest with the optimizer's state on the device, and in host memory: whichever fits is in
// *best, the faster of both. *host_stops is set where more host memory could make one fit.
static enum up_status try_lean(const struct up_search *search, const struct up_config *config,
                               enum up_checkpoint checkpoint, struct up_candidate *best,
                               bool *found, bool *host_stops, struct up_error *err)
{
    enum up_status rc = UP_OK;
    for (int host = 0; host <= 1; host++) {
        struct up_config lean = leanest(config, host);
        struct up_candidate here;
        enum up_room room;
        lean.checkpoint = checkpoint;
        // What arithmetic refuses is not worth a forecast, but for the one that says what stops it.
        if (checkpoint != UP_CHECKPOINT_BLOCK) {
            struct up_config sent = lean;
            sent.offload_layers = up_most_sent(&lean, search->limits);
            if (up_cannot_fit(&sent, search->limits)) continue;
        }
        UP_TRY(up_share_kept(search, &lean, &here, &room, err));
        *host_stops = *host_stops || room == UP_ROOM_HOST;
        bool better =
            room == UP_ROOM_FITS && (!*found || here.forecast->step_s < best->forecast->step_s);
        if (better || (!*found && checkpoint == UP_CHECKPOINT_BLOCK)) *best = here;
        *found = *found || room == UP_ROOM_FITS;
    }
out:
    return rc;
}

enum up_status up_advise_leanest(struct up_forecaster *forecaster, const struct up_config *config,
                                 const struct up_limits *limits, struct up_candidate *best,
                                 bool *found, enum up_room *room, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_search search = {forecaster, limits};
    bool host_stops = false;
    *found = false;
    UP_TRY(try_lean(&search, config, UP_CHECKPOINT_BLOCK, best, found, &host_stops, err));
    // The block whose attention is made again is at its highest then: where all outputs can wait in
    // host memory, keeping them takes less of the device.
    if (!*found)
        UP_TRY(try_lean(&search, config, UP_CHECKPOINT_ATTN, best, found, &host_stops, err));
    *room = *found ? UP_ROOM_FITS : host_stops ? UP_ROOM_HOST : UP_ROOM_DEVICE;
out:
    return rc;
}
