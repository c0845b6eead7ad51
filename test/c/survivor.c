/*
 * survivor.c - the peer of a process that ends or stops receives one event, all its DTOs are flushed, and no call
 * hangs.
 *
 *   survivor ia kill|exit|stop [busy]
 *
 * The child accepts the parent's connection and posts no receive. Then the parent ends it by SIGKILL or stops it by
 * SIGSTOP, or it ends by exit() with everything open. With "busy" the signal is sent while it streams RDMA writes to
 * the parent. The parent then waits for its one event and its flushes, and prints how long that took. The time is not
 * checked.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <netinet/in.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { BUFFER = 1 << 20, POSTED = 6, QUAL = 5151 };

struct side {
    DAT_IA_HANDLE ia;
    DAT_PZ_HANDLE pz;
    DAT_EVD_HANDLE async, requests, connection, receives, sends;
    DAT_EP_HANDLE ep;
    DAT_LMR_TRIPLET memory;
    DAT_RMR_TRIPLET remote;
};

static char buffer[BUFFER];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void open_side(struct side *s, char *name)
{
    DAT_REGION_DESCRIPTION region = {.for_va = buffer};
    DAT_LMR_HANDLE lmr;
    memset(s, 0, sizeof *s);
    OK(dat_ia_open(name, 8, &s->async, &s->ia));
    OK(dat_pz_create(s->ia, &s->pz));
    OK(dat_evd_create(s->ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &s->requests));
    OK(dat_evd_create(s->ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &s->connection));
    OK(dat_evd_create(s->ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &s->receives));
    OK(dat_evd_create(s->ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &s->sends));
    OK(dat_ep_create(s->ia, s->pz, s->receives, s->sends, s->connection, NULL, &s->ep));
    OK(dat_lmr_create(s->ia, DAT_MEM_TYPE_VIRTUAL, region, BUFFER, s->pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &s->memory.lmr_context,
                      &s->remote.rmr_context, NULL, NULL));
    s->memory.virtual_address = (DAT_VADDR)(uintptr_t)buffer;
    s->memory.segment_length = BUFFER;
    s->remote.target_address = s->memory.virtual_address;
    s->remote.segment_length = BUFFER;
}

static void stream(struct side *s, DAT_RMR_TRIPLET target)
{
    memset(buffer, 7, sizeof buffer);
    for (;;) {
        DAT_DTO_COOKIE cookie = {.as_64 = 1};
        DAT_EVENT event;
        OK(dat_ep_post_rdma_write(s->ep, 1, &s->memory, cookie, &target, DAT_COMPLETION_DEFAULT_FLAG));
        while (dat_evd_dequeue(s->sends, &event) != DAT_SUCCESS)
            ;
    }
}

/* Accepts a connection. Then streams writes or waits until the parent kills this process, or exits without closing
 * anything. */
static void child(char *name, int ready, int busy, int leaves)
{
    struct side s;
    DAT_PSP_HANDLE psp;
    DAT_EVENT event;
    DAT_CR_PARAM param;
    DAT_RMR_TRIPLET target;
    open_side(&s, name);
    OK(dat_psp_create(s.ia, QUAL, s.requests, DAT_PSP_CONSUMER_FLAG, &psp));
    EXPECT(write(ready, "r", 1) == 1);
    event = next(s.requests, DAT_CONNECTION_REQUEST_EVENT, "the request");
    OK(dat_cr_query(event.event_data.cr_arrival_event_data.cr_handle, DAT_CR_FIELD_ALL, &param));
    EXPECT(param.private_data_size == (DAT_COUNT)sizeof target);
    memcpy(&target, param.private_data, sizeof target);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, s.ep, 0, NULL));
    next(s.connection, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
    EXPECT(write(ready, "c", 1) == 1);
    if (leaves)
        exit(0);
    if (busy)
        stream(&s, target);
    for (;;)
        pause();
}

/* Dequeues `count` flushed completions in order, and checks that no other event follows. */
static void flushed(struct side *s, DAT_EVD_HANDLE evd, int count, const char *what)
{
    int n;
    DAT_EVENT event;
    for (n = 0; n < count; n++)
        completed(evd, s->ep, (uint64_t)n, DAT_DTO_ERR_FLUSHED, 0, what);
    EXPECT(dat_evd_dequeue(evd, &event) == DAT_QUEUE_EMPTY);
}

int main(int argc, char **argv)
{
    struct side s;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int ready[2], n, leaves, busy;
    char byte;
    pid_t pid;
    double begin, gone;
    DAT_EVENT event;
    DAT_EP_STATE state;

    if (argc < 3)
        fail("usage: survivor ia kill|exit|stop [busy]");
    leaves = strcmp(argv[2], "exit") == 0;
    busy = argc > 3;
    EXPECT(pipe(ready) == 0);
    pid = fork();
    EXPECT(pid >= 0);
    if (pid == 0)
        child(argv[1], ready[1], busy, leaves);
    EXPECT(read(ready[0], &byte, 1) == 1);

    open_side(&s, argv[1]);
    for (n = 0; n < POSTED; n++) {
        DAT_DTO_COOKIE cookie = {.as_64 = (DAT_UINT64)n};
        OK(dat_ep_post_recv(s.ep, 1, &s.memory, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    }
    OK(dat_ep_connect(s.ep, (DAT_IA_ADDRESS_PTR)&here, QUAL, 60 * SECOND, sizeof s.remote, &s.remote, DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    next(s.connection, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
    if (!leaves) {
        /* The peer posts no receive for these sends. */
        for (n = 0; n < POSTED; n++) {
            DAT_DTO_COOKIE cookie = {.as_64 = (DAT_UINT64)n};
            OK(dat_ep_post_send(s.ep, 1, &s.memory, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        }
    }
    EXPECT(read(ready[0], &byte, 1) == 1);
    if (busy) {
        /* The signal is sent in the middle of the peer's stream: the first data has arrived. */
        volatile char *first = buffer;
        while (*first == 0 && waitpid(pid, NULL, WNOHANG) == 0)
            if (dat_evd_dequeue(s.receives, &event) == DAT_SUCCESS)
                fail("a receive completed before the signal, expected none");
    }
    begin = now();
    if (!leaves)
        EXPECT(kill(pid, strcmp(argv[2], "stop") == 0 ? SIGSTOP : SIGKILL) == 0);
    next(s.connection, DAT_CONNECTION_EVENT_DISCONNECTED, "the end of the connection");
    gone = now();
    flushed(&s, s.receives, POSTED, "a receive");
    flushed(&s, s.sends, leaves ? 0 : POSTED, "a send");
    OK(dat_ep_get_status(s.ep, &state, NULL, NULL));
    EXPECT(state == DAT_EP_STATE_DISCONNECTED);
    EXPECT(dat_evd_dequeue(s.connection, &event) == DAT_QUEUE_EMPTY);
    kill(pid, SIGKILL);
    OK(dat_ia_close(s.ia, DAT_CLOSE_ABRUPT_FLAG));
    EXPECT(waitpid(pid, NULL, 0) == pid);
    printf("survivor: event after %.0f us, flushes after %.0f us\n", gone - begin, now() - begin);
    printf("survivor: OK\n");
    return 0;
}
