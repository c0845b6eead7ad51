//! Connection set-up: passes calls of dapl, received requests and other inputs to `proto::machine`, and sends the
//! datagrams of the handshake (SM-4 to SM-8, CM-4).
//!
//! The engine (`engine::thread`) receives the datagrams, and carries out the actions that look up listeners, map memory
//! or report events. Calls of dapl (connect, accept, reject, close) and the engine share one lock over the connection
//! table. A duplicate of a request is recognised by sender and token, and after the end of its attempt by the token.
//! `proto` decodes and validates datagrams; `peers` checks descriptors before it maps them.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use dapl::error::{AddressProblem, Error, Resource, Result};
use dapl::provider::{ConnId, ConnectSpec, PeerAddress};
use dapl::runtime::handle::ObjectId;
use dapl_software::host_address;
use dapl_software::memory::regions::SLOTS;
use parking_lot::MutexGuard;
use rustix::io::Errno;

use crate::cm::peers;
use crate::cm::socket::{self, SetupDatagram};
use crate::cm::table::{Attempt, Attempts, ConnectionHandler};
use crate::device::{Device, random};
use crate::dir::endpoint_path;
use crate::engine::jobs::Job;
use crate::proto::handshake::{ConnectParams, Datagram, Geometry, ReplyResult};
use crate::proto::machine::{ConnectionMachine, DatagramDelivery, MachineAction, MachineInput};
use crate::qp::link::ConnectionMemory;
use crate::settings::ByKernel;

fn params(
    device: &Device,
    qp: &dyn ConnectionHandler,
    generation: u16,
    token: u64,
    qual: u64,
    geometry: Geometry,
) -> ConnectParams {
    let probe = device.settings.rma.has(ByKernel::Cma);
    ConnectParams {
        generation,
        token,
        endpoint: device.epoch,
        qual,
        geometry,
        pd: qp.pd(),
        reads: qp.max_reads_in(),
        table_slots: SLOTS as u32,
        probe_address: if probe { device.probe.address() } else { 0 },
        probe_value: device.probe.value(),
        barrier: device.barrier,
        ip: match device.ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        },
    }
}

/// Returns the directory of the end point to which a request must be sent. For an IP address, this is the end point
/// that listens on the qualifier. An address that is a path names the directory itself, or its file `sock`. `Ok(None)`:
/// the IP address is local, but there is no listener.
fn resolve(device: &Device, address: &PeerAddress, qual: u64) -> Result<Option<PathBuf>> {
    match address {
        PeerAddress::Path(path) => {
            let folder = if path.ends_with("sock") { path.parent() } else { Some(path.as_path()) };
            let folder = folder.and_then(Path::to_str).and_then(endpoint_path);
            folder.map(Some).ok_or(Error::InvalidAddress(AddressProblem::Malformed))
        }
        PeerAddress::Ip(ip) if host_address::is_local(*ip)? => device.endpoint.base.find_listener(qual),
        PeerAddress::Ip(_) => Err(Error::InvalidAddress(AddressProblem::Unreachable)),
    }
}

/// Actions that the caller of a step must carry out without the lock, and the objects that they need.
#[derive(Default)]
pub(crate) struct SetupActions {
    pub(crate) actions: Vec<MachineAction>,
    pub(crate) conn: Option<Arc<dyn ConnectionHandler>>,
    pub(crate) link: Option<Arc<ConnectionMemory>>,
    pub(crate) peer: PathBuf,
    /// The attempt that this step has ended. It is dropped with this object, after the lock is released.
    _ended: Option<Attempt>,
}

/// Passes an input to the state machine of a connection attempt. Sends the resulting datagrams, marks the end of the
/// connection, and removes an ended attempt. Returns the other actions (lookups, mappings, reports), which the caller
/// carries out.
pub(crate) fn step(device: &Device, id: u32, input: MachineInput) -> SetupActions {
    step_locked(device, device.connections.lock(), id, input)
}

