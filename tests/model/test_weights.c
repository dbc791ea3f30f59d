/* Hugging Face folders: the four fixtures, and folders made here that have one thing wrong or odd.
 */
#include "tests/model/scratch.h"
#include "model/model.h"

#include <jansson.h>
#include <math.h>

/* The tensors of a model, as they will be stored. Values are whole numbers up to 100, exact in
 * every dtype, and depend on the tensor's seed alone. */
struct tensor {
    char name[96];
    const char *dtype;
    int dims, seed;
    int64_t rows, cols;
};

struct bundle {
    struct tensor tensors[64];
    int count;
};

static struct up_model small_model(bool tied)
{
    return (struct up_model){.name = "small",
                             .family = "llama",
                             .layers = 2,
                             .hidden = 4,
                             .ff = 6,
                             .heads = 2,
                             .kv_heads = 1,
                             .head_dim = 4,
                             .vocab = 8,
                             .tied = tied,
                             .norm_epsilon = 1e-5,
                             .rope_theta = 10000,
                             .init_std = 0.02};
}

static struct tensor *add(struct bundle *bundle, const char *name, const char *dtype, int dims,
                          int64_t rows, int64_t cols)
{
    struct tensor *tensor = &bundle->tensors[bundle->count];
    *tensor = (struct tensor){"", dtype, dims, bundle->count++, rows, cols};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    return tensor;
}

static struct bundle bundle_of(const struct up_model *model, const char *dtype)
{
    struct bundle bundle = {0};
    for (int i = 0; i < up_model_param_count(model); i++) {
        struct up_param param = up_model_param(model, i);
        add(&bundle, param.hf_name, dtype, param.dims, param.rows, param.cols);
    }
    return bundle;
}

static struct tensor *named(struct bundle *bundle, const char *name)
{
    for (int i = 0; i < bundle->count; i++)
        if (!strcmp(bundle->tensors[i].name, name)) return &bundle->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void drop(struct bundle *bundle, const char *name)
{
    struct tensor *dropped = named(bundle, name);
    *dropped = bundle->tensors[--bundle->count];
}

static float value_at(int seed, int64_t i)
{
    return (float)((seed * 7 + i) % 201 - 100);
}

static int width(const char *dtype)
{
    return !strcmp(dtype, "F32") ? 4 : 2;
}

static uint16_t encode_half(float value)
{
    int exponent;
    float fraction = frexpf(fabsf(value), &exponent); // [0.5, 1)
    uint16_t sign = value < 0 ? 0x8000 : 0;
    if (value == 0) return sign;
    return (uint16_t)(sign | (exponent + 14) << 10 | (int)(fraction * 2048 - 1024));
}

static void encode(const char *dtype, float value, char *out)
{
    uint32_t bits;
    uint16_t half = encode_half(value);
    memcpy(&bits, &value, sizeof bits);
    if (!strcmp(dtype, "F32"))
        memcpy(out, &bits, 4);
    else if (!strcmp(dtype, "BF16"))
        memcpy(out, (char *)&bits + 2, 2);
    else
        memcpy(out, &half, 2);
}

// Tensors [first, last) of the bundle as one file; `metadata` is JSON, or NULL for none.
static void write_tensors(const struct bundle *bundle, int first, int last, const char *folder,
                          const char *file, const char *metadata)
{
    enum { MOST = 1 << 16 };
    char *data = malloc(MOST);
    int64_t bytes = 0;
    json_t *header = json_object();
    if (metadata) json_object_set_new(header, "__metadata__", json_loads(metadata, 0, NULL));
    for (int i = first; i < last; i++) {
        const struct tensor *tensor = &bundle->tensors[i];
        int64_t begin = bytes, elements = tensor->rows * tensor->cols;
        for (int64_t j = 0; j < elements; j++, bytes += width(tensor->dtype)) {
            assert_true(bytes + 4 <= MOST);
            encode(tensor->dtype, value_at(tensor->seed, j), data + bytes);
        }
        json_t *shape = tensor->dims == 1
                            ? json_pack("[I]", (json_int_t)tensor->rows)
                            : json_pack("[II]", (json_int_t)tensor->rows, (json_int_t)tensor->cols);
        json_object_set_new(header, tensor->name,
                            json_pack("{s:s, s:o, s:[II]}", "dtype", tensor->dtype, "shape", shape,
                                      "data_offsets", (json_int_t)begin, (json_int_t)bytes));
    }
    char *text = json_dumps(header, JSON_COMPACT);
    scratch_write_tensors(folder, file, text, data, (size_t)bytes);
    free(text);
    free(data);
    json_decref(header);
}

static void write_single(const struct bundle *bundle, const char *folder)
{
    write_tensors(bundle, 0, bundle->count, folder, "model.safetensors", NULL);
}

// Two shards, the second with the last tensor alone, and their index (the caller's to free).
static json_t *write_shards(const struct bundle *bundle, const char *folder)
{
    int split = bundle->count - 1;
    json_t *map = json_object();
    write_tensors(bundle, 0, split, folder, "a.safetensors", NULL);
    write_tensors(bundle, split, bundle->count, folder, "b.safetensors", NULL);
    for (int i = 0; i < bundle->count; i++)
        json_object_set_new(map, bundle->tensors[i].name,
                            json_string(i < split ? "a.safetensors" : "b.safetensors"));
    return json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 1, "weight_map", map);
}

