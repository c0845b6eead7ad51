/*
 * vanish.c - registered memory that is unmapped or protected, or whose file another process truncates. A transfer that
 * needs the removed access fails with an error, and no process crashes. Read-only memory can still be a source.
 *
 *   vanish ia
 *
 * Every case runs in a separate process, which has both endpoints of a connection. Each case makes some transfers that
 * succeed, and then one that uses the changed memory. Either a half that no transfer has used was unmapped before all
 * transfers, or the memory of the earlier transfers was changed a millisecond after the last of them.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { QUAL = 6263, LENGTH = 1 << 20, HALF = LENGTH / 2, ROUNDS = 50 };

enum transfer { SEND, WRITE, READ, TRANSFERS };
enum side { LOCAL, REMOTE, SIDES };
enum way { HALVES, UNMAPPED, CUT, READ_ONLY, NO_ACCESS, WAYS };

static const char *const transfers[] = { "send", "write", "read" };
static const char *const sides[] = { "local", "remote" };
static const char *const ways[] = { "halves", "unmapped", "cut", "read-only", "no access" };
/* Lengths for sm: within one slot, slightly more than a page, and many fragments. */
static const size_t lengths[] = { 64, 5000, 200000 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;

struct end {
    DAT_EVD_HANDLE events, receives, requests;
    DAT_EP_HANDLE ep;
};

struct memory {
    unsigned char *at;
    int file;
    DAT_LMR_CONTEXT local;
    DAT_RMR_CONTEXT remote;
};

static struct end new_end(void)
{
    struct end end;
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG, &end.events));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &end.receives));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &end.requests));
    OK(dat_ep_create(ia, pz, end.receives, end.requests, end.events, NULL, &end.ep));
    return end;
}

static void connect_ends(struct end *active, struct end *passive)
{
    DAT_PSP_HANDLE psp;
    DAT_IA_ATTR attr;
    DAT_EVENT event;
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attr, 0, NULL));
    OK(dat_psp_create(ia, QUAL, passive->events, DAT_PSP_CONSUMER_FLAG, &psp));
    OK(dat_ep_connect(active->ep, attr.ia_address_ptr, QUAL, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    event = next(passive->events, DAT_CONNECTION_REQUEST_EVENT, "the request");
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, passive->ep, 0, NULL));
    next(active->events, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
    next(passive->events, DAT_CONNECTION_EVENT_ESTABLISHED, "the other end of it");
    OK(dat_psp_free(psp));
}

static struct memory new_memory(enum way way)
{
    struct memory memory = { .file = -1 };
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_HANDLE lmr;
    if (way == CUT) {
        memory.file = memfd_create("vanish", MFD_CLOEXEC);
        EXPECT(memory.file >= 0 && ftruncate(memory.file, LENGTH) == 0);
    }
    memory.at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE,
                     way == CUT ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, memory.file, 0);
    EXPECT(memory.at != MAP_FAILED);
    region.for_va = memory.at;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, LENGTH, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &memory.local,
                      &memory.remote, NULL, NULL));
    return memory;
}

