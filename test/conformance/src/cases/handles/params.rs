//! Table for `refusals`: handle parameters of functions, each with a call in which all other arguments are valid.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

/// A handle parameter of a function.
pub(super) struct HandleParam {
    function: &'static str,
    /// Name of the parameter; empty for the first one.
    parameter: &'static str,
    /// Required kind of object; `None` if the call accepts any kind.
    pub(super) wants: Option<ObjectKind>,
    /// Whether null is a valid value.
    pub(super) is_optional: bool,
    /// Subtype from libdat, for a value that cannot be a handle.
    pub(super) libdat_subtype: DAT_RETURN_SUBTYPE,
    /// Subtype from the provider, for a handle of another kind or of a freed object.
    pub(super) provider_subtype: DAT_RETURN_SUBTYPE,
    call: fn(&OneOfEach, DAT_HANDLE) -> DAT_RETURN,
}

impl HandleParam {
    /// Name of the case that passes this group of invalid handles as the parameter.
    pub(super) fn case_name(&self, group: &str) -> String {
        let name = format!("handles_{}_refuses_{group}", self.function.trim_start_matches("dat_"));
        if self.parameter.is_empty() { name } else { format!("{name}_as_{}", self.parameter) }
    }

    /// The kinds of objects that its call uses.
    pub(super) fn kinds(&self) -> impl Iterator<Item = ObjectKind> {
        let needs_srq = self.function == "dat_ep_create_with_srq" || self.function == "dat_srq_create";
        let needs_rmr = self.function.starts_with("dat_rmr_");
        let needs = [(needs_srq, ObjectKind::Srq), (needs_rmr, ObjectKind::Rmr)];
        self.wants.into_iter().chain(needs.into_iter().filter(|(is, _)| *is).map(|(_, kind)| kind))
    }

    /// Whether `refusals` tests this group of invalid handles with this parameter. Handles of other kinds and of freed
    /// objects are left out if the call checks something else first; other kinds also if the call accepts every kind.
    pub(super) fn has_group(&self, word: &str) -> bool {
        // `dat_ep_dup_connect` checks the state of the EP to duplicate first. A separate case tests the EP to
        // connect.
        let is_checked_late = self.function == "dat_ep_dup_connect" && self.parameter.is_empty();
        match word {
            "handles_of_other_kinds" => self.wants.is_some() && !is_checked_late,
            "freed_handles" => !is_checked_late,
            _ => true,
        }
    }

    pub(super) fn both(&self) -> [DAT_RETURN_SUBTYPE; 2] {
        [self.libdat_subtype, self.provider_subtype]
    }

    /// Subtype for a freed object of this kind. libdat itself refuses the number of a closed IA; the provider refuses
    /// other freed objects.
    pub(super) fn dead(&self, kind: ObjectKind) -> DAT_RETURN_SUBTYPE {
        if kind == ObjectKind::Ia { self.libdat_subtype } else { self.provider_subtype }
    }

    /// Checks that the call with this handle returns `DAT_INVALID_HANDLE` with one of these subtypes.
    #[track_caller]
    pub(super) fn refuses(&self, objects: &OneOfEach, handle: DAT_HANDLE, subtypes: &[DAT_RETURN_SUBTYPE]) {
        let wanted: Vec<_> = subtypes.iter().map(|subtype| error(DAT_INVALID_HANDLE, *subtype)).collect();
        one_of((self.call)(objects, handle), &wanted);
    }
}

/// A first parameter. libdat refuses values that cannot be a handle; the provider refuses handles of other kinds and of
/// freed objects.
fn first(
    function: &'static str,
    wants: ObjectKind,
    libdat_subtype: DAT_RETURN_SUBTYPE,
    provider_subtype: DAT_RETURN_SUBTYPE,
    call: fn(&OneOfEach, DAT_HANDLE) -> DAT_RETURN,
) -> HandleParam {
    HandleParam {
        function,
        parameter: "",
        wants: Some(wants),
        is_optional: false,
        libdat_subtype,
        provider_subtype,
        call,
    }
}

/// A later parameter, which only the provider checks.
fn other(
    function: &'static str,
    parameter: &'static str,
    wants: ObjectKind,
    subtype: DAT_RETURN_SUBTYPE,
    call: fn(&OneOfEach, DAT_HANDLE) -> DAT_RETURN,
) -> HandleParam {
    HandleParam {
        function,
        parameter,
        wants: Some(wants),
        is_optional: false,
        libdat_subtype: subtype,
        provider_subtype: subtype,
        call,
    }
}

