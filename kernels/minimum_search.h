/* The search for a scale and a minimum of a sub-block, in lanes: a weight is scale * level - minimum.
 *
 * Follows make_qkx2_quants and make_qkx3_quants in ggml-quants.c (MIT, see NOTICE).
 */
#ifndef STRATA_MINIMUM_SEARCH_H
#define STRATA_MINIMUM_SEARCH_H

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

#endif
