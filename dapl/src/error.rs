//! Errors of DAT calls, and their return codes.
//!
//! The functions of this crate and of the providers return [`Error`]. The entries convert it to a `DAT_RETURN`: those
//! of 1.2 by [`Error::code`], those of 2.0 by `v2::convert`. Each variant stands for a return type of the
//! specification, and its payload, if it has one, for the subtype, which is the discriminant of the payload. All codes
//! have the error class bit, except two that programs compare as whole values: `QUEUE_EMPTY`, and `CONN_QUAL_IN_USE` if
//! the provider reports that the qualifier is in use (spec/endpoints 6.1).
#![forbid(unsafe_code)]

use dat_abi::*;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// The object that the caller waited on was freed.
    #[error("the object was freed during the call")]
    Aborted,
    /// Another PSP of this IA listens on the qualifier.
    #[error("connection qualifier in use")]
    ConnQualInUse,
    /// The provider reports that another listener has the qualifier. The return code lacks the class bit.
    #[error("connection qualifier in use by another listener of this host")]
    ConnQualTaken,
    /// No qualifier is free, or the transport cannot listen on the requested one.
    #[error("no connection qualifier is free, or the transport cannot listen on the requested one")]
    ConnQualUnavailable,
    #[error("insufficient resources ({0:?}); an earlier log line may name the limit")]
    Exhausted(Resource),
    /// The provider failed. The cause was logged where it was detected.
    #[error("internal error of the provider; an earlier log line names the cause")]
    Internal,
    /// The handle is stale or of another kind, or its object does not fit the parameter, such as an EVD that does not
    /// serve the required stream.
    #[error("invalid handle: stale, of another kind, or of an object that does not fit the parameter ({0:?})")]
    InvalidHandle(Handle),
    /// Parameter n, counted from 1, is invalid.
    #[error("parameter {0} of the call is invalid")]
    InvalidParameter(u8),
    /// The call is not allowed in this state.
    #[error("the object's state does not allow the call ({0:?})")]
    InvalidState(State),
    /// The port of a common service point is in use. DAT 1.2 has no code for this.
    #[error("port in use")]
    PortInUse,
    /// The address family or type of a communicator is not supported. DAT 1.2 has no code for this.
    #[error("address family or type of the communicator is not supported")]
    CommNotSupported,
    /// The length of a memory registration is 0.
    #[error("a memory registration of 0 bytes; register 1 byte or more")]
    Length,
    /// The provider does not support this optional part of DAT.
    #[error("the provider does not support this part of DAT")]
    ModelNotSupported,
    /// The memory was registered or bound without the required rights.
    #[error("the memory was registered or bound without the required rights ({0:?})")]
    Privileges(AccessKind),
    /// The memory belongs to another protection zone, or lies outside the region of its context.
    #[error("the memory belongs to another protection zone, or lies outside the region of its context ({0:?})")]
    Protection(AccessKind),
    /// The operating system denied permission.
    #[error("permission denied")]
    PermissionDenied,
    /// The queue is empty. The return code lacks the class bit.
    #[error("queue empty")]
    QueueEmpty,
    #[error("queue full")]
    QueueFull,
    /// The timeout of a wait on an EVD expired.
    #[error("timeout expired")]
    TimedOut,
    /// The address is invalid or unreachable.
    #[error("invalid address ({0:?})")]
    InvalidAddress(AddressProblem),
    /// A signal interrupted the wait.
    #[error("interrupted by a signal")]
    Interrupted,
}

/// Subtypes of `INSUFFICIENT_RESOURCES`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Resource {
    Memory = DAT_RESOURCE_MEMORY as u8,
    Device = DAT_RESOURCE_DEVICE as u8,
    Ep = DAT_RESOURCE_TEP as u8,
    Evd = DAT_RESOURCE_TEVD as u8,
    ProtectionDomain = DAT_RESOURCE_PROTECTION_DOMAIN as u8,
    MemoryRegion = DAT_RESOURCE_MEMORY_REGION as u8,
    Srq = DAT_RESOURCE_SRQ as u8,
}

