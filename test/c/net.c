/*
 * net - two processes that stream data over an impaired network, and check every byte.
 *
 *   net -s      [options]     server
 *   net -h HOST [options]     client
 *
 *   -P ia       interface adapter [usnic0]
 *   -q qual     connection qualifier [5161]
 *   -b BYTES    size of a block, a multiple of 8 [262144]
 *   -t SECONDS  time for which the client streams [3]
 *   -2          the server streams too
 *   -e          the connection must end before the client has finished
 *   -i          with -e: after SECONDS, neither side sends further blocks or ends the connection
 *
 * A block is an RDMA write into a slot of the peer's memory, followed by a message that announces it. The peer checks
 * the slot and replies. Every few blocks the slot is read back. The program prints "flowing" after the first blocks.
 * Exactly one event must end the connection: with -e DISCONNECTED or BROKEN; without -e DISCONNECTED, after both sides
 * have announced their end. All requests and receives must complete, and no further event may come. Both sides take the
 * same options. Times are printed but not checked.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <netdb.h>
#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { SLOTS = 4, RECEIVES = 2 * SLOTS + 2, MESSAGES = 3 * SLOTS + 2, FLOWING_BLOCKS = 8, READ_EACH = 8, TICK = SECOND / 10 };
enum word { WRITTEN = 1, DONE, BYE };
/* Kind of work, in the upper half of a cookie. The lower half is the index of the message or of the block's slot. */
enum kind { RECEIVE = 1, MESSAGE, WRITE, READ };

struct message {
    uint64_t word, number;
};

struct place {
    uint64_t address, key;
};

/* State of a slot in the peer's memory: the number of its last block, and whether the write or the read of that block
 * is in progress. */
struct slot {
    uint64_t number;
    int writing, reading;
};

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE async_evd, all;
static DAT_EP_HANDLE ep;
static DAT_LMR_CONTEXT key;
static DAT_RMR_CONTEXT remote_key;
static struct place there;

/* Memory layout: target of the peer's writes, source of local writes, target of local reads, then the messages. */
static char *memory, *incoming, *outgoing, *back;
static struct message *received_messages, *sent_messages;
static int is_message_used[MESSAGES];
static struct slot slots[SLOTS];

static char *name = "usnic0";
static const char *host;
static DAT_CONN_QUAL qual = 5161;
static size_t block = 262144;
static double duration = 3;
static int both_ways, is_to_end, is_idle;

