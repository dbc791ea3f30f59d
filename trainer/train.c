#include "trainer/train.h"
#include "model/data.h"
#include "profiler/recorder.h"
#include "trainer/advisor/admission.h"
#include "trainer/advisor/advisor.h"
#include "trainer/advisor/predict.h"
#include "trainer/facts.h"
#include "trainer/forecast/machine.h"
#include "trainer/forecast/plan.h"
#include "trainer/group.h"
#include "trainer/log.h"
#include "trainer/options/stored.h"
#include "trainer/profile.h"
#include "trainer/resume.h"
#include "trainer/save.h"
#include "trainer/step/state.h"
#include "trainer/stop.h"
#include "trainer/watch.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// END_ANYWAY_S after the ranks have ended, ABORTED_END_S after the first has failed.
enum { HANG_LEAST_S = 60, END_ANYWAY_S = 20, ABORTED_END_S = 40 };

struct run;

// One rank: a thread with all that is its own.
struct member {
    struct run *run;
    int number; // of the rank, among all
    int place;  // in this process
    struct up_seat *seat;
    struct up_trace *trace; // the recorder's; NULL without --trace
    struct up_rank rank;
    struct up_trainer trainer;
    struct up_trainer_plan plan;
    struct up_step_log dry_steps[2]; // the last two that were simulated
    pthread_t thread;
    enum up_status status;
    struct up_error error;
};

// Everything a run holds, in the order in which it is opened.
struct run {
    const struct up_train_options *options;
    const struct up_launch *launch;
    volatile const int *stop;
    struct up_stop between; // ends the run between steps, where it saves
    struct up_config config;
    struct up_machine machine; // its rates are for forecasts
    struct up_limits limits;
    struct up_forecaster *forecaster;
    struct up_data *data;
    struct up_weights *weights;
    struct up_resume resume;
    struct up_saver saver;
    struct up_log log;
    struct up_group group;
    struct member *members;
    int count;                // of them
    _Atomic uint64_t **ticks; // per rank: layers that its device has got through
    struct up_watch *watch;   // cuda only
    struct up_recorder *recorder;
    struct up_profile *profile; // cuda only; NULL: nothing beside the ranks is looked at
};

static bool is_dry(const struct run *run)
{
    return up_train_device(run->options) == UP_DEVICE_DRY;
}

// Who speaks for the run.
static bool leads(const struct run *run)
{
    return run->launch->process == 0;
}

/* --- Ending at all costs -----------------------------------------------------------------------
 */

// A GPU that has failed can keep its libraries from ever ending, and so can a process that does not
// come when ranks first meet: then the process ends without them.
struct last_words {
    unsigned seconds;
    char why[1024];
};

static void *end_anyway(void *argument)
{
    const struct last_words *last = argument;
    sleep(last->seconds);
    fprintf(
        stderr,
        "upipe-train: %s\nupipe-train: the GPUs do not come to an end after this failure: ending "
        "without them\n",
        last->why);
    _exit(UP_FAILED);
}

// What is given to the thread stays until the process ends, which is soon.
static void end_within(const struct run *run, unsigned seconds, const char *why)
{
    pthread_t thread;
    if (run->group.kind != UP_DEVICE_CUDA) return;
    struct last_words *last = malloc(sizeof *last);
    if (!last) return;
    last->seconds = seconds;
    snprintf(last->why, sizeof last->why, "%s", why);
    if (pthread_create(&thread, NULL, end_anyway, last))
        free(last);
    else
        pthread_detach(thread);
}

// A process has given up or died, and all ranks of all processes are to end.
static void on_abort(void *context, const char *reason)
{
    end_within(context, ABORTED_END_S, reason);
}

/* --- Opening ------------------------------------------------------------------------------------
 */

// A file of another format than it is said to be shows in its first window, before anything is
// written.
static enum up_status try_first_window(const struct run *run, struct up_error *err)
{
    int64_t counted = 0, seq = run->config.seq;
    int32_t *tokens = malloc((size_t)seq * 2 * sizeof *tokens);
    if (!tokens) return up_fail(err, UP_FAILED, "out of host memory");
    enum up_status rc = up_data_window(run->data, 0, tokens, tokens + seq, &counted, err);
    free(tokens);
    return rc;
}

