/*
 * window.c - memory that one process exposes to another by an RMR, part by part.
 *
 *   window ia
 *
 * The owner, a child, registers memory without remote access. For each part of the memory in turn, it binds the RMR to
 * the part, and posts a message with the new context directly after the bind. Then the parent writes and reads the
 * part. After the last part the owner unbinds the RMR. The parent uses the last context again, which is invalid, so the
 * connection breaks.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { QUAL = 6161, ROUNDS = 20, PART = 1000, MEMORY = ROUNDS * PART };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE async, events, receives, requests;
static DAT_EP_HANDLE ep;
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT context;
static DAT_RMR_CONTEXT remote_context;

/* Registered memory: `open` is a message with the window's context and address; `bytes` is the memory that the owner
 * exposes in parts, and the parent's source and target of RDMA. */
static struct {
    DAT_RMR_TRIPLET open;
    unsigned char bytes[MEMORY];
} memory;

static DAT_LMR_TRIPLET piece(const void *at, size_t length)
{
    DAT_LMR_TRIPLET triplet = { .lmr_context = context, .virtual_address = (DAT_VADDR)(uintptr_t)at,
                                .segment_length = length };
    return triplet;
}

static void begin(char *name)
{
    DAT_REGION_DESCRIPTION region = { .for_va = &memory };
    OK(dat_ia_open(name, 8, &async, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG, &events));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &receives));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG, &requests));
    OK(dat_ep_create(ia, pz, receives, requests, events, NULL, &ep));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, pz,
                      DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &lmr, &context, &remote_context, NULL,
                      NULL));
    EXPECT(remote_context == 0);
}

