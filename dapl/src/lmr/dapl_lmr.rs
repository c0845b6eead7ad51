//! `dat_lmr_*`: C values in, C values out.
//!
//! Called from C only. No policy here: each entry opens its handles, parses its arguments and makes one call.

use std::sync::atomic::{Ordering, fence};

use dat_abi::*;

use super::{Lmr, dapls_lmr};
use crate::error::{Error, Handle, Result};
use crate::ffi::{guard, put, require};
use crate::handle::from_handle;
use crate::ia::Ia;
use crate::provider::{Access, MemoryRegion, Provider, Region};
use crate::pz::Pz;

/// `dat_lmr_create`.
///
/// # Safety
/// The handles are null, or ones this library gave out: live, freed, or of another kind; the out parameters are null or
/// writable.
#[allow(clippy::too_many_arguments, reason = "the specification's")]
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
    guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?.to_arc();
        let pz = from_handle::<Pz<P>>(pz, Handle::Pz)?.to_arc();
        require(out, 7)?;
        // SAFETY: every member is pointers, and any bits are one.
        let region = unsafe { described::<P>(kind, region, length) }?;
        let access = access(privileges).ok_or(Error::InvalidParameter(6))?;
        if kind != DAT_MEM_TYPE_VIRTUAL && kind != MEM_TYPE_SO_VIRTUAL {
            return Err(Error::NotImplemented);
        }
        let lmr = dapls_lmr::create(&ia, pz, region, access, privileges & DAT_MEM_PRIV_LOCAL_READ_FLAG != 0)?;
        let object = lmr.object().clone();
        let handle = dapls_lmr::publish(lmr);
        // SAFETY: null or writable by this function's contract; `out` is not null.
        unsafe {
            put(lmr_context, object.mr().local_key());
            put(rmr_context, remote_context(&object));
            put(registered_length, object.region().length);
            put(registered_address, object.region().address);
            put(out, handle);
        }
        Ok(())
    })
}

/// Strongly ordered memory, which another platform's headers know; here all memory is.
const MEM_TYPE_SO_VIRTUAL: DAT_MEM_TYPE = 3;

/// The memory that a description names.
///
/// # Safety
/// The union holds initialised bytes.
unsafe fn described<P: Provider>(
    kind: DAT_MEM_TYPE,
    region: DAT_REGION_DESCRIPTION,
    length: DAT_VLEN,
) -> Result<Region> {
    match kind {
        DAT_MEM_TYPE_VIRTUAL | MEM_TYPE_SO_VIRTUAL => {
            // SAFETY: this function's own contract.
            Ok(Region { address: unsafe { region.for_va } as u64, length })
        }
        DAT_MEM_TYPE_LMR => {
            // SAFETY: as above.
            let source = from_handle::<Lmr<P>>(unsafe { region.for_lmr_handle }, Handle::Lmr)?;
            Ok(source.region())
        }
        DAT_MEM_TYPE_SHARED_VIRTUAL => {
            // SAFETY: as above.
            let shared = unsafe { region.for_shared_memory };
            require(shared.shared_memory_id, 3)?;
            if length == 0 {
                return Err(Error::Length);
            }
            Ok(Region { address: shared.virtual_address as u64, length })
        }
        _ => Err(Error::InvalidParameter(2)),
    }
}

fn access(privileges: DAT_MEM_PRIV_FLAGS) -> Option<Access> {
    (privileges & !DAT_MEM_PRIV_ALL_FLAG == 0).then_some(Access {
        local_write: privileges & DAT_MEM_PRIV_LOCAL_WRITE_FLAG != 0,
        remote_read: privileges & DAT_MEM_PRIV_REMOTE_READ_FLAG != 0,
        remote_write: privileges & DAT_MEM_PRIV_REMOTE_WRITE_FLAG != 0,
    })
}

