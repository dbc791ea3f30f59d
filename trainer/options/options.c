#include "trainer/options/options.h"
#include "trainer/forecast/forecast.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_THREADS = 256 }; // ranks on cpu

#define FIELD(field_) offsetof(struct up_train_options, field_)

const struct up_option up_train_option_table[] = {
    {.group = "What is trained",
     .name = "model",
     .kind = UP_OPTION_TEXT,
     .field = FIELD(model),
     .shown = "tiny",
     .value = "NAME|DIR",
     .help = "preset, or Hugging Face folder with config.json and safetensors"},
    {.name = "layers",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(layers),
     .value = "N",
     .min = 1,
     .help = "only the first N blocks"},
    {.name = "active-layers",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(active_layers),
     .value = "N",
     .min = 1,
     .help = "for measuring: the state of all blocks is there, only the first N are computed"},
    {.name = "data",
     .kind = UP_OPTION_TEXT,
     .field = FIELD(data),
     .value = "FILE",
     .help = "tokens to train on"},
    {.name = "data-format",
     .kind = UP_OPTION_CHOICE,
     .field = FIELD(data_format),
     .fallback = "bytes",
     .value = "bytes|u16|u32|i32",
     .help = "raw bytes (vocabulary 256), or little-endian token ids; in i32, -100 is a label that "
             "does not count"},
    {.name = "seq",
     .kind = UP_OPTION_SIZE,
     .field = FIELD(seq),
     .fallback = "8K",
     .value = "TOKENS",
     .min = 1,
     .help = "tokens per sequence"},
    {.name = "batch",
     .kind = UP_OPTION_SIZE,
     .field = FIELD(batch),
     .fallback = "1",
     .value = "N",
     .min = 1,
     .max = 1 << 20,
     .help = "sequences per micro-batch and replica"},
    {.name = "steps",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(steps),
     .fallback = "10",
     .value = "N",
     .min = 1,
     .max = INT32_MAX,
     .help = "optimizer steps"},
    {.name = "seed",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(seed),
     .fallback = "0",
     .value = "N",
     .help = "of the random weights of a preset"},

    {.group = "Where it runs",
     .name = "device",
     .kind = UP_OPTION_CHOICE,
     .field = FIELD(device),
     .fallback = "cpu",
     .value = "cpu|cuda|dry",
     .help = "this machine's processor, its GPUs (one per rank), or a forecast without memory and "
             "arithmetic"},
    {.name = "dtype",
     .kind = UP_OPTION_CHOICE,
     .field = FIELD(dtype),
     .value = "fp32|bf16",
     .help = "of activations; by default fp32 for cpu, bf16 for cuda"},
    {.name = "as",
     .kind = UP_OPTION_CHOICE,
     .field = FIELD(as),
     .value = "cpu|cuda",
     .help = "with --device dry: the kind of device to forecast; by default cuda for bf16"},
    {.name = "machine",
     .kind = UP_OPTION_TEXT,
     .field = FIELD(machine),
     .value = "NAME|FILE",
     .help = "whose figures forecasts are made with; with --device dry, what must fit it, too; by "
             "default what is known of the GPU, or generic"},
    {.name = "threads",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(threads),
     .value = "N",
     .min = 1,
     .max = 4096,
     .help = "threads of the host that a rank works with; by default its share of the cores, and "
             "with --device cpu one where there are several ranks"},
    {.name = "chaos",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(chaos),
     .value = "SEED",
     .min = 1,
     .help = "with --device cpu: test mode, each stream a thread with random delays, freed bytes "
             "poisoned"},

    {.name = "deterministic",
     .kind = UP_OPTION_FLAG,
     .field = FIELD(deterministic),
     .help = "with --device cuda: the same seed gives the same bits (attention by upipe's own "
             "kernels)"},
    {.name = "nccl-buffers",
     .kind = UP_OPTION_SIZE,
     .field = FIELD(nccl_buffers),
     .value = "SIZE|default",
     .off = "default",
     .min = 65536,
     .max = 1 << 30,
     .fallback = "default",
     .help = "with --device cuda: NCCL's buffer per channel; below its default of 4 MiB also at "
             "most 8 channels"},

    {.group = "Ranks and memory techniques",
     .name = "ranks",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(ranks),
     .value = "N",
     .min = 1,
     .max = 1 << 20,
     .shown = "cp x dp",
     .help = "ranks in all; on cpu threads of this process"},
    {.name = "cp",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(cp),
     .value = "N",
     .min = 1,
     .max = 1 << 20,
     .shown = "1",
     .help = "context-parallel ranks (Ulysses): a sequence is split over so many"},
    {.name = "dp",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(dp),
     .value = "N",
     .min = 1,
     .max = 1 << 20,
     .shown = "1",
     .help = "data-parallel replicas, each with sequences of its own"},
    {.name = "accum",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(accum),
     .fallback = "1",
     .value = "N",
     .min = 1,
     .max = 1 << 20,
     .help = "micro-batches per step, whose gradients add up"},
    {.name = "stack",
     .kind = UP_OPTION_CHOICE,
     .field = FIELD(stack),
     .shown = "none",
     .value = "none|fsdp|ulysses|checkpoint|offload|tiled|upipe",
     .help = "a rung of the ladder, with all before it; options given beside it override"},
    {.name = "fsdp",
     .kind = UP_OPTION_CHOICE,
     .field = FIELD(fsdp),
     .shown = "off",
     .value = "off|on",
     .help = "parameters, gradients and optimizer state sharded over all ranks"},
    {.name = "checkpoint",
     .kind = UP_OPTION_COUNTED,
     .field = FIELD(checkpoint),
     .shown = "none",
     .value = "none|block|attn[:N]",
     .help = "what a block keeps for backward: everything, its input, or its input and attention's "
             "output (of the last N blocks)"},
    {.name = "offload",
     .kind = UP_OPTION_COUNTED,
     .field = FIELD(offload),
     .shown = "none",
     .value = "none|host[:N]",
     .help = "what is kept waits in host memory (of the first N blocks)"},
    {.name = "optimizer",
     .kind = UP_OPTION_CHOICE,
     .field = FIELD(optimizer),
     .shown = "device",
     .value = "device|host",
     .help = "where fp32 weights and moments live"},
    {.name = "tile-mlp",
     .kind = UP_OPTION_SIZE,
     .field = FIELD(tile_mlp),
     .shown = "off",
     .value = "TOKENS|off",
     .off = "off",
     .min = 1,
     .help = "MLP and its norm over slices of the local sequence"},
    {.name = "tile-loss",
     .kind = UP_OPTION_SIZE,
     .field = FIELD(tile_loss),
     .shown = "off",
     .value = "TOKENS|off",
     .off = "off",
     .min = 1,
     .help = "logits, loss and their backward over slices"},
    {.name = "tile-attn",
     .kind = UP_OPTION_SIZE,
     .field = FIELD(tile_attn),
     .shown = "off",
     .value = "TOKENS|off",
     .off = "off",
     .min = 1,
     .help = "attention's norm and projections over slices"},
    {.name = "upipe",
     .kind = UP_OPTION_SIZE,
     .field = FIELD(upipe),
     .shown = "off",
     .value = "HEADS|off",
     .off = "off",
     .min = 1,
     .max = 1 << 20,
     .help = "query heads per attention stage over all cp ranks; stages use the same buffers"},
    {.name = "memory-limit",
     .kind = UP_OPTION_SIZE,
     .field = FIELD(memory_limit),
     .value = "SIZE",
     .min = 1,
     .help = "of the device's memory only so much is to be had"},
    {.name = "output",
     .kind = UP_OPTION_TEXT,
     .field = FIELD(output),
     .value = "FILE",
     .help = "of upipe-train bench: the machine file to write, for --machine"},
    {.name = "no-admission",
     .kind = UP_OPTION_FLAG,
     .field = FIELD(no_admission),
     .help = "start even where the forecast does not fit"},

    {.group = "Optimizer (AdamW)",
     .name = "lr",
     .kind = UP_OPTION_REAL,
     .field = FIELD(lr),
     .fallback = "3e-4",
     .value = "RATE",
     .help = "learning rate"},
    {.name = "schedule",
     .kind = UP_OPTION_CHOICE,
     .field = FIELD(schedule),
     .fallback = "constant",
     .value = "constant|cosine",
     .help = "of the learning rate after warm-up; cosine ends at 0"},
    {.name = "warmup",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(warmup),
     .fallback = "0",
     .value = "STEPS",
     .help = "steps over which the learning rate rises to its value"},
    {.name = "beta1",
     .kind = UP_OPTION_REAL,
     .field = FIELD(beta1),
     .fallback = "0.9",
     .value = "B",
     .real_max = 1,
     .real_max_excluded = true,
     .help = "decay of the first moment"},
    {.name = "beta2",
     .kind = UP_OPTION_REAL,
     .field = FIELD(beta2),
     .fallback = "0.95",
     .value = "B",
     .real_max = 1,
     .real_max_excluded = true,
     .help = "decay of the second moment"},
    {.name = "eps",
     .kind = UP_OPTION_REAL,
     .field = FIELD(epsilon),
     .fallback = "1e-8",
     .value = "E",
     .real_min_excluded = true,
     .help = "added to the root of the second moment"},
    {.name = "weight-decay",
     .kind = UP_OPTION_REAL,
     .field = FIELD(decay),
     .fallback = "0.1",
     .value = "D",
     .help = "on tensors of two or more dimensions"},
    {.name = "clip",
     .kind = UP_OPTION_REAL,
     .field = FIELD(clip),
     .fallback = "1.0",
     .value = "NORM",
     .help = "largest global gradient norm; 0 is off"},

    {.group = "What is recorded",
     .name = "trace",
     .kind = UP_OPTION_TEXT,
     .field = FIELD(trace),
     .value = "FILE",
     .help = "record every tensor's lifetime into this SQLite database"},
    {.name = "trace-steps",
     .kind = UP_OPTION_SPAN,
     .field = FIELD(trace_steps),
     .value = "A:B",
     .help = "keep rows of steps A to B alone; by default of the first three and of those that "
             "differ from the step before"},
    {.name = "trace-level",
     .kind = UP_OPTION_CHOICE,
     .field = FIELD(trace_level),
     .fallback = "memory",
     .value = "tensors|memory|kernels",
     .help = "with --device cuda: record tensors alone, also what libraries take of the GPU's "
             "memory, or also when each kernel ran"},
    {.name = "json-log",
     .kind = UP_OPTION_TEXT,
     .field = FIELD(json_log),
     .value = "FILE",
     .help = "one JSON object per step; an earlier log is replaced, or gone on in with --resume"},

    {.group = "Saving and resuming",
     .name = "save",
     .kind = UP_OPTION_TEXT,
     .field = FIELD(save),
     .value = "DIR",
     .help = "save model and optimizer state into a folder DIR/step-N, at the end of the run, also "
             "one ended by Ctrl-C (on dry nothing is saved)"},
    {.name = "save-every",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(save_every),
     .value = "N",
     .min = 1,
     .help = "with --save: also after every N steps"},
    {.name = "resume",
     .kind = UP_OPTION_TEXT,
     .field = FIELD(resume),
     .value = "DIR",
     .help = "go on exactly from a save, or from the newest in DIR; --steps is the total, the "
             "model is the save's"},
    {0}};

