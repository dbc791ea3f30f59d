/* Each technique doing its work, seen from outside: upipe-train runs with it, and run.db is asked
 * by SQL. What the numbers of a run are is other tests' business; here it is when what is alive,
 * where, and of what size. Small shapes on cpu ranks, large ones on the dry device. */
#include "tests/cli/program.h"

#include <sqlite3.h>

enum { LAYERS = 4, LAST = LAYERS - 1 }; // of all runs here

#define TINY  "--device cpu --threads 1 --model tiny --seq 64 --steps 1"
#define LARGE "--device dry --machine h100-80g-x8 --model llama3-8b --layers 4 --seq 256K --steps 1"

static char folder[32];

/* --- Runs and questions
 * --------------------------------------------------------------------------- */

// Runs upipe-train with these words and opens what it traced, under `name` in the test's folder.
static sqlite3 *trace(const char *name, const char *words)
{
    static struct program program;
    char copy[512], data[64], path[64];
    const char *argv[64] = {0};
    int count = 0;
    sqlite3 *db;
    snprintf(copy, sizeof copy, "%s", words);
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(path, sizeof path, "%s/%s.db", folder, name);
    for (char *rest = copy, *word; (word = strsep(&rest, " "));) argv[count++] = word;
    const char *last[] = {"--no-admission", "--data", data, "--trace", path};
    memcpy(&argv[count], last, sizeof last);
    program_run_words(&program, "upipe-train", argv);
    if (program.status) fail_msg("upipe-train %s: %s", words, program.err);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    return db;
}

// The one whole number that a query gives. SQLite's conversions: %q, %lld.
static int64_t ask(sqlite3 *db, const char *format, ...)
{
    sqlite3_stmt *statement = NULL;
    va_list arguments;
    va_start(arguments, format);
    char *sql = sqlite3_vmprintf(format, arguments);
    va_end(arguments);
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s in: %s", sqlite3_errmsg(db), sql);
    if (sqlite3_step(statement) != SQLITE_ROW ||
        sqlite3_column_type(statement, 0) != SQLITE_INTEGER)
        fail_msg("no number from: %s", sql);
    int64_t number = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_free(sql);
    return number;
}

// Alive at seq `at` of the tensor's rank.
#define ALIVE_AT(at) " " at " BETWEEN alloc_seq AND ifnull(free_seq - 1, 1 << 62) "

// The most tensors of these names that are alive in device memory at once, on any rank.
static int64_t most_at_once(sqlite3 *db, const char *glob)
{
    return ask(db,
               "SELECT max((SELECT count(*) FROM tensor WHERE rank = t.rank AND name GLOB '%q'"
               " AND space = 'device' AND" ALIVE_AT(
                   "t.alloc_seq") "))"
                                  " FROM tensor t WHERE name GLOB '%q' AND space = 'device'",
               glob, glob);
}

// Where rank 0's forward and backward begin or end, as seq.
static int64_t phase_seq(sqlite3 *db, const char *phase, const char *end)
{
    return ask(db, "SELECT %s_seq FROM range WHERE name = '%q' AND rank = 0", end, phase);
}

static int64_t kernels(sqlite3 *db, const char *name, const char *phase)
{
    return ask(db,
               "SELECT count(*) FROM kernel k JOIN range r ON r.id = k.range_id"
               " WHERE k.name = '%q' AND r.phase = '%q' AND k.rank = 0",
               name, phase);
}

/* --- FSDP
 * ----------------------------------------------------------------------------------------- */

