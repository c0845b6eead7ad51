/*
 * absent: calls everything that README lists as left to the next milestone, with arguments that would be right if it were
 * there, and prints what each answers. The test compares that with the table; nothing may happen besides.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "check.h"

enum { QUAL = 0x0ab5e47 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE errors, events, completions;
static DAT_EP_HANDLE ep;
static DAT_PSP_HANDLE psp;

static void answer(const char *call, DAT_RETURN ret)
{
    const char *major = "?", *minor = "?";
    dat_strerror(ret, &major, &minor);
    printf("%s %s\n", call, major);
}

/* Nothing can make one of these, so there is no handle to pass but one of another kind. */
static void without_handle(void)
{
    DAT_SRQ_ATTR attributes = { .max_recv_dtos = 4, .max_recv_iov = 1, .low_watermark = DAT_SRQ_LW_DEFAULT };
    DAT_SRQ_HANDLE srq = DAT_HANDLE_NULL;
    DAT_EP_HANDLE other = DAT_HANDLE_NULL;
    DAT_SRQ_PARAM srq_param;
    DAT_LMR_TRIPLET segment = { .segment_length = 0 };
    DAT_CONTEXT cookie = { .as_64 = 0 };

    answer("dat_srq_create", dat_srq_create(ia, pz, &attributes, &srq));
    answer("dat_srq_query", dat_srq_query(pz, DAT_SRQ_FIELD_ALL, &srq_param));
    answer("dat_srq_post_recv", dat_srq_post_recv(pz, 1, &segment, cookie));
    answer("dat_srq_resize", dat_srq_resize(pz, 8));
    answer("dat_srq_set_lw", dat_srq_set_lw(pz, 1));
    answer("dat_srq_free", dat_srq_free(pz));
    answer("dat_ep_create_with_srq",
           dat_ep_create_with_srq(ia, pz, completions, completions, events, pz, NULL, &other));
    EXPECT(srq == DAT_HANDLE_NULL && other == DAT_HANDLE_NULL);
}

static void connections(void)
{
    DAT_IA_ATTR adapter;
    DAT_EVENT event;
    DAT_COUNT count, span;

    answer("dat_ep_recv_query", dat_ep_recv_query(ep, &count, &span));
    answer("dat_ep_set_watermark", dat_ep_set_watermark(ep, 1, 2));

    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &adapter, 0, NULL));
    OK(dat_ep_connect(ep, adapter.ia_address_ptr, QUAL, PATIENCE, 0, NULL, DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    event = next(events, DAT_CONNECTION_REQUEST_EVENT, "the request");
    OK(dat_cr_reject(event.event_data.cr_arrival_event_data.cr_handle));
    next(events, DAT_CONNECTION_EVENT_PEER_REJECTED, "the answer");
}

int main(void)
{
    errors = DAT_HANDLE_NULL;
    OK(dat_ia_open("sm0", 8, &errors, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG, &events));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG, &completions));
    OK(dat_ep_create(ia, pz, completions, completions, events, NULL, &ep));
    OK(dat_psp_create(ia, QUAL, events, DAT_PSP_CONSUMER_FLAG, &psp));

    without_handle();
    connections();

    OK(dat_psp_free(psp));
    OK(dat_ep_free(ep));
    OK(dat_evd_free(completions));
    OK(dat_evd_free(events));
    OK(dat_pz_free(pz));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    return 0;
}
