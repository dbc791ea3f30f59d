/* upipe-train bench: what this machine does at a run's own shapes. Each distinct matrix product and
 * attention call of the step that the options describe, copies between device and host, collectives
 * between the ranks, memory and launches, measured on all ranks at once; and the machine file that
 * follows, for --device dry --machine FILE. */
#ifndef UP_TRAINER_BENCH_H
#define UP_TRAINER_BENCH_H

#include "trainer/options/options.h"

/* Prints what it measures; writes options->output unless that is NULL. UP_USAGE for several
 * processes: one measures all the GPUs of a machine. */
enum up_status up_bench(const struct up_train_options *options, int processes,
                        struct up_error *err);

#endif
