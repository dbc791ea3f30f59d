/* Which tensor could be so many bytes: how sizes are read, what comes first, and the cases that
 * people have reported (R01 to R12), each with the bytes that were reported, the technique, and,
 * where a dry run can tell, what dominates next. Where a report counts several copies that a
 * framework makes, one tensor's bytes are tested and the order of techniques, not the total. */
#include "base/base.h"
#include "report/whatis.h"
#include "tests/report/run.h"

#include <jansson.h>
#include <math.h>

#define GIB 1073741824.0

/* --- Sizes -------------------------------------------------------------------------------------
 */

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double bytes, half;
    } rows[] = {
        {"58.15GiB", 58.15 * GIB, 0.005 * GIB},
        {"58.15 GiB", 58.15 * GIB, 0.005 * GIB},
        {"48GiB", 48 * GIB, 0.5 * GIB},
        {"48.0gib", 48 * GIB, 0.05 * GIB},
        {"512MiB", 512 * 1048576.0, 524288},
        {"165GB", 165e9, 0.5e9},
        {"2.42GB", 2.42e9, 0.005e9},
        {"1.5M", 1.5 * 1048576, 0.05 * 1048576},
        {"1234567", 1234567, 0.5},
        {"100 bytes", 100, 0.5},
    };
    for (int i = 0; i < UP_COUNT(rows); i++) {
        struct up_printed_size size;
        if (!up_printed_size_parse(rows[i].text, &size)) fail_msg("%s is refused", rows[i].text);
        assert_true(fabs(size.bytes - rows[i].bytes) < 1e-6 * rows[i].bytes);
        assert_true(fabs(size.high - size.bytes - rows[i].half) < 1e-6 * rows[i].half);
        assert_true(fabs(size.bytes - size.low - rows[i].half) < 1e-6 * rows[i].half);
    }
    static const char *const refused[] = {
        "",  "GiB",      "-1GiB", "1.GiB",      "1.2.3GiB",  "1e3",  "0GiB",
        "0", "58,15GiB", "1PiB",  "9999999TiB", "12 apples", "0x10", "1GiBs"};
    for (int i = 0; i < UP_COUNT(refused); i++) {
        struct up_printed_size size;
        if (up_printed_size_parse(refused[i], &size)) fail_msg("'%s' is taken", refused[i]);
    }
}

/* --- What is found -----------------------------------------------------------------------------
 */

static struct up_whatis_answer ask(const char *preset, const char *size,
                                   struct up_whatis_question question)
{
    struct up_whatis_answer answer;
    struct up_error err = {0};
    assert_true(up_model_preset(preset, &question.model));
    assert_true(up_printed_size_parse(size, &question.size));
    if (!question.act_bytes) question.act_bytes = 2;
    assert_int_equal(up_whatis(&question, &answer, &err), UP_OK);
    return answer;
}

static const struct up_whatis_match *find(const struct up_whatis_answer *answer, const char *id)
{
    for (int i = 0; i < answer->count; i++)
        if (!strcmp(answer->matches[i].id, id)) return &answer->matches[i];
    return NULL;
}

