/*
 * production: a client that loses no request when its server is killed, and the server.
 *
 * production ADAPTER server QUALIFIER                   replies to each message, until a client sends its last message
 * production ADAPTER client QUALIFIER ADDRESS COUNT     sends COUNT numbered messages and checks each reply
 *
 * Buffers are registered once. At most DEPTH messages are under way, so each finds a posted receive. After any failure
 * the client dequeues the flushed completions, resets its endpoint, connects again, and repeats the unanswered
 * requests.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dat/udat.h>

enum { DEPTH = 16, CONNECT_US = 1000000, ANSWER_US = 10000000, PAUSE_MS = 20, LAST_MESSAGE = -1 };

struct message {
    int number;
    char text[60];
};

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE errors, evd;
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT key;
static DAT_EP_HANDLE ep;
static struct message buffers[2 * DEPTH]; /* receives, then sends */

static void ok(const char *call, DAT_RETURN ret)
{
    const char *type = "?", *subtype = "";
    if (ret == DAT_SUCCESS)
        return;
    dat_strerror(ret, &type, &subtype);
    fprintf(stderr, "%s: %s %s\n", call, type, subtype);
    exit(1);
}

static void set_up(const char *adapter)
{
    DAT_REGION_DESCRIPTION region = {.for_va = buffers};
    DAT_RMR_CONTEXT remote;
    DAT_VLEN length;
    DAT_VADDR base;

    ok("dat_ia_open", dat_ia_open((char *)(size_t)adapter, 8, &errors, &ia));
    ok("dat_pz_create", dat_pz_create(ia, &pz));
    ok("dat_evd_create", dat_evd_create(ia, 8 * DEPTH, DAT_HANDLE_NULL,
                                        DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_DTO_FLAG, &evd));
    ok("dat_lmr_create", dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof buffers, pz,
                                        DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &lmr, &key, &remote,
                                        &length, &base));
    ok("dat_ep_create", dat_ep_create(ia, pz, evd, evd, evd, NULL, &ep));
}

/* Frees in the reverse order. Each call is refused while its object is in use, so a mistake is detected here. */
static void shut_down(void)
{
    ok("dat_ep_free", dat_ep_free(ep));
    ok("dat_lmr_free", dat_lmr_free(lmr));
    ok("dat_evd_free", dat_evd_free(evd));
    ok("dat_pz_free", dat_pz_free(pz));
    ok("dat_ia_close", dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

/* Posts a receive for a buffer below DEPTH, otherwise a send of the buffer. The cookie is the index of the buffer. */
static DAT_RETURN post(int buffer)
{
    DAT_LMR_TRIPLET piece = {.lmr_context = key,
                             .virtual_address = (DAT_VADDR)(uintptr_t)&buffers[buffer],
                             .segment_length = sizeof buffers[buffer]};
    DAT_DTO_COOKIE cookie = {.as_64 = (DAT_UINT64)buffer};
    if (buffer < DEPTH)
        return dat_ep_post_recv(ep, 1, &piece, cookie, DAT_COMPLETION_DEFAULT_FLAG);
    return dat_ep_post_send(ep, 1, &piece, cookie, DAT_COMPLETION_DEFAULT_FLAG);
}

static void post_receives(void)
{
    for (int buffer = 0; buffer < DEPTH; buffer++)
        ok("dat_ep_post_recv", post(buffer));
}

/* Dequeues the next event. Returns 0 if the timeout has expired or a signal has interrupted the wait. */
static int next(DAT_EVENT *event, DAT_TIMEOUT timeout)
{
    DAT_COUNT more;
    DAT_RETURN ret = dat_evd_wait(evd, timeout, 1, event, &more);
    if (DAT_GET_TYPE(ret) == DAT_TIMEOUT_EXPIRED || DAT_GET_TYPE(ret) == DAT_INTERRUPTED_CALL)
        return 0;
    ok("dat_evd_wait", ret);
    return 1;
}

/* Drops an event of a connection that ends. Rejects a connection request, because the server accepts one client at a
 * time; a rejected client retries. */
static void discard(const DAT_EVENT *event)
{
    if (event->event_number == DAT_CONNECTION_REQUEST_EVENT)
        dat_cr_reject(event->event_data.cr_arrival_event_data.cr_handle);
}

/* Makes the endpoint ready to connect: ends the connection, resets the endpoint, then discards all queued events. */
static void reset(void)
{
    DAT_EVENT event;
    DAT_EP_STATE state;
    DAT_BOOLEAN recv_idle, request_idle;

    ok("dat_ep_get_status", dat_ep_get_status(ep, &state, &recv_idle, &request_idle));
    if (state != DAT_EP_STATE_UNCONNECTED && state != DAT_EP_STATE_DISCONNECTED)
        ok("dat_ep_disconnect", dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
    while (state != DAT_EP_STATE_UNCONNECTED && state != DAT_EP_STATE_DISCONNECTED) {
        if (next(&event, ANSWER_US))
            discard(&event);
        ok("dat_ep_get_status", dat_ep_get_status(ep, &state, &recv_idle, &request_idle));
    }
    ok("dat_ep_reset", dat_ep_reset(ep));
    while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS)
        discard(&event);
}

static void connect_to(const char *address, DAT_CONN_QUAL qualifier)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000};
    DAT_EVENT event;

    if (inet_pton(AF_INET, address, &to.sin_addr) != 1) {
        fprintf(stderr, "%s is not an IPv4 address\n", address);
        exit(2);
    }
    for (;;) {
        post_receives();
        ok("dat_ep_connect", dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&to, qualifier, CONNECT_US, 0, NULL, DAT_QOS_BEST_EFFORT,
                                            DAT_CONNECT_DEFAULT_FLAG));
        while (!next(&event, ANSWER_US))
            ;
        if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED)
            return;
        /* Rejected, timed out or unreachable: the server may be starting. */
        reset();
        nanosleep(&pause, NULL);
    }
}

