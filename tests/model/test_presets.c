/* Presets against what their publishers say, and the list of parameters. */
#include "tests/model/scratch.h"
#include "model/model.h"

#include <math.h>

// Parameter counts as the publishers' model cards and weight files have them, a tied head once.
static const struct {
    const char *name;
    int64_t parameters;
} published[] = {
    {"llama3.2-1b", 1235814400}, {"llama3.2-3b", 3212749824}, {"llama3-8b", 8030261248},
    {"llama3.1-8b", 8030261248}, {"llama3-70b", 70553706496}, {"qwen3-0.6b", 596049920},
    {"qwen3-1.7b", 1720574976},  {"qwen3-4b", 4022468096},    {"qwen3-8b", 8190735360},
    {"qwen3-14b", 14768307200},  {"qwen3-32b", 32762123264},
};

static void counts_are_the_published_ones(void **state)
{
    (void)state;
    for (int i = 0; i < UP_COUNT(published); i++) {
        struct up_model model;
        assert_true(up_model_preset(published[i].name, &model));
        assert_string_equal(model.name, published[i].name);
        assert_int_equal(up_model_parameters(&model), published[i].parameters);
    }
}

static void every_preset_passes_the_check(void **state)
{
    (void)state;
    struct up_error err = {0};
    char *names = strdup(up_model_preset_names()), *rest = names;
    int count = 0;
    for (char *name; (name = strsep(&rest, ",")); count++) {
        struct up_model model;
        assert_true(up_model_preset(name + (*name == ' '), &model));
        assert_int_equal(up_model_check(&model, model.name, &err), UP_OK);
    }
    assert_int_equal(count, UP_COUNT(published) + 1);
    free(names);
    struct up_model model;
    assert_false(up_model_preset("gpt-2", &model));
}

static void tiny_is_what_the_demo_needs(void **state)
{
    (void)state;
    struct up_model model;
    assert_true(up_model_preset("tiny", &model));
    assert_int_equal(model.vocab, 256);
    assert_int_equal(model.heads, 8);
    assert_int_equal(model.kv_heads, 4);
    assert_false(model.rope_llama3);
}

static void families_differ_where_they_should(void **state)
{
    (void)state;
    struct up_model llama, qwen;
    assert_true(up_model_preset("llama3.1-8b", &llama));
    assert_true(up_model_preset("qwen3-32b", &qwen));
    assert_false(llama.qk_norm);
    assert_true(qwen.qk_norm);
    assert_true(llama.rope_llama3);
    assert_true(llama.rope_factor == 8 && llama.rope_original_length == 8192);
    assert_false(qwen.rope_llama3);
    assert_int_equal(qwen.head_dim * qwen.heads, 8192); // not hidden, 5120
}

// The list is embedding, blocks in order, final norm, head; names and sizes add up.
static void parameters_are_listed_in_order(void **state)
{
    (void)state;
    struct up_model model;
    assert_true(up_model_preset("qwen3-8b", &model));
    int count = up_model_param_count(&model);
    assert_int_equal(count, 1 + 36 * 11 + 2);
    int64_t elements = 0;
    for (int i = 0; i < count; i++) {
        struct up_param param = up_model_param(&model, i);
        elements += param.rows * param.cols;
        assert_int_equal(param.dims == 1, param.cols == 1);
        assert_int_equal(param.layer, param.unit == UP_UNIT_BLOCK ? (i - 1) / 11 : -1);
    }
    assert_int_equal(elements, up_model_parameters(&model));

    struct up_param q_norm = up_model_param(&model, 1 + 35 * 11 + 4);
    assert_int_equal(q_norm.kind, UP_PARAM_Q_NORM);
    assert_string_equal(q_norm.hf_name, "model.layers.35.self_attn.q_norm.weight");
    assert_string_equal(q_norm.label, "attn.q_norm.weight");
    assert_string_equal(up_model_param(&model, 0).hf_name, "model.embed_tokens.weight");
    assert_string_equal(up_model_param(&model, count - 2).hf_name, "model.norm.weight");
    assert_string_equal(up_model_param(&model, count - 1).hf_name, "lm_head.weight");
}

static void a_tied_head_is_no_parameter(void **state)
{
    (void)state;
    struct up_model model;
    assert_true(up_model_preset("llama3.2-1b", &model));
    int last = up_model_param_count(&model) - 1;
    assert_int_equal(up_model_param(&model, last).kind, UP_PARAM_FINAL_NORM);
}

static void nonsense_shapes_are_refused(void **state)
{
    (void)state;
    struct up_model good, bad;
    struct up_error err;
    assert_true(up_model_preset("tiny", &good));
#define REFUSED(member, value, named)                                                              \
    bad = good;                                                                                    \
    bad.member = value;                                                                            \
    assert_refused(up_model_check(&bad, "here", &err), &err, named);                               \
    assert_non_null(strstr(err.text, "here: "))
    REFUSED(layers, 0, "num_hidden_layers");
    REFUSED(layers, 40000, "num_hidden_layers");
    REFUSED(hidden, -1, "hidden_size");
    REFUSED(ff, INT64_MAX, "intermediate_size");
    REFUSED(vocab, 0, "vocab_size");
    REFUSED(heads, 0, "num_attention_heads");
    REFUSED(kv_heads, 0, "num_key_value_heads");
    REFUSED(kv_heads, 3, "multiple of num_key_value_heads (3)");
    REFUSED(head_dim, 15, "head_dim: expected an even number");
    REFUSED(head_dim, 514, "head_dim: expected a whole number from 1 to 512");
    REFUSED(norm_epsilon, 0, "rms_norm_eps");
    REFUSED(rope_theta, NAN, "rope_theta");
    REFUSED(init_std, -0.1, "initializer_range");
    REFUSED(rope_llama3, true, "rope factor");
#undef REFUSED
}

static void products_are_checked_too(void **state)
{
    (void)state;
    struct up_model model;
    struct up_error err;
    assert_true(up_model_preset("tiny", &model));
    model.layers = 32767;
    model.hidden = model.ff = 1 << 24;
    assert_refused(up_model_check(&model, "here", &err), &err, "2^58 parameters");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_the_published_ones),
        cmocka_unit_test(every_preset_passes_the_check),
        cmocka_unit_test(tiny_is_what_the_demo_needs),
        cmocka_unit_test(families_differ_where_they_should),
        cmocka_unit_test(parameters_are_listed_in_order),
        cmocka_unit_test(a_tied_head_is_no_parameter),
        cmocka_unit_test(nonsense_shapes_are_refused),
        cmocka_unit_test(products_are_checked_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
