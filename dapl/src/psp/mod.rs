//! Public service points (PSPs): a PSP listens on a qualifier, for any number of requests.
//!
//! The entries in `dapl_psp` create, query and free PSPs; requests arrive through `cm`. A free stops the listener
//! before it returns, and does not affect requests that have arrived or their connections. No lock is held while the
//! provider starts or stops listening, or while an event is posted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::{Handle, Result};
use crate::evd::Evd;
use crate::ia::{Child, Ia};
use crate::provider::Provider;
use crate::runtime::handle::{self, Kind, Object, ObjectId, UseGuard};

pub mod dapl_psp;
mod dapli_psp;

pub(crate) use dapli_psp::lock_for_fork;
pub(crate) mod dapls_psp;

pub struct Psp<P: Provider> {
    id: ObjectId,
    ia: Arc<Ia<P>>,
    /// Set before each attempt to listen, since requests may arrive before that attempt returns.
    qual: AtomicU64,
    /// Whether an EP is created for every request (`DAT_PSP_PROVIDER_FLAG`).
    creates_eps: bool,
    state: Mutex<ListenerState<P>>,
}

/// The listener and the EVD of a service point. A free removes both.
struct ListenerState<P: Provider> {
    listener: Option<P::Listener>,
    /// EVD for connection requests; `None` after the free.
    evd: Option<UseGuard<Evd<P>>>,
}

impl<P: Provider> Psp<P> {
    fn qual(&self) -> u64 {
        self.qual.load(Ordering::Relaxed)
    }

    /// Stops listening. Errors: `InvalidHandle` if the PSP has already stopped listening.
    fn stop_listening(&self) -> Result<()> {
        handle::free(self.id, Handle::Psp)?;
        self.ia.remove_child(self);
        let mut state = self.state.lock();
        let (listener, evd) = (state.listener.take(), state.evd.take());
        if listener.is_some() {
            dapli_psp::unlist(&self.ia, self.qual());
        }
        drop(state);
        drop(listener);
        drop(evd);
        Ok(())
    }
}

impl<P: Provider> Object for Psp<P> {
    const KIND: Kind = Kind::Psp;
}

impl<P: Provider> Child for Psp<P> {
    fn close(&self) {
        let _ = self.stop_listening();
    }
}
