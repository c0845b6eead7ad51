//! Work requests and what becomes of them.
//!
//! Types only.

/// A piece of local memory, laid out as `DAT_LMR_TRIPLET`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Segment {
    /// The `local_key` of the region.
    pub key: u32,
    /// Never looked at; consumers leave it uninitialised.
    pub pad: u32,
    /// First byte.
    pub address: u64,
    /// Bytes; with 0 the other fields are not looked at.
    pub length: u64,
}

/// A piece of the peer's memory: where an RDMA operation begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Remote {
    /// The `remote_key` that the peer gave out.
    pub key: u32,
    /// First byte, in the peer's addresses.
    pub address: u64,
}

/// Data that the completion of a work request returns unchanged: everything that an event needs, so no lookup is needed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Token {
    /// The consumer's.
    pub cookie: u64,
    /// Handle of the EP for the event.
    pub ep: usize,
    pub work: Work,
    /// Handle of the other object concerned: the SRQ a receive came from, the RMR that is bound; else 0.
    pub object: usize,
    /// Posted with UNSIGNALLED: the completion is queued without a notification.
    pub unsignalled: bool,
    /// Its number in the EP's trace; 0: not traced.
    pub post: u32,
}

/// Kinds of work, as far as their events and counters differ.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum Work {
    #[default]
    Send,
    Recv,
    Read,
    Write,
    /// A receive from a shared queue.
    SharedRecv,
    Bind,
}

impl Work {
    /// Whether it is a receive, from the QP's own queue or an SRQ.
    pub fn is_recv(self) -> bool {
        matches!(self, Work::Recv | Work::SharedRecv)
    }
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Op {
    Send { solicited: bool },
    Write(Remote),
    Read(Remote),
}

impl Op {
    /// Kind of work for the completion.
    pub fn work(self) -> Work {
        match self {
            Op::Send { .. } => Work::Send,
            Op::Write(_) => Work::Write,
            Op::Read(_) => Work::Read,
        }
    }

    /// Remote address and key of an RDMA operation.
    pub fn remote(self) -> Option<Remote> {
        match self {
            Op::Send { .. } => None,
            Op::Write(remote) | Op::Read(remote) => Some(remote),
        }
    }
}

/// A request: send, RDMA write or RDMA read.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    pub op: Op,
    /// Local memory; copied before the post returns.
    pub segments: &'a [Segment],
    /// Returned with the completion.
    pub token: Token,
    /// No completion if it succeeds.
    pub suppress: bool,
    /// Starts only after all earlier reads of this QP are complete.
    pub fence: bool,
    /// A slot of this thread names the EP ([`crate::runtime::hazard`]). A provider that ends registrations behind
    /// [`crate::runtime::handle::await_posts`] needs no reference on those that it uses before this post returns.
    pub announced: bool,
}

/// Completion status of a work request (spec/events 4.5).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum Status {
    #[default]
    Success,
    Flushed,
    LocalLength,
    LocalEp,
    LocalProtection,
    BadResponse,
    RemoteAccess,
    RemoteResponder,
    Transport,
    ReceiverNotReady,
    BindFailed,
}

/// The end of a work request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completion {
    /// Token of the post.
    pub token: Token,
    pub status: Status,
    /// Bytes moved, on success.
    pub bytes: u64,
    /// A receive whose send carried SOLICITED_WAIT.
    pub solicited: bool,
}

impl Completion {
    /// Whether it releases waiters (spec/events 1.3): all do, but a success that was posted UNSIGNALLED. A
    /// receive on an EP that waits for solicited messages is posted so, and `solicited` undoes it.
    #[inline(always)]
    pub fn is_notifying(&self) -> bool {
        !self.token.unsignalled || self.solicited || self.status != Status::Success
    }
}
