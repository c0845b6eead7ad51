//! C entries `dat_lmr_*`.
//!
//! C calls these entries through the provider table of 1.2; the entries of 2.0 call some of them too. Each entry opens
//! its handles, parses its arguments and makes one call.

use std::sync::atomic::{Ordering, fence};

use dat_abi::*;

use super::{Lmr, Origin, Privileges, dapls_lmr};
use crate::error::{Error, Handle, Result};
use crate::ffi::{guard, put, query, require};
use crate::ia::Ia;
use crate::provider::{Access, MemoryRegion, Provider, Region, Segment, SharedCookie};
use crate::pz::Pz;
use crate::runtime::handle::from_handle;

/// `dat_lmr_create`.
///
/// # Safety
/// Handles may have any value; the out parameters are null or writable; the cookie of shared memory is null or points
/// at 40 bytes.
#[allow(clippy::too_many_arguments, reason = "the specification defines the arguments")]
pub unsafe extern "C" fn dapl_lmr_create<P: Provider>(
    ia: DAT_IA_HANDLE,
    kind: DAT_MEM_TYPE,
    region: DAT_REGION_DESCRIPTION,
    length: DAT_VLEN,
    pz: DAT_PZ_HANDLE,
    privileges: DAT_MEM_PRIV_FLAGS,
    out: *mut DAT_LMR_HANDLE,
    lmr_context: *mut DAT_LMR_CONTEXT,
    rmr_context: *mut DAT_RMR_CONTEXT,
    registered_length: *mut DAT_VLEN,
    registered_address: *mut DAT_VADDR,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `create`.
    unsafe {
        create::<P>(
            ia,
            kind,
            region,
            length,
            pz,
            rights(privileges),
            out,
            lmr_context,
            rmr_context,
            registered_length,
            registered_address,
        )
    }
}

/// `dat_lmr_create` for any version of DAT. `rights` are the decoded privileges; `None` means that parameter 6 is
/// invalid.
///
/// # Safety
/// `ia` and `pz` may have any value; the member of `region` for the memory type is initialised; the cookie of shared
/// memory is null or points at 40 bytes; `out`, `lmr_context`, `rmr_context`, `registered_length` and
/// `registered_address` are null or writable.
#[allow(clippy::too_many_arguments, reason = "the specification defines the arguments")]
pub(crate) unsafe fn create<P: Provider>(
    ia: DAT_IA_HANDLE,
    kind: DAT_MEM_TYPE,
    region: DAT_REGION_DESCRIPTION,
    length: DAT_VLEN,
    pz: DAT_PZ_HANDLE,
    rights: Option<Privileges>,
    out: *mut DAT_LMR_HANDLE,
    lmr_context: *mut DAT_LMR_CONTEXT,
    rmr_context: *mut DAT_RMR_CONTEXT,
    registered_length: *mut DAT_VLEN,
    registered_address: *mut DAT_VADDR,
) -> DAT_RETURN {
    guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?.to_arc();
        let pz = from_handle::<Pz<P>>(pz, Handle::Pz)?.to_arc();
        require(out, 7)?;
        // SAFETY: every union member consists of pointers, for which any bits are a valid value; the caller guarantees
        // that a cookie is readable.
        let (region, origin) = unsafe { described::<P>(kind, region, length) }?;
        let rights = rights.ok_or(Error::InvalidParameter(6))?;
        let lmr = dapls_lmr::create(ia, pz, region, origin, rights)?;
        // SAFETY: the caller guarantees that the out parameters are null or writable; `out` is not null.
        unsafe {
            let object = lmr.object();
            put(lmr_context, object.mr.local_key());
            put(rmr_context, remote_context(object));
            put(registered_length, object.region.length);
            put(registered_address, object.first_address());
            put(out, dapls_lmr::publish(lmr));
        }
        Ok(())
    })
}

/// Type of strongly ordered memory, which the DAT headers of some other platforms define. It is handled like `VIRTUAL`,
/// because Linux has no separate type of strongly ordered memory.
const MEM_TYPE_SO_VIRTUAL: DAT_MEM_TYPE = 3;

/// Parses a region description. Returns the region, and its origin, which queries report.
///
/// # Safety
/// The union's bytes are initialised; the cookie of shared memory is null or points at 40 bytes.
unsafe fn described<P: Provider>(
    kind: DAT_MEM_TYPE,
    region: DAT_REGION_DESCRIPTION,
    length: DAT_VLEN,
) -> Result<(Region, Origin)> {
    match kind {
        DAT_MEM_TYPE_VIRTUAL | MEM_TYPE_SO_VIRTUAL => {
            // SAFETY: every union member consists of pointers, for which any bits are a valid value.
            Ok((Region { address: unsafe { region.for_va } as u64, length }, Origin::Memory))
        }
        DAT_MEM_TYPE_LMR => {
            // SAFETY: every union member consists of pointers, for which any bits are a valid value.
            let source = from_handle::<Lmr<P>>(unsafe { region.for_lmr_handle }, Handle::Lmr)?;
            Ok((source.region, Origin::Lmr(source.id.handle)))
        }
        DAT_MEM_TYPE_SHARED_VIRTUAL => {
            // SAFETY: every union member consists of pointers, for which any bits are a valid value.
            let shared = unsafe { region.for_shared_memory };
            require(shared.shared_memory_id, 3)?;
            // SAFETY: the cookie is not null, so the caller guarantees that it points at 40 bytes.
            let cookie = unsafe { shared.shared_memory_id.cast::<SharedCookie>().read_unaligned() };
            Ok((Region { address: shared.virtual_address as u64, length }, Origin::Shared(Box::new(cookie))))
        }
        _ => Err(Error::InvalidParameter(2)),
    }
}

