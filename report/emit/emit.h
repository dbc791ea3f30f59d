/* The one way a report says anything: each call makes a field of the JSON and its place in the
 * text, so that the two cannot drift.
 *
 *   JSON   a tree of objects and arrays. Keys are run.db's column names where a value comes from a
 *          column; bytes and counts are whole numbers, reals have 17 digits, what is unknown is
 * null. text   lines of pieces and tables of cells. A field's `form` is how a person reads it, "{}"
 * being the value ("rank {}"); NULL leaves the field to the JSON. What is unknown is left out.
 *
 * In a row of a table a field fills the column of its key; with no such column it is in the JSON
 * only. Nothing is printed before up_emitter_print. Running out of memory is told there too.
 */
#ifndef UP_REPORT_EMIT_H
#define UP_REPORT_EMIT_H

#include "base/base.h"

struct up_emit_style {
    bool json;
    bool csv;    // of the report's one table alone, with the JSON's keys as the heading
    bool utf8;   // blocks for bars, names as they are
    bool colour; // escape sequences
};

struct up_emitter;

struct up_emitter *up_emitter_create(const struct up_emit_style *style); // NULL: no memory
enum up_status up_emitter_print(struct up_emitter *emitter, FILE *out, struct up_error *err);
int up_emitter_lines(struct up_emitter *emitter);    // of the text so far; 0 for JSON and CSV
void up_emitter_destroy(struct up_emitter *emitter); // NULL is fine

/* Objects, in the JSON alone. */
void up_emit_object_begin(struct up_emitter *emitter, const char *key);
void up_emit_object_end(struct up_emitter *emitter);

/* Lines, in the text alone: their fields stand between, joined by commas. A heading has an empty
 * line before it, and so has what follows a table; a line
 * without fields does not appear. */
void up_emit_heading_begin(struct up_emitter *emitter);
void up_emit_table_heading_begin(struct up_emitter *emitter); // no empty line before the table
void up_emit_line_begin(struct up_emitter *emitter, const char *label);
void up_emit_line_end(struct up_emitter *emitter);

/* A piece of a line that says no more than other fields do: the text's alone. */
void up_emit_piece(struct up_emitter *emitter, const char *form, const char *text);

/* A remark that the reader must not miss: an element of the JSON's "notes", a line of the text. */
void up_emit_note(struct up_emitter *emitter, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void up_emit_text(struct up_emitter *emitter, const char *key, const char *form, const char *value);
void up_emit_integer(struct up_emitter *emitter, const char *key, const char *form, int64_t value);
void up_emit_flag(struct up_emitter *emitter, const char *key, const char *form, bool value);
void up_emit_bytes(struct up_emitter *emitter, const char *key, const char *form, int64_t value);
/* In the text a count is in thousands with three digits, tokens in powers of 1024, exact. */
void up_emit_count(struct up_emitter *emitter, const char *key, const char *form, int64_t value);
void up_emit_tokens(struct up_emitter *emitter, const char *key, const char *form, int64_t value);
/* Of a real, not finite means unknown. */
void up_emit_real(struct up_emitter *emitter, const char *key, const char *form, double value);
void up_emit_rate(struct up_emitter *emitter, const char *key, const char *form, double value);
void up_emit_share(struct up_emitter *emitter, const char *key, const char *form, double value);
void up_emit_seconds(struct up_emitter *emitter, const char *key, const char *form, double value);
/* How much something grew (+) or shrank (-), "=" where not at all: bytes, seconds; a share of what
 * it was, from +1000% on as a multiple ("x12.5"). */
void up_emit_bytes_change(struct up_emitter *emitter, const char *key, const char *form,
                          int64_t value);
void up_emit_seconds_change(struct up_emitter *emitter, const char *key, const char *form,
                            double value);
void up_emit_share_change(struct up_emitter *emitter, const char *key, const char *form,
                          double value);
void up_emit_null(struct up_emitter *emitter, const char *key);

/* `value` unless it is negative: null then. */
void up_emit_known(struct up_emitter *emitter, const char *key, const char *form, int64_t value);
void up_emit_known_bytes(struct up_emitter *emitter, const char *key, int64_t value); // of a table

struct up_column {
    const char *key; // of the field that fills it
    const char *heading;
    bool right;      // aligned to the right
    int least, most; // characters; most 0: no limit
};

/* An array of objects under `key`; without columns it is in the JSON alone. `columns` must outlive
 * the table. Without a key it is in the text alone: a summary of what the JSON tells elsewhere.
 * Tables do not nest. */
void up_emit_table_begin(struct up_emitter *emitter, const char *key,
                         const struct up_column *columns, int count);
void up_emit_table_end(struct up_emitter *emitter);
void up_emit_row_begin(struct up_emitter *emitter);
void up_emit_row_end(struct up_emitter *emitter);
/* Text of a cell that says no more than the row's other fields do. */
void up_emit_cell(struct up_emitter *emitter, const char *column, const char *text);
void up_emit_bar(struct up_emitter *emitter, const char *column, double share, int width);

#endif