static void post(enum transfer transfer, struct end *from, struct end *to, struct memory *mine, size_t my_offset,
                 struct memory *theirs, size_t their_offset, size_t length, uint64_t number)
{
    DAT_LMR_TRIPLET local = { .lmr_context = mine->local,
                              .virtual_address = (DAT_VADDR)(uintptr_t)(mine->at + my_offset),
                              .segment_length = length };
    DAT_LMR_TRIPLET into = { .lmr_context = theirs->local,
                             .virtual_address = (DAT_VADDR)(uintptr_t)(theirs->at + their_offset),
                             .segment_length = length };
    DAT_RMR_TRIPLET target = { .rmr_context = theirs->remote,
                               .target_address = (DAT_VADDR)(uintptr_t)(theirs->at + their_offset),
                               .segment_length = length };
    DAT_DTO_COOKIE cookie = { .as_64 = number };
    switch (transfer) {
    case SEND:
        OK(dat_ep_post_recv(to->ep, 1, &into, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        OK(dat_ep_post_send(from->ep, 1, &local, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        break;
    case WRITE:
        OK(dat_ep_post_rdma_write(from->ep, 1, &local, cookie, &target, DAT_COMPLETION_DEFAULT_FLAG));
        break;
    default:
        OK(dat_ep_post_rdma_read(from->ep, 1, &local, cookie, &target, DAT_COMPLETION_DEFAULT_FLAG));
    }
}

/* Dequeues the next event of evd by polling, which leaves the library the least time for checks. */
static void polled(DAT_EVD_HANDLE evd, uint64_t cookie, DAT_DTO_COMPLETION_STATUS status, size_t length, const char *what)
{
    const DAT_DTO_COMPLETION_EVENT_DATA *dto;
    DAT_EVENT event;
    DAT_RETURN ret;
    do
        ret = dat_evd_dequeue(evd, &event);
    while (DAT_GET_TYPE(ret) == DAT_QUEUE_EMPTY);
    OK(ret);
    EXPECT(event.event_number == DAT_DTO_COMPLETION_EVENT);
    dto = &event.event_data.dto_completion_event_data;
    if (dto->user_cookie.as_64 != cookie || dto->status != status)
        fail("%s: cookie %d and status %d, expected cookie %d and status %d", what,
             (int)dto->user_cookie.as_64, (int)dto->status, (int)cookie, (int)status);
    if (status == DAT_DTO_SUCCESS && dto->transfered_length != length)
        fail("%s: %llu bytes, expected %zu", what, (unsigned long long)dto->transfered_length, length);
}

/* Truncates the file in another process. */
static void cut(int file)
{
    int status;
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0)
        _exit(ftruncate(file, 0) == 0 ? 0 : 1);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void vanish(struct memory *memory, enum way way)
{
    switch (way) {
    case HALVES:
        EXPECT(munmap(memory->at + HALF, HALF) == 0);
        break;
    case UNMAPPED:
        EXPECT(munmap(memory->at, LENGTH) == 0);
        break;
    case CUT:
        cut(memory->file);
        break;
    default:
        EXPECT(mprotect(memory->at, LENGTH, way == READ_ONLY ? PROT_READ : PROT_NONE) == 0);
    }
}

static void run(char *name, enum transfer transfer, enum side side, enum way way, size_t length)
{
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    DAT_DTO_COMPLETION_STATUS sent, received = DAT_DTO_SUCCESS;
    struct memory mine, theirs, *gone;
    struct end from, to;
    size_t offset = way == HALVES ? HALF : 0;
    int is_source = (transfer == READ) == (side == REMOTE);

    OK(dat_ia_open(name, 8, &async, &ia));
    OK(dat_pz_create(ia, &pz));
    from = new_end();
    to = new_end();
    mine = new_memory(way);
    theirs = new_memory(way);
    gone = side == LOCAL ? &mine : &theirs;
    connect_ends(&from, &to);

    if (way == HALVES)
        vanish(gone, way);
    for (int n = 0; n < ROUNDS; n++) {
        post(transfer, &from, &to, &mine, 0, &theirs, 0, length, 1);
        polled(from.requests, 1, DAT_DTO_SUCCESS, length, "a request before the memory vanishes");
        if (transfer == SEND)
            polled(to.receives, 1, DAT_DTO_SUCCESS, length, "a receive before the memory vanishes");
    }
    if (way != HALVES) {
        double used = now();
        while (now() < used + 0.001)
            ;
        vanish(gone, way);
    }
    if (side == LOCAL) {
        sent = DAT_DTO_ERR_LOCAL_PROTECTION;
        received = DAT_DTO_ERR_FLUSHED;
    } else {
        sent = transfer == SEND ? DAT_DTO_ERR_REMOTE_RESPONDER : DAT_DTO_ERR_REMOTE_ACCESS;
        received = DAT_DTO_ERR_LOCAL_PROTECTION;
    }
    if (way == READ_ONLY && is_source)
        sent = received = DAT_DTO_SUCCESS;
    post(transfer, &from, &to, &mine, gone == &mine ? offset : 0, &theirs, gone == &theirs ? offset : 0, length, 2);
    polled(from.requests, 2, sent, length, "the request");
    if (transfer == SEND)
        polled(to.receives, 2, received, length, "the receive");
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    exit(0);
}

int main(int argc, char **argv)
{
    int failed = 0, cases = 0;
    if (argc != 2)
        fail("usage: vanish ia");
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int transfer = 0; transfer < TRANSFERS; transfer++)
        for (int side = 0; side < SIDES; side++)
            for (int way = 0; way < WAYS; way++)
                for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
                    int status;
                    pid_t child = fork();
                    EXPECT(child >= 0);
                    if (child == 0)
                        run(argv[1], transfer, side, way, lengths[n]);
                    EXPECT(waitpid(child, &status, 0) == child);
                    cases++;
                    if (status != 0) {
                        failed++;
                        printf("%s, %s memory, %s, %zu bytes: %s %d\n", transfers[transfer], sides[side], ways[way], lengths[n],
                               WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit", WEXITSTATUS(status));
                    }
                }
    if (failed == 0)
        printf("vanish: OK, %d cases\n", cases);
    return failed != 0;
}
