//! The C boundary of the entries (`dapl_*.rs`): runs the body of an entry, checks pointers, converts the segments of a
//! post, and calls the agent of a CNO.
//!
//! An error is converted to its code. A panic is converted to `DAT_INTERNAL_ERROR` and logged; panics never unwind into
//! C. Cancellation of the calling thread is deferred during the entry; in posts and dequeues only around cancellation
//! points. A wait can be cancelled only in its sleep (`runtime/wait`). Entries write out parameters last, and after an
//! error only where the specification requires a value.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dat_abi::{
    DAT_AGENT_FUNC, DAT_CLASS_ERROR, DAT_COUNT, DAT_EVD_HANDLE, DAT_HANDLE, DAT_IA_ADDRESS_PTR, DAT_INTERNAL_ERROR,
    DAT_LMR_TRIPLET, DAT_OS_WAIT_PROXY_AGENT, DAT_PVOID, DAT_RETURN, DAT_SUCCESS, PaddedRecord,
};

use crate::error::{Error, Handle, Result};
use crate::provider::Segment;
use crate::runtime::cancel;
use crate::runtime::handle::{Object, from_handle};

/// Runs one entry: converts an `Err` to its DAT code, catches panics, and defers cancellation.
#[inline(always)]
pub fn guard(body: impl FnOnce() -> Result<()>) -> DAT_RETURN {
    let _deferral = cancel::defer();
    guard_cancellable(body)
}

/// Like [`guard`], but does not defer cancellation, which costs two atomic read-modify-writes per call. Used on the hot
/// path (posts, dequeue) and for the steps of a wait. `body` defers cancellation itself around each cancellation point:
/// the logger does so for each line, `Agent::call` for the consumer's function, `handle` for the drop of an object, and
/// other cold paths for their own calls. System calls through rustix or `libc::syscall` are not cancellation points.
#[inline(always)]
pub fn guard_cancellable(body: impl FnOnce() -> Result<()>) -> DAT_RETURN {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => DAT_SUCCESS,
        Ok(Err(error)) => error.code(),
        Err(_) => panicked(),
    }
}

/// Like [`guard_cancellable`], for a call that has a fast path: runs `quick` first, and `body` only if `quick` returns
/// `None`.
#[inline(always)]
pub fn guard_quick(quick: impl FnOnce() -> Option<Result<()>>, body: impl FnOnce() -> DAT_RETURN) -> DAT_RETURN {
    match catch_unwind(AssertUnwindSafe(quick)) {
        Ok(Some(Ok(()))) => DAT_SUCCESS,
        Ok(Some(Err(error))) => error.code(),
        Ok(None) => body(),
        Err(_) => panicked(),
    }
}

/// Returns the local segment of a post with exactly one segment. Returns `None` for any other list; [`segments`] then
/// checks whether that list is valid.
///
/// # Safety
///
/// `list` is null or points at `count` triplets that do not change during the call.
#[inline(always)]
pub unsafe fn single_segment<'a>(list: *const DAT_LMR_TRIPLET, count: DAT_COUNT) -> Option<&'a Segment> {
    if count != 1 || list.is_null() || !list.is_aligned() {
        return None;
    }
    // SAFETY: the caller guarantees that `list` points at `count` triplets, whose layout equals `Segment` (asserted
    // below).
    Some(unsafe { &*list.cast::<Segment>() })
}

#[cold]
fn panicked() -> DAT_RETURN {
    log::error!(
        "panic caught in a call of this library, which returns DAT_INTERNAL_ERROR; please report the panic message above"
    );
    DAT_CLASS_ERROR | DAT_INTERNAL_ERROR
}

/// Writes an optional out parameter; a null pointer means that the caller does not want it.
///
/// # Safety
/// `out` is null or points at a writable `T`.
pub unsafe fn put<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the caller guarantees that `out` is writable. It may be in a packed C record, so the write is
        // unaligned.
        unsafe { out.write_unaligned(value) };
    }
}

/// Converts a number for C; a larger number becomes the maximum.
pub fn count(n: impl TryInto<DAT_COUNT>) -> DAT_COUNT {
    n.try_into().unwrap_or(DAT_COUNT::MAX)
}

