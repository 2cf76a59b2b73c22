/* IQ3_XXS and IQ3_S: four weights are a point of a grid with eight levels a dimension, times a scale, and signs.
 *
 * Follows quantize_row_iq3_xxs_impl and quantize_row_iq3_s_impl of ggml-quants.c (MIT, see NOTICE).
 */
#include "grid_search.h"
#include "grids.h"

#define PARTS (SUPER_BLOCK / 32)
#define SHAPE {4, 3, 8}
GRID(iq3_xxs, SHAPE, POINTS_IQ3_XXS, 2, 4096, 66528);
GRID(iq3_s, SHAPE, POINTS_IQ3_S, 3, 4096, 67488);

/* What was found for a super-block: 8 groups, 4 bytes of signs and a scale a sub-block. */
typedef struct {
    Ints members[SUPER_BLOCK / 4], signs[PARTS];
    Floats scales[PARTS], largest;
    /* Lanes in which a sub-block counts as anything but zero. */
    Ints alive[PARTS];
} Found;

INLINE void error_weights(Task task, int64_t first, int count, const Floats *x, Floats *w) {
    if (task.importances) {
        gather_importances(task, SUPER_BLOCK, first, count, w);
        weigh(x, SUPER_BLOCK, 2.0f * squares_of(x, SUPER_BLOCK) / (float)SUPER_BLOCK, w);
    } else {
        for (int i = 0; i < SUPER_BLOCK; i++) w[i] = x[i] * x[i];
    }
}

INLINE void find_members(Search search, const Grid *grid, int even, int count, const Floats *x, const Floats *w,
                         Found *found) {
    const int sign_bits = even ? 7 : 8;
    found->largest = all(0);
    for (int j = 0; j < PARTS; j++) {
        Part part;
        Ints *members = found->members + 8 * j, signs = {0};
        fill_part(32, x + 32 * j, w + 32 * j, &part);
        for (int k = 0; k < 4; k++) {
            Floats *eight = part.x + 8 * k;
            signs |= (even ? split_even_signs(part.w + 8 * k, eight) : split_signs(eight)) << sign_bits * k;
        }
        const Floats most = largest_of(part.x, 32);
        const Ints alive = even ? most >= 1e-8f : most != 0;
        Floats scale = search_members(search, grid, count, &part, most, most / 15.0f, members);
        scale = refit_members(search, grid, count, &part, scale, members);
        const Ints negative = scale < 0;
        signs ^= negative & (even ? 0x0fffffff : -1);
        scale = choose(negative, -scale, scale);
        for (int g = 0; g < 8; g++) members[g] &= alive;
        found->signs[j] = signs & alive;
        found->scales[j] = choose(alive, scale, all(0));
        found->largest = larger(found->largest, found->scales[j]);
        found->alive[j] = alive;
    }
}

/* The low bytes of the numbers of a sub-block's points. */
INLINE void pack_numbers(const Ints *members, Ints *words) {
    for (int i = 0; i < 2; i++) {
        Ints bytes[4];
        for (int k = 0; k < 4; k++) bytes[k] = number_of(members[4 * i + k]) & 255;
        words[i] = word(bytes);
    }
}

KERNEL(iq3_xxs) {
    const Task task = {weights, importances, out, rows, columns};
    const Search search = {SHAPE, 32, 15, 0.2f, REFIT_OTHERS};
    const int64_t blocks = block_count(task, SUPER_BLOCK), stride = 98;
    Floats x[SUPER_BLOCK], w[SUPER_BLOCK];
    Found found;
    prepare(&iq3_xxs);
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        gather_weights(task, SUPER_BLOCK, first, count, x);
        error_weights(task, first, count, x, w);
        find_members(search, &iq3_xxs, 1, count, x, w, &found);
        const Floats d = found.largest / 31.0f;
        const Ints some = found.largest != 0;
        uint16_t half_d[LANES];
        round_to_halves(choose(some, d * 1.0125f, all(0)), half_d);
        Ints words[16 + 8];
        for (int j = 0; j < PARTS; j++) {
            pack_numbers(found.members + 8 * j, words + 2 * j);
            words[16 + j] = found.signs[j] | scale_level(found.scales[j], d, some) << 28;
        }
        for (int i = 0; i < 24; i++) words[i] &= some;
        uint8_t *place = out + first * stride;
        put_halves(half_d, place, stride, count);
        scatter_words(words, 24, place + 2, stride, count);
    }
}

/* Numbers and signs of sub-blocks that are not zero stand one after the other, and zeros at the end: ggml does not go
 * on to the next place after a sub-block of zeros. */
INLINE void scatter_alive(const Found *found, int lane, uint8_t *numbers, uint8_t *signs) {
    memset(numbers, 0, SUPER_BLOCK / 4);
    memset(signs, 0, SUPER_BLOCK / 8);
    for (int j = 0; j < PARTS; j++) {
        if (!found->alive[j][lane]) continue;
        for (int g = 0; g < 8; g++) *numbers++ = (uint8_t)(found->members[8 * j + g][lane] >> MEMBER_NUMBER);
        const int32_t bits = found->signs[j][lane];
        memcpy(signs, &bits, 4);
        signs += 4;
    }
}

KERNEL(iq3_s) {
    const Task task = {weights, importances, out, rows, columns};
    const Search search = {SHAPE, 32, 9, 0.2f, REFIT_ALL_IF_ANY};
    const int64_t blocks = block_count(task, SUPER_BLOCK), stride = 110;
    Floats x[SUPER_BLOCK], w[SUPER_BLOCK];
    Found found;
    prepare(&iq3_s);
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        gather_weights(task, SUPER_BLOCK, first, count, x);
        error_weights(task, first, count, x, w);
        find_members(search, &iq3_s, 0, count, x, w, &found);
        const Floats d = found.largest / 31.0f;
        const Ints some = found.largest != 0;
        uint16_t half_d[LANES];
        round_to_halves(choose(some, d * 1.033f, all(0)), half_d);
        Ints high[PARTS], scales = {0}, words[2];
        for (int j = 0; j < PARTS; j++) {
            high[j] = all_int(0);
            for (int g = 0; g < 8; g++) high[j] |= (number_of(found.members[8 * j + g]) >> 8) << g;
            scales |= scale_level(found.scales[j], d, some) << 4 * j;
        }
        for (int i = 0; i < 2; i++) words[i] = word(high + 4 * i);
        uint8_t *place = out + first * stride;
        for (int lane = 0; lane < count; lane++) {
            memcpy(place + lane * stride, half_d + lane, 2);
            scatter_alive(&found, lane, place + lane * stride + 2, place + lane * stride + 74);
        }
        scatter_words(words, 2, place + 66, stride, count);
        scatter_words(&scales, 1, place + 106, stride, count);
    }
}
