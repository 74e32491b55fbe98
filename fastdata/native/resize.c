/* Resize 8-bit pixels by a triangle filter, a row at a time, mirrored on the way if asked.

   The filter is two source pixels wide (bilinear), or, antialiased, two pixels of the result: then it is
   that of PIL and of PyTorch's antialiased resize.  Pixels are squares with their centre in the middle,
   and at edges the filter is cut off and its weights are made to sum to one again.

   A row is asked for once, resized horizontally to numbers with 7 more bits, and kept as long as output
   rows need it.  All arithmetic is of integers: every processor makes the same pixels. */

#include "resize.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SIDE 65535

#define WEIGHT_BITS 14
#define MIDDLE_BITS 7 /* of numbers between the two directions: 255 << 7 still fits 16 bits */
#define FIRST_SHIFT (WEIGHT_BITS - MIDDLE_BITS)
#define LAST_SHIFT (WEIGHT_BITS + MIDDLE_BITS)

/* Where the filter lies for each output position: `taps` source positions from `first` on, an even number.
   Weights sum to 1 << WEIGHT_BITS, those beyond the source are zero. */
typedef struct {
    int32_t taps;
    int32_t *first;
    int16_t *weights;
} filter;

static int32_t count_taps(int32_t in, int32_t out, int antialias) {
    int32_t support = antialias && in > out ? in : out;
    int64_t taps = (2 * (int64_t)support + out - 1) / out;
    if (taps > in) taps = in;
    return (int32_t)(taps + 1) / 2 * 2;
}

/* Weights are counted in units in which a source pixel is 2 * out wide and one of the result 2 * in, so that
   all centres are whole numbers. */
static void make_filter(filter *f, int32_t in, int32_t out, int antialias, int flip) {
    const int64_t support = 2 * (int64_t)(antialias && in > out ? in : out);
    int64_t from = 0;
    for (int32_t x = 0; x < out; x++) {
        const int64_t centre = (2 * (int64_t)x + 1) * in;
        while ((2 * from + 1) * out <= centre - support) from++;
        /* Near the end the taps begin earlier, with weights of zero, so as not to lie beyond it. */
        int64_t first = from < in - f->taps ? from : in - f->taps;
        if (first < 0) first = 0;
        const int32_t at = flip ? out - 1 - x : x;
        int16_t *weights = f->weights + (size_t)at * (size_t)f->taps;
        f->first[at] = (int32_t)first;
        uint64_t sum = 0, most = 0;
        int32_t largest = 0;
        for (int pass = 0; pass < 2; pass++) {
            int32_t rest = 1 << WEIGHT_BITS;
            for (int32_t k = 0; k < f->taps; k++) {
                int64_t distance = (2 * (first + k) + 1) * out - centre;
                int64_t left = support - (distance < 0 ? -distance : distance);
                uint64_t weight = left > 0 && first + k < in ? (uint64_t)left : 0;
                if (pass == 0) {
                    sum += weight;
                    if (weight > most) {
                        most = weight;
                        largest = k;
                    }
                } else if (k != largest) {
                    weights[k] = (int16_t)(((weight << WEIGHT_BITS) + sum / 2) / sum);
                    rest -= weights[k];
                }
            }
            if (pass) weights[largest] = (int16_t)rest; /* what is lost by rounding is the largest's */
        }
    }
}

typedef struct {
    fd_resize_shape shape;
    filter across, down;
    void *spread;    /* weights of `across` as the vector code takes them */
    int16_t *middle; /* rows that were resized horizontally, `down.taps` of them in turn */
    size_t middle_stride;
} plan;

/* ---- Any processor --------------------------------------------------------------------------- */

static void resize_across_portable(const plan *p, const uint8_t *row, int16_t *out) {
    const int32_t channels = p->shape.channels, taps = p->across.taps;
    for (int32_t x = 0; x < p->shape.out_width; x++) {
        const uint8_t *from = row + (size_t)p->across.first[x] * (size_t)channels;
        const int16_t *weights = p->across.weights + (size_t)x * (size_t)taps;
        for (int32_t c = 0; c < channels; c++) {
            int32_t sum = 1 << (FIRST_SHIFT - 1);
            for (int32_t k = 0; k < taps; k++)
                if (weights[k]) sum += weights[k] * from[k * channels + c];
            *out++ = (int16_t)(sum >> FIRST_SHIFT);
        }
    }
}

static void resize_down_portable(int16_t *const *rows, const int16_t *weights, int32_t taps, size_t first,
                                 size_t count, uint8_t *out) {
    for (size_t x = first; x < count; x++) {
        int32_t sum = 1 << (LAST_SHIFT - 1);
        for (int32_t k = 0; k < taps; k++) sum += weights[k] * rows[k][x];
        out[x] = (uint8_t)(sum >> LAST_SHIFT);
    }
}

/* ---- AVX2 ------------------------------------------------------------------------------------ */

