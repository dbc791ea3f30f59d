/* A CUPTI of the tests' own, loaded in the real one's place: it sees what it is told to see. */
#ifndef UP_TESTS_GPU_FAKE_CUPTI_H
#define UP_TESTS_GPU_FAKE_CUPTI_H

#include <cupti.h>

struct fake_cupti {
    /* A record of its own size, put into a buffer of the subscriber's, or dropped. */
    void (*record)(const void *record, size_t size);
    /* A call of CUDA, told to the subscriber if it asked for that kind. True if it was told. */
    int (*call)(CUpti_CallbackDomain domain, CUpti_CallbackId id, uint32_t correlation);
    /* Somebody else subscribes; NULL: gives up. */
    void (*rival)(const char *name);
    /* The kind is refused from now on; 0: none is. */
    void (*refuse)(CUpti_ActivityKind kind);
    /* What CUPTI's clock is ahead of the monotonic one. */
    int64_t ahead_ns;
};

#endif