fn step_locked(
    device: &Device,
    mut connections: MutexGuard<'_, Attempts>,
    id: u32,
    input: MachineInput,
) -> SetupActions {
    let mut step = SetupActions::default();
    let Some(attempt) = connections.by_id.get_mut(&id) else { return step };
    let mut next = Some(input);
    while let Some(input) = next.take() {
        for action in attempt.machine.handle(input, Instant::now()) {
            match action {
                MachineAction::Transmit => next = Some(MachineInput::Sent(transmit(device, attempt))),
                MachineAction::Send(datagram) => _ = device.socket.send(&attempt.peer, &datagram.encode(), &[]),
                MachineAction::Ack => acknowledge(device, id, attempt),
                // The mark must be published before the attempt is removed from the table. After the removal, this
                // process answers a repeated reply by a reset. The acceptor then reads the mark to find out whether the
                // connection was established.
                MachineAction::Mark => attempt.link.iter().for_each(|link| {
                    link.mark_ended();
                    fail_point!(MarkedEnded);
                    link.reset();
                }),
                rest => step.actions.push(rest),
            }
        }
    }
    if !attempt.machine.is_offered() {
        attempt.peer_side = None;
    }
    if attempt.machine.outgoing().is_none() {
        attempt.fds.clear();
    }
    if !step.actions.is_empty() {
        (step.conn, step.link, step.peer) = (attempt.conn(), attempt.link.clone(), attempt.peer.clone());
    }
    if !attempt.machine.is_closed() {
        connections.list_due(id);
        return step;
    }
    step._ended = connections.remove(id);
    drop(connections);
    device.endpoint.remove_conn(id);
    step
}

/// Sends the request or the reply of an attempt.
fn transmit(device: &Device, attempt: &Attempt) -> DatagramDelivery {
    let Some(datagram) = attempt.machine.outgoing() else { return DatagramDelivery::Queued };
    let mut fds: Vec<BorrowedFd<'_>> = attempt.fds.iter().map(|fd| fd.as_fd()).collect();
    fds.push(device.regions.store.fd.as_fd());
    // A descriptor grants access to the memory, so it is sent only to a directory of the same user.
    let sent = socket::check_directory(&attempt.peer, rustix::process::geteuid().as_raw())
        .and_then(|()| device.socket.send(&attempt.peer, &datagram.encode(), &fds));
    fail_point!(AfterRequestOrReply);
    match sent {
        Err(Errno::CONNREFUSED | Errno::NOENT | Errno::NOTDIR | Errno::PROTOTYPE | Errno::PERM | Errno::ACCESS) => {
            DatagramDelivery::NoPeer
        }
        Err(Errno::AGAIN) => DatagramDelivery::Full,
        _ => DatagramDelivery::Queued, // After any other error the datagram counts as lost, and is retransmitted.
    }
}

/// Acknowledges the reply by a datagram. If the datagram cannot be sent, for example because the acceptor's socket
/// queue is full, sends a FIFO word instead, because any FIFO word implies the acknowledgement. Without this word, the
/// acknowledgement would be sent again only when the reply is repeated, and the end of the connection could arrive
/// first.
fn acknowledge(device: &Device, id: u32, attempt: &Attempt) {
    let ack = Datagram::Ack { client: id, server: attempt.machine.peer_id, token: attempt.machine.token };
    if device.socket.send(&attempt.peer, &ack.encode(), &[]).is_err() {
        attempt.link.iter().for_each(|link| _ = link.send_heartbeat());
    }
    fail_point!(AfterAck);
}

/// Carries out the actions of a step. Queues events for the engine, because only the engine reports events.
fn finish(device: &Device, id: u32, step: SetupActions) {
    for action in step.actions {
        match (action, &step.conn, &step.link) {
            (MachineAction::CleanUp, ..) => device.endpoint.base.clean_up(&step.peer),
            (MachineAction::Recheck, ..) => device.jobs.push(Job::Gone(id)),
            (MachineAction::Ended(event, _), Some(qp), Some(link)) => {
                qp.end_locally(Some(link));
                device.jobs.push(Job::Event(link.conn, event));
            }
            _ => {}
        }
    }
    device.jobs.wake(); // The engine reads the deadlines again.
}

