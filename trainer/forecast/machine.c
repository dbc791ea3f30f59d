#include "trainer/forecast/machine.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// trainer/machines/*.json, embedded at build time; ended by a row of NULL.
struct up_embedded {
    const char *name, *text;
};
extern const struct up_embedded up_machine_files[];

enum { MAX_FILE_BYTES = 1 << 20 };

static const struct figure {
    const char *name;
    size_t field;
    bool whole; // int64_t, otherwise double
    bool required;
} figures[UP_FIGURE_COUNT] = {
#define BYTES(field)                                                                               \
    {                                                                                              \
#field, offsetof(struct up_machine, field), true, false                                    \
    }
#define RATE(name, field)                                                                          \
    {                                                                                              \
        name, offsetof(struct up_machine, field), false, true                                      \
    }
#define OPTIONAL(name, field)                                                                      \
    {                                                                                              \
        name, offsetof(struct up_machine, field), false, false                                     \
    }
#define PACE(name, class) OPTIONAL(name "_bytes_per_s", pace[class])
    [UP_FIGURE_DEVICE_BYTES] = BYTES(device_bytes),
    [UP_FIGURE_HOST_BYTES] = BYTES(host_bytes),
    [UP_FIGURE_MATMUL] = RATE("matmul_flops_per_s", flops[UP_COST_MATMUL]),
    [UP_FIGURE_ATTENTION_FORWARD] =
        RATE("attention_forward_flops_per_s", flops[UP_COST_ATTENTION_FORWARD]),
    [UP_FIGURE_ATTENTION_BACKWARD] =
        RATE("attention_backward_flops_per_s", flops[UP_COST_ATTENTION_BACKWARD]),
    [UP_FIGURE_ATTENTION_FORWARD_64] =
        OPTIONAL("attention_forward_64_flops_per_s", narrow_flops[UP_COST_ATTENTION_FORWARD]),
    [UP_FIGURE_ATTENTION_BACKWARD_64] =
        OPTIONAL("attention_backward_64_flops_per_s", narrow_flops[UP_COST_ATTENTION_BACKWARD]),
    [UP_FIGURE_ATTENTION_FORWARD_OWN] =
        OPTIONAL("attention_forward_own_flops_per_s", own_flops[UP_COST_ATTENTION_FORWARD]),
    [UP_FIGURE_ATTENTION_BACKWARD_OWN] =
        OPTIONAL("attention_backward_own_flops_per_s", own_flops[UP_COST_ATTENTION_BACKWARD]),
    [UP_FIGURE_ATTENTION_FORWARD_OWN_64] = OPTIONAL("attention_forward_own_64_flops_per_s",
                                                    own_narrow_flops[UP_COST_ATTENTION_FORWARD]),
    [UP_FIGURE_ATTENTION_BACKWARD_OWN_64] = OPTIONAL("attention_backward_own_64_flops_per_s",
                                                     own_narrow_flops[UP_COST_ATTENTION_BACKWARD]),
    [UP_FIGURE_MEMORY] = RATE("memory_bytes_per_s", memory_bytes_per_s),
    [UP_FIGURE_TO_HOST] = RATE("to_host_bytes_per_s", to_host_bytes_per_s),
    [UP_FIGURE_FROM_HOST] = RATE("from_host_bytes_per_s", from_host_bytes_per_s),
    [UP_FIGURE_NODE_TO_HOST] = OPTIONAL("node_to_host_bytes_per_s", node_to_host_bytes_per_s),
    [UP_FIGURE_NODE_FROM_HOST] = OPTIONAL("node_from_host_bytes_per_s", node_from_host_bytes_per_s),
    [UP_FIGURE_LINK] = RATE("link_bytes_per_s", link_bytes_per_s),
    [UP_FIGURE_MATMUL_PACE] = PACE("matmul", UP_COST_MATMUL),
    [UP_FIGURE_NORM_FORWARD] = PACE("norm_forward", UP_COST_NORM_FORWARD),
    [UP_FIGURE_NORM_BACKWARD] = PACE("norm_backward", UP_COST_NORM_BACKWARD),
    [UP_FIGURE_ROPE] = PACE("rope", UP_COST_ROPE),
    [UP_FIGURE_EMBED_BACKWARD] = PACE("embed_backward", UP_COST_EMBED_BACKWARD),
    [UP_FIGURE_CROSS_ENTROPY] = PACE("cross_entropy", UP_COST_CROSS_ENTROPY),
    [UP_FIGURE_ADAMW] = PACE("adamw", UP_COST_ADAMW),
    [UP_FIGURE_LAUNCH] = RATE("launch_s", launch_s),
    [UP_FIGURE_ATTENTION_FORWARD_RUN] =
        OPTIONAL("attention_forward_run_s", run_s[UP_COST_ATTENTION_FORWARD]),
    [UP_FIGURE_ATTENTION_BACKWARD_RUN] =
        OPTIONAL("attention_backward_run_s", run_s[UP_COST_ATTENTION_BACKWARD]),
    [UP_FIGURE_NODE_DEVICES] = BYTES(node_devices),
    [UP_FIGURE_CONTEXT] = BYTES(context_bytes),
    [UP_FIGURE_CUBLAS] = BYTES(cublas_bytes),
    [UP_FIGURE_CUDNN] = BYTES(cudnn_bytes),
    [UP_FIGURE_NCCL] = BYTES(nccl_bytes),
    [UP_FIGURE_NCCL_RANK] = BYTES(nccl_rank_bytes),
#undef BYTES
#undef RATE
#undef OPTIONAL
#undef PACE
};
static_assert(UP_NARROW_HEAD_DIM == 64, "which machine files say in the names of figures");