static void write_index(const char *folder, json_t *index)
{
    char *text = json_dumps(index, 0);
    scratch_write_text(folder, "model.safetensors.index.json", text);
    free(text);
}

// Every element of every parameter is the one that the bundle has under that name.
static void assert_reads(struct up_weights *weights, const struct up_model *model,
                         struct bundle *bundle)
{
    struct up_error err = {0};
    for (int i = 0; i < up_model_param_count(model); i++) {
        struct up_param param = up_model_param(model, i);
        struct tensor *tensor = named(bundle, param.hf_name);
        int64_t count = param.rows * param.cols;
        float out[64];
        assert_int_equal(up_weights_read(weights, &param, 0, count, out, &err), UP_OK);
        for (int64_t j = 0; j < count; j++) assert_true(out[j] == value_at(tensor->seed, j));
        assert_int_equal(up_weights_read(weights, &param, count - 3, 2, out, &err), UP_OK);
        assert_true(out[1] == value_at(tensor->seed, count - 2));
    }
}

static struct up_weights *opened(const char *folder, const struct up_model *model)
{
    struct up_weights *weights;
    struct up_error err = {0};
    if (up_weights_open(folder, model, &weights, &err) != UP_OK) fail_msg("%s", err.text);
    return weights;
}

static void refused(const char *folder, const struct up_model *model, const char *culprit)
{
    struct up_weights *weights;
    struct up_error err = {0};
    assert_refused(up_weights_open(folder, model, &weights, &err), &err, culprit);
    assert_non_null(strstr(err.text, folder));
    assert_null(weights);
}

static void one_file_of_each_dtype(void **state)
{
    static const struct {
        const char *stored, *name;
    } dtypes[] = {{"F32", "fp32"}, {"BF16", "bf16"}, {"F16", "fp16"}};
    struct up_model model = small_model(false);
    for (int i = 0; i < UP_COUNT(dtypes); i++) {
        struct bundle bundle = bundle_of(&model, dtypes[i].stored);
        write_single(&bundle, *state);
        struct up_weights *weights = opened(*state, &model);
        assert_string_equal(up_weights_dtype(weights), dtypes[i].name);
        assert_int_equal(up_weights_bytes(weights),
                         up_model_parameters(&model) * width(dtypes[i].stored));
        assert_null(up_weights_note(weights));
        assert_reads(weights, &model, &bundle);
        up_weights_close(weights);
    }
}

static void mixed_dtypes_are_counted_as_stored(void **state)
{
    struct up_model model = small_model(false);
    struct bundle bundle = bundle_of(&model, "BF16");
    named(&bundle, "model.norm.weight")->dtype = "F32";
    write_single(&bundle, *state);
    struct up_weights *weights = opened(*state, &model);
    assert_string_equal(up_weights_dtype(weights), "mixed");
    assert_int_equal(up_weights_bytes(weights), up_model_parameters(&model) * 2 + 4 * 2);
    assert_reads(weights, &model, &bundle);
    up_weights_close(weights);
}

static void fewer_layers_than_the_folder(void **state)
{
    struct up_model model = small_model(false);
    struct bundle bundle = bundle_of(&model, "F32");
    write_single(&bundle, *state);
    model.layers = 1;
    struct up_weights *weights = opened(*state, &model);
    assert_int_equal(up_weights_bytes(weights), up_model_parameters(&model) * 4);
    assert_null(up_weights_note(weights));
    assert_reads(weights, &model, &bundle);
    up_weights_close(weights);
    model.layers = 3;
    refused(*state, &model, "lacks 9 of the model's tensors, the first is model.layers.2.input");
}

