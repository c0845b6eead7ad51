//! C entries for endpoints, except posts: each entry opens handles, parses parameters and makes one call.
//!
//! C calls these entries through the provider table of 1.2; the entries of 2.0 call them too. The checks are made in
//! the order of spec/endpoints 5 and spec/events 5.5 to 5.7.

use std::sync::Arc;
use std::time::Duration;

use dat_abi::*;

use super::attributes::{Attributes, HighWatermarks};
pub use super::dapl_post::{dapl_ep_post_rdma_read, dapl_ep_post_rdma_write, dapl_ep_post_recv, dapl_ep_post_send};

use super::dapli_connect::{self, ConnectArguments};
use super::dapli_modify::{self, EpChange};
use super::state::{EpState, EpStep};
use super::{Ep, EpObjects, record};
use crate::error::{AddressProblem, Error, Handle, Result};
use crate::evd::{Evd, dapls_evd};
use crate::ffi;
use crate::ia::Ia;
use crate::provider::{PeerAddress, Provider};
use crate::pz::Pz;
use crate::runtime::consumer_memory;
use crate::runtime::handle::{UseGuard, from_handle, from_optional};
use crate::srq::Srq;

/// `dat_ep_create`.
///
/// # Safety
/// Handles may have any value; `ep_attributes` is null or points at a record; `ep_handle` is null or writable.
pub unsafe extern "C" fn dapl_ep_create<P: Provider>(
    ia_handle: DAT_IA_HANDLE,
    pz_handle: DAT_PZ_HANDLE,
    recv_completion_evd_handle: DAT_EVD_HANDLE,
    request_completion_evd_handle: DAT_EVD_HANDLE,
    connect_evd_handle: DAT_EVD_HANDLE,
    ep_attributes: *const DAT_EP_ATTR,
    ep_handle: *mut DAT_EP_HANDLE,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ia = from_handle::<Ia<P>>(ia_handle, Handle::Ia)?.to_arc();
        let objects =
            objects::<P>(pz_handle, recv_completion_evd_handle, request_completion_evd_handle, connect_evd_handle)?;
        ffi::require(ep_handle, 7)?;
        // SAFETY: the caller also satisfies the contract of `create`.
        unsafe { create(&ia, objects, ep_attributes, 6, ep_handle) }
    })
}

/// `dat_ep_create_with_srq` (spec/events 5.7). A receive EVD is required: the SRQ releases a receive when its
/// completion is dequeued, so the SRQ of an EP without an EVD would fill up.
///
/// # Safety
///
/// `ia_handle`, `pz_handle`, `recv_completion_evd_handle`, `request_completion_evd_handle`, `connect_evd_handle` and
/// `srq_handle` may have any value; `ep_attributes` is null or points at a record; `ep_handle` is null or writable.
pub unsafe extern "C" fn dapl_ep_create_with_srq<P: Provider>(
    ia_handle: DAT_IA_HANDLE,
    pz_handle: DAT_PZ_HANDLE,
    recv_completion_evd_handle: DAT_EVD_HANDLE,
    request_completion_evd_handle: DAT_EVD_HANDLE,
    connect_evd_handle: DAT_EVD_HANDLE,
    srq_handle: DAT_SRQ_HANDLE,
    ep_attributes: *const DAT_EP_ATTR,
    ep_handle: *mut DAT_EP_HANDLE,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ia = from_handle::<Ia<P>>(ia_handle, Handle::Ia)?.to_arc();
        let mut objects =
            objects::<P>(pz_handle, recv_completion_evd_handle, request_completion_evd_handle, connect_evd_handle)?;
        if objects.recv.is_none() {
            return Err(Error::InvalidHandle(Handle::EvdRecv));
        }
        let srq = from_handle::<Srq<P>>(srq_handle, Handle::Srq)?.to_arc();
        // The SRQ must belong to the same IA, since its receives refer to memory of its IA.
        if srq.ia.id != ia.id {
            return Err(Error::InvalidHandle(Handle::Srq));
        }
        objects.srq = Some(UseGuard::of_open(srq, Handle::Srq)?);
        ffi::require(ep_attributes, 7)?;
        ffi::require(ep_handle, 8)?;
        // SAFETY: the caller also satisfies the contract of `create`.
        unsafe { create(&ia, objects, ep_attributes, 7, ep_handle) }
    })
}

