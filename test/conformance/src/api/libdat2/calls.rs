//! Translations from DAT 1.2 to 2.0 of posts, memory syncs, functions that return events, and registry functions. Also
//! of open, reject and strerror.
#![allow(clippy::too_many_arguments, reason = "the signatures are the specification's")]

use std::ffi::c_char;
use std::mem::zeroed;
use std::ptr::null_mut;

use dat_abi::*;

use super::{at, code_of_2_0, into, other_info, other_version, real, remote_triplet, triplets};

pub(super) unsafe extern "C" fn ia_openv(
    name: DAT_NAME_PTR,
    qlen: DAT_COUNT,
    async_evd: *mut DAT_EVD_HANDLE,
    ia: *mut DAT_IA_HANDLE,
    major: DAT_UINT32,
    minor: DAT_UINT32,
    thread_safety: DAT_BOOLEAN,
) -> DAT_RETURN {
    let (major, minor) = other_version((major, minor));
    // SAFETY: the case is responsible for its arguments.
    unsafe { (real().ia_openv)(name, qlen, async_evd, ia, major, minor, thread_safety) }
}

pub(super) unsafe extern "C" fn strerror(
    code: DAT_RETURN,
    major: *mut *const c_char,
    minor: *mut *const c_char,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments.
    unsafe { (real().strerror)(code_of_2_0(code), major, minor) }
}

pub(super) unsafe extern "C" fn cr_reject(cr: DAT_CR_HANDLE) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments.
    unsafe { (real().cr_reject)(cr, 0, null_mut()) }
}

/// Converts a 2.0 event to 1.2 and writes the result to `out`.
///
/// # Safety
/// `out` is the case's event; the library has filled in `of`.
pub(super) unsafe fn put_event(out: *mut DAT_EVENT, of: &v2::DAT_EVENT) {
    // SAFETY: this function's own contract; the event number selects the union member. All members except that of a DTO
    // have the same layout in both versions.
    unsafe {
        out.cast::<u8>().write_bytes(0, size_of::<DAT_EVENT>());
        (*out).event_number = of.event_number;
        (*out).evd_handle = of.evd_handle;
        if of.event_number == DAT_DTO_COMPLETION_EVENT {
            let done = of.event_data.dto_completion_event_data;
            (*out).event_data.dto_completion_event_data = DAT_DTO_COMPLETION_EVENT_DATA {
                ep_handle: done.ep_handle,
                user_cookie: done.user_cookie,
                status: done.status,
                transfered_length: done.transfered_length.into(),
            };
        } else {
            (*out).event_data = (&raw const of.event_data).cast::<DAT_EVENT_DATA>().read();
        }
    }
}

pub(super) unsafe extern "C" fn evd_dequeue(evd: DAT_EVD_HANDLE, out: *mut DAT_EVENT) -> DAT_RETURN {
    // SAFETY: all fields of an event are integers or nullable pointers, so all-zero bytes are valid. The case is
    // responsible for its arguments.
    unsafe {
        let mut event = zeroed::<v2::DAT_EVENT>();
        let code = (real().evd_dequeue)(evd, into(out, &mut event));
        if code == DAT_SUCCESS {
            put_event(out, &event);
        }
        code
    }
}

pub(super) unsafe extern "C-unwind" fn evd_wait(
    evd: DAT_EVD_HANDLE,
    timeout: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    out: *mut DAT_EVENT,
    more: *mut DAT_COUNT,
) -> DAT_RETURN {
    // SAFETY: all fields of an event are integers or nullable pointers, so all-zero bytes are valid. The case is
    // responsible for its arguments.
    unsafe {
        let mut event = zeroed::<v2::DAT_EVENT>();
        let code = (real().evd_wait)(evd, timeout, threshold, into(out, &mut event), more);
        if code == DAT_SUCCESS {
            put_event(out, &event);
        }
        code
    }
}

pub(super) unsafe extern "C" fn ep_post_send(
    ep: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments; the triplets are local.
    unsafe {
        let (mut list, is_list) = triplets(iov, count);
        let iov = if is_list { list.as_mut_ptr() } else { iov.cast() };
        (real().ep_post_send)(ep, count, iov, cookie, flags)
    }
}

