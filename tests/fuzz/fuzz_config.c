/* config.json of a Hugging Face folder: the input is the file. */
#include "model/config.h"
#include "tests/fuzz/fuzz.h"

enum { PARAMS_LOOKED_AT = 64 };

// Whatever shape was accepted, its parameters can be listed and its sums stay in range.
static void use_model(const struct up_model *model)
{
    struct up_error err = {0};
    int count = up_model_param_count(model);
    FUZZ_EXPECT(up_model_check(model, "fuzz", &err) == UP_OK);
    FUZZ_EXPECT(count > 0 && up_model_parameters(model) > 0);
    for (int i = 0; i < count && i < PARAMS_LOOKED_AT; i++) {
        struct up_param first = up_model_param(model, i),
                        last = up_model_param(model, count - 1 - i);
        FUZZ_EXPECT(first.rows > 0 && first.cols > 0 && *first.hf_name);
        FUZZ_EXPECT(last.rows > 0 && last.cols > 0 && *last.hf_name);
    }
}

// And a run config made of it has a text and a hash.
static void use_config(const struct up_model *model)
{
    struct up_config config = {.model = *model, .seq = 8, .batch = 1, .accum = 1, .cp = 1, .dp = 1};
    struct up_error err = {0};
    char hash[17];
    fuzz_check(up_config_check(&config, &err), &err);
    char *text = up_config_json(&config);
    FUZZ_EXPECT(text);
    free(text);
    up_config_hash(&config, hash);
    FUZZ_EXPECT(strlen(hash) == 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct up_model model;
    struct up_error err = {0};
    fuzz_start();
    fuzz_write("config.json", data, size);
    enum up_status rc = up_model_read_config(fuzz_folder(), &model, &err);
    fuzz_check(rc, &err);
    if (rc != UP_OK) return 0;
    use_model(&model);
    use_config(&model);
    return 0;
}
