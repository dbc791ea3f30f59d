/* The processes of a run that have met: how they wait for each other, fail, die and go. */
#include "tests/comm/world.h"

/* --- Coming and going --------------------------------------------------------------------------
 */

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

// Nobody passes a turn before all have come to it. Each rank says yes in its turn, and then nobody
// does: the others hear of it in that turn, and in no other.
static void *walk(void *argument)
{
    struct walker *walker = argument;
    int rank = up_comm_rank(walker->comm), size = walker->size;
    for (int t = 0; t < walker->turns; t++) {
        int who = t % (size + 1);
        bool any = who == size;
        walker->here[t]++;
        if (up_comm_agree(walker->comm, who == rank, &any, &walker->error)) return NULL;
        if (walker->here[t] == size && any == (who < size)) continue;
        up_fail(&walker->error, UP_FAILED, "turn %d: %d of %d are there, %s", t,
                (int)walker->here[t], size, any ? "one with a yes" : "none with a yes");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),    cmocka_unit_test(test_goodbye),
        cmocka_unit_test(test_barriers), cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_aborts),   cmocka_unit_test(test_death_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