pub(super) unsafe extern "C" fn ep_post_recv(
    ep: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments; the triplets are local.
    unsafe {
        let (mut list, is_list) = triplets(iov, count);
        let iov = if is_list { list.as_mut_ptr() } else { iov.cast() };
        (real().ep_post_recv)(ep, count, iov, cookie, flags)
    }
}

pub(super) unsafe extern "C" fn ep_post_rdma_read(
    ep: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
    remote: *const DAT_RMR_TRIPLET,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments; the triplets are local.
    unsafe {
        let (mut list, is_list) = triplets(iov, count);
        let iov = if is_list { list.as_mut_ptr() } else { iov.cast() };
        let remote = remote_triplet(remote);
        (real().ep_post_rdma_read)(ep, count, iov, cookie, at(&remote), flags)
    }
}

pub(super) unsafe extern "C" fn ep_post_rdma_write(
    ep: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
    remote: *const DAT_RMR_TRIPLET,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments; the triplets are local.
    unsafe {
        let (mut list, is_list) = triplets(iov, count);
        let iov = if is_list { list.as_mut_ptr() } else { iov.cast() };
        let remote = remote_triplet(remote);
        (real().ep_post_rdma_write)(ep, count, iov, cookie, at(&remote), flags)
    }
}

pub(super) unsafe extern "C" fn srq_post_recv(
    srq: DAT_SRQ_HANDLE,
    count: DAT_COUNT,
    iov: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments; the triplets are local.
    unsafe {
        let (mut list, is_list) = triplets(iov, count);
        (real().srq_post_recv)(srq, count, if is_list { list.as_mut_ptr() } else { iov.cast() }, cookie)
    }
}

/// # Safety
/// The arguments are those that the case passes to the function.
pub(super) unsafe fn sync(
    function: v2::DAT_LMR_SYNC_RDMA_READ_FUNC,
    ia: DAT_IA_HANDLE,
    segments: *const DAT_LMR_TRIPLET,
    count: DAT_VLEN,
) -> DAT_RETURN {
    // SAFETY: this function's own contract, and local triplets.
    unsafe {
        let (list, is_list) = triplets(segments, DAT_COUNT::try_from(count).unwrap_or(DAT_COUNT::MAX));
        function(ia, if is_list { list.as_ptr() } else { segments.cast() }, count)
    }
}

pub(super) unsafe extern "C" fn lmr_sync_rdma_read(
    ia: DAT_IA_HANDLE,
    segments: *const DAT_LMR_TRIPLET,
    count: DAT_VLEN,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments.
    unsafe { sync(real().lmr_sync_rdma_read, ia, segments, count) }
}

pub(super) unsafe extern "C" fn lmr_sync_rdma_write(
    ia: DAT_IA_HANDLE,
    segments: *const DAT_LMR_TRIPLET,
    count: DAT_VLEN,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments.
    unsafe { sync(real().lmr_sync_rdma_write, ia, segments, count) }
}

pub(super) unsafe extern "C" fn registry_list_providers(
    max: DAT_COUNT,
    filled: *mut DAT_COUNT,
    list: *mut *mut DAT_PROVIDER_INFO,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments; on success this number of records is filled in.
    unsafe {
        let code = (real().registry_list_providers)(max, filled, list);
        if code == DAT_SUCCESS {
            for n in 0..filled.read() as usize {
                let info = *list.add(n);
                info.write_unaligned(other_info(info.read_unaligned()));
            }
        }
        code
    }
}

pub(super) unsafe extern "C" fn registry_add_provider(
    table: *const DAT_PROVIDER,
    info: *const DAT_PROVIDER_INFO,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments; its later calls use only the table members of 1.2.
    unsafe {
        let info = info.as_ref().map(|info| other_info(*info));
        (real().registry_add_provider)(table, at(&info))
    }
}

pub(super) unsafe extern "C" fn registry_remove_provider(
    table: *const DAT_PROVIDER,
    info: *const DAT_PROVIDER_INFO,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments; its later calls use only the table members of 1.2.
    unsafe {
        let info = info.as_ref().map(|info| other_info(*info));
        (real().registry_remove_provider)(table, at(&info))
    }
}
