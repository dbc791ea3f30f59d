/* What differs between the configurations of two runs, from meta.config. The options say it all of
 * a run of upipe's own, but for the shape of a model that is a folder; what else stands there is
 * compared by its path. */
#include "report/analysis/measured.h"

#include <stdlib.h>
#include <string.h>

enum up_status up_config_stored(const struct up_run *run, json_t **config, struct up_error *err)
{
    enum up_status rc = UP_OK;
    json_error_t error = {0};
    char *text;
    *config = NULL;
    UP_TRY(up_query_meta(run, "config", &text, err));
    *config = json_loads(text, 0, &error);
    if (!*config && json_error_code(&error) == json_error_out_of_memory) rc = up_no_memory(err);
out:
    free(text);
    return rc;
}

// Where a run's own files are says nothing about the run.
static bool is_about_files(const char *option)
{
    static const char *const names[] = {"trace", "json-log", "save"};
    for (int i = 0; i < UP_COUNT(names); i++)
        if (!strcmp(names[i], option)) return true;
    return false;
}

// A scalar as a person would type it; false for null and for what has parts.
static bool value_text(const json_t *value, char *text, size_t size)
{
    text[0] = 0;
    if (json_is_string(value))
        snprintf(text, size, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(text, size, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, size, "%.6g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(text, size, json_is_true(value) ? "on" : "off");
    else
        return false;
    return true;
}

static bool is_one_of(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

// Options without a default are recorded as a number that cannot be given, and so are figures that
// are not known; older traces lack them.
static bool was_not_given(const char *name, const char *value)
{
    static const char *const zero[] = {"active-layers", "threads", "chaos", "memory-limit",
                                       "save-every"};
    if (!*value || !strcmp(value, "-1:-1")) return true;
    bool figure = !strncmp(name, "machine.", 8); // of a machine: what is not known of it
    return !strcmp(value, "0") && (figure || is_one_of(name, zero, UP_COUNT(zero)));
}

static enum up_status add(struct up_config_differences *differences, const char *name,
                          const json_t *a, const json_t *b, struct up_error *err)
{
    struct up_config_difference difference = {0};
    snprintf(difference.name, sizeof difference.name, "%s", name);
    value_text(a, difference.value[0], sizeof difference.value[0]);
    value_text(b, difference.value[1], sizeof difference.value[1]);
    if (was_not_given(name, difference.value[0]) && was_not_given(name, difference.value[1]))
        return UP_OK;
    enum up_status rc = up_grow(&differences->items, differences->count, &differences->capacity,
                                sizeof *differences->items, err);
    if (rc == UP_OK) differences->items[differences->count++] = difference;
    return rc;
}

enum { DEEPEST = 8 };

// Members of two objects under a dotted prefix; `depth` bounds what a file can make of it.
static enum up_status compare_objects(const json_t *a, const json_t *b, const char *prefix,
                                      int depth, struct up_config_differences *differences,
                                      struct up_error *err);

static enum up_status compare_member(const char *key, const json_t *a, const json_t *b,
                                     const char *prefix, int depth,
                                     struct up_config_differences *differences,
                                     struct up_error *err)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, key);
    if (json_is_null(a)) a = NULL;
    if (json_is_null(b)) b = NULL;
    if (!a && !b) return UP_OK;
    if (json_equal((json_t *)a, (json_t *)b)) return UP_OK;
    if (json_is_object(a) || json_is_object(b)) {
        strncat(name, ".", sizeof name - strlen(name) - 1);
        return depth < DEEPEST ? compare_objects(a, b, name, depth + 1, differences, err) : UP_OK;
    }
    if (!*prefix && is_about_files(key)) return UP_OK;
    return add(differences, name, a, b, err);
}

static enum up_status compare_objects(const json_t *a, const json_t *b, const char *prefix,
                                      int depth, struct up_config_differences *differences,
                                      struct up_error *err)
{
    enum up_status rc = UP_OK;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)a, key, value) UP_TRY(
        compare_member(key, value, json_object_get(b, key), prefix, depth, differences, err));
    json_object_foreach((json_t *)b, key, value) if (!json_object_get(a, key))
        UP_TRY(compare_member(key, NULL, value, prefix, depth, differences, err));
out:
    return rc;
}

static bool computed(const json_t *config)
{
    const json_t *device = json_object_get(json_object_get(config, "options"), "device");
    return !device || !json_is_string(device) || strcmp(json_string_value(device), "dry") != 0;
}

