//! DAT 2.0 entries for endpoints whose records, parameters or behaviour differ from 1.2, except posts.
//!
//! Called through the provider table only.

use dat_abi as v1;
use dat_abi::v2::*;

use super::{convert, dapl_csp};
use crate::ep::{Communicator, Ep, dapl_ep as ep_1_2, dapls_ep};
use crate::error::{Error, Handle};
use crate::ffi::{guard, put_cleared, require};
use crate::ia::Ia;
use crate::provider::Provider;
use crate::runtime::handle::from_handle;

/// `dat_ep_create`. The service type of unreliable datagrams is refused with `DAT_MODEL_NOT_SUPPORTED`.
///
/// # Safety
/// `ia`, `pz`, `recv`, `request` and `connect` may have any value; `attributes` is null or points at a record; `out` is
/// null or writable.
pub unsafe extern "C" fn dapl2_ep_create<P: Provider>(
    ia: DAT_IA_HANDLE,
    pz: DAT_PZ_HANDLE,
    recv: DAT_EVD_HANDLE,
    request: DAT_EVD_HANDLE,
    connect: DAT_EVD_HANDLE,
    attributes: *const DAT_EP_ATTR,
    out: *mut DAT_EP_HANDLE,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `with_attributes`.
    unsafe {
        with_attributes::<P>(ia, attributes, |attributes| {
            ep_1_2::dapl_ep_create::<P>(ia, pz, recv, request, connect, attributes, out)
        })
    }
}

/// `dat_ep_create_with_srq`.
///
/// # Safety
/// `ia`, `pz`, `recv`, `request`, `connect` and `srq` may have any value; `attributes` is null or points at a record;
/// `out` is null or writable.
#[allow(clippy::too_many_arguments, reason = "the specification defines the arguments")]
pub unsafe extern "C" fn dapl2_ep_create_with_srq<P: Provider>(
    ia: DAT_IA_HANDLE,
    pz: DAT_PZ_HANDLE,
    recv: DAT_EVD_HANDLE,
    request: DAT_EVD_HANDLE,
    connect: DAT_EVD_HANDLE,
    srq: DAT_SRQ_HANDLE,
    attributes: *const DAT_EP_ATTR,
    out: *mut DAT_EP_HANDLE,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `with_attributes`.
    unsafe {
        with_attributes::<P>(ia, attributes, |attributes| {
            ep_1_2::dapl_ep_create_with_srq::<P>(ia, pz, recv, request, connect, srq, attributes, out)
        })
    }
}

/// Calls an entry of 1.2 with converted attributes. Null and misaligned pointers are passed unchanged: the entry
/// refuses them, except that a null pointer selects the defaults in `dat_ep_create`.
///
/// # Safety
/// `attributes` is null or points at a record.
unsafe fn with_attributes<P: Provider>(
    ia: DAT_IA_HANDLE,
    attributes: *const DAT_EP_ATTR,
    create: impl FnOnce(*const v1::DAT_EP_ATTR) -> DAT_RETURN,
) -> DAT_RETURN {
    if attributes.is_null() || !attributes.is_aligned() {
        return convert::code(create(attributes.cast()));
    }
    // SAFETY: `attributes` is neither null nor misaligned, and the caller guarantees that it points at a record.
    let attributes = unsafe { attributes.read() };
    let check = || {
        from_handle::<Ia<P>>(ia, Handle::Ia)?;
        if attributes.service_type == DAT_IB_SERVICE_TYPE_UD { Err(Error::ModelNotSupported) } else { Ok(()) }
    };
    convert::guard_then(check, |()| convert::code(create(&convert::ep_attr(&attributes))))
}

