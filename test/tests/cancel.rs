//! `pthread_cancel` during the DAT calls that `test/c/cancel.c` makes: those of DAT 1.2 and of DAT 2.0, over sm, usnic,
//! and verbs on a fake device. Waits are cancelled without losing an event. Other calls complete, although a
//! cancellation request is pending.
//!
//! The suite `rxe` runs the same program over verbs on soft-RoCE, which has memory windows and shared receive queues.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use dapl_test::fake_device::{Driver, FakeDevice, VERBS0};
use dapl_test::run::{self, SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, Stage, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A provider: adapter, registry of 1.2, library, and the driver of the fake device if it uses this device.
struct Provider {
    adapter: &'static str,
    registry: &'static str,
    library: &'static str,
    driver: Option<Driver>,
}

const SM: Provider = Provider { adapter: "sm0", registry: SM0, library: "libdaplsm.so.1", driver: None };
const USNIC: Provider = Provider { adapter: "usnic0", registry: USNIC0, library: "libdaplusnic.so.1", driver: None };
const VERBS: Provider =
    Provider { adapter: "verbs0", registry: VERBS0, library: "libdaplverbs.so.1", driver: Some(Driver::User) };
const VERBS_BY_KERNEL: Provider = Provider { driver: Some(Driver::Kernel), ..VERBS };

const PROVIDERS: [Provider; 4] = [SM, USNIC, VERBS, VERBS_BY_KERNEL];

/// A version of DAT: its name in the output, the compiler of programs, and the conversion of registry lines of 1.2.
struct Version {
    name: &'static str,
    compile: fn(&Stage, &str) -> PathBuf,
    registry: fn(&str) -> String,
}

const VERSIONS: [Version; 2] = [
    Version { name: "DAT 1.2", compile: run::program, registry: str::to_owned },
    Version { name: "DAT 2.0", compile: run::program_2, registry: run::of_2_0 },
];

/// Whether the program also calls functions of the provider library directly.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Direct {
    Yes,
    No,
}

fn cancel(how: &str, rounds: &str, log: &str, direct: Direct) {
    let stage = stage(Profile::Dev);
    for provider in PROVIDERS {
        for Version { name: version, compile, registry } in VERSIONS {
            let sandbox = Sandbox::new(&stage, Some(&registry(provider.registry)));
            let program = compile(&stage, "test/c/cancel.c");
            let library: &[&str] = if direct == Direct::Yes { &[provider.library] } else { &[] };
            let mut command = sandbox.command(&program, &[&[provider.adapter, how, rounds], library].concat());
            command.env("DAPL_DBG_TYPE", log);
            // The socket manager listens at TCP ports of this machine, which are the same in each run.
            static PORTS: Mutex<()> = Mutex::new(());
            let mut _ports = None;
            if let Some(driver) = provider.driver {
                let Some(device) = fake_device(&stage) else { continue };
                device.preload(&mut command, driver);
                _ports = Some(PORTS.lock().unwrap_or_else(PoisonError::into_inner));
            }
            let finished = run::Run::start(command).finish(TIMEOUT);
            finished.expect_success(&format!("cancel: OK, {version}, {rounds} rounds"));
            // The fake device has no memory windows and no shared receive queues.
            let features = if provider.driver.is_some() { "RMRs: no, SRQs: no" } else { "RMRs: yes, SRQs: yes" };
            finished.expect_success(if how == "waits" { "" } else { features });
            println!("{}: {}", provider.adapter, finished.stdout);
        }
    }
}

/// The fake device, compiled once. `None` if the headers of rdma-core are missing.
fn fake_device(stage: &Stage) -> Option<&'static FakeDevice> {
    static DEVICE: OnceLock<FakeDevice> = OnceLock::new();
    if !FakeDevice::can_be_compiled() {
        println!("skipped: verbs: rdma-core's headers are missing; install the Debian package libibverbs-dev");
        return None;
    }
    Some(DEVICE.get_or_init(|| FakeDevice::new(stage)))
}

#[test]
fn calls_complete_with_a_thread_cancellation_pending() {
    cancel("pending", "20", "0", Direct::No);
}

/// The provider logs its actions here. It writes each log line with write(2), which is a cancellation point.
#[test]
fn calls_that_log_complete_with_a_thread_cancellation_pending() {
    cancel("pending", "5", "0xffff", Direct::Yes);
}

#[test]
fn waiting_threads_can_be_cancelled_at_any_moment() {
    cancel("anywhere", "150", "0", Direct::No);
}

/// Fails if the handler of a late cancellation signal unwinds a call that defers cancellation.
#[test]
fn late_signal_of_a_cancelled_wait_does_not_end_the_next_call() {
    let stage = stage(Profile::Dev);
    let program = run::program_2(&stage, "test/c/late_cancel.c");
    for provider in [SM, USNIC] {
        let sandbox = Sandbox::new(&stage, Some(&run::of_2_0(provider.registry)));
        let mut command = sandbox.command(&program, &[provider.adapter]);
        command.env("DAPL_DBG_TYPE", "0xffff");
        let finished = run::Run::start(command).finish(TIMEOUT);
        finished.expect_success("late_cancel: ");
        println!("{}: {}", provider.adapter, finished.stdout);
    }
}

#[test]
fn cancelled_waits_lose_no_event() {
    cancel("waits", "1000", "0", Direct::No);
}
