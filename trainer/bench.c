#include "trainer/bench.h"
#include "ops/rehearsal.h"
#include "trainer/forecast/figures.h"
#include "trainer/forecast/machine.h"
#include "trainer/forecast/plan.h"
#include "trainer/group.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAT_MS = 500, LEAST_MS = 60, MOST_TIMES = 10000, LAUNCHES = 2000, EXCHANGES = 8 };
static const int64_t launch_bytes = 256;
// Query rows that forward attention may be cut into on cuda, to compare with what is chosen for it.
static const int64_t block_rows[] = {INT64_C(1) << 40, 65536, 32768, 16384, 8192};

struct bench;

// One rank. What it measures is given in seconds for one go.
struct member {
    struct bench *bench;
    int number;
    struct up_seat *seat;
    struct up_rank rank;
    struct up_trainer_plan plan;
    struct up_tensor *workspace, *place, *host; // place: on the device, random numbers
    double *call_s;                             // per call of the plan's rehearsal
    double (*blocks_s)[UP_COUNT(block_rows)];   // likewise; 0 where it has no blocks
    double memory_s, to_host_s, from_host_s, alone_to_host_s, alone_from_host_s, gather_s, launch_s,
        exchange_s;
    pthread_t thread;
    enum up_status status;
    struct up_error error;
};

struct bench {
    const struct up_train_options *options;
    struct up_config config;
    struct up_group group;
    struct member *members;
    int64_t buffer_bytes; // of copies and exchanges
};

/* --- Measuring -----------------------------------------------------------------------------------
 */

// A piece of work to be given to the device once.
struct work {
    void (*give)(struct member *member, const struct work *work);
    enum up_stream stream;
    int index;
};

static double time_of(struct member *member, const struct work *work, int times)
{
    int64_t begin = up_clock_ns();
    for (int i = 0; i < times; i++) work->give(member, work);
    up_stream_synchronize(&member->rank, work->stream);
    return (double)(up_clock_ns() - begin) / 1e9;
}

// As often as it takes to last so long.
static int times_for(int ms, double once)
{
    return (int)fmin(MOST_TIMES, ceil(ms / 1e3 / fmax(once, 1e-7)));
}

// Seconds that the work takes, after a first go that warms up. A GPU that has rested is a tenth
// faster than one at its power limit, where a step keeps it: it is brought there first.
static double measure(struct member *member, struct work work)
{
    time_of(member, &work, 1);
    double once = time_of(member, &work, 1);
    if (member->seat->device->kind == UP_DEVICE_CUDA)
        time_of(member, &work, times_for(HEAT_MS, once));
    int times = times_for(LEAST_MS, once);
    return time_of(member, &work, times) / times;
}

static void give_call(struct member *member, const struct work *work)
{
    up_rehearsal_make(&member->rank, member->plan.rehearsal, work->index, member->place->data);
}

// The shape of much of the step: two arrays read and one written.
static void give_add(struct member *member, const struct work *work)
{
    enum up_dtype dtype = member->bench->config.dtype;
    int64_t half = member->bench->buffer_bytes / 2;
    (void)work;
    up_op_add(&member->rank, UP_STREAM_COMPUTE,
              &(struct up_add_args){member->place->data, (char *)member->place->data + half,
                                    half / up_dtype_bytes[dtype], dtype});
}

static void give_launch(struct member *member, const struct work *work)
{
    (void)work;
    up_op_fill(&member->rank, UP_STREAM_COMPUTE,
               &(struct up_fill_args){.x = member->workspace->data, .bytes = launch_bytes});
}

static void give_copy(struct member *member, const struct work *work)
{
    struct up_device *device = member->seat->device;
    bool to_host = work->stream == UP_STREAM_COPY_OUT;
    void *from = to_host ? member->place->data : member->host->data;
    void *to = to_host ? member->host->data : member->place->data;
    device->ops->copy(device, work->stream, to, to_host ? UP_SPACE_HOST : UP_SPACE_DEVICE, from,
                      to_host ? UP_SPACE_DEVICE : UP_SPACE_HOST, member->bench->buffer_bytes);
}

