/* The parameters that a model has, from params.def, and the check that its shapes make sense. */
#include "model/model.h"

#include <stdio.h>

static bool kind_present(const struct up_model *m, enum up_param_kind kind)
{
    switch (kind) {
#define UP_PARAM(id, u, l, hf, d, r, c, present)                                                   \
    case UP_PARAM_##id:                                                                            \
        return present;
#include "model/params.def"
#undef UP_PARAM
    case UP_PARAM_KIND_COUNT:
        break;
    }
    UP_BUG("no parameter kind %d", (int)kind);
}

// The kind without a layer: hf_name lacks "model.layers.N.".
static struct up_param kind_param(const struct up_model *m, enum up_param_kind kind)
{
    switch (kind) {
#define UP_PARAM(id, u, l, hf, d, r, c, present)                                                   \
    case UP_PARAM_##id:                                                                            \
        return (struct up_param){UP_PARAM_##id, UP_UNIT_##u, l, -1, d, r, c, hf};
#include "model/params.def"
#undef UP_PARAM
    case UP_PARAM_KIND_COUNT:
        break;
    }
    UP_BUG("no parameter kind %d", (int)kind);
}

static enum up_param_unit kind_unit(enum up_param_kind kind)
{
    static const enum up_param_unit units[] = {
#define UP_PARAM(id, u, l, hf, d, r, c, present) [UP_PARAM_##id] = UP_UNIT_##u,
#include "model/params.def"
#undef UP_PARAM
    };
    return units[kind];
}

// How many parameters one instance of the unit has.
static int unit_count(const struct up_model *model, enum up_param_unit unit)
{
    int count = 0;
    for (int kind = 0; kind < UP_PARAM_KIND_COUNT; kind++)
        count += kind_unit(kind) == unit && kind_present(model, kind);
    return count;
}

// The n-th present kind of the unit.
static enum up_param_kind unit_kind(const struct up_model *model, enum up_param_unit unit, int n)
{
    for (int kind = 0; kind < UP_PARAM_KIND_COUNT; kind++)
        if (kind_unit(kind) == unit && kind_present(model, kind) && n-- == 0) return kind;
    UP_BUG("unit %d has no parameter %d", (int)unit, n);
}

static int unit_instances(const struct up_model *model, enum up_param_unit unit)
{
    return unit == UP_UNIT_BLOCK ? (int)model->layers : 1;
}

int up_model_param_count(const struct up_model *model)
{
    int count = 0;
    for (int unit = UP_UNIT_EMBED; unit <= UP_UNIT_HEAD; unit++)
        count += unit_count(model, unit) * unit_instances(model, unit);
    return count;
}

struct up_param up_model_param(const struct up_model *model, int index)
{
    int unit = UP_UNIT_EMBED;
    int per_instance = unit_count(model, unit);
    while (unit < UP_UNIT_HEAD && index >= per_instance * unit_instances(model, unit)) {
        index -= per_instance * unit_instances(model, unit);
        per_instance = unit_count(model, ++unit);
    }
    UP_ASSERT(index >= 0 && index < per_instance * unit_instances(model, unit));

    struct up_param param = kind_param(model, unit_kind(model, unit, index % per_instance));
    if (unit == UP_UNIT_BLOCK) {
        struct up_param bare = param;
        param.layer = index / per_instance;
        snprintf(param.hf_name, sizeof param.hf_name, "model.layers.%d.%.60s", param.layer,
                 bare.hf_name);
    }
    return param;
}

// False where the count, or the bytes of its training state, would not fit.
static bool count_parameters(const struct up_model *model, int64_t *count)
{
    const int64_t most = INT64_C(1) << 58; // 16 bytes of state each: 2^62
    *count = 0;
    for (int kind = 0; kind < UP_PARAM_KIND_COUNT; kind++) {
        if (!kind_present(model, kind)) continue;
        struct up_param param = kind_param(model, kind);
        int64_t elements, all;
        if (__builtin_mul_overflow(param.rows, param.cols, &elements) ||
            __builtin_mul_overflow(elements, unit_instances(model, param.unit), &all) ||
            __builtin_add_overflow(*count, all, count) || *count > most)
            return false;
    }
    return true;
}

int64_t up_model_parameters(const struct up_model *model)
{
    int64_t count;
    UP_ASSERT(count_parameters(model, &count));
    return count;
}

static enum up_status check_field(const char *source, const char *name, int64_t value,
                                  int64_t smallest, int64_t largest, struct up_error *err)
{
    if (value >= smallest && value <= largest) return UP_OK;
    return up_fail(err, UP_USAGE, "%s: %s: expected a whole number from %lld to %lld, found %lld",
                   source, name, (long long)smallest, (long long)largest, (long long)value);
}

static enum up_status check_fields(const struct up_model *model, const char *source,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
#define UP_FIELD(member, hf, optional, smallest, largest)                                          \
    UP_TRY(check_field(source, hf, model->member, smallest, largest, err));
#include "model/fields.def"
#undef UP_FIELD
out:
    return rc;
}

static enum up_status check_heads(const struct up_model *model, const char *source,
                                  struct up_error *err)
{
    if (model->heads % model->kv_heads)
        return up_fail(err, UP_USAGE,
                       "%s: expected num_attention_heads (%lld) to be a multiple of "
                       "num_key_value_heads (%lld)",
                       source, (long long)model->heads, (long long)model->kv_heads);
    if (model->head_dim % 2)
        return up_fail(err, UP_USAGE, "%s: head_dim: expected an even number, found %lld", source,
                       (long long)model->head_dim);
    return UP_OK;
}

static enum up_status check_real(const char *source, const char *name, double value, double above,
                                 double most, struct up_error *err)
{
    if (value > above && value <= most) return UP_OK;
    return up_fail(err, UP_USAGE, "%s: %s: expected a number above %g and at most %g, found %g",
                   source, name, above, most, value);
}

static enum up_status check_rope(const struct up_model *model, const char *source,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(check_real(source, "rope_theta", model->rope_theta, 0, 1e15, err));
    if (!model->rope_llama3) goto out;
    UP_TRY(check_real(source, "rope factor", model->rope_factor, 0, 1e9, err));
    UP_TRY(check_real(source, "low_freq_factor", model->rope_low_freq, 0, 1e9, err));
    UP_TRY(check_real(source, "original_max_position_embeddings", model->rope_original_length, 0,
                      0x1p40, err));
    // The scaling interpolates between the two, dividing by their difference.
    UP_TRY(check_real(source, "high_freq_factor (low_freq_factor is below it)",
                      model->rope_high_freq, model->rope_low_freq, 1e9, err));
out:
    return rc;
}

enum up_status up_model_check(const struct up_model *model, const char *source,
                              struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t count;
    UP_TRY(check_fields(model, source, err));
    UP_TRY(check_heads(model, source, err));
    UP_TRY(check_real(source, "rms_norm_eps", model->norm_epsilon, 0, 1, err));
    UP_TRY(check_rope(model, source, err));
    if (!(model->init_std >= 0 && model->init_std <= 1e3))
        rc = up_fail(err, UP_USAGE, "%s: initializer_range: expected 0 to 1000, found %g", source,
                     model->init_std);
    else if (!count_parameters(model, &count))
        rc = up_fail(err, UP_USAGE, "%s: expected fewer than 2^58 parameters in all", source);
out:
    return rc;
}
