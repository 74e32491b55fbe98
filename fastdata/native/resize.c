/* Resize 8-bit pixels by a triangle filter, a row at a time, mirrored on the way if asked.

   The filter is two source pixels wide (bilinear), or, antialiased, two pixels of the result: then
   it is that of PIL and of PyTorch's antialiased resize.  Pixels are squares with their centre in
   the middle, and at edges the filter is cut off and its weights are made to sum to one again.

   A row is asked for once, resized horizontally to numbers with 7 more bits, and kept as long as
   output rows need it.  All arithmetic is of integers: every processor makes the same pixels,
   whichever of the ways below it takes.  What a result is, tests/resize_reference.py says in a few
   lines.

   On one core of an EPYC (Zen 4), 200 x 200 x 3 to 224 x 224 takes 18 us, where OpenCV takes 58: 8
   for rows, 6 for columns, and 4 to lay out weights. */

#include "resize.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SIDE 65535

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

static int32_t count_taps(int32_t in, int32_t out, int antialias) {
    const int64_t support = antialias && in > out ? in : out;
    int64_t taps = (2 * support + out - 1) / out;
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

/* Weights are counted in units in which a source pixel is 2 * out wide and one of the result 2 *
   in, so that all centres are whole numbers. */
static void make_filter(filter *f, int32_t in, int32_t out, int antialias, int flip) {
    const int32_t taps = f->taps;
    const int64_t support = 2 * (int64_t)(antialias && in > out ? in : out);
    int64_t begin = 0; /* first position that the filter reaches */
    for (int32_t x = 0; x < out; x++) {
        const int64_t centre = (2 * (int64_t)x + 1) * in;
        while ((2 * begin + 1) * out <= centre - support)
            begin++;
        /* Near the end the taps begin earlier, with weights of zero, so as not to lie beyond it. */
        int64_t first = begin < in - taps ? begin : in - taps;
        if (first < 0) first = 0;
        const int32_t at = flip ? out - 1 - x : x;
        int16_t *weights = f->weights + (size_t)at * (size_t)taps;
        f->first[at] = (int32_t)first;
        const int64_t start = (2 * first + 1) * out - centre;
        if (taps == 2) { /* the same, without the loops' branches, which took a third of the time */
            const uint64_t a = height_at(start, support, 1);
            const uint64_t b = height_at(start + 2 * (int64_t)out, support, first + 1 < in);
            weights[0] = share(a, a + b);
            weights[1] = (int16_t)((1 << WEIGHT_BITS) - weights[0]);
            continue;
        }
        uint64_t sum = 0, reached = 0;
        for (int32_t k = 0; k < taps; k++)
            sum += height_at(start + 2 * (int64_t)k * out, support, first + k < in);
        int16_t before = 0;
        for (int32_t k = 0; k < taps; k++) {
            reached += height_at(start + 2 * (int64_t)k * out, support, first + k < in);
            const int16_t to = share(reached, sum);
            weights[k] = (int16_t)(to - before);
            before = to;
        }
    }
}

/* What is the same for all rows of a picture. */
typedef struct {
    fd_resize_shape shape;
    size_t row_values; /* out_width * channels */
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
    for (int32_t x = 0; x < p->shape.out_width; x++, weights += taps, out += channels) {
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

/* ---- The way of a picture -------------------------------------------------------------------- */

/* The next part of a memory, for `size` bytes at an address that suits vectors; NULL in none. */
static void *take(uint8_t *memory, size_t *used, size_t size) {
    void *part = memory ? memory + *used : NULL;
    *used += (size + 63) / 64 * 64;
    return part;
}

/* Give the plan's parts their places in `memory`, which may be NULL; returns how much they need. */
static size_t lay_out(plan *p, uint8_t *memory) {
    const size_t width = (size_t)p->shape.out_width, height = (size_t)p->shape.out_height;
    const size_t across = (size_t)p->across.taps, down = (size_t)p->down.taps;
    size_t used = 0;
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
    return used;
}

static int make_plan(plan *p, const fd_resize_shape *s, fd_scratch *scratch) {
    p->shape = *s;
    p->row_values = (size_t)s->out_width * (size_t)s->channels;
    p->stride = (p->row_values + 31) / 32 * 32; /* vector code makes up to 32 values at a time */
    p->across.taps = count_taps(s->width, s->out_width, s->antialias);
    p->down.taps = count_taps(s->height, s->out_height, s->antialias);
    if (fd_scratch_reserve(scratch, lay_out(p, NULL) + 63)) return FD_NO_MEMORY;
    lay_out(p, (uint8_t *)(((uintptr_t)scratch->memory + 63) / 64 * 64));
    make_filter(&p->across, s->width, s->out_width, s->antialias, s->flip);
    make_filter(&p->down, s->height, s->out_height, s->antialias, 0);
    return FD_OK;
}

int fd_resize(const fd_resize_shape *shape, fd_row *row, void *source, uint8_t *out,
              fd_scratch *scratch) {
    const fd_resize_shape *s = shape;
    const int32_t sides[] = {s->height, s->width, s->out_height, s->out_width};
    for (int i = 0; i < 4; i++)
        if (sides[i] < 1 || sides[i] > MAX_SIDE) return FD_REFUSED;
    if (s->channels < 1 || s->channels > 4) return FD_REFUSED;
    const int as_wide = s->width == s->out_width && !s->flip;
    if (as_wide && s->height == s->out_height) {
        const size_t bytes = (size_t)s->width * (size_t)s->channels;
        for (int32_t y = 0; y < s->height; y++)
            memcpy(out + (size_t)y * bytes, row(source, y), bytes);
        return FD_OK;
    }
    plan p;
    if (make_plan(&p, s, scratch)) return FD_NO_MEMORY;
    resize_across *across = resize_across_portable;
    resize_down *down = resize_down_portable;
#if FD_HAS_AVX2
    if (fd_may_use_avx2()) {
        if (!as_wide) across = choose_across(&p);
        down = resize_down_avx2;
    }
#endif
    if (as_wide) across = widen;
    const int32_t taps = p.down.taps;
    int32_t next = 0; /* source row that was not asked for yet */
    for (int32_t y = 0; y < s->out_height; y++, out += p.row_values) {
        const int16_t *weights = p.down.weights + (size_t)y * (size_t)taps;
        const int32_t first = p.down.first[y];
        int32_t last = first; /* that has a weight: those behind it may not exist */
        for (int32_t k = 1; k < taps; k++)
            if (weights[k]) last = first + k;
        if (next < first) next = first;
        for (; next <= last; next++)
            across(&p, row(source, next), p.middle + (size_t)(next % taps) * p.stride);
        for (int32_t k = 0; k < taps; k++) {
            const int32_t at = first + k < last ? first + k : last;
            p.rows[k] = p.middle + (size_t)(at % taps) * p.stride;
        }
        down(p.rows, weights, taps, p.row_values, out);
    }
    return FD_OK;
}
