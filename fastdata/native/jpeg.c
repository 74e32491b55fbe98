/* Decode a window of a baseline JPEG, and nothing that it does not need.

   A JPEG that fastdata wrote is a grid of independently coded segments (restart intervals) with an
   index of their lengths.  So only segments that touch the window are entropy-decoded, only blocks
   that touch it go through the inverse DCT, and rows are enlarged and converted when they are asked
   for, straight into what resizes them.

   Pixels are those of libjpeg-turbo, bit for bit: its accurate inverse DCT (jidctint.c, after
   Loeffler, Ligtenberg and Moschytz, 1989), its smooth ("fancy") enlargement of chroma
   (jdsample.c), its fixed-point colours (jdcolor.c).  Reduced, too: there an inverse DCT makes the
   means of 2 x 2, 4 x 4 or 8 x 8 pixels at once (jidctred.c), and of chroma that is stored at half
   the size the means of half as many.  The format is ITU-T T.81.

   Nothing in a file is trusted.  What is damaged, or not understood in full, is refused, and the
   caller has another decoder find out what to say of it. */

#include "jpeg.h"
#include "jpeg_huffman.h"

#include <stdlib.h>
#include <string.h>

#define MAX_COMPONENTS 3

/* How far codes reach, several at a time, where their coefficients do not matter: most of the time
   of a photograph without restart intervals goes into what lies before the window.

   An entry is of the next PASS_BITS bits and of the codes that begin and end in them:

   bits 0-5    bits of all of these, and of the coefficients behind them; 0 if there is none
   bit 6       set if the last of them ends the block
   bits 8-15   by how many coefficients they lead on, at most 64 */
#define PASS_BITS 11
#define ENDS_BLOCK 64
#define ADVANCE(entry) ((int)((entry) >> 8))

typedef struct {
    int symbols; /* of the table that this was made of, and its codes; none at first */
    uint8_t coded[16 + 256];
    uint16_t look[1 << PASS_BITS];
} passing;

/* MCUs of a segment from which on it is worth while to make that. */
#define WORTH_PASSING 256

typedef struct {
    int id, quant, dc, ac;
    int h, v;       /* blocks in an MCU, across and down */
    int side;       /* pixels that a block becomes, in either direction: 8, or less if reduced */
    uint8_t *plane; /* of the MCUs that the window touches */
    ptrdiff_t stride;
    /* Blocks whose pixels are wanted, counted from the plane's corner. */
    int32_t first_x, end_x, first_y, end_y;
} component;

struct fd_jpeg {
    huffman tables[2][4]; /* DC and AC */
    passing passings[4];  /* of AC */
    int passed;           /* whether those are of this image */
    int16_t quants[4][BLOCK + 16];
    int quant_present;
    component components[MAX_COMPONENTS];
    int count;

    /* The file. */
    const uint8_t *data;
    size_t size, scan;
    int32_t full_height, full_width;
    int32_t interval; /* MCUs in a segment */
    int32_t mcu_rows, mcu_columns;
    /* Where each segment begins in `data`, and where the last one's marker ends: uint32_t. */
    fd_scratch segments;
    int32_t segment_count;
    const uint8_t *index[255];
    size_t index_entries[255];
    int index_parts;

    /* The picture, perhaps reduced, and the window in its pixels. */
    int32_t factor, height, width, mcu_height, mcu_width;
    int expand_v, expand_h; /* by how much chroma is enlarged */
    int32_t channels, top, left, rows, columns;
    int32_t first_row, first_column, end_row, end_column; /* of MCUs */
    int shown; /* components of which pixels are wanted */

    fd_scratch planes; /* of components */
    fd_scratch coded;  /* one segment without stuffed bytes */
    fd_scratch row;    /* one row of pixels, its chroma, and sums on the way there */
};

/* ---- Memory ---------------------------------------------------------------------------------- */

fd_jpeg *fd_jpeg_new(void) { return calloc(1, sizeof(fd_jpeg)); }

void fd_jpeg_free(fd_jpeg *jpeg) {
    if (!jpeg) return;
    free(jpeg->segments.memory);
    free(jpeg->planes.memory);
    free(jpeg->coded.memory);
    free(jpeg->row.memory);
    free(jpeg);
}

/* ---- The header ------------------------------------------------------------------------------ */

