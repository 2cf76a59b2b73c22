/* Lanes: vectors in which every element works on a block of its own.
 *
 * The searches of ggml's quantizers are sums over 16 or 32 weights, and the order of a sum decides about its last bit.
 * So no sum is ever split here: lane k does for block k exactly what scalar code would do, in the same order, and a
 * vector instruction does it for LANES blocks at once. Everything that reads or writes memory by block is transposed:
 * element e of all blocks lies together in one vector.
 *
 * Compile with -ffp-contract=off: a fused multiply-add rounds once where two operations round twice.
 */
#ifndef STRATA_LANES_H
#define STRATA_LANES_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#else
#error "lanes are written for x86-64 and aarch64"
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
/* Comparisons of Floats and Ints give Ints: -1 where true, 0 where false. */

INLINE Floats all(float value) { return (Floats){0} + value; }
INLINE Ints all_int(int32_t value) { return (Ints){0} + value; }
INLINE Floats to_floats(Ints a) { return __builtin_convertvector(a, Floats); }
INLINE Floats absolute(Floats a) { return (Floats)((Ints)a & 0x7fffffff); }

/* The elements of a where mask is -1, of b where it is 0. */
INLINE Ints choose_ints(Ints mask, Ints a, Ints b) {
#if defined(__AVX512F__) || !defined(__x86_64__)
    return (mask & a) | (~mask & b);
#elif defined(__AVX2__)
    return (Ints)_mm256_blendv_epi8((__m256i)b, (__m256i)a, (__m256i)mask);
#else
    return (Ints)_mm_blendv_epi8((__m128i)b, (__m128i)a, (__m128i)mask);
#endif
}

INLINE Floats choose(Ints mask, Floats a, Floats b) {
#if defined(__AVX512F__) || !defined(__x86_64__)
    return (Floats)choose_ints(mask, (Ints)a, (Ints)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#else
    return (Floats)_mm_blendv_ps((__m128)b, (__m128)a, (__m128)mask);
#endif
}

/* a < b ? a : b and a > b ? a : b, so b where one of them is NaN: what x86's minps and maxps do. */
INLINE Floats smaller(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
    return (Floats)_mm_min_ps((__m128)a, (__m128)b);
#else
    return choose(a < b, a, b);
#endif
}

INLINE Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
    return (Floats)_mm_max_ps((__m128)a, (__m128)b);
#else
    return choose(a > b, a, b);
#endif
}

INLINE Ints clamp_ints(Ints a, int32_t low, int32_t high) {
#if defined(__AVX512F__)
    return (Ints)_mm512_max_epi32(_mm512_min_epi32((__m512i)a, _mm512_set1_epi32(high)), _mm512_set1_epi32(low));
#elif defined(__AVX2__)
    return (Ints)_mm256_max_epi32(_mm256_min_epi32((__m256i)a, _mm256_set1_epi32(high)), _mm256_set1_epi32(low));
#elif defined(__x86_64__)
    return (Ints)_mm_max_epi32(_mm_min_epi32((__m128i)a, _mm_set1_epi32(high)), _mm_set1_epi32(low));
#else
    return (Ints)vmaxq_s32(vminq_s32((int32x4_t)a, vdupq_n_s32(high)), vdupq_n_s32(low));
#endif
}

INLINE Floats square_root(Floats a) {
#if defined(__AVX512F__)
    return (Floats)_mm512_sqrt_ps((__m512)a);
#elif defined(__AVX2__)
    return (Floats)_mm256_sqrt_ps((__m256)a);
#elif defined(__x86_64__)
    return (Floats)_mm_sqrt_ps((__m128)a);
#else
    return (Floats)vsqrtq_f32((float32x4_t)a);
#endif
}

/* Whether any lane of a mask is set. */
INLINE int any(Ints mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#elif defined(__x86_64__)
    return _mm_movemask_ps((__m128)mask) != 0;
#else
    return vmaxvq_u32((uint32x4_t)mask) != 0;
#endif
}

