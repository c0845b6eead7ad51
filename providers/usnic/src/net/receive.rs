//! Packets as they come in: many in one call, trains whole (`UDP_GRO`), and what the kernel tells with them.
//!
//! A train is of packets of one sender, of equal length, but that the last may be shorter. What did not fit its room is dropped.
//! Nothing here looks at what a packet says.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use super::name::{self, Room};
use super::socket::Socket;

/// A datagram has no more.
const ROOM: usize = 1 << 16;
/// Datagrams or trains that are taken in one call, at most.
const AT_ONCE: usize = 8;

/// Room for what comes. Its pages are touched, and so come to be, only as far as they are needed.
pub(crate) struct Inbox {
    rooms: Box<[u8]>,
    names: [Room; AT_ONCE],
    control: [Control; AT_ONCE],
    /// Of each that came: its sender, its length, and that of the packets in it.
    came: [Option<(SocketAddr, usize, usize)>; AT_ONCE],
    count: usize,
    /// How many to ask for the next time: one who waits for one answer does not pay for asking after the next.
    ask: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// The length of packets and the count of drops.
// SAFETY: only computes lengths.
const CONTROL: usize = unsafe { 2 * libc::CMSG_SPACE(size_of::<u64>() as u32) } as usize;

/// Packets of one sender, one after the other; whoever has them may open them where they lie.
#[derive(Debug)]
pub(crate) struct Packets<'a> {
    bytes: &'a mut [u8],
    /// Of each but the last; not 0.
    segment: usize,
}

impl<'a> Packets<'a> {
    pub(crate) fn new(bytes: &'a mut [u8], segment: usize) -> Self {
        Packets { bytes, segment: segment.max(1) }
    }

    /// Splits off those at the front that have the same answer.
    pub(crate) fn split<T: PartialEq>(&mut self, of: impl Fn(&[u8]) -> T) -> Option<(T, Packets<'a>)> {
        let mut packets = self.bytes.chunks(self.segment);
        let first = packets.next()?;
        let answer = of(first);
        let same = packets.take_while(|packet| of(packet) == answer);
        let length = first.len() + same.map(<[u8]>::len).sum::<usize>();
        Some((answer, Packets { bytes: self.take(length), segment: self.segment }))
    }

    fn take(&mut self, length: usize) -> &'a mut [u8] {
        let (taken, rest) = std::mem::take(&mut self.bytes).split_at_mut(length);
        self.bytes = rest;
        taken
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = &'a mut [u8];

