/*
 * Uses every kind of object over a connection to itself, while calls fail by injection or by a resource limit.
 *
 *   walk IA again      the n-th call into the provider fails once; the affected DAT call is repeated and must succeed
 *   walk IA stop       the n-th call fails, and the adapter is closed abruptly with all its objects
 *   walk IA spoil      the n-th request fails after it was posted; then the adapter is closed abruptly
 *   walk IA files      the limit of descriptors (RLIMIT_NOFILE) begins with those in use, and grows by one per walk
 *   walk IA memory     the limit of address space (RLIMIT_AS) grows by 64 pages per walk
 *   walk IA threads    RLIMIT_AS grows by half a thread's stack per walk; the timer thread must be started again
 *
 * The first three need libdaplfaulty. A failed call changes no out parameter. It returns the code of the injected
 * failure or, with a limit, one of the types in `refused`. Afterwards everything is released: handles, the provider's
 * objects, memory, descriptors, threads, mappings, files.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { QUAL = 0x6a11, OTHER_QUAL, RESERVED_QUAL, LENGTH = 4096, MESSAGE = 64 };

#define UNTOUCHED ((DAT_HANDLE)(uintptr_t)0x5a5a5a50)

/* ---- Injected and reported faults -------------------------------------------------------------------------------- */

/* Same layout as in libdaplfaulty. */
struct usage {
    uint64_t handles;
    int64_t blocks, bytes;
    int64_t objects[10];
};

static int (*faulty_fail)(const char *op, uint64_t n);
static void (*faulty_spoil)(uint64_t n);
static const char *(*faulty_fired)(uint32_t *code);
static void (*faulty_usage)(struct usage *usage);

static enum { AGAIN, STOP, SPOIL, FILES, MEMORY, THREADS } mode;
static const char *const mode_names[] = { "again", "stop", "spoil", "files", "memory", "threads" };
static unsigned n;          /* number of the walk */
static char met[512];       /* the call that was refused in this walk, if any */
static int is_over;         /* the awaited event has not arrived: the walk ends */
static unsigned refusals;

static int is_limited(void)
{
    return mode == FILES || mode == MEMORY || mode == THREADS;
}

/* Returns the provider's failure that no DAT call has reported yet, or NULL. */
static const char *fired(uint32_t *code)
{
    return faulty_fired && !*met ? faulty_fired(code) : NULL;
}

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fail("libdaplfaulty does not export %s", name);
    return found;
}

/* Looks up the control functions of libdaplfaulty, if it is loaded. The casts convert an object pointer to a function
 * pointer; POSIX requires this conversion, ISO C has none. */
static void find_faulty_functions(void)
{
    void *library = dlopen("libdaplfaulty.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library) {
        EXPECT(is_limited());
        return;
    }
    *(void **)&faulty_fail = symbol(library, "dapl_faulty_fail");
    *(void **)&faulty_spoil = symbol(library, "dapl_faulty_spoil");
    *(void **)&faulty_fired = symbol(library, "dapl_faulty_fired");
    *(void **)&faulty_usage = symbol(library, "dapl_faulty_usage");
}

/* Checks a failed call. It must be the call with the injected fault, and return the provider's code. With a resource
 * limit, any call may fail, with one of four types. */
static void refused(const char *call, DAT_RETURN ret)
{
    uint32_t code = 0;
    const char *op = fired(&code);
    DAT_RETURN_TYPE type = (DAT_RETURN_TYPE)DAT_GET_TYPE(ret);
    if (is_limited()) {
        if (type != DAT_INSUFFICIENT_RESOURCES && type != DAT_INTERNAL_ERROR && type != DAT_INVALID_ADDRESS
            && type != DAT_PROVIDER_NOT_FOUND)
            fail("walk %u: %s: %s, expected the code of a missing resource", n, call, words(ret));
    } else if (!op) {
        fail("walk %u: %s: %s, expected success", n, call, words(ret));
    } else if (ret != code) {
        fail("walk %u: %s: %s, expected 0x%08x, the code of a failed %s", n, call, words(ret), code, op);
    }
    snprintf(met, sizeof met, "%.90s: %s", call, op ? op : "the system");
    refusals++;
}