static int read_quants(fd_jpeg *jpeg, const uint8_t *p, const uint8_t *end) {
    for (; p < end; p += 65) {
        if (end - p < 65 || p[0] > 3) return FD_REFUSED; /* baseline: of 8 bits */
        for (int i = 0; i < BLOCK; i++)
            jpeg->quants[p[0]][i] = p[1 + i];
        jpeg->quant_present |= 1 << p[0];
    }
    return FD_OK;
}

static int read_frame(fd_jpeg *jpeg, const uint8_t *p, size_t length) {
    if (jpeg->count || length < 6 || p[0] != 8) return FD_REFUSED;
    int count = p[5];
    if ((count != 1 && count != 3) || length != 6 + 3 * (size_t)count) return FD_REFUSED;
    if ((int32_t)u16(p + 1) != jpeg->full_height || (int32_t)u16(p + 3) != jpeg->full_width)
        return FD_REFUSED;
    for (int i = 0; i < count; i++) {
        component *c = &jpeg->components[i];
        c->id = p[6 + 3 * i];
        c->h = p[7 + 3 * i] >> 4;
        c->v = p[7 + 3 * i] & 15;
        c->quant = p[8 + 3 * i];
        if (c->h < 1 || c->h > 4 || c->v < 1 || c->v > 4 || c->quant > 3) return FD_REFUSED;
    }
    component *c = jpeg->components;
    if (count == 1) {
        c->h = c->v = 1; /* a scan of one component has MCUs of one block */
    } else {
        int sampling = c[0].h << 4 | c[0].v;
        if (sampling != 0x11 && sampling != 0x21 && sampling != 0x22) return FD_REFUSED;
        if (c[1].h != 1 || c[1].v != 1 || c[2].h != 1 || c[2].v != 1) return FD_REFUSED;
    }
    jpeg->count = count;
    jpeg->mcu_rows = (jpeg->full_height + 8 * c->v - 1) / (8 * c->v);
    jpeg->mcu_columns = (jpeg->full_width + 8 * c->h - 1) / (8 * c->h);
    return FD_OK;
}

static int read_scan(fd_jpeg *jpeg, const uint8_t *p, size_t length) {
    int count = jpeg->count;
    if (!count || length != 4 + 2 * (size_t)count || p[0] != count) return FD_REFUSED;
    for (int i = 0; i < count; i++) {
        component *c = &jpeg->components[i];
        c->dc = p[2 + 2 * i] >> 4;
        c->ac = p[2 + 2 * i] & 15;
        if (p[1 + 2 * i] != c->id || c->dc > 3 || c->ac > 3) return FD_REFUSED;
        if (!jpeg->tables[0][c->dc].present || !jpeg->tables[1][c->ac].present) return FD_REFUSED;
        if (!(jpeg->quant_present >> c->quant & 1)) return FD_REFUSED;
    }
    p += 1 + 2 * count;
    return p[0] == 0 && p[1] == 63 && p[2] == 0 ? FD_OK : FD_REFUSED;
}

/* A part of the segment index (docs/format.md, section 8). */
static int read_index(fd_jpeg *jpeg, const uint8_t *p, size_t length) {
    static const uint8_t name[9] = "fastdata";
    if (length < 12 || memcmp(p, name, 9)) return FD_OK;
    if (p[9] != 1 || p[10] != jpeg->index_parts || p[10] >= p[11] || length % 2) return FD_REFUSED;
    jpeg->index[jpeg->index_parts] = p + 12;
    jpeg->index_entries[jpeg->index_parts++] = (length - 12) / 2;
    return FD_OK;
}

