/* Writing saves; see save.h. */
#include "trainer/save.h"
#include "model/data.h"
#include "model/hf_config.h"
#include "model/param_file.h"
#include "trainer/step/state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const weight_sets[] = {"", NULL};
static const char *const moment_sets[] = {UP_SAVE_PREFIX_M, UP_SAVE_PREFIX_V, NULL};

/* --- Names ----------------------------------------------------------------------------------- */

const char *up_save_name(char out[UP_SAVE_NAME], int64_t steps_done)
{
    snprintf(out, UP_SAVE_NAME, "step-%08lld", (long long)steps_done);
    return out;
}

static const char *partial_name(char out[UP_SAVE_NAME], int64_t steps_done)
{
    snprintf(out, UP_SAVE_NAME, ".step-%08lld.partial", (long long)steps_done);
    return out;
}

char *up_save_path(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    if (path) snprintf(path, size, "%s/%s", folder, name);
    return path;
}

typedef const char *name_of(char out[UP_SAVE_NAME], int64_t steps_done);

// The steps that a name of the form stands for; -1 if it is not of the form.
static int64_t steps_of(const char *name, const char *prefix, name_of *form)
{
    char again[UP_SAVE_NAME];
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0) return -1;
    int64_t steps = strtoll(name + length, NULL, 10);
    return steps >= 0 && !strcmp(form(again, steps), name) ? steps : -1;
}

int64_t up_save_newest(const char *dir)
{
    int64_t newest = -1;
    DIR *stream = opendir(dir);
    for (struct dirent *entry; stream && (entry = readdir(stream));)
        newest = up_max(newest, steps_of(entry->d_name, "step-", up_save_name));
    if (stream) closedir(stream);
    return newest;
}

/* --- The directory --------------------------------------------------------------------------- */

// `error`: errno's.
static enum up_status refuse(const struct up_saver *saver, int error, const char *why,
                             struct up_error *err)
{
    return up_fail(err, up_errno_status(error),
                   "--save %s: expected a folder that can be written: %s", saver->dir, why);
}

