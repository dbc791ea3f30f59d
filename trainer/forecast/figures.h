/* The figures of a machine as plain numbers, for programs that learn or compare them, and the
 * writing of machine files. What a dry device is given is machine.h's struct up_machine. */
#ifndef UP_TRAINER_FIGURES_H
#define UP_TRAINER_FIGURES_H

#include "base/base.h"

enum up_machine_figure {
    UP_FIGURE_DEVICE_BYTES, // capacities: bytes, 0 where they are not known
    UP_FIGURE_HOST_BYTES,
    UP_FIGURE_MATMUL, // FLOP/s
    UP_FIGURE_ATTENTION_FORWARD,
    UP_FIGURE_ATTENTION_BACKWARD,
    UP_FIGURE_ATTENTION_FORWARD_64, // of narrow heads (UP_NARROW_HEAD_DIM); 0: as of the others
    UP_FIGURE_ATTENTION_BACKWARD_64,
    UP_FIGURE_ATTENTION_FORWARD_OWN, // by upipe's own kernels; 0: as by others
    UP_FIGURE_ATTENTION_BACKWARD_OWN,
    UP_FIGURE_ATTENTION_FORWARD_OWN_64,
    UP_FIGURE_ATTENTION_BACKWARD_OWN_64,
    UP_FIGURE_MEMORY, // bytes/s
    UP_FIGURE_TO_HOST,
    UP_FIGURE_FROM_HOST,
    UP_FIGURE_NODE_TO_HOST, // of all devices of a node together; 0: each has its own
    UP_FIGURE_NODE_FROM_HOST,
    UP_FIGURE_LINK,
    UP_FIGURE_MATMUL_PACE, // bytes/s of classes of work that have their own; 0: memory's
    UP_FIGURE_NORM_FORWARD,
    UP_FIGURE_NORM_BACKWARD,
    UP_FIGURE_ROPE,
    UP_FIGURE_EMBED_BACKWARD,
    UP_FIGURE_CROSS_ENTROPY,
    UP_FIGURE_ADAMW,
    UP_FIGURE_LAUNCH,                // seconds
    UP_FIGURE_ATTENTION_FORWARD_RUN, // seconds of each run of attention besides; 0: none
    UP_FIGURE_ATTENTION_BACKWARD_RUN,
    UP_FIGURE_NODE_DEVICES, // that share a host
    UP_FIGURE_CONTEXT,      // bytes that libraries take on each device: struct up_machine
    UP_FIGURE_CUBLAS,
    UP_FIGURE_CUDNN,
    UP_FIGURE_NCCL,
    UP_FIGURE_NCCL_RANK,
    UP_FIGURE_COUNT
};
const char *up_figure_name(enum up_machine_figure figure); // as machine files spell it
bool up_figure_is_whole(enum up_machine_figure figure);    // bytes and counts

struct up_figures {
    char name[64];
    double of[UP_FIGURE_COUNT];
};

/* Which figure attention of this head_dim goes by, by upipe's `own` kernels or by others. Where a
 * machine has 0 for it, narrow heads go by what others do, and the own kernels by the others'. */
enum up_machine_figure up_figure_of_attention(bool backward, int64_t head_dim, bool own);
/* The same of the head_dims that `figure` is not of; UP_FIGURE_COUNT for all but attention's. */
enum up_machine_figure up_figure_twin(enum up_machine_figure figure);
/* A figure of attention that was not measured, from its twin, which was: in the ratio that the two
 * have in `known`. 0 where that has no such figure. */
double up_figure_by_twin(const struct up_figures *known, enum up_machine_figure figure,
                         double twin);

/* What a run of attention takes besides its work, of the kernels that are not upipe's own. */
enum up_machine_figure up_figure_of_run(bool backward);
/* Forgets that figure where so many `runs`, which took `seconds` in all, would have taken all of
 * their time so: it is another machine's. */
void up_figures_check_run(struct up_figures *known, bool backward, double runs, double seconds);

/* What copies tell that so many `devices` of a node made at once, at `rate` bytes/s each, and one
 * by itself at `alone` (0: nobody looked), beside what is known: `figure`, UP_FIGURE_TO_HOST or
 * FROM_HOST, and that of the node. 0 is what they do not tell. */
struct up_copy_figures {
    double device, node;
};
struct up_copy_figures up_figures_of_copies(const struct up_figures *known,
                                            enum up_machine_figure figure, double rate,
                                            double alone, int64_t devices);
enum up_machine_figure up_figure_of_node(enum up_machine_figure figure);

/* `name` as for up_machine_find. */
enum up_status up_figures_find(const char *name, struct up_figures *plain, struct up_error *err);
/* From what a run stores of its machine (up_machine_json); *found is false where it is something
 * else. UP_FAILED: host memory is short. */
enum up_status up_figures_stored(const char *json, struct up_figures *figures, bool *found,
                                 struct up_error *err);
bool up_machine_built_in(const char *name);

/* Where each figure is from, as UTF-8; "" is "not told". */
struct up_figure_sources {
    char text[UP_FIGURE_COUNT][256];
};

/* Whether up_figures_write would write there: UP_USAGE where it would not, as below. */
enum up_status up_figures_check_path(const char *option, const char *path, struct up_error *err);
/* Writes a machine file, whole or not at all. A capacity of 0 is left out. An existing machine file
 * is replaced; UP_USAGE where anything else is in the way, where the folder cannot be written, and
 * for the name of a built-in machine, which --machine would find instead. Messages begin with
 * `option`. */
enum up_status up_figures_write(const char *option, const char *path,
                                const struct up_figures *figures, const char *about,
                                const struct up_figure_sources *sources, struct up_error *err);

#endif
