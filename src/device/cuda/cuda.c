/* The cuda device: one GPU, four non-blocking streams, memory by the driver's virtual memory
 * functions.
 *
 * A rank's address range is reserved whole and backed by physical memory as the arenas grow, at the
 * latest (and for good) when the plan of the step is known; under a tool that checks accesses it is
 * one allocation from the start. Host memory is touched by several
 * threads on the GPU's node and then registered in one piece, which is far faster than
 * cudaHostAlloc.
 *
 * Order between streams: a moment's ticket counts the work given to its stream. CUDA events are
 * only recorded where somebody waits. Nothing here waits for the whole device. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EVENTS = 32, SLOTS = 16, MIN_CAPABILITY = 80 };
// Of a context with upipe's kernels in it (measured on an H200 with CUDA 13.0).
enum { USUAL_CONTEXT = 541 << 20 };
enum { BLAS_WORKSPACE = 32 << 20, COMPUTE_SCRATCH = 16 << 20, OTHER_SCRATCH = 65536 };
static const int64_t poll_ns = 20000;

struct cuda_device;

// A stream, and what a launch on it gets.
struct up_cuda {
    struct cuda_device *device;
    cudaStream_t stream;
    uint64_t given; // pieces of work, ever
    struct {
        uint64_t ticket;
        cudaEvent_t event;
    } recorded[EVENTS];
    int next_event;
    void *scratch;
    int64_t scratch_bytes;
};

struct slot {
    const void *key;
    void *kept;
    void (*destroy)(void *kept);
};

struct cuda_device {
    struct up_device base;
    int index, multiprocessors, capability;
    int64_t start_ns;
    struct up_cuda stream[UP_STREAM_COUNT];
    cublasHandle_t blas;
    struct slot slot[SLOTS];
    struct up_cuda_memory memory;
    struct up_listener *listener; // NVTX; NULL: nobody listens
    struct up_error error;        // the first failure
};

static struct cuda_device *cuda_of(struct up_device *device)
{
    return (struct cuda_device *)device;
}

/* --- Failure
 * -------------------------------------------------------------------------------------- */

void up_cuda_fail(struct up_cuda *cuda, const char *format, ...)
{
    struct up_error *error = &cuda->device->error;
    if (error->status) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    error->status = UP_FAILED;
}

bool up_cuda_try(struct up_cuda *cuda, cudaError_t status, const char *what)
{
    if (status == cudaSuccess) return false;
    up_cuda_fail(cuda, "GPU %d: %s: %s", cuda->device->index, what, cudaGetErrorString(status));
    return true;
}

static enum up_status check(struct up_device *device, struct up_error *err)
{
    struct cuda_device *cuda = cuda_of(device);
    up_cuda_try(&cuda->stream[UP_STREAM_COMPUTE], cudaGetLastError(), "a launch");
    if (!cuda->error.status) return UP_OK;
    return up_fail(err, UP_FAILED, "%s", cuda->error.text);
}

enum up_status up_cuda_check(struct up_device *device, struct up_error *err)
{
    return check(device, err);
}

/* --- Memory
 * --------------------------------------------------------------------------------------- */

static enum up_status reserve(struct up_device *device, enum up_space space, int64_t bytes,
                              void **base, struct up_error *err)
{
    return up_cuda_memory_reserve(&cuda_of(device)->memory, space, bytes, base, err);
}

static void release(struct up_device *device, enum up_space space, void *base, int64_t bytes)
{
    up_cuda_memory_release(&cuda_of(device)->memory, space, base, bytes);
}

static enum up_status back(struct up_device *device, enum up_space space, void *base, int64_t bytes,
                           bool for_good, struct up_error *err)
{
    return up_cuda_memory_back(&cuda_of(device)->memory, space, base, bytes, for_good, err);
}

/* --- Work
 * ----------------------------------------------------------------------------------------- */

static int64_t clock_ns(struct up_device *device)
{
    return up_clock_ns() - cuda_of(device)->start_ns;
}

static struct up_interval launch(struct up_device *device, enum up_stream stream, union up_call run,
                                 const void *args, size_t size, const struct up_cost *cost)
{
    struct cuda_device *cuda = cuda_of(device);
    int64_t now = clock_ns(device);
    (void)size;
    (void)cost;
    if (!cuda->error.status) run.cuda(args, &cuda->stream[stream]);
    cuda->stream[stream].given++;
    return (struct up_interval){now, now};
}

