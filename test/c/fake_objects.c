/*
 * fake_objects: the verbs calls of fake_verbs for its device and objects: queries, creation and destruction, states of
 * queue pairs, events. Calls for shared receive queues fail with EOPNOTSUPP.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fake_verbs.h"

#undef ibv_reg_mr
#undef ibv_query_port

/* The vendor id is that of soft-RoCE. */
enum { DEPTH = 16384, CQ_DEPTH = 65536, READS = 16, LID = 1, SOFTWARE_VENDOR = 0xffffff };

static struct ibv_device device = { .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "fake0",
                                    .dev_name = "uverbs0" };

static unsigned power_of_two(unsigned least)
{
    unsigned size = 1;
    while (size < least)
        size *= 2;
    return size;
}

/* ---- Queue pairs ------------------------------------------------------------------------------------------------ */

static void free_qp(struct qp *qp)
{
    free(qp->requests);
    free(qp->receives);
    free(qp);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    unsigned requests = power_of_two(attr->cap.max_send_wr), receives = power_of_two(attr->cap.max_recv_wr);
    struct qp *qp = calloc(1, sizeof *qp);
    int number = 1;
    errno = EINVAL;
    if (attr->qp_type != IBV_QPT_RC || attr->srq != NULL || requests > DEPTH || receives > DEPTH ||
        attr->cap.max_send_sge > SEGMENTS || attr->cap.max_recv_sge > SEGMENTS || attr->cap.max_inline_data > INLINE) {
        free(qp);
        return NULL;
    }
    qp->ibv = (struct ibv_qp){ .context = pd->context, .qp_context = attr->qp_context, .pd = pd, .send_cq = attr->send_cq,
                               .recv_cq = attr->recv_cq, .qp_type = attr->qp_type, .state = IBV_QPS_RESET };
    qp->requests = calloc(requests, sizeof *qp->requests);
    qp->receives = calloc(receives, sizeof *qp->receives);
    qp->request_mask = requests - 1;
    qp->receive_mask = receives - 1;
    fake_lock();
    while (number < QPS && fake_qps[number] != NULL)
        number++;
    if (number < QPS) {
        fake_qps[number] = qp;
        qp->ibv.qp_num = (uint32_t)number;
    }
    fake_unlock();
    if (number < QPS)
        return &qp->ibv;
    free_qp(qp);
    errno = ENOMEM;
    return NULL;
}

int ibv_modify_qp(struct ibv_qp *of, struct ibv_qp_attr *attr, int mask)
{
    struct qp *qp = (struct qp *)of, *peer;
    if (!(mask & IBV_QP_STATE))
        return EINVAL;
    fake_lock();
    if (mask & IBV_QP_DEST_QPN)
        qp->peer_number = attr->dest_qp_num;
    if (attr->qp_state == IBV_QPS_ERR) {
        fake_fail(qp);
    } else if (attr->qp_state == IBV_QPS_RESET) {
        qp->receive_head = qp->receive_tail;
        qp->request_head = qp->request_tail;
        qp->peer_number = 0;
    }
    of->state = attr->qp_state;
    if (of->state == IBV_QPS_RTR && (peer = fake_peer_of(qp)) != NULL)
        fake_execute_waiting(peer);
    fake_unlock();
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *of)
{
    struct qp *qp = (struct qp *)of;
    fake_lock();
    fake_qps[of->qp_num] = NULL;
    fake_unlock();
    free_qp(qp);
    return 0;
}

/* ---- Completion queues and channels ----------------------------------------------------------------------------- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct channel *channel = calloc(1, sizeof *channel);
    channel->ibv.context = context;
    channel->ibv.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    return &channel->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    close(channel->fd);
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *cookie, struct ibv_comp_channel *channel, int vector)
{
    struct cq *cq;
    if (size < 1 || size > CQ_DEPTH || vector != 0) {
        errno = EINVAL;
        return NULL;
    }
    cq = calloc(1, sizeof *cq);
    cq->ibv = (struct ibv_cq){ .context = context, .channel = channel, .cq_context = cookie };
    cq->ibv.cqe = (int)power_of_two((unsigned)size);
    cq->mask = (unsigned)cq->ibv.cqe - 1;
    cq->ring = calloc((size_t)cq->ibv.cqe, sizeof *cq->ring);
    return &cq->ibv;
}

int ibv_resize_cq(struct ibv_cq *of, int size)
{
    struct cq *cq = (struct cq *)of;
    unsigned long_enough = power_of_two(size < 1 ? 1 : (unsigned)size), count = 0;
    struct ibv_wc *ring;
    if (size < 1 || size > CQ_DEPTH)
        return EINVAL;
    ring = calloc(long_enough, sizeof *ring);
    fake_lock();
    if (cq->tail - cq->head > long_enough) {
        fake_unlock();
        free(ring);
        return EINVAL;
    }
    while (cq->head != cq->tail)
        ring[count++] = cq->ring[cq->head++ & cq->mask];
    free(cq->ring);
    cq->ring = ring;
    cq->head = 0;
    cq->tail = count;
    cq->mask = long_enough - 1;
    of->cqe = (int)long_enough;
    fake_unlock();
    return 0;
}

int ibv_destroy_cq(struct ibv_cq *of)
{
    struct cq *cq = (struct cq *)of;
    struct channel *channel = (struct channel *)of->channel;
    struct cq **at, *before = NULL;
    fake_lock();
    /* An unread event is dropped. The descriptor may then be readable without an event, which readers must expect. */
    for (at = channel ? &channel->first : NULL; at != NULL && *at != NULL; before = *at, at = &(*at)->next)
        if (*at == cq) {
            *at = cq->next;
            if (channel->last == cq)
                channel->last = before;
            break;
        }
    fake_unlock();
    free(cq->ring);
    free(cq);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *of, struct ibv_cq **cq, void **cookie)
{
    struct channel *channel = (struct channel *)of;
    struct cq *first;
    eventfd_t one;
    if (eventfd_read(of->fd, &one) != 0)
        return -1;
    fake_lock();
    first = channel->first;
    if (first != NULL) {
        channel->first = first->next;
        first->has_event = 0;
    }
    fake_unlock();
    if (first == NULL) {
        errno = EAGAIN;
        return -1;
    }
    *cq = &first->ibv;
    *cookie = first->ibv.cq_context;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    (void)cq, (void)count;
}

