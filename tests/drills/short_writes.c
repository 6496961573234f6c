/* A disk that takes a part of a write, or none at first, for files below $SHORT_BELOW. For LD_PRELOAD.
 * Every third write is short and every seventh is interrupted by a signal. The first write into a file whose path has
 * $SHORT_FULL in it finds no room, once in all processes: then the file $SHORT_DONE is made. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_uint writes;

static int is_ours(int fd, char *path, size_t size) {
    const char *below = getenv("SHORT_BELOW");
    char link[32];
    struct stat found;
    if (!below || fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, below, strlen(below)) == 0;
}

static int finds_no_room(const char *path) {
    const char *full = getenv("SHORT_FULL"), *done = getenv("SHORT_DONE");
    if (!full || !done || !*full || !strstr(path, full)) return 0;
    int made = open(done, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (made < 0) return 0;
    close(made);
    return 1;
}

/* How many of `count` bytes this write may take; -1 with errno for none. */
static ssize_t bound(int fd, size_t count) {
    char path[4096];
    int before = errno;
    ssize_t most = (ssize_t)count;
    if (count > 1 && is_ours(fd, path, sizeof path)) {
        unsigned number = atomic_fetch_add(&writes, 1);
        if (finds_no_room(path)) { errno = ENOSPC; return -1; }
        if (number % 7 == 6) { errno = EINTR; return -1; }
        if (number % 3 == 2) most = (ssize_t)(1 + count / 2);
    }
    errno = before;
    return most;
}

ssize_t write(int fd, const void *content, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    ssize_t most = bound(fd, count);
    return most < 0 ? -1 : real(fd, content, (size_t)most);
}

ssize_t pwrite(int fd, const void *content, size_t count, off_t place) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite");
    ssize_t most = bound(fd, count);
    return most < 0 ? -1 : real(fd, content, (size_t)most, place);
}

ssize_t pwrite64(int fd, const void *content, size_t count, off64_t place) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    ssize_t most = bound(fd, count);
    return most < 0 ? -1 : real(fd, content, (size_t)most, place);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real) real = dlsym(RTLD_NEXT, "writev");
    char path[4096];
    if (count < 1 || !is_ours(fd, path, sizeof path)) return real(fd, parts, count);
    ssize_t most = bound(fd, parts[0].iov_len);
    return most < 0 ? -1 : write(fd, parts[0].iov_base, (size_t)most);
}
