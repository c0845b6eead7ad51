//! DAT 2.0 entries for CNOs: the query, the creation with a descriptor, and `dat_cno_trigger`.
//!
//! Called through the provider table only.

use dat_abi::v2::*;

use super::convert;
use crate::cno::{Cno, dapls_cno};
use crate::error::Handle;
use crate::ffi::{Agent, guard, put_cleared, query, require};
use crate::ia::Ia;
use crate::provider::Provider;
use crate::runtime::handle::from_handle;

/// `dat_cno_query`. The proxy in the record is the CNO's descriptor if it has one, otherwise its agent.
///
/// # Safety
/// `cno` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_cno_query<P: Provider>(
    cno: DAT_CNO_HANDLE,
    mask: DAT_CNO_PARAM_MASK,
    out: *mut DAT_CNO_PARAM,
) -> DAT_RETURN {
    /// All known bits, 0x1 to 0x4. In DAT 2.0, `DAT_CNO_FIELD_ALL` contains none of the other fields.
    const KNOWN: DAT_CNO_PARAM_MASK = DAT_CNO_FIELD_PROXY | DAT_CNO_FIELD_ALL;
    let param = |cno: &Cno<P>| {
        // The agent is the largest member, so this initialises all bytes of the union.
        let mut proxy = DAT_CNO_PROXY { agent: Agent::as_passed(None) };
        let proxy_type = match (cno.descriptor(), cno.agent()) {
            (Some(fd), _) => {
                proxy.fd = fd;
                DAT_PROXY_TYPE_FD
            }
            (None, Some(agent)) => {
                proxy.agent = Agent::as_passed(Some(agent));
                DAT_PROXY_TYPE_AGENT
            }
            (None, None) => DAT_PROXY_TYPE_NONE,
        };
        Ok(DAT_CNO_PARAM { ia_handle: cno.ia.consumer_handle(), proxy_type, proxy })
    };
    // SAFETY: the caller also satisfies the contract of `query`.
    convert::guard(|| unsafe { query(cno, Handle::Cno, mask & !KNOWN, out, put_cleared, param) })
}

/// `dat_cno_fd_create`: creates a CNO with a descriptor that is readable while EVDs have triggered the CNO.
///
/// # Safety
/// `ia` may have any value; the out parameters are null or writable.
pub unsafe extern "C" fn dapl2_cno_fd_create<P: Provider>(
    ia: DAT_IA_HANDLE,
    fd: *mut DAT_FD,
    out: *mut DAT_CNO_HANDLE,
) -> DAT_RETURN {
    convert::code(guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?.to_arc();
        require(fd, 2)?;
        require(out, 3)?;
        let (cno, number) = dapls_cno::create_with_descriptor(&ia)?;
        // SAFETY: `fd` and `out` are not null, and the caller guarantees that they are writable.
        unsafe {
            fd.write_unaligned(number);
            out.write_unaligned(cno);
        }
        Ok(())
    }))
}

/// `dat_cno_trigger`: returns the first triggered EVD that still has events. If there is none, sets the handle to null
/// and returns `DAT_QUEUE_EMPTY`.
///
/// # Safety
/// `cno` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_cno_trigger<P: Provider>(cno: DAT_CNO_HANDLE, out: *mut DAT_EVD_HANDLE) -> DAT_RETURN {
    convert::code(guard(|| {
        let cno = from_handle::<Cno<P>>(cno, Handle::Cno)?;
        require(out, 2)?;
        let taken = dapls_cno::take_trigger(&cno);
        // SAFETY: `out` is not null, and the caller guarantees that it is writable.
        unsafe { out.write_unaligned(taken.unwrap_or(0) as DAT_EVD_HANDLE) };
        taken.map(drop)
    }))
}
