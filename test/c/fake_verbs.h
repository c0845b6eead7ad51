/*
 * fake_verbs.h - declarations shared by fake_verbs.c (the calls of the data path) and fake_objects.c (all others).
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef FAKE_VERBS_H
#define FAKE_VERBS_H

#include <infiniband/verbs.h>

#pragma GCC visibility push(hidden)

enum { SEGMENTS = 16, INLINE = 256, QPS = 1024, REGIONS = 4096 };

struct channel {
    struct ibv_comp_channel ibv; /* its descriptor counts the entries that were added to the list */
    struct cq *first, *last;
};

struct cq {
    struct ibv_cq ibv;
    struct ibv_wc *ring; /* its length is a power of two */
    unsigned head, tail, mask;
    enum { DISARMED, SOLICITED, ARMED } armed;
    struct cq *next; /* next queue with an unread event */
    int has_event;
};

struct receive {
    uint64_t wr_id;
    int count;
    struct ibv_sge segments[SEGMENTS];
};

/* A request that waits for a receive or for the peer, with its inline data. */
struct request {
    struct ibv_send_wr wr;
    struct ibv_sge segments[SEGMENTS];
    char data[INLINE];
};

struct qp {
    struct ibv_qp ibv;
    uint32_t peer_number; /* 0: not connected */
    struct receive *receives;
    struct request *requests;
    unsigned receive_head, receive_tail, receive_mask;
    unsigned request_head, request_tail, request_mask;
};

struct region {
    struct ibv_mr ibv;
    int access;
};

/* Queue pairs and registrations by number; number 0 is not used. The lock protects both tables and all objects. */
extern struct qp *fake_qps[QPS];
extern struct region *fake_regions[REGIONS];

void fake_lock(void);
void fake_unlock(void);
/* Whether posts and the arming of completion queues are system calls, as in drivers of software devices. */
int fake_posts_by_kernel(void);
/* Sets the functions of the data path. */
void fake_set_ops(struct ibv_context_ops *ops);
/* Moves a queue pair to ERR, and flushes its work. */
void fake_fail(struct qp *qp);
/* Executes waiting requests until one still has to wait. */
void fake_execute_waiting(struct qp *qp);
/* Returns the peer, or null if packets of the queue pair cannot reach it. */
struct qp *fake_peer_of(const struct qp *qp);

#pragma GCC visibility pop

#endif
