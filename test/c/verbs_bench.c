/*
 * verbs_bench: measures one operation between two processes, in the loops that perftest has for it.
 *
 *   verbs_bench -s      [-P ia] [-q qual] WHAT                    server; says "ready"
 *   verbs_bench -h host [-P ia] [-q qual] WHAT                    client; says one line of JSON
 *
 *   send SIZE COUNT              ping-pong by messages, both sides polling            (ib_send_lat)
 *   wait SIZE COUNT              ping-pong by messages, both sides sleeping for them  (ib_send_lat -e)
 *   memory SIZE COUNT            ping-pong by RDMA writes, both sides polling memory  (ib_write_lat)
 *   write SIZE COUNT DEPTH       RDMA writes, at most DEPTH at a time                 (ib_write_bw -t DEPTH -Q 1)
 *   read SIZE COUNT DEPTH        RDMA reads likewise                                  (ib_read_bw -t DEPTH -Q 1)
 *   connect COUNT DEPTH          connections that end as soon as they stand
 *
 * "usec" is the time of one operation: the median of one way for ping-pong, else the average. Every request completes with
 * an event, requests and receives on EVDs of their own. It checks nothing but return codes: suites check data. With the
 * headers of dat20/ the same source is a program for the 2.0 reference.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "check.h"

#include <netdb.h>
#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/* RECEIVES as perftest's. READS: what soft-RoCE grants without asking for more. */
enum { RECEIVES = 512, REQUESTS = 128, READS = 16, EVENTS = 1024, PAGE = 4096 };

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

/* As perftest takes them: the clock of a guest can be a system call. */
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

/* Half the median of what lies between one send and the next. */
static void report_stamps(uint64_t *stamps, long count, double lasted)
{
    double tick = lasted * 1e6 / (double)(stamps[count - 1] - stamps[0]);
    long n;
    for (n = 0; n + 1 < count; n++)
        stamps[n] = stamps[n + 1] - stamps[n];
    qsort(stamps, (size_t)count - 1, sizeof *stamps, later);
    report((double)stamps[(count - 1) / 2] * tick / 2);
}

