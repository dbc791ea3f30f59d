#include "report/emit/emit.h"
#include "report/emit/page.h"
#include "report/emit/text.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 8 };

struct up_emitter {
    struct up_emit_style style;
    struct up_page *page;     // NULL for JSON
    json_t *stack[DEPTH_MAX]; // open objects from the root on; only [0] is owned
    int depth;
    json_t *rows;   // the open table's array, not owned
    json_t *table;  // the last table's, not owned
    json_t *unused; // the open table's array where it is the text's alone, owned
    const struct up_column *columns;
    int column_count;
    bool in_row, failed;
};

struct up_emitter *up_emitter_create(const struct up_emit_style *style)
{
    struct up_emitter *emitter = calloc(1, sizeof *emitter);
    if (!emitter) return NULL;
    emitter->style = *style;
    emitter->stack[0] = json_pack("{s:[]}", "notes");
    bool text = !style->json && !style->csv;
    if (text) emitter->page = up_page_create(style->colour);
    if (emitter->stack[0] && (!text || emitter->page)) return emitter;
    up_emitter_destroy(emitter);
    return NULL;
}

void up_emitter_destroy(struct up_emitter *emitter)
{
    if (!emitter) return;
    json_decref(emitter->stack[0]);
    json_decref(emitter->unused);
    up_page_destroy(emitter->page);
    free(emitter);
}

