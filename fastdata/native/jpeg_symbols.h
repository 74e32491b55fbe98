/* The symbols of a scan on their way into a file: noted by jpeg_encode.h out of coefficients, or by
   jpeg_scan.h out of another file, and written by jpeg_write.c. */
#ifndef FD_JPEG_SYMBOLS_H
#define FD_JPEG_SYMBOLS_H

#include "jpeg_write.h"

/* A symbol in the scan: the lowest bits are its number, as below, and what is above them are the
   bits of the coefficient itself. */
typedef uint32_t token;
#define TOKEN_BITS 10
#define SYMBOL_OF(token) ((token) & ((1u << TOKEN_BITS) - 1))

/* Behind the symbols of a segment. */
#define END_OF_SEGMENT UINT32_MAX

/* Numbers of symbols: one of each of four tables.  As in the file, the lowest four bits say how
   many bits of a coefficient follow. */
#define SYMBOLS 256
#define AC 256
#define CHROMA 512
#define END_OF_BLOCK 0
#define ZEROS_16 0xF0

/* Larger coefficients are not baseline. */
#define MAX_DC_SIZE 11
#define MAX_AC_SIZE 10

/* Of a block: the difference, 63 coefficients; of an MCU 10 blocks, and the end of a segment. */
#define MAX_BLOCK_TOKENS 64
#define MAX_MCU_TOKENS (10 * MAX_BLOCK_TOKENS + 1)

typedef struct {
    uint64_t occurrences[4 * SYMBOLS];
    int too_large; /* whether any coefficient is */
    token *tokens;
    size_t used, room;
} symbols;

static inline token *note(symbols *s, token noted, token *to) {
    s->occurrences[SYMBOL_OF(noted)]++;
    *to++ = noted;
    return to;
}

/* Have room for an MCU; FD_OK or FD_NO_MEMORY. */
int fd_jpeg_reserve_symbols(symbols *s);

/* Write a file out of all symbols of its scan; as fd_jpeg_write. */
int fd_jpeg_write_symbols(const fd_jpeg_picture *picture, int32_t interval, const symbols *s,
                          fd_scratch *out, size_t *size);

#endif
