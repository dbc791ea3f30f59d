/* Which ranges are open at a moment: those around it, in the order in which they began, are the
 * path to the innermost. Those of a program with several threads need not nest. */
#ifndef UP_REPORT_RANGES_H
#define UP_REPORT_RANGES_H

#include "report/analysis/query.h"

struct up_range {
    char *name, *phase;         // owned
    int64_t layer;              // UP_NONE outside layers
    int64_t begin_seq, end_seq; // end_seq INT64_MAX: it did not end
};

enum { UP_RANGES_OPEN = 32 };

struct up_ranges {
    struct up_range *items;       // by begin_seq
    int64_t count, next;          // items before `next` have begun
    int64_t open[UP_RANGES_OPEN]; // indexes into items, outermost first
    int open_count;
};

/* Those of a rank that are open anywhere in first_seq..last_seq. */
enum up_status up_ranges_read(const struct up_run *run, int64_t rank, int64_t first_seq,
                              int64_t last_seq, struct up_ranges *ranges, struct up_error *err);
void up_ranges_release(struct up_ranges *ranges);

/* Moves to `seq`, which must not go backwards from call to call. The innermost range open there, or
 * NULL. */
const struct up_range *up_ranges_at(struct up_ranges *ranges, int64_t seq);

/* "backward > layers.3.mlp", of where up_ranges_at moved to. */
void up_ranges_path(const struct up_ranges *ranges, char *out, size_t size);

#endif
