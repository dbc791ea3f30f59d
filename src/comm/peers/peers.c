/* Meeting, aborting and watching; see peers.h. One thread reads what the others say; whoever has
 * something to say sends it himself, holding the lock. */
#include "comm/peers/peers_impl.h"
#include "comm/comm_impl.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int ranks_each(const struct up_peers *peers)
{
    return peers->place.ranks / peers->place.processes;
}

const char *up_peers_name(const struct up_peers *peers, int process, char *out, size_t size)
{
    int each = ranks_each(peers), first = process * each;
    if (each == 1)
        snprintf(out, size, "process %d (rank %d)", process, first);
    else
        snprintf(out, size, "process %d (ranks %d-%d)", process, first, first + each - 1);
    return out;
}

/* --- What all do under the lock ----------------------------------------------------------------
 */

static bool leads(const struct up_peers *peers)
{
    return peers->place.process == 0;
}

static void say(struct up_peers *peers, int process, enum up_peers_kind kind,
                const struct up_peers_group *group, const char *text)
{
    struct up_peer *peer = &peers->peer[process];
    int number = group ? (int)(group - peers->group) : 0;
    if (peer->fd >= 0)
        up_peers_send(peer->fd, kind, number, group ? group->first : 0, group ? group->last : 0,
                      text);
}

static void say_to_all(struct up_peers *peers, enum up_peers_kind kind, const char *text)
{
    for (int i = 0; i < peers->place.processes; i++) say(peers, i, kind, NULL, text);
}

// The first reason stays. Process 0 passes it on, also to him from whom it comes.
static void abort_all(struct up_peers *peers, const char *reason, bool pass_on)
{
    if (peers->aborted) return;
    snprintf(peers->reason, sizeof peers->reason, "%s", reason);
    peers->aborted = true;
    if (pass_on) say_to_all(peers, UP_PEERS_ABORT, peers->reason);
    pthread_cond_broadcast(&peers->turned);
}

static void release_group(struct up_peers *peers, struct up_peers_group *group, bool any)
{
    group->any = any;
    group->some = false;
    group->turn++;
    pthread_cond_broadcast(&peers->turned);
}

// Process 0: one more process of the group, first to last, has all its ranks there.
static void count_arrival(struct up_peers *peers, struct up_peers_group *group, int first, int last)
{
    if (++group->processes_arrived <= last - first) return;
    bool any = group->some;
    group->processes_arrived = 0;
    for (int i = up_max(first, 1); i <= last; i++)
        say(peers, i, UP_PEERS_RELEASED, group, any ? UP_PEERS_YES : NULL);
    release_group(peers, group, any);
}

static void arrive(struct up_peers *peers, struct up_peers_group *group)
{
    if (group->first == group->last)
        release_group(peers, group, group->some);
    else if (leads(peers))
        count_arrival(peers, group, group->first, group->last);
    else
        say(peers, 0, UP_PEERS_ARRIVED, group, group->some ? UP_PEERS_YES : NULL);
}

/* --- The thread that listens -------------------------------------------------------------------
 */

// A death is told once; of those who said goodbye, or where all ends anyway, it is none.
static void lose(struct up_peers *peers, int process)
{
    struct up_peer *peer = &peers->peer[process];
    char name[64], text[128];
    close(peer->fd);
    peer->fd = -1;
    snprintf(text, sizeof text, "%s ended unexpectedly",
             up_peers_name(peers, process, name, sizeof name));
    if (!peer->goodbye) abort_all(peers, text, leads(peers));
    pthread_cond_broadcast(&peers->turned);
}

static bool says_yes(const struct up_peers_message *said)
{
    return !strcmp(said->text, UP_PEERS_YES);
}

// False for what makes no sense.
static bool understand(struct up_peers *peers, int from, const struct up_peers_message *said)
{
    bool known = said->number >= 0 && said->number <= peers->place.groups;
    struct up_peers_group *group = known ? &peers->group[said->number] : NULL;
    switch (said->kind) {
    case UP_PEERS_ARRIVED:
        if (!group || !leads(peers) || said->first < 0 || said->first > from || said->last < from ||
            said->last >= peers->place.processes)
            return false;
        group->some |= says_yes(said);
        count_arrival(peers, group, said->first, said->last);
        return true;
    case UP_PEERS_RELEASED:
        if (!group || leads(peers)) return false;
        release_group(peers, group, says_yes(said));
        return true;
    case UP_PEERS_ABORT:
        abort_all(peers, said->text, leads(peers));
        return true;
    case UP_PEERS_GOODBYE:
        peers->peer[from].goodbye = true;
        pthread_cond_broadcast(&peers->turned);
        return true;
    default:
        return false;
    }
}

