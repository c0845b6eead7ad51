//! IA operations for other modules: open, close, and reporting an asynchronous error.
//!
//! When [`close`] returns success, the provider has joined its threads of this IA. The exception is the calling thread:
//! an agent may close the IA on a thread of the provider.
#![forbid(unsafe_code)]

use std::ffi::CStr;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, Weak};

use dat_abi::{DAT_EVD_HANDLE, DAT_EVD_OUT_OF_SCOPE, DAT_IA_HANDLE, v2};
use parking_lot::Mutex;

use super::dapli_counts::IaCounts;
use super::{AsyncError, AsyncErrorSink, AsyncEvd, Child, Ia};
use crate::error::{Handle, Result};
use crate::names::{RegisteredName, Registration};
use crate::provider::{CmSink, Extensions, IaSpec, Provider};
use crate::runtime::consumer_memory::{self, SocketAddress};
use crate::runtime::handle::{self, ObjectId};
use crate::runtime::hazard;
use crate::runtime::sync::StaticMutex;
use crate::runtime::timer;
use crate::stats::publication::{self, CounterSource};
use crate::stats::trace;

/// Returns the async EVD of a new IA, which it creates if the consumer passes none.
pub type AsyncEvdConstructor<P> = Box<dyn FnOnce(&Arc<Ia<P>>) -> Result<AsyncEvd>>;

/// Opens an IA. Returns its handle, and the handle of its async EVD.
///
/// Errors: those of the provider; those of `dat_evd_create`, if a new async EVD cannot be created.
pub fn open<P: Provider>(
    registration: &'static RegisteredName,
    sink: Arc<dyn CmSink<P>>,
    async_evd: AsyncEvdConstructor<P>,
) -> Result<(DAT_IA_HANDLE, DAT_EVD_HANDLE)> {
    hazard::prepare();
    // The trace settings are removed from `ia_params`; the provider gets the other words.
    let Registration { params, library, .. } = registration.last();
    let (tracing, params) = trace::TraceSettings::read(&params);
    let spec = IaSpec { name: &registration.name, params: &params, library: &library };
    let made = handle::create(registration.table, |id| {
        let provider = P::open(&spec, sink)?;
        Ok(Ia {
            id,
            registration,
            address: Box::new(shown_address(provider.address())),
            named_attributes: named_attributes(&provider),
            descriptor_attributes: OnceLock::new(),
            counts: IaCounts::default(),
            tracing,
            provider,
            number: AtomicUsize::new(0),
            async_evd: Mutex::new(AsyncEvd::Absent),
            children: Mutex::default(),
        })
    })?;
    let ia = made.object().clone();
    let async_evd = async_evd(&ia).inspect_err(|_| ia.provider.close())?;
    if let Some(evd) = async_evd.sink() {
        listen_for_errors(evd);
    }
    let evd = async_evd.handle();
    *ia.async_evd.lock() = async_evd;
    let shows: Arc<dyn CounterSource> = ia.clone();
    publication::add(Arc::downgrade(&shows));
    log::debug!("ia {}: open", ia.registration.name);
    Ok((made.publish(), evd))
}

/// Converts the IA address to the form that consumers receive, with port 0.
fn shown_address(mut address: SocketAddr) -> SocketAddress {
    address.set_port(0);
    SocketAddress::new(&consumer_memory::socket_address(address))
}

