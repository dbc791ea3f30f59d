/* A program that is not ours, as a trace: what is seen of it (allocations of the driver, named
 * ranges of its threads) becomes the events that a rank of ours would have told, so that every
 * report works on it. Each GPU is a rank; an allocation of the driver is a tensor, named after the
 * library that asked.
 *
 * What is seen comes from several threads and late; it is put in the order in which it happened. */
#ifndef UP_PROFILER_FOREIGN_H
#define UP_PROFILER_FOREIGN_H

#include "profiler/activity.h"

enum { UP_FOREIGN_RANKS = 64 };

struct up_foreign;
struct up_foreign *up_foreign_create(void);          // NULL when memory is short
void up_foreign_destroy(struct up_foreign *foreign); // NULL is fine

/* From any thread. */

/* The text, once for all: lives as long as `foreign`. NULL when memory is short. */
const char *up_foreign_name(struct up_foreign *foreign, const char *text);
/* The same for a range's name, of which a program may make new ones without end ("add, seq = 17"):
 * after UP_FOREIGN_NAMES of them new ones have '*' for each number, and at twice as many names all
 * further ones are "other". */
enum { UP_FOREIGN_NAMES = 1 << 16 };
const char *up_foreign_range_name(struct up_foreign *foreign, const char *text);
/* The range's id, from 1; 0 where too many wait, or `name` is NULL. `parent` 0: outermost. */
uint64_t up_foreign_range_begin(struct up_foreign *foreign, int rank, uint64_t parent,
                                const char *name, int64_t ns);
void up_foreign_range_end(struct up_foreign *foreign, int rank, uint64_t id, int64_t ns);
/* An ALLOC or RELEASE, asked for within a range (0: none). */
void up_foreign_seen(struct up_foreign *foreign, const struct up_activity *activity,
                     uint64_t range_id);

/* From one thread: gives all that happened until `until_ns`, in order. */
void up_foreign_tell(struct up_foreign *foreign, int64_t until_ns,
                     void (*tell)(void *context, int rank, const struct up_event *event),
                     void *context);
int64_t up_foreign_lost(struct up_foreign *foreign); // for want of room

#endif
