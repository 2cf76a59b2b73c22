/* What a loaded library says about itself: the version of the calls, and the sources it was built from. */
#include "lanes.h"

#define VERSION 1

EXPORT int32_t strata_kernels_version(void) { return VERSION; }
EXPORT int32_t strata_kernels_lanes(void) { return LANES; }
EXPORT const char *strata_kernels_source(void) { return STRATA_SOURCE; }
