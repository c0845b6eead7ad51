//! One live object of each kind in one IA, for cases about properties common to all kinds.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use dat_abi::*;

use crate::api::*;
use crate::ctx::Ctx;

use super::codes::{filled, ok};
use super::event::{expect_conn, expect_cr};
use super::memory::Memory;
use super::object::{Cno, Ep, Evd, Handle, Ia, NO_AGENT, Psp, Pz, Rmr, Rsp, Srq};

/// The kinds of objects, in the order of `DAT_HANDLE_TYPE`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ObjectKind {
    Cr,
    Ep,
    Evd,
    Ia,
    Lmr,
    Psp,
    Pz,
    Rmr,
    Rsp,
    Cno,
    Srq,
}

impl ObjectKind {
    pub(crate) const ALL: [Self; 11] = [
        Self::Cr,
        Self::Ep,
        Self::Evd,
        Self::Ia,
        Self::Lmr,
        Self::Psp,
        Self::Pz,
        Self::Rmr,
        Self::Rsp,
        Self::Cno,
        Self::Srq,
    ];

    /// Name of the kind in case names.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Cr => "cr",
            Self::Ep => "ep",
            Self::Evd => "evd",
            Self::Ia => "ia",
            Self::Lmr => "lmr",
            Self::Psp => "psp",
            Self::Pz => "pz",
            Self::Rmr => "rmr",
            Self::Rsp => "rsp",
            Self::Cno => "cno",
            Self::Srq => "srq",
        }
    }

    /// Value that `dat_get_handle_type` returns for this kind.
    pub(crate) fn number(self) -> DAT_HANDLE_TYPE {
        match self {
            Self::Cr => DAT_HANDLE_TYPE_CR,
            Self::Ep => DAT_HANDLE_TYPE_EP,
            Self::Evd => DAT_HANDLE_TYPE_EVD,
            Self::Ia => DAT_HANDLE_TYPE_IA,
            Self::Lmr => DAT_HANDLE_TYPE_LMR,
            Self::Psp => DAT_HANDLE_TYPE_PSP,
            Self::Pz => DAT_HANDLE_TYPE_PZ,
            Self::Rmr => DAT_HANDLE_TYPE_RMR,
            Self::Rsp => DAT_HANDLE_TYPE_RSP,
            Self::Cno => DAT_HANDLE_TYPE_CNO,
            Self::Srq => DAT_HANDLE_TYPE_SRQ,
        }
    }

    /// Ends an object as a consumer does: frees it, rejects it, or closes it gracefully.
    pub(crate) fn end(self, handle: DAT_HANDLE) -> DAT_RETURN {
        match self {
            Self::Cr => dat_cr_reject(handle),
            Self::Ep => dat_ep_free(handle),
            Self::Evd => dat_evd_free(handle),
            Self::Ia => dat_ia_close(handle, DAT_CLOSE_GRACEFUL_FLAG),
            Self::Lmr => dat_lmr_free(handle),
            Self::Psp => dat_psp_free(handle),
            Self::Pz => dat_pz_free(handle),
            Self::Rmr => dat_rmr_free(handle),
            Self::Rsp => dat_rsp_free(handle),
            Self::Cno => dat_cno_free(handle),
            Self::Srq => dat_srq_free(handle),
        }
    }
}

/// One live object of each kind. Kinds that the provider does not support are absent. No object uses `ep`, `evd`, `cno`
/// or `idle_pz`, so these can be freed first.
pub(crate) struct OneOfEach {
    /// A pending connection request, rejected at the end.
    cr: Option<Handle>,
    /// UNCONNECTED EP with all its EVDs. No other object uses this EP.
    pub(crate) ep: Ep,
    pub(crate) rsp: Rsp,
    reserved: Ep,
    pub(crate) psp: Psp,
    /// The EP that sent the request `cr`.
    asker: Ep,
    pub(crate) srq: Option<Srq>,
    pub(crate) rmr: Option<Rmr>,
    pub(crate) memory: Memory,
    /// EVD for receive completions of the EPs. `request` is for request and bind completions, `events` for connection
    /// events.
    pub(crate) recv: Evd,
    pub(crate) request: Evd,
    pub(crate) events: Evd,
    /// EVD of the service points.
    pub(crate) requests: Evd,
    /// EVD for software events, which no object uses.
    pub(crate) evd: Evd,
    /// A CNO without EVDs.
    pub(crate) cno: Cno,
    pub(crate) pz: Pz,
    /// A PZ that no object uses, so a test can free it.
    pub(crate) idle_pz: Pz,
    pub(crate) ia: Ia,
}

impl OneOfEach {
    /// Opens an IA and creates all objects in it.
    #[track_caller]
    pub(crate) fn of(ctx: &Ctx) -> Self {
        Self::within(ctx, &ctx.ia(), 0)
    }

    /// Creates all objects in this IA. The PSP listens on the run's qualifier `first`, the RSP on the next one.
    #[track_caller]
    pub(crate) fn within(ctx: &Ctx, ia: &Ia, first: u64) -> Self {
        let idle_pz = ia.pz();
        let pz = ia.pz();
        let cno = ia.cno();
        let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
        let requests = ia.evd(8, DAT_EVD_CR_FLAG);
        let events = ia.evd(8, DAT_EVD_CONNECTION_FLAG);
        let request = ia.evd(16, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG);
        let recv = ia.evd(16, DAT_EVD_DTO_FLAG);
        let memory = ia.memory(&pz, 4096);
        let rmr = (ia.attr().max_rmrs > 0).then(|| pz.rmr());
        let srq = (ia.provider_attr().srq_supported != DAT_FALSE).then(|| ia.srq(&pz, 8, 1));
        let ep = || ia.ep(&pz, &recv, &request, &events);
        let (asker, reserved) = (ep(), ep());
        let psp = ia.psp(ctx.qual(first), &requests);
        let rsp = ia.rsp(ctx.qual(first + 1), &reserved, &requests);
        let ep = ep();
        let cr = Some(Handle::of(ask(ctx, ia, &asker, first, &requests)));
        let ia = ia.clone();
        OneOfEach {
            cr,
            ep,
            rsp,
            reserved,
            psp,
            asker,
            srq,
            rmr,
            memory,
            recv,
            request,
            events,
            requests,
            evd,
            cno,
            pz,
            idle_pz,
            ia,
        }
    }

