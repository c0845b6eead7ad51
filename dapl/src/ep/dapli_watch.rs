//! The numbers of outstanding work requests of an EP, and its receive watermarks.
//!
//! The provider counts receives and compares them with the watermarks. The EP stores the watermarks too, for a QP that
//! later replaces the current one.
#![forbid(unsafe_code)]

use super::Ep;
use super::attributes::HighWatermarks;
use crate::error::Result;
use crate::provider::{Outstanding, Provider, QueuePair};

/// Numbers of outstanding requests and receives; zero if the EP has no QP.
pub(super) fn outstanding<P: Provider>(ep: &Ep<P>) -> Outstanding {
    ep.post_state().qp().map(|qp| qp.outstanding()).unwrap_or_default()
}

/// `dat_ep_set_watermark`, allowed in any state. A watermark that is already exceeded takes effect at once.
pub(super) fn watch<P: Provider>(ep: &Ep<P>, marks: HighWatermarks) -> Result<()> {
    let mut core = ep.open()?;
    if let Ok(qp) = ep.post_state().qp() {
        qp.watch_recvs(marks.soft, marks.hard)?;
    }
    core.marks = marks; // a report of the provider waits for this lock
    if core.objects.srq.is_some() {
        core.attributes.set_watermarks(marks);
    }
    Ok(())
}
