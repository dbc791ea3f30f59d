/* Which process of how many, from what torchrun, mpirun and srun put into the environment. */
#include "trainer/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { VARIABLES = 12 };

// "NAME=value", to NULL.
static const char *from_list(void *context, const char *name)
{
    const char *const *list = context;
    size_t length = strlen(name);
    for (int i = 0; i < VARIABLES && list[i]; i++)
        if (!strncmp(list[i], name, length) && list[i][length] == '=') return list[i] + length + 1;
    return NULL;
}

static enum up_status find(const char *const *list, struct up_launch *launch, struct up_error *err)
{
    return up_launch_find(from_list, (void *)list, launch, err);
}

struct found {
    const char *variables[VARIABLES];
    int process, processes, local;
    const char *address;
    int port;
    const char *nccl_id;
};

static const struct found found[] = {
    {{NULL}, 0, 1, 0, "", 0, ""},
    {{"HOME=/root", "RANK="}, 0, 1, 0, "", 0, ""},
    {{"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "MASTER_ADDR=a", "MASTER_PORT=1"},
     0,
     1,
     0,
     "",
     0,
     ""},
    // torchrun on one node, whatever name it gives this machine, and on two.
    {{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=odd.name",
      "MASTER_PORT=40000"},
     1,
     2,
     1,
     "127.0.0.1",
     40002,
     "127.0.0.1:40001"},
    {{"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=node7",
      "MASTER_PORT=29500"},
     3,
     4,
     1,
     "node7",
     29502,
     "node7:29501"},
    {{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=fe80::1", "MASTER_PORT=65533"},
     1,
     2,
     0,
     "fe80::1",
     65535,
     "[fe80::1]:65534"},
    // mpirun: no address is needed on one node; on several it is, and the port may be said.
    {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0",
      "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
     0,
     2,
     0,
     "127.0.0.1",
     29502,
     "127.0.0.1:29501"},
    {{"OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=1",
      "OMPI_COMM_WORLD_LOCAL_SIZE=4", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=1000"},
     5,
     8,
     1,
     "10.0.0.1",
     1002,
     "10.0.0.1:1001"},
    // srun: the first node of the step, in its compressed form.
    {{"SLURM_PROCID=2", "SLURM_NTASKS=4", "SLURM_LOCALID=0", "SLURM_STEP_NUM_NODES=2",
      "SLURM_STEP_NODELIST=gpu-a[07-09,12]-x[3,4],login", "SLURM_LAUNCH_NODE_IPADDR=10.1.1.1"},
     2,
     4,
     0,
     "gpu-a07-x3",
     29502,
     "gpu-a07-x3:29501"},
    {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_LOCALID=0", "SLURM_STEP_NODELIST=n1,n2"},
     1,
     2,
     0,
     "n1",
     29502,
     "n1:29501"},
    {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_LOCALID=1", "SLURM_STEP_NUM_NODES=1",
      "SLURM_STEP_NODELIST=n1"},
     1,
     2,
     1,
     "127.0.0.1",
     29502,
     "127.0.0.1:29501"},
    {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_LOCALID=0", "SLURM_LAUNCH_NODE_IPADDR=10.1.1.1"},
     1,
     2,
     0,
     "10.1.1.1",
     29502,
     "10.1.1.1:29501"},
    {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_LOCALID=0", "SLURM_STEP_NODELIST=n[1-2]",
      "MASTER_ADDR=chosen", "MASTER_PORT=5000"},
     1,
     2,
     0,
     "chosen",
     5002,
     "chosen:5001"},
    // The batch script itself is no task of a step.
    {{"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_LOCALID=0"}, 0, 1, 0, "", 0, ""},
    // torchrun within mpirun within srun: the innermost.
    {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_LOCALID=0", "SLURM_STEP_NODELIST=n[1-2]", "RANK=2",
      "WORLD_SIZE=4", "LOCAL_RANK=0", "MASTER_ADDR=n1", "MASTER_PORT=5000"},
     2,
     4,
     0,
     "n1",
     5002,
     "n1:5001"},
    {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_LOCALID=0", "SLURM_STEP_NUM_NODES=1",
      "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_LOCAL_RANK=2",
      "OMPI_COMM_WORLD_LOCAL_SIZE=3"},
     2,
     3,
     2,
     "127.0.0.1",
     29502,
     "127.0.0.1:29501"},
};

