//! Connection set-up: attempts by id, the datagrams between them, and what each step does (transports.md SM-4..SM-8, CM-4).
//!
//! Down-calls (connect, accept, reject, close) and the engine meet here, under one lock that is held for book-keeping only.
//! A request is sent again until it is answered, an answer until it is acknowledged; duplicates are recognised by sender and
//! token. Only the engine reports upwards. Whatever a peer sent has been decoded by `proto` and is believed no further than
//! that; descriptors are checked before they are mapped.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dapl::error::{Address, Error, Resource, Result};
use dapl::handle::ObjectId;
use dapl::provider::{ConnId, ConnectSpec, PeerAddress};
use rustix::io::Errno;

use crate::bell::{Job, News};
use crate::book::{Attempt, Conn, Seek, Stage};
use crate::device::{Device, is_local, random};
use crate::dir::endpoint_path;
use crate::knobs::ByKernel;
use crate::link::Link;
use crate::peers;
use crate::proto::handshake::{Answer, Datagram, Geometry, Terms};
use crate::proto::machine::{Action, Input, Machine};
use crate::proto::pulse::Pulse;
use crate::regions::SLOTS;
use crate::sock::{self, Received};

/// What found no room in the peer's queue goes out again after this long, then after twice as long: the queue has few places,
/// and a peer that lives empties it at once.
const FIRST_TRY: Duration = Duration::from_millis(1);
/// A request is repeated after this long, then after twice as long, up to the next.
const FIRST_REPEAT: Duration = Duration::from_millis(20);
const LAST_REPEAT: Duration = Duration::from_millis(500);
/// Once the peer has said that its consumer is thinking, so often is enough.
const PATIENT_REPEAT: Duration = Duration::from_secs(2);
/// A listener that was not found is looked up again after this long, then after twice as long, up to the next. Both are short
/// beside the time that programs take to start.
const FIRST_SEEK: Duration = Duration::from_millis(1);
const LAST_SEEK: Duration = Duration::from_millis(8);
/// So often a request may be handed on: two listeners could do it for ever.
const MAX_HAND_OFFS: usize = 8;
/// So long an answer is remembered, for a client that repeats its request.
const LINGER: Duration = Duration::from_secs(10);
fn terms(device: &Device, qp: &dyn Conn, machine: &Machine, token: u64, qual: u64, geometry: Geometry) -> Terms {
    let probe = device.knobs.rma.has(ByKernel::Cma);
    Terms {
        generation: machine.generation(),
        token,
        endpoint: device.life,
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

/// The end point that an address and a qualifier name. `Ok(None)`: it is here, but nobody listens.
fn resolve(device: &Device, address: &PeerAddress, qual: u64) -> Result<Option<PathBuf>> {
    match address {
        PeerAddress::Path(path) => {
            let folder = if path.ends_with("sock") { path.parent() } else { Some(path.as_path()) };
            let folder = folder.and_then(Path::to_str).and_then(endpoint_path);
            folder.map(Some).ok_or(Error::InvalidAddress(Address::Malformed))
        }
        PeerAddress::Ip(ip) if is_local(*ip)? => device.endpoint.base().find(qual),
        PeerAddress::Ip(_) => Err(Error::InvalidAddress(Address::Unreachable)),
    }
}

/// Down-call: starts an attempt.
pub(crate) fn connect(device: &Device, qp: Arc<dyn Conn>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
    let path = resolve(device, spec.address, spec.qual)?;
    let token = random()?;
    let id = device.book.lock().new_id().ok_or(Error::Exhausted(Resource::Memory))?;
    let (link, fds) = Link::create(id, conn, device.knobs.geometry)?;
    let link = Arc::new(link);
    let mut machine = device.book.lock().new_machine();
    machine.handle(Input::Connect);
    link.be_of(machine.generation());
    let terms = terms(device, &*qp, &machine, token, spec.qual, link.geometry);
    let datagram = Datagram::Request { id, terms, private_data: spec.private_data.to_vec() };
    let until = Instant::now() + device.knobs.listener_wait;
    let seek = Seek { address: spec.address.clone(), qual: spec.qual, until, wait: FIRST_SEEK };
    let attempt = Attempt {
        stage: Stage::Asked,
        conn: Some(Arc::downgrade(&qp)),
        link: Some(link.clone()),
        machine,
        seek: Some(seek),
        peer: path.clone().unwrap_or_default(),
        peer_id: 0,
        token,
        pid: 0,
        watch: None,
        theirs: None,
        their_generation: 0,
        again: Some((datagram.encode(), fds.into())),
        repeat: FIRST_TRY,
        due: None,
        handed_on: 0,
        pulse: Pulse::new(Instant::now()),
    };
    qp.begin(link.clone());
    device.book.lock().by_id.insert(id, attempt);
    fail_point!(BeforeRequest);
    let is_asked = path.is_some_and(|path| has_sent(device, id, &path));
    if is_asked || seek_later(device, id) {
        device.bell.ring(Job::Deadlines);
    } else {
        device.book.lock().remove(id);
        qp.break_off(Some(&link));
        device.bell.ring(Job::Event(conn, News::Rejected));
    }
    Ok(())
}

/// Sends the request of an attempt to the end point at `path`. False: nobody is there, and what is left of it is removed.
fn has_sent(device: &Device, id: u32, path: &Path) -> bool {
    let is_there = send_again(device, id) != Err(Errno::CONNREFUSED);
    if !is_there {
        device.endpoint.base().clean_up(path);
    }
    is_there
}

/// No listener has the request: it is looked up again in a while. False: not any more.
pub(crate) fn seek_later(device: &Device, id: u32) -> bool {
    let now = Instant::now();
    let mut book = device.book.lock();
    let Some(attempt) = book.by_id.get_mut(&id) else { return false };
    let Some(seek) = attempt.seek.as_mut().filter(|seek| now < seek.until) else { return false };
    let due = (now + seek.wait).min(seek.until);
    seek.wait = (seek.wait * 2).min(LAST_SEEK);
    attempt.stage = Stage::Seeking;
    book.set_due(id, Some(due));
    true
}

/// Looks up the listener of an attempt again, and sends the request if there is one. False: the attempt is over.
pub(crate) fn seek(device: &Device, id: u32) -> bool {
    let found = device.book.lock().by_id.get(&id).and_then(|attempt| attempt.seek.clone());
    let Some(Seek { address, qual, .. }) = found else { return false };
    match resolve(device, &address, qual) {
        Ok(Some(path)) if ask_at(device, id, path.clone(), qual) && has_sent(device, id, &path) => true,
        _ => seek_later(device, id),
    }
}

/// Sends what an attempt has to say (again), and sets its next deadline. `CONNREFUSED`: nobody is there.
pub(crate) fn send_again(device: &Device, id: u32) -> rustix::io::Result<()> {
    let mut book = device.book.lock();
    let Some(attempt) = book.by_id.get_mut(&id) else { return Ok(()) };
    let Some((bytes, own)) = &attempt.again else { return Ok(()) };
    // An acknowledgement that does not come is silence like any other. How long an answer may take, the asker says.
    if attempt.stage == Stage::Replied && attempt.pulse.is_gone(0, Instant::now(), device.knobs.silence) {
        return Err(Errno::TIMEDOUT);
    }
    let mut fds: Vec<BorrowedFd<'_>> = own.iter().map(|fd| fd.as_fd()).collect();
    fds.push(device.regions.fd().as_fd());
    // Descriptors of ours go to nobody else.
    let sent = sock::check_folder(&attempt.peer, rustix::process::geteuid().as_raw())
        .and_then(|()| device.socket.send(&attempt.peer, bytes, &fds));
    fail_point!(AfterRequestOrReply);
    let wait = if sent == Err(Errno::AGAIN) { attempt.repeat } else { attempt.repeat.max(FIRST_REPEAT) };
    attempt.repeat = if wait >= PATIENT_REPEAT { wait } else { (wait * 2).min(LAST_REPEAT) };
    book.set_due(id, Some(Instant::now() + wait));
    match sent {
        Err(Errno::CONNREFUSED | Errno::NOENT | Errno::NOTDIR | Errno::PROTOTYPE | Errno::PERM | Errno::ACCESS) => {
            Err(Errno::CONNREFUSED)
        }
        _ => Ok(()), // a full queue, or no memory for the moment: the deadline tries again
    }
}

/// Down-call or engine: answers a request with no, and remembers that for a while.
pub(crate) fn refuse(device: &Device, id: u32, answer: Answer) {
    let mut book = device.book.lock();
    let Some(attempt) = book.by_id.get_mut(&id) else { return };
    if attempt.stage == Stage::Left {
        book.remove(id);
        return;
    }
    attempt.stage = Stage::Refused(answer);
    attempt.theirs = None;
    let reply = Datagram::Reply { client: attempt.peer_id, server: id, token: attempt.token, answer, accepted: None };
    let _ = device.socket.send(&attempt.peer, &reply.encode(), &[]);
    book.set_due(id, Some(Instant::now() + LINGER));
    drop(book);
    device.bell.ring(Job::Deadlines);
}

/// Down-call: accepts a request into a queue pair.
pub(crate) fn accept(device: &Device, id: u32, qp: Arc<dyn Conn>, private_data: &[u8], conn: ConnId) -> Result<()> {
    let (link, fds) = Link::create(id, conn, device.knobs.geometry)?;
    let link = Arc::new(link);
    let mut book = device.book.lock();
    let offered = book.by_id.get_mut(&id).filter(|a| a.stage == Stage::Offered);
    let Some((attempt, theirs)) = offered.and_then(|a| a.theirs.take().map(|theirs| (a, theirs))) else {
        // The requester has left.
        book.remove(id);
        drop(book);
        qp.break_off(None);
        device.bell.ring(Job::Event(conn, News::AcceptFailed));
        return Ok(());
    };
    link.join(theirs);
    qp.begin(link.clone());
    // Accepting is connecting with the peer's request in hand.
    attempt.machine.handle(Input::Connect);
    link.be_of(attempt.machine.generation());
    attempt.machine.handle(Input::Req(attempt.their_generation));
    let terms = terms(device, &*qp, &attempt.machine, attempt.token, 0, link.geometry);
    let accepted = Some((terms, private_data.to_vec()));
    let (client, token) = (attempt.peer_id, attempt.token);
    let reply = Datagram::Reply { client, server: id, token, answer: Answer::Accepted, accepted };
    attempt.again = Some((reply.encode(), fds.into()));
    attempt.repeat = FIRST_TRY;
    attempt.stage = Stage::Replied;
    attempt.pulse.beats(Instant::now());
    attempt.conn = Some(Arc::downgrade(&qp));
    attempt.link = Some(link);
    drop(book);
    fail_point!(BeforeReply);
    if send_again(device, id).is_err() {
        device.bell.ring(Job::Gone(id));
    } else {
        device.bell.ring(Job::Deadlines);
    }
    Ok(())
}

/// Down-call or engine: this side ends a connection or attempt; the peer is told.
pub(crate) fn close(device: &Device, link: &Arc<Link>) {
    let attempt = {
        let mut book = device.book.lock();
        // Before anybody can be told that we know nothing of it any more: the acceptor must see that it stood.
        if book.by_id.get(&link.id).is_some_and(|attempt| attempt.stage == Stage::Open) {
            link.mark_over();
        }
        book.remove(link.id)
    };
    device.endpoint.remove_conn(link.id);
    let Some(mut attempt) = attempt else { return };
    if !attempt.machine.handle(Input::Disconnect).contains(&Action::SendRst) {
        return;
    }
    fail_point!(MarkedOver);
    if attempt.stage == Stage::Open {
        link.reset();
    } else {
        let reset = Datagram::Reset { from: link.id, to: attempt.peer_id, token: attempt.token };
        let _ = device.socket.send(&attempt.peer, &reset.encode(), &[]);
    }
}

/// A request arrived: `Some` with its id and listener if it is a new one for the consumer. One that nobody listens for, or
/// that makes no sense, is answered here.
pub(crate) fn requested(device: &Device, received: Received, their_id: u32, terms: &Terms) -> Option<(u32, ObjectId)> {
    let Received { fds, from, pid, .. } = received;
    let key = (from.clone(), terms.token);
    let known = {
        let mut book = device.book.lock();
        if book.past.knows(terms.token) {
            return None; // sent again before its sender had the answer, and read after the end
        }
        let id = book.by_peer.get(&key).copied();
        let attempt = id.and_then(|id| book.by_id.get_mut(&id));
        let stage = attempt.map(|attempt| {
            attempt.pulse.beats(Instant::now());
            attempt.stage
        });
        id.map(|id| (id, stage))
    };
    if let Some((known, stage)) = known {
        repeat_answer(device, known, stage, &from, (their_id, terms.token));
        return None;
    }
    let refuse = |answer| {
        let reply = Datagram::Reply { client: their_id, server: 0, token: terms.token, answer, accepted: None };
        let _ = device.socket.send(&from, &reply.encode(), &[]);
    };
    let listener = device.listeners.lock().get(&terms.qual).copied();
    let Some(listener) = listener.filter(|_| !device.book.lock().turned_away.knows(terms.token)) else {
        device.book.lock().turned_away.remember(terms.token);
        refuse(Answer::NoListener);
        return None;
    };
    fail_point!(RequestHeard);
    let Some(theirs) = peers::meet(device, &from, pid, their_id, terms, fds) else {
        refuse(Answer::NotUnderstood);
        return None;
    };
    let mut book = device.book.lock();
    let Some(id) = book.new_id() else {
        refuse(Answer::NoListener);
        return None;
    };
    let watch = book.watch(pid);
    let attempt = Attempt {
        stage: Stage::Offered,
        conn: None,
        link: None,
        machine: book.new_machine(),
        seek: None,
        peer: from,
        peer_id: their_id,
        token: terms.token,
        pid,
        watch,
        theirs: Some(theirs),
        their_generation: terms.generation,
        again: None,
        repeat: FIRST_TRY,
        due: None,
        handed_on: 0,
        pulse: Pulse::new(Instant::now()),
    };
    book.by_id.insert(id, attempt);
    book.by_peer.insert(key, id);
    Some((id, listener))
}

fn repeat_answer(device: &Device, id: u32, stage: Option<Stage>, from: &Path, (their_id, token): (u32, u64)) {
    let answer = match stage {
        Some(Stage::Offered) => Answer::Pending,
        Some(Stage::Refused(answer)) => answer,
        Some(Stage::Replied | Stage::Open) => {
            let _ = send_again(device, id);
            return;
        }
        _ => return,
    };
    let reply = Datagram::Reply { client: their_id, server: id, token, answer, accepted: None };
    let _ = device.socket.send(from, &reply.encode(), &[]);
}

/// The peer says that its consumer is thinking: ask less often, and hear of its death.
pub(crate) fn pending(device: &Device, id: u32, server: u32, pid: i32) {
    let mut book = device.book.lock();
    let watch = book.watch(pid);
    let Some(attempt) = book.by_id.get_mut(&id).filter(|a| a.stage == Stage::Asked) else { return };
    attempt.peer_id = server;
    attempt.pid = pid;
    attempt.watch = watch;
    attempt.repeat = PATIENT_REPEAT;
    book.set_due(id, Some(Instant::now() + PATIENT_REPEAT));
}

/// The peer's consumer has handed our request to the listener on `qual`: it goes there, as a new one. False: it cannot.
pub(crate) fn ask_elsewhere(device: &Device, id: u32, qual: u64) -> bool {
    let Ok(Some(path)) = device.endpoint.base().find(qual) else { return false };
    {
        let mut book = device.book.lock();
        let Some(attempt) = book.by_id.get_mut(&id) else { return false };
        attempt.seek = None;
        attempt.handed_on += 1;
        if attempt.handed_on > MAX_HAND_OFFS {
            return false;
        }
    }
    ask_at(device, id, path, qual) && send_again(device, id).is_ok()
}

/// Makes the request of an attempt a new one for the listener on `qual` at `path`. By its token, who had it before would only
/// repeat its answer. False: it is not asking.
fn ask_at(device: &Device, id: u32, path: PathBuf, qual: u64) -> bool {
    let Ok(fresh) = random() else { return false };
    let mut book = device.book.lock();
    let attempt = book.by_id.get_mut(&id).filter(|a| matches!(a.stage, Stage::Seeking | Stage::Asked));
    let Some(attempt) = attempt else { return false };
    let Some((bytes, _)) = &mut attempt.again else { return false };
    let Ok(Datagram::Request { mut terms, private_data, .. }) = Datagram::decode(bytes) else { return false };
    (terms.qual, terms.token) = (qual, fresh);
    *bytes = Datagram::Request { id, terms, private_data }.encode();
    (attempt.peer, attempt.peer_id, attempt.token) = (path, 0, fresh);
    (attempt.pid, attempt.watch, attempt.repeat) = (0, None, FIRST_TRY);
    attempt.stage = Stage::Asked;
    true
}

/// The attempt stands: nothing is to be repeated any more.
pub(crate) fn settled(device: &Device, id: u32) {
    let mut book = device.book.lock();
    if let Some(attempt) = book.by_id.get_mut(&id) {
        attempt.stage = Stage::Open;
        attempt.again = None;
        attempt.pulse.beats(Instant::now());
        book.set_due(id, None);
    }
}

/// What the engine does with an attempt that is over.
pub(crate) struct Over {
    pub(crate) conn: Option<Arc<dyn Conn>>,
    pub(crate) link: Option<Arc<Link>>,
    pub(crate) stage: Stage,
}

/// The other side has gone or taken it back. A request that our consumer holds stays, marked.
pub(crate) fn gone(device: &Device, id: u32) -> Option<Over> {
    let mut book = device.book.lock();
    let attempt = book.by_id.get_mut(&id)?;
    if matches!(attempt.stage, Stage::Offered) {
        attempt.stage = Stage::Left;
        attempt.theirs = None;
        return None;
    }
    if attempt.stage == Stage::Left {
        return None;
    }
    let mut attempt = book.remove(id)?;
    attempt.machine.handle(Input::Rst(attempt.machine.peer_generation()));
    drop(book);
    device.endpoint.remove_conn(id);
    Some(Over { conn: attempt.conn(), link: attempt.link, stage: attempt.stage })
}

/// Attempts whose deadline has come.
pub(crate) fn due(device: &Device, now: Instant) -> Vec<(u32, Stage)> {
    let mut book = device.book.lock();
    let ids: Vec<u32> = book.deadlines.iter().take_while(|(due, _)| *due <= now).map(|(_, id)| *id).collect();
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        book.set_due(id, None);
        if let Some(attempt) = book.by_id.get_mut(&id) {
            if attempt.stage == Stage::Asked {
                attempt.machine.handle(Input::Failure); // still connecting: the request goes out again
            }
            found.push((id, attempt.stage));
        }
        if let Some((_, Stage::Refused(_))) = found.last() {
            book.remove(id);
        }
    }
    found
}

/// The requester's address from its terms.
pub(crate) fn address_of(terms: &Terms) -> SocketAddr {
    let ip = std::net::Ipv6Addr::from(terms.ip);
    SocketAddr::new(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4), 0)
}

/// The attempt that a reset means: by our id, or, before its sender knew that, by its token.
pub(crate) fn find(device: &Device, from: &Path, their_id: u32, our_id: u32, token: u64) -> Option<u32> {
    let book = device.book.lock();
    let by_token = || book.by_peer.get(&(from.to_path_buf(), token)).copied();
    let id = if our_id == 0 { by_token()? } else { our_id };
    let attempt = book.by_id.get(&id)?;
    let known = attempt.peer == from && attempt.token == token && [0, their_id].contains(&attempt.peer_id);
    known.then_some(id)
}
