/* How the processes of a run find each other; see peers.h. Process 0 listens, the others try until
 * it does; strangers who connect are shown out. */
#include "comm/peers/peers_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    SLICE_MS = 100,    // how often a wait looks whether it is to end
    STRANGERS = 64,    // beside the run's processes, that have not said who they are
    DEAD_AFTER_S = 30, // of a node that has gone without a word
    SEND_LIMIT_S = 5,  // messages are few and short: who takes none is dead
    CONNECT_LIMIT_MS = 5000
};

/* --- Sockets -----------------------------------------------------------------------------------
 */

static void set(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof value);
}

static void set_options(int fd)
{
    struct timeval limit = {.tv_sec = SEND_LIMIT_S};
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, DEAD_AFTER_S / 3);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, DEAD_AFTER_S / 6);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

static enum up_status look_up(const struct up_peers_place *place, bool passive, bool anywhere,
                              struct addrinfo **found, struct up_error *err)
{
    char port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
    snprintf(port, sizeof port, "%d", place->port);
    int status = getaddrinfo(anywhere ? NULL : place->address, port, &hints, found);
    if (!status) return UP_OK;
    *found = NULL;
    return up_fail(err, UP_FAILED, "%s: expected the address of process 0's node: %s",
                   place->address, status == EAI_SYSTEM ? strerror(errno) : gai_strerror(status));
}

static int listen_on(const struct addrinfo *at)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (at->ai_family == AF_INET6) set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (!bind(fd, at->ai_addr, at->ai_addrlen) && !listen(fd, SOMAXCONN)) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

// On this machine's own address where that is all the others need, else on any: that of the node
// may be known by another name outside. IPv6 first, which takes IPv4 as well.
static enum up_status open_listener(const struct up_peers_place *place, int *fd,
                                    struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct addrinfo *found = NULL;
    bool own = !strncmp(place->address, "127.", 4) || !strcmp(place->address, "::1");
    *fd = -1;
    UP_TRY(look_up(place, true, !own, &found, err));
    for (int v6 = 1; v6 >= 0; v6--)
        for (const struct addrinfo *at = found; at && *fd < 0; at = at->ai_next)
            if ((at->ai_family == AF_INET6) == v6) *fd = listen_on(at);
    if (*fd < 0)
        rc = up_fail(err, UP_FAILED,
                     "port %d, where the processes are to meet: %s: expected a free one, two above "
                     "MASTER_PORT",
                     place->port, strerror(errno));
out:
    if (found) freeaddrinfo(found);
    return rc;
}

// A port from which connections go out may be the one that this goes to: then TCP connects it with
// itself.
static bool is_own_echo(int fd)
{
    struct sockaddr_storage own = {0}, other = {0};
    socklen_t own_size = sizeof own, other_size = sizeof other;
    return !getsockname(fd, (struct sockaddr *)&own, &own_size) &&
           !getpeername(fd, (struct sockaddr *)&other, &other_size) && own_size == other_size &&
           !memcmp(&own, &other, own_size);
}