// Each tensor of llama3-8b at 24K tokens of cp 2, by formulas of this test's own: the size as a
// program would print it leads back to it, at 12K local tokens.
static void test_every_tensor_is_found(void **state)
{
    (void)state;
    const double T = 12 * 1024, S = 24 * 1024, P = 8030261248.0, B = 218112000.0;
    const struct {
        const char *id;
        double bytes;
    } rows[] = {
        {"LOGITS_F32", T * 128256 * 4},
        {"LOGITS", T * 128256 * 2},
        {"GATE_UP", T * 28672 * 2},
        {"GATE", T * 14336 * 2},
        {"GATE_F32", T * 14336 * 4},
        {"HIDDEN", T * 4096 * 2},
        {"HIDDEN_F32", T * 4096 * 4},
        {"QUERY", T * 32 * 128 * 2},
        {"QUERY_F32", T * 32 * 128 * 4},
        {"KEY", T * 8 * 128 * 2},
        {"QKV", T * 48 * 128 * 2},
        {"LSE", T * 32 * 4},
        {"ROPE", T * 128 * 4},
        {"LOSSES", T * 4},
        {"IDS", T * 8},
        {"SCORES", S * S * 16 * 2},
        {"SCORES_F32", S * S * 16 * 4},
        {"SCORES_HEAD", S * S * 4},
        {"MASK", S * S * 2},
        {"MASK_U8", S * S},
        {"TABLE", 128256 * 4096.0 * 2},
        {"TABLE_F32", 128256 * 4096.0 * 4},
        {"BLOCK", B * 2},
        {"BLOCK_F32", B * 4},
        {"MATRIX", 14336 * 4096.0 * 2},
        {"CHECKPOINTS", T * 32 * 4096 * 2},
        {"ATTN_KEPT", T * 32 * 8192 * 2},
        {"ACTIVATIONS", T * 32 * (4 * 4096 + 2048 + 28672) * 2},
        {"WEIGHTS", P * 2 / 8},
        {"WEIGHTS_F32", P * 4 / 8},
        {"MOMENTS", P * 8 / 8},
        {"MASTER", P * 12 / 8},
        {"STATE", P * 16 / 8},
        {"STATE_18", P * 18 / 8},
    };
    for (int i = 0; i < UP_COUNT(rows); i++) {
        char size[32];
        snprintf(size, sizeof size, "%.0f", rows[i].bytes);
        struct up_whatis_answer answer = ask(
            "llama3-8b", size, (struct up_whatis_question){.seq = 24 * 1024, .cp = 2, .ranks = 8});
        const struct up_whatis_match *match = find(&answer, rows[i].id);
        if (!match || !match->within || fabs(match->bytes - rows[i].bytes) > 1)
            fail_msg("%s of %s bytes: %s", rows[i].id, size, match ? "other bytes" : "not found");
        if (fabs(answer.matches[0].bytes - rows[i].bytes) > 1)
            fail_msg("%s: %s of other bytes comes first", rows[i].id, answer.matches[0].id);
        assert_true(answer.explained);
        up_whatis_release(&answer);
    }
}

// Without --seq the tokens are solved for, and a round number is taken where one fits the digits.
static void test_tokens_are_solved(void **state)
{
    (void)state;
    static const struct {
        double tokens;
        const char *size;
        int64_t batch;
        bool is_round;
    } rows[] = {
        {131072, "62.62GiB", 1, true},    // 128K fp32 logits
        {100000, "47.78GiB", 1, true},    // a thousand's multiple
        {4 * 24576, "46.97GiB", 4, true}, // four rows of 24K
        {77777, "37.16GiB", 1, false},
    };
    for (int i = 0; i < UP_COUNT(rows); i++) {
        struct up_whatis_answer answer =
            ask("llama3-8b", rows[i].size, (struct up_whatis_question){.batch = rows[i].batch});
        const struct up_whatis_match *match = find(&answer, "LOGITS_F32");
        assert_non_null(match);
        assert_int_equal(match->round, rows[i].is_round);
        assert_true(match->within);
        if (fabs((double)match->tokens / rows[i].tokens - 1) > (rows[i].is_round ? 0 : 2e-4))
            fail_msg("%s: %lld tokens, expected %.0f", rows[i].size, (long long)match->tokens,
                     rows[i].tokens);
        assert_string_equal(answer.matches[0].id, "LOGITS_F32");
        up_whatis_release(&answer);
    }
}

static void test_dtype_and_tp(void **state)
{
    (void)state;
    struct up_whatis_question question = {.seq = 1000, .act_bytes = 4, .tp = 2};
    struct up_whatis_answer answer = ask("llama3-8b", "28672000", question); // 1000 x 14336 / 2 x 4
    assert_string_equal(answer.matches[0].id, "GATE");
    assert_true(answer.matches[0].within);
    up_whatis_release(&answer);
}

// Tokens or bytes beyond all reason: no overflow, no match.
static void test_extremes(void **state)
{
    (void)state;
    struct up_whatis_question question = {
        .seq = INT64_C(1) << 40, .batch = 1 << 20, .ranks = 1 << 20, .cp = 1, .tp = 1};
    struct up_whatis_answer answer = ask("llama3-70b", "1000000TiB", question);
    for (int i = 0; i < answer.count; i++) assert_true(isfinite(answer.matches[i].bytes));
    up_whatis_release(&answer);
    answer = ask("tiny", "1", (struct up_whatis_question){.tp = 1 << 20});
    for (int i = 0; i < answer.count; i++) assert_true(isfinite(answer.matches[i].odds));
    up_whatis_release(&answer);
}

/* --- As a user ---------------------------------------------------------------------------------
 */

