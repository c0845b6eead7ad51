//! Tests of packet batches that are sent over the loopback interface, with and without failed send calls.

use std::cell::Cell;
use std::sync::Arc;

use super::*;
use crate::net::receive::ReceiveBatch;
use crate::net::socket::{SocketConfig, test_config};

thread_local! {
    /// Simulated error of this thread's GSO sends.
    static GSO_ERROR: Cell<Option<i32>> = const { Cell::new(None) };
    /// Number of send calls of this thread after which sockets are full.
    static CALLS_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

fn fail_gso_with(error: Option<i32>) {
    GSO_ERROR.set(error);
}

fn stop_after(calls: Option<u32>) {
    CALLS_LEFT.set(calls);
}

/// Called before each send call. If the call must fail, sets `errno` and returns false.
pub(in crate::net) fn may_call(is_gso: bool) -> bool {
    let error = match (CALLS_LEFT.get(), GSO_ERROR.get()) {
        (Some(0), _) => libc::EAGAIN,
        (_, Some(error)) if is_gso => error,
        (left, _) => {
            CALLS_LEFT.set(left.map(|left| left - 1));
            return true;
        }
    };
    // SAFETY: `__errno_location` returns a valid pointer to a variable of the calling thread.
    unsafe { *libc::__errno_location() = error };
    false
}

/// Opens two sockets with this configuration, but with buffers of 1 MiB.
fn pair(config: &SocketConfig) -> (Socket, Socket) {
    let large = SocketConfig { receive_buffer: 1 << 20, send_buffer: 1 << 20, ..config.clone() };
    (Socket::open(&large).unwrap(), Socket::open(&large).unwrap())
}

/// Adds a packet for each payload: a header of two bytes, and the payload from `memory`.
fn fill(batch: &mut SendBatch, memory: &[Vec<u8>]) {
    for (number, payload) in memory.iter().enumerate() {
        batch.header_buffer().extend([number as u8, payload.len() as u8]);
        let (first, second) = payload.split_at(payload.len() / 2);
        // SAFETY: each test keeps `memory` longer than it uses the batch.
        unsafe {
            batch.memory(first.as_ptr(), first.len());
            batch.memory(second.as_ptr(), second.len());
        }
        batch.end_packet();
    }
}

fn payloads(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths.iter().enumerate().map(|(number, length)| vec![number as u8; *length]).collect()
}

/// Receives all queued packets. Returns them and the number of received batches.
fn take(socket: &Socket) -> (Vec<Vec<u8>>, usize) {
    let mut batch = ReceiveBatch::new();
    let (mut packets, mut parts) = (Vec::new(), 0);
    while batch.receive(socket).unwrap() > 0 {
        for (_, gso) in batch.batches() {
            parts += 1;
            packets.extend(gso.map(|packet| packet.to_vec()));
        }
    }
    (packets, parts)
}

fn whole(memory: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let header = |number: usize, payload: &Vec<u8>| [number as u8, payload.len() as u8];
    memory.iter().enumerate().map(|(number, payload)| [&header(number, payload)[..], payload].concat()).collect()
}

/// Packet lengths that form GSO batches, one of them with a shorter last packet, and single packets between them.
const MIXED: [usize; 22] =
    [0, 9, 9, 9, 1000, 1000, 1000, 1000, 400, 7, 700, 700, 700, 700, 700, 800, 800, 800, 3, 2, 1000, 4];

#[test]
fn batches_arrive_complete_and_in_order() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        for (gso, gro) in [(true, true), (true, false), (false, true), (false, false)] {
            let (socket, peer) = pair(&SocketConfig { gso, gro, ..test_config(address) });
            let to = peer.local;
            let mut batch = SendBatch::default();
            for lengths in [&MIXED[..], &[1000; 60], &[5], &[1000, 1000, 1000, 1000, 0]] {
                let memory = payloads(lengths);
                fill(&mut batch, &memory);
                assert_eq!(
                    (batch.unsent(), batch.bytes()),
                    (lengths.len(), lengths.iter().sum::<usize>() + 2 * lengths.len())
                );
                assert_eq!(batch.send(&socket, to), SendOutcome::default());
                assert!(batch.is_empty() && batch.unsent() == 0);
                assert_eq!(
                    take(&peer).0,
                    whole(&memory),
                    "datagrams differ: {address}, GSO {gso}, GRO {gro}, lengths {lengths:?}"
                );
            }
            assert_eq!(socket.has_gso(), gso, "a successful send does not change whether GSO is enabled");
        }
    }
}

