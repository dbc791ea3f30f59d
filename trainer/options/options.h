/* What upipe-train is told: its option table, and how options become a run config. */
#ifndef UP_TRAINER_OPTIONS_H
#define UP_TRAINER_OPTIONS_H

#include "model/config.h"
#include "trainer/step/step.h"

/* How much is recorded: tensors are told by the step itself; the others also by whoever looks at
 * the GPUs, who took their memory, and when their kernels ran. */
enum up_trace_level { UP_TRACE_TENSORS, UP_TRACE_MEMORY, UP_TRACE_KERNELS };

enum up_schedule { UP_SCHEDULE_CONSTANT, UP_SCHEDULE_COSINE };

struct up_train_options {
    const char *model; // NULL when not given: that of the save to be resumed, else "tiny"
    const char *data, *trace, *json_log, *machine;
    const char *save, *resume; // NULL when not given
    const char *output;        // of bench: NULL when not given
    int64_t layers;            // 0: all
    int64_t active_layers;     // 0: all of them
    int64_t seq, batch, steps, seed, threads, chaos;
    int trace_level;                    // enum up_trace_level
    int data_format, device, dtype, as; // dtype and as: -1 when not given
    struct up_span trace_steps;         // {-1, -1} when not given
    // Techniques: -1 (0 for counts of ranks) where not given, so that --stack may say.
    int stack, fsdp, optimizer;
    int64_t ranks, cp, dp, accum;
    struct up_counted checkpoint, offload;
    int64_t tile_mlp, tile_loss, tile_attn, upipe;
    int64_t memory_limit; // bytes, 0: none
    bool no_admission, deterministic;
    int64_t nccl_buffers; // bytes per channel, 0: NCCL's default
    double lr, beta1, beta2, epsilon, decay, clip;
    int schedule;
    int64_t warmup;
    int64_t save_every; // 0: at the end only
};

extern const struct up_option up_train_option_table[];

/* Reads argv into `options`. UP_USAGE with one line. */
enum up_status up_train_options_parse(struct up_train_options *options, int argc, char **argv,
                                      struct up_arguments *arguments, struct up_error *err);

enum up_device_kind up_train_device(const struct up_train_options *options);

/* The run config that the options ask for; reads the model's shape from its folder. *folder tells
 * whether there is one (then its weights are to be loaded). `resume` must name the save itself. */
enum up_status up_train_options_resolve(const struct up_train_options *options,
                                        struct up_config *config, bool *folder,
                                        struct up_error *err);

/* Puts what was worked out where nothing was given, so that the options can be told and stored. */
void up_train_options_settle(struct up_train_options *options, const struct up_config *config);

/* The learning rate of a step, from 0: linear over the first `warmup` steps (step 0 has 1/warmup of
 * it), then constant, or along half a cosine to 0 at the end of the run. */
double up_train_lr(const struct up_train_options *options, int64_t step);

#endif