// Folders with the shapes of the reports' models, as the Llama that they are to the memory.
static void make_model(const char *folder, int hidden, int layers, int ff, int heads, int kv,
                       int vocab, bool tied)
{
    char command[128], path[128];
    snprintf(command, sizeof command, "mkdir -p %s", folder);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"model_type\": \"llama\", \"hidden_size\": %d, \"num_hidden_layers\": %d,"
            " \"intermediate_size\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d,"
            " \"head_dim\": %d, \"vocab_size\": %d, \"rms_norm_eps\": 1e-5, \"rope_theta\": 1e6,"
            " \"hidden_act\": \"silu\", \"max_position_embeddings\": 131072,"
            " \"tie_word_embeddings\": %s}",
            hidden, layers, ff, heads, kv, heads == 32 && hidden == 2048 ? 64 : 128, vocab,
            tied ? "true" : "false");
    fclose(file);
}

static int enter(void **state)
{
    *state = folder_enter();
    make_model("qwen2.5-14b", 5120, 48, 13824, 40, 8, 152064, false);
    make_model("qwen2.5-32b", 5120, 64, 27648, 40, 8, 152064, false);
    make_model("vocab248k", 4096, 32, 12288, 32, 8, 248320, false);
    make_model("gemma-like-31b", 5376, 60, 21504, 32, 16, 262144, false);
    make_model("smollm2-1.7b", 2048, 24, 8192, 32, 32, 49152, true);
    return 0;
}

static const char *text_at(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
}

// What comes first has this id, these tokens (0: any) within 1%, this share, and this option.
static void expect_first(const char *words, int status, const char *id, double tokens,
                         int64_t share, const char *option)
{
    char command[256];
    snprintf(command, sizeof command, "whatis %s --json", words);
    json_t *root = json_of(command, status);
    json_t *row = json_array_get(json_object_get(root, "candidates"), 0);
    double found = json_number_value(json_object_get(row, "tokens_count"));
    double error = json_real_value(json_object_get(row, "error"));
    if (strcmp(text_at(row, "id"), id) != 0)
        fail_msg("%s: %s comes first, expected %s", words, text_at(row, "id"), id);
    if (tokens > 0 && fabs(found / tokens - 1) > 0.01)
        fail_msg("%s: %g tokens, expected %g", words, found, tokens);
    if (fabs(error) > 0.1) fail_msg("%s: %g off", words, error);
    assert_int_equal(json_integer_value(json_object_get(row, "shards")), share);
    if (!strstr(text_at(row, "option"), option))
        fail_msg("%s: '%s' makes it smaller, expected %s", words, text_at(row, "option"), option);
    json_decref(root);
}

/* A dry run's peak: its bytes, its phase, bytes of categories and kinds there, of host memory. */
struct dry {
    double peak, host;
    json_t *root; // of `peak --json`
};

static struct dry dry(const char *words)
{
    char command[LONG_COMMAND];
    print_to(command, sizeof command,
             "'%s/upipe-train' --device dry --steps 1 --trace dry.db %s >log.txt 2>&1",
             UP_TEST_BUILD, words);
    if (system(command) != 0) fail_msg("%s: %s", words, fixture_read("log.txt"));
    struct dry d = {.root = json_of("peak dry.db --limit all --json", 0)};
    d.peak = json_number_value(json_object_get(json_object_get(d.root, "peak"), "peak_bytes"));
    d.host = json_number_value(json_object_get(json_object_get(d.root, "host"), "peak_bytes"));
    return d;
}

static double peak_of(const char *words)
{
    struct dry d = dry(words);
    json_decref(d.root);
    return d.peak;
}

// Bytes in the table `key` of what is called `name`; 0 where it is not there.
static double part(const struct dry *d, const char *key, const char *column, const char *name)
{
    size_t index;
    json_t *row;
    json_array_foreach(
        json_object_get(d->root, key), index,
        row) if (!strcmp(text_at(row, column),
                         name)) return json_number_value(json_object_get(row, "bytes"));
    return 0;
}

static const char *dominant(const struct dry *d)
{
    return text_at(json_array_get(json_object_get(d->root, "categories"), 0), "category");
}

static void expect_near(double found, double expected, double within)
{
    if (!(fabs(found / expected - 1) <= within))
        fail_msg("%.4g, expected %.4g within %g%%", found, expected, 100 * within);
}

/* --- Cases -------------------------------------------------------------------------------------
 */

