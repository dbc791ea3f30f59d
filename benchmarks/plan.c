/* How long the planner takes and how near it comes to the live peak (the lower bound): on made-up
 * lifetimes of many tensors, and on those of llama3-8b's steps from 128K to 5M tokens. */
#include "tests/mem/lives.h"

#include <stdio.h>

static void print_header(void)
{
    printf("%-44s %9s %10s %14s %14s\n", "lifetimes", "tensors", "ms", "live peak",
           "height / peak");
}

static int measure(const char *name, const struct lives *lives)
{
    struct up_error error = {0};
    char text[UP_UNITS_TEXT];
    int64_t *offsets = calloc((size_t)lives->count + 1, sizeof *offsets), height;
    if (!offsets) return UP_FAILED;
    int64_t peak = up_plan_live_peak(lives->life, lives->count, 256), begin = up_clock_ns();
    enum up_status rc = up_plan(lives->life, lives->count, 256, offsets, &height, &error);
    double ms = (double)(up_clock_ns() - begin) * 1e-6;
    if (rc)
        fprintf(stderr, "plan: %s: %s\n", name, error.text);
    else
        printf("%-44s %9lld %10.1f %14s %14.5f\n", name, (long long)lives->count, ms,
               up_format_bytes(text, (uint64_t)peak), peak ? (double)height / (double)peak : 1);
    free(offsets);
    return rc;
}

static int measure_made_up(int64_t count)
{
    char name[80];
    struct lives lives[] = {lives_nested(count, 1), lives_random(count, 16384, 1),
                            lives_random(count, 2 * count, 1)};
    static const char *const names[] = {"nested, as a step's", "random, up to 16384 events",
                                        "random, any length"};
    int rc = UP_OK;
    for (int i = 0; i < UP_COUNT(lives); i++) {
        snprintf(name, sizeof name, "%s", names[i]);
        if (!rc) rc = measure(name, &lives[i]);
        lives_release(&lives[i]);
    }
    return rc;
}

static int measure_step(const struct lives_rung *rung, int64_t seq)
{
    struct up_error error = {0};
    struct lives lives[UP_SPACE_COUNT];
    struct up_config config = lives_config(rung, seq);
    char name[80], tokens[UP_UNITS_TEXT];
    int rc = lives_of(&config, lives, &error);
    if (rc) fprintf(stderr, "plan: %s: %s\n", rung->name, error.text);
    for (int space = 0; space < UP_SPACE_COUNT; space++) {
        snprintf(name, sizeof name, "%s, %s: %s", up_format_count(tokens, seq),
                 up_space_names[space], rung->name);
        if (!rc && lives[space].count) rc = measure(name, &lives[space]);
        lives_release(&lives[space]);
    }
    return rc;
}

static int measure_steps(void)
{
    static const int64_t seqs[] = {131072, 1048576, 5242880};
    int rc = UP_OK;
    for (int i = 0; !rc && i < UP_COUNT(lives_rungs) * UP_COUNT(seqs); i++)
        rc = measure_step(&lives_rungs[i / UP_COUNT(seqs)], seqs[i % UP_COUNT(seqs)]);
    return rc;
}

int main(void)
{
    print_header();
    int rc = measure_made_up(10000);
    if (!rc) rc = measure_made_up(100000);
    return rc ? rc : measure_steps();
}
