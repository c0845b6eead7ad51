//! The plan of failures, read once from the variable `DAPL_FAULTY` or set by a test in the same process, and consulted
//! before every call that can fail.
//!
//! The variable is a list of settings separated by commas:
//! - `count`: logs the number of calls at each close
//! - `fail=N`: the N-th call fails, with the usual error of its operation; `fail=OP:N` the N-th of one operation
//! - `refuse=OP`: every call of this operation fails
//! - `delay=OP:MILLISECONDS`: every call of this operation waits first; also for `event` and `request`, the provider's
//!   reports
//! - `spoil=N`: the N-th posted request names memory that is not registered, so it is accepted and fails later
//!
//! Never blocks, except for the planned delays.
#![forbid(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use dapl::error::{AddressProblem, Error, Resource, Result};

/// Operations of the provider interface that can fail. The last two are the provider's events, which can only be
/// delayed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(usize)]
pub enum Op {
    Open,
    AllocPd,
    Register,
    Join,
    AllocMw,
    CreateSrq,
    CreateCq,
    CreateQp,
    Listen,
    Arm,
    SrqPostRecv,
    SrqResize,
    SrqWatch,
    PostRecv,
    PostSend,
    PostBind,
    WatchRecvs,
    Connect,
    Reset,
    Accept,
    HandOff,
    Event,
    Request,
}

const OPS: usize = Op::Request as usize + 1;

impl Op {
    /// Operation, name with a NUL terminator for C, and error.
    const ALL: [(Op, &str, Error); OPS] = [
        (Op::Open, "open\0", Error::Exhausted(Resource::Device)),
        (Op::AllocPd, "alloc_pd\0", Error::Exhausted(Resource::ProtectionDomain)),
        (Op::Register, "register\0", Error::Exhausted(Resource::MemoryRegion)),
        (Op::Join, "join\0", Error::Exhausted(Resource::Memory)),
        (Op::AllocMw, "alloc_mw\0", Error::Exhausted(Resource::Memory)),
        (Op::CreateSrq, "create_srq\0", Error::Exhausted(Resource::Srq)),
        (Op::CreateCq, "create_cq\0", Error::Exhausted(Resource::Evd)),
        (Op::CreateQp, "create_qp\0", Error::Exhausted(Resource::Ep)),
        (Op::Listen, "listen\0", Error::Exhausted(Resource::Memory)),
        (Op::Arm, "arm\0", Error::Internal),
        (Op::SrqPostRecv, "srq_post_recv\0", Error::Exhausted(Resource::Memory)),
        (Op::SrqResize, "srq_resize\0", Error::Exhausted(Resource::Memory)),
        (Op::SrqWatch, "srq_watch\0", Error::Exhausted(Resource::Memory)),
        (Op::PostRecv, "post_recv\0", Error::Exhausted(Resource::Memory)),
        (Op::PostSend, "post_send\0", Error::Exhausted(Resource::Memory)),
        (Op::PostBind, "post_bind\0", Error::Exhausted(Resource::Memory)),
        (Op::WatchRecvs, "watch_recvs\0", Error::ModelNotSupported),
        (Op::Connect, "connect\0", Error::InvalidAddress(AddressProblem::Unreachable)),
        (Op::Reset, "reset\0", Error::Internal),
        (Op::Accept, "accept\0", Error::Exhausted(Resource::Memory)),
        (Op::HandOff, "hand_off\0", Error::InvalidParameter(2)),
        (Op::Event, "event\0", Error::Internal),
        (Op::Request, "request\0", Error::Internal),
    ];

    /// Returns the operation with this name.
    pub fn named(name: &str) -> Option<Op> {
        Self::ALL.iter().find(|(_, known, _)| known.trim_end_matches('\0') == name).map(|(op, ..)| *op)
    }

    /// Name of the operation, with a NUL terminator.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Error of a planned failure.
    pub fn error(self) -> Error {
        Self::ALL[self as usize].2
    }
}

/// Number of calls of one operation, and its planned failures and delay.
struct OperationPlan {
    calls: AtomicU64,
    /// The call with this number fails; 0: no call fails.
    fails_at: AtomicU64,
    refused: AtomicU32,
    delay: AtomicU64,
}

static OPERATION_PLANS: [OperationPlan; OPS] = [const {
    OperationPlan {
        calls: AtomicU64::new(0),
        fails_at: AtomicU64::new(0),
        refused: AtomicU32::new(0),
        delay: AtomicU64::new(0),
    }
}; OPS];