// Sizes worked out from the models: the length that people choose more often comes first, and what
// context parallelism by gathering makes is known.
static void test_chosen_lengths(void **state)
{
    (void)state;
    // 14336 is 7 x 2048, so that 112K tokens of block inputs are as many bytes.
    expect_first("28.00GiB --model llama3-8b", 0, "GATE", 1 << 20, 1, "--tile-mlp");
    expect_first("3.50GiB --model llama3-8b", 0, "GATE", 131072, 1, "--tile-mlp");
    expect_first("3.50GiB --model llama3-8b --seq 1M --cp 8", 0, "GATE", 131072, 1, "--tile-mlp");
    expect_first("62.63GiB --model llama3-8b", 0, "LOGITS_F32", 131072, 1, "--tile-loss");
    expect_first("45.77GiB --model qwen3-32b", 0, "MASTER", 0, 8, "--optimizer host");
    expect_first("512.00MiB --model llama3-8b --seq 128K", 0, "KEY_VALUE", 131072, 1, "--upipe");
    expect_first("256.00MiB --model llama3-8b --seq 128K --cp 8", 0, "KEY_GATHERED", 16384, 1,
                 "exchange of heads");
    expect_first("512.00MiB --model llama3-8b --seq 128K --cp 8", 0, "KEY_VALUE_GATHERED", 16384, 1,
                 "exchange of heads");
}

// Without cp nothing is gathered over it.
static void test_nothing_gathered_without_cp(void **state)
{
    (void)state;
    struct up_whatis_answer answer =
        ask("llama3-8b", "256.00MiB", (struct up_whatis_question){.seq = 131072, .cp = 1});
    assert_null(find(&answer, "KEY_GATHERED"));
    assert_non_null(find(&answer, "KEY"));
    up_whatis_release(&answer);
}

// 48 GiB of fp32 logits: 8 sequences of 10601 tokens. Then the backward's activations, which a
// smaller micro-batch halves.
static void test_r01(void **state)
{
    (void)state;
    expect_first("48GiB --model qwen3-4b --batch 8", 0, "LOGITS_F32", 84805, 1, "--tile-loss");
    expect_first("48GiB --model qwen3-4b", 0, "LOGITS_F32", 84805, 1, "--tile-loss");
    static const char common[] =
        "--model qwen3-4b --ranks 8 --fsdp on --checkpoint block --seq 10601";
    char words[256];
    snprintf(words, sizeof words, "%s --batch 8", common);
    struct dry now = dry(words);
    assert_string_equal(dominant(&now), "loss"); // upipe-train's own are in bf16
    expect_near(part(&now, "kinds", "kind", "loss.logits"), 24 * GIB, 0.1);
    snprintf(words, sizeof words, "%s --batch 8 --tile-loss 1024", common);
    struct dry next = dry(words);
    assert_string_equal(dominant(&next), "checkpoint");
    assert_string_equal(text_at(json_object_get(next.root, "peak"), "phase"), "backward");
    snprintf(words, sizeof words, "%s --batch 4 --tile-loss 1024", common);
    assert_true(peak_of(words) < 0.7 * next.peak);
    json_decref(now.root);
    json_decref(next.root);
}

// 58.15 GiB where 9216 tokens were meant: 22 times as many, and said so; nothing is that large at
// 9216.
static void test_r02(void **state)
{
    (void)state;
    expect_first("58.15GiB --model qwen2.5-14b --tp 2", 0, "LOGITS_F32", 205302, 1, "--tile-loss");
    expect_first("29.39 GiB --model qwen2.5-14b --tp 2", 0, "LOGITS_F32", 103763, 1, "--tile-loss");
    json_t *root = json_of("whatis 58.15GiB --model qwen2.5-14b --tp 2 --seq 9216 --json", 1);
    json_t *row = json_array_get(json_object_get(root, "candidates"), 0);
    assert_true(json_is_false(json_object_get(root, "explained")));
    assert_string_equal(text_at(row, "id"), "LOGITS_F32");
    expect_near(json_real_value(json_object_get(row, "times_seq")), 22.28, 0.001);
    json_decref(root);
    expect_first("2.61GiB --model qwen2.5-14b --tp 2 --seq 9216", 0, "LOGITS_F32", 9216, 1,
                 "--tile-loss");
}

