//! Slot rings: one writer, one reader, no lock and no index in shared memory (spec/transports B1).
//!
//! A slot is two cache lines, which CPUs prefetch together. Its first word contains the header in the low half and the
//! lap number in the high half. The writer stores this word last, so the reader polls only the first word of the next
//! slot. The writer's count is private. So if a process exits between filling and publishing a slot, the ring is
//! unchanged. The reader publishes the number of consumed slots on its own control page and in its messages. A number
//! larger than the number of written slots is a protocol violation by the peer, and is reported as `None`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::runtime::empty_check::RingWatch;
use dapl::runtime::sync::AtomicU64;

use crate::memory::map::{RingSlots, SharedMapping};
use crate::proto::message::{Header, INLINE, LINE, SLOT};

/// Number of bytes before the body: the header word, and a word with `ack` in its low half and `aux` in its high half.
const BODY: usize = 16;
/// Index of the last word of a slot. If the bytes of a send are in the message buffer, this word contains the immediate
/// data or the window key.
const VALUE: usize = SLOT / 8 - 1;
/// A slot, as words.
type Slot = [AtomicU64; SLOT / 8];

/// Prefetch distance in slots: the number of messages that can be sent while one cache line is transferred from the
/// peer's CPU.
const PREFETCH_DISTANCE: u64 = 4;

/// Whether an inline message extends to its slot's second cache line.
#[inline(always)]
fn has_two_lines(header: Header) -> bool {
    header.inline && header.length as usize > LINE - BODY
}

fn lap(index: u64, shift: u32) -> u64 {
    // Laps are counted from 1, so zeroed memory contains no entry. The low 32 bits are sufficient, because the writer
    // is never more than one ring ahead of the reader.
    (((index >> shift) + 1) & 0xFFFF_FFFF) << 32
}

/// The writer of a ring in this process's area.
pub(crate) struct Writer {
    slots: RingSlots<{ SLOT / 8 }>,
    /// Binary logarithm of the number of slots.
    shift: u32,
    next: u64,
    /// Last known number of slots that the reader has consumed.
    consumed: u64,
}

/// Fields of a slot besides its header word.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotFields {
    /// Low half of the number of slots of the opposite ring that the writer of this slot has consumed.
    pub(crate) ack: u32,
    /// A line number of a buffer, or a 32-bit value, depending on the message type.
    pub(crate) aux: u32,
    /// Length in bytes of the whole message, if its bytes are in a buffer. The same word of an inline message contains
    /// its first bytes.
    pub(crate) total: Option<u64>,
}

impl Writer {
    /// `offset`: of the first slot in the area. `slots`: the number of slots.
    pub(crate) fn new(area: Arc<SharedMapping>, offset: usize, slots: u32) -> Self {
        assert!(area.is_writable());
        Writer { slots: RingSlots::new(area, offset, slots), shift: slots.trailing_zeros(), next: 0, consumed: 0 }
    }

