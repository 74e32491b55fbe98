/* Two loops of resize_avx2.h with vectors twice as wide; included in resize.c once.

   Raw crops to 224 x 224 take 21.1 us instead of 25.4 (EPYC, Zen 5). */

FD_BEGIN_AVX512

/* across_linear of EIGHT. */
static void linear_eight_avx512(const plan *p, const uint8_t *row, int16_t *out) {
    const int32_t *offsets = p->offsets;
    const __m512i *picks = (const __m512i *)p->picks, *lesser = (const __m512i *)p->lesser;
    const __m512i first = _mm512_set1_epi16(64), difference = _mm512_set1_epi16(-64 * 256 + 64);
    for (size_t x = 0; x < p->row_values; x += 32, offsets += 4, picks++, lesser++) {
        const __m512i groups =
            _mm512_inserti64x4(_mm512_castsi256_si512(load_groups(row, offsets, 0, 1, EIGHT)),
                               load_groups(row, offsets, 2, 1, EIGHT), 1);
        const __m512i bytes = _mm512_shuffle_epi8(groups, _mm512_load_si512(picks));
        const __m512i more = _mm512_maddubs_epi16(bytes, first);
        const __m512i apart = _mm512_maddubs_epi16(bytes, difference);
        const __m512i step = _mm512_mulhrs_epi16(apart, _mm512_load_si512(lesser));
        _mm512_store_si512(out + x, _mm512_add_epi16(_mm512_add_epi16(more, more), step));
    }
}

/* resize_down_avx2 of two taps. */
static void down_linear_avx512(const int16_t *const *rows, const int16_t *weights, int32_t taps,
                               size_t count, uint8_t *out) {
    (void)taps;
    const int swap = weights[0] < weights[1];
    const int16_t *more = rows[swap], *less = rows[!swap];
    const __m512i lesser = _mm512_set1_epi16((short)(-4 * weights[!swap]));
    const __m512i shift = _mm512_set1_epi16(1 << (15 - MIDDLE_BITS)); /* one that rounds */
    for (size_t x = 0; x < count; x += 32) {
        const __m512i a = _mm512_load_si512(more + x), b = _mm512_load_si512(less + x);
        const __m512i value =
            _mm512_add_epi16(a, _mm512_mulhi_epi16(_mm512_sub_epi16(a, b), lesser));
        const __mmask32 inside = count - x < 32 ? (1u << (count - x)) - 1 : 0xFFFFFFFFu;
        _mm512_mask_cvtusepi16_storeu_epi8(out + x, inside, _mm512_mulhrs_epi16(value, shift));
    }
}

FD_END_AVX2
