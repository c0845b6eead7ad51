//! The sending half of a connection: the request queue, our request ring, and the peer's answers (transports.md SM-12,
//! SM-17..SM-22).
//!
//! Requests start in order and complete in order. A send is complete when the peer has taken its last piece off the ring;
//! an RDMA operation when the kernel has copied it, or when the target has answered its last fragment. What does not fit
//! waits here: a full ring is back-pressure, never a disconnect. Runs under the lock of this half; calls nobody above.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::provider::{Completion, Op, Remote, SendWr, Status, Token};

use crate::cma::{self, Refusal, Way};
use crate::cq::Outbox;
use crate::link::{Link, WANT_REQUESTS};
use crate::proto::message::{Fragment, Header, INLINE, Kind, LINE};
use crate::qp::{Core, Fault};
use crate::regions::{Target, Wish};
use crate::ring::{Cargo, Lines, Next, Reader, Writer};
use crate::segments::{Segments, gather, scatter};

/// Bytes of a piece of a send that is not inline.
const PIECE: usize = 16 << 10;
/// Bytes of an RMA fragment.
const FRAGMENT: usize = 32 << 10;
/// Bytes copied across in one pass: progress is shared among connections.
const BUDGET: u64 = cma::CHUNK as u64;

/// Requests that gather before a post asks how far the peer is.
const GATHER: usize = 32;

/// How far a request is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Waiting,
    /// Some bytes are under way.
    Running,
    /// All bytes were handed over; complete when the ring has been taken up to here.
    Sent(u64),
    Done,
    Failed(Status),
}

/// A request in the queue.
#[derive(Debug)]
pub(crate) struct Request {
    op: Op,
    segments: Segments,
    token: Token,
    suppress: bool,
    fence: bool,
    stage: Stage,
    /// Bytes handed over, and (RMA) bytes the target has answered.
    issued: u64,
    answered: u64,
}

impl Request {
    pub(crate) fn new(wr: &SendWr<'_>) -> Self {
        Request {
            op: wr.op,
            segments: Segments::new(wr.segments),
            token: wr.token,
            suppress: wr.suppress,
            fence: wr.fence,
            stage: Stage::Waiting,
            issued: 0,
            answered: 0,
        }
    }

    /// The completion of a request that will not be carried out.
    fn flushed(&self) -> Completion {
        Completion { token: self.token, status: Status::Flushed, ..Completion::default() }
    }
}

/// A fragment in our RMA buffer that the target has not answered yet.
#[derive(Debug)]
struct Pending {
    /// Number of its request, counted over the life of the connection.
    request: u64,
    line: u32,
    mark: u64,
    offset: u64,
    length: u32,
    read: bool,
}

/// The state of this half.
#[derive(Debug, Default)]
pub(crate) struct Tx {
    queue: VecDeque<Request>,
    /// How many at the front of `queue` are fully handed over.
    issued: usize,
    /// How many in `queue` want a completion when they succeed.
    loud: usize,
    pub(crate) ends: Option<TxEnds>,
    /// Requests are flushed as they are posted.
    pub(crate) broken: bool,
    /// A graceful end waits for the queue to run empty.
    pub(crate) draining: bool,
    /// A fault was found and the flush is on its way: nothing more is handed over.
    stopped: bool,
}

/// The rings of this half, while there is a connection.
#[derive(Debug)]
pub(crate) struct TxEnds {
    link: Arc<Link>,
    requests: Writer,
    responses: Reader,
    messages: Lines,
    /// Message lines to give back when the ring has been taken up to a slot.
    marks: VecDeque<(u64, u64)>,
    rma: Lines,
    pending: VecDeque<Pending>,
    /// Number of the request at the front of the queue.
    first: u64,
    reads: u32,
    /// The budget of a pass ran out in the middle of a copy.
    hungry: bool,
}

impl TxEnds {
    /// `None` before the peer's half is there.
    pub(crate) fn new(link: Arc<Link>) -> Option<Self> {
        let theirs = link.theirs()?;
        let responses = Reader::new(theirs.area.clone(), Link::responses(&theirs.geometry));
        let requests = Writer::new(link.area.clone(), Link::requests(&link.geometry));
        let (messages, rma) = (Lines::new(link.geometry.messages), Lines::new(link.geometry.rma));
        Some(TxEnds {
            requests,
            responses,
            messages,
            marks: VecDeque::new(),
            rma,
            pending: VecDeque::new(),
            first: 0,
            reads: 0,
            hungry: false,
            link,
        })
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Is there something that a pass would take?
    pub(crate) fn has_work(&self, core: &Core) -> bool {
        let low = core.ack_low.load(Ordering::Acquire);
        self.responses.peek() != Next::Empty
            || self.link.taken() > self.requests.taken()
            || (low.wrapping_sub(self.requests.taken() as u32) as i32) > 0
    }
}

impl Tx {
    /// Learns what the peer did, hands over what fits, completes what is done. Says whether anything moved.
    /// After a fault nothing moves any more.
    pub(crate) fn pass(&mut self, core: &Core, out: &mut Outbox<'_>) -> Result<bool, Fault> {
        if self.ends.is_none() || self.stopped {
            return Ok(false);
        }
        let outcome = self.bring_on(core, out).inspect_err(|_| self.stopped = true);
        core.tx_waits.store(self.needs_news(), Ordering::Release);
        outcome
    }

