//! The memory and the completions of one test endpoint.
//!
//! The memory is one array of bytes. No byte of a buffer may be written after its completion. So the buffers of
//! receives and reads are copied when they complete, and compared at the end of a test (`check_untouched`).

use std::collections::{BTreeMap, VecDeque};

use dapl::provider::Status;
use dapl_software::memory::atomic::Atomic;

use crate::proto::Nanos;
use crate::proto::conn::{CompletionCallbacks, MemoryCallbacks, PostedData, SendValue, SharedReceiveCallbacks};
use crate::proto::wire::Refusal;

/// Start address of the memory of each endpoint.
pub(crate) const BASE: u64 = 0x7000_0000;
/// Keys of the whole memory: the first allows reads and writes, the second only reads.
pub(crate) const KEY: u32 = 0x1111;
pub(crate) const READ_ONLY: u32 = 0x2222;
pub(crate) const WINDOW: u32 = 0x3333;

/// The buffer of a request or receive, which the connection stores as driver data.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Buffer {
    pub(crate) id: u64,
    pub(crate) at: usize,
    pub(crate) length: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TestCompletion {
    pub(crate) id: u64,
    pub(crate) status: Status,
    pub(crate) bytes: u64,
    pub(crate) value: SendValue,
}

/// The memory and the completions of one endpoint.
#[derive(Default)]
pub(crate) struct TestHost {
    pub(crate) memory: Vec<u8>,
    pub(crate) requests: Vec<TestCompletion>,
    pub(crate) recvs: Vec<TestCompletion>,
    /// Completed buffers of receives and reads, with their contents at the completion.
    pub(super) completed_buffers: Vec<(Buffer, Vec<u8>)>,
    pub(crate) shared: VecDeque<Buffer>,
    /// Ids of local buffers that are inaccessible.
    pub(crate) gone: Vec<u64>,
    /// Whether the memory is unreadable for reads of the peer.
    pub(crate) unreadable: bool,
    /// Number of further calls of `execute_bind` that defer the bind.
    pub(crate) put_off: u32,
    /// Error of binds, or `None` if they succeed.
    pub(crate) bind_status: Option<Status>,
    /// Number of calls of `execute_bind`.
    pub(crate) bind_calls: u32,
    /// Keys that were invalidated, each with the number of receives that were complete at that time.
    pub(crate) invalidated: Vec<(u32, usize)>,
    /// Number of executed atomic operations.
    pub(crate) executed: u32,
    /// Ages of sends that were reported as overdue.
    pub(crate) overdue: Vec<Nanos>,
    /// Incomplete reads and atomic operations of which some data has arrived, by id.
    pub(super) reads: BTreeMap<u64, Buffer>,
}

impl TestHost {
    pub(super) fn range(&self, address: u64, length: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(address.checked_sub(BASE)?).ok()?;
        let end = start.checked_add(length)?;
        (end <= self.memory.len()).then_some(start..end)
    }

    fn put(&mut self, buffer: &Buffer, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        if self.gone.contains(&buffer.id) {
            return Err(Status::LocalProtection);
        }
        let start = offset as usize;
        assert!(start + bytes.len() <= buffer.length, "{buffer:?} cannot hold {start} + {} bytes", bytes.len());
        self.memory[buffer.at + start..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Checks that no buffer was written after its completion.
    pub(crate) fn check_untouched(&self) {
        for (buffer, bytes) in &self.completed_buffers {
            assert!(
                self.memory[buffer.at..][..bytes.len()] == bytes[..],
                "{buffer:?} was written after its completion"
            );
        }
    }
}

impl PostedData for TestHost {
    type Request = Buffer;
    type Recv = Buffer;
}

impl MemoryCallbacks<TestHost> for TestHost {
    fn may_touch(&mut self, key: u32, address: u64, length: u32, write: bool) -> bool {
        (key == KEY || (key == READ_ONLY && !write)) && self.range(address, length as usize).is_some()
    }

    fn put_remote(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let range = self.range(address, bytes.len()).filter(|_| key == KEY).ok_or(Refusal::Access)?;
        self.memory[range].copy_from_slice(bytes);
        Ok(())
    }

    fn put_recv(&mut self, recv: &Buffer, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        self.put(recv, offset, bytes)
    }

    fn put_read(&mut self, request: &Buffer, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        self.reads.insert(request.id, *request);
        self.put(request, offset, bytes)
    }

    fn may_invalidate(&mut self, key: u32) -> bool {
        key == WINDOW
    }

    fn invalidate(&mut self, key: u32) {
        self.invalidated.push((key, self.recvs.len()));
    }

    fn may_execute(&mut self, key: u32, address: u64) -> bool {
        key == KEY && self.range(address, 8).is_some()
    }

    fn execute(&mut self, key: u32, address: u64, operation: Atomic) -> Option<u64> {
        assert!(self.may_execute(key, address));
        let range = self.range(address, 8).filter(|_| !self.unreadable)?;
        let found = u64::from_ne_bytes(self.memory[range.clone()].try_into().unwrap());
        let new = match operation {
            Atomic::FetchAdd(add) => found.wrapping_add(add),
            Atomic::CompareSwap { compare, swap } => {
                if found == compare {
                    swap
                } else {
                    found
                }
            }
        };
        self.memory[range].copy_from_slice(&new.to_ne_bytes());
        self.executed += 1;
        Some(found)
    }
}

impl SharedReceiveCallbacks<TestHost> for TestHost {
    fn take_shared(&mut self) -> Option<(Buffer, u64)> {
        self.shared.pop_front().map(|buffer| (buffer, buffer.length as u64))
    }

    fn shared_left(&self) -> u32 {
        self.shared.len() as u32
    }
}

impl CompletionCallbacks<TestHost> for TestHost {
    fn send_overdue(&mut self, age: Nanos) {
        self.overdue.push(age);
    }

    fn execute_bind(&mut self, _request: &Buffer) -> Result<bool, Status> {
        self.bind_calls += 1;
        let is_put_off = self.put_off > 0;
        self.put_off = self.put_off.saturating_sub(1);
        if is_put_off { Ok(false) } else { self.bind_status.map_or(Ok(true), Err) }
    }

    fn request_done(&mut self, request: &mut Buffer, status: Status, bytes: u64) {
        if let Some(buffer) = self.reads.remove(&request.id) {
            self.completed_buffers.push((buffer, self.memory[buffer.at..][..buffer.length].to_vec()));
        }
        self.requests.push(TestCompletion { id: request.id, status, bytes, value: SendValue::default() });
    }

    fn recv_done(&mut self, recv: &mut Buffer, status: Status, bytes: u64, value: SendValue) {
        self.completed_buffers.push((*recv, self.memory[recv.at..][..recv.length].to_vec()));
        self.recvs.push(TestCompletion { id: recv.id, status, bytes, value });
    }
}
