/* libupipe_inject.so: records a CUDA program that knows nothing of upipe into a run.db.
 *
 *   CUDA_INJECTION64_PATH=libupipe_inject.so NVTX_INJECTION64_PATH=libupipe_inject.so program
 *
 * CUDA loads it when it starts, NVTX at its first call. What the driver gives and when kernels run
 * comes from CUPTI, ranges from NVTX's own tables of functions. Whatever goes wrong, the program
 * goes on: nothing here waits, and nothing is told to it but one line on stderr. */
#define _GNU_SOURCE // dladdr
#include "profiler/cuda/inject/driver.h"

#include "profiler/cuda/watcher.h"
#include "profiler/foreign.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <nvtx3/nvToolsExt.h>

enum { NAP_NS = 20000000, DEPTH_MAX = 64, TEXT_MAX = 256, END_WITHIN_NAPS = 500 };
static const int64_t order_within_ns = 2000000000; // what comes later is out of order

struct gpu {
    struct up_device device; // first: it is asked for its use as a device
    struct injected *injected;
    int index;
    struct up_trace *trace;
    bool context_told; // what the driver took for itself
};

struct injected {
    int64_t start_ns;
    struct up_foreign *foreign;
    struct up_watcher *watcher;
    struct up_recorder *recorder;
    struct up_driver driver;
    struct gpu gpu[UP_FOREIGN_RANKS];
    int gpus;
    _Atomic bool ending, ended;
};

// One a process: neither CUDA nor NVTX says whose their calls are. NULL: nothing is recorded.
static _Atomic(struct injected *) injected;

// The ranges that are open on a thread.
static _Thread_local struct {
    struct {
        uint64_t id;
        int rank;
        const void *domain;
    } open[DEPTH_MAX];
    int depth, deeper; // ranges within the last that there is room for, which have no rows
} spot;

#define EXPORT __attribute__((visibility("default")))

/* --- Ranges: on the program's threads ------------------------------------------------------------
 */

static int64_t clock_of(const struct injected *in)
{
    return up_clock_ns() - in->start_ns;
}

static int push(const void *domain, const char *text)
{
    struct injected *in = atomic_load(&injected);
    if (!in) return -1;
    if (spot.depth == DEPTH_MAX) return DEPTH_MAX + spot.deeper++;
    uint64_t parent = spot.depth ? spot.open[spot.depth - 1].id : 0;
    int rank = spot.depth ? spot.open[spot.depth - 1].rank : up_driver_current(&in->driver);
    uint64_t id = up_foreign_range_begin(in->foreign, rank, parent,
                                         up_foreign_range_name(in->foreign, text), clock_of(in));
    spot.open[spot.depth].id = id;
    spot.open[spot.depth].rank = rank;
    spot.open[spot.depth].domain = domain;
    return spot.depth++;
}

// The innermost of the domain; what was pushed above it in other domains stays.
static int pop(const void *domain)
{
    struct injected *in = atomic_load(&injected);
    int at = spot.depth - 1;
    if (spot.deeper) return DEPTH_MAX + --spot.deeper;
    while (at >= 0 && spot.open[at].domain != domain) at--;
    if (!in || at < 0) return -1;
    up_foreign_range_end(in->foreign, spot.open[at].rank, spot.open[at].id, clock_of(in));
    memmove(&spot.open[at], &spot.open[at + 1],
            (size_t)(spot.depth - at - 1) * sizeof spot.open[0]);
    spot.depth--;
    return at;
}

static nvtxRangeId_t range_start(const char *text)
{
    struct injected *in = atomic_load(&injected);
    if (!in) return 0;
    int rank = up_driver_current(&in->driver);
    uint64_t id = up_foreign_range_begin(in->foreign, rank, 0,
                                         up_foreign_range_name(in->foreign, text), clock_of(in));
    return id * UP_FOREIGN_RANKS + (uint64_t)rank;
}

static void range_end(nvtxRangeId_t id)
{
    struct injected *in = atomic_load(&injected);
    if (in)
        up_foreign_range_end(in->foreign, (int)(id % UP_FOREIGN_RANKS), id / UP_FOREIGN_RANKS,
                             clock_of(in));
}

static const char *narrow(char out[TEXT_MAX], const wchar_t *text)
{
    int i = 0;
    for (; text[i] && i < TEXT_MAX - 1; i++)
        out[i] = text[i] > 0 && text[i] < 127 ? (char)text[i] : '?';
    out[i] = 0;
    return out;
}

