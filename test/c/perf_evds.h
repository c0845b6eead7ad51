/*
 * perf_evds.h: the modes `reap` and `threads` of perf.c, which use EVDs as larger programs do. Every send has a
 * completion, which is dequeued: from one EVD for requests and receives, from separate EVDs, after dat_cno_wait, by a
 * separate thread, or by one thread per connection.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef PERF_EVDS_H
#define PERF_EVDS_H

#include <pthread.h>
#include <stdatomic.h>

#include "perf.h"

/* Cookie of sends. The cookies of receives are smaller. */
#define SEND_COOKIE ((DAT_UINT64)1 << 32)

/* Numbers of completed receives and sends, of one thread or of several. */
struct counts {
    _Atomic long received, sent;
};

/* Counts one completion. Receives left at the end are flushed when the client disconnects. */
static void count_event(const DAT_EVENT *event, struct counts *counts)
{
    const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event->event_data.dto_completion_event_data;
    int is_dto = event->event_number == DAT_DTO_COMPLETION_EVENT;
    if (is_dto && dto->status == DAT_DTO_ERR_FLUSHED && dto->user_cookie.as_64 < SEND_COOKIE)
        return;
    check_completion(event);
    _Atomic long *count = dto->user_cookie.as_64 < SEND_COOKIE ? &counts->received : &counts->sent;
    /* A plain load and store suffice, because each count has one writer. */
    atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + 1, memory_order_release);
}

/* Dequeues one completion: waits for it, or polls once. Returns whether a completion was dequeued. */
static int take_one(DAT_EVD_HANDLE evd, int waits, struct counts *counts)
{
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_RETURN code = waits ? dat_evd_wait(evd, EVENT_TIMEOUT, 1, &event, &more) : dat_evd_dequeue(evd, &event);
    if (DAT_GET_TYPE(code) == DAT_QUEUE_EMPTY)
        return 0;
    check_ok("a completion", code);
    count_event(&event, counts);
    return 1;
}

/* Dequeues for a thread that needs completions of receives, of sends, or of both. With a CNO, waits on it and
 * empties one EVD. Otherwise takes at most one completion from each EVD of a needed kind. */
static void take_some(DAT_EVD_HANDLE receives, DAT_EVD_HANDLE requests, int lacks_sends, int lacks_receives,
                      struct counts *counts)
{
    if (cno != DAT_HANDLE_NULL) {
        DAT_EVD_HANDLE evd;
        OK(dat_cno_wait(cno, EVENT_TIMEOUT, &evd));
        while (take_one(evd, 0, counts))
            ;
        return;
    }
    if (requests != receives && lacks_sends)
        take_one(requests, sleeps, counts);
    if (lacks_receives || requests == receives)
        take_one(receives, sleeps, counts);
}

static void take_until(DAT_EVD_HANDLE receives, DAT_EVD_HANDLE requests, long sends, long recvs, struct counts *counts)
{
    for (;;) {
        int lacks_sends = atomic_load_explicit(&counts->sent, memory_order_acquire) < sends;
        int lacks_receives = atomic_load_explicit(&counts->received, memory_order_acquire) < recvs;
        if (!lacks_sends && !lacks_receives)
            return;
        if (sleeps && lacks_sends && requests != receives)
            lacks_receives = 0; /* one wait at a time */
        take_some(receives, requests, lacks_sends, lacks_receives, counts);
    }
}

/* Sends over endpoint n, with a completion. */
static void send_signalled(long n)
{
    DAT_DTO_COOKIE cookie = {.as_64 = SEND_COOKIE};
    OK(dat_ep_post_send(eps[n], 1, &out, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

/* One thread's part of `reap` and `threads`: ping-pong over endpoint n. */
struct player {
    pthread_t thread;
    long n, count, warm_up;
    double begin, end;
    struct counts counts;
};

/* Body of the thread that dequeues the completions of requests. */
static void *take_requests(void *argument)
{
    struct player *player = argument;
    take_until(requests_of(player->n), requests_of(player->n), player->warm_up + player->count, 0, &player->counts);
    return NULL;
}

static void *play(void *argument)
{
    struct player *player = argument;
    DAT_EVD_HANDLE receives = receives_of(player->n), requests = requests_of(player->n);
    long n, all = player->warm_up + player->count;
    for (n = 0; n < all; n++) {
        if (n == player->warm_up)
            player->begin = seconds();
        if (host != NULL)
            send_signalled(player->n);
        if (host != NULL && n > 0)
            post_receive(player->n); /* while the reply is in flight */
        /* The client also takes the completion of its send of this turn. The server takes that of its previous send,
         * which has completed when the client's next message arrives. */
        take_until(receives, requests, has_reaper ? 0 : (host != NULL ? n + 1 : n), n + 1, &player->counts);
        if (host == NULL) {
            send_signalled(player->n);
            post_receive(player->n);
        }
    }
    player->end = seconds();
    if (!has_reaper)
        take_until(receives, requests, all, all, &player->counts);
    return NULL;
}

/* Ping-pong over the first connection; each completion of a send is dequeued. */
static double reap(long count)
{
    static struct player player;
    pthread_t reaper;
    player.count = count;
    player.warm_up = count / 10;
    if (has_reaper)
        EXPECT(pthread_create(&reaper, NULL, take_requests, &player) == 0);
    play(&player);
    if (has_reaper)
        EXPECT(pthread_join(reaper, NULL) == 0);
    return (player.end - player.begin) * 1e6 / 2 / (double)count;
}

/* Ping-pong over all connections concurrently, each with a separate EVD and thread. Returns the mean of half a round
 * trip. */
static double threads(long count)
{
    struct player *players = calloc((size_t)connections, sizeof *players);
    double lasted = 0;
    long n;
    EXPECT(players != NULL);
    for (n = 0; n < connections; n++) {
        players[n].n = n;
        players[n].count = count;
        players[n].warm_up = count / 10;
        EXPECT(pthread_create(&players[n].thread, NULL, play, &players[n]) == 0);
    }
    for (n = 0; n < connections; n++) {
        EXPECT(pthread_join(players[n].thread, NULL) == 0);
        lasted += (players[n].end - players[n].begin) / (double)connections;
    }
    free(players);
    return lasted * 1e6 / 2 / (double)count;
}

#endif
