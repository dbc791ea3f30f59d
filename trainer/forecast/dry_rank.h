/* One rank of a config on a dry device, ready for steps: what plans and forecasts are made with. */
#ifndef UP_TRAINER_DRY_RANK_H
#define UP_TRAINER_DRY_RANK_H

#include "trainer/step/step.h"

struct up_dry_rank {
    struct up_config config;
    struct up_device *device;
    struct up_comm *world, *cp;
    struct up_rank rank;
    struct up_trainer trainer;
    struct up_rehearsal *rehearsal; // of what libraries do at first use; NULL where not asked for
    int64_t kept_high[UP_SPACE_COUNT]; // of the arenas, before the first step
};

/* `rehearse`: the step's distinct library calls are noted. Release with up_dry_rank_close, also
 * after a failure. Not to be moved in memory. */
enum up_status up_dry_rank_open(struct up_dry_rank *dry, const struct up_config *config,
                                const struct up_machine *machine, int rank, bool rehearse,
                                struct up_error *err);
/* The next step, from 0. Where `trainer.stop` is set during it, it ends after the layer that it is
 * in, as failed: "interrupted before its first step", which is that of the run it is made for. */
enum up_status up_dry_rank_step(struct up_dry_rank *dry, int64_t step, struct up_error *err);
void up_dry_rank_close(struct up_dry_rank *dry);

#endif
