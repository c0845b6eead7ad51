//! Shared receive queues (SRQs): one queue of receives for several EPs.
//!
//! The entries in `dapl_srq` create and use SRQs. EPs are counted as users; `ep` reports when a consumer has dequeued
//! the completion of an SRQ receive. The provider stores the receives and knows how many are available. This module
//! counts outstanding receives: posted receives whose completion the consumer has not dequeued. Posts and dequeues
//! change this number in one atomic word; only control calls take a lock.

use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ia::{Child, Ia};
use crate::provider::{Provider, SrqSink};
use crate::pz::Pz;
use crate::runtime::handle::{self, Kind, Object, ObjectId, UseCount, UseCounted, UseGuard};

mod capacity;
pub mod dapl_srq;
pub mod dapls_srq;

use capacity::SrqCapacity;

pub struct Srq<P: Provider> {
    pub(crate) id: ObjectId,
    pub(crate) ia: Arc<Ia<P>>,
    pz: Arc<Pz<P>>,
    /// Counted use of the PZ; dropped when the SRQ is freed. A report of the low watermark may keep the SRQ in memory
    /// for longer, but must not keep the PZ in use.
    pz_use: Mutex<Option<UseGuard<Pz<P>>>>,
    /// The provider's SRQ.
    pub(crate) queue: Arc<P::Srq>,
    max_iov: u32,
    outstanding: SrqCapacity,
    /// The low watermark. Calls that change it or the capacity lock it.
    low: Mutex<u32>,
    uses: UseCount,
    /// Identifies this SRQ to the provider.
    _srq_ref: Arc<SrqRef<P>>,
}

/// Represents an SRQ for the provider. It refers to the SRQ by its id, not by a counted reference. After the SRQ was
/// freed, the generation in the id is stale, so a late report is dropped.
struct SrqRef<P>(ObjectId, PhantomData<fn() -> P>);

impl<P: Provider> SrqSink for SrqRef<P> {
    fn low(&self) {
        if let Some(srq) = handle::from_id::<Srq<P>>(self.0) {
            dapls_srq::low(&srq);
        }
    }
}

impl<P: Provider> Object for Srq<P> {
    const KIND: Kind = Kind::Srq;
}

/// EPs use the SRQ: it cannot be freed while they exist.
impl<P: Provider> UseCounted for Srq<P> {
    fn uses(&self) -> &UseCount {
        &self.uses
    }
}

impl<P: Provider> Child for Srq<P> {
    fn close(&self) {
        let _ = dapls_srq::close(self);
    }
}
