//! Tests of EVD descriptors: when a descriptor becomes readable before and after it is armed, and that a freed EVD has
//! none.

use super::*;
use crate::runtime::descriptor::tests::is_readable;

fn descriptor(evd: Evh) -> i32 {
    dapls_descriptor::descriptor(&evd.object()).unwrap()
}

fn arm(evd: Evh) {
    dapls_descriptor::arm(&evd.object()).unwrap();
}

#[test]
fn armed_descriptor_becomes_readable_with_the_next_event() {
    let opened = fake::open(c"evd-descriptor");
    let evd = Evh::new(&opened, 8, ALL);
    let fd = descriptor(evd);
    assert_eq!(descriptor(evd), fd, "an EVD has one descriptor");
    assert!(!is_readable(fd));
    evd.cq().feed(done(1));
    assert!(is_readable(fd) && is_readable(fd), "level-triggered");
    assert_eq!(evd.dequeue(), (DAT_SUCCESS, 1));
    assert_eq!(evd.dequeue().0, DAT_QUEUE_EMPTY);
    assert!(is_readable(fd), "until it is armed");
    let sleeps = opened.ia.provider.sleeps_seen();
    arm(evd);
    assert_eq!(opened.ia.provider.sleeps_seen(), sleeps + 1, "the provider's thread makes progress from here on");
    assert!(!is_readable(fd));
    assert_eq!(evd.post(2), DAT_SUCCESS);
    assert!(is_readable(fd), "a software event");
}

#[test]
fn descriptor_armed_after_an_event_is_readable() {
    let opened = fake::open(c"evd-descriptor-before");
    let evd = Evh::new(&opened, 8, ALL);
    evd.cq().put(done(1));
    let fd = descriptor(evd);
    assert!(is_readable(fd), "in the completion queue");
    arm(evd);
    assert!(is_readable(fd), "in the queue of events");
    assert_eq!(evd.dequeue(), (DAT_SUCCESS, 1));
    arm(evd);
    assert!(!is_readable(fd));
}

#[test]
fn completions_left_by_an_earlier_poll_make_the_descriptor_readable() {
    let opened = fake::open(c"evd-descriptor-polled");
    let evd = Evh::new(&opened, 8, ALL);
    let fd = descriptor(evd);
    (1..=3).for_each(|cookie| evd.cq().put(done(cookie)));
    assert_eq!(evd.dequeue(), (DAT_SUCCESS, 1));
    assert!(is_readable(fd), "two are left, which no notification will announce");
    evd.cq().feed(done(4));
    assert_eq!([evd.dequeue().1, evd.dequeue().1, evd.dequeue().1], [2, 3, 4]);
}

#[test]
fn descriptor_calls_fail_for_a_freed_evd() {
    let opened = fake::open(c"evd-descriptor-free");
    let evd = Evh::new(&opened, 8, ALL);
    let object = evd.object();
    assert_eq!(dapls_descriptor::arm(&object), Err(crate::error::Error::InvalidHandle(Handle::Plain)), "there is none");
    descriptor(evd);
    assert_eq!(evd.free(), DAT_SUCCESS);
    for refused in [dapls_descriptor::descriptor(&object).map(drop), dapls_descriptor::arm(&object)] {
        assert_eq!(refused, Err(crate::error::Error::InvalidHandle(Handle::Plain)));
    }
}
