#include "report/emit/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Length of the UTF-8 sequence at `text` and its code point; 0 for what is none (a stray byte, an
 * overlong form, a surrogate). */
static int decode(const unsigned char *text, uint32_t *point)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int length = *text < 0x80 ? 1 : 0;
    if (*text >> 5 == 6) length = 2;
    if (*text >> 4 == 14) length = 3;
    if (*text >> 3 == 30) length = 4;
    if (!length) return 0;
    *point = length == 1 ? *text : *text & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if (text[i] >> 6 != 2) return 0;
        *point = *point << 6 | (text[i] & 0x3f);
    }
    bool surrogate = *point >= 0xd800 && *point < 0xe000;
    return *point < least[length] || *point > 0x10ffff || surrogate ? 0 : length;
}

static bool harmless(uint32_t point)
{
    bool control = point < 0x20 || (point >= 0x7f && point < 0xa0);
    bool directs = (point >= 0x200b && point <= 0x200f) || (point >= 0x2028 && point <= 0x202e) ||
                   (point >= 0x2066 && point <= 0x2069);
    return !control && !directs;
}

char *up_text_clean(const char *text, bool utf8)
{
    const unsigned char *from = (const unsigned char *)text;
    char *clean = malloc(strlen(text) + 1), *to = clean;
    if (!clean) return NULL;
    while (*from) {
        uint32_t point = 0;
        int length = decode(from, &point);
        if (length && harmless(point) && (utf8 || length == 1)) {
            memcpy(to, from, (size_t)length);
            to += length;
        } else {
            *to++ = '?';
        }
        from += length ? length : 1;
    }
    *to = 0;
    return clean;
}

static bool starts_character(char byte)
{
    return ((unsigned char)byte & 0xc0) != 0x80;
}

int up_text_width(const char *text)
{
    int width = 0;
    for (; *text; text++) width += starts_character(*text);
    return width;
}

void up_text_cut(char *text, int width)
{
    if (width < 1 || up_text_width(text) <= width) return;
    for (int kept = 0; *text; text++) {
        if (!starts_character(*text) || ++kept < width) continue;
        text[0] = '~';
        text[1] = 0;
        return;
    }
}

const char *up_text_bar(char out[UP_BAR_TEXT], double share, int width, bool utf8)
{
    static const char *const eighth[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    if (width > UP_BAR_MAX) width = UP_BAR_MAX;
    double clamped = share > 0 ? fmin(share, 1) : 0;
    char *to = out;
    if (!utf8) {
        int full = (int)lround(clamped * width);
        memset(out, '#', (size_t)full);
        out[full] = 0;
        return out;
    }
    int eighths = (int)lround(clamped * width * 8);
    for (; eighths >= 8; eighths -= 8) to = stpcpy(to, "█");
    stpcpy(to, eighth[eighths]);
    return out;
}

const char *up_text_bytes(char out[UP_UNITS_TEXT], int64_t bytes)
{
    if (bytes >= 0) return up_format_bytes(out, (uint64_t)bytes);
    char magnitude[UP_UNITS_TEXT];
    snprintf(out, UP_UNITS_TEXT, "-%.30s", up_format_bytes(magnitude, -(uint64_t)bytes));
    return out;
}

const char *up_text_thousands(char out[UP_UNITS_TEXT], double count)
{
    static const char *const unit[] = {"", " K", " M", " B", " T"};
    int power = 0;
    while (count >= 999.5 && power < 4) {
        count /= 1000;
        power++;
    }
    int decimals = power == 0 ? 0 : count < 9.995 ? 2 : count < 99.95 ? 1 : 0;
    snprintf(out, UP_UNITS_TEXT, "%.*f%s", decimals, count, unit[power]);
    return out;
}