/* Makes a call that may be refused. If it is, the call is repeated, or the walk ends. */
#define CALL(call)                                  \
    do {                                            \
        DAT_RETURN ret_ = (call);                   \
        if (ret_ != DAT_SUCCESS) {                  \
            refused(#call, ret_);                   \
            if (mode != AGAIN)                      \
                return 0;                           \
            check_ok(#call " made again", (call));  \
        }                                           \
    } while (0)

/* Same as CALL, for a call that creates an object. */
#define MAKE(out, call)                             \
    do {                                            \
        DAT_RETURN ret_;                            \
        (out) = UNTOUCHED;                          \
        ret_ = (call);                              \
        if (ret_ != DAT_SUCCESS) {                  \
            refused(#call, ret_);                   \
            EXPECT((out) == UNTOUCHED);             \
            (out) = DAT_HANDLE_NULL;                \
            if (mode != AGAIN)                      \
                return 0;                           \
            check_ok(#call " made again", (call));  \
        }                                           \
    } while (0)

/* Returns 0 from the calling function if the step fails. */
#define STEP(step)    \
    do {              \
        if (!(step))  \
            return 0; \
    } while (0)

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* Waits for the next event of evd. Returns 0 if the wait is refused, or if another event or none arrived; the latter is
 * an error in the modes `again` and `stop`. */
static int event(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number, DAT_EVENT *out, const char *what)
{
    DAT_COUNT more;
    DAT_RETURN ret = dat_evd_wait(evd, is_limited() ? 10 * SECOND : EVENT_TIMEOUT, 1, out, &more);
    if (ret != DAT_SUCCESS && fired(NULL)) {
        refused(what, ret);
        if (mode != AGAIN)
            return 0;
        ret = dat_evd_wait(evd, EVENT_TIMEOUT, 1, out, &more);
    }
    is_over = ret != DAT_SUCCESS || out->event_number != number;
    if (!is_over)
        return 1;
    if (mode == AGAIN || mode == STOP) {
        if (ret != DAT_SUCCESS)
            fail("walk %u: %s: %s (%s)", n, what, words(ret), met);
        fail("walk %u: %s: event 0x%x, expected 0x%x (%s)", n, what, (unsigned)out->event_number, (unsigned)number,
             met);
    }
    snprintf(met, sizeof met, "%s: %s", what, ret == DAT_SUCCESS ? "another event" : words(ret));
    return 0;
}

static int completion(DAT_EVD_HANDLE evd, DAT_EP_HANDLE ep, uint64_t cookie, const char *what)
{
    DAT_EVENT done;
    const DAT_DTO_COMPLETION_EVENT_DATA *dto = &done.event_data.dto_completion_event_data;
    STEP(event(evd, DAT_DTO_COMPLETION_EVENT, &done, what));
    if (dto->status != DAT_DTO_SUCCESS && mode == SPOIL) {
        snprintf(met, sizeof met, "%s: status %d", what, (int)dto->status);
        return 0;
    }
    EXPECT(dto->ep_handle == ep && dto->status == DAT_DTO_SUCCESS && dto->user_cookie.as_64 == cookie);
    return 1;
}

/* ---- Steps of a walk --------------------------------------------------------------------------------------------- */

static char *adapter;
static unsigned char memory[4][LENGTH];
static void *shared_memory;
enum { SEND, RECEIVE, RDMA, SPARE };

/* All objects; null if not created yet. */
static struct {
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE errors;
    DAT_IA_ADDRESS_PTR here;
    DAT_PZ_HANDLE pz;
    DAT_CNO_HANDLE cno;
    DAT_EVD_HANDLE events[2], completions[2], software;
    DAT_LMR_HANDLE lmr, same, shared;
    DAT_LMR_CONTEXT lmr_context;
    DAT_RMR_CONTEXT rmr_context;
    DAT_RMR_HANDLE rmr;
    DAT_SRQ_HANDLE srq;
    DAT_EP_HANDLE ep[2], late, pooled, reserved;
    DAT_PSP_HANDLE psp, other;
    DAT_RSP_HANDLE rsp;
} all;

static DAT_LMR_TRIPLET part(int which, DAT_VLEN length)
{
    DAT_LMR_TRIPLET triplet = {
        .lmr_context = all.lmr_context,
        .virtual_address = (DAT_VADDR)(uintptr_t)memory[which],
        .segment_length = length,
    };
    return triplet;
}

static int open_adapter(void)
{
    DAT_IA_ATTR attributes;
    all.errors = DAT_HANDLE_NULL;
    DAT_RETURN ret = dat_ia_open(adapter, 8, &all.errors, &all.ia);
    if (ret != DAT_SUCCESS) {
        refused("dat_ia_open", ret);
        EXPECT(all.ia == DAT_HANDLE_NULL && all.errors == DAT_HANDLE_NULL);
        if (mode != AGAIN)
            return 0;
        OK(dat_ia_open(adapter, 8, &all.errors, &all.ia));
    }
    CALL(dat_ia_query(all.ia, NULL, DAT_IA_FIELD_ALL, &attributes, 0, NULL));
    all.here = attributes.ia_address_ptr;
    return 1;
}

static int make_queues(void)
{
    DAT_OS_WAIT_PROXY_AGENT no_agent = DAT_OS_WAIT_PROXY_AGENT_NULL;
    DAT_EVD_FLAGS transfers = DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG;
    MAKE(all.cno, dat_cno_create(all.ia, no_agent, &all.cno));
    for (int i = 0; i < 2; i++) {
        /* Requests and rejections arrive on one EVD, so a wait for one kind must not lose the other. */
        MAKE(all.events[i], dat_evd_create(all.ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG,
                                           &all.events[i]));
        MAKE(all.completions[i], dat_evd_create(all.ia, 8, DAT_HANDLE_NULL, transfers, &all.completions[i]));
    }
    MAKE(all.software, dat_evd_create(all.ia, 8, all.cno, DAT_EVD_SOFTWARE_FLAG, &all.software));
    CALL(dat_evd_resize(all.completions[0], 16));
    return 1;
}

static int register_memory(void)
{
    static char cookie[DAT_LMR_COOKIE_SIZE] = "walk";
    DAT_REGION_DESCRIPTION region = { .for_va = memory };
    DAT_LMR_CONTEXT context = 77;
    MAKE(all.pz, dat_pz_create(all.ia, &all.pz));
    all.lmr_context = 77;
    MAKE(all.lmr, dat_lmr_create(all.ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, all.pz, DAT_MEM_PRIV_ALL_FLAG,
                                 &all.lmr, &all.lmr_context, &all.rmr_context, NULL, NULL));
    region.for_lmr_handle = all.lmr;
    MAKE(all.same, dat_lmr_create(all.ia, DAT_MEM_TYPE_LMR, region, sizeof memory, all.pz,
                                           DAT_MEM_PRIV_LOCAL_READ_FLAG, &all.same, &context, NULL, NULL, NULL));
    region.for_shared_memory.virtual_address = shared_memory;
    region.for_shared_memory.shared_memory_id = &cookie;
    MAKE(all.shared, dat_lmr_create(all.ia, DAT_MEM_TYPE_SHARED_VIRTUAL, region, LENGTH, all.pz,
                                             DAT_MEM_PRIV_LOCAL_READ_FLAG, &all.shared, &context, NULL, NULL, NULL));
    MAKE(all.rmr, dat_rmr_create(all.pz, &all.rmr));
    return 1;
}

/* Creates a shared receive queue, and an endpoint that uses it. */
static int make_pool(void)
{
    DAT_SRQ_ATTR attributes = { .max_recv_dtos = 4, .max_recv_iov = 1, .low_watermark = DAT_SRQ_LW_DEFAULT };
    DAT_LMR_TRIPLET segment = part(SPARE, LENGTH);
    DAT_DTO_COOKIE cookie = { .as_64 = 1 };
    DAT_EP_PARAM param;
    MAKE(all.srq, dat_srq_create(all.ia, all.pz, &attributes, &all.srq));
    if (!all.srq)
        return 1;
    CALL(dat_srq_post_recv(all.srq, 1, &segment, cookie));
    CALL(dat_srq_resize(all.srq, 8));
    CALL(dat_srq_set_lw(all.srq, 1));
    CALL(dat_ep_query(all.ep[0], DAT_EP_FIELD_ALL, &param));
    MAKE(all.pooled, dat_ep_create_with_srq(all.ia, all.pz, all.completions[1], all.completions[1], all.events[1],
                                            all.srq, &param.ep_attr, &all.pooled));
    return 1;
}

static int make_endpoints(void)
{
    DAT_EP_PARAM param = { .pz_handle = all.pz };
    for (int i = 0; i < 2; i++)
        MAKE(all.ep[i], dat_ep_create(all.ia, all.pz, all.completions[i], all.completions[i], all.events[i], NULL,
                                      &all.ep[i]));
    MAKE(all.late, dat_ep_create(all.ia, DAT_HANDLE_NULL, all.completions[1], all.completions[1], all.events[1], NULL,
                                 &all.late));
    CALL(dat_ep_modify(all.late, DAT_EP_FIELD_PZ_HANDLE, &param));
    MAKE(all.reserved, dat_ep_create(all.ia, all.pz, all.completions[1], all.completions[1], all.events[1], NULL,
                                     &all.reserved));
    CALL(dat_ep_set_watermark(all.ep[0], 100, DAT_WATERMARK_INFINITE));
    return 1;
}

static int listen_for_peers(void)
{
    DAT_CONN_QUAL qual = 0;
    MAKE(all.psp, dat_psp_create(all.ia, QUAL, all.events[0], DAT_PSP_CONSUMER_FLAG, &all.psp));
    MAKE(all.other, dat_psp_create_any(all.ia, &qual, all.events[0], DAT_PSP_PROVIDER_FLAG, &all.other));
    EXPECT(qual != 0);
    CALL(dat_psp_free(all.other));
    MAKE(all.other, dat_psp_create(all.ia, OTHER_QUAL, all.events[0], DAT_PSP_PROVIDER_FLAG, &all.other));
    MAKE(all.rsp, dat_rsp_create(all.ia, RESERVED_QUAL, all.reserved, all.events[0], &all.rsp));
    return 1;
}

static int post_receive(DAT_EP_HANDLE ep, uint64_t number)
{
    DAT_LMR_TRIPLET segment = part(RECEIVE, LENGTH);
    DAT_DTO_COOKIE cookie = { .as_64 = number };
    CALL(dat_ep_post_recv(ep, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    return 1;
}

/* Requests a connection, and waits for the request at the listener. */
static int ask(DAT_CONN_QUAL qual, DAT_CR_HANDLE *cr)
{
    char question[] = "question";
    DAT_EVENT request;
    CALL(dat_ep_connect(all.ep[0], all.here, qual, is_limited() ? 5 * SECOND : EVENT_TIMEOUT, sizeof question, question,
                        DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    STEP(event(all.events[0], DAT_CONNECTION_REQUEST_EVENT, &request, "the request"));
    *cr = request.event_data.cr_arrival_event_data.cr_handle;
    return 1;
}

/* Sets the PZ and EVDs of the EP that a request created. */
static int equip(DAT_CR_HANDLE cr, DAT_EP_HANDLE *ep)
{
    DAT_CR_PARAM request;
    DAT_EP_PARAM param = {
        .pz_handle = all.pz,
        .recv_evd_handle = all.completions[1],
        .request_evd_handle = all.completions[1],
        .connect_evd_handle = all.events[1],
    };
    DAT_EP_PARAM_MASK mask = DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_REQUEST_EVD_HANDLE
                             | DAT_EP_FIELD_CONNECT_EVD_HANDLE;
    CALL(dat_cr_query(cr, DAT_CR_FIELD_ALL, &request));
    *ep = request.local_ep_handle;
    CALL(dat_ep_modify(*ep, mask, &param));
    return 1;
}

/* Connects ep[0] to `to`, or if that is null to the EP of the service point. A failed accept consumes the request: the
 * requester gets an event, and mode `again` repeats the whole connect. */
static int establish(DAT_CONN_QUAL qual, DAT_EP_HANDLE to, DAT_EP_HANDLE *got)
{
    DAT_CR_HANDLE cr = DAT_HANDLE_NULL;
    DAT_CR_PARAM request;
    DAT_EVENT reported;
    for (int attempt = 0;; attempt++) {
        *got = to;
        STEP(ask(qual, &cr));
        if (qual == OTHER_QUAL)
            STEP(equip(cr, got));
        if (qual == RESERVED_QUAL)
            *got = all.reserved;
        DAT_RETURN ret = dat_cr_accept(cr, to, 0, NULL);
        if (ret == DAT_SUCCESS)
            break;
        refused("dat_cr_accept", ret);
        EXPECT(DAT_GET_TYPE(dat_cr_query(cr, DAT_CR_FIELD_ALL, &request)) == DAT_INVALID_HANDLE);
        if (mode != AGAIN)
            return 0;
        EXPECT(attempt == 0);
        STEP(event(all.events[0], DAT_CONNECTION_EVENT_PEER_REJECTED, &reported, "the refusal"));
        CALL(dat_ep_reset(all.ep[0]));
        if (dat_evd_dequeue(all.completions[0], &reported) == DAT_SUCCESS) /* the reset has flushed the receive of this EP */
            STEP(post_receive(all.ep[0], 8));
        if (qual == RESERVED_QUAL) {
            CALL(dat_rsp_free(all.rsp));
            MAKE(all.rsp, dat_rsp_create(all.ia, RESERVED_QUAL, all.reserved, all.events[0], &all.rsp));
        }
    }
    STEP(event(all.events[0], DAT_CONNECTION_EVENT_ESTABLISHED, &reported, "the active end"));
    STEP(event(all.events[1], DAT_CONNECTION_EVENT_ESTABLISHED, &reported, "the passive end"));
    EXPECT(reported.event_data.connect_event_data.ep_handle == *got);
    return 1;
}

/* Ends the connection from the active side, dequeues both disconnect events, and resets ep[0]. */
static int part_again(DAT_EP_HANDLE other, DAT_CLOSE_FLAGS how)
{
    DAT_EVENT reported;
    CALL(dat_ep_disconnect(all.ep[0], how));
    STEP(event(all.events[0], DAT_CONNECTION_EVENT_DISCONNECTED, &reported, "the active end's end"));
    STEP(event(all.events[1], DAT_CONNECTION_EVENT_DISCONNECTED, &reported, "the passive end's end"));
    EXPECT(reported.event_data.connect_event_data.ep_handle == other);
    CALL(dat_ep_reset(all.ep[0]));
    return 1;
}

static int transfer(DAT_EP_HANDLE other)
{
    DAT_LMR_TRIPLET message = part(SEND, MESSAGE), bulk = part(RDMA, LENGTH);
    DAT_DTO_COOKIE cookie = { .as_64 = 0 };
    DAT_RMR_TRIPLET there = {
        .rmr_context = all.rmr_context,
        .target_address = (DAT_VADDR)(uintptr_t)memory[SPARE],
        .segment_length = LENGTH,
    };
    memset(memory[SEND], (int)n, MESSAGE);
    memset(memory[RECEIVE], 0, LENGTH);
    STEP(post_receive(other, 1));
    cookie.as_64 = 2;
    CALL(dat_ep_post_send(all.ep[0], 1, &message, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    STEP(completion(all.completions[0], all.ep[0], 2, "the send"));
    STEP(completion(all.completions[1], other, 1, "the receive"));
    EXPECT(memcmp(memory[SEND], memory[RECEIVE], MESSAGE) == 0);
    cookie.as_64 = 3;
    CALL(dat_ep_post_rdma_write(all.ep[0], 1, &bulk, cookie, &there, DAT_COMPLETION_DEFAULT_FLAG));
    STEP(completion(all.completions[0], all.ep[0], 3, "the RDMA write"));
    cookie.as_64 = 4;
    CALL(dat_ep_post_rdma_read(all.ep[0], 1, &bulk, cookie, &there, DAT_COMPLETION_DEFAULT_FLAG));
    STEP(completion(all.completions[0], all.ep[0], 4, "the RDMA read"));
    return 1;
}

/* Binds the window to `length` bytes. 0 unbinds it. */
static int bind_window(DAT_VLEN length)
{
    DAT_LMR_TRIPLET region = part(SPARE, length);
    DAT_RMR_COOKIE cookie = { .as_64 = 5 };
    DAT_RMR_CONTEXT context = 77;
    DAT_EVENT done;
    DAT_RETURN ret = dat_rmr_bind(all.rmr, &region, DAT_MEM_PRIV_ALL_FLAG, all.ep[1], cookie,
                                  DAT_COMPLETION_DEFAULT_FLAG, &context);
    if (ret != DAT_SUCCESS) {
        refused("dat_rmr_bind", ret);
        EXPECT(context == 77);
        if (mode != AGAIN)
            return 0;
        OK(dat_rmr_bind(all.rmr, &region, DAT_MEM_PRIV_ALL_FLAG, all.ep[1], cookie, DAT_COMPLETION_DEFAULT_FLAG,
                        &context));
    }
    STEP(event(all.completions[1], DAT_RMR_BIND_COMPLETION_EVENT, &done, "the bind"));
    EXPECT(done.event_data.rmr_completion_event_data.status == DAT_RMR_BIND_SUCCESS);
    return 1;
}

static int be_refused(void)
{
    DAT_CR_HANDLE cr = DAT_HANDLE_NULL;
    DAT_EVENT reported;
    STEP(ask(QUAL, &cr));
    CALL(dat_cr_reject(cr));
    STEP(event(all.events[0], DAT_CONNECTION_EVENT_PEER_REJECTED, &reported, "the rejection"));
    CALL(dat_ep_reset(all.ep[0]));
    return 1;
}

/* Hands a request off from one service point to another, and rejects it there. */
static int be_passed_on(void)
{
    DAT_CR_HANDLE cr = DAT_HANDLE_NULL;
    DAT_EVENT request, reported;
    STEP(ask(QUAL, &cr));
    CALL(dat_cr_handoff(cr, OTHER_QUAL));
    STEP(event(all.events[0], DAT_CONNECTION_REQUEST_EVENT, &request, "the handed-off request"));
    cr = request.event_data.cr_arrival_event_data.cr_handle;
    CALL(dat_cr_reject(cr));
    STEP(event(all.events[0], DAT_CONNECTION_EVENT_PEER_REJECTED, &reported, "the rejection"));
    CALL(dat_ep_reset(all.ep[0]));
    return 1;
}

/* The provider may have failed to arm the completion queue of an EVD with a CNO. No call reports that, only the
 * adapter's EVD for asynchronous errors. Checks that event, if an injected failure is unreported. */
static int fail_to_arm(void)
{
    DAT_EVENT reported;
    if (!fired(NULL))
        return 1;
    snprintf(met, sizeof met, "an EVD with a CNO: %s", fired(NULL));
    STEP(event(all.errors, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR, &reported, "the asynchronous error of the EVD"));
    EXPECT(reported.event_data.asynch_error_event_data.dat_handle == all.completions[1]);
    if (mode != AGAIN)
        return 0;
    CALL(dat_evd_enable(all.completions[1])); /* arms the completion queue */
    return 1;
}

/* Completions trigger a CNO: the completion queue is armed while no thread waits on the EVD. */
static int be_notified(DAT_EP_HANDLE other)
{
    DAT_LMR_TRIPLET message = part(SEND, MESSAGE);
    DAT_DTO_COOKIE cookie = { .as_64 = 7 };
    DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
    if (fired(NULL))
        snprintf(met, sizeof met, "a sleeping waiter: %s", fired(NULL));
    CALL(dat_evd_modify_cno(all.completions[1], all.cno));
    STEP(fail_to_arm());
    STEP(post_receive(other, 6));
    CALL(dat_ep_post_send(all.ep[0], 1, &message, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    CALL(dat_cno_wait(all.cno, EVENT_TIMEOUT, &evd));
    EXPECT(evd == all.completions[1]);
    STEP(fail_to_arm());
    STEP(completion(all.completions[1], other, 6, "the receive"));
    STEP(fail_to_arm());
    CALL(dat_evd_modify_cno(all.completions[1], DAT_HANDLE_NULL));
    STEP(completion(all.completions[0], all.ep[0], 7, "the send"));
    return 1;
}

/* Sends a message to the SRQ. It consumes the last buffer, which the adapter's EVD for asynchronous errors reports. */
static int fill_pool(void)
{
    DAT_LMR_TRIPLET message = part(SEND, MESSAGE);
    DAT_DTO_COOKIE cookie = { .as_64 = 10 };
    DAT_EP_HANDLE other;
    DAT_EVENT reported;
    STEP(establish(QUAL, all.pooled, &other));
    CALL(dat_ep_post_send(all.ep[0], 1, &message, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    STEP(completion(all.completions[0], all.ep[0], 10, "the send to the EP with the SRQ"));
    STEP(completion(all.completions[1], all.pooled, 1, "the receive from the SRQ"));
    STEP(event(all.errors, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR, &reported, "the low-watermark event of the SRQ"));
    EXPECT(reported.event_data.asynch_error_event_data.dat_handle == all.srq);
    STEP(part_again(other, DAT_CLOSE_GRACEFUL_FLAG));
    CALL(dat_ep_reset(other));
    return 1;
}

static int connect_and_move(void)
{
    DAT_EP_HANDLE other;
    STEP(post_receive(all.ep[0], 8));
    STEP(establish(QUAL, all.ep[1], &other));
    STEP(transfer(other));
    STEP(be_notified(other));
    if (all.rmr) {
        STEP(bind_window(LENGTH));
        STEP(bind_window(0));
    }
    STEP(part_again(other, DAT_CLOSE_GRACEFUL_FLAG));
    CALL(dat_ep_reset(other));
    DAT_EVENT flushed;
    STEP(event(all.completions[0], DAT_DTO_COMPLETION_EVENT, &flushed, "a receive that is left over"));
    EXPECT(flushed.event_data.dto_completion_event_data.status == DAT_DTO_ERR_FLUSHED);

    if (all.srq)
        STEP(fill_pool());
    STEP(be_refused());
    STEP(be_passed_on());
    STEP(establish(OTHER_QUAL, DAT_HANDLE_NULL, &other));
    STEP(part_again(other, DAT_CLOSE_ABRUPT_FLAG));
    CALL(dat_ep_free(other));
    STEP(establish(RESERVED_QUAL, DAT_HANDLE_NULL, &other));
    STEP(part_again(other, DAT_CLOSE_GRACEFUL_FLAG));
    CALL(dat_ep_reset(other));
    STEP(establish(QUAL, all.ep[1], &other));
    STEP(post_receive(all.ep[0], 9));
    return 1;
}

static int walk(void)
{
    STEP(open_adapter());
    STEP(make_queues());
    STEP(register_memory());
    STEP(make_endpoints());
    STEP(make_pool());
    STEP(listen_for_peers());
    STEP(connect_and_move());
    return 1;
}

/* Frees all objects in order. No call may fail any more. */
static void tear_down(void)
{
    OK(dat_rsp_free(all.rsp));
    OK(dat_psp_free(all.psp));
    OK(dat_psp_free(all.other));
    for (int i = 0; i < 2; i++)
        OK(dat_ep_free(all.ep[i]));
    OK(dat_ep_free(all.late));
    OK(dat_ep_free(all.reserved));
    if (all.srq) {
        OK(dat_ep_free(all.pooled));
        OK(dat_srq_free(all.srq));
    }
    if (all.rmr)
        OK(dat_rmr_free(all.rmr));
    if (all.shared)
        OK(dat_lmr_free(all.shared));
    if (all.same)
        OK(dat_lmr_free(all.same));
    OK(dat_lmr_free(all.lmr));
    OK(dat_evd_free(all.software));
    for (int i = 0; i < 2; i++) {
        OK(dat_evd_free(all.completions[i]));
        OK(dat_evd_free(all.events[i]));
    }
    OK(dat_cno_free(all.cno));
    OK(dat_pz_free(all.pz));
    OK(dat_ia_close(all.ia, DAT_CLOSE_GRACEFUL_FLAG));
}

/* ---- Remaining objects ------------------------------------------------------------------------------------------- */

/* Counts of everything that could leak. */
struct state {
    struct usage library;
    int files, threads, mappings, left;
};

static int entries(const char *directory)
{
    int count = 0;
    DIR *open = opendir(directory);
    if (!open)
        return 0;
    for (struct dirent *entry; (entry = readdir(open));)
        count += entry->d_name[0] != '.';
    closedir(open);
    return count;
}

/* Number of this process's shared mappings, under any name. Apart from one of this program, they are the provider's. */
static int shared_mappings(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    EXPECT(maps);
    while (fgets(line, sizeof line, maps)) {
        char *rights = strchr(line, ' ');
        count += rights && rights[4] == 's';
    }
    fclose(maps);
    return count;
}

static struct state look(void)
{
    struct state now;
    const char *base = getenv("DAPL_DIR");
    memset(&now, 0, sizeof now);
    if (faulty_usage)
        faulty_usage(&now.library);
    now.files = entries("/proc/self/fd");
    now.threads = entries("/proc/self/task");
    now.mappings = shared_mappings();
    now.left = base ? entries(base) : 0;
    return now;
}

static int is_more(const struct state *now, const struct state *before)
{
    for (int i = 0; i < 10; i++)
        if (now->library.objects[i] > before->library.objects[i])
            return 1;
    return now->library.handles > before->library.handles || now->library.blocks > before->library.blocks
           || now->files > before->files || now->threads > before->threads || now->mappings > before->mappings
           || now->left > before->left;
}

static void show(const char *what, const struct state *state)
{
    fprintf(stderr, "%s: %llu handles, %lld blocks, %lld bytes, %d descriptors, %d threads, %d shared mappings, %d files;",
            what, (unsigned long long)state->library.handles, (long long)state->library.blocks,
            (long long)state->library.bytes, state->files, state->threads, state->mappings, state->left);
    static const char *const kinds[] = { "IA", "PD", "MR", "MW", "membership", "CQ", "SRQ", "QP", "listener", "request" };
    for (int i = 0; i < 10; i++)
        fprintf(stderr, " %lld %s", (long long)state->library.objects[i], kinds[i]);
    fputc('\n', stderr);
}

/* Checks that no count is higher than before. A thread may need a moment to end. */
static void expect_no_more(const struct state *before)
{
    struct timespec moment = { .tv_nsec = 1000000 };
    struct state now = look();
    for (int i = 0; i < 10000 && is_more(&now, before); i++) {
        nanosleep(&moment, NULL);
        now = look();
    }
    if (!is_more(&now, before))
        return;
    show("before", before);
    show("after", &now);
    fail("walk %u: objects remain after a walk that ended at %s", n, *met ? met : "its end");
}

/* ---- All walks ----------------------------------------------------------------------------------------------------
 */

/* Makes one walk and frees its objects. Returns whether the walk completed all its steps. */
static int one_walk(void)
{
    memset(&all, 0, sizeof all);
    met[0] = '\0';
    is_over = 0;
    int is_whole = walk();
    if (fired(NULL))
        snprintf(met, sizeof met, "no call: %s", fired(NULL));
    if (faulty_fail)
        faulty_fail(NULL, 0);
    if (mode == AGAIN) {
        EXPECT(is_whole);
        tear_down();
        return 1;
    }
    if (all.ia) {
        OK(dat_ia_close(all.ia, DAT_CLOSE_ABRUPT_FLAG));
        DAT_PZ_PARAM param;
        EXPECT(!all.pz || DAT_GET_TYPE(dat_pz_query(all.pz, DAT_PZ_FIELD_ALL, &param)) == DAT_INVALID_HANDLE);
    }
    return is_whole;
}

static void limit(int resource, rlim_t most)
{
    struct rlimit now;
    EXPECT(getrlimit(resource, &now) == 0);
    now.rlim_cur = most < now.rlim_max ? most : now.rlim_max;
    EXPECT(setrlimit(resource, &now) == 0);
}

static rlim_t address_space(void)
{
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    EXPECT(statm && fscanf(statm, "%lu", &pages) == 1);
    fclose(statm);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* Prepares the failure of walk n: an injected fault, or a resource limit. */
static void prepare(int files, rlim_t bytes)
{
    enum { PAGES = 64 * 4096, STACK = 512 * 4096 };
    struct timespec moment = { .tv_nsec = 10000000 };
    switch (mode) {
    case AGAIN:
    case STOP:
        faulty_fail(NULL, n);
        break;
    case SPOIL:
        faulty_spoil(n);
        break;
    case FILES:
        limit(RLIMIT_NOFILE, (rlim_t)files + n - 1);
        break;
    case MEMORY:
        limit(RLIMIT_AS, bytes + (rlim_t)(n - 1) * PAGES);
        break;
    case THREADS:
        for (int i = 0; i < 3000 && entries("/proc/self/task") > 1; i++)
            nanosleep(&moment, NULL);
        EXPECT(entries("/proc/self/task") == 1);
        limit(RLIMIT_AS, address_space() + (rlim_t)n * STACK / 2);
        break;
    }
}

static void release(void)
{
    if (mode == SPOIL)
        faulty_spoil(0);
    limit(RLIMIT_NOFILE, RLIM_INFINITY);
    limit(RLIMIT_AS, RLIM_INFINITY);
}

int main(int argc, char **argv)
{
    static char usual[] = "faulty0";
    adapter = argc > 1 ? argv[1] : usual;
    mode = THREADS + 1;
    for (unsigned i = 0; argc > 2 && i <= THREADS; i++)
        if (strcmp(argv[2], mode_names[i]) == 0)
            mode = i;
    if (mode > THREADS)
        fail("usage: walk IA again|stop|spoil|files|memory|threads");
    if (mode == MEMORY || mode == THREADS) {
        /* Only mappings are to fail. A failed allocation would end the process, so the heap is enlarged beforehand. */
        mallopt(M_ARENA_MAX, 1);
        mallopt(M_MMAP_MAX, 0);
        mallopt(M_TRIM_THRESHOLD, 1 << 30);
        free(memset(malloc(64 << 20), 1, 64 << 20));
    }

    shared_memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(shared_memory != MAP_FAILED);

    /* The first walks create objects that stay for the life of the process: the library, its arena, its timer thread.
     */
    for (int i = 0; i < 3; i++) {
        EXPECT(one_walk());
        if (i == 0)
            find_faulty_functions();
    }
    struct state before = look();
    rlim_t bytes = address_space();
    size_t heap = mallinfo2().uordblks;
    int in_a_row = 0;
    for (n = 1; in_a_row < 3; n++) {
        prepare(before.files, bytes);
        int is_whole = one_walk();
        const char *op = *met ? met : "nothing";
        /* Ends after three walks in a row without a failure. If faults are injected, such a walk made fewer than n
         * calls. */
        in_a_row = is_whole && !*met ? in_a_row + 1 : 0;
        release();
        printf("%u: %s\n", n, op);
        fflush(stdout);
        if (getenv("WALK_SHOW")) {
            struct state now = look();
            show("now", &now);
        }
        expect_no_more(&before);
    }
    long grown = (long)mallinfo2().uordblks - (long)heap;
    if (grown > 256 << 10)
        fail("the heap grew by %ld bytes in %u walks, more than the limit of 256 KiB", grown, n);
    printf("walk: OK, %u walks, %u refusals\n", n, refusals);
    return 0;
}
