//! Cases for transfers between two connected endpoints of one process, and the pair of endpoints that other cases use.
#![forbid(unsafe_code)]

use dat_abi::*;

use super::objects::Bench;
use super::{Case, ensure};
use crate::common::Common;
use crate::dat::raw::{self, Post};
use crate::dat::{
    Address, Ep, Event, Handle, Ia, Memory, Object, RemoteBuffer, WaitMethod, WaitPolicy, drain, status_word,
};
use crate::failure::{Failure, Result};

pub(super) const CASES: &[Case] = &[
    ("a message arrives", message),
    ("messages from 1 byte to 1 MiB arrive", sizes),
    ("an empty message arrives", empty),
    ("messages arrive in order", in_order),
    ("a message is gathered from 3 segments and scattered into 2", gathered),
    ("the completion of a longer receive reports the message length", shorter),
    ("RDMA writes from 1 byte to 1 MiB arrive", write),
    ("RDMA reads from 1 byte to 1 MiB return the peer's data", read),
    ("an RDMA write through an RMR arrives", through_rmr),
    ("an RDMA write with an invalid key fails and ends the connection", wrong_key),
    ("an RDMA write beyond the peer's memory fails and ends the connection", beyond),
    ("messages in both directions at the same time arrive", crossing),
];

/// Bytes of memory per endpoint.
const AREA: usize = 1 << 20;

/// Two connected endpoints. The first has connected to the second.
pub(super) struct Pair {
    pub(super) ends: [Ep; 2],
    pub(super) memory: [Memory; 2],
    pub(super) bench: Bench,
    pub(super) wait_policy: WaitPolicy,
}

pub(super) fn own_address(ia: &Ia) -> Result<Address> {
    let attr = raw::ia_query(ia.handle())?;
    raw::own_address(&attr).ok_or_else(|| Failure::Message("the adapter's address is neither IPv4 nor IPv6".to_owned()))
}

impl Pair {
    pub(super) fn new(common: &Common) -> Result<Self> {
        let bench = Bench::new(common)?;
        let wait_policy = WaitPolicy { how: WaitMethod::Sleep, limit: common.limit };
        let memory = [bench.memory(AREA)?, bench.memory(AREA)?];
        let ends = [bench.ep()?, bench.ep()?];
        let pair = Pair { ends, memory, bench, wait_policy };
        pair.connect()?;
        Ok(pair)
    }

    /// Connects the two unconnected endpoints.
    pub(super) fn connect(&self) -> Result {
        let (psp, qual) = self.bench.ia.psp_any(&self.bench.requests)?;
        let to = own_address(&self.bench.ia)?;
        let microseconds = u32::try_from(self.wait_policy.limit.as_micros()).unwrap_or(DAT_TIMEOUT_INFINITE - 1);
        self.ends[0].connect(to, qual, microseconds, DAT_QOS_BEST_EFFORT)?;
        self.ends[1].accept(next_request(&self.bench, self.wait_policy)?)?;
        // The two events may arrive in either order.
        let mut wanted = vec![self.ends[0].handle(), self.ends[1].handle()];
        while !wanted.is_empty() {
            match self.wait_policy.next(&self.bench.conn, "the ESTABLISHED event")? {
                Event::Connection { ep, number: DAT_CONNECTION_EVENT_ESTABLISHED } if wanted.contains(&ep) => {
                    wanted.retain(|one| *one != ep);
                }
                event => return Failure::with_message(format!("{event:?}, expected ESTABLISHED")),
            }
        }
        psp.free()?;
        Ok(())
    }

    /// Posts a work request with one segment.
    fn post(&self, end: usize, post: Post, at: usize, length: usize, cookie: u64) -> Result {
        Ok(self.ends[end].post(post, &mut self.memory[end].segments(at, length, 1), cookie)?)
    }

    /// Dequeues `count` completions and sorts them by cookie.
    pub(super) fn completions(&self, count: usize) -> Result<Vec<Done>> {
        let mut found = Vec::new();
        while found.len() < count {
            match self.wait_policy.next(&self.bench.dtos, "a completion")? {
                Event::Dto { ep, cookie, status, length } => found.push(Done { ep, cookie, status, length }),
                event => return Failure::with_message(format!("{event:?}, expected a completion")),
            }
        }
        found.sort_by_key(|done| done.cookie);
        Ok(found)
    }

