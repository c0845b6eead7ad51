//! Receives many datagrams in one call, as GRO batches (`UDP_GRO`) if possible, and reads the kernel's count of dropped
//! datagrams.
//!
//! The packets of a GRO batch have one sender and equal length, except that the last may be shorter. This module drops
//! truncated datagrams, and does not examine the content of packets.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use super::sockaddr::{self, RawSockAddr};
use super::socket::Socket;

/// Size in bytes of a receive buffer: the maximum of a datagram or GRO batch.
const MAX_DATAGRAM: usize = 1 << 16;
/// Maximum number of datagrams or GRO batches that one call receives.
const MAX_MESSAGES: usize = 8;

/// Buffers for received datagrams. Their pages are allocated when the kernel first writes to them.
pub(crate) struct ReceiveBatch {
    buffers: Box<[u8]>,
    names: [RawSockAddr; MAX_MESSAGES],
    control: [ReceiveControl; MAX_MESSAGES],
    /// For each received datagram or GRO batch, its sender, its length, and the length of its packets. `None` if it was
    /// dropped.
    received: [Option<(SocketAddr, usize, usize)>; MAX_MESSAGES],
    count: usize,
    /// Number of messages that the next call requests: twice as many as the last call requested if it returned all of
    /// them, else as many as it returned. At least 1, at most [`MAX_MESSAGES`]. A call for one message is cheaper.
    requested: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ReceiveControl([u8; CONTROL]);

/// Size in bytes of the control data of a message: the length of its packets, and the count of dropped datagrams.
// SAFETY: `CMSG_SPACE` only computes a length.
const CONTROL: usize = unsafe { 2 * libc::CMSG_SPACE(size_of::<u64>() as u32) } as usize;

/// Consecutive packets of one sender. The buffer is mutable, because packets may be decrypted in place.
#[derive(Debug)]
pub(crate) struct PacketRun<'a> {
    bytes: &'a mut [u8],
    /// Length in bytes of each packet except the last, which may be shorter. Never 0.
    segment: usize,
}

impl<'a> PacketRun<'a> {
    pub(crate) fn new(bytes: &'a mut [u8], segment: usize) -> Self {
        PacketRun { bytes, segment: segment.max(1) }
    }

    /// Splits off the packets at the front for which `of` returns the same value.
    pub(crate) fn split<T: PartialEq>(&mut self, of: impl Fn(&[u8]) -> T) -> Option<(T, PacketRun<'a>)> {
        let mut packets = self.bytes.chunks(self.segment);
        let first = packets.next()?;
        let answer = of(first);
        let same = packets.take_while(|packet| of(packet) == answer);
        let length = first.len() + same.map(<[u8]>::len).sum::<usize>();
        Some((answer, PacketRun { bytes: self.split_off(length), segment: self.segment }))
    }

    fn split_off(&mut self, length: usize) -> &'a mut [u8] {
        let (taken, rest) = std::mem::take(&mut self.bytes).split_at_mut(length);
        self.bytes = rest;
        taken
    }
}

impl<'a> Iterator for PacketRun<'a> {
    type Item = &'a mut [u8];

    fn next(&mut self) -> Option<&'a mut [u8]> {
        let length = self.segment.min(self.bytes.len());
        (length > 0).then(|| self.split_off(length))
    }
}

impl ReceiveBatch {
    pub(crate) fn new() -> Self {
        ReceiveBatch {
            buffers: vec![0; MAX_MESSAGES * MAX_DATAGRAM].into(),
            names: [RawSockAddr::EMPTY; MAX_MESSAGES],
            control: [ReceiveControl([0; CONTROL]); MAX_MESSAGES],
            received: [None; MAX_MESSAGES],
            count: 0,
            requested: 1,
        }
    }

    /// Receives queued datagrams. Returns the number of datagrams and GRO batches, or 0 if none is queued.
    pub(crate) fn receive(&mut self, socket: &Socket) -> io::Result<usize> {
        self.count = 0;
        let requested = self.requested;
        let count = match if requested == 1 { self.call_for_one(socket) } else { self.call(socket, requested) } {
            Ok(count) => count,
            // The error is about a packet that was sent earlier. The error queue has its details.
            Err(error) => {
                socket.set_has_errors(true);
                return Err(error);
            }
        };
        self.requested = if count == requested { (requested * 2).min(MAX_MESSAGES) } else { count.max(1) };
        self.count = count;
        Ok(count)
    }

    /// Whether more datagrams may be queued. Returns false after a single datagram, so that a further system call does
    /// not delay the handling of this datagram.
    pub(crate) fn may_have_more(&self) -> bool {
        self.count > 1 && self.requested > self.count || self.count == MAX_MESSAGES
    }

