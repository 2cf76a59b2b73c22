#include "matmul.h"

#if defined(__AVX2__)

#if defined(__AVX512F__)
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

/* 16 rows and 16 columns: eight products of four bytes for each part of 32, four for 16. */
#define MULTIPLY_VNNI(name, words, shifted)                                                                           \
    VNNI static void name(const RowTile *tile, const Columns *columns, int64_t parts, float out[GROUP][MOST_ROWS]) {  \
        __m512 totals[GROUP];                                                                                         \
        for (int c = 0; c < GROUP; c++) totals[c] = _mm512_setzero_ps();                                              \
        const int8_t *activations = columns->quants;                                                                  \
        for (int64_t part = 0; part < parts; part++) {                                                                \
            __m512i weights[words];                                                                                   \
            for (int i = 0; i < words; i++)                                                                           \
                weights[i] = _mm512_loadu_si512(tile->quants + (part * words + i) * 64);                              \
            const __m512 scale = _mm512_loadu_ps(tile->scales + part * 16);                                           \
            const __m512 shift = shifted ? _mm512_loadu_ps(tile->shifts + part * 16) : scale;                         \
            _Pragma("GCC unroll 16") for (int c = 0; c < GROUP; c++, activations += 4 * words) {                      \
                __m512i dots = shifted ? _mm512_setzero_si512() : _mm512_set1_epi32(columns->starts[part * GROUP + c]); \
                for (int i = 0; i < words; i++) {                                                                     \
                    int32_t four;                                                                                     \
                    memcpy(&four, activations + 4 * i, 4);                                                            \
                    dots = _mm512_dpbusd_epi32(dots, weights[i], _mm512_set1_epi32(four));                            \
                }                                                                                                     \
                const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(columns->scales[part * GROUP + c]));          \
                totals[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), both, totals[c]);                               \
                if (shifted)                                                                                          \
                    totals[c] = _mm512_fmadd_ps(shift, _mm512_set1_ps(columns->sums[part * GROUP + c]), totals[c]);   \
            }                                                                                                         \
        }                                                                                                             \
        for (int c = 0; c < GROUP; c++) _mm512_storeu_ps(out[c], totals[c]);                                          \
    }

MULTIPLY_VNNI(multiply_vnni_32, 8, false)
MULTIPLY_VNNI(multiply_vnni_32_shifted, 8, true)
MULTIPLY_VNNI(multiply_vnni_16, 4, false)
MULTIPLY_VNNI(multiply_vnni_16_shifted, 4, true)
#endif

/* 8 rows and 16 columns. A product of two bytes with their neighbours is at most 2 * 127 * most: `together` of them
 * fit into 16 bits. */
INLINE void multiply_avx2(const RowTile *tile, const Columns *columns, int64_t parts, float out[GROUP][MOST_ROWS],
                          const int words, const int together, const bool shifted) {
    __m256 totals[GROUP];
    for (int c = 0; c < GROUP; c++) totals[c] = _mm256_setzero_ps();
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *activations = columns->quants;
    for (int64_t part = 0; part < parts; part++) {
        __m256i weights[8];
        for (int i = 0; i < words; i++)
            weights[i] = _mm256_loadu_si256((const __m256i *)(tile->quants + (part * words + i) * 32));
        const __m256 scale = _mm256_loadu_ps(tile->scales + part * 8);
        const __m256 shift = shifted ? _mm256_loadu_ps(tile->shifts + part * 8) : scale;
        for (int c = 0; c < GROUP; c++, activations += 4 * words) {
            __m256i dots = _mm256_setzero_si256();
            if (!shifted) dots = _mm256_set1_epi32(columns->starts[part * GROUP + c]);
            for (int i = 0; i < words; i += together) {
                __m256i pairs = _mm256_setzero_si256();
                for (int j = i; j < i + together; j++) {
                    int32_t four;
                    memcpy(&four, activations + 4 * j, 4);
                    const __m256i found = _mm256_maddubs_epi16(weights[j], _mm256_set1_epi32(four));
                    pairs = j == i ? found : _mm256_add_epi16(pairs, found);
                }
                dots = _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, ones));
            }
            const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(columns->scales[part * GROUP + c]));
            totals[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), both, totals[c]);
            if (shifted) totals[c] = _mm256_fmadd_ps(shift, _mm256_set1_ps(columns->sums[part * GROUP + c]), totals[c]);
        }
    }
    for (int c = 0; c < GROUP; c++) _mm256_storeu_ps(out[c], totals[c]);
}