#if FD_HAS_AVX2
#include <immintrin.h>
FD_BEGIN_AVX2

/* One pixel takes half a vector: weights of two taps, again for each of up to four channels.
   Of four pixels, the first and third come before the second and fourth, as they leave packing. */
static void spread_weights(const plan *p) {
    const int32_t taps = p->across.taps, width = p->shape.out_width;
    int32_t *spread = p->spread;
    for (int32_t x = 0; x < width; x += 4) {
        for (int32_t k = 0; k < taps; k += 2) {
            static const int order[4] = {0, 2, 1, 3};
            for (int i = 0; i < 4; i++, spread += 4) {
                int32_t at = x + order[i] < width ? x + order[i] : width - 1, two;
                memcpy(&two, p->across.weights + (size_t)at * (size_t)taps + k, 4);
                _mm_storeu_si128((__m128i *)spread, _mm_set1_epi32(two));
            }
        }
    }
}

static inline __m256i two_pixels(const uint8_t *one, const uint8_t *other) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)one)),
                                   _mm_loadu_si128((const __m128i *)other), 1);
}

/* Inlined below with numbers for what is most frequent, which takes 40% off it. */
static inline __attribute__((always_inline)) void across(const plan *p, const uint8_t *row, int16_t *out,
                                                         const int32_t n, const int32_t taps) {
    const int32_t width = p->shape.out_width;
    const int32_t *first = p->across.first;
    const __m256i *weights = p->spread;
    const __m256i half = _mm256_set1_epi32(1 << (FIRST_SHIFT - 1));
    /* Bytes of two neighbouring pixels to pairs of 16 bits, a pair for each channel; and the
       channels of two pixels, each in the place of four, side by side. */
    int8_t pairs[16], compact[16];
    memset(pairs, -1, 16);
    memset(compact, -1, 16);
    for (int c = 0; c < n; c++) {
        pairs[4 * c] = (int8_t)c;
        pairs[4 * c + 2] = (int8_t)(c + n);
        for (int byte = 0; byte < 2; byte++) {
            compact[2 * c + byte] = (int8_t)(2 * c + byte);
            compact[2 * (n + c) + byte] = (int8_t)(8 + 2 * c + byte);
        }
    }
    const __m256i to_pairs = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)pairs));
    const __m256i to_compact = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)compact));
    for (int32_t x = 0; x < width; x += 4, out += 4 * n) {
        const uint8_t *from[4];
        for (int i = 0; i < 4; i++) from[i] = row + (ptrdiff_t)first[x + i] * n;
        __m256i even = half, odd = half;
        for (int32_t k = 0; k < taps; k += 2, weights += 2) {
            const ptrdiff_t at = (ptrdiff_t)k * n;
            __m256i a = _mm256_shuffle_epi8(two_pixels(from[0] + at, from[2] + at), to_pairs);
            __m256i b = _mm256_shuffle_epi8(two_pixels(from[1] + at, from[3] + at), to_pairs);
            even = _mm256_add_epi32(even, _mm256_madd_epi16(a, _mm256_loadu_si256(weights)));
            odd = _mm256_add_epi32(odd, _mm256_madd_epi16(b, _mm256_loadu_si256(weights + 1)));
        }
        __m256i four = _mm256_packs_epi32(_mm256_srai_epi32(even, FIRST_SHIFT), _mm256_srai_epi32(odd, FIRST_SHIFT));
        four = _mm256_shuffle_epi8(four, to_compact);
        _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(four));
        _mm_storeu_si128((__m128i *)(out + 2 * n), _mm256_extracti128_si256(four, 1));
    }
}

static void resize_across_avx2(const plan *p, const uint8_t *row, int16_t *out) {
    const int32_t n = p->shape.channels, taps = p->across.taps;
    if (n == 3 && taps == 2) across(p, row, out, 3, 2);
    else if (n == 3 && taps == 4) across(p, row, out, 3, 4);
    else across(p, row, out, n, taps);
}

/* `count` numbers, as far as whole vectors go; returns how many were made. */
static size_t resize_down_avx2(int16_t *const *rows, const int16_t *weights, int32_t taps, size_t count,
                               uint8_t *out) {
    const __m256i half = _mm256_set1_epi32(1 << (LAST_SHIFT - 1));
    size_t x = 0;
    for (; x + 32 <= count; x += 32) {
        __m256i sums[4] = {half, half, half, half};
        for (int32_t k = 0; k < taps; k += 2) {
            int32_t two;
            memcpy(&two, weights + k, 4);
            const __m256i weight = _mm256_set1_epi32(two);
            for (int i = 0; i < 2; i++) {
                __m256i a = _mm256_loadu_si256((const __m256i *)(rows[k] + x + 16 * i));
                __m256i b = _mm256_loadu_si256((const __m256i *)(rows[k + 1] + x + 16 * i));
                sums[2 * i] = _mm256_add_epi32(sums[2 * i], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weight));
                sums[2 * i + 1] = _mm256_add_epi32(sums[2 * i + 1], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weight));
            }
        }
        for (int i = 0; i < 4; i++) sums[i] = _mm256_srai_epi32(sums[i], LAST_SHIFT);
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
        _mm256_storeu_si256((__m256i *)(out + x), _mm256_permute4x64_epi64(bytes, 0xD8));
    }
    return x;
}

