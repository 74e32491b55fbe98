/* Resize 8-bit pixels by a triangle filter, a row at a time, mirrored on the way if asked.

   The filter is two source pixels wide (bilinear), or, antialiased, two pixels of the result: then
   it is that of PIL and of PyTorch's antialiased resize.  Pixels are squares with their centre in
   the middle, and at edges the filter is cut off and its weights are made to sum to one again.  The
   source may be a picture that was decoded at a reduced scale; only a part of the result may be
   wanted, and then only the rows and columns that it is made of are asked for.

   A row is asked for once, resized horizontally to numbers with 7 more bits, and kept as long as
   output rows need it.  All arithmetic is of integers: every processor makes the same pixels,
   whichever of the ways below it takes.  What a result is, tests/resize_reference.py says in a few
   lines.

   On one core of an EPYC (Zen 4), 200 x 200 x 3 to 224 x 224 takes 18 us, where OpenCV takes 58: 8
   for rows, 6 for columns, and 4 to lay out weights, which resize_avx2.h does in 1. */

#include "resize.h"

#include "planes.h"

#include <stdlib.h>
#include <string.h>

#define WEIGHT_BITS 14
#define MIDDLE_BITS 7 /* of numbers between the two directions: 255 << 7 still fits 16 bits */
#define FIRST_SHIFT (WEIGHT_BITS - MIDDLE_BITS)
#define LAST_SHIFT (WEIGHT_BITS + MIDDLE_BITS)

/* ---- Filters --------------------------------------------------------------------------------- */

/* Where the filter lies for each output position: `taps` source positions from `first` on, an even
   number. Weights sum to 1 << WEIGHT_BITS, those beyond the source are zero.

   What is rounded is the weight of all taps up to one, and a tap's is the difference to the one
   before.  So no sum of neighbours is off by more than one, and none is negative.  (Were weights
   rounded each for itself, and the rest given to the largest, it would be twice its due in a
   picture shrunk a thousand times, and less than nothing in one shrunk to 1/20,000.) */
typedef struct {
    int32_t taps;
    int32_t *first;
    int16_t *weights;
} filter;

/* Source pixels that a span touches, the first of them, and how much of the outer two it covers. */
typedef struct {
    int32_t begin, count;
    int32_t first_part, last_part; /* of `factor` units */
} touched;

static touched find_touched(const fd_span *s) {
    const int32_t begin = s->start / s->factor, behind = s->start + s->length,
                  end = (behind + s->factor - 1) / s->factor;
    return (touched){begin, end - begin, (begin + 1) * s->factor - s->start,
                     behind - (end - 1) * s->factor};
}

/* Half the filter's width, in units times 2 * target. */
static int64_t find_support(const fd_span *s, int antialias) {
    const int64_t pixel = (int64_t)s->target * s->factor;
    return 2 * (antialias && s->length > pixel ? s->length : pixel);
}

static int32_t count_taps(const fd_span *s, int antialias) {
    const int64_t pixel = (int64_t)s->target * s->factor;
    const int32_t in = find_touched(s).count;
    int64_t taps = (find_support(s, antialias) + pixel - 1) / pixel;
    if (taps > in) taps = in;
    return (int32_t)(taps + 1) / 2 * 2;
}

/* A part of `sum` in units of 1 << WEIGHT_BITS, rounded.  Dividing 32 bits is several times faster
   on many processors, and a crop of 224 x 224 has 448 of these. */
static inline int16_t share(uint64_t part, uint64_t sum) {
    const uint64_t whole = (part << WEIGHT_BITS) + sum / 2;
    if ((whole | sum) >> 32) return (int16_t)(whole / sum);
    return (int16_t)((uint32_t)whole / (uint32_t)sum);
}

/* The triangle's, at some distance from its centre. */
static inline uint64_t height_at(int64_t distance, int64_t support, int inside) {
    const int64_t left = support - (distance < 0 ? -distance : distance);
    return left > 0 && inside ? (uint64_t)left : 0;
}

/* The weight of source pixel i, `distance` from the centre, of the span's.

   Of a pixel that lies partly outside, the part inside weighs, and the rest of its weight is its
   neighbour's: as if the picture went on as it ends.  Counted whole, it would weigh too much, which
   shows in pictures with a frame; and if the rest were taken away, the picture would be shifted. */
