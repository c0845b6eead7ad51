/*
 * fake_verbs: a libibverbs.so.1 with one device, whose reliable connections are between queue pairs of the same
 * process.
 *
 * For tests on machines without RDMA: programs and providers call it as they call rdma-core. The calls of the data
 * path go through the table of the context, like the inline functions of verbs.h. A post copies the data and
 * completes immediately, unless the peer is not connected yet or has no receive for a send; then the request waits
 * (without an RNR limit). Keys, ranges and rights are checked, and errors end a queue pair as on a device. Not
 * modelled: timeouts, memory windows, shared receive queues, atomic operations, messages with immediate data. The
 * other calls are in fake_objects.c; fake_host.c shows the device in sysfs.
 *
 * The variable FAKE_KERNEL_POSTS selects the behaviour of a software device: its vendor id, and calls that are
 * cancellation points of threads.
 *
 * One lock protects all objects. It is also held while data is copied.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fake_verbs.h"

static atomic_flag lock = ATOMIC_FLAG_INIT;
struct qp *fake_qps[QPS];
struct region *fake_regions[REGIONS];

void fake_lock(void)
{
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
        sched_yield();
}

void fake_unlock(void)
{
    atomic_flag_clear_explicit(&lock, memory_order_release);
}

/* ---- Completions ------------------------------------------------------------------------------------------------ */

static void notify(struct cq *cq)
{
    struct channel *channel = (struct channel *)cq->ibv.channel;
    uint64_t one = 1;
    cq->armed = DISARMED;
    if (channel == NULL || cq->has_event)
        return;
    cq->has_event = 1;
    cq->next = NULL;
    *(channel->first ? &channel->last->next : &channel->first) = cq;
    channel->last = cq;
    /* Not `write`, which is a cancellation point: a device notifies without a call of the thread that posts. */
    syscall(SYS_write, channel->ibv.fd, &one, sizeof one);
}

static void complete(struct ibv_cq *of, const struct qp *qp, uint64_t wr_id, enum ibv_wc_status status,
                     enum ibv_wc_opcode opcode, uint32_t length, int solicited)
{
    struct cq *cq = (struct cq *)of;
    struct ibv_wc *wc = &cq->ring[cq->tail & cq->mask];
    if (cq->tail - cq->head > cq->mask) {
        fprintf(stderr, "fake_verbs: a completion queue of %u entries overflows\n", cq->mask + 1);
        abort();
    }
    wc->wr_id = wr_id;
    wc->status = status;
    wc->opcode = opcode;
    wc->vendor_err = 0;
    wc->byte_len = length;
    wc->qp_num = qp->ibv.qp_num;
    wc->wc_flags = 0;
    cq->tail++;
    if (cq->armed == ARMED || (cq->armed == SOLICITED && (solicited || status != IBV_WC_SUCCESS)))
        notify(cq);
}

static int poll_cq(struct ibv_cq *of, int space, struct ibv_wc *out)
{
    struct cq *cq = (struct cq *)of;
    int count = 0;
    fake_lock();
    while (count < space && cq->head != cq->tail)
        out[count++] = cq->ring[cq->head++ & cq->mask];
    fake_unlock();
    return count;
}

static int req_notify_cq(struct ibv_cq *of, int solicited_only)
{
    struct cq *cq = (struct cq *)of;
    fake_lock();
    if (cq->armed != ARMED)
        cq->armed = solicited_only ? SOLICITED : ARMED;
    fake_unlock();
    return 0;
}

/* Finds registered memory. Returns null unless a registration with this key, in the queue pair's domain, covers the
 * range and has the rights. */
static char *find(const struct qp *qp, uint32_t key, uint64_t address, uint64_t length, int access)
{
    struct region *region = fake_regions[(key >> 8) % REGIONS];
    if (region == NULL || region->ibv.lkey != key || region->ibv.pd != qp->ibv.pd || (region->access & access) != access)
        return NULL;
    if (address < (uintptr_t)region->ibv.addr || length > region->ibv.length ||
        address - (uintptr_t)region->ibv.addr > region->ibv.length - length)
        return NULL;
    return (char *)(uintptr_t)address;
}