/// A later parameter for which null is valid.
fn optional(
    function: &'static str,
    parameter: &'static str,
    wants: ObjectKind,
    subtype: DAT_RETURN_SUBTYPE,
    call: fn(&OneOfEach, DAT_HANDLE) -> DAT_RETURN,
) -> HandleParam {
    HandleParam { is_optional: true, ..other(function, parameter, wants, subtype, call) }
}

/// All handle parameters that `refusals` tests.
pub(super) fn handle_params() -> Vec<HandleParam> {
    let mut all = any_kind();
    all.extend(adapters());
    all.extend(adapter_later_params());
    all.extend(dispatchers());
    all.extend(notification_objects());
    all.extend(endpoints());
    all.extend(transfers());
    all.extend(connecting());
    all.extend(memory());
    all.extend(shared_queues());
    all
}

fn any_kind() -> Vec<HandleParam> {
    let place = |function, call| HandleParam {
        function,
        parameter: "",
        wants: None,
        is_optional: false,
        libdat_subtype: DAT_INVALID_HANDLE1,
        provider_subtype: DAT_INVALID_HANDLE1,
        call,
    };
    vec![
        place("dat_set_consumer_context", |_, h| dat_set_consumer_context(h, cookie(1))),
        place("dat_get_consumer_context", |_, h| untouched(|out| dat_get_consumer_context(h, out))),
        place("dat_get_handle_type", |_, h| untouched(|out| dat_get_handle_type(h, out))),
    ]
}

fn adapters() -> Vec<HandleParam> {
    let ia = |function, call| first(function, ObjectKind::Ia, DAT_INVALID_HANDLE_IA, DAT_INVALID_HANDLE_IA, call);
    vec![
        ia("dats_get_ia_handle", |_, h| untouched(|out| dats_get_ia_handle(h, out))),
        ia("dat_ia_query", |_, h| untouched(|out| dat_ia_query(h, null_mut(), DAT_IA_FIELD_ALL, out, 0, null_mut()))),
        ia("dat_ia_close", |_, h| dat_ia_close(h, DAT_CLOSE_ABRUPT_FLAG)),
        ia("dat_pz_create", |_, h| untouched(|out| dat_pz_create(h, out))),
        ia("dat_evd_create", |_, h| untouched(|out| dat_evd_create(h, 1, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, out))),
        ia("dat_cno_create", |_, h| untouched(|out| dat_cno_create(h, NO_AGENT, out))),
        ia("dat_ep_create", |objects, h| {
            ep_create(objects, h, objects.pz.h(), objects.recv.h(), objects.request.h(), objects.events.h())
        }),
        ia("dat_ep_create_with_srq", |objects, h| with_srq(objects, h, objects.pz.h(), objects.recv.h(), srq(objects))),
        ia("dat_psp_create", |objects, h| psp_create(h, objects.requests.h())),
        ia("dat_psp_create_any", |objects, h| psp_create_any(h, objects.requests.h())),
        ia("dat_rsp_create", |objects, h| rsp_create(h, objects.ep.h(), objects.requests.h())),
        ia("dat_lmr_create", |objects, h| lmr_create(objects, h, objects.pz.h())),
        ia("dat_lmr_sync_rdma_read", |objects, h| dat_lmr_sync_rdma_read(h, &objects.memory.segment(0, 8), 1)),
        ia("dat_lmr_sync_rdma_write", |objects, h| dat_lmr_sync_rdma_write(h, &objects.memory.segment(0, 8), 1)),
        ia("dat_srq_create", |objects, h| srq_create(h, objects.pz.h())),
    ]
}

