/*
 * cancel.c - pthread_cancel during every DAT call, except those of the registry and dat_strerror. Compiled for DAT 1.2
 * and for DAT 2.0. The calls are in cancel_calls.h, those that only DAT 2.0 has in cancel_2_0.h.
 *
 *   cancel IA pending ROUNDS      every call except dat_evd_wait and dat_cno_wait is made while a cancellation request
 *                                 is pending: it returns as usual
 *   cancel IA anywhere ROUNDS     the same calls, and waits for events; the request arrives at a random moment. The
 *                                 first round has no request: it counts the calls
 *   cancel IA waits ROUNDS        the request races with the event that the thread waits for: the event is not lost
 *
 * A call that is a cancellation point by mistake aborts the process, because the provider's functions do not permit
 * unwinding. The process connects to itself. With a further argument LIBRARY, functions of this provider library
 * are also called directly; the adapter's line must name the same library without a path.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "cancel_calls.h"
#include "check.h"

/* Calls the functions of a provider that initialise it, end it, open an IA and close an IA: directly, as a libdat does
 * that does not defer cancellation. */
static void call_provider(const char *library)
{
    void *handle = dlopen(library, RTLD_NOW);
    DAT_PROVIDER_INIT_FUNC init;
    DAT_PROVIDER_FINI_FUNC fini;
    DAT_PROVIDER_INFO info = {.dapl_version_major = DAT_VERSION_MAJOR,
                              .dapl_version_minor = DAT_VERSION_MINOR,
                              .is_thread_safe = DAT_TRUE};
    DAT_IA_HANDLE own, another = DAT_HANDLE_NULL;
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    snprintf(info.ia_name, sizeof info.ia_name, "another");
    EXPECT(handle != NULL);
    *(void **)&init = dlsym(handle, DAT_PROVIDER_INIT_FUNC_STR);
    *(void **)&fini = dlsym(handle, DAT_PROVIDER_FINI_FUNC_STR);
    EXPECT(init && fini);
    OK(dats_get_ia_handle(ia, &own));
    const DAT_PROVIDER *table = *(DAT_PROVIDER **)own;
    pthread_cancel(pthread_self());
    init(NULL, NULL);
    init(&info, "");
    fini(&info);
    CALL(table->ia_open_func(name, 8, &errors, &another));
    CALL(table->ia_close_func(another, DAT_CLOSE_ABRUPT_FLAG));
}

static void close_ia(void *unused)
{
    DAT_IA_HANDLE closing = ia;
    (void)unused;
#if DAT_VERSION_MAJOR >= 2
    if (queried != DAT_HANDLE_NULL)
        OK(dat_ib_close_query(queried));
    queried = DAT_HANDLE_NULL;
#endif
    ia = DAT_HANDLE_NULL;
    if (closing != DAT_HANDLE_NULL)
        OK(dat_ia_close(closing, DAT_CLOSE_ABRUPT_FLAG));
}

static void *make_all_calls(void *objects)
{
    pthread_cleanup_push(close_ia, NULL);
    if (is_pending)
        pthread_cancel(pthread_self());
    open_all(objects);
    create_all(objects);
    first_connection(objects);
    second_connection(objects);
#if DAT_VERSION_MAJOR >= 2
    make_added_calls(objects);
#endif
    end_all(objects);
    is_done = 1;
    pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}

static void *make_provider_calls(void *library)
{
    call_provider(library);
    is_done = 1;
    pthread_testcancel();
    return NULL;
}

/* Runs `body` in a separate thread. Returns whether that thread was cancelled. */
static int run(void *(*body)(void *), void *argument, void (*meanwhile)(pthread_t))
{
    pthread_t thread;
    void *result;
    EXPECT(pthread_create(&thread, NULL, body, argument) == 0);
    if (meanwhile)
        meanwhile(thread);
    EXPECT(pthread_join(thread, &result) == 0);
    return result == PTHREAD_CANCELED;
}

static void pause_for(int most)
{
    for (volatile int n = most > 0 ? rand() % most : 0; n > 0; n--)
        ;
}

static long total;