/* The same for quants of eight bits: signs move from the weights to the activations, as the first factor has none. */
static void multiply_32_bytes(const RowTile *tile, const Columns *columns, int64_t parts, float out[GROUP][MOST_ROWS]) {
    __m256 totals[GROUP];
    for (int c = 0; c < GROUP; c++) totals[c] = _mm256_setzero_ps();
    const __m256i ones = _mm256_set1_epi16(1), middle = _mm256_set1_epi8(-128);
    const int8_t *activations = columns->quants;
    for (int64_t part = 0; part < parts; part++) {
        __m256i weights[8], sizes[8];
        for (int i = 0; i < 8; i++) {
            const __m256i quants = _mm256_loadu_si256((const __m256i *)(tile->quants + (part * 8 + i) * 32));
            weights[i] = _mm256_xor_si256(quants, middle);
            sizes[i] = _mm256_abs_epi8(weights[i]);
        }
        const __m256 scale = _mm256_loadu_ps(tile->scales + part * 8);
        for (int c = 0; c < GROUP; c++, activations += 32) {
            __m256i dots = _mm256_setzero_si256();
            for (int i = 0; i < 8; i++) {
                int32_t four;
                memcpy(&four, activations + 4 * i, 4);
                const __m256i turned = _mm256_sign_epi8(_mm256_set1_epi32(four), weights[i]);
                dots = _mm256_add_epi32(dots, _mm256_madd_epi16(_mm256_maddubs_epi16(sizes[i], turned), ones));
            }
            const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(columns->scales[part * GROUP + c]));
            totals[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), both, totals[c]);
        }
    }
    for (int c = 0; c < GROUP; c++) _mm256_storeu_ps(out[c], totals[c]);
}

#define MULTIPLY_AVX2(name, words, together, shifted)                                                           \
    static void name(const RowTile *tile, const Columns *columns, int64_t parts, float out[GROUP][MOST_ROWS]) { \
        multiply_avx2(tile, columns, parts, out, words, together, shifted);                                     \
    }

MULTIPLY_AVX2(multiply_32_nibbles, 8, 8, false)
MULTIPLY_AVX2(multiply_32_nibbles_shifted, 8, 8, true)
MULTIPLY_AVX2(multiply_32_fives, 8, 4, false)
MULTIPLY_AVX2(multiply_32_fives_shifted, 8, 4, true)
MULTIPLY_AVX2(multiply_16, 4, 2, false)
MULTIPLY_AVX2(multiply_16_nibbles, 4, 4, false)
MULTIPLY_AVX2(multiply_16_nibbles_shifted, 4, 4, true)

Multiply find_kernel(const Format *format, bool vnni, int *rows) {
    if (format->widen != NULL) return find_float_kernel(rows);
#if defined(__AVX512F__)
    if (vnni) {
        *rows = 16;
        if (format->part == 32) return format->shifted ? multiply_vnni_32_shifted : multiply_vnni_32;
        return format->shifted ? multiply_vnni_16_shifted : multiply_vnni_16;
    }
#endif
    (void)vnni;
    *rows = 8;
    if (format->most > 63) return multiply_32_bytes;
    if (format->part == 16) {
        if (format->shifted) return multiply_16_nibbles_shifted;
        return format->most > 15 ? multiply_16 : multiply_16_nibbles;
    }
    if (format->most > 15) return format->shifted ? multiply_32_fives_shifted : multiply_32_fives;
    return format->shifted ? multiply_32_nibbles_shifted : multiply_32_nibbles;
}

#else

Multiply find_kernel(const Format *format, bool vnni, int *rows) {
    (void)format, (void)vnni, (void)rows;
    return NULL;
}

#endif

