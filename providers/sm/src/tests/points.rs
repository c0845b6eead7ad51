//! Numbered points at which a test kills or stops a process: the one that `PLAN` names, when it is reached.
//! `fail_point!` marks them; without the variable they do nothing.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// `<point> <how often it passes there> kill|stop`.
pub(crate) const PLAN: &str = "DAPL_SM_TEST_PLAN";

/// The point.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Point {
    // The folder of an end point, and the name of a listener.
    FolderBegun,
    FolderHasLockFile,
    FolderBuilt,
    FolderNamed,
    QualOpened,
    QualLocked,
    QualWritten,
    // The hand-shake.
    BeforeRequest,
    AfterRequestOrReply,
    RequestReceived,
    BeforeReply,
    ReplyReceived,
    BeforeAck,
    AfterAck,
    Confirmed,
    Reported,
    // A message.
    SlotReserved,
    SlotFilled,
    LinesReserved,
    LinesFilled,
    BeforePublish,
    AfterPublish,
    PieceTaken,
    BeforeTelling,
    Completed,
    // A long message.
    OfferReserved,
    Offered,
    OfferRead,
    HelpAsked,
    HelpSeen,
    HelpClaimed,
    PartFetched,
    PartStaged,
    // RDMA.
    KeyAnnounced,
    KernelAsked,
    KernelAnswered,
    PieceCopied,
    FragmentReserved,
    FragmentFilled,
    TargetHeld,
    TargetCopied,
    // The end.
    MarkedOver,
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

thread_local! {
    /// The point at which this thread yields.
    static YIELDS_AT: Cell<Option<Point>> = const { Cell::new(None) };
}

/// From now on this thread lets others run for a moment at that point.
pub(crate) fn yield_at(point: Point) {
    YIELDS_AT.set(Some(point));
}

/// The process comes to a point.
pub(crate) fn at(point: Point) {
    if YIELDS_AT.get() == Some(point) {
        (0..100).for_each(|_| std::thread::yield_now());
    }
    static PLANNED: OnceLock<Option<Plan>> = OnceLock::new();
    let Some(plan) = PLANNED.get_or_init(read) else { return };
    if plan.point == format!("{point:?}") && plan.passes.fetch_sub(1, Ordering::SeqCst) == 0 {
        // Of this thread: another would take it a moment later, and this one would go on until then.
        // SAFETY: a plain call; what the signal does is wanted.
        unsafe { libc::raise(plan.signal) };
    }
}

fn read() -> Option<Plan> {
    let text = std::env::var(PLAN).ok()?;
    let [point, passes, signal] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{PLAN}: {text}") };
    let signal = if signal == "stop" { libc::SIGSTOP } else { libc::SIGKILL };
    Some(Plan { point: point.into(), passes: passes.parse::<u32>().unwrap().into(), signal })
}
