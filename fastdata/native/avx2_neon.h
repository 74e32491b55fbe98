/* AVX2's operations by the NEON of AArch64, under Intel's names: the code for AVX2 is compiled
   there as it stands.

   What is here is what that code uses, and means what it means in Intel's manual, on any values,
   but for two exceptions that are named below.  32 bytes are two registers.  Arithmetic is written
   with the compilers' own operators where there is one; `-fwrapv` lets it wrap.

   scripts/check-arm compares the results with those of x86. */
#ifndef FD_AVX2_NEON_H
#define FD_AVX2_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define FD_INLINE static inline __attribute__((always_inline))

typedef long long __m128i __attribute__((vector_size(16), may_alias));
typedef double __m128d __attribute__((vector_size(16), may_alias));
typedef long long __m256i __attribute__((vector_size(32), may_alias));
typedef int8_t fd_s8x16 __attribute__((vector_size(16)));
typedef int8_t fd_s8x32 __attribute__((vector_size(32)));
typedef int16_t fd_s16x16 __attribute__((vector_size(32)));
typedef int32_t fd_s32x8 __attribute__((vector_size(32)));

/* ---- Halves ---------------------------------------------------------------------------------- */

/* Copies between registers, or none: compilers see through them. */
FD_INLINE __m256i _mm256_set_m128i(__m128i high, __m128i low) {
    __m256i both;
    memcpy(&both, &low, 16);
    memcpy((char *)&both + 16, &high, 16);
    return both;
}
FD_INLINE __m128i _mm256_castsi256_si128(__m256i from) {
    __m128i low;
    memcpy(&low, &from, 16);
    return low;
}
FD_INLINE __m128i _mm256_extracti128_si256(__m256i from, int half) {
    __m128i out;
    memcpy(&out, (const char *)&from + (half & 1) * 16, 16);
    return out;
}
/* Without the bits of `control` that make zeros. */
FD_INLINE __m256i _mm256_permute2x128_si256(__m256i a, __m256i b, int control) {
    const __m128i low = _mm256_extracti128_si256(control & 2 ? b : a, control);
    return _mm256_set_m128i(_mm256_extracti128_si256(control >> 4 & 2 ? b : a, control >> 4), low);
}
FD_INLINE __m256i _mm256_permute4x64_epi64(__m256i v, int control) {
    return (__m256i){v[control & 3], v[control >> 2 & 3], v[control >> 4 & 3], v[control >> 6 & 3]};
}

/* ---- Memory, and constants ------------------------------------------------------------------- */

FD_INLINE __m128i _mm_loadu_si128(const __m128i *from) {
    return (__m128i)vld1q_u8((const uint8_t *)from);
}
FD_INLINE void _mm_storeu_si128(__m128i *to, __m128i value) {
    vst1q_u8((uint8_t *)to, (uint8x16_t)value);
}
FD_INLINE __m128i _mm_loadl_epi64(const __m128i *from) {
    return (__m128i)vcombine_u8(vld1_u8((const uint8_t *)from), vdup_n_u8(0));
}
FD_INLINE void _mm_storel_epi64(__m128i *to, __m128i value) {
    vst1_u8((uint8_t *)to, vget_low_u8((uint8x16_t)value));
}
FD_INLINE __m128d _mm_castsi128_pd(__m128i value) { return (__m128d)value; }
FD_INLINE void _mm_storeh_pd(double *to, __m128d value) {
    vst1_u8((uint8_t *)to, vget_high_u8((uint8x16_t)value));
}
FD_INLINE __m256i _mm256_loadu_si256(const __m256i *from) {
    const __m128i *halves = (const __m128i *)from;
    return _mm256_set_m128i(_mm_loadu_si128(halves + 1), _mm_loadu_si128(halves));
}
FD_INLINE void _mm256_storeu_si256(__m256i *to, __m256i value) {
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(value));
    _mm_storeu_si128((__m128i *)to + 1, _mm256_extracti128_si256(value, 1));
}
#define _mm256_load_si256 _mm256_loadu_si256
#define _mm256_store_si256 _mm256_storeu_si256

FD_INLINE __m256i _mm256_setzero_si256(void) { return (__m256i){0}; }
FD_INLINE __m256i _mm256_set1_epi16(int16_t value) {
    const __m128i half = (__m128i)vdupq_n_s16(value);
    return _mm256_set_m128i(half, half);
}
FD_INLINE __m256i _mm256_set1_epi32(int32_t value) {
    const __m128i half = (__m128i)vdupq_n_s32(value);
    return _mm256_set_m128i(half, half);
}
FD_INLINE __m128i _mm_cvtsi32_si128(int32_t value) { return (__m128i)(int32x4_t){value}; }
#define _mm_setr_epi8(...) ((__m128i)(fd_s8x16){__VA_ARGS__})
#define _mm256_setr_epi8(...) ((__m256i)(fd_s8x32){__VA_ARGS__})

/* ---- Element by element ---------------------------------------------------------------------- */

#define FD_OPERATION(name, type, operation) \
    FD_INLINE __m256i name(__m256i a, __m256i b) { return (__m256i)((type)a operation(type) b); }
FD_OPERATION(_mm256_add_epi16, fd_s16x16, +)
FD_OPERATION(_mm256_sub_epi16, fd_s16x16, -)
FD_OPERATION(_mm256_mullo_epi16, fd_s16x16, *)
FD_OPERATION(_mm256_add_epi32, fd_s32x8, +)
FD_OPERATION(_mm256_or_si256, __m256i, |)

