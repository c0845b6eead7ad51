/*
 * openers.c - COUNT processes open an adapter at the same time, hold it open together, and then close it.
 *
 *   openers [NAME [COUNT]]
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void child(const char *name, const int *start, const int *ready, const int *end)
{
    char byte;
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_IA_HANDLE ia;
    close(start[1]);
    close(end[1]);
    EXPECT(read(start[0], &byte, 1) == 0);
    OK(dat_ia_open((char *)name, 8, &errors, &ia));
    EXPECT(write(ready[1], "", 1) == 1);
    EXPECT(read(end[0], &byte, 1) == 0);
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    exit(0);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "sm0";
    int count = argc > 2 ? atoi(argv[2]) : 500, start[2], ready[2], end[2];
    EXPECT(pipe(start) == 0 && pipe(ready) == 0 && pipe(end) == 0);
    for (int n = 0; n < count; n++) {
        pid_t pid = fork();
        EXPECT(pid >= 0);
        if (pid == 0)
            child(name, start, ready, end);
    }
    close(start[0]);
    close(ready[1]);
    close(end[0]);
    double began = now();
    close(start[1]);
    for (int n = 0; n < count; n++) {
        char byte;
        EXPECT(read(ready[0], &byte, 1) == 1);
    }
    double opened = now();
    close(end[1]);
    for (int n = 0; n < count; n++) {
        int status;
        EXPECT(wait(&status) > 0 && status == 0);
    }
    printf("openers: %d opened in %.3f s and closed in %.3f s\n", count, opened - began, now() - opened);
    printf("openers: OK\n");
    return 0;
}