// The host memory of a run that computed is what was free of it when that began: no two are alike.
static enum up_status compare_machines(const json_t *a, const json_t *b,
                                       struct up_config_differences *differences,
                                       struct up_error *err)
{
    const json_t *there[2] = {json_object_get(a, "machine"), json_object_get(b, "machine")};
    json_t *machines[2];
    for (int side = 0; side < 2; side++) {
        machines[side] = there[side] ? json_copy((json_t *)there[side]) : json_object();
        if (computed(a) || computed(b)) json_object_del(machines[side], "host_bytes");
    }
    enum up_status rc =
        machines[0] && machines[1]
            ? compare_objects(machines[0], machines[1], "machine.", 1, differences, err)
            : up_no_memory(err);
    json_decref(machines[0]);
    json_decref(machines[1]);
    return rc;
}

// Options first; then the model's shape and what stands beside both, without "config", which only
// repeats what the options say.
static enum up_status compare_configs(const json_t *a, const json_t *b,
                                      struct up_config_differences *differences,
                                      struct up_error *err)
{
    enum up_status rc = UP_OK;
    const json_t *options[2] = {json_object_get(a, "options"), json_object_get(b, "options")};
    if (!options[0] && !options[1]) return compare_objects(a, b, "", 0, differences, err);
    UP_TRY(compare_objects(options[0], options[1], "", 0, differences, err));
    UP_TRY(compare_objects(json_object_get(json_object_get(a, "config"), "model"),
                           json_object_get(json_object_get(b, "config"), "model"), "model.", 1,
                           differences, err));
    UP_TRY(compare_machines(a, b, differences, err));
out:
    return rc;
}

enum up_status up_config_compare(const struct up_run *a, const struct up_run *b,
                                 struct up_config_differences *differences, struct up_error *err)
{
    enum up_status rc = UP_OK;
    json_t *configs[2] = {NULL, NULL};
    *differences = (struct up_config_differences){0};
    UP_TRY(up_config_stored(a, &configs[0], err));
    UP_TRY(up_config_stored(b, &configs[1], err));
    for (int side = 0; side < 2; side++)
        differences->unknown[side] = !json_is_object(configs[side]);
    if (!differences->unknown[0] && !differences->unknown[1])
        UP_TRY(compare_configs(configs[0], configs[1], differences, err));
out:
    json_decref(configs[0]);
    json_decref(configs[1]);
    return rc;
}

void up_config_differences_release(struct up_config_differences *differences)
{
    free(differences->items);
    *differences = (struct up_config_differences){0};
}

/* --- How a value is told -------------------------------------------------------------------------
 */

// Reals are recorded with 17 digits, where fewer may tell the same number: 0.003 is told so.
static void drop_digits(char text[64])
{
    char *end, fewer[64];
    double number = strtod(text, &end);
    if (strlen(text) < 17 || *end || !strchr(text, '.')) return;
    for (int digits = 1; digits < 17; digits++) {
        snprintf(fewer, sizeof fewer, "%.*g", digits, number);
        if (strtod(fewer, NULL) != number) continue;
        memcpy(text, fewer, sizeof fewer);
        return;
    }
}

static void with_unit(const char *name, const char *value, char text[64])
{
    static const char *const tokens[] = {"seq", "tile-mlp", "tile-loss", "tile-attn"};
    static const char *const sizes[] = {"memory-limit", "nccl-buffers"};
    const char *bytes = strstr(name, "_bytes");
    int64_t number;
    snprintf(text, 64, "%s", was_not_given(name, value) ? "not given" : value);
    drop_digits(text);
    if (was_not_given(name, value) || !up_parse_integer(value, &number) || number < 0) return;
    if (is_one_of(name, tokens, UP_COUNT(tokens))) up_format_count(text, number);
    if (is_one_of(name, sizes, UP_COUNT(sizes)) || (bytes && !bytes[strlen("_bytes")]))
        up_format_bytes(text, (uint64_t)number);
}

const char *up_config_value_text(const struct up_config_difference *difference, int side,
                                 char text[64])
{
    char other[64];
    with_unit(difference->name, difference->value[side], text);
    with_unit(difference->name, difference->value[!side], other);
    // A difference below what a rounded size shows.
    if (!strcmp(text, other)) snprintf(text, 64, "%s", difference->value[side]);
    return text;
}
