#include "report/analysis/post_mortem.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void copy_text(const json_t *root, const char *key, char out[UP_META_TEXT])
{
    const char *text = json_string_value(json_object_get(root, key));
    snprintf(out, UP_META_TEXT, "%s", text ? text : "");
}

static void read_numbers(const json_t *root, struct up_post_mortem *why)
{
    const struct {
        const char *key;
        int64_t *value;
    } numbers[] = {{"rank", &why->rank},
                   {"step", &why->step},
                   {"layer", &why->layer},
                   {"seq", &why->seq},
                   {"ns", &why->ns},
                   {"bytes", &why->bytes},
                   {"live_bytes", &why->live_bytes},
                   {"limit_bytes", &why->limit_bytes},
                   {"free_bytes", &why->free_bytes},
                   {"largest_free_bytes", &why->largest_free_bytes}};
    for (int i = 0; i < UP_COUNT(numbers); i++) {
        const json_t *number = json_object_get(root, numbers[i].key);
        *numbers[i].value =
            json_is_integer(number) ? up_max(UP_NONE, json_integer_value(number)) : UP_NONE;
    }
}

static enum up_status read_story(const struct up_run *run, struct up_post_mortem *why,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    json_t *root = NULL;
    json_error_t error = {0};
    bool row;
    UP_TRY(up_query_open(&query, run, "SELECT value FROM meta WHERE key = 'out_of_memory'",
                         UP_BIND_NONE, err));
    UP_TRY(up_query_next(&query, &row, err));
    char *text = up_query_text(&query, 0);
    if (!text) UP_TRY(up_no_memory(err));
    root = json_loads(text, 0, &error);
    free(text);
    UP_TRY(up_query_end(&query, err));
    if (!root && json_error_code(&error) == json_error_out_of_memory) UP_TRY(up_no_memory(err));
    char space[UP_META_TEXT];
    copy_text(root, "name", why->name);
    copy_text(root, "category", why->category);
    copy_text(root, "phase", why->phase);
    copy_text(root, "space", space);
    read_numbers(root, why);
    why->space = strcmp(space, up_space_names[UP_SPACE_HOST]) ? UP_SPACE_DEVICE : UP_SPACE_HOST;
    why->known = *why->name && why->rank >= 0 && why->seq >= 0 && why->bytes >= 0;
out:
    json_decref(root);
    up_query_close(&query);
    return rc;
}

enum up_status up_post_mortem_read(const struct up_run *run, struct up_post_mortem *why,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    *why = (struct up_post_mortem){0};
    UP_TRY(read_story(run, why, err));
    if (!why->known) goto out;
    UP_TRY(up_live_read(run, why->rank, why->space, why->seq, &why->live, err));
    UP_TRY(up_live_group(&why->live, UP_LIVE_BY_CATEGORY, &why->categories, err));
    UP_TRY(up_live_group(&why->live, UP_LIVE_BY_KIND, &why->kinds, err));
out:
    if (rc) up_post_mortem_release(why);
    return rc;
}

void up_post_mortem_release(struct up_post_mortem *why)
{
    up_live_groups_release(&why->categories);
    up_live_groups_release(&why->kinds);
    up_live_release(&why->live);
}
