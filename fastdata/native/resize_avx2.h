/* The part of resize.c that takes the time, for AVX2; included there once.

   Values of a row, of whatever channel, are made sixteen at a time, in groups of neighbours.  A
   group's bytes are loaded from the row together, and each value's two are picked from those.

   With two taps, 16 bits suffice for the very numbers that sums of 32 bits give, in 60% of the
   time.  As the weights sum to 1 << 14, and w is the lesser, of the pixel `less`,

       (more * (2^14 - w) + less * w + 2^6) >> 7  ==  more * 2^7 + (((less - more) * w + 2^6) >> 7),

   whose last term is the rounded high part of (more - less) * 2^6 times -4 w.  Vertically,
   likewise,

       (more * (2^14 - w) + less * w + 2^20) >> 21
           ==  (more + (((less - more) * w) >> 14) + 2^6) >> 7,

   with the high half of (more - less) times -4 w.  (Minus, as 4 w may be 2^15, which 16 bits do not
   hold.) */

FD_BEGIN_AVX2

#if !FD_IS_NEON
/* make_filter for a source that is not reduced and has `taps` pixels or more, 2 or 4: four positions
   at a time, in a quarter of the time.

   All numbers are whole and below 2^53, so doubles hold them.  A quotient that is rounded down is
   never so near the next whole number that a double would round it up to that. */
static ALWAYS_INLINE void fill_filter(filter *f, const fd_span *s, int32_t taps, int32_t in,
                                      double support, int flip) {
    const __m256d zero = _mm256_setzero_pd(), sign = _mm256_set1_pd(-0.0);
    const __m256d step = _mm256_set1_pd(2.0 * s->target), origin = _mm256_set1_pd(s->target);
    const __m256d wide = _mm256_set1_pd(support), unit = _mm256_set1_pd(2.0 * s->length);
    const __m256d lead = _mm256_set1_pd(support - s->target);
    const __m256d scale = _mm256_set1_pd(1 << WEIGHT_BITS);
    const __m128i last = _mm_set1_epi32(in - taps);
    /* Flipped, the first position is the last. */
    const double from = flip ? s->first + s->count - 0.5 : s->first + 0.5, next = flip ? -1 : 1;
    __m256d position = _mm256_setr_pd(from, from + next, from + 2 * next, from + 3 * next);
    int32_t *pairs = (int32_t *)f->weights;
    for (int32_t x = 0; x < s->count; x += 4, pairs += 2 * taps) { /* there is room for four */
        const __m256d centre = _mm256_mul_pd(position, unit);
        const __m256d before = _mm256_max_pd(_mm256_sub_pd(centre, lead), zero);
        const __m128i first = _mm_min_epi32(_mm256_cvttpd_epi32(_mm256_div_pd(before, step)), last);
        _mm_storeu_si128((__m128i *)(f->first + x), first);
        __m256d distance =
            _mm256_sub_pd(_mm256_add_pd(origin, _mm256_mul_pd(_mm256_cvtepi32_pd(first), step)),
                          centre);
        __m256d reached[4], sum = zero;
        for (int32_t k = 0; k < taps; k++) {
            const __m256d height = _mm256_sub_pd(wide, _mm256_andnot_pd(sign, distance));
            reached[k] = sum = _mm256_add_pd(sum, _mm256_max_pd(height, zero));
            distance = _mm256_add_pd(distance, step);
        }
        const __m256d half = _mm256_cvtepi32_pd(_mm_srli_epi32(_mm256_cvttpd_epi32(sum), 1));
        __m128i to[5] = {_mm_setzero_si128()}, pair[2];
        for (int32_t k = 0; k < taps; k++)
            to[k + 1] = _mm256_cvttpd_epi32(
                _mm256_div_pd(_mm256_add_pd(_mm256_mul_pd(reached[k], scale), half), sum));
        for (int32_t k = 0; k < taps; k += 2)
            pair[k / 2] = _mm_or_si128(_mm_sub_epi32(to[k + 1], to[k]),
                                       _mm_slli_epi32(_mm_sub_epi32(to[k + 2], to[k + 1]), 16));
        if (taps == 2) {
            _mm_storeu_si128((__m128i *)pairs, pair[0]);
        } else {
            _mm_storeu_si128((__m128i *)pairs, _mm_unpacklo_epi32(pair[0], pair[1]));
            _mm_storeu_si128((__m128i *)(pairs + 4), _mm_unpackhi_epi32(pair[0], pair[1]));
        }
        position = _mm256_add_pd(position, _mm256_set1_pd(4 * next));
    }
}