enum up_status up_train_options_parse(struct up_train_options *options, int argc, char **argv,
                                      struct up_arguments *arguments, struct up_error *err)
{
    enum up_status rc = UP_OK;
    *options = (struct up_train_options){.dtype = -1,
                                         .as = -1,
                                         .trace_steps = {-1, -1},
                                         .stack = -1,
                                         .fsdp = -1,
                                         .optimizer = -1,
                                         .checkpoint = {-1, 0},
                                         .offload = {-1, 0},
                                         .tile_mlp = -1,
                                         .tile_loss = -1,
                                         .tile_attn = -1,
                                         .upipe = -1};
    UP_TRY(up_options_parse(up_train_option_table, options, argc, argv, arguments, err));
    if (arguments->positional_count)
        UP_TRY(up_fail(err, UP_USAGE, "unexpected argument '%s': everything is an option (--help)",
                       arguments->positional[0]));
out:
    return rc;
}

enum up_device_kind up_train_device(const struct up_train_options *options)
{
    return (enum up_device_kind)options->device; // the option's words are in the enum's order
}

// Whom the run is for and in what precision: cpu is fp32 and cuda bf16, either way round.
static enum up_status resolve_kind(const struct up_train_options *options, struct up_config *config,
                                   struct up_error *err)
{
    enum up_device_kind kind = up_train_device(options);
    int as = options->as, dtype = options->dtype;
    if (kind != UP_DEVICE_DRY && as >= 0 && as != (kind == UP_DEVICE_CUDA))
        return up_fail(err, UP_USAGE, "--as %s: expected --device dry beside it",
                       as ? "cuda" : "cpu");
    if (kind != UP_DEVICE_DRY) as = kind == UP_DEVICE_CUDA;
    if (as < 0) as = dtype < 0 ? 1 : dtype; // fp32 and cpu are words 0, bf16 and cuda words 1
    if (dtype < 0) dtype = as;
    if (as != dtype)
        return up_fail(err, UP_USAGE, "--dtype %s: the %s device computes in %s",
                       dtype ? "bf16" : "fp32", as ? "cuda" : "cpu", as ? "bf16" : "fp32");
    config->as = as ? UP_DEVICE_CUDA : UP_DEVICE_CPU;
    config->dtype = dtype ? UP_BF16 : UP_F32;
    return UP_OK;
}