static void check_shares(sqlite3 *db, int ranks, bool dry)
{
    char plain[64];
    snprintf(plain, sizeof plain, "%s/plain.db", folder);
    char *attach = sqlite3_mprintf("ATTACH '%q' AS plain", plain);
    assert_int_equal(sqlite3_exec(db, attach, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_free(attach);
    // Of each unit: parameters, gradients and two moments, fp32, on every rank that is traced.
    static const char both[] =
        "FROM main.tensor s JOIN plain.tensor p ON p.name = s.name AND p.rank = 0"
        " WHERE s.category IN ('parameter', 'gradient', 'optimizer')";
    assert_int_equal(ask(db, "SELECT count(*) %s", both), 4 * (LAYERS + 2) * (dry ? 1 : ranks));
    assert_int_equal(ask(db, "SELECT count(*) %s AND s.bytes <> 4 * ((p.bytes / 4 + %d) / %d)",
                         both, ranks - 1, ranks),
                     0);
}

static void test_fsdp(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        int ranks;
    } runs[] = {{TINY, 2}, {TINY, 3}, {LARGE, 3}, {LARGE, 8}};
    for (int i = 0; i < UP_COUNT(runs); i++) {
        char words[256];
        bool dry = !strcmp(runs[i].words, LARGE);
        snprintf(words, sizeof words, "%s --dp %d", runs[i].words, runs[i].ranks);
        sqlite3_close(trace("plain", words));
        snprintf(words, sizeof words, "%s --dp %d --fsdp on", runs[i].words, runs[i].ranks);
        sqlite3 *db = trace("fsdp", words);
        check_shares(db, runs[i].ranks, dry);
        // The block in use and the next one, on its way; never the embedding or the head besides.
        assert_int_equal(most_at_once(db, "layers.*.weights.gathered"), 2);
        assert_int_equal(most_at_once(db, "*weights.gathered"), 2);
        assert_int_equal(most_at_once(db, "*grads.full"), 1);
        sqlite3_close(db);
    }
}

// Each unit is gathered once a direction where it is used (the head once for both), its gradient
// reduced once.
static void test_fsdp_collectives(void **state)
{
    (void)state;
    sqlite3 *db = trace("fsdp", TINY " --checkpoint block --dp 3 --fsdp on");
    static const char count[] = "SELECT count(*) FROM collective WHERE rank = 1 AND name = '%s'";
    assert_int_equal(ask(db, count, "all_gather"), 2 * LAYERS + 2);
    assert_int_equal(ask(db, count, "reduce_scatter"), LAYERS + 2);
    assert_int_equal(ask(db, count, "all_to_all"), 0);
    sqlite3_close(db);
}

/* --- Tiled loss
 * ----------------------------------------------------------------------------------- */

static void check_logits(const char *shape, const char *words, int64_t vocab, int64_t tokens,
                         bool whole)
{
    sqlite3 *db = trace("loss", words);
    assert_int_equal(ask(db, "SELECT count(*) > 0 FROM tensor WHERE shape = '[%lld,%lld]'",
                         (long long)tokens, (long long)vocab),
                     whole);
    assert_int_equal(ask(db, "SELECT count(DISTINCT shape) FROM tensor WHERE category = 'loss'"),
                     1);
    assert_int_equal(
        ask(db, "SELECT count(*) > 0 FROM tensor WHERE category = 'loss' AND shape = '%q'", shape),
        1);
    sqlite3_close(db);
}

static void test_tile_loss(void **state)
{
    (void)state;
    check_logits("[64,256]", TINY, 256, 64, true);
    check_logits("[24,256]", TINY " --tile-loss 24", 256, 64, false);
    check_logits("[32768,128256]", LARGE " --cp 8", 128256, 1 << 15, true);
    check_logits("[1024,128256]", LARGE " --cp 8 --tile-loss 1K", 128256, 1 << 15, false);
}

/* --- Headwise chunking
 * ---------------------------------------------------------------------------- */

// Bytes of a tensor of block 1's attention, which must be the same in all its stages and
// directions.
static int64_t stage_bytes(sqlite3 *db, const char *name, int64_t stages)
{
    char *same =
        sqlite3_mprintf("FROM tensor WHERE rank = 0 AND space = 'device' AND"
                        " (name = 'layers.1.attn.%q' OR name GLOB 'layers.1.attn.%q.[0-9]*')",
                        name, name);
    assert_int_equal(ask(db, "SELECT count(DISTINCT bytes) %s", same), 1);
    assert_int_equal(ask(db, "SELECT count(DISTINCT name) %s", same), stages);
    int64_t bytes = ask(db, "SELECT max(bytes) %s", same);
    sqlite3_free(same);
    return bytes;
}

// Stages in each of which every rank has KV heads of its own.
static void test_upipe(void **state)
{
    (void)state;
    static const char *const names[] = {"q", "k", "v", "o", "lse", "do", "dq", "dk", "dv"};
    static const struct {
        const char *words;
        int64_t heads, stage_heads;
    } runs[] = {{TINY " --checkpoint block --cp 2", 8, 4},
                {LARGE " --checkpoint block --cp 2", 32, 8}};
    for (int i = 0; i < UP_COUNT(runs); i++) {
        char words[256];
        int64_t stages = runs[i].heads / runs[i].stage_heads;
        sqlite3 *plain = trace("ulysses", runs[i].words);
        snprintf(words, sizeof words, "%s --upipe %d", runs[i].words, (int)runs[i].stage_heads);
        sqlite3 *chunked = trace("upipe", words);
        for (int j = 0; j < UP_COUNT(names); j++)
            assert_int_equal(stages * stage_bytes(chunked, names[j], stages),
                             stage_bytes(plain, names[j], 1));
        sqlite3_close(plain);
        sqlite3_close(chunked);
    }
}

// Two query heads share a KV head and are in different stages: K and V are made in every other
// stage.
static void test_upipe_shares_kv(void **state)
{
    (void)state;
    sqlite3 *plain = trace("ulysses", TINY " --checkpoint block --cp 2");
    sqlite3 *chunked = trace("upipe", TINY " --checkpoint block --cp 2 --upipe 2");
    assert_int_equal(4 * stage_bytes(chunked, "q", 4), stage_bytes(plain, "q", 1));
    assert_int_equal(4 * stage_bytes(chunked, "do", 4), stage_bytes(plain, "do", 1));
    assert_int_equal(2 * stage_bytes(chunked, "k", 2), stage_bytes(plain, "k", 1));
    assert_int_equal(2 * stage_bytes(chunked, "v", 2), stage_bytes(plain, "v", 1));
    sqlite3_close(plain);
    sqlite3_close(chunked);
}

// Per stage: forward q and o, and k and v where they change; backward q, o, do and dq, and k, v, dk
// and dv; the rebuild of `block` is a forward.
static void test_exchanges(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        int64_t stages, kv_stages, forwards;
    } runs[] = {{TINY " --cp 2", 1, 1, 1},
                {TINY " --cp 2 --checkpoint block --upipe 4", 2, 2, 2},
                {TINY " --cp 2 --checkpoint block --upipe 2", 4, 2, 2},
                {TINY " --cp 2 --checkpoint attn --upipe 2", 4, 2, 1},
                {LARGE " --cp 8 --checkpoint block --upipe 8", 4, 1, 2},
                {LARGE " --cp 8 --checkpoint attn --upipe 8", 4, 1, 1}};
    for (int i = 0; i < UP_COUNT(runs); i++) {
        int64_t s = runs[i].stages, kv = runs[i].kv_stages;
        // With everything kept q, k and v are in head layout already.
        int64_t again = strstr(runs[i].words, "checkpoint") ? s + 2 * kv : 0;
        int64_t forward = 2 * s + 2 * kv, backward = again + 3 * s + 2 * kv;
        sqlite3 *db = trace("exchanges", runs[i].words);
        assert_int_equal(
            ask(db, "SELECT count(*) FROM collective WHERE name = 'all_to_all' AND rank = 0"),
            LAYERS * (runs[i].forwards * forward + backward));
        sqlite3_close(db);
    }
}

