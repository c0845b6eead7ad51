//! Programs for the suites: compiles C programs against the stage, and runs each in its own environment, with a
//! watchdog.
//!
//! A program that does not end is killed, and the test fails with the output printed until then. Each [`Sandbox`] has
//! its own base directory, UDP port and registry.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::stage::{Stage, workspace};

/// Registry line of the sm provider under its usual name.
pub const SM0: &str = "sm0 u1.2 nonthreadsafe default libdaplsm.so.1 dapl.1.2 \"\" \"\"\n";

/// Registry line of the usnic provider over the loopback interface, with short timeouts for peers that do not respond.
pub const USNIC0: &str =
    "usnic0 u1.2 threadsafe default libdaplusnic.so.1 dapl.1.2 \"127.0.0.1 keepalive_ms=100 give_up_ms=2000\" \"\"\n";

/// File of conformance cases that are skipped in DAT 2.0 because their claims differ.
pub fn changed_by_2_0() -> PathBuf {
    workspace().join("test/conformance/api-2.0.except")
}

/// Converts registry lines of 1.2 to DAT 2.0.
pub fn of_2_0(registry: &str) -> String {
    registry.replace(" u1.2 ", " u2.0 ").replace(" dapl.1.2 ", " dapl.2.0 ")
}

/// Compiles one C or C++ source of the repository (`test/c/first.c`) for the stage, once per process, with strict
/// warnings.
///
/// # Panics
/// If the compiler reports an error or a warning; the message is the compiler's.
pub fn program(stage: &Stage, source: &str) -> PathBuf {
    built(stage, source, "", &["-ldat"])
}

/// Compiles a 1.2 source for DAT 2.0, linked with `libdat2.so.2`. The headers in `test/c/dat20` adapt the names that
/// differ.
///
/// # Panics
///
/// As `program`.
pub fn program_2(stage: &Stage, source: &str) -> PathBuf {
    built(stage, source, "-2", &["-ldat2"])
}

