/*
 * cancel_calls.h - a part of cancel.c: the calls during which threads are cancelled, from dat_ia_open to dat_ia_close.
 * The process connects to itself.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef CANCEL_CALLS_H
#define CANCEL_CALLS_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "check.h"

#if DAT_VERSION_MAJOR >= 2
#include <dat2/dat_ib_extensions.h>
#include <dat2/dat_registry.h>
#else
#include <dat/dat_registry.h>
#endif

enum { QUAL = 7171, QUAL_OF_ONE = 7272, QUAL_WITHOUT_LISTENER = 7373, EPS = 5, LENGTH = 4096 };

/* The call by which providers translate the number of an IA to their own handle. */
extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE number, DAT_IA_HANDLE *handle);

static char *name;
static int is_pending;
static atomic_long steps;
static atomic_int is_done;
static DAT_IA_HANDLE ia;

/* Whether the adapter has memory windows (RMRs) and shared receive queues; without them their calls are refused. */
static int has_rmrs, has_srqs;

/* Checks the type of a call's return code, and counts the call. A cancellation point, except in mode `pending`. A
 * failure must be printed even while a cancellation request is pending. */
static void check(const char *call, DAT_RETURN ret, DAT_RETURN wanted)
{
    if (DAT_GET_TYPE(ret) != DAT_GET_TYPE(wanted)) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
        fail("%s: %s", call, words(ret));
    }
    steps++;
    if (!is_pending)
        pthread_testcancel();
}

#if DAT_VERSION_MAJOR >= 2
static const DAT_EVD_FLAGS transfer_flags = DAT_EVD_DTO_FLAG | (DAT_EVD_FLAGS)DAT_IB_EVD_EXTENSION_FLAG;
static const DAT_MEM_PRIV_FLAGS privileges = DAT_MEM_PRIV_ALL_FLAG | (DAT_MEM_PRIV_FLAGS)DAT_IB_MEM_PRIV_REMOTE_ATOMIC;
#else
static const DAT_EVD_FLAGS transfer_flags = DAT_EVD_DTO_FLAG;
static const DAT_MEM_PRIV_FLAGS privileges = DAT_MEM_PRIV_ALL_FLAG;
#endif

#define CALL(call) check(#call, (call), DAT_SUCCESS)
#define REFUSED(call, type) check(#call, (call), (type))

struct objects {
    DAT_EVD_HANDLE errors, requests, connections, receives, transfers, software;
    DAT_CNO_HANDLE cno;
    DAT_PZ_HANDLE pz;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT local;
    DAT_RMR_CONTEXT remote;
    DAT_RMR_HANDLE rmr;
    DAT_SRQ_HANDLE srq;
    DAT_EP_HANDLE ep[EPS];
    DAT_PSP_HANDLE psp, other_psp;
    DAT_CONN_QUAL other_qual;
    DAT_IA_ADDRESS_PTR here;
    unsigned char memory[2 * LENGTH];
};

/* Dequeues the next event. Waits on the EVD, or for an event of `requests` and `receives` on the CNO. While a
 * cancellation request is pending, it polls, because a wait would be cancelled. */
static DAT_EVENT take(struct objects *o, DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number)
{
    DAT_EVENT event;
    DAT_EVD_HANDLE ready;
    DAT_COUNT more;
    if (!is_pending && evd != o->requests && evd != o->receives)
        CALL(dat_evd_wait(evd, EVENT_TIMEOUT, 1, &event, &more));
    else
        while (dat_evd_dequeue(evd, &event) != DAT_SUCCESS)
            if (!is_pending)
                CALL(dat_cno_wait(o->cno, EVENT_TIMEOUT, &ready));
            else
                sched_yield();
    steps++;
    if (event.event_number != number) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
        fail("event 0x%x, expected 0x%x", (unsigned)event.event_number, (unsigned)number);
    }
    return event;
}

