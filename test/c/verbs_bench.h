/*
 * verbs_bench.h: objects for the measurements of verbs_bench.c: an adapter, its EVDs, memory, and a connected endpoint.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef VERBS_BENCH_H
#define VERBS_BENCH_H

#include "check.h"

#include <netdb.h>
#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/* RECEIVES: perftest's number. READS: the number that soft-RoCE permits by default. */
enum { RECEIVES = 512, REQUESTS = 128, READS = 16, EVENTS = 1024, PAGE = 4096 };
/* Cookies of receives and of requests. */
enum { RECEIVE, REQUEST };

struct place {
    uint64_t address;
    uint32_t key;
    uint32_t unused;
};

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE async_evd, cr_evd, connection_evd, request_evd, receive_evd;
static DAT_EP_ATTR attr;
static DAT_EP_HANDLE ep;
static DAT_LMR_TRIPLET in, out;
static DAT_RMR_TRIPLET remote;
static struct place here, there;
static volatile char *arrives;
static char *leaves;
static long size;
static struct sockaddr *server;
static DAT_CONN_QUAL qual = 45300;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Reads the time stamp counter, as perftest does: in a guest, reading the clock can be a system call. */
static uint64_t ticks(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#else
    return (uint64_t)(seconds() * 1e9);
#endif
}

static int later(const void *a, const void *b)
{
    const uint64_t *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

static void report(double usec)
{
    printf("{\"usec\":%.4f}\n", usec);
}

/* Prints half the median of the times between consecutive sends. */
static void report_stamps(uint64_t *stamps, long count, double lasted)
{
    double tick = lasted * 1e6 / (double)(stamps[count - 1] - stamps[0]);
    long n;
    for (n = 0; n + 1 < count; n++)
        stamps[n] = stamps[n + 1] - stamps[n];
    qsort(stamps, (size_t)count - 1, sizeof *stamps, later);
    report((double)stamps[(count - 1) / 2] * tick / 2);
}

static void post_receive_on(DAT_EP_HANDLE which)
{
    DAT_DTO_COOKIE cookie = {.as_64 = RECEIVE};
    OK(dat_ep_post_recv(which, 1, &in, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void post_receive(void)
{
    post_receive_on(ep);
}

static void post_send_on(DAT_EP_HANDLE which)
{
    DAT_DTO_COOKIE cookie = {.as_64 = REQUEST};
    OK(dat_ep_post_send(which, 1, &out, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void post_send(void)
{
    post_send_on(ep);
}

static void post_write(void)
{
    DAT_DTO_COOKIE cookie = {.as_64 = REQUEST};
    OK(dat_ep_post_rdma_write(ep, 1, &out, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
}

static void post_read(void)
{
    DAT_DTO_COOKIE cookie = {.as_64 = REQUEST};
    OK(dat_ep_post_rdma_read(ep, 1, &in, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
}

/* Dequeues an event if one is queued. Returns whether there was one. */
static int dequeue(DAT_EVD_HANDLE evd, DAT_EVENT *event)
{
    DAT_RETURN code = dat_evd_dequeue(evd, event);
    if (DAT_GET_TYPE(code) == DAT_QUEUE_EMPTY)
        return 0;
    check_ok("dat_evd_dequeue", code);
    return 1;
}

/* Polls once. Returns whether there was a completion. */
static int poll_once(DAT_EVD_HANDLE evd)
{
    DAT_EVENT event;
    if (!dequeue(evd, &event))
        return 0;
    check_completion(&event);
    return 1;
}

static void take(DAT_EVD_HANDLE evd)
{
    while (!poll_once(evd))
        ;
}

static void create_ep(DAT_EP_HANDLE *made)
{
    OK(dat_ep_create(ia, pz, receive_evd, request_evd, connection_evd, &attr, made));
}

static void connect_ep(DAT_EP_HANDLE which, int with_data)
{
    OK(dat_ep_connect(which, (DAT_IA_ADDRESS_PTR)server, qual, DAT_TIMEOUT_INFINITE, with_data ? sizeof here : 0, &here,
                      DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
}

static void listen_here(DAT_PSP_HANDLE *psp)
{
    OK(dat_psp_create(ia, qual, cr_evd, DAT_PSP_CONSUMER_FLAG, psp));
    printf("ready\n");
    fflush(stdout);
}

static void open_all(char *name)
{
    DAT_EP_PARAM param;
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT lmr_context;
    DAT_RMR_CONTEXT rmr_context;
    /* Page-aligned, like perftest's buffer: a buffer that crosses a page boundary costs the device more. */
    size_t length = ((size_t)size + PAGE - 1) / PAGE * PAGE;
    char *memory = aligned_alloc(PAGE, 2 * length);

    OK(dat_ia_open(name, 8, &async_evd, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, EVENTS, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &cr_evd));
    OK(dat_evd_create(ia, EVENTS, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connection_evd));
    OK(dat_evd_create(ia, REQUESTS, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &request_evd));
    OK(dat_evd_create(ia, RECEIVES, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &receive_evd));
    OK(dat_ep_create(ia, pz, receive_evd, request_evd, connection_evd, NULL, &ep));
    OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
    OK(dat_ep_free(ep));
    attr = param.ep_attr;
    attr.max_recv_dtos = RECEIVES;
    attr.max_request_dtos = REQUESTS;
    attr.max_rdma_read_in = attr.max_rdma_read_out = READS;

    EXPECT(memory != NULL);
    memset(memory, 0, 2 * length);
    region.for_va = memory;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 2 * length, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr,
                      &lmr_context, &rmr_context, NULL, NULL));
    in = (DAT_LMR_TRIPLET){.lmr_context = lmr_context, .segment_length = size};
    out = in;
    in.virtual_address = (DAT_VADDR)(uintptr_t)memory;
    out.virtual_address = (DAT_VADDR)(uintptr_t)(memory + length);
    here = (struct place){.address = in.virtual_address, .key = rmr_context};
    arrives = memory + size - 1;
    leaves = memory + length + size - 1;
}

/* Connects endpoints one after the other. The private data describe the memory that the peer may access. */
static void connect_all(const DAT_EP_HANDLE *eps, long count)
{
    long n;
    for (n = 0; n < count; n++) {
        DAT_EVENT event;
        connect_ep(eps[n], 1);
        event = next(connection_evd, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
        memcpy(&there, event.event_data.connect_event_data.private_data, sizeof there);
    }
}

/* Accepts endpoints one after the other: the server's side of connect_all. */
static void accept_all(const DAT_EP_HANDLE *eps, long count)
{
    DAT_PSP_HANDLE psp;
    long n;
    listen_here(&psp);
    for (n = 0; n < count; n++) {
        DAT_EVENT event = next(cr_evd, DAT_CONNECTION_REQUEST_EVENT, "a request");
        DAT_CR_HANDLE cr = event.event_data.cr_arrival_event_data.cr_handle;
        DAT_CR_PARAM param;
        OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
        memcpy(&there, param.private_data, sizeof there);
        OK(dat_cr_accept(cr, eps[n], sizeof here, &here));
        next(connection_evd, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
    }
    OK(dat_psp_free(psp));
}

static void disconnect_all(int is_client, const DAT_EP_HANDLE *eps, long count)
{
    long n;
    for (n = 0; is_client && n < count; n++)
        OK(dat_ep_disconnect(eps[n], DAT_CLOSE_GRACEFUL_FLAG));
    for (n = 0; n < count; n++)
        next(connection_evd, DAT_CONNECTION_EVENT_DISCONNECTED, "the end of the connection");
}

#endif
