/* The section about a run that was out of memory. */
#include "report/emit/sections.h"
#include "report/emit/text.h"

enum { FILLED_BY_MOST = 5 }; // categories in the text; the JSON has all

static void emit_asked(struct up_emitter *emitter, const struct up_post_mortem *why)
{
    char form[64];
    snprintf(form, sizeof form, "{} of %s memory", up_space_names[why->space]);
    up_emit_line_begin(emitter, "asked for");
    up_emit_bytes(emitter, "bytes", form, why->bytes);
    up_emit_text(emitter, "space", NULL, up_space_names[why->space]);
    up_emit_text(emitter, "category", "{}", *why->category ? why->category : NULL);
    up_emit_known(emitter, "rank", "rank {}", why->rank);
    up_emit_known(emitter, "step", "step {}", why->step);
    up_emit_text(emitter, "phase", "{}", *why->phase ? why->phase : NULL);
    up_emit_known(emitter, "layer", "layer {}", why->layer);
    up_emit_known(emitter, "seq", "seq {}", why->seq);
    up_emit_line_end(emitter);
}

static void emit_known_bytes(struct up_emitter *emitter, const char *key, const char *form,
                             int64_t bytes)
{
    if (bytes < 0)
        up_emit_null(emitter, key);
    else
        up_emit_bytes(emitter, key, form, bytes);
}

static void emit_state(struct up_emitter *emitter, const struct up_post_mortem *why)
{
    up_emit_line_begin(emitter, "found");
    emit_known_bytes(emitter, "free_bytes", "{} free", why->free_bytes);
    emit_known_bytes(emitter, "largest_free_bytes", "the largest stretch {}",
                     why->largest_free_bytes);
    emit_known_bytes(emitter, "live_bytes", "{} alive", why->live_bytes);
    emit_known_bytes(emitter, "limit_bytes", "limit {}", why->limit_bytes);
    up_emit_line_end(emitter);
}

static double share_of(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

static void emit_filled_by(struct up_emitter *emitter, const struct up_post_mortem *why)
{
    const struct up_live_groups *groups = &why->categories;
    char bytes[UP_UNITS_TEXT], text[UP_META_TEXT];
    up_emit_line_begin(emitter, "filled by");
    for (int64_t i = 0; i < up_min(groups->count, FILLED_BY_MOST); i++) {
        snprintf(text, sizeof text, "%s %s (%.1f%%)", groups->items[i].name,
                 up_text_bytes(bytes, groups->items[i].bytes),
                 100 * share_of(groups->items[i].bytes, why->live.bytes));
        up_emit_piece(emitter, "{}", text);
    }
    up_emit_line_end(emitter);
    up_emit_table_begin(emitter, "filled_by", NULL, 0);
    for (int64_t i = 0; i < groups->count; i++) {
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "category", NULL, groups->items[i].name);
        up_emit_bytes(emitter, "bytes", NULL, groups->items[i].bytes);
        up_emit_share(emitter, "share", NULL, share_of(groups->items[i].bytes, why->live.bytes));
        up_emit_integer(emitter, "tensors", NULL, groups->items[i].count);
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
}

// What was most of it, which is where to look for what does not fit.
static void emit_dominant(struct up_emitter *emitter, const struct up_post_mortem *why)
{
    if (!why->kinds.count) {
        up_emit_null(emitter, "dominant");
        return;
    }
    const struct up_live_group *most = &why->kinds.items[0];
    up_emit_object_begin(emitter, "dominant");
    up_emit_line_begin(emitter, "dominant");
    up_emit_text(emitter, "kind", "{}", most->name);
    up_emit_text(emitter, "category", "{}", most->category);
    up_emit_bytes(emitter, "bytes", "{} in all", most->bytes);
    up_emit_integer(emitter, "tensors", most->count == 1 ? "{} tensor" : "{} tensors", most->count);
    up_emit_line_end(emitter);
    up_emit_object_end(emitter);
}

static void emit_missing(struct up_emitter *emitter, const struct up_post_mortem *why)
{
    bool known = why->largest_free_bytes >= 0;
    bool in_pieces = known && why->free_bytes >= why->bytes && why->largest_free_bytes < why->bytes;
    int64_t missing = up_max(0, why->bytes - up_max(0, why->largest_free_bytes));
    up_emit_line_begin(emitter, "missing");
    emit_known_bytes(emitter, "missing_bytes",
                     in_pieces ? "enough is free, but in pieces: {} more in one would have fit it"
                               : "{} more would have fit it, and maybe not what comes after",
                     known ? missing : UP_NONE);
    up_emit_flag(emitter, "in_pieces", NULL, in_pieces);
    up_emit_line_end(emitter);
}

void up_section_post_mortem(struct up_emitter *emitter, const struct up_post_mortem *why)
{
    if (!why->known) return;
    up_emit_object_begin(emitter, "out_of_memory");
    up_emit_heading_begin(emitter);
    up_emit_text(emitter, "name", "Out of memory: {} did not fit", why->name);
    up_emit_line_end(emitter);
    emit_asked(emitter, why);
    emit_state(emitter, why);
    emit_filled_by(emitter, why);
    emit_dominant(emitter, why);
    emit_missing(emitter, why);
    up_emit_object_end(emitter);
}
