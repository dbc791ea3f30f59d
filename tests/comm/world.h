/* Processes of a run on one machine, as children of this one. What each met with it leaves in
 * memory that all share. For tests of how they come and how they end. */
#ifndef TESTS_COMM_WORLD_H
#define TESTS_COMM_WORLD_H

#include "comm/peers/peers_impl.h"

#include <dirent.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { MANY = 4, TURNS = 1000, SHORT_TURNS = 100, LONG_S = 20 };

struct outcome {
    enum up_status status;
    char text[1024];
    int told; // how often the process heard of an abort
    char told_text[512];
    int left_files, left_threads; // after all
    double seconds;
};

struct shared {
    struct outcome outcome[MANY];
    atomic_int here[3 * TURNS]; // ranks that have come to a turn, or are at some stage
    atomic_int joining;         // processes that have begun to join, or have been sent away
};

struct world;
typedef void *life(struct world *world, struct up_peers *peers, int process,
                   struct outcome *outcome);

/* What one test has its processes do. */
struct world {
    int processes, ranks, groups, port;
    double limit_s;
    double comes_at_s[MANY]; // negative: it never does
    int comes_after[MANY];   // so many others, and then at that time
    const char *hash[MANY];  // NULL: "same"
    const char *job[MANY];
    int number[MANY]; // 0: its own
    life *live;
    int chosen;          // who does what the test is about
    double dies_after_s; // the chosen one, all that come having begun to join; 0: it does not
    struct shared *shared;
};

static inline void nap(double seconds)
{
    int64_t ns = (int64_t)(seconds * 1e9);
    nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

static inline double since(int64_t begin)
{
    return (double)(up_clock_ns() - begin) / 1e9;
}

static inline int entries(const char *folder)
{
    int count = 0;
    DIR *stream = opendir(folder);
    while (stream && readdir(stream)) count++;
    if (stream) closedir(stream);
    return count;
}

// A thread that has been joined may be on the list for a moment yet.
static inline int threads_over(int before)
{
    for (int i = 0; i < 1000 && entries("/proc/self/task") > before; i++) nap(0.001);
    return entries("/proc/self/task") - before;
}

static inline void *do_nothing(void *unused)
{
    return unused;
}

// Sanitizers keep a thread of their own from the first on.
static inline void have_threads(void)
{
    pthread_t thread;
    UP_ASSERT(!pthread_create(&thread, NULL, do_nothing, NULL));
    pthread_join(thread, NULL);
    threads_over(3); // "." and ".." are entries too
}

// A port that nobody has, with the two above it.
static inline int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    close(fd);
    return ntohs(at.sin_port);
}

static inline void on_abort(void *context, const char *reason)
{
    struct outcome *outcome = context;
    outcome->told++;
    snprintf(outcome->told_text, sizeof outcome->told_text, "%s", reason);
}

static inline struct up_peers_place place_of(const struct world *world, int process)
{
    return (struct up_peers_place){.process = process,
                                   .processes = world->processes,
                                   .ranks = world->ranks,
                                   .groups = world->groups,
                                   .address = "127.0.0.1",
                                   .port = world->port,
                                   .hash = "same",
                                   .limit_s = world->limit_s};
}

static inline void keep(struct outcome *outcome, enum up_status status,
                        const struct up_error *error)
{
    outcome->status = status;
    snprintf(outcome->text, sizeof outcome->text, "%s", status ? error->text : "");
}

static inline void be_process(struct world *world, int process)
{
    struct outcome *outcome = &world->shared->outcome[process];
    struct up_peers_place place = place_of(world, process);
    struct up_peers *peers = NULL;
    struct up_error error = {0};
    int64_t begin = up_clock_ns();
    have_threads();
    int files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    if (world->comes_at_s[process] < 0) return;
    while (atomic_load(&world->shared->joining) < world->comes_after[process]) nap(0.01);
    nap(world->comes_at_s[process]);
    if (world->hash[process]) place.hash = world->hash[process];
    place.job = world->job[process];
    if (world->number[process]) place.process = world->number[process];
    place.aborted = on_abort;
    place.context = outcome;
    atomic_fetch_add(&world->shared->joining, 1);
    keep(outcome, up_peers_join(&place, &peers, &error), &error);
    if (peers) world->live(world, peers, process, outcome);
    up_peers_leave(peers);
    double seconds = since(begin);
    outcome->left_files = entries("/proc/self/fd") - files;
    outcome->left_threads = threads_over(threads);
    outcome->seconds = seconds;
}

static inline void share(struct world *world)
{
    world->shared = mmap(NULL, sizeof *world->shared, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(world->shared != MAP_FAILED);
}

// All processes at once. -signal or exit status of each; all must end in time.
static inline void run_world(struct world *world, int status[MANY])
{
    pid_t pid[MANY];
    if (!world->limit_s) world->limit_s = LONG_S;
    if (!world->port) world->port = free_port();
    if (!world->shared) share(world);
    fflush(NULL);
    for (int i = 0; i < world->processes; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i]) continue;
        alarm(60); // a child that hangs dies of it
        be_process(world, i);
        exit(0); // leaks are looked for
    }
    if (world->dies_after_s > 0) {
        int come = 0;
        for (int i = 0; i < world->processes; i++) come += world->comes_at_s[i] >= 0;
        while (atomic_load(&world->shared->joining) < come) nap(0.01);
        nap(world->dies_after_s);
        kill(pid[world->chosen], SIGKILL);
    }
    for (int i = 0; i < world->processes; i++) {
        int how = 0;
        assert_int_equal(waitpid(pid[i], &how, 0), pid[i]);
        status[i] = WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
        if (status[i] && status[i] != -SIGKILL) fail_msg("process %d: status %d", i, status[i]);
    }
}

static inline void close_world(struct world *world)
{
    munmap(world->shared, sizeof *world->shared);
}

static inline void must_be_clean(const struct world *world, int process)
{
    const struct outcome *outcome = &world->shared->outcome[process];
    assert_int_equal(outcome->left_files, 0);
    assert_int_equal(outcome->left_threads, 0);
}

static inline void must_say(const struct world *world, int process, enum up_status status,
                            const char *says)
{
    const struct outcome *outcome = &world->shared->outcome[process];
    if (outcome->status != status || !strstr(outcome->text, says))
        fail_msg("process %d: expected %d with '%s', found %d with '%s'", process, (int)status,
                 says, (int)outcome->status, outcome->text);
}

// A life: to wait for the others once.
static inline void *meet_once(struct world *world, struct up_peers *peers, int process,
                              struct outcome *outcome)
{
    struct up_error error = {0};
    (void)process;
    world->shared->here[0]++;
    keep(outcome, up_peers_meet(peers, &error), &error);
    if (world->shared->here[0] != world->processes) outcome->status = UP_FAILED;
    return NULL;
}

#endif