    /// Waits for as many completions as `wanted` has, and checks that they are successful and have these cookies and
    /// lengths.
    fn all_good(&self, wanted: &[(u64, usize)]) -> Result {
        for (done, (cookie, length)) in self.completions(wanted.len())?.iter().zip(wanted) {
            if done.status != DAT_DTO_SUCCESS || done.cookie != *cookie || done.length != *length as u64 {
                let (word, came) = (status_word(done.status), done.cookie);
                let ours = format!("completion with cookie {came}: {word}, {} bytes", done.length);
                return Failure::with_message(format!("{ours}; expected cookie {cookie}: success, {length} bytes"));
            }
        }
        Ok(())
    }

    fn fill(&self, end: usize, at: usize, length: usize, seed: usize) {
        self.memory[end].fill(at, length, byte(seed));
    }

    fn check(&self, end: usize, at: usize, length: usize, seed: usize) -> Result {
        match self.memory[end].differs(at, length, byte(seed)) {
            None => Ok(()),
            Some((at, found)) => Failure::with_message(format!("byte {at} of {length} is wrong: 0x{found:02x}")),
        }
    }

    /// Disconnects, and closes all objects.
    fn close(self) -> Result {
        self.ends[0].disconnect(DAT_CLOSE_GRACEFUL_FLAG)?;
        for _ in &self.ends {
            match self.wait_policy.next(&self.bench.conn, "the end of the connection")? {
                Event::Connection { number: DAT_CONNECTION_EVENT_DISCONNECTED, .. } => {}
                event => return Failure::with_message(format!("{event:?}, expected the end of the connection")),
            }
        }
        self.free()
    }

    /// Closes all objects, connected or not.
    pub(super) fn free(self) -> Result {
        self.ends.into_iter().try_for_each(Object::free)?;
        drop(self.memory);
        drain(&self.bench.dtos);
        self.bench.close()
    }
}

pub(super) struct Done {
    pub(super) ep: Handle,
    pub(super) cookie: u64,
    pub(super) status: DAT_DTO_COMPLETION_STATUS,
    pub(super) length: u64,
}

/// Dequeues the next connection request.
pub(super) fn next_request(bench: &Bench, wait_policy: WaitPolicy) -> Result<Handle> {
    match wait_policy.next(&bench.requests, "a connection request")? {
        Event::Request { cr, .. } => Ok(cr),
        event => Failure::with_message(format!("the event {event:?} arrived; expected a connection request")),
    }
}

fn byte(seed: usize) -> impl Fn(usize) -> u8 {
    move |at| (seed + at + (at >> 8) * 31 + (at >> 16) * 17) as u8
}

fn send(pair: &Pair, length: usize, seed: usize) -> Result {
    pair.fill(0, 0, length, seed);
    pair.post(1, Post::Recv, 0, length, 1)?;
    pair.post(0, Post::Send, 0, length, 2)?;
    pair.all_good(&[(1, length), (2, length)])?;
    pair.check(1, 0, length, seed)
}

fn message(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    send(&pair, 1000, 7)?;
    pair.close()
}

fn sizes(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    [1, 3, 4095, 65_537, AREA].iter().try_for_each(|length| send(&pair, *length, *length))?;
    pair.close()
}

fn empty(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    pair.ends[1].post(Post::Recv, &mut [], 1)?;
    pair.ends[0].post(Post::Send, &mut [], 2)?;
    pair.all_good(&[(1, 0), (2, 0)])?;
    pair.close()
}

fn in_order(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    const COUNT: usize = 8;
    for number in 0..COUNT {
        pair.fill(0, number * 100, 100, number);
        pair.post(1, Post::Recv, number * 100, 100, number as u64)?;
    }
    for number in 0..COUNT {
        pair.post(0, Post::Send, number * 100, 100, (100 + number) as u64)?;
    }
    let sends = (0..COUNT).map(|number| (100 + number as u64, 100));
    pair.all_good(&(0..COUNT).map(|number| (number as u64, 100)).chain(sends).collect::<Vec<_>>())?;
    (0..COUNT).try_for_each(|number| pair.check(1, number * 100, 100, number))?;
    pair.close()
}

