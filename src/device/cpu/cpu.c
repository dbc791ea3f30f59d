/* The cpu device: host memory for both spaces, work done on the caller's thread (or, in the stream
 * test mode, handed to chaos.c). */
#include "device/cpu/cpu_impl.h"

#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct cpu_device {
    struct up_device base;
    int64_t start_ns;
    int threads;            // 0: as many as OpenMP likes
    struct up_chaos *chaos; // NULL: work runs at once
};

static struct cpu_device *cpu_of(struct up_device *device)
{
    return (struct cpu_device *)device;
}

static int64_t clock_ns(struct up_device *device)
{
    return up_clock_ns() - cpu_of(device)->start_ns;
}

// Address space only: pages appear as they are first touched.
static enum up_status reserve(struct up_device *device, enum up_space space, int64_t bytes,
                              void **base, struct up_error *err)
{
    (void)device;
    *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*base != MAP_FAILED) return UP_OK;
    *base = NULL;
    char text[UP_UNITS_TEXT];
    return up_fail(err, UP_FAILED, "cannot reserve %s of address space for %s memory: %s",
                   up_format_bytes(text, (uint64_t)bytes), up_space_names[space], strerror(errno));
}

static void release(struct up_device *device, enum up_space space, void *base, int64_t bytes)
{
    (void)device;
    (void)space;
    munmap(base, (size_t)bytes);
}

static struct up_interval launch(struct up_device *device, enum up_stream stream, union up_call run,
                                 const void *args, size_t size, const struct up_cost *cost)
{
    (void)cost;
    struct up_chaos *chaos = cpu_of(device)->chaos;
    int64_t begin = clock_ns(device);
    if (chaos) {
        up_chaos_push(chaos, stream, run.cpu, args, size);
        return (struct up_interval){begin, begin};
    }
    run.cpu(args);
    return (struct up_interval){begin, clock_ns(device)};
}

struct copy_args {
    void *to;
    const void *from;
    size_t bytes;
};

static void run_copy(const void *args)
{
    const struct copy_args *copy = args;
    memcpy(copy->to, copy->from, copy->bytes);
}

static struct up_interval copy(struct up_device *device, enum up_stream stream, void *to,
                               enum up_space to_space, const void *from, enum up_space from_space,
                               int64_t bytes)
{
    (void)to_space;
    (void)from_space;
    struct copy_args args = {to, from, (size_t)bytes};
    return launch(device, stream, (union up_call){.cpu = run_copy}, &args, sizeof args, NULL);
}

static struct up_moment now_in(struct up_device *device, enum up_stream stream)
{
    struct up_chaos *chaos = cpu_of(device)->chaos;
    return chaos ? up_chaos_now_in(chaos, stream) : (struct up_moment){stream, 0};
}

static void wait_moment(struct up_device *device, enum up_stream stream, struct up_moment moment)
{
    struct up_chaos *chaos = cpu_of(device)->chaos;
    if (chaos) up_chaos_wait(chaos, stream, moment);
}

static void synchronize(struct up_device *device, struct up_moment moment)
{
    struct up_chaos *chaos = cpu_of(device)->chaos;
    if (chaos) up_chaos_synchronize(chaos, moment);
}

// All bits set: NaN as fp32, bf16 and fp64, and no token id.
static void run_poison(const void *args)
{
    const struct copy_args *poison = args;
    memset(poison->to, 0xff, poison->bytes);
}

static void discard(struct up_device *device, enum up_stream stream, void *at, int64_t bytes)
{
    struct up_chaos *chaos = cpu_of(device)->chaos;
    struct copy_args args = {at, NULL, (size_t)bytes};
    if (chaos) up_chaos_push(chaos, stream, run_poison, &args, sizeof args);
}

// OpenMP's setting is a thread's own.
static void bind_thread(struct up_device *device)
{
    if (cpu_of(device)->threads) omp_set_num_threads(cpu_of(device)->threads);
}

static void destroy(struct up_device *device)
{
    up_chaos_destroy(cpu_of(device)->chaos);
    free(device);
}

static const struct up_device_ops cpu_ops = {
    .bind = bind_thread,
    .reserve = reserve,
    .release = release,
    .launch = launch,
    .copy = copy,
    .now_in = now_in,
    .wait = wait_moment,
    .synchronize = synchronize,
    .discard = discard,
    .clock_ns = clock_ns,
    .destroy = destroy,
};

// "Intel(R) Xeon(R) Processor", from /proc/cpuinfo; "cpu" where there is none.
static void read_name(char *name, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(name, size, "cpu");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (file) fclose(file);
}

struct up_device *up_device_cpu_create(int threads, uint64_t chaos_seed, struct up_error *err)
{
    struct cpu_device *cpu = calloc(1, sizeof *cpu);
    if (!cpu) {
        up_fail(err, UP_FAILED, "out of host memory");
        return NULL;
    }
    int64_t physical = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    cpu->base = (struct up_device){.ops = &cpu_ops,
                                   .kind = UP_DEVICE_CPU,
                                   .as = UP_DEVICE_CPU,
                                   .capacity = {physical, physical}};
    read_name(cpu->base.name, sizeof cpu->base.name);
    cpu->start_ns = up_clock_ns();
    cpu->threads = threads;
    if (chaos_seed && !(cpu->chaos = up_chaos_create(chaos_seed, err))) {
        free(cpu);
        return NULL;
    }
    return &cpu->base;
}
