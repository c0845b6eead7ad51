//! Safe wrappers of libibverbs: one type per verbs object. Each holds references to the objects that it depends on.
//!
//! This is the only module of the crate that calls libibverbs. It retries nothing. It converts the three error
//! conventions of verbs: a null pointer and `errno`, the error number as the result, or -1 and `errno`. Functions that
//! are inline in `verbs.h` are called through the function table of the context. Any thread may make any call:
//! libibverbs locks internally.

mod channel;
mod context;
mod cq;
mod event;
mod memory;
mod qp;
mod srq;

use std::ffi::c_int;
use std::io;

pub(crate) use channel::CompletionChannel;
pub(crate) use context::{Context, Gid, GidKind};
pub(crate) use cq::Cq;
pub(crate) use event::{AsyncEvent, PortEvent, QpEvent, SrqEvent};
pub(crate) use memory::{Mr, Mw, Pd};
pub(crate) use qp::{DeviceSendWr, Op, Qp, QpAttributes, SendWrTemplate};
pub(crate) use srq::Srq;

/// Converts the result of a verb that returns an error number. Some drivers return it negative, or return -1 and set
/// `errno`.
fn check_result(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// Converts the result of a verb that returns an object, or null and `errno`.
fn check_object<T>(object: *mut T) -> io::Result<std::ptr::NonNull<T>> {
    std::ptr::NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

/// Returns the error for a verb that is missing in the device's function table.
fn missing_verb() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

/// Logs the failure to destroy an object. The caller cannot react to it.
fn check_destroy(object: &str, result: c_int) {
    if let Err(error) = check_result(result) {
        log::warn!("cannot destroy {object}: {error}; it stays allocated until the process ends");
    }
}

/// Makes a descriptor non-blocking, so that the engine can read until no event is left.
fn nonblocking(fd: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_by_return_value_errno_or_null_are_converted() {
        assert!(check_result(0).is_ok());
        assert_eq!(check_result(libc::ENOMEM).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(check_result(-libc::EINVAL).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        // SAFETY: `__errno_location` returns a valid pointer to this thread's errno.
        unsafe { *libc::__errno_location() = libc::EFAULT };
        assert_eq!(check_result(-1).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        // SAFETY: `__errno_location` returns a valid pointer to this thread's errno.
        unsafe { *libc::__errno_location() = libc::EACCES };
        assert_eq!(check_object::<u8>(std::ptr::null_mut()).unwrap_err().raw_os_error(), Some(libc::EACCES));
    }
}
