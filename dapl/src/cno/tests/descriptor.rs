//! Tests of CNO descriptors: a descriptor is readable while EVDs have triggered the CNO. Arming it removes triggers
//! from the front of the queue, up to that of the first EVD that has events.

use super::*;
use crate::runtime::descriptor::tests::is_readable;

fn with_descriptor(opened: &Opened) -> (Hand, i32) {
    let (cno, number) = dapls_cno::create_with_descriptor(&opened.ia).unwrap();
    (Hand(cno as usize), number)
}

fn triggered(cno: Hand) -> Result<Hand, Error> {
    let cno = from_handle::<Cno<FakeProvider>>(cno.raw(), Handle::Cno).unwrap();
    dapls_cno::take_trigger(&cno).map(Hand)
}

#[test]
fn the_descriptor_is_readable_while_evds_have_triggered() {
    let opened = fake::open(c"cno-descriptor");
    let (cno, fd) = with_descriptor(&opened);
    let (first, second) = (evd(&opened, cno), evd(&opened, cno));
    assert!(!is_readable(fd));
    assert_eq!(triggered(cno), Err(Error::QueueEmpty));
    post(second);
    post(first);
    assert!(is_readable(fd) && is_readable(fd), "level-triggered");
    assert_eq!(triggered(cno), Ok(second), "in the order of the triggers");
    assert!(is_readable(fd), "the first one is left");
    assert_eq!(triggered(cno), Ok(first));
    assert!(!is_readable(fd));
    assert_eq!(triggered(cno), Err(Error::QueueEmpty));
    // The second event of an EVD triggers the CNO again when the first event is dequeued.
    post(first);
    post(first);
    assert_eq!(triggered(cno), Ok(first));
    assert!(take(first) && is_readable(fd));
    assert_eq!(triggered(cno), Ok(first));
    assert!(take(first) && take(first) && !take(first) && take(second));
    assert_eq!(triggered(cno), Err(Error::QueueEmpty), "its events have been taken meanwhile");
    assert!(!is_readable(fd));
    free_evd(first);
    free_evd(second);
    assert_eq!(free(cno), DAT_SUCCESS);
}

#[test]
fn a_completion_makes_the_descriptor_readable_without_a_poll() {
    let opened = fake::open(c"cno-descriptor-completion");
    let (cno, fd) = with_descriptor(&opened);
    let evd = evd(&opened, cno);
    for _ in 0..3 {
        feed(evd, Token::default());
        assert!(is_readable(fd));
        assert_eq!(triggered(cno), Ok(evd));
        assert!(take(evd) && !take(evd));
        let sleeps = opened.ia.provider.sleeps_seen();
        assert_eq!(triggered(cno), Err(Error::QueueEmpty));
        assert_eq!(opened.ia.provider.sleeps_seen(), sleeps + 1, "the provider's thread makes progress from here on");
        assert!(!is_readable(fd));
    }
    // A trigger is dropped if the completion is dequeued before the trigger is taken.
    feed(evd, Token::default());
    assert!(is_readable(fd));
    assert!(take(evd));
    assert_eq!(triggered(cno), Err(Error::QueueEmpty), "its event was taken");
    assert!(!is_readable(fd));
}

#[test]
fn wait_takes_the_trigger_that_made_the_descriptor_readable() {
    let opened = fake::open(c"cno-descriptor-wait");
    let (cno, fd) = with_descriptor(&opened);
    let evd = evd(&opened, cno);
    post(evd);
    assert!(is_readable(fd));
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, evd));
    assert!(!is_readable(fd));
    assert!(take(evd));
    feed(evd, Token::default());
    assert!(is_readable(fd), "the wait has left the completion queue armed");
}

#[test]
fn descriptor_created_after_a_completion_is_readable() {
    let opened = fake::open(c"cno-descriptor-later");
    let cno = cno(&opened, NO_AGENT);
    let evd = evd(&opened, cno);
    assert_eq!(wait(cno, 0).0, 0x000D_0000);
    feed(evd, Token::default());
    let object = from_handle::<Cno<FakeProvider>>(cno.raw(), Handle::Cno).unwrap();
    let fd = dapls_cno::descriptor(&object).unwrap();
    assert_eq!((dapls_cno::descriptor(&object), object.descriptor()), (Ok(fd), Some(fd)));
    assert!(is_readable(fd), "the wait had the queue disarmed");
    assert_eq!(triggered(cno), Ok(evd));
}

#[test]
fn arming_a_cno_descriptor_drops_triggers_of_empty_evds() {
    let opened = fake::open(c"cno-descriptor-arm");
    let (cno, fd) = with_descriptor(&opened);
    let (first, second) = (evd(&opened, cno), evd(&opened, cno));
    let object = from_handle::<Cno<FakeProvider>>(cno.raw(), Handle::Cno).unwrap();
    post(first);
    post(second);
    assert!(take(first));
    dapls_cno::arm_descriptor(&object);
    assert!(is_readable(fd), "the second one has an event");
    assert_eq!(triggered(cno), Ok(second));
    post(first);
    assert!(take(first) && take(second));
    dapls_cno::arm_descriptor(&object);
    assert!(!is_readable(fd));
    post(first);
    assert!(is_readable(fd));
}

#[test]
fn arming_a_cno_descriptor_keeps_the_order_of_the_triggers() {
    let opened = fake::open(c"cno-descriptor-order");
    let (cno, _) = with_descriptor(&opened);
    let evds = [(); 10].map(|()| evd(&opened, cno));
    let object = from_handle::<Cno<FakeProvider>>(cno.raw(), Handle::Cno).unwrap();
    for count in [2, 10] {
        evds[..count].iter().for_each(|&evd| post(evd));
        dapls_cno::arm_descriptor(&object);
        for &evd in &evds[..count] {
            assert_eq!(triggered(cno), Ok(evd));
            assert!(take(evd));
        }
    }
}

#[test]
fn freed_cno_has_no_descriptor() {
    let opened = fake::open(c"cno-descriptor-free");
    let (cno, _) = with_descriptor(&opened);
    let object = from_handle::<Cno<FakeProvider>>(cno.raw(), Handle::Cno).unwrap();
    assert_eq!(free(cno), DAT_SUCCESS);
    assert_eq!(object.descriptor(), None, "although another call still uses the CNO");
    assert_eq!(dapls_cno::descriptor(&object), Err(Error::InvalidHandle(Handle::Cno)));
}
