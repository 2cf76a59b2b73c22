#include "formats.h"

INLINE void nibbles(const uint8_t *packed, int count, uint8_t *low, uint8_t *high) {
    for (int i = 0; i < count; i++) low[i] = packed[i] & 15;
    for (int i = 0; i < count; i++) high[i] = packed[i] >> 4;
}

static void unpack_q4_0(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    (void)shifts;
    scales[0] = half_at(block);
    nibbles(block + 2, 16, quants, quants + 16);
}

static void unpack_q4_1(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    scales[0] = half_at(block);
    shifts[0] = half_at(block + 2);
    nibbles(block + 4, 16, quants, quants + 16);
}

INLINE void add_fifth_bits(const uint8_t *place, uint8_t *quants) {
    uint32_t bits;
    memcpy(&bits, place, 4);
    for (int i = 0; i < 32; i++) quants[i] |= (uint8_t)((bits >> i & 1) << 4);
}

static void unpack_q5_0(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    (void)shifts;
    scales[0] = half_at(block);
    nibbles(block + 6, 16, quants, quants + 16);
    add_fifth_bits(block + 2, quants);
}

static void unpack_q5_1(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    scales[0] = half_at(block);
    shifts[0] = half_at(block + 2);
    nibbles(block + 8, 16, quants, quants + 16);
    add_fifth_bits(block + 4, quants);
}

static void unpack_q8_0(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    (void)shifts;
    scales[0] = half_at(block);
    for (int i = 0; i < 32; i++) quants[i] = block[2 + i] ^ 128;
}

static void unpack_q2_K(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    const float scale = half_at(block + 80), least = half_at(block + 82);
    for (int part = 0; part < 16; part++) {
        scales[part] = scale * (float)(block[part] & 15);
        shifts[part] = -least * (float)(block[part] >> 4);
    }
    for (int half = 0; half < 2; half++)
        for (int pair = 0; pair < 4; pair++)
            for (int i = 0; i < 32; i++) quants[128 * half + 32 * pair + i] = block[16 + 32 * half + i] >> 2 * pair & 3;
}

static void unpack_q3_K(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    (void)shifts;
    const uint8_t *high = block, *low = block + 32, *packed = block + 96;
    const float scale = half_at(block + 108);
    for (int part = 0; part < 16; part++) {
        const int bits = (part < 8 ? packed[part] & 15 : packed[part - 8] >> 4)
                         | (packed[8 + part % 4] >> 2 * (part / 4) & 3) << 4;
        scales[part] = scale * (float)(bits - 32);
    }
    for (int half = 0; half < 2; half++)
        for (int pair = 0; pair < 4; pair++)
            for (int i = 0; i < 32; i++)
                quants[128 * half + 32 * pair + i] =
                    (uint8_t)((low[32 * half + i] >> 2 * pair & 3) | (high[i] >> (4 * half + pair) & 1) << 2);
}

/* The 6-bit scales and minima of Q4_K and Q5_K. */
INLINE void unpack_scales(const uint8_t *block, float *scales, float *shifts) {
    const float scale = half_at(block), least = half_at(block + 2);
    const uint8_t *packed = block + 4;
    for (int part = 0; part < 4; part++) {
        scales[part] = scale * (float)(packed[part] & 63);
        shifts[part] = -least * (float)(packed[part + 4] & 63);
        scales[part + 4] = scale * (float)((packed[part + 8] & 15) | (packed[part] >> 6) << 4);
        shifts[part + 4] = -least * (float)(packed[part + 8] >> 4 | (packed[part + 4] >> 6) << 4);
    }
}

static void unpack_q4_K(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    unpack_scales(block, scales, shifts);
    for (int pair = 0; pair < 4; pair++) nibbles(block + 16 + 32 * pair, 32, quants + 64 * pair, quants + 64 * pair + 32);
}

static void unpack_q5_K(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    unpack_scales(block, scales, shifts);
    for (int pair = 0; pair < 4; pair++) {
        uint8_t *low = quants + 64 * pair, *high = low + 32;
        nibbles(block + 48 + 32 * pair, 32, low, high);
        for (int i = 0; i < 32; i++) low[i] |= (uint8_t)((block[16 + i] >> 2 * pair & 1) << 4);
        for (int i = 0; i < 32; i++) high[i] |= (uint8_t)((block[16 + i] >> (2 * pair + 1) & 1) << 4);
    }
}

