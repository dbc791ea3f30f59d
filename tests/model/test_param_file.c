/* Files of all parameters, config.json, and whether two models are the same: what is written is
 * read back by the readers that take Hugging Face's own folders. */
#include "model/hf_config.h"
#include "model/param_file.h"
#include "model/safetensors_impl.h"
#include "tests/model/scratch.h"

#include <sys/stat.h>

static const char *const weights_only[] = {"", NULL};
static const char *const both_moments[] = {"m.", "v.", NULL};

#define must(call)                                                                                 \
    do {                                                                                           \
        if ((call) != UP_OK) fail_msg("%s", err.text);                                             \
    } while (0)

// A small model of each kind: norms on queries and keys, tied, scaled RoPE, or none of it.
static struct up_model small_model(bool qwen3, bool tied, bool scaled)
{
    struct up_model model = {.layers = 2,
                             .hidden = 12,
                             .ff = 20,
                             .heads = 6,
                             .kv_heads = 2,
                             .vocab = 31,
                             .head_dim = 4,
                             .max_positions = 512,
                             .qk_norm = qwen3,
                             .tied = tied,
                             .norm_epsilon = 1e-5,
                             .rope_theta = 500000,
                             .init_std = 0.02};
    snprintf(model.family, sizeof model.family, "%s", qwen3 ? "qwen3" : "llama");
    model.rope_llama3 = scaled;
    if (scaled) {
        model.rope_factor = 8.1;
        model.rope_low_freq = 1;
        model.rope_high_freq = 4;
        model.rope_original_length = 64;
    }
    return model;
}

static float element(int set, int index, int64_t i)
{
    return (float)(set * 1000000 + index * 10000 + i) + 0.25f;
}

// Elements [first, first + count) of a parameter, as element() has them.
static void write_piece(struct up_param_writer *writer, int set, int index, int64_t first,
                        int64_t count)
{
    struct up_error err = {0};
    float values[2048];
    assert_true(count <= UP_COUNT(values));
    for (int64_t i = 0; i < count; i++) values[i] = element(set, index, first + i);
    must(up_param_writer_write(writer, set, index, first, count, values, &err));
}

// Two writers, as two ranks have them: one writes the first third of each parameter, one the rest.
static void write_file(const char *path, const struct up_model *model, const char *const *sets)
{
    struct up_error err = {0};
    struct up_param_writer *writer[2];
    must(up_param_writer_open(path, model, sets, true, &writer[0], &err));
    must(up_param_writer_open(path, model, sets, false, &writer[1], &err));
    for (int set = 0; sets[set]; set++)
        for (int i = up_model_param_count(model) - 1; i >= 0; i--) {
            struct up_param param = up_model_param(model, i);
            int64_t count = param.rows * param.cols, third = count / 3;
            write_piece(writer[1], set, i, third, count - third);
            write_piece(writer[0], set, i, 0, third);
        }
    for (int i = 0; i < 2; i++) {
        must(up_param_writer_sync(writer[i], &err));
        up_param_writer_close(writer[i]);
    }
}

static void expect_elements(const float *values, int set, int index, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (values[i] != element(set, index, first + i))
            fail_msg("set %d, parameter %d, element %lld", set, index, (long long)(first + i));
}

static void write_config(const char *folder, const struct up_model *model)
{
    char *text = up_model_config_text(model);
    assert_non_null(text);
    scratch_write_text(folder, "config.json", text);
    free(text);
}

static void remove_file(const char *folder, const char *name)
{
    char path[300];
    scratch_path(path, folder, name);
    assert_int_equal(unlink(path), 0);
}

static void check_weights(const char *folder, const struct up_model *model)
{
    struct up_error err = {0};
    struct up_model read;
    struct up_weights *weights;
    float values[2048];
    must(up_model_read_config(folder, &read, &err));
    must(up_weights_open(folder, &read, &weights, &err));
    assert_null(up_weights_note(weights)); // nothing too much in it
    assert_string_equal(up_weights_dtype(weights), "fp32");
    assert_int_equal(up_weights_bytes(weights), up_model_parameters(model) * 4);
    for (int i = 0; i < up_model_param_count(model); i++) {
        struct up_param param = up_model_param(model, i);
        int64_t count = param.rows * param.cols;
        must(up_weights_read(weights, &param, 0, count, values, &err));
        expect_elements(values, 0, i, 0, count);
    }
    up_weights_close(weights);
}

static void check_moments(const char *path, const struct up_model *model)
{
    struct up_error err = {0};
    struct up_param_reader *reader;
    float values[2048];
    must(up_param_reader_open(path, model, both_moments, &reader, &err));
    for (int set = 0; both_moments[set]; set++)
        for (int i = 0; i < up_model_param_count(model); i++) {
            struct up_param param = up_model_param(model, i);
            int64_t first = param.rows * param.cols / 2, count = param.rows * param.cols - first;
            must(up_param_reader_read(reader, both_moments[set], &param, first, count, values,
                                      &err));
            expect_elements(values, set, i, first, count);
        }
    up_param_reader_close(reader);
}

