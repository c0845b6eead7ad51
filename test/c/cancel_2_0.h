/*
 * cancel_2_0.h - a part of cancel.c: the calls of DAT 2.0 that 1.2 lacks. libdat2 does not export most of them, so they
 * are called through the provider's table.
 *
 * An operation that the adapter does not support is called too, and must be refused.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef CANCEL_2_0_H
#define CANCEL_2_0_H

enum { QUAL_OF_CSP = 7474, WORD = 8 };

/* Event of a completed operation of the InfiniBand extension. */
static const DAT_EVENT_NUMBER extended = (DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT;

/* IA of dat_ib_open_query until dat_ib_close_query. */
static DAT_IA_HANDLE queried;

/* The expected type of an operation's return code. */
static DAT_RETURN wanted(int is_supported)
{
    return is_supported ? DAT_SUCCESS : DAT_MODEL_NOT_SUPPORTED;
}

static int has_attribute(const DAT_PROVIDER_ATTR *attr, const char *name)
{
    for (int n = 0; n < attr->num_provider_specific_attr; n++)
        if (!strcmp(attr->provider_specific_attr[n].name, name))
            return !strcmp(attr->provider_specific_attr[n].value, "TRUE");
    return 0;
}

/* A CNO with a descriptor. */
static void use_cno_with_descriptor(struct objects *o, DAT_IA_HANDLE provider)
{
    DAT_EVENT event = {.event_number = DAT_SOFTWARE_EVENT};
    DAT_CNO_HANDLE cno;
    DAT_EVD_HANDLE ready;
    DAT_FD descriptor;
    CALL(DAT_CNO_FD_CREATE(provider, &descriptor, &cno));
    CALL(dat_evd_modify_cno(o->software, cno));
    CALL(dat_evd_post_se(o->software, &event));
    CALL(DAT_CNO_TRIGGER(cno, &ready));
    EXPECT(ready == o->software);
    REFUSED(DAT_CNO_TRIGGER(cno, &ready), DAT_QUEUE_EMPTY);
    CALL(dat_evd_dequeue(o->software, &event));
    CALL(dat_evd_modify_cno(o->software, DAT_HANDLE_NULL));
    CALL(dat_cno_free(cno));
}

/* Connects EP 3 to a further EP at a common service point, and disconnects it. */
static void common_connection(struct objects *o, DAT_IA_HANDLE provider)
{
    DAT_COMM tcp = {.domain = AF_INET, .type = SOCK_STREAM};
    struct sockaddr_in address;
    DAT_IA_ADDRESS_PTR place = (DAT_IA_ADDRESS_PTR)&address;
    DAT_CSP_HANDLE csp;
    DAT_CSP_PARAM param;
    DAT_EP_HANDLE acceptor;
    memcpy(&address, o->here, sizeof address);
    EXPECT(address.sin_family == AF_INET);
    address.sin_port = htons(QUAL_OF_CSP);
    CALL(DAT_CSP_CREATE(provider, &tcp, place, o->requests, &csp));
    CALL(DAT_CSP_QUERY(csp, DAT_CSP_FIELD_ALL, &param));
    CALL(dat_ep_create(ia, o->pz, o->receives, o->transfers, o->connections, NULL, &acceptor));
    CALL(dat_ep_reset(o->ep[3]));
    CALL(DAT_EP_COMMON_CONNECT(o->ep[3], place, EVENT_TIMEOUT, 0, NULL));
    CALL(dat_cr_accept(take_request(o), acceptor, 0, NULL));
    established(o);
    CALL(DAT_CSP_FREE(csp));
    CALL(dat_ep_disconnect(o->ep[3], DAT_CLOSE_ABRUPT_FLAG));
    take(o, o->connections, DAT_CONNECTION_EVENT_DISCONNECTED);
    take(o, o->connections, DAT_CONNECTION_EVENT_DISCONNECTED);
    CALL(dat_ep_free(acceptor));
}

/* Uses an RMR whose bindings are valid for one EP, and invalidates its context by a message, or unbinds it. */
static void use_rmr_of_ep(struct objects *o, const DAT_PROVIDER_ATTR *attr)
{
    int has_invalidate = has_attribute(attr, "send_with_invalidate");
    int has_scope = attr->rmr_scope_supported != DAT_RMR_SCOPE_PZ;
    DAT_COMPLETION_FLAGS flags = DAT_COMPLETION_DEFAULT_FLAG;
    DAT_DTO_COOKIE cookie = {.as_64 = 5};
    DAT_LMR_TRIPLET from = half(o, 0), into = half(o, 1), nothing = {0};
    DAT_RMR_HANDLE rmr;
    DAT_RMR_CONTEXT context = o->remote;
    REFUSED(DAT_RMR_CREATE_FOR_EP(o->pz, &rmr), wanted(has_scope));
    if (has_scope) {
        DAT_RMR_TRIPLET window = {.virtual_address = into.virtual_address, .segment_length = LENGTH};
        window.rmr_context = context = bound(o, rmr, o->ep[1], into);
        CALL(dat_ep_post_rdma_write(o->ep[0], 1, &from, cookie, &window, flags));
        took_transfer(o);
    }
    REFUSED(DAT_EP_POST_SEND_WITH_INVALIDATE(o->ep[0], 1, &from, cookie, flags, DAT_TRUE, context), wanted(has_invalidate));
    if (has_invalidate) {
        took_message(o);
        CALL(dat_ep_post_recv(o->ep[1], 1, &into, cookie, flags));
    } else if (has_scope) {
        bound(o, rmr, o->ep[1], nothing);
    }
    if (has_scope)
        CALL(dat_rmr_free(rmr));
}

/* Reads into the memory of a context, and posts the operations of the InfiniBand extension, on the connection of EP 0
 * to EP 1. */
static void use_extensions(struct objects *o, const DAT_PROVIDER_ATTR *attr)
{
    DAT_COMPLETION_FLAGS flags = DAT_COMPLETION_DEFAULT_FLAG;
    DAT_DTO_COOKIE cookie = {.as_64 = 6};
    DAT_LMR_TRIPLET from = half(o, 0);
    DAT_RMR_TRIPLET here = {.rmr_context = o->remote, .virtual_address = from.virtual_address, .segment_length = WORD};
    DAT_RMR_TRIPLET there = here;
    int adds = has_attribute(attr, DAT_IB_ATTR_FETCH_AND_ADD), swaps = has_attribute(attr, DAT_IB_ATTR_CMP_AND_SWAP);
    int has_immediate = has_attribute(attr, DAT_IB_ATTR_IMMED_DATA);
    there.virtual_address = half(o, 1).virtual_address;
    from.segment_length = WORD;
    CALL(DAT_EP_POST_RDMA_READ_TO_RMR(o->ep[0], &here, cookie, &there, flags));
    took_transfer(o);
    REFUSED(dat_ib_post_fetch_and_add(o->ep[0], 1, &from, cookie, &there, flags), wanted(adds));
    if (adds)
        took(o, o->transfers, extended);
    REFUSED(dat_ib_post_cmp_and_swap(o->ep[0], 1, 2, &from, cookie, &there, flags), wanted(swaps));
    if (swaps)
        took(o, o->transfers, extended);
    REFUSED(dat_ib_post_rdma_write_immed(o->ep[0], 1, &from, cookie, &there, 7, flags), wanted(has_immediate));
    if (has_immediate) {
        took(o, o->transfers, extended);
        took(o, o->receives, extended);
    }
    REFUSED(dat_ib_start_counter(ia, DCNT_IA_CM), DAT_MODEL_NOT_SUPPORTED);
}

static void make_added_calls(struct objects *o)
{
    DAT_IA_HANDLE provider, closing;
    DAT_IA_ATTR adapter;
    DAT_PROVIDER_ATTR attr;
    DAT_BOOLEAN is_related;
    CALL(dats_get_ia_handle(ia, &provider));
    CALL(DAT_IA_HA_RELATED(provider, name, &is_related));
    use_cno_with_descriptor(o, provider);
    common_connection(o, provider);
    CALL(dat_ia_query(ia, NULL, DAT_IA_FIELD_NONE, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
    use_rmr_of_ep(o, &attr);
    use_extensions(o, &attr);
    CALL(dat_ib_open_query(name, &queried, DAT_IA_FIELD_ALL, &adapter, DAT_PROVIDER_FIELD_ALL, &attr));
    closing = queried;
    queried = DAT_HANDLE_NULL;
    CALL(dat_ib_close_query(closing));
}

#endif