    /// Returns the live object of this kind.
    pub(crate) fn handle(&self, kind: ObjectKind) -> DAT_HANDLE {
        match kind {
            ObjectKind::Cr => self.cr.expect("the CR is set until the objects are dropped").h(),
            ObjectKind::Ep => self.ep.h(),
            ObjectKind::Evd => self.evd.h(),
            ObjectKind::Ia => self.ia.h(),
            ObjectKind::Lmr => self.memory.h(),
            ObjectKind::Psp => self.psp.h(),
            ObjectKind::Pz => self.idle_pz.h(),
            ObjectKind::Rmr => self.rmr.as_ref().map_or(null_mut(), Rmr::h),
            ObjectKind::Rsp => self.rsp.h(),
            ObjectKind::Cno => self.cno.h(),
            ObjectKind::Srq => self.srq.as_ref().map_or(null_mut(), Srq::h),
        }
    }

    /// Whether the provider supports this kind.
    pub(crate) fn has(&self, kind: ObjectKind) -> bool {
        !self.handle(kind).is_null()
    }

    /// Creates and frees an object of this kind. Returns the stale handle. Uses the run's qualifiers 0 and 2.
    #[track_caller]
    pub(crate) fn dead(&self, ctx: &Ctx, kind: ObjectKind) -> DAT_HANDLE {
        let ia = &self.ia;
        match kind {
            ObjectKind::Cr => {
                let events = ia.evd(8, DAT_EVD_CONNECTION_FLAG);
                let ep = ia.ep(&self.pz, &self.recv, &self.request, &events);
                let cr = ask(ctx, ia, &ep, 0, &self.requests);
                ok(dat_cr_reject(cr));
                expect_conn(events.h(), ep.h(), DAT_CONNECTION_EVENT_PEER_REJECTED);
                cr
            }
            ObjectKind::Ep => ia.ep(&self.pz, &self.recv, &self.request, &self.events).free(),
            ObjectKind::Evd => ia.evd(8, DAT_EVD_SOFTWARE_FLAG).free(),
            ObjectKind::Ia => ctx.ia().close(),
            ObjectKind::Lmr => ia.memory(&self.pz, 64).deregister(),
            ObjectKind::Psp => ia.psp(ctx.qual(2), &self.requests).free(),
            ObjectKind::Pz => ia.pz().free(),
            ObjectKind::Rmr => self.pz.rmr().free(),
            ObjectKind::Rsp => {
                let ep = ia.ep(&self.pz, &self.recv, &self.request, &self.events);
                ia.rsp(ctx.qual(2), &ep, &self.requests).free()
            }
            ObjectKind::Cno => Cno::own(filled(|out| dat_cno_create(ia.h(), NO_AGENT, out))).free(),
            ObjectKind::Srq => ia.srq(&self.pz, 8, 1).free(),
        }
    }

    /// Checks that the object of each kind still exists: its handle has the right type.
    #[track_caller]
    pub(crate) fn expect_alive(&self) {
        for kind in ObjectKind::ALL.into_iter().filter(|kind| self.has(*kind)) {
            let number = filled(|out| dat_get_handle_type(self.handle(kind), out));
            assert!(number == kind.number(), "the {} is of type {number} now", kind.word());
        }
    }

    /// Leaks all objects except the IA. The caller closes the IA abruptly, which frees them.
    pub(crate) fn abandon(mut self) -> (Ia, Vec<(ObjectKind, Handle)>) {
        let others = ObjectKind::ALL.into_iter().filter(|kind| *kind != ObjectKind::Ia && self.has(*kind));
        let mut handles: Vec<_> = others.map(|kind| (kind, Handle::of(self.handle(kind)))).collect();
        let evds = [&self.recv, &self.request, &self.events, &self.requests].map(Evd::h);
        handles.extend(evds.map(|evd| (ObjectKind::Evd, Handle::of(evd))));
        handles.extend([(ObjectKind::Ep, Handle::of(self.reserved.h())), (ObjectKind::Ep, Handle::of(self.asker.h()))]);
        handles.push((ObjectKind::Pz, Handle::of(self.pz.h())));
        self.cr = None;
        let ia = self.ia.clone();
        // The abrupt close of the IA will free all objects. The registered memory stays allocated.
        std::mem::forget(self);
        (ia, handles)
    }
}

impl Drop for OneOfEach {
    fn drop(&mut self) {
        if let Some(cr) = self.cr.take()
            && !std::thread::panicking()
        {
            ok(dat_cr_reject(cr.h()));
        }
    }
}

/// Connects to the `first` qualifier, on which a PSP listens. Returns the request.
#[track_caller]
fn ask(ctx: &Ctx, ia: &Ia, ep: &Ep, first: u64, requests: &Evd) -> DAT_CR_HANDLE {
    let (address, flags) = (ia.address(), DAT_CONNECT_DEFAULT_FLAG);
    let qual = ctx.qual(first);
    let (pointer, no_limit) = (address.pointer(), DAT_TIMEOUT_INFINITE);
    ok(dat_ep_connect(ep.h(), pointer, qual, no_limit, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags));
    expect_cr(requests.h()).cr_handle
}
