/* Going on from a save (trainer/save.h), exactly. Learning rates, AdamW's bias correction and the
 * windows of the data follow from the number of a step alone; so the steps done, the weights and
 * the moments are all there is to restore. Ranks and techniques may differ from the save's. */
#ifndef UP_TRAINER_RESUME_H
#define UP_TRAINER_RESUME_H

#include "model/param_file.h"
#include "trainer/step/units.h"

struct up_resume {
    char *folder;         // of the save, owned; NULL: the run begins anew, all else is 0
    int64_t steps;        // done
    int64_t windows, seq; // windows a step (dp x accum x batch), and the tokens of each
    char model_name[sizeof((struct up_model *)0)->name];
    char model_hash[17];
    struct up_param_reader *moments;
};

/* `path`, of --resume: a save, or a folder of saves of which the newest is meant. Reads its record.
 * UP_USAGE where there is none, or it is damaged. */
enum up_status up_resume_find(struct up_resume *resume, const char *path, struct up_error *err);

/* UP_USAGE, saying what differs, if `config` would not continue the saved training: it has another
 * model, sequence length, or number of windows a step. Gives config's model its first name back. */
enum up_status up_resume_check(const struct up_resume *resume, struct up_config *config,
                               struct up_error *err);

/* Opens the moments, for a config that has been checked. The weights are up_weights_open's. */
enum up_status up_resume_open(struct up_resume *resume, const struct up_model *model,
                              struct up_error *err);
/* This rank's share of the moments; may be called on several ranks at once. */
enum up_status up_resume_load(const struct up_resume *resume, struct up_units *units,
                              struct up_error *err);
void up_resume_release(struct up_resume *resume);

#endif
