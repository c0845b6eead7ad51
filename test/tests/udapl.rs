//! The Rust crate `udapl` over the real libraries: its examples, in one process and in two, and the guarantees of its
//! types, over each provider that needs no device. Also checks that the crates can be packaged.
//!
//! Each case over an adapter runs in a separate process, whose environment has the staged libraries and a registry. If
//! `UDAPL_TEST_ADAPTER` is set, the case runs in this process, over that adapter.
#![forbid(unsafe_code)]

use std::env;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use dapl_test::run::{SM0, Sandbox, USNIC0, rounds};
use dapl_test::stage::{Profile, built_example, stage, workspace};
use udapl::{
    Access, Buffer, Completion, ConnectionRequest, End, Ep, EpSpec, Error, Evd, Event, Ia, Library, Op, Pz, Remote,
    State, Streams, TransferError, Window,
};

#[path = "udapl/objects.rs"]
mod objects;

/// Watchdog, longer than any correct run.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Variable with the adapter's name for the process that runs a case.
const ADAPTER: &str = "UDAPL_TEST_ADAPTER";

/// Runs a case over each adapter, each in a separate process.
fn over_each(case: &str, body: fn(&str)) {
    if let Ok(adapter) = env::var(ADAPTER) {
        return body(&adapter);
    }
    let stage = stage(Profile::Dev);
    for (adapter, registry) in [("sm0", SM0), ("usnic0", USNIC0)] {
        let sandbox = Sandbox::new(&stage, Some(registry));
        let itself = env::current_exe().expect("the path of this test program is known");
        let mut command = sandbox.command(itself, &["--exact", case, "--nocapture"]);
        command.env(ADAPTER, adapter);
        let done = dapl_test::run::Run::start(command).finish(TIMEOUT);
        assert!(done.status.success() && done.stdout.contains("1 passed"), "the test failed over {adapter}: {done:#?}");
    }
}

/// An adapter with two connected endpoints.
struct Pair {
    ia: Ia,
    pz: Pz,
    events: Evd,
    client: Ep,
    server: Ep,
}

impl Pair {
    fn open(adapter: &str) -> Self {
        let ia = Library::load().unwrap().open(adapter).unwrap();
        let pz = ia.pz().unwrap();
        let events = ia.evd(64, Streams::REQUEST | Streams::DTO | Streams::CONNECTION).unwrap();
        let (client, server) = (pz.ep(&events).unwrap(), pz.ep(&events).unwrap());
        Pair { ia, pz, events, client, server }
    }

    fn connected(adapter: &str) -> Self {
        let pair = Self::open(adapter);
        pair.ask().accept(&pair.server, b"welcome").unwrap();
        for _ in 0..2 {
            let Event::Established { ep, private_data } = pair.next() else { panic!("the pair was not connected") };
            if ep == pair.client.id() {
                assert!(private_data.starts_with(b"welcome"), "{private_data:?}");
            }
        }
        pair
    }

    /// Makes the client connect and returns its connection request.
    fn ask(&self) -> ConnectionRequest {
        let listener = self.ia.listen_any(&self.events).unwrap();
        let to = self.ia.address().unwrap_or(Ipv4Addr::LOCALHOST.into());
        self.client.connect(to, listener.qualifier(), TIMEOUT, b"hello").unwrap();
        match self.next() {
            Event::Request(request) => request,
            other => panic!("wanted a connection request, got {other:?}"),
        }
    }

    fn next(&self) -> Event {
        self.events.wait(TIMEOUT).unwrap().expect("an event arrives before the time limit")
    }

    fn completion(&self) -> Completion {
        match self.next() {
            Event::Completed(completion) => completion,
            other => panic!("wanted a completion, got {other:?}"),
        }
    }

