/* config.json: what is read from it, and every way it can be wrong. Each case is a sound config
 * with members replaced; a refusal must name the field. */
#include "tests/model/scratch.h"
#include "model/model.h"

#include <jansson.h>
#include <sys/stat.h>

static const char llama[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 64,"
    " \"intermediate_size\": 96, \"num_attention_heads\": 8, \"num_key_value_heads\": 4,"
    " \"head_dim\": 16, \"vocab_size\": 256, \"max_position_embeddings\": 512,"
    " \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0, \"tie_word_embeddings\": true}";

// Writes the sound config with the members of `changes` (a JSON object) set, or taken out by "-".
static void write_config(const char *folder, const char *changes)
{
    json_error_t error;
    json_t *root = json_loads(llama, 0, &error), *patch = json_loads(changes, 0, &error);
    if (!patch) fail_msg("%s: %s", changes, error.text);
    const char *name;
    json_t *value;
    json_object_foreach(patch, name, value)
    {
        if (json_is_string(value) && !strcmp(json_string_value(value), "-"))
            json_object_del(root, name);
        else
            json_object_set(root, name, value);
    }
    char *text = json_dumps(root, 0);
    scratch_write_text(folder, "config.json", text);
    free(text);
    json_decref(patch);
    json_decref(root);
}

static struct up_model accepted(const char *folder, const char *changes)
{
    struct up_model model;
    struct up_error err = {0};
    write_config(folder, changes);
    if (up_model_read_config(folder, &model, &err) != UP_OK) fail_msg("%s: %s", changes, err.text);
    return model;
}

static void refused(const char *folder, const char *changes, const char *named)
{
    struct up_model model;
    struct up_error err = {0};
    write_config(folder, changes);
    assert_refused(up_model_read_config(folder, &model, &err), &err, named);
    assert_non_null(strstr(err.text, "config.json"));
}

static void fields_are_read(void **state)
{
    struct up_model model = accepted(*state, "{}");
    assert_string_equal(model.family, "llama");
    assert_string_equal(model.name, strrchr(*state, '/') + 1);
    assert_int_equal(model.layers, 2);
    assert_int_equal(model.hidden, 64);
    assert_int_equal(model.ff, 96);
    assert_int_equal(model.heads, 8);
    assert_int_equal(model.kv_heads, 4);
    assert_int_equal(model.head_dim, 16);
    assert_int_equal(model.vocab, 256);
    assert_int_equal(model.max_positions, 512);
    assert_true(model.tied);
    assert_true(model.norm_epsilon == 1e-5 && model.rope_theta == 500000);
    assert_true(model.init_std == 0.02);
    assert_false(model.qk_norm);
    assert_true(accepted(*state, "{\"model_type\": \"qwen3\"}").qk_norm);
}

static void absent_fields_have_defaults(void **state)
{
    assert_int_equal(accepted(*state, "{\"head_dim\": \"-\"}").head_dim, 8);
    assert_int_equal(accepted(*state, "{\"head_dim\": null}").head_dim, 8);
    assert_int_equal(accepted(*state, "{\"num_key_value_heads\": \"-\"}").kv_heads, 8);
    assert_false(accepted(*state, "{\"tie_word_embeddings\": \"-\"}").tied);
    assert_true(accepted(*state, "{\"rms_norm_eps\": \"-\"}").norm_epsilon == 1e-6);
    assert_int_equal(accepted(*state, "{\"max_position_embeddings\": \"-\"}").max_positions, 0);
    assert_true(accepted(*state, "{\"rope_theta\": \"-\"}").rope_theta == 10000);
}

#define LLAMA3                                                                                     \
    "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4.0,"                            \
    " \"original_max_position_embeddings\": 8192"

static void rope_is_read_in_all_spellings(void **state)
{
    static const char *const scaled[] = {
        "{\"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}}",
        "{\"rope_scaling\": {\"type\": \"llama3\", " LLAMA3 "}}",
        "{\"rope_scaling\": {\"type\": \"llama3\", \"rope_type\": \"llama3\", " LLAMA3 "}}",
        "{\"rope_theta\": \"-\", \"rope_parameters\":"
        " {\"rope_type\": \"llama3\", \"rope_theta\": 500000, " LLAMA3 "}}",
        "{\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 5e5, " LLAMA3 "}}",
        "{\"rope_parameters\": {\"rope_type\": \"llama3\", " LLAMA3 "},"
        " \"rope_scaling\": {\"type\": \"llama3\", " LLAMA3 "}}",
    };
    for (int i = 0; i < UP_COUNT(scaled); i++) {
        struct up_model model = accepted(*state, scaled[i]);
        assert_true(model.rope_llama3 && model.rope_theta == 500000);
        assert_true(model.rope_factor == 8 && model.rope_original_length == 8192);
        assert_true(model.rope_low_freq == 1 && model.rope_high_freq == 4);
    }
    static const char *const plain[] = {
        "{\"rope_scaling\": null}",
        "{\"rope_scaling\": {\"type\": \"default\"}}",
        "{\"rope_theta\": \"-\", \"rope_parameters\": {\"rope_theta\": 500000}}",
        ("{\"rope_theta\": \"-\", \"rope_parameters\":"
         " {\"rope_type\": \"default\", \"rope_theta\": 500000}}"),
    };
    for (int i = 0; i < UP_COUNT(plain); i++) {
        struct up_model model = accepted(*state, plain[i]);
        assert_true(!model.rope_llama3 && model.rope_theta == 500000);
    }
}

static void unknown_or_broken_rope_is_refused(void **state)
{
    static const char *const types[] = {"linear", "dynamic", "yarn", "longrope", "su", "mrope"};
    char changes[256], named[64];
    for (int i = 0; i < UP_COUNT(types); i++) {
        snprintf(changes, sizeof changes, "{\"rope_scaling\": {\"type\": \"%s\", \"factor\": 2}}",
                 types[i]);
        snprintf(named, sizeof named, "found \"%s\"", types[i]);
        refused(*state, changes, named);
        snprintf(changes, sizeof changes,
                 "{\"rope_parameters\": {\"rope_type\": \"%s\", \"rope_theta\": 1e4}}", types[i]);
        refused(*state, changes, named);
    }
    refused(*state, "{\"rope_scaling\": \"llama3\"}", "rope_scaling: expected an object");
    refused(*state, "{\"rope_scaling\": {\"factor\": 2}}", "rope_type");
    refused(*state, "{\"rope_scaling\": {\"rope_type\": 3}}", "rope_type");
    refused(*state,
            "{\"rope_scaling\": {\"rope_type\": \"default\", \"type\": \"llama3\", " LLAMA3 "}}",
            "type: expected default");
    refused(*state, "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}",
            "low_freq_factor");
    refused(*state,
            "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4,"
            " \"high_freq_factor\": 4, \"original_max_position_embeddings\": 64}}",
            "high_freq_factor");
    refused(*state, "{\"rope_scaling\": {\"type\": \"llama3\", " LLAMA3 "}, \"rope_theta\": \"-\"}",
            "rope_theta: expected a number above 0, found nothing");
    refused(*state, "{\"rope_theta\": \"-\", \"rope_parameters\": {\"rope_type\": \"default\"}}",
            "rope_theta");
    refused(*state, "{\"rope_parameters\": {\"rope_theta\": 10000}}", "expected one value");
    refused(*state,
            "{\"rope_parameters\": {\"rope_type\": \"default\"},"
            " \"rope_scaling\": {\"type\": \"llama3\", " LLAMA3 "}}",
            "contradict");
    refused(*state, "{\"model_type\": \"qwen3\", \"rope_theta\": \"-\"}", "rope_theta");
    refused(*state, "{\"rope_theta\": 0}", "rope_theta");
    refused(*state, "{\"rope_theta\": \"big\"}", "rope_theta");
    refused(*state, "{\"partial_rotary_factor\": 0.5}", "partial_rotary_factor");
    refused(*state, "{\"rope_scaling\": {\"type\": \"default\", \"partial_rotary_factor\": 0.25}}",
            "partial_rotary_factor");
}

static void nonsense_numbers_are_refused(void **state)
{
    static const char *const fields[] = {
        "num_hidden_layers",   "hidden_size", "intermediate_size", "num_attention_heads",
        "num_key_value_heads", "head_dim",    "vocab_size",        "max_position_embeddings"};
    static const char *const values[] = {"-1",    "2.5", "64.0", "9000000000000000000",
                                         "\"8\"", "[8]", "true"};
    char changes[256];
    for (int i = 0; i < UP_COUNT(fields); i++)
        for (int j = 0; j < UP_COUNT(values); j++) {
            snprintf(changes, sizeof changes, "{\"%s\": %s}", fields[i], values[j]);
            refused(*state, changes, fields[i]);
        }
    for (int i = 0; i < UP_COUNT(fields) - 1; i++) {
        snprintf(changes, sizeof changes, "{\"%s\": 0}", fields[i]);
        refused(*state, changes, fields[i]);
    }
    refused(*state, "{\"rms_norm_eps\": 0}", "rms_norm_eps");
    refused(*state, "{\"rms_norm_eps\": \"1e-5\"}", "rms_norm_eps");
    refused(*state, "{\"initializer_range\": -1}", "initializer_range");
}

static void required_fields_are_required(void **state)
{
    static const char *const fields[] = {"model_type",        "num_hidden_layers",   "hidden_size",
                                         "intermediate_size", "num_attention_heads", "vocab_size"};
    char changes[256];
    for (int i = 0; i < UP_COUNT(fields); i++) {
        snprintf(changes, sizeof changes, "{\"%s\": \"-\"}", fields[i]);
        refused(*state, changes, fields[i]);
    }
}

static void shapes_that_do_not_divide_are_refused(void **state)
{
    refused(*state, "{\"num_key_value_heads\": 3}", "num_key_value_heads (3)");
    refused(*state, "{\"num_key_value_heads\": 16}", "num_key_value_heads (16)");
    refused(*state, "{\"head_dim\": \"-\", \"hidden_size\": 65}", "head_dim");
    refused(*state, "{\"head_dim\": 7}", "head_dim: expected an even number");
    refused(*state, "{\"head_dim\": 514}", "head_dim: expected a whole number from 1 to 512");
}

static void other_architectures_are_refused(void **state)
{
    refused(*state, "{\"model_type\": \"mixtral\"}", "expected llama or qwen3, found \"mixtral\"");
    refused(*state, "{\"model_type\": \"qwen3_moe\"}", "expected llama or qwen3");
    refused(*state, "{\"model_type\": \"\\u001b[31mllama\"}", "?[31mllama");
    refused(*state, "{\"model_type\": 7}", "expected llama or qwen3, found 7");
    refused(*state, "{\"attention_bias\": true}", "attention_bias: expected false");
    refused(*state, "{\"mlp_bias\": true}", "mlp_bias: expected false");
    refused(*state, "{\"attention_bias\": 1}", "attention_bias");
    refused(*state, "{\"hidden_act\": \"gelu\"}", "hidden_act: expected silu");
    refused(*state, "{\"tie_word_embeddings\": \"yes\"}", "tie_word_embeddings");
    refused(*state, "{\"quantization_config\": {\"quant_method\": \"gptq\"}}",
            "quantization_config");
    refused(*state, "{\"vision_config\": {}}", "vision_config");
    accepted(*state, "{\"quantization_config\": null, \"hidden_act\": \"silu\"}");
}

static void sliding_windows_in_use_are_refused(void **state)
{
    refused(*state, "{\"use_sliding_window\": true, \"sliding_window\": 4096}",
            "use_sliding_window");
    refused(*state, "{\"use_sliding_window\": true}", "use_sliding_window");
    refused(*state, "{\"sliding_window\": 4096}", "sliding_window");
    refused(*state, "{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
            "layer_types");
    refused(*state, "{\"layer_types\": \"full_attention\"}", "layer_types");
    accepted(*state, "{\"use_sliding_window\": false, \"sliding_window\": 4096}");
    accepted(*state, "{\"use_sliding_window\": true, \"sliding_window\": null}");
    accepted(*state, "{\"layer_types\": [\"full_attention\", \"full_attention\"]}");
}

static void refuse_file(const char *folder, const char *text, size_t length, const char *named)
{
    struct up_model model;
    struct up_error err = {0};
    scratch_write(folder, "config.json", text, length);
    assert_refused(up_model_read_config(folder, &model, &err), &err, named);
    assert_non_null(strstr(err.text, "config.json"));
}

static void files_that_are_no_config_are_refused(void **state)
{
    const char *folder = *state;
    // Cut at every byte: never sound, never a crash.
    for (size_t length = 0; length + 1 < strlen(llama); length++)
        refuse_file(folder, llama, length, "JSON object");
    refuse_file(folder, "[1]", 3, "found an array");
    refuse_file(folder, "{} {}", 5, "JSON object");
    refuse_file(folder, "\xff\xfe{}", 4, "JSON object");
    refuse_file(folder, "{\"a\": 1, \"a\": 2}", 16, "duplicate");
    refuse_file(folder, "{\"hidden_size\": 1e999}", 22, "overflow");
    refuse_file(folder, "{\"hidden_size\": 99999999999999999999}", 37, "too big integer");

    enum { DEEP = 500000, HUGE_FILE = (1 << 20) + 1 };
    char *text = malloc(HUGE_FILE);
    memset(text, '[', DEEP);
    refuse_file(folder, text, DEEP, "depth");
    memset(text, ' ', HUGE_FILE);
    refuse_file(folder, text, HUGE_FILE, "at most 1.00 MiB");
    free(text);
}

static void a_missing_folder_is_one_line(void **state)
{
    struct up_model model;
    struct up_error err = {0};
    char path[300];
    assert_refused(up_model_read_config("/no/such/folder", &model, &err), &err, "/no/such/folder");
    scratch_path(path, *state, "empty");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_refused(up_model_read_config(path, &model, &err), &err, "empty/config.json");
    scratch_write_text(*state, "file", "{}");
    scratch_path(path, *state, "file");
    assert_refused(up_model_read_config(path, &model, &err), &err, "expected a folder");
    scratch_path(path, *state, "empty/config.json");
    assert_int_equal(mkdir(path, 0700), 0);
    scratch_path(path, *state, "empty");
    assert_refused(up_model_read_config(path, &model, &err), &err, "found a directory");
}

static void names_follow_the_folder(void **state)
{
    struct up_model model;
    struct up_error err = {0};
    char path[300];
    scratch_path(path, *state, "mod\xc3\xa8le");
    assert_int_equal(mkdir(path, 0700), 0);
    scratch_write_text(path, "config.json", llama);
    strcat(path, "/");
    assert_int_equal(up_model_read_config(path, &model, &err), UP_OK);
    assert_string_equal(model.name, "mod\xc3\xa8le");
    scratch_path(path, *state, "bad\xff\n");
    assert_int_equal(mkdir(path, 0700), 0);
    scratch_write_text(path, "config.json", llama);
    assert_int_equal(up_model_read_config(path, &model, &err), UP_OK);
    assert_string_equal(model.name, "bad??");
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, scratch_create, scratch_destroy)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(fields_are_read),
        CASE(absent_fields_have_defaults),
        CASE(rope_is_read_in_all_spellings),
        CASE(unknown_or_broken_rope_is_refused),
        CASE(nonsense_numbers_are_refused),
        CASE(required_fields_are_required),
        CASE(shapes_that_do_not_divide_are_refused),
        CASE(other_architectures_are_refused),
        CASE(sliding_windows_in_use_are_refused),
        CASE(files_that_are_no_config_are_refused),
        CASE(a_missing_folder_is_one_line),
        CASE(names_follow_the_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
