/* Encode pixels as a baseline JPEG with restart intervals and their index, in one pass.

   The file is that of libjpeg-turbo, bit for bit: its fixed-point colours (jccolor.c), its means of
   chroma (jcsample.c), its accurate forward DCT (jfdctint.c), its rounding of coefficients
   (jcdctmgr.c), its tables for a quality (jcparam.c), and the Huffman tables of T.81, annex K; and
   between its JFIF segment and the rest of the header the index (docs/format.md, section 8).  Its
   segments come out one after the other, so that nobody has to look for them again. */

#include "jpeg_block.h"
#include "jpeg_write.h"

#include <stdlib.h>
#include <string.h>

/* ---- Tables ---------------------------------------------------------------------------------- */

/* T.81, tables K.1 and K.2, in natural order. */
static const uint8_t QUANTS[2][BLOCK] = {
    {16, 11, 10, 16, 24,  40,  51,  61,  12, 12, 14, 19, 26,  58,  60,  55,
     14, 13, 16, 24, 40,  57,  69,  56,  14, 17, 22, 29, 51,  87,  80,  62,
     18, 22, 37, 56, 68,  109, 103, 77,  24, 35, 55, 64, 81,  104, 113, 92,
     49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99},
    {17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99,
     99, 99, 47, 66, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
     99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99},
};

