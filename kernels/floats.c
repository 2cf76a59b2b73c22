/* F16 and BF16 to F32, and Q8_0: no search, so the lanes are neighbours in one row.
 *
 * Follows quantize_row_q8_0_ref of ggml-quants.c (MIT, see NOTICE).
 */
#include "blocks.h"

typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));

INLINE Words load_halves(const uint16_t *from) {
    Halves halves;
    memcpy(&halves, from, sizeof halves);
    return __builtin_convertvector(halves, Words);
}

/* A half's exponent and mantissa, read as those of a float, are 2^112 times too small: the product is exact, also for
 * subnormal halves. Returns whether all are finite; what is not comes out wrong. */
EXPORT int strata_f16_to_f32(const uint16_t *from, float *to, int64_t count) {
    Ints bad = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const Words half = load_halves(from + i), magnitude = half & 0x7fffu;
        const Floats value = (Floats)(magnitude << 13) * 0x1.0p+112f;
        const Words bits = (Words)value | (half & 0x8000u) << 16;
        bad |= (Ints)(magnitude >= 0x7c00u);
        memcpy(to + i, &bits, sizeof bits);
    }
    int fine = !any(bad);
    for (; i < count; i++) {
        to[i] = from_half(from[i]);
        fine &= (from[i] & 0x7c00u) != 0x7c00u;
    }
    return fine;
}

EXPORT int strata_bf16_to_f32(const uint16_t *from, float *to, int64_t count) {
    Ints bad = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const Words half = load_halves(from + i), bits = half << 16;
        bad |= (Ints)((half & 0x7f80u) == 0x7f80u);
        memcpy(to + i, &bits, sizeof bits);
    }
    int fine = !any(bad);
    for (; i < count; i++) {
        to[i] = bits_float((uint32_t)from[i] << 16);
        fine &= (from[i] & 0x7f80u) != 0x7f80u;
    }
    return fine;
}

/* To the nearest integer, ties away from zero. What no int32 can hold, and NaN, become 0: x86-64's conversion makes it
 * INT32_MIN, of which the low byte is stored. */
INLINE Ints round_away(Floats a) {
    const Floats held = choose(absolute(a) < 0x1.0p+31f, a, all(0));
    const Ints whole = __builtin_convertvector(held, Ints);
    const Floats rest = held - to_floats(whole);
    return whole - (rest >= 0.5f) + (rest <= -0.5f);
}

/* The largest of all lanes; none is NaN or negative. */
INLINE float largest(Floats a) {
#if defined(__aarch64__)
    return vmaxvq_f32((float32x4_t)a);
#else
    __m128 most;
#if LANES == 16
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256((__m512)a),
                                      _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)a, 1)));
    most = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif LANES == 8
    most = _mm_max_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1));
#else
    most = (__m128)a;
#endif
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
#endif
}

/* 32 numbers of at most seven bits and a sign, as bytes in order. */
INLINE void store_bytes(const Ints *levels, uint8_t *out) {
#if defined(__aarch64__)
    for (int i = 0; i < 8; i += 4) {
        const int16x8_t low = vcombine_s16(vmovn_s32((int32x4_t)levels[i]), vmovn_s32((int32x4_t)levels[i + 1]));
        const int16x8_t high = vcombine_s16(vmovn_s32((int32x4_t)levels[i + 2]), vmovn_s32((int32x4_t)levels[i + 3]));
        vst1q_s8((int8_t *)out + 4 * i, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }
#else
    const __m128i *in = (const __m128i *)levels;
    for (int i = 0; i < 8; i += 4) {
        const __m128i low = _mm_packs_epi32(in[i], in[i + 1]), high = _mm_packs_epi32(in[i + 2], in[i + 3]);
        _mm_storeu_si128((__m128i *)(out + 4 * i), _mm_packs_epi16(low, high));
    }
#endif
}

/* Blocks of 32: d is the largest magnitude / 127, a level x / d. */
KERNEL(q8_0) {
    (void)importances;
    const int64_t blocks = rows * (columns / 32);
    for (int64_t block = 0; block < blocks; block++, weights += 32, out += 34) {
        Floats x[32 / LANES], most = {0};
        memcpy(x, weights, sizeof x);
        for (int i = 0; i < 32 / LANES; i++) most = larger(most, absolute(x[i]));
        const float magnitude = largest(most);
        const float d = magnitude / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
        const uint16_t half = to_half(d);
        memcpy(out, &half, 2);
        Ints levels[32 / LANES];
        for (int i = 0; i < 32 / LANES; i++) levels[i] = round_away(x[i] * inverse);
        store_bytes(levels, out + 2);
    }
}