/* Write 4-byte words of several rows, `count` each, word by word. */
INLINE void interleave(const uint32_t words[MOST_ROWS][LARGEST_BLOCK / 4], int rows, int count, uint32_t *to) {
    for (int i = 0; i < count; i++)
        for (int row = 0; row < rows; row++) *to++ = words[row][i];
}

static void fill_float_tile(const Format *format, const uint8_t *weights, size_t row_bytes, int count, int64_t length,
                            RowTile *tile) {
    uint32_t words[MOST_ROWS][LARGEST_BLOCK / 4] = {{0}};
    uint32_t *to = (uint32_t *)tile->floats;
    for (int64_t block = 0; block < length / format->block; block++, to += format->block * tile->rows) {
        for (int row = 0; row < count; row++)
            format->widen(weights + (size_t)row * row_bytes + block * format->bytes, (float *)words[row]);
        interleave(words, tile->rows, format->block, to);
    }
}

void fill_tile(const Format *format, const uint8_t *weights, size_t row_bytes, int count, int64_t length, RowTile *tile) {
    if (format->widen != NULL) {
        fill_float_tile(format, weights, row_bytes, count, length, tile);
        return;
    }
    uint32_t words[MOST_ROWS][LARGEST_BLOCK / 4] = {{0}};
    float scales[MOST_ROWS][LARGEST_BLOCK / 16] = {{0}}, shifts[MOST_ROWS][LARGEST_BLOCK / 16] = {{0}};
    const int rows = tile->rows, parts = format->block / format->part;
    uint32_t *to = (uint32_t *)tile->quants;
    for (int64_t block = 0; block < length / format->block; block++, to += format->block / 4 * rows) {
        for (int row = 0; row < count; row++) {
            const uint8_t *source = weights + (size_t)row * row_bytes + block * format->bytes;
            format->unpack(source, (uint8_t *)words[row], scales[row], shifts[row]);
        }
        interleave(words, rows, format->block / 4, to);
        for (int part = 0; part < parts; part++)
            for (int row = 0; row < rows; row++) {
                tile->scales[(block * parts + part) * rows + row] = scales[row][part];
                tile->shifts[(block * parts + part) * rows + row] = shifts[row][part];
            }
    }
}

/* The scale of part `part` of quantized activations, its quants, and what ggml takes as their scaled sum. */
INLINE const int8_t *read_part(int32_t type, const uint8_t *row, int64_t part, int size, float *scale, float *scaled) {
    const int64_t at = part * size;
    if (type == TYPE_Q8_K) {
        const uint8_t *block = row + at / 256 * 292;
        memcpy(scale, block, 4);
        return (const int8_t *)block + 4 + at % 256;
    }
    const int stride = type == TYPE_Q8_1 ? 36 : 34;
    const uint8_t *block = row + at / 32 * stride;
    *scale = half_at(block);
    if (type == TYPE_Q8_1) *scaled = half_at(block + 2);
    return (const int8_t *)block + stride - 32;
}

void fill_column(const Format *format, const uint8_t *row, int column, int64_t length, Columns *group) {
    const int size = format->part;
    for (int64_t part = 0; format->widen != NULL && part < length / size; part++) {
        float *floats = group->floats + (part * GROUP + column) * size;
        if (row == NULL) {
            memset(floats, 0, (size_t)size * 4);
        } else {
            format->widen(row + part * format->bytes, floats);
        }
    }
    if (format->widen != NULL) return;
    for (int64_t part = 0; part < length / size; part++) {
        const int64_t at = part * GROUP + column;
        int8_t *quants = group->quants + at * size;
        float scale = 0, scaled = 0;
        int32_t sum = 0;
        if (row == NULL) {
            memset(quants, 0, (size_t)size);
        } else {
            memcpy(quants, read_part(format->activations, row, part, size, &scale, &scaled), (size_t)size);
            for (int i = 0; i < size; i++) sum += quants[i];
        }
        group->scales[at] = scale;
        group->starts[at] = -format->offset * sum;
        group->sums[at] = format->activations == TYPE_Q8_1 ? scaled : scale * (float)sum;
    }
}
