/* Memory over time, replayed from the rows of `tensor`: what the bytes alive were after each event.
 *
 * A storage counts once, with the bytes of the largest of its names alive at that moment. Sizes
 * below zero count as zero. */
#ifndef UP_REPORT_REPLAY_H
#define UP_REPORT_REPLAY_H

#include "report/analysis/query.h"

struct up_replay_point {
    int64_t seq, ns;
    int64_t step;       // in which it happened; UP_NONE outside steps
    int64_t live_bytes; // from this event on, until the next point's
};

struct up_replay {
    struct up_replay_point *points; // by seq, each seq once
    int64_t count;
};

/* From alloc_seq on, before free_seq. A storage may have several, at once or one after the other.
 */
struct up_lifetime {
    int64_t storage, bytes;      // bytes not negative
    int64_t alloc_seq, free_seq; // free_seq INT64_MAX: still alive
    int64_t alloc_ns, free_ns, step, free_step;
};

/* Of any lifetimes, which it sorts. */
enum up_status up_replay_make(struct up_lifetime *lifetimes, int64_t count,
                              struct up_replay *replay, struct up_error *err);

/* Of one rank and space. */
enum up_status up_replay_read(const struct up_run *run, int64_t rank, enum up_space space,
                              struct up_replay *replay, struct up_error *err);
void up_replay_release(struct up_replay *replay); // a zeroed one is fine

/* The points of a step, which lie together (with what happens outside steps in between): [first,
 * end). `step` UP_NONE: all. Empty (first == end) where the step has no rows. */
void up_replay_span(const struct up_replay *replay, int64_t step, int64_t *first, int64_t *end);

/* The first highest point in [first, end), which must not be empty. */
const struct up_replay_point *up_replay_highest(const struct up_replay *replay, int64_t first,
                                                int64_t end);

#endif
