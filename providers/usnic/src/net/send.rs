//! Sends batches of packets with as few system calls as possible. The kernel gathers the memory ranges ("parts") of
//! each packet.
//!
//! All packets of a batch have one destination. A run of at least [`MIN_GSO`] packets of equal length, of which the
//! last may be shorter, is sent as one GSO batch, which the kernel or the network card splits (`UDP_SEGMENT`). Other
//! packets, and all packets if GSO does not work, are sent by `sendmmsg`, or by `sendmsg` if only one is left.
//!
//! Payload is copied only if the socket or another queue of this host is full, because the memory may no longer be
//! registered when the packets are sent later.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use dapl::provider::Region;
use dapl_software::memory::user_copy::{self, MappingChecker, RegisteredRange};
use rustix::net::SocketAddrAny;

use super::socket::Socket;

/// Maximum number of packets in a batch: the limit of the kernel for a GSO batch.
pub(crate) const MAX_PACKETS: usize = 64;
/// Maximum number of bytes in a batch: the largest payload of a UDP datagram over IPv4.
pub(crate) const MAX_BYTES: usize = 65_507;
/// Maximum number of parts in a batch, below the kernel's limit of 1024.
const MAX_PARTS: usize = 1000;
/// Minimum number of packets for which GSO is cheaper than `sendmmsg`.
const MIN_GSO: usize = 3;
/// Maximum number of attempts of a send call. A call may fail because of an ICMP error about an earlier packet,
/// possibly of another connection.
const MAX_TRIES: usize = 4;

#[derive(Clone, Copy, Debug)]
enum BatchPart {
    /// Offset and length in `SendBatch::own`.
    Own(usize, usize),
    /// Address and length of memory outside the batch.
    Memory(usize, usize),
}

impl BatchPart {
    fn length(self) -> usize {
        let (BatchPart::Own(_, length) | BatchPart::Memory(_, length)) = self;
        length
    }
}

/// A complete packet of a batch.
#[derive(Clone, Copy, Debug)]
struct BatchPacket {
    /// Index after the packet's last part.
    end: usize,
    /// Length of the packet in bytes.
    length: usize,
}

/// Outcome of a send at this host.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct SendOutcome {
    /// Whether the socket or another queue of this host is full. Unsent packets stay in the batch, and must be sent
    /// before any other packet.
    pub(crate) is_blocked: bool,
    /// Whether a queue of the host that several sockets share is full (ENOBUFS).
    pub(crate) overflows: bool,
    /// Length in bytes of the shortest packet that was dropped because it exceeds the MTU of the interface.
    pub(crate) too_large: Option<usize>,
    /// Index of the first packet that was dropped because its memory is not mapped.
    pub(crate) fault: Option<usize>,
    /// Whether packets were dropped because of another error, for example because there is no route.
    pub(crate) is_unreachable: bool,
}

/// Packets that are sent together. A batch is reused to avoid allocations.
#[derive(Debug, Default)]
pub(crate) struct SendBatch {
    own: Vec<u8>,
    parts: Vec<BatchPart>,
    packets: Vec<BatchPacket>,
    /// Offset in `own` at which the current part begins.
    began: usize,
    /// Number of bytes in complete packets.
    bytes: usize,
    /// Number of packets that were sent or dropped.
    sent: usize,
    records: SendRecords,
}

/// Arrays for the arguments of system calls, reused to avoid allocations.
#[derive(Debug, Default)]
struct SendRecords {
    parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers in these records are written before each system call and not used after it, so another thread
// may own the records between calls.
unsafe impl Send for SendRecords {}

impl SendBatch {
    /// Returns the buffer to which the caller appends bytes of the current packet, such as its header.
    pub(crate) fn header_buffer(&mut self) -> &mut Vec<u8> {
        &mut self.own
    }

    /// Appends `length` bytes of memory to the current packet.
    ///
    /// # Safety
    /// The mapped part of this memory stays readable until [`Self::send`] has returned, or the batch is cleared or
    /// dropped.
    pub(crate) unsafe fn memory(&mut self, address: *const u8, length: usize) {
        self.end_part();
        if length > 0 {
            self.parts.push(BatchPart::Memory(address as usize, length));
        }
    }

