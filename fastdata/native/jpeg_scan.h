/* The part of jpeg_transcode.c that takes the time; included once for each kind of processor. */

#include "jpeg_entropy.h"

/* Take a code, and return its symbol; -1 if there is no such code.  Needs 16 bits. */
static inline int FD_(take_symbol)(const huffman *table, bit_reader *in) {
    uint32_t entry = table->look[in->bits >> (64 - LOOK_BITS)];
    int length = LENGTH(entry), symbol = SYMBOL(entry);
    if (!length) return FD_(long_symbol)(table, in);
    FD_(skip)(in, entry & HAS_VALUE ? length - (symbol & 15) : length);
    return symbol;
}

/* Take up to 15 bits as a number.  Needs as many. */
static inline int FD_(take_bits)(bit_reader *in, int count) {
    int bits = (int)(in->bits >> 1 >> (63 - count));
    FD_(skip)(in, count);
    return bits;
}

/* Take one bit, with which a coefficient becomes more exact. */
static inline void FD_(correct)(bit_reader *in, int16_t *coefficient, int bit) {
    FD_(refill)(in);
    if (FD_(take_bits)(in, 1)) *coefficient += (int16_t)(*coefficient < 0 ? -bit : bit);
}

/* The following decode what a scan has of a block.  They return -1 if the bits make no sense. */

static inline int FD_(sequential)(bit_reader *in, const scan *s, int i, int *predicted,
                                  int16_t *block) {
    int last = FD_(decode_block)(in, s->dc[i], s->ac[i], NULL, predicted, block);
    return *predicted == block[0] ? last : -1;
}

static inline int FD_(first_dc)(bit_reader *in, const scan *s, int i, int *predicted,
                                int16_t *block) {
    if (!FD_(decode_first)(in, s->dc[i], predicted)) return -1;
    if (*predicted < -32767 >> s->low || *predicted > 32767 >> s->low) return -1;
    block[0] = (int16_t)(*predicted * (1 << s->low));
    return 0;
}

static inline int FD_(next_dc)(bit_reader *in, const scan *s, int16_t *block) {
    FD_(refill)(in);
    block[0] = (int16_t)(block[0] | FD_(take_bits)(in, 1) << s->low);
    return 0;
}

/* `run` is how many blocks from here on end where they begin. */
static inline int FD_(first_ac)(bit_reader *in, const scan *s, int32_t *run, int16_t *block) {
    if (*run) {
        --*run;
        return 0;
    }
    for (int k = s->first; k <= s->last; k++) {
        FD_(refill)(in);
        int symbol = FD_(take_symbol)(s->ac[0], in), zeros = symbol >> 4, size = symbol & 15;
        if (symbol < 0) return -1;
        if (size == 0 && zeros < 15) {
            *run = (1 << zeros) - 1 + FD_(take_bits)(in, zeros);
            return 0;
        }
        k += zeros;
        if (k > s->last) return -1;
        if (size == 0) continue;
        int value = FD_(receive)(in, size);
        if (value < -(32767 >> s->low) || value > 32767 >> s->low) return -1;
        block[k] = (int16_t)(value * (1 << s->low));
    }
    return 0;
}

static inline int FD_(next_ac)(bit_reader *in, const scan *s, int32_t *run, int16_t *block) {
    const int bit = 1 << s->low;
    int k = s->first;
    for (; *run == 0 && k <= s->last; k++) {
        FD_(refill)(in);
        int symbol = FD_(take_symbol)(s->ac[0], in), zeros = symbol >> 4, size = symbol & 15;
        if (symbol < 0 || size > 1) return -1;
        if (size == 0 && zeros < 15) {
            *run = (1 << zeros) + FD_(take_bits)(in, zeros);
            break;
        }
        int value = size == 0 ? 0 : FD_(take_bits)(in, 1) ? bit : -bit;
        for (; k <= s->last; k++) {
            if (block[k])
                FD_(correct)(in, &block[k], bit);
            else if (--zeros < 0)
                break;
        }
        if (k > s->last) return -1;
        block[k] = (int16_t)value;
    }
    if (*run) {
        for (; k <= s->last; k++)
            if (block[k]) FD_(correct)(in, &block[k], bit);
        --*run;
    }
    return 0;
}

