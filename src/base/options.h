/* One table per program: it parses the command line, prints --help, writes the README's option
 * tables and names the options stored in run.db. The table's rows fill a plain struct of the
 * program's own.
 *
 *   static const struct up_option options[] = {
 *       {.name = "seq", .kind = UP_OPTION_SIZE, .field = offsetof(struct opts, seq),
 *        .fallback = "8K", .min = 1, .value = "TOKENS", .help = "global tokens per sequence"},
 *       ...
 *       {0}};
 *
 * Both `--name value` and `--name=value` are read; of an option given twice the last wins; `--`
 * ends the options.
 */
#ifndef UP_BASE_OPTIONS_H
#define UP_BASE_OPTIONS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum up_option_kind {
    UP_OPTION_FLAG,    // bool; takes no value
    UP_OPTION_INTEGER, // int64_t, within min..max
    UP_OPTION_SIZE,    // int64_t, within min..max; K M G and KiB MiB GiB are understood
    UP_OPTION_REAL,    // double, within real_min..real_max
    UP_OPTION_TEXT,    // const char *, points into argv or at the fallback
    UP_OPTION_CHOICE,  // int: the index in `value`, whose words are separated by '|'
    UP_OPTION_COUNTED, // struct up_counted: a choice some of whose words take ":N", N >= 1
    UP_OPTION_SPAN,    // struct up_span: "A:B", 0 <= A <= B
    UP_OPTION_PERCENT, // double, as a fraction: "1%" and "1" are 0.01; within real_min..real_max
};

struct up_counted {
    int choice;    // the index among the words, which are written as "none|block|attn[:N]"
    int64_t count; // N, or 0 where it was not given
};

struct up_span {
    int64_t first, last; // both inclusive
};

struct up_option {
    const char *name; // without dashes; NULL ends the table
    char letter;      // "-o" for it, or 0
    enum up_option_kind kind;
    size_t field;         // offset in the program's struct
    const char *fallback; // as a user would type it; NULL: left as the program set it before
    const char *shown;    // the default as --help tells it, where the program works it out itself
    const char *value;    // what --help calls the value; the words, for a choice
    const char *help;
    const char *group; // heading in --help and the README, on the first row of each group
    int64_t min, max;  // inclusive; max 0 means no upper limit
    double real_min, real_max;
    bool real_min_excluded; // the value must be above real_min
    bool real_max_excluded; // the value must be below real_max
    const char *off;        // a word that stands for 0 (of a percentage: for no bound), such as
                            // "off"; NULL: none
};

/* What was on the command line besides options: words, --help and --version. */
enum { UP_POSITIONAL_MAX = 4096 };
struct up_arguments {
    const char *positional[UP_POSITIONAL_MAX];
    int positional_count;
    bool help, version;
};

/* Sets the fallbacks, then reads argv[1..argc-1]. UP_USAGE with the option's name and what was
 * expected; `target` then holds nothing to rely on. */
enum up_status up_options_parse(const struct up_option *table, void *target, int argc, char **argv,
                                struct up_arguments *arguments, struct up_error *err);

/* Reads one value as the command line would. */
enum up_status up_option_set(const struct up_option *option, const char *text, void *target,
                             struct up_error *err);

const struct up_option *up_option_find(const struct up_option *table, const char *name);

/* The value as a user would type it. `text` must hold 64 bytes or the option's text, whichever is
 * more; NULL for a TEXT option that is not set. */
const char *up_option_text(const struct up_option *option, const void *target, char *text,
                           size_t size);

void up_options_help(const struct up_option *table, FILE *out);
void up_options_markdown(const struct up_option *table, FILE *out);

#endif
