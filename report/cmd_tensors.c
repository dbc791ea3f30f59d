/* tensors: lifetimes as a table, largest first, of the whole trace or of what is asked for. */
#include "report/analysis/peak.h"
#include "report/emit/sections.h"
#include "report/report.h"

#include <math.h>
#include <string.h>

struct tensors_options {
    struct up_report_options report;
    int64_t rank, step, layer, alive_at, limit;
    const char *category;
    int space; // enum up_space, or UP_SPACE_COUNT for all
};

static const struct up_option options[] = {
    {.name = "category",
     .kind = UP_OPTION_TEXT,
     .field = offsetof(struct tensors_options, category),
     .value = "NAME",
     .help = "only of this category",
     .group = "Which tensors"},
    {.name = "layer",
     .kind = UP_OPTION_INTEGER,
     .field = offsetof(struct tensors_options, layer),
     .value = "L",
     .help = "only of this layer"},
    {.name = "alive-at",
     .kind = UP_OPTION_INTEGER,
     .field = offsetof(struct tensors_options, alive_at),
     .value = "SEQ",
     .help = "only those alive at this moment of their rank; also told by category"},
    {.name = "rank",
     .kind = UP_OPTION_INTEGER,
     .field = offsetof(struct tensors_options, rank),
     .value = "R",
     .help = "only of this rank"},
    {.name = "step",
     .kind = UP_OPTION_INTEGER,
     .field = offsetof(struct tensors_options, step),
     .value = "S",
     .help = "only those allocated in this step"},
    {.name = "space",
     .kind = UP_OPTION_CHOICE,
     .field = offsetof(struct tensors_options, space),
     .fallback = "all",
     .value = "device|host|all",
     .help = "only those in this memory"},
    {.name = "limit",
     .kind = UP_OPTION_INTEGER,
     .field = offsetof(struct tensors_options, limit),
     .fallback = "50",
     .value = "N|all",
     .help = "how many to list",
     .min = 1,
     .off = "all"},
    UP_REPORT_OPTIONS,
    {0}};

// ?1 rank, ?2 step, ?3 layer, ?4 seq (each UP_NONE: any), ?5 category, ?6 space (NULL: any).
#define MATCHING                                                                                   \
    " FROM tensor WHERE (?1 < 0 OR rank = ?1) AND (?2 < 0 OR step = ?2) AND (?3 < 0 OR layer = "   \
    "?3)"                                                                                          \
    " AND (?4 < 0 OR (alloc_seq <= ?4 AND (free_seq IS NULL OR free_seq > ?4)))"                   \
    " AND (?5 IS NULL OR category = ?5) AND (?6 IS NULL OR space = ?6)"

static enum up_status open_matching(const struct up_run *run, const char *sql,
                                    const struct tensors_options *o, struct up_query *query,
                                    struct up_error *err)
{
    enum up_status rc =
        up_query_open(query, run, sql, UP_BIND(o->rank, o->step, o->layer, o->alive_at), err);
    if (rc != UP_OK) return rc;
    if (o->category) up_query_bind_text(query, 5, o->category);
    if (o->space < UP_SPACE_COUNT) up_query_bind_text(query, 6, up_space_names[o->space]);
    return UP_OK;
}

// A word that is neither upipe's nor in the file is a slip of the pen.
static enum up_status check_category(const struct up_run *run, const char *category,
                                     struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    char words[256] = "";
    bool row;
    if (!category) return UP_OK;
    for (int i = 0; i < UP_CATEGORY_COUNT; i++) {
        if (!strcmp(up_category_names[i], category)) return UP_OK;
        strncat(words, up_category_names[i], sizeof words - strlen(words) - 1);
        strncat(words, i + 1 < UP_CATEGORY_COUNT ? "|" : "", sizeof words - strlen(words) - 1);
    }
    UP_TRY(up_query_open(&query, run, "SELECT 1 FROM tensor WHERE category = ?1 LIMIT 1",
                         UP_BIND_NONE, err));
    up_query_bind_text(&query, 1, category);
    UP_TRY(up_query_next(&query, &row, err));
    if (!row) rc = up_fail(err, UP_USAGE, "--category: expected %s, not '%s'", words, category);
out:
    up_query_close(&query);
    return rc;
}

