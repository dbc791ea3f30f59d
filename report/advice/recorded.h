/* A recorded step as what it tells without a config: each tensor's lifetime with what its rows say
 * of it (category, layer, phase, name, shape), and what follows from the order of events: which
 * tensors a block keeps for its backward, and when the block was forward and backward. For runs
 * whose step cannot be run again; what is not recorded stays unknown. */
#ifndef UP_REPORT_RECORDED_H
#define UP_REPORT_RECORDED_H

#include "report/analysis/analysis.h"
#include "report/analysis/breakdown.h"
#include "report/analysis/replay.h"

/* What a tensor is to its block, by the parts of its name. */
enum up_recorded_role {
    UP_ROLE_UNKNOWN,
    UP_ROLE_QKV,    // attn.q .k .v and their gradients dq dk dv, by head
    UP_ROLE_OUTPUT, // attn.o .lse .do, by head
    UP_ROLE_ATTN,   // any other part of "attn"
    UP_ROLE_MLP,    // a part of "mlp"
    UP_ROLE_LOSS,   // a part of "loss"
};

struct up_recorded_tensor {
    struct up_lifetime life;
    char *name;          // owned, "" where unknown
    int category, phase; // enum up_category, enum up_phase; UP_NONE: unknown
    int64_t layer;       // UP_NONE: unknown or none
    enum up_recorded_role role;
    int64_t heads;             // of a tensor by head; 0: unknown
    int dtype_bytes;           // 0: unknown
    bool token_rows;           // its bytes are so many for each of the rank's tokens
    bool kept;                 // made in a block's forward for its backward
    bool shared;               // its storage has other names
    int64_t alloc_at, free_at; // of `moments`
    // When its block was done forward, and begun backward; INT64_MAX: never.
    int64_t forward_end, backward_begin;
};

struct up_recorded {
    struct up_recorded_tensor *tensors; // on the device, by alloc_seq
    int64_t count;
    int64_t *moments; // seqs at which anything happens, ascending, each once; owned
    int64_t moment_count;
    int64_t rank, step;                   // step UP_NONE: the run has no steps, all is one
    int64_t first_seq, last_seq;          // events of it
    int64_t peak_bytes;                   // replayed
    int64_t host_peak_bytes, other_bytes; // in host memory; of the device, beside arenas
    int64_t capacity_bytes;               // of the device; 0 where unknown
    // 0 where unknown.
    int64_t ranks, cp, seq, tokens; // tokens: of this rank
    int64_t batch, accum;           // 1 where unknown
    int dtype_bytes;                // of the run's dtype
    int64_t backward_seq;           // its first allocation; INT64_MAX: there is none
    int64_t optimizer_seq;          // the same
    int64_t nameless_bytes;         // alive at the peak without a category: no rule touches them
    bool on_cpu;
};

/* The rank and step of `breakdown`'s peak. UP_USAGE where no tensor was recorded. */
enum up_status up_recorded_read(const struct up_run *run, const struct up_breakdown *breakdown,
                                struct up_recorded *recorded, struct up_error *err);

/* The index in `moments` of the first that is not before `seq`; moment_count: none. */
int64_t up_recorded_moment(const struct up_recorded *recorded, int64_t seq);

void up_recorded_release(struct up_recorded *recorded); // a zeroed one is fine

#endif