// B1, B2: a tied head may be absent, and is ignored when present.
static void tied_heads(void **state)
{
    struct up_model model = small_model(true);
    struct bundle bundle = bundle_of(&model, "F32");
    write_single(&bundle, *state);
    struct up_weights *weights = opened(*state, &model);
    assert_null(up_weights_note(weights));
    assert_reads(weights, &model, &bundle);
    up_weights_close(weights);

    add(&bundle, "lm_head.weight", "F32", 2, 8, 4);
    write_single(&bundle, *state);
    weights = opened(*state, &model);
    assert_non_null(strstr(up_weights_note(weights), "ignored lm_head.weight"));
    assert_int_equal(up_weights_bytes(weights), up_model_parameters(&model) * 4);
    assert_reads(weights, &model, &bundle);
    up_weights_close(weights);
}

// B3: not tied, and no head.
static void an_untied_head_must_be_there(void **state)
{
    struct up_model model = small_model(false);
    struct bundle bundle = bundle_of(&model, "F32");
    drop(&bundle, "lm_head.weight");
    write_single(&bundle, *state);
    refused(*state, &model, "tie_word_embeddings false");
    // B5: its twin is on record, which explains, but does not make the config right.
    write_tensors(&bundle, 0, bundle.count, *state, "model.safetensors",
                  "{\"lm_head.weight\": \"model.embed_tokens.weight\"}");
    refused(*state, &model, "__metadata__ names as its twin model.embed_tokens.weight");
}

// B4: the pair stored under the head's name. Tied, that is the embedding; untied, it is not.
static void an_embedding_stored_as_the_head(void **state)
{
    struct up_model model = small_model(true);
    struct bundle bundle = bundle_of(&model, "F32");
    struct tensor *embed = named(&bundle, "model.embed_tokens.weight");
    snprintf(embed->name, sizeof embed->name, "lm_head.weight");
    write_single(&bundle, *state);
    struct up_weights *weights = opened(*state, &model);
    assert_non_null(strstr(up_weights_note(weights), "stored as lm_head.weight"));
    snprintf(embed->name, sizeof embed->name, "model.embed_tokens.weight");
    assert_reads(weights, &model, &bundle);
    up_weights_close(weights);

    model.tied = false;
    refused(*state, &model, "lacks 1 of the model's tensors, the first is model.embed_tokens");
}

// B11 and the like: RoPE tables without a word, what might matter with one.
static void unexpected_tensors_are_ignored(void **state)
{
    struct up_model model = small_model(false);
    struct bundle bundle = bundle_of(&model, "F32");
    add(&bundle, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 1, 2, 1);
    write_single(&bundle, *state);
    struct up_weights *weights = opened(*state, &model);
    assert_null(up_weights_note(weights));
    up_weights_close(weights);

    add(&bundle, "model.layers.0.self_attn.q_proj.bias", "F32", 1, 8, 1);
    add(&bundle, "model.layers.1.self_attn.q_norm.weight", "F32", 1, 4, 1);
    add(&bundle, "model.layers.x.mlp.up_proj.weight", "F32", 1, 4, 1);
    write_single(&bundle, *state);
    weights = opened(*state, &model);
    assert_non_null(strstr(up_weights_note(weights), "ignored 3 tensors that a llama model"));
    assert_non_null(strstr(up_weights_note(weights), "self_attn.q_proj.bias"));
    assert_reads(weights, &model, &bundle);
    up_weights_close(weights);
}

// B20 (uneven shards), B14 (files beside the indexed ones), B15 (a tensor in two shards).
static void shards_are_read_as_the_index_says(void **state)
{
    struct up_model model = small_model(false);
    struct bundle bundle = bundle_of(&model, "BF16");
    json_t *index = write_shards(&bundle, *state);
    write_index(*state, index);
    struct up_weights *weights = opened(*state, &model);
    assert_string_equal(up_weights_dtype(weights), "bf16");
    assert_reads(weights, &model, &bundle);
    up_weights_close(weights);

    struct bundle other = bundle;
    for (int i = 0; i < other.count; i++) other.tensors[i].seed += 50;
    write_tensors(&other, 0, other.count, *state, "consolidated.safetensors", NULL);
    write_tensors(&other, 0, other.count, *state, "b.safetensors", NULL);
    int last = bundle.count - 1;
    bundle.tensors[last].seed += 50; // the only one that the index gives to b
    weights = opened(*state, &model);
    assert_reads(weights, &model, &bundle);
    up_weights_close(weights);
    json_decref(index);
}

static void a_single_file_goes_before_an_index(void **state)
{
    struct up_model model = small_model(false);
    struct bundle bundle = bundle_of(&model, "F32");
    write_single(&bundle, *state);
    scratch_write_text(*state, "model.safetensors.index.json", "not even JSON");
    struct up_weights *weights = opened(*state, &model);
    assert_reads(weights, &model, &bundle);
    up_weights_close(weights);
}

