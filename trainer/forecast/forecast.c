#include "trainer/forecast/forecast.h"
#include "mem/arena.h"
#include "ops/rehearsal.h"
#include "trainer/forecast/dry_rank.h"
#include "trainer/step/state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const up_library_names[UP_LIBRARY_COUNT] = {"context", "cublas", "cudnn", "nccl"};

static const int64_t unbounded = (int64_t)1 << 60; // what a dry device has

/* --- What is alive at the peak -------------------------------------------------------------------
 */

enum { MAX_KINDS = 128 }; // names that the step's tensors have

struct census {
    struct up_forecast *forecast;
    struct up_forecast_kind kind[MAX_KINDS];
    struct up_label label[MAX_KINDS]; // the first of each
    int count;
};

static bool same_kind(const struct up_label *a, const struct up_label *b)
{
    return (a->layer < 0) == (b->layer < 0) && (a->index < 0) == (b->index < 0) &&
           !strcmp(a->name, b->name);
}

// Names that find no room share the last place.
static struct up_forecast_kind *kind_of(struct census *census, const struct up_tag *tag)
{
    const struct up_label *label = &tag->label;
    for (int i = 0; i < census->count; i++)
        if (same_kind(&census->label[i], label) && census->kind[i].category == tag->category)
            return &census->kind[i];
    if (census->count == MAX_KINDS) return &census->kind[MAX_KINDS - 1];
    struct up_forecast_kind *kind = &census->kind[census->count];
    census->label[census->count++] = *label;
    kind->category = tag->category;
    snprintf(kind->name, sizeof kind->name, "%s%.80s%s", label->layer < 0 ? "" : "layers.*.",
             label->name, label->index < 0 ? "" : ".*");
    return kind;
}

static void count_tensor(const struct up_tensor *tensor, void *context)
{
    struct census *census = context;
    if (tensor->space != UP_SPACE_DEVICE) return;
    struct up_forecast_kind *kind = kind_of(census, &tensor->tag);
    kind->bytes += tensor->bytes;
    kind->count++;
    census->forecast->category[tensor->tag.category] += tensor->bytes;
}

// The largest kinds, by falling size.
static void take_kinds(struct census *census)
{
    for (int place = 0; place < UP_FORECAST_KINDS && place < census->count; place++) {
        int largest = place;
        for (int i = place + 1; i < census->count; i++) {
            const struct up_forecast_kind *kind = &census->kind[i], *best = &census->kind[largest];
            if (kind->bytes > best->bytes ||
                (kind->bytes == best->bytes && strcmp(kind->name, best->name) < 0))
                largest = i;
        }
        struct up_forecast_kind taken = census->kind[largest];
        census->kind[largest] = census->kind[place];
        census->kind[place] = census->forecast->kind[place] = taken;
    }
}

static void tell_place(const struct up_rank *rank, struct up_forecast *forecast)
{
    const struct up_tensor *newest = rank->newest;
    forecast->phase = rank->phase;
    forecast->layer = UP_NO_LAYER;
    for (int i = 0; i < rank->range_depth; i++) {
        char name[UP_LABEL_TEXT];
        size_t used = strlen(forecast->range);
        snprintf(forecast->range + used, sizeof forecast->range - used, "%s%s", i ? " > " : "",
                 up_label_text(name, &rank->open_labels[i]));
        forecast->layer = rank->open_labels[i].layer;
    }
    if (!newest) return;
    up_label_text(forecast->reached_by, &newest->tag.label);
    forecast->reached_by_bytes = newest->bytes;
    if (newest->tag.label.layer >= 0) forecast->layer = newest->tag.label.layer;
}

static void take_census(const struct up_rank *rank, void *context)
{
    struct census census = {.forecast = context};
    up_rank_live(rank, count_tensor, &census);
    take_kinds(&census);
    tell_place(rank, context);
}

/* --- One rank ------------------------------------------------------------------------------------
 */

// What all dry runs of one forecast have in common.
struct asked {
    const struct up_machine *machine;
    enum up_forecast_depth depth;
    volatile const int *stop;
};

