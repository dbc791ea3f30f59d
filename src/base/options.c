#include "base/options.h"
#include "base/units.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const struct up_option *up_option_find(const struct up_option *table, const char *name)
{
    for (; table->name; table++)
        if (!strcmp(table->name, name)) return table;
    return NULL;
}

// The index of the word of `length` bytes among '|'-separated `words`, or -1; *counted tells
// whether
// "[:N]" follows it there.
static int choice_index(const char *words, const char *word, size_t length, bool *counted)
{
    for (int index = 0;; index++) {
        size_t span = strcspn(words, "|[");
        *counted = words[span] == '[';
        if (span == length && !memcmp(words, word, length)) return index;
        words += strcspn(words, "|");
        if (!*words++) return -1;
    }
}

static bool parse_counted(const char *words, const char *text, struct up_counted *value)
{
    bool counted = false;
    size_t length = strcspn(text, ":");
    value->count = 0;
    value->choice = choice_index(words, text, length, &counted);
    if (value->choice < 0) return false;
    if (!text[length]) return true;
    return counted && up_parse_integer(text + length + 1, &value->count) && value->count >= 1;
}

static enum up_status refuse(const struct up_option *option, const char *text, struct up_error *err)
{
    char expected[256], low[UP_UNITS_TEXT], high[UP_UNITS_TEXT];
    bool size = option->kind == UP_OPTION_SIZE; // the others take no K and M
    snprintf(low, sizeof low, "%lld", (long long)option->min);
    snprintf(high, sizeof high, "%lld", (long long)option->max);
    if (size) up_format_count(low, option->min);
    if (size) up_format_count(high, option->max);
    switch (option->kind) {
    case UP_OPTION_CHOICE:
    case UP_OPTION_COUNTED:
        snprintf(expected, sizeof expected, "%s", option->value);
        break;
    case UP_OPTION_SPAN:
        snprintf(expected, sizeof expected, "A:B with 0 <= A <= B");
        break;
    case UP_OPTION_REAL:
        if (option->real_max > option->real_min)
            snprintf(expected, sizeof expected, "a number %s %g and %s %g",
                     option->real_min_excluded ? "above" : "from", option->real_min,
                     option->real_max_excluded ? "below" : "at most", option->real_max);
        else
            snprintf(expected, sizeof expected, "a number %s %g",
                     option->real_min_excluded ? "above" : "from", option->real_min);
        break;
    case UP_OPTION_PERCENT:
        snprintf(expected, sizeof expected, "a percentage such as 1%% or 0.5%%, from %g%%",
                 100 * option->real_min);
        break;
    default:
        snprintf(expected, sizeof expected, "%s from %s%s%s",
                 size ? "a size such as 4096, 512K or 8GiB," : "a whole number", low,
                 option->max ? " to " : "", option->max ? high : "");
    }
    return up_fail(err, UP_USAGE, "--%s: expected %s%s%s, not '%s'", option->name, expected,
                   option->off ? ", or " : "", option->off ? option->off : "", text);
}

static bool parse_span(const char *text, struct up_span *span)
{
    char first[UP_UNITS_TEXT];
    const char *colon = strchr(text, ':');
    if (!colon || (size_t)(colon - text) >= sizeof first) return false;
    memcpy(first, text, (size_t)(colon - text));
    first[colon - text] = 0;
    return up_parse_integer(first, &span->first) && up_parse_integer(colon + 1, &span->last) &&
           span->first >= 0 && span->first <= span->last;
}

// "1%", "1" and "0.5%" of a hundred.
static bool parse_percent(const char *text, double *fraction)
{
    char number[64];
    size_t length = strlen(text);
    if (length && text[length - 1] == '%') length--;
    if (length >= sizeof number) return false;
    memcpy(number, text, length);
    number[length] = 0;
    if (!up_parse_real(number, fraction)) return false;
    *fraction /= 100;
    return true;
}

