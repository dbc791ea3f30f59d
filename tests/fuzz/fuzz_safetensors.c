/* The weights of a Hugging Face folder. The input's first byte is the form of the rest:
 *
 *   r   model.safetensors as it is
 *   h   its header, NUL, its data: the length before the header is put there, so that mutations
 * reach what lies behind it i   the index, NUL, the header of a.safetensors, NUL, that of
 * b.safetensors, NUL, the data of each
 *
 * The second is the model's kind: bit 0 a tied head, bit 1 query and key norms, bit 2 two layers.
 */
#include "model/model.h"
#include "tests/fuzz/fuzz.h"

struct rest {
    const uint8_t *at;
    size_t size;
};

// Up to the next NUL, which is dropped; all where there is none.
static struct rest take_part(struct rest *rest)
{
    const uint8_t *end = rest->size ? memchr(rest->at, 0, rest->size) : NULL;
    struct rest part = {rest->at, end ? (size_t)(end - rest->at) : rest->size};
    size_t used = part.size + (end != NULL);
    *rest = (struct rest){rest->at + used, rest->size - used};
    return part;
}

static void write_tensors(const char *name, struct rest header, struct rest data)
{
    uint64_t length = header.size;
    uint8_t *whole = malloc(sizeof length + header.size + data.size);
    FUZZ_EXPECT(whole);
    memcpy(whole, &length, sizeof length);
    memcpy(whole + sizeof length, header.at, header.size);
    memcpy(whole + sizeof length + header.size, data.at, data.size);
    fuzz_write(name, whole, sizeof length + header.size + data.size);
    free(whole);
}

static void write_folder(uint8_t form, struct rest rest)
{
    fuzz_clear();
    if (form == 'i') {
        struct rest index = take_part(&rest), a = take_part(&rest), b = take_part(&rest);
        fuzz_write("model.safetensors.index.json", index.at, index.size);
        write_tensors("a.safetensors", a, rest);
        write_tensors("b.safetensors", b, rest);
    } else if (form == 'h') {
        struct rest header = take_part(&rest);
        write_tensors("model.safetensors", header, rest);
    } else {
        fuzz_write("model.safetensors", rest.at, rest.size);
    }
}

static struct up_model small_model(uint8_t kind)
{
    return (struct up_model){.name = "fuzz",
                             .family = "llama",
                             .layers = kind & 4 ? 2 : 1,
                             .hidden = 4,
                             .ff = 4,
                             .heads = 2,
                             .kv_heads = 1,
                             .head_dim = 2,
                             .vocab = 4,
                             .max_positions = 64,
                             .qk_norm = kind & 2,
                             .tied = kind & 1,
                             .norm_epsilon = 1e-6,
                             .rope_theta = 10000,
                             .init_std = 0.02};
}

// What was accepted is readable to the last element.
static void use_weights(struct up_weights *weights, const struct up_model *model)
{
    float values[64];
    FUZZ_EXPECT(up_weights_dtype(weights) && up_weights_bytes(weights) > 0);
    for (const char *at = up_weights_note(weights); at && *at; at++) FUZZ_EXPECT(*at >= ' ');
    for (int i = 0; i < up_model_param_count(model); i++) {
        struct up_error err = {0};
        struct up_param param = up_model_param(model, i);
        int64_t elements = param.rows * param.cols;
        FUZZ_EXPECT(elements <= UP_COUNT(values));
        FUZZ_EXPECT(up_weights_read(weights, &param, 0, elements, values, &err) == UP_OK);
        FUZZ_EXPECT(up_weights_read(weights, &param, elements - 1, 1, values, &err) == UP_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct up_weights *weights = NULL;
    struct up_error err = {0};
    if (size < 2) return 0;
    fuzz_start();
    write_folder(data[0], (struct rest){data + 2, size - 2});
    struct up_model model = small_model(data[1]);
    enum up_status rc = up_weights_open(fuzz_folder(), &model, &weights, &err);
    fuzz_check(rc, &err);
    if (rc == UP_OK) use_weights(weights, &model);
    up_weights_close(weights);
    return 0;
}
