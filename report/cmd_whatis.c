/* whatis: somebody has the size of an allocation that failed and nothing else. Which tensor of the
 * model could that be, at how many tokens, and what makes it smaller. */
#include "report/report.h"
#include "report/whatis.h"

#include <math.h>
#include <string.h>

struct whatis_options {
    struct up_report_options report;
    const char *model;
    int64_t layers, seq, batch, ranks, cp, tp, limit;
    int dtype;
};

#define FIELD(field_) offsetof(struct whatis_options, field_)
static const struct up_option options[] = {
    {.name = "model",
     .kind = UP_OPTION_TEXT,
     .field = FIELD(model),
     .value = "NAME|DIR",
     .help = "preset, or folder with a Hugging Face config.json",
     .group = "What is known of the run"},
    {.name = "layers",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(layers),
     .value = "N",
     .min = 1,
     .help = "only the first N blocks"},
    {.name = "seq",
     .kind = UP_OPTION_SIZE,
     .field = FIELD(seq),
     .value = "TOKENS",
     .min = 1,
     .max = INT64_C(1) << 40,
     .help = "tokens per sequence; without it they are solved for"},
    {.name = "batch",
     .kind = UP_OPTION_SIZE,
     .field = FIELD(batch),
     .value = "N",
     .fallback = "1",
     .min = 1,
     .max = 1 << 20,
     .help = "sequences per micro-batch"},
    {.name = "ranks",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(ranks),
     .value = "N",
     .min = 1,
     .max = 1 << 20,
     .help = "GPUs over which model state may be sharded; without it 1 to 64 are tried"},
    {.name = "cp",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(cp),
     .value = "N",
     .fallback = "1",
     .min = 1,
     .max = 1 << 20,
     .help = "GPUs over which a sequence is split"},
    {.name = "tp",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(tp),
     .value = "N",
     .fallback = "1",
     .min = 1,
     .max = 1 << 20,
     .help = "GPUs over which other frameworks split vocabulary, heads and MLP"},
    {.name = "dtype",
     .kind = UP_OPTION_CHOICE,
     .field = FIELD(dtype),
     .fallback = "bf16",
     .value = "fp32|bf16",
     .help = "of activations; bf16 stands for fp16, too"},
    {.name = "limit",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(limit),
     .fallback = "10",
     .value = "N|all",
     .min = 1,
     .off = "all",
     .help = "how many to list",
     .group = "What to show"},
    UP_REPORT_OPTIONS,
    {0}};

static enum up_status read_model(const struct whatis_options *o, struct up_model *model,
                                 struct up_error *err)
{
    bool folder;
    if (!o->model)
        return up_fail(err, UP_USAGE, "--model: expected a Hugging Face folder or one of %s",
                       up_model_preset_names());
    return up_model_find(o->model, false, o->layers, model, &folder, err);
}

// "58.15GiB", or the two words "58.15 GiB" as they stand in a message.
static enum up_status read_size(const struct up_arguments *arguments, char text[64],
                                struct up_printed_size *size, struct up_error *err)
{
    const char *const *word = arguments->positional;
    if (arguments->positional_count < 1 || arguments->positional_count > 2)
        return up_fail(err, UP_USAGE, "whatis: expected a size such as 58.15GiB, and --model");
    snprintf(text, 64, "%.30s%.30s", word[0], arguments->positional_count > 1 ? word[1] : "");
    if (strlen(word[0]) <= 30 && up_printed_size_parse(text, size)) return UP_OK;
    return up_fail(err, UP_USAGE,
                   "whatis: expected a size such as 58.15GiB, 165GB or 512MiB, not '%s'", text);
}

/* --- Text --------------------------------------------------------------------------------------
 */

static const char *dtype_of(const struct whatis_options *o, const struct up_whatis_match *match)
{
    return match->dtype ? match->dtype : o->dtype ? "bf16" : "fp32";
}

// "205302", "4x 64K of 8", "8K (22.3x)".
static void tokens_text(const struct up_whatis_question *q, const struct up_whatis_match *match,
                        char *text, size_t size)
{
    char count[UP_UNITS_TEXT], times[UP_UNITS_TEXT] = "";
    int64_t rows = match->growth == UP_WHATIS_TOKENS ? q->batch : 1;
    bool by_rows = rows > 1 && match->tokens % rows == 0;
    up_format_count(count, by_rows ? match->tokens / rows : match->tokens);
    if (isfinite(match->times_seq) && match->times_seq != 1)
        snprintf(times, sizeof times, " (%.3gx)", match->times_seq);
    text[0] = 0;
    if (match->growth == UP_WHATIS_FIXED) return;
    if (by_rows)
        snprintf(text, size, "%lld x %s%s", (long long)rows, count, times);
    else
        snprintf(text, size, "%s%s", count, times);
}

