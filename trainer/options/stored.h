/* A run's config out of its run.db (meta.config, written by upipe-train), so that it can be
 * forecast again, changed, and typed. */
#ifndef UP_TRAINER_STORED_H
#define UP_TRAINER_STORED_H

#include "trainer/options/options.h"

#include <jansson.h>
#include <stdio.h>

struct up_stored_run {
    struct up_config config;
    struct up_machine machine; // its figures, with the capacities that the run had
    bool has_machine;          // false: "generic" stands in
    struct up_train_options options;
    json_t *root; // what the options' texts are in
};

/* `text` is meta.config. `source` is what messages begin with. UP_USAGE for what upipe-train did
 * not write, and for configs that no forecast could be made of in reasonable time. */
enum up_status up_stored_run_read(const char *text, const char *source, struct up_stored_run *run,
                                  struct up_error *err);
void up_stored_run_release(struct up_stored_run *run); // a zeroed one is fine

/* The whole command that makes the run with `config` instead of its own, quoted for a shell:
 * "upipe-train --model tiny --data book.txt ...". What the options leave at its default is left
 * out. What the run wrote gets another name ("run.next.db"), and a save that cannot go on with the
 * config's sequences gives its weights alone. To be freed; NULL when memory is short. */
char *up_stored_command(const struct up_stored_run *run, const struct up_config *config);

/* As a POSIX shell takes it for one word. */
void up_put_word(FILE *out, const char *text);

#endif