FD_INLINE __m256i _mm256_slli_epi16(__m256i v, int by) { return (__m256i)((fd_s16x16)v << by); }
FD_INLINE __m256i _mm256_srai_epi16(__m256i v, int by) { return (__m256i)((fd_s16x16)v >> by); }
FD_INLINE __m256i _mm256_srai_epi32(__m256i v, int by) { return (__m256i)((fd_s32x8)v >> by); }

FD_INLINE int _mm256_testz_si256(__m256i a, __m256i b) {
    const __m256i both = a & b;
    return !vmaxvq_u32(
        (uint32x4_t)(_mm256_castsi256_si128(both) | _mm256_extracti128_si256(both, 1)));
}

/* ---- Half by half ---------------------------------------------------------------------------- */

/* `result` is of x and y, which are in turn the lower and the upper halves of a and b. */
#define FD_HALVES(name, type, result)                                                       \
    FD_INLINE __m256i name(__m256i a, __m256i b) {                                          \
        type x = (type)_mm256_castsi256_si128(a), y = (type)_mm256_castsi256_si128(b);      \
        const __m128i low = (__m128i)(result);                                              \
        x = (type)_mm256_extracti128_si256(a, 1), y = (type)_mm256_extracti128_si256(b, 1); \
        return _mm256_set_m128i((__m128i)(result), low);                                    \
    }
FD_HALVES(_mm256_unpacklo_epi16, int16x8_t, vzip1q_s16(x, y))
FD_HALVES(_mm256_unpackhi_epi16, int16x8_t, vzip2q_s16(x, y))
FD_HALVES(_mm256_unpacklo_epi32, int32x4_t, vzip1q_s32(x, y))
FD_HALVES(_mm256_unpackhi_epi32, int32x4_t, vzip2q_s32(x, y))
FD_HALVES(_mm256_unpacklo_epi64, int64x2_t, vzip1q_s64(x, y))
FD_HALVES(_mm256_unpackhi_epi64, int64x2_t, vzip2q_s64(x, y))
FD_HALVES(_mm256_packs_epi32, int32x4_t, vqmovn_high_s32(vqmovn_s32(x), y))
FD_HALVES(_mm256_packus_epi16, int16x8_t, vqmovun_high_s16(vqmovun_s16(x), y))
FD_HALVES(_mm256_madd_epi16, int16x8_t,
          vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)))
FD_HALVES(_mm256_mulhi_epi16, int16x8_t,
          vuzp2q_s16((int16x8_t)vmull_s16(vget_low_s16(x), vget_low_s16(y)),
                     (int16x8_t)vmull_high_s16(x, y)))
/* The bytes of x have no sign, those of y have one. */
FD_HALVES(_mm256_maddubs_epi16, int16x8_t,
          vqaddq_s16((int16x8_t)((uint16x8_t)x & 255) * (y << 8 >> 8),
                     (int16x8_t)((uint16x8_t)x >> 8) * (y >> 8)))
/* Exception: -2^15 by -2^15 gives 2^15 - 1, where AVX2 gives -2^15. */
FD_HALVES(_mm256_mulhrs_epi16, int16x8_t, vqrdmulhq_s16(x, y))
/* Exception: a place of 16 to 127 gives 0, as negative ones do; AVX2 takes it modulo 16. */
FD_HALVES(_mm256_shuffle_epi8, int8x16_t, vqtbl1q_s8(x, (uint8x16_t)y))

FD_INLINE __m128i _mm_shuffle_epi8(__m128i v, __m128i places) {
    return (__m128i)vqtbl1q_s8((int8x16_t)v, (uint8x16_t)places);
}
FD_INLINE __m128i _mm_unpacklo_epi64(__m128i a, __m128i b) {
    return (__m128i)vzip1q_s64((int64x2_t)a, (int64x2_t)b);
}

FD_INLINE __m128i _mm_packs_epi32(__m128i a, __m128i b) {
    return (__m128i)vqmovn_high_s32(vqmovn_s32((int32x4_t)a), (int32x4_t)b);
}
FD_INLINE __m128i _mm_packus_epi16(__m128i a, __m128i b) {
    return (__m128i)vqmovun_high_s16(vqmovun_s16((int16x8_t)a), (int16x8_t)b);
}

FD_INLINE __m256i _mm256_cvtepi16_epi32(__m128i v) {
    return _mm256_set_m128i((__m128i)vmovl_high_s16((int16x8_t)v),
                            (__m128i)vmovl_s16(vget_low_s16((int16x8_t)v)));
}
FD_INLINE __m256i _mm256_cvtepu8_epi16(__m128i v) {
    return _mm256_set_m128i((__m128i)vmovl_high_u8((uint8x16_t)v),
                            (__m128i)vmovl_u8(vget_low_u8((uint8x16_t)v)));
}
/* By less than 128. */
FD_INLINE __m256i _mm256_srl_epi16(__m256i v, __m128i by) {
    const int16x8_t left = vdupq_n_s16((int16_t)-by[0]);
    return _mm256_set_m128i((__m128i)vshlq_u16((uint16x8_t)_mm256_extracti128_si256(v, 1), left),
                            (__m128i)vshlq_u16((uint16x8_t)_mm256_castsi256_si128(v), left));
}

#undef FD_OPERATION
#undef FD_HALVES
#endif
