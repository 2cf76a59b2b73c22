/* The search behind IQ2 and IQ3: some weights together take the point of a grid that lies nearest.
 *
 * Follows iq2xs_init_impl, iq3xs_init_impl and the searches for the best neighbour of ggml-quants.c (MIT, see NOTICE).
 * Weights are rounded one by one; where the result is no point of the grid, the nearest points, which a table lists,
 * are compared by their weighed errors. An error is a sum with one term a weight, and a term has as many values as
 * there are levels: they are computed once, and then each lane adds up those of another point, in ggml's order.
 */
#ifndef STRATA_GRID_H
#define STRATA_GRID_H

#include <float.h>
#include <sched.h>

#include "blocks.h"

/* What a member of a list holds: the levels as in a list of points, the point's number, and whether the weights were
 * rounded to the point itself. */
#define MEMBER_LEVELS 0xffff
#define MEMBER_NUMBER 16
#define MEMBER_EXACT INT32_MIN

/* A list: how many vectors of members it has, and above them its first one. */
#define LIST_BITS 8

/* Terms that one vector holds: those of WIDE / SLOTS dimensions, a slot a level. */
#define WIDE (LANES > 4 ? LANES : 8)

/* What a compiler must know of a grid. slots is levels rounded up to a power of two: 1 << bits. */
typedef struct {
    int dimensions, bits, levels;
} Shape;

typedef struct {
    Shape shape;
    const uint16_t *points;
    int count;
    /* So many different distances a list goes through. */
    int distances;
    /* By key (a number whose digits are the levels, the last dimension's first): its list. */
    uint32_t *lists;
    /* By place in all lists: where the terms of a point stand, LANE_BITS a dimension; and the point. */
    uint32_t *places;
    int32_t *members;
    int state;
} Grid;

#define MOST_POINTS 1024
#define MOST_DISTANCE 196