    /// Returns the completion of a transfer that broke the connection. Both endpoints get a disconnect event, in
    /// either order.
    fn completion_that_breaks(&self) -> Completion {
        let (done, ends): (Vec<_>, Vec<_>) =
            [self.next(), self.next(), self.next()].into_iter().partition(|event| matches!(event, Event::Completed(_)));
        assert!(ends.len() == 2 && ends.iter().all(|end| matches!(end, Event::Ended { .. })), "{done:?} {ends:?}");
        match done.into_iter().next() {
            Some(Event::Completed(completion)) => completion,
            other => panic!("wanted a completion, got {other:?}"),
        }
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new(&self.pz, bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    }
}

fn ping() -> PathBuf {
    built_example("udapl-ping", "udapl/async", Profile::Dev)
}

/// Runs an example many times over each adapter, over both at the same time. Each run has its own sandbox. The order of
/// completions and messages differs between runs.
fn repeat_over_each(run: impl Fn(&Sandbox, &str) + Sync) {
    let (stage, run) = (&stage(Profile::Dev), &run);
    thread::scope(|scope| {
        for (adapter, registry) in [("sm0", SM0), ("usnic0", USNIC0)] {
            scope.spawn(move || {
                (0..rounds(50, 100)).for_each(|_| run(&Sandbox::new(stage, Some(registry)), adapter));
            });
        }
    });
}

#[test]
fn udapl_ping_runs_many_times_over_each_provider() {
    let ping = ping();
    repeat_over_each(|sandbox, adapter| {
        // The client may start first: it retries until the server listens.
        let client = sandbox.start(&ping, &[adapter, "4711", "127.0.0.1"]);
        let server = sandbox.start(&ping, &[adapter, "4711"]);
        let (client, server) = (client.finish(TIMEOUT), server.finish(TIMEOUT));
        assert!(
            client.status.success() && server.status.success(),
            "{adapter}: client: {client:#?}\nserver: {server:#?}"
        );
        client.expect_success("client: 1000 messages there and back");
        server.expect_success("server: 1000 messages answered");
    });
}

#[test]
fn examples_in_one_process_run_many_times_over_each_provider() {
    let examples: Vec<String> = std::fs::read_dir(workspace().join("dat/udapl/examples"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path().file_stem().unwrap().to_string_lossy().into_owned())
        .filter(|name| name != "udapl-ping") // another test covers this example
        .collect();
    assert!(examples.len() >= 3, "{examples:?}");
    for example in &examples {
        let program = built_example(example, "udapl/async", Profile::Dev);
        repeat_over_each(|sandbox, adapter| {
            let done = sandbox.start(&program, &[adapter]).finish(TIMEOUT);
            assert!(done.status.success(), "{example} {adapter}: {done:#?}");
            // One example deliberately uses a stale key.
            let is_expected = |line: &str| line.contains("DAT_DTO_ERR_REMOTE_ACCESS");
            assert!(done.stderr.lines().all(is_expected), "{example} {adapter}: {done:#?}");
            assert!(!done.stdout.is_empty(), "{example} {adapter}: {done:#?}");
        });
    }
}

#[test]
fn dat_abi_and_udapl_crates_can_be_packaged() {
    let target = dapl_test::stage::target_directory().join("packaged");
    let mut cargo = std::process::Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).args(["package", "-p", "dat-abi", "-p", "udapl", "--allow-dirty", "--offline"]);
    let output = cargo.env("CARGO_TARGET_DIR", &target).output().expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    for name in ["dat-abi", "udapl"] {
        let file = target.join(format!("package/{name}-{}", env!("CARGO_PKG_VERSION")));
        for wanted in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs"] {
            assert!(file.join(wanted).is_file(), "{name} has no {wanted}: {text}");
        }
    }
}

#[test]
fn udapl_ping_reports_errors() {
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(SM0));
    sandbox.start(ping(), &[]).finish(TIMEOUT).expect_failure("usage: udapl-ping");
    sandbox
        .start(ping(), &["nowhere0", "1"])
        .finish(TIMEOUT)
        .expect_failure("udapl-ping: dat_ia_openv: DAT_PROVIDER_NOT_FOUND (DAT_NAME_NOT_REGISTERED)");
}

#[test]
fn registry_names_and_adapter_limits_can_be_read() {
    over_each("registry_names_and_adapter_limits_can_be_read", |adapter| {
        let library = Library::load().unwrap();
        assert!(library.names().unwrap().iter().any(|name| name == adapter));
        let ia = library.open(adapter).unwrap();
        assert!(ia.limits().max_message >= 1 << 20 && ia.limits().max_posted >= 16, "{:?}", ia.limits());
        assert!(!ia.provider().is_empty());
        assert!(matches!(library.open("a\0b"), Err(Error::Argument(_))));
        let error = library.open("unknown").err().unwrap();
        assert!(error.to_string().contains("DAT_NAME_NOT_REGISTERED"), "{error}");
    });
}

