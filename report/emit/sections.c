#include "report/emit/sections.h"

#include <math.h>
#include <string.h>

/* --- The run -----------------------------------------------------------------------------------
 */

// A text of meta, "" being unknown.
static void emit_meta(struct up_emitter *emitter, const char *key, const char *form,
                      const char *text)
{
    up_emit_text(emitter, key, form, *text ? text : NULL);
}

static void emit_title(struct up_emitter *emitter, const struct up_run *run,
                       const struct up_run_facts *facts)
{
    char steps[64] = "{} steps done";
    if (facts->steps_planned >= 0)
        snprintf(steps, sizeof steps, "{} of %lld steps", (long long)facts->steps_planned);
    bool another = facts->dry || strcmp(facts->as, facts->device) != 0;
    up_emit_heading_begin(emitter);
    up_emit_text(emitter, "path", "{}", run->path);
    up_emit_flag(emitter, "dry", facts->dry ? "forecast (dry)" : NULL, facts->dry);
    emit_meta(emitter, "model", "{}", facts->model);
    emit_meta(emitter, "device", facts->dry ? NULL : "on {}", facts->device);
    emit_meta(emitter, "as", another ? "as on {}" : NULL, facts->as);
    emit_meta(emitter, "dtype", "{}", facts->dtype);
    emit_meta(emitter, "recorded_by", "recorded by {}", facts->recorded_by);
    up_emit_integer(emitter, "steps_done", facts->injected ? NULL : steps, facts->steps_done);
    up_emit_known(emitter, "steps_planned", NULL, facts->steps_planned);
    up_emit_line_end(emitter);
}

static void emit_known(struct up_emitter *emitter, const char *key, const char *form, int64_t value,
                       void (*emit)(struct up_emitter *, const char *, const char *, int64_t))
{
    if (value < 0)
        up_emit_null(emitter, key);
    else
        emit(emitter, key, form, value);
}

static void emit_shape(struct up_emitter *emitter, const struct up_run_facts *facts)
{
    up_emit_line_begin(emitter, "model");
    emit_known(emitter, "parameters", "{} parameters", facts->parameters, up_emit_count);
    up_emit_known(emitter, "layers", facts->layers == 1 ? "{} layer" : "{} layers", facts->layers);
    emit_meta(emitter, "config_hash", "config {}", facts->config_hash);
    emit_meta(emitter, "started", "started {}", facts->started);
    emit_meta(emitter, "run_id", NULL, facts->run_id);
    emit_meta(emitter, "command", NULL, facts->command);
    up_emit_known(emitter, "schema_version", NULL, facts->schema_version);
    up_emit_line_end(emitter);

    up_emit_line_begin(emitter, "shape");
    emit_known(emitter, "seq_len", "sequence {}", facts->seq_len, up_emit_tokens);
    up_emit_known(emitter, "batch", "batch {}", facts->batch);
    up_emit_known(emitter, "accum", facts->accum == 1 ? NULL : "accumulation {}", facts->accum);
    up_emit_known(emitter, "ranks", facts->ranks == 1 ? "{} rank" : "{} ranks", facts->ranks);
    up_emit_known(emitter, "cp", facts->ranks == 1 ? NULL : "cp {}", facts->cp);
    up_emit_known(emitter, "dp", facts->ranks == 1 ? NULL : "dp {}", facts->dp);
    // What it costs that ranks outnumber them, or do not divide them.
    up_emit_real(emitter, "kv_copies", facts->kv_copies > 1 ? "each KV head on {} ranks" : NULL,
                 facts->kv_copies);
    up_emit_line_end(emitter);
}

static void emit_options(struct up_emitter *emitter, const struct up_run_options *options)
{
    up_emit_object_begin(emitter, "options");
    up_emit_line_begin(emitter, "options");
    for (int i = 0; i < options->count; i++) {
        const char *name = options->items[i].name, *value = options->items[i].value;
        char form[64], text[UP_UNITS_TEXT];
        int64_t tokens;
        bool tile = !strncmp(name, "tile-", 5) && up_parse_integer(value, &tokens);
        snprintf(form, sizeof form, "%s {}", name);
        up_emit_text(emitter, name, NULL, value);
        up_emit_piece(emitter, form, tile ? up_format_count(text, tokens) : value);
    }
    up_emit_line_end(emitter);
    up_emit_object_end(emitter);
}

