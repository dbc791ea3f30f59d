#include "report/calibration/rerun.h"
#include "comm/comm.h"
#include "trainer/forecast/machine.h"
#include "trainer/forecast/plan.h"
#include "trainer/options/stored.h"
#include "trainer/step/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- The config --------------------------------------------------------------------------------
 */

// The hash tells whether it is what was run.
static enum up_status check_hash(const struct up_rerun_of *of, const struct up_config *config,
                                 struct up_error *err)
{
    char hash[17];
    if (!up_config_hash(config, hash)) return up_fail(err, UP_FAILED, "out of host memory");
    if (!strcmp(of->config_hash, hash)) return UP_OK;
    return up_fail(err, UP_USAGE, "%s: its configuration is not one that this upipe can run again",
                   of->path);
}

static enum up_status find_config(const struct up_rerun_of *of, struct up_config *config,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_stored_run stored = {.root = NULL};
    UP_TRY(up_stored_run_read(of->config, of->path, &stored, err));
    *config = stored.config;
    UP_TRY(check_hash(of, config, err));
    if (of->rank < 0 || of->rank >= up_config_ranks(config))
        UP_TRY(up_fail(err, UP_USAGE, "%s: it has no rank %lld", of->path, (long long)of->rank));
out:
    up_stored_run_release(&stored);
    return rc;
}

/* --- The step ----------------------------------------------------------------------------------
 */

/* The dry device with one slot of its interface listened to: `ops` comes first, so that a device
 * leads back to its listener. */
struct listener {
    struct up_device_ops ops;
    const struct up_device_ops *inner;
    struct up_rerun *rerun;
    int64_t capacity, most;
    bool listening, failed;
    volatile int stop;
};

static void note(struct listener *l, const struct up_cost *cost)
{
    struct up_rerun *rerun = l->rerun;
    if (!l->listening || l->stop || cost->class == UP_COST_COLLECTIVE) return;
    if (up_grow(&rerun->costs, rerun->count, &l->capacity, sizeof *cost, NULL)) {
        l->failed = true;
        l->stop = 1;
        return;
    }
    rerun->costs[rerun->count++] = *cost;
    if (l->most && rerun->count > l->most) l->stop = 1;
}

static struct up_interval launch(struct up_device *device, enum up_stream stream, union up_call run,
                                 const void *args, size_t size, const struct up_cost *cost)
{
    struct listener *l = (struct listener *)(uintptr_t)device->ops;
    note(l, cost);
    return l->inner->launch(device, stream, run, args, size, cost);
}

static void listen_to(struct up_device *device, struct listener *l)
{
    l->inner = device->ops;
    l->ops = *device->ops;
    l->ops.launch = launch;
    device->ops = &l->ops;
}

// What a step takes: the first begins with idle streams, so that the second is the one.
static enum up_status run_steps(struct up_trainer *trainer, struct listener *l,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_device *device = trainer->rank->device;
    static const struct up_hyper hyper = {0};
    struct up_step_result result;
    for (int step = 0; step < 2; step++) {
        int64_t begin = device->ops->clock_ns(device);
        l->listening = step == 0;
        UP_TRY(up_trainer_step(trainer, step, 1, &hyper, &result, err));
        l->rerun->step_s = (double)(device->ops->clock_ns(device) - begin) / 1e9;
    }
out:
    if (l->failed) return up_fail(err, UP_FAILED, "out of host memory");
    if (!l->stop) return rc;
    l->rerun->step_s = NAN;
    return UP_OK;
}

static enum up_status rerun_config(const struct up_config *config, int rank,
                                   struct up_device *device, struct listener *listener,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_comm *world = NULL, *cp = NULL;
    struct up_rank dry = {0};
    struct up_trainer trainer = {0};
    struct up_trainer_plan plan = {0};
    UP_TRY(up_comm_dry_create((int)up_config_ranks(config), rank, &world, err));
    UP_TRY(up_comm_dry_create((int)config->cp, (int)up_config_cp_rank(config, rank), &cp, err));
    UP_TRY(up_rank_init(&dry, rank, device, NULL, NULL, err));
    UP_TRY(up_trainer_init(&trainer, &dry, config, world, cp, err));
    trainer.stop = &listener->stop;
    // Where tensors lie decides which stream waits for which, and so the time; not what is done.
    if (!listener->most) {
        UP_TRY(up_trainer_plan(config, rank, NULL, &plan, err));
        UP_TRY(up_rank_use_plan(&dry, &plan.step, err));
    }
    UP_TRY(run_steps(&trainer, listener, err));
out:
    up_trainer_release(&trainer);
    if (dry.device) up_rank_release(&dry);
    up_trainer_plan_release(&plan);
    up_comm_destroy(cp);
    up_comm_destroy(world);
    return rc;
}

enum up_status up_rerun_step(const struct up_rerun_of *of, const struct up_figures *figures,
                             int64_t most, struct up_rerun *rerun, struct up_error *err)
{
    struct listener listener = {.rerun = rerun, .most = most};
    struct up_config config;
    struct up_machine machine;
    *rerun = (struct up_rerun){.step_s = NAN};
    enum up_status rc = find_config(of, &config, err);
    if (rc != UP_OK) return rc;
    up_machine_of_figures(figures, &machine);
    struct up_device *device = up_machine_dry_device(&machine, &config, err);
    if (!device) return err->status;
    listen_to(device, &listener);
    rc = rerun_config(&config, (int)of->rank, device, &listener, err);
    up_device_destroy(device);
    return rc;
}

void up_rerun_release(struct up_rerun *rerun)
{
    free(rerun->costs);
    *rerun = (struct up_rerun){0};
}
