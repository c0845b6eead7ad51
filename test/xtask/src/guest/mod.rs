//! A guest: a Debian kernel in qemu that sees this machine's files, for kernel features that this machine lacks.
//!
//! A guest has the RDMA device rxe0 (soft-RoCE). Its root file system is this machine's, read-only below an overlay in
//! memory. One folder for results is shared, at the same path. Commands run one after another, as root. A guest is
//! killed when its `Guest` is dropped; the kernel kills it when the thread that started it ends. A guest needs no KVM.
//! Its processor is emulated, so the only useful measure is the number of executed instructions
//! (`Clock::Instructions`). This machine's /proc, /sys and /dev (so also /dev/shm) are not visible.
#![forbid(unsafe_code)]

pub(crate) mod command;
mod cpio;
mod kernel;
pub(crate) mod rxe;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use dapl_test::stage;

use crate::{Result, setup};
use kernel::Kernel;

const INIT: &str = include_str!("init.sh");
/// Time limit of a boot, which takes ten seconds on two loaded processors.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// Time limit for a guest to power off.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(30);
/// Number of console lines printed for a failed guest.
const CONSOLE_LINES: usize = 60;
/// Name of the socket that connects two guests, in the folder of the first guest.
const WIRE: &str = "wire";
/// Kernel command line. The TSC is the clock source, because the other clocks are emulated devices. Address
/// randomisation is off: the emulator would translate code at a new address again for each process, which takes three
/// times as long as all else. Mitigations for speculation are off. The console takes one byte at a time, so only errors
/// go to the console; other messages stay in the kernel's buffer.
const KERNEL: &str =
    "console=ttyS0 loglevel=4 panic=-1 tsc=reliable clocksource=tsc norandmaps nokaslr mitigations=off";
/// All processor features except `erms`: programs would copy memory by string instructions, which the emulator runs
/// byte by byte.
const PROCESSOR: &str = "max,-erms";

/// The guest's network link.
#[derive(Clone, Copy)]
pub(crate) enum GuestNetwork<'a> {
    /// A dummy interface: the guest has no network.
    Alone,
    /// One side of a link to a second guest, which is started later.
    First,
    /// The side that connects to the first guest.
    Second(&'a Guest),
}

impl GuestNetwork<'_> {
    /// The guest's IPv4 address, from the documentation range.
    pub(crate) fn address(self) -> &'static str {
        match self {
            GuestNetwork::Alone | GuestNetwork::First => "192.0.2.1",
            GuestNetwork::Second(_) => "192.0.2.2",
        }
    }

    /// Name of the network device in the guest.
    pub(crate) fn device(self) -> &'static str {
        if matches!(self, GuestNetwork::Alone) { "d0" } else { "eth0" }
    }

    /// Number of emulated processors with `Clock::Time`. Two connected guests get one processor each: on a small
    /// machine, waiting for a second emulated processor that is not scheduled costs more than it gains.
    fn processors(self) -> &'static str {
        if matches!(self, GuestNetwork::Alone) { "2" } else { "1" }
    }
}

/// The guest's clock.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Clock {
    /// Real time.
    Time,
    /// Instructions executed by the guest's only processor, a nanosecond each, plus idle time. A figure is then
    /// reproducible to a fraction of a percent, however busy this machine is.
    Instructions,
}

/// A running guest.
pub(crate) struct Guest {
    qemu: Child,
    stdin: ChildStdin,
    lines: Receiver<Vec<u8>>,
    token: String,
    share: PathBuf,
    jobs: u32,
    /// Exit status of the current command, if `await_line` has already read it.
    ended: Option<String>,
    failed: bool,
}

/// Installs the tools and downloads the kernel that guests need, and removes the folders of earlier guests. Fails on a
/// machine that cannot run guests.
pub(crate) fn prepare() -> Result {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("guests are for Linux on x86-64".to_owned());
    }
    setup::require(&[setup::QEMU, setup::DEPMOD, setup::SETPRIV, setup::RDMA])?;
    sweep();
    Kernel::find(&home().join("kernel")).map(drop)
}

