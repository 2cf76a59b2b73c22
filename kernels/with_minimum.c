/* Q2_K, Q4_K and Q5_K, and with importances Q4_1 and Q5_1: a weight is scale * level - minimum.
 *
 * Follows the quantize_row functions of these types in ggml-quants.c (MIT, see NOTICE).
 */
#include "minimum_search.h"

/* A super-block in lanes: its weights, importances or their products with them, and what was found. */
typedef struct {
    Floats x[SUPER_BLOCK], importances[SUPER_BLOCK];
    Fit fits[16];
    Floats weights[16];
    Ints levels[SUPER_BLOCK];
} Super;

INLINE void largest_scales(const Fit *fits, int parts, Floats *scale, Floats *minimum) {
    *scale = *minimum = all(0);
    for (int j = 0; j < parts; j++) {
        *scale = larger(fits[j].scale, *scale);
        *minimum = larger(fits[j].minimum, *minimum);
    }
}

INLINE void fit_weighed(Search search, Task task, int64_t first, int count, float sigma_factor, Super *super) {
    const int parts = SUPER_BLOCK / search.size;
    gather_importances(task, SUPER_BLOCK, first, count, super->importances);
    const Floats sigma2 = sigma_factor * squares_of(super->x, SUPER_BLOCK) / (float)SUPER_BLOCK;
    weigh(super->x, SUPER_BLOCK, sigma2, super->importances);
    for (int j = 0; j < parts; j++) super->weights[j] = sum_of(super->importances + j * search.size, search.size);
    for (int j = 0; j < parts; j += MOST) {
        const int at = j * search.size;
        search_fits(search, MOST, super->x + at, super->importances + at, super->fits + j);
    }
}

INLINE void fit_scales(const Super *super, int parts, int top, Ints *scales, Ints *minimums, Floats *d, Floats *dmin) {
    Floats values[16];
    for (int j = 0; j < parts; j++) values[j] = super->fits[j].scale;
    *d = fit_positive(parts, top, values, super->weights, scales);
    for (int j = 0; j < parts; j++) values[j] = super->fits[j].minimum;
    *dmin = fit_positive(parts, top, values, super->weights, minimums);
}

/* Q4_K and Q5_K: eight sub-blocks of 32, their scales and minimums in six bits each. */

INLINE void fit_plain_32(Search search, Super *super, Ints *scales, Ints *minimums, Floats *d, Floats *dmin) {
    for (int j = 0; j < 8; j += MOST) {
        Floats w[MOST * 32];
        for (int p = 0; p < MOST; p++) {
            const Floats *x = super->x + 32 * (j + p);
            const Floats mean = square_root(squares_of(x, 32) / 32.0f);
            for (int i = 0; i < 32; i++) w[32 * p + i] = mean + absolute(x[i]);
        }
        search_fits(search, MOST, super->x + 32 * j, w, super->fits + j);
    }
    Floats scale, minimum;
    largest_scales(super->fits, 8, &scale, &minimum);
    const Floats per_scale = choose(scale > 0, 63.0f / scale, all(0));
    const Floats per_minimum = choose(minimum > 0, 63.0f / minimum, all(0));
    for (int j = 0; j < 8; j++) {
        scales[j] = clamp_ints(nearest(per_scale * super->fits[j].scale) & 255, 0, 63);
        minimums[j] = clamp_ints(nearest(per_minimum * super->fits[j].minimum) & 255, 0, 63);
    }
    *d = scale / 63.0f;
    *dmin = minimum / 63.0f;
}

/* Twelve bytes: the low six bits of the first four scales and minimums, the others' low nibbles, high bits on top. */
INLINE void pack_scales(const Ints *scales, const Ints *minimums, Ints *packed) {
    for (int j = 0; j < 4; j++) {
        packed[j] = (scales[j] | (scales[j + 4] >> 4) << 6) & 255;
        packed[j + 4] = (minimums[j] | (minimums[j + 4] >> 4) << 6) & 255;
        packed[j + 8] = ((scales[j + 4] & 15) | (minimums[j + 4] & 15) << 4) & 255;
    }
}