static void emit_match(struct up_emitter *emitter, const struct whatis_options *o,
                       const struct up_whatis_question *q, const struct up_whatis_match *match)
{
    char tokens[2 * UP_UNITS_TEXT + 24], share[UP_UNITS_TEXT] = "";
    tokens_text(q, match, tokens, sizeof tokens);
    if (match->share > 1) snprintf(share, sizeof share, "1/%lld", (long long)match->share);
    up_emit_row_begin(emitter);
    up_emit_text(emitter, "what", NULL, match->what);
    up_emit_text(emitter, "id", NULL, match->id);
    up_emit_text(emitter, "category", NULL, match->category);
    up_emit_text(emitter, "dtype", NULL, dtype_of(o, match));
    up_emit_bytes(emitter, "bytes", NULL, (int64_t)match->bytes);
    up_emit_share_change(emitter, "error", NULL, match->error);
    up_emit_flag(emitter, "within_digits", NULL, match->within);
    up_emit_known(emitter, "tokens_count", NULL,
                  match->growth == UP_WHATIS_FIXED ? -1 : match->tokens);
    up_emit_cell(emitter, "tokens", tokens);
    up_emit_flag(emitter, "tokens_given", NULL, match->tokens_given);
    up_emit_flag(emitter, "tokens_round", NULL, match->round);
    up_emit_real(emitter, "times_seq", NULL, match->times_seq);
    up_emit_integer(emitter, "shards", NULL, match->share);
    up_emit_cell(emitter, "share", share);
    up_emit_text(emitter, "option", NULL, match->option);
    up_emit_text(emitter, "why", NULL, *match->why ? match->why : NULL);
    up_emit_real(emitter, "odds", NULL, match->odds);
    up_emit_row_end(emitter);
}

static void emit_matches(struct up_emitter *emitter, const struct whatis_options *o,
                         const struct up_whatis_question *q, const struct up_whatis_answer *answer)
{
    static const struct up_column columns[] = {
        {"what", "could be", false, 0, 42},  {"dtype", "", false, 0, 5},
        {"tokens", "at tokens", true, 0, 0}, {"share", "share", true, 0, 0},
        {"error", "error", true, 0, 0},      {"option", "made smaller by", false, 0, 28}};
    int64_t count = o->limit ? up_min(o->limit, answer->count) : answer->count;
    up_emit_table_begin(emitter, "candidates", columns, UP_COUNT(columns));
    for (int64_t i = 0; i < count; i++) emit_match(emitter, o, q, &answer->matches[i]);
    up_emit_table_end(emitter);
}

static void emit_question(struct up_emitter *emitter, const struct whatis_options *o,
                          const struct up_whatis_question *q, const char *size)
{
    up_emit_object_begin(emitter, "question");
    up_emit_heading_begin(emitter);
    up_emit_text(emitter, "size", "{}", size);
    up_emit_integer(emitter, "bytes", "{} bytes", (int64_t)q->size.bytes);
    up_emit_bytes(emitter, "within", "give or take {}", (int64_t)(q->size.high - q->size.bytes));
    up_emit_text(emitter, "model", "of {}", q->model.name);
    up_emit_text(emitter, "dtype", "{}", o->dtype ? "bf16" : "fp32");
    if (q->seq) up_emit_tokens(emitter, "seq_len", "{} tokens", q->seq);
    if (q->batch > 1) up_emit_integer(emitter, "batch", "batch {}", q->batch);
    if (q->ranks) up_emit_integer(emitter, "ranks", "{} ranks", q->ranks);
    if (q->cp > 1) up_emit_integer(emitter, "cp", "cp {}", q->cp);
    if (q->tp > 1) up_emit_integer(emitter, "tp", "tp {}", q->tp);
    up_emit_line_end(emitter);
    up_emit_object_end(emitter);
}

static void note_answer(struct up_emitter *emitter, const struct up_whatis_question *q,
                        const struct up_whatis_answer *answer)
{
    const struct up_whatis_match *first = answer->matches;
    up_emit_flag(emitter, "explained", NULL, answer->explained);
    if (q->seq && !answer->explained) {
        up_emit_note(emitter, "UNEXPLAINED: nothing of the model that is known here has this size "
                              "with these figures. Lines with other tokens tell how many would "
                              "give it: more may have been packed than was meant. What libraries "
                              "take (NCCL, cuBLAS, cuDNN, CUDA's context) and fragmentation are no "
                              "tensors");
        return;
    }
    if (answer->count && *first->why) up_emit_note(emitter, "%s: %s", first->what, first->why);
    if (!q->seq && answer->count && first->growth != UP_WHATIS_FIXED && !first->round)
        up_emit_note(emitter, "no round number of tokens gives this size for what comes first, so "
                              "that it is only the likeliest in general; --seq and --batch tell "
                              "more");
}

static enum up_status run_whatis(const void *values, const struct up_arguments *arguments,
                                 struct up_emitter *emitter, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct whatis_options *o = values;
    char size[64];
    struct up_whatis_answer answer = {0};
    struct up_whatis_question question = {.seq = o->seq,
                                          .batch = o->batch,
                                          .ranks = o->ranks,
                                          .cp = o->cp,
                                          .tp = o->tp,
                                          .act_bytes = o->dtype ? 2 : 4};
    UP_TRY(read_size(arguments, size, &question.size, err));
    UP_TRY(read_model(o, &question.model, err));
    UP_TRY(up_whatis(&question, &answer, err));
    emit_question(emitter, o, &question, size);
    emit_matches(emitter, o, &question, &answer);
    note_answer(emitter, &question, &answer);
    if (question.seq && !answer.explained) rc = UP_FAILED;
out:
    up_whatis_release(&answer);
    return rc;
}

const struct up_command up_command_whatis = {
    .name = "whatis",
    .summary = "which tensor of a model could be so many bytes",
    .operands = "SIZE --model NAME|DIR",
    .options = options,
    .options_size = sizeof(struct whatis_options),
    .defaults = &(const struct whatis_options){.limit = 10},
    .run = run_whatis,
};
