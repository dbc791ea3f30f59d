/* The processes of a run on one machine, as children of this one: how they come, meet, fail, die
 * and go. What each met with it leaves in memory that all share. */
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

static void nap(double seconds)
{
    int64_t ns = (int64_t)(seconds * 1e9);
    nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

static double since(int64_t begin)
{
    return (double)(up_clock_ns() - begin) / 1e9;
}

static int entries(const char *folder)
{
    int count = 0;
    DIR *stream = opendir(folder);
    while (stream && readdir(stream)) count++;
    if (stream) closedir(stream);
    return count;
}

// A thread that has been joined may be on the list for a moment yet.
static int threads_over(int before)
{
    for (int i = 0; i < 1000 && entries("/proc/self/task") > before; i++) nap(0.001);
    return entries("/proc/self/task") - before;
}

static void *do_nothing(void *unused)
{
    return unused;
}

// Sanitizers keep a thread of their own from the first on.
static void have_threads(void)
{
    pthread_t thread;
    UP_ASSERT(!pthread_create(&thread, NULL, do_nothing, NULL));
    pthread_join(thread, NULL);
    threads_over(3); // "." and ".." are entries too
}

// A port that nobody has, with the two above it.
static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    close(fd);
    return ntohs(at.sin_port);
}

static void on_abort(void *context, const char *reason)
{
    struct outcome *outcome = context;
    outcome->told++;
    snprintf(outcome->told_text, sizeof outcome->told_text, "%s", reason);
}

static struct up_peers_place place_of(const struct world *world, int process)
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

static void keep(struct outcome *outcome, enum up_status status, const struct up_error *error)
{
    outcome->status = status;
    snprintf(outcome->text, sizeof outcome->text, "%s", status ? error->text : "");
}

static void be_process(struct world *world, int process)
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

