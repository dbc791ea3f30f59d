#include "trainer/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 29500, PORT_LAST = 65535, PORTS = 3, PROCESSES_MAX = 1 << 16 };

static const char loopback[] = "127.0.0.1";

/* A launcher's variables, how to know that all processes are on this node (as many here as there
 * are in all, or one node), and what the run is called in all its processes. */
struct launcher {
    const char *rank, *size, *local;
    const char *local_size, *nodes; // NULL: it has none
    const char *job[2];
};

enum { TORCHRUN, OPEN_MPI, SLURM };
static const struct launcher launchers[] = {
    [TORCHRUN] =
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL, {"TORCHELASTIC_RUN_ID"}},
    [OPEN_MPI] = {"OMPI_COMM_WORLD_RANK",
                  "OMPI_COMM_WORLD_SIZE",
                  "OMPI_COMM_WORLD_LOCAL_RANK",
                  "OMPI_COMM_WORLD_LOCAL_SIZE",
                  NULL,
                  {"PMIX_NAMESPACE"}},
    [SLURM] = {"SLURM_PROCID",
               "SLURM_NTASKS",
               "SLURM_LOCALID",
               NULL,
               "SLURM_STEP_NUM_NODES",
               {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

struct reading {
    up_getenv *get;
    void *context;
    struct up_error *err;
};

// An empty variable is one that is not set.
static const char *get(const struct reading *reading, const char *name)
{
    const char *value = name ? reading->get(reading->context, name) : NULL;
    return value && *value ? value : NULL;
}

const char *up_launch_getenv(void *unused, const char *name)
{
    (void)unused;
    return getenv(name);
}

static enum up_status read_number(const struct reading *reading, const char *name, int64_t least,
                                  int64_t most, int *value)
{
    const char *text = get(reading, name);
    int64_t number = 0;
    if (text && up_parse_integer(text, &number) && number >= least && number <= most) {
        *value = (int)number;
        return UP_OK;
    }
    return up_fail(reading->err, UP_USAGE, "%s%s%s: expected a whole number from %lld to %lld",
                   name, text ? "=" : " is not set", text ? text : "", (long long)least,
                   (long long)most);
}

/* --- Whose variables ---------------------------------------------------------------------------
 */

// In a job step, and not in the batch script that starts steps.
static bool in_slurm_step(const struct reading *reading)
{
    static const char *const signs[] = {"SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS",
                                        "SLURM_LAUNCH_NODE_IPADDR"};
    for (int i = 0; i < UP_COUNT(signs); i++)
        if (get(reading, signs[i])) return true;
    return false;
}

static const struct launcher *find_launcher(const struct reading *reading)
{
    for (int i = 0; i < UP_COUNT(launchers); i++) {
        const struct launcher *launcher = &launchers[i];
        bool here = get(reading, launcher->rank) || get(reading, launcher->size);
        if (here && (i != SLURM || in_slurm_step(reading))) return launcher;
    }
    return NULL;
}

static enum up_status read_place(const struct reading *reading, const struct launcher *launcher,
                                 struct up_launch *launch)
{
    enum up_status rc = UP_OK;
    UP_TRY(read_number(reading, launcher->size, 1, PROCESSES_MAX, &launch->processes));
    UP_TRY(read_number(reading, launcher->rank, 0, launch->processes - 1, &launch->process));
    if (launch->processes > 1)
        UP_TRY(read_number(reading, launcher->local, 0, launch->processes - 1, &launch->local));
out:
    return rc;
}

/* --- Where process 0 is ------------------------------------------------------------------------
 */

// How many processes are on this node. Over nodes that are counted they are taken to be spread
// evenly.
static enum up_status count_here(const struct reading *reading, const struct launcher *launcher,
                                 struct up_launch *launch)
{
    enum up_status rc = UP_OK;
    int nodes = 1;
    launch->here = launch->processes;
    if (get(reading, launcher->local_size)) {
        UP_TRY(read_number(reading, launcher->local_size, 1, launch->processes, &launch->here));
    } else if (get(reading, launcher->nodes)) {
        UP_TRY(read_number(reading, launcher->nodes, 1, PROCESSES_MAX, &nodes));
        launch->here = (int)up_ceil_div(launch->processes, nodes);
    }
out:
    return rc;
}

// Where nobody tells, they may be anywhere.
static bool all_are_here(const struct reading *reading, const struct launcher *launcher,
                         const struct up_launch *launch)
{
    bool told = get(reading, launcher->local_size) || get(reading, launcher->nodes);
    return told && launch->here == launch->processes;
}

// The first of "node[07-12,15],login": of each list in brackets the first number. False if it is
// too long.
static bool first_host(const char *list, char *out, size_t size)
{
    size_t used = 0;
    bool skip = false; // within brackets, behind their first number
    int depth = 0;
    for (const char *at = list; *at && (depth || *at != ','); at++) {
        if (*at == '[' || *at == ']') {
            depth += *at == '[' ? 1 : -1;
            skip = false;
        } else if (depth && (*at == ',' || *at == '-')) {
            skip = true;
        } else if (!skip) {
            if (used + 1 >= size) return false;
            out[used++] = *at;
        }
    }
    out[used] = 0;
    return used > 0;
}

static enum up_status refuse_address(const struct reading *reading, const struct launcher *launcher)
{
    if (launcher == &launchers[TORCHRUN])
        return up_fail(reading->err, UP_USAGE,
                       "MASTER_ADDR is not set, and WORLD_SIZE is: expected the name or address of "
                       "process 0's node");
    return up_fail(reading->err, UP_USAGE,
                   "MASTER_ADDR is not set, and the processes are on several nodes: expected the "
                   "name or address of process 0's node (%s)",
                   launcher == &launchers[OPEN_MPI] ? "mpirun -x MASTER_ADDR=..."
                                                    : "export MASTER_ADDR=...");
}

static enum up_status find_address(const struct reading *reading, const struct launcher *launcher,
                                   struct up_launch *launch)
{
    enum up_status rc = UP_OK;
    const char *given = get(reading, "MASTER_ADDR");
    const char *nodes = launcher == &launchers[SLURM] ? get(reading, "SLURM_STEP_NODELIST") : NULL;
    UP_TRY(count_here(reading, launcher, launch));
    // Names may mean another interface, or nothing, on a machine of one's own.
    if (all_are_here(reading, launcher, launch)) given = loopback;
    if (!given && nodes && first_host(nodes, launch->address, sizeof launch->address)) goto out;
    if (!given && launcher == &launchers[SLURM]) given = get(reading, "SLURM_LAUNCH_NODE_IPADDR");
    if (!given) UP_TRY(refuse_address(reading, launcher));
    if (strlen(given) >= sizeof launch->address)
        UP_TRY(up_fail(reading->err, UP_USAGE, "MASTER_ADDR: expected at most %zu characters",
                       sizeof launch->address - 1));
    snprintf(launch->address, sizeof launch->address, "%s", given);
out:
    return rc;
}

static enum up_status find_ports(const struct reading *reading, struct up_launch *launch)
{
    enum up_status rc = UP_OK;
    int port = PORT;
    if (get(reading, "MASTER_PORT"))
        UP_TRY(read_number(reading, "MASTER_PORT", 1, PORT_LAST - PORTS + 1, &port));
    launch->nccl_port = port + 1;
    launch->port = port + 2;
    bool v6 = strchr(launch->address, ':') != NULL;
    snprintf(launch->nccl_id, sizeof launch->nccl_id, "%s%s%s:%d", v6 ? "[" : "", launch->address,
             v6 ? "]" : "", launch->nccl_port);
out:
    return rc;
}

static void add_to_hash(uint64_t *hash, const char *text)
{
    for (; *text; text++) *hash = up_hash64(*hash ^ (unsigned char)*text);
    *hash = up_hash64(*hash);
}

static void find_job(const struct reading *reading, const struct launcher *launcher,
                     struct up_launch *launch)
{
    uint64_t hash = 0;
    bool known = false;
    for (int i = 0; i < UP_COUNT(launcher->job); i++) {
        const char *word = get(reading, launcher->job[i]);
        add_to_hash(&hash, word ? word : "");
        known |= word != NULL;
    }
    if (known) snprintf(launch->job, sizeof launch->job, "%016llx", (unsigned long long)hash);
}

enum up_status up_launch_find(up_getenv *get_one, void *context, struct up_launch *launch,
                              struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct reading reading = {get_one, context, err};
    *launch = (struct up_launch){.processes = 1, .here = 1};
    const struct launcher *launcher = find_launcher(&reading);
    if (!launcher) return UP_OK;
    launch->size_name = launcher->size;
    rc = read_place(&reading, launcher, launch);
    if (rc) launch->processes = 1; // which of them this is is not known
    if (rc || launch->processes == 1) return rc;
    UP_TRY(find_address(&reading, launcher, launch));
    UP_TRY(find_ports(&reading, launch));
    find_job(&reading, launcher, launch);
out:
    return rc;
}

/* --- What is whose -----------------------------------------------------------------------------
 */

enum up_status up_launch_ranks(const struct up_launch *launch,
                               const struct up_train_options *options,
                               const struct up_config *config, int *first, int *count,
                               struct up_error *err)
{
    int64_t ranks = up_config_ranks(config), processes = launch->processes;
    bool dry = up_train_device(options) == UP_DEVICE_DRY;
    if (processes > 1 && up_train_device(options) != UP_DEVICE_CUDA)
        return up_fail(err, UP_USAGE,
                       "--device %s: %s is %d, and each process would %s alone: expected --device "
                       "cuda, or one process",
                       dry ? "dry" : "cpu", launch->size_name, launch->processes,
                       dry ? "forecast" : "train");
    if (ranks % processes)
        return up_fail(err, UP_USAGE,
                       "--ranks: %lld rank%s cannot be shared by %lld processes (%s): expected a "
                       "multiple, as with --ranks %lld, --cp %lld or --dp %lld",
                       (long long)ranks, ranks > 1 ? "s" : "", (long long)processes,
                       launch->size_name, (long long)processes, (long long)processes,
                       (long long)processes);
    *count = dry ? 1 : (int)(ranks / processes);
    *first = launch->process * *count;
    return UP_OK;
}

enum up_status up_launch_gpus(const struct up_launch *launch, int count, int visible, int *first,
                              struct up_error *err)
{
    *first = 0;
    if (launch->processes == 1 && visible < count)
        return up_fail(err, UP_USAGE, "--device cuda: %d ranks need as many GPUs: %d %s here",
                       count, visible, visible == 1 ? "is" : "are");
    // Else the launcher gave each process GPUs of its own (CUDA_VISIBLE_DEVICES).
    if (launch->processes == 1 || visible == count) return UP_OK;
    int64_t wanted = ((int64_t)launch->local + 1) * count;
    if (visible < wanted)
        return up_fail(err, UP_USAGE,
                       "--device cuda: process %d, number %d of its node, has %d rank%s: expected "
                       "%d GPU%s of its own or at least %lld to choose from: %d %s here",
                       launch->process, launch->local, count, count > 1 ? "s" : "", count,
                       count > 1 ? "s" : "", (long long)wanted, visible,
                       visible == 1 ? "is" : "are");
    *first = launch->local * count;
    return UP_OK;
}

enum up_status up_launch_hash(const struct up_train_options *options,
                              const struct up_config *config, int64_t steps_done,
                              char out[UP_LAUNCH_HASH], struct up_error *err)
{
    char text[128];
    struct up_train_options settled = *options;
    uint64_t hash = up_hash64((uint64_t)steps_done);
    if (!up_config_hash(config, out)) return up_fail(err, UP_FAILED, "out of host memory");
    up_train_options_settle(&settled, config);
    add_to_hash(&hash, out);
    for (const struct up_option *option = up_train_option_table; option->name; option++) {
        if (option->kind == UP_OPTION_TEXT || !strcmp(option->name, "threads")) continue;
        add_to_hash(&hash, option->name);
        if (up_option_text(option, &settled, text, sizeof text)) add_to_hash(&hash, text);
    }
    add_to_hash(&hash, options->save ? "saves" : "does not save");
    snprintf(out, UP_LAUNCH_HASH, "%016llx", (unsigned long long)hash);
    return UP_OK;
}

char *up_launch_trace_path(const struct up_launch *launch, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = *name ? strrchr(name + 1, '.') : NULL; // ".db" is a name
    int stem = (int)(dot ? dot - path : (ptrdiff_t)strlen(path));
    size_t size = strlen(path) + 16;
    char *out = malloc(size);
    if (out && launch->processes == 1)
        snprintf(out, size, "%s", path);
    else if (out)
        snprintf(out, size, "%.*s.%d%s", stem, path, launch->process, path + stem);
    return out;
}