static enum up_status run_step(struct up_dry_rank *dry, int64_t step, double *seconds,
                               struct up_error *err)
{
    struct up_device *device = dry->device;
    int64_t begin = device->ops->clock_ns(device);
    enum up_status rc = up_dry_rank_step(dry, step, err);
    *seconds = (double)(device->ops->clock_ns(device) - begin) / 1e9;
    return rc;
}

// The heights of the arenas, and a third step in them.
static enum up_status plan_arenas(struct up_dry_rank *dry, const struct up_step_lives *lives,
                                  struct up_forecast *forecast, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_step_plan plan = {0};
    int64_t initial = up_state_device_staging(&dry->trainer.units);
    UP_TRY(up_step_plan_make(&dry->rank, lives, &plan, err));
    for (int space = 0; space < UP_SPACE_COUNT; space++) {
        int64_t height = plan.height[space], kept = dry->kept_high[space];
        if (space == UP_SPACE_DEVICE) {
            if (dry->rehearsal) height = up_max(height, up_rehearsal_bytes(dry->rehearsal));
            kept += initial;
        }
        forecast->arena_bytes[space] = kept + height;
    }
    UP_TRY(up_rank_use_plan(&dry->rank, &plan, err));
    UP_TRY(run_step(dry, 2, &forecast->planned_step_s, err));
    forecast->planned_micro_batch_s = (double)dry->trainer.micro_batch_ns / 1e9;
out:
    dry->rank.plan = NULL; // it makes no further step
    up_step_plan_release(&plan);
    return rc;
}

/* The first step tells at which of its events memory is highest, the second, which repeats it event
 * for event, is looked into there. Streams are idle at the beginning of either. */
static enum up_status look_closer(struct up_dry_rank *dry, enum up_forecast_depth depth,
                                  struct up_forecast *forecast, struct up_error *err)
{
    struct up_step_lives lives = {0};
    struct up_lookout lookout = {.event = dry->rank.usage.peak_event[UP_SPACE_DEVICE],
                                 .reached = take_census,
                                 .context = forecast};
    if (lookout.event)
        dry->rank.lookout = &lookout;
    else
        take_census(&dry->rank, forecast); // what outlives steps is all there ever is
    if (depth >= UP_FORECAST_PLANNED) up_rank_record_lives(&dry->rank, &lives);
    enum up_status rc = run_step(dry, 1, &forecast->step_s, err);
    dry->rank.lookout = NULL;
    up_rank_record_lives(&dry->rank, NULL);
    if (depth >= UP_FORECAST_PLANNED && !rc) rc = plan_arenas(dry, &lives, forecast, err);
    up_step_lives_release(&lives);
    return rc;
}

static enum up_status forecast_rank(const struct up_config *config, const struct asked *asked,
                                    int rank, struct up_forecast *forecast, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_dry_rank dry = {0};
    enum up_forecast_depth depth = asked->depth;
    bool rehearse = depth >= UP_FORECAST_PLANNED && config->as == UP_DEVICE_CUDA;
    *forecast = (struct up_forecast){.depth = depth, .layer = UP_NO_LAYER};
    UP_TRY(up_dry_rank_open(&dry, config, asked->machine, rank, rehearse, err));
    dry.trainer.stop = asked->stop;
    UP_TRY(run_step(&dry, 0, &forecast->step_s, err));
    forecast->peak_bytes = dry.rank.usage.peak_bytes[UP_SPACE_DEVICE];
    forecast->host_bytes = dry.rank.usage.peak_bytes[UP_SPACE_HOST];
    forecast->micro_batch_s = (double)dry.trainer.micro_batch_ns / 1e9;
    if (depth > UP_FORECAST_BRIEF) UP_TRY(look_closer(&dry, depth, forecast, err));
out:
    if (rc && dry.rank.out_of_memory) {
        *forecast = (struct up_forecast){.depth = UP_FORECAST_PLANNED,
                                         .beyond = true,
                                         .peak_bytes = unbounded,
                                         .layer = UP_NO_LAYER,
                                         .step_s = INFINITY,
                                         .planned_step_s = INFINITY};
        rc = UP_OK;
    }
    up_dry_rank_close(&dry);
    return rc;
}

