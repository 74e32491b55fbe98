/* Code a JPEG anew as fastdata wants it, with the same coefficients, and so the same pixels.

   Sequential and progressive files of 8 bits with Huffman codes are read, of one component or
   three, with one scan or many; jpeg_write.c makes baseline files with restart markers and their
   index of them.  What says nothing of pixels is left out: Exif, colour profiles, comments,
   thumbnails, bytes behind the end.  The format is ITU-T T.81.

   Nothing in a file is trusted.  What is damaged, or not understood in full, is refused, also what
   decoders accept: then the caller has the file as it was.  A file that was accepted is sound. */

#include "jpeg_huffman.h"
#include "jpeg_symbols.h"

#include <stdlib.h>
#include <string.h>

/* Kinds of scans.  The only one of a file becomes symbols, others coefficients. */
enum { ONLY, SEQUENTIAL, FIRST_DC, NEXT_DC, FIRST_AC, NEXT_AC };

typedef struct {
    int kind;
    int count;
    const fd_jpeg_component *components[3];
    const huffman *dc[3], *ac[3];
    int h[3], v[3];        /* blocks in an MCU of this scan */
    int32_t rows, columns; /* of MCUs */
    int first, last;       /* coefficients */
    int low;               /* bits of them that are left to later scans */
} scan;

typedef struct {
    fd_jpeg_picture picture;
    huffman tables[2][4]; /* DC and AC */
    int quant_present;
    int max_h, max_v;
    int progressive;
    int32_t interval; /* MCUs between markers; 0 for none */
    /* How many bits of each coefficient are still to come; -1 where none came. */
    int8_t missing[3][FD_JPEG_BLOCK];
    int scans;
    uint8_t *coded;
    int16_t *blocks; /* of all components; NULL where there are symbols */
    int64_t count;   /* of blocks */
    symbols symbols;
    int32_t out_interval, mcus_in_segment; /* of the file that is written */
    int predicted[3];
} source;

#define FD_PART "jpeg_scan.h"
#include "twice.h"

/* ---- Segments of the header ------------------------------------------------------------------ */

static int read_quants(source *in, const uint8_t *p, const uint8_t *end) {
    if (in->scans) return FD_REFUSED; /* components would have tables of different times */
    while (p < end) {
        int wide = p[0] >> 4, number = p[0] & 15;
        if (wide > 1 || number > 3 || end - p < 1 + FD_JPEG_BLOCK * (1 + wide)) return FD_REFUSED;
        p++;
        for (int k = 0; k < FD_JPEG_BLOCK; k++, p += 1 + wide) {
            unsigned value = wide ? u16(p) : p[0];
            if (value < 1 || value > 255) return FD_REFUSED; /* larger ones are not baseline */
            in->picture.quants[number][k] = (uint8_t)value;
        }
        in->quant_present |= 1 << number;
    }
    return FD_OK;
}

static int read_frame(source *in, const uint8_t *p, size_t length, size_t size) {
    fd_jpeg_picture *picture = &in->picture;
    if (picture->count || length < 6 || p[0] != 8) return FD_REFUSED;
    picture->height = (int32_t)u16(p + 1);
    picture->width = (int32_t)u16(p + 3);
    int count = p[5];
    if ((count != 1 && count != 3) || length != 6 + 3 * (size_t)count) return FD_REFUSED;
    picture->count = count;
    for (int i = 0; i < count; i++) {
        fd_jpeg_component *c = &picture->components[i];
        c->id = p[6 + 3 * i];
        c->h = p[7 + 3 * i] >> 4;
        c->v = p[7 + 3 * i] & 15;
        c->quant = p[8 + 3 * i];
        if (c->h < 1 || c->h > 4 || c->v < 1 || c->v > 4 || c->quant > 3) return FD_REFUSED;
        for (int other = 0; other < i; other++)
            if (picture->components[other].id == c->id) return FD_REFUSED;
        if (count == 1) c->h = c->v = 1; /* a scan of one component has MCUs of one block */
        in->max_h = c->h > in->max_h ? c->h : in->max_h;
        in->max_v = c->v > in->max_v ? c->v : in->max_v;
    }
    int64_t blocks = fd_jpeg_lay_out(picture);
    /* A block has one bit at least, so that no claim takes more than 1024 times the file. */
    if (blocks == 0 || blocks / 8 > (int64_t)size) return FD_REFUSED;
    in->count = blocks;
    memset(in->missing, -1, sizeof in->missing);
    return FD_OK;
}

