//! Outstanding transfers and their buffers, found by the cookie in the completion event.

use std::collections::VecDeque;

use crate::memory::Buffer;

/// Id of an outstanding transfer, unique among the transfers of its endpoint or shared receive queue.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct OpId(pub(crate) u64);

impl OpId {
    /// Bit that is set in ids of a shared receive queue, and clear in ids of an endpoint.
    pub(crate) const SHARED: u64 = 1 << 63;
}

/// Kinds of transfers.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// Sends a message.
    Send,
    /// Receives a message.
    Recv,
    /// Writes into a window of the peer.
    Write,
    /// Reads bytes from a window of the peer.
    Read,
}

/// The buffers of a transfer.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub(crate) first: Buffer,
    /// Buffers of further segments.
    pub(crate) more: Vec<Buffer>,
}

/// The outstanding transfers of one endpoint or shared queue.
pub(crate) struct OutstandingTransfers<B = Buffers> {
    slots: Vec<Slot<B>>,
    /// Indexes of the slots without a transfer.
    free: Vec<u32>,
    /// Bit in all ids of this set: [`OpId::SHARED`] for a shared receive queue, 0 for an endpoint.
    mark: u64,
    /// Number of requests (sends, reads, writes) posted so far.
    requests: u64,
    /// Numbers and ids of the requests with suppressed events, in the order of their posts.
    suppressed: VecDeque<(u64, OpId)>,
}

struct Slot<B> {
    /// Number of earlier uses of the slot, modulo 2^31. It is part of the id, so an id is reused only after 2^31 uses.
    generation: u32,
    /// Number of the request in the order of posts, counted from 1; 0 for a receive.
    request: u64,
    buffers: Option<(Op, B)>,
}

/// A completed transfer.
#[derive(Debug, PartialEq)]
pub(crate) struct CompletedTransfer<B = Buffers> {
    pub(crate) op: Op,
    pub(crate) buffers: B,
    /// Suppressed requests that were posted before this one. They are also complete, because requests complete in
    /// order.
    pub(crate) earlier: Vec<(OpId, Op, B)>,
}

const GENERATIONS: u32 = u32::MAX >> 1;

impl<B> OutstandingTransfers<B> {
    /// Creates an empty set for an endpoint.
    pub(crate) fn new() -> Self {
        OutstandingTransfers { slots: Vec::new(), free: Vec::new(), mark: 0, requests: 0, suppressed: VecDeque::new() }
    }

    /// Creates an empty set for a shared receive queue.
    pub(crate) fn shared() -> Self {
        OutstandingTransfers { mark: OpId::SHARED, ..Self::new() }
    }

