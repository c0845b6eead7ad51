/*
 * perf.h: objects for the measurements of perf.c: one adapter, its EVDs, memory, and endpoints connected to another
 * process.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef PERF_H
#define PERF_H

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { EVENTS = 4096, PAGE = 4096 };

/* Memory for the peer's writes, sent as private data. */
struct place {
    uint64_t address;
    uint64_t key;
};

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE async_evd, events, completions;
/* `requests` equals `completions` except with -2 or -T. `own_evds`, of mode `threads`: one EVD per endpoint. */
static DAT_EVD_HANDLE requests, *own_evds;
static DAT_CNO_HANDLE cno;
static DAT_EP_HANDLE *eps;
static DAT_LMR_TRIPLET in, out;
static DAT_RMR_TRIPLET remote;
static struct place here, there;
static char *incoming, *outgoing;

static const char *host;
static char *name = "sm0";
static DAT_CONN_QUAL qual = 45300;
static long size, depth, connections = 1, processes = 1;
static int sleeps, is_shared, has_two_evds, has_cno, has_reaper, has_threads;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void pause_for(double duration)
{
    struct timespec time = {.tv_sec = (time_t)duration};
    if (duration <= 0)
        return;
    time.tv_nsec = (long)((duration - (double)time.tv_sec) * 1e9);
    while (nanosleep(&time, &time) != 0)
        ;
}