/// Removes the folders that guests of ended processes have left: those of failed guests, and of killed processes.
fn sweep() {
    for folder in fs::read_dir(home()).into_iter().flatten().flatten() {
        let name = folder.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("run-").and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            // A folder that cannot be removed is harmless.
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

fn home() -> PathBuf {
    stage::target_directory().join("guest")
}

impl Guest {
    /// Starts a guest, and waits until its device exists. The caller must have called `prepare`.
    pub(crate) fn boot(link: GuestNetwork<'_>) -> Result<Self> {
        Guest::boot_with(link, Clock::Time)
    }

    /// Same as `boot`, with this clock.
    pub(crate) fn boot_with(link: GuestNetwork<'_>, clock: Clock) -> Result<Self> {
        Guest::launch(link, clock)?.await_boot()
    }

    /// Starts a guest without waiting for its boot. A second guest first waits until the first guest has created the
    /// socket between them.
    pub(crate) fn launch(link: GuestNetwork<'_>, clock: Clock) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("run-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let kernel = Kernel::find(&home().join("kernel"))?;
        let share = home().join(&name);
        // The path must not contain symbolic links, whose targets differ inside the guest.
        let share = fs::create_dir_all(&share).and_then(|()| fs::canonicalize(&share));
        let share = share.map_err(|error| format!("{}: {error}", home().display()))?;
        let token = format!("guest-{name}-output");
        let device = link.device();
        let quoted_share = quoted(&share.display().to_string());
        let conf = format!("TOKEN={token}\nSHARE={quoted_share}\nLINK={device}\nADDRESS={}\n", link.address());
        let written = fs::write(share.join("initramfs"), kernel.initramfs(INIT, &conf)?);
        written.map_err(|error| format!("{}: {error}", share.display()))?;

        if let GuestNetwork::Second(first) = link {
            first.await_network()?;
        }
        Guest::over(qemu(&kernel, link, clock), share, token)
    }

    /// Waits until the guest's device exists.
    pub(crate) fn await_boot(mut self) -> Result<Self> {
        self.listen(BOOT_LIMIT, |_| false).map_err(|reason| format!("the guest did not boot: {reason}"))?;
        Ok(self)
    }

    /// Waits until a second guest can connect to this guest's wire.
    fn await_network(&self) -> Result {
        let deadline = Instant::now() + BOOT_LIMIT;
        while !self.share.join(WIRE).exists() {
            if Instant::now() > deadline {
                let socket = self.share.join(WIRE);
                return Err(format!("the guest has not created {} within {BOOT_LIMIT:?}", socket.display()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Starts the guest by running this command.
    fn over(mut command: Command, share: PathBuf, token: String) -> Result<Self> {
        let log = File::create(share.join("qemu.log")).map_err(|error| format!("{}: {error}", share.display()))?;
        command.current_dir(&share).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut qemu = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let stdin = qemu.stdin.take().expect("the child was started with this stream piped");
        let lines = lines(qemu.stdout.take().expect("the child was started with this stream piped"));
        Ok(Guest { qemu, stdin, lines, token, share, jobs: 0, ended: None, failed: false })
    }

    /// Folder that the guest can write to, at the same path on the host and in the guest. Removed with the guest,
    /// unless the guest failed.
    pub(crate) fn share(&self) -> &Path {
        &self.share
    }

    /// Runs a command with its environment variables and directory, and returns its exit status. `see` gets the output,
    /// including standard error, line by line. If `limit` passes, the guest is killed.
    pub(crate) fn run(&mut self, command: &Command, limit: Duration, see: impl FnMut(&str)) -> Result<i32> {
        self.start(command)?;
        self.finish(limit, see)
    }

    /// Starts a command; `finish` must follow before the next.
    pub(crate) fn start(&mut self, command: &Command) -> Result {
        self.jobs += 1;
        let job = format!("job-{}.sh", self.jobs);
        let path = self.share.join(&job);
        fs::write(&path, script(command)).map_err(|error| format!("{}: {error}", path.display()))?;
        writeln!(self.stdin, "{job}").map_err(|error| self.end_and_describe(&format!("the guest has ended: {error}")))
    }

    /// Waits for the end of the started command.
    pub(crate) fn finish(&mut self, limit: Duration, mut see: impl FnMut(&str)) -> Result<i32> {
        let word = match self.ended.take() {
            Some(word) => word,
            None => self.listen(limit, |line| {
                see(line);
                false
            })?,
        };
        word.parse()
            .map_err(|_| self.end_and_describe(&format!("the guest reported {word:?}, expected an exit status")))
    }

    /// Waits until the started command prints a line with this text, and returns true. Returns false if the command
    /// ends first; `finish` then returns immediately.
    pub(crate) fn await_line(&mut self, text: &str, limit: Duration, mut see: impl FnMut(&str)) -> Result<bool> {
        let word = self.listen(limit, |line| {
            see(line);
            line.contains(text)
        })?;
        if word.is_empty() {
            return Ok(true);
        }
        self.ended = Some(word);
        Ok(false)
    }

    /// Switches the guest off.
    pub(crate) fn off(mut self) -> Result {
        let _ = writeln!(self.stdin, "off");
        let deadline = Instant::now() + POWER_OFF_LIMIT;
        loop {
            match self.qemu.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(self.end_and_describe(&format!("qemu ended with {status}"))),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                Ok(None) => return Err(self.end_and_describe("the guest has not powered off before the deadline")),
                Err(error) => return Err(self.end_and_describe(&error.to_string())),
            }
        }
    }

    /// Passes output to `see` until the guest's init prints the token with the exit status, which is returned. If `see`
    /// returns true first, returns an empty text.
    fn listen(&mut self, limit: Duration, mut see: impl FnMut(&str) -> bool) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            let line = match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => String::from_utf8_lossy(&line).into_owned(),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.end_and_describe(&format!("no result from the guest within {limit:?}")));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.end_and_describe("qemu has ended")),
            };
            let line = line.trim_end_matches(['\n', '\r']);
            // If the output ends without a newline, the token follows on the same line.
            match line.split_once(&self.token) {
                None if see(line) => return Ok(String::new()),
                None => {}
                Some((rest, word)) => {
                    if !rest.is_empty() {
                        see(rest);
                    }
                    return Ok(word.trim().to_owned());
                }
            }
        }
    }

    /// Kills the guest, whose folder is kept. Returns the reason, with the last lines of the guest's console and of
    /// qemu's log.
    fn end_and_describe(&mut self, reason: &str) -> String {
        self.failed = true;
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        let (console, qemu) = (self.tail("console.log").join("\n"), self.tail("qemu.log").join("\n"));
        format!("{reason}\n--- its console\n{console}\n--- qemu\n{qemu}\n--- complete logs in {}", self.share.display())
    }

    /// Returns the last lines of a file in the guest's folder.
    fn tail(&self, file: &str) -> Vec<String> {
        let text = fs::read(self.share.join(file)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).replace('\r', "");
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(CONSOLE_LINES)..].iter().map(|line| (*line).to_owned()).collect()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Both calls fail if the guest has already ended, which is harmless.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if !self.failed {
            let _ = fs::remove_dir_all(&self.share);
        }
    }
}

