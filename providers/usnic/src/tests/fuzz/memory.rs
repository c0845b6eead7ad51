//! The callbacks of the peer under test, with its memory and its shared receive queue. They assert that received data
//! and read responses are within their buffers, and that atomic operations and invalidations use a valid key. They
//! refuse RDMA writes outside the memory.

use dapl::provider::Status;
use dapl_software::memory::atomic::Atomic;

use crate::proto::conn::{CompletionCallbacks, MemoryCallbacks, PostedData, SendValue, SharedReceiveCallbacks};
use crate::proto::wire::Refusal;

/// Start address of the registered memory of the peer under test.
pub(super) const BASE: u64 = 0x7000_0000;

/// Keys of the memory: the first allows reads and writes, the second only reads.
pub(super) const KEYS: [u32; 2] = [1, 2];

/// Size of the memory in bytes.
pub(super) const MEMORY: usize = 1 << 16;

/// The memory of the peer under test, the length of its shared queue, and the number of its completions.
pub(super) struct Memory {
    pub(super) bytes: Vec<u8>,
    /// Number of receives in the shared queue.
    pub(super) shared: u32,
    /// Number of receives that were removed from the shared queue.
    pub(super) taken: u32,
    pub(super) requests_done: u32,
    pub(super) recvs_done: u32,
}

/// The buffer of a request or a receive. Contains its length in bytes.
#[derive(Default)]
pub(super) struct Buffer(pub(super) usize);

impl Memory {
    pub(super) fn range(&self, address: u64, length: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(address.checked_sub(BASE)?).ok()?;
        let end = start.checked_add(length)?;
        (end <= MEMORY).then_some(start..end)
    }
}

fn put(buffer: &Buffer, offset: u32, bytes: &[u8]) -> Result<(), Status> {
    assert!(offset as usize + bytes.len() <= buffer.0, "data must be within its receive buffer");
    Ok(())
}

impl PostedData for Memory {
    type Request = Buffer;
    type Recv = Buffer;
}

impl MemoryCallbacks<Memory> for Memory {
    fn may_touch(&mut self, key: u32, address: u64, length: u32, write: bool) -> bool {
        (key == KEYS[0] || (key == KEYS[1] && !write)) && self.range(address, length as usize).is_some()
    }

    fn put_remote(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let range = self.range(address, bytes.len()).filter(|_| key == KEYS[0]).ok_or(Refusal::Access)?;
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn put_recv(&mut self, recv: &Buffer, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        put(recv, offset, bytes)
    }

    fn put_read(&mut self, request: &Buffer, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        put(request, offset, bytes)
    }

    fn may_invalidate(&mut self, key: u32) -> bool {
        key == KEYS[0]
    }

    fn invalidate(&mut self, key: u32) {
        assert!(self.may_invalidate(key), "the key and range must belong to a granted window or registration");
    }

    fn may_execute(&mut self, key: u32, address: u64) -> bool {
        key == KEYS[0] && self.range(address, 8).is_some()
    }

    fn execute(&mut self, key: u32, address: u64, _: Atomic) -> Option<u64> {
        assert!(
            self.may_execute(key, address) && Atomic::is_aligned(address),
            "the key and range must belong to a granted window or registration"
        );
        (!address.is_multiple_of(64)).then_some(address)
    }
}

impl SharedReceiveCallbacks<Memory> for Memory {
    fn take_shared(&mut self) -> Option<(Buffer, u64)> {
        self.shared = self.shared.checked_sub(1)?;
        self.taken += 1;
        Some((Buffer(2000), 2000))
    }

    fn shared_left(&self) -> u32 {
        self.shared
    }
}

impl CompletionCallbacks<Memory> for Memory {
    fn execute_bind(&mut self, request: &Buffer) -> Result<bool, Status> {
        if request.0 % 3 == 1 { Err(Status::LocalEp) } else { Ok(request.0.is_multiple_of(3)) }
    }

    fn request_done(&mut self, _: &mut Buffer, _: Status, _: u64) {
        self.requests_done += 1;
    }

    fn recv_done(&mut self, _: &mut Buffer, _: Status, _: u64, _: SendValue) {
        self.recvs_done += 1;
    }
}
