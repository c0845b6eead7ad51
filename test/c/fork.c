/*
 * Checks a process that forks. In the child every handle of the parent is invalid, but the child can open the adapter
 * again. The exit of the child does not affect the connection of the parent. With the argument "threads", the parent
 * forks while its other threads make DAT calls.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGE = 64, QUAL = 0x0afffab2, EXTRA_EVDS = 64, FORKS = 24, CHILD_SECONDS = 120 };

static const char *name = "sm0";
static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_PSP_HANDLE psp;
static DAT_CNO_HANDLE cno;
static DAT_EVD_HANDLE errors = DAT_HANDLE_NULL, events[2], completions[2];
static DAT_EP_HANDLE ep[2];
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT context;
static DAT_IA_ADDRESS_PTR here;
static unsigned char memory[2 * MESSAGE];

static void prepare(void)
{
    DAT_OS_WAIT_PROXY_AGENT no_agent = { NULL, NULL };
    DAT_REGION_DESCRIPTION region = { .for_va = memory };
    DAT_IA_ATTR adapter;
    OK(dat_ia_open((char *)name, 8, &errors, &ia));
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &adapter, 0, NULL));
    here = adapter.ia_address_ptr;
    OK(dat_pz_create(ia, &pz));
    OK(dat_cno_create(ia, no_agent, &cno));
    for (int n = 0; n < 2; n++) {
        OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG, &events[n]));
        OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &completions[n]));
        OK(dat_ep_create(ia, pz, completions[n], completions[n], events[n], NULL, &ep[n]));
    }
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &context, NULL,
                      NULL, NULL));
    OK(dat_psp_create(ia, QUAL, events[1], DAT_PSP_CONSUMER_FLAG, &psp));
}

static void connect_both(void)
{
    OK(dat_ep_connect(ep[0], here, QUAL, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    DAT_EVENT event = next(events[1], DAT_CONNECTION_REQUEST_EVENT, "the request");
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep[1], 0, NULL));
    for (int n = 0; n < 2; n++)
        next(events[n], DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
}

static void exchange(unsigned char byte)
{
    DAT_LMR_TRIPLET from = { .lmr_context = context, .virtual_address = (uintptr_t)memory, .segment_length = MESSAGE };
    DAT_LMR_TRIPLET to = from;
    DAT_DTO_COOKIE cookie = { .as_64 = byte };
    to.virtual_address += MESSAGE;
    memset(memory, byte, MESSAGE);
    OK(dat_ep_post_recv(ep[1], 1, &to, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    OK(dat_ep_post_send(ep[0], 1, &from, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    completed(completions[1], ep[1], byte, DAT_DTO_SUCCESS, MESSAGE, "the receive");
    completed(completions[0], ep[0], byte, DAT_DTO_SUCCESS, MESSAGE, "the send");
    EXPECT(memcmp(memory, memory + MESSAGE, MESSAGE) == 0);
}

static void finish(void)
{
    OK(dat_ep_disconnect(ep[0], DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_psp_free(psp));
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
}

#define REFUSED(call) EXPECT(DAT_GET_TYPE(call) == DAT_INVALID_HANDLE)

/* Checks in the child that every handle of the parent is invalid. */
static void refused(void)
{
    DAT_OS_WAIT_PROXY_AGENT no_agent = { NULL, NULL };
    DAT_DTO_COOKIE cookie = { .as_64 = 0 };
    DAT_HANDLE_TYPE type;
    DAT_IA_ATTR adapter;
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_EVD_HANDLE evd;
    DAT_PZ_HANDLE other;
    DAT_PZ_PARAM zone;
    REFUSED(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &adapter, 0, NULL));
    REFUSED(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    REFUSED(dat_pz_create(ia, &other));
    REFUSED(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd));
    REFUSED(dat_pz_query(pz, DAT_PZ_FIELD_ALL, &zone));
    REFUSED(dat_pz_free(pz));
    REFUSED(dat_cno_modify_agent(cno, no_agent));
    REFUSED(dat_cno_wait(cno, 0, &evd));
    REFUSED(dat_evd_wait(errors, 0, 1, &event, &more));
    REFUSED(dat_psp_free(psp));
    REFUSED(dat_lmr_free(lmr));
    for (int n = 0; n < 2; n++) {
        REFUSED(dat_evd_dequeue(completions[n], &event));
        REFUSED(dat_evd_wait(events[n], 0, 1, &event, &more));
        REFUSED(dat_ep_post_recv(ep[n], 0, NULL, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        REFUSED(dat_ep_post_send(ep[n], 0, NULL, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        REFUSED(dat_ep_disconnect(ep[n], DAT_CLOSE_ABRUPT_FLAG));
        REFUSED(dat_ep_free(ep[n]));
        REFUSED(dat_get_handle_type(ep[n], &type));
    }
}

/* Checks that the parent's handles are invalid, also while the child has at least as many objects. Then opens the
 * adapter, closes it, and opens it again. */
static void child(void)
{
    DAT_IA_HANDLE own;
    DAT_EVD_HANDLE own_errors = DAT_HANDLE_NULL, more[EXTRA_EVDS];
    refused();
    OK(dat_ia_open((char *)name, 8, &own_errors, &own));
    for (int n = 0; n < EXTRA_EVDS; n++)
        OK(dat_evd_create(own, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &more[n]));
    refused();
    OK(dat_ia_close(own, DAT_CLOSE_ABRUPT_FLAG));

    /* The child opens the same adapter and closes it again. */
    errors = DAT_HANDLE_NULL;
    OK(dat_ia_open((char *)name, 8, &errors, &ia));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    /* The adapter is opened once more, and left open at exit: the exit must not affect the parent. */
    errors = DAT_HANDLE_NULL;
    OK(dat_ia_open((char *)name, 8, &errors, &ia));
}

static void await(pid_t pid)
{
    int status;
    EXPECT(waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail("a child process ended with wait status 0x%x, expected 0", (unsigned)status);
}

static int stop;

/* Repeats calls that take locks of the library, until `stop` is set. */
static void *work(void *unused)
{
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        DAT_EVD_HANDLE asynchronous = DAT_HANDLE_NULL, evd;
        DAT_IA_HANDLE adapter;
        DAT_PZ_HANDLE zone;
        DAT_EP_HANDLE end;
        OK(dat_ia_open((char *)name, 8, &asynchronous, &adapter));
        OK(dat_pz_create(adapter, &zone));
        OK(dat_evd_create(adapter, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &evd));
        for (int n = 0; n < 20; n++) {
            OK(dat_ep_create(adapter, zone, DAT_HANDLE_NULL, DAT_HANDLE_NULL, evd, NULL, &end));
            dat_ep_connect(end, here, QUAL + 1, 1000, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG);
            OK(dat_ep_free(end));
        }
        OK(dat_ia_close(adapter, DAT_CLOSE_ABRUPT_FLAG));
    }
    return unused;
}

int main(int argc, char **argv)
{
    int with_threads = argc > 1 && strcmp(argv[1], "threads") == 0;
    pthread_t threads[2];
    prepare();
    connect_both();
    exchange(1);
    for (int n = 0; with_threads && n < 2; n++)
        EXPECT(pthread_create(&threads[n], NULL, work, NULL) == 0);
    for (int n = 0; n < (with_threads ? FORKS : 2); n++) {
        fflush(NULL);
        pid_t pid = fork();
        EXPECT(pid >= 0);
        if (pid == 0) {
            alarm(CHILD_SECONDS); /* ends a wait for a lock that is never released */
            child();
            if (n % 2)
                _exit(0);
            exit(0);
        }
        exchange((unsigned char)(2 + n));
        await(pid);
        exchange((unsigned char)(100 + n));
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int n = 0; with_threads && n < 2; n++)
        EXPECT(pthread_join(threads[n], NULL) == 0);
    OK(dat_ep_disconnect(ep[0], DAT_CLOSE_ABRUPT_FLAG));
    for (int n = 0; n < 2; n++) {
        next(events[n], DAT_CONNECTION_EVENT_DISCONNECTED, "the end of the connection");
        OK(dat_ep_reset(ep[n]));
    }
    connect_both(); /* the forks have not changed the adapter's address */
    exchange(99);
    finish();
    printf("fork: OK\n");
    return 0;
}