/// The qemu command. Standard input and output are a port of the guest, and its folder is shared.
fn qemu(kernel: &Kernel, link: GuestNetwork<'_>, clock: Clock) -> Command {
    // setpriv makes the kernel kill the guest when the thread that started it ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults", "-no-user-config"]);
    command.args(match clock {
        Clock::Time => vec!["-accel", "tcg,thread=multi", "-smp", link.processors()],
        // sleep=on: an idle guest's clock follows real time, so that input from the host is not late.
        Clock::Instructions => vec!["-accel", "tcg,thread=single", "-smp", "1", "-icount", "shift=0,sleep=on"],
    });
    command.args(["-cpu", PROCESSOR, "-m", "2048", "-display", "none", "-no-reboot", "-append", KERNEL, "-kernel"]);
    command.arg(kernel.image()).args(["-initrd", "initramfs", "-serial", "file:console.log"]);
    command.args(["-chardev", "stdio,id=jobs,signal=off", "-device", "virtio-serial-pci"]);
    command.args(["-device", "virtserialport,chardev=jobs,name=jobs"]);
    let host = "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap";
    command.args(["-virtfs", host, "-virtfs", "local,path=.,mount_tag=share,security_model=none"]);
    let (wire, last) = match link {
        GuestNetwork::Alone => return command,
        GuestNetwork::First => (format!("server=on,addr.path={WIRE}"), 1),
        // The path is relative, because the length of a socket's path is limited.
        GuestNetwork::Second(first) => {
            let folder = first.share.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (format!("server=off,addr.path=../{folder}/{WIRE}"), 2)
        }
    };
    // `-netdev stream` needs qemu 7.2. The older `-netdev socket` would use a TCP port of this machine, which may be in
    // use.
    command.args(["-netdev", &format!("stream,id=wire,addr.type=unix,{wire}")]);
    command.args(["-device", &format!("virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:12:34:{last:02}")]);
    command
}