// A preset or a folder; the default gives way to the model that is saved.
static const char *model_name(const struct up_train_options *options)
{
    return options->model ? options->model : options->resume ? options->resume : "tiny";
}

// The ladder of --stack: what a rung sets is what it and those before it say.
enum rung {
    RUNG_NONE,
    RUNG_FSDP,
    RUNG_ULYSSES,
    RUNG_CHECKPOINT,
    RUNG_OFFLOAD,
    RUNG_TILED,
    RUNG_UPIPE
};
enum { STACK_TILE = 4096, STACK_LOSS_TILE = 1024 };

static int64_t or_else(int64_t given, int64_t otherwise)
{
    return given < 0 ? otherwise : given;
}

// Of a factor that was given the nearest multiples, of two their product.
static enum up_status refuse_ranks(const struct up_train_options *options, int64_t cp, int64_t dp,
                                   struct up_error *err)
{
    int64_t ranks = options->ranks, one = options->cp ? cp : dp, below = ranks / one * one;
    char nearest[64] = "";
    if (options->cp && options->dp)
        return up_fail(err, UP_USAGE, "--ranks %lld: expected --cp times --dp, %lld x %lld = %lld",
                       (long long)ranks, (long long)cp, (long long)dp, (long long)(cp * dp));
    if (below) snprintf(nearest, sizeof nearest, "%lld and ", (long long)below);
    return up_fail(err, UP_USAGE, "--ranks %lld: expected a multiple of --%s %lld, nearest: %s%lld",
                   (long long)ranks, options->cp ? "cp" : "dp", (long long)one, nearest,
                   (long long)(below + one));
}

