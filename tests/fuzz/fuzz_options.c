/* The trainer's command line: the input is its words, each ended by a newline. */
#include "tests/fuzz/fuzz.h"
#include "trainer/options/options.h"

enum { WORDS_MAX = 32 };

// The words, in place.
static int split(char *text, char *words[WORDS_MAX + 1])
{
    int count = 0;
    words[count++] = (char *)"upipe-train";
    for (char *at = text; *at && count < WORDS_MAX;) {
        char *end = strchrnul(at, '\n');
        bool last = !*end;
        words[count++] = at;
        *end = 0;
        at = last ? end : end + 1;
    }
    words[count] = NULL;
    return count;
}

/* What an option says of its value, the command line takes for the same value. */
static void check_round_trip(const struct up_train_options *options)
{
    struct up_error err = {0};
    for (const struct up_option *option = up_train_option_table; option->name; option++) {
        char text[8192], again[8192];
        struct up_train_options other = *options;
        const char *value = up_option_text(option, options, text, sizeof text);
        if (option->kind == UP_OPTION_FLAG || option->kind == UP_OPTION_TEXT || !value) continue;
        if (up_option_set(option, value, &other, &err) != UP_OK) {
            // A number that was not given may be outside the option's limits; nothing else may.
            FUZZ_EXPECT(option->kind == UP_OPTION_INTEGER || option->kind == UP_OPTION_SIZE ||
                        option->kind == UP_OPTION_SPAN);
            continue;
        }
        FUZZ_EXPECT(!strcmp(up_option_text(option, &other, again, sizeof again), value));
    }
}

static void use_options(const struct up_train_options *options)
{
    struct up_config config;
    struct up_error err = {0};
    bool folder;
    char hash[17];
    check_round_trip(options);
    FUZZ_EXPECT(up_train_lr(options, 0) >= 0 && up_train_lr(options, options->steps - 1) >= 0);
    enum up_status rc = up_train_options_resolve(options, &config, &folder, &err);
    fuzz_check(rc, &err);
    if (rc != UP_OK) return;
    FUZZ_EXPECT(up_config_check(&config, &err) == UP_OK);
    up_config_hash(&config, hash);
    int64_t sum = 0, parts = up_min(config.cp, 1024);
    for (int64_t r = 0; r < parts; r++) sum += up_config_tokens(&config, r);
    FUZZ_EXPECT(parts < config.cp || sum == config.seq);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[4096], *words[WORDS_MAX + 1];
    struct up_train_options options;
    struct up_arguments arguments;
    struct up_error err = {0};
    if (size >= sizeof text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    int count = split(text, words);
    enum up_status rc = up_train_options_parse(&options, count, words, &arguments, &err);
    fuzz_check(rc, &err);
    if (rc == UP_OK && !arguments.help) use_options(&options);
    return 0;
}
