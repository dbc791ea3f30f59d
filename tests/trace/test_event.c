/* Labels, keys and hashes: what they depend on, and what they must not. */
#include "trace/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static void labels_leave_out_what_is_negative(void **state)
{
    (void)state;
    static const struct {
        struct up_label label;
        const char *text;
    } cases[] = {
        {{"attn.o", 12, 3}, "layers.12.attn.o.3"},
        {{"mlp.gate", 0, UP_NO_INDEX}, "layers.0.mlp.gate"},
        {{"scalars", UP_NO_LAYER, 0}, "scalars.0"},
        {{"step.scalars", UP_NO_LAYER, UP_NO_INDEX}, "step.scalars"},
    };
    char text[UP_LABEL_TEXT];
    for (int i = 0; i < UP_COUNT(cases); i++)
        assert_string_equal(up_label_text(text, &cases[i].label), cases[i].text);
}

static void long_label_is_cut(void **state)
{
    (void)state;
    char name[300], text[UP_LABEL_TEXT];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    up_label_text(text, &(struct up_label){name, 1, 2});
    assert_int_equal(strlen(text), UP_LABEL_TEXT - 1);
}

static void dimensions_hold_48_bits(void **state)
{
    (void)state;
    static const int64_t extents[] = {0, 1, 5242880, INT64_C(1) << 32, (INT64_C(1) << 48) - 1};
    struct up_event event = {0};
    for (int i = 0; i < UP_COUNT(extents); i++) {
        up_event_set_dim(&event, i % UP_MAX_DIMS, extents[i]);
        assert_int_equal(up_event_dim(&event, i % UP_MAX_DIMS), extents[i]);
    }
}

static struct up_event sample_alloc(void)
{
    struct up_event event = {.kind = UP_EVENT_ALLOC,
                             .phase = UP_PHASE_FORWARD,
                             .step = 4,
                             .seq = 77,
                             .ns = 1000,
                             .label = {"attn.q", 3, 1}};
    event.tensor.id = 9;
    event.tensor.storage = 8;
    event.tensor.range_id = 5;
    event.tensor.bytes = event.tensor.reserved = 4096;
    event.tensor.category = UP_CATEGORY_ATTENTION;
    event.tensor.dims = 2;
    up_event_set_dim(&event, 0, 32);
    up_event_set_dim(&event, 1, 32);
    return event;
}

static void key_ignores_when_and_where(void **state)
{
    (void)state;
    struct up_event a = sample_alloc(), b = a;
    char *name = strdup(a.label.name); // the text counts, not the pointer
    b.step = 5;
    b.seq = 1077;
    b.ns = 999999;
    b.label.name = name;
    b.tensor.id = 109;
    b.tensor.storage = 108;
    b.tensor.range_id = 55;
    b.tensor.offset = 12345;
    b.tensor.reserved = 8192;
    assert_int_equal(up_event_key(&a), up_event_key(&b));
    free(name);
}

#define CHANGED(statement_)                                                                        \
    do {                                                                                           \
        struct up_event changed = sample_alloc();                                                  \
        statement_;                                                                                \
        assert_int_not_equal(up_event_key(&changed), key);                                         \
    } while (0)

static void key_sees_what_is_allocated(void **state)
{
    (void)state;
    struct up_event event = sample_alloc();
    uint64_t key = up_event_key(&event);
    CHANGED(changed.kind = UP_EVENT_FREE);
    CHANGED(changed.phase = UP_PHASE_BACKWARD);
    CHANGED(changed.label.name = "attn.k");
    CHANGED(changed.label.name = "attn.qq");
    CHANGED(changed.label.layer = 4);
    CHANGED(changed.label.index = 2);
    CHANGED(changed.tensor.bytes = 4097);
    CHANGED(changed.tensor.space = UP_SPACE_HOST);
    CHANGED(changed.tensor.category = UP_CATEGORY_MLP);
    CHANGED(changed.tensor.stream = UP_STREAM_COMM);
    CHANGED(changed.tensor.dtype = UP_BF16);
    CHANGED(changed.tensor.dims = 1);
    CHANGED((up_event_set_dim(&changed, 0, 16), up_event_set_dim(&changed, 1, 64)));
}

