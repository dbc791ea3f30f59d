/* cuDNN's backend interface as attention uses it: the functions, found when the program runs, and
 * descriptors made one after the other.
 *
 * A failure sticks in the list of descriptors: what follows does nothing, and whoever builds asks
 * once, at the end. */
#ifndef UP_OPS_CUDA_DESCRIPTORS_H
#define UP_OPS_CUDA_DESCRIPTORS_H

#include "base/base.h"

#include <cudnn.h>

/* UP_CUDNN(field, symbol): every function of the library that is called. */
#define UP_CUDNN_FUNCTIONS                                                                         \
    UP_CUDNN(version, cudnnGetVersion)                                                             \
    UP_CUDNN(error_string, cudnnGetErrorString)                                                    \
    UP_CUDNN(last_error, cudnnGetLastErrorString)                                                  \
    UP_CUDNN(create, cudnnCreate)                                                                  \
    UP_CUDNN(destroy, cudnnDestroy)                                                                \
    UP_CUDNN(set_stream, cudnnSetStream)                                                           \
    UP_CUDNN(make, cudnnBackendCreateDescriptor)                                                   \
    UP_CUDNN(unmake, cudnnBackendDestroyDescriptor)                                                \
    UP_CUDNN(set, cudnnBackendSetAttribute)                                                        \
    UP_CUDNN(get, cudnnBackendGetAttribute)                                                        \
    UP_CUDNN(finalize, cudnnBackendFinalize)                                                       \
    UP_CUDNN(execute, cudnnBackendExecute)

struct up_cudnn_api {
#define UP_CUDNN(field, symbol) __typeof__(symbol) *field;
    UP_CUDNN_FUNCTIONS
#undef UP_CUDNN
};

typedef cudnnBackendDescriptor_t up_descriptor;

enum { UP_DESCRIPTORS_MAX = 160, UP_OPERATIONS_MAX = 32 };

/* Descriptors that live until the plan is built. */
struct up_descriptors {
    const struct up_cudnn_api *api;
    cudnnStatus_t status; // the first failure
    const char *failed;   // what was being done then
    up_descriptor made[UP_DESCRIPTORS_MAX];
    int count;
};

/* The first failure is kept. */
void up_descriptors_fail(struct up_descriptors *list, cudnnStatus_t status, const char *what);
void up_descriptors_unmake(struct up_descriptors *list); // all of them

up_descriptor up_descriptor_make(struct up_descriptors *list, cudnnBackendDescriptorType_t type);
void up_descriptor_set(struct up_descriptors *list, up_descriptor descriptor,
                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t count, const void *values);
void up_descriptor_finalize(struct up_descriptors *list, up_descriptor descriptor,
                            const char *what);

static inline void up_descriptor_set_one(struct up_descriptors *list, up_descriptor descriptor,
                                         cudnnBackendAttributeName_t name,
                                         cudnnBackendAttributeType_t type, const void *value)
{
    up_descriptor_set(list, descriptor, name, type, 1, value);
}

static inline void up_descriptor_link(struct up_descriptors *list, up_descriptor descriptor,
                                      cudnnBackendAttributeName_t name, up_descriptor other)
{
    up_descriptor_set(list, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
}

#endif