fn built(stage: &Stage, source: &str, suffix: &str, libraries: &[&str]) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<PathBuf, PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let built = built.get_or_insert_default();
    let source = workspace().join(source);
    let key = source.with_extension(suffix);
    if let Some(program) = built.get(&key) {
        return program.clone();
    }
    let directory = stage.root.join("programs");
    fs::create_dir_all(&directory).expect("the staging directory is writable");
    let name = source.file_stem().expect("a source path has a file name").to_string_lossy().into_owned() + suffix;
    // Another test program may be executing the old file.
    let (fresh, program) = (directory.join(format!("{name}.{}", std::process::id())), directory.join(name));
    let (variable, default, standard) = match source.extension().and_then(|extension| extension.to_str()) {
        Some("cc") => ("CXX", "c++", "-std=c++17"),
        _ => ("CC", "cc", "-std=gnu11"),
    };
    let mut compiler = Command::new(std::env::var_os(variable).unwrap_or_else(|| default.into()));
    compiler.args([standard, "-O2", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    if !suffix.is_empty() {
        compiler.arg("-I").arg(workspace().join("test/c/dat20"));
    }
    compiler.arg("-I").arg(&stage.include).arg("-o").arg(&fresh).arg(&source).arg("-L").arg(&stage.lib);
    let output = compiler.arg("-Wl,--as-needed").args(libraries).arg("-pthread").output();
    let output = output.expect("cc starts: a C compiler is installed");
    assert!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    fs::rename(&fresh, &program).expect("the staging directory is writable");
    built.insert(key, program.clone());
    program
}

/// Environment of one test: a base directory of the providers (`DAPL_DIR`), a port for usnic, and a registry. Removed
/// when dropped.
pub struct Sandbox {
    lib: PathBuf,
    /// UDP port for usnic's connection setup.
    port: u16,
    directory: PathBuf,
    registry: Option<PathBuf>,
}

impl Sandbox {
    /// Creates the environment with this registry text. Without a text, the built-in registry is used.
    pub fn new(stage: &Stage, registry: Option<&str>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let directory = base.join(format!("dapl-test-{}-{count}", std::process::id()));
        // sm requires that an existing directory is private.
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory.join("sm"));
        made.expect("the sandbox directory is writable");
        let registry = registry.map(|text| {
            let file = directory.join("dat.conf");
            fs::write(&file, text).expect("the sandbox directory is writable");
            file
        });
        Sandbox { lib: stage.lib.clone(), port: free_port(), directory, registry }
    }

    /// Base directory, in which processes of this environment find each other (`DAPL_DIR`).
    pub fn sm(&self) -> PathBuf {
        self.directory.join("sm")
    }

    /// Returns a command that runs in this environment.
    pub fn command(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        command.args(arguments).env("LD_LIBRARY_PATH", &self.lib).env("DAPL_DIR", self.sm());
        command.env("DAPL_USNIC_PORT", self.port.to_string());
        match &self.registry {
            Some(file) => command.env("DAT_OVERRIDE", file),
            None => command.env_remove("DAT_OVERRIDE"),
        };
        command
    }

    /// Starts a program in this environment.
    pub fn start(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Run {
        Run::start(self.command(program, arguments))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // A failed test may leave files, which affect no other run.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A free UDP port of the loopback interface, below the ephemeral range (32,768 and up by default). The kernel might
/// assign an ephemeral port to a data socket before the listener binds it.
fn free_port() -> u16 {
    const PORTS: std::ops::Range<u16> = 20_000..32_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Each test program starts its search at another port, since several programs run concurrently.
    let first = std::process::id() as u16;
    let mut ports = PORTS.map(|_| {
        let nth = first.wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        PORTS.start + nth % PORTS.len() as u16
    });
    let free = ports.find(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.expect("12,000 ports of the loopback interface are not all taken")
}

/// Output that was read from a program, and whether its pipe is still open.
#[derive(Default)]
struct PipeOutput {
    text: Vec<u8>,
    closed: bool,
}

type Shared = Arc<(Mutex<PipeOutput>, Condvar)>;

/// A running program; killed when dropped.
pub struct Run {
    name: String,
    child: Child,
    stdout: Shared,
    stderr: Shared,
    readers: Vec<JoinHandle<()>>,
}

/// A program that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl Run {
    /// Starts a command with its output captured and no input.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(mut command: Command) -> Self {
        let name = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let (stdout, stderr) = (Shared::default(), Shared::default());
        let readers = vec![
            read(child.stdout.take().expect("the child was started with this stream piped"), &stdout),
            read(child.stderr.take().expect("the child was started with this stream piped"), &stderr),
        ];
        Run { name, child, stdout, stderr, readers }
    }

    /// Waits until standard output contains `text`.
    ///
    /// # Panics
    /// If the program ends or `limit` passes first.
    pub fn wait_for(&self, text: &str, limit: Duration) {
        let deadline = Instant::now() + limit;
        let (said, more) = &*self.stdout;
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        while !String::from_utf8_lossy(&said.text).contains(text) {
            let left = deadline.saturating_duration_since(Instant::now());
            if said.closed || left.is_zero() {
                drop(said);
                panic!("{} did not print {text:?}: {}", self.name, self.so_far());
            }
            said = more.wait_timeout(said, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether standard output already contains `text`.
    pub fn has_printed(&self, text: &str) -> bool {
        let said = self.stdout.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said.text).contains(text)
    }

    /// Whether standard output is closed.
    pub fn has_ended(&self) -> bool {
        self.stdout.0.lock().unwrap_or_else(PoisonError::into_inner).closed
    }

    /// Kills the program with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("the child has not been reaped");
    }

    /// Process id of the program.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of the program.
    ///
    /// # Panics
    /// If `limit` passes first; the program is then killed.
    pub fn finish(mut self, limit: Duration) -> Finished {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the child has not been reaped") {
                break status;
            }
            if Instant::now() > deadline {
                let stacks = self.stacks();
                self.kill();
                panic!("{} has not ended after {limit:?}: {}{stacks}", self.name, self.so_far());
            }
            // std has no wait with a timeout, and a delay of 5 ms does not matter.
            std::thread::sleep(Duration::from_millis(5));
        };
        // Reads the rest of the output. Waits if a child process of the program still holds the pipes.
        for reader in self.readers.drain(..) {
            reader.join().expect("the reader thread does not panic");
        }
        let text = |said: &Shared| -> String {
            let said = said.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&said.text).into_owned()
        };
        Finished { status, stdout: text(&self.stdout), stderr: text(&self.stderr) }
    }

    /// Output that was read until this call.
    pub fn so_far(&self) -> String {
        let text = |said: &Shared| -> String {
            let said = said.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&said.text).into_owned()
        };
        format!("\n--- stdout\n{}--- stderr\n{}", text(&self.stdout), text(&self.stderr))
    }

    /// Name, wait channel and system call of each thread of a hanging program.
    fn stacks(&self) -> String {
        let mut text = String::from("--- threads\n");
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        for thread in threads.into_iter().flatten().flatten() {
            let read = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            text += &format!("{} in {}: {}\n", read("comm").trim(), read("wchan").trim(), read("syscall").trim());
        }
        text
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Both calls fail harmlessly if the program has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Checks that the program exited with status 0, and that the last line of its output contains this text.
    ///
    /// # Panics
    /// Otherwise, with the complete output.
    pub fn expect_success(&self, last_line: &str) {
        let last = self.stdout.lines().last().unwrap_or_default();
        assert!(
            self.status.success() && last.contains(last_line),
            "the program failed or did not print {last_line:?}: {self:#?}"
        );
    }

    /// Checks that the program exited with an error status, not by a signal, and printed this on standard error.
    ///
    /// # Panics
    /// Otherwise, with the complete output.
    pub fn expect_failure(&self, reason: &str) {
        assert!(self.status.code().is_some_and(|code| code != 0), "the program did not exit with an error: {self:#?}");
        assert!(self.stderr.contains(reason), "the error output does not contain {reason:?}: {self:#?}");
    }
}

