/* The weights of a Hugging Face folder: which file holds which parameter. model.safetensors is
 * taken where it is there, as Hugging Face does; else the shards of model.safetensors.index.json,
 * whose weight_map is the allow-list: other files, and what a shard holds beyond it, are not looked
 * at.
 *
 * A folder that contradicts itself or its config is refused. What is merely too much (a second copy
 * of a tied head, buffers of old exports) is left alone, and the note says so where it matters. */
#include "model/model.h"
#include "model/safetensors_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INDEX_LIMIT = 64 << 20 };

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";
static const char embed_name[] = "model.embed_tokens.weight";
static const char head_name[] = "lm_head.weight";

struct up_weights {
    const char *folder; // the caller's; while opening only
    char *index_path;
    json_t *index; // the index file; NULL with model.safetensors alone
    json_t *map;   // borrowed from it: tensor -> shard's name
    json_t *shard; // shard's name -> its place in files
    int file_count;
    struct up_safetensors **files;
    bool embed_is_head; // the tied pair is stored under the head's name
    const char *dtype;
    int64_t bytes;
    char note[256];
};

// The file that must hold the tensor; NULL if the index does not list it.
static const struct up_safetensors *file_of(const struct up_weights *weights, const char *tensor)
{
    UP_ASSERT(weights->files);
    if (!weights->map) return weights->files[0];
    const char *shard = json_string_value(json_object_get(weights->map, tensor));
    if (!shard) return NULL;
    return weights->files[json_integer_value(json_object_get(weights->shard, shard))];
}

static const struct up_safetensors *find(const struct up_weights *weights, const char *tensor,
                                         struct up_stored *stored)
{
    const struct up_safetensors *file = file_of(weights, tensor);
    return file && up_safetensors_find(file, tensor, stored) ? file : NULL;
}

// What messages about the whole name.
static const char *origin(const struct up_weights *weights)
{
    return weights->index_path ? weights->index_path : up_safetensors_path(weights->files[0]);
}

/* Opening the files. */

static enum up_status out_of_memory(const char *folder, struct up_error *err)
{
    return up_fail(err, UP_FAILED, "%s: out of memory", folder);
}

// Room for `count` files, none open yet.
static enum up_status reserve_files(struct up_weights *weights, size_t count, struct up_error *err)
{
    weights->files = calloc(count + 1, sizeof(struct up_safetensors *));
    if (!weights->files) return out_of_memory(weights->folder, err);
    weights->file_count = (int)count;
    return UP_OK;
}

static enum up_status open_file(struct up_weights *weights, const char *name, int number,
                                struct up_error *err)
{
    char *path;
    enum up_status rc = up_input_path(weights->folder, name, &path, err);
    if (rc != UP_OK) return rc;
    rc = up_safetensors_open(path, &weights->files[number], err);
    free(path);
    return rc;
}

static enum up_status exists(const char *folder, const char *name, bool *there,
                             struct up_error *err)
{
    char *path;
    enum up_status rc = up_input_path(folder, name, &path, err);
    if (rc != UP_OK) return rc;
    *there = access(path, F_OK) == 0;
    if (!*there && up_errno_status(errno) == UP_FAILED)
        rc = up_fail(err, UP_FAILED, "%s: cannot be looked at: %s", path, strerror(errno));
    free(path);
    return rc;
}

// Of a file in the folder itself, and fit for a message.
static bool is_plain_name(const char *name)
{
    if (!name || !*name || !strcmp(name, ".") || !strcmp(name, "..")) return false;
    for (const char *at = name; *at; at++)
        if (*at == '/' || *at < ' ' || *at > '~') return false;
    return true;
}

// Numbers the shards that the map names.
static enum up_status number_shards(struct up_weights *weights, struct up_error *err)
{
    const char *tensor;
    json_t *value;
    char name[UP_SHOWN], shown[UP_SHOWN];
    weights->shard = json_object();
    if (!weights->shard) return out_of_memory(weights->index_path, err);
    json_object_foreach(weights->map, tensor, value)
    {
        const char *shard = json_string_value(value);
        if (!is_plain_name(shard))
            return up_fail(err, UP_USAGE, "%s: %s: expected the name of a file beside it, found %s",
                           weights->index_path, up_shown(name, tensor),
                           up_json_shown(shown, value));
        json_int_t number = (json_int_t)json_object_size(weights->shard);
        if (json_object_get(weights->shard, shard)) continue;
        if (json_object_set_new(weights->shard, shard, json_integer(number)) != 0)
            return out_of_memory(weights->index_path, err);
    }
    return UP_OK;
}

