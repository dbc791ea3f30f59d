/* cuDNN for attention: the library, found when the program runs so that upipe works without it;
 * plans, built once per view; and running them.
 *
 * One struct up_cudnn serves one device, from the thread that uses it. Plans run on the launch's
 * stream one after the other, which also keeps apart the bytes of workspace that each uses.
 */
#include "ops/cuda/attention_graph.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    OLDEST_VERSION = 91400, // the oldest that the graphs were checked with
    CANDIDATES = 8,         // engine configurations to try
};

struct up_cudnn_plan {
    struct up_attention_view view;
    up_descriptor plan; // NULL: cuDNN does not serve the view, and `why`
    struct up_error why;
};

struct up_cudnn {
    void *library;
    struct up_cudnn_api api;
    cudnnHandle_t handle;
    cudaStream_t stream; // the handle's
    struct up_cudnn_plan **plans;
    int count;
};

/* --- Plans ------------------------------------------------------------------------------------ */

static up_descriptor make_heuristics(struct up_descriptors *list, cudnnHandle_t handle,
                                     const struct up_attention_view *view)
{
    up_descriptor operations[UP_OPERATIONS_MAX];
    int count = up_attention_graph(list, view, operations);
    up_descriptor graph = up_descriptor_make(list, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    up_descriptor_set(list, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                      count, operations);
    up_descriptor_set_one(list, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
                          &handle);
    up_descriptor_finalize(list, graph, "the graph");

    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    up_descriptor heuristics = up_descriptor_make(list, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    up_descriptor_link(list, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    up_descriptor_set_one(list, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE,
                          &mode);
    up_descriptor_finalize(list, heuristics, "the choice of engines");
    return heuristics;
}

/* Fills `candidates`, best first; how many cuDNN gave. */
static int64_t find_candidates(struct up_descriptors *list, up_descriptor heuristics,
                               up_descriptor candidates[CANDIDATES])
{
    int64_t count = 0;
    for (int i = 0; i < CANDIDATES; i++)
        candidates[i] = up_descriptor_make(list, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (list->status != CUDNN_STATUS_SUCCESS) return 0;
    cudnnStatus_t status =
        list->api->get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                       CANDIDATES, &count, candidates);
    if (status != CUDNN_STATUS_SUCCESS) up_descriptors_fail(list, status, "the list of engines");
    return up_min(count, CANDIDATES);
}

/* The plan for one configuration, or NULL if it is not to be had in `workspace_bytes`. */
static up_descriptor finish_plan(const struct up_cudnn *cudnn, up_descriptor candidate,
                                 int64_t workspace_bytes)
{
    const struct up_cudnn_api *api = &cudnn->api;
    up_descriptor plan = NULL;
    int64_t needs = 0, count = 0;
    if (api->make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) != CUDNN_STATUS_SUCCESS)
        return NULL;
    bool good = api->set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                         &cudnn->handle) == CUDNN_STATUS_SUCCESS &&
                api->set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &candidate) == CUDNN_STATUS_SUCCESS &&
                api->finalize(plan) == CUDNN_STATUS_SUCCESS &&
                api->get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                         &count, &needs) == CUDNN_STATUS_SUCCESS &&
                needs <= workspace_bytes;
    if (good) return plan;
    api->unmake(plan);
    return NULL;
}

static void build_plan(const struct up_cudnn *cudnn, struct up_cudnn_plan *plan,
                       int64_t workspace_bytes)
{
    struct up_descriptors list = {.api = &cudnn->api, .status = CUDNN_STATUS_SUCCESS};
    up_descriptor candidates[CANDIDATES];
    up_descriptor heuristics = make_heuristics(&list, cudnn->handle, &plan->view);
    int64_t count = find_candidates(&list, heuristics, candidates);
    for (int64_t i = 0; i < count && !plan->plan; i++)
        plan->plan = finish_plan(cudnn, candidates[i], workspace_bytes);
    if (list.status != CUDNN_STATUS_SUCCESS)
        up_fail(&plan->why, UP_FAILED, "cuDNN: %s: %s", list.failed,
                cudnn->api.error_string(list.status));
    else if (!plan->plan)
        up_fail(&plan->why, UP_FAILED, "cuDNN: none of its %lld engines serves this shape",
                (long long)count);
    up_descriptors_unmake(&list);
}

static struct up_cudnn_plan *add_plan(struct up_cudnn *cudnn, const struct up_attention_view *view)
{
    size_t bytes = (size_t)(cudnn->count + 1) * sizeof(struct up_cudnn_plan *);
    struct up_cudnn_plan **plans = realloc(cudnn->plans, bytes);
    if (plans) cudnn->plans = plans;
    struct up_cudnn_plan *plan = plans ? calloc(1, sizeof *plan) : NULL;
    if (!plan) return NULL;
    plan->view = *view;
    return cudnn->plans[cudnn->count++] = plan;
}

const struct up_cudnn_plan *up_cudnn_plan(struct up_cudnn *cudnn,
                                          const struct up_attention_view *view,
                                          int64_t workspace_bytes, struct up_error *err)
{
    struct up_cudnn_plan *plan = NULL;
    for (int i = 0; i < cudnn->count && !plan; i++)
        if (!memcmp(&cudnn->plans[i]->view, view, sizeof *view)) plan = cudnn->plans[i];
    if (!plan) {
        plan = add_plan(cudnn, view);
        if (!plan) {
            up_fail(err, UP_FAILED, "cuDNN: host memory is short");
            return NULL;
        }
        build_plan(cudnn, plan, workspace_bytes);
    }
    if (plan->plan) return plan;
    up_fail(err, UP_FAILED, "%s", plan->why.text);
    return NULL;
}

