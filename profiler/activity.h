/* What was seen of a device's work and of the driver's memory by whoever looks at it (CUPTI), in
 * terms of the trace. */
#ifndef UP_PROFILER_ACTIVITY_H
#define UP_PROFILER_ACTIVITY_H

#include "trace/trace.h"

enum up_activity_kind {
    UP_ACTIVITY_KERNEL,
    UP_ACTIVITY_COPY,
    UP_ACTIVITY_FILL,
    UP_ACTIVITY_ALLOC,   // from the driver
    UP_ACTIVITY_RELEASE, // back to it
    UP_ACTIVITY_POOL,    // what one of the driver's pools keeps for those who ask next (`bytes`)
};

/* Times are of the rank's clock. */
struct up_activity {
    enum up_activity_kind kind;
    int rank;
    uint32_t correlation[2];  // of the call that asked for it, as the driver and as the runtime
                              // number calls; 0: none. See marks.h
    uint32_t stream;          // as the driver numbers them
    int64_t begin_ns, end_ns; // of ALLOC, RELEASE and POOL begin_ns alone
    uint64_t address;         // of ALLOC and RELEASE; of POOL what the driver calls it
    int64_t bytes;
    enum up_space space;    // of ALLOC and RELEASE
    enum up_space from, to; // of COPY
    const char *name; // of KERNEL its symbol; of ALLOC the file of the library that asked, or NULL
};

static inline bool up_activity_is_memory(const struct up_activity *activity)
{
    return activity->kind == UP_ACTIVITY_ALLOC || activity->kind == UP_ACTIVITY_RELEASE ||
           activity->kind == UP_ACTIVITY_POOL;
}

/* Who a library's memory is for: "nccl", "cublas", "cudnn", "cupti", "context" (the driver itself),
 * else the file's name without its folders; "unknown" for NULL and "". */
enum { UP_OWNER_TEXT = 64 };
const char *up_owner_of(char out[UP_OWNER_TEXT], const char *path);

/* --- Another clock -------------------------------------------------------------------------------
 *
 * Moments of a clock that runs nearly like ours, from readings of both, a second or more apart:
 * straight lines through the last two. A clock that was set between two readings is taken to run
 * like ours from the later one on. */
struct up_clock_map {
    int readings;
    struct {
        int64_t theirs, ours;
    } before, last;
};

void up_clock_map_add(struct up_clock_map *map, int64_t theirs, int64_t ours);
/* Of a map without readings the moment itself. */
int64_t up_clock_map_ours(const struct up_clock_map *map, int64_t theirs);

#endif