/* --- Checkpointing
 * -------------------------------------------------------------------------------- */

static void check_attention_kernels(const char *words, int64_t stages, int64_t recomputed)
{
    sqlite3 *db = trace("attention", words);
    assert_int_equal(kernels(db, "attention_forward", "forward"), LAYERS * stages);
    assert_int_equal(kernels(db, "attention_backward", "backward"), LAYERS * stages);
    assert_int_equal(kernels(db, "attention_forward", "backward"), recomputed * stages);
    // None of a layer more than once a stage.
    if (recomputed)
        assert_int_equal(ask(db,
                             "SELECT max(n) FROM (SELECT count(*) AS n FROM kernel k"
                             " JOIN range r ON r.id = k.range_id WHERE k.name = 'attention_forward'"
                             " AND r.phase = 'backward' AND k.rank = 0 GROUP BY r.layer)"),
                         stages);
    sqlite3_close(db);
}

static void test_attention_runs(void **state)
{
    (void)state;
    check_attention_kernels(TINY, 1, 0);
    check_attention_kernels(TINY " --checkpoint block", 1, LAYERS);
    check_attention_kernels(TINY " --checkpoint attn", 1, 0);
    check_attention_kernels(TINY " --checkpoint attn:3", 1, 1);
    check_attention_kernels(TINY " --checkpoint block --cp 2 --upipe 2", 4, LAYERS);
    check_attention_kernels(TINY " --checkpoint attn --cp 2 --upipe 2 --offload host", 4, 0);
    check_attention_kernels(LARGE " --stack upipe --ranks 8", 4, LAYERS);
    check_attention_kernels(LARGE " --stack upipe --ranks 8 --checkpoint attn", 4, 0);
}

