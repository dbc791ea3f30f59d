/* The cpu device's two ways of running work: at once, or through chaos.c's stream threads. */
#ifndef UP_DEVICE_CPU_IMPL_H
#define UP_DEVICE_CPU_IMPL_H

#include "device/device.h"

/* The stream test mode: a thread per stream that runs its queue in order, sleeping at random
 * between items, so that whatever order the step forgot to ask for does not happen by itself. */
struct up_chaos;

struct up_chaos *up_chaos_create(uint64_t seed, struct up_error *err);
void up_chaos_destroy(struct up_chaos *chaos); // runs what is queued first; NULL is fine

/* Queues run(args) on the stream; args are copied. Waits while the queue is full. */
void up_chaos_push(struct up_chaos *chaos, enum up_stream stream, void (*run)(const void *args),
                   const void *args, size_t size);
struct up_moment up_chaos_now_in(struct up_chaos *chaos, enum up_stream stream);
void up_chaos_wait(struct up_chaos *chaos, enum up_stream stream, struct up_moment moment);
void up_chaos_synchronize(struct up_chaos *chaos, struct up_moment moment);

#endif
