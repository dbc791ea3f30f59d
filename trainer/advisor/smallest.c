/* The smallest change with which a config fits: one technique, two, or whatever is fastest. */
#include "trainer/advisor/advisor_impl.h"

#include <stdlib.h>

enum { MOST_CHANGES = UP_TECHNIQUE_COUNT * UP_TECHNIQUE_COUNT };

// The fastest of them whose plan fits.
static enum up_status pick(const struct up_search *search, struct up_candidate *changes, int count,
                           struct up_candidate *best, bool *found, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_candidate *list[MOST_CHANGES] = {NULL};
    for (int i = 0; i < count; i++) list[i] = &changes[i];
    UP_TRY(up_forecaster_ask_all(search->forecaster, list, count, UP_FORECAST_BRIEF, err));
    qsort(changes, (size_t)count, sizeof *changes, up_by_step_time);
    for (int i = 0; i < count && !*found; i++) {
        enum up_room room =
            up_limits_check(search->limits, &changes[i].config, changes[i].forecast);
        if (room != UP_ROOM_FITS) continue;
        UP_TRY(up_try_config(search, &changes[i].config, UP_FORECAST_PLANNED, best, &room, err));
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
static enum up_status pick_few(const struct up_search *search, const struct up_config *config,
                               struct up_candidate *singles, struct up_candidate *pairs,
                               struct up_candidate *best, bool *found, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_candidate none = {.config = *config};
    int last[UP_TECHNIQUE_COUNT], last_of_pair[MOST_CHANGES], nothing = -1;
    int single_count = extend(&none, &nothing, 1, singles, last);
    int pair_count = extend(singles, last, single_count, pairs, last_of_pair);
    UP_TRY(pick(search, singles, single_count, best, found, err));
    if (!*found) UP_TRY(pick(search, pairs, pair_count, best, found, err));
out:
    return rc;
}

enum up_status up_advise_smallest(struct up_forecaster *forecaster, const struct up_config *config,
                                  const struct up_limits *limits, struct up_candidate *best,
                                  bool *found, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_candidate *changes = calloc(UP_TECHNIQUE_COUNT + MOST_CHANGES, sizeof *changes);
    const struct up_search search = {forecaster, limits};
    *found = false;
    if (!changes) return up_fail(err, UP_FAILED, "out of host memory");
    UP_TRY(pick_few(&search, config, changes, changes + UP_TECHNIQUE_COUNT, best, found, err));
    if (!*found) UP_TRY(up_advise_cheapest(forecaster, config, limits, best, found, err));
out:
    free(changes);
    return rc;
}
