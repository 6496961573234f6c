/* Records what a power cut would leave of the folder $POWER_ROOT. For LD_PRELOAD.
 *
 * After each fsync, fdatasync, rename, unlink, rmdir and truncate below the folder, a record in $POWER_LOG/log names every
 * file there with its identity (inode and time of birth) and size. The content of a file that is synced is copied to
 * $POWER_LOG/N. One lock over all processes holds the names still while a record is written. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static __thread int inside;
static __thread FILE *out;

static const char *root(void) { return getenv("POWER_ROOT"); }

static void identify(const char *path, char *text) {
    struct statx found;
    if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &found)) strcpy(text, "-");
    else sprintf(text, "%llu.%lld.%u", (unsigned long long)found.stx_ino, (long long)found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
}

static int entry(const char *path, const struct stat *status, int type, struct FTW *where) {
    char id[80];
    (void)where;
    identify(path, id);
    if (strcmp(id, "-")) fprintf(out, "E\t%c\t%s\t%lld\t%s\n", type == FTW_D ? 'd' : 'f', id, (long long)status->st_size, path);
    return 0;
}

/* The lock: a description of its own for each call, so that it holds between threads too. */
static int begin(char *log) {
    snprintf(log, 4096, "%s/log", getenv("POWER_LOG"));
    int lock = open(log, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    flock(lock, LOCK_EX);
    return lock;
}

static void copy(int from, const char *to) {
    static __thread char block[1 << 16];
    int target = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    off_t position = 0;
    ssize_t count;
    while ((count = pread(from, block, sizeof block, position)) > 0) {
        if (write(target, block, count) != count) abort();
        position += count;
    }
    close(target);
}

static void record(int lock, const char *log, const char *what, const char *path, const char *id) {
    out = fopen(log, "ae");
    long long number = lseek(lock, 0, SEEK_END);
    fprintf(out, "R\t%lld\t%s\t%s\t%s\n", number, what, id, path);
    nftw(root(), entry, 16, FTW_PHYS);
    fclose(out);
}

static int is_ours(const char *path) {
    return !inside && root() && path[0] == '/' && !strncmp(path, root(), strlen(root()));
}

/* The absolute path of a name below a descriptor. */
static void absolute(int folder, const char *name, char *path) {
    char link[64], base[3000] = "";
    if (name[0] == '/') { snprintf(path, 4096, "%s", name); return; }
    if (folder == AT_FDCWD) { if (!getcwd(base, sizeof base)) base[0] = 0; }
    else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, base, sizeof base - 1);
        base[length < 0 ? 0 : length] = 0;
    }
    snprintf(path, 4096, "%s%s%s", base, *name ? "/" : "", name);
}

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, name))

static int synced(const char *name, int descriptor) {
    char path[4096], log[4096], copied[8300], id[80];
    int (*real)(int) = REAL(name, int (*)(int));
    absolute(descriptor, "", path);
    if (!is_ours(path)) return real(descriptor);
    inside = 1;
    int lock = begin(log);
    struct stat status;
    fstat(descriptor, &status);
    if (S_ISREG(status.st_mode)) {
        snprintf(copied, sizeof copied, "%s/%lld", getenv("POWER_LOG"), (long long)lseek(lock, 0, SEEK_END));
        char again[64];
        snprintf(again, sizeof again, "/proc/self/fd/%d", descriptor); /* the descriptor may be write-only */
        int reading = open(again, O_RDONLY | O_CLOEXEC);
        copy(reading, copied);
        close(reading);
    }
    int result = real(descriptor), error = errno;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    struct statx found;
    if (statx(descriptor, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &found)) strcpy(id, "-");
    else sprintf(id, "%llu.%lld.%u", (unsigned long long)found.stx_ino, (long long)found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
    record(lock, log, S_ISREG(status.st_mode) ? "sync" : "names", path, id);
    close(lock);
    inside = 0;
    errno = error;
    return result;
}

int fsync(int descriptor) { return synced("fsync", descriptor); }
int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }

#define CHANGE(what, at, name, call)                                                                                   \
    char path[4096], log[4096];                                                                                        \
    absolute(at, name, path);                                                                                          \
    if (!is_ours(path)) return call;                                                                                   \
    inside = 1;                                                                                                        \
    int lock = begin(log), result = call, error = errno;                                                               \
    record(lock, log, what, path, "-");                                                                                \
    close(lock);                                                                                                       \
    inside = 0;                                                                                                        \
    errno = error;                                                                                                     \
    return result;

int unlink(const char *name) { CHANGE("unlink", AT_FDCWD, name, REAL("unlink", int (*)(const char *))(name)) }
int rmdir(const char *name) { CHANGE("rmdir", AT_FDCWD, name, REAL("rmdir", int (*)(const char *))(name)) }
int unlinkat(int at, const char *name, int flags) {
    CHANGE("unlink", at, name, REAL("unlinkat", int (*)(int, const char *, int))(at, name, flags))
}
int rename(const char *from, const char *to) {
    CHANGE("rename", AT_FDCWD, to, REAL("rename", int (*)(const char *, const char *))(from, to))
}
int renameat(int at, const char *from, int to_at, const char *to) {
    CHANGE("rename", to_at, to, REAL("renameat", int (*)(int, const char *, int, const char *))(at, from, to_at, to))
}
int truncate(const char *name, off_t size) {
    CHANGE("truncate", AT_FDCWD, name, REAL("truncate", int (*)(const char *, off_t))(name, size))
}
int truncate64(const char *name, off_t size) {
    CHANGE("truncate", AT_FDCWD, name, REAL("truncate64", int (*)(const char *, off_t))(name, size))
}
