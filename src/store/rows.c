/* How events become rows: for each kind a table of columns, from which come both the SQL and the
 * binding. A new column is one line here and one in schema.sql. */
#include "store/store_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Where a column's value comes from. `at` is an offset in struct up_event or, for NUMBER_OR_NULL,
 * SEQ_OR_NULL, NUMBER, TEXT and REAL_OR_NULL, an index in what came with the event. */
enum source {
    RANK,
    ID,         // uint64_t within the rank, made global
    ID_OR_NULL, // likewise; 0 is NULL
    INT64,
    SEQ_OR_NULL, // a number that came with the event; 0 is NULL
    REAL,        // not finite is NULL
    STEP,        // outside steps NULL
    TENSOR_STEP, // likewise, and NULL for what outlives steps
    LABEL,
    LAYER,
    PHASE,
    SPACE,
    CATEGORY,
    DTYPE,
    STREAM,
    SHAPE,
    HASH,
    NUMBER,         // one that came with the event
    NUMBER_OR_NULL, // likewise; negative is NULL
    TEXT,           // NULL stays NULL
    REAL_OR_NULL,   // a real that came with the event; not finite is NULL
};

struct column {
    const char *name;
    enum source source;
    size_t at;
};

#define EVENT(field) offsetof(struct up_event, field)

static const struct column meta_columns[] = {{"key", TEXT, 0}, {"value", TEXT, 1}};

static const struct column rank_columns[] = {
    {"rank", RANK, 0},
    {"node", TEXT, 0},
    {"device_name", TEXT, 1},
    {"capacity_bytes", NUMBER_OR_NULL, 0},
    {"baseline_used_bytes", NUMBER_OR_NULL, 1},
};

static const struct column alloc_columns[] = {
    {"id", ID, EVENT(tensor.id)},
    {"rank", RANK, 0},
    {"space", SPACE, EVENT(tensor.space)},
    {"storage_id", ID, EVENT(tensor.storage)},
    {"name", LABEL, EVENT(label)},
    {"category", CATEGORY, EVENT(tensor.category)},
    {"layer", LAYER, EVENT(label)},
    {"phase", PHASE, EVENT(phase)},
    {"dtype", DTYPE, EVENT(tensor.dtype)},
    {"shape", SHAPE, 0},
    {"bytes", INT64, EVENT(tensor.bytes)},
    {"reserved_bytes", INT64, EVENT(tensor.reserved)},
    {"offset", INT64, EVENT(tensor.offset)},
    {"stream", STREAM, EVENT(tensor.stream)},
    {"step", TENSOR_STEP, EVENT(step)},
    {"range_id", ID_OR_NULL, EVENT(tensor.range_id)},
    {"alloc_seq", INT64, EVENT(seq)},
    {"alloc_ns", INT64, EVENT(ns)},
};

static const struct column free_columns[] = {
    {"free_seq", INT64, EVENT(seq)},
    {"free_ns", INT64, EVENT(ns)},
    {"free_step", STEP, EVENT(step)},
    {"id", ID, EVENT(tensor.id)},
};

static const struct column range_begin_columns[] = {
    {"id", ID, EVENT(range.id)},
    {"rank", RANK, 0},
    {"parent", ID_OR_NULL, EVENT(range.parent)},
    {"name", LABEL, EVENT(label)},
    {"step", STEP, EVENT(step)},
    {"layer", LAYER, EVENT(label)},
    {"phase", PHASE, EVENT(phase)},
    {"begin_ns", INT64, EVENT(ns)},
    {"stream", STREAM, EVENT(range.stream)},
    {"begin_seq", INT64, EVENT(seq)},
};

static const struct column range_end_columns[] = {
    {"end_ns", INT64, EVENT(ns)},
    {"end_seq", INT64, EVENT(seq)},
    {"id", ID, EVENT(range.id)},
};

#define WORK_COLUMNS                                                                               \
    {"id", ID_OR_NULL, EVENT(work.id)}, {"rank", RANK, 0}, {"name", LABEL, EVENT(label)},          \
        {"step", STEP, EVENT(step)}, {"stream", STREAM, EVENT(work.stream)},                       \
        {"range_id", ID_OR_NULL, EVENT(work.range_id)}, {"begin_ns", INT64, EVENT(ns)},            \
    {                                                                                              \
        "end_ns", INT64, EVENT(work.end_ns)                                                        \
    }

static const struct column kernel_columns[] = {WORK_COLUMNS, {"flops", REAL, EVENT(work.flops)}};

static const struct column copy_columns[] = {
    WORK_COLUMNS,
    {"from_space", SPACE, EVENT(work.from)},
    {"to_space", SPACE, EVENT(work.to)},
    {"bytes", INT64, EVENT(work.bytes)},
};

