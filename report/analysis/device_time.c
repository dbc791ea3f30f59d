#include "report/analysis/device_time.h"

#include <stdlib.h>

static const char marks_sql[] =
    "WITH timed AS (SELECT * FROM range WHERE rank = ?1 AND ifnull(step, -1) = ?2"
    "  AND begin_seq >= 0 AND end_seq >= 0 AND device_begin_ns BETWEEN 0 AND 1 << 62"
    "  AND device_end_ns BETWEEN 0 AND 1 << 62) "
    "SELECT begin_seq AS seq, device_begin_ns AS ns FROM timed UNION ALL "
    "SELECT end_seq, device_end_ns FROM timed ORDER BY seq, ns";

enum up_status up_device_times_read(const struct up_run *run, int64_t rank, int64_t step,
                                    struct up_device_times *times, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    int64_t capacity = 0, latest = INT64_MIN;
    bool row;
    *times = (struct up_device_times){0};
    UP_TRY(up_query_open(&query, run, marks_sql, UP_BIND(rank, step), err));
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        UP_TRY(up_grow(&times->marks, times->count, &capacity, sizeof *times->marks, err));
        // What was given to another stream may run before what was given earlier.
        latest = up_max(latest, up_query_integer(&query, 1, 0));
        times->marks[times->count].seq = up_query_integer(&query, 0, 0);
        times->marks[times->count++].ns = latest;
    }
out:
    up_query_close(&query);
    if (rc != UP_OK) up_device_times_release(times);
    return rc;
}

void up_device_times_release(struct up_device_times *times)
{
    free(times->marks);
    *times = (struct up_device_times){0};
}

// The first mark after `seq`; count where there is none.
static int64_t first_after(const struct up_device_times *times, int64_t seq)
{
    int64_t low = 0, high = times->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (times->marks[middle].seq > seq)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int64_t up_device_time_at(const struct up_device_times *times, int64_t seq)
{
    int64_t after = first_after(times, seq);
    if (!after) return UP_NONE;
    int64_t from_seq = times->marks[after - 1].seq, from_ns = times->marks[after - 1].ns;
    if (from_seq == seq) return from_ns;
    if (after == times->count) return UP_NONE;
    const double part = (double)(seq - from_seq) / (double)(times->marks[after].seq - from_seq);
    return from_ns + (int64_t)(part * (double)(times->marks[after].ns - from_ns));
}
