/* From a recorded step to the planned arena. */
#include "mem/arena.h"
#include "mem/mem_impl.h"

#include <stdlib.h>

/* --- Recording
 * ------------------------------------------------------------------------------------ */

void up_rank_record_lives(struct up_rank *rank, struct up_step_lives *lives)
{
    rank->record = lives;
}

void up_step_lives_release(struct up_step_lives *lives)
{
    for (int space = 0; space < UP_SPACE_COUNT; space++) free(lives->life[space]);
    *lives = (struct up_step_lives){0};
}

void up_record_begin(struct up_rank *rank, const struct up_tensor *tensor)
{
    struct up_step_lives *lives = rank->record;
    enum up_space space = tensor->space;
    if (!lives || tensor->step_index < 0) return;
    UP_ASSERT(tensor->step_index <= lives->count[space]);
    if (up_grow(&lives->life[space], tensor->step_index, &lives->room[space],
                sizeof *lives->life[space], NULL)) {
        up_rank_fail(rank, UP_FAILED, "out of host memory for the plan of a step");
        return;
    }
    lives->count[space] = tensor->step_index + 1;
    lives->life[space][tensor->step_index] =
        (struct up_life){tensor->bytes, rank->usage.events, INT64_MAX};
}

void up_record_end(struct up_rank *rank, const struct up_tensor *tensor)
{
    if (rank->record && tensor->step_index >= 0 &&
        tensor->step_index < rank->record->count[tensor->space])
        rank->record->life[tensor->space][tensor->step_index].end = rank->usage.events;
}

/* --- Planning
 * ------------------------------------------------------------------------------------- */

static enum up_status plan_space(const struct up_step_lives *lives, enum up_space space,
                                 struct up_step_plan *plan, struct up_error *err)
{
    int64_t count = lives->count[space];
    int64_t *offsets = calloc((size_t)count + 1, sizeof *offsets);
    struct up_planned *tensor = calloc((size_t)count + 1, sizeof *tensor);
    enum up_status rc = UP_OK;
    plan->tensor[space] = tensor;
    plan->count[space] = count;
    if (!offsets || !tensor) {
        rc = up_fail(err, UP_FAILED, "out of host memory");
        goto out;
    }
    UP_TRY(up_plan(lives->life[space], count, UP_ARENA_ALIGN, offsets, &plan->height[space], err));
    for (int64_t i = 0; i < count; i++)
        tensor[i] = (struct up_planned){lives->life[space][i].bytes, offsets[i]};
out:
    free(offsets);
    return rc;
}

enum up_status up_step_plan_make(const struct up_rank *rank, const struct up_step_lives *lives,
                                 struct up_step_plan *plan, struct up_error *err)
{
    enum up_status rc = UP_OK;
    *plan = (struct up_step_plan){0};
    for (int space = 0; space < UP_SPACE_COUNT; space++) {
        UP_TRY(plan_space(lives, (enum up_space)space, plan, err));
        plan->kept_high[space] = up_arena_high(rank->arena[space]);
    }
out:
    if (rc) up_step_plan_release(plan);
    return rc;
}

void up_step_plan_release(struct up_step_plan *plan)
{
    for (int space = 0; space < UP_SPACE_COUNT; space++) free(plan->tensor[space]);
    *plan = (struct up_step_plan){0};
}

// Whether the plan's arenas fit beside what outlives steps.
static bool fits(const struct up_rank *rank, const struct up_step_plan *plan)
{
    for (int space = 0; space < UP_SPACE_COUNT; space++)
        if (up_arena_high(rank->arena[space]) + plan->height[space] > rank->capacity[space])
            return false;
    return true;
}

enum up_status up_rank_use_plan(struct up_rank *rank, const struct up_step_plan *plan,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_device *device = rank->device;
    UP_ASSERT(rank->step < 0 && !rank->plan);
    if (!fits(rank, plan)) return UP_OK;
    for (int space = 0; space < UP_SPACE_COUNT; space++) {
        int64_t base = up_arena_high(rank->arena[space]);
        up_arena_end_at_high(rank->arena[space]);
        rank->step_base[space] = base;
        rank->step_arena[space] = up_arena_create(rank->capacity[space] - base);
        if (!rank->step_arena[space]) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
        if (device->ops->back)
            UP_TRY(up_back(rank, (enum up_space)space, base + plan->height[space], true,
                           &UP_TAG(WORKSPACE, "step.arena"), plan->height[space], err));
    }
    rank->plan = plan;
out:
    return rc;
}

void *up_step_scrap(struct up_rank *rank)
{
    UP_ASSERT(rank->plan && rank->step < 0);
    struct up_device *device = rank->device;
    struct up_label label = {"step.scrap", UP_NO_LAYER, UP_NO_INDEX};
    void *scrap = (char *)rank->base[UP_SPACE_DEVICE] + rank->step_base[UP_SPACE_DEVICE];
    if (device->ops->name)
        device->ops->name(device, scrap, rank->plan->height[UP_SPACE_DEVICE], &label, false);
    return scrap;
}

void up_step_scrap_end(struct up_rank *rank, void *scrap)
{
    struct up_device *device = rank->device;
    if (device->ops->discard)
        device->ops->discard(device, UP_STREAM_COMPUTE, scrap, rank->plan->height[UP_SPACE_DEVICE]);
}
