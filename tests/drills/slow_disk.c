/* A disk that does not answer: statvfs sleeps as long as the file $SLOW_DISK is there. For LD_PRELOAD.
 * The names with 64 are what a program asks for that was built for large files. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void *after_waiting(const char *name) {
    const char *path = getenv("SLOW_DISK");
    while (path && access(path, F_OK) == 0) usleep(50000);
    return dlsym(RTLD_NEXT, name);
}

typedef int (*by_path)(const char *, void *);
typedef int (*by_number)(int, void *);

int statvfs(const char *path, struct statvfs *out) { return ((by_path)after_waiting("statvfs"))(path, out); }
int statvfs64(const char *path, struct statvfs64 *out) { return ((by_path)after_waiting("statvfs64"))(path, out); }
int fstatvfs(int fd, struct statvfs *out) { return ((by_number)after_waiting("fstatvfs"))(fd, out); }
int fstatvfs64(int fd, struct statvfs64 *out) { return ((by_number)after_waiting("fstatvfs64"))(fd, out); }
