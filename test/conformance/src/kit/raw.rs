//! Copies and writes memory behind pointers that the library returned, reads members of C unions, and creates zeroed
//! records.
//!
//! This module and `cancel` are the only unsafe modules of the kit. No reference to the library's memory is kept.

use std::ffi::c_void;
use std::mem::{ManuallyDrop, MaybeUninit, size_of};
use std::sync::atomic::AtomicU8;

use dat_abi::*;

use crate::api::text_at;

/// A C record of integers, nullable pointers and unions of these, for which all-zero bytes are valid.
///
/// # Safety
/// The type is `#[repr(C)]` or a plain number or pointer, and contains neither references nor Rust enumerations.
pub(crate) unsafe trait CRecord: Copy {}

macro_rules! records {
    ($($name:ty),* $(,)?) => { $(
        // SAFETY: the records of `dat_abi` consist of integers, nullable pointers and nullable functions.
        unsafe impl CRecord for $name {}
    )* };
}

records!(
    dat_abi::v2::DAT_CSP_PARAM,
    DAT_IA_ATTR,
    DAT_PROVIDER_ATTR,
    DAT_EP_ATTR,
    DAT_EP_PARAM,
    DAT_SRQ_ATTR,
    DAT_SRQ_PARAM,
    DAT_PZ_PARAM,
    DAT_PSP_PARAM,
    DAT_RSP_PARAM,
    DAT_CR_PARAM,
    DAT_EVD_PARAM,
    DAT_CNO_PARAM,
    DAT_LMR_PARAM,
    DAT_RMR_PARAM,
    DAT_PROVIDER_INFO,
    DAT_PROVIDER,
    DAT_EVENT,
    DAT_CONTEXT,
    DAT_LMR_TRIPLET,
    DAT_RMR_TRIPLET,
    DAT_REGION_DESCRIPTION,
    DAT_HANDLE,
    u32,
    u64,
    i32,
);

/// Returns zeroed bytes from the allocator, which takes less time than a loop.
pub(crate) fn zeroed_bytes(length: usize) -> Vec<AtomicU8> {
    let mut bytes = ManuallyDrop::new(vec![0_u8; length]);
    let (pointer, length, capacity) = (bytes.as_mut_ptr(), bytes.len(), bytes.capacity());
    // SAFETY: the parts are those of a vector that is not used again; `AtomicU8` has the layout of `u8`.
    unsafe { Vec::from_raw_parts(pointer.cast(), length, capacity) }
}

/// Returns a zeroed record.
pub(crate) fn zeroed<T: CRecord>() -> T {
    // SAFETY: all-zero bytes are a valid `T`, by the contract of `CRecord`.
    unsafe { std::mem::zeroed() }
}

pub(super) fn fill<T: Copy>(out: &mut MaybeUninit<T>, byte: u8) {
    // SAFETY: `out` is a local value of this size.
    unsafe { std::ptr::write_bytes(out.as_mut_ptr().cast::<u8>(), byte, size_of::<T>()) };
}

/// Returns the bytes of a value after [`fill`].
pub(super) fn bytes_of<T: Copy>(out: &MaybeUninit<T>) -> Vec<u8> {
    // SAFETY: `fill` initialised every byte, and a C library writes whole bytes.
    unsafe { std::slice::from_raw_parts(out.as_ptr().cast::<u8>(), size_of::<T>()) }.to_vec()
}

/// Copies the bytes at a pointer that the library returned. Returns an empty vector for null.
pub(crate) fn bytes_at(pointer: *const c_void, length: usize) -> Vec<u8> {
    if pointer.is_null() {
        return Vec::new();
    }
    // SAFETY: the library returned this pointer with this length.
    unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), length) }.to_vec()
}

/// Copies the socket address at a pointer that the library returned. The address family determines the length.
pub(crate) fn address_at(pointer: DAT_IA_ADDRESS_PTR) -> Vec<u8> {
    if pointer.is_null() {
        return Vec::new();
    }
    // SAFETY: the library promises a socket address at this pointer, which begins with its family.
    let family = i32::from(unsafe { (*pointer).sa_family });
    let length = match family {
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        libc::AF_UNIX => size_of::<libc::sockaddr_un>(),
        _ => size_of::<libc::sockaddr_in>(),
    };
    bytes_at(pointer.cast(), length)
}

/// Writes to library memory that a consumer may change.
pub(crate) fn write_at(pointer: *mut c_void, bytes: &[u8]) {
    // SAFETY: the library returned this pointer with this length as writable.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer.cast::<u8>(), bytes.len()) };
}

/// Returns a context or cookie as a number.
pub(crate) fn context_bits(context: DAT_CONTEXT) -> u64 {
    // SAFETY: all union members are integers, for which every bit pattern is valid.
    unsafe { context.as_64 }
}

pub(super) fn dto(event: &DAT_EVENT) -> DAT_DTO_COMPLETION_EVENT_DATA {
    // SAFETY: all union members consist of integers and pointers, for which every bit pattern is valid.
    unsafe { event.event_data.dto_completion_event_data }
}

pub(super) fn rmr(event: &DAT_EVENT) -> DAT_RMR_BIND_COMPLETION_EVENT_DATA {
    // SAFETY: all union members consist of integers and pointers, for which every bit pattern is valid.
    unsafe { event.event_data.rmr_completion_event_data }
}

pub(super) fn arrival(event: &DAT_EVENT) -> DAT_CR_ARRIVAL_EVENT_DATA {
    // SAFETY: all union members consist of integers and pointers, for which every bit pattern is valid.
    unsafe { event.event_data.cr_arrival_event_data }
}

pub(super) fn connection(event: &DAT_EVENT) -> DAT_CONNECTION_EVENT_DATA {
    // SAFETY: all union members consist of integers and pointers, for which every bit pattern is valid.
    unsafe { event.event_data.connect_event_data }
}

pub(super) fn asynchronous(event: &DAT_EVENT) -> DAT_ASYNCH_ERROR_EVENT_DATA {
    // SAFETY: all union members consist of integers and pointers, for which every bit pattern is valid.
    unsafe { event.event_data.asynch_error_event_data }
}

pub(super) fn software(event: &DAT_EVENT) -> DAT_PVOID {
    // SAFETY: all union members consist of integers and pointers, for which every bit pattern is valid.
    unsafe { event.event_data.software_event_data.pointer }
}

/// Returns the handle of a service point, PSP or RSP.
pub(super) fn service_point(handle: DAT_SP_HANDLE) -> DAT_HANDLE {
    // SAFETY: both union members are handles, for which every bit pattern is valid.
    unsafe { handle.psp_handle }
}

/// Returns the pointer that describes a region: its start address, or the handle of the LMR that it copies.
pub(crate) fn region_address(region: DAT_REGION_DESCRIPTION) -> DAT_PVOID {
    // SAFETY: the union member is an address, for which every bit pattern is valid.
    unsafe { region.for_va }
}

/// Returns name and value of each named attribute in an array from the library.
pub(crate) fn named_attributes(array: *const DAT_NAMED_ATTR, count: DAT_COUNT) -> Vec<(String, String)> {
    let count = if array.is_null() { 0 } else { count.max(0) as usize };
    let one = |at| {
        // SAFETY: the library returned the array with this length.
        let attribute = unsafe { *array.add(at) };
        (text_at(attribute.name), text_at(attribute.value))
    };
    (0..count).map(one).collect()
}
