/* The dry device: no memory, no arithmetic. Each stream is a clock; work advances it by what the
 * machine's rates say, and a moment's ticket is simply the stream's time.
 *
 * The host is taken to run ahead of the device without cost, so its own clock only moves where it
 * waits; what it reads as "now" is the compute stream's time, which is when the point of the
 * program that it has reached takes effect. */
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>

// Where all clocks stop: 146 years, which a sequence of billions of tokens reaches.
#define END_OF_TIME_NS (INT64_C(1) << 62)

struct dry_device {
    struct up_device base;
    struct up_machine machine;
    int64_t host_ns;                    // work cannot begin before the host has given it
    int64_t stream_ns[UP_STREAM_COUNT]; // when the stream's work so far ends
    int64_t next_base;                  // where the next address range is pretended to be
};

static struct dry_device *dry_of(struct up_device *device)
{
    return (struct dry_device *)device;
}

// Addresses of no memory, far from NULL and from each other, for pointer arithmetic only.
static enum up_status reserve(struct up_device *device, enum up_space space, int64_t bytes,
                              void **base, struct up_error *err)
{
    (void)space;
    (void)bytes;
    (void)err;
    struct dry_device *dry = dry_of(device);
    *base = (void *)dry->next_base;
    dry->next_base += (int64_t)1 << 61;
    return UP_OK;
}

static void release(struct up_device *device, enum up_space space, void *base, int64_t bytes)
{
    (void)device;
    (void)space;
    (void)base;
    (void)bytes;
}

static struct up_interval advance(struct dry_device *dry, enum up_stream stream, double seconds)
{
    int64_t begin = up_max(dry->stream_ns[stream], dry->host_ns);
    double ns = 1e9 * (dry->machine.launch_s + seconds);
    bool ends = ns < (double)(END_OF_TIME_NS - begin);
    dry->stream_ns[stream] = ends ? begin + (int64_t)(ns + 0.5) : END_OF_TIME_NS;
    return (struct up_interval){begin, dry->stream_ns[stream]};
}

// At which a class of work moves its bytes.
static double pace_of(const struct up_machine *machine, enum up_cost_class class)
{
    if (class == UP_COST_COLLECTIVE) return machine->link_bytes_per_s;
    return machine->pace[class] > 0 ? machine->pace[class] : machine->memory_bytes_per_s;
}

// FLOP/s; 0 where only bytes count. The nearest to the work that the machine has.
static double rate_of(const struct up_machine *machine, const struct up_cost *cost, bool own)
{
    bool narrow = up_head_is_narrow(cost->head_dim);
    enum up_cost_class class = cost->class;
    if (own && narrow && machine->own_narrow_flops[class] > 0)
        return machine->own_narrow_flops[class];
    if (own && machine->own_flops[class] > 0) return machine->own_flops[class];
    if (narrow && machine->narrow_flops[class] > 0) return machine->narrow_flops[class];
    return machine->flops[class];
}

static struct up_interval launch(struct up_device *device, enum up_stream stream, union up_call run,
                                 const void *args, size_t size, const struct up_cost *cost)
{
    (void)run;
    (void)args;
    (void)size;
    const struct up_machine *machine = &dry_of(device)->machine;
    bool gpu = device->as == UP_DEVICE_CUDA, own = gpu && (cost->own || machine->own_attention);
    double rate = rate_of(machine, cost, own);
    double bytes_s = cost->bytes / pace_of(machine, cost->class);
    double flops_s = rate > 0 ? cost->flops / rate : 0;
    double runs_s = gpu && !own ? (double)cost->runs * machine->run_s[cost->class] : 0;
    return advance(dry_of(device), stream, (bytes_s > flops_s ? bytes_s : flops_s) + runs_s);
}

static struct up_interval copy(struct up_device *device, enum up_stream stream, void *to,
                               enum up_space to_space, const void *from, enum up_space from_space,
                               int64_t bytes)
{
    (void)to;
    (void)from;
    const struct up_machine *machine = &dry_of(device)->machine;
    double rate = to_space == from_space      ? machine->memory_bytes_per_s / 2
                  : to_space == UP_SPACE_HOST ? machine->to_host_bytes_per_s
                                              : machine->from_host_bytes_per_s;
    return advance(dry_of(device), stream, (double)bytes / rate);
}

static struct up_moment now_in(struct up_device *device, enum up_stream stream)
{
    return (struct up_moment){stream, (uint64_t)dry_of(device)->stream_ns[stream]};
}

static void wait_moment(struct up_device *device, enum up_stream stream, struct up_moment moment)
{
    int64_t *at = &dry_of(device)->stream_ns[stream];
    *at = up_max(*at, (int64_t)moment.ticket);
}

static void synchronize(struct up_device *device, struct up_moment moment)
{
    struct dry_device *dry = dry_of(device);
    dry->host_ns = up_max(dry->host_ns, (int64_t)moment.ticket);
}

static int64_t clock_ns(struct up_device *device)
{
    return up_max(dry_of(device)->host_ns, dry_of(device)->stream_ns[UP_STREAM_COMPUTE]);
}

static void destroy(struct up_device *device)
{
    free(device);
}

static const struct up_device_ops dry_ops = {
    .reserve = reserve,
    .release = release,
    .launch = launch,
    .copy = copy,
    .now_in = now_in,
    .wait = wait_moment,
    .synchronize = synchronize,
    .clock_ns = clock_ns,
    .destroy = destroy,
};

struct up_device *up_device_dry_create(enum up_device_kind as, const struct up_machine *machine,
                                       struct up_error *err)
{
    struct dry_device *dry = calloc(1, sizeof *dry);
    if (!dry) {
        up_fail(err, UP_FAILED, "out of host memory");
        return NULL;
    }
    int64_t unbounded = (int64_t)1 << 60;
    dry->machine = *machine;
    dry->next_base = (int64_t)1 << 32;
    dry->base = (struct up_device){
        .ops = &dry_ops, .kind = UP_DEVICE_DRY, .as = as, .capacity = {unbounded, unbounded}};
    snprintf(dry->base.name, sizeof dry->base.name, "dry %s on %s", up_device_kind_names[as],
             machine->name);
    return &dry->base;
}
