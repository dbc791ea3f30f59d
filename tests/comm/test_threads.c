/* Ranks as threads: what an abort ends, and what it must not. */
#include "comm/comm_impl.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

enum { RANKS = 3, BYTES = 1 << 16 };

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* --- A buffer whose reader can be held up --------------------------------------------------------
 */

static char *guarded;
static atomic_bool reading, read_on;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    const char *at = info->si_addr;
    if (at < guarded || at >= guarded + BYTES) _exit(1);
    reading = true;
    while (!read_on) nap();
    mprotect(guarded, BYTES, PROT_READ | PROT_WRITE);
}

static void guard_buffer(struct sigaction *before)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    guarded = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(guarded != MAP_FAILED);
    reading = read_on = false;
    assert_int_equal(sigaction(SIGSEGV, &action, before), 0);
}

/* --- Ranks ---------------------------------------------------------------------------------------
 */

struct member {
    pthread_t thread;
    struct up_comm *comm;
    struct up_collective_args args;
    int64_t send_at[RANKS + 1], receive_at[RANKS + 1];
    char place[BYTES];
    atomic_bool done;
};

static void *run_collective(void *argument)
{
    struct member *member = argument;
    member->comm->ops->run.cpu(&member->args);
    member->done = true;
    return NULL;
}

static void start(struct member *member)
{
    assert_int_equal(pthread_create(&member->thread, NULL, run_collective, member), 0);
}

// All that is sent goes from rank 1, out of the guarded buffer, to rank 0.
static void make_members(struct member members[RANKS])
{
    struct up_comm *comms[RANKS];
    struct up_error error = {0};
    memset(members, 0, RANKS * sizeof *members);
    assert_int_equal(up_comm_threads_create(RANKS, comms, &error), UP_OK);
    for (int64_t i = 0; i < RANKS; i++) {
        struct member *member = &members[i];
        for (int64_t peer = 0; peer <= RANKS; peer++) {
            member->send_at[peer] = i == 1 && peer > 0 ? BYTES : 0;
            member->receive_at[peer] = i == 0 && peer > 1 ? BYTES : 0;
        }
        member->comm = comms[i];
        member->args =
            (struct up_collective_args){.comm = comms[i],
                                        .kind = UP_ALL_TO_ALL,
                                        .send = guarded,
                                        .buffer = member->place,
                                        .exchange = {member->send_at, member->receive_at},
                                        .dtype = UP_U8};
    }
}

static void destroy_members(struct member members[RANKS])
{
    for (int i = 0; i < RANKS; i++) up_comm_destroy(members[i].comm);
}

// An abort comes while rank 0 still reads what rank 1 sends: until it has, rank 1 is in the
// collective, and keeps its buffer and its args.
static void test_abort_within(void **state)
{
    (void)state;
    enum { PATIENCE = 200 };
    static struct member members[RANKS];
    struct sigaction before;
    struct up_error error = {0};
    guard_buffer(&before);
    make_members(members);
    for (int i = 0; i < RANKS; i++) start(&members[i]);
    while (!reading) nap();
    up_comm_abort(members[2].comm, "out of tea");
    for (int i = 0; i < PATIENCE && !members[1].done; i++) nap();
    bool left = members[1].done || members[2].done;
    read_on = true;
    for (int i = 0; i < RANKS; i++) pthread_join(members[i].thread, NULL);
    assert_false(left);
    for (int i = 0; i < RANKS; i++) {
        assert_true(members[i].done);
        assert_int_equal(up_comm_check(members[i].comm, &error), UP_FAILED);
        assert_string_equal(error.text, "out of tea");
    }
    // What comes after an abort is not waited for.
    run_collective(&members[0]);
    assert_int_equal(up_comm_barrier(members[1].comm, &error), UP_FAILED);
    destroy_members(members);
    sigaction(SIGSEGV, &before, NULL);
    munmap(guarded, BYTES);
}

// An abort comes before all are there: nobody reads anything, not even who comes last.
static void test_abort_before(void **state)
{
    (void)state;
    static struct member members[RANKS];
    struct sigaction before;
    guard_buffer(&before);
    read_on = true;
    make_members(members);
    start(&members[0]);
    start(&members[1]);
    for (int i = 0; i < 20; i++) nap();
    assert_false(members[0].done || members[1].done);
    up_comm_abort(members[2].comm, "out of tea");
    pthread_join(members[0].thread, NULL);
    pthread_join(members[1].thread, NULL);
    start(&members[2]);
    pthread_join(members[2].thread, NULL);
    assert_false(reading);
    destroy_members(members);
    sigaction(SIGSEGV, &before, NULL);
    munmap(guarded, BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_abort_within),
                                       cmocka_unit_test(test_abort_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