static void key_of_work_ignores_its_end(void **state)
{
    (void)state;
    struct up_event a = {.kind = UP_EVENT_COPY, .label = {"x", 1, UP_NO_INDEX}};
    a.work.bytes = 100;
    a.work.to = UP_SPACE_HOST;
    struct up_event b = a;
    b.work.end_ns = 5;
    b.work.range_id = 7;
    assert_int_equal(up_event_key(&a), up_event_key(&b));
    b.work.from = UP_SPACE_HOST;
    assert_int_not_equal(up_event_key(&a), up_event_key(&b));
    b = a;
    b.work.bytes = 101;
    assert_int_not_equal(up_event_key(&a), up_event_key(&b));
    b = a;
    b.work.stream = UP_STREAM_COPY_OUT;
    assert_int_not_equal(up_event_key(&a), up_event_key(&b));
}

static int compare_keys(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Events that differ in little, as a model's do: none may be taken for another.
static void keys_do_not_collide(void **state)
{
    (void)state;
    enum { LAYERS = 128, INDEXES = 64, BYTES = 32, COUNT = LAYERS * INDEXES * BYTES };
    uint64_t *keys = malloc(COUNT * sizeof *keys);
    struct up_event event = sample_alloc();
    int count = 0;
    for (int layer = 0; layer < LAYERS; layer++)
        for (int index = 0; index < INDEXES; index++)
            for (int bytes = 0; bytes < BYTES; bytes++) {
                event.label.layer = (int16_t)layer;
                event.label.index = (int16_t)index;
                event.tensor.bytes = (int64_t)bytes << 20;
                keys[count++] = up_event_key(&event);
            }
    qsort(keys, COUNT, sizeof *keys, compare_keys);
    for (int i = 1; i < COUNT; i++) assert_true(keys[i - 1] != keys[i]);
    free(keys);
}

static uint64_t hash_one(uint64_t before, bool alloc, const char *name, int64_t bytes)
{
    struct up_label label = {name, 2, UP_NO_INDEX};
    return up_event_hash(before, alloc, UP_SPACE_DEVICE, &label, UP_CATEGORY_MLP, UP_PHASE_FORWARD,
                         bytes);
}

static void hash_depends_on_order_and_content(void **state)
{
    (void)state;
    uint64_t start = UP_EVENT_HASH_START;
    uint64_t ab = hash_one(hash_one(start, true, "a", 64), true, "b", 64);
    assert_int_equal(ab, hash_one(hash_one(start, true, "a", 64), true, "b", 64));
    assert_int_not_equal(ab, hash_one(hash_one(start, true, "b", 64), true, "a", 64));
    assert_int_not_equal(ab, hash_one(hash_one(start, true, "a", 64), false, "b", 64));
    assert_int_not_equal(ab, hash_one(hash_one(start, true, "a", 65), true, "b", 64));
    assert_int_not_equal(
        ab, hash_one(hash_one(hash_one(start, true, "a", 64), true, "b", 64), true, "c", 0));
}

static void hash_sees_each_argument(void **state)
{
    (void)state;
    struct up_label label = {"x", 1, 1}, layer = {"x", 2, 1}, index = {"x", 1, 2};
    uint64_t base =
        up_event_hash(1, true, UP_SPACE_DEVICE, &label, UP_CATEGORY_MLP, UP_PHASE_FORWARD, 8);
    const uint64_t others[] = {
        up_event_hash(2, true, UP_SPACE_DEVICE, &label, UP_CATEGORY_MLP, UP_PHASE_FORWARD, 8),
        up_event_hash(1, true, UP_SPACE_HOST, &label, UP_CATEGORY_MLP, UP_PHASE_FORWARD, 8),
        up_event_hash(1, true, UP_SPACE_DEVICE, &layer, UP_CATEGORY_MLP, UP_PHASE_FORWARD, 8),
        up_event_hash(1, true, UP_SPACE_DEVICE, &index, UP_CATEGORY_MLP, UP_PHASE_FORWARD, 8),
        up_event_hash(1, true, UP_SPACE_DEVICE, &label, UP_CATEGORY_LOSS, UP_PHASE_FORWARD, 8),
        up_event_hash(1, true, UP_SPACE_DEVICE, &label, UP_CATEGORY_MLP, UP_PHASE_BACKWARD, 8),
    };
    for (int i = 0; i < UP_COUNT(others); i++) assert_int_not_equal(base, others[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_leave_out_what_is_negative),
        cmocka_unit_test(long_label_is_cut),
        cmocka_unit_test(dimensions_hold_48_bits),
        cmocka_unit_test(key_ignores_when_and_where),
        cmocka_unit_test(key_sees_what_is_allocated),
        cmocka_unit_test(key_of_work_ignores_its_end),
        cmocka_unit_test(keys_do_not_collide),
        cmocka_unit_test(hash_depends_on_order_and_content),
        cmocka_unit_test(hash_sees_each_argument),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
