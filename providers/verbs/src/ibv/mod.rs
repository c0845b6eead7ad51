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
use std::ptr::NonNull;

pub(crate) use channel::CompletionChannel;
pub(crate) use context::{Context, Gid, GidKind};
pub(crate) use cq::Cq;
pub(crate) use event::{AsyncEvent, PortEvent, QpEvent, SrqEvent};
pub(crate) use memory::{Mr, Mw, Pd};
pub(crate) use qp::{DeviceSendWr, Qp, QpAttributes, SendWrTemplate};
pub(crate) use srq::Srq;

/// Converts the result of a verb that returns an error number. Some drivers return it negative, or return -1 and set
/// `errno`, as all functions of librdmacm do.
pub(crate) fn check_result(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// A pointer to an object of libibverbs or librdmacm. It is valid until the owner of the `Handle` destroys the object.
pub(crate) struct Handle<T>(NonNull<T>);

// SAFETY: both libraries allow any thread to use an object.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: both libraries allow several threads to use an object concurrently.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// Converts the result of a function that returns an object, or null and `errno`.
    pub(crate) fn check(object: *mut T) -> io::Result<Self> {
        NonNull::new(object).map(Handle).ok_or_else(io::Error::last_os_error)
    }

    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
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

/// Implements `Drop` for the owner of an object of libibverbs. `$destroy` destroys the object, and `$text` describes it
/// for messages.
macro_rules! destroys {
    ($owner:ty, $destroy:path, |$object:ident| $text:expr) => {
        impl Drop for $owner {
            fn drop(&mut self) {
                // SAFETY: `self` is the only owner, and is dropped here: other owners whose objects use this one hold an
                // `Arc` of it. The device fails later transfers with a key of this object. All events were acknowledged
                // when they were read.
                let result = unsafe { $destroy(self.handle.as_ptr()) };
                let $object = &*self;
                $crate::ibv::check_destroy(&$text, result);
            }
        }
    };
}
use destroys;

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
        assert_eq!(
            Handle::<u8>::check(std::ptr::null_mut()).err().and_then(|error| error.raw_os_error()),
            Some(libc::EACCES)
        );
    }
}