fn lines(from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        loop {
            let mut line = Vec::new();
            let is_over = from.read_until(b'\n', &mut line).unwrap_or(0) == 0;
            // The receiver was dropped if the guest was dropped.
            if is_over || sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Formats the command as a shell script.
fn script(command: &Command) -> String {
    let text = |word: &std::ffi::OsStr| quoted(&word.to_string_lossy());
    let mut lines = Vec::new();
    if let Some(folder) = command.get_current_dir() {
        lines.push(format!("cd {} || exit", text(folder.as_os_str())));
    }
    for (name, value) in command.get_envs() {
        let name = name.to_string_lossy();
        lines.push(match value {
            Some(value) => format!("export {name}={}", text(value)),
            None => format!("unset {name}"),
        });
    }
    let words: Vec<String> = [command.get_program()].into_iter().chain(command.get_args()).map(text).collect();
    lines.push(format!("exec {}\n", words.join(" ")));
    lines.join("\n")
}

/// Quotes text as one argument for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_LIMIT: Duration = Duration::from_secs(60);

    /// Stands in for the guest's init in tests: a shell on this machine that runs the jobs.
    const AGENT: &str = "while read -r job; do [ $job = off ] && exit; sh ./$job </dev/null 2>&1; echo \"T $?\"; done";

    fn double(name: &str, text: &str) -> Guest {
        let share = std::env::temp_dir().join(format!("dapl-{name}-{}", std::process::id()));
        fs::create_dir_all(&share).unwrap();
        fs::write(share.join("console.log"), "its console's last line\n").unwrap();
        Guest::over(shell(text), share, "T".to_owned()).unwrap()
    }

    fn shell(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn guest_command_returns_status_and_output() {
        let mut guest = double("status", AGENT);
        let mut lines = Vec::new();
        let mut command = shell("echo $A; printf last; exit 7");
        let status = guest.run(command.env("A", "first"), TEST_LIMIT, |line| lines.push(line.to_owned()));
        assert_eq!((status, lines), (Ok(7), vec!["first".to_owned(), "last".to_owned()]));
        assert_eq!(guest.run(&shell("true"), TEST_LIMIT, |_| panic!("the command printed a line, wanted none")), Ok(0));
        let share = guest.share().to_path_buf();
        guest.off().unwrap();
        assert!(!share.exists());
    }

    #[test]
    fn guest_timeout_reports_the_last_console_line() {
        let mut guest = double("hang", "exec sleep 1000");
        let reason = guest.run(&shell("true"), Duration::from_millis(100), |_| {}).unwrap_err();
        assert!(
            reason.contains("no result from the guest within 100ms") && reason.contains("its console's last line"),
            "{reason}"
        );
        assert!(guest.qemu.try_wait().unwrap().is_some());
        let share = guest.share().to_path_buf();
        drop(guest);
        assert!(share.exists(), "the shared directory was removed after a failure");
        fs::remove_dir_all(share).unwrap();
    }

    #[test]
    fn command_is_quoted_for_the_guest_shell() {
        let mut command = Command::new("/a b/prog");
        command.args(["it's", "$x"]).env("A", "1 2").env_remove("B").current_dir("/tmp");
        let expected = "cd '/tmp' || exit\nexport A='1 2'\nunset B\nexec '/a b/prog' 'it'\\''s' '$x'\n";
        assert_eq!(script(&command), expected);
    }
}
