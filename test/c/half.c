/*
 * A library that uses one version of DAT, for both.c: compiled for 1.2 with libdat.so.1, and for 2.0 with libdat2.so.2.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "check.h"
#include "half.h"

enum { LENGTH = 64 };

static DAT_IA_HANDLE ia;
static DAT_IA_ADDRESS_PTR here;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE connections, requests, completions;
static DAT_EP_HANDLE ep;
static DAT_PSP_HANDLE psp;
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT lmr_context;
static unsigned char memory[2][LENGTH];

enum { SEND, RECEIVE };

static DAT_LMR_TRIPLET part(int which)
{
    DAT_LMR_TRIPLET triplet = {
        .lmr_context = lmr_context,
        .virtual_address = (DAT_VADDR)(uintptr_t)memory[which],
        .segment_length = LENGTH,
    };
    return triplet;
}

static void half_open(const char *name)
{
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_IA_ATTR attributes;
    DAT_PROVIDER_ATTR provider;
    DAT_REGION_DESCRIPTION region = { .for_va = memory };
    DAT_PZ_PARAM parameters;
    OK(dat_ia_open((DAT_NAME_PTR)(uintptr_t)name, 8, &errors, &ia));
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attributes, DAT_PROVIDER_FIELD_ALL, &provider));
    EXPECT(provider.dapl_version_major == DAT_VERSION_MAJOR);
    here = attributes.ia_address_ptr;
    OK(dat_pz_create(ia, &pz));
    OK(dat_pz_query(pz, DAT_PZ_FIELD_ALL, &parameters));
    EXPECT(parameters.ia_handle == ia); /* the number that this libdat has given */
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connections));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &completions));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &lmr_context,
                      NULL, NULL, NULL));
    OK(dat_ep_create(ia, pz, completions, completions, connections, NULL, &ep));
}

static void post_receive(void)
{
    DAT_LMR_TRIPLET segment = part(RECEIVE);
    DAT_DTO_COOKIE cookie = { .as_64 = RECEIVE };
    OK(dat_ep_post_recv(ep, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void half_listen(uint64_t qual)
{
    post_receive();
    OK(dat_psp_create(ia, qual, requests, DAT_PSP_CONSUMER_FLAG, &psp));
}

static void half_connect(uint64_t qual)
{
    post_receive();
    OK(dat_ep_connect(ep, here, qual, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
}

static void half_accept(void)
{
    DAT_EVENT event = next(requests, DAT_CONNECTION_REQUEST_EVENT, "a request");
    EXPECT(event.event_data.cr_arrival_event_data.sp_handle.psp_handle == psp);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL));
}

static void half_established(void)
{
    next(connections, DAT_CONNECTION_EVENT_ESTABLISHED, "a connection");
}

static void half_send(unsigned char byte)
{
    DAT_LMR_TRIPLET segment = part(SEND);
    DAT_DTO_COOKIE cookie = { .as_64 = SEND };
    memset(memory[SEND], byte, LENGTH);
    OK(dat_ep_post_send(ep, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    completed(completions, ep, SEND, DAT_DTO_SUCCESS, LENGTH, "a send");
}

static void half_receive(unsigned char byte)
{
    completed(completions, ep, RECEIVE, DAT_DTO_SUCCESS, LENGTH, "a receive");
    EXPECT(memory[RECEIVE][0] == byte && memory[RECEIVE][LENGTH - 1] == byte);
}

static void half_disconnect(void)
{
    OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
}

static void half_disconnected(void)
{
    next(connections, DAT_CONNECTION_EVENT_DISCONNECTED, "the end of the connection");
}

static void half_close(void)
{
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    EXPECT(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG) != DAT_SUCCESS);
    psp = DAT_HANDLE_NULL;
}

extern const struct half half;
const struct half half = {
    half_open, half_listen, half_connect, half_accept, half_established, half_send, half_receive,
    half_disconnect, half_disconnected, half_close, DAT_VERSION_MAJOR,
};
