/*
 * instructions.c - transfers between two endpoints of one thread. `cargo xtask bench instructions` runs it under
 * callgrind and counts the instructions of each call. The program checks every completion, and the data.
 *
 *   instructions IA OPERATION BYTES COUNT
 *
 *   send, write, read          COUNT transfers of BYTES bytes, sends in batches; completions are dequeued by
 *                              dat_evd_dequeue
 *   wait                       as send, but completions are dequeued by dat_evd_wait after they have arrived
 *   alone                      one message at a time; sends and receives complete on different EVDs
 *   alone-wait                 as alone, by dat_evd_wait
 *   alone-cno                  as alone, by dat_cno_wait on a CNO of both EVDs, then dequeues until the EVD is empty
 *   shared-write, shared-read  as write and read, with memory that is registered as shared
 *   suppressed                 as send, but only the last send of each batch has a completion
 *   burst                      sends in groups of 4, each with a posted receive; a packet-based provider sends each
 *                              immediately
 *   empty                      COUNT calls of dat_evd_dequeue on an idle connection
 *   register                   COUNT registrations of BYTES bytes
 *
 * Measured calls go through the functions `counted_*`. The first batches run until the provider treats the connection
 * as active. Posts of sends and receives in these batches are measured; the calls that dequeue their completions are
 * not. RDMA operations are posted one by one, and the EVD is polled between them; they are measured once the peer's
 * memory is mapped.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

enum { FIRST_QUAL = 6411, QUALS = 16384, DEPTH = 64, BATCH = 32, BURST = 4, AREA = 256 << 10, WARM_UP = 8, RDMA_WARM_UP = 2000 };
/* Sends per part (two bursts, of which only the last send is counted), empty dequeues per part, and messages with waits
 * per part (the first is not counted). */
enum { PART = 2 * BURST, EMPTY_PART = 1000, WAIT_PART = 9 };

static unsigned char *memory;

/* EVDs for receives and for requests; the same EVD unless each message is sent alone. */
static DAT_EVD_HANDLE data, sends;

static DAT_LMR_CONTEXT key;
static DAT_RMR_CONTEXT remote_key;

/* Defines a function in which callgrind counts: from its entry to its return. The barrier prevents a tail call. */
#define COUNTED(name, call, ...)                                 \
    __attribute__((noinline)) static DAT_RETURN name __VA_ARGS__ \
    {                                                            \
        DAT_RETURN code = call;                                  \
        __asm__ volatile("" ::: "memory");                       \
        return code;                                             \
    }
COUNTED(counted_send, dat_ep_post_send(ep, 1, triplet, cookie, DAT_COMPLETION_DEFAULT_FLAG),
        (DAT_EP_HANDLE ep, DAT_LMR_TRIPLET *triplet, DAT_DTO_COOKIE cookie))
COUNTED(counted_suppressed, dat_ep_post_send(ep, 1, triplet, cookie, DAT_COMPLETION_SUPPRESS_FLAG),
        (DAT_EP_HANDLE ep, DAT_LMR_TRIPLET *triplet, DAT_DTO_COOKIE cookie))
COUNTED(counted_recv, dat_ep_post_recv(ep, 1, triplet, cookie, DAT_COMPLETION_DEFAULT_FLAG),
        (DAT_EP_HANDLE ep, DAT_LMR_TRIPLET *triplet, DAT_DTO_COOKIE cookie))
COUNTED(counted_write, dat_ep_post_rdma_write(ep, 1, triplet, cookie, remote, DAT_COMPLETION_DEFAULT_FLAG),
        (DAT_EP_HANDLE ep, DAT_LMR_TRIPLET *triplet, DAT_DTO_COOKIE cookie, DAT_RMR_TRIPLET *remote))
COUNTED(counted_read, dat_ep_post_rdma_read(ep, 1, triplet, cookie, remote, DAT_COMPLETION_DEFAULT_FLAG),
        (DAT_EP_HANDLE ep, DAT_LMR_TRIPLET *triplet, DAT_DTO_COOKIE cookie, DAT_RMR_TRIPLET *remote))
COUNTED(counted_register,
        dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, bytes, pz, DAT_MEM_PRIV_ALL_FLAG, lmr, &key, &remote_key, NULL, NULL),
        (DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, DAT_REGION_DESCRIPTION region, DAT_VLEN bytes, DAT_LMR_HANDLE *lmr))
