/*
 * dtest - a server and a client that test a uDAPL provider with messages, RDMA writes and RDMA reads. They check every
 * byte that arrives.
 *
 *     dtest -P sm0                    the server
 *     dtest -P sm0 -h localhost      the client, in another terminal
 *
 * It is also meant to be read: a whole uDAPL program, from opening the adapter to closing it, in the order of the
 * calls. Start at main() at the end. An unexpected result ends the program with a message and exit status 1, an invalid
 * option with exit status 2. Exit status 0 means that every check has passed.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <arpa/inet.h>
#include <endian.h>
#include <getopt.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dat/udat.h>

enum {
    DEFAULT_QUAL = 45248,
    RECEIVES = 3,        /* with a slot each: the peer is never more than two messages ahead of this side */
    REQUESTS = 4,        /* more than are ever outstanding */
    SMALL = 64,          /* the longest of the small messages */
    SMALL_PER_BURST = 100,
    CONNECT_TRIES = 50,  /* with PAUSE_MS between them: about ten seconds for the server to appear */
    PAUSE_MS = 200,
};

/* How the program waits for events. */
enum mode { WAIT, NOTIFIED, POLLING };

static struct {
    const char *provider;
    const char *host; /* NULL on the server */
    DAT_CONN_QUAL qual;
    size_t bytes;
    unsigned bursts;
    unsigned timeout; /* seconds, for any one event */
    enum mode mode;
    bool delay, abrupt, verbose;
} opt = { .provider = "sm0", .qual = DEFAULT_QUAL, .bytes = 64 * 1024, .bursts = 10, .timeout = 30 };

/* ---- Memory -------------------------------------------------------------------------------------------------------
 *
 * messages: RECEIVES slots to receive into, and one to send from.
 * rdma:     opt.bytes that the peer writes and reads, and opt.bytes that this side writes from and reads into.
 */
struct memory {
    unsigned char *base;
    size_t length;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT lmr_context;
    DAT_RMR_CONTEXT rmr_context;
};

static DAT_IA_HANDLE ia;
static DAT_IA_ATTR ia_attr;
static DAT_PROVIDER_ATTR provider_attr;
static DAT_PZ_HANDLE pz;
static DAT_CNO_HANDLE cno = DAT_HANDLE_NULL;
static DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;
static DAT_EVD_HANDLE cr_evd = DAT_HANDLE_NULL, conn_evd, recv_evd, request_evd;
static DAT_PSP_HANDLE psp = DAT_HANDLE_NULL;
static DAT_EP_HANDLE ep;
static struct memory messages, rdma;
static size_t slot_size; /* bytes of one message slot */
static size_t large;     /* bytes of a large message */
static DAT_RMR_TRIPLET peer_memory; /* memory of the peer that this process may write and read */

static uint64_t received, requested; /* numbers of completed receives and of posted requests */
static uint64_t checked;             /* bytes */
static unsigned cno_wakeups;

/* ---- Messages between the two sides, in network byte order ------------------------------------------------------- */

#define GREETING "dtest-1"

struct hello { /* private data, 32 bytes */
    char greeting[8];
    char role[8];
    uint64_t bytes;
    uint32_t bursts;
    uint32_t unused;
};

enum word { MEMORY = 1, WRITTEN, READ, BYE };

struct message {
    uint32_t word;
    uint32_t burst;
    uint64_t address; /* MEMORY: the triplet of the memory that the peer may use */
    uint64_t length;
    uint32_t rmr_context;
    uint32_t unused;
};

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static const char *connection_word(DAT_EVENT_NUMBER number)
{
    switch (number) {
    case DAT_CONNECTION_REQUEST_EVENT: return "a connection request";
    case DAT_CONNECTION_EVENT_ESTABLISHED: return "established";
    case DAT_CONNECTION_EVENT_PEER_REJECTED: return "rejected by the peer";
    case DAT_CONNECTION_EVENT_NON_PEER_REJECTED: return "rejected, no program listens there";
    case DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR: return "accepted, but the peer was gone";
    case DAT_CONNECTION_EVENT_DISCONNECTED: return "disconnected";
    case DAT_CONNECTION_EVENT_BROKEN: return "broken";
    case DAT_CONNECTION_EVENT_TIMED_OUT: return "timed out";
    case DAT_CONNECTION_EVENT_UNREACHABLE: return "unreachable";
    default: return "not a connection event";
    }
}

static const char *status_word(DAT_DTO_COMPLETION_STATUS status)
{
    static const char *const words[] = {
        "success", "flushed", "local length error", "local endpoint error", "local protection error", "bad response",
        "remote access error", "remote responder error", "transport error", "receiver not ready", "partial packet",
        "RMR operation failed",
    };
    return status < sizeof words / sizeof *words ? words[status] : "unknown status";
}

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
    va_list args;
    fflush(stdout);
    fprintf(stderr, "dtest %s: ", opt.host ? "client" : "server");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);

    /* A connection event often explains the failure better than the message above. It may arrive slightly later. */
    DAT_EVENT event;
    DAT_COUNT more;
    if (conn_evd != DAT_HANDLE_NULL && dat_evd_wait(conn_evd, 500000, 1, &event, &more) == DAT_SUCCESS)
        fprintf(stderr, "    the connection: %s\n", connection_word(event.event_number));
    exit(EXIT_FAILURE);
}

