//! The registry, adapters, their attributes, contexts, words for codes. Cases only; what several files need goes into the kit.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "registry-ia 4.1": ia_open_without_a_name_is_arg1,
        "registry-ia 6.1": ia_close_twice_is_invalid_handle,
    ]
}

fn ia_open_without_a_name_is_arg1(_ctx: &Ctx) {
    let mut errors = DAT_HANDLE_NULL;
    let code = untouched(|ia| dat_ia_openv(null_mut(), 8, &mut errors, ia, 1, 2, DAT_FALSE));
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    assert!(errors.is_null(), "the async EVD is written only on success");
}

fn ia_close_twice_is_invalid_handle(ctx: &Ctx) {
    let (name, mut errors) = (ctx.name(), DAT_HANDLE_NULL);
    let ia = filled(|ia| dat_ia_openv(name.as_ptr().cast_mut(), 8, &mut errors, ia, 1, 2, DAT_FALSE));
    ok(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    refused(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
}
