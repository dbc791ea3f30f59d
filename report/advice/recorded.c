#include "report/advice/recorded.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* --- What a row says -----------------------------------------------------------------------------
 */

static int index_of(const char *word, const char *const *words, int count)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(word, words[i])) return i;
    return UP_NONE;
}

static bool is_one_of(const char *word, size_t length, const char *const *words, int count)
{
    for (int i = 0; i < count; i++)
        if (strlen(words[i]) == length && !strncmp(word, words[i], length)) return true;
    return false;
}

// Parts of a name are between dots: "layers.3.attn.q.0" is a q of attn.
static enum up_recorded_role role_of(const char *name)
{
    static const char *const qkv[] = {"q", "k", "v", "dq", "dk", "dv"};
    static const char *const outputs[] = {"o", "lse", "do"};
    static const char *const attn[] = {"attn"}, *const mlp[] = {"mlp"}, *const loss[] = {"loss"};
    bool of_attn = false;
    for (const char *part = name; *part;) {
        size_t length = strcspn(part, ".");
        if (of_attn && is_one_of(part, length, qkv, UP_COUNT(qkv))) return UP_ROLE_QKV;
        if (of_attn && is_one_of(part, length, outputs, UP_COUNT(outputs))) return UP_ROLE_OUTPUT;
        if (is_one_of(part, length, mlp, 1)) return UP_ROLE_MLP;
        if (is_one_of(part, length, loss, 1)) return UP_ROLE_LOSS;
        of_attn = of_attn || is_one_of(part, length, attn, 1);
        part += length + (part[length] == '.');
    }
    return of_attn ? UP_ROLE_ATTN : UP_ROLE_UNKNOWN;
}

enum { DIMENSIONS = 8 };

// "[512,8,16]"; how many, 0 where it is no such text.
static int read_shape(const char *text, int64_t out[DIMENSIONS])
{
    int count = 0;
    if (*text++ != '[') return 0;
    while (count < DIMENSIONS && isdigit((unsigned char)*text)) {
        char *end;
        out[count++] = strtoll(text, &end, 10);
        text = end + (*end == ',');
    }
    return *text == ']' ? count : 0;
}

static bool has_token_dimension(const int64_t *shape, int count, int64_t tokens)
{
    int64_t product;
    if (count && (shape[0] == tokens || shape[count - 1] == tokens)) return true;
    return count > 1 && !__builtin_mul_overflow(shape[0], shape[1], &product) && product == tokens;
}

// Without a shape the bytes must tell: what is not by token hardly divides by their number.
static bool is_by_token(int64_t bytes, const int64_t *shape, int count, int64_t tokens)
{
    if (tokens < 1 || bytes < tokens || bytes % tokens) return false;
    return !count || has_token_dimension(shape, count, tokens);
}

static int bytes_of_dtype(const char *word)
{
    int dtype = index_of(word, up_dtype_names, UP_DTYPE_COUNT);
    return dtype == UP_NONE ? 0 : up_dtype_bytes[dtype];
}

/* --- Rows ----------------------------------------------------------------------------------------
 */

// What a tensor's own row lacks may be told by the range it was allocated in.
static const char tensors_sql[] =
    "SELECT t.storage_id, t.bytes, t.alloc_seq, t.free_seq, t.alloc_ns, t.free_ns, t.step,"
    " t.free_step, t.name, t.category, coalesce(nullif(t.phase, ''), r.phase),"
    " coalesce(t.layer, r.layer), t.dtype, t.shape"
    " FROM tensor t LEFT JOIN range r ON r.id = t.range_id AND r.rank = t.rank"
    " WHERE t.rank = ?1 AND t.space = 'device' AND t.alloc_seq <= ?3"
    " AND (t.free_seq IS NULL OR (t.free_seq > ?2 AND t.free_seq > t.alloc_seq))"
    " ORDER BY t.alloc_seq, t.id";

static void read_life(const struct up_query *query, struct up_lifetime *life)
{
    *life = (struct up_lifetime){.storage = up_query_integer(query, 0, 0),
                                 .bytes = up_max(0, up_query_integer(query, 1, 0)),
                                 .alloc_seq = up_query_integer(query, 2, 0),
                                 .free_seq = up_query_integer(query, 3, INT64_MAX),
                                 .alloc_ns = up_query_integer(query, 4, 0),
                                 .free_ns = up_query_integer(query, 5, 0),
                                 .step = up_query_integer(query, 6, UP_NONE),
                                 .free_step = up_query_integer(query, 7, UP_NONE)};
}

