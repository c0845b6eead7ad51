/*
 * perf: measures one figure between two processes, the way a latency-bound consumer uses the API: preposted receives,
 * suppressed sends, one EVD for all completions, polling.
 *
 *   perf -s      [options] MODE A B            server
 *   perf -h host [options] MODE A B            client: prints its figures, as lines of JSON
 *
 *   lat SIZE COUNT        ping-pong over the first connection: half a round trip, "usec"
 *   reap SIZE COUNT       as lat, and each send has a completion, which is dequeued
 *   threads SIZE COUNT    as reap, over all connections concurrently, each with a separate EVD and thread: mean, "usec"
 *   robin SIZE COUNT      as lat, over one connection after the other, for at most 5 seconds
 *   rate SIZE COUNT       messages, from the first post until the server reports the last one: millions/s, "mps"
 *   write SIZE COUNT      RDMA writes, from the first post until the last has completed: millions/s, "mps"; both sides
 *                         also print their processor time, "processor_seconds", and the client the number of writes
 *   connect WIDTH COUNT   makes COUNT connections, WIDTH at a time: connections/s, "per_second"
 *   memory WIDTH COUNT    as connect, then the memory of a process per idle connection: resident KiB, split into
 *                         "private_kib" and "shared_kib" (shared with another process)
 *   idle SIZE SECONDS     waits SECONDS for a message: processor time of all threads, "cpu_percent"
 *   eager SIZE COUNT      ping-pong by RDMA writes into rings that are polled in memory, while three EVDs are polled as
 *                         well: half a round trip, "usec"
 *   polled SIZE COUNT     ping-pong of sends whose receives are polled in memory, without DAT calls: half a round trip,
 *                         "usec"; with -w one way to the server, while the client sleeps
 *   rendezvous SIZE COUNT announced messages: both sides register the memory of each in parts, and the sender writes
 *                         the data: millions/s, "mps"
 *   register SIZE COUNT   registrations of the client: microseconds for new memory, "usec", for the same memory again,
 *                         "again_usec", and for a deregistration, "free_usec"; COUNT is above 64
 *   death SIZE MSEC       the server kills itself by SIGKILL after MSEC: time until the client has its event, "msec"
 *
 *   -P ia     interface adapter [sm0]
 *   -q qual   connection qualifier [45300]
 *   -c N      number of connections; except with `threads`, all are on one EVD [1]
 *   -d N      maximum of outstanding requests, and of posted receives, per connection [512; 8 with -c above 1]
 *   -p N      rate, server: number of clients with one connection each, which start together; the server prints the
 *             line of JSON [1]
 *   -w        sleeps in dat_evd_wait where it would poll
 *   -2        reap: separate EVDs for requests and for receives
 *   -C        reap: sleeps in dat_cno_wait on a CNO of its EVDs, and then dequeues
 *   -T        reap: another thread dequeues the events of the EVD for requests; implies -2
 *   -r        lat: records the time of each round trip and prints percentiles of its half, "p50_usec", "p99_usec",
 *             "p99_9_usec"; each time includes a reading of the clock
 *   -m        uses a sealed memfd, registered as SHARED_VIRTUAL, as memory
 *   -e N      write: posts for N seconds, at most COUNT writes
 *   -t N      time limit in seconds [100]
 *
 * Both sides take the same options. Only return codes and events are checked, and the first byte of the messages of
 * `eager`: dtest and the suites check data.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <signal.h>

#include "perf.h"
#include "perf_evds.h"
#include "perf_mpi.h"

enum { WARM_UP = 2000, MAX_SECONDS = 5, LAST_MESSAGE = 2 };
/* SENT marks the cookie of a request; the cookie also holds the number of requests that complete with it. The cookie
 * of a receive is its endpoint's number. */
#define SENT ((DAT_UINT64)1 << 32)

/* `posted` counts the requests of `next_request`, and `sent` those of them that have completed. `received` counts
 * completed receives. `unsignalled`: requests since the last one with an event. `last`: endpoint of the last
 * receive. */