/// Returns `Err(InvalidParameter(n))` for a null pointer.
pub fn require<T>(pointer: *const T, n: u8) -> Result<()> {
    if pointer.is_null() { Err(Error::InvalidParameter(n)) } else { Ok(()) }
}

/// Writes the value that `make` returns to the out parameter with number `n`.
///
/// Errors: `InvalidParameter(n)` if `out` is null; those of `make`.
///
/// # Safety
/// `out` is null or points at a writable `T`.
pub unsafe fn put_required<T>(out: *mut T, n: u8, make: impl FnOnce() -> Result<T>) -> Result<()> {
    require(out, n)?;
    let value = make()?;
    // SAFETY: the caller guarantees that `out` is writable.
    unsafe { put(out, value) };
    Ok(())
}

/// Completes a query: finds the object, and writes the record that `record` returns for it by `put`, which is [`put`] or
/// [`put_cleared`]. `unknown` contains the bits of the mask that the call does not know; 0 if the call ignores its mask.
///
/// Errors: `InvalidHandle(wanted)`; `InvalidParameter(2)` for unknown bits; `InvalidParameter(3)` if `out` is null; those
/// of `record`.
///
/// # Safety
/// `handle` may have any value; `out` is null or points at a writable `R`.
pub unsafe fn query<T: Object, R>(
    handle: DAT_HANDLE,
    wanted: Handle,
    unknown: u32,
    out: *mut R,
    put: unsafe fn(*mut R, R),
    record: impl FnOnce(&T) -> Result<R>,
) -> Result<()> {
    let object = from_handle::<T>(handle, wanted)?;
    if unknown != 0 {
        return Err(Error::InvalidParameter(2));
    }
    require(out, 3)?;
    let record = record(&object)?;
    // SAFETY: `out` is not null, and the caller guarantees that it is writable.
    unsafe { put(out, record) };
    Ok(())
}

