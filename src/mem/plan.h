/* The planned arena: from the lifetimes of a step's tensors, known before it runs, to their offsets
 * in one reservation. A pure function: no clock, no random state, no memory kept between calls.
 * What the offsets are used for is the allocator's business (mem.h).
 *
 * Lifetimes are counted in events of the host's program, not in time: a tensor freed at event s may
 * lend its bytes to one allocated at s. Making streams wait for bytes that another stream still
 * uses is left to whoever takes the bytes.
 */
#ifndef UP_MEM_PLAN_H
#define UP_MEM_PLAN_H

#include "base/base.h"

struct up_life {
    int64_t bytes;      // as asked for, from 0; a tensor without bytes takes no room and lies at 0
    int64_t begin, end; // alive in [begin, end); INT64_MAX: never freed; begin >= end: never alive
};

/* Gives each of `count` lives an offset, a multiple of `align` (bytes, a power of two), such that
 * no two which are alive at once overlap in [offset, offset + bytes rounded up to align). *height
 * is where the highest ends: at least up_plan_live_peak, and equal to it or a few percent above for
 * the lifetimes that training steps have.
 *
 * Equal input gives equal output. The order of the lives matters in one way: of lives that are
 * equal in rounded bytes, begin and end, the first in the array is placed first. Permuting the
 * array therefore gives the same height, and the same offsets but for exchanges among equal lives.
 *
 * One try takes O(n log n) steps over sets of address ranges that are small where the placement is
 * dense; more tries, bounded in number and work, follow while the height is above the live peak.
 *
 * UP_FAILED: host memory is short, or no plan that ends below 2^63 was found. `offsets` and *height
 * are then left alone. */
enum up_status up_plan(const struct up_life *lives, int64_t count, int64_t align, int64_t *offsets,
                       int64_t *height, struct up_error *err);

/* The lower bound of any plan's height: the largest sum of rounded bytes alive at once. INT64_MAX
 * if that is 2^63 or more, -1 when host memory is short. */
int64_t up_plan_live_peak(const struct up_life *lives, int64_t count, int64_t align);

#endif