/* --- Running ---------------------------------------------------------------------------------- */

static up_descriptor make_bindings(struct up_descriptors *list, void *const *bound, void *workspace)
{
    int64_t ids[UP_ATTENTION_IDS], count = 0;
    void *addresses[UP_ATTENTION_IDS];
    for (int64_t id = 1; id < UP_ATTENTION_IDS; id++) {
        if (!bound[id]) continue;
        ids[count] = id;
        addresses[count++] = bound[id];
    }
    up_descriptor pack = up_descriptor_make(list, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    up_descriptor_set(list, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                      addresses);
    up_descriptor_set(list, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    up_descriptor_set_one(list, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
                          &workspace);
    up_descriptor_finalize(list, pack, "binding addresses");
    return pack;
}

static void set_stream(struct up_cudnn *cudnn, struct up_descriptors *list, cudaStream_t stream)
{
    if (cudnn->stream == stream) return;
    cudnnStatus_t status = cudnn->api.set_stream(cudnn->handle, stream);
    if (status != CUDNN_STATUS_SUCCESS)
        up_descriptors_fail(list, status, "setting the stream");
    else
        cudnn->stream = stream;
}

void up_cudnn_run(struct up_cudnn *cudnn, const struct up_cudnn_plan *plan,
                  void *bound[UP_ATTENTION_IDS], void *workspace, struct up_cuda *cuda)
{
    float scale = 1 / sqrtf((float)plan->view.head_dim), masked = -INFINITY, one = 1;
    bound[UP_ATTENTION_SCALE] = &scale;
    bound[UP_ATTENTION_MASKED] = &masked;
    bound[UP_ATTENTION_ONE] = plan->view.backward ? &one : NULL;
    int32_t keys = (int32_t)plan->view.keys, queries = (int32_t)plan->view.queries;
    bound[UP_ATTENTION_KEYS] = keys != queries ? &keys : NULL;
    bound[UP_ATTENTION_QUERIES] = keys != queries ? &queries : NULL;

    struct up_descriptors list = {.api = &cudnn->api, .status = CUDNN_STATUS_SUCCESS};
    set_stream(cudnn, &list, up_cuda_stream(cuda));
    up_descriptor bindings = make_bindings(&list, bound, workspace);
    if (list.status == CUDNN_STATUS_SUCCESS) {
        cudnnStatus_t status = cudnn->api.execute(cudnn->handle, plan->plan, bindings);
        if (status != CUDNN_STATUS_SUCCESS) up_descriptors_fail(&list, status, "running a plan");
    }
    if (list.status != CUDNN_STATUS_SUCCESS) {
        char text[256] = "";
        cudnn->api.last_error(text, sizeof text);
        up_cuda_fail(cuda, "attention: cuDNN: %s: %s %s", list.failed,
                     cudnn->api.error_string(list.status), text);
    }
    up_descriptors_unmake(&list);
}

/* --- The library ------------------------------------------------------------------------------ */

static enum up_status load(struct up_cudnn *cudnn, struct up_error *err)
{
    // It stays once loaded: its parts register things that an unloading would pull away.
    cudnn->library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!cudnn->library) return up_fail(err, UP_FAILED, "%s", dlerror());
    const struct {
        void **function;
        const char *symbol;
    } functions[] = {
#define UP_CUDNN(field, symbol) {(void **)&cudnn->api.field, #symbol},
        UP_CUDNN_FUNCTIONS
#undef UP_CUDNN
    };
    for (int i = 0; i < UP_COUNT(functions); i++) {
        *functions[i].function = dlsym(cudnn->library, functions[i].symbol);
        if (!*functions[i].function)
            return up_fail(err, UP_FAILED, "libcudnn.so.9: expected %s", functions[i].symbol);
    }
    if (cudnn->api.version() < OLDEST_VERSION)
        return up_fail(err, UP_FAILED, "libcudnn.so.9: version %zu, expected %d or later",
                       cudnn->api.version(), OLDEST_VERSION);
    return UP_OK;
}

/* Only GPUs of compute capability 9.0: there the engines were checked, with the memory they take
 * and the order of their kernels, on which dq in d_o's place relies (attention.c). */
struct up_cudnn *up_cudnn_open(struct up_cuda *cuda, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_cudnn *cudnn = NULL;
    int capability = up_cuda_compute_capability(cuda);
    if (capability != 90)
        UP_TRY(up_fail(err, UP_FAILED, "cuDNN: not used on compute capability %d.%d",
                       capability / 10, capability % 10));
    cudnn = calloc(1, sizeof *cudnn);
    if (!cudnn) UP_TRY(up_fail(err, UP_FAILED, "cuDNN: host memory is short"));
    UP_TRY(load(cudnn, err));
    cudnnStatus_t status = cudnn->api.create(&cudnn->handle);
    if (status != CUDNN_STATUS_SUCCESS)
        UP_TRY(up_fail(err, UP_FAILED, "cuDNN: %s", cudnn->api.error_string(status)));
out:
    if (rc == UP_OK) return cudnn;
    up_cudnn_close(cudnn);
    return NULL;
}

void up_cudnn_close(struct up_cudnn *cudnn)
{
    if (!cudnn) return;
    for (int i = 0; i < cudnn->count; i++) {
        if (cudnn->plans[i]->plan) cudnn->api.unmake(cudnn->plans[i]->plan);
        free(cudnn->plans[i]);
    }
    free(cudnn->plans);
    if (cudnn->handle) cudnn->api.destroy(cudnn->handle);
    if (cudnn->library) dlclose(cudnn->library);
    free(cudnn);
}
