/* Say which file it was when memory that is mapped from a file cannot be read.

   The kernel says so by SIGBUS: the file was cut short after it was mapped, or its disk failed.
   Nothing can be made of what was to be read, so the process ends, as it would without this; but
   it says why.  Everything that the handler calls may be called in one (POSIX, 2.4.3), and what
   it reads is never freed. */

#define _XOPEN_SOURCE 700 /* sigaction, also with -std=c11 */

#include "fastdata.h"

#if defined(_WIN32)

FD_EXPORT void *fd_watch_map(const void *address, size_t length, const char *path,
                             const char *shown) {
    (void)address, (void)length, (void)path, (void)shown;
    return NULL;
}
FD_EXPORT void fd_unwatch_map(void *watched) { (void)watched; }

#else

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct mapped {
    const char *begin;
    size_t length;
    char *path;  /* as the system has it */
    char *shown; /* the same, fit for a terminal */
    _Atomic int live;
    struct mapped *next;
} mapped;

static _Atomic(mapped *) all_mapped;
static atomic_flag installed = ATOMIC_FLAG_INIT;
static struct sigaction before;

/* ---- What is said ---------------------------------------------------------------------------- */

typedef struct {
    char text[2048];
    size_t length;
} line;

static void add(line *out, const char *text) {
    size_t length = strlen(text), room = sizeof out->text - out->length;
    if (length > room) length = room;
    memcpy(out->text + out->length, text, length);
    out->length += length;
}

static void add_number(line *out, uint64_t number) {
    char digits[24];
    char *at = digits + sizeof digits - 1;
    *at = 0;
    do {
        *--at = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    add(out, at);
}

/* Whether a file has become shorter; its length now.  Not by stat(), which asks for glibc 2.33 where
   the rest asks for 2.14. */
static int is_shorter(const mapped *one, uint64_t *now) {
    const int file = open(one->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return 0;
    const off_t end = lseek(file, 0, SEEK_END);
    close(file);
    if (end < 0) return 0;
    *now = (uint64_t)end;
    return *now < one->length;
}

static void say(const mapped *one) {
    line out = {.length = 0};
    uint64_t now = 0;
    add(&out, "fastdata: ");
    add(&out, one->shown);
    if (is_shorter(one, &now)) {
        add(&out, ": had ");
        add_number(&out, one->length);
        add(&out, " bytes when it was opened and has ");
        add_number(&out, now);
        add(&out, " now: it was cut short or overwritten while it was in use. Restore it, or "
                  "clear the cache that it is in (fastdata cache clear); put a new file in the "
                  "place of one by renaming (mv), never by writing over it (cp)");
    } else {
        add(&out, ": a part of it cannot be read: it was cut short or overwritten while it was in "
                  "use, or its disk or network failed (dmesg may say)");
    }
    add(&out, ". The process ends by SIGBUS.\n");
    size_t done = 0;
    while (done < out.length) {
        ssize_t wrote = write(STDERR_FILENO, out.text + done, out.length - done);
        if (wrote <= 0) break;
        done += (size_t)wrote;
    }
}

/* ---- The signal ------------------------------------------------------------------------------ */

static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    int error = errno;
    /* Sent by another handler, as Python's faulthandler does, it has no address. */
    int has_address = info->si_code > 0;
    const char *address = info->si_addr;
    uint64_t now;
    for (const mapped *one = atomic_load(&all_mapped); one; one = one->next) {
        if (!atomic_load(&one->live)) continue;
        if (has_address ? address >= one->begin && address < one->begin + one->length
                        : is_shorter(one, &now))
            say(one);
    }
    /* What would have happened happens: what could not be read is read again, or the signal that
       was sent is sent again, and arrives when this returns. */
    sigaction(number, &before, NULL);
    if (!has_address) raise(number);
    errno = error;
}

static void install(void) {
    if (atomic_flag_test_and_set(&installed)) return;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static char *copy_of(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

/* Name the file of some mapped memory, should it be unreadable; NULL where memory has run out. */
FD_EXPORT void *fd_watch_map(const void *address, size_t length, const char *path,
                             const char *shown) {
    mapped *one = calloc(1, sizeof *one);
    if (!one) return NULL;
    one->begin = address;
    one->length = length;
    one->path = copy_of(path);
    one->shown = copy_of(shown);
    if (!one->path || !one->shown) {
        free(one->path);
        free(one->shown);
        free(one);
        return NULL;
    }
    atomic_store(&one->live, 1);
    one->next = atomic_load(&all_mapped);
    while (!atomic_compare_exchange_weak(&all_mapped, &one->next, one)) continue;
    install();
    return one;
}

/* The memory is to be unmapped.  A handler may be looking at this in another thread, so a hundred
   bytes stay. */
FD_EXPORT void fd_unwatch_map(void *watched) {
    if (watched) atomic_store(&((mapped *)watched)->live, 0);
}

#endif