fn gathered(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    pair.fill(0, 0, 300, 5);
    pair.ends[1].post(Post::Recv, &mut pair.memory[1].segments(0, 150, 2), 1)?;
    pair.ends[0].post(Post::Send, &mut pair.memory[0].segments(0, 100, 3), 2)?;
    pair.all_good(&[(1, 300), (2, 300)])?;
    pair.check(1, 0, 300, 5)?;
    pair.close()
}

fn shorter(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    pair.post(1, Post::Recv, 0, 1000, 1)?;
    pair.post(0, Post::Send, 0, 10, 2)?;
    pair.all_good(&[(1, 10), (2, 10)])?;
    pair.close()
}

fn write(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    for length in [1, 4096, AREA] {
        pair.fill(0, 0, length, length);
        let to = pair.memory[1].place().part(0, length as u64);
        pair.post(0, Post::Write(to), 0, length, 1)?;
        pair.all_good(&[(1, length)])?;
        pair.check(1, 0, length, length)?;
    }
    pair.close()
}

fn read(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    for length in [1, 4096, AREA] {
        pair.fill(1, 0, length, length);
        let from = pair.memory[1].place().part(0, length as u64);
        pair.post(0, Post::Read(from), 0, length, 1)?;
        pair.all_good(&[(1, length)])?;
        pair.check(0, 0, length, length)?;
    }
    pair.close()
}

fn through_rmr(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    let rmr = pair.bench.pz.rmr()?;
    let segment = pair.memory[1].segments(4096, 4096, 1)[0];
    let privileges = DAT_MEM_PRIV_REMOTE_WRITE_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG;
    let context = raw::rmr_bind(rmr.handle(), &segment, privileges, pair.ends[1].handle(), 9)?;
    match pair.wait_policy.next(&pair.bench.dtos, "the completion of a bind")? {
        Event::Bind { cookie: 9, status: DAT_RMR_BIND_SUCCESS, rmr: bound } if bound == rmr.handle() => {}
        event => return Failure::with_message(format!("{event:?}, expected the completion of the bind")),
    }
    pair.fill(0, 0, 100, 3);
    let to = RemoteBuffer { context, ..pair.memory[1].place() }.part(4096, 100);
    pair.post(0, Post::Write(to), 0, 100, 1)?;
    pair.all_good(&[(1, 100)])?;
    pair.check(1, 4096, 100, 3)?;
    rmr.free()?;
    pair.close()
}

fn wrong_key(common: &Common) -> Result {
    fails(common, |place| RemoteBuffer { context: place.context ^ 0x5555_5500, ..place }.part(0, 64))
}

fn beyond(common: &Common) -> Result {
    fails(common, |place| place.part(AREA as u64 - 63, 64))
}

/// Checks that a write to this target fails and ends the connection.
fn fails(common: &Common, to: impl Fn(RemoteBuffer) -> DAT_RMR_TRIPLET) -> Result {
    let pair = Pair::new(common)?;
    pair.post(0, Post::Write(to(pair.memory[1].place())), 0, 64, 1)?;
    let done = &pair.completions(1)?[0];
    ensure(
        done.ep == pair.ends[0].handle() && done.status != DAT_DTO_SUCCESS,
        "the write succeeded, or another endpoint completed it",
    )?;
    ensure(done.status != DAT_DTO_ERR_FLUSHED, "the failed write itself completed with DAT_DTO_ERR_FLUSHED")?;
    match pair.wait_policy.next(&pair.bench.conn, "the end of the connection")? {
        Event::Connection { number: DAT_CONNECTION_EVENT_BROKEN | DAT_CONNECTION_EVENT_DISCONNECTED, .. } => {}
        event => return Failure::with_message(format!("{event:?}, expected the end of the connection")),
    }
    pair.free()
}

fn crossing(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    for end in [0, 1] {
        pair.fill(end, 0, 5000, end);
        pair.post(end, Post::Recv, 8192, 5000, end as u64)?;
    }
    for end in [0, 1] {
        pair.post(end, Post::Send, 0, 5000, 10 + end as u64)?;
    }
    pair.all_good(&[(0, 5000), (1, 5000), (10, 5000), (11, 5000)])?;
    pair.check(0, 8192, 5000, 1)?;
    pair.check(1, 8192, 5000, 0)?;
    pair.close()
}
