/* The longest sequence that fits: memory grows with the length all but linearly, so that a straight
 * line through what is known mostly hits the end at once; halving is what it falls back to. */
#include "trainer/advisor/advisor_impl.h"

#include <math.h>

enum { GRAIN = 256 }; // lengths differ by no less than one part in so many

struct probe {
    struct up_search search;
    const struct up_config *config;
    bool searching;
    struct up_candidate best; // the longest that fits so far
    bool any;
    enum up_room room; // what the shortest that does not fit lacks
    // Of what there is of the scarcer of device and host, how much the last that fitted took, and
    // the last that did not.
    double fill_low, fill_high;
};

static double fill_of(const struct up_limits *limits, const struct up_candidate *here)
{
    double device = 0, host = 0;
    if (here->forecast->beyond) return INFINITY;
    if (limits->device_bytes)
        device = (double)up_forecast_device_need(here->forecast) / (double)limits->device_bytes;
    if (limits->host_bytes)
        host = (double)up_limits_host_need(limits, &here->config, here->forecast) /
               (double)limits->host_bytes;
    return fmax(device, host);
}

static enum up_status try_length(struct probe *probe, int64_t seq, bool *fits, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_config config = *probe->config;
    struct up_candidate here;
    enum up_room room = UP_ROOM_FITS;
    config.seq = seq;
    if (probe->searching)
        UP_TRY(up_advise_leanest(probe->search.forecaster, &config, probe->search.limits, &here,
                                 fits, &room, err));
    else
        UP_TRY(up_try_config(&probe->search, &config, UP_FORECAST_BRIEF, &here, &room, err));
    *fits = room == UP_ROOM_FITS;
    *(*fits ? &probe->fill_low : &probe->fill_high) = fill_of(probe->search.limits, &here);
    if (*fits) {
        probe->best = here;
        probe->any = true;
    } else {
        probe->room = room;
    }
out:
    return rc;
}

// A power of two of which lengths near `seq` are multiples.
static int64_t grain_of(int64_t seq, int64_t least)
{
    int64_t grain = 1;
    while (grain * 2 <= seq / GRAIN) grain *= 2;
    return up_max(grain, least);
}

// Doubles from the shortest until it does not fit: low fits, high does not, or is beyond the end.
static enum up_status bracket(struct probe *probe, int64_t shortest, int64_t *low, int64_t *high,
                              struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool fits;
    *low = 0;
    *high = up_max(shortest, up_min(probe->config->seq, UP_LONGEST_SEQ));
    UP_TRY(try_length(probe, *high, &fits, err));
    if (!fits) { // shorter, then
        while (!fits && *high > shortest) {
            int64_t half = up_max(shortest, *high / 4);
            UP_TRY(try_length(probe, half, &fits, err));
            if (!fits) *high = half;
            if (fits) *low = half;
        }
        return UP_OK;
    }
    while (fits && *high < UP_LONGEST_SEQ) {
        *low = *high;
        *high = up_min(*high * 4, UP_LONGEST_SEQ);
        UP_TRY(try_length(probe, *high, &fits, err));
    }
    if (fits) *low = *high;
out:
    return rc;
}

// A multiple of the grain strictly between, near `wanted`; 0: there is none.
static int64_t between(const struct probe *probe, int64_t low, int64_t high, double wanted)
{
    int64_t grain = grain_of(low, probe->config->cp), first = (low / grain + 1) * grain;
    int64_t last = (high - 1) / grain * grain;
    if (first > last) return 0;
    int64_t at = wanted > 0x1p40 ? last : (int64_t)wanted / grain * grain;
    return up_max(first, up_min(last, at));
}

/* Between a length that fits and one that does not: where the straight line through both says; in
 * the middle every third time, should that not get nearer. */
static enum up_status close_in(struct probe *probe, int64_t low, int64_t high, struct up_error *err)
{
    enum up_status rc = UP_OK;
    double at_low = probe->fill_low, at_high = probe->fill_high;
    for (int turn = 0;; turn++) {
        double wanted = ((double)low + (double)high) / 2, rise = at_high - at_low;
        if (turn % 3 != 2 && rise > 0 && isfinite(rise))
            wanted = (double)low + (double)(high - low) * (1 - at_low) / rise;
        int64_t seq = between(probe, low, high, wanted);
        bool fits;
        if (!seq) break;
        UP_TRY(try_length(probe, seq, &fits, err));
        *(fits ? &low : &high) = seq;
        *(fits ? &at_low : &at_high) = fits ? probe->fill_low : probe->fill_high;
    }
out:
    return rc;
}

static enum up_status find(struct probe *probe, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t low, high, shortest = up_config_ranks(probe->config);
    UP_TRY(bracket(probe, shortest, &low, &high, err));
    if (probe->any && low < high) UP_TRY(close_in(probe, low, high, err));
out:
    return rc;
}

// The plan of the best so far: it needs a little more than the live peak.
static enum up_status try_plan(struct probe *probe, bool *fits, struct up_error *err)
{
    enum up_room room;
    enum up_status rc = up_try_config(&probe->search, &probe->best.config, UP_FORECAST_PLANNED,
                                      &probe->best, &room, err);
    if (rc) return rc;
    *fits = room == UP_ROOM_FITS;
    if (!*fits) probe->room = room;
    return UP_OK;
}

static enum up_status try_planned_length(struct probe *probe, int64_t seq, bool *fits,
                                         struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(try_length(probe, seq, fits, err));
    if (*fits) UP_TRY(try_plan(probe, fits, err));
out:
    return rc;
}

// The longest whose plan fits, too: shorter in steps that double, then by halves between.
static enum up_status verify(struct probe *probe, struct up_error *err)
{
    enum up_status rc = UP_OK;
    enum { TRIES = 6 };
    struct up_candidate good = probe->best;
    int64_t high = good.config.seq, grain = grain_of(high, good.config.cp), seq;
    bool fits = false;
    if (!probe->any) return UP_OK;
    UP_TRY(try_plan(probe, &fits, err));
    if (fits) return UP_OK;
    for (int i = 0; i < TRIES && !fits && high - grain * (1 << i) >= good.config.cp; i++) {
        seq = high - grain * (1 << i);
        UP_TRY(try_planned_length(probe, seq, &fits, err));
        if (!fits) high = seq;
    }
    probe->any = fits;
    if (!fits) return UP_OK;
    good = probe->best;
    while ((seq = between(probe, good.config.seq, high, (double)(good.config.seq + high) / 2))) {
        UP_TRY(try_planned_length(probe, seq, &fits, err));
        if (fits)
            good = probe->best;
        else
            high = seq;
    }
    probe->best = good;
out:
    return rc;
}

enum up_status up_advise_longest(struct up_forecaster *forecaster, const struct up_config *config,
                                 const struct up_limits *limits, bool searching,
                                 struct up_longest *longest, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct probe probe = {.search = {forecaster, limits},
                          .config = config,
                          .searching = searching,
                          .room = UP_ROOM_FITS};
    *longest = (struct up_longest){.searched = searching};
    UP_TRY(find(&probe, err));
    UP_TRY(verify(&probe, err));
    longest->found = probe.any;
    longest->best = probe.best;
    longest->room = probe.room;
    if (probe.any)
        longest->heads_in_the_way = searching && probe.best.config.cp < up_config_ranks(config) &&
                                    config->model.heads % up_config_ranks(config) != 0;
out:
    return rc;
}
