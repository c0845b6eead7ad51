/*
 * crossed.c - four processes that all connect to each other at the same time, in both directions.
 *
 *   crossed IA ROUNDS ADDRESS [threads] [meet]
 *
 * The processes act like an MPI library that connects on demand: each has one EP per peer. When two requests cross, the
 * process with the higher rank rejects the request that it receives. The other process resets its EP after
 * PEER_REJECTED and accepts the request that it has kept. A process that receives a request before it connects accepts
 * at once. Then each side sends one message, deregisters the memory, and disconnects.
 *
 * In every other round the disconnect is graceful and does not wait until the process's own sends have completed; their
 * memory is deregistered later. Any unexpected event is a failure. Only receives that were posted before a rejection,
 * and one receive that stays posted, may be flushed.
 *
 *   threads    a separate thread accepts requests, and is cancelled at the end
 *   meet       receives are posted before requests (without `meet`, in every other round), and no process disconnects
 *              before all processes have all messages (without `meet`, in two of three rounds). For devices that
 *              complete a receive before they send its acknowledgement: a disconnect may flush the send of a message
 *              that has arrived.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { RANKS = 4, QUAL = 7400, LENGTH = 512, RECEIVE = 100, SPARE = 200, SEND = 300 };

enum stage { IDLE, ASKED, ACCEPTED, READY, ENDED };

struct peer {
    DAT_EP_HANDLE ep;
    DAT_CR_HANDLE kept; /* its request, until our own was rejected */
    enum stage stage;
    int is_posted, has_spare, has_sent, has_received;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT context;
    unsigned char memory[2][LENGTH];
};

static struct peer peers[RANKS];
static int rank, is_threaded, has_to_meet;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long round_number;
static long rejected, at_once;
static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE requests, connections, transfers;
static struct sockaddr_in address;
static pthread_barrier_t *barrier;

/* Whether this round ends connections gracefully as soon as all messages have arrived, without waiting for
 * completions of sends. */
static int is_hasty(void)
{
    return round_number % 2 == 0;
}

static void meet(void)
{
    int ret = pthread_barrier_wait(barrier);
    EXPECT(ret == 0 || ret == PTHREAD_BARRIER_SERIAL_THREAD);
}

__attribute__((noreturn, format(printf, 1, 2))) static void wrong(const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail("rank %d, round %lu: %s", rank, round_number, text);
}

static int peer_of(DAT_EP_HANDLE ep)
{
    for (int n = 0; n < RANKS; n++)
        if (n != rank && peers[n].ep == ep)
            return n;
    wrong("an event names EP %p, which is the EP of no peer", (void *)ep);
}

static void must(const char *call, int n, DAT_RETURN ret)
{
    if (ret != DAT_SUCCESS)
        wrong("%s for peer %d: %s", call, n, words(ret));
}

static DAT_LMR_TRIPLET part(int n, int which)
{
    DAT_LMR_TRIPLET triplet = {.lmr_context = peers[n].context,
                               .virtual_address = (DAT_VADDR)(uintptr_t)peers[n].memory[which],
                               .segment_length = LENGTH};
    return triplet;
}

