/* One process, one thread, one adapter: connects to itself, moves data, disconnects, resets and starts again.
 *
 * Succeeds only if no call waits for a later action of the same thread. Every event is checked, and so is the order
 * where it is defined.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "check.h"

enum { ROUNDS = 100, LENGTH = 4096, MESSAGE = 64, QUAL = 0x0afffab1 };

/* One endpoint of the connection: its objects and three buffers. */
struct end {
    DAT_EP_HANDLE ep;
    DAT_EVD_HANDLE events;      /* connection events; the EVD of the passive EP receives connection requests too */
    DAT_EVD_HANDLE completions; /* of receives and requests alike */
    unsigned char memory[3][LENGTH];
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT lmr_context;
    DAT_RMR_CONTEXT rmr_context;
};

enum { SEND, RECEIVE, RDMA };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_PSP_HANDLE psp;
static DAT_IA_ADDRESS_PTR here;
static struct end active, passive;

static void create(struct end *end, DAT_EVD_FLAGS streams)
{
    DAT_REGION_DESCRIPTION region = { .for_va = end->memory };
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, streams, &end->events));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG, &end->completions));
    OK(dat_ep_create(ia, pz, end->completions, end->completions, end->events, NULL, &end->ep));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof end->memory, pz, DAT_MEM_PRIV_ALL_FLAG, &end->lmr,
                      &end->lmr_context, &end->rmr_context, NULL, NULL));
}

static void destroy(struct end *end)
{
    OK(dat_ep_free(end->ep));
    OK(dat_lmr_free(end->lmr));
    OK(dat_evd_free(end->events));
    OK(dat_evd_free(end->completions));
}

static DAT_LMR_TRIPLET part(struct end *end, int which, size_t length)
{
    DAT_LMR_TRIPLET triplet = {
        .lmr_context = end->lmr_context,
        .virtual_address = (DAT_VADDR)(uintptr_t)end->memory[which],
        .segment_length = length,
    };
    return triplet;
}

static DAT_EP_STATE state(struct end *end)
{
    DAT_EP_STATE state;
    OK(dat_ep_get_status(end->ep, &state, NULL, NULL));
    return state;
}

