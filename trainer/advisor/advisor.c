/* One technique after the other, and the knob. What fits is looked for in fit.c and longest.c. */
#include "trainer/advisor/advisor_impl.h"

/* --- The ladder ----------------------------------------------------------------------------------
 */

static int neighbours(const struct up_config *config,
                      struct up_ladder_line lines[UP_TECHNIQUE_COUNT])
{
    int count = 0;
    for (int t = 0; t < UP_TECHNIQUE_COUNT; t++) {
        struct up_ladder_line *line = &lines[count];
        line->technique = (enum up_technique)t;
        count += up_technique_apply(config, line->technique, &line->to.config);
    }
    return count;
}

enum { MOST_PAIRS = UP_TECHNIQUE_COUNT * UP_TECHNIQUE_COUNT };

static enum up_status forecast_lines(struct up_forecaster *forecaster, struct up_ladder_line *lines,
                                     int count, enum up_forecast_depth depth, struct up_error *err)
{
    struct up_candidate *list[MOST_PAIRS] = {NULL};
    UP_ASSERT(count <= MOST_PAIRS);
    for (int i = 0; i < count; i++) list[i] = &lines[i].to;
    return up_forecaster_ask_all(forecaster, list, count, depth, err);
}

enum up_status up_advise_ladder(struct up_forecaster *forecaster, const struct up_config *config,
                                struct up_ladder_line lines[UP_TECHNIQUE_COUNT], int *count,
                                struct up_error *err)
{
    *count = neighbours(config, lines);
    return forecast_lines(forecaster, lines, *count, UP_FORECAST_PLACED, err);
}

/* --- The path ------------------------------------------------------------------------------------
 */

// Model state alone, and the libraries, are more than the device has.
static bool state_is_too_much(const struct up_candidate *at, const struct up_limits *limits)
{
    return limits->device_bytes &&
           up_limits_state(&at->config) + at->forecast->libraries > limits->device_bytes;
}

// Leaves the lines that shrink model state; returns how many those are.
static int only_state(struct up_ladder_line *lines, int count, const struct up_config *config)
{
    int left = 0;
    for (int i = 0; i < count; i++)
        if (up_limits_state(&lines[i].to.config) < up_limits_state(config))
            lines[left++] = lines[i];
    return left;
}

static bool helps(const struct up_candidate *before, int64_t peak)
{
    return peak < before->forecast->peak_bytes - before->forecast->peak_bytes / 100;
}

static const struct up_ladder_line *lowest(const struct up_ladder_line *lines, int count)
{
    const struct up_ladder_line *best = NULL;
    for (int i = 0; i < count; i++)
        if (!best || lines[i].to.forecast->peak_bytes < best->to.forecast->peak_bytes)
            best = &lines[i];
    return best;
}

// The pair that lowers the peak most: its first in *first, both in *second.
static enum up_status best_pair(struct up_forecaster *forecaster,
                                const struct up_ladder_line *singles, int count,
                                struct up_ladder_line *first, struct up_ladder_line *second,
                                bool *found, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_ladder_line pairs[MOST_PAIRS];
    int from[MOST_PAIRS], all = 0;
    for (int i = 0; i < count; i++)
        for (int t = (int)singles[i].technique + 1; t < UP_TECHNIQUE_COUNT; t++) {
            pairs[all].technique = (enum up_technique)t;
            from[all] = i;
            all += up_technique_apply(&singles[i].to.config, (enum up_technique)t,
                                      &pairs[all].to.config);
        }
    UP_TRY(forecast_lines(forecaster, pairs, all, UP_FORECAST_BRIEF, err));
    const struct up_ladder_line *best = lowest(pairs, all);
    *found = best != NULL;
    if (!best) return UP_OK;
    *first = singles[from[best - pairs]];
    *second = *best;
out:
    return rc;
}

// What comes next on the path: none, one or two techniques.
static enum up_status next_steps(struct up_forecaster *forecaster, const struct up_candidate *at,
                                 const struct up_limits *limits, struct up_ladder_line next[2],
                                 int *count, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_ladder_line lines[UP_TECHNIQUE_COUNT];
    int all = neighbours(&at->config, lines);
    bool found = false;
    *count = 0;
    if (state_is_too_much(at, limits)) {
        int smaller = only_state(lines, all, &at->config);
        if (smaller) all = smaller;
    }
    UP_TRY(forecast_lines(forecaster, lines, all, UP_FORECAST_BRIEF, err));
    const struct up_ladder_line *best = lowest(lines, all);
    if (best && helps(at, best->to.forecast->peak_bytes)) {
        next[0] = *best;
        *count = 1;
        return UP_OK;
    }
    UP_TRY(best_pair(forecaster, lines, all, &next[0], &next[1], &found, err));
    if (found && helps(at, next[1].to.forecast->peak_bytes)) *count = 2;
out:
    return rc;
}

enum up_status up_advise_path(struct up_forecaster *forecaster, const struct up_config *config,
                              const struct up_limits *limits,
                              struct up_ladder_line steps[UP_PATH_STEPS], int *count,
                              struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_candidate at = {.config = *config};
    *count = 0;
    UP_TRY(up_forecaster_ask(forecaster, config, UP_FORECAST_PLACED, &at.forecast, err));
    while (*count + 2 <= UP_PATH_STEPS) {
        int more = 0;
        UP_TRY(next_steps(forecaster, &at, limits, &steps[*count], &more, err));
        if (!more) break;
        UP_TRY(forecast_lines(forecaster, &steps[*count], more, UP_FORECAST_PLACED, err));
        *count += more;
        at = steps[*count - 1].to;
    }
out:
    return rc;
}

/* --- The knob ------------------------------------------------------------------------------------
 */

enum up_status up_advise_knob(struct up_forecaster *forecaster, const struct up_config *config,
                              struct up_candidate positions[UP_KNOB_POSITIONS], int *count,
                              struct up_error *err)
{
    struct up_candidate *list[UP_KNOB_POSITIONS] = {NULL};
    int64_t heads = config->model.heads;
    *count = 0;
    for (int64_t u = config->cp; u <= heads && *count < UP_KNOB_POSITIONS; u += config->cp) {
        if (heads % u) continue;
        struct up_candidate *position = list[*count] = &positions[*count];
        position->config = *config;
        position->config.upipe = u == heads ? 0 : u;
        ++*count;
    }
    return up_forecaster_ask_all(forecaster, list, *count, UP_FORECAST_PLACED, err);
}
