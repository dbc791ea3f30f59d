#include "trainer/step/offload.h"

void up_store_begin(struct up_rank *rank, struct up_stored *stored)
{
    struct up_tensor *device = stored->device;
    stored->host = up_alloc_on(rank, UP_SPACE_HOST, UP_STREAM_COPY_OUT, device->tag, device->dtype,
                               device->shape);
    up_stream_wait(rank, UP_STREAM_COPY_OUT, UP_STREAM_COMPUTE);
    up_copy(rank, UP_STREAM_COPY_OUT, stored->host, device);
}

void up_store_end(struct up_rank *rank, struct up_stored *stored)
{
    up_stream_wait(rank, UP_STREAM_COPY_OUT, UP_STREAM_COMPUTE);
    up_free_on(rank, &stored->device, UP_STREAM_COPY_OUT);
}

void up_fetch_begin(struct up_rank *rank, struct up_stored *stored, bool keep_host)
{
    struct up_tensor *host = stored->host;
    if (stored->device || !host) return;
    up_stream_wait(rank, UP_STREAM_COPY_IN, UP_STREAM_COPY_OUT);
    stored->device =
        up_alloc_on(rank, UP_SPACE_DEVICE, UP_STREAM_COPY_IN, host->tag, host->dtype, host->shape);
    up_copy(rank, UP_STREAM_COPY_IN, stored->device, host);
    if (!keep_host) up_free_on(rank, &stored->host, UP_STREAM_COPY_IN);
}

void up_fetch_end(struct up_rank *rank)
{
    up_stream_wait(rank, UP_STREAM_COMPUTE, UP_STREAM_COPY_IN);
}

void up_stored_free(struct up_rank *rank, struct up_stored *stored)
{
    up_free(rank, &stored->device);
    up_free_on(rank, &stored->host, UP_STREAM_COPY_IN);
}
