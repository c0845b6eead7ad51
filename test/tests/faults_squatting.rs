//! Another user creates the default base directory of sm or usnic. If this happens before the first process of this
//! user starts, the processes of this user share an alternative directory. A directory in use cannot be replaced.
//!
//! Needs permission to start programs as another user. Without it, the tests print a message and are skipped.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use dapl_test::run::{self, Finished, Run, SM0, Sandbox};
use dapl_test::stage::{Profile, Stage, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A user id that no process of this host has, and what its processes need: libraries, a registry and dtest.
struct User {
    stage: Stage,
    sandbox: Sandbox,
    dtest: PathBuf,
    id: u32,
    /// The default base directory of the provider, without the user id.
    prefix: &'static str,
}

impl User {
    fn of_sm(number: u32) -> Option<User> {
        Self::new(number, SM0, "libdaplsm.so.1", "/dev/shm/dapl")
    }

    fn new(number: u32, registry: &str, library: &str, prefix: &'static str) -> Option<User> {
        let stage = stage(Profile::Dev);
        let sandbox = Sandbox::new(&stage, Some(registry));
        let dtest = run::program(&stage, "dtest/dtest.c");
        let user = User { stage, sandbox, dtest, id: 100_000_000 + std::process::id() * 4 + number, prefix };
        let place = user.sandbox.sm();
        let place = place.parent().expect("the directory is inside of a sandbox");
        let is_given = [place, &place.join("dat.conf")].iter().all(|path| chown(path, Some(user.id), None).is_ok());
        let provider = user.stage.lib.join(library);
        let mut tried = Command::new("test");
        tried.arg("-x").arg(&user.dtest).arg("-a").arg("-r").arg(provider).uid(user.id);
        if is_given && tried.status().is_ok_and(|status| status.success()) {
            return Some(user);
        }
        eprintln!("skipped: cannot run {} as another user", user.dtest.display());
        None
    }

    fn default(&self) -> PathBuf {
        PathBuf::from(format!("{}-{}", self.prefix, self.id))
    }

    fn start(&self, arguments: &[&str]) -> Run {
        let mut command = self.sandbox.command(&self.dtest, arguments);
        command.uid(self.id).env_remove("DAPL_DIR");
        Run::start(command)
    }

    /// This user's directories in /dev/shm.
    fn directories(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir("/dev/shm").expect("/dev/shm exists").flatten().map(|entry| entry.path());
        let default = self.default().display().to_string();
        entries.filter(|path| path.display().to_string().starts_with(&default)).collect()
    }
}

fn succeeded(server: &Finished, client: &Finished) {
    assert!(client.status.success() && server.status.success(), "client: {client:#?}\nserver: {server:#?}");
    client.expect_success("dtest: OK (checked ");
    server.expect_success("dtest: OK (checked ");
}

#[test]
fn processes_connect_beside_a_directory_of_another_user() {
    let Some(user) = User::of_sm(0) else { return };
    fs::create_dir(user.default()).unwrap();
    let server = user.start(&[]);
    server.wait_for("listening", TIMEOUT);
    let client = user.start(&["-h", "localhost"]).finish(TIMEOUT);
    let server = server.finish(TIMEOUT);
    fs::remove_dir(user.default()).unwrap();
    succeeded(&server, &client);
    let expected = format!(
        "the default base directory {} is a directory of uid 0, not a directory of uid {}",
        user.default().display(),
        user.id
    );
    assert_eq!(server.stderr.matches(&expected).count(), 1, "{server:#?}");
    assert_eq!(client.stderr, "", "the second process reported the failure again");
    assert_eq!(user.directories(), Vec::<PathBuf>::new(), "a run directory entry is left");
}

#[test]
fn processes_connect_if_the_other_users_directory_is_removed_in_between() {
    let Some(user) = User::of_sm(1) else { return };
    fs::create_dir(user.default()).unwrap();
    let server = user.start(&[]);
    server.wait_for("listening", TIMEOUT);
    fs::remove_dir(user.default()).unwrap();
    let client = user.start(&["-h", "localhost"]).finish(TIMEOUT);
    succeeded(&server.finish(TIMEOUT), &client);
    assert_eq!(user.directories(), Vec::<PathBuf>::new(), "a run directory entry is left");
}

#[test]
fn another_user_cannot_replace_the_directory_of_a_running_process() {
    let Some(user) = User::of_sm(2) else { return };
    let server = user.start(&[]);
    server.wait_for("listening", TIMEOUT);
    assert_eq!(user.directories(), [user.default()]);
    let error = fs::create_dir(user.default()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    let client = user.start(&["-h", "localhost"]).finish(TIMEOUT);
    succeeded(&server.finish(TIMEOUT), &client);
    assert_eq!(user.directories(), Vec::<PathBuf>::new(), "a run directory entry is left");
}

#[test]
fn requests_over_usnic_are_forwarded_beside_a_directory_of_another_user() {
    let port = 20_000 + std::process::id() % 10_000;
    let registry =
        format!("usnic0 u1.2 threadsafe default libdaplusnic.so.1 dapl.1.2 \"127.0.0.1 port={port}\" \"\"\n");
    let Some(user) = User::new(3, &registry, "libdaplusnic.so.1", "/dev/shm/dapl-usnic") else { return };
    fs::create_dir(user.default()).unwrap();
    // The kernel gives a request to any of the processes, which forwards it to the one that listens on its qualifier.
    let quals = ["45251", "45252", "45253"];
    let servers = quals.map(|qual| user.start(&["-P", "usnic0", "-q", qual]));
    servers.iter().for_each(|server| server.wait_for("listening", TIMEOUT));
    let clients = quals.map(|qual| user.start(&["-P", "usnic0", "-q", qual, "-h", "localhost"]).finish(TIMEOUT));
    let servers = servers.map(|server| server.finish(TIMEOUT));
    fs::remove_dir(user.default()).unwrap();
    servers.iter().zip(&clients).for_each(|(server, client)| succeeded(server, client));
    assert_eq!(user.directories(), Vec::<PathBuf>::new(), "a directory of listeners is left");
}
