/*
 * raw_verbs.c - the transfers of instructions.c without DAT, by the verbs calls of perftest's loops, to compare the
 * instruction counts. Both queue pairs are in one thread, on one device.
 *
 *   raw_verbs OPERATION BYTES COUNT
 *
 *   send          COUNT sends of BYTES bytes in batches; completions are polled 16 at a time
 *   write, read   COUNT transfers of BYTES bytes one by one; completions are polled 16 at a time
 *   alone         each send after the completions of the previous one, which are polled one by one on two queues
 *   empty         COUNT polls of an empty queue
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

enum { DEPTH = 64, BATCH = 32, AREA = 256 << 10, POLL = 16, INLINE = 200 };

#define EXPECT(condition)                                                                      \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: condition is false: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

/* Defines a function in which callgrind counts: from its entry to its return. The barrier prevents a tail call. */
#define COUNTED(name, call, ...)                          \
    __attribute__((noinline)) static int name __VA_ARGS__ \
    {                                                     \
        int code = call;                                  \
        __asm__ volatile("" ::: "memory");                \
        return code;                                      \
    }
COUNTED(counted_send, ibv_post_send(qp, wr, bad), (struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad))
COUNTED(counted_write, ibv_post_send(qp, wr, bad), (struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad))
COUNTED(counted_read, ibv_post_send(qp, wr, bad), (struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad))
COUNTED(counted_recv, ibv_post_recv(qp, wr, bad), (struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad))
COUNTED(counted_dequeue, ibv_poll_cq(cq, space, out), (struct ibv_cq *cq, int space, struct ibv_wc *out))

static unsigned char memory[2 * AREA];

/* Dequeues `count` completions, up to `space` per poll. */
static void take(struct ibv_cq *cq, long count, int space)
{
    struct ibv_wc out[POLL];
    while (count > 0) {
        int found = counted_dequeue(cq, space, out);
        EXPECT(found > 0 && found <= count);
        for (int n = 0; n < found; n++)
            EXPECT(out[n].status == IBV_WC_SUCCESS);
        count -= found;
    }
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .dest_qp_num = peer->qp_num };
    EXPECT(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTR;
    EXPECT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN) == 0);
    attr.qp_state = IBV_QPS_RTS;
    EXPECT(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

int main(int argc, char **argv)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_cq *recv_cq, *send_cq;
    struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
    struct ibv_qp *from, *to;
    struct ibv_wc wc;
    const char *operation;
    long bytes, count, batch, empty = 0;
    int is_rdma, is_alone, is_send;

    EXPECT(argc == 4 && (bytes = atol(argv[2])) >= 8 && bytes <= AREA && (count = atol(argv[3])) >= 0);
    operation = argv[1];
    is_rdma = !strcmp(operation, "write") || !strcmp(operation, "read");
    is_alone = !strcmp(operation, "alone");
    is_send = is_alone || !strcmp(operation, "send");
    EXPECT(is_rdma || is_send || !strcmp(operation, "empty"));
    batch = is_rdma || is_alone ? 1 : AREA / bytes < BATCH ? AREA / bytes : BATCH;

    EXPECT(list != NULL && list[0] != NULL && (context = ibv_open_device(list[0])) != NULL);
    EXPECT((pd = ibv_alloc_pd(context)) != NULL);
    EXPECT((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)));
    EXPECT((recv_cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)) != NULL);
    EXPECT((send_cq = is_alone ? ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0) : recv_cq) != NULL);
    attr.send_cq = send_cq;
    attr.recv_cq = recv_cq;
    attr.cap = (struct ibv_qp_cap){ DEPTH, DEPTH, 1, 1, INLINE };
    EXPECT((from = ibv_create_qp(pd, &attr)) != NULL && (to = ibv_create_qp(pd, &attr)) != NULL);
    connect_to(from, to);
    connect_to(to, from);

    if (!strcmp(operation, "empty")) {
        empty = count;
        count = 0;
    }
    for (long done = 0; done < count; done += batch) {
        for (long i = 0; i < batch; i++) {
            struct ibv_sge source = { (uintptr_t)(memory + i * bytes), (uint32_t)bytes, mr->lkey };
            struct ibv_sge sink = { source.addr + AREA, (uint32_t)bytes, mr->lkey };
            struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &sink, .num_sge = 1 }, *bad_receive;
            struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &source, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
            if (bytes <= INLINE)
                wr.send_flags |= IBV_SEND_INLINE;
            memset(memory + i * bytes, (int)(done + i), bytes);
            wr.wr.rdma.rkey = mr->rkey;
            if (is_send) {
                wr.opcode = IBV_WR_SEND;
                EXPECT(counted_recv(to, &receive, &bad_receive) == 0);
                EXPECT(counted_send(from, &wr, &bad) == 0);
            } else if (!strcmp(operation, "write")) {
                wr.opcode = IBV_WR_RDMA_WRITE;
                wr.wr.rdma.remote_addr = sink.addr;
                EXPECT(counted_write(from, &wr, &bad) == 0);
            } else {
                wr.opcode = IBV_WR_RDMA_READ;
                wr.sg_list = &sink;
                wr.send_flags = IBV_SEND_SIGNALED;
                wr.wr.rdma.remote_addr = source.addr;
                EXPECT(counted_read(from, &wr, &bad) == 0);
            }
        }
        if (is_alone) {
            take(recv_cq, 1, 1);
            take(send_cq, 1, 1);
        } else {
            take(recv_cq, is_send ? 2 * batch : batch, POLL);
        }
        EXPECT(!memcmp(memory, memory + AREA, batch * bytes));
    }
    for (long i = 0; i < empty; i++)
        EXPECT(counted_dequeue(recv_cq, 1, &wc) == 0);
    printf("raw_verbs: OK\n");
    return 0;
}
