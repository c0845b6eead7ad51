//! C entries for CNOs, except the wait: `dat_cno_create`, `dat_cno_modify_agent`, `dat_cno_query`, `dat_cno_free`.
//!
//! C calls these entries through the provider table of 1.2; the entries of 2.0 call some of them too. Each entry opens
//! its handles, parses its arguments and makes one call.

use dat_abi::*;

use super::{Cno, dapls_cno};
use crate::error::Handle;
use crate::ffi::{Agent, guard, put, put_required, query};
use crate::ia::Ia;
use crate::provider::Provider;
use crate::runtime::handle::from_handle;

/// `dat_cno_create`.
///
/// # Safety
/// `ia` may have any value; the function in `agent` may be called from any thread while it is armed; `out` is null or
/// writable.
pub unsafe extern "C" fn dapl_cno_create<P: Provider>(
    ia: DAT_IA_HANDLE,
    agent: DAT_OS_WAIT_PROXY_AGENT,
    out: *mut DAT_CNO_HANDLE,
) -> DAT_RETURN {
    guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?.to_arc();
        // SAFETY: the caller guarantees that the agent may be called from any thread while it is armed.
        let agent = unsafe { Agent::new(agent) };
        // SAFETY: the caller guarantees that `out` is null or writable.
        unsafe { put_required(out, 3, || dapls_cno::create(&ia, agent)) }
    })
}

/// `dat_cno_modify_agent`.
///
/// # Safety
/// `cno` may have any value; the function in `agent` may be called from any thread while it is armed.
pub unsafe extern "C" fn dapl_cno_modify_agent<P: Provider>(
    cno: DAT_CNO_HANDLE,
    agent: DAT_OS_WAIT_PROXY_AGENT,
) -> DAT_RETURN {
    guard(|| {
        // SAFETY: the caller guarantees that the agent may be called from any thread while it is armed.
        let agent = unsafe { Agent::new(agent) };
        from_handle::<Cno<P>>(cno, Handle::Cno).map(|cno| dapls_cno::modify_agent(&cno, agent))
    })
}

/// `dat_cno_query`.
///
/// # Safety
/// `cno` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_cno_query<P: Provider>(
    cno: DAT_CNO_HANDLE,
    mask: DAT_CNO_PARAM_MASK,
    out: *mut DAT_CNO_PARAM,
) -> DAT_RETURN {
    let param =
        |cno: &Cno<P>| Ok(DAT_CNO_PARAM { ia_handle: cno.ia.consumer_handle(), agent: Agent::as_passed(cno.agent()) });
    // SAFETY: the caller also satisfies the contract of `query`.
    guard(|| unsafe { query(cno, Handle::Cno, mask & !DAT_CNO_FIELD_ALL, out, put, param) })
}

/// `dat_cno_free`.
///
/// # Safety
/// `cno` may have any value.
pub unsafe extern "C" fn dapl_cno_free<P: Provider>(cno: DAT_CNO_HANDLE) -> DAT_RETURN {
    guard(|| dapls_cno::free(&*from_handle::<Cno<P>>(cno, Handle::Cno)?))
}
