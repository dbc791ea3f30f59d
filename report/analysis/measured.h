/* A run opened with all that comparisons want of it, and two runs side by side. */
#ifndef UP_REPORT_MEASURED_H
#define UP_REPORT_MEASURED_H

#include "report/analysis/analysis.h"
#include "report/analysis/breakdown.h"

#include <jansson.h>

struct up_measured {
    struct up_run run;
    struct up_run_facts facts;
    struct up_breakdown breakdown; // at the highest peak; peak.rank UP_NONE: nothing was recorded
    int64_t host_bytes;            // up_measured_host's
};

/* Opens and reads. Release in any case; a zeroed one is fine. */
enum up_status up_measured_open(const char *path, struct up_measured *measured,
                                struct up_error *err);
void up_measured_release(struct up_measured *measured);

/* Bytes at the peak of the highest rank, be it in a step whose rows were not kept; UP_NONE where
 * nothing was recorded. */
int64_t up_measured_peak(const struct up_measured *measured);
/* Host memory of tensors at its own highest, of the rank where that is most; 0 where there is none,
 * UP_NONE where nothing was recorded. */
int64_t up_measured_host(const struct up_measured *measured);

/* What the device says is used at the peak, libraries included, less what was before the run;
 * UP_NONE where it cannot tell. */
int64_t up_measured_device(const struct up_measured *measured);

/* UP_USAGE with one line where a run cannot be held against another: it did not end in order,
 * nothing was recorded in it, or the rows of its highest step were not kept. */
enum up_status up_measured_whole(const struct up_measured *measured, struct up_error *err);

/* One name with what each side has of it: the bytes of a category, a kind or a layer. */
struct up_pair {
    const char *name; // of either side's groups, not owned
    int64_t bytes[2]; // 0 where a side has none
    bool there[2];
};
struct up_pairs {
    struct up_pair *items;
    int64_t count;
};
/* Every name of either, the largest change first. */
enum up_status up_pairs_make(const struct up_live_groups *a, const struct up_live_groups *b,
                             struct up_pairs *pairs, struct up_error *err);
void up_pairs_release(struct up_pairs *pairs);

/* part / whole - 1; NaN where the whole is not positive. */
double up_relative_change(double from, double to);
/* b - a, at the end of the range rather than beyond it. */
int64_t up_difference(int64_t a, int64_t b);

/* meta.config as JSON, for json_decref; NULL where there is none or it is not JSON. */
enum up_status up_config_stored(const struct up_run *run, json_t **config, struct up_error *err);

/* What differs between two runs' configurations: `name` as an option is typed, or a dotted path. */
struct up_config_difference {
    char name[128], value[2][64]; // "" where a side has no such thing
};
struct up_config_differences {
    struct up_config_difference *items;
    int64_t count, capacity;
    bool unknown[2]; // what a side has told nothing of cannot differ
};
enum up_status up_config_compare(const struct up_run *a, const struct up_run *b,
                                 struct up_config_differences *differences, struct up_error *err);
void up_config_differences_release(struct up_config_differences *differences);
/* A side's value as people write it: sizes with units, what was not given in words. */
const char *up_config_value_text(const struct up_config_difference *difference, int side,
                                 char text[64]);

#endif
