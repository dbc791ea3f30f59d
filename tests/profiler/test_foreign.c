/* A program that is not ours becomes a trace: in the order in which things happened, whatever order
 * they are told in. */
#include "profiler/foreign.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include <pthread.h>

// "kind@ns rank:seq name [id in range, phase]" of each event, joined by newlines.
struct story {
    char text[8192];
    size_t used;
};

static void write_down(void *context, int rank, const struct up_event *event)
{
    static const char *const kinds[] = {[UP_EVENT_ALLOC] = "alloc",
                                        [UP_EVENT_FREE] = "free",
                                        [UP_EVENT_RANGE_BEGIN] = "begin",
                                        [UP_EVENT_RANGE_END] = "end"};
    struct story *story = context;
    bool tensor = event->kind == UP_EVENT_ALLOC || event->kind == UP_EVENT_FREE;
    unsigned long long id = tensor ? event->tensor.id : event->range.id;
    unsigned long long around = tensor ? event->tensor.range_id : event->range.parent;
    story->used += (size_t)snprintf(
        story->text + story->used, sizeof story->text - story->used,
        "%s%s@%lld %d:%llu %s [%llu in %llu, %s]", story->used ? "\n" : "", kinds[event->kind],
        (long long)event->ns, rank, (unsigned long long)event->seq,
        event->label.name ? event->label.name : "-", id, around, up_phase_names[event->phase]);
}

static void seen(struct up_foreign *foreign, enum up_activity_kind kind, int rank, int64_t ns,
                 uint64_t address, int64_t bytes, const char *library, uint64_t range)
{
    up_foreign_seen(foreign,
                    &(struct up_activity){.kind = kind,
                                          .rank = rank,
                                          .begin_ns = ns,
                                          .address = address,
                                          .bytes = bytes,
                                          .name = library},
                    range);
}

static void test_order(void **state)
{
    (void)state;
    struct up_foreign *foreign = up_foreign_create();
    struct story story = {0};
    const char *name = up_foreign_name(foreign, "forward");
    assert_ptr_equal(name, up_foreign_name(foreign, "forward"));
    uint64_t outer = up_foreign_range_begin(foreign, 0, 0, name, 10);
    uint64_t inner =
        up_foreign_range_begin(foreign, 0, outer, up_foreign_name(foreign, "layer 3"), 20);
    up_foreign_range_end(foreign, 0, inner, 50);
    seen(foreign, UP_ACTIVITY_RELEASE, 0, 40, 0x1000, 0, NULL, 0);
    seen(foreign, UP_ACTIVITY_ALLOC, 0, 30, 0x1000, 512, "/x/libc10_cuda.so", inner);
    seen(foreign, UP_ACTIVITY_ALLOC, 1, 30, 0x1000, 64, "/x/libnccl.so.2", 0);
    up_foreign_range_end(foreign, 0, outer, 900);
    // What may still have something before it waits.
    up_foreign_tell(foreign, 45, write_down, &story);
    assert_string_equal(story.text, "begin@10 0:1 forward [1 in 0, forward]\n"
                                    "begin@20 0:2 layer 3 [2 in 1, forward]\n"
                                    "alloc@30 0:3 libc10_cuda.so [1 in 2, forward]\n"
                                    "alloc@30 1:1 nccl [1 in 0, init]\n"
                                    "free@40 0:4 unknown [1 in 0, init]");
    story = (struct story){0};
    uint64_t last = up_foreign_range_begin(foreign, 0, 0, up_foreign_name(foreign, "Backward"), 60);
    up_foreign_range_end(foreign, 0, last, 60);
    up_foreign_tell(foreign, INT64_MAX, write_down, &story);
    assert_string_equal(story.text, "end@50 0:5 - [2 in 0, forward]\n"
                                    "begin@60 0:6 Backward [3 in 0, backward]\n"
                                    "end@60 0:7 - [3 in 0, backward]\n"
                                    "end@900 0:8 - [1 in 0, forward]");
    assert_int_equal(up_foreign_lost(foreign), 0);
    up_foreign_destroy(foreign);
}