static void read_words(const struct up_query *query, struct up_recorded_tensor *tensor,
                       int64_t tokens)
{
    char word[UP_META_TEXT];
    int64_t shape[DIMENSIONS];
    up_query_copy(query, 9, word, sizeof word);
    tensor->category = index_of(word, up_category_names, UP_CATEGORY_COUNT);
    up_query_copy(query, 10, word, sizeof word);
    tensor->phase = index_of(word, up_phase_names, UP_PHASE_COUNT);
    tensor->layer = up_max(UP_NONE, up_query_integer(query, 11, UP_NONE));
    up_query_copy(query, 12, word, sizeof word);
    tensor->dtype_bytes = bytes_of_dtype(word);
    up_query_copy(query, 13, word, sizeof word);
    int count = read_shape(word, shape);
    tensor->role = role_of(tensor->name);
    if (count == 3) tensor->heads = up_max(0, shape[1]);
    tensor->token_rows = is_by_token(tensor->life.bytes, shape, count, tokens);
}

static enum up_status read_tensors(const struct up_run *run, struct up_recorded *recorded,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    int64_t capacity = 0;
    bool row;
    UP_TRY(up_query_open(&query, run, tensors_sql,
                         UP_BIND(recorded->rank, recorded->first_seq, recorded->last_seq), err));
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        UP_TRY(up_grow(&recorded->tensors, recorded->count, &capacity, sizeof *recorded->tensors,
                       err));
        struct up_recorded_tensor *tensor = &recorded->tensors[recorded->count++];
        *tensor = (struct up_recorded_tensor){.name = up_query_text(&query, 8),
                                              .forward_end = INT64_MAX,
                                              .backward_begin = INT64_MAX};
        if (!tensor->name) UP_TRY(up_no_memory(err));
        read_life(&query, &tensor->life);
        read_words(&query, tensor, recorded->tokens);
    }
out:
    up_query_close(&query);
    return rc;
}

/* --- The run -------------------------------------------------------------------------------------
 */

static int64_t known(int64_t value)
{
    return up_max(0, value);
}

// Of what meta says; a rank has the floor of its share, and the lower ones what is left over.
static void take_facts(const struct up_run_facts *facts, struct up_recorded *recorded)
{
    recorded->ranks = known(facts->ranks);
    recorded->seq = known(facts->seq_len);
    recorded->cp = facts->cp >= 1 ? facts->cp : recorded->ranks == 1;
    recorded->batch = facts->batch >= 1 ? facts->batch : 1;
    recorded->accum = facts->accum >= 1 ? facts->accum : 1;
    recorded->dtype_bytes = bytes_of_dtype(facts->dtype);
    recorded->on_cpu = !strcmp(*facts->as ? facts->as : facts->device, "cpu");
    if (recorded->cp < 1 || recorded->seq < recorded->cp) return;
    int64_t more = recorded->rank % recorded->cp < recorded->seq % recorded->cp;
    int64_t tokens = recorded->seq / recorded->cp + more;
    if (!__builtin_mul_overflow(tokens, recorded->batch, &tokens)) recorded->tokens = tokens;
}

// Of the step's tensors alone; with `step` UP_NONE of all.
static enum up_status find_span(const struct up_run *run, struct up_recorded *recorded,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(up_query_open(&query, run,
                         "SELECT min(alloc_seq), max(alloc_seq),"
                         " max(CASE WHEN ?2 < 0 OR free_step = ?2 THEN free_seq END) FROM tensor"
                         " WHERE rank = ?1 AND space = 'device' AND (?2 < 0 OR step = ?2)",
                         UP_BIND(recorded->rank, recorded->step), err));
    UP_TRY(up_query_next(&query, &row, err));
    recorded->first_seq = up_query_integer(&query, 0, 0);
    recorded->last_seq = up_max(up_query_integer(&query, 1, 0), up_query_integer(&query, 2, 0));
out:
    up_query_close(&query);
    return rc;
}

static enum up_status read_room(const struct up_run *run, struct up_recorded *recorded,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(up_query_value(run, "SELECT capacity_bytes FROM rank WHERE rank = ?1",
                          UP_BIND(recorded->rank), 0, &recorded->capacity_bytes, err));
    UP_TRY(up_query_value(run,
                          "SELECT CAST(total(bytes) AS INTEGER) FROM device_alloc WHERE rank = ?1"
                          " AND space = 'device' AND owner <> 'arena' AND free_ns IS NULL"
                          " AND " UP_SQL_NO_TENSOR,
                          UP_BIND(recorded->rank), 0, &recorded->other_bytes, err));
    recorded->capacity_bytes = known(recorded->capacity_bytes);
    recorded->other_bytes = known(recorded->other_bytes);
out:
    return rc;
}

/* --- What follows from the order -----------------------------------------------------------------
 */

struct moment {
    int64_t layer, seq;
    int64_t next; // of forward moments: the first after it of another layer
};

struct moments {
    struct moment *forward;  // allocations of blocks' (and the loss's) forward, by seq
    struct moment *backward; // what happens in blocks' backward, by layer and seq
    int64_t *any_backward;   // allocations in backward, by seq
    int64_t forward_count, backward_count, any_count;
};