#[test]
fn gso_batch_arrives_as_one_gro_batch() {
    let (socket, peer) = pair(&test_config("127.0.0.1:0"));
    if !(socket.has_gso() && peer.gro) {
        eprintln!("skipped: this kernel has no GSO or no GRO");
        return;
    }
    let memory = payloads(&[1000; 60]);
    let mut batch = SendBatch::default();
    fill(&mut batch, &memory);
    batch.send(&socket, peer.local);
    let (packets, parts) = take(&peer);
    assert_eq!((packets.len(), parts), (60, 1));
    fill(&mut batch, &memory);
    batch.send(&socket, peer.local);
    assert_eq!(take(&peer).1, 1);
}

#[test]
fn failed_gso_send_disables_gso_and_all_packets_arrive() {
    let (socket, peer) = pair(&test_config("127.0.0.1:0"));
    let memory = payloads(&[1000; 10]);
    let mut batch = SendBatch::default();
    fill(&mut batch, &memory);
    fail_gso_with(Some(libc::EIO));
    assert_eq!(batch.send(&socket, peer.local), SendOutcome::default());
    fail_gso_with(None);
    assert!(!socket.has_gso(), "a failed GSO send disables GSO");
    assert_eq!(take(&peer).0, whole(&memory), "all packets arrive without GSO");
}

#[test]
fn oversized_packet_is_reported_and_other_packets_are_sent() {
    let (socket, peer) = pair(&test_config("127.0.0.1:0"));
    let to = peer.local;
    let memory = payloads(&[100, 100, 100]);
    let large = vec![1; MAX_BYTES - 1];
    let mut batch = SendBatch::default();
    fill(&mut batch, &memory);
    batch.header_buffer().extend([9, 9]);
    // SAFETY: `large` outlives the batch.
    unsafe { batch.memory(large.as_ptr(), large.len()) };
    batch.end_packet();
    assert_eq!(batch.send(&socket, to), SendOutcome { too_large: Some(MAX_BYTES + 1), ..SendOutcome::default() });
    assert!(batch.is_empty());
    assert_eq!((take(&peer).0, socket.has_gso()), (whole(&memory), true));
}

#[test]
fn packet_with_unmapped_memory_is_reported_by_index() {
    let (socket, peer) = pair(&test_config("127.0.0.1:0"));
    let memory = payloads(&[100; 5]);
    let mut batch = SendBatch::default();
    fill(&mut batch, &memory[..3]);
    batch.header_buffer().extend([3, 100]);
    // SAFETY: the range is not mapped. Only the kernel accesses it, and returns EFAULT.
    unsafe { batch.memory(std::ptr::without_provenance(4096), 100) };
    batch.end_packet();
    batch.header_buffer().extend([4, 100]);
    // SAFETY: `memory` outlives the batch.
    unsafe { batch.memory(memory[4].as_ptr(), 100) };
    batch.end_packet();
    let outcome = batch.send(&socket, peer.local);
    assert_eq!(outcome, SendOutcome { fault: Some(3), ..SendOutcome::default() });
    let all = whole(&memory);
    let others = [&all[..3], &all[4..]].concat();
    assert_eq!((take(&peer).0, socket.has_gso()), (others, true));
}

#[test]
fn unsent_packets_are_copied_when_the_socket_is_full() {
    let (socket, peer) = pair(&test_config("127.0.0.1:0"));
    let to = peer.local;
    let mut batch = SendBatch::default();
    let memory = payloads(&MIXED);
    fill(&mut batch, &memory);
    let all = whole(&memory);
    stop_after(Some(2));
    assert!(batch.send(&socket, to).is_blocked);
    let left = batch.unsent();
    assert!(left > 0 && left < MIXED.len() && !batch.is_empty());
    drop(memory);
    assert!(batch.send(&socket, to).is_blocked, "the send is still blocked");
    assert_eq!(batch.unsent(), left);
    stop_after(None);
    assert_eq!(batch.send(&socket, to), SendOutcome::default());
    assert_eq!((take(&peer).0, batch.is_empty()), (all, true), "each packet arrives exactly once");
}

