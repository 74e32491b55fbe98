/* The part of jpeg.c that takes the time; included once for each kind of processor. */

#include "jpeg_entropy.h"

/* ---- Inverse DCT ----------------------------------------------------------------------------- */

/* Eight one-dimensional transforms at once, of numbers or of vectors of eight: v[0] to v[7] in
   place. Scaled up by 8 * sqrt(8), as `shift` is to undo. */
#define INVERSE_DCT(type, v, rounding, shift)                                                \
    do {                                                                                     \
        type z1 = ((v)[2] + (v)[6]) * FIX_0_541196100;                                       \
        type even2 = z1 - (v)[6] * FIX_1_847759065, even3 = z1 + (v)[2] * FIX_0_765366865;   \
        type even0 = ((v)[0] + (v)[4]) * 8192, even1 = ((v)[0] - (v)[4]) * 8192;             \
        even0 += (rounding);                                                                 \
        even1 += (rounding);                                                                 \
        type e0 = even0 + even3, e3 = even0 - even3, e1 = even1 + even2, e2 = even1 - even2; \
        type o0 = (v)[7], o1 = (v)[5], o2 = (v)[3], o3 = (v)[1];                             \
        type s1 = o0 + o3, s2 = o1 + o2, s3 = o0 + o2, s4 = o1 + o3;                         \
        type s5 = (s3 + s4) * FIX_1_175875602;                                               \
        s1 *= -FIX_0_899976223;                                                              \
        s2 *= -FIX_2_562915447;                                                              \
        s3 = s5 - s3 * FIX_1_961570560;                                                      \
        s4 = s5 - s4 * FIX_0_390180644;                                                      \
        o0 = o0 * FIX_0_298631336 + s1 + s3;                                                 \
        o1 = o1 * FIX_2_053119869 + s2 + s4;                                                 \
        o2 = o2 * FIX_3_072711026 + s2 + s3;                                                 \
        o3 = o3 * FIX_1_501321110 + s1 + s4;                                                 \
        (v)[0] = (e0 + o3) >> (shift);                                                       \
        (v)[7] = (e0 - o3) >> (shift);                                                       \
        (v)[1] = (e1 + o2) >> (shift);                                                       \
        (v)[6] = (e1 - o2) >> (shift);                                                       \
        (v)[2] = (e2 + o1) >> (shift);                                                       \
        (v)[5] = (e2 - o1) >> (shift);                                                       \
        (v)[3] = (e3 + o0) >> (shift);                                                       \
        (v)[4] = (e3 - o0) >> (shift);                                                       \
    } while (0)

/* libjpeg-turbo's SIMD code computes with 16 bits, where sums of two numbers overflow, and what is
   between the two passes saturates.  Below these bounds nothing does, here or there; coefficients
   of pictures are far below, and a file with others is left to libjpeg-turbo itself.  The functions
   return 0 where that is so. */
#define SUMMABLE 16384 /* the sum of two fits 16 bits; a power of two */
#define FLAT_BOUND 4096

#ifdef FD_AVX2

/* Numbers by which the two of a pair are multiplied. */
#define PAIR(first, second) \
    _mm256_set1_epi32((int32_t)((uint32_t)(second) << 16 | (uint16_t)(first)))

/* Eight one-dimensional transforms at once, of numbers of 16 bits: those of rows 0 and 4, 2 and 6, 1
   and 5, 3 and 7 in pairs.  All is linear until it is rounded, so that an output is the sum of
   products with pairs: INVERSE_DCT with its brackets multiplied out. */
