//! Buffers of outstanding transfers, by the cookies of their posts. Never waits.

use crate::memory::Buffer;

/// Names a transfer of an endpoint, from its post to its completion.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct OpId(pub(crate) u64);

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
    /// Fetches bytes from a window of the peer's.
    Read,
}

/// The transfers of one endpoint that have not completed.
pub(crate) struct Flight<B = Buffer> {
    slots: Vec<Slot<B>>,
    free: Vec<u32>,
}

struct Slot<B> {
    /// Number of times the slot was used: a cookie is not repeated within 2^32 uses of its slot.
    generation: u32,
    held: Option<(Op, B)>,
}

impl<B> Flight<B> {
    /// An empty set.
    pub(crate) const fn new() -> Self {
        Flight { slots: Vec::new(), free: Vec::new() }
    }

    /// Keeps a buffer until its transfer is done.
    pub(crate) fn enter(&mut self, op: Op, buffer: B) -> OpId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, held: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.held = Some((op, buffer));
        OpId(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// The buffer of a transfer that is done, or was never posted; none for names of others.
    pub(crate) fn leave(&mut self, OpId(name): OpId) -> Option<(Op, B)> {
        let (generation, index) = ((name >> 32) as u32, name as u32);
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation)?;
        let held = slot.held.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(held)
    }

    /// Number of buffers.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_operation_is_not_found_in_its_reused_slot() {
        let mut flight = Flight::new();
        let first = flight.enter(Op::Send, 'a');
        let second = flight.enter(Op::Recv, 'b');
        assert_eq!((flight.leave(first), flight.leave(first)), (Some((Op::Send, 'a')), None));
        let third = flight.enter(Op::Read, 'c');
        assert_ne!(third, first);
        assert_eq!(flight.leave(first), None, "a name of before");
        assert_eq!((flight.leave(third), flight.leave(second)), (Some((Op::Read, 'c')), Some((Op::Recv, 'b'))));
        assert_eq!((flight.len(), flight.slots.len()), (0, 2));
    }

    #[test]
    fn made_up_names_find_nothing() {
        let mut flight = Flight::new();
        flight.enter(Op::Write, ());
        for name in [1, 1 << 32, u64::MAX, u64::from(u32::MAX)] {
            assert_eq!(flight.leave(OpId(name)), None);
        }
        assert_eq!(flight.len(), 1);
    }

    #[test]
    fn generations_wrap() {
        let mut flight = Flight::new();
        flight.enter(Op::Send, 0);
        flight.slots[0].generation = u32::MAX;
        let last = OpId(u64::from(u32::MAX) << 32);
        assert_eq!(flight.leave(last), Some((Op::Send, 0)));
        let next = flight.enter(Op::Send, 1);
        assert_eq!(next, OpId(0));
        assert_eq!(flight.leave(last), None);
    }
}
