/* One rank of a run, on its thread: it starts, makes its steps, saves, and ends with the others. */
#include "trainer/step/state.h"
#include "trainer/training.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

// Everybody ends: nobody is to wait for a rank that does not come.
static void on_hang(void *context, const char *reason)
{
    struct up_training *run = context;
    up_group_abort(&run->group, reason);
}

static enum up_status start(struct up_member *member, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_training *run = member->run;
    struct up_trainer *trainer = &member->trainer;
    // A forecast of what does not fit is whole; --no-admission has it end where the run would.
    bool limited = !up_training_is_dry(run) || run->options->no_admission;
    const int64_t limits[UP_SPACE_COUNT] = {[UP_SPACE_DEVICE] =
                                                limited ? run->options->memory_limit : 0};
    struct up_device *device = member->seat->device;
    up_device_bind(device);
    UP_TRY(up_rank_init(&member->rank, member->number, device, member->trace, limits, err));
    up_profile_bind(run->profile, &member->rank);
    // What setting up takes and no library has been named for is the context's.
    struct up_bracket all = up_bracket_since_made(&member->rank);
    struct up_bracket joining = up_bracket_begin(&member->rank);
    UP_TRY(up_group_join(&run->group, member->seat, err));
    up_bracket_end(&member->rank, &joining, "nccl");
    UP_TRY(up_trainer_init(trainer, &member->rank, &run->config, member->seat->world,
                           member->seat->cp, err));
    UP_TRY(run->weights ? up_state_load(&trainer->units, run->weights, err)
                        : up_state_randomise(&trainer->units, (uint64_t)run->options->seed, err));
    if (run->resume.moments) UP_TRY(up_resume_load(&run->resume, &trainer->units, err));
    // Where nothing is placed and nobody looks there is no need to plan.
    if (!up_training_is_dry(run) || member->trace) {
        if (!member->plan.rehearsal) // train.c may have made it
            UP_TRY(up_trainer_plan(&run->config, member->number, run->stop, &member->plan, err));
        UP_TRY(up_rank_use_plan(&member->rank, &member->plan.step, err));
    }
    if (!up_training_is_dry(run)) run->ticks[member->place] = up_trainer_ticks(trainer);
    UP_TRY(up_group_prepare(&run->group, &member->rank, member->plan.rehearsal, err));
    up_bracket_end(&member->rank, &all, "context");
    trainer->progress = member->number == 0 ? &run->log.progress : NULL;
    trainer->stop = run->between.asked ? NULL : run->stop;
    if (member->place == 0 && run->group.kind == UP_DEVICE_CUDA) {
        double limit_s = fmax(5 * member->plan.layer_s, UP_HANG_LEAST_S);
        run->watch =
            up_watch_start(run->ticks, member->number, run->count, limit_s, on_hang, run, err);
        if (!run->watch) UP_TRY(err->status);
    }
out:
    return rc;
}

// Targets that count in the windows of a step, over all ranks. Only i32 files have others.
static enum up_status count_targets(const struct up_training *run, int64_t first_window,
                                    int64_t *counted, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_config *config = &run->config;
    int64_t windows = config->accum * config->dp * config->batch, seq = config->seq;
    *counted = windows * seq;
    if (up_training_is_dry(run) || run->options->data_format != UP_DATA_I32) return UP_OK;
    int32_t *tokens = malloc((size_t)seq * 2 * sizeof *tokens);
    if (!tokens) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    *counted = 0;
    for (int64_t k = 0; k < windows; k++) {
        int64_t in_window = 0;
        UP_TRY(up_data_window(run->data, first_window + k, tokens, tokens + seq, &in_window, err));
        *counted += in_window;
    }
out:
    free(tokens);
    return rc;
}

// This rank's part of its replica's windows, into the staging tensor.
static enum up_status read_tokens(struct up_member *member, int64_t step, int64_t *counted,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_training *run = member->run;
    const struct up_config *c = &run->config;
    const struct up_trainer *trainer = &member->trainer;
    int64_t first = up_config_first_token(c, trainer->cp_rank);
    int64_t count = up_config_tokens(c, trainer->cp_rank);
    UP_TRY(count_targets(run, step * c->accum * c->dp * c->batch, counted, err));
    for (int64_t i = 0; !up_training_is_dry(run) && i < c->accum * c->batch; i++) {
        int64_t a = i / c->batch, b = i % c->batch, here = 0;
        int64_t k = ((step * c->accum + a) * c->dp + trainer->dp_rank) * c->batch + b;
        UP_TRY(up_data_slice(run->data, k, first, count, up_trainer_inputs(trainer, a, b),
                             up_trainer_targets(trainer, a, b), &here, err));
    }
out:
    return rc;
}