#[test]
fn completions_return_the_buffers_of_messages_reads_and_writes() {
    over_each("completions_return_the_buffers_of_messages_reads_and_writes", |adapter| {
        let pair = Pair::connected(adapter);
        let recv = pair.server.recv(Buffer::new(&pair.pz, 100).unwrap(), 10..).unwrap();
        let send = pair.client.send(pair.buffer(b"a message"), 2..).unwrap();
        for _ in 0..2 {
            let done = pair.completion();
            assert_eq!(done.result, Ok(7));
            match done.op {
                Op::Send => assert_eq!((done.id, done.ep), (send, pair.client.id())),
                _ => {
                    assert_eq!((done.op, done.id, done.ep), (Op::Recv, recv, pair.server.id()));
                    assert_eq!(&done.buffer[10..17], b"message");
                }
            }
        }
        let window = Window::new(&pair.pz, 4096, Access::READ | Access::WRITE).unwrap();
        let remote = Remote::from_bytes(&window.ticket().to_bytes());
        pair.client.write(pair.buffer(b"0123456789"), 3..7, &remote, 100).unwrap();
        assert_eq!(pair.completion().result, Ok(4));
        let mut there = [0; 6];
        window.read(99, &mut there);
        assert_eq!(&there, b"\x003456\0");
        window.write(4000, b"to be fetched");
        pair.client.read(Buffer::new(&pair.pz, 20).unwrap(), 1..14, &remote, 4000).unwrap();
        let done = pair.completion();
        assert_eq!((done.op, done.result, &done.buffer[..15]), (Op::Read, Ok(13), &b"\0to be fetched\0"[..]));
        // A message of length 0 also completes a receive.
        pair.server.recv(done.buffer, ..0).unwrap();
        pair.client.send(pair.buffer(b"x"), ..0).unwrap();
        assert_eq!((pair.completion().result, pair.completion().result), (Ok(0), Ok(0)));
        assert_eq!((pair.client.posted(), pair.server.posted()), (0, 0));
    });
}

#[test]
fn buffer_of_a_refused_post_is_returned() {
    over_each("buffer_of_a_refused_post_is_returned", |adapter| {
        let pair = Pair::open(adapter);
        let spec = EpSpec { max_recvs: Some(2), ..EpSpec::new(&pair.events) };
        let ep = pair.pz.ep_with(&spec).unwrap();
        let refused = (0..10_000)
            .find_map(|_| ep.recv(pair.buffer(b"mine"), ..).err())
            .expect("a receive queue accepts fewer than 10,000 receives");
        assert_eq!(&refused.buffer[..], b"mine");
        assert!(refused.error.to_string().contains("DAT_INSUFFICIENT_RESOURCES"), "{refused}");
        let refused = ep.send(refused.buffer, ..).expect_err("a send on an unconnected EP fails");
        assert!(refused.to_string().contains("dat_ep_post_send: DAT_INVALID_STATE"), "{refused}");
        let refused = ep.recv(refused.buffer, ..5).expect_err("a range beyond the buffer of four bytes fails");
        assert!(matches!(refused.error, Error::Argument(_)), "{refused}");
        let window = Window::new(&pair.pz, 8, Access::READ).unwrap();
        let refused =
            ep.write(refused.buffer, .., &window.ticket(), 5).expect_err("a write beyond the end of the window fails");
        assert_eq!(refused.to_string(), "4 bytes at offset 5 are not inside the peer's memory of 8 bytes");
    });
}

#[test]
fn disconnect_flushes_posts_and_a_reset_endpoint_reconnects() {
    over_each("disconnect_flushes_posts_and_a_reset_endpoint_reconnects", |adapter| {
        let pair = Pair::connected(adapter);
        assert_eq!(pair.client.state().unwrap(), State::Connected);
        pair.server.recv(pair.buffer(b"kept"), ..).unwrap();
        pair.client.disconnect().unwrap();
        let (mut ends, mut flushed) = (Vec::new(), None);
        while ends.len() < 2 || flushed.is_none() {
            match pair.next() {
                Event::Ended { ep, why } => ends.push((ep, why)),
                Event::Completed(done) => flushed = Some(done),
                other => panic!("{other:?}"),
            }
        }
        assert!(ends.iter().all(|(_, why)| *why == End::Disconnected), "{ends:?}");
        let flushed = flushed.unwrap();
        assert_eq!((flushed.result, &flushed.buffer[..]), (Err(TransferError::Flushed), &b"kept"[..]));
        pair.client.reset().unwrap();
        pair.server.reset().unwrap();
        assert_eq!(pair.client.state().unwrap(), State::Unconnected);
        pair.ask().accept(&pair.server, b"").unwrap();
        assert!(matches!(pair.next(), Event::Established { .. }));
    });
}

