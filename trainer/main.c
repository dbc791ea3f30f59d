/* upipe-train: parse, open, run, close. */
#include "base/version.h"
#include "trainer/bench.h"
#include "trainer/blas.h"
#include "trainer/launch.h"
#include "trainer/options/stored.h"
#include "trainer/train.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int stop_asked;
static const char *stop_said = ""; // at the first signal
static const int64_t again_ns = 1000000000;

// A run ends in order, and at once when it is told so again by the same signal. One that comes
// twice within a second is one that a launcher passed on to a process that had it already.
static void on_signal(int number)
{
    static int64_t first_ns[NSIG];
    int error = errno;
    int64_t now = up_clock_ns();
    if (!stop_asked && write(STDERR_FILENO, stop_said, strlen(stop_said)) < 0) stop_said = "";
    stop_asked = 1;
    if (!first_ns[number]) first_ns[number] = now;
    if (now - first_ns[number] > again_ns) {
        signal(number, SIG_DFL);
        raise(number);
    }
    errno = error;
}

// Nobody reads the output any more: `| head` has had enough. The run ends in order, and without a
// word, however often it tries to say something.
static void on_closed_pipe(int number)
{
    (void)number;
    stop_asked = 1;
}

static void listen_to_signals(const struct up_train_options *options)
{
    struct sigaction action = {.sa_handler = on_signal};
    if (up_train_ends_saved(options))
        stop_said =
            "\nupipe-train: told to end: finishes its step, saves and ends (told again, after "
            "a second or more, at once)\n";
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = on_closed_pipe}, NULL);
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

static int tell_of_itself(const struct up_arguments *arguments)
{
    if (arguments->help)
        usage(stdout);
    else
        printf("upipe-train %s (%s)\n", up_version, UPIPE_CUDA ? "with CUDA" : "without CUDA");
    if (!fflush(stdout)) return UP_OK;
    fprintf(stderr, "upipe-train: this could not be written: %m\n");
    return UP_FAILED;
}

// The command line as it is to stand in the trace, cut where it is very long: it can be typed
// again.
static void join(char *text, size_t size, int argc, char **argv)
{
    memset(text, 0, size);
    FILE *out = fmemopen(text, size - 1, "w");
    for (int i = 0; out && i < argc; i++) {
        if (i) fputc(' ', out);
        up_put_word(out, argv[i]);
    }
    if (out) fclose(out);
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
    if (!rc && (arguments.help || arguments.version)) return tell_of_itself(&arguments);
    if (!rc) rc = up_launch_find(up_launch_getenv, NULL, &launch, &error);
    if (!rc) {
        if (up_train_device(&options) == UP_DEVICE_CPU) up_blas_choose_kernels(argv);
        if (up_train_device(&options) == UP_DEVICE_CUDA) set_cuda_environment(&options, &launch);
        if (!bench) listen_to_signals(&options); // bench ends at the first
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
