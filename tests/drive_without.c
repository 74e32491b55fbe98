/* A drive that lacks some calls: preloaded, it has them fail for files below a folder.
 *
 * DRIVE_FOLDER: the folder.  DRIVE_CALL: lock, map, shared_map, sync.  DRIVE_ERRNO: the error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

static int lacks(int fd, const char *call) {
    const char *folder = getenv("DRIVE_FOLDER"), *which = getenv("DRIVE_CALL");
    char link[64], path[4096];
    ssize_t length;
    if (!folder || !which || fd < 0 || strcmp(which, call)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder))) return 0;
    errno = atoi(getenv("DRIVE_ERRNO"));
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int fd) { return lacks(fd, "sync") ? -1 : NEXT(fsync)(fd); }
int fdatasync(int fd) { return lacks(fd, "sync") ? -1 : NEXT(fdatasync)(fd); }
int flock(int fd, int how) { return lacks(fd, "lock") ? -1 : NEXT(flock)(fd, how); }

static int is_lock(int what) {
    return what == F_SETLK || what == F_SETLKW || what == F_OFD_SETLK || what == F_OFD_SETLKW;
}

int fcntl(int fd, int what, ...) {
    va_list rest;
    va_start(rest, what);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return is_lock(what) && lacks(fd, "lock") ? -1 : NEXT(fcntl)(fd, what, argument);
}

int fcntl64(int fd, int what, ...) {
    va_list rest;
    va_start(rest, what);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return is_lock(what) && lacks(fd, "lock") ? -1 : NEXT(fcntl)(fd, what, argument);
}

static int no_map(int fd, int flags) {
    return lacks(fd, "map") || (flags & MAP_SHARED && lacks(fd, "shared_map"));
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    return no_map(fd, flags) ? MAP_FAILED : NEXT(mmap)(at, n, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t n, int protection, int flags, int fd, off64_t offset) {
    return no_map(fd, flags) ? MAP_FAILED : NEXT(mmap64)(at, n, protection, flags, fd, offset);
}
