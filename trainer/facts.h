/* What a trace says of its run before the first step: the rows of meta (docs/trace.md). */
#ifndef UP_TRAINER_FACTS_H
#define UP_TRAINER_FACTS_H

#include "store/store.h"
#include "trainer/launch.h"

/* What the rows are made of. All must stay while the rows are used. */
struct up_about {
    const char *command; // the whole line
    const struct up_train_options *options;
    const struct up_config *config;
    const struct up_machine *machine;
    const struct up_launch *launch;
    enum up_device_kind device;
    int64_t steps; // that this run is to make
};

struct up_facts {
    struct up_store_meta entry[32];
    int count;
    char value[32][64]; // of entries that are no texts already
    char *config;
};

/* False when memory is short. Release also then. */
bool up_facts_collect(struct up_facts *facts, const struct up_about *about);
void up_facts_release(struct up_facts *facts);

#endif