// ranks = cp x dp: any two give the third; of one alone the others follow.
static enum up_status resolve_ranks(const struct up_train_options *options, int rung,
                                    struct up_config *config, struct up_error *err)
{
    int64_t ranks = options->ranks, cp = options->cp, dp = options->dp;
    if (!cp && !dp && ranks) cp = rung >= RUNG_ULYSSES ? ranks : 1;
    if (!cp) cp = ranks && ranks % dp == 0 ? ranks / dp : 1;
    if (!dp) dp = ranks && ranks % cp == 0 ? ranks / cp : 1;
    config->cp = cp;
    config->dp = dp;
    if (ranks && ranks != cp * dp) return refuse_ranks(options, cp, dp, err);
    if (cp * dp > 1 << 20)
        return up_fail(err, UP_USAGE, "--cp, --dp: %lld ranks are too many: expected at most 1M",
                       (long long)(cp * dp));
    return UP_OK;
}

// Every run begins with dry steps of it, which take minutes where a step has so many launches.
static enum up_status check_launches(const struct up_config *config, struct up_error *err)
{
    if (up_config_launches(config) * (double)config->accum < 4e9) return UP_OK;
    return up_fail(err, UP_USAGE,
                   "--seq, --accum: a step has more than 4 billion operations: expected fewer "
                   "tokens, or longer slices (--tile-mlp, --tile-attn, --tile-loss)");
}

// How many layers of `layers` an option like attn:N means.
static int64_t layers_of(const struct up_counted *counted, int64_t layers)
{
    return counted->count ? up_min(counted->count, layers) : layers;
}

