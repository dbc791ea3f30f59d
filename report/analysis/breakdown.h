/* A peak taken apart: what was alive there, and how it adds up to what the device says is used. */
#ifndef UP_REPORT_BREAKDOWN_H
#define UP_REPORT_BREAKDOWN_H

#include "report/analysis/live.h"
#include "report/analysis/peak.h"

/* Of the device: device used = categories + arena slack + arena free + libraries + before +
 * unattributed. Of host memory nobody tells what is pinned in all: it is the sum of the first four.
 */
struct up_reconciliation {
    int64_t categories_bytes; // the live set's sum
    int64_t slack_bytes;      // reserved for it beyond that
    int64_t free_bytes;       // of the arena's driver memory, not reserved; 0 where unknown
    bool arena_known;         // the arena told what it took from the driver
    struct {
        char *owner; // owned
        int64_t bytes;
    } * libraries; // driver-level allocations held at the peak, other than arenas
    int64_t library_count;
    int64_t before_bytes;       // on the device before the run; 0 where unknown
    int64_t device_used_bytes;  // at the peak; UP_NONE: the device cannot tell
    int64_t sample_ns;          // of the sample nearest to the peak, which tells it, with
    int64_t changed_bytes;      // what the driver has given from then to the peak, or back
    int64_t unattributed_bytes; // what is left of device_used_bytes; may be negative
};

struct up_breakdown {
    bool injected;       // of a program that is not ours, and has no steps
    struct up_peak peak; // rank UP_NONE: no tensor was recorded, all else is empty
    struct up_place place;
    struct up_live live;
    struct up_live_groups categories, kinds;
    struct up_reconciliation sums;
    // Host memory of the same rank at its own highest in a step; seq UP_NONE where it has none.
    struct up_peak host_peak;
    struct up_live host;
    struct up_live_groups host_categories;
    struct up_reconciliation host_sums;
};

/* Of rows of device_alloc of rank ?1: those that are no tensor as well. Of a program that is not
 * ours every allocation that was seen is a tensor already; what is left is what nobody saw its
 * context take, and what the driver's pools keep. */
#define UP_SQL_NO_TENSOR                                                                           \
    "(NOT " UP_SQL_INJECTED                                                                        \
    " OR owner = 'async pool' OR (owner = 'context' AND (space, alloc_ns, bytes) NOT IN"           \
    "  (SELECT space, alloc_ns, bytes FROM tensor WHERE rank = ?1 AND name = 'context')))"

/* `rank` and `step` as for up_peak_find. */
enum up_status up_breakdown_read(const struct up_run *run, int64_t rank, int64_t step,
                                 struct up_breakdown *breakdown, struct up_error *err);
/* Host memory of tensors at its highest in a step, of the rank where that is most; 0: none. */
enum up_status up_breakdown_host_most(const struct up_run *run, int64_t *bytes,
                                      struct up_error *err);
void up_breakdown_release(struct up_breakdown *breakdown);

#endif
