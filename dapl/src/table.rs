//! The provider tables of both versions: their entries in the order of the ABI of DAT 1.2, then those that only DAT 2.0
//! has.
//!
//! `registration` creates one table per IA name. libdat calls the entries through the table, and so do programs that
//! use the macros of `dat_redirection.h`.
#![forbid(unsafe_code)]

use std::ffi::c_char;

use dat_abi::DAT_PROVIDER;
use dat_abi::v2::DAT_PROVIDER as DAT_PROVIDER_V2;

use crate::cno::{self, dapl_cno};
use crate::context;
use crate::cr::dapl_cr;
use crate::ep::dapl_ep;
use crate::evd::{self, dapl_evd};
use crate::ia::dapl_ia;
use crate::lmr::dapl_lmr;
use crate::provider::Provider;
use crate::psp::dapl_psp;
use crate::pz::dapl_pz;
use crate::rmr::dapl_rmr;
use crate::rsp::dapl_rsp;
use crate::srq::dapl_srq;
use crate::v2::{
    dapl_cno as cno_2, dapl_cr as cr_2, dapl_csp as csp_2, dapl_ep as ep_2, dapl_evd as evd_2,
    dapl_extension as extension_2, dapl_ia as ia_2, dapl_lmr as lmr_2, dapl_post as post_2, dapl_rmr as rmr_2,
    dapl_same as same_2, dapl_srq as srq_2,
};

/// Defines the function of each version that creates the table of a provider. A line names a slot, its entry of 1.2,
/// and its entry of 2.0.
macro_rules! tables {
    (both { $($slot:ident: $v1:expr, $v2:expr;)* } only_2_0 { $($new:ident: $entry:expr;)* }) => {
        /// Creates the table of a provider for DAT 1.2.
        pub fn table<P: Provider>(device_name: *const c_char) -> DAT_PROVIDER {
            DAT_PROVIDER { device_name, extension: std::ptr::null_mut(), $($slot: Some($v1),)* }
        }

        /// Creates the table of a provider for DAT 2.0.
        pub fn table_v2<P: Provider>(device_name: *const c_char) -> DAT_PROVIDER_V2 {
            DAT_PROVIDER_V2 {
                device_name,
                extension: std::ptr::null_mut(),
                $($slot: Some($v2),)*
                $($new: Some($entry),)*
            }
        }
    };
}

