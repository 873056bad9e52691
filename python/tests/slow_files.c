/* Calls on files below a folder `slow` take SLOW_FILES_US microseconds, as on a file system that is far away.
 *
 * SLOW_FILES_CALLS: which calls, of `statx`, `open` and `read`; unset: `statx`.
 * SLOW_FILES_SEEN: a file to which the path of each `statx` below `slow` is appended, a line each.
 * SLOW_FILES_FLOCK: the error number with which every `flock` fails, as on a file system without locks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int is_slow(const char *call, const char *path) {
    const char *calls = getenv("SLOW_FILES_CALLS");
    return path != NULL && strstr(path, "/slow/") != NULL && strstr(calls == NULL ? "statx" : calls, call) != NULL;
}

static void wait_for(const char *call, const char *path) {
    const char *us = getenv("SLOW_FILES_US");
    if (us != NULL && is_slow(call, path)) {
        usleep((useconds_t)atol(us));
    }
}

static void count(const char *path) {
    const char *seen = getenv("SLOW_FILES_SEEN");
    if (seen == NULL || path == NULL || strstr(path, "/slow/") == NULL) {
        return;
    }
    char line[PATH_MAX + 1];
    int length = snprintf(line, sizeof line, "%s\n", path);
    int file = open(seen, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || write(file, line, (size_t)length) != length) {
        abort();
    }
    close(file);
}

/* By another name in here: the header says of statx that no path is NULL, and Rust's library asks with one to find
 * out whether there is such a function. */
int seen_slowly(int folder, const char *path, int flags, unsigned int mask, struct statx *seen) __asm__("statx");

int seen_slowly(int folder, const char *path, int flags, unsigned int mask, struct statx *seen) {
    static int (*next)(int, const char *, int, unsigned int, struct statx *);
    if (next == NULL) {
        next = dlsym(RTLD_NEXT, "statx");
    }
    count(path);
    wait_for("statx", path);
    return next(folder, path, flags, mask, seen);
}

int open64(const char *path, int flags, ...) {
    static int (*next)(const char *, int, ...);
    if (next == NULL) {
        next = dlsym(RTLD_NEXT, "open64");
    }
    mode_t mode = 0;
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
    }
    wait_for("open", path);
    return next(path, flags, mode);
}

static void wait_to_read(int file) {
    const char *calls = getenv("SLOW_FILES_CALLS");
    if (calls == NULL || strstr(calls, "read") == NULL) {
        return;
    }
    char link[32], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = '\0';
        wait_for("read", path);
    }
}

ssize_t read(int file, void *to, size_t size) {
    static ssize_t (*next)(int, void *, size_t);
    if (next == NULL) {
        next = dlsym(RTLD_NEXT, "read");
    }
    wait_to_read(file);
    return next(file, to, size);
}

ssize_t pread64(int file, void *to, size_t size, off64_t offset) {
    static ssize_t (*next)(int, void *, size_t, off64_t);
    if (next == NULL) {
        next = dlsym(RTLD_NEXT, "pread64");
    }
    wait_to_read(file);
    return next(file, to, size, offset);
}

int flock(int file, int operation) {
    static int (*next)(int, int);
    if (next == NULL) {
        next = dlsym(RTLD_NEXT, "flock");
    }
    const char *error = getenv("SLOW_FILES_FLOCK");
    if (error != NULL) {
        errno = atoi(error);
        return -1;
    }
    return next(file, operation);
}
