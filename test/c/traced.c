/*
 * One process connects to itself, transfers a few messages, and compares the counters of endpoints and adapter with
 * these transfers. It creates an endpoint from queried attributes, which include the counters. Then a send waits for a
 * receive. If traces are enabled (DAPL_DBG_IO_TRC), the provider dumps them at this stall, when the file named by
 * DAPL_DBG_IO_TRC_FILE is touched, and when the endpoint is freed.
 *
 *   traced [file to touch]: with the file, waits long enough for each of these dumps.
 *   traced refused <adapter> <bounds, key or right>: instead, an RDMA write that fails this check of the target.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <fcntl.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { QUAL = 0x0afffab2, LENGTH = 4096, ROUNDS = 5, MESSAGE = 64 };

struct end {
    DAT_EP_HANDLE ep;
    DAT_EVD_HANDLE events, completions;
};

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static struct end active, passive;
static unsigned char memory[2][LENGTH];
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT key;
static DAT_RMR_CONTEXT remote_key;

static void create(struct end *end, DAT_EVD_FLAGS streams)
{
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, streams, &end->events));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &end->completions));
    OK(dat_ep_create(ia, pz, end->completions, end->completions, end->events, NULL, &end->ep));
}

static void establish(DAT_IA_ADDRESS_PTR here)
{
    DAT_PSP_HANDLE psp;
    OK(dat_psp_create(ia, QUAL, passive.events, DAT_PSP_CONSUMER_FLAG, &psp));
    OK(dat_ep_connect(active.ep, here, QUAL, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    DAT_EVENT event = next(passive.events, DAT_CONNECTION_REQUEST_EVENT, "the request");
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, passive.ep, 0, NULL));
    next(active.events, DAT_CONNECTION_EVENT_ESTABLISHED, "the active end");
    next(passive.events, DAT_CONNECTION_EVENT_ESTABLISHED, "the passive end");
    OK(dat_psp_free(psp));
}

static DAT_LMR_TRIPLET part(int which, size_t length)
{
    DAT_LMR_TRIPLET triplet = {
        .lmr_context = key,
        .virtual_address = (DAT_VADDR)(uintptr_t)memory[which],
        .segment_length = length,
    };
    return triplet;
}

static void send_one(uint64_t number, DAT_COMPLETION_FLAGS flags)
{
    DAT_LMR_TRIPLET segment = part(0, MESSAGE);
    DAT_DTO_COOKIE cookie = { .as_64 = number };
    OK(dat_ep_post_send(active.ep, 1, &segment, cookie, flags));
}

static void receive(uint64_t number)
{
    DAT_LMR_TRIPLET segment = part(1, LENGTH);
    DAT_DTO_COOKIE cookie = { .as_64 = number };
    OK(dat_ep_post_recv(passive.ep, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void write_one(void)
{
    DAT_LMR_TRIPLET segment = part(0, LENGTH);
    DAT_DTO_COOKIE cookie = { .as_64 = 100 };
    DAT_RMR_TRIPLET there = {
        .rmr_context = remote_key,
        .target_address = (DAT_VADDR)(uintptr_t)memory[1],
        .segment_length = LENGTH,
    };
    OK(dat_ep_post_rdma_write(active.ep, 1, &segment, cookie, &there, DAT_COMPLETION_DEFAULT_FLAG));
    completed(active.completions, active.ep, 100, DAT_DTO_SUCCESS, LENGTH, "the RDMA write");
}

/* Makes an RDMA write that the target's memory does not permit. */
static void write_refused(const char *check)
{
    DAT_LMR_TRIPLET segment = part(0, MESSAGE);
    DAT_DTO_COOKIE cookie = { .as_64 = 0xbad };
    DAT_RMR_TRIPLET there = {
        .rmr_context = remote_key,
        .target_address = (DAT_VADDR)(uintptr_t)memory[1],
        .segment_length = MESSAGE,
    };
    if (strcmp(check, "bounds") == 0) {
        there.target_address += LENGTH;
    } else if (strcmp(check, "key") == 0) {
        there.rmr_context += 0x10000;
    } else {
        DAT_LMR_HANDLE other;
        DAT_LMR_CONTEXT local;
        DAT_REGION_DESCRIPTION region = { .for_va = memory[1] };
        OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, LENGTH, pz, DAT_MEM_PRIV_REMOTE_READ_FLAG, &other, &local,
                          &there.rmr_context, NULL, NULL));
    }
    OK(dat_ep_post_rdma_write(active.ep, 1, &segment, cookie, &there, DAT_COMPLETION_DEFAULT_FLAG));
    completed(active.completions, active.ep, 0xbad, DAT_DTO_ERR_REMOTE_ACCESS, 0, "the refused RDMA write");
    DAT_EVENT end; /* the target logs the operation before it queues this event */
    DAT_COUNT more;
    OK(dat_evd_wait(passive.events, EVENT_TIMEOUT, 1, &end, &more));
}

