/* The way of many crops: stored bytes -> window -> resize -> flip -> their places in a batch.

   One call takes all crops of a task, so that what is around them is paid once, and no lock of
   Python's is held meanwhile.  A crop that is refused (`status`) has undefined pixels; the others
   do not mind. */

#include "fastdata.h"
#include "jpeg.h"
#include "jpeg_write.h"
#include "planes.h"
#include "resize.h"

#include <stdlib.h>
#include <string.h>

/* Raised when anything that Python relies on changes: fastdata/native/library.py has it too. */
#define VERSION 8

enum { RAW = 0, JPEG = 1 };

/* One crop; fastdata/native/library.py has the same as a NumPy dtype, and says what fields mean. */
typedef struct {
    const uint8_t *data; /* stored bytes */
    uint64_t size;
    int32_t codec;
    int32_t height, width;               /* of the whole image */
    int32_t factor;                      /* by how much pixels are reduced: 1, 2, 4 or 8 */
    int32_t top, left, rows, columns;    /* the window, inside the image, which is resized */
    int32_t target_rows, target_columns; /* to this size; 0: to that of the output */
    int32_t part_top, part_left;         /* where in that size the output begins */
    int32_t antialias;
    int32_t flip;
    int32_t status; /* answer: FD_OK, FD_REFUSED or FD_NO_MEMORY */
} fd_crop;

FD_EXPORT int fd_version(void) { return VERSION; }

/* Whether this processor has what makes the library faster than others. */
FD_EXPORT int fd_is_fast(void) { return fd_may_use_avx2(); }

int fd_scratch_reserve(fd_scratch *scratch, size_t size) {
    if (size <= scratch->size) return FD_OK;
    free(scratch->memory);
    scratch->memory = malloc(size);
    scratch->size = scratch->memory ? size : 0;
    return scratch->memory ? FD_OK : FD_NO_MEMORY;
}

/* ---- Processors ------------------------------------------------------------------------------ */

static int portable_only, avx2_only;

/* Have only some of the code run, for tests: 1: that for any processor, 2: that for AVX2. */
FD_EXPORT void fd_use_portable(int only) {
    portable_only = only == 1;
    avx2_only = only == 2;
}

int fd_may_use_avx2(void) {
#if FD_IS_NEON
    return !portable_only;
#elif FD_HAS_AVX2
    return !portable_only && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
#else
    return 0;
#endif
}

int fd_may_use_avx512(void) {
#if FD_HAS_AVX512
    /* VBMI2 is not used: it is what processors lack that lower their clock for wide vectors. */
    return !avx2_only && fd_may_use_avx2() && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vbmi2");
#else
    return 0;
#endif
}

/* Copy what will not be read again soon.

   Written past the cache, as a batch of 38 MB leaves it before it is read: otherwise every line
   is read from memory before it is overwritten, a third of all that is moved.  Not on AArch64,
   whose processors see by themselves that whole lines are overwritten. */
#define STREAM_FROM 16384

#if FD_HAS_AVX2 && !FD_IS_NEON
FD_BEGIN_AVX2
static void stream_avx2(uint8_t *out, const uint8_t *in, size_t length) {
    size_t head = (32 - ((uintptr_t)out & 31)) & 31;
    memcpy(out, in, head);
    size_t at = head;
    for (; at + 128 <= length; at += 128) {
        for (int i = 0; i < 128; i += 32)
            _mm256_stream_si256((__m256i *)(out + at + i),
                                _mm256_loadu_si256((const __m256i *)(in + at + i)));
    }
    memcpy(out + at, in + at, length - at);
    _mm_sfence();
}
FD_END_AVX2
#endif

static void fd_copy(uint8_t *out, const uint8_t *in, size_t length) {
#if FD_HAS_AVX2 && !FD_IS_NEON
    if (length >= STREAM_FROM && fd_may_use_avx2()) {
        stream_avx2(out, in, length);
        return;
    }
#endif
    memcpy(out, in, length);
}

