/*
 * Passes invalid handles to every DAT 1.2 call that takes a handle, in the parameters that have a row in CALLS: null
 * (where it is invalid), numbers, odd and forged addresses, unmapped memory, freed handles and handles of another kind.
 * Each call must return DAT_INVALID_HANDLE, with the subtype of its row if the row has one. No call may crash or change
 * an object.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

enum { QUAL = 0x6a7b };

/* Kind of handle that a call expects in the tested parameter. */
enum kind { IA, PZ, EVD, CNO, LMR, RMR, SRQ, EP, PSP, RSP, CR, KINDS, ANY = KINDS };

static const char *const kind_names[] = { "IA", "PZ", "EVD", "CNO", "LMR", "RMR", "SRQ", "EP", "PSP", "RSP", "CR" };

static DAT_HANDLE live[KINDS]; /* one of each; null where the provider has none */
static DAT_HANDLE dead[KINDS]; /* one of each, freed */
static DAT_EP_HANDLE linked[2]; /* two connected EPs, for calls that need one besides the invalid handle */
static DAT_EVD_HANDLE linked_evd;

/* ---- The calls: `h` is the handle to be refused, all other arguments are valid ------------------------------ */

static DAT_EVENT event = { .event_number = DAT_SOFTWARE_EVENT };
static DAT_COUNT count, count2;
static DAT_CONTEXT context;
static DAT_HANDLE made;
static DAT_LMR_CONTEXT lmr_context;
static DAT_RMR_CONTEXT rmr_context;
static DAT_DTO_COOKIE cookie;
static DAT_LMR_TRIPLET segment;
static DAT_RMR_TRIPLET target;
static unsigned char memory[64];
static DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1, .low_watermark = DAT_SRQ_LW_DEFAULT };
static DAT_EP_ATTR ep_attr, srq_ep_attr;
static DAT_IA_ADDRESS_PTR here;
static DAT_CONN_QUAL qual;
static DAT_CONN_QUAL free_qual = QUAL + 100;
static union {
    DAT_IA_ATTR ia;
    DAT_EVD_PARAM evd;
    DAT_EP_PARAM ep;
    DAT_LMR_PARAM lmr;
    DAT_RMR_PARAM rmr;
    DAT_PZ_PARAM pz;
    DAT_PSP_PARAM psp;
    DAT_RSP_PARAM rsp;
    DAT_CR_PARAM cr;
    DAT_CNO_PARAM cno;
    DAT_SRQ_PARAM srq;
    DAT_HANDLE_TYPE type;
    DAT_EP_STATE state;
} out;

static DAT_RETURN register_lmr(DAT_IA_HANDLE ia, DAT_MEM_TYPE type, DAT_LMR_HANDLE source, DAT_PZ_HANDLE pz)
{
    DAT_REGION_DESCRIPTION region = { .for_va = memory };
    if (type == DAT_MEM_TYPE_LMR)
        region.for_lmr_handle = source;
    return dat_lmr_create(ia, type, region, sizeof memory, pz, DAT_MEM_PRIV_ALL_FLAG, &made, &lmr_context,
                          &rmr_context, NULL, NULL);
}

static DAT_RETURN set_agent(DAT_CNO_HANDLE cno)
{
    DAT_OS_WAIT_PROXY_AGENT none = DAT_OS_WAIT_PROXY_AGENT_NULL;
    return dat_cno_modify_agent(cno, none);
}

static DAT_RETURN make_cno(DAT_IA_HANDLE ia)
{
    DAT_OS_WAIT_PROXY_AGENT none = DAT_OS_WAIT_PROXY_AGENT_NULL;
    return dat_cno_create(ia, none, &made);
}