// Tensors of blocks that are alive on the device when the backward begins, apart from model state.
static int64_t kept(sqlite3 *db, const char *names)
{
    return ask(db,
               "SELECT count(*) FROM tensor WHERE rank = 0 AND space = 'device' AND step = 0"
               " AND layer IS NOT NULL AND name GLOB '%q' AND" ALIVE_AT("%lld"),
               names, phase_seq(db, "backward", "begin"));
}

static void test_what_blocks_keep(void **state)
{
    (void)state;
    static const char *const shapes[] = {TINY, LARGE};
    for (int i = 0; i < UP_COUNT(shapes); i++) {
        char words[256];
        snprintf(words, sizeof words, "%s --checkpoint block", shapes[i]);
        sqlite3 *block = trace("block", words);
        assert_int_equal(kept(block, "layers.[0-9].x"), LAYERS);
        assert_int_equal(kept(block, "*"), LAYERS);
        snprintf(words, sizeof words, "%s --checkpoint attn:3", shapes[i]);
        sqlite3 *attn = trace("attn", words);
        assert_int_equal(kept(attn, "layers.[0-9].x"), LAYERS);
        assert_int_equal(kept(attn, "layers.[123].attn.o"), 3);
        assert_int_equal(kept(attn, "layers.[123].attn.lse"), 3);
        assert_int_equal(kept(attn, "*"), LAYERS + 2 * 3);
        // Without: also the middle, q, k, v, gate and up.
        sqlite3 *none = trace("none", shapes[i]);
        assert_int_equal(kept(none, "*"), LAYERS * (1 + 2 + 6));
        sqlite3_close(block);
        sqlite3_close(attn);
        sqlite3_close(none);
    }
}

/* --- Offload
 * -------------------------------------------------------------------------------------- */

// The tensor's device copy goes in the forward; a host copy of its size lives from then into
// backward.
static void check_sent_away(sqlite3 *db, const char *name)
{
    int64_t forward = phase_seq(db, "forward", "begin"), back = phase_seq(db, "backward", "begin");
    int64_t end = phase_seq(db, "backward", "end");
    static const char born[] =
        "SELECT count(*) FROM tensor WHERE rank = 0 AND name = '%q' AND space = '%q'"
        " AND phase = 'forward' AND alloc_seq > %lld";
    static const char freed[] = " AND free_seq > %lld AND free_seq < %lld";
    char in_time[256];
    snprintf(in_time, sizeof in_time, "%s%s", born, freed);
    assert_int_equal(ask(db, born, name, "host", forward), 1);
    assert_int_equal(ask(db, in_time, name, "host", forward, back, end), 1);
    assert_int_equal(ask(db, born, name, "device", forward),
                     ask(db, in_time, name, "device", forward, forward, back));
    // One size, to the byte, on either side.
    assert_int_equal(
        ask(db, "SELECT count(DISTINCT bytes) FROM tensor WHERE rank = 0 AND name = '%q'", name),
        1);
    assert_true(ask(db,
                    "SELECT max(reserved_bytes - bytes) FROM tensor WHERE rank = 0"
                    " AND name = '%q' AND space = 'host'",
                    name) < 512);
}

static int64_t count_host(sqlite3 *db, const char *glob)
{
    return ask(db,
               "SELECT count(*) FROM tensor WHERE rank = 0 AND space = 'host' AND name GLOB '%q'",
               glob);
}

static const char *name_of(int layer, const char *suffix)
{
    static char name[64];
    snprintf(name, sizeof name, "layers.%d.%s", layer, suffix);
    return name;
}

static void test_offload(void **state)
{
    (void)state;
    static const char *const shapes[] = {TINY " --cp 2 --upipe 2 --offload host",
                                         LARGE " --cp 8 --upipe 8 --offload host"};
    for (int i = 0; i < UP_COUNT(shapes); i++) {
        char words[256];
        snprintf(words, sizeof words, "%s --checkpoint block", shapes[i]);
        sqlite3 *db = trace("block", words);
        for (int layer = 0; layer < LAST; layer++) check_sent_away(db, name_of(layer, "x"));
        // Wanted at once, the last block's input stays.
        assert_int_equal(count_host(db, "layers.*"), LAST);
        assert_int_equal(kept(db, "*"), 1);
        sqlite3_close(db);

        snprintf(words, sizeof words, "%s --checkpoint attn", shapes[i]);
        db = trace("attn", words);
        for (int layer = 0; layer < LAYERS; layer++) {
            if (layer < LAST) check_sent_away(db, name_of(layer, "x"));
            check_sent_away(db, name_of(layer, "attn.o.3"));
            check_sent_away(db, name_of(layer, "attn.lse.0"));
        }
        assert_int_equal(count_host(db, "layers.*"), LAST + LAYERS * 2 * 4);
        assert_int_equal(kept(db, "*"), 1);
        sqlite3_close(db);

        snprintf(words, sizeof words, "%s:2 --checkpoint block", shapes[i]);
        db = trace("some", words);
        assert_int_equal(count_host(db, "layers.[01].x"), 2);
        assert_int_equal(count_host(db, "layers.*"), 2);
        sqlite3_close(db);
    }
}