/// Handle parameters after the first, in calls on an IA.
fn adapter_later_params() -> Vec<HandleParam> {
    const PZ: DAT_RETURN_SUBTYPE = DAT_INVALID_HANDLE_PZ;
    const EVD_CR: DAT_RETURN_SUBTYPE = DAT_INVALID_HANDLE_EVD_CR;
    vec![
        optional("dat_evd_create", "cno", ObjectKind::Cno, DAT_INVALID_HANDLE_CNO, |objects, h| {
            untouched(|out| dat_evd_create(objects.ia.h(), 1, h, DAT_EVD_DTO_FLAG, out))
        }),
        optional("dat_ep_create", "pz", ObjectKind::Pz, PZ, |objects, h| {
            ep_create(objects, objects.ia.h(), h, objects.recv.h(), objects.request.h(), objects.events.h())
        }),
        optional("dat_ep_create", "recv_evd", ObjectKind::Evd, DAT_INVALID_HANDLE_EVD_RECV, |objects, h| {
            ep_create(objects, objects.ia.h(), objects.pz.h(), h, objects.request.h(), objects.events.h())
        }),
        optional("dat_ep_create", "request_evd", ObjectKind::Evd, DAT_INVALID_HANDLE_EVD_REQUEST, |objects, h| {
            ep_create(objects, objects.ia.h(), objects.pz.h(), objects.recv.h(), h, objects.events.h())
        }),
        optional("dat_ep_create", "connect_evd", ObjectKind::Evd, DAT_INVALID_HANDLE_EVD_CONN, |objects, h| {
            ep_create(objects, objects.ia.h(), objects.pz.h(), objects.recv.h(), objects.request.h(), h)
        }),
        optional("dat_ep_create_with_srq", "pz", ObjectKind::Pz, PZ, |objects, h| {
            with_srq(objects, objects.ia.h(), h, objects.recv.h(), srq(objects))
        }),
        optional("dat_ep_create_with_srq", "recv_evd", ObjectKind::Evd, DAT_INVALID_HANDLE_EVD_RECV, |objects, h| {
            with_srq(objects, objects.ia.h(), objects.pz.h(), h, srq(objects))
        }),
        other("dat_ep_create_with_srq", "srq", ObjectKind::Srq, DAT_INVALID_HANDLE_SRQ, |objects, h| {
            with_srq(objects, objects.ia.h(), objects.pz.h(), objects.recv.h(), h)
        }),
        other("dat_psp_create", "evd", ObjectKind::Evd, EVD_CR, |objects, h| psp_create(objects.ia.h(), h)),
        other("dat_psp_create_any", "evd", ObjectKind::Evd, EVD_CR, |objects, h| psp_create_any(objects.ia.h(), h)),
        other("dat_rsp_create", "evd", ObjectKind::Evd, EVD_CR, |objects, h| {
            rsp_create(objects.ia.h(), objects.ep.h(), h)
        }),
        other("dat_rsp_create", "ep", ObjectKind::Ep, DAT_INVALID_HANDLE_EP, |objects, h| {
            rsp_create(objects.ia.h(), h, objects.requests.h())
        }),
        other("dat_lmr_create", "pz", ObjectKind::Pz, PZ, |objects, h| lmr_create(objects, objects.ia.h(), h)),
        other("dat_lmr_create", "region", ObjectKind::Lmr, DAT_INVALID_HANDLE_LMR, |objects, h| {
            let region = DAT_REGION_DESCRIPTION { for_lmr_handle: h };
            register(objects.ia.h(), DAT_MEM_TYPE_LMR, region, objects.pz.h())
        }),
        other("dat_srq_create", "pz", ObjectKind::Pz, PZ, |objects, h| srq_create(objects.ia.h(), h)),
    ]
}

fn dispatchers() -> Vec<HandleParam> {
    // libdat refuses with the subtype EVD_REQUEST. The provider gives no subtype if the handle is no EVD.
    let evd = |function, call| first(function, ObjectKind::Evd, DAT_INVALID_HANDLE_EVD_REQUEST, DAT_NO_SUBTYPE, call);
    vec![
        evd("dat_evd_query", |_, h| untouched(|out| dat_evd_query(h, DAT_EVD_FIELD_ALL, out))),
        evd("dat_evd_modify_cno", |objects, h| dat_evd_modify_cno(h, objects.cno.h())),
        evd("dat_evd_enable", |_, h| dat_evd_enable(h)),
        evd("dat_evd_disable", |_, h| dat_evd_disable(h)),
        evd("dat_evd_set_unwaitable", |_, h| dat_evd_set_unwaitable(h)),
        evd("dat_evd_clear_unwaitable", |_, h| dat_evd_clear_unwaitable(h)),
        evd("dat_evd_resize", |_, h| dat_evd_resize(h, 20)),
        evd("dat_evd_post_se", |_, h| dat_evd_post_se(h, &software_event(1))),
        evd("dat_evd_dequeue", |_, h| untouched(|out| dat_evd_dequeue(h, out))),
        evd("dat_evd_wait", |_, h| untouched(|out| untouched(|more| dat_evd_wait(h, 0, 1, out, more)))),
        evd("dat_evd_free", |_, h| dat_evd_free(h)),
        optional("dat_evd_modify_cno", "cno", ObjectKind::Cno, DAT_INVALID_HANDLE_CNO, |objects, h| {
            dat_evd_modify_cno(objects.evd.h(), h)
        }),
    ]
}

