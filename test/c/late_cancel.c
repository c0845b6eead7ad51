/*
 * late_cancel.c - the signal of pthread_cancel arrives when the thread has left its wait and executes another call.
 *
 *   late_cancel IA
 *
 * pthread_cancel of glibc before 2.41 marks a thread that sleeps in dat_evd_wait, and then sends a signal, whose
 * handler ignores that a call defers cancellation. Here a seccomp filter stops the system call that sends the
 * signal, until another thread has ended the wait by an event. The call after the wait logs to a full pipe, so that
 * it is in `write`, a cancellation point. DAPL_DBG_TYPE must enable all messages. A call of DAT 2.0 is used,
 * because its first cancellation point is this `write`: an earlier one would wait for the signal. The thread must
 * be cancelled in its wait, without losing the event, or after the call.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

/* The call by which providers translate the number of an IA to their own handle. */
extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE number, DAT_IA_HANDLE *handle);

static DAT_IA_HANDLE ia, provider;
static DAT_EVD_HANDLE software;
static atomic_int victim, has_waited;
static int pipe_ends[2];

/* Fills the pipe that replaces standard error, so that the next write of a log line blocks. */
static void fill_log(void)
{
    static const char bytes[4096];
    EXPECT(pipe(pipe_ends) == 0);
    EXPECT(fcntl(pipe_ends[1], F_SETFL, O_NONBLOCK) == 0);
    while (write(pipe_ends[1], bytes, sizeof bytes) > 0)
        ;
    EXPECT(errno == EAGAIN);
    EXPECT(fcntl(pipe_ends[1], F_SETFL, 0) == 0);
    EXPECT(dup2(pipe_ends[1], STDERR_FILENO) == STDERR_FILENO);
}

static void *drain_log(void *unused)
{
    char bytes[4096];
    while (read(pipe_ends[0], bytes, sizeof bytes) > 0)
        ;
    return unused;
}

/* Whether the thread has left the sleep of its wait, and blocks in `write` or in glibc, or has exited. */
static int has_moved_on(void)
{
    char path[64];
    long number = -1;
    unsigned long word, operation = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", victim);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 1;
    int count = fscanf(file, "%ld %lx %lx", &number, &word, &operation);
    fclose(file);
    if (count < 3)
        return 0;
    return number == SYS_write || (number == SYS_futex && operation == (FUTEX_WAIT | FUTEX_PRIVATE_FLAG));
}

/* Stops the system call that sends the signal, until the thread has left its wait. */
static void *delay_signal(void *filter)
{
    DAT_EVENT event = {.event_number = DAT_SOFTWARE_EVENT};
    struct seccomp_notif call = {0};
    struct seccomp_notif_resp response = {.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    EXPECT(ioctl(*(int *)filter, SECCOMP_IOCTL_NOTIF_RECV, &call) == 0);
    OK(dat_evd_post_se(software, &event));
    while (!has_moved_on())
        sched_yield();
    response.id = call.id;
    EXPECT(ioctl(*(int *)filter, SECCOMP_IOCTL_NOTIF_SEND, &response) == 0);
    return NULL;
}

/* Makes each tgkill of the calling thread wait for an answer through the returned descriptor. -1 if the kernel refuses
 * that. */
static int stop_signals(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof code / sizeof code[0], .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
}

static void *wait_and_call(void *unused)
{
    DAT_EVENT event;
    DAT_BOOLEAN is_related;
    DAT_COUNT more;
    victim = gettid();
    OK(dat_evd_wait(software, DAT_TIMEOUT_INFINITE, 1, &event, &more));
    has_waited = 1;
    OK(DAT_IA_HA_RELATED(provider, "another", &is_related));
    return unused;
}

/* Waits until the thread sleeps in dat_evd_wait. */
static void wait_for_sleep(void)
{
    char path[64];
    long number = -1;
    while (victim == 0)
        sched_yield();
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", victim);
    while (number != SYS_futex) {
        FILE *file = fopen(path, "r");
        EXPECT(file != NULL);
        if (fscanf(file, "%ld", &number) != 1)
            number = -1;
        fclose(file);
    }
}

int main(int argc, char **argv)
{
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_EVENT event;
    pthread_t thread, delay, drain;
    int filter;
    void *result;
    if (argc < 2)
        fail("usage: late_cancel IA");
    OK(dat_ia_open(argv[1], 8, &errors, &ia));
    OK(dats_get_ia_handle(ia, &provider));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &software));
    EXPECT(pthread_create(&thread, NULL, wait_and_call, NULL) == 0);
    wait_for_sleep();
    fill_log();
    filter = stop_signals();
    if (filter < 0) {
        printf("late_cancel: skipped: the kernel refuses a seccomp filter\n");
        return 0;
    }
    EXPECT(pthread_create(&delay, NULL, delay_signal, &filter) == 0);
    EXPECT(pthread_cancel(thread) == 0);
    EXPECT(pthread_join(delay, NULL) == 0);
    EXPECT(pthread_create(&drain, NULL, drain_log, NULL) == 0);
    EXPECT(pthread_join(thread, &result) == 0);
    if (!has_waited)
        OK(dat_evd_dequeue(software, &event));
    expect_no_event(software, "the EVD after its software event");
    OK(dat_evd_free(software));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    printf("late_cancel: OK, the thread was cancelled %s its wait\n", has_waited ? "after" : "in");
    return 0;
}
