/* The part of jpeg_pixels.c that takes the time; included once for each kind of processor. */

/* ---- Colours --------------------------------------------------------------------------------- */

/* A row of RGB to the colours of JFIF (jccolor.c). */
static void FD_(from_rgb)(const uint8_t *restrict rgb, int32_t count, uint8_t *restrict luma,
                          uint8_t *restrict blue, uint8_t *restrict red) {
    int32_t x = 0;
#ifdef FD_AVX2
    /* Parts that do not fit 16 bits are taken in two: 38470 = 22086 + 16384, 32768 = 2 * 16384. */
    const __m256i luma_rg = _mm256_set1_epi32(22086 << 16 | 19595),
                  luma_bg = _mm256_set1_epi32(16384 << 16 | 7471),
                  blue_rg = _mm256_set1_epi32((int)((uint32_t)-21709 << 16 | (uint16_t)-11059)),
                  red_bg = _mm256_set1_epi32((int)((uint32_t)-27439 << 16 | (uint16_t)-5329)),
                  first = _mm256_set1_epi32(16384);
    const __m256i half = _mm256_set1_epi32(1 << 15),
                  middle = _mm256_set1_epi32((128 << 16) + (1 << 15) - 1);
    for (; x + 16 <= count; x += 16) {
        const __m128i *in = (const __m128i *)(const void *)(rgb + 3 * x);
        __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2);
#define PICK(of_a, of_b, of_c)                                                   \
    _mm256_cvtepu8_epi16(                                                        \
        _mm_or_si128(_mm_shuffle_epi8(a, of_a), _mm_or_si128(_mm_shuffle_epi8(b, of_b), \
                                                             _mm_shuffle_epi8(c, of_c))))
        const __m256i r = PICK(
            _mm_setr_epi8(0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
            _mm_setr_epi8(-1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1),
            _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13));
        const __m256i g = PICK(
            _mm_setr_epi8(1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
            _mm_setr_epi8(-1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1),
            _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14));
        const __m256i bl = PICK(
            _mm_setr_epi8(2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
            _mm_setr_epi8(-1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1),
            _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15));
#undef PICK
        const __m256i rg[2] = {_mm256_unpacklo_epi16(r, g), _mm256_unpackhi_epi16(r, g)};
        const __m256i bg[2] = {_mm256_unpacklo_epi16(bl, g), _mm256_unpackhi_epi16(bl, g)};
        __m256i y[2], cb[2], cr[2];
        for (int i = 0; i < 2; i++) {
            y[i] = _mm256_add_epi32(_mm256_madd_epi16(rg[i], luma_rg),
                                    _mm256_madd_epi16(bg[i], luma_bg));
            y[i] = _mm256_srai_epi32(_mm256_add_epi32(y[i], half), 16);
            cb[i] = _mm256_slli_epi32(_mm256_madd_epi16(bg[i], first), 1);
            cb[i] = _mm256_add_epi32(_mm256_add_epi32(cb[i], _mm256_madd_epi16(rg[i], blue_rg)),
                                     middle);
            cb[i] = _mm256_srai_epi32(cb[i], 16);
            cr[i] = _mm256_slli_epi32(_mm256_madd_epi16(rg[i], first), 1);
            cr[i] = _mm256_add_epi32(_mm256_add_epi32(cr[i], _mm256_madd_epi16(bg[i], red_bg)),
                                     middle);
            cr[i] = _mm256_srai_epi32(cr[i], 16);
        }
        __m256i first_two =
            _mm256_packus_epi16(_mm256_packs_epi32(y[0], y[1]), _mm256_packs_epi32(cb[0], cb[1]));
        __m256i third = _mm256_packs_epi32(cr[0], cr[1]);
        first_two = _mm256_permute4x64_epi64(first_two, 0xD8);
        third = _mm256_permute4x64_epi64(_mm256_packus_epi16(third, third), 0xD8);
        _mm_storeu_si128((__m128i *)(void *)(luma + x), _mm256_castsi256_si128(first_two));
        _mm_storeu_si128((__m128i *)(void *)(blue + x), _mm256_extracti128_si256(first_two, 1));
        _mm_storeu_si128((__m128i *)(void *)(red + x), _mm256_castsi256_si128(third));
    }
#endif
    for (; x < count; x++) {
        const int32_t r = rgb[3 * x], g = rgb[3 * x + 1], b = rgb[3 * x + 2];
        luma[x] = (uint8_t)((19595 * r + 38470 * g + 7471 * b + (1 << 15)) >> 16);
        blue[x] = (uint8_t)((32768 * b - 11059 * r - 21709 * g + (128 << 16) + (1 << 15) - 1) >> 16);
        red[x] = (uint8_t)((32768 * r - 27439 * g - 5329 * b + (128 << 16) + (1 << 15) - 1) >> 16);
    }
}