/* ---- Raw images ------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *first; /* first pixel of the window */
    const uint8_t *end;   /* of the stored bytes */
    size_t stride, row_bytes;
    uint8_t *last; /* for rows so near the end that nothing may be read behind them */
} raw_window;

#if FD_HAS_AVX2
FD_BEGIN_AVX2
/* Five pixels of three bytes at a time, as long as a sixth is left, for sixteen bytes are moved;
   returns how many were. */
static size_t mirror_rgb_avx2(const uint8_t *last, size_t count, uint8_t *out) {
    const __m128i opposite = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, -1);
    size_t done = 0;
    for (; count - done >= 6; done += 5) {
        const __m128i five = _mm_loadu_si128((const __m128i *)(last - 3 * done - 13));
        _mm_storeu_si128((__m128i *)(out + 3 * done), _mm_shuffle_epi8(five, opposite));
    }
    return done;
}
FD_END_AVX2
#endif

/* Copy pixels in opposite order. */
static void mirror(const uint8_t *in, size_t count, int32_t channels, uint8_t *out) {
    const uint8_t *last = in + (count - 1) * (size_t)channels;
    size_t done = 0;
#if FD_HAS_AVX2
    if (channels == 3 && fd_may_use_avx2()) done = mirror_rgb_avx2(last, count, out);
#endif
    last -= done * (size_t)channels;
    out += done * (size_t)channels;
    for (; done < count; done++, last -= channels, out += channels)
        for (int32_t c = 0; c < channels; c++)
            out[c] = last[c];
}

/* Rows of a window lie apart, often each in a page of its own, where processors do not look
   ahead. */
#define ROWS_AHEAD 8