static struct up_interval copy(struct up_device *device, enum up_stream stream, void *to,
                               enum up_space to_space, const void *from, enum up_space from_space,
                               int64_t bytes)
{
    struct up_cuda *cuda = &cuda_of(device)->stream[stream];
    int64_t now = clock_ns(device);
    (void)to_space;
    (void)from_space;
    if (!cuda->device->error.status)
        up_cuda_try(cuda, cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, cuda->stream),
                    "a copy");
    cuda->given++;
    return (struct up_interval){now, now};
}

// By the stream itself: a call of the host in its place would need a thread of the driver's, and
// memory for it, in the middle of collectives.
static void tick(struct up_device *device, enum up_stream stream, _Atomic uint64_t *at,
                 uint64_t value)
{
    struct up_cuda *cuda = &cuda_of(device)->stream[stream];
    if (cuda->device->error.status) return;
    if (cuda->device->memory.driver.write_value(cuda->stream, (CUdeviceptr)at, value, 0))
        up_cuda_fail(cuda, "GPU %d: cannot tell how far it is", cuda->device->index);
    cuda->given++;
}

static struct up_moment now_in(struct up_device *device, enum up_stream stream)
{
    return (struct up_moment){stream, cuda_of(device)->stream[stream].given};
}

// An event at or after the moment: the earliest that is recorded, or one recorded now.
static cudaEvent_t event_after(struct up_cuda *cuda, uint64_t ticket)
{
    int best = -1;
    for (int i = 0; i < EVENTS; i++)
        if (cuda->recorded[i].ticket >= ticket &&
            (best < 0 || cuda->recorded[i].ticket < cuda->recorded[best].ticket))
            best = i;
    if (best >= 0) return cuda->recorded[best].event;
    int slot = cuda->next_event;
    cuda->next_event = (slot + 1) % EVENTS;
    up_cuda_try(cuda, cudaEventRecord(cuda->recorded[slot].event, cuda->stream), "an event");
    cuda->recorded[slot].ticket = cuda->given;
    return cuda->recorded[slot].event;
}

static struct up_moment mark(struct up_device *device, enum up_stream stream)
{
    struct cuda_device *cuda = cuda_of(device);
    struct up_cuda *on = &cuda->stream[stream];
    if (on->given && !cuda->error.status) event_after(on, on->given);
    return now_in(device, stream);
}

static void wait_moment(struct up_device *device, enum up_stream stream, struct up_moment moment)
{
    struct cuda_device *cuda = cuda_of(device);
    if (!moment.ticket || moment.stream == stream || cuda->error.status) return;
    cudaEvent_t event = event_after(&cuda->stream[moment.stream], moment.ticket);
    up_cuda_try(&cuda->stream[stream], cudaStreamWaitEvent(cuda->stream[stream].stream, event, 0),
                "waiting for a stream");
    // Work, too: whoever waits for this stream from now on also waits for what it waits for, which
    // an event recorded before does not tell of.
    cuda->stream[stream].given++;
}

// Polls, so that a rank whose group has been given up does not wait for ever for its collectives.
static void synchronize(struct up_device *device, struct up_moment moment)
{
    struct up_cuda *cuda = &cuda_of(device)->stream[moment.stream];
    for (;;) {
        cudaError_t status = cudaStreamQuery(cuda->stream);
        if (status != cudaErrorNotReady) {
            up_cuda_try(cuda, status, "work on the GPU");
            return;
        }
        if (device->given_up && device->given_up(device->given_up_context)) return;
        nanosleep(&(struct timespec){.tv_nsec = poll_ns}, NULL);
    }
}

/* --- Life
 * ----------------------------------------------------------------------------------------- */

static void bind_thread(struct up_device *device)
{
    struct cuda_device *cuda = cuda_of(device);
    up_cuda_try(&cuda->stream[0], cudaSetDevice(cuda->index), "cudaSetDevice");
}

// The tagged allocator's memory, for cuBLAS and the streams' scratch.
static void give_workspace(struct up_device *device, void *workspace)
{
    struct cuda_device *cuda = cuda_of(device);
    UP_ASSERT(up_device_workspace_bytes(UP_DEVICE_CUDA) ==
              BLAS_WORKSPACE + COMPUTE_SCRATCH + (UP_STREAM_COUNT - 1) * OTHER_SCRATCH);
    if (cublasSetWorkspace(cuda->blas, workspace, BLAS_WORKSPACE))
        up_cuda_fail(&cuda->stream[0], "GPU %d: cuBLAS does not take its workspace", cuda->index);
    char *at = (char *)workspace + BLAS_WORKSPACE;
    for (int i = 0; i < UP_STREAM_COUNT; i++) {
        cuda->stream[i].scratch = at;
        cuda->stream[i].scratch_bytes = i == UP_STREAM_COMPUTE ? COMPUTE_SCRATCH : OTHER_SCRATCH;
        at += cuda->stream[i].scratch_bytes;
    }
}