// What Hugging Face's loader insists on, and what it likes.
static void check_file(const char *path, bool tied)
{
    struct up_error err = {0};
    struct up_safetensors *file;
    struct up_stored stored;
    uint64_t length = 0;
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    assert_int_equal(fread(&length, 1, sizeof length, stream), sizeof length);
    assert_int_equal(fgetc(stream), '{');
    fclose(stream);
    assert_int_equal(length % 8, 0);
    must(up_safetensors_open(path, &file, &err));
    assert_string_equal(up_safetensors_metadata(file, "format"), "pt");
    assert_int_equal(up_safetensors_find(file, "lm_head.weight", &stored), !tied);
    assert_true(up_safetensors_find(file, "model.layers.1.self_attn.q_proj.weight", &stored));
    assert_string_equal(stored.dtype, "F32");
    up_safetensors_close(file);
}

static void test_round_trip(void **state)
{
    char weights[300], moments[300];
    scratch_path(weights, *state, "model.safetensors");
    scratch_path(moments, *state, "optimizer.safetensors");
    for (int kind = 0; kind < 4; kind++) {
        struct up_model model = small_model(kind & 1, kind & 2, kind & 1);
        write_config(*state, &model);
        write_file(weights, &model, weights_only);
        write_file(moments, &model, both_moments);
        check_weights(*state, &model);
        check_moments(moments, &model);
        check_file(weights, model.tied);
        remove_file(*state, "model.safetensors");
        remove_file(*state, "optimizer.safetensors");
    }
}

// What was never written is there, as zeros: the file has its size from the start.
static void test_created_whole(void **state)
{
    struct up_error err = {0};
    struct up_model model = small_model(false, false, false);
    struct up_param_writer *writer, *again;
    struct up_param_reader *reader;
    struct up_param param = up_model_param(&model, 3);
    float value = 1;
    char path[300];
    scratch_path(path, *state, "m.safetensors");
    must(up_param_writer_open(path, &model, both_moments, true, &writer, &err));
    must(up_param_reader_open(path, &model, both_moments, &reader, &err));
    must(up_param_reader_read(reader, "v.", &param, 5, 1, &value, &err));
    assert_true(value == 0);
    up_param_reader_close(reader);
    // A file that is there is never written over.
    assert_int_equal(up_param_writer_open(path, &model, both_moments, true, &again, &err),
                     UP_FAILED);
    assert_non_null(strstr(err.text, path));
    up_param_writer_close(writer);
}

static void test_reader_refuses(void **state)
{
    struct up_error err = {0};
    struct up_model model = small_model(false, false, false), wider = model, deeper = model;
    struct up_param_reader *reader;
    char path[300];
    wider.ff = 24;
    deeper.layers = 3;
    scratch_path(path, *state, "file.safetensors");
    write_file(path, &model, both_moments);
    assert_refused(
        up_param_reader_open(path, &wider, both_moments, &reader, &err), &err,
        "m.model.layers.0.mlp.gate_proj.weight: expected F32 [24, 12], found F32 [20, 12]");
    assert_refused(up_param_reader_open(path, &deeper, both_moments, &reader, &err), &err,
                   "m.model.layers.2.input_layernorm.weight: expected F32 [12], found nothing");
    assert_refused(up_param_reader_open(path, &model, weights_only, &reader, &err), &err, path);
    assert_int_equal(truncate(path, 4000), 0);
    assert_refused(up_param_reader_open(path, &model, both_moments, &reader, &err), &err,
                   "cut short");
    remove_file(*state, "file.safetensors");
    assert_refused(up_param_reader_open(path, &model, both_moments, &reader, &err), &err, path);

    static const char half[] =
        "{\"m.norm\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}";
    scratch_write_tensors(*state, "file.safetensors", half, "ab", 2);
    assert_refused(up_param_reader_open(path, &model, both_moments, &reader, &err), &err,
                   "m.model.embed_tokens.weight: expected F32 [31, 12], found nothing");
}

static void expect_same(const struct up_model *model, const char *folder)
{
    struct up_error err = {0};
    struct up_model read;
    char difference[UP_MODEL_DIFFERENCE] = "";
    write_config(folder, model);
    must(up_model_read_config(folder, &read, &err));
    if (!up_model_same(model, &read, difference)) fail_msg("%s: %s", model->name, difference);
    assert_true(up_model_hash(model) == up_model_hash(&read));
    assert_string_equal(model->family, read.family);
    assert_int_equal(model->max_positions, read.max_positions);
    assert_true(model->init_std == read.init_std);
}

