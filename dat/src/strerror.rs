//! Numbers -> words: the names of all types and subtypes of `DAT_RETURN`.
//!
//! `thunk` answers `dat_strerror` from it. The words are the symbols' own names, static and never changed.
#![forbid(unsafe_code)]

use std::ffi::CStr;

use dat_abi::{DAT_NOT_IMPLEMENTED, DAT_RETURN, DAT_SUBTYPE_MASK, DAT_TYPE_MASK};

/// The words for a result.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Words {
    /// Name of the type.
    pub major: &'static CStr,
    /// Name of the subtype; empty for none.
    pub minor: &'static CStr,
    /// Whether both are names, and not a way of saying that there is none.
    pub known: bool,
}

/// Looks a result up. Class bits do not matter, nor whether type and subtype belong together.
pub fn words(value: DAT_RETURN) -> Words {
    let major = match value & DAT_TYPE_MASK {
        // Its own number swallows the class bits.
        kind if kind == DAT_NOT_IMPLEMENTED & DAT_TYPE_MASK => Some(&c"DAT_NOT_IMPLEMENTED"),
        kind => TYPES.get((kind >> 16) as usize),
    };
    let minor = SUBTYPES.get((value & DAT_SUBTYPE_MASK) as usize);
    Words {
        major: major.copied().unwrap_or(c"unknown error"),
        minor: minor.copied().unwrap_or(c"unknown minor error"),
        known: major.is_some() && minor.is_some(),
    }
}

/// By the number in bits 16 to 29.
const TYPES: [&CStr; 21] = [
    c"DAT_SUCCESS",
    c"DAT_ABORT",
    c"DAT_CONN_QUAL_IN_USE",
    c"DAT_INSUFFICIENT_RESOURCES",
    c"DAT_INTERNAL_ERROR",
    c"DAT_INVALID_HANDLE",
    c"DAT_INVALID_PARAMETER",
    c"DAT_INVALID_STATE",
    c"DAT_LENGTH_ERROR",
    c"DAT_MODEL_NOT_SUPPORTED",
    c"DAT_PROVIDER_NOT_FOUND",
    c"DAT_PRIVILEGES_VIOLATION",
    c"DAT_PROTECTION_VIOLATION",
    c"DAT_QUEUE_EMPTY",
    c"DAT_QUEUE_FULL",
    c"DAT_TIMEOUT_EXPIRED",
    c"DAT_PROVIDER_ALREADY_REGISTERED",
    c"DAT_PROVIDER_IN_USE",
    c"DAT_INVALID_ADDRESS",
    c"DAT_INTERRUPTED_CALL",
    c"DAT_CONN_QUAL_UNAVAILABLE",
];