static int64_t used_bytes(struct up_device *device)
{
    return up_cuda_used_bytes(cuda_of(device)->index);
}

static void range(struct up_device *device, const struct up_label *label)
{
    struct up_listener *listener = cuda_of(device)->listener;
    if (listener) up_listener_range(listener, label);
}

static void name(struct up_device *device, const void *at, int64_t bytes,
                 const struct up_label *label, bool renamed)
{
    struct up_regions *regions = cuda_of(device)->memory.regions;
    if (!regions) return;
    if (!renamed) up_regions_add(regions, at, bytes);
    up_regions_name(regions, at, bytes, label);
}

// A tool checks what work does when it runs, and here that may be much later: it is waited for.
static void discard(struct up_device *device, enum up_stream stream, void *at, int64_t bytes)
{
    struct up_regions *regions = cuda_of(device)->memory.regions;
    if (!regions || !up_regions_hold(regions, at, bytes)) return;
    synchronize(device, now_in(device, stream));
    up_regions_remove(regions, at, bytes);
}

static void destroy(struct up_device *device)
{
    struct cuda_device *cuda = cuda_of(device);
    cudaSetDevice(cuda->index);
    for (int i = 0; i < SLOTS; i++)
        if (cuda->slot[i].kept) cuda->slot[i].destroy(cuda->slot[i].kept);
    if (cuda->blas) cublasDestroy(cuda->blas);
    up_listener_destroy(cuda->listener);
    up_regions_destroy(cuda->memory.regions);
    for (int i = 0; i < UP_STREAM_COUNT; i++) {
        for (int e = 0; e < EVENTS; e++)
            if (cuda->stream[i].recorded[e].event)
                cudaEventDestroy(cuda->stream[i].recorded[e].event);
        if (cuda->stream[i].stream) cudaStreamDestroy(cuda->stream[i].stream);
    }
    free(cuda);
}

static const struct up_device_ops cuda_ops = {
    .bind = bind_thread,
    .reserve = reserve,
    .release = release,
    .back = back,
    .give_workspace = give_workspace,
    .launch = launch,
    .copy = copy,
    .now_in = now_in,
    .tick = tick,
    .wait = wait_moment,
    .mark = mark,
    .synchronize = synchronize,
    .name = name,
    .discard = discard,
    .check = check,
    .used_bytes = used_bytes,
    .range = range,
    .clock_ns = clock_ns,
    .destroy = destroy,
};

// Since the device was made, or since what was taken last.
static void took(struct cuda_device *cuda, const char *owner, int64_t used_before)
{
    struct up_device_took *place = cuda->base.took;
    int64_t begin_ns = -1;
    for (; place->owner; place++) begin_ns = place->end_ns;
    *place = (struct up_device_took){owner, up_cuda_used_bytes(cuda->index) - used_before, begin_ns,
                                     clock_ns(&cuda->base)};
}

static enum up_status make_streams(struct cuda_device *cuda, struct up_error *err)
{
    int least = 0, greatest = 0;
    cudaError_t ranged = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (ranged) return up_cuda_fail_at(cuda->index, "has no stream priorities", ranged, err);
    for (int i = 0; i < UP_STREAM_COUNT; i++) {
        struct up_cuda *stream = &cuda->stream[i];
        stream->device = cuda;
        // What feeds the computation goes before it where both could run.
        cudaError_t status = cudaStreamCreateWithPriority(
            &stream->stream, cudaStreamNonBlocking, i == UP_STREAM_COMPUTE ? least : greatest);
        for (int e = 0; !status && e < EVENTS; e++)
            status = cudaEventCreateWithFlags(&stream->recorded[e].event, cudaEventDisableTiming);
        if (status) return up_cuda_fail_at(cuda->index, "cannot make a stream", status, err);
    }
    took(cuda, "context", cuda->base.used_before_bytes);
    int64_t before = up_cuda_used_bytes(cuda->index);
    if (cublasCreate(&cuda->blas) ||
        cublasSetStream(cuda->blas, cuda->stream[UP_STREAM_COMPUTE].stream))
        return up_fail(err, UP_FAILED, "GPU %d: cuBLAS does not start", cuda->index);
    took(cuda, "cublas", before);
    return UP_OK;
}

