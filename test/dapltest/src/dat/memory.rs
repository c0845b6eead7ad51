//! Registered memory. Bytes are atomic, because peers may access them at any time.
#![forbid(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, Ordering};

use dat_abi::*;

use super::objects::{Ia, Pz};
use super::raw::{self, CallResult, Handle, Registered};

/// Memory that a peer may access: key, address and length.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct RemoteBuffer {
    pub(crate) context: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

impl RemoteBuffer {
    /// Triplet for RDMA of `length` bytes at offset `at`.
    pub(crate) fn part(&self, at: u64, length: u64) -> DAT_RMR_TRIPLET {
        let target_address = self.address.wrapping_add(at);
        DAT_RMR_TRIPLET { rmr_context: self.context, pad: 0, target_address, segment_length: length }
    }
}

/// Zeroed memory, registered with all privileges until it is dropped. Endpoints that use it must be freed first.
pub(crate) struct Memory {
    bytes: Box<[AtomicU8]>,
    registered: Registered,
}

impl Memory {
    /// Allocates and registers `length` bytes.
    pub(crate) fn new(ia: &Ia, pz: &Pz, length: usize) -> CallResult<Self> {
        let bytes: Box<[AtomicU8]> = std::iter::repeat_with(AtomicU8::default).take(length).collect();
        let at = bytes.as_ptr().cast_mut().cast::<c_void>();
        let registered = raw::lmr_create(ia.handle(), pz.handle(), at, length as u64, DAT_MEM_PRIV_ALL_FLAG)?;
        Ok(Memory { bytes, registered })
    }

    pub(crate) fn registered(&self) -> &Registered {
        &self.registered
    }

    pub(crate) fn lmr(&self) -> Handle {
        self.registered.lmr
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }

    /// Start address.
    pub(crate) fn pointer(&self) -> *mut c_void {
        self.bytes.as_ptr().cast_mut().cast()
    }

    /// Describes the whole memory for a peer.
    pub(crate) fn place(&self) -> RemoteBuffer {
        RemoteBuffer { context: self.registered.rmr_context, address: self.address(), length: self.bytes.len() as u64 }
    }

    /// Returns `count` consecutive local segments of `size` bytes, starting at offset `at`.
    pub(crate) fn segments(&self, at: usize, size: usize, count: usize) -> Vec<DAT_LMR_TRIPLET> {
        debug_assert!(at + size * count <= self.bytes.len(), "a part exceeds the buffer");
        let segment = |number: usize| DAT_LMR_TRIPLET {
            lmr_context: self.registered.lmr_context,
            pad: 0,
            virtual_address: self.address() + (at + number * size) as u64,
            segment_length: size as u64,
        };
        (0..count).map(segment).collect()
    }

    /// Fills a range. `byte` returns the value for each offset.
    pub(crate) fn fill(&self, at: usize, length: usize, byte: impl Fn(usize) -> u8) {
        self.bytes[at..at + length].iter().enumerate().for_each(|(i, to)| to.store(byte(i), Ordering::Relaxed));
    }

    /// Compares a range with the expected bytes. Returns offset and value of the first byte that differs.
    pub(crate) fn differs(&self, at: usize, length: usize, byte: impl Fn(usize) -> u8) -> Option<(usize, u8)> {
        let bytes = self.bytes[at..at + length].iter().map(|from| from.load(Ordering::Relaxed)).enumerate();
        bytes.into_iter().find(|(i, found)| *found != byte(*i))
    }

    /// Returns a copy of a range.
    pub(crate) fn copy(&self, at: usize, length: usize) -> Vec<u8> {
        self.bytes[at..at + length].iter().map(|from| from.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // An error is ignored: if the memory is still in use, the free of its PZ fails too; a closed adapter has freed
        // it.
        let _ = raw::lmr_free(self.registered.lmr);
    }
}
