/* Tensors as regions for tools that check accesses, held against a tool of the tests' own: no GPU
 * is needed. */
#include "tests/gpu/need.h"

#if UPIPE_CUPTI && __has_include(<nvtx3/nvToolsExtMem.h>)

#include "device/cuda/cuda_impl.h"
#include "mem/mem.h"
#include "tests/gpu/fake_nvtx.h"

#include <dlfcn.h>
#include <stdlib.h>

static struct fake_nvtx *fake;

struct rig {
    struct up_regions *regions;
    struct up_device *device;
    struct up_device_ops ops; // of the device
    struct up_rank rank;
};

static struct rig *rig; // of the test that runs

// As the cuda device does it.
static void name(struct up_device *device, const void *at, int64_t bytes,
                 const struct up_label *label, bool renamed)
{
    (void)device;
    if (!renamed) up_regions_add(rig->regions, at, bytes);
    up_regions_name(rig->regions, at, bytes, label);
}

static void discard(struct up_device *device, enum up_stream stream, void *at, int64_t bytes)
{
    (void)device;
    (void)stream;
    up_regions_remove(rig->regions, at, bytes);
}

static void rig_start(struct rig *made)
{
    struct up_error err = {0};
    *made =
        (struct rig){.regions = up_regions_create(), .device = up_device_cpu_create(1, 0, &err)};
    rig = made;
    assert_non_null(made->regions);
    assert_non_null(made->device);
    made->ops = *made->device->ops;
    made->ops.name = name;
    made->ops.discard = discard;
    made->device->ops = &made->ops;
    assert_int_equal(up_rank_init(&made->rank, 0, made->device, NULL, NULL, &err), UP_OK);
}

static void rig_stop(void)
{
    assert_string_equal(fake->mistake(), "");
    up_rank_release(&rig->rank);
    up_regions_destroy(rig->regions);
    up_device_destroy(rig->device);
    assert_string_equal(fake->state(), "");
}

static void add_heap(int64_t offset, int64_t bytes)
{
    up_regions_add_heap(rig->regions, (char *)rig->rank.base[UP_SPACE_DEVICE] + offset, bytes);
}

static struct up_tensor *take(const char *what, int layer, int64_t bytes)
{
    return up_alloc(&rig->rank, UP_TAG_LAYER(ATTENTION, what, layer), UP_U8, UP_SHAPE(bytes));
}

// From allocation to free, also where the next one lies at the same address.
static void test_lives(void **state)
{
    (void)state;
    struct rig made;
    rig_start(&made);
    add_heap(0, 4096);
    struct up_tensor *q = take("attn.q", 3, 300), *k = take("attn.k", 3, 256);
    assert_string_equal(fake->state(), "heap 0+4096; region 0+300 layers.3.attn.q; "
                                       "region 512+256 layers.3.attn.k");
    up_free(&made.rank, &q);
    assert_string_equal(fake->state(), "heap 0+4096; region 512+256 layers.3.attn.k");
    struct up_tensor *o = take("attn.o", 4, 500);
    assert_string_equal(fake->state(), "heap 0+4096; region 512+256 layers.3.attn.k; "
                                       "region 0+500 layers.4.attn.o");
    up_free(&made.rank, &k);
    up_free(&made.rank, &o);
    assert_string_equal(fake->state(), "heap 0+4096");
    rig_stop();
}

// Another name of the same bytes is no region of its own.
static void test_rename(void **state)
{
    (void)state;
    struct rig made;
    rig_start(&made);
    add_heap(0, 4096);
    struct up_tensor *x = take("x", 0, 100);
    up_retag(&made.rank, x, UP_TAG_LAYER(MLP, "mlp.out", 0), UP_SHAPE(100));
    assert_string_equal(fake->state(), "heap 0+4096; region 0+100 layers.0.mlp.out");
    up_free(&made.rank, &x);
    assert_string_equal(fake->state(), "heap 0+4096");
    rig_stop();
}

// The arena has grown: memory that was mapped at different times is two heaps.
static void test_pieces(void **state)
{
    (void)state;
    struct rig made;
    rig_start(&made);
    add_heap(0, 1024);
    add_heap(1024, 1024);
    struct up_tensor *x = take("x", UP_NO_LAYER, 1500), *y = take("y", UP_NO_LAYER, 100);
    assert_string_equal(fake->state(), "heap 0+1024; heap 1024+1024; region 1024+476 x; "
                                       "region 0+1024 x; region 1536+100 y");
    assert_true(up_regions_hold(made.regions, y->data, y->bytes));
    assert_false(up_regions_hold(made.regions, (char *)y->data + 512, 100));
    up_free(&made.rank, &x);
    up_free(&made.rank, &y);
    assert_string_equal(fake->state(), "heap 0+1024; heap 1024+1024");
    rig_stop();
}

// Tensors of the host are not in it, and long names are cut to what the tool takes.
static void test_others(void **state)
{
    (void)state;
    struct rig made;
    rig_start(&made);
    add_heap(0, 4096);
    struct up_tensor *host = up_alloc_on(&made.rank, UP_SPACE_HOST, UP_STREAM_COMPUTE,
                                         UP_TAG(DATA, "host"), UP_U8, UP_SHAPE(100));
    assert_false(up_regions_hold(made.regions, host->data, host->bytes));
    struct up_tensor *x =
        take("a.name.that.is.far.longer.than.the.tool.would.take.it", UP_NO_LAYER, 1);
    assert_string_equal(fake->state(), "heap 0+4096; region 0+1 "
                                       "a.name.that.is.far.longer.than.the.tool.would.tak");
    up_free(&made.rank, &x);
    up_free(&made.rank, &host);
    // What is still alive when the arena is given back goes with it.
    take("x", UP_NO_LAYER, 100);
    up_regions_drop_heaps(made.regions);
    assert_string_equal(fake->state(), "");
    rig_stop();
}

// A tool that does not take the heap hears nothing of tensors.
static void test_refusal(void **state)
{
    (void)state;
    struct rig made;
    rig_start(&made);
    fake->refuse(1);
    add_heap(0, 4096);
    fake->refuse(0);
    struct up_tensor *x = take("x", UP_NO_LAYER, 100);
    assert_false(up_regions_hold(made.regions, x->data, x->bytes));
    assert_string_equal(fake->state(), "");
    up_free(&made.rank, &x);
    rig_stop();
}

int main(void)
{
    static const char path[] = UP_TEST_BUILD "/tests/fake/libfake_nvtx.so";
    setenv("NVTX_INJECTION64_PATH", path, 1); // before the first call of NVTX
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    fake = library ? dlsym(library, "fake_nvtx") : NULL;
    if (!fake) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lives), cmocka_unit_test(test_rename),
                                       cmocka_unit_test(test_pieces), cmocka_unit_test(test_others),
                                       cmocka_unit_test(test_refusal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void test_regions(void **state)
{
    (void)state;
    puts("skipped: built without NVTX's memory extension");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_regions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