/// Subtypes of `INVALID_HANDLE`: the expected kind of object, or the position of the parameter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Handle {
    /// Subtype 0, used by EVD calls.
    Plain = 0,
    Ia = DAT_INVALID_HANDLE_IA as u8,
    Ep = DAT_INVALID_HANDLE_EP as u8,
    Lmr = DAT_INVALID_HANDLE_LMR as u8,
    Rmr = DAT_INVALID_HANDLE_RMR as u8,
    Pz = DAT_INVALID_HANDLE_PZ as u8,
    Psp = DAT_INVALID_HANDLE_PSP as u8,
    Rsp = DAT_INVALID_HANDLE_RSP as u8,
    Cr = DAT_INVALID_HANDLE_CR as u8,
    Cno = DAT_INVALID_HANDLE_CNO as u8,
    EvdCr = DAT_INVALID_HANDLE_EVD_CR as u8,
    EvdRequest = DAT_INVALID_HANDLE_EVD_REQUEST as u8,
    EvdRecv = DAT_INVALID_HANDLE_EVD_RECV as u8,
    EvdConn = DAT_INVALID_HANDLE_EVD_CONN as u8,
    EvdAsync = DAT_INVALID_HANDLE_EVD_ASYNC as u8,
    Srq = DAT_INVALID_HANDLE_SRQ as u8,
    /// `DAT_INVALID_HANDLE1`, used by calls that accept handles of any kind.
    Any = DAT_INVALID_HANDLE1 as u8,
    /// Common service point. Only 2.0 has a subtype for it.
    Csp = u8::MAX,
}

/// Subtypes of `INVALID_STATE`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum State {
    /// Subtype 0.
    Plain = 0,
    EpUnconnected = DAT_INVALID_STATE_EP_UNCONNECTED as u8,
    EpActivePending = DAT_INVALID_STATE_EP_ACTCONNPENDING as u8,
    EpPassivePending = DAT_INVALID_STATE_EP_PASSCONNPENDING as u8,
    EpTentativePending = DAT_INVALID_STATE_EP_TENTCONNPENDING as u8,
    EpConnected = DAT_INVALID_STATE_EP_CONNECTED as u8,
    EpDisconnected = DAT_INVALID_STATE_EP_DISCONNECTED as u8,
    EpReserved = DAT_INVALID_STATE_EP_RESERVED as u8,
    EpCompletionPending = DAT_INVALID_STATE_EP_COMPLPENDING as u8,
    EpDisconnectPending = DAT_INVALID_STATE_EP_DISCPENDING as u8,
    EpNotReady = DAT_INVALID_STATE_EP_NOTREADY as u8,
    CnoInUse = DAT_INVALID_STATE_CNO_IN_USE as u8,
    EvdInUse = DAT_INVALID_STATE_EVD_IN_USE as u8,
    EvdWaiter = DAT_INVALID_STATE_EVD_WAITER as u8,
    EvdUnwaitable = DAT_INVALID_STATE_EVD_UNWAITABLE as u8,
    EvdAsync = DAT_INVALID_STATE_EVD_ASYNC as u8,
    EvdConfigNotify = DAT_INVALID_STATE_EVD_CONFIG_NOTIFY as u8,
    EvdConfigSolicited = DAT_INVALID_STATE_EVD_CONFIG_SOLICITED as u8,
    IaInUse = DAT_INVALID_STATE_IA_IN_USE as u8,
    LmrInUse = DAT_INVALID_STATE_LMR_IN_USE as u8,
    PzInUse = DAT_INVALID_STATE_PZ_IN_USE as u8,
    SrqInUse = DAT_INVALID_STATE_SRQ_IN_USE as u8,
}

