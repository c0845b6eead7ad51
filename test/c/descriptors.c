/*
 * descriptors.c - dat_ia_open, dat_psp_create and dat_ep_connect return DAT_INSUFFICIENT_RESOURCES while too few file
 * descriptors are free, and succeed when enough are free.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <unistd.h>

#include "check.h"

enum { MAX_DESCRIPTORS = 1024, QUAL = 0x0afffab2 };

static int taken[MAX_DESCRIPTORS], count;

/* Opens descriptors until only `left` more can be opened. */
static void leave(int left)
{
    int fd;
    while (count < MAX_DESCRIPTORS && (fd = dup(2)) >= 0)
        taken[count++] = fd;
    EXPECT(count < MAX_DESCRIPTORS); /* otherwise the limit ("ulimit -n") is above MAX_DESCRIPTORS */
    while (left-- > 0)
        close(taken[--count]);
}

static void release(void)
{
    while (count > 0)
        close(taken[--count]);
}

static void scarce(DAT_RETURN ret, const char *call)
{
    if (DAT_GET_TYPE(ret) != DAT_INSUFFICIENT_RESOURCES)
        fail("%s: %s, expected DAT_INSUFFICIENT_RESOURCES", call, words(ret));
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "sm0";
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL, events, requests;
    DAT_IA_HANDLE ia;
    DAT_IA_ATTR attributes;
    DAT_PZ_HANDLE pz;
    DAT_EP_HANDLE ep;
    DAT_PSP_HANDLE psp, other;
    DAT_RETURN ret;

    OK(dat_ia_open((char *)name, 8, &errors, &ia)); /* the first open also needs descriptors to load the library */
    for (int left = 0;; left++) {
        DAT_IA_HANDLE second;
        DAT_EVD_HANDLE second_errors = DAT_HANDLE_NULL;
        leave(left);
        ret = dat_ia_open((char *)name, 8, &second_errors, &second);
        release();
        if (ret == DAT_SUCCESS) {
            OK(dat_ia_close(second, DAT_CLOSE_ABRUPT_FLAG));
            printf("descriptors: opening an adapter needs %d descriptors\n", left);
            break;
        }
        scarce(ret, "dat_ia_open");
    }

    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attributes, 0, NULL));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &events));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests));
    OK(dat_ep_create(ia, pz, DAT_HANDLE_NULL, DAT_HANDLE_NULL, events, NULL, &ep));
    OK(dat_psp_create(ia, QUAL, requests, DAT_PSP_CONSUMER_FLAG, &psp));
    for (int left = 0;; left++) {
        leave(left);
        ret = dat_psp_create(ia, QUAL + 1, requests, DAT_PSP_CONSUMER_FLAG, &other);
        release();
        if (ret == DAT_SUCCESS)
            break;
        scarce(ret, "dat_psp_create");
    }
    OK(dat_psp_free(other));
    for (int left = 0;; left++) {
        leave(left);
        ret = dat_ep_connect(ep, attributes.ia_address_ptr, QUAL, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT,
                             DAT_CONNECT_DEFAULT_FLAG);
        if (ret == DAT_SUCCESS)
            break;
        scarce(ret, "dat_ep_connect");
        expect_no_event(events, "the EVD after a failed dat_ep_connect");
        release();
    }
    release();
    printf("descriptors: OK\n");
    return 0;
}
