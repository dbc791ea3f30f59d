/* The launchers, and the table of implementations per device kind. */
#include "ops/ops_impl.h"

#define UP_OP(name)                                                                                \
    static struct up_cost cost_##name(const void *args)                                            \
    {                                                                                              \
        return up_cost_##name(args);                                                               \
    }
#include "ops/ops.def"
#undef UP_OP

#if UPIPE_CUDA
#define CUDA_COLUMN(name) up_cuda_##name
#else
#define CUDA_COLUMN(name) NULL
#endif

static const struct {
    const char *name;
    void (*cpu)(const void *args);
    void (*cuda)(const void *args, struct up_cuda *cuda);
    struct up_cost (*cost)(const void *args);
} table[] = {
#define UP_OP(name) [UP_OP_##name] = {#name, up_cpu_##name, CUDA_COLUMN(name), cost_##name},
#include "ops/ops.def"
#undef UP_OP
};

// Of a dry run what the device would run that it stands for.
static union up_call run_of(enum up_op op, enum up_device_kind kind)
{
    return kind == UP_DEVICE_CUDA ? (union up_call){.cuda = table[op].cuda}
                                  : (union up_call){.cpu = table[op].cpu};
}

static void launch(struct up_rank *rank, enum up_stream stream, enum up_op op, const void *args,
                   size_t size)
{
    if (up_rank_failed(rank)) return;
    union up_call run = run_of(op, rank->device->as);
    if (rank->rehearsal) up_rehearsal_note(rank, op, run, args, size);
    struct up_cost cost = table[op].cost(args);
    up_launch(rank, stream, table[op].name, run, args, size, &cost);
}

#define UP_OP(name)                                                                                \
    void up_op_##name(struct up_rank *rank, enum up_stream stream,                                 \
                      const struct up_##name##_args *args)                                         \
    {                                                                                              \
        launch(rank, stream, UP_OP_##name, args, sizeof *args);                                    \
    }
#include "ops/ops.def"
#undef UP_OP
