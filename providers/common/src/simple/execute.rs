//! Executes requests between two queue pairs of one process: copies a message into a receive of the peer, and RDMA data
//! to or from the peer's registered memory.
#![forbid(unsafe_code)]

use dapl::provider::{Completion, Op, Provider, Region, Remote, Segment, Status, Token};

use super::memory::{Pd, REGISTRATIONS};
use super::registrations::{Inaccessible, Registrations, copy};
use super::reporter::ReportedCq;
use super::work_queues::{QueuedRequest, WorkQueues};
use crate::limits::MAX_MESSAGE;
use crate::memory::scatter_gather::total;
use crate::memory::user_copy::MappingChecker;

/// Executes a request whose local segments belong to the protection domain `pd`. Returns the length of the transfer, or
/// `None` if the request is a send and the peer has no receive.
///
/// Errors: the status with which the request completes.
pub fn execute<P: Provider<Cq = ReportedCq<P>>>(
    request: &QueuedRequest,
    pd: &Pd,
    peer: &mut WorkQueues<P>,
) -> Result<Option<u64>, Status> {
    // The lock is held during the copy, so that no registration ends while its memory is copied.
    let registrations = &*REGISTRATIONS.lock();
    let bytes = request.bytes();
    let local = registrations.local(pd.number, &request.segments, matches!(request.op, Op::Read(_)))?;
    if bytes > MAX_MESSAGE {
        return Err(Status::LocalLength);
    }
    let source = (&local[..], bytes, &*pd.checker);
    match request.op {
        Op::Send { solicited } => match peer.recvs.pop_front() {
            Some(recv) => send(registrations, source, solicited, peer, recv).map(|()| Some(bytes)),
            None => Ok(None),
        },
        Op::Write(remote) => rdma(registrations, source, remote, false, peer).map(Some),
        Op::Read(remote) => rdma(registrations, source, remote, true, peer).map(Some),
        _ => unreachable!("`WorkQueues::post_send` refuses extensions"),
    }
}

/// Copies a message into a receive of the peer, and completes the receive.
fn send<P: Provider<Cq = ReportedCq<P>>>(
    registrations: &Registrations,
    (source, bytes, checker): (&[Region], u64, &MappingChecker),
    solicited: bool,
    peer: &WorkQueues<P>,
    (token, segments): (Token, Vec<Segment>),
) -> Result<(), Status> {
    let target = registrations.local(peer.pd.number, &segments, true);
    // A failure has two statuses, for the receive and for the send.
    let copied = match &target {
        Err(status) => Err((*status, Status::RemoteResponder)),
        Ok(_) if bytes > total(&segments) => Err((Status::LocalLength, Status::RemoteResponder)),
        Ok(target) => copy(source, target, bytes, checker).map_err(|side| match side {
            Inaccessible::Source => (Status::Flushed, Status::LocalProtection),
            Inaccessible::Target => (Status::LocalProtection, Status::RemoteResponder),
        }),
    };
    let (status, bytes) = copied.map_or_else(|(status, _)| (status, 0), |()| (Status::Success, bytes));
    peer.complete_recv(Completion { token, status, bytes, solicited, ..Completion::default() });
    copied.map_err(|(_, status)| status)
}

/// Executes an RDMA write or read. Returns its length in bytes.
fn rdma<P: Provider<Cq = ReportedCq<P>>>(
    registrations: &Registrations,
    (local, bytes, checker): (&[Region], u64, &MappingChecker),
    remote: Remote,
    is_read: bool,
    peer: &WorkQueues<P>,
) -> Result<u64, Status> {
    if is_read && peer.spec.max_reads_in == 0 {
        return Err(Status::RemoteResponder);
    }
    let target = registrations.remote(peer.pd.number, remote, bytes, !is_read)?;
    let (from, to) = if is_read { (&target[..], local) } else { (local, &target[..]) };
    copy(from, to, bytes, checker).map(|()| bytes).map_err(|side| {
        let is_local = matches!(side, Inaccessible::Source) != is_read;
        if is_local { Status::LocalProtection } else { Status::RemoteAccess }
    })
}