static void give_gather(struct member *member, const struct work *work)
{
    struct up_comm *world = member->seat->world;
    enum up_dtype dtype = member->bench->config.dtype;
    int64_t share = member->bench->buffer_bytes / up_comm_size(world) / up_dtype_bytes[dtype];
    up_comm_all_gather(&member->rank, world, work->stream, member->place->data, share, dtype);
}

/* --- One rank ------------------------------------------------------------------------------------
 */

static enum up_status take_memory(struct member *member, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_rank *rank = &member->rank;
    struct up_device *device = member->seat->device;
    const struct up_rehearsal *calls = member->plan.rehearsal;
    int64_t bytes = 2 * member->bench->buffer_bytes; // of an exchange both sides
    for (int i = 0; i < up_rehearsal_count(calls); i++)
        bytes = up_max(bytes, up_rehearsal_call(calls, i).bytes);
    member->workspace = up_alloc(rank, UP_TAG(WORKSPACE, "workspace"), UP_U8,
                                 UP_SHAPE(up_max(up_device_workspace_bytes(device->kind), 4096)));
    member->place = up_alloc(rank, UP_TAG(DATA, "bench"), UP_U8, UP_SHAPE(bytes));
    member->host = up_alloc_on(rank, UP_SPACE_HOST, UP_STREAM_COMPUTE, UP_TAG(DATA, "bench"), UP_U8,
                               UP_SHAPE(member->bench->buffer_bytes));
    member->call_s = calloc((size_t)up_rehearsal_count(calls) + 1, sizeof *member->call_s);
    member->blocks_s = calloc((size_t)up_rehearsal_count(calls) + 1, sizeof *member->blocks_s);
    if (!member->call_s || !member->blocks_s) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    if (up_rank_failed(rank)) UP_TRY(up_fail(err, rank->error.status, "%s", rank->error.text));
    if (device->ops->back)
        UP_TRY(device->ops->back(device, UP_SPACE_HOST, rank->base[UP_SPACE_HOST],
                                 member->host->offset + member->host->bytes, true, err));
    if (device->ops->give_workspace) device->ops->give_workspace(device, member->workspace->data);
out:
    return rc;
}

static void make_numbers(struct member *member)
{
    enum up_dtype dtype = member->bench->config.dtype;
    int64_t bytes = member->host->bytes, width = up_dtype_bytes[dtype];
    char *host = member->host->data;
#pragma omp parallel for
    for (int64_t i = 0; i < bytes / width; i++) {
        float number = up_random_normal(3, (uint64_t)member->number, (uint64_t)i);
        // bf16 is the upper half of an fp32.
        memcpy(host + i * width, (char *)&number + (sizeof number - (size_t)width), (size_t)width);
    }
}

// Products of zeros draw less power, and run faster, than those of numbers; so do those of the NaN
// that other calls' results make when they are read as another type.
static void fill_place(struct member *member)
{
    struct up_device *device = member->seat->device;
    int64_t bytes = member->host->bytes;
    for (int64_t at = 0; at < member->place->bytes; at += bytes)
        device->ops->copy(device, UP_STREAM_COMPUTE, (char *)member->place->data + at,
                          UP_SPACE_DEVICE, member->host->data, UP_SPACE_HOST,
                          up_min(bytes, member->place->bytes - at));
    up_stream_synchronize(&member->rank, UP_STREAM_COMPUTE);
}

// As often on all ranks, which meet in it.
static double measure_exchange(struct member *member,
                               void (*give)(struct member *, const struct work *))
{
    struct work work = {give, UP_STREAM_COMM, 0};
    if (up_comm_size(member->seat->world) == 1) return 0;
    time_of(member, &work, 2);
    return time_of(member, &work, EXCHANGES) / EXCHANGES;
}

