/* A tool of the tests' own that listens through NVTX, loaded by NVTX itself: it holds whoever
 * registers memory to the order that compute-sanitizer asks for. */
#ifndef UP_TESTS_GPU_FAKE_NVTX_H
#define UP_TESTS_GPU_FAKE_NVTX_H

#include <stddef.h>

struct fake_nvtx {
    /* What was registered, with the names: "heap 1000+400; region 1000+100 attn.q; ...", addresses
     * from the first heap's, in the order of registration. */
    const char *(*state)(void);
    /* The first thing that was not as it should be; "": all was. */
    const char *(*mistake)(void);
    /* Heaps are refused from now on, or no more. */
    void (*refuse)(int refuse);
};

#endif
