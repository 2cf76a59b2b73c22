/* How a kernel walks over its input: groups of LANES blocks, each with the importances of its columns, in and out. */
#ifndef STRATA_BLOCKS_H
#define STRATA_BLOCKS_H

#include "halves.h"

#define SUPER_BLOCK 256
#define SMALL_BLOCK 32

/* ggml's limit below which a block counts as all zero. */
#define NOTHING 1e-15f

/* What is searched at once: one vector of sub-blocks, or two. A step of a search waits for the one before, and
 * its sums for every addition: with a second vector the processor has something to do meanwhile. */
#define MOST 2

/* What every kernel is called with: rows of columns floats, one importance a column or NULL, and room for the result. */
typedef struct {
    const float *weights;
    const float *importances;
    uint8_t *out;
    int64_t rows, columns;
} Task;

#define KERNEL(name)                                                                                              \
    EXPORT void strata_quantize_##name(const float *weights, const float *importances, uint8_t *out, int64_t rows, \
                                       int64_t columns)

INLINE int64_t block_count(Task task, int64_t size) { return task.rows * (task.columns / size); }

INLINE int lanes_from(int64_t first, int64_t blocks) { return blocks - first < LANES ? (int)(blocks - first) : LANES; }

/* Element e of block first + k becomes lane k of weights[e]; lanes from count on repeat the last block. */
INLINE void gather_weights(Task task, int64_t size, int64_t first, int count, Floats *weights) {
    const float *blocks[LANES];
    for (int lane = 0; lane < LANES; lane++)
        blocks[lane] = task.weights + size * (first + (lane < count ? lane : count - 1));
    gather(weights, blocks, size);
}

/* The importances of the same blocks: a row has its own again from column 0 on. */
INLINE void gather_importances(Task task, int64_t size, int64_t first, int count, Floats *importances) {
    const int64_t a_row = task.columns / size;
    const float *blocks[LANES];
    for (int lane = 0; lane < LANES; lane++)
        blocks[lane] = task.importances + size * ((first + (lane < count ? lane : count - 1)) % a_row);
    gather(importances, blocks, size);
}

/* words[i] of lane k goes to byte 4 * i of out + k * stride. */
INLINE void scatter_words(const Ints *words, int number, uint8_t *out, int64_t stride, int count) {
    const int32_t *in = (const int32_t *)words;
    for (int lane = 0; lane < count; lane++)
        for (int i = 0; i < number; i++) memcpy(out + lane * stride + 4 * i, in + LANES * i + lane, 4);
}

/* Four vectors of bytes as one of words, the first the lowest. */
INLINE Ints word(const Ints *bytes) { return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24; }

/* The two halves of a block's 32 four-bit levels share 16 bytes. */
INLINE void pack_nibbles(const Ints *levels, int half, Ints *words) {
    for (int i = 0; i < half / 4; i++) {
        Ints bytes[4];
        for (int k = 0; k < 4; k++) bytes[k] = (levels[4 * i + k] & 15) | (levels[4 * i + k + half] & 15) << 4;
        words[i] = word(bytes);
    }
}

/* Bit 4 of 32 levels, the first level's lowest. */
INLINE Ints fifth_bits(const Ints *levels) {
    Ints bits = {0};
    for (int i = 0; i < 32; i++) bits |= (levels[i] >> 4 & 1) << i;
    return bits;
}

/* Levels of two bits: those of 32 weights from each quarter of 128 share a byte. */
INLINE void pack_quarters(const Ints *levels, Ints *words) {
    for (int i = 0; i < SUPER_BLOCK / 16; i++) {
        Ints bytes[4];
        for (int k = 0; k < 4; k++) {
            const Ints *level = levels + i / 8 * 128 + i % 8 * 4 + k;
            bytes[k] = (level[0] & 3) | (level[32] & 3) << 2 | (level[64] & 3) << 4 | (level[96] & 3) << 6;
        }
        words[i] = word(bytes);
    }
}

/* The mean squares of rows, some at a time. */
#define SIGMA_ROWS 8
typedef struct {
    Task task;
    int64_t begin, end;
    float means[SIGMA_ROWS];
} Sigmas;

/* Fill the means of the rows from first on, each sum in the order of its columns; eight sums at once hide the time an
 * addition takes. */
INLINE void fill_sigmas(Sigmas *sigmas, int64_t first) {
    const int64_t columns = sigmas->task.columns, left = sigmas->task.rows - first;
    const int64_t some = left < SIGMA_ROWS ? left : SIGMA_ROWS;
    const float *rows = sigmas->task.weights + first * columns;
    float sums[SIGMA_ROWS] = {0};
    if (some == SIGMA_ROWS) {
        for (int64_t c = 0; c < columns; c++)
            for (int k = 0; k < SIGMA_ROWS; k++) sums[k] += rows[k * columns + c] * rows[k * columns + c];
    } else {
        for (int64_t k = 0; k < some; k++)
            for (int64_t c = 0; c < columns; c++) sums[k] += rows[k * columns + c] * rows[k * columns + c];
    }
    for (int64_t k = 0; k < some; k++) sigmas->means[k] = sums[k] / (float)columns;
    sigmas->begin = first;
    sigmas->end = first + some;
}

/* The mean square of the row that each small block from first on lies in. */
INLINE Floats row_sigmas(Sigmas *sigmas, int64_t first, int count) {
    const int64_t a_row = sigmas->task.columns / SMALL_BLOCK;
    Floats means;
    for (int lane = 0; lane < LANES; lane++) {
        const int64_t row = (first + (lane < count ? lane : count - 1)) / a_row;
        if (row >= sigmas->end) fill_sigmas(sigmas, row);
        means[lane] = sigmas->means[row - sigmas->begin];
    }
    return means;
}

/* importance * sqrt(sigma2 + x * x): how ggml weighs an error when it knows the importances. */
INLINE void weigh(const Floats *x, int n, Floats sigma2, Floats *importances) {
    for (int i = 0; i < n; i++) importances[i] = importances[i] * square_root(sigma2 + x[i] * x[i]);
}

INLINE Floats sum_of(const Floats *values, int n) {
    Floats sum = {0};
    for (int i = 0; i < n; i++) sum += values[i];
    return sum;
}

INLINE Floats squares_of(const Floats *values, int n) {
    Floats sum = {0};
    for (int i = 0; i < n; i++) sum += values[i] * values[i];
    return sum;
}

#endif
