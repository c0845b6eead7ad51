/*
 * verbs_stream.c - two processes send each other messages without pause, until the connection breaks.
 *
 *   verbs_stream serve IA
 *   verbs_stream call IA ADDRESS
 *
 * Prints "flowing" when messages have arrived in both directions. Then the test that runs both processes kills one of
 * them, or takes the network down. There must be one event DISCONNECTED or BROKEN, all requests and receives must
 * complete, and no further event may come. Contents are checked. Times are printed but not checked.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { MESSAGE = 16384, DEPTH = 4, QUAL = 5151, FLOWING_MESSAGES = 8 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE async, requests, connection, receives, sends;
static DAT_EP_HANDLE ep;
static DAT_LMR_CONTEXT key;
static unsigned char memory[2 * DEPTH][MESSAGE]; /* receives, then sends */
static uint64_t taken, given;                    /* numbers of received and of sent messages */
static int receiving, sending;                   /* posted and not completed */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static DAT_LMR_TRIPLET place(int slot)
{
    DAT_LMR_TRIPLET at = {.lmr_context = key, .virtual_address = (DAT_VADDR)(uintptr_t)memory[slot], .segment_length = MESSAGE};
    return at;
}

static void open_all(const char *name)
{
    DAT_REGION_DESCRIPTION region = {.for_va = memory};
    DAT_LMR_HANDLE lmr;
    OK(dat_ia_open((char *)name, 8, &async, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connection));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &receives));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &sends));
    OK(dat_ep_create(ia, pz, receives, sends, connection, NULL, &ep));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &key, NULL, NULL, NULL));
}

