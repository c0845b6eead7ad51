/*
 * srq.c - one process receives the messages of four others from one shared receive queue with three buffers.
 *
 *   srq ia
 *
 * The child processes number their messages. The parent sleeps in dat_evd_wait, checks order and bytes per sender, and
 * posts each buffer again. Then a fifth sender is killed in the middle of a long message: the buffer of that message is
 * flushed, and the unused buffer stays in the queue.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { QUAL = 6262, SENDERS = 4, MESSAGES = 500, BUFFERS = 3, SIZE = 20000, LONG_LENGTH = 16 << 20 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE errors, requests, events, transfers;
static DAT_SRQ_HANDLE srq;
static DAT_EP_HANDLE ep[SENDERS + 1];
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT context;

static struct message {
    uint32_t sender, number;
    unsigned char bytes[SIZE];
} buffers[BUFFERS];
static unsigned char long_buffer[LONG_LENGTH];

static size_t length_of(uint32_t number)
{
    return 8 + number * 37 % SIZE;
}

static void fill(struct message *message, uint32_t sender, uint32_t number)
{
    message->sender = sender;
    message->number = number;
    for (size_t at = 0; at < length_of(number) - 8; at++)
        message->bytes[at] = (unsigned char)(sender * 31 + number + at);
}

static void open_adapter(char *name, void *memory, size_t length)
{
    DAT_REGION_DESCRIPTION region = { .for_va = memory };
    OK(dat_ia_open(name, 8, &errors, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests));
    OK(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &events));
    OK(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &transfers));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, length, pz, DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &lmr, &context,
                      NULL, NULL, NULL));
}

static void close_adapter(void)
{
    OK(dat_lmr_free(lmr));
    OK(dat_evd_free(transfers));
    OK(dat_evd_free(events));
    OK(dat_evd_free(requests));
    OK(dat_pz_free(pz));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

static DAT_LMR_TRIPLET piece(void *at, size_t length)
{
    DAT_LMR_TRIPLET triplet = { .lmr_context = context, .virtual_address = (DAT_VADDR)(uintptr_t)at,
                                .segment_length = length };
    return triplet;
}

/* --- a sender --- */