// Runs a step and tells what came out.
static enum up_status run_step(struct up_member *member, int64_t step, struct up_step_log *line,
                               struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_train_options *o = member->run->options;
    struct up_device *device = member->seat->device;
    struct up_hyper hyper = {.lr = up_train_lr(o, step),
                             .beta1 = o->beta1,
                             .beta2 = o->beta2,
                             .epsilon = o->epsilon,
                             .decay = o->decay,
                             .clip = o->clip};
    struct up_step_result result;
    int64_t counted = 0, begin = device->ops->clock_ns(device);
    UP_TRY(read_tokens(member, step, &counted, err));
    UP_TRY(up_trainer_step(&member->trainer, step, counted, &hyper, &result, err));
    *line = (struct up_step_log){.step = step,
                                 .loss = result.loss,
                                 .grad_norm = result.grad_norm,
                                 .tokens = counted,
                                 .seconds = (double)(device->ops->clock_ns(device) - begin) / 1e9,
                                 .peak_bytes = member->rank.usage.peak_bytes[UP_SPACE_DEVICE]};
out:
    return rc;
}

// The steps of a dry run are alike (the first may begin with idle streams): once two in a row have
// been the same, and nobody records them, the rest need not be simulated.
static bool repeats(const struct up_member *member, int64_t step, struct up_step_log *line)
{
    const struct up_step_log *last = member->dry_steps;
    int64_t simulated = step - member->run->resume.steps;
    if (!up_training_is_dry(member->run) || member->trace || simulated < 2 ||
        last[0].seconds != last[1].seconds || last[0].peak_bytes != last[1].peak_bytes)
        return false;
    *line = last[0];
    line->step = step;
    return true;
}

static enum up_status run_and_tell(struct up_member *member, int64_t step, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_step_log line;
    struct up_log *log = &member->run->log;
    if (member->number == 0) up_log_step_begin(log, step);
    if (!repeats(member, step, &line)) {
        UP_TRY(run_step(member, step, &line, err));
        up_rank_tell_usage(&member->rank);
        member->dry_steps[0] = member->dry_steps[1];
        member->dry_steps[1] = line;
    } else if (member->trainer.stop && *member->trainer.stop) { // no step is there to look
        UP_TRY(up_fail(err, UP_FAILED, "interrupted"));
    }
    if (member->number == 0) UP_TRY(up_log_step_end(log, &line, err));
out:
    return rc;
}

// Between two steps, of which `done` are behind.
static enum up_status save(struct up_member *member, int64_t done, struct up_error *err)
{
    const struct up_saver *saver = &member->run->saver;
    char name[UP_SAVE_NAME], seconds[UP_UNITS_TEXT];
    int64_t begin = up_clock_ns();
    // A save is no layer, and may take long.
    up_watch_pause(member->run->watch, true);
    enum up_status rc = up_saver_save(saver, &member->trainer.units, done, err);
    up_watch_pause(member->run->watch, false);
    if (rc || member->number) return rc;
    printf("saved: %s/%s in %s\n", saver->dir, up_save_name(name, done),
           up_format_seconds(seconds, (double)(up_clock_ns() - begin) / 1e9));
    fflush(stdout);
    return UP_OK;
}

static enum up_status save_if_due(struct up_member *member, int64_t done, struct up_error *err)
{
    return up_saver_due(&member->run->saver, done) ? save(member, done, err) : UP_OK;
}

// Where the run is told to end before step `step`, with a save of what this run has done.
static enum up_status end_if_asked(struct up_member *member, int64_t step, bool *ends,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_training *run = member->run;
    UP_TRY(up_stop_agree(&run->between, member->seat->world, step, ends, err));
    if (*ends && step > run->resume.steps && !up_saver_due(&run->saver, step))
        UP_TRY(save(member, step, err));
out:
    return rc;
}

// The others are not to wait for this rank. One that has not joined them yet can only tell other
// processes.
static void give_up(struct up_member *member, const char *reason)
{
    struct up_training *run = member->run;
    if (run->group.peers) {
        up_group_abort(&run->group, reason);
        return;
    }
    up_seat_abort(member->seat, reason);
    // Who waits for this rank within NCCL's set-up is not reached so.
    if (run->count > 1) up_training_end_within(run, UP_ABORTED_END_S, reason);
}

void *up_member_live(void *argument)
{
    struct up_member *member = argument;
    struct up_error *err = &member->error;
    enum up_status rc = UP_OK;
    bool ends = false;
    UP_TRY(start(member, err));
    for (int64_t step = member->run->resume.steps; step < member->run->options->steps; step++) {
        UP_TRY(end_if_asked(member, step, &ends, err));
        if (ends) break;
        UP_TRY(run_and_tell(member, step, err));
        UP_TRY(save_if_due(member, step + 1, err));
    }
out:
    if (rc) give_up(member, err->text);
    if (member->run->ticks[member->place])
        atomic_store(member->run->ticks[member->place], UP_WATCH_DONE);
    up_profile_bind(member->run->profile, NULL);
    up_trace_close(member->trace);
    member->status = rc;
    return NULL;
}