static enum up_status open_inputs(struct run *run, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_train_options *options = run->options;
    const struct up_model *model = &run->config.model;
    const char *resumed = run->resume.folder;
    bool folder = false;
    UP_TRY(up_train_options_resolve(options, &run->config, &folder, err));
    if (resumed) UP_TRY(up_resume_check(&run->resume, &run->config, err));
    UP_TRY(up_machine_find(options->machine ? options->machine : "generic", &run->machine, err));
    if (is_dry(run)) goto out;
    if (!options->data)
        UP_TRY(up_fail(err, UP_USAGE, "--data: expected a file to train on (or --device dry)"));
    UP_TRY(up_data_open(options->data, (enum up_data_format)options->data_format, options->seq,
                        model->vocab, &run->data, err));
    UP_TRY(try_first_window(run, err));
    if (resumed) UP_TRY(up_resume_open(&run->resume, model, err));
    if (resumed || folder)
        UP_TRY(up_weights_open(resumed ? resumed : options->model, model, &run->weights, err));
out:
    return rc;
}

static enum up_status open_members(struct run *run, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_group_place place = {.launch = run->launch,
                                   .steps_done = run->resume.steps,
                                   .stop = run->stop,
                                   .aborted = on_abort,
                                   .context = run};
    UP_TRY(up_group_open(&run->group, run->options, &run->config, &run->machine, &place, err));
    run->members = calloc((size_t)run->group.count, sizeof *run->members);
    run->ticks = calloc((size_t)run->group.count, sizeof *run->ticks);
    if (!run->members || !run->ticks) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    run->count = run->group.count;
    for (int i = 0; i < run->count; i++)
        run->members[i] = (struct member){
            .run = run, .number = run->group.first + i, .place = i, .seat = &run->group.seat[i]};
    if (!run->options->machine)
        UP_TRY(up_machine_of_device(run->group.seat[0].device->name, &run->machine, err));
out:
    return rc;
}

// What does not fit is not started. A forecast of it is made all the same, and the lack told.
static enum up_status admit(struct run *run, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_train_options *options = run->options;
    struct up_admission admission;
    run->limits = up_admission_limits(options, run->config.as,
                                      run->group.seat[0].device->capacity[UP_SPACE_DEVICE],
                                      (int64_t)run->launch->here * run->group.count, &run->machine);
    run->forecaster = up_forecaster_create(&run->machine, 0);
    if (!run->forecaster) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    up_forecaster_stop_at(run->forecaster, run->stop);
    if (options->no_admission) return UP_OK;
    UP_TRY(up_admission_check(run->forecaster, &run->config, &run->limits, !is_dry(run), &admission,
                              err));
    if (admission.fits) return UP_OK;
    if (!is_dry(run)) rc = up_fail(err, UP_FAILED, "does not fit %s", admission.lack);
    fprintf(stderr, "upipe-train: does not fit %s\n", admission.lack);
    if (*admission.dominant) fprintf(stderr, "  %s\n", admission.dominant);
    fprintf(stderr, "  %s\n", admission.way_out);
    if (rc)
        snprintf(err->text, sizeof err->text, "not started (--no-admission starts all the same)");
out:
    return rc;
}

static void store_prediction(const struct run *run, const struct up_config *config,
                             const struct up_forecast *forecast)
{
    char options[UP_CHANGE_TEXT];
    if (forecast->beyond) return;
    struct up_store_prediction prediction =
        up_predict(&run->config, config, forecast, options, sizeof options);
    up_recorder_predict(run->recorder, &prediction);
}