INLINE void unpack_scale(const Ints *packed, int j, Ints *scale, Ints *minimum) {
    if (j < 4) {
        *scale = packed[j] & 63;
        *minimum = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        *minimum = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    }
}

INLINE void quantize_32(Task task, Search plain, int fifth) {
    Search weighed = {32, plain.top, -0.9f, 0.05f, 36, 0, 1};
    const Search search = task.importances ? weighed : plain;
    const int64_t blocks = block_count(task, SUPER_BLOCK), stride = fifth ? 176 : 144;
    Super super;
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        gather_weights(task, SUPER_BLOCK, first, count, super.x);
        Ints scales[8], minimums[8], packed[12];
        Floats d, dmin;
        if (task.importances) {
            fit_weighed(search, task, first, count, 2.0f, &super);
            fit_scales(&super, 8, 63, scales, minimums, &d, &dmin);
            if (fifth)
                for (int j = 0; j < 8; j++) {
                    scales[j] = clamp_ints(scales[j], 0, 63);
                    minimums[j] = clamp_ints(minimums[j], 0, 63);
                }
        } else {
            fit_plain_32(search, &super, scales, minimums, &d, &dmin);
        }
        pack_scales(scales, minimums, packed);
        uint16_t half_d[LANES], half_dmin[LANES];
        d = round_to_halves(d, half_d);
        dmin = round_to_halves(dmin, half_dmin);
        for (int j = 0; j < 8; j++) {
            Ints scale, minimum;
            unpack_scale(packed, j, &scale, &minimum);
            final_levels(search, super.fits[j], d * to_floats(scale), dmin * to_floats(minimum), super.x + 32 * j,
                         super.levels + 32 * j);
        }
        Ints words[3 + 8 + 32];
        for (int i = 0; i < 3; i++) words[i] = word(packed + 4 * i);
        int filled = 3;
        if (fifth)
            for (int i = 0; i < 32; i += 4) {
                Ints bytes[4];
                for (int k = 0; k < 4; k++) {
                    bytes[k] = all_int(0);
                    for (int j = 0; j < 8; j++) bytes[k] |= (super.levels[32 * j + i + k] >> 4) << j;
                }
                words[filled++] = word(bytes);
            }
        for (int j = 0; j < 8; j += 2, filled += 8) pack_nibbles(super.levels + 32 * j, 32, words + filled);
        uint8_t *out = task.out + first * stride;
        for (int lane = 0; lane < count; lane++) {
            memcpy(out + lane * stride, half_d + lane, 2);
            memcpy(out + lane * stride + 2, half_dmin + lane, 2);
        }
        scatter_words(words, filled, out + 4, stride, count);
    }
}

KERNEL(q4_K) {
    const Task task = {weights, importances, out, rows, columns};
    const Search plain = {32, 15, -1.0f, 0.1f, 20, 0, 0};
    quantize_32(task, plain, 0);
}

KERNEL(q5_K) {
    const Task task = {weights, importances, out, rows, columns};
    const Search plain = {32, 31, -0.5f, 0.1f, 15, 0, 0};
    quantize_32(task, plain, 1);
}

/* Q2_K: sixteen sub-blocks of 16, scale and minimum of each in a byte. */

INLINE void fit_plain_16(Search search, Super *super, Ints *bytes, Floats *d, Floats *dmin) {
    for (int j = 0; j < 16; j += MOST) {
        const Floats *x = super->x + 16 * j;
        Floats w[MOST * 16];
        for (int i = 0; i < MOST * 16; i++) w[i] = absolute(x[i]);
        search_fits(search, MOST, x, w, super->fits + j);
    }
    Floats scale, minimum;
    largest_scales(super->fits, 16, &scale, &minimum);
    const Ints some_scale = scale > 0, some_minimum = minimum > 0;
    const Floats per_scale = 15.0f / scale, per_minimum = 15.0f / minimum;
    for (int j = 0; j < 16; j++) {
        const Ints low = nearest(per_scale * super->fits[j].scale) & some_scale;
        const Ints high = nearest(per_minimum * super->fits[j].minimum) & some_minimum;
        bytes[j] = (low | high << 4) & 255;
    }
    *d = choose(some_scale, scale / 15.0f, all(0));
    *dmin = choose(some_minimum, minimum / 15.0f, all(0));
}

