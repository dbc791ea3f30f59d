#define _GNU_SOURCE // asprintf
#include "report/emit/page.h"
#include "report/emit/text.h"

#include <stdlib.h>
#include <string.h>

struct up_page {
    FILE *stream; // into `buffer`
    char *buffer;
    size_t size;
    bool colour, failed, begun; // begun: something stands on the page
    bool after_table;           // what comes next is set off by an empty line
    bool joined, after_heading; // the heading is of the table that comes next, which is not

    // The open line.
    const char *label;
    bool heading;
    int pieces, column;

    // The open table: `rows` rows of `column_count` cells, each owned or NULL.
    const struct up_column *columns;
    int column_count;
    char **cells;
    size_t rows;
    int64_t capacity; // rows
};

struct up_page *up_page_create(bool colour)
{
    struct up_page *page = calloc(1, sizeof *page);
    if (!page) return NULL;
    page->colour = colour;
    page->stream = open_memstream(&page->buffer, &page->size);
    if (page->stream) return page;
    free(page);
    return NULL;
}

static void free_cells(struct up_page *page)
{
    for (size_t i = 0; i < page->rows * (size_t)page->column_count; i++) free(page->cells[i]);
    free(page->cells);
    page->cells = NULL;
    page->rows = page->capacity = 0;
}

void up_page_destroy(struct up_page *page)
{
    if (!page) return;
    free_cells(page);
    if (page->stream) fclose(page->stream);
    free(page->buffer);
    free(page);
}

const char *up_page_text(struct up_page *page)
{
    if (fflush(page->stream) != 0) page->failed = true;
    return page->failed ? NULL : page->buffer;
}

int up_page_lines(struct up_page *page)
{
    int lines = 0;
    const char *text = up_page_text(page);
    for (; text && *text; text++) lines += *text == '\n';
    return lines;
}

static void put(struct up_page *page, const char *text)
{
    if (fputs(text, page->stream) < 0) page->failed = true;
}

static void pad(struct up_page *page, int width)
{
    if (width > 0 && fprintf(page->stream, "%*s", width, "") < 0) page->failed = true;
}

static void emphasise(struct up_page *page, const char *sequence)
{
    if (page->colour) put(page, sequence);
}
#define BOLD   "\033[1m"
#define DIM    "\033[2m"
#define YELLOW "\033[33m"
#define PLAIN  "\033[0m"

/* --- Lines -------------------------------------------------------------------------------------
 */

void up_page_heading_begin(struct up_page *page, bool joined)
{
    page->heading = true;
    page->joined = joined;
    page->label = "";
    page->pieces = 0;
}

void up_page_line_begin(struct up_page *page, const char *label)
{
    page->heading = false;
    page->label = label;
    page->pieces = 0;
}

// What stands before a line's first piece.
static void open_line(struct up_page *page)
{
    if (page->heading ? page->begun : page->after_table) put(page, "\n");
    if (page->heading) {
        emphasise(page, BOLD);
        page->column = 0;
    } else {
        pad(page, 2);
        put(page, page->label);
        pad(page, UP_PAGE_LABEL - up_text_width(page->label));
        page->column = 2 + UP_PAGE_LABEL;
    }
    page->begun = true;
    page->after_table = false;
    page->after_heading = page->heading && page->joined;
}

// Where a line goes on below.
static int margin(const struct up_page *page)
{
    return page->heading ? 2 : 2 + UP_PAGE_LABEL;
}

// A comma may follow the piece, too.
static void separate(struct up_page *page, int width)
{
    if (page->column + 2 + width + 1 <= UP_PAGE_WIDTH) {
        put(page, ", ");
        page->column += 2;
        return;
    }
    put(page, ",\n");
    page->column = margin(page);
    pad(page, page->column);
}

// Broken after `between`, at its last character, a blank: what comes from the run may be long.
static void put_words(struct up_page *page, const char *text, const char *between)
{
    for (const char *word = text; *word;) {
        const char *end = strstr(word, between);
        int length = (int)(end ? (size_t)(end - word) + strlen(between) - 1 : strlen(word));
        char *copy = strndup(word, (size_t)length);
        int width = copy ? up_text_width(copy) : 0;
        free(copy);
        bool first = word == text;
        if (!first && page->column + 1 + width > UP_PAGE_WIDTH) {
            put(page, "\n");
            page->column = margin(page);
            pad(page, page->column);
        } else if (!first) {
            put(page, " ");
            page->column++;
        }
        if (fprintf(page->stream, "%.*s", length, word) < 0) page->failed = true;
        page->column += width;
        word += length;
        if (*word) word++;
    }
}

