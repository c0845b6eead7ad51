/*
 * perf: measures one figure between two processes, the way a latency-bound consumer uses the API: preposted receives,
 * suppressed sends, one EVD, polling.
 *
 *   perf -s [-P ia] [-q qual] lat|rate SIZE COUNT                server
 *   perf -h host [-P ia] [-q qual] lat|rate SIZE COUNT           client: prints one line of JSON
 *
 * lat: half a round trip in microseconds. rate: millions of messages per second, from the first post until the server
 * says that it has them all. It checks nothing but return codes: dtest and the suites check data.
 */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <netinet/in.h>

#include <dat/udat.h>

enum { RECEIVES = 1024, REQUESTS = 512, SIGNAL_EVERY = 64, WARM_UP = 2000 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE async_evd, cr_evd, conn_evd, dto_evd;
static DAT_EP_HANDLE ep;
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT key;
static char *memory;
static long size;
static int received, sent;

static void check(DAT_RETURN code, const char *what)
{
    const char *major = "", *minor = "";
    if (code == DAT_SUCCESS)
        return;
    dat_strerror(code, &major, &minor);
    fprintf(stderr, "perf: %s: %s %s\n", what, major, minor);
    exit(1);
}

static DAT_LMR_TRIPLET segment(char *at)
{
    DAT_LMR_TRIPLET triplet = {.lmr_context = key, .virtual_address = (DAT_VADDR)(uintptr_t)at, .segment_length = size};
    return triplet;
}

static void post_receive(void)
{
    DAT_LMR_TRIPLET in = segment(memory);
    DAT_DTO_COOKIE cookie = {.as_64 = 0};
    check(dat_ep_post_recv(ep, 1, &in, cookie, DAT_COMPLETION_DEFAULT_FLAG), "post_recv");
}

/* Takes what has completed. Receives are hundreds deep, so a used one is posted again when there is time for it. */
static void poll_once(void)
{
    DAT_EVENT event;
    DAT_RETURN code = dat_evd_dequeue(dto_evd, &event);
    if (code == DAT_QUEUE_EMPTY)
        return;
    check(code, "dequeue");
    DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;
    if (event.event_number != DAT_DTO_COMPLETION_EVENT || dto->status != DAT_DTO_SUCCESS) {
        fprintf(stderr, "perf: event %x status %u\n", (unsigned)event.event_number, (unsigned)dto->status);
        exit(1);
    }
    if (dto->user_cookie.as_64 == 0) {
        received++;
    } else {
        sent += (int)dto->user_cookie.as_64;
    }
}

static void send_one(int signalled)
{
    DAT_LMR_TRIPLET out = segment(memory + size);
    DAT_DTO_COOKIE cookie = {.as_64 = signalled};
    check(dat_ep_post_send(ep, 1, &out, cookie, signalled ? DAT_COMPLETION_DEFAULT_FLAG : DAT_COMPLETION_SUPPRESS_FLAG),
          "post_send");
}

static void await_received(int count)
{
    while (received < count)
        poll_once();
}

/* The same, each used receive posted again at once. */
static void take(int count)
{
    int before;
    while ((before = received) < count) {
        poll_once();
        if (received > before)
            post_receive();
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void open_all(char *name)
{
    DAT_REGION_DESCRIPTION region;
    DAT_EP_ATTR attr;
    DAT_EP_PARAM param;
    int n;

    check(dat_ia_open(name, 8, &async_evd, &ia), "ia_open");
    check(dat_pz_create(ia, &pz), "pz_create");
    check(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &cr_evd), "evd_create");
    check(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &conn_evd), "evd_create");
    check(dat_evd_create(ia, RECEIVES + REQUESTS, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &dto_evd), "evd_create");
    check(dat_ep_create(ia, pz, dto_evd, dto_evd, conn_evd, NULL, &ep), "ep_create");
    check(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param), "ep_query");
    attr = param.ep_attr;
    check(dat_ep_free(ep), "ep_free");
    attr.max_recv_dtos = RECEIVES;
    attr.max_request_dtos = REQUESTS;
    check(dat_ep_create(ia, pz, dto_evd, dto_evd, conn_evd, &attr, &ep), "ep_create");
    memory = calloc(2, (size_t)size + 64);
    region.for_va = memory;
    check(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 2 * ((DAT_VLEN)size + 64), pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &key,
                         NULL, NULL, NULL),
          "lmr_create");
    for (n = 0; n < RECEIVES / 2; n++)
        post_receive();
}