fn privileges<P: Provider>(lmr: &Lmr<P>) -> DAT_MEM_PRIV_FLAGS {
    let bit = |granted, flag| if granted { flag } else { 0 };
    let access = lmr.access();
    bit(lmr.local_read, DAT_MEM_PRIV_LOCAL_READ_FLAG)
        | bit(access.local_write, DAT_MEM_PRIV_LOCAL_WRITE_FLAG)
        | bit(access.remote_read, DAT_MEM_PRIV_REMOTE_READ_FLAG)
        | bit(access.remote_write, DAT_MEM_PRIV_REMOTE_WRITE_FLAG)
}

/// What a peer may be given: nothing, if it may do nothing (8.1).
fn remote_context<P: Provider>(lmr: &Lmr<P>) -> DAT_RMR_CONTEXT {
    let access = lmr.access();
    if access.remote_read || access.remote_write { lmr.mr().remote_key() } else { 0 }
}

/// `dat_lmr_query`.
///
/// # Safety
/// As [`dapl_lmr_create`].
pub unsafe extern "C" fn dapl_lmr_query<P: Provider>(
    lmr: DAT_LMR_HANDLE,
    mask: DAT_LMR_PARAM_MASK,
    out: *mut DAT_LMR_PARAM,
) -> DAT_RETURN {
    guard(|| {
        let lmr = from_handle::<Lmr<P>>(lmr, Handle::Lmr)?;
        if mask & !DAT_LMR_FIELD_ALL != 0 {
            return Err(Error::InvalidParameter(2));
        }
        require(out, 3)?;
        let Region { address, length } = lmr.region();
        // All of the union, not only the member in use: the rest is zero.
        let nothing =
            DAT_SHARED_MEMORY { virtual_address: address as DAT_PVOID, shared_memory_id: std::ptr::null_mut() };
        let param = DAT_LMR_PARAM {
            ia_handle: lmr.ia().consumer_handle(),
            mem_type: DAT_MEM_TYPE_VIRTUAL,
            region_desc: DAT_REGION_DESCRIPTION { for_shared_memory: nothing },
            length,
            pz_handle: lmr.pz().id().handle as DAT_PZ_HANDLE,
            mem_priv: privileges(&lmr),
            lmr_context: lmr.mr().local_key(),
            rmr_context: remote_context(&lmr),
            registered_size: length,
            registered_address: address,
        };
        // SAFETY: not null, and writable by this function's contract.
        unsafe { out.write_unaligned(param) };
        Ok(())
    })
}

/// `dat_lmr_free`.
///
/// # Safety
/// As [`dapl_lmr_create`].
pub unsafe extern "C" fn dapl_lmr_free<P: Provider>(lmr: DAT_LMR_HANDLE) -> DAT_RETURN {
    guard(|| dapls_lmr::free(&*from_handle::<Lmr<P>>(lmr, Handle::Lmr)?))
}

/// `dat_lmr_sync_rdma_read`: memory is coherent, so ordering is all there is to do.
///
/// # Safety
/// As [`dapl_lmr_create`].
pub unsafe extern "C" fn dapl_lmr_sync_rdma_read<P: Provider>(
    ia: DAT_IA_HANDLE,
    _segments: *const DAT_LMR_TRIPLET,
    _count: DAT_VLEN,
) -> DAT_RETURN {
    guard(|| sync::<P>(ia))
}

/// `dat_lmr_sync_rdma_write`: as [`dapl_lmr_sync_rdma_read`].
///
/// # Safety
/// As [`dapl_lmr_create`].
pub unsafe extern "C" fn dapl_lmr_sync_rdma_write<P: Provider>(
    ia: DAT_IA_HANDLE,
    _segments: *const DAT_LMR_TRIPLET,
    _count: DAT_VLEN,
) -> DAT_RETURN {
    guard(|| sync::<P>(ia))
}

fn sync<P: Provider>(ia: DAT_IA_HANDLE) -> Result<()> {
    from_handle::<Ia<P>>(ia, Handle::Ia)?;
    // Stands in for the cache maintenance of other machines; pairs with whatever the consumer tells its peer by.
    fence(Ordering::SeqCst);
    Ok(())
}
