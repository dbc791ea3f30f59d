#include "trainer/advisor/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t unbounded = (int64_t)1 << 60;

struct up_limits up_limits_of(const struct up_machine *machine, enum up_device_kind as,
                              int64_t device_bytes)
{
    struct up_limits limits = {.device_bytes = machine->device_bytes,
                               .host_bytes = machine->host_bytes,
                               .node_ranks = machine->node_devices,
                               .shared = as == UP_DEVICE_CPU};
    if (device_bytes && (!limits.device_bytes || device_bytes < limits.device_bytes))
        limits.device_bytes = device_bytes;
    return limits;
}

int64_t up_limits_ranks(const struct up_limits *limits, const struct up_config *config)
{
    int64_t ranks = up_config_ranks(config);
    return limits->node_ranks ? up_min(ranks, limits->node_ranks) : ranks;
}

int64_t up_limits_host_need(const struct up_limits *limits, const struct up_config *config,
                            const struct up_forecast *forecast)
{
    int64_t ranks = up_limits_ranks(limits, config), need = up_forecast_host_need(forecast);
    if (limits->shared) need += up_forecast_device_need(forecast);
    return __builtin_mul_overflow(need, ranks, &need) ? INT64_MAX : need;
}

enum up_room up_limits_check(const struct up_limits *limits, const struct up_config *config,
                             const struct up_forecast *forecast)
{
    if (forecast->beyond) return UP_ROOM_DEVICE;
    if (limits->device_bytes && up_forecast_device_need(forecast) > limits->device_bytes)
        return UP_ROOM_DEVICE;
    if (limits->host_bytes && up_limits_host_need(limits, config, forecast) > limits->host_bytes)
        return UP_ROOM_HOST;
    return UP_ROOM_FITS;
}

/* --- Without a dry run ---------------------------------------------------------------------------
 */

// A product that stays at 2^60.
static int64_t times(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > unbounded ? unbounded : product;
}

int64_t up_limits_state(const struct up_config *config)
{
    int64_t dtype = up_dtype_bytes[config->dtype];
    int64_t bytes = config->optimizer_host ? 4 + dtype : 16;
    int64_t share = up_model_parameters(&config->model);
    if (config->fsdp) share /= up_config_ranks(config);
    return times(share, bytes);
}

// Elements that block `layer` keeps for its backward besides its input, a local token.
static int64_t kept_beside_input(const struct up_config *config, int64_t layer)
{
    const struct up_model *m = &config->model;
    int64_t attention = m->heads * m->head_dim;
    switch (up_config_checkpoint(config, layer)) {
    case UP_CHECKPOINT_BLOCK:
        return 0;
    case UP_CHECKPOINT_ATTN:
        return attention;
    default:
        return m->hidden + 2 * attention + 2 * m->ff;
    }
}

static int64_t kept_bytes(const struct up_config *config, bool on_host)
{
    int64_t sum = 0, tokens = config->batch * (config->seq / config->cp);
    for (int64_t layer = 0; layer < up_config_layers(config); layer++) {
        if (up_config_offloads_input(config, layer) == on_host) sum += config->model.hidden;
        if (up_config_offloads_attention(config, layer) == on_host)
            sum += kept_beside_input(config, layer);
    }
    return times(times(sum, tokens), up_dtype_bytes[config->dtype]);
}

int64_t up_limits_device_floor(const struct up_config *config)
{
    bool all_sent = config->offload_layers >= up_config_layers(config);
    int64_t kept = all_sent ? 0 : kept_bytes(config, false);
    return up_limits_state(config) + kept;
}

int64_t up_limits_host_floor(const struct up_config *config)
{
    int64_t share = up_model_parameters(&config->model);
    if (config->fsdp) share /= up_config_ranks(config);
    return kept_bytes(config, true) + (config->optimizer_host ? times(share, 12) : 0);
}

/* --- The host as it is ---------------------------------------------------------------------------
 */

// The number after `key` in a file of "key number" lines; the file's first where key is NULL. -1:
// there is none ("max", say).
static int64_t read_number(const char *path, const char *key)
{
    char line[256];
    long long number = -1;
    FILE *file = fopen(path, "re");
    while (file && number < 0 && fgets(line, sizeof line, file)) {
        size_t length = key ? strlen(key) : 0;
        if (key && (strncmp(line, key, length) != 0 || !strchr(": \t", line[length]))) continue;
        if (sscanf(line + length + (key != NULL), "%lld", &number) != 1) number = -1;
        if (!key) break;
    }
    if (file) fclose(file);
    return number;
}

struct cgroup_files {
    const char *limit, *used;
};

// What a cgroup's folder leaves: files that nobody has open any more count as free. -1: no limit.
static int64_t cgroup_leaves(const char *folder, const struct cgroup_files *files)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, files->limit);
    int64_t limit = read_number(path, NULL);
    if (limit < 0 || limit >= unbounded) return -1;
    snprintf(path, sizeof path, "%s/%s", folder, files->used);
    int64_t used = read_number(path, NULL);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    int64_t cached = read_number(path, "inactive_file");
    return up_max(0, limit - up_max(0, used - up_max(0, cached)));
}

static int64_t lesser_known(int64_t a, int64_t b)
{
    if (a < 0 || b < 0) return up_max(a, b);
    return up_min(a, b);
}

// The process' cgroup and all above it, under `root`.
static int64_t cgroups_leave(const char *root, const char *path, const struct cgroup_files *files)
{
    char folder[4096];
    int64_t least = -1;
    snprintf(folder, sizeof folder, "%s%s", root, path);
    for (;;) {
        least = lesser_known(least, cgroup_leaves(folder, files));
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < strlen(root)) return least;
        *slash = 0;
    }
}

static int64_t all_cgroups_leave(void)
{
    static const struct cgroup_files new_files = {"memory.max", "memory.current"};
    static const struct cgroup_files old_files = {"memory.limit_in_bytes", "memory.usage_in_bytes"};
    char line[2048];
    int64_t least = -1;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *colon = strchr(line, ':'), *path = colon ? strchr(colon + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        if (!colon[1])
            least = lesser_known(least, cgroups_leave("/sys/fs/cgroup", path, &new_files));
        else if (strstr(colon + 1, "memory"))
            least = lesser_known(least, cgroups_leave("/sys/fs/cgroup/memory", path, &old_files));
    }
    if (file) fclose(file);
    return least;
}

int64_t up_limits_host_now(void)
{
    int64_t available = read_number("/proc/meminfo", "MemAvailable");
    if (available > 0) available = times(available, 1024);
    available = lesser_known(available, all_cgroups_leave());
    return available > 0 ? available - available / 20 : 0;
}