static inline __attribute__((always_inline)) void
FD_(transform_pairs)(__m256i p04, __m256i p26, __m256i p15, __m256i p37, int rounding, int shift,
                     fd_v8 v[8]) {
#define SUM_OF(a, b, by_1, by_5, by_3, by_7)                       \
    ((fd_v8)_mm256_madd_epi16(a, PAIR(by_1, by_5)) +               \
     (fd_v8)_mm256_madd_epi16(b, PAIR(by_3, by_7)))
    const int both = FIX_1_175875602, three = both - FIX_1_961570560, four = both - FIX_0_390180644;
    const fd_v8 even0 = (fd_v8)_mm256_madd_epi16(p04, PAIR(8192, 8192)) + rounding,
                even1 = (fd_v8)_mm256_madd_epi16(p04, PAIR(8192, -8192)) + rounding,
                even2 = (fd_v8)_mm256_madd_epi16(
                    p26, PAIR(FIX_0_541196100, FIX_0_541196100 - FIX_1_847759065)),
                even3 = (fd_v8)_mm256_madd_epi16(
                    p26, PAIR(FIX_0_541196100 + FIX_0_765366865, FIX_0_541196100));
    const fd_v8 o0 = SUM_OF(p15, p37, both - FIX_0_899976223, both, three,
                            three + FIX_0_298631336 - FIX_0_899976223),
                o1 = SUM_OF(p15, p37, four, four + FIX_2_053119869 - FIX_2_562915447,
                            both - FIX_2_562915447, both),
                o2 = SUM_OF(p15, p37, both, both - FIX_2_562915447,
                            three + FIX_3_072711026 - FIX_2_562915447, three),
                o3 = SUM_OF(p15, p37, four + FIX_1_501321110 - FIX_0_899976223, four, both,
                            both - FIX_0_899976223);
#undef SUM_OF
    const fd_v8 e0 = even0 + even3, e3 = even0 - even3, e1 = even1 + even2, e2 = even1 - even2;
    v[0] = (e0 + o3) >> shift;
    v[7] = (e0 - o3) >> shift;
    v[1] = (e1 + o2) >> shift;
    v[6] = (e1 - o2) >> shift;
    v[2] = (e2 + o1) >> shift;
    v[5] = (e2 - o1) >> shift;
    v[3] = (e3 + o0) >> shift;
    v[4] = (e3 - o0) >> shift;
}

/* Whether a number is not summable.  Moved up, those that are have no sign. */
static inline int FD_(is_beyond_sums)(const __m256i numbers[4]) {
    __m256i signs = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++)
        signs = _mm256_or_si256(signs, _mm256_add_epi16(numbers[i], _mm256_set1_epi16(SUMMABLE)));
    return !_mm256_testz_si256(signs, _mm256_set1_epi16((int16_t)0x8000));
}

static inline int FD_(inverse_dct)(const int16_t *in, uint8_t *out, ptrdiff_t stride) {
    fd_v8 v[8];
    __m256i rows[4], between[4];
    /* Two rows each: their left halves, then their right halves. */
    for (int i = 0; i < 4; i++)
        rows[i] = _mm256_permute4x64_epi64(_mm256_load_si256((const __m256i *)(in + 16 * i)), 0xD8);
    FD_(transform_pairs)(_mm256_unpacklo_epi16(rows[0], rows[2]),
                         _mm256_unpacklo_epi16(rows[1], rows[3]),
                         _mm256_unpackhi_epi16(rows[0], rows[2]),
                         _mm256_unpackhi_epi16(rows[1], rows[3]), 1 << 10, 11, v);
    for (int i = 0; i < 4; i++)
        between[i] = _mm256_packs_epi32((__m256i)v[2 * i], (__m256i)v[2 * i + 1]);
    const int beyond = FD_(is_beyond_sums)(rows) | FD_(is_beyond_sums)(between);
    /* To columns: four numbers of columns 0, 1, 4, 5 and of 2, 3, 6, 7, upper rows and lower ones. */
    __m256i columns[4];
    for (int i = 0; i < 4; i += 2) {
        const __m256i even = _mm256_unpacklo_epi16(between[i], between[i + 1]),
                      odd = _mm256_unpackhi_epi16(between[i], between[i + 1]);
        columns[i] = _mm256_unpacklo_epi16(even, odd);
        columns[i + 1] = _mm256_unpackhi_epi16(even, odd);
    }
    const __m256i c01 = _mm256_permute2x128_si256(columns[0], columns[2], 0x20),
                  c45 = _mm256_permute2x128_si256(columns[0], columns[2], 0x31),
                  c23 = _mm256_permute2x128_si256(columns[1], columns[3], 0x20),
                  c67 = _mm256_permute2x128_si256(columns[1], columns[3], 0x31);
    FD_(transform_pairs)(_mm256_unpacklo_epi16(c01, c45), _mm256_unpacklo_epi16(c23, c67),
                         _mm256_unpackhi_epi16(c01, c45), _mm256_unpackhi_epi16(c23, c67),
                         (1 << 17) + (128 << 18), 18, v);
    /* Now v[x] has column x.  Narrowed to bytes, each half has 4 rows of 4 + 4 columns. */
    __m256i left = _mm256_packus_epi16(_mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]),
                                       _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]));
    __m256i right = _mm256_packus_epi16(_mm256_packs_epi32((__m256i)v[4], (__m256i)v[5]),
                                        _mm256_packs_epi32((__m256i)v[6], (__m256i)v[7]));
    const __m256i turn = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0,
                                          4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    left = _mm256_shuffle_epi8(left, turn);
    right = _mm256_shuffle_epi8(right, turn);
    __m256i first = _mm256_unpacklo_epi32(left, right), second = _mm256_unpackhi_epi32(left, right);
    __m128i lines[4] = {_mm256_castsi256_si128(first), _mm256_castsi256_si128(second),
                       _mm256_extracti128_si256(first, 1), _mm256_extracti128_si256(second, 1)};
    for (int i = 0; i < 4; i++) {
        _mm_storel_epi64((__m128i *)(out + 2 * i * stride), lines[i]);
        _mm_storeh_pd((double *)(out + (2 * i + 1) * stride), _mm_castsi128_pd(lines[i]));
    }
    return beyond;
}

