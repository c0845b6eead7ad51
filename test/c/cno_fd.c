/*
 * cno_fd: DAT 2.0 events in event loops, by the descriptors of CNOs. Checks that no wake-up is lost.
 *
 * cno_fd ADAPTER THREADS MESSAGES own|shared [edge]
 *
 * A child process sends MESSAGES messages to each of the parent's THREADS endpoints, at irregular intervals. Each
 * thread of the parent sleeps in epoll_wait, and dequeues events only after a wake-up. With `own` each thread has a CNO
 * for its endpoint; with `shared` all endpoints have one CNO, on whose descriptor all threads wait. With `edge` epoll
 * is edge-triggered.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <dat2/udat.h>

/* Returns the provider's handle for the number that dat_ia_open has returned. No header declares this function. */
extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE ia, DAT_IA_HANDLE *handle);

/* A sender has at most IN_FLIGHT unhandled messages. That is fewer than RECEIVES, so each message finds a posted
 * receive. */
enum { MAX_ENDPOINTS = 16, RECEIVES = 16, IN_FLIGHT = 12, LENGTH = 8, QUAL = 7100, EVENT_TIMEOUT_MS = 60000, TICK_MS = 100 };

/* Memory that both processes share: per endpoint, whether the parent listens, and the number of messages that it has
 * handled. */
static struct shared {
    atomic_int listening[MAX_ENDPOINTS];
    atomic_long handled[MAX_ENDPOINTS];
} *shared;

static struct end {
    int number, descriptor;
    DAT_IA_HANDLE ia;
    DAT_PZ_HANDLE pz;
    DAT_EVD_HANDLE requests, connections, receives, sends;
    DAT_CNO_HANDLE cno;
    DAT_EP_HANDLE ep;
    DAT_LMR_CONTEXT key;
    char memory[RECEIVES * LENGTH];
} ends[MAX_ENDPOINTS];

static int threads, is_shared, is_edge;
static long messages;
static atomic_long all_handled;

static void ok(const char *call, DAT_RETURN ret)
{
    const char *type = "?", *subtype = "";
    if (ret == DAT_SUCCESS)
        return;
    dat_strerror(ret, &type, &subtype);
    fprintf(stderr, "%s: %s %s\n", call, type, subtype);
    _exit(1);
}

static void make_objects(struct end *end, const char *adapter, int receives)
{
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_HANDLE lmr;
    DAT_RMR_CONTEXT remote;
    DAT_VLEN length;
    DAT_VADDR base;
    DAT_IA_HANDLE provider;

    end->number = (int)(end - ends);
    if (receives && is_shared && end != ends) {
        end->ia = ends[0].ia;
        end->cno = ends[0].cno;
        end->descriptor = ends[0].descriptor;
    } else {
        ok("dat_ia_open", dat_ia_open((DAT_NAME_PTR)adapter, 8, &errors, &end->ia));
        if (receives) {
            ok("dats_get_ia_handle", dats_get_ia_handle(end->ia, &provider));
            ok("dat_cno_fd_create", DAT_CNO_FD_CREATE(provider, &end->descriptor, &end->cno));
        }
    }
    ok("dat_pz_create", dat_pz_create(end->ia, &end->pz));
    ok("dat_evd_create", dat_evd_create(end->ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &end->requests));
    ok("dat_evd_create", dat_evd_create(end->ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &end->connections));
    ok("dat_evd_create", dat_evd_create(end->ia, 2 * RECEIVES, end->cno, DAT_EVD_DTO_FLAG, &end->receives));
    ok("dat_evd_create", dat_evd_create(end->ia, 2 * RECEIVES, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &end->sends));
    ok("dat_ep_create",
       dat_ep_create(end->ia, end->pz, end->receives, end->sends, end->connections, NULL, &end->ep));
    region.for_va = end->memory;
    ok("dat_lmr_create",
       dat_lmr_create(end->ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof end->memory, end->pz,
                      DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, DAT_VA_TYPE_VA, &lmr, &end->key, &remote,
                      &length, &base));
}