// How many processes share this node's memory.
static void test_here(void **state)
{
    (void)state;
    static const struct {
        const char *variables[VARIABLES];
        int here;
    } rows[] = {
        {{NULL}, 1},
        {{"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=a"}, 2},
        {{"RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=0", "MASTER_ADDR=a"}, 4}, // nobody tells
        {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=6", "OMPI_COMM_WORLD_LOCAL_RANK=0",
          "OMPI_COMM_WORLD_LOCAL_SIZE=3", "MASTER_ADDR=a"},
         3},
        {{"SLURM_PROCID=0", "SLURM_NTASKS=7", "SLURM_LOCALID=0", "SLURM_STEP_NUM_NODES=2",
          "SLURM_STEP_NODELIST=n[1-2]"},
         4},
    };
    for (int i = 0; i < UP_COUNT(rows); i++) {
        struct up_launch launch;
        struct up_error error = {0};
        if (find(rows[i].variables, &launch, &error)) fail_msg("case %d: %s", i, error.text);
        assert_int_equal(launch.here, rows[i].here);
    }
}

static void test_launchers(void **state)
{
    (void)state;
    for (int i = 0; i < UP_COUNT(found); i++) {
        struct up_launch launch;
        struct up_error error = {0};
        const struct found *f = &found[i];
        if (find(f->variables, &launch, &error)) fail_msg("case %d: %s", i, error.text);
        assert_int_equal(launch.process, f->process);
        assert_int_equal(launch.processes, f->processes);
        assert_int_equal(launch.local, f->local);
        assert_string_equal(launch.address, f->address);
        assert_int_equal(launch.port, f->port);
        assert_int_equal(launch.nccl_port, f->port ? f->port - 1 : 0);
        assert_string_equal(launch.nccl_id, f->nccl_id);
    }
}

struct refused {
    const char *variables[VARIABLES];
    const char *says;
};

static const struct refused refused[] = {
    {{"WORLD_SIZE=2"}, "RANK is not set: expected a whole number from 0 to 1"},
    {{"RANK=1"}, "WORLD_SIZE is not set: expected"},
    {{"RANK=2", "WORLD_SIZE=2", "LOCAL_RANK=0"}, "RANK=2: expected a whole number from 0 to 1"},
    {{"RANK=-1", "WORLD_SIZE=2", "LOCAL_RANK=0"}, "RANK=-1: expected"},
    {{"RANK=0", "WORLD_SIZE=0"}, "WORLD_SIZE=0: expected a whole number from 1"},
    {{"RANK=0", "WORLD_SIZE=two"}, "WORLD_SIZE=two: expected"},
    {{"RANK=0", "WORLD_SIZE=99999999999999999999"}, "WORLD_SIZE=99999999999999999999: expected"},
    {{"RANK=0", "WORLD_SIZE=2"}, "LOCAL_RANK is not set: expected"},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=2"}, "LOCAL_RANK=2: expected"},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_PORT=29500"}, "MASTER_ADDR is not set"},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=a", "MASTER_PORT=65534"},
     "MASTER_PORT=65534: expected a whole number from 1 to 65533"},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=3", "MASTER_ADDR=a"},
     "LOCAL_WORLD_SIZE=3: expected a whole number from 1 to 2"},
    {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0",
      "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
     "mpirun -x MASTER_ADDR="},
    {{"OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0"}, "OMPI_COMM_WORLD_RANK is not set"},
    {{"SLURM_PROCID=4", "SLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=4"}, "SLURM_PROCID=4: expected"},
    {{"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_LOCALID=0", "SLURM_STEP_NUM_TASKS=4"},
     "MASTER_ADDR is not set"},
};