// NULL where no tool listens.
static struct up_regions *create_regions(void)
{
    enum { PROBE_BYTES = 4096 };
    struct up_regions *regions = up_regions_create();
    void *probe = NULL;
    bool listened = regions && cudaMalloc(&probe, PROBE_BYTES) == cudaSuccess &&
                    up_regions_listened(regions, probe, PROBE_BYTES);
    cudaFree(probe);
    cudaGetLastError(); // of a probe that failed, which is no launch's
    if (listened) return regions;
    up_regions_destroy(regions);
    return NULL;
}

static enum up_status start(struct cuda_device *cuda, struct up_error *err)
{
    struct cudaDeviceProp prop;
    size_t free_bytes = 0, total = 0;
    int64_t free_before = up_cuda_free_before(cuda->index);
    cudaError_t status = cudaSetDevice(cuda->index);
    if (!status) status = cudaGetDeviceProperties(&prop, cuda->index);
    if (!status) status = cudaMemGetInfo(&free_bytes, &total);
    if (status) return up_cuda_fail_at(cuda->index, "cannot be used", status, err);
    cuda->capability = prop.major * 10 + prop.minor;
    cuda->multiprocessors = prop.multiProcessorCount;
    if (cuda->capability < MIN_CAPABILITY)
        return up_fail(err, UP_USAGE,
                       "--device cuda: GPU %d (%s) has compute capability %d.%d: expected "
                       "8.0 or later",
                       cuda->index, prop.name, prop.major, prop.minor);
    enum up_status rc = up_cuda_memory_open(&cuda->memory, cuda->index, cuda->base.backed, err);
    if (rc) return rc;
    int64_t physical = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    cuda->base.capacity[UP_SPACE_DEVICE] = (int64_t)total;
    cuda->base.capacity[UP_SPACE_HOST] = physical;
    // With nobody to ask before there was a context, a usual one is taken off.
    cuda->base.used_before_guessed = free_before < 0;
    int64_t known = free_before < 0 ? (int64_t)free_bytes + USUAL_CONTEXT : free_before;
    cuda->base.used_before_bytes = up_max(0, (int64_t)total - known);
    cuda->listener = up_listener_create();
    cuda->memory.regions = create_regions();
    snprintf(cuda->base.name, sizeof cuda->base.name, "%.100s", prop.name);
    return make_streams(cuda, err);
}

struct up_device *up_device_cuda_create(int index, struct up_error *err)
{
    struct cuda_device *cuda = calloc(1, sizeof *cuda);
    if (!cuda) {
        up_fail(err, UP_FAILED, "out of host memory");
        return NULL;
    }
    cuda->base = (struct up_device){.ops = &cuda_ops, .kind = UP_DEVICE_CUDA, .as = UP_DEVICE_CUDA};
    cuda->index = index;
    cuda->start_ns = up_clock_ns();
    if (start(cuda, err)) {
        destroy(&cuda->base);
        return NULL;
    }
    return &cuda->base;
}

int up_device_cuda_index(const struct up_device *device)
{
    return ((const struct cuda_device *)device)->index;
}

int up_device_cuda_count(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) ? 0 : count;
}

/* --- What operations ask
 * -------------------------------------------------------------------------- */

cudaStream_t up_cuda_stream(struct up_cuda *cuda)
{
    return cuda->stream;
}

cublasHandle_t up_cuda_blas(struct up_cuda *cuda)
{
    UP_ASSERT(cuda == &cuda->device->stream[UP_STREAM_COMPUTE]); // the handle is that stream's
    return cuda->device->blas;
}

int up_cuda_multiprocessors(const struct up_cuda *cuda)
{
    return cuda->device->multiprocessors;
}

int up_cuda_compute_capability(const struct up_cuda *cuda)
{
    return cuda->device->capability;
}

void **up_cuda_slot(struct up_cuda *cuda, const void *key, void (*destroy_kept)(void *kept))
{
    struct slot *slot = cuda->device->slot;
    while (slot < cuda->device->slot + SLOTS && slot->key && slot->key != key) slot++;
    UP_ASSERT(slot < cuda->device->slot + SLOTS);
    slot->key = key;
    slot->destroy = destroy_kept;
    return &slot->kept;
}

void *up_cuda_scratch(struct up_cuda *cuda)
{
    UP_ASSERT(cuda->scratch);
    return cuda->scratch;
}

int64_t up_cuda_scratch_bytes(const struct up_cuda *cuda)
{
    return cuda->scratch_bytes;
}

struct up_cuda *up_device_cuda_launch(struct up_device *device)
{
    return &cuda_of(device)->stream[UP_STREAM_COMPUTE];
}