static void post(struct end *end, int is_receive, long number)
{
    DAT_LMR_TRIPLET piece = {.lmr_context = end->key,
                             .virtual_address = (DAT_VADDR)(uintptr_t)(end->memory + number % RECEIVES * LENGTH),
                             .segment_length = LENGTH};
    DAT_DTO_COOKIE cookie = {.as_64 = (DAT_UINT64)number};

    if (is_receive)
        ok("dat_ep_post_recv", dat_ep_post_recv(end->ep, 1, &piece, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    else
        ok("dat_ep_post_send", dat_ep_post_send(end->ep, 1, &piece, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void await(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number, DAT_EVENT *event)
{
    DAT_COUNT more;

    ok("dat_evd_wait", dat_evd_wait(evd, EVENT_TIMEOUT_MS * 1000u, 1, event, &more));
    if (event->event_number != number) {
        fprintf(stderr, "event %#x, expected %#x\n", (unsigned)event->event_number, (unsigned)number);
        _exit(1);
    }
}

/* Only one thread at a time gets the events of an EVD, so that messages are checked and receives posted in order. */
static pthread_mutex_t end_locks[MAX_ENDPOINTS];

static void handle_events_of(struct end *end)
{
    DAT_EVENT event;

    pthread_mutex_lock(&end_locks[end->number]);
    while (dat_evd_dequeue(end->receives, &event) == DAT_SUCCESS) {
        const DAT_DTO_COMPLETION_EVENT_DATA *done = &event.event_data.dto_completion_event_data;
        long number = shared->handled[end->number], content;

        memcpy(&content, end->memory + number % RECEIVES * LENGTH, sizeof content);
        if (done->status != DAT_DTO_SUCCESS || done->user_cookie.as_64 != (DAT_UINT64)number || content != number) {
            fprintf(stderr, "endpoint %d: expected message %ld, received %ld, status %d\n", end->number, number,
                    content, done->status);
            _exit(1);
        }
        if (number + RECEIVES < messages)
            post(end, 1, number + RECEIVES);
        shared->handled[end->number] = number + 1;
        all_handled++;
    }
    pthread_mutex_unlock(&end_locks[end->number]);
}

static void handle_triggers(const struct end *waiter)
{
    DAT_EVD_HANDLE evd;
    DAT_RETURN code;

    while ((code = DAT_CNO_TRIGGER(waiter->cno, &evd)) == DAT_SUCCESS) {
        int number = 0;
        while (number < threads && ends[number].receives != evd)
            number++;
        if (number == threads || (!is_shared && number != waiter->number)) {
            fprintf(stderr, "dat_cno_trigger returned an EVD that no endpoint of this CNO uses\n");
            _exit(1);
        }
        handle_events_of(&ends[number]);
    }
    if (code != DAT_QUEUE_EMPTY)
        ok("dat_cno_trigger", code);
}

static void *receive(void *argument)
{
    struct end *end = argument;
    struct epoll_event wanted = {.events = EPOLLIN | (is_edge ? EPOLLET : 0u)};
    int loop = epoll_create1(EPOLL_CLOEXEC), ticks = 0;
    long before = 0;
    const atomic_long *progress = is_shared ? &all_handled : &shared->handled[end->number];
    long wanted_messages = is_shared ? messages * threads : messages;
    DAT_PSP_HANDLE psp;
    DAT_EVENT event;

    for (long number = 0; number < RECEIVES && number < messages; number++)
        post(end, 1, number);
    ok("dat_psp_create",
       dat_psp_create(end->ia, QUAL + (unsigned)end->number, end->requests, DAT_PSP_CONSUMER_FLAG, &psp));
    shared->listening[end->number] = 1;
    await(end->requests, DAT_CONNECTION_REQUEST_EVENT, &event);
    ok("dat_cr_accept", dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, end->ep, 0, NULL));
    await(end->connections, DAT_CONNECTION_EVENT_ESTABLISHED, &event);
    if (loop < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, end->descriptor, &wanted) != 0) {
        perror("epoll");
        _exit(1);
    }
    while (*progress < wanted_messages) {
        struct epoll_event ready;
        int count = epoll_wait(loop, &ready, 1, TICK_MS);
        if (count == 1)
            handle_triggers(end);
        if (count == 1 || *progress != before)
            ticks = 0;
        else if (count == 0 && ++ticks == EVENT_TIMEOUT_MS / TICK_MS) {
            fprintf(stderr, "endpoint %d: a wake-up was lost after %ld messages\n", end->number, *progress);
            _exit(1);
        }
        before = *progress;
    }
    return NULL;
}

static void *send_all(void *argument)
{
    struct end *end = argument;
    const atomic_long *handled = &shared->handled[end->number];
    unsigned seed = (unsigned)end->number;
    long completed = 0;
    DAT_IA_ATTR attributes;
    DAT_EVENT event;

    while (!shared->listening[end->number])
        sched_yield();
    ok("dat_ia_query", dat_ia_query(end->ia, NULL, DAT_IA_FIELD_ALL, &attributes, 0, NULL));
    ok("dat_ep_connect",
       dat_ep_connect(end->ep, attributes.ia_address_ptr, QUAL + (unsigned)end->number, DAT_TIMEOUT_INFINITE, 0, NULL,
                      DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    await(end->connections, DAT_CONNECTION_EVENT_ESTABLISHED, &event);
    for (long number = 0; number < messages; number++) {
        struct timespec pause = {.tv_nsec = rand_r(&seed) % 60000};
        int kind = rand_r(&seed) % 8;
        while (number - *handled >= IN_FLIGHT)
            sched_yield();
        for (; completed + IN_FLIGHT <= number; completed++)
            await(end->sends, DAT_DTO_COMPLETION_EVENT, &event);
        memcpy(end->memory + number % RECEIVES * LENGTH, &number, LENGTH);
        post(end, 0, number);
        /* Random delays: the next message arrives while the receiver sleeps, while it falls asleep, or while it
         * handles this one. */
        if (kind == 0)
            nanosleep(&pause, NULL);
        for (int turns = kind <= 3 ? rand_r(&seed) % 40 : 0; turns > 0 && number >= *handled; turns--)
            sched_yield();
    }
    while (*handled < messages)
        sched_yield();
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t running[MAX_ENDPOINTS];
    pid_t child;
    int status = 0;

    threads = argc < 5 ? 0 : atoi(argv[2]);
    if (threads < 1 || threads > MAX_ENDPOINTS) {
        fprintf(stderr, "usage: cno_fd ADAPTER THREADS MESSAGES own|shared [edge]\n");
        return 2;
    }
    messages = atol(argv[3]);
    is_shared = strcmp(argv[4], "shared") == 0;
    is_edge = argc > 5;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || (child = fork()) < 0) {
        perror("cno_fd");
        return 1;
    }
    for (int i = 0; i < threads; i++) {
        pthread_mutex_init(&end_locks[i], NULL);
        make_objects(&ends[i], argv[1], child != 0);
    }
    for (int i = 0; i < threads; i++)
        pthread_create(&running[i], NULL, child == 0 ? send_all : receive, &ends[i]);
    for (int i = 0; i < threads; i++)
        pthread_join(running[i], NULL);
    if (child == 0)
        _exit(0);
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "the sending process ended with wait status %#x, expected 0\n", (unsigned)status);
        return 1;
    }
    printf("cno_fd: OK, %ld messages to each of %d endpoints\n", messages, threads);
    return 0;
}