COUNTED(counted_deregister, dat_lmr_free(lmr), (DAT_LMR_HANDLE lmr))
COUNTED(counted_dequeue, dat_evd_dequeue(evd, event), (DAT_EVD_HANDLE evd, DAT_EVENT *event))
COUNTED(counted_wait, dat_evd_wait(evd, DAT_TIMEOUT_INFINITE, 1, event, more),
        (DAT_EVD_HANDLE evd, DAT_EVENT *event, DAT_COUNT *more))

/* Waits on the CNO, and dequeues all events of the EVD that the wait returns. Returns the number of events. */
static inline long wait_by_cno(DAT_CNO_HANDLE cno, DAT_EVENT events[2])
{
    DAT_EVD_HANDLE evd;
    DAT_RETURN code;
    long found = 0;
    OK(dat_cno_wait(cno, DAT_TIMEOUT_INFINITE, &evd));
    for (;;) {
        EXPECT(found <= 2);
        code = dat_evd_dequeue(evd, &events[found < 2 ? found : 1]);
        if (DAT_GET_TYPE(code) == DAT_QUEUE_EMPTY)
            return found;
        OK(code);
        found++;
    }
}

__attribute__((noinline)) static long counted_cno(DAT_CNO_HANDLE cno, DAT_EVENT events[2])
{
    long found = wait_by_cno(cno, events);
    __asm__ volatile("" ::: "memory");
    return found;
}

/* Ends a part of the measured calls: callgrind writes their counts when it enters this function. */
__attribute__((noinline)) static void counted_part(void)
{
    __asm__ volatile("" ::: "memory");
}

