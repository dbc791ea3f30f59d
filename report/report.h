/* upipe-report: what a sub-command is, and what they share.
 *
 * A sub-command is one file, cmd_<name>.c, that defines one struct up_command; main.c lists them.
 * It reads its run.db with analysis.h, peak.h, live.h and replay.h, and says what it found through
 * one emitter (emit.h), which makes the text and the JSON of the same calls.
 */
#ifndef UP_REPORT_REPORT_H
#define UP_REPORT_REPORT_H

#include "base/base.h"
#include "report/emit/emit.h"

/* Every sub-command's options struct begins with this, and its table with UP_REPORT_OPTIONS. */
struct up_report_options {
    bool json;
    bool csv; // of commands that have UP_REPORT_CSV in their table
};
#define UP_REPORT_CSV                                                                              \
    {                                                                                              \
        .name = "csv", .kind = UP_OPTION_FLAG, .field = offsetof(struct up_report_options, csv),   \
        .help = "the table as comma-separated values, under the names of the JSON's fields"        \
    }
#define UP_REPORT_OPTIONS                                                                          \
    {                                                                                              \
        .name = "json", .kind = UP_OPTION_FLAG, .field = offsetof(struct up_report_options, json), \
        .help = "as JSON; fields are only ever added", .group = "Output"                           \
    }

struct up_command {
    const char *name;
    const char *summary;             // one line, for --help
    const char *operands;            // what stands besides options: "RUN.DB"
    const struct up_option *options; // ended by {0}
    size_t options_size;             // of the options struct, which begins with up_report_options
    const void *defaults;            // its values before parsing
    /* UP_OK, UP_FAILED where the answer is "no", UP_USAGE; the emitter's output is printed on UP_OK
     * and wherever there is no message in `err`. */
    enum up_status (*run)(const void *options, const struct up_arguments *arguments,
                          struct up_emitter *emitter, struct up_error *err);
};

extern const struct up_command up_command_summary, up_command_peak, up_command_tensors,
    up_command_timeline, up_command_advise, up_command_diff, up_command_check, up_command_history,
    up_command_score, up_command_whatis, up_command_calibrate;

#endif