/// Converts privilege flags of DAT to rights. Returns `None` for unknown bits.
pub fn rights(privileges: DAT_MEM_PRIV_FLAGS) -> Option<Privileges> {
    let has = |flag| privileges & flag != 0;
    let access = Access {
        local_write: has(DAT_MEM_PRIV_LOCAL_WRITE_FLAG),
        remote_read: has(DAT_MEM_PRIV_REMOTE_READ_FLAG),
        remote_write: has(DAT_MEM_PRIV_REMOTE_WRITE_FLAG),
        remote_atomic: false,
        zero_based: false,
    };
    let local_read = has(DAT_MEM_PRIV_LOCAL_READ_FLAG);
    (privileges & !DAT_MEM_PRIV_ALL_FLAG == 0).then_some(Privileges { access, local_read })
}

/// Converts rights to the privilege flags of DAT.
pub fn privileges(rights: Privileges) -> DAT_MEM_PRIV_FLAGS {
    let bit = |granted, flag| if granted { flag } else { 0 };
    let Privileges { access, local_read } = rights;
    bit(local_read, DAT_MEM_PRIV_LOCAL_READ_FLAG)
        | bit(access.local_write, DAT_MEM_PRIV_LOCAL_WRITE_FLAG)
        | bit(access.remote_read, DAT_MEM_PRIV_REMOTE_READ_FLAG)
        | bit(access.remote_write, DAT_MEM_PRIV_REMOTE_WRITE_FLAG)
}

/// The remote context, or 0 if peers have no rights (spec/events 8.1).
fn remote_context<P: Provider>(lmr: &Lmr<P>) -> DAT_RMR_CONTEXT {
    let access = lmr.rights.access;
    if access.is_remote() { lmr.mr.remote_key() } else { 0 }
}

/// `dat_lmr_query`.
///
/// # Safety
/// `lmr` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_lmr_query<P: Provider>(
    lmr: DAT_LMR_HANDLE,
    mask: DAT_LMR_PARAM_MASK,
    out: *mut DAT_LMR_PARAM,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `query`.
    guard(|| unsafe { query(lmr, Handle::Lmr, mask & !DAT_LMR_FIELD_ALL, out, put, |lmr: &Lmr<P>| Ok(param(lmr))) })
}

/// Returns the record for `dat_lmr_query`.
pub(crate) fn param<P: Provider>(lmr: &Lmr<P>) -> DAT_LMR_PARAM {
    let Region { address, length } = lmr.region;
    // The largest union member is filled. Bytes that smaller members do not have are 0.
    let described = |at: u64, cookie: *const SharedCookie| DAT_REGION_DESCRIPTION {
        for_shared_memory: DAT_SHARED_MEMORY {
            virtual_address: at as DAT_PVOID,
            shared_memory_id: cookie.cast_mut().cast(),
        },
    };
    let (mem_type, region_desc) = match &lmr.origin {
        Origin::Memory => (DAT_MEM_TYPE_VIRTUAL, described(address, std::ptr::null())),
        Origin::Lmr(source) => (DAT_MEM_TYPE_LMR, described(*source as u64, std::ptr::null())),
        Origin::Shared(cookie) => (DAT_MEM_TYPE_SHARED_VIRTUAL, described(address, &raw const **cookie)),
    };
    DAT_LMR_PARAM {
        ia_handle: lmr.ia.consumer_handle(),
        mem_type,
        region_desc,
        length,
        pz_handle: lmr.pz().id.handle as DAT_PZ_HANDLE,
        mem_priv: privileges(lmr.rights),
        lmr_context: lmr.mr.local_key(),
        rmr_context: remote_context(lmr),
        registered_size: length,
        registered_address: address,
    }
}

/// `dat_lmr_free`.
///
/// # Safety
/// `lmr` may have any value.
pub unsafe extern "C" fn dapl_lmr_free<P: Provider>(lmr: DAT_LMR_HANDLE) -> DAT_RETURN {
    guard(|| dapls_lmr::free(&*from_handle::<Lmr<P>>(lmr, Handle::Lmr)?))
}

/// `dat_lmr_sync_rdma_read` and `dat_lmr_sync_rdma_write`. Memory is coherent on this platform, so the calls check their
/// arguments, order memory accesses, and do nothing else.
///
/// # Safety
/// `ia` may have any value; `segments` is null or points at `count` triplets.
pub unsafe extern "C" fn dapl_lmr_sync_rdma<P: Provider>(
    ia: DAT_IA_HANDLE,
    segments: *const DAT_LMR_TRIPLET,
    count: DAT_VLEN,
) -> DAT_RETURN {
    guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?;
        if count > 0 {
            require(segments, 2)?;
        }
        let count = usize::try_from(count).map_err(|_| Error::InvalidParameter(3))?;
        for n in 0..count {
            // SAFETY: the caller guarantees that `segments` points at `count` triplets; a triplet has the layout of a
            // segment.
            let segment = unsafe { segments.cast::<Segment>().wrapping_add(n).read_unaligned() };
            if segment.length > 0 && dapls_lmr::find(&ia, &segment).is_none() {
                return Err(Error::InvalidParameter(2));
            }
        }
        // Orders memory accesses before the consumer's message to its peer. Other architectures would also need cache
        // maintenance.
        fence(Ordering::SeqCst);
        Ok(())
    })
}