fn notification_objects() -> Vec<HandleParam> {
    let cno = |function, call| first(function, ObjectKind::Cno, DAT_INVALID_HANDLE_CNO, DAT_INVALID_HANDLE_CNO, call);
    vec![
        cno("dat_cno_modify_agent", |_, h| dat_cno_modify_agent(h, NO_AGENT)),
        cno("dat_cno_query", |_, h| untouched(|out| dat_cno_query(h, DAT_CNO_FIELD_ALL, out))),
        cno("dat_cno_wait", |_, h| untouched(|out| dat_cno_wait(h, 0, out))),
        cno("dat_cno_free", |_, h| dat_cno_free(h)),
    ]
}

fn endpoints() -> Vec<HandleParam> {
    const EP: DAT_RETURN_SUBTYPE = DAT_INVALID_HANDLE_EP;
    let ep = |function, call| first(function, ObjectKind::Ep, EP, EP, call);
    vec![
        ep("dat_ep_query", |_, h| untouched(|out| dat_ep_query(h, DAT_EP_FIELD_ALL, out))),
        ep("dat_ep_modify", |objects, h| dat_ep_modify(h, DAT_EP_FIELD_EP_ATTR_QOS, &objects.ep.param())),
        ep("dat_ep_connect", |objects, h| {
            let (address, forever) = (objects.ia.address(), DAT_TIMEOUT_INFINITE);
            let flags = DAT_CONNECT_DEFAULT_FLAG;
            dat_ep_connect(h, address.pointer(), 1, forever, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags)
        }),
        ep("dat_ep_dup_connect", |objects, h| dup_connect(h, objects.ep.h())),
        ep("dat_ep_disconnect", |_, h| dat_ep_disconnect(h, DAT_CLOSE_ABRUPT_FLAG)),
        ep("dat_ep_get_status", |_, h| untouched(|out| dat_ep_get_status(h, out, null_mut(), null_mut()))),
        ep("dat_ep_recv_query", |_, h| untouched(|out| dat_ep_recv_query(h, out, null_mut()))),
        ep("dat_ep_set_watermark", |_, h| dat_ep_set_watermark(h, 1, 1)),
        ep("dat_ep_reset", |_, h| dat_ep_reset(h)),
        ep("dat_ep_free", |_, h| dat_ep_free(h)),
    ]
}

fn transfers() -> Vec<HandleParam> {
    const FLAGS: DAT_COMPLETION_FLAGS = DAT_COMPLETION_DEFAULT_FLAG;
    let ep = |function, call| first(function, ObjectKind::Ep, DAT_INVALID_HANDLE_EP, DAT_INVALID_HANDLE_EP, call);
    vec![
        ep("dat_ep_post_send", |objects, h| {
            dat_ep_post_send(h, 1, &mut objects.memory.segment(0, 8), cookie(1), FLAGS)
        }),
        ep("dat_ep_post_recv", |objects, h| {
            dat_ep_post_recv(h, 1, &mut objects.memory.segment(0, 8), cookie(1), FLAGS)
        }),
        ep("dat_ep_post_rdma_read", |objects, h| {
            let (mut local, remote) = (objects.memory.segment(0, 8), objects.memory.target(8, 8));
            dat_ep_post_rdma_read(h, 1, &mut local, cookie(1), &remote, FLAGS)
        }),
        ep("dat_ep_post_rdma_write", |objects, h| {
            let (mut local, remote) = (objects.memory.segment(0, 8), objects.memory.target(8, 8));
            dat_ep_post_rdma_write(h, 1, &mut local, cookie(1), &remote, FLAGS)
        }),
    ]
}