// A vocabulary's share of 62080 at 256K tokens: 4 bytes a logit, and 2 before the upcast.
static void test_r03(void **state)
{
    (void)state;
    expect_first("60.62GiB --model vocab248k --tp 4", 0, "LOGITS_F32", 262144, 1, "--tile-loss");
    expect_first("30.31GiB --model vocab248k --tp 4 --seq 256K", 0, "LOGITS", 262144, 1,
                 "--tile-loss");
    struct dry full = dry("--model vocab248k --ranks 8 --fsdp on --checkpoint block --seq 32K");
    struct dry tiled =
        dry("--model vocab248k --ranks 8 --fsdp on --checkpoint block --seq 32K --tile-loss 1024");
    double logits = 32768.0 * 248320 * 2;
    expect_near(part(&full, "kinds", "kind", "loss.logits"), logits, 0.1);
    assert_true(tiled.peak < full.peak - 0.5 * logits);
    json_decref(full.root);
    json_decref(tiled.root);
}

// 32K local tokens in each row: logits of 15.66 GiB in fp32, 7.83 in bf16, whatever cp is.
static void test_r04(void **state)
{
    (void)state;
    expect_first("15.66GiB --model llama3.1-8b", 0, "LOGITS_F32", 32768, 1, "--tile-loss");
    expect_first("7.83GiB --model llama3.1-8b --seq 256K --cp 8", 0, "LOGITS", 32768, 1,
                 "--tile-loss");
    double peaks[4], tiled, tiled_mlp;
    for (int i = 0; i < 4; i += takes_few() ? 3 : 1) {
        char words[256];
        snprintf(words, sizeof words,
                 "--model llama3.1-8b --ranks 8 --cp %d --fsdp on --checkpoint block --seq %dK",
                 1 << i, 32 << i);
        peaks[i] = peak_of(words);
        expect_near(peaks[i], peaks[0], 0.01);
    }
    tiled = peak_of("--model llama3.1-8b --ranks 8 --cp 8 --fsdp on --checkpoint block --seq 256K"
                    " --tile-loss 1024");
    tiled_mlp = peak_of("--model llama3.1-8b --ranks 8 --cp 8 --fsdp on --checkpoint block"
                        " --seq 256K --tile-mlp 4096");
    assert_true(tiled < peaks[0] - 5 * GIB); // the loss is what stops it,
    assert_true(tiled_mlp == peaks[0]);      // not the MLP
}

// 165 GB of block inputs a rank; cp 4 leaves a quarter, offloading sends that to host memory.
static void test_r05(void **state)
{
    (void)state;
    expect_first("165GB --model gemma-like-31b", 0, "CHECKPOINTS", 256000, 1, "--cp");
    expect_first("41.3GB --model gemma-like-31b --seq 256000 --cp 4", 0, "CHECKPOINTS", 64000, 1,
                 "--offload host");
    static const char common[] =
        "--model gemma-like-31b --ranks 16 --fsdp on --checkpoint block --seq 256000";
    char words[256];
    struct dry d[3];
    static const char *const more[] = {"--cp 1", "--cp 4", "--cp 4 --offload host"};
    for (int i = 0; i < 3; i++) {
        snprintf(words, sizeof words, "%s %s", common, more[i]);
        d[i] = dry(words);
    }
    assert_string_equal(dominant(&d[0]), "checkpoint");
    expect_near(part(&d[0], "kinds", "kind", "layers.*.x"), 165.15e9, 0.1);
    expect_near(part(&d[1], "kinds", "kind", "layers.*.x"), 165.15e9 / 4, 0.1);
    expect_near(d[2].host, 165.15e9 / 4, 0.1);
    assert_true(part(&d[2], "kinds", "kind", "layers.*.x") < 0.1 * 165.15e9 / 4);
    for (int i = 0; i < 3; i++) json_decref(d[i].root);
}

// Offloading block inputs saved 4.4 and 8.8 GiB at 16K and 32K, 2.41 GB of host memory at 8K; the
// loss is where the peak is.
static void test_r06(void **state)
{
    (void)state;
    expect_first("2.42GB --model qwen3-8b", 0, "CHECKPOINTS", 8192, 1, "--offload host");
    static const struct {
        const char *seq;
        double saved;
    } rows[] = {{"16K", 4.4 * GIB}, {"32K", 8.8 * GIB}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        char words[256];
        snprintf(words, sizeof words, "--model qwen3-8b --checkpoint block --seq %s", rows[i].seq);
        struct dry kept = dry(words);
        snprintf(words, sizeof words, "--model qwen3-8b --checkpoint block --offload host --seq %s",
                 rows[i].seq);
        expect_near(kept.peak - peak_of(words), rows[i].saved, 0.05);
        const char *range = text_at(json_object_get(kept.root, "peak"), "range");
        if (!strstr(range, "loss")) fail_msg("the peak is in %s", range);
        json_decref(kept.root);
    }
    struct dry offloaded = dry("--model qwen3-8b --checkpoint block --offload host --seq 8K");
    expect_near(offloaded.host, 2.41e9, 0.05);
    json_decref(offloaded.root);
}

