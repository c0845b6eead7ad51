/*
 * verbs_bench: measures one operation between two processes, in the loop of perftest if perftest has the operation.
 *
 *   verbs_bench -s      [-P ia] [-q qual] WHAT                    server; prints "ready"
 *   verbs_bench -h host [-P ia] [-q qual] WHAT                    client; prints one line of JSON
 *
 *   send SIZE COUNT              ping-pong by messages, both sides polling            (ib_send_lat)
 *   wait SIZE COUNT              ping-pong by messages, both sides sleeping for them  (ib_send_lat -e)
 *   memory SIZE COUNT            ping-pong by RDMA writes, both sides polling memory  (ib_write_lat)
 *   write SIZE COUNT DEPTH       RDMA writes, at most DEPTH at a time                 (ib_write_bw -t DEPTH -Q 1)
 *   read SIZE COUNT DEPTH        RDMA reads likewise                                  (ib_read_bw -t DEPTH -Q 1)
 *   connect COUNT DEPTH          connections that end as soon as they are established
 *
 * and ping-pong by messages in the patterns of verbs_evds.h:
 *
 *   one SIZE COUNT               one EVD for requests and receives, polled
 *   one-wait SIZE COUNT          the same, in dat_evd_wait
 *   cno SIZE COUNT               dat_cno_wait on a CNO over two EVDs, then both are dequeued
 *   robin SIZE COUNT             over four endpoints in turn, all on one EVD, polled
 *   threads SIZE COUNT           over two endpoints concurrently, each with a thread that waits on a separate EVD
 *
 * "usec" is the time of one operation: for ping-pong the median of one direction, otherwise and with `threads` the
 * average. Every request completes with an event. Requests and receives have separate EVDs, except as these patterns
 * say. Only return codes and events are checked: the suites check data. With the headers of dat20/ the same source is a
 * program for the C implementation of DAT 2.0.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "verbs_bench.h"
#include "verbs_evds.h"

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

/* Creates all endpoints before the measurement. They are freed after it, because an endpoint must not be freed while
 * its disconnect is in progress. */
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

/* Makes and ends connections from this side, at most `depth` at a time. */
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
        OK(dat_evd_wait(connection_evd, EVENT_TIMEOUT, 1, &event, &more));
        if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED)
            OK(dat_ep_disconnect(event.event_data.connect_event_data.ep_handle, DAT_CLOSE_GRACEFUL_FLAG));
        else if (event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED)
            ended++;
        else
            fail("connection %ld of %ld: unexpected event 0x%x", ended, count, (unsigned)event.event_number);
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
        OK(dat_evd_wait(connection_evd, EVENT_TIMEOUT, 1, &event, &more));
        if (event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED)
            ended++;
        else if (event.event_number != DAT_CONNECTION_EVENT_ESTABLISHED)
            fail("accepted connection %ld of %ld: unexpected event 0x%x", ended, count, (unsigned)event.event_number);
    }
    free_many(eps, count);
}

static void join(int is_client)
{
    int n;

    create_ep(&ep);
    for (n = 0; n < RECEIVES; n++)
        post_receive();
    if (is_client)
        connect_all(&ep, 1);
    else
        accept_all(&ep, 1);
    remote.rmr_context = there.key;
    remote.target_address = there.address;
    remote.segment_length = size;
    /* Both sides exchange a message and block meanwhile: polling would delay the peer on a single processor. */
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
    disconnect_all(is_client, &ep, 1);
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
        fail("usage: verbs_bench -s|-h host [-P ia] [-q qual] WHAT; the head of verbs_bench.c explains WHAT");
    size = has_size ? atol(argv[optind++]) : 1;
    count = atol(argv[optind++]);
    depth = optind < argc ? atol(argv[optind]) : 1;
    if (!has_size && count > EVENTS / 2)
        fail("verbs_bench: COUNT is at most %d connections", EVENTS / 2);
    if (size < 1 || count < 2 || depth < 1 || depth > REQUESTS)
        fail("verbs_bench: SIZE is at least 1, COUNT at least 2, DEPTH from 1 to %d", REQUESTS);
    if (host != NULL) {
        if (getaddrinfo(host, NULL, &hints, &found) != 0)
            fail("unknown host %s", host);
        server = found->ai_addr;
    }
    open_all(name);
    if (find_pattern(what) != NULL) {
        run_pattern(host != NULL, find_pattern(what), count);
    } else if (has_size) {
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
