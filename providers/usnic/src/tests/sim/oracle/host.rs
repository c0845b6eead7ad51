//! Callbacks of both ends of a simulated connection. They check each call against the state of the oracle, and store or
//! return its data.

use std::cell::RefCell;
use std::rc::Rc;

use dapl::provider::Status;
use dapl_software::memory::atomic::Atomic;

use super::{ATOMIC_ADDRESS, ATOMIC_KEY, Oracle, Pool, PostedRecv, RequestIndex, SOURCE_KEY, WINDOW_KEY};
use crate::proto::conn::{CompletionCallbacks, MemoryCallbacks, PostedData, SendValue, SharedReceiveCallbacks};
use crate::proto::wire::Refusal;
use crate::tests::sim::scenario::OpKind;

/// The callbacks of one side, with the oracle that both sides share, and the side's shared receive queue, if any.
#[derive(Clone, Debug)]
pub(in crate::tests::sim) struct OracleHost {
    pub(in crate::tests::sim) oracle: Rc<RefCell<Oracle>>,
    pub(in crate::tests::sim) side: usize,
    pub(in crate::tests::sim) pool: Option<Rc<RefCell<Pool>>>,
}

impl OracleHost {
    pub(in crate::tests::sim) fn new_recv(&self, length: u32) -> PostedRecv {
        let side = &mut self.oracle.borrow_mut().sides[self.side];
        side.posted_recvs += 1;
        PostedRecv { id: side.posted_recvs, buffer: RefCell::new(vec![0; length as usize]) }
    }
}

impl PostedData for OracleHost {
    type Request = RequestIndex;
    type Recv = PostedRecv;
}

impl MemoryCallbacks<OracleHost> for OracleHost {
    fn may_touch(&mut self, key: u32, address: u64, length: u32, write: bool) -> bool {
        let is_there = self.oracle.borrow().remote(self.side, key, address, length).is_some();
        is_there && !(write && key == SOURCE_KEY)
    }

    fn put_remote(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let mut oracle = self.oracle.borrow_mut();
        let loose = oracle.loose;
        let side = &mut oracle.sides[self.side];
        let (area, start) = side.find(key, address, bytes.len() as u32).ok_or(Refusal::Access)?;
        side.areas[area].put(start, bytes, loose);
        Ok(())
    }

    fn put_recv(&mut self, recv: &PostedRecv, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        let mut buffer = recv.buffer.borrow_mut();
        let place = buffer.get_mut(offset as usize..offset as usize + bytes.len());
        place.expect("the payload is within the receive").copy_from_slice(bytes);
        Ok(())
    }

    fn put_read(&mut self, request: &RequestIndex, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        let mut oracle = self.oracle.borrow_mut();
        let loose = oracle.loose;
        let side = &mut oracle.sides[self.side];
        let entry = &side.entries[request.index];
        assert!(entry.status.is_none(), "data must not arrive for a completed read");
        assert!(offset as usize + bytes.len() <= entry.length as usize, "data must be within the length of the read");
        let area = entry.area;
        let loose = loose || entry.kind == OpKind::Atomic;
        side.areas[area].put(offset as usize, bytes, loose);
        Ok(())
    }

    fn may_invalidate(&mut self, key: u32) -> bool {
        key == WINDOW_KEY
    }

    fn invalidate(&mut self, key: u32) {
        assert_eq!(key, WINDOW_KEY);
        self.oracle.borrow_mut().sides[self.side].invalidated += 1;
    }

    fn may_execute(&mut self, key: u32, address: u64) -> bool {
        (key, address) == (ATOMIC_KEY, ATOMIC_ADDRESS)
    }

    fn execute(&mut self, _: u32, _: u64, operation: Atomic) -> Option<u64> {
        let mut oracle = self.oracle.borrow_mut();
        let loose = oracle.loose;
        let side = &mut oracle.sides[self.side];
        let posted = side.atomics.get(side.found.len()).map(|(_, posted)| *posted);
        assert!(
            posted == Some(operation) || loose,
            "{operation:?} was executed, but the next operation in posting order is {posted:?}"
        );
        side.found.push(side.word);
        side.word = match operation {
            Atomic::FetchAdd(add) => side.word.wrapping_add(add),
            Atomic::CompareSwap { compare, swap } if compare == side.word => swap,
            Atomic::CompareSwap { .. } => side.word,
        };
        side.found.last().copied()
    }
}

impl SharedReceiveCallbacks<OracleHost> for OracleHost {
    fn take_shared(&mut self) -> Option<(PostedRecv, u64)> {
        let length = self.pool.as_ref()?.borrow_mut().lengths.pop_front()?;
        Some((self.new_recv(length), u64::from(length)))
    }

    fn shared_left(&self) -> u32 {
        self.pool.as_ref().map_or(0, |pool| pool.borrow().len())
    }
}

impl CompletionCallbacks<OracleHost> for OracleHost {
    fn execute_bind(&mut self, request: &RequestIndex) -> Result<bool, Status> {
        let entry = &mut self.oracle.borrow_mut().sides[self.side].entries[request.index];
        assert_eq!(entry.kind, OpKind::Bind);
        let is_done = entry.deferrals == 0;
        entry.deferrals = entry.deferrals.saturating_sub(1);
        Ok(is_done)
    }

    fn request_done(&mut self, request: &mut RequestIndex, status: Status, bytes: u64) {
        let mut oracle = self.oracle.borrow_mut();
        let loose = oracle.loose;
        let side = &mut oracle.sides[self.side];
        assert_eq!(request.index, side.done, "requests must complete in order");
        side.done += 1;
        let entry = &mut side.entries[request.index];
        assert!(entry.status.is_none());
        entry.status = Some(status);
        // Only one request fails with another status than `Flushed`: the one that ends the connection. Requests ahead
        // of it may be flushed.
        let is_first = matches!(status, Status::Success) && !side.has_failed;
        let fits = is_first || status == Status::Flushed || !std::mem::replace(&mut side.has_failed_request, true);
        assert!(
            (fits && (status != Status::Success || is_first)) || loose,
            "a request completed with {status:?} after a failed request"
        );
        side.has_failed |= status != Status::Success;
        if status == Status::Success {
            oracle.check_success(self.side, request.index, bytes);
        }
    }

    fn recv_done(&mut self, recv: &mut PostedRecv, status: Status, bytes: u64, value: SendValue) {
        let mut oracle = self.oracle.borrow_mut();
        let side = &mut oracle.sides[self.side];
        side.done_recvs += 1;
        assert_eq!(recv.id, side.done_recvs, "receives must complete in order");
        let buffer = recv.buffer.borrow();
        if status == Status::Success {
            assert!(side.failed_recvs.is_empty(), "a receive succeeded after a failed receive");
            assert!(bytes <= buffer.len() as u64);
            return oracle.check_message(self.side, bytes, value, &buffer);
        }
        side.failed_recvs.push(status);
        if let Some(pool) = &self.pool {
            pool.borrow_mut().put(buffer.len() as u32);
        }
    }
}
