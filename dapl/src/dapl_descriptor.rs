//! File descriptors of EVDs and CNOs, for consumers of DAT 1.2, whose provider table has no call that returns a
//! descriptor.
//!
//! The addresses of `dapl_descriptor` and `dapl_descriptor_arm` are the values of the provider attributes
//! `descriptor_func` and `descriptor_arm_func`. The header `dat/dapl_descriptor.h` calls the functions through them.
//! Programs of DAT 2.0 can also use `dat_cno_fd_create`.

use dat_abi::*;

use crate::cno::{Cno, dapls_cno};
use crate::error::Handle;
use crate::evd::{Evd, dapls_descriptor};
use crate::ffi::{guard, put_required};
use crate::provider::Provider;
use crate::runtime::handle::from_handle;

/// Provider attributes with the addresses of `dapl_descriptor` and `dapl_descriptor_arm`, in hexadecimal.
pub(crate) fn named_attributes<P: Provider>() -> [(String, String); 2] {
    let text = |address: usize| format!("{address:#x}");
    [
        ("descriptor_func".into(), text(dapl_descriptor::<P> as *const () as usize)),
        ("descriptor_arm_func".into(), text(dapl_descriptor_arm::<P> as *const () as usize)),
    ]
}

/// Writes the descriptor of an EVD or CNO to `out`. The first call creates the descriptor; it is closed when the object
/// is freed. The consumer must neither read nor close it.
///
/// # Safety
/// `object` may have any value; `out` is null or writable.
unsafe extern "C" fn dapl_descriptor<P: Provider>(object: DAT_HANDLE, out: *mut i32) -> DAT_RETURN {
    guard(|| {
        let number = || match from_handle::<Evd<P>>(object, Handle::Any) {
            Ok(evd) => dapls_descriptor::descriptor(&*evd),
            Err(_) => dapls_cno::descriptor(&*from_handle::<Cno<P>>(object, Handle::Any)?),
        };
        // SAFETY: the caller guarantees that `out` is null or writable.
        unsafe { put_required(out, 2, number) }
    })
}

/// Arms the descriptor of an EVD: it is readable at once if events are queued, otherwise at the next event that
/// notifies. For a CNO, drops triggers of EVDs that have no events, so that the descriptor is readable only if an EVD
/// has events. The consumer calls this after it has dequeued all events, before it sleeps.
///
/// # Safety
/// `object` may have any value.
unsafe extern "C" fn dapl_descriptor_arm<P: Provider>(object: DAT_HANDLE) -> DAT_RETURN {
    guard(|| match from_handle::<Evd<P>>(object, Handle::Any) {
        Ok(evd) => dapls_descriptor::arm(&*evd),
        Err(_) => {
            dapls_cno::arm_descriptor(&*from_handle::<Cno<P>>(object, Handle::Any)?);
            Ok(())
        }
    })
}
