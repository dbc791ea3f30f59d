/* When the device was at a moment of a rank: moments of memory are counted by the host, which runs
 * ahead of it. Known where ranges have times of the device. */
#ifndef UP_REPORT_DEVICE_TIME_H
#define UP_REPORT_DEVICE_TIME_H

#include "report/analysis/query.h"

struct up_device_times {
    struct {
        int64_t seq, ns;
    } * marks; // ends of ranges, neither going backwards
    int64_t count;
};

/* Of the ranges of a step, or of those outside steps (UP_NONE). */
enum up_status up_device_times_read(const struct up_run *run, int64_t rank, int64_t step,
                                    struct up_device_times *times, struct up_error *err);
void up_device_times_release(struct up_device_times *times);

/* On the clock of the other times; between two ends of ranges it is on the straight line through
 * them. UP_NONE: not known there. */
int64_t up_device_time_at(const struct up_device_times *times, int64_t seq);

#endif
