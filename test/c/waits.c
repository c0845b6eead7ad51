/*
 * waits.c - two processes that wait for each other many times, or for a long time.
 *
 *   waits ia WAITS THREADS apart|together    WAITS waits in all; one processor per process, or one for both processes
 *   waits ia WAITS THREADS apart|together polling
 *                                            the same, but each wait is a loop of dat_evd_dequeue
 *   waits ia idle SECONDS                    connected and idle: each process uses less than 1 % of a processor
 *
 * Without `polling` and `idle`, the program fails if less than a tenth of its waits sleep, or if it uses more than 1 ms
 * of processor time per wait. So run it with a provider that does not poll before it sleeps. A lost wake-up leaves its
 * thread asleep until the time limit, which is also a failure. Elapsed time is not checked.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { MAX_CHANNELS = 32, DEPTH = 4, QUAL = 5252 };

/* Maximum processor time per round trip in one process. A process that spins on the only processor uses a time slice,
 * about 4 ms. */
#define MAX_CPU_US 1000.0

struct channel {
    DAT_EVD_HANDLE receives, connection;
    DAT_EP_HANDLE ep;
    pthread_t thread;
    int begins, polls;
    long rounds, asleep;
};

static struct channel channels[MAX_CHANNELS];
static DAT_IA_HANDLE ia;
static DAT_EVD_HANDLE async, requests;

