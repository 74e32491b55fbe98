/* What the parts of the compiled library share. */
#ifndef FD_FASTDATA_H
#define FD_FASTDATA_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define FD_EXPORT __declspec(dllexport)
#else
#define FD_EXPORT __attribute__((visibility("default")))
#endif

/* What takes the time is compiled twice: for any processor, and for those with AVX2, or with NEON
   in its place (avx2_neon.h). */
#if defined(__AARCH64EL__) && (defined(__GNUC__) || defined(__clang__))
#define FD_HAS_AVX2 1
#define FD_IS_NEON 1
#include "avx2_neon.h"
#elif defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define FD_HAS_AVX2 1
#define FD_IS_NEON 0
#define FD_HAS_AVX512 1
#include <immintrin.h>
#else
#define FD_HAS_AVX2 0
#define FD_IS_NEON 0
#endif

/* What lies between the two is compiled for AVX2; needs a compiler that knows one of these
   pragmas. */
#if FD_IS_NEON /* every such processor has it */
#define FD_BEGIN_AVX2
#define FD_END_AVX2
#elif defined(__clang__)
/* In one literal: clang takes no two of them here. */
/* clang-format off */
#define FD_BEGIN_AVX2 _Pragma("clang attribute push(__attribute__((target(\"avx2,bmi,bmi2,lzcnt\"))), apply_to = function)")
#define FD_BEGIN_AVX512 _Pragma("clang attribute push(__attribute__((target(\"avx512bw,bmi,bmi2,lzcnt\"))), apply_to = function)")
/* clang-format on */
#define FD_END_AVX2 _Pragma("clang attribute pop")
#else
#define FD_BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,bmi,bmi2,lzcnt\")")
#define FD_BEGIN_AVX512 \
    _Pragma("GCC push_options") _Pragma("GCC target(\"avx512bw,bmi,bmi2,lzcnt\")")
#define FD_END_AVX2 _Pragma("GCC pop_options")
#endif

/* Whether this processor has AVX2 or NEON, and nobody asked to go without. */
int fd_may_use_avx2(void);

/* Whether it has AVX-512 besides, in a kind that wide vectors do not slow down. */
int fd_may_use_avx512(void);

enum {
    FD_OK = 0,
    FD_REFUSED = 1, /* damaged, or of a kind that is left to others */
    FD_NO_MEMORY = 2,
};

/* Pixels on a side of an image. */
#define FD_MAX_SIDE 65535

/* Bytes behind a row of pixels that may be read, whatever they are. */
#define FD_ROW_PADDING 32

/* Returns row y of a picture, with FD_ROW_PADDING more bytes.  y never decreases from call to
   call; the pointer holds until the next. */
typedef const uint8_t *fd_row(void *source, int32_t y);

/* Memory that grows as it must and is used again for the next image. */
typedef struct {
    void *memory;
    size_t size;
} fd_scratch;

/* Have `size` bytes, whatever they are; FD_OK or FD_NO_MEMORY. */
int fd_scratch_reserve(fd_scratch *scratch, size_t size);

#endif
