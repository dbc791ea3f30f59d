/* Arrays that grow as they are filled: by doubling, so that each element is moved a few times at
 * most. The array is the caller's, from NULL with a capacity of 0, and is freed with free(). */
#ifndef UP_BASE_GROW_H
#define UP_BASE_GROW_H

#include "base/error.h"

#include <stdint.h>

/* Room for one more element of `size` bytes after the first `count` of the array that `items`, the
 * address of a pointer to elements, leads to; it may move. UP_FAILED when memory is short: array
 * and capacity are then as they were. `err` may be NULL. */
enum up_status up_grow(void *items, int64_t count, int64_t *capacity, size_t size,
                       struct up_error *err);

#endif