static void prefetch_rows(const uint8_t *first, int32_t count, size_t stride, size_t bytes) {
    for (int32_t y = 0; y < count; y++, first += stride)
        for (size_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(first + at);
}

/* A window that is not resized may reach beyond the image, where it is zero.  A row is put together
   in `pixels`, if it is to be split into planes. */
static int copy_window(const fd_crop *crop, int32_t channels, uint8_t *out, uint8_t *pixels) {
    const size_t n = (size_t)channels, stride = (size_t)crop->width * n,
                 row_bytes = (size_t)crop->columns * n;
    const int64_t left = crop->left, right = left + crop->columns;
    const int32_t from = left < 0 ? 0 : left > crop->width ? crop->width : (int32_t)left;
    const int32_t to = right > crop->width ? crop->width : right < from ? from : (int32_t)right;
    const size_t before = (size_t)(from - left) * n, inside = (size_t)(to - from) * n;
    const size_t width = (size_t)crop->columns, plane = (size_t)crop->rows * width;
    for (int32_t y = 0; y < crop->rows; y++, out += pixels ? width : row_bytes) {
        const int64_t source_y = (int64_t)crop->top + y;
        uint8_t *row = pixels ? pixels : out;
        if (source_y < 0 || source_y >= crop->height || !inside) {
            memset(row, 0, row_bytes);
        } else {
            const uint8_t *in = crop->data + (size_t)source_y * stride + (size_t)from * n;
            prefetch_rows(in + ROWS_AHEAD * stride, 1, stride, inside);
            if (pixels && inside == row_bytes && !crop->flip) {
                fd_split(in, width, channels, out, plane);
                continue;
            }
            /* Mirrored, what was before is behind. */
            const size_t lead = crop->flip ? row_bytes - before - inside : before;
            memset(row, 0, lead);
            if (crop->flip)
                mirror(in, inside / n, channels, row + lead);
            else
                memcpy(row + lead, in, inside);
            memset(row + lead + inside, 0, row_bytes - lead - inside);
        }
        if (pixels) fd_split(pixels, width, channels, out, plane);
    }
    return FD_OK;
}

static const uint8_t *raw_row(void *source, int32_t y) {
    raw_window *raw = source;
    const uint8_t *row = raw->first + (size_t)y * raw->stride;
    prefetch_rows(row + ROWS_AHEAD * raw->stride, 1, raw->stride, raw->row_bytes);
    if ((size_t)(raw->end - row) >= raw->row_bytes + FD_ROW_PADDING) return row;
    return memcpy(raw->last, row, raw->row_bytes);
}

/* ---- Crops ----------------------------------------------------------------------------------- */

typedef struct {
    fd_jpeg *jpeg;
    fd_scratch resizing, row;
} workshop;

/* Whether a window is inside an image. */
static int is_inside(const fd_crop *crop) {
    return crop->height >= 1 && crop->width >= 1 && crop->rows >= 1 && crop->columns >= 1 &&
           crop->top >= 0 && crop->left >= 0 && crop->rows <= crop->height - crop->top &&
           crop->columns <= crop->width - crop->left;
}

/* What is done to a window; FD_REFUSED for one that is not inside its image. */
static int shape_of(const fd_crop *crop, int32_t out_height, int32_t out_width, int32_t channels,
                    int32_t planar, fd_resize_shape *shape) {
    const int32_t factor = crop->factor;
    if (factor != 1 && factor != 2 && factor != 4 && factor != 8) return FD_REFUSED;
    if (!is_inside(crop) || crop->height > FD_MAX_SIDE || crop->width > FD_MAX_SIDE)
        return FD_REFUSED;
    *shape = (fd_resize_shape){
        .down = {crop->top, crop->rows, factor, crop->target_rows ? crop->target_rows : out_height,
                 crop->part_top, out_height},
        .across = {crop->left, crop->columns, factor,
                   crop->target_columns ? crop->target_columns : out_width, crop->part_left,
                   out_width},
        .channels = channels,
        .antialias = crop->antialias,
        .flip = crop->flip,
        .planar = planar,
    };
    if (factor == 1 || crop->antialias) return FD_OK;
    /* The reduced pixels that the window touches, as they are. */
    fd_span *spans[2] = {&shape->down, &shape->across};
    for (int i = 0; i < 2; i++) {
        fd_span *s = spans[i];
        const int32_t end = (s->start + s->length + factor - 1) / factor;
        s->start /= factor;
        s->length = end - s->start;
        s->factor = 1;
        if (s->length != s->target) return FD_REFUSED;
    }
    return FD_OK;
}

static int render(workshop *shop, const fd_crop *crop, uint8_t *out, int32_t out_height,
                  int32_t out_width, int32_t channels, int32_t planar) {
    if (crop->codec == RAW && crop->factor == 1 && crop->rows == out_height &&
        crop->columns == out_width && !crop->target_rows && !crop->target_columns) {
        if (crop->height < 1 || crop->width < 1 ||
            crop->size != (size_t)crop->height * (size_t)crop->width * (size_t)channels)
            return FD_REFUSED;
        if (planar && fd_scratch_reserve(&shop->row, (size_t)out_width * (size_t)channels))
            return FD_NO_MEMORY;
        return copy_window(crop, channels, out, planar ? shop->row.memory : NULL);
    }
    fd_resize_shape shape;
    fd_needed needed;
    int status = shape_of(crop, out_height, out_width, channels, planar, &shape);
    if (status == FD_OK) status = fd_resize_plan(&shape, &shop->resizing, &needed);
    if (status) return status;
    if (crop->codec == JPEG) {
        if (!shop->jpeg && !(shop->jpeg = fd_jpeg_new())) return FD_NO_MEMORY;
        status =
            fd_jpeg_open(shop->jpeg, crop->data, crop->size, crop->height, crop->width, channels,
                         crop->factor, needed.top, needed.left, needed.rows, needed.columns);
        if (status) return status;
        fd_resize(&shop->resizing, fd_jpeg_row, shop->jpeg, out);
        return FD_OK;
    }
    if (crop->codec != RAW) return FD_REFUSED;
    const int32_t height = (crop->height + crop->factor - 1) / crop->factor,
                  width = (crop->width + crop->factor - 1) / crop->factor;
    raw_window raw = {.stride = (size_t)width * (size_t)channels};
    if (crop->size != raw.stride * (size_t)height) return FD_REFUSED;
    raw.row_bytes = (size_t)needed.columns * (size_t)channels;
    raw.first =
        crop->data + (size_t)needed.top * raw.stride + (size_t)needed.left * (size_t)channels;
    raw.end = crop->data + crop->size;
    if (fd_scratch_reserve(&shop->row, raw.row_bytes + FD_ROW_PADDING)) return FD_NO_MEMORY;
    raw.last = shop->row.memory;
    fd_resize(&shop->resizing, raw_row, &raw, out);
    return FD_OK;
}

/* Make crops of one size, one behind the other in `out`: each out_height x out_width x channels, or,
   if `planar`, channels x out_height x out_width. */
FD_EXPORT void fd_render_crops(fd_crop *crops, int64_t count, uint8_t *out, int32_t out_height,
                               int32_t out_width, int32_t channels, int32_t planar) {
    workshop shop = {0};
    size_t bytes = (size_t)out_height * (size_t)out_width * (size_t)channels;
    for (int64_t i = 0; i < count; i++, out += bytes) {
        const fd_crop *next = &crops[i + 1];
        if (i + 1 < count && next->codec == RAW && next->top >= 0 && next->left >= 0 &&
            next->rows >= ROWS_AHEAD) {
            const size_t stride = (size_t)next->width * (size_t)channels;
            prefetch_rows(next->data + (size_t)next->top * stride +
                              (size_t)next->left * (size_t)channels,
                          ROWS_AHEAD, stride, (size_t)next->columns * (size_t)channels);
        }
        crops[i].status =
            render(&shop, &crops[i], out, out_height, out_width, channels, planar);
    }
    fd_jpeg_free(shop.jpeg);
    free(shop.resizing.memory);
    free(shop.row.memory);
}

/* Decode a JPEG of height x width pixels, reduced by `factor`, resize it to rows x columns,
   antialiased, and encode that: what fd_render_crops and fd_encode_jpeg do, in one call.

   Returns the file, to be freed by fd_free, and its `*made` bytes; NULL where one of them refuses. */
FD_EXPORT void *fd_resize_jpeg(const uint8_t *data, size_t size, int32_t height, int32_t width,
                               int32_t factor, int32_t rows, int32_t columns, int32_t channels,
                               int32_t quality, int32_t interval, size_t *made) {
    if (rows < 1 || columns < 1 || rows > FD_MAX_SIDE || columns > FD_MAX_SIDE) return NULL;
    if (channels != 1 && channels != 3) return NULL;
    fd_crop crop = {
        .data = data,
        .size = size,
        .codec = JPEG,
        .height = height,
        .width = width,
        .factor = factor,
        .rows = height,
        .columns = width,
        .antialias = 1,
    };
    uint8_t *pixels = malloc((size_t)rows * (size_t)columns * (size_t)channels);
    if (!pixels) return NULL;
    fd_render_crops(&crop, 1, pixels, rows, columns, channels, 0);
    void *file = NULL;
    if (crop.status == FD_OK)
        file = fd_encode_jpeg(pixels, rows, columns, channels, quality, interval, made);
    free(pixels);
    return file;
}

/* ---- Whole raw images ------------------------------------------------------------------------ */

/* Copy memory[offsets[i] .. + length] to out + i * length for every i; all lie inside `memory`. */
FD_EXPORT void fd_gather_rows(const uint8_t *memory, const int64_t *offsets, int64_t count,
                              size_t length, uint8_t *out) {
    for (int64_t i = 0; i < count; i++, out += length)
        fd_copy(out, memory + offsets[i], length);
}
