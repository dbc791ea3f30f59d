/* Who holds a device's memory, as rows of device_alloc, for one rank.
 *
 * Three sources, which must not count the same bytes twice:
 *
 *   the arena      tells what it takes from the system; what is seen at its addresses is left out
 *   what is seen   each allocation and release of the driver (CUPTI), by the library that asked,
 *                  and what the pools of cudaMallocAsync keep beside those ("async pool")
 *   brackets       by how much the use of the device grew while a library was set up. Part of that
 *                  was seen, or was the arena's, or another bracket's within: the rest is the
 *                  library's too, though nobody saw it taken (NCCL's buffers, kernels' code)
 *
 * They come in any order: what is seen late is taken off the rest of the innermost bracket it falls
 * into. */
#ifndef UP_PROFILER_LEDGER_H
#define UP_PROFILER_LEDGER_H

#include "profiler/activity.h"
#include "store/store.h"

struct up_ledger;
struct up_ledger *up_ledger_create(struct up_store *store, int rank); // NULL when memory is short
void up_ledger_destroy(struct up_ledger *ledger);                     // NULL is fine
int64_t up_ledger_bytes(const struct up_ledger *ledger);              // host memory held

/* An UP_EVENT_MEMORY. */
void up_ledger_news(struct up_ledger *ledger, const struct up_event *event);
/* An ALLOC, a RELEASE or a POOL. */
void up_ledger_seen(struct up_ledger *ledger, const struct up_activity *activity);

/* What could not be kept for want of memory. */
int64_t up_ledger_lost(const struct up_ledger *ledger);

#endif