/* The same for what is most frequent; returns whether it was that. */
static int fill_filter_avx2(filter *f, const fd_span *s, int antialias, int flip) {
    const int32_t in = find_touched(s).count, taps = f->taps;
    if (s->factor != 1 || in < taps) return 0;
    const double support = (double)find_support(s, antialias);
    if (taps == 2)
        fill_filter(f, s, 2, in, support, flip);
    else if (taps == 4)
        fill_filter(f, s, 4, in, support, flip);
    return taps == 2 || taps == 4;
}
#endif

/* How values are grouped.  EIGHT or FOUR of them, whose bytes are within 16 of the row: with 3
   channels and two taps, that is for pictures that are shrunk to 3/4 or 1/3 at most.  PIXELS: four
   of them, of two pixels at most, with 8 bytes from either. */
enum { EIGHT, FOUR, PIXELS };

/* Where the groups of 4 are in two vectors, in bytes: so that packing puts values in order. */
static const int32_t PLACES[4] = {0, 32, 16, 48};

/* Fill in one, other, and lesser or pairs. */
static ALWAYS_INLINE void spread(const plan *p, int32_t channels, int32_t taps) {
    const int16_t *weights = p->across.weights;
    size_t value = 0;
    for (int32_t x = 0; x < p->shape.across.count; x++, weights += taps) {
        const int32_t first = p->across.first[x] * channels;
        const int swap = taps == 2 && weights[0] < weights[1];
        for (int32_t c = 0; c < channels; c++, value++) {
            p->one[value] = first + c + (swap ? channels : 0);
            p->other[value] = first + c + (swap ? 0 : channels);
            if (taps == 2) {
                p->lesser[value] = (int16_t)(-4 * weights[!swap]);
                continue;
            }
            uint8_t *pair =
                p->pairs + value / 16 * 32 * (size_t)taps + PLACES[value / 4 % 4] + value % 4 * 4;
            for (int32_t k = 0; k < taps; k += 2, pair += 64)
                memcpy(pair, weights + k, 4);
        }
    }
    for (; value < p->stride; value++) { /* sixteen are made, though not all are of the row */
        p->one[value] = p->one[value - 1];
        p->other[value] = p->other[value - 1];
    }
}

/* Fill in offsets and picks; returns 0 if some group's bytes lie too far apart. */
static ALWAYS_INLINE int group(const plan *p, int kind, int linear) {
    const int32_t size = kind == EIGHT ? 8 : 4, channels = p->shape.channels;
    const int32_t count = (int32_t)p->row_values;
    int32_t *offsets = p->offsets;
    for (int32_t start = 0; start < (int32_t)p->stride; start += size) {
        const int32_t *one = p->one + start, *other = p->other + start;
        int32_t base[8]; /* of each value: what is subtracted from its place in the row */
        if (kind != PIXELS) {
            int32_t low = one[0], high = one[0];
            for (int32_t i = 0; i < size; i++) {
                const int32_t less = one[i] < other[i] ? one[i] : other[i];
                const int32_t more = one[i] < other[i] ? other[i] : one[i];
                low = less < low ? less : low;
                high = more > high ? more : high;
            }
            if (high - low > 15) return 0;
            for (int32_t i = 0; i < size; i++)
                base[i] = low;
            *offsets++ = low;
        } else {
            const int32_t end = start + size < count ? start + size : count;
            const int32_t x = (start < count ? start : count - 1) / channels,
                          last = (end - 1) / channels;
            if (last > x + 1) return 0;
            offsets[0] = p->across.first[x] * channels;
            offsets[1] = p->across.first[last] * channels;
            for (int32_t i = 0; i < size; i++)
                base[i] = start + i < (x + 1) * channels ? offsets[0] : offsets[1] - 8;
            offsets += 2;
        }
        uint8_t *picks =
            p->picks + (size == 8 ? 2 * start : start / 16 * 64 + PLACES[start / 4 % 4]);
        for (int32_t i = 0; i < size; i++) {
            const uint32_t a = (uint32_t)(one[i] - base[i]), b = (uint32_t)(other[i] - base[i]);
            const uint16_t two = (uint16_t)(a | b << 8);
            const uint32_t wide = a | b << 16 | 0x80008000u; /* 0x80 picks a zero */
            if (linear)
                memcpy(picks + 2 * i, &two, 2);
            else
                memcpy(picks + 4 * i, &wide, 4);
        }
    }
    return 1;
}

