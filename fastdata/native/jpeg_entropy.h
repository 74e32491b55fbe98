/* Entropy decoding of JPEGs (T.81, F.2); included once for each kind of processor. */

/* Have 56 bits or more.  (Fabian Giesen, "Reading bits in far too many ways", part 2, variant
   4.) */
static inline void FD_(refill)(bit_reader *in) {
    uint64_t word;
    memcpy(&word, in->next, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    in->bits |= word >> (in->count & 63);
    in->next += ~in->count >> 3 & 7; /* (63 - count) / 8 */
    in->count |= 56;
}

static inline void FD_(skip)(bit_reader *in, int count) {
    in->bits <<= count;
    in->count -= (uint32_t)count;
}

/* Take the bits of an entry of `look`.  All of it is subtracted from the count, of which only the
   lowest six bits hold then: a mask would be one more operation in the chain from code to code. */
static inline void FD_(skip_entry)(bit_reader *in, uint32_t entry) {
    in->bits <<= entry & 63;
    in->count -= entry;
}

/* Mend the count after that. */
static inline void FD_(mend_count)(bit_reader *in) { in->count &= 63; }

/* Return the symbol of a code, and take its bits; -1 if there is no such code. */
static inline int FD_(long_symbol)(const huffman *table, bit_reader *in) {
    int32_t code = (int32_t)(in->bits >> 48);
    for (int length = LOOK_BITS + 1; length <= 16; length++) {
        if (code >= table->limit[length]) continue;
        FD_(skip)(in, length);
        return table->coded[16 + ((code >> (16 - length)) + table->offset[length])];
    }
    return -1;
}

/* Take `size` bits, 1 to 15, as a coefficient. */
static inline int FD_(receive)(bit_reader *in, int size) {
    int value = (int)(in->bits >> (64 - size));
    FD_(skip)(in, size);
    return value + (((value >> (size - 1)) - 1) & (1 - (1 << size)));
}

static inline __attribute__((always_inline)) void
FD_(place)(int16_t *restrict out, const int16_t *restrict quant, size_t k, int value) {
    if (quant)
        out[NATURAL_ORDER[k]] = (int16_t)(value * quant[k]);
    else
        out[k] = (int16_t)value;
}

/* Decode a block's first coefficient, the difference to the one before; returns 0 if there is no such
   code. */
static inline __attribute__((always_inline)) int
FD_(decode_first)(bit_reader *restrict r, const huffman *restrict dc, int *restrict predicted) {
    FD_(refill)(r);
    const uint32_t entry = dc->look[r->bits >> (64 - LOOK_BITS)];
    int value = 0;
    if (entry & HAS_VALUE) {
        FD_(skip)(r, LENGTH(entry));
        value = VALUE(entry);
    } else {
        int size = SYMBOL(entry);
        if (LENGTH(entry))
            FD_(skip)(r, LENGTH(entry));
        else if ((size = FD_(long_symbol)(dc, r)) < 0)
            return 0;
        if (size) value = FD_(receive)(r, size);
    }
    *predicted = (int)((unsigned)*predicted + (unsigned)value);
    return 1;
}

/* Decode a block's coefficients into `out`, which is zero: in natural order and multiplied by
   `quant`, or, where `quant` is the constant NULL, in the order in which they are coded.

   Returns the number of the last one that is not zero, or -1 if the bits make no sense.
   Reads at most 64 * 4 bytes from where the reader is; writes to 16 numbers behind the block at
   most. */
static inline __attribute__((always_inline)) int
FD_(decode_block)(bit_reader *restrict in, const huffman *restrict dc, const huffman *restrict ac,
                  const int16_t *restrict quant, int *restrict predicted, int16_t *restrict out) {
    bit_reader r = *in;
    if (!FD_(decode_first)(&r, dc, predicted)) return -1;
    out[0] = (int16_t)(quant ? (unsigned)*predicted * (unsigned)quant[0] : (unsigned)*predicted);

    const uint32_t *look = ac->look;
    size_t k = 1; /* of the type of an address: it is not widened at each use */
    int value;
    for (;;) {
        uint32_t entry;
        FD_(refill)(&r);
        /* Up to three times LOOK_BITS bits; after two of them there are enough for a long code. */
        for (int i = 0; i < 3; i++) {
            entry = look[r.bits >> (64 - LOOK_BITS)];
            if (!(entry & HAS_VALUE)) goto other;
            FD_(skip_entry)(&r, entry);
            k += RUN(entry);
            FD_(place)(out, quant, k, VALUE(entry));
            if (++k >= BLOCK) goto done;
        }
        continue;
    other:;
        int symbol = SYMBOL(entry);
        if (entry)
            FD_(skip_entry)(&r, entry);
        else if ((symbol = FD_(long_symbol)(ac, &r)) < 0)
            return -1;
        int size = symbol & 15;
        unsigned run = (unsigned)symbol >> 4;
        if (size == 0) {
            if (run != 15) break; /* the end of the block */
            k += 16;
            if (k >= BLOCK) return -1;
            continue;
        }
        k += run;
        value = FD_(receive)(&r, size);
        FD_(place)(out, quant, k, value);
        if (++k >= BLOCK) break;
    }
done:
    FD_(mend_count)(&r);
    *in = r;
    return k <= BLOCK ? (int)k - 1 : -1;
}