#else

static inline uint8_t FD_(clamp)(int32_t value) {
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static int FD_(inverse_dct)(const int16_t *in, uint8_t *out, ptrdiff_t stride) {
    int32_t work[8][8], beyond = 0;
    for (int x = 0; x < 8; x++) {
        int32_t v[8];
        for (int y = 0; y < 8; y++) {
            v[y] = in[8 * y + x];
            beyond |= v[y] + SUMMABLE;
        }
        INVERSE_DCT(int32_t, v, 1 << 10, 11);
        for (int y = 0; y < 8; y++) {
            work[y][x] = v[y];
            beyond |= v[y] + SUMMABLE;
        }
    }
    for (int y = 0; y < 8; y++) {
        INVERSE_DCT(int32_t, work[y], (1 << 17) + (128 << 18), 18);
        for (int x = 0; x < 8; x++)
            out[y * stride + x] = FD_(clamp)(work[y][x]);
    }
    return (beyond & ~(2 * SUMMABLE - 1)) != 0;
}

#endif

/* The same where all coefficients but the first are zero, to a block of `side` x `side`. */
static inline int FD_(inverse_dct_flat)(int32_t first, uint8_t *out, ptrdiff_t stride, int side) {
    int32_t value = (first * 4 + 16 + (128 << 5)) >> 5;
    value = value < 0 ? 0 : value > 255 ? 255 : value;
    for (int y = 0; y < side; y++)
        memset(out + y * stride, value, (size_t)side);
    return first < -FLAT_BOUND || first >= FLAT_BOUND;
}

#include "jpeg_reduced.h"

/* Make the pixels of a block, side x side of them; returns 0 if all was in bounds. */
static inline int FD_(make_pixels)(const int16_t *coefficients, int last, uint8_t *out,
                                   ptrdiff_t stride, int side) {
    if (side == 8) {
        if (last == 0) return FD_(inverse_dct_flat)(coefficients[0], out, stride, 8);
        return FD_(inverse_dct)(coefficients, out, stride);
    }
    if (last == 0 || side == 1) return FD_(inverse_dct_flat)(coefficients[0], out, stride, side);
    return side == 4 ? FD_(inverse_dct_4)(coefficients, out, stride)
                     : FD_(inverse_dct_2)(coefficients, out, stride);
}

static inline void FD_(clear)(int16_t *block) {
#ifdef FD_AVX2
    /* memset is made a string instruction here, which takes 25 ns to begin. */
    for (int i = 0; i < BLOCK; i += 16)
        _mm256_store_si256((__m256i *)(block + i), _mm256_setzero_si256());
#else
    memset(block, 0, BLOCK * sizeof *block);
#endif
}

/* ---- Segments -------------------------------------------------------------------------------- */

#define FITS_16(a, b) ((int64_t)(a) * (b) == (int16_t)((unsigned)(a) * (unsigned)(b)))

/* Decode a block's first coefficient, and pass over the others; returns -1 for bits for which
   decode_block does, else 0. */
static inline int FD_(pass_block)(bit_reader *restrict in, const huffman *restrict dc,
                                  const huffman *restrict ac, const passing *restrict passed,
                                  int *restrict predicted) {
    bit_reader r = *in;
    if (!FD_(decode_first)(&r, dc, predicted)) return -1;
    for (int k = 1; k < BLOCK;) {
        FD_(refill)(&r);
        uint32_t entry = 0;
        /* Twice PASS_BITS with 15 bits behind.  What follows a block's last coefficient is not its
           own, so codes that lead there are decoded one by one. */
        for (int i = 0; i < 2; i++) {
            entry = passed->look[r.bits >> (64 - PASS_BITS)];
            if (!LENGTH(entry) || k + ADVANCE(entry) >= BLOCK) goto one;
            FD_(skip)(&r, LENGTH(entry));
            k += ADVANCE(entry);
            if (entry & ENDS_BLOCK) goto done;
        }
        continue;
    one:
        FD_(refill)(&r);
        entry = ac->look[r.bits >> (64 - LOOK_BITS)];
        int symbol = SYMBOL(entry);
        int size = symbol & 15;
        if (LENGTH(entry))
            FD_(skip)(&r, LENGTH(entry) - (entry & HAS_VALUE ? size : 0));
        else if ((symbol = FD_(long_symbol)(ac, &r)) < 0)
            return -1;
        size = symbol & 15;
        FD_(skip)(&r, size);
        if (size == 0 && symbol != 0xF0) break;
        k += (symbol >> 4) + 1;
        if (k > BLOCK || (k == BLOCK && size == 0)) return -1;
    }
done:
    *in = r;
    return 0;
}

/* Decode MCUs of segment k into the planes, as far as they are in the window's rows and columns. */
static int FD_(decode_segment)(fd_jpeg *jpeg, int32_t k) {
    ptrdiff_t length = unstuff(jpeg, k);
    if (length < 0) return FD_REFUSED;
    bit_reader in = {0, 0, jpeg->coded.memory};
    const uint8_t *end = in.next + length;
    int predicted[MAX_COMPONENTS] = {0};
    const int passes = jpeg->interval >= WORTH_PASSING;
    int32_t mcu = k * jpeg->interval, total = jpeg->mcu_rows * jpeg->mcu_columns;
    int32_t behind = mcu + jpeg->interval < total ? mcu + jpeg->interval : total;
    int32_t y = mcu / jpeg->mcu_columns, x = mcu % jpeg->mcu_columns;
    for (; mcu < behind; mcu++) {
        if (y + 1 >= jpeg->end_row && (y >= jpeg->end_row || x >= jpeg->end_column))
            return FD_OK; /* the rest is not wanted */
        int inside = y >= jpeg->first_row && x >= jpeg->first_column && x < jpeg->end_column;
        for (int i = 0; i < jpeg->count; i++) {
            const component *c = &jpeg->components[i];
            const huffman *dc = &jpeg->tables[0][c->dc], *ac = &jpeg->tables[1][c->ac];
            const int wanted = inside && i < jpeg->shown;
            for (int by = 0; by < c->v; by++) {
                for (int bx = 0; bx < c->h; bx++) {
                    int16_t coefficients[BLOCK] __attribute__((aligned(32)));
                    const int16_t *quant = jpeg->quants[c->quant];
                    int last;
                    if (passes && (!wanted || c->side == 1)) {
                        if (!jpeg->passed) make_passings(jpeg);
                        last = FD_(pass_block)(&in, dc, ac, &jpeg->passings[c->ac], &predicted[i]);
                        coefficients[0] = (int16_t)((unsigned)predicted[i] * (unsigned)quant[0]);
                    } else {
                        FD_(clear)(coefficients);
                        last = FD_(decode_block)(&in, dc, ac, quant, &predicted[i], coefficients);
                    }
                    if (last < 0 || in.next - (in.count >> 3) > end) return FD_REFUSED;
                    if (!wanted) continue;
                    int32_t at_y = (y - jpeg->first_row) * c->v + by;
                    int32_t at_x = (x - jpeg->first_column) * c->h + bx;
                    if (at_y < c->first_y || at_y >= c->end_y || at_x < c->first_x ||
                        at_x >= c->end_x)
                        continue;
                    uint8_t *out = c->plane + c->side * (at_y * c->stride + at_x);
                    if (FD_(make_pixels)(coefficients, last, out, c->stride, c->side))
                        return FD_REFUSED;
                    /* Where nothing else is computed from it, the product is not cut to 16 bits. */
                    if (c->side == 1 && !FITS_16(predicted[i], quant[0])) return FD_REFUSED;
                }
            }
        }
        if (++x == jpeg->mcu_columns) {
            x = 0;
            y++;
        }
    }
    /* Less than a byte of filling is left, or what was decoded is not what was coded. */
    ptrdiff_t left = 8 * (end - in.next) + (int)in.count;
    return left >= 0 && left < 8 ? FD_OK : FD_REFUSED;
}

static int FD_(decode_segments)(fd_jpeg *jpeg) {
    int32_t columns = jpeg->mcu_columns, interval = jpeg->interval;
    int32_t done = -1; /* the last segment that was decoded */
    for (int32_t y = jpeg->first_row; y < jpeg->end_row; y++) {
        int32_t first = (y * columns + jpeg->first_column) / interval;
        int32_t last = (y * columns + jpeg->end_column - 1) / interval;
        for (int32_t k = first > done ? first : done + 1; k <= last; k++) {
            int status = FD_(decode_segment)(jpeg, k);
            if (status) return status;
            done = k;
        }
    }
    return FD_OK;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Sums of two rows, 3/4 of the near one and 1/4 of the other, times 4; reads FD_ROW_PADDING
   beyond. */
static inline void FD_(blend_rows)(const uint8_t *near, const uint8_t *far, int32_t count,
                                   int16_t *sums) {
#ifdef FD_AVX2
    const __m256i three = _mm256_set1_epi16(3);
    for (int32_t x = 0; x < count; x += 16) {
        __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(near + x)));
        __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(far + x)));
        _mm256_storeu_si256((__m256i *)(sums + x),
                            _mm256_add_epi16(_mm256_mullo_epi16(a, three), b));
    }
