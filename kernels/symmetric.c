/* Q6_K, and with importances Q3_K, Q4_0 and Q5_0: a weight is scale * level, the levels lie around 0.
 *
 * Follows make_qx_quants and the quantize_row functions of these types in ggml-quants.c (MIT, see NOTICE).
 */
#include "blocks.h"

typedef struct {
    Floats scale;
    /* What made the levels: nearest(inverse * x). */
    Floats inverse;
    /* Lanes in which the block counts as zero: its levels are stored as 0, the lowest. */
    Ints nothing;
} Fit;

/* The level of x, counted from the lowest (-top is 0). */
INLINE Ints searched_level(Fit fit, int top, Floats x) {
    const Floats level = nearest_between(fit.inverse * x, (float)-top, (float)(top - 1));
    return (__builtin_convertvector(level, Ints) + top) & ~fit.nothing;
}

/* Search the scale of `many` times LANES sub-blocks of n weights, which follow each other in x and w, with levels
 * -top..top-1 and errors weighed by w.
 *
 * -top / max, with max the value of the largest magnitude, and 18 inverse scales around it give levels; the levels the
 * best scale and its gain. No product inverse * x gets so large that rounding could wrap.
 */
INLINE void search_fits(int n, int top, int many, const Floats *x, const Floats *w, Fit *fits) {
    Floats max[MOST], best[MOST], wx[MOST * 32];
    for (int p = 0; p < many; p++) {
        Floats magnitude = {0};
        max[p] = best[p] = all(0);
        for (int i = p * n; i < (p + 1) * n; i++) {
            const Floats a = absolute(x[i]);
            const Ints more = a > magnitude;
            magnitude = choose(more, a, magnitude);
            max[p] = choose(more, x[i], max[p]);
            wx[i] = w[i] * x[i];
        }
        const Fit start = {all(0), (float)-top / max[p], magnitude < NOTHING};
        fits[p] = start;
    }
    for (int trial = -10; trial <= 9; trial++) {
        if (trial == 0) continue;
        Floats inverse[MOST], sum_lx[MOST], sum_l2[MOST];
        for (int p = 0; p < many; p++) {
            inverse[p] = trial == -10 ? fits[p].inverse : -(top + 0.1f * trial) / max[p];
            sum_lx[p] = sum_l2[p] = all(0);
        }
        for (int i = 0; i < n; i++)
            for (int p = 0; p < many; p++) {
                const int at = p * n + i;
                const Floats l = nearest_between(inverse[p] * x[at], (float)-top, (float)(top - 1));
                sum_lx[p] += wx[at] * l;
                sum_l2[p] += w[at] * l * l;
            }
        for (int p = 0; p < many; p++) {
            const Ints better = trial == -10 ? sum_l2[p] != 0
                                             : (sum_l2[p] > 0) & (sum_lx[p] * sum_lx[p] > best[p] * sum_l2[p]);
            const Floats scale = sum_lx[p] / sum_l2[p];
            fits[p].scale = choose(better, scale, fits[p].scale);
            fits[p].inverse = choose(better, inverse[p], fits[p].inverse);
            best[p] = choose(better, scale * sum_lx[p], best[p]);
        }
    }
    for (int p = 0; p < many; p++) fits[p].scale = choose(fits[p].nothing, all(0), fits[p].scale);
}

/* The levels under the scale that is stored, counted from the lowest; where it is 0, those of the search. */
INLINE void final_levels(Fit fit, int n, int top, Floats scale, const Floats *x, Ints *levels) {
    const Ints none = scale == 0;
    for (int i = 0; i < n; i++) levels[i] = clamp_ints(nearest(x[i] / scale), -top, top - 1) + top;
    if (any(none))
        for (int i = 0; i < n; i++) levels[i] = choose_ints(none, searched_level(fit, top, x[i]), levels[i]);
}

/* Q6_K: sixteen sub-blocks of 16, their scales in a byte each. The weights of errors are x * x or the importances. */

INLINE void pack_q6(const Ints *levels, Ints *words) {
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 8; i++) {
            const Ints *level = levels + 128 * half + 4 * i;
            Ints first[4], second[4], high[4];
            for (int k = 0; k < 4; k++) {
                first[k] = (level[k] & 15) | (level[k + 64] & 15) << 4;
                second[k] = (level[k + 32] & 15) | (level[k + 96] & 15) << 4;
                high[k] = level[k] >> 4 | (level[k + 32] >> 4) << 2 | (level[k + 64] >> 4) << 4 |
                          (level[k + 96] >> 4) << 6;
            }
            words[16 * half + i] = word(first);
            words[16 * half + 8 + i] = word(second);
            words[32 + 8 * half + i] = word(high);
        }
}

