/* Write a baseline JPEG out of quantised coefficients, without changing one.

   The file is as fastdata wants JPEGs to be (docs/format.md, section 8): one interleaved scan, cut
   by restart markers into segments whose lengths stand in an index, so that a window of it can be
   decoded alone.  Huffman tables are made for the picture.  The format is ITU-T T.81.

   Symbols are noted and counted first (jpeg_symbols.h).  From that follow the tables, and how much memory the file
   can take at most, before they are written. */

#include "jpeg_symbols.h"

#include <stdlib.h>
#include <string.h>

/* A symbol's code: its bits, and in the lowest eight how many they are. */
#define CODE(code) ((code) >> 8)
#define CODE_LENGTH(code) ((int)((code) & 255))

/* Codes have 16 bits at most. */
#define MAX_MCU_BYTES (10 * (27 + 63 * 26 + 7) / 8)

#define FD_PART "jpeg_encode.h"
#include "twice.h"

int64_t fd_jpeg_lay_out(fd_jpeg_picture *picture) {
    int h = 0, v = 0, blocks = 0;
    if (picture->height < 1 || picture->width < 1 || picture->height > 65535 ||
        picture->width > 65535 || (picture->count != 1 && picture->count != 3))
        return 0;
    for (int i = 0; i < picture->count; i++) {
        const fd_jpeg_component *c = &picture->components[i];
        if (c->h < 1 || c->h > 4 || c->v < 1 || c->v > 4) return 0;
        h = c->h > h ? c->h : h;
        v = c->v > v ? c->v : v;
        blocks += c->h * c->v;
    }
    if (blocks > 10 || (picture->count == 1 && blocks != 1)) return 0; /* T.81, B.2.3 */
    picture->mcu_rows = (picture->height + 8 * v - 1) / (8 * v);
    picture->mcu_columns = (picture->width + 8 * h - 1) / (8 * h);
    for (int i = 0; i < picture->count; i++) {
        fd_jpeg_component *c = &picture->components[i];
        c->down = picture->mcu_rows * c->v;
        c->across = picture->mcu_columns * c->h;
    }
    return (int64_t)picture->mcu_rows * picture->mcu_columns * blocks;
}

/* ---- Huffman tables -------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Find the codes that make the shortest file, none longer than 16 bits (T.81, K.2).

   `code` gets those of all symbols that occur.  Returns how many bits the symbols take, with those
   of their coefficients. */
static uint64_t choose_codes(const uint64_t *occurrences, fd_jpeg_codes *list, uint32_t *code) {
    /* Numbers of occurrences with the symbol below, the rarest first.  One more symbol takes the
       code of ones alone, which no symbol may have. */
    uint64_t leaves[257];
    int count = 0;
    leaves[count++] = 0; /* the rarest of all, whatever others there are */
    for (int i = 0; i < SYMBOLS; i++)
        if (occurrences[i]) leaves[count++] = occurrences[i] << 9 | (uint64_t)i;
    qsort(leaves, (size_t)count, sizeof *leaves, compare);
    leaves[0] = (uint64_t)1 << 9;

    /* Join the two rarest until one is left: nodes are made in the order of their numbers, so that
       the rarest is the next leaf or the next node. */
    uint64_t nodes[257];
    int parents[2 * 257], next_leaf = 0, next_node = 0, made = 0;
    while (made < count - 1) {
        uint64_t sum = 0;
        for (int i = 0; i < 2; i++) {
            int leaf = next_leaf < count &&
                       (next_node == made || leaves[next_leaf] >> 9 <= nodes[next_node]);
            sum += leaf ? leaves[next_leaf] >> 9 : nodes[next_node];
            parents[leaf ? next_leaf++ : count + next_node++] = made;
        }
        nodes[made++] = sum;
    }
    /* Numbers are below 2^40, so no tree is deeper than the 58th Fibonacci number is large. */
    int lengths[64] = {0}, depths[257];
    depths[made - 1] = 0;
    for (int i = made - 2; i >= 0; i--)
        depths[i] = depths[parents[count + i]] + 1;
    for (int i = 0; i < count; i++)
        lengths[depths[parents[i]] + 1]++;
    for (int i = 63; i > 16; i--) { /* T.81, figure K.3 */
        while (lengths[i] > 0) {
            int j = i - 2;
            while (lengths[j] == 0)
                j--;
            lengths[i] -= 2;
            lengths[i - 1]++;
            lengths[j + 1] += 2;
            lengths[j]--;
        }
    }
    int longest = 16;
    while (lengths[longest] == 0)
        longest--;
    lengths[longest]--; /* the code of ones */

    uint64_t bits = 0;
    uint32_t value = 0;
    list->count = 0;
    for (int length = 1; length <= 16; length++, value <<= 1) {
        list->lengths[length - 1] = (uint8_t)lengths[length];
        for (int i = 0; i < lengths[length]; i++) {
            uint64_t leaf = leaves[count - 1 - list->count];
            int symbol = (int)(leaf & 511);
            list->symbols[list->count++] = (uint8_t)symbol;
            code[symbol] = value++ << 8 | (uint32_t)length;
            bits += (leaf >> 9) * (uint64_t)(length + (symbol & 15));
        }
    }
    return bits;
}

