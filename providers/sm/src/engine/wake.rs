//! Words written to a peer's FIFO: wake-ups, heartbeats, resets (SM-14 to SM-16).
//!
//! Writing to a FIFO without a reader fails with EPIPE, which means that the peer has closed its IA or has exited. The
//! consumer must not get SIGPIPE for such a write. `RWF_NOSIGNAL` prevents the signal; on kernels without this flag,
//! the signal is blocked in the calling thread and consumed. The process-wide signal disposition is not changed.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

use crate::proto::message::FifoWord;

/// Result of writing a word to a peer's FIFO.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WakeResult {
    Sent,
    /// The FIFO is full, or a signal has interrupted the write. A peer that reads a full FIFO checks all connections.
    Full,
    /// The FIFO has no reader: the peer has closed its IA or has exited.
    Dead,
}

/// `RWF_NOSIGNAL`: no SIGPIPE for this write.
const NO_SIGNAL: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x100);
/// Whether the kernel supports `RWF_NOSIGNAL`; assumed until a call fails.
static KNOWS_FLAG: AtomicBool = AtomicBool::new(true);

/// Writes one word to a peer's FIFO. Never blocks.
pub(crate) fn write_word(fifo: &OwnedFd, note: FifoWord) -> WakeResult {
    let word = note.encode();
    if KNOWS_FLAG.load(Ordering::Relaxed) {
        // Offset -1 means the current position; a pipe supports no other offset.
        match rustix::io::pwritev2(fifo, &[IoSlice::new(&word)], u64::MAX, NO_SIGNAL) {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => KNOWS_FLAG.store(false, Ordering::Relaxed),
            other => return write_result(other),
        }
    }
    without_sigpipe(|| write_result(rustix::io::write(fifo.as_fd(), &word)))
}

fn write_result(written: rustix::io::Result<usize>) -> WakeResult {
    match written {
        Ok(_) => WakeResult::Sent,
        Err(Errno::AGAIN | Errno::INTR) => WakeResult::Full,
        Err(_) => WakeResult::Dead,
    }
}

/// Calls `write` with SIGPIPE blocked in this thread, and consumes a SIGPIPE that the call raised.
fn without_sigpipe(write: impl FnOnce() -> WakeResult) -> WakeResult {
    // SAFETY: the system calls access only the signal sets and the `timespec` on this stack, which are initialized
    // before they are read: all-zero bytes are a valid `sigset_t`.
    unsafe {
        let mut pipe = std::mem::zeroed::<libc::sigset_t>();
        let mut before = std::mem::zeroed::<libc::sigset_t>();
        let mut pending = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before);
        let delivery = write();
        if delivery == WakeResult::Dead && libc::sigismember(&pending, libc::SIGPIPE) == 0 {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        delivery
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fifo() -> (OwnedFd, OwnedFd) {
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK | rustix::pipe::PipeFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn fifo_word_is_written_as_four_bytes_and_decoded() {
        let (reader, writer) = fifo();
        assert_eq!(write_word(&writer, FifoWord::Wake(5)), WakeResult::Sent);
        let mut word = [0; 4];
        assert_eq!(rustix::io::read(&reader, &mut word), Ok(4));
        assert_eq!(FifoWord::decode(word), Some(FifoWord::Wake(5)));
    }

    #[test]
    fn write_to_a_fifo_without_reader_returns_dead_and_raises_no_sigpipe() {
        // The test harness ignores SIGPIPE; with the default disposition, a SIGPIPE would end this test.
        // SAFETY: `signal` accesses no memory of this process.
        let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (reader, writer) = fifo();
        drop(reader);
        assert_eq!(write_word(&writer, FifoWord::Alive(1)), WakeResult::Dead);
        assert_eq!(without_sigpipe(|| write_result(rustix::io::write(&writer, &[0; 4]))), WakeResult::Dead);
        // SAFETY: `before` is the disposition that `signal` has returned above.
        unsafe { libc::signal(libc::SIGPIPE, before) };
    }

    #[test]
    fn full_fifo_is_reported_as_full_and_not_as_dead() {
        let (_reader, writer) = fifo();
        while write_word(&writer, FifoWord::Wake(1)) == WakeResult::Sent {}
        assert_eq!(write_word(&writer, FifoWord::Wake(1)), WakeResult::Full);
    }
}