static int client(const char *address, DAT_CONN_QUAL qualifier, int count)
{
    int answered = 0, reconnects = 0;

    while (answered < count) {
        int sent = answered, is_up = 1;
        connect_to(address, qualifier);
        while (is_up && answered < count) {
            DAT_EVENT event;
            DAT_DTO_COMPLETION_EVENT_DATA *done = &event.event_data.dto_completion_event_data;
            /* The send window: each outstanding message has a posted receive at the peer, and a posted receive here
             * for its reply. */
            while (sent < count && sent - answered < DEPTH && is_up) {
                int buffer = DEPTH + sent % DEPTH;
                buffers[buffer].number = sent;
                /* A post is refused if the connection has just ended; the disconnect event follows. */
                is_up = post(buffer) == DAT_SUCCESS;
                sent += is_up;
            }
            if (!next(&event, ANSWER_US) || event.event_number != DAT_DTO_COMPLETION_EVENT || done->status != DAT_DTO_SUCCESS) {
                is_up = 0;
            } else if (done->user_cookie.as_64 < DEPTH) {
                int buffer = (int)done->user_cookie.as_64;
                if (buffers[buffer].number != answered) {
                    fprintf(stderr, "answer %d, expected %d\n", buffers[buffer].number, answered);
                    return 1;
                }
                answered++;
                is_up = post(buffer) == DAT_SUCCESS;
                if (answered % 1000 == 0) {
                    printf("%d answered\n", answered);
                    fflush(stdout);
                }
            }
        }
        if (answered == count) {
            /* The last message is delivered before a graceful disconnect. */
            buffers[DEPTH].number = LAST_MESSAGE;
            post(DEPTH);
            dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG);
        } else {
            reconnects++;
        }
        reset();
    }
    printf("client: OK, %d answers, %d reconnects\n", answered, reconnects);
    return 0;
}

static int server(DAT_CONN_QUAL qualifier)
{
    DAT_PSP_HANDLE psp;
    int is_last = 0;

    ok("dat_psp_create", dat_psp_create(ia, qualifier, evd, DAT_PSP_CONSUMER_FLAG, &psp));
    printf("server: ready\n");
    fflush(stdout);
    while (!is_last) {
        DAT_EVENT event;
        DAT_DTO_COMPLETION_EVENT_DATA *done = &event.event_data.dto_completion_event_data;
        int is_up = 1;
        if (!next(&event, ANSWER_US) || event.event_number != DAT_CONNECTION_REQUEST_EVENT)
            continue;
        post_receives();
        ok("dat_cr_accept", dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL));
        while (is_up) {
            if (!next(&event, DAT_TIMEOUT_INFINITE) || event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED)
                continue;
            if (event.event_number == DAT_CONNECTION_REQUEST_EVENT) {
                discard(&event);
                continue;
            }
            is_up = event.event_number == DAT_DTO_COMPLETION_EVENT && done->status == DAT_DTO_SUCCESS;
            if (is_up && done->user_cookie.as_64 < DEPTH) {
                int buffer = (int)done->user_cookie.as_64;
                is_last = buffers[buffer].number == LAST_MESSAGE;
                buffers[DEPTH + buffer] = buffers[buffer];
                /* Post the receive before the reply, because the reply lets the client send again. */
                is_up = !is_last && post(buffer) == DAT_SUCCESS && post(DEPTH + buffer) == DAT_SUCCESS;
            }
        }
        reset();
    }
    ok("dat_psp_free", dat_psp_free(psp));
    printf("server: OK\n");
    return 0;
}

int main(int argc, char **argv)
{
    int result;

    if (argc < 4 || (strcmp(argv[2], "client") == 0 && argc < 6)) {
        fprintf(stderr, "usage: production ADAPTER server QUALIFIER | production ADAPTER client QUALIFIER ADDRESS COUNT\n");
        return 2;
    }
    set_up(argv[1]);
    result = strcmp(argv[2], "client") == 0 ? client(argv[4], (DAT_CONN_QUAL)atoi(argv[3]), atoi(argv[5]))
                                           : server((DAT_CONN_QUAL)atoi(argv[3]));
    shut_down();
    return result;
}
