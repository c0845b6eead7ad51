//! DAT 2.0 entries with the same C types as in 1.2. Each calls the entry of 1.2 and converts its return code.
//!
//! Called through the provider table only.

use dat_abi::*;

use super::convert;
use crate::cno::{self, dapl_cno};
use crate::context;
use crate::cr::dapl_cr;
use crate::ep::dapl_ep;
use crate::evd::dapl_evd;
use crate::ia::dapl_ia;
use crate::lmr::dapl_lmr;
use crate::provider::Provider;
use crate::psp::dapl_psp;
use crate::pz::dapl_pz;
use crate::rmr::dapl_rmr;
use crate::rsp::dapl_rsp;
use crate::srq::dapl_srq;

macro_rules! same {
    ($($abi:literal $name:ident = $module:ident :: $entry:ident($($arg:ident: $type:ty),*);)*) => { $(
        #[doc = concat!("DAT 2.0 version of `", stringify!($entry), "`: the same arguments, and a return code of 2.0.")]
        ///
        /// # Safety
        /// The conditions of the entry of 1.2 apply.
        #[allow(clippy::too_many_arguments, reason = "the specification defines the arguments")]
        pub unsafe extern $abi fn $name<P: Provider>($($arg: $type),*) -> DAT_RETURN {
            // SAFETY: the caller also satisfies the contract of the entry of 1.2.
            convert::code(unsafe { $module::$entry::<P>($($arg),*) })
        }
    )* };
}

