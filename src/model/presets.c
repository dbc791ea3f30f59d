/* The models known by name. To add one, add a row to presets.def and its published parameter count
 * to tests/model/test_presets.c. */
#include "model/model.h"

#include <string.h>

static const struct up_model presets[] = {
#define UP_PRESET(n, f, l, h, mlp, q, kv, d, v, positions, tie, epsilon, theta, factor, original)  \
    {.name = n,                                                                                    \
     .family = f,                                                                                  \
     .layers = l,                                                                                  \
     .hidden = h,                                                                                  \
     .ff = mlp,                                                                                    \
     .heads = q,                                                                                   \
     .kv_heads = kv,                                                                               \
     .head_dim = d,                                                                                \
     .vocab = v,                                                                                   \
     .max_positions = positions,                                                                   \
     .tied = tie,                                                                                  \
     .norm_epsilon = epsilon,                                                                      \
     .rope_theta = theta,                                                                          \
     .rope_llama3 = (factor) > 0,                                                                  \
     .rope_factor = factor,                                                                        \
     .rope_low_freq = (factor) > 0 ? 1 : 0,                                                        \
     .rope_high_freq = (factor) > 0 ? 4 : 0,                                                       \
     .rope_original_length = original,                                                             \
     .init_std = 0.02},
#include "model/presets.def"
#undef UP_PRESET
};

bool up_model_preset(const char *name, struct up_model *model)
{
    for (int i = 0; i < UP_COUNT(presets); i++) {
        if (strcmp(presets[i].name, name) != 0) continue;
        *model = presets[i];
        model->qk_norm = !strcmp(model->family, "qwen3");
        return true;
    }
    return false;
}

const char *up_model_preset_names(void)
{
    static const char names[] =
#define UP_PRESET(n, ...) ", " n
#include "model/presets.def"
#undef UP_PRESET
        ;
    return names + strlen(", ");
}
