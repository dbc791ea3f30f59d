#include "profiler/cuda/watcher.h"
#include "profiler/cuda/cupti.h"
#include "profiler/cuda/translate.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUFFER_BYTES = 2 << 20,
    BUFFERS_MAX = 128, // a thread that uses CUDA has one, and
                       // what CUPTI cannot put there it drops, and counts
    BUFFER_ALIGN = 8,
    CHECK_BYTES = 2 << 20,
    TROUBLE_TEXT = 256,
};

struct buffer {
    uint8_t *bytes; // NULL until it is asked for
    size_t valid;
    bool lent;      // CUPTI has it
    uint64_t order; // of those that came back, 0: empty
};

struct up_watcher {
    struct up_cupti cupti;
    CUpti_SubscriberHandle subscriber;
    bool subscribed, memory, kernels; // what CUPTI has granted
    struct up_watcher_guest guest;    // who NULL: there is none
    struct up_marks *marks;
    struct up_translation translation;
    int64_t clock_read_ns;
    char trouble[TROUBLE_TEXT]; // the first; "" while there is none
    bool trouble_told, last;
    int64_t dropped;
    pthread_mutex_t lock; // of what follows
    struct buffer buffer[BUFFERS_MAX];
    int buffers; // how many may be used
    uint64_t returned;
};

static const int64_t clock_interval_ns = 1000000000;

// CUPTI's callbacks for buffers say nothing of whose they are.
static _Atomic(struct up_watcher *) watching;
// Callbacks under way: CUPTI does not wait for them when it is told to end.
static atomic_int under_way;
// What a thread gives its GPU is for this rank; NULL: for none.
static _Thread_local const struct up_rank *bound;

__attribute__((format(printf, 2, 3))) static void keep_trouble(struct up_watcher *watcher,
                                                               const char *format, ...)
{
    va_list arguments;
    if (*watcher->trouble) return;
    va_start(arguments, format);
    vsnprintf(watcher->trouble, sizeof watcher->trouble, format, arguments);
    va_end(arguments);
}

// The watcher, which stays until leave(); NULL: there is none any more.
static struct up_watcher *enter(void)
{
    atomic_fetch_add(&under_way, 1);
    return atomic_load(&watching);
}

static void leave(void)
{
    atomic_fetch_sub(&under_way, 1);
}

/* --- Buffers: on any thread ----------------------------------------------------------------------
 */

static struct buffer *empty_buffer(struct up_watcher *watcher)
{
    for (int i = 0; i < watcher->buffers; i++) {
        struct buffer *buffer = &watcher->buffer[i];
        if (buffer->lent || buffer->order) continue;
        if (!buffer->bytes) buffer->bytes = aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES);
        if (buffer->bytes) return buffer;
    }
    return NULL;
}

static void lend(struct up_watcher *watcher, uint8_t **bytes, size_t *size)
{
    pthread_mutex_lock(&watcher->lock);
    struct buffer *buffer = empty_buffer(watcher);
    if (buffer) {
        buffer->lent = true;
        *bytes = buffer->bytes;
        *size = BUFFER_BYTES;
    }
    pthread_mutex_unlock(&watcher->lock);
}

static void CUPTIAPI lend_buffer(uint8_t **bytes, size_t *size, size_t *records)
{
    struct up_watcher *watcher = enter();
    *bytes = NULL;
    *size = *records = 0;
    if (watcher) lend(watcher, bytes, size);
    leave();
}

static void take(struct up_watcher *watcher, const uint8_t *bytes, size_t valid)
{
    pthread_mutex_lock(&watcher->lock);
    for (int i = 0; i < watcher->buffers; i++) {
        struct buffer *buffer = &watcher->buffer[i];
        if (buffer->bytes != bytes || !buffer->lent) continue;
        buffer->lent = false;
        buffer->valid = valid;
        buffer->order = valid ? ++watcher->returned : 0;
    }
    pthread_mutex_unlock(&watcher->lock);
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *bytes, size_t size,
                                 size_t valid)
{
    struct up_watcher *watcher = enter();
    (void)context;
    (void)stream;
    (void)size;
    if (watcher) take(watcher, bytes, valid);
    leave();
}

// The one that came back first, until it is given up with order 0; NULL: none is there.
static struct buffer *oldest_buffer(struct up_watcher *watcher)
{
    struct buffer *oldest = NULL;
    pthread_mutex_lock(&watcher->lock);
    for (int i = 0; i < watcher->buffers; i++) {
        struct buffer *buffer = &watcher->buffer[i];
        if (buffer->order && (!oldest || buffer->order < oldest->order)) oldest = buffer;
    }
    pthread_mutex_unlock(&watcher->lock);
    return oldest;
}

