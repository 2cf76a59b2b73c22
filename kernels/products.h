/* Products of whole tensors, on threads of their own. */
#ifndef STRATA_PRODUCTS_H
#define STRATA_PRODUCTS_H

#include "ggml_abi.h"

typedef struct Pool Pool;

/* Set once, before the first product. */
extern Ggml ggml;
extern bool has_vnni;

/* Whether weights of a type can be multiplied on this processor. */
bool has_kernel(int32_t type);

/* A pool of one thread, or NULL without memory. */
Pool *create_pool(void);
void set_pool_threads(Pool *pool, int threads);
void free_pool(Pool *pool);

/* out = src[0] * src[1], ggml's MUL_MAT; false without memory. */
bool multiply_all(Pool *pool, const Tensor *out);
/* The same for MUL_MAT_ID: the columns of token i are multiplied by the weights of the experts in row i of src[2]. */
bool multiply_experts(Pool *pool, const Tensor *out);

#endif