    /// Appends `length` zeros to the current packet.
    pub(crate) fn padding(&mut self, length: usize) {
        self.own.resize(self.own.len() + length, 0);
    }

    /// Completes the current packet.
    pub(crate) fn end_packet(&mut self) {
        self.end_part();
        let begin = self.packets.last().map_or(0, |packet| packet.end);
        let length = self.parts[begin..].iter().map(|part| part.length()).sum();
        self.packets.push(BatchPacket { end: self.parts.len(), length });
        self.bytes += length;
    }

    /// Discards the current packet.
    pub(crate) fn drop_packet(&mut self) {
        let begin = self.packets.last().map_or(0, |packet| packet.end);
        let own = self.parts[begin..].iter().find_map(|part| match *part {
            BatchPart::Own(at, _) => Some(at),
            BatchPart::Memory(..) => None,
        });
        self.parts.truncate(begin);
        self.began = own.unwrap_or(self.began);
        self.own.truncate(self.began);
    }

    fn end_part(&mut self) {
        if self.own.len() > self.began {
            self.parts.push(BatchPart::Own(self.began, self.own.len() - self.began));
            self.began = self.own.len();
        }
    }

    /// Whether the batch has space for a packet of `bytes` bytes in `parts` parts.
    pub(crate) fn has_capacity(&self, bytes: usize, parts: usize) -> bool {
        self.packets.len() < MAX_PACKETS && self.bytes + bytes <= MAX_BYTES && self.parts.len() + parts <= MAX_PARTS
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the number of packets that were not sent yet.
    #[cfg(test)]
    pub(crate) fn unsent(&self) -> usize {
        self.packets.len() - self.sent
    }

    /// Returns the number of bytes in complete packets.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.own.clear();
        self.parts.clear();
        self.packets.clear();
        (self.began, self.bytes, self.sent) = (0, 0, 0);
    }

    /// Sends the remaining packets. Afterwards the batch is empty, unless the outcome is `is_blocked`.
    pub(crate) fn send(&mut self, socket: &Socket, to: SocketAddr) -> SendOutcome {
        let to = &SocketAddrAny::from(to);
        let mut outcome = SendOutcome::default();
        while self.sent < self.packets.len() {
            let run = self.gso_run();
            let gone = if run >= MIN_GSO && socket.has_gso() {
                self.send_gso(socket, to, run, &mut outcome)
            } else {
                self.send_each(socket, to, run.max(self.single_run()), &mut outcome)
            };
            if !gone {
                outcome.is_blocked = true;
                let fault = self.copy_unsent();
                outcome.fault = outcome.fault.or(fault);
                return outcome;
            }
        }
        self.clear();
        outcome
    }

    /// Returns how many of the next packets can be sent as one GSO batch. They have equal length, except that the last
    /// may be shorter, and together at most [`MAX_BYTES`].
    fn gso_run(&self) -> usize {
        let packets = &self.packets[self.sent..];
        let first = packets[0].length;
        let most = (MAX_BYTES / first.max(1)).max(1);
        let equal = packets.iter().take(most).take_while(|packet| packet.length == first).count();
        let is_shorter = |packet: &BatchPacket| {
            (1..first.min((MAX_BYTES + 1).saturating_sub(equal * first))).contains(&packet.length)
        };
        equal + usize::from(packets.get(equal).is_some_and(is_shorter))
    }

    /// Returns the number of packets before the next [`MIN_GSO`] packets of equal length.
    fn single_run(&self) -> usize {
        let lengths = self.packets[self.sent..].windows(MIN_GSO);
        let until = lengths.clone().position(|next| next[1..].iter().all(|packet| packet.length == next[0].length));
        until.unwrap_or(self.packets.len() - self.sent)
    }

    fn first_part(&self, packet: usize) -> usize {
        packet.checked_sub(1).map_or(0, |before| self.packets[before].end)
    }