// The input of the block below comes back while the last stage's attention runs backward, when of
// the stages before it nothing is left, and is there before the stage ends.
static void test_prefetch_is_late(void **state)
{
    (void)state;
    static const char *const runs[] = {TINY " --cp 2 --upipe 2 --offload host --checkpoint block",
                                       TINY " --cp 2 --upipe 2 --offload host --checkpoint attn",
                                       LARGE " --stack upipe --ranks 8",
                                       LARGE " --stack upipe --ranks 8 --checkpoint attn"};
    for (int i = 0; i < UP_COUNT(runs); i++) {
        sqlite3 *db = trace("late", runs[i]);
        for (int layer = 1; layer < LAYERS; layer++) {
            char below[64];
            snprintf(below, sizeof below, "%s", name_of(layer - 1, "x"));
            int64_t back = ask(db,
                               "SELECT alloc_seq FROM tensor WHERE rank = 0 AND space = 'device'"
                               " AND name = '%q' AND phase = 'backward'",
                               below);
            static const char stage[] =
                "SELECT count(*) FROM tensor WHERE rank = 0 AND space = 'device'"
                " AND name GLOB '%q' AND" ALIVE_AT("%lld");
            // o, do, lse and q of the last of four stages; of the others only what K and V share.
            assert_int_equal(ask(db, stage, name_of(layer, "attn.[dlo]*.3"), back), 3);
            assert_int_equal(ask(db, stage, name_of(layer, "attn.q.3"), back), 1);
            assert_int_equal(ask(db, stage, name_of(layer, "attn.[loq]*.[012]"), back), 0);
            assert_int_equal(ask(db, stage, name_of(layer, "attn.do.[012]"), back), 0);
            // Its attention has not run backward yet: the copy has all of that time.
            assert_int_equal(ask(db,
                                 "SELECT count(*) FROM tensor WHERE rank = 0 AND layer = %d"
                                 " AND name GLOB '*attn.backward.scratch' AND alloc_seq > %lld"
                                 " AND phase = 'backward'",
                                 layer, back),
                             1);
        }
        sqlite3_close(db);
    }
}

// What is sent to the host is what is kept there, once; it comes back as often as it is used.
static void test_copies(void **state)
{
    (void)state;
    static const char *const runs[] = {TINY " --cp 2 --upipe 2 --offload host --checkpoint block",
                                       TINY " --cp 2 --upipe 2 --offload host --checkpoint attn",
                                       LARGE " --stack upipe --ranks 8 --checkpoint attn"};
    for (int i = 0; i < UP_COUNT(runs); i++) {
        sqlite3 *db = trace("copies", runs[i]);
        static const char copied[] = "SELECT sum(bytes) FROM copy WHERE rank = 0 AND stream = '%s'"
                                     " AND from_space = '%s' AND to_space = '%s'";
        static const char held[] =
            "SELECT total(bytes) FROM tensor WHERE rank = 0 AND space = 'host'"
            " AND layer IS NOT NULL AND name GLOB '%s'";
        char whole[256];
        snprintf(whole, sizeof whole, "SELECT CAST((%s) AS INTEGER)", held);
        int64_t all = ask(db, whole, "*"), o = ask(db, whole, "*attn.o.*");
        int64_t tokens =
            ask(db, "SELECT bytes FROM tensor WHERE rank = 0 AND name = 'data.tokens'");
        assert_true(all > 0);
        assert_int_equal(ask(db, copied, "copy-out", "device", "host"), all);
        // Attention's output comes back for the residual and for its own backward.
        assert_int_equal(ask(db, copied, "copy-in", "host", "device"), all + o + tokens);
        sqlite3_close(db);
    }
}

/* --- Host optimizer
 * ------------------------------------------------------------------------------- */

