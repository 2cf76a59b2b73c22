/* Runs kernels on what comes in on stdin, for a test under an emulator: six int64 (which kernel, rows, columns, bytes of
 * the result, whether there are importances, 0), the weights, the importances; the result goes to stdout. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void Kernel(const float *, const float *, uint8_t *, int64_t, int64_t);
#define K(name) extern Kernel strata_quantize_##name;
#include "driver_kernels.h"
#undef K
#define K(name) strata_quantize_##name,
static Kernel *const kernels[] = {
#include "driver_kernels.h"
};

static void *read_all(int64_t size) {
    void *data = malloc((size_t)size + 1);
    if (!data || fread(data, 1, (size_t)size, stdin) != (size_t)size) exit(2);
    return data;
}

int main(void) {
    int64_t head[6];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        float *weights = read_all(head[1] * head[2] * 4), *importances = head[4] ? read_all(head[2] * 4) : NULL;
        uint8_t *out = calloc((size_t)head[3], 1);
        if (!out) return 2;
        kernels[head[0]](weights, importances, out, head[1], head[2]);
        fwrite(out, 1, (size_t)head[3], stdout);
        free(weights);
        free(importances);
        free(out);
    }
    return 0;
}
