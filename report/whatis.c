#include "report/whatis.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- The size ----------------------------------------------------------------------------------
 */

// Bytes of a unit: KiB and K are 1024, kB and KB are 1000; 0 for what is none.
static double unit_bytes(const char *unit)
{
    static const char letters[] = "KMGT";
    if (!*unit || !strcasecmp(unit, "B") || !strcasecmp(unit, "bytes")) return 1;
    const char *letter = strchr(letters, toupper((unsigned char)*unit));
    if (!letter) return 0;
    int power = (int)(letter - letters) + 1;
    if (!unit[1] || !strcasecmp(unit + 1, "iB")) return ldexp(1, 10 * power);
    return !strcasecmp(unit + 1, "B") ? pow(1000, power) : 0;
}

bool up_printed_size_parse(const char *text, struct up_printed_size *size)
{
    char number[40];
    size_t length = strspn(text, "0123456789.");
    const char *unit = text + length, *point = memchr(text, '.', length);
    double value;
    if (!length || length >= sizeof number || !isdigit((unsigned char)*text)) return false;
    memcpy(number, text, length);
    number[length] = 0;
    if (number[length - 1] == '.' || !up_parse_real(number, &value)) return false;
    unit += strspn(unit, " ");
    double one = unit_bytes(unit);
    double half = 0.5 * pow(10, point ? -(double)(text + length - point - 1) : 0) * one;
    *size = (struct up_printed_size){value * one, value * one - half, value * one + half};
    if (point && one == 1) return false; // there are no parts of a byte: the unit was forgotten
    return one > 0 && value > 0 && size->low > 0 && size->high < 0x1p60;
}

/* --- Candidates --------------------------------------------------------------------------------
 */

struct candidate {
    const char *id, *what, *category, *dtype, *option, *why;
    enum up_whatis_growth growth;
    enum up_whatis_shared shared;
    double elements, bytes, weight;
};

enum candidate_id {
#define UP_WHATIS(id, ...) CANDIDATE_##id,
#include "report/whatis.def"
#undef UP_WHATIS
    CANDIDATES
};

static double block_parameters(const struct up_model *m)
{
    double count = 0;
    for (int i = 0; i < up_model_param_count(m); i++) {
        struct up_param param = up_model_param(m, i);
        if (param.unit == UP_UNIT_BLOCK && param.layer > 0) break;
        if (param.unit == UP_UNIT_BLOCK) count += (double)param.rows * (double)param.cols;
    }
    return count;
}

static void fill_candidates(const struct up_whatis_question *question,
                            struct candidate candidates[CANDIDATES])
{
    const struct up_model *m = &question->model;
    double tp = (double)up_max(1, question->tp), ACT = question->act_bytes;
    double V = (double)m->vocab / tp, F = (double)m->ff / tp, H = (double)m->heads / tp;
    double A = H * (double)m->head_dim, K = (double)m->kv_heads * (double)m->head_dim / tp;
    double P = (double)up_model_parameters(m) / tp, B = block_parameters(m) / tp;
    double C = (double)up_max(1, question->cp);
#define FIXED  UP_WHATIS_FIXED
#define TOKENS UP_WHATIS_TOKENS
#define SQUARE UP_WHATIS_SQUARE
#define UP_WHATIS(id, what, category, growth, elements, bytes, dtype, shared, weight, option, why) \
    candidates[CANDIDATE_##id] = (struct candidate){#id,      what,  category, dtype,              \
                                                    option,   why,   growth,   UP_WHATIS_##shared, \
                                                    elements, bytes, weight};
#include "report/whatis.def"
#undef UP_WHATIS
#undef FIXED
#undef TOKENS
#undef SQUARE
}

/* --- How likely --------------------------------------------------------------------------------
 *
 * Odds are the candidate's weight times how probable the size is, as printed, if it is this
 * candidate (in units that make a round length 1). With the printed digits comes a relative width
 * w.
 *   A length is round half of the time, one of some 90 round numbers: 1, or less for those that
 *   people choose less often. Else it is anything, over a range of e^10: 9 w.
 *   What has a size of its own has it half of the time: 90. Else something is added to it, about 1%
 *   (padding, a framework's ways): 900 w exp(-error / 1%). */

static double width_of(const struct up_printed_size *size)
{
    return (size->high - size->low) / size->bytes;
}

static double any_length_odds(const struct up_printed_size *size)
{
    return fmin(9 * width_of(size), 1);
}