fn connecting() -> Vec<HandleParam> {
    const CR: DAT_RETURN_SUBTYPE = DAT_INVALID_HANDLE_CR;
    const PSP: DAT_RETURN_SUBTYPE = DAT_INVALID_HANDLE_PSP;
    const RSP: DAT_RETURN_SUBTYPE = DAT_INVALID_HANDLE_RSP;
    vec![
        first("dat_cr_query", ObjectKind::Cr, CR, CR, |_, h| untouched(|out| dat_cr_query(h, DAT_CR_FIELD_ALL, out))),
        first("dat_cr_accept", ObjectKind::Cr, CR, CR, |objects, h| dat_cr_accept(h, objects.ep.h(), 0, null_mut())),
        first("dat_cr_reject", ObjectKind::Cr, CR, CR, |_, h| dat_cr_reject(h)),
        first("dat_cr_handoff", ObjectKind::Cr, CR, CR, |_, h| dat_cr_handoff(h, 1)),
        other("dat_cr_accept", "ep", ObjectKind::Ep, DAT_INVALID_HANDLE_EP, |objects, h| {
            dat_cr_accept(objects.handle(ObjectKind::Cr), h, 0, null_mut())
        }),
        first("dat_psp_query", ObjectKind::Psp, PSP, PSP, |_, h| {
            untouched(|out| dat_psp_query(h, DAT_PSP_FIELD_ALL, out))
        }),
        first("dat_psp_free", ObjectKind::Psp, PSP, PSP, |_, h| dat_psp_free(h)),
        first("dat_rsp_query", ObjectKind::Rsp, RSP, RSP, |_, h| {
            untouched(|out| dat_rsp_query(h, DAT_RSP_FIELD_ALL, out))
        }),
        first("dat_rsp_free", ObjectKind::Rsp, RSP, RSP, |_, h| dat_rsp_free(h)),
        other("dat_ep_dup_connect", "dup", ObjectKind::Ep, DAT_INVALID_HANDLE_EP, |objects, h| {
            dup_connect(objects.ep.h(), h)
        }),
    ]
}

fn memory() -> Vec<HandleParam> {
    const PZ: DAT_RETURN_SUBTYPE = DAT_INVALID_HANDLE_PZ;
    const LMR: DAT_RETURN_SUBTYPE = DAT_INVALID_HANDLE_LMR;
    const RMR: DAT_RETURN_SUBTYPE = DAT_INVALID_HANDLE_RMR;
    vec![
        first("dat_pz_query", ObjectKind::Pz, PZ, PZ, |_, h| untouched(|out| dat_pz_query(h, DAT_PZ_FIELD_ALL, out))),
        first("dat_pz_free", ObjectKind::Pz, PZ, PZ, |_, h| dat_pz_free(h)),
        first("dat_lmr_query", ObjectKind::Lmr, LMR, LMR, |_, h| {
            untouched(|out| dat_lmr_query(h, DAT_LMR_FIELD_ALL, out))
        }),
        first("dat_lmr_free", ObjectKind::Lmr, LMR, LMR, |_, h| dat_lmr_free(h)),
        first("dat_rmr_create", ObjectKind::Pz, PZ, PZ, |_, h| untouched(|out| dat_rmr_create(h, out))),
        first("dat_rmr_query", ObjectKind::Rmr, RMR, RMR, |_, h| {
            untouched(|out| dat_rmr_query(h, DAT_RMR_FIELD_ALL, out))
        }),
        first("dat_rmr_bind", ObjectKind::Rmr, RMR, RMR, |objects, h| rmr_bind(objects, h, objects.ep.h())),
        first("dat_rmr_free", ObjectKind::Rmr, RMR, RMR, |_, h| dat_rmr_free(h)),
        other("dat_rmr_bind", "ep", ObjectKind::Ep, DAT_INVALID_HANDLE_EP, |objects, h| {
            rmr_bind(objects, objects.handle(ObjectKind::Rmr), h)
        }),
    ]
}

fn shared_queues() -> Vec<HandleParam> {
    const SRQ: DAT_RETURN_SUBTYPE = DAT_INVALID_HANDLE_SRQ;
    let srq = |function, call| first(function, ObjectKind::Srq, SRQ, SRQ, call);
    vec![
        srq("dat_srq_query", |_, h| untouched(|out| dat_srq_query(h, DAT_SRQ_FIELD_ALL, out))),
        srq("dat_srq_resize", |_, h| dat_srq_resize(h, 16)),
        srq("dat_srq_set_lw", |_, h| dat_srq_set_lw(h, 1)),
        srq("dat_srq_post_recv", |objects, h| dat_srq_post_recv(h, 1, &mut objects.memory.segment(0, 8), cookie(1))),
        srq("dat_srq_free", |_, h| dat_srq_free(h)),
    ]
}

