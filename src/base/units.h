/* Numbers as people write them, and back. Nothing here guesses: text that is not wholly a number of
 * the kind asked for, or does not fit, is refused (false), and *value is left alone. */
#ifndef UP_BASE_UNITS_H
#define UP_BASE_UNITS_H

#include <stdbool.h>
#include <stdint.h>

bool up_parse_integer(const char *text, int64_t *value);
bool up_parse_real(const char *text, double *value); // finite only

/* A count or a size: digits, optionally a decimal part, then one of K M G T or KiB MiB GiB TiB (and
 * B): powers of 1024 all, as token counts are spoken of (512K = 524288, 1.5M = 1572864). The result
 * must be whole, not negative, and below 2^63; of KiB to TiB a part of a byte is left out. */
bool up_parse_size(const char *text, int64_t *value);

enum { UP_UNITS_TEXT = 32 };

/* "0 B", "512 B", "1.5 KiB", "12.3 GiB": three or four significant digits. */
const char *up_format_bytes(char out[UP_UNITS_TEXT], uint64_t bytes);

/* 524288 -> "512K", 5242880 -> "5M", 1000 -> "1000": exact, the shortest that up_parse_size reads
 * back as the same number. */
const char *up_format_count(char out[UP_UNITS_TEXT], int64_t count);

/* "850 us", "1.42 s", "6 min 30 s", "2 h 05 min". */
const char *up_format_seconds(char out[UP_UNITS_TEXT], double seconds);

#endif
