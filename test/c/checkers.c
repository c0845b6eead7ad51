/*
 * checkers.c - a program to run under valgrind and ThreadSanitizer, which report remaining memory and threads at exit,
 * and data races.
 *
 *   checkers NAME closed     sends a connection request, so that the provider's threads run; closes the adapter; ends
 *   checkers NAME open       the same without the close
 *   checkers NAME handed     one thread hands memory to another through an event, with ThreadSanitizer annotations
 *   checkers NAME race       two threads change a variable without synchronization
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <pthread.h>

#include "check.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#else
#define __tsan_release(address)
#define __tsan_acquire(address)
#endif

static DAT_IA_HANDLE ia;
static DAT_EVD_HANDLE events;
static int shared;

static void *hand_over(void *argument)
{
    int *number = argument;
    DAT_EVENT event = {.event_number = DAT_SOFTWARE_EVENT, .event_data.software_event_data.pointer = number};
    *number = 42;
    __tsan_release(number);
    OK(dat_evd_post_se(events, &event));
    return NULL;
}

static void *change(void *argument)
{
    shared++;
    return argument;
}

/* Requests a connection, so that the engine thread and the timer thread run. */
static void request_connection(void)
{
    DAT_EVD_HANDLE completions;
    DAT_IA_ATTR adapter;
    DAT_PSP_HANDLE psp;
    DAT_PZ_HANDLE pz;
    DAT_EP_HANDLE ep;
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &adapter, 0, NULL));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &completions));
    OK(dat_psp_create(ia, 0x0afffab2, events, DAT_PSP_CONSUMER_FLAG, &psp));
    OK(dat_ep_create(ia, pz, completions, completions, events, NULL, &ep));
    OK(dat_ep_connect(ep, adapter.ia_address_ptr, 0x0afffab2, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    next(events, DAT_CONNECTION_REQUEST_EVENT, "the request");
}

static void in_two_threads(const char *how)
{
    static int number;
    pthread_t thread;
    int is_race = strcmp(how, "race") == 0;
    EXPECT(pthread_create(&thread, NULL, is_race ? change : hand_over, &number) == 0);
    if (is_race) {
        shared++;
    } else {
        DAT_EVENT event = next(events, DAT_SOFTWARE_EVENT, "the event of the thread");
        __tsan_acquire(event.event_data.software_event_data.pointer);
        EXPECT(*(int *)event.event_data.software_event_data.pointer == 42);
    }
    pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    const char *how = argc > 2 ? argv[2] : "closed";
    OK(dat_ia_open(argc > 1 ? argv[1] : "sm0", 8, &errors, &ia));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_SOFTWARE_FLAG, &events));
    if (strcmp(how, "closed") == 0 || strcmp(how, "open") == 0)
        request_connection();
    else
        in_two_threads(how);
    if (strcmp(how, "open") != 0)
        OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    printf("checkers: OK, %s\n", how);
    return 0;
}
