//! Errors and their texts.
#![forbid(unsafe_code)]

use dat_abi::DAT_EVENT_NUMBER;

use crate::dat::raw::Refusal;

/// Result of most functions of this program.
pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A call of libdat failed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A connect failed: the number of the event, and its description.
    #[error("no connection: {1}")]
    NotConnected(DAT_EVENT_NUMBER, &'static str),
    /// Any other error.
    #[error("{0}")]
    Message(String),
    /// A signal ended the program.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    /// Returns an error with this text.
    pub(crate) fn with_message<T>(words: impl Into<String>) -> Result<T> {
        Err(Failure::Message(words.into()))
    }

    /// Puts the place of the error before its text.
    pub(crate) fn at(self, place: &str) -> Self {
        match self {
            Failure::Interrupted => Failure::Interrupted,
            failure => Failure::Message(format!("{place}: {failure}")),
        }
    }
}
