//! The exports of `libdat2.so.2`: DAT 2.0. `cargo xtask build` links the library, with `dat/libdat2.map` and with
//! `extension.c`: Rust cannot define a function with variable arguments.

use std::ffi::c_char;

use dat_abi::v2::*;

dat::own_calls!(&dat::api::V2);
dat::common_calls!();

// Calls whose arguments differ from those of 1.2; `common_calls` has the others.
dat::through_table! { "C", no_table or ia, DAT_INVALID_HANDLE_IA;
    dat_lmr_create => lmr_create_func(
        mem_type: DAT_MEM_TYPE, region_description: DAT_REGION_DESCRIPTION, length: DAT_VLEN,
        pz_handle: DAT_PZ_HANDLE, privileges: DAT_MEM_PRIV_FLAGS, va_type: DAT_VA_TYPE, lmr_handle: *mut DAT_LMR_HANDLE,
        lmr_context: *mut DAT_LMR_CONTEXT, rmr_context: *mut DAT_RMR_CONTEXT, registered_length: *mut DAT_VLEN,
        registered_address: *mut DAT_VADDR
    );
}
dat::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_CR;
    dat_cr_reject => cr_reject_func(private_data_size: DAT_COUNT, private_data: DAT_PVOID);
}
dat::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_RMR;
    dat_rmr_bind => rmr_bind_func(
        lmr_handle: DAT_LMR_HANDLE, lmr_triplet: *const DAT_LMR_TRIPLET, mem_priv: DAT_MEM_PRIV_FLAGS,
        va_type: DAT_VA_TYPE, ep_handle: DAT_EP_HANDLE,
        user_cookie: DAT_RMR_COOKIE, completion_flags: DAT_COMPLETION_FLAGS, context: *mut DAT_RMR_CONTEXT
    );
}
// `dat_extension_op` in `extension.c` calls this with its variable arguments. Not exported.
dat::through_table! { "C", no_table or any, DAT_INVALID_HANDLE1;
    dat2_extension_op => handle_extendedop_func(extended_op: DAT_EXTENDED_OP, argument_list: va_list);
}
