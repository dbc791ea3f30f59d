/* --model NAME|DIR and --layers N, as every program takes them. */
#include "model/model.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static enum up_status read_folder(const char *name, struct up_model *model, struct up_error *err)
{
    struct stat status;
    bool there = !stat(name, &status);
    if (!there && up_errno_status(errno) == UP_FAILED)
        return up_fail(err, UP_FAILED, "--model %s: cannot be looked at: %s", name,
                       strerror(errno));
    if (!there || !S_ISDIR(status.st_mode))
        return up_fail(err, UP_USAGE, "--model %s: expected a Hugging Face folder or one of %s",
                       name, up_model_preset_names());
    return up_model_read_config(name, model, err);
}

enum up_status up_model_find(const char *name, bool only_folder, int64_t layers,
                             struct up_model *model, bool *folder, struct up_error *err)
{
    enum up_status rc = UP_OK;
    *folder = only_folder || !up_model_preset(name, model);
    if (*folder) UP_TRY(read_folder(name, model, err));
    if (layers > model->layers)
        UP_TRY(up_fail(err, UP_USAGE, "--layers %lld: %s has %lld", (long long)layers, name,
                       (long long)model->layers));
    if (layers) model->layers = layers;
out:
    return rc;
}
