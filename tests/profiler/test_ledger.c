/* Who holds a device's memory: nothing counts twice, in whatever order it is told; owners by their
 * files; another clock's moments. */
#include "profiler/ledger.h"
#include "tests/profiler/run_db.h"

enum { MIB = 1 << 20 };

struct fixture {
    struct sandbox box;
    struct up_store *store;
    struct up_ledger *ledger;
};

static void begin(struct fixture *f)
{
    struct up_error err = {0};
    sandbox_init(&f->box);
    assert_int_equal(up_store_create(f->box.path, NULL, 0, &f->store, &err), UP_OK);
    f->ledger = up_ledger_create(f->store, 1);
    assert_non_null(f->ledger);
}

static sqlite3 *end(struct fixture *f)
{
    up_ledger_destroy(f->ledger);
    assert_int_equal(up_store_finish(f->store, true, NULL), UP_OK);
    return open_db(f->box.path);
}

static void release(struct fixture *f, sqlite3 *db)
{
    sqlite3_close(db);
    sandbox_release(&f->box);
}

static void news(struct fixture *f, enum up_memory_news what, const char *owner, int64_t begin_ns,
                 int64_t end_ns, int64_t bytes)
{
    struct up_event event = {.kind = UP_EVENT_MEMORY,
                             .ns = begin_ns,
                             .label = {owner, UP_NO_LAYER, UP_NO_INDEX},
                             .memory = {.address = 0x10000000,
                                        .bytes = bytes,
                                        .end_ns = end_ns,
                                        .news = (uint8_t)what,
                                        .space = UP_SPACE_DEVICE}};
    up_ledger_news(f->ledger, &event);
}

static void seen(struct fixture *f, enum up_activity_kind kind, uint64_t address, int64_t bytes,
                 int64_t ns, const char *library)
{
    up_ledger_seen(f->ledger, &(struct up_activity){.kind = kind,
                                                    .rank = 1,
                                                    .address = address,
                                                    .bytes = bytes,
                                                    .begin_ns = ns,
                                                    .name = library});
}

static const char rows_sql[] = "SELECT owner, space, bytes, alloc_ns, free_ns FROM device_alloc"
                               " WHERE rank = 1 ORDER BY alloc_ns, owner, bytes";

static void seen_allocations_have_owners(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    seen(&f, UP_ACTIVITY_ALLOC, 0x1000, 100, 10, "/usr/lib/libnccl.so.2");
    seen(&f, UP_ACTIVITY_ALLOC, 0x2000, 200, 20, "/opt/x/libcublasLt.so.13");
    seen(&f, UP_ACTIVITY_ALLOC, 0x3000, 300, 30, "/home/me/libmine.so");
    seen(&f, UP_ACTIVITY_ALLOC, 0x4000, 400, 40, NULL);
    seen(&f, UP_ACTIVITY_RELEASE, 0x2000, 200, 50, NULL);
    // Its release was not seen: the driver would not give the address twice.
    seen(&f, UP_ACTIVITY_ALLOC, 0x1000, 150, 60, "/usr/lib/libcudnn_graph.so.9");
    seen(&f, UP_ACTIVITY_RELEASE, 0x9000, 7, 70, NULL); // from before we came
    sqlite3 *db = end(&f);
    assert_query(db, rows_sql,
                 "nccl|device|100|10|60\ncublas|device|200|20|50\nlibmine.so|device|300|30|-\n"
                 "unknown|device|400|40|-\ncudnn|device|150|60|-");
    release(&f, db);
}

static void arena_is_not_seen_again(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    news(&f, UP_MEMORY_RANGE, "arena", 0, 0, 1000 * MIB); // from 0x10000000
    seen(&f, UP_ACTIVITY_ALLOC, 0x10000000, 2 * MIB, 10, "upipe-train");
    news(&f, UP_MEMORY_TAKEN, "arena", 11, 0, 2 * MIB);
    seen(&f, UP_ACTIVITY_ALLOC, 0x10000000 + UINT64_C(1000) * MIB, 3 * MIB, 12, "x.so");
    sqlite3 *db = end(&f);
    assert_query(db, rows_sql, "arena|device|2097152|11|-\nx.so|device|3145728|12|-");
    release(&f, db);
}

// A pool grows by more than was asked: what a library took of it within a bracket is not its rest.
static void pools_keep_the_rest(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    seen(&f, UP_ACTIVITY_ALLOC, 0x1000, 10, 15, "/lib/libcudnn_graph.so.9");
    seen(&f, UP_ACTIVITY_POOL, 0x10000000, 22, 15, NULL); // its name may be any number
    news(&f, UP_MEMORY_RANGE, "arena", 0, 0, 1000 * MIB);
    seen(&f, UP_ACTIVITY_POOL, 0x10000000, 22, 16, NULL);
    news(&f, UP_MEMORY_BRACKET, "cudnn", 10, 20, 40);
    seen(&f, UP_ACTIVITY_RELEASE, 0x1000, 10, 30, NULL);
    seen(&f, UP_ACTIVITY_POOL, 0x10000000, 32, 30, NULL);
    seen(&f, UP_ACTIVITY_POOL, 0x10000000, 0, 40, NULL);
    seen(&f, UP_ACTIVITY_POOL, 0x20000000, 0, 50, NULL);
    sqlite3 *db = end(&f);
    assert_query(db, rows_sql,
                 "async pool|device|22|15|30\ncudnn|device|10|15|30\ncudnn|device|8|20|-\n"
                 "async pool|device|32|30|40");
    release(&f, db);
}

/* Setting up takes 1000: of it the arena 300, NCCL 600 (of which 200 were seen), and 100 that
 * nobody names. */