// All to all over the context-parallel ranks, each sending all of a buffer but its own part.
static enum up_status measure_all_to_all(struct member *member, struct up_error *err)
{
    struct up_comm *cp = member->seat->cp;
    int size = up_comm_size(cp);
    enum up_dtype dtype = member->bench->config.dtype;
    int64_t share = member->bench->buffer_bytes / size / up_dtype_bytes[dtype];
    if (size == 1) return UP_OK;
    int64_t *at = calloc((size_t)size + 1, sizeof *at);
    if (!at) return up_fail(err, UP_FAILED, "out of host memory");
    for (int r = 0; r <= size; r++) at[r] = r * share;
    int64_t begin = 0;
    for (int i = -2; i < EXCHANGES; i++) {
        if (i == 0) begin = up_clock_ns();
        up_comm_all_to_all(&member->rank, cp, UP_STREAM_COMM, member->place->data,
                           (char *)member->place->data + member->bench->buffer_bytes,
                           &(struct up_exchange){at, at}, dtype);
        if (i == -1) up_stream_synchronize(&member->rank, UP_STREAM_COMM);
    }
    up_stream_synchronize(&member->rank, UP_STREAM_COMM);
    member->exchange_s = (double)(up_clock_ns() - begin) / 1e9 / EXCHANGES;
    free(at);
    return UP_OK;
}

static enum up_status measure_copies(struct member *member, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct work out = {give_copy, UP_STREAM_COPY_OUT, 0}, in = {give_copy, UP_STREAM_COPY_IN, 0};
    struct up_comm *world = member->seat->world;
    member->to_host_s = measure(member, out);
    UP_TRY(up_comm_barrier(world, err));
    member->from_host_s = measure(member, in);
    UP_TRY(up_comm_barrier(world, err));
    if (member->number == 0) {
        member->alone_to_host_s = measure(member, out);
        member->alone_from_host_s = measure(member, in);
    }
    UP_TRY(up_comm_barrier(world, err));
out:
    return rc;
}

static enum up_status measure_blocks(struct member *member, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_rehearsal *calls = member->plan.rehearsal;
    if (member->bench->options->deterministic) return UP_OK; // our own kernels are not cut
    for (int i = 0; i < up_rehearsal_count(calls); i++) {
        if (up_rehearsal_call(calls, i).cost.class != UP_COST_ATTENTION_FORWARD) continue;
        fill_place(member);
        for (int b = 0; b < UP_COUNT(block_rows); b++) {
            UP_TRY(up_comm_barrier(member->seat->world, err));
            if (up_seat_force_block_rows(member->seat, block_rows[b]))
                member->blocks_s[i][b] =
                    measure(member, (struct work){give_call, UP_STREAM_COMPUTE, i});
        }
        up_seat_force_block_rows(member->seat, 0);
    }
    UP_TRY(up_comm_barrier(member->seat->world, err));
out:
    return rc;
}

static enum up_status measure_all(struct member *member, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_comm *world = member->seat->world;
    for (int i = 0; i < up_rehearsal_count(member->plan.rehearsal); i++) {
        fill_place(member);
        UP_TRY(up_comm_barrier(world, err));
        member->call_s[i] = measure(member, (struct work){give_call, UP_STREAM_COMPUTE, i});
    }
    UP_TRY(measure_blocks(member, err));
    member->memory_s = measure(member, (struct work){give_add, UP_STREAM_COMPUTE, 0});
    struct work launch = {give_launch, UP_STREAM_COMPUTE, 0};
    time_of(member, &launch, LAUNCHES);
    member->launch_s = time_of(member, &launch, LAUNCHES) / LAUNCHES;
    UP_TRY(up_comm_barrier(world, err));
    UP_TRY(measure_copies(member, err));
    member->gather_s = measure_exchange(member, give_gather);
    UP_TRY(up_comm_barrier(world, err));
    UP_TRY(measure_all_to_all(member, err));
    if (member->seat->device->ops->check)
        UP_TRY(member->seat->device->ops->check(member->seat->device, err));
    if (up_rank_failed(&member->rank))
        UP_TRY(up_fail(err, member->rank.error.status, "%s", member->rank.error.text));
out:
    return rc;
}

static void *run_member(void *argument)
{
    struct member *member = argument;
    struct bench *bench = member->bench;
    struct up_error *err = &member->error;
    enum up_status rc = UP_OK;
    UP_TRY(up_group_join(&bench->group, member->seat, err));
    UP_TRY(up_rank_init(&member->rank, member->number, member->seat->device, NULL, NULL, err));
    UP_TRY(up_trainer_plan(&bench->config, member->number, NULL, &member->plan, err));
    UP_TRY(take_memory(member, err));
    make_numbers(member);
    UP_TRY(measure_all(member, err));
out:
    if (rc) up_seat_abort(member->seat, err->text);
    member->status = rc;
    return NULL;
}

