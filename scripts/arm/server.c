/* Calls functions of a shared library for a process on another processor
   (arm_library.py).

   server LIBRARY: requests come in on the standard input, answers go to the
   standard output. Memory that is handed over ends at a page which nobody may
   touch, so that reading or writing behind it ends the process. */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    char kind; /* 'p': put bytes into memory; 'g': get them; 'c': call; 'f': free
                all memory */
    char name[63];
    int64_t arguments[12];
} request;

typedef int64_t function(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                         int64_t, int64_t, int64_t, int64_t);

static struct {
    void *memory;
    size_t size;
} taken[65536];
static size_t count;

static void fail(const char *what) {
    fprintf(stderr, "server: %s\n", what);
    exit(1);
}

static char *take(size_t size) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t room = (size + page - 1) / page * page;
    char *memory =
        mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || count == sizeof taken / sizeof *taken ||
        mprotect(memory + room, page, PROT_NONE))
        fail("no memory");
    taken[count].memory = memory;
    taken[count++].size = room + page;
    return memory + room - size;
}

static void answer(const void *bytes, size_t size) {
    if (fwrite(bytes, 1, size, stdout) != size || fflush(stdout)) fail("nobody reads");
}

int main(int argc, char **argv) {
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library) fail(argc == 2 ? dlerror() : "server LIBRARY");
    request asked;
    while (fread(&asked, sizeof asked, 1, stdin) == 1) {
        const int64_t *a = asked.arguments;
        int64_t result = 0;
        if (asked.kind == 'p') {
            char *to = take((size_t)a[0]);
            if (fread(to, 1, (size_t)a[0], stdin) != (size_t)a[0]) fail("too few bytes");
            result = (int64_t)(intptr_t)to;
        } else if (asked.kind == 'g') {
            answer((const void *)(intptr_t)a[0], (size_t)a[1]);
            continue;
        } else if (asked.kind == 'c') {
            function *called;
            *(void **)&called = dlsym(library, asked.name);
            if (!called) fail(dlerror());
            result = called(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9],
                            a[10], a[11]);
        } else {
            while (count) {
                count--;
                munmap(taken[count].memory, taken[count].size);
            }
        }
        answer(&result, sizeof result);
    }
}