static inline uint64_t weight_of(int64_t i, int64_t distance, int64_t support, int64_t step,
                                 int32_t factor, const touched *t) {
    const uint64_t height = height_at(distance, support, i < t->count);
    if (factor == 1) return height;
    if (t->count == 1) return height * (uint64_t)factor;
    uint64_t weight = height * (uint64_t)(i == 0              ? t->first_part
                                          : i == t->count - 1 ? t->last_part
                                                              : factor);
    if (i == 1)
        weight += height_at(distance - step, support, 1) * (uint64_t)(factor - t->first_part);
    if (i == t->count - 2)
        weight += height_at(distance + step, support, 1) * (uint64_t)(factor - t->last_part);
    return weight;
}

#if FD_HAS_AVX2 && !FD_IS_NEON
static int fill_filter_avx2(filter *f, const fd_span *s, int antialias, int flip);
#endif

/* Weights are counted in units in which a unit of the source is 2 * target wide and a pixel of the
   result 2 * length, so that all centres are whole numbers. */
static void make_filter(filter *f, const fd_span *s, int antialias, int flip) {
#if FD_HAS_AVX2 && !FD_IS_NEON
    if (fd_may_use_avx2() && fill_filter_avx2(f, s, antialias, flip)) return;
#endif
    const int32_t taps = f->taps, factor = s->factor;
    const touched t = find_touched(s);
    const int64_t in = t.count, support = find_support(s, antialias);
    const int64_t step = 2 * (int64_t)s->target * factor; /* from pixel to pixel */
    /* The first pixel's centre, from where the span starts. */
    const int64_t origin =
        ((2 * (int64_t)t.begin + 1) * factor - 2 * (int64_t)s->start) * s->target;
    int64_t begin = 0; /* first position that the filter reaches */
    for (int32_t x = 0; x < s->count; x++) {
        const int64_t centre = (2 * ((int64_t)s->first + x) + 1) * s->length;
        while (origin + begin * step <= centre - support)
            begin++;
        /* Near the end the taps begin earlier, with weights of zero, so as not to lie beyond it. */
        int64_t first = begin < in - taps ? begin : in - taps;
        if (first < 0) first = 0;
        const int32_t at = flip ? s->count - 1 - x : x;
        int16_t *weights = f->weights + (size_t)at * (size_t)taps;
        f->first[at] = (int32_t)first;
        const int64_t start = origin + first * step - centre;
        uint64_t sum = 0, reached = 0;
        for (int32_t k = 0; k < taps; k++)
            sum += weight_of(first + k, start + k * step, support, step, factor, &t);
        int16_t before = 0;
        for (int32_t k = 0; k < taps; k++) {
            reached += weight_of(first + k, start + k * step, support, step, factor, &t);
            const int16_t to = share(reached, sum);
            weights[k] = (int16_t)(to - before);
            before = to;
        }
    }
}

/* Count the filter's positions from the first that it needs, of pixels that a span touches; returns
   that one and how many are needed.  Of taps without a weight none is, `whole` aside. */
static void trim_filter(filter *f, int32_t in, int32_t count, int whole, int32_t *begin,
                        int32_t *needed) {
    int32_t low = in, high = 0;
    for (int32_t x = 0; x < count; x++) {
        const int16_t *weights = f->weights + (size_t)x * (size_t)f->taps;
        int32_t last = f->taps;
        while (!whole && last > 1 && !weights[last - 1])
            last--;
        if (f->first[x] < low) low = f->first[x];
        if (f->first[x] + last > high) high = f->first[x] + last;
    }
    if (high > in) high = in;
    for (int32_t x = 0; x < count; x++)
        f->first[x] -= low;
    *begin = low;
    *needed = high - low;
}

/* What is the same for all rows of a picture. */
typedef struct {
    fd_resize_shape shape;
    int still, as_wide; /* nothing is resized at all, or horizontally */
    size_t row_values;  /* of the result */
    filter across, down;
    int16_t *middle;      /* rows that were resized horizontally, `down.taps` of them in turn */
    size_t stride;        /* between them, in values */
    const int16_t **rows; /* those that an output row is made of */
    /* `across` as the vector code takes it: */
    int32_t *one, *other; /* where each value's two bytes are; of two taps, `one` weighs more */
    int16_t *lesser;      /* with two taps, the lesser weight times -4 */
    uint8_t *pairs;       /* with more, weights two by two */
    int32_t *offsets;     /* where in a row groups' bytes are loaded */
    uint8_t *picks;       /* which of those are each value's two */
    uint8_t *pixels;      /* a row of the result, before it is split into planes */
} plan;

typedef void resize_across(const plan *p, const uint8_t *row, int16_t *out);
typedef void resize_down(const int16_t *const *rows, const int16_t *weights, int32_t taps,
                         size_t count, uint8_t *out);

