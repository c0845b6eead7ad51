//! Points at which a test kills or stops a process, or at which a thread yields or calls a function. `fail_point!`
//! marks the points. The environment variable [`PLAN`] selects the point for the process; [`yield_at`] and [`call_at`]
//! select a point for the calling thread. A point that is not selected has no effect.

use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Environment variable with the plan: `<point> <times passed before> kill|stop`.
pub(crate) const PLAN: &str = "DAPL_SM_TEST_PLAN";

/// The points, in the order of a connection's life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Point {
    // Creation of the directory of an end point, and of the name of a listener.
    FolderBegun,
    FolderHasLockFile,
    FolderBuilt,
    FolderNamed,
    QualOpened,
    QualLocked,
    QualWritten,
    // Points of the handshake.
    BeforeRequest,
    AfterRequestOrReply,
    RequestReceived,
    BeforeReply,
    ReplyReceived,
    BeforeAck,
    AfterAck,
    Confirmed,
    Reported,
    // Points of a message that is sent through the slot or the message buffer.
    SlotReserved,
    SlotFilled,
    LinesReserved,
    LinesFilled,
    BeforePublish,
    AfterPublish,
    FragmentCopied,
    BeforeTelling,
    Completed,
    // Points of a long message.
    OfferReserved,
    Offered,
    OfferRead,
    HelpAsked,
    HelpSeen,
    HelpClaimed,
    PartFetched,
    PartStaged,
    // Points of RDMA.
    KeyAnnounced,
    KernelAsked,
    KernelAnswered,
    SegmentCopied,
    FragmentReserved,
    FragmentFilled,
    TargetHeld,
    TargetCopied,
    EagerClaimed,
    EagerReclaimed,
    // Points of the end of a connection, and of the removal of end point directories.
    MarkedEnded,
    Leaving,
    CleanerLocked,
    CleanerMovedAside,
    CleanerRemoved,
}

struct Plan {
    point: String,
    passes: AtomicU32,
    signal: i32,
}

type PointFunction = Box<dyn FnMut()>;

thread_local! {
    /// The point at which this thread yields the processor.
    static YIELDS_AT: Cell<Option<Point>> = const { Cell::new(None) };
    /// The point at which this thread calls a function, and that function.
    static CALLS_AT: RefCell<Option<(Point, PointFunction)>> = const { RefCell::new(None) };
}

/// Makes this thread yield the processor several times when it reaches the point.
pub(crate) fn yield_at(point: Point) {
    YIELDS_AT.set(Some(point));
}

/// Guard of a function that is called at a point. Dropping it ends these calls.
pub(crate) struct CallAtPoint;

/// Makes this thread call `function` each time it reaches the point, until the result is dropped.
#[must_use]
pub(crate) fn call_at(point: Point, function: impl FnMut() + 'static) -> CallAtPoint {
    CALLS_AT.set(Some((point, Box::new(function))));
    CallAtPoint
}

impl Drop for CallAtPoint {
    fn drop(&mut self) {
        CALLS_AT.take();
    }
}

/// Yields, calls the function, or raises the signal that is selected for this point. Called when a thread reaches it.
pub(crate) fn at(point: Point) {
    if YIELDS_AT.get() == Some(point) {
        (0..100).for_each(|_| std::thread::yield_now());
    }
    CALLS_AT.with_borrow_mut(|call| match call {
        Some((at, function)) if *at == point => function(),
        _ => {}
    });
    static PLANNED: OnceLock<Option<Plan>> = OnceLock::new();
    let Some(plan) = PLANNED.get_or_init(read) else { return };
    if plan.point == format!("{point:?}") && plan.passes.fetch_sub(1, Ordering::SeqCst) == 0 {
        // Sends the signal to this thread. If another thread got the signal, this thread would continue for some time.
        // SAFETY: the call accesses no memory, and the effect of the signal is intended.
        unsafe { libc::raise(plan.signal) };
    }
}

fn read() -> Option<Plan> {
    let text = std::env::var(PLAN).ok()?;
    let [point, passes, signal] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{PLAN}: {text}") };
    let signal = if signal == "stop" { libc::SIGSTOP } else { libc::SIGKILL };
    Some(Plan { point: point.into(), passes: passes.parse::<u32>().unwrap().into(), signal })
}
