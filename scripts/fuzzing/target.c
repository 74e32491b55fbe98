/* What libFuzzer calls: one entry point of the compiled library, chosen by FUZZ_TARGET.

   An input is a JPEG file, and behind it PARAMETERS bytes that choose sizes and windows.  Beside
   what the sanitizers find, it is a mistake if the portable code and that for AVX2 differ, or if
   coding a file anew twice makes another file. */

#include "fastdata.h"
#include "jpeg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADERS, SCANS, TRANSCODING, RESIZING };

#define PARAMETERS 16
#define MOST_PIXELS (1 << 18) /* of an image and of a result: larger ones only take time */

typedef struct {
    const uint8_t *data;
    uint64_t size;
    int32_t codec, height, width, factor, top, left, rows, columns, target_rows, target_columns,
        part_top, part_left, antialias, flip, status;
} fd_crop;

void fd_use_portable(int only);
void fd_render_crops(fd_crop *crops, int64_t count, uint8_t *out, int32_t out_height,
                     int32_t out_width, int32_t channels, int32_t planar);
void *fd_resize_jpeg(const uint8_t *data, size_t size, int32_t height, int32_t width, int32_t factor,
                     int32_t rows, int32_t columns, int32_t channels, int32_t quality,
                     int32_t interval, size_t *made);
uint8_t *fd_transcode_jpeg(const uint8_t *data, size_t size, int32_t interval, size_t *made);
void fd_free(void *memory);

static void fail(const char *why) {
    fprintf(stderr, "fuzz: %s\n", why);
    abort();
}

/* The height and width that the first frame of a JPEG names; 0 if there is none. */
static int find_size(const uint8_t *data, size_t size, int32_t *height, int32_t *width) {
    for (size_t at = 0; at + 9 < size; at++) {
        const int marker = data[at + 1];
        if (data[at] != 0xFF || marker < 0xC0 || marker > 0xCF) continue;
        if (marker == 0xC4 || marker == 0xC8 || marker == 0xCC) continue;
        *height = data[at + 5] << 8 | data[at + 6];
        *width = data[at + 7] << 8 | data[at + 8];
        return 1;
    }
    return 0;
}

static int32_t below(int32_t value, int32_t limit) { return limit > 0 ? value % limit : 0; }

/* Render a crop by each kind of code, to pixels and to planes; what they make must be equal. */
static void render(fd_crop crop, int32_t rows, int32_t columns, int32_t channels) {
    const size_t n = (size_t)channels, plane = (size_t)rows * (size_t)columns, bytes = plane * n;
    uint8_t *made[4]; /* pixels, portable pixels, planes, portable planes */
    int32_t answers[4];
    for (int way = 0; way < 4; way++) {
        made[way] = malloc(bytes);
        if (!made[way]) fail("no memory");
        fd_use_portable(way & 1);
        fd_render_crops(&crop, 1, made[way], rows, columns, channels, way >> 1);
        answers[way] = crop.status;
        if (answers[way] != answers[0]) fail("only one way refuses the image");
    }
    if (answers[0] == FD_OK) {
        if (memcmp(made[0], made[1], bytes)) fail("kinds of code differ");
        if (memcmp(made[2], made[3], bytes)) fail("kinds of code make other planes");
        for (size_t i = 0; i < plane; i++)
            for (size_t c = 0; c < n; c++)
                if (made[0][i * n + c] != made[2][c * plane + i]) fail("planes have other pixels");
    }
    for (int way = 0; way < 4; way++)
        free(made[way]);
}

static void look_at_header(fd_crop crop, const uint8_t *with) {
    crop.rows = crop.height < 8 ? crop.height : 8;
    crop.columns = crop.width < 8 ? crop.width : 8;
    crop.top = below(with[0] << 8 | with[1], crop.height - crop.rows + 1);
    crop.left = below(with[2] << 8 | with[3], crop.width - crop.columns + 1);
    render(crop, crop.rows, crop.columns, with[4] & 1 ? 3 : 1);
}

static void decode_window(fd_crop crop, const uint8_t *with) {
    crop.rows = 1 + below(with[0] << 8 | with[1], crop.height);
    crop.columns = 1 + below(with[2] << 8 | with[3], crop.width);
    crop.top = below(with[4] << 8 | with[5], crop.height - crop.rows + 1);
    crop.left = below(with[6] << 8 | with[7], crop.width - crop.columns + 1);
    crop.factor = 1 << (with[8] & 3);
    crop.flip = with[9] & 1;
    const int32_t bottom = (crop.top + crop.rows + crop.factor - 1) / crop.factor,
                  right = (crop.left + crop.columns + crop.factor - 1) / crop.factor;
    render(crop, bottom - crop.top / crop.factor, right - crop.left / crop.factor,
           with[10] & 1 ? 3 : 1);
}