same! {
    "C" dapl2_ia_close = dapl_ia::dapl_ia_close(ia: DAT_IA_HANDLE, flags: DAT_CLOSE_FLAGS);
    "C" dapl2_cno_create = dapl_cno::dapl_cno_create(ia: DAT_IA_HANDLE, agent: DAT_OS_WAIT_PROXY_AGENT, out: *mut DAT_CNO_HANDLE);
    "C" dapl2_cno_modify_agent = dapl_cno::dapl_cno_modify_agent(cno: DAT_CNO_HANDLE, agent: DAT_OS_WAIT_PROXY_AGENT);
    "C" dapl2_cno_free = dapl_cno::dapl_cno_free(cno: DAT_CNO_HANDLE);
    "C-unwind" dapl2_cno_wait = cno::dapl_cno_wait(cno: DAT_CNO_HANDLE, timeout: DAT_TIMEOUT, evd: *mut DAT_EVD_HANDLE);
    "C" dapl2_cr_query = dapl_cr::dapl_cr_query(cr: DAT_CR_HANDLE, mask: DAT_CR_PARAM_MASK, out: *mut DAT_CR_PARAM);
    "C" dapl2_cr_accept = dapl_cr::dapl_cr_accept(cr: DAT_CR_HANDLE, ep: DAT_EP_HANDLE, size: DAT_COUNT, data: DAT_PVOID);
    "C" dapl2_cr_handoff = dapl_cr::dapl_cr_handoff(cr: DAT_CR_HANDLE, handoff: DAT_CONN_QUAL);
    "C" dapl2_evd_query = dapl_evd::dapl_evd_query(evd: DAT_EVD_HANDLE, mask: DAT_EVD_PARAM_MASK, out: *mut DAT_EVD_PARAM);
    "C" dapl2_evd_modify_cno = dapl_evd::dapl_evd_modify_cno(evd: DAT_EVD_HANDLE, cno: DAT_CNO_HANDLE);
    "C" dapl2_evd_enable = dapl_evd::dapl_evd_enable(evd: DAT_EVD_HANDLE);
    "C" dapl2_evd_disable = dapl_evd::dapl_evd_disable(evd: DAT_EVD_HANDLE);
    "C" dapl2_evd_set_unwaitable = dapl_evd::dapl_evd_set_unwaitable(evd: DAT_EVD_HANDLE);
    "C" dapl2_evd_clear_unwaitable = dapl_evd::dapl_evd_clear_unwaitable(evd: DAT_EVD_HANDLE);
    "C" dapl2_evd_resize = dapl_evd::dapl_evd_resize(evd: DAT_EVD_HANDLE, length: DAT_COUNT);
    "C" dapl2_evd_free = dapl_evd::dapl_evd_free(evd: DAT_EVD_HANDLE);
    "C" dapl2_ep_dup_connect = dapl_ep::dapl_ep_dup_connect(ep: DAT_EP_HANDLE, dup: DAT_EP_HANDLE, timeout: DAT_TIMEOUT, size: DAT_COUNT, data: DAT_PVOID, qos: DAT_QOS);
    "C" dapl2_ep_disconnect = dapl_ep::dapl_ep_disconnect(ep: DAT_EP_HANDLE, flags: DAT_CLOSE_FLAGS);
    "C" dapl2_ep_get_status = dapl_ep::dapl_ep_get_status(ep: DAT_EP_HANDLE, state: *mut DAT_EP_STATE, recv_idle: *mut DAT_BOOLEAN, request_idle: *mut DAT_BOOLEAN);
    "C" dapl2_ep_reset = dapl_ep::dapl_ep_reset(ep: DAT_EP_HANDLE);
    "C" dapl2_ep_recv_query = dapl_ep::dapl_ep_recv_query(ep: DAT_EP_HANDLE, allocated: *mut DAT_COUNT, span: *mut DAT_COUNT);
    "C" dapl2_ep_set_watermark = dapl_ep::dapl_ep_set_watermark(ep: DAT_EP_HANDLE, soft: DAT_COUNT, hard: DAT_COUNT);
    "C" dapl2_lmr_free = dapl_lmr::dapl_lmr_free(lmr: DAT_LMR_HANDLE);
    "C" dapl2_rmr_create = dapl_rmr::dapl_rmr_create(pz: DAT_PZ_HANDLE, out: *mut DAT_RMR_HANDLE);
    "C" dapl2_rmr_free = dapl_rmr::dapl_rmr_free(rmr: DAT_RMR_HANDLE);
    "C" dapl2_psp_create = dapl_psp::dapl_psp_create(ia: DAT_IA_HANDLE, qual: DAT_CONN_QUAL, evd: DAT_EVD_HANDLE, flags: DAT_PSP_FLAGS, out: *mut DAT_PSP_HANDLE);
    "C" dapl2_psp_create_any = dapl_psp::dapl_psp_create_any(ia: DAT_IA_HANDLE, qual: *mut DAT_CONN_QUAL, evd: DAT_EVD_HANDLE, flags: DAT_PSP_FLAGS, out: *mut DAT_PSP_HANDLE);
    "C" dapl2_psp_query = dapl_psp::dapl_psp_query(psp: DAT_PSP_HANDLE, mask: DAT_PSP_PARAM_MASK, out: *mut DAT_PSP_PARAM);
    "C" dapl2_psp_free = dapl_psp::dapl_psp_free(psp: DAT_PSP_HANDLE);
    "C" dapl2_rsp_create = dapl_rsp::dapl_rsp_create(ia: DAT_IA_HANDLE, qual: DAT_CONN_QUAL, ep: DAT_EP_HANDLE, evd: DAT_EVD_HANDLE, out: *mut DAT_RSP_HANDLE);
    "C" dapl2_rsp_query = dapl_rsp::dapl_rsp_query(rsp: DAT_RSP_HANDLE, mask: DAT_RSP_PARAM_MASK, out: *mut DAT_RSP_PARAM);
    "C" dapl2_rsp_free = dapl_rsp::dapl_rsp_free(rsp: DAT_RSP_HANDLE);
    "C" dapl2_pz_create = dapl_pz::dapl_pz_create(ia: DAT_IA_HANDLE, out: *mut DAT_PZ_HANDLE);
    "C" dapl2_pz_query = dapl_pz::dapl_pz_query(pz: DAT_PZ_HANDLE, mask: DAT_PZ_PARAM_MASK, out: *mut DAT_PZ_PARAM);
    "C" dapl2_pz_free = dapl_pz::dapl_pz_free(pz: DAT_PZ_HANDLE);
    "C" dapl2_srq_create = dapl_srq::dapl_srq_create(ia: DAT_IA_HANDLE, pz: DAT_PZ_HANDLE, attributes: *mut DAT_SRQ_ATTR, out: *mut DAT_SRQ_HANDLE);
    "C" dapl2_srq_set_lw = dapl_srq::dapl_srq_set_lw(srq: DAT_SRQ_HANDLE, low_watermark: DAT_COUNT);
    "C" dapl2_srq_free = dapl_srq::dapl_srq_free(srq: DAT_SRQ_HANDLE);
    "C" dapl2_srq_resize = dapl_srq::dapl_srq_resize(srq: DAT_SRQ_HANDLE, length: DAT_COUNT);
}

/// DAT 2.0 version of `dapl_set_consumer_context`: the same arguments, and a return code of 2.0.
///
/// # Safety
/// `handle` may have any value.
pub unsafe extern "C" fn dapl2_set_consumer_context(handle: DAT_HANDLE, value: DAT_CONTEXT) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `context::dapl_set_consumer_context`.
    convert::code(unsafe { context::dapl_set_consumer_context(handle, value) })
}

/// DAT 2.0 version of `dapl_get_consumer_context`: the same arguments, and a return code of 2.0.
///
/// # Safety
/// `handle` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_get_consumer_context(handle: DAT_HANDLE, out: *mut DAT_CONTEXT) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `context::dapl_get_consumer_context`.
    convert::code(unsafe { context::dapl_get_consumer_context(handle, out) })
}

/// DAT 2.0 version of `dapl_get_handle_type`: the same arguments, and a return code of 2.0.
///
/// # Safety
/// `handle` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_get_handle_type(handle: DAT_HANDLE, out: *mut DAT_HANDLE_TYPE) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `context::dapl_get_handle_type`.
    convert::code(unsafe { context::dapl_get_handle_type(handle, out) })
}
