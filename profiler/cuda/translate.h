/* CUPTI's records in the profiler's words: of which rank, when by the rank's clock, how many bytes.
 */
#ifndef UP_PROFILER_CUDA_TRANSLATE_H
#define UP_PROFILER_CUDA_TRANSLATE_H

#include "profiler/activity.h"

#include <cupti.h>

enum { UP_GPU_SEATS = 64 };

/* Whose a GPU is. */
struct up_gpu_seat {
    bool taken;
    int rank;
    int64_t start_ns; // when the rank's clock began, on ours
};

struct up_translation {
    struct up_clock_map clock; // theirs is CUPTI's
    struct up_gpu_seat seat[UP_GPU_SEATS];
};

/* False for records that are of no interest, and of GPUs that are nobody's. */
bool up_translate(const struct up_translation *translation, const CUpti_Activity *record,
                  struct up_activity *activity);
/* What a record of memory says besides: of the pool that it is from. */
bool up_translate_pool(const struct up_translation *translation, const CUpti_Activity *record,
                       struct up_activity *activity);

#endif