static DAT_CR_HANDLE take_request(struct objects *o)
{
    DAT_CR_PARAM param;
    DAT_CR_HANDLE cr = take(o, o->requests, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data.cr_handle;
    CALL(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
    return cr;
}

static void open_all(struct objects *o)
{
    DAT_OS_WAIT_PROXY_AGENT none = {NULL, NULL};
    DAT_IA_ATTR adapter;
    DAT_PROVIDER_ATTR provider;
    DAT_EVENT event = {.event_number = DAT_SOFTWARE_EVENT};
    DAT_EVD_PARAM evd;
    DAT_CNO_PARAM cno;
    DAT_PZ_PARAM pz;
    DAT_CONTEXT context = {.as_64 = 5};
    DAT_HANDLE_TYPE type;
    o->errors = DAT_HANDLE_NULL;
    CALL(dat_ia_open(name, 8, &o->errors, &ia));
    CALL(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &adapter, DAT_PROVIDER_FIELD_ALL, &provider));
    o->here = adapter.ia_address_ptr;
    has_rmrs = adapter.max_rmrs > 0;
    has_srqs = adapter.max_srqs > 0;
    CALL(dat_pz_create(ia, &o->pz));
    CALL(dat_pz_query(o->pz, DAT_PZ_FIELD_ALL, &pz));
    CALL(dat_set_consumer_context(o->pz, context));
    CALL(dat_get_consumer_context(o->pz, &context));
    CALL(dat_get_handle_type(o->pz, &type));
    CALL(dat_cno_create(ia, none, &o->cno));
    CALL(dat_cno_query(o->cno, DAT_CNO_FIELD_ALL, &cno));
    CALL(dat_cno_modify_agent(o->cno, none));
    CALL(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &o->requests));
    CALL(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &o->connections));
    CALL(dat_evd_create(ia, 32, o->cno, transfer_flags, &o->receives));
    CALL(dat_evd_create(ia, 32, DAT_HANDLE_NULL, transfer_flags | DAT_EVD_RMR_BIND_FLAG, &o->transfers));
    CALL(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &o->software));
    CALL(dat_evd_query(o->requests, DAT_EVD_FIELD_ALL, &evd));
    CALL(dat_evd_modify_cno(o->requests, o->cno));
    CALL(dat_evd_disable(o->requests));
    CALL(dat_evd_enable(o->requests));
    CALL(dat_evd_set_unwaitable(o->software));
    CALL(dat_evd_clear_unwaitable(o->software));
    CALL(dat_evd_resize(o->transfers, 64));
    CALL(dat_evd_post_se(o->software, &event));
    CALL(dat_evd_dequeue(o->software, &event));
    REFUSED(dat_evd_dequeue(o->software, &event), DAT_QUEUE_EMPTY);
}

static void create_all(struct objects *o)
{
    DAT_REGION_DESCRIPTION region = {.for_va = o->memory};
    DAT_SRQ_ATTR shared = {.max_recv_dtos = 4, .max_recv_iov = 1};
    DAT_LMR_PARAM lmr;
    DAT_RMR_PARAM rmr;
    DAT_SRQ_PARAM srq;
    DAT_EP_PARAM ep;
    DAT_EP_STATE state;
    DAT_BOOLEAN idle;
    DAT_PSP_PARAM psp;
    DAT_COUNT count, span;
    CALL(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof o->memory, o->pz, privileges, &o->lmr, &o->local,
                        &o->remote, NULL, NULL));
    DAT_LMR_TRIPLET all = {.lmr_context = o->local,
                           .virtual_address = (DAT_VADDR)(uintptr_t)o->memory,
                           .segment_length = sizeof o->memory};
    CALL(dat_lmr_query(o->lmr, DAT_LMR_FIELD_ALL, &lmr));
    CALL(dat_lmr_sync_rdma_read(ia, &all, 1));
    CALL(dat_lmr_sync_rdma_write(ia, &all, 1));
    if (has_rmrs) {
        CALL(dat_rmr_create(o->pz, &o->rmr));
        CALL(dat_rmr_query(o->rmr, DAT_RMR_FIELD_ALL, &rmr));
    } else {
        REFUSED(dat_rmr_create(o->pz, &o->rmr), DAT_MODEL_NOT_SUPPORTED);
    }
    for (int n = 0; n < EPS - has_srqs; n++)
        CALL(dat_ep_create(ia, o->pz, o->receives, o->transfers, o->connections, NULL, &o->ep[n]));
    CALL(dat_ep_query(o->ep[0], DAT_EP_FIELD_ALL, &ep));
    if (has_srqs) {
        CALL(dat_srq_create(ia, o->pz, &shared, &o->srq));
        CALL(dat_srq_query(o->srq, DAT_SRQ_FIELD_ALL, &srq));
        CALL(dat_srq_resize(o->srq, 8));
        CALL(dat_srq_set_lw(o->srq, 1));
        ep.ep_attr.max_recv_dtos = DAT_HW_DEFAULT;
        CALL(dat_ep_create_with_srq(ia, o->pz, o->receives, o->transfers, o->connections, o->srq, &ep.ep_attr,
                                    &o->ep[EPS - 1]));
    } else {
        REFUSED(dat_srq_create(ia, o->pz, &shared, &o->srq), DAT_MODEL_NOT_SUPPORTED);
    }
    CALL(dat_ep_modify(o->ep[0], DAT_EP_FIELD_PZ_HANDLE, &ep));
    CALL(dat_ep_get_status(o->ep[0], &state, &idle, &idle));
    dat_ep_recv_query(o->ep[0], &count, &span);
    dat_ep_set_watermark(o->ep[0], 4, 8);
    CALL(dat_psp_create(ia, QUAL, o->requests, DAT_PSP_CONSUMER_FLAG, &o->psp));
    CALL(dat_psp_create_any(ia, &o->other_qual, o->requests, DAT_PSP_CONSUMER_FLAG, &o->other_psp));
    CALL(dat_psp_query(o->psp, DAT_PSP_FIELD_ALL, &psp));
}