static CALLS: AtomicU64 = AtomicU64::new(0);
static FAILS_AT: AtomicU64 = AtomicU64::new(0);
static REQUESTS: AtomicU64 = AtomicU64::new(0);
static CORRUPTED_AT: AtomicU64 = AtomicU64::new(0);
static LOGS_COUNT: AtomicU32 = AtomicU32::new(0);
/// Number of the operation that failed last, plus 1; 0 if none has failed since the last [`fail`].
static LAST_FAILED: AtomicU64 = AtomicU64::new(0);

/// Called before an operation that can fail: counts the call, delays it, and fails it as planned.
pub fn ask(op: Op) -> Result<()> {
    read_variable();
    let plan = &OPERATION_PLANS[op as usize];
    let (all, own) = (CALLS.fetch_add(1, SeqCst) + 1, plan.calls.fetch_add(1, SeqCst) + 1);
    wait(op);
    let fails = all == FAILS_AT.load(SeqCst) || own == plan.fails_at.load(SeqCst) || plan.refused.load(SeqCst) != 0;
    if !fails {
        return Ok(());
    }
    LAST_FAILED.store(op as u64 + 1, SeqCst);
    log::debug!("faulty: call {all}, {} number {own}, fails", op.name().trim_end_matches('\0'));
    Err(op.error())
}

/// Delays a call, or an event of the provider, as planned.
pub fn wait(op: Op) {
    let delay = OPERATION_PLANS[op as usize].delay.load(SeqCst);
    if delay > 0 {
        std::thread::sleep(Duration::from_millis(delay));
    }
}

/// Counts a request. Returns whether it must name unregistered memory.
pub fn spoils() -> bool {
    REQUESTS.fetch_add(1, SeqCst) + 1 == CORRUPTED_AT.load(SeqCst)
}

/// Makes the `n`-th following call of operation `op` fail, or of any operation if `op` is `None`. 0 plans no failure.
/// Cancels what an earlier `fail` has planned, and forgets earlier failures.
pub fn fail(op: Option<Op>, n: u64) {
    FAILS_AT.store(0, SeqCst);
    OPERATION_PLANS.iter().for_each(|plan| plan.fails_at.store(0, SeqCst));
    LAST_FAILED.store(0, SeqCst);
    let (calls, at) = match op {
        Some(op) => (&OPERATION_PLANS[op as usize].calls, &OPERATION_PLANS[op as usize].fails_at),
        None => (&CALLS, &FAILS_AT),
    };
    at.store(if n == 0 { 0 } else { calls.load(SeqCst) + n }, SeqCst);
}

/// Makes the `n`-th following request fail after its post, because it names unregistered memory. 0 plans no failure.
pub fn spoil(n: u64) {
    CORRUPTED_AT.store(if n == 0 { 0 } else { REQUESTS.load(SeqCst) + n }, SeqCst);
}

/// Number of calls that can fail, since the library was loaded.
pub fn count() -> u64 {
    CALLS.load(SeqCst)
}

/// Returns the operation that failed last; `None` if none has failed since the last [`fail`].
pub fn fired() -> Option<Op> {
    let number = LAST_FAILED.load(SeqCst).checked_sub(1)?;
    Op::ALL.get(number as usize).map(|(op, ..)| *op)
}

/// Logs the number of calls if the plan contains `count`.
pub fn report() {
    if LOGS_COUNT.load(SeqCst) != 0 {
        log::warn!("faulty: {} calls", count());
    }
}

fn read_variable() {
    static READ: Once = Once::new();
    READ.call_once(|| {
        let text = std::env::var("DAPL_FAULTY").unwrap_or_default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            if apply(word).is_none() {
                log::error!("DAPL_FAULTY: {word} is not understood; test/faulty/src/plan.rs lists the settings");
            }
        }
    });
}

fn apply(word: &str) -> Option<()> {
    if word == "count" {
        LOGS_COUNT.store(1, SeqCst);
        return Some(());
    }
    let (what, value) = word.split_once('=')?;
    match (what, value.split_once(':')) {
        ("fail", None) => FAILS_AT.store(value.parse().ok()?, SeqCst),
        ("fail", Some((op, n))) => OPERATION_PLANS[Op::named(op)? as usize].fails_at.store(n.parse().ok()?, SeqCst),
        ("spoil", None) => CORRUPTED_AT.store(value.parse().ok()?, SeqCst),
        ("refuse", None) => OPERATION_PLANS[Op::named(value)? as usize].refused.store(1, SeqCst),
        ("delay", Some((op, ms))) => OPERATION_PLANS[Op::named(op)? as usize].delay.store(ms.parse().ok()?, SeqCst),
        _ => return None,
    }
    Some(())
}