/* ---- The file -------------------------------------------------------------------------------- */

static uint8_t *put_u16(uint8_t *p, unsigned value) {
    *p++ = (uint8_t)(value >> 8);
    *p++ = (uint8_t)value;
    return p;
}

static uint8_t *put_bytes(uint8_t *p, const void *bytes, size_t count) {
    memcpy(p, bytes, count);
    return p + count;
}

/* Begin a segment of the header with so many bytes behind its length. */
static uint8_t *put_marker(uint8_t *p, unsigned marker, size_t length) {
    return put_u16(put_u16(p, 0xFF00 | marker), (unsigned)length + 2);
}

static uint8_t *put_index_part(uint8_t *p, size_t entries, size_t part, size_t parts) {
    p = put_marker(p, 0xE9, FD_INDEX_PREFIX - 4 + 2 * entries);
    p = put_bytes(p, "fastdata", 9);
    *p++ = 1;
    *p++ = (uint8_t)part;
    *p++ = (uint8_t)parts;
    return p + 2 * entries;
}

static uint8_t *put_codes(uint8_t *p, const fd_jpeg_codes *list, int kind, int number) {
    p = put_marker(p, 0xC4, 17 + (size_t)list->count);
    *p++ = (uint8_t)(kind << 4 | number);
    p = put_bytes(p, list->lengths, 16);
    return put_bytes(p, list->symbols, (size_t)list->count);
}

uint8_t *fd_jpeg_put_header(uint8_t *p, const fd_jpeg_picture *picture, int32_t interval,
                            size_t segments, const fd_jpeg_codes *lists, uint8_t **index) {
    p = put_u16(p, 0xFFD8);
    if (picture->jfif) {
        p = put_bytes(put_marker(p, 0xE0, 14), "JFIF", 5);
        p = put_u16(put_bytes(p, picture->jfif_content, 7), 0); /* and no thumbnail */
    }
    *index = p + FD_INDEX_PREFIX;
    size_t parts = (segments + FD_INDEX_ENTRIES - 1) / FD_INDEX_ENTRIES;
    for (size_t part = 0, left = segments; part < parts; part++, left -= FD_INDEX_ENTRIES)
        p = put_index_part(p, left < FD_INDEX_ENTRIES ? left : FD_INDEX_ENTRIES, part, parts);
    if (picture->adobe >= 0) {
        p = put_bytes(put_marker(p, 0xEE, 12), "Adobe\0\144\0\0\0", 11);
        *p++ = (uint8_t)picture->adobe;
    }
    int present = 0;
    for (int i = 0; i < picture->count; i++) {
        int quant = picture->components[i].quant;
        if (present >> quant & 1) continue;
        present |= 1 << quant;
        p = put_marker(p, 0xDB, 65);
        *p++ = (uint8_t)quant;
        p = put_bytes(p, picture->quants[quant], 64);
    }
    p = put_marker(p, 0xC0, 6 + 3 * (size_t)picture->count);
    *p++ = 8;
    p = put_u16(put_u16(p, (unsigned)picture->height), (unsigned)picture->width);
    *p++ = (uint8_t)picture->count;
    for (int i = 0; i < picture->count; i++) {
        const fd_jpeg_component *c = &picture->components[i];
        *p++ = c->id;
        *p++ = (uint8_t)(c->h << 4 | c->v);
        *p++ = (uint8_t)c->quant;
    }
    for (int i = 0; i < (picture->count > 1 ? 4 : 2); i++)
        p = put_codes(p, &lists[i], i & 1, i >> 1);
    p = put_u16(put_marker(p, 0xDD, 2), (unsigned)interval);
    p = put_marker(p, 0xDA, 4 + 2 * (size_t)picture->count);
    *p++ = (uint8_t)picture->count;
    for (int i = 0; i < picture->count; i++) {
        *p++ = picture->components[i].id;
        *p++ = i ? 0x11 : 0;
    }
    *p++ = 0;
    *p++ = FD_JPEG_BLOCK - 1;
    *p++ = 0;
    return p;
}

