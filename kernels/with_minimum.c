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

/* The levels of a sub-block under one inverse scale, and the three sums over them. */
INLINE void sums_of(Search search, int guarded, int tame, Floats inverse, Floats low, const Floats *x, const Floats *w,
                    Floats *levels, Floats *sum_l, Floats *sum_l2, Floats *sum_xl) {
    Floats l1 = {0}, l2 = {0}, xl = {0};
    for (int i = 0; i < search.size; i++) {
        const Floats l = tame ? nearest_between(inverse * (x[i] - low), 0, search.top)
                              : to_floats(level_of(search, guarded, inverse, low, x[i]));
        const Floats wl = w[i] * l;
        levels[i] = l;
        l1 += wl;
        l2 += wl * l;
        xl += wl * x[i];
    }
    *sum_l = l1;
    *sum_l2 = l2;
    *sum_xl = xl;
}

/* Search scale and minimum of LANES sub-blocks.
 *
 * steps + 1 inverse scales are tried. Each gives levels, the levels the scale and minimum with the least squared error,
 * and these the error that decides. A winner's minimum is the one the next step starts from.
 */
INLINE Fit search_fit(Search search, const Floats *x, const Floats *w) {
    Floats low = x[0], high = x[0], sum_w = w[0], sum_x = w[0] * x[0], levels[32], error = {0};
    for (int i = 1; i < search.size; i++) {
        low = smaller(x[i], low);
        high = larger(x[i], high);
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    const Floats bottom = low;
    low = choose(low > 0, all(0), low);
    const Ints flat = search.guarded ? high <= low : high == low;
    const Floats flat_low = low;
    high = choose(flat, low + 1.0f, high);

    Floats inverse = (float)search.top / (high - low), scale = 1.0f / inverse;
    Floats sum_l, sum_l2, sum_xl;
    if (is_tame(inverse, low, bottom, high))
        sums_of(search, 0, 1, inverse, low, x, w, levels, &sum_l, &sum_l2, &sum_xl);
    else
        sums_of(search, 0, 0, inverse, low, x, w, levels, &sum_l, &sum_l2, &sum_xl);
    for (int i = 0; i < search.size; i++) error += w[i] * error_of(search, scale * levels[i] + low - x[i]);

    Fit fit = {scale, low, inverse, low, all_int(-1)};
    for (int step = 0; step <= search.steps; step++) {
        inverse = (search.first + search.step * step + search.top) / (high - low);
        if (search.guarded || is_tame(inverse, low, bottom, high))
            sums_of(search, 1, 1, inverse, low, x, w, levels, &sum_l, &sum_l2, &sum_xl);
        else
            sums_of(search, 0, 0, inverse, low, x, w, levels, &sum_l, &sum_l2, &sum_xl);
        const Floats determinant = sum_w * sum_l2 - sum_l * sum_l;
        Floats this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        Floats this_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        const Ints positive = this_low > 0;
        this_low = choose(positive, all(0), this_low);
        this_scale = choose(positive, sum_xl / sum_l2, this_scale);
        Floats this_error = {0};
        for (int i = 0; i < search.size; i++)
            this_error += w[i] * error_of(search, this_scale * levels[i] + this_low - x[i]);
        const Ints better = (determinant > 0) & (this_error < error) & ~flat;
        error = choose(better, this_error, error);
        fit.inverse = choose(better, inverse, fit.inverse);
        fit.low = choose(better, low, fit.low);
        fit.plain &= ~better;
        scale = choose(better, this_scale, scale);
        low = choose(better, this_low, low);
    }
    fit.scale = choose(flat, all(0), scale);
    fit.minimum = -choose(flat, flat_low, low);
    fit.inverse = choose(flat, all(0), fit.inverse);
    fit.low = choose(flat, all(0), fit.low);
    return fit;
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
    for (int j = 0; j < parts; j++) {
        const Floats *w = super->importances + j * search.size;
        super->weights[j] = sum_of(w, search.size);
        super->fits[j] = search_fit(search, super->x + j * search.size, w);
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
    for (int j = 0; j < 8; j++) {
        const Floats *x = super->x + 32 * j;
        const Floats mean = square_root(squares_of(x, 32) / 32.0f);
        Floats w[32];
        for (int i = 0; i < 32; i++) w[i] = mean + absolute(x[i]);
        super->fits[j] = search_fit(search, x, w);
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
    for (int j = 0; j < 16; j++) {
        const Floats *x = super->x + 16 * j;
        Floats w[16];
        for (int i = 0; i < 16; i++) w[i] = absolute(x[i]);
        super->fits[j] = search_fit(search, x, w);
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
        const Fit fit = search_fit(search, x, w);
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
