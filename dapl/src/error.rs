//! Errors of DAT calls, and their return codes.
//!
//! The functions of this crate and of the providers return [`Error`]. The entries convert it to a `DAT_RETURN`: those
//! of 1.2 by [`Error::code`], those of 2.0 by `v2::convert`. Each variant stands for a return type of the
//! specification, and its payload, if it has one, for the subtype. All codes have the error class bit, except two that
//! programs compare as whole values: `QUEUE_EMPTY`, and `CONN_QUAL_IN_USE` if the provider reports that the qualifier
//! is in use (spec/endpoints 6.1).
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
pub enum Resource {
    Memory,
    Device,
    Ep,
    Evd,
    ProtectionDomain,
    MemoryRegion,
    Credits,
    Srq,
}

/// Subtypes of `INVALID_HANDLE`: the expected kind of object, or the position of the parameter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Handle {
    /// Subtype 0, used by EVD calls.
    Plain,
    Ia,
    Ep,
    Lmr,
    Rmr,
    Pz,
    Psp,
    Rsp,
    Cr,
    Cno,
    EvdCr,
    EvdRequest,
    EvdRecv,
    EvdConn,
    EvdAsync,
    Srq,
    /// Common service point (2.0).
    Csp,
    /// `DAT_INVALID_HANDLE1`, used by calls that accept handles of any kind.
    Any,
}

/// Subtypes of `INVALID_STATE`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// Subtype 0.
    Plain,
    EpUnconnected,
    EpActivePending,
    EpPassivePending,
    EpTentativePending,
    EpConnected,
    EpDisconnected,
    EpReserved,
    EpCompletionPending,
    EpDisconnectPending,
    EpNotReady,
    EpUnconfigured,
    EpUnconfiguredReserved,
    EpUnconfiguredPassive,
    EpUnconfiguredTentative,
    CnoInUse,
    CnoDead,
    EvdInUse,
    EvdWaiter,
    EvdUnwaitable,
    EvdAsync,
    EvdConfigNotify,
    EvdConfigSolicited,
    IaInUse,
    LmrInUse,
    PzInUse,
    SrqInUse,
    SrqError,
}

/// Subtypes of `PRIVILEGES_VIOLATION` and `PROTECTION_VIOLATION`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessKind {
    Read,
    Write,
    RdmaRead,
    RdmaWrite,
}

/// Subtypes of `INVALID_ADDRESS`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AddressProblem {
    Unsupported,
    Unreachable,
    Malformed,
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
            Error::Exhausted(what) => (DAT_INSUFFICIENT_RESOURCES, what.subtype()),
            Error::Internal => (DAT_INTERNAL_ERROR, 0),
            Error::InvalidHandle(what) => (DAT_INVALID_HANDLE, what.subtype()),
            Error::InvalidParameter(n) => (DAT_INVALID_PARAMETER, argument(n)),
            Error::InvalidState(what) => (DAT_INVALID_STATE, what.subtype()),
            Error::Length => (DAT_LENGTH_ERROR, 0),
            Error::ModelNotSupported | Error::CommNotSupported => (DAT_MODEL_NOT_SUPPORTED, 0),
            Error::Privileges(what) => (DAT_PRIVILEGES_VIOLATION, what.privileges()),
            Error::Protection(what) => (DAT_PROTECTION_VIOLATION, what.protection()),
            Error::PermissionDenied => (DAT_PRIVILEGES_VIOLATION, 0),
            Error::QueueFull => (DAT_QUEUE_FULL, 0),
            Error::TimedOut => (DAT_TIMEOUT_EXPIRED, 0),
            Error::InvalidAddress(what) => (DAT_INVALID_ADDRESS, what.subtype()),
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

impl Resource {
    fn subtype(self) -> DAT_RETURN_SUBTYPE {
        match self {
            Resource::Memory => DAT_RESOURCE_MEMORY,
            Resource::Device => DAT_RESOURCE_DEVICE,
            Resource::Ep => DAT_RESOURCE_TEP,
            Resource::Evd => DAT_RESOURCE_TEVD,
            Resource::ProtectionDomain => DAT_RESOURCE_PROTECTION_DOMAIN,
            Resource::MemoryRegion => DAT_RESOURCE_MEMORY_REGION,
            Resource::Credits => DAT_RESOURCE_CREDITS,
            Resource::Srq => DAT_RESOURCE_SRQ,
        }
    }
}