static double fixed_odds(const struct up_printed_size *size, double error, bool within)
{
    return within ? 90 : fmin(900 * width_of(size) * exp(-fabs(error) / 0.01), 90);
}

// Lengths that people train on.
static double plausibility(double tokens, enum up_whatis_growth growth)
{
    static const struct {
        double below, odds;
    } table[] = {{16, 0.02}, {512, 0.3}, {0x1p20 + 1, 1}, {0x1p22 + 1, 0.5}, {0x1p26, 0.1}};
    if (growth == UP_WHATIS_SQUARE && tokens > 0x1p18) return 0.1;
    for (int i = 0; i < UP_COUNT(table); i++)
        if (tokens < table[i].below) return table[i].odds;
    return 0.01;
}

// Whether `step` x 2^k lies in [low, high], for some k >= 0.
static bool doubled(double step, double low, double high, double *found)
{
    if (high < step) return false;
    double at = step * exp2(ceil(log2(fmax(low, step) / step) - 1e-12));
    if (at < low || at > high) return false;
    *found = at;
    return true;
}

// A round number in [low, high]: 1, 3, 5 or 7 times a power of two, a power of two of thousands, or
// 1, 2 or 5 and zeros; the first of these kinds that is there. Its odds are 0 where none is.
static double round_number(double low, double high, double *found)
{
    static const struct {
        double step, odds;
    } kinds[] = {{1, 1}, {3, 0.7}, {5, 0.3}, {7, 0.3}, {1000, 0.7}};
    for (int i = 0; i < UP_COUNT(kinds); i++)
        if (doubled(kinds[i].step, low, high, found)) return kinds[i].odds;
    double ten = pow(10, floor(log10(high)));
    *found = ten * (high >= 5 * ten ? 5 : high >= 2 * ten ? 2 : 1);
    return *found >= low && *found >= 1 ? 0.7 : 0;
}

/* --- Matches -----------------------------------------------------------------------------------
 */

static void add(struct up_whatis_answer *answer, const struct candidate *c,
                struct up_whatis_match match)
{
    if (answer->count == UP_WHATIS_MOST) return;
    match.id = c->id;
    match.what = c->what;
    match.category = c->category;
    match.option = c->option;
    match.why = c->why;
    match.dtype = *c->dtype ? c->dtype : NULL;
    match.growth = c->growth;
    answer->matches[answer->count++] = match;
}

// What has a size of its own, here `bytes`.
static void add_if_near(struct up_whatis_answer *answer, const struct up_whatis_question *q,
                        const struct candidate *c, struct up_whatis_match match, double prior)
{
    const struct up_printed_size *size = &q->size;
    match.error = match.bytes / size->bytes - 1;
    match.within = match.bytes >= size->low && match.bytes <= size->high;
    if (!match.within && !(fabs(match.error) <= 0.1)) return;
    match.odds = c->weight * prior * fixed_odds(size, match.error, match.within);
    add(answer, c, match);
}

static void try_fixed(struct up_whatis_answer *answer, const struct up_whatis_question *q,
                      const struct candidate *c)
{
    for (int64_t share = 1; share <= 64; share *= 2) {
        int64_t ranks = q->ranks && share > 1 ? q->ranks : share;
        double prior = q->ranks ? 0.5 : share == 1 || share == 8 ? 0.25 : 0.1;
        add_if_near(answer, q, c,
                    (struct up_whatis_match){.share = ranks,
                                             .times_seq = NAN,
                                             .bytes = c->elements * c->bytes / (double)ranks},
                    prior);
        if (c->shared != UP_WHATIS_RANKS || q->ranks == 1 || (q->ranks && share > 1)) break;
    }
}

static int64_t batch_of(const struct up_whatis_question *q)
{
    return up_max(1, q->batch);
}

// Elements of one token, or pair of positions, of all the batch's sequences together.
static double per_token(const struct up_whatis_question *q, const struct candidate *c)
{
    double each = c->elements * c->bytes;
    if (c->growth == UP_WHATIS_SQUARE) each *= (double)batch_of(q);
    if (c->shared == UP_WHATIS_CP) each /= (double)up_max(1, q->cp);
    return each;
}

static double bytes_at(const struct up_whatis_question *q, const struct candidate *c, double tokens)
{
    return per_token(q, c) * (c->growth == UP_WHATIS_SQUARE ? tokens * tokens : tokens);
}

