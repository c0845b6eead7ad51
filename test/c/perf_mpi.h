/*
 * perf_mpi.h: the modes of perf.c that move data as MPI libraries do.
 *
 *   eager       RDMA writes from memory that is registered once, into a ring in the peer's memory. The peer polls the
 *               last byte of the next slot, and dequeues from three EVDs between two polls.
 *   rendezvous  A send announces a message. The target registers its memory in parts and replies with their keys. The
 *               source registers its own memory, writes part by part, and announces the end by a send. Both deregister.
 *   polled      Sends whose receives are polled in memory. With -w the client sleeps after each send, so that a
 *               processor is free for the engine of the server's provider.
 *   register    Registrations of new and of already registered memory, and deregistrations, without transfers.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef PERF_MPI_H
#define PERF_MPI_H

#include "perf.h"

enum { RING = 16, PIECE = 128 << 10, PIECES = 128, CONTROLS = 64, WINDOW = 4 };
enum mpi_kind { MPI_HELLO, MPI_READY, MPI_ANSWER, MPI_END, MPI_DONE };
/* Marks the cookie of a request. The cookie of a receive is the index of its message. */
#define MPI_REQUEST ((DAT_UINT64)1 << 32)

/* A control message between the two sides; the data of a long message is transferred by RDMA. */
struct mpi_control {
    uint32_t kind, slot;
    uint64_t address;
    uint32_t keys[PIECES];
};

struct mpi_memory {
    char *bytes;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT key;
    DAT_RMR_CONTEXT remote_key;
};

static DAT_EVD_HANDLE mpi_requests;
static DAT_EP_HANDLE mpi_ep;
static struct mpi_memory mpi_controls, mpi_in, mpi_out;
/* Numbers of posted requests that have a completion, and of their dequeued completions. */
static long mpi_posted, mpi_complete;
/* Number of control messages sent. Message n is sent from slot CONTROLS + n % CONTROLS; the first CONTROLS slots are
 * for receives. */
static long mpi_next;

static struct mpi_memory mpi_register(char *bytes, size_t length)
{
    struct mpi_memory memory = {.bytes = bytes};
    register_memory(bytes, length, &memory.lmr, &memory.key, &memory.remote_key);
    return memory;
}

static DAT_LMR_TRIPLET mpi_segment(const struct mpi_memory *memory, size_t offset, size_t length)
{
    return (DAT_LMR_TRIPLET){.lmr_context = memory->key,
                             .virtual_address = (DAT_VADDR)(uintptr_t)(memory->bytes + offset),
                             .segment_length = (DAT_VLEN)length};
}

static struct mpi_control *mpi_control_at(long place)
{
    return (struct mpi_control *)(void *)mpi_controls.bytes + place;
}

