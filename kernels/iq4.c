/* IQ4_NL and IQ4_XS: a weight is scale * one of sixteen values that lie closer together near 0.
 *
 * Follows quantize_row_iq4_nl_impl and best_index_int8 of ggml-quants.c (MIT, see NOTICE). ggml finds the nearest value
 * by bisection and compares two rounded distances; both are monotone in x, and the floats at which the answer changes
 * are exactly the midpoints, which belong to the upper value. So four comparisons against midpoints give its index.
 */
#include "blocks.h"

#define TRIALS 7
#define LOWEST (-127)

/* An index into the sixteen values, and the value. */
typedef struct {
    Ints index;
    Floats value;
} Nearest;

/* The comparisons are ~(x < midpoint), so that NaN gets the last value, as in ggml. */

#if LANES == 4

/* Bytes of a table of sixteen; an index with bit 7 set picks 0. */
INLINE Ints pick_bytes(Ints table, Ints index) {
#if defined(__x86_64__)
    return (Ints)_mm_shuffle_epi8((__m128i)table, (__m128i)index);
#else
    return (Ints)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
#endif
}

INLINE Nearest find(Floats x) {
    const Ints in_order = all_int(0x03020100);
    const Floats third = {-93.5f, -28.5f, 19.0f, 79.0f};
    const Floats low_fourth = {-115.5f, -74.0f, -42.0f, -16.0f}, high_fourth = {7.0f, 31.5f, 61.0f, 101.0f};
    const Ints values = {(int32_t)0xbfad9881u, (int32_t)0xf6eaddcfu, 0x26190d01, 0x71594535};
    const Ints a = ~(x < -4.5f);
    const Ints b = ~(x < choose(a, all(45.5f), all(-57.0f)));
    const Ints c = ~(x < (Floats)pick_bytes((Ints)third, ((a & 0x08080808) | (b & 0x04040404)) + in_order));
    const Ints place = ((b & 0x08080808) | (c & 0x04040404)) + in_order;
    const Ints d = ~(x < choose(a, (Floats)pick_bytes((Ints)high_fourth, place), (Floats)pick_bytes((Ints)low_fourth, place)));
    const Ints index = (a & 8) | (b & 4) | (c & 2) | (d & 1);
    const Nearest found = {index, to_floats(pick_bytes(values, index | (int32_t)0x80808000u) << 24 >> 24)};
    return found;
}

#else

#if LANES == 8
#define TABLE_8(a, b, c, d, e, f, g, h) ((Floats){a, b, c, d, e, f, g, h})
#define PICK_16(low, high, upper, index) choose(upper, pick(high, index), pick(low, index))
#else
#define TABLE_8(a, b, c, d, e, f, g, h) ((Floats){a, b, c, d, e, f, g, h, a, b, c, d, e, f, g, h})
#define PICK_16(low, high, upper, index) \
    ((Floats)_mm512_permutex2var_ps((__m512)(low), (__m512i)((index) | ((index) & 8) << 1), (__m512)(high)))
#endif

INLINE Nearest find(Floats x) {
    const Floats third = TABLE_8(-93.5f, -28.5f, 19.0f, 79.0f, -93.5f, -28.5f, 19.0f, 79.0f);
    const Floats fourth = TABLE_8(-115.5f, -74.0f, -42.0f, -16.0f, 7.0f, 31.5f, 61.0f, 101.0f);
    const Floats low = TABLE_8(-127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f, -22.0f, -10.0f);
    const Floats high = TABLE_8(1.0f, 13.0f, 25.0f, 38.0f, 53.0f, 69.0f, 89.0f, 113.0f);
    const Ints a = ~(x < -4.5f);
    const Ints b = ~(x < choose(a, all(45.5f), all(-57.0f)));
    const Ints c = ~(x < pick(third, (a & 2) | (b & 1)));
    const Ints d = ~(x < pick(fourth, (a & 4) | (b & 2) | (c & 1)));
    const Ints index = (a & 8) | (b & 4) | (c & 2) | (d & 1);
    const Nearest found = {index, PICK_16(low, high, a, index)};
    return found;
}

#endif

