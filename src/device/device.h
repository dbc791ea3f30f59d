/* A device: memory, streams, events and a clock. Three kinds implement it:
 *
 *   cpu   host memory, work runs at once on the caller's thread; in its stream test mode ("chaos")
 *         every stream is a thread with random delays, and freed bytes are poisoned
 *   cuda  a GPU: virtual memory mapped as arenas grow, four streams
 *   dry   no memory and no arithmetic: a clock per stream, advanced by a cost model
 *
 * Nothing else in upipe knows which one it runs on; only files below src/device/ ask the system for
 * tensor memory. To add a kind: fill a `struct up_device_ops`, and give the operations of src/ops
 * an implementation column.
 *
 * A device serves one rank and is used from that rank's thread alone.
 */
#ifndef UP_DEVICE_DEVICE_H
#define UP_DEVICE_DEVICE_H

#include "base/base.h"
#include "trace/names.h"

enum up_device_kind { UP_DEVICE_CPU, UP_DEVICE_CUDA, UP_DEVICE_DRY, UP_DEVICE_KIND_COUNT };
extern const char *const up_device_kind_names[UP_DEVICE_KIND_COUNT];

/* A moment in a stream: all work given to it before the ticket was drawn. {stream, 0} is long past.
 */
struct up_moment {
    enum up_stream stream;
    uint64_t ticket;
};

/* What a piece of work costs, for the dry device's clock and the report. A class is what a machine
 * has a pace of its own for. */
enum up_cost_class {
    UP_COST_MATMUL, // the first three: bound by arithmetic, or by memory where that is slower
    UP_COST_ATTENTION_FORWARD,
    UP_COST_ATTENTION_BACKWARD,
    UP_COST_POINTWISE, // up to collectives: bound by memory
    UP_COST_NORM_FORWARD,
    UP_COST_NORM_BACKWARD,
    UP_COST_ROPE,
    UP_COST_EMBED_BACKWARD,
    UP_COST_CROSS_ENTROPY,
    UP_COST_ADAMW,
    UP_COST_COLLECTIVE, // bound by the links between ranks; bytes: sent by one of them
    UP_COST_CLASS_COUNT
};
extern const char *const up_cost_class_names[UP_COST_CLASS_COUNT];

struct up_cost {
    enum up_cost_class class;
    double flops;
    double bytes;     // read and written
    int64_t head_dim; // of attention
    int64_t runs;     // of attention: kernels, one after the other, that it is cut into on a GPU
    bool own;         // of attention: upipe's own kernels do it on a GPU, whatever was asked for
};

/* Attention of head_dims up to this one has rates of its own: with fewer operations a score its
 * exponentials weigh more (H200, cuDNN 9.19, upipe-train bench: head_dim 128 at 572 TFLOP/s forward
 * and 516 backward, 64 at 392 and 429; BENCHMARKS.md). The step between the two is where nothing
 * was measured: a head_dim of 96 goes by the rates of 128. */
enum { UP_NARROW_HEAD_DIM = 64 };
static inline bool up_head_is_narrow(int64_t head_dim)
{
    return head_dim > 0 && head_dim <= UP_NARROW_HEAD_DIM;
}

/* What a machine can do. 0 means unknown for capacities. Read from trainer/machines/NAME.json. */
struct up_machine {
    char name[64];
    int64_t device_bytes, host_bytes;             // per device; per node
    double flops[UP_COST_CLASS_COUNT];            // FLOP/s of the first three
    double narrow_flops[UP_COST_CLASS_COUNT];     // of attention, narrow heads; 0: flops'
    double own_flops[UP_COST_CLASS_COUNT];        // of attention by upipe's own kernels, of
    double own_narrow_flops[UP_COST_CLASS_COUNT]; // narrow heads likewise; 0: as of others
    double run_s[UP_COST_CLASS_COUNT]; // of attention by others: what each run takes besides
    double memory_bytes_per_s;         // device memory
    double pace[UP_COST_CLASS_COUNT];  // bytes/s of a class; 0: memory's
    double to_host_bytes_per_s, from_host_bytes_per_s; // per device
    double node_to_host_bytes_per_s;                   // of all devices of a node; 0: no less
    double node_from_host_bytes_per_s;
    double link_bytes_per_s; // from one device to the others, all sending at once
    double launch_s;         // what a piece of work takes besides
    int64_t node_devices;    // how many share a host; 0: all that a run has
    bool own_attention;      // on a GPU attention is by upipe's own kernels alone; a run's choice
    /* What libraries take on each device: the CUDA context with the kernels' code, cuBLAS, cuDNN,
     * and NCCL with two ranks, and for each rank of the node beyond two. */
    int64_t context_bytes, cublas_bytes, cudnn_bytes, nccl_bytes, nccl_rank_bytes;
};

/* Of so many ranks those that share a host. */
static inline int64_t up_machine_neighbours(const struct up_machine *machine, int64_t ranks)
{
    return machine->node_devices ? up_min(ranks, machine->node_devices) : ranks;
}

struct up_device;
struct up_label; // trace/trace.h
struct up_cuda;  // what a launch on cuda gets: its stream and libraries' handles (cuda/cuda.h)

/* A piece of work, as the kind of device runs it: on cpu the work itself, on cuda what gives it to
 * the stream. On dry neither is called. */
union up_call {
    void (*cpu)(const void *args);
    void (*cuda)(const void *args, struct up_cuda *cuda);
};

/* The interval in which work ran, nanoseconds of the device's clock; where it is not known when the
 * work is given (chaos, cuda) both are the time it was given. */