static ALWAYS_INLINE __m128i load_16(const uint8_t *from) {
    return _mm_loadu_si128((const __m128i *)from);
}

static ALWAYS_INLINE __m128i load_8_and_8(const uint8_t *row, const int32_t *offsets) {
    return _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(row + offsets[0])),
                              _mm_loadl_epi64((const __m128i *)(row + offsets[1])));
}

/* The bytes of groups `i` and `i + step`, in the two halves. */
static ALWAYS_INLINE __m256i load_groups(const uint8_t *row, const int32_t *offsets, int i,
                                         int step, int kind) {
    if (kind != PIXELS)
        return _mm256_set_m128i(load_16(row + offsets[i + step]), load_16(row + offsets[i]));
    return _mm256_set_m128i(load_8_and_8(row, offsets + 2 * (i + step)),
                            load_8_and_8(row, offsets + 2 * i));
}

static ALWAYS_INLINE void across_linear(const plan *p, const uint8_t *row, int16_t *out, int kind) {
    const int32_t *offsets = p->offsets;
    const __m256i *picks = (const __m256i *)p->picks, *lesser = (const __m256i *)p->lesser;
    /* Weights of 8 bits: 64 and 0, 64 and -64. */
    const __m256i first = _mm256_set1_epi16(64), difference = _mm256_set1_epi16(-64 * 256 + 64);
    for (size_t x = 0; x < p->row_values; x += 16, lesser++) {
        __m256i bytes;
        if (kind == EIGHT) {
            bytes = _mm256_shuffle_epi8(load_groups(row, offsets, 0, 1, kind),
                                        _mm256_load_si256(picks));
            offsets += 2, picks += 1;
        } else {
            const __m256i a = load_groups(row, offsets, 0, 2, kind),
                          b = load_groups(row, offsets, 1, 2, kind);
            bytes = _mm256_unpacklo_epi64(_mm256_shuffle_epi8(a, _mm256_load_si256(picks)),
                                          _mm256_shuffle_epi8(b, _mm256_load_si256(picks + 1)));
            offsets += kind == FOUR ? 4 : 8, picks += 2;
        }
        const __m256i more = _mm256_maddubs_epi16(bytes, first);
        const __m256i apart = _mm256_maddubs_epi16(bytes, difference);
        const __m256i step = _mm256_mulhrs_epi16(apart, _mm256_load_si256(lesser));
        _mm256_store_si256((__m256i *)(out + x),
                           _mm256_add_epi16(_mm256_add_epi16(more, more), step));
    }
}

static ALWAYS_INLINE void across_taps(const plan *p, const uint8_t *row, int16_t *out, int32_t taps,
                                      int kind) {
    const int32_t channels = p->shape.channels;
    const int32_t *offsets = p->offsets;
    const __m256i *picks = (const __m256i *)p->picks, *pairs = (const __m256i *)p->pairs;
    const __m256i half = _mm256_set1_epi32(1 << (FIRST_SHIFT - 1));
    for (size_t x = 0; x < p->row_values; x += 16, offsets += kind == FOUR ? 4 : 8, picks += 2) {
        const __m256i pick_a = _mm256_load_si256(picks), pick_b = _mm256_load_si256(picks + 1);
        __m256i a = half, b = half;
        const uint8_t *from = row;
        for (int32_t k = 0; k < taps; k += 2, from += 2 * channels, pairs += 2) {
            const __m256i even =
                _mm256_shuffle_epi8(load_groups(from, offsets, 0, 2, kind), pick_a);
            const __m256i odd = _mm256_shuffle_epi8(load_groups(from, offsets, 1, 2, kind), pick_b);
            a = _mm256_add_epi32(a, _mm256_madd_epi16(even, _mm256_load_si256(pairs)));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(odd, _mm256_load_si256(pairs + 1)));
        }
        a = _mm256_srai_epi32(a, FIRST_SHIFT);
        b = _mm256_srai_epi32(b, FIRST_SHIFT);
        _mm256_store_si256((__m256i *)(out + x), _mm256_packs_epi32(a, b));
    }
}