static void send_all(char *name, uint32_t sender, int go)
{
    static struct message message;
    DAT_CONTEXT cookie = { .as_64 = sender };
    DAT_LMR_TRIPLET segment;
    DAT_IA_ATTR adapter;
    char byte;

    EXPECT(read(go, &byte, 1) == 1); /* wait until the parent listens */
    if (sender == SENDERS)
        open_adapter(name, long_buffer, sizeof long_buffer);
    else
        open_adapter(name, &message, sizeof message);
    OK(dat_ep_create(ia, pz, transfers, transfers, events, NULL, ep));
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &adapter, 0, NULL));
    OK(dat_ep_connect(ep[0], adapter.ia_address_ptr, QUAL, EVENT_TIMEOUT, sizeof sender, &sender, DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    next(events, DAT_CONNECTION_EVENT_ESTABLISHED, "a sender's connection");
    if (sender == SENDERS) {
        segment = piece(long_buffer, 8); /* after this message, posted work is sent immediately */
        OK(dat_ep_post_send(ep[0], 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        completed(transfers, ep[0], sender, DAT_DTO_SUCCESS, 8, "a short send");
        segment = piece(long_buffer, sizeof long_buffer);
        OK(dat_ep_post_send(ep[0], 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        raise(SIGKILL);
    }
    for (uint32_t number = 0; number < MESSAGES; number++) {
        fill(&message, sender, number);
        segment = piece(&message, length_of(number));
        OK(dat_ep_post_send(ep[0], 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        completed(transfers, ep[0], sender, DAT_DTO_SUCCESS, length_of(number), "a send");
    }
    next(events, DAT_CONNECTION_EVENT_DISCONNECTED, "a sender's end");
    OK(dat_ep_free(ep[0]));
    close_adapter();
}

/* --- the receiver --- */

static void counts(DAT_COUNT available, DAT_COUNT outstanding)
{
    DAT_SRQ_PARAM param;
    OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
    if (param.available_dto_count != available || param.outstanding_dto_count != outstanding)
        fail("SRQ: %d available and %d outstanding receives, expected %d and %d", param.available_dto_count,
             param.outstanding_dto_count, available, outstanding);
}

static void post(void *at, size_t length, uint64_t number)
{
    DAT_LMR_TRIPLET segment = piece(at, length);
    DAT_CONTEXT cookie = { .as_64 = number };
    OK(dat_srq_post_recv(srq, 1, &segment, cookie));
}

/* Creates an EP of the shared queue, and accepts a sender into it. The sender's number is in the private data. */
static void accept_one(void)
{
    DAT_EP_ATTR attributes = { .service_type = DAT_SERVICE_TYPE_RC, .max_recv_dtos = DAT_HW_DEFAULT,
                               .max_request_dtos = 1, .max_request_iov = 1, .srq_soft_hw = DAT_HW_DEFAULT };
    DAT_EVENT event = next(requests, DAT_CONNECTION_REQUEST_EVENT, "a request");
    DAT_CR_HANDLE request = event.event_data.cr_arrival_event_data.cr_handle;
    DAT_CR_PARAM param;
    uint32_t sender;

    OK(dat_cr_query(request, DAT_CR_FIELD_ALL, &param));
    memcpy(&sender, param.private_data, sizeof sender);
    EXPECT(sender <= SENDERS);
    OK(dat_ep_create_with_srq(ia, pz, transfers, transfers, events, srq, &attributes, &ep[sender]));
    OK(dat_cr_accept(request, ep[sender], 0, NULL));
    event = next(events, DAT_CONNECTION_EVENT_ESTABLISHED, "the receiver's connection");
    EXPECT(event.event_data.connect_event_data.ep_handle == ep[sender]);
}

/* Waits for the next asynchronous event, and checks its number, object and reason. */
static void expect_async(DAT_EVENT_NUMBER number, DAT_HANDLE object, int reason, const char *what)
{
    DAT_EVENT event = next(errors, number, what);
    EXPECT(event.event_data.asynch_error_event_data.dat_handle == object);
    EXPECT((int)event.event_data.asynch_error_event_data.reason == reason);
}

static void take(uint32_t numbers[SENDERS])
{
    static struct message wanted;
    DAT_EVENT event = next(transfers, DAT_DTO_COMPLETION_EVENT, "a message");
    DAT_DTO_COMPLETION_EVENT_DATA done = event.event_data.dto_completion_event_data;
    struct message *message = &buffers[done.user_cookie.as_64];
    uint32_t sender = message->sender;

    EXPECT(done.status == DAT_DTO_SUCCESS && sender < SENDERS && done.ep_handle == ep[sender]);
    fill(&wanted, sender, numbers[sender]++);
    EXPECT(done.transfered_length == length_of(wanted.number));
    EXPECT(memcmp(message, &wanted, done.transfered_length) == 0);
    post(message, sizeof *message, done.user_cookie.as_64);
}

static void receive_all(void)
{
    uint32_t numbers[SENDERS] = { 0 };
    for (int sender = 0; sender < SENDERS; sender++)
        accept_one(); /* the first messages of the senders find no buffer */
    for (uint64_t buffer = 0; buffer < BUFFERS; buffer++)
        post(&buffers[buffer], sizeof buffers[buffer], buffer);
    for (int message = 0; message < SENDERS * MESSAGES; message++)
        take(numbers);
    expect_no_event(transfers, "the EVD of transfers after all messages");
    counts(BUFFERS, BUFFERS);

    expect_no_event(errors, "the EVD of errors before a watermark is set");
    EXPECT(DAT_GET_TYPE(dat_srq_set_lw(srq, BUFFERS + 1)) == DAT_INVALID_PARAMETER);
    OK(dat_srq_resize(srq, BUFFERS + 1));
    OK(dat_srq_set_lw(srq, BUFFERS + 1));
    expect_async(DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR, srq, DAT_SRQ_LOW_WATERMARK_EVENT, "the low watermark");
    for (int sender = 0; sender < SENDERS; sender++) {
        DAT_COUNT held = 9, span = 9;
        OK(dat_ep_recv_query(ep[sender], &held, &span));
        EXPECT(held == 0 && span == 0);
        OK(dat_ep_disconnect(ep[sender], DAT_CLOSE_GRACEFUL_FLAG));
        next(events, DAT_CONNECTION_EVENT_DISCONNECTED, "the receiver's end");
        expect_async(DAT_ASYNC_ERROR_EP_BROKEN, ep[sender], 0, "the EP needs no more receives");
    }
    expect_no_event(transfers, "a disconnect flushes no receives of the SRQ");
    counts(BUFFERS, BUFFERS);
}

static void receive_half(void)
{
    DAT_EVENT event;
    DAT_COUNT more;

    /* The long message needs a larger buffer than those still queued, so the SRQ is created again. */
    for (int sender = 0; sender < SENDERS; sender++)
        OK(dat_ep_free(ep[sender]));
    OK(dat_srq_free(srq));
    DAT_SRQ_ATTR attributes = { .max_recv_dtos = 3, .max_recv_iov = 1, .low_watermark = DAT_SRQ_LW_DEFAULT };
    OK(dat_srq_create(ia, pz, &attributes, &srq));
    OK(dat_lmr_free(lmr));
    DAT_REGION_DESCRIPTION region = { .for_va = long_buffer };
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof long_buffer, pz, DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &lmr, &context,
                      NULL, NULL, NULL));
    for (uint64_t buffer = 7; buffer < 10; buffer++)
        post(long_buffer, sizeof long_buffer, buffer);
    accept_one();
    completed(transfers, ep[SENDERS], 7, DAT_DTO_SUCCESS, 8, "a short message");
    completed(transfers, ep[SENDERS], 8, DAT_DTO_ERR_FLUSHED, 0, "the receive of the killed sender's message");
    OK(dat_evd_wait(events, EVENT_TIMEOUT, 1, &event, &more));
    EXPECT(event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED ||
           event.event_number == DAT_CONNECTION_EVENT_BROKEN);
    expect_async(DAT_ASYNC_ERROR_EP_BROKEN, ep[SENDERS], 0, "the EP needs no more receives");
    counts(1, 1);
    EXPECT(DAT_GET_TYPE(dat_srq_free(srq)) == DAT_INVALID_STATE);
    EXPECT(DAT_GET_TYPE(dat_pz_free(pz)) == DAT_INVALID_STATE);
    OK(dat_ep_free(ep[SENDERS]));
}

int main(int argc, char **argv)
{
    char *name = argc > 1 ? argv[1] : "sm0";
    pid_t child[SENDERS + 1];
    int go[2], late[2], status;

    EXPECT(pipe(go) == 0 && pipe(late) == 0);
    for (uint32_t sender = 0; sender <= SENDERS; sender++) {
        child[sender] = fork();
        EXPECT(child[sender] >= 0);
        if (child[sender] == 0) {
            close(go[1]);
            close(late[1]);
            send_all(name, sender, sender < SENDERS ? go[0] : late[0]);
            return 0;
        }
    }
    open_adapter(name, buffers, sizeof buffers);
    DAT_SRQ_ATTR attributes = { .max_recv_dtos = BUFFERS, .max_recv_iov = 1, .low_watermark = DAT_SRQ_LW_DEFAULT };
    DAT_PSP_HANDLE psp;
    OK(dat_srq_create(ia, pz, &attributes, &srq));
    OK(dat_psp_create(ia, QUAL, requests, DAT_PSP_CONSUMER_FLAG, &psp));
    EXPECT(write(go[1], "gogo", SENDERS) == SENDERS);
    receive_all();
    EXPECT(write(late[1], "g", 1) == 1);
    receive_half();
    OK(dat_srq_free(srq));
    OK(dat_psp_free(psp));
    close_adapter();
    for (int sender = 0; sender <= SENDERS; sender++) {
        EXPECT(waitpid(child[sender], &status, 0) == child[sender]);
        EXPECT(sender < SENDERS ? status == 0 : WIFSIGNALED(status));
    }
    printf("srq: OK, %d messages\n", SENDERS * MESSAGES);
    return 0;
}
