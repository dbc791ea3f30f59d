/* A whole run: opens what the options name, trains, records, closes. */
#ifndef UP_TRAINER_TRAIN_H
#define UP_TRAINER_TRAIN_H

#include "trainer/launch.h"

/* `launch`: which process this is; of several only process 0 says how the run goes on, and each
 * writes a trace of its ranks. `command` is the command line as it is to stand in the trace. *stop,
 * set from a signal handler, ends the run in order: after its step, with a save, where
 * up_train_ends_saved, else after the layer it is in. UP_USAGE before anything was written;
 * UP_FAILED when the run did not get to its end (out of memory, interrupted), after the trace was
 * closed in order. */
enum up_status up_train(const struct up_train_options *options, const struct up_launch *launch,
                        const char *command, volatile const int *stop, struct up_error *err);

/* Whether a run that is told to end finishes its step and saves: in all its processes, whichever
 * of them was told. */
bool up_train_ends_saved(const struct up_train_options *options);

#endif