    /// Number of published slots, which is also the index of the next slot.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Last known number of slots that the reader has consumed.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.next - self.consumed >= self.slots.count()
    }

    pub(crate) fn free_slots(&self) -> u64 {
        self.slots.count() - (self.next - self.consumed)
    }

    /// Updates `consumed` from the number that the peer publishes. `None`: the number exceeds the number of published
    /// slots.
    pub(crate) fn set_consumed(&mut self, consumed: u64) -> Option<()> {
        if consumed > self.next {
            return None;
        }
        self.consumed = self.consumed.max(consumed);
        Some(())
    }

    /// Updates `consumed` from the low half of the peer's number, which messages contain. `None`: the number exceeds
    /// the number of published slots.
    pub(crate) fn set_consumed_low(&mut self, low: u32) -> Option<()> {
        // The number grows by at most the size of the ring, so the low half determines it. An older number is ignored.
        let ahead = u64::from(low.wrapping_sub(self.consumed as u32));
        if ahead > u64::from(u32::MAX / 2) { Some(()) } else { self.set_consumed(self.consumed + ahead) }
    }

    /// Stores payload word `n + 1` of the next slot, before the slot is published.
    pub(crate) fn store_word(&self, n: usize, word: u64) {
        assert!(n < INLINE / 8 - 1);
        self.slots.words(self.next)[BODY / 8 + 1 + n].store(word, Ordering::Relaxed);
    }

    /// Stores the immediate data or the window key of a send in the next slot, before the slot is published. The bytes
    /// of the send are in the message buffer.
    pub(crate) fn set_value(&self, value: u32) {
        self.slots.words(self.next)[VALUE].store(value.into(), Ordering::Relaxed);
    }

    /// Fills and publishes the next slot. The caller has checked that the ring is not full.
    pub(crate) fn push(&mut self, header: Header, payload: &SlotFields) {
        if let Some(total) = payload.total {
            self.slots.words(self.next)[BODY / 8].store(total, Ordering::Relaxed);
        }
        self.publish(header, payload);
    }

    /// Fills and publishes the next slot, with the bytes of an inline message in `words`. The bytes are gathered before
    /// this call: if the slot were filled slowly, a polling reader would fetch its cache line several times.
    pub(crate) fn push_inline(&mut self, header: Header, payload: &SlotFields, words: &[u64; INLINE / 8]) {
        let used = (header.length as usize).div_ceil(8);
        let body = &self.slots.words(self.next)[BODY / 8..];
        for (to, word) in body.iter().zip(words).take(used) {
            to.store(*word, Ordering::Relaxed);
        }
        self.publish(header, payload);
    }

    /// Returns the address of the `INLINE` payload bytes of the next slot. The caller writes them, and then publishes
    /// the slot.
    #[inline(always)]
    pub(crate) fn payload(&self) -> *mut u8 {
        self.slots.bytes::<BODY>(self.next)
    }

    /// Returns the address of the `INLINE` payload bytes of a published slot that the peer has not consumed.
    pub(crate) fn payload_of(&self, index: u64) -> *const u8 {
        self.slots.bytes::<BODY>(index)
    }

    /// Returns the words and the index of the next slot. Fast paths call this before their stores to shared memory,
    /// because after a store the compiler has to load the fields of the writer again.
    #[inline(always)]
    pub(crate) fn next_slot(&self) -> (&[AtomicU64; SLOT / 8], u64) {
        (self.slots.words(self.next), self.next)
    }

    /// Publishes slot `index`, whose payload is a whole send of `length` bytes. The caller must then call
    /// [`Writer::advance`].
    #[inline(always)]
    pub(crate) fn publish_send(&self, (slot, index): (&[AtomicU64; SLOT / 8], u64), length: u8, ack: u32) {
        fail_point!(SlotFilled);
        let [head, fields, ..] = slot;
        let word = u64::from(Header::inline_send(length.into(), false).encode()) | lap(index, self.shift);
        fields.store(u64::from(ack), Ordering::Relaxed);
        fail_point!(BeforePublish);
        // Release, for the Acquire in `peek`, as in `publish`.
        head.store(word, Ordering::Release);
        fail_point!(AfterPublish);
    }

    /// Advances to the slot after `index`, which [`Writer::publish_send`] has published. `length`: length of that send.
    /// `free`: a lower bound of the number of slots that were free before that send.
    #[inline(always)]
    pub(crate) fn advance(&mut self, index: u64, length: u8, free: u32) {
        debug_assert!(free > 0 && u64::from(free) <= self.free_slots() && index == self.next);
        self.next = index + 1;
        // The reader's CPU has the cache lines of a later slot, as in `publish`. The prefetch transfers them before
        // they are written.
        if u64::from(free) > 1 + PREFETCH_DISTANCE {
            self.slots.prefetch_slot::<0>(index + 1 + PREFETCH_DISTANCE, true);
            if length as usize > LINE - BODY {
                self.slots.prefetch_slot::<LINE>(index + 1 + PREFETCH_DISTANCE, true);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn publish(&mut self, header: Header, payload: &SlotFields) {
        debug_assert!(!self.is_full());
        fail_point!(SlotFilled);
        // These fields are read before the stores to shared memory. The compiler would read them again after each
        // store, because a store through a shared pointer may alias them.
        let (next, consumed, count) = (self.next, self.consumed, self.slots.count());
        self.next = next + 1;
        let [head, fields, ..] = self.slots.words(next);
        fields.store(u64::from(payload.aux) << 32 | u64::from(payload.ack), Ordering::Relaxed);
        let word = u64::from(header.encode()) | lap(next, self.shift);
        fail_point!(BeforePublish);
        // Release, for the Acquire in `peek`: a reader that sees the header also sees the payload.
        head.store(word, Ordering::Release);
        fail_point!(AfterPublish);
        // The reader's CPU has the cache line of a later slot, because it has read the slot in the previous lap. The
        // prefetch transfers the line before the slot is written.
        let soon = next + 1 + PREFETCH_DISTANCE;
        if soon - consumed < count {
            self.slots.prefetch_slot::<0>(soon, true);
            if has_two_lines(header) {
                self.slots.prefetch_slot::<LINE>(soon, true); // Consecutive messages often have similar lengths.
            }
        }
    }
}

/// The reader of a ring in the peer's area.
pub(crate) struct Reader {
    slots: RingSlots<{ SLOT / 8 }>,
    /// Binary logarithm of the number of slots.
    shift: u32,
    next: u64,
}

/// Result of reading the next slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Peeked {
    Empty,
    Entry(Header),
    /// The slot has an invalid header word.
    Invalid,
}

/// Consecutive slots up to the end of the ring. The filled slots come first.
pub(crate) struct SlotRun<'a> {
    slots: &'a [Slot],
    /// Upper half of the header word of filled slots.
    lap: u64,
}

