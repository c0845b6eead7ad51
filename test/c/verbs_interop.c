/*
 * verbs_interop: one connection between two processes, which may use different DAT implementations. Each process prints
 * the events and the private data that it gets.
 *
 *   verbs_interop -s      -P ia -q qual SCENE            server; prints "ready" first
 *   verbs_interop -h host -P ia -q qual SCENE            client
 *
 *   accept REQUEST REPLY END     private data of REQUEST and REPLY bytes, data both ways; the side END (client,
 *                                server) disconnects
 *   reject REQUEST REPLY         the server rejects the request, in 2.0 with REPLY bytes of private data
 *   no-listener                  a client without a server
 *
 * Each side checks what the specification guarantees (data, order of events), and fails otherwise. It prints what
 * differs between providers (sizes, numbers), which the caller compares. With the headers of dat20/ the same source is
 * a program for the C implementation of DAT 2.0.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "check.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

/* BLOCK: more than one packet. DATA: space for the longest private data. */
enum { BLOCK = 10000, DATA = 256, EVENTS = 16, READS = 4 };

/* Description of a side's memory, sent to its peer in a message. */
struct place {
    uint64_t landing;
    uint64_t source;
    uint32_t key;
    uint32_t seed;
};

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE async_evd, cr_evd, connection_evd, request_evd, receive_evd;
static DAT_EP_HANDLE ep;
static DAT_LMR_CONTEXT lmr_context;
static DAT_RMR_CONTEXT rmr_context;
static DAT_CONN_QUAL qual = 45248;

/* Registered memory: received messages, sent messages, target of the peer's writes, source of local writes and of the
 * peer's reads, target of local reads. */
static struct memory {
    struct place in[3], out;
    unsigned char landing[BLOCK], source[BLOCK], copy[BLOCK];
} *memory;

static unsigned char byte(unsigned seed, size_t n)
{
    return (unsigned char)(seed + n * 7 + 1);
}

static void fill(unsigned char *at, size_t length, unsigned seed)
{
    size_t n;
    for (n = 0; n < length; n++)
        at[n] = byte(seed, n);
}

static void check_block(const unsigned char *at, unsigned seed, const char *what)
{
    size_t n;
    for (n = 0; n < BLOCK; n++)
        if (at[n] != byte(seed, n))
            fail("%s: byte %zu is 0x%02x, expected 0x%02x", what, n, at[n], byte(seed, n));
}

/* Prints how many bytes of private data arrived unchanged, and whether the remaining bytes up to the reported size
 * are zero. */
static void print_data(const char *what, int size, const void *data, int sent, unsigned seed)
{
    const unsigned char *at = data;
    int right = 0, zeros = sent;
    while (at != NULL && right < sent && at[right] == byte(seed, (size_t)right))
        right++;
    while (at != NULL && zeros < size && at[zeros] == 0)
        zeros++;
    printf("%s: size %d, %d of %d as sent, then %s\n", what, size, right, sent,
           zeros >= size ? "zeros" : "other bytes");
}

static const char *name_of(DAT_EVENT_NUMBER number)
{
    switch (number) {
    case DAT_CONNECTION_EVENT_ESTABLISHED: return "ESTABLISHED";
    case DAT_CONNECTION_EVENT_PEER_REJECTED: return "PEER_REJECTED";
    case DAT_CONNECTION_EVENT_NON_PEER_REJECTED: return "NON_PEER_REJECTED";
    case DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR: return "ACCEPT_COMPLETION_ERROR";
    case DAT_CONNECTION_EVENT_DISCONNECTED: return "DISCONNECTED";
    case DAT_CONNECTION_EVENT_BROKEN: return "BROKEN";
    case DAT_CONNECTION_EVENT_TIMED_OUT: return "TIMED_OUT";
    case DAT_CONNECTION_EVENT_UNREACHABLE: return "UNREACHABLE";
    default: return "another event";
    }
}

static DAT_EVENT connection_event(void)
{
    DAT_EVENT event;
    DAT_COUNT more;
    OK(dat_evd_wait(connection_evd, EVENT_TIMEOUT, 1, &event, &more));
    EXPECT(event.event_data.connect_event_data.ep_handle == ep);
    return event;
}