static enum up_status open_dir(struct up_saver *saver, struct up_error *err)
{
    saver->created = mkdir(saver->dir, 0777) == 0;
    if (!saver->created && errno != EEXIST) return refuse(saver, errno, strerror(errno), err);
    saver->fd = open(saver->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (saver->fd < 0 || faccessat(saver->fd, ".", W_OK | X_OK, AT_EACCESS) != 0)
        return refuse(saver, errno, strerror(errno), err);
    // File systems without locks have none here.
    if (flock(saver->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return refuse(saver, EACCES, "another run saves there", err);
    return UP_OK;
}

enum up_status up_saver_open(struct up_saver *saver, const struct up_train_options *options,
                             const struct up_config *config, int64_t steps_done, bool leads,
                             struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool saves = options->save && up_train_device(options) != UP_DEVICE_DRY;
    char name[UP_SAVE_NAME];
    *saver = (struct up_saver){
        .dir = saves ? options->save : NULL, .options = options, .config = config, .fd = -1};
    if (!saves || !leads) return UP_OK;
    UP_TRY(open_dir(saver, err));
    int64_t newest = up_save_newest(saver->dir);
    if (newest > steps_done)
        rc = up_fail(
            err, UP_USAGE,
            "--save %s: holds %s, and this run begins at step %lld: expected another folder, "
            "or --resume",
            saver->dir, up_save_name(name, newest), (long long)steps_done);
out:
    if (rc) up_saver_close(saver);
    return rc;
}

void up_saver_close(struct up_saver *saver)
{
    if (!saver->dir) return;
    if (saver->created) rmdir(saver->dir); // which fails if there is something in it
    if (saver->fd >= 0) close(saver->fd);
    *saver = (struct up_saver){.fd = -1};
}

bool up_saver_due(const struct up_saver *saver, int64_t steps_done)
{
    if (!saver->dir) return false;
    int64_t every = saver->options->save_every;
    return steps_done == saver->options->steps || (every && steps_done % every == 0);
}

/* --- One save -------------------------------------------------------------------------------- */

// A save while it is written.
struct pending {
    const struct up_saver *saver;
    int64_t steps_done;
    char name[UP_SAVE_NAME], partial[UP_SAVE_NAME]; // in the directory
    char *folder;                                   // the partial one's path
    struct up_param_writer *weights, *moments;
};

static enum up_status open_writer(const struct pending *save, const char *name,
                                  const char *const *sets, bool create,
                                  struct up_param_writer **writer, struct up_error *err)
{
    char *path = up_save_path(save->folder, name);
    if (!path) return up_fail(err, UP_FAILED, "out of host memory");
    enum up_status rc =
        up_param_writer_open(path, &save->saver->config->model, sets, create, writer, err);
    free(path);
    return rc;
}

static enum up_status open_writers(struct pending *save, bool create, struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(open_writer(save, UP_SAVE_WEIGHTS, weight_sets, create, &save->weights, err));
    UP_TRY(open_writer(save, UP_SAVE_MOMENTS, moment_sets, create, &save->moments, err));
out:
    return rc;
}

// A new text file, on the disk when this returns. `text` NULL: memory was short.
static enum up_status write_text(const struct pending *save, const char *name, const char *text,
                                 struct up_error *err)
{
    char *path = text ? up_save_path(save->folder, name) : NULL;
    if (!path) return up_fail(err, UP_FAILED, "out of host memory");
    FILE *file = fopen(path, "wxe");
    bool written = file && fputs(text, file) >= 0 && fputc('\n', file) >= 0 && !fflush(file) &&
                   !fsync(fileno(file));
    enum up_status rc = UP_OK;
    if (!written) rc = up_fail(err, UP_FAILED, "%s: cannot be written: %s", path, strerror(errno));
    if (file) fclose(file);
    free(path);
    return rc;
}

// Text for JSON: null where it is not UTF-8.
static json_t *told(const char *text)
{
    json_t *value = text ? json_string(text) : NULL;
    return value ? value : json_null();
}

/* What resuming checks, and behind it what is there for the record alone. */
static char *record_text(const struct pending *save)
{
    const struct up_config *c = save->saver->config;
    const struct up_train_options *o = save->saver->options;
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)up_model_hash(&c->model));
    json_t *root = json_pack(
        "{s:s,s:i,s:I,s:I,s:I,s:o,s:s,s:I,s:I,s:I,s:I,s:o,s:s}", "format", UP_SAVE_FORMAT,
        "version", UP_SAVE_VERSION, "steps", (json_int_t)save->steps_done, "windows_per_step",
        (json_int_t)(c->dp * c->accum * c->batch), "seq", (json_int_t)c->seq, "model",
        told(c->model.name), "model_hash", hash, "seed", (json_int_t)o->seed, "dp",
        (json_int_t)c->dp, "accum", (json_int_t)c->accum, "batch", (json_int_t)c->batch, "data",
        told(o->data), "data_format", up_data_format_names[o->data_format]);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

static enum up_status write_texts(const struct pending *save, struct up_error *err)
{
    enum up_status rc = UP_OK;
    char *config = up_model_config_text(&save->saver->config->model), *record = record_text(save);
    UP_TRY(write_text(save, "config.json", config, err));
    UP_TRY(write_text(save, UP_SAVE_RECORD, record, err));
out:
    free(config);
    free(record);
    return rc;
}

// A partial save in the directory, and nothing else that may have got there.
static void remove_partial(int dir, const char *name)
{
    static const char *const files[] = {"config.json", UP_SAVE_WEIGHTS, UP_SAVE_MOMENTS,
                                        UP_SAVE_RECORD};
    int folder = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; folder >= 0 && i < UP_COUNT(files); i++) unlinkat(folder, files[i], 0);
    if (folder >= 0) close(folder);
    unlinkat(dir, name, AT_REMOVEDIR);
}

/* The directory is locked: no run writes what is partial there. */
static void remove_leftovers(const struct up_saver *saver)
{
    DIR *stream = opendir(saver->dir);
    for (struct dirent *entry; stream && (entry = readdir(stream));)
        if (steps_of(entry->d_name, ".step-", partial_name) >= 0)
            remove_partial(saver->fd, entry->d_name);
    if (stream) closedir(stream);
}

static enum up_status begin(struct pending *save, struct up_error *err)
{
    enum up_status rc = UP_OK;
    remove_leftovers(save->saver);
    if (mkdirat(save->saver->fd, save->partial, 0777) != 0)
        UP_TRY(up_fail(err, UP_FAILED, "%s: cannot be made: %s", save->folder, strerror(errno)));
    UP_TRY(open_writers(save, true, err));
    UP_TRY(write_texts(save, err));
out:
    return rc;
}

struct sink {
    struct up_state_visitor visitor;
    struct up_param_writer *writer;
    int set;
};

static enum up_status visit_sink(struct up_state_visitor *visitor, const struct up_param *param,
                                 int index, int64_t first, int64_t count, float *elements,
                                 struct up_error *err)
{
    const struct sink *sink = (const struct sink *)visitor;
    (void)param;
    return up_param_writer_write(sink->writer, sink->set, index, first, count, elements, err);
}

// This rank's share of everything. Each writer brings its own bytes to the disk.
static enum up_status write_share(struct pending *save, struct up_units *units,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct sink weights = {{visit_sink}, save->weights, 0};
    struct sink m = {{visit_sink}, save->moments, 0}, v = {{visit_sink}, save->moments, 1};
    UP_TRY(up_state_read(units, UP_STATE_WEIGHTS, &weights.visitor, err));
    UP_TRY(up_state_read(units, UP_STATE_M, &m.visitor, err));
    UP_TRY(up_state_read(units, UP_STATE_V, &v.visitor, err));
    UP_TRY(up_param_writer_sync(save->weights, err));
    UP_TRY(up_param_writer_sync(save->moments, err));
out:
    return rc;
}

static bool sync_folder(int dir, const char *name)
{
    int folder = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool synced = folder >= 0 && !fsync(folder);
    if (folder >= 0) close(folder);
    return synced;
}

// The files are on the disk: their names, then the save's own.
static enum up_status commit(const struct pending *save, struct up_error *err)
{
    int dir = save->saver->fd;
    if (sync_folder(dir, save->partial) && !renameat(dir, save->partial, dir, save->name) &&
        !fsync(dir))
        return UP_OK;
    return up_fail(err, UP_FAILED, "%s/%s: cannot be written: %s", save->saver->dir, save->name,
                   strerror(errno));
}

static enum up_status write_save(struct pending *save, struct up_units *units, struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool leads = up_comm_rank(units->world) == 0;
    if (leads) UP_TRY(begin(save, err));
    UP_TRY(up_comm_barrier(units->world, err)); // the files are there
    if (!leads && units->sharded) UP_TRY(open_writers(save, false, err));
    if (leads || units->sharded) UP_TRY(write_share(save, units, err));
    UP_TRY(up_comm_barrier(units->world, err)); // and whole
    if (leads) UP_TRY(commit(save, err));
    UP_TRY(up_comm_barrier(units->world, err));
out:
    if (rc && leads) remove_partial(save->saver->fd, save->partial);
    return rc;
}

enum up_status up_saver_save(const struct up_saver *saver, struct up_units *units,
                             int64_t steps_done, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct pending save = {.saver = saver, .steps_done = steps_done};
    up_save_name(save.name, steps_done);
    save.folder = up_save_path(saver->dir, partial_name(save.partial, steps_done));
    if (!save.folder) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    UP_TRY(write_save(&save, units, err));
out:
    up_param_writer_close(save.weights);
    up_param_writer_close(save.moments);
    free(save.folder);
    return rc;
}
