//! Names of all types and subtypes of `DAT_RETURN` of a version, from `dat_abi`.
//!
//! `thunk` implements `dat_strerror` with this module. The texts are the names of the C constants.
#![forbid(unsafe_code)]

use std::ffi::CStr;

use dat_abi::*;

use crate::api::Api;

/// Names of the type and the subtype of a return code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CodeNames {
    /// Name of the type.
    pub major: &'static CStr,
    /// Name of the subtype; empty for none.
    pub minor: &'static CStr,
    /// Whether both names are known. An unknown name is a placeholder.
    pub known: bool,
}

/// Looks a return code up. Class bits are ignored. Type and subtype are looked up independently.
pub fn look_up(api: &Api, value: DAT_RETURN) -> CodeNames {
    let major = match value & DAT_TYPE_MASK {
        // The constant DAT_NOT_IMPLEMENTED of 1.2 includes class bits, unlike the other types.
        kind if kind == api.not_implemented & DAT_TYPE_MASK => Some(&c"DAT_NOT_IMPLEMENTED"),
        kind => api.types.get((kind >> 16) as usize),
    };
    let minor = match value & DAT_SUBTYPE_MASK {
        DAT_NO_SUBTYPE => Some(&c""),
        subtype => api.subtypes.get(subtype as usize - 1),
    };
    CodeNames {
        major: major.copied().unwrap_or(c"unknown error"),
        minor: minor.copied().unwrap_or(c"unknown minor error"),
        known: major.is_some() && minor.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{V1, V2};

    fn pair(value: DAT_RETURN) -> (&'static str, &'static str, bool) {
        pair_of(&V1, value)
    }

    fn pair_of(api: &Api, value: DAT_RETURN) -> (&'static str, &'static str, bool) {
        let CodeNames { major, minor, known } = look_up(api, value);
        (major.to_str().unwrap(), minor.to_str().unwrap(), known)
    }

    #[test]
    fn return_codes_have_the_names_of_their_constants() {
        let error = DAT_CLASS_ERROR;
        assert_eq!(pair(DAT_SUCCESS), ("DAT_SUCCESS", "", true));
        assert_eq!(
            pair(error | DAT_INVALID_PARAMETER | DAT_INVALID_ARG1),
            ("DAT_INVALID_PARAMETER", "DAT_INVALID_ARG1", true)
        );
        assert_eq!(
            pair(error | DAT_PROVIDER_NOT_FOUND | DAT_THREAD_SAFETY_NOT_FOUND),
            ("DAT_PROVIDER_NOT_FOUND", "DAT_THREAD_SAFETY_NOT_FOUND", true)
        );
        assert_eq!(pair(DAT_INVALID_HANDLE_EVD_RECV).1, "DAT_INVALID_HANDLE_EVD_RECV");
        assert_eq!(pair(DAT_CONN_QUAL_UNAVAILABLE).0, "DAT_CONN_QUAL_UNAVAILABLE");
        assert_eq!(pair(DAT_RESOURCE_SRQ).1, "DAT_RESOURCE_SRQ");
        assert_eq!(pair(DAT_INVALID_STATE_SRQ_IN_USE).1, "DAT_INVALID_STATE_SRQ_IN_USE");
        assert_eq!(pair(DAT_QUEUE_EMPTY), pair(DAT_CLASS_WARNING | DAT_QUEUE_EMPTY));
    }

    #[test]
    fn not_implemented_has_a_name_with_and_without_its_class_bits() {
        assert_eq!(pair(DAT_NOT_IMPLEMENTED), ("DAT_NOT_IMPLEMENTED", "", true));
        assert_eq!(pair(DAT_NOT_IMPLEMENTED & DAT_TYPE_MASK), ("DAT_NOT_IMPLEMENTED", "", true));
    }

    #[test]
    fn return_codes_of_2_0_have_their_own_names() {
        assert_eq!(pair_of(&V2, DAT_CLASS_ERROR | v2::DAT_COMM_NOT_SUPPORTED).0, "DAT_COMM_NOT_SUPPORTED");
        assert_eq!(pair_of(&V2, v2::DAT_NOT_IMPLEMENTED), ("DAT_NOT_IMPLEMENTED", "", true));
        assert_eq!(pair_of(&V2, v2::DAT_INVALID_HANDLE_CSP).1, "DAT_INVALID_HANDLE_CSP");
        assert_eq!(pair_of(&V2, v2::DAT_THREAD_SAFETY_NOT_FOUND).1, "DAT_THREAD_SAFETY_NOT_FOUND");
        assert_eq!(pair_of(&V2, v2::DAT_INVALID_ARG1).1, "DAT_INVALID_ARG1");
    }

    #[test]
    fn unknown_codes_are_marked_and_the_known_part_is_named() {
        assert_eq!(pair(0x8015_0024), ("unknown error", "DAT_INVALID_ARG1", false));
        assert_eq!(pair(0x8006_0066), ("DAT_INVALID_PARAMETER", "unknown minor error", false));
        assert_eq!(pair(0x1fff_ffff), ("unknown error", "unknown minor error", false));
    }

    #[test]
    fn return_code_names_of_1_2_are_distinct() {
        let names: std::collections::HashSet<_> =
            DAT_RETURN_TYPE_NAMES.iter().chain(DAT_RETURN_SUBTYPE_NAMES).collect();
        assert_eq!(names.len(), DAT_RETURN_TYPE_NAMES.len() + DAT_RETURN_SUBTYPE_NAMES.len());
    }
}
