//! The exports of `libdat.so.1`: DAT 1.2. `cargo xtask build` links the library, with `dat/libdat.map`.

use std::ffi::c_char;

use dat_abi::*;

dat::own_calls!(&dat::api::V1);
dat::common_calls!();

// Calls whose arguments differ from those of 2.0; `common_calls` has the others.
dat::through_table! { "C", no_table or ia, DAT_INVALID_HANDLE_IA;
    dat_lmr_create => lmr_create_func(
        mem_type: DAT_MEM_TYPE, region_description: DAT_REGION_DESCRIPTION, length: DAT_VLEN,
        pz_handle: DAT_PZ_HANDLE, privileges: DAT_MEM_PRIV_FLAGS, lmr_handle: *mut DAT_LMR_HANDLE,
        lmr_context: *mut DAT_LMR_CONTEXT, rmr_context: *mut DAT_RMR_CONTEXT, registered_length: *mut DAT_VLEN,
        registered_address: *mut DAT_VADDR
    );
}
dat::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_CR;
    dat_cr_reject => cr_reject_func();
}
dat::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_RMR;
    dat_rmr_bind => rmr_bind_func(
        lmr_triplet: *const DAT_LMR_TRIPLET, mem_priv: DAT_MEM_PRIV_FLAGS, ep_handle: DAT_EP_HANDLE,
        user_cookie: DAT_RMR_COOKIE, completion_flags: DAT_COMPLETION_FLAGS, context: *mut DAT_RMR_CONTEXT
    );
}
