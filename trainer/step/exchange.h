/* Ulysses: between sequence shards and head shards.
 *
 * In sequence layout a rank holds, for its own tokens, the heads of all ranks, in slots:
 * slot r is [T, heads of rank r, head_dim]. In head layout it holds, for all tokens of the
 * sequence, its own heads: [S, heads, head_dim]. What arrives from the ranks in their order is the
 * other layout: nothing is permuted. With one rank both layouts are the same bytes, and nothing
 * moves.
 */
#ifndef UP_TRAINER_EXCHANGE_H
#define UP_TRAINER_EXCHANGE_H

#include "comm/comm.h"
#include "model/config.h"

/* Where slots and ranks' tokens begin, in elements; cp + 1 entries each. */
struct up_layout {
    const int64_t *slot_at;   // sequence layout: slot r is [slot_at[r], slot_at[r + 1])
    const int64_t *tokens_at; // head layout: what belongs to rank r's tokens
    int64_t slots_heads;      // heads of all slots together
    int64_t own_heads;        // this rank's heads
};

/* The layouts of the query heads (of every stage) and of each stage's KV heads. */
struct up_layouts {
    struct up_layout query;
    struct up_layout *kv; // per stage
    int64_t *storage;
};

enum up_status up_layouts_init(struct up_layouts *layouts, const struct up_config *config,
                               int64_t cp_rank, struct up_error *err);
void up_layouts_release(struct up_layouts *layouts);

/* Sends *tensor to the other layout, on the comm stream, and puts what arrives in its place: a new
 * tensor under `tag`, there at the moment that is returned; the compute stream is to wait for it.
 * With one rank nothing is done. */
struct up_moment up_to_heads(struct up_rank *rank, struct up_comm *cp, struct up_tensor **tensor,
                             struct up_tag tag, const struct up_layout *layout,
                             const struct up_config *config);
struct up_moment up_to_sequence(struct up_rank *rank, struct up_comm *cp, struct up_tensor **tensor,
                                struct up_tag tag, const struct up_layout *layout,
                                const struct up_config *config, int64_t cp_rank);

#endif