/* A grid with room for the lists of all keys, of which room is the sum of lengths for vectors of 16. */
#define GRID(name, shape, points, distances, keys, room)                                 \
    static uint32_t name##_lists[keys], name##_places[room];                             \
    static int32_t name##_members[room];                                                 \
    static Grid name = {shape, points, sizeof points / sizeof *points, distances,        \
                        name##_lists, name##_places, name##_members, 0}

INLINE int level_in(Shape shape, int code, int dimension) {
    return code >> (shape.bits * dimension) & ((1 << shape.bits) - 1);
}

/* Where in the vectors of terms those of a point stand. */
static uint32_t place_of(Shape shape, int code) {
    const int slots = 1 << shape.bits, together = WIDE / slots;
    uint32_t place = 0;
    for (int i = 0; i < shape.dimensions; i++)
        place |= (uint32_t)(level_in(shape, code, i) + slots * (i % together)) << (WIDE == 16 ? 4 * i : 3 * i);
    return place;
}

static void squared_distances(const Grid *grid, int code, uint8_t *squares) {
    for (int p = 0; p < grid->count; p++) {
        int sum = 0;
        for (int i = 0; i < grid->shape.dimensions; i++) {
            const int difference = level_in(grid->shape, grid->points[p], i) - level_in(grid->shape, code, i);
            sum += difference * difference;
        }
        squares[p] = (uint8_t)sum;
    }
}

static void add_member(Grid *grid, int place, int point, int exact) {
    const int code = grid->points[point];
    grid->places[place] = place_of(grid->shape, code);
    grid->members[place] = code | point << MEMBER_NUMBER | (exact ? MEMBER_EXACT : 0);
}

/* List the points at the least distances from the one of a key, in the order of distance, then number. */
static int add_list(Grid *grid, int key, int first) {
    uint8_t squares[MOST_POINTS], seen[MOST_DISTANCE + 1] = {0};
    int code = 0, place = first;
    for (int i = 0, rest = key; i < grid->shape.dimensions; i++, rest /= grid->shape.levels)
        code |= rest % grid->shape.levels << (grid->shape.bits * i);
    squared_distances(grid, code, squares);
    for (int p = 0; p < grid->count; p++) seen[squares[p]] = 1;
    const int exact = seen[0];
    for (int distance = 0, left = exact ? 1 : grid->distances; distance <= MOST_DISTANCE && left; distance++) {
        if (!seen[distance]) continue;
        left--;
        for (int p = 0; p < grid->count; p++)
            if (squares[p] == distance) add_member(grid, place++, p, exact);
    }
    /* The first again, which cannot win against itself, up to a whole vector. */
    for (; (place - first) % LANES; place++) {
        grid->places[place] = grid->places[first];
        grid->members[place] = grid->members[first];
    }
    grid->lists[key] = (uint32_t)(first / LANES) << LIST_BITS | (uint32_t)((place - first) / LANES);
    return place;
}

/* Make the lists of a grid, once for all threads. */
static void prepare(Grid *grid) {
    enum { NOT_YET, AT_WORK, DONE };
    if (__atomic_load_n(&grid->state, __ATOMIC_ACQUIRE) == DONE) return;
    int expected = NOT_YET;
    if (__atomic_compare_exchange_n(&grid->state, &expected, AT_WORK, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
        int keys = 1, place = 0;
        for (int i = 0; i < grid->shape.dimensions; i++) keys *= grid->shape.levels;
        for (int key = 0; key < keys; key++) place = add_list(grid, key, place);
        __atomic_store_n(&grid->state, DONE, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&grid->state, __ATOMIC_ACQUIRE) != DONE) sched_yield();
}

#if LANES > 4

/* Which lanes hold the least value, a bit each. */
INLINE unsigned least_lanes(Floats errors) {
#if LANES == 16
    return _mm512_cmp_ps_mask((__m512)errors, _mm512_set1_ps(_mm512_reduce_min_ps((__m512)errors)), _CMP_EQ_OQ);
#else
    __m256 least = (__m256)errors;
    least = _mm256_min_ps(least, _mm256_permute2f128_ps(least, least, 1));
    least = _mm256_min_ps(least, _mm256_shuffle_ps(least, least, 0x4e));
    least = _mm256_min_ps(least, _mm256_shuffle_ps(least, least, 0xb1));
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps((__m256)errors, least, _CMP_EQ_OQ));
#endif
}

/* The place in its list of the point with the least error, the first of equal ones. vectors: by lane, which vector of
 * the list the error comes from. */
INLINE int least_place(Floats errors, Ints vectors, int many) {
    unsigned equal = least_lanes(errors);
    if (many == 1) return __builtin_ctz(equal);
    int best = INT32_MAX;
    for (; equal; equal &= equal - 1) {
        const int lane = __builtin_ctz(equal), place = vectors[lane] * LANES + lane;
        best = place < best ? place : best;
    }
    return best;
}

INLINE int32_t nearest_member(Shape shape, const Grid *grid, uint32_t list, const Floats *terms) {
    const int together = WIDE >> shape.bits, many = (int)(list & ((1 << LIST_BITS) - 1));
    const uint32_t first = (list >> LIST_BITS) * LANES;
    Floats best = all(FLT_MAX);
    Ints vectors = {0};
    for (int v = 0; v < many; v++) {
        Ints place;
        memcpy(&place, grid->places + first + LANES * v, sizeof place);
        Floats error = pick(terms[0], place);
        for (int i = 1; i < shape.dimensions; i++)
            error += pick(terms[i / together], place >> (WIDE == 16 ? 4 * i : 3 * i));
        const Ints better = error < best;
        best = choose(better, error, best);
        vectors = choose_ints(better, all_int(v), vectors);
    }
    return grid->members[first + least_place(best, vectors, many)];
}

/* Numbers of a group's weights, each as often as there are slots. */
INLINE Floats spread(const float *numbers, int slots) {
    float wide[LANES];
    for (int lane = 0; lane < LANES; lane++) wide[lane] = numbers[LANES * (lane / slots)];
    Floats spread;
    memcpy(&spread, wide, sizeof spread);
    return spread;
}

/* The members for one group of one block under some scales, in the place of its keys. stride: from one scale's key to
 * the next one's. */
INLINE void choose_members(Shape shape, const Grid *grid, const float *x, const float *w, const float *scales,
                           int trials, int32_t *chosen, int64_t stride) {
    const int slots = 1 << shape.bits, together = WIDE / slots, tables = shape.dimensions / together;
    Floats wide_x[4], wide_w[4], terms[4], odd = {0};
    for (int t = 0; t < tables; t++) {
        wide_x[t] = spread(x + LANES * together * t, slots);
        wide_w[t] = spread(w + LANES * together * t, slots);
    }
    for (int lane = 0; lane < LANES; lane++) odd[lane] = (float)(2 * (lane % slots) + 1);
    for (int trial = 0; trial < trials; trial++) {
        const Floats values = scales[LANES * trial] * odd;
        for (int t = 0; t < tables; t++) {
            const Floats difference = values - wide_x[t];
            terms[t] = wide_w[t] * difference * difference;
        }
        int32_t *place = chosen + stride * trial;
        *place = nearest_member(shape, grid, grid->lists[*place], terms);
    }
}

#else

INLINE int32_t nearest_member(Shape shape, const Grid *grid, uint32_t list, const float *terms) {
    const int slots = 1 << shape.bits, together = WIDE / slots;
    const int many = (int)(list & ((1 << LIST_BITS) - 1)) * LANES;
    const uint32_t first = (list >> LIST_BITS) * LANES;
    float best = FLT_MAX;
    int found = 0;
    for (int m = 0; m < many; m++) {
        const uint32_t place = grid->places[first + m];
        float error = terms[place & 7];
        for (int i = 1; i < shape.dimensions; i++) error += terms[WIDE * (i / together) + (place >> 3 * i & 7)];
        found = error < best ? m : found;
        best = error < best ? error : best;
    }
    return grid->members[first + found];
}

INLINE void choose_members(Shape shape, const Grid *grid, const float *x, const float *w, const float *scales,
                           int trials, int32_t *chosen, int64_t stride) {
    const int slots = 1 << shape.bits;
    for (int trial = 0; trial < trials; trial++) {
        float terms[32];
        for (int i = 0; i < shape.dimensions; i++)
            for (int level = 0; level < slots; level++) {
                const float difference = scales[LANES * trial] * (float)(2 * level + 1) - x[LANES * i];
                terms[slots * i + level] = w[LANES * i] * difference * difference;
            }
        int32_t *place = chosen + stride * trial;
        *place = nearest_member(shape, grid, grid->lists[*place], terms);
    }
}

#endif

#endif
