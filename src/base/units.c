#include "base/units.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool up_parse_integer(const char *text, int64_t *value)
{
    char *end = NULL;
    errno = 0;
    if (!isdigit((unsigned char)text[text[0] == '-'])) return false;
    long long parsed = strtoll(text, &end, 10);
    if (errno || *end) return false;
    *value = parsed;
    return true;
}

bool up_parse_real(const char *text, double *value)
{
    char *end = NULL;
    char first = text[text[0] == '-'];
    if (!isdigit((unsigned char)first) && first != '.') return false;
    if (strchr(text, 'x') || strchr(text, 'X')) return false; // hexadecimal
    double parsed = strtod(text, &end);
    if (end == text || *end || !isfinite(parsed)) return false;
    *value = parsed;
    return true;
}

// The power of two that a unit stands for, or -1.
static int unit_shift(const char *unit)
{
    static const char letters[] = "KMGT";
    if (!strcmp(unit, "") || !strcmp(unit, "B")) return 0;
    const char *letter = strchr(letters, toupper((unsigned char)unit[0]));
    if (!letter || (strcmp(unit + 1, "") != 0 && strcmp(unit + 1, "iB") != 0)) return -1;
    return 10 * (int)(letter - letters + 1);
}

bool up_parse_size(const char *text, int64_t *value)
{
    const char *at = text;
    int64_t whole = 0, fraction = 0, place = 1;
    int fraction_digits = 0;

    if (!isdigit((unsigned char)*at)) return false;
    for (; isdigit((unsigned char)*at); at++)
        if (__builtin_mul_overflow(whole, 10, &whole) ||
            __builtin_add_overflow(whole, *at - '0', &whole))
            return false;
    if (*at == '.') {
        for (at++; isdigit((unsigned char)*at); at++) {
            if (++fraction_digits > 12) return false;
            fraction = fraction * 10 + (*at - '0');
            place *= 10;
        }
        if (!fraction_digits) return false;
    }
    int shift = unit_shift(at);
    if (shift < 0 || whole > INT64_MAX >> shift) return false;
    __int128 part = (__int128)fraction << shift;
    bool bytes = shift && at[1]; // KiB to TiB: reports print 79.2 GiB, which no byte ends
    if (part % place && !bytes) return false;
    if (__builtin_add_overflow(whole << shift, (int64_t)(part / place), &whole)) return false;
    *value = whole;
    return true;
}

const char *up_format_bytes(char out[UP_UNITS_TEXT], uint64_t bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int power = 0;
    double amount = (double)bytes;
    // 1023.96 would print as "1024.0": step up before that.
    while (amount >= 1023.95 && power < 6) {
        amount /= 1024;
        power++;
    }
    if (power == 0 && bytes < 1024)
        snprintf(out, UP_UNITS_TEXT, "%d B", (int)bytes);
    else
        snprintf(out, UP_UNITS_TEXT, amount < 9.995 ? "%.2f %s" : "%.1f %s", amount, unit[power]);
    return out;
}

const char *up_format_count(char out[UP_UNITS_TEXT], int64_t count)
{
    static const char *const unit[] = {"", "K", "M", "G", "T"};
    int power = 0;
    while (count && count % 1024 == 0 && power < 4) {
        count /= 1024;
        power++;
    }
    snprintf(out, UP_UNITS_TEXT, "%lld%s", (long long)count, unit[power]);
    return out;
}

const char *up_format_seconds(char out[UP_UNITS_TEXT], double seconds)
{
    if (!(seconds >= 0) || seconds > 1e9)
        snprintf(out, UP_UNITS_TEXT, "unknown");
    else if (seconds < 1e-3)
        snprintf(out, UP_UNITS_TEXT, "%.0f us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(out, UP_UNITS_TEXT, "%.1f ms", seconds * 1e3);
    else if (seconds < 99.995)
        snprintf(out, UP_UNITS_TEXT, "%.2f s", seconds);
    else if (seconds < 3600)
        snprintf(out, UP_UNITS_TEXT, "%d min %02d s", (int)seconds / 60, (int)seconds % 60);
    else
        snprintf(out, UP_UNITS_TEXT, "%d h %02d min", (int)(seconds / 3600),
                 (int)fmod(seconds / 60, 60));
    return out;
}
