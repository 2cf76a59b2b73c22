/* Products of floats: a tile's rows are the lanes of two vectors; the sums of several columns stay in registers. */
#include "matmul.h"

#if defined(__AVX2__)

#define VECTORS 2
#if defined(__AVX512F__)
#define ACROSS 8
#define FUSED _mm512_fmadd_ps
#define LOAD _mm512_loadu_ps
#define SAME _mm512_set1_ps
#define STORE _mm512_storeu_ps
typedef __m512 Vector;
#else
#define ACROSS 4
#define FUSED _mm256_fmadd_ps
#define LOAD _mm256_loadu_ps
#define SAME _mm256_set1_ps
#define STORE _mm256_storeu_ps
typedef __m256 Vector;
#endif
#define ROWS (VECTORS * LANES)
/* Parts of a tile that are multiplied with all columns of the group before the next: they fit into the first cache. */
#define PARTS 8
#define PART 32

static void multiply_floats(const RowTile *tile, const Columns *columns, int64_t parts, float out[GROUP][MOST_ROWS]) {
    for (int c = 0; c < GROUP; c++) memset(out[c], 0, sizeof out[c]);
    for (int64_t start = 0; start < parts; start += PARTS) {
        const int64_t end = start + PARTS < parts ? start + PARTS : parts;
        for (int first = 0; first < GROUP; first += ACROSS) {
            Vector sums[ACROSS][VECTORS];
            for (int c = 0; c < ACROSS; c++)
                for (int v = 0; v < VECTORS; v++) sums[c][v] = LOAD(out[first + c] + v * LANES);
            for (int64_t part = start; part < end; part++) {
                const float *weights = tile->floats + part * PART * ROWS;
                const float *activations = columns->floats + (part * GROUP + first) * PART;
                for (int i = 0; i < PART; i++, weights += ROWS) {
                    Vector lanes[VECTORS];
                    for (int v = 0; v < VECTORS; v++) lanes[v] = LOAD(weights + v * LANES);
                    _Pragma("GCC unroll 8") for (int c = 0; c < ACROSS; c++) {
                        const Vector one = SAME(activations[c * PART + i]);
                        _Pragma("GCC unroll 3") for (int v = 0; v < VECTORS; v++)
                            sums[c][v] = FUSED(lanes[v], one, sums[c][v]);
                    }
                }
            }
            for (int c = 0; c < ACROSS; c++)
                for (int v = 0; v < VECTORS; v++) STORE(out[first + c] + v * LANES, sums[c][v]);
        }
    }
}

Multiply find_float_kernel(int *rows) {
    *rows = ROWS;
    return multiply_floats;
}

#else

Multiply find_float_kernel(int *rows) {
    (void)rows;
    return NULL;
}

#endif
