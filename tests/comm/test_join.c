/* How the processes of a run come together: who is let in, who is sent away, and who never comes.
 */
#include "tests/comm/world.h"

#include <sys/resource.h>

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

// The processes meet beside the child `other`, which ends well.
static void must_meet_beside(struct world *world, pid_t other)
{
    int status[MANY], how;
    run_world(world, status);
    assert_int_equal(waitpid(other, &how, 0), other);
    assert_int_equal(how, 0);
    for (int p = 0; p < world->processes; p++) {
        assert_int_equal(status[p], 0);
        must_say(world, p, UP_OK, "");
        must_be_clean(world, p);
    }
    close_world(world);
}

static void test_strangers(void **state)
{
    (void)state;
    struct world world = {.processes = 2, .ranks = 2, .groups = 1, .live = meet_once};
    world.comes_at_s[1] = 1;
    world.port = free_port();
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) be_strangers(world.port);
    must_meet_beside(&world, pid);
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
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
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

// Process 0 of so many joins, with a child for all others, which ends well.
static void join_with(int processes, double limit_s, void (*be_the_others)(int port))
{
    struct world world = {
        .processes = processes, .ranks = processes, .groups = 1, .limit_s = limit_s};
    struct up_error error = {0};
    struct up_peers *peers = NULL;
    int how;
    world.port = free_port();
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) be_the_others(world.port);
    struct up_peers_place place = place_of(&world, 0);
    if (up_peers_join(&place, &peers, &error)) fail_msg("%s", error.text);
    up_peers_leave(peers);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
}

static void test_crowd(void **state)
{
    (void)state;
    join_with(1 + CROWD, 10, be_a_crowd);
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
    join_with(2, LONG_S, overfill);
}

// A process may often open few files, and could open more: as many as so many processes take.
static void test_descriptors(void **state)
{
    (void)state;
    struct rlimit before, few;
    getrlimit(RLIMIT_NOFILE, &before);
    few = before;
    few.rlim_cur = CROWD;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    join_with(1 + CROWD, 10, be_a_crowd);
    setrlimit(RLIMIT_NOFILE, &before);
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
        memcpy(world.job, jobs[i], sizeof world.job[0] * 2);
        world.comes_after[1] = 2; // process 0, and him
        world.limit_s = LONG_S;
        world.port = free_port();
        share(&world);
        fflush(NULL);
        pid_t pid = fork();
        if (!pid) intrude(&world, jobs[i][2]);
        must_meet_beside(&world, pid);
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
        cmocka_unit_test(test_death_before_all),
        cmocka_unit_test(test_other_options),
        cmocka_unit_test(test_same_number),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_descriptors),
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