/* Value of the named attribute. */
static unsigned long long value(const DAT_NAMED_ATTR *list, DAT_COUNT count, const char *name)
{
    for (DAT_COUNT i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return strtoull(list[i].value, NULL, 10);
    fail("the list of %d attributes has no attribute %s", (int)count, name);
}

static void expect_ep(DAT_EP_HANDLE ep, const char *name, unsigned long long wanted)
{
    DAT_EP_PARAM param;
    OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
    unsigned long long found = value(param.ep_attr.ep_provider_specific, param.ep_attr.ep_provider_specific_count, name);
    if (found != wanted)
        fail("%s is %llu, expected %llu", name, found, wanted);
}

static void expect_ia(const char *name, unsigned long long wanted)
{
    DAT_PROVIDER_ATTR attr;
    OK(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
    unsigned long long found = value(attr.provider_specific_attr, attr.num_provider_specific_attr, name);
    if (found != wanted)
        fail("%s is %llu, expected %llu", name, found, wanted);
}

static void exchange(void)
{
    for (uint64_t n = 0; n < ROUNDS; n++) {
        receive(n);
        send_one(n, DAT_COMPLETION_DEFAULT_FLAG);
        completed(passive.completions, passive.ep, n, DAT_DTO_SUCCESS, MESSAGE, "a receive");
        completed(active.completions, active.ep, n, DAT_DTO_SUCCESS, MESSAGE, "a send");
    }
    receive(7);
    send_one(8, DAT_COMPLETION_SUPPRESS_FLAG);
    completed(passive.completions, passive.ep, 7, DAT_DTO_SUCCESS, MESSAGE, "the receive of a send without completion");
    write_one();
}

static void count(void)
{
    expect_ep(active.ep, "posts.send", ROUNDS + 1);
    expect_ep(active.ep, "posts.recv", 0);
    expect_ep(active.ep, "posts.rdma_write", 1);
    expect_ep(active.ep, "completions.ok", ROUNDS + 1); /* a suppressed completion is not counted */
    expect_ep(active.ep, "completions.failed", 0);
    expect_ep(active.ep, "bytes.sent", (ROUNDS + 1) * MESSAGE);
    expect_ep(active.ep, "bytes.written", LENGTH);
    expect_ep(active.ep, "connects", 1);
    expect_ep(active.ep, "disconnects", 0);
    expect_ep(passive.ep, "posts.recv", ROUNDS + 1);
    expect_ep(passive.ep, "completions.ok", ROUNDS + 1);
    expect_ep(passive.ep, "bytes.received", (ROUNDS + 1) * MESSAGE);
    expect_ia("ia.requests", 1);
    expect_ia("alive.ep", 2);
    expect_ia("alive.evd", 5);
    expect_ia("ep.posts.send", ROUNDS + 1);
    expect_ia("ep.bytes.received", (ROUNDS + 1) * MESSAGE);

    char name[64];
    snprintf(name, sizeof name, "evd.%p.events", active.completions);
    expect_ia(name, ROUNDS + 1);
    snprintf(name, sizeof name, "evd.%p.waits", active.completions);
    expect_ia(name, ROUNDS + 1);
    snprintf(name, sizeof name, "evd.%p.timeouts", active.completions);
    expect_ia(name, 0);
}

/* Checks that queried attributes can be passed to dat_ep_create, and that a later query updates the strings of an
 * earlier one in place. */
static void reuse(void)
{
    DAT_EP_PARAM param;
    DAT_EP_HANDLE another;
    OK(dat_ep_query(active.ep, DAT_EP_FIELD_ALL, &param));
    OK(dat_ep_create(ia, pz, active.completions, active.completions, active.events, &param.ep_attr, &another));
    expect_ep(another, "posts.send", 0);
    OK(dat_ep_free(another));
    const char *sends = param.ep_attr.ep_provider_specific[0].value;
    receive(9);
    send_one(9, DAT_COMPLETION_DEFAULT_FLAG);
    completed(passive.completions, passive.ep, 9, DAT_DTO_SUCCESS, MESSAGE, "a receive");
    completed(active.completions, active.ep, 9, DAT_DTO_SUCCESS, MESSAGE, "a send");
    expect_ep(active.ep, "posts.send", ROUNDS + 2);
    EXPECT(strtol(sends, NULL, 10) == ROUNDS + 2);
}

static void pause_for(time_t seconds)
{
    struct timespec left = { .tv_sec = seconds };
    while (nanosleep(&left, &left) != 0)
        ;
}

int main(int argc, char **argv)
{
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_REGION_DESCRIPTION region = { .for_va = memory };
    DAT_IA_ATTR adapter;

    const bool is_refused = argc > 3 && strcmp(argv[1], "refused") == 0;
    char *name = is_refused ? argv[2] : "sm0";
    OK(dat_ia_open(name, 8, &errors, &ia));
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &adapter, 0, NULL));
    OK(dat_pz_create(ia, &pz));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &key, &remote_key,
                      NULL, NULL));
    create(&active, DAT_EVD_CONNECTION_FLAG);
    create(&passive, DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG);
    establish(adapter.ia_address_ptr);
    if (is_refused) {
        write_refused(argv[3]);
        OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
        printf("traced: OK\n");
        return 0;
    }
    exchange();
    count();
    reuse();

    send_one(0xdead, DAT_COMPLETION_DEFAULT_FLAG); /* the peer has no receive for this message */
    if (argc > 1) {
        pause_for(13); /* a request is overdue after 10 seconds */
        int file = open(argv[1], O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        EXPECT(file >= 0 && close(file) == 0);
        pause_for(3); /* the provider checks the file every second */
    }
    OK(dat_ep_free(active.ep));
    expect_ia("alive.ep", 1);
    expect_ia("ep.posts.send", ROUNDS + 3); /* freed endpoints are included */
    expect_ia("ep.completions.flushed", 1);
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    printf("traced: OK\n");
    return 0;
}