/* Adding 1.5 * 2^23 leaves the nearest integer (ties to even) in the low bits of the sum. ggml takes 23 of them, so
 * the result wraps beyond 2^22; nearest does the same for every input, NaN and infinities included. */
#define ROUNDER 12582912.0f

INLINE Ints nearest(Floats a) { return ((Ints)(a + ROUNDER) & 0x007fffff) - 0x00400000; }

/* The same as floats, clamped, in fewer operations: only for |a| < 2^22. NaN becomes low. */
INLINE Floats nearest_between(Floats a, float low, float high) {
    return (smaller(larger(a, all(low)), all(high)) + ROUNDER) - ROUNDER;
}

#if LANES > 4
/* Lane k of the result is lane index[k] of table. Only as many low bits of an index count as name a lane. */
INLINE Floats pick(Floats table, Ints index) {
#if LANES == 16
    return (Floats)_mm512_permutexvar_ps((__m512i)index, (__m512)table);
#else
    return (Floats)_mm256_permutevar8x32_ps((__m256)table, (__m256i)index);
#endif
}
#endif

/* Two vectors interleaved within each 128 bits, by single elements and by pairs, from their lower and upper halves. */
#if LANES == 16
#define INTERLEAVE(a, b, i, j, k, l)                                                                                   \
    __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4, i + 8, j + 8, k + 8, l + 8, i + 12, j + 12, \
                            k + 12, l + 12)
#elif LANES == 8
#define INTERLEAVE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4)
#else
#define INTERLEAVE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#endif
#define LOWER_ONES(a, b) INTERLEAVE(a, b, 0, LANES, 1, LANES + 1)
#define UPPER_ONES(a, b) INTERLEAVE(a, b, 2, LANES + 2, 3, LANES + 3)
#define LOWER_PAIRS(a, b) INTERLEAVE(a, b, 0, 1, LANES, LANES + 1)
#define UPPER_PAIRS(a, b) INTERLEAVE(a, b, 2, 3, LANES + 2, LANES + 3)

/* Four elements of every fourth block, those of block first in the lowest 128 bits. */
INLINE Floats load_fours(const float *const *blocks, int first, int64_t e) {
#if LANES == 16
    __m512 loaded = _mm512_castps128_ps512(_mm_loadu_ps(blocks[first] + e));
    loaded = _mm512_insertf32x4(loaded, _mm_loadu_ps(blocks[first + 4] + e), 1);
    loaded = _mm512_insertf32x4(loaded, _mm_loadu_ps(blocks[first + 8] + e), 2);
    return (Floats)_mm512_insertf32x4(loaded, _mm_loadu_ps(blocks[first + 12] + e), 3);
#elif LANES == 8
    const __m256 loaded = _mm256_castps128_ps256(_mm_loadu_ps(blocks[first] + e));
    return (Floats)_mm256_insertf128_ps(loaded, _mm_loadu_ps(blocks[first + 4] + e), 1);
#else
    Floats loaded;
    memcpy(&loaded, blocks[first] + e, sizeof loaded);
    return loaded;
#endif
}

/* Element e of blocks[k] becomes lane k of elements[e]; size is a multiple of 4. */
INLINE void gather(Floats *elements, const float *const *blocks, int64_t size) {
    for (int64_t e = 0; e < size; e += 4) {
        const Floats a = load_fours(blocks, 0, e), b = load_fours(blocks, 1, e);
        const Floats c = load_fours(blocks, 2, e), d = load_fours(blocks, 3, e);
        const Floats low_ab = LOWER_ONES(a, b), high_ab = UPPER_ONES(a, b);
        const Floats low_cd = LOWER_ONES(c, d), high_cd = UPPER_ONES(c, d);
        elements[e] = LOWER_PAIRS(low_ab, low_cd);
        elements[e + 1] = UPPER_PAIRS(low_ab, low_cd);
        elements[e + 2] = LOWER_PAIRS(high_ab, high_cd);
        elements[e + 3] = UPPER_PAIRS(high_ab, high_cd);
    }
}

#endif