FD_END_AVX2
#endif

/* ---- The way of a picture --------------------------------------------------------------------- */

static int make_plan(plan *p, const fd_resize_shape *s, fd_scratch *scratch) {
    p->shape = *s;
    p->across.taps = count_taps(s->width, s->out_width, s->antialias);
    p->down.taps = count_taps(s->height, s->out_height, s->antialias);
    /* Four pixels are made at a time, so that there are a few more than are used. */
    const size_t width = ((size_t)s->out_width + 3) / 4 * 4, height = (size_t)s->out_height;
    const size_t across = (size_t)p->across.taps, down = (size_t)p->down.taps;
    p->middle_stride = width * (size_t)s->channels + 16;
    const size_t sizes[] = {
        width * across * 8,                         /* spread */
        p->middle_stride * down * sizeof(int16_t),  /* middle */
        width * sizeof(int32_t),                    /* across.first */
        height * sizeof(int32_t),                   /* down.first */
        width * across * sizeof(int16_t),           /* across.weights */
        height * down * sizeof(int16_t),            /* down.weights */
    };
    size_t total = 64;
    for (int i = 0; i < 6; i++) total += (sizes[i] + 63) / 64 * 64;
    if (fd_scratch_reserve(scratch, total)) return FD_NO_MEMORY;
    uint8_t *at = scratch->memory;
    void *parts[6];
    for (int i = 0; i < 6; i++) {
        parts[i] = at;
        at += (sizes[i] + 63) / 64 * 64;
    }
    p->spread = parts[0];
    p->middle = parts[1];
    p->across.first = parts[2];
    p->down.first = parts[3];
    p->across.weights = parts[4];
    p->down.weights = parts[5];
    make_filter(&p->across, s->width, s->out_width, s->antialias, s->flip);
    make_filter(&p->down, s->height, s->out_height, s->antialias, 0);
    for (size_t x = (size_t)s->out_width; x < width; x++) p->across.first[x] = p->across.first[x - 1];
    return FD_OK;
}

int fd_resize(const fd_resize_shape *shape, fd_row *row, void *source, uint8_t *out, fd_scratch *scratch) {
    const fd_resize_shape *s = shape;
    const int32_t sides[] = {s->height, s->width, s->out_height, s->out_width};
    for (int i = 0; i < 4; i++)
        if (sides[i] < 1 || sides[i] > MAX_SIDE) return FD_REFUSED;
    if (s->channels < 1 || s->channels > 4) return FD_REFUSED;
    const size_t row_bytes = (size_t)s->out_width * (size_t)s->channels;
    if (s->height == s->out_height && s->width == s->out_width && !s->flip) {
        for (int32_t y = 0; y < s->height; y++, out += row_bytes) memcpy(out, row(source, y), row_bytes);
        return FD_OK;
    }
    plan p;
    if (make_plan(&p, s, scratch)) return FD_NO_MEMORY;
    const int avx2 = fd_may_use_avx2() && s->channels > 1;
#if FD_HAS_AVX2
    if (avx2) spread_weights(&p);
#endif
    const int32_t taps = p.down.taps;
    int32_t next = 0; /* source row that was not asked for yet */
    int16_t *local[8], **rows = taps <= 8 ? local : malloc((size_t)taps * sizeof *rows);
    if (!rows) return FD_NO_MEMORY;
    for (int32_t y = 0; y < s->out_height; y++, out += row_bytes) {
        const int16_t *weights = p.down.weights + (size_t)y * (size_t)taps;
        int32_t first = p.down.first[y], last = first;
        for (int32_t k = 0; k < taps; k++)
            if (weights[k]) last = first + k;
        for (next = next > first ? next : first; next <= last; next++) {
            int16_t *middle = p.middle + (size_t)(next % taps) * p.middle_stride;
            const uint8_t *pixels = row(source, next);
#if FD_HAS_AVX2
            if (avx2) {
                resize_across_avx2(&p, pixels, middle);
                continue;
            }
#endif
            resize_across_portable(&p, pixels, middle);
        }
        for (int32_t k = 0; k < taps; k++) {
            int32_t at = first + k < last ? first + k : last;
            rows[k] = p.middle + (size_t)(at % taps) * p.middle_stride;
        }
        size_t done = 0;
#if FD_HAS_AVX2
        if (fd_may_use_avx2()) done = resize_down_avx2(rows, weights, taps, row_bytes, out);
#endif
        resize_down_portable(rows, weights, taps, done, row_bytes, out);
    }
    if (rows != local) free(rows);
    return FD_OK;
}
