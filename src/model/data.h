/* Token files: raw text as bytes, raw little-endian tokens, or llm.c's .bin files.
 *
 * Nothing in a raw file says what it is, so its format is the user's word. An llm.c file does say,
 * by the magic number it begins with: its header is skipped, and another format is refused. */
#ifndef UP_MODEL_DATA_H
#define UP_MODEL_DATA_H

#include "base/base.h"

enum up_data_format { UP_DATA_BYTES, UP_DATA_U16, UP_DATA_U32, UP_DATA_I32, UP_DATA_FORMAT_COUNT };

/* The words of --data-format, in that order; up_data_format_names[UP_DATA_U16] is "u16". */
#define UP_DATA_FORMATS "bytes|u16|u32|i32"
extern const char *const up_data_format_names[UP_DATA_FORMAT_COUNT];

/* A target that does not count; as an input, a token whose embedding is zero. In i32 files only. */
enum { UP_DATA_IGNORED = -100 };

struct up_data;

/* Windows of `seq` tokens (1 or more) of a vocabulary of `vocab`. UP_USAGE naming the file if it
 * cannot be opened, is not of the format, or has no whole window; ids are checked when met. The
 * file stays open and is read a window at a time. */
enum up_status up_data_open(const char *path, enum up_data_format format, int64_t seq,
                            int64_t vocab, struct up_data **data, struct up_error *err);
void up_data_close(struct up_data *data); // NULL is fine

int64_t up_data_tokens(const struct up_data *data);
/* Whole windows, 1 or more: window k takes tokens [k*seq, k*seq + seq], seq + 1 of them. */
int64_t up_data_windows(const struct up_data *data);

/* Window k modulo the whole windows: inputs[seq] = tokens [k*seq, k*seq + seq), targets[seq] the
 * same shifted by one, *counted the number of targets that are not UP_DATA_IGNORED. An id outside
 * the vocabulary is UP_USAGE naming file, byte and value. Safe from several threads at once. */
enum up_status up_data_window(const struct up_data *data, int64_t k, int32_t *inputs,
                              int32_t *targets, int64_t *counted, struct up_error *err);

/* Positions [first, first + count) of window k, for a rank that holds a part of the sequence:
 * inputs[count], targets[count], and *counted among those alone. */
enum up_status up_data_slice(const struct up_data *data, int64_t k, int64_t first, int64_t count,
                             int32_t *inputs, int32_t *targets, int64_t *counted,
                             struct up_error *err);

#endif