static bool is_activation(const struct up_recorded_tensor *tensor)
{
    switch (tensor->category) {
    case UP_CATEGORY_ATTENTION:
    case UP_CATEGORY_NORM:
    case UP_CATEGORY_MLP:
    case UP_CATEGORY_LOSS:
        return true;
    default:
        return false;
    }
}

static int by_layer(const void *a, const void *b)
{
    const struct moment *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (x->seq > y->seq) - (x->seq < y->seq);
}

static void list_allocations(struct up_recorded *recorded, struct moments *m)
{
    recorded->backward_seq = recorded->optimizer_seq = INT64_MAX;
    for (int64_t i = 0; i < recorded->count; i++) {
        const struct up_recorded_tensor *t = &recorded->tensors[i];
        int64_t seq = t->life.alloc_seq;
        if (t->phase == UP_PHASE_OPTIMIZER)
            recorded->optimizer_seq = up_min(recorded->optimizer_seq, seq);
        if (t->phase == UP_PHASE_FORWARD && is_activation(t))
            m->forward[m->forward_count++] = (struct moment){.layer = t->layer, .seq = seq};
        if (t->phase != UP_PHASE_BACKWARD) continue;
        m->any_backward[m->any_count++] = seq;
        recorded->backward_seq = up_min(recorded->backward_seq, seq);
        if (t->layer >= 0 && (is_activation(t) || t->category == UP_CATEGORY_WORKSPACE))
            m->backward[m->backward_count++] = (struct moment){.layer = t->layer, .seq = seq};
    }
    for (int64_t i = m->forward_count; i-- > 0;) {
        bool same = i + 1 < m->forward_count && m->forward[i + 1].layer == m->forward[i].layer;
        m->forward[i].next = same ? m->forward[i + 1].next : i + 1;
    }
}

// The first of `count` sorted moments at or after `seq`, of `layer` where they are by layer.
static int64_t find_moment(const struct moment *moments, int64_t count, int64_t layer, int64_t seq)
{
    int64_t low = 0, high = count;
    const struct moment wanted = {.layer = layer, .seq = seq};
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        bool before =
            layer == UP_NONE ? moments[middle].seq < seq : by_layer(&moments[middle], &wanted) < 0;
        if (before)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int64_t next_backward(const struct moments *m, int64_t seq)
{
    int64_t low = 0, high = m->any_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (m->any_backward[middle] <= seq)
            low = middle + 1;
        else
            high = middle;
    }
    return low < m->any_count ? m->any_backward[low] : INT64_MAX;
}

// A block's input is made while the block before it is still at work: a few blocks are passed over.
enum { PASSED_OVER = 4 };

static int64_t end_of_forward(const struct moments *m, const struct up_recorded_tensor *tensor)
{
    int64_t at = find_moment(m->forward, m->forward_count, UP_NONE, tensor->life.alloc_seq);
    for (int i = 0; i < PASSED_OVER && at < m->forward_count; i++) {
        const struct moment *moment = &m->forward[at];
        at = moment->next;
        if (moment->layer == tensor->layer) break;
    }
    return at < m->forward_count ? m->forward[at].seq : INT64_MAX;
}

static void mark_kept(struct up_recorded *recorded, struct moments *m)
{
    for (int64_t i = 0; i < recorded->count; i++) {
        struct up_recorded_tensor *t = &recorded->tensors[i];
        bool of_block = is_activation(t) || t->category == UP_CATEGORY_CHECKPOINT;
        if (t->layer < 0 || t->phase != UP_PHASE_FORWARD || !of_block) continue;
        int64_t backward = next_backward(m, t->life.alloc_seq);
        t->forward_end = up_min(end_of_forward(m, t), backward);
        // A trace that ends in the forward has no backward yet: what outlives its block waits.
        t->kept = t->forward_end != INT64_MAX &&
                  t->life.free_seq > (backward == INT64_MAX ? t->forward_end : backward);
        if (t->kept && is_activation(t) && t->life.free_seq != INT64_MAX)
            m->backward[m->backward_count++] =
                (struct moment){.layer = t->layer, .seq = t->life.free_seq};
    }
}

static void mark_backward(struct up_recorded *recorded, const struct moments *m)
{
    for (int64_t i = 0; i < recorded->count; i++) {
        struct up_recorded_tensor *t = &recorded->tensors[i];
        if (!t->kept) continue;
        int64_t after = next_backward(m, t->life.alloc_seq);
        int64_t at = find_moment(m->backward, m->backward_count, t->layer, after);
        bool found = at < m->backward_count && m->backward[at].layer == t->layer;
        t->backward_begin = found ? m->backward[at].seq : INT64_MAX;
        t->backward_begin = up_min(t->backward_begin, t->life.free_seq);
    }
}

