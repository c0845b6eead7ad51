//! Public service points (PSPs): a PSP listens on a qualifier, for any number of requests.
//!
//! The entries in `dapl_psp` create, query and free PSPs. The consumer passes the qualifier, or gets a free one. What all
//! service points share is in `service_point`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cr::ProvidedEp;
use crate::ep::{Ep, dapls_ep};
use crate::error::{Error, Handle, Result};
use crate::evd::Evd;
use crate::ia::{CloseRank, Ia};
use crate::provider::{Provider, RequestInfo};
use crate::runtime::handle::{self, Kind, UseGuard};
use crate::runtime::sync::StaticMutex;
use crate::service_point::{Role, ServicePoint};

pub mod dapl_psp;

pub type Psp<P> = ServicePoint<P, Public>;

/// The role of PSPs.
pub struct Public {
    /// Whether an EP is created for every request (`DAT_PSP_PROVIDER_FLAG`).
    creates_eps: bool,
}

impl<P: Provider> Role<P> for Public {
    const KIND: Kind = Kind::Psp;
    const HANDLE: Handle = Handle::Psp;
    const RANK: CloseRank = CloseRank::Psp;

    fn listens(&self, psp: &Psp<P>) {
        LISTED.lock().insert(key(psp, psp.qual()));
    }

    fn stopped(&self, psp: &Psp<P>, listened: bool) {
        if listened {
            LISTED.lock().remove(&key(psp, psp.qual()));
        }
    }

    fn provide(&self, psp: &Psp<P>, info: &RequestInfo) -> Result<Option<ProvidedEp>> {
        if !self.creates_eps {
            return Ok(None);
        }
        let ep = dapls_ep::create_tentative(&psp.ia, info.peer).inspect_err(|error| {
            log::error!(
                "psp {:#x}: cannot create an EP for the connection request of {}, which is rejected: {error}; free EPs that are not \
                 in use",
                psp.id.handle,
                info.peer
            );
        })?;
        Ok(Some(ProvidedEp { ep: ep.id, created_for_request: true }))
    }

    fn take_back(&self, _: &Psp<P>, provided: ProvidedEp) {
        if let Some(ep) = handle::from_id::<Ep<P>>(provided.ep) {
            dapls_ep::close(&*ep);
        }
    }
}

/// Creates a PSP that listens on `qual`, or on a free qualifier if `qual` is `None`. Requests for its handle may arrive
/// before this returns.
///
/// Errors: `ConnQualInUse` if a PSP of this IA listens on the qualifier; `ConnQualTaken` for any other conflict
/// (spec/endpoints 6.1); `ConnQualUnavailable` if no qualifier is free, or if the transport cannot listen on the
/// requested one.
fn open<P: Provider>(
    ia: &Arc<Ia<P>>,
    qual: Option<u64>,
    evd: UseGuard<Evd<P>>,
    creates_eps: bool,
) -> Result<Arc<Psp<P>>> {
    Psp::open(ia, Public { creates_eps }, evd, |psp| match qual {
        Some(qual) => listen(psp, qual),
        None => listen_anywhere(psp),
    })
}

fn listen<P: Provider>(psp: &Psp<P>, qual: u64) -> Result<()> {
    psp.listen(qual).map_err(|error| match error {
        Error::ConnQualTaken if LISTED.lock().contains(&key(psp, qual)) => Error::ConnQualInUse,
        error => error,
    })
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

fn key<P: Provider>(psp: &Psp<P>, qual: u64) -> (usize, u32, u64) {
    (psp.ia.id.handle, psp.ia.id.generation, qual)
}
