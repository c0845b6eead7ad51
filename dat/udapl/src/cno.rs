//! Consumer notification objects: one wait for several event queues.

use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dat_abi::*;

use crate::error::{Result, kind};
use crate::evd::{Evd, LONGEST, Streams, micros};
use crate::ia::Ia;
use crate::library::call;
use crate::owned::{CnoInner, EvdId, Object};

/// Groups event queues, so that one thread waits for all of them.
pub struct Cno {
    pub(crate) inner: Arc<CnoInner>,
}

impl Ia {
    /// Creates a group without event queues; [`Ia::evd_on`] creates queues in it.
    ///
    /// # Errors
    /// Those of `dat_cno_create`.
    pub fn cno(&self) -> Result<Cno> {
        let ia = &self.inner;
        let none = DAT_OS_WAIT_PROXY_AGENT { instance_data: ptr::null_mut(), proxy_agent_func: None };
        let mut handle = ptr::null_mut();
        // SAFETY: the result is written to a local variable.
        unsafe { call!(ia.functions, dat_cno_create(ia.handle.0, none, &raw mut handle)) }?;
        Ok(Cno { inner: Arc::new(Object::new(ia, handle, ia.functions.dat_cno_free, ())) })
    }

    /// Creates an event queue in a group.
    ///
    /// # Errors
    /// Those of `dat_evd_create`.
    pub fn evd_on(&self, cno: &Cno, events: u32, streams: Streams) -> Result<Evd> {
        Evd::new(&self.inner, events, streams, Some(&cno.inner))
    }
}

/// Whether a call with this time left waits until the limit. A longer wait takes several calls, since a call waits at
/// most [`LONGEST`].
fn is_last(left: Option<Duration>) -> bool {
    left.is_some_and(|left| left <= LONGEST)
}

impl Cno {
    /// Waits until a queue of the group has an event, and returns the id of that queue. Dequeue all its events before
    /// the next wait. Returns `None` after `at_most`; with `at_most` `None`, waits without a limit.
    ///
    /// # Errors
    ///
    /// Those of `dat_cno_wait`.
    pub fn wait(&self, at_most: impl Into<Option<Duration>>) -> Result<Option<EvdId>> {
        let until = at_most.into().and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let mut evd = ptr::null_mut();
            // SAFETY: the result is written to a local variable.
            let code =
                unsafe { (self.inner.ia.functions.dat_cno_wait)(self.inner.handle.0, micros(left), &raw mut evd) };
            match kind(code) {
                // This project's providers return `DAT_QUEUE_EMPTY` after the timeout.
                DAT_TIMEOUT_EXPIRED | DAT_QUEUE_EMPTY if is_last(left) => return Ok(None),
                DAT_TIMEOUT_EXPIRED | DAT_QUEUE_EMPTY | DAT_INTERRUPTED_CALL => {}
                _ => {
                    self.inner.ia.functions.check("dat_cno_wait", code)?;
                    return Ok(Some(EvdId(evd as usize)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_longer_than_the_maximum_timeout_takes_several_calls() {
        let over = [Some(Duration::ZERO), Some(LONGEST), Some(LONGEST + Duration::from_micros(1)), None].map(is_last);
        assert_eq!(over, [true, true, false, false]);
    }
}
