/* A backend of ggml, of the kind that works together with the CPU's: it takes the products of weights and many columns,
 * and leaves all else to ggml. Activations are converted by ggml's own functions, so the factors are the same; only the
 * order of the last sums differs.
 */
#include <stdlib.h>

#include "formats.h"
#include "products.h"

/* Rows and columns below which ggml multiplies. */
#define LEAST_COLUMNS 32
/* Columns of an expert, on average, below which ggml multiplies: the kernels take as long for one as for 16. */
#define LEAST_OF_EXPERT 8
#define LEAST_FLOATS_OF_EXPERT 12

static bool passive(const Tensor *node) {
    return node->op == ggml.none || node->op == ggml.reshape || node->op == ggml.view || node->op == ggml.permute
           || node->op == ggml.transpose;
}

static bool packed(const Tensor *tensor, size_t size) { return tensor->type == TYPE_F32 && tensor->nb[0] == size; }

static bool supports(Device *device, const Tensor *node) {
    (void)device;
    if (passive(node)) return true;
    if (node->op != ggml.mul_mat && node->op != ggml.mul_mat_id) return false;
    const Tensor *weights = node->src[0], *activations = node->src[1], *ids = node->src[2];
    if (node->op_params[1] || !has_kernel(weights->type)) return false;
    const Format *format = &FORMATS[weights->type];
    if (weights->ne[0] % format->block || weights->nb[1] != (size_t)(weights->ne[0] / format->block * format->bytes))
        return false;
    if (!packed(activations, 4) || !packed(node, 4) || node->ne[0] < LEAST_COLUMNS) return false;
    if (node->op == ggml.mul_mat) return weights->ne[2] * weights->ne[3] == 1 && node->ne[1] >= LEAST_COLUMNS;
    if (ids->type != TYPE_I32 || ids->nb[0] != 4 || node->ne[2] < LEAST_COLUMNS) return false;
    const int64_t least = format->widen != NULL ? LEAST_FLOATS_OF_EXPERT : LEAST_OF_EXPERT;
    return node->ne[1] * node->ne[2] >= least * weights->ne[2];
}

static const char *backend_name(Backend *backend) { (void)backend; return "strata"; }

static int32_t compute(Backend *backend, void *graph) {
    for (int32_t i = 0, count = ggml.graph_nodes(graph); i < count; i++) {
        const Tensor *node = ggml.graph_node(graph, i);
        if (!(node->flags & GGML_COMPUTE)) continue;
        if (node->op == ggml.mul_mat && !multiply_all(backend->context, node)) return GGML_FAILED;
        if (node->op == ggml.mul_mat_id && !multiply_experts(backend->context, node)) return GGML_FAILED;
    }
    return GGML_SUCCESS;
}

static void free_backend(Backend *backend) {
    free_pool(backend->context);
    free(backend);
}

static Backend *init_backend(Device *device, const char *params) {
    (void)params;
    static const uint8_t guid[16] = "strata-pack-mul";
    Backend *backend = calloc(1, sizeof *backend);
    Pool *pool = create_pool();
    if (backend == NULL || pool == NULL) {
        free(backend);
        free(pool);
        return NULL;
    }
    backend->guid = guid;
    backend->get_name = backend_name;
    backend->free = free_backend;
    backend->graph_compute = compute;
    backend->device = device;
    backend->context = pool;
    return backend;
}

static void set_threads(Backend *backend, int threads) {
    set_pool_threads(backend->context, threads);
}

static const char *device_name(Device *device) { (void)device; return "strata"; }
static int32_t device_type(Device *device) { (void)device; return GGML_DEVICE_ACCELERATOR; }
static void *buffer_type(Device *device) { (void)device; return ggml.cpu_buffer_type(); }
static bool supports_buffer(Device *device, void *type) { (void)device; return ggml.is_host(type); }

static void device_memory(Device *device, size_t *free_bytes, size_t *total) {
    (void)device;
    *free_bytes = *total = 0;
}

static void device_properties(Device *device, DeviceProperties *properties) {
    memset(properties, 0, sizeof *properties);
    properties->name = properties->description = device_name(device);
    properties->type = GGML_DEVICE_ACCELERATOR;
}

static const char *registry_name(Registry *registry) { (void)registry; return "strata"; }
static size_t device_count(Registry *registry) { (void)registry; return 1; }

static Device *device_at(Registry *registry, size_t index) {
    (void)index;
    static Device device = {
        .get_name = device_name,
        .get_description = device_name,
        .get_memory = device_memory,
        .get_type = device_type,
        .get_props = device_properties,
        .init_backend = init_backend,
        .get_buffer_type = buffer_type,
        .supports_op = supports,
        .supports_buft = supports_buffer,
    };
    device.registry = registry;
    return &device;
}

static void *function_named(Registry *registry, const char *name) {
    (void)registry;
    return strcmp(name, "ggml_backend_set_n_threads") ? NULL : (void *)set_threads;
}

/* Return the registry to hand to ggml_backend_register, or NULL if there are no kernels for this processor. `vnni`:
 * the processor has AVX-512 VNNI. */
EXPORT Registry *strata_backend(const Ggml *functions, bool vnni) {
    static Registry registry = {GGML_API_VERSION, registry_name, device_count, device_at, function_named, NULL};
    ggml = *functions;
    has_vnni = vnni;
    return has_kernel(TYPE_Q4_0) ? &registry : NULL;
}

/* Multiply `rows` rows of `length` weights of `type` with `columns` columns of floats: out[column][row]. The functions
 * must have been given to strata_backend. Return whether there was a kernel and memory for it. */
EXPORT bool strata_multiply(int32_t type, void *weights, int64_t rows, int64_t length, float *activations,
                            int64_t columns, int threads, float *out) {
    if (!has_kernel(type)) return false;
    const size_t row_bytes = (size_t)(length / FORMATS[type].block * FORMATS[type].bytes);
    Pool *pool = create_pool();
    if (pool == NULL) return false;
    set_pool_threads(pool, threads);
    Tensor factors[2] = {{.type = type, .ne = {length, rows, 1, 1}, .nb = {0, row_bytes}, .data = weights},
                         {.ne = {length, columns, 1, 1}, .nb = {4, (size_t)length * 4}, .data = activations}};
    Tensor product = {.ne = {rows, columns, 1, 1}, .nb = {4, (size_t)rows * 4}, .src = {factors, factors + 1}, .data = out};
    const bool done = multiply_all(pool, &product);
    free_pool(pool);
    return done;
}
