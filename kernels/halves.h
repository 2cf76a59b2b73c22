/* 16-bit floats (IEEE binary16) and bfloat16, rounded to nearest even as ggml's portable code does it. */
#ifndef STRATA_HALVES_H
#define STRATA_HALVES_H

#include "lanes.h"

INLINE uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

INLINE float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Scaling by 2^112 and 2^-110 lets the float unit round at the half's last bit, subnormal halves included. */
INLINE uint16_t to_half(float value) {
    uint32_t bits = float_bits(value);
#if !defined(__x86_64__)
    /* A NaN that an operation makes is negative on x86-64, positive elsewhere; its half is part of the bytes. */
    if (bits << 1 > 0xff000000u) bits ^= 0x80000000u;
#endif
    const uint32_t twice = bits << 1, sign = bits & 0x80000000u;
    float base = (bits_float(bits & 0x7fffffffu) * 0x1.0p+112f) * 0x1.0p-110f;
    uint32_t bias = twice & 0xff000000u;
    if (bias < 0x71000000u) bias = 0x71000000u;
    base = bits_float((bias >> 1) + 0x07800000u) + base;
    const uint32_t result = ((float_bits(base) >> 13) & 0x7c00u) + (float_bits(base) & 0x0fffu);
    return (uint16_t)((sign >> 16) | (twice > 0xff000000u ? 0x7e00u : result));
}

INLINE float from_half(uint16_t half) {
    const uint32_t magnitude = half & 0x7fffu, sign = (uint32_t)(half & 0x8000u) << 16;
    if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u) return bits_float(sign | ((magnitude << 13) + 0x38000000u));
    const float tiny = (float)magnitude * 0x1.0p-24f;
    return bits_float(sign | float_bits(tiny));
}

/* The halves of all lanes, and the floats they stand for. */
INLINE Floats round_to_halves(Floats values, uint16_t halves[LANES]) {
    Floats rounded;
    for (int lane = 0; lane < LANES; lane++) {
        halves[lane] = to_half(values[lane]);
        rounded[lane] = from_half(halves[lane]);
    }
    return rounded;
}

/* One half into each of `count` blocks of `stride` bytes. */
INLINE void put_halves(const uint16_t *halves, uint8_t *place, int64_t stride, int count) {
    for (int lane = 0; lane < count; lane++) memcpy(place + lane * stride, halves + lane, 2);
}

#endif
