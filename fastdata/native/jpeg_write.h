/* Baseline JPEGs out of quantised coefficients; see jpeg_write.c. */
#ifndef FD_JPEG_WRITE_H
#define FD_JPEG_WRITE_H

#include "fastdata.h"

/* Coefficients in a block. */
#define FD_JPEG_BLOCK 64

typedef struct {
    uint8_t id; /* in the file; 1, 2, 3 for Y, Cb, Cr */
    int h, v;   /* blocks in an MCU, across and down: 1 to 4; the only component has 1 and 1 */
    int quant;  /* which of the picture's tables, 0 to 3 */
    int32_t across, down; /* blocks, those of MCUs that reach beyond the picture included */
    /* `down` rows of `across` blocks of FD_JPEG_BLOCK coefficients each, in zigzag order. */
    int16_t *blocks;
} fd_jpeg_component;

typedef struct {
    int32_t height, width; /* 1 to 65535 */
    int32_t mcu_rows, mcu_columns;
    int count; /* of components: 1 (grey) or 3 */
    fd_jpeg_component components[3];
    uint8_t quants[4][FD_JPEG_BLOCK]; /* in zigzag order; those that components name */
    /* How a decoder is to take the colours: by a JFIF segment (version, unit and densities, as in
       the file), by one of Adobe's (its transform, or -1 for none), else by the ids. */
    int jfif;
    uint8_t jfif_content[7];
    int adobe;
} fd_jpeg_picture;

/* A list of codes as it is in a file (T.81, B.2.4.2). */
typedef struct {
    uint8_t lengths[16]; /* how many codes have each, from 1 */
    uint8_t symbols[256];
    int count;
} fd_jpeg_codes;

/* Most lengths of segments in a part of the index, and the bytes before them there. */
#define FD_INDEX_ENTRIES 32760
#define FD_INDEX_PREFIX 16
#define FD_INDEX_PARTS 255

/* Bytes that a header has at most beside its index. */
#define FD_HEADER_BYTES 2048

/* Put all that is before the coded segments, but for their lengths in the index, which `index` gets
   to know the place of: they are numbers of two bytes, and after FD_INDEX_ENTRIES of them the next
   part's prefix follows.  `lists` are of DC and AC, of the first component and of the others.
   Returns where the header ends. */
uint8_t *fd_jpeg_put_header(uint8_t *p, const fd_jpeg_picture *picture, int32_t interval,
                            size_t segments, const fd_jpeg_codes *lists, uint8_t **index);

/* Copy coded bytes with a zero behind each 0xFF; up to 8 bytes behind them are read.  Returns where
   the copy ends. */
uint8_t *fd_jpeg_stuff(const uint8_t *p, const uint8_t *end, uint8_t *out);

/* Find the numbers of MCUs and blocks from size and sampling.  Returns how many blocks there are
   in all, or 0 if this can be no interleaved baseline JPEG. */
int64_t fd_jpeg_lay_out(fd_jpeg_picture *picture);

/* Write a picture that was laid out as a whole file, with a restart marker after every `interval`
   MCUs (1 to 65535), the segment index, and Huffman tables that suit it best.

   The file is the first `*size` bytes of `out`.  Returns FD_OK; FD_NO_MEMORY; or FD_REFUSED where a
   coefficient is larger than baseline can code (10 bits, differences of the first ones 11), or
   there are more segments than the index can hold. */
int fd_jpeg_write(const fd_jpeg_picture *picture, int32_t interval, fd_scratch *out, size_t *size);

/* Encode pixels; see jpeg_pixels.c. */
FD_EXPORT void *fd_encode_jpeg(const uint8_t *pixels, int32_t height, int32_t width,
                               int32_t channels, int32_t quality, int32_t interval, size_t *size);

#endif