/* Have coefficients, all of them zero. */
static int make_blocks(source *in) {
    /* Decoding writes up to 16 numbers behind a block before it refuses it. */
    int16_t *memory = calloc((size_t)in->count * FD_JPEG_BLOCK + 16, sizeof *memory);
    if (!memory) return FD_NO_MEMORY;
    in->blocks = memory;
    for (int i = 0; i < in->picture.count; i++) {
        fd_jpeg_component *c = &in->picture.components[i];
        c->blocks = memory;
        memory += (size_t)c->down * (size_t)c->across * FD_JPEG_BLOCK;
    }
    return FD_OK;
}

/* ---- Scans ----------------------------------------------------------------------------------- */

/* Note which bits of coefficients a scan brings; each comes once, the upper ones first. */
static int note_bits(source *in, const scan *s, int high) {
    for (int i = 0; i < s->count; i++) {
        int8_t *missing = in->missing[s->components[i] - in->picture.components];
        if (s->first > 0 && missing[0] < 0) return FD_REFUSED;
        for (int k = s->first; k <= s->last; k++) {
            if (missing[k] != (high ? high : -1)) return FD_REFUSED;
            missing[k] = (int8_t)s->low;
        }
    }
    return FD_OK;
}

static int read_scan_header(source *in, const uint8_t *p, size_t length, scan *s) {
    const fd_jpeg_picture *picture = &in->picture;
    int before = -1, blocks = 0;
    s->count = length ? p[0] : 0;
    if (s->count < 1 || s->count > picture->count || length != 4 + 2 * (size_t)s->count)
        return FD_REFUSED;
    const uint8_t *range = p + 1 + 2 * s->count;
    int high = range[2] >> 4;
    s->first = range[0];
    s->last = range[1];
    s->low = range[2] & 15;
    if (!in->progressive) {
        if (s->first != 0 || s->last != 63 || high != 0 || s->low != 0) return FD_REFUSED;
        s->kind = s->count == picture->count ? ONLY : SEQUENTIAL;
    } else {
        if (s->last > 63 || s->low > 13 || (high && high != s->low + 1)) return FD_REFUSED;
        if (s->first == 0 ? s->last != 0 : s->last < s->first || s->count > 1) return FD_REFUSED;
        s->kind = s->first == 0 ? (high ? NEXT_DC : FIRST_DC) : high ? NEXT_AC : FIRST_AC;
    }
    int needs_dc = !in->progressive || s->kind == FIRST_DC;
    int needs_ac = s->kind != FIRST_DC && s->kind != NEXT_DC;
    for (int i = 0; i < s->count; i++) {
        int number = before + 1, dc = p[2 + 2 * i] >> 4, ac = p[2 + 2 * i] & 15;
        while (number < picture->count && picture->components[number].id != p[1 + 2 * i])
            number++;
        if (number == picture->count || dc > 3 || ac > 3) return FD_REFUSED;
        before = number;
        const fd_jpeg_component *c = &picture->components[number];
        if (!(in->quant_present >> c->quant & 1)) return FD_REFUSED;
        if (needs_dc && !in->tables[0][dc].present) return FD_REFUSED;
        if (needs_ac && !in->tables[1][ac].present) return FD_REFUSED;
        s->components[i] = c;
        s->dc[i] = &in->tables[0][dc];
        s->ac[i] = &in->tables[1][ac];
        s->h[i] = s->count > 1 ? c->h : 1;
        s->v[i] = s->count > 1 ? c->v : 1;
        blocks += s->h[i] * s->v[i];
    }
    if (blocks > 10) return FD_REFUSED;
    s->rows = picture->mcu_rows;
    s->columns = picture->mcu_columns;
    if (s->count == 1) { /* blocks that reach beyond the picture are not there (T.81, A.2.3) */
        const fd_jpeg_component *c = s->components[0];
        s->rows = (picture->height * c->v + 8 * in->max_v - 1) / (8 * in->max_v);
        s->columns = (picture->width * c->h + 8 * in->max_h - 1) / (8 * in->max_h);
    }
    return note_bits(in, s, high);
}