bool up_figure_is_whole(enum up_machine_figure figure)
{
    return figures[figure].whole;
}

const char *up_figure_name(enum up_machine_figure figure)
{
    return figures[figure].name;
}

static void set_figure(struct up_machine *machine, const struct figure *figure, double value)
{
    char *field = (char *)machine + figure->field;
    if (figure->whole)
        *(int64_t *)field = (int64_t)value;
    else
        *(double *)field = value;
}

void up_machine_figures(const struct up_machine *machine, struct up_figures *plain)
{
    memcpy(plain->name, machine->name, sizeof plain->name);
    for (int i = 0; i < UP_FIGURE_COUNT; i++) {
        const char *field = (const char *)machine + figures[i].field;
        plain->of[i] = figures[i].whole ? (double)*(const int64_t *)field : *(const double *)field;
    }
}

void up_machine_of_figures(const struct up_figures *plain, struct up_machine *machine)
{
    *machine = (struct up_machine){0};
    memcpy(machine->name, plain->name, sizeof machine->name);
    for (int i = 0; i < UP_FIGURE_COUNT; i++) set_figure(machine, &figures[i], plain->of[i]);
}

static const struct figure *figure_of(const char *name)
{
    for (int i = 0; i < UP_COUNT(figures); i++)
        if (!strcmp(figures[i].name, name)) return &figures[i];
    return NULL;
}

static enum up_status read_figure(const struct figure *figure, const json_t *entry,
                                  const char *source, struct up_machine *machine,
                                  struct up_error *err)
{
    const json_t *value = json_object_get(entry, "value");
    double number = json_is_number(value) ? json_number_value(value) : -1;
    bool sensible = number > 0 && number < 0x1p60 && (!figure->whole || number == floor(number));
    if (!json_is_string(json_object_get(entry, "source")) || !sensible)
        return up_fail(
            err, UP_USAGE,
            "--machine %s: %s: expected {\"value\": a positive %snumber, \"source\": where it "
            "is from}",
            source, figure->name, figure->whole ? "whole " : "");
    set_figure(machine, figure, number);
    return UP_OK;
}

static enum up_status read_object(json_t *root, const char *source, struct up_machine *machine,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
    const char *key, *name = json_string_value(json_object_get(root, "name"));
    json_t *entry;
    if (!name || !*name || strlen(name) >= sizeof machine->name)
        UP_TRY(up_fail(err, UP_USAGE, "--machine %s: name: expected a text of 1 to %zu bytes",
                       source, sizeof machine->name - 1));
    *machine = (struct up_machine){0};
    strcpy(machine->name, name);
    json_object_foreach(root, key, entry)
    {
        const struct figure *figure = figure_of(key);
        if (!strcmp(key, "name") || !strcmp(key, "about") || !strcmp(key, "device_name")) continue;
        if (!figure)
            UP_TRY(up_fail(err, UP_USAGE, "--machine %s: '%.60s' is not a figure of a machine",
                           source, key));
        UP_TRY(read_figure(figure, entry, source, machine, err));
    }
    for (int i = 0; i < UP_COUNT(figures); i++)
        if (figures[i].required && !json_object_get(root, figures[i].name))
            UP_TRY(up_fail(err, UP_USAGE, "--machine %s: %s is missing", source, figures[i].name));
out:
    return rc;
}

static enum up_status read_text(const char *text, size_t size, const char *source,
                                struct up_machine *machine, struct up_error *err)
{
    json_error_t error;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (!root && json_error_code(&error) == json_error_out_of_memory)
        return up_fail(err, UP_FAILED, "--machine %s: out of host memory", source);
    if (!json_is_object(root)) {
        json_decref(root);
        return up_fail(err, UP_USAGE, "--machine %s: expected a JSON object: line %d: %s", source,
                       error.line, root ? "another value" : error.text);
    }
    enum up_status rc = read_object(root, source, machine, err);
    json_decref(root);
    return rc;
}

