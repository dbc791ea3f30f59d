/* The text side of the emitter: lines that wrap and tables that align. Knows nothing of JSON or of
 * what the words mean. */
#ifndef UP_REPORT_PAGE_H
#define UP_REPORT_PAGE_H

#include "report/emit/emit.h"

enum { UP_PAGE_WIDTH = 100, UP_PAGE_LABEL = 12, UP_PAGE_COLUMNS = 16 };

struct up_page;

struct up_page *up_page_create(bool colour); // NULL: no memory
void up_page_destroy(struct up_page *page);  // NULL is fine
/* The whole text, owned by the page; NULL if memory ran out at any time. */
const char *up_page_text(struct up_page *page);
int up_page_lines(struct up_page *page); // so far

void up_page_heading_begin(struct up_page *page, bool joined); // to the table that follows
void up_page_line_begin(struct up_page *page, const char *label);
void up_page_piece(struct up_page *page, const char *form, const char *value);
void up_page_line_end(struct up_page *page);
void up_page_warning(struct up_page *page, const char *text);

void up_page_table_begin(struct up_page *page, const struct up_column *columns, int count);
void up_page_row_begin(struct up_page *page);
void up_page_cell(struct up_page *page, int column, const char *text);
void up_page_table_end(struct up_page *page);

#endif
