//! Cases for EVDs and CNOs: dequeue, wait, resize, full queues, notification, refused waits and posts, and handles of
//! freed EVDs.
#![forbid(unsafe_code)]

use dat_abi::*;

use super::{Case, ensure, refused};
use crate::common::Common;
use crate::dat::raw;
use crate::dat::{Evd, Event, Ia, Object, drain};
use crate::failure::Result;

pub(super) const CASES: &[Case] = &[
    ("a dequeue from an empty EVD returns DAT_QUEUE_EMPTY", empty),
    ("a wait without an event times out", times_out),
    ("software events are dequeued in the order of their posts", in_order),
    ("a wait with threshold 3 ends at the third event", threshold),
    ("a wait on an unwaitable EVD is refused", unwaitable),
    ("the resize of an EVD keeps its queued events", grows),
    ("a post to a full EVD returns DAT_QUEUE_FULL", full),
    ("a CNO wait returns the EVD with the event", notifies),
    ("a software event is refused by an EVD without the software stream", wrong_kind),
    ("the handle of a freed EVD is invalid", freed),
];

/// Runs `body` with an EVD for `qlen` software events.
fn with_evd(common: &Common, qlen: usize, body: impl FnOnce(&Evd) -> Result) -> Result {
    let ia = Ia::open(&common.device)?;
    let evd = ia.evd(qlen, DAT_EVD_SOFTWARE_FLAG)?;
    body(&evd)?;
    evd.free()?;
    Ok(ia.close()?)
}

fn empty(common: &Common) -> Result {
    with_evd(common, 4, |evd| refused(raw::evd_dequeue(evd.handle()), DAT_QUEUE_EMPTY, DAT_NO_SUBTYPE))
}

fn times_out(common: &Common) -> Result {
    with_evd(common, 4, |evd| refused(raw::evd_wait(evd.handle(), 1000, 1), DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE))
}

fn in_order(common: &Common) -> Result {
    with_evd(common, 16, |evd| {
        (1..=16).try_for_each(|value| raw::evd_post_se(evd.handle(), value))?;
        let wanted: Vec<Event> = (1..=16).map(|value| Event::Software { value }).collect();
        ensure(drain(evd) == wanted, "the events or their order differ from the posts")
    })
}

fn threshold(common: &Common) -> Result {
    with_evd(common, 8, |evd| {
        (1..=2).try_for_each(|value| raw::evd_post_se(evd.handle(), value))?;
        refused(raw::evd_wait(evd.handle(), 1000, 3), DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE)?;
        raw::evd_post_se(evd.handle(), 3)?;
        let first = raw::evd_wait(evd.handle(), 1_000_000, 3)?;
        ensure(
            first == Event::Software { value: 1 } && drain(evd).len() == 2,
            "the wait did not return the first of three events",
        )
    })
}

fn unwaitable(common: &Common) -> Result {
    with_evd(common, 4, |evd| {
        raw::evd_waitable(evd.handle(), false)?;
        let waited = raw::evd_wait(evd.handle(), 1000, 1);
        refused(waited, DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_UNWAITABLE)?;
        raw::evd_waitable(evd.handle(), true)?;
        refused(raw::evd_wait(evd.handle(), 1000, 1), DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE)
    })
}

fn grows(common: &Common) -> Result {
    with_evd(common, 4, |evd| {
        (1..=4).try_for_each(|value| raw::evd_post_se(evd.handle(), value))?;
        raw::evd_resize(evd.handle(), 64)?;
        ensure(raw::evd_query(evd.handle())?.evd_qlen >= 64, "evd_qlen is less than the requested 64")?;
        (5..=64).try_for_each(|value| raw::evd_post_se(evd.handle(), value))?;
        ensure(drain(evd).len() == 64, "not all 64 events were dequeued")
    })
}

fn full(common: &Common) -> Result {
    with_evd(common, 4, |evd| {
        let qlen = raw::evd_query(evd.handle())?.evd_qlen as usize;
        (0..qlen).try_for_each(|value| raw::evd_post_se(evd.handle(), value))?;
        refused(raw::evd_post_se(evd.handle(), qlen), DAT_QUEUE_FULL, DAT_NO_SUBTYPE)?;
        ensure(drain(evd).len() == qlen, "not all posted events were dequeued")
    })
}

fn notifies(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    let cno = ia.cno()?;
    let evds = [1, 2].map(|_| ia.evd_on(4, DAT_EVD_SOFTWARE_FLAG, Some(&cno)));
    let [first, second] = evds;
    let (first, second) = (first?, second?);
    raw::evd_post_se(second.handle(), 1)?;
    ensure(raw::cno_wait(cno.handle(), 5_000_000)? == second.handle(), "dat_cno_wait returned another EVD")?;
    ensure(
        drain(&first).is_empty() && drain(&second).len() == 1,
        "the event is not on the EVD to which it was posted",
    )?;
    refused(raw::cno_free(cno.handle()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE)?;
    first.free()?;
    second.free()?;
    cno.free()?;
    Ok(ia.close()?)
}

fn wrong_kind(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    let evd = ia.evd(4, DAT_EVD_DTO_FLAG)?;
    refused(raw::evd_post_se(evd.handle(), 1), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1)?;
    evd.free()?;
    Ok(ia.close()?)
}

fn freed(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    let evd = ia.evd(4, DAT_EVD_SOFTWARE_FLAG)?;
    let handle = evd.handle();
    evd.free()?;
    refused(raw::evd_dequeue(handle), DAT_INVALID_HANDLE, DAT_NO_SUBTYPE)?;
    refused(raw::evd_free(handle), DAT_INVALID_HANDLE, DAT_NO_SUBTYPE)?;
    Ok(ia.close()?)
}
