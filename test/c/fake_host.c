/*
 * fake_host: shows the device of fake_verbs.c in sysfs. It is a part of the same preloaded library, and replaces
 * opendir, open64 and statx, which Rust's standard library calls: paths below /sys/class/infiniband lead to the
 * directory that the variable FAKE_INFINIBAND names.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PLACE "/sys/class/infiniband"

static const char *moved(const char *path, char space[PATH_MAX])
{
    const char *to = getenv("FAKE_INFINIBAND");
    size_t length = sizeof PLACE - 1;
    if (to == NULL || strncmp(path, PLACE, length) != 0 || (path[length] != '/' && path[length] != '\0'))
        return path;
    snprintf(space, PATH_MAX, "%s%s", to, path + length);
    return space;
}

/* POSIX defines this cast for function pointers from dlsym. */
#define NEXT(name) (*(void **)&next = dlsym(RTLD_NEXT, name))

DIR *opendir(const char *path)
{
    DIR *(*next)(const char *);
    char space[PATH_MAX];
    NEXT("opendir");
    return next(moved(path, space));
}

int open64(const char *path, int flags, ...)
{
    int (*next)(const char *, int, ...);
    char space[PATH_MAX];
    va_list list;
    mode_t mode;
    NEXT("open64");
    va_start(list, flags);
    mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
    va_end(list);
    return next(moved(path, space), flags, mode);
}

int statx(int directory, const char *restrict path, int flags, unsigned mask, struct statx *restrict out)
{
    int (*next)(int, const char *, int, unsigned, struct statx *);
    char space[PATH_MAX];
    NEXT("statx");
    return next(directory, moved(path, space), flags, mask, out);
}
