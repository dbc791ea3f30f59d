/* Finding, checking and loading saves; see resume.h. */
#include "trainer/resume.h"
#include "model/hf_config.h"
#include "trainer/save.h"
#include "trainer/step/state.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { RECORD_LIMIT = 1 << 20 };

/* --- The record ------------------------------------------------------------------------------ */

static enum up_status read_integer(const json_t *root, const char *path, const char *name,
                                   int64_t least, int64_t *value, struct up_error *err)
{
    const json_t *found = json_object_get(root, name);
    *value = json_integer_value(found);
    if (json_is_integer(found) && *value >= least) return UP_OK;
    return up_fail(err, UP_USAGE, "%s: %s: expected a whole number from %lld", path, name,
                   (long long)least);
}

static enum up_status read_text(const json_t *root, const char *path, const char *name, char *out,
                                size_t size, struct up_error *err)
{
    const char *text = json_string_value(json_object_get(root, name));
    bool fit = text && strlen(text) < size;
    for (const char *at = text; fit && *at; at++) fit = (unsigned char)*at >= ' ' && *at != 0x7f;
    if (!fit)
        return up_fail(err, UP_USAGE, "%s: %s: expected a text of at most %zu bytes", path, name,
                       size - 1);
    strcpy(out, text);
    return UP_OK;
}

static enum up_status read_version(const json_t *root, const char *path, struct up_error *err)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    int64_t version;
    enum up_status rc = UP_OK;
    if (!format || strcmp(format, UP_SAVE_FORMAT) != 0)
        UP_TRY(up_fail(err, UP_USAGE, "%s: format: expected \"%s\"", path, UP_SAVE_FORMAT));
    UP_TRY(read_integer(root, path, "version", 1, &version, err));
    if (version > UP_SAVE_VERSION)
        rc = up_fail(err, UP_USAGE, "%s: version: expected at most %d, found %lld", path,
                     UP_SAVE_VERSION, (long long)version);
out:
    return rc;
}

static enum up_status read_record(struct up_resume *resume, const char *path, struct up_error *err)
{
    enum up_status rc = UP_OK;
    json_error_t error;
    struct stat status;
    json_t *root = NULL;
    if (stat(path, &status))
        UP_TRY(up_fail(err, up_errno_status(errno), "%s: cannot be looked at: %s", path,
                       strerror(errno)));
    if (S_ISREG(status.st_mode) && status.st_size <= RECORD_LIMIT)
        root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(root))
        UP_TRY(up_fail(err, UP_USAGE,
                       "%s: expected a JSON file of at most 1 MiB that tells of a save", path));
    UP_TRY(read_version(root, path, err));
    UP_TRY(read_integer(root, path, "steps", 1, &resume->steps, err));
    UP_TRY(read_integer(root, path, "windows_per_step", 1, &resume->windows, err));
    UP_TRY(read_integer(root, path, "seq", 1, &resume->seq, err));
    UP_TRY(read_text(root, path, "model", resume->model_name, sizeof resume->model_name, err));
    UP_TRY(read_text(root, path, "model_hash", resume->model_hash, sizeof resume->model_hash, err));
out:
    json_decref(root);
    return rc;
}

/* --- Finding it ------------------------------------------------------------------------------ */

// A folder with a record is a save; of any other, the newest save in it is meant.
static enum up_status find_folder(struct up_resume *resume, const char *path, struct up_error *err)
{
    struct stat status;
    char name[UP_SAVE_NAME];
    int64_t newest = up_save_newest(path);
    char *record = up_save_path(path, UP_SAVE_RECORD);
    bool is_save = record && !stat(record, &status);
    free(record);
    if (!is_save && newest < 0)
        return up_fail(err, UP_USAGE,
                       "--resume %s: expected a save, which has a " UP_SAVE_RECORD
                       ", or a folder of saves (step-*)",
                       path);
    resume->folder = is_save ? strdup(path) : up_save_path(path, up_save_name(name, newest));
    return resume->folder ? UP_OK : up_fail(err, UP_FAILED, "out of host memory");
}

