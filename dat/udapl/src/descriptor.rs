//! Descriptors of event queues, for event loops. An extension of this project's providers, found in their attributes.

use std::os::fd::BorrowedFd;

use dat_abi::{DAT_HANDLE, DAT_RETURN};

use crate::error::{Error, Result};
use crate::evd::Evd;
use crate::ia::Attribute;

/// Functions of the provider for descriptors (`dat/dapl_descriptor.h`).
#[derive(Clone, Copy)]
pub(crate) struct DescriptorCalls {
    descriptor: unsafe extern "C" fn(DAT_HANDLE, *mut i32) -> DAT_RETURN,
    arm: unsafe extern "C" fn(DAT_HANDLE) -> DAT_RETURN,
}

impl DescriptorCalls {
    /// Finds them; none with another provider.
    pub(crate) fn find(attributes: &[Attribute]) -> Option<Self> {
        let value =
            |name: &str| attributes.iter().find(|attribute| attribute.name == name).map(|found| found.value.as_str());
        let address =
            |name| usize::from_str_radix(value(name)?.strip_prefix("0x")?, 16).ok().filter(|address| *address != 0);
        if value("implementation") != Some("dapl-rs") {
            return None;
        }
        let (descriptor, arm) = (address("descriptor_func")?, address("descriptor_arm_func")?);
        // SAFETY: providers of this implementation report addresses of functions of these types, which stay loaded.
        unsafe {
            Some(DescriptorCalls {
                descriptor: std::mem::transmute::<usize, unsafe extern "C" fn(DAT_HANDLE, *mut i32) -> DAT_RETURN>(
                    descriptor,
                ),
                arm: std::mem::transmute::<usize, unsafe extern "C" fn(DAT_HANDLE) -> DAT_RETURN>(arm),
            })
        }
    }
}

impl Evd {
    /// The descriptor of the queue, for `poll`, `epoll` and event loops: take events until [`Self::poll`] returns `None`, call
    /// [`Self::arm`], wait until the descriptor is readable. Do not read or write it.
    ///
    /// # Errors
    /// [`Error::Argument`] if the provider has no descriptors; that of the system.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let (calls, mut fd) = (self.descriptor_calls()?, -1);
        // SAFETY: a live queue of this provider; the result is a local variable.
        let code = unsafe { (calls.descriptor)(self.inner.handle.0, &raw mut fd) };
        self.inner.ia.functions.check("descriptor_func", code)?;
        // SAFETY: the descriptor stays open as long as the queue.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Makes the descriptor readable if there are events, else when the next one comes.
    ///
    /// # Errors
    /// As [`Self::descriptor`], which has to be called first.
    pub fn arm(&self) -> Result<()> {
        // SAFETY: a live queue of this provider.
        let code = unsafe { (self.descriptor_calls()?.arm)(self.inner.handle.0) };
        self.inner.ia.functions.check("descriptor_arm_func", code)
    }

    fn descriptor_calls(&self) -> Result<DescriptorCalls> {
        let none = || Error::Argument("the provider has no descriptors to wait on".into());
        self.inner.ia.descriptors.ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_other_providers_are_not_called() {
        let attribute = |name: &str, value: &str| Attribute { name: name.into(), value: value.into() };
        let calls = [attribute("descriptor_func", "0x1000"), attribute("descriptor_arm_func", "0x2000")];
        assert!(DescriptorCalls::find(&calls).is_none());
        let own = |value| [&calls[..], &[attribute("implementation", value)]].concat();
        assert!(DescriptorCalls::find(&own("dapl-rs")).is_some());
        assert!(DescriptorCalls::find(&own("another")).is_none());
        assert!(DescriptorCalls::find(&own("dapl-rs")[1..]).is_none());
    }
}
