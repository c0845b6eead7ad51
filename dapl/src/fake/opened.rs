//! Opens an IA of the fake provider, for unit tests.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::FakeProvider;

/// An open IA of the fake provider, with its async EVD.
pub(crate) struct Opened {
    pub(crate) ia: Arc<crate::ia::Ia<FakeProvider>>,
    pub(crate) ia_handle: *mut std::ffi::c_void,
    pub(crate) async_evd: *mut std::ffi::c_void,
}

/// Opens an IA. `name` must be unique among the tests.
pub(crate) fn open(name: &std::ffi::CStr) -> Opened {
    open_with(name, c"")
}

/// Opens an IA with these `ia_params`.
pub(crate) fn open_with(name: &std::ffi::CStr, params: &std::ffi::CStr) -> Opened {
    use crate::{evd::dapls_evd, ia::dapls_ia};
    let registration = crate::registration::for_test_with::<FakeProvider>(name, params);
    let (ia_handle, async_evd) =
        dapls_ia::open::<FakeProvider>(registration, crate::cm::sink::<FakeProvider>(), dapls_evd::with_ia(8))
            .expect("the fake provider opens");
    let ia = crate::runtime::handle::from_handle::<crate::ia::Ia<FakeProvider>>(ia_handle, crate::error::Handle::Ia)
        .expect("the handle was returned by the open above")
        .to_arc();
    Opened { ia, ia_handle, async_evd }
}