static void test_contradictions(void **state)
{
    (void)state;
    for (int i = 0; i < UP_COUNT(refused); i++) {
        struct up_launch launch;
        struct up_error error = {0};
        assert_int_equal(find(refused[i].variables, &launch, &error), UP_USAGE);
        if (!strstr(error.text, refused[i].says))
            fail_msg("case %d: expected '%s' in '%s'", i, refused[i].says, error.text);
    }
}

// Nobody says that it is process 0 who is none of them.
static void test_unknown_place(void **state)
{
    static const char *const list[VARIABLES] = {"RANK=2", "WORLD_SIZE=2"};
    struct up_launch launch;
    struct up_error error = {0};
    (void)state;
    assert_int_equal(find(list, &launch, &error), UP_USAGE);
    assert_int_equal(launch.processes, 1);
}

static void test_long_names(void **state)
{
    (void)state;
    char address[1000], nodes[1000];
    const char *torchrun[VARIABLES] = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", address};
    const char *slurm[VARIABLES] = {"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_LOCALID=0", nodes};
    struct up_launch launch;
    struct up_error error = {0};
    memset(address, 'a', sizeof address);
    memset(nodes, '[', sizeof nodes);
    for (int i = 0; i < 12; i++) address[i] = "MASTER_ADDR="[i];
    for (int i = 0; i < 20; i++) nodes[i] = "SLURM_STEP_NODELIST="[i];
    address[sizeof address - 1] = nodes[sizeof nodes - 1] = 0;
    assert_int_equal(find(torchrun, &launch, &error), UP_USAGE);
    assert_non_null(strstr(error.text, "at most 255 characters"));
    assert_int_equal(find(slurm, &launch, &error), UP_USAGE); // no node is in it
}

static struct up_launch process(int number, int processes, int local)
{
    return (struct up_launch){
        .process = number, .processes = processes, .local = local, .size_name = "WORLD_SIZE"};
}

static enum up_status ranks_of(struct up_launch launch, enum up_device_kind kind, int64_t cp,
                               int64_t dp, int *first, int *count, struct up_error *err)
{
    struct up_train_options options = {.device = (int)kind};
    struct up_config config = {.cp = cp, .dp = dp};
    return up_launch_ranks(&launch, &options, &config, first, count, err);
}

static void test_ranks(void **state)
{
    (void)state;
    struct up_error error = {0};
    int first, count;
    assert_int_equal(ranks_of(process(1, 2, 1), UP_DEVICE_CUDA, 4, 1, &first, &count, &error), 0);
    assert_int_equal(first, 2);
    assert_int_equal(count, 2);
    assert_int_equal(ranks_of(process(2, 3, 0), UP_DEVICE_CUDA, 1, 3, &first, &count, &error), 0);
    assert_int_equal(first, 2);
    assert_int_equal(count, 1);
    assert_int_equal(ranks_of(process(0, 1, 0), UP_DEVICE_CPU, 2, 2, &first, &count, &error), 0);
    assert_int_equal(first, 0);
    assert_int_equal(count, 4);
    assert_int_equal(ranks_of(process(0, 1, 0), UP_DEVICE_DRY, 8, 1, &first, &count, &error), 0);
    assert_int_equal(count, 1);
    // Whoever says nothing of ranks is told what to type.
    assert_int_equal(ranks_of(process(0, 2, 0), UP_DEVICE_CUDA, 1, 1, &first, &count, &error),
                     UP_USAGE);
    assert_non_null(strstr(error.text, "1 rank cannot be shared by 2 processes (WORLD_SIZE)"));
    assert_non_null(strstr(error.text, "--ranks 2"));
    assert_int_equal(ranks_of(process(0, 4, 0), UP_DEVICE_CUDA, 3, 2, &first, &count, &error),
                     UP_USAGE);
    assert_int_equal(ranks_of(process(0, 2, 0), UP_DEVICE_CPU, 2, 1, &first, &count, &error),
                     UP_USAGE);
    assert_non_null(strstr(error.text, "--device cpu: WORLD_SIZE is 2"));
    assert_int_equal(ranks_of(process(0, 2, 0), UP_DEVICE_DRY, 2, 1, &first, &count, &error),
                     UP_USAGE);
}