impl Handle {
    fn subtype(self) -> DAT_RETURN_SUBTYPE {
        match self {
            Handle::Plain => 0,
            Handle::Ia => DAT_INVALID_HANDLE_IA,
            Handle::Ep => DAT_INVALID_HANDLE_EP,
            Handle::Lmr => DAT_INVALID_HANDLE_LMR,
            Handle::Rmr => DAT_INVALID_HANDLE_RMR,
            Handle::Pz => DAT_INVALID_HANDLE_PZ,
            Handle::Psp => DAT_INVALID_HANDLE_PSP,
            Handle::Rsp => DAT_INVALID_HANDLE_RSP,
            Handle::Cr => DAT_INVALID_HANDLE_CR,
            Handle::Cno => DAT_INVALID_HANDLE_CNO,
            Handle::EvdCr => DAT_INVALID_HANDLE_EVD_CR,
            Handle::EvdRequest => DAT_INVALID_HANDLE_EVD_REQUEST,
            Handle::EvdRecv => DAT_INVALID_HANDLE_EVD_RECV,
            Handle::EvdConn => DAT_INVALID_HANDLE_EVD_CONN,
            Handle::EvdAsync => DAT_INVALID_HANDLE_EVD_ASYNC,
            Handle::Srq => DAT_INVALID_HANDLE_SRQ,
            Handle::Any | Handle::Csp => DAT_INVALID_HANDLE1,
        }
    }
}

impl State {
    fn subtype(self) -> DAT_RETURN_SUBTYPE {
        match self {
            State::Plain => 0,
            State::EpUnconnected => DAT_INVALID_STATE_EP_UNCONNECTED,
            State::EpActivePending => DAT_INVALID_STATE_EP_ACTCONNPENDING,
            State::EpPassivePending => DAT_INVALID_STATE_EP_PASSCONNPENDING,
            State::EpTentativePending => DAT_INVALID_STATE_EP_TENTCONNPENDING,
            State::EpConnected => DAT_INVALID_STATE_EP_CONNECTED,
            State::EpDisconnected => DAT_INVALID_STATE_EP_DISCONNECTED,
            State::EpReserved => DAT_INVALID_STATE_EP_RESERVED,
            State::EpCompletionPending => DAT_INVALID_STATE_EP_COMPLPENDING,
            State::EpDisconnectPending => DAT_INVALID_STATE_EP_DISCPENDING,
            State::EpNotReady => DAT_INVALID_STATE_EP_NOTREADY,
            State::EpUnconfigured => DAT_INVALID_STATE_EP_UNCONFIGURED,
            State::EpUnconfiguredReserved => DAT_INVALID_STATE_EP_UNCONFRESERVED,
            State::EpUnconfiguredPassive => DAT_INVALID_STATE_EP_UNCONFPASSIVE,
            State::EpUnconfiguredTentative => DAT_INVALID_STATE_EP_UNCONFTENTATIVE,
            State::CnoInUse => DAT_INVALID_STATE_CNO_IN_USE,
            State::CnoDead => DAT_INVALID_STATE_CNO_DEAD,
            State::EvdInUse => DAT_INVALID_STATE_EVD_IN_USE,
            State::EvdWaiter => DAT_INVALID_STATE_EVD_WAITER,
            State::EvdUnwaitable => DAT_INVALID_STATE_EVD_UNWAITABLE,
            State::EvdAsync => DAT_INVALID_STATE_EVD_ASYNC,
            State::EvdConfigNotify => DAT_INVALID_STATE_EVD_CONFIG_NOTIFY,
            State::EvdConfigSolicited => DAT_INVALID_STATE_EVD_CONFIG_SOLICITED,
            State::IaInUse => DAT_INVALID_STATE_IA_IN_USE,
            State::LmrInUse => DAT_INVALID_STATE_LMR_IN_USE,
            State::PzInUse => DAT_INVALID_STATE_PZ_IN_USE,
            State::SrqInUse => DAT_INVALID_STATE_SRQ_IN_USE,
            State::SrqError => DAT_INVALID_STATE_SRQ_ERROR,
        }
    }
}

impl AccessKind {
    fn privileges(self) -> DAT_RETURN_SUBTYPE {
        match self {
            AccessKind::Read => DAT_PRIVILEGES_READ,
            AccessKind::Write => DAT_PRIVILEGES_WRITE,
            AccessKind::RdmaRead => DAT_PRIVILEGES_RDMA_READ,
            AccessKind::RdmaWrite => DAT_PRIVILEGES_RDMA_WRITE,
        }
    }

    fn protection(self) -> DAT_RETURN_SUBTYPE {
        match self {
            AccessKind::Read => DAT_PROTECTION_READ,
            AccessKind::Write => DAT_PROTECTION_WRITE,
            AccessKind::RdmaRead => DAT_PROTECTION_RDMA_READ,
            AccessKind::RdmaWrite => DAT_PROTECTION_RDMA_WRITE,
        }
    }
}

impl AddressProblem {
    fn subtype(self) -> DAT_RETURN_SUBTYPE {
        match self {
            AddressProblem::Unsupported => DAT_INVALID_ADDRESS_UNSUPPORTED,
            AddressProblem::Unreachable => DAT_INVALID_ADDRESS_UNREACHABLE,
            AddressProblem::Malformed => DAT_INVALID_ADDRESS_MALFORMED,
        }
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
}