static void share(struct world *world)
{
    world->shared = mmap(NULL, sizeof *world->shared, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(world->shared != MAP_FAILED);
}

// All processes at once. -signal or exit status of each; all must end in time.
static void run_world(struct world *world, int status[MANY])
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

static void close_world(struct world *world)
{
    munmap(world->shared, sizeof *world->shared);
}

static void must_be_clean(const struct world *world, int process)
{
    const struct outcome *outcome = &world->shared->outcome[process];
    assert_int_equal(outcome->left_files, 0);
    assert_int_equal(outcome->left_threads, 0);
}

static void must_say(const struct world *world, int process, enum up_status status,
                     const char *says)
{
    const struct outcome *outcome = &world->shared->outcome[process];
    if (outcome->status != status || !strstr(outcome->text, says))
        fail_msg("process %d: expected %d with '%s', found %d with '%s'", process, (int)status,
                 says, (int)outcome->status, outcome->text);
}

/* --- Coming and going --------------------------------------------------------------------------
 */

static void *meet_once(struct world *world, struct up_peers *peers, int process,
                       struct outcome *outcome)
{
    struct up_error error = {0};
    (void)process;
    world->shared->here[0]++;
    keep(outcome, up_peers_meet(peers, &error), &error);
    if (world->shared->here[0] != world->processes) outcome->status = UP_FAILED;
    return NULL;
}

// Whoever comes first.
static void test_order(void **state)
{
    (void)state;
    static const double orders[][3] = {{0, 0, 0}, {0.3, 0, 0.1}, {0, 0.3, 0.1}, {0.1, 0, 0.3}};
    for (int i = 0; i < UP_COUNT(orders); i++) {
        struct world world = {.processes = 3, .ranks = 3, .groups = 1, .live = meet_once};
        int status[MANY];
        memcpy(world.comes_at_s, orders[i], sizeof orders[i]);
        run_world(&world, status);
        for (int p = 0; p < 3; p++) {
            assert_int_equal(status[p], 0);
            must_say(&world, p, UP_OK, "");
            must_be_clean(&world, p);
            assert_int_equal(world.shared->outcome[p].told, 0);
        }
        close_world(&world);
    }
}

// Leaving is not before the last has come to it, and needs no meeting.
static void *linger(struct world *world, struct up_peers *peers, int process,
                    struct outcome *outcome)
{
    (void)peers;
    (void)outcome;
    nap(process == world->chosen ? 0.3 : 0);
    world->shared->here[process] = 1;
    return NULL;
}

static void test_goodbye(void **state)
{
    (void)state;
    for (int slow = 0; slow < 3; slow++) {
        struct world world = {
            .processes = 3, .ranks = 6, .groups = 1, .live = linger, .chosen = slow};
        int status[MANY];
        run_world(&world, status);
        for (int p = 0; p < 3; p++) {
            assert_int_equal(status[p], 0);
            assert_int_equal(world.shared->outcome[p].told, 0);
            must_be_clean(&world, p);
            assert_true(world.shared->outcome[p].seconds >= 0.3);
            assert_true(world.shared->outcome[p].seconds < 5);
        }
        close_world(&world);
    }
}

/* --- Barriers ----------------------------------------------------------------------------------
 */

static int turns(void)
{
    return getenv("UP_TEST_SHORT") ? SHORT_TURNS : TURNS;
}

struct walker {
    struct world *world;
    struct up_comm *comm;
    atomic_int *here;
    int size, turns;
    struct up_error error;
    pthread_t thread;
};

// Nobody passes a turn before all have come to it.
static void *walk(void *argument)
{
    struct walker *walker = argument;
    for (int t = 0; t < walker->turns; t++) {
        walker->here[t]++;
        if (up_comm_barrier(walker->comm, &walker->error)) return NULL;
        if (walker->here[t] == walker->size) continue;
        up_fail(&walker->error, UP_FAILED, "turn %d: %d of %d are there", t, (int)walker->here[t],
                walker->size);
        up_comm_abort(walker->comm, walker->error.text);
        return NULL;
    }
    return NULL;
}

// Six ranks, two a process: all of them, and two groups of three that share process 1; each group
// walks at its own pace.
static void *walk_all(struct world *world, struct up_peers *peers, int process,
                      struct outcome *outcome)
{
    struct up_comm *all[2], *part[2];
    struct walker walkers[4];
    struct up_error error = {0};
    UP_ASSERT(up_peers_comms_create(peers, 0, 0, 6, all, &error) == 0);
    if (process < 2) UP_ASSERT(up_peers_comms_create(peers, 1, 0, 3, part, &error) == 0);
    if (process > 0)
        UP_ASSERT(up_peers_comms_create(peers, 2, 3, 3, part + (process == 1), &error) == 0);
    for (int i = 0; i < 4; i++) {
        struct up_comm *comm = i < 2 ? all[i] : part[i - 2];
        int rank = 2 * process + i % 2, group = i < 2 ? 0 : 1 + rank / 3;
        UP_ASSERT(up_comm_rank(comm) == (i < 2 ? rank : rank % 3));
        UP_ASSERT(up_comm_size(comm) == (i < 2 ? 6 : 3));
        walkers[i] = (struct walker){
            world, comm, &world->shared->here[group * TURNS], i < 2 ? 6 : 3, turns(), {0}, 0};
        UP_ASSERT(!pthread_create(&walkers[i].thread, NULL, walk, &walkers[i]));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(walkers[i].thread, NULL);
        if (walkers[i].error.status) keep(outcome, walkers[i].error.status, &walkers[i].error);
        up_comm_destroy(walkers[i].comm);
    }
    return NULL;
}

static void test_barriers(void **state)
{
    (void)state;
    struct world world = {.processes = 3, .ranks = 6, .groups = 3, .live = walk_all};
    int status[MANY];
    run_world(&world, status);
    for (int p = 0; p < 3; p++) {
        assert_int_equal(status[p], 0);
        must_say(&world, p, UP_OK, "");
        must_be_clean(&world, p);
    }
    for (int t = 0; t < turns(); t++) {
        assert_int_equal(world.shared->here[t], 6);
        assert_int_equal(world.shared->here[TURNS + t], 3);
        assert_int_equal(world.shared->here[2 * TURNS + t], 3);
    }
    close_world(&world);
}

/* --- Ends --------------------------------------------------------------------------------------
 */

// The chosen one dies while the others wait for it.
static void *die_or_wait(struct world *world, struct up_peers *peers, int process,
                         struct outcome *outcome)
{
    struct up_error error = {0};
    keep(outcome, up_peers_meet(peers, &error), &error);
    if (process == world->chosen) {
        nap(0.1);
        raise(SIGKILL);
    }
    int64_t begin = up_clock_ns();
    keep(outcome, up_peers_meet(peers, &error), &error);
    if (since(begin) > 5) outcome->status = UP_OK;
    return NULL;
}

static void test_deaths(void **state)
{
    (void)state;
    for (int dead = 0; dead < 3; dead++) {
        struct world world = {
            .processes = 3, .ranks = 6, .groups = 1, .live = die_or_wait, .chosen = dead};
        int status[MANY];
        char says[64];
        snprintf(says, sizeof says, "process %d (ranks %d-%d) ended unexpectedly", dead, 2 * dead,
                 2 * dead + 1);
        run_world(&world, status);
        for (int p = 0; p < 3; p++) {
            assert_int_equal(status[p], p == dead ? -SIGKILL : 0);
            if (p == dead) continue;
            must_say(&world, p, UP_FAILED, says);
            must_be_clean(&world, p);
            assert_int_equal(world.shared->outcome[p].told, 1);
            assert_string_equal(world.shared->outcome[p].told_text, says);
        }
        close_world(&world);
    }
}

// The chosen one gives up while one waits and the other looks from time to time.
static void *give_up_or_wait(struct world *world, struct up_peers *peers, int process,
                             struct outcome *outcome)
{
    struct up_error error = {0};
    enum up_status rc = UP_OK;
    int64_t begin = up_clock_ns();
    struct up_comm *comm[1];
    UP_ASSERT(up_peers_comms_create(peers, 0, 0, 3, comm, &error) == 0);
    if (process == world->chosen) {
        nap(0.1);
        up_comm_abort(comm[0], "out of tea");
        up_comm_abort(comm[0], "out of milk");
        rc = up_comm_check(comm[0], &error);
    } else if (process == (world->chosen + 1) % 3) {
        rc = up_comm_barrier(comm[0], &error);
    } else {
        while (!rc && since(begin) < 5) {
            nap(0.001);
            rc = up_comm_check(comm[0], &error);
        }
        up_comm_abort(comm[0], "too late");
        rc = up_comm_check(comm[0], &error);
    }
    keep(outcome, rc, &error);
    up_comm_destroy(comm[0]);
    return NULL;
}

static void test_aborts(void **state)
{
    (void)state;
    for (int chosen = 0; chosen < 3; chosen++) {
        struct world world = {
            .processes = 3, .ranks = 3, .groups = 1, .live = give_up_or_wait, .chosen = chosen};
        int status[MANY];
        char says[64];
        snprintf(says, sizeof says, "process %d (rank %d): out of tea", chosen, chosen);
        run_world(&world, status);
        for (int p = 0; p < 3; p++) {
            assert_int_equal(status[p], 0);
            must_say(&world, p, UP_FAILED, says);
            must_be_clean(&world, p);
            assert_int_equal(world.shared->outcome[p].told, 1);
            assert_string_equal(world.shared->outcome[p].told_text, says);
        }
        close_world(&world);
    }
}

// One dies while the others take leave: they do not wait for it.
static void *die_or_leave(struct world *world, struct up_peers *peers, int process,
                          struct outcome *outcome)
{
    (void)peers;
    (void)outcome;
    if (process != world->chosen) return NULL;
    nap(0.2);
    raise(SIGKILL);
    return NULL;
}

static void test_death_at_the_end(void **state)
{
    (void)state;
    for (int dead = 0; dead < 3; dead++) {
        struct world world = {
            .processes = 3, .ranks = 3, .groups = 1, .live = die_or_leave, .chosen = dead};
        int status[MANY];
        run_world(&world, status);
        for (int p = 0; p < 3; p++) {
            if (p == dead) continue;
            assert_int_equal(status[p], 0);
            must_be_clean(&world, p);
            assert_true(world.shared->outcome[p].seconds < 5);
        }
        close_world(&world);
    }
}

/* --- What is not let in ------------------------------------------------------------------------
 */

static void test_other_options(void **state)
{
    (void)state;
    struct world world = {
        .processes = 3, .ranks = 3, .groups = 1, .live = meet_once, .hash = {NULL, NULL, "other"}};
    int status[MANY];
    world.comes_after[2] = 2;
    world.comes_at_s[2] = 0.3;
    run_world(&world, status);
    must_say(&world, 0, UP_USAGE, "process 2: expected the options of process 0");
    must_say(&world, 1, UP_FAILED, "process 2: expected the options of process 0");
    must_say(&world, 2, UP_USAGE, "process 2: expected the options of process 0");
    for (int p = 0; p < 3; p++) must_be_clean(&world, p);
    close_world(&world);
}

// One that has come ends while another is awaited, which never comes: it is not that one that is
// waited for, and blamed.
static void test_death_before_all(void **state)
{
    (void)state;
    struct world world = {.processes = 3, .ranks = 6, .groups = 1, .live = meet_once};
    int status[MANY];
    world.dies_after_s = 1;
    world.chosen = 1;
    world.comes_at_s[2] = -1;
    world.limit_s = 10;
    run_world(&world, status);
    assert_int_equal(status[1], -SIGKILL);
    must_say(&world, 0, UP_FAILED, "process 1 (ranks 2-3) ended unexpectedly");
    must_be_clean(&world, 0);
    close_world(&world);
}

// A process too many, of another run perhaps, is sent away; the others go on.
static void test_same_number(void **state)
{
    (void)state;
    struct world world = {.processes = 4, .ranks = 4, .groups = 1, .live = meet_once};
    int status[MANY];
    world.number[3] = 2;
    world.comes_after[3] = 3;
    world.comes_at_s[3] = 0.3;
    world.limit_s = 1;
    run_world(&world, status);
    must_say(&world, 3, UP_USAGE, "another run has this port");
    must_say(&world, 0, UP_FAILED, "process 3 (rank 3) has not come");
    must_say(&world, 1, UP_FAILED, "process 3 (rank 3) has not come");
    for (int p = 0; p < 4; p++) must_be_clean(&world, p);
    close_world(&world);
}

static int connect_to_port(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    for (int i = 0; i < 500; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (!connect(fd, (struct sockaddr *)&at, sizeof at)) return fd;
        close(fd);
        nap(0.01);
    }
    fail_msg("nobody listens at port %d", port);
    return -1;
}

// More of them than process 0 keeps waiting, some silent, some talking of other things.
static void be_strangers(int port)
{
    static const char get[] = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    char noise[sizeof(struct up_peers_message)];
    int fd[80];
    memset(noise, 'x', sizeof noise);
    for (int i = 0; i < UP_COUNT(fd); i++) {
        fd[i] = connect_to_port(port);
        if (i % 4 == 1) send(fd[i], get, sizeof get, MSG_NOSIGNAL);
        if (i % 4 == 2) send(fd[i], noise, sizeof noise, MSG_NOSIGNAL);
        if (i % 4 == 3) up_peers_send(fd[i], UP_PEERS_ABORT, 0, 0, 0, "boo");
    }
    nap(0.5);
    exit(0);
}

static void test_strangers(void **state)
{
    (void)state;
    struct world world = {.processes = 2, .ranks = 2, .groups = 1, .live = meet_once};
    int status[MANY], how;
    world.comes_at_s[1] = 1;
    world.port = free_port();
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) be_strangers(world.port);
    run_world(&world, status);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
    for (int p = 0; p < 2; p++) {
        assert_int_equal(status[p], 0);
        must_say(&world, p, UP_OK, "");
        must_be_clean(&world, p);
    }
    close_world(&world);
}

