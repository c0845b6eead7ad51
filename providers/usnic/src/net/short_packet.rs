//! A short packet in one buffer. `sendto` sends it, which is cheaper than a batch.

use std::mem::MaybeUninit;

use rustix::net::{SendFlags, SocketAddrAny};

use super::socket::Socket;

/// Size of the buffer in bytes. Longer packets are sent by `send`, without copying the payload.
const SPACE: usize = 320;

/// A packet with a header of `HEADER` bytes. The caller writes the payload before the header.
pub(crate) struct ShortPacket<const HEADER: usize> {
    bytes: [MaybeUninit<u8>; SPACE],
    /// Number of payload bytes that were written.
    payload: usize,
}

impl<const HEADER: usize> ShortPacket<HEADER> {
    /// Maximum number of payload bytes.
    pub(crate) const MAX: usize = SPACE - HEADER;

    #[inline(always)]
    pub(crate) fn new() -> Self {
        ShortPacket { bytes: [const { MaybeUninit::uninit() }; SPACE], payload: 0 }
    }

    /// Returns the address at which the caller writes the payload. There is space for [`Self::MAX`] bytes.
    #[inline(always)]
    pub(crate) fn payload(&mut self) -> *mut u8 {
        self.bytes[HEADER..].as_mut_ptr().cast()
    }

    /// Sets the length of the payload.
    ///
    /// # Safety
    /// `length` bytes, at most [`Self::MAX`], were written at [`Self::payload`].
    #[inline(always)]
    pub(crate) unsafe fn set_length(&mut self, length: usize) {
        self.payload = length;
    }

    /// Writes the header, and returns the whole packet.
    #[inline(always)]
    pub(crate) fn finish(&mut self, header: [u8; HEADER]) -> &[u8] {
        let bytes = self.bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: the buffer is larger than a header, and by the contract of `set_length` the payload after the header
        // is initialized.
        unsafe {
            bytes.cast::<[u8; HEADER]>().write(header);
            std::slice::from_raw_parts(bytes, HEADER + self.payload)
        }
    }
}

impl Socket {
    /// Sends a packet. Returns false if the call failed. The caller then sends the packet as a batch, which handles
    /// errors.
    #[inline(always)]
    pub(crate) fn send_packet(&self, packet: &[u8], to: &SocketAddrAny) -> bool {
        #[cfg(test)]
        if !super::send::may_call(false) {
            return false;
        }
        // rustix makes the system call directly. The C library's function is a cancellation point, and this thread
        // holds locks.
        rustix::net::sendto(self, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, to).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_packet_is_its_header_followed_by_its_payload() {
        let mut packet = ShortPacket::<4>::new();
        assert_eq!(packet.finish([1, 2, 3, 4]), [1, 2, 3, 4]);
        // SAFETY: two bytes are within the buffer, and are written before the length is set to two.
        unsafe {
            packet.payload().cast::<[u8; 2]>().write([5, 6]);
            packet.set_length(2);
        }
        assert_eq!(packet.finish([9, 8, 7, 6]), [9, 8, 7, 6, 5, 6]);
    }
}