/* X(name of the call, expected kind, subtype or 0, whether null is valid, call) */
#define CALLS(X)                                                                                                        \
    X("ia_query", IA, DAT_INVALID_HANDLE_IA, 0, dat_ia_query(h, NULL, DAT_IA_FIELD_ALL, &out.ia, 0, NULL))              \
    X("ia_close abrupt", IA, DAT_INVALID_HANDLE_IA, 0, dat_ia_close(h, DAT_CLOSE_ABRUPT_FLAG))                          \
    X("ia_close graceful", IA, DAT_INVALID_HANDLE_IA, 0, dat_ia_close(h, DAT_CLOSE_GRACEFUL_FLAG))                      \
    X("get_handle_type", ANY, 0, 0, dat_get_handle_type(h, &out.type))                                                  \
    X("set_consumer_context", ANY, 0, 0, dat_set_consumer_context(h, context))                                          \
    X("get_consumer_context", ANY, 0, 0, dat_get_consumer_context(h, &context))                                         \
    X("pz_create", IA, DAT_INVALID_HANDLE_IA, 0, dat_pz_create(h, &made))                                               \
    X("pz_query", PZ, DAT_INVALID_HANDLE_PZ, 0, dat_pz_query(h, DAT_PZ_FIELD_ALL, &out.pz))                             \
    X("pz_free", PZ, DAT_INVALID_HANDLE_PZ, 0, dat_pz_free(h))                                                          \
    X("evd_create", IA, DAT_INVALID_HANDLE_IA, 0, dat_evd_create(h, 4, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &made))       \
    X("evd_create cno", CNO, DAT_INVALID_HANDLE_CNO, 1, dat_evd_create(live[IA], 4, h, DAT_EVD_DTO_FLAG, &made))        \
    X("evd_query", EVD, 0, 0, dat_evd_query(h, DAT_EVD_FIELD_ALL, &out.evd))                                            \
    X("evd_modify_cno", EVD, 0, 0, dat_evd_modify_cno(h, DAT_HANDLE_NULL))                                              \
    X("evd_modify_cno cno", CNO, DAT_INVALID_HANDLE_CNO, 1, dat_evd_modify_cno(live[EVD], h))                           \
    X("evd_enable", EVD, 0, 0, dat_evd_enable(h))                                                                       \
    X("evd_disable", EVD, 0, 0, dat_evd_disable(h))                                                                     \
    X("evd_wait", EVD, 0, 0, dat_evd_wait(h, 0, 1, &event, &count))                                                     \
    X("evd_resize", EVD, 0, 0, dat_evd_resize(h, 8))                                                                    \
    X("evd_post_se", EVD, 0, 0, dat_evd_post_se(h, &event))                                                             \
    X("evd_dequeue", EVD, 0, 0, dat_evd_dequeue(h, &event))                                                             \
    X("evd_set_unwaitable", EVD, 0, 0, dat_evd_set_unwaitable(h))                                                       \
    X("evd_clear_unwaitable", EVD, 0, 0, dat_evd_clear_unwaitable(h))                                                   \
    X("evd_free", EVD, 0, 0, dat_evd_free(h))                                                                           \
    X("cno_create", IA, DAT_INVALID_HANDLE_IA, 0, make_cno(h))                                                          \
    X("cno_modify_agent", CNO, DAT_INVALID_HANDLE_CNO, 0, set_agent(h))                                                 \
    X("cno_query", CNO, DAT_INVALID_HANDLE_CNO, 0, dat_cno_query(h, DAT_CNO_FIELD_ALL, &out.cno))                       \
    X("cno_wait", CNO, DAT_INVALID_HANDLE_CNO, 0, dat_cno_wait(h, 0, &made))                                            \
    X("cno_free", CNO, DAT_INVALID_HANDLE_CNO, 0, dat_cno_free(h))                                                      \
    X("lmr_create", IA, DAT_INVALID_HANDLE_IA, 0, register_lmr(h, DAT_MEM_TYPE_VIRTUAL, NULL, live[PZ]))                \
    X("lmr_create pz", PZ, DAT_INVALID_HANDLE_PZ, 0, register_lmr(live[IA], DAT_MEM_TYPE_VIRTUAL, NULL, h))             \
    X("lmr_create lmr", LMR, DAT_INVALID_HANDLE_LMR, 0, register_lmr(live[IA], DAT_MEM_TYPE_LMR, h, live[PZ]))          \
    X("lmr_query", LMR, DAT_INVALID_HANDLE_LMR, 0, dat_lmr_query(h, DAT_LMR_FIELD_ALL, &out.lmr))                       \
    X("lmr_sync_rdma_read", IA, DAT_INVALID_HANDLE_IA, 0, dat_lmr_sync_rdma_read(h, &segment, 1))                       \
    X("lmr_sync_rdma_write", IA, DAT_INVALID_HANDLE_IA, 0, dat_lmr_sync_rdma_write(h, &segment, 1))                     \
    X("lmr_free", LMR, DAT_INVALID_HANDLE_LMR, 0, dat_lmr_free(h))                                                      \
    X("rmr_create", PZ, DAT_INVALID_HANDLE_PZ, 0, dat_rmr_create(h, &made))                                             \
    X("rmr_query", RMR, DAT_INVALID_HANDLE_RMR, 0, dat_rmr_query(h, DAT_RMR_FIELD_ALL, &out.rmr))                       \
    X("rmr_bind", RMR, DAT_INVALID_HANDLE_RMR, 0,                                                                       \
      dat_rmr_bind(h, &segment, DAT_MEM_PRIV_ALL_FLAG, live[EP], cookie, DAT_COMPLETION_DEFAULT_FLAG, &rmr_context))    \
    X("rmr_free", RMR, DAT_INVALID_HANDLE_RMR, 0, dat_rmr_free(h))                                                      \
    X("srq_create", IA, DAT_INVALID_HANDLE_IA, 0, dat_srq_create(h, live[PZ], &srq_attr, &made))                        \
    X("srq_query", SRQ, DAT_INVALID_HANDLE_SRQ, 0, dat_srq_query(h, DAT_SRQ_FIELD_ALL, &out.srq))                       \
    X("srq_post_recv", SRQ, DAT_INVALID_HANDLE_SRQ, 0, dat_srq_post_recv(h, 1, &segment, cookie))                       \
    X("srq_resize", SRQ, DAT_INVALID_HANDLE_SRQ, 0, dat_srq_resize(h, 8))                                               \
    X("srq_set_lw", SRQ, DAT_INVALID_HANDLE_SRQ, 0, dat_srq_set_lw(h, 1))                                               \
    X("srq_free", SRQ, DAT_INVALID_HANDLE_SRQ, 0, dat_srq_free(h))                                                      \
    X("ep_create", IA, DAT_INVALID_HANDLE_IA, 0,                                                                        \
      dat_ep_create(h, live[PZ], live[EVD], live[EVD], live[EVD], &ep_attr, &made))                                     \
    X("ep_create pz", PZ, DAT_INVALID_HANDLE_PZ, 1,                                                                     \
      dat_ep_create(live[IA], h, live[EVD], live[EVD], live[EVD], &ep_attr, &made))                                     \
    X("ep_create recv", EVD, DAT_INVALID_HANDLE_EVD_RECV, 1,                                                            \
      dat_ep_create(live[IA], live[PZ], h, live[EVD], live[EVD], &ep_attr, &made))                                      \
    X("ep_create request", EVD, DAT_INVALID_HANDLE_EVD_REQUEST, 1,                                                      \
      dat_ep_create(live[IA], live[PZ], live[EVD], h, live[EVD], &ep_attr, &made))                                      \
    X("ep_create connect", EVD, DAT_INVALID_HANDLE_EVD_CONN, 1,                                                         \
      dat_ep_create(live[IA], live[PZ], live[EVD], live[EVD], h, &ep_attr, &made))                                      \
    X("ep_create_with_srq", IA, DAT_INVALID_HANDLE_IA, 0,                                                               \
      dat_ep_create_with_srq(h, live[PZ], live[EVD], live[EVD], live[EVD], live[SRQ], &srq_ep_attr, &made))             \
    X("ep_create_with_srq srq", SRQ, DAT_INVALID_HANDLE_SRQ, 0,                                                         \
      dat_ep_create_with_srq(live[IA], live[PZ], live[EVD], live[EVD], live[EVD], h, &srq_ep_attr, &made))              \
    X("ep_query", EP, DAT_INVALID_HANDLE_EP, 0, dat_ep_query(h, DAT_EP_FIELD_ALL, &out.ep))                             \
    X("ep_modify", EP, DAT_INVALID_HANDLE_EP, 0, dat_ep_modify(h, DAT_EP_FIELD_EP_ATTR_QOS, &out.ep))                   \
    X("ep_connect", EP, DAT_INVALID_HANDLE_EP, 0,                                                                       \
      dat_ep_connect(h, here, QUAL, SECOND, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG))                    \
    X("ep_dup_connect", EP, DAT_INVALID_HANDLE_EP, 0,                                                                   \
      dat_ep_dup_connect(h, linked[0], SECOND, 0, NULL, DAT_QOS_BEST_EFFORT))                                           \
    X("ep_dup_connect dup", EP, DAT_INVALID_HANDLE_EP, 0,                                                               \
      dat_ep_dup_connect(live[EP], h, SECOND, 0, NULL, DAT_QOS_BEST_EFFORT))                                            \
    X("ep_disconnect", EP, DAT_INVALID_HANDLE_EP, 0, dat_ep_disconnect(h, DAT_CLOSE_ABRUPT_FLAG))                       \
    X("ep_post_send", EP, DAT_INVALID_HANDLE_EP, 0,                                                                     \
      dat_ep_post_send(h, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG))                                            \
    X("ep_post_recv", EP, DAT_INVALID_HANDLE_EP, 0,                                                                     \
      dat_ep_post_recv(h, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG))                                            \
    X("ep_post_rdma_read", EP, DAT_INVALID_HANDLE_EP, 0,                                                                \
      dat_ep_post_rdma_read(h, 1, &segment, cookie, &target, DAT_COMPLETION_DEFAULT_FLAG))                              \
    X("ep_post_rdma_write", EP, DAT_INVALID_HANDLE_EP, 0,                                                               \
      dat_ep_post_rdma_write(h, 1, &segment, cookie, &target, DAT_COMPLETION_DEFAULT_FLAG))                             \
    X("ep_get_status", EP, DAT_INVALID_HANDLE_EP, 0, dat_ep_get_status(h, &out.state, NULL, NULL))                      \
    X("ep_reset", EP, DAT_INVALID_HANDLE_EP, 0, dat_ep_reset(h))                                                        \
    X("ep_recv_query", EP, DAT_INVALID_HANDLE_EP, 0, dat_ep_recv_query(h, &count, &count2))                             \
    X("ep_set_watermark", EP, DAT_INVALID_HANDLE_EP, 0,                                                                 \
      dat_ep_set_watermark(h, DAT_WATERMARK_INFINITE, DAT_WATERMARK_INFINITE))                                          \
    X("ep_free", EP, DAT_INVALID_HANDLE_EP, 0, dat_ep_free(h))                                                          \
    X("psp_create", IA, DAT_INVALID_HANDLE_IA, 0,                                                                       \
      dat_psp_create(h, free_qual, live[EVD], DAT_PSP_CONSUMER_FLAG, &made))                                            \
    X("psp_create evd", EVD, DAT_INVALID_HANDLE_EVD_CR, 0,                                                              \
      dat_psp_create(live[IA], free_qual, h, DAT_PSP_CONSUMER_FLAG, &made))                                             \
    X("psp_create_any", IA, DAT_INVALID_HANDLE_IA, 0,                                                                   \
      dat_psp_create_any(h, &qual, live[EVD], DAT_PSP_CONSUMER_FLAG, &made))                                            \
    X("psp_create_any evd", EVD, DAT_INVALID_HANDLE_EVD_CR, 0,                                                          \
      dat_psp_create_any(live[IA], &qual, h, DAT_PSP_CONSUMER_FLAG, &made))                                             \
    X("psp_query", PSP, DAT_INVALID_HANDLE_PSP, 0, dat_psp_query(h, DAT_PSP_FIELD_ALL, &out.psp))                       \
    X("psp_free", PSP, DAT_INVALID_HANDLE_PSP, 0, dat_psp_free(h))                                                      \
    X("rsp_create", IA, DAT_INVALID_HANDLE_IA, 0, dat_rsp_create(h, free_qual, live[EP], live[EVD], &made))             \
    X("rsp_create ep", EP, DAT_INVALID_HANDLE_EP, 0, dat_rsp_create(live[IA], free_qual, h, live[EVD], &made))          \
    X("rsp_create evd", EVD, DAT_INVALID_HANDLE_EVD_CR, 0, dat_rsp_create(live[IA], free_qual, live[EP], h, &made))     \
    X("rsp_query", RSP, DAT_INVALID_HANDLE_RSP, 0, dat_rsp_query(h, DAT_RSP_FIELD_ALL, &out.rsp))                       \
    X("rsp_free", RSP, DAT_INVALID_HANDLE_RSP, 0, dat_rsp_free(h))                                                      \
    X("cr_query", CR, DAT_INVALID_HANDLE_CR, 0, dat_cr_query(h, DAT_CR_FIELD_ALL, &out.cr))                             \
    X("cr_accept", CR, DAT_INVALID_HANDLE_CR, 0, dat_cr_accept(h, live[EP], 0, NULL))                                   \
    X("cr_accept ep", EP, DAT_INVALID_HANDLE_EP, 0, dat_cr_accept(live[CR], h, 0, NULL))                                \
    X("cr_handoff", CR, DAT_INVALID_HANDLE_CR, 0, dat_cr_handoff(h, free_qual))                                         \
    X("cr_reject", CR, DAT_INVALID_HANDLE_CR, 0, dat_cr_reject(h))