static void hear(struct up_peers *peers, int from)
{
    struct up_peer *peer = &peers->peer[from];
    enum up_peers_read read = UP_PEERS_WHOLE;
    while (read == UP_PEERS_WHOLE) {
        read = up_peers_receive(peer);
        if (read == UP_PEERS_WHOLE && !understand(peers, from, &peer->message))
            read = UP_PEERS_OVER;
    }
    if (read == UP_PEERS_OVER) lose(peers, from);
}

// Without the lock: who is called may ask for it.
static void tell_owner(struct up_peers *peers)
{
    pthread_mutex_lock(&peers->lock);
    bool tell = peers->aborted && !peers->told && peers->place.aborted;
    peers->told |= tell;
    pthread_mutex_unlock(&peers->lock);
    if (tell) peers->place.aborted(peers->place.context, peers->reason);
}

// Waits for something to hear; false when it is time to end.
static bool hear_once(struct up_peers *peers, struct pollfd *at)
{
    int count = peers->place.processes;
    at[count] = (struct pollfd){.fd = peers->wake, .events = POLLIN};
    for (int i = 0; i < count; i++)
        at[i] = (struct pollfd){.fd = peers->peer[i].fd, .events = POLLIN};
    int ready = poll(at, (nfds_t)count + 1, -1);
    pthread_mutex_lock(&peers->lock);
    for (int i = 0; i < count && ready > 0; i++)
        if (at[i].revents && peers->peer[i].fd >= 0) hear(peers, i);
    bool go_on = !peers->stopping;
    pthread_mutex_unlock(&peers->lock);
    tell_owner(peers);
    return go_on;
}

static void *watch(void *argument)
{
    struct up_peers *peers = argument;
    struct pollfd *at = calloc((size_t)peers->place.processes + 1, sizeof *at);
    pthread_mutex_lock(&peers->lock);
    if (!at) abort_all(peers, "out of host memory", true);
    pthread_mutex_unlock(&peers->lock);
    while (at && hear_once(peers, at)) continue;
    tell_owner(peers);
    free(at);
    return NULL;
}

/* --- For the ranks -----------------------------------------------------------------------------
 */

static enum up_status give_reason(struct up_peers *peers, struct up_error *err)
{
    return up_fail(err, UP_FAILED, "%s", peers->reason);
}

static enum up_status meet(struct up_peers *peers, struct up_peers_group *group, bool mine,
                           bool *any, struct up_error *err)
{
    pthread_mutex_lock(&peers->lock);
    uint64_t turn = group->turn;
    group->some |= mine;
    if (!peers->aborted && ++group->arrived == group->local) {
        group->arrived = 0;
        arrive(peers, group);
    }
    while (group->turn == turn && !peers->aborted) pthread_cond_wait(&peers->turned, &peers->lock);
    bool met = group->turn != turn;
    *any = group->any;
    pthread_mutex_unlock(&peers->lock);
    return met ? UP_OK : give_reason(peers, err);
}

enum up_status up_peers_meet(struct up_peers *peers, struct up_error *err)
{
    bool any;
    return meet(peers, &peers->group[0], false, &any, err);
}

void up_peers_abort(struct up_peers *peers, const char *reason)
{
    char name[64], text[sizeof peers->reason];
    snprintf(text, sizeof text, "%s: %s",
             up_peers_name(peers, peers->place.process, name, sizeof name), reason);
    pthread_mutex_lock(&peers->lock);
    abort_all(peers, text, true);
    pthread_mutex_unlock(&peers->lock);
    tell_owner(peers);
}

struct peers_comm {
    struct up_comm base;
    struct up_peers *peers;
    struct up_peers_group *group;
};

static struct peers_comm *comm_of(struct up_comm *comm)
{
    return (struct peers_comm *)comm;
}

static enum up_status agree(struct up_comm *comm, bool mine, bool *any, struct up_error *err)
{
    return meet(comm_of(comm)->peers, comm_of(comm)->group, mine, any, err);
}

static void abort_group(struct up_comm *comm, const char *reason)
{
    up_peers_abort(comm_of(comm)->peers, reason);
}

static enum up_status check(struct up_comm *comm, struct up_error *err)
{
    struct up_peers *peers = comm_of(comm)->peers;
    pthread_mutex_lock(&peers->lock);
    bool aborted = peers->aborted;
    pthread_mutex_unlock(&peers->lock);
    return aborted ? give_reason(peers, err) : UP_OK;
}