static int are_valid(const struct qp *qp, const struct ibv_sge *segments, int count, int access)
{
    for (int i = 0; i < count; i++)
        if (find(qp, segments[i].lkey, segments[i].addr, segments[i].length, access) == NULL)
            return 0;
    return 1;
}

static uint64_t length_of(const struct ibv_sge *segments, int count)
{
    uint64_t length = 0;
    for (int i = 0; i < count; i++)
        length += segments[i].length;
    return length;
}

/* Same as memcpy. A call of memcpy would be counted as the C library's instructions, not as this library's. */
static void copy_bytes(char *to, const char *from, uint64_t length)
{
    for (; length >= sizeof(uint64_t); length -= sizeof(uint64_t), to += sizeof(uint64_t), from += sizeof(uint64_t))
        memcpy(to, from, sizeof(uint64_t));
    while (length-- > 0)
        *to++ = *from++;
}

/* Copies from one list of segments to another; the second list is long enough. */
static void copy(const struct ibv_sge *from, int count, const struct ibv_sge *to)
{
    uint64_t at = 0;
    for (int i = 0; i < count; i++)
        for (uint64_t done = 0, part; done < from[i].length; done += part, at += part) {
            while (at == to->length)
                to++, at = 0;
            part = from[i].length - done < to->length - at ? from[i].length - done : to->length - at;
            copy_bytes((char *)(uintptr_t)to->addr + at, (const char *)(uintptr_t)from[i].addr + done, part);
        }
}

/* ---- Queue pairs ------------------------------------------------------------------------------------------------ */

static enum ibv_wc_opcode opcode_of(enum ibv_wr_opcode opcode)
{
    return opcode == IBV_WR_SEND ? IBV_WC_SEND : opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE;
}

void fake_fail(struct qp *qp)
{
    qp->ibv.state = IBV_QPS_ERR;
    for (; qp->request_head != qp->request_tail; qp->request_head++) {
        const struct ibv_send_wr *wr = &qp->requests[qp->request_head & qp->request_mask].wr;
        complete(qp->ibv.send_cq, qp, wr->wr_id, IBV_WC_WR_FLUSH_ERR, opcode_of(wr->opcode), 0, 0);
    }
    for (; qp->receive_head != qp->receive_tail; qp->receive_head++)
        complete(qp->ibv.recv_cq, qp, qp->receives[qp->receive_head & qp->receive_mask].wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV,
                 0, 0);
}

/* Returns the peer, or null if packets of the queue pair cannot reach it. */
struct qp *fake_peer_of(const struct qp *qp)
{
    struct qp *peer = fake_qps[qp->peer_number % QPS];
    if (peer == NULL || peer->ibv.qp_num != qp->peer_number || peer->peer_number != qp->ibv.qp_num ||
        (peer->ibv.state != IBV_QPS_RTR && peer->ibv.state != IBV_QPS_RTS))
        return NULL;
    return peer;
}

/* Copies a send into the peer's next receive. Returns the status of the send. */
static enum ibv_wc_status deliver(struct qp *peer, const struct ibv_sge *from, int count, uint64_t length, int solicited)
{
    struct receive *receive = &peer->receives[peer->receive_head++ & peer->receive_mask];
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    if (!are_valid(peer, receive->segments, receive->count, IBV_ACCESS_LOCAL_WRITE))
        status = IBV_WC_LOC_PROT_ERR;
    else if (length > length_of(receive->segments, receive->count))
        status = IBV_WC_LOC_LEN_ERR;
    else
        copy(from, count, receive->segments);
    complete(peer->ibv.recv_cq, peer, receive->wr_id, status, IBV_WC_RECV, (uint32_t)length, solicited);
    if (status == IBV_WC_SUCCESS)
        return status;
    fake_fail(peer);
    return status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR;
}