    /// Stores the buffers of a transfer that is about to be posted. The caller keeps the set locked until the post has
    /// returned, so that the request numbers follow the order of the posts.
    pub(crate) fn enter(&mut self, op: Op, buffers: B, is_suppressed: bool) -> OpId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, request: 0, buffers: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.buffers = Some((op, buffers));
        slot.request = 0;
        let id = OpId(self.mark | u64::from(slot.generation) << 32 | u64::from(index));
        if op != Op::Recv {
            self.requests += 1;
            slot.request = self.requests;
            if is_suppressed {
                self.suppressed.push_back((self.requests, id));
            }
        }
        id
    }

    /// Removes a transfer whose post failed.
    pub(crate) fn withdraw(&mut self, id: OpId) -> Option<B> {
        self.suppressed.retain(|(_, other)| *other != id);
        self.leave(id).map(|(_, buffers, _)| buffers)
    }

    /// Removes a completed transfer, and the suppressed requests that were posted before it. Returns `None` for an
    /// unknown id.
    pub(crate) fn complete(&mut self, id: OpId) -> Option<CompletedTransfer<B>> {
        let (op, buffers, request) = self.leave(id)?;
        let mut earlier = Vec::new();
        while let Some((_, other)) = self.suppressed.front().filter(|(number, _)| *number <= request).copied() {
            self.suppressed.pop_front();
            earlier.extend(self.leave(other).map(|(op, buffers, _)| (other, op, buffers)));
        }
        Some(CompletedTransfer { op, buffers, earlier })
    }

    fn leave(&mut self, OpId(name): OpId) -> Option<(Op, B, u64)> {
        let is_own = name & OpId::SHARED == self.mark;
        let (generation, index) = ((name >> 32) as u32 & GENERATIONS, name as u32);
        let slot = self.slots.get_mut(index as usize).filter(|slot| is_own && slot.generation == generation)?;
        let (op, buffers) = slot.buffers.take()?;
        slot.generation = slot.generation.wrapping_add(1) & GENERATIONS;
        self.free.push(index);
        Some((op, buffers, slot.request))
    }

    /// Number of outstanding transfers.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(op: Op, buffers: char) -> Option<CompletedTransfer<char>> {
        Some(CompletedTransfer { op, buffers, earlier: Vec::new() })
    }

    #[test]
    fn removed_operation_is_not_found_in_its_reused_slot() {
        let mut flight = OutstandingTransfers::new();
        let first = flight.enter(Op::Send, 'a', false);
        let second = flight.enter(Op::Recv, 'b', false);
        assert_eq!((flight.complete(first), flight.complete(first)), (done(Op::Send, 'a'), None));
        let third = flight.enter(Op::Read, 'c', false);
        assert_ne!(third, first);
        assert_eq!(flight.complete(first), None, "the id of an earlier transfer");
        assert_eq!((flight.complete(third), flight.complete(second)), (done(Op::Read, 'c'), done(Op::Recv, 'b')));
        assert_eq!((flight.len(), flight.slots.len()), (0, 2));
    }

    #[test]
    fn unknown_cookies_are_refused() {
        let mut flight = OutstandingTransfers::new();
        flight.enter(Op::Write, (), false);
        for name in [1, 1 << 32, u64::MAX, u64::from(u32::MAX), OpId::SHARED] {
            assert!(flight.complete(OpId(name)).is_none());
        }
        assert_eq!(flight.len(), 1);
    }

    #[test]
    fn slot_generation_wraps_without_colliding() {
        let mut flight = OutstandingTransfers::new();
        flight.enter(Op::Send, '0', false);
        flight.slots[0].generation = GENERATIONS;
        let last = OpId(u64::from(GENERATIONS) << 32);
        assert_eq!(flight.withdraw(last), Some('0'));
        assert_eq!(flight.enter(Op::Send, '1', false), OpId(0));
        assert_eq!(flight.complete(last), None);
    }

    #[test]
    fn suppressed_requests_come_back_with_the_next_completion() {
        let mut flight = OutstandingTransfers::new();
        let first = flight.enter(Op::Write, 'a', true);
        let receive = flight.enter(Op::Recv, 'r', false);
        let second = flight.enter(Op::Write, 'b', true);
        let third = flight.enter(Op::Send, 'c', false);
        let fourth = flight.enter(Op::Write, 'd', true);
        assert_eq!(flight.complete(receive), done(Op::Recv, 'r'), "a receive says nothing about requests");
        let earlier = vec![(first, Op::Write, 'a'), (second, Op::Write, 'b')];
        assert_eq!(flight.complete(third), Some(CompletedTransfer { op: Op::Send, buffers: 'c', earlier }));
        assert_eq!(flight.complete(fourth), done(Op::Write, 'd'), "a suppressed request that failed has an event");
        assert_eq!(flight.len(), 0);
    }

    #[test]
    fn withdrawn_request_does_not_complete_others() {
        let mut flight = OutstandingTransfers::new();
        let first = flight.enter(Op::Write, 'a', true);
        let second = flight.enter(Op::Write, 'b', true);
        assert_eq!((flight.withdraw(second), flight.len()), (Some('b'), 1));
        let third = flight.enter(Op::Send, 'c', false);
        assert_eq!(flight.complete(third).unwrap().earlier, [(first, Op::Write, 'a')]);
    }

    #[test]
    fn cookies_of_shared_queues_and_endpoints_differ() {
        let (mut own, mut shared) = (OutstandingTransfers::new(), OutstandingTransfers::shared());
        let (one, other) = (own.enter(Op::Recv, 'a', false), shared.enter(Op::Recv, 'b', false));
        assert_eq!((own.complete(other), shared.complete(one)), (None, None));
        assert_eq!((own.complete(one), shared.complete(other)), (done(Op::Recv, 'a'), done(Op::Recv, 'b')));
    }
}