static void test_lost_releases(void **state)
{
    (void)state;
    struct up_foreign *foreign = up_foreign_create();
    struct story story = {0};
    seen(foreign, UP_ACTIVITY_RELEASE, 0, 5, 0x9000, 8, NULL, 0); // from before we came
    seen(foreign, UP_ACTIVITY_ALLOC, 0, 10, 0x1000, 8, "a.so", 0);
    seen(foreign, UP_ACTIVITY_ALLOC, 0, 20, 0x1000, 16, "b.so", 0);
    seen(foreign, UP_ACTIVITY_ALLOC, 99, 30, 0x1000, 32, "c.so", 0); // of no rank: the first
    up_foreign_range_end(foreign, 0, 0, 40);                         // of a range that was lost
    assert_int_equal(up_foreign_range_begin(foreign, 0, 0, NULL, 40), 0);
    up_foreign_tell(foreign, INT64_MAX, write_down, &story);
    assert_string_equal(story.text, "alloc@10 0:1 a.so [1 in 0, init]\n"
                                    "free@20 0:2 b.so [1 in 0, init]\n"
                                    "alloc@20 0:3 b.so [2 in 0, init]\n"
                                    "free@30 0:4 c.so [2 in 0, init]\n"
                                    "alloc@30 0:5 c.so [3 in 0, init]");
    up_foreign_destroy(foreign);
}

enum { THREADS = 4, EACH = 2000 };

static void *begin_and_end(void *foreign)
{
    for (int i = 0; i < EACH; i++) {
        uint64_t id = up_foreign_range_begin(foreign, 0, 0, up_foreign_name(foreign, "x"), i);
        up_foreign_range_end(foreign, 0, id, i);
    }
    return NULL;
}

static void count(void *context, int rank, const struct up_event *event)
{
    (void)rank;
    uint64_t *seq = context;
    assert_int_equal(event->seq, *seq + 1);
    (*seq)++;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t thread[THREADS];
    uint64_t seq = 0;
    struct up_foreign *foreign = up_foreign_create();
    for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, begin_and_end, foreign);
    for (int i = 0; i < 50; i++) up_foreign_tell(foreign, INT64_MAX, count, &seq);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    up_foreign_tell(foreign, INT64_MAX, count, &seq);
    assert_int_equal(seq, 2 * THREADS * EACH);
    up_foreign_destroy(foreign);
}

// More than can wait: counted, and no more.
static void test_flood(void **state)
{
    (void)state;
    uint64_t seq = 0;
    struct up_foreign *foreign = up_foreign_create();
    const char *name = up_foreign_name(foreign, "x");
    for (int i = 0; i < 1100000; i++) up_foreign_range_begin(foreign, 0, 0, name, i);
    assert_int_equal(up_foreign_lost(foreign), 1100000 - (1 << 20));
    up_foreign_tell(foreign, INT64_MAX, count, &seq);
    assert_int_equal(seq, 1 << 20);
    up_foreign_destroy(foreign);
}

// A program that numbers its ranges does not fill memory with their names.
static void test_names_without_end(void **state)
{
    (void)state;
    char text[64];
    struct up_foreign *foreign = up_foreign_create();
    const char *early = up_foreign_range_name(foreign, "add, seq = 0, op = 0");
    for (int i = 0; i < UP_FOREIGN_NAMES; i++) {
        snprintf(text, sizeof text, "add, seq = %d, op = %d", i, 3 * i);
        assert_string_equal(up_foreign_range_name(foreign, text), text);
    }
    const char *late = up_foreign_range_name(foreign, "add, seq = 999999, op = 7");
    assert_string_equal(late, "add, seq = *, op = *");
    assert_ptr_equal(late, up_foreign_range_name(foreign, "add, seq = 1000000, op = 8"));
    assert_ptr_equal(early, up_foreign_range_name(foreign, "add, seq = 0, op = 0"));
    for (int i = 0; i < 2 * UP_FOREIGN_NAMES; i++) {
        for (int bit = 0; bit < 20; bit++) text[bit] = i >> bit & 1 ? 'x' : 'o';
        text[20] = 0;
        late = up_foreign_range_name(foreign, text);
    }
    assert_string_equal(late, "other");
    assert_string_equal(up_foreign_name(foreign, "libcudart.so.13"), "libcudart.so.13");
    up_foreign_destroy(foreign);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_lost_releases),
                                       cmocka_unit_test(test_threads), cmocka_unit_test(test_flood),
                                       cmocka_unit_test(test_names_without_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
