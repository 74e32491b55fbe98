/* Inverse DCTs to 4 x 4, 2 x 2 and 1 x 1 pixels, the means of 2 x 2, 4 x 4 and 8 x 8: those of
   libjpeg-turbo's jidctred.c.  Included by jpeg.c once for each kind of processor. */

#define FIX_0_211164243 1730
#define FIX_0_509795579 4176
#define FIX_0_601344887 4926
#define FIX_0_720959822 5906
#define FIX_0_850430095 6967
#define FIX_1_061594337 8697
#define FIX_1_272758580 10426
#define FIX_1_451774981 11893
#define FIX_2_172734803 17799
#define FIX_3_624509785 29692

/* As INVERSE_DCT, from v[0] to v[7], of which v[4] does not matter, to v[0] to v[3]. */
#define INVERSE_DCT_4(type, v, rounding, shift)                                                    \
    do {                                                                                           \
        type even = (v)[0] * 16384 + (rounding);                                                   \
        type e0 = (v)[2] * FIX_1_847759065 - (v)[6] * FIX_0_765366865;                             \
        type o0 = (v)[1] * FIX_2_562915447 + (v)[3] * FIX_0_899976223 - (v)[5] * FIX_0_601344887 - \
                  (v)[7] * FIX_0_509795579;                                                        \
        type o1 = (v)[1] * FIX_1_061594337 - (v)[3] * FIX_2_172734803 + (v)[5] * FIX_1_451774981 - \
                  (v)[7] * FIX_0_211164243;                                                        \
        type e1 = even - e0;                                                                       \
        e0 += even;                                                                                \
        (v)[0] = (e0 + o0) >> (shift);                                                             \
        (v)[3] = (e0 - o0) >> (shift);                                                             \
        (v)[1] = (e1 + o1) >> (shift);                                                             \
        (v)[2] = (e1 - o1) >> (shift);                                                             \
    } while (0)

/* From v[0] and the odd ones to v[0] and v[1]. */
#define INVERSE_DCT_2(type, v, rounding, shift)                          \
    do {                                                                 \
        type even = (v)[0] * 32768 + (rounding);                         \
        type odd = (v)[1] * FIX_3_624509785 - (v)[3] * FIX_1_272758580 + \
                   (v)[5] * FIX_0_850430095 - (v)[7] * FIX_0_720959822;  \
        (v)[0] = (even + odd) >> (shift);                                \
        (v)[1] = (even - odd) >> (shift);                                \
    } while (0)

/* Below this, as below SUMMABLE and FLAT_BOUND, no step of libjpeg-turbo's SIMD code overflows. */
#define REDUCIBLE 8192

static inline uint8_t FD_(to_byte)(int32_t value) {
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

#ifdef FD_AVX2

/* Load a block as rows of numbers; returns whether any is beyond REDUCIBLE. */
static inline int FD_(load_block)(const int16_t *in, fd_v8 v[8]) {
    __m256i all = _mm256_setzero_si256();
    for (int i = 0; i < BLOCK; i += 16)
        all = _mm256_or_si256(all, _mm256_add_epi16(_mm256_load_si256((const __m256i *)(in + i)),
                                                    _mm256_set1_epi16(REDUCIBLE)));
    for (int i = 0; i < 8; i++)
        v[i] = (fd_v8)_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(in + 8 * i)));
    return !_mm256_testz_si256(all, _mm256_set1_epi16((int16_t)~(2 * REDUCIBLE - 1)));
}

typedef int32_t fd_v4 __attribute__((vector_size(16)));

