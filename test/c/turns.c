/*
 * turns: preloaded, lets two polling programs share one processor: a program calls sched_yield after an unsuccessful
 * poll.
 *
 * On a guest with one processor, each of two programs that poll for the other's messages would otherwise waste a time
 * slice. Polls of a completion queue go through a table in the device's context. This library replaces that entry, so
 * each program executes the same few additional instructions. TURNS=after also yields after a completion, for programs
 * that then poll memory. Run the programs in the scheduling class of chrt -r, in which sched_yield runs the next
 * runnable program.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>

/* After MAX_POLLS unsuccessful polls in a row, sleep: the peer may wait for a process of another scheduling class. */
enum { MAX_POLLS = 100, PAUSE_USEC = 200 };

static int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
static int gives_after;

static int poll_in_turns(struct ibv_cq *cq, int space, struct ibv_wc *out)
{
    static int in_vain;
    int count = poll_cq(cq, space, out);
    if (count != 0)
        in_vain = 0;
    else if (++in_vain > MAX_POLLS)
        usleep(PAUSE_USEC);
    if (count == 0 || gives_after)
        sched_yield();
    return count;
}

/* Replaces the poll entry when a completion queue is created: every program does that before it polls. */
static struct ibv_cq *create_cq(struct ibv_context *context, int size, void *cookie, struct ibv_comp_channel *channel,
                             int vector)
{
    struct ibv_cq *(*create)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
    /* libibverbs is already loaded. RTLD_NEXT does not find it if a provider loaded it with local scope. */
    void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
    /* POSIX defines this cast for function pointers from dlsym. */
    *(void **)&create = dlvsym(library, "ibv_create_cq", "IBVERBS_1.1");
    if (context->ops.poll_cq != poll_in_turns) {
        const char *turns = getenv("TURNS");
        gives_after = turns != NULL && turns[0] == 'a';
        poll_cq = context->ops.poll_cq;
        context->ops.poll_cq = poll_in_turns;
    }
    return create(context, size, cookie, channel, vector);
}

/* For programs that are linked with libibverbs. */
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *cookie, struct ibv_comp_channel *channel,
                             int vector)
{
    return create_cq(context, size, cookie, channel, vector);
}

/* For programs that open libibverbs and look the function up. The last call is a tail call, so that RTLD_NEXT refers
 * to the caller's library. */
void *dlsym(void *library, const char *name)
{
    static void *(*next)(void *, const char *);
    if (next == NULL)
        *(void **)&next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (next == NULL)
        *(void **)&next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return strcmp(name, "ibv_create_cq") == 0 ? (void *)(uintptr_t)create_cq : next(library, name);
}
