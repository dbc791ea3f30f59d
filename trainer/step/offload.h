/* Kept tensors that wait in host memory. Copies run on their own streams; the host tensor has the
 * very size. */
#ifndef UP_TRAINER_OFFLOAD_H
#define UP_TRAINER_OFFLOAD_H

#include "mem/mem.h"

/* A kept tensor, on the device, in host memory, or (while a copy is under way) in both. */
struct up_stored {
    struct up_tensor *device, *host;
};

/* Begins to copy what the compute stream has made so far to host memory; the device tensor remains
 * usable for reading. */
void up_store_begin(struct up_rank *rank, struct up_stored *stored);
/* The compute stream is done with the device tensor: it is freed once the copy has ended too. */
void up_store_end(struct up_rank *rank, struct up_stored *stored);

/* Begins to fetch the tensor back, if it is not on the device. With `keep_host` the host's remains.
 */
void up_fetch_begin(struct up_rank *rank, struct up_stored *stored, bool keep_host);
/* The compute stream waits for what has been fetched so far. */
void up_fetch_end(struct up_rank *rank);

/* Frees whatever there is of it. */
void up_stored_free(struct up_rank *rank, struct up_stored *stored);

#endif