/* A table with one row per entry of CALLS. `make_call` makes the call of the row with this index. */
struct call {
    const char *what;
    int wanted;
    DAT_RETURN_SUBTYPE subtype;
    int null_is_legal;
    DAT_RETURN (*make)(int index, DAT_HANDLE h);
};

static DAT_RETURN make_call(int index, DAT_HANDLE h)
{
    int at = 0;
#define MAKE(what, kind, subtype, null, call) \
    if (index == at++)                        \
        return call;
    CALLS(MAKE)
#undef MAKE
    abort();
}

#define ROW(what, kind, subtype, null, call) { what, kind, (DAT_RETURN_SUBTYPE)(subtype), null, make_call },
static const struct call calls[] = { CALLS(ROW) };
#undef ROW

enum { NUM_CALLS = sizeof calls / sizeof *calls };

/* ---- One attempt ------------------------------------------------------------------------------------------------- */

static char trying[128];
static unsigned refused;

/* Signal handler for a crash: prints the call that was being tried, and ends the process without a DAT call. */
static void crashed(int signal_number)
{
    static const char words[] = "crashed in: ";
    ssize_t ignored = write(2, words, sizeof words - 1);
    ignored += write(2, trying, strlen(trying));
    ignored += write(2, "\n", 1);
    _exit(ignored > 0 ? 128 + signal_number : 1);
}