/* Executes an RDMA operation. Returns its status. */
static enum ibv_wc_status transfer(const struct qp *peer, const struct ibv_send_wr *wr, uint64_t length)
{
    int is_write = wr->opcode != IBV_WR_RDMA_READ;
    struct ibv_sge remote = { .addr = wr->wr.rdma.remote_addr, .length = (uint32_t)length };
    if (length > 0 && !find(peer, wr->wr.rdma.rkey, remote.addr, length, is_write ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ))
        return IBV_WC_REM_ACCESS_ERR;
    if (length > 0 && is_write)
        copy(wr->sg_list, wr->num_sge, &remote);
    else if (length > 0)
        copy(&remote, 1, wr->sg_list);
    return IBV_WC_SUCCESS;
}

/* Completes the peer's next receive with the immediate data of an RDMA write. */
static void deliver_immediate(struct qp *peer, const struct ibv_send_wr *wr, uint64_t length)
{
    const struct receive *receive = &peer->receives[peer->receive_head++ & peer->receive_mask];
    struct cq *cq = (struct cq *)peer->ibv.recv_cq;
    struct ibv_wc *wc = &cq->ring[cq->tail & cq->mask];
    complete(peer->ibv.recv_cq, peer, receive->wr_id, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, (uint32_t)length,
             (wr->send_flags & IBV_SEND_SOLICITED) != 0);
    wc->wc_flags = IBV_WC_WITH_IMM;
    wc->imm_data = wr->imm_data;
}

static int needs_receive(const struct ibv_send_wr *wr)
{
    return wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* Executes a request. Returns 0 if the request has to wait. */
static int execute(struct qp *qp, const struct ibv_send_wr *wr)
{
    struct qp *peer = fake_peer_of(qp);
    uint64_t length = length_of(wr->sg_list, wr->num_sge);
    enum ibv_wc_status status;
    int rights = wr->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
    if (!(wr->send_flags & IBV_SEND_INLINE) && !are_valid(qp, wr->sg_list, wr->num_sge, rights))
        status = IBV_WC_LOC_PROT_ERR;
    else if (peer == NULL || (needs_receive(wr) && peer->receive_head == peer->receive_tail))
        return 0;
    else if (wr->opcode == IBV_WR_SEND)
        status = deliver(peer, wr->sg_list, wr->num_sge, length, (wr->send_flags & IBV_SEND_SOLICITED) != 0);
    else
        status = transfer(peer, wr, length);
    if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && status == IBV_WC_SUCCESS)
        deliver_immediate(peer, wr, length);
    if (status != IBV_WC_SUCCESS || wr->send_flags & IBV_SEND_SIGNALED)
        complete(qp->ibv.send_cq, qp, wr->wr_id, status, opcode_of(wr->opcode), (uint32_t)length, 0);
    if (status == IBV_WC_REM_ACCESS_ERR)
        fake_fail(peer);
    if (status != IBV_WC_SUCCESS)
        fake_fail(qp);
    return 1;
}

void fake_execute_waiting(struct qp *qp)
{
    while (qp->ibv.state == IBV_QPS_RTS && qp->request_head != qp->request_tail) {
        struct request request = qp->requests[qp->request_head & qp->request_mask];
        request.wr.sg_list = request.segments;
        if (request.wr.send_flags & IBV_SEND_INLINE)
            request.segments[0].addr = (uintptr_t)request.data;
        /* A request is removed before it is executed: if it fails, the rest of the queue is flushed, and the failed
         * request must not be flushed too. */
        qp->request_head++;
        if (!execute(qp, &request.wr)) {
            qp->request_head--;
            return;
        }
    }
}

