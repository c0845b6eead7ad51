//! The private hook between this project's libdat and its providers, for functions that the public ABI lacks.
//!
//! A provider requests the hook in its `dat_provider_init`: it calls `dats_get_ia_handle(LIBDAT_HOOK_REQUEST, &mut p)`.
//! This project's libdat returns `DAT_SUCCESS` and a pointer to a [`LibdatHook`] that is valid until the process ends.
//! Another implementation of libdat returns an error, because the number is not an IA handle; the provider then works
//! without the hook. No function of the hook is called on a hot path.

use core::ffi::{c_char, c_void};

use crate::types::DAT_IA_HANDLE;

/// Number that requests the hook. It is not a valid IA handle; its low byte is the version of [`LibdatHook`].
pub const LIBDAT_HOOK_REQUEST: u64 = 0x6461_706c_5f72_7301;

/// Address range that contains the handles of a provider. It stays readable until the process ends.
///
/// Every handle of the provider is `base + k * stride`. The first word at an address of this form is null or the
/// address of a provider table. It may keep the address of the table after the object was freed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HandleArena {
    /// Start address.
    pub base: usize,
    /// Length in bytes.
    pub len: usize,
    /// Distance in bytes between two handles: a power of two, at least 8.
    pub stride: usize,
}

/// Functions of libdat that a provider gets when it requests the hook.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LibdatHook {
    /// Size of this record in bytes; later versions append fields.
    pub size: usize,
    /// Registers the address range of the calling library's handles, or extends it. Returns 0, or -1 if libdat's table
    /// is full, or if the arena is malformed or overlaps another one.
    ///
    /// libdat refuses a value outside all arenas without reading memory, unless a provider without the hook has been
    /// registered.
    pub add_arena: extern "C" fn(arena: HandleArena) -> i32,
    /// Returns the number by which programs name this IA of the provider; null if libdat has not assigned one.
    pub ia_number: extern "C" fn(provider_ia: *mut c_void) -> DAT_IA_HANDLE,
    /// For tools: the message about the last `dat_ia_openv` of the calling thread that libdat or the provider refused.
    /// Writes at most `capacity` bytes including the NUL, and returns the full length without the NUL. Returns 0 if no
    /// open was refused.
    pub last_refusal: unsafe extern "C" fn(out: *mut c_char, capacity: usize) -> usize,
    /// Passes a C string that explains why the provider refuses the `ia_open` that the calling thread is executing.
    /// libdat reports it as the cause of the refused open.
    pub provider_says: unsafe extern "C" fn(words: *const c_char),
    /// For tools: line `index` of a topic (`TELL_*`) about the registry, written like `last_refusal`; 0 after the last
    /// line. Fields are separated by tabs, and all bytes except printable ASCII are escaped as in C. Only lines of
    /// [`TELL_DISCOVERED`] have the form of dat.conf instead.
    pub describe: unsafe extern "C" fn(topic: u32, index: usize, out: *mut c_char, capacity: usize) -> usize,
    /// Library field of the dat.conf record whose `dat_provider_init` the calling thread is executing, written like
    /// `last_refusal`; 0 outside of an init. A library with several file names does not know otherwise by which of them
    /// it was loaded.
    pub record_library: unsafe extern "C" fn(out: *mut c_char, capacity: usize) -> usize,
}

/// Size of a [`LibdatHook`] in its first version, which is the minimum size of all versions.
pub const LIBDAT_HOOK_LEAST: usize = core::mem::offset_of!(LibdatHook, provider_says);

/// Accepted records: name, version, thread safety, library, parameters, file:line, the library's file (empty if there
/// is none).
pub const TELL_ENTRY: u32 = 0;
/// Lines that are not used (disabled, for kernel programs, or with an error): name, file:line, reason, remedy.
pub const TELL_ABSENT: u32 = 1;
/// Errors in lines, and remarks about lines: file:line, column, field, text found, permitted values, `dropped` if the
/// error drops the line, otherwise `kept`.
pub const TELL_DIAGNOSTIC: u32 = 2;
/// Files that cannot be read: one message for each file.
pub const TELL_UNREADABLE: u32 = 3;
/// The files that the records come from, as text.
pub const TELL_ORIGIN: u32 = 4;
/// The calling thread's last refusal: kind, name, file:line, cause, remedy.
pub const TELL_REFUSAL: u32 = 5;
/// Lines of dat.conf for the adapters of this machine, independent of the content of the files.
pub const TELL_DISCOVERED: u32 = 6;
/// Version of libdat.
pub const TELL_VERSION: u32 = 7;
/// The dat.conf in use, to which new lines should be added.
pub const TELL_TARGET: u32 = 8;
