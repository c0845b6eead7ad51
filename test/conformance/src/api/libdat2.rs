//! A `libdat2.so.2` behind the functions of 1.2: records, masks and codes are translated, so that the same cases run
//! against both versions.
//!
//! Functions whose C values are the same in both versions are called as they are; [`replacement`] returns wrappers
//! for the functions that differ. A pointer that the library may have to refuse (null or misaligned) is passed on
//! unchanged. Otherwise a record that the function reads is converted to 2.0 before the call, and a record that it
//! writes is converted to 1.2 afterwards.
#![allow(clippy::too_many_arguments, reason = "the signatures are the specification's")]

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::OnceLock;

use dat_abi::*;

use super::{ListProviders, Registration, Strerror};

pub(crate) mod added;
mod calls;
mod records;

use calls::*;
use records::*;

type ExtensionOp = unsafe extern "C" fn(DAT_HANDLE, c_int, ...) -> DAT_RETURN;

/// The functions of 2.0 whose C types or values differ from 1.2, and `dat_extension_op`, which only 2.0 has.
struct Real {
    ia_openv: DAT_IA_OPENV_FUNC,
    ia_query: v2::DAT_IA_QUERY_FUNC,
    cno_query: v2::DAT_CNO_QUERY_FUNC,
    cr_reject: v2::DAT_CR_REJECT_FUNC,
    evd_wait: v2::DAT_EVD_WAIT_FUNC,
    evd_dequeue: v2::DAT_EVD_DEQUEUE_FUNC,
    ep_create: v2::DAT_EP_CREATE_FUNC,
    ep_create_with_srq: v2::DAT_EP_CREATE_WITH_SRQ_FUNC,
    ep_query: v2::DAT_EP_QUERY_FUNC,
    ep_modify: v2::DAT_EP_MODIFY_FUNC,
    ep_post_send: v2::DAT_EP_POST_SEND_FUNC,
    ep_post_recv: v2::DAT_EP_POST_RECV_FUNC,
    ep_post_rdma_read: v2::DAT_EP_POST_RDMA_READ_FUNC,
    ep_post_rdma_write: v2::DAT_EP_POST_RDMA_WRITE_FUNC,
    lmr_create: v2::DAT_LMR_CREATE_FUNC,
    lmr_query: v2::DAT_LMR_QUERY_FUNC,
    lmr_sync_rdma_read: v2::DAT_LMR_SYNC_RDMA_READ_FUNC,
    lmr_sync_rdma_write: v2::DAT_LMR_SYNC_RDMA_WRITE_FUNC,
    rmr_query: v2::DAT_RMR_QUERY_FUNC,
    rmr_bind: v2::DAT_RMR_BIND_FUNC,
    srq_query: v2::DAT_SRQ_QUERY_FUNC,
    srq_post_recv: v2::DAT_SRQ_POST_RECV_FUNC,
    registry_list_providers: ListProviders,
    registry_add_provider: Registration,
    registry_remove_provider: Registration,
    strerror: Strerror,
    extension_op: ExtensionOp,
}

static REAL: OnceLock<Real> = OnceLock::new();

/// Whether the library under test is a DAT 2.0 library.
pub(crate) fn is_loaded() -> bool {
    REAL.get().is_some()
}

fn real() -> &'static Real {
    REAL.get().expect("the library is loaded before the first case")
}

/// Resolves the functions of 2.0 if the library exports `dat_extension_op`, which only 2.0 libraries do.
pub(super) fn load(find: impl Fn(&str) -> Option<*mut c_void>) -> Result<(), String> {
    macro_rules! found {
        ($($field:ident: $shape:ty),* $(,)?) => {
            Real { $($field: {
                let name = concat!("dat_", stringify!($field));
                let address = find(name).ok_or_else(|| format!("the library under test does not export {name}"))?;
                // SAFETY: libdat2 exports this name with this signature, which is the ABI under test.
                unsafe { transmute::<*mut c_void, $shape>(address) }
            }),* }
        };
    }
    if find("dat_extension_op").is_none() {
        return Ok(());
    }
    let real = found! {
        ia_openv: DAT_IA_OPENV_FUNC,
        ia_query: v2::DAT_IA_QUERY_FUNC,
        cno_query: v2::DAT_CNO_QUERY_FUNC,
        cr_reject: v2::DAT_CR_REJECT_FUNC,
        evd_wait: v2::DAT_EVD_WAIT_FUNC,
        evd_dequeue: v2::DAT_EVD_DEQUEUE_FUNC,
        ep_create: v2::DAT_EP_CREATE_FUNC,
        ep_create_with_srq: v2::DAT_EP_CREATE_WITH_SRQ_FUNC,
        ep_query: v2::DAT_EP_QUERY_FUNC,
        ep_modify: v2::DAT_EP_MODIFY_FUNC,
        ep_post_send: v2::DAT_EP_POST_SEND_FUNC,
        ep_post_recv: v2::DAT_EP_POST_RECV_FUNC,
        ep_post_rdma_read: v2::DAT_EP_POST_RDMA_READ_FUNC,
        ep_post_rdma_write: v2::DAT_EP_POST_RDMA_WRITE_FUNC,
        lmr_create: v2::DAT_LMR_CREATE_FUNC,
        lmr_query: v2::DAT_LMR_QUERY_FUNC,
        lmr_sync_rdma_read: v2::DAT_LMR_SYNC_RDMA_READ_FUNC,
        lmr_sync_rdma_write: v2::DAT_LMR_SYNC_RDMA_WRITE_FUNC,
        rmr_query: v2::DAT_RMR_QUERY_FUNC,
        rmr_bind: v2::DAT_RMR_BIND_FUNC,
        srq_query: v2::DAT_SRQ_QUERY_FUNC,
        srq_post_recv: v2::DAT_SRQ_POST_RECV_FUNC,
        registry_list_providers: ListProviders,
        registry_add_provider: Registration,
        registry_remove_provider: Registration,
        strerror: Strerror,
        extension_op: ExtensionOp,
    };
    REAL.get_or_init(|| real);
    Ok(())
}