    /// Sends a GSO batch. Returns false if the socket or another queue of this host is full.
    fn send_gso(&mut self, socket: &Socket, to: &SocketAddrAny, run: usize, outcome: &mut SendOutcome) -> bool {
        let segment = self.packets[self.sent].length;
        let range = self.first_part(self.sent)..self.packets[self.sent + run - 1].end;
        let mut control = SegmentControl::new(segment as u16);
        let sent = retry_interrupted(socket, || {
            #[cfg(test)]
            if !tests::may_call(true) {
                return -1;
            }
            let own = self.own.as_ptr();
            self.records.gather(own, &self.parts[range.clone()]);
            let message = header(&mut self.records.parts[..], to, Some(&mut control));
            // SAFETY: the parts of `message` are bytes of `header_buffer`, and memory that is readable by the contract
            // of `memory`. Address and control data outlive the call.
            unsafe { send_one(socket.as_fd().as_raw_fd(), &raw const message) }
        });
        match sent {
            Ok(_) => {
                self.sent += run;
                true
            }
            Err(error) if is_full(&error) => {
                outcome.overflows = error.raw_os_error() == Some(libc::ENOBUFS);
                false
            }
            // Sends the packets without GSO. The error is then that of one packet, or does not occur if GSO caused it.
            Err(error) => {
                let before = *outcome;
                let gone = self.send_each(socket, to, run, outcome);
                let is_fine = *outcome == before && gone;
                if is_fine && matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP)) {
                    socket.disable_gso(&error);
                }
                gone
            }
        }
    }

    /// Sends `count` packets without GSO, several per call of `sendmmsg`. Returns false if the socket or another queue
    /// of this host is full.
    fn send_each(&mut self, socket: &Socket, to: &SocketAddrAny, count: usize, outcome: &mut SendOutcome) -> bool {
        let end = (self.sent + count).min(self.packets.len());
        while self.sent < end {
            let (first, next) = (self.first_part(self.sent), self.sent..end);
            let sent = retry_interrupted(socket, || {
                #[cfg(test)]
                if !tests::may_call(false) {
                    return -1;
                }
                let own = self.own.as_ptr();
                self.records.gather(own, &self.parts[first..self.packets[end - 1].end]);
                self.records.messages.clear();
                let mut at = 0;
                for packet in &self.packets[next.clone()] {
                    let parts = &mut self.records.parts[at..packet.end - first];
                    at = packet.end - first;
                    self.records.messages.push(libc::mmsghdr { msg_hdr: header(parts, to, None), msg_len: 0 });
                }
                let (fd, messages) = (socket.as_fd().as_raw_fd(), &mut self.records.messages);
                // `sendmsg` is cheaper for one packet.
                if let [one] = &messages[..] {
                    // SAFETY: the parts are bytes of `header_buffer`, and memory that is readable by the contract of
                    // `memory`. The record and the address outlive the call.
                    let sent = unsafe { send_one(fd, &raw const one.msg_hdr) };
                    return if sent < 0 { sent } else { 1 };
                }
                // SAFETY: `first` points to `count` records. The parts are bytes of `header_buffer`, and memory that is
                // readable by the contract of `memory`. The records and the address outlive the call.
                unsafe {
                    let (first, count) = (messages.as_mut_ptr(), messages.len() as libc::c_uint);
                    libc::syscall(libc::SYS_sendmmsg, fd, first, count, FLAGS) as isize
                }
            });
            match sent {
                Ok(count) => self.sent += count,
                Err(error) if is_full(&error) => {
                    outcome.overflows = error.raw_os_error() == Some(libc::ENOBUFS);
                    return false;
                }
                Err(error) => {
                    outcome.record_error(&error, self.sent, self.packets[self.sent].length);
                    self.sent += 1;
                }
            }
        }
        true
    }

    /// Copies the unsent packets into the batch, and removes packets whose memory is not mapped. Returns the index of
    /// the first removed packet.
    #[cold]
    fn copy_unsent(&mut self) -> Option<usize> {
        let (mut kept, checker, mut fault) = (SendBatch::default(), MappingChecker::default(), None);
        for packet in self.sent..self.packets.len() {
            let mut is_whole = true;
            for part in &self.parts[self.first_part(packet)..self.packets[packet].end] {
                match *part {
                    BatchPart::Own(at, length) => kept.own.extend_from_slice(&self.own[at..at + length]),
                    BatchPart::Memory(address, length) => {
                        let end = kept.own.len();
                        kept.own.resize(end + length, 0);
                        let (address, to) = (address as u64, kept.own[end..].as_mut_ptr());
                        let region = Region { address, length: length as u64 };
                        let registration = || RegisteredRange { region, checker: &checker };
                        // SAFETY: by the contract of `memory`, the memory is readable until `send` returns, and `send`
                        // calls this function.
                        is_whole &= unsafe { user_copy::read(address, to, length, registration) };
                    }
                }
            }
            if is_whole {
                kept.end_packet();
            } else {
                kept.drop_packet();
                fault = fault.or(Some(packet));
            }
        }
        std::mem::swap(&mut kept.records, &mut self.records);
        *self = kept;
        fault
    }
}

