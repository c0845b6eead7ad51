//! `handle_extendedop`, which implements `dat_extension_op`: the operations of the InfiniBand extension.
//!
//! Called through the provider table only. Atomic operations and writes with immediate data are posts of an EP, with
//! the same checks as other posts. Parameter numbers in errors count from the handle, as in the calls of the extension.

use dat_abi::v2::*;

use super::dapl_post::post_extension;
use super::{arguments, convert};
use crate::ep::Ep;
use crate::ep::dapls_post::ParameterNumbers;
use crate::error::{Error, Handle, Result};
use crate::ffi::guard;
use crate::provider::{Op, Provider, Remote};
use crate::runtime::handle::{self, from_handle};

/// `handle_extendedop`.
///
/// Operations on unreliable datagrams, collective operations and counters are refused with `DAT_MODEL_NOT_SUPPORTED`,
/// undefined operation numbers with `DAT_INVALID_PARAMETER`.
///
/// # Safety
/// `handle` may have any value; `list` contains the arguments of the operation, whose pointers are null or valid.
pub unsafe extern "C" fn dapl2_handle_extendedop<P: Provider>(
    handle: DAT_HANDLE,
    op: DAT_EXTENDED_OP,
    list: va_list,
) -> DAT_RETURN {
    let checked = guard(|| check_operation::<P>(handle, op));
    if checked != DAT_SUCCESS {
        return convert::code(checked);
    }
    // SAFETY: the caller guarantees that the `va_list` contains the arguments of the operation, and that their pointers are
    // null or valid.
    unsafe {
        match op as DAT_IB_OP {
            // dat_ib_post_fetch_and_add(ep, add, local, cookie, remote, flags)
            DAT_IB_FETCH_AND_ADD_OP => {
                let [add, local, cookie, remote, flags] = arguments::take(list);
                let positions = ParameterNumbers { local: 3, remote: 5, flags: 6 };
                let op = |remote| Op::FetchAdd { remote, add };
                post::<P>(handle, op, (local, 1), cookie, remote, flags, positions)
            }
            // dat_ib_post_cmp_and_swap(ep, compare, swap, local, cookie, remote, flags)
            DAT_IB_CMP_AND_SWAP_OP => {
                let [compare, swap, local, cookie, remote, flags] = arguments::take(list);
                let positions = ParameterNumbers { local: 4, remote: 6, flags: 7 };
                let op = |remote| Op::CompareSwap { remote, compare, swap };
                post::<P>(handle, op, (local, 1), cookie, remote, flags, positions)
            }
            // dat_ib_post_rdma_write_immed(ep, count, local, cookie, remote, data, flags)
            _ => {
                let [count, local, cookie, remote, data, flags] = arguments::take(list);
                let positions = ParameterNumbers { local: 2, remote: 5, flags: 7 };
                let solicited = flags as DAT_COMPLETION_FLAGS & DAT_COMPLETION_SOLICITED_WAIT_FLAG != 0;
                let op = |remote| Op::WriteImmediate { remote, data: data as DAT_UINT32, solicited };
                post::<P>(handle, op, (local, count as DAT_COUNT), cookie, remote, flags, positions)
            }
        }
    }
}

/// Checks the handle and the operation number. Called before the arguments are read.
///
/// Errors: `InvalidHandle`; `ModelNotSupported` for operations that this library does not implement;
/// `InvalidParameter(2)` for undefined numbers.
fn check_operation<P: Provider>(handle: DAT_HANDLE, op: DAT_EXTENDED_OP) -> Result<()> {
    const LAST: DAT_IB_OP = DAT_IB_UD_AH_FREE_OP;
    handle::handle_type(handle).ok_or(Error::InvalidHandle(Handle::Any))?;
    match DAT_IB_OP::try_from(op) {
        Ok(DAT_IB_FETCH_AND_ADD_OP | DAT_IB_CMP_AND_SWAP_OP | DAT_IB_RDMA_WRITE_IMMED_OP) => {
            from_handle::<Ep<P>>(handle, Handle::Ep)?;
            if arguments::IS_SUPPORTED { Ok(()) } else { Err(Error::ModelNotSupported) }
        }
        Ok(0..=LAST) => Err(Error::ModelNotSupported),
        _ => Err(Error::InvalidParameter(2)),
    }
}

/// Reads the remote memory from `triplet`, and posts the operation that `op` makes of it. The arguments have the form in
/// which the `va_list` contains them.
///
/// # Safety
/// `ep` may have any value; `local` is null or the address of `count` triplets; `triplet` is null or the address of a
/// triplet.
unsafe fn post<P: Provider>(
    ep: DAT_EP_HANDLE,
    op: impl FnOnce(Remote) -> Op,
    (local, count): (u64, DAT_COUNT),
    cookie: u64,
    triplet: u64,
    flags: u64,
    positions: ParameterNumbers,
) -> DAT_RETURN {
    let triplet = triplet as *const DAT_RMR_TRIPLET;
    if triplet.is_null() {
        return convert::error(Error::InvalidParameter(positions.remote));
    }
    // SAFETY: `triplet` is not null, and the caller guarantees that it is readable.
    let DAT_RMR_TRIPLET { virtual_address, rmr_context, .. } = unsafe { triplet.read_unaligned() };
    let op = op(Remote { key: rmr_context, address: virtual_address });
    let cookie = DAT_DTO_COOKIE { as_64: cookie };
    // SAFETY: the caller also satisfies the contract of `post_extension`.
    unsafe { post_extension::<P>(ep, op, (local as *const _, count), cookie, flags as DAT_COMPLETION_FLAGS, positions) }
}
