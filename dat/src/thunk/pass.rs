//! Calls that libdat passes to the provider behind a handle: find the table, load the member, jump.
//!
//! Only the handle is checked. In calls on an object of a certain kind other than an IA, the exported function itself
//! finds the table of a handle in the first arena. All other handles are resolved in a separate function. If a
//! provider's table has a null member for a call, the call returns `DAT_NOT_IMPLEMENTED`.
//!
//! The functions differ only in name, table member and arguments, so they are listed as *name => member(arguments after
//! the handle)*. They are grouped by the function that resolves the handle, and by the subtype that is returned for an
//! invalid handle. The crate that invokes the macro imports the types and constants of `dat_abi` or of `dat_abi::v2`,
//! which the macro then uses.

/// Exports calls that go through the provider table.
#[macro_export]
macro_rules! through_table {
    ($abi:literal, $first:ident or $find:ident, $subtype:ident; $($name:ident => $slot:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: the provider's `", stringify!($slot), "`.")]
        /// # Safety
        /// `handle` may have any value. The other arguments satisfy the provider's contract.
        #[unsafe(no_mangle)]
        pub unsafe extern $abi fn $name(handle: DAT_HANDLE, $($arg: $type),*) -> DAT_RETURN {
            // A handle outside the first arena is resolved in a separate function, so that the exported function needs
            // no stack frame and leaves the arguments in their registers.
            #[cold]
            unsafe extern $abi fn resolve(handle: DAT_HANDLE, $($arg: $type),*) -> DAT_RETURN {
                let Some((object, table)) = $crate::thunk::$find::<DAT_PROVIDER>(handle) else {
                    return DAT_CLASS_ERROR | DAT_INVALID_HANDLE | $subtype;
                };
                let Some(call) = table.$slot else { return DAT_NOT_IMPLEMENTED };
                // SAFETY: the member has this call's type, and the caller guarantees the arguments.
                unsafe { call(object, $($arg),*) }
            }
            match $crate::thunk::$first::<DAT_PROVIDER>(handle).and_then(|table| table.$slot) {
                // SAFETY: the member has this call's type, and the caller guarantees the arguments.
                Some(call) => unsafe { call(handle, $($arg),*) },
                // SAFETY: `resolve` has the same contract as this function.
                None => unsafe { resolve(handle, $($arg),*) },
            }
        }
    )*};
}

