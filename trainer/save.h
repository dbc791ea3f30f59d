/* Saves of a training, from which it can go on exactly, and which transformers can load.
 *
 *   DIR/step-00000100/     100 steps done
 *     config.json            the model, as Hugging Face has it
 *     model.safetensors      weights, fp32, Hugging Face's names; a tied head is not there
 *     optimizer.safetensors  AdamW's moments, fp32: "m." and "v." before those names
 *     trainer.json           how far the training is, and what must not change
 *
 * A save is written under DIR/.step-00000100.partial, brought to the disk, and renamed: what has a
 * name without a dot is whole. Saves are never deleted; what a killed run left partial is taken
 * away by the next save. */
#ifndef UP_TRAINER_SAVE_H
#define UP_TRAINER_SAVE_H

#include "trainer/options/options.h"

#define UP_SAVE_WEIGHTS  "model.safetensors"
#define UP_SAVE_MOMENTS  "optimizer.safetensors"
#define UP_SAVE_RECORD   "trainer.json"
#define UP_SAVE_PREFIX_M "m."
#define UP_SAVE_PREFIX_V "v."
#define UP_SAVE_FORMAT   "upipe save"
enum { UP_SAVE_VERSION = 1 }; // of trainer.json; readers take this one and all before it

/* Where a run saves. All ranks share it and leave it as it is. */
struct up_saver {
    const char *dir; // NULL: the run does not save
    const struct up_train_options *options;
    const struct up_config *config;
    int fd;       // of the directory, locked against other runs; -1 where rank 0 is elsewhere
    bool created; // by this run
};

/* Checks that saves after `steps_done` steps can go to --save's directory, which is made if it is
 * not there; without --save, and on dry, the run does not save. Of several processes, which share
 * the directory, only rank 0's (`leads`) looks at it, and holds it. What is given outlives the
 * saver. UP_USAGE: no directory that can be written, another run saves there, or it holds saves
 * beyond `steps_done`, which are another training's. */
enum up_status up_saver_open(struct up_saver *saver, const struct up_train_options *options,
                             const struct up_config *config, int64_t steps_done, bool leads,
                             struct up_error *err);
/* A directory that was made, and into which nothing was saved, is taken away. */
void up_saver_close(struct up_saver *saver);

/* Whether a save is due when that many steps are done: every N, and at the end. */
bool up_saver_due(const struct up_saver *saver, int64_t steps_done);

/* To be called by all ranks between two steps: each writes its share of the state. UP_FAILED leaves
 * nothing partial behind; the rank that fails must abort the group, as in a step. */
enum up_status up_saver_save(const struct up_saver *saver, struct up_units *units,
                             int64_t steps_done, struct up_error *err);

enum { UP_SAVE_NAME = 40 };

/* "step-00000100". */
const char *up_save_name(char out[UP_SAVE_NAME], int64_t steps_done);
/* "folder/name", for free(); NULL when memory is short. */
char *up_save_path(const char *folder, const char *name);
/* The steps of the newest save in the directory; -1 if there is none, or it cannot be read. */
int64_t up_save_newest(const char *dir);

#endif