/// Returns a function with the 1.2 signature for a name whose 2.0 function differs. `None`: the function is called as
/// it is.
pub(super) fn replacement(name: &str) -> Option<*mut c_void> {
    if !is_loaded() {
        return None;
    }
    Some(match name {
        "dat_ia_openv" => ia_openv as *mut c_void,
        "dat_ia_query" => ia_query as *mut c_void,
        "dat_cno_query" => cno_query as *mut c_void,
        "dat_cr_reject" => cr_reject as *mut c_void,
        "dat_evd_wait" => evd_wait as *mut c_void,
        "dat_evd_dequeue" => evd_dequeue as *mut c_void,
        "dat_ep_create" => ep_create as *mut c_void,
        "dat_ep_create_with_srq" => ep_create_with_srq as *mut c_void,
        "dat_ep_query" => ep_query as *mut c_void,
        "dat_ep_modify" => ep_modify as *mut c_void,
        "dat_ep_post_send" => ep_post_send as *mut c_void,
        "dat_ep_post_recv" => ep_post_recv as *mut c_void,
        "dat_ep_post_rdma_read" => ep_post_rdma_read as *mut c_void,
        "dat_ep_post_rdma_write" => ep_post_rdma_write as *mut c_void,
        "dat_lmr_create" => lmr_create as *mut c_void,
        "dat_lmr_query" => lmr_query as *mut c_void,
        "dat_lmr_sync_rdma_read" => lmr_sync_rdma_read as *mut c_void,
        "dat_lmr_sync_rdma_write" => lmr_sync_rdma_write as *mut c_void,
        "dat_rmr_query" => rmr_query as *mut c_void,
        "dat_rmr_bind" => rmr_bind as *mut c_void,
        "dat_srq_query" => srq_query as *mut c_void,
        "dat_srq_post_recv" => srq_post_recv as *mut c_void,
        "dat_registry_list_providers" => registry_list_providers as *mut c_void,
        "dat_registry_add_provider" => registry_add_provider as *mut c_void,
        "dat_registry_remove_provider" => registry_remove_provider as *mut c_void,
        "dat_strerror" => strerror as *mut c_void,
        _ => return None,
    })
}

/// Returns the number that a subtype has in the other version, found by its name.
fn by_name(names: &[&'static CStr], of: &[&'static CStr], number: u32) -> Option<u32> {
    let name = names.get((number as usize).checked_sub(1)?)?;
    of.iter().position(|known| known == name).map(|at| at as u32 + 1)
}

/// Converts a return code to 1.2 if the library under test is 2.0. A subtype without an equivalent gets a number above
/// those of 1.2.
pub(super) fn code_of_1_2(code: DAT_RETURN) -> DAT_RETURN {
    let subtype = code & DAT_SUBTYPE_MASK;
    if !is_loaded() {
        return code;
    }
    if code == v2::DAT_NOT_IMPLEMENTED {
        return DAT_NOT_IMPLEMENTED;
    }
    if subtype == 0 {
        return code;
    }
    let old = by_name(v2::error::DAT_RETURN_SUBTYPE_NAMES, error::DAT_RETURN_SUBTYPE_NAMES, subtype);
    code & !DAT_SUBTYPE_MASK | old.unwrap_or(subtype | 0x8000)
}

