/* What is trained: shapes, the list of parameters, presets, and Hugging Face folders. */
#ifndef UP_MODEL_MODEL_H
#define UP_MODEL_MODEL_H

#include "base/base.h"

#include <stdbool.h>
#include <stdint.h>

/* A decoder of the Llama or Qwen3 family. */
struct up_model {
    char name[128];  // the preset's name, or the folder's last part
    char family[16]; // "llama" or "qwen3"
    int64_t layers, hidden, ff, heads, kv_heads, head_dim, vocab;
    int64_t max_positions; // told, not enforced: RoPE extrapolates
    bool qk_norm;          // per-head RMSNorm on queries and keys, before RoPE
    bool tied;             // the head is the embedding
    double norm_epsilon;
    double rope_theta;
    bool rope_llama3; // rope_type "llama3"; the four below apply
    double rope_factor, rope_low_freq, rope_high_freq, rope_original_length;
    double init_std; // of random weights; norms start at 1
};

/* "tiny", "llama3.2-1b", ...; false if there is none of that name. */
bool up_model_preset(const char *name, struct up_model *model);
/* All presets' names, separated by ", ". */
const char *up_model_preset_names(void);

/* Checks what the step relies on: everything positive, heads a multiple of kv_heads, head_dim even,
 * and products of shapes within 2^62. `source` is what the message names. */
enum up_status up_model_check(const struct up_model *model, const char *source,
                              struct up_error *err);

/* Reads FOLDER/config.json. */
enum up_status up_model_read_config(const char *folder, struct up_model *model,
                                    struct up_error *err);

/* What --model NAME and --layers N (0: all) mean: a preset, or (`only_folder`: nothing but) a
 * Hugging Face folder; *folder tells which. UP_USAGE names the option and what was expected. */
enum up_status up_model_find(const char *name, bool only_folder, int64_t layers,
                             struct up_model *model, bool *folder, struct up_error *err);

/* A parameter's place in the model. */
enum up_param_unit { UP_UNIT_EMBED, UP_UNIT_BLOCK, UP_UNIT_HEAD };

/* The kinds of parameters, from params.def. */
enum up_param_kind {
#define UP_PARAM(id, unit, label, hf, dims, rows, cols, present) UP_PARAM_##id,
#include "model/params.def"
#undef UP_PARAM
    UP_PARAM_KIND_COUNT
};

/* One parameter tensor of a given model. */
struct up_param {
    enum up_param_kind kind;
    enum up_param_unit unit;
    const char *label;  // what the trace calls it, without "layers.N."
    int layer;          // UP_UNIT_BLOCK only, else -1
    int dims;           // 1 (rows) or 2 (rows x cols); two-dimensional ones decay
    int64_t rows, cols; // cols is 1 for vectors
    char hf_name[96];   // as Hugging Face calls it: "model.layers.3.self_attn.q_proj.weight"
};

/* How many parameter tensors the model has, and the index-th of them: embedding, blocks in order,
 * final norm, head. A tied head is not a parameter of its own. */
int up_model_param_count(const struct up_model *model);
struct up_param up_model_param(const struct up_model *model, int index);
int64_t up_model_parameters(const struct up_model *model); // elements in all

/* The weights of a Hugging Face folder: model.safetensors, or the shards that
 * model.safetensors.index.json names. Opening checks every file, and that each parameter of `model`
 * is there once with the right shape and a dtype of F32, BF16 or F16; `model` may have fewer layers
 * than the folder. The config's word on a tied head is followed. */
struct up_weights;
enum up_status up_weights_open(const char *folder, const struct up_model *model,
                               struct up_weights **weights, struct up_error *err);
/* Elements [first, first + count) of a parameter, row-major, as fp32. */
enum up_status up_weights_read(struct up_weights *weights, const struct up_param *param,
                               int64_t first, int64_t count, float *out, struct up_error *err);
/* "fp32", "bf16", "fp16" or "mixed", and the bytes stored. */
const char *up_weights_dtype(const struct up_weights *weights);
int64_t up_weights_bytes(const struct up_weights *weights);
/* One line worth telling the user (an ignored lm_head.weight, say), or NULL. */
const char *up_weights_note(const struct up_weights *weights);
void up_weights_close(struct up_weights *weights); // NULL is fine

#endif