/* All shards that are not on disk, the first few by name, before any is opened. */
static enum up_status check_shards_exist(const struct up_weights *weights, struct up_error *err)
{
    enum { NAMED = 4 };
    enum up_status rc = UP_OK;
    const char *shard;
    json_t *number;
    char list[NAMED * (UP_SHOWN + 2)] = "", shown[UP_SHOWN];
    int missing = 0, used = 0;
    json_object_foreach(weights->shard, shard, number)
    {
        bool there = false;
        UP_TRY(exists(weights->folder, shard, &there, err));
        if (there || missing++ >= NAMED) continue;
        used += snprintf(list + used, sizeof list - (size_t)used, "%s%s", used ? ", " : "",
                         up_shown(shown, shard));
    }
    if (missing)
        rc = up_fail(err, UP_USAGE, "%s: names %d of %d shards that are not there: %s%s",
                     weights->index_path, missing, (int)json_object_size(weights->shard), list,
                     missing > NAMED ? ", ..." : "");
out:
    return rc;
}

// Every tensor that the index lists must be in the shard that it says.
static enum up_status check_map(const struct up_weights *weights, struct up_error *err)
{
    const char *tensor;
    json_t *shard;
    struct up_stored stored;
    char name[UP_SHOWN], shown[UP_SHOWN];
    json_object_foreach(weights->map, tensor, shard) if (
        !find(weights, tensor,
              &stored)) return up_fail(err, UP_USAGE,
                                       "%s: stale: maps %s to %s, which has no such tensor",
                                       weights->index_path, up_shown(name, tensor),
                                       up_shown(shown, json_string_value(shard)));
    return UP_OK;
}

static enum up_status open_shards(struct up_weights *weights, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const char *shard;
    json_t *number;
    char shown[UP_SHOWN];
    UP_TRY(up_json_read(weights->index_path, INDEX_LIMIT, &weights->index, err));
    weights->map = json_object_get(weights->index, "weight_map");
    if (!json_is_object(weights->map))
        UP_TRY(up_fail(err, UP_USAGE, "%s: weight_map: expected an object, found %s",
                       weights->index_path, up_json_shown(shown, weights->map)));
    UP_TRY(number_shards(weights, err));
    UP_TRY(check_shards_exist(weights, err));
    UP_TRY(reserve_files(weights, json_object_size(weights->shard), err));
    json_object_foreach(weights->shard, shard, number)
        UP_TRY(open_file(weights, shard, (int)json_integer_value(number), err));
    UP_TRY(check_map(weights, err));
out:
    return rc;
}

static enum up_status open_files(struct up_weights *weights, struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool single = false, index = false;
    UP_TRY(exists(weights->folder, single_name, &single, err));
    UP_TRY(exists(weights->folder, index_name, &index, err));
    if (single) {
        UP_TRY(reserve_files(weights, 1, err));
        UP_TRY(open_file(weights, single_name, 0, err));
    } else if (index) {
        UP_TRY(up_input_path(weights->folder, index_name, &weights->index_path, err));
        UP_TRY(open_shards(weights, err));
    } else {
        UP_TRY(up_fail(err, UP_USAGE, "%s: expected %s or %s in it", weights->folder, single_name,
                       index_name));
    }
out:
    return rc;
}

/* Matching the files with the model. */

// A tensor of that name in any of the files, mapped or not.
static const struct up_safetensors *find_anywhere(const struct up_weights *weights,
                                                  const char *tensor)
{
    struct up_stored stored;
    for (int i = 0; i < weights->file_count; i++)
        if (up_safetensors_find(weights->files[i], tensor, &stored)) return weights->files[i];
    return NULL;
}

static const char *recorded_twin(const struct up_weights *weights, const char *tensor)
{
    for (int i = 0; i < weights->file_count; i++) {
        const char *twin = up_safetensors_metadata(weights->files[i], tensor);
        if (twin) return twin;
    }
    return NULL;
}