void up_section_incomplete(struct up_emitter *emitter, const struct up_run_facts *facts)
{
    char ended[128] = "no step has ended";
    if (facts->complete) return;
    if (facts->injected) {
        up_emit_note(emitter, "INCOMPLETE: the program was killed or is still going");
        return;
    }
    if (facts->last_begun == UP_NONE) {
        up_emit_note(emitter,
                     "INCOMPLETE: the run was killed or is still going; no step had begun");
        return;
    }
    if (facts->last_ended != UP_NONE && isfinite(facts->last_loss))
        snprintf(ended, sizeof ended, "the last to end was step %lld, at loss %.4f",
                 (long long)facts->last_ended, facts->last_loss);
    else if (facts->last_ended != UP_NONE)
        snprintf(ended, sizeof ended, "the last to end was step %lld",
                 (long long)facts->last_ended);
    up_emit_note(emitter,
                 "INCOMPLETE: the run was killed or is still going; step %lld had begun, %s",
                 (long long)facts->last_begun, ended);
}

// Of a run of several processes each has a trace. A dry run is that of one rank, and says so.
static void note_ranks(struct up_emitter *emitter, const struct up_run_facts *facts)
{
    char ranks[64];
    if (facts->dry || facts->ranks_recorded < 1 || facts->ranks_recorded >= facts->ranks) return;
    snprintf(ranks, sizeof ranks, facts->ranks_recorded == 1 ? "rank %lld" : "ranks %lld to %lld",
             (long long)facts->first_rank, (long long)facts->last_rank);
    up_emit_note(emitter, "of the %lld ranks only %s left rows here: %s", (long long)facts->ranks,
                 ranks,
                 facts->processes > 1 ? "the others, and perhaps a higher peak, are in the traces "
                                        "of the other processes"
                                      : "the others left none");
}

static void note_outcome(struct up_emitter *emitter, const struct up_run_facts *facts)
{
    const char *why = *facts->diagnostic ? facts->diagnostic : "the trace does not say why";
    bool failed = *facts->outcome && strcmp(facts->outcome, "ok") != 0;
    up_section_incomplete(emitter, facts);
    if (facts->out_of_memory || !strcmp(facts->diagnostic_kind, "out_of_memory"))
        up_emit_note(emitter, "OUT OF MEMORY: %s", why);
    else if (failed && !strcmp(facts->outcome, "failed"))
        up_emit_note(emitter, "FAILED: %s", why);
    else if (failed)
        up_emit_note(emitter, "outcome %s: %s", facts->outcome, why);
    else if (facts->diagnostics)
        up_emit_note(emitter, "%s: %s", facts->diagnostic_kind, facts->diagnostic);
    if (facts->diagnostics > 1)
        up_emit_note(emitter, "there are %lld diagnostics in all: SELECT * FROM diagnostic",
                     (long long)facts->diagnostics);
}

void up_section_run(struct up_emitter *emitter, const struct up_run *run,
                    const struct up_run_facts *facts)
{
    up_emit_object_begin(emitter, "run");
    emit_title(emitter, run, facts);
    emit_shape(emitter, facts);
    emit_options(emitter, &facts->options);
    up_emit_flag(emitter, "complete", NULL, facts->complete);
    emit_meta(emitter, "outcome", NULL, facts->outcome);
    up_emit_known(emitter, "last_begun", NULL, facts->last_begun);
    up_emit_known(emitter, "last_ended", NULL, facts->last_ended);
    up_emit_integer(emitter, "diagnostics", NULL, facts->diagnostics);
    up_emit_integer(emitter, "ranks_recorded", NULL, facts->ranks_recorded);
    up_emit_object_end(emitter);
    note_ranks(emitter, facts);
    note_outcome(emitter, facts);
}

/* --- Training ----------------------------------------------------------------------------------
 */

void up_section_training(struct up_emitter *emitter, const struct up_run_facts *facts)
{
    up_emit_object_begin(emitter, "training");
    up_emit_line_begin(emitter, facts->dry ? "forecast" : "training");
    up_emit_real(emitter, "first_loss", "loss {} at first", facts->first_loss);
    up_emit_real(emitter, "last_loss", "{} at last", facts->last_loss);
    up_emit_rate(emitter, "tokens_per_s", "{} tokens/s", facts->tokens_per_s);
    up_emit_seconds(emitter, "step_s", "{} a step", facts->step_s);
    up_emit_line_end(emitter);
    // What it took to record is of use to few readers.
    emit_known(emitter, "events_written", NULL, facts->events_written, up_emit_count);
    up_emit_known(emitter, "recorder_ns", NULL, facts->recorder_ns);
    up_emit_seconds(emitter, "recorder_s", NULL,
                    facts->recorder_ns < 0 ? NAN : (double)facts->recorder_ns * 1e-9);
    emit_known(emitter, "recorder_bytes", NULL, facts->recorder_bytes, up_emit_bytes);
    up_emit_known(emitter, "ring_waits", NULL, facts->ring_waits);
    up_emit_object_end(emitter);
}
