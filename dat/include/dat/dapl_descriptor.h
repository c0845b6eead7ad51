/*
 * dapl_descriptor.h - file descriptors for EVDs and CNOs, to wait for events in poll, epoll and event loops.
 *
 * An extension of this project's providers, for DAT 1.2 and 2.0. Include it after udat.h. With another provider the
 * functions return DAT_NOT_IMPLEMENTED.
 *
 * Dequeue events until the EVD is empty, call dapl_descriptor_arm, and wait until the descriptor is readable. The
 * descriptor stays readable until it is armed again. The provider closes it when the EVD or CNO is freed; do not read,
 * write or close it.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef _DAPL_DESCRIPTOR_H_
#define _DAPL_DESCRIPTOR_H_

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The descriptor functions of an adapter's provider. */
typedef struct {
    DAT_RETURN (*descriptor)(DAT_HANDLE evd_or_cno, int *descriptor);
    DAT_RETURN (*arm)(DAT_HANDLE evd_or_cno);
} DAPL_DESCRIPTOR_CALLS;

/* Finds the functions in the attributes of the provider. One call per adapter is sufficient. */
static inline DAT_RETURN dapl_descriptor_calls(DAT_IA_HANDLE ia, DAPL_DESCRIPTOR_CALLS *calls)
{
    DAT_PROVIDER_ATTR provider;
    DAT_COUNT i;
    DAT_RETURN ret = dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &provider);

    memset(calls, 0, sizeof *calls);
    if (ret != DAT_SUCCESS)
        return ret;
    for (i = 0; i < provider.num_provider_specific_attr; i++) {
        const DAT_NAMED_ATTR *attr = &provider.provider_specific_attr[i];
        void *address = (void *)(uintptr_t)strtoull(attr->value, NULL, 0);
        /* ISO C has no cast from an object pointer to a function pointer, so the address is copied. */
        if (strcmp(attr->name, "descriptor_func") == 0)
            memcpy(&calls->descriptor, &address, sizeof address);
        else if (strcmp(attr->name, "descriptor_arm_func") == 0)
            memcpy(&calls->arm, &address, sizeof address);
    }
    return calls->descriptor && calls->arm ? DAT_SUCCESS : DAT_NOT_IMPLEMENTED;
}

/* Writes the descriptor of an EVD or CNO to *descriptor; the first call creates it. */
static inline DAT_RETURN dapl_descriptor(const DAPL_DESCRIPTOR_CALLS *calls, DAT_HANDLE evd_or_cno, int *descriptor)
{
    return calls->descriptor ? calls->descriptor(evd_or_cno, descriptor) : DAT_NOT_IMPLEMENTED;
}

/*
 * Makes the descriptor readable at once if events are queued, otherwise when an event arrives that would wake a waiting
 * thread.
 */
static inline DAT_RETURN dapl_descriptor_arm(const DAPL_DESCRIPTOR_CALLS *calls, DAT_HANDLE evd_or_cno)
{
    return calls->arm ? calls->arm(evd_or_cno) : DAT_NOT_IMPLEMENTED;
}

#ifdef __cplusplus
}
#endif

#endif /* _DAPL_DESCRIPTOR_H_ */