static void end(void)
{
    OK(dat_ep_free(ep));
    OK(dat_lmr_free(lmr));
    OK(dat_evd_free(requests));
    OK(dat_evd_free(receives));
    OK(dat_evd_free(events));
    OK(dat_pz_free(pz));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

static void expect_message(uint64_t number)
{
    DAT_LMR_TRIPLET into = piece(&memory.open, sizeof memory.open);
    DAT_DTO_COOKIE cookie = { .as_64 = number };
    OK(dat_ep_post_recv(ep, 1, &into, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void send_message(uint64_t number)
{
    DAT_LMR_TRIPLET from = piece(&memory.open, sizeof memory.open);
    DAT_DTO_COOKIE cookie = { .as_64 = number };
    OK(dat_ep_post_send(ep, 1, &from, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
}

static void message(uint64_t number)
{
    completed(receives, ep, number, DAT_DTO_SUCCESS, sizeof memory.open, "a message");
}

static void bound(DAT_RMR_HANDLE rmr, uint64_t number)
{
    DAT_EVENT event = next(requests, DAT_RMR_BIND_COMPLETION_EVENT, "a bind");
    const DAT_RMR_BIND_COMPLETION_EVENT_DATA *done = &event.event_data.rmr_completion_event_data;
    EXPECT(done->rmr_handle == rmr && done->user_cookie.as_64 == number && done->status == DAT_RMR_BIND_SUCCESS);
}

static void owner(char *name)
{
    DAT_RMR_HANDLE rmr;
    DAT_PSP_HANDLE psp;
    DAT_RMR_PARAM shown;
    DAT_RMR_CONTEXT known[ROUNDS] = { 0 };
    DAT_RMR_COOKIE cookie = { .as_64 = 0 };
    DAT_LMR_TRIPLET nothing = { .segment_length = 0 };

    begin(name);
    OK(dat_rmr_create(pz, &rmr));
    expect_message(0);
    OK(dat_psp_create(ia, QUAL, events, DAT_PSP_CONSUMER_FLAG, &psp));
    DAT_EVENT event = next(events, DAT_CONNECTION_REQUEST_EVENT, "the request");
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL));
    next(events, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");

    for (int round = 0; round < ROUNDS; round++) {
        unsigned char *part = memory.bytes + round * PART;
        DAT_LMR_TRIPLET where = piece(part, PART);
        cookie.as_64 = round;
        OK(dat_rmr_bind(rmr, &where, DAT_MEM_PRIV_REMOTE_READ_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG, ep, cookie,
                        DAT_COMPLETION_DEFAULT_FLAG, &known[round]));
        for (int before = 0; before < round; before++)
            EXPECT(known[before] != known[round]);
        memory.open.rmr_context = known[round];
        memory.open.target_address = where.virtual_address;
        memory.open.segment_length = PART;
        send_message(round);
        bound(rmr, round);
        OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &shown));
        EXPECT(shown.rmr_context == known[round] && shown.lmr_triplet.virtual_address == where.virtual_address);
        EXPECT(dat_lmr_free(lmr) == (DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_LMR_IN_USE));
        message(round);
        expect_message(round + 1);
        for (int at = 0; at < PART; at++)
            EXPECT(part[at] == (unsigned char)(round + at));
    }
    cookie.as_64 = ROUNDS;
    OK(dat_rmr_bind(rmr, &nothing, 0, ep, cookie, DAT_COMPLETION_DEFAULT_FLAG, NULL));
    memory.open.segment_length = 0;
    send_message(ROUNDS);
    bound(rmr, ROUNDS);
    DAT_COUNT more;
    OK(dat_evd_wait(events, EVENT_TIMEOUT, 1, &event, &more));
    /* Which event arrives depends on the side that detects the error first. */
    EXPECT(event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED || event.event_number == DAT_CONNECTION_EVENT_BROKEN);
    OK(dat_rmr_free(rmr));
    OK(dat_psp_free(psp));
    end();
}

static void other(char *name)
{
    DAT_IA_ATTR adapter;
    DAT_RMR_TRIPLET last = { 0 };
    unsigned char *mine = memory.bytes, *back = memory.bytes + PART;
    DAT_DTO_COOKIE cookie = { .as_64 = 1 };
    DAT_RETURN ret;
    DAT_EVENT event;
    DAT_COUNT more;

    begin(name);
    expect_message(0);
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &adapter, 0, NULL));
    for (;;) { /* until the owner listens */
        OK(dat_ep_connect(ep, adapter.ia_address_ptr, QUAL, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT,
                          DAT_CONNECT_DEFAULT_FLAG));
        ret = dat_evd_wait(events, EVENT_TIMEOUT, 1, &event, &more);
        OK(ret);
        if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED)
            break;
        EXPECT(event.event_number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
        completed(receives, ep, 0, DAT_DTO_ERR_FLUSHED, 0, "the receive of a failed attempt");
        OK(dat_ep_reset(ep));
        expect_message(0);
        usleep(10000);
    }
    for (int round = 0; round < ROUNDS; round++) {
        DAT_LMR_TRIPLET from = piece(mine, PART), into = piece(back, PART);
        message(round);
        last = memory.open;
        expect_message(round + 1);
        for (int at = 0; at < PART; at++)
            mine[at] = (unsigned char)(round + at);
        memset(back, 0, PART);
        OK(dat_ep_post_rdma_write(ep, 1, &from, cookie, &last, DAT_COMPLETION_SUPPRESS_FLAG));
        OK(dat_ep_post_rdma_read(ep, 1, &into, cookie, &last, DAT_COMPLETION_DEFAULT_FLAG));
        completed(requests, ep, 1, DAT_DTO_SUCCESS, PART, "the read");
        EXPECT(memcmp(mine, back, PART) == 0);
        send_message(round);
    }
    message(ROUNDS);
    DAT_LMR_TRIPLET from = piece(mine, 1);
    OK(dat_ep_post_rdma_write(ep, 1, &from, cookie, &last, DAT_COMPLETION_SUPPRESS_FLAG));
    completed(requests, ep, 1, DAT_DTO_ERR_REMOTE_ACCESS, 0, "an RDMA write with the context of an unbound RMR");
    next(events, DAT_CONNECTION_EVENT_BROKEN, "the end of the connection");
    end();
}

int main(int argc, char **argv)
{
    char *name = argc > 1 ? argv[1] : "sm0";
    int status;
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        owner(name);
        return 0;
    }
    other(name);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    printf("window: OK, %d rounds\n", ROUNDS);
    return 0;
}
