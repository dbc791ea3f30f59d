/* First touches of host memory, which decide where and how it comes to be. Includers define
 * _GNU_SOURCE, for cpu_set_t. */
#ifndef UP_DEVICE_TOUCH_H
#define UP_DEVICE_TOUCH_H

#include <sched.h>
#include <stddef.h>

/* Touches every page of [from, from + bytes), a multiple of 4096 at both ends, from many threads at
 * once on processors near a device, so that the memory is its neighbour; in large pages where the
 * system has them to give, which are faster to touch and to pin. `near_path`: the file that lists
 * these processors, or NULL. */
void up_touch(void *from, size_t bytes, const char *near_path);

/* Keeps of `cpus` those listed in the file ("0-31,64-95", as Linux has it for devices); all where
 * the file does not exist, makes no sense, or lists none of them. */
void up_touch_keep_near(const char *path, cpu_set_t *cpus);

#endif