// Of names of the same bytes the newest says what they are.
static const char categories_sql[] =
    "SELECT category, CAST(total(largest) AS INTEGER) AS bytes, count(*) FROM"
    " (SELECT category, max(max(bytes, 0)) OVER (PARTITION BY rank, storage_id) AS largest,"
    "  row_number() OVER (PARTITION BY rank, storage_id ORDER BY alloc_seq DESC) AS place" MATCHING
    ") WHERE place = 1 GROUP BY category ORDER BY bytes DESC, category";

// What is alive at one moment is a whole with parts.
static enum up_status emit_categories(const struct up_run *run, const struct tensors_options *o,
                                      int64_t whole, struct up_emitter *emitter,
                                      struct up_error *err)
{
    static const struct up_column columns[] = {{"category", "category", false, 12, 28},
                                               {"bytes", "bytes", true, 9, 0},
                                               {"share", "share", true, 6, 0},
                                               {"tensors", "tensors", true, 7, 0}};
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(open_matching(run, categories_sql, o, &query, err));
    up_emit_table_begin(emitter, "categories", columns, UP_COUNT(columns));
    for (;;) {
        char category[64];
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        int64_t bytes = up_query_integer(&query, 1, 0);
        up_query_copy(&query, 0, category, sizeof category);
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "category", NULL, category);
        up_emit_bytes(emitter, "bytes", NULL, bytes);
        up_emit_share(emitter, "share", NULL, whole > 0 ? (double)bytes / (double)whole : 0);
        up_emit_integer(emitter, "tensors", NULL, up_query_integer(&query, 2, 0));
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
out:
    up_query_close(&query);
    return rc;
}

static enum up_status emit_totals(const struct up_run *run, const struct tensors_options *o,
                                  int64_t *bytes, struct up_emitter *emitter, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(open_matching(run,
                         "SELECT total(names), CAST(total(largest) AS INTEGER) FROM"
                         " (SELECT count(*) AS names, max(max(bytes, 0)) AS largest" MATCHING
                         " GROUP BY rank, storage_id)",
                         o, &query, err));
    UP_TRY(up_query_next(&query, &row, err));
    up_emit_object_begin(emitter, "matches");
    up_emit_heading_begin(emitter);
    up_emit_text(emitter, "path", "{}", run->path);
    up_emit_integer(emitter, "tensors", "{} tensors match", up_query_integer(&query, 0, 0));
    *bytes = up_query_integer(&query, 1, 0);
    up_emit_bytes(emitter, "bytes", o->alive_at < 0 ? NULL : "{} alive there", *bytes);
    up_emit_line_end(emitter);
    up_emit_object_end(emitter);
out:
    up_query_close(&query);
    return rc;
}

// Columns of `rows_sql`, in its order.
enum {
    NAME,
    CATEGORY,
    PHASE,
    DTYPE,
    SHAPE,
    SPACE,
    STREAM,
    LAYER,
    STEP,
    BYTES,
    RESERVED,
    RANK,
    ALLOC_SEQ,
    FREE_SEQ,
    ALLOC_NS,
    FREE_NS,
    ID,
    STORAGE,
    OFFSET,
    COLUMNS
};
static const char rows_sql[] =
    "SELECT name, category, phase, dtype, shape, space, stream, layer, step, bytes, reserved_bytes,"
    " rank, alloc_seq, free_seq, alloc_ns, free_ns, id, storage_id, offset" MATCHING
    " ORDER BY bytes DESC, rank, alloc_seq, id LIMIT ?7";

static void emit_texts(const struct up_query *query, struct up_emitter *emitter)
{
    static const char *const keys[] = {
        [NAME] = "name",   [CATEGORY] = "category", [PHASE] = "phase",  [DTYPE] = "dtype",
        [SHAPE] = "shape", [SPACE] = "space",       [STREAM] = "stream"};
    for (int i = 0; i < UP_COUNT(keys); i++) {
        char text[512];
        up_query_copy(query, i, text, sizeof text);
        up_emit_text(emitter, keys[i], NULL, text);
    }
}

static void emit_whole(const struct up_query *query, struct up_emitter *emitter, const char *key,
                       int column)
{
    int64_t value = up_query_integer(query, column, UP_NONE);
    up_emit_known(emitter, key, NULL, value);
}