/// By the number in bits 0 to 15.
const SUBTYPES: [&CStr; 102] = [
    c"",
    c"DAT_SUB_INTERRUPTED",
    c"DAT_RESOURCE_MEMORY",
    c"DAT_RESOURCE_DEVICE",
    c"DAT_RESOURCE_TEP",
    c"DAT_RESOURCE_TEVD",
    c"DAT_RESOURCE_PROTECTION_DOMAIN",
    c"DAT_RESOURCE_MEMORY_REGION",
    c"DAT_RESOURCE_ERROR_HANDLER",
    c"DAT_RESOURCE_CREDITS",
    c"DAT_RESOURCE_SRQ",
    c"DAT_INVALID_HANDLE_IA",
    c"DAT_INVALID_HANDLE_EP",
    c"DAT_INVALID_HANDLE_LMR",
    c"DAT_INVALID_HANDLE_RMR",
    c"DAT_INVALID_HANDLE_PZ",
    c"DAT_INVALID_HANDLE_PSP",
    c"DAT_INVALID_HANDLE_RSP",
    c"DAT_INVALID_HANDLE_CR",
    c"DAT_INVALID_HANDLE_CNO",
    c"DAT_INVALID_HANDLE_EVD_CR",
    c"DAT_INVALID_HANDLE_EVD_REQUEST",
    c"DAT_INVALID_HANDLE_EVD_RECV",
    c"DAT_INVALID_HANDLE_EVD_CONN",
    c"DAT_INVALID_HANDLE_EVD_ASYNC",
    c"DAT_INVALID_HANDLE_SRQ",
    c"DAT_INVALID_HANDLE1",
    c"DAT_INVALID_HANDLE2",
    c"DAT_INVALID_HANDLE3",
    c"DAT_INVALID_HANDLE4",
    c"DAT_INVALID_HANDLE5",
    c"DAT_INVALID_HANDLE6",
    c"DAT_INVALID_HANDLE7",
    c"DAT_INVALID_HANDLE8",
    c"DAT_INVALID_HANDLE9",
    c"DAT_INVALID_HANDLE10",
    c"DAT_INVALID_ARG1",
    c"DAT_INVALID_ARG2",
    c"DAT_INVALID_ARG3",
    c"DAT_INVALID_ARG4",
    c"DAT_INVALID_ARG5",
    c"DAT_INVALID_ARG6",
    c"DAT_INVALID_ARG7",
    c"DAT_INVALID_ARG8",
    c"DAT_INVALID_ARG9",
    c"DAT_INVALID_ARG10",
    c"DAT_INVALID_STATE_EP_UNCONNECTED",
    c"DAT_INVALID_STATE_EP_ACTCONNPENDING",
    c"DAT_INVALID_STATE_EP_PASSCONNPENDING",
    c"DAT_INVALID_STATE_EP_TENTCONNPENDING",
    c"DAT_INVALID_STATE_EP_CONNECTED",
    c"DAT_INVALID_STATE_EP_DISCONNECTED",
    c"DAT_INVALID_STATE_EP_RESERVED",
    c"DAT_INVALID_STATE_EP_COMPLPENDING",
    c"DAT_INVALID_STATE_EP_DISCPENDING",
    c"DAT_INVALID_STATE_EP_PROVIDERCONTROL",
    c"DAT_INVALID_STATE_EP_NOTREADY",
    c"DAT_INVALID_STATE_EP_RECV_WATERMARK",
    c"DAT_INVALID_STATE_EP_PZ",
    c"DAT_INVALID_STATE_EP_EVD_REQUEST",
    c"DAT_INVALID_STATE_EP_EVD_RECV",
    c"DAT_INVALID_STATE_EP_EVD_CONNECT",
    c"DAT_INVALID_STATE_EP_UNCONFIGURED",
    c"DAT_INVALID_STATE_EP_UNCONFRESERVED",
    c"DAT_INVALID_STATE_EP_UNCONFPASSIVE",
    c"DAT_INVALID_STATE_EP_UNCONFTENTATIVE",
    c"DAT_INVALID_STATE_CNO_IN_USE",
    c"DAT_INVALID_STATE_CNO_DEAD",
    c"DAT_INVALID_STATE_EVD_OPEN",
    c"DAT_INVALID_STATE_EVD_ENABLED",
    c"DAT_INVALID_STATE_EVD_DISABLED",
    c"DAT_INVALID_STATE_EVD_WAITABLE",
    c"DAT_INVALID_STATE_EVD_UNWAITABLE",
    c"DAT_INVALID_STATE_EVD_IN_USE",
    c"DAT_INVALID_STATE_EVD_CONFIG_NOTIFY",
    c"DAT_INVALID_STATE_EVD_CONFIG_SOLICITED",
    c"DAT_INVALID_STATE_EVD_CONFIG_THRESHOLD",
    c"DAT_INVALID_STATE_EVD_WAITER",
    c"DAT_INVALID_STATE_EVD_ASYNC",
    c"DAT_INVALID_STATE_IA_IN_USE",
    c"DAT_INVALID_STATE_LMR_IN_USE",
    c"DAT_INVALID_STATE_LMR_FREE",
    c"DAT_INVALID_STATE_PZ_IN_USE",
    c"DAT_INVALID_STATE_PZ_FREE",
    c"DAT_INVALID_STATE_SRQ_OPERATIONAL",
    c"DAT_INVALID_STATE_SRQ_ERROR",
    c"DAT_INVALID_STATE_SRQ_IN_USE",
    c"DAT_PRIVILEGES_READ",
    c"DAT_PRIVILEGES_WRITE",
    c"DAT_PRIVILEGES_RDMA_READ",
    c"DAT_PRIVILEGES_RDMA_WRITE",
    c"DAT_PROTECTION_READ",
    c"DAT_PROTECTION_WRITE",
    c"DAT_PROTECTION_RDMA_READ",
    c"DAT_PROTECTION_RDMA_WRITE",
    c"DAT_INVALID_ADDRESS_UNSUPPORTED",
    c"DAT_INVALID_ADDRESS_UNREACHABLE",
    c"DAT_INVALID_ADDRESS_MALFORMED",
    c"DAT_NAME_NOT_REGISTERED",
    c"DAT_MAJOR_NOT_FOUND",
    c"DAT_MINOR_NOT_FOUND",
    c"DAT_THREAD_SAFETY_NOT_FOUND",
];

#[cfg(test)]
mod tests {
    use dat_abi::*;

    use super::*;

    fn pair(value: DAT_RETURN) -> (&'static str, &'static str, bool) {
        let Words { major, minor, known } = words(value);
        (major.to_str().unwrap(), minor.to_str().unwrap(), known)
    }

    #[test]
    fn every_number_has_the_name_it_has_in_the_header() {
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
    fn what_is_unknown_is_said_and_the_other_half_still_named() {
        assert_eq!(pair(0x8015_0024), ("unknown error", "DAT_INVALID_ARG1", false));
        assert_eq!(pair(0x8006_0066), ("DAT_INVALID_PARAMETER", "unknown minor error", false));
        assert_eq!(pair(0x1fff_ffff), ("unknown error", "unknown minor error", false));
    }

    #[test]
    fn no_two_numbers_share_a_name() {
        let names: std::collections::HashSet<_> = TYPES.iter().chain(&SUBTYPES).collect();
        assert_eq!(names.len(), TYPES.len() + SUBTYPES.len());
    }
}
