/*
 * threads.c - checks the number of threads of the process: one while an adapter is open with a PZ, an EVD and an LMR,
 * more with an endpoint, one again after the close.
 *
 *   threads NAME
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <dirent.h>
#include <sched.h>

#include "check.h"

/* Number of threads of this process. */
static int threads(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/task");
    EXPECT(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "sm0";
    static char memory[4096];
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL, events;
    DAT_IA_HANDLE ia;
    DAT_IA_ATTR adapter;
    DAT_PZ_HANDLE pz;
    DAT_EP_HANDLE ep;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT lkey;
    DAT_RMR_CONTEXT rkey;
    DAT_VLEN length;
    DAT_VADDR address;
    DAT_REGION_DESCRIPTION region = {.for_va = memory};
    OK(dat_ia_open((char *)name, 8, &errors, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &events));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, pz, DAT_MEM_PRIV_LOCAL_READ_FLAG, &lmr, &lkey, &rkey,
                      &length, &address));
    EXPECT(threads() == 1);
    OK(dat_ep_create(ia, pz, DAT_HANDLE_NULL, DAT_HANDLE_NULL, events, NULL, &ep));
    EXPECT(threads() > 1);
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &adapter, 0, NULL));
    /* No process listens: the connect fails immediately, or is still pending here. The timeout of the connect also
     * starts a thread. */
    (void)dat_ep_connect(ep, adapter.ia_address_ptr, 0x0afffab3, EVENT_TIMEOUT, 0, NULL, DAT_QOS_BEST_EFFORT,
                         DAT_CONNECT_DEFAULT_FLAG);
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    /* A thread that has ended may remain listed for a moment. */
    while (threads() > 1)
        sched_yield();
    printf("threads: OK\n");
    return 0;
}