enum up_status up_option_set(const struct up_option *option, const char *text, void *target,
                             struct up_error *err)
{
    void *field = (char *)target + option->field;
    int64_t integer = 0;
    double real = 0;
    switch (option->kind) {
    case UP_OPTION_FLAG:
        *(bool *)field = true;
        return UP_OK;
    case UP_OPTION_TEXT:
        if (!*text) return up_fail(err, UP_USAGE, "--%s: expected %s", option->name, option->value);
        *(const char **)field = text;
        return UP_OK;
    case UP_OPTION_CHOICE: {
        struct up_counted choice;
        if (!parse_counted(option->value, text, &choice)) return refuse(option, text, err);
        *(int *)field = choice.choice;
        return UP_OK;
    }
    case UP_OPTION_COUNTED: {
        struct up_counted counted;
        if (!parse_counted(option->value, text, &counted)) return refuse(option, text, err);
        *(struct up_counted *)field = counted;
        return UP_OK;
    }
    case UP_OPTION_SPAN: {
        struct up_span span;
        if (!parse_span(text, &span)) return refuse(option, text, err);
        *(struct up_span *)field = span;
        return UP_OK;
    }
    case UP_OPTION_REAL:
        if (!up_parse_real(text, &real) || real < option->real_min ||
            (option->real_min_excluded && real <= option->real_min) ||
            (option->real_max > option->real_min && real > option->real_max) ||
            (option->real_max_excluded && real >= option->real_max))
            return refuse(option, text, err);
        *(double *)field = real;
        return UP_OK;
    case UP_OPTION_PERCENT:
        if (option->off && !strcmp(text, option->off)) {
            *(double *)field = INFINITY;
            return UP_OK;
        }
        if (!parse_percent(text, &real) || real < option->real_min ||
            (option->real_max > option->real_min && real > option->real_max))
            return refuse(option, text, err);
        *(double *)field = real;
        return UP_OK;
    case UP_OPTION_INTEGER:
    case UP_OPTION_SIZE:
        if (option->off && !strcmp(text, option->off)) {
            *(int64_t *)field = 0;
            return UP_OK;
        }
        if (!(option->kind == UP_OPTION_SIZE ? up_parse_size(text, &integer)
                                             : up_parse_integer(text, &integer)) ||
            integer < option->min || (option->max && integer > option->max))
            return refuse(option, text, err);
        *(int64_t *)field = integer;
        return UP_OK;
    }
    UP_BUG("option --%s has an unknown kind", option->name);
}

// Edit distance of two short words, for "did you mean".
static size_t distance(const char *a, const char *b)
{
    size_t row[32], length = strlen(b);
    if (length >= 32 || strlen(a) >= 32) return 99;
    for (size_t j = 0; j <= length; j++) row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= length; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[length];
}

static enum up_status unknown(const struct up_option *table, const char *name, struct up_error *err)
{
    const struct up_option *nearest = NULL;
    size_t least = 4;
    for (const struct up_option *option = table; option->name; option++) {
        size_t d = distance(name, option->name);
        if (d < least && d < strlen(name)) {
            least = d;
            nearest = option;
        }
    }
    return up_fail(err, UP_USAGE, "unknown option --%s%s%s%s (--help lists them)", name,
                   nearest ? ": did you mean --" : "", nearest ? nearest->name : "",
                   nearest ? "?" : "");
}

// The row that a word such as --name, --name=value or -o means; *value is what follows the equals
// sign, or NULL.
static enum up_status find_word(const struct up_option *table, const char *word,
                                const struct up_option **found, const char **value,
                                struct up_error *err)
{
    char name[64];
    const char *equals = strchr(word, '=');
    *value = NULL;
    if (strncmp(word, "--", 2) != 0) {
        for (*found = table; (*found)->name; (*found)++)
            if (word[1] && word[1] == (*found)->letter && !word[2]) return UP_OK;
        return up_fail(err, UP_USAGE, "unknown option %s: options begin with --", word);
    }
    size_t length = equals ? (size_t)(equals - word - 2) : strlen(word + 2);
    if (length >= sizeof name) return up_fail(err, UP_USAGE, "unknown option %.60s...", word);
    memcpy(name, word + 2, length);
    name[length] = 0;
    *found = up_option_find(table, name);
    if (!*found) return unknown(table, name, err);
    if ((*found)->kind == UP_OPTION_FLAG && equals)
        return up_fail(err, UP_USAGE, "--%s takes no value", name);
    *value = equals ? equals + 1 : NULL;
    return UP_OK;
}

static enum up_status add_positional(struct up_arguments *arguments, const char *word,
                                     struct up_error *err)
{
    if (arguments->positional_count == UP_POSITIONAL_MAX)
        return up_fail(err, UP_USAGE, "too many arguments, from '%s' on", word);
    arguments->positional[arguments->positional_count++] = word;
    return UP_OK;
}

