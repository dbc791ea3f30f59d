/* Token files. The input's first three bytes are format, sequence length and vocabulary; the rest
 * is the file. */
#include "model/data.h"
#include "tests/fuzz/fuzz.h"

enum { SEQ_MAX = 16, WINDOWS_LOOKED_AT = 8 };

static const int64_t vocabularies[] = {1, 2, 255, 256, 50257, 65536, 128256, INT32_MAX};

static void check_ids(const int32_t *ids, int64_t count, enum up_data_format format, int64_t vocab)
{
    for (int64_t i = 0; i < count; i++)
        FUZZ_EXPECT((ids[i] >= 0 && ids[i] < vocab) ||
                    (ids[i] == UP_DATA_IGNORED && format == UP_DATA_I32));
}

// A window's halves, read as two ranks would, are the window.
static void check_slices(const struct up_data *data, int64_t k, int64_t seq, const int32_t *inputs,
                         const int32_t *targets)
{
    int32_t slice_inputs[SEQ_MAX], slice_targets[SEQ_MAX];
    struct up_error err = {0};
    for (int64_t first = 0, half = seq / 2; first < seq; first += half ? half : seq) {
        int64_t count = up_min(half ? half : seq, seq - first), counted = 0;
        FUZZ_EXPECT(up_data_slice(data, k, first, count, slice_inputs, slice_targets, &counted,
                                  &err) == UP_OK);
        FUZZ_EXPECT(!memcmp(slice_inputs, inputs + first, (size_t)count * sizeof *inputs));
        FUZZ_EXPECT(!memcmp(slice_targets, targets + first, (size_t)count * sizeof *targets));
    }
}

static void read_windows(const struct up_data *data, enum up_data_format format, int64_t seq,
                         int64_t vocab)
{
    int32_t inputs[SEQ_MAX], targets[SEQ_MAX];
    int64_t windows = up_data_windows(data), counted = 0;
    FUZZ_EXPECT(windows >= 1 && up_data_tokens(data) > windows * seq);
    for (int64_t k = 0; k < up_min(windows + 1, WINDOWS_LOOKED_AT); k++) {
        struct up_error err = {0};
        enum up_status rc = up_data_window(data, k, inputs, targets, &counted, &err);
        fuzz_check(rc, &err);
        if (rc != UP_OK) continue;
        FUZZ_EXPECT(counted >= 0 && counted <= seq);
        check_ids(inputs, seq, format, vocab);
        check_ids(targets, seq, format, vocab);
        check_slices(data, k, seq, inputs, targets);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char path[128];
    struct up_data *data = NULL;
    struct up_error err = {0};
    if (size < 3) return 0;
    fuzz_start();
    fuzz_write("tokens", bytes + 3, size - 3);
    enum up_data_format format = (enum up_data_format)(bytes[0] % UP_DATA_FORMAT_COUNT);
    int64_t seq = 1 + bytes[1] % SEQ_MAX, vocab = vocabularies[bytes[2] % UP_COUNT(vocabularies)];
    enum up_status rc = up_data_open(fuzz_path(path, "tokens"), format, seq, vocab, &data, &err);
    fuzz_check(rc, &err);
    if (rc == UP_OK) read_windows(data, format, seq, vocab);
    up_data_close(data);
    return 0;
}
