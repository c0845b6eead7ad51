/*
 * listeners - processes that share the port for connection setup, their clients, and a process of another user that
 * tries to receive their requests.
 *
 *   listeners -s QUAL          listens, and accepts every request, until it is killed
 *   listeners -h HOST QUAL     connects, each time from a newly opened adapter
 *   listeners -a HOST QUAL     checks that it can neither bind the port at HOST, a local address, nor use the directory
 *                              of -d; then waits for a request for QUAL, and reports its arrival
 *
 *   -P ia       interface adapter [usnic0]
 *   -n COUNT    number of connects [1]
 *   -e          every attempt must be rejected, because no program listens
 *   -u UID      runs as this user: with -a from the start, with -h only while it connects
 *   -p PORT     with -a: the port for connection setup [17471]
 *   -d PATH     with -a: the base directory of the attacked user
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

static char *name = "usnic0";
static uid_t user;

static void say(const char *text)
{
    printf("listeners: %s\n", text);
    fflush(stdout);
}

static DAT_IA_HANDLE open_ia(DAT_PZ_HANDLE *pz, DAT_EVD_HANDLE *all)
{
    DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;
    DAT_IA_HANDLE ia;
    OK(dat_ia_open(name, 8, &async_evd, &ia));
    OK(dat_pz_create(ia, pz));
    OK(dat_evd_create(ia, 256, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_DTO_FLAG, all));
    return ia;
}

__attribute__((noreturn)) static void serve(DAT_CONN_QUAL qual)
{
    DAT_PZ_HANDLE pz;
    DAT_EVD_HANDLE all;
    DAT_PSP_HANDLE psp;
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_EP_HANDLE ep;
    DAT_IA_HANDLE ia = open_ia(&pz, &all);
    OK(dat_psp_create(ia, qual, all, DAT_PSP_CONSUMER_FLAG, &psp));
    say("listening");
    for (;;) {
        OK(dat_evd_wait(all, DAT_TIMEOUT_INFINITE, 1, &event, &more));
        if (event.event_number != DAT_CONNECTION_REQUEST_EVENT)
            continue;
        OK(dat_ep_create(ia, pz, all, all, all, NULL, &ep));
        OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL));
    }
}

static void call(const char *host, DAT_CONN_QUAL qual, DAT_EVENT_NUMBER expected)
{
    struct addrinfo *found;
    DAT_PZ_HANDLE pz;
    DAT_EVD_HANDLE all;
    DAT_EP_HANDLE ep;
    DAT_IA_HANDLE ia = open_ia(&pz, &all);
    if (getaddrinfo(host, NULL, NULL, &found) != 0)
        fail("listeners: unknown host %s", host);
    OK(dat_ep_create(ia, pz, all, all, all, NULL, &ep));
    if (user != 0 && seteuid(user) != 0)
        fail("listeners: cannot become uid %u: %s", (unsigned)user, strerror(errno));
    OK(dat_ep_connect(ep, found->ai_addr, qual, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    freeaddrinfo(found);
    next(all, expected, "the attempt to connect");
    EXPECT(seteuid(0) == 0);
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
}

/* ---- Another user ---- */

/* Binds the abstract socket name that a listener would use if listeners used abstract names, which any user can bind.
 */
static int take_abstract_name(const char *host, int port, DAT_CONN_QUAL qual)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int length = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "dapl-usnic/%s/%d/%llu", host, port,
                          (unsigned long long)qual);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    EXPECT(fd >= 0);
    if (bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) != 0)
        fail("listeners: bind %s: %s", at.sun_path + 1, strerror(errno));
    return fd;
}

/* Tries to bind the port, which belongs to one user at a time. */
static void try_port(const char *host, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1, n;
    EXPECT(inet_pton(AF_INET, host, &at.sin_addr) == 1);
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
    for (n = 0; n < 4; n++) {
        if (n == 1)
            EXPECT(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
        if (n == 2)
            at.sin_addr.s_addr = htonl(INADDR_ANY);
        if (n == 3) {
            /* Binding to the interface of the address needs no privileges. */
            if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "d0", 3) != 0)
                break;
        }
        EXPECT(bind(fd, (struct sockaddr *)&at, sizeof at) != 0 && errno == EADDRINUSE);
    }
    close(fd);
}

/* Tries to create a name in the directory, to connect to that name, and to list the directory; the same below
 * `listeners`. All must be denied. */
static void try_directory(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *folders[] = {"", "/listeners"};
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0), n;
    for (n = 0; n < 2; n++) {
        snprintf(at.sun_path, sizeof at.sun_path, "%s%s/mine", path, folders[n]);
        EXPECT(bind(fd, (struct sockaddr *)&at, sizeof at) != 0 && errno == EACCES);
        EXPECT(connect(fd, (struct sockaddr *)&at, sizeof at) != 0 && errno == EACCES);
        *strrchr(at.sun_path, '/') = 0;
        EXPECT(opendir(at.sun_path) == NULL && errno == EACCES);
    }
    close(fd);
}

__attribute__((noreturn)) static void attack(const char *host, int port, DAT_CONN_QUAL qual, const char *directory)
{
    char bytes[4096];
    int fd;
    EXPECT(setgid((gid_t)user) == 0 && setuid(user) == 0 && setuid(0) != 0);
    fd = take_abstract_name(host, port, qual);
    try_port(host, port);
    if (directory != NULL)
        try_directory(directory);
    say("waiting for requests");
    EXPECT(recv(fd, bytes, sizeof bytes, 0) > 0);
    say("got a request");
    pause();
    exit(1);
}

int main(int argc, char **argv)
{
    const char *host = NULL, *directory = NULL;
    int option, is_attack = 0, is_server = 0, port = 17471, count = 1, n;
    DAT_EVENT_NUMBER expected = DAT_CONNECTION_EVENT_ESTABLISHED;
    DAT_CONN_QUAL qual;
    while ((option = getopt(argc, argv, "sh:a:P:n:eu:p:d:")) != -1) {
        switch (option) {
        case 's': is_server = 1; break;
        case 'a': is_attack = 1; /* fall through */
        case 'h': host = optarg; break;
        case 'P': name = optarg; break;
        case 'n': count = atoi(optarg); break;
        case 'e': expected = DAT_CONNECTION_EVENT_NON_PEER_REJECTED; break;
        case 'u': user = (uid_t)atoi(optarg); break;
        case 'p': port = atoi(optarg); break;
        case 'd': directory = optarg; break;
        default: fail("usage: listeners -s|-h host|-a host [options] qual; the head of listeners.c explains them");
        }
    }
    EXPECT(optind + 1 == argc && is_server != (host != NULL) && count > 0);
    qual = strtoull(argv[optind], NULL, 0);
    if (is_server)
        serve(qual);
    if (is_attack)
        attack(host, port, qual, directory);
    for (n = 0; n < count; n++)
        call(host, qual, expected);
    say("OK");
    return 0;
}