/* Means of 2 x 2 samples; halves are rounded down and up in turns (jcsample.c). */
static void FD_(halve)(const uint8_t *restrict upper, const uint8_t *restrict lower, int32_t count,
                       uint8_t *restrict out) {
    int32_t x = 0;
#ifdef FD_AVX2
    const __m256i ones = _mm256_set1_epi8(1), bias = _mm256_set1_epi32(2 << 16 | 1);
    for (; x + 16 <= count; x += 16) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(upper + 2 * x));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(lower + 2 * x));
        a = _mm256_add_epi16(_mm256_maddubs_epi16(a, ones), _mm256_maddubs_epi16(b, ones));
        a = _mm256_srli_epi16(_mm256_add_epi16(a, bias), 2);
        a = _mm256_permute4x64_epi64(_mm256_packus_epi16(a, a), 0xD8);
        _mm_storeu_si128((__m128i *)(void *)(out + x), _mm256_castsi256_si128(a));
    }
#endif
    for (; x < count; x++)
        out[x] = (uint8_t)((upper[2 * x] + upper[2 * x + 1] + lower[2 * x] + lower[2 * x + 1] + 1 +
                            (x & 1)) >>
                           2);
}

/* ---- Forward DCT ----------------------------------------------------------------------------- */

/* Eight one-dimensional transforms at once (jfdctint.c), of numbers or of vectors of eight: v[0] to
   v[7] in place.  EVEN(sum) is what becomes of the sums without a multiplication. */
#define FORWARD_DCT(type, v, EVEN, shift)                                                       \
    do {                                                                                        \
        const int32_t rounding = 1 << ((shift) - 1);                                            \
        type t0 = (v)[0] + (v)[7], t7 = (v)[0] - (v)[7], t1 = (v)[1] + (v)[6],                   \
             t6 = (v)[1] - (v)[6], t2 = (v)[2] + (v)[5], t5 = (v)[2] - (v)[5],                   \
             t3 = (v)[3] + (v)[4], t4 = (v)[3] - (v)[4];                                         \
        type t10 = t0 + t3, t13 = t0 - t3, t11 = t1 + t2, t12 = t1 - t2;                         \
        (v)[0] = EVEN(t10 + t11);                                                                \
        (v)[4] = EVEN(t10 - t11);                                                                \
        type z1 = (t12 + t13) * FIX_0_541196100 + rounding;                                      \
        (v)[2] = (z1 + t13 * FIX_0_765366865) >> (shift);                                        \
        (v)[6] = (z1 - t12 * FIX_1_847759065) >> (shift);                                        \
        type z2 = t5 + t6, z3 = t4 + t6, z4 = t5 + t7;                                           \
        type z5 = (z3 + z4) * FIX_1_175875602 + rounding;                                        \
        z1 = (t4 + t7) * -FIX_0_899976223;                                                       \
        z2 *= -FIX_2_562915447;                                                                  \
        z3 = z5 - z3 * FIX_1_961570560;                                                          \
        z4 = z5 - z4 * FIX_0_390180644;                                                          \
        (v)[7] = (t4 * FIX_0_298631336 + z1 + z3) >> (shift);                                    \
        (v)[5] = (t5 * FIX_2_053119869 + z2 + z4) >> (shift);                                    \
        (v)[3] = (t6 * FIX_3_072711026 + z2 + z3) >> (shift);                                    \
        (v)[1] = (t7 * FIX_1_501321110 + z1 + z4) >> (shift);                                    \
    } while (0)
#define EVEN_FIRST(sum) ((sum) * 4)
#define EVEN_LAST(sum) (((sum) + 2) >> 2)

#ifdef FD_AVX2

#endif

/* Transform a block of samples and quantise it, in natural order; returns which coefficients are
   not zero, the first in the lowest bit. */