    /// After a post: hands over what fits. What the peer did is learned only when that stands in the way, or when much has
    /// gathered: its line would have to come over for every message.
    pub(crate) fn post(&mut self, core: &Core, request: Request) -> Result<(), Fault> {
        self.loud += usize::from(!request.suppress);
        self.queue.push_back(request);
        if self.ends.is_none() || self.stopped {
            return Ok(());
        }
        let published = self.issue(core);
        self.publish(core, published);
        let done = self.queue.front().is_some_and(|r| matches!(r.stage, Stage::Done | Stage::Failed(_)));
        if done || self.issued < self.queue.len() || self.queue.len() >= GATHER {
            return self.pass(core, &mut Outbox::default()).map(|_| ());
        }
        core.tx_waits.store(self.needs_news(), Ordering::Release);
        Ok(())
    }

    fn bring_on(&mut self, core: &Core, out: &mut Outbox<'_>) -> Result<bool, Fault> {
        self.learn(core)?;
        let published = self.issue(core);
        let retired = self.retire(core, out)?;
        self.publish(core, published);
        Ok(published || retired)
    }

    fn publish(&self, core: &Core, published: bool) {
        if let (Some(ends), true) = (&self.ends, published) {
            core.told.store(core.rx_taken.load(Ordering::Acquire), Ordering::Relaxed);
            ends.link.poke(WANT_REQUESTS);
        }
    }

    /// Work that only another pass can bring on, and for which no word of the peer's will come.
    pub(crate) fn must_go_on(&self) -> bool {
        self.ends.as_ref().is_some_and(|ends| ends.hungry)
    }

    fn learn(&mut self, core: &Core) -> Result<(), Fault> {
        let Some(ends) = self.ends.as_mut() else { return Ok(()) };
        let lie = Fault::Nonsense("requests taken that never were");
        ends.requests.learn_low(core.ack_low.load(Ordering::Acquire)).ok_or(lie)?;
        ends.requests.learn(ends.link.taken()).ok_or(lie)?;
        while let Some((_, mark)) = ends.marks.front().copied().filter(|(slot, _)| *slot < ends.requests.taken()) {
            ends.messages.give_back(mark);
            ends.marks.pop_front();
        }
        let before = ends.responses.taken();
        while let Some(answer) = self.next_answer()? {
            match answer {
                (Kind::RmaAck, line, status) => self.answered(core, line, status)?,
                _ => self.refused()?,
            }
        }
        if let Some(ends) = &self.ends
            && ends.responses.taken() != before
        {
            ends.link.tell_taken_responses(ends.responses.taken());
        }
        Ok(())
    }

    /// Takes the next answer off the ring: its kind, line and status.
    fn next_answer(&mut self) -> Result<Option<(Kind, u32, u32)>, Fault> {
        let Some(ends) = self.ends.as_mut() else { return Ok(None) };
        match ends.responses.peek() {
            Next::Empty => Ok(None),
            Next::Word(header) if matches!(header.kind, Kind::RmaAck | Kind::SendNak) => {
                let line = ends.responses.cargo(0).aux;
                ends.responses.advance();
                Ok(Some((header.kind, line, header.length)))
            }
            _ => Err(Fault::Nonsense("an unknown word in the ring of answers")),
        }
    }

