#define _GNU_SOURCE // processors to run on
#include "device/touch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

enum { THREADS = 16, PAGE = 4096, LARGE_PAGE = 2 << 20 };

static bool read_list(FILE *file, cpu_set_t *listed)
{
    int first, last;
    char after;
    CPU_ZERO(listed);
    while (fscanf(file, "%d", &first) == 1) {
        last = first;
        if (fscanf(file, "-%d", &last) < 0 && ferror(file)) return false;
        if (first < 0 || last < first || last >= CPU_SETSIZE) return false;
        for (int cpu = first; cpu <= last; cpu++) CPU_SET(cpu, listed);
        if (fscanf(file, "%c", &after) < 1 || after == '\n') return true;
        if (after != ',') return false;
    }
    return false;
}

void up_touch_keep_near(const char *path, cpu_set_t *cpus)
{
    cpu_set_t listed;
    FILE *file = fopen(path, "r");
    if (!file) return;
    bool sound = read_list(file, &listed);
    fclose(file);
    if (!sound) return;
    CPU_AND(&listed, &listed, cpus);
    if (CPU_COUNT(&listed)) *cpus = listed;
}

struct part {
    char *from;
    size_t bytes;
};

static void *touch_part(void *argument)
{
    const struct part *part = argument;
    for (size_t at = 0; at < part->bytes; at += PAGE) ((volatile char *)part->from)[at] += 0;
    return NULL;
}

// The whole large pages within: what is beyond them is not taken before it is asked for.
static void ask_for_large_pages(char *from, size_t bytes)
{
    size_t before = -(uintptr_t)from % LARGE_PAGE;
    if (bytes < before + LARGE_PAGE) return;
    madvise(from + before, (bytes - before) / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
}

// Threads that start where they are to run; false: anywhere will do.
static bool stay_near(pthread_attr_t *attributes, const char *path)
{
    cpu_set_t cpus;
    if (!path || sched_getaffinity(0, sizeof cpus, &cpus)) return false;
    up_touch_keep_near(path, &cpus);
    return !pthread_attr_setaffinity_np(attributes, sizeof cpus, &cpus);
}

void up_touch(void *from, size_t bytes, const char *near_path)
{
    pthread_t thread[THREADS];
    struct part part[THREADS];
    bool started[THREADS];
    pthread_attr_t attributes;
    size_t each = (bytes + THREADS * PAGE - 1) / (THREADS * PAGE) * PAGE;
    ask_for_large_pages(from, bytes);
    if (each > LARGE_PAGE) each = (each + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    pthread_attr_init(&attributes);
    stay_near(&attributes, near_path);
    for (int i = 0; i < THREADS; i++) {
        size_t first = (size_t)i * each < bytes ? (size_t)i * each : bytes;
        size_t last = first + each < bytes ? first + each : bytes;
        part[i] = (struct part){(char *)from + first, last - first};
        started[i] = !pthread_create(&thread[i], &attributes, touch_part, &part[i]);
        if (!started[i]) touch_part(&part[i]);
    }
    for (int i = 0; i < THREADS; i++)
        if (started[i]) pthread_join(thread[i], NULL);
    pthread_attr_destroy(&attributes);
}