/// Creates an EP with the attributes in a record, which is parameter `n`, or with the defaults if it is null.
///
/// # Safety
/// `attributes` is null or points at a record; `out` is null or writable.
unsafe fn create<P: Provider>(
    ia: &Arc<Ia<P>>,
    objects: EpObjects<P>,
    attributes: *const DAT_EP_ATTR,
    n: u8,
    out: *mut DAT_EP_HANDLE,
) -> Result<()> {
    let attributes = if attributes.is_null() {
        Attributes::default_for(objects.attached(), ia.limits())
    } else if attributes.is_aligned() {
        // SAFETY: `attributes` is neither null nor misaligned, and the caller guarantees that it points at a record.
        let asked = Attributes::of_record(unsafe { &*attributes });
        asked.check_for_create(objects.attached(), ia.limits()).map_err(|_| Error::InvalidParameter(n))?
    } else {
        return Err(Error::InvalidParameter(n));
    };
    let ep = Ep::create(ia, EpState::Unconnected, objects, attributes)?;
    // SAFETY: the caller guarantees that `out` is null or writable.
    unsafe { ffi::put(out, ep.id.handle as DAT_EP_HANDLE) };
    Ok(())
}

/// `dat_ep_query`.
///
/// # Safety
/// `ep_handle` may have any value; `ep_param` is null or points at a writable record.
pub unsafe extern "C" fn dapl_ep_query<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    ep_param_mask: DAT_EP_PARAM_MASK,
    ep_param: *mut DAT_EP_PARAM,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ep = from_handle::<Ep<P>>(ep_handle, Handle::Ep)?;
        ffi::require(ep_param, 3)?;
        // Any known bit in the mask selects all fields; unknown bits are ignored.
        if ep_param_mask & DAT_EP_FIELD_ALL != 0 {
            let param = ep.param()?;
            // SAFETY: the caller guarantees that `ep_param` is null or writable.
            unsafe { ffi::put(ep_param, param) };
        }
        Ok(())
    })
}

/// `dat_ep_modify`.
///
/// # Safety
/// `ep_handle` may have any value; `ep_param` is null or points at a record.
pub unsafe extern "C" fn dapl_ep_modify<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    ep_param_mask: DAT_EP_PARAM_MASK,
    ep_param: *const DAT_EP_PARAM,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ep = from_handle::<Ep<P>>(ep_handle, Handle::Ep)?;
        ffi::require(ep_param, 3)?;
        if ep_param_mask & record::READ_ONLY != 0 {
            return Err(Error::InvalidParameter(2));
        }
        // SAFETY: `ep_param` is not null, and the caller guarantees that it is readable.
        let param = unsafe { ep_param.read_unaligned() };
        let named = |field: DAT_EP_PARAM_MASK| ep_param_mask & field != 0;
        let dto = |handle: DAT_EVD_HANDLE| evd::<P>(handle, DAT_EVD_DTO_FLAG, Handle::EvdRecv);
        let connection = |handle: DAT_EVD_HANDLE| evd::<P>(handle, DAT_EVD_CONNECTION_FLAG, Handle::EvdConn);
        let change = EpChange {
            mask: ep_param_mask & DAT_EP_FIELD_ALL,
            pz: named(DAT_EP_FIELD_PZ_HANDLE).then(|| pz(param.pz_handle)),
            recv: named(DAT_EP_FIELD_RECV_EVD_HANDLE).then(|| dto(param.recv_evd_handle)),
            request: named(DAT_EP_FIELD_REQUEST_EVD_HANDLE).then(|| dto(param.request_evd_handle)),
            connect: named(DAT_EP_FIELD_CONNECT_EVD_HANDLE).then(|| connection(param.connect_evd_handle)),
            attributes: Attributes::of_record(&param.ep_attr),
        };
        dapli_modify::modify(&ep, change)
    })
}

