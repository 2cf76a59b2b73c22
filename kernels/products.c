#include "products.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "matmul.h"

/* Columns whose activations are kept at a time. */
#define PANEL 512
#define GROUPS (PANEL / GROUP)
#define MOST_THREADS 256
/* How often a thread looks for work before it sleeps. */
#define SPINS 2000

Ggml ggml;
bool has_vnni;

bool has_kernel(int32_t type) {
    int rows;
    return type >= 0 && type < TYPES && FORMATS[type].block && find_kernel(&FORMATS[type], has_vnni, &rows) != NULL;
}

/* A column of activations and the place of its products; NULL where a group has fewer columns. */
typedef struct {
    const float *from;
    float *to;
} Column;

/* The groups from `first` to before `end` are multiplied by the same weights. */
typedef struct {
    const uint8_t *weights;
    int64_t first, end;
} Segment;

typedef struct Worker Worker;

struct Pool {
    int threads, started;
    Worker *workers;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    atomic_uint round;
    atomic_int busy;
    atomic_llong next;
    atomic_bool failed;
    bool stop;
    /* The present product: `rows` per tile, `total` rows of `length` weights, which begin at `weights` for the columns
     * that are added next. */
    const Format *format;
    Multiply multiply;
    int rows;
    const uint8_t *weights;
    size_t row_bytes;
    int64_t length, total;
    Column columns[PANEL];
    int count;
    Segment segments[GROUPS];
    int segment_count;
    void (*run)(Worker *);
    uint8_t *panel;
    size_t panel_bytes;
};

struct Worker {
    Pool *pool;
    pthread_t thread;
    uint8_t *scratch;
    size_t scratch_bytes;
};

static bool reserve(uint8_t **memory, size_t *size, size_t wanted) {
    if (*size >= wanted) return true;
    free(*memory);
    *memory = aligned_alloc(64, (wanted + 63) / 64 * 64);
    *size = *memory == NULL ? 0 : wanted;
    return *memory != NULL;
}

static size_t group_bytes(const Pool *pool) {
    if (pool->format->widen != NULL) return (size_t)pool->length * GROUP * 4;
    return (size_t)(GROUP * (pool->length + 12 * pool->length / pool->format->part));
}

static Columns group_at(const Pool *pool, int64_t group) {
    const int64_t parts = pool->length / pool->format->part;
    uint8_t *start = pool->panel + (size_t)group * group_bytes(pool);
    if (pool->format->widen != NULL) return (Columns){.floats = (float *)start};
    Columns columns = {.quants = (int8_t *)start, .scales = (float *)(start + GROUP * pool->length)};
    columns.sums = columns.scales + GROUP * parts;
    columns.starts = (int32_t *)(columns.sums + GROUP * parts);
    return columns;
}

static Convert *conversion(int32_t type) {
    switch (type) {
        case TYPE_Q8_0: return ggml.to_q8_0;
        case TYPE_Q8_1: return ggml.to_q8_1;
        case TYPE_Q8_K: return ggml.to_q8_K;
        case TYPE_F16: return ggml.to_f16;
        case TYPE_BF16: return ggml.to_bf16;
        default: return NULL;
    }
}

static void convert_groups(Worker *worker) {
    Pool *pool = worker->pool;
    const Format *format = pool->format;
    Convert *convert = conversion(format->activations);
    const int64_t groups = pool->count / GROUP;
    if (!reserve(&worker->scratch, &worker->scratch_bytes, (size_t)pool->length * 2 + 64)) {
        atomic_store(&pool->failed, true);
        return;
    }
    for (int64_t group; (group = atomic_fetch_add(&pool->next, 1)) < groups;) {
        Columns columns = group_at(pool, group);
        for (int c = 0; c < GROUP; c++) {
            const uint8_t *row = NULL;
            const float *source = pool->columns[group * GROUP + c].from;
            if (source != NULL) {
                if (convert != NULL) convert(source, worker->scratch, pool->length);
                row = convert != NULL ? worker->scratch : (const uint8_t *)source;
            }
            fill_column(format, row, c, pool->length, &columns);
        }
    }
}