/* Says why, where the folder lets us see it: the usual causes each need another cure. */
static enum up_status missing_tensor(const struct up_weights *weights, const struct up_param *param,
                                     int missing, struct up_error *err)
{
    static const char prefix[] = "model.";
    const char *name = param->hf_name, *from = origin(weights);
    const char *bare = strncmp(name, prefix, strlen(prefix)) ? NULL : name + strlen(prefix);
    const char *twin = recorded_twin(weights, name);
    const struct up_safetensors *unlisted = find_anywhere(weights, name);
    char shown[UP_SHOWN];

    if (unlisted)
        return up_fail(err, UP_USAGE, "%s: stale: does not list %s, which %s has", from, name,
                       up_safetensors_path(unlisted));
    if (bare && find_anywhere(weights, bare))
        return up_fail(err, UP_USAGE,
                       "%s: expected tensors named as in %s, found %s (without \"%s\")", from, name,
                       bare, prefix);
    if (param->kind == UP_PARAM_HEAD)
        return up_fail(
            err, UP_USAGE,
            "%s: has no %s, though config.json says that it is not tied to the embedding "
            "(tie_word_embeddings false)%s%s",
            from, name, twin ? "; __metadata__ names as its twin " : "",
            twin ? up_shown(shown, twin) : "");
    return up_fail(err, UP_USAGE, "%s: lacks %d of the model's tensors, the first is %s%s%s", from,
                   missing, name, twin ? "; __metadata__ names as its twin " : "",
                   twin ? up_shown(shown, twin) : "");
}

static enum up_status check_all_present(const struct up_weights *weights,
                                        const struct up_model *model, struct up_error *err)
{
    struct up_param first = {0};
    struct up_stored stored;
    int missing = 0, count = up_model_param_count(model);
    for (int i = 0; i < count; i++) {
        struct up_param param = up_model_param(model, i);
        if (find(weights, param.hf_name, &stored)) continue;
        if (param.kind == UP_PARAM_EMBED && weights->embed_is_head) continue;
        if (!missing++) first = param;
    }
    return missing ? missing_tensor(weights, &first, missing, err) : UP_OK;
}

static const struct up_safetensors *
find_param(const struct up_weights *weights, const struct up_param *param, struct up_stored *stored)
{
    bool twin = param->kind == UP_PARAM_EMBED && weights->embed_is_head;
    return find(weights, twin ? head_name : param->hf_name, stored);
}

static bool same_shape(const struct up_param *param, const struct up_stored *stored)
{
    const json_t *shape = stored->shape;
    return (int)json_array_size(shape) == param->dims &&
           json_integer_value(json_array_get(shape, 0)) == param->rows &&
           (param->dims < 2 || json_integer_value(json_array_get(shape, 1)) == param->cols);
}

static enum up_status check_param(const struct up_safetensors *file, const struct up_param *param,
                                  const struct up_stored *stored, struct up_error *err)
{
    char shape[UP_SHOWN], dtype[UP_SHOWN], cols[24] = "";
    const char *path = up_safetensors_path(file);
    if (!up_stored_width(stored))
        return up_fail(err, UP_USAGE,
                       "%s: tensor %s: expected a dtype of F32, BF16 or F16, found %s", path,
                       stored->name, up_shown(dtype, stored->dtype));
    if (same_shape(param, stored)) return UP_OK;
    if (param->dims > 1) snprintf(cols, sizeof cols, ", %lld", (long long)param->cols);
    return up_fail(err, UP_USAGE, "%s: tensor %s: expected shape [%lld%s] by config.json, found %s",
                   path, stored->name, (long long)param->rows, cols,
                   up_stored_shape(shape, stored));
}

// Checks each parameter, and sums up what is stored.
static enum up_status check_params(struct up_weights *weights, const struct up_model *model,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    int count = up_model_param_count(model);
    for (int i = 0; i < count; i++) {
        struct up_param param = up_model_param(model, i);
        struct up_stored stored;
        const struct up_safetensors *file = find_param(weights, &param, &stored);
        UP_ASSERT(file);
        UP_TRY(check_param(file, &param, &stored, err));
        const char *dtype = up_stored_dtype(&stored);
        if (!weights->dtype) weights->dtype = dtype;
        if (strcmp(weights->dtype, dtype) != 0) weights->dtype = "mixed";
        weights->bytes += stored.end - stored.begin;
    }
out:
    return rc;
}

/* The note. */

static void add_note(struct up_weights *weights, const char *text)
{
    size_t used = strlen(weights->note);
    snprintf(weights->note + used, sizeof weights->note - used, "%s%s", used ? "; " : "", text);
}