/* Search the scale of LANES blocks of 32: sixteen scales give values, the values the best scale and its gain. */
INLINE Floats search_scale(const Floats *x, const Floats *w) {
    Floats max = {0}, magnitude = {0};
    for (int i = 0; i < 32; i++) {
        const Floats a = absolute(x[i]);
        const Ints more = a > magnitude;
        magnitude = choose(more, a, magnitude);
        max = choose(more, x[i], max);
    }
    Floats scale = {0}, best = {0};
    for (int trial = -TRIALS - 1; trial <= TRIALS; trial++) {
        const int first = trial < -TRIALS;
        const Floats inverse = first ? 1.0f / (-max / (float)LOWEST) : (float)(trial + LOWEST) / max;
        Floats sum_qx = {0}, sum_q2 = {0};
        for (int i = 0; i < 32; i++) {
            const Floats q = find(inverse * x[i]).value, wq = w[i] * q;
            sum_qx += wq * x[i];
            sum_q2 += wq * q;
        }
        const Ints better = first ? sum_q2 > 0 : (sum_q2 > 0) & (sum_qx * sum_qx > best * sum_q2);
        scale = choose(better, sum_qx / sum_q2, scale);
        best = choose(better, scale * sum_qx, best);
    }
    return choose(magnitude < NOTHING, all(0), scale);
}

/* The weights of errors: x * x, or the importances and the block's mean square. */
INLINE void error_weights(Task task, int64_t size, int64_t first, int count, const Floats *x, Floats *w) {
    if (task.importances) {
        gather_importances(task, size, first, count, w);
        weigh(x, (int)size, squares_of(x, (int)size) * (2.0f / (float)size), w);
    } else {
        for (int i = 0; i < size; i++) w[i] = x[i] * x[i];
    }
}

INLINE Floats inverse_or_zero(Floats a) { return choose(a != 0, 1.0f / a, all(0)); }

KERNEL(iq4_nl) {
    const Task task = {weights, importances, out, rows, columns};
    const int64_t blocks = block_count(task, SMALL_BLOCK), stride = 18;
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        Floats x[32], w[32];
        Ints levels[32], words[4];
        gather_weights(task, SMALL_BLOCK, first, count, x);
        error_weights(task, SMALL_BLOCK, first, count, x, w);
        const Floats scale = search_scale(x, w), inverse = inverse_or_zero(scale);
        for (int i = 0; i < 32; i++) levels[i] = find(inverse * x[i]).index;
        uint16_t half_d[LANES];
        round_to_halves(scale, half_d);
        pack_nibbles(levels, 16, words);
        uint8_t *place = out + first * stride;
        put_halves(half_d, place, stride, count);
        scatter_words(words, 4, place + 2, stride, count);
    }
}

/* Eight blocks of 32, their scales in six bits each: four low bits in a nibble, two high bits in a 16-bit word. The
 * levels are those under the scale before d is rounded to a half. */
KERNEL(iq4_xs) {
    const Task task = {weights, importances, out, rows, columns};
    const int64_t blocks = block_count(task, SUPER_BLOCK), stride = 136;
    Floats x[SUPER_BLOCK], w[SUPER_BLOCK];
    for (int64_t first = 0; first < blocks; first += LANES) {
        const int count = lanes_from(first, blocks);
        gather_weights(task, SUPER_BLOCK, first, count, x);
        error_weights(task, SUPER_BLOCK, first, count, x, w);
        Floats scales[8], scale = {0}, magnitude = {0};
        for (int j = 0; j < 8; j++) {
            scales[j] = search_scale(x + 32 * j, w + 32 * j);
            const Floats a = absolute(scales[j]);
            const Ints more = a > magnitude;
            magnitude = choose(more, a, magnitude);
            scale = choose(more, scales[j], scale);
        }
        const Floats d = -scale / 32.0f, inverse = inverse_or_zero(d);
        uint16_t half_d[LANES];
        round_to_halves(d, half_d);
        Ints low = {0}, high = {0}, levels[32], words[1 + 32];
        for (int j = 0; j < 8; j++) {
            const Ints level = clamp_ints(nearest(inverse * scales[j]), -32, 31);
            const Floats its_inverse = inverse_or_zero(d * to_floats(level));
            for (int i = 0; i < 32; i++) levels[i] = find(its_inverse * x[32 * j + i]).index;
            pack_nibbles(levels, 16, words + 1 + 4 * j);
            low |= ((level + 32) & 15) << (4 * j);
            high |= ((level + 32) >> 4) << (2 * j);
        }
        words[0] = low;
        uint8_t *place = out + first * stride;
        for (int lane = 0; lane < count; lane++) {
            const uint16_t high_bits = (uint16_t)high[lane];
            memcpy(place + lane * stride, half_d + lane, 2);
            memcpy(place + lane * stride + 2, &high_bits, 2);
        }
        scatter_words(words, 33, place + 4, stride, count);
    }
}
