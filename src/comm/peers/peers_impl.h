/* What peers.c and join.c share. */
#ifndef UP_COMM_PEERS_PEERS_IMPL_H
#define UP_COMM_PEERS_PEERS_IMPL_H

#include "comm/peers/peers.h"

#include <pthread.h>

#define UP_PEERS_MAGIC 0x3373726565707075u // "uppeers3": its last byte is the version

enum up_peers_kind {
    UP_PEERS_HELLO = 1, // to process 0: who I am; number, last = processes, text = hash, job
    UP_PEERS_REFUSED,   // back: what was wrong with that
    UP_PEERS_FULL,      // back: too many are at the door, come again
    UP_PEERS_START,     // back: all have come
    UP_PEERS_ARRIVED,   // to process 0: my ranks of a group, which has processes first..last;
                        // text = UP_PEERS_YES when one of them came with a yes, else ""
    UP_PEERS_RELEASED,  // back: so have the others', text likewise of all of them
    UP_PEERS_ABORT,     // either way: the reason
    UP_PEERS_GOODBYE,   // either way
    UP_PEERS_KINDS
};

#define UP_PEERS_YES "yes"

enum { UP_PEERS_TEXT = 488 };

/* All that is said is of this form; between machines of one byte order, which the magic shows. */
struct up_peers_message {
    uint64_t magic;
    uint32_t kind;
    int32_t number, first, last; // group or process
    char text[UP_PEERS_TEXT];
};

/* A connection, and what has come of its next message. */
struct up_peer {
    int fd; // -1: closed
    size_t filled;
    union {
        struct up_peers_message message;
        char bytes[sizeof(struct up_peers_message)];
    };
    bool goodbye;
};

/* Ranks that meet. Of process 0 `processes_arrived` counts for all, also where it has no ranks. */
struct up_peers_group {
    int local, arrived; // ranks in this process
    int first, last;    // processes
    uint64_t turn;      // how often all have met
    int processes_arrived;
    bool some; // of those who have arrived, as far as this process knows, one came with a yes
    bool any;  // so it was when all last met
};

struct up_peers {
    struct up_peers_place place; // its texts are the caller's, and read while joining alone
    pthread_mutex_t lock;
    pthread_cond_t turned;
    pthread_t thread;
    bool stopping; // the thread is to end
    int wake;      // an eventfd that wakes it
    bool aborted, told;
    char reason[UP_PEERS_TEXT];
    struct up_peer *peer;         // per process; only those this one is connected with are open
    struct up_peers_group *group; // [0] of the processes, then the ranks' groups
};

/* join.c: opens the connections. */
enum up_status up_peers_connect(struct up_peers *peers, struct up_error *err);

/* False when the other end is gone; a thread that sends holds the lock or is alone. */
bool up_peers_send(int fd, enum up_peers_kind kind, int number, int first, int last,
                   const char *text);

/* What one read gives. */
enum up_peers_read {
    UP_PEERS_WAIT,  // nothing more for now
    UP_PEERS_WHOLE, // a message is in peer->message; the next read begins another
    UP_PEERS_OVER,  // the other end is gone, or speaks another language
};
enum up_peers_read up_peers_receive(struct up_peer *peer);

/* "process 1 (ranks 2-3)". */
const char *up_peers_name(const struct up_peers *peers, int process, char *out, size_t size);

#endif