/* --- Many at the door --------------------------------------------------------------------------
 */

enum { CROWD = 200, DOOR = 64 + 2 };

static void receive_whole(int fd, struct up_peers_message *message)
{
    if (recv(fd, message, sizeof *message, MSG_WAITALL) != sizeof *message) _exit(1);
}

// All processes of a run but the first, of which none says who it is before all are at the door.
static void be_a_crowd(int port)
{
    struct up_peers_message message;
    static int fd[CROWD];
    for (int i = 0; i < CROWD; i++) fd[i] = connect_to_port(port);
    nap(0.3);
    for (int i = 0; i < CROWD; i++)
        up_peers_send(fd[i], UP_PEERS_HELLO, 1 + i, 0, 1 + CROWD, "same");
    for (int i = 0; i < CROWD; i++) {
        receive_whole(fd[i], &message);
        if (message.kind != UP_PEERS_START) _exit(2);
        up_peers_send(fd[i], UP_PEERS_GOODBYE, 0, 0, 0, NULL);
    }
    exit(0);
}

static void test_crowd(void **state)
{
    (void)state;
    struct world world = {.processes = 1 + CROWD, .ranks = 1 + CROWD, .groups = 1, .limit_s = 10};
    struct up_error error = {0};
    struct up_peers *peers = NULL;
    int how;
    world.port = free_port();
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) be_a_crowd(world.port);
    struct up_peers_place place = place_of(&world, 0);
    if (up_peers_join(&place, &peers, &error)) fail_msg("%s", error.text);
    up_peers_leave(peers);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
}

