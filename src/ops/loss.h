#ifndef UP_OPS_LOSS_H
#define UP_OPS_LOSS_H

#include "trace/names.h"

/* Cross entropy with its gradient in place: *loss_sum += sum over counted rows of
 * (log sum exp(logits) - logits[target]), and logits becomes
 * scale * (softmax(logits) - onehot(target)), zero in rows whose target is -100. */
struct up_cross_entropy_args {
    void *logits;           // [rows, vocab], in: logits, out: their gradient
    const int32_t *targets; // [rows]
    double *loss_sum;       // [1], added to
    float scale;            // 1 / counted tokens of the step
    int64_t rows, vocab;
    enum up_dtype dtype;
};

#endif