static uint64_t given, answered, taken;          /* blocks sent by this process, those with a reply, blocks of the peer */
static uint64_t owed[SLOTS], owing;              /* blocks whose replies are not posted yet */
static int receiving, requesting;                /* posted and not completed */
static int said_bye, received_bye, says;
static DAT_EVENT_NUMBER end;
static DAT_DTO_COMPLETION_STATUS first_error;
static double began, last_message;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static const char *event_word(DAT_EVENT_NUMBER number)
{
    switch (number) {
    case DAT_CONNECTION_EVENT_DISCONNECTED: return "disconnected";
    case DAT_CONNECTION_EVENT_BROKEN: return "broken";
    case DAT_CONNECTION_EVENT_TIMED_OUT: return "timed out";
    case DAT_CONNECTION_EVENT_UNREACHABLE: return "unreachable";
    case DAT_CONNECTION_EVENT_PEER_REJECTED: return "rejected";
    case DAT_CONNECTION_EVENT_NON_PEER_REJECTED: return "no program listens";
    case DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR: return "accept failed";
    default: return "unexpected event";
    }
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("net: ");
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

/* ---- Content of blocks ---- */

static uint64_t first_word(uint64_t number)
{
    return (number + 1) * 0x9e3779b97f4a7c15u;
}

static void fill(char *at, uint64_t number)
{
    uint64_t *words = (uint64_t *)at, value = first_word(number);
    size_t n;
    for (n = 0; n < block / 8; n++)
        words[n] = value + n * 0xbf58476d1ce4e5b9u;
}

static void check_block(const char *at, uint64_t number, const char *what)
{
    const uint64_t *words = (const uint64_t *)at;
    uint64_t value = first_word(number);
    size_t n;
    for (n = 0; n < block / 8; n++)
        if (words[n] != value + n * 0xbf58476d1ce4e5b9u)
            fail("net: %s %llu has wrong data from byte %zu on", what, (unsigned long long)number, 8 * n);
}

/* ---- Posting ---- */

static DAT_LMR_TRIPLET part(const void *at, size_t length)
{
    DAT_LMR_TRIPLET triplet = {.lmr_context = key, .virtual_address = (DAT_VADDR)(uintptr_t)at, .segment_length = length};
    return triplet;
}

static DAT_DTO_COOKIE cookie(enum kind kind, uint64_t which)
{
    DAT_DTO_COOKIE made = {.as_64 = (uint64_t)kind << 32 | which};
    return made;
}

/* Checks the result of a post. Returns 0 if the post was refused, because the connection has ended and the disconnect
 * event has not arrived yet. */
static int posted(DAT_RETURN ret, const char *what)
{
    if (DAT_GET_TYPE(ret) == DAT_INVALID_STATE)
        return 0;
    check_ok(what, ret);
    return 1;
}

static void receive(uint64_t which)
{
    DAT_LMR_TRIPLET at = part(&received_messages[which], sizeof *received_messages);
    receiving += posted(dat_ep_post_recv(ep, 1, &at, cookie(RECEIVE, which), DAT_COMPLETION_DEFAULT_FLAG), "a receive");
}

static int free_note(void)
{
    int n;
    for (n = 0; n < MESSAGES; n++)
        if (!is_message_used[n])
            return n;
    return -1;
}

/* Sends a message from a free slot; the caller ensures that one is free. */
static void send_note(enum word word, uint64_t number)
{
    int which = free_note();
    DAT_LMR_TRIPLET at = part(&sent_messages[which], sizeof *sent_messages);
    DAT_RETURN ret;
    sent_messages[which] = (struct message){.word = word, .number = number};
    ret = dat_ep_post_send(ep, 1, &at, cookie(MESSAGE, (uint64_t)which), DAT_COMPLETION_DEFAULT_FLAG);
    is_message_used[which] = posted(ret, "a send");
    requesting += is_message_used[which];
}

static DAT_RMR_TRIPLET remote(uint64_t which)
{
    DAT_RMR_TRIPLET triplet = {.rmr_context = (DAT_RMR_CONTEXT)there.key, .target_address = there.address + which * block,
                               .segment_length = block};
    return triplet;
}

static void give(void)
{
    uint64_t which = given % SLOTS;
    DAT_LMR_TRIPLET from = part(outgoing + which * block, block);
    DAT_RMR_TRIPLET to = remote(which);
    DAT_RETURN ret;
    fill(outgoing + which * block, given);
    ret = dat_ep_post_rdma_write(ep, 1, &from, cookie(WRITE, which), &to, DAT_COMPLETION_DEFAULT_FLAG);
    slots[which] = (struct slot){.number = given, .writing = posted(ret, "a write")};
    requesting += slots[which].writing;
    send_note(WRITTEN, given++);
}

static void read_back(uint64_t which)
{
    DAT_LMR_TRIPLET to = part(back + which * block, block);
    DAT_RMR_TRIPLET from = remote(which);
    DAT_RETURN ret = dat_ep_post_rdma_read(ep, 1, &to, cookie(READ, which), &from, DAT_COMPLETION_DEFAULT_FLAG);
    slots[which].reading = posted(ret, "a read");
    requesting += slots[which].reading;
}

/* ---- Events ---- */

static void handle_message(const struct message *message)
{
    struct slot *slot;
    switch (message->word) {
    case WRITTEN:
        if (message->number != taken)
            fail("net: received block %llu, expected %llu", (unsigned long long)message->number, (unsigned long long)taken);
        check_block(incoming + taken % SLOTS * block, taken, "block");
        owed[owing++] = taken++;
        break;
    case DONE:
        EXPECT(message->number == answered && answered < given);
        slot = &slots[answered % SLOTS];
        if (answered++ % READ_EACH == 0)
            read_back(slot->number % SLOTS);
        break;
    case BYE:
        received_bye = 1;
        break;
    default:
        fail("net: the peer sent a message of unknown type %llu", (unsigned long long)message->word);
    }
}

static void completed_one(const DAT_DTO_COMPLETION_EVENT_DATA *dto)
{
    enum kind kind = (enum kind)(dto->user_cookie.as_64 >> 32);
    uint32_t which = (uint32_t)dto->user_cookie.as_64;
    EXPECT(dto->ep_handle == ep);
    if (kind == RECEIVE)
        receiving--;
    else
        requesting--;
    EXPECT(receiving >= 0 && requesting >= 0);
    if (kind == MESSAGE)
        is_message_used[which] = 0;
    if (dto->status != DAT_DTO_SUCCESS) {
        /* The disconnect event may be queued before or after this completion. */
        if (first_error == DAT_DTO_SUCCESS || first_error == DAT_DTO_ERR_FLUSHED)
            first_error = dto->status;
        return;
    }
    if (kind == WRITE)
        slots[which].writing = 0;
    if (kind == READ) {
        check_block(back + which * block, slots[which].number, "read-back of block");
        slots[which].reading = 0;
    }
    if (kind == RECEIVE) {
        struct message message = received_messages[which];
        EXPECT(dto->transfered_length == sizeof message);
        last_message = now();
        if (!end)
            receive(which);
        handle_message(&message);
    }
}

/* Dequeues and handles the next event. Returns whether one arrived within this time. */
static int took(DAT_TIMEOUT time)
{
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_RETURN ret = dat_evd_wait(all, time, 1, &event, &more);
    if (DAT_GET_TYPE(ret) == DAT_TIMEOUT_EXPIRED)
        return 0;
    OK(ret);
    if (event.event_number == DAT_DTO_COMPLETION_EVENT) {
        completed_one(&event.event_data.dto_completion_event_data);
        return 1;
    }
    if (end)
        fail("net: event 0x%x arrived after the event that ended the connection", (unsigned)event.event_number);
    end = event.event_number;
    say("%s after %.3f s, %.3f s after the last message", event_word(end), now() - began, now() - last_message);
    return 1;
}

/* ---- The run ---- */

static void open_all(void)
{
    DAT_REGION_DESCRIPTION region;
    DAT_EP_PARAM param;
    DAT_LMR_HANDLE lmr;
    size_t space = 3 * SLOTS * block + (RECEIVES + MESSAGES) * sizeof(struct message);
    memory = aligned_alloc(4096, (space + 4095) / 4096 * 4096);
    EXPECT(memory != NULL);
    memset(memory, 0, space);
    incoming = memory;
    outgoing = incoming + SLOTS * block;
    back = outgoing + SLOTS * block;
    received_messages = (struct message *)(back + SLOTS * block);
    sent_messages = received_messages + RECEIVES;
    region.for_va = memory;
    OK(dat_ia_open(name, 8, &async_evd, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 256, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_DTO_FLAG, &all));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, space, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &key, &remote_key, NULL, NULL));
    OK(dat_ep_create(ia, pz, all, all, all, NULL, &ep));
    OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
    OK(dat_ep_free(ep));
    param.ep_attr.max_recv_dtos = RECEIVES;
    param.ep_attr.max_request_dtos = MESSAGES + 2 * SLOTS;
    OK(dat_ep_create(ia, pz, all, all, all, &param.ep_attr, &ep));
    for (int n = 0; n < RECEIVES; n++)
        receive((uint64_t)n);
}