static const struct column collective_columns[] = {WORK_COLUMNS,
                                                   {"bytes", INT64, EVENT(work.bytes)}};

static const struct column step_begin_columns[] = {
    {"step", STEP, EVENT(step)}, {"rank", RANK, 0}, {"begin_ns", INT64, EVENT(ns)}};

static const struct column step_end_columns[] = {
    {"loss", REAL, EVENT(result.loss)},
    {"grad_norm", REAL, EVENT(result.grad_norm)},
    {"tokens", INT64, EVENT(result.tokens)},
    {"end_ns", INT64, EVENT(ns)},
    {"peak_bytes", INT64, EVENT(result.peak_bytes)},
    {"event_hash", HASH, EVENT(result.event_hash)},
    {"same_as_step", NUMBER_OR_NULL, 0},
    {"peak_seq", SEQ_OR_NULL, 1},
    {"step", STEP, EVENT(step)},
    {"rank", RANK, 0},
};

static const struct column usage_columns[] = {
    {"rank", RANK, 0},
    {"ns", NUMBER_OR_NULL, 0},
    {"device_used_bytes", NUMBER_OR_NULL, 1},
    {"host_rss_bytes", NUMBER_OR_NULL, 2},
};

static const struct column diagnostic_columns[] = {
    {"rank", NUMBER_OR_NULL, 0},
    {"ns", NUMBER_OR_NULL, 1},
    {"kind", TEXT, 0},
    {"text", TEXT, 1},
};

static const struct column prediction_columns[] = {
    {"options", TEXT, 0},
    {"config_hash", TEXT, 1},
    {"peak_bytes", NUMBER_OR_NULL, 0},
    {"peak_phase", TEXT, 2},
    {"peak_owner", TEXT, 3},
    {"step_s", REAL_OR_NULL, 0},
    {"host_bytes", NUMBER_OR_NULL, 1},
};

static const struct column prediction_category_columns[] = {
    {"prediction_id", NUMBER_OR_NULL, 0},
    {"category", TEXT, 0},
    {"bytes", NUMBER_OR_NULL, 1},
};

static const struct column baseline_columns[] = {{"baseline_used_bytes", NUMBER_OR_NULL, 0},
                                                 {"rank", RANK, 0}};

// The parameters ?1, ?2 and ?3 of times_sql.
static const struct column times_columns[] = {
    {"begin_ns", NUMBER, 0}, {"end_ns", NUMBER, 1}, {"id", NUMBER, 2}};

#define SEEN_COLUMNS                                                                               \
    {"id", NUMBER, 5}, {"rank", RANK, 0}, {"name", TEXT, 0}, {"stream", TEXT, 1},                  \
        {"step", NUMBER_OR_NULL, 0}, {"range_id", NUMBER_OR_NULL, 1}, {"begin_ns", NUMBER, 2},     \
    {                                                                                              \
        "end_ns", NUMBER, 3                                                                        \
    }

static const struct column kernel_seen_columns[] = {SEEN_COLUMNS};

static const struct column copy_seen_columns[] = {
    SEEN_COLUMNS, {"bytes", NUMBER, 4}, {"from_space", TEXT, 2}, {"to_space", TEXT, 3}};

static const struct column device_alloc_columns[] = {
    {"id", NUMBER, 0},  {"rank", RANK, 0},    {"owner", TEXT, 0},
    {"space", TEXT, 1}, {"bytes", NUMBER, 1}, {"alloc_ns", NUMBER, 2},
};

static const struct column device_free_columns[] = {{"free_ns", NUMBER, 0}, {"id", NUMBER, 1}};

/* A piece of work may be several kernels: what is there already (begin_ns before end_ns; without
 * times both are the moment it was given to the device) grows. */
#define TIMES_SQL(table)                                                                           \
    "UPDATE " table " SET begin_ns = iif(end_ns > begin_ns, min(begin_ns, ?1), ?1),"               \
    " end_ns = iif(end_ns > begin_ns, max(end_ns, ?2), ?2) WHERE id = ?3"

/* An INSERT of all columns, an UPDATE of all but the last `keys`, which say of which row, or SQL of
 * its own. */
