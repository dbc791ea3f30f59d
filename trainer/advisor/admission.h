/* Whether a run may start: its forecast against the memory that there is, before anything large is
 * allocated (docs/design.md, "Know before you run"). */
#ifndef UP_TRAINER_ADMISSION_H
#define UP_TRAINER_ADMISSION_H

#include "trainer/advisor/limits.h"
#include "trainer/forecast/forecaster.h"
#include "trainer/options/options.h"

enum { UP_ADMISSION_TEXT = 1024 };
struct up_admission {
    bool fits;                    // also where nothing is known of the memory that there is
    char lack[UP_ADMISSION_TEXT]; // "device memory: the forecast is 24.0 MiB, there is 20.0 MiB"
    char dominant[UP_ADMISSION_TEXT]; // which allocation is too much
    char way_out[UP_ADMISSION_TEXT];  // the options that fit, and what they cost
};

/* `planned`: the planned arenas must fit, otherwise the live peak. */
enum up_status up_admission_check(struct up_forecaster *forecaster, const struct up_config *config,
                                  const struct up_limits *limits, bool planned,
                                  struct up_admission *admission, struct up_error *err);

/* The part of its usual memory that NCCL takes with the options' buffers; and a machine's figures
 * with these. */
double up_admission_buffers_share(const struct up_train_options *options);
void up_admission_buffers(const struct up_train_options *options, struct up_machine *machine);

/* What a run of these options, for the device `as` of its config, may take: on dry of the machine,
 * else of the device (`capacity` bytes) and of the host as it is now, which `node_ranks` ranks
 * share. *machine then has these, too, and what NCCL takes with the options' buffers. */
struct up_limits up_admission_limits(const struct up_train_options *options, enum up_device_kind as,
                                     int64_t capacity, int64_t node_ranks,
                                     struct up_machine *machine);

#endif