static int read_header(fd_jpeg *jpeg) {
    const uint8_t *data = jpeg->data;
    size_t size = jpeg->size, at = 2;
    int jfif = 0, adobe = -1;
    for (int kind = 0; kind < 2; kind++)
        for (int id = 0; id < 4; id++)
            jpeg->tables[kind][id].present = 0;
    jpeg->quant_present = 0;
    jpeg->count = 0;
    jpeg->interval = 0;
    jpeg->index_parts = 0;
    if (size < 4 || u16(data) != 0xFFD8 || u16(data + size - 2) != 0xFFD9) return FD_REFUSED;
    for (;;) {
        if (size - at < 4 || data[at] != 0xFF) return FD_REFUSED;
        int marker = data[at + 1], status = FD_OK;
        size_t length = u16(data + at + 2);
        if (length < 2 || length > size - at - 2) return FD_REFUSED;
        const uint8_t *body = data + at + 4;
        at += 2 + length;
        length -= 2;
        switch (marker) {
        case 0xC0: status = read_frame(jpeg, body, length); break;
        case 0xC4: status = read_huffman(jpeg->tables, body, body + length); break;
        case 0xDB: status = read_quants(jpeg, body, body + length); break;
        case 0xDD:
            if (length != 2) return FD_REFUSED;
            jpeg->interval = (int32_t)u16(body);
            break;
        case 0xDA:
            status = read_scan(jpeg, body, length);
            if (status) return status;
            if (jpeg->count == 3) {
                /* As libjpeg guesses colours, where it needs no guessing. */
                const component *c = jpeg->components;
                int plain_ids = c[0].id == 1 && c[1].id == 2 && c[2].id == 3;
                if (adobe == 0 || adobe > 1 || (!jfif && adobe != 1 && !plain_ids))
                    return FD_REFUSED;
            }
            jpeg->scan = at;
            return FD_OK;
        case 0xE0:
            if (length >= 14 && !memcmp(body, "JFIF", 5)) jfif = 1;
            break;
        case 0xE9: status = read_index(jpeg, body, length); break;
        case 0xEE:
            if (length >= 12 && !memcmp(body, "Adobe", 5)) adobe = body[11];
            break;
        default:
            /* Other application segments and comments say nothing of pixels. */
            if ((marker < 0xE0 || marker > 0xEF) && marker != 0xFE) return FD_REFUSED;
        }
        if (status) return status;
    }
}

/* ---- Segments -------------------------------------------------------------------------------- */

/* Find where the coded segments begin: by the index, or where there is none, by their markers. */
static int find_segments(fd_jpeg *jpeg) {
    int64_t mcus = (int64_t)jpeg->mcu_rows * jpeg->mcu_columns;
    if (mcus > INT32_MAX / 2) return FD_REFUSED;
    if (jpeg->interval == 0 || jpeg->interval > mcus) jpeg->interval = (int32_t)mcus;
    int32_t count = (int32_t)((mcus + jpeg->interval - 1) / jpeg->interval), k = 0;
    /* A segment has two bytes at least, so that no claim makes this larger than the file. */
    if ((size_t)count > (jpeg->size - jpeg->scan) / 2 || jpeg->size > UINT32_MAX) return FD_REFUSED;
    if (fd_scratch_reserve(&jpeg->segments, ((size_t)count + 1) * sizeof(uint32_t)))
        return FD_NO_MEMORY;
    uint32_t *segments = jpeg->segments.memory;
    jpeg->segment_count = count;
    if (jpeg->index_parts) {
        size_t at = jpeg->scan;
        for (int part = 0; part < jpeg->index_parts; part++) {
            if (jpeg->index_entries[part] > (size_t)(count - k)) return FD_REFUSED;
            for (size_t i = 0; i < jpeg->index_entries[part]; i++) {
                segments[k++] = (uint32_t)at;
                at += u16(jpeg->index[part] + 2 * i) + 2;
            }
            if (at > jpeg->size) return FD_REFUSED;
        }
        if (k != count || at != jpeg->size) return FD_REFUSED;
    } else {
        segments[k++] = (uint32_t)jpeg->scan;
        const uint8_t *p = jpeg->data + jpeg->scan, *end = jpeg->data + jpeg->size - 2;
        while (k < count) {
            p = memchr(p, 0xFF, (size_t)(end - p));
            if (!p) return FD_REFUSED;
            p += 2;
            if (p[-1] == 0) continue;
            if (p > end || p[-1] != 0xD0 + ((k - 1) & 7)) return FD_REFUSED;
            segments[k++] = (uint32_t)(p - jpeg->data);
        }
    }
    segments[count] = (uint32_t)jpeg->size;
    return FD_OK;
}