/* One item of work is a tile of a segment's rows, or where there are few tiles, a slice of the columns too. */
static void multiply_rows(Worker *worker) {
    Pool *pool = worker->pool;
    const int64_t parts = pool->length / pool->format->part, total = pool->total;
    const bool widened = pool->format->widen != NULL;
    const size_t quants = (size_t)(pool->rows * pool->length), floats = (size_t)(pool->rows * parts) * 4;
    if (!reserve(&worker->scratch, &worker->scratch_bytes, widened ? 4 * quants : quants + 2 * floats)) {
        atomic_store(&pool->failed, true);
        return;
    }
    RowTile tile = {.rows = pool->rows, .quants = worker->scratch, .floats = (float *)worker->scratch};
    tile.scales = (float *)(worker->scratch + quants);
    tile.shifts = (float *)(worker->scratch + quants + floats);
    const int64_t tiles = (total + pool->rows - 1) / pool->rows, all = tiles * pool->segment_count;
    const int64_t wanted = (4 * pool->threads + all - 1) / all, slices = wanted < GROUPS ? wanted : GROUPS;
    for (int64_t item; (item = atomic_fetch_add(&pool->next, 1)) < all * slices;) {
        const Segment *segment = &pool->segments[item / slices / tiles];
        const int64_t slice = item % slices, groups = segment->end - segment->first;
        int64_t group = segment->first + groups * slice / slices;
        const int64_t end = segment->first + groups * (slice + 1) / slices;
        if (group == end) continue;
        const int64_t first = item / slices % tiles * pool->rows;
        const int count = total - first < pool->rows ? (int)(total - first) : pool->rows;
        const uint8_t *weights = segment->weights + (size_t)first * pool->row_bytes;
        fill_tile(pool->format, weights, pool->row_bytes, count, pool->length, &tile);
        for (; group < end; group++) {
            const Columns columns = group_at(pool, group);
            float products[GROUP][MOST_ROWS];
            pool->multiply(&tile, &columns, parts, products);
            for (int c = 0; c < GROUP; c++) {
                float *to = pool->columns[group * GROUP + c].to;
                if (to != NULL) memcpy(to + first, products[c], (size_t)count * 4);
            }
        }
    }
}

INLINE void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void *work(void *given) {
    Worker *worker = given;
    Pool *pool = worker->pool;
    for (unsigned seen = 0;;) {
        for (int i = 0; i < SPINS && atomic_load(&pool->round) == seen; i++) pause_briefly();
        pthread_mutex_lock(&pool->lock);
        while (atomic_load(&pool->round) == seen && !pool->stop) pthread_cond_wait(&pool->wake, &pool->lock);
        seen = atomic_load(&pool->round);
        const bool stop = pool->stop;
        pthread_mutex_unlock(&pool->lock);
        if (stop) return NULL;
        pool->run(worker);
        if (atomic_fetch_sub(&pool->busy, 1) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

/* Run a step on all threads and wait for its end. */
static void run_all(Pool *pool, void (*step)(Worker *)) {
    pool->run = step;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->busy, pool->started);
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->round, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    step(&pool->workers[0]);
    for (int i = 0; i < SPINS && atomic_load(&pool->busy); i++) pause_briefly();
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->busy)) pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

static void stop_threads(Pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->workers[i + 1].thread, NULL);
    for (int i = 0; pool->workers != NULL && i <= pool->started; i++) free(pool->workers[i].scratch);
    free(pool->workers);
    pool->workers = NULL;
    pool->started = 0;
    pool->stop = false;
}

/* Start what threads the system gives, up to the number asked for. */
static bool start_threads(Pool *pool) {
    if (pool->workers != NULL) return true;
    pool->workers = calloc((size_t)pool->threads, sizeof(Worker));
    if (pool->workers == NULL) return false;
    atomic_store(&pool->round, 0);
    for (int i = 0; i < pool->threads; i++) pool->workers[i].pool = pool;
    for (int i = 1; i < pool->threads; i++, pool->started++)
        if (pthread_create(&pool->workers[i].thread, NULL, work, &pool->workers[i])) break;
    return true;
}

