#include "trainer/step/step.h"

struct up_attention_shape up_attention_shape_of(const struct up_config *config, int64_t cp_rank,
                                                int64_t stage, int64_t batch)
{
    struct up_heads query = up_config_query_heads(config, cp_rank, stage);
    struct up_heads kv = up_config_kv_heads(config, cp_rank, stage);
    int64_t group = config->model.heads / config->model.kv_heads;
    return (struct up_attention_shape){.batch = batch,
                                       .seq = config->seq,
                                       .heads = query.count,
                                       .kv_heads = kv.count,
                                       .head_dim = config->model.head_dim,
                                       .group = group,
                                       .first_head_in_group = query.first - kv.first * group};
}