static void unpack_q6_K(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    (void)shifts;
    const float scale = half_at(block + 208);
    for (int part = 0; part < 16; part++) scales[part] = scale * (float)(int8_t)block[192 + part];
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
        uint8_t *to = quants + 128 * half;
        nibbles(low, 64, to, to + 64);
        for (int pair = 0; pair < 4; pair++)
            for (int i = 0; i < 32; i++) to[32 * pair + i] |= (uint8_t)((high[i] >> 2 * pair & 3) << 4);
    }
}

static const int8_t IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

INLINE void levels(const uint8_t *packed, uint8_t *quants) {
    for (int i = 0; i < 16; i++) quants[i] = (uint8_t)(IQ4_LEVELS[packed[i] & 15] + 128);
    for (int i = 0; i < 16; i++) quants[16 + i] = (uint8_t)(IQ4_LEVELS[packed[i] >> 4] + 128);
}

static void unpack_iq4_nl(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    (void)shifts;
    scales[0] = half_at(block);
    levels(block + 2, quants);
}

static void unpack_iq4_xs(const uint8_t *block, uint8_t *quants, float *scales, float *shifts) {
    (void)shifts;
    const float scale = half_at(block);
    const int high = block[2] | block[3] << 8;
    for (int part = 0; part < 8; part++) {
        const int bits = (block[4 + part / 2] >> 4 * (part % 2) & 15) | (high >> 2 * part & 3) << 4;
        scales[part] = scale * (float)(bits - 32);
        levels(block + 8 + 16 * part, quants + 32 * part);
    }
}

static void widen_f32(const uint8_t *block, float *floats) { memcpy(floats, block, 128); }

static void widen_f16(const uint8_t *block, float *floats) {
#if defined(__F16C__)
    for (int i = 0; i < 32; i += 8)
        _mm256_storeu_ps(floats + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(block + 2 * i))));
#else
    for (int i = 0; i < 32; i++) floats[i] = half_at(block + 2 * i);
#endif
}

static void widen_bf16(const uint8_t *block, float *floats) {
    uint16_t halves[32];
    memcpy(halves, block, 64);
    for (int i = 0; i < 32; i++) floats[i] = bits_float((uint32_t)halves[i] << 16);
}

const Format FORMATS[TYPES] = {
    [TYPE_F32] = {TYPE_F32, 32, 128, 32, 0, 0, false, NULL, widen_f32},
    [TYPE_F16] = {TYPE_F16, 32, 64, 32, 0, 0, false, NULL, widen_f16},
    [TYPE_BF16] = {TYPE_BF16, 32, 64, 32, 0, 0, false, NULL, widen_bf16},
    [TYPE_Q4_0] = {TYPE_Q8_0, 32, 18, 32, 15, 8, false, unpack_q4_0, NULL},
    [TYPE_Q4_1] = {TYPE_Q8_1, 32, 20, 32, 15, 0, true, unpack_q4_1, NULL},
    [TYPE_Q5_0] = {TYPE_Q8_0, 32, 22, 32, 31, 16, false, unpack_q5_0, NULL},
    [TYPE_Q5_1] = {TYPE_Q8_1, 32, 24, 32, 31, 0, true, unpack_q5_1, NULL},
    [TYPE_Q8_0] = {TYPE_Q8_0, 32, 34, 32, 255, 128, false, unpack_q8_0, NULL},
    [TYPE_Q2_K] = {TYPE_Q8_K, 256, 84, 16, 3, 0, true, unpack_q2_K, NULL},
    [TYPE_Q3_K] = {TYPE_Q8_K, 256, 110, 16, 7, 4, false, unpack_q3_K, NULL},
    [TYPE_Q4_K] = {TYPE_Q8_K, 256, 144, 32, 15, 0, true, unpack_q4_K, NULL},
    [TYPE_Q5_K] = {TYPE_Q8_K, 256, 176, 32, 31, 0, true, unpack_q5_K, NULL},
    [TYPE_Q6_K] = {TYPE_Q8_K, 256, 210, 16, 63, 32, false, unpack_q6_K, NULL},
    [TYPE_IQ4_NL] = {TYPE_Q8_0, 32, 18, 32, 255, 128, false, unpack_iq4_nl, NULL},
    [TYPE_IQ4_XS] = {TYPE_Q8_K, 256, 136, 32, 255, 128, false, unpack_iq4_xs, NULL},
};
