/* Entropy-coded data of JPEGs as their readers begin with it: tables of codes, and bytes without
   stuffing.  What comes next is in jpeg_entropy.h, compiled once for each kind of processor. */
#ifndef FD_JPEG_HUFFMAN_H
#define FD_JPEG_HUFFMAN_H

#include "fastdata.h"
#include "jpeg_block.h"

#include <string.h>

/* Bits that the first look at a code takes.  Measured, us a crop: 9 145, 10 134, 11 135, 12 140. */
#define LOOK_BITS 10
#define LOOK_SIZE (1 << LOOK_BITS)

/* An entry of `look`: the next LOOK_BITS bits, decoded.

   bits 0-5    how many of them are used
   bit 6       set if the coefficient's own bits were among them:
   bits 8-23   then this is its value
   bits 24-31  the code's symbol (run and size of a coefficient; EOB; 16 zeros)

   It is 0 where the code is longer than LOOK_BITS.  The length is lowest, as shifts look at six bits
   only: no mask stands between look and shift.  The run is highest, so that it needs none. */
#define LENGTH(entry) ((int)((entry) & 63))
#define HAS_VALUE 64
#define SYMBOL(entry) ((int)((entry) >> 24))
#define RUN(entry) ((entry) >> 28)
#define VALUE(entry) ((int16_t)((entry) >> 8))

typedef struct {
    int present; /* in this image */
    int built;   /* for this or an earlier image, from: */
    int symbols;
    uint8_t coded[16 + 256]; /* as in the file: how many codes of each length, then symbols */
    uint32_t look[LOOK_SIZE];
    /* For longer codes: the first code of each length, left-aligned in 16 bits, and its symbol. */
    int32_t limit[17];
    int32_t offset[17];
} huffman;

static inline unsigned u16(const uint8_t *p) { return (unsigned)p[0] << 8 | p[1]; }

static inline int extend(int bits, int size) { /* T.81, F.2.2.1 */
    return size && bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
}

/* Make the tables for a list of codes (T.81, annex C). */
static inline int build_huffman(huffman *table, const uint8_t *coded, int symbols, int is_dc) {
    table->present = 1;
    if (table->built && table->symbols == symbols &&
        !memcmp(table->coded, coded, 16 + (size_t)symbols))
        return FD_OK; /* as in the image before: nearly always */
    table->built = 0;
    memset(table->look, 0, sizeof table->look);
    uint32_t code = 0;
    int at = 0;
    for (int length = 1; length <= 16; length++) {
        table->offset[length] = at - (int)code;
        for (int i = 0; i < coded[length - 1]; i++, code++, at++) {
            int symbol = coded[16 + at];
            if (is_dc && symbol > 15) return FD_REFUSED;
            if (code >= 1u << length) return FD_REFUSED;
            if (length > LOOK_BITS) continue;
            int size = symbol & 15, used = length + size, spare = LOOK_BITS - length;
            for (int rest = 0; rest < 1 << spare; rest++) {
                uint32_t entry = (uint32_t)symbol << 24;
                if (size && used <= LOOK_BITS) {
                    int value = extend(rest >> (spare - size), size);
                    entry |= HAS_VALUE | (uint32_t)used | (uint32_t)(uint16_t)value << 8;
                } else {
                    entry |= (uint32_t)length;
                }
                table->look[(code << spare) + (uint32_t)rest] = entry;
            }
        }
        if (code > 1u << length) return FD_REFUSED;
        table->limit[length] =
            (int32_t)(code << (16 - length)); /* codes of this length are below */
        code <<= 1;
    }
    memcpy(table->coded, coded, 16 + (size_t)symbols);
    table->symbols = symbols;
    table->built = 1;
    return FD_OK;
}

/* Read a DHT segment. */
static inline int read_huffman(huffman (*tables)[4], const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        if (end - p < 17) return FD_REFUSED;
        int kind = p[0] >> 4, id = p[0] & 15, symbols = 0;
        for (int i = 1; i <= 16; i++)
            symbols += p[i];
        if (kind > 1 || id > 3 || symbols > 256 || end - p < 17 + symbols) return FD_REFUSED;
        int status = build_huffman(&tables[kind][id], p + 1, symbols, kind == 0);
        if (status) return status;
        p += 17 + symbols;
    }
    return FD_OK;
}

typedef struct {
    uint64_t bits;  /* the next ones, from the top */
    uint32_t count; /* how many of them are there */
    const uint8_t *next;
} bit_reader;

/* Zeros behind coded data, as far as a block can read. */
#define CODED_PADDING (64 * 4 + 16)

/* Copy coded data without its stuffed zeros; returns its length, or -1 where there is a marker.

   `out` has room for as many bytes, CODED_PADDING, and 8 more. */
static inline ptrdiff_t copy_unstuffed(const uint8_t *p, const uint8_t *end, uint8_t *out) {
    const uint8_t *begin = out;
    while (end - p >= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        memcpy(out, &word, 8);
        /* Is a byte of it 0xFF?  (Hacker's Delight, 6-1, for zeros in the complement.) */
        uint64_t inverse = ~word;
        if (!((inverse - 0x0101010101010101u) & word & 0x8080808080808080u)) {
            p += 8;
            out += 8;
            continue;
        }
        for (int i = 0; i < 8; i++) {
            *out++ = *p;
            if (*p++ != 0xFF) continue;
            if (p == end || *p++ != 0) return -1;
            break; /* eight more are there only if they are looked for again */
        }
    }
    while (p < end) {
        *out++ = *p;
        if (*p++ == 0xFF && (p == end || *p++ != 0)) return -1;
    }
    memset(out, 0, CODED_PADDING);
    return out - begin;
}

#endif