#else
    for (int32_t x = 0; x < count; x++)
        sums[x] = (int16_t)(3 * near[x] + far[x]);
#endif
}

/* Enlarge a row of chroma to twice its width: each sample 3/4 of itself and 1/4 of its neighbour.
   There is a neighbour on each side of `sums`.  `first` and `second` are what libjpeg rounds by. */
static inline void FD_(widen)(const int16_t *sums, int32_t count, int first, int second, int shift,
                              uint8_t *out) {
#ifdef FD_AVX2
    const __m256i add_first = _mm256_set1_epi16((int16_t)first),
                  add_second = _mm256_set1_epi16((int16_t)second);
    const __m256i three = _mm256_set1_epi16(3);
    const __m128i by = _mm_cvtsi32_si128(shift);
    for (int32_t x = 0; x < count; x += 16) {
        __m256i here = _mm256_mullo_epi16(_mm256_loadu_si256((const __m256i *)(sums + x)), three);
        __m256i left = _mm256_loadu_si256((const __m256i *)(sums + x - 1));
        __m256i right = _mm256_loadu_si256((const __m256i *)(sums + x + 1));
        left = _mm256_srl_epi16(_mm256_add_epi16(_mm256_add_epi16(here, left), add_first), by);
        right = _mm256_srl_epi16(_mm256_add_epi16(_mm256_add_epi16(here, right), add_second), by);
        /* Two bytes are one number. */
        _mm256_storeu_si256((__m256i *)(out + 2 * x),
                            _mm256_or_si256(left, _mm256_slli_epi16(right, 8)));
    }
#else
    for (int32_t x = 0; x < count; x++) {
        out[2 * x] = (uint8_t)((3 * sums[x] + sums[x - 1] + first) >> shift);
        out[2 * x + 1] = (uint8_t)((3 * sums[x] + sums[x + 1] + second) >> shift);
    }
#endif
}

