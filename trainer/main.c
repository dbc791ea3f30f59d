/* upipe-train: parse, open, run, close. */
#include "trainer/bench.h"
#include "trainer/blas.h"
#include "trainer/launch.h"
#include "trainer/train.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile int stop_asked;

static void on_signal(int number)
{
    (void)number;
    stop_asked = 1;
}

static void usage(FILE *out)
{
    fputs(
        "usage: upipe-train [options]\n"
        "       upipe-train bench [options]\n\n"
        "Trains a transformer of the Llama or Qwen3 family on a token file, and records where its\n"
        "memory goes (--trace; upipe-report explains it). bench measures what this machine does "
        "at\n"
        "the shapes of such a run.\n",
        out);
    up_options_help(up_train_option_table, out);
    fputs("\nSizes accept K, M, G and KiB, MiB, GiB (512K = 524288).\n"
          "What does not fit the device and the host by its forecast is not started, and the "
          "options that\n"
          "make it fit are told (--device dry forecasts it all the same).\n"
          "Exit status: 0 done, 1 does not fit or failed while running, 2 options or files at "
          "fault.\n",
          out);
}

// The command line as it is to stand in the trace, cut where it is very long.
static void join(char *text, size_t size, int argc, char **argv)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < argc && used + 2 < size; i++) {
        int length = snprintf(text + used, size - used, "%s%s", i ? " " : "", argv[i]);
        used += length > 0 ? (size_t)length : 0;
    }
}

// What CUDA and NCCL read from the environment when they start; what the user has set there stays.
static void set_cuda_environment(const struct up_train_options *options,
                                 const struct up_launch *launch)
{
    char bytes[32];
    if (launch->processes > 1) setenv("NCCL_COMM_ID", launch->nccl_id, 0);
    // Kernels are to be loaded before the first collective, not in the middle of one.
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    if (!options->nccl_buffers) return;
    snprintf(bytes, sizeof bytes, "%lld", (long long)options->nccl_buffers);
    setenv("NCCL_BUFFSIZE", bytes, 0);
    if (options->nccl_buffers >= 4 << 20) return;
    setenv("NCCL_MAX_NCHANNELS", "8", 0);
    setenv("NCCL_MAX_P2P_NCHANNELS", "8", 0);
}

int main(int argc, char **argv)
{
    struct up_train_options options;
    struct up_arguments arguments;
    struct up_launch launch = {.processes = 1};
    struct up_error error = {0};
    char command[4096];
    int bench = argc > 1 && !strcmp(argv[1], "bench");
    enum up_status rc =
        up_train_options_parse(&options, argc - bench, argv + bench, &arguments, &error);
    if (!rc && arguments.help) {
        usage(stdout);
        return 0;
    }
    if (!rc) rc = up_launch_find(up_launch_getenv, NULL, &launch, &error);
    if (!rc) {
        if (up_train_device(&options) == UP_DEVICE_CPU) up_blas_choose_kernels(argv);
        if (up_train_device(&options) == UP_DEVICE_CUDA) set_cuda_environment(&options, &launch);
        // A run ends in order, and at a second signal at once, as bench does at the first.
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
        if (!bench) sigaction(SIGINT, &action, NULL);
        if (!bench) sigaction(SIGTERM, &action, NULL);
        join(command, sizeof command, argc, argv);
        rc = bench ? up_bench(&options, launch.processes, &error)
                   : up_train(&options, &launch, command, &stop_asked, &error);
    }
    if (rc && launch.processes > 1)
        fprintf(stderr, "upipe-train: process %d of %d: %s\n", launch.process, launch.processes,
                error.text);
    else if (rc)
        fprintf(stderr, "upipe-train: %s\n", error.text);
    return (int)rc;
}