    /// The target has answered a fragment. Answers come in the order of the fragments.
    fn answered(&mut self, core: &Core, line: u32, status: u32) -> Result<(), Fault> {
        let Some(ends) = self.ends.as_mut() else { return Ok(()) };
        let Some(pending) = ends.pending.pop_front().filter(|p| p.line == line) else {
            return Err(Fault::Nonsense("an answer to no fragment"));
        };
        let place = usize::try_from(pending.request - ends.first).unwrap_or(usize::MAX);
        let Some(request) = self.queue.get_mut(place) else { return Err(Fault::Nonsense("an answer to no request")) };
        let mut outcome = if status == 0 { Ok(()) } else { Err(Status::RemoteAccess) };
        if pending.read && outcome.is_ok() {
            let from = ends.link.rma.bytes(line as usize * LINE + LINE, pending.length as usize);
            let from = from.ok_or(Fault::Nonsense("a fragment outside its buffer"))?;
            let (regions, length) = (&core.device.regions, pending.length as usize);
            // SAFETY: `length` bytes of our own RMA buffer, reserved for this fragment.
            outcome = unsafe { scatter(regions, core.pd, &request.segments, pending.offset, from, length) };
        }
        ends.rma.give_back(pending.mark);
        request.answered += u64::from(pending.length);
        match outcome {
            Err(status) => request.stage = Stage::Failed(status),
            Ok(()) if request.answered == request.segments.total() && request.stage == Stage::Sent(u64::MAX) => {
                request.stage = Stage::Done;
            }
            Ok(()) => {}
        }
        if pending.read && request.answered == request.segments.total() {
            ends.reads = ends.reads.saturating_sub(1);
        }
        Ok(())
    }

    /// The peer could not take a send: it is the oldest that is not complete.
    fn refused(&mut self) -> Result<(), Fault> {
        let taken = self.ends.as_ref().map_or(0, |ends| ends.requests.taken());
        let open = |r: &&mut Request| match r.stage {
            Stage::Sent(slot) => slot > taken && matches!(r.op, Op::Send { .. }),
            Stage::Running => matches!(r.op, Op::Send { .. }),
            _ => false,
        };
        let request = self.queue.iter_mut().find(open).ok_or(Fault::Nonsense("a refusal of no send"))?;
        request.stage = Stage::Failed(Status::RemoteResponder);
        Ok(())
    }

    /// Hands over as much as fits, in order. Says whether anything was published to the peer.
    fn issue(&mut self, core: &Core) -> bool {
        let mut published = false;
        let mut budget = BUDGET;
        while let (Some(ends), Some(request)) = (self.ends.as_mut(), self.queue.get_mut(self.issued)) {
            if matches!(request.stage, Stage::Failed(_)) || (request.fence && ends.reads > 0) {
                break;
            }
            let number = ends.first + self.issued as u64;
            let step = match request.op {
                Op::Send { solicited } => ends.send(core, request, solicited),
                Op::Write(remote) => ends.rma(core, request, number, remote, Way::Write, &mut budget),
                Op::Read(remote) => ends.rma(core, request, number, remote, Way::Read, &mut budget),
            };
            match step {
                Step::Whole { wrote } => {
                    published |= wrote;
                    self.issued += 1;
                }
                Step::Part { wrote } => {
                    published |= wrote;
                    break;
                }
                Step::Failed(status) => request.stage = Stage::Failed(status),
            }
        }
        published
    }

    /// Completes what is done, from the front. A failure ends the connection, after its own completion.
    fn retire(&mut self, core: &Core, out: &mut Outbox<'_>) -> Result<bool, Fault> {
        let mut moved = false;
        while let (Some(ends), Some(request)) = (self.ends.as_mut(), self.queue.front()) {
            let status = match request.stage {
                Stage::Done => Status::Success,
                Stage::Sent(slot) if slot <= ends.requests.taken() => Status::Success,
                Stage::Failed(status) => status,
                _ => break,
            };
            if status != Status::Success || !request.suppress {
                let bytes = if status == Status::Success { request.segments.total() } else { 0 };
                core.complete_request(out, Completion { token: request.token, status, bytes, solicited: false });
            }
            self.loud -= usize::from(!request.suppress);
            self.queue.pop_front();
            self.issued = self.issued.saturating_sub(1);
            ends.first += 1;
            moved = true;
            if status != Status::Success {
                return Err(Fault::Request);
            }
        }
        if let (true, true, Some(ends)) = (self.draining, self.queue.is_empty(), &self.ends) {
            self.draining = false;
            core.drained(ends.link.clone());
        }
        Ok(moved)
    }

    /// Forgets the connection. The completions of all that was queued.
    pub(crate) fn flush(&mut self) -> impl Iterator<Item = Completion> + '_ {
        self.ends = None;
        self.issued = 0;
        self.loud = 0;
        self.draining = false;
        self.stopped = false;
        self.queue.drain(..).map(|request| request.flushed())
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Is there anything that the peer's progress brings on: completions that are wanted, or work that waits for room?
    pub(crate) fn needs_news(&self) -> bool {
        self.draining || self.loud > 0 || self.queue.len() > self.issued
    }
}

/// What became of an attempt to hand over a request.
enum Step {
    Whole { wrote: bool },
    Part { wrote: bool },
    Failed(Status),
}

impl TxEnds {
    fn cargo(&self, core: &Core) -> Cargo {
        Cargo { ack: core.rx_taken.load(Ordering::Acquire) as u32, ..Cargo::default() }
    }