static void test_config_reads_back(void **state)
{
    char names[1024];
    snprintf(names, sizeof names, "%s", up_model_preset_names());
    for (char *rest = names, *name; (name = strtok_r(rest, ", ", &rest));) {
        struct up_model model;
        assert_true(up_model_preset(name, &model));
        expect_same(&model, *state);
    }
    static const char *const fixtures[] = {"tiny-llama3", "tiny-llama31-scaled-rope", "tiny-qwen3",
                                           "small-llama3-d128"};
    for (int i = 0; i < UP_COUNT(fixtures); i++) {
        struct up_error err = {0};
        struct up_model model;
        char folder[LONG_PATH];
        print_to(folder, sizeof folder, "%s/%s", UP_TEST_DATA, fixtures[i]);
        must(up_model_read_config(folder, &model, &err));
        expect_same(&model, *state);
    }
    struct up_model odd = small_model(false, true, true);
    odd.rope_original_length = 64.5;
    odd.rope_theta = 1.0 / 3;
    odd.max_positions = 0;
    expect_same(&odd, *state);
}

static void expect_type(const json_t *root, const char *name, json_type type)
{
    const json_t *value = json_object_get(root, name);
    if (!value || json_typeof(value) != type)
        fail_msg("%s is not of JSON type %d", name, (int)type);
}

// Transformers warns or fails where a number is whole that should be real, or the other way round.
static void test_config_types(void **state)
{
    (void)state;
    struct up_model model = small_model(true, true, true);
    char *text = up_model_config_text(&model);
    json_t *root = json_loads(text, 0, NULL);
    json_t *scaling = json_object_get(root, "rope_scaling");
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(root, "architectures"), 0)),
        "Qwen3ForCausalLM");
    assert_string_equal(json_string_value(json_object_get(root, "torch_dtype")), "float32");
    expect_type(root, "tie_word_embeddings", JSON_TRUE);
    expect_type(root, "use_sliding_window", JSON_FALSE);
    expect_type(root, "rope_theta", JSON_REAL);
    expect_type(json_object_get(root, "rope_parameters"), "rope_theta", JSON_REAL);
    expect_type(scaling, "factor", JSON_REAL);
    expect_type(scaling, "low_freq_factor", JSON_REAL);
    expect_type(scaling, "high_freq_factor", JSON_REAL);
    expect_type(scaling, "original_max_position_embeddings", JSON_INTEGER);
    assert_null(json_object_get(scaling, "rope_theta")); // older ones know no such key there
    free(text);
    json_decref(root);

    model = small_model(false, false, false);
    text = up_model_config_text(&model);
    root = json_loads(text, 0, NULL);
    expect_type(root, "rope_scaling", JSON_NULL);
    expect_type(root, "mlp_bias", JSON_FALSE);
    free(text);
    json_decref(root);
}

static void test_difference(void **state)
{
    (void)state;
    char text[UP_MODEL_DIFFERENCE];
    const struct up_model model = small_model(false, false, true);
    struct up_model other = model;
    snprintf(other.name, sizeof other.name, "another");
    other.max_positions = 7;
    other.init_std = 1;
    assert_true(up_model_same(&model, &other, text));
    assert_true(up_model_hash(&model) == up_model_hash(&other));

#define DIFFERS(member, value, says)                                                               \
    do {                                                                                           \
        other = model;                                                                             \
        other.member = (value);                                                                    \
        assert_false(up_model_same(&model, &other, text));                                         \
        assert_string_equal(text, says);                                                           \
        assert_true(up_model_hash(&model) != up_model_hash(&other));                               \
    } while (0)
    DIFFERS(layers, 3, "num_hidden_layers: expected 2, found 3");
    DIFFERS(hidden, 16, "hidden_size: expected 12, found 16");
    DIFFERS(ff, 24, "intermediate_size: expected 20, found 24");
    DIFFERS(heads, 4, "num_attention_heads: expected 6, found 4");
    DIFFERS(kv_heads, 6, "num_key_value_heads: expected 2, found 6");
    DIFFERS(head_dim, 8, "head_dim: expected 4, found 8");
    DIFFERS(vocab, 32, "vocab_size: expected 31, found 32");
    DIFFERS(qk_norm, true, "query and key norm: expected 0, found 1");
    DIFFERS(tied, true, "tie_word_embeddings: expected 0, found 1");
    DIFFERS(norm_epsilon, 0.5, "rms_norm_eps: expected 1.0000000000000001e-05, found 0.5");
    DIFFERS(rope_theta, 1, "rope_theta: expected 500000, found 1");
    DIFFERS(rope_llama3, false, "llama3 RoPE scaling: expected 1, found 0");
    DIFFERS(rope_factor, 8, "rope factor: expected 8.0999999999999996, found 8");
    DIFFERS(rope_low_freq, 2, "low_freq_factor: expected 1, found 2");
    DIFFERS(rope_high_freq, 5, "high_freq_factor: expected 4, found 5");
    DIFFERS(rope_original_length, 8, "original_max_position_embeddings: expected 64, found 8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, scratch_create, scratch_destroy),
        cmocka_unit_test_setup_teardown(test_created_whole, scratch_create, scratch_destroy),
        cmocka_unit_test_setup_teardown(test_reader_refuses, scratch_create, scratch_destroy),
        cmocka_unit_test_setup_teardown(test_config_reads_back, scratch_create, scratch_destroy),
        cmocka_unit_test(test_config_types),
        cmocka_unit_test(test_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