static const struct row_table {
    const char *table;
    const struct column *columns;
    int count, keys;
    const char *sql;
} row_tables[UP_ROW_KIND_COUNT] = {
#define INSERT(table_, columns_)                                                                   \
    {                                                                                              \
        table_, columns_, UP_COUNT(columns_), 0, NULL                                              \
    }
#define UPDATE(table_, columns_, keys_)                                                            \
    {                                                                                              \
        table_, columns_, UP_COUNT(columns_), keys_, NULL                                          \
    }
#define TIMES(table_)                                                                              \
    {                                                                                              \
        table_, times_columns, UP_COUNT(times_columns), 0, TIMES_SQL(table_)                       \
    }
    [UP_ROW_META] = INSERT("meta", meta_columns),
    [UP_ROW_RANK] = INSERT("rank", rank_columns),
    [UP_ROW_ALLOC] = INSERT("tensor", alloc_columns),
    [UP_ROW_FREE] = UPDATE("tensor", free_columns, 1),
    [UP_ROW_RANGE_BEGIN] = INSERT("range", range_begin_columns),
    [UP_ROW_RANGE_END] = UPDATE("range", range_end_columns, 1),
    [UP_ROW_KERNEL] = INSERT("kernel", kernel_columns),
    [UP_ROW_COPY] = INSERT("copy", copy_columns),
    [UP_ROW_COLLECTIVE] = INSERT("collective", collective_columns),
    [UP_ROW_STEP_BEGIN] = INSERT("step", step_begin_columns),
    [UP_ROW_STEP_END] = UPDATE("step", step_end_columns, 2),
    [UP_ROW_USAGE] = INSERT("usage", usage_columns),
    [UP_ROW_DIAGNOSTIC] = INSERT("diagnostic", diagnostic_columns),
    [UP_ROW_BASELINE] = UPDATE("rank", baseline_columns, 1),
    [UP_ROW_KERNEL_TIMES] = TIMES("kernel"),
    [UP_ROW_COPY_TIMES] = TIMES("copy"),
    [UP_ROW_COLLECTIVE_TIMES] = TIMES("collective"),
    [UP_ROW_KERNEL_SEEN] = INSERT("kernel", kernel_seen_columns),
    [UP_ROW_COPY_SEEN] = INSERT("copy", copy_seen_columns),
    [UP_ROW_DEVICE_ALLOC] = INSERT("device_alloc", device_alloc_columns),
    [UP_ROW_DEVICE_FREE] = UPDATE("device_alloc", device_free_columns, 1),
    [UP_ROW_PREDICTION] = INSERT("prediction", prediction_columns),
    [UP_ROW_PREDICTION_CATEGORY] = INSERT("prediction_category", prediction_category_columns),
#undef INSERT
#undef UPDATE
#undef TIMES
};

// --- SQL ---------------------------------------------------------------------------------------

enum { SQL_TEXT = 1024 };

static void append(char sql[SQL_TEXT], const char *separator, const char *name, const char *rest)
{
    size_t used = strlen(sql);
    snprintf(sql + used, SQL_TEXT - used, "%s%s%s", separator, name, rest);
}

// OR REPLACE: a key of meta said again, or a step that is begun again, takes the place of the old
// row.
static void insert_text(char sql[SQL_TEXT], const struct row_table *table)
{
    snprintf(sql, SQL_TEXT, "INSERT OR REPLACE INTO %s (", table->table);
    for (int i = 0; i < table->count; i++) append(sql, i ? ", " : "", table->columns[i].name, "");
    append(sql, ") VALUES (", "", "");
    for (int i = 0; i < table->count; i++) append(sql, i ? ", " : "", "?", "");
    append(sql, ")", "", "");
}

static void update_text(char sql[SQL_TEXT], const struct row_table *table)
{
    int set = table->count - table->keys;
    snprintf(sql, SQL_TEXT, "UPDATE %s SET ", table->table);
    for (int i = 0; i < set; i++) append(sql, i ? ", " : "", table->columns[i].name, " = ?");
    for (int i = set; i < table->count; i++)
        append(sql, i == set ? " WHERE " : " AND ", table->columns[i].name, " = ?");
}

sqlite3_stmt *up_row_prepare(sqlite3 *db, enum up_row_kind kind)
{
    char sql[SQL_TEXT];
    const struct row_table *table = &row_tables[kind];
    if (table->sql)
        snprintf(sql, sizeof sql, "%s", table->sql);
    else
        (table->keys ? update_text : insert_text)(sql, table);
    sqlite3_stmt *statement = NULL;
    sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL);
    return statement;
}

// --- Binding -----------------------------------------------------------------------------------

/* The texts of one row, alive until it has been written. */
struct scratch {
    char label[UP_LABEL_TEXT];
    char shape[96]; // "[a,b,c,d]" of at most 15 digits each
    char hash[17];
};

enum { RANK_SHIFT = 40 }; // a rank's ids stay below 2^40

int64_t up_row_id(int rank, uint64_t id)
{
    return (int64_t)((uint64_t)rank << RANK_SHIFT | id);
}

