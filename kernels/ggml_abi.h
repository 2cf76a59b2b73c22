/* What this library shares with ggml to be one of its backends: the structures of ggml's backend interface, version 3,
 * and of a tensor, as ggml of llama.cpp b11549 lays them out (ggml.h, ggml-backend-impl.h). The numbers of types and
 * operations are ggml's. Python checks the version of the wheel before it registers the backend.
 */
#ifndef STRATA_GGML_ABI_H
#define STRATA_GGML_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GGML_API_VERSION 3
#define GGML_SUCCESS 0
#define GGML_FAILED (-1)
#define GGML_DEVICE_ACCELERATOR 3
/* Of a tensor's flags: it is wanted. A graph also has nodes that are not. */
#define GGML_COMPUTE 16

enum {
    TYPE_F32 = 0,
    TYPE_F16 = 1,
    TYPE_Q4_0 = 2,
    TYPE_Q4_1 = 3,
    TYPE_Q5_0 = 6,
    TYPE_Q5_1 = 7,
    TYPE_Q8_0 = 8,
    TYPE_Q8_1 = 9,
    TYPE_Q2_K = 10,
    TYPE_Q3_K = 11,
    TYPE_Q4_K = 12,
    TYPE_Q5_K = 13,
    TYPE_Q6_K = 14,
    TYPE_Q8_K = 15,
    TYPE_IQ4_NL = 20,
    TYPE_IQ4_XS = 23,
    TYPE_I32 = 26,
    TYPE_BF16 = 30,
    TYPES = 31,
};

typedef struct Tensor {
    int32_t type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int32_t op;
    int32_t op_params[16];
    int32_t flags;
    struct Tensor *src[10];
    struct Tensor *view_src;
    size_t view_offs;
    void *data;
    char name[64];
    void *extra;
    char padding[8];
} Tensor;

typedef struct Registry Registry;
typedef struct Device Device;
typedef struct Backend Backend;

struct Registry {
    int32_t api_version;
    const char *(*get_name)(Registry *);
    size_t (*get_device_count)(Registry *);
    Device *(*get_device)(Registry *, size_t);
    void *(*get_proc_address)(Registry *, const char *);
    void *context;
};

typedef struct {
    const char *name, *description;
    size_t memory_free, memory_total;
    int32_t type;
    const char *device_id;
    bool async, host_buffer, buffer_from_host_ptr, events, mmap_support;
} DeviceProperties;

struct Device {
    const char *(*get_name)(Device *);
    const char *(*get_description)(Device *);
    void (*get_memory)(Device *, size_t *, size_t *);
    int32_t (*get_type)(Device *);
    void (*get_props)(Device *, DeviceProperties *);
    Backend *(*init_backend)(Device *, const char *);
    void *(*get_buffer_type)(Device *);
    void *(*get_host_buffer_type)(Device *);
    void *(*buffer_from_host_ptr)(Device *, void *, size_t, size_t);
    bool (*supports_op)(Device *, const Tensor *);
    bool (*supports_buft)(Device *, void *);
    bool (*offload_op)(Device *, const Tensor *);
    void *(*event_new)(Device *);
    void (*event_free)(Device *, void *);
    void (*event_synchronize)(Device *, void *);
    Registry *registry;
    void *context;
};

struct Backend {
    const uint8_t *guid;
    const char *(*get_name)(Backend *);
    void (*free)(Backend *);
    void *set_tensor_async, *get_tensor_async, *set_tensor_2d_async, *get_tensor_2d_async, *cpy_tensor_async;
    void *synchronize;
    void *graph_plan_create, *graph_plan_free, *graph_plan_update, *graph_plan_compute;
    int32_t (*graph_compute)(Backend *, void *);
    void *event_record, *event_wait;
    void *graph_optimize;
    Device *device;
    void *context;
};

typedef void Convert(const float *, void *, int64_t);

/* ggml's functions that the backend calls, and its numbers of operations. */
typedef struct {
    void *(*cpu_buffer_type)(void);
    bool (*is_host)(void *buffer_type);
    int32_t (*graph_nodes)(void *graph);
    Tensor *(*graph_node)(void *graph, int32_t);
    /* Convert a row of activations to the type that is multiplied. */
    Convert *to_q8_0, *to_q8_1, *to_q8_K, *to_f16, *to_bf16;
    int32_t mul_mat, mul_mat_id, none, reshape, view, permute, transpose;
} Ggml;

#endif