// 18 bytes a parameter over 8 ranks, where sequence techniques are of no use.
static void test_r07(void **state)
{
    (void)state;
    expect_first("16.83GiB --model llama3-8b --ranks 8 --seq 1024", 0, "STATE_18", 0, 8,
                 "--optimizer host");
    expect_first("16.83GiB --model llama3-8b", 0, "STATE_18", 0, 8, "--optimizer host");
    struct dry now = dry("--model llama3-8b --ranks 8 --fsdp on --checkpoint block --seq 1024");
    double states = part(&now, "categories", "category", "optimizer") +
                    part(&now, "categories", "category", "gradient") +
                    part(&now, "categories", "category", "parameter");
    assert_string_equal(dominant(&now), "optimizer");
    expect_near(states, 16 * 8.03e9 / 8, 0.1);
    double tiled = peak_of("--model llama3-8b --ranks 8 --fsdp on --checkpoint block --seq 1024"
                           " --tile-loss 256 --tile-mlp 256 --offload host");
    double host = peak_of("--model llama3-8b --ranks 8 --fsdp on --checkpoint block --seq 1024"
                          " --optimizer host");
    assert_true(tiled > 0.9 * now.peak);
    assert_true(host < 0.7 * now.peak);
    json_decref(now.root);
}

// The moments are there from the first step on; activations dominate until they are checkpointed,
// then the optimizer's state does.
static void test_r08(void **state)
{
    (void)state;
    struct dry now = dry("--model smollm2-1.7b --seq 16K");
    struct dry next = dry("--model smollm2-1.7b --seq 16K --checkpoint block");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(now.root, "peak"), "step")),
                     0);
    expect_near(part(&now, "categories", "category", "optimizer"), 8 * 1.711e9, 0.1);
    double kept = part(&now, "categories", "category", "mlp") +
                  part(&now, "categories", "category", "attention");
    assert_true(kept > part(&now, "categories", "category", "optimizer"));
    assert_true(next.peak < 0.7 * now.peak);
    assert_string_equal(dominant(&next), "optimizer");
    // 24 layers of 2048: input, middle, queries, keys, values, output, and two of the MLP (8192).
    expect_first("21.0GiB --model smollm2-1.7b --seq 16K", 0, "ACTIVATIONS", 16384, 1,
                 "--checkpoint block");
    json_decref(now.root);
    json_decref(next.root);
}

static void test_r09(void **state)
{
    (void)state;
    expect_first("590GB --model qwen2.5-32b", 0, "STATE_18", 0, 1, "--optimizer host");
    // What waits in host memory here are 12 of them: the GPU's own part is not the problem.
    struct dry d = dry("--model qwen2.5-32b --seq 1K --checkpoint block --optimizer host");
    expect_near(d.host, 12 * 32.76e9, 0.1);
    json_decref(d.root);
}

// What NCCL takes is nobody's tensor.
static void test_r10(void **state)
{
    (void)state;
    json_t *root = json_of("whatis 3.28GB --model llama3-8b --seq 8K --ranks 8 --json", 1);
    assert_true(json_is_false(json_object_get(root, "explained")));
    const char *note = json_string_value(json_array_get(json_object_get(root, "notes"), 0));
    assert_non_null(strstr(note, "UNEXPLAINED"));
    assert_non_null(strstr(note, "NCCL"));
    json_decref(root);
}

// u is 3 GiB; each rung helps, in the published order.
static void test_r11(void **state)
{
    (void)state;
    expect_first("3.00GiB --model llama3-8b --seq 3M --cp 8", 0, "HIDDEN", 393216, 1, "--cp");
    static const char *const rungs[] = {"none",    "fsdp",  "ulysses", "checkpoint",
                                        "offload", "tiled", "upipe"};
    double before = INFINITY;
    for (int i = takes_few() ? 3 : 0; i < UP_COUNT(rungs); i += takes_few() ? 3 : 1) {
        char words[256];
        snprintf(words, sizeof words, "--model llama3-8b --seq 3M --ranks 8 --stack %s", rungs[i]);
        double peak = peak_of(words);
        if (!(peak < before)) fail_msg("%s does not help", rungs[i]);
        before = peak;
    }
}

