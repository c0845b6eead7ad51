//! The provider table of DAT 1.2: its entries in the order of the ABI.
//!
//! `registration` creates one table per IA name. libdat calls the entries through the table, and so do programs that use
//! the macros of `dat_redirection.h`.
#![forbid(unsafe_code)]

use std::ffi::c_char;

use dat_abi::DAT_PROVIDER;

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

/// Creates the table of a provider.
pub fn table<P: Provider>(device_name: *const c_char) -> DAT_PROVIDER {
    DAT_PROVIDER {
        device_name,
        extension: std::ptr::null_mut(),
        ia_open_func: Some(dapl_ia::dapl_ia_open::<P>),
        ia_query_func: Some(dapl_ia::dapl_ia_query::<P>),
        ia_close_func: Some(dapl_ia::dapl_ia_close::<P>),
        set_consumer_context_func: Some(context::dapl_set_consumer_context),
        get_consumer_context_func: Some(context::dapl_get_consumer_context),
        get_handle_type_func: Some(context::dapl_get_handle_type),
        cno_create_func: Some(dapl_cno::dapl_cno_create::<P>),
        cno_modify_agent_func: Some(dapl_cno::dapl_cno_modify_agent::<P>),
        cno_query_func: Some(dapl_cno::dapl_cno_query::<P>),
        cno_free_func: Some(dapl_cno::dapl_cno_free::<P>),
        cno_wait_func: Some(cno::dapl_cno_wait::<P>),
        cr_query_func: Some(dapl_cr::dapl_cr_query::<P>),
        cr_accept_func: Some(dapl_cr::dapl_cr_accept::<P>),
        cr_reject_func: Some(dapl_cr::dapl_cr_reject::<P>),
        cr_handoff_func: Some(dapl_cr::dapl_cr_handoff::<P>),
        evd_create_func: Some(dapl_evd::dapl_evd_create::<P>),
        evd_query_func: Some(dapl_evd::dapl_evd_query::<P>),
        evd_modify_cno_func: Some(dapl_evd::dapl_evd_modify_cno::<P>),
        evd_enable_func: Some(dapl_evd::dapl_evd_enable::<P>),
        evd_disable_func: Some(dapl_evd::dapl_evd_disable::<P>),
        evd_wait_func: Some(evd::dapl_evd_wait::<P>),
        evd_resize_func: Some(dapl_evd::dapl_evd_resize::<P>),
        evd_post_se_func: Some(dapl_evd::dapl_evd_post_se::<P>),
        evd_dequeue_func: Some(dapl_evd::dapl_evd_dequeue::<P>),
        evd_free_func: Some(dapl_evd::dapl_evd_free::<P>),
        ep_create_func: Some(dapl_ep::dapl_ep_create::<P>),
        ep_query_func: Some(dapl_ep::dapl_ep_query::<P>),
        ep_modify_func: Some(dapl_ep::dapl_ep_modify::<P>),
        ep_connect_func: Some(dapl_ep::dapl_ep_connect::<P>),
        ep_dup_connect_func: Some(dapl_ep::dapl_ep_dup_connect::<P>),
        ep_disconnect_func: Some(dapl_ep::dapl_ep_disconnect::<P>),
        ep_post_send_func: Some(dapl_ep::dapl_ep_post_send::<P>),
        ep_post_recv_func: Some(dapl_ep::dapl_ep_post_recv::<P>),
        ep_post_rdma_read_func: Some(dapl_ep::dapl_ep_post_rdma_read::<P>),
        ep_post_rdma_write_func: Some(dapl_ep::dapl_ep_post_rdma_write::<P>),
        ep_get_status_func: Some(dapl_ep::dapl_ep_get_status::<P>),
        ep_free_func: Some(dapl_ep::dapl_ep_free::<P>),
        lmr_create_func: Some(dapl_lmr::dapl_lmr_create::<P>),
        lmr_query_func: Some(dapl_lmr::dapl_lmr_query::<P>),
        lmr_free_func: Some(dapl_lmr::dapl_lmr_free::<P>),
        rmr_create_func: Some(dapl_rmr::dapl_rmr_create::<P>),
        rmr_query_func: Some(dapl_rmr::dapl_rmr_query::<P>),
        rmr_bind_func: Some(dapl_rmr::dapl_rmr_bind::<P>),
        rmr_free_func: Some(dapl_rmr::dapl_rmr_free::<P>),
        psp_create_func: Some(dapl_psp::dapl_psp_create::<P>),
        psp_query_func: Some(dapl_psp::dapl_psp_query::<P>),
        psp_free_func: Some(dapl_psp::dapl_psp_free::<P>),
        rsp_create_func: Some(dapl_rsp::dapl_rsp_create::<P>),
        rsp_query_func: Some(dapl_rsp::dapl_rsp_query::<P>),
        rsp_free_func: Some(dapl_rsp::dapl_rsp_free::<P>),
        pz_create_func: Some(dapl_pz::dapl_pz_create::<P>),
        pz_query_func: Some(dapl_pz::dapl_pz_query::<P>),
        pz_free_func: Some(dapl_pz::dapl_pz_free::<P>),
        psp_create_any_func: Some(dapl_psp::dapl_psp_create_any::<P>),
        ep_reset_func: Some(dapl_ep::dapl_ep_reset::<P>),
        evd_set_unwaitable_func: Some(dapl_evd::dapl_evd_set_unwaitable::<P>),
        evd_clear_unwaitable_func: Some(dapl_evd::dapl_evd_clear_unwaitable::<P>),
        lmr_sync_rdma_read_func: Some(dapl_lmr::dapl_lmr_sync_rdma::<P>),
        lmr_sync_rdma_write_func: Some(dapl_lmr::dapl_lmr_sync_rdma::<P>),
        ep_create_with_srq_func: Some(dapl_ep::dapl_ep_create_with_srq::<P>),
        ep_recv_query_func: Some(dapl_ep::dapl_ep_recv_query::<P>),
        ep_set_watermark_func: Some(dapl_ep::dapl_ep_set_watermark::<P>),
        srq_create_func: Some(dapl_srq::dapl_srq_create::<P>),
        srq_free_func: Some(dapl_srq::dapl_srq_free::<P>),
        srq_post_recv_func: Some(dapl_srq::dapl_srq_post_recv::<P>),
        srq_query_func: Some(dapl_srq::dapl_srq_query::<P>),
        srq_resize_func: Some(dapl_srq::dapl_srq_resize::<P>),
        srq_set_lw_func: Some(dapl_srq::dapl_srq_set_lw::<P>),
    }
}
