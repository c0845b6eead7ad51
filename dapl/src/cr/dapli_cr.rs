//! `dat_cr_accept`: chooses the EP and accepts the request into it.
#![forbid(unsafe_code)]

use super::Cr;
use crate::ep::Ep;
use crate::ep::dapls_ep::{self, AcceptedRequest};
use crate::error::{Error, Handle, Result};
use crate::provider::Provider;
use crate::runtime::handle::{Ref, from_id};

/// Returns the EP that accepts the request: the one that the consumer passes, or the one that the service point has
/// provided. Exactly one of the two must exist.
pub(super) fn target<P: Provider>(cr: &Cr<P>, given: Option<Ref<Ep<P>>>) -> Result<Ref<Ep<P>>> {
    let bad = Error::InvalidHandle(Handle::Ep);
    match (given, cr.provided) {
        (Some(ep), None) => Ok(ep),
        (None, Some(provided)) => from_id(provided.ep).ok_or(bad),
        (Some(_), Some(_)) | (None, None) => Err(bad),
    }
}

/// Accepts the request. An error before the request is consumed changes nothing. After a later error, the request stays
/// consumed (spec/endpoints 7.3).
pub(super) fn accept<P: Provider>(cr: &Ref<Cr<P>>, ep: &Ep<P>, private_data: &[u8]) -> Result<()> {
    let acceptance =
        AcceptedRequest { is_provided: cr.provided.is_some(), peer: cr.peer, private_data, kept_cr: cr.to_arc() };
    let mut is_taken = false;
    let accepted = dapls_ep::accept(ep, acceptance, || {
        let request = cr.take()?;
        is_taken = true;
        Ok(request)
    });
    if accepted.is_err() && is_taken && cr.provided.is_some_and(|provided| provided.created_for_request) {
        dapls_ep::close(ep);
    }
    accepted
}