/* ---- Domains and registrations ---------------------------------------------------------------------------------- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    static uint8_t variant;
    struct region *region = calloc(1, sizeof *region);
    uint32_t place = 1;
    fake_lock();
    while (place < REGIONS && fake_regions[place] != NULL)
        place++;
    if (place < REGIONS) {
        uint32_t key = place << 8 | variant++;
        region->ibv = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = address, .length = length, .lkey = key,
                                       .rkey = key };
        region->access = access;
        fake_regions[place] = region;
    }
    fake_unlock();
    if (place == REGIONS) {
        free(region);
        errno = ENOMEM;
        return NULL;
    }
    return &region->ibv;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    fake_lock();
    fake_regions[mr->lkey >> 8] = NULL;
    fake_unlock();
    free(mr);
    return 0;
}

/* ---- The device ------------------------------------------------------------------------------------------------- */

struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc(2, sizeof *list);
    list[0] = &device;
    if (count != NULL)
        *count = 1;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *of)
{
    return of->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *of)
{
    struct ibv_context *context = calloc(1, sizeof *context);
    context->device = of;
    fake_set_ops(&context->ops);
    context->cmd_fd = -1;
    context->async_fd = eventfd(0, EFD_CLOEXEC);
    context->num_comp_vectors = 1;
    return context;
}

int ibv_close_device(struct ibv_context *context)
{
    close(context->async_fd);
    free(context);
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    *attr = (struct ibv_device_attr){ .fw_ver = "1.0", .max_mr_size = UINT64_MAX, .page_size_cap = 4096, .max_qp = QPS - 1,
                                      .max_qp_wr = DEPTH, .max_sge = SEGMENTS, .max_cq = QPS, .max_cqe = CQ_DEPTH,
                                      .max_mr = REGIONS - 1, .max_pd = QPS, .max_qp_rd_atom = READS,
                                      .max_qp_init_rd_atom = READS, .atomic_cap = IBV_ATOMIC_NONE, .max_pkeys = 1,
                                      .phys_port_cnt = 1 };
    if (fake_posts_by_kernel())
        attr->vendor_id = SOFTWARE_VENDOR;
    return 0;
}

/* The declared type covers only the attributes up to `flags`, and the caller's record has that length. */
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out)
{
    struct ibv_port_attr *attr = (struct ibv_port_attr *)out;
    (void)context;
    if (port != 1)
        return EINVAL;
    attr->state = IBV_PORT_ACTIVE;
    attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
    attr->gid_tbl_len = attr->pkey_tbl_len = 1;
    attr->max_msg_sz = 1u << 30;
    attr->lid = attr->sm_lid = LID;
    attr->link_layer = IBV_LINK_LAYER_INFINIBAND;
    return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t space, uint32_t flags, size_t size)
{
    static const uint8_t gid[16] = { 0xfe, 0x80, [15] = 1 };
    (void)context, (void)flags;
    if (space == 0 || size != sizeof *entries)
        return -EINVAL;
    memset(entries, 0, sizeof *entries);
    memcpy(entries->gid.raw, gid, sizeof gid);
    entries->port_num = 1;
    return 1;
}

/* There are no asynchronous events: the descriptor is never readable. */
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    (void)context, (void)event;
    errno = EAGAIN;
    return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

/* ---- Shared receive queues: not supported ----------------------------------------------------------------------- */

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    (void)pd, (void)attr;
    errno = EOPNOTSUPP;
    return NULL;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
    (void)srq, (void)attr, (void)mask;
    return EOPNOTSUPP;
}

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
    (void)srq, (void)attr;
    return EOPNOTSUPP;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
    (void)srq;
    return EOPNOTSUPP;
}
