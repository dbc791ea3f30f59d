/* Ranks as threads of one process. A collective is: post where my buffers are, meet, take what is
 * mine from the others' buffers, meet again. Waits block; there may be more ranks than cores. */
#include "comm/comm_impl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What ranks share.
struct group {
    pthread_mutex_t lock;
    pthread_cond_t turned;
    int size, arrived, users;
    uint64_t turn; // how often all have met
    bool some;     // of those who have arrived, one came with a yes
    bool any;      // so it was when all last met
    bool aborted;
    char reason[512];
    const struct up_collective_args *posted[]; // per rank, valid between the two meetings
};

struct threads_comm {
    struct up_comm base;
    struct group *group;
};

static struct group *group_of(struct up_comm *comm)
{
    return ((struct threads_comm *)comm)->group;
}

static void arrive(struct group *group, bool mine)
{
    group->some |= mine;
    if (++group->arrived < group->size) return;
    group->any = group->some;
    group->some = false;
    group->arrived = 0;
    group->turn++;
    pthread_cond_broadcast(&group->turned);
}

// Waits for all. Where the group may be given up meanwhile (`unless_aborted`) false is for everyone
// or, where all have met before that, for none. What they agreed on stays until all have come
// again.
static bool wait_for_all(struct group *group, bool unless_aborted, bool mine, bool *any)
{
    pthread_mutex_lock(&group->lock);
    uint64_t turn = group->turn;
    if (!(unless_aborted && group->aborted)) arrive(group, mine);
    while (group->turn == turn && !(unless_aborted && group->aborted))
        pthread_cond_wait(&group->turned, &group->lock);
    bool met = group->turn != turn;
    *any = group->any;
    pthread_mutex_unlock(&group->lock);
    return met;
}

static bool meet(struct group *group)
{
    bool any;
    return wait_for_all(group, true, false, &any);
}

// Within a collective, which all ranks are in and end without waiting for anything else. An abort
// does not call one away: the others still read its buffers.
static void meet_within(struct group *group)
{
    bool any;
    wait_for_all(group, false, false, &any);
}

/* --- The collectives' middles: from the others' posted args into mine
 * ------------------------------ */

static void take_all_to_all(struct group *group, const struct up_collective_args *mine)
{
    int64_t size = up_dtype_bytes[mine->dtype], me = mine->comm->rank;
    for (int from = 0; from < group->size; from++) {
        const struct up_collective_args *theirs = group->posted[from];
        int64_t at = theirs->exchange.send_at[me], to = mine->exchange.receive_at[from];
        int64_t count = theirs->exchange.send_at[me + 1] - at;
        UP_ASSERT(count == mine->exchange.receive_at[from + 1] - to);
        memcpy((char *)mine->buffer + to * size, (const char *)theirs->send + at * size,
               (size_t)(count * size));
    }
}

static void take_all_gather(struct group *group, const struct up_collective_args *mine)
{
    int64_t bytes = mine->count * up_dtype_bytes[mine->dtype];
    for (int from = 0; from < group->size; from++)
        if (from != mine->comm->rank)
            memcpy((char *)mine->buffer + from * bytes,
                   (const char *)group->posted[from]->buffer + from * bytes, (size_t)bytes);
}

// Elements [first, last) of my buffer become the sum of everybody's, in rank order.
static void sum_range(struct group *group, const struct up_collective_args *mine, int64_t first,
                      int64_t last)
{
    UP_ASSERT(mine->dtype == UP_F32 || mine->dtype == UP_F64);
    for (int64_t i = first; i < last; i++) {
        double sum64 = 0;
        float sum32 = 0;
        for (int r = 0; r < group->size; r++) {
            if (mine->dtype == UP_F64)
                sum64 += ((const double *)group->posted[r]->buffer)[i];
            else
                sum32 += ((const float *)group->posted[r]->buffer)[i];
        }
        if (mine->dtype == UP_F64)
            ((double *)mine->buffer)[i] = sum64;
        else
            ((float *)mine->buffer)[i] = sum32;
    }
}

static void take_reduce_scatter(struct group *group, const struct up_collective_args *mine)
{
    int64_t me = mine->comm->rank;
    sum_range(group, mine, me * mine->count, (me + 1) * mine->count);
}

