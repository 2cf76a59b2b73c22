/* How the blocks of each quantized type become small unsigned integers with a scale, and perhaps a shift, per 16 or 32
 * of them: weight = scale * (quant - offset) + shift. Layouts: ggml-common.h, dequantize_row_*. And how 16-bit floats
 * become floats.
 */
#ifndef STRATA_FORMATS_H
#define STRATA_FORMATS_H

#include "ggml_abi.h"
#include "halves.h"

#define LARGEST_BLOCK 256

typedef struct {
    int32_t activations;   /* ggml's type for the other factor */
    int32_t block, bytes;  /* weights and bytes of a block */
    int32_t part;          /* weights with the same scale: 16 or 32 */
    int32_t most;          /* largest quant */
    int32_t offset;        /* 0 if there are shifts */
    bool shifted;
    /* Write `block` quants, and block / part scales and shifts. */
    void (*unpack)(const uint8_t *block, uint8_t *quants, float *scales, float *shifts);
    /* Of floats: write `block` of them. */
    void (*widen)(const uint8_t *block, float *floats);
} Format;

INLINE float half_at(const uint8_t *place) {
    uint16_t half;
    memcpy(&half, place, 2);
    return from_half(half);
}

/* By ggml's number of the type; `block` is 0 for one without kernels. */
extern const Format FORMATS[TYPES];

#endif