static void receive(int slot)
{
    DAT_LMR_TRIPLET at = place(slot);
    DAT_DTO_COOKIE cookie = {.as_64 = (DAT_UINT64)slot};
    OK(dat_ep_post_recv(ep, 1, &at, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    receiving++;
}

/* Fills and sends a message: every byte is the lowest byte of the message's number. */
static void give(int slot)
{
    DAT_LMR_TRIPLET at = place(slot);
    DAT_DTO_COOKIE cookie = {.as_64 = (DAT_UINT64)slot};
    memset(memory[slot], (int)(given++ & 0xff), MESSAGE);
    DAT_RETURN ret = dat_ep_post_send(ep, 1, &at, cookie, DAT_COMPLETION_DEFAULT_FLAG);
    /* A post may be refused because the connection has ended since the last check. */
    if (DAT_GET_TYPE(ret) != DAT_INVALID_STATE) {
        OK(ret);
        sending++;
    }
}

static void check_message(int slot, DAT_VLEN length)
{
    EXPECT(length == MESSAGE);
    for (int n = 0; n < MESSAGE; n++)
        if (memory[slot][n] != (taken & 0xff))
            fail("message %llu: byte %d is 0x%02x, expected 0x%02x", (unsigned long long)taken, n, memory[slot][n],
                 (unsigned)(taken & 0xff));
    taken++;
}

/* Dequeues one completion of evd. Returns whether one arrived within this time. */
static int took(DAT_EVD_HANDLE evd, DAT_TIMEOUT time, DAT_DTO_COMPLETION_EVENT_DATA *dto)
{
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_RETURN ret = dat_evd_wait(evd, time, 1, &event, &more);
    if (DAT_GET_TYPE(ret) == DAT_TIMEOUT_EXPIRED)
        return 0;
    OK(ret);
    EXPECT(event.event_number == DAT_DTO_COMPLETION_EVENT && event.event_data.dto_completion_event_data.ep_handle == ep);
    *dto = event.event_data.dto_completion_event_data;
    return 1;
}

/* Dequeues completions, and posts again while the connection is established. */
static void turn(int is_established)
{
    DAT_DTO_COMPLETION_EVENT_DATA dto;
    while (took(receives, receiving ? 10000 : 0, &dto)) {
        receiving--;
        if (dto.status == DAT_DTO_SUCCESS)
            check_message((int)dto.user_cookie.as_64, dto.transfered_length);
        else if (dto.status != DAT_DTO_ERR_FLUSHED)
            fail("a receive completed with status %d, expected success or flushed", (int)dto.status);
        if (is_established && dto.status == DAT_DTO_SUCCESS)
            receive((int)dto.user_cookie.as_64);
    }
    while (took(sends, 0, &dto)) {
        sending--;
        if (is_established && dto.status == DAT_DTO_SUCCESS)
            give((int)dto.user_cookie.as_64);
    }
}

static void stand(const char *address)
{
    DAT_EVENT event;
    for (int slot = 0; slot < DEPTH; slot++)
        receive(slot);
    if (address) {
        struct sockaddr_in there = {.sin_family = AF_INET};
        EXPECT(inet_pton(AF_INET, address, &there.sin_addr) == 1);
        OK(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&there, QUAL, 60 * SECOND, 0, NULL, DAT_QOS_BEST_EFFORT,
                          DAT_CONNECT_DEFAULT_FLAG));
    } else {
        DAT_PSP_HANDLE psp;
        OK(dat_psp_create(ia, QUAL, requests, DAT_PSP_CONSUMER_FLAG, &psp));
        printf("stream: listening\n");
        fflush(stdout);
        event = next(requests, DAT_CONNECTION_REQUEST_EVENT, "the request");
        OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL));
        next(connection, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
        OK(dat_psp_free(psp));
        return;
    }
    next(connection, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
}

/* Streams until the disconnect event. Returns the number of that event. */
static DAT_EVENT_NUMBER stream(void)
{
    DAT_EVENT event;
    double begin = now();
    int says = 0;
    for (int slot = DEPTH; slot < 2 * DEPTH; slot++)
        give(slot);
    for (;;) {
        DAT_RETURN ret = dat_evd_dequeue(connection, &event);
        if (ret == DAT_SUCCESS)
            return event.event_number;
        EXPECT(ret == DAT_QUEUE_EMPTY);
        turn(1);
        if (!says && taken >= FLOWING_MESSAGES && given >= FLOWING_MESSAGES) {
            printf("stream: flowing after %.1f s\n", now() - begin);
            fflush(stdout);
            says = 1;
        }
        if (now() - begin > EVENT_TIMEOUT / SECOND)
            fail("the connection did not end before the time limit; outstanding: %d sends, %d receives",
                 sending, receiving);
    }
}

int main(int argc, char **argv)
{
    DAT_EP_STATE state;
    DAT_EVENT_NUMBER end;
    int calls = argc == 4 && strcmp(argv[1], "call") == 0;
    if (!calls && (argc != 3 || strcmp(argv[1], "serve") != 0))
        fail("usage: verbs_stream serve IA | call IA ADDRESS");
    open_all(argv[2]);
    stand(calls ? argv[3] : NULL);
    end = stream();
    if (end != DAT_CONNECTION_EVENT_DISCONNECTED && end != DAT_CONNECTION_EVENT_BROKEN)
        fail("event 0x%x does not end a connection", (unsigned)end);
    double gone = now();
    while (sending || receiving) {
        turn(0);
        if (now() - gone > EVENT_TIMEOUT / SECOND)
            fail("%d sends and %d receives are outstanding after the disconnect, expected none", sending, receiving);
    }
    double flushed = now();
    sleep(1);
    OK(dat_ep_get_status(ep, &state, NULL, NULL));
    EXPECT(state == DAT_EP_STATE_DISCONNECTED);
    expect_no_event(connection, "connection");
    expect_no_event(receives, "receives");
    expect_no_event(sends, "sends");
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    printf("stream: OK (%s; %llu messages came, %llu went; flushed after %.3f s)\n",
           end == DAT_CONNECTION_EVENT_BROKEN ? "broken" : "disconnected", (unsigned long long)taken, (unsigned long long)given,
           flushed - gone);
    return 0;
}