/// Subtypes of `PRIVILEGES_VIOLATION`; those of `PROTECTION_VIOLATION` have the same order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum AccessKind {
    Read = DAT_PRIVILEGES_READ as u8,
    Write = DAT_PRIVILEGES_WRITE as u8,
}

/// Subtypes of `INVALID_ADDRESS`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum AddressProblem {
    Unreachable = DAT_INVALID_ADDRESS_UNREACHABLE as u8,
    Malformed = DAT_INVALID_ADDRESS_MALFORMED as u8,
}

impl Error {
    /// The `DAT_RETURN` of this error in 1.2 (spec/registry 9.1).
    pub fn code(self) -> DAT_RETURN {
        let (kind, subtype) = match self {
            Error::ConnQualTaken => return DAT_CONN_QUAL_IN_USE,
            Error::QueueEmpty => return DAT_QUEUE_EMPTY,
            Error::Aborted => (DAT_ABORT, 0),
            Error::ConnQualInUse | Error::PortInUse => (DAT_CONN_QUAL_IN_USE, 0),
            Error::ConnQualUnavailable => (DAT_CONN_QUAL_UNAVAILABLE, 0),
            Error::Exhausted(what) => (DAT_INSUFFICIENT_RESOURCES, what as u32),
            Error::Internal => (DAT_INTERNAL_ERROR, 0),
            Error::InvalidHandle(Handle::Csp) => (DAT_INVALID_HANDLE, DAT_INVALID_HANDLE1),
            Error::InvalidHandle(what) => (DAT_INVALID_HANDLE, what as u32),
            Error::InvalidParameter(n) => (DAT_INVALID_PARAMETER, argument(n)),
            Error::InvalidState(what) => (DAT_INVALID_STATE, what as u32),
            Error::Length => (DAT_LENGTH_ERROR, 0),
            Error::ModelNotSupported | Error::CommNotSupported => (DAT_MODEL_NOT_SUPPORTED, 0),
            Error::Privileges(what) => (DAT_PRIVILEGES_VIOLATION, what as u32),
            Error::Protection(what) => {
                (DAT_PROTECTION_VIOLATION, what as u32 + DAT_PROTECTION_READ - DAT_PRIVILEGES_READ)
            }
            Error::PermissionDenied => (DAT_PRIVILEGES_VIOLATION, 0),
            Error::QueueFull => (DAT_QUEUE_FULL, 0),
            Error::TimedOut => (DAT_TIMEOUT_EXPIRED, 0),
            Error::InvalidAddress(what) => (DAT_INVALID_ADDRESS, what as u32),
            Error::Interrupted => (DAT_INTERRUPTED_CALL, DAT_SUB_INTERRUPTED),
        };
        DAT_CLASS_ERROR | kind | subtype
    }
}

/// Returns `DAT_INVALID_ARGn`, or 0 for parameters after the tenth, which have no subtype.
fn argument(n: u8) -> DAT_RETURN_SUBTYPE {
    match n {
        1..=10 => DAT_INVALID_ARG1 + u32::from(n) - 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_empty_and_qual_taken_lack_the_class_bit() {
        assert_eq!(Error::QueueEmpty.code(), 0x000D_0000);
        assert_eq!(Error::ConnQualTaken.code(), 0x0002_0000);
        assert_eq!(Error::ConnQualInUse.code(), 0x8002_0000);
        assert_eq!(Error::InvalidHandle(Handle::Ia).code(), 0x8005_000B);
        assert_eq!(Error::InvalidParameter(7).code(), 0x8006_002A);
        assert_eq!(Error::InvalidParameter(11).code(), 0x8006_0000);
    }

    #[test]
    fn violations_of_privileges_and_protection_have_their_own_subtypes() {
        assert_eq!(Error::Privileges(AccessKind::Write).code(), 0x800B_0058);
        assert_eq!(Error::Protection(AccessKind::Write).code(), 0x800C_005C);
        assert_eq!(Error::InvalidHandle(Handle::Csp).code(), Error::InvalidHandle(Handle::Any).code());
    }
}