static void emit_lifetime(const struct up_query *query, struct up_emitter *emitter)
{
    char life[64];
    long long born = up_query_integer(query, ALLOC_SEQ, 0),
              died = up_query_integer(query, FREE_SEQ, -1);
    if (died < 0)
        snprintf(life, sizeof life, "%lld..", born);
    else
        snprintf(life, sizeof life, "%lld..%lld", born, died);
    up_emit_cell(emitter, "life", life);
    emit_whole(query, emitter, "alloc_seq", ALLOC_SEQ);
    emit_whole(query, emitter, "free_seq", FREE_SEQ);
    emit_whole(query, emitter, "alloc_ns", ALLOC_NS);
    emit_whole(query, emitter, "free_ns", FREE_NS);
}

static void emit_row(const struct up_query *query, struct up_emitter *emitter)
{
    char dtype[64], shape[256], both[sizeof dtype + sizeof shape];
    up_query_copy(query, DTYPE, dtype, sizeof dtype);
    up_query_copy(query, SHAPE, shape, sizeof shape);
    snprintf(both, sizeof both, "%s %s", dtype, shape);
    up_emit_row_begin(emitter);
    emit_texts(query, emitter);
    up_emit_cell(emitter, "shape", both);
    up_emit_bytes(emitter, "bytes", NULL, up_query_integer(query, BYTES, 0));
    up_emit_integer(emitter, "reserved_bytes", NULL, up_query_integer(query, RESERVED, 0));
    emit_whole(query, emitter, "rank", RANK);
    emit_whole(query, emitter, "layer", LAYER);
    emit_whole(query, emitter, "step", STEP);
    emit_lifetime(query, emitter);
    emit_whole(query, emitter, "id", ID);
    emit_whole(query, emitter, "storage_id", STORAGE);
    emit_whole(query, emitter, "offset", OFFSET);
    up_emit_row_end(emitter);
}

static enum up_status emit_rows(const struct up_run *run, const struct tensors_options *o,
                                struct up_emitter *emitter, struct up_error *err)
{
    static const struct up_column columns[] = {
        {"name", "tensor", false, 12, 28},      {"bytes", "bytes", true, 9, 0},
        {"category", "category", false, 0, 12}, {"shape", "shape", false, 0, 20},
        {"rank", "rank", true, 0, 0},           {"step", "step", true, 0, 0},
        {"phase", "phase", false, 0, 9},        {"life", "life (seq)", false, 0, 0}};
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(open_matching(run, rows_sql, o, &query, err));
    sqlite3_bind_int64(query.statement, 7, o->limit ? o->limit : -1);
    up_emit_table_begin(emitter, "tensors", columns, UP_COUNT(columns));
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        emit_row(&query, emitter);
    }
    up_emit_table_end(emitter);
out:
    up_query_close(&query);
    return rc;
}

static enum up_status run_tensors(const void *values, const struct up_arguments *arguments,
                                  struct up_emitter *emitter, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct tensors_options o = *(const struct tensors_options *)values;
    int64_t asked = o.step, bytes = 0;
    struct up_run run = {0};
    struct up_run_facts facts;
    UP_TRY(up_run_open_only(arguments, &run, err));
    UP_TRY(up_run_facts_read(&run, &facts, err));
    UP_TRY(up_rank_check(&run, o.rank, err));
    UP_TRY(check_category(&run, o.category, err));
    if (asked != UP_NONE) UP_TRY(up_step_find(&run, o.rank, asked, &o.step, err));
    UP_TRY(emit_totals(&run, &o, &bytes, emitter, err));
    up_section_incomplete(emitter, &facts);
    if (asked != o.step)
        up_emit_note(emitter, "step %lld repeated step %lld event for event: these are step %lld's",
                     (long long)asked, (long long)o.step, (long long)o.step);
    if (o.alive_at >= 0) UP_TRY(emit_categories(&run, &o, bytes, emitter, err));
    UP_TRY(emit_rows(&run, &o, emitter, err));
out:
    up_run_close(&run);
    return rc;
}

const struct up_command up_command_tensors = {
    .name = "tensors",
    .summary = "lifetimes of tensors as a table, largest first",
    .operands = "RUN.DB",
    .options = options,
    .options_size = sizeof(struct tensors_options),
    .defaults =
        &(const struct tensors_options){
            .rank = UP_NONE, .step = UP_NONE, .layer = UP_NONE, .alive_at = UP_NONE},
    .run = run_tensors,
};