/// Starts a connection attempt: creates the local segments, and sends the request if a listener is found. Errors: the
/// address is invalid, not local or cannot be looked up, the table is full, or the segments cannot be created.
pub(crate) fn connect(
    device: &Device,
    qp: Arc<dyn ConnectionHandler>,
    spec: &ConnectSpec<'_>,
    conn: ConnId,
) -> Result<()> {
    let path = resolve(device, spec.address, spec.qual)?;
    let (id, generation) = {
        let mut connections = device.connections.lock();
        (connections.new_id().ok_or(Error::Exhausted(Resource::Memory))?, connections.new_generation())
    };
    let (link, fds) = ConnectionMemory::create(id, conn, device.settings.geometry)?;
    let link = Arc::new(link);
    link.set_generation(generation);
    // The token is 0 here. The state machine sets it for each listener to which the request is sent.
    let params = params(device, &*qp, generation, 0, spec.qual, link.geometry);
    let request = Datagram::Request { id, params, private_data: spec.private_data.to_vec() };
    let now = Instant::now();
    let attempt = Attempt {
        machine: ConnectionMachine::active(
            id,
            request,
            now + device.settings.listener_wait,
            device.settings.silence,
            now,
        ),
        conn: Some(Arc::downgrade(&qp)),
        link: Some(link.clone()),
        listener: Some((spec.address.clone(), spec.qual)),
        peer: PathBuf::new(),
        pid: 0,
        watch: None,
        peer_side: None,
        fds: fds.into(),
        due: None,
    };
    qp.begin(link);
    device.connections.lock().by_id.insert(id, attempt);
    fail_point!(BeforeRequest);
    finish(device, id, request_at(device, id, spec.qual, path));
    Ok(())
}

/// Looks up the listener of an attempt again, and sends the request to it. `qual`: the qualifier to which the request
/// was handed off. Called by the engine.
pub(crate) fn look_up(device: &Device, id: u32, qual: Option<u64>) -> SetupActions {
    let listener = device.connections.lock().by_id.get(&id).and_then(|attempt| attempt.listener.clone());
    let Some((address, first)) = listener else { return SetupActions::default() };
    let path = match qual {
        Some(qual) => device.endpoint.base.find_listener(qual),
        None => resolve(device, &address, first),
    };
    request_at(device, id, qual.unwrap_or(first), path.ok().flatten())
}

/// Sends the request of an attempt to the listener on `qual` with the end point `path`; `None`: the lookup found no
/// listener.
fn request_at(device: &Device, id: u32, qual: u64, path: Option<PathBuf>) -> SetupActions {
    let Some((path, token)) = path.zip(random().ok()) else { return step(device, id, MachineInput::NotFound) };
    if let Some(attempt) = device.connections.lock().by_id.get_mut(&id) {
        (attempt.peer, attempt.pid, attempt.watch) = (path, 0, None);
    }
    step(device, id, MachineInput::Found { qual, token })
}

/// Rejects a request or hands it off, and stores the result for repeated requests. Called by dapl or by the engine.
pub(crate) fn refuse(device: &Device, id: u32, result: ReplyResult) {
    finish(device, id, step(device, id, MachineInput::Refuse(result)));
}

/// Accepts a request with a queue pair: creates the local segments, and sends the accepting reply. If the client has
/// ended the attempt, the engine reports ACCEPT_FAILED.
pub(crate) fn accept(
    device: &Device,
    id: u32,
    qp: Arc<dyn ConnectionHandler>,
    private_data: &[u8],
    conn: ConnId,
) -> Result<()> {
    let (link, fds) = ConnectionMemory::create(id, conn, device.settings.geometry)?;
    let link = Arc::new(link);
    // The lock is held from here to the step: if the engine handled a repeated request in between, it would find an
    // attempt without a reply, and close `fds`.
    let mut connections = device.connections.lock();
    let generation = connections.new_generation();
    let attempt = connections.by_id.get_mut(&id).ok_or(Error::Internal)?;
    if let Some(peer_side) = attempt.peer_side.take() {
        link.join(peer_side);
    }
    qp.begin(link.clone());
    link.set_generation(generation);
    let (client, token) = (attempt.machine.peer_id, attempt.machine.token);
    let accepted = Some((params(device, &*qp, generation, token, 0, link.geometry), private_data.to_vec()));
    (attempt.conn, attempt.link, attempt.fds) = (Some(Arc::downgrade(&qp)), Some(link), fds.into());
    let reply = Datagram::Reply { client, server: id, token, result: ReplyResult::Accepted, accepted };
    fail_point!(BeforeReply);
    let step = step_locked(device, connections, id, MachineInput::Accept(reply));
    finish(device, id, step);
    Ok(())
}