static void give_up_buffer(struct up_watcher *watcher, struct buffer *buffer)
{
    pthread_mutex_lock(&watcher->lock);
    buffer->order = 0;
    pthread_mutex_unlock(&watcher->lock);
}

/* --- Calls: on the thread that makes them --------------------------------------------------------
 */

static void leave_mark(struct up_watcher *watcher, uint32_t call)
{
    const struct up_rank *rank = bound;
    struct up_mark mark = {.rank = -1, .step = -1};
    if (watcher->guest.who)
        watcher->guest.who(watcher->guest.context, &mark);
    else if (rank)
        mark = (struct up_mark){
            .rank = rank->rank,
            .step = (int32_t)rank->step,
            .kind = rank->work_kind,
            .work_id = rank->work_now,
            .range_id = rank->range_depth ? rank->open_ranges[rank->range_depth - 1] : 0};
    up_marks_leave(watcher->marks, call, &mark);
}

static void CUPTIAPI on_call(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                             const void *pointer)
{
    const CUpti_CallbackData *call = pointer;
    (void)domain;
    (void)id;
    if (call->callbackSite != CUPTI_API_ENTER || !call->correlationId) return;
    struct up_watcher *watcher = enter();
    if (watcher && watcher == context) leave_mark(watcher, call->correlationId);
    leave();
}

#define RUNTIME(name)                                                                              \
    {                                                                                              \
        CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_##name                               \
    }
#define DRIVER(name)                                                                               \
    {                                                                                              \
        CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_##name                                 \
    }

// Calls that give a device work, of the runtime and, since libraries go there directly, the driver.
struct call {
    CUpti_CallbackDomain domain;
    CUpti_CallbackId id;
};
static const struct call work_calls[] = {
    RUNTIME(cudaLaunchKernel_v7000),
    RUNTIME(cudaLaunchKernel_ptsz_v7000),
    RUNTIME(cudaLaunchKernelExC_v11060),
    RUNTIME(cudaLaunchKernelExC_ptsz_v11060),
    RUNTIME(__cudaLaunchKernel_v13000),
    RUNTIME(__cudaLaunchKernel_ptsz_v13000),
    RUNTIME(cudaLaunchCooperativeKernel_v9000),
    RUNTIME(cudaLaunchCooperativeKernel_ptsz_v9000),
    RUNTIME(cudaGraphLaunch_v10000),
    RUNTIME(cudaGraphLaunch_ptsz_v10000),
    RUNTIME(cudaMemcpy_v3020),
    RUNTIME(cudaMemcpyAsync_v3020),
    RUNTIME(cudaMemcpyAsync_ptsz_v7000),
    RUNTIME(cudaMemcpyPeerAsync_v4000),
    RUNTIME(cudaMemcpy2DAsync_v3020),
    RUNTIME(cudaMemcpy2DAsync_ptsz_v7000),
    RUNTIME(cudaMemset_v3020),
    RUNTIME(cudaMemsetAsync_v3020),
    RUNTIME(cudaMemsetAsync_ptsz_v7000),
    DRIVER(cuLaunchKernel),
    DRIVER(cuLaunchKernel_ptsz),
    DRIVER(cuLaunchKernelEx),
    DRIVER(cuLaunchKernelEx_ptsz),
    DRIVER(cuLaunchCooperativeKernel),
    DRIVER(cuLaunchCooperativeKernel_ptsz),
    DRIVER(cuGraphLaunch),
    DRIVER(cuGraphLaunch_ptsz),
    DRIVER(cuMemcpy),
    DRIVER(cuMemcpyHtoD_v2),
    DRIVER(cuMemcpyDtoH_v2),
    DRIVER(cuMemcpyDtoD_v2),
    DRIVER(cuMemsetD8_v2),
    DRIVER(cuMemsetD16_v2),
    DRIVER(cuMemsetD32_v2),
    DRIVER(cuMemcpyAsync),
    DRIVER(cuMemcpyAsync_ptsz),
    DRIVER(cuMemcpyHtoDAsync_v2),
    DRIVER(cuMemcpyHtoDAsync_v2_ptsz),
    DRIVER(cuMemcpyDtoHAsync_v2),
    DRIVER(cuMemcpyDtoHAsync_v2_ptsz),
    DRIVER(cuMemcpyDtoDAsync_v2),
    DRIVER(cuMemcpyDtoDAsync_v2_ptsz),
    DRIVER(cuMemcpyPeerAsync),
    DRIVER(cuMemcpy2DAsync_v2),
    DRIVER(cuMemcpy2DAsync_v2_ptsz),
    DRIVER(cuMemsetD8Async),
    DRIVER(cuMemsetD8Async_ptsz),
    DRIVER(cuMemsetD16Async),
    DRIVER(cuMemsetD16Async_ptsz),
    DRIVER(cuMemsetD32Async),
    DRIVER(cuMemsetD32Async_ptsz),
};