static void post(int n, int kind)
{
    DAT_LMR_TRIPLET into = part(n, 0);
    DAT_DTO_COOKIE cookie = {.as_64 = (uint64_t)(kind + n)};
    must("dat_ep_post_recv", n, dat_ep_post_recv(peers[n].ep, 1, &into, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    *(kind == SPARE ? &peers[n].has_spare : &peers[n].is_posted) = 1;
}

static void prepare(int n)
{
    struct peer *p = &peers[n];
    DAT_REGION_DESCRIPTION region = {.for_va = p->memory};
    DAT_MEM_PRIV_FLAGS rights = DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG;
    if (p->ep == DAT_HANDLE_NULL)
        must("dat_ep_create", n, dat_ep_create(ia, pz, transfers, transfers, connections, NULL, &p->ep));
    must("dat_lmr_create", n, dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof p->memory, pz, rights, &p->lmr,
                                             &p->context, NULL, NULL, NULL));
    p->kept = DAT_HANDLE_NULL;
    p->stage = IDLE;
    p->is_posted = p->has_spare = p->has_sent = p->has_received = 0;
    memset(p->memory[0], 0, LENGTH);
    memset(p->memory[1], rank * 16 + n + (int)round_number, LENGTH);
    if (round_number % 2 || has_to_meet)
        post(n, RECEIVE);
}

static void pause_outside(void)
{
    pthread_mutex_unlock(&lock);
    sched_yield();
    pthread_mutex_lock(&lock);
}

static void ask(int n)
{
    int32_t own = rank;
    if (peers[n].stage != IDLE)
        return;
    peers[n].stage = ASKED;
    pthread_mutex_unlock(&lock);
    DAT_RETURN ret = dat_ep_connect(peers[n].ep, (DAT_IA_ADDRESS_PTR)&address, QUAL + (DAT_CONN_QUAL)n, DAT_TIMEOUT_INFINITE,
                                    sizeof own, &own, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG);
    pthread_mutex_lock(&lock);
    /* The thread that answers requests may have accepted the peer's request into this EP meanwhile, so that the
     * connect is refused. */
    if (!is_threaded || DAT_GET_TYPE(ret) != DAT_INVALID_STATE)
        must("dat_ep_connect", n, ret);
}

static void accept_request(int n, DAT_CR_HANDLE request)
{
    int32_t own = rank;
    must("dat_cr_accept", n, dat_cr_accept(request, peers[n].ep, sizeof own, &own));
    peers[n].stage = ACCEPTED;
}

static void requested(DAT_CR_HANDLE request)
{
    DAT_CR_PARAM param;
    int32_t n, own = rank;
    OK(dat_cr_query(request, DAT_CR_FIELD_PRIVATE_DATA, &param));
    memcpy(&n, param.private_data, sizeof n);
    EXPECT(n >= 0 && n < RANKS && n != rank);
    if (peers[n].stage == IDLE) {
        at_once++;
        accept_request(n, request);
    } else if (peers[n].stage != ASKED) {
        wrong("a second connection request of peer %d", n);
    } else if (rank > n) {
        must("dat_cr_reject", n, dat_cr_reject(request));
    } else {
        /* The EP has not been reset after its connect, so the accept is refused. With `threads` the EP may still be
         * unconnected; then the accept succeeds. */
        DAT_RETURN ret = dat_cr_accept(request, peers[n].ep, sizeof own, &own);
        if (is_threaded && ret == DAT_SUCCESS) {
            peers[n].stage = ACCEPTED; /* the peer has not connected yet */
            return;
        }
        if (DAT_GET_TYPE(ret) != DAT_INVALID_STATE)
            wrong("dat_cr_accept into a connecting EP: %s, expected DAT_INVALID_STATE", words(ret));
        EXPECT(peers[n].kept == DAT_HANDLE_NULL);
        peers[n].kept = request;
    }
}

static void transferred(const DAT_EVENT *event)
{
    const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event->event_data.dto_completion_event_data;
    int kind = (int)(dto->user_cookie.as_64 / 100 * 100), n = (int)(dto->user_cookie.as_64 % 100);
    struct peer *p = &peers[n];
    if (kind == RECEIVE && p->stage == ASKED && rank < n && dto->status == DAT_DTO_ERR_FLUSHED)
        p->is_posted = 0; /* the peer has rejected this request, or will reject it */
    else if (kind == SPARE && p->has_received && dto->status == DAT_DTO_ERR_FLUSHED)
        p->has_spare = 0;
    else if (kind == SPARE || dto->status != DAT_DTO_SUCCESS)
        wrong("unexpected completion: cookie %d (rank + 100 receive, 200 spare receive, 300 send), status %d, stage %d",
              kind + n, dto->status, p->stage);
    else
        *(kind == RECEIVE ? &p->has_received : &p->has_sent) = 1;
}

/* Dequeues the receives that were posted before the rejection; the reset flushes them at the latest. In some rounds,
 * and always with `meet`, posts a receive for the next attempt. */
static void take_flushed(int n)
{
    DAT_EVENT event;
    while (peers[n].is_posted) {
        if (dat_evd_dequeue(transfers, &event) != DAT_SUCCESS)
            wrong("the reset did not flush the receive for peer %d", n);
        transferred(&event);
    }
    if (round_number % 4 == 1 || has_to_meet)
        post(n, RECEIVE);
}

static void established(int n)
{
    DAT_LMR_TRIPLET from = part(n, 1);
    DAT_DTO_COOKIE cookie = {.as_64 = SEND + (uint64_t)n};
    peers[n].stage = READY;
    if (!peers[n].is_posted)
        post(n, RECEIVE);
    post(n, SPARE);
    must("dat_ep_post_send", n, dat_ep_post_send(peers[n].ep, 1, &from, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void connection_event(const DAT_EVENT *event)
{
    const DAT_CONNECTION_EVENT_DATA *data = &event->event_data.connect_event_data;
    int n = peer_of(data->ep_handle);
    struct peer *p = &peers[n];
    DAT_EP_STATE state;
    OK(dat_ep_get_status(p->ep, &state, NULL, NULL));
    if (event->event_number == DAT_CONNECTION_EVENT_ESTABLISHED && (p->stage == ASKED || p->stage == ACCEPTED)) {
        EXPECT(p->kept == DAT_HANDLE_NULL);
        EXPECT(p->stage == ASKED ? data->private_data_size >= (DAT_COUNT)sizeof(int32_t) : data->private_data_size == 0);
        established(n);
    } else if (event->event_number == DAT_CONNECTION_EVENT_PEER_REJECTED && p->stage == ASKED && rank < n) {
        rejected++;
        EXPECT(state == DAT_EP_STATE_DISCONNECTED);
        must("dat_ep_reset", n, dat_ep_reset(p->ep));
        take_flushed(n);
        p->stage = IDLE;
        if (p->kept != DAT_HANDLE_NULL)
            accept_request(n, p->kept);
        p->kept = DAT_HANDLE_NULL;
    } else if (event->event_number == DAT_CONNECTION_EVENT_DISCONNECTED && p->stage == READY && p->has_received) {
        p->stage = ENDED;
    } else
        wrong("unexpected event 0x%x of peer %d in stage %d, EP state %d", (unsigned)event->event_number, n, p->stage,
              (int)state);
}

static void look(void)
{
    DAT_EVENT event;
    int found = 0;
    for (; !is_threaded && dat_evd_dequeue(requests, &event) == DAT_SUCCESS; found = 1)
        requested(event.event_data.cr_arrival_event_data.cr_handle);
    /* Dequeue completions first: after the disconnect event a connection has no further completions. */
    for (; dat_evd_dequeue(transfers, &event) == DAT_SUCCESS; found = 1)
        transferred(&event);
    for (; dat_evd_dequeue(connections, &event) == DAT_SUCCESS; found = 1) {
        DAT_EVENT done;
        while (dat_evd_dequeue(transfers, &done) == DAT_SUCCESS)
            transferred(&done);
        connection_event(&event);
    }
    if (!found)
        pause_outside();
}

static void *answer(void *unused)
{
    (void)unused;
    EXPECT(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    for (;;) {
        DAT_EVENT event;
        DAT_COUNT more;
        OK(dat_evd_wait(requests, DAT_TIMEOUT_INFINITE, 1, &event, &more));
        pthread_mutex_lock(&lock);
        requested(event.event_data.cr_arrival_event_data.cr_handle);
        pthread_mutex_unlock(&lock);
    }
}

/* Requests all connections, the first to a random peer. In two of three rounds a random number of polls precedes each
 * request. So the rounds have different interleavings. */
static void query_all(void)
{
    int first = rand() % RANKS;
    for (int n = 0; n < RANKS; n++) {
        if (round_number % 3)
            for (int looks = rand() % 4; looks > 0; looks--)
                look();
        int other = (first + n) % RANKS;
        if (other != rank)
            ask(other);
    }
}

/* Checks the message of a peer and disconnects. Called when the messages of all peers have arrived. */
static void finish(int n)
{
    struct peer *p = &peers[n];
    for (int at = 0; at < LENGTH; at++)
        if (p->memory[0][at] != (unsigned char)(n * 16 + rank + (int)round_number))
            wrong("byte %d of the message of peer %d is wrong", at, n);
    /* The memory of a send belongs to the library until the send completes. */
    if (!is_hasty())
        must("dat_lmr_free", n, dat_lmr_free(p->lmr));
    must("dat_ep_disconnect", n, dat_ep_disconnect(p->ep, is_hasty() ? DAT_CLOSE_GRACEFUL_FLAG : DAT_CLOSE_ABRUPT_FLAG));
}

static int count(int (*is)(const struct peer *))
{
    int found = 0;
    for (int n = 0; n < RANKS; n++)
        found += n != rank && is(&peers[n]);
    return found;
}

static int has_messages(const struct peer *p)
{
    return p->has_received && (p->has_sent || is_hasty());
}

static int is_over(const struct peer *p)
{
    return p->stage == ENDED && p->has_sent && !p->has_spare;
}

static void one_round(void)
{
    for (int n = 0; n < RANKS; n++)
        if (n != rank)
            prepare(n);
    meet();
    pthread_mutex_lock(&lock);
    query_all();
    while (count(has_messages) < RANKS - 1)
        look();
    if (round_number % 3 != 2 || has_to_meet)
        meet();
    for (int n = 0; n < RANKS; n++)
        if (n != rank)
            finish(n);
    while (count(is_over) < RANKS - 1)
        look();
    pthread_mutex_unlock(&lock);
    expect_no_event(transfers, "the EVD of transfers after the round");
    expect_no_event(connections, "the EVD of connections after the round");
    for (int n = 0; n < RANKS; n++) {
        if (n == rank)
            continue;
        if (is_hasty())
            must("dat_lmr_free", n, dat_lmr_free(peers[n].lmr));
        if (round_number % 7) {
            must("dat_ep_reset", n, dat_ep_reset(peers[n].ep));
        } else {
            must("dat_ep_free", n, dat_ep_free(peers[n].ep));
            peers[n].ep = DAT_HANDLE_NULL;
        }
    }
    meet();
}

static int play(char *name, unsigned long rounds)
{
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_PSP_HANDLE psp;
    pthread_t thread;
    srand((unsigned)rank + 1);
    OK(dat_ia_open(name, 8, &errors, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests));
    OK(dat_evd_create(ia, 32, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connections));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &transfers));
    OK(dat_psp_create(ia, QUAL + (DAT_CONN_QUAL)rank, requests, DAT_PSP_CONSUMER_FLAG, &psp));
    if (is_threaded)
        EXPECT(pthread_create(&thread, NULL, answer, NULL) == 0);
    meet();
    for (round_number = 0; round_number < rounds; round_number++)
        one_round();
    printf("rank %d: %ld own requests rejected, %ld peer requests accepted on arrival\n", rank, rejected, at_once);
    fflush(stdout);
    if (is_threaded)
        EXPECT(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    OK(dat_psp_free(psp));
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    return 0;
}

int main(int argc, char **argv)
{
    pthread_barrierattr_t shared;
    if (argc < 4)
        fail("usage: crossed IA ROUNDS ADDRESS [threads] [meet]");
    for (int n = 4; n < argc; n++)
        *(strcmp(argv[n], "meet") == 0 ? &has_to_meet : &is_threaded) = 1;
    address.sin_family = AF_INET;
    EXPECT(inet_pton(AF_INET, argv[3], &address.sin_addr) == 1);
    barrier = mmap(NULL, sizeof *barrier, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(barrier != MAP_FAILED && pthread_barrierattr_init(&shared) == 0);
    EXPECT(pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) == 0);
    EXPECT(pthread_barrier_init(barrier, &shared, RANKS) == 0);
    pid_t children[RANKS];
    for (int n = 0; n < RANKS; n++) {
        children[n] = fork();
        EXPECT(children[n] >= 0);
        if (children[n] == 0) {
            rank = n;
            return play(argv[1], strtoul(argv[2], NULL, 0));
        }
    }
    /* After one process fails, the others would wait in the barrier forever, so they are killed. */
    for (int left = RANKS; left > 0; left--) {
        int status;
        pid_t gone = wait(&status);
        EXPECT(gone > 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        for (int n = 0; n < RANKS; n++)
            if (children[n] != gone)
                kill(children[n], SIGKILL);
        fail("the process with id %d failed: wait status 0x%x, expected 0", (int)gone, (unsigned)status);
    }
    printf("crossed: OK, %s rounds\n", argv[2]);
    return 0;
}
