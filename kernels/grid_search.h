/* The search of IQ2 and IQ3 for the scale of a sub-block: weights are scale * (2 * level + 1), their signs apart.
 *
 * Follows the quantize_row functions of these types in ggml-quants.c (MIT, see NOTICE).
 */
#ifndef STRATA_GRID_SEARCH_H
#define STRATA_GRID_SEARCH_H

#include "grid.h"

#define MOST_TRIALS 31
#define MOST_GROUPS 8

/* What is done after the search: the groups whose weights were not rounded to a point, or all of them if there is such
 * a one, or all in any case, get the nearest point under the scale that was found. */
typedef enum { REFIT_OTHERS, REFIT_ALL_IF_ANY, REFIT_ALL } Refit;

/* Sub-blocks of size weights; inverse scales are tried from -around to around steps off the plain one. */
typedef struct {
    Shape shape;
    int size, around;
    float step;
    Refit refit;
} Search;

/* A sub-block in lanes: magnitudes (or their negatives), weights of errors and the roots of these. */
typedef struct {
    Floats x[32], w[32], root[32];
} Part;

INLINE void fill_part(int size, const Floats *x, const Floats *w, Part *part) {
    for (int i = 0; i < size; i++) {
        part->x[i] = x[i];
        part->w[i] = w[i];
        part->root[i] = square_root(w[i]);
    }
}

/* Leave the magnitudes of eight weights and return their signs, the first one's lowest. */
INLINE Ints split_signs(Floats *x) {
    Ints signs = {0};
    for (int i = 0; i < 8; i++) {
        const Ints negative = x[i] < 0;
        signs |= negative & 1 << i;
        x[i] = choose(negative, -x[i], x[i]);
    }
    return signs;
}

/* The same with an even number of signs, so that seven tell all: where it is odd, the weight that costs least changes
 * its sign. */
INLINE Ints split_even_signs(const Floats *w, Floats *x) {
    const Ints signs = split_signs(x);
    Ints odd = signs ^ signs >> 4, bit = all_int(1);
    odd ^= odd >> 2;
    odd = -((odd ^ odd >> 1) & 1);
    Floats least = w[0] * x[0] * x[0];
    for (int i = 1; i < 8; i++) {
        const Floats error = w[i] * x[i] * x[i];
        const Ints better = error < least;
        least = choose(better, error, least);
        bit = choose_ints(better, all_int(1 << i), bit);
    }
    for (int i = 0; i < 8; i++) x[i] = choose(odd & (bit == 1 << i), -x[i], x[i]);
    return (signs ^ (odd & bit)) & 127;
}

INLINE Floats largest_of(const Floats *x, int n) {
    Floats largest = x[0];
    for (int i = 1; i < n; i++) largest = larger(largest, x[i]);
    return largest;
}

/* The key of each group under an inverse scale. */
INLINE void find_keys(Search search, Floats inverse, const Floats *x, Ints *keys) {
    const Shape shape = search.shape;
    for (int g = 0; g < search.size / shape.dimensions; g++) {
        keys[g] = all_int(0);
        for (int i = shape.dimensions - 1; i >= 0; i--) {
            const Floats value = 0.5f * (inverse * x[shape.dimensions * g + i] - 1.0f);
            keys[g] = keys[g] * shape.levels + clamp_ints(nearest(value), 0, shape.levels - 1);
        }
    }
}

/* Put the members that are nearest in the place of keys, for some scales. Idle lanes keep keys. */
INLINE void choose_all(Search search, const Grid *grid, int count, const Part *part, const Floats *scales, int trials,
                       Ints *chosen) {
    const int size = search.shape.dimensions, groups = search.size / size;
    for (int lane = 0; lane < count; lane++)
        for (int g = 0; g < groups; g++)
            choose_members(search.shape, grid, (const float *)(part->x + size * g) + lane,
                           (const float *)(part->root + size * g) + lane, (const float *)scales + lane, trials,
                           (int32_t *)(chosen + g) + lane, LANES * groups);
}

typedef struct {
    Floats qx, q2;
} Sums;

INLINE Sums sums_of(Search search, const Part *part, const Ints *members) {
    const Shape shape = search.shape;
    Sums sums = {{0}, {0}};
    for (int i = 0; i < search.size; i++) {
        const Ints level = members[i / shape.dimensions] >> shape.bits * (i % shape.dimensions) & ((1 << shape.bits) - 1);
        const Floats q = to_floats(2 * level + 1);
        sums.qx += part->w[i] * part->x[i] * q;
        sums.q2 += part->w[i] * q * q;
    }
    return sums;
}

/* Search the scale and the members of all groups; scale holds what counts if no trial is better than nothing. */
INLINE Floats search_members(Search search, const Grid *grid, int count, const Part *part, Floats most, Floats scale,
                             Ints *members) {
    const int groups = search.size / search.shape.dimensions, trials = 2 * search.around + 1;
    Ints chosen[MOST_TRIALS * MOST_GROUPS];
    Floats scales[MOST_TRIALS], best = {0};
    for (int trial = 0; trial < trials; trial++) {
        const float offset = (float)(trial - search.around) * search.step;
        const Floats inverse = ((float)(2 * search.shape.levels - 1) + offset) / most;
        scales[trial] = 1.0f / inverse;
        find_keys(search, inverse, part->x, chosen + groups * trial);
    }
    choose_all(search, grid, count, part, scales, trials, chosen);
    for (int g = 0; g < groups; g++) members[g] = all_int(search.refit == REFIT_OTHERS ? MEMBER_EXACT : 0);
    for (int trial = 0; trial < trials; trial++) {
        const Sums sums = sums_of(search, part, chosen + groups * trial);
        const Ints better = (sums.q2 > 0) & (sums.qx * sums.qx > best * sums.q2);
        scale = choose(better, sums.qx / sums.q2, scale);
        best = choose(better, scale * sums.qx, best);
        for (int g = 0; g < groups; g++) members[g] = choose_ints(better, chosen[groups * trial + g], members[g]);
    }
    return scale;
}

/* Choose members again under the scale that was found, and return the scale that suits them. */
INLINE Floats refit_members(Search search, const Grid *grid, int count, const Part *part, Floats scale, Ints *members) {
    const int groups = search.size / search.shape.dimensions;
    Ints wanted = scale > 0, others = all_int(search.refit == REFIT_ALL ? -1 : 0), again[MOST_GROUPS];
    for (int g = 0; g < groups; g++) others |= ~members[g] >> 31;
    wanted &= others;
    if (!any(wanted)) return scale;
    find_keys(search, 1.0f / scale, part->x, again);
    choose_all(search, grid, count, part, &scale, 1, again);
    for (int g = 0; g < groups; g++) {
        const Ints its = search.refit == REFIT_OTHERS ? ~members[g] >> 31 : all_int(-1);
        members[g] = choose_ints(wanted & its, again[g], members[g]);
    }
    const Sums sums = sums_of(search, part, members);
    return choose(wanted & (sums.q2 > 0), sums.qx / sums.q2, scale);
}

/* The number of the point that a member stands for. */
INLINE Ints number_of(Ints member) { return member >> MEMBER_NUMBER & (MOST_POINTS - 1); }

/* Four bits for each scale, as odd multiples of d. */
INLINE Ints scale_level(Floats scale, Floats d, Ints some) {
    return clamp_ints(nearest(0.5f * (1.0f / d * scale - 1.0f)), 0, 15) & some;
}

#endif