/* Copy segment k to `coded` without its stuffed zeros; returns its length, or -1. */
static ptrdiff_t unstuff(fd_jpeg *jpeg, int32_t k) {
    const uint8_t *data = jpeg->data;
    const uint32_t *segments = jpeg->segments.memory;
    size_t begin = segments[k], behind = segments[k + 1];
    /* The markers on both sides are as they should be, or the index lies. */
    int last = k + 1 == jpeg->segment_count;
    if (data[behind - 2] != 0xFF || data[behind - 1] != (last ? 0xD9 : 0xD0 + (k & 7))) return -1;
    if (k && (data[begin - 2] != 0xFF || data[begin - 1] != 0xD0 + ((k - 1) & 7))) return -1;
    const uint8_t *p = data + begin, *end = data + behind - 2;
    if (fd_scratch_reserve(&jpeg->coded, (size_t)(end - p) + CODED_PADDING + 8)) return -1;
    return copy_unstuffed(p, end, jpeg->coded.memory);
}

/* Bytes that a row of pixels takes, and one of chroma as wide as luma; with room to write
   beyond. */
static size_t rgb_size(int32_t columns) {
    return (3 * (size_t)columns + 48 + FD_ROW_PADDING + 63) / 64 * 64;
}
static size_t wide_size(int32_t columns) {
    return ((size_t)columns + 2 + 2 * FD_ROW_PADDING + 63) / 64 * 64;
}

/* ---- Decoding: compiled for any processor, and for AVX2 -------------------------------------- */

static void make_passing(passing *p, const huffman *table) {
    const size_t length = 16 + (size_t)table->symbols;
    if (p->symbols == table->symbols && !memcmp(p->coded, table->coded, length)) return;
    memcpy(p->coded, table->coded, length);
    p->symbols = table->symbols;
    const uint32_t mask = (1u << PASS_BITS) - 1;
    for (uint32_t bits = 0; bits <= mask; bits++) {
        int used = 0, advance = 0, ends = 0;
        while (used < PASS_BITS && !ends) {
            const uint32_t entry = table->look[(bits << used & mask) >> (PASS_BITS - LOOK_BITS)];
            const int size = SYMBOL(entry) & 15, run = (int)RUN(entry);
            const int code = LENGTH(entry) - (entry & HAS_VALUE ? size : 0);
            if (code == 0 || used + code > PASS_BITS) break;
            used += code + size;
            ends = size == 0 && run != 15;
            if (!ends) advance += run + 1;
        }
        advance = advance < BLOCK ? advance : BLOCK;
        p->look[bits] = (uint16_t)(used | (ends ? ENDS_BLOCK : 0) | advance << 8);
    }
}

static void make_passings(fd_jpeg *jpeg) {
    for (int i = 0; i < jpeg->count; i++) {
        const int ac = jpeg->components[i].ac;
        make_passing(&jpeg->passings[ac], &jpeg->tables[1][ac]);
    }
    jpeg->passed = 1;
}

#define FD_PART "jpeg_decode.h"
#include "twice.h"

/* ---- The window ------------------------------------------------------------------------------ */

/* Find how large blocks and MCUs are in the picture, and by how much its chroma is enlarged. */
static int find_scale(fd_jpeg *jpeg) {
    component *c = jpeg->components;
    const int side = 8 / jpeg->factor;
    jpeg->mcu_height = side * c->v;
    jpeg->mcu_width = side * c->h;
    /* Chroma is reduced by less where that makes it as fine as luma, in both directions alike. */
    const int finer = jpeg->factor > 1 && c->h == 2 && c->v == 2;
    jpeg->expand_h = finer ? 1 : c->h;
    jpeg->expand_v = finer ? 1 : c->v;
    for (int i = 0; i < jpeg->count; i++)
        c[i].side = i && finer ? 2 * side : side;
    /* Chroma this narrow is enlarged in another way. */
    return jpeg->expand_h == 2 && jpeg->width <= 4 ? FD_REFUSED : FD_OK;
}