static inline uint64_t FD_(forward)(const uint8_t *in, ptrdiff_t stride, const divisors *by,
                                    int16_t *out) {
    uint64_t mask = 0;
#ifdef FD_AVX2
    fd_v8 v[8];
    for (int y = 0; y < 8; y++)
        v[y] = (fd_v8)_mm256_cvtepu8_epi32(
                   _mm_loadl_epi64((const __m128i *)(const void *)(in + y * stride))) -
               128;
    transpose(v);
    FORWARD_DCT(fd_v8, v, EVEN_FIRST, 11);
    transpose(v);
    FORWARD_DCT(fd_v8, v, EVEN_LAST, 15);
    const __m256i zero = _mm256_setzero_si256();
    __m256i empty[4];
    for (int i = 0; i < 4; i++) {
        __m256i value = _mm256_permute4x64_epi64(
            _mm256_packs_epi32((__m256i)v[2 * i], (__m256i)v[2 * i + 1]), 0xD8);
        __m256i size = _mm256_abs_epi16(value);
        size = _mm256_add_epi16(
            size, _mm256_load_si256((const __m256i *)(const void *)(by->half + 16 * i)));
        size = _mm256_mulhi_epu16(
            size, _mm256_load_si256((const __m256i *)(const void *)(by->inverse + 16 * i)));
        size = _mm256_mulhi_epu16(
            size, _mm256_load_si256((const __m256i *)(const void *)(by->scale + 16 * i)));
        value = _mm256_sign_epi16(size, value);
        _mm256_store_si256((__m256i *)(void *)(out + 16 * i), value);
        empty[i] = _mm256_cmpeq_epi16(value, zero);
    }
    for (int i = 0; i < 2; i++) {
        const __m256i bytes =
            _mm256_permute4x64_epi64(_mm256_packs_epi16(empty[2 * i], empty[2 * i + 1]), 0xD8);
        mask |= (uint64_t)(uint32_t)~_mm256_movemask_epi8(bytes) << 32 * i;
    }
#else
    int32_t work[8][8];
    for (int y = 0; y < 8; y++) {
        for (int x = 0; x < 8; x++)
            work[y][x] = in[y * stride + x] - 128;
        FORWARD_DCT(int32_t, work[y], EVEN_FIRST, 11);
    }
    for (int x = 0; x < 8; x++) {
        int32_t v[8];
        for (int y = 0; y < 8; y++)
            v[y] = work[y][x];
        FORWARD_DCT(int32_t, v, EVEN_LAST, 15);
        for (int y = 0; y < 8; y++) {
            const int k = 8 * y + x;
            uint32_t size = (uint32_t)(v[y] < 0 ? -v[y] : v[y]) + by->half[k];
            size = (size * by->inverse[k] >> 16) * by->scale[k] >> 16;
            out[k] = (int16_t)(v[y] < 0 ? -(int32_t)size : (int32_t)size);
            mask |= (uint64_t)(size != 0) << k;
        }
    }
#endif
    return mask;
}

/* ---- Entropy coding (T.81, F.1.2) ------------------------------------------------------------ */

/* Put `count` bits, 0 to 32, above which there are none.  Without a branch, which nobody could
   predict: all 64 are written, and what is whole of them is done. */
static inline void FD_(put_bits)(bit_writer *w, uint64_t bits, int count) {
    w->used += count;
    w->bits |= bits << (64 - w->used);
    uint64_t word = w->bits;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(w->to, &word, 8);
    w->to += w->used >> 3;
    w->bits <<= w->used & 56;
    w->used &= 7;
}

/* Put a code and the coefficient's own bits. */
static inline void FD_(put_value)(bit_writer *w, const uint32_t *codes, int run, int value) {
    const int size = 32 - __builtin_clz((unsigned)(value < 0 ? -value : value) << 1 | 1) - 1;
    const uint32_t code = codes[run << 4 | size];
    const uint64_t own = (uint32_t)(value + (value >> 31)) & ((1u << size) - 1);
    FD_(put_bits)(w, (uint64_t)(code >> 8) << size | own, (int)(code & 255) + size);
}

static inline void FD_(put_block)(bit_writer *w, const int16_t *block, uint64_t natural,
                                  int *predicted, const uint32_t *dc, const uint32_t *ac) {
    FD_(put_value)(w, dc, 0, block[0] - *predicted);
    *predicted = block[0];
    uint64_t mask = 0; /* in the order of coding */
    for (int i = 0; i < 8; i++)
        mask |= CODING_ORDER[i][natural >> 8 * i & 255];
    mask &= ~(uint64_t)1;
    int before = 0;
    bit_writer own = *w;
    /* Where 16 zeros follow, or the last coefficient that is not zero is passed. */
    uint64_t zeros = ~mask & ~(uint64_t)1;
    for (int i = 1; i < 16; i *= 2)
        zeros &= zeros >> i;
    if (!zeros || (zeros & -zeros) > mask) {
        /* Nearly always; with the question in the loop it took 2.2 times as long. */
        for (; mask; mask &= mask - 1) {
            const int k = __builtin_ctzll(mask);
            FD_(put_value)(&own, ac, k - before - 1, block[NATURAL_ORDER[k]]);
            before = k;
        }
    }
    for (; mask; mask &= mask - 1) {
        const int k = __builtin_ctzll(mask);
        int run = k - before - 1;
        before = k;
        for (; run > 15; run -= 16)
            FD_(put_bits)(&own, ac[0xF0] >> 8, (int)(ac[0xF0] & 255));
        FD_(put_value)(&own, ac, run, block[NATURAL_ORDER[k]]);
    }
    if (before < BLOCK - 1) FD_(put_bits)(&own, ac[0] >> 8, (int)(ac[0] & 255));
    *w = own;
}

