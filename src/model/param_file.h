/* All parameters of a model in one .safetensors file, as fp32: once as weights, or twice as the two
 * moments of the optimizer. Each copy is a set, whose tensors have Hugging Face's names behind a
 * prefix of the set's own ("", "m.").
 *
 * What lies where follows from the model and the prefixes alone, so that any number of ranks write
 * one file at the same time, each the elements that it has. */
#ifndef UP_MODEL_PARAM_FILE_H
#define UP_MODEL_PARAM_FILE_H

#include "model/model.h"

enum { UP_PARAM_SETS_MAX = 2 };

struct up_param_writer;

/* With `create` a new file: its header is written, and it has its full size. Without, one that
 * another rank has created. `prefixes`, one a set, ends with NULL. UP_FAILED naming the path; the
 * file is then left as it is, for the caller to take away. */
enum up_status up_param_writer_open(const char *path, const struct up_model *model,
                                    const char *const *prefixes, bool create,
                                    struct up_param_writer **writer, struct up_error *err);
/* Elements [first, first + count) of the set's index-th parameter of the model. */
enum up_status up_param_writer_write(struct up_param_writer *writer, int set, int index,
                                     int64_t first, int64_t count, const float *elements,
                                     struct up_error *err);
/* Returns when all that this writer wrote is on the disk. */
enum up_status up_param_writer_sync(struct up_param_writer *writer, struct up_error *err);
void up_param_writer_close(struct up_param_writer *writer); // NULL is fine

struct up_param_reader;

/* UP_USAGE naming the file where it is damaged, or is not of this model. */
enum up_status up_param_reader_open(const char *path, const struct up_model *model,
                                    const char *const *prefixes, struct up_param_reader **reader,
                                    struct up_error *err);
/* Elements [first, first + count) of a parameter in the set of that prefix. Safe from several
 * threads at once. */
enum up_status up_param_reader_read(const struct up_param_reader *reader, const char *prefix,
                                    const struct up_param *param, int64_t first, int64_t count,
                                    float *out, struct up_error *err);
void up_param_reader_close(struct up_param_reader *reader); // NULL is fine

#endif
