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

#endif