struct joiner {
    const struct world *world;
    int process;
    pthread_barrier_t *begin;
    struct up_error error;
    pthread_t thread;
};

static void *join_and_meet(void *argument)
{
    struct joiner *joiner = argument;
    struct up_peers_place place = place_of(joiner->world, joiner->process);
    struct up_peers *peers = NULL;
    pthread_barrier_wait(joiner->begin);
    if (!up_peers_join(&place, &peers, &joiner->error)) up_peers_meet(peers, &joiner->error);
    up_peers_leave(peers);
    return NULL;
}

// As many real ones, all in the same moment.
static void test_all_at_once(void **state)
{
    (void)state;
    static struct joiner joiner[CROWD];
    struct world world = {.processes = CROWD, .ranks = CROWD, .groups = 1, .limit_s = LONG_S};
    pthread_barrier_t begin;
    world.port = free_port();
    pthread_barrier_init(&begin, NULL, CROWD);
    for (int i = 0; i < CROWD; i++) {
        joiner[i] = (struct joiner){&world, i, &begin, {0}, 0};
        assert_int_equal(pthread_create(&joiner[i].thread, NULL, join_and_meet, &joiner[i]), 0);
    }
    for (int i = 0; i < CROWD; i++) pthread_join(joiner[i].thread, NULL);
    pthread_barrier_destroy(&begin);
    for (int i = 0; i < CROWD; i++)
        if (joiner[i].error.status) fail_msg("process %d: %s", i, joiner[i].error.text);
}

