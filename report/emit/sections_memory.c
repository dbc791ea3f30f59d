/* The sections about memory: the peak, and all that was alive there. */
#include "report/emit/sections.h"
#include "report/emit/text.h"

enum { BAR_WIDTH = 40, NAME_WIDTH = 28 };

static double share_of(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

static const char *or_null(const char *text)
{
    return text && *text ? text : NULL;
}

/* --- Where -------------------------------------------------------------------------------------
 */

static void emit_place(struct up_emitter *emitter, const struct up_place *place)
{
    up_emit_line_begin(emitter, "within");
    up_emit_text(emitter, "range", "{}", or_null(place->range));
    up_emit_line_end(emitter);

    up_emit_object_begin(emitter, "allocation");
    up_emit_line_begin(emitter, "reached by");
    up_emit_text(emitter, "name", "{}", or_null(place->name));
    up_emit_text(emitter, "category", "{}", or_null(place->category));
    up_emit_text(emitter, "dtype", "{}", or_null(place->dtype));
    up_emit_text(emitter, "shape", "{}", or_null(place->shape));
    if (or_null(place->name))
        up_emit_bytes(emitter, "bytes", "{}", place->bytes);
    else
        up_emit_null(emitter, "bytes");
    up_emit_line_end(emitter);
    up_emit_object_end(emitter);
}

// The host runs ahead of a device, and what is alive is what the host has given it to do.
static void emit_moment(struct up_emitter *emitter, const struct up_place *place)
{
    bool since = place->step_begin_ns != UP_NONE && place->device_ns != UP_NONE;
    double begin = (double)place->step_begin_ns;
    up_emit_known(emitter, "ns", NULL, place->ns);
    up_emit_known(emitter, "device_ns", NULL, place->device_ns);
    if (!since) return;
    up_emit_line_begin(emitter, "moment");
    char text[UP_UNITS_TEXT];
    if (place->ns != UP_NONE)
        up_emit_piece(emitter, "the host was there {} after the step began",
                      up_format_seconds(text, ((double)place->ns - begin) * 1e-9));
    up_emit_piece(emitter, "the device {}",
                  up_format_seconds(text, ((double)place->device_ns - begin) * 1e-9));
    up_emit_line_end(emitter);
}

static void emit_peak(struct up_emitter *emitter, const struct up_peak *peak,
                      const struct up_place *place)
{
    up_emit_object_begin(emitter, "peak");
    up_emit_heading_begin(emitter);
    up_emit_bytes(emitter, "peak_bytes", "Peak {}", peak->peak_bytes);
    up_emit_known(emitter, "rank", "rank {}", peak->rank);
    up_emit_known(emitter, "step", "step {}", peak->step);
    up_emit_text(emitter, "phase", "{}", or_null(place->phase));
    up_emit_known(emitter, "layer", "layer {}", place->layer);
    up_emit_known(emitter, "peak_seq", "seq {}", peak->seq);
    up_emit_known(emitter, "same_as_step", NULL, peak->same_step == UP_NONE ? UP_NONE : peak->step);
    up_emit_known(emitter, "asked_step", NULL, peak->same_step);
    up_emit_flag(emitter, "replayed", NULL, peak->replayed);
    up_emit_known(emitter, "unkept_bytes", NULL, peak->unkept_bytes);
    up_emit_line_end(emitter);
    emit_moment(emitter, place);
    emit_place(emitter, place);
    up_emit_object_end(emitter);
}

static void note_peak(struct up_emitter *emitter, const struct up_breakdown *breakdown)
{
    const struct up_peak *peak = &breakdown->peak;
    const struct up_live *live = &breakdown->live;
    char sum[UP_UNITS_TEXT];
    if (peak->same_step != UP_NONE)
        up_emit_note(emitter,
                     "step %lld repeated step %lld event for event and its own rows were not kept: "
                     "these are step %lld's",
                     (long long)peak->same_step, (long long)peak->step, (long long)peak->step);
    if (peak->step == UP_NONE && breakdown->injected)
        up_emit_note(emitter, "the program tells of no steps: this is the highest moment of all "
                              "that was recorded");
    else if (peak->step == UP_NONE)
        up_emit_note(emitter, "no step left rows: this is the highest moment before the first");
    else if (peak->replayed)
        up_emit_note(emitter,
                     "step %lld did not end: its highest moment so far, from its tensor rows",
                     (long long)peak->step);
    if (peak->unkept_bytes != UP_NONE)
        up_emit_note(emitter,
                     "a step whose rows were not kept reached %s: this is the highest moment of "
                     "what was (--trace-steps says of which steps rows are kept)",
                     up_text_bytes(sum, peak->unkept_bytes));
    if (live->bytes != peak->peak_bytes)
        up_emit_note(
            emitter,
            "the rows alive there add up to %s (%lld bytes), not to the peak's %lld bytes: "
            "the trace lacks or repeats rows",
            up_format_bytes(sum, (uint64_t)live->bytes), (long long)live->bytes,
            (long long)peak->peak_bytes);
    if (breakdown->sums.changed_bytes)
        up_emit_note(emitter,
                     "what the device has in use was not asked there: it is that of the nearest "
                     "time it was, and %s that the driver has given or taken back in between",
                     up_text_bytes(sum, breakdown->sums.changed_bytes));
    if (live->impossible)
        up_emit_note(emitter, "%lld of the tensors alive there have negative sizes, counted as 0",
                     (long long)live->impossible);
}

/* --- What --------------------------------------------------------------------------------------
 */

static const struct up_column category_columns[] = {{"category", "category", false, 16, NAME_WIDTH},
                                                    {"bytes", "bytes", true, 10, 0},
                                                    {"share", "share", true, 6, 0},
                                                    {"tensors", "tensors", true, 7, 0},
                                                    {"bar", "", false, 0, 0}};

static void emit_categories(struct up_emitter *emitter, const struct up_live_groups *categories,
                            const struct up_column *columns, int column_count, int64_t whole)
{
    up_emit_table_begin(emitter, "categories", columns, column_count);
    for (int64_t i = 0; i < categories->count; i++) {
        const struct up_live_group *group = &categories->items[i];
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "category", NULL, group->name);
        up_emit_bytes(emitter, "bytes", NULL, group->bytes);
        up_emit_share(emitter, "share", NULL, share_of(group->bytes, whole));
        up_emit_integer(emitter, "tensors", NULL, group->count);
        up_emit_bar(emitter, "bar", share_of(group->bytes, whole), BAR_WIDTH);
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
}

static void say_category(struct up_emitter *emitter, const char *name, int64_t bytes,
                         int64_t tensors, int64_t whole)
{
    up_emit_row_begin(emitter);
    up_emit_text(emitter, "category", NULL, name);
    up_emit_bytes(emitter, "bytes", NULL, bytes);
    up_emit_share(emitter, "share", NULL, share_of(bytes, whole));
    up_emit_integer(emitter, "tensors", NULL, tensors);
    up_emit_bar(emitter, "bar", share_of(bytes, whole), BAR_WIDTH);
    up_emit_row_end(emitter);
}

// In the text alone: those below a hundredth, or beyond `most`, together, unless that is one.
static void say_categories(struct up_emitter *emitter, const struct up_live_groups *categories,
                           int64_t most, int64_t whole)
{
    int64_t shown = 0, bytes = 0, tensors = 0;
    char others[64];
    most = up_min(most, categories->count);
    while (shown < most && share_of(categories->items[shown].bytes, whole) >= 0.01) shown++;
    if (categories->count - shown == 1) shown++;
    up_emit_table_begin(emitter, NULL, category_columns, UP_COUNT(category_columns));
    for (int64_t i = 0; i < shown; i++) {
        const struct up_live_group *group = &categories->items[i];
        say_category(emitter, group->name, group->bytes, group->count, whole);
    }
    for (int64_t i = shown; i < categories->count; i++) {
        bytes = up_sum(bytes, categories->items[i].bytes);
        tensors += categories->items[i].count;
    }
    snprintf(others, sizeof others, "%lld others", (long long)(categories->count - shown));
    if (shown < categories->count) say_category(emitter, others, bytes, tensors, whole);
    up_emit_table_end(emitter);
}

// `sign` goes before the item in the text: '=' for sums, '+' for parts.
static void emit_item(struct up_emitter *emitter, const struct up_column *shown, char sign,
                      const char *item, int64_t bytes)
{
    char text[UP_META_TEXT];
    snprintf(text, sizeof text, "%c %s", sign, item);
    up_emit_row_begin(emitter);
    up_emit_text(emitter, "item", NULL, item);
    if (shown) up_emit_cell(emitter, "item", text);
    up_emit_bytes(emitter, "bytes", NULL, bytes);
    up_emit_row_end(emitter);
}

static void emit_libraries(struct up_emitter *emitter, const struct up_column *shown, char sign,
                           const struct up_reconciliation *sums)
{
    if (sums->free_bytes) emit_item(emitter, shown, sign, "arena free", sums->free_bytes);
    for (int64_t i = 0; i < sums->library_count; i++)
        emit_item(emitter, shown, sign, sums->libraries[i].owner, sums->libraries[i].bytes);
}

// In the JSON alone.
static void emit_host_sums(struct up_emitter *emitter, const struct up_reconciliation *sums)
{
    up_emit_table_begin(emitter, "reconciliation", NULL, 0);
    emit_item(emitter, NULL, '=', "categories", sums->categories_bytes);
    emit_item(emitter, NULL, '+', "arena slack", sums->slack_bytes);
    emit_libraries(emitter, NULL, '+', sums);
    up_emit_table_end(emitter);
}

/* The first line is the sum of the categories, the last that of the lines before it. */
static void emit_reconciliation(struct up_emitter *emitter, const struct up_reconciliation *sums,
                                bool brief)
{
    static const struct up_column columns[] = {{"item", "", false, 16, NAME_WIDTH},
                                               {"bytes", "", true, 10, 0}};
    const struct up_column *shown = brief ? NULL : columns;
    up_emit_table_begin(emitter, "reconciliation", shown, shown ? UP_COUNT(columns) : 0);
    emit_item(emitter, shown, '=', "categories", sums->categories_bytes);
    emit_item(emitter, shown, '+', "arena slack", sums->slack_bytes);
    if (sums->device_used_bytes == UP_NONE) {
        emit_item(emitter, shown, '=', "arena in use",
                  up_sum(sums->categories_bytes, sums->slack_bytes));
    } else {
        emit_libraries(emitter, shown, '+', sums);
        if (sums->before_bytes)
            emit_item(emitter, shown, '+', "before the run", sums->before_bytes);
        emit_item(emitter, shown, '+', "unattributed", sums->unattributed_bytes);
        emit_item(emitter, shown, '=', "device used", sums->device_used_bytes);
    }
    up_emit_table_end(emitter);
}

// "+ nccl 3.00 MiB", the text's alone; "= ..." is the sum that the others make.
static void say_item(struct up_emitter *emitter, const char *sign, const char *item, int64_t bytes)
{
    char size[UP_UNITS_TEXT], text[2 * UP_META_TEXT];
    snprintf(text, sizeof text, "%s%s %s", sign, item, up_text_bytes(size, bytes));
    up_emit_piece(emitter, "{}", text);
}

// The same on one line: "device used 20.0 MiB = categories 8.00 MiB, + arena slack 4.00 KiB, ...".
static void say_reconciliation(struct up_emitter *emitter, const struct up_reconciliation *sums)
{
    char size[UP_UNITS_TEXT], whole[2 * UP_UNITS_TEXT];
    bool used = sums->device_used_bytes != UP_NONE;
    int64_t bytes =
        used ? sums->device_used_bytes : up_sum(sums->categories_bytes, sums->slack_bytes);
    snprintf(whole, sizeof whole, "%s %s = ", used ? "device used" : "arena in use",
             up_text_bytes(size, bytes));
    up_emit_line_begin(emitter, "adds up");
    say_item(emitter, whole, "categories", sums->categories_bytes);
    say_item(emitter, "+ ", "arena slack", sums->slack_bytes);
    if (used) {
        if (sums->free_bytes) say_item(emitter, "+ ", "arena free", sums->free_bytes);
        for (int64_t i = 0; i < sums->library_count; i++)
            say_item(emitter, "+ ", sums->libraries[i].owner, sums->libraries[i].bytes);
        if (sums->before_bytes) say_item(emitter, "+ ", "before the run", sums->before_bytes);
        say_item(emitter, "+ ", "unattributed", sums->unattributed_bytes);
    }
    up_emit_line_end(emitter);
}

static void emit_tensor(struct up_emitter *emitter, const struct up_live_tensor *tensor,
                        int64_t whole, bool brief)
{
    char shape[UP_META_TEXT], since[UP_META_TEXT];
    snprintf(shape, sizeof shape, "%s %s", tensor->dtype, tensor->shape);
    if (tensor->step == UP_NONE)
        snprintf(since, sizeof since, "%s", tensor->phase);
    else
        snprintf(since, sizeof since, "%lld %s", (long long)tensor->step, tensor->phase);
    up_emit_row_begin(emitter);
    up_emit_text(emitter, "name", NULL, tensor->name);
    up_emit_text(emitter, "category", NULL, tensor->category);
    up_emit_text(emitter, "dtype", NULL, tensor->dtype);
    up_emit_text(emitter, "shape", NULL, tensor->shape);
    if (!brief) up_emit_cell(emitter, "shape", shape);
    up_emit_bytes(emitter, "bytes", NULL, tensor->bytes);
    up_emit_share(emitter, "share", NULL, share_of(tensor->bytes, whole));
    if (!brief) up_emit_cell(emitter, "since", since);
    up_emit_known(emitter, "step", NULL, tensor->step);
    up_emit_text(emitter, "phase", NULL, tensor->phase);
    up_emit_known(emitter, "layer", NULL, tensor->layer);
    up_emit_integer(emitter, "reserved_bytes", NULL, tensor->reserved_bytes);
    up_emit_integer(emitter, "alloc_seq", NULL, tensor->alloc_seq);
    up_emit_integer(emitter, "id", NULL, tensor->id);
    up_emit_integer(emitter, "storage_id", NULL, tensor->storage_id);
    up_emit_integer(emitter, "names", NULL, tensor->names);
    up_emit_row_end(emitter);
}

static void emit_largest(struct up_emitter *emitter, const struct up_live *live, int64_t limit,
                         bool brief)
{
    static const struct up_column columns[] = {{"name", "largest tensors", false, 16, NAME_WIDTH},
                                               {"bytes", "bytes", true, 10, 0},
                                               {"share", "share", true, 6, 0},
                                               {"category", "category", false, 0, 10},
                                               {"shape", "shape", false, 0, 22},
                                               {"since", "since step", false, 0, 12}};
    int64_t count = limit ? up_min(limit, live->count) : live->count;
    up_emit_table_begin(emitter, "largest", brief ? NULL : columns, brief ? 0 : UP_COUNT(columns));
    for (int64_t i = 0; i < count; i++) emit_tensor(emitter, &live->tensors[i], live->bytes, brief);
    up_emit_table_end(emitter);
}

/* Tensors that differ by layer or index alone, together; none where each is the only one of its
 * kind, since the table would repeat the one before. */
static void emit_kinds(struct up_emitter *emitter, const struct up_live *live,
                       const struct up_live_groups *kinds, int64_t limit, bool brief)
{
    static const struct up_column columns[] = {{"kind", "by kind", false, 16, 40},
                                               {"bytes", "bytes", true, 10, 0},
                                               {"share", "share", true, 6, 0},
                                               {"category", "category", false, 0, 12},
                                               {"tensors", "tensors", true, 0, 0}};
    int64_t count = kinds->count < live->count ? kinds->count : 0;
    if (limit) count = up_min(limit, count);
    up_emit_table_begin(emitter, "kinds", brief ? NULL : columns, brief ? 0 : UP_COUNT(columns));
    for (int64_t i = 0; i < count; i++) {
        const struct up_live_group *kind = &kinds->items[i];
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "kind", NULL, kind->name);
        up_emit_bytes(emitter, "bytes", NULL, kind->bytes);
        up_emit_share(emitter, "share", NULL, share_of(kind->bytes, live->bytes));
        up_emit_text(emitter, "category", NULL, kind->category);
        up_emit_integer(emitter, "tensors", NULL, kind->count);
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
}

static void emit_pinned(struct up_emitter *emitter, const struct up_reconciliation *sums)
{
    int64_t pinned = up_sum(up_sum(sums->categories_bytes, sums->slack_bytes), sums->free_bytes);
    for (int64_t i = 0; i < sums->library_count; i++)
        pinned = up_sum(pinned, sums->libraries[i].bytes);
    up_emit_known(emitter, "pinned_bytes", NULL, sums->arena_known ? pinned : UP_NONE);
    if (!sums->arena_known) return;
    char bytes[UP_UNITS_TEXT], text[UP_META_TEXT];
    up_emit_piece(emitter, "{} pinned", up_text_bytes(bytes, pinned));
    for (int64_t i = 0; i < sums->library_count; i++) {
        snprintf(text, sizeof text, "%s %s", sums->libraries[i].owner,
                 up_text_bytes(bytes, sums->libraries[i].bytes));
        up_emit_piece(emitter, "of it {}", text);
    }
}

/* In the text alone: the largest tensors, those that differ by layer or index alone on one row with
 * the size and shape of one of them. */
static void say_largest(struct up_emitter *emitter, const struct up_live *live,
                        const struct up_live_groups *kinds, int64_t limit)
{
    static const struct up_column columns[] = {{"kind", "largest tensors", false, 16, 26},
                                               {"bytes", "bytes", true, 10, 0},
                                               {"share", "share", true, 6, 0},
                                               {"category", "category", false, 0, 10},
                                               {"tensors", "tensors", true, 7, 0},
                                               {"each", "each", false, 0, 31}};
    up_emit_table_begin(emitter, NULL, columns, UP_COUNT(columns));
    for (int64_t i = 0; i < up_min(limit, kinds->count); i++) {
        const struct up_live_group *kind = &kinds->items[i];
        const struct up_live_tensor *one = kind->largest;
        char size[UP_UNITS_TEXT], each[2 * UP_META_TEXT];
        snprintf(each, sizeof each, "%s%s%s %s",
                 kind->count > 1 ? up_text_bytes(size, one->bytes) : "", kind->count > 1 ? " " : "",
                 one->dtype, one->shape);
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "kind", NULL, kind->name);
        up_emit_bytes(emitter, "bytes", NULL, kind->bytes);
        up_emit_share(emitter, "share", NULL, share_of(kind->bytes, live->bytes));
        up_emit_text(emitter, "category", NULL, kind->category);
        up_emit_integer(emitter, "tensors", NULL, kind->count);
        up_emit_text(emitter, "each", NULL, each);
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
}

// In text one line: there is little to say about the host where the device is where the work is.
static void emit_host(struct up_emitter *emitter, const struct up_breakdown *breakdown)
{
    const struct up_peak *peak = &breakdown->host_peak;
    const struct up_live_groups *categories = &breakdown->host_categories;
    if (peak->seq == UP_NONE) {
        up_emit_null(emitter, "host");
        return;
    }
    up_emit_object_begin(emitter, "host");
    up_emit_line_begin(emitter, "host");
    up_emit_bytes(emitter, "peak_bytes", "{} at its own peak", peak->peak_bytes);
    up_emit_known(emitter, "rank", NULL, peak->rank);
    up_emit_known(emitter, "step", "step {}", peak->step);
    up_emit_known(emitter, "peak_seq", "seq {}", peak->seq);
    for (int64_t i = 0; i < categories->count; i++) {
        char bytes[UP_UNITS_TEXT], text[UP_META_TEXT];
        up_format_bytes(bytes, (uint64_t)categories->items[i].bytes);
        snprintf(text, sizeof text, "%s %s", categories->items[i].name, bytes);
        up_emit_piece(emitter, "{}", text);
    }
    emit_pinned(emitter, &breakdown->host_sums);
    up_emit_line_end(emitter);
    emit_categories(emitter, categories, NULL, 0, breakdown->host.bytes);
    if (breakdown->host_sums.arena_known) emit_host_sums(emitter, &breakdown->host_sums);
    up_emit_object_end(emitter);
}

void up_section_breakdown(struct up_emitter *emitter, const struct up_breakdown *breakdown,
                          int64_t limit, const struct up_brief *brief)
{
    if (breakdown->peak.rank == UP_NONE) {
        up_emit_null(emitter, "peak");
        up_emit_note(emitter, "no tensor has been recorded: there is no peak to explain");
        return;
    }
    emit_peak(emitter, &breakdown->peak, &breakdown->place);
    note_peak(emitter, breakdown);
    if (brief) say_reconciliation(emitter, &breakdown->sums);
    emit_categories(emitter, &breakdown->categories, brief ? NULL : category_columns,
                    brief ? 0 : UP_COUNT(category_columns), breakdown->live.bytes);
    emit_reconciliation(emitter, &breakdown->sums, brief);
    emit_largest(emitter, &breakdown->live, limit, brief);
    emit_kinds(emitter, &breakdown->live, &breakdown->kinds, limit, brief);
    if (brief) {
        say_categories(emitter, &breakdown->categories, brief->categories, breakdown->live.bytes);
        say_largest(emitter, &breakdown->live, &breakdown->kinds, brief->tensors);
    }
    emit_host(emitter, breakdown);
}
