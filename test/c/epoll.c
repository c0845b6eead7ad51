/*
 * epoll: waits for DAT events in an event loop, without a separate thread.
 *
 * epoll ADAPTER ADDRESS [cno]
 *
 * Two endpoints of the process send a message back and forth. The loop sleeps in epoll_wait on the descriptor of the
 * EVD, or with `cno` on that of its CNO.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include <dat/udat.h>
#include <dat/dapl_descriptor.h>

enum { ROUNDS = 2000, LENGTH = 64, QUAL = 4711 };

static void ok(const char *call, DAT_RETURN ret)
{
    const char *type = "?", *subtype = "";
    if (ret == DAT_SUCCESS)
        return;
    dat_strerror(ret, &type, &subtype);
    fprintf(stderr, "%s: %s %s\n", call, type, subtype);
    exit(1);
}

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE evd;
static DAT_CNO_HANDLE cno;
static DAT_EP_HANDLE eps[2];
static char memory[2][LENGTH];
static DAT_LMR_CONTEXT keys[2];
static int established, received;

static void post(int recv, int end)
{
    DAT_LMR_TRIPLET piece = {.lmr_context = keys[end],
                             .virtual_address = (DAT_VADDR)(uintptr_t)memory[end],
                             .segment_length = LENGTH};
    DAT_DTO_COOKIE cookie = {.as_64 = (DAT_UINT64)(2 * end + recv)};
    if (recv)
        ok("dat_ep_post_recv", dat_ep_post_recv(eps[end], 1, &piece, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    else
        ok("dat_ep_post_send", dat_ep_post_send(eps[end], 1, &piece, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
}

static void handle(const DAT_EVENT *event)
{
    const DAT_DTO_COMPLETION_EVENT_DATA *done = &event->event_data.dto_completion_event_data;
    int end;

    switch (event->event_number) {
    case DAT_CONNECTION_REQUEST_EVENT:
        ok("dat_cr_accept", dat_cr_accept(event->event_data.cr_arrival_event_data.cr_handle, eps[1], 0, NULL));
        break;
    case DAT_CONNECTION_EVENT_ESTABLISHED:
        if (++established == 2)
            post(0, 0);
        break;
    case DAT_DTO_COMPLETION_EVENT:
        end = (int)(done->user_cookie.as_64 / 2);
        if (done->status != DAT_DTO_SUCCESS || done->user_cookie.as_64 % 2 == 0) {
            fprintf(stderr, "completion with cookie %d and status %d, expected a receive (odd) and 0\n",
                    (int)done->user_cookie.as_64, done->status);
            exit(1);
        }
        if (++received == ROUNDS)
            break;
        /* Post the next receive first, then reply with the buffer that holds the message. */
        post(1, end);
        post(0, end);
        break;
    default:
        fprintf(stderr, "unexpected event %#x\n", (unsigned)event->event_number);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_PSP_HANDLE psp;
    DAPL_DESCRIPTOR_CALLS calls;
    struct epoll_event ready = {.events = EPOLLIN};
    int descriptor, loop, wakeups = 0;
    struct sockaddr_in address = {.sin_family = AF_INET};
    DAT_OS_WAIT_PROXY_AGENT none = DAT_OS_WAIT_PROXY_AGENT_NULL;

    if (argc < 3 || inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) {
        fprintf(stderr, "usage: epoll ADAPTER ADDRESS [cno]\n");
        return 2;
    }
    ok("dat_ia_open", dat_ia_open(argv[1], 8, &errors, &ia));
    ok("dat_pz_create", dat_pz_create(ia, &pz));
    if (argc > 3)
        ok("dat_cno_create", dat_cno_create(ia, none, &cno));
    ok("dat_evd_create", dat_evd_create(ia, 64, cno, DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_DTO_FLAG, &evd));
    for (int end = 0; end < 2; end++) {
        DAT_REGION_DESCRIPTION region = {.for_va = memory[end]};
        DAT_LMR_HANDLE lmr;
        DAT_RMR_CONTEXT remote;
        DAT_VLEN length;
        DAT_VADDR base;
        ok("dat_lmr_create",
           dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, LENGTH, pz,
                          DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &lmr, &keys[end], &remote, &length,
                          &base));
        ok("dat_ep_create", dat_ep_create(ia, pz, evd, evd, evd, NULL, &eps[end]));
        post(1, end);
    }

    ok("dapl_descriptor_calls", dapl_descriptor_calls(ia, &calls));
    ok("dapl_descriptor", dapl_descriptor(&calls, cno ? cno : evd, &descriptor));
    loop = epoll_create1(EPOLL_CLOEXEC);
    if (loop < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, descriptor, &ready) != 0) {
        perror("epoll");
        return 1;
    }

    ok("dat_psp_create", dat_psp_create(ia, QUAL, evd, DAT_PSP_CONSUMER_FLAG, &psp));
    ok("dat_ep_connect", dat_ep_connect(eps[0], (DAT_IA_ADDRESS_PTR)&address, QUAL, DAT_TIMEOUT_INFINITE, 0, NULL,
                                        DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    while (received < ROUNDS) {
        DAT_EVENT event;
        /* Other descriptors of the program would be handled in the same loop. */
        if (epoll_wait(loop, &ready, 1, -1) == 1)
            wakeups++;
        while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS)
            handle(&event);
        ok("dapl_descriptor_arm", dapl_descriptor_arm(&calls, cno ? cno : evd));
    }
    printf("epoll: OK, %d messages, %s\n", received, wakeups > 0 ? "by epoll" : "without a wake-up");
    ok("dat_ia_close", dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    return 0;
}
