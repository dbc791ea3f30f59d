/* Lifetimes for the planner's test and benchmark: those of one dry step of a rung, or made up. */
#ifndef UP_TESTS_MEM_LIVES_H
#define UP_TESTS_MEM_LIVES_H

#include "mem/mem.h"
#include "mem/plan.h"
#include "trainer/forecast/machine.h"
#include "trainer/step/step.h"

#include <stdlib.h>

struct lives {
    struct up_life *life; // in the order of allocation
    int64_t count, room;
    int64_t counted_peak; // of a step: the allocator's peak above what was alive before it, bytes
};

static inline void lives_release(struct lives *lives)
{
    free(lives->life);
    *lives = (struct lives){0};
}

/* --- Of a step -------------------------------------------------------------------------------- */

/* llama3-8b in bf16 for a GPU, with techniques on. 0 is off, but 1 for ranks and micro-batches. */
struct lives_rung {
    const char *name;
    int64_t cp, dp, accum;
    enum up_checkpoint checkpoint;
    int64_t attn_layers, offload_layers; // ALL: every layer
    bool fsdp, optimizer_host, tiles; // tiles: 4096 tokens for MLP and attention, 1024 for the loss
    int64_t upipe;
};

enum { LIVES_ALL = 32 }; // the model's layers

/* The ladder of --stack on 8 ranks, then other combinations; one technique alone on one rank last.
 */
static const struct lives_rung lives_rungs[] = {
    {"none", 1, 8, 1, UP_CHECKPOINT_NONE, 0, 0, false, false, false, 0},
    {"fsdp", 1, 8, 1, UP_CHECKPOINT_NONE, 0, 0, true, false, false, 0},
    {"ulysses", 8, 1, 1, UP_CHECKPOINT_NONE, 0, 0, true, false, false, 0},
    {"checkpoint", 8, 1, 1, UP_CHECKPOINT_BLOCK, 0, 0, true, false, false, 0},
    {"offload", 8, 1, 1, UP_CHECKPOINT_BLOCK, 0, LIVES_ALL, true, false, false, 0},
    {"tiled", 8, 1, 1, UP_CHECKPOINT_BLOCK, 0, LIVES_ALL, true, false, true, 0},
    {"upipe", 8, 1, 1, UP_CHECKPOINT_BLOCK, 0, LIVES_ALL, true, false, true, 8},
    {"upipe, host optimizer", 8, 1, 1, UP_CHECKPOINT_BLOCK, 0, LIVES_ALL, true, true, true, 8},
    {"upipe, attn", 8, 1, 1, UP_CHECKPOINT_ATTN, LIVES_ALL, LIVES_ALL, true, false, true, 8},
    {"upipe, attn, host optimizer", 8, 1, 1, UP_CHECKPOINT_ATTN, LIVES_ALL, LIVES_ALL, true, true,
     true, 8},
    {"upipe, attn:5, host:20", 8, 1, 1, UP_CHECKPOINT_ATTN, 5, 20, true, false, true, 8},
    {"upipe 16 of 8 ranks", 8, 1, 1, UP_CHECKPOINT_BLOCK, 0, LIVES_ALL, true, false, true, 16},
    {"upipe on 4 ranks", 4, 1, 1, UP_CHECKPOINT_BLOCK, 0, LIVES_ALL, true, false, true, 4},
    {"upipe, attn, on 4 ranks", 4, 1, 1, UP_CHECKPOINT_ATTN, LIVES_ALL, LIVES_ALL, true, false,
     true, 4},
    {"upipe on 32 ranks", 32, 1, 1, UP_CHECKPOINT_BLOCK, 0, LIVES_ALL, true, true, true, 32},
    {"upipe, cp 4 dp 2 accum 3", 4, 2, 3, UP_CHECKPOINT_BLOCK, 0, LIVES_ALL, true, true, true, 8},
    {"upipe, not sharded", 8, 1, 2, UP_CHECKPOINT_BLOCK, 0, LIVES_ALL, false, true, true, 8},
    {"upipe, nothing kept", 8, 1, 1, UP_CHECKPOINT_NONE, 0, 0, true, false, true, 8},
    {"upipe, attn, in place", 8, 1, 1, UP_CHECKPOINT_ATTN, LIVES_ALL, 0, true, false, true, 8},
    {"host optimizer alone", 1, 1, 1, UP_CHECKPOINT_NONE, 0, 0, false, true, false, 0},
    {"checkpoint alone", 1, 1, 1, UP_CHECKPOINT_BLOCK, 0, 0, false, false, false, 0},
    {"attn alone", 1, 1, 1, UP_CHECKPOINT_ATTN, LIVES_ALL, 0, false, false, false, 0},
    {"offload alone", 1, 1, 1, UP_CHECKPOINT_BLOCK, 0, LIVES_ALL, false, false, false, 0},
    {"tiles alone", 1, 1, 1, UP_CHECKPOINT_NONE, 0, 0, false, false, true, 0},
    {"upipe 4 alone", 1, 1, 1, UP_CHECKPOINT_NONE, 0, 0, false, false, false, 4},
    {"checkpoint, tiles, upipe 1", 1, 1, 1, UP_CHECKPOINT_BLOCK, 0, 0, false, false, true, 1},
    {"attn, tiles, upipe 4", 1, 1, 1, UP_CHECKPOINT_ATTN, LIVES_ALL, 0, false, false, true, 4},
};

