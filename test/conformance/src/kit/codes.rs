//! Checks of return codes, and of the outputs of failed calls. A failed check reports the line of the case.
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "pointers go to the library under test as they are")]

use std::mem::{MaybeUninit, size_of};

use dat_abi::*;

use crate::{flight, names};

use super::raw;

/// A complete return code: error class, type, subtype.
pub(crate) const fn error(kind: DAT_RETURN_TYPE, subtype: DAT_RETURN_SUBTYPE) -> DAT_RETURN {
    DAT_CLASS_ERROR | kind | subtype
}

/// Checks that the call succeeded.
#[track_caller]
pub(crate) fn ok(code: DAT_RETURN) {
    expect(code, DAT_SUCCESS);
}

/// Checks for exactly this code. `DAT_QUEUE_EMPTY` has no error class bit, `DAT_NOT_IMPLEMENTED` includes it; for
/// errors use [`refused`].
#[track_caller]
pub(crate) fn expect(code: DAT_RETURN, wanted: DAT_RETURN) {
    assert!(code == wanted, "{} {}, wanted {}", caller(code), names::of_code(code), names::of_code(wanted));
}

/// Checks that the call failed with this type and subtype, and with the error class bit.
#[track_caller]
pub(crate) fn refused(code: DAT_RETURN, kind: DAT_RETURN_TYPE, subtype: DAT_RETURN_SUBTYPE) {
    expect(code, error(kind, subtype));
}

/// Checks that the call failed because of this parameter, counted from 1.
#[track_caller]
pub(crate) fn bad_arg(code: DAT_RETURN, n: u32) {
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1 + n - 1);
}

/// Checks that the call failed because of an invalid handle of this kind.
#[track_caller]
pub(crate) fn bad_handle(code: DAT_RETURN, kind: DAT_RETURN_SUBTYPE) {
    refused(code, DAT_INVALID_HANDLE, kind);
}

/// Checks for one of these complete codes, where the specification permits several.
#[track_caller]
pub(crate) fn one_of(code: DAT_RETURN, wanted: &[DAT_RETURN]) {
    let words: Vec<String> = wanted.iter().map(|code| names::of_code(*code)).collect();
    assert!(wanted.contains(&code), "{} {}, wanted one of {words:?}", caller(code), names::of_code(code));
}

/// Returns type and class of a code without its subtype.
pub(crate) fn kind_of(code: DAT_RETURN) -> DAT_RETURN {
    code & !DAT_SUBTYPE_MASK
}

pub(crate) fn subtype_of(code: DAT_RETURN) -> DAT_RETURN_SUBTYPE {
    code & DAT_SUBTYPE_MASK
}

/// Makes a call whose output is filled with a pattern. If the call fails, every byte of the output must be unchanged.
#[track_caller]
pub(crate) fn untouched<T: Copy>(call: impl FnOnce(*mut T) -> DAT_RETURN) -> DAT_RETURN {
    const PATTERN: u8 = 0xa5;
    let mut out = MaybeUninit::<T>::uninit();
    raw::fill(&mut out, PATTERN);
    let code = call(out.as_mut_ptr());
    if code != DAT_SUCCESS {
        let bytes = raw::bytes_of(&out);
        let changed = bytes.iter().position(|byte| *byte != PATTERN);
        if let Some(at) = changed {
            let length = size_of::<T>();
            panic!("{} {}, but wrote byte {at} of its {length} output bytes", caller(code), names::of_code(code));
        }
    }
    code
}

/// Makes a call whose output is zeroed, which is valid for any C record. The call must succeed. Returns the output.
#[track_caller]
pub(crate) fn filled<T: CRecord>(call: impl FnOnce(*mut T) -> DAT_RETURN) -> T {
    let mut out = raw::zeroed::<T>();
    ok(call(&mut out));
    out
}

pub(crate) use raw::{CRecord, zeroed};

/// Names the function that probably returned this code: this thread's last call, if its code is the same.
fn caller(code: DAT_RETURN) -> String {
    match flight::last_call() {
        Some((function, last)) if last == code => format!("{function} answered"),
        _ => "got".to_owned(),
    }
}