KERNEL(q6_K) {
    const Task task = {weights, importances, out, rows, columns};
    const int64_t blocks = block_count(task, SUPER_BLOCK), stride = 210;
    Floats x[SUPER_BLOCK], w[SUPER_BLOCK];
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        gather_weights(task, SUPER_BLOCK, first, count, x);
        if (importances)
            gather_importances(task, SUPER_BLOCK, first, count, w);
        else
            for (int i = 0; i < SUPER_BLOCK; i++) w[i] = x[i] * x[i];
        Fit fits[16];
        Floats scale = {0}, magnitude = {0};
        for (int j = 0; j < 16; j += MOST) search_fits(16, 32, MOST, x + 16 * j, w + 16 * j, fits + j);
        for (int j = 0; j < 16; j++) {
            const Floats a = absolute(fits[j].scale);
            const Ints more = a > magnitude;
            magnitude = choose(more, a, magnitude);
            scale = choose(more, fits[j].scale, scale);
        }
        const Ints some = ~(magnitude < NOTHING);
        const Floats inverse = -128.0f / scale;
        uint16_t half_d[LANES];
        const Floats d = round_to_halves(choose(some, 1.0f / inverse, all(0)), half_d);
        Ints scales[16], levels[SUPER_BLOCK], words[48 + 4];
        for (int j = 0; j < 16; j++) {
            /* Stored in a signed byte. */
            scales[j] = clamp_ints(nearest(inverse * fits[j].scale), INT32_MIN, 127) << 24 >> 24 & some;
            final_levels(fits[j], 16, 32, d * to_floats(scales[j]), x + 16 * j, levels + 16 * j);
            scales[j] &= 255;
        }
        pack_q6(levels, words);
        for (int i = 0; i < 4; i++) words[48 + i] = word(scales + 4 * i);
        for (int i = 0; i < 52; i++) words[i] &= some;
        uint8_t *place = out + first * stride;
        scatter_words(words, 52, place, stride, count);
        for (int lane = 0; lane < count; lane++) memcpy(place + lane * stride + 208, half_d + lane, 2);
    }
}

/* Q3_K with importances: sixteen sub-blocks of 16, their scales in six bits each, found by the same search. */

/* Twelve bytes: the low nibbles of scales j and j + 8 in byte j, the two high bits of scale j in byte 8 + j % 4. */
INLINE void pack_q3_scales(const Ints *scales, Ints *words) {
    Ints bytes[12];
    for (int j = 0; j < 8; j++) bytes[j] = (scales[j] & 15) | (scales[j + 8] & 15) << 4;
    for (int j = 0; j < 4; j++)
        bytes[8 + j] = scales[j] >> 4 | (scales[j + 4] >> 4) << 2 | (scales[j + 8] >> 4) << 4 | (scales[j + 12] >> 4) << 6;
    for (int i = 0; i < 3; i++) words[i] = word(bytes + 4 * i);
}

/* The high bit of level 32 * j + i is bit j of byte i. */
INLINE void pack_high_bits(const Ints *levels, Ints *words) {
    for (int i = 0; i < 8; i++) {
        Ints bytes[4];
        for (int k = 0; k < 4; k++) {
            bytes[k] = all_int(0);
            for (int j = 0; j < 8; j++) bytes[k] |= (levels[32 * j + 4 * i + k] >> 2) << j;
        }
        words[i] = word(bytes);
    }
}

KERNEL(q3_K) {
    const Task task = {weights, importances, out, rows, columns};
    const int64_t blocks = block_count(task, SUPER_BLOCK), stride = 110;
    Floats x[SUPER_BLOCK], w[SUPER_BLOCK];
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        gather_weights(task, SUPER_BLOCK, first, count, x);
        gather_importances(task, SUPER_BLOCK, first, count, w);
        weigh(x, SUPER_BLOCK, 2.0f * squares_of(x, SUPER_BLOCK) / (float)SUPER_BLOCK, w);
        Fit fits[16];
        Floats values[16], sums[16];
        for (int j = 0; j < 16; j += MOST) search_fits(16, 4, MOST, x + 16 * j, w + 16 * j, fits + j);
        for (int j = 0; j < 16; j++) {
            sums[j] = sum_of(w + 16 * j, 16);
            values[j] = fits[j].scale;
        }
        Fit of_scales;
        search_fits(16, 32, 1, values, sums, &of_scales);
        uint16_t half_d[LANES];
        const Floats d = round_to_halves(of_scales.scale, half_d);
        Ints scales[16], levels[SUPER_BLOCK], words[8 + 16 + 3];
        for (int j = 0; j < 16; j++) {
            scales[j] = searched_level(of_scales, 32, values[j]);
            final_levels(fits[j], 16, 4, d * to_floats(scales[j] - 32), x + 16 * j, levels + 16 * j);
        }
        pack_high_bits(levels, words);
        pack_quarters(levels, words + 8);
        pack_q3_scales(scales, words + 24);
        uint8_t *place = out + first * stride;
        scatter_words(words, 27, place, stride, count);
        for (int lane = 0; lane < count; lane++) memcpy(place + lane * stride + 108, half_d + lane, 2);
    }
}

/* Q4_0 and Q5_0 with importances: blocks of 32 with a scale of their own, weighed by the row's mean square. The levels
 * are those of the search. */

INLINE void quantize_small(Task task, int fifth) {
    const int64_t blocks = block_count(task, SMALL_BLOCK), stride = fifth ? 22 : 18;
    const int top = fifth ? 16 : 8;
    Sigmas sigmas = {task, 0, 0, {0}};
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        Floats x[32], w[32];
        Ints levels[32], words[5];
        gather_weights(task, SMALL_BLOCK, first, count, x);
        gather_importances(task, SMALL_BLOCK, first, count, w);
        weigh(x, 32, row_sigmas(&sigmas, first, count), w);
        Fit fit;
        search_fits(32, top, 1, x, w, &fit);
        for (int i = 0; i < 32; i++) levels[i] = searched_level(fit, top, x[i]);
        uint16_t half_d[LANES];
        round_to_halves(fit.scale, half_d);
        if (fifth) words[0] = fifth_bits(levels);
        pack_nibbles(levels, 16, words + fifth);
        uint8_t *place = task.out + first * stride;
        put_halves(half_d, place, stride, count);
        scatter_words(words, 4 + fifth, place + 2, stride, count);
    }
}

KERNEL(q4_0) {
    const Task task = {weights, importances, out, rows, columns};
    quantize_small(task, 0);
}

KERNEL(q5_0) {
    const Task task = {weights, importances, out, rows, columns};
    quantize_small(task, 1);
}