// B12: shards that the index names and the disk lacks.
static void missing_shards_are_named(void **state)
{
    struct up_model model = small_model(false);
    struct bundle bundle = bundle_of(&model, "F32");
    json_t *index = write_shards(&bundle, *state);
    write_index(*state, index);
    char path[300];
    scratch_path(path, *state, "b.safetensors");
    assert_int_equal(unlink(path), 0);
    refused(*state, &model, "names 1 of 2 shards that are not there: b.safetensors");
    scratch_path(path, *state, "a.safetensors");
    assert_int_equal(unlink(path), 0);
    refused(*state, &model, "2 of 2 shards that are not there: a.safetensors, b.safetensors");
    json_t *map = json_object_get(index, "weight_map");
    for (int i = 0; i < 9; i++) {
        char shard[32];
        snprintf(shard, sizeof shard, "model-%d.safetensors", i);
        json_object_set_new(map, bundle.tensors[i].name, json_string(shard));
    }
    write_index(*state, index);
    refused(*state, &model, "names 11 of 11 shards");
    json_decref(index);
}

// B13, B16: an index that knows other tensors than its shards have.
static void stale_indexes_are_refused(void **state)
{
    struct up_model model = small_model(false);
    struct bundle bundle = bundle_of(&model, "F32");
    json_t *index = write_shards(&bundle, *state), *map = json_object_get(index, "weight_map");
    json_object_set_new(map, "mtp.fc.weight", json_string("b.safetensors"));
    write_index(*state, index);
    refused(*state, &model, "maps mtp.fc.weight to b.safetensors, which has no such tensor");
    json_object_del(map, "mtp.fc.weight");

    json_object_set_new(map, "lm_head.weight", json_string("a.safetensors"));
    write_index(*state, index);
    refused(*state, &model, "maps lm_head.weight to a.safetensors");

    json_object_set_new(map, "lm_head.weight", json_string("b.safetensors"));
    json_object_del(map, "model.norm.weight");
    write_index(*state, index);
    refused(*state, &model, "index.json: stale: does not list model.norm.weight, which");
    json_decref(index);
}

static void broken_indexes_are_refused(void **state)
{
    static const struct {
        const char *text, *culprit;
    } broken[] = {
        {"", "JSON object"},
        {"{", "JSON object"},
        {"{}", "weight_map: expected an object, found nothing"},
        {"{\"weight_map\": []}", "weight_map: expected an object, found an array"},
        {"{\"weight_map\": {}}", "lacks 21 of the model's tensors"},
        {"{\"weight_map\": {\"x\": 3}}", "x: expected the name of a file beside it, found 3"},
        {"{\"weight_map\": {\"x\": \"../a.safetensors\"}}", "a file beside it"},
        {"{\"weight_map\": {\"x\": \"/etc/passwd\"}}", "a file beside it"},
        {"{\"weight_map\": {\"x\": \"..\"}}", "a file beside it"},
        {"{\"weight_map\": {\"x\": \"\"}}", "a file beside it"},
        {"{\"weight_map\": {\"x\": \"a\\nb\"}}", "a file beside it, found \"a?b\""},
        {"{\"weight_map\": {\"x\": \"a\", \"x\": \"b\"}}", "duplicate"},
    };
    struct up_model model = small_model(false);
    for (int i = 0; i < UP_COUNT(broken); i++) {
        scratch_write_text(*state, "model.safetensors.index.json", broken[i].text);
        refused(*state, &model, broken[i].culprit);
    }
}

// B17, within a shard: a short one is found before anything is read.
static void short_shards_are_refused(void **state)
{
    struct up_model model = small_model(false);
    struct bundle bundle = bundle_of(&model, "F32");
    json_t *index = write_shards(&bundle, *state);
    write_index(*state, index);
    char path[300];
    scratch_path(path, *state, "b.safetensors");
    assert_int_equal(truncate(path, 100), 0);
    refused(*state, &model, "b.safetensors: cut short");
    json_decref(index);
}

static void folders_without_weights_are_refused(void **state)
{
    struct up_model model = small_model(false);
    refused(*state, &model, "expected model.safetensors or model.safetensors.index.json");
    scratch_write_text(*state, "pytorch_model.bin", "x");
    refused(*state, &model, "expected model.safetensors or model.safetensors.index.json");
}

