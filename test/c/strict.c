/*
 * Preloaded before libdat: enforces rules of other implementations of uDAPL.
 *
 * - Freeing an EP in any state but UNCONNECTED ends the process if completions of its posts were not dequeued yet;
 *   suppressed completions count too. Some providers keep a pointer to the EP with each queued completion and follow it
 *   after dat_ep_free. A portable program disconnects, dequeues all flushed completions, and then frees the EP.
 * - DAT_QUEUE_EMPTY carries the class bit of errors, as some libraries set it. A portable program compares
 *   DAT_GET_TYPE.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <dat/udat.h>

enum { SLOTS = 4096 };

/* EPs by handle, each with its number of posted work requests whose completions were not dequeued. Handles are reused,
 * so dat_ep_free resets the count to 0. */
static struct slot {
    DAT_EP_HANDLE ep;
    long outstanding;
} slots[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static long add(DAT_EP_HANDLE ep, long difference)
{
    long outstanding = 0;
    pthread_mutex_lock(&lock);
    struct slot *at = slots;
    while (at < slots + SLOTS && at->ep != ep && at->ep != DAT_HANDLE_NULL)
        at++;
    if (at == slots + SLOTS) {
        fprintf(stderr, "strict: the program has more EPs than the limit of %d\n", SLOTS);
        _Exit(99);
    }
    at->ep = ep;
    outstanding = at->outstanding += difference;
    pthread_mutex_unlock(&lock);
    return outstanding;
}

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) {
        fprintf(stderr, "strict: no loaded library exports %s\n", name);
        _Exit(99);
    }
    return found;
}

#define REAL(name) ((__typeof__(&name))next(#name))

static DAT_RETURN posted(DAT_EP_HANDLE ep, DAT_RETURN code)
{
    if (code != DAT_SUCCESS)
        add(ep, -1);
    return code;
}

DAT_RETURN dat_ep_post_send(DAT_EP_HANDLE ep, DAT_COUNT count, DAT_LMR_TRIPLET *iov, DAT_DTO_COOKIE cookie,
                            DAT_COMPLETION_FLAGS flags)
{
    add(ep, 1);
    return posted(ep, REAL(dat_ep_post_send)(ep, count, iov, cookie, flags));
}

DAT_RETURN dat_ep_post_recv(DAT_EP_HANDLE ep, DAT_COUNT count, DAT_LMR_TRIPLET *iov, DAT_DTO_COOKIE cookie,
                            DAT_COMPLETION_FLAGS flags)
{
    add(ep, 1);
    return posted(ep, REAL(dat_ep_post_recv)(ep, count, iov, cookie, flags));
}

DAT_RETURN dat_ep_post_rdma_read(DAT_EP_HANDLE ep, DAT_COUNT count, DAT_LMR_TRIPLET *iov, DAT_DTO_COOKIE cookie,
                                 const DAT_RMR_TRIPLET *remote, DAT_COMPLETION_FLAGS flags)
{
    add(ep, 1);
    return posted(ep, REAL(dat_ep_post_rdma_read)(ep, count, iov, cookie, remote, flags));
}

DAT_RETURN dat_ep_post_rdma_write(DAT_EP_HANDLE ep, DAT_COUNT count, DAT_LMR_TRIPLET *iov, DAT_DTO_COOKIE cookie,
                                  const DAT_RMR_TRIPLET *remote, DAT_COMPLETION_FLAGS flags)
{
    add(ep, 1);
    return posted(ep, REAL(dat_ep_post_rdma_write)(ep, count, iov, cookie, remote, flags));
}

static DAT_RETURN taken(const DAT_EVENT *event, DAT_RETURN code)
{
    if (code == DAT_SUCCESS && event->event_number == DAT_DTO_COMPLETION_EVENT)
        add(event->event_data.dto_completion_event_data.ep_handle, -1);
    return code == DAT_QUEUE_EMPTY ? DAT_CLASS_ERROR | DAT_QUEUE_EMPTY : code;
}

DAT_RETURN dat_evd_dequeue(DAT_EVD_HANDLE evd, DAT_EVENT *event)
{
    return taken(event, REAL(dat_evd_dequeue)(evd, event));
}

DAT_RETURN dat_evd_wait(DAT_EVD_HANDLE evd, DAT_TIMEOUT timeout, DAT_COUNT threshold, DAT_EVENT *event, DAT_COUNT *more)
{
    return taken(event, REAL(dat_evd_wait)(evd, timeout, threshold, event, more));
}

DAT_RETURN dat_cno_wait(DAT_CNO_HANDLE cno, DAT_TIMEOUT timeout, DAT_EVD_HANDLE *evd)
{
    DAT_RETURN code = REAL(dat_cno_wait)(cno, timeout, evd);
    return code == DAT_QUEUE_EMPTY ? DAT_CLASS_ERROR | DAT_QUEUE_EMPTY : code;
}

DAT_RETURN dat_ep_free(DAT_EP_HANDLE ep)
{
    DAT_EP_STATE state;
    DAT_RETURN code = dat_ep_get_status(ep, &state, NULL, NULL);
    long outstanding = code == DAT_SUCCESS ? add(ep, 0) : 0;
    if (outstanding != 0 && state != DAT_EP_STATE_UNCONNECTED) {
        fprintf(stderr, "strict: an EP in state %d is freed, and completions of %ld posts were not dequeued\n",
                (int)state, outstanding);
        _Exit(99);
    }
    if (code == DAT_SUCCESS)
        add(ep, -outstanding);
    return REAL(dat_ep_free)(ep);
}
