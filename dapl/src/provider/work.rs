//! Types of work requests and their completions.

use dat_abi::*;

/// Defines an enum in which each variant has a number and a name, and the function that returns the name.
macro_rules! named {
    (
        $(#[$about:meta])*
        pub enum $enum:ident { $($(#[$doc:meta])* $variant:ident = $number:expr, $name:literal;)* }
        $(#[$about_name:meta])*
        pub fn $function:ident
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        #[repr(u8)]
        pub enum $enum { $($(#[$doc])* $variant = $number as u8,)* }

        impl $enum {
            /// All variants, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            $(#[$about_name])*
            pub fn $function(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

/// A local memory segment, with the layout of `DAT_LMR_TRIPLET`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Segment {
    /// The `local_key` of the region.
    pub key: u32,
    /// Ignored; consumers leave it uninitialised.
    pub pad: u32,
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes; if it is 0, the other fields are ignored.
    pub length: u64,
}

/// The start of the remote memory of an RDMA or atomic operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Remote {
    /// The `remote_key` that the peer advertised.
    pub key: u32,
    /// Address of the first byte in the peer's process; its offset if the peer's memory is zero-based.
    pub address: u64,
}

/// Data that the completion of a work request returns unchanged. It contains all data that an event needs, so building
/// the event needs no lookup.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Token {
    /// The consumer's cookie.
    pub cookie: u64,
    /// Handle of the EP for the event.
    pub ep: usize,
    pub work: Work,
    /// Handle of the event's second object: the SRQ that a receive came from, or the RMR that is bound; otherwise 0.
    pub object: usize,
    /// Whether the work was posted with UNSIGNALLED: if it succeeds and is not solicited, its completion is queued
    /// without a notification.
    pub unsignalled: bool,
    /// Number of the post in the EP's trace; 0 if the post is not traced.
    pub post: u32,
}

named! {
    /// Kind of work, as distinguished by events and counters.
    pub enum Work {
        #[default]
        Send = 0, "send";
        Recv = 1, "recv";
        Read = 2, "rdma read";
        Write = 3, "rdma write";
        /// An RDMA write with immediate data.
        WriteImmediate = 4, "rdma write with immediate data";
        /// A receive from a shared queue.
        SharedRecv = 5, "shared recv";
        Bind = 6, "rmr bind";
        FetchAdd = 7, "fetch and add";
        CompareSwap = 8, "compare and swap";
    }
    /// Name of the kind of work in log lines.
    pub fn name
}

impl Work {
    /// Whether this kind is a receive, from the QP's own queue or an SRQ.
    pub fn is_recv(self) -> bool {
        matches!(self, Work::Recv | Work::SharedRecv)
    }

    /// Whether this kind is an atomic operation on the peer's memory.
    pub fn is_atomic(self) -> bool {
        matches!(self, Work::FetchAdd | Work::CompareSwap)
    }
}

/// Operation of a request. The variants after `Read` are extensions. A provider refuses an extension with
/// `ModelNotSupported` if its own [`Extensions`] or those of the peer lack the extension.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Op {
    Send {
        solicited: bool,
    },
    Write(Remote),
    Read(Remote),
    /// A send that also carries four bytes of immediate data for the completion of the receive.
    SendImmediate {
        data: u32,
        solicited: bool,
    },
    /// An RDMA write with immediate data. When its data are in place, it completes the peer's next receive. The receive
    /// completion contains the immediate data and the number of bytes written; the receive's memory stays unchanged.
    WriteImmediate {
        remote: Remote,
        data: u32,
        solicited: bool,
    },
    /// A send with invalidation: the peer's memory window with this remote key is unbound before the receive completes.
    SendInvalidate {
        key: u32,
        solicited: bool,
    },
    /// Adds `add` to eight bytes of the peer's memory, modulo 2^64. The old value is written to the local memory.
    FetchAdd {
        remote: Remote,
        add: u64,
    },
    /// Replaces eight bytes of the peer's memory by `swap` if they equal `compare`. The old value is written to the
    /// local memory.
    CompareSwap {
        remote: Remote,
        compare: u64,
        swap: u64,
    },
}

/// Length of the operand of an atomic operation, and the alignment of its remote address, in bytes.
pub const ATOMIC_SIZE: u64 = 8;

/// Operations that a provider supports in addition to sends, reads and writes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Extensions {
    /// `SendImmediate` and `WriteImmediate`.
    pub immediate: bool,
    /// `SendInvalidate`.
    pub invalidate: bool,
    /// `FetchAdd` and `CompareSwap`.
    pub atomics: bool,
}

impl Extensions {
    pub const ALL: Self = Extensions { immediate: true, invalidate: true, atomics: true };

    /// Whether a request with this operation is supported.
    pub fn support(self, op: Op) -> bool {
        match op {
            Op::Send { .. } | Op::Write(_) | Op::Read(_) => true,
            Op::SendImmediate { .. } | Op::WriteImmediate { .. } => self.immediate,
            Op::SendInvalidate { .. } => self.invalidate,
            Op::FetchAdd { .. } | Op::CompareSwap { .. } => self.atomics,
        }
    }
}

impl Op {
    /// Kind of work that the completion reports.
    pub fn work(self) -> Work {
        match self {
            Op::Send { .. } | Op::SendImmediate { .. } | Op::SendInvalidate { .. } => Work::Send,
            Op::Write(_) => Work::Write,
            Op::Read(_) => Work::Read,
            Op::WriteImmediate { .. } => Work::WriteImmediate,
            Op::FetchAdd { .. } => Work::FetchAdd,
            Op::CompareSwap { .. } => Work::CompareSwap,
        }
    }

    /// Remote address and key of an RDMA or atomic operation.
    pub fn remote(self) -> Option<Remote> {
        match self {
            Op::Send { .. } | Op::SendImmediate { .. } | Op::SendInvalidate { .. } => None,
            Op::Write(remote)
            | Op::Read(remote)
            | Op::WriteImmediate { remote, .. }
            | Op::FetchAdd { remote, .. }
            | Op::CompareSwap { remote, .. } => Some(remote),
        }
    }
}

/// A request: a send, an RDMA operation or an extension.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    pub op: Op,
    /// Local memory segments; copied before the post returns.
    pub segments: &'a [Segment],
    /// Returned with the completion.
    pub token: Token,
    /// Suppresses the completion of a successful request.
    pub suppress: bool,
    /// Delays the request until all earlier reads and atomic operations of this QP are complete.
    pub fence: bool,
    /// Whether a hazard slot of the calling thread contains the EP's address ([`crate::runtime::hazard`]). A provider
    /// that calls [`crate::runtime::handle::await_posts`] before it ends a registration then needs no reference on
    /// registrations that it uses only until this post returns.
    pub announced: bool,
}

named! {
    /// Completion status of a work request (spec/events 4.5). The discriminants are DAT's numbers.
    pub enum Status {
        #[default]
        Success = DAT_DTO_SUCCESS, "DAT_DTO_SUCCESS";
        Flushed = DAT_DTO_ERR_FLUSHED, "DAT_DTO_ERR_FLUSHED";
        LocalLength = DAT_DTO_ERR_LOCAL_LENGTH, "DAT_DTO_ERR_LOCAL_LENGTH";
        LocalEp = DAT_DTO_ERR_LOCAL_EP, "DAT_DTO_ERR_LOCAL_EP";
        LocalProtection = DAT_DTO_ERR_LOCAL_PROTECTION, "DAT_DTO_ERR_LOCAL_PROTECTION";
        BadResponse = DAT_DTO_ERR_BAD_RESPONSE, "DAT_DTO_ERR_BAD_RESPONSE";
        RemoteAccess = DAT_DTO_ERR_REMOTE_ACCESS, "DAT_DTO_ERR_REMOTE_ACCESS";
        RemoteResponder = DAT_DTO_ERR_REMOTE_RESPONDER, "DAT_DTO_ERR_REMOTE_RESPONDER";
        Transport = DAT_DTO_ERR_TRANSPORT, "DAT_DTO_ERR_TRANSPORT";
        ReceiverNotReady = DAT_DTO_ERR_RECEIVER_NOT_READY, "DAT_DTO_ERR_RECEIVER_NOT_READY";
        BindFailed = DAT_RMR_OPERATION_FAILED, "DAT_RMR_OPERATION_FAILED";
    }
    /// DAT's name of the status.
    pub fn dat_name
}

/// Completion of a work request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completion {
    /// Token of the work request.
    pub token: Token,
    pub status: Status,
    /// Number of bytes transferred; valid only for a success.
    pub bytes: u64,
    /// Whether this is a receive whose send carried SOLICITED_WAIT.
    pub solicited: bool,
    /// The operation of the peer that completed a receive.
    pub arrival: ReceivedOp,
    /// The immediate data or the invalidated key of the peer's operation. Meaningless for `ReceivedOp::Send`.
    pub value: u32,
}

/// Operations of the peer that complete a receive and lead to different events.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum ReceivedOp {
    /// A send without immediate data or invalidation. Also the value in completions of requests.
    #[default]
    Send,
    SendImmediate,
    WriteImmediate,
    SendInvalidate,
}

impl Completion {
    /// Immediate data of the peer's operation that completed a receive.
    pub fn immediate(&self) -> Option<u32> {
        matches!(self.arrival, ReceivedOp::SendImmediate | ReceivedOp::WriteImmediate).then_some(self.value)
    }

    /// Remote key of the memory window that the peer's send has invalidated.
    pub fn invalidated(&self) -> Option<u32> {
        (self.arrival == ReceivedOp::SendInvalidate).then_some(self.value)
    }

    /// Whether the completion wakes waiters (spec/events 1.3). All completions do, except a success that was posted
    /// UNSIGNALLED. With solicited notification, every receive is posted UNSIGNALLED, and `solicited` overrides that.
    #[inline(always)]
    pub fn is_notifying(&self) -> bool {
        !self.token.unsignalled || self.solicited || self.status != Status::Success
    }
}