enum up_status up_resume_find(struct up_resume *resume, const char *path, struct up_error *err)
{
    enum up_status rc = UP_OK;
    char *record = NULL;
    *resume = (struct up_resume){0};
    UP_TRY(find_folder(resume, path, err));
    record = up_save_path(resume->folder, UP_SAVE_RECORD);
    if (!record) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    UP_TRY(read_record(resume, record, err));
out:
    free(record);
    if (rc) up_resume_release(resume);
    return rc;
}

/* --- Would it go on? ------------------------------------------------------------------------- */

static enum up_status check_model(const struct up_resume *resume, const struct up_model *model,
                                  struct up_error *err)
{
    struct up_model saved;
    char hash[17], difference[UP_MODEL_DIFFERENCE];
    enum up_status rc = up_model_read_config(resume->folder, &saved, err);
    if (rc) return rc;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)up_model_hash(&saved));
    if (strcmp(hash, resume->model_hash) != 0)
        return up_fail(err, UP_USAGE,
                       "%s/config.json: expected the model of " UP_SAVE_RECORD
                       " beside it, found another",
                       resume->folder);
    if (up_model_same(&saved, model, difference)) return UP_OK;
    return up_fail(err, UP_USAGE, "--resume %s: not the model that is asked for: %s",
                   resume->folder, difference);
}

// Where these change, step t no longer begins where step t - 1 ended.
static enum up_status check_order(const struct up_resume *resume, const struct up_config *c,
                                  struct up_error *err)
{
    int64_t windows = c->dp * c->accum * c->batch;
    if (c->seq != resume->seq)
        return up_fail(err, UP_USAGE,
                       "--seq %lld: expected %lld as in %s, or the data would not continue",
                       (long long)c->seq, (long long)resume->seq, resume->folder);
    if (windows != resume->windows)
        return up_fail(
            err, UP_USAGE,
            "--dp, --accum, --batch: %lld x %lld x %lld = %lld sequences a step: expected "
            "%lld as in %s, or the data would not continue",
            (long long)c->dp, (long long)c->accum, (long long)c->batch, (long long)windows,
            (long long)resume->windows, resume->folder);
    return UP_OK;
}

enum up_status up_resume_check(const struct up_resume *resume, struct up_config *config,
                               struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(check_model(resume, &config->model, err));
    UP_TRY(check_order(resume, config, err));
    memcpy(config->model.name, resume->model_name, sizeof config->model.name);
out:
    return rc;
}

/* --- The moments ----------------------------------------------------------------------------- */

enum up_status up_resume_open(struct up_resume *resume, const struct up_model *model,
                              struct up_error *err)
{
    static const char *const sets[] = {UP_SAVE_PREFIX_M, UP_SAVE_PREFIX_V, NULL};
    char *path = up_save_path(resume->folder, UP_SAVE_MOMENTS);
    if (!path) return up_fail(err, UP_FAILED, "out of host memory");
    enum up_status rc = up_param_reader_open(path, model, sets, &resume->moments, err);
    free(path);
    return rc;
}

struct source {
    struct up_state_visitor visitor;
    const struct up_param_reader *reader;
    const char *prefix;
};

static enum up_status visit_source(struct up_state_visitor *visitor, const struct up_param *param,
                                   int index, int64_t first, int64_t count, float *elements,
                                   struct up_error *err)
{
    const struct source *source = (const struct source *)visitor;
    (void)index;
    return up_param_reader_read(source->reader, source->prefix, param, first, count, elements, err);
}

enum up_status up_resume_load(const struct up_resume *resume, struct up_units *units,
                              struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct source m = {{visit_source}, resume->moments, UP_SAVE_PREFIX_M};
    struct source v = {{visit_source}, resume->moments, UP_SAVE_PREFIX_V};
    UP_TRY(up_state_fill(units, UP_STATE_M, &m.visitor, err));
    UP_TRY(up_state_fill(units, UP_STATE_V, &v.visitor, err));
out:
    return rc;
}

void up_resume_release(struct up_resume *resume)
{
    up_param_reader_close(resume->moments);
    free(resume->folder);
    *resume = (struct up_resume){0};
}
