//! Functions for the file descriptors of event queues: an extension of this project's providers, found in the
//! providers' attributes.

use dat_abi::{DAT_HANDLE, DAT_RETURN};

/// The provider's functions for descriptors (`dat/dapl_descriptor.h`).
#[derive(Clone, Copy)]
pub(crate) struct DescriptorCalls {
    pub(crate) descriptor: unsafe extern "C" fn(DAT_HANDLE, *mut i32) -> DAT_RETURN,
    pub(crate) arm: unsafe extern "C" fn(DAT_HANDLE) -> DAT_RETURN,
}

impl DescriptorCalls {
    /// Finds the functions in the provider's attributes, given as pairs of name and value. Returns `None` if the
    /// provider has no such functions.
    pub(crate) fn find(attributes: &[(&str, &str)]) -> Option<Self> {
        let value = |wanted: &str| attributes.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_functions_are_taken_only_from_this_implementation() {
        let calls = [("descriptor_func", "0x1000"), ("descriptor_arm_func", "0x2000")];
        assert!(DescriptorCalls::find(&calls).is_none());
        let own = |value| [&calls[..], &[("implementation", value)]].concat();
        assert!(DescriptorCalls::find(&own("dapl-rs")).is_some());
        assert!(DescriptorCalls::find(&own("another")).is_none());
        assert!(DescriptorCalls::find(&own("dapl-rs")[1..]).is_none());
    }
}
