//! Calls the DAT functions of the sm provider from several threads at the same time, through the table that the
//! provider registers.
//!
//! `cargo test` runs these tests without a sanitizer; `cargo xtask test threads` runs them under ThreadSanitizer. The
//! sanitizer covers dapl and sm, because both are linked into this program. No test asserts an order that the
//! specification does not guarantee. A watchdog ends a test that hangs.

#[path = "threads/entries.rs"]
mod entries;
#[path = "threads/pair.rs"]
mod pair;
#[path = "threads/random_calls.rs"]
mod random_calls;
#[cfg(tsan)]
#[path = "threads/sanitizer.rs"]
mod sanitizer;

use std::collections::BTreeSet;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dat_abi::*;
use entries::{Entries, blank, completion, cookie, crew, dat, made, next, sure};
use pair::{End, connect};
use random_calls::SharedHandles;

/// Number of repetitions. It is larger under the sanitizer, because that build is used only for these tests.
const TIMES: u32 = if cfg!(tsan) { 8 } else { 1 };

/// Ends the process if a test hangs, for example because of a lost wake-up.
struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    fn new(name: &'static str) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        thread::spawn(move || {
            for _ in 0..1200 {
                thread::sleep(Duration::from_millis(100));
                if seen.load(Ordering::Relaxed) {
                    return;
                }
            }
            eprintln!("threads: {name} hangs");
            std::process::abort();
        });
        Watchdog(over)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a test with its own adapter, which is then closed abruptly, so that open objects do not prevent the close.
fn with_ia(name: &'static str, test: impl FnOnce(entries::Handle)) {
    let _watchdog = Watchdog::new(name);
    let entries = Entries::new();
    let ia = entries.open();
    test(ia);
    assert_eq!(dat!(ia_close_func(ia, DAT_CLOSE_ABRUPT_FLAG)), DAT_SUCCESS);
}

/// Contains a data race on purpose. `cargo xtask test threads` expects the sanitizer to report it.
#[test]
#[ignore = "races on purpose"]
fn a_deliberate_race_is_reported() {
    struct Shared(std::cell::UnsafeCell<u64>);
    // SAFETY: not sound: this test contains a data race, which the sanitizer must report.
    unsafe impl Sync for Shared {}
    static SHARED: Shared = Shared(std::cell::UnsafeCell::new(0));
    // SAFETY: not sound: both threads change the number without synchronization, which the sanitizer must report.
    let touch = || unsafe { *SHARED.0.get() += 1 };
    crew(|crew| {
        crew.spawn(touch);
        crew.spawn(touch);
    });
}

#[test]
fn completions_of_two_posting_threads_are_dequeued_once() {
    const EACH: u64 = 400 * TIMES as u64;
    with_ia("posting", |ia| {
        let pz = sure(made!(pz_create_func(ia)));
        let (from, to) = (End::new(ia, pz), End::new(ia, pz));
        connect(ia, from, to);
        crew(|crew| {
            let post = move |base: u64, receives: bool| {
                for n in base..base + EACH {
                    loop {
                        let code = match receives {
                            true => dat!(ep_post_recv_func(to.ep(), 0, null_mut(), cookie(n), 0)),
                            false => dat!(ep_post_send_func(from.ep(), 0, null_mut(), cookie(n), 0)),
                        };
                        match code & 0x3FFF_0000 {
                            0 => break,
                            DAT_INSUFFICIENT_RESOURCES => thread::yield_now(),
                            _ => panic!("{code:#x}"),
                        }
                    }
                }
            };
            for base in [0, EACH] {
                crew.spawn(move || post(base, true));
                crew.spawn(move || post(base, false));
            }
            // One thread polls, another thread sleeps.
            crew.spawn(move || {
                let mut seen = BTreeSet::new();
                while seen.len() < 2 * EACH as usize {
                    let mut event = blank();
                    match dat!(evd_dequeue_func(to.received(), &mut event)) {
                        DAT_SUCCESS => {
                            let (cookie, status) = completion(&event);
                            assert_eq!(status, DAT_DTO_SUCCESS);
                            assert!(seen.insert(cookie), "{cookie} came twice");
                        }
                        _ => thread::yield_now(),
                    }
                }
            });
            crew.spawn(move || {
                let mut seen = BTreeSet::new();
                while seen.len() < 2 * EACH as usize {
                    let (cookie, status) = completion(&next(from.sent()));
                    assert_eq!(status, DAT_DTO_SUCCESS);
                    assert!(seen.insert(cookie), "{cookie} came twice");
                }
            });
        });
    });
}

