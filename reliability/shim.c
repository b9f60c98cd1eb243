/* Faults of one process, by LD_PRELOAD:
 *
 * TOLLGATE_CLOCK   a file with a 64-bit offset in seconds, by which the wall clock is shifted. The file is mapped, so that
 *                  a test can step the clock while the process runs.
 * TOLLGATE_SYNCED  a log of what is on disk: "S bytes path" after a sync, "T bytes path" after a truncation, "R from to"
 *                  after a rename. After a kill, a test cuts files to the synced length, as a loss of power would.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_s;
static int synced = -1;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void start(void) {
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *clock = getenv("TOLLGATE_CLOCK"), *log = getenv("TOLLGATE_SYNCED");
    int file = clock ? open(clock, O_RDONLY | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(0, sizeof *offset_s, PROT_READ, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) offset_s = map;
    if (file >= 0) close(file);
    if (log && synced < 0) synced = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real_clock_gettime) start();
    int result = real_clock_gettime(id, at);
    if (result == 0 && offset_s && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *offset_s;
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* Appends one line to the log, in one write. */
static void note(char kind, int fd) {
    char link[64], path[2048], line[2176];
    struct stat file;
    if (synced < 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, path, sizeof path - 1);
    if (bytes < 0 || fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) return;
    path[bytes] = 0;
    int length = snprintf(line, sizeof line, "%c %lld %s\n", kind, (long long)file.st_size, path);
    if (write(synced, line, length) != length) abort();
}

#define AFTER(type, name, kind, parameters, ...)                           \
    type name parameters {                                                 \
        type(*real) parameters = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        type result = real(__VA_ARGS__);                                   \
        if (result == 0) note(kind, fd);                                   \
        return result;                                                     \
    }

AFTER(int, fsync, 'S', (int fd), fd)
AFTER(int, fdatasync, 'S', (int fd), fd)
AFTER(int, ftruncate, 'T', (int fd, off_t length), fd, length)
AFTER(int, ftruncate64, 'T', (int fd, off64_t length), fd, length)

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    int result = real(from, to);
    char line[4200];
    if (result == 0 && synced >= 0) {
        int length = snprintf(line, sizeof line, "R %s %s\n", from, to);
        if (write(synced, line, length) != length) abort();
    }
    return result;
}