KERNEL(q2_K) {
    const Task task = {weights, importances, out, rows, columns};
    const Search plain = {16, 3, -0.5f, 0.1f, 15, 1, 0}, weighed = {16, 3, -0.9f, 0.05f, 36, 0, 1};
    const Search search = importances ? weighed : plain;
    const int64_t blocks = block_count(task, SUPER_BLOCK), stride = 84;
    Super super;
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        gather_weights(task, SUPER_BLOCK, first, count, super.x);
        Ints bytes[16], scales[16], minimums[16];
        Floats d, dmin;
        if (importances) {
            fit_weighed(weighed, task, first, count, 1.0f, &super);
            fit_scales(&super, 16, 15, scales, minimums, &d, &dmin);
            for (int j = 0; j < 16; j++) bytes[j] = (scales[j] | minimums[j] << 4) & 255;
        } else {
            fit_plain_16(plain, &super, bytes, &d, &dmin);
        }
        uint16_t half_d[LANES], half_dmin[LANES];
        d = round_to_halves(d, half_d);
        dmin = round_to_halves(dmin, half_dmin);
        for (int j = 0; j < 16; j++)
            final_levels(search, super.fits[j], d * to_floats(bytes[j] & 15), dmin * to_floats(bytes[j] >> 4),
                         super.x + 16 * j, super.levels + 16 * j);
        Ints words[4 + 16];
        for (int i = 0; i < 4; i++) words[i] = word(bytes + 4 * i);
        pack_quarters(super.levels, words + 4);
        uint8_t *place = out + first * stride;
        scatter_words(words, 20, place, stride, count);
        for (int lane = 0; lane < count; lane++) {
            memcpy(place + lane * stride + 80, half_d + lane, 2);
            memcpy(place + lane * stride + 82, half_dmin + lane, 2);
        }
    }
}

/* Q4_1 and Q5_1 with importances: blocks of 32 with a scale and a minimum of their own, weighed by the row's mean square.
 * The levels are those of the search. */

INLINE void quantize_small(Task task, int fifth) {
    const Search search = {32, fifth ? 31 : 15, -0.9f, 0.05f, 36, 0, 1};
    const int64_t stride = fifth ? 24 : 20;
    Sigmas sigmas = {task, 0, 0, {0}};
    const int64_t blocks = block_count(task, SMALL_BLOCK);
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        Floats x[32], w[32];
        Ints levels[32], words[5];
        gather_weights(task, SMALL_BLOCK, first, count, x);
        gather_importances(task, SMALL_BLOCK, first, count, w);
        weigh(x, 32, row_sigmas(&sigmas, first, count), w);
        Fit fit;
        search_fits(search, 1, x, w, &fit);
        for (int i = 0; i < 32; i++) levels[i] = searched_level(search, fit, x[i]);
        uint16_t half_d[LANES], half_low[LANES];
        round_to_halves(fit.scale, half_d);
        round_to_halves(-fit.minimum, half_low);
        if (fifth) words[0] = fifth_bits(levels);
        pack_nibbles(levels, 16, words + fifth);
        uint8_t *place = task.out + first * stride;
        for (int lane = 0; lane < count; lane++) {
            memcpy(place + lane * stride, half_d + lane, 2);
            memcpy(place + lane * stride + 2, half_low + lane, 2);
        }
        scatter_words(words, 4 + fifth, place + 4, stride, count);
    }
}

KERNEL(q4_1) {
    const Task task = {weights, importances, out, rows, columns};
    quantize_small(task, 0);
}

KERNEL(q5_1) {
    const Task task = {weights, importances, out, rows, columns};
    quantize_small(task, 1);
}