static void attempt(int index, DAT_HANDLE h, const char *what_it_is)
{
    const struct call *call = &calls[index];
    snprintf(trying, sizeof trying, "dat_%s with %s (%p)", call->what, what_it_is, h);
    DAT_RETURN ret = call->make(index, h);
    if (DAT_GET_TYPE(ret) != DAT_INVALID_HANDLE || !(ret & DAT_CLASS_ERROR))
        fail("%s: %s, expected DAT_INVALID_HANDLE", trying, words(ret));
    if (call->subtype && DAT_GET_SUBTYPE(ret) != call->subtype)
        fail("%s: %s, expected subtype %d", trying, words(ret), (int)call->subtype);
    refused++;
}

static int is_live(DAT_HANDLE h)
{
    for (int kind = 0; kind < KINDS; kind++)
        if (live[kind] == h)
            return 1;
    return 0;
}

/* ---- Invalid values ---------------------------------------------------------------------------------------------- */

static void try_numbers(int index)
{
    static const uintptr_t numbers[] = {
        1, 2, 3, 4, 7, 8, 16, 4095, 4096, 0xffff, 0xdeadbeef, 0x7fffffff, 0xffffffff, UINT64_C(0x7fffffffffff),
        UINT64_C(0x800000000000), UINT64_C(0xffff800000000000), UINTPTR_MAX - 7, UINTPTR_MAX,
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!is_live((DAT_HANDLE)numbers[i])) /* an IA handle is a small number */
            attempt(index, (DAT_HANDLE)numbers[i], "a number");
}