static inline int FD_(inverse_dct_4)(const int16_t *in, uint8_t *out, ptrdiff_t stride) {
    fd_v8 v[8];
    const int beyond = FD_(load_block)(in, v);
    INVERSE_DCT_4(fd_v8, v, 1 << 11, 12);
    const fd_v8 between =
        (v[0] + SUMMABLE) | (v[1] + SUMMABLE) | (v[2] + SUMMABLE) | (v[3] + SUMMABLE);
    /* Columns of four, x in the lower lane and x + 4 in the upper. */
    const __m256i a = _mm256_unpacklo_epi32((__m256i)v[0], (__m256i)v[1]),
                  b = _mm256_unpackhi_epi32((__m256i)v[0], (__m256i)v[1]),
                  c = _mm256_unpacklo_epi32((__m256i)v[2], (__m256i)v[3]),
                  d = _mm256_unpackhi_epi32((__m256i)v[2], (__m256i)v[3]);
    const __m256i columns[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c),
                                _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
    fd_v4 w[8];
    for (int i = 0; i < 4; i++) {
        w[i] = (fd_v4)_mm256_castsi256_si128(columns[i]);
        w[i + 4] = (fd_v4)_mm256_extracti128_si256(columns[i], 1);
    }
    INVERSE_DCT_4(fd_v4, w, (1 << 18) + (128 << 19), 19);
    __m128i bytes = _mm_packus_epi16(_mm_packs_epi32((__m128i)w[0], (__m128i)w[1]),
                                     _mm_packs_epi32((__m128i)w[2], (__m128i)w[3]));
    bytes = _mm_shuffle_epi8(bytes,
                             _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    uint8_t rows[16];
    _mm_storeu_si128((__m128i *)rows, bytes);
    for (int y = 0; y < 4; y++)
        memcpy(out + y * stride, rows + 4 * y, 4);
    const __m256i above = _mm256_set1_epi32(~(2 * SUMMABLE - 1));
    return beyond | !_mm256_testz_si256((__m256i)between, above);
}

static inline int FD_(inverse_dct_2)(const int16_t *in, uint8_t *out, ptrdiff_t stride) {
    fd_v8 v[8];
    const int beyond = FD_(load_block)(in, v);
    INVERSE_DCT_2(fd_v8, v, 1 << 12, 13);
    int32_t work[2][8];
    for (int y = 0; y < 2; y++) {
        _mm256_storeu_si256((__m256i *)work[y], (__m256i)v[y]);
        INVERSE_DCT_2(int32_t, work[y], (1 << 19) + (128 << 20), 20);
        for (int x = 0; x < 2; x++)
            out[y * stride + x] = FD_(to_byte)(work[y][x]);
    }
    const fd_v8 between = (v[0] + SUMMABLE) | (v[1] + SUMMABLE);
    const __m256i above = _mm256_set1_epi32(~(2 * SUMMABLE - 1));
    return beyond | !_mm256_testz_si256((__m256i)between, above);
}

#else

static inline int FD_(is_beyond)(const int16_t *in) {
    int32_t beyond = 0;
    for (int i = 0; i < BLOCK; i++)
        beyond |= in[i] + REDUCIBLE;
    return (beyond & ~(2 * REDUCIBLE - 1)) != 0;
}

static int FD_(inverse_dct_4)(const int16_t *in, uint8_t *out, ptrdiff_t stride) {
    int32_t work[4][8], beyond = 0;
    for (int x = 0; x < 8; x++) {
        int32_t v[8];
        for (int y = 0; y < 8; y++)
            v[y] = in[8 * y + x];
        INVERSE_DCT_4(int32_t, v, 1 << 11, 12);
        for (int y = 0; y < 4; y++) {
            work[y][x] = v[y];
            beyond |= v[y] + SUMMABLE;
        }
    }
    for (int y = 0; y < 4; y++) {
        INVERSE_DCT_4(int32_t, work[y], (1 << 18) + (128 << 19), 19);
        for (int x = 0; x < 4; x++)
            out[y * stride + x] = FD_(to_byte)(work[y][x]);
    }
    return (beyond & ~(2 * SUMMABLE - 1)) != 0 || FD_(is_beyond)(in);
}

static int FD_(inverse_dct_2)(const int16_t *in, uint8_t *out, ptrdiff_t stride) {
    int32_t work[2][8], beyond = 0;
    for (int x = 0; x < 8; x++) {
        int32_t v[8];
        for (int y = 0; y < 8; y++)
            v[y] = in[8 * y + x];
        INVERSE_DCT_2(int32_t, v, 1 << 12, 13);
        for (int y = 0; y < 2; y++) {
            work[y][x] = v[y];
            beyond |= v[y] + SUMMABLE;
        }
    }
    for (int y = 0; y < 2; y++) {
        INVERSE_DCT_2(int32_t, work[y], (1 << 19) + (128 << 20), 20);
        for (int x = 0; x < 2; x++)
            out[y * stride + x] = FD_(to_byte)(work[y][x]);
    }
    return (beyond & ~(2 * SUMMABLE - 1)) != 0 || FD_(is_beyond)(in);
}

#endif