// A registered text is the interned one itself.
static const char *text_of(const nvtxEventAttributes_t *event, char out[TEXT_MAX])
{
    const char *text = NULL;
    if (!event) return "range";
    if (event->messageType == NVTX_MESSAGE_TYPE_ASCII) text = event->message.ascii;
    if (event->messageType == NVTX_MESSAGE_TYPE_REGISTERED)
        text = (const char *)event->message.registered;
    if (event->messageType == NVTX_MESSAGE_TYPE_UNICODE && event->message.unicode)
        text = narrow(out, event->message.unicode);
    return text ? text : "range";
}

static int hook_push_a(const char *text)
{
    return push(NULL, text ? text : "range");
}

static int hook_push_w(const wchar_t *text)
{
    char out[TEXT_MAX];
    return push(NULL, text ? narrow(out, text) : "range");
}

static int hook_push_ex(const nvtxEventAttributes_t *event)
{
    char out[TEXT_MAX];
    return push(NULL, text_of(event, out));
}

static int hook_pop(void)
{
    return pop(NULL);
}

static nvtxRangeId_t hook_start_a(const char *text)
{
    return range_start(text ? text : "range");
}

static nvtxRangeId_t hook_start_ex(const nvtxEventAttributes_t *event)
{
    char out[TEXT_MAX];
    return range_start(text_of(event, out));
}

static int hook_domain_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
    char out[TEXT_MAX];
    return push(domain, text_of(event, out));
}

static int hook_domain_pop(nvtxDomainHandle_t domain)
{
    return pop(domain);
}

static nvtxRangeId_t hook_domain_start(nvtxDomainHandle_t domain,
                                       const nvtxEventAttributes_t *event)
{
    (void)domain;
    return hook_start_ex(event);
}

static void hook_domain_end(nvtxDomainHandle_t domain, nvtxRangeId_t id)
{
    (void)domain;
    range_end(id);
}

static const char *intern(const char *text)
{
    struct injected *in = atomic_load(&injected);
    return in && text ? up_foreign_name(in->foreign, text) : NULL;
}

static nvtxStringHandle_t hook_register(nvtxDomainHandle_t domain, const char *text)
{
    (void)domain;
    return (nvtxStringHandle_t)intern(text);
}

static nvtxDomainHandle_t hook_create(const char *name)
{
    return (nvtxDomainHandle_t)intern(name);
}

struct hook {
    unsigned id;
    NvtxFunctionPointer function;
};
#define HOOK(id, function)                                                                         \
    {                                                                                              \
        id, (NvtxFunctionPointer)(function)                                                        \
    }

static const struct hook core_hooks[] = {HOOK(NVTX_CBID_CORE_RangePushA, hook_push_a),
                                         HOOK(NVTX_CBID_CORE_RangePushW, hook_push_w),
                                         HOOK(NVTX_CBID_CORE_RangePushEx, hook_push_ex),
                                         HOOK(NVTX_CBID_CORE_RangePop, hook_pop),
                                         HOOK(NVTX_CBID_CORE_RangeStartA, hook_start_a),
                                         HOOK(NVTX_CBID_CORE_RangeStartEx, hook_start_ex),
                                         HOOK(NVTX_CBID_CORE_RangeEnd, range_end)};

static const struct hook domain_hooks[] = {
    HOOK(NVTX_CBID_CORE2_DomainRangePushEx, hook_domain_push),
    HOOK(NVTX_CBID_CORE2_DomainRangePop, hook_domain_pop),
    HOOK(NVTX_CBID_CORE2_DomainRangeStartEx, hook_domain_start),
    HOOK(NVTX_CBID_CORE2_DomainRangeEnd, hook_domain_end),
    HOOK(NVTX_CBID_CORE2_DomainRegisterStringA, hook_register),
    HOOK(NVTX_CBID_CORE2_DomainCreateA, hook_create)};

static void set_hooks(const NvtxExportTableCallbacks *callbacks, NvtxCallbackModule module,
                      const struct hook *hooks, int count)
{
    NvtxFunctionTable table = NULL;
    unsigned size = 0;
    if (!callbacks->GetModuleFunctionTable(module, &table, &size) || !table) return;
    for (int i = 0; i < count; i++)
        if (hooks[i].id < size && table[hooks[i].id]) *table[hooks[i].id] = hooks[i].function;
}

/* --- Activities ----------------------------------------------------------------------------------
 */

