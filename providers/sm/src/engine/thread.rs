//! The engine: the thread of an open IA that waits for the set-up socket, the FIFO, exits of peer processes, jobs and
//! deadlines. It sends heartbeats, and ends the connections of peers that have exited or are inactive.
//!
//! Only the engine calls the sinks, and it holds no lock during such a call. It sleeps without a timeout while no
//! deadline is set, so a process without connections uses no CPU. An idle connection has only the deadlines of its
//! heartbeats. While a consumer polls, the polling thread makes progress on the connections, and the engine checks
//! every tick whether the thread still polls.
#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dapl::provider::{ConnectionEvent, RequestInfo};
use dapl_software::overdue::{OverdueSend, Stalls, WaitCause};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::cm::peers;
use crate::cm::request::ConnectionRequest;
use crate::cm::setup::{self, SetupActions};
use crate::cm::socket::SetupDatagram;
use crate::cm::table::ConnectionHandler;
use crate::device::Device;
use crate::engine::jobs::{EngineQueueClient, Job};

use crate::engine::wake::WakeResult;
use crate::memory::exchange;
use crate::proto::handshake::{ConnectParams, Datagram, DecodeError, ReplyResult};
use crate::proto::machine::{MachineAction, MachineInput};
use crate::proto::message::FifoWord;
use crate::qp::link::ConnectionMemory;

/// Interval at which the engine checks whether a consumer still polls.
const TICK: Duration = Duration::from_millis(2);
/// Maximum number of FIFO words of one read. This is the default capacity of a FIFO (64 KiB), so a read of this length
/// means that the FIFO was full and words may be lost.
const FIFO_CAPACITY: usize = 16_384;

const FIFO_KEY: u64 = 0;
const SOCKET_KEY: u64 = 1;
const JOBS_KEY: u64 = 2;
/// The epoll key of a watched process is this number plus its process id. Lower keys are the engine's own descriptors.
const FIRST_PID_KEY: u64 = 16;

/// The state of the engine thread.
pub(crate) struct Engine {
    device: Arc<Device>,
    epoll: rustix::fd::OwnedFd,
    /// Polled completion queues, each with its number of polls at the last tick.
    watched: Vec<(Arc<dyn EngineQueueClient>, u32)>,
    next_tick: Option<Instant>,
    next_alive: Option<Instant>,
    stalls: Stalls<u32>,
}