/// `dat_ep_connect`.
///
/// # Safety
/// `ep_handle` may have any value; `remote_ia_address` is null or points at a socket address with the length of its
/// family; `private_data` is null or points at `private_data_size` bytes.
pub unsafe extern "C" fn dapl_ep_connect<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    remote_ia_address: DAT_IA_ADDRESS_PTR,
    remote_conn_qual: DAT_CONN_QUAL,
    timeout: DAT_TIMEOUT,
    private_data_size: DAT_COUNT,
    private_data: DAT_PVOID,
    quality_of_service: DAT_QOS,
    connect_flags: DAT_CONNECT_FLAGS,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ep = from_handle::<Ep<P>>(ep_handle, Handle::Ep)?;
        ffi::require(remote_ia_address, 2)?;
        let limit = ep.ia.private_data_connect();
        let call = ConnectArguments {
            // SAFETY: `remote_ia_address` is not null, so the caller guarantees that it points at a socket address.
            address: unsafe { address(remote_ia_address) },
            qual: remote_conn_qual,
            timeout: time(timeout, 4),
            is_best_effort: quality_of_service == DAT_QOS_BEST_EFFORT && connect_flags == DAT_CONNECT_DEFAULT_FLAG,
            // SAFETY: the caller guarantees that `private_data` is null or points at `private_data_size` bytes.
            private_data: unsafe { ffi::private_data(private_data, private_data_size, limit, 5) },
        };
        dapli_connect::connect(&ep, call)
    })
}

/// `dat_ep_dup_connect`: connects to the peer of `ep_dup_handle`.
///
/// # Safety
/// Handles may have any value; `private_data` is null or points at `private_data_size` bytes.
pub unsafe extern "C" fn dapl_ep_dup_connect<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    ep_dup_handle: DAT_EP_HANDLE,
    timeout: DAT_TIMEOUT,
    private_data_size: DAT_COUNT,
    private_data: DAT_PVOID,
    quality_of_service: DAT_QOS,
) -> DAT_RETURN {
    ffi::guard(|| {
        let dup = from_handle::<Ep<P>>(ep_dup_handle, Handle::Ep)?;
        let timeout = time(timeout, 3)?;
        let (address, qual) = dapli_connect::peer_of(&dup)?;
        let ep = from_handle::<Ep<P>>(ep_handle, Handle::Ep)?;
        let limit = ep.ia.private_data_connect();
        let call = ConnectArguments {
            address: Ok(address),
            qual,
            timeout: Ok(timeout),
            is_best_effort: quality_of_service == DAT_QOS_BEST_EFFORT,
            // SAFETY: the caller guarantees that `private_data` is null or points at `private_data_size` bytes.
            private_data: unsafe { ffi::private_data(private_data, private_data_size, limit, 4) },
        };
        dapli_connect::connect(&ep, call)
    })
}

/// `dat_ep_disconnect`. Any flags other than exactly `DAT_CLOSE_ABRUPT_FLAG` mean a graceful disconnect (spec/endpoints
/// 5.6).
///
/// # Safety
/// `ep_handle` may have any value.
pub unsafe extern "C" fn dapl_ep_disconnect<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    close_flags: DAT_CLOSE_FLAGS,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ep = from_handle::<Ep<P>>(ep_handle, Handle::Ep)?;
        dapli_connect::disconnect(&ep, close_flags != DAT_CLOSE_ABRUPT_FLAG)
    })
}

/// `dat_ep_get_status`.
///
/// # Safety
/// `ep_handle` may have any value; each out pointer is null or writable.
pub unsafe extern "C" fn dapl_ep_get_status<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    ep_state: *mut DAT_EP_STATE,
    recv_idle: *mut DAT_BOOLEAN,
    request_idle: *mut DAT_BOOLEAN,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ep = from_handle::<Ep<P>>(ep_handle, Handle::Ep)?;
        let outstanding = ep.outstanding();
        // An EP with an SRQ reports no posted receives, because its receives were posted to the SRQ (spec/endpoints
        // 5.9).
        let recvs = if ep.post_state().limits.shared { 0 } else { outstanding.recvs };
        let idle = |count: u32| if count == 0 { DAT_TRUE } else { DAT_FALSE };
        // SAFETY: the caller guarantees that each out pointer is null or writable.
        unsafe {
            ffi::put(ep_state, ep.state().number());
            ffi::put(recv_idle, idle(recvs));
            ffi::put(request_idle, idle(outstanding.requests));
        }
        Ok(())
    })
}

/// `dat_ep_free`.
///
/// # Safety
/// `ep_handle` may have any value.
pub unsafe extern "C" fn dapl_ep_free<P: Provider>(ep_handle: DAT_EP_HANDLE) -> DAT_RETURN {
    ffi::guard(|| from_handle::<Ep<P>>(ep_handle, Handle::Ep)?.destroy(EpStep::Free))
}

/// `dat_ep_reset`.
///
/// # Safety
/// `ep_handle` may have any value.
pub unsafe extern "C" fn dapl_ep_reset<P: Provider>(ep_handle: DAT_EP_HANDLE) -> DAT_RETURN {
    ffi::guard(|| from_handle::<Ep<P>>(ep_handle, Handle::Ep)?.reset())
}

