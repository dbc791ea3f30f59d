/* What is looked at beside the ranks' own events while a run is traced: the GPUs, through CUPTI. */
#ifndef UP_TRAINER_PROFILE_H
#define UP_TRAINER_PROFILE_H

#include "profiler/recorder.h"
#include "trainer/group.h"

struct up_profile;

/* Before devices are made. *profile is NULL where nothing is to be looked at. */
enum up_status up_profile_open(const struct up_train_options *options, struct up_profile **profile,
                               struct up_error *err);
/* Once devices are made and the recorder knows the seats' ranks; before both start. `profile` may
 * be NULL: then devices are asked for their use alone. */
enum up_status up_profile_attach(struct up_profile *profile, const struct up_group *group,
                                 struct up_recorder *recorder, struct up_error *err);
/* On the rank's thread: what it does from now on is this rank's; NULL: nobody's. */
void up_profile_bind(struct up_profile *profile, const struct up_rank *rank);
/* Once the recorder has finished. NULL is fine. */
void up_profile_close(struct up_profile *profile);

#endif
