#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST = 64 };

enum up_status up_grow(void *items, int64_t count, int64_t *capacity, size_t size,
                       struct up_error *err)
{
    void *old, *grown;
    if (count < *capacity) return UP_OK;
    memcpy(&old, items, sizeof old); // whatever they are, their pointer is like any other
    int64_t wanted = *capacity ? 2 * *capacity : FIRST;
    grown = reallocarray(old, (size_t)wanted, size);
    if (!grown) return up_fail(err, UP_FAILED, "out of host memory");
    memcpy(items, &grown, sizeof grown);
    *capacity = wanted;
    return UP_OK;
}