/* --- The rank that holds most --------------------------------------------------------------------
 */

// Whether the query heads of two cp ranks use KV heads alike: stage by stage, each next query head
// goes on with the KV head of the one before on both ranks, or begins another on both.
static bool kv_alike(const struct up_config *config, int64_t a, int64_t b)
{
    int64_t group = config->model.heads / config->model.kv_heads;
    for (int64_t s = 0; s < up_config_stages(config); s++) {
        struct up_heads at_a = up_config_query_heads(config, a, s);
        struct up_heads at_b = up_config_query_heads(config, b, s);
        for (int64_t i = 1; i < at_a.count; i++)
            if (((at_a.first + i) % group == 0) != ((at_b.first + i) % group == 0)) return false;
    }
    return true;
}

// Of ranks that are alike the first has the most tokens. Which of those that are not has the higher
// peak, the order of their stages decides, too.
static bool is_first_of_its_like(const struct up_config *config, int64_t rank)
{
    for (int64_t before = 0; before < rank; before++)
        if (kv_alike(config, before, rank)) return false;
    return true;
}

// What each of two ranks needs most.
static void take_fuller(struct up_forecast *forecast, struct up_forecast *other)
{
    int64_t host = up_max(forecast->host_bytes, other->host_bytes);
    double step_s = fmax(forecast->step_s, other->step_s);
    double planned_step_s = fmax(forecast->planned_step_s, other->planned_step_s);
    double planned_one_s = fmax(forecast->planned_micro_batch_s, other->planned_micro_batch_s);
    for (int space = 0; space < UP_SPACE_COUNT; space++) {
        int64_t *arena = &forecast->arena_bytes[space], *others = &other->arena_bytes[space];
        *arena = *others = up_max(*arena, *others);
    }
    if (other->peak_bytes > forecast->peak_bytes) *forecast = *other;
    forecast->host_bytes = host;
    forecast->step_s = step_s;
    forecast->planned_step_s = planned_step_s;
    forecast->planned_micro_batch_s = planned_one_s;
}

static enum up_status forecast_fullest(const struct up_config *config, const struct asked *asked,
                                       struct up_forecast *forecast, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_forecast other;
    UP_TRY(forecast_rank(config, asked, 0, forecast, err));
    for (int r = 1; r < (int)config->cp; r++) {
        if (!is_first_of_its_like(config, r)) continue;
        UP_TRY(forecast_rank(config, asked, r, &other, err));
        take_fuller(forecast, &other);
    }
out:
    return rc;
}

/* --- Many micro-batches --------------------------------------------------------------------------
 */

enum { MICRO_BATCHES = 2 }; // that are simulated; each further one repeats the last

// Of each further micro-batch only its tokens wait beside the others', in host memory.
static void add_tokens(const struct up_config *config, int64_t beyond, struct up_forecast *forecast)
{
    int64_t tokens = 2 * config->batch * up_config_tokens(config, 0) * up_dtype_bytes[UP_I32];
    forecast->host_bytes += beyond * tokens;
    if (forecast->depth >= UP_FORECAST_PLANNED)
        forecast->arena_bytes[UP_SPACE_HOST] +=
            up_ceil_div(beyond * tokens, UP_ARENA_ALIGN) * UP_ARENA_ALIGN;
}

// One micro-batch tells.
static enum up_status forecast_briefly(const struct up_config *config, const struct asked *asked,
                                       struct up_forecast *forecast, struct up_error *err)
{
    struct up_config one = *config;
    one.accum = 1;
    enum up_status rc = forecast_fullest(&one, asked, forecast, err);
    if (rc || forecast->beyond) return rc;
    forecast->step_s += (double)(config->accum - 1) * forecast->micro_batch_s;
    add_tokens(config, config->accum - 1, forecast);
    return UP_OK;
}