// More than process 0 has places for: who came first is told to come again, and may.
static void overfill(int port)
{
    struct up_peers_message message;
    int fd[DOOR + 1];
    for (int i = 0; i < UP_COUNT(fd); i++) fd[i] = connect_to_port(port);
    receive_whole(fd[0], &message);
    if (message.kind != UP_PEERS_FULL || recv(fd[0], &message, 1, 0) != 0) _exit(2);
    close(fd[0]);
    fd[0] = connect_to_port(port);
    up_peers_send(fd[0], UP_PEERS_HELLO, 1, 0, 2, "same");
    receive_whole(fd[0], &message);
    if (message.kind != UP_PEERS_START) _exit(3);
    up_peers_send(fd[0], UP_PEERS_GOODBYE, 0, 0, 0, NULL);
    exit(0);
}

static void test_full(void **state)
{
    (void)state;
    struct world world = {.processes = 2, .ranks = 2, .groups = 1, .limit_s = LONG_S};
    struct up_error error = {0};
    struct up_peers *peers = NULL;
    int how;
    world.port = free_port();
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) overfill(world.port);
    struct up_peers_place place = place_of(&world, 0);
    if (up_peers_join(&place, &peers, &error)) fail_msg("%s", error.text);
    up_peers_leave(peers);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
}

// Process 0 as one that shows out whoever comes, with his hello unread or read, the first `times`.
static void be_full(int listener, int times)
{
    struct up_peers_message message;
    for (int i = 0;; i++) {
        int fd = accept(listener, NULL, NULL);
        if (i % 2 || i >= times) receive_whole(fd, &message);
        up_peers_send(fd, i < times ? UP_PEERS_FULL : UP_PEERS_START, 0, 0, 0, NULL);
        if (i >= times) {
            up_peers_send(fd, UP_PEERS_GOODBYE, 0, 0, 0, NULL);
            receive_whole(fd, &message);
            exit(0);
        }
        close(fd);
    }
}

static void must_not_join(const struct world *world, int process, const char *says);