#[test]
fn access_outside_of_a_window_breaks_the_connection() {
    over_each("access_outside_of_a_window_breaks_the_connection", |adapter| {
        let pair = Pair::connected(adapter);
        let window = Window::new(&pair.pz, 64, Access::READ).unwrap();
        let remote = Remote::from_bytes(&window.ticket().to_bytes());
        pair.client.write(pair.buffer(b"no"), .., &remote, 0).unwrap();
        assert_eq!(pair.completion_that_breaks().result, Err(TransferError::RemoteAccess));
        let mut there = [9; 2];
        window.read(0, &mut there);
        assert_eq!(there, [0, 0]);
    });
}

#[test]
fn access_to_a_dropped_window_breaks_the_connection() {
    over_each("access_to_a_dropped_window_breaks_the_connection", |adapter| {
        let pair = Pair::connected(adapter);
        let window = Window::new(&pair.pz, 64, Access::READ | Access::WRITE).unwrap();
        let remote = Remote::from_bytes(&window.ticket().to_bytes());
        drop(window);
        pair.client.read(pair.buffer(b"??"), .., &remote, 0).unwrap();
        let done = pair.completion_that_breaks();
        assert_eq!((done.result, &done.buffer[..]), (Err(TransferError::RemoteAccess), &b"??"[..]));
    });
}

#[test]
fn dropped_connection_request_is_rejected() {
    over_each("dropped_connection_request_is_rejected", |adapter| {
        let pair = Pair::open(adapter);
        let request = pair.ask();
        assert!(request.private_data().unwrap().starts_with(b"hello"));
        assert!(request.peer().unwrap().is_some());
        drop(request);
        let Event::Ended { ep, why } = pair.next() else { panic!("a rejected connection was established") };
        assert_eq!((ep, why), (pair.client.id(), End::PeerRejected));
    });
}

#[test]
fn a_request_that_cannot_be_accepted_is_rejected() {
    over_each("a_request_that_cannot_be_accepted_is_rejected", |adapter| {
        let pair = Pair::open(adapter);
        let error = pair.ask().accept(&pair.client, b"").expect_err("accepting with an EP that is connecting fails");
        assert!(error.to_string().contains("dat_cr_accept: DAT_INVALID_STATE"), "{error}");
        assert!(matches!(pair.next(), Event::Ended { why: End::PeerRejected, .. }));
    });
}

#[test]
fn endpoints_are_freed_with_posted_work_and_report_no_event_afterwards() {
    over_each("endpoints_are_freed_with_posted_work_and_report_no_event_afterwards", |adapter| {
        let Pair { ia, pz, events, client, server } = Pair::connected(adapter);
        for _ in 0..8 {
            server.recv(Buffer::new(&pz, 1 << 16).unwrap(), ..).unwrap();
        }
        let server_is = server.id();
        drop(server);
        let Event::Ended { ep, .. } = events.wait(TIMEOUT).unwrap().unwrap() else {
            panic!("the client got another event")
        };
        assert_eq!(ep, client.id());
        while let Some(event) = events.poll().unwrap() {
            let of_the_dead = match &event {
                Event::Completed(done) => done.ep == server_is,
                Event::Ended { ep, .. } | Event::Established { ep, .. } => *ep == server_is,
                _ => false,
            };
            assert!(!of_the_dead, "{event:?}");
        }
        // Any drop order works: each object keeps what it needs alive.
        drop((ia, pz, events));
        assert_eq!(client.state().unwrap(), State::Disconnected);
    });
}

#[test]
fn wait_times_out_and_a_second_waiter_is_refused() {
    over_each("wait_times_out_and_a_second_waiter_is_refused", |adapter| {
        let pair = Pair::open(adapter);
        assert!(pair.events.wait(Duration::ZERO).unwrap().is_none());
        assert!(pair.events.poll().unwrap().is_none());
        std::thread::scope(|scope| {
            // Either thread may be the one that waits; the other is refused.
            let waiter = scope.spawn(|| {
                loop {
                    match pair.events.wait(TIMEOUT) {
                        Ok(event) => break event.expect("an event arrives before the time limit"),
                        Err(_) => std::thread::yield_now(),
                    }
                }
            });
            let refused = loop {
                match pair.events.wait(Duration::ZERO) {
                    Ok(None) => std::thread::yield_now(),
                    Ok(Some(event)) => panic!("{event:?}"),
                    Err(error) => break error,
                }
            };
            assert!(refused.to_string().starts_with("dat_evd_wait: DAT_INVALID_STATE"), "{refused}");
            let listener = pair.ia.listen_any(&pair.events).unwrap();
            let to = pair.ia.address().unwrap_or(Ipv4Addr::LOCALHOST.into());
            pair.client.connect(to, listener.qualifier(), TIMEOUT, b"").unwrap();
            assert!(matches!(waiter.join().unwrap(), Event::Request(_)));
        });
    });
}