static enum up_status run_members(struct bench *bench, struct up_error *err)
{
    int started = 1, count = bench->group.count;
    enum up_status rc = UP_OK;
    for (; started < count; started++) {
        struct member *member = &bench->members[started];
        if (!pthread_create(&member->thread, NULL, run_member, member)) continue;
        rc = up_fail(err, UP_FAILED, "cannot start a thread for rank %d of %d", started, count);
        up_comm_abort(bench->members[0].seat->world, err->text);
        break;
    }
    run_member(&bench->members[0]);
    for (int i = 1; i < started; i++) pthread_join(bench->members[i].thread, NULL);
    for (int i = 0; i < started && !rc; i++)
        if ((rc = bench->members[i].status)) *err = bench->members[i].error;
    return rc;
}

/* --- What it says --------------------------------------------------------------------------------
 */

// The slowest rank's time: what all of them together get.
static double slowest(const struct bench *bench, size_t field)
{
    double most = 0;
    for (int i = 0; i < bench->group.count; i++)
        most = fmax(most, *(const double *)((const char *)&bench->members[i] + field));
    return most;
}
#define SLOWEST(bench, field) slowest(bench, offsetof(struct member, field))

// "805.1 TFLOP/s" or, of a processor, "84.6 GFLOP/s".
static const char *rate_text(char out[UP_UNITS_TEXT], double flops_per_s)
{
    bool tera = flops_per_s >= 1e12;
    snprintf(out, UP_UNITS_TEXT, "%8.1f %cFLOP/s", flops_per_s / (tera ? 1e12 : 1e9),
             tera ? 'T' : 'G');
    return out;
}

static void tell_blocks(const struct bench *bench, int call, double flops)
{
    const double *seconds = bench->members[0].blocks_s[call];
    char rows[UP_UNITS_TEXT], rate[UP_UNITS_TEXT];
    for (int b = 0; b < UP_COUNT(block_rows); b++)
        if (seconds[b] > 0)
            printf("    in blocks of %-37s %24.1f us  %s\n",
                   b ? up_format_count(rows, block_rows[b]) : "all rows", seconds[b] * 1e6,
                   rate_text(rate, flops / seconds[b]));
}

// A class of calls, each as often as the step makes it.
struct calls {
    double flops, seconds, runs;
    bool own; // of attention: upipe's own kernels do some of them
};

// Prints each, and their rate.
static struct calls tell_calls(const struct bench *bench, enum up_cost_class class)
{
    const struct up_rehearsal *calls = bench->members[0].plan.rehearsal;
    struct calls sum = {0};
    char rate[UP_UNITS_TEXT];
    for (int i = 0; i < up_rehearsal_count(calls); i++) {
        struct up_rehearsal_call call = up_rehearsal_call(calls, i);
        double one = 0;
        if (call.cost.class != class) continue;
        for (int r = 0; r < bench->group.count; r++) one = fmax(one, bench->members[r].call_s[i]);
        sum.flops += call.cost.flops * (double)call.times;
        sum.seconds += one * (double)call.times;
        sum.runs += (double)call.cost.runs * (double)call.times;
        sum.own |= call.cost.own;
        printf("  %-52s %8lld x %10.1f us  %s\n", call.text, (long long)call.times, one * 1e6,
               rate_text(rate, call.cost.flops / one));
        tell_blocks(bench, i, call.cost.flops);
    }
    if (sum.seconds > 0)
        printf("%-54s %10.3f s a step  %s\n\n", up_cost_class_names[class], sum.seconds,
               rate_text(rate, sum.flops / sum.seconds));
    return sum;
}

static double tell_rate(const char *what, double bytes, double seconds)
{
    double rate = seconds > 0 ? bytes / seconds : 0;
    if (rate > 0) printf("%-54s %34.1f GB/s\n", what, rate / 1e9);
    return rate;
}

