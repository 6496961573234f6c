/* A disk that is full, or a save that stays unfinished, for files below $CUT_BELOW. For LD_PRELOAD.
 * While the file $CUT_FULL exists, no write finds room. While $CUT_HOLD exists, the first write of some size takes half
 * of its bytes, $CUT_HELD is made, and the process waits there until it is killed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define LEAST_BYTES 512 /* a shorter write may be all of a small file */

static int is_ours(int fd) {
    const char *below = getenv("CUT_BELOW");
    char link[32], path[4096];
    struct stat found;
    if (!below || fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, below, strlen(below)) == 0;
}

static int is_there(const char *name) {
    const char *path = getenv(name);
    return path && access(path, F_OK) == 0;
}

/* How many of `count` bytes this write may take; -1 with errno for none. */
static ssize_t bound(int fd, size_t count) {
    int before = errno;
    ssize_t most = (ssize_t)count;
    if (is_ours(fd)) {
        if (is_there("CUT_FULL")) { errno = ENOSPC; return -1; }
        if (count >= LEAST_BYTES && is_there("CUT_HOLD")) most /= 2;
    }
    errno = before;
    return most;
}

static void wait_for_end(void) {
    int made = open(getenv("CUT_HELD"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (made >= 0) close(made);
    for (;;) pause();
}

static ssize_t end(ssize_t written, ssize_t most, size_t count) {
    if (most < (ssize_t)count) wait_for_end();
    return written;
}

ssize_t write(int fd, const void *content, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    ssize_t most = bound(fd, count);
    return most < 0 ? -1 : end(real(fd, content, (size_t)most), most, count);
}

ssize_t pwrite(int fd, const void *content, size_t count, off_t place) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite");
    ssize_t most = bound(fd, count);
    return most < 0 ? -1 : end(real(fd, content, (size_t)most, place), most, count);
}

ssize_t pwrite64(int fd, const void *content, size_t count, off64_t place) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    ssize_t most = bound(fd, count);
    return most < 0 ? -1 : end(real(fd, content, (size_t)most, place), most, count);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real) real = dlsym(RTLD_NEXT, "writev");
    if (count < 1 || !is_ours(fd)) return real(fd, parts, count);
    return write(fd, parts[0].iov_base, parts[0].iov_len); /* a short write, which the caller completes */
}