// "self_attn.q_proj.weight" of "model.layers.12.self_attn.q_proj.weight"; NULL outside blocks.
static const char *within_block(const char *tensor)
{
    static const char prefix[] = "model.layers.";
    if (strncmp(tensor, prefix, strlen(prefix)) != 0) return NULL;
    const char *digits = tensor + strlen(prefix);
    size_t length = strspn(digits, "0123456789");
    return length && digits[length] == '.' ? digits + length + 1 : NULL;
}

/* Whether the model has use for the tensor (in any layer: the trained model may have fewer), or it
 * is one that the computation does without: a RoPE table, a tied head. */
static bool is_expected(const struct up_model *m, const char *tensor)
{
    static const char table[] = "rotary_emb.inv_freq";
    const char *rest = within_block(tensor);
    size_t length = strlen(tensor), tail = strlen(table);
    if (length >= tail && !strcmp(tensor + length - tail, table)) return true;
    if (!strcmp(tensor, head_name)) return true;
#define UP_PARAM(id, unit, label, hf, dims, rows, cols, present)                                   \
    if ((present) && !strcmp(UP_UNIT_##unit == UP_UNIT_BLOCK ? (rest ? rest : "") : tensor, hf))   \
        return true;
#include "model/params.def"
#undef UP_PARAM
    return false;
}

/* Biases, norms of another family, adapters: Hugging Face leaves them out as well, but whoever
 * trains the model ought to know. */
static void note_unexpected(struct up_weights *weights, const struct up_model *model)
{
    UP_ASSERT(weights->files);
    json_t *names = weights->map ? weights->map : up_safetensors_header(weights->files[0]);
    const char *tensor, *first = NULL;
    json_t *value;
    int count = 0;
    char text[2 * UP_SHOWN], shown[UP_SHOWN];
    json_object_foreach(names, tensor, value)
    {
        if (!strcmp(tensor, "__metadata__") || is_expected(model, tensor)) continue;
        if (!count++) first = tensor;
    }
    if (!count) return;
    snprintf(text, sizeof text, "ignored %d tensor%s that a %s model has no use for: %s%s", count,
             count > 1 ? "s" : "", model->family, up_shown(shown, first), count > 1 ? ", ..." : "");
    add_note(weights, text);
}

/* A tied pair may be stored once under either name, or twice. */
static void settle_tied_pair(struct up_weights *weights, const struct up_model *model)
{
    struct up_stored stored;
    if (!model->tied || !find(weights, head_name, &stored)) return;
    weights->embed_is_head = !find(weights, embed_name, &stored);
    add_note(weights,
             weights->embed_is_head
                 ? "model.embed_tokens.weight is stored as lm_head.weight, to which it is tied"
                 : "ignored lm_head.weight: tie_word_embeddings makes the embedding the head");
}

enum up_status up_weights_open(const char *folder, const struct up_model *model,
                               struct up_weights **weights, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_weights *opened = calloc(1, sizeof *opened);
    *weights = NULL;
    if (!opened) return out_of_memory(folder, err);
    opened->folder = folder;
    UP_TRY(open_files(opened, err));
    settle_tied_pair(opened, model);
    UP_TRY(check_all_present(opened, model, err));
    UP_TRY(check_params(opened, model, err));
    note_unexpected(opened, model);
    opened->folder = NULL;
    *weights = opened;
    opened = NULL;
out:
    up_weights_close(opened);
    return rc;
}

enum up_status up_weights_read(struct up_weights *weights, const struct up_param *param,
                               int64_t first, int64_t count, float *out, struct up_error *err)
{
    struct up_stored stored;
    const struct up_safetensors *file = find_param(weights, param, &stored);
    UP_ASSERT(file);
    return up_safetensors_read(file, &stored, first, count, out, err);
}

const char *up_weights_dtype(const struct up_weights *weights)
{
    return weights->dtype;
}

int64_t up_weights_bytes(const struct up_weights *weights)
{
    return weights->bytes;
}

const char *up_weights_note(const struct up_weights *weights)
{
    return *weights->note ? weights->note : NULL;
}

void up_weights_close(struct up_weights *weights)
{
    if (!weights) return;
    for (int i = 0; i < weights->file_count; i++) up_safetensors_close(weights->files[i]);
    free(weights->files);
    json_decref(weights->shard);
    json_decref(weights->index);
    free(weights->index_path);
    free(weights);
}
