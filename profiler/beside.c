#include "profiler/beside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAITING_MAX = 1 << 14 };

struct up_beside_row {
    struct up_store_seen seen; // its texts are the two below
    char *name;                // owned
    char stream[32];
};

// False where it has to wait.
static bool settle(const struct up_step_log *log, const struct up_store_seen *seen)
{
    switch (up_step_log_fate(log, seen->step)) {
    case UP_STEP_KEPT:
        up_store_seen(log->store, log->rank, seen);
        return true;
    case UP_STEP_DROPPED:
        return true;
    case UP_STEP_UNDECIDED:
        break;
    }
    return false;
}

static struct up_beside_row *free_row(struct up_beside *beside)
{
    if (beside->count >= WAITING_MAX ||
        up_grow(&beside->rows, beside->count, &beside->room, sizeof *beside->rows, NULL))
        return NULL;
    return &beside->rows[beside->count];
}

void up_beside_add(struct up_beside *beside, const struct up_step_log *log,
                   const struct up_store_seen *seen)
{
    if (settle(log, seen)) return;
    struct up_beside_row *row = free_row(beside);
    char *name = row ? strdup(seen->name) : NULL;
    if (!name) {
        beside->lost++;
        return;
    }
    row->seen = *seen;
    row->name = name;
    snprintf(row->stream, sizeof row->stream, "%s", seen->stream);
    beside->count++;
}

void up_beside_settle(struct up_beside *beside, const struct up_step_log *log)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < beside->count; i++) {
        struct up_beside_row *row = &beside->rows[i];
        row->seen.name = row->name;
        row->seen.stream = row->stream;
        if (settle(log, &row->seen))
            free(row->name);
        else
            beside->rows[kept++] = *row;
    }
    beside->count = kept;
}

int64_t up_beside_bytes(const struct up_beside *beside)
{
    return beside->room * (int64_t)sizeof *beside->rows;
}

void up_beside_release(struct up_beside *beside)
{
    for (int64_t i = 0; i < beside->count; i++) free(beside->rows[i].name);
    free(beside->rows);
    *beside = (struct up_beside){0};
}
