/* What the files of the cuda device tell each other. */
#ifndef UP_DEVICE_CUDA_CUDA_IMPL_H
#define UP_DEVICE_CUDA_CUDA_IMPL_H

#include "device/cuda/cuda.h"

struct up_label;

/* UP_FAILED: "GPU 1: cannot be used: out of memory". */
static inline enum up_status up_cuda_fail_at(int index, const char *what, cudaError_t status,
                                             struct up_error *err)
{
    return up_fail(err, UP_FAILED, "GPU %d: %s: %s", index, what, cudaGetErrorString(status));
}

/* Bytes in use of GPU `index`, whoever uses them, as the driver tells a process that has a context
 * there; -1 when that fails. From any thread, whose current device it becomes. */
int64_t up_cuda_used_bytes(int index);

/* Bytes free of GPU `index` as NVML tells them, which needs no context; -1 where there is no NVML.
 */
int64_t up_cuda_free_before(int index);

/* Ranges for tools that listen through NVTX, in the domain "upipe". NULL where none does: then
 * there is nothing to be told, and nothing it could cost. A range belongs to the thread that began
 * it. */
struct up_listener;
struct up_listener *up_listener_create(void);
void up_listener_destroy(struct up_listener *listener);                             // NULL is fine
void up_listener_range(struct up_listener *listener, const struct up_label *label); // NULL: ends

/* The arena's tensors, for tools that check accesses (compute-sanitizer); `at` and `bytes` as the
 * tensor has them. Where no tool listens there are no heaps, and none of this does anything. A tool
 * checks when work runs: a tensor is not to be removed before all that uses it has run. */
struct up_regions;
struct up_regions *up_regions_create(void);          // once CUDA has started
void up_regions_destroy(struct up_regions *regions); // NULL is fine
/* Whether a tool listens: asked with memory of the device that nothing else is in, of cudaMalloc,
 * since tools take no other. To be asked before there is a heap. */
bool up_regions_listened(struct up_regions *regions, const void *at, int64_t bytes);
/* There is memory for the arena; the arena is given back. */
void up_regions_add_heap(struct up_regions *regions, const void *at, int64_t bytes);
void up_regions_drop_heaps(struct up_regions *regions);
bool up_regions_hold(const struct up_regions *regions, const void *at, int64_t bytes);
void up_regions_add(struct up_regions *regions, const void *at, int64_t bytes);
void up_regions_name(struct up_regions *regions, const void *at, int64_t bytes,
                     const struct up_label *label);
void up_regions_remove(struct up_regions *regions, const void *at, int64_t bytes);

#endif