static void await_event(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER wanted, DAT_EVENT *event)
{
    DAT_COUNT more;
    check(dat_evd_wait(evd, 20000000, 1, event, &more), "evd_wait");
    if (event->event_number != wanted) {
        fprintf(stderr, "perf: event %x in place of %x\n", (unsigned)event->event_number, (unsigned)wanted);
        exit(1);
    }
}

static void connect_all(const char *host, DAT_CONN_QUAL qual)
{
    DAT_EVENT event;
    if (host == NULL) {
        DAT_PSP_HANDLE psp;
        check(dat_psp_create(ia, qual, cr_evd, DAT_PSP_CONSUMER_FLAG, &psp), "psp_create");
        await_event(cr_evd, DAT_CONNECTION_REQUEST_EVENT, &event);
        check(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL), "cr_accept");
        await_event(conn_evd, DAT_CONNECTION_EVENT_ESTABLISHED, &event);
        check(dat_psp_free(psp), "psp_free");
    } else {
        struct addrinfo hints = {.ai_family = AF_INET}, *found;
        if (getaddrinfo(host, NULL, &hints, &found) != 0) {
            fprintf(stderr, "perf: host %s is not known\n", host);
            exit(1);
        }
        check(dat_ep_connect(ep, found->ai_addr, qual, 10000000, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
              "ep_connect");
        await_event(conn_evd, DAT_CONNECTION_EVENT_ESTABLISHED, &event);
        freeaddrinfo(found);
    }
}

static void latency(int is_client, long count)
{
    long n;
    double begin = 0;
    for (n = -WARM_UP; n < count; n++) {
        if (n == 0)
            begin = seconds();
        if (is_client)
            send_one(0);
        await_received((int)(n + WARM_UP + 1));
        if (!is_client)
            send_one(0);
        post_receive(); /* while the answer is on its way */
    }
    if (is_client)
        printf("{\"what\":\"lat\",\"size\":%ld,\"iters\":%ld,\"usec\":%.4f}\n", size, count,
               (seconds() - begin) * 1e6 / 2 / (double)count);
}

static void rate(int is_client, long count)
{
    long n;
    double begin;
    if (!is_client) {
        send_one(0); /* ready */
        take((int)count);
        send_one(0); /* all there */
        return;
    }
    await_received(1);
    begin = seconds();
    for (n = 1; n <= count; n++) {
        int signalled = n % SIGNAL_EVERY == 0;
        while (n - sent * SIGNAL_EVERY > REQUESTS - SIGNAL_EVERY)
            poll_once();
        send_one(signalled);
    }
    await_received(2);
    printf("{\"what\":\"rate\",\"size\":%ld,\"count\":%ld,\"mps\":%.4f}\n", size, count,
           (double)count / (seconds() - begin) / 1e6);
}

int main(int argc, char **argv)
{
    const char *host = NULL;
    char *name = "sm0";
    DAT_CONN_QUAL qual = 45300;
    DAT_EVENT event;
    DAT_COUNT more;
    int option;
    while ((option = getopt(argc, argv, "sh:P:q:")) != -1) {
        if (option == 'h')
            host = optarg;
        else if (option == 'P')
            name = optarg;
        else if (option == 'q')
            qual = strtoull(optarg, NULL, 0);
        else if (option != 's')
            return 2;
    }
    if (argc - optind != 3 || (size = atol(argv[optind + 1])) < 1) {
        fprintf(stderr, "usage: perf -s|-h host [-P ia] [-q qual] lat|rate SIZE COUNT\n");
        return 2;
    }
    open_all(name);
    connect_all(host, qual);
    if (strcmp(argv[optind], "lat") == 0)
        latency(host != NULL, atol(argv[optind + 2]));
    else
        rate(host != NULL, atol(argv[optind + 2]));
    fflush(stdout);
    if (host != NULL)
        check(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG), "disconnect");
    check(dat_evd_wait(conn_evd, 20000000, 1, &event, &more), "the end");
    check(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), "ia_close");
    return 0;
}