// Each rank sums a part (the others only read theirs of it), then all take all parts.
static void take_all_reduce(struct group *group, const struct up_collective_args *mine)
{
    int64_t part = up_ceil_div(mine->count, group->size), size = up_dtype_bytes[mine->dtype];
    int64_t me = mine->comm->rank;
    sum_range(group, mine, up_min(me * part, mine->count), up_min((me + 1) * part, mine->count));
    meet_within(group);
    for (int from = 0; from < group->size; from++) {
        int64_t first = up_min(from * part, mine->count),
                last = up_min((from + 1) * part, mine->count);
        if (from != me)
            memcpy((char *)mine->buffer + first * size,
                   (const char *)group->posted[from]->buffer + first * size,
                   (size_t)((last - first) * size));
    }
}

static void take_broadcast(struct group *group, const struct up_collective_args *mine)
{
    if (mine->root != mine->comm->rank)
        memcpy(mine->buffer, group->posted[mine->root]->buffer,
               (size_t)(mine->count * up_dtype_bytes[mine->dtype]));
}

static void (*const take[])(struct group *, const struct up_collective_args *) = {
    [UP_ALL_TO_ALL] = take_all_to_all,         [UP_ALL_GATHER] = take_all_gather,
    [UP_REDUCE_SCATTER] = take_reduce_scatter, [UP_ALL_REDUCE] = take_all_reduce,
    [UP_BROADCAST] = take_broadcast,
};

static void run(const void *args)
{
    const struct up_collective_args *mine = args;
    struct group *group = group_of(mine->comm);
    group->posted[mine->comm->rank] = mine;
    if (!meet(group)) return;
    UP_ASSERT(group->posted[0]->kind == mine->kind);
    take[mine->kind](group, mine);
    meet_within(group);
}

/* --- Life ----------------------------------------------------------------------------------------
 */

static void abort_group(struct up_comm *comm, const char *reason)
{
    struct group *group = group_of(comm);
    pthread_mutex_lock(&group->lock);
    if (!group->aborted) snprintf(group->reason, sizeof group->reason, "%s", reason);
    group->aborted = true;
    pthread_cond_broadcast(&group->turned);
    pthread_mutex_unlock(&group->lock);
}

static enum up_status check(struct up_comm *comm, struct up_error *err)
{
    struct group *group = group_of(comm);
    pthread_mutex_lock(&group->lock);
    bool aborted = group->aborted;
    pthread_mutex_unlock(&group->lock);
    return aborted ? up_fail(err, UP_FAILED, "%s", group->reason) : UP_OK;
}

static enum up_status agree(struct up_comm *comm, bool mine, bool *any, struct up_error *err)
{
    return wait_for_all(group_of(comm), true, mine, any) ? UP_OK : check(comm, err);
}

static void destroy(struct up_comm *comm)
{
    struct group *group = group_of(comm);
    pthread_mutex_lock(&group->lock);
    bool last = --group->users == 0;
    pthread_mutex_unlock(&group->lock);
    free(comm);
    if (!last) return;
    pthread_cond_destroy(&group->turned);
    pthread_mutex_destroy(&group->lock);
    free(group);
}

static const struct up_comm_ops threads_ops = {
    .run = {.cpu = run}, .agree = agree, .abort = abort_group, .check = check, .destroy = destroy};

enum up_status up_comm_threads_create(int size, struct up_comm **comms, struct up_error *err)
{
    // NOLINTNEXTLINE(bugprone-sizeof-expression): pointers are what is posted
    struct group *group = calloc(1, sizeof *group + (size_t)size * sizeof group->posted[0]);
    if (!group) return up_fail(err, UP_FAILED, "out of host memory");
    group->size = size;
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->turned, NULL);
    for (int i = 0; i < size; i++) {
        struct threads_comm *comm = calloc(1, sizeof *comm);
        if (!comm) {
            for (int j = 0; j < i; j++) free(comms[j]);
            free(group);
            return up_fail(err, UP_FAILED, "out of host memory");
        }
        *comm = (struct threads_comm){{&threads_ops, size, i}, group};
        comms[i] = &comm->base;
        group->users++;
    }
    return UP_OK;
}
