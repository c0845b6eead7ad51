//! Listeners of a process, by connection qualifier.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use dapl::error::{Error, Result};
use dapl::provider::{Provider, RequestInfo};
use dapl::runtime::handle::ObjectId;

use super::per_process::PerProcess;
use super::reporter::{Report, Reporter};

/// The recipient of requests for a connection qualifier: the reporter of an adapter, and the id of the listener.
type Target<P> = (Arc<Reporter<P>>, ObjectId);

/// All listeners of this process.
pub struct Listeners<P: Provider> {
    by_qual: PerProcess<BTreeMap<u64, Target<P>>>,
}

/// A listener. Dropping it frees the connection qualifier.
pub struct Listener<P: Provider> {
    listeners: &'static Listeners<P>,
    qual: u64,
}

impl<P: Provider> Listeners<P> {
    #[expect(clippy::new_without_default, reason = "for statics only")]
    pub const fn new() -> Self {
        Listeners { by_qual: PerProcess::new() }
    }

    /// Adds a listener for the qualifier `qual`. Errors: `ConnQualTaken` if another listener has it.
    pub fn listen(&'static self, qual: u64, reporter: Arc<Reporter<P>>, id: ObjectId) -> Result<Listener<P>> {
        match self.by_qual.lock().entry(qual) {
            Entry::Occupied(_) => Err(Error::ConnQualTaken),
            Entry::Vacant(entry) => {
                entry.insert((reporter, id));
                Ok(Listener { listeners: self, qual })
            }
        }
    }

    /// Reports a request to the listener on this qualifier. Returns the request as an error if there is no such
    /// listener.
    ///
    /// This call drops the request if the listener's adapter is being closed. So the caller must not hold a lock that
    /// the drop of a request acquires.
    pub fn request(&self, qual: u64, request: P::Request, info: RequestInfo) -> std::result::Result<(), P::Request> {
        let target = self.by_qual.lock().get(&qual).cloned();
        let Some((reporter, listener)) = target else { return Err(request) };
        reporter.report(Report::Request(listener, request, info));
        Ok(())
    }
}

impl<P: Provider> Drop for Listener<P> {
    fn drop(&mut self) {
        self.listeners.by_qual.lock().remove(&self.qual);
    }
}
