#include "report/analysis/ranges.h"

#include <stdlib.h>
#include <string.h>

static const char ranges_sql[] =
    "SELECT name, phase, layer, begin_seq, end_seq FROM range WHERE rank = ?1"
    " AND begin_seq <= ?3 AND (end_seq IS NULL OR end_seq > ?2) ORDER BY begin_seq, id";

enum up_status up_ranges_read(const struct up_run *run, int64_t rank, int64_t first_seq,
                              int64_t last_seq, struct up_ranges *ranges, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    int64_t capacity = 0;
    bool row;
    *ranges = (struct up_ranges){0};
    UP_TRY(up_query_open(&query, run, ranges_sql, UP_BIND(rank, first_seq, last_seq), err));
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        UP_TRY(up_grow(&ranges->items, ranges->count, &capacity, sizeof *ranges->items, err));
        struct up_range *range = &ranges->items[ranges->count++];
        *range = (struct up_range){.name = up_query_text(&query, 0),
                                   .phase = up_query_text(&query, 1),
                                   .layer = up_max(UP_NONE, up_query_integer(&query, 2, UP_NONE)),
                                   .begin_seq = up_query_integer(&query, 3, 0),
                                   .end_seq = up_query_integer(&query, 4, INT64_MAX)};
        if (!range->name || !range->phase) UP_TRY(up_no_memory(err));
    }
out:
    up_query_close(&query);
    if (rc != UP_OK) up_ranges_release(ranges);
    return rc;
}

void up_ranges_release(struct up_ranges *ranges)
{
    for (int64_t i = 0; i < ranges->count; i++) {
        free(ranges->items[i].name);
        free(ranges->items[i].phase);
    }
    free(ranges->items);
    *ranges = (struct up_ranges){0};
}

static void drop_ended(struct up_ranges *ranges, int64_t seq)
{
    int kept = 0;
    for (int i = 0; i < ranges->open_count; i++)
        if (ranges->items[ranges->open[i]].end_seq > seq) ranges->open[kept++] = ranges->open[i];
    ranges->open_count = kept;
}

const struct up_range *up_ranges_at(struct up_ranges *ranges, int64_t seq)
{
    for (; ranges->next < ranges->count && ranges->items[ranges->next].begin_seq <= seq;
         ranges->next++) {
        drop_ended(ranges, ranges->items[ranges->next].begin_seq);
        if (ranges->items[ranges->next].end_seq > seq && ranges->open_count < UP_RANGES_OPEN)
            ranges->open[ranges->open_count++] = ranges->next;
    }
    drop_ended(ranges, seq);
    return ranges->open_count ? &ranges->items[ranges->open[ranges->open_count - 1]] : NULL;
}

void up_ranges_path(const struct up_ranges *ranges, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < ranges->open_count && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? " > " : "",
                                 ranges->items[ranges->open[i]].name);
}
