/* IQ2_XXS, IQ2_XS and IQ2_S: eight weights are a point of a grid with three levels a dimension, times a scale, and signs.
 *
 * Follows quantize_row_iq2_xxs_impl, quantize_row_iq2_xs_impl and quantize_row_iq2_s_impl of ggml-quants.c (MIT, see
 * NOTICE).
 */
#include "grid_search.h"
#include "grids.h"
#include "positive.h"

#define SHAPE {8, 2, 3}
#define KEYS 6561
GRID(iq2_xxs, SHAPE, POINTS_IQ2_XXS, 2, KEYS, 165232);
GRID(iq2_xs, SHAPE, POINTS_IQ2_XS, 2, KEYS, 238752);
GRID(iq2_s, SHAPE, POINTS_IQ2_S, 1, KEYS, 116960);

/* What was found for a super-block: 32 groups with a byte of signs each, and a scale a sub-block. */
typedef struct {
    Ints members[SUPER_BLOCK / 8], signs[SUPER_BLOCK / 8];
    Floats scales[SUPER_BLOCK / 16], largest;
} Found;

/* What a type adds to the search: the factor of the mean square in the weights of errors, whether the number of signs
 * is even, below which magnitude a sub-block counts as zero, and whether the trials start from the scale of levels
 * without a grid. */
typedef struct {
    float sigma_factor, nothing;
    int even, fitted;
} Kind;

/* The magnitude that the highest level stands for, where the trials start, and the scale that counts if none wins. */
INLINE Floats start_of(Kind kind, const Part *part, int size, Floats *scale) {
    const Floats most = largest_of(part->x, size);
    if (kind.fitted) {
        Ints levels[32];
        *scale = fit_positive(32, 4, part->x, part->w, levels);
        return *scale * 3.0f;
    }
    *scale = most / 5.0f;
    return most;
}

INLINE void find_members(Search search, Kind kind, const Grid *grid, Task task, int64_t first, int count,
                         Found *found) {
    const int size = search.size, groups = size / 8;
    Floats x[SUPER_BLOCK], w[SUPER_BLOCK];
    gather_weights(task, SUPER_BLOCK, first, count, x);
    gather_importances(task, SUPER_BLOCK, first, count, w);
    weigh(x, SUPER_BLOCK, kind.sigma_factor * squares_of(x, SUPER_BLOCK) / (float)SUPER_BLOCK, w);
    found->largest = all(0);
    for (int j = 0; j < SUPER_BLOCK / size; j++) {
        Part part;
        Ints *members = found->members + groups * j, *signs = found->signs + groups * j;
        Floats scale;
        fill_part(size, x + size * j, w + size * j, &part);
        for (int g = 0; g < groups; g++)
            signs[g] = kind.even ? split_even_signs(part.w + 8 * g, part.x + 8 * g) : split_signs(part.x + 8 * g);
        Ints alive = largest_of(part.x, size) >= kind.nothing;
        const Floats most = start_of(kind, &part, size, &scale);
        if (kind.fitted) alive &= most > 0;
        scale = search_members(search, grid, count, &part, most, scale, members);
        scale = refit_members(search, grid, count, &part, scale, members);
        const Ints negative = scale < 0;
        scale = choose(negative, -scale, scale);
        for (int g = 0; g < groups; g++) {
            signs[g] = (signs[g] ^ (negative & (kind.even ? 127 : 255))) & alive;
            members[g] &= alive;
        }
        found->scales[j] = choose(alive, scale, all(0));
        found->largest = larger(found->largest, found->scales[j]);
    }
}

/* Two scales a byte. */
INLINE void pack_levels(const Found *found, Floats d, Ints some, Ints *words) {
    words[0] = words[1] = all_int(0);
    for (int j = 0; j < 16; j++) words[j / 8] |= scale_level(found->scales[j], d, some) << 4 * (j % 8);
}