static void resolve_techniques(const struct up_train_options *o, int rung, struct up_config *config)
{
    int64_t layers = up_config_layers(config);
    bool offload = or_else(o->offload.choice, rung >= RUNG_OFFLOAD);
    config->fsdp = or_else(o->fsdp, rung >= RUNG_FSDP);
    config->optimizer_host = o->optimizer == 1;
    config->checkpoint = (enum up_checkpoint)or_else(
        o->checkpoint.choice, rung >= RUNG_CHECKPOINT ? UP_CHECKPOINT_BLOCK : UP_CHECKPOINT_NONE);
    config->attn_layers = layers_of(&o->checkpoint, layers);
    config->offload_layers = offload ? layers_of(&o->offload, layers) : 0;
    config->tile_mlp = or_else(o->tile_mlp, rung >= RUNG_TILED ? STACK_TILE : 0);
    config->tile_attn = or_else(o->tile_attn, rung >= RUNG_TILED ? STACK_TILE : 0);
    config->tile_loss = or_else(o->tile_loss, rung >= RUNG_TILED ? STACK_LOSS_TILE : 0);
    config->upipe = or_else(o->upipe, rung >= RUNG_UPIPE ? config->cp : 0);
}

enum up_status up_train_options_resolve(const struct up_train_options *options,
                                        struct up_config *config, bool *folder,
                                        struct up_error *err)
{
    enum up_status rc = UP_OK;
    int rung = options->stack < 0 ? RUNG_NONE : options->stack;
    *config = (struct up_config){.seq = options->seq,
                                 .batch = options->batch,
                                 .accum = options->accum,
                                 .own_attention = options->deterministic};
    UP_TRY(resolve_kind(options, config, err));
    const char *name = model_name(options);
    UP_TRY(
        up_model_find(name, name == options->resume, options->layers, &config->model, folder, err));
    if (options->active_layers > config->model.layers)
        UP_TRY(up_fail(err, UP_USAGE, "--active-layers %lld: %s has %lld layers",
                       (long long)options->active_layers, config->model.name,
                       (long long)config->model.layers));
    config->active_layers =
        options->active_layers < config->model.layers ? options->active_layers : 0;
    UP_TRY(resolve_ranks(options, rung, config, err));
    resolve_techniques(options, rung, config);
    if (up_train_device(options) != UP_DEVICE_CPU && options->chaos)
        UP_TRY(up_fail(err, UP_USAGE, "--chaos: expected --device cpu beside it"));
    if (up_train_device(options) == UP_DEVICE_CPU && up_config_ranks(config) > MAX_THREADS)
        UP_TRY(up_fail(err, UP_USAGE,
                       "--ranks: %lld threads are too many for --device cpu: expected at "
                       "most %d",
                       (long long)up_config_ranks(config), MAX_THREADS));
    if (options->save_every && !options->save)
        UP_TRY(up_fail(err, UP_USAGE, "--save-every: expected --save DIR beside it"));
    if (options->trace_steps.first >= 0 && !options->trace)
        UP_TRY(up_fail(err, UP_USAGE, "--trace-steps: expected --trace FILE beside it"));
    UP_TRY(up_config_check(config, err));
    UP_TRY(check_launches(config, err));
out:
    return rc;
}

void up_train_options_settle(struct up_train_options *options, const struct up_config *config)
{
    int64_t layers = up_config_layers(config);
    bool some = config->checkpoint == UP_CHECKPOINT_ATTN && config->attn_layers < layers;
    bool some_offload = config->offload_layers && config->offload_layers < layers;
    options->model = model_name(options);
    options->layers = config->model.layers;
    options->active_layers = config->active_layers;
    options->as = config->as == UP_DEVICE_CUDA;
    options->dtype = config->dtype == UP_BF16;
    options->ranks = up_config_ranks(config);
    options->cp = config->cp;
    options->dp = config->dp;
    options->stack = options->stack < 0 ? RUNG_NONE : options->stack;
    options->fsdp = config->fsdp;
    options->optimizer = config->optimizer_host;
    options->checkpoint =
        (struct up_counted){(int)config->checkpoint, some ? config->attn_layers : 0};
    options->offload =
        (struct up_counted){config->offload_layers > 0, some_offload ? config->offload_layers : 0};
    options->tile_mlp = config->tile_mlp;
    options->tile_loss = config->tile_loss;
    options->tile_attn = config->tile_attn;
    options->upipe = config->upipe;
}

double up_train_lr(const struct up_train_options *options, int64_t step)
{
    int64_t warmup = options->warmup, rest = options->steps - warmup;
    if (step < warmup) return options->lr * (double)(step + 1) / (double)warmup;
    if (options->schedule == UP_SCHEDULE_CONSTANT || rest <= 0) return options->lr;
    return options->lr * 0.5 * (1 + cos(M_PI * (double)(step - warmup) / (double)rest));
}