/* Lay out the planes, and find what of them is wanted. */
static int plan_window(fd_jpeg *jpeg) {
    int h = jpeg->expand_h, v = jpeg->expand_v;
    int32_t top = jpeg->top, left = jpeg->left;
    int32_t bottom = top + jpeg->rows, right = left + jpeg->columns;
    jpeg->shown = jpeg->channels == 3 ? jpeg->count : 1;
    /* Chroma is enlarged by looking at the next sample, so the next pixel's is wanted too. */
    int32_t around_y = jpeg->shown > 1 && v > 1, around_x = jpeg->shown > 1 && h > 1;
    int32_t outer_top = top > around_y ? top - around_y : 0,
            outer_left = left > around_x ? left - around_x : 0;
    int32_t outer_bottom = bottom + around_y < jpeg->height ? bottom + around_y : jpeg->height;
    int32_t outer_right = right + around_x < jpeg->width ? right + around_x : jpeg->width;
    jpeg->first_row = outer_top / jpeg->mcu_height;
    jpeg->first_column = outer_left / jpeg->mcu_width;
    jpeg->end_row = (outer_bottom + jpeg->mcu_height - 1) / jpeg->mcu_height;
    jpeg->end_column = (outer_right + jpeg->mcu_width - 1) / jpeg->mcu_width;
    int32_t mcu_rows = jpeg->end_row - jpeg->first_row,
            mcu_columns = jpeg->end_column - jpeg->first_column;
    size_t sizes[MAX_COMPONENTS], total = 0;
    for (int i = 0; i < jpeg->shown; i++) {
        component *c = &jpeg->components[i];
        c->stride = (ptrdiff_t)mcu_columns * c->side * c->h;
        sizes[i] = (size_t)c->stride * (size_t)mcu_rows * (size_t)(c->side * c->v);
        total += sizes[i];
        /* Blocks of luma are as fine as pixels, of chroma `v` times and `h` times coarser. */
        int32_t down = i ? c->side * v : c->side, across = i ? c->side * h : c->side;
        int32_t origin_y = jpeg->first_row * jpeg->mcu_height,
                origin_x = jpeg->first_column * jpeg->mcu_width;
        c->first_y = ((i ? outer_top : top) - origin_y) / down;
        c->first_x = ((i ? outer_left : left) - origin_x) / across;
        c->end_y = ((i ? outer_bottom : bottom) - origin_y + down - 1) / down;
        c->end_x = ((i ? outer_right : right) - origin_x + across - 1) / across;
    }
    size_t row_size = rgb_size(jpeg->columns) + 4 * wide_size(jpeg->columns) + 64;
    if (fd_scratch_reserve(&jpeg->planes, total + 2 * FD_ROW_PADDING)) return FD_NO_MEMORY;
    if (fd_scratch_reserve(&jpeg->row, row_size)) return FD_NO_MEMORY;
    uint8_t *plane = jpeg->planes.memory;
    for (int i = 0; i < jpeg->shown; plane += sizes[i++])
        jpeg->components[i].plane = plane;
    return FD_OK;
}

int fd_jpeg_open(fd_jpeg *jpeg, const uint8_t *data, size_t size, int32_t height, int32_t width,
                 int32_t channels, int32_t factor, int32_t top, int32_t left, int32_t rows,
                 int32_t columns) {
    if (height < 1 || width < 1 || height > 65535 || width > 65535) return FD_REFUSED;
    if (factor != 1 && factor != 2 && factor != 4 && factor != 8) return FD_REFUSED;
    jpeg->full_height = height;
    jpeg->full_width = width;
    height = (height + factor - 1) / factor;
    width = (width + factor - 1) / factor;
    if (top < 0 || left < 0 || rows < 1 || columns < 1) return FD_REFUSED;
    if (rows > height - top || columns > width - left) return FD_REFUSED;
    if (channels != 1 && channels != 3) return FD_REFUSED;
    jpeg->data = data;
    jpeg->size = size;
    jpeg->height = height;
    jpeg->width = width;
    jpeg->factor = factor;
    jpeg->channels = channels;
    jpeg->top = top;
    jpeg->left = left;
    jpeg->rows = rows;
    jpeg->columns = columns;
    int status = read_header(jpeg);
    if (status == FD_OK) status = find_segments(jpeg);
    if (status == FD_OK) status = find_scale(jpeg);
    if (status == FD_OK) status = plan_window(jpeg);
    if (status) return status;
    jpeg->passed = 0;
#if FD_HAS_AVX2
    if (fd_may_use_avx2()) return decode_segments_avx2(jpeg);
#endif
    return decode_segments_portable(jpeg);
}

const uint8_t *fd_jpeg_row(void *source, int32_t y) {
    fd_jpeg *jpeg = source;
#if FD_HAS_AVX2
    if (fd_may_use_avx2()) return window_row_avx2(jpeg, jpeg->top + y);
#endif
    return window_row_portable(jpeg, jpeg->top + y);
}
