#ifndef UP_OPS_CUDA_ATTENTION_GRAPH_H
#define UP_OPS_CUDA_ATTENTION_GRAPH_H

#include "ops/cuda/attention_impl.h"
#include "ops/cuda/descriptors.h"

/* The operations of a view's forward or backward pass, in the order that cuDNN's engines know them
 * in; the number of them. The list keeps failures. */
int up_attention_graph(struct up_descriptors *list, const struct up_attention_view *view,
                       up_descriptor operations[UP_OPERATIONS_MAX]);

#endif
