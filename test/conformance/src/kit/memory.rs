//! Buffers for transfers, with or without a registration. Their bytes are atomics, because the library and the peer
//! write them concurrently.
#![forbid(unsafe_code)]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "handles go to the library under test as they are")]

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use dat_abi::*;

use crate::api::*;
use crate::ctx::Ctx;

use super::codes::ok;
use super::object::{Ia, Lmr, Pz};
use super::{SOON, raw, scaled_timeout};

/// Buffers are aligned to a page.
const PAGE: usize = 4096;

/// A page-aligned buffer.
pub(crate) struct Buffer {
    bytes: Vec<AtomicU8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// Allocates zeroed bytes.
    pub(crate) fn new(length: usize) -> Self {
        let bytes = raw::zeroed_bytes(length + PAGE);
        let start = bytes.as_ptr().align_offset(PAGE);
        Buffer { bytes, start, length }
    }

    fn own(&self) -> &[AtomicU8] {
        &self.bytes[self.start..self.start + self.length]
    }

    /// Start address.
    pub(crate) fn pointer(&self) -> DAT_PVOID {
        self.own().as_ptr().cast_mut().cast()
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the address of a byte.
    pub(crate) fn address(&self, at: usize) -> DAT_VADDR {
        self.pointer().expose_provenance() as DAT_VADDR + at as DAT_VADDR
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        for (place, byte) in self.own()[at..at + bytes.len()].iter().zip(bytes) {
            place.store(*byte, Ordering::Release);
        }
    }

    pub(crate) fn take(&self, at: usize, length: usize) -> Vec<u8> {
        self.own()[at..at + length].iter().map(|place| place.load(Ordering::Acquire)).collect()
    }

    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.own()[at].load(Ordering::Acquire)
    }

    pub(crate) fn fill(&self, byte: u8) {
        self.own().iter().for_each(|place| place.store(byte, Ordering::Release));
    }

    /// Fills a range with bytes that depend on their offset and the seed.
    pub(crate) fn write_pattern(&self, at: usize, length: usize, seed: u8) {
        for (offset, place) in self.own()[at..at + length].iter().enumerate() {
            place.store(pattern(offset, seed), Ordering::Release);
        }
    }

    /// Checks that the range holds what `write_pattern` with this seed writes.
    #[track_caller]
    pub(crate) fn expect_pattern(&self, at: usize, length: usize, seed: u8) {
        for (offset, place) in self.own()[at..at + length].iter().enumerate() {
            let (byte, wanted) = (place.load(Ordering::Acquire), pattern(offset, seed));
            assert!(byte == wanted, "byte {offset} of {length} is {byte:#x}, wanted {wanted:#x}");
        }
    }

    /// Checks that the range holds these bytes.
    #[track_caller]
    pub(crate) fn expect_bytes(&self, at: usize, wanted: &[u8]) {
        let bytes = self.take(at, wanted.len());
        // Comparing slices is much faster than comparing bytes in a loop.
        if bytes == wanted {
            return;
        }
        if let Some(place) = (0..wanted.len()).find(|place| bytes[*place] != wanted[*place]) {
            panic!("byte {place} of {} is {:#x}, wanted {:#x}", wanted.len(), bytes[place], wanted[place]);
        }
    }

    /// Checks that every byte of the range has this value.
    #[track_caller]
    pub(crate) fn expect_all(&self, at: usize, length: usize, wanted: u8) {
        self.expect_bytes(at, &vec![wanted; length]);
    }

    /// Polls until a byte has a value, without DAT calls, as programs do that wait for RDMA writes.
    #[track_caller]
    pub(crate) fn spin_for(&self, at: usize, wanted: u8) {
        let end = Instant::now() + scaled_timeout(SOON);
        while self.byte(at) != wanted {
            assert!(Instant::now() < end, "byte {at} is {:#x} after {SOON:?}, wanted {wanted:#x}", self.byte(at));
            std::thread::yield_now();
        }
    }
}

fn pattern(offset: usize, seed: u8) -> u8 {
    // 251 is prime, so the pattern repeats neither per page nor per power of two.
    ((offset % 251) as u8).wrapping_add(seed)
}

/// A registered buffer.
pub(crate) struct Memory {
    /// Declared first, so that it is freed while the buffer exists.
    lmr: Option<Lmr>,
    buffer: Buffer,
    /// Context for local segments.
    pub(crate) lmr_context: DAT_LMR_CONTEXT,
    /// Context for the peer.
    pub(crate) rmr_context: DAT_RMR_CONTEXT,
    /// Registered length, as returned by the library.
    pub(crate) registered_length: DAT_VLEN,
    /// Registered address, as returned by the library.
    pub(crate) registered_address: DAT_VADDR,
}

impl std::ops::Deref for Memory {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        &self.buffer
    }
}

impl Memory {
    #[track_caller]
    pub(crate) fn register(ia: &Ia, pz: &Pz, length: usize, privileges: DAT_MEM_PRIV_FLAGS) -> Self {
        let buffer = Buffer::new(length);
        let region = DAT_REGION_DESCRIPTION { for_va: buffer.pointer() };
        let (mut lmr, mut lmr_context, mut rmr_context) = (DAT_HANDLE_NULL, 0, 0);
        let (mut registered_length, mut registered_address) = (0, 0);
        ok(dat_lmr_create(
            ia.h(),
            DAT_MEM_TYPE_VIRTUAL,
            region,
            length as DAT_VLEN,
            pz.h(),
            privileges,
            &mut lmr,
            &mut lmr_context,
            &mut rmr_context,
            &mut registered_length,
            &mut registered_address,
        ));
        let lmr = Some(Lmr::own(lmr));
        Memory { lmr, buffer, lmr_context, rmr_context, registered_length, registered_address }
    }

    /// The LMR's handle.
    pub(crate) fn h(&self) -> DAT_LMR_HANDLE {
        self.lmr.as_ref().expect("the LMR is set until `deregister`").h()
    }

    /// Frees the registration, which must succeed; the buffer stays. Returns the stale handle.
    #[track_caller]
    pub(crate) fn deregister(&mut self) -> DAT_LMR_HANDLE {
        self.lmr.take().expect("the LMR is set until `deregister`").free()
    }

    /// A range as a local segment.
    pub(crate) fn segment(&self, at: usize, length: usize) -> DAT_LMR_TRIPLET {
        DAT_LMR_TRIPLET {
            lmr_context: self.lmr_context,
            pad: 0,
            virtual_address: self.address(at),
            segment_length: length as DAT_VLEN,
        }
    }

    /// A range as a target of the peer's RDMA.
    pub(crate) fn target(&self, at: usize, length: usize) -> DAT_RMR_TRIPLET {
        DAT_RMR_TRIPLET {
            rmr_context: self.rmr_context,
            pad: 0,
            target_address: self.address(at),
            segment_length: length as DAT_VLEN,
        }
    }
}

impl Ctx {
    /// Sends the other role the key, address and length of this memory.
    #[track_caller]
    pub(crate) fn send_target(&self, target: DAT_RMR_TRIPLET) {
        self.send_number(target.rmr_context.into());
        self.send_number(target.target_address);
        self.send_number(target.segment_length);
    }

    /// Receives key, address and length of the other role's memory.
    #[track_caller]
    pub(crate) fn receive_target(&self) -> DAT_RMR_TRIPLET {
        let (context, target_address, segment_length) =
            (self.receive_number(), self.receive_number(), self.receive_number());
        DAT_RMR_TRIPLET { rmr_context: context as DAT_RMR_CONTEXT, pad: 0, target_address, segment_length }
    }
}
