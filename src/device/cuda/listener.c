/* Ranges for tools that listen through NVTX (Nsight Systems, for one). */
#include "device/cuda/cuda_impl.h"
#include "trace/trace.h"

#if __has_include(<nvtx3/nvToolsExt.h>)

#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>

struct up_listener {
    nvtxDomainHandle_t domain;
};

struct up_listener *up_listener_create(void)
{
    nvtxDomainHandle_t domain = nvtxDomainCreateA("upipe"); // NULL: no tool is there
    struct up_listener *listener = domain ? malloc(sizeof *listener) : NULL;
    if (listener) listener->domain = domain;
    return listener;
}

void up_listener_destroy(struct up_listener *listener)
{
    if (listener) nvtxDomainDestroy(listener->domain);
    free(listener);
}

void up_listener_range(struct up_listener *listener, const struct up_label *label)
{
    char text[UP_LABEL_TEXT];
    if (!label) {
        nvtxDomainRangePop(listener->domain);
        return;
    }
    nvtxEventAttributes_t event = {.version = NVTX_VERSION,
                                   .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                   .message.ascii = up_label_text(text, label)};
    nvtxDomainRangePushEx(listener->domain, &event);
}

#else

struct up_listener *up_listener_create(void)
{
    return NULL;
}

void up_listener_destroy(struct up_listener *listener)
{
    (void)listener;
}

void up_listener_range(struct up_listener *listener, const struct up_label *label)
{
    (void)listener;
    (void)label;
}

#endif