#define ACROSS(name, call) \
    static void name(const plan *p, const uint8_t *row, int16_t *out) { call; }
ACROSS(linear_eight, across_linear(p, row, out, EIGHT))
ACROSS(linear_four, across_linear(p, row, out, FOUR))
ACROSS(linear_pixels, across_linear(p, row, out, PIXELS))
ACROSS(four_taps_four, across_taps(p, row, out, 4, FOUR))
ACROSS(taps_four, across_taps(p, row, out, p->across.taps, FOUR))
ACROSS(taps_pixels, across_taps(p, row, out, p->across.taps, PIXELS))

static resize_across *choose_across(const plan *p) {
    const int32_t channels = p->shape.channels, taps = p->across.taps;
    if (taps > 2) {
        spread(p, channels, taps);
        if (group(p, FOUR, 0)) return taps == 4 ? four_taps_four : taps_four;
        return group(p, PIXELS, 0) ? taps_pixels : resize_across_portable;
    }
    if (channels == 3)
        spread(p, 3, 2);
    else
        spread(p, channels, 2);
    if (group(p, EIGHT, 1)) return linear_eight;
    if (group(p, FOUR, 1)) return linear_four;
    return group(p, PIXELS, 1) ? linear_pixels : resize_across_portable;
}

/* Sixteen values of the result, as 16 bits. */
static ALWAYS_INLINE __m256i down_linear(const int16_t *more, const int16_t *less, __m256i weight) {
    const __m256i a = _mm256_load_si256((const __m256i *)more);
    const __m256i b = _mm256_load_si256((const __m256i *)less);
    const __m256i value = _mm256_add_epi16(a, _mm256_mulhi_epi16(_mm256_sub_epi16(a, b), weight));
    return _mm256_mulhrs_epi16(
        value, _mm256_set1_epi16(1 << (15 - MIDDLE_BITS))); /* a shift that rounds */
}

static ALWAYS_INLINE __m256i down_taps(const int16_t *const *rows, const int16_t *weights,
                                       int32_t taps, size_t x) {
    __m256i low = _mm256_set1_epi32(1 << (LAST_SHIFT - 1)), high = low;
    for (int32_t k = 0; k < taps; k += 2) {
        int32_t pair;
        memcpy(&pair, weights + k, sizeof pair);
        const __m256i weight = _mm256_set1_epi32(pair);
        const __m256i a = _mm256_load_si256((const __m256i *)(rows[k] + x));
        const __m256i b = _mm256_load_si256((const __m256i *)(rows[k + 1] + x));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weight));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weight));
    }
    return _mm256_packs_epi32(_mm256_srai_epi32(low, LAST_SHIFT),
                              _mm256_srai_epi32(high, LAST_SHIFT));
}

static ALWAYS_INLINE void down_avx2(const int16_t *const *rows, const int16_t *weights,
                                    int32_t taps, size_t count, uint8_t *out) {
    const int swap = weights[0] < weights[1];
    const int16_t *more = rows[swap], *less = rows[!swap];
    const __m256i lesser = _mm256_set1_epi16((short)(-4 * weights[!swap]));
    for (size_t x = 0; x < count; x += 32) { /* of the rows, there are as many to read */
        __m256i a, b;
        if (taps == 2) {
            a = down_linear(more + x, less + x, lesser);
            b = down_linear(more + x + 16, less + x + 16, lesser);
        } else {
            a = down_taps(rows, weights, taps, x);
            b = down_taps(rows, weights, taps, x + 16);
        }
        const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xD8);
        if (count - x >= 32) {
            _mm256_storeu_si256((__m256i *)(out + x), bytes);
        } else { /* what lies behind the row may be another thread's */
            uint8_t rest[32];
            _mm256_storeu_si256((__m256i *)rest, bytes);
            memcpy(out + x, rest, count - x);
        }
    }
}

static void resize_down_avx2(const int16_t *const *rows, const int16_t *weights, int32_t taps,
                             size_t count, uint8_t *out) {
    if (taps == 2)
        down_avx2(rows, weights, 2, count, out);
    else if (taps == 4)
        down_avx2(rows, weights, 4, count, out);
    else
        down_avx2(rows, weights, taps, count, out);
}

FD_END_AVX2
