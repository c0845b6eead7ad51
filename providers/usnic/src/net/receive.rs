//! Packets as they come in: many in one call, trains whole (`UDP_GRO`), and what the kernel tells with them.
//!
//! A train is of packets of one sender, of equal length, but that the last may be shorter. What did not fit its room is dropped.
//! Nothing here looks at what a packet says.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use super::sockaddr::{self, RawSockAddr};
use super::socket::Socket;

/// A datagram has no more.
const MAX_DATAGRAM: usize = 1 << 16;
/// Datagrams or trains that are taken in one call, at most.
const MAX_MESSAGES: usize = 8;

/// RawSockAddr for what comes. Its pages are touched, and so come to be, only as far as they are needed.
pub(crate) struct ReceiveBatch {
    buffers: Box<[u8]>,
    names: [RawSockAddr; MAX_MESSAGES],
    control: [Control; MAX_MESSAGES],
    /// Of each that received: its sender, its length, and that of the packets in it.
    received: [Option<(SocketAddr, usize, usize)>; MAX_MESSAGES],
    count: usize,
    /// How many to requested for the next time: one who waits for one answer does not pay for asking after the next.
    requested: usize,
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
        Some((answer, Packets { bytes: self.split_off(length), segment: self.segment }))
    }

    fn split_off(&mut self, length: usize) -> &'a mut [u8] {
        let (taken, rest) = std::mem::take(&mut self.bytes).split_at_mut(length);
        self.bytes = rest;
        taken
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = &'a mut [u8];

    fn next(&mut self) -> Option<&'a mut [u8]> {
        let length = self.segment.min(self.bytes.len());
        (length > 0).then(|| self.split_off(length))
    }
}

impl std::fmt::Debug for ReceiveBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveBatch").field("received", &&self.received[..self.count]).finish_non_exhaustive()
    }
}

impl ReceiveBatch {
    pub(crate) fn new() -> Self {
        ReceiveBatch {
            buffers: vec![0; MAX_MESSAGES * MAX_DATAGRAM].into(),
            names: [RawSockAddr::EMPTY; MAX_MESSAGES],
            control: [Control([0; CONTROL]); MAX_MESSAGES],
            received: [None; MAX_MESSAGES],
            count: 0,
            requested: 1,
        }
    }

    /// Takes what is there, and says how many datagrams or trains that were. None is there: 0.
    pub(crate) fn receive(&mut self, socket: &Socket) -> io::Result<usize> {
        self.count = 0;
        let requested = self.requested;
        let count = match self.call(socket, requested) {
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
        self.requested = if count == requested { (requested * 2).min(MAX_MESSAGES) } else { count.max(1) };
        self.count = count;
        Ok(count)
    }

    /// Whether there may be more than was taken. Of a single one it is not asked: who waits for it should have it first.
    pub(crate) fn may_have_more(&self) -> bool {
        self.count > 1 && self.requested > self.count || self.count == MAX_MESSAGES
    }

    fn call(&mut self, socket: &Socket, requested: usize) -> io::Result<usize> {
        let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_MESSAGES];
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_MESSAGES];
        for at in 0..requested {
            let part =
                libc::iovec { iov_base: self.buffers[at * MAX_DATAGRAM..].as_mut_ptr().cast(), iov_len: MAX_DATAGRAM };
            // SAFETY: a plain C record, for which zeros are a value.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_name = (&raw mut self.names[at]).cast();
            message.msg_hdr.msg_namelen = size_of::<RawSockAddr>() as libc::socklen_t;
            message.msg_hdr.msg_iov = parts[at].write(part);
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = (&raw mut self.control[at]).cast();
            message.msg_hdr.msg_controllen = CONTROL as _;
            messages[at].write(message);
        }
        let first = messages.as_mut_ptr().cast::<libc::mmsghdr>();
        // SAFETY: so many records are set, and each points at buffers of `self` and of this frame, with their lengths; no two
        // share one.
        let count = unsafe { receive_messages(socket.as_fd().as_raw_fd(), first, requested) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?.min(requested);
        for (at, message) in messages[..count].iter().enumerate() {
            // SAFETY: it was set before the call, and the kernel has filled it.
            let message = unsafe { message.assume_init_ref() };
            // SAFETY: the kernel has filled the record, and its control data lies in `self`.
            self.received[at] = unsafe { read(socket, message, &self.names[at]) };
        }
        Ok(count)
    }

    /// What received: from whom, and the packets.
    pub(crate) fn batches(&mut self) -> impl Iterator<Item = (SocketAddr, Packets<'_>)> {
        let buffers = self.buffers.chunks_mut(MAX_DATAGRAM);
        self.received[..self.count].iter().zip(buffers).filter_map(|(received, room)| {
            let (from, length, segment) = (*received)?;
            Some((from, Packets::new(&mut room[..length], segment)))
        })
    }
}

/// How many were taken; -1: none, and `errno` says why. Not by the calls of the C library, at which a thread may be cancelled:
/// here it holds locks, and cancellation costs time in each of them.
///
/// # Safety
/// `first` points at so many records, each of which points at buffers with their lengths.
unsafe fn receive_messages(fd: libc::c_int, first: *mut libc::mmsghdr, requested: usize) -> libc::c_long {
    const FLAGS: libc::c_int = libc::MSG_DONTWAIT;
    let no_time_out = std::ptr::null_mut::<libc::timespec>();
    if requested > 1 {
        // SAFETY: this function's own contract.
        return unsafe { libc::syscall(libc::SYS_recvmmsg, fd, first, requested as libc::c_uint, FLAGS, no_time_out) };
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
unsafe fn read(socket: &Socket, message: &libc::mmsghdr, name: &RawSockAddr) -> Option<(SocketAddr, usize, usize)> {
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
    let is_cut = header.msg_flags & libc::MSG_TRUNC != 0 || length > MAX_DATAGRAM;
    let from = sockaddr::read(name, header.msg_namelen)?;
    (!is_cut && length > 0).then_some((from, length, segment))
}
