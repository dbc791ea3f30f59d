/* What memory a run may take, and whether a forecast holds to it. */
#ifndef UP_TRAINER_LIMITS_H
#define UP_TRAINER_LIMITS_H

#include "trainer/forecast/forecast.h"

struct up_limits {
    int64_t device_bytes; // of each device, what libraries take included; 0: not known
    int64_t host_bytes;   // of a node, for all its ranks together; 0: not known
    int64_t node_ranks;   // ranks that share a host; 0: all of them
    bool shared;          // device memory is the host's (cpu ranks): both count against host_bytes
};

/* The machine's, the device's no more than `device_bytes` unless that is 0. */
struct up_limits up_limits_of(const struct up_machine *machine, enum up_device_kind as,
                              int64_t device_bytes);

/* Ranks of the config that share a host. */
int64_t up_limits_ranks(const struct up_limits *limits, const struct up_config *config);
/* What all ranks of a node want of the host's memory. */
int64_t up_limits_host_need(const struct up_limits *limits, const struct up_config *config,
                            const struct up_forecast *forecast);

enum up_room { UP_ROOM_FITS, UP_ROOM_DEVICE, UP_ROOM_HOST }; // or which of the two is too small
enum up_room up_limits_check(const struct up_limits *limits, const struct up_config *config,
                             const struct up_forecast *forecast);

/* Bytes that a config takes whatever else it does, without a dry run: of a rank's device, and of a
 * rank's host memory. At most what a forecast says. */
int64_t up_limits_device_floor(const struct up_config *config);
int64_t up_limits_host_floor(const struct up_config *config);
/* Model state alone, on the device. */
int64_t up_limits_state(const struct up_config *config);

/* Host memory that is to be had now: the lesser of what the system and the cgroups leave, less 5%;
 * 0 where neither tells. */
int64_t up_limits_host_now(void);

#endif