static void who(void *context, struct up_mark *mark)
{
    (void)context;
    if (!spot.depth) return;
    mark->rank = spot.open[spot.depth - 1].rank;
    mark->range_id = spot.open[spot.depth - 1].id;
}

static void seen(void *context, const struct up_activity *activity, uint64_t range_id)
{
    struct injected *in = context;
    up_foreign_seen(in->foreign, activity, range_id);
}

static void tell_event(void *recorder, int rank, const struct up_event *event)
{
    up_recorder_event(recorder, rank, event);
}

// What is in use once the program has a context there, and was not seen taken, is the context's.
static void tell_context(struct gpu *gpu, struct up_recorder *recorder)
{
    struct up_event event = {
        .kind = UP_EVENT_MEMORY, .ns = -1, .label = {"context", UP_NO_LAYER, UP_NO_INDEX}};
    int64_t used = up_driver_used_bytes(&gpu->injected->driver, gpu->index);
    if (used < 0) return;
    gpu->context_told = true;
    event.memory.news = UP_MEMORY_BRACKET;
    event.memory.space = UP_SPACE_DEVICE;
    event.memory.bytes = used;
    event.memory.end_ns = clock_of(gpu->injected);
    up_recorder_event(recorder, gpu->index, &event);
}

static void told(void *context, struct up_recorder *recorder, bool last)
{
    struct injected *in = context;
    char text[128];
    up_foreign_tell(in->foreign, last ? INT64_MAX : clock_of(in) - order_within_ns, tell_event,
                    recorder);
    for (int i = 0; i < in->gpus; i++)
        if (!in->gpu[i].context_told) tell_context(&in->gpu[i], recorder);
    if (!last || !up_foreign_lost(in->foreign)) return;
    snprintf(text, sizeof text, "%lld ranges and allocations were lost for want of room",
             (long long)up_foreign_lost(in->foreign));
    up_recorder_diagnostic(recorder, "injection", text);
}

/* --- The trace: on a thread of our own -----------------------------------------------------------
 */

static int64_t used_bytes(struct up_device *device)
{
    const struct gpu *gpu = (struct gpu *)device;
    return up_driver_used_bytes(&gpu->injected->driver, gpu->index);
}

static int64_t clock_ns(struct up_device *device)
{
    return clock_of(((struct gpu *)device)->injected);
}

static const struct up_device_ops gpu_ops = {.used_bytes = used_bytes, .clock_ns = clock_ns};

static void read_command(char *out, size_t size)
{
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, out, size - 1);
    if (fd >= 0) close(fd);
    if (got < 0) got = 0;
    out[got] = 0;
    for (ssize_t i = 0; i + 1 < got; i++)
        if (!out[i] || (unsigned char)out[i] < ' ') out[i] = ' ';
}

// What is wrong with a trace's path, without the name of upipe-train's option.
static const char *reason(const struct up_error *err)
{
    static const char option[] = "--trace ";
    size_t length = sizeof option - 1;
    return err->text + (strncmp(err->text, option, length) ? 0 : length);
}

static enum up_status create_trace(struct injected *in, struct up_error *err)
{
    static const struct up_span all = {-1, -1};
    char command[1024], ranks[16], path[64], started[32];
    const char *wanted = getenv("UPIPE_TRACE");
    time_t now = time(NULL);
    struct tm utc;
    read_command(command, sizeof command);
    snprintf(ranks, sizeof ranks, "%d", in->gpus > 1 ? in->gpus : 1);
    snprintf(path, sizeof path, "upipe-%d.db", (int)getpid());
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    const struct up_store_meta meta[] = {{"recorded_by", "injection"},
                                         {"command", command},
                                         {"device", "cuda"},
                                         {"as", "cuda"},
                                         {"ranks", ranks},
                                         {"started", started}};
    if (!wanted || !*wanted)
        return up_recorder_create(path, all, meta, UP_COUNT(meta), &in->recorder, err);
    if (!up_recorder_create(wanted, all, meta, UP_COUNT(meta), &in->recorder, err)) return UP_OK;
    // Of several processes that were given one name the first has it.
    fprintf(stderr, "upipe: UPIPE_TRACE=%s; this process is recorded in %s\n", reason(err), path);
    return up_recorder_create(path, all, meta, UP_COUNT(meta), &in->recorder, err);
}