fn srq(objects: &OneOfEach) -> DAT_SRQ_HANDLE {
    objects.handle(ObjectKind::Srq)
}

fn ep_create(
    _objects: &OneOfEach,
    ia: DAT_IA_HANDLE,
    pz: DAT_PZ_HANDLE,
    recv: DAT_EVD_HANDLE,
    request: DAT_EVD_HANDLE,
    connect: DAT_EVD_HANDLE,
) -> DAT_RETURN {
    untouched(|out| dat_ep_create(ia, pz, recv, request, connect, &ep_attr(), out))
}

fn with_srq(
    objects: &OneOfEach,
    ia: DAT_IA_HANDLE,
    pz: DAT_PZ_HANDLE,
    recv: DAT_EVD_HANDLE,
    srq: DAT_SRQ_HANDLE,
) -> DAT_RETURN {
    let (request, connect) = (objects.request.h(), objects.events.h());
    let attr = DAT_EP_ATTR { max_recv_dtos: DAT_HW_DEFAULT, srq_soft_hw: DAT_HW_DEFAULT, ..ep_attr() };
    untouched(|out| dat_ep_create_with_srq(ia, pz, recv, request, connect, srq, &attr, out))
}

fn psp_create(ia: DAT_IA_HANDLE, evd: DAT_EVD_HANDLE) -> DAT_RETURN {
    untouched(|out| dat_psp_create(ia, 1, evd, DAT_PSP_CONSUMER_FLAG, out))
}

fn psp_create_any(ia: DAT_IA_HANDLE, evd: DAT_EVD_HANDLE) -> DAT_RETURN {
    untouched(|qual| untouched(|out| dat_psp_create_any(ia, qual, evd, DAT_PSP_CONSUMER_FLAG, out)))
}

fn rsp_create(ia: DAT_IA_HANDLE, ep: DAT_EP_HANDLE, evd: DAT_EVD_HANDLE) -> DAT_RETURN {
    untouched(|out| dat_rsp_create(ia, 1, ep, evd, out))
}

fn srq_create(ia: DAT_IA_HANDLE, pz: DAT_PZ_HANDLE) -> DAT_RETURN {
    let mut attr = DAT_SRQ_ATTR { max_recv_dtos: 1, max_recv_iov: 1, low_watermark: 0 };
    untouched(|out| dat_srq_create(ia, pz, &mut attr, out))
}

fn lmr_create(objects: &OneOfEach, ia: DAT_IA_HANDLE, pz: DAT_PZ_HANDLE) -> DAT_RETURN {
    register(ia, DAT_MEM_TYPE_VIRTUAL, DAT_REGION_DESCRIPTION { for_va: objects.memory.pointer() }, pz)
}

fn register(ia: DAT_IA_HANDLE, kind: DAT_MEM_TYPE, region: DAT_REGION_DESCRIPTION, pz: DAT_PZ_HANDLE) -> DAT_RETURN {
    let all = DAT_MEM_PRIV_ALL_FLAG;
    untouched(|lmr| {
        untouched(|local| {
            untouched(|remote| {
                untouched(|length| {
                    untouched(|address| {
                        dat_lmr_create(ia, kind, region, 64, pz, all, lmr, local, remote, length, address)
                    })
                })
            })
        })
    })
}

fn rmr_bind(objects: &OneOfEach, rmr: DAT_RMR_HANDLE, ep: DAT_EP_HANDLE) -> DAT_RETURN {
    let (segment, rights) = (objects.memory.segment(0, 8), DAT_MEM_PRIV_REMOTE_READ_FLAG);
    untouched(|out| dat_rmr_bind(rmr, &segment, rights, ep, cookie(1), DAT_COMPLETION_DEFAULT_FLAG, out))
}

fn dup_connect(ep: DAT_EP_HANDLE, dup: DAT_EP_HANDLE) -> DAT_RETURN {
    dat_ep_dup_connect(ep, dup, DAT_TIMEOUT_INFINITE, 0, null_mut(), DAT_QOS_BEST_EFFORT)
}