// The run's own forecast, and those of its neighbours: for the next run to be held against.
static enum up_status predict(struct run *run, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_forecast *own;
    struct up_ladder_line lines[UP_TECHNIQUE_COUNT];
    int count = 0;
    UP_TRY(up_forecaster_ask(run->forecaster, &run->config, UP_FORECAST_PLACED, &own, err));
    store_prediction(run, &run->config, own);
    UP_TRY(up_advise_ladder(run->forecaster, &run->config, lines, &count, err));
    for (int i = 0; i < count; i++)
        store_prediction(run, &lines[i].to.config, lines[i].to.forecast);
out:
    return rc;
}

static enum up_status open_trace(struct run *run, const char *command, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_facts facts;
    const struct up_about about = {.command = command,
                                   .options = run->options,
                                   .config = &run->config,
                                   .machine = &run->machine,
                                   .launch = run->launch,
                                   .device = run->group.kind,
                                   .steps = run->options->steps - run->resume.steps};
    if (!run->options->trace) return UP_OK;
    if (!up_facts_collect(&facts, &about)) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    UP_TRY(up_recorder_create(run->options->trace, run->options->trace_steps, facts.entry,
                              facts.count, &run->recorder, err));
    for (int i = 0; i < run->count; i++) {
        struct member *member = &run->members[i];
        int64_t capacity = is_dry(run) ? run->machine.device_bytes
                                       : member->seat->device->capacity[UP_SPACE_DEVICE];
        member->trace = up_recorder_add_rank(run->recorder, member->number,
                                             member->seat->device->name, capacity ? capacity : -1);
        if (!member->trace) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    }
    UP_TRY(up_profile_attach(run->profile, &run->group, run->recorder, err));
    UP_TRY(predict(run, err));
    UP_TRY(up_recorder_start(run->recorder, err));
out:
    up_facts_release(&facts);
    return rc;
}

static void say_hello(const struct run *run)
{
    const struct up_config *c = &run->config;
    char seq[UP_UNITS_TEXT];
    char processes[32] = "";
    if (!leads(run)) return;
    if (run->launch->processes > 1)
        snprintf(processes, sizeof processes, " in %d processes", run->launch->processes);
    double parameters = (double)up_model_parameters(&c->model);
    bool many = parameters >= 1e10; // which four digits of millions do not tell
    printf("%s: %.4g %c parameters, %s on %s, %lld rank%s%s (cp %lld, dp %lld), %lld x %s tokens a "
           "step\n",
           c->model.name, parameters / (many ? 1e9 : 1e6), many ? 'B' : 'M',
           up_dtype_names[c->dtype], run->group.seat[0].device->name, (long long)up_config_ranks(c),
           up_config_ranks(c) > 1 ? "s" : "", processes, (long long)c->cp, (long long)c->dp,
           (long long)(c->accum * c->dp * c->batch), up_format_count(seq, c->seq));
    if (up_config_layers(c) < c->model.layers)
        printf("active: %lld of %lld layers are computed, the state of all is there\n",
               (long long)up_config_layers(c), (long long)c->model.layers);
    if (run->resume.folder)
        printf("resumed: %s, %lld of %lld steps are done\n", run->resume.folder,
               (long long)run->resume.steps, (long long)run->options->steps);
    if (run->weights) {
        char bytes[UP_UNITS_TEXT];
        printf("weights: %s of %s%s%s\n",
               up_format_bytes(bytes, (uint64_t)up_weights_bytes(run->weights)),
               up_weights_dtype(run->weights), up_weights_note(run->weights) ? "; " : "",
               up_weights_note(run->weights) ? up_weights_note(run->weights) : "");
    }
    fflush(stdout);
}

// Everything that can be found wrong with the options is found here.
static enum up_status open_run(struct run *run, const char *command, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_train_options *options = run->options;
    UP_TRY(up_profile_open(options, &run->profile, err));
    UP_TRY(open_members(run, err));
    UP_TRY(admit(run, err));
    UP_TRY(up_saver_open(&run->saver, options, &run->config, run->resume.steps, leads(run), err));
    UP_TRY(up_log_init(&run->log, options->json_log, options->trace, run->resume.steps, is_dry(run),
                       err));
    UP_TRY(up_group_meet(&run->group, err)); // nothing is wrong in any process
    UP_TRY(open_trace(run, command, err));
    UP_TRY(up_log_start(&run->log, err));
out:
    if (rc) up_log_cancel(&run->log);
    return rc;
}