    /// Receives one datagram by `recvmsg`, which is cheaper than `recvmmsg` for one.
    #[inline(always)]
    fn call_for_one(&mut self, socket: &Socket) -> io::Result<usize> {
        let (mut part, mut message) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let message = message.write(self.header(0, &mut part));
        // SAFETY: `message` points to buffers of `self` and of this stack frame, with their lengths. The C library's
        // `recvmsg` is not called, because it is a cancellation point.
        let length = unsafe {
            libc::syscall(libc::SYS_recvmsg, socket.as_fd().as_raw_fd(), &raw mut *message, libc::MSG_DONTWAIT)
        };
        let Ok(length) = u32::try_from(length) else { return nothing_or_error() };
        let message = libc::mmsghdr { msg_hdr: *message, msg_len: length };
        // SAFETY: the kernel has filled `message`, and its control data is in `self`.
        self.received[0] = unsafe { read(socket, &message, &self.names[0]) };
        Ok(1)
    }

    #[inline(never)]
    fn call(&mut self, socket: &Socket, requested: usize) -> io::Result<usize> {
        let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_MESSAGES];
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_MESSAGES];
        for at in 0..requested {
            messages[at].write(libc::mmsghdr { msg_hdr: self.header(at, &mut parts[at]), msg_len: 0 });
        }
        let first = messages.as_mut_ptr().cast::<libc::mmsghdr>();
        let (fd, requested_count) = (socket.as_fd().as_raw_fd(), requested as libc::c_uint);
        let no_time_out = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: `first` points to `requested` initialized records. Each points to buffers of `self` and of this stack
        // frame, with their lengths. No two records share a buffer. The C library's `recvmmsg` is not called, because
        // it is a cancellation point. This thread holds locks, so it must not be cancelled.
        let count =
            unsafe { libc::syscall(libc::SYS_recvmmsg, fd, first, requested_count, libc::MSG_DONTWAIT, no_time_out) };
        let Ok(count) = usize::try_from(count) else { return nothing_or_error() };
        let count = count.min(requested);
        for (at, message) in messages[..count].iter().enumerate() {
            // SAFETY: the record was initialized before the call, and the kernel has filled it.
            let message = unsafe { message.assume_init_ref() };
            // SAFETY: the kernel has filled `message`, and its control data is in `self`.
            self.received[at] = unsafe { read(socket, message, &self.names[at]) };
        }
        Ok(count)
    }

    /// Builds a message header with the buffers at index `at`. `part` must outlive the returned header.
    #[inline(always)]
    fn header(&mut self, at: usize, part: &mut MaybeUninit<libc::iovec>) -> libc::msghdr {
        let base = self.buffers[at * MAX_DATAGRAM..].as_mut_ptr().cast();
        // SAFETY: all fields of `msghdr` are integers or nullable pointers, so all-zero bytes are valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = (&raw mut self.names[at]).cast();
        header.msg_namelen = size_of::<RawSockAddr>() as libc::socklen_t;
        header.msg_iov = part.write(libc::iovec { iov_base: base, iov_len: MAX_DATAGRAM });
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut self.control[at]).cast();
        header.msg_controllen = CONTROL as _;
        header
    }

    /// Returns the sender and the packets of each received batch.
    pub(crate) fn batches(&mut self) -> impl Iterator<Item = (SocketAddr, PacketRun<'_>)> {
        let buffers = self.buffers.chunks_mut(MAX_DATAGRAM);
        self.received[..self.count].iter().zip(buffers).filter_map(|(received, buffer)| {
            let (from, length, segment) = (*received)?;
            Some((from, PacketRun::new(&mut buffer[..length], segment)))
        })
    }
}

/// Returns the result of a failed call: `Ok(0)` if no datagram is queued or a signal has interrupted the call, else the
/// error. Constructs no `io::Error` for `Ok(0)`, the most frequent result in a polling thread.
#[inline(always)]
fn nothing_or_error() -> io::Result<usize> {
    // SAFETY: `__errno_location` returns a valid pointer to a variable of the calling thread.
    match unsafe { *libc::__errno_location() } {
        libc::EAGAIN | libc::EINTR => Ok(0),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Returns the sender, the length, and the length of each packet of a received message. Returns `None` if the message
/// is truncated or empty, or has no source address.
///
/// # Safety
/// The kernel has filled `message`, and its control data still exists.
unsafe fn read(socket: &Socket, message: &libc::mmsghdr, name: &RawSockAddr) -> Option<(SocketAddr, usize, usize)> {
    let (header, length) = (&message.msg_hdr, message.msg_len as usize);
    let mut segment = length;
    // SAFETY: by the contract, `message` is filled and its control data exists. The `CMSG` functions return only
    // headers within the control data, and the kernel has written the data behind each header.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(part) = control.as_ref() {
            let data = libc::CMSG_DATA(control);
            match (part.cmsg_level, part.cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    segment = usize::try_from(data.cast::<libc::c_int>().read_unaligned()).unwrap_or(length);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => socket.record_drops(data.cast::<u32>().read_unaligned()),
                _ => {}
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    let is_cut = header.msg_flags & libc::MSG_TRUNC != 0 || length > MAX_DATAGRAM;
    let from = sockaddr::read(name, header.msg_namelen)?;
    (!is_cut && length > 0).then_some((from, length, segment))
}
