//! Creates a PSP on the qualifier that the consumer passes, or on a free qualifier.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{ListenerState, Psp};
use crate::error::{Error, Handle, Result};
use crate::evd::Evd;
use crate::ia::{CloseRank, Ia};
use crate::provider::Provider;
use crate::runtime::handle::{self, UseGuard};
use crate::runtime::sync::StaticMutex;

/// Creates a PSP that listens on `qual`, or on a free qualifier if `qual` is `None`. Requests for its handle may arrive
/// before this returns.
///
/// Errors: `ConnQualInUse` if a PSP of this IA listens on the qualifier; `ConnQualTaken` for any other conflict
/// (spec/endpoints 6.1); `ConnQualUnavailable` if no qualifier is free, or if the transport cannot listen on the
/// requested one.
pub(super) fn open<P: Provider>(
    ia: &Arc<Ia<P>>,
    qual: Option<u64>,
    evd: UseGuard<Evd<P>>,
    creates_eps: bool,
) -> Result<Arc<Psp<P>>> {
    let made = handle::create(ia.table(), |id| {
        Ok(Psp {
            id,
            ia: ia.clone(),
            qual: AtomicU64::new(0),
            creates_eps,
            state: Mutex::new(ListenerState { listener: None, evd: Some(evd) }),
        })
    })?;
    let psp = made.object().clone();
    made.publish();
    let listening = qual.map_or_else(|| listen_anywhere(&psp), |qual| listen(&psp, qual));
    if let Err(error) = listening {
        let _ = psp.stop_listening();
        return Err(error);
    }
    ia.add_child(&psp, CloseRank::Psp);
    Ok(psp)
}

fn listen<P: Provider>(psp: &Psp<P>, qual: u64) -> Result<()> {
    psp.qual.store(qual, Ordering::Relaxed);
    let listener = psp.ia.provider.listen(qual, psp.id).map_err(|error| match error {
        Error::ConnQualTaken if LISTED.lock().contains(&key(&psp.ia, qual)) => Error::ConnQualInUse,
        error => error,
    })?;
    let mut state = psp.state.lock();
    if state.evd.is_none() {
        drop(state);
        drop(listener);
        return Err(Error::InvalidHandle(Handle::Psp)); // another thread freed the PSP through a guessed handle
    }
    state.listener = Some(listener);
    LISTED.lock().insert(key(&psp.ia, qual));
    Ok(())
}

/// First qualifier of the range in which a free one is searched.
const FIRST: u64 = 1024;
/// End of the range, exclusive. Programs truncate qualifiers to 16 bits, so a peer would not find a larger one
/// (spec/consumers 6).
const END: u64 = 0x1_0000;

/// Offset in the range at which the next search for a free qualifier starts.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn listen_anywhere<P: Provider>(psp: &Psp<P>) -> Result<()> {
    for _ in FIRST..END {
        let qual = FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % (END - FIRST);
        match listen(psp, qual) {
            Err(Error::ConnQualInUse | Error::ConnQualTaken) => {}
            other => return other,
        }
    }
    log::error!("no connection qualifier between {FIRST} and {} is free; free a listener or pass a qualifier", END - 1);
    Err(Error::ConnQualUnavailable)
}

/// The qualifiers of this library's PSPs: IA handle, generation, qualifier. A conflict with a PSP of the same IA in
/// this list is reported as `ConnQualInUse`, any other conflict as `ConnQualTaken`.
static LISTED: StaticMutex<BTreeSet<(usize, u32, u64)>> = StaticMutex::new(BTreeSet::new());

/// Locks the list of PSPs while the process forks.
pub(crate) fn lock_for_fork() -> impl Sized {
    LISTED.lock()
}

fn key<P: Provider>(ia: &Ia<P>, qual: u64) -> (usize, u32, u64) {
    (ia.id.handle, ia.id.generation, qual)
}

/// Removes the qualifier of a PSP from the list.
pub(super) fn unlist<P: Provider>(ia: &Ia<P>, qual: u64) {
    LISTED.lock().remove(&key(ia, qual));
}