static inline struct up_config lives_config(const struct lives_rung *rung, int64_t seq)
{
    struct up_config config = {.as = UP_DEVICE_CUDA,
                               .dtype = UP_BF16,
                               .seq = seq,
                               .batch = 1,
                               .accum = rung->accum,
                               .cp = rung->cp,
                               .dp = rung->dp,
                               .fsdp = rung->fsdp,
                               .optimizer_host = rung->optimizer_host,
                               .checkpoint = rung->checkpoint,
                               .attn_layers = rung->attn_layers,
                               .offload_layers = rung->offload_layers,
                               .upipe = rung->upipe};
    if (!up_model_preset("llama3-8b", &config.model) || config.model.layers != LIVES_ALL) abort();
    if (rung->tiles) {
        config.tile_mlp = config.tile_attn = 4096;
        config.tile_loss = 1024;
    }
    return config;
}

// Runs a step of a trainer that is set up and gives away what was recorded of it.
static inline enum up_status lives_step(struct up_trainer *trainer,
                                        struct lives lives[UP_SPACE_COUNT], struct up_error *err)
{
    static const struct up_hyper hyper = {.lr = 1e-3, .clip = 1};
    struct up_step_result result;
    struct up_step_lives record = {0};
    struct up_rank *rank = trainer->rank;
    const struct up_usage before = rank->usage;
    up_rank_record_lives(rank, &record);
    enum up_status rc = up_trainer_step(trainer, 0, 1, &hyper, &result, err);
    up_rank_record_lives(rank, NULL);
    for (int space = 0; space < UP_SPACE_COUNT; space++)
        lives[space] = (struct lives){record.life[space], record.count[space], record.room[space],
                                      rank->usage.peak_bytes[space] - before.live_bytes[space]};
    return rc;
}

/* The lives of a step of the config's rank 0, by space; each to be released, on failure as well. */
static inline enum up_status lives_of(const struct up_config *config,
                                      struct lives lives[UP_SPACE_COUNT], struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_machine machine;
    struct up_device *device = NULL;
    struct up_comm *world = NULL, *cp = NULL;
    struct up_rank rank = {0};
    struct up_trainer trainer = {0};
    for (int space = 0; space < UP_SPACE_COUNT; space++) lives[space] = (struct lives){0};
    UP_TRY(up_config_check(config, err));
    UP_TRY(up_machine_find("generic", &machine, err));
    device = up_device_dry_create(config->as, &machine, err);
    if (!device) UP_TRY(err->status);
    UP_TRY(up_comm_dry_create((int)up_config_ranks(config), 0, &world, err));
    UP_TRY(up_comm_dry_create((int)config->cp, 0, &cp, err));
    UP_TRY(up_rank_init(&rank, 0, device, NULL, NULL, err));
    UP_TRY(up_trainer_init(&trainer, &rank, config, world, cp, err));
    UP_TRY(lives_step(&trainer, lives, err));
out:
    up_trainer_release(&trainer);
    if (rank.device) up_rank_release(&rank);
    up_comm_destroy(cp);
    up_comm_destroy(world);
    up_device_destroy(device);
    return rc;
}