static void test_gpus(void **state)
{
    (void)state;
    static const struct {
        int processes, local, count, visible;
        int first; // -1: refused
    } cases[] = {
        {1, 0, 4, 8, 0},  {1, 0, 4, 3, -1}, // alone
        {2, 1, 2, 4, 2},  {2, 0, 2, 4, 0},  {2, 1, 2, 3, -1}, {4, 3, 1, 4, 3},
        {4, 3, 1, 8, 3},  {2, 1, 2, 2, 0},  {4, 3, 1, 1, 0}, // each has its own
        {2, 0, 2, 1, -1}, {2, 0, 1, 0, -1},
    };
    for (int i = 0; i < UP_COUNT(cases); i++) {
        struct up_launch launch = process(cases[i].local, cases[i].processes, cases[i].local);
        struct up_error error = {0};
        int first = -1;
        enum up_status rc =
            up_launch_gpus(&launch, cases[i].count, cases[i].visible, &first, &error);
        assert_int_equal(rc, cases[i].first < 0 ? UP_USAGE : UP_OK);
        if (cases[i].first >= 0) assert_int_equal(first, cases[i].first);
    }
}

static void hash_of(const char *const *words, int64_t steps_done, char out[UP_LAUNCH_HASH])
{
    struct up_train_options options;
    struct up_arguments arguments;
    struct up_config config;
    struct up_error error = {0};
    char *argv[16] = {(char *)"upipe-train"};
    bool folder;
    int argc = 1;
    for (; words[argc - 1]; argc++) argv[argc] = (char *)words[argc - 1];
    assert_int_equal(up_train_options_parse(&options, argc, argv, &arguments, &error), 0);
    assert_int_equal(up_train_options_resolve(&options, &config, &folder, &error), 0);
    assert_int_equal(up_launch_hash(&options, &config, steps_done, out, &error), 0);
}

static void test_hash(void **state)
{
    (void)state;
    static const struct {
        const char *words[6];
        int64_t steps_done;
        bool same;
    } cases[] = {
        {{"--cp", "2"}, 3, true},
        {{"--ranks", "2", "--cp", "2"}, 3, true}, // the same in other words
        {{"--cp", "2", "--trace", "run.db"}, 3, true},
        {{"--cp", "2", "--data", "elsewhere"}, 3, true},
        {{"--cp", "2", "--threads", "4"}, 3, true},
        {{"--cp", "2"}, 2, false},
        {{"--dp", "2"}, 3, false},
        {{"--cp", "2", "--steps", "11"}, 3, false},
        {{"--cp", "2", "--seed", "1"}, 3, false},
        {{"--cp", "2", "--lr", "1e-3"}, 3, false},
        {{"--cp", "2", "--tile-mlp", "64"}, 3, false},
        {{"--cp", "2", "--save", "there"}, 3, false},
    };
    char first[UP_LAUNCH_HASH], other[UP_LAUNCH_HASH];
    hash_of(cases[0].words, cases[0].steps_done, first);
    for (int i = 0; i < UP_COUNT(cases); i++) {
        hash_of(cases[i].words, cases[i].steps_done, other);
        if (!strcmp(first, other) != cases[i].same) fail_msg("case %d", i);
    }
}

