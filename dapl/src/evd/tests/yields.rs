//! Test of a thread that may use only one processor. It yields the processor in unsuccessful dequeues, but not soon
//! after it has dequeued an event.

use super::*;
use crate::runtime::shared_cpu::tests::use_one_cpu;

#[test]
fn dequeue_that_empties_an_evd_does_not_yield() {
    // Affinity belongs to a thread, so this function runs in a thread of its own.
    let yields_after = |evd: Evh, take: &(dyn Fn(Evh) + Sync)| {
        use_one_cpu();
        let object = evd.object();
        while !object.inner.lock().backoff.should_yield(None) {}
        take(evd);
        (0..32).any(|_| object.inner.lock().backoff.should_yield(None))
    };
    let yields = |name: &CStr, has_descriptor: bool, take: &(dyn Fn(Evh) + Sync)| {
        let opened = fake::open(name);
        let evd = Evh::new(&opened, 8, ALL);
        if has_descriptor {
            dapls_descriptor::descriptor(&evd.object()).unwrap();
        }
        std::thread::scope(|scope| scope.spawn(|| yields_after(evd, take)).join().unwrap())
    };
    let dequeue = |evd: Evh| {
        evd.cq().feed(done(1));
        assert_eq!(evd.dequeue(), (DAT_SUCCESS, 1));
    };
    // Two completions: the wait cannot take its fast path.
    let wait = |evd: Evh| {
        [1, 2].into_iter().for_each(|cookie| evd.cq().put(done(cookie)));
        assert_eq!(evd.wait(DAT_TIMEOUT_INFINITE, 2), (DAT_SUCCESS, 1, 1));
    };
    assert!(yields(c"evd-yield-none", false, &|_| {}), "without an event");
    assert!(!yields(c"evd-yield-dequeue", false, &dequeue), "after a dequeue");
    assert!(!yields(c"evd-yield-descriptor", true, &dequeue), "after a dequeue from an EVD with a descriptor");
    assert!(!yields(c"evd-yield-wait", false, &wait), "after a wait");
}
