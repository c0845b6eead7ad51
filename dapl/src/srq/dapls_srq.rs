//! SRQ operations for other modules: create, post, modify, query and free. Also handles the reports of EVDs and of the
//! provider.
//!
//! No call waits for a completion or a peer. The provider may be called with the lock of the low watermark held; C code
//! is called without locks.
#![forbid(unsafe_code)]

use std::marker::PhantomData;
use std::sync::Arc;

use dat_abi::{DAT_PZ_HANDLE, DAT_SRQ_ATTR, DAT_SRQ_HANDLE, DAT_SRQ_PARAM, DAT_SRQ_STATE_OPERATIONAL};
use parking_lot::Mutex;

use super::capacity::SrqCapacity;
use super::{Srq, SrqRef};
use crate::error::{Error, Handle, Resource, Result, State};
use crate::ffi::count;
use crate::ia::{AsyncError, AsyncKind, CloseRank, Ia, dapls_ia};
use crate::provider::{Provider, Segment, SharedReceiveQueue, SrqSink, SrqSpec};
use crate::pz::Pz;
use crate::runtime::handle::{self, UseCount, UseCounted, UseGuard};

/// Creates an SRQ with a live handle in its IA.
///
/// Errors: `ModelNotSupported` if the transport has no SRQs; `InvalidParameter(3)` for invalid attributes (spec/events
/// 6.1); those of the provider.
pub fn create<P: Provider>(ia: &Arc<Ia<P>>, pz: Arc<Pz<P>>, attributes: DAT_SRQ_ATTR) -> Result<DAT_SRQ_HANDLE> {
    let limits = ia.limits();
    if limits.max_srqs == 0 {
        return Err(Error::ModelNotSupported);
    }
    let max_recvs = within(attributes.max_recv_dtos, limits.max_dtos).ok_or(Error::InvalidParameter(3))?;
    let max_iov = within(attributes.max_recv_iov, limits.max_iov).ok_or(Error::InvalidParameter(3))?;
    // The SRQ has no receives yet, so any other value would be crossed immediately.
    if attributes.low_watermark != 0 {
        return Err(Error::InvalidParameter(3));
    }
    let srq = handle::create(ia.table(), |id| {
        let srq_ref = Arc::new(SrqRef::<P>(id, PhantomData));
        let sink: Arc<dyn SrqSink> = srq_ref.clone();
        let spec = SrqSpec { max_recvs, max_iov, sink: Arc::downgrade(&sink) };
        Ok(Srq {
            id,
            ia: ia.clone(),
            queue: Arc::new(ia.provider.create_srq(&pz.pd, spec)?),
            pz_use: Mutex::new(Some(UseGuard::of_open(pz.clone(), Handle::Pz)?)),
            pz,
            max_iov,
            outstanding: SrqCapacity::new(max_recvs),
            low: Mutex::new(0),
            uses: UseCount::default(),
            _srq_ref: srq_ref,
        })
    })?;
    Ok(ia.publish(srq, CloseRank::Srq))
}

/// Converts a number that must be from 1 to `limit`.
fn within(count: i32, limit: u32) -> Option<u32> {
    u32::try_from(count).ok().filter(|count| (1..=limit).contains(count))
}

/// Posts a receive, for a message to any EP of the SRQ.
///
/// Errors: `Exhausted(Memory)` if the maximum number of receives is outstanding; those of the provider.
pub fn post_recv<P: Provider>(srq: &Srq<P>, segments: &[Segment], cookie: u64) -> Result<()> {
    if !srq.outstanding.take() {
        return Err(Error::Exhausted(Resource::Memory));
    }
    srq.queue.post_recv(segments, cookie).inspect_err(|_| srq.outstanding.release())
}

/// Called when the consumer dequeues the completion of a receive, or can no longer dequeue it.
pub(crate) fn reaped<P: Provider>(srq: &Srq<P>) {
    srq.outstanding.release();
}

/// Changes the maximum number of outstanding receives (spec/events 6.5).
pub fn resize<P: Provider>(srq: &Srq<P>, max_recvs: i32) -> Result<()> {
    let max_recvs = within(max_recvs, srq.ia.limits().max_dtos).ok_or(Error::InvalidParameter(2))?;
    let low = srq.low.lock();
    let before = srq.outstanding.capacity();
    if max_recvs < *low {
        return Err(Error::InvalidState(State::Plain));
    }
    // The provider's capacity must never be smaller than the SRQ's. So it is increased before the SRQ's, and decreased
    // after it.
    if max_recvs > before {
        srq.queue.resize(max_recvs)?;
    }
    if !srq.outstanding.resize(max_recvs) {
        return Err(Error::InvalidState(State::Plain));
    }
    if max_recvs < before && srq.queue.resize(max_recvs).is_err() {
        log::debug!("srq {:#x}: the provider cannot shrink its queue of {before} receives", srq.id.handle);
    }
    Ok(())
}

/// Sets the low watermark (spec/events 6.6); 0 disables it.
pub fn set_low<P: Provider>(srq: &Srq<P>, mark: i32) -> Result<()> {
    let mark = u32::try_from(mark).map_err(|_| Error::InvalidParameter(2))?;
    let mut low = srq.low.lock();
    if mark > srq.outstanding.capacity() {
        return Err(Error::InvalidParameter(2));
    }
    srq.queue.watch(mark)?;
    *low = mark;
    Ok(())
}

/// Reports, as an asynchronous error, that the number of available receives has fallen below the low watermark. The
/// reason code is specific to SRQs (spec/events 14.1).
pub(super) fn low<P: Provider>(srq: &Srq<P>) {
    const LOW_WATERMARK: i32 = 2;
    let error = AsyncError { kind: AsyncKind::ProviderInternal, handle: srq.id.handle, reason: LOW_WATERMARK };
    dapls_ia::report(&srq.ia, error);
}

/// Returns the record for `dat_srq_query`.
pub fn param<P: Provider>(srq: &Srq<P>) -> DAT_SRQ_PARAM {
    let ia_handle = srq.ia.consumer_handle();
    let low = srq.low.lock();
    let outstanding = srq.outstanding.outstanding();
    DAT_SRQ_PARAM {
        ia_handle,
        srq_state: DAT_SRQ_STATE_OPERATIONAL,
        pz_handle: srq.pz.id.handle as DAT_PZ_HANDLE,
        max_recv_dtos: count(srq.outstanding.capacity()),
        max_recv_iov: count(srq.max_iov),
        low_watermark: count(*low),
        // The provider's number may include a receive that was posted after `outstanding` was read.
        available_dto_count: count(srq.queue.available().min(outstanding)),
        outstanding_dto_count: count(outstanding),
    }
}

/// Frees the SRQ on behalf of the consumer, and discards its posted receives.
///
/// Errors: `InvalidState(SrqInUse)` while an EP uses the SRQ; `InvalidHandle` if another thread has freed the SRQ.
pub fn free<P: Provider>(srq: &Srq<P>) -> Result<()> {
    srq.uses().close(State::SrqInUse)?;
    close(srq)
}

/// Closes the SRQ. Errors: `InvalidHandle` if it is already closed.
pub(super) fn close<P: Provider>(srq: &Srq<P>) -> Result<()> {
    handle::free(srq.id, Handle::Srq)?;
    srq.ia.remove_child(srq);
    drop(srq.pz_use.lock().take());
    Ok(())
}