static void queue(struct qp *qp, const struct ibv_send_wr *wr)
{
    struct request *request = &qp->requests[qp->request_tail++ & qp->request_mask];
    struct ibv_sge all = { .addr = (uintptr_t)request->data, .length = INLINE };
    request->wr = *wr;
    memcpy(request->segments, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
    if (wr->send_flags & IBV_SEND_INLINE) {
        copy(wr->sg_list, wr->num_sge, &all);
        request->segments[0].length = (uint32_t)length_of(wr->sg_list, wr->num_sge);
        request->wr.num_sge = 1;
    }
}

static int post_one(struct qp *qp, const struct ibv_send_wr *wr)
{
    int is_known = wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_READ ||
                   wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (!is_known || wr->num_sge < 0 || wr->num_sge > SEGMENTS ||
        (wr->send_flags & IBV_SEND_INLINE && length_of(wr->sg_list, wr->num_sge) > INLINE))
        return EINVAL;
    if (qp->ibv.state == IBV_QPS_ERR)
        complete(qp->ibv.send_cq, qp, wr->wr_id, IBV_WC_WR_FLUSH_ERR, opcode_of(wr->opcode), 0, 0);
    else if (qp->ibv.state != IBV_QPS_RTS)
        return EINVAL;
    else if (qp->request_tail - qp->request_head > qp->request_mask)
        return ENOMEM;
    else if (qp->request_head != qp->request_tail || !execute(qp, wr))
        queue(qp, wr);
    return 0;
}

static int post_send(struct ibv_qp *of, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    int code = 0;
    fake_lock();
    for (; wr != NULL && code == 0; wr = wr->next)
        if ((code = post_one((struct qp *)of, wr)) != 0)
            *bad = wr;
    fake_unlock();
    return code;
}

static int post_one_receive(struct qp *qp, const struct ibv_recv_wr *wr)
{
    struct receive *receive = &qp->receives[qp->receive_tail & qp->receive_mask];
    struct qp *peer;
    if (wr->num_sge < 0 || wr->num_sge > SEGMENTS || qp->ibv.state == IBV_QPS_RESET)
        return EINVAL;
    if (qp->ibv.state == IBV_QPS_ERR) {
        complete(qp->ibv.recv_cq, qp, wr->wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0, 0);
        return 0;
    }
    if (qp->receive_tail - qp->receive_head > qp->receive_mask)
        return ENOMEM;
    receive->wr_id = wr->wr_id;
    receive->count = wr->num_sge;
    for (int i = 0; i < wr->num_sge; i++)
        receive->segments[i] = wr->sg_list[i];
    qp->receive_tail++;
    peer = fake_peer_of(qp);
    if (peer != NULL && peer->request_head != peer->request_tail)
        fake_execute_waiting(peer);
    return 0;
}

static int post_recv(struct ibv_qp *of, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    int code = 0;
    fake_lock();
    for (; wr != NULL && code == 0; wr = wr->next)
        if ((code = post_one_receive((struct qp *)of, wr)) != 0)
            *bad = wr;
    fake_unlock();
    return code;
}

/* Drivers of software devices enter the kernel by `write`, which is a cancellation point. */
static int req_notify_cq_by_kernel(struct ibv_cq *cq, int solicited_only)
{
    pthread_testcancel();
    return req_notify_cq(cq, solicited_only);
}

static int post_send_by_kernel(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    pthread_testcancel();
    return post_send(qp, wr, bad);
}

int fake_posts_by_kernel(void)
{
    return getenv("FAKE_KERNEL_POSTS") != NULL;
}

void fake_set_ops(struct ibv_context_ops *ops)
{
    ops->poll_cq = poll_cq;
    ops->req_notify_cq = fake_posts_by_kernel() ? req_notify_cq_by_kernel : req_notify_cq;
    ops->post_send = fake_posts_by_kernel() ? post_send_by_kernel : post_send;
    ops->post_recv = post_recv;
}