    fn next(&mut self) -> Option<&'a mut [u8]> {
        let length = self.segment.min(self.bytes.len());
        (length > 0).then(|| self.take(length))
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("came", &&self.came[..self.count]).finish_non_exhaustive()
    }
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Inbox {
            rooms: vec![0; AT_ONCE * ROOM].into(),
            names: [Room::EMPTY; AT_ONCE],
            control: [Control([0; CONTROL]); AT_ONCE],
            came: [None; AT_ONCE],
            count: 0,
            ask: 1,
        }
    }

    /// Takes what is there, and says how many datagrams or trains that were. None is there: 0.
    pub(crate) fn receive(&mut self, socket: &Socket) -> io::Result<usize> {
        self.count = 0;
        let ask = self.ask;
        let count = match self.call(socket, ask) {
            Ok(count) => count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => 0,
                // What befell an earlier packet, not this call.
                _ => {
                    socket.note_errors(true);
                    return Err(error);
                }
            },
        };
        self.ask = if count == ask { (ask * 2).min(AT_ONCE) } else { count.max(1) };
        self.count = count;
        Ok(count)
    }

    /// Whether there may be more than was taken. Of a single one it is not asked: who waits for it should have it first.
    pub(crate) fn was_full(&self) -> bool {
        self.count > 1 && self.ask > self.count || self.count == AT_ONCE
    }

    fn call(&mut self, socket: &Socket, ask: usize) -> io::Result<usize> {
        let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; AT_ONCE];
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; AT_ONCE];
        for at in 0..ask {
            let part = libc::iovec { iov_base: self.rooms[at * ROOM..].as_mut_ptr().cast(), iov_len: ROOM };
            // SAFETY: a plain C record, for which zeros are a value.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_name = (&raw mut self.names[at]).cast();
            message.msg_hdr.msg_namelen = size_of::<Room>() as libc::socklen_t;
            message.msg_hdr.msg_iov = parts[at].write(part);
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = (&raw mut self.control[at]).cast();
            message.msg_hdr.msg_controllen = CONTROL as _;
            messages[at].write(message);
        }
        let first = messages.as_mut_ptr().cast::<libc::mmsghdr>();
        // SAFETY: so many records are set, and each points at rooms of `self` and of this frame, with their lengths; no two
        // share one.
        let count = unsafe { take(socket.as_fd().as_raw_fd(), first, ask) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?.min(ask);
        for (at, message) in messages[..count].iter().enumerate() {
            // SAFETY: it was set before the call, and the kernel has filled it.
            let message = unsafe { message.assume_init_ref() };
            // SAFETY: the kernel has filled the record, and its control data lies in `self`.
            self.came[at] = unsafe { read(socket, message, &self.names[at]) };
        }
        Ok(count)
    }

    /// What came: from whom, and the packets.
    pub(crate) fn trains(&mut self) -> impl Iterator<Item = (SocketAddr, Packets<'_>)> {
        let rooms = self.rooms.chunks_mut(ROOM);
        self.came[..self.count].iter().zip(rooms).filter_map(|(came, room)| {
            let (from, length, segment) = (*came)?;
            Some((from, Packets::new(&mut room[..length], segment)))
        })
    }
}

/// How many were taken; -1: none, and `errno` says why. Not by the calls of the C library, at which a thread may be cancelled:
/// here it holds locks, and cancellation costs time in each of them.
///
/// # Safety
/// `first` points at so many records, each of which points at rooms with their lengths.
unsafe fn take(fd: libc::c_int, first: *mut libc::mmsghdr, ask: usize) -> libc::c_long {
    const FLAGS: libc::c_int = libc::MSG_DONTWAIT;
    let no_time_out = std::ptr::null_mut::<libc::timespec>();
    if ask > 1 {
        // SAFETY: this function's own contract.
        return unsafe { libc::syscall(libc::SYS_recvmmsg, fd, first, ask as libc::c_uint, FLAGS, no_time_out) };
    }
    // The call for one is the cheaper.
    // SAFETY: as above, and there is one record.
    unsafe {
        let length = libc::syscall(libc::SYS_recvmsg, fd, &raw mut (*first).msg_hdr, FLAGS);
        (*first).msg_len = u32::try_from(length).unwrap_or(0);
        if length < 0 { -1 } else { 1 }
    }
}

/// Sender, length, and that of the packets. `None`: cut, or of nobody.
///
/// # Safety
/// The record is as `recvmmsg` has left it, and its control data is there.
unsafe fn read(socket: &Socket, message: &libc::mmsghdr, name: &Room) -> Option<(SocketAddr, usize, usize)> {
    let (header, length) = (&message.msg_hdr, message.msg_len as usize);
    let mut segment = length;
    // SAFETY: this function's own contract; the headers lie in the buffer, and so does what they announce.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(part) = control.as_ref() {
            let data = libc::CMSG_DATA(control);
            match (part.cmsg_level, part.cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    segment = usize::try_from(data.cast::<libc::c_int>().read_unaligned()).unwrap_or(length);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => socket.note_drops(data.cast::<u32>().read_unaligned()),
                _ => {}
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    let is_cut = header.msg_flags & libc::MSG_TRUNC != 0 || length > ROOM;
    let from = name::read(name, header.msg_namelen)?;
    (!is_cut && length > 0).then_some((from, length, segment))
}