/// Copies `length` bytes, which other threads may be writing at the same time. Reads nothing if `length` is 0.
///
/// # Safety
/// `length` is 0, or `from` points at that many bytes.
pub unsafe fn copy(from: *const c_void, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    if length > 0 {
        // SAFETY: the caller guarantees that `from` points at `length` bytes; the vector has this length and is not
        // shared.
        unsafe { from.cast::<u8>().copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
    }
    bytes
}

/// Copies private data.
///
/// Errors: `InvalidParameter(n)` if `size` is negative or above `limit`; `InvalidParameter(n + 1)` if `data` is null
/// and `size` is not 0.
///
/// # Safety
/// `data` is null or points at `size` bytes.
pub unsafe fn private_data(data: DAT_PVOID, size: DAT_COUNT, limit: usize, n: u8) -> Result<Vec<u8>> {
    let size = usize::try_from(size).ok().filter(|size| *size <= limit).ok_or(Error::InvalidParameter(n))?;
    if size > 0 {
        require(data, n + 1)?;
    }
    // SAFETY: the caller guarantees that `data` points at `size` bytes; `copy` does not read for a size of 0.
    Ok(unsafe { copy(data, size) })
}

/// Copies a socket address. Reads only the bytes that its address family needs, because some programs pass objects of 16
/// bytes. For a family other than IPv4, IPv6 and `AF_UNIX`, copies the family only.
///
/// # Safety
/// `address` points at a socket address with the length of its family; an `AF_UNIX` path may end early with a zero
/// byte.
pub unsafe fn copy_address(address: DAT_IA_ADDRESS_PTR) -> Vec<u8> {
    // SAFETY: every socket address begins with its family, in two bytes.
    let family = i32::from(unsafe { address.cast::<u16>().read_unaligned() });
    let length = match family {
        libc::AF_INET => 8, // family, port and IPv4 address
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        // SAFETY: the caller guarantees that the path ends with a zero byte or has 108 bytes.
        libc::AF_UNIX => 2 + unsafe { libc::strnlen(address.cast::<libc::c_char>().add(2), 108) },
        _ => 2,
    };
    // SAFETY: the caller guarantees that the address has the length of its family.
    unsafe { copy(address.cast(), length) }
}

/// Writes a C record over zeros, without the padding bytes of `value`, which may have any content. So the padding is
/// zero in the consumer's record, because programs compare records bytewise.
///
/// # Safety
/// `out` is writable.
pub unsafe fn put_cleared<T: PaddedRecord>(out: *mut T, value: T) {
    let (from, to) = ((&raw const value).cast::<u8>(), out.cast::<u8>());
    // SAFETY: the caller guarantees that `out` is writable; bytes need no alignment. The macro `record` computes the
    // offsets and sizes of the fields, so each field lies inside both records.
    unsafe {
        to.write_bytes(0, size_of::<T>());
        for (offset, size) in T::FIELDS {
            to.add(*offset).copy_from_nonoverlapping(from.add(*offset), *size);
        }
    }
}

/// Checks and returns the local segments of a post. A [`Segment`] has the layout of a triplet, so nothing is copied.
///
/// Errors: `InvalidParameter(2)` for a negative count or a count above `limit`; `InvalidParameter(3)` for a null or
/// misaligned list with a count above 0.
///
/// # Safety
/// `list` is null or points at `count` triplets that do not change during the call.
#[inline(always)]
pub unsafe fn segments<'a>(list: *const DAT_LMR_TRIPLET, count: DAT_COUNT, limit: usize) -> Result<&'a [Segment]> {
    let count = usize::try_from(count).map_err(|_| Error::InvalidParameter(2))?;
    if count > limit {
        return Err(Error::InvalidParameter(2));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() || !list.is_aligned() {
        return Err(Error::InvalidParameter(3));
    }
    // SAFETY: the caller guarantees that `list` points at `count` triplets, whose layout equals `Segment` (asserted
    // below).
    Ok(unsafe { std::slice::from_raw_parts(list.cast::<Segment>(), count) })
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Segment>() == size_of::<DAT_LMR_TRIPLET>());
    assert!(align_of::<Segment>() == align_of::<DAT_LMR_TRIPLET>());
    assert!(offset_of!(Segment, key) == offset_of!(DAT_LMR_TRIPLET, lmr_context));
    assert!(offset_of!(Segment, address) == offset_of!(DAT_LMR_TRIPLET, virtual_address));
    assert!(offset_of!(Segment, length) == offset_of!(DAT_LMR_TRIPLET, segment_length));
};

/// Consumer function that a CNO calls once each time it is armed.
#[derive(Clone, Copy, Debug)]
pub struct Agent {
    function: DAT_AGENT_FUNC,
    data: usize,
}

impl Agent {
    /// Converts the agent that a consumer passes; `None` if it has no function.
    ///
    /// # Safety
    /// The agent's function accepts `instance_data` and an EVD handle or null. It may be called from any thread until
    /// the agent is replaced, the agent has been called, or its CNO is freed.
    pub unsafe fn new(agent: DAT_OS_WAIT_PROXY_AGENT) -> Option<Self> {
        let function = agent.proxy_agent_func?;
        Some(Agent { function, data: agent.instance_data as usize })
    }

    /// Calls the function; `evd` 0 means no EVD. Never called under a lock, because the function may call DAT.
    /// Cancellation of the thread is deferred during the call.
    pub fn call(self, evd: usize) {
        let _deferral = cancel::defer();
        // SAFETY: the caller of `new` guarantees that the function may be called, because the agent is still in use.
        unsafe { (self.function)(self.data as DAT_PVOID, evd as DAT_EVD_HANDLE) };
    }

    /// Converts an armed agent to the record that a consumer passes; null pointers for no agent.
    pub fn as_passed(agent: Option<Self>) -> DAT_OS_WAIT_PROXY_AGENT {
        DAT_OS_WAIT_PROXY_AGENT {
            instance_data: agent.map_or(std::ptr::null_mut(), |agent| agent.data as DAT_PVOID),
            proxy_agent_func: agent.map(|agent| agent.function),
        }
    }
}
