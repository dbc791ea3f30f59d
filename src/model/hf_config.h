/* A model as Hugging Face's config.json tells it, and whether two models are the same. Reading one
 * is up_model_read_config's. */
#ifndef UP_MODEL_HF_CONFIG_H
#define UP_MODEL_HF_CONFIG_H

#include "model/model.h"

/* The text of a config.json that up_model_read_config reads back as the same model (but for its
 * name), and transformers as LlamaForCausalLM or Qwen3ForCausalLM with fp32 weights. For free();
 * NULL when memory is short. */
char *up_model_config_text(const struct up_model *model);

enum { UP_MODEL_DIFFERENCE = 160 };

/* Whether the two compute the same. If not, `text` says "num_hidden_layers: expected 4, found 2",
 * where `expected` has 4. Names, the longest position and the spread of random weights do not
 * matter. */
bool up_model_same(const struct up_model *expected, const struct up_model *found,
                   char text[UP_MODEL_DIFFERENCE]);

/* The same for models that are the same. */
uint64_t up_model_hash(const struct up_model *model);

#endif
