/* How a run ends that does not end like others: at all costs, or out of memory; and its trace. */
#include "trainer/advisor/admission.h"
#include "trainer/options/stored.h"
#include "trainer/training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- Ending at all costs -----------------------------------------------------------------------
 */

struct last_words {
    unsigned seconds;
    char why[1024];
};

static void *end_anyway(void *argument)
{
    const struct last_words *last = argument;
    sleep(last->seconds);
    fprintf(
        stderr,
        "upipe-train: %s\nupipe-train: the GPUs do not come to an end after this failure: ending "
        "without them\n",
        last->why);
    _exit(UP_FAILED);
}

// What is given to the thread stays until the process ends, which is soon.
void up_training_end_within(const struct up_training *run, unsigned seconds, const char *why)
{
    pthread_t thread;
    if (run->group.kind != UP_DEVICE_CUDA) return;
    struct last_words *last = malloc(sizeof *last);
    if (!last) return;
    last->seconds = seconds;
    snprintf(last->why, sizeof last->why, "%s", why);
    if (pthread_create(&thread, NULL, end_anyway, last))
        free(last);
    else
        pthread_detach(thread);
}

/* --- Memory that ran out, and the trace ----------------------------------------------------------
 */

// A tensor had no place, or a GPU gave no more; elsewhere it was the program's own memory, of which
// a forecast would take more.
static bool lacked_room(const struct up_training *run, const struct up_error *why)
{
    if (strstr(why->text, " memory: GPU ")) return true;
    for (int i = 0; i < run->count; i++)
        if (run->members[i].rank.out_of_memory) return true;
    return false;
}

void up_training_advise(const struct up_training *run, const struct up_error *why)
{
    struct up_admission admission;
    struct up_error error = {0};
    if (!run->forecaster || !lacked_room(run, why) ||
        up_admission_check(run->forecaster, &run->config, &run->limits, !up_training_is_dry(run),
                           &admission, &error))
        return;
    fprintf(stderr, "upipe-train: memory has run out\n");
    if (admission.fits) {
        fprintf(stderr, "  by its forecast it fits what there was when it began: does something "
                        "else take memory?\n");
        return;
    }
    if (*admission.dominant) fprintf(stderr, "  %s\n", admission.dominant);
    fprintf(stderr, "  %s\n", admission.way_out);
}

static void tell_trace(const char *path)
{
    printf("trace: %s (explained by: upipe-report ", path);
    up_put_word(stdout, path);
    puts(")");
}

void up_training_close_trace(struct up_training *run, enum up_status outcome,
                             const struct up_error *why)
{
    struct up_error error = {0};
    if (!run->recorder) return;
    bool out_of_memory = outcome && !strncmp(why->text, "out of ", strlen("out of "));
    for (int i = 0; i < run->count; i++) up_trace_close(run->members[i].trace);
    if (outcome && !out_of_memory) up_recorder_failed(run->recorder, why->text);
    if (up_recorder_finish(run->recorder,
                           !outcome        ? "ok"
                           : out_of_memory ? "out of memory"
                                           : "failed",
                           &error))
        fprintf(stderr, "upipe-train: the trace is not whole: %s\n", error.text);
    else if (up_training_leads(run))
        tell_trace(run->options->trace);
}