static enum up_status forecast_accum(const struct up_config *config, const struct asked *asked,
                                     struct up_forecast *forecast, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_config fewer = *config;
    struct asked brief = *asked;
    struct up_forecast one;
    int64_t beyond = config->accum - MICRO_BATCHES;
    brief.depth = UP_FORECAST_BRIEF;
    if (asked->depth == UP_FORECAST_BRIEF) return forecast_briefly(config, asked, forecast, err);
    if (beyond <= 0) return forecast_fullest(config, asked, forecast, err);
    fewer.accum = MICRO_BATCHES;
    UP_TRY(forecast_fullest(&fewer, asked, forecast, err));
    if (forecast->beyond) goto out;
    fewer.accum = MICRO_BATCHES - 1;
    UP_TRY(forecast_fullest(&fewer, &brief, &one, err));
    forecast->step_s += (double)beyond * (forecast->step_s - one.step_s);
    forecast->planned_step_s += (double)beyond * forecast->planned_micro_batch_s;
    add_tokens(config, beyond, forecast);
out:
    return rc;
}

/* --- All of it -----------------------------------------------------------------------------------
 */

static void add_libraries(const struct up_config *config, const struct up_machine *machine,
                          struct up_forecast *forecast)
{
    int64_t ranks = up_config_ranks(config), nccl;
    int64_t beyond = up_machine_neighbours(machine, ranks) - 2;
    if (config->as != UP_DEVICE_CUDA) return;
    if (__builtin_mul_overflow(up_max(0, beyond), machine->nccl_rank_bytes, &nccl) ||
        nccl > unbounded)
        nccl = unbounded;
    forecast->library_bytes[UP_LIBRARY_CONTEXT] = machine->context_bytes;
    forecast->library_bytes[UP_LIBRARY_CUBLAS] = machine->cublas_bytes;
    forecast->library_bytes[UP_LIBRARY_CUDNN] = machine->cudnn_bytes;
    if (ranks > 1) forecast->library_bytes[UP_LIBRARY_NCCL] = machine->nccl_bytes + nccl;
    for (int i = 0; i < UP_LIBRARY_COUNT; i++) forecast->libraries += forecast->library_bytes[i];
}

enum up_status up_forecast_make(const struct up_config *config, const struct up_machine *machine,
                                enum up_forecast_depth depth, volatile const int *stop,
                                struct up_forecast *forecast, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct asked asked = {machine, depth, stop};
    UP_TRY(forecast_accum(config, &asked, forecast, err));
    if (!up_config_hash(config, forecast->config_hash))
        UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    double tokens =
        (double)config->accum * (double)config->dp * (double)config->batch * (double)config->seq;
    forecast->tokens_per_s = tokens / forecast->step_s;
    add_libraries(config, machine, forecast);
out:
    return rc;
}

enum up_status up_forecast_in_plan(const struct up_config *config, const struct up_machine *machine,
                                   const struct up_step_plan *plan, volatile const int *stop,
                                   double *step_s, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_dry_rank dry;
    UP_TRY(up_dry_rank_open(&dry, config, machine, 0, false, err));
    dry.trainer.stop = stop;
    UP_TRY(up_rank_use_plan(&dry.rank, plan, err));
    UP_TRY(run_step(&dry, 0, step_s, err));
out:
    up_dry_rank_close(&dry);
    return rc;
}

static double tiles(double rows, int64_t tile)
{
    return tile && (double)tile < rows ? rows / (double)tile : 1;
}

double up_config_launches(const struct up_config *config)
{
    double rows = (double)config->batch * (double)up_config_tokens(config, 0);
    double slots = (double)up_config_stages(config) * (double)up_config_passes(config);
    double attention = slots * (double)config->cp * 10 * (1 + tiles(rows, config->tile_attn));
    double layer = attention + 20 * tiles(rows, config->tile_mlp);
    return (double)up_config_layers(config) * layer + 10 * tiles(rows, config->tile_loss);
}

bool up_config_can_be_forecast(const struct up_config *config)
{
    return up_config_launches(config) < 4e7;
}

int64_t up_forecast_device_need(const struct up_forecast *forecast)
{
    return up_max(forecast->peak_bytes, forecast->arena_bytes[UP_SPACE_DEVICE]) +
           forecast->libraries;
}

int64_t up_forecast_host_need(const struct up_forecast *forecast)
{
    return up_max(forecast->host_bytes, forecast->arena_bytes[UP_SPACE_HOST]);
}