// 40 query heads: here ranks need only divide those, KV heads are shared; what is refused is told
// with the nearest that are not.
static void test_r12(void **state)
{
    (void)state;
    static const int legal[] = {1, 2, 4, 5, 8, 10, 20, 40}, illegal[] = {3, 16, 32};
    // Ranks that a KV head is on: the cost of sharing.
    static const double copies[] = {1, 1, 1, 1.5, 1, 2, 3, 5};
    static const char *const nearest[] = {"2 and 4", "10 and 20", "20 and 40"};
    char words[LONG_COMMAND];
    for (int i = takes_few() ? 6 : 0; i < UP_COUNT(legal); i++) {
        snprintf(words, sizeof words,
                 "--model qwen2.5-14b --layers 2 --seq 64K --cp %d --fsdp on --checkpoint block",
                 legal[i]);
        struct dry d = dry(words);
        const json_t *run = json_object_get(d.root, "run");
        assert_true(json_number_value(json_object_get(run, "kv_copies")) == copies[i]);
        json_decref(d.root);
    }
    struct outcome outcome = report("", "dry.db");
    assert_non_null(strstr(outcome.out, "40 ranks, cp 40, dp 1, each KV head on 5 ranks\n"));
    outcome_release(&outcome);
    for (int i = 0; i < UP_COUNT(illegal); i++) {
        print_to(words, sizeof words,
                 "'%s/upipe-train' --device dry --model qwen2.5-14b --seq 64K --cp %d 2>err.txt",
                 UP_TEST_BUILD, illegal[i]);
        assert_int_equal(WEXITSTATUS(system(words)), 2);
        char *said = fixture_read("err.txt");
        assert_non_null(strstr(said, nearest[i]));
        free(said);
    }
}

static void test_mask(void **state)
{
    (void)state;
    expect_first("29.1GiB --model llama3-8b --seq 125000", 0, "MASK", 125000, 1, "position ids");
}

static void test_text(void **state)
{
    (void)state;
    struct outcome outcome = report(
        "LC_ALL=C.UTF-8", "whatis 58.15 GiB --model qwen2.5-14b --tp 2 --seq 9216 --limit 4");
    expect_status(&outcome, 1);
    golden_check("whatis", outcome.out);
    outcome_release(&outcome);
}

static void test_refusals(void **state)
{
    (void)state;
    assert_int_equal(system("mkdir moe && echo '{\"model_type\": \"mixtral\"}' > moe/config.json"),
                     0);
    expect_refusal("whatis", "expected a size");
    expect_refusal("whatis 58.15GiB", "--model");
    expect_refusal("whatis 58.15furlongs --model tiny", "58.15furlongs");
    expect_refusal("whatis 58.15 --model tiny", "not '58.15'");
    expect_refusal("whatis 1GiB 2GiB 3GiB --model tiny", "expected a size");
    expect_refusal("whatis 1GiB --model gpt2", "gpt2");
    expect_refusal("whatis 1GiB --model moe", "moe");
    expect_refusal("whatis 1GiB --model tiny --layers 99", "--layers 99");
    expect_refusal("whatis 1GiB --model tiny --dtype fp8", "--dtype");
    expect_refusal("whatis 1GiB --model tiny --cp 0", "--cp");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(test_every_tensor_is_found),
                                       cmocka_unit_test(test_tokens_are_solved),
                                       cmocka_unit_test(test_dtype_and_tp),
                                       cmocka_unit_test(test_nothing_gathered_without_cp),
                                       cmocka_unit_test(test_extremes),
                                       TEST(test_chosen_lengths),
                                       TEST(test_r01),
                                       TEST(test_r02),
                                       TEST(test_r03),
                                       TEST(test_r04),
                                       TEST(test_r05),
                                       TEST(test_r06),
                                       TEST(test_r07),
                                       TEST(test_r08),
                                       TEST(test_r09),
                                       TEST(test_r10),
                                       TEST(test_r11),
                                       TEST(test_r12),
                                       TEST(test_mask),
                                       TEST(test_text),
                                       TEST(test_refusals)};
    return cmocka_run_group_tests_name("whatis", tests, NULL, NULL);
}