/* Returns memory for the transfers; shared memory can be mapped by a peer. */
static unsigned char *get_memory(int is_shared)
{
    void *found;
    int file = is_shared ? memfd_create("instructions", MFD_CLOEXEC | MFD_ALLOW_SEALING) : -1;
    if (is_shared)
        EXPECT(file >= 0 && ftruncate(file, 2 * AREA) == 0 && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    found = mmap(NULL, 2 * AREA, PROT_READ | PROT_WRITE, is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file, 0);
    EXPECT(found != MAP_FAILED);
    return found;
}

/* Registers all memory and stores its keys. */
static void register_all(DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, int is_shared)
{
    DAT_LMR_HANDLE lmr;
    char cookie[40] = "";
    DAT_REGION_DESCRIPTION region = { .for_va = memory };
    if (is_shared) {
        snprintf(cookie, sizeof cookie, "instructions %ld", (long)getpid());
        region.for_shared_memory.virtual_address = memory;
        region.for_shared_memory.shared_memory_id = &cookie;
    }
    OK(dat_lmr_create(ia, is_shared ? DAT_MEM_TYPE_SHARED_VIRTUAL : DAT_MEM_TYPE_VIRTUAL, region, 2 * AREA, pz,
                      DAT_MEM_PRIV_ALL_FLAG, &lmr, &key, &remote_key, NULL, NULL));
}

static DAT_EVENT polled(DAT_EVD_HANDLE evd, int is_counted)
{
    DAT_EVENT event;
    DAT_RETURN code;
    do
        code = is_counted ? counted_dequeue(evd, &event) : dat_evd_dequeue(evd, &event);
    while (DAT_GET_TYPE(code) == DAT_QUEUE_EMPTY);
    OK(code);
    return event;
}

static void check(const DAT_EVENT *event, DAT_VLEN bytes)
{
    const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event->event_data.dto_completion_event_data;
    EXPECT(event->event_number == DAT_DTO_COMPLETION_EVENT && dto->status == DAT_DTO_SUCCESS);
    EXPECT(dto->transfered_length == bytes);
}

/* Dequeues the completions of a batch. With `wait`, dat_evd_wait dequeues all but the first completion of a measured
 * batch; all are queued by then. */
static void take(long events, DAT_VLEN bytes, int wait, int is_counted)
{
    DAT_EVENT event;
    DAT_COUNT more = 0;
    for (long n = 0; n < events; n++) {
        if (wait && n > 0 && is_counted)
            OK(counted_wait(data, &event, &more));
        else
            event = polled(data, is_counted && !wait);
        check(&event, bytes);
    }
}

/* Dequeues the two completions of one message. They are on two EVDs, so no call finds a completion that an earlier call
 * has polled. */
static void take_alone(DAT_VLEN bytes, int wait, int is_counted)
{
    DAT_EVD_HANDLE evds[] = { data, sends };
    DAT_EVENT event;
    DAT_COUNT more;
    for (int n = 0; n < 2; n++) {
        if (wait && is_counted)
            OK(counted_wait(evds[n], &event, &more));
        else
            event = polled(evds[n], is_counted && !wait);
        check(&event, bytes);
    }
}

/* Dequeues the two completions of one message by dat_cno_wait. */
static void take_by_cno(DAT_CNO_HANDLE cno, DAT_VLEN bytes, int is_counted)
{
    DAT_EVENT events[2];
    for (long taken = 0, found; taken < 2; taken += found) {
        found = is_counted ? counted_cno(cno, events) : wait_by_cno(cno, events);
        for (long n = 0; n < found; n++)
            check(&events[n], bytes);
    }
}

/* Posts the receives for `count` messages of a batch, starting with message `first`. */
static void post_receives(DAT_EP_HANDLE ep, long first, long count, long bytes)
{
    DAT_LMR_TRIPLET sink = { .lmr_context = key, .segment_length = bytes };
    DAT_DTO_COOKIE cookie = { .as_64 = 1 };
    for (long i = first; i < first + count; i++) {
        sink.virtual_address = (DAT_VADDR)(uintptr_t)(memory + AREA + i * bytes);
        OK(dat_ep_post_recv(ep, 1, &sink, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    }
}

int main(int argc, char **argv)
{
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL, connections, requests;
    DAT_PZ_HANDLE pz;
    DAT_CNO_HANDLE cno = DAT_HANDLE_NULL;
    DAT_LMR_HANDLE lmr;
    DAT_REGION_DESCRIPTION region;
    DAT_EP_HANDLE from, to;
    DAT_EP_ATTR attributes;
    DAT_EP_PARAM parameters;
    DAT_PSP_HANDLE psp;
    DAT_IA_ATTR adapter;
    DAT_EVENT event;
    DAT_DTO_COOKIE cookie = { .as_64 = 1 };
    const char *operation;
    /* Over verbs the qualifier is a TCP port, and another process may run the same program. */
    DAT_CONN_QUAL qual = FIRST_QUAL + (DAT_CONN_QUAL)(getpid() % QUALS);
    long bytes, count, batch, warm_up, empty = 0, sent = 0;
    int is_send, is_wait, is_burst, is_suppressed, is_shared, is_register, is_rdma, is_alone, is_cno, has_parts;

    if (argc != 5 || (bytes = atol(argv[3])) < 8 || bytes > AREA || (count = atol(argv[4])) < 0)
        fail("usage: instructions IA OPERATION BYTES COUNT; 8 to %d bytes", AREA);
    is_shared = !strncmp(argv[2], "shared-", 7);
    operation = argv[2] + (is_shared ? 7 : 0);
    is_register = !strcmp(operation, "register");
    is_rdma = !strcmp(operation, "write") || !strcmp(operation, "read");
    memory = get_memory(is_shared);
    region.for_va = memory;
    is_alone = !strncmp(operation, "alone", 5);
    is_wait = !strcmp(operation, "wait") || !strcmp(operation, "alone-wait");
    is_cno = !strcmp(operation, "alone-cno");
    has_parts = is_alone && (is_wait || is_cno);
    is_burst = !strcmp(operation, "burst");
    is_suppressed = !strcmp(operation, "suppressed");
    is_send = !strcmp(operation, "send") || is_alone || is_wait || is_burst || is_suppressed;
    EXPECT(is_send || is_register || is_rdma || !strcmp(operation, "empty"));
    batch = is_rdma || is_alone ? 1 : AREA / bytes < BATCH ? AREA / bytes : BATCH;
    warm_up = is_rdma ? RDMA_WARM_UP : WARM_UP * batch;

    OK(dat_ia_open(argv[1], 8, &async, &ia));
    OK(dat_ia_query(ia, &async, DAT_IA_FIELD_ALL, &adapter, 0, NULL));
    OK(dat_pz_create(ia, &pz));
    if (is_cno)
        OK(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
    OK(dat_evd_create(ia, 4 * DEPTH, cno, DAT_EVD_DTO_FLAG, &data));
    sends = data;
    if (is_alone)
        OK(dat_evd_create(ia, 4 * DEPTH, cno, DAT_EVD_DTO_FLAG, &sends));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connections));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests));
    register_all(ia, pz, is_shared);
    OK(dat_ep_create(ia, pz, data, sends, connections, NULL, &from));
    OK(dat_ep_query(from, DAT_EP_FIELD_ALL, &parameters));
    attributes = parameters.ep_attr;
    attributes.max_recv_dtos = attributes.max_request_dtos = DEPTH;
    OK(dat_ep_free(from));
    OK(dat_ep_create(ia, pz, data, sends, connections, &attributes, &from));
    OK(dat_ep_create(ia, pz, data, sends, connections, &attributes, &to));
    OK(dat_psp_create(ia, qual, requests, DAT_PSP_CONSUMER_FLAG, &psp));
    OK(dat_ep_connect(from, adapter.ia_address_ptr, qual, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    event = polled(requests, 0);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, to, 0, NULL));
    EXPECT(polled(connections, 0).event_number == DAT_CONNECTION_EVENT_ESTABLISHED);
    EXPECT(polled(connections, 0).event_number == DAT_CONNECTION_EVENT_ESTABLISHED);

    if (!strcmp(operation, "empty")) {
        is_send = 1;
        empty = count;
        count = 0;
    }
    for (long i = 0; is_register && i < count; i++) {
        OK(counted_register(ia, pz, region, bytes, &lmr));
        OK(counted_deregister(lmr));
    }
    if (is_burst)
        post_receives(to, 0, batch, bytes);
    for (long done = -warm_up; done < count && !is_register; done += batch) {
        /* Not the first message of a part: callgrind has just written the counts of the previous part. */
        int is_counted = done >= 0 && !(has_parts && done % WAIT_PART == 0);
        for (long i = 0; i < batch; i++) {
            DAT_LMR_TRIPLET source = { .lmr_context = key, .virtual_address = (DAT_VADDR)(uintptr_t)(memory + i * bytes),
                                       .segment_length = bytes };
            DAT_LMR_TRIPLET sink = source;
            DAT_RMR_TRIPLET remote = { .rmr_context = remote_key, .segment_length = bytes };
            sink.virtual_address += AREA;
            memset(memory + i * bytes, (int)(done + i), bytes);
            if (!strcmp(operation, "read")) {
                remote.target_address = source.virtual_address;
                OK(is_counted ? counted_read(from, &sink, cookie, &remote)
                              : dat_ep_post_rdma_read(from, 1, &sink, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
            } else if (!strcmp(operation, "write")) {
                remote.target_address = sink.virtual_address;
                OK(is_counted ? counted_write(from, &source, cookie, &remote)
                              : dat_ep_post_rdma_write(from, 1, &source, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
            } else if (is_burst) {
                /* Only the last send of a part is counted: the sends before it have armed the timers that expired while
                 * callgrind wrote the counts of the previous part, and have checked the memory. */
                is_counted = sent++ % PART == PART - 1;
                OK(is_counted ? counted_send(from, &source, cookie)
                              : dat_ep_post_send(from, 1, &source, cookie, DAT_COMPLETION_DEFAULT_FLAG));
                if ((i + 1) % BURST == 0) {
                    if (sent % PART == 0)
                        counted_part();
                    take(2 * BURST, bytes, 0, 0);
                    post_receives(to, i + 1 - BURST, BURST, bytes);
                }
            } else {
                OK(counted_recv(to, &sink, cookie));
                OK(is_suppressed && i + 1 < batch ? counted_suppressed(from, &source, cookie)
                                                  : counted_send(from, &source, cookie));
            }
        }
        if (is_cno)
            take_by_cno(cno, bytes, is_counted);
        else if (is_alone)
            take_alone(bytes, is_wait, is_counted);
        else if (!is_burst)
            take(is_suppressed ? batch + 1 : is_send ? 2 * batch : batch, bytes, is_wait, is_counted);
        if (has_parts && is_counted && (done + 1) % WAIT_PART == 0)
            counted_part();
        if (is_rdma)
            EXPECT(DAT_GET_TYPE(dat_evd_dequeue(data, &event)) == DAT_QUEUE_EMPTY); /* as a program that waits for more */
        if (is_rdma && !is_counted)
            sched_yield(); /* the provider's thread maps the memory */
        EXPECT(!memcmp(memory, memory + AREA, batch * bytes));
    }
    for (long i = 0; i < empty; i++) {
        EXPECT(DAT_GET_TYPE(counted_dequeue(data, &event)) == DAT_QUEUE_EMPTY);
        if ((i + 1) % EMPTY_PART == 0)
            counted_part();
    }
    printf("instructions: OK\n");
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    return 0;
}