static void post_receive(long n)
{
    DAT_DTO_COOKIE cookie = {.as_64 = (DAT_UINT64)n};
    OK(dat_ep_post_recv(eps[n], 1, &in, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

/* Returns memory in which every page was written once: pages never written all map the same zero page, and accesses
 * to them are cheaper. */
static char *get_memory(size_t length)
{
    char *memory;
    if (is_shared) {
        int file = memfd_create("perf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (file < 0 || ftruncate(file, (off_t)length) != 0)
            fail("perf: memfd_create or ftruncate of %zu bytes failed", length);
        /* Without seals the provider may use a slower method. That figure is still valid. */
        if (fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
            fprintf(stderr, "perf: cannot seal the shared memory, so the provider may use a slower method\n");
        memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        EXPECT(memory != MAP_FAILED);
        /* The descriptor stays open: the provider passes the memory to peers through the descriptor. */
    } else {
        memory = aligned_alloc(PAGE, length);
        EXPECT(memory != NULL);
    }
    memset(memory, 1, length);
    return memory;
}

/* Registers memory from `get_memory`. Shared memory is registered as shared, so that the provider can map it in the
 * peer. */
static void register_memory(char *bytes, size_t length, DAT_LMR_HANDLE *lmr, DAT_LMR_CONTEXT *key, DAT_RMR_CONTEXT *remote_key)
{
    static long count;
    char cookie[40] = "";
    DAT_REGION_DESCRIPTION region;
    if (is_shared) {
        /* Each registration of each process needs a unique name. */
        snprintf(cookie, sizeof cookie, "perf %ld %ld %.6f", (long)getpid(), count++, seconds());
        region.for_shared_memory.virtual_address = bytes;
        region.for_shared_memory.shared_memory_id = &cookie;
    } else {
        region.for_va = bytes;
    }
    OK(dat_lmr_create(ia, is_shared ? DAT_MEM_TYPE_SHARED_VIRTUAL : DAT_MEM_TYPE_VIRTUAL, region, length, pz,
                      DAT_MEM_PRIV_ALL_FLAG, lmr, key, remote_key, NULL, NULL));
}

static void make_memory(void)
{
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT key;
    DAT_RMR_CONTEXT remote_key;
    size_t space = ((size_t)size + PAGE - 1) / PAGE * PAGE;

    incoming = get_memory(2 * space);
    outgoing = incoming + space;
    register_memory(incoming, 2 * space, &lmr, &key, &remote_key);
    in = (DAT_LMR_TRIPLET){.lmr_context = key, .segment_length = (DAT_VLEN)size};
    out = in;
    in.virtual_address = (DAT_VADDR)(uintptr_t)incoming;
    out.virtual_address = (DAT_VADDR)(uintptr_t)outgoing;
    here = (struct place){.address = in.virtual_address, .key = remote_key};
}

static DAT_EVD_HANDLE create_evd(long length)
{
    DAT_EVD_HANDLE evd;
    OK(dat_evd_create(ia, (DAT_COUNT)(length < EVENTS ? length : EVENTS), cno, DAT_EVD_DTO_FLAG, &evd));
    return evd;
}

/* EVD on which the receives of endpoint n complete. */
static DAT_EVD_HANDLE receives_of(long n)
{
    return has_threads ? own_evds[n] : completions;
}

static DAT_EVD_HANDLE requests_of(long n)
{
    return has_threads ? own_evds[n] : requests;
}

static void open_all(void)
{
    struct rlimit files;
    long queue = 3 * depth * connections * processes;

    EXPECT(getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = files.rlim_max;
    EXPECT(setrlimit(RLIMIT_NOFILE, &files) == 0);
    OK(dat_ia_open(name, 8, &async_evd, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, EVENTS, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG, &events));
    if (has_cno)
        OK(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
    completions = create_evd(queue);
    requests = has_two_evds ? create_evd(queue) : completions;
    make_memory();
}

/* Creates `count` endpoints with `receives` posted receives each. 0: none are posted, and the endpoints have the
 * provider's default attributes. */
static void create_eps(long count, long receives)
{
    DAT_EP_PARAM param;
    DAT_EP_HANDLE model;
    long n, r;

    OK(dat_ep_create(ia, pz, completions, completions, events, NULL, &model));
    OK(dat_ep_query(model, DAT_EP_FIELD_ALL, &param));
    OK(dat_ep_free(model));
    param.ep_attr.max_recv_dtos = (DAT_COUNT)(2 * receives);
    param.ep_attr.max_request_dtos = (DAT_COUNT)receives;
    eps = calloc((size_t)count, sizeof *eps);
    own_evds = calloc((size_t)count, sizeof *own_evds);
    EXPECT(eps != NULL && own_evds != NULL);
    for (n = 0; n < count; n++) {
        if (has_threads)
            own_evds[n] = create_evd(3 * depth);
        OK(dat_ep_create(ia, pz, receives_of(n), requests_of(n), events, receives > 0 ? &param.ep_attr : NULL,
                         &eps[n]));
        for (r = 0; r < receives; r++)
            post_receive(n);
    }
}

static DAT_EVENT next_of_two(DAT_EVENT_NUMBER one, DAT_EVENT_NUMBER other)
{
    DAT_EVENT event;
    DAT_COUNT more;
    OK(dat_evd_wait(events, EVENT_TIMEOUT, 1, &event, &more));
    if (event.event_number != one && event.event_number != other)
        fail("perf: event 0x%x, expected 0x%x or 0x%x", (unsigned)event.event_number, (unsigned)one, (unsigned)other);
    return event;
}

/* Connections whose end was reported before `disconnect_all`: while others were established, or in a measurement. */
static long gone;

static void accept_all(long count)
{
    DAT_PSP_HANDLE psp;
    DAT_EVENT event;
    DAT_COUNT more;
    long accepted = 0, stand = 0;
    OK(dat_psp_create(ia, qual, events, DAT_PSP_CONSUMER_FLAG, &psp));
    printf("perf: listening\n");
    fflush(stdout);
    while (stand < count) {
        OK(dat_evd_wait(events, EVENT_TIMEOUT, 1, &event, &more));
        switch (event.event_number) {
        case DAT_CONNECTION_EVENT_ESTABLISHED:
            stand++;
            break;
        case DAT_CONNECTION_EVENT_DISCONNECTED:
            gone++;
            break;
        case DAT_CONNECTION_REQUEST_EVENT:
            if (accepted == count)
                fail("perf: more connection requests than the expected %d", (int)count);
            OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, eps[accepted++], sizeof here, &here));
            break;
        default:
            fail("perf: unexpected event 0x%x while connections are made", (unsigned)event.event_number);
        }
    }
    OK(dat_psp_free(psp));
}

static void connect_all(long count, long width)
{
    struct addrinfo hints = {.ai_family = AF_INET}, *found;
    long asked = 0, stand = 0;
    if (getaddrinfo(host, NULL, &hints, &found) != 0)
        fail("perf: unknown host %s", host);
    while (stand < count) {
        if (asked < count && asked - stand < width) {
            OK(dat_ep_connect(eps[asked++], found->ai_addr, qual, 10 * SECOND, 0, NULL, DAT_QOS_BEST_EFFORT,
                              DAT_CONNECT_DEFAULT_FLAG));
            continue;
        }
        DAT_EVENT event = next(events, DAT_CONNECTION_EVENT_ESTABLISHED, "a connection");
        const DAT_CONNECTION_EVENT_DATA *data = &event.event_data.connect_event_data;
        EXPECT(data->private_data_size >= (DAT_COUNT)sizeof there);
        memcpy(&there, data->private_data, sizeof there);
        stand++;
    }
    freeaddrinfo(found);
}

/* The client disconnects all connections. Both sides wait for the disconnect events that were not reported before. */
static void disconnect_all(long count)
{
    long n;
    for (n = 0; host != NULL && n < count; n++)
        OK(dat_ep_disconnect(eps[n], DAT_CLOSE_GRACEFUL_FLAG));
    for (n = gone; n < count; n++)
        next(events, DAT_CONNECTION_EVENT_DISCONNECTED, "the end of the connection");
}

#endif
