/* One .safetensors file: 8 bytes of little-endian header length, a JSON header that maps names to
 * {dtype, shape, data_offsets}, and the bytes of the tensors, end to end. Knows nothing of models.
 */
#ifndef UP_MODEL_SAFETENSORS_IMPL_H
#define UP_MODEL_SAFETENSORS_IMPL_H

#include "model/input_impl.h"

struct up_safetensors;

/* A tensor of a file, borrowed from it. */
struct up_stored {
    const char *name;
    const char *dtype;   // as the file calls it: "BF16"
    const json_t *shape; // an array of whole numbers
    int64_t begin, end;  // bytes, from the start of the data
};

/* Checks the whole header before anything is read: every tensor's bytes are those of its shape and
 * dtype (where that is known), and all together fill the file exactly, without overlap or hole. */
enum up_status up_safetensors_open(const char *path, struct up_safetensors **file,
                                   struct up_error *err);
void up_safetensors_close(struct up_safetensors *file); // NULL is fine

const char *up_safetensors_path(const struct up_safetensors *file);
/* The header, for those who walk all names. "__metadata__" is not a tensor. */
json_t *up_safetensors_header(const struct up_safetensors *file);
/* False if there is no such tensor. */
bool up_safetensors_find(const struct up_safetensors *file, const char *name,
                         struct up_stored *stored);
/* What __metadata__ says under `key`, or NULL; exporters leave there the twin of a tensor that they
 * did not store twice. */
const char *up_safetensors_metadata(const struct up_safetensors *file, const char *key);

/* Bytes an element if up_safetensors_read can convert the dtype (F32, BF16, F16), else 0. */
int up_stored_width(const struct up_stored *stored);
/* "fp32", "bf16" or "fp16" for those. */
const char *up_stored_dtype(const struct up_stored *stored);
/* "[4096, 1024]", cut if long. */
const char *up_stored_shape(char out[UP_SHOWN], const struct up_stored *stored);

/* Elements [first, first + count) as fp32. Safe from several threads at once. */
enum up_status up_safetensors_read(const struct up_safetensors *file,
                                   const struct up_stored *stored, int64_t first, int64_t count,
                                   float *out, struct up_error *err);

#endif
