/* Shorthand for the matrix products and norms of the step, all on the compute stream. */
#include "trainer/step/parts.h"

static void matmul(struct up_trainer *trainer, struct up_matmul_args args)
{
    args.dtype = trainer->config->dtype;
    up_op_matmul(trainer->rank, UP_STREAM_COMPUTE, &args);
}

void up_project(struct up_trainer *trainer, const void *a, const void *w, void *c, int64_t m,
                int64_t n, int64_t k, int64_t ldw, float beta)
{
    matmul(trainer, (struct up_matmul_args){.a = a,
                                            .b = w,
                                            .c = c,
                                            .m = m,
                                            .n = n,
                                            .k = k,
                                            .lda = k,
                                            .ldb = ldw,
                                            .ldc = n,
                                            .transpose_b = true,
                                            .beta = beta,
                                            .c_dtype = trainer->config->dtype});
}

void up_project_back(struct up_trainer *trainer, const void *a, const void *w, void *c, int64_t m,
                     int64_t n, int64_t k, int64_t ldw, float beta)
{
    matmul(trainer, (struct up_matmul_args){.a = a,
                                            .b = w,
                                            .c = c,
                                            .m = m,
                                            .n = k,
                                            .k = n,
                                            .lda = n,
                                            .ldb = ldw,
                                            .ldc = k,
                                            .beta = beta,
                                            .c_dtype = trainer->config->dtype});
}

void up_project_grad(struct up_trainer *trainer, const void *a, const void *b, float *grad,
                     int64_t m, int64_t n, int64_t k, int64_t ldw)
{
    matmul(trainer, (struct up_matmul_args){.a = a,
                                            .b = b,
                                            .c = grad,
                                            .m = n,
                                            .n = k,
                                            .k = m,
                                            .lda = n,
                                            .ldb = k,
                                            .ldc = ldw,
                                            .transpose_a = true,
                                            .beta = 1,
                                            .c_dtype = UP_F32});
}

void up_norm(struct up_trainer *trainer, const void *x, const void *weight, void *y, int64_t rows)
{
    const struct up_model *model = &trainer->config->model;
    up_op_rmsnorm_forward(trainer->rank, UP_STREAM_COMPUTE,
                          &(struct up_rmsnorm_forward_args){.x = x,
                                                            .weight = weight,
                                                            .y = y,
                                                            .rows = rows,
                                                            .width = model->hidden,
                                                            .epsilon = (float)model->norm_epsilon,
                                                            .dtype = trainer->config->dtype});
}

void up_norm_back(struct up_trainer *trainer, const void *x, const void *weight, const void *dy,
                  void *dx, float *d_weight, int64_t rows, bool accumulate)
{
    const struct up_model *model = &trainer->config->model;
    up_op_rmsnorm_backward(trainer->rank, UP_STREAM_COMPUTE,
                           &(struct up_rmsnorm_backward_args){.x = x,
                                                              .weight = weight,
                                                              .dy = dy,
                                                              .dx = dx,
                                                              .d_weight = d_weight,
                                                              .rows = rows,
                                                              .width = model->hidden,
                                                              .epsilon = (float)model->norm_epsilon,
                                                              .accumulate = accumulate,
                                                              .dtype = trainer->config->dtype});
}