tables! {
    both {
        ia_open_func: dapl_ia::dapl_ia_open::<P>, ia_2::dapl2_ia_open::<P>;
        ia_query_func: dapl_ia::dapl_ia_query::<P>, ia_2::dapl2_ia_query::<P>;
        ia_close_func: dapl_ia::dapl_ia_close::<P>, same_2::dapl2_ia_close::<P>;
        set_consumer_context_func: context::dapl_set_consumer_context, same_2::dapl2_set_consumer_context;
        get_consumer_context_func: context::dapl_get_consumer_context, same_2::dapl2_get_consumer_context;
        get_handle_type_func: context::dapl_get_handle_type, same_2::dapl2_get_handle_type;
        cno_create_func: dapl_cno::dapl_cno_create::<P>, same_2::dapl2_cno_create::<P>;
        cno_modify_agent_func: dapl_cno::dapl_cno_modify_agent::<P>, same_2::dapl2_cno_modify_agent::<P>;
        cno_query_func: dapl_cno::dapl_cno_query::<P>, cno_2::dapl2_cno_query::<P>;
        cno_free_func: dapl_cno::dapl_cno_free::<P>, same_2::dapl2_cno_free::<P>;
        cno_wait_func: cno::dapl_cno_wait::<P>, same_2::dapl2_cno_wait::<P>;
        cr_query_func: dapl_cr::dapl_cr_query::<P>, same_2::dapl2_cr_query::<P>;
        cr_accept_func: dapl_cr::dapl_cr_accept::<P>, same_2::dapl2_cr_accept::<P>;
        cr_reject_func: dapl_cr::dapl_cr_reject::<P>, cr_2::dapl2_cr_reject::<P>;
        cr_handoff_func: dapl_cr::dapl_cr_handoff::<P>, same_2::dapl2_cr_handoff::<P>;
        evd_create_func: dapl_evd::dapl_evd_create::<P>, evd_2::dapl2_evd_create::<P>;
        evd_query_func: dapl_evd::dapl_evd_query::<P>, same_2::dapl2_evd_query::<P>;
        evd_modify_cno_func: dapl_evd::dapl_evd_modify_cno::<P>, same_2::dapl2_evd_modify_cno::<P>;
        evd_enable_func: dapl_evd::dapl_evd_enable::<P>, same_2::dapl2_evd_enable::<P>;
        evd_disable_func: dapl_evd::dapl_evd_disable::<P>, same_2::dapl2_evd_disable::<P>;
        evd_wait_func: evd::dapl_evd_wait::<P>, evd_2::dapl2_evd_wait::<P>;
        evd_resize_func: dapl_evd::dapl_evd_resize::<P>, same_2::dapl2_evd_resize::<P>;
        evd_post_se_func: dapl_evd::dapl_evd_post_se::<P>, evd_2::dapl2_evd_post_se::<P>;
        evd_dequeue_func: dapl_evd::dapl_evd_dequeue::<P>, evd_2::dapl2_evd_dequeue::<P>;
        evd_free_func: dapl_evd::dapl_evd_free::<P>, same_2::dapl2_evd_free::<P>;
        ep_create_func: dapl_ep::dapl_ep_create::<P>, ep_2::dapl2_ep_create::<P>;
        ep_query_func: dapl_ep::dapl_ep_query::<P>, ep_2::dapl2_ep_query::<P>;
        ep_modify_func: dapl_ep::dapl_ep_modify::<P>, ep_2::dapl2_ep_modify::<P>;
        ep_connect_func: dapl_ep::dapl_ep_connect::<P>, ep_2::dapl2_ep_connect::<P>;
        ep_dup_connect_func: dapl_ep::dapl_ep_dup_connect::<P>, same_2::dapl2_ep_dup_connect::<P>;
        ep_disconnect_func: dapl_ep::dapl_ep_disconnect::<P>, same_2::dapl2_ep_disconnect::<P>;
        ep_post_send_func: dapl_ep::dapl_ep_post_send::<P>, post_2::dapl2_ep_post_send::<P>;
        ep_post_recv_func: dapl_ep::dapl_ep_post_recv::<P>, post_2::dapl2_ep_post_recv::<P>;
        ep_post_rdma_read_func: dapl_ep::dapl_ep_post_rdma_read::<P>, post_2::dapl2_ep_post_rdma_read::<P>;
        ep_post_rdma_write_func: dapl_ep::dapl_ep_post_rdma_write::<P>, post_2::dapl2_ep_post_rdma_write::<P>;
        ep_get_status_func: dapl_ep::dapl_ep_get_status::<P>, same_2::dapl2_ep_get_status::<P>;
        ep_free_func: dapl_ep::dapl_ep_free::<P>, ep_2::dapl2_ep_free::<P>;
        lmr_create_func: dapl_lmr::dapl_lmr_create::<P>, lmr_2::dapl2_lmr_create::<P>;
        lmr_query_func: dapl_lmr::dapl_lmr_query::<P>, lmr_2::dapl2_lmr_query::<P>;
        lmr_free_func: dapl_lmr::dapl_lmr_free::<P>, same_2::dapl2_lmr_free::<P>;
        rmr_create_func: dapl_rmr::dapl_rmr_create::<P>, same_2::dapl2_rmr_create::<P>;
        rmr_query_func: dapl_rmr::dapl_rmr_query::<P>, rmr_2::dapl2_rmr_query::<P>;
        rmr_bind_func: dapl_rmr::dapl_rmr_bind::<P>, rmr_2::dapl2_rmr_bind::<P>;
        rmr_free_func: dapl_rmr::dapl_rmr_free::<P>, same_2::dapl2_rmr_free::<P>;
        psp_create_func: dapl_psp::dapl_psp_create::<P>, same_2::dapl2_psp_create::<P>;
        psp_query_func: dapl_psp::dapl_psp_query::<P>, same_2::dapl2_psp_query::<P>;
        psp_free_func: dapl_psp::dapl_psp_free::<P>, same_2::dapl2_psp_free::<P>;
        rsp_create_func: dapl_rsp::dapl_rsp_create::<P>, same_2::dapl2_rsp_create::<P>;
        rsp_query_func: dapl_rsp::dapl_rsp_query::<P>, same_2::dapl2_rsp_query::<P>;
        rsp_free_func: dapl_rsp::dapl_rsp_free::<P>, same_2::dapl2_rsp_free::<P>;
        pz_create_func: dapl_pz::dapl_pz_create::<P>, same_2::dapl2_pz_create::<P>;
        pz_query_func: dapl_pz::dapl_pz_query::<P>, same_2::dapl2_pz_query::<P>;
        pz_free_func: dapl_pz::dapl_pz_free::<P>, same_2::dapl2_pz_free::<P>;
        psp_create_any_func: dapl_psp::dapl_psp_create_any::<P>, same_2::dapl2_psp_create_any::<P>;
        ep_reset_func: dapl_ep::dapl_ep_reset::<P>, same_2::dapl2_ep_reset::<P>;
        evd_set_unwaitable_func: dapl_evd::dapl_evd_set_unwaitable::<P>, same_2::dapl2_evd_set_unwaitable::<P>;
        evd_clear_unwaitable_func: dapl_evd::dapl_evd_clear_unwaitable::<P>, same_2::dapl2_evd_clear_unwaitable::<P>;
        lmr_sync_rdma_read_func: dapl_lmr::dapl_lmr_sync_rdma::<P>, lmr_2::dapl2_lmr_sync_rdma::<P>;
        lmr_sync_rdma_write_func: dapl_lmr::dapl_lmr_sync_rdma::<P>, lmr_2::dapl2_lmr_sync_rdma::<P>;
        ep_create_with_srq_func: dapl_ep::dapl_ep_create_with_srq::<P>, ep_2::dapl2_ep_create_with_srq::<P>;
        ep_recv_query_func: dapl_ep::dapl_ep_recv_query::<P>, same_2::dapl2_ep_recv_query::<P>;
        ep_set_watermark_func: dapl_ep::dapl_ep_set_watermark::<P>, same_2::dapl2_ep_set_watermark::<P>;
        srq_create_func: dapl_srq::dapl_srq_create::<P>, same_2::dapl2_srq_create::<P>;
        srq_free_func: dapl_srq::dapl_srq_free::<P>, same_2::dapl2_srq_free::<P>;
        srq_post_recv_func: dapl_srq::dapl_srq_post_recv::<P>, srq_2::dapl2_srq_post_recv::<P>;
        srq_query_func: dapl_srq::dapl_srq_query::<P>, srq_2::dapl2_srq_query::<P>;
        srq_resize_func: dapl_srq::dapl_srq_resize::<P>, same_2::dapl2_srq_resize::<P>;
        srq_set_lw_func: dapl_srq::dapl_srq_set_lw::<P>, same_2::dapl2_srq_set_lw::<P>;
    }
    only_2_0 {
        csp_create_func: csp_2::dapl2_csp_create::<P>;
        csp_query_func: csp_2::dapl2_csp_query::<P>;
        csp_free_func: csp_2::dapl2_csp_free::<P>;
        ep_common_connect_func: ep_2::dapl2_ep_common_connect::<P>;
        rmr_create_for_ep_func: rmr_2::dapl2_rmr_create_for_ep::<P>;
        ep_post_send_with_invalidate_func: post_2::dapl2_ep_post_send_with_invalidate::<P>;
        ep_post_rdma_read_to_rmr_func: post_2::dapl2_ep_post_rdma_read_to_rmr::<P>;
        cno_fd_create_func: cno_2::dapl2_cno_fd_create::<P>;
        cno_trigger_func: cno_2::dapl2_cno_trigger::<P>;
        ia_ha_related_func: ia_2::dapl2_ia_ha_related::<P>;
        handle_extendedop_func: extension_2::dapl2_handle_extendedop::<P>;
    }
}
