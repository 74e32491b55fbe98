/* From pixels whose channels lie side by side to planes, one a channel; see planes.c. */
#ifndef FD_PLANES_H
#define FD_PLANES_H

#include "fastdata.h"

/* Write `count` pixels of 1 to 4 channels to their planes: channel c begins at out + c * plane. */
void fd_split(const uint8_t *in, size_t count, int32_t channels, uint8_t *out, size_t plane);

#endif