static void test_comes_again(void **state)
{
    (void)state;
    for (int times = 3; times <= 1 << 30; times += (1 << 30) - 3) {
        struct world world = {.processes = 2, .ranks = 2, .groups = 1, .limit_s = LONG_S};
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof at;
        struct up_error error = {0};
        struct up_peers *peers = NULL;
        int how, listener = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(bind(listener, (struct sockaddr *)&at, size), 0);
        assert_int_equal(listen(listener, 5), 0);
        assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
        world.port = ntohs(at.sin_port);
        fflush(NULL);
        pid_t pid = fork();
        if (!pid) be_full(listener, times);
        if (times == 3) {
            struct up_peers_place place = place_of(&world, 1);
            if (up_peers_join(&place, &peers, &error)) fail_msg("%s", error.text);
            up_peers_leave(peers);
        } else {
            world.limit_s = 0.4;
            must_not_join(&world, 1, "too many are at 127.0.0.1");
            kill(pid, SIGKILL);
        }
        assert_int_equal(waitpid(pid, &how, 0), pid);
        assert_int_equal(how, times == 3 ? 0 : SIGKILL);
        close(listener);
    }
}

/* --- Another run -------------------------------------------------------------------------------
 */

// One of another run at this port, as process 1, before this run's own comes.
static void intrude(struct world *world, const char *hash)
{
    struct up_peers_place place = place_of(world, 1);
    struct up_peers *peers = NULL;
    struct up_error error = {0};
    place.hash = hash;
    place.job = "theirs";
    if (up_peers_join(&place, &peers, &error) != UP_USAGE) _exit(1);
    if (!strstr(error.text, "process 1: process 0 was launched with another run")) _exit(2);
    atomic_fetch_add(&world->shared->joining, 1);
    exit(0);
}

// What the launcher says tells runs apart that are alike in all else, or in their ports alone; it
// is no use where one of the two does not know.
static void test_another_run(void **state)
{
    (void)state;
    static const char *const jobs[][3] = {{"ours", "ours", "same"},
                                          {"ours", "ours", "other"},
                                          {"ours", NULL, "same"},
                                          {"ours", "", "other"}};
    for (int i = 0; i < UP_COUNT(jobs); i++) {
        struct world world = {.processes = 2, .ranks = 2, .groups = 1, .live = meet_once};
        int status[MANY], how;
        memcpy(world.job, jobs[i], sizeof world.job[0] * 2);
        world.comes_after[1] = 2; // process 0, and him
        world.limit_s = LONG_S;
        world.port = free_port();
        share(&world);
        fflush(NULL);
        pid_t pid = fork();
        if (!pid) intrude(&world, jobs[i][2]);
        run_world(&world, status);
        assert_int_equal(waitpid(pid, &how, 0), pid);
        assert_int_equal(how, 0);
        for (int p = 0; p < 2; p++) {
            assert_int_equal(status[p], 0);
            must_say(&world, p, UP_OK, "");
            must_be_clean(&world, p);
        }
        close_world(&world);
    }
}

/* --- Nonsense ----------------------------------------------------------------------------------
 */

// Process 1 is let in, and then says what makes no sense: it counts as dead, no memory is touched.
static void be_a_babbler(int port, int kind)
{
    int fd = connect_to_port(port);
    up_peers_send(fd, UP_PEERS_HELLO, 1, 0, 2, "same");
    nap(0.15);
    if (kind == 0) up_peers_send(fd, UP_PEERS_ARRIVED, 1 << 30, 0, 1, NULL);
    if (kind == 1) up_peers_send(fd, UP_PEERS_ARRIVED, 0, -5, 1 << 30, NULL);
    if (kind == 2) up_peers_send(fd, UP_PEERS_RELEASED, 0, 0, 1, NULL);
    if (kind == 3) up_peers_send(fd, UP_PEERS_HELLO, -1, 0, 1, NULL);
    if (kind == 4) send(fd, "half a message", 14, MSG_NOSIGNAL);
    if (kind == 5) up_peers_send(fd, UP_PEERS_ABORT, -1, -1, -1, "enough");
    nap(kind == 4 ? 0.1 : 2);
    exit(0);
}