// Attention's rate, of the model's head_dim and by the kernels that do it, beside what its runs are
// known to take. Where those take most of its time it does not tell.
static void tell_attention(const struct bench *bench, struct up_figures *figures,
                           struct up_figures *known, bool backward)
{
    const struct up_config *config = &bench->config;
    bool on_gpu = config->as == UP_DEVICE_CUDA;
    struct calls calls =
        tell_calls(bench, backward ? UP_COST_ATTENTION_BACKWARD : UP_COST_ATTENTION_FORWARD);
    bool own = on_gpu && (config->own_attention || calls.own);
    double besides = 0;
    if (on_gpu && !own) {
        up_figures_check_run(known, backward, calls.runs, calls.seconds);
        besides = calls.runs * known->of[up_figure_of_run(backward)];
    }
    if (calls.seconds > 2 * besides)
        figures->of[up_figure_of_attention(backward, config->model.head_dim, own)] =
            calls.flops / (calls.seconds - besides);
}

// Of copies in one direction, which all ranks made at once and one of them by itself.
static void tell_copies(const struct bench *bench, struct up_figures *figures,
                        const struct up_figures *known, enum up_machine_figure figure, double all_s,
                        double alone_s)
{
    bool to_host = figure == UP_FIGURE_TO_HOST;
    double bytes = (double)bench->buffer_bytes, alone = 0;
    double rate = tell_rate(
        to_host ? "to host, every rank at once" : "from host, every rank at once", bytes, all_s);
    if (bench->group.count > 1)
        alone = tell_rate(to_host ? "to host, rank 0 alone" : "from host, rank 0 alone", bytes,
                          alone_s);
    struct up_copy_figures told =
        up_figures_of_copies(known, figure, rate, alone, bench->group.count);
    figures->of[figure] = told.device;
    figures->of[up_figure_of_node(figure)] = told.node;
}

static void tell(const struct bench *bench, struct up_figures *figures, struct up_figures *known)
{
    const struct member *first = &bench->members[0];
    double bytes = (double)bench->buffer_bytes;
    double ranks = bench->group.count, cp = (double)bench->config.cp;
    const struct up_device *device = first->seat->device;
    figures->of[UP_FIGURE_DEVICE_BYTES] = (double)device->capacity[UP_SPACE_DEVICE];
    figures->of[UP_FIGURE_HOST_BYTES] = (double)device->capacity[UP_SPACE_HOST];
    struct calls products = tell_calls(bench, UP_COST_MATMUL);
    if (products.seconds > 0) figures->of[UP_FIGURE_MATMUL] = products.flops / products.seconds;
    tell_attention(bench, figures, known, false);
    tell_attention(bench, figures, known, true);
    figures->of[UP_FIGURE_MEMORY] =
        tell_rate("memory, read and written", 1.5 * bytes, SLOWEST(bench, memory_s));
    tell_copies(bench, figures, known, UP_FIGURE_TO_HOST, SLOWEST(bench, to_host_s),
                first->alone_to_host_s);
    tell_copies(bench, figures, known, UP_FIGURE_FROM_HOST, SLOWEST(bench, from_host_s),
                first->alone_from_host_s);
    double gathered = bytes * (ranks - 1) / ranks, sent = bytes * (cp - 1) / cp;
    double gather_s = SLOWEST(bench, gather_s), exchange_s = SLOWEST(bench, exchange_s);
    tell_rate("all-gather, sent by each rank", gathered, gather_s);
    tell_rate("all-to-all, sent by each rank", sent, exchange_s);
    if (gather_s > 0)
        figures->of[UP_FIGURE_LINK] =
            (gathered + (exchange_s > 0 ? sent : 0)) / (gather_s + exchange_s);
    figures->of[UP_FIGURE_LAUNCH] = SLOWEST(bench, launch_s);
    printf("%-54s %34.1f us\n", "launch", figures->of[UP_FIGURE_LAUNCH] * 1e6);
}

static void say_measured(const struct bench *bench, char *text, size_t size)
{
    char seq[UP_UNITS_TEXT];
    snprintf(text, size,
             "measured by upipe-train bench at the shapes of %s%s, head_dim %lld, %s tokens, %d "
             "rank%s",
             bench->config.model.name, bench->options->deterministic ? ", deterministic" : "",
             (long long)bench->config.model.head_dim, up_format_count(seq, bench->config.seq),
             bench->group.count, bench->group.count > 1 ? "s" : "");
}

