//! `dat_strerror`: the names of all types and subtypes, codes that do not exist, and null pointers.
#![forbid(unsafe_code)]

use std::ffi::c_char;
use std::ptr::{null, null_mut};

use crate::kit::*;
use crate::names::{SUBTYPES, TYPES};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/registry 9.2": strerror_names_every_type_of_dat_1_2,
        "spec/registry 9.2": strerror_names_every_subtype_of_dat_1_2,
        "spec/registry 9.2": strerror_names_success,
        "spec/registry 9.2": strerror_returns_the_name_of_dat_not_implemented,
        "spec/registry 9.2": strerror_ignores_the_class,
        "spec/registry 9.2": strerror_of_an_unknown_type_returns_invalid_arg1_and_sets_both_strings,
        "spec/registry 9.2": strerror_of_unknown_subtype_returns_invalid_arg1_and_sets_strings,
        "spec/registry 9.2": strerror_accepts_one_null_pointer,
        "spec/registry 9.2": strerror_without_pointers_returns_invalid_arg2,
        "spec/registry 9.2": strerror_returns_the_same_pointer_again,
        "spec/consumers 21": strerror_sets_both_strings_for_20000_codes,
    ]
}

/// Returns the code and both strings; neither string may be null.
fn words(code: DAT_RETURN) -> (DAT_RETURN, String, String) {
    let (mut major, mut minor): (*const c_char, *const c_char) = (null(), null());
    let answer = dat_strerror(code, &mut major, &mut minor);
    assert!(!major.is_null() && !minor.is_null(), "{code:#x} leaves a string unset");
    (answer, text_at(major), text_at(minor))
}

fn strerror_names_every_type_of_dat_1_2(_ctx: &Ctx) {
    for (code, name) in TYPES.iter().filter(|(code, _)| *code != DAT_NOT_IMPLEMENTED) {
        assert_eq!(words(DAT_CLASS_ERROR | code), (DAT_SUCCESS, (*name).to_owned(), String::new()));
    }
}

fn strerror_names_every_subtype_of_dat_1_2(_ctx: &Ctx) {
    for (code, name) in SUBTYPES {
        // A subtype is named even if it does not belong to the type.
        for kind in [DAT_INVALID_STATE, DAT_INVALID_PARAMETER] {
            assert_eq!(words(error(kind, *code)).2, *name);
        }
    }
    let known: Vec<u32> = SUBTYPES.iter().map(|(code, _)| *code).collect();
    assert!((1..=101).all(|code| known.contains(&code)), "the table of this case lacks a code");
}

fn strerror_names_success(_ctx: &Ctx) {
    assert_eq!(words(DAT_SUCCESS), (DAT_SUCCESS, "DAT_SUCCESS".to_owned(), String::new()));
}

fn strerror_returns_the_name_of_dat_not_implemented(_ctx: &Ctx) {
    for code in [0xffff_0000, 0x3fff_0000] {
        let (answer, major, minor) = words(code);
        assert_eq!((answer, major.as_str(), minor.as_str()), (DAT_SUCCESS, "DAT_NOT_IMPLEMENTED", ""));
    }
}

fn strerror_ignores_the_class(_ctx: &Ctx) {
    let code = DAT_INVALID_PARAMETER | DAT_INVALID_ARG3;
    let wanted = (DAT_SUCCESS, "DAT_INVALID_PARAMETER".to_owned(), "DAT_INVALID_ARG3".to_owned());
    for class in [0, DAT_CLASS_ERROR, DAT_CLASS_WARNING] {
        assert_eq!(words(class | code), wanted);
    }
}

fn strerror_of_an_unknown_type_returns_invalid_arg1_and_sets_both_strings(_ctx: &Ctx) {
    let first = if is_2_0() { 0x0018_0000 } else { 0x0015_0000 };
    for kind in [first, 0x0100_0000, 0x3ffe_0000] {
        let (answer, major, minor) = words(DAT_CLASS_ERROR | kind | DAT_INVALID_ARG3);
        refused(answer, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
        assert_eq!((major.as_str(), minor.as_str()), ("unknown error", "DAT_INVALID_ARG3"));
    }
}

fn strerror_of_unknown_subtype_returns_invalid_arg1_and_sets_strings(_ctx: &Ctx) {
    for subtype in [if is_2_0() { 104 } else { 102 }, 0x7ff0, 0xfff0] {
        let (answer, major, minor) = words(error(DAT_INVALID_STATE, subtype));
        refused(answer, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
        assert_eq!((major.as_str(), minor.as_str()), ("DAT_INVALID_STATE", "unknown minor error"));
    }
}

fn strerror_accepts_one_null_pointer(_ctx: &Ctx) {
    let code = error(DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    let mut text: *const c_char = null();
    ok(dat_strerror(code, &mut text, null_mut()));
    assert_eq!(text_at(text), "DAT_INVALID_PARAMETER");
    ok(dat_strerror(code, null_mut(), &mut text));
    assert_eq!(text_at(text), "DAT_INVALID_ARG3");
}

fn strerror_without_pointers_returns_invalid_arg2(_ctx: &Ctx) {
    for code in [DAT_SUCCESS, error(DAT_INVALID_PARAMETER, DAT_INVALID_ARG3), 0x1234_5678] {
        refused(dat_strerror(code, null_mut(), null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn strerror_returns_the_same_pointer_again(_ctx: &Ctx) {
    let (mut one, mut other, mut minor): (*const c_char, *const c_char, *const c_char) = (null(), null(), null());
    ok(dat_strerror(DAT_QUEUE_EMPTY, &mut one, &mut minor));
    ok(dat_strerror(DAT_QUEUE_EMPTY, &mut other, &mut minor));
    assert_eq!(one, other, "the second call returned another pointer");
}

fn strerror_sets_both_strings_for_20000_codes(_ctx: &Ctx) {
    let mut code: u32 = 1;
    for _ in 0..20_000 {
        let (_, major, _) = words(code);
        assert!(!major.is_empty());
        // The next pseudo-random number.
        code = code.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
    }
}