static long posted, sent, received, unsignalled;
static long last;
/* -e: seconds after which mode `write` posts its last request; 0: no limit. */
static double enough;
/* -r: whether the times of the round trips are recorded, and these times in seconds. */
static int records;
static double *trips;

static void too_long(int number)
{
    static const char text[] = "perf: not finished at the time limit (-t SECONDS)\n";
    (void)number;
    if (write(2, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(1);
}

/* Polls for one completion, or with -w waits for it, and counts it. Does not post the consumed receive again. */
static void poll_once(void)
{
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_RETURN code =
        sleeps ? dat_evd_wait(completions, EVENT_TIMEOUT, 1, &event, &more) : dat_evd_dequeue(completions, &event);
    if (DAT_GET_TYPE(code) == DAT_QUEUE_EMPTY)
        return;
    check_ok("a completion", code);
    const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;
    check_completion(&event);
    if (dto->user_cookie.as_64 < SENT) {
        last = (long)dto->user_cookie.as_64;
        received++;
    } else {
        sent += (long)(dto->user_cookie.as_64 - SENT);
    }
}

static void send_one(long n)
{
    DAT_DTO_COOKIE cookie = {.as_64 = SENT};
    OK(dat_ep_post_send(eps[n], 1, &out, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
}

/* Returns the flags and cookie of the next request of the first connection. Only the last request of each group has
 * an event. Waits while `depth` requests are in flight. */
static DAT_COMPLETION_FLAGS next_request(int is_last, DAT_DTO_COOKIE *cookie)
{
    while (posted - sent >= depth)
        poll_once();
    posted++;
    unsignalled++;
    cookie->as_64 = SENT;
    if (!is_last && unsignalled < (depth + 7) / 8)
        return DAT_COMPLETION_SUPPRESS_FLAG;
    cookie->as_64 = SENT + (DAT_UINT64)unsignalled;
    unsignalled = 0;
    return DAT_COMPLETION_DEFAULT_FLAG;
}

static void await_received(long count)
{
    while (received < count)
        poll_once();
}

/* Dequeues until `count` receives have completed since the start, and posts each of them again immediately. */
static void take(long count)
{
    long before;
    while ((before = received) < count) {
        poll_once();
        if (received > before)
            post_receive(last);
    }
}

static void report(const char *what, long count, const char *figure, double value)
{
    printf("{\"what\":\"%s\",\"size\":%ld,\"count\":%ld,\"%s\":%.7g}\n", what, size, count, figure, value);
}

/* Prints half the round trip time, measured by the client. */
static void report_half(const char *what, long count, double usec)
{
    if (host != NULL)
        report(what, count, "usec", usec);
}

/* Whether message n is the last: it is the last of `count`, or MAX_SECONDS have passed, which is checked at every 16th
 * message. The first byte of the last message informs the server. */
static int is_last(long n, long count, double begin)
{
    if (n + 1 < count && (n % 16 != 0 || seconds() - begin < MAX_SECONDS))
        return 0;
    outgoing[0] = LAST_MESSAGE;
    return 1;
}

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Returns half of the round trip time that this share of the round trips does not exceed, in microseconds. */
static double percentile(long count, double share)
{
    long at = (long)((double)count * share);
    return trips[at < count ? at : count - 1] * 1e6 / 2;
}

static void report_percentiles(const char *what, long count)
{
    qsort(trips, (size_t)count, sizeof *trips, compare);
    printf("{\"what\":\"%s\",\"size\":%ld,\"count\":%ld,\"p50_usec\":%.7g,\"p99_usec\":%.7g,\"p99_9_usec\":%.7g}\n", what, size,
           count, percentile(count, 0.5), percentile(count, 0.99), percentile(count, 0.999));
}

static void ping(const char *what, long count, long warm_up, int is_robin)
{
    long n, turn = 0;
    double begin = seconds(), before = 0, now;
    for (n = -warm_up; n < count; n++) {
        if (is_robin && n < 0 && seconds() - begin > MAX_SECONDS)
            n = 0;
        if (n == 0)
            before = begin = seconds();
        if (is_robin && n >= 0 && is_last(n, count, begin))
            count = n + 1;
        send_one(is_robin ? turn % connections : 0);
        if (turn > 0)
            post_receive(last); /* while the reply is in flight */
        await_received(++turn);
        if (records && n >= 0) {
            now = seconds();
            trips[n] = now - before;
            before = now;
        }
    }
    if (records)
        report_percentiles(what, count);
    else
        report(what, count, "usec", (seconds() - begin) * 1e6 / 2 / (double)count);
}

static void pong(long count, int is_robin)
{
    long n;
    for (n = 0; is_robin ? incoming[0] != LAST_MESSAGE : n < count; n++) {
        await_received(n + 1);
        send_one(last);
        post_receive(last); /* while the reply is in flight */
    }
}

static void latency(const char *what, long count, int is_robin)
{
    long warm_up = count / 10 + connections < WARM_UP ? count / 10 + connections : WARM_UP;
    if (host != NULL)
        ping(what, count, warm_up, is_robin);
    else
        pong(warm_up + count, is_robin);
}

static void to_all(void)
{
    long n;
    for (n = 0; n < processes; n++)
        send_one(n);
}

/* Each client sends `count` messages, and the server receives the messages of all clients. Returns the time. The server
 * sends each client a message when it is ready, and another when it has received all messages. */
static double burst(long count)
{
    long n, before = received;
    double begin;
    if (host == NULL) {
        begin = seconds();
        to_all();
        take(before + count * processes);
        to_all();
        return seconds() - begin;
    }
    await_received(before + 1);
    begin = seconds();
    for (n = 1; n <= count; n++) {
        DAT_DTO_COOKIE cookie;
        DAT_COMPLETION_FLAGS flags = next_request(0, &cookie);
        OK(dat_ep_post_send(eps[0], 1, &out, cookie, flags));
    }
    await_received(before + 2);
    return seconds() - begin;
}

static void rate(long count)
{
    double lasted;
    burst(count / 10 + 1);
    lasted = burst(count);
    if ((host == NULL) == (processes > 1))
        report("rate", count, "mps", (double)(count * processes) / lasted / 1e6);
}

/* Posts RDMA writes. Returns millions per second, measured until all have completed. */
static double write_burst(long count, double lasts)
{
    long before = posted;
    double begin = seconds();
    int is_last = 0;
    while (!is_last) {
        DAT_DTO_COOKIE cookie;
        is_last = posted - before + 1 == count || (lasts > 0 && seconds() - begin >= lasts);
        DAT_COMPLETION_FLAGS flags = next_request(is_last, &cookie);
        OK(dat_ep_post_rdma_write(eps[0], 1, &out, cookie, &remote, flags));
    }
    while (sent < posted)
        poll_once();
    return (double)(posted - before) / (seconds() - begin) / 1e6;
}

/* Processor time of all threads of this process, in seconds. */
static double processor_seconds(void)
{
    struct timespec used;
    EXPECT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0);
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

static void writes(long count)
{
    double before = processor_seconds(), rate = 0;
    if (host == NULL) {
        take(1);
    } else {
        remote = (DAT_RMR_TRIPLET){.rmr_context = (DAT_RMR_CONTEXT)there.key,
                                   .target_address = there.address,
                                   .segment_length = (DAT_VLEN)size};
        write_burst(count / 10 + 1, enough / 10);
        rate = write_burst(count, enough);
    }
    report("write", posted, "processor_seconds", processor_seconds() - before);
    if (host != NULL) {
        report("write", posted, "mps", rate);
        send_one(0);
    }
}

/* Sums the values of these two names in this process's memory statistics in /proc. */
static long kib_of(const char *first, const char *second)
{
    char line[256];
    long sum = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    if (file == NULL)
        fail("perf: /proc/self/smaps_rollup cannot be read");
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, first, strlen(first)) == 0 || strncmp(line, second, strlen(second)) == 0)
            sum += atol(strchr(line, ':') + 1);
    fclose(file);
    return sum;
}

static void many(const char *what, long width, long count)
{
    int is_memory = strcmp(what, "memory") == 0;
    long private_before = kib_of("Private_Clean:", "Private_Dirty:");
    long shared_before = kib_of("Shared_Clean:", "Shared_Dirty:");
    double begin, lasted, own, common;

    create_eps(count, is_memory ? 0 : 1);
    begin = seconds();
    if (host == NULL)
        accept_all(count);
    else
        connect_all(count, width);
    lasted = seconds() - begin;
    if (host != NULL && is_memory) {
        pause_for(0.5);
        own = (double)(kib_of("Private_Clean:", "Private_Dirty:") - private_before) / (double)count;
        common = (double)(kib_of("Shared_Clean:", "Shared_Dirty:") - shared_before) / (double)count;
        printf("{\"what\":\"memory\",\"count\":%ld,\"resident_kib\":%.3f,\"private_kib\":%.3f,\"shared_kib\":%.3f}\n",
               count, own + common, own, common);
    } else if (host != NULL) {
        report(what, count, "per_second", (double)count / lasted);
    }
    disconnect_all(count);
}

static void idle(long duration)
{
    if (host == NULL) {
        pause_for((double)duration);
        send_one(0);
        return;
    }
    DAT_EVENT event;
    DAT_COUNT more;
    double begin = seconds(), before = processor_seconds(), used;
    OK(dat_evd_wait(completions, DAT_TIMEOUT_INFINITE, 1, &event, &more));
    used = processor_seconds() - before;
    report("idle", duration, "cpu_percent", used / (seconds() - begin) * 100);
}

/* Mode `death`. The server sends the time at which it will kill itself, by the clock that both processes share, and
 * does not return. The client prints the time from then until its event. */
static void death(long milliseconds)
{
    double when;
    if (host == NULL) {
        when = seconds() + (double)milliseconds / 1e3;
        memcpy(outgoing, &when, sizeof when);
        send_one(0);
        pause_for(when - seconds() - 0.001);
        while (seconds() < when)
            ;
        EXPECT(kill(getpid(), SIGKILL) == 0);
        pause();
        return;
    }
    sleeps = 1;
    await_received(1);
    memcpy(&when, incoming, sizeof when);
    DAT_EVENT event = next_of_two(DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_BROKEN);
    (void)event;
    report("death", milliseconds, "msec", (seconds() - when) * 1e3);
}

static void run(const char *mode, long count)
{
    long all = host == NULL ? connections * processes : connections;
    create_eps(all, depth);
    if (host == NULL)
        accept_all(all);
    else
        connect_all(all, 64);
    if (strcmp(mode, "lat") == 0 || strcmp(mode, "robin") == 0)
        latency(mode, count, strcmp(mode, "robin") == 0);
    else if (strcmp(mode, "reap") == 0)
        report_half(mode, count, reap(count));
    else if (has_threads)
        report_half(mode, count, threads(count));
    else if (strcmp(mode, "rate") == 0)
        rate(count);
    else if (strcmp(mode, "write") == 0)
        writes(count);
    else if (strcmp(mode, "idle") == 0)
        idle(count);
    else
        death(count);
    fflush(stdout);
    if (strcmp(mode, "death") != 0)
        disconnect_all(all);
}

/* Runs a mode of perf_mpi.h. */
static void run_mpi(const char *mode, long count)
{
    double figure = 0;
    int is_lat = strcmp(mode, "eager") == 0 || strcmp(mode, "polled") == 0;
    mpi_create_ep();
    if (host == NULL)
        accept_all(1);
    else
        connect_all(1, 1);
    if (strcmp(mode, "eager") == 0)
        figure = mpi_eager(size, count);
    else if (strcmp(mode, "polled") == 0)
        figure = sleeps ? mpi_polled_one_way(size, count) : mpi_polled(size, count);
    else if (strcmp(mode, "rendezvous") == 0)
        figure = mpi_rendezvous(size, count);
    else if (host != NULL)
        mpi_registration(size, count);
    if (host != NULL && strcmp(mode, "register") != 0)
        report(mode, count, is_lat ? "usec" : "mps", figure);
    fflush(stdout);
    disconnect_all(1);
}

static int is_mpi(const char *mode)
{
    return strcmp(mode, "eager") == 0 || strcmp(mode, "polled") == 0 || strcmp(mode, "rendezvous") == 0 || strcmp(mode, "register") == 0;
}

static int is_mode(const char *mode)
{
    static const char *const modes[] = {"lat",     "reap",   "threads", "robin", "rate",  "write",      "connect",
                                        "memory",  "idle",   "death",   "eager", "rendezvous", "register", "polled"};
    size_t n;
    for (n = 0; n < sizeof modes / sizeof *modes; n++)
        if (strcmp(mode, modes[n]) == 0)
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    long limit = 100, count;
    int option;
    const char *mode;
    while ((option = getopt(argc, argv, "sh:P:q:c:d:p:w2CTmre:t:")) != -1) {
        switch (option) {
        case 's': break;
        case 'h': host = optarg; break;
        case 'P': name = optarg; break;
        case 'q': qual = strtoull(optarg, NULL, 0); break;
        case 'c': connections = atol(optarg); break;
        case 'd': depth = atol(optarg); break;
        case 'p': processes = atol(optarg); break;
        case 'w': sleeps = 1; break;
        case '2': has_two_evds = 1; break;
        case 'C': has_cno = 1; break;
        case 'T': has_reaper = has_two_evds = 1; break;
        case 'm': is_shared = 1; break;
        case 'r': records = 1; break;
        case 'e': enough = atof(optarg); break;
        case 't': limit = atol(optarg); break;
        default: return 2;
        }
    }
    if (depth == 0)
        depth = connections > 1 ? 8 : 512;
    mode = argc - optind == 3 ? argv[optind] : "";
    size = is_mode(mode) ? atol(argv[optind + 1]) : 0;
    count = is_mode(mode) ? atol(argv[optind + 2]) : 0;
    if (size < 1 || count < 1 || connections < 1 || depth < 1 || processes < 1 || limit < 1 || enough < 0) {
        fprintf(stderr, "usage: perf -s|-h host [options] MODE A B; the head of test/c/perf.c explains them\n");
        return 2;
    }
    if (strcmp(mode, "death") == 0 && size < (long)sizeof(double))
        fail("perf: mode death needs messages of at least %zu bytes", sizeof(double));
    has_threads = strcmp(mode, "threads") == 0;
    if ((has_two_evds || has_cno) && strcmp(mode, "reap") != 0)
        fail("perf: -2, -C and -T are for mode reap only");
    if (records && strcmp(mode, "lat") != 0)
        fail("perf: -r is for mode lat only");
    if (records && (trips = calloc((size_t)count, sizeof *trips)) == NULL)
        fail("perf: no memory for %ld round trips", count);
    if (records)
        memset(trips, 1, (size_t)count * sizeof *trips); /* no page faults while it measures */
    /* The alarm ends the program if the peer ends, never starts, or hangs. */
    EXPECT(signal(SIGALRM, too_long) != SIG_ERR);
    alarm((unsigned)limit);
    open_all();
    if (strcmp(mode, "connect") == 0 || strcmp(mode, "memory") == 0)
        many(mode, size, count);
    else if (is_mpi(mode))
        run_mpi(mode, count);
    else
        run(mode, count);
    fflush(stdout);
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    return 0;
}
