//! The C boundary: handle lookup, and the macros that define the exported `dat_*` functions. Only this module reads the
//! first word of a handle.
//!
//! The packages `dat/v1` and `dat/v2` invoke the macros, so that each library defines the functions of its own version.
//! The macros of `pass` define functions that call the provider behind a handle; those of `own` define functions that
//! libdat implements itself. A value outside all arenas is refused without reading memory, so invalid handles do not
//! crash the program, unless a provider without the hook has been registered. The lookup takes no lock, except for the
//! provider's pointer of an IA.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

use dat_abi::*;

use crate::api::{self, Api};
use crate::arena::ARENAS;
use crate::loader::host::CancellationDisabled;
use crate::registry::error;
use crate::{fork, handles};

/// Types of provider tables: one for each version of the ABI.
///
/// # Safety
/// The type has the layout of `struct dat_provider` in that version.
pub unsafe trait Table: 'static {}

/// The members with which the table of every version begins.
pub type CommonTable = DAT_PROVIDER;

// SAFETY: the type is the provider table of 1.2.
unsafe impl Table for DAT_PROVIDER {}
// SAFETY: the type is the provider table of 2.0.
unsafe impl Table for v2::DAT_PROVIDER {}

pub mod own;
mod pass;

/// The handle as known to the provider, and the provider's table. `None` if the value is not a handle.
type ProviderTable<T> = Option<(DAT_HANDLE, &'static T)>;

/// Resolves the handle of an object that is not an IA. Only memory in this project's arenas is read, unless a provider
/// without the hook has been registered.
#[inline(always)]
pub fn object<T: Table>(handle: DAT_HANDLE) -> ProviderTable<T> {
    if ARENAS.may_be_handle(handle as usize) { table(handle) } else { None }
}

/// Returns the table of a handle in the first arena. `None` for other values and for handles without a table.
#[inline(always)]
pub fn in_first_arena<T: Table>(handle: DAT_HANDLE) -> Option<&'static T> {
    if !ARENAS.is_in_first(handle as usize) {
        return None;
    }
    // SAFETY: the address lies in an arena, which stays mapped.
    let word = unsafe { &*handle.cast::<AtomicPtr<T>>() };
    // SAFETY: the word is null or points to the table of a provider of this project; the ABI requires that a table
    // outlives its handles. The Acquire pairs with the provider's store, as in `table`.
    unsafe { word.load(Ordering::Acquire).as_ref() }
}

/// Finds no table. Calls whose handle may be an IA number use it instead of [`in_first_arena`], so that [`ia`] or
/// [`any`] resolves the handle.
#[inline(always)]
pub fn no_table<T: Table>(_: DAT_HANDLE) -> Option<&'static T> {
    None
}

/// Resolves an IA by its number or by the provider's pointer.
#[inline(always)]
pub fn ia<T: Table>(handle: DAT_HANDLE) -> ProviderTable<T> {
    table(handles::translate(handle)?)
}

/// Resolves a handle of any kind: a small integer is an IA number.
#[inline(always)]
pub fn any<T: Table>(handle: DAT_HANDLE) -> ProviderTable<T> {
    if handle as usize <= usize::from(u16::MAX) { ia(handle) } else { object(handle) }
}

/// Returns the table of a handle whose first word may be read: it is an open IA, or `may_be_handle` has accepted it.
#[inline(always)]
fn table<T: Table>(handle: DAT_HANDLE) -> ProviderTable<T> {
    // SAFETY: the address lies in an arena, which stays mapped, or is an open IA that its provider returned. Otherwise
    // a provider without the hook is registered. Its handles cannot be distinguished from other aligned addresses;
    // every libdat has this limitation.
    let word = unsafe { &*handle.cast::<AtomicPtr<T>>() };
    // Pairs with the provider's store when the object was created: its table is written before its first word.
    let table = word.load(Ordering::Acquire);
    if table.is_null() || !(table as usize).is_multiple_of(align_of::<T>()) {
        return None;
    }
    // SAFETY: the object of a valid handle begins with a pointer to its provider's table. The ABI requires that the
    // table outlives the handle.
    Some((handle, unsafe { &*table }))
}

/// Return code for a value that is not a handle.
#[cold]
fn not_a_handle(subtype: DAT_RETURN_SUBTYPE) -> DAT_RETURN {
    error(DAT_INVALID_HANDLE, subtype)
}

/// Runs a call that libdat implements itself: catches panics, defers cancellation, and prepares for fork.
fn guard(api: &'static Api, body: impl FnOnce() -> Result<(), DAT_RETURN>) -> DAT_RETURN {
    api::enter(api);
    let _uncancelled = CancellationDisabled::new();
    fork::prepare();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => DAT_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => error(DAT_INTERNAL_ERROR, DAT_NO_SUBTYPE),
    }
}

/// Return code for an invalid parameter number `n`, counted from 1.
fn bad_parameter(n: u32) -> DAT_RETURN {
    error(DAT_INVALID_PARAMETER, DAT_INVALID_ARG1 + n - 1)
}

const _: () = assert!(size_of::<AtomicPtr<DAT_PROVIDER>>() == size_of::<*mut c_void>());
