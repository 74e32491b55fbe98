/* What decoders and encoders know of a block of 8 x 8 coefficients. */
#ifndef FD_JPEG_BLOCK_H
#define FD_JPEG_BLOCK_H

#include "fastdata.h"

#define BLOCK 64

/* Order in which coefficients are coded, as places in the block.  Behind the last one follow 16
   more, as far as a run can lead beyond it. */
static const uint8_t NATURAL_ORDER[BLOCK + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33,
    40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36,
    29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
};

/* Numbers of the accurate transforms (jidctint.c, jfdctint.c) in units of 1 / 8192. */
#define FIX_0_298631336 2446
#define FIX_0_390180644 3196
#define FIX_0_541196100 4433
#define FIX_0_765366865 6270
#define FIX_0_899976223 7373
#define FIX_1_175875602 9633
#define FIX_1_501321110 12299
#define FIX_1_847759065 15137
#define FIX_1_961570560 16069
#define FIX_2_053119869 16819
#define FIX_2_562915447 20995
#define FIX_3_072711026 25172

#if FD_HAS_AVX2
FD_BEGIN_AVX2
typedef int32_t fd_v8 __attribute__((vector_size(32)));

/* Swap rows and columns of 8 x 8 numbers. */
static inline void transpose(fd_v8 v[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32((__m256i)v[i], (__m256i)v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32((__m256i)v[i], (__m256i)v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = (fd_v8)_mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        v[i + 4] = (fd_v8)_mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}
FD_END_AVX2
#endif

#endif