/* Colours of JFIF to RGB.  All rows may be read FD_ROW_PADDING bytes beyond `count`, and `out`
   written. */
static inline void FD_(to_rgb)(const uint8_t *restrict luma, const uint8_t *restrict blue,
                               const uint8_t *restrict red, int32_t count, uint8_t *restrict out) {
#ifdef FD_AVX2
    const __m256i middle = _mm256_set1_epi16(128), one = _mm256_set1_epi16(1);
    /* 1.402 = 1 + 0.402, 1.772 = 2 - 0.228, 0.71414 = 1 - 0.28586: numbers that fit 16 bits. */
    const __m256i red_part = _mm256_set1_epi16(26345), blue_part = _mm256_set1_epi16(-14942);
    const __m256i green_parts = _mm256_set1_epi32((int)((uint32_t)18734 << 16 | (uint16_t)-22554));
    const __m256i half = _mm256_set1_epi32(1 << 15);
    for (int32_t x = 0; x < count; x += 16) {
        __m256i y = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(luma + x)));
        __m256i cb = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(blue + x)));
        __m256i cr = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(red + x)));
        cb = _mm256_sub_epi16(cb, middle);
        cr = _mm256_sub_epi16(cr, middle);
        /* Twice the sample by the part, its upper half, rounded: sample * part with one bit
           less. */
        __m256i r = _mm256_mulhi_epi16(_mm256_add_epi16(cr, cr), red_part);
        __m256i b = _mm256_mulhi_epi16(_mm256_add_epi16(cb, cb), blue_part);
        r = _mm256_add_epi16(_mm256_srai_epi16(_mm256_add_epi16(r, one), 1), cr);
        b = _mm256_add_epi16(_mm256_srai_epi16(_mm256_add_epi16(b, one), 1),
                             _mm256_add_epi16(cb, cb));
        __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), green_parts);
        __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), green_parts);
        low = _mm256_srai_epi32(_mm256_add_epi32(low, half), 16);
        high = _mm256_srai_epi32(_mm256_add_epi32(high, half), 16);
        __m256i g = _mm256_sub_epi16(_mm256_packs_epi32(low, high), cr);
        r = _mm256_add_epi16(r, y);
        g = _mm256_add_epi16(g, y);
        b = _mm256_add_epi16(b, y);
        /* To bytes: pixels 0-7 in the lower lane, 8-15 in the upper; red and green, blue. */
        __m256i rg = _mm256_packus_epi16(r, g), bb = _mm256_packus_epi16(b, b);
        const __m256i rg_first =
            _mm256_setr_epi8(0, 8, -1, 1, 9, -1, 2, 10, -1, 3, 11, -1, 4, 12, -1, 5, 0, 8, -1, 1, 9,
                             -1, 2, 10, -1, 3, 11, -1, 4, 12, -1, 5);
        const __m256i b_first =
            _mm256_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, -1, 0,
                             -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1);
        const __m256i rg_rest =
            _mm256_setr_epi8(13, -1, 6, 14, -1, 7, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, 13, -1,
                             6, 14, -1, 7, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1);
        const __m256i b_rest =
            _mm256_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, -1, -1, -1, -1, -1, -1, -1, 5, -1,
                             -1, 6, -1, -1, 7, -1, -1, -1, -1, -1, -1, -1, -1);
        __m256i begin =
            _mm256_or_si256(_mm256_shuffle_epi8(rg, rg_first), _mm256_shuffle_epi8(bb, b_first));
        __m256i rest =
            _mm256_or_si256(_mm256_shuffle_epi8(rg, rg_rest), _mm256_shuffle_epi8(bb, b_rest));
        uint8_t *to = out + 3 * x;
        _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(begin));
        _mm_storel_epi64((__m128i *)(to + 16), _mm256_castsi256_si128(rest));
        _mm_storeu_si128((__m128i *)(to + 24), _mm256_extracti128_si256(begin, 1));
        _mm_storel_epi64((__m128i *)(to + 40), _mm256_extracti128_si256(rest, 1));
    }
