/* Text that came from a file, made fit for a terminal; and pictures of numbers. */
#ifndef UP_REPORT_TEXT_H
#define UP_REPORT_TEXT_H

#include "base/base.h"

/* A copy (to be freed; NULL when memory is short) that is valid UTF-8 and harmless: control
 * characters, characters that turn the direction of text, and bytes that are no UTF-8 become '?'.
 * Without `utf8` so does all else beyond ASCII. */
char *up_text_clean(const char *text, bool utf8);

int up_text_width(const char *text); // characters, of valid UTF-8

/* Cuts valid UTF-8 to `width` characters in place; the last one kept becomes '~'. */
void up_text_cut(char *text, int width);

enum { UP_BAR_MAX = 40, UP_BAR_TEXT = 3 * UP_BAR_MAX + 1 };
/* `share` (clamped to 0..1) of `width` characters: eighths of blocks, or '#'. */
const char *up_text_bar(char out[UP_BAR_TEXT], double share, int width, bool utf8);

/* up_format_bytes for what should not, but may, be negative. */
const char *up_text_bytes(char out[UP_UNITS_TEXT], int64_t bytes);

/* 98304 -> "98.3 K", 8030261248 -> "8.03 B": thousands, as parameters are spoken of. */
const char *up_text_thousands(char out[UP_UNITS_TEXT], double count);

#endif
