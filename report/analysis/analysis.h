/* The facts of a run: what it was, how far it got, how fast, and what went wrong. From `meta`,
 * `step` and `diagnostic`; the memory is breakdown.h's and replay.h's business. */
#ifndef UP_REPORT_ANALYSIS_H
#define UP_REPORT_ANALYSIS_H

#include "report/analysis/query.h"

enum { UP_META_TEXT = 256, UP_COMMAND_TEXT = 4096, UP_FACTS_OPTIONS = 16 };

struct up_run_options {
    struct {
        char name[32], value[64];
    } items[UP_FACTS_OPTIONS];
    int count;
    bool known; // false: the run tells nothing of how it was configured
};

struct up_run_facts {
    // As meta has them; "" where it has not.
    char run_id[UP_META_TEXT], config_hash[UP_META_TEXT], command[UP_COMMAND_TEXT],
        model[UP_META_TEXT], device[UP_META_TEXT], as[UP_META_TEXT], dtype[UP_META_TEXT],
        started[UP_META_TEXT], outcome[UP_META_TEXT], recorded_by[UP_META_TEXT];
    // UP_NONE where meta has no such number.
    int64_t schema_version, ranks, cp, dp, seq_len, batch, accum, processes, parameters,
        steps_planned, events_written, recorder_ns, recorder_bytes, ring_waits;
    int64_t ranks_recorded, first_rank, last_rank; // of the ranks, in this trace; 0, UP_NONE
    int64_t layers; // with tensors of their own; UP_NONE where there are none
    // On how many ranks of a cp group a KV head is, on average: above 1 where their query heads
    // share it. NaN: not known.
    double kv_copies;
    bool complete; // the run closed its trace
    bool injected; // recorded by injection: of a program that is not ours, which has no steps
    bool dry;      // a forecast
    bool out_of_memory;

    struct up_run_options options; // memory techniques that are on

    int64_t steps_done;             // ended, on every rank
    int64_t last_begun, last_ended; // steps; UP_NONE
    double first_loss, last_loss;   // NaN where there is none
    // Medians over the ended steps after the first (the first only where it is alone), on the
    // lowest rank; NaN where no step has ended.
    double step_s, tokens_per_s;

    int64_t diagnostics;   // rows
    char diagnostic[1024]; // the latest: of the kind out_of_memory if there is one
    char diagnostic_kind[64];
};

enum up_status up_run_facts_read(const struct up_run *run, struct up_run_facts *facts,
                                 struct up_error *err);

#endif