static void try_addresses(int index)
{
    /* Memory that resembles an object: its first 8 bytes point to a table of zeros, or to a table of pointers. */
    static void *zeros[128], *loop[128];
    void *on_stack[4] = { zeros, zeros, zeros, zeros };
    void **on_heap = malloc(256);
    static char *pages;
    if (!pages) {
        pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT(pages != MAP_FAILED && mprotect(pages, 4096, PROT_NONE) == 0 && munmap(pages + 4096, 4096) == 0);
    }
    for (int i = 0; i < 128; i++)
        loop[i] = loop;
    memset(on_heap, 0xff, 256);

    attempt(index, on_stack, "an address of the stack");
    attempt(index, (char *)on_stack + 1, "an odd address of the stack");
    attempt(index, on_heap, "an address of the heap");
    attempt(index, zeros, "the address of zeros");
    attempt(index, loop, "an object that leads to itself");
    attempt(index, (DAT_HANDLE)(uintptr_t)&make_call, "the address of a function");
    attempt(index, pages, "a page that may not be read");
    attempt(index, pages + 4096, "a page that is gone");
    attempt(index, pages + 2 * 4096, "a page of zeros");
    free(on_heap);
}

static void try_objects(int index)
{
    int wanted = calls[index].wanted;
    char what[64];
    for (int kind = 0; kind < KINDS; kind++) {
        if (dead[kind] && !is_live(dead[kind])) {
            snprintf(what, sizeof what, "a freed %s", kind_names[kind]);
            attempt(index, dead[kind], what);
        }
        if (live[kind] && wanted != ANY && wanted != kind) {
            snprintf(what, sizeof what, "a live %s", kind_names[kind]);
            attempt(index, live[kind], what);
        }
        if (live[kind] && kind != IA) {
            snprintf(what, sizeof what, "the inside of a live %s", kind_names[kind]);
            attempt(index, (char *)live[kind] + 1, what);
            attempt(index, (char *)live[kind] + 8, what);
            attempt(index, &live[kind], "the address of a handle");
        }
    }
}