/* Checks the return code of a call; a failure ends the program. */
static void ok(const char *call, DAT_RETURN ret)
{
    const char *major = "?", *minor = "?";
    if (ret == DAT_SUCCESS)
        return;
    dat_strerror(ret, &major, &minor);
    fail("%s: %s %s (0x%08x)", call, major, minor, ret);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void pause_ms(unsigned ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

/* ---- Waiting for events ------------------------------------------------------------------------------------------ */

/* Microseconds until the deadline, for DAT calls. */
static DAT_TIMEOUT remaining(uint64_t deadline)
{
    uint64_t now = now_ns();
    return now < deadline ? (DAT_TIMEOUT)((deadline - now + 999) / 1000) : 0;
}

/* Default: block on the EVD. */
static DAT_RETURN wait_on_evd(DAT_EVD_HANDLE evd, uint64_t deadline, DAT_EVENT *event)
{
    DAT_COUNT more;
    DAT_RETURN ret;
    do
        ret = dat_evd_wait(evd, remaining(deadline), 1, event, &more);
    while (DAT_GET_TYPE(ret) == DAT_INTERRUPTED_CALL);
    return ret;
}

/* -c: dequeue from this EVD. While it is empty, block on the CNO, which every EVD with the CNO triggers. */
static DAT_RETURN wait_on_cno(DAT_EVD_HANDLE evd, uint64_t deadline, DAT_EVENT *event)
{
    for (;;) {
        DAT_RETURN ret = dat_evd_dequeue(evd, event);
        if (DAT_GET_TYPE(ret) != DAT_QUEUE_EMPTY)
            return ret;
        DAT_EVD_HANDLE woken = DAT_HANDLE_NULL;
        ret = dat_cno_wait(cno, remaining(deadline), &woken);
        if (DAT_GET_TYPE(ret) == DAT_QUEUE_EMPTY) /* a CNO reports a timeout by this code */
            return DAT_TIMEOUT_EXPIRED;
        if (DAT_GET_TYPE(ret) == DAT_INTERRUPTED_CALL)
            continue;
        ok("dat_cno_wait", ret);
        if (woken != recv_evd && woken != request_evd && woken != conn_evd && woken != cr_evd)
            fail("the CNO names an EVD that is not attached to it");
        cno_wakeups++;
    }
}

/* -p: poll and never block. */
static DAT_RETURN poll_evd(DAT_EVD_HANDLE evd, uint64_t deadline, DAT_EVENT *event)
{
    DAT_RETURN ret;
    for (unsigned turns = 1; DAT_GET_TYPE(ret = dat_evd_dequeue(evd, event)) == DAT_QUEUE_EMPTY; turns++) {
        if (turns % 1024)
            continue;
        if (remaining(deadline) == 0)
            return DAT_TIMEOUT_EXPIRED;
        sched_yield(); /* the peer may be on the same processor */
    }
    return ret;
}

static void next_event(DAT_EVD_HANDLE evd, const char *what, DAT_EVENT *event)
{
    uint64_t deadline = now_ns() + opt.timeout * UINT64_C(1000000000);
    DAT_RETURN ret = opt.mode == WAIT       ? wait_on_evd(evd, deadline, event)
                     : opt.mode == NOTIFIED ? wait_on_cno(evd, deadline, event)
                                            : poll_evd(evd, deadline, event);
    if (DAT_GET_TYPE(ret) == DAT_TIMEOUT_EXPIRED)
        fail("%s did not arrive within %u s", what, opt.timeout);
    ok(what, ret);
    if (event->evd_handle != evd)
        fail("%s: the event names another EVD", what);
}

static void no_event(DAT_EVD_HANDLE evd, const char *evd_name)
{
    DAT_EVENT event;
    DAT_RETURN ret = dat_evd_dequeue(evd, &event);
    if (ret == DAT_SUCCESS)
        fail("unexpected event 0x%x on the %s EVD", (unsigned)event.event_number, evd_name);
    if (DAT_GET_TYPE(ret) != DAT_QUEUE_EMPTY)
        ok("dat_evd_dequeue", ret);
}

/* Dequeues the next completion on evd, which must have this cookie and status. Returns the length. */
static size_t completion(DAT_EVD_HANDLE evd, uint64_t cookie, DAT_DTO_COMPLETION_STATUS status, const char *what)
{
    DAT_EVENT event;
    next_event(evd, what, &event);
    const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;
    if (event.event_number != DAT_DTO_COMPLETION_EVENT)
        fail("%s: event 0x%x, expected a completion", what, (unsigned)event.event_number);
    if (dto->ep_handle != ep)
        fail("%s: the completion names another EP", what);
    if (dto->user_cookie.as_64 != cookie)
        fail("%s: cookie %" PRIu64 ", expected %" PRIu64, what, (uint64_t)dto->user_cookie.as_64, cookie);
    if (dto->status != status)
        fail("%s: %s, expected %s", what, status_word(dto->status), status_word(status));
    return dto->transfered_length;
}

/* ---- Patterns: every byte depends on its writer, the kind of transfer, the round and the offset ------------------ */

static unsigned seed(bool client, unsigned kind, unsigned round)
{
    return (client ? 101u : 7u) + kind * 37u + round * 59u;
}

static unsigned char pattern(unsigned seed, size_t i)
{
    return (unsigned char)(seed + i + (i >> 8) * 31 + (i >> 16) * 17);
}

static void fill(unsigned char *to, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        to[i] = pattern(seed, i);
}

static void verify(const unsigned char *at, size_t length, unsigned seed, const char *what, unsigned round)
{
    for (size_t i = 0; i < length; i++)
        if (at[i] != pattern(seed, i))
            fail("%s, round %u: byte %zu of %zu is 0x%02x, expected 0x%02x", what, round, i, length, at[i],
                 pattern(seed, i));
    checked += length;
}

/* ---- Posting ----------------------------------------------------------------------------------------------------- */

static DAT_LMR_TRIPLET local(const struct memory *memory, size_t offset, size_t length)
{
    DAT_LMR_TRIPLET triplet = {
        .lmr_context = memory->lmr_context,
        .virtual_address = (DAT_VADDR)(uintptr_t)(memory->base + offset),
        .segment_length = length,
    };
    return triplet;
}

static unsigned char *receive_slot(uint64_t number)
{
    return messages.base + number % RECEIVES * slot_size;
}

static unsigned char *send_slot(void)
{
    return messages.base + RECEIVES * slot_size;
}

static void post_receive(uint64_t number)
{
    DAT_LMR_TRIPLET segment = local(&messages, number % RECEIVES * slot_size, slot_size);
    DAT_DTO_COOKIE cookie = { .as_64 = number };
    ok("dat_ep_post_recv", dat_ep_post_recv(ep, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

/* Waits for the next message. It stays in its slot until give_back(). */
static const unsigned char *receive(size_t *length, const char *what)
{
    *length = completion(recv_evd, received, DAT_DTO_SUCCESS, what);
    if (*length > slot_size)
        fail("%s: %zu bytes exceed the slot of %zu", what, *length, slot_size);
    return receive_slot(received);
}

static void give_back(void)
{
    post_receive(received + RECEIVES);
    received++;
}

/* Sends the message in the send slot, and waits for its completion: then the slot can be reused. */
static void send_slot_away(size_t length, const char *what)
{
    DAT_LMR_TRIPLET segment = local(&messages, RECEIVES * slot_size, length);
    DAT_DTO_COOKIE cookie = { .as_64 = ++requested };
    ok("dat_ep_post_send", dat_ep_post_send(ep, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    size_t sent = completion(request_evd, cookie.as_64, DAT_DTO_SUCCESS, what);
    if (sent != length)
        fail("%s: %zu bytes sent, expected %zu", what, sent, length);
}

static void send_word(enum word word, unsigned burst)
{
    struct message message = { .word = htonl(word), .burst = htonl(burst) };
    if (word == MEMORY) {
        message.address = htobe64((uint64_t)(uintptr_t)rdma.base);
        message.length = htobe64(opt.bytes);
        message.rmr_context = htonl(rdma.rmr_context);
    }
    memcpy(send_slot(), &message, sizeof message);
    send_slot_away(sizeof message, "a message to the peer");
}

static struct message receive_word(enum word word, unsigned burst)
{
    struct message message;
    size_t length;
    const unsigned char *slot = receive(&length, "a message of the peer");
    if (length != sizeof message)
        fail("a message of %zu bytes, expected %zu", length, sizeof message);
    memcpy(&message, slot, sizeof message);
    give_back();
    if (ntohl(message.word) != word || ntohl(message.burst) != burst)
        fail("the peer sent word %u of burst %u, expected word %u of burst %u", ntohl(message.word), ntohl(message.burst),
             word, burst);
    checked += sizeof message;
    return message;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static void print_attributes(void)
{
    char address[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr *sa = ia_attr.ia_address_ptr;
    if (sa && sa->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, address, sizeof address);
    if (sa && sa->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, address, sizeof address);

    printf("provider %s version %u.%u, DAPL %u.%u\n", provider_attr.provider_name,
           provider_attr.provider_version_major, provider_attr.provider_version_minor,
           provider_attr.dapl_version_major, provider_attr.dapl_version_minor);
    printf("adapter %s of %s, hardware %u.%u, firmware %u.%u, address %s\n", ia_attr.adapter_name, ia_attr.vendor_name,
           ia_attr.hardware_version_major, ia_attr.hardware_version_minor, ia_attr.firmware_version_major,
           ia_attr.firmware_version_minor, address);
    if (!opt.verbose)
        return;

#define SHOW(record, field) printf("    %-36s %" PRIu64 "\n", #field, (uint64_t)(record).field)
    SHOW(ia_attr, max_eps);
    SHOW(ia_attr, max_dto_per_ep);
    SHOW(ia_attr, max_rdma_read_per_ep_in);
    SHOW(ia_attr, max_rdma_read_per_ep_out);
    SHOW(ia_attr, max_evds);
    SHOW(ia_attr, max_evd_qlen);
    SHOW(ia_attr, max_iov_segments_per_dto);
    SHOW(ia_attr, max_iov_segments_per_rdma_read);
    SHOW(ia_attr, max_iov_segments_per_rdma_write);
    SHOW(ia_attr, max_lmrs);
    SHOW(ia_attr, max_lmr_block_size);
    SHOW(ia_attr, max_lmr_virtual_address);
    SHOW(ia_attr, max_pzs);
    SHOW(ia_attr, max_message_size);
    SHOW(ia_attr, max_rdma_size);
    SHOW(ia_attr, max_rmrs);
    SHOW(ia_attr, max_srqs);
    SHOW(ia_attr, max_ep_per_srq);
    SHOW(ia_attr, max_recv_per_srq);
    SHOW(provider_attr, lmr_mem_types_supported);
    SHOW(provider_attr, iov_ownership_on_return);
    SHOW(provider_attr, dat_qos_supported);
    SHOW(provider_attr, completion_flags_supported);
    SHOW(provider_attr, is_thread_safe);
    SHOW(provider_attr, max_private_data_size);
    SHOW(provider_attr, supports_multipath);
    SHOW(provider_attr, ep_creator);
    SHOW(provider_attr, optimal_buffer_alignment);
    SHOW(provider_attr, srq_supported);
    SHOW(provider_attr, lmr_sync_req);
#undef SHOW
    for (DAT_COUNT i = 0; i < ia_attr.num_vendor_attr; i++)
        printf("    %-36s %s\n", ia_attr.vendor_attr[i].name, ia_attr.vendor_attr[i].value);
    for (DAT_COUNT i = 0; i < provider_attr.num_provider_specific_attr; i++)
        printf("    %-36s %s\n", provider_attr.provider_specific_attr[i].name,
               provider_attr.provider_specific_attr[i].value);
}

static void open_adapter(void)
{
    char name[DAT_NAME_MAX_LENGTH];
    if (snprintf(name, sizeof name, "%s", opt.provider) >= (int)sizeof name)
        fail("-P: the adapter name has more than %d bytes", DAT_NAME_MAX_LENGTH - 1);
    ok("dat_ia_open", dat_ia_open(name, 8, &async_evd, &ia));

    DAT_EVD_HANDLE queried = DAT_HANDLE_NULL;
    ok("dat_ia_query",
       dat_ia_query(ia, &queried, DAT_IA_FIELD_ALL, &ia_attr, DAT_PROVIDER_FIELD_ALL, &provider_attr));
    if (queried != async_evd)
        fail("dat_ia_query names another EVD for errors than dat_ia_open");
    print_attributes();
    if (opt.bytes > ia_attr.max_rdma_size || 2 * opt.bytes > ia_attr.max_lmr_block_size)
        fail("-b %zu exceeds the adapter's maximum RDMA size %" PRIu64 " or half its maximum registration, %" PRIu64,
             opt.bytes, (uint64_t)ia_attr.max_rdma_size, (uint64_t)ia_attr.max_lmr_block_size / 2);

    ok("dat_pz_create", dat_pz_create(ia, &pz));
    if (opt.mode == NOTIFIED)
        ok("dat_cno_create", dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
    ok("dat_evd_create (connections)", dat_evd_create(ia, 4, cno, DAT_EVD_CONNECTION_FLAG, &conn_evd));
    ok("dat_evd_create (receives)", dat_evd_create(ia, 2 * RECEIVES, cno, DAT_EVD_DTO_FLAG, &recv_evd));
    ok("dat_evd_create (requests)", dat_evd_create(ia, REQUESTS, cno, DAT_EVD_DTO_FLAG, &request_evd));
}

static void register_memory(struct memory *memory, size_t length, DAT_MEM_PRIV_FLAGS privileges)
{
    memory->length = length;
    if (posix_memalign((void **)&memory->base, DAT_OPTIMAL_ALIGNMENT, length))
        fail("no memory for %zu bytes", length);
    memset(memory->base, 0, length);

    DAT_REGION_DESCRIPTION region = { .for_va = memory->base };
    DAT_VLEN registered_length;
    DAT_VADDR registered_address;
    ok("dat_lmr_create",
       dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, length, pz, privileges, &memory->lmr, &memory->lmr_context,
                      &memory->rmr_context, &registered_length, &registered_address));
    DAT_VADDR start = (DAT_VADDR)(uintptr_t)memory->base;
    if (registered_address > start || registered_address + registered_length < start + length)
        fail("dat_lmr_create registered less than the requested %zu bytes", length);
}

static void create_endpoint(void)
{
    DAT_COUNT reads = ia_attr.max_rdma_read_per_ep_out < 4 ? ia_attr.max_rdma_read_per_ep_out : 4;
    DAT_EP_ATTR attr = {
        .service_type = DAT_SERVICE_TYPE_RC,
        .max_message_size = slot_size,
        .max_rdma_size = opt.bytes,
        .qos = DAT_QOS_BEST_EFFORT,
        .recv_completion_flags = DAT_COMPLETION_DEFAULT_FLAG,
        .request_completion_flags = DAT_COMPLETION_DEFAULT_FLAG,
        .max_recv_dtos = RECEIVES,
        .max_request_dtos = REQUESTS,
        .max_recv_iov = 1,
        .max_request_iov = 1,
        .max_rdma_read_in = reads,
        .max_rdma_read_out = reads,
        .max_rdma_read_iov = 1,
        .max_rdma_write_iov = 1,
    };
    ok("dat_ep_create", dat_ep_create(ia, pz, recv_evd, request_evd, conn_evd, &attr, &ep));

    /* Receives are posted before the connection exists, so that no message arrives too early. */
    for (uint64_t i = 0; i < RECEIVES; i++)
        post_receive(i);
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

static struct hello hello(bool client)
{
    struct hello hello = { .greeting = GREETING, .bytes = htobe64(opt.bytes), .bursts = htonl(opt.bursts) };
    strcpy(hello.role, client ? "client" : "server");
    return hello;
}

/*
 * Whether there is no connection manager (verbs with cm=none). Then there are no private data, and a disconnect by the
 * peer causes no event.
 */
static bool unmanaged(void)
{
    return provider_attr.max_private_data_size < (DAT_COUNT)sizeof(struct hello);
}

/* Some transports pad private data with zeros, so they may be longer than what was sent. */
static void check_hello(const void *data, DAT_COUNT size, bool client)
{
    struct hello wanted = hello(client), got;
    if (unmanaged())
        return;
    if (size < (DAT_COUNT)sizeof got || !data)
        fail("private data of %d bytes, expected %zu", size, sizeof got);
    memcpy(&got, data, sizeof got);
    if (memcmp(got.greeting, wanted.greeting, sizeof got.greeting) || memcmp(got.role, wanted.role, sizeof got.role))
        fail("private data are not those of a dtest %s", wanted.role);
    if (memcmp(&got, &wanted, sizeof got))
        fail("the %s runs with -b %" PRIu64 " -B %u, but this side with -b %zu -B %u; give both the same", wanted.role,
             be64toh(got.bytes), ntohl(got.bursts), opt.bytes, opt.bursts);
    checked += sizeof got;
}

static uint64_t accept_client(void)
{
    ok("dat_evd_create (connection requests)", dat_evd_create(ia, 4, cno, DAT_EVD_CR_FLAG, &cr_evd));
    ok("dat_psp_create", dat_psp_create(ia, opt.qual, cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
    printf("listening on %" PRIu64 "\n", (uint64_t)opt.qual);
    fflush(stdout); /* a parent process may wait for this line */

    DAT_EVENT event;
    next_event(cr_evd, "a connection request", &event);
    uint64_t start = now_ns();
    const DAT_CR_ARRIVAL_EVENT_DATA *arrival = &event.event_data.cr_arrival_event_data;
    if (event.event_number != DAT_CONNECTION_REQUEST_EVENT)
        fail("event 0x%x, expected a connection request", (unsigned)event.event_number);
    if (arrival->sp_handle.psp_handle != psp || arrival->conn_qual != opt.qual)
        fail("a connection request for another service point");

    DAT_CR_PARAM request;
    ok("dat_cr_query", dat_cr_query(arrival->cr_handle, DAT_CR_FIELD_ALL, &request));
    check_hello(request.private_data, request.private_data_size, true);
    if (opt.delay)
        pause_ms(1000);
    struct hello answer = hello(false);
    ok("dat_cr_accept", dat_cr_accept(arrival->cr_handle, ep, unmanaged() ? 0 : sizeof answer, &answer));

    next_event(conn_evd, "the connection", &event);
    if (event.event_number != DAT_CONNECTION_EVENT_ESTABLISHED)
        fail("the connection: %s", connection_word(event.event_number));
    const DAT_CONNECTION_EVENT_DATA *connection = &event.event_data.connect_event_data;
    if (connection->ep_handle != ep || connection->private_data_size != 0)
        fail("the accepting side's event names another EP, or has private data");
    return now_ns() - start;
}

static void find_host(struct sockaddr_storage *address)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL, *best;
    int error = getaddrinfo(opt.host, NULL, &hints, &found);
    if (error)
        fail("%s: %s", opt.host, gai_strerror(error));
    for (best = found; best && best->ai_family != AF_INET; best = best->ai_next)
        ;
    best = best ? best : found; /* IPv4 if there is one, because every provider supports it */
    memset(address, 0, sizeof *address);
    memcpy(address, best->ai_addr, best->ai_addrlen);
    freeaddrinfo(found);
}

/* Resets the endpoint to UNCONNECTED and posts all receives again: the failed attempt to connect has flushed them. */
static void rewind_endpoint(void)
{
    DAT_EVENT event;
    ok("dat_ep_reset", dat_ep_reset(ep));
    while (dat_evd_dequeue(recv_evd, &event) == DAT_SUCCESS)
        ;
    for (uint64_t i = 0; i < RECEIVES; i++)
        post_receive(i);
}

static uint64_t connect_to_server(void)
{
    struct sockaddr_storage address;
    struct hello greeting = hello(true);
    find_host(&address);

    for (unsigned tries = 1;; tries++) {
        DAT_EVENT event;
        const DAT_CONNECTION_EVENT_DATA *connection = &event.event_data.connect_event_data;
        uint64_t start = now_ns();
        DAT_RETURN ret = dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&address, opt.qual, opt.timeout * 1000000 / 3,
                                        unmanaged() ? 0 : sizeof greeting, &greeting, DAT_QOS_BEST_EFFORT,
                                        DAT_CONNECT_DEFAULT_FLAG);
        ok("dat_ep_connect", ret);
        next_event(conn_evd, "an answer of the server", &event);
        if (connection->ep_handle != ep)
            fail("a connection event of another EP");

        switch (event.event_number) {
        case DAT_CONNECTION_EVENT_ESTABLISHED:
            check_hello(connection->private_data, connection->private_data_size, false);
            return now_ns() - start;
        case DAT_CONNECTION_EVENT_PEER_REJECTED:
        case DAT_CONNECTION_EVENT_NON_PEER_REJECTED:
        case DAT_CONNECTION_EVENT_UNREACHABLE:
            if (tries == 1) {
                printf("%s; trying again\n", connection_word(event.event_number));
                fflush(stdout);
            }
            if (tries < CONNECT_TRIES)
                break; /* perhaps the server is not there yet */
            /* fall through */
        default:
            fail("no connection to %s, qualifier %" PRIu64 ", after %u tries: %s", opt.host, (uint64_t)opt.qual,
                 tries, connection_word(event.event_number));
        }
        pause_ms(PAUSE_MS);
        rewind_endpoint();
    }
}

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

static void exchange_memory(void)
{
    send_word(MEMORY, 0);
    struct message message = receive_word(MEMORY, 0);
    peer_memory.rmr_context = ntohl(message.rmr_context);
    peer_memory.target_address = be64toh(message.address);
    peer_memory.segment_length = be64toh(message.length);
    if (peer_memory.segment_length != opt.bytes)
        fail("the peer offers %" PRIu64 " bytes, expected %zu", (uint64_t)peer_memory.segment_length, opt.bytes);
}

/* Writes the second half of `rdma` to peer_memory, or reads peer_memory into that half. Returns the time in
 * nanoseconds. */
static uint64_t one_rdma(bool write)
{
    DAT_LMR_TRIPLET segment = local(&rdma, opt.bytes, opt.bytes);
    DAT_DTO_COOKIE cookie = { .as_64 = ++requested };
    const char *what = write ? "an RDMA write" : "an RDMA read";
    uint64_t start = now_ns();
    if (write)
        ok("dat_ep_post_rdma_write",
           dat_ep_post_rdma_write(ep, 1, &segment, cookie, &peer_memory, DAT_COMPLETION_DEFAULT_FLAG));
    else
        ok("dat_ep_post_rdma_read",
           dat_ep_post_rdma_read(ep, 1, &segment, cookie, &peer_memory, DAT_COMPLETION_DEFAULT_FLAG));
    size_t length = completion(request_evd, cookie.as_64, DAT_DTO_SUCCESS, what);
    uint64_t ns = now_ns() - start;
    if (length != opt.bytes)
        fail("%s: %zu bytes, expected %zu", what, length, opt.bytes);
    return ns;
}

/* Prints the number and size of the operations, and their mean time and rate if ns, the total time, is not 0. Only the
 * client measures messages, so the server passes 0 for them. */
static void report(const char *what, uint64_t count, uint64_t bytes_each, uint64_t ns)
{
    printf("%-24s %8" PRIu64 " x %8" PRIu64 " bytes", what, count, bytes_each);
    if (ns)
        printf(" %12.2f us each %10.2f MB/s", (double)ns / 1000 / (double)count,
               (double)(bytes_each * count) / ((double)ns / 1000));
    putchar('\n');
}

/* Both sides write to each other, check the received data, and read back the written data. */
static void rdma_bursts(void)
{
    unsigned char *buffer = rdma.base + opt.bytes;
    bool client = opt.host != NULL;
    uint64_t write_ns = 0, read_ns = 0;
    for (unsigned burst = 0; burst < opt.bursts; burst++) {
        fill(buffer, opt.bytes, seed(client, 1, burst));
        write_ns += one_rdma(true);
        send_word(WRITTEN, burst);

        receive_word(WRITTEN, burst);
        verify(rdma.base, opt.bytes, seed(!client, 1, burst), "the RDMA write of the peer", burst);

        memset(buffer, 0xa5, opt.bytes);
        read_ns += one_rdma(false);
        verify(buffer, opt.bytes, seed(client, 1, burst), "the RDMA read of the written data", burst);

        /* The peer's data is verified, so this message permits the peer's next write into this memory. */
        send_word(READ, burst);
        receive_word(READ, burst);
    }
    report("RDMA write", opt.bursts, opt.bytes, write_ns);
    report("RDMA read", opt.bursts, opt.bytes, read_ns);
}

/* The client sends, and the server replies with a message of the same length. With `varied` the lengths run from 1 to
 * length. */
static void ping_pong(const char *what, unsigned kind, uint64_t rounds, size_t length, bool varied)
{
    bool client = opt.host != NULL;
    uint64_t ns = 0;
    for (uint64_t i = 0; i < rounds; i++) {
        unsigned round = (unsigned)i;
        size_t n = varied ? 1 + i % length : length, got;
        fill(send_slot(), n, seed(client, kind, round));

        uint64_t start = now_ns();
        if (client)
            send_slot_away(n, "a message to the peer");
        const unsigned char *slot = receive(&got, "a message of the peer");
        if (client)
            ns += now_ns() - start;
        else
            send_slot_away(n, "a message to the peer");

        if (got != n)
            fail("message %u has %zu bytes, expected %zu", round, got, n);
        verify(slot, n, seed(!client, kind, round), "a message of the peer", round);
        give_back();
    }
    report(what, rounds, length, ns);
}

/* ---- Closing ----------------------------------------------------------------------------------------------------- */

static void disconnect(void)
{
    DAT_EVENT event;
    bool client = opt.host != NULL;

    /* The server sends the last message, and disconnects after the send has completed. If the client disconnected
     * instead, a lost acknowledgement could flush the send although the message has arrived. Without a connection
     * manager, both sides send a last message and disconnect. Each side gets exactly one event about the end of the
     * connection. */
    if (!client || unmanaged())
        send_word(BYE, 0);
    if (client || unmanaged())
        receive_word(BYE, 0);
    if (!client || unmanaged()) {
        if (opt.delay)
            pause_ms(1000);
        DAT_CLOSE_FLAGS how = opt.abrupt ? DAT_CLOSE_ABRUPT_FLAG : DAT_CLOSE_GRACEFUL_FLAG;
        ok("dat_ep_disconnect", dat_ep_disconnect(ep, how));
    }
    next_event(conn_evd, "the end of the connection", &event);
    if (event.event_number != DAT_CONNECTION_EVENT_DISCONNECTED || event.event_data.connect_event_data.ep_handle != ep)
        fail("the end of the connection: %s", connection_word(event.event_number));

    DAT_EP_STATE state;
    ok("dat_ep_get_status", dat_ep_get_status(ep, &state, NULL, NULL));
    if (state != DAT_EP_STATE_DISCONNECTED)
        fail("the EP is in state %d after the end of the connection, expected %d", (int)state,
             (int)DAT_EP_STATE_DISCONNECTED);

    /* The unused receives are flushed, in the order of their posts. */
    for (uint64_t i = 0; i < RECEIVES; i++)
        completion(recv_evd, received + i, DAT_DTO_ERR_FLUSHED, "a receive at the end");

    /* A second disconnect has no effect, and no other event is queued. */
    ok("dat_ep_disconnect", dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
    no_event(conn_evd, "connection");
    no_event(recv_evd, "receive");
    no_event(request_evd, "request");
    if (cr_evd != DAT_HANDLE_NULL && !unmanaged())
        no_event(cr_evd, "connection request");
    no_event(async_evd, "asynchronous error");
}

static void close_adapter(void)
{
    ok("dat_ep_free", dat_ep_free(ep));
    if (psp != DAT_HANDLE_NULL)
        ok("dat_psp_free", dat_psp_free(psp));
    ok("dat_lmr_free (RDMA)", dat_lmr_free(rdma.lmr));
    ok("dat_lmr_free (messages)", dat_lmr_free(messages.lmr));
    ok("dat_evd_free (requests)", dat_evd_free(request_evd));
    ok("dat_evd_free (receives)", dat_evd_free(recv_evd));
    DAT_EVD_HANDLE last = conn_evd;
    conn_evd = DAT_HANDLE_NULL; /* fail() must not look at it any more */
    ok("dat_evd_free (connections)", dat_evd_free(last));
    if (cr_evd != DAT_HANDLE_NULL)
        ok("dat_evd_free (connection requests)", dat_evd_free(cr_evd));
    if (cno != DAT_HANDLE_NULL)
        ok("dat_cno_free", dat_cno_free(cno));
    ok("dat_pz_free", dat_pz_free(pz));
    /* A graceful close is refused if any object is left. */
    ok("dat_ia_close", dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    free(rdma.base);
    free(messages.base);
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static void usage(FILE *out)
{
    fprintf(out,
            "usage: dtest [-s | -h HOST] [options]\n"
            "\n"
            "Without -h it is the server, which waits for one client. Both need the same -b and -B.\n"
            "\n"
            "  -s          be the server (as without -h)\n"
            "  -h HOST     be the client of the server on HOST; a server that starts later is waited for\n"
            "  -P NAME     interface adapter, a name of dat.conf (default sm0)\n"
            "  -q QUAL     connection qualifier (default %d)\n"
            "  -b SIZE     bytes of an RDMA and of a large message, also as 64K or 1M (default 64K)\n"
            "  -B COUNT    bursts, each an RDMA write, an RDMA read, a large message and %d small ones\n"
            "              in both directions (default 10)\n"
            "  -c          wait with a consumer notification object (dat_cno_wait)\n"
            "  -p          poll (dat_evd_dequeue) and never sleep\n"
            "  -a          disconnect abruptly and not gracefully\n"
            "  -d          wait a second before accepting and before disconnecting (server)\n"
            "  -t SECONDS  time limit of each wait for an event; the timeout of a connect is a\n"
            "              third of it (default 30)\n"
            "  -v          print the attributes of adapter and provider\n"
            "  --help      print this\n"
            "\n"
            "The exit status is 0 only if every byte and every event was correct.\n",
            DEFAULT_QUAL, SMALL_PER_BURST);
}

__attribute__((noreturn)) static void misused(const char *why)
{
    fprintf(stderr, "dtest: %s; see dtest --help\n", why);
    exit(2);
}

static uint64_t parse_number(const char *text, uint64_t least, uint64_t most)
{
    char *end;
    uint64_t value = strtoull(text, &end, 0);
    unsigned shift = *end == 'K' || *end == 'k' ? 10 : *end == 'M' || *end == 'm' ? 20 : 0;
    if (end == text || *text == '-' || end[shift != 0] != '\0' || value > most >> shift || value << shift < least) {
        fprintf(stderr, "dtest: \"%s\" is not a number from %" PRIu64 " to %" PRIu64 "; see dtest --help\n", text,
                least, most);
        exit(2);
    }
    return value << shift;
}

static void parse_options(int argc, char **argv)
{
    static const struct option words[] = { { "help", no_argument, NULL, 'H' }, { NULL, 0, NULL, 0 } };
    bool server = false;
    for (int c; (c = getopt_long(argc, argv, "sh:P:q:b:B:cpadt:v", words, NULL)) != -1;) {
        switch (c) {
        case 's': server = true; break;
        case 'h': opt.host = optarg; break;
        case 'P': opt.provider = optarg; break;
        case 'q': opt.qual = parse_number(optarg, 1, UINT64_MAX); break;
        case 'b': opt.bytes = (size_t)parse_number(optarg, 1, UINT64_C(1) << 40); break;
        case 'B': opt.bursts = (unsigned)parse_number(optarg, 1, UINT32_MAX); break;
        case 'c': opt.mode = NOTIFIED; break;
        case 'p': opt.mode = POLLING; break;
        case 'a': opt.abrupt = true; break;
        case 'd': opt.delay = true; break;
        case 't': opt.timeout = (unsigned)parse_number(optarg, 1, 4000); break;
        case 'v': opt.verbose = true; break;
        case 'H': usage(stdout); exit(EXIT_SUCCESS);
        default: misused("an option is unknown or lacks its value");
        }
    }
    if (optind < argc)
        misused("it takes only options, no other arguments");
    if (server && opt.host)
        misused("-s and -h exclude each other");
}

/* ---- Main program ------------------------------------------------------------------------------------------------ */

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    printf("dtest: %s on %s\n", opt.host ? "client" : "server", opt.provider);

    open_adapter();
    large = opt.bytes < ia_attr.max_message_size ? opt.bytes : (size_t)ia_attr.max_message_size;
    slot_size = large > SMALL ? large : SMALL; /* a struct message is shorter than SMALL */
    register_memory(&messages, (RECEIVES + 1) * slot_size,
                    DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
    register_memory(&rdma, 2 * opt.bytes, DAT_MEM_PRIV_ALL_FLAG);
    create_endpoint();

    uint64_t ns = opt.host ? connect_to_server() : accept_client();
    printf("connected in %.1f us\n", (double)ns / 1000);
    fflush(stdout);

    exchange_memory();
    rdma_bursts();
    ping_pong("large message, and back", 2, opt.bursts, large, false);
    ping_pong("small message, and back", 3, (uint64_t)opt.bursts * SMALL_PER_BURST, SMALL, true);

    disconnect();
    close_adapter();
    if (opt.mode == NOTIFIED)
        printf("%u wake-ups by the CNO\n", cno_wakeups);
    printf("dtest: OK (checked %" PRIu64 " bytes)\n", checked);
    return EXIT_SUCCESS;
}
