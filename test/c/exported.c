/*
 * exported.c - shared memory of one process that a peer maps, so that the peer's RDMA is a plain copy.
 *
 *   exported ia file|segment mapped|not
 *
 * The owner, a child, makes a sealed memory file or a System V segment, registers it as shared memory, and then only
 * waits. The parent writes and reads that memory by RDMA, before and after the memory appears among the parent's
 * mappings (with "not", it never appears). When the owner has freed the registration, its context is invalid. When the
 * parent has closed its adapter, the mapping is gone.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { QUAL = 6262, LENGTH = 1 << 20, SKIP = 5000, REGION = LENGTH - 2 * SKIP, ROUNDS = 5 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE async, events, receives, requests;
static DAT_EP_HANDLE ep;
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT context;
static const char *kind;

/* The message of the owner to the parent (its context and address), then the written and the read data. */
static struct {
    DAT_RMR_TRIPLET granted;
    unsigned char out[REGION], back[REGION];
} memory;

static DAT_LMR_TRIPLET piece(void *at, size_t length)
{
    DAT_LMR_TRIPLET triplet = { .lmr_context = context, .virtual_address = (DAT_VADDR)(uintptr_t)at,
                                .segment_length = length };
    return triplet;
}

static void begin(char *name)
{
    DAT_REGION_DESCRIPTION region = { .for_va = &memory };
    OK(dat_ia_open(name, 8, &async, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG, &events));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &receives));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &requests));
    OK(dat_ep_create(ia, pz, receives, requests, events, NULL, &ep));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, pz,
                      DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &lmr, &context, NULL, NULL, NULL));
}