/// Ends a connection or attempt locally, and notifies the peer. Called by dapl or by the engine.
pub(crate) fn close(device: &Device, link: &Arc<ConnectionMemory>) {
    step(device, link.id, MachineInput::Close);
}

/// Handles a connection request. Returns the id of the new attempt, and its listener. `None`: the request is a
/// duplicate, or was rejected, because it has no listener, its memory cannot be mapped, or the table has no space. If
/// a request had no listener, its duplicates are rejected too.
pub(crate) fn requested(
    device: &Device,
    received: SetupDatagram,
    peer_id: u32,
    params: &ConnectParams,
) -> Option<(u32, ObjectId)> {
    let SetupDatagram { fds, from, pid, .. } = received;
    let key = (from.clone(), params.token);
    let known = {
        let connections = device.connections.lock();
        if connections.history.knows(params.token) {
            return None; // The request is a duplicate whose attempt has ended.
        }
        connections.by_peer.get(&key).copied()
    };
    if let Some(known) = known {
        finish(device, known, step(device, known, MachineInput::Repeated));
        return None;
    }
    let refuse = |result| {
        let reply = Datagram::Reply { client: peer_id, server: 0, token: params.token, result, accepted: None };
        let _ = device.socket.send(&from, &reply.encode(), &[]);
    };
    let listener = device.listeners.lock().get(&params.qual).copied();
    let Some(listener) = listener.filter(|_| !device.connections.lock().turned_away.knows(params.token)) else {
        device.connections.lock().turned_away.remember(params.token);
        refuse(ReplyResult::NoListener);
        return None;
    };
    fail_point!(RequestReceived);
    let Some(peer_side) = peers::attach_peer(device, &from, pid, peer_id, params, fds) else {
        refuse(ReplyResult::NotUnderstood);
        return None;
    };
    let mut connections = device.connections.lock();
    let Some(id) = connections.new_id() else {
        refuse(ReplyResult::NoListener);
        return None;
    };
    let watch = connections.watch(pid);
    let attempt = Attempt {
        machine: ConnectionMachine::passive(id, peer_id, params.token, device.settings.silence, Instant::now()),
        conn: None,
        link: None,
        listener: None,
        peer: from,
        pid,
        watch,
        peer_side: Some(peer_side),
        fds: Vec::new(),
        due: None,
    };
    connections.by_id.insert(id, attempt);
    connections.by_peer.insert(key, id);
    Some((id, listener))
}

/// Watches the process that has received the request of an attempt, to detect its exit. Called by the engine.
pub(crate) fn watch(device: &Device, id: u32, pid: i32) {
    let mut connections = device.connections.lock();
    let watch = connections.watch(pid);
    if let Some(attempt) = connections.by_id.get_mut(&id) {
        (attempt.pid, attempt.watch) = (pid, watch);
    }
}

/// Returns the client's IP address, with port 0.
pub(crate) fn address_of(params: &ConnectParams) -> SocketAddr {
    let ip = std::net::Ipv6Addr::from(params.ip);
    SocketAddr::new(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4), 0)
}

/// Returns the id of the attempt to which an acknowledgement or reset refers: `local_id` or, if the sender did not know
/// this id, the attempt with this token. `None`: the sender, an id or the token does not match.
pub(crate) fn find(device: &Device, from: &Path, peer_id: u32, local_id: u32, token: u64) -> Option<u32> {
    let connections = device.connections.lock();
    let by_token = || connections.by_peer.get(&(from.to_path_buf(), token)).copied();
    let id = if local_id == 0 { by_token()? } else { local_id };
    let attempt = connections.by_id.get(&id)?;
    let machine = &attempt.machine;
    let is_known = attempt.peer == from && machine.token == token && [0, peer_id].contains(&machine.peer_id);
    is_known.then_some(id)
}