fn code_of_2_0(code: DAT_RETURN) -> DAT_RETURN {
    if code == DAT_NOT_IMPLEMENTED {
        return v2::DAT_NOT_IMPLEMENTED;
    }
    let subtype = code & DAT_SUBTYPE_MASK;
    let new = by_name(error::DAT_RETURN_SUBTYPE_NAMES, v2::error::DAT_RETURN_SUBTYPE_NAMES, subtype);
    // A number without a name in 1.2 must have none in 2.0, which has two more subtypes.
    let unknown = if subtype == 0 { 0 } else { subtype + 2 };
    code & !DAT_SUBTYPE_MASK | new.unwrap_or(unknown)
}

/// Renumbers the parameter in a `DAT_INVALID_PARAMETER` code. `places`: pairs of the number in 2.0 and in 1.2. The
/// result is still a code of 2.0.
fn moved(code: DAT_RETURN, places: &[(u32, u32)]) -> DAT_RETURN {
    if code & DAT_TYPE_MASK != DAT_INVALID_PARAMETER {
        return code;
    }
    let at = |n: u32| v2::DAT_INVALID_ARG1 + n - 1;
    let place = code & DAT_SUBTYPE_MASK;
    let found = places.iter().find(|(from, _)| at(*from) == place);
    found.map_or(code, |(_, to)| code & !DAT_SUBTYPE_MASK | at(*to))
}

/// Returns `local` as the output record, or null if the caller passed null.
fn into<T, U>(out: *mut T, local: &mut U) -> *mut U {
    if out.is_null() { null_mut() } else { local }
}

/// Returns the converted triplets, and true. Returns false if `list` is null or misaligned, or `count` is above 4096:
/// the caller then passes `list` on unchanged, and the library may refuse it.
///
/// # Safety
/// `list` is null, misaligned, or points at `count` triplets.
unsafe fn triplets(list: *const DAT_LMR_TRIPLET, count: DAT_COUNT) -> (Vec<v2::DAT_LMR_TRIPLET>, bool) {
    let count = usize::try_from(count).unwrap_or(0);
    if list.is_null() || !list.is_aligned() || count > 4096 {
        return (Vec::new(), false);
    }
    // SAFETY: `list` is not null and is aligned, so the caller guarantees that it points at `count` triplets.
    ((0..count).map(|n| triplet(unsafe { list.add(n).read() })).collect(), true)
}

fn triplet(of: DAT_LMR_TRIPLET) -> v2::DAT_LMR_TRIPLET {
    v2::DAT_LMR_TRIPLET {
        virtual_address: of.virtual_address,
        segment_length: u32::try_from(of.segment_length).unwrap_or(u32::MAX),
        lmr_context: of.lmr_context,
    }
}

/// # Safety
/// `remote` is null or points at a triplet.
unsafe fn remote_triplet(remote: *const DAT_RMR_TRIPLET) -> Option<v2::DAT_RMR_TRIPLET> {
    // SAFETY: the caller guarantees that `remote` is null or points at a triplet.
    let DAT_RMR_TRIPLET { rmr_context, target_address, segment_length, .. } = unsafe { remote.as_ref() }?;
    let segment_length = u32::try_from(*segment_length).unwrap_or(u32::MAX);
    Some(v2::DAT_RMR_TRIPLET { virtual_address: *target_address, segment_length, rmr_context: *rmr_context })
}

fn at<T>(value: &Option<T>) -> *const T {
    value.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
}

/// Exchanges 1.2 and 2.0 in a version argument of a case, because cases write 1.2 for the version under test. Other
/// minor versions are shifted by the same difference. The conversion is its own inverse.
fn other_version(version: (DAT_UINT32, DAT_UINT32)) -> (DAT_UINT32, DAT_UINT32) {
    match version {
        (DAT_VERSION_MAJOR, minor) => (v2::DAT_VERSION_MAJOR, minor.wrapping_sub(DAT_VERSION_MINOR)),
        (v2::DAT_VERSION_MAJOR, minor) => (DAT_VERSION_MAJOR, minor.wrapping_add(DAT_VERSION_MINOR)),
        other => other,
    }
}

/// Rewrites a dat.conf if the library under test is 2.0: exchanges `u1.2` and `u2.0`, and replaces `dapl.1.2` by
/// `dapl.2.0`.
pub(crate) fn of_version(file: &str) -> String {
    if !is_loaded() {
        return file.to_owned();
    }
    let swapped = file.replace(" u1.2 ", " u?.? ").replace(" u2.0 ", " u1.2 ").replace(" u?.? ", " u2.0 ");
    swapped.replace(" dapl.1.2 ", " dapl.2.0 ")
}

fn other_info(mut info: DAT_PROVIDER_INFO) -> DAT_PROVIDER_INFO {
    (info.dapl_version_major, info.dapl_version_minor) =
        other_version((info.dapl_version_major, info.dapl_version_minor));
    info
}
