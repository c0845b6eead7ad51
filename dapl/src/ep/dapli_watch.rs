//! What an EP has outstanding, and the watermarks above its receives.
//!
//! Steps of the ep room only. The provider counts and watches; here is kept what another QP of the same EP has to be told.
#![forbid(unsafe_code)]

use super::Ep;
use super::attributes::Marks;
use crate::error::Result;
use crate::provider::{Outstanding, Provider, QueuePair};

/// What is outstanding; nothing without a QP.
pub(super) fn outstanding<P: Provider>(ep: &Ep<P>) -> Outstanding {
    ep.post_state().binding.qp().map(|qp| qp.outstanding()).unwrap_or_default()
}

/// `dat_ep_set_watermark`, in any state: what is crossed already is told at once, by the provider.
pub(super) fn watch<P: Provider>(ep: &Ep<P>, marks: Marks) -> Result<()> {
    let mut core = ep.open()?;
    if let Ok(qp) = ep.post_state().binding.qp() {
        qp.watch_recvs(marks.soft, marks.hard)?;
    }
    core.marks = marks; // the provider's report that the soft one is crossed waits for our lock
    if core.wiring.srq.is_some() {
        core.attributes.follow(marks);
    }
    Ok(())
}
