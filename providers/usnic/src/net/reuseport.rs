//! A socket filter (SO_ATTACH_REUSEPORT_CBPF) that selects the process that receives a datagram, of those that share a
//! UDP port.
//!
//! By default, the kernel selects a process by a hash over both addresses, so all retransmissions of a request go to
//! the same process. If that process is stopped, the client gets no reply. So clients shorten their retransmissions,
//! and the filter selects by length: a datagram that is one byte shorter than the first transmission goes to the first
//! socket of the group, two bytes shorter to the second socket, and so on. For other lengths, and if the group has no
//! such socket, the kernel selects by the hash.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::socket::Socket;

/// `struct sock_fprog` of `linux/filter.h`. The padding is a field, because the kernel reads it, and memory checkers
/// would report it as uninitialized.
#[repr(C)]
struct ReuseportFilter {
    length: u16,
    padding: [u8; size_of::<usize>() - 2],
    program: *mut libc::sock_filter,
}
const _: () = assert!(size_of::<ReuseportFilter>() == size_of::<libc::sock_fprog>());

/// Installs the length filter (see the module) on the reuseport group of this socket. `length` is the length in bytes
/// of a first transmission. Needs Linux 4.5, but no privilege.
pub(crate) fn choose_by_length(socket: &Socket, length: usize) -> io::Result<()> {
    let step = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    // The program returns the index of the selected socket: `length` - 1 minus the datagram's length. For lengths that
    // select no socket, the index is out of range.
    let mut program = [
        step((libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16, 0),
        step((libc::BPF_ALU | libc::BPF_NEG) as u16, 0),
        step((libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K) as u16, length as u32 - 1),
        step((libc::BPF_RET | libc::BPF_A) as u16, 0),
    ];
    let filter =
        ReuseportFilter { length: program.len() as u16, padding: Default::default(), program: program.as_mut_ptr() };
    let (fd, size) = (socket.as_fd().as_raw_fd(), size_of_val(&filter) as libc::socklen_t);
    let name = libc::SO_ATTACH_REUSEPORT_CBPF;
    // SAFETY: `filter` and its program outlive the call, and have the lengths that are passed.
    let failed = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const filter).cast(), size) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::net::receive::ReceiveBatch;
    use crate::net::socket::{SocketConfig, test_config};

    #[test]
    fn packet_length_selects_the_socket_of_a_reuseport_group() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let shared =
                |address: &str| Socket::open(&SocketConfig { is_shared: true, ..test_config(address) }).unwrap();
            let first = shared(address);
            let again = first.local.to_string();
            let group = [first, shared(&again), shared(&again)];
            group.iter().for_each(|socket| choose_by_length(socket, 100).unwrap());
            let sender = UdpSocket::bind(address).unwrap();
            let mut batch = ReceiveBatch::new();
            let mut receive = |socket| batch.receive(socket).unwrap();
            for (less, socket) in (1..).zip(&group) {
                sender.send_to(&vec![0; 100 - less], &again).unwrap();
                assert_eq!(
                    receive(socket),
                    1,
                    "{address}: a datagram that is {less} bytes shorter must reach the socket with that number"
                );
            }
            // The kernel selects by the hash for these lengths, and no datagram is lost.
            for length in [1, 96, 100, 101, 1000] {
                sender.send_to(&vec![0; length], &again).unwrap();
                assert_eq!(
                    group.iter().map(&mut receive).sum::<usize>(),
                    1,
                    "{address}: one datagram of {length} bytes must arrive"
                );
            }
        }
    }
}
