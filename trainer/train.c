#include "trainer/train.h"
#include "trainer/advisor/admission.h"
#include "trainer/advisor/advisor.h"
#include "trainer/advisor/predict.h"
#include "trainer/facts.h"
#include "trainer/training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Opening ------------------------------------------------------------------------------------
 */

// A process has given up or died, and all ranks of all processes are to end.
static void on_abort(void *context, const char *reason)
{
    up_training_end_within(context, UP_ABORTED_END_S, reason);
}

// A file of another format than it is said to be shows in its first window, before anything is
// written.
static enum up_status try_first_window(const struct up_training *run, struct up_error *err)
{
    int64_t counted = 0, seq = run->config.seq;
    int32_t *tokens = malloc((size_t)seq * 2 * sizeof *tokens);
    if (!tokens) return up_fail(err, UP_FAILED, "out of host memory");
    enum up_status rc = up_data_window(run->data, 0, tokens, tokens + seq, &counted, err);
    free(tokens);
    return rc;
}

static enum up_status open_inputs(struct up_training *run, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_train_options *options = run->options;
    const struct up_model *model = &run->config.model;
    const char *resumed = run->resume.folder;
    bool folder = false;
    UP_TRY(up_train_options_resolve(options, &run->config, &folder, err));
    if (resumed) UP_TRY(up_resume_check(&run->resume, &run->config, err));
    UP_TRY(up_machine_find(options->machine ? options->machine : "generic", &run->machine, err));
    if (up_training_is_dry(run)) goto out;
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

static enum up_status open_members(struct up_training *run, struct up_error *err)
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
        run->members[i] = (struct up_member){
            .run = run, .number = run->group.first + i, .place = i, .seat = &run->group.seat[i]};
    if (!run->options->machine)
        UP_TRY(up_machine_of_device(run->group.seat[0].device->name, &run->machine, err));
out:
    return rc;
}

// What does not fit is not started. A forecast of it is made all the same, and the lack told.
static enum up_status admit(struct up_training *run, struct up_error *err)
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
    UP_TRY(up_admission_check(run->forecaster, &run->config, &run->limits, !up_training_is_dry(run),
                              &admission, err));
    if (admission.fits) return UP_OK;
    if (!up_training_is_dry(run)) rc = up_fail(err, UP_FAILED, "does not fit %s", admission.lack);
    fprintf(stderr, "upipe-train: does not fit %s\n", admission.lack);
    if (*admission.dominant) fprintf(stderr, "  %s\n", admission.dominant);
    fprintf(stderr, "  %s\n", admission.way_out);
    if (rc)
        snprintf(err->text, sizeof err->text, "not started (--no-admission starts all the same)");
out:
    return rc;
}

static void store_prediction(const struct up_training *run, const struct up_config *config,
                             const struct up_forecast *forecast)
{
    char options[UP_CHANGE_TEXT];
    if (forecast->beyond) return;
    struct up_store_prediction prediction =
        up_predict(&run->config, config, forecast, options, sizeof options);
    up_recorder_predict(run->recorder, &prediction);
}

// With its tensors where the run will have them. Admission has planned a real run for its forecast;
// a dry run's plan is made here, once, for the forecast and for the run.
static enum up_status forecast_own(struct up_training *run, struct up_forecast *own,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_forecast *found;
    bool dry = up_training_is_dry(run);
    UP_TRY(up_forecaster_ask(run->forecaster, &run->config,
                             dry ? UP_FORECAST_PLACED : UP_FORECAST_PLANNED, &found, err));
    *own = *found;
    if (!dry || own->beyond || own->depth >= UP_FORECAST_PLANNED) goto out;
    struct up_trainer_plan *plan = &run->members[0].plan;
    UP_TRY(up_trainer_plan(&run->config, 0, run->stop, plan, err));
    UP_TRY(up_forecast_in_plan(&run->config, &run->machine, &plan->step, run->stop, &own->step_s,
                               err));
out:
    return rc;
}

// The run's own forecast, and those of its neighbours: for the next run to be held against.
static enum up_status predict(struct up_training *run, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_forecast own;
    struct up_ladder_line lines[UP_TECHNIQUE_COUNT];
    int count = 0;
    UP_TRY(forecast_own(run, &own, err));
    store_prediction(run, &run->config, &own);
    UP_TRY(up_advise_ladder(run->forecaster, &run->config, lines, &count, err));
    for (int i = 0; i < count; i++)
        store_prediction(run, &lines[i].to.config, lines[i].to.forecast);
out:
    return rc;
}