// Where each figure is from. What was not measured is that of `known`, and attention at other
// head_dims in its ratio there.
static void complete(const struct bench *bench, struct up_figures *figures,
                     const struct up_figures *known, struct up_figure_sources *sources)
{
    const struct up_figures measured = *figures;
    for (int i = 0; i < UP_FIGURE_COUNT; i++) {
        enum up_machine_figure figure = (enum up_machine_figure)i, twin = up_figure_twin(figure);
        char *text = sources->text[i];
        size_t size = sizeof sources->text[i];
        if (measured.of[i] > 0) {
            say_measured(bench, text, size);
        } else if (twin < UP_FIGURE_COUNT && measured.of[twin] > 0) {
            figures->of[i] = up_figure_by_twin(known, figure, measured.of[twin]);
            snprintf(text, size, "not measured: from %s, in the ratio of %s", up_figure_name(twin),
                     known->name);
        } else {
            figures->of[i] = known->of[i];
            snprintf(text, size, "not measured: that of %s", known->name);
        }
    }
}

// The built-in machine with this device, or generic.
static enum up_status find_known(const struct up_device *device, struct up_figures *known,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_machine machine;
    UP_TRY(up_machine_find("generic", &machine, err));
    UP_TRY(up_machine_of_device(device->name, &machine, err));
    up_machine_figures(&machine, known);
out:
    return rc;
}

static enum up_status write_machine(const struct bench *bench, struct up_figures *figures,
                                    const struct up_figures *known, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const char *path = bench->options->output;
    const char *device = bench->members[0].seat->device->name;
    struct up_figure_sources *sources = calloc(1, sizeof *sources);
    if (!sources) return up_fail(err, UP_FAILED, "out of host memory");
    complete(bench, figures, known, sources);
    snprintf(figures->name, sizeof figures->name, "%.63s", device);
    UP_TRY(up_figures_write("--output", path, figures, "", sources, err));
    printf("written: %s (upipe-train --device dry --machine %s)\n", path, path);
out:
    free(sources);
    return rc;
}

/* --- The whole -----------------------------------------------------------------------------------
 */

static void close_member(struct member *member)
{
    struct up_error error;
    struct up_seat *seat = member->seat;
    free(member->call_s);
    free(member->blocks_s);
    if (!member->rank.device) return;
    up_device_bind(seat->device);
    if (seat->world && up_comm_check(seat->world, &error)) up_seat_leave(seat);
    for (int stream = 0; stream < UP_STREAM_COUNT; stream++)
        up_stream_synchronize(&member->rank, (enum up_stream)stream);
    up_rank_release(&member->rank);
    up_trainer_plan_release(&member->plan);
}

enum up_status up_bench(const struct up_train_options *options, int processes, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct bench bench = {.options = options};
    struct up_figures figures = {0}, known;
    bool folder;
    if (up_train_device(options) == UP_DEVICE_DRY)
        UP_TRY(up_fail(err, UP_USAGE, "bench: expected --device cpu or cuda: dry does no work"));
    if (processes > 1)
        UP_TRY(up_fail(err, UP_USAGE, "bench: expected one process, which takes all GPUs, not %d",
                       processes));
    if (options->output) UP_TRY(up_figures_check_path("--output", options->output, err));
    UP_TRY(up_train_options_resolve(options, &bench.config, &folder, err));
    UP_TRY(up_group_open(&bench.group, options, &bench.config, NULL, NULL, err));
    bench.buffer_bytes = bench.group.kind == UP_DEVICE_CUDA ? (int64_t)1 << 30 : 1 << 25;
    bench.members = calloc((size_t)bench.group.count, sizeof *bench.members);
    if (!bench.members) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    for (int i = 0; i < bench.group.count; i++)
        bench.members[i] =
            (struct member){.bench = &bench, .number = i, .seat = &bench.group.seat[i]};
    UP_TRY(run_members(&bench, err));
    UP_TRY(find_known(bench.members[0].seat->device, &known, err));
    tell(&bench, &figures, &known);
    if (options->output) UP_TRY(write_machine(&bench, &figures, &known, err));
out:
    for (int i = 0; bench.members && i < bench.group.count; i++) close_member(&bench.members[i]);
    free(bench.members);
    up_group_close(&bench.group);
    return rc;
}
