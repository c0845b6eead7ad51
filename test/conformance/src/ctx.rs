//! Context of a running case: its role, the adapter's name, the connection qualifiers of this run, and a channel to
//! the other role.
//!
//! The channel is a socket independent of DAT, so roles can synchronise without the code under test. Every wait on the
//! channel ends at the case's deadline.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::panic_any;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dat_abi::DAT_CONN_QUAL;

use crate::ending::Ending;
use crate::{flight, os};

/// Whether the roles of a case are threads or processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// Two threads of one process.
    One,
    /// Two processes.
    Two,
}

impl Mode {
    /// Name of the mode in arguments and reports.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Two => "two",
        }
    }
}

/// Role of a body. The one process of a local case has the client role; in mode `two` its second process has the server
/// role.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    /// The role that connects, by convention.
    Client,
    /// The role that listens, by convention.
    Server,
}

impl Role {
    /// Name of the role in arguments and reports.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// Failure of a role whose partner has not sent a message by the deadline.
pub(crate) const NO_ANSWER: &str = "the other role did not answer in time";

/// Panic payload of a case that needs a feature which the library lacks.
pub(crate) struct Unsupported(pub(crate) String);

/// Context passed to a body.
pub(crate) struct Ctx {
    /// Whether the roles are threads or processes.
    pub(crate) mode: Mode,
    /// Role of this body.
    pub(crate) role: Role,
    /// The adapter's name, for `dat_ia_openv`.
    pub(crate) provider: String,
    pub(crate) case: String,
    pub(crate) shares_ia: bool,
    pub(crate) first_qual: DAT_CONN_QUAL,
    pub(crate) deadline: Instant,
    /// File to which this process writes its result for the driver.
    pub(crate) ending: PathBuf,
    pub(crate) channel: Option<UnixStream>,
}

/// First byte of every message on the channel.
const DATA: u8 = b'd';
const MEET: u8 = b'm';

impl Ctx {
    /// Whether this body has the client role.
    pub(crate) fn is_client(&self) -> bool {
        self.role == Role::Client
    }

    /// Returns the `n`th (0 to 15) connection qualifier of this run. Both roles of a pair get the same qualifiers.
    /// Cases that the driver runs at the same time get different ones.
    pub(crate) fn qual(&self, n: u64) -> DAT_CONN_QUAL {
        assert!(n < 16, "qualifier {n} is requested, but a run has only 0 to 15");
        self.first_qual + n
    }

    /// Path of a file that belongs to this run, the same for both roles of a pair. The driver removes the file.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        let directory = self.ending.parent().expect("the result file is inside of the driver's directory");
        let twin = if self.first_qual.is_multiple_of(32) { "" } else { "-twin" };
        directory.join(format!("{}-{}{twin}-{name}", self.case, self.mode.word()))
    }

    /// Records the current step, which is printed if the case hangs or its process crashes.
    pub(crate) fn step(&self, text: impl AsRef<str>) {
        flight::step(self.role.word(), text.as_ref());
    }

    /// Time until the deadline.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Sends bytes to the other role.
    #[track_caller]
    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) {
        self.write(DATA, bytes.as_ref());
    }

    /// Sends a number to the other role.
    #[track_caller]
    pub(crate) fn send_number(&self, number: u64) {
        self.send(number.to_le_bytes());
    }

    /// Receives the next message of the other role.
    #[track_caller]
    pub(crate) fn receive(&self) -> Vec<u8> {
        self.read(DATA)
    }

    /// Receives the next number of the other role.
    #[track_caller]
    pub(crate) fn receive_number(&self) -> u64 {
        let bytes = self.receive();
        match bytes.as_slice().try_into() {
            Ok(bytes) => u64::from_le_bytes(bytes),
            Err(_) => panic!("received {} bytes, expected a number (8 bytes)", bytes.len()),
        }
    }

    /// Waits until the other role also calls `meet`.
    #[track_caller]
    pub(crate) fn meet(&self) {
        self.write(MEET, &[]);
        self.read(MEET);
    }

    /// Ends the case as unsupported by the provider.
    pub(crate) fn unsupported(&self, what: &str) -> ! {
        panic_any(Unsupported(what.to_owned()))
    }

    /// Ends this process like a crash: nothing is closed, no handler runs. The case continues in the other role.
    pub(crate) fn die(&self) -> ! {
        assert!(self.mode == Mode::Two, "`die` may be called only in a case with `.only_two()`");
        std::fs::write(&self.ending, Ending::Died.to_text()).expect("the driver's directory is writable");
        os::die()
    }

    #[track_caller]
    fn write(&self, kind: u8, bytes: &[u8]) {
        let mut message = vec![kind];
        message.extend((bytes.len() as u32).to_le_bytes());
        message.extend(bytes);
        let mut channel = self.channel();
        // setsockopt treats a zero timeout as "no timeout".
        let _ = channel.set_write_timeout(Some(self.left().max(Duration::from_millis(1))));
        if let Err(error) = channel.write_all(&message) {
            self.lost(error.kind());
        }
    }

    #[track_caller]
    fn read(&self, kind: u8) -> Vec<u8> {
        let mut head = [0; 5];
        self.read_exact(&mut head);
        let length = u32::from_le_bytes(head[1..].try_into().expect("the length field has 4 bytes"));
        let mut bytes = vec![0; length as usize];
        self.read_exact(&mut bytes);
        assert!(head[0] == kind, "the roles are out of step: one called `meet`, the other `send`");
        bytes
    }

    #[track_caller]
    fn read_exact(&self, bytes: &mut [u8]) {
        let mut channel = self.channel();
        let _ = channel.set_read_timeout(Some(self.left().max(Duration::from_millis(1))));
        if let Err(error) = channel.read_exact(bytes) {
            self.lost(error.kind());
        }
    }

    #[track_caller]
    fn lost(&self, kind: ErrorKind) -> ! {
        match kind {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => panic!("{NO_ANSWER}"),
            _ => panic_any(OtherEnded),
        }
    }

    #[track_caller]
    fn channel(&self) -> &UnixStream {
        self.channel.as_ref().expect("only a case with two roles uses the channel")
    }
}

/// Panic payload of a role whose partner has ended. The report shows the partner's failure instead.
pub(crate) struct OtherEnded;