#[test]
fn unsent_packet_with_unmapped_memory_is_dropped() {
    let (socket, peer) = pair(&test_config("127.0.0.1:0"));
    let to = peer.local;
    let mut batch = SendBatch::default();
    let memory = payloads(&[50, 60, 70]);
    fill(&mut batch, &memory[..1]);
    batch.header_buffer().extend([9, 9]);
    // SAFETY: the range is not mapped. `send` copies unsent packets by `user_copy`, which detects this.
    unsafe { batch.memory(4096 as *const u8, 40) };
    batch.end_packet();
    fill(&mut batch, &memory[1..2]);
    stop_after(Some(0));
    let outcome = batch.send(&socket, to);
    assert_eq!((outcome.is_blocked, outcome.fault, batch.unsent()), (true, Some(1), 2));
    stop_after(None);
    assert_eq!(batch.send(&socket, to), SendOutcome::default());
    let sent = [whole(&memory[..1]), whole(&memory[1..2])].concat();
    assert_eq!(take(&peer).0, sent);
}

#[test]
fn batch_accepts_exactly_its_maximum_of_bytes_parts_and_packets() {
    let mut batch = SendBatch::default();
    assert!(
        batch.has_capacity(MAX_BYTES, 2)
            && !batch.has_capacity(MAX_BYTES + 1, 2)
            && !batch.has_capacity(1, MAX_PARTS + 1)
    );
    for _ in 0..MAX_PACKETS {
        assert!(batch.has_capacity(1000, 1));
        batch.padding(1000);
        batch.end_packet();
    }
    assert!(!batch.has_capacity(1, 1), "the batch is full");
    let (socket, peer) = pair(&test_config("127.0.0.1:0"));
    assert_eq!(batch.send(&socket, peer.local), SendOutcome::default());
    assert_eq!(take(&peer).0, vec![vec![0; 1000]; MAX_PACKETS]);
}

#[test]
fn packets_dropped_by_the_kernel_are_counted() {
    let (socket, _) = pair(&test_config("127.0.0.1:0"));
    let peer = Socket::open(&SocketConfig { receive_buffer: 8192, ..test_config("127.0.0.1:0") }).unwrap();
    let to = peer.local;
    let mut batch = SendBatch::default();
    let memory = payloads(&[1000; 60]);
    for _ in 0..20 {
        fill(&mut batch, &memory);
        batch.send(&socket, to);
    }
    let first = take(&peer).0.len();
    // Without SO_MEMINFO, the kernel reports the count of drops only with the next packet.
    fill(&mut batch, &memory[..1]);
    batch.send(&socket, to);
    assert_eq!(take(&peer).0.len(), 1);
    // Depending on its version, the kernel counts a dropped GSO batch as one drop, or counts its packets.
    assert!(
        first < 1200 && (1..=1200 - first as u64).contains(&peer.drops()),
        "1200 packets were sent and {first} received, but {} drops were counted",
        peer.drops()
    );
}

#[test]
fn two_threads_can_send_on_one_socket() {
    let (socket, peer) = pair(&test_config("127.0.0.1:0"));
    let (socket, to) = (Arc::new(socket), peer.local);
    let threads = [1u8, 2].map(|number| {
        let socket = socket.clone();
        std::thread::spawn(move || {
            let mut batch = SendBatch::default();
            for _ in 0..8 {
                for _ in 0..8 {
                    batch.header_buffer().extend([number; 100]);
                    batch.end_packet();
                }
                assert_eq!(batch.send(&socket, to), SendOutcome::default());
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut packets = take(&peer).0;
    packets.sort();
    assert_eq!((packets.len(), packets[0].clone(), packets[127].clone()), (128, vec![1; 100], vec![2; 100]));
}

#[test]
fn discarded_packet_is_not_sent() {
    let (socket, peer) = pair(&test_config("127.0.0.1:0"));
    let memory = payloads(&[5, 6]);
    let mut batch = SendBatch::default();
    batch.header_buffer().extend(b"first");
    batch.end_packet();
    for with_memory in [true, false] {
        batch.header_buffer().extend(b"no");
        if with_memory {
            // SAFETY: `memory` outlives the batch.
            unsafe { batch.memory(memory[0].as_ptr(), 5) };
            batch.header_buffer().extend(b"trailer");
        }
        batch.drop_packet();
    }
    // SAFETY: `memory` outlives the batch.
    unsafe { batch.memory(memory[1].as_ptr(), 6) };
    batch.drop_packet();
    batch.header_buffer().extend(b"last");
    batch.end_packet();
    assert_eq!((batch.unsent(), batch.bytes()), (2, 9));
    assert_eq!(batch.send(&socket, peer.local), SendOutcome::default());
    assert_eq!(take(&peer).0, [b"first".to_vec(), b"last".to_vec()]);
}