impl Engine {
    pub(crate) fn new(device: Arc<Device>) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd: rustix::fd::BorrowedFd<'_>, key| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(key), epoll::EventFlags::IN)
        };
        add(device.fifo.as_fd(), FIFO_KEY)?;
        add(device.socket.as_fd(), SOCKET_KEY)?;
        add(device.jobs.as_fd(), JOBS_KEY)?;
        Ok(Engine { device, epoll, watched: Vec::new(), next_tick: None, next_alive: None, stalls: Stalls::default() })
    }

    /// Runs until the IA is closed.
    pub(crate) fn run(mut self, stopping: &AtomicBool) {
        let mut events = Vec::with_capacity(64);
        while !stopping.load(Ordering::Acquire) {
            self.add_pid_watches();
            events.clear();
            let timeout = self.timeout();
            if epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()).is_err() {
                // EINTR: all signals are blocked in this thread, but a debugger may interrupt the wait.
                continue;
            }
            let keys: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
            for key in keys {
                match key {
                    FIFO_KEY => self.read_fifo(),
                    SOCKET_KEY => self.read_datagrams(),
                    JOBS_KEY => {}
                    pid => self.process_died((pid - FIRST_PID_KEY) as i32),
                }
            }
            self.run_jobs();
            self.handle_deadlines();
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let due = [self.device.connections.next_due(), self.next_tick, self.next_alive].into_iter().flatten().min()?;
        let left = due.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) })
    }

    fn add_pid_watches(&mut self) {
        let new = std::mem::take(&mut self.device.connections.lock().new_watches);
        for (pid, watch) in new {
            let data = epoll::EventData::new_u64(FIRST_PID_KEY + pid as u64);
            let _ = epoll::add(&self.epoll, &watch.fd, data, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT);
        }
    }

    fn run_jobs(&mut self) {
        for job in self.device.jobs.drain_jobs() {
            match job {
                Job::Notify(sink) => _ = sink.upgrade().inspect(|sink| sink.notify()),
                Job::LowSrq(sink) => _ = sink.upgrade().inspect(|sink| sink.low()),
                Job::ManyRecvs(ep) => self.device.sink.many_recvs(ep),
                Job::Watch(cq) => {
                    self.watched.push((cq, 0));
                    self.device.regions.store.ticker.tick(true);
                    self.next_tick = Some(Instant::now() + TICK);
                }
                Job::Run(id) => _ = self.queue_pair_and_memory(id).inspect(|(qp, _)| qp.serve()),
                Job::RequestMapping(id, key) => exchange::request_mapping(&self.device, id, key),
                Job::Drained(id) => self.drained(id),
                Job::Gone(id) => {
                    self.read_datagrams(); // The peer may have sent its reply just before it exited.
                    self.end_attempt(id);
                }
                Job::Event(conn, event) => self.device.sink.event(conn, event, &[]),
                Job::Refused(access) => access.log(),
            }
        }
    }

    // --- deadlines ---

    fn handle_deadlines(&mut self) {
        let now = Instant::now();
        if self.next_tick.is_some_and(|due| due <= now) {
            self.watched.retain_mut(|(cq, last)| cq.tick(last));
            self.next_tick = (!self.watched.is_empty()).then(|| now + TICK);
            self.device.regions.store.ticker.tick(self.next_tick.is_some());
        }
        for id in self.device.connections.due(now) {
            self.step(id, MachineInput::Deadline);
        }
        if self.next_alive.is_some_and(|due| due <= now) {
            self.send_heartbeats(now);
        }
    }

    /// Sends a heartbeat on each open connection, and ends the connections whose peer has exited, has marked the end,
    /// or was inactive for the give-up time (CM-5). Then makes the other checks of this interval: rings that no thread
    /// polls, overdue sends, revoked mappings, and peers of ended connections.
    fn send_heartbeats(&mut self, now: Instant) {
        let (mut dead, mut unpolled) = (Vec::new(), Vec::new());
        let mut open = 0;
        for (id, attempt) in self.device.connections.lock().by_id.iter_mut() {
            let (true, Some(link)) = (attempt.machine.is_open(), &attempt.link) else { continue };
            open += 1;
            let is_silent = attempt.machine.is_silent(link.progress(), now);
            if is_silent || link.send_heartbeat() == WakeResult::Dead {
                let (ep, pid) = (attempt.conn().map_or(0, |conn| conn.ep()), link.peer_pid());
                if is_silent {
                    let limit = self.device.settings.silence.as_millis();
                    log::warn!(
                        "ep {ep:#x}: connection to process {pid} ended with DISCONNECTED: no activity of the peer for {limit} \
                         ms; if the process was only stopped, raise the setting give_up_ms"
                    );
                } else {
                    log::warn!(
                        "ep {ep:#x}: connection to process {pid} ended with DISCONNECTED: the peer has closed its FIFO; it has \
                         probably exited"
                    );
                }
                dead.push(*id);
            } else if link.is_reset() {
                dead.push(*id); // The peer has reset the connection, but its FIFO word was lost.
            } else {
                unpolled.extend(attempt.conn().filter(|qp| !qp.is_polled()));
            }
        }
        for id in dead {
            self.end_attempt(id);
        }
        // FIFO words are lost if the FIFO is full, or if another process reads them. So each heartbeat also checks the
        // rings of the connections that no thread polls.
        unpolled.into_iter().filter(|qp| qp.has_unread()).for_each(|qp| qp.serve());
        self.report_stalls(now);
        exchange::sweep(&self.device);
        let is_settled = {
            let mut table = self.device.connections.lock();
            table.ended.sweep(now);
            table.ended.is_empty()
        };
        self.next_alive = (open > 0 || !is_settled).then(|| now + self.device.settings.alive);
    }

    /// Logs each send that has waited too long for a receive of the peer, once.
    fn report_stalls(&mut self, now: Instant) {
        let conns: Vec<(u32, Arc<dyn ConnectionHandler>)> = {
            let connections = self.device.connections.lock();
            let open = connections.by_id.iter().filter(|(_, attempt)| attempt.machine.is_open());
            open.filter_map(|(id, attempt)| Some((*id, attempt.conn()?))).collect()
        };
        let waiting: Vec<(u32, u64)> =
            conns.iter().filter_map(|(id, conn)| Some((*id, conn.waiting_send()?))).collect();
        for (id, age) in self.stalls.find_overdue(&waiting, now) {
            let Some((_, conn)) = conns.iter().find(|(known, _)| *known == id) else { continue };
            OverdueSend { ep: conn.ep(), age, cause: WaitCause::NoReceive }.log();
        }
    }

    // --- FIFO words ---

    fn read_fifo(&mut self) {
        let mut bytes = vec![0u8; FIFO_CAPACITY * 4];
        let Ok(read) = rustix::io::read(&self.device.fifo, &mut bytes[..]) else { return };
        match FifoWord::decode_all(&bytes[..read]).filter(|_| read < bytes.len()) {
            Some(mut notes) => {
                notes.dedup();
                notes.into_iter().for_each(|note| self.handle_fifo_word(note));
            }
            // FIFO words may be lost or corrupted, so every connection is checked.
            None => {
                let ids: Vec<u32> = self.device.connections.lock().by_id.keys().copied().collect();
                ids.into_iter().for_each(|id| self.check_connection(id, true));
            }
        }
    }

    fn handle_fifo_word(&mut self, note: FifoWord) {
        let (FifoWord::Wake(id) | FifoWord::Alive(id) | FifoWord::Reset(id)) = note;
        // The id contains a generation, so a late word for an earlier connection matches no entry of the table.
        self.step(id, MachineInput::Alive);
        self.check_connection(id, matches!(note, FifoWord::Wake(_)));
    }

    fn check_connection(&mut self, id: u32, serve: bool) {
        let Some((qp, link)) = self.queue_pair_and_memory(id) else { return };
        // A forged Reset word does not end the connection, because the peer must also have marked the end on its
        // control page.
        if link.is_reset() {
            self.end_attempt(id);
        } else if serve {
            qp.serve();
        }
    }

    // --- set-up datagrams ---

    pub(crate) fn read_datagrams(&mut self) {
        while let Some(received) = self.device.socket.receive() {
            let uid = rustix::process::geteuid().as_raw();
            if received.uid != uid {
                log::warn!(
                    "set-up datagram from {} dropped: the sender has uid {}, this process has uid {uid}; connect only processes of \
                     one user",
                    received.from.display(),
                    received.uid
                );
                continue;
            }
            match Datagram::decode(&received.bytes) {
                Ok(datagram) => self.handle_datagram(datagram, received),
                Err(bad) => self.reject_undecodable(bad, &received),
            }
        }
    }

    fn reject_undecodable(&self, bad: DecodeError, received: &SetupDatagram) {
        log::warn!("set-up datagram from {} dropped as invalid: {bad}", received.from.display());
        // The first eight bytes of a request have the same layout in every version, so a client of another version gets
        // a rejection.
        if let [1, _, _, _, a, b, c, d, ..] = received.bytes[..] {
            let client = u32::from_le_bytes([a, b, c, d]);
            let result =
                Datagram::Reply { client, server: 0, token: 0, result: ReplyResult::NotUnderstood, accepted: None };
            let _ = self.device.socket.send(&received.from, &result.encode(), &[]);
        }
    }

    fn handle_datagram(&mut self, datagram: Datagram, received: SetupDatagram) {
        match datagram {
            Datagram::Request { id, params, private_data } => self.handle_request(id, params, private_data, received),
            Datagram::Reply { client, server, token, result, accepted } => {
                if self.is_reply_expected(client, token, &result, &received.from) {
                    self.handle_reply(client, server, result, accepted, received);
                } else if let ReplyResult::Accepted = result {
                    // This process has ended the attempt, or the attempt belongs to an earlier process with the same
                    // path. The reset ends the attempt at the acceptor.
                    let reset = Datagram::Reset { from: client, to: server, token };
                    let _ = self.device.socket.send(&received.from, &reset.encode(), &[]);
                }
            }
            Datagram::Ack { client, server, token } => {
                let known = setup::find(&self.device, &received.from, client, server, token);
                known.into_iter().for_each(|id| self.step(id, MachineInput::Ack));
            }
            Datagram::Reset { from, to, token } => {
                let known = setup::find(&self.device, &received.from, from, to, token);
                known.into_iter().for_each(|id| self.end_attempt(id));
            }
            Datagram::MappingRequest { .. } => exchange::on_mapping_request(&self.device, &datagram, &received.from),
            Datagram::MappingReply { .. } => exchange::on_mapping_reply(&self.device, &datagram, &received),
        }
    }

    /// Whether a reply from `from` belongs to an attempt of this process: the attempt has this id, peer and token. A
    /// reply with `NotUnderstood` has no token.
    fn is_reply_expected(&self, id: u32, token: u64, result: &ReplyResult, from: &Path) -> bool {
        let connections = self.device.connections.lock();
        let attempt = connections.by_id.get(&id).filter(|a| a.peer == from);
        attempt.is_some_and(|a| a.machine.token == token || *result == ReplyResult::NotUnderstood)
    }

    fn handle_request(&mut self, peer_id: u32, params: ConnectParams, private_data: Vec<u8>, received: SetupDatagram) {
        let device = self.device.clone();
        let from = received.from.clone();
        let Some((id, listener)) = setup::requested(&device, received, peer_id, &params) else { return };
        self.next_alive.get_or_insert_with(|| Instant::now() + device.settings.alive);
        let request = ConnectionRequest::new(device.clone(), id);
        let info = RequestInfo { peer: setup::address_of(&params), reported_len: private_data.len(), private_data };
        if let Err(request) = device.sink.request(listener, request, info) {
            log::info!(
                "connection request of {} for qualifier {} rejected: the listener was freed, its EVD is full, or no \
                 CR or EP can be created",
                from.display(),
                params.qual
            );
            request.refuse(ReplyResult::NoListener);
        }
    }

    fn handle_reply(
        &mut self,
        id: u32,
        server: u32,
        result: ReplyResult,
        accepted: Option<(ConnectParams, Vec<u8>)>,
        received: SetupDatagram,
    ) {
        let step = setup::step(&self.device, id, MachineInput::Reply { server, result });
        match (step.actions.first(), &step.link, accepted) {
            (Some(MachineAction::Watch), ..) => setup::watch(&self.device, id, received.pid),
            (Some(MachineAction::Join), Some(link), Some((params, private_data))) => {
                fail_point!(ReplyReceived);
                let peer_side =
                    peers::attach_peer(&self.device, &received.from, received.pid, server, &params, received.fds);
                let joined = peer_side.map(|peer_side| link.join(peer_side));
                fail_point!(BeforeAck);
                self.step(id, joined.map_or(MachineInput::JoinFailed, |()| MachineInput::Joined(private_data)));
            }
            _ => self.execute_actions(id, step),
        }
    }

    /// Passes an input to the state machine of a connection attempt, and carries out the resulting actions.
    fn step(&mut self, id: u32, input: MachineInput) {
        let step = setup::step(&self.device, id, input);
        self.execute_actions(id, step);
    }

    fn execute_actions(&mut self, id: u32, step: SetupActions) {
        for action in step.actions {
            match (action, &step.conn, &step.link) {
                (MachineAction::Lookup, ..) => self.look_up(id, None),
                (MachineAction::LookupQual(qual), ..) => self.look_up(id, Some(qual)),
                (MachineAction::CleanUp, ..) => self.device.endpoint.base.clean_up(&step.peer),
                (MachineAction::Recheck, ..) => self.device.jobs.push(Job::Gone(id)),
                (MachineAction::Established(private_data), Some(qp), Some(link)) => {
                    self.established(id, &**qp, link, &private_data);
                }
                (MachineAction::Ended(event, private_data), Some(qp), Some(link)) => match qp.peer_ended(link) {
                    Some(true) => self.device.sink.event(link.conn, ConnectionEvent::Broken, &[]),
                    Some(false) => self.device.sink.event(link.conn, event, &private_data),
                    None => {}
                },
                _ => {}
            }
        }
    }

    fn look_up(&mut self, id: u32, qual: Option<u64>) {
        let step = setup::look_up(&self.device, id, qual);
        self.execute_actions(id, step);
    }

    /// Returns the queue pair and the shared memory of a connection or attempt. `None` if one of them is missing.
    fn queue_pair_and_memory(&self, id: u32) -> Option<(Arc<dyn ConnectionHandler>, Arc<ConnectionMemory>)> {
        let connections = self.device.connections.lock();
        let attempt = connections.by_id.get(&id)?;
        Some((attempt.conn()?, attempt.link.clone()?))
    }

    /// Reports the connection, then starts data transfer: no receive may complete before ESTABLISHED is reported.
    fn established(&mut self, id: u32, qp: &dyn ConnectionHandler, link: &Arc<ConnectionMemory>, private_data: &[u8]) {
        fail_point!(Confirmed);
        if let Some(peer_side) = link.peer_side() {
            self.device.endpoint.add_conn(id, &peer_side.peer.path);
        }
        self.next_alive.get_or_insert_with(|| Instant::now() + self.device.settings.alive);
        self.device.sink.event(link.conn, ConnectionEvent::Established, private_data);
        fail_point!(Reported);
        qp.open(link);
    }

    // --- ends of connections ---

    /// Ends a connection after a graceful disconnect, when all of its requests are complete. Does nothing if the QP has
    /// begun another connection, which has another id.
    fn drained(&self, id: u32) {
        if let Some((qp, link)) = self.queue_pair_and_memory(id)
            && qp.end_locally(Some(&link)).is_some()
        {
            setup::close(&self.device, &link);
            self.device.sink.event(link.conn, ConnectionEvent::Disconnected, &[]);
        }
    }

    /// Ends a connection or attempt whose peer has ended it, has exited, or was inactive for too long.
    fn end_attempt(&mut self, id: u32) {
        // The requester's acknowledgement of the accepting reply may be lost, or arrive after the end. If the requester
        // has marked the end on its control page, it had established the connection, which implies the acknowledgement.
        if self.queue_pair_and_memory(id).is_some_and(|(_, link)| link.is_reset()) {
            self.step(id, MachineInput::Ack);
        }
        self.step(id, MachineInput::Gone);
    }

    pub(crate) fn process_died(&mut self, pid: i32) {
        // Queued datagrams are read first: the process may have accepted a request just before it exited.
        self.read_datagrams();
        let ids: Vec<u32> = {
            let connections = self.device.connections.lock();
            connections.by_id.iter().filter(|(_, a)| a.has_died(pid)).map(|(id, _)| *id).collect()
        };
        ids.into_iter().for_each(|id| self.end_attempt(id));
        self.device.endpoint.base.clean(Some(pid));
    }
}
