/* config.json of a Hugging Face folder. What would change the computation and is not known here is
 * refused by name, never ignored: a model that trains on the wrong rotation looks almost right. */
#include "model/model.h"
#include "model/input_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_LIMIT = 1 << 20 };

struct config {
    const char *path; // of the file, for messages
    json_t *root;
};

struct scaling {
    bool llama3;
    double factor, low_freq, high_freq, original_length; // llama3 only, else 0
};

// The member, or NULL where it is absent or null, which Hugging Face treats alike.
static json_t *lookup(const json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static enum up_status refuse(const struct config *config, const char *name, const char *expected,
                             const json_t *found, struct up_error *err)
{
    char shown[UP_SHOWN], shown_name[UP_SHOWN];
    return up_fail(err, UP_USAGE, "%s: %s: expected %s, found %s", config->path,
                   up_shown(shown_name, name), expected, up_json_shown(shown, found));
}

static enum up_status read_integer(const struct config *config, const char *name, bool optional,
                                   int64_t *value, struct up_error *err)
{
    const json_t *found = lookup(config->root, name);
    if (!found && optional) return UP_OK;
    if (!json_is_integer(found)) return refuse(config, name, "a whole number", found, err);
    *value = json_integer_value(found);
    return UP_OK;
}

// Leaves *value where the member is absent.
static enum up_status read_real(const struct config *config, const json_t *object, const char *name,
                                double *value, struct up_error *err)
{
    const json_t *found = lookup(object, name);
    if (found && !json_is_number(found)) return refuse(config, name, "a number", found, err);
    if (found) *value = json_number_value(found);
    return UP_OK;
}

static enum up_status read_bool(const struct config *config, const char *name, bool *value,
                                struct up_error *err)
{
    const json_t *found = lookup(config->root, name);
    *value = json_is_true(found);
    if (found && !json_is_boolean(found)) return refuse(config, name, "true or false", found, err);
    return UP_OK;
}

static enum up_status read_family(const struct config *config, struct up_model *model,
                                  struct up_error *err)
{
    const json_t *type = lookup(config->root, "model_type");
    const char *name = json_string_value(type);
    if (!name || (strcmp(name, "llama") != 0 && strcmp(name, "qwen3") != 0))
        return refuse(config, "model_type", "llama or qwen3", type, err);
    snprintf(model->family, sizeof model->family, "%s", name);
    model->qk_norm = !strcmp(name, "qwen3");
    return UP_OK;
}

static enum up_status read_shapes(const struct config *config, struct up_model *model,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
#define UP_FIELD(member, hf, optional, smallest, largest)                                          \
    UP_TRY(read_integer(config, hf, optional, &model->member, err));
#include "model/fields.def"
#undef UP_FIELD
    if (!lookup(config->root, "num_key_value_heads")) model->kv_heads = model->heads;
    if (!lookup(config->root, "head_dim") && model->heads > 0) {
        if (model->hidden % model->heads)
            return up_fail(err, UP_USAGE,
                           "%s: head_dim: expected a whole number, found nothing, and hidden_size "
                           "(%lld) is not a multiple of num_attention_heads (%lld)",
                           config->path, (long long)model->hidden, (long long)model->heads);
        model->head_dim = model->hidden / model->heads;
    }
out:
    return rc;
}

/* Both spellings are in use, "type" being the older; a file may have both. */
static enum up_status read_rope_type(const struct config *config, const json_t *object,
                                     bool *llama3, struct up_error *err)
{
    static const char *const spellings[] = {"rope_type", "type"};
    const char *type = NULL;
    for (int i = 0; i < UP_COUNT(spellings); i++) {
        const json_t *found = lookup(object, spellings[i]);
        const char *text = json_string_value(found);
        if (!found) continue;
        if (!text || (strcmp(text, "default") != 0 && strcmp(text, "llama3") != 0))
            return refuse(config, spellings[i], "default or llama3", found, err);
        if (type && strcmp(type, text) != 0) return refuse(config, "type", type, found, err);
        type = text;
    }
    if (!type && lookup(object, "factor"))
        return refuse(config, "rope_type", "default or llama3", NULL, err);
    *llama3 = type && !strcmp(type, "llama3");
    return UP_OK;
}

static enum up_status read_llama3_scaling(const struct config *config, const json_t *object,
                                          struct scaling *scaling, struct up_error *err)
{
    const struct {
        const char *name;
        double *value;
    } numbers[] = {{"factor", &scaling->factor},
                   {"low_freq_factor", &scaling->low_freq},
                   {"high_freq_factor", &scaling->high_freq},
                   {"original_max_position_embeddings", &scaling->original_length}};
    for (int i = 0; i < UP_COUNT(numbers); i++) {
        const json_t *found = lookup(object, numbers[i].name);
        if (!json_is_number(found) || json_number_value(found) <= 0)
            return refuse(config, numbers[i].name, "a number above 0", found, err);
        *numbers[i].value = json_number_value(found);
    }
    return UP_OK;
}

static enum up_status check_partial_rotary(const struct config *config, const json_t *object,
                                           struct up_error *err)
{
    const json_t *found = lookup(object, "partial_rotary_factor");
    if (!found || (json_is_number(found) && json_number_value(found) == 1)) return UP_OK;
    return refuse(config, "partial_rotary_factor", "1", found, err);
}

// The scaling that one of the two objects asks for; plain where it is absent.
static enum up_status read_scaling(const struct config *config, const char *name,
                                   struct scaling *scaling, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const json_t *object = lookup(config->root, name);
    if (!object) goto out;
    if (!json_is_object(object)) UP_TRY(refuse(config, name, "an object or null", object, err));
    UP_TRY(read_rope_type(config, object, &scaling->llama3, err));
    UP_TRY(check_partial_rotary(config, object, err));
    if (scaling->llama3) UP_TRY(read_llama3_scaling(config, object, scaling, err));
out:
    return rc;
}

static bool same_scaling(const struct scaling *a, const struct scaling *b)
{
    return a->llama3 == b->llama3 && a->factor == b->factor && a->low_freq == b->low_freq &&
           a->high_freq == b->high_freq && a->original_length == b->original_length;
}

// One place of several that may hold rope_theta; those that do must agree.
static enum up_status read_theta(const struct config *config, const json_t *object, double *theta,
                                 struct up_error *err)
{
    const json_t *found = lookup(object, "rope_theta");
    if (!found) return UP_OK;
    double value = json_number_value(found);
    if (value <= 0) return refuse(config, "rope_theta", "a number above 0", found, err);
    if (*theta && *theta != value)
        return up_fail(err, UP_USAGE, "%s: rope_theta: expected one value, found %g and %g",
                       config->path, *theta, value);
    *theta = value;
    return UP_OK;
}

/* Transformers 5 writes rope_parameters, rope_theta within; older ones rope_theta at the top level
 * and rope_scaling, null for none. */
static enum up_status read_rope(const struct config *config, struct up_model *model,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    const json_t *parameters = lookup(config->root, "rope_parameters");
    const json_t *legacy = lookup(config->root, "rope_scaling");
    struct scaling scaling = {0}, legacy_scaling = {0};
    UP_TRY(check_partial_rotary(config, config->root, err));
    UP_TRY(read_scaling(config, "rope_parameters", &scaling, err));
    UP_TRY(read_scaling(config, "rope_scaling", &legacy_scaling, err));
    if (parameters && legacy && !same_scaling(&scaling, &legacy_scaling))
        UP_TRY(up_fail(err, UP_USAGE, "%s: rope_parameters and rope_scaling contradict each other",
                       config->path));
    if (!parameters) scaling = legacy_scaling;

    UP_TRY(read_theta(config, config->root, &model->rope_theta, err));
    UP_TRY(read_theta(config, parameters, &model->rope_theta, err));
    UP_TRY(read_theta(config, legacy, &model->rope_theta, err));
    // Only the first Llamas said nothing at all. From anyone else, silence is a broken export.
    if (!model->rope_theta && (parameters || legacy || model->qk_norm))
        UP_TRY(refuse(config, "rope_theta", "a number above 0", NULL, err));
    if (!model->rope_theta) model->rope_theta = 10000;

    model->rope_llama3 = scaling.llama3;
    model->rope_factor = scaling.factor;
    model->rope_low_freq = scaling.low_freq;
    model->rope_high_freq = scaling.high_freq;
    model->rope_original_length = scaling.original_length;
out:
    return rc;
}

static enum up_status check_window(const struct config *config, struct up_error *err)
{
    const json_t *use = lookup(config->root, "use_sliding_window");
    const json_t *window = json_object_get(config->root, "sliding_window");
    if (use && !json_is_boolean(use))
        return refuse(config, "use_sliding_window", "true or false", use, err);
    // "use" without a window means Hugging Face's default one; a window without "use" is in use.
    if (json_is_true(use) && !json_is_null(window))
        return refuse(config, "use_sliding_window", "false (attention is over all tokens)", use,
                      err);
    if (!use && window && !json_is_null(window))
        return refuse(config, "sliding_window", "null (attention is over all tokens)", window, err);
    return UP_OK;
}

static enum up_status check_layer_types(const struct config *config, struct up_error *err)
{
    const json_t *types = lookup(config->root, "layer_types"), *type;
    size_t i;
    if (types && !json_is_array(types))
        return refuse(config, "layer_types", "an array", types, err);
    json_array_foreach(types, i, type)
    {
        const char *text = json_string_value(type);
        if (!text || strcmp(text, "full_attention") != 0)
            return refuse(config, "layer_types", "full_attention only", type, err);
    }
    return UP_OK;
}

// quantization_config, vision_config and their like: a part of the model that is not known here.
static enum up_status check_sub_configs(const struct config *config, struct up_error *err)
{
    static const char suffix[] = "_config";
    const char *name;
    json_t *value;
    json_object_foreach(config->root, name, value)
    {
        size_t length = strlen(name), tail = strlen(suffix);
        if (length > tail && !strcmp(name + length - tail, suffix) && !json_is_null(value))
            return refuse(config, name, "none", value, err);
    }
    return UP_OK;
}

static enum up_status check_biases(const struct config *config, struct up_error *err)
{
    static const char *const names[] = {"attention_bias", "mlp_bias"};
    enum up_status rc = UP_OK;
    for (int i = 0; i < UP_COUNT(names); i++) {
        bool bias;
        UP_TRY(read_bool(config, names[i], &bias, err));
        if (bias) UP_TRY(refuse(config, names[i], "false", lookup(config->root, names[i]), err));
    }
out:
    return rc;
}

static enum up_status check_activation(const struct config *config, struct up_error *err)
{
    const json_t *act = lookup(config->root, "hidden_act");
    const char *name = json_string_value(act);
    if (!act || (name && !strcmp(name, "silu"))) return UP_OK;
    return refuse(config, "hidden_act", "silu", act, err);
}

static enum up_status read_model(const struct config *config, struct up_model *model,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    model->norm_epsilon = 1e-6; // these two are Hugging Face's own defaults
    model->init_std = 0.02;
    UP_TRY(read_family(config, model, err));
    UP_TRY(check_sub_configs(config, err));
    UP_TRY(check_biases(config, err));
    UP_TRY(check_activation(config, err));
    UP_TRY(check_window(config, err));
    UP_TRY(check_layer_types(config, err));
    UP_TRY(read_shapes(config, model, err));
    UP_TRY(read_bool(config, "tie_word_embeddings", &model->tied, err));
    UP_TRY(read_real(config, config->root, "rms_norm_eps", &model->norm_epsilon, err));
    UP_TRY(read_real(config, config->root, "initializer_range", &model->init_std, err));
    UP_TRY(read_rope(config, model, err));
    UP_TRY(up_model_check(model, config->path, err));
out:
    return rc;
}

// The folder's last part, also of "." and "models/x/". Fit for JSON: not UTF-8 becomes ASCII.
static void name_after_folder(const char *folder, struct up_model *model)
{
    char *real = realpath(folder, NULL), shown[UP_SHOWN];
    const char *whole = real ? real : folder;
    const char *slash = strrchr(whole, '/');
    const char *last = slash && slash[1] ? slash + 1 : whole;
    snprintf(model->name, sizeof model->name, "%s", last);
    json_t *text = json_string(model->name);
    if (!text) snprintf(model->name, sizeof model->name, "%s", up_shown(shown, last));
    for (char *at = model->name; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f) *at = '?';
    json_decref(text);
    free(real);
}

static enum up_status check_folder(const char *folder, struct up_error *err)
{
    struct stat status;
    static const char expected[] = "expected a folder with config.json";
    if (stat(folder, &status) != 0)
        return up_fail(err, up_errno_status(errno), "%s: %s: %s", folder, expected,
                       strerror(errno));
    if (!S_ISDIR(status.st_mode)) return up_fail(err, UP_USAGE, "%s: %s", folder, expected);
    return UP_OK;
}

enum up_status up_model_read_config(const char *folder, struct up_model *model,
                                    struct up_error *err)
{
    enum up_status rc = UP_OK;
    char *path = NULL;
    struct config config = {0};
    *model = (struct up_model){0};
    UP_TRY(check_folder(folder, err));
    UP_TRY(up_input_path(folder, "config.json", &path, err));
    UP_TRY(up_json_read(path, CONFIG_LIMIT, &config.root, err));
    config.path = path;
    name_after_folder(folder, model);
    UP_TRY(read_model(&config, model, err));
out:
    json_decref(config.root);
    free(path);
    return rc;
}
