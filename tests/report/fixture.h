/* Databases for the report's tests, written with plain SQL into the schema that is shipped, so that
 * no test of the report leans on the writer. A struct fixture plays one rank of a run: it counts
 * seq and time, keeps track of open ranges, and writes rows. */
#ifndef UP_TESTS_REPORT_FIXTURE_H
#define UP_TESTS_REPORT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <sqlite3.h>

struct fixture {
    sqlite3 *db;
    int64_t rank, step; // step -1: outside
    const char *phase;
    int64_t seq, ns, last_id, last_range;
    int64_t open[16]; // ids of open ranges
    int depth;
};

// SQLite's conversions: %q, %lld, %!.17g. A failure fails the test.
static inline void fixture_sql(struct fixture *f, const char *format, ...)
{
    char *message = NULL;
    va_list arguments;
    va_start(arguments, format);
    char *sql = sqlite3_vmprintf(format, arguments);
    va_end(arguments);
    if (sqlite3_exec(f->db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s in: %s", message, sql);
    sqlite3_free(sql);
}

static inline char *fixture_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    char *text = calloc(1, 1 << 20);
    size_t size = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    text[size] = 0;
    return text;
}

static inline void fixture_open(struct fixture *f, const char *path)
{
    char *schema = fixture_read(UP_TEST_SOURCE "/src/store/schema.sql");
    assert_non_null(schema);
    unlink(path);
    *f = (struct fixture){.step = -1, .phase = "init"};
    assert_int_equal(sqlite3_open(path, &f->db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(f->db, schema, NULL, NULL, NULL), SQLITE_OK);
    free(schema);
    fixture_sql(f, "PRAGMA synchronous = OFF; BEGIN");
}

static inline void fixture_close(struct fixture *f)
{
    fixture_sql(f, "COMMIT");
    assert_int_equal(sqlite3_close(f->db), SQLITE_OK);
}

static inline void fixture_meta(struct fixture *f, const char *key, const char *value)
{
    fixture_sql(f, "REPLACE INTO meta VALUES ('%q', '%q')", key, value);
}

// A whole number or "NULL".
static inline const char *fixture_number(char out[24], int64_t value)
{
    if (value < 0) return "NULL";
    snprintf(out, 24, "%lld", (long long)value);
    return out;
}

struct fixture_tensor {
    const char *name, *category, *dtype, *shape, *space; // space NULL: device
    int64_t layer;                                       // -1: none
    int64_t bytes, reserved;                             // reserved 0: bytes rounded up to 512
    int64_t storage;                                     // 0: its own
};

static inline int64_t fixture_alloc(struct fixture *f, struct fixture_tensor t)
{
    char layer[24], step[24], range[24];
    int64_t id = ++f->last_id;
    f->ns += 1000;
    fixture_sql(
        f,
        "INSERT INTO tensor VALUES (%lld, %lld, '%q', %lld, '%q', '%q', %s, '%q', '%q', '%q',"
        " %lld, %lld, 0, 'compute', %s, NULL, %s, %lld, NULL, %lld, NULL)",
        (long long)(f->rank << 40 | id), (long long)f->rank, t.space ? t.space : "device",
        (long long)(f->rank << 40 | (t.storage ? t.storage : id)), t.name, t.category,
        fixture_number(layer, t.layer), f->phase, t.dtype ? t.dtype : "fp32",
        t.shape ? t.shape : "[1]", (long long)t.bytes,
        (long long)(t.reserved ? t.reserved : (t.bytes + 511) / 512 * 512),
        fixture_number(step, f->step), fixture_number(range, f->depth ? f->open[f->depth - 1] : -1),
        (long long)++f->seq, (long long)f->ns);
    return id;
}

static inline void fixture_free(struct fixture *f, int64_t id)
{
    char step[24];
    f->ns += 1000;
    fixture_sql(f,
                "UPDATE tensor SET free_seq = %lld, free_ns = %lld, free_step = %s WHERE id = %lld",
                (long long)++f->seq, (long long)f->ns, fixture_number(step, f->step),
                (long long)(f->rank << 40 | id));
}

static inline void fixture_range_begin(struct fixture *f, const char *name, int64_t layer)
{
    char parent[24], step[24], number[24];
    int64_t id = f->rank << 40 | ++f->last_range;
    fixture_sql(
        f,
        "INSERT INTO range VALUES (%lld, %lld, %s, '%q', %s, %s, '%q', %lld, NULL, NULL, NULL,"
        " 'compute', %lld, NULL)",
        (long long)id, (long long)f->rank,
        fixture_number(parent, f->depth ? f->open[f->depth - 1] : -1), name,
        fixture_number(step, f->step), fixture_number(number, layer), f->phase, (long long)f->ns,
        (long long)++f->seq);
    f->open[f->depth++] = id;
}

static inline void fixture_range_end(struct fixture *f)
{
    fixture_sql(f, "UPDATE range SET end_seq = %lld, end_ns = %lld WHERE id = %lld",
                (long long)++f->seq, (long long)f->ns, (long long)f->open[--f->depth]);
}

static inline void fixture_step_begin(struct fixture *f, int64_t step)
{
    f->step = step;
    f->ns += 100000;
    fixture_sql(f, "INSERT INTO step (step, rank, begin_ns) VALUES (%lld, %lld, %lld)",
                (long long)step, (long long)f->rank, (long long)f->ns);
}

// peak_seq and same_as negative: NULL.
static inline void fixture_step_end(struct fixture *f, double loss, int64_t tokens,
                                    int64_t peak_bytes, int64_t peak_seq, int64_t same_as)
{
    char seq[24], same[24];
    f->ns += 100000;
    fixture_sql(
        f,
        "UPDATE step SET loss = %!.17g, grad_norm = 1.5, tokens = %lld, end_ns = %lld,"
        " peak_bytes = %lld, peak_seq = %s, same_as_step = %s, event_hash = '0123456789abcdef'"
        " WHERE step = %lld AND rank = %lld",
        loss, (long long)tokens, (long long)f->ns, (long long)peak_bytes,
        fixture_number(seq, peak_seq), fixture_number(same, same_as), (long long)f->step,
        (long long)f->rank);
    f->step = -1;
}

static inline void fixture_indexes(struct fixture *f)
{
    fixture_sql(f, "CREATE INDEX tensor_alloc ON tensor(rank, alloc_seq);"
                   "CREATE INDEX tensor_storage ON tensor(storage_id);"
                   "CREATE INDEX range_begin ON range(rank, begin_seq)");
}

/* --- A small transformer -----------------------------------------------------------------------
 */

enum { FIXTURE_HIDDEN = 64, FIXTURE_FF = 192, FIXTURE_TOKENS = 1024, FIXTURE_LAYERS = 4 };

/* The live bytes and their highest, as the allocator itself would count them. */
struct fixture_count {
    int64_t live, peak, peak_seq;
    int64_t bytes[4096]; // by id
};

static inline int64_t fixture_take(struct fixture *f, struct fixture_count *count,
                                   struct fixture_tensor t)
{
    int64_t id = fixture_alloc(f, t);
    if (t.space) return id;
    count->bytes[id % 4096] = t.storage ? 0 : t.bytes;
    count->live += count->bytes[id % 4096];
    if (count->live > count->peak) {
        count->peak = count->live;
        count->peak_seq = f->seq;
    }
    return id;
}

static inline void fixture_give(struct fixture *f, struct fixture_count *count, int64_t id)
{
    fixture_free(f, id);
    count->live -= count->bytes[id % 4096];
    count->bytes[id % 4096] = 0;
}

// layers.<layer>.<name>, [rows, cols] of fp32.
static inline int64_t fixture_matrix(struct fixture *f, struct fixture_count *count,
                                     const char *category, int64_t layer, const char *name,
                                     int64_t rows, int64_t cols)
{
    char full[96], shape[48], prefix[32] = "";
    if (layer >= 0) snprintf(prefix, sizeof prefix, "layers.%lld.", (long long)layer);
    snprintf(full, sizeof full, "%s%s", prefix, name);
    snprintf(shape, sizeof shape, "[%lld,%lld]", (long long)rows, (long long)cols);
    return fixture_take(f, count,
                        (struct fixture_tensor){.name = full,
                                                .category = category,
                                                .shape = shape,
                                                .layer = layer,
                                                .bytes = 4 * rows * cols});
}

static inline void fixture_parameters(struct fixture *f, struct fixture_count *count)
{
    static const struct {
        const char *category, *suffix;
    } kinds[] = {
        {"parameter", ""}, {"gradient", ".grad"}, {"optimizer", ".m"}, {"optimizer", ".v"}};
    for (int k = 0; k < 4; k++) {
        char name[64];
        snprintf(name, sizeof name, "embed%s", kinds[k].suffix);
        fixture_matrix(f, count, kinds[k].category, -1, name, 256, FIXTURE_HIDDEN);
        for (int layer = 0; layer < FIXTURE_LAYERS; layer++) {
            snprintf(name, sizeof name, "attn.qkv.weight%s", kinds[k].suffix);
            fixture_matrix(f, count, kinds[k].category, layer, name, 3 * FIXTURE_HIDDEN,
                           FIXTURE_HIDDEN);
            snprintf(name, sizeof name, "mlp.gate.weight%s", kinds[k].suffix);
            fixture_matrix(f, count, kinds[k].category, layer, name, FIXTURE_FF, FIXTURE_HIDDEN);
        }
    }
}

static inline void fixture_layer_name(char out[32], int layer, const char *name)
{
    snprintf(out, 32, "layers.%d.%s", layer, name);
}

// Forward keeps four activations a layer; backward adds their gradients and frees both.
static inline void fixture_step_events(struct fixture *f, struct fixture_count *count)
{
    int64_t kept[FIXTURE_LAYERS][4];
    char name[32];
    f->phase = "forward";
    fixture_range_begin(f, "forward", -1);
    for (int layer = 0; layer < FIXTURE_LAYERS; layer++) {
        fixture_layer_name(name, layer, "attn");
        fixture_range_begin(f, name, layer);
        kept[layer][0] =
            fixture_matrix(f, count, "norm", layer, "attn.norm", FIXTURE_TOKENS, FIXTURE_HIDDEN);
        kept[layer][1] = fixture_matrix(f, count, "attention", layer, "attn.qkv", FIXTURE_TOKENS,
                                        3 * FIXTURE_HIDDEN);
        fixture_range_end(f);
        fixture_layer_name(name, layer, "mlp");
        fixture_range_begin(f, name, layer);
        kept[layer][2] =
            fixture_matrix(f, count, "mlp", layer, "mlp.gate", FIXTURE_TOKENS, FIXTURE_FF);
        kept[layer][3] =
            fixture_matrix(f, count, "mlp", layer, "mlp.up", FIXTURE_TOKENS, FIXTURE_FF);
        fixture_range_end(f);
    }
    fixture_range_end(f);
    f->phase = "backward";
    fixture_range_begin(f, "backward", -1);
    int64_t logits = fixture_matrix(f, count, "loss", -1, "logits", FIXTURE_TOKENS, 256);
    for (int layer = FIXTURE_LAYERS - 1; layer >= 0; layer--) {
        fixture_layer_name(name, layer, "mlp");
        fixture_range_begin(f, name, layer);
        int64_t grad =
            fixture_matrix(f, count, "mlp", layer, "mlp.gate.grad", FIXTURE_TOKENS, FIXTURE_FF);
        // The gradient is computed in place: a second name of the same bytes.
        int64_t view =
            fixture_take(f, count,
                         (struct fixture_tensor){.name = "mlp.hidden.grad",
                                                 .category = "mlp",
                                                 .shape = "[1024,192]",
                                                 .layer = layer,
                                                 .bytes = 4 * FIXTURE_TOKENS * FIXTURE_FF,
                                                 .storage = grad});
        fixture_free(f, grad);
        count->bytes[view % 4096] = count->bytes[grad % 4096];
        for (int i = 0; i < 4; i++) fixture_give(f, count, kept[layer][i]);
        fixture_give(f, count, view);
        fixture_range_end(f);
    }
    fixture_give(f, count, logits);
    fixture_range_end(f);
}

static inline void fixture_describe(struct fixture *f)
{
    static const char *const meta[][2] = {
        {"schema_version", "1"},
        {"run_id", "20260101-000000-abc"},
        {"config_hash", "00c0ffee00c0ffee"},
        {"config", "{\"checkpoint\": \"none\", \"tile-mlp\": 4096, \"upipe\": \"off\", \"cp\": 1}"},
        {"command", "upipe-train --model tiny --steps 10"},
        {"model", "tiny"},
        {"device", "cpu"},
        {"as", "cpu"},
        {"dtype", "fp32"},
        {"ranks", "1"},
        {"cp", "1"},
        {"dp", "1"},
        {"seq_len", "1024"},
        {"batch", "1"},
        {"accum", "1"},
        {"started", "2026-01-01T00:00:00Z"},
        {"complete", "1"},
        {"outcome", "ok"},
        {"steps_planned", "10"},
        {"parameters", "114688"},
        {"events_written", "1234"},
        {"recorder_ns", "12345678"},
        {"recorder_bytes", "8388608"},
        {"ring_waits", "0"}};
    for (size_t i = 0; i < sizeof meta / sizeof *meta; i++) fixture_meta(f, meta[i][0], meta[i][1]);
    fixture_sql(f, "INSERT INTO rank VALUES (0, 'node', 'cpu', NULL, NULL)");
}

/* Ten steps: 0 to 2 with rows, the others like step 2. */
static inline void fixture_train(struct fixture *f, struct fixture_count *count)
{
    *count = (struct fixture_count){0};
    fixture_describe(f);
    fixture_parameters(f, count);
    for (int step = 0; step < 10; step++) {
        fixture_step_begin(f, step);
        if (step < 3) {
            count->peak = count->live;
            fixture_step_events(f, count);
        } else {
            f->seq += 100;
        }
        fixture_step_end(f, 5.5 - 0.25 * step, FIXTURE_TOKENS, count->peak, count->peak_seq,
                         step < 3 ? -1 : 2);
    }
}

#endif