/* ---- Live and freed objects of every kind ------------------------------------------------------------------------ */

static DAT_HANDLE made_or_null(const char *what, DAT_RETURN ret, DAT_HANDLE handle)
{
    DAT_RETURN_TYPE type = (DAT_RETURN_TYPE)DAT_GET_TYPE(ret);
    if (ret == DAT_SUCCESS)
        return handle;
    if (type != DAT_MODEL_NOT_SUPPORTED && ret != (DAT_RETURN)DAT_NOT_IMPLEMENTED)
        fail("%s: %s", what, words(ret));
    printf("left out: the provider does not support %s\n", what);
    return DAT_HANDLE_NULL;
}

static DAT_HANDLE connection_request(DAT_EP_HANDLE from)
{
    OK(dat_ep_connect(from, here, QUAL, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    DAT_EVENT request = next(live[EVD], DAT_CONNECTION_REQUEST_EVENT, "a request");
    return request.event_data.cr_arrival_event_data.cr_handle;
}

static void link_two(void)
{
    OK(dat_evd_create(live[IA], 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG, &linked_evd));
    for (int i = 0; i < 2; i++)
        OK(dat_ep_create(live[IA], live[PZ], linked_evd, linked_evd, linked_evd, NULL, &linked[i]));
    OK(dat_cr_accept(connection_request(linked[0]), linked[1], 0, NULL));
    for (int i = 0; i < 2; i++)
        next(linked_evd, DAT_CONNECTION_EVENT_ESTABLISHED, "the connected pair");
}

static void unlink_two(void)
{
    expect_no_event(linked_evd, "the connected pair");
    OK(dat_ep_disconnect(linked[0], DAT_CLOSE_ABRUPT_FLAG));
    for (int i = 0; i < 2; i++)
        next(linked_evd, DAT_CONNECTION_EVENT_DISCONNECTED, "the connected pair");
    for (int i = 0; i < 2; i++)
        OK(dat_ep_free(linked[i]));
    OK(dat_evd_free(linked_evd));
}

static void create(DAT_HANDLE handles[KINDS + 1], DAT_CONN_QUAL rsp_qual, DAT_CONN_QUAL psp_qual)
{
    DAT_HANDLE handle = DAT_HANDLE_NULL, reserved;
    DAT_RETURN ret;

    handles[IA] = live[IA];
    OK(dat_pz_create(live[IA], &handles[PZ]));
    OK(dat_evd_create(live[IA], 16, DAT_HANDLE_NULL, DAT_EVD_DEFAULT_FLAG & ~DAT_EVD_ASYNC_FLAG, &handles[EVD]));
    OK(make_cno(live[IA]));
    handles[CNO] = made;
    OK(register_lmr(live[IA], DAT_MEM_TYPE_VIRTUAL, NULL, handles[PZ]));
    handles[LMR] = made;
    ret = dat_rmr_create(handles[PZ], &handle);
    handles[RMR] = made_or_null("RMR", ret, handle);
    ret = dat_srq_create(live[IA], handles[PZ], &srq_attr, &handle);
    handles[SRQ] = made_or_null("SRQ", ret, handle);
    OK(dat_ep_create(live[IA], handles[PZ], handles[EVD], handles[EVD], handles[EVD], NULL, &handles[EP]));
    OK(dat_ep_create(live[IA], handles[PZ], handles[EVD], handles[EVD], handles[EVD], NULL, &reserved));
    OK(dat_rsp_create(live[IA], rsp_qual, reserved, handles[EVD], &handles[RSP]));
    OK(dat_psp_create(live[IA], psp_qual, handles[EVD], DAT_PSP_CONSUMER_FLAG, &handles[PSP]));
    handles[KINDS] = reserved;
}

static void destroy(DAT_HANDLE handles[KINDS + 1])
{
    OK(dat_rsp_free(handles[RSP]));
    OK(dat_psp_free(handles[PSP]));
    OK(dat_ep_free(handles[KINDS]));
    OK(dat_ep_free(handles[EP]));
    if (handles[SRQ])
        OK(dat_srq_free(handles[SRQ]));
    if (handles[RMR])
        OK(dat_rmr_free(handles[RMR]));
    OK(dat_lmr_free(handles[LMR]));
    OK(dat_cno_free(handles[CNO]));
    OK(dat_evd_free(handles[EVD]));
    OK(dat_pz_free(handles[PZ]));
}

int main(int argc, char **argv)
{
    char *name = argc > 1 ? argv[1] : "sm0";
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_IA_ATTR adapter;
    DAT_HANDLE closed, kept[KINDS + 1], gone[KINDS + 1];

    signal(SIGSEGV, crashed);
    signal(SIGBUS, crashed);
    signal(SIGABRT, crashed);

    /* The first IA stays open. The second is closed, so its number is no longer valid. */
    OK(dat_ia_open(name, 8, &errors, &live[IA]));
    errors = DAT_HANDLE_NULL;
    OK(dat_ia_open(name, 8, &errors, &closed));
    OK(dat_ia_close(closed, DAT_CLOSE_GRACEFUL_FLAG));
    OK(dat_ia_query(live[IA], &errors, DAT_IA_FIELD_ALL, &adapter, 0, NULL));
    here = adapter.ia_address_ptr;

    create(kept, QUAL + 1, QUAL);
    memcpy(live, kept, sizeof live);
    OK(dat_ep_query(live[EP], DAT_EP_FIELD_ALL, &out.ep));
    ep_attr = srq_ep_attr = out.ep.ep_attr;
    srq_ep_attr.max_recv_dtos = DAT_HW_DEFAULT;
    srq_ep_attr.srq_soft_hw = DAT_HW_DEFAULT;
    segment.lmr_context = lmr_context;
    segment.virtual_address = target.target_address = (DAT_VADDR)(uintptr_t)memory;
    segment.segment_length = target.segment_length = sizeof memory;
    target.rmr_context = rmr_context;

    link_two();
    create(gone, QUAL + 2, QUAL + 3);
    destroy(gone);
    memcpy(dead, gone, sizeof dead);
    dead[IA] = closed;

    /* The handle of the rejected request is now invalid. The next request stays valid, and so does the requesting EP.
     */
    dead[CR] = connection_request(live[EP]);
    OK(dat_cr_reject(dead[CR]));
    next(live[EVD], DAT_CONNECTION_EVENT_PEER_REJECTED, "the rejection");
    OK(dat_ep_reset(live[EP]));
    live[CR] = connection_request(live[EP]);

    for (int index = 0; index < NUM_CALLS; index++) {
        if (calls[index].wanted == RMR && !live[RMR])
            continue; /* no handle of this kind exists; the call may be refused for that reason first */
        if (calls[index].wanted == SRQ && !live[SRQ])
            continue;
        if (!calls[index].null_is_legal)
            attempt(index, DAT_HANDLE_NULL, "null");
        try_numbers(index);
        try_addresses(index);
        try_objects(index);
    }

    /* All live objects are still valid, and can be freed in order. */
    OK(dat_cr_query(live[CR], DAT_CR_FIELD_ALL, &out.cr));
    OK(dat_cr_reject(live[CR]));
    next(live[EVD], DAT_CONNECTION_EVENT_PEER_REJECTED, "the rejection");
    expect_no_event(live[EVD], "the EVD at the end");
    expect_no_event(errors, "the EVD of asynchronous errors");
    unlink_two();
    destroy(kept);
    OK(dat_ia_close(live[IA], DAT_CLOSE_GRACEFUL_FLAG));
    printf("garbage: OK, %d calls refused %u handles\n", NUM_CALLS, refused);
    return 0;
}