/* --- One rank ------------------------------------------------------------------------------------
 */

// Everybody ends: nobody is to wait for a rank that does not come.
static void on_hang(void *context, const char *reason)
{
    struct run *run = context;
    up_group_abort(&run->group, reason);
}

static enum up_status start(struct member *member, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct run *run = member->run;
    struct up_trainer *trainer = &member->trainer;
    // A forecast of what does not fit is whole; --no-admission has it end where the run would.
    bool limited = !is_dry(run) || run->options->no_admission;
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
    if (!is_dry(run) || member->trace) {
        UP_TRY(up_trainer_plan(&run->config, member->number, run->stop, &member->plan, err));
        UP_TRY(up_rank_use_plan(&member->rank, &member->plan.step, err));
    }
    if (!is_dry(run)) run->ticks[member->place] = up_trainer_ticks(trainer);
    UP_TRY(up_group_prepare(&run->group, &member->rank, member->plan.rehearsal, err));
    up_bracket_end(&member->rank, &all, "context");
    trainer->progress = member->number == 0 ? &run->log.progress : NULL;
    trainer->stop = run->between.asked ? NULL : run->stop;
    if (member->place == 0 && run->group.kind == UP_DEVICE_CUDA) {
        double limit_s = fmax(5 * member->plan.layer_s, HANG_LEAST_S);
        run->watch =
            up_watch_start(run->ticks, member->number, run->count, limit_s, on_hang, run, err);
        if (!run->watch) UP_TRY(err->status);
    }
out:
    return rc;
}

// Targets that count in the windows of a step, over all ranks. Only i32 files have others.
static enum up_status count_targets(const struct run *run, int64_t first_window, int64_t *counted,
                                    struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_config *config = &run->config;
    int64_t windows = config->accum * config->dp * config->batch, seq = config->seq;
    *counted = windows * seq;
    if (is_dry(run) || run->options->data_format != UP_DATA_I32) return UP_OK;
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
static enum up_status read_tokens(struct member *member, int64_t step, int64_t *counted,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct run *run = member->run;
    const struct up_config *c = &run->config;
    const struct up_trainer *trainer = &member->trainer;
    int64_t first = up_config_first_token(c, trainer->cp_rank);
    int64_t count = up_config_tokens(c, trainer->cp_rank);
    UP_TRY(count_targets(run, step * c->accum * c->dp * c->batch, counted, err));
    for (int64_t i = 0; !is_dry(run) && i < c->accum * c->batch; i++) {
        int64_t a = i / c->batch, b = i % c->batch, here = 0;
        int64_t k = ((step * c->accum + a) * c->dp + trainer->dp_rank) * c->batch + b;
        UP_TRY(up_data_slice(run->data, k, first, count, up_trainer_inputs(trainer, a, b),
                             up_trainer_targets(trainer, a, b), &here, err));
    }
out:
    return rc;
}

// Runs a step and tells what came out.
static enum up_status run_step(struct member *member, int64_t step, struct up_step_log *line,
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
static bool repeats(const struct member *member, int64_t step, struct up_step_log *line)
{
    const struct up_step_log *last = member->dry_steps;
    int64_t simulated = step - member->run->resume.steps;
    if (!is_dry(member->run) || member->trace || simulated < 2 ||
        last[0].seconds != last[1].seconds || last[0].peak_bytes != last[1].peak_bytes)
        return false;
    *line = last[0];
    line->step = step;
    return true;
}

static enum up_status run_and_tell(struct member *member, int64_t step, struct up_error *err)
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
    }
    if (member->number == 0) UP_TRY(up_log_step_end(log, &line, err));
out:
    return rc;
}

// Between two steps, of which `done` are behind.
static enum up_status save(struct member *member, int64_t done, struct up_error *err)
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