static void post_receive(int n)
{
    DAT_LMR_TRIPLET in = {.lmr_context = lmr_context, .segment_length = sizeof memory->in[n]};
    DAT_DTO_COOKIE cookie = {.as_64 = (uint64_t)n};
    in.virtual_address = (DAT_VADDR)(uintptr_t)&memory->in[n];
    OK(dat_ep_post_recv(ep, 1, &in, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void send_place(uint64_t number)
{
    DAT_LMR_TRIPLET out = {.lmr_context = lmr_context, .segment_length = sizeof memory->out};
    DAT_DTO_COOKIE cookie = {.as_64 = number};
    out.virtual_address = (DAT_VADDR)(uintptr_t)&memory->out;
    OK(dat_ep_post_send(ep, 1, &out, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    completed(request_evd, ep, number, DAT_DTO_SUCCESS, sizeof memory->out, "a send");
}

static void open_all(char *name, unsigned seed)
{
    DAT_REGION_DESCRIPTION region;
    DAT_EP_PARAM param;
    DAT_EP_ATTR attr;
    DAT_LMR_HANDLE lmr;
    int n;

    OK(dat_ia_open(name, 8, &async_evd, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, EVENTS, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &cr_evd));
    OK(dat_evd_create(ia, EVENTS, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connection_evd));
    OK(dat_evd_create(ia, EVENTS, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &request_evd));
    OK(dat_evd_create(ia, EVENTS, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &receive_evd));
    OK(dat_ep_create(ia, pz, receive_evd, request_evd, connection_evd, NULL, &ep));
    OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
    OK(dat_ep_free(ep));
    attr = param.ep_attr;
    attr.max_recv_dtos = attr.max_request_dtos = 4;
    attr.max_rdma_read_in = attr.max_rdma_read_out = READS;
    OK(dat_ep_create(ia, pz, receive_evd, request_evd, connection_evd, &attr, &ep));

    memory = calloc(1, sizeof *memory);
    region.for_va = memory;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof *memory, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &lmr_context,
                      &rmr_context, NULL, NULL));
    fill(memory->source, BLOCK, seed);
    memory->out = (struct place){.landing = (uintptr_t)memory->landing,
                                 .source = (uintptr_t)memory->source,
                                 .key = rmr_context,
                                 .seed = seed};
    for (n = 0; n < 3; n++)
        post_receive(n);
}

/* Both sides at the same time: send the address, write to the peer, read from the peer, send a final message, check. */
static void data_both_ways(void)
{
    DAT_LMR_TRIPLET local = {.lmr_context = lmr_context, .segment_length = BLOCK};
    DAT_RMR_TRIPLET remote = {.segment_length = BLOCK};
    DAT_DTO_COOKIE write = {.as_64 = 11}, read = {.as_64 = 12};
    const struct place *there = &memory->in[0];

    send_place(1);
    completed(receive_evd, ep, 0, DAT_DTO_SUCCESS, sizeof *there, "the first message");
    EXPECT(there->seed != memory->out.seed);

    remote.rmr_context = there->key;
    remote.target_address = there->landing;
    local.virtual_address = (DAT_VADDR)(uintptr_t)memory->source;
    OK(dat_ep_post_rdma_write(ep, 1, &local, write, &remote, DAT_COMPLETION_DEFAULT_FLAG));
    completed(request_evd, ep, 11, DAT_DTO_SUCCESS, BLOCK, "the write");
    remote.target_address = there->source;
    local.virtual_address = (DAT_VADDR)(uintptr_t)memory->copy;
    OK(dat_ep_post_rdma_read(ep, 1, &local, read, &remote, DAT_COMPLETION_DEFAULT_FLAG));
    completed(request_evd, ep, 12, DAT_DTO_SUCCESS, BLOCK, "the read");

    send_place(2);
    completed(receive_evd, ep, 1, DAT_DTO_SUCCESS, sizeof *there, "the second message");
    check_block(memory->landing, there->seed, "what was written here");
    check_block(memory->copy, there->seed, "what was read there");
    printf("data: right\n");
}

static void end(int by_us)
{
    DAT_EVENT event;
    if (by_us)
        OK(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG));
    event = connection_event();
    printf("end: %s\n", name_of(event.event_number));
#ifndef DAT20_UDAT_H
    /* Not checked with the C implementation of DAT 2.0: it reports a flushed receive with the event number of an
     * extension, and sets the error class bit in DAT_QUEUE_EMPTY. */
    completed(receive_evd, ep, 2, DAT_DTO_ERR_FLUSHED, 0, "the receive that was left");
    expect_no_event(request_evd, "the EVD of requests");
    expect_no_event(connection_evd, "the EVD of connections");
#endif
}

static void serve(const char *scene, int request, int reply, int ends)
{
    unsigned char answer[DATA];
    DAT_PSP_HANDLE psp;
    DAT_CR_PARAM param;
    DAT_EVENT event;
    DAT_CR_HANDLE cr;

    OK(dat_psp_create(ia, qual, cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
    printf("ready\n");
    fflush(stdout);
    event = next(cr_evd, DAT_CONNECTION_REQUEST_EVENT, "a request");
    EXPECT(event.event_data.cr_arrival_event_data.sp_handle.psp_handle == psp);
    cr = event.event_data.cr_arrival_event_data.cr_handle;
    OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
    print_data("request", param.private_data_size, param.private_data, request, 1);
    printf("from: %s\n", inet_ntoa(((struct sockaddr_in *)param.remote_ia_address_ptr)->sin_addr));
    fill(answer, sizeof answer, 2);
    if (strcmp(scene, "reject") == 0) {
#ifdef DAT20_UDAT_H
        OK(dat_cr_reject_with(cr, reply, reply > 0 ? answer : NULL));
#else
        OK(dat_cr_reject(cr));
#endif
    } else {
        OK(dat_cr_accept(cr, ep, reply, reply > 0 ? answer : NULL));
        event = connection_event();
        printf("event: %s, size %d\n", name_of(event.event_number),
               event.event_data.connect_event_data.private_data_size);
        EXPECT(event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED);
        data_both_ways();
        end(ends);
    }
    OK(dat_psp_free(psp));
}

static void ask(const char *scene, const char *host, int request, int reply, int ends)
{
    struct addrinfo hints = {.ai_family = AF_INET}, *found;
    unsigned char question[DATA];
    DAT_EP_PARAM param;
    DAT_EVENT event;
    const DAT_CONNECTION_EVENT_DATA *data = &event.event_data.connect_event_data;

    if (getaddrinfo(host, NULL, &hints, &found) != 0)
        fail("unknown host %s", host);
    fill(question, sizeof question, 1);
    OK(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)found->ai_addr, qual, DAT_TIMEOUT_INFINITE, request,
                      request > 0 ? question : NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    event = connection_event();
    printf("event: %s, size %d\n", name_of(event.event_number), data->private_data_size);
    if (strcmp(scene, "accept") == 0) {
        EXPECT(event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED);
        print_data("reply", data->private_data_size, data->private_data, reply, 2);
        OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
        printf("port: %llu\n", (unsigned long long)param.remote_port_qual);
        data_both_ways();
        end(ends);
    } else if (reply > 0) {
        print_data("reason", data->private_data_size, data->private_data, reply, 2);
    }
    freeaddrinfo(found);
}

int main(int argc, char **argv)
{
    const char *host = NULL, *scene;
    char *name = "verbs0";
    int option, request, reply, server_ends;

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
    scene = optind < argc ? argv[optind] : "";
    request = optind + 1 < argc ? atoi(argv[optind + 1]) : 0;
    reply = optind + 2 < argc ? atoi(argv[optind + 2]) : 0;
    server_ends = optind + 3 < argc && strcmp(argv[optind + 3], "server") == 0;
    if (request < 0 || request > DATA || reply < 0 || reply > DATA)
        fail("verbs_interop: private data must have 0 to %d bytes; the head of verbs_interop.c lists the scenes", DATA);
    /* Each side fills its memory with a different pattern. */
    open_all(name, host != NULL ? 100 : 50);
    if (host != NULL)
        ask(scene, host, request, reply, !server_ends);
    else
        serve(scene, request, reply, server_ends);
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    return 0;
}