impl<'a> SlotRun<'a> {
    /// Returns all slots of the run, filled or not.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &'a [Slot] {
        self.slots
    }

    /// Same as [`Reader::peek`], for a slot of the run with a send that fits in it: returns the address of its payload,
    /// its length, and whether it is solicited. `None` for all other messages.
    #[inline(always)]
    pub(crate) fn inline_send(&self, slot: &'a Slot) -> Option<(*const u8, u64, bool)> {
        // Acquire, for the Release in `publish`. A word of another lap exceeds 32 bits after the subtraction.
        let word = slot[0].load(Ordering::Acquire).wrapping_sub(self.lap);
        let (length, is_solicited) = Header::decode_inline_send(word)?;
        if length as usize > LINE - BODY {
            RingSlots::prefetch_line::<LINE>(slot);
        }
        Some((std::ptr::from_ref(slot).cast::<u8>().wrapping_add(BODY), length, is_solicited))
    }

    /// Prefetches the slot that is [`PREFETCH_DISTANCE`] slots after `slot`, which the writer has probably filled too.
    #[inline(always)]
    pub(crate) fn prefetch_ahead(slot: &Slot) {
        RingSlots::prefetch_ahead(slot, PREFETCH_DISTANCE as usize);
    }
}

impl Reader {
    /// `offset`: of the first slot in the area. `slots`: the number of slots.
    pub(crate) fn new(area: Arc<SharedMapping>, offset: usize, slots: u32) -> Self {
        Reader { slots: RingSlots::new(area, offset, slots), shift: slots.trailing_zeros(), next: 0 }
    }

    /// Number of slots that this reader has consumed.
    pub(crate) fn consumed(&self) -> u64 {
        self.next
    }

    /// Makes dequeues watch the header word of the next slot.
    #[inline(always)]
    pub(crate) fn watch_next(&self, watch: &RingWatch) {
        self.slots.watch_slot(self.next, watch, (lap(self.next, self.shift) >> 32) as u32);
    }

    /// Reads the header word of the next slot. The peer may change the word at any time, so it is read once, and only
    /// the copy is used.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Peeked {
        // Acquire, for the Release in `publish`.
        let word = self.slots.words(self.next)[0].load(Ordering::Acquire);
        if word & !0xFFFF_FFFF != lap(self.next, self.shift) {
            return Peeked::Empty;
        }
        Header::decode(word as u32).map_or(Peeked::Invalid, Peeked::Entry)
    }

    /// Returns the slots from the next one up to the end of the ring.
    #[inline(always)]
    pub(crate) fn next_run(&self) -> SlotRun<'_> {
        SlotRun { slots: self.slots.run(self.next), lap: lap(self.next, self.shift) }
    }

    /// Advances by `count` slots of a run; `count` is not 0. Returns the `ack` field of the last slot: the low half of
    /// the number of local slots that the peer has consumed.
    #[inline(always)]
    pub(crate) fn advance_run(&mut self, count: usize) -> u32 {
        self.next += count as u64;
        self.slots.words(self.next - 1)[1].load(Ordering::Relaxed) as u32
    }

    /// Prefetches the second cache line of the next slot, if a message with this header uses it.
    #[inline(always)]
    pub(crate) fn prefetch_rest(&self, header: Header) {
        if has_two_lines(header) {
            self.slots.prefetch_slot::<LINE>(self.next, false);
        }
    }

    /// Returns the fields of the next slot. `total` is valid only if the writer has set it.
    #[inline(always)]
    pub(crate) fn fields(&self) -> SlotFields {
        let [_, fields, body, ..] = self.slots.words(self.next);
        let (fields, total) = (fields.load(Ordering::Relaxed), body.load(Ordering::Relaxed));
        SlotFields { ack: fields as u32, aux: (fields >> 32) as u32, total: Some(total) }
    }

    /// Returns the first words of the next slot's payload. Each word is read once.
    pub(crate) fn payload_words<const N: usize>(&self) -> [u64; N] {
        const { assert!(N <= INLINE / 8) };
        let words = self.slots.words(self.next);
        std::array::from_fn(|n| words[BODY / 8 + n].load(Ordering::Relaxed))
    }

    /// Returns the payload words of the next slot that the writer has stored by `store_word`.
    pub(crate) fn stored_words<const N: usize>(&self) -> [u64; N] {
        const { assert!(N < INLINE / 8) };
        let words = self.slots.words(self.next);
        std::array::from_fn(|n| words[BODY / 8 + 1 + n].load(Ordering::Relaxed))
    }

    /// Returns the immediate data or the window key of a send whose bytes are in the message buffer.
    pub(crate) fn value(&self) -> u32 {
        self.slots.words(self.next)[VALUE].load(Ordering::Relaxed) as u32
    }

    /// Address of the next slot's payload, which has `INLINE` bytes.
    #[inline(always)]
    pub(crate) fn payload(&self) -> *const u8 {
        self.slots.bytes::<BODY>(self.next)
    }

    /// Prefetches the slot at the prefetch distance. Called when messages arrive in sequence, so the writer has
    /// probably filled that slot too.
    #[inline]
    pub(crate) fn prefetch_ahead(&self) {
        self.slots.prefetch_slot::<0>(self.next + PREFETCH_DISTANCE, false);
    }

    /// Consumes the next slot.
    pub(crate) fn advance(&mut self) {
        self.next += 1;
    }
}

#[cfg(test)]
mod tests;

#[cfg(all(test, loom))]
mod interleavings;
