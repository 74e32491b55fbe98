/* Decoding a window of a JPEG; see jpeg.c. */
#ifndef FD_JPEG_H
#define FD_JPEG_H

#include "fastdata.h"

typedef struct fd_jpeg fd_jpeg;

/* A decoder, to be used for one image after another; NULL if memory ran out. */
fd_jpeg *fd_jpeg_new(void);
void fd_jpeg_free(fd_jpeg *jpeg);

/* Decode what a window needs of a JPEG file that must be height x width pixels.

   channels is 3 (RGB) or 1 (brightness).  `factor` is 1, 2, 4 or 8: by how much the picture is
   reduced while it is decoded, to height / factor x width / factor pixels, rounded up, as
   libjpeg-turbo does it.  The window is of these pixels, inside the picture and not empty.
   Returns FD_OK; or FD_REFUSED for damaged files and for kinds of JPEG that are left to other
   decoders (progressive, unusual sampling, CMYK, RGB, one with bytes where none should be). */
int fd_jpeg_open(fd_jpeg *jpeg, const uint8_t *data, size_t size, int32_t height, int32_t width,
                 int32_t channels, int32_t factor, int32_t top, int32_t left, int32_t rows,
                 int32_t columns);

/* Row y of the window that was opened: an fd_row, whose source is the fd_jpeg. */
fd_row fd_jpeg_row;

#endif
