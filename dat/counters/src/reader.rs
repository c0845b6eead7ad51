//! Who publishes counters on this host, and what they say: for tools.
//!
//! Only processes of this user are asked, and one is believed only if the kernel says that it is of the user in its name. They
//! are asked all at once; none can keep us waiting for long, fill our memory, or keep others from being heard. What one says
//! that is stopped, dies meanwhile, or talks nonsense is a [`Trouble`] of its own.
#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::socket::{self, Name};
use crate::text::{self, Fault, MOST, Process};

/// A process answers within so long, or is passed over. Who tells one tool is busy with a slow one for a second at most.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asked at once: descriptors that are open meanwhile.
const TOGETHER: usize = 128;

/// After so long no more are asked, however many are left.
const LOOK: Duration = Duration::from_secs(10);

/// Bytes that are read in one look, whoever sends them.
const ROOM: usize = 64 << 20;

/// A process that publishes.
#[derive(Debug)]
pub struct Found {
    /// Its id, in its own name space.
    pub pid: u32,
    /// Of its provider library: a process with two is found twice.
    pub number: u32,
    /// What it has told.
    pub told: Result<Process, Trouble>,
}

/// Why nothing is known of a process that is there.
#[derive(Debug)]
pub enum Trouble {
    /// It says nothing, or does not come to its end.
    Silent,
    /// So many have asked that no more are let in.
    Busy,
    /// It speaks another version.
    Version(String),
    /// It hung up in the middle.
    Cut,
    /// What it says makes no sense.
    Nonsense,
    /// All together tell more than is read in one look, or it alone does.
    TooMuch,
    /// There was no time left to ask it.
    Skipped,
    /// What the system says.
    System(io::Error),
}

impl Trouble {
    /// In one word, for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Trouble::Silent => "silent",
            Trouble::Busy => "busy",
            Trouble::Version(_) => "version",
            Trouble::Cut => "cut",
            Trouble::Nonsense => "nonsense",
            Trouble::TooMuch => "too-much",
            Trouble::Skipped => "skipped",
            Trouble::System(_) => "system",
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Silent => {
                write!(f, "no answer within {} s: it is stopped, stuck, or short of CPU", PATIENCE.as_secs())
            }
            Trouble::Busy => f.write_str("too many have asked it and wait for an answer: it is stopped or stuck"),
            Trouble::Version(version) => {
                write!(
                    f,
                    "it tells its counters in version \"{version}\", which this program does not read: use its own tools"
                )
            }
            Trouble::Cut => f.write_str("it hung up in the middle: it has ended, or closed its adapters"),
            Trouble::Nonsense => {
                f.write_str("what it says makes no sense: it is no process of these libraries, or damaged")
            }
            Trouble::TooMuch => f.write_str("it tells more than is read in one look"),
            Trouble::Skipped => f.write_str("not asked: others took all the time of this look"),
            Trouble::System(error) => write!(f, "it cannot be asked: {error}"),
        }
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Version(version) => Trouble::Version(version),
            Fault::Cut => Trouble::Cut,
            Fault::Nonsense => Trouble::Nonsense,
        }
    }
}

/// All processes of this user that have an open IA, by their ids. Only of this network name space. A look is over within some
/// ten seconds, however many are stuck, and in milliseconds if none is.
///
/// Errors: there is no list of local sockets to be had.
pub fn processes() -> io::Result<Vec<Found>> {
    let me = rustix::process::geteuid().as_raw();
    let list = std::fs::read("/proc/net/unix")?;
    let names = names(&String::from_utf8_lossy(&list), me);
    let (end, mut room) = (Instant::now() + LOOK, ROOM);
    Ok(names.chunks(TOGETHER).flat_map(|some| ask(some, end, &mut room)).collect())
}