static void test_nonsense(void **state)
{
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        struct world world = {.processes = 2, .ranks = 2, .groups = 1};
        struct up_error error = {0};
        struct outcome outcome = {0};
        struct up_peers *peers = NULL;
        int how, files = entries("/proc/self/fd");
        world.port = free_port();
        world.limit_s = LONG_S;
        fflush(NULL);
        pid_t pid = fork();
        if (!pid) be_a_babbler(world.port, kind);
        struct up_peers_place place = place_of(&world, 0);
        place.aborted = on_abort;
        place.context = &outcome;
        assert_int_equal(up_peers_join(&place, &peers, &error), UP_OK);
        assert_int_equal(up_peers_meet(peers, &error), UP_FAILED);
        assert_string_equal(error.text,
                            kind == 5 ? "enough" : "process 1 (rank 1) ended unexpectedly");
        up_peers_leave(peers);
        assert_int_equal(outcome.told, 1);
        assert_int_equal(entries("/proc/self/fd"), files);
        kill(pid, SIGKILL);
        waitpid(pid, &how, 0);
    }
}

/* --- Nobody there ------------------------------------------------------------------------------
 */

static void must_not_join(const struct world *world, int process, const char *says)
{
    struct up_peers *peers = NULL;
    struct up_error error = {0};
    struct up_peers_place place = place_of(world, process);
    int files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    int64_t begin = up_clock_ns();
    assert_int_equal(up_peers_join(&place, &peers, &error), UP_FAILED);
    if (!strstr(error.text, says)) fail_msg("expected '%s' in '%s'", says, error.text);
    assert_null(peers);
    assert_int_equal(entries("/proc/self/fd"), files);
    assert_int_equal(threads_over(threads), 0);
    assert_true(since(begin) < 5);
}

static void test_nobody(void **state)
{
    (void)state;
    struct world world = {.processes = 2, .ranks = 2, .groups = 1, .limit_s = 0.4};
    world.port = free_port();
    must_not_join(&world, 1, "process 0 does not answer at 127.0.0.1");
    must_not_join(&world, 0, "process 1 (rank 1) has not come");
}

// Someone else listens: one who says nothing, and one who hangs up.
static void test_other_program(void **state)
{
    (void)state;
    struct world world = {.processes = 2, .ranks = 2, .groups = 1, .limit_s = 0.4};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0), how;
    assert_int_equal(bind(fd, (struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(fd, 5), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    world.port = ntohs(at.sin_port);
    must_not_join(&world, 0, "where the processes are to meet");
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        close(accept(fd, NULL, NULL));
        exit(0);
    }
    must_not_join(&world, 1, "hung up");
    assert_int_equal(waitpid(pid, &how, 0), pid);
    close(fd);
}

static volatile int stopped;

static void on_alarm(int number)
{
    (void)number;
    stopped = 1;
}

// Someone who waits for the others can be told to end.
static void test_stop(void **state)
{
    (void)state;
    for (int process = 0; process < 2; process++) {
        struct world world = {.processes = 2, .ranks = 2, .groups = 1, .limit_s = LONG_S};
        struct up_peers *peers = NULL;
        struct up_error error = {0};
        world.port = free_port();
        struct up_peers_place place = place_of(&world, process);
        place.stop = &stopped;
        stopped = 0;
        signal(SIGALRM, on_alarm);
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 300000}, NULL);
        int64_t begin = up_clock_ns();
        assert_int_equal(up_peers_join(&place, &peers, &error), UP_FAILED);
        assert_non_null(strstr(error.text, "interrupted"));
        assert_true(since(begin) < 5);
    }
    signal(SIGALRM, SIG_DFL);
}

static void test_unknown_name(void **state)
{
    (void)state;
    struct world world = {.processes = 2, .ranks = 2, .groups = 1, .limit_s = 0.2};
    struct up_peers *peers = NULL;
    struct up_error error = {0};
    world.port = free_port();
    struct up_peers_place place = place_of(&world, 1);
    place.address = "no name at all";
    assert_int_equal(up_peers_join(&place, &peers, &error), UP_FAILED);
    assert_non_null(strstr(error.text, "expected the address of process 0's node"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_goodbye),
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_aborts),
        cmocka_unit_test(test_death_at_the_end),
        cmocka_unit_test(test_death_before_all),
        cmocka_unit_test(test_other_options),
        cmocka_unit_test(test_same_number),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_comes_again),
        cmocka_unit_test(test_another_run),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_other_program),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_unknown_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