// Calls that ask for memory.
static const struct call memory_calls[] = {
    RUNTIME(cudaMalloc_v3020),
    RUNTIME(cudaMallocPitch_v3020),
    RUNTIME(cudaMallocHost_v3020),
    RUNTIME(cudaHostAlloc_v3020),
    RUNTIME(cudaMallocManaged_v6000),
    RUNTIME(cudaMallocAsync_v11020),
    RUNTIME(cudaMallocAsync_ptsz_v11020),
    RUNTIME(cudaMallocFromPoolAsync_v11020),
    RUNTIME(cudaMallocFromPoolAsync_ptsz_v11020),
    DRIVER(cuMemAlloc_v2),
    DRIVER(cuMemAllocPitch_v2),
    DRIVER(cuMemAllocHost_v2),
    DRIVER(cuMemHostAlloc),
    DRIVER(cuMemAllocManaged),
    DRIVER(cuMemAllocAsync),
    DRIVER(cuMemAllocAsync_ptsz),
    DRIVER(cuMemAllocFromPoolAsync),
    DRIVER(cuMemAllocFromPoolAsync_ptsz),
    DRIVER(cuMemMap),
};

/* --- Setting up ----------------------------------------------------------------------------------
 */

static void subscribe(struct up_watcher *watcher)
{
    char rival[2 * CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN] = "";
    CUpti_SubscriberParams params = {.structSize = CUpti_SubscriberParams_STRUCT_SIZE,
                                     .subscriberName = "upipe",
                                     .oldSubscriberName = rival,
                                     .oldSubscriberSize = sizeof rival - 1};
    CUptiResult result = watcher->cupti.subscribe(&watcher->subscriber, on_call, watcher, &params);
    watcher->subscribed = result == CUPTI_SUCCESS;
    if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
        keep_trouble(watcher, "another tool has CUPTI: %s",
                     *rival ? rival : "it does not give its name");
    else if (result)
        keep_trouble(watcher, "CUPTI refuses: %s", up_cupti_text(&watcher->cupti, result));
}

static bool enable(struct up_watcher *watcher, CUpti_ActivityKind kind, const char *what)
{
    CUptiResult result = watcher->cupti.enable(kind);
    if (result)
        keep_trouble(watcher, "CUPTI does not tell of %s: %s", what,
                     up_cupti_text(&watcher->cupti, result));
    return !result;
}

// Without some of them a few pieces of work lack their times.
static void listen(struct up_watcher *watcher, const struct call *calls, int count)
{
    for (int i = 0; i < count; i++)
        watcher->cupti.enable_callback(1, watcher->subscriber, calls[i].domain, calls[i].id);
}