/* ---- Any processor --------------------------------------------------------------------------- */

/* Inlined with constants for what is most frequent. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE void across_portable(const plan *p, const uint8_t *row, int16_t *out,
                                          int32_t channels, int32_t taps) {
    const int16_t *weights = p->across.weights;
    for (int32_t x = 0; x < p->shape.across.count; x++, weights += taps, out += channels) {
        const uint8_t *from = row + (ptrdiff_t)p->across.first[x] * channels;
        for (int32_t c = 0; c < channels; c++) {
            int32_t sum = 1 << (FIRST_SHIFT - 1);
            for (int32_t k = 0; k < taps; k++)
                sum += weights[k] * from[k * channels + c];
            out[c] = (int16_t)(sum >> FIRST_SHIFT);
        }
    }
}

static void resize_across_portable(const plan *p, const uint8_t *row, int16_t *out) {
    const int32_t channels = p->shape.channels, taps = p->across.taps;
    if (channels == 3 && taps == 2)
        across_portable(p, row, out, 3, 2);
    else if (channels == 3 && taps == 4)
        across_portable(p, row, out, 3, 4);
    else
        across_portable(p, row, out, channels, taps);
}

/* Where nothing is resized horizontally. */
static void widen(const plan *p, const uint8_t *row, int16_t *out) {
    for (size_t x = 0; x < p->row_values; x++)
        out[x] = (int16_t)(row[x] << MIDDLE_BITS);
}

static ALWAYS_INLINE void down_portable(const int16_t *const *rows, const int16_t *weights,
                                        int32_t taps, size_t count, uint8_t *restrict out) {
    for (size_t x = 0; x < count; x++) {
        int32_t sum = 1 << (LAST_SHIFT - 1);
        for (int32_t k = 0; k < taps; k++)
            sum += weights[k] * rows[k][x];
        out[x] = (uint8_t)(sum >> LAST_SHIFT);
    }
}

static void resize_down_portable(const int16_t *const *rows, const int16_t *weights, int32_t taps,
                                 size_t count, uint8_t *out) {
    if (taps == 2)
        down_portable(rows, weights, 2, count, out);
    else if (taps == 4)
        down_portable(rows, weights, 4, count, out);
    else
        down_portable(rows, weights, taps, count, out);
}

#if FD_HAS_AVX2
#include "resize_avx2.h"
#endif
#if FD_HAS_AVX512
#include "resize_avx512.h"
#endif

/* ---- The way of a picture -------------------------------------------------------------------- */

/* The next part of a memory, for `size` bytes at an address that suits vectors; NULL in none. */
static void *take(uint8_t *memory, size_t *used, size_t size) {
    void *part = memory ? memory + *used : NULL;
    *used += (size + 63) / 64 * 64;
    return part;
}

/* Give the plan's parts their places behind it, in `memory`, which may be NULL; returns how much
   they need. */
static size_t lay_out(plan *p, uint8_t *memory) {
    const size_t width = (size_t)p->shape.across.count, height = (size_t)p->shape.down.count;
    const size_t across = (size_t)p->across.taps, down = (size_t)p->down.taps;
    size_t used = 0;
    take(memory, &used, sizeof *p);
    p->rows = take(memory, &used, down * sizeof *p->rows);
    p->middle = take(memory, &used, down * p->stride * sizeof *p->middle);
    p->offsets = take(memory, &used, p->stride / 2 * sizeof *p->offsets);
    p->one = take(memory, &used, p->stride * sizeof *p->one);
    p->other = take(memory, &used, p->stride * sizeof *p->other);
    p->lesser = take(memory, &used, p->stride * sizeof *p->lesser);
    p->picks = take(memory, &used, p->stride * 4);
    p->pairs = take(memory, &used, p->stride * across * 2);
    p->across.first = take(memory, &used, width * sizeof *p->across.first);
    p->across.weights = take(memory, &used, width * across * sizeof *p->across.weights);
    p->down.first = take(memory, &used, height * sizeof *p->down.first);
    p->down.weights = take(memory, &used, height * down * sizeof *p->down.weights);
    p->pixels = take(memory, &used, p->shape.planar ? p->stride : 0);
    return used;
}

/* Where the plan lies in its memory. */
static plan *find_plan(const fd_scratch *scratch) {
    return (plan *)(((uintptr_t)scratch->memory + 63) / 64 * 64);
}