static void tensors_that_do_not_fit_are_refused(void **state)
{
    struct up_model model = small_model(false);
    struct bundle good = bundle_of(&model, "F32"), bundle = good;
    struct tensor *q = named(&bundle, "model.layers.1.self_attn.q_proj.weight");
    q->rows = 4;
    q->cols = 8;
    write_single(&bundle, *state);
    refused(*state, &model, "q_proj.weight: expected shape [8, 4] by config.json, found [4, 8]");

    bundle = good;
    named(&bundle, "model.norm.weight")->dims = 2;
    write_single(&bundle, *state);
    refused(*state, &model, "model.norm.weight: expected shape [4] by config.json, found [4, 1]");

    bundle = good;
    named(&bundle, "lm_head.weight")->dtype = "I16";
    write_single(&bundle, *state);
    refused(*state, &model, "lm_head.weight: expected a dtype of F32, BF16 or F16, found I16");

    bundle = good;
    bundle.count = 0;
    write_single(&bundle, *state);
    refused(*state, &model,
            "lacks 21 of the model's tensors, the first is model.embed_tokens.weight");
}

static void names_without_the_prefix_are_explained(void **state)
{
    struct up_model model = small_model(false);
    struct bundle bundle = bundle_of(&model, "F32");
    for (int i = 0; i < bundle.count; i++) {
        char *name = bundle.tensors[i].name;
        if (!strncmp(name, "model.", 6)) memmove(name, name + 6, strlen(name + 6) + 1);
    }
    write_single(&bundle, *state);
    refused(*state, &model, "expected tensors named as in model.embed_tokens.weight, found embed_");
}

/* The fixtures, and their gradients, whose names and shapes are the parameters' too. */
static void fixtures_open_and_read(void **state)
{
    static const struct {
        const char *name;
        int64_t parameters;
        bool tied, qk_norm, llama3;
    } fixtures[] = {
        {"tiny-llama3", 162240, false, false, false},
        {"tiny-llama31-scaled-rope", 73968, true, false, true},
        {"tiny-qwen3", 93816, false, true, false},
        {"small-llama3-d128", 491904, false, false, false},
    };
    (void)state;
    for (int i = 0; i < UP_COUNT(fixtures); i++) {
        struct up_model model;
        struct up_error err = {0};
        char folder[LONG_PATH];
        print_to(folder, sizeof folder, "%s/%s", UP_TEST_DATA, fixtures[i].name);
        assert_int_equal(up_model_read_config(folder, &model, &err), UP_OK);
        assert_string_equal(model.name, fixtures[i].name);
        assert_int_equal(up_model_parameters(&model), fixtures[i].parameters);
        assert_int_equal(model.tied, fixtures[i].tied);
        assert_int_equal(model.qk_norm, fixtures[i].qk_norm);
        assert_int_equal(model.rope_llama3, fixtures[i].llama3);
        assert_true(model.rope_theta == (model.qk_norm ? 1e6 : 5e5));

        struct up_weights *weights = opened(folder, &model);
        assert_string_equal(up_weights_dtype(weights), "fp32");
        assert_int_equal(up_weights_bytes(weights), 4 * fixtures[i].parameters);
        assert_null(up_weights_note(weights));
        for (int j = 0; j < up_model_param_count(&model); j++) {
            struct up_param param = up_model_param(&model, j);
            int64_t count = param.rows * param.cols;
            float *out = malloc((size_t)count * sizeof *out);
            double squares = 0;
            assert_int_equal(up_weights_read(weights, &param, 0, count, out, &err), UP_OK);
            for (int64_t k = 0; k < count; k++) squares += (double)out[k] * out[k];
            double rms = sqrt(squares / (double)count);
            // Matrices were drawn with a small deviation; norms are near 1.
            assert_true(param.dims == 2 ? rms > 1e-3 && rms < 1 : rms > 0.5 && rms < 2);
            free(out);
        }
        up_weights_close(weights);
    }
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, scratch_create, scratch_destroy)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(one_file_of_each_dtype),
        CASE(mixed_dtypes_are_counted_as_stored),
        CASE(fewer_layers_than_the_folder),
        CASE(tied_heads),
        CASE(an_untied_head_must_be_there),
        CASE(an_embedding_stored_as_the_head),
        CASE(unexpected_tensors_are_ignored),
        CASE(shards_are_read_as_the_index_says),
        CASE(a_single_file_goes_before_an_index),
        CASE(missing_shards_are_named),
        CASE(stale_indexes_are_refused),
        CASE(broken_indexes_are_refused),
        CASE(short_shards_are_refused),
        CASE(folders_without_weights_are_refused),
        CASE(tensors_that_do_not_fit_are_refused),
        CASE(names_without_the_prefix_are_explained),
        cmocka_unit_test(fixtures_open_and_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