static void transcode(const uint8_t *data, size_t size, const uint8_t *with) {
    const int32_t interval = 1 + (with[0] & 63);
    uint8_t *files[2];
    size_t sizes[2];
    for (int portable = 0; portable < 2; portable++) {
        fd_use_portable(portable);
        files[portable] = fd_transcode_jpeg(data, size, interval, &sizes[portable]);
    }
    if (!files[0] != !files[1]) fail("only one kind of code refuses the file");
    if (!files[0]) return;
    if (sizes[0] != sizes[1] || memcmp(files[0], files[1], sizes[0])) fail("kinds of code differ");
    fd_free(files[1]);
    size_t again_size;
    uint8_t *again = fd_transcode_jpeg(files[0], sizes[0], interval, &again_size);
    if (!again) fail("a file that was coded anew is refused");
    if (again_size != sizes[0] || memcmp(again, files[0], again_size))
        fail("a file that was coded anew changes when it is coded anew once more");
    fd_free(again);
    fd_free(files[0]);
}

/* Any numbers, also such as no caller passes, of a JPEG and of raw pixels. */
static void resize(fd_crop crop, const uint8_t *with) {
    const int32_t rows = 1 + (with[0] & 127), columns = 1 + (with[1] & 127);
    const int32_t channels = with[2] & 1 ? 3 : 1;
    size_t made = 0;
    void *file = fd_resize_jpeg(crop.data, crop.size, crop.height, crop.width, 1 << (with[3] & 3),
                                rows, columns, channels, 1 + with[4] % 100, 1 + with[5], &made);
    if (file) fd_free(file);
    if (with[6] & 1) { /* raw pixels */
        crop.codec = 0;
        crop.width = 1 + (with[7] & 63);
        crop.factor = 1 << (with[6] >> 1 & 3);
        const int32_t across = (crop.width + crop.factor - 1) / crop.factor;
        const int32_t down = (int32_t)(crop.size / (size_t)(across * channels));
        if (!down) return;
        crop.height = down * crop.factor;
        crop.size = (size_t)down * (size_t)(across * channels);
    } else {
        crop.factor = 1 << (with[3] & 3);
    }
    crop.top = (int8_t)with[8];
    crop.left = (int8_t)with[9];
    crop.rows = with[6] & 8 ? crop.height - crop.top : (int8_t)with[10];
    crop.columns = with[6] & 8 ? crop.width - crop.left : (int8_t)with[11];
    if (crop.rows < 0 || crop.columns < 0) return; /* no caller may pass them */
    crop.target_rows = with[6] & 16 ? 0 : (int8_t)with[12];
    crop.target_columns = with[6] & 16 ? 0 : (int8_t)with[13];
    crop.part_top = with[6] & 16 ? 0 : (int8_t)with[14];
    crop.part_left = with[6] & 16 ? 0 : (int8_t)with[15];
    crop.antialias = with[6] >> 5 & 1;
    crop.flip = with[6] >> 6 & 1;
    render(crop, rows, columns, channels);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    if (size <= PARAMETERS) return 0;
    const uint8_t *with = input + size - PARAMETERS;
    size -= PARAMETERS;
    int32_t height = 16, width = 16;
    find_size(input, size, &height, &width);
    if ((int64_t)height * width > MOST_PIXELS) return 0;
    /* A copy that ends where the file ends, so that reading behind it is seen. */
    uint8_t *data = malloc(size);
    if (!data) fail("no memory");
    memcpy(data, input, size);
    if (FUZZ_TARGET == TRANSCODING) {
        transcode(data, size, with);
    } else if (height > 0 && width > 0) {
        const fd_crop crop = {.data = data,
                              .size = size,
                              .codec = 1,
                              .height = height,
                              .width = width,
                              .factor = 1,
                              .rows = height,
                              .columns = width};
        if (FUZZ_TARGET == HEADERS) look_at_header(crop, with);
        if (FUZZ_TARGET == SCANS) decode_window(crop, with);
        if (FUZZ_TARGET == RESIZING) resize(crop, with);
    }
    free(data);
    return 0;
}
