//! Storage of the unacked packets: a ring of slots indexed by PSN, and a list of the packets in flight in transmission
//! order.
//!
//! The ring grows on demand, up to the size of the window. The list starts with the packet whose last transmission is
//! the oldest. A retransmitted packet moves to the end of the list.

use super::super::psn::Psn;
use super::super::{Nanos, WINDOW};
use super::RetransmitCause;
use super::delivery::PacketState;

/// Initial number of slots.
const INITIAL_SLOTS: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct UnackedPacket<T> {
    pub(super) what: T,
    /// Time of the last transmission.
    pub(super) sent: Nanos,
    /// Time of the first transmission.
    pub(super) first: Nanos,
    /// Order of the last transmission among all transmissions of the connection.
    pub(super) order: u64,
    pub(super) bytes: u32,
    /// Totals of delivered and lost bytes at the last transmission.
    pub(super) state: PacketState,
    /// Number of transmissions.
    pub(super) sends: u8,
    /// Cause of the last retransmission.
    pub(super) cause: RetransmitCause,
    /// Neighbours in the list. The first packet is its own `before`, and the last packet its own `after`.
    before: Psn,
    after: Psn,
}

/// Data of a packet that is sent for the first time.
pub(super) struct NewPacket<T> {
    pub(super) what: T,
    pub(super) bytes: u32,
    pub(super) now: Nanos,
    pub(super) order: u64,
    pub(super) state: PacketState,
}

/// The slots, and the list of packets in flight.
#[derive(Debug)]
pub(super) struct PacketRing<T> {
    /// The slots. Their number is a power of two, or 0.
    slots: Vec<UnackedPacket<T>>,
    /// PSNs of the first and the last packet of the list.
    ends: Option<(Psn, Psn)>,
    pub(super) in_flight_count: u32,
    /// Number of bytes in flight.
    pub(super) bytes: u64,
}

impl<T: Copy> PacketRing<T> {
    pub(super) fn new() -> Self {
        PacketRing { slots: Vec::new(), ends: None, in_flight_count: 0, bytes: 0 }
    }

    /// Returns the packet in flight whose transmission is the oldest.
    pub(super) fn oldest(&self) -> Option<Psn> {
        self.ends.map(|(oldest, _)| oldest)
    }

    fn index_of(&self, psn: Psn) -> usize {
        psn.0 as usize & (self.slots.len() - 1)
    }

    pub(super) fn slot(&self, psn: Psn) -> &UnackedPacket<T> {
        &self.slots[self.index_of(psn)]
    }

    pub(super) fn slot_mut(&mut self, psn: Psn) -> &mut UnackedPacket<T> {
        let place = self.index_of(psn);
        &mut self.slots[place]
    }

    /// Adds a new packet in flight. `used` is the number of slots in use, which precede the slot of this packet.
    #[inline(always)]
    pub(super) fn insert(&mut self, psn: Psn, used: u32, packet: NewPacket<T>) {
        let NewPacket { what, bytes, now, order, state } = packet;
        if used as usize >= self.slots.len() {
            self.grow(psn, used, what);
        }
        let (oldest, newest) = self.ends.unwrap_or((psn, psn));
        self.slot_mut(newest).after = psn;
        self.ends = Some((oldest, psn));
        self.in_flight_count += 1;
        self.bytes += u64::from(bytes);
        // The fields are written one by one to avoid a copy of the slot on the stack.
        let slot = self.slot_mut(psn);
        (slot.what, slot.bytes, slot.order) = (what, bytes, order);
        (slot.sent, slot.first) = (now, now);
        (slot.sends, slot.cause) = (1, RetransmitCause::Loss);
        (slot.before, slot.after) = (newest, psn);
        slot.state = state;
    }

    /// Doubles the number of slots, and moves the `used` slots before `psn` to their new indexes. `what` is a
    /// placeholder for the new slots.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, psn: Psn, used: u32, what: T) {
        assert!(used < WINDOW, "the window has space for the packet");
        let length = (self.slots.len() * 2).clamp(INITIAL_SLOTS, WINDOW as usize);
        let filler = UnackedPacket {
            what,
            sent: 0,
            first: 0,
            order: 0,
            bytes: 0,
            state: PacketState::default(),
            sends: 0,
            cause: RetransmitCause::Loss,
            before: psn,
            after: psn,
        };
        let mut slots = vec![filler; length];
        for back in 1..=used {
            let old = Psn(psn.0.wrapping_sub(back));
            slots[old.0 as usize & (length - 1)] = *self.slot(old);
        }
        self.slots = slots;
    }

    /// Appends a retransmitted packet to the list. For a new packet, `insert` does this.
    pub(super) fn append(&mut self, psn: Psn) {
        let (oldest, newest) = self.ends.unwrap_or((psn, psn));
        self.slot_mut(newest).after = psn;
        let slot = self.slot_mut(psn);
        (slot.before, slot.after) = (newest, psn);
        let bytes = slot.bytes;
        self.ends = Some((oldest, psn));
        self.in_flight_count += 1;
        self.bytes += u64::from(bytes);
    }

    /// Removes a packet in flight from the list.
    pub(super) fn remove(&mut self, psn: Psn) {
        let Some((oldest, newest)) = self.ends else { return };
        let &UnackedPacket { before, after, bytes, .. } = self.slot(psn);
        self.ends = match (psn == oldest, psn == newest) {
            (true, true) => None,
            (true, false) => {
                self.slot_mut(after).before = after;
                Some((after, newest))
            }
            (false, true) => {
                self.slot_mut(before).after = before;
                Some((oldest, before))
            }
            (false, false) => {
                self.slot_mut(before).after = after;
                self.slot_mut(after).before = before;
                Some((oldest, newest))
            }
        };
        self.in_flight_count -= 1;
        self.bytes -= u64::from(bytes);
    }

    /// Frees the memory. The ring must contain no packet.
    pub(super) fn free_memory(&mut self) {
        self.slots = Vec::new();
    }
}

#[cfg(test)]
impl<T: Copy> PacketRing<T> {
    /// Returns the number of slots.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the PSNs in the list, and asserts its invariants.
    pub(super) fn walk(&self) -> Vec<Psn> {
        let mut seen = Vec::new();
        let mut bytes = 0;
        let mut at = self.ends.map(|(oldest, _)| oldest);
        while let Some(psn) = at {
            let slot = self.slot(psn);
            let before = seen.last().copied().unwrap_or(psn);
            assert_eq!(slot.before, before, "the backward link names the previous packet");
            assert!(psn == before || self.slot(before).order < slot.order, "the list is in transmission order");
            seen.push(psn);
            bytes += u64::from(slot.bytes);
            at = (slot.after != psn).then_some(slot.after);
        }
        assert_eq!(self.ends.map(|(_, newest)| newest), seen.last().copied());
        assert_eq!((self.in_flight_count as usize, self.bytes), (seen.len(), bytes));
        seen
    }
}