static int is_span(const fd_span *s) {
    return s->start >= 0 && s->start <= FD_MAX_SIDE && s->length >= 1 && s->length <= FD_MAX_SIDE &&
           s->factor >= 1 && s->factor <= 8 && s->target >= 1 && s->target <= FD_MAX_SIDE &&
           s->first >= 0 && s->count >= 1 && s->count <= s->target - s->first;
}

int fd_resize_plan(const fd_resize_shape *shape, fd_scratch *scratch, fd_needed *needed) {
    const fd_resize_shape *s = shape;
    if (!is_span(&s->down) || !is_span(&s->across)) return FD_REFUSED;
    if (s->channels < 1 || s->channels > 4) return FD_REFUSED;
    const int as_high = s->down.factor == 1 && s->down.length == s->down.target;
    plan made = {.shape = *s};
    made.as_wide = s->across.factor == 1 && s->across.length == s->across.target && !s->flip;
    made.still = made.as_wide && as_high;
    made.row_values = (size_t)s->across.count * (size_t)s->channels;
    made.stride =
        (made.row_values + 31) / 32 * 32; /* vector code makes up to 32 values at a time */
    made.across.taps = count_taps(&s->across, s->antialias);
    made.down.taps = count_taps(&s->down, s->antialias);
    if (fd_scratch_reserve(scratch, (made.still ? sizeof made : lay_out(&made, NULL)) + 63))
        return FD_NO_MEMORY;
    plan *p = find_plan(scratch);
    *p = made;
    if (!made.still) {
        lay_out(p, (uint8_t *)p);
        make_filter(&p->down, &s->down, s->antialias, 0);
    }
    *needed = (fd_needed){s->down.start + s->down.first, s->across.start + s->across.first,
                          s->down.count, s->across.count};
    if (!made.still) {
        const touched t = find_touched(&s->down);
        trim_filter(&p->down, t.count, s->down.count, 0, &needed->top, &needed->rows);
        needed->top += t.begin;
    }
    if (!made.as_wide) {
        const touched t = find_touched(&s->across);
        make_filter(&p->across, &s->across, s->antialias, s->flip);
        trim_filter(&p->across, t.count, s->across.count, 1, &needed->left, &needed->columns);
        needed->left += t.begin;
    }
    return FD_OK;
}

void fd_resize(fd_scratch *scratch, fd_row *row, void *source, uint8_t *out) {
    plan *p = find_plan(scratch);
    const fd_span *s = &p->shape.down;
    const size_t width = (size_t)p->shape.across.count, plane = (size_t)s->count * width;
    const int32_t channels = p->shape.channels, planar = p->shape.planar;
    if (p->still) {
        for (int32_t y = 0; y < s->count; y++) {
            const uint8_t *pixels = row(source, y);
            if (planar)
                fd_split(pixels, width, channels, out + (size_t)y * width, plane);
            else
                memcpy(out + (size_t)y * p->row_values, pixels, p->row_values);
        }
        return;
    }
    resize_across *across = resize_across_portable;
    resize_down *down = resize_down_portable;
#if FD_HAS_AVX2
    if (fd_may_use_avx2()) {
        if (!p->as_wide) across = choose_across(p);
        down = resize_down_avx2;
    }
#endif
#if FD_HAS_AVX512
    if (fd_may_use_avx512()) {
        if (across == linear_eight) across = linear_eight_avx512;
        if (across == four_taps_four) across = four_taps_four_avx512;
        if (across == taps_four) across = taps_four_avx512;
        down = resize_down_avx512;
    }
#endif
    if (p->as_wide) across = widen;
    const int32_t taps = p->down.taps;
    int32_t next = 0; /* source row that was not asked for yet */
    for (int32_t y = 0; y < s->count; y++, out += planar ? width : p->row_values) {
        const int16_t *weights = p->down.weights + (size_t)y * (size_t)taps;
        const int32_t first = p->down.first[y];
        int32_t last = first; /* that has a weight: those behind it may not exist */
        for (int32_t k = 1; k < taps; k++)
            if (weights[k]) last = first + k;
        if (next < first) next = first;
        for (; next <= last; next++)
            across(p, row(source, next), p->middle + (size_t)(next % taps) * p->stride);
        for (int32_t k = 0; k < taps; k++) {
            const int32_t at = first + k < last ? first + k : last;
            p->rows[k] = p->middle + (size_t)(at % taps) * p->stride;
        }
        down(p->rows, weights, taps, p->row_values, planar ? p->pixels : out);
        if (planar) fd_split(p->pixels, width, channels, out, plane);
    }
}