static const char *shape_text(struct scratch *scratch, const struct up_event *event)
{
    char *at = scratch->shape, *end = at + sizeof scratch->shape;
    for (int i = 0; i < event->tensor.dims && i < UP_MAX_DIMS; i++)
        at += snprintf(at, (size_t)(end - at), "%c%lld", i ? ',' : '[',
                       (long long)up_event_dim(event, i));
    snprintf(at, (size_t)(end - at), "%s", at == scratch->shape ? "[]" : "]");
    return scratch->shape;
}

static int bind_text(sqlite3_stmt *statement, int i, const char *text)
{
    return sqlite3_bind_text(statement, i, text, -1, SQLITE_STATIC);
}

static int bind_number(sqlite3_stmt *statement, int i, int64_t number, bool null)
{
    return null ? sqlite3_bind_null(statement, i) : sqlite3_bind_int64(statement, i, number);
}

static int bind_id(sqlite3_stmt *statement, int i, int rank, const void *field, bool zero_is_null)
{
    uint64_t id = *(const uint64_t *)field;
    return bind_number(statement, i, up_row_id(rank, id), zero_is_null && !id);
}

static int bind_real(sqlite3_stmt *statement, int i, double value)
{
    return isfinite(value) ? sqlite3_bind_double(statement, i, value)
                           : sqlite3_bind_null(statement, i);
}

static int bind_step(sqlite3_stmt *statement, int i, const struct up_event *event, bool null)
{
    return bind_number(statement, i, event->step, null || event->step < 0);
}

static int bind_layer(sqlite3_stmt *statement, int i, const struct up_label *label)
{
    return bind_number(statement, i, label->layer, label->layer < 0);
}

static int bind_hash(sqlite3_stmt *statement, int i, struct scratch *scratch, uint64_t hash)
{
    snprintf(scratch->hash, sizeof scratch->hash, "%016llx", (unsigned long long)hash);
    return bind_text(statement, i, scratch->hash);
}

static int bind_column(sqlite3_stmt *statement, int i, const struct column *column,
                       const struct up_row *row, struct scratch *scratch)
{
    static const struct up_event none;
    const struct up_event *event = row->event ? row->event : &none;
    const void *field = (const char *)event + column->at;
    const uint8_t *word = field; // of one of names.h's enums
    switch (column->source) {
    case RANK:
        return sqlite3_bind_int(statement, i, row->rank);
    case ID:
        return bind_id(statement, i, row->rank, field, false);
    case ID_OR_NULL:
        return bind_id(statement, i, row->rank, field, true);
    case INT64:
        return sqlite3_bind_int64(statement, i, *(const int64_t *)field);
    case REAL:
        return bind_real(statement, i, *(const double *)field);
    case STEP:
        return bind_step(statement, i, event, false);
    case TENSOR_STEP:
        return bind_step(statement, i, event, event->tensor.outlives_step);
    case LABEL:
        return bind_text(statement, i, up_label_text(scratch->label, field));
    case LAYER:
        return bind_layer(statement, i, field);
    case PHASE:
        return bind_text(statement, i, up_phase_names[*word]);
    case SPACE:
        return bind_text(statement, i, up_space_names[*word]);
    case CATEGORY:
        return bind_text(statement, i, up_category_names[*word]);
    case DTYPE:
        return bind_text(statement, i, up_dtype_names[*word]);
    case STREAM:
        return bind_text(statement, i, up_stream_names[*word]);
    case SHAPE:
        return bind_text(statement, i, shape_text(scratch, event));
    case HASH:
        return bind_hash(statement, i, scratch, *(const uint64_t *)field);
    case NUMBER:
        return sqlite3_bind_int64(statement, i, row->numbers[column->at]);
    case NUMBER_OR_NULL:
        return bind_number(statement, i, row->numbers[column->at], row->numbers[column->at] < 0);
    case SEQ_OR_NULL:
        return bind_number(statement, i, row->numbers[column->at], !row->numbers[column->at]);
    case TEXT:
        return bind_text(statement, i, row->texts[column->at]);
    case REAL_OR_NULL:
        return bind_real(statement, i, row->reals[column->at]);
    }
    return SQLITE_MISUSE;
}

int up_row_run(sqlite3_stmt *statement, enum up_row_kind kind, const struct up_row *row)
{
    struct scratch scratch;
    const struct row_table *table = &row_tables[kind];
    int code = SQLITE_OK;
    for (int i = 0; i < table->count && code == SQLITE_OK; i++)
        code = bind_column(statement, i + 1, &table->columns[i], row, &scratch);
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    sqlite3_reset(statement);
    return code;
}
