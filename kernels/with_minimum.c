/* Q2_K, Q4_K and Q5_K, and with importances Q4_1 and Q5_1: a weight is scale * level - minimum.
 *
 * Follows make_qkx2_quants, make_qkx3_quants and the quantize_row functions of these types in ggml-quants.c (MIT, see
 * NOTICE).
 */
#include "positive.h"

/* Which inverse scales are tried, and how an error is measured. */
typedef struct {
    int size, top;
    float first, step;
    int steps;
    int absolute;
    /* make_qkx3_quants: a level is clamped before it is rounded, and a block whose maximum is below its minimum (0 at
     * most) counts as flat. */
    int guarded;
} Search;

typedef struct {
    Floats scale;
    /* What is subtracted: not negative. */
    Floats minimum;
    /* What made the levels: nearest(inverse * (x - low)). */
    Floats inverse, low;
    /* Lanes in which nothing was better than the plain scale. */
    Ints plain;
} Fit;

INLINE Floats error_of(Search search, Floats diff) { return search.absolute ? absolute(diff) : diff * diff; }

/* The level of x as ggml's search finds it, for every input. */
INLINE Ints level_of(Search search, int guarded, Floats inverse, Floats low, Floats x) {
    const Floats v = inverse * (x - low);
    if (guarded) return clamp_ints(nearest(smaller(larger(v, all(0)), all(search.top))), 0, search.top);
    return clamp_ints(nearest(v), 0, search.top);
}

/* Whether all of inverse * (x - low), x between bottom and high, is so small that rounding cannot wrap. */
INLINE int is_tame(Floats inverse, Floats low, Floats bottom, Floats high) {
    const Floats a = absolute(inverse * (bottom - low)), b = absolute(inverse * (high - low));
    return !any(~((a < 4194303.0f) & (b < 4194303.0f)));
}

/* The three sums over the levels of a sub-block. */
typedef struct {
    Floats l, l2, xl;
} Sums;

/* The levels of sub-blocks under one inverse scale each, and the sums over them. */
INLINE void sums_of(Search search, int many, int guarded, int tame, const Floats *inverse, const Floats *low,
                    const Floats *x, const Floats *w, Floats *levels, Sums *sums) {
    Sums found[MOST];
    for (int p = 0; p < many; p++) found[p].l = found[p].l2 = found[p].xl = all(0);
    for (int i = 0; i < search.size; i++)
        for (int p = 0; p < many; p++) {
            const int at = p * search.size + i;
            const Floats l = tame ? nearest_between(inverse[p] * (x[at] - low[p]), 0, search.top)
                                  : to_floats(level_of(search, guarded, inverse[p], low[p], x[at]));
            const Floats wl = w[at] * l;
            levels[at] = l;
            found[p].l += wl;
            found[p].l2 += wl * l;
            found[p].xl += wl * x[at];
        }
    for (int p = 0; p < many; p++) sums[p] = found[p];
}

/* The errors of sub-blocks under a scale and a minimum each. */
INLINE void errors_of(Search search, int many, const Floats *scale, const Floats *low, const Floats *levels,
                      const Floats *x, const Floats *w, Floats *errors) {
    Floats found[MOST];
    for (int p = 0; p < many; p++) found[p] = all(0);
    for (int i = 0; i < search.size; i++)
        for (int p = 0; p < many; p++) {
            const int at = p * search.size + i;
            found[p] += w[at] * error_of(search, scale[p] * levels[at] + low[p] - x[at]);
        }
    for (int p = 0; p < many; p++) errors[p] = found[p];
}

/* Search scale and minimum of `many` times LANES sub-blocks, which follow each other in x and w.
 *
 * steps + 1 inverse scales are tried. Each gives levels, the levels the scale and minimum with the least squared error,
 * and these the error that decides. A winner's minimum is the one the next step starts from.
 */
