/* Resizing by a triangle filter; see resize.c. */
#ifndef FD_RESIZE_H
#define FD_RESIZE_H

#include "fastdata.h"

/* One direction of a resize.  Lengths of the source are counted in units, of which each of its
   pixels is `factor` wide: a picture that was decoded at 1/8 has a pixel for every 8 units, and
   what is resized of it begins and ends between pixels. */
typedef struct {
    int32_t start, length; /* units that are resized */
    int32_t factor;
    int32_t target;       /* pixels that they become */
    int32_t first, count; /* those of them that are made */
} fd_span;

typedef struct {
    fd_span down, across;
    int32_t channels;  /* 1 to 4 */
    int32_t antialias; /* whether the filter is as wide as a source pixel is in the result */
    int32_t flip;      /* left to right, of what is made */
    int32_t planar;    /* whether the result is planes, one a channel */
} fd_resize_shape;

/* Source pixels that a resize looks at. */
typedef struct {
    int32_t top, left, rows, columns;
} fd_needed;

/* Prepare a resize in `scratch`, and say what it needs; FD_OK or FD_NO_MEMORY, and FD_REFUSED for
   sizes outside 1 to 65,535 or a part that is not inside. */
int fd_resize_plan(const fd_resize_shape *shape, fd_scratch *scratch, fd_needed *needed);

/* Carry out the resize that was prepared last: of rows of `source`, of which row 0 is needed->top
   and begins at needed->left, into `out`, down.count x across.count x channels bytes. */
void fd_resize(fd_scratch *scratch, fd_row *row, void *source, uint8_t *out);

#endif