/// `dat_ep_recv_query`. Messages arrive in order, so both results are the number of outstanding receives.
///
/// # Safety
/// `ep_handle` may have any value; each out pointer is null or writable.
pub unsafe extern "C" fn dapl_ep_recv_query<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    nbufs_allocated: *mut DAT_COUNT,
    bufs_alloc_span: *mut DAT_COUNT,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ep = from_handle::<Ep<P>>(ep_handle, Handle::Ep)?;
        let receives = ffi::count(ep.outstanding().recvs);
        // SAFETY: the caller guarantees that `nbufs_allocated` is null or writable.
        unsafe { ffi::put(nbufs_allocated, receives) };
        // SAFETY: the caller guarantees that `bufs_alloc_span` is null or writable.
        unsafe { ffi::put(bufs_alloc_span, receives) };
        Ok(())
    })
}

/// `dat_ep_set_watermark`.
///
/// # Safety
/// `ep_handle` may have any value.
pub unsafe extern "C" fn dapl_ep_set_watermark<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    soft_high_watermark: DAT_COUNT,
    hard_high_watermark: DAT_COUNT,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ep = from_handle::<Ep<P>>(ep_handle, Handle::Ep)?;
        let mark = |mark: DAT_COUNT, n: u8| HighWatermarks::parse(mark).map_err(|_| Error::InvalidParameter(n));
        ep.watch(HighWatermarks { soft: mark(soft_high_watermark, 2)?, hard: mark(hard_high_watermark, 3)? })
    })
}

/// Opens the handles of the objects that a new EP uses, in the order of checks 2 to 5 of spec/endpoints 5.1.
fn objects<P: Provider>(
    pz_handle: DAT_PZ_HANDLE,
    recv: DAT_EVD_HANDLE,
    request: DAT_EVD_HANDLE,
    connect: DAT_EVD_HANDLE,
) -> Result<EpObjects<P>> {
    let pz = pz(pz_handle)?;
    let connect = evd(connect, DAT_EVD_CONNECTION_FLAG, Handle::EvdConn)?;
    let recv = evd(recv, DAT_EVD_DTO_FLAG, Handle::EvdRecv)?;
    let request = evd(request, DAT_EVD_DTO_FLAG, Handle::EvdRequest)?;
    Ok(EpObjects { pz, recv, request, connect, srq: None })
}

fn pz<P: Provider>(handle: DAT_PZ_HANDLE) -> Result<Option<UseGuard<Pz<P>>>> {
    from_optional::<Pz<P>>(handle, Handle::Pz)?.map(|pz| UseGuard::of_open(pz.to_arc(), Handle::Pz)).transpose()
}

/// Opens the handle of an EVD that serves `stream`; a null handle returns `None`. The EVD may belong to another IA.
fn evd<P: Provider>(handle: DAT_EVD_HANDLE, stream: DAT_EVD_FLAGS, wanted: Handle) -> Result<Option<UseGuard<Evd<P>>>> {
    from_optional::<Evd<P>>(handle, wanted)?.map(|evd| dapls_evd::use_for(&evd, stream, wanted)).transpose()
}

/// Parses a timeout in microseconds; `None` means infinite. Zero is `InvalidParameter(n)`.
fn time(timeout: DAT_TIMEOUT, n: u8) -> Result<Option<Duration>> {
    match timeout {
        0 => Err(Error::InvalidParameter(n)),
        DAT_TIMEOUT_INFINITE => Ok(None),
        micros => Ok(Some(Duration::from_micros(micros.into()))),
    }
}

/// Parses the peer's address.
///
/// Errors: `InvalidAddress(Malformed)` for a family that is neither IPv4, IPv6 nor `AF_UNIX`.
///
/// # Safety
/// As [`ffi::copy_address`].
unsafe fn address(address: DAT_IA_ADDRESS_PTR) -> Result<PeerAddress> {
    // SAFETY: the caller also satisfies the contract of `copy_address`.
    let bytes = unsafe { ffi::copy_address(address) };
    consumer_memory::parse_address(&bytes).ok_or_else(|| {
        let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
        log::debug!("dat_ep_connect: address family {family} is neither AF_INET, AF_INET6 nor AF_UNIX");
        Error::InvalidAddress(AddressProblem::Malformed)
    })
}