const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Calls `sendmsg`. Returns the number of bytes that were sent, or -1. Makes the system call directly, because the C
/// library's function is a cancellation point, and this thread holds locks.
///
/// # Safety
/// The record and the buffers to which it points are initialized, and outlive the call.
unsafe fn send_one(fd: libc::c_int, message: *const libc::msghdr) -> isize {
    // SAFETY: the contract of this function is that of the system call.
    unsafe { libc::syscall(libc::SYS_sendmsg, fd, message, FLAGS) as isize }
}

impl SendRecords {
    fn gather(&mut self, own: *const u8, parts: &[BatchPart]) {
        self.parts.clear();
        self.parts.extend(parts.iter().map(|part| match *part {
            BatchPart::Own(at, length) => {
                libc::iovec { iov_base: own.wrapping_add(at).cast_mut().cast(), iov_len: length }
            }
            BatchPart::Memory(address, length) => libc::iovec { iov_base: address as *mut _, iov_len: length },
        }));
    }
}

/// Control data of a GSO batch: the length of each packet.
#[repr(C, align(8))]
struct SegmentControl([u8; CONTROL]);

// SAFETY: `CMSG_SPACE` only computes a length.
const CONTROL: usize = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;

impl SegmentControl {
    #[allow(clippy::unnecessary_cast, reason = "the length has another type with musl")]
    fn new(segment: u16) -> Self {
        let mut control = SegmentControl([0; CONTROL]);
        let header = (&raw mut control).cast::<libc::cmsghdr>();
        // SAFETY: the buffer has the alignment of a control header, and space for the header and a `u16` after it.
        unsafe {
            (*header).cmsg_level = libc::SOL_UDP;
            (*header).cmsg_type = libc::UDP_SEGMENT;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
            libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment);
        }
        control
    }
}

fn header(parts: &mut [libc::iovec], to: &SocketAddrAny, control: Option<&mut SegmentControl>) -> libc::msghdr {
    // SAFETY: all fields of `msghdr` are integers or nullable pointers, so all-zero bytes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = to.as_ptr().cast_mut().cast();
    message.msg_namelen = to.addr_len();
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    if let Some(control) = control {
        message.msg_control = (&raw mut *control).cast();
        message.msg_controllen = CONTROL as _;
    }
    message
}

/// Calls `call`, and repeats it if a signal has interrupted it. Also repeats it if it reports the ICMP error of an
/// earlier packet, but then calls it at most [`MAX_TRIES`] times.
fn retry_interrupted(socket: &Socket, mut call: impl FnMut() -> isize) -> io::Result<usize> {
    let mut tries = 0;
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        let is_of_another = is_unreachable(&error);
        if is_of_another {
            socket.set_has_errors(true);
        }
        tries += 1;
        if !(error.kind() == io::ErrorKind::Interrupted || is_of_another && tries < MAX_TRIES) {
            return Err(error);
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM))
}

fn is_unreachable(error: &io::Error) -> bool {
    use libc::{ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ENONET, ENOPROTOOPT, EPROTO};
    let code = error.raw_os_error();
    code.is_some_and(|code| {
        [ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ENONET, ENOPROTOOPT, EPROTO].contains(&code)
    })
}

impl SendOutcome {
    #[cold]
    fn record_error(&mut self, error: &io::Error, packet: usize, length: usize) {
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => {
                let largest = self.too_large.map_or(length, |known| known.min(length));
                self.too_large = Some(largest);
            }
            Some(libc::EFAULT) => self.fault = self.fault.or(Some(packet)),
            // For example ENETUNREACH without a route, or EPERM of a firewall on this host.
            _ => self.is_unreachable = true,
        }
    }
}

#[cfg(test)]
pub(super) use tests::may_call;

#[cfg(test)]
#[path = "send_tests.rs"]
mod tests;