// A name or a value; quoted where it has to be.
static void csv_field(FILE *out, const json_t *value)
{
    const char *text = json_string_value(value);
    if (json_is_integer(value))
        fprintf(out, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        fprintf(out, "%.17g", json_real_value(value));
    else if (json_is_boolean(value))
        fputs(json_is_true(value) ? "yes" : "no", out);
    else if (text && !strpbrk(text, ",\"\n\r"))
        fputs(text, out);
    else if (text) {
        fputc('"', out);
        for (; *text; text++) {
            if (*text == '"') fputc('"', out);
            fputc(*text, out);
        }
        fputc('"', out);
    }
}

static void csv_row(FILE *out, json_t *row, bool names)
{
    const char *key, *comma = "";
    json_t *value;
    json_object_foreach(row, key, value)
    {
        if (json_is_object(value) || json_is_array(value)) continue;
        fputs(comma, out);
        comma = ",";
        if (names)
            fputs(key, out);
        else
            csv_field(out, value);
    }
    fputc('\n', out);
}

// The last table's rows, all of which have the same keys. To be freed; NULL when memory is short.
static char *csv_text(const struct up_emitter *emitter)
{
    char *text = NULL;
    size_t size = 0, index;
    json_t *row;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    json_array_foreach(emitter->table, index, row)
    {
        if (!index) csv_row(out, row, true);
        csv_row(out, row, false);
    }
    bool failed = ferror(out);
    if (fclose(out) == 0 && !failed) return text;
    free(text);
    return NULL;
}

enum up_status up_emitter_print(struct up_emitter *emitter, FILE *out, struct up_error *err)
{
    char *json = NULL;
    const char *text = NULL;
    if (emitter->page)
        text = up_page_text(emitter->page);
    else if (emitter->style.csv)
        text = json = csv_text(emitter);
    else
        text = json = json_dumps(emitter->stack[0], JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    enum up_status rc = UP_OK;
    if (emitter->failed || !text)
        rc = up_fail(err, UP_FAILED, "out of memory while writing the report");
    else if (fputs(text, out) < 0 || (emitter->style.json && fputc('\n', out) < 0) ||
             fflush(out) != 0)
        rc = up_fail(err, UP_FAILED, "the report could not be written: %m");
    free(json);
    return rc;
}

int up_emitter_lines(struct up_emitter *emitter)
{
    return emitter->page ? up_page_lines(emitter->page) : 0;
}

/* --- Structure ---------------------------------------------------------------------------------
 */

static json_t *top(const struct up_emitter *emitter)
{
    return emitter->stack[emitter->depth];
}

// Takes `value` over, in any case.
static void set(struct up_emitter *emitter, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0) emitter->failed = true;
}

static void push(struct up_emitter *emitter, json_t *object)
{
    UP_ASSERT(emitter->depth + 1 < DEPTH_MAX);
    emitter->stack[++emitter->depth] = object;
}

void up_emit_object_begin(struct up_emitter *emitter, const char *key)
{
    json_t *object = json_object();
    set(emitter, top(emitter), key, object);
    push(emitter, object);
}

void up_emit_object_end(struct up_emitter *emitter)
{
    UP_ASSERT(emitter->depth > 0);
    emitter->depth--;
}

void up_emit_heading_begin(struct up_emitter *emitter)
{
    if (emitter->page) up_page_heading_begin(emitter->page, false);
}

void up_emit_table_heading_begin(struct up_emitter *emitter)
{
    if (emitter->page) up_page_heading_begin(emitter->page, true);
}

void up_emit_line_begin(struct up_emitter *emitter, const char *label)
{
    if (emitter->page) up_page_line_begin(emitter->page, label);
}

void up_emit_line_end(struct up_emitter *emitter)
{
    if (emitter->page) up_page_line_end(emitter->page);
}

void up_emit_note(struct up_emitter *emitter, const char *format, ...)
{
    char text[1536];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char *clean = up_text_clean(text, !emitter->page || emitter->style.utf8);
    if (clean && emitter->page) up_page_warning(emitter->page, clean);
    json_t *notes = json_object_get(emitter->stack[0], "notes");
    if (!clean || json_array_append_new(notes, json_string(clean)) != 0) emitter->failed = true;
    free(clean);
}

void up_emit_table_begin(struct up_emitter *emitter, const char *key,
                         const struct up_column *columns, int count)
{
    emitter->columns = columns;
    emitter->column_count = count;
    emitter->rows = json_array();
    if (key)
        set(emitter, top(emitter), key, emitter->table = emitter->rows);
    else
        emitter->unused = emitter->rows;
    if (emitter->page) up_page_table_begin(emitter->page, columns, count);
}

void up_emit_table_end(struct up_emitter *emitter)
{
    if (emitter->page) up_page_table_end(emitter->page);
    json_decref(emitter->unused);
    emitter->rows = emitter->unused = NULL;
}

void up_emit_row_begin(struct up_emitter *emitter)
{
    emitter->in_row = true;
    if (emitter->page) {
        up_page_row_begin(emitter->page);
        return;
    }
    json_t *row = json_object();
    if (json_array_append_new(emitter->rows, row) != 0) emitter->failed = true;
    push(emitter, row);
}

void up_emit_row_end(struct up_emitter *emitter)
{
    emitter->in_row = false;
    if (!emitter->page) emitter->depth--;
}

/* --- Fields ------------------------------------------------------------------------------------
 */

static int column_index(const struct up_emitter *emitter, const char *key)
{
    for (int c = 0; c < emitter->column_count; c++)
        if (!strcmp(emitter->columns[c].key, key)) return c;
    return -1;
}

// A cell or a piece; `text` NULL is left out.
static void place(struct up_emitter *emitter, const char *key, const char *form, const char *text)
{
    if (!text) return;
    int column = emitter->in_row ? column_index(emitter, key) : -1;
    if (column >= 0)
        up_page_cell(emitter->page, column, text);
    else if (!emitter->in_row && form)
        up_page_piece(emitter->page, form, text);
}

void up_emit_cell(struct up_emitter *emitter, const char *column, const char *text)
{
    UP_ASSERT(emitter->in_row && column_index(emitter, column) >= 0);
    if (!emitter->page) return;
    char *clean = up_text_clean(text, emitter->style.utf8);
    if (!clean) emitter->failed = true;
    place(emitter, column, NULL, clean);
    free(clean);
}

void up_emit_piece(struct up_emitter *emitter, const char *form, const char *text)
{
    if (!emitter->page) return;
    char *clean = up_text_clean(text, emitter->style.utf8);
    if (clean)
        up_page_piece(emitter->page, form, clean);
    else
        emitter->failed = true;
    free(clean);
}

void up_emit_bar(struct up_emitter *emitter, const char *column, double share, int width)
{
    char bar[UP_BAR_TEXT];
    if (emitter->page)
        place(emitter, column, NULL, up_text_bar(bar, share, width, emitter->style.utf8));
}

void up_emit_text(struct up_emitter *emitter, const char *key, const char *form, const char *value)
{
    char *clean = value ? up_text_clean(value, !emitter->page || emitter->style.utf8) : NULL;
    if (value && !clean) emitter->failed = true;
    if (emitter->page)
        place(emitter, key, form, clean);
    else
        set(emitter, top(emitter), key, clean ? json_string(clean) : json_null());
    free(clean);
}

void up_emit_null(struct up_emitter *emitter, const char *key)
{
    if (!emitter->page) set(emitter, top(emitter), key, json_null());
}

static void whole(struct up_emitter *emitter, const char *key, const char *form, int64_t value,
                  const char *text)
{
    if (emitter->page)
        place(emitter, key, form, text);
    else
        set(emitter, top(emitter), key, json_integer(value));
}

void up_emit_integer(struct up_emitter *emitter, const char *key, const char *form, int64_t value)
{
    char text[UP_UNITS_TEXT];
    snprintf(text, sizeof text, "%lld", (long long)value);
    whole(emitter, key, form, value, text);
}

void up_emit_known(struct up_emitter *emitter, const char *key, const char *form, int64_t value)
{
    if (value < 0)
        up_emit_null(emitter, key);
    else
        up_emit_integer(emitter, key, form, value);
}

void up_emit_bytes(struct up_emitter *emitter, const char *key, const char *form, int64_t value)
{
    char text[UP_UNITS_TEXT];
    whole(emitter, key, form, value, up_text_bytes(text, value));
}

void up_emit_known_bytes(struct up_emitter *emitter, const char *key, int64_t value)
{
    if (value < 0)
        up_emit_null(emitter, key);
    else
        up_emit_bytes(emitter, key, NULL, value);
}

void up_emit_count(struct up_emitter *emitter, const char *key, const char *form, int64_t value)
{
    char text[UP_UNITS_TEXT];
    whole(emitter, key, form, value, up_text_thousands(text, (double)value));
}

void up_emit_tokens(struct up_emitter *emitter, const char *key, const char *form, int64_t value)
{
    char text[UP_UNITS_TEXT];
    whole(emitter, key, form, value, up_format_count(text, value));
}

void up_emit_flag(struct up_emitter *emitter, const char *key, const char *form, bool value)
{
    if (emitter->page)
        place(emitter, key, form, value ? "yes" : "no");
    else
        set(emitter, top(emitter), key, json_boolean(value));
}

static void real(struct up_emitter *emitter, const char *key, const char *form, double value,
                 const char *text)
{
    if (!isfinite(value))
        up_emit_null(emitter, key);
    else if (emitter->page)
        place(emitter, key, form, text);
    else
        set(emitter, top(emitter), key, json_real(value));
}

void up_emit_real(struct up_emitter *emitter, const char *key, const char *form, double value)
{
    char text[UP_UNITS_TEXT];
    snprintf(text, sizeof text, "%.5g", value);
    real(emitter, key, form, value, text);
}

void up_emit_rate(struct up_emitter *emitter, const char *key, const char *form, double value)
{
    char text[UP_UNITS_TEXT];
    real(emitter, key, form, value, up_text_thousands(text, value));
}

void up_emit_share(struct up_emitter *emitter, const char *key, const char *form, double value)
{
    char text[UP_UNITS_TEXT];
    snprintf(text, sizeof text, "%.1f%%", 100 * value);
    real(emitter, key, form, value, text);
}

void up_emit_seconds(struct up_emitter *emitter, const char *key, const char *form, double value)
{
    char text[UP_UNITS_TEXT];
    real(emitter, key, form, value, up_format_seconds(text, value));
}

void up_emit_bytes_change(struct up_emitter *emitter, const char *key, const char *form,
                          int64_t value)
{
    char bytes[UP_UNITS_TEXT], text[UP_UNITS_TEXT + 1];
    snprintf(text, sizeof text, "%s%s", value > 0 ? "+" : "", up_text_bytes(bytes, value));
    whole(emitter, key, form, value, value ? text : "=");
}

void up_emit_seconds_change(struct up_emitter *emitter, const char *key, const char *form,
                            double value)
{
    char seconds[UP_UNITS_TEXT], text[UP_UNITS_TEXT + 1];
    snprintf(text, sizeof text, "%c%s", value < 0 ? '-' : '+',
             up_format_seconds(seconds, fabs(value)));
    real(emitter, key, form, value, value == 0 ? "=" : text);
}

void up_emit_share_change(struct up_emitter *emitter, const char *key, const char *form,
                          double value)
{
    char text[UP_UNITS_TEXT];
    double percent = fabs(value) < 0.00005 ? 0 : 100 * value;
    if (percent < 1000)
        snprintf(text, sizeof text,
                 percent == 0            ? "%.2f%%"
                 : fabs(percent) < 9.995 ? "%+.2f%%"
                                         : "%+.0f%%",
                 percent);
    else
        snprintf(text, sizeof text, "x%.4g", value + 1);
    real(emitter, key, form, value, value == 0 ? "=" : text);
}