/* ---- A row of MCUs --------------------------------------------------------------------------- */

/* Fill the planes with the samples of a row of MCUs; beyond the picture its edge goes on. */
static void FD_(fill_planes)(encoding *e, int32_t mcu_row) {
    const int32_t size = e->channels == 3 ? 16 : 8, width = e->width, padded = e->luma_stride;
    const int32_t top = mcu_row * size, rows = e->height - top < size ? e->height - top : size;
    const size_t row_bytes = (size_t)width * (size_t)e->channels;
    const uint8_t *in = e->pixels + (size_t)top * row_bytes;
    for (int32_t y = 0; y < rows; y++) {
        uint8_t *luma = e->luma + y * padded, *blue = e->wide[y & 1], *red = e->wide[2 + (y & 1)];
        if (e->channels == 1) {
            memcpy(luma, in + (size_t)y * row_bytes, row_bytes);
            memset(luma + width, luma[width - 1], (size_t)(padded - width));
            continue;
        }
        FD_(from_rgb)(in + (size_t)y * row_bytes, width, luma, blue, red);
        memset(luma + width, luma[width - 1], (size_t)(padded - width));
        memset(blue + width, blue[width - 1], (size_t)(padded - width));
        memset(red + width, red[width - 1], (size_t)(padded - width));
        if (!(y & 1) && y + 1 < rows) continue;
        const int32_t at = y / 2 * (padded / 2);
        FD_(halve)(e->wide[0], e->wide[y & 1], padded / 2, e->chroma[0] + at);
        FD_(halve)(e->wide[2], e->wide[2 + (y & 1)], padded / 2, e->chroma[1] + at);
    }
    for (int32_t y = rows; y < size; y++)
        memcpy(e->luma + y * padded, e->luma + (rows - 1) * padded, (size_t)padded);
    for (int32_t y = (rows + 1) / 2; e->channels == 3 && y < size / 2; y++)
        for (int i = 0; i < 2; i++)
            memcpy(e->chroma[i] + y * (padded / 2), e->chroma[i] + (y - 1) * (padded / 2),
                   (size_t)padded / 2);
}

/* Transform and quantise the blocks of a row of MCUs, in the order of coding.  Apart from coding
   them: a processor works on several transforms at a time, and one after the other would wait. */
static void FD_(transform_row)(encoding *e, int32_t mcu_row) {
    const int32_t block_rows = (e->height + 7) / 8, block_columns = (e->width + 7) / 8;
    coefficients *to = e->blocks;
    for (int32_t x = 0; x < e->mcu_columns; x++) {
        if (e->channels == 1) {
            to->mask = FD_(forward)(e->luma + 8 * x, e->luma_stride, &e->divisors[0], to->values);
            to++;
            continue;
        }
        for (int32_t i = 0; i < 4; i++, to++) {
            const int32_t by = i >> 1, bx = i & 1;
            to->mask = 0; /* of a block beyond the picture, which is like the one before, and flat */
            if (2 * mcu_row + by < block_rows && 2 * x + bx < block_columns)
                to->mask =
                    FD_(forward)(e->luma + 8 * (by * e->luma_stride + 2 * x + bx), e->luma_stride,
                                 &e->divisors[0], to->values);
            else
                to->values[0] = to[-1].values[0];
        }
        for (int i = 0; i < 2; i++, to++)
            to->mask = FD_(forward)(e->chroma[i] + 8 * x, e->luma_stride / 2, &e->divisors[1],
                                    to->values);
    }
}

/* Code a row of MCUs; `e->out` has room for it. */
static void FD_(encode_row)(encoding *e, int32_t mcu_row) {
    FD_(fill_planes)(e, mcu_row);
    FD_(transform_row)(e, mcu_row);
    const int luma_blocks = e->channels == 3 ? 4 : 1, all = e->channels == 3 ? 6 : 1;
    const coefficients *block = e->blocks;
    bit_writer out = e->out;
    for (int32_t x = 0; x < e->mcu_columns; x++) {
        for (int i = 0; i < all; i++, block++) {
            const int which = i < luma_blocks ? 0 : i - luma_blocks + 1;
            const uint32_t *codes = e->codes[which ? 2 : 0];
            FD_(put_block)(&out, block->values, block->mask, &e->predicted[which], codes,
                           codes + 256);
        }
        if (++e->in_segment < e->interval) continue;
        e->out = out;
        end_segment(e);
        out = e->out;
    }
    e->out = out;
}
#undef FORWARD_DCT
#undef EVEN_FIRST
#undef EVEN_LAST
