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
    /// A provider's own words, a C string, on why it refuses the `ia_open` that the calling thread is in: libdat tells them
    /// in its own line, and no more often than others.
    pub provider_says: unsafe extern "C" fn(words: *const c_char),
    /// What libdat knows, for tools: the `index`th line of a topic (`TELL_*`), written as by `last_refusal`; 0 behind the last.
    /// Fields of a line have tabs between them; all but printable ASCII in them is escaped as in C.
    pub tell: unsafe extern "C" fn(topic: u32, index: usize, out: *mut c_char, room: usize) -> usize,
    /// The library field of the dat.conf record whose `dat_provider_init` the calling thread is in, written as by
    /// `last_refusal`; 0 outside of one. Several names of one file are one library to the dynamic loader.
    pub record_library: unsafe extern "C" fn(out: *mut c_char, room: usize) -> usize,
}

/// Size of a [`LibdatHook`] without what was appended since its first version: the least that one of ours has.
pub const LIBDAT_HOOK_LEAST: usize = core::mem::offset_of!(LibdatHook, provider_says);

/// Accepted records: name, version, thread safety, library, parameters, file:line, the library's file (empty if there is none).
pub const TELL_ENTRY: u32 = 0;
/// Names on lines that do not count: name, file:line, why, what makes it count.
pub const TELL_ABSENT: u32 = 1;
/// What is wrong with lines: file:line, column, field, found, allowed, `dropped` or `kept`.
pub const TELL_COMPLAINT: u32 = 2;
/// Files that cannot be read: a sentence.
pub const TELL_UNREADABLE: u32 = 3;
/// Where the records come from: a sentence.
pub const TELL_ORIGIN: u32 = 4;
/// The calling thread's last refusal: kind, name, file:line, cause, remedy.
pub const TELL_REFUSAL: u32 = 5;
/// Lines of dat.conf for what this machine has, whatever the files say.
pub const TELL_DISCOVERED: u32 = 6;
/// libdat's own version.
pub const TELL_VERSION: u32 = 7;
