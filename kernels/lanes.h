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

/* elements[e] of lane k becomes blocks[k][e]; lanes from count on repeat the last block. */
INLINE void gather(Floats *elements, const float *blocks, int64_t size, int count) {
    float *out = (float *)elements;
    for (int lane = 0; lane < LANES; lane++) {
        const float *block = blocks + size * (lane < count ? lane : count - 1);
        for (int64_t e = 0; e < size; e++) out[LANES * e + lane] = block[e];
    }
}

#endif
