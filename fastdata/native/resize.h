/* Resizing by a triangle filter; see resize.c. */
#ifndef FD_RESIZE_H
#define FD_RESIZE_H

#include "fastdata.h"

typedef struct {
    int32_t height, width; /* of the source */
    int32_t out_height, out_width;
    int32_t channels;  /* 1 to 4 */
    int32_t antialias; /* whether the filter is as wide as a source pixel is in the result */
    int32_t flip;      /* left to right */
} fd_resize_shape;

/* Resize rows of `source` into `out`, out_height x out_width x channels bytes; FD_OK or FD_NO_MEMORY,
   and FD_REFUSED for sizes outside 1 to 65,535. */
int fd_resize(const fd_resize_shape *shape, fd_row *row, void *source, uint8_t *out, fd_scratch *scratch);

#endif