static enum up_status follow(struct up_recorded *recorded, struct up_error *err)
{
    enum up_status rc = UP_OK;
    size_t room = (size_t)recorded->count + 1;
    struct moments m = {.forward = calloc(room, sizeof *m.forward),
                        .backward = calloc(2 * room, sizeof *m.backward),
                        .any_backward = calloc(room, sizeof *m.any_backward)};
    if (!m.forward || !m.backward || !m.any_backward) UP_TRY(up_no_memory(err));
    list_allocations(recorded, &m);
    mark_kept(recorded, &m);
    qsort(m.backward, (size_t)m.backward_count, sizeof *m.backward, by_layer);
    mark_backward(recorded, &m);
out:
    free(m.forward);
    free(m.backward);
    free(m.any_backward);
    return rc;
}

/* --- Moments, and storages of several names ------------------------------------------------------
 */

static int ascending(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int64_t up_recorded_moment(const struct up_recorded *recorded, int64_t seq)
{
    int64_t low = 0, high = recorded->moment_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (recorded->moments[middle] < seq)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void list_seqs(const struct up_recorded *recorded, int64_t *seqs)
{
    for (int64_t i = 0; i < recorded->count; i++) {
        *seqs++ = recorded->tensors[i].life.alloc_seq;
        *seqs++ = recorded->tensors[i].life.free_seq;
    }
    *seqs++ = recorded->first_seq;
    *seqs++ = recorded->last_seq;
    *seqs++ = up_sum(recorded->last_seq, 1);
}

static enum up_status list_moments(struct up_recorded *recorded, struct up_error *err)
{
    int64_t count = 2 * recorded->count + 3, kept = 0;
    int64_t *moments = recorded->moments = calloc((size_t)count, sizeof *moments);
    if (!moments) return up_no_memory(err);
    list_seqs(recorded, moments);
    qsort(moments, (size_t)count, sizeof *moments, ascending);
    for (int64_t i = 0; i < count; i++)
        if (!kept || moments[kept - 1] != moments[i]) moments[kept++] = moments[i];
    recorded->moment_count = kept;
    for (int64_t i = 0; i < recorded->count; i++) {
        struct up_recorded_tensor *t = &recorded->tensors[i];
        t->alloc_at = up_recorded_moment(recorded, t->life.alloc_seq);
        t->free_at = up_recorded_moment(recorded, t->life.free_seq);
    }
    return UP_OK;
}

static int by_storage(const void *a, const void *b)
{
    const struct up_recorded_tensor *x = *(struct up_recorded_tensor *const *)a,
                                    *y = *(struct up_recorded_tensor *const *)b;
    return (x->life.storage > y->life.storage) - (x->life.storage < y->life.storage);
}

static enum up_status mark_shared(struct up_recorded *recorded, struct up_error *err)
{
    struct up_recorded_tensor **order = calloc((size_t)recorded->count + 1, sizeof *order);
    if (!order) return up_no_memory(err);
    for (int64_t i = 0; i < recorded->count; i++) order[i] = &recorded->tensors[i];
    qsort(order, (size_t)recorded->count, sizeof *order, by_storage);
    for (int64_t i = 1; i < recorded->count; i++)
        if (order[i]->life.storage == order[i - 1]->life.storage)
            order[i]->shared = order[i - 1]->shared = true;
    free(order);
    return UP_OK;
}

/* --- All -----------------------------------------------------------------------------------------
 */

enum up_status up_recorded_read(const struct up_run *run, const struct up_breakdown *breakdown,
                                struct up_recorded *recorded, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_run_facts facts;
    const struct up_peak *peak = &breakdown->peak;
    *recorded = (struct up_recorded){0};
    if (peak->rank == UP_NONE)
        UP_TRY(up_fail(err, UP_USAGE, "%s: expected recorded tensors: there are none to advise on",
                       run->path));
    recorded->rank = peak->rank;
    recorded->step = peak->step;
    if (breakdown->host_peak.seq != UP_NONE)
        recorded->host_peak_bytes = known(breakdown->host_peak.peak_bytes);
    UP_TRY(up_run_facts_read(run, &facts, err));
    take_facts(&facts, recorded);
    UP_TRY(find_span(run, recorded, err));
    UP_TRY(read_tensors(run, recorded, err));
    UP_TRY(read_room(run, recorded, err));
    UP_TRY(follow(recorded, err));
    UP_TRY(list_moments(recorded, err));
    UP_TRY(mark_shared(recorded, err));
out:
    if (rc != UP_OK) up_recorded_release(recorded);
    return rc;
}

void up_recorded_release(struct up_recorded *recorded)
{
    for (int64_t i = 0; i < recorded->count; i++) free(recorded->tensors[i].name);
    free(recorded->tensors);
    free(recorded->moments);
    *recorded = (struct up_recorded){0};
}
