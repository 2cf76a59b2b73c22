/* The scale of scales: integers for the scales (or minimums) of a super-block, which are not negative as a rule.
 *
 * Follows make_qp_quants of ggml-quants.c (MIT, see NOTICE).
 */
#ifndef STRATA_POSITIVE_H
#define STRATA_POSITIVE_H

#include "blocks.h"

/* Find levels (0..top) and a scale with values[i] close to scale * levels[i], errors weighed by weights.
 *
 * Nine inverse scales around top / max are tried; then, up to five times, every level in turn moves to where the
 * others would have it, if that is better. Levels are kept as bytes: a negative one wraps.
 */
INLINE Floats fit_positive(int n, int top, const Floats *values, const Floats *weights, Ints *levels) {
    Floats high = {0};
    for (int i = 0; i < n; i++) high = larger(high, values[i]);
    const Ints alive = high >= NOTHING;
    Floats inverse = (float)top / high;
    Floats scale = 1.0f / inverse, best = {0};
    for (int i = 0; i < n; i++) {
        const Floats diff = values[i] - scale * to_floats(nearest(inverse * values[i]) & 255);
        best += weights[i] * diff * diff;
    }
    for (int step = -4; step <= 4; step++) {
        if (step == 0) continue;
        const Floats candidate = (0.1f * step + top) / high, its_scale = 1.0f / candidate;
        Floats error = {0};
        for (int i = 0; i < n; i++) {
            const Ints level = clamp_ints(nearest(candidate * values[i]), INT32_MIN, top);
            const Floats diff = values[i] - its_scale * to_floats(level);
            error += weights[i] * diff * diff;
        }
        const Ints better = error < best;
        best = choose(better, error, best);
        inverse = choose(better, candidate, inverse);
    }
    Floats sum_lx = {0}, sum_l2 = {0};
    for (int i = 0; i < n; i++) {
        const Ints level = clamp_ints(nearest(inverse * values[i]), INT32_MIN, top);
        const Floats l = to_floats(level);
        levels[i] = level & 255 & alive;
        sum_lx += weights[i] * values[i] * l;
        sum_l2 += weights[i] * l * l;
    }
    for (int round = 0; round < 5; round++) {
        Ints changed = {0};
        for (int i = 0; i < n; i++) {
            const Floats old = to_floats(levels[i]);
            Floats lx = sum_lx - weights[i] * values[i] * old, l2 = sum_l2 - weights[i] * old * old;
            const Ints level = clamp_ints(nearest(values[i] * l2 / lx), INT32_MIN, top);
            const Ints other = alive & (lx > 0) & (l2 > 0) & (level != levels[i]);
            const Floats l = to_floats(level);
            lx += weights[i] * values[i] * l;
            l2 += weights[i] * l * l;
            const Ints better = other & (lx * lx * sum_l2 > sum_lx * sum_lx * l2);
            levels[i] = choose_ints(better, level & 255, levels[i]);
            sum_lx = choose(better, lx, sum_lx);
            sum_l2 = choose(better, l2, sum_l2);
            changed |= better;
        }
        if (!any(changed)) break;
    }
    return choose(alive & (sum_l2 > 0), sum_lx / sum_l2, all(0));
}

#endif
