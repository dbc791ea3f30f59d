/* A rehearsal of the step's library calls.
 *
 * cuBLAS and cuDNN load a kernel's code, build plans and may allocate when a shape first meets
 * them, and the driver then waits for all that runs on the GPU. A collective that runs there may
 * itself be waiting for another rank, which waits for a lock of the first: nobody gets on. So a dry
 * run of the step notes each distinct call, and the device makes each of them once before its first
 * collective, on bytes that nobody needs. */
#ifndef UP_OPS_REHEARSAL_H
#define UP_OPS_REHEARSAL_H

#include "ops/ops.h"

/* Empty; NULL when memory is short. A rank whose `rehearsal` it is notes its calls there. Free with
 * up_rehearsal_destroy. */
struct up_rehearsal *up_rehearsal_create(void);
void up_rehearsal_destroy(struct up_rehearsal *rehearsal); // NULL is fine

int up_rehearsal_count(const struct up_rehearsal *rehearsal); // distinct calls

/* Device memory that the calls read and write: that of the largest operand, since all lie at the
 * same place. */
int64_t up_rehearsal_bytes(const struct up_rehearsal *rehearsal);

/* One of the distinct calls, for measuring: what it is, what it costs, how often it was noted, and
 * the memory that it takes when each operand has a place of its own. */
struct up_rehearsal_call {
    char text[64]; // "matmul 4096 x 512 x 4096"
    struct up_cost cost;
    int64_t times, bytes;
};
struct up_rehearsal_call up_rehearsal_call(const struct up_rehearsal *rehearsal, int index);
/* Gives that call once to the compute stream, its operands one after the other in `place`, which is
 * aligned to 256. None lies where another does, so that it can be given again and again and, unless
 * it adds to its results, does the same. */
void up_rehearsal_make(struct up_rank *rank, const struct up_rehearsal *rehearsal, int index,
                       void *place);

/* Makes every call once on the rank's compute stream; `scrap` has up_rehearsal_bytes(), aligned to
 * 256, whose contents are lost. Leaves no trace but the device's. */
void up_rehearse(struct up_rank *rank, const struct up_rehearsal *rehearsal, void *scrap);

#endif