// Of a micro-batch on one rank, or of the sequence for what grows with its square.
static double tokens_given(const struct up_whatis_question *q, const struct candidate *c)
{
    if (c->growth == UP_WHATIS_SQUARE) return (double)q->seq;
    return (double)batch_of(q) * ceil((double)q->seq / (double)up_max(1, q->cp));
}

static int64_t share_of(const struct up_whatis_question *q, const struct candidate *c)
{
    return c->shared == UP_WHATIS_CP ? up_max(1, q->cp) : 1;
}

static void try_given(struct up_whatis_answer *answer, const struct up_whatis_question *q,
                      const struct candidate *c)
{
    double tokens = tokens_given(q, c);
    if (!(tokens < 0x1p60)) return;
    add_if_near(answer, q, c,
                (struct up_whatis_match){.tokens = (int64_t)tokens,
                                         .tokens_given = true,
                                         .share = share_of(q, c),
                                         .times_seq = 1,
                                         .bytes = bytes_at(q, c, tokens)},
                1);
}

static double solve(const struct up_whatis_question *q, const struct candidate *c, double bytes)
{
    double tokens = bytes / per_token(q, c);
    return c->growth == UP_WHATIS_SQUARE ? sqrt(tokens) : tokens;
}

static void try_solved(struct up_whatis_answer *answer, const struct up_whatis_question *q,
                       const struct candidate *c)
{
    // People choose the length of a sequence, not of a micro-batch.
    double rows = c->growth == UP_WHATIS_TOKENS ? (double)batch_of(q) : 1;
    double low = solve(q, c, q->size.low), high = solve(q, c, q->size.high), found;
    double odds = round_number(low / rows, high / rows, &found);
    bool is_round = odds > 0;
    double tokens = is_round ? found * rows : rint(solve(q, c, q->size.bytes));
    if (!(tokens >= 1) || !(tokens < 0x1p40)) return;
    struct up_whatis_match match = {.tokens = (int64_t)tokens,
                                    .round = is_round,
                                    .share = share_of(q, c),
                                    .times_seq = q->seq ? tokens / tokens_given(q, c) : NAN,
                                    .bytes = bytes_at(q, c, tokens)};
    match.error = match.bytes / q->size.bytes - 1;
    match.within = match.bytes >= q->size.low && match.bytes <= q->size.high;
    // Where the length is known another one is no one's choice.
    odds = fmax(q->seq ? 0 : odds, any_length_odds(&q->size));
    match.odds = c->weight * plausibility(tokens / rows, c->growth) * odds;
    add(answer, c, match);
}

static int by_odds(const void *a, const void *b)
{
    const struct up_whatis_match *x = a, *y = b;
    if (x->odds != y->odds) return x->odds < y->odds ? 1 : -1;
    return strcmp(x->id, y->id);
}

// By the printed digits, or as near as padding and rounding explain.
static bool any_fits(const struct up_whatis_answer *answer)
{
    for (int i = 0; i < answer->count; i++)
        if (answer->matches[i].within || fabs(answer->matches[i].error) <= 0.005) return true;
    return false;
}

enum up_status up_whatis(const struct up_whatis_question *question, struct up_whatis_answer *answer,
                         struct up_error *err)
{
    struct candidate candidates[CANDIDATES];
    *answer = (struct up_whatis_answer){.matches = calloc(UP_WHATIS_MOST, sizeof *answer->matches)};
    if (!answer->matches) return up_fail(err, UP_FAILED, "out of memory");
    fill_candidates(question, candidates);
    for (int i = 0; i < CANDIDATES; i++) {
        const struct candidate *c = &candidates[i];
        if (c->weight <= 0) continue;
        if (c->growth == UP_WHATIS_FIXED)
            try_fixed(answer, question, c);
        else if (question->seq)
            try_given(answer, question, c);
        else
            try_solved(answer, question, c);
    }
    answer->explained = any_fits(answer);
    // Nothing is that large at these tokens: what would it be at others?
    for (int i = 0; i < CANDIDATES && !answer->explained && question->seq; i++)
        if (candidates[i].growth != UP_WHATIS_FIXED && candidates[i].weight > 0)
            try_solved(answer, question, &candidates[i]);
    qsort(answer->matches, (size_t)answer->count, sizeof *answer->matches, by_odds);
    return UP_OK;
}

void up_whatis_release(struct up_whatis_answer *answer)
{
    free(answer->matches);
    *answer = (struct up_whatis_answer){0};
}
