/* Ask the system to read parts of a mapped file before they are needed. */

#define _XOPEN_SOURCE 700 /* posix_madvise, also with -std=c11 */

#include "fastdata.h"

#if !defined(_WIN32)
#include <sys/mman.h>
#endif

/* Ask for memory[starts[i] .. + lengths[i]] for every i; each start is that of a page.  Returns
   before they are read. */
FD_EXPORT void fd_read_soon(uint8_t *memory, const int64_t *starts, const int64_t *lengths,
                            int64_t count) {
#if defined(_WIN32)
    (void)memory, (void)starts, (void)lengths, (void)count;
#else
    for (int64_t i = 0; i < count; i++)
        posix_madvise(memory + starts[i], (size_t)lengths[i], POSIX_MADV_WILLNEED);
#endif
}
