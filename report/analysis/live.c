#include "report/analysis/live.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// ?1 rank, ?2 seq, ?3 space. The windows run over the few rows that are alive, not the whole table.
static const char live_sql[] =
    "SELECT name, category, phase, dtype, shape, id, storage_id, layer, step, largest, reserved,"
    " alloc_seq, alloc_ns, names FROM ("
    "  SELECT *, row_number() OVER (PARTITION BY storage_id ORDER BY alloc_seq DESC, id DESC) AS "
    "place,"
    "    max(bytes) OVER storage AS largest, max(reserved_bytes) OVER storage AS reserved,"
    "    count(*) OVER storage AS names"
    "  FROM tensor WHERE rank = ?1 AND space = ?3 AND alloc_seq <= ?2"
    "    AND (free_seq IS NULL OR free_seq > ?2)"
    "  WINDOW storage AS (PARTITION BY storage_id))"
    "WHERE place = 1 ORDER BY largest DESC, alloc_seq, id";

static enum up_status read_tensor(const struct up_query *query, struct up_live_tensor *tensor,
                                  struct up_error *err)
{
    *tensor = (struct up_live_tensor){
        .name = up_query_text(query, 0),
        .category = up_query_text(query, 1),
        .phase = up_query_text(query, 2),
        .dtype = up_query_text(query, 3),
        .shape = up_query_text(query, 4),
        .id = up_query_integer(query, 5, 0),
        .storage_id = up_query_integer(query, 6, 0),
        .layer = up_max(UP_NONE, up_query_integer(query, 7, UP_NONE)),
        .step = up_max(UP_NONE, up_query_integer(query, 8, UP_NONE)),
        .bytes = up_query_integer(query, 9, 0),
        .reserved_bytes = up_query_integer(query, 10, 0),
        .alloc_seq = up_query_integer(query, 11, 0),
        .alloc_ns = up_query_integer(query, 12, 0),
        .names = up_query_integer(query, 13, 1),
    };
    bool texts =
        tensor->name && tensor->category && tensor->phase && tensor->dtype && tensor->shape;
    return texts ? UP_OK : up_no_memory(err);
}

static void count_tensor(struct up_live *live, struct up_live_tensor *tensor)
{
    if (tensor->bytes < 0) live->impossible++;
    tensor->bytes = up_max(0, tensor->bytes);
    tensor->reserved_bytes = up_max(0, tensor->reserved_bytes);
    live->bytes = up_sum(live->bytes, tensor->bytes);
    live->reserved_bytes = up_sum(live->reserved_bytes, tensor->reserved_bytes);
}

enum up_status up_live_read(const struct up_run *run, int64_t rank, enum up_space space,
                            int64_t seq, struct up_live *live, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    int64_t capacity = 0;
    bool row;
    *live = (struct up_live){0};
    UP_TRY(up_query_open(&query, run, live_sql, UP_BIND(rank, seq), err));
    up_query_bind_text(&query, 3, up_space_names[space]);
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        UP_TRY(up_grow(&live->tensors, live->count, &capacity, sizeof *live->tensors, err));
        struct up_live_tensor *tensor = &live->tensors[live->count++];
        UP_TRY(read_tensor(&query, tensor, err));
        count_tensor(live, tensor);
    }
out:
    up_query_close(&query);
    if (rc != UP_OK) up_live_release(live);
    return rc;
}

void up_live_release(struct up_live *live)
{
    for (int64_t i = 0; i < live->count; i++) {
        struct up_live_tensor *tensor = &live->tensors[i];
        free(tensor->name);
        free(tensor->category);
        free(tensor->phase);
        free(tensor->dtype);
        free(tensor->shape);
    }
    free(live->tensors);
    *live = (struct up_live){0};
}

/* --- Groups ------------------------------------------------------------------------------------
 */

// "layers.12.attn.o.3" -> "layers.*.attn.o.*": parts of digits alone.
static char *kind_of(const char *name)
{
    char *kind = malloc(strlen(name) + 2), *to = kind;
    if (!kind) return NULL;
    for (const char *part = name;; part++) {
        size_t length = strcspn(part, "."), digits = strspn(part, "0123456789");
        if (length && digits == length)
            *to++ = '*';
        else
            to = (char *)memcpy(to, part, length) + length;
        part += length;
        *to++ = *part;
        if (!*part) return kind;
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct up_live_group *)a)->name, ((const struct up_live_group *)b)->name);
}

static int by_bytes(const void *a, const void *b)
{
    const struct up_live_group *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return by_name(a, b);
}

// Of a live set, which is sorted: the larger, then the older.
static bool precedes(const struct up_live_tensor *a, const struct up_live_tensor *b)
{
    return a->bytes != b->bytes ? a->bytes > b->bytes : a < b;
}

// Neighbours of one name become one.
static void merge(struct up_live_groups *groups)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < groups->count; i++) {
        struct up_live_group *group = &groups->items[i], *last = &groups->items[kept - (kept > 0)];
        if (kept && !strcmp(last->name, group->name)) {
            last->bytes = up_sum(last->bytes, group->bytes);
            last->count++;
            if (precedes(group->largest, last->largest)) last->largest = group->largest;
            free(group->name);
        } else {
            groups->items[kept++] = *group;
        }
    }
    groups->count = kept;
}

static char *layer_of(const struct up_live_tensor *tensor)
{
    char text[32];
    if (tensor->layer < 0) return strdup("outside layers");
    snprintf(text, sizeof text, "layer %lld", (long long)tensor->layer);
    return strdup(text);
}

// To be freed; NULL when memory is short.
static char *group_name(const struct up_live_tensor *tensor, enum up_live_key key)
{
    if (key == UP_LIVE_BY_KIND) return kind_of(tensor->name);
    if (key == UP_LIVE_BY_LAYER) return layer_of(tensor);
    return strdup(tensor->category);
}

enum up_status up_live_group(const struct up_live *live, enum up_live_key key,
                             struct up_live_groups *groups, struct up_error *err)
{
    *groups =
        (struct up_live_groups){.items = calloc((size_t)live->count + 1, sizeof *groups->items)};
    if (!groups->items) return up_no_memory(err);
    for (; groups->count < live->count; groups->count++) {
        const struct up_live_tensor *tensor = &live->tensors[groups->count];
        char *name = group_name(tensor, key);
        if (!name) {
            up_live_groups_release(groups);
            return up_no_memory(err);
        }
        groups->items[groups->count] =
            (struct up_live_group){name, tensor->category, tensor->bytes, 1, tensor};
    }
    qsort(groups->items, (size_t)groups->count, sizeof *groups->items, by_name);
    merge(groups);
    qsort(groups->items, (size_t)groups->count, sizeof *groups->items, by_bytes);
    return UP_OK;
}

void up_live_groups_release(struct up_live_groups *groups)
{
    for (int64_t i = 0; i < groups->count; i++) free(groups->items[i].name);
    free(groups->items);
    *groups = (struct up_live_groups){0};
}
