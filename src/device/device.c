#include "device/device.h"

const char *const up_device_kind_names[UP_DEVICE_KIND_COUNT] = {"cpu", "cuda", "dry"};

const char *const up_cost_class_names[UP_COST_CLASS_COUNT] = {
    [UP_COST_MATMUL] = "matmul",
    [UP_COST_ATTENTION_FORWARD] = "attention_forward",
    [UP_COST_ATTENTION_BACKWARD] = "attention_backward",
    [UP_COST_POINTWISE] = "pointwise",
    [UP_COST_NORM_FORWARD] = "norm_forward",
    [UP_COST_NORM_BACKWARD] = "norm_backward",
    [UP_COST_ROPE] = "rope",
    [UP_COST_EMBED_BACKWARD] = "embed_backward",
    [UP_COST_CROSS_ENTROPY] = "cross_entropy",
    [UP_COST_ADAMW] = "adamw",
    [UP_COST_COLLECTIVE] = "collective",
};

void up_device_destroy(struct up_device *device)
{
    if (device) device->ops->destroy(device);
}

void up_device_bind(struct up_device *device)
{
    if (device->ops->bind) device->ops->bind(device);
}

// 32 MiB for cuBLAS, which is what it recommends for Hopper, 16 MiB for the compute stream's
// kernels and 64 KiB for each other stream's.
int64_t up_device_workspace_bytes(enum up_device_kind kind)
{
    return kind == UP_DEVICE_CUDA ? (48 << 20) + (UP_STREAM_COUNT - 1) * 65536 : 0;
}