static enum up_status save_if_due(struct member *member, int64_t done, struct up_error *err)
{
    return up_saver_due(&member->run->saver, done) ? save(member, done, err) : UP_OK;
}

// Where the run is told to end before step `step`, with a save of what this run has done.
static enum up_status end_if_asked(struct member *member, int64_t step, bool *ends,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct run *run = member->run;
    UP_TRY(up_stop_agree(&run->between, member->seat->world, step, ends, err));
    if (*ends && step > run->resume.steps && !up_saver_due(&run->saver, step))
        UP_TRY(save(member, step, err));
out:
    return rc;
}

// The others are not to wait for this rank. One that has not joined them yet can only tell other
// processes.
static void give_up(struct member *member, const char *reason)
{
    struct run *run = member->run;
    if (run->group.peers) {
        up_group_abort(&run->group, reason);
        return;
    }
    up_seat_abort(member->seat, reason);
    // Who waits for this rank within NCCL's set-up is not reached so.
    if (run->count > 1) end_within(run, ABORTED_END_S, reason);
}

// A rank's whole life on its thread. One that fails ends the others.
static void *run_member(void *argument)
{
    struct member *member = argument;
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

// Rank 0 runs here, the others on threads of their own.
static enum up_status run_members(struct run *run, struct up_error *err)
{
    int started = 1;
    enum up_status rc = UP_OK;
    for (; started < run->count; started++) {
        struct member *member = &run->members[started];
        if (!pthread_create(&member->thread, NULL, run_member, member)) continue;
        rc =
            up_fail(err, UP_FAILED, "cannot start a thread for rank %d of %d", started, run->count);
        up_group_abort(&run->group, err->text);
        for (int i = started; i < run->count; i++) up_trace_close(run->members[i].trace);
        break;
    }
    run_member(&run->members[0]);
    for (int i = 1; i < started; i++) pthread_join(run->members[i].thread, NULL);
    // What the first to fail said, which it told the others; to them it is a failure of the run,
    // and only the one itself knows of a file at fault.
    for (int i = 0; i < started; i++) {
        const struct member *member = &run->members[i];
        if (!member->status || (rc && (rc == UP_USAGE || member->status != UP_USAGE))) continue;
        rc = member->status;
        *err = member->error;
    }
    return rc;
}

/* --- Closing ------------------------------------------------------------------------------------
 */

static bool is_shortage(enum up_status outcome, const struct up_error *why)
{
    return outcome && !strncmp(why->text, "out of ", strlen("out of "));
}

// What would have fit where memory ran out: nobody had asked (--no-admission), or there was less
// than there seemed to be.
static void advise_after_shortage(const struct run *run)
{
    struct up_admission admission;
    struct up_error error = {0};
    if (!run->forecaster || up_admission_check(run->forecaster, &run->config, &run->limits,
                                               !is_dry(run), &admission, &error))
        return;
    fprintf(stderr, "upipe-train: memory has run out\n");
    if (admission.fits)
        fprintf(stderr, "  by its forecast it fits what there was when it began: does something "
                        "else take memory?\n");
    else
        fprintf(stderr, "  %s\n  %s\n", admission.dominant, admission.way_out);
}

static void tell_trace(const char *path)
{
    printf("trace: %s (explained by: upipe-report ", path);
    up_put_word(stdout, path);
    puts(")");
}

// Ends the trace; a trace that had to stop early is told, and fails nothing.
static void close_trace(struct run *run, enum up_status outcome, const struct up_error *why)
{
    struct up_error error = {0};
    if (!run->recorder) return;
    bool out_of_memory = is_shortage(outcome, why);
    for (int i = 0; i < run->count; i++) up_trace_close(run->members[i].trace);
    if (outcome && !out_of_memory) up_recorder_failed(run->recorder, why->text);
    if (up_recorder_finish(run->recorder,
                           !outcome        ? "ok"
                           : out_of_memory ? "out of memory"
                                           : "failed",
                           &error))
        fprintf(stderr, "upipe-train: the trace is not whole: %s\n", error.text);
    else if (leads(run))
        tell_trace(run->options->trace);
}

static void close_member(struct member *member)
{
    struct up_error error;
    struct up_seat *seat = member->seat;
    if (!member->rank.device) return;
    up_device_bind(seat->device);
    // What a group that was given up still has under way must end before its memory goes.
    if (seat->world && up_comm_check(seat->world, &error)) up_seat_leave(seat);
    for (int stream = 0; stream < UP_STREAM_COUNT; stream++)
        up_stream_synchronize(&member->rank, (enum up_stream)stream);
    up_trainer_release(&member->trainer);
    up_rank_release(&member->rank);
    up_trainer_plan_release(&member->plan);
}

static void close_run(struct run *run)
{
    up_watch_stop(run->watch);
    for (int i = 0; i < run->count; i++) close_member(&run->members[i]);
    free(run->members);
    free((void *)run->ticks);
    up_forecaster_destroy(run->forecaster);
    up_group_close(&run->group);
    up_log_release(&run->log);
    up_saver_close(&run->saver);
    up_resume_release(&run->resume);
    up_weights_close(run->weights);
    up_data_close(run->data);
}

// What each process has of its own: a trace, and for process 0 alone a log.
static enum up_status own_options(struct up_train_options *own, const struct up_launch *launch,
                                  char **trace, struct up_error *err)
{
    if (launch->process > 0) own->json_log = NULL;
    if (!own->trace) return UP_OK;
    own->trace = *trace = up_launch_trace_path(launch, own->trace);
    return *trace ? UP_OK : up_fail(err, UP_FAILED, "out of host memory");
}

static enum up_status say_done(const struct run *run)
{
    if (leads(run))
        printf("nothing to do: %lld steps are done, --steps is %lld\n",
               (long long)run->resume.steps, (long long)run->options->steps);
    return UP_OK;
}

// The ranks have ended well; a run that was told to end is none that got to its end.
static enum up_status check_end(const struct run *run, struct up_error *err)
{
    int64_t done = run->between.before;
    if (done < 0) return UP_OK;
    if (done == run->resume.steps)
        return up_fail(err, UP_FAILED, "interrupted before its first step");
    return up_fail(err, UP_FAILED,
                   "interrupted: %lld of %lld steps are done and saved, --resume %s goes on",
                   (long long)done, (long long)run->options->steps, run->options->save);
}

static enum up_status train(struct run *run, const char *command, struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(open_inputs(run, err));
    if (run->resume.steps >= run->options->steps) return say_done(run);
    UP_TRY(open_run(run, command, err));
    say_hello(run);
    UP_TRY(run_members(run, err));
out:
    return rc;
}

bool up_train_ends_saved(const struct up_train_options *options)
{
    return options->save && up_train_device(options) != UP_DEVICE_DRY;
}

enum up_status up_train(const struct up_train_options *options, const struct up_launch *launch,
                        const char *command, volatile const int *stop, struct up_error *err)
{
    enum up_status rc = UP_OK;
    char *trace = NULL;
    struct up_train_options own = *options;
    struct run run = {.options = &own,
                      .launch = launch,
                      .stop = stop,
                      .between = {up_train_ends_saved(options) ? stop : NULL, -1},
                      .log = {.json_fd = -1}};
    if (options->output)
        UP_TRY(up_fail(err, UP_USAGE, "--output: expected beside upipe-train bench"));
    UP_TRY(own_options(&own, launch, &trace, err));
    if (own.resume) {
        UP_TRY(up_resume_find(&run.resume, own.resume, err));
        own.resume = run.resume.folder;
    }
    UP_TRY(train(&run, command, err));
out:
    if (rc) up_group_abort(&run.group, err->text);
    if (rc) end_within(&run, END_ANYWAY_S, err->text);
    if (!rc) rc = check_end(&run, err);
    close_trace(&run, rc, err);
    if (is_shortage(rc, err)) advise_after_shortage(&run);
    up_profile_close(run.profile);
    close_run(&run);
    free(trace);
    return rc;
}
