//! Helpers for the transfer cases: transfers of any kind over connections with any configuration, and checks of ended
//! connections.
#![forbid(unsafe_code)]

use crate::kit::*;

/// The four kinds of post.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Op {
    Send,
    Recv,
    Write,
    Read,
}

impl Op {
    pub(crate) const ALL: [Self; 4] = [Self::Send, Self::Recv, Self::Write, Self::Read];
    pub(crate) const REQUESTS: [Self; 3] = [Self::Send, Self::Write, Self::Read];
    pub(crate) const RDMA: [Self; 2] = [Self::Write, Self::Read];

    /// Name of the operation in case names.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Write => "rdma_write",
            Self::Read => "rdma_read",
        }
    }

    /// Calls the post function with raw values. Sends and receives ignore `remote`.
    pub(crate) fn post_raw(
        self,
        ep: DAT_EP_HANDLE,
        (count, iov): (DAT_COUNT, *mut DAT_LMR_TRIPLET),
        id: u64,
        remote: *const DAT_RMR_TRIPLET,
        flags: DAT_COMPLETION_FLAGS,
    ) -> DAT_RETURN {
        match self {
            Self::Send => dat_ep_post_send(ep, count, iov, cookie(id), flags),
            Self::Recv => dat_ep_post_recv(ep, count, iov, cookie(id), flags),
            Self::Write => dat_ep_post_rdma_write(ep, count, iov, cookie(id), remote, flags),
            Self::Read => dat_ep_post_rdma_read(ep, count, iov, cookie(id), remote, flags),
        }
    }

    /// Makes the call with these segments and flags.
    pub(crate) fn call(
        self,
        conn: &Conn,
        id: u64,
        segments: &[DAT_LMR_TRIPLET],
        remote: &DAT_RMR_TRIPLET,
        flags: DAT_COMPLETION_FLAGS,
    ) -> DAT_RETURN {
        let mut segments = segments.to_vec();
        let list = (segments.len() as DAT_COUNT, segments.as_mut_ptr());
        self.post_raw(conn.ep.h(), list, id, remote, flags)
    }

    /// Posts these segments; the post must be accepted.
    #[track_caller]
    pub(crate) fn post(self, conn: &Conn, id: u64, segments: &[DAT_LMR_TRIPLET], remote: &DAT_RMR_TRIPLET) {
        ok(self.call(conn, id, segments, remote, DAT_COMPLETION_DEFAULT_FLAG));
    }

    /// Returns the EVD for completions of this operation.
    pub(crate) fn evd(self, conn: &Conn) -> DAT_EVD_HANDLE {
        if self == Self::Recv { conn.recv.h() } else { conn.request.h() }
    }
}

/// A remote triplet for calls that ignore it.
pub(crate) const NOWHERE: DAT_RMR_TRIPLET =
    DAT_RMR_TRIPLET { rmr_context: 0, pad: 0, target_address: 0, segment_length: 0 };

/// Returns the default setup with changed EP attributes.
pub(crate) fn setup(edit: impl FnOnce(&mut DAT_EP_ATTR)) -> Setup {
    let mut setup = Setup::default();
    edit(&mut setup.attr);
    setup
}

/// Connects like `ctx.connect_with`, and both roles must call it. `make` creates this endpoint's EP, on the default
/// EVDs and PZ.
#[track_caller]
pub(crate) fn connect_made(ctx: &Ctx, setup: &Setup, make: impl FnOnce(&Conn) -> Ep) -> Conn {
    let mut conn = Conn::unconnected(&ctx.ia(), setup);
    conn.ep = make(&conn);
    join(ctx, &conn, setup.qual);
    conn
}

/// Connects this endpoint to the endpoint of the other role; both roles must call it.
#[track_caller]
pub(crate) fn join(ctx: &Ctx, conn: &Conn, qual: u64) {
    if ctx.is_client() {
        conn.connect(&ctx.receive_address(), ctx.qual(qual));
    } else {
        conn.listen(ctx.qual(qual), || ctx.send_address(&conn.ia));
    }
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
}

/// Creates another endpoint in the IA and PZ of an existing one.
#[track_caller]
pub(crate) fn sibling(conn: &Conn, setup: &Setup) -> Conn {
    let mut other = Conn::unconnected(&conn.ia, setup);
    other.ep = conn.ia.ep_with(&conn.pz, &other.recv, &other.request, &other.events, &setup.attr);
    other
}

/// Checks that a failure at this endpoint broke the connection: one BROKEN event, and the EP is DISCONNECTED.
#[track_caller]
pub(crate) fn expect_broken(conn: &Conn) {
    conn.expect(DAT_CONNECTION_EVENT_BROKEN);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
}

/// Checks that the peer ended the connection: one event, DISCONNECTED or BROKEN, and the EP is DISCONNECTED.
#[track_caller]
pub(crate) fn expect_lost(conn: &Conn) {
    let event = expect_event(conn.events.h(), SOON);
    let is_end = [DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_BROKEN].contains(&event.number());
    assert!(is_end, "{} does not end a connection", number_name(event.number()));
    assert!(event.connection().ep_handle == conn.ep.h(), "the event is for another EP");
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
}

/// Whether all requests posted on an EP have completed.
#[track_caller]
pub(crate) fn is_request_idle(conn: &Conn) -> bool {
    let (mut state, mut recv, mut request) = (0, 0, 0);
    ok(dat_ep_get_status(conn.ep.h(), &mut state, &mut recv, &mut request));
    request != DAT_FALSE
}

/// Sets `DAPL_SM_RMA=mmap`: RDMA over the sm provider is then copied through shared buffers, not by the kernel.
pub(crate) fn without_kernel_copies() {
    os::set_env("DAPL_SM_RMA", "mmap");
}
