//! The provider table of DAT 2.0: the 70 members of the table of 1.2 at the same offsets, and eleven more functions.

use core::ffi::{c_char, c_void};

use super::attr::*;
use super::error::*;
use super::event::*;
use super::types::*;
use crate::table::{functions_of_version, provider_table};

/// Type of a C `va_list` parameter. On x86-64 it is a pointer to the state of the argument list.
pub type va_list = *mut c_void;

pub use crate::table::*;

/// Type of `dat_lmr_create`.
pub type DAT_LMR_CREATE_FUNC = unsafe extern "C" fn(
    ia_handle: DAT_IA_HANDLE,
    mem_type: DAT_MEM_TYPE,
    region_description: DAT_REGION_DESCRIPTION,
    length: DAT_VLEN,
    pz_handle: DAT_PZ_HANDLE,
    privileges: DAT_MEM_PRIV_FLAGS,
    va_type: DAT_VA_TYPE,
    lmr_handle: *mut DAT_LMR_HANDLE,
    lmr_context: *mut DAT_LMR_CONTEXT,
    rmr_context: *mut DAT_RMR_CONTEXT,
    registered_length: *mut DAT_VLEN,
    registered_address: *mut DAT_VADDR,
) -> DAT_RETURN;

/// Type of `dat_cno_fd_create`.
pub type DAT_CNO_FD_CREATE_FUNC = unsafe extern "C" fn(
    ia_handle: DAT_IA_HANDLE,
    file_descriptor: *mut DAT_FD,
    cno_handle: *mut DAT_CNO_HANDLE,
) -> DAT_RETURN;

/// Type of `dat_cno_trigger`.
pub type DAT_CNO_TRIGGER_FUNC =
    unsafe extern "C" fn(cno_handle: DAT_CNO_HANDLE, trigger: *mut DAT_EVD_HANDLE) -> DAT_RETURN;

/// Type of `dat_cr_reject`.
pub type DAT_CR_REJECT_FUNC =
    unsafe extern "C" fn(cr_handle: DAT_CR_HANDLE, private_data_size: DAT_COUNT, private_data: DAT_PVOID) -> DAT_RETURN;

/// Type of `dat_ep_common_connect`.
pub type DAT_EP_COMMON_CONNECT_FUNC = unsafe extern "C" fn(
    ep_handle: DAT_EP_HANDLE,
    remote_ia_address: DAT_IA_ADDRESS_PTR,
    timeout: DAT_TIMEOUT,
    private_data_size: DAT_COUNT,
    private_data: DAT_PVOID,
) -> DAT_RETURN;

/// Type of `dat_ep_post_send_with_invalidate`.
pub type DAT_EP_POST_SEND_WITH_INVALIDATE_FUNC = unsafe extern "C" fn(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
    invalidate_flag: DAT_BOOLEAN,
    rmr_context: DAT_RMR_CONTEXT,
) -> DAT_RETURN;

/// Type of `dat_ep_post_rdma_read_to_rmr`.
pub type DAT_EP_POST_RDMA_READ_TO_RMR_FUNC = unsafe extern "C" fn(
    ep_handle: DAT_EP_HANDLE,
    local_iov: *const DAT_RMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const DAT_RMR_TRIPLET,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN;

/// Type of `dat_rmr_create_for_ep`.
pub type DAT_RMR_CREATE_FOR_EP_FUNC =
    unsafe extern "C" fn(pz_handle: DAT_PZ_HANDLE, rmr_handle: *mut DAT_RMR_HANDLE) -> DAT_RETURN;

/// Type of `dat_rmr_bind`.
pub type DAT_RMR_BIND_FUNC = unsafe extern "C" fn(
    rmr_handle: DAT_RMR_HANDLE,
    lmr_handle: DAT_LMR_HANDLE,
    lmr_triplet: *const DAT_LMR_TRIPLET,
    mem_priv: DAT_MEM_PRIV_FLAGS,
    va_type: DAT_VA_TYPE,
    ep_handle: DAT_EP_HANDLE,
    user_cookie: DAT_RMR_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
    context: *mut DAT_RMR_CONTEXT,
) -> DAT_RETURN;

/// Type of `dat_csp_create`.
pub type DAT_CSP_CREATE_FUNC = unsafe extern "C" fn(
    ia_handle: DAT_IA_HANDLE,
    communicator: *mut DAT_COMM,
    address: DAT_IA_ADDRESS_PTR,
    evd_handle: DAT_EVD_HANDLE,
    csp_handle: *mut DAT_CSP_HANDLE,
) -> DAT_RETURN;

/// Type of `dat_csp_query`.
pub type DAT_CSP_QUERY_FUNC = unsafe extern "C" fn(
    csp_handle: DAT_CSP_HANDLE,
    csp_param_mask: DAT_CSP_PARAM_MASK,
    csp_param: *mut DAT_CSP_PARAM,
) -> DAT_RETURN;

/// Type of `dat_csp_free`.
pub type DAT_CSP_FREE_FUNC = unsafe extern "C" fn(csp_handle: DAT_CSP_HANDLE) -> DAT_RETURN;

/// Type of the table function for `dat_registry_providers_related`.
pub type DAT_IA_HA_RELATED_FUNC =
    unsafe extern "C" fn(ia_handle: DAT_IA_HANDLE, provider: DAT_NAME_PTR, answer: *mut DAT_BOOLEAN) -> DAT_RETURN;

/// Type of the table function for `dat_extension_op`, which passes its variable arguments as a `va_list`.
pub type DAT_HANDLE_EXTENDEDOP_FUNC =
    unsafe extern "C" fn(handle: DAT_HANDLE, extended_op: DAT_EXTENDED_OP, argument_list: va_list) -> DAT_RETURN;

functions_of_version!();

provider_table! {
    /// `struct dat_provider`, 648 bytes: the table of 1.2, and eleven more functions.
    ///
    /// The table of another implementation may have null entries, for which libdat returns `DAT_NOT_IMPLEMENTED`.
    csp_create_func: DAT_CSP_CREATE_FUNC,
    csp_query_func: DAT_CSP_QUERY_FUNC,
    csp_free_func: DAT_CSP_FREE_FUNC,
    ep_common_connect_func: DAT_EP_COMMON_CONNECT_FUNC,
    rmr_create_for_ep_func: DAT_RMR_CREATE_FOR_EP_FUNC,
    ep_post_send_with_invalidate_func: DAT_EP_POST_SEND_WITH_INVALIDATE_FUNC,
    ep_post_rdma_read_to_rmr_func: DAT_EP_POST_RDMA_READ_TO_RMR_FUNC,
    cno_fd_create_func: DAT_CNO_FD_CREATE_FUNC,
    cno_trigger_func: DAT_CNO_TRIGGER_FUNC,
    ia_ha_related_func: DAT_IA_HA_RELATED_FUNC,
    handle_extendedop_func: DAT_HANDLE_EXTENDEDOP_FUNC,
}