static const struct {
    int what; // 0: seen
    const char *owner;
    int64_t begin_ns, end_ns, bytes;
} story[] = {
    {UP_MEMORY_BRACKET, "nccl", 20, 40, 600}, {0, "/lib/libnccl.so.2", 30, 0, 200},
    {UP_MEMORY_TAKEN, "arena", 50, 0, 300},   {UP_MEMORY_BRACKET, "context", 10, 90, 1000},
    {0, "/lib/libnccl.so.2", 91, 0, 50}, // after it all
};

static void tell(struct fixture *f, int i)
{
    if (story[i].what || i == 2)
        news(f, (enum up_memory_news)story[i].what, story[i].owner, story[i].begin_ns,
             story[i].end_ns, story[i].bytes);
    else
        seen(f, UP_ACTIVITY_ALLOC, (uint64_t)(0x1000 * (i + 1)), story[i].bytes, story[i].begin_ns,
             story[i].owner);
}

static void brackets_hold_the_rest(void **state)
{
    (void)state;
    // What is seen comes when it comes; brackets end in their order.
    static const int orders[][5] = {{0, 1, 2, 3, 4}, {1, 0, 2, 3, 4}, {1, 2, 0, 3, 4},
                                    {0, 2, 3, 1, 4}, {0, 2, 3, 4, 1}, {4, 1, 0, 2, 3}};
    for (int o = 0; o < UP_COUNT(orders); o++) {
        struct fixture f;
        begin(&f);
        for (int i = 0; i < 5; i++) tell(&f, orders[o][i]);
        sqlite3 *db = end(&f);
        assert_query(db, rows_sql,
                     "nccl|device|200|30|-\nnccl|device|400|40|-\narena|device|300|50|-\n"
                     "context|device|100|90|-\nnccl|device|50|91|-");
        release(&f, db);
    }
}

static void what_shrinks_is_no_negative_row(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    seen(&f, UP_ACTIVITY_ALLOC, 0x1000, 500, 15, "a.so");
    news(&f, UP_MEMORY_BRACKET, "cudnn", 10, 20, 450); // 50 less than was seen: given back unseen
    news(&f, UP_MEMORY_BRACKET, "context", 5, 30, 460);
    sqlite3 *db = end(&f);
    assert_query(db, "SELECT owner, bytes FROM device_alloc ORDER BY id",
                 "a.so|500\ncudnn|0\ncontext|10");
    release(&f, db);
}

// Many addresses in a small table, in an order that makes them lie behind each other.
static void many_are_found_again(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    struct fixture f;
    begin(&f);
    for (uint64_t i = 1; i <= COUNT; i++)
        seen(&f, UP_ACTIVITY_ALLOC, i * 512, (int64_t)i, (int64_t)i, "a.so");
    for (uint64_t i = 1; i <= COUNT; i += 2)
        seen(&f, UP_ACTIVITY_RELEASE, i * 512, 0, COUNT + (int64_t)i, NULL);
    for (uint64_t i = 2; i <= COUNT; i += 4)
        seen(&f, UP_ACTIVITY_RELEASE, i * 512, 0, COUNT + (int64_t)i, NULL);
    assert_int_equal(up_ledger_lost(f.ledger), 0);
    sqlite3 *db = end(&f);
    assert_query(db, "SELECT count(*), count(free_ns) FROM device_alloc", "20000|15000");
    assert_query(db, "SELECT count(*) FROM device_alloc WHERE free_ns <> 20000 + alloc_ns", "0");
    assert_query(db, "SELECT count(*) FROM device_alloc WHERE free_ns IS NULL AND bytes % 4 <> 0",
                 "0");
    release(&f, db);
}

static void owners(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"/usr/lib/x86_64-linux-gnu/libcuda.so.1", "context"},
        {"libcudnn_engines_precompiled.so.9", "cudnn"},
        {"/usr/local/cuda/lib64/libcublas.so.13", "cublas"},
        {"/x/libcupti.so.13", "cupti"},
        {"/x/libcudart.so.13", "libcudart.so.13"},
        {"/x/", "unknown"},
        {"", "unknown"},
        {NULL, "unknown"},
    };
    char out[UP_OWNER_TEXT], longest[300];
    for (int i = 0; i < UP_COUNT(cases); i++)
        assert_string_equal(up_owner_of(out, cases[i][0]), cases[i][1]);
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(strlen(up_owner_of(out, longest)), UP_OWNER_TEXT - 1);
}

static void clocks(void **state)
{
    (void)state;
    const int64_t second = 1000000000, far = INT64_C(1700000000) * 1000000000;
    struct up_clock_map map = {0};
    assert_int_equal(up_clock_map_ours(&map, 5), 5);
    up_clock_map_add(&map, far, 7 * second);
    assert_int_equal(up_clock_map_ours(&map, far + 9), 7 * second + 9);
    // Theirs is slow by 100 us a second.
    up_clock_map_add(&map, far + second, 8 * second + 100000);
    assert_int_equal(up_clock_map_ours(&map, far), 7 * second);
    assert_int_equal(up_clock_map_ours(&map, far + second / 2), 7 * second + second / 2 + 50000);
    assert_int_equal(up_clock_map_ours(&map, far + 2 * second), 9 * second + 200000);
    // It is set an hour ahead: from there on it is taken to run like ours.
    up_clock_map_add(&map, far + 3602 * second, 9 * second);
    assert_int_equal(up_clock_map_ours(&map, far + 3603 * second), 10 * second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seen_allocations_have_owners),
        cmocka_unit_test(arena_is_not_seen_again),
        cmocka_unit_test(pools_keep_the_rest),
        cmocka_unit_test(brackets_hold_the_rest),
        cmocka_unit_test(what_shrinks_is_no_negative_row),
        cmocka_unit_test(many_are_found_again),
        cmocka_unit_test(owners),
        cmocka_unit_test(clocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
