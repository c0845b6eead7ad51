//! The private hook between our libdat and our providers: what the public ABI has no room for.
//!
//! A provider asks for it from `dat_provider_init`: it calls `dats_get_ia_handle(LIBDAT_HOOK_REQUEST, &mut p)`. A foreign
//! libdat answers that the number names no IA; ours answers `DAT_SUCCESS` and a pointer to a [`LibdatHook`] that lives as
//! long as the process. So each half also works with somebody else's other half. Nothing here is called on a hot path.

use core::ffi::{c_char, c_void};

use crate::types::DAT_IA_HANDLE;

/// The number asked for: far outside every IA handle; its low byte is the version of [`LibdatHook`].
pub const LIBDAT_HOOK_REQUEST: u64 = 0x6461_706c_5f72_7301;

/// Where a provider keeps its handles: memory that stays readable while the process lives.
///
/// Every handle of that provider is `base + k * stride`; the first word of an unused place is null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HandleArena {
    /// First byte.
    pub base: usize,
    /// Length in bytes.
    pub len: usize,
    /// Distance of two handles in bytes: a power of two, at least 8.
    pub stride: usize,
}

/// What our libdat offers to a provider that asks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LibdatHook {
    /// Size of this record in bytes; later versions append.
    pub size: usize,
    /// Tells libdat where the handles of the calling library live. Idempotent; 0 on success, -1 when the table is full or the
    /// arena malformed.
    ///
    /// libdat then refuses, without reading it, any handle that lies in no arena, unless a library without the hook is loaded.
    pub add_arena: extern "C" fn(arena: HandleArena) -> i32,
    /// The number under which the consumer knows this IA of the provider's; null when libdat has given none (yet).
    pub ia_number: extern "C" fn(provider_ia: *mut c_void) -> DAT_IA_HANDLE,
    /// Why the calling thread's last `dat_ia_openv` was refused by libdat, for tools: writes at most `room` bytes with the
    /// NUL, and answers the full length without it; 0 when there was no refusal.
    pub last_refusal: unsafe extern "C" fn(out: *mut c_char, room: usize) -> usize,
}