static void mpi_post_receive(long place)
{
    DAT_LMR_TRIPLET to = mpi_segment(&mpi_controls, (size_t)place * sizeof(struct mpi_control), sizeof(struct mpi_control));
    DAT_DTO_COOKIE cookie = {.as_64 = (DAT_UINT64)place};
    OK(dat_ep_post_recv(mpi_ep, 1, &to, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

/* Creates this side's endpoint and the EVD for its requests, and posts its receives. */
static void mpi_create_ep(void)
{
    DAT_EP_PARAM param;
    DAT_EP_HANDLE model;
    long n;
    OK(dat_evd_create(ia, EVENTS, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &mpi_requests));
    OK(dat_ep_create(ia, pz, completions, mpi_requests, events, NULL, &model));
    OK(dat_ep_query(model, DAT_EP_FIELD_ALL, &param));
    OK(dat_ep_free(model));
    param.ep_attr.max_recv_dtos = 2 * CONTROLS;
    param.ep_attr.max_request_dtos = 8 * CONTROLS;
    OK(dat_ep_create(ia, pz, completions, mpi_requests, events, &param.ep_attr, &mpi_ep));
    eps = &mpi_ep;
    mpi_controls = mpi_register(get_memory(2 * CONTROLS * sizeof(struct mpi_control)),
                                2 * CONTROLS * sizeof(struct mpi_control));
    for (n = 0; n < CONTROLS; n++)
        mpi_post_receive(n);
}

/* Whether the event reports a flush at the end: the client disconnects when it has all data, which flushes the
 * server's last receives and requests. */
static int mpi_is_flushed(const DAT_EVENT *event)
{
    return host == NULL && event->event_data.dto_completion_event_data.status == DAT_DTO_ERR_FLUSHED;
}

/* Dequeues a completion if one is queued. Returns whether there was one. */
static int mpi_take(DAT_EVD_HANDLE evd, DAT_EVENT *event)
{
    DAT_RETURN code = dat_evd_dequeue(evd, event);
    if (DAT_GET_TYPE(code) == DAT_QUEUE_EMPTY)
        return 0;
    check_ok("a completion", code);
    if (event->event_number == DAT_DTO_COMPLETION_EVENT && mpi_is_flushed(event))
        return 1;
    check_completion(event);
    return 1;
}

/* Dequeues a message if one is queued. Like MPI libraries, each poll also counts request completions and checks for
 * connection events. */
static struct mpi_control *mpi_progress(void)
{
    DAT_EVENT event;
    if (mpi_take(mpi_requests, &event))
        mpi_complete++;
    if (dat_evd_dequeue(events, &event) == DAT_SUCCESS) {
        if (event.event_number != DAT_CONNECTION_EVENT_DISCONNECTED)
            fail("perf: event 0x%x during the measurement, expected only DISCONNECTED", (unsigned)event.event_number);
        gone++; /* the client has all it wants */
    }
    if (!mpi_take(completions, &event) || mpi_is_flushed(&event))
        return NULL;
    return mpi_control_at((long)event.event_data.dto_completion_event_data.user_cookie.as_64);
}

static struct mpi_control *mpi_await(enum mpi_kind kind)
{
    struct mpi_control *control;
    while ((control = mpi_progress()) == NULL)
        ;
    if (control->kind != kind)
        fail("perf: control message of type %u, expected %u", (unsigned)control->kind, (unsigned)kind);
    return control;
}

/* Releases a message: posts its receive again. */
static void mpi_release(const struct mpi_control *control)
{
    mpi_post_receive(control - mpi_control_at(0));
}

static void mpi_count(void)
{
    mpi_posted++;
    while (mpi_posted - mpi_complete >= 4 * CONTROLS)
        if (mpi_progress() != NULL)
            fail("perf: a message arrived while the request queue was full");
}

static void mpi_send(const struct mpi_control *message)
{
    long place = CONTROLS + mpi_next++ % CONTROLS;
    size_t length = offsetof(struct mpi_control, keys);
    DAT_DTO_COOKIE cookie = {.as_64 = MPI_REQUEST};
    if (message->kind == MPI_ANSWER || message->kind == MPI_HELLO)
        length = sizeof *message;
    memcpy(mpi_control_at(place), message, length);
    DAT_LMR_TRIPLET from = mpi_segment(&mpi_controls, (size_t)place * sizeof *message, length);
    OK(dat_ep_post_send(mpi_ep, 1, &from, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    mpi_count();
}

static void mpi_write(DAT_LMR_TRIPLET from, uint32_t key, uint64_t address)
{
    DAT_DTO_COOKIE cookie = {.as_64 = MPI_REQUEST};
    DAT_RMR_TRIPLET to = {
        .rmr_context = (DAT_RMR_CONTEXT)key, .target_address = address, .segment_length = from.segment_length};
    OK(dat_ep_post_rdma_write(mpi_ep, 1, &from, cookie, &to, DAT_COMPLETION_DEFAULT_FLAG));
    mpi_count();
}

/* Exchanges the addresses of the memory with the peer. */
static struct place mpi_exchange(void)
{
    struct mpi_control hello = {.kind = MPI_HELLO, .address = (uint64_t)(uintptr_t)mpi_in.bytes};
    struct place place;
    hello.keys[0] = (uint32_t)mpi_in.remote_key;
    mpi_send(&hello);
    struct mpi_control *theirs = mpi_await(MPI_HELLO);
    place = (struct place){.address = theirs->address, .key = theirs->keys[0]};
    mpi_release(theirs);
    return place;
}

static size_t mpi_slot(long length)
{
    return ((size_t)length + 63) / 64 * 64;
}

/* Last byte of message n, and in mode `eager` also the first. It differs from the previous content of the slot. */
static char mpi_flag(long n)
{
    return (char)(1 + n / RING % 100);
}

static void mpi_eager_send(long n, long length, struct place to)
{
    size_t offset = (size_t)(n % RING) * mpi_slot(length);
    mpi_out.bytes[offset] = mpi_out.bytes[offset + (size_t)length - 1] = mpi_flag(n);
    mpi_write(mpi_segment(&mpi_out, offset, (size_t)length), (uint32_t)to.key, to.address + offset);
}

static void mpi_eager_receive(long n, long length)
{
    const volatile char *slot = mpi_in.bytes + (size_t)(n % RING) * mpi_slot(length);
    while (slot[length - 1] != mpi_flag(n))
        if (mpi_progress() != NULL)
            fail("perf: a control message arrived, expected an RDMA write");
    if (slot[0] != mpi_flag(n))
        fail("perf: RDMA write %ld: its last byte became visible before its first", n);
}

/* Ping-pong by eager messages. Returns half a round trip. */
static double mpi_eager(long length, long count)
{
    size_t ring = RING * mpi_slot(length);
    long n, warm_up = count / 10 + 1;
    double begin = 0;
    mpi_in = mpi_register(get_memory(ring), ring);
    mpi_out = mpi_register(get_memory(ring), ring);
    memset(mpi_in.bytes, 0, ring);
    struct place to = mpi_exchange();
    for (n = 0; n < warm_up + count; n++) {
        if (n == warm_up)
            begin = seconds();
        if (host != NULL)
            mpi_eager_send(n, length, to);
        mpi_eager_receive(n, length);
        if (host == NULL)
            mpi_eager_send(n, length, to);
    }
    double lasted = seconds() - begin;
    while (mpi_complete < mpi_posted && gone == 0)
        mpi_progress();
    return lasted * 1e6 / 2 / (double)count;
}

static void mpi_polled_receive(long n, long length)
{
    DAT_LMR_TRIPLET to = mpi_segment(&mpi_in, (size_t)(n % RING) * mpi_slot(length), (size_t)length);
    DAT_DTO_COOKIE cookie = {.as_64 = 0};
    OK(dat_ep_post_recv(mpi_ep, 1, &to, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

/* Registers the memory of mode `polled` and posts the receives. */
static void mpi_polled_begin(long length)
{
    size_t ring = RING * mpi_slot(length);
    long n;
    DAT_DTO_COOKIE cookie = {.as_64 = MPI_REQUEST};
    mpi_in = mpi_register(get_memory(ring), ring);
    mpi_out = mpi_register(get_memory(ring), ring);
    memset(mpi_in.bytes, 0, ring);
    /* Empty messages consume the receives for control messages, so that only the receives of this mode remain. */
    for (n = 0; n < CONTROLS; n++)
        OK(dat_ep_post_send(mpi_ep, 0, NULL, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
    for (n = 0; n < CONTROLS; n++)
        while (mpi_progress() == NULL)
            ;
    for (n = 0; n < RING / 2; n++)
        mpi_polled_receive(n, length);
}

static void mpi_polled_send(long n, long length)
{
    size_t offset = (size_t)(n % RING) * mpi_slot(length);
    DAT_LMR_TRIPLET from = mpi_segment(&mpi_out, offset, (size_t)length);
    DAT_DTO_COOKIE cookie = {.as_64 = MPI_REQUEST};
    mpi_out.bytes[offset + (size_t)length - 1] = mpi_flag(n);
    OK(dat_ep_post_send(mpi_ep, 1, &from, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
}

static void mpi_polled_await(long n, long length)
{
    const volatile char *last = mpi_in.bytes + (size_t)(n % RING) * mpi_slot(length) + length - 1;
    while (*last != mpi_flag(n))
        ;
}

/* Ping-pong of sends whose receives are polled in memory; no DAT call is made until the message has arrived. Returns
 * half a round trip. The completions of these receives are never dequeued. */
static double mpi_polled(long length, long count)
{
    long n, warm_up = count / 10 + 1;
    double begin = 0;
    mpi_polled_begin(length);
    for (n = 0; n < warm_up + count; n++) {
        if (n == warm_up)
            begin = seconds();
        if (host != NULL)
            mpi_polled_send(n, length);
        mpi_polled_await(n, length);
        mpi_polled_receive(n + RING / 2, length);
        if (host == NULL)
            mpi_polled_send(n, length);
    }
    return (seconds() - begin) * 1e6 / 2 / (double)count;
}

/* Writes nanoseconds into the first seven bytes of a message: the time of its post, or how long it took. */
static void mpi_stamp(long n, long length, uint64_t value)
{
    memcpy(mpi_out.bytes + (size_t)(n % RING) * mpi_slot(length), &value, 7);
}

static uint64_t mpi_read_stamp(long n, long length)
{
    uint64_t value = 0;
    memcpy(&value, mpi_in.bytes + (size_t)(n % RING) * mpi_slot(length), 7);
    return value;
}

/* One way: from before the post until the server sees the message in memory. Both processes read the same clock. */
static double mpi_polled_one_way(long length, long count)
{
    long n, warm_up = count / 10 + 1;
    double total = 0;
    if (length < 8)
        fail("perf: mode polled with -w needs messages of at least 8 bytes");
    mpi_polled_begin(length);
    for (n = 0; n < warm_up + count; n++) {
        if (host != NULL) {
            mpi_stamp(n, length, (uint64_t)(seconds() * 1e9));
            mpi_polled_send(n, length);
            pause_for(200e-6);
        }
        mpi_polled_await(n, length);
        if (host == NULL) {
            mpi_stamp(n, length, (uint64_t)(seconds() * 1e9) - mpi_read_stamp(n, length));
            mpi_polled_send(n, length);
        } else if (n >= warm_up)
            total += (double)mpi_read_stamp(n, length);
        mpi_polled_receive(n + RING / 2, length);
    }
    return total / 1e3 / (double)count;
}

/* Registers the memory of a message part by part. */
static void mpi_register_pieces(struct mpi_memory *pieces, char *bytes, long length)
{
    long at;
    for (at = 0; at < length; at += PIECE)
        pieces[at / PIECE] = mpi_register(bytes + at, (size_t)(length - at < PIECE ? length - at : PIECE));
}

static void mpi_free_pieces(struct mpi_memory *pieces, long length)
{
    long at;
    for (at = 0; at < length; at += PIECE)
        OK(dat_lmr_free(pieces[at / PIECE].lmr));
}

/* Messages in flight, each with its own memory. */
struct mpi_message {
    char *bytes;
    struct mpi_memory pieces[PIECES];
    /* Number of requests that must have completed before the memory is free. */
    long until;
    int is_busy;
};

static struct mpi_message mpi_messages[WINDOW];

static void mpi_answer(const struct mpi_control *ready, long length)
{
    struct mpi_message *message = &mpi_messages[ready->slot];
    struct mpi_control answer = {.kind = MPI_ANSWER, .slot = ready->slot};
    long n;
    mpi_register_pieces(message->pieces, message->bytes, length);
    answer.address = (uint64_t)(uintptr_t)message->bytes;
    for (n = 0; n * PIECE < length; n++)
        answer.keys[n] = (uint32_t)message->pieces[n].remote_key;
    mpi_send(&answer);
}

static void mpi_transfer(const struct mpi_control *answer, long length)
{
    struct mpi_message *message = &mpi_messages[answer->slot];
    struct mpi_control end = {.kind = MPI_END, .slot = answer->slot};
    long at;
    mpi_register_pieces(message->pieces, message->bytes, length);
    for (at = 0; at < length; at += PIECE) {
        size_t part = (size_t)(length - at < PIECE ? length - at : PIECE);
        mpi_write(mpi_segment(&message->pieces[at / PIECE], 0, part), answer->keys[at / PIECE],
                  answer->address + (uint64_t)at);
    }
    mpi_send(&end);
    message->until = mpi_posted;
}

static void mpi_source(long length, long count)
{
    long n, begun = 0, done = 0;
    int is_taken = 0;
    /* The target may have all data before this side has dequeued the last completion. */
    while (done < count || !is_taken) {
        for (n = 0; n < WINDOW; n++) {
            struct mpi_message *message = &mpi_messages[n];
            if (message->is_busy && message->until != 0 && message->until <= mpi_complete) {
                mpi_free_pieces(message->pieces, length);
                message->is_busy = 0;
                done++;
            }
            if (!message->is_busy && begun < count) {
                struct mpi_control ready = {.kind = MPI_READY, .slot = (uint32_t)n};
                message->is_busy = 1;
                message->until = 0;
                begun++;
                mpi_send(&ready);
            }
        }
        struct mpi_control *answer = mpi_progress();
        if (answer == NULL)
            continue;
        if (answer->kind == MPI_ANSWER)
            mpi_transfer(answer, length);
        else
            is_taken = 1;
        mpi_release(answer);
    }
}

static void mpi_target(long length, long count)
{
    long ended = 0;
    while (ended < count) {
        struct mpi_control *control = mpi_progress();
        if (control == NULL)
            continue;
        if (control->kind == MPI_READY) {
            mpi_answer(control, length);
        } else {
            mpi_free_pieces(mpi_messages[control->slot].pieces, length);
            ended++;
        }
        mpi_release(control);
    }
}

/* Sends messages from the client to the server, several in flight. Returns millions of messages per second. */
static double mpi_rendezvous(long length, long count)
{
    const struct mpi_control done = {.kind = MPI_DONE};
    long n, round;
    double begin = 0;
    if (length > (long)PIECE * PIECES)
        fail("perf: SIZE of mode rendezvous is at most %d bytes", PIECE * PIECES);
    for (n = 0; n < WINDOW; n++)
        mpi_messages[n].bytes = get_memory((size_t)length);
    for (round = 0; round < 2; round++) {
        long now = round == 0 ? count / 10 + 1 : count;
        begin = seconds();
        if (host != NULL) {
            mpi_source(length, now);
        } else {
            mpi_target(length, now);
            mpi_send(&done);
        }
    }
    double lasted = seconds() - begin;
    while (mpi_complete < mpi_posted && gone == 0)
        mpi_progress();
    return (double)count / lasted / 1e6;
}

/* Measures registrations of `length` bytes, of new memory and of the same memory again, and their deregistrations.
 * Prints the means in microseconds. */
static void mpi_registration(long length, long count)
{
    enum { REGIONS = 64 };
    char *bytes = get_memory(REGIONS * (size_t)length);
    const char *const names[] = {"usec", "again_usec", "free_usec"};
    double lasted[3] = {0};
    long n;
    if (count <= REGIONS)
        fail("perf: register needs a COUNT above %d, since later rounds use the memory of the first ones", (int)REGIONS);
    for (n = 0; n < count; n++) {
        double begin = seconds(), middle;
        struct mpi_memory memory = mpi_register(bytes + (size_t)(n % REGIONS) * (size_t)length, (size_t)length);
        middle = seconds();
        OK(dat_lmr_free(memory.lmr));
        lasted[2] += seconds() - middle;
        lasted[n >= REGIONS] += middle - begin;
    }
    printf("{\"what\":\"register\",\"size\":%ld,\"count\":%ld", length, count);
    for (n = 0; n < 3; n++)
        printf(",\"%s\":%.4g", names[n], lasted[n] * 1e6 / (double)(n == 0 ? REGIONS : n == 1 ? count - REGIONS : count));
    printf("}\n");
}

#endif