/* Decode the scan whose coded data begins at `*at`, and go on to the marker behind it. */
static int read_scan(source *in, const scan *s, const uint8_t *data, size_t size, size_t *at) {
    int (*decode_segment)(const scan *, const uint8_t *, ptrdiff_t, int32_t, int32_t) =
        decode_segment_portable;
    int (*copy_segment)(source *, const scan *, ptrdiff_t, int32_t, int32_t) =
        copy_segment_portable;
#if FD_HAS_AVX2
    if (fd_may_use_avx2()) {
        decode_segment = decode_segment_avx2;
        copy_segment = copy_segment_avx2;
    }
#endif
    if (s->kind != ONLY && !in->blocks && make_blocks(in)) return FD_NO_MEMORY;
    int32_t mcus = s->rows * s->columns, interval = in->interval ? in->interval : mcus;
    const uint8_t *p = data + *at, *end = data + size;
    for (int32_t mcu = 0, marker = 0;; marker++) {
        const uint8_t *behind = p;
        for (;;) {
            behind = memchr(behind, 0xFF, (size_t)(end - behind));
            if (!behind || end - behind < 2) return FD_REFUSED;
            if (behind[1] != 0) break;
            behind += 2;
        }
        ptrdiff_t length = copy_unstuffed(p, behind, in->coded);
        if (length < 0) return FD_REFUSED;
        int32_t next = mcus - mcu > interval ? mcu + interval : mcus;
        int status = s->kind == ONLY ? copy_segment(in, s, length, mcu, next)
                                     : decode_segment(s, in->coded, length, mcu, next);
        if (status) return status;
        p = behind;
        mcu = next;
        if (mcu == mcus) break;
        if (p[1] != 0xD0 + (marker & 7)) return FD_REFUSED;
        p += 2;
    }
    *at = (size_t)(p - data);
    in->scans++;
    return FD_OK;
}

/* ---- The file -------------------------------------------------------------------------------- */

/* Read a file up to its end; with FD_OK all coefficients are there. */
static int read_picture(source *in, const uint8_t *data, size_t size) {
    fd_jpeg_picture *picture = &in->picture;
    size_t at = 2;
    picture->adobe = -1;
    if (size < 4 || u16(data) != 0xFFD8) return FD_REFUSED;
    for (;;) {
        if (size - at < 2 || data[at] != 0xFF) return FD_REFUSED;
        int marker = data[at + 1], status = FD_OK;
        if (marker == 0xD9) break;
        if (size - at < 4) return FD_REFUSED;
        size_t length = u16(data + at + 2);
        if (length < 2 || length > size - at - 2) return FD_REFUSED;
        const uint8_t *body = data + at + 4;
        at += 2 + length;
        length -= 2;
        scan s;
        switch (marker) {
        case 0xC2: in->progressive = 1; /* fall through */
        case 0xC0:
        case 0xC1: status = read_frame(in, body, length, size); break;
        case 0xC4: status = read_huffman(in->tables, body, body + length); break;
        case 0xDB: status = read_quants(in, body, body + length); break;
        case 0xDD:
            if (length != 2) return FD_REFUSED;
            in->interval = (int32_t)u16(body);
            break;
        case 0xDA:
            status = read_scan_header(in, body, length, &s);
            if (status == FD_OK) status = read_scan(in, &s, data, size, &at);
            break;
        case 0xE0:
            if (in->scans || length < 14 || memcmp(body, "JFIF", 5)) break;
            picture->jfif = 1;
            memcpy(picture->jfif_content, body + 5, sizeof picture->jfif_content);
            break;
        case 0xEE:
            if (!in->scans && length >= 12 && !memcmp(body, "Adobe", 5)) picture->adobe = body[11];
            break;
        default:
            /* Other application segments and comments say nothing of pixels. */
            if ((marker < 0xE0 || marker > 0xEF) && marker != 0xFE) return FD_REFUSED;
        }
        if (status) return status;
    }
    /* libjpeg-turbo warns of such files, so that they count as broken. */
    if (picture->jfif ? picture->jfif_content[0] != 1 : picture->adobe > 1) return FD_REFUSED;
    /* Where bits of coefficients are missing, decoders guess them. */
    for (int i = 0; i < picture->count; i++)
        for (int k = 0; k < FD_JPEG_BLOCK; k++)
            if (in->missing[i][k] != 0) return FD_REFUSED;
    return picture->count ? FD_OK : FD_REFUSED;
}

FD_EXPORT void fd_free(void *memory) { free(memory); }

/* Code a JPEG anew, with a restart marker after every `interval` MCUs.

   Returns the new file, of `*out_size` bytes, to be freed by fd_free; NULL where the file is
   refused, or memory ran out. */
FD_EXPORT uint8_t *fd_transcode_jpeg(const uint8_t *data, size_t size, int32_t interval,
                                     size_t *out_size) {
    fd_scratch out = {0};
    source *in = interval < 1 ? NULL : calloc(1, sizeof *in);
    if (!in) return NULL;
    in->out_interval = interval;
    in->coded = malloc(size + CODED_PADDING + 8);
    int status = in->coded ? read_picture(in, data, size) : FD_NO_MEMORY;
    free(in->coded);
    if (status == FD_OK)
        status = in->blocks
                     ? fd_jpeg_write(&in->picture, interval, &out, out_size)
                     : fd_jpeg_write_symbols(&in->picture, interval, &in->symbols, &out, out_size);
    free(in->symbols.tokens);
    free(in->blocks);
    free(in);
    if (status == FD_OK) return out.memory;
    free(out.memory);
    return NULL;
}