/// Those in the kernel's list that are this user's, each once: a listener's and those of its connections are the same.
/// Abstract names begin with `@` there.
fn names(list: &str, uid: u32) -> Vec<Name> {
    let ours = list.lines().filter_map(|line| Name::read(line.rsplit_once(" @")?.1)).filter(|name| name.uid == uid);
    let mut names: Vec<_> = ours.collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Asks these, all at once. One that has gone meanwhile, or was never what its name says, is none.
fn ask(names: &[Name], end: Instant, room: &mut usize) -> Vec<Found> {
    let began = Instant::now();
    let is_late = began >= end;
    let start = |name: &Name| match connect(*name) {
        _ if is_late => Some(Asked { name: *name, socket: None, told: Vec::new(), trouble: Some(Trouble::Skipped) }),
        Ok(socket) => Some(Asked { name: *name, socket: Some(socket), told: Vec::new(), trouble: None }),
        Err(Trouble::System(error)) if is_gone(&error) => None,
        Err(trouble) => Some(Asked { name: *name, socket: None, told: Vec::new(), trouble: Some(trouble) }),
    };
    let mut asked: Vec<Asked> = names.iter().filter_map(start).collect();
    listen(&mut asked, began + PATIENCE, room);
    asked.into_iter().map(Asked::found).collect()
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::PermissionDenied)
}

fn connect(name: Name) -> Result<OwnedFd, Trouble> {
    let socket = socket::connect(name).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Trouble::Busy,
        _ => Trouble::System(error),
    })?;
    match socket::user(&socket) {
        Ok(uid) if uid == name.uid => Ok(socket),
        Ok(_) => Err(Trouble::System(io::ErrorKind::PermissionDenied.into())),
        Err(error) => Err(Trouble::System(error)),
    }
}

/// A process that was asked.
struct Asked {
    name: Name,
    /// As long as it may say more.
    socket: Option<OwnedFd>,
    told: Vec<u8>,
    trouble: Option<Trouble>,
}

impl Asked {
    /// Takes what has come, and hangs up if that is all, or too much.
    fn take(&mut self, piece: &mut [u8], room: &mut usize) {
        let Some(socket) = &self.socket else { return };
        match rustix::net::recv(socket, &mut *piece, RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.socket = None,
            Ok((count, _)) if self.told.len() + count <= MOST && count <= *room => {
                *room -= count;
                self.told.extend_from_slice(&piece[..count]);
            }
            Ok(_) => self.stop(Trouble::TooMuch),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // It has ended before it had taken notice of us.
            Err(Errno::CONNRESET) => self.stop(Trouble::Cut),
            Err(error) => self.stop(Trouble::System(error.into())),
        }
    }

    fn stop(&mut self, trouble: Trouble) {
        (self.socket, self.told, self.trouble) = (None, Vec::new(), Some(trouble));
    }

    fn found(self) -> Found {
        let told = match self.trouble {
            Some(trouble) => Err(trouble),
            None => text::read(&self.told).map_err(Trouble::from),
        };
        Found { pid: self.name.pid, number: self.name.number, told }
    }
}

/// Takes all that comes, until everybody has hung up or the time is over.
fn listen(asked: &mut [Asked], deadline: Instant, room: &mut usize) {
    let mut piece = vec![0; 1 << 16];
    loop {
        let speaking: Vec<usize> = (0..asked.len()).filter(|at| asked[*at].socket.is_some()).collect();
        let left = deadline.saturating_duration_since(Instant::now());
        if speaking.is_empty() || left.is_zero() {
            return speaking.into_iter().for_each(|at| asked[at].stop(Trouble::Silent));
        }
        let mut fds: Vec<_> =
            asked.iter().filter_map(|one| one.socket.as_ref()).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                drop(fds);
                return speaking.into_iter().for_each(|at| asked[at].stop(Trouble::System(error.into())));
            }
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let ready = speaking.into_iter().zip(ready).filter(|(_, is_ready)| *is_ready);
        ready.for_each(|(at, _)| asked[at].take(&mut piece, room));
    }
}

#[cfg(test)]
mod tests;
