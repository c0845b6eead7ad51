//! The IA names that this library provides. Each name has the parameters of its registration, and the provider table
//! that the handles of its IAs and their objects point to.
//!
//! `registration` adds names, and an open looks up its name. Entries are never freed, because handles point to the
//! table in an entry.

use std::ffi::{CStr, CString, c_char};

use dat_abi::{DAT_PROVIDER, v2};

use crate::runtime::sync::StaticMutex;

/// Major version of the API. The libdat of each version has a registry of its own, so one name may be registered for
/// both.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// 1.x: `libdat.so.1`.
    V1,
    /// 2.x: `libdat2.so.2`.
    V2,
}

impl Version {
    /// Converts the major version of a registration; `None` if this library does not implement that version.
    pub fn of_major(major: u32) -> Option<Self> {
        match major {
            dat_abi::DAT_VERSION_MAJOR => Some(Self::V1),
            v2::DAT_VERSION_MAJOR => Some(Self::V2),
            _ => None,
        }
    }
}

/// An IA name that this library provides, with its provider table.
pub struct RegisteredName {
    c_name: CString,
    /// The IA name, as text.
    pub(crate) name: String,
    /// The version of the API through which IAs of this name are opened.
    pub(crate) version: Version,
    /// The table of this version; never freed. The table of 2.0 begins with the 70 members of the table of 1.2.
    pub(crate) table: *const DAT_PROVIDER,
    last: StaticMutex<Registration>,
}

// SAFETY: the table is never changed or freed. Its pointers are functions, null, and `device_name`, which points into
// `c_name` in this struct. Only the content of the mutex changes after construction.
unsafe impl Send for RegisteredName {}
// SAFETY: the table is never changed or freed. Its pointers are functions, null, and `device_name`, which points into
// `c_name` in this struct. Only the content of the mutex changes after construction.
unsafe impl Sync for RegisteredName {}

/// What libdat has passed at a registration of a name.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Major version of the API.
    pub major: u32,
    /// Minor version of the API.
    pub minor: u32,
    /// The thread safety that `dat_ia_query` reports: the registry's flag, or `true` if libdat is this project's.
    pub thread_safe: bool,
    /// The `ia_params` field of the name's dat.conf line.
    pub params: String,
    /// The library file name in the name's dat.conf line.
    pub library: String,
}

impl RegisteredName {
    /// The last registration under this name.
    pub fn last(&self) -> Registration {
        self.last.lock().clone()
    }

    fn is(&self, version: Version, name: &CStr) -> bool {
        self.c_name.as_c_str() == name && self.version == version
    }
}

static NAMES: StaticMutex<Vec<&'static RegisteredName>> = StaticMutex::new(Vec::new());

/// Locks the list of names and each name while the process forks.
pub(crate) fn lock_for_fork() -> impl Sized {
    let names = NAMES.lock();
    let each: Vec<_> = names.iter().copied().map(|name| name.last.lock()).collect();
    (names, each)
}

/// Finds the registration of a name for a version.
pub fn find(version: Version, name: &CStr) -> Option<&'static RegisteredName> {
    NAMES.lock().iter().copied().find(|known| known.is(version, name))
}

/// Adds a name. `table` creates its provider table with this `device_name`. A second registration of the same name and
/// version updates the first one and keeps its table.
pub(crate) fn remember(
    name: &CStr,
    version: Version,
    last: Registration,
    table: impl FnOnce(*const c_char) -> *const DAT_PROVIDER,
) -> &'static RegisteredName {
    let mut names = NAMES.lock();
    if let Some(known) = names.iter().copied().find(|known| known.is(version, name)) {
        *known.last.lock() = last;
        return known;
    }
    let c_name = name.to_owned();
    let name = name.to_string_lossy().into_owned();
    // Moving a `CString` does not move its text, so the table can point to the text before both are stored.
    let table = table(c_name.as_ptr());
    let last = StaticMutex::new(last);
    let made: &'static RegisteredName = Box::leak(Box::new(RegisteredName { c_name, name, version, table, last }));
    names.push(made);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_registration_per_version() {
        let last = |major, params: &str| Registration {
            major,
            minor: 0,
            thread_safe: false,
            params: params.to_owned(),
            library: String::new(),
        };
        // The addresses of the names stand for the tables, which are not read.
        let (old, new) = (|name: *const c_char| name.cast(), |name: *const c_char| name.cast());
        let first = remember(c"names-both", Version::V1, last(1, "one"), old);
        let second = remember(c"names-both", Version::V2, last(2, "two"), new);
        assert_eq!((first.version, second.version), (Version::V1, Version::V2));
        assert_eq!((first.last().params, second.last().params), ("one".to_owned(), "two".to_owned()));
        assert_ne!(first.table, second.table);
        let found = find(Version::V2, c"names-both").unwrap();
        assert!(std::ptr::eq(found, second) && find(Version::V2, c"names-none").is_none());
        let again = remember(c"names-both", Version::V2, last(2, "three"), new);
        assert!(std::ptr::eq(again, second) && second.last().params == "three" && first.last().params == "one");
        assert_eq!((Version::of_major(2), Version::of_major(3)), (Some(Version::V2), None));
    }
}