static void post_receive(struct channel *l)
{
    DAT_DTO_COOKIE cookie = {.as_64 = 1};
    OK(dat_ep_post_recv(l->ep, 0, NULL, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void send_one(struct channel *l)
{
    DAT_DTO_COOKIE cookie = {.as_64 = 2};
    OK(dat_ep_post_send(l->ep, 0, NULL, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
}

static void await_one(struct channel *l)
{
    DAT_EVENT event;
    if (l->polls) {
        while (dat_evd_dequeue(l->receives, &event) != DAT_SUCCESS)
            ;
        EXPECT(event.event_number == DAT_DTO_COMPLETION_EVENT);
        EXPECT(event.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS);
    } else
        completed(l->receives, l->ep, 1, DAT_DTO_SUCCESS, 0, "the message of the other end");
}

static void *play(void *argument)
{
    struct channel *l = argument;
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    for (long n = 0; n < l->rounds; n++) {
        if (l->begins)
            send_one(l);
        await_one(l);
        post_receive(l);
        if (!l->begins)
            send_one(l);
    }
    getrusage(RUSAGE_THREAD, &after);
    l->asleep = after.ru_nvcsw - before.ru_nvcsw;
    return NULL;
}

static void open_side(char *name, int count)
{
    DAT_PZ_HANDLE pz;
    OK(dat_ia_open(name, 8, &async, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, MAX_CHANNELS, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests));
    for (int n = 0; n < count; n++) {
        struct channel *l = &channels[n];
        OK(dat_evd_create(ia, 4, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &l->connection));
        OK(dat_evd_create(ia, 4 * DEPTH, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &l->receives));
        OK(dat_ep_create(ia, pz, l->receives, DAT_HANDLE_NULL, l->connection, NULL, &l->ep));
        for (int k = 0; k < DEPTH; k++)
            post_receive(l);
    }
}

static void serve(int count, int ready)
{
    DAT_PSP_HANDLE psp;
    OK(dat_psp_create(ia, QUAL, requests, DAT_PSP_CONSUMER_FLAG, &psp));
    EXPECT(write(ready, "r", 1) == 1);
    for (int n = 0; n < count; n++) {
        DAT_EVENT event = next(requests, DAT_CONNECTION_REQUEST_EVENT, "a request");
        OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, channels[n].ep, 0, NULL));
        next(channels[n].connection, DAT_CONNECTION_EVENT_ESTABLISHED, "a connection");
    }
    OK(dat_psp_free(psp));
}

static void reach(int count, int ready)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char go;
    EXPECT(read(ready, &go, 1) == 1);
    for (int n = 0; n < count; n++) {
        OK(dat_ep_connect(channels[n].ep, (DAT_IA_ADDRESS_PTR)&here, QUAL, DAT_TIMEOUT_INFINITE, 0, NULL, DAT_QOS_BEST_EFFORT,
                          DAT_CONNECT_DEFAULT_FLAG));
        next(channels[n].connection, DAT_CONNECTION_EVENT_ESTABLISHED, "a connection");
    }
}

/* Pins the process to the first or the last processor that it may use. */
static void settle(int last)
{
    cpu_set_t allowed, one;
    EXPECT(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    CPU_ZERO(&one);
    for (int n = 0; n < CPU_SETSIZE; n++)
        if (CPU_ISSET(n, &allowed) && (last || CPU_COUNT(&one) == 0)) {
            CPU_ZERO(&one);
            CPU_SET(n, &one);
        }
    EXPECT(sched_setaffinity(0, sizeof one, &one) == 0);
}

static double cpu_us(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)used.ru_utime.tv_sec * 1e6 + (double)used.ru_utime.tv_usec + (double)used.ru_stime.tv_sec * 1e6
           + (double)used.ru_stime.tv_usec;
}

/* Plays ping-pong over all connections. In each round, each side waits once per connection. */
static void match(const char *who, int count, long rounds, int begins, int polls)
{
    long asleep = 0;
    double used = cpu_us();
    for (int n = 0; n < count; n++) {
        channels[n].rounds = rounds;
        channels[n].begins = begins;
        channels[n].polls = polls;
        EXPECT(pthread_create(&channels[n].thread, NULL, play, &channels[n]) == 0);
    }
    for (int n = 0; n < count; n++) {
        EXPECT(pthread_join(channels[n].thread, NULL) == 0);
        asleep += channels[n].asleep;
    }
    used = (cpu_us() - used) / (double)(rounds * count);
    printf("%s: %ld waits, %ld asleep, %.1f us of processor time each\n", who, rounds * count, asleep, used);
    fflush(stdout);
    if (!polls) {
        EXPECT(asleep >= rounds * count / 10);
        EXPECT(used < MAX_CPU_US);
    }
}

/* Checks that the process used less than 1 % of a processor in the last `seconds`, since `used`. */
static void rest(const char *who, const char *how, unsigned seconds, double used)
{
    double percent = (cpu_us() - used) / (seconds * 1e4);
    printf("%s, %s for %u s: %.3f %% of a processor\n", who, how, seconds, percent);
    fflush(stdout);
    EXPECT(percent < 1.0);
}

static void idle(const char *who, unsigned seconds)
{
    DAT_EVENT event;
    DAT_COUNT more;
    double used = cpu_us();
    /* Measured without a warm-up wait: the very first wait must not spin either. */
    EXPECT(DAT_GET_TYPE(dat_evd_wait(channels[0].receives, seconds * SECOND, 1, &event, &more)) == DAT_TIMEOUT_EXPIRED);
    rest(who, "waiting", seconds, used);
    for (int n = 0; n < 100000; n++)
        EXPECT(DAT_GET_TYPE(dat_evd_dequeue(channels[0].receives, &event)) == DAT_QUEUE_EMPTY);
    used = cpu_us();
    sleep(seconds);
    rest(who, "running no DAT call after polling", seconds, used);
}

int main(int argc, char **argv)
{
    int is_idle = argc == 4 && !strcmp(argv[2], "idle");
    if (!is_idle && argc < 5)
        fail("usage: waits IA WAITS THREADS apart|together [polling] | waits IA idle SECONDS");
    int count = is_idle ? 4 : atoi(argv[3]), polls = argc > 5, status, ready[2];
    unsigned seconds = is_idle ? (unsigned)atoi(argv[3]) : 0;
    EXPECT(count > 0 && count <= MAX_CHANNELS && pipe(ready) == 0);
    long rounds = is_idle ? 0 : atol(argv[2]) / 2 / count;
    pid_t child = fork();
    EXPECT(child >= 0);
    if (!is_idle)
        settle(child == 0 && !strcmp(argv[4], "apart"));
    const char *who = child ? "client" : "server";
    open_side(argv[1], count);
    if (child)
        reach(count, ready[0]);
    else
        serve(count, ready[1]);
    if (is_idle)
        idle(who, seconds);
    else
        match(who, count, rounds, child != 0, polls);
    if (child == 0) {
        /* The server waits until the client has received everything and disconnects. */
        next(channels[0].connection, DAT_CONNECTION_EVENT_DISCONNECTED, "the end of the connection");
        OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
        return 0;
    }
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    EXPECT(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail("the server failed");
    if (is_idle)
        printf("waits: OK, idle\n");
    else
        printf("waits: OK, %ld waits\n", 2 * rounds * count);
    return 0;
}