fn read(mut from: impl Read + Send + 'static, to: &Shared) -> JoinHandle<()> {
    let shared = Arc::clone(to);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            let count = from.read(&mut buffer).unwrap_or(0);
            let (said, more) = &*shared;
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            said.text.extend_from_slice(&buffer[..count]);
            said.closed = count == 0;
            more.notify_all();
            if count == 0 {
                return;
            }
        }
    })
}

/// Variable that makes suites run their full number of rounds.
pub const SOAK: &str = "DAPL_TEST_SOAK";

/// Number of rounds of a test that repeats itself: `long` in a soak (`cargo xtask test --rest`), otherwise `short`.
pub fn rounds(short: usize, long: usize) -> usize {
    if std::env::var_os(SOAK).is_some() { long } else { short }
}

/// Log lines without time, level, process and thread: `libdat: text` instead of `2026-... error libdat[1/2]: text`.
pub fn without_origin(log: &str) -> String {
    let plain = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (time, _, rest) = (words.next()?, words.next()?, words.next()?);
        let is_time = time.len() == 27 && time.ends_with('Z') && time.starts_with(|c: char| c.is_ascii_digit());
        let (origin, text) = rest.split_once("]: ").filter(|_| is_time)?;
        let (library, _) = origin.split_once('[')?;
        Some(format!("{library}: {text}\n"))
    };
    log.split_inclusive('\n').map(|line| plain(line.trim_end()).unwrap_or_else(|| line.to_owned())).collect()
}

/// Runs a program whose standard output has no reader, as after `... | head -1`. Checks that it neither panics nor
/// prints "Broken pipe"; it may end by SIGPIPE.
#[track_caller]
pub fn check_closed_output(mut command: Command) {
    let (reader, output) = std::io::pipe().expect("a pipe can be created");
    drop(reader);
    command.stdin(Stdio::null()).stdout(output).stderr(Stdio::piped());
    let ended = command.output().expect("the program starts");
    let log = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() != Some(101) && !log.contains("Broken pipe"), "{command:?}: {}: {log}", ended.status);
}

/// Whether a tool is installed. A test that skips a check without the tool must print that.
pub fn has_tool(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
}
