//! Tests of requirements that no other test covers. `docs/spec/requirements-usnic.md` lists the requirements with their
//! tests.

use std::process::Command;

use super::*;

/// Environment variable that is set in the child process of a test.
const ALONE: &str = "DAPLUSNIC_TEST_ALONE";

fn sent(qp: &Qp) -> u64 {
    qp.0.counters().expect("the queue pair is connected").sent
}

#[test]
fn small_post_to_an_idle_connection_is_sent_by_the_posting_thread() {
    let (a, qa, b, _qb) = two();
    let from = a.registered(pattern(64, 1), Access::default());
    let to = b.registered(vec![0; 64], ALL);
    // No other thread can run a pass while this thread holds the lock of passes.
    let passes = a.ia.adapter.progress.pass.lock();
    qa.post_send(&wr(Op::Write(to.remote(0)), &[from.segment(0, 8)], 0)).unwrap();
    assert_eq!(sent(&qa), 1);
    let pieces = [from.segment(8, 4), from.segment(12, 4)];
    qa.post_send(&wr(Op::Write(to.remote(8)), &pieces, 1)).unwrap();
    assert_eq!(sent(&qa), 1, "a request with two segments waits for the next pass");
    for n in 2..8 {
        qa.post_send(&wr(Op::Write(to.remote(n * 8)), &[from.segment(n * 8, 8)], n as u64)).unwrap();
    }
    assert!(sent(&qa) < 8, "posts to a busy connection wait, and are sent in one batch");
    drop(passes);
    for n in 0..8 {
        assert_eq!(a.completion(&b).token.cookie, n);
    }
    assert_eq!((sent(&qa), to.now()), (8, from.bytes));
}

/// Number of engine threads of this process.
fn engines() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "dapl-usnic").count()
}

#[test]
fn no_thread_runs_before_open_or_after_close() {
    if std::env::var_os(ALONE).is_none() {
        // The test runs alone in a child process, because other tests start engine threads.
        let name = concat!(module_path!(), "::no_thread_runs_before_open_or_after_close");
        let name = name.split_once("::").expect("the module path contains the crate name").1;
        let alone = std::env::current_exe().unwrap();
        let output = Command::new(alone).args(["--exact", name, "--test-threads=1"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "the test must pass in a process of its own: {said}"
        );
        return;
    }
    assert_eq!(engines(), 0);
    let side = TestIa::open();
    let until = Instant::now() + PATIENCE;
    while engines() == 0 {
        // A new thread sets its name after it has started.
        assert!(Instant::now() < until, "the engine thread must start");
        std::thread::yield_now();
    }
    assert_eq!(engines(), 1);
    drop(side);
    assert_eq!(engines(), 0);
}
