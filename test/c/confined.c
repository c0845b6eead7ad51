/*
 * confined.c - runs a program in a restricted environment.
 *
 *   confined STEP... -- PROGRAM ARGS...
 *
 *   nocma          the kernel refuses to copy between processes, as under the filters of some containers
 *   files=N        at most N descriptors
 *   cpu            one processor
 *   user, pid      a separate user or pid namespace
 *   small=DIR:SIZE an empty file system of this size at DIR
 *   full=DIR       fills the file system of DIR; a preceding step "small" mounts a small one there
 *   readonly=DIR   DIR is mounted read-only
 *   hidden=DIR     an empty file system of 4 KiB is mounted on DIR
 *
 * Exits with status 77 if this system does not permit a step, and with status 2 if a step is unknown or has no valid
 * value; otherwise with the status of the program.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(int is_done, const char *step)
{
    if (!is_done) {
        fprintf(stderr, "confined: %s: %s\n", step, strerror(errno));
        exit(77);
    }
}

static void refuse_copies(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "prctl(PR_SET_NO_NEW_PRIVS)");
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "install a seccomp filter");
    char from = 1, to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    must(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == -1 && errno == EPERM,
         "process_vm_readv is not refused");
}

static void write_to(const char *file, const char *text)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), file);
    close(fd);
}

static void own_users(void)
{
    char ids[32], groups[32];
    snprintf(ids, sizeof ids, "%u %u 1", geteuid(), geteuid());
    snprintf(groups, sizeof groups, "%u %u 1", getegid(), getegid());
    must(unshare(CLONE_NEWUSER) == 0, "create a user namespace");
    write_to("/proc/self/setgroups", "deny");
    write_to("/proc/self/uid_map", ids);
    write_to("/proc/self/gid_map", groups);
}

/* Runs the program in a child: only children of this process are in the new pid namespace. */
static void own_pids(void)
{
    must(unshare(CLONE_NEWPID) == 0, "create a pid namespace");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        must(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl(PR_SET_PDEATHSIG)");
        return;
    }
    int status;
    must(waitpid(child, &status, 0) == child, "wait for the child");
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void own_mounts(void)
{
    static int done;
    if (done++)
        return;
    must(unshare(CLONE_NEWNS) == 0, "create a mount namespace");
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "make all mounts private");
}

static void small(char *directory)
{
    char options[64], *size = strrchr(directory, ':');
    *size++ = 0;
    own_mounts();
    snprintf(options, sizeof options, "size=%s,mode=700", size);
    must(mount("small", directory, "tmpfs", 0, options) == 0, "mount a small tmpfs");
}

static void fill(const char *directory)
{
    static const char block[4096];
    char name[4096];
    snprintf(name, sizeof name, "%s/.filler", directory);
    int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    must(fd >= 0, name);
    while (write(fd, block, sizeof block) > 0)
        ;
    must(errno == ENOSPC, "fill the file system");
    close(fd);
}

static void read_only(const char *directory)
{
    own_mounts();
    must(mount(directory, directory, NULL, MS_BIND, NULL) == 0, "bind mount of the directory");
    must(mount(NULL, directory, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0, "remount the directory read-only");
}

static void hide(const char *directory)
{
    own_mounts();
    must(mount("hidden", directory, "tmpfs", 0, "size=4k") == 0, "mount an empty tmpfs");
}

static void one_processor(void)
{
    cpu_set_t set, one;
    must(sched_getaffinity(0, sizeof set, &set) == 0, "sched_getaffinity");
    CPU_ZERO(&one);
    for (int n = 0; n < CPU_SETSIZE && CPU_COUNT(&one) == 0; n++)
        if (CPU_ISSET(n, &set))
            CPU_SET(n, &one);
    must(sched_setaffinity(0, sizeof one, &one) == 0, "sched_setaffinity");
}

static void invalid(const char *step)
{
    fprintf(stderr,
            "confined: invalid step \"%s\"; the steps are nocma, files=N, cpu, user, pid, small=DIR:SIZE, full=DIR, "
            "readonly=DIR and hidden=DIR\n",
            step);
    exit(2);
}

/* Returns the text after "NAME=", or NULL if this is another step. */
static char *value_of(char *step, const char *name)
{
    size_t length = strlen(name);
    return !strncmp(step, name, length) && step[length] == '=' && step[length + 1] ? step + length + 1 : NULL;
}

static void limit_files(const char *step, const char *value)
{
    char *end;
    rlim_t files = strtoul(value, &end, 10);
    if (*end)
        invalid(step);
    struct rlimit limit = {files, files};
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit(RLIMIT_NOFILE)");
}

static void confine(char *step)
{
    char *value;
    if (!strcmp(step, "nocma"))
        refuse_copies();
    else if (!strcmp(step, "cpu"))
        one_processor();
    else if (!strcmp(step, "user"))
        own_users();
    else if (!strcmp(step, "pid"))
        own_pids();
    else if ((value = value_of(step, "files")))
        limit_files(step, value);
    else if ((value = value_of(step, "small")) && strchr(value, ':'))
        small(value);
    else if ((value = value_of(step, "full")))
        fill(value);
    else if ((value = value_of(step, "readonly")))
        read_only(value);
    else if ((value = value_of(step, "hidden")))
        hide(value);
    else
        invalid(step);
}

int main(int argc, char **argv)
{
    int n = 1;
    for (; n < argc && strcmp(argv[n], "--"); n++)
        confine(argv[n]);
    if (n + 1 >= argc) {
        fprintf(stderr, "usage: confined STEP... -- PROGRAM ARGS...\n");
        return 2;
    }
    execvp(argv[n + 1], argv + n + 1);
    perror(argv[n + 1]);
    return 127;
}
