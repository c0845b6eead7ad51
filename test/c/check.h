/*
 * check.h - helpers of the small test programs: check a return code or a condition, wait for an event or a completion,
 * check that no event is queued. A failed check prints a message and exits with status 1; a wait fails after 300 s.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dat/udat.h>

#define SECOND 1000000u

/* Time limit for one event: much longer than an event ever takes, even under valgrind on a busy machine. */
#define EVENT_TIMEOUT (300 * SECOND)

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...)
{
    va_list args;
    fflush(stdout);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static inline const char *words(DAT_RETURN ret)
{
    static char text[256];
    const char *major = "?", *minor = "?";
    dat_strerror(ret, &major, &minor);
    snprintf(text, sizeof text, "%s %s (0x%08x)", major, minor, ret);
    return text;
}

/* Fails the program unless the call succeeds. */
#define OK(call) check_ok(#call, (call))

static inline void check_ok(const char *call, DAT_RETURN ret)
{
    if (ret != DAT_SUCCESS)
        fail("%s: %s", call, words(ret));
}

/* Fails the program unless the event is the completion of a transfer with status 0. */
static inline void check_completion(const DAT_EVENT *event)
{
    if (event->event_number != DAT_DTO_COMPLETION_EVENT)
        fail("event 0x%x, expected a DTO completion", (unsigned)event->event_number);
    if (event->event_data.dto_completion_event_data.status != DAT_DTO_SUCCESS)
        fail("DTO completion with status %u, expected 0", (unsigned)event->event_data.dto_completion_event_data.status);
}

/* Fails the program unless the condition holds. */
#define EXPECT(condition)                                                        \
    do {                                                                         \
        if (!(condition))                                                        \
            fail("%s:%d: condition is false: %s", __FILE__, __LINE__, #condition); \
    } while (0)

/* Waits for the next event of evd, which must have this number. */
static inline DAT_EVENT next(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number, const char *what)
{
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_RETURN ret = dat_evd_wait(evd, EVENT_TIMEOUT, 1, &event, &more);
    if (ret != DAT_SUCCESS)
        fail("%s: %s", what, words(ret));
    if (event.event_number != number)
        fail("%s: event 0x%x, expected 0x%x", what, (unsigned)event.event_number, (unsigned)number);
    EXPECT(event.evd_handle == evd);
    return event;
}

/* Waits for the next event of evd, which must complete a DTO of ep with this cookie and status. After success the
 * length is also checked. */
static inline void completed(DAT_EVD_HANDLE evd, DAT_EP_HANDLE ep, uint64_t cookie, DAT_DTO_COMPLETION_STATUS status,
                             size_t length, const char *what)
{
    DAT_EVENT event = next(evd, DAT_DTO_COMPLETION_EVENT, what);
    const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;
    if (dto->ep_handle != ep || dto->user_cookie.as_64 != cookie || dto->status != status)
        fail("%s: EP %p, cookie 0x%llx, status %d; expected EP %p, cookie 0x%llx, status %d", what,
             (void *)dto->ep_handle, (unsigned long long)dto->user_cookie.as_64, (int)dto->status, (void *)ep,
             (unsigned long long)cookie, (int)status);
    if (status == DAT_DTO_SUCCESS && dto->transfered_length != length)
        fail("%s: %llu bytes, expected %zu", what, (unsigned long long)dto->transfered_length, length);
}

/* Checks that no event is queued on evd. */
static inline void expect_no_event(DAT_EVD_HANDLE evd, const char *what)
{
    DAT_EVENT event;
    DAT_RETURN ret = dat_evd_dequeue(evd, &event);
    if (ret == DAT_SUCCESS)
        fail("%s: unexpected event 0x%x", what, (unsigned)event.event_number);
    if (ret != DAT_QUEUE_EMPTY)
        fail("%s: %s, expected DAT_QUEUE_EMPTY without a subtype", what, words(ret));
}

#endif