static DAT_LMR_TRIPLET half(struct objects *o, int which)
{
    DAT_LMR_TRIPLET triplet = {.lmr_context = o->local,
                               .virtual_address = (DAT_VADDR)(uintptr_t)(o->memory + which * LENGTH),
                               .segment_length = LENGTH};
    return triplet;
}

static void connect_to(struct objects *o, int ep, DAT_CONN_QUAL qual)
{
    CALL(dat_ep_connect(o->ep[ep], o->here, qual, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
}

static void established(struct objects *o)
{
    take(o, o->connections, DAT_CONNECTION_EVENT_ESTABLISHED);
    take(o, o->connections, DAT_CONNECTION_EVENT_ESTABLISHED);
}

static void took(struct objects *o, DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number)
{
    DAT_EVENT event = take(o, evd, number);
    EXPECT(event.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS);
}

static void took_transfer(struct objects *o)
{
    took(o, o->transfers, DAT_DTO_COMPLETION_EVENT);
}

static void took_message(struct objects *o)
{
    took_transfer(o);
    took(o, o->receives, DAT_DTO_COMPLETION_EVENT);
}

/* Binds an RMR on an EP, or unbinds it for an empty segment. Returns the context. */
static DAT_RMR_CONTEXT bound(struct objects *o, DAT_RMR_HANDLE rmr, DAT_EP_HANDLE ep, DAT_LMR_TRIPLET segment)
{
    DAT_MEM_PRIV_FLAGS remote = segment.segment_length > 0 ? DAT_MEM_PRIV_REMOTE_WRITE_FLAG : DAT_MEM_PRIV_NONE_FLAG;
    DAT_RMR_COOKIE cookie = {.as_64 = 2};
    DAT_RMR_CONTEXT context;
#if DAT_VERSION_MAJOR >= 2
    CALL(dat_rmr_bind(rmr, o->lmr, &segment, remote, DAT_VA_TYPE_VA, ep, cookie, DAT_COMPLETION_DEFAULT_FLAG,
                      &context));
#else
    CALL(dat_rmr_bind(rmr, &segment, remote, ep, cookie, DAT_COMPLETION_DEFAULT_FLAG, &context));
#endif
    take(o, o->transfers, DAT_RMR_BIND_COMPLETION_EVENT);
    return context;
}

#if DAT_VERSION_MAJOR >= 2
#include "cancel_2_0.h"
#endif

/* Connects EP 0 to EP 1 by a handoff to another listener. Then sends messages, writes, reads and binds. */
static void first_connection(struct objects *o)
{
    DAT_DTO_COOKIE cookie = {.as_64 = 1};
    DAT_LMR_TRIPLET from = half(o, 0), into = half(o, 1), nothing = {0};
    DAT_RMR_TRIPLET there = {.rmr_context = o->remote, .target_address = into.virtual_address, .segment_length = LENGTH};
    CALL(dat_ep_post_recv(o->ep[1], 1, &into, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    connect_to(o, 0, QUAL);
    DAT_RETURN ret = dat_cr_handoff(take_request(o), o->other_qual);
    check("dat_cr_handoff", ret, DAT_SUCCESS);
    CALL(dat_cr_accept(take_request(o), o->ep[1], 0, NULL));
    established(o);
    for (int n = 0; n < 50; n++) {
        CALL(dat_ep_post_send(o->ep[0], 1, &from, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        took_message(o);
        CALL(dat_ep_post_recv(o->ep[1], 1, &into, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    }
    CALL(dat_ep_post_rdma_write(o->ep[0], 1, &from, cookie, &there, DAT_COMPLETION_DEFAULT_FLAG));
    took_transfer(o);
    CALL(dat_ep_post_rdma_read(o->ep[0], 1, &from, cookie, &there, DAT_COMPLETION_DEFAULT_FLAG));
    took_transfer(o);
    if (has_rmrs) {
        bound(o, o->rmr, o->ep[0], into);
        bound(o, o->rmr, o->ep[0], nothing);
    }
}

/* Connects EP 2 to the last EP, which has a separate listener and, if supported, a shared receive queue, and sends a
 * message. Before that, an attempt of EP 2 is rejected, and an attempt of EP 3 finds no listener. */
static void second_connection(struct objects *o)
{
    DAT_DTO_COOKIE cookie = {.as_64 = 3};
    DAT_LMR_TRIPLET from = half(o, 0), into = half(o, 1);
    DAT_RSP_HANDLE rsp;
    DAT_RSP_PARAM param;
    DAT_CR_HANDLE cr;
    CALL(dat_ep_dup_connect(o->ep[2], o->ep[0], EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT));
    cr = take_request(o);
    CALL(dat_cr_reject(cr));
    take(o, o->connections, DAT_CONNECTION_EVENT_PEER_REJECTED);
    CALL(dat_ep_reset(o->ep[2]));
    connect_to(o, 3, QUAL_WITHOUT_LISTENER);
    take(o, o->connections, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
    CALL(dat_rsp_create(ia, QUAL_OF_ONE, o->ep[EPS - 1], o->requests, &rsp));
    CALL(dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, &param));
    if (has_srqs)
        CALL(dat_srq_post_recv(o->srq, 1, &into, cookie));
    else
        CALL(dat_ep_post_recv(o->ep[EPS - 1], 1, &into, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    connect_to(o, 2, QUAL_OF_ONE);
    cr = take_request(o);
    CALL(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
    established(o);
    CALL(dat_ep_post_send(o->ep[2], 1, &from, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    took_message(o);
    CALL(dat_rsp_free(rsp));
}

static void end_all(struct objects *o)
{
    DAT_EVENT event;
    CALL(dat_ep_disconnect(o->ep[0], DAT_CLOSE_ABRUPT_FLAG));
    CALL(dat_ep_disconnect(o->ep[2], DAT_CLOSE_GRACEFUL_FLAG));
    for (int n = 0; n < 4; n++)
        take(o, o->connections, DAT_CONNECTION_EVENT_DISCONNECTED);
    while (dat_evd_dequeue(o->receives, &event) == DAT_SUCCESS)
        ;
    CALL(dat_ep_reset(o->ep[1]));
    REFUSED(dat_ep_post_send(o->pz, 0, NULL, (DAT_DTO_COOKIE){.as_64 = 4}, 0), DAT_INVALID_HANDLE);
    for (int n = 0; n < EPS; n++)
        CALL(dat_ep_free(o->ep[n]));
    CALL(dat_psp_free(o->psp));
    CALL(dat_psp_free(o->other_psp));
    if (has_srqs)
        CALL(dat_srq_free(o->srq));
    if (has_rmrs)
        CALL(dat_rmr_free(o->rmr));
    CALL(dat_lmr_free(o->lmr));
    CALL(dat_evd_free(o->software));
    CALL(dat_evd_free(o->transfers));
    CALL(dat_evd_free(o->receives));
    CALL(dat_evd_free(o->connections));
    CALL(dat_evd_free(o->requests));
    CALL(dat_cno_free(o->cno));
    CALL(dat_pz_free(o->pz));
    DAT_IA_HANDLE closing = ia;
    ia = DAT_HANDLE_NULL;
    CALL(dat_ia_close(closing, DAT_CLOSE_GRACEFUL_FLAG));
}

#endif
