/* Products of weights and activations, both quantized or both floats. */
#ifndef STRATA_MATMUL_H
#define STRATA_MATMUL_H

#include "formats.h"

/* Columns of a group: a kernel makes one row tile of as many columns at once. */
#define GROUP 16
#define MOST_ROWS 32

/* Rows of weights. Element k of row r is byte k % 4 of quants[(k / 4 * rows + r) * 4], or floats[k * rows + r]. */
typedef struct {
    int rows;
    uint8_t *quants;
    float *scales, *shifts; /* [part][rows] */
    float *floats;
} RowTile;

/* 16 columns of activations, zero where there are fewer. */
typedef struct {
    int8_t *quants; /* [part][column][element] */
    float *scales;  /* [part][column] */
    /* What the sum of a part's quants adds: [part][column], scaled for shifts, else times the negative offset. */
    float *sums;
    int32_t *starts;
    float *floats; /* [part][column][element] */
} Columns;

/* Multiply a tile and a group of columns of `parts` parts: out[column][row]. */
typedef void (*Multiply)(const RowTile *tile, const Columns *columns, int64_t parts, float out[GROUP][MOST_ROWS]);

/* The kernel for a format and its rows per tile, or NULL if this processor has none. `vnni`: it has AVX-512 VNNI. */
Multiply find_kernel(const Format *format, bool vnni, int *rows);
Multiply find_float_kernel(int *rows);

/* Unpack `count` rows of `length` weights into the tile; other rows of it become zero. */
void fill_tile(const Format *format, const uint8_t *weights, size_t row_bytes, int count, int64_t length, RowTile *tile);

/* Write the converted row of activations as column `column` of the group; NULL: zeros. */
void fill_column(const Format *format, const uint8_t *row, int column, int64_t length, Columns *group);

#endif
