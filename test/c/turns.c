/*
 * turns: preloaded, lets two programs that poll share one processor: who finds nothing gives the processor away.
 *
 * On a guest with one processor, two programs that poll for each other's messages would each use up a time slice for
 * nothing. Polling goes through a table in the device's context, so one place serves every program, with the same few
 * instructions for each. TURNS=after gives the processor away after a completion as well, for who then polls memory.
 * Meant for the class of chrt -r, in which the processor then goes to the next in line.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <infiniband/verbs.h>

/* So often in a row nothing: the other is not there yet, and what it waits for may not be of that class. */
enum { PATIENCE = 100, PAUSE_USEC = 200 };

static int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
static int gives_after;

static int poll_in_turns(struct ibv_cq *cq, int room, struct ibv_wc *out)
{
    static int in_vain;
    int count = poll_cq(cq, room, out);
    if (count != 0)
        in_vain = 0;
    else if (++in_vain > PATIENCE)
        usleep(PAUSE_USEC);
    if (count == 0 || gives_after)
        sched_yield();
    return count;
}

/* A program has its completion queues before it polls. */
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *cookie, struct ibv_comp_channel *channel,
                             int vector)
{
    struct ibv_cq *(*create)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
    /* Loaded already, perhaps for a provider alone, where RTLD_NEXT does not see it. */
    void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
    /* As POSIX has it for functions: there is no other cast. */
    *(void **)&create = dlvsym(library, "ibv_create_cq", "IBVERBS_1.1");
    if (context->ops.poll_cq != poll_in_turns) {
        const char *turns = getenv("TURNS");
        gives_after = turns != NULL && turns[0] == 'a';
        poll_cq = context->ops.poll_cq;
        context->ops.poll_cq = poll_in_turns;
    }
    return create(context, size, cookie, channel, vector);
}