static enum up_status open_trace(struct up_training *run, const char *command, struct up_error *err)
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
        struct up_member *member = &run->members[i];
        int64_t capacity = up_training_is_dry(run)
                               ? run->machine.device_bytes
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

static void say_hello(const struct up_training *run)
{
    const struct up_config *c = &run->config;
    char seq[UP_UNITS_TEXT];
    char processes[32] = "";
    if (!up_training_leads(run)) return;
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
static enum up_status open_run(struct up_training *run, const char *command, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_train_options *options = run->options;
    UP_TRY(up_profile_open(options, &run->profile, err));
    UP_TRY(open_members(run, err));
    UP_TRY(admit(run, err));
    UP_TRY(up_saver_open(&run->saver, options, &run->config, run->resume.steps,
                         up_training_leads(run), err));
    UP_TRY(up_log_init(&run->log, options->json_log, options->trace, run->resume.steps,
                       up_training_is_dry(run), err));
    UP_TRY(up_group_meet(&run->group, err)); // nothing is wrong in any process
    UP_TRY(open_trace(run, command, err));
    UP_TRY(up_log_start(&run->log, err));
out:
    if (rc) up_log_cancel(&run->log);
    return rc;
}

/* --- Its ranks ----------------------------------------------------------------------------------
 */

// Rank 0 runs here, the others on threads of their own.
static enum up_status run_members(struct up_training *run, struct up_error *err)
{
    int started = 1;
    enum up_status rc = UP_OK;
    for (; started < run->count; started++) {
        struct up_member *member = &run->members[started];
        if (!pthread_create(&member->thread, NULL, up_member_live, member)) continue;
        rc =
            up_fail(err, UP_FAILED, "cannot start a thread for rank %d of %d", started, run->count);
        up_group_abort(&run->group, err->text);
        for (int i = started; i < run->count; i++) up_trace_close(run->members[i].trace);
        break;
    }
    up_member_live(&run->members[0]);
    for (int i = 1; i < started; i++) pthread_join(run->members[i].thread, NULL);
    // What the first to fail said, which it told the others; to them it is a failure of the run,
    // and only the one itself knows of a file at fault.
    for (int i = 0; i < started; i++) {
        const struct up_member *member = &run->members[i];
        if (!member->status || (rc && (rc == UP_USAGE || member->status != UP_USAGE))) continue;
        rc = member->status;
        *err = member->error;
    }
    return rc;
}

/* --- Closing ------------------------------------------------------------------------------------
 */

static void close_rank(struct up_member *member)
{
    struct up_error error;
    struct up_seat *seat = member->seat;
    up_device_bind(seat->device);
    // What a group that was given up still has under way must end before its memory goes.
    if (seat->world && up_comm_check(seat->world, &error)) up_seat_leave(seat);
    for (int stream = 0; stream < UP_STREAM_COUNT; stream++)
        up_stream_synchronize(&member->rank, (enum up_stream)stream);
    up_trainer_release(&member->trainer);
    up_rank_release(&member->rank);
}

static void close_member(struct up_member *member)
{
    if (member->rank.device) close_rank(member);
    up_trainer_plan_release(&member->plan);
}

static void close_run(struct up_training *run)
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

static enum up_status say_done(const struct up_training *run)
{
    if (up_training_leads(run))
        printf("nothing to do: %lld steps are done, --steps is %lld\n",
               (long long)run->resume.steps, (long long)run->options->steps);
    return UP_OK;
}

// The ranks have ended well; a run that was told to end is none that got to its end.
static enum up_status check_end(const struct up_training *run, struct up_error *err)
{
    int64_t done = run->between.before;
    if (done < 0) return UP_OK;
    if (done == run->resume.steps)
        return up_fail(err, UP_FAILED, "interrupted before its first step");
    return up_fail(err, UP_FAILED,
                   "interrupted: %lld of %lld steps are done and saved, --resume %s goes on",
                   (long long)done, (long long)run->options->steps, run->options->save);
}

static enum up_status train(struct up_training *run, const char *command, struct up_error *err)
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
    struct up_training run = {.options = &own,
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
    if (rc) up_training_end_within(&run, UP_END_ANYWAY_S, err->text);
    if (!rc) rc = check_end(&run, err);
    up_training_close_trace(&run, rc, err);
    if (rc) up_training_advise(&run, err);
    up_profile_close(run.profile);
    close_run(&run);
    free(trace);
    return rc;
}
