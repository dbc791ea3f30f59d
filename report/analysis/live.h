/* What is alive at a moment, and its sums by category and by kind. */
#ifndef UP_REPORT_LIVE_H
#define UP_REPORT_LIVE_H

#include "report/analysis/query.h"

/* One storage, under its newest name alive. Texts are owned. */
struct up_live_tensor {
    char *name, *category, *phase, *dtype, *shape;
    int64_t id, storage_id;
    int64_t layer, step;           // UP_NONE outside
    int64_t bytes, reserved_bytes; // of the largest of its names alive, not negative
    int64_t alloc_seq, alloc_ns;
    int64_t names; // alive that share it
};

struct up_live {
    struct up_live_tensor *tensors; // largest first, then oldest
    int64_t count;
    int64_t bytes, reserved_bytes; // sums
    int64_t impossible;            // storages with a negative size, counted as 0
};

enum up_status up_live_read(const struct up_run *run, int64_t rank, enum up_space space,
                            int64_t seq, struct up_live *live, struct up_error *err);
void up_live_release(struct up_live *live); // a zeroed one is fine

/* A sum over tensors that have something in common. */
struct up_live_group {
    char *name;           // owned
    const char *category; // of its first tensor, not owned: the live set must outlive it
    int64_t bytes, count;
    const struct up_live_tensor *largest; // not owned either
};
struct up_live_groups {
    struct up_live_group *items; // largest first, then by name
    int64_t count;
};

enum up_live_key {
    UP_LIVE_BY_CATEGORY,
    UP_LIVE_BY_KIND,  // the name with '*' for each number in it: layers.*.mlp.gate
    UP_LIVE_BY_LAYER, // "layer 3", "outside layers"
};
enum up_status up_live_group(const struct up_live *live, enum up_live_key key,
                             struct up_live_groups *groups, struct up_error *err);
void up_live_groups_release(struct up_live_groups *groups);

#endif
