#include "ops/cuda/descriptors.h"

void up_descriptors_fail(struct up_descriptors *list, cudnnStatus_t status, const char *what)
{
    if (list->status != CUDNN_STATUS_SUCCESS) return;
    list->status = status;
    list->failed = what;
}

up_descriptor up_descriptor_make(struct up_descriptors *list, cudnnBackendDescriptorType_t type)
{
    up_descriptor descriptor = NULL;
    if (list->status != CUDNN_STATUS_SUCCESS) return NULL;
    UP_ASSERT(list->count < UP_DESCRIPTORS_MAX);
    cudnnStatus_t status = list->api->make(type, &descriptor);
    if (status != CUDNN_STATUS_SUCCESS) {
        up_descriptors_fail(list, status, "a descriptor");
        return NULL;
    }
    return list->made[list->count++] = descriptor;
}

void up_descriptor_set(struct up_descriptors *list, up_descriptor descriptor,
                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t count, const void *values)
{
    if (list->status != CUDNN_STATUS_SUCCESS) return;
    cudnnStatus_t status = list->api->set(descriptor, name, type, count, values);
    if (status != CUDNN_STATUS_SUCCESS) up_descriptors_fail(list, status, "an attribute");
}

void up_descriptor_finalize(struct up_descriptors *list, up_descriptor descriptor, const char *what)
{
    if (list->status != CUDNN_STATUS_SUCCESS) return;
    cudnnStatus_t status = list->api->finalize(descriptor);
    if (status != CUDNN_STATUS_SUCCESS) up_descriptors_fail(list, status, what);
}

void up_descriptors_unmake(struct up_descriptors *list)
{
    while (list->count > 0) list->api->unmake(list->made[--list->count]);
}