enum up_status up_options_parse(const struct up_option *table, void *target, int argc, char **argv,
                                struct up_arguments *arguments, struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool options_ended = false;
    arguments->positional_count = 0;
    arguments->help = arguments->version = false;
    for (const struct up_option *option = table; option->name; option++)
        if (option->fallback) UP_ASSERT(!up_option_set(option, option->fallback, target, NULL));

    for (int i = 1; i < argc; i++) {
        const struct up_option *option = NULL;
        const char *word = argv[i], *value = NULL;
        if (options_ended || strncmp(word, "-", 1) != 0 || !strcmp(word, "-")) {
            UP_TRY(add_positional(arguments, word, err));
            continue;
        }
        if (!strcmp(word, "--")) {
            options_ended = true;
            continue;
        }
        if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            arguments->help = true;
            continue;
        }
        if (!strcmp(word, "--version")) {
            arguments->version = true;
            continue;
        }
        UP_TRY(find_word(table, word, &option, &value, err));
        if (option->kind != UP_OPTION_FLAG && !value) {
            if (i + 1 == argc)
                UP_TRY(up_fail(err, UP_USAGE, "--%s: expected %s after it", option->name,
                               option->value));
            value = argv[++i];
        }
        UP_TRY(up_option_set(option, value, target, err));
    }
out:
    return rc;
}

static void choice_text(const char *words, int index, int64_t count, char *text, size_t size)
{
    for (; index > 0; index--) words = strchr(words, '|') + 1;
    int length = snprintf(text, size, "%.*s", (int)strcspn(words, "|["), words);
    if (count) snprintf(text + length, size - (size_t)length, ":%" PRId64, count);
}

const char *up_option_text(const struct up_option *option, const void *target, char *text,
                           size_t size)
{
    const void *field = (const char *)target + option->field;
    switch (option->kind) {
    case UP_OPTION_FLAG:
        snprintf(text, size, "%s", *(const bool *)field ? "yes" : "no");
        break;
    case UP_OPTION_TEXT:
        if (!*(const char *const *)field) return NULL;
        snprintf(text, size, "%s", *(const char *const *)field);
        break;
    case UP_OPTION_CHOICE:
        if (*(const int *)field < 0) return NULL;
        choice_text(option->value, *(const int *)field, 0, text, size);
        break;
    case UP_OPTION_COUNTED:
        choice_text(option->value, ((const struct up_counted *)field)->choice,
                    ((const struct up_counted *)field)->count, text, size);
        break;
    case UP_OPTION_SPAN:
        snprintf(text, size, "%" PRId64 ":%" PRId64, ((const struct up_span *)field)->first,
                 ((const struct up_span *)field)->last);
        break;
    case UP_OPTION_REAL:
        snprintf(text, size, "%.17g", *(const double *)field);
        break;
    case UP_OPTION_PERCENT:
        if (option->off && isinf(*(const double *)field))
            snprintf(text, size, "%s", option->off);
        else
            snprintf(text, size, "%.15g%%", 100 * *(const double *)field);
        break;
    case UP_OPTION_INTEGER:
    case UP_OPTION_SIZE:
        if (option->off && *(const int64_t *)field == 0)
            snprintf(text, size, "%s", option->off);
        else
            snprintf(text, size, "%" PRId64, *(const int64_t *)field);
    }
    return text;
}

void up_options_help(const struct up_option *table, FILE *out)
{
    for (const struct up_option *option = table; option->name; option++) {
        char left[96];
        if (option->group) fprintf(out, "\n%s\n", option->group);
        char letter[8] = "";
        if (option->letter) snprintf(letter, sizeof letter, "-%c, ", option->letter);
        snprintf(left, sizeof left, "%s--%s %s", letter, option->name,
                 option->value ? option->value : "");
        if (strlen(left) > 30)
            fprintf(out, "  %s\n  %30s ", left, "");
        else
            fprintf(out, "  %-30s ", left);
        fputs(option->help, out);
        const char *shown = option->shown ? option->shown : option->fallback;
        if (shown) fprintf(out, " [%s]", shown);
        fputc('\n', out);
    }
    fprintf(out, "  %-30s %s\n", "-h, --help; --version", "this; which upipe it is");
}

void up_options_markdown(const struct up_option *table, FILE *out)
{
    for (const struct up_option *option = table; option->name; option++) {
        if (option->group)
            fprintf(out, "%s**%s**\n\n| option | meaning | default |\n|---|---|---|\n",
                    option == table ? "" : "\n", option->group);
        fputs("| `", out);
        if (option->letter) fprintf(out, "-%c`, `", option->letter);
        fprintf(out, "--%s", option->name);
        for (const char *c = option->value ? " " : ""; *c; c++) fputc(*c, out);
        for (const char *c = option->value ? option->value : ""; *c; c++) {
            if (*c == '|') fputc('\\', out);
            fputc(*c, out);
        }
        const char *shown = option->shown ? option->shown : option->fallback;
        fprintf(out, "` | %s | %s |\n", option->help, shown ? shown : "");
    }
}