/* T.81, tables K.3 to K.6: DC and AC of luma, then of chroma. */
static const fd_jpeg_codes CODES[4] = {
    {{0, 1, 5, 1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 12},
    {{0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7D},
     {0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61,
      0x07, 0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xA1, 0x08, 0x23, 0x42, 0xB1, 0xC1, 0x15, 0x52,
      0xD1, 0xF0, 0x24, 0x33, 0x62, 0x72, 0x82, 0x09, 0x0A, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x25,
      0x26, 0x27, 0x28, 0x29, 0x2A, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3A, 0x43, 0x44, 0x45,
      0x46, 0x47, 0x48, 0x49, 0x4A, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5A, 0x63, 0x64,
      0x65, 0x66, 0x67, 0x68, 0x69, 0x6A, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7A, 0x83,
      0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
      0x9A, 0xA2, 0xA3, 0xA4, 0xA5, 0xA6, 0xA7, 0xA8, 0xA9, 0xAA, 0xB2, 0xB3, 0xB4, 0xB5, 0xB6,
      0xB7, 0xB8, 0xB9, 0xBA, 0xC2, 0xC3, 0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xD2, 0xD3,
      0xD4, 0xD5, 0xD6, 0xD7, 0xD8, 0xD9, 0xDA, 0xE1, 0xE2, 0xE3, 0xE4, 0xE5, 0xE6, 0xE7, 0xE8,
      0xE9, 0xEA, 0xF1, 0xF2, 0xF3, 0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA},
     162},
    {{0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 12},
    {{0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77},
     {0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61,
      0x71, 0x13, 0x22, 0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xA1, 0xB1, 0xC1, 0x09, 0x23, 0x33,
      0x52, 0xF0, 0x15, 0x62, 0x72, 0xD1, 0x0A, 0x16, 0x24, 0x34, 0xE1, 0x25, 0xF1, 0x17, 0x18,
      0x19, 0x1A, 0x26, 0x27, 0x28, 0x29, 0x2A, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3A, 0x43, 0x44,
      0x45, 0x46, 0x47, 0x48, 0x49, 0x4A, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5A, 0x63,
      0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6A, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7A,
      0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97,
      0x98, 0x99, 0x9A, 0xA2, 0xA3, 0xA4, 0xA5, 0xA6, 0xA7, 0xA8, 0xA9, 0xAA, 0xB2, 0xB3, 0xB4,
      0xB5, 0xB6, 0xB7, 0xB8, 0xB9, 0xBA, 0xC2, 0xC3, 0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA,
      0xD2, 0xD3, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8, 0xD9, 0xDA, 0xE2, 0xE3, 0xE4, 0xE5, 0xE6, 0xE7,
      0xE8, 0xE9, 0xEA, 0xF2, 0xF3, 0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA},
     162},
};

/* What a coefficient, made eight times too large by the transform, is divided by: (|value| + half)
   times inverse and scale, of each product the upper half. */
typedef struct {
    uint16_t half[BLOCK], inverse[BLOCK], scale[BLOCK];
} __attribute__((aligned(32))) divisors;

/* Where the coefficients are coded that a byte of a mask in natural order stands for. */
static uint64_t CODING_ORDER[8][256];

__attribute__((constructor)) static void fill_coding_order(void) {
    for (int k = 0; k < BLOCK; k++)
        for (int byte = 0; byte < 256; byte++)
            if (byte >> NATURAL_ORDER[k] % 8 & 1)
                CODING_ORDER[NATURAL_ORDER[k] / 8][byte] |= (uint64_t)1 << k;
}

/* ---- One picture ----------------------------------------------------------------------------- */

typedef struct {
    uint64_t bits; /* of the byte that is not whole yet, from the top */
    int used;      /* how many they are, up to 7 */
    uint8_t *to;
} bit_writer;

/* Of a block: a first coefficient of 20 bits, 63 of 26. */
#define MAX_BLOCK_BYTES ((20 + 63 * 26) / 8 + 1)
/* A longer one is not of use, and would take memory. */
#define MAX_INTERVAL 64

typedef struct {
    int16_t values[BLOCK]; /* in natural order */
    uint64_t mask;         /* of those that are not zero */
} __attribute__((aligned(32))) coefficients;

typedef struct {
    const uint8_t *pixels;
    int32_t height, width, channels;
    int32_t mcu_rows, mcu_columns, interval;
    divisors divisors[2];    /* of luma and chroma */
    uint32_t codes[4][256];  /* of symbols: a code, and in the lowest eight bits its length */

    /* Samples of a row of MCUs: luma, chroma, and two rows of chroma before it is reduced. */
    uint8_t *luma, *chroma[2], *wide[4];
    int32_t luma_stride;
    coefficients *blocks; /* of a row of MCUs */

    /* A segment, before bytes are stuffed. */
    uint8_t *coded;
    bit_writer out;
    int predicted[3];
    int32_t in_segment; /* MCUs so far */
    size_t segment;     /* its number */

    uint8_t *file;
    size_t size, length; /* of its memory, and so far */
    size_t index_at;     /* where the segment's length will stand */
    int too_long;
} encoding;

static void put_two(uint8_t *to, size_t value) {
    to[0] = (uint8_t)(value >> 8);
    to[1] = (uint8_t)value;
}

/* Fill the last byte with ones, copy the segment into the file, and put the marker behind it. */
static void end_segment(encoding *e) {
    bit_writer *w = &e->out;
    if (w->used) *w->to++ |= (uint8_t)(0xFF >> w->used);
    uint8_t *end = fd_jpeg_stuff(e->coded, w->to, e->file + e->length);
    const size_t length = (size_t)(end - e->file) - e->length;
    if (length > 65535) e->too_long = 1;
    put_two(e->file + e->index_at, length);
    e->index_at += e->segment % FD_INDEX_ENTRIES == FD_INDEX_ENTRIES - 1 ? 2 + FD_INDEX_PREFIX : 2;
    put_two(end, 0xFFD0 | (e->segment & 7));
    e->length += length + 2;
    e->segment++;
    e->in_segment = 0;
    memset(e->predicted, 0, sizeof e->predicted);
    *w = (bit_writer){.to = e->coded};
}

/* NEON has no masks of bytes; compilers vectorise the rest well for it. */
#define HAS_VECTORS (FD_HAS_AVX2 && !FD_IS_NEON)
#define FD_PART "jpeg_forward.h"
#if !HAS_VECTORS
#define FD_ONLY_PORTABLE
#endif
#include "twice.h"

/* As jpeg_set_quality has it, limited to baseline. */
static void fill_quants(int quality, int chroma, uint8_t *coded, divisors *by) {
    const int percent = quality < 50 ? 5000 / quality : 200 - 2 * quality;
    for (int k = 0; k < BLOCK; k++) {
        const int at = NATURAL_ORDER[k];
        int quant = (QUANTS[chroma][at] * percent + 50) / 100;
        quant = quant < 1 ? 1 : quant > 255 ? 255 : quant;
        coded[k] = (uint8_t)quant;
        /* compute_reciprocal of jcdctmgr.c: multiplying is as exact as dividing. */
        const uint32_t divisor = (uint32_t)quant * 8;
        int bits = 31 - __builtin_clz(divisor) + 16;
        uint32_t inverse = (1u << bits) / divisor, rest = (1u << bits) % divisor,
                 half = divisor / 2;
        if (rest == 0) {
            inverse >>= 1;
            bits--;
        } else if (rest <= divisor / 2) {
            half++;
        } else {
            inverse++;
        }
        by->half[at] = (uint16_t)half;
        by->inverse[at] = (uint16_t)inverse;
        by->scale[at] = (uint16_t)(1u << (32 - bits));
    }
}

static void fill_codes(const fd_jpeg_codes *list, uint32_t *codes) {
    uint32_t code = 0;
    memset(codes, 0, 256 * sizeof *codes);
    for (int length = 1, at = 0; length <= 16; length++, code <<= 1)
        for (int i = 0; i < list->lengths[length - 1]; i++)
            codes[list->symbols[at++]] = code++ << 8 | (uint32_t)length;
}

/* Have memory for the coefficients and samples of a row of MCUs. */
static int lay_out_row(encoding *e, uint8_t **memory) {
    const size_t padded = (size_t)e->mcu_columns * (e->channels == 3 ? 16 : 8),
                 blocks = (size_t)e->mcu_columns * (e->channels == 3 ? 6 : 1) * sizeof *e->blocks;
    e->luma_stride = (int32_t)padded;
    /* Behind a segment, put_bits may write 8 bytes and fd_jpeg_stuff read as many. */
    const size_t coded = (size_t)e->interval * 6 * MAX_BLOCK_BYTES + 16;
    *memory = malloc(31 + blocks + padded * (16 + 8 + 4) + coded);
    if (!*memory) return FD_NO_MEMORY;
    uint8_t *at = *memory + (32 - (uintptr_t)*memory % 32) % 32;
    e->blocks = (coefficients *)(void *)at;
    e->luma = at += blocks;
    e->chroma[0] = at += 16 * padded;
    e->chroma[1] = at += 4 * padded;
    for (int i = 0; i < 4; i++)
        e->wide[i] = at += i ? padded : 4 * padded;
    e->coded = at += padded;
    e->out = (bit_writer){.to = at};
    return FD_OK;
}

/* Have room for the segments that end in a row of MCUs. */
static int make_room(encoding *e) {
    const size_t mcus = (size_t)e->mcu_columns + (size_t)e->interval;
    /* A coded byte takes two at most; a segment has a marker, and less than a byte of filling. */
    const size_t most = mcus * (2 * 6 * MAX_BLOCK_BYTES + 4) + 8;
    if (e->size - e->length >= most) return FD_OK;
    const size_t size = e->size + e->size / 2 + most;
    uint8_t *file = realloc(e->file, size);
    if (!file) return FD_NO_MEMORY;
    e->file = file;
    e->size = size;
    return FD_OK;
}

static int put_head(encoding *e, int quality) {
    fd_jpeg_picture picture = {
        .height = e->height,
        .width = e->width,
        .count = e->channels,
        .jfif = 1,
        .jfif_content = {1, 1, 0, 0, 1, 0, 1}, /* version 1.1; pixels are square */
        .adobe = -1,
    };
    for (int i = 0; i < e->channels; i++) {
        const int side = i == 0 && e->channels == 3 ? 2 : 1;
        picture.components[i] =
            (fd_jpeg_component){.id = (uint8_t)(i + 1), .h = side, .v = side, .quant = i > 0};
    }
    for (int chroma = 0; chroma < 2; chroma++)
        fill_quants(quality, chroma, picture.quants[chroma], &e->divisors[chroma]);
    for (int i = 0; i < 4; i++)
        fill_codes(&CODES[i], e->codes[i]);
    const size_t mcus = (size_t)e->mcu_rows * (size_t)e->mcu_columns,
                 segments = (mcus + (size_t)e->interval - 1) / (size_t)e->interval;
    if (segments > (size_t)FD_INDEX_ENTRIES * FD_INDEX_PARTS) return FD_REFUSED;
    /* Photographs take 2 bits a pixel at quality 90. */
    e->size = FD_HEADER_BYTES + 2 * segments + FD_INDEX_PARTS * FD_INDEX_PREFIX +
              (size_t)e->height * (size_t)e->width / 2;
    e->file = malloc(e->size);
    if (!e->file) return FD_NO_MEMORY;
    uint8_t *index;
    uint8_t *end =
        fd_jpeg_put_header(e->file, &picture, e->interval, segments, CODES, &index);
    e->length = (size_t)(end - e->file);
    e->index_at = (size_t)(index - e->file);
    return FD_OK;
}

/* Encode pixels, height x width x channels bytes, of 3 channels (RGB, chroma halved in both
   directions) or 1.

   `quality` is libjpeg's, 1 to 100, and `interval`, 1 to 64, the MCUs between restart markers.
   Returns the file, to be freed by fd_free, and its `*size`; NULL if memory ran out, or the sizes
   can be no JPEG, or it has more segments, or longer ones, than an index can say. */
FD_EXPORT void *fd_encode_jpeg(const uint8_t *pixels, int32_t height, int32_t width,
                               int32_t channels, int32_t quality, int32_t interval, size_t *size) {
    if (height < 1 || width < 1 || height > FD_MAX_SIDE || width > FD_MAX_SIDE) return NULL;
    if (channels != 1 && channels != 3) return NULL;
    if (quality < 1 || quality > 100 || interval < 1 || interval > MAX_INTERVAL)
        return NULL;
    const int32_t mcu = channels == 3 ? 16 : 8;
    encoding e = {
        .pixels = pixels,
        .height = height,
        .width = width,
        .channels = channels,
        .mcu_rows = (height + mcu - 1) / mcu,
        .mcu_columns = (width + mcu - 1) / mcu,
        .interval = interval,
    };
    void (*encode_row)(encoding *, int32_t) = encode_row_portable;
#if HAS_VECTORS
    if (fd_may_use_avx2()) encode_row = encode_row_avx2;
#endif
    uint8_t *row = NULL;
    int status = put_head(&e, quality);
    if (status == FD_OK) status = lay_out_row(&e, &row);
    for (int32_t y = 0; y < e.mcu_rows && status == FD_OK; y++) {
        status = make_room(&e);
        if (status == FD_OK) encode_row(&e, y);
    }
    if (status == FD_OK && e.in_segment) end_segment(&e);
    free(row);
    if (status != FD_OK || e.too_long) {
        free(e.file);
        return NULL;
    }
    put_two(e.file + e.length - 2, 0xFFD9); /* in place of the marker behind the last segment */
    *size = e.length;
    return e.file;
}