/* Decode what lies between two markers: MCUs `mcu` to `behind` of a scan. */
static int FD_(decode_segment)(const scan *s, const uint8_t *coded, ptrdiff_t length, int32_t mcu,
                               int32_t behind) {
    bit_reader in = {0, 0, coded};
    const uint8_t *end = coded + length;
    int predicted[3] = {0};
    int32_t run = 0, y = mcu / s->columns, x = mcu % s->columns;
    for (; mcu < behind; mcu++) {
        for (int i = 0; i < s->count; i++) {
            const fd_jpeg_component *c = s->components[i];
            for (int by = 0; by < s->v[i]; by++) {
                for (int bx = 0; bx < s->h[i]; bx++) {
                    ptrdiff_t at_y = (ptrdiff_t)y * s->v[i] + by,
                              at_x = (ptrdiff_t)x * s->h[i] + bx;
                    int16_t *block = c->blocks + FD_JPEG_BLOCK * (at_y * c->across + at_x);
                    int status = -1;
                    switch (s->kind) {
                    case SEQUENTIAL:
                        status = FD_(sequential)(&in, s, i, &predicted[i], block);
                        break;
                    case FIRST_DC: status = FD_(first_dc)(&in, s, i, &predicted[i], block); break;
                    case NEXT_DC: status = FD_(next_dc)(&in, s, block); break;
                    case FIRST_AC: status = FD_(first_ac)(&in, s, &run, block); break;
                    case NEXT_AC: status = FD_(next_ac)(&in, s, &run, block); break;
                    }
                    if (status < 0 || in.next - (in.count >> 3) > end) return FD_REFUSED;
                }
            }
        }
        if (++x == s->columns) {
            x = 0;
            y++;
        }
    }
    /* Less than a byte of filling is left, or what was decoded is not what was coded. */
    ptrdiff_t left = 8 * (end - in.next) + (int)in.count;
    return left >= 0 && left < 8 && !run ? FD_OK : FD_REFUSED;
}

/* Note a block's symbols, which are those that it is coded by anew, but for the first: that is the
   difference from `predicted` here, and from `noted` there.  Returns NULL if the bits make no sense
   or are not as encoders make them. */
static inline token *FD_(copy_block)(bit_reader *restrict in, const huffman *restrict dc,
                                     const huffman *restrict ac, int *predicted, int *noted,
                                     token tables, symbols *s, token *to) {
    bit_reader r = *in;
    if (!FD_(decode_first)(&r, dc, predicted)) return NULL;
    int value = *predicted - *noted;
    *noted = *predicted;
    if (value >= 1 << MAX_DC_SIZE || value <= -(1 << MAX_DC_SIZE)) return NULL;
    if (*predicted != (int16_t)*predicted) return NULL;
    int size = 31 - __builtin_clz((unsigned)(value < 0 ? -value : value) << 1 | 1);
    token own = (token)(value + (value >> 31)) & ((1u << size) - 1);
    to = note(s, own << TOKEN_BITS | tables | (token)size, to);
    tables |= AC;
    for (int k = 1;;) {
        FD_(refill)(&r);
        /* As in decode_block. */
        for (int i = 0; i < 3; i++) {
            uint32_t entry = ac->look[r.bits >> (64 - LOOK_BITS)];
            if (!(entry & HAS_VALUE)) goto other;
            own = (token)(r.bits >> (64 - LENGTH(entry))) & ((1u << (SYMBOL(entry) & 15)) - 1);
            FD_(skip)(&r, LENGTH(entry));
            to = note(s, own << TOKEN_BITS | tables | (token)SYMBOL(entry), to);
            k += RUN(entry) + 1;
            if (k >= FD_JPEG_BLOCK) goto done;
        }
        continue;
    other:;
        int symbol = FD_(take_symbol)(ac, &r);
        size = symbol & 15;
        if (symbol < 0 || size > MAX_AC_SIZE) return NULL;
        if (size == 0 && symbol != END_OF_BLOCK && symbol != ZEROS_16) return NULL;
        own = (token)FD_(take_bits)(&r, size);
        to = note(s, own << TOKEN_BITS | tables | (token)symbol, to);
        if (symbol == END_OF_BLOCK) break;
        k += (symbol >> 4) + 1;
        if (k < FD_JPEG_BLOCK) continue;
        if (k > FD_JPEG_BLOCK || size == 0) return NULL;
        break;
    done:
        if (k > FD_JPEG_BLOCK) return NULL;
        break;
    }
    *in = r;
    return to;
}

/* Note the symbols of MCUs `mcu` to `behind` of the only scan. */
static int FD_(copy_segment)(source *from, const scan *s, ptrdiff_t length, int32_t mcu,
                             int32_t behind) {
    bit_reader in = {0, 0, from->coded};
    const uint8_t *end = in.next + length;
    int predicted[3] = {0};
    symbols *noted = &from->symbols;
    for (; mcu < behind; mcu++) {
        if (fd_jpeg_reserve_symbols(noted)) return FD_NO_MEMORY;
        token *to = noted->tokens + noted->used;
        for (int i = 0; i < s->count; i++) {
            for (int block = s->h[i] * s->v[i]; block; block--) {
                to = FD_(copy_block)(&in, s->dc[i], s->ac[i], &predicted[i], &from->predicted[i],
                                     i ? CHROMA : 0, noted, to);
                if (!to || in.next - (in.count >> 3) > end) return FD_REFUSED;
            }
        }
        if (++from->mcus_in_segment == from->out_interval || mcu + 1 == s->rows * s->columns) {
            *to++ = END_OF_SEGMENT;
            memset(from->predicted, 0, sizeof from->predicted);
            from->mcus_in_segment = 0;
        }
        noted->used = (size_t)(to - noted->tokens);
    }
    ptrdiff_t left = 8 * (end - in.next) + (int)in.count;
    return left >= 0 && left < 8 ? FD_OK : FD_REFUSED;
}