static enum up_status add_gpu(struct injected *in, int index, struct up_error *err)
{
    struct gpu *gpu = &in->gpu[index];
    bool there = index < in->gpus;
    int64_t capacity =
        there ? up_driver_device(&in->driver, index, gpu->device.name, sizeof gpu->device.name)
              : -1;
    gpu->device.ops = &gpu_ops;
    gpu->device.used_before_bytes = -1;
    gpu->injected = in;
    gpu->index = index;
    gpu->trace =
        up_recorder_add_rank(in->recorder, index, there ? gpu->device.name : "no GPU", capacity);
    if (!gpu->trace) return up_fail(err, UP_FAILED, "out of host memory");
    if (there) up_recorder_device(in->recorder, index, &gpu->device);
    up_watcher_add(in->watcher, index, index, &gpu->device);
    return UP_OK;
}

static enum up_status open_trace(struct injected *in, struct up_error *err)
{
    enum up_status rc = UP_OK;
    in->gpus = up_driver_gpus(&in->driver);
    if (in->gpus > UP_FOREIGN_RANKS) in->gpus = UP_FOREIGN_RANKS;
    UP_TRY(create_trace(in, err));
    for (int i = 0; i < in->gpus || i == 0; i++) UP_TRY(add_gpu(in, i, err));
    UP_TRY(up_watcher_attach(in->watcher, in->recorder, err));
    UP_TRY(up_recorder_start(in->recorder, err));
out:
    return rc;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

// Waits until CUDA has started, or the program ends; then records until it ends.
static void *record(void *argument)
{
    struct injected *in = argument;
    struct up_error err = {0};
    while (!atomic_load(&in->ending) && !up_driver_gpus(&in->driver)) nap();
    if (open_trace(in, &err)) {
        atomic_store(&injected, NULL);
        fprintf(stderr, "upipe: this program is not recorded: %s\n", reason(&err));
        up_watcher_destroy(in->watcher);
        atomic_store(&in->ended, true);
        return NULL;
    }
    while (!atomic_load(&in->ending)) nap();
    for (int i = 0; i < UP_FOREIGN_RANKS; i++) up_trace_close(in->gpu[i].trace);
    if (up_recorder_finish(in->recorder, "ok", &err))
        fprintf(stderr, "upipe: the trace is not whole: %s\n", err.text);
    up_watcher_destroy(in->watcher);
    atomic_store(&in->ended, true);
    return NULL;
}

/* --- Coming and going ----------------------------------------------------------------------------
 */

static void at_exit(void)
{
    struct injected *in = atomic_exchange(&injected, NULL);
    if (!in) return;
    atomic_store(&in->ending, true);
    for (int i = 0; i < END_WITHIN_NAPS && !atomic_load(&in->ended); i++) nap();
}

// A child has none of our threads.
static void in_child(void)
{
    atomic_store(&injected, NULL);
    up_watcher_forget();
}

static bool make(struct injected *in)
{
    const char *level = getenv("UPIPE_TRACE_LEVEL");
    struct up_watcher_guest guest = {.context = in, .who = who, .seen = seen, .told = told};
    struct up_watcher_options options = {.kernels = !level || strcmp(level, "memory") != 0,
                                         .guest = &guest};
    in->start_ns = up_clock_ns();
    in->foreign = up_foreign_create();
    in->watcher = in->foreign ? up_watcher_create(&options) : NULL;
    return in->watcher;
}

// Signals are the program's: one that its threads block, to wait for it, must not reach ours.
static bool start_thread(struct injected *in)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = !pthread_create(&thread, NULL, record, in);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_detach(thread);
    return started;
}

static void start(void)
{
    struct injected *in = calloc(1, sizeof *in);
    if (!in || !make(in) || pthread_atfork(NULL, NULL, in_child) || atexit(at_exit)) return;
    atomic_store(&injected, in);
    if (!start_thread(in)) atomic_store(&injected, NULL);
}

static void start_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
}

EXPORT int InitializeInjection(void);
EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);

int InitializeInjection(void)
{
    Dl_info self;
    // NVTX looks for this at its first call.
    if (dladdr((void *)InitializeInjection, &self) && self.dli_fname)
        setenv("NVTX_INJECTION64_PATH", self.dli_fname, 0);
    start_once();
    return 1;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    start_once();
    if (!callbacks) return 0;
    set_hooks(callbacks, NVTX_CB_MODULE_CORE, core_hooks, UP_COUNT(core_hooks));
    set_hooks(callbacks, NVTX_CB_MODULE_CORE2, domain_hooks, UP_COUNT(domain_hooks));
    return 1;
}