struct up_interval {
    int64_t begin_ns, end_ns;
};

struct up_device_ops {
    /* (optional) Called once on the thread that will use the device. NULL: nothing to be done. */
    void (*bind)(struct up_device *device);

    /* An address range for an arena, usable at once or as the allocator first touches it. The range
     * is never NULL; on dry it may not be dereferenced. Released with the same figures. */
    enum up_status (*reserve)(struct up_device *device, enum up_space space, int64_t bytes,
                              void **base, struct up_error *err);
    void (*release)(struct up_device *device, enum up_space space, void *base, int64_t bytes);

    /* (optional) The first `bytes` of a reserved range are about to be used; `for_good`: it will
     * not be more. NULL: reserving is enough. */
    enum up_status (*back)(struct up_device *device, enum up_space space, void *base, int64_t bytes,
                           bool for_good, struct up_error *err);

    /* (optional) Device memory of up_device_workspace_bytes(), for as long as the device is used.
     * NULL: none is wanted. */
    void (*give_workspace)(struct up_device *device, void *workspace);

    /* Runs the work on the stream, after all that the stream was given before. `args` is copied. */
    struct up_interval (*launch)(struct up_device *device, enum up_stream stream, union up_call run,
                                 const void *args, size_t size, const struct up_cost *cost);

    /* Copies between or within spaces, on the stream. Ranges do not overlap. */
    struct up_interval (*copy)(struct up_device *device, enum up_stream stream, void *to,
                               enum up_space to_space, const void *from, enum up_space from_space,
                               int64_t bytes);

    /* The present end of a stream, and making another stream (or the host) wait for such a moment.
     */
    struct up_moment (*now_in)(struct up_device *device, enum up_stream stream);
    void (*wait)(struct up_device *device, enum up_stream stream, struct up_moment moment);
    /* (optional) As now_in, for a moment that somebody will wait for when the stream has been given
     * more: the wait is then for this moment and not for a later one. NULL: waits always are. */
    struct up_moment (*mark)(struct up_device *device, enum up_stream stream);
    void (*synchronize)(struct up_device *device, struct up_moment moment);

    /* (optional) Writes `value` to host memory of an arena when the stream has come to this point.
     * NULL: work is done when it is given, and the caller may write himself. */
    void (*tick)(struct up_device *device, enum up_stream stream, _Atomic uint64_t *at,
                 uint64_t value);

    /* (optional) From now on a tensor of this name has the bytes, or (`renamed`) the one that has
     * them takes another name: for tools that listen. NULL: nobody does. */
    void (*name)(struct up_device *device, const void *at, int64_t bytes,
                 const struct up_label *label, bool renamed);

    /* (optional) The bytes are given up at this point of the stream: chaos poisons them, cuda tells
     * tools that listen. NULL: nothing is done. */
    void (*discard)(struct up_device *device, enum up_stream stream, void *at, int64_t bytes);

    /* (optional) The first failure of work that was given, found so far. NULL: work does not fail.
     */
    enum up_status (*check)(struct up_device *device, struct up_error *err);

    /* (optional) Bytes of device memory in use at present, whoever uses them; -1: that failed. From
     * any thread. NULL: nobody can tell. */
    int64_t (*used_bytes)(struct up_device *device);

    /* (optional) A named stretch of the host's work begins, or (`label` NULL) the innermost ends:
     * for tools that listen. */
    void (*range)(struct up_device *device, const struct up_label *label);

    /* Nanoseconds since the device was made, as the host sees it. */
    int64_t (*clock_ns)(struct up_device *device);

    void (*destroy)(struct up_device *device);
};

/* What making a device took of its memory, and for whom ("context", "cublas"). */
struct up_device_took {
    const char *owner;
    int64_t bytes, begin_ns, end_ns; // of the device's clock
};
enum { UP_DEVICE_TOOK_MAX = 4 };

/* The public part; each kind has its own struct with this first. */
struct up_device {
    const struct up_device_ops *ops;
    enum up_device_kind kind;         // what it is
    enum up_device_kind as;           // what it stands for: differs on dry only
    int64_t capacity[UP_SPACE_COUNT]; // bytes that an arena may grow to; 2^60 where unbounded
    // (optional) asked while the host waits for the device: true ends the waiting
    bool (*given_up)(void *context);
    void *given_up_context;
    int64_t backed[UP_SPACE_COUNT]; // of the arenas' ranges, taken from the system so far
    int64_t used_before_bytes;      // on the device before we came; meaningful with used_bytes
    bool used_before_guessed;       // less a usual context, since nobody could be asked before
    struct up_device_took took[UP_DEVICE_TOOK_MAX]; // in order; owner NULL ends it
    char name[128];                                 // "Intel Xeon ...", "dry cuda on generic"
};

/* What a device of this kind wants for give_workspace: a pure function, 0 for none. */
int64_t up_device_workspace_bytes(enum up_device_kind kind);

/* Makes the device the calling thread's. */
void up_device_bind(struct up_device *device);

/* `threads`: 0 for all cores. `chaos_seed` 0 runs work at once; other seeds are the stream test
 * mode. NULL and *err on failure. Free with up_device_destroy. */
struct up_device *up_device_cpu_create(int threads, uint64_t chaos_seed, struct up_error *err);

/* `machine` is copied. */
struct up_device *up_device_dry_create(enum up_device_kind as, const struct up_machine *machine,
                                       struct up_error *err);

void up_device_destroy(struct up_device *device); // NULL is fine; waits for its streams

#endif