/// `dat_ep_query`.
///
/// # Safety
/// `ep` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_ep_query<P: Provider>(
    ep: DAT_EP_HANDLE,
    mask: DAT_EP_PARAM_MASK,
    out: *mut DAT_EP_PARAM,
) -> DAT_RETURN {
    convert::code(guard(|| {
        let ep = from_handle::<Ep<P>>(ep, Handle::Ep)?;
        require(out, 3)?;
        // Any known bit in the mask selects all fields, as in 1.2.
        if mask & DAT_EP_FIELD_ALL != 0 {
            let Communicator { domain, kind, protocol } = dapls_ep::communicator(&*ep);
            let param = convert::ep_param_2(&ep.param()?, DAT_COMM { domain, r#type: kind, protocol });
            // SAFETY: `out` is not null, and the caller guarantees that it is writable.
            unsafe { put_cleared(out, param) };
        }
        Ok(())
    }))
}

/// `dat_ep_modify`. The communicator is changed last, and only if all other changes have succeeded.
///
/// # Safety
/// `ep` may have any value; `param` is null or points at a record.
pub unsafe extern "C" fn dapl2_ep_modify<P: Provider>(
    ep: DAT_EP_HANDLE,
    mask: DAT_EP_PARAM_MASK,
    param: *const DAT_EP_PARAM,
) -> DAT_RETURN {
    if param.is_null() {
        // SAFETY: the caller also satisfies the contract of `ep_1_2::dapl_ep_modify`.
        return convert::code(unsafe { ep_1_2::dapl_ep_modify::<P>(ep, 0, std::ptr::null()) });
    }
    // SAFETY: `param` is not null, and the caller guarantees that it is readable.
    let param = unsafe { param.read_unaligned() };
    let DAT_COMM { domain, r#type: kind, protocol } = param.comm;
    let communicator = (mask & DAT_EP_FIELD_COMM != 0).then_some(Communicator { domain, kind, protocol });
    let check = || {
        let ep = from_handle::<Ep<P>>(ep, Handle::Ep)?;
        communicator.map_or(Ok(()), |communicator| dapls_ep::check_communicator(&*ep, communicator))
    };
    convert::guard_then(check, |()| {
        // SAFETY: the record is a local variable.
        let code = unsafe { ep_1_2::dapl_ep_modify::<P>(ep, convert::ep_mask(mask), &convert::ep_param(&param)) };
        let (DAT_SUCCESS, Some(communicator)) = (code, communicator) else { return convert::code(code) };
        convert::code(guard(|| dapls_ep::set_communicator(&*from_handle::<Ep<P>>(ep, Handle::Ep)?, communicator)))
    })
}

/// `dat_ep_connect`. If the flags request several paths, one path is used. If they require several paths, the call
/// fails.
///
/// # Safety
/// `ep` may have any value; `address` is null or points at a socket address of the length of its family; `data` is null
/// or points at `size` bytes.
#[allow(clippy::too_many_arguments, reason = "the specification defines the arguments")]
pub unsafe extern "C" fn dapl2_ep_connect<P: Provider>(
    ep: DAT_EP_HANDLE,
    address: DAT_IA_ADDRESS_PTR,
    qual: DAT_CONN_QUAL,
    timeout: DAT_TIMEOUT,
    size: DAT_COUNT,
    data: DAT_PVOID,
    qos: DAT_QOS,
    flags: DAT_CONNECT_FLAGS,
) -> DAT_RETURN {
    let flags = flags & !DAT_CONNECT_MULTIPATH_FLAG;
    // SAFETY: the caller also satisfies the contract of `ep_1_2::dapl_ep_connect`.
    convert::code(unsafe { ep_1_2::dapl_ep_connect::<P>(ep, address, qual, timeout, size, data, qos, flags) })
}

/// `dat_ep_common_connect`: connects to the common service point at the port in `address`, with the EP's communicator.
///
/// # Safety
/// `ep` may have any value; `address` is null or points at a socket address of the length of its family; `data` is null
/// or points at `size` bytes.
pub unsafe extern "C" fn dapl2_ep_common_connect<P: Provider>(
    ep: DAT_EP_HANDLE,
    address: DAT_IA_ADDRESS_PTR,
    timeout: DAT_TIMEOUT,
    size: DAT_COUNT,
    data: DAT_PVOID,
) -> DAT_RETURN {
    const PLACES: &[(u32, u32)] = &[(4, 3), (5, 4), (6, 5)];
    let port = || {
        let ep = from_handle::<Ep<P>>(ep, Handle::Ep)?;
        require(address, 2)?;
        // SAFETY: `address` is not null, so the caller guarantees that it points at a socket address.
        unsafe { dapl_csp::port_of(address, dapls_ep::communicator(&*ep), 2) }
    };
    convert::guard_then(port, |port| {
        let (qual, qos, flags) = (port.into(), DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG);
        // SAFETY: the caller also satisfies the contract of the entry of 1.2.
        let code = unsafe { ep_1_2::dapl_ep_connect::<P>(ep, address, qual, timeout, size, data, qos, flags) };
        convert::code_with_arguments(code, PLACES)
    })
}

/// `dat_ep_free`. For a connected EP, queues a disconnect event, which 1.2 does not do (spec/endpoints 5.8).
///
/// # Safety
/// `ep` may have any value.
pub unsafe extern "C" fn dapl2_ep_free<P: Provider>(ep: DAT_EP_HANDLE) -> DAT_RETURN {
    let is_connected =
        from_handle::<Ep<P>>(ep, Handle::Ep).is_ok_and(|ep| ep.state() == crate::ep::state::EpState::Connected);
    // SAFETY: the call accepts any handle value.
    unsafe {
        if is_connected {
            ep_1_2::dapl_ep_disconnect::<P>(ep, DAT_CLOSE_ABRUPT_FLAG);
        }
        convert::code(ep_1_2::dapl_ep_free::<P>(ep))
    }
}
