/* upipe-report: finds the sub-command, parses its options, prints what it says. To add one, write
 * report/cmd_<name>.c and put it on the list here and in report.h. */
#include "report/report.h"

#include "base/version.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct up_command *const commands[] = {
    &up_command_summary, // the default
    &up_command_peak,
    &up_command_tensors,
    &up_command_timeline,
    &up_command_advise,
    &up_command_score,
    &up_command_diff,
    &up_command_check,
    &up_command_history,
    &up_command_whatis,
    &up_command_calibrate,
    NULL,
};

static const struct up_command *find_command(const char *name)
{
    const struct up_command *const *command = commands;
    while (*command && strcmp((*command)->name, name) != 0) command++;
    return *command;
}

static void print_help(const struct up_command *command, bool all)
{
    if (all) {
        printf("usage: upipe-report [COMMAND] %s [OPTIONS]\n\n"
               "Explains where the memory of a run went.\n\nCommands\n",
               command->operands);
        for (const struct up_command *const *each = commands; *each; each++)
            printf("  %-30s %s\n", (*each)->name, (*each)->summary);
        printf("\nupipe-report COMMAND --help lists a command's options.\n");
    } else {
        printf("usage: upipe-report %s %s [OPTIONS]\n\n%s\n", command->name, command->operands,
               command->summary);
    }
    up_options_help(command->options, stdout);
}

static enum up_status tell_of_itself(const struct up_command *command, bool all,
                                     const struct up_arguments *arguments, struct up_error *err)
{
    if (arguments->help)
        print_help(command, all);
    else
        printf("upipe-report %s\n", up_version);
    return fflush(stdout) ? up_fail(err, UP_FAILED, "this could not be written: %m") : UP_OK;
}

static struct up_emit_style choose_style(const struct up_report_options *options)
{
    const char *no_colour = getenv("NO_COLOR");
    setlocale(LC_CTYPE, "");
    return (struct up_emit_style){
        .json = options->json,
        .csv = options->csv,
        .utf8 = !strcmp(nl_langinfo(CODESET), "UTF-8"),
        .colour = isatty(STDOUT_FILENO) && !(no_colour && *no_colour),
    };
}

static enum up_status run_command(const struct up_command *command, const void *options,
                                  const struct up_arguments *arguments, struct up_error *err)
{
    const struct up_report_options *common = options;
    if (common->json && common->csv)
        return up_fail(err, UP_USAGE, "--csv: expected no --json beside it");
    struct up_emit_style style = choose_style(common);
    struct up_emitter *emitter = up_emitter_create(&style);
    if (!emitter) return up_fail(err, UP_FAILED, "out of memory");
    enum up_status answer = command->run(options, arguments, emitter, err);
    // A command may answer "no" (UP_FAILED) or "cannot tell" (UP_USAGE) with a report and no
    // message.
    if (answer == UP_OK || !*err->text) {
        enum up_status printed = up_emitter_print(emitter, stdout, err);
        if (printed != UP_OK) answer = printed;
    }
    up_emitter_destroy(emitter);
    return answer;
}

int main(int argc, char **argv)
{
    enum up_status rc = UP_OK;
    struct up_error error = {0};
    struct up_arguments arguments;
    const struct up_command *named = argc > 1 ? find_command(argv[1]) : NULL;
    const struct up_command *command = named ? named : commands[0];
    void *options = malloc(command->options_size);
    if (!options) {
        fprintf(stderr, "upipe-report: out of memory\n");
        return UP_FAILED;
    }
    memcpy(options, command->defaults, command->options_size);
    int skipped = named != NULL;
    UP_TRY(up_options_parse(command->options, options, argc - skipped, argv + skipped, &arguments,
                            &error));
    if (arguments.help || arguments.version)
        UP_TRY(tell_of_itself(command, !named, &arguments, &error));
    else
        UP_TRY(run_command(command, options, &arguments, &error));
out:
    free(options);
    if (*error.text) fprintf(stderr, "upipe-report: %s\n", error.text);
    return (int)rc;
}