static void end(void)
{
    OK(dat_ep_free(ep));
    OK(dat_lmr_free(lmr));
    OK(dat_evd_free(requests));
    OK(dat_evd_free(receives));
    OK(dat_evd_free(events));
    OK(dat_pz_free(pz));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

static void expect_message(uint64_t number)
{
    DAT_LMR_TRIPLET into = piece(&memory.granted, sizeof memory.granted);
    DAT_DTO_COOKIE cookie = { .as_64 = number };
    OK(dat_ep_post_recv(ep, 1, &into, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void send_message(void)
{
    DAT_LMR_TRIPLET from = piece(&memory.granted, sizeof memory.granted);
    DAT_DTO_COOKIE cookie = { .as_64 = 0 };
    OK(dat_ep_post_send(ep, 1, &from, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
}

static void message(uint64_t number)
{
    completed(receives, ep, number, DAT_DTO_SUCCESS, sizeof memory.granted, "a message");
}

/* Memory that other processes can map. */
static unsigned char *shared(void)
{
    void *at;
    if (strcmp(kind, "segment") == 0) {
        int id = shmget(IPC_PRIVATE, LENGTH, 0600);
        EXPECT(id >= 0);
        at = shmat(id, NULL, 0);
        EXPECT(at != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
    } else {
        int file = memfd_create("exported", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        EXPECT(file >= 0 && ftruncate(file, LENGTH) == 0);
        EXPECT(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
        at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        EXPECT(at != MAP_FAILED);
    }
    return at;
}

/* Whether this process has mapped the peer's memory. It has no segment or memfd of its own, so one such mapping
 * suffices. */
static int is_mapped(void)
{
    const char *mark = strcmp(kind, "segment") == 0 ? "/SYSV" : "/memfd:exported";
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    EXPECT(maps != NULL);
    while (fgets(line, sizeof line, maps))
        found |= strstr(line, mark) != NULL;
    fclose(maps);
    return found;
}

static void owner(char *name)
{
    char cookie[DAT_LMR_COOKIE_SIZE] = "name of the memory of exported.c";
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_HANDLE shared_lmr;
    DAT_LMR_CONTEXT local;
    DAT_PSP_HANDLE psp;
    DAT_EVENT event;
    DAT_COUNT more;
    unsigned char *target;

    begin(name);
    target = shared() + SKIP;
    region.for_shared_memory = (DAT_SHARED_MEMORY){ .virtual_address = target, .shared_memory_id = &cookie };
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_SHARED_VIRTUAL, region, REGION, pz, DAT_MEM_PRIV_ALL_FLAG, &shared_lmr, &local,
                      &memory.granted.rmr_context, &memory.granted.segment_length, &memory.granted.target_address));
    OK(dat_psp_create(ia, QUAL, events, DAT_PSP_CONSUMER_FLAG, &psp));
    event = next(events, DAT_CONNECTION_REQUEST_EVENT, "the request");
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL));
    next(events, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
    send_message();
    expect_message(1);
    message(1);
    for (size_t at = 0; at < REGION; at++)
        EXPECT(target[at] == (unsigned char)(ROUNDS - 1 + at * 7));
    OK(dat_lmr_free(shared_lmr));
    send_message();
    OK(dat_evd_wait(events, EVENT_TIMEOUT, 1, &event, &more));
    EXPECT(event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED || event.event_number == DAT_CONNECTION_EVENT_BROKEN);
    OK(dat_psp_free(psp));
    end();
}

/* Writes the whole region, and reads it back. */
static void there_and_back(DAT_RMR_TRIPLET target, int round)
{
    DAT_LMR_TRIPLET from = piece(memory.out, REGION), into = piece(memory.back, REGION);
    DAT_DTO_COOKIE cookie = { .as_64 = round };
    for (size_t at = 0; at < REGION; at++)
        memory.out[at] = (unsigned char)(round + at * 7);
    memset(memory.back, 0, REGION);
    OK(dat_ep_post_rdma_write(ep, 1, &from, cookie, &target, DAT_COMPLETION_SUPPRESS_FLAG));
    OK(dat_ep_post_rdma_read(ep, 1, &into, cookie, &target, DAT_COMPLETION_DEFAULT_FLAG));
    completed(requests, ep, round, DAT_DTO_SUCCESS, REGION, "the read");
    EXPECT(memcmp(memory.out, memory.back, REGION) == 0);
}

static void connect_to_owner(void)
{
    DAT_IA_ATTR adapter;
    DAT_EVENT event;
    DAT_COUNT more;
    expect_message(0);
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &adapter, 0, NULL));
    for (;;) { /* until the owner listens */
        OK(dat_ep_connect(ep, adapter.ia_address_ptr, QUAL, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT,
                          DAT_CONNECT_DEFAULT_FLAG));
        OK(dat_evd_wait(events, EVENT_TIMEOUT, 1, &event, &more));
        if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED)
            return;
        EXPECT(event.event_number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
        completed(receives, ep, 0, DAT_DTO_ERR_FLUSHED, 0, "the receive of a failed attempt");
        OK(dat_ep_reset(ep));
        expect_message(0);
        usleep(10000);
    }
}

static void other(char *name, int wants_mapped)
{
    DAT_RMR_TRIPLET target;
    DAT_DTO_COOKIE cookie = { .as_64 = 1 };
    time_t until = time(NULL) + 300;

    begin(name);
    connect_to_owner();
    message(0);
    target = memory.granted;
    EXPECT(!is_mapped() && target.segment_length == REGION);
    there_and_back(target, 0);
    while (wants_mapped && !is_mapped()) {
        EXPECT(time(NULL) < until);
        there_and_back(target, 0);
    }
    for (int round = 0; round < ROUNDS; round++)
        there_and_back(target, round);
    EXPECT(is_mapped() == wants_mapped);
    expect_message(2);
    send_message();
    message(2);
    DAT_LMR_TRIPLET from = piece(memory.out, 1);
    OK(dat_ep_post_rdma_write(ep, 1, &from, cookie, &target, DAT_COMPLETION_SUPPRESS_FLAG));
    completed(requests, ep, 1, DAT_DTO_ERR_REMOTE_ACCESS, 0, "an RDMA write with an invalid RMR context");
    next(events, DAT_CONNECTION_EVENT_BROKEN, "the end of the connection");
    end();
    EXPECT(!is_mapped());
}

int main(int argc, char **argv)
{
    int status;
    pid_t child;
    EXPECT(argc == 4);
    kind = argv[2];
    child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        owner(argv[1]);
        return 0;
    }
    other(argv[1], strcmp(argv[3], "mapped") == 0);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    printf("exported: OK, %s %s\n", kind, argv[3]);
    return 0;
}