// -1, and errno, when nobody answers.
static int connect_to(const struct addrinfo *at)
{
    int error = 0;
    socklen_t size = sizeof error;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (connect(fd, at->ai_addr, at->ai_addrlen)) error = errno;
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    if (error == EINPROGRESS) {
        error = ETIMEDOUT;
        if (poll(&wait, 1, CONNECT_LIMIT_MS) == 1)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (!error && is_own_echo(fd)) error = ECONNREFUSED;
    if (!error) return fd;
    close(fd);
    errno = error;
    return -1;
}

/* --- Messages ----------------------------------------------------------------------------------
 */

bool up_peers_send(int fd, enum up_peers_kind kind, int number, int first, int last,
                   const char *text)
{
    struct up_peers_message message = {
        .magic = UP_PEERS_MAGIC, .kind = kind, .number = number, .first = first, .last = last};
    snprintf(message.text, sizeof message.text, "%s", text ? text : "");
    const char *at = (const char *)&message;
    for (size_t left = sizeof message; left;) {
        ssize_t sent = send(fd, at, left, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        left -= (size_t)sent;
    }
    return true;
}

static bool is_sound(struct up_peers_message *message)
{
    message->text[sizeof message->text - 1] = 0;
    return message->magic == UP_PEERS_MAGIC && message->kind && message->kind < UP_PEERS_KINDS;
}

enum up_peers_read up_peers_receive(struct up_peer *peer)
{
    for (;;) {
        ssize_t got = recv(peer->fd, peer->bytes + peer->filled, sizeof peer->bytes - peer->filled,
                           MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return UP_PEERS_WAIT;
        if (got <= 0) return UP_PEERS_OVER;
        peer->filled += (size_t)got;
        if (peer->filled < sizeof peer->bytes) continue;
        peer->filled = 0;
        return is_sound(&peer->message) ? UP_PEERS_WHOLE : UP_PEERS_OVER;
    }
}

static void hang_up(struct up_peer *peer)
{
    if (peer->fd >= 0) close(peer->fd);
    *peer = (struct up_peer){.fd = -1};
}

/* --- Waiting -----------------------------------------------------------------------------------
 */

struct waiting {
    const struct up_peers_place *place;
    int64_t until_ns;
};

static struct waiting wait_for(const struct up_peers_place *place, double seconds)
{
    return (struct waiting){place, up_clock_ns() + (int64_t)(seconds * 1e9)};
}

static bool is_over(const struct waiting *waiting)
{
    return up_clock_ns() >= waiting->until_ns;
}

static enum up_status check_stop(const struct waiting *waiting, struct up_error *err)
{
    const struct up_peers_place *place = waiting->place;
    if (!place->stop || !*place->stop) return UP_OK;
    return up_fail(err, UP_FAILED, "interrupted while waiting for the other processes");
}

/* --- Process 0 ---------------------------------------------------------------------------------
 */

struct reception {
    struct up_peers *peers;
    int listener, missing;
    int places;               // at the door: all processes may come at once, and others
    struct up_peer *stranger; // [places]
    struct pollfd *at;        // the listener, the strangers, the processes that are here
};

// The hash and the job, as a hello has them.
static void write_words(const struct up_peers_place *place, char text[UP_PEERS_TEXT])
{
    snprintf(text, UP_PEERS_TEXT, "%s %s", place->hash, place->job ? place->job : "");
}

static bool is_of_another_job(const struct up_peers_place *place, const char *words)
{
    const char *job = words + strcspn(words, " ");
    if (!place->job || !*place->job || !*job || !job[1]) return false;
    return strcmp(job + 1, place->job) != 0;
}

static bool has_hash(const struct up_peers_place *place, const char *words)
{
    size_t length = strlen(place->hash);
    return strcspn(words, " ") == length && !strncmp(words, place->hash, length);
}

// What is wrong with who said hello; NULL if nothing. *fatal: with the whole run, then.
static const char *objection(const struct reception *reception, const struct up_peers_message *said,
                             bool *fatal)
{
    const struct up_peers_place *place = &reception->peers->place;
    *fatal = false;
    if (is_of_another_job(place, said->text))
        return "process 0 was launched with another run, which has this port, and MASTER_PORT may "
               "choose others";
    if (said->last != place->processes)
        return "process 0 expects another number of processes: another run has this port, and "
               "MASTER_PORT may choose others";
    if (said->number < 1 || said->number >= place->processes ||
        reception->peers->peer[said->number].fd >= 0)
        return "process 0 has one of this number: another run has this port, and MASTER_PORT may "
               "choose others";
    *fatal = !has_hash(place, said->text);
    return *fatal ? "expected the options of process 0, and the same steps done before: processes "
                    "of one run differ in paths alone"
                  : NULL;
}

static enum up_status receive_hello(struct reception *reception, struct up_peer *stranger,
                                    struct up_error *err)
{
    bool fatal;
    enum up_peers_read read = up_peers_receive(stranger);
    int number = stranger->message.number;
    if (read == UP_PEERS_WAIT) return UP_OK;
    if (read == UP_PEERS_OVER || stranger->message.kind != UP_PEERS_HELLO) {
        hang_up(stranger);
        return UP_OK;
    }
    const char *wrong = objection(reception, &stranger->message, &fatal);
    if (wrong) {
        up_peers_send(stranger->fd, UP_PEERS_REFUSED, 0, 0, 0, wrong);
        hang_up(stranger);
        return fatal ? up_fail(err, UP_USAGE, "process %d: %s", number, wrong) : UP_OK;
    }
    set_options(stranger->fd);
    reception->peers->peer[number] = (struct up_peer){.fd = stranger->fd};
    stranger->fd = -1;
    reception->missing--;
    return UP_OK;
}

// A full house shows out whoever came first; if that is one of the run's, it comes again.
static void let_in(struct reception *reception)
{
    int place = 0, fd = accept(reception->listener, NULL, NULL);
    if (fd < 0) return;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    while (place < reception->places && reception->stranger[place].fd >= 0) place++;
    if (place == reception->places) {
        up_peers_send(reception->stranger[0].fd, UP_PEERS_FULL, 0, 0, 0, NULL);
        hang_up(&reception->stranger[0]);
        place--;
        memmove(reception->stranger, reception->stranger + 1,
                (size_t)place * sizeof *reception->stranger);
    }
    reception->stranger[place] = (struct up_peer){.fd = fd};
}

// Who is here has nothing to say before all are: it has died, or was told to end.
static enum up_status check_here(struct up_peers *peers, int number, struct up_error *err)
{
    char name[64];
    if (up_peers_receive(&peers->peer[number]) == UP_PEERS_WAIT) return UP_OK;
    return up_fail(err, UP_FAILED, "%s ended unexpectedly",
                   up_peers_name(peers, number, name, sizeof name));
}

static enum up_status receive_once(struct reception *reception, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_peers *peers = reception->peers;
    int processes = peers->place.processes, places = reception->places;
    struct pollfd *stranger = reception->at + 1, *here = stranger + places;
    reception->at[0] = (struct pollfd){.fd = reception->listener, .events = POLLIN};
    for (int i = 0; i < places; i++)
        stranger[i] = (struct pollfd){.fd = reception->stranger[i].fd, .events = POLLIN};
    for (int i = 0; i < processes; i++)
        here[i] = (struct pollfd){.fd = peers->peer[i].fd, .events = POLLIN};
    if (poll(reception->at, (nfds_t)(1 + places + processes), SLICE_MS) <= 0) return UP_OK;
    for (int i = 0; i < processes; i++)
        if (here[i].revents) UP_TRY(check_here(peers, i, err));
    for (int i = 0; i < places; i++)
        if (stranger[i].revents) UP_TRY(receive_hello(reception, &reception->stranger[i], err));
    if (reception->at[0].revents) let_in(reception);
out:
    return rc;
}

static enum up_status refuse_missing(const struct reception *reception, struct up_error *err)
{
    const struct up_peers *peers = reception->peers;
    char name[64];
    int number = 1;
    while (peers->peer[number].fd >= 0) number++;
    return up_fail(err, UP_FAILED, "%s has not come to port %d within %.0f s%s",
                   up_peers_name(peers, number, name, sizeof name), peers->place.port,
                   peers->place.limit_s, reception->missing > 1 ? ", nor have others" : "");
}

static enum up_status receive_all(struct reception *reception, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_peers *peers = reception->peers;
    struct waiting waiting = wait_for(&peers->place, peers->place.limit_s);
    while (reception->missing) {
        UP_TRY(check_stop(&waiting, err));
        if (is_over(&waiting)) UP_TRY(refuse_missing(reception, err));
        UP_TRY(receive_once(reception, err));
    }
out:
    for (int i = 1; i < peers->place.processes; i++)
        if (peers->peer[i].fd >= 0)
            up_peers_send(peers->peer[i].fd, rc ? UP_PEERS_ABORT : UP_PEERS_START, 0, 0, 0,
                          rc && err ? err->text : "");
    return rc;
}

// poll refuses more descriptors than a process may have open, which often is fewer than it could.
static enum up_status have_descriptors(int polled, struct up_error *err)
{
    enum { OTHERS = 256 }; // that a run has open besides
    struct rlimit limit;
    rlim_t wanted = (rlim_t)polled + OTHERS;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted) return UP_OK;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (!setrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur >= (rlim_t)polled) return UP_OK;
    return up_fail(err, UP_FAILED, "process 0: expected to be allowed %d open files, not %lld",
                   polled, (long long)limit.rlim_cur);
}

static enum up_status receive_peers(struct up_peers *peers, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int processes = peers->place.processes, places = processes + STRANGERS;
    struct reception reception = {
        .peers = peers, .listener = -1, .missing = processes - 1, .places = places};
    reception.stranger = calloc((size_t)places, sizeof *reception.stranger);
    reception.at = calloc((size_t)(1 + places + processes), sizeof *reception.at);
    for (int i = 0; reception.stranger && i < places; i++) reception.stranger[i].fd = -1;
    if (!reception.stranger || !reception.at) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    UP_TRY(have_descriptors(1 + places + processes, err));
    UP_TRY(open_listener(&peers->place, &reception.listener, err));
    UP_TRY(receive_all(&reception, err));
out:
    for (int i = 0; reception.stranger && i < places; i++) hang_up(&reception.stranger[i]);
    if (reception.listener >= 0) close(reception.listener);
    free(reception.stranger);
    free(reception.at);
    return rc;
}

/* --- The others --------------------------------------------------------------------------------
 */

static int connect_once(const struct up_peers_place *place, struct up_error *err)
{
    int fd = -1;
    struct addrinfo *found = NULL;
    if (look_up(place, false, false, &found, err)) return -1;
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next) fd = connect_to(at);
    if (fd < 0)
        up_fail(err, UP_FAILED, "process 0 does not answer at %s, port %d: %s", place->address,
                place->port, strerror(errno));
    freeaddrinfo(found);
    return fd;
}

static enum up_status reach(const struct waiting *waiting, int *fd, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_peers_place *place = waiting->place;
    struct up_error why = {0};
    while ((*fd = connect_once(place, &why)) < 0) {
        UP_TRY(check_stop(waiting, err));
        if (is_over(waiting))
            UP_TRY(up_fail(err, UP_FAILED, "%s (tried for %.0f s)", why.text, place->limit_s));
        poll(NULL, 0, SLICE_MS);
    }
    set_options(*fd);
out:
    return rc;
}

static enum up_status answer(const struct up_peer *first, const struct up_peers_place *place,
                             struct up_error *err)
{
    const struct up_peers_message *said = &first->message;
    switch (said->kind) {
    case UP_PEERS_START:
    case UP_PEERS_FULL:
        return UP_OK;
    case UP_PEERS_REFUSED:
        return up_fail(err, UP_USAGE, "process %d: %s", place->process, said->text);
    case UP_PEERS_ABORT:
        return up_fail(err, UP_FAILED, "process 0: %s", said->text);
    default:
        return up_fail(err, UP_FAILED, "process 0 said what was not expected of it");
    }
}

// Process 0 began to wait before this one had reached it, and gives up in time. *again: it had no
// room at the door.
static enum up_status await_start(struct up_peers *peers, bool *again, struct up_error *err)
{
    const struct up_peers_place *place = &peers->place;
    struct up_peer *first = &peers->peer[0];
    struct waiting waiting = wait_for(place, place->limit_s + SEND_LIMIT_S);
    for (;;) {
        struct pollfd at = {.fd = first->fd, .events = POLLIN};
        enum up_status rc = check_stop(&waiting, err);
        if (rc) return rc;
        enum up_peers_read read =
            poll(&at, 1, SLICE_MS) > 0 ? up_peers_receive(first) : UP_PEERS_WAIT;
        *again = read == UP_PEERS_WHOLE && first->message.kind == UP_PEERS_FULL;
        if (read == UP_PEERS_WHOLE) return answer(first, place, err);
        if (read == UP_PEERS_OVER)
            return up_fail(err, UP_FAILED,
                           "who listens at %s, port %d, hung up: process 0 has ended, or it is "
                           "another program, and MASTER_PORT may choose other ports",
                           place->address, place->port);
        if (is_over(&waiting))
            return up_fail(err, UP_FAILED, "who listens at %s, port %d, does not answer",
                           place->address, place->port);
    }
}

static enum up_status step_back(const struct waiting *waiting, struct up_peer *first,
                                struct up_error *err)
{
    const struct up_peers_place *place = waiting->place;
    hang_up(first);
    if (is_over(waiting))
        return up_fail(err, UP_FAILED,
                       "too many are at %s, port %d, for process 0 to listen to (tried for %.0f s)",
                       place->address, place->port, place->limit_s);
    poll(NULL, 0, SLICE_MS);
    return UP_OK;
}

static enum up_status reach_first(struct up_peers *peers, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_peers_place *place = &peers->place;
    struct waiting waiting = wait_for(place, place->limit_s);
    struct up_peer *first = &peers->peer[0];
    char words[UP_PEERS_TEXT];
    bool again = true;
    write_words(place, words);
    while (again) {
        UP_TRY(reach(&waiting, &first->fd, err));
        up_peers_send(first->fd, UP_PEERS_HELLO, place->process, 0, place->processes, words);
        UP_TRY(await_start(peers, &again, err));
        if (again) UP_TRY(step_back(&waiting, first, err));
    }
out:
    return rc;
}

enum up_status up_peers_connect(struct up_peers *peers, struct up_error *err)
{
    return peers->place.process ? reach_first(peers, err) : receive_peers(peers, err);
}
