/* Why a run was out of memory: what was asked for, in what state the memory was, and what filled it
 * at that moment. From meta.out_of_memory, which the trainer writes before it gives up. */
#ifndef UP_REPORT_POST_MORTEM_H
#define UP_REPORT_POST_MORTEM_H

#include "report/analysis/analysis.h"
#include "report/analysis/live.h"

struct up_post_mortem {
    bool known; // false: nothing was told, and nothing below means anything
    char name[UP_META_TEXT], category[UP_META_TEXT], phase[UP_META_TEXT];
    enum up_space space;
    int64_t rank, step, layer, seq, ns;     // UP_NONE where there is none
    int64_t bytes;                          // asked for
    int64_t live_bytes, limit_bytes;        // as the allocator counts
    int64_t free_bytes, largest_free_bytes; // of where it looked
    struct up_live live;                    // alive at that moment, in that space
    struct up_live_groups categories, kinds;
};

enum up_status up_post_mortem_read(const struct up_run *run, struct up_post_mortem *why,
                                   struct up_error *err);
void up_post_mortem_release(struct up_post_mortem *why); // a zeroed one is fine

#endif
