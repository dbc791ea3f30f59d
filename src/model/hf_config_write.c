/* Writing config.json, and comparing models; see hf_config.h. */
#include "model/hf_config.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* --- config.json ----------------------------------------------------------------------------- */

// False when memory is short, for `value` too.
static bool put(json_t *object, const char *name, json_t *value)
{
    return json_object_set_new(object, name, value) == 0;
}

// Transformers wants this one whole, the others real.
static json_t *length(double value)
{
    return value == (double)(int64_t)value ? json_integer((json_int_t)value) : json_real(value);
}

static bool put_scaling(json_t *object, const struct up_model *model)
{
    bool whole = put(object, "rope_type", json_string(model->rope_llama3 ? "llama3" : "default"));
    if (!model->rope_llama3) return whole;
    return whole && put(object, "factor", json_real(model->rope_factor)) &&
           put(object, "low_freq_factor", json_real(model->rope_low_freq)) &&
           put(object, "high_freq_factor", json_real(model->rope_high_freq)) &&
           put(object, "original_max_position_embeddings", length(model->rope_original_length));
}

/* Twice: transformers 5 reads rope_parameters, or else what older ones read, which is rope_theta
 * at the top and rope_scaling, null for none. */
static bool put_rope(json_t *root, const struct up_model *model)
{
    json_t *parameters = json_object();
    json_t *legacy = model->rope_llama3 ? json_object() : json_null();
    bool whole = put(root, "rope_parameters", parameters) && put(root, "rope_scaling", legacy) &&
                 put(root, "rope_theta", json_real(model->rope_theta));
    return whole && put_scaling(parameters, model) &&
           put(parameters, "rope_theta", json_real(model->rope_theta)) &&
           (!model->rope_llama3 || put_scaling(legacy, model));
}

static bool put_shapes(json_t *root, const struct up_model *model)
{
#define UP_FIELD(member, hf, optional, smallest, largest)                                          \
    if (model->member && !put(root, hf, json_integer((json_int_t)model->member))) return false;
#include "model/fields.def"
#undef UP_FIELD
    return put(root, "rms_norm_eps", json_real(model->norm_epsilon)) &&
           put(root, "initializer_range", json_real(model->init_std)) &&
           put(root, "tie_word_embeddings", json_boolean(model->tied));
}

/* What the computation does without, so that no default of a reader puts it in. Special tokens are
 * not the trainer's to know: null, where a reader would make up some. */
static bool put_absent(json_t *root, bool qwen3)
{
    bool whole = put(root, "attention_bias", json_false()) &&
                 put(root, "attention_dropout", json_real(0)) &&
                 put(root, "bos_token_id", json_null()) && put(root, "eos_token_id", json_null());
    if (!qwen3) return whole && put(root, "mlp_bias", json_false());
    return whole && put(root, "use_sliding_window", json_false()) &&
           put(root, "sliding_window", json_null());
}

static bool put_model(json_t *root, const struct up_model *model)
{
    bool qwen3 = !strcmp(model->family, "qwen3");
    const char *class = qwen3 ? "Qwen3ForCausalLM" : "LlamaForCausalLM";
    return put(root, "architectures", json_pack("[s]", class)) &&
           put(root, "model_type", json_string(model->family)) &&
           put(root, "torch_dtype", json_string("float32")) &&
           put(root, "hidden_act", json_string("silu")) && put(root, "use_cache", json_true()) &&
           put_shapes(root, model) && put_rope(root, model) && put_absent(root, qwen3);
}

char *up_model_config_text(const struct up_model *model)
{
    json_t *root = json_object();
    bool whole = put_model(root, model);
    char *text = whole ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    return text;
}

/* --- The same model -------------------------------------------------------------------------- */

static const struct trait {
    const char *name;
    size_t field;
    enum { WHOLE, REAL, TRUTH } kind;
} traits[] = {
#define TRAIT(name, member, kind)                                                                  \
    {                                                                                              \
        name, offsetof(struct up_model, member), kind                                              \
    }
    TRAIT("num_hidden_layers", layers, WHOLE),
    TRAIT("hidden_size", hidden, WHOLE),
    TRAIT("intermediate_size", ff, WHOLE),
    TRAIT("num_attention_heads", heads, WHOLE),
    TRAIT("num_key_value_heads", kv_heads, WHOLE),
    TRAIT("head_dim", head_dim, WHOLE),
    TRAIT("vocab_size", vocab, WHOLE),
    TRAIT("query and key norm", qk_norm, TRUTH),
    TRAIT("tie_word_embeddings", tied, TRUTH),
    TRAIT("rms_norm_eps", norm_epsilon, REAL),
    TRAIT("rope_theta", rope_theta, REAL),
    TRAIT("llama3 RoPE scaling", rope_llama3, TRUTH),
    TRAIT("rope factor", rope_factor, REAL),
    TRAIT("low_freq_factor", rope_low_freq, REAL),
    TRAIT("high_freq_factor", rope_high_freq, REAL),
    TRAIT("original_max_position_embeddings", rope_original_length, REAL),
#undef TRAIT
};

// Whole numbers of a model are far below 2^53, and so exact here.
static double trait_value(const struct up_model *model, const struct trait *trait)
{
    const char *field = (const char *)model + trait->field;
    switch (trait->kind) {
    case WHOLE:
        return (double)*(const int64_t *)field;
    case REAL:
        return *(const double *)field;
    case TRUTH:
        return *(const bool *)field;
    }
    UP_BUG("trait %s has no kind", trait->name);
}

bool up_model_same(const struct up_model *expected, const struct up_model *found,
                   char text[UP_MODEL_DIFFERENCE])
{
    for (int i = 0; i < UP_COUNT(traits); i++) {
        double want = trait_value(expected, &traits[i]), got = trait_value(found, &traits[i]);
        if (want == got) continue;
        snprintf(text, UP_MODEL_DIFFERENCE, "%s: expected %.17g, found %.17g", traits[i].name, want,
                 got);
        return false;
    }
    return true;
}

uint64_t up_model_hash(const struct up_model *model)
{
    uint64_t hash = 0;
    for (int i = 0; i < UP_COUNT(traits); i++) {
        double value = trait_value(model, &traits[i]);
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        hash = up_hash64(hash ^ bits);
    }
    return hash;
}