    fn send(&mut self, core: &Core, request: &mut Request, solicited: bool) -> Step {
        let total = request.segments.total();
        if total > core.device.limits.max_message {
            return Step::Failed(Status::LocalLength);
        }
        let mut wrote = false;
        loop {
            if self.requests.is_full() {
                return Step::Part { wrote };
            }
            let left = total - request.issued;
            let first = request.issued == 0;
            let outcome = if total <= INLINE as u64 {
                self.send_inline(core, request, solicited)
            } else {
                self.send_piece(core, request, solicited, left.min(PIECE as u64) as usize, first)
            };
            match outcome {
                Ok(true) => wrote = true,
                Ok(false) => return Step::Part { wrote },
                Err(status) => return Step::Failed(status),
            }
            request.stage = Stage::Running;
            if request.issued == total {
                request.stage = Stage::Sent(self.requests.next());
                return Step::Whole { wrote };
            }
        }
    }

    fn send_inline(&mut self, core: &Core, request: &mut Request, solicited: bool) -> Result<bool, Status> {
        let total = request.segments.total() as usize;
        let mut cargo = self.cargo(core);
        cargo.words = total.div_ceil(8);
        let to = cargo.body.as_mut_ptr().cast::<u8>();
        // SAFETY: `total` is at most INLINE, the size of `body`.
        unsafe { gather(&core.device.regions, core.pd, &request.segments, 0, to, total) }?;
        let header =
            Header { kind: Kind::Send, first: true, last: true, inline: true, solicited, length: total as u32 };
        self.requests.push(header, &cargo);
        request.issued = total as u64;
        Ok(true)
    }

    fn send_piece(
        &mut self,
        core: &Core,
        request: &mut Request,
        solicited: bool,
        length: usize,
        first: bool,
    ) -> Result<bool, Status> {
        let Some((line, mark)) = self.messages.reserve(length.div_ceil(LINE)) else { return Ok(false) };
        let at = self.link.geometry.messages_at() + line as usize * LINE;
        let to = self.link.area.bytes(at, length).ok_or(Status::LocalEp)?;
        // SAFETY: the lines were reserved for this piece, in our own area.
        let gathered = unsafe { gather(&core.device.regions, core.pd, &request.segments, request.issued, to, length) };
        self.marks.push_back((self.requests.next(), mark));
        gathered?; // else nothing is published for these lines, and the connection ends with this request
        let total = request.segments.total();
        request.issued += length as u64;
        let mut cargo = self.cargo(core);
        cargo.aux = line;
        cargo.body[0] = total;
        cargo.words = 1;
        let last = request.issued == total;
        let header = Header { kind: Kind::Send, first, last, inline: false, solicited, length: length as u32 };
        self.requests.push(header, &cargo);
        Ok(true)
    }

    fn rma(
        &mut self,
        core: &Core,
        request: &mut Request,
        number: u64,
        remote: Remote,
        way: Way,
        budget: &mut u64,
    ) -> Step {
        let total = request.segments.total();
        if total > core.device.limits.max_rdma || remote.address.checked_add(total).is_none() {
            return Step::Failed(if total > core.device.limits.max_rdma {
                Status::LocalLength
            } else {
                Status::RemoteAccess
            });
        }
        if way == Way::Read && (core.max_reads_out == 0) {
            return Step::Failed(Status::RemoteResponder);
        }
        if total == 0 {
            request.stage = Stage::Done;
            return Step::Whole { wrote: false };
        }
        // Fragments under way must land before the kernel copies the rest, so a method is kept to the end of a request.
        let by_kernel = self.link.theirs().is_some_and(|t| t.peer.cma.load(Ordering::Relaxed));
        if by_kernel && request.issued == request.answered && self.pending.is_empty() {
            match self.copy_across(core, request, remote, way, budget) {
                Ok(true) => return Step::Whole { wrote: false },
                Ok(false) => return Step::Part { wrote: false },
                Err(Some(status)) => return Step::Failed(status),
                Err(None) => {} // refused: the bounce buffer is always there
            }
        }
        self.fragment(core, request, number, remote, way)
    }