static void cancel_somewhere(pthread_t thread)
{
    long target = rand() % total;
    while (steps < target && !is_done)
        sched_yield();
    pause_for(20000);
    pthread_cancel(thread);
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    EXPECT(directory != NULL);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

/* After each round, waits until as many descriptors are open as after the first one. */
static void all_calls(int pending, int rounds)
{
    static struct objects objects;
    int descriptors = 0;
    is_pending = pending;
    for (int n = 0; n < rounds; n++) {
        is_done = 0;
        steps = 0;
        int cancelled = run(make_all_calls, &objects, !pending && n > 0 ? cancel_somewhere : NULL);
        total = n > 0 ? total : steps;
        EXPECT(pending ? cancelled && is_done : cancelled || is_done);
        EXPECT(ia == DAT_HANDLE_NULL);
        if (n == 0)
            descriptors = open_descriptors();
        while (open_descriptors() > descriptors)
            sched_yield();
    }
}

static void provider_calls(char *library)
{
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    is_pending = 1;
    is_done = 0;
    OK(dat_ia_open(name, 8, &errors, &ia));
    EXPECT(run(make_provider_calls, library, NULL) && is_done);
    close_ia(NULL);
}

/* --- an event and a cancellation request at the same time --- */

static DAT_EVD_HANDLE software;
static DAT_CNO_HANDLE cno;

static void *wait_on_evd(void *unused)
{
    DAT_EVENT event;
    DAT_COUNT more;
    (void)unused;
    is_done = 1;
    if (dat_evd_wait(software, DAT_TIMEOUT_INFINITE, 1, &event, &more) == DAT_SUCCESS)
        is_done = 2;
    return NULL;
}

static void *wait_on_cno(void *unused)
{
    DAT_EVD_HANDLE ready = DAT_HANDLE_NULL;
    (void)unused;
    is_done = 1;
    if (dat_cno_wait(cno, DAT_TIMEOUT_INFINITE, &ready) == DAT_SUCCESS && ready == software)
        is_done = 2;
    return NULL;
}

static void post_and_cancel(pthread_t thread)
{
    DAT_EVENT event = {.event_number = DAT_SOFTWARE_EVENT};
    int first = rand() % 2;
    while (!is_done)
        sched_yield();
    pause_for(40000);
    if (first)
        pthread_cancel(thread);
    pause_for(4000);
    OK(dat_evd_post_se(software, &event));
    pause_for(4000);
    if (!first)
        pthread_cancel(thread);
}

static void just_cancel(pthread_t thread)
{
    while (!is_done)
        sched_yield();
    pause_for(40000);
    pthread_cancel(thread);
}

static void waits(int rounds)
{
    DAT_OS_WAIT_PROXY_AGENT none = {NULL, NULL};
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL, ready;
    DAT_EVENT event;
    int cancelled_of[2] = {0, 0}, taken_of[2] = {0, 0};
    OK(dat_ia_open(name, 8, &errors, &ia));
    OK(dat_cno_create(ia, none, &cno));
    for (int n = 0; n < rounds; n++) {
        int on_cno = n % 2;
        OK(dat_evd_create(ia, 8, on_cno ? cno : DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &software));
        is_done = 0;
        EXPECT(run(on_cno ? wait_on_cno : wait_on_evd, NULL, just_cancel));
        is_done = 0;
        /* glibc may report a thread as cancelled although its function has just returned, so the effects of the call
         * are checked. */
        int cancelled = run(on_cno ? wait_on_cno : wait_on_evd, NULL, post_and_cancel), has_returned = is_done == 2;
        EXPECT(cancelled || has_returned);
        if (on_cno && !has_returned) {
            OK(dat_cno_wait(cno, EVENT_TIMEOUT, &ready));
            EXPECT(ready == software);
        }
        if (on_cno || !has_returned)
            OK(dat_evd_dequeue(software, &event));
        expect_no_event(software, "the EVD after its software event");
        OK(dat_evd_free(software));
        (has_returned ? taken_of : cancelled_of)[on_cno]++;
    }
    OK(dat_cno_free(cno));
    close_ia(NULL);
    printf("EVD waits: %d cancelled, %d returned the event; CNO waits: %d cancelled, %d returned the event\n",
           cancelled_of[0], taken_of[0], cancelled_of[1], taken_of[1]);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        fail("usage: cancel IA pending|anywhere|waits ROUNDS [LIBRARY]");
    name = argv[1];
    int rounds = atoi(argv[3]);
    if (!strcmp(argv[2], "waits"))
        waits(rounds);
    else
        all_calls(!strcmp(argv[2], "pending"), rounds);
    if (argc > 4)
        provider_calls(argv[4]);
    printf("cancel: OK, DAT %d.%d, %d rounds", DAT_VERSION_MAJOR, DAT_VERSION_MINOR, rounds);
    if (total > 0)
        printf(" of %ld calls, RMRs: %s, SRQs: %s", total, has_rmrs ? "yes" : "no", has_srqs ? "yes" : "no");
    printf("\n");
    return 0;
}