static void test_trace_path(void **state)
{
    (void)state;
    static const char *const paths[][2] = {
        {"run.db", "run.1.db"},         {"run", "run.1"}, {"a.b/run", "a.b/run.1"},
        {"a/run.x.db", "a/run.x.1.db"}, {".db", ".db.1"}, {"a/.hidden", "a/.hidden.1"},
        {"./run.", "./run.1."},
    };
    struct up_launch alone = process(0, 1, 0), second = process(1, 2, 1);
    for (int i = 0; i < UP_COUNT(paths); i++) {
        char *same = up_launch_trace_path(&alone, paths[i][0]);
        char *own = up_launch_trace_path(&second, paths[i][0]);
        assert_string_equal(same, paths[i][0]);
        assert_string_equal(own, paths[i][1]);
        free(same);
        free(own);
    }
}

// What the launcher calls the run is the same in all its processes, and another in another run.
static void test_job(void **state)
{
    (void)state;
#define TORCHRUN_ "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=n1"
#define MPIRUN_   "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0", "MASTER_ADDR=n1"
#define SRUN_     "SLURM_NTASKS=2", "SLURM_LOCALID=0", "SLURM_STEP_NODELIST=n[1-2]"
    static const struct {
        const char *variables[VARIABLES];
        int job; // equal numbers, equal jobs; 0: none is known
    } rows[] = {
        {{"RANK=0", TORCHRUN_}, 0},
        {{"RANK=0", TORCHRUN_, "TORCHELASTIC_RUN_ID="}, 0},
        {{"RANK=0", TORCHRUN_, "TORCHELASTIC_RUN_ID=a"}, 1},
        {{"RANK=1", TORCHRUN_, "TORCHELASTIC_RUN_ID=a", "PMIX_NAMESPACE=7"}, 1},
        {{"RANK=0", TORCHRUN_, "TORCHELASTIC_RUN_ID=b"}, 2},
        {{"OMPI_COMM_WORLD_RANK=0", MPIRUN_, "TORCHELASTIC_RUN_ID=a"}, 0},
        {{"OMPI_COMM_WORLD_RANK=0", MPIRUN_, "PMIX_NAMESPACE=7"}, 3},
        {{"OMPI_COMM_WORLD_RANK=1", MPIRUN_, "PMIX_NAMESPACE=7"}, 3},
        {{"OMPI_COMM_WORLD_RANK=0", MPIRUN_, "PMIX_NAMESPACE=8"}, 4},
        {{"SLURM_PROCID=0", SRUN_}, 0},
        {{"SLURM_PROCID=0", SRUN_, "SLURM_JOB_ID=1", "SLURM_STEP_ID=23"}, 5},
        {{"SLURM_PROCID=1", SRUN_, "SLURM_JOB_ID=1", "SLURM_STEP_ID=23"}, 5},
        {{"SLURM_PROCID=0", SRUN_, "SLURM_JOB_ID=12", "SLURM_STEP_ID=3"}, 6},
        {{"SLURM_PROCID=0", SRUN_, "SLURM_JOB_ID=1", "SLURM_STEP_ID=24"}, 7},
    };
    struct up_launch launch[UP_COUNT(rows)];
    struct up_error error = {0};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        assert_int_equal(find(rows[i].variables, &launch[i], &error), UP_OK);
        assert_int_equal(strlen(launch[i].job), rows[i].job ? UP_LAUNCH_HASH - 1 : 0);
        for (int j = 0; j < i; j++)
            if (!strcmp(launch[i].job, launch[j].job) != (rows[i].job == rows[j].job))
                fail_msg("rows %d and %d: %s, %s", j, i, launch[j].job, launch[i].job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_here),           cmocka_unit_test(test_launchers),
        cmocka_unit_test(test_contradictions), cmocka_unit_test(test_unknown_place),
        cmocka_unit_test(test_long_names),     cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_gpus),           cmocka_unit_test(test_hash),
        cmocka_unit_test(test_trace_path),     cmocka_unit_test(test_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
