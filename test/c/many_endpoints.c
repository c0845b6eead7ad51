/*
 * many_endpoints: cost of up to thousands of endpoints on one EVD, all in this process and connected in pairs.
 *
 *   many_endpoints ENDPOINTS [IA]
 *
 * First every endpoint receives one message. All completions go to the same EVD, of length 1,024, which may be less
 * than the number of messages in flight. No completion may be lost, and each must name its endpoint. Then, while the
 * other endpoints are idle, one pair plays ping-pong by polling this EVD, and polls of the empty EVD are timed. At last
 * every endpoint receives another message. Prints one line of JSON with the times per connection, message, half round
 * trip and poll.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <time.h>

#include "check.h"

enum { QUAL = 4711, SIZE = 8, ROUNDS = 20000, POLLS = 200000, MAX_PENDING = 64 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE async_evd, requests, events, completions;
static DAT_EP_HANDLE *eps;
static int first_peer; /* the peer of endpoint 0 */
static DAT_LMR_CONTEXT key;
static char *memory;
static int count;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static DAT_LMR_TRIPLET place(int n)
{
    DAT_LMR_TRIPLET at = {.lmr_context = key, .virtual_address = (DAT_VADDR)(uintptr_t)(memory + n * SIZE),
                          .segment_length = SIZE};
    return at;
}

static void receive(int n)
{
    DAT_LMR_TRIPLET at = place(n);
    DAT_DTO_COOKIE cookie = {.as_64 = (DAT_UINT64)n};
    OK(dat_ep_post_recv(eps[n], 1, &at, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void send_to_peer(int n)
{
    DAT_LMR_TRIPLET at = place(count + n);
    DAT_DTO_COOKIE cookie = {.as_64 = 0};
    OK(dat_ep_post_send(eps[n], 1, &at, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
}

/* Dequeues one receive completion. Returns its endpoint. */
static int take(void)
{
    DAT_EVENT event;
    DAT_RETURN ret;
    double limit = now() + (double)EVENT_TIMEOUT;
    while ((ret = dat_evd_dequeue(completions, &event)) == DAT_QUEUE_EMPTY)
        if (now() > limit)
            fail("no receive completed within %u s: a message is lost", EVENT_TIMEOUT / SECOND);
    OK(ret);
    const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;
    EXPECT(event.event_number == DAT_DTO_COMPLETION_EVENT && dto->status == DAT_DTO_SUCCESS);
    EXPECT(dto->user_cookie.as_64 < (DAT_UINT64)count && dto->transfered_length == SIZE);
    EXPECT(dto->ep_handle == eps[dto->user_cookie.as_64]);
    return (int)dto->user_cookie.as_64;
}

/* Sends one message to each endpoint. All sends are posted before the first completion is dequeued. */
static void all_endpoints(void)
{
    char *seen = calloc((size_t)count, 1);
    for (int n = 0; n < count; n++)
        receive(n);
    for (int n = 0; n < count; n++)
        send_to_peer(n);
    for (int n = 0; n < count; n++) {
        int who = take();
        EXPECT(!seen[who]);
        seen[who] = 1;
    }
    free(seen);
    expect_no_event(completions, "the EVD after one completion of each endpoint");
}

static void connect_all(void)
{
    DAT_IA_ATTR adapter;
    DAT_EVENT event;
    int asked = 0, accepted = 0, established = 0;
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &adapter, 0, NULL));
    /* Even endpoints connect and send their number as private data; odd endpoints accept. */
    while (established < count) {
        while (asked < count && asked / 2 - accepted < MAX_PENDING) {
            OK(dat_ep_connect(eps[asked], adapter.ia_address_ptr, QUAL, DAT_TIMEOUT_INFINITE, sizeof asked, &asked,
                              DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
            asked += 2;
        }
        DAT_COUNT more;
        OK(dat_evd_wait(events, EVENT_TIMEOUT, 1, &event, &more));
        if (event.event_number == DAT_CONNECTION_REQUEST_EVENT) {
            DAT_CR_HANDLE request = event.event_data.cr_arrival_event_data.cr_handle;
            DAT_CR_PARAM param;
            OK(dat_cr_query(request, DAT_CR_FIELD_ALL, &param));
            /* Some transports pad private data, so it may be longer than the number. */
            EXPECT(param.private_data_size >= (DAT_COUNT)sizeof asked);
            if (*(int *)param.private_data == 0)
                first_peer = 2 * accepted + 1;
            OK(dat_cr_accept(request, eps[2 * accepted + 1], 0, NULL));
            accepted++;
        } else {
            EXPECT(event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED);
            established++;
        }
    }
}

/* One-way time in microseconds between two endpoints while the others are idle. */
static double ping_pong(void)
{
    double begin = 0;
    int other = first_peer;
    receive(0);
    receive(other);
    send_to_peer(0);
    EXPECT(take() == other);
    for (int n = -ROUNDS / 10; n < ROUNDS; n++) {
        if (n == 0)
            begin = now();
        receive(other);
        send_to_peer(other);
        EXPECT(take() == 0);
        receive(0);
        send_to_peer(0);
        EXPECT(take() == other);
    }
    return (now() - begin) / ROUNDS / 2;
}

static double empty_look(void)
{
    DAT_EVENT event;
    double begin = now();
    for (int n = 0; n < POLLS; n++)
        EXPECT(dat_evd_dequeue(completions, &event) == DAT_QUEUE_EMPTY);
    return (now() - begin) / POLLS;
}

int main(int argc, char **argv)
{
    DAT_REGION_DESCRIPTION region;
    DAT_PSP_HANDLE psp;
    DAT_LMR_HANDLE lmr;
    struct rlimit files;

    EXPECT(argc >= 2);
    count = atoi(argv[1]) / 2 * 2;
    EXPECT(count >= 2);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);

    async_evd = DAT_HANDLE_NULL;
    OK(dat_ia_open(argc > 2 ? argv[2] : "sm0", 8, &async_evd, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 2 * MAX_PENDING, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG, &events));
    requests = events;
    OK(dat_evd_create(ia, 1024, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &completions));
    OK(dat_psp_create(ia, QUAL, requests, DAT_PSP_CONSUMER_FLAG, &psp));
    memory = calloc(2, (size_t)count * SIZE);
    region.for_va = memory;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 2 * (DAT_VLEN)count * SIZE, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &key, NULL,
                      NULL, NULL));
    eps = calloc((size_t)count, sizeof *eps);
    for (int n = 0; n < count; n++)
        OK(dat_ep_create(ia, pz, completions, completions, events, NULL, &eps[n]));

    double begin = now();
    connect_all();
    double connecting = (now() - begin) / count * 2;
    begin = now();
    all_endpoints();
    double each = (now() - begin) / count;
    /* 0.6 s without traffic. Connections that a provider counts as idle sooner (sm: after 0.5 s) are not polled in the
     * measurement. */
    for (double until = now() + 600000; now() < until;)
        expect_no_event(completions, "idle");
    double way = ping_pong();
    double look = empty_look();
    all_endpoints();

    for (int n = 0; n < count; n++)
        OK(dat_ep_free(eps[n]));
    OK(dat_psp_free(psp));
    OK(dat_lmr_free(lmr));
    OK(dat_evd_free(completions));
    OK(dat_evd_free(events));
    OK(dat_pz_free(pz));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    printf("{\"endpoints\":%d,\"connect_usec\":%.2f,\"message_usec\":%.3f,\"pingpong_usec\":%.3f,\"empty_usec\":%.4f}\n", count,
           connecting, each, way, look);
    return 0;
}