static void post_receive(void)
{
    DAT_DTO_COOKIE cookie = {.as_64 = 0};
    OK(dat_ep_post_recv(ep, 1, &in, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void post_send(void)
{
    DAT_DTO_COOKIE cookie = {.as_64 = 1};
    OK(dat_ep_post_send(ep, 1, &out, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void post_write(void)
{
    DAT_DTO_COOKIE cookie = {.as_64 = 1};
    OK(dat_ep_post_rdma_write(ep, 1, &out, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
}

static void post_read(void)
{
    DAT_DTO_COOKIE cookie = {.as_64 = 1};
    OK(dat_ep_post_rdma_read(ep, 1, &in, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
}

/* Whether a completion was there. */
static int poll_once(DAT_EVD_HANDLE evd)
{
    DAT_EVENT event;
    DAT_RETURN code = dat_evd_dequeue(evd, &event);
    if (DAT_GET_TYPE(code) == DAT_QUEUE_EMPTY)
        return 0;
    check_ok("dat_evd_dequeue", code);
    if (event.event_number != DAT_DTO_COMPLETION_EVENT
        || event.event_data.dto_completion_event_data.status != DAT_DTO_SUCCESS)
        fail("event 0x%x, status %d", (unsigned)event.event_number,
             (int)event.event_data.dto_completion_event_data.status);
    return 1;
}

static void take(DAT_EVD_HANDLE evd)
{
    while (!poll_once(evd))
        ;
}

static void pingpong(int is_client, long count, int sleeps)
{
    uint64_t *stamps = calloc((size_t)count, sizeof *stamps);
    double begin = seconds();
    long received = 0, sent = 0;
    while (received < count || sent < count) {
        if (received < count && !(is_client && sent == 0)) {
            if (sleeps)
                next(receive_evd, DAT_DTO_COMPLETION_EVENT, "a message");
            else
                take(receive_evd);
            if (++received + RECEIVES <= count)
                post_receive();
        }
        if (sent < count) {
            stamps[sent++] = ticks();
            post_send();
            take(request_evd);
        }
    }
    if (is_client)
        report_stamps(stamps, count, seconds() - begin);
    free(stamps);
}

static void pingpong_memory(int is_client, long count)
{
    uint64_t *stamps = calloc((size_t)count, sizeof *stamps);
    double begin = seconds();
    long received = 0, sent = 0;
    while (received < count || sent < count) {
        if (received < count && !(is_client && sent == 0)) {
            received++;
            while (*arrives != (char)received)
                ;
        }
        if (sent < count) {
            stamps[sent++] = ticks();
            *leaves = (char)sent;
            post_write();
            take(request_evd);
        }
    }
    if (is_client)
        report_stamps(stamps, count, seconds() - begin);
    free(stamps);
}

static void stream(void (*post)(void), long count, long depth)
{
    double begin = seconds();
    long posted = 0, completed = 0;
    while (completed < count) {
        while (posted < count && posted - completed < depth) {
            post();
            posted++;
        }
        if (poll_once(request_evd))
            completed++;
    }
    report((seconds() - begin) * 1e6 / (double)count);
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

/* Endpoints are made before and freed after, for none may be freed while its end is still on the way. */
static DAT_EP_HANDLE *create_many(long count)
{
    DAT_EP_HANDLE *made = calloc((size_t)count, sizeof *made);
    long n;
    attr.max_recv_dtos = attr.max_request_dtos = 1;
    for (n = 0; n < count; n++)
        create_ep(&made[n]);
    return made;
}

static void free_many(DAT_EP_HANDLE *made, long count)
{
    long n;
    for (n = 0; n < count; n++)
        OK(dat_ep_free(made[n]));
    free(made);
}

/* A connection is made and ended from this side; then comes the next. */
static void connect_many(long count, long depth)
{
    DAT_EP_HANDLE *eps = create_many(count);
    double begin = seconds();
    long started = 0, ended = 0;
    while (ended < count) {
        DAT_EVENT event;
        DAT_COUNT more;
        if (started < count && started - ended < depth) {
            connect_ep(eps[started++], 0);
            continue;
        }
        OK(dat_evd_wait(connection_evd, PATIENCE, 1, &event, &more));
        if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED)
            OK(dat_ep_disconnect(event.event_data.connect_event_data.ep_handle, DAT_CLOSE_GRACEFUL_FLAG));
        else if (event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED)
            ended++;
        else
            fail("connection %ld of %ld: event 0x%x", ended, count, (unsigned)event.event_number);
    }
    report((seconds() - begin) * 1e6 / (double)count);
    free_many(eps, count);
}

static void accept_many(long count)
{
    DAT_EP_HANDLE *eps = create_many(count);
    DAT_PSP_HANDLE psp;
    long accepted, ended = 0;
    listen_here(&psp);
    for (accepted = 0; accepted < count; accepted++) {
        DAT_EVENT event = next(cr_evd, DAT_CONNECTION_REQUEST_EVENT, "a request");
        OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, eps[accepted], 0, NULL));
    }
    while (ended < count) {
        DAT_EVENT event;
        DAT_COUNT more;
        OK(dat_evd_wait(connection_evd, PATIENCE, 1, &event, &more));
        if (event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED)
            ended++;
        else if (event.event_number != DAT_CONNECTION_EVENT_ESTABLISHED)
            fail("accepted %ld of %ld: event 0x%x", ended, count, (unsigned)event.event_number);
    }
    free_many(eps, count);
}

static void open_all(char *name)
{
    DAT_EP_PARAM param;
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT lmr_context;
    DAT_RMR_CONTEXT rmr_context;
    /* As perftest has it: a piece that crosses into another page costs the device more. */
    size_t room = ((size_t)size + PAGE - 1) / PAGE * PAGE;
    char *memory = aligned_alloc(PAGE, 2 * room);

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
    memset(memory, 0, 2 * room);
    region.for_va = memory;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 2 * room, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr,
                      &lmr_context, &rmr_context, NULL, NULL));
    in = (DAT_LMR_TRIPLET){.lmr_context = lmr_context, .segment_length = size};
    out = in;
    in.virtual_address = (DAT_VADDR)(uintptr_t)memory;
    out.virtual_address = (DAT_VADDR)(uintptr_t)(memory + room);
    here = (struct place){.address = in.virtual_address, .key = rmr_context};
    arrives = memory + size - 1;
    leaves = memory + room + size - 1;
}

/* Each side tells the other, in private data, where it may be written to and read from. */
static void join(int is_client)
{
    DAT_EVENT event;
    DAT_CR_HANDLE cr;
    DAT_CR_PARAM param;
    int n;

    create_ep(&ep);
    for (n = 0; n < RECEIVES; n++)
        post_receive();
    if (is_client) {
        connect_ep(ep, 1);
        event = next(connection_evd, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
        memcpy(&there, event.event_data.connect_event_data.private_data, sizeof there);
    } else {
        DAT_PSP_HANDLE psp;
        listen_here(&psp);
        event = next(cr_evd, DAT_CONNECTION_REQUEST_EVENT, "a request");
        cr = event.event_data.cr_arrival_event_data.cr_handle;
        OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
        memcpy(&there, param.private_data, sizeof there);
        OK(dat_cr_accept(cr, ep, sizeof here, &here));
        next(connection_evd, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
        OK(dat_psp_free(psp));
    }
    remote.rmr_context = there.key;
    remote.target_address = there.address;
    remote.segment_length = size;
    /* Each knows that the other is there, and has slept until then: polling would delay it on a single processor. */
    if (is_client)
        post_send();
    next(receive_evd, DAT_DTO_COMPLETION_EVENT, "the first message");
    if (!is_client)
        post_send();
    take(request_evd);
    post_receive();
}

static void run(int is_client, const char *what, long count, long depth)
{
    if (strcmp(what, "send") == 0)
        pingpong(is_client, count, 0);
    else if (strcmp(what, "wait") == 0)
        pingpong(is_client, count, 1);
    else if (strcmp(what, "memory") == 0)
        pingpong_memory(is_client, count);
    else if (is_client && strcmp(what, "write") == 0)
        stream(post_write, count, depth);
    else if (is_client && strcmp(what, "read") == 0)
        stream(post_read, count, depth);
    fflush(stdout);
    if (is_client)
        OK(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG));
    next(connection_evd, DAT_CONNECTION_EVENT_DISCONNECTED, "the end");
}

int main(int argc, char **argv)
{
    const char *host = NULL, *what;
    char *name = "verbs0";
    struct addrinfo hints = {.ai_family = AF_INET}, *found;
    int option, has_size;
    long count, depth;

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
    what = optind < argc ? argv[optind++] : "";
    has_size = strcmp(what, "connect") != 0;
    if (argc - optind < 1 + has_size)
        fail("verbs_bench: see the head of its source for what it measures");
    size = has_size ? atol(argv[optind++]) : 1;
    count = atol(argv[optind++]);
    depth = optind < argc ? atol(argv[optind]) : 1;
    if (!has_size && count > EVENTS / 2)
        fail("verbs_bench: at most %d connections", EVENTS / 2);
    if (size < 1 || count < 2 || depth < 1 || depth > REQUESTS)
        fail("verbs_bench: SIZE from 1, COUNT from 2, DEPTH from 1 to %d", REQUESTS);
    if (host != NULL) {
        if (getaddrinfo(host, NULL, &hints, &found) != 0)
            fail("host %s is not known", host);
        server = found->ai_addr;
    }
    open_all(name);
    if (has_size) {
        join(host != NULL);
        run(host != NULL, what, count, depth);
    } else if (host != NULL) {
        connect_many(count, depth);
    } else {
        accept_many(count);
    }
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    return 0;
}