// What is there is no machine file, or cannot be looked at.
static enum up_status refuse_file(const char *path, int error, struct up_error *err)
{
    char names[512] = "";
    if (up_errno_status(error) == UP_FAILED)
        return up_fail(err, UP_FAILED, "--machine %s: cannot be read: %s", path, strerror(error));
    for (const struct up_embedded *e = up_machine_files; e->name; e++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? ", " : "",
                 e->name);
    return up_fail(err, UP_USAGE, "--machine %s: expected one of %s, or a machine file", path,
                   names);
}

static enum up_status read_file(const char *path, struct up_machine *machine, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct stat status;
    char *text = NULL;
    FILE *file = fopen(path, "rbe");
    if (!file || fstat(fileno(file), &status)) UP_TRY(refuse_file(path, errno, err));
    if (!S_ISREG(status.st_mode)) UP_TRY(refuse_file(path, EISDIR, err));
    if (status.st_size > MAX_FILE_BYTES)
        UP_TRY(
            up_fail(err, UP_USAGE, "--machine %s: expected a machine file of at most 1 MiB", path));
    text = malloc((size_t)status.st_size + 1);
    if (!text) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    size_t size = fread(text, 1, (size_t)status.st_size, file);
    if (size < (size_t)status.st_size)
        UP_TRY(up_fail(err, UP_FAILED, "--machine %s: cannot be read to its end", path));
    UP_TRY(read_text(text, size, path, machine, err));
out:
    free(text);
    if (file) fclose(file);
    return rc;
}

bool up_machine_built_in(const char *name)
{
    const struct up_embedded *e = up_machine_files;
    while (e->name && strcmp(e->name, name) != 0) e++;
    return e->name != NULL;
}

enum up_status up_machine_find(const char *name, struct up_machine *machine, struct up_error *err)
{
    for (const struct up_embedded *e = up_machine_files; e->name; e++)
        if (!strcmp(e->name, name)) return read_text(e->text, strlen(e->text), name, machine, err);
    return read_file(name, machine, err);
}

enum up_status up_machine_of_device(const char *device_name, struct up_machine *machine,
                                    struct up_error *err)
{
    for (const struct up_embedded *e = up_machine_files; e->name; e++) {
        json_t *root = json_loads(e->text, 0, NULL);
        if (!root) return up_fail(err, UP_FAILED, "out of host memory");
        const char *name = json_string_value(json_object_get(root, "device_name"));
        bool same = name && !strcmp(name, device_name);
        json_decref(root);
        if (same) return up_machine_find(e->name, machine, err);
    }
    return UP_OK;
}

void up_machine_take_json(struct up_machine *machine, const json_t *object)
{
    const char *name = json_string_value(json_object_get(object, "name"));
    if (name) snprintf(machine->name, sizeof machine->name, "%s", name);
    for (int i = 0; i < UP_COUNT(figures); i++) {
        const json_t *value = json_object_get(object, figures[i].name);
        double number = json_is_number(value) ? json_number_value(value) : -1;
        bool sensible = number < 0x1p60 && (figures[i].required ? number > 0 : number >= 0);
        if (!sensible) continue;
        char *field = (char *)machine + figures[i].field;
        if (figures[i].whole)
            *(int64_t *)field = (int64_t)number;
        else
            *(double *)field = number;
    }
}

char *up_machine_json(const struct up_machine *machine)
{
    json_t *root = json_pack("{s:s}", "name", machine->name);
    int failed = !root;
    for (int i = 0; i < UP_COUNT(figures); i++) {
        const char *field = (const char *)machine + figures[i].field;
        json_t *value = figures[i].whole ? json_integer(*(const int64_t *)field)
                                         : json_real(*(const double *)field);
        failed |= json_object_set_new(root, figures[i].name, value);
    }
    char *text = failed ? NULL : json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(root);
    return text;
}

enum up_status up_figures_find(const char *name, struct up_figures *plain, struct up_error *err)
{
    struct up_machine machine;
    enum up_status rc = up_machine_find(name, &machine, err);
    if (rc == UP_OK) up_machine_figures(&machine, plain);
    return rc;
}

enum up_status up_figures_stored(const char *json, struct up_figures *plain, bool *found,
                                 struct up_error *err)
{
    json_error_t error;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &error);
    if (!root && json_error_code(&error) == json_error_out_of_memory)
        return up_fail(err, UP_FAILED, "out of host memory");
    const char *name = json_string_value(json_object_get(root, "name"));
    bool read = name && *name && strlen(name) < sizeof plain->name;
    if (read) strcpy(plain->name, name);
    for (int i = 0; read && i < UP_FIGURE_COUNT; i++) {
        plain->of[i] = json_number_value(json_object_get(root, figures[i].name));
        read = plain->of[i] >= (figures[i].required ? 0x1p-60 : 0) && plain->of[i] < 0x1p60;
    }
    json_decref(root);
    *found = read;
    return UP_OK;
}