/// The named attributes of the provider: those that all providers of this project have; those by which programs of DAT
/// 2.0 detect the operations of the InfiniBand extension; the provider's own; and the one for RDMA reads, without which
/// Debian's dtest performs none. The specification has no attribute for sends with invalidation, so this project defines
/// one.
fn named_attributes<P: Provider>(provider: &P) -> Vec<(String, String)> {
    let Extensions { immediate, invalidate, atomics } = provider.limits().extensions;
    let present = |has: bool, name: &CStr| has.then(|| (name.to_string_lossy().into_owned(), "TRUE".to_owned()));
    let extensions = [
        present(atomics, v2::DAT_IB_ATTR_FETCH_AND_ADD),
        present(atomics, v2::DAT_IB_ATTR_CMP_AND_SWAP),
        present(immediate, v2::DAT_IB_ATTR_IMMED_DATA),
        present(invalidate, c"send_with_invalidate"),
    ];
    [("implementation", "dapl-rs"), ("version", env!("CARGO_PKG_VERSION")), ("transport", P::NAME)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
        .chain(extensions.into_iter().flatten())
        .chain(provider.named_attributes())
        .chain(present(provider.limits().max_reads_out > 0, c"DAT_IB_RDMA_READ"))
        .collect()
}

impl AsyncEvd {
    fn sink(&self) -> Option<&Arc<dyn AsyncErrorSink>> {
        match self {
            AsyncEvd::Own(evd) => Some(evd),
            AsyncEvd::Borrowed(evd) => Some(evd.arc()),
            AsyncEvd::OutOfScope | AsyncEvd::Absent => None,
        }
    }

    pub(super) fn handle(&self) -> DAT_EVD_HANDLE {
        match self {
            AsyncEvd::OutOfScope => DAT_EVD_OUT_OF_SCOPE,
            evd => evd.sink().map_or(std::ptr::null_mut(), |evd| evd.id().handle as DAT_EVD_HANDLE),
        }
    }
}

/// The async EVDs of this library, which also receive the errors of IAs without an async EVD. Each addition removes
/// freed EVDs.
static LISTENERS: StaticMutex<Vec<(ObjectId, Weak<dyn AsyncErrorSink>)>> = StaticMutex::new(Vec::new());

/// Locks the list of async EVDs while the process forks.
pub(crate) fn lock_for_fork() -> impl Sized {
    LISTENERS.lock()
}

/// Adds the EVD to the list of async EVDs.
fn listen_for_errors(evd: &Arc<dyn AsyncErrorSink>) {
    let new = evd.id();
    let mut listeners = LISTENERS.lock();
    listeners.retain(|(id, _)| *id != new && handle::is_live(*id));
    listeners.push((new, Arc::downgrade(evd)));
}

/// Reports an asynchronous error of this IA or of an object in it.
pub fn report<P: Provider>(ia: &Ia<P>, error: AsyncError) {
    ia.count(|events| events.async_errors += 1);
    let evds: Vec<Arc<dyn AsyncErrorSink>> = match &*ia.async_evd.lock() {
        // A closed EVD drops events.
        AsyncEvd::OutOfScope => LISTENERS.lock().iter().filter_map(|(_, evd)| evd.upgrade()).collect(),
        evd => evd.sink().cloned().into_iter().collect(),
    };
    for evd in evds {
        evd.report(error);
    }
}

/// Closes an IA. A graceful close requires that the IA has no objects left, except its own async EVD and pending
/// connection requests, and that no other IA uses this async EVD. An abrupt close also closes all its objects.
///
/// Errors: `InvalidState(IaInUse)` for a graceful close of an IA with other objects or with an async EVD in use, which
/// changes nothing; `InvalidHandle` if another thread is closing the IA.
pub fn close<P: Provider>(ia: &Ia<P>, graceful: bool) -> Result<()> {
    finish_close(ia, ia.begin_close(graceful)?)
}

/// Closes the objects that `begin_close` returned, and the IA.
pub(super) fn finish_close<P: Provider>(ia: &Ia<P>, children: Vec<Weak<dyn Child>>) -> Result<()> {
    handle::free(ia.id, Handle::Ia)?;
    publication::remove(ia);
    ia.log_counts(&children);
    for child in children {
        if let Some(child) = child.upgrade() {
            child.close();
        }
    }
    let to = std::mem::replace(&mut *ia.async_evd.lock(), AsyncEvd::Absent);
    drop(to);
    ia.provider.close();
    timer::end_if_idle();
    log::debug!("ia {}: closed", ia.registration.name);
    Ok(())
}