#[test]
fn waiter_and_dequeuer_get_each_posted_event_once() {
    const EVENTS: usize = 600 * TIMES as usize;
    with_ia("waiting", |ia| {
        let evd =
            AtomicPtr::new(sure(made!(evd_create_func(ia, EVENTS as DAT_COUNT, null_mut(), DAT_EVD_SOFTWARE_FLAG))));
        let taken = AtomicUsize::new(0);
        let posted = AtomicUsize::new(0);
        crew(|crew| {
            for _ in 0..2 {
                crew.spawn(|| {
                    while posted.fetch_add(1, Ordering::Relaxed) < EVENTS {
                        let mut event = blank();
                        event.event_number = DAT_SOFTWARE_EVENT;
                        let evd = evd.load(Ordering::Relaxed);
                        assert_eq!(dat!(evd_post_se_func(evd, &event)), DAT_SUCCESS);
                    }
                });
            }
            crew.spawn(|| {
                while taken.load(Ordering::Relaxed) < EVENTS {
                    let (mut event, mut more) = (blank(), 0);
                    let evd = evd.load(Ordering::Relaxed);
                    if dat!(evd_wait_func(evd, 2_000, 1, &mut event, &mut more)) == DAT_SUCCESS {
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            crew.spawn(|| {
                while taken.load(Ordering::Relaxed) < EVENTS {
                    let mut event = blank();
                    // The dequeue is refused while another thread waits.
                    if dat!(evd_dequeue_func(evd.load(Ordering::Relaxed), &mut event)) == DAT_SUCCESS {
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                    thread::yield_now();
                }
            });
        });
        assert_eq!(taken.load(Ordering::Relaxed), EVENTS);
    });
}

#[test]
fn posts_during_disconnect_reset_and_free_return() {
    with_ia("ending", |ia| {
        let pz = sure(made!(pz_create_func(ia)));
        for round in 0..12 * TIMES {
            let (from, to) = (End::new(ia, pz), End::new(ia, pz));
            connect(ia, from, to);
            let over = AtomicBool::new(false);
            crew(|crew| {
                for end in [from, to] {
                    let over = &over;
                    crew.spawn(move || {
                        let mut n = 0;
                        while !over.load(Ordering::Relaxed) {
                            n += 1;
                            dat!(ep_post_recv_func(end.ep(), 0, null_mut(), cookie(n), 0));
                            dat!(ep_post_send_func(end.ep(), 0, null_mut(), cookie(n), 0));
                        }
                    });
                    crew.spawn(move || {
                        while !over.load(Ordering::Relaxed) {
                            let mut event = blank();
                            dat!(evd_dequeue_func(end.sent(), &mut event));
                            dat!(evd_dequeue_func(end.received(), &mut event));
                            thread::yield_now();
                        }
                    });
                }
                let flag = if round % 2 == 0 { DAT_CLOSE_ABRUPT_FLAG } else { DAT_CLOSE_GRACEFUL_FLAG };
                thread::sleep(Duration::from_millis(1));
                dat!(ep_disconnect_func(from.ep(), flag));
                dat!(ep_reset_func(from.ep()));
                dat!(ep_disconnect_func(to.ep(), DAT_CLOSE_ABRUPT_FLAG));
                dat!(ep_reset_func(to.ep()));
                assert_eq!(dat!(ep_free_func(from.ep())), DAT_SUCCESS);
                assert_eq!(dat!(ep_free_func(to.ep())), DAT_SUCCESS);
                over.store(true, Ordering::Relaxed);
            });
        }
    });
}

/// State of a CNO's proxy agent.
struct Agent {
    cno: AtomicPtr<std::ffi::c_void>,
    evd: AtomicPtr<std::ffi::c_void>,
    calls: AtomicU64,
    taken: AtomicU64,
}

impl Agent {
    fn proxy(&self) -> DAT_OS_WAIT_PROXY_AGENT {
        DAT_OS_WAIT_PROXY_AGENT {
            instance_data: std::ptr::from_ref(self).cast_mut().cast(),
            proxy_agent_func: Some(called),
        }
    }
}

/// Function of the agent: dequeues all events, sets itself as the CNO's agent again, and dequeues once more.
unsafe extern "C" fn called(agent: DAT_PVOID, _: DAT_EVD_HANDLE) {
    // SAFETY: `agent` is the `instance_data` of `Agent::proxy`, which is leaked and therefore valid.
    let agent = unsafe { &*agent.cast::<Agent>() };
    agent.calls.fetch_add(1, Ordering::Relaxed);
    let take = || {
        let mut event = blank();
        while dat!(evd_dequeue_func(agent.evd.load(Ordering::Relaxed), &mut event)) == DAT_SUCCESS {
            agent.taken.fetch_add(1, Ordering::Relaxed);
        }
    };
    take();
    dat!(cno_modify_agent_func(agent.cno.load(Ordering::Relaxed), agent.proxy()));
    take();
}

#[test]
fn agent_that_sets_itself_again_misses_no_event() {
    const EVENTS: u64 = 600 * TIMES as u64;
    with_ia("agents", |ia| {
        // The agent is leaked, because it is called once more when the adapter is closed.
        let agent: &'static Agent = Box::leak(Box::new(Agent {
            cno: AtomicPtr::default(),
            evd: AtomicPtr::default(),
            calls: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        }));
        let cno = sure(made!(cno_create_func(ia, agent.proxy())));
        agent.cno.store(cno, Ordering::Relaxed);
        let evd = sure(made!(evd_create_func(ia, EVENTS as DAT_COUNT, cno, DAT_EVD_SOFTWARE_FLAG)));
        agent.evd.store(evd, Ordering::Relaxed);
        crew(|crew| {
            for _ in 0..3 {
                crew.spawn(move || {
                    for _ in 0..EVENTS / 3 {
                        let mut event = blank();
                        event.event_number = DAT_SOFTWARE_EVENT;
                        assert_eq!(dat!(evd_post_se_func(agent.evd.load(Ordering::Relaxed), &event)), DAT_SUCCESS);
                    }
                });
            }
        });
        while agent.taken.load(Ordering::Relaxed) < EVENTS {
            thread::yield_now();
        }
        assert!(agent.calls.load(Ordering::Relaxed) > 0);
    });
}

#[test]
fn random_calls_from_several_threads_return() {
    for _ in 0..4 * TIMES {
        with_ia("random_callers", |ia| SharedHandles::new(ia).open(4, 500));
    }
}

#[test]
fn adapter_closes_during_random_calls() {
    let _watchdog = Watchdog::new("closing");
    let entries = Entries::new();
    for round in 0..6 * u64::from(TIMES) {
        let ia = entries.open();
        let shared = SharedHandles::new(ia);
        crew(|crew| {
            crew.spawn(|| shared.open(3, 700));
            thread::sleep(Duration::from_millis(3 * (round % 6)));
            assert_eq!(dat!(ia_close_func(ia, DAT_CLOSE_ABRUPT_FLAG)), DAT_SUCCESS);
        });
        assert_ne!(dat!(ia_close_func(ia, DAT_CLOSE_ABRUPT_FLAG)), DAT_SUCCESS, "closed twice");
    }
}
