/* A system without room for another process: once the file $NO_ROOM_AFTER is there, the first $NO_ROOM_CALLS calls of
 * main threads that would start one fail with EAGAIN. Each appends a byte to the file $NO_ROOM, so that all processes
 * count together. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int has_room(void) {
    const char *path = getenv("NO_ROOM"), *calls = getenv("NO_ROOM_CALLS"), *after = getenv("NO_ROOM_AFTER");
    if (!path || !calls || !after || access(after, F_OK) != 0 || syscall(SYS_gettid) != getpid()) return 1;
    int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    struct stat status;
    if (file < 0) return 1;
    int room = fstat(file, &status) != 0 || status.st_size >= atoi(calls) || write(file, "x", 1) != 1;
    close(file);
    return room;
}

pid_t fork(void) {
    if (has_room()) return ((pid_t(*)(void))dlsym(RTLD_NEXT, "fork"))();
    errno = EAGAIN;
    return -1;
}

/* A function that calls vfork must not return in the child, so fork takes its place. */
pid_t vfork(void) { return fork(); }

typedef int (*spawner)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                       char *const[], char *const[]);

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    if (!has_room()) return EAGAIN;
    return ((spawner)dlsym(RTLD_NEXT, "posix_spawn"))(pid, path, actions, attributes, arguments, environment);
}