INLINE void search_fits(Search search, int many, const Floats *x, const Floats *w, Fit *fits) {
    Floats bottom[MOST], low[MOST], flat_low[MOST], high[MOST], sum_w[MOST], sum_x[MOST], inverse[MOST], scale[MOST];
    Floats error[MOST], levels[MOST * 32];
    Ints flat[MOST];
    Sums sums[MOST];
    int tame = 1;
    for (int p = 0; p < many; p++) {
        const Floats *its_x = x + p * search.size, *its_w = w + p * search.size;
        low[p] = high[p] = its_x[0];
        sum_w[p] = its_w[0];
        sum_x[p] = its_w[0] * its_x[0];
        for (int i = 1; i < search.size; i++) {
            low[p] = smaller(its_x[i], low[p]);
            high[p] = larger(its_x[i], high[p]);
            sum_w[p] += its_w[i];
            sum_x[p] += its_w[i] * its_x[i];
        }
        bottom[p] = low[p];
        low[p] = choose(low[p] > 0, all(0), low[p]);
        flat[p] = search.guarded ? high[p] <= low[p] : high[p] == low[p];
        flat_low[p] = low[p];
        high[p] = choose(flat[p], low[p] + 1.0f, high[p]);
        inverse[p] = (float)search.top / (high[p] - low[p]);
        scale[p] = 1.0f / inverse[p];
        tame &= is_tame(inverse[p], low[p], bottom[p], high[p]);
    }
    if (tame)
        sums_of(search, many, 0, 1, inverse, low, x, w, levels, sums);
    else
        sums_of(search, many, 0, 0, inverse, low, x, w, levels, sums);
    errors_of(search, many, scale, low, levels, x, w, error);
    for (int p = 0; p < many; p++) {
        const Fit plain = {scale[p], low[p], inverse[p], low[p], all_int(-1)};
        fits[p] = plain;
    }
    for (int step = 0; step <= search.steps; step++) {
        Floats this_scale[MOST], this_low[MOST], this_error[MOST];
        Ints sound[MOST];
        tame = 1;
        for (int p = 0; p < many; p++) {
            inverse[p] = (search.first + search.step * step + search.top) / (high[p] - low[p]);
            if (!search.guarded) tame &= is_tame(inverse[p], low[p], bottom[p], high[p]);
        }
        if (tame)
            sums_of(search, many, 1, 1, inverse, low, x, w, levels, sums);
        else
            sums_of(search, many, 0, 0, inverse, low, x, w, levels, sums);
        for (int p = 0; p < many; p++) {
            const Sums s = sums[p];
            const Floats determinant = sum_w[p] * s.l2 - s.l * s.l;
            const Floats both_scale = (sum_w[p] * s.xl - sum_x[p] * s.l) / determinant;
            const Floats both_low = (s.l2 * sum_x[p] - s.l * s.xl) / determinant;
            const Ints positive = both_low > 0;
            this_low[p] = choose(positive, all(0), both_low);
            this_scale[p] = choose(positive, s.xl / s.l2, both_scale);
            sound[p] = (determinant > 0) & ~flat[p];
        }
        errors_of(search, many, this_scale, this_low, levels, x, w, this_error);
        for (int p = 0; p < many; p++) {
            const Ints better = sound[p] & (this_error[p] < error[p]);
            error[p] = choose(better, this_error[p], error[p]);
            fits[p].inverse = choose(better, inverse[p], fits[p].inverse);
            fits[p].low = choose(better, low[p], fits[p].low);
            fits[p].plain &= ~better;
            scale[p] = choose(better, this_scale[p], scale[p]);
            low[p] = choose(better, this_low[p], low[p]);
        }
    }
    for (int p = 0; p < many; p++) {
        fits[p].scale = choose(flat[p], all(0), scale[p]);
        fits[p].minimum = -choose(flat[p], flat_low[p], low[p]);
        fits[p].inverse = choose(flat[p], all(0), fits[p].inverse);
        fits[p].low = choose(flat[p], all(0), fits[p].low);
    }
}

/* The levels the search has ended with. */
INLINE Ints searched_level(Search search, Fit fit, Floats x) {
    const Ints level = level_of(search, search.guarded, fit.inverse, fit.low, x);
    if (!search.guarded) return level;
    return choose_ints(fit.plain, level_of(search, 0, fit.inverse, fit.low, x), level);
}

/* The levels under the scale and minimum that are stored; where that scale is 0, those of the search. */
INLINE void final_levels(Search search, Fit fit, Floats scale, Floats minimum, const Floats *x, Ints *levels) {
    const Ints none = scale == 0;
    for (int i = 0; i < search.size; i++)
        levels[i] = clamp_ints(nearest((x[i] + minimum) / scale), 0, search.top);
    if (any(none))
        for (int i = 0; i < search.size; i++)
            levels[i] = choose_ints(none, searched_level(search, fit, x[i]), levels[i]);
}

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