void up_page_piece(struct up_page *page, const char *form, const char *value)
{
    const char *hole = strstr(form, "{}");
    int before = hole ? (int)(hole - form) : (int)strlen(form);
    char *text = NULL;
    if (asprintf(&text, "%.*s%s%s", before, form, hole ? value : "", hole ? hole + 2 : "") < 0) {
        page->failed = true;
        return;
    }
    if (page->pieces++)
        separate(page, up_text_width(text));
    else
        open_line(page);
    put_words(page, text, " > "); // a path of ranges; what is to be typed stays on one line
    free(text);
}

void up_page_line_end(struct up_page *page)
{
    if (!page->pieces) return;
    if (page->heading) emphasise(page, PLAIN);
    put(page, "\n");
}

void up_page_warning(struct up_page *page, const char *text)
{
    emphasise(page, YELLOW);
    up_page_line_begin(page, "note");
    open_line(page);
    put_words(page, text, " ");
    emphasise(page, PLAIN);
    put(page, "\n");
}

/* --- Tables ------------------------------------------------------------------------------------
 */

void up_page_table_begin(struct up_page *page, const struct up_column *columns, int count)
{
    UP_ASSERT(count <= UP_PAGE_COLUMNS);
    page->columns = columns;
    page->column_count = count;
    page->rows = 0;
}

void up_page_row_begin(struct up_page *page)
{
    size_t width = (size_t)page->column_count;
    if (!width) return; // a table of the JSON alone
    if (up_grow(&page->cells, (int64_t)page->rows, &page->capacity, width * sizeof *page->cells,
                NULL)) {
        page->failed = true;
        return;
    }
    memset(page->cells + page->rows * width, 0, width * sizeof *page->cells);
    page->rows++;
}

static void drop_blanks_at_end(char *text)
{
    size_t length = strlen(text);
    while (length && text[length - 1] == ' ') text[--length] = 0;
}

void up_page_cell(struct up_page *page, int column, const char *text)
{
    if (page->failed || !page->rows) return; // no room for the row
    char **cell = &page->cells[(page->rows - 1) * (size_t)page->column_count + (size_t)column];
    free(*cell);
    *cell = strdup(text);
    if (!*cell) {
        page->failed = true;
        return;
    }
    drop_blanks_at_end(*cell); // of two parts of which the second is empty
    up_text_cut(*cell, page->columns[column].most);
}

static void table_widths(const struct up_page *page, int width[UP_PAGE_COLUMNS])
{
    for (int c = 0; c < page->column_count; c++) {
        width[c] = (int)up_max(page->columns[c].least, up_text_width(page->columns[c].heading));
        for (size_t r = 0; r < page->rows; r++) {
            const char *cell = page->cells[r * (size_t)page->column_count + (size_t)c];
            if (cell) width[c] = (int)up_max(width[c], up_text_width(cell));
        }
    }
}

// One row, without blanks at its end.
static void print_row(struct up_page *page, const char *const *cells, const int *width)
{
    int last = page->column_count - 1, owed = 2;
    while (last >= 0 && (!cells[last] || !*cells[last])) last--;
    for (int c = 0; c <= last; c++) {
        const char *cell = cells[c] ? cells[c] : "";
        int blanks = width[c] - up_text_width(cell);
        pad(page, owed + (page->columns[c].right ? blanks : 0));
        put(page, cell);
        owed = 2 + (page->columns[c].right ? 0 : blanks);
    }
    put(page, "\n");
}

void up_page_table_end(struct up_page *page)
{
    int width[UP_PAGE_COLUMNS] = {0};
    const char *headings[UP_PAGE_COLUMNS];
    bool headed = false;
    if (!page->failed && page->rows && page->column_count) {
        table_widths(page, width);
        for (int c = 0; c < page->column_count; c++) {
            headings[c] = page->columns[c].heading;
            if (*headings[c]) headed = true;
        }
        if (headed) {
            if (page->begun && !page->after_heading) put(page, "\n");
            emphasise(page, DIM);
            print_row(page, headings, width);
            emphasise(page, PLAIN);
        }
        for (size_t r = 0; r < page->rows; r++)
            print_row(page, (const char *const *)page->cells + r * (size_t)page->column_count,
                      width);
        page->begun = page->after_table = true;
        page->after_heading = false;
    }
    free_cells(page);
    page->columns = NULL;
}