/// Exports the calls whose table member is the same in both versions.
#[macro_export]
macro_rules! common_calls {
    () => {
        // Calls on an interface adapter. The IA number is replaced by the provider's pointer.
        $crate::through_table! { "C", no_table or ia, DAT_INVALID_HANDLE_IA;
            dat_ia_query => ia_query_func(
                async_evd_handle: *mut DAT_EVD_HANDLE, ia_attr_mask: DAT_IA_ATTR_MASK, ia_attr: *mut DAT_IA_ATTR,
                provider_attr_mask: DAT_PROVIDER_ATTR_MASK, provider_attr: *mut DAT_PROVIDER_ATTR
            );
            dat_ep_create => ep_create_func(
                pz_handle: DAT_PZ_HANDLE, recv_completion_evd_handle: DAT_EVD_HANDLE,
                request_completion_evd_handle: DAT_EVD_HANDLE, connect_evd_handle: DAT_EVD_HANDLE,
                ep_attributes: *const DAT_EP_ATTR, ep_handle: *mut DAT_EP_HANDLE
            );
            dat_ep_create_with_srq => ep_create_with_srq_func(
                pz_handle: DAT_PZ_HANDLE, recv_completion_evd_handle: DAT_EVD_HANDLE,
                request_completion_evd_handle: DAT_EVD_HANDLE, connect_evd_handle: DAT_EVD_HANDLE, srq_handle: DAT_SRQ_HANDLE,
                ep_attributes: *const DAT_EP_ATTR, ep_handle: *mut DAT_EP_HANDLE
            );
            dat_lmr_sync_rdma_read => lmr_sync_rdma_read_func(local_segments: *const DAT_LMR_TRIPLET, num_segments: DAT_VLEN);
            dat_lmr_sync_rdma_write => lmr_sync_rdma_write_func(
                local_segments: *const DAT_LMR_TRIPLET, num_segments: DAT_VLEN
            );
            dat_psp_create => psp_create_func(
                conn_qual: DAT_CONN_QUAL, evd_handle: DAT_EVD_HANDLE, psp_flags: DAT_PSP_FLAGS,
                psp_handle: *mut DAT_PSP_HANDLE
            );
            dat_psp_create_any => psp_create_any_func(
                conn_qual: *mut DAT_CONN_QUAL, evd_handle: DAT_EVD_HANDLE, psp_flags: DAT_PSP_FLAGS,
                psp_handle: *mut DAT_PSP_HANDLE
            );
            dat_rsp_create => rsp_create_func(
                conn_qual: DAT_CONN_QUAL, ep_handle: DAT_EP_HANDLE, evd_handle: DAT_EVD_HANDLE,
                rsp_handle: *mut DAT_RSP_HANDLE
            );
            dat_pz_create => pz_create_func(pz_handle: *mut DAT_PZ_HANDLE);
            dat_srq_create => srq_create_func(
                pz_handle: DAT_PZ_HANDLE, srq_attributes: *mut DAT_SRQ_ATTR, srq_handle: *mut DAT_SRQ_HANDLE
            );
            dat_evd_create => evd_create_func(
                evd_min_qlen: DAT_COUNT, cno_handle: DAT_CNO_HANDLE, evd_flags: DAT_EVD_FLAGS,
                evd_handle: *mut DAT_EVD_HANDLE
            );
            dat_cno_create => cno_create_func(agent: DAT_OS_WAIT_PROXY_AGENT, cno_handle: *mut DAT_CNO_HANDLE);
        }

        // Calls on a handle of any kind.
        $crate::through_table! { "C", no_table or any, DAT_INVALID_HANDLE1;
            dat_set_consumer_context => set_consumer_context_func(context: DAT_CONTEXT);
            dat_get_consumer_context => get_consumer_context_func(context: *mut DAT_CONTEXT);
            dat_get_handle_type => get_handle_type_func(dat_handle_type: *mut DAT_HANDLE_TYPE);
        }

        // Calls on an endpoint.
        $crate::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_EP;
            dat_ep_query => ep_query_func(ep_param_mask: DAT_EP_PARAM_MASK, ep_param: *mut DAT_EP_PARAM);
            dat_ep_modify => ep_modify_func(ep_param_mask: DAT_EP_PARAM_MASK, ep_param: *const DAT_EP_PARAM);
            dat_ep_connect => ep_connect_func(
                remote_ia_address: DAT_IA_ADDRESS_PTR, remote_conn_qual: DAT_CONN_QUAL, timeout: DAT_TIMEOUT,
                private_data_size: DAT_COUNT, private_data: DAT_PVOID, quality_of_service: DAT_QOS,
                connect_flags: DAT_CONNECT_FLAGS
            );
            dat_ep_dup_connect => ep_dup_connect_func(
                ep_dup_handle: DAT_EP_HANDLE, timeout: DAT_TIMEOUT, private_data_size: DAT_COUNT, private_data: DAT_PVOID,
                quality_of_service: DAT_QOS
            );
            dat_ep_disconnect => ep_disconnect_func(close_flags: DAT_CLOSE_FLAGS);
            dat_ep_post_send => ep_post_send_func(
                num_segments: DAT_COUNT, local_iov: *mut DAT_LMR_TRIPLET, user_cookie: DAT_DTO_COOKIE,
                completion_flags: DAT_COMPLETION_FLAGS
            );
            dat_ep_post_recv => ep_post_recv_func(
                num_segments: DAT_COUNT, local_iov: *mut DAT_LMR_TRIPLET, user_cookie: DAT_DTO_COOKIE,
                completion_flags: DAT_COMPLETION_FLAGS
            );
            dat_ep_post_rdma_read => ep_post_rdma_read_func(
                num_segments: DAT_COUNT, local_iov: *mut DAT_LMR_TRIPLET, user_cookie: DAT_DTO_COOKIE,
                remote_iov: *const DAT_RMR_TRIPLET, completion_flags: DAT_COMPLETION_FLAGS
            );
            dat_ep_post_rdma_write => ep_post_rdma_write_func(
                num_segments: DAT_COUNT, local_iov: *mut DAT_LMR_TRIPLET, user_cookie: DAT_DTO_COOKIE,
                remote_iov: *const DAT_RMR_TRIPLET, completion_flags: DAT_COMPLETION_FLAGS
            );
            dat_ep_get_status => ep_get_status_func(
                ep_state: *mut DAT_EP_STATE, recv_idle: *mut DAT_BOOLEAN, request_idle: *mut DAT_BOOLEAN
            );
            dat_ep_free => ep_free_func();
            dat_ep_reset => ep_reset_func();
            dat_ep_recv_query => ep_recv_query_func(nbufs_allocated: *mut DAT_COUNT, bufs_alloc_span: *mut DAT_COUNT);
            dat_ep_set_watermark => ep_set_watermark_func(
                ep_soft_high_watermark: DAT_COUNT, ep_hard_high_watermark: DAT_COUNT
            );
        }

        // Calls on an event dispatcher. libdat does not know the event streams of an invalid EVD, and always reports
        // this subtype.
        $crate::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_EVD_REQUEST;
            dat_evd_resize => evd_resize_func(evd_min_qlen: DAT_COUNT);
            dat_evd_post_se => evd_post_se_func(event: *const DAT_EVENT);
            dat_evd_dequeue => evd_dequeue_func(event: *mut DAT_EVENT);
            dat_evd_query => evd_query_func(evd_param_mask: DAT_EVD_PARAM_MASK, evd_param: *mut DAT_EVD_PARAM);
            dat_evd_free => evd_free_func();
            dat_evd_modify_cno => evd_modify_cno_func(cno_handle: DAT_CNO_HANDLE);
            dat_evd_enable => evd_enable_func();
            dat_evd_disable => evd_disable_func();
            dat_evd_set_unwaitable => evd_set_unwaitable_func();
            dat_evd_clear_unwaitable => evd_clear_unwaitable_func();
        }

        // The thread may be cancelled in this call, so the function owns nothing and may be unwound.
        $crate::through_table! { "C-unwind", in_first_arena or object, DAT_INVALID_HANDLE_EVD_REQUEST;
            dat_evd_wait => evd_wait_func(
                timeout: DAT_TIMEOUT, threshold: DAT_COUNT, event: *mut DAT_EVENT, n_more_events: *mut DAT_COUNT
            );
        }

        // Calls on a consumer notification object.
        $crate::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_CNO;
            dat_cno_modify_agent => cno_modify_agent_func(agent: DAT_OS_WAIT_PROXY_AGENT);
            dat_cno_query => cno_query_func(cno_param_mask: DAT_CNO_PARAM_MASK, cno_param: *mut DAT_CNO_PARAM);
            dat_cno_free => cno_free_func();
        }

        // The thread may be cancelled in this call, so the function owns nothing and may be unwound.
        $crate::through_table! { "C-unwind", in_first_arena or object, DAT_INVALID_HANDLE_CNO;
            dat_cno_wait => cno_wait_func(timeout: DAT_TIMEOUT, evd_handle: *mut DAT_EVD_HANDLE);
        }

        // Calls on a connection request.
        $crate::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_CR;
            dat_cr_query => cr_query_func(cr_param_mask: DAT_CR_PARAM_MASK, cr_param: *mut DAT_CR_PARAM);
            dat_cr_accept => cr_accept_func(ep_handle: DAT_EP_HANDLE, private_data_size: DAT_COUNT, private_data: DAT_PVOID);
            dat_cr_handoff => cr_handoff_func(handoff: DAT_CONN_QUAL);
        }

        // Calls on a public service point.
        $crate::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_PSP;
            dat_psp_query => psp_query_func(psp_param_mask: DAT_PSP_PARAM_MASK, psp_param: *mut DAT_PSP_PARAM);
            dat_psp_free => psp_free_func();
        }

        // Calls on a reserved service point.
        $crate::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_RSP;
            dat_rsp_query => rsp_query_func(rsp_param_mask: DAT_RSP_PARAM_MASK, rsp_param: *mut DAT_RSP_PARAM);
            dat_rsp_free => rsp_free_func();
        }

        // Calls on a protection zone.
        $crate::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_PZ;
            dat_rmr_create => rmr_create_func(rmr_handle: *mut DAT_RMR_HANDLE);
            dat_pz_query => pz_query_func(pz_param_mask: DAT_PZ_PARAM_MASK, pz_param: *mut DAT_PZ_PARAM);
            dat_pz_free => pz_free_func();
        }

        // Calls on a local memory region.
        $crate::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_LMR;
            dat_lmr_query => lmr_query_func(lmr_param_mask: DAT_LMR_PARAM_MASK, lmr_param: *mut DAT_LMR_PARAM);
            dat_lmr_free => lmr_free_func();
        }

        // Calls on a remote memory region.
        $crate::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_RMR;
            dat_rmr_query => rmr_query_func(rmr_param_mask: DAT_RMR_PARAM_MASK, rmr_param: *mut DAT_RMR_PARAM);
            dat_rmr_free => rmr_free_func();
        }

        // Calls on a shared receive queue.
        $crate::through_table! { "C", in_first_arena or object, DAT_INVALID_HANDLE_SRQ;
            dat_srq_free => srq_free_func();
            dat_srq_post_recv => srq_post_recv_func(
                num_segments: DAT_COUNT, local_iov: *mut DAT_LMR_TRIPLET, user_cookie: DAT_DTO_COOKIE
            );
            dat_srq_query => srq_query_func(srq_param_mask: DAT_SRQ_PARAM_MASK, srq_param: *mut DAT_SRQ_PARAM);
            dat_srq_resize => srq_resize_func(srq_queue_length: DAT_COUNT);
            dat_srq_set_lw => srq_set_lw_func(srq_low_watermark: DAT_COUNT);
        }
    };
}