static void destroy(struct up_comm *comm)
{
    free(comm);
}

static const struct up_comm_ops peers_ops = {
    .agree = agree, .abort = abort_group, .check = check, .destroy = destroy};

enum up_status up_peers_comms_create(struct up_peers *peers, int group, int first, int size,
                                     struct up_comm **comms, struct up_error *err)
{
    int each = ranks_each(peers), own = peers->place.process * each;
    int begin = (int)up_max(first, own), end = (int)up_min(first + size, own + each);
    struct up_peers_group *shared = &peers->group[1 + group];
    UP_ASSERT(group >= 0 && group < peers->place.groups && begin < end);
    shared->local = end - begin;
    shared->first = first / each;
    shared->last = (first + size - 1) / each;
    for (int i = 0; i < end - begin; i++) {
        struct peers_comm *comm = calloc(1, sizeof *comm);
        if (!comm) {
            for (int j = 0; j < i; j++) free(comms[j]);
            return up_fail(err, UP_FAILED, "out of host memory");
        }
        *comm = (struct peers_comm){{&peers_ops, size, begin - first + i}, peers, shared};
        comms[i] = &comm->base;
    }
    return UP_OK;
}

/* --- Life --------------------------------------------------------------------------------------
 */

static void release(struct up_peers *peers)
{
    for (int i = 0; peers->peer && i < peers->place.processes; i++)
        if (peers->peer[i].fd >= 0) close(peers->peer[i].fd);
    if (peers->wake >= 0) close(peers->wake);
    pthread_cond_destroy(&peers->turned);
    pthread_mutex_destroy(&peers->lock);
    free(peers->peer);
    free(peers->group);
    free(peers);
}

static enum up_status create(const struct up_peers_place *place, struct up_peers **out,
                             struct up_error *err)
{
    pthread_condattr_t monotonic;
    struct up_peers *peers = calloc(1, sizeof *peers);
    if (!peers) return up_fail(err, UP_FAILED, "out of host memory");
    *peers = (struct up_peers){.place = *place, .wake = -1};
    pthread_mutex_init(&peers->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&peers->turned, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = peers;
    peers->peer = calloc((size_t)place->processes, sizeof *peers->peer);
    peers->group = calloc((size_t)place->groups + 1, sizeof *peers->group);
    if (!peers->peer || !peers->group) return up_fail(err, UP_FAILED, "out of host memory");
    for (int i = 0; i < place->processes; i++) peers->peer[i].fd = -1;
    peers->group[0] = (struct up_peers_group){.local = 1, .last = place->processes - 1};
    peers->wake = eventfd(0, EFD_CLOEXEC);
    return peers->wake < 0 ? up_fail(err, UP_FAILED, "no more files can be opened") : UP_OK;
}

enum up_status up_peers_join(const struct up_peers_place *place, struct up_peers **peers,
                             struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_peers *made = NULL;
    UP_ASSERT(place->processes > 1 && place->ranks % place->processes == 0);
    UP_TRY(create(place, &made, err));
    UP_TRY(up_peers_connect(made, err));
    if (pthread_create(&made->thread, NULL, watch, made))
        UP_TRY(up_fail(err, UP_FAILED, "cannot start the thread that listens to other processes"));
    *peers = made;
out:
    if (rc && made) release(made);
    return rc;
}

static bool others_left(const struct up_peers *peers)
{
    for (int i = 0; i < peers->place.processes; i++)
        if (peers->peer[i].fd >= 0 && !peers->peer[i].goodbye) return false;
    return true;
}

// Process 0 goes last: through it the others hear of each other.
static void say_goodbye(struct up_peers *peers)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)up_max(1, (int64_t)peers->place.limit_s);
    if (!leads(peers)) say_to_all(peers, UP_PEERS_GOODBYE, NULL);
    while (!others_left(peers) && !peers->aborted)
        if (pthread_cond_timedwait(&peers->turned, &peers->lock, &until)) break;
    if (leads(peers)) say_to_all(peers, UP_PEERS_GOODBYE, NULL);
}

void up_peers_leave(struct up_peers *peers)
{
    if (!peers) return;
    pthread_mutex_lock(&peers->lock);
    if (!peers->aborted) say_goodbye(peers);
    peers->stopping = true;
    pthread_mutex_unlock(&peers->lock);
    eventfd_write(peers->wake, 1);
    pthread_join(peers->thread, NULL);
    release(peers);
}
