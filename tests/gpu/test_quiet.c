/* Within steps nothing is allocated, freed, mapped, registered or loaded, and nothing waits for a
 * whole device: CUPTI counts such calls of the driver, whoever makes them. A kernel of one rank's
 * collective waits for the other ranks, and such a call of theirs would wait for that kernel. */
#include "tests/gpu/need.h"
#include "tests/trainer/fixture.h"

#if UPIPE_CUDA

#include <cupti.h>
#include <stdatomic.h>

enum { LOUD_MAX = 64 };

// Calls that may wait for work of the device, by how their names begin.
static const char *const loud[] = {
    "cuModuleLoad",    "cuLibraryLoad",   "cuLibraryUnload",    "cuModuleUnload",
    "cuMemAlloc",      "cuMemFree",       "cuMemHost",          "cuMemCreate",
    "cuMemMap",        "cuMemUnmap",      "cuMemSetAccess",     "cuMemRelease",
    "cuMemAddress",    "cuCtxSynchron",   "cuStreamCreate",     "cuStreamDestroy",
    "cuEventCreate",   "cuLinkCreate",    "cuCtxEnablePeer",    "cuGraphInstantiate",
    "cuStreamSynchro", "cuEventSynchron", "cuModuleGetGlobal_", "cuLaunchHostFunc",
};

static atomic_bool listening;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char name[64];
    int count;
} heard[LOUD_MAX];

static void hear(const char *name)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < LOUD_MAX; i++) {
        if (heard[i].count && strcmp(heard[i].name, name)) continue;
        snprintf(heard[i].name, sizeof heard[i].name, "%s", name);
        heard[i].count++;
        break;
    }
    pthread_mutex_unlock(&lock);
}

static void CUPTIAPI on_call(void *unused, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                             const void *pointer)
{
    const CUpti_CallbackData *data = pointer;
    (void)unused;
    (void)domain;
    (void)id;
    if (!atomic_load(&listening) || data->callbackSite != CUPTI_API_ENTER) return;
    for (int i = 0; i < UP_COUNT(loud); i++)
        if (!strncmp(data->functionName, loud[i], strlen(loud[i]))) hear(data->functionName);
}

static int tell_heard(void)
{
    int count = 0;
    for (int i = 0; i < LOUD_MAX && heard[i].count; i++) {
        printf("within a step: %s, %d times\n", heard[i].name, heard[i].count);
        count += heard[i].count;
    }
    return count;
}

/* The shapes of a real model, of which two layers, so that cuBLAS and NCCL choose as they do there.
 */
static struct up_config real_config(int ranks)
{
    struct up_config config = blocks_of_llama3_8b(2);
    config.seq = 16384;
    config.cp = ranks;
    config.fsdp = true;
    config.checkpoint = UP_CHECKPOINT_ATTN;
    config.attn_layers = 1;
    config.offload_layers = 2;
    config.tile_mlp = config.tile_attn = 4096;
    config.tile_loss = 1000;
    config.upipe = up_max(4, ranks);
    return config;
}

static enum up_status prepare(struct member *member, void *unused)
{
    (void)unused;
    const struct up_config *c = &member->bench->config;
    struct up_trainer *trainer = &member->trainer;
    int64_t count = up_config_tokens(c, trainer->cp_rank);
    for (int64_t t = 0; t < count; t++) {
        up_trainer_inputs(trainer, 0, 0)[t] = (int32_t)(t % 1000);
        up_trainer_targets(trainer, 0, 0)[t] = (int32_t)((t + 1) % 1000);
    }
    enum up_status rc = up_state_randomise(&trainer->units, 1, &member->error);
    return rc ? rc : use_plan(member);
}

static void check_quiet(int ranks)
{
    static const struct up_hyper hyper = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .clip = 1};
    static struct bench bench;
    struct up_config config = real_config(ranks);
    bench_open(&bench, &config, UP_DEVICE_CUDA, 0);
    bench_run(&bench, prepare, NULL);
    memset(heard, 0, sizeof heard);
    atomic_store(&listening, true);
    for (int64_t step = 0; step < 2; step++) {
        struct step_call call = {.step = step, .counted = config.seq, .hyper = &hyper};
        bench_run(&bench, run_step, &call);
        assert_true(call.result.loss > 0 && call.result.loss < 20);
    }
    atomic_store(&listening, false);
    bench_close(&bench);
    assert_int_equal(tell_heard(), 0);
}

static void test_quiet(void **state)
{
    (void)state;
    CUpti_SubscriberHandle subscriber;
    gpus_or_skip();
    assert_int_equal(cuptiSubscribe(&subscriber, on_call, NULL), CUPTI_SUCCESS);
    assert_int_equal(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API), CUPTI_SUCCESS);
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        if (has_gpus(ranks)) check_quiet(ranks);
    cuptiUnsubscribe(subscriber);
}

int main(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quiet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void test_quiet(void **state)
{
    (void)state;
    gpus_or_skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quiet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
