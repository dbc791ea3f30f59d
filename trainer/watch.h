/* Tells a run that hangs from one that is slow: ranks count as their device gets on, and a thread
 * looks whether any of them still does. */
#ifndef UP_TRAINER_WATCH_H
#define UP_TRAINER_WATCH_H

#include "base/base.h"

#include <stdatomic.h>

struct up_watch;

/* Watches *counters[0 .. count), which are the caller's and of ranks from `first` on, from now on.
 * When none of those that are
 * not UP_WATCH_DONE has changed for `limit_s` seconds, `hung` is called once, on the watch's own
 * thread, with one line that names the ranks that are furthest behind. NULL and *err when it cannot
 * start. */
#define UP_WATCH_DONE UINT64_MAX
struct up_watch *up_watch_start(_Atomic uint64_t *const *counters, int first, int count,
                                double limit_s, void (*hung)(void *context, const char *reason),
                                void *context, struct up_error *err);
/* Something goes on that does not count, and may take its time. NULL is fine. */
void up_watch_pause(struct up_watch *watch, bool paused);
void up_watch_stop(struct up_watch *watch); // NULL is fine

#endif
