//! The version of DAT that a libdat implements: its version number, and the numbers and names of its return codes.
//!
//! `libdat.so.1` and `libdat2.so.2` are built from the same code. The calls that libdat implements itself (`thunk/own`)
//! get [`V1`] in the first library and [`V2`] in the second. In these calls, subtypes have the numbers of 1.2, and
//! `registry::error` converts them when it builds a return code. The macros of `thunk/pass` use the numbers of the
//! version that invokes them.
#![forbid(unsafe_code)]

use std::ffi::CStr;
use std::sync::OnceLock;

use dat_abi::*;

/// Differences between the libdat of DAT 1.2 and the libdat of DAT 2.0.
#[derive(Debug)]
pub struct Api {
    /// Major version of the dat.conf lines that programs of this libdat open.
    pub major: u32,
    /// Minor version of the lines of the built-in registry.
    pub(crate) minor: u32,
    /// Name of the library in messages.
    pub(crate) name: &'static str,
    /// Value of `DAT_NOT_IMPLEMENTED` in this version.
    pub(crate) not_implemented: DAT_RETURN,
    /// Subtypes of 1.2 before which this version inserts a new subtype. Each insertion increases the numbers of that
    /// subtype and of all later ones by one.
    inserted: &'static [DAT_RETURN_SUBTYPE],
    /// Names of types, in the order of their numbers.
    pub(crate) types: &'static [&'static CStr],
    /// Names of subtypes from 1 on, in the order of their numbers.
    pub(crate) subtypes: &'static [&'static CStr],
    /// Whether `dats_get_ia_handle` converts a provider's IA pointer to the IA number (2.0). In 1.2 it returns the
    /// pointer unchanged.
    pub(crate) maps_back: bool,
}

/// DAT 1.2, `libdat.so.1`.
pub static V1: Api = Api {
    major: DAT_VERSION_MAJOR,
    minor: DAT_VERSION_MINOR,
    name: "libdat",
    not_implemented: DAT_NOT_IMPLEMENTED,
    inserted: &[],
    types: DAT_RETURN_TYPE_NAMES,
    subtypes: DAT_RETURN_SUBTYPE_NAMES,
    maps_back: false,
};

/// DAT 2.0, `libdat2.so.2`.
pub static V2: Api = Api {
    major: v2::DAT_VERSION_MAJOR,
    minor: v2::DAT_VERSION_MINOR,
    name: "libdat2",
    not_implemented: v2::DAT_NOT_IMPLEMENTED,
    // DAT 2.0 inserts DAT_INVALID_HANDLE_CSP before the first of these, and DAT_INVALID_STATE_SRQ_SHUTDOWN before the
    // second.
    inserted: &[DAT_INVALID_HANDLE1, DAT_PRIVILEGES_READ],
    types: v2::DAT_RETURN_TYPE_NAMES,
    subtypes: v2::DAT_RETURN_SUBTYPE_NAMES,
    maps_back: true,
};

static CURRENT: OnceLock<&'static Api> = OnceLock::new();

/// Sets the version of this library. Each exported function of `thunk/own` calls it first; only the first call has an
/// effect.
pub(crate) fn enter(api: &'static Api) {
    CURRENT.get_or_init(|| api);
}

/// The version that [`enter`] has set. Unit tests that do not call it get [`V1`].
pub(crate) fn current() -> &'static Api {
    CURRENT.get().copied().unwrap_or(&V1)
}

impl Api {
    /// Converts a subtype of 1.2 to this version.
    pub(crate) fn subtype(&self, of_1_2: DAT_RETURN_SUBTYPE) -> DAT_RETURN_SUBTYPE {
        of_1_2 + self.inserted.iter().filter(|at| of_1_2 >= **at).count() as DAT_RETURN_SUBTYPE
    }

    /// The version as written in dat.conf, such as `1.2`.
    pub(crate) fn version(&self) -> String {
        format!("{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_translated_subtype_keeps_its_name() {
        for api in [&V1, &V2] {
            for (at, name) in DAT_RETURN_SUBTYPE_NAMES.iter().enumerate() {
                let number = api.subtype(at as u32 + 1);
                assert_eq!(api.subtypes[number as usize - 1], *name, "{}", api.name);
            }
            assert_eq!(api.subtype(DAT_NO_SUBTYPE), DAT_NO_SUBTYPE);
        }
    }

    #[test]
    fn versions_agree_on_the_numbers_that_are_not_translated() {
        assert_eq!(V1.types, &V2.types[..V1.types.len()]);
        assert_eq!((DAT_INVALID_HANDLE_IA, DAT_RESOURCE_MEMORY), (v2::DAT_INVALID_HANDLE_IA, v2::DAT_RESOURCE_MEMORY));
        assert_eq!((V1.version().as_str(), V2.version().as_str()), ("1.2", "2.0"));
    }
}