static void post_receive(struct end *end, uint64_t cookie)
{
    DAT_LMR_TRIPLET segment = part(end, RECEIVE, LENGTH);
    DAT_DTO_COOKIE user_cookie = { .as_64 = cookie };
    OK(dat_ep_post_recv(end->ep, 1, &segment, user_cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void deliver(struct end *from, struct end *to, unsigned char byte, uint64_t send_cookie, uint64_t receive_cookie)
{
    DAT_LMR_TRIPLET segment = part(from, SEND, MESSAGE);
    DAT_DTO_COOKIE cookie = { .as_64 = send_cookie };
    memset(from->memory[SEND], byte, MESSAGE);
    memset(to->memory[RECEIVE], 0, LENGTH);
    OK(dat_ep_post_send(from->ep, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    completed(to->completions, to->ep, receive_cookie, DAT_DTO_SUCCESS, MESSAGE, "the receive");
    completed(from->completions, from->ep, send_cookie, DAT_DTO_SUCCESS, MESSAGE, "the send");
    EXPECT(memcmp(from->memory[SEND], to->memory[RECEIVE], MESSAGE) == 0);
    EXPECT(to->memory[RECEIVE][MESSAGE] == 0);
}

/* Writes to the peer's memory, checks the bytes there after the completion, and reads them back. */
static void write_and_read(struct end *from, struct end *to, unsigned char byte)
{
    DAT_LMR_TRIPLET segment = part(from, RDMA, LENGTH);
    DAT_DTO_COOKIE cookie = { .as_64 = UINT64_C(0xfedcba9876543210) };
    DAT_RMR_TRIPLET there = {
        .rmr_context = to->rmr_context,
        .target_address = (DAT_VADDR)(uintptr_t)to->memory[RDMA],
        .segment_length = LENGTH,
    };
    memset(from->memory[RDMA], byte, LENGTH);
    memset(to->memory[RDMA], 0, LENGTH);
    OK(dat_ep_post_rdma_write(from->ep, 1, &segment, cookie, &there, DAT_COMPLETION_DEFAULT_FLAG));
    completed(from->completions, from->ep, cookie.as_64, DAT_DTO_SUCCESS, LENGTH, "the RDMA write");
    EXPECT(memcmp(from->memory[RDMA], to->memory[RDMA], LENGTH) == 0);

    memset(from->memory[RDMA], 0, LENGTH);
    cookie.as_64++;
    OK(dat_ep_post_rdma_read(from->ep, 1, &segment, cookie, &there, DAT_COMPLETION_DEFAULT_FLAG));
    completed(from->completions, from->ep, cookie.as_64, DAT_DTO_SUCCESS, LENGTH, "the RDMA read");
    EXPECT(memcmp(from->memory[RDMA], to->memory[RDMA], LENGTH) == 0);
    expect_no_event(to->completions, "the target of RDMA");
}

static void establish(void)
{
    char question[] = "question", answer[] = "the answer";
    DAT_EVENT event;
    const DAT_CONNECTION_EVENT_DATA *connection = &event.event_data.connect_event_data;

    OK(dat_ep_connect(active.ep, here, QUAL, EVENT_TIMEOUT, sizeof question, question, DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    event = next(passive.events, DAT_CONNECTION_REQUEST_EVENT, "the request");
    const DAT_CR_ARRIVAL_EVENT_DATA arrival = event.event_data.cr_arrival_event_data;
    EXPECT(arrival.sp_handle.psp_handle == psp && arrival.conn_qual == QUAL);
    EXPECT(state(&active) == DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
    expect_no_event(active.events, "the active end before the answer");

    DAT_CR_PARAM request;
    OK(dat_cr_query(arrival.cr_handle, DAT_CR_FIELD_ALL, &request));
    EXPECT(request.private_data_size >= (DAT_COUNT)sizeof question);
    EXPECT(memcmp(request.private_data, question, sizeof question) == 0);
    EXPECT(request.local_ep_handle == DAT_HANDLE_NULL);
    OK(dat_cr_accept(arrival.cr_handle, passive.ep, sizeof answer, answer));

    event = next(active.events, DAT_CONNECTION_EVENT_ESTABLISHED, "the active end");
    EXPECT(connection->ep_handle == active.ep);
    EXPECT(connection->private_data_size >= (DAT_COUNT)sizeof answer);
    EXPECT(memcmp(connection->private_data, answer, sizeof answer) == 0);
    event = next(passive.events, DAT_CONNECTION_EVENT_ESTABLISHED, "the passive end");
    EXPECT(connection->ep_handle == passive.ep && connection->private_data_size == 0);
    EXPECT(state(&active) == DAT_EP_STATE_CONNECTED && state(&passive) == DAT_EP_STATE_CONNECTED);
}

static void end_one(struct end *end, uint64_t flushed)
{
    DAT_EVENT event = next(end->events, DAT_CONNECTION_EVENT_DISCONNECTED, "the end of the connection");
    EXPECT(event.event_data.connect_event_data.ep_handle == end->ep);
    EXPECT(state(end) == DAT_EP_STATE_DISCONNECTED);
    completed(end->completions, end->ep, flushed, DAT_DTO_ERR_FLUSHED, 0, "a receive that is left over");
    OK(dat_ep_disconnect(end->ep, DAT_CLOSE_GRACEFUL_FLAG)); /* a second disconnect has no effect */
    expect_no_event(end->events, "a disconnected end");
    expect_no_event(end->completions, "a disconnected end");
    OK(dat_ep_reset(end->ep));
    EXPECT(state(end) == DAT_EP_STATE_UNCONNECTED);
}

static void one_round(unsigned round)
{
    DAT_CLOSE_FLAGS how = round % 2 ? DAT_CLOSE_ABRUPT_FLAG : DAT_CLOSE_GRACEFUL_FLAG;
    unsigned char byte = (unsigned char)(round + 1);
    uint64_t cookie = (uint64_t)round << 32;

    post_receive(&passive, cookie + 1);
    post_receive(&active, cookie + 2);
    establish();
    deliver(&active, &passive, byte, cookie + 3, cookie + 1);
    deliver(&passive, &active, byte, cookie + 4, cookie + 2);
    write_and_read(&active, &passive, byte);
    write_and_read(&passive, &active, byte);

    post_receive(&passive, cookie + 5);
    post_receive(&active, cookie + 6);
    OK(dat_ep_disconnect(active.ep, how));
    OK(dat_ep_disconnect(passive.ep, how));
    end_one(&active, cookie + 6);
    end_one(&passive, cookie + 5);
}

int main(int argc, char **argv)
{
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_IA_ATTR adapter;
    unsigned rounds = argc > 2 ? (unsigned)atoi(argv[2]) : ROUNDS;

    OK(dat_ia_open(argc > 1 ? argv[1] : "sm0", 8, &errors, &ia));
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &adapter, 0, NULL));
    here = adapter.ia_address_ptr;
    OK(dat_pz_create(ia, &pz));
    create(&active, DAT_EVD_CONNECTION_FLAG);
    create(&passive, DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG);
    OK(dat_psp_create(ia, QUAL, passive.events, DAT_PSP_CONSUMER_FLAG, &psp));

    for (unsigned round = 0; round < rounds; round++)
        one_round(round);

    OK(dat_psp_free(psp));
    expect_no_event(errors, "asynchronous errors");
    destroy(&active);
    destroy(&passive);
    OK(dat_pz_free(pz));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    printf("selfconnect: OK, %u rounds\n", rounds);
    return 0;
}
