//! The thread that serves counters: it accepts a connection, writes the text, and closes the connection.
//!
//! The thread answers only clients of the same user and of the superuser, and closes other connections without an
//! answer. It closes the connection of a slow client after a timeout, reads nothing from clients, and ends when the
//! stop pipe is closed.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dat_counters::socket::{self, SocketName};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, SocketFlags};
use rustix::pipe::PipeFlags;

use super::{Server, all};
use crate::runtime::thread;

/// Number of socket names to try. Each provider library of a process has its own thread and its own socket.
const TRIES: u32 = 64;
/// Time after which the connection of a client that does not read is closed.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens the socket, and starts the thread that serves it.
pub(super) fn start() -> io::Result<Server> {
    let listener = listen()?;
    let (stopped, stop) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let thread = thread::spawn("dapl-counters", move || serve(&listener, &stopped))?;
    Ok(Server { thread, stop })
}

fn listen() -> io::Result<OwnedFd> {
    let (uid, pid) = (rustix::process::geteuid().as_raw(), std::process::id());
    let mut last = io::ErrorKind::AddrInUse.into();
    for number in 0..TRIES {
        match socket::listen(SocketName { uid, pid, number }) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            done => return done,
        }
    }
    Err(last)
}

fn serve(listener: &OwnedFd, stopped: &OwnedFd) {
    while wait(listener.as_fd(), PollFlags::IN, stopped, None) {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(reader) => send_counters(&reader, stopped),
            // If no file descriptor is free, the next accept would also fail immediately. The pause prevents a busy
            // loop.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn send_counters(reader: &OwnedFd, stopped: &OwnedFd) {
    let is_trusted = |uid| uid == 0 || uid == rustix::process::geteuid().as_raw();
    if !socket::peer(reader).is_ok_and(|peer| is_trusted(peer.uid)) {
        return;
    }
    let text = all();
    let mut rest = text.as_bytes();
    let deadline = Instant::now() + CLIENT_TIMEOUT;
    while !rest.is_empty() && wait(reader.as_fd(), PollFlags::OUT, stopped, Some(deadline)) {
        match rustix::net::send(reader, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => rest = &rest[sent..],
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Waits until `fd` is ready. Returns false if the thread must stop, the deadline has passed, or the poll fails.
fn wait(fd: BorrowedFd<'_>, what: PollFlags, stopped: &OwnedFd, deadline: Option<Instant>) -> bool {
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::from_borrowed_fd(fd, what), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut fds, left.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => return fds[1].revents().is_empty(),
            Err(_) => return false,
        }
    }
}
