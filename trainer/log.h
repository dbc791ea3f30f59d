/* What a run says while it goes on: a line a step, a progress bar within long steps on a terminal,
 * and a JSON object a step in --json-log. */
#ifndef UP_TRAINER_LOG_H
#define UP_TRAINER_LOG_H

#include "trainer/step/step.h"

struct up_step_log {
    int64_t step;
    double loss, grad_norm; // NaN: none
    int64_t tokens;         // over all ranks and micro-batches
    double seconds;
    int64_t peak_bytes; // rank 0
};

struct up_log {
    struct up_progress progress; // first: the step calls it
    int64_t first;               // the step that the run begins with
    int64_t step, step_begin_ns, shown_ns;
    bool dry;
    bool bar; // stderr is a terminal
    int json_fd;
    bool json_created; // by this run
    bool json_shared;  // with the program's own output: added to
    int64_t json_keep; // bytes of a log of before that stay
    bool json_unended; // their last line has no newline yet
    const char *json_path;
};

/* Opens `json_path` (NULL: none) without changing it yet. It is not to be the file of `trace`
 * (NULL: none), by whatever name. `first`: the step that the run begins with; beyond 0 it is
 * resumed, and goes on in a log of the steps before. UP_USAGE when it cannot be written, and for a
 * file that is no JSON log of before, which is left alone. */
enum up_status up_log_init(struct up_log *log, const char *json_path, const char *trace,
                           int64_t first, bool dry, struct up_error *err);
/* The run begins: of an old JSON log goes what the run writes anew. */
enum up_status up_log_start(struct up_log *log, struct up_error *err);
/* The run does not begin after all: a JSON log that this made is taken away. */
void up_log_cancel(struct up_log *log);
void up_log_release(struct up_log *log);

void up_log_step_begin(struct up_log *log, int64_t step);
enum up_status up_log_step_end(struct up_log *log, const struct up_step_log *step,
                               struct up_error *err);

#endif
