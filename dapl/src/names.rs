//! Names that this library serves, with the registry's parameters and the table of their handles.
//!
//! `registration` adds names; an IA looks its own up when it is opened. Entries are never freed, since handles point to their
//! table.

use std::ffi::{CStr, CString};

use dat_abi::DAT_PROVIDER;
use parking_lot::Mutex;

use crate::runtime::sync::StaticMutex;

/// A name that this library serves, and the table behind its handles.
pub struct Registration {
    name: CString,
    text: String,
    table: DAT_PROVIDER,
    served: Mutex<Served>,
    params: Mutex<String>,
    library: Mutex<String>,
}

// SAFETY: the raw pointers are the table's `device_name`, which points into `name` beside it, and null ones. Nothing but the
// mutexes changes after the construction.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

/// Parameters of the last registration under this name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Served {
    /// Major version of the API.
    pub major: u32,
    /// Minor version of the API.
    pub minor: u32,
    /// The thread safety to report: the registry's flag, or `true` when libdat is ours.
    pub thread_safe: bool,
}

impl Registration {
    /// The IA name.
    pub fn name(&self) -> &str {
        &self.text
    }

    /// The `ia_params` of its line.
    pub fn params(&self) -> String {
        self.params.lock().clone()
    }

    /// File name of the library that its line names.
    pub fn library(&self) -> String {
        self.library.lock().clone()
    }

    /// The table; it stays for the process's life.
    pub fn table(&self) -> *const DAT_PROVIDER {
        &raw const self.table
    }

    /// Parameters of the last registration.
    pub fn served(&self) -> Served {
        *self.served.lock()
    }
}

static NAMES: StaticMutex<Vec<&'static Registration>> = StaticMutex::new(Vec::new());

/// Keeps others out, for `fork`.
pub(crate) fn hold() -> impl Sized {
    NAMES.lock()
}

/// The registration of a name.
pub fn find(name: &CStr) -> Option<&'static Registration> {
    NAMES.lock().iter().copied().find(|known| known.name.as_c_str() == name)
}

/// Adds a name, whose table is set later. A second entry of the same name updates the first, and its table stays.
pub(crate) fn remember(
    name: &CStr,
    params: &CStr,
    library: String,
    served: Served,
    table: DAT_PROVIDER,
) -> &'static Registration {
    let params = params.to_string_lossy().into_owned();
    let mut names = NAMES.lock();
    if let Some(known) = names.iter().copied().find(|known| known.name.as_c_str() == name) {
        *known.served.lock() = served;
        *known.params.lock() = params;
        *known.library.lock() = library;
        return known;
    }
    let name = name.to_owned();
    let text = name.to_string_lossy().into_owned();
    // The text of a CString does not move with it, so the table may name it before both are in place.
    let table = DAT_PROVIDER { device_name: name.as_ptr(), ..table };
    let (served, params, library) = (Mutex::new(served), Mutex::new(params), Mutex::new(library));
    let made: &'static Registration = Box::leak(Box::new(Registration { name, text, table, served, params, library }));
    names.push(made);
    made
}
