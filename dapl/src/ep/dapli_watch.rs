//! Outstanding work of an EP, and the watermarks of its receives.
//!
//! The provider counts and checks. The watermarks are kept here for a QP that replaces the present one.
#![forbid(unsafe_code)]

use super::Ep;
use super::attributes::Marks;
use crate::error::Result;
use crate::provider::{Outstanding, Provider, QueuePair};

/// Outstanding work; zero without a QP.
pub(super) fn outstanding<P: Provider>(ep: &Ep<P>) -> Outstanding {
    ep.post_state().binding.qp().map(|qp| qp.outstanding()).unwrap_or_default()
}

/// `dat_ep_set_watermark`, in any state. A mark that is exceeded already is reported at once, by the provider.
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
