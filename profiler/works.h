/* When the device ran each piece of work: times that come long after the work was given, and may
 * come before it is known whether the work has a row (a step that may repeat the one before is held
 * back, profiler/steps_impl.h). */
#ifndef UP_PROFILER_WORKS_H
#define UP_PROFILER_WORKS_H

#include "store/store.h"

struct up_works;
struct up_works *up_works_create(int rank);    // NULL when memory is short
void up_works_destroy(struct up_works *works); // NULL is fine
int64_t up_works_bytes_max(void);

/* A part of work `id` ran in that time. `settled`: the work up to that id has its rows, or gets
 * none. */
void up_works_add(struct up_works *works, struct up_store *store, uint64_t settled, uint64_t id,
                  enum up_event_kind kind, int64_t begin_ns, int64_t end_ns);
/* Writes what has waited for `settled` to come so far. */
void up_works_write(struct up_works *works, struct up_store *store, uint64_t settled);
int64_t up_works_lost(const struct up_works *works); // too many waited

#endif