static void call(void)
{
    struct place here = {.address = (uint64_t)(uintptr_t)incoming, .key = remote_key};
    struct addrinfo *found;
    if (getaddrinfo(host, NULL, NULL, &found) != 0)
        fail("net: unknown host %s", host);
    OK(dat_ep_connect(ep, found->ai_addr, qual, 60 * SECOND, sizeof here, &here, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    freeaddrinfo(found);
    DAT_EVENT event = next(all, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
    const DAT_CONNECTION_EVENT_DATA *data = &event.event_data.connect_event_data;
    EXPECT(data->private_data_size >= (DAT_COUNT)sizeof there);
    memcpy(&there, data->private_data, sizeof there);
}

static void serve(void)
{
    struct place here = {.address = (uint64_t)(uintptr_t)incoming, .key = remote_key};
    DAT_PSP_HANDLE psp;
    DAT_CR_PARAM param;
    OK(dat_psp_create(ia, qual, all, DAT_PSP_CONSUMER_FLAG, &psp));
    say("listening");
    DAT_EVENT event = next(all, DAT_CONNECTION_REQUEST_EVENT, "the request");
    DAT_CR_HANDLE request = event.event_data.cr_arrival_event_data.cr_handle;
    OK(dat_cr_query(request, DAT_CR_FIELD_ALL, &param));
    EXPECT(param.private_data_size >= (DAT_COUNT)sizeof there);
    memcpy(&there, param.private_data, sizeof there);
    OK(dat_cr_accept(request, ep, sizeof here, &here));
    next(all, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
    OK(dat_psp_free(psp));
}

static int can_give(void)
{
    const struct slot *slot = &slots[given % SLOTS];
    int is_late = now() - began >= duration;
    int is_time = host != NULL ? !is_late : both_ways && !received_bye && !(is_idle && is_late);
    return is_time && given - answered < SLOTS && !slot->writing && !slot->reading && free_note() >= 0;
}

/* Posts all work for which slots are free. */
static void post_all(void)
{
    uint64_t n;
    while (owing > 0 && free_note() >= 0) {
        send_note(DONE, owed[0]);
        for (n = 1; n < owing; n++)
            owed[n - 1] = owed[n];
        owing--;
    }
    while (can_give())
        give();
    if (!said_bye && !is_idle && free_note() >= 0 && owing == 0 && given == answered &&
        (host != NULL ? now() - began >= duration : received_bye)) {
        send_note(BYE, 0);
        said_bye = 1;
    }
}

static void stream(void)
{
    double limit = began + duration + EVENT_TIMEOUT / SECOND;
    while (!end && first_error == DAT_DTO_SUCCESS) {
        post_all();
        if (took(TICK))
            while (!end && took(0))
                ;
        if (!says && taken + answered >= FLOWING_BLOCKS) {
            say("flowing after %.3f s", now() - began);
            says = 1;
        }
        if (host != NULL && said_bye && received_bye && requesting == 0)
            break;
        if (now() > limit)
            fail("net: the connection did not end before the time limit; outstanding: %d requests, %d receives",
                 requesting, receiving);
    }
}

static void part_in_peace(void)
{
    if (host != NULL && !end)
        OK(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG));
    while (!end)
        if (!took(EVENT_TIMEOUT))
            fail("net: no event ended the connection within %u s", EVENT_TIMEOUT / SECOND);
    if (!said_bye || !received_bye || end != DAT_CONNECTION_EVENT_DISCONNECTED)
        fail("net: connection ended too early (%s) %.3f s after the last message; first error status %d; "
             "blocks: %llu sent, %llu of them acknowledged, %llu received",
             event_word(end), now() - last_message, (int)first_error, (unsigned long long)given, (unsigned long long)answered,
             (unsigned long long)taken);
}

/* Checks that all posted work completes, and that no further event arrives. */
static void rest(void)
{
    DAT_EP_STATE state;
    double gone = now();
    while (requesting > 0 || receiving > 0)
        if (!took(EVENT_TIMEOUT))
            fail("net: %d requests and %d receives are outstanding after the disconnect, expected none", requesting,
                 receiving);
    say("all requests completed %.3f s after the end", now() - gone);
    usleep(200000);
    OK(dat_ep_get_status(ep, &state, NULL, NULL));
    EXPECT(state == DAT_EP_STATE_DISCONNECTED);
    expect_no_event(all, "afterwards");
}

int main(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "sh:P:q:b:t:2ei")) != -1) {
        switch (option) {
        case 's': break;
        case 'h': host = optarg; break;
        case 'P': name = optarg; break;
        case 'q': qual = strtoull(optarg, NULL, 0); break;
        case 'b': block = (size_t)atol(optarg); break;
        case 't': duration = atof(optarg); break;
        case '2': both_ways = 1; break;
        case 'e': is_to_end = 1; break;
        case 'i': is_idle = 1; break;
        default: fail("usage: net -s|-h host [options]; the head of test/c/net.c explains them");
        }
    }
    EXPECT(optind == argc && block >= 8 && block % 8 == 0 && duration > 0);
    open_all();
    if (host != NULL)
        call();
    else
        serve();
    began = last_message = now();
    stream();
    double lasted = now() - began;
    while (first_error != DAT_DTO_SUCCESS && !end)
        if (!took(EVENT_TIMEOUT))
            fail("net: a request failed with status %d, but no event ended the connection", (int)first_error);
    if (is_to_end) {
        if (!end)
            fail("net: the connection did not end");
        if (end != DAT_CONNECTION_EVENT_DISCONNECTED && end != DAT_CONNECTION_EVENT_BROKEN)
            fail("net: event 0x%x does not end a connection", (unsigned)end);
    } else {
        part_in_peace();
    }
    rest();
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    say("OK (%s; gave %llu blocks, took %llu, first error %d, %.2f MB/s)", event_word(end), (unsigned long long)answered,
        (unsigned long long)taken, (int)first_error, (double)(answered + taken) * (double)block / 1e6 / lasted);
    return 0;
}
