/* The part of jpeg_write.c that takes the time; included once for each kind of processor. */

/* Which coefficients of a block are not zero, the first in the lowest bit. */
static inline uint64_t FD_(nonzero)(const int16_t *block) {
    uint64_t mask = 0;
#if defined(FD_AVX2) && !FD_IS_NEON /* which has no movemask */
    const __m256i zero = _mm256_setzero_si256();
    for (int half = 0; half < 2; half++) {
        const __m256i *in = (const __m256i *)(const void *)(block + 32 * half);
        __m256i first = _mm256_cmpeq_epi16(_mm256_loadu_si256(in), zero);
        __m256i second = _mm256_cmpeq_epi16(_mm256_loadu_si256(in + 1), zero);
        /* Quarters come out as first, second, first, second. */
        __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(first, second), 0xD8);
        mask |= (uint64_t)(uint32_t)~_mm256_movemask_epi8(bytes) << 32 * half;
    }
#else
    for (int k = 0; k < FD_JPEG_BLOCK; k++)
        mask |= (uint64_t)(block[k] != 0) << k;
#endif
    return mask;
}

/* The token of a coefficient, but for its table and the zeros before it. */
static inline token FD_(token_of)(int value) {
    int size = 32 - __builtin_clz((unsigned)(value < 0 ? -value : value) << 1 | 1) - 1;
    uint32_t own = (uint32_t)(value + (value >> 31)) & ((1u << size) - 1);
    return own << TOKEN_BITS | (token)size;
}

/* Note a block's symbols. */
static inline token *FD_(note_block)(const int16_t *block, int *predicted, token tables, symbols *s,
                                     token *to) {
    int value = block[0] - *predicted;
    *predicted = block[0];
    if (value >= 1 << MAX_DC_SIZE || value <= -(1 << MAX_DC_SIZE)) {
        s->too_large = 1;
        value = 0;
    }
    to = note(s, tables | FD_(token_of)(value), to);
    tables |= AC;
    int before = 0;
    for (uint64_t mask = FD_(nonzero)(block) >> 1 << 1; mask; mask &= mask - 1) {
        int k = __builtin_ctzll(mask), run = k - before - 1;
        before = k;
        for (; run > 15; run -= 16)
            to = note(s, tables | ZEROS_16, to);
        value = block[k];
        if (value >= 1 << MAX_AC_SIZE || value <= -(1 << MAX_AC_SIZE)) {
            s->too_large = 1;
            value = 0;
        }
        to = note(s, tables | (token)run << 4 | FD_(token_of)(value), to);
    }
    return before == FD_JPEG_BLOCK - 1 ? to : note(s, tables | END_OF_BLOCK, to);
}

/* Note a picture's symbols in the order of an interleaved scan. */
static int FD_(note_picture)(const fd_jpeg_picture *picture, int32_t interval, symbols *s) {
    int predicted[3] = {0};
    int32_t left = interval, mcu = 0, mcus = picture->mcu_rows * picture->mcu_columns;
    for (int32_t y = 0; y < picture->mcu_rows; y++) {
        for (int32_t x = 0; x < picture->mcu_columns; x++, mcu++) {
            if (fd_jpeg_reserve_symbols(s)) return FD_NO_MEMORY;
            token *to = s->tokens + s->used;
            for (int i = 0; i < picture->count; i++) {
                const fd_jpeg_component *c = &picture->components[i];
                for (int by = 0; by < c->v; by++) {
                    ptrdiff_t at_y = (ptrdiff_t)y * c->v + by, at_x = (ptrdiff_t)x * c->h;
                    const int16_t *block = c->blocks + FD_JPEG_BLOCK * (at_y * c->across + at_x);
                    for (int bx = 0; bx < c->h; bx++, block += FD_JPEG_BLOCK)
                        to = FD_(note_block)(block, &predicted[i], i ? CHROMA : 0, s, to);
                }
            }
            if (--left == 0 || mcu + 1 == mcus) {
                *to++ = END_OF_SEGMENT;
                memset(predicted, 0, sizeof predicted);
                left = interval;
            }
            s->used = (size_t)(to - s->tokens);
        }
    }
    return FD_OK;
}

/* Write a segment's symbols, filled up with ones to whole bytes but without stuffing, and go on to
   the next one's; returns where it ends.  Writes to 8 bytes behind. */
static uint8_t *FD_(put_segment)(const token **from, const uint32_t *codes, uint8_t *out) {
    uint64_t bits = 0; /* from the top: less than eight that are not written yet */
    int used = 0;
    for (const token *p = *from;; p++) {
        uint64_t next = 127;
        int count = 7;
        if (*p != END_OF_SEGMENT) {
            uint32_t code = codes[SYMBOL_OF(*p)];
            int size = (int)(*p & 15);
            next = (uint64_t)CODE(code) << size | *p >> TOKEN_BITS;
            count = CODE_LENGTH(code) + size;
        }
        used += count;
        bits |= next << (64 - used);
        uint64_t word = bits;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        word = __builtin_bswap64(word);
#endif
        memcpy(out, &word, 8);
        out += used >> 3;
        bits <<= used & 56;
        used &= 7;
        if (*p == END_OF_SEGMENT) {
            *from = p + 1;
            return out;
        }
    }
}
