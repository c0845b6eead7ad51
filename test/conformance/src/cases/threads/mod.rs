//! Many threads in the library concurrently: on objects, in transfers, in waits, and during disconnects and frees.
//!
//! Loops count rounds and never measure time. Concurrent calls have several correct results; a case checks that the
//! result is one of them, and that nothing is lost, duplicated or mixed up.
#![forbid(unsafe_code)]

mod ends;
mod events;
mod objects;
mod posts;
mod wakes;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    [objects::cases(), posts::cases(), events::cases(), wakes::cases(), ends::cases()].into_iter().flatten().collect()
}

/// Runs `work` in this number of threads at the same time, each with its index.
fn run_threads(threads: usize, work: impl Fn(usize) + Sync) {
    let start = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (work, start) = (&work, &start);
            scope.spawn(move || {
                start.wait();
                work(number);
            });
        }
    });
}

/// Checks that the type of a return code is one of `kinds`.
#[track_caller]
fn kind_in(code: DAT_RETURN, kinds: &[DAT_RETURN_TYPE]) {
    let is_one = kinds
        .iter()
        .any(|kind| if *kind == DAT_SUCCESS { code == DAT_SUCCESS } else { kind_of(code) & !DAT_CLASS_ERROR == *kind });
    let name = |kind: &DAT_RETURN_TYPE| match *kind {
        DAT_SUCCESS => crate::names::of_code(DAT_SUCCESS),
        kind => crate::names::of_code(DAT_CLASS_ERROR | kind),
    };
    let wanted = || kinds.iter().map(name).collect::<Vec<_>>().join(" or ");
    assert!(is_one, "the call returned {}, wanted {}", crate::names::of_code(code), wanted());
}
