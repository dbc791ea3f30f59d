/* What a config's step would take and how long, before it runs: dry re-runs of rank 0 (or of the
 * rank that holds most, where KV heads fall unevenly) on a machine's cost model. By the exactness
 * contract (docs/design.md) the bytes are those of the real run; times are the cost model's. */
#ifndef UP_TRAINER_FORECAST_H
#define UP_TRAINER_FORECAST_H

#include "mem/mem.h"
#include "model/config.h"

enum up_forecast_depth {
    UP_FORECAST_BRIEF,   // peaks and time alone
    UP_FORECAST_PLACED,  // and where the peak is, what it is made of
    UP_FORECAST_PLANNED, // and the planned arenas
};

/* What libraries take on a device beside upipe's own arenas. */
enum up_library {
    UP_LIBRARY_CONTEXT,
    UP_LIBRARY_CUBLAS,
    UP_LIBRARY_CUDNN,
    UP_LIBRARY_NCCL,
    UP_LIBRARY_COUNT
};
extern const char *const up_library_names[UP_LIBRARY_COUNT];

/* Tensors of one kind that are alive at the peak: those that differ by layer or index alone. */
struct up_forecast_kind {
    char name[UP_LABEL_TEXT]; // '*' for each such number: "layers.*.mlp.gate"
    enum up_category category;
    int64_t bytes, count;
};
enum { UP_FORECAST_KINDS = 8 };

struct up_forecast {
    enum up_forecast_depth depth;
    bool beyond; // any memory: more than 2^60 bytes, and how much and how long is not known
    char config_hash[17];
    int64_t peak_bytes, host_bytes; // of one rank, each at its own highest moment of a step
    int64_t library_bytes[UP_LIBRARY_COUNT], libraries; // on one device; their sum
    double step_s, tokens_per_s;                        // tokens of all ranks
    double micro_batch_s; // of step_s what each further micro-batch takes

    // From UP_FORECAST_PLACED on.
    int64_t category[UP_CATEGORY_COUNT];             // bytes at the device's peak
    struct up_forecast_kind kind[UP_FORECAST_KINDS]; // largest first; bytes 0: no more
    enum up_phase phase;
    int64_t layer;                  // UP_NO_LAYER outside
    char range[256];                // "backward > layers.3.mlp", outermost first
    char reached_by[UP_LABEL_TEXT]; // the allocation that made it the highest
    int64_t reached_by_bytes;

    // From UP_FORECAST_PLANNED on: what the planned arenas take, all that outlives steps included;
    // and step_s with tensors where the plan has them, which decides which stream waits for which.
    // step_s itself has them where they first fit, and is comparable at all depths.
    int64_t arena_bytes[UP_SPACE_COUNT];
    double planned_step_s, planned_micro_batch_s;
};

/* Once *stop is set it fails, as dry_rank.h says; NULL: nobody stops it. *forecast is then of no
 * use. */
enum up_status up_forecast_make(const struct up_config *config, const struct up_machine *machine,
                                enum up_forecast_depth depth, volatile const int *stop,
                                struct up_forecast *forecast, struct up_error *err);

/* step_s of rank 0 with its tensors where `plan`, which is of this config, has them. */
enum up_status up_forecast_in_plan(const struct up_config *config, const struct up_machine *machine,
                                   const struct up_step_plan *plan, volatile const int *stop,
                                   double *step_s, struct up_error *err);

/* About as many launches as a micro-batch has, which is what a dry run of it takes time for. */
double up_config_launches(const struct up_config *config);
/* Whether many forecasts of it, and of its neighbours, take reasonable time. */
bool up_config_can_be_forecast(const struct up_config *config);

/* What the device must have for it: the arena where that is planned, else the peak, and the
 * libraries. And what a rank needs of the host's memory. */
int64_t up_forecast_device_need(const struct up_forecast *forecast);
int64_t up_forecast_host_need(const struct up_forecast *forecast);

#endif