    /// By the kernel, piece by piece. `Err(None)`: not allowed here, use the other way.
    fn copy_across(
        &mut self,
        core: &Core,
        request: &mut Request,
        remote: Remote,
        way: Way,
        budget: &mut u64,
    ) -> Result<bool, Option<Status>> {
        let theirs = self.link.theirs().ok_or(Some(Status::Transport))?;
        let (peer, pd) = (&theirs.peer, theirs.pd);
        let (local, wish) = match way {
            Way::Write => (Wish::LocalRead, Wish::RemoteWrite),
            Way::Read => (Wish::LocalWrite, Wish::RemoteRead),
        };
        while request.issued < request.segments.total() {
            self.hungry = *budget == 0;
            if self.hungry {
                return Ok(false);
            }
            let chunk = (cma::CHUNK as u64).min(*budget);
            let Some(piece) = request.segments.pieces(request.issued, chunk).next() else { break };
            let target =
                Target { key: remote.key, pd, address: remote.address + request.issued, length: piece.length, wish };
            let _hold =
                core.device.regions.hold(piece.key, core.pd, piece.address, piece.length, local).map_err(Some)?;
            let announced = peer.regions.announce(self.link.busy(), &target).map_err(Some)?;
            // SAFETY: the local piece is registered for this use and held during the copy.
            let copied = unsafe { cma::copy(way, peer.pid, piece.address, target.address, piece.length as usize) };
            drop(announced);
            match copied {
                Ok(()) if !peer.regions.allows(&target) => return Err(Some(Status::RemoteAccess)),
                Ok(()) => {}
                Err(Refusal::Gone) => return Err(Some(Status::Transport)),
                Err(Refusal::Fault) => return Err(Some(Status::RemoteAccess)),
                Err(Refusal::Denied) => {
                    log::info!("cross-memory copy to process {} was refused; going on by shared buffers", peer.pid);
                    peer.cma.store(false, Ordering::Relaxed);
                    return Err(None);
                }
            }
            request.issued += piece.length;
            request.answered = request.issued;
            request.stage = Stage::Running;
            *budget -= piece.length;
        }
        self.hungry = false;
        request.stage = Stage::Done;
        Ok(true)
    }

    /// By fragments in our RMA buffer that the target copies.
    fn fragment(&mut self, core: &Core, request: &mut Request, number: u64, remote: Remote, way: Way) -> Step {
        let total = request.segments.total();
        let read = way == Way::Read;
        let begins = read && request.stage == Stage::Waiting;
        if begins && self.reads >= core.max_reads_out {
            return Step::Part { wrote: false };
        }
        let mut wrote = false;
        while request.issued < total {
            let length = (total - request.issued).min(FRAGMENT as u64) as usize;
            if self.requests.is_full() || self.pending.len() >= self.link.geometry.max_fragments() as usize {
                return Step::Part { wrote };
            }
            let Some((line, mark)) = self.rma.reserve(1 + length.div_ceil(LINE)) else { return Step::Part { wrote } };
            self.pending.push_back(Pending {
                request: number,
                line,
                mark,
                offset: request.issued,
                length: length as u32,
                read,
            });
            if let Err(status) = self.fill(core, request, remote, line, length, read) {
                self.pending.pop_back();
                return Step::Failed(status);
            }
            let kind = if read { Kind::RmaRead } else { Kind::RmaWrite };
            let cargo = Cargo { aux: line, ..self.cargo(core) };
            self.requests.push(Header::plain(kind, 0), &cargo);
            request.issued += length as u64;
            request.stage = Stage::Running;
            self.reads += u32::from(begins && !wrote);
            wrote = true;
        }
        // Complete when all is answered; no ring slot says so.
        request.stage = if request.answered == total { Stage::Done } else { Stage::Sent(u64::MAX) };
        Step::Whole { wrote }
    }

    /// Line 0 describes the fragment; a write's payload follows.
    fn fill(
        &self,
        core: &Core,
        request: &Request,
        remote: Remote,
        line: u32,
        length: usize,
        read: bool,
    ) -> Result<(), Status> {
        let at = line as usize * LINE;
        if !read {
            let to = self.link.rma.bytes(at + LINE, length).ok_or(Status::LocalEp)?;
            // SAFETY: lines reserved for this fragment, in our RMA buffer.
            unsafe { gather(&core.device.regions, core.pd, &request.segments, request.issued, to, length) }?;
        }
        let fragment = Fragment {
            key: remote.key,
            length: length as u32,
            address: remote.address + request.issued,
            origin: request.issued,
            cookie: request.token.cookie,
        };
        for (n, word) in fragment.encode().into_iter().enumerate() {
            self.link.rma.word(at + n * 8).store(word, Ordering::Relaxed);
        }
        Ok(())
    }
}