#else
    for (int32_t x = 0; x < count; x++) {
        int32_t y = luma[x], cb = blue[x] - 128, cr = red[x] - 128;
        out[3 * x] = FD_(clamp)(y + ((91881 * cr + 32768) >> 16));
        out[3 * x + 1] = FD_(clamp)(y + ((-22554 * cb - 46802 * cr + 32768) >> 16));
        out[3 * x + 2] = FD_(clamp)(y + ((116130 * cb + 32768) >> 16));
    }
#endif
}

/* Row y of the image, columns of the window, of chroma as large as luma. */
static const uint8_t *FD_(chroma_row)(fd_jpeg *jpeg, const component *c, int32_t y, int16_t *sums,
                                      uint8_t *wide) {
    int h = jpeg->expand_h, v = jpeg->expand_v;
    int32_t height = (jpeg->height + v - 1) / v, width = (jpeg->width + h - 1) / h;
    int32_t origin_y = jpeg->first_row * c->side, origin_x = jpeg->first_column * c->side;
    int32_t near_y = y / v;
    const uint8_t *near = c->plane + (near_y - origin_y) * c->stride - origin_x;
    if (h == 1) return near + jpeg->left;
    int32_t first = jpeg->left / 2, end = (jpeg->left + jpeg->columns - 1) / 2 + 1;
    if (c->side == 1) { /* too coarse for anything smooth, libjpeg says */
        for (int32_t x = first; x < end; x++)
            wide[2 * (x - first)] = wide[2 * (x - first) + 1] = near[x];
        return wide + (jpeg->left & 1);
    }
    /* One more on each side; at the image's edges the edge again. */
    int32_t from = first > 0 ? first - 1 : 0, to = end < width ? end + 1 : width;
    if (v == 2) {
        int32_t far_y = y & 1 ? near_y + 1 : near_y - 1;
        if (far_y < 0) far_y = 0;
        if (far_y >= height) far_y = height - 1;
        const uint8_t *far = c->plane + (far_y - origin_y) * c->stride - origin_x;
        FD_(blend_rows)(near + from, far + from, to - from, sums + 1 + from - first);
    } else {
        for (int32_t x = from; x < to; x++)
            sums[1 + x - first] = near[x];
    }
    if (from == first) sums[0] = sums[1];
    if (to == end) sums[1 + end - first] = sums[end - first];
    if (v == 2)
        FD_(widen)(sums + 1, end - first, 8, 7, 4, wide);
    else
        FD_(widen)(sums + 1, end - first, 1, 2, 2, wide);
    return wide + (jpeg->left & 1);
}

static const uint8_t *FD_(window_row)(fd_jpeg *jpeg, int32_t y) {
    const component *c = jpeg->components;
    int32_t columns = jpeg->columns;
    const uint8_t *luma = c[0].plane + (y - jpeg->first_row * jpeg->mcu_height) * c[0].stride +
                          (jpeg->left - jpeg->first_column * jpeg->mcu_width);
    if (jpeg->channels == 1) return luma;
    uint8_t *out = jpeg->row.memory;
    if (jpeg->count == 1) {
        for (int32_t x = 0; x < columns; x++)
            out[3 * x] = out[3 * x + 1] = out[3 * x + 2] = luma[x];
        return out;
    }
    size_t wide = wide_size(columns);
    uint8_t *blue = out + rgb_size(columns), *red = blue + wide;
    int16_t *sums = (int16_t *)(void *)(red + wide);
    FD_(to_rgb)(luma, FD_(chroma_row)(jpeg, &c[1], y, sums, blue),
                FD_(chroma_row)(jpeg, &c[2], y, sums, red), columns, out);
    return out;
}
