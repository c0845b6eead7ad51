//! The error type of this crate, and the names of return codes.

use std::fmt;

use dat_abi::{DAT_COUNT, DAT_NOT_IMPLEMENTED, DAT_RETURN, DAT_SUCCESS, DAT_TYPE_MASK};

/// Error of the functions of this crate.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library, `libdat.so.1` or the one that the program names, cannot be loaded or lacks a function. Contains the
    /// message of the dynamic loader.
    #[error("cannot load libdat: {0}")]
    Library(String),
    /// A libdat function returned an error.
    #[error("{call}: {words}")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// The C return code.
        code: DAT_RETURN,
        /// Names of the return code from `dat_strerror`: type and subtype.
        words: CodeNames,
    },
    /// This crate has refused an argument or an operation, or a call of the operating system has failed. Contains the
    /// message.
    #[error("{0}")]
    Argument(String),
    /// The provider is not thread-safe. It cannot be used, because the types of this crate are `Send` and `Sync`.
    /// Contains the name of the adapter.
    #[error(
        "{0}: its provider is not thread-safe; write `threadsafe` in its line of dat.conf if the library is, or use another adapter"
    )]
    ThreadSafety(String),
}

/// Names of a return code's type and subtype, as `dat_strerror` returns them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CodeNames {
    /// Name of the type, such as `DAT_INVALID_HANDLE`.
    pub kind: String,
    /// Name of the subtype, such as `DAT_INVALID_HANDLE_EP`, or empty.
    pub detail: String,
}

impl fmt::Display for CodeNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail.is_empty() {
            true => f.write_str(&self.kind),
            false => write!(f, "{} ({})", self.kind, self.detail),
        }
    }
}

/// Result of the functions of this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Type of the return code, without class and subtype (`dat_abi::DAT_QUEUE_EMPTY`, ...), if a libdat function
    /// failed.
    pub fn kind(&self) -> Option<DAT_RETURN> {
        match self {
            Error::Call { code, .. } => Some(kind(*code)),
            _ => None,
        }
    }
}

/// Returns the type of a return code.
pub(crate) fn kind(code: DAT_RETURN) -> DAT_RETURN {
    // The constant DAT_NOT_IMPLEMENTED includes the class bits, unlike those of the other types.
    if code == DAT_NOT_IMPLEMENTED { code } else { code & DAT_TYPE_MASK }
}

/// Converts a number for C; `what` names it in the error.
pub(crate) fn count(what: &str, count: u32) -> Result<DAT_COUNT> {
    DAT_COUNT::try_from(count)
        .map_err(|_| Error::Argument(format!("the number of {what}, {count}, exceeds the maximum of DAT_COUNT")))
}

/// Whether the code means success.
pub(crate) fn is_success(code: DAT_RETURN) -> bool {
    kind(code) == DAT_SUCCESS
}

#[cfg(test)]
mod tests {
    use dat_abi::{DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP};

    use super::*;

    #[test]
    fn kind_of_an_error_omits_class_and_subtype() {
        let words = CodeNames { kind: "DAT_INVALID_HANDLE".into(), detail: "DAT_INVALID_HANDLE_EP".into() };
        let code = 0x8000_0000 | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE_EP;
        let error = Error::Call { call: "dat_ep_free", code, words };
        assert_eq!(error.kind(), Some(DAT_INVALID_HANDLE));
        assert_eq!(error.to_string(), "dat_ep_free: DAT_INVALID_HANDLE (DAT_INVALID_HANDLE_EP)");
        assert_eq!(Error::Argument("x".into()).kind(), None);
    }

    #[test]
    fn kind_of_not_implemented_keeps_its_class_bits() {
        assert_eq!(kind(DAT_NOT_IMPLEMENTED), DAT_NOT_IMPLEMENTED);
    }

    #[test]
    fn zero_is_success_and_an_error_code_is_not() {
        assert!(is_success(0));
        assert!(!is_success(0x8000_0000 | DAT_INVALID_HANDLE));
    }
}
