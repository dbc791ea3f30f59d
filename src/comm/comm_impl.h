/* What a kind of communicator provides. */
#ifndef UP_COMM_COMM_IMPL_H
#define UP_COMM_COMM_IMPL_H

#include "comm/comm.h"

enum up_collective {
    UP_ALL_TO_ALL,
    UP_ALL_GATHER,
    UP_REDUCE_SCATTER,
    UP_ALL_REDUCE,
    UP_BROADCAST,
};

/* One collective as a piece of work. */
struct up_collective_args {
    struct up_comm *comm;
    enum up_collective kind;
    const void *send; // all-to-all only; the others work in `buffer`
    void *buffer;     // for all-to-all: what is received
    int64_t count;    // elements: share, count
    struct up_exchange exchange;
    enum up_dtype dtype;
    int root;
};

struct up_comm_ops {
    union up_call run; // args: struct up_collective_args; on the stream
    enum up_status (*agree)(struct up_comm *comm, bool mine, bool *any, struct up_error *err);
    void (*abort)(struct up_comm *comm, const char *reason);
    enum up_status (*check)(struct up_comm *comm, struct up_error *err);
    void (*destroy)(struct up_comm *comm);
};

struct up_comm {
    const struct up_comm_ops *ops;
    int size, rank;
};

#endif