uint8_t *fd_jpeg_stuff(const uint8_t *p, const uint8_t *end, uint8_t *out) {
    while (p < end) {
        uint64_t word;
        memcpy(&word, p, 8);
        /* As in jpeg_huffman.h. */
        if (end - p >= 8 && !((~word - 0x0101010101010101u) & word & 0x8080808080808080u)) {
            memcpy(out, &word, 8);
            p += 8;
            out += 8;
            continue;
        }
        for (int i = 0; i < 8 && p < end; i++) {
            *out++ = *p;
            if (*p++ == 0xFF) *out++ = 0;
        }
    }
    return out;
}

int fd_jpeg_reserve_symbols(symbols *s) {
    if (s->room - s->used >= MAX_MCU_TOKENS) return FD_OK;
    size_t room = 2 * s->room + 64 * MAX_MCU_TOKENS;
    token *tokens = realloc(s->tokens, room * sizeof *tokens);
    if (!tokens) return FD_NO_MEMORY;
    s->tokens = tokens;
    s->room = room;
    return FD_OK;
}

int fd_jpeg_write_symbols(const fd_jpeg_picture *picture, int32_t interval, const symbols *s,
                          fd_scratch *out, size_t *size) {
    uint8_t *(*put_segment)(const token **, const uint32_t *, uint8_t *) = put_segment_portable;
#if FD_HAS_AVX2
    if (fd_may_use_avx2()) put_segment = put_segment_avx2;
#endif
    if (interval < 1 || interval > 65535 || s->too_large) return FD_REFUSED;
    size_t mcus = (size_t)picture->mcu_rows * (size_t)picture->mcu_columns;
    size_t segments = (mcus + (size_t)interval - 1) / (size_t)interval;
    if (segments > (size_t)FD_INDEX_ENTRIES * FD_INDEX_PARTS) return FD_REFUSED;
    uint32_t codes[4 * SYMBOLS];
    fd_jpeg_codes lists[4];
    uint64_t bits = 0;
    for (int i = 0; i < (picture->count > 1 ? 4 : 2); i++)
        bits += choose_codes(s->occurrences + SYMBOLS * i, &lists[i], codes + SYMBOLS * i);
    /* A coded byte takes two at most, as a zero stands behind 0xFF; each segment has less than one
       byte of filling, and a marker.  The header has less than FD_HEADER_BYTES beside the index. */
    uint64_t most = 2 * (bits / 8 + 1 + segments) + 2 * segments;
    most += FD_HEADER_BYTES + 2 * segments + FD_INDEX_PARTS * FD_INDEX_PREFIX;
    uint64_t longest = ((size_t)interval < mcus ? (size_t)interval : mcus) * MAX_MCU_BYTES;
    if (longest > bits / 8 + 1) longest = bits / 8 + 1;
    uint8_t *segment = malloc((size_t)longest + 8);
    if (!segment || most > PTRDIFF_MAX || fd_scratch_reserve(out, (size_t)most)) {
        free(segment);
        return FD_NO_MEMORY;
    }
    uint8_t *index,
        *p = fd_jpeg_put_header(out->memory, picture, interval, segments, lists, &index);
    const token *from = s->tokens;
    int status = FD_OK;
    for (size_t k = 0; k < segments && status == FD_OK; k++, p += 2) {
        uint8_t *end = fd_jpeg_stuff(segment, put_segment(&from, codes, segment), p);
        if (end - p > 65535) status = FD_REFUSED;
        put_u16(index, (unsigned)(end - p));
        index += k % FD_INDEX_ENTRIES == FD_INDEX_ENTRIES - 1 ? 2 + FD_INDEX_PREFIX : 2;
        put_u16(end, k + 1 < segments ? 0xFFD0 | (k & 7) : 0xFFD9);
        p = end;
    }
    free(segment);
    *size = (size_t)(p - (uint8_t *)out->memory);
    return status;
}

int fd_jpeg_write(const fd_jpeg_picture *picture, int32_t interval, fd_scratch *out, size_t *size) {
    int (*note_picture)(const fd_jpeg_picture *, int32_t, symbols *) = note_picture_portable;
#if FD_HAS_AVX2
    if (fd_may_use_avx2()) note_picture = note_picture_avx2;
#endif
    symbols s = {0};
    int status = note_picture(picture, interval, &s);
    if (status == FD_OK) status = fd_jpeg_write_symbols(picture, interval, &s, out, size);
    free(s.tokens);
    return status;
}