static void test_host_optimizer(void **state)
{
    (void)state;
    static const struct {
        const char *words, *dtype;
        int64_t dtype_bytes;
    } runs[] = {{TINY " --dp 2 --fsdp on --optimizer host", "fp32", 4},
                {LARGE " --stack upipe --ranks 2 --optimizer host", "bf16", 2}};
    for (int i = 0; i < UP_COUNT(runs); i++) {
        sqlite3 *db = trace("optimizer", runs[i].words);
        static const char state_sql[] =
            "SELECT sum(bytes) FROM tensor WHERE rank = 0 AND step IS NULL"
            " AND space = '%s' AND category = '%s' AND dtype = '%s'";
        static const char elsewhere[] =
            "SELECT count(*) FROM tensor WHERE rank = 0 AND step IS NULL"
            " AND category = '%s' AND (space <> '%s' OR dtype <> '%s')";
        int64_t weights = ask(db, state_sql, "host", "parameter", "fp32");
        assert_int_equal(ask(db, state_sql, "host", "optimizer", "fp32"), 2 * weights);
        assert_int_equal(ask(db, elsewhere, "optimizer", "host", "fp32"), 0);
        assert_int_equal(ask(db, state_sql, "device", "gradient", "fp32"), weights);
        assert_int_equal(ask(db, elsewhere, "gradient", "device", "fp32"), 0);
        assert_int_equal(ask(db, state_sql, "device", "parameter", runs[i].dtype),
                         weights / 4 * runs[i].dtype_bytes);
        // One piece is updated while the next comes and the one before goes.
        assert_int_equal(most_at_once(db, "*update.weights"), 2);
        assert_int_equal(most_at_once(db, "*update.m"), 2);
        assert_int_equal(most_at_once(db, "*update.v"), 2);
        // All of it goes through the device once: there and back.
        static const char copied[] =
            "SELECT sum(c.bytes) FROM copy c JOIN range r ON r.id = c.range_id"
            " WHERE c.rank = 0 AND r.phase = 'optimizer' AND c.stream = '%s'";
        assert_int_equal(ask(db, copied, "copy-in"), 3 * weights);
        assert_int_equal(ask(db, copied, "copy-out"), 3 * weights);
        sqlite3_close(db);
    }
}

/* --- Accumulation
 * --------------------------------------------------------------------------------- */

static void test_accumulation(void **state)
{
    (void)state;
    static const char *const shapes[] = {TINY,
                                         TINY " --checkpoint attn --offload host --cp 2 --upipe 4",
                                         LARGE " --stack upipe --ranks 8"};
    static const char host_peak[] =
        "SELECT max((SELECT sum(bytes) FROM tensor WHERE rank = 0 AND space = 'host'"
        " AND" ALIVE_AT("t.alloc_seq") ")) FROM tensor t WHERE rank = 0 AND space = 'host'";
    static const char staging[] =
        "SELECT bytes FROM tensor WHERE rank = 0 AND space = 'host' AND name = 'data.staging'";
    for (int i = 0; i < UP_COUNT(shapes); i++) {
        char words[256];
        sqlite3 *one = trace("one", shapes[i]);
        snprintf(words, sizeof words, "%s --accum 3", shapes[i]);
        sqlite3 *three = trace("three", words);
        assert_int_equal(
            ask(three, "SELECT count(*) FROM range WHERE rank = 0 AND name = 'forward'"), 3);
        assert_int_equal(ask(three, "SELECT peak_bytes FROM step WHERE rank = 0"),
                         ask(one, "SELECT peak_bytes FROM step WHERE rank = 0"));
        // The tokens of all micro-batches wait on the host.
        int64_t more = ask(three, staging) - ask(one, staging);
        assert_int_equal(more, 2 * ask(one, staging));
        assert_int_equal(ask(three, host_peak), ask(one, host_peak) + more);
        sqlite3_close(one);
        sqlite3_close(three);
    }
}

/* --------------------------------------------------------------------------------------------------
 */

static int enter(void **state)
{
    (void)state;
    char data[64];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    file_write_text(data, 1000);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp),
        cmocka_unit_test(test_fsdp_collectives),
        cmocka_unit_test(test_tile_loss),
        cmocka_unit_test(test_upipe),
        cmocka_unit_test(test_upipe_shares_kv),
        cmocka_unit_test(test_exchanges),
        cmocka_unit_test(test_attention_runs),
        cmocka_unit_test(test_what_blocks_keep),
        cmocka_unit_test(test_offload),
        cmocka_unit_test(test_prefetch_is_late),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_host_optimizer),
        cmocka_unit_test(test_accumulation),
    };
    return cmocka_run_group_tests_name("trace", tests, enter, leave);
}
