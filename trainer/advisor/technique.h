/* Techniques as changes of a config: what the advisor tries one after the other, and how a change
 * is said in options. Each step goes on training the same sequences: what --cp takes from --dp, and
 * a smaller --batch, goes to --accum. */
#ifndef UP_TRAINER_TECHNIQUE_H
#define UP_TRAINER_TECHNIQUE_H

#include "model/config.h"

enum up_technique {
#define UP_TECHNIQUE(id, name, does) UP_TECHNIQUE_##id,
#include "trainer/advisor/techniques.def"
#undef UP_TECHNIQUE
    UP_TECHNIQUE_COUNT
};
extern const char *const up_technique_names[UP_TECHNIQUE_COUNT];
extern const char *const up_technique_texts[UP_TECHNIQUE_COUNT];

/* `from` with the technique on, as strong as --stack would have it. False where it is on already or
 * not to be had: *to is then left alone. */
bool up_technique_apply(const struct up_config *from, enum up_technique technique,
                        struct up_config *to);

/* `from` with another degree of context parallelism, the same ranks and the same sequences a step;
 * stages of heads become legal ones. False where that is impossible. */
bool up_config_set_cp(const struct up_config *from, int64_t cp, struct up_config *to);

/* The tile that --stack would choose, halved until it makes some slices of the local sequence. */
int64_t up_technique_tile(const struct up_config *config, int64_t usual);

/* What has to be typed after the options of `from` to get `to`: "--tile-loss 1024 --offload host";
 * "" where they are the same. Both have the same model. Cut where it is longer than `size`. */
void up_config_change_text(const struct up_config *from, const struct up_config *to, char *text,
                           size_t size);
enum { UP_CHANGE_TEXT = 512 }; // holds any change

#endif
