/* What the devices' implementations of the operations have to provide; see ops.def. */
#ifndef UP_OPS_OPS_IMPL_H
#define UP_OPS_OPS_IMPL_H

#include "ops/ops.h"

#define UP_OP(name)                                                                                \
    void up_cpu_##name(const void *args);                                                          \
    void up_cuda_##name(const void *args, struct up_cuda *cuda);                                   \
    struct up_cost up_cost_##name(const struct up_##name##_args *args);
#include "ops/ops.def"
#undef UP_OP

enum up_op {
#define UP_OP(name) UP_OP_##name,
#include "ops/ops.def"
#undef UP_OP
};

/* Notes the call in rank->rehearsal, which is not NULL, if it is one of a library's. */
void up_rehearsal_note(struct up_rank *rank, int op, union up_call run, const void *args,
                       size_t size);

#endif