static void enable_kernels(struct up_watcher *watcher)
{
    bool any = enable(watcher, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kernels");
    any |= enable(watcher, CUPTI_ACTIVITY_KIND_MEMCPY, "copies");
    any |= enable(watcher, CUPTI_ACTIVITY_KIND_MEMSET, "fills");
    watcher->kernels = any;
    if (any) listen(watcher, work_calls, UP_COUNT(work_calls));
}

static void set_up(struct up_watcher *watcher, bool kernels)
{
    char why[TROUBLE_TEXT];
    if (!up_cupti_open(&watcher->cupti, why, sizeof why)) {
        keep_trouble(watcher, "%s", why);
        return;
    }
    subscribe(watcher);
    if (!watcher->subscribed) return;
    CUptiResult result = watcher->cupti.register_buffers(lend_buffer, take_buffer);
    if (result) {
        keep_trouble(watcher, "CUPTI refuses: %s", up_cupti_text(&watcher->cupti, result));
        return;
    }
    watcher->memory = enable(watcher, CUPTI_ACTIVITY_KIND_MEMORY2, "memory");
    if (watcher->memory) enable(watcher, CUPTI_ACTIVITY_KIND_MEMORY_POOL, "memory pools");
    result = watcher->memory ? watcher->cupti.enable_source(1) : CUPTI_SUCCESS;
    if (result)
        keep_trouble(watcher, "CUPTI does not tell which library takes memory: %s",
                     up_cupti_text(&watcher->cupti, result));
    if (watcher->guest.who && watcher->memory)
        listen(watcher, memory_calls, UP_COUNT(memory_calls));
    if (kernels) enable_kernels(watcher);
}

struct up_watcher *up_watcher_create(const struct up_watcher_options *options)
{
    struct up_watcher *watcher = calloc(1, sizeof *watcher);
    bool marked = options->kernels || options->guest;
    struct up_marks *marks = marked ? up_marks_create() : NULL;
    if (!watcher || (marked && !marks) || pthread_mutex_init(&watcher->lock, NULL)) {
        free(watcher);
        up_marks_destroy(marks);
        return NULL;
    }
    watcher->marks = marks;
    if (options->guest) watcher->guest = *options->guest;
    watcher->buffers = options->buffers ? (int)up_min(options->buffers, BUFFERS_MAX) : BUFFERS_MAX;
    struct up_watcher *none = NULL;
    if (atomic_compare_exchange_strong(&watching, &none, watcher))
        set_up(watcher, options->kernels);
    else
        keep_trouble(watcher, "another part of this process has CUPTI");
    return watcher;
}

void up_watcher_add(struct up_watcher *watcher, int index, int rank, struct up_device *device)
{
    if (index < 0 || index >= UP_GPU_SEATS) return;
    watcher->translation.seat[index] = (struct up_gpu_seat){
        .taken = true, .rank = rank, .start_ns = up_clock_ns() - device->ops->clock_ns(device)};
}

void up_watcher_bind(struct up_watcher *watcher, const struct up_rank *rank)
{
    (void)watcher;
    bound = rank;
}

/* --- Records: on the recorder's thread -----------------------------------------------------------
 */

// Both clocks at once, as nearly as a few attempts allow.
static void read_clocks(struct up_watcher *watcher)
{
    int64_t best = INT64_MAX, theirs = 0, ours = 0, now = up_clock_ns();
    if (watcher->clock_read_ns && now - watcher->clock_read_ns < clock_interval_ns) return;
    watcher->clock_read_ns = now;
    for (int i = 0; i < 5; i++) {
        uint64_t reading = 0;
        int64_t before = up_clock_ns();
        if (watcher->cupti.timestamp(&reading)) return;
        int64_t took = up_clock_ns() - before;
        if (took >= best) continue;
        best = took;
        theirs = (int64_t)reading;
        ours = before + took / 2;
    }
    up_clock_map_add(&watcher->translation.clock, theirs, ours);
}

static void tell_guest(const struct up_watcher *watcher, const struct up_activity *activity)
{
    struct up_mark mark = {0};
    if (!watcher->guest.seen ||
        (activity->kind != UP_ACTIVITY_ALLOC && activity->kind != UP_ACTIVITY_RELEASE))
        return;
    bool marked = up_marks_find(watcher->marks, activity->correlation[0], &mark);
    uint64_t range = marked && mark.rank == activity->rank ? mark.range_id : 0;
    watcher->guest.seen(watcher->guest.context, activity, range);
}

static void tell_buffer(struct up_watcher *watcher, struct buffer *buffer,
                        struct up_recorder *recorder)
{
    CUpti_Activity *record = NULL;
    struct up_activity activity;
    while (!watcher->cupti.next_record(buffer->bytes, buffer->valid, &record)) {
        if (up_translate(&watcher->translation, record, &activity)) {
            tell_guest(watcher, &activity);
            up_recorder_activity(recorder, &activity);
        }
        if (up_translate_pool(&watcher->translation, record, &activity))
            up_recorder_activity(recorder, &activity);
    }
}

static void collect(void *context, bool last)
{
    struct up_watcher *watcher = context;
    watcher->last = last;
    if (!watcher->memory && !watcher->kernels) return;
    read_clocks(watcher);
    CUptiResult result = watcher->cupti.flush(last ? CUPTI_ACTIVITY_FLAG_FLUSH_FORCED : 0);
    if (result)
        keep_trouble(watcher, "CUPTI does not tell what it has: %s",
                     up_cupti_text(&watcher->cupti, result));
}

static void count_dropped(struct up_watcher *watcher)
{
    size_t dropped = 0;
    if (!watcher->cupti.dropped(NULL, 0, &dropped)) watcher->dropped += (int64_t)dropped;
}

static void tell_trouble(struct up_watcher *watcher, struct up_recorder *recorder)
{
    char text[TROUBLE_TEXT];
    if (*watcher->trouble && !watcher->trouble_told)
        up_recorder_diagnostic(recorder, "cupti", watcher->trouble);
    watcher->trouble_told = *watcher->trouble != 0;
    if (!watcher->last || !watcher->dropped) return;
    snprintf(text, sizeof text,
             "CUPTI dropped %lld records for want of buffers: what they told is missing",
             (long long)watcher->dropped);
    up_recorder_diagnostic(recorder, "cupti_dropped", text);
}

static void tell(void *context, struct up_recorder *recorder)
{
    struct up_watcher *watcher = context;
    struct buffer *buffer;
    for (; (buffer = oldest_buffer(watcher)); give_up_buffer(watcher, buffer))
        tell_buffer(watcher, buffer, recorder);
    if (watcher->memory || watcher->kernels) count_dropped(watcher);
    tell_trouble(watcher, recorder);
    if (watcher->guest.told) watcher->guest.told(watcher->guest.context, recorder, watcher->last);
}

/* --- Life ----------------------------------------------------------------------------------------
 */

static bool buffer_holds(const struct up_watcher *watcher, const struct buffer *buffer,
                         uint64_t address)
{
    CUpti_Activity *record = NULL;
    while (!watcher->cupti.next_record(buffer->bytes, buffer->valid, &record))
        if (record->kind == CUPTI_ACTIVITY_KIND_MEMORY2 &&
            ((const CUpti_ActivityMemory4 *)record)->address == address)
            return true;
    return false;
}

// Takes memory and looks whether CUPTI has seen that.
static void check_itself(struct up_watcher *watcher)
{
    void *memory = NULL;
    int device = 0;
    bool seen = false;
    while (device < UP_GPU_SEATS && !watcher->translation.seat[device].taken) device++;
    if (!watcher->memory || device == UP_GPU_SEATS || cudaSetDevice(device) ||
        cudaMalloc(&memory, CHECK_BYTES))
        return;
    cudaFree(memory);
    watcher->cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    pthread_mutex_lock(&watcher->lock);
    for (int i = 0; i < watcher->buffers; i++)
        seen |= watcher->buffer[i].order &&
                buffer_holds(watcher, &watcher->buffer[i], (uintptr_t)memory);
    pthread_mutex_unlock(&watcher->lock);
    if (!seen)
        keep_trouble(watcher, "CUPTI works but did not tell of memory taken as a test: what "
                              "libraries take may be missing");
}

enum up_status up_watcher_attach(struct up_watcher *watcher, struct up_recorder *recorder,
                                 struct up_error *err)
{
    struct up_observer observer = {.context = watcher,
                                   .collect = collect,
                                   .tell = tell,
                                   .marks = watcher->marks,
                                   .times = watcher->kernels,
                                   .foreign = watcher->guest.who};
    if (watcher->memory || watcher->kernels) read_clocks(watcher);
    if (!watcher->guest.who) check_itself(watcher);
    return up_recorder_observe(recorder, &observer, err);
}

static void disable(struct up_watcher *watcher)
{
    static const CUpti_ActivityKind memory[] = {CUPTI_ACTIVITY_KIND_MEMORY2,
                                                CUPTI_ACTIVITY_KIND_MEMORY_POOL},
                                    kernels[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                                 CUPTI_ACTIVITY_KIND_MEMCPY,
                                                 CUPTI_ACTIVITY_KIND_MEMSET};
    for (int i = 0; watcher->memory && i < UP_COUNT(memory); i++) watcher->cupti.disable(memory[i]);
    for (int i = 0; watcher->kernels && i < UP_COUNT(kernels); i++)
        watcher->cupti.disable(kernels[i]);
    if (watcher->memory || watcher->kernels) watcher->cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    if (watcher->subscribed) watcher->cupti.unsubscribe(watcher->subscriber);
}

void up_watcher_forget(void)
{
    atomic_store(&watching, NULL);
    atomic_store(&under_way, 0);
}

void up_watcher_destroy(struct up_watcher *watcher)
{
    bool lent = false;
    if (!watcher) return;
    bound = NULL;
    disable(watcher);
    struct up_watcher *self = watcher;
    if (atomic_compare_exchange_strong(&watching, &self, NULL))
        while (atomic_load(&under_way)) sched_yield();
    for (int i = 0; i < BUFFERS_MAX; i++) {
        // One that CUPTI has kept may yet be written to.
        if (!watcher->buffer[i].lent) free(watcher->buffer[i].bytes);
        lent |= watcher->buffer[i].lent;
    }
    up_marks_destroy(watcher->marks);
    up_cupti_close(&watcher->cupti);
    if (lent) return; // and its callback may still come
    pthread_mutex_destroy(&watcher->lock);
    free(watcher);
}
