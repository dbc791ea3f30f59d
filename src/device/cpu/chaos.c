#include "device/cpu/cpu_impl.h"

#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_ITEMS = 64, ITEM_ARGS = 256, MAX_NAP_NS = 60000 };

struct item {
    void (*run)(const void *args); // NULL: wait for `moment`
    struct up_moment moment;
    _Alignas(16) unsigned char args[ITEM_ARGS];
};

struct queue {
    struct up_chaos *chaos;
    pthread_t thread;
    bool started;
    struct item items[QUEUE_ITEMS];
    uint64_t given, done; // items, ever; tickets are values of `given`
    uint64_t random;      // this thread's state
};

// One lock for all: this mode is for finding mistakes, not for speed.
struct up_chaos {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping;
    struct queue queues[UP_STREAM_COUNT];
};

static void nap(struct queue *queue)
{
    queue->random = up_hash64(queue->random);
    if (queue->random & 1) return;
    long ns = (long)((queue->random >> 8) % MAX_NAP_NS);
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

// Called with the lock held.
static void wait_until(struct up_chaos *chaos, struct up_moment moment)
{
    while (chaos->queues[moment.stream].done < moment.ticket)
        pthread_cond_wait(&chaos->changed, &chaos->lock);
}

static void *run_stream(void *argument)
{
    struct queue *queue = argument;
    struct up_chaos *chaos = queue->chaos;
    omp_set_num_threads(1);
    pthread_mutex_lock(&chaos->lock);
    for (;;) {
        while (queue->done == queue->given && !chaos->stopping)
            pthread_cond_wait(&chaos->changed, &chaos->lock);
        if (queue->done == queue->given) break;
        struct item *item = &queue->items[queue->done % QUEUE_ITEMS];
        if (!item->run) wait_until(chaos, item->moment);
        pthread_mutex_unlock(&chaos->lock);
        nap(queue);
        if (item->run) item->run(item->args);
        pthread_mutex_lock(&chaos->lock);
        queue->done++;
        pthread_cond_broadcast(&chaos->changed);
    }
    pthread_mutex_unlock(&chaos->lock);
    return NULL;
}

struct up_chaos *up_chaos_create(uint64_t seed, struct up_error *err)
{
    struct up_chaos *chaos = calloc(1, sizeof *chaos);
    if (!chaos) goto fail;
    pthread_mutex_init(&chaos->lock, NULL);
    pthread_cond_init(&chaos->changed, NULL);
    for (int i = 0; i < UP_STREAM_COUNT; i++) {
        struct queue *queue = &chaos->queues[i];
        queue->chaos = chaos;
        queue->random = up_random_u64(seed, (uint64_t)i, 0);
        if (pthread_create(&queue->thread, NULL, run_stream, queue)) goto fail;
        queue->started = true;
    }
    return chaos;
fail:
    up_chaos_destroy(chaos);
    up_fail(err, UP_FAILED, "cannot start the stream threads");
    return NULL;
}

void up_chaos_destroy(struct up_chaos *chaos)
{
    if (!chaos) return;
    pthread_mutex_lock(&chaos->lock);
    chaos->stopping = true;
    pthread_cond_broadcast(&chaos->changed);
    pthread_mutex_unlock(&chaos->lock);
    for (int i = 0; i < UP_STREAM_COUNT; i++)
        if (chaos->queues[i].started) pthread_join(chaos->queues[i].thread, NULL);
    pthread_cond_destroy(&chaos->changed);
    pthread_mutex_destroy(&chaos->lock);
    free(chaos);
}

static void push(struct up_chaos *chaos, enum up_stream stream, void (*run)(const void *),
                 struct up_moment moment, const void *args, size_t size)
{
    UP_ASSERT(size <= ITEM_ARGS);
    struct queue *queue = &chaos->queues[stream];
    pthread_mutex_lock(&chaos->lock);
    while (queue->given - queue->done == QUEUE_ITEMS)
        pthread_cond_wait(&chaos->changed, &chaos->lock);
    struct item *item = &queue->items[queue->given % QUEUE_ITEMS];
    item->run = run;
    item->moment = moment;
    if (size) memcpy(item->args, args, size);
    queue->given++;
    pthread_cond_broadcast(&chaos->changed);
    pthread_mutex_unlock(&chaos->lock);
}

void up_chaos_push(struct up_chaos *chaos, enum up_stream stream, void (*run)(const void *args),
                   const void *args, size_t size)
{
    push(chaos, stream, run, (struct up_moment){0}, args, size);
}

void up_chaos_wait(struct up_chaos *chaos, enum up_stream stream, struct up_moment moment)
{
    if (moment.stream != stream) push(chaos, stream, NULL, moment, NULL, 0);
}

struct up_moment up_chaos_now_in(struct up_chaos *chaos, enum up_stream stream)
{
    pthread_mutex_lock(&chaos->lock);
    struct up_moment moment = {stream, chaos->queues[stream].given};
    pthread_mutex_unlock(&chaos->lock);
    return moment;
}

void up_chaos_synchronize(struct up_chaos *chaos, struct up_moment moment)
{
    pthread_mutex_lock(&chaos->lock);
    wait_until(chaos, moment);
    pthread_mutex_unlock(&chaos->lock);
}
