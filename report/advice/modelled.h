/* Advice for a run whose step cannot be run again: what each technique would leave of the recorded
 * peak by its rule (rules.h), each by itself and one after the other. */
#ifndef UP_REPORT_MODELLED_H
#define UP_REPORT_MODELLED_H

#include "report/advice/rules.h"

struct up_modelled_kind {
    char name[128]; // '*' for each number in it; the category where names were not recorded
    char category[32];
    int64_t bytes;
};
enum { UP_MODELLED_KINDS = 3 };

struct up_modelled_line {
    enum up_technique technique; // of a line that is not the run as it is
    up_rule_set set;             // with it
    char options[UP_RULE_OPTIONS];
    int64_t peak_bytes, host_bytes, seq;
    int64_t category[UP_CATEGORY_COUNT]; // bytes at the peak; what has no category is in none
    struct up_modelled_kind kind[UP_MODELLED_KINDS]; // largest first; bytes 0: no more
    char phase[32], range[256], reached_by[128];     // "" where unknown
    int64_t layer;                                   // UP_NONE
};

struct up_modelled {
    struct up_recorded recorded;
    struct up_modelled_line now, ladder[UP_TECHNIQUE_COUNT], path[UP_TECHNIQUE_COUNT];
    int ladder_count, path_count;
    const char *obstacle[UP_TECHNIQUE_COUNT]; // of what is not on the ladder; else NULL
    int64_t limit_bytes;                      // of a device, 0: not known
};

/* Of the rank and step of `breakdown`'s peak. `fit`: bytes of a device that are asked for; the
 * lesser of it and the device's capacity counts. 0: none. `ladder` false leaves that out. */
enum up_status up_modelled_read(const struct up_run *run, const struct up_breakdown *breakdown,
                                int64_t fit, bool ladder, struct up_modelled *modelled,
                                struct up_error *err);
void up_modelled_release(struct up_modelled *modelled); // a zeroed one is fine

/* Whether the line's peak and what libraries took fit the limit; false where that is unknown. */
bool up_modelled_fits(const struct up_modelled *modelled, const struct up_modelled_line *line);

#endif
