/*
 * A client that violates the protocol: it connects to a dapltest server and then sends nothing, invalid data, another
 * version, or a request that the server cannot execute. `bad_client ADAPTER PORT nothing|garbage|version|request`
 *
 * Prints the kinds of the server's messages. Succeeds when the server has ended the connection.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>

enum { SIZE = 16384, RECEIVES = 4 };

static unsigned char memory[(RECEIVES + 1) * SIZE] __attribute__((aligned(256)));
static DAT_LMR_CONTEXT context;
static DAT_EP_HANDLE ep;
static DAT_EVD_HANDLE dtos, conn;

static DAT_LMR_TRIPLET part(size_t slot, size_t length)
{
    DAT_LMR_TRIPLET segment = { .lmr_context = context,
                                .virtual_address = (DAT_VADDR)(uintptr_t)(memory + slot * SIZE),
                                .segment_length = length };
    return segment;
}

/* Sends the first or the second message of this client. */
static void say(size_t number, const void *bytes, size_t length)
{
    DAT_LMR_TRIPLET segment = part(RECEIVES, length);
    DAT_DTO_COOKIE cookie = { .as_64 = 100 };
    segment.virtual_address += number * 64;
    memcpy(memory + RECEIVES * SIZE + number * 64, bytes, length);
    OK(dat_ep_post_send(ep, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

/* Receives the server's messages until the server ends the connection, and prints their kinds. */
static void listen_to(void)
{
    DAT_EVENT event;
    DAT_COUNT more;
    for (;;) {
        OK(dat_evd_wait(dtos, EVENT_TIMEOUT, 1, &event, &more));
        DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;
        if (dto->status != DAT_DTO_SUCCESS) {
            puts("the server has ended the connection");
            return;
        }
        if (dto->user_cookie.as_64 < RECEIVES) {
            unsigned char *message = memory + dto->user_cookie.as_64 * SIZE;
            printf("the server sent a message of kind %d\n", dto->transfered_length > 4 ? message[4] : -1);
            fflush(stdout);
        }
    }
}

int main(int argc, char **argv)
{
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_PZ_HANDLE pz;
    DAT_LMR_HANDLE lmr;
    DAT_RMR_CONTEXT remote;
    DAT_VLEN length;
    DAT_VADDR start;
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_REGION_DESCRIPTION region = { .for_va = memory };
    struct sockaddr_in host = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const char *way = argc == 4 ? argv[3] : "";

    EXPECT(argc == 4);
    OK(dat_ia_open(argv[1], 8, &errors, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &dtos));
    OK(dat_evd_create(ia, 4, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &conn));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &context,
                      &remote, &length, &start));
    OK(dat_ep_create(ia, pz, dtos, dtos, conn, NULL, &ep));
    for (DAT_UINT64 slot = 0; slot < RECEIVES; slot++) {
        DAT_LMR_TRIPLET segment = part(slot, SIZE);
        DAT_DTO_COOKIE cookie = { .as_64 = slot };
        OK(dat_ep_post_recv(ep, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    }
    OK(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&host, strtoull(argv[2], NULL, 0), EVENT_TIMEOUT, 0, NULL,
                      DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    OK(dat_evd_wait(conn, EVENT_TIMEOUT, 1, &event, &more));
    EXPECT(event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED);
    puts("connected");
    fflush(stdout);

    if (strcmp(way, "garbage") == 0)
        say(0, "GET / HTTP/1.0\r\n\r\n", 18);
    else if (strcmp(way, "version") == 0)
        say(0, "dplt\1\0\3\0\7", 9);
    else if (strcmp(way, "request") == 0) {
        say(0, "dplt\1\0\2\0\0", 9);
        say(1, "dplt\3\377\377\377\377\377\377\377\377", 13);
    } else
        EXPECT(strcmp(way, "nothing") == 0);
    listen_to();
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    return 0;
}