/* Multiply the columns that were gathered, and forget them. */
static bool multiply_columns(Pool *pool) {
    const size_t groups = (size_t)pool->count / GROUP;
    if (pool->count == 0 || pool->total == 0) return true;
    if (!start_threads(pool) || !reserve(&pool->panel, &pool->panel_bytes, groups * group_bytes(pool))) return false;
    atomic_store(&pool->failed, false);
    run_all(pool, convert_groups);
    if (!atomic_load(&pool->failed)) run_all(pool, multiply_rows);
    pool->count = pool->segment_count = 0;
    return !atomic_load(&pool->failed);
}

static bool add_column(Pool *pool, const void *from, void *to) {
    if (pool->count == PANEL && !multiply_columns(pool)) return false;
    if (pool->count % GROUP == 0) {
        const int64_t group = pool->count / GROUP;
        const bool new = pool->count == 0 || pool->segments[pool->segment_count - 1].weights != pool->weights;
        if (new) pool->segments[pool->segment_count++] = (Segment){pool->weights, group, group};
        pool->segments[pool->segment_count - 1].end = group + 1;
    }
    pool->columns[pool->count++] = (Column){from, to};
    return true;
}

/* The next column begins a group. */
static void end_group(Pool *pool) {
    while (pool->count % GROUP) pool->columns[pool->count++] = (Column){NULL, NULL};
}

static void set_weights(Pool *pool, const Tensor *weights) {
    pool->format = &FORMATS[weights->type];
    pool->multiply = find_kernel(pool->format, has_vnni, &pool->rows);
    pool->weights = weights->data;
    pool->row_bytes = weights->nb[1];
    pool->length = weights->ne[0];
    pool->total = weights->ne[1];
    pool->count = pool->segment_count = 0;
}

static char *at(const Tensor *tensor, int64_t i1, int64_t i2, int64_t i3) {
    return (char *)tensor->data + (size_t)i1 * tensor->nb[1] + (size_t)i2 * tensor->nb[2] + (size_t)i3 * tensor->nb[3];
}

bool multiply_all(Pool *pool, const Tensor *out) {
    const Tensor *activations = out->src[1];
    set_weights(pool, out->src[0]);
    for (int64_t i3 = 0; i3 < out->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < out->ne[2]; i2++)
            for (int64_t i1 = 0; i1 < out->ne[1]; i1++)
                if (!add_column(pool, at(activations, i1, i2, i3), at(out, i1, i2, i3))) return false;
    end_group(pool);
    return multiply_columns(pool);
}

/* Each token has experts of its own: row `i` of the ids names those of token `i`. */
bool multiply_experts(Pool *pool, const Tensor *out) {
    const Tensor *weights = out->src[0], *activations = out->src[1], *ids = out->src[2];
    set_weights(pool, weights);
    for (int64_t expert = 0; expert < weights->ne[2]; expert++) {
        pool->weights = (const uint8_t *)at(weights, 0, expert, 0);
        for (int64_t token = 0; token < ids->ne[1]; token++)
            for (int64_t slot = 0; slot < ids->ne[0]; slot++) {
                if (((const int32_t *)at(ids, token, 0, 0))[slot] != expert) continue;
                if (!add_column(pool, at(activations, slot % activations->ne[1], token, 0), at(out, slot, token, 0)))
                    return false;
            }
        end_group(pool);
    }
    return multiply_columns(pool);
}

Pool *create_pool(void) {
    Pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pool->threads = 1;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    return pool;
}

void free_pool(Pool *pool) {
    stop_threads(pool);
    free(pool->panel);
    free(pool);
}

void set_pool_threads(Pool *pool, int threads) {
    const int wanted = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
    if (wanted == pool->threads) return;
    stop_threads(pool);
    pool->threads = wanted;
}