/* --- Made up ---------------------------------------------------------------------------------- */

// Grows by doubling; ends the program when memory is short: this is a test's.
static inline int64_t lives_append(struct lives *lives, struct up_life life)
{
    if (up_grow(&lives->life, lives->count, &lives->room, sizeof life, NULL)) abort();
    lives->life[lives->count] = life;
    return lives->count++;
}

struct lives_maker {
    struct lives *lives;
    uint64_t seed, draws;
    int64_t now;
};

static inline int64_t lives_draw(struct lives_maker *maker, int64_t below)
{
    return (int64_t)(up_random_u64(maker->seed, 0, maker->draws++) % (uint64_t)below);
}

static inline void lives_end(struct lives_maker *maker, int64_t i)
{
    maker->lives->life[i].end = ++maker->now;
}

// A tensor of a layer: simple fractions of one size mostly, as activations are.
static inline int64_t lives_make(struct lives_maker *maker)
{
    static const int64_t sizes[] = {1 << 28, 1 << 26, 1 << 25, 1 << 27,
                                    7 << 26, 7 << 27, 1 << 21, 1 << 19};
    int64_t bytes = sizes[lives_draw(maker, UP_COUNT(sizes))];
    if (lives_draw(maker, 5) == 0) bytes = lives_draw(maker, bytes);
    return lives_append(maker->lives, (struct up_life){bytes, ++maker->now, INT64_MAX});
}

// `count` tensors, at most eight at once.
static inline void lives_make_temporaries(struct lives_maker *maker, int64_t count)
{
    int64_t held[8];
    int n = 0;
    while (count > 0 || n > 0) {
        bool full = count == 0 || n == UP_COUNT(held);
        if (n > 0 && (full || lives_draw(maker, 2))) {
            int64_t k = lives_draw(maker, n);
            lives_end(maker, held[k]);
            held[k] = held[--n];
        } else {
            held[n++] = lives_make(maker);
            count--;
        }
    }
}

/* Like a step of 64 layers: each keeps three tensors from forward to backward, among about `count`
 * short ones. */
static inline struct lives lives_nested(int64_t count, uint64_t seed)
{
    enum { LAYERS = 64, KEPT = 3 };
    struct lives lives = {0};
    struct lives_maker maker = {&lives, seed, 0, 0};
    int64_t kept[LAYERS * KEPT], share = up_max((count / LAYERS - KEPT) / 3, 1);
    for (int k = 0; k < LAYERS * KEPT; k++) {
        kept[k] = lives_make(&maker);
        if (k % KEPT == 0) lives_make_temporaries(&maker, share);
    }
    for (int k = LAYERS * KEPT - 1; k >= 0; k--) {
        if (k % KEPT == KEPT - 1) lives_make_temporaries(&maker, 2 * share);
        lives_end(&maker, kept[k]);
    }
    return lives;
}

/* What no step looks like: sizes over many orders of magnitude, begins anywhere within 2 x count
 * events, lives of up to `longest` events. */
static inline struct lives lives_random(int64_t count, int64_t longest, uint64_t seed)
{
    struct lives lives = {0};
    struct lives_maker maker = {&lives, seed, 0, 0};
    for (int64_t i = 0; i < count; i++) {
        int64_t bytes = lives_draw(&maker, INT64_C(256) << lives_draw(&maker, 23));
        int64_t begin = lives_draw(&maker, 2 * count),
                end = begin + 1 + lives_draw(&maker, longest);
        lives_append(&lives, (struct up_life){bytes, begin, end});
    }
    return lives;
}

#endif