KERNEL(iq2_xxs) {
    const Task task = {weights, importances, out, rows, columns};
    const Search search = {SHAPE, 32, 6, 0.1f, REFIT_ALL};
    const Kind kind = {1.0f, 1e-15f, 1, 1};
    const int64_t blocks = block_count(task, SUPER_BLOCK), stride = 66;
    Found found;
    prepare(&iq2_xxs);
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        find_members(search, kind, &iq2_xxs, task, first, count, &found);
        const Floats d = found.largest / 31.0f;
        const Ints some = found.largest != 0;
        uint16_t half_d[LANES];
        round_to_halves(choose(some, d, all(0)), half_d);
        Ints words[16];
        for (int j = 0; j < 8; j++) {
            words[2 * j] = all_int(0);
            words[2 * j + 1] = scale_level(found.scales[j], d, some) << 28;
            for (int g = 0; g < 4; g++) {
                words[2 * j] |= number_of(found.members[4 * j + g]) << 8 * g;
                words[2 * j + 1] |= found.signs[4 * j + g] << 7 * g;
            }
        }
        for (int i = 0; i < 16; i++) words[i] &= some;
        put_halves(half_d, out + first * stride, stride, count);
        scatter_words(words, 16, out + first * stride + 2, stride, count);
    }
}

KERNEL(iq2_xs) {
    const Task task = {weights, importances, out, rows, columns};
    const Search search = {SHAPE, 16, 9, 0.1f, REFIT_OTHERS};
    const Kind kind = {1.0f, 1e-15f, 1, 0};
    const int64_t blocks = block_count(task, SUPER_BLOCK), stride = 74;
    Found found;
    prepare(&iq2_xs);
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        find_members(search, kind, &iq2_xs, task, first, count, &found);
        const Floats d = found.largest / 31.0f;
        const Ints some = found.largest != 0;
        uint16_t half_d[LANES];
        round_to_halves(choose(some, d, all(0)), half_d);
        Ints words[16 + 2];
        for (int i = 0; i < 16; i++) {
            words[i] = all_int(0);
            for (int k = 0; k < 2; k++)
                words[i] |= (number_of(found.members[2 * i + k]) | found.signs[2 * i + k] << 9) << 16 * k;
            words[i] &= some;
        }
        pack_levels(&found, d, some, words + 16);
        put_halves(half_d, out + first * stride, stride, count);
        scatter_words(words, 18, out + first * stride + 2, stride, count);
    }
}

KERNEL(iq2_s) {
    const Task task = {weights, importances, out, rows, columns};
    const Search search = {SHAPE, 16, 9, 0.1f, REFIT_OTHERS};
    const Kind kind = {2.0f, 1e-8f, 0, 0};
    const int64_t blocks = block_count(task, SUPER_BLOCK), stride = 82;
    Found found;
    prepare(&iq2_s);
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        find_members(search, kind, &iq2_s, task, first, count, &found);
        const Floats d = found.largest / 31.0f;
        const Ints some = found.largest != 0;
        uint16_t half_d[LANES];
        round_to_halves(choose(some, d * 0.9875f, all(0)), half_d);
        Ints numbers[32], high[8], words[8 + 8 + 2 + 2];
        for (int i = 0; i < 8; i++) high[i] = all_int(0);
        for (int i = 0; i < 32; i++) {
            const Ints number = number_of(found.members[i]);
            numbers[i] = number & 255;
            high[i / 4] |= number >> 8 << 2 * (i % 4);
        }
        for (int i = 0; i < 8; i++) words[i] = word(numbers + 4 * i);
        for (int i = 0; i < 8; i++) words[8 + i] = word(found.signs + 4 * i);
        for (int i = 0; i < 2; i++) words[16 + i] = word(high + 4 * i);
        pack_levels(&found, d, some, words + 18);
        put_halves(half_d, out + first * stride, stride, count);
        scatter_words(words, 20, out + first * stride + 2, stride, count);
    }
}
