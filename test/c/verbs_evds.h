/*
 * verbs_evds.h: the modes of verbs_bench.c that use EVDs as larger programs do: one EVD for requests and receives, a CNO
 * over two EVDs, several endpoints on one EVD, one endpoint per thread. Each is a ping-pong by messages in which every
 * completion is dequeued.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef VERBS_EVDS_H
#define VERBS_EVDS_H

#include <pthread.h>

#include "verbs_bench.h"

enum { MAX_EPS = 4, MAX_THREADS = 2 };

struct pattern {
    const char *what;
    int waits, has_cno;
    /* Endpoints per thread. */
    int eps;
    int threads;
};

static const struct pattern patterns[] = {
    {.what = "one", .eps = 1, .threads = 1},
    {.what = "one-wait", .waits = 1, .eps = 1, .threads = 1},
    {.what = "cno", .waits = 1, .has_cno = 1, .eps = 1, .threads = 1},
    {.what = "robin", .eps = MAX_EPS, .threads = 1},
    {.what = "threads", .waits = 1, .eps = 1, .threads = MAX_THREADS},
};

static DAT_CNO_HANDLE cno;
/* Endpoints of all threads, grouped by thread. */
static DAT_EP_HANDLE all_eps[MAX_EPS];

/* One thread of a side: its endpoints, and the EVDs on which their work completes. */
struct player {
    pthread_t thread;
    int is_client, waits;
    DAT_EVD_HANDLE receives, requests;
    DAT_EP_HANDLE *eps;
    int ep_count;
    /* Messages in each direction. */
    long count;
    /* Numbers of completions dequeued. */
    long received, sent;
    /* Send time of each message; the client sets it. */
    uint64_t *stamps;
    double lasted;
};

/* Returns the pattern with this name, or NULL. */
static const struct pattern *find_pattern(const char *what)
{
    size_t n;
    for (n = 0; n < sizeof patterns / sizeof *patterns; n++)
        if (strcmp(what, patterns[n].what) == 0)
            return &patterns[n];
    return NULL;
}

/* Counts a completion. When the client disconnects, the remaining receives are flushed, possibly before the server's
 * last send has completed. */
static void count_completion(struct player *player, const DAT_EVENT *event)
{
    const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event->event_data.dto_completion_event_data;
    if (dto->user_cookie.as_64 == RECEIVE && dto->status == DAT_DTO_ERR_FLUSHED)
        return;
    check_completion(event);
    if (dto->user_cookie.as_64 == REQUEST)
        player->sent++;
    else
        player->received++;
}

static void dequeue_all(struct player *player, DAT_EVD_HANDLE evd)
{
    DAT_EVENT event;
    while (dequeue(evd, &event))
        count_completion(player, &event);
}

/* Waits or polls once for completions, as the pattern requires. */
static void take_some(struct player *player)
{
    DAT_EVENT event;
    DAT_EVD_HANDLE triggered;
    DAT_COUNT more;
    if (cno != DAT_HANDLE_NULL) {
        /* dat_cno_wait returns only one EVD, even if both have triggered the CNO. */
        OK(dat_cno_wait(cno, EVENT_TIMEOUT, &triggered));
        dequeue_all(player, player->receives);
        dequeue_all(player, player->requests);
    } else if (player->waits) {
        OK(dat_evd_wait(player->receives, EVENT_TIMEOUT, 1, &event, &more));
        count_completion(player, &event);
    } else if (dequeue(player->receives, &event)) {
        count_completion(player, &event);
    }
}

/* Dequeues completions until the player has dequeued these numbers of receives and of sends. */
static void take_until(struct player *player, long received, long sent)
{
    while (player->received < received || player->sent < sent)
        take_some(player);
}

/* Posts the receive of message n again if a later message needs it. */
static void repost_receive(struct player *player, long n)
{
    if (n + RECEIVES < player->count)
        post_receive_on(player->eps[n % player->ep_count]);
}

static void *play(void *argument)
{
    struct player *player = argument;
    double begin = seconds();
    long n;
    for (n = 0; n < player->count; n++) {
        DAT_EP_HANDLE which = player->eps[n % player->ep_count];
        if (player->is_client) {
            player->stamps[n] = ticks();
            post_send_on(which);
            take_until(player, n + 1, n + 1);
            repost_receive(player, n);
        } else {
            take_until(player, n + 1, n);
            repost_receive(player, n);
            post_send_on(which);
        }
    }
    take_until(player, player->count, player->count);
    player->lasted = seconds() - begin;
    return NULL;
}

/* Creates the EVDs and endpoints of one thread, and posts RECEIVES receives in total. */
static void prepare_player(struct player *player, const struct pattern *pattern, int is_client, long count)
{
    int n;
    player->is_client = is_client;
    player->ep_count = pattern->eps;
    player->count = count;
    player->stamps = calloc((size_t)count, sizeof *player->stamps);
    EXPECT(player->stamps != NULL);
    OK(dat_evd_create(ia, RECEIVES + REQUESTS, cno, DAT_EVD_DTO_FLAG, &player->receives));
    player->requests = player->receives;
    if (pattern->has_cno)
        OK(dat_evd_create(ia, REQUESTS, cno, DAT_EVD_DTO_FLAG, &player->requests));
    for (n = 0; n < pattern->eps; n++)
        OK(dat_ep_create(ia, pz, player->receives, player->requests, connection_evd, &attr, &player->eps[n]));
    for (n = 0; n < RECEIVES; n++)
        post_receive_on(player->eps[n % pattern->eps]);
}

/* Both sides exchange a message and block meanwhile: polling would delay the peer on a single processor. */
static void greet(struct player *player)
{
    player->waits = 1;
    if (player->is_client)
        post_send_on(player->eps[0]);
    take_until(player, 1, 0);
    if (!player->is_client)
        post_send_on(player->eps[0]);
    take_until(player, 1, 1);
    post_receive_on(player->eps[0]);
    player->received = player->sent = 0;
}

static void run_pattern(int is_client, const struct pattern *pattern, long count)
{
    static struct player players[MAX_THREADS];
    long each = count / pattern->threads, eps = pattern->threads * pattern->eps;
    double lasted = 0;
    int n;

    attr.max_recv_dtos = RECEIVES;
    if (pattern->has_cno)
        OK(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
    for (n = 0; n < pattern->threads; n++) {
        players[n].eps = all_eps + n * pattern->eps;
        prepare_player(&players[n], pattern, is_client, each);
    }
    if (is_client)
        connect_all(all_eps, eps);
    else
        accept_all(all_eps, eps);
    greet(&players[0]);
    for (n = 0; n < pattern->threads; n++) {
        players[n].waits = pattern->waits;
        EXPECT(pthread_create(&players[n].thread, NULL, play, &players[n]) == 0);
    }
    for (n = 0; n < pattern->threads; n++) {
        EXPECT(pthread_join(players[n].thread, NULL) == 0);
        lasted += players[n].lasted / pattern->threads;
    }
    if (is_client && pattern->threads == 1)
        report_stamps(players[0].stamps, each, lasted);
    else if (is_client)
        report(lasted * 1e6 / 2 / (double)each);
    fflush(stdout);
    disconnect_all(is_client, all_eps, eps);
}

#endif
