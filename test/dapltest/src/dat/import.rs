//! What this program imports of libdat.so.1, as C declares it. The build makes a stub of these names to link with.
//!
//! Functions that take plain values alone are safe to call: handles may be any value, which is a promise of libdat's.
//! `raw` calls the rest; nobody else does.
#![allow(clippy::too_many_arguments, reason = "the signatures are the specification's")]

use std::ffi::c_char;

use dat_abi::*;

unsafe extern "C" {
    pub(super) fn dat_ia_openv(
        name: DAT_NAME_PTR,
        qlen: DAT_COUNT,
        async_evd: *mut DAT_EVD_HANDLE,
        ia: *mut DAT_IA_HANDLE,
        major: DAT_UINT32,
        minor: DAT_UINT32,
        thread_safety: DAT_BOOLEAN,
    ) -> DAT_RETURN;
    pub(super) fn dat_ia_query(
        ia: DAT_IA_HANDLE,
        async_evd: *mut DAT_EVD_HANDLE,
        ia_mask: DAT_IA_ATTR_MASK,
        ia_attr: *mut DAT_IA_ATTR,
        provider_mask: DAT_PROVIDER_ATTR_MASK,
        provider_attr: *mut DAT_PROVIDER_ATTR,
    ) -> DAT_RETURN;
    pub(super) safe fn dat_ia_close(ia: DAT_IA_HANDLE, flags: DAT_CLOSE_FLAGS) -> DAT_RETURN;
    pub(super) fn dat_strerror(value: DAT_RETURN, major: *mut *const c_char, minor: *mut *const c_char) -> DAT_RETURN;
    pub(super) fn dat_get_handle_type(handle: DAT_HANDLE, kind: *mut DAT_HANDLE_TYPE) -> DAT_RETURN;

    pub(super) fn dat_pz_create(ia: DAT_IA_HANDLE, pz: *mut DAT_PZ_HANDLE) -> DAT_RETURN;
    pub(super) fn dat_pz_query(pz: DAT_PZ_HANDLE, mask: DAT_PZ_PARAM_MASK, param: *mut DAT_PZ_PARAM) -> DAT_RETURN;
    pub(super) safe fn dat_pz_free(pz: DAT_PZ_HANDLE) -> DAT_RETURN;

    pub(super) fn dat_cno_create(
        ia: DAT_IA_HANDLE,
        agent: DAT_OS_WAIT_PROXY_AGENT,
        cno: *mut DAT_CNO_HANDLE,
    ) -> DAT_RETURN;
    pub(super) fn dat_cno_query(cno: DAT_CNO_HANDLE, mask: DAT_CNO_PARAM_MASK, param: *mut DAT_CNO_PARAM)
    -> DAT_RETURN;
    pub(super) fn dat_cno_wait(cno: DAT_CNO_HANDLE, timeout: DAT_TIMEOUT, evd: *mut DAT_EVD_HANDLE) -> DAT_RETURN;
    pub(super) safe fn dat_cno_free(cno: DAT_CNO_HANDLE) -> DAT_RETURN;

    pub(super) fn dat_evd_create(
        ia: DAT_IA_HANDLE,
        qlen: DAT_COUNT,
        cno: DAT_CNO_HANDLE,
        flags: DAT_EVD_FLAGS,
        evd: *mut DAT_EVD_HANDLE,
    ) -> DAT_RETURN;
    pub(super) fn dat_evd_query(evd: DAT_EVD_HANDLE, mask: DAT_EVD_PARAM_MASK, param: *mut DAT_EVD_PARAM)
    -> DAT_RETURN;
    pub(super) safe fn dat_evd_resize(evd: DAT_EVD_HANDLE, qlen: DAT_COUNT) -> DAT_RETURN;
    pub(super) safe fn dat_evd_set_unwaitable(evd: DAT_EVD_HANDLE) -> DAT_RETURN;
    pub(super) safe fn dat_evd_clear_unwaitable(evd: DAT_EVD_HANDLE) -> DAT_RETURN;
    pub(super) fn dat_evd_post_se(evd: DAT_EVD_HANDLE, event: *const DAT_EVENT) -> DAT_RETURN;
    pub(super) fn dat_evd_wait(
        evd: DAT_EVD_HANDLE,
        timeout: DAT_TIMEOUT,
        threshold: DAT_COUNT,
        event: *mut DAT_EVENT,
        more: *mut DAT_COUNT,
    ) -> DAT_RETURN;
    pub(super) fn dat_evd_dequeue(evd: DAT_EVD_HANDLE, event: *mut DAT_EVENT) -> DAT_RETURN;
    pub(super) safe fn dat_evd_free(evd: DAT_EVD_HANDLE) -> DAT_RETURN;

    pub(super) fn dat_ep_create(
        ia: DAT_IA_HANDLE,
        pz: DAT_PZ_HANDLE,
        recv: DAT_EVD_HANDLE,
        request: DAT_EVD_HANDLE,
        connect: DAT_EVD_HANDLE,
        attr: *const DAT_EP_ATTR,
        ep: *mut DAT_EP_HANDLE,
    ) -> DAT_RETURN;
    pub(super) fn dat_ep_query(ep: DAT_EP_HANDLE, mask: DAT_EP_PARAM_MASK, param: *mut DAT_EP_PARAM) -> DAT_RETURN;
    pub(super) fn dat_ep_get_status(
        ep: DAT_EP_HANDLE,
        state: *mut DAT_EP_STATE,
        recv_idle: *mut DAT_BOOLEAN,
        request_idle: *mut DAT_BOOLEAN,
    ) -> DAT_RETURN;
    pub(super) fn dat_ep_connect(
        ep: DAT_EP_HANDLE,
        address: DAT_IA_ADDRESS_PTR,
        qual: DAT_CONN_QUAL,
        timeout: DAT_TIMEOUT,
        size: DAT_COUNT,
        data: DAT_PVOID,
        qos: DAT_QOS,
        flags: DAT_CONNECT_FLAGS,
    ) -> DAT_RETURN;
    pub(super) safe fn dat_ep_disconnect(ep: DAT_EP_HANDLE, flags: DAT_CLOSE_FLAGS) -> DAT_RETURN;
    pub(super) safe fn dat_ep_reset(ep: DAT_EP_HANDLE) -> DAT_RETURN;
    pub(super) safe fn dat_ep_free(ep: DAT_EP_HANDLE) -> DAT_RETURN;
    pub(super) fn dat_ep_post_send(
        ep: DAT_EP_HANDLE,
        count: DAT_COUNT,
        segments: *mut DAT_LMR_TRIPLET,
        cookie: DAT_DTO_COOKIE,
        flags: DAT_COMPLETION_FLAGS,
    ) -> DAT_RETURN;
    pub(super) fn dat_ep_post_recv(
        ep: DAT_EP_HANDLE,
        count: DAT_COUNT,
        segments: *mut DAT_LMR_TRIPLET,
        cookie: DAT_DTO_COOKIE,
        flags: DAT_COMPLETION_FLAGS,
    ) -> DAT_RETURN;
    pub(super) fn dat_ep_post_rdma_read(
        ep: DAT_EP_HANDLE,
        count: DAT_COUNT,
        segments: *mut DAT_LMR_TRIPLET,
        cookie: DAT_DTO_COOKIE,
        remote: *const DAT_RMR_TRIPLET,
        flags: DAT_COMPLETION_FLAGS,
    ) -> DAT_RETURN;
    pub(super) fn dat_ep_post_rdma_write(
        ep: DAT_EP_HANDLE,
        count: DAT_COUNT,
        segments: *mut DAT_LMR_TRIPLET,
        cookie: DAT_DTO_COOKIE,
        remote: *const DAT_RMR_TRIPLET,
        flags: DAT_COMPLETION_FLAGS,
    ) -> DAT_RETURN;

    pub(super) fn dat_lmr_create(
        ia: DAT_IA_HANDLE,
        kind: DAT_MEM_TYPE,
        region: DAT_REGION_DESCRIPTION,
        length: DAT_VLEN,
        pz: DAT_PZ_HANDLE,
        privileges: DAT_MEM_PRIV_FLAGS,
        lmr: *mut DAT_LMR_HANDLE,
        lmr_context: *mut DAT_LMR_CONTEXT,
        rmr_context: *mut DAT_RMR_CONTEXT,
        registered_length: *mut DAT_VLEN,
        registered_address: *mut DAT_VADDR,
    ) -> DAT_RETURN;
    pub(super) fn dat_lmr_query(lmr: DAT_LMR_HANDLE, mask: DAT_LMR_PARAM_MASK, param: *mut DAT_LMR_PARAM)
    -> DAT_RETURN;
    pub(super) safe fn dat_lmr_free(lmr: DAT_LMR_HANDLE) -> DAT_RETURN;

    pub(super) fn dat_rmr_create(pz: DAT_PZ_HANDLE, rmr: *mut DAT_RMR_HANDLE) -> DAT_RETURN;
    pub(super) fn dat_rmr_query(rmr: DAT_RMR_HANDLE, mask: DAT_RMR_PARAM_MASK, param: *mut DAT_RMR_PARAM)
    -> DAT_RETURN;
    pub(super) fn dat_rmr_bind(
        rmr: DAT_RMR_HANDLE,
        segment: *const DAT_LMR_TRIPLET,
        privileges: DAT_MEM_PRIV_FLAGS,
        ep: DAT_EP_HANDLE,
        cookie: DAT_RMR_COOKIE,
        flags: DAT_COMPLETION_FLAGS,
        context: *mut DAT_RMR_CONTEXT,
    ) -> DAT_RETURN;
    pub(super) safe fn dat_rmr_free(rmr: DAT_RMR_HANDLE) -> DAT_RETURN;

    pub(super) fn dat_psp_create(
        ia: DAT_IA_HANDLE,
        qual: DAT_CONN_QUAL,
        evd: DAT_EVD_HANDLE,
        flags: DAT_PSP_FLAGS,
        psp: *mut DAT_PSP_HANDLE,
    ) -> DAT_RETURN;
    pub(super) fn dat_psp_create_any(
        ia: DAT_IA_HANDLE,
        qual: *mut DAT_CONN_QUAL,
        evd: DAT_EVD_HANDLE,
        flags: DAT_PSP_FLAGS,
        psp: *mut DAT_PSP_HANDLE,
    ) -> DAT_RETURN;
    pub(super) fn dat_psp_query(psp: DAT_PSP_HANDLE, mask: DAT_PSP_PARAM_MASK, param: *mut DAT_PSP_PARAM)
    -> DAT_RETURN;
    pub(super) safe fn dat_psp_free(psp: DAT_PSP_HANDLE) -> DAT_RETURN;

    pub(super) fn dat_rsp_create(
        ia: DAT_IA_HANDLE,
        qual: DAT_CONN_QUAL,
        ep: DAT_EP_HANDLE,
        evd: DAT_EVD_HANDLE,
        rsp: *mut DAT_RSP_HANDLE,
    ) -> DAT_RETURN;
    pub(super) fn dat_rsp_query(rsp: DAT_RSP_HANDLE, mask: DAT_RSP_PARAM_MASK, param: *mut DAT_RSP_PARAM)
    -> DAT_RETURN;
    pub(super) safe fn dat_rsp_free(rsp: DAT_RSP_HANDLE) -> DAT_RETURN;

    pub(super) fn dat_cr_accept(cr: DAT_CR_HANDLE, ep: DAT_EP_HANDLE, size: DAT_COUNT, data: DAT_PVOID) -> DAT_RETURN;
    pub(super) safe fn dat_cr_reject(cr: DAT_CR_HANDLE) -> DAT_RETURN;
}
