//! Objects that free themselves at the end of a case and check that the call succeeds.
//!
//! Declare objects in the order of use (IA, PZ, EVDs, EP): they are freed in reverse. A case that has failed makes no
//! further checks. `object.h()` returns the handle, `leak()` gives up ownership, `free()` frees and checks immediately.
#![forbid(unsafe_code)]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "handles go to the library under test as they are")]

use std::ffi::CString;
use std::panic::Location;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use dat_abi::*;

use crate::api::*;
use crate::ctx::Ctx;
use crate::names;

use super::codes::{filled, ok, zeroed};
use super::event::software_event;
use super::memory::Memory;

/// A handle that threads may share.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Handle(usize);

impl Handle {
    pub(crate) fn of(handle: DAT_HANDLE) -> Self {
        Handle(handle.expose_provenance())
    }

    pub(crate) fn h(self) -> DAT_HANDLE {
        with_exposed_provenance_mut(self.0)
    }
}

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident by $free:ident;)*) => { $(
        $(#[$doc])*
        pub(crate) struct $name {
            handle: Option<Handle>,
            made: &'static Location<'static>,
        }

        impl $name {
            /// Takes ownership of a handle.
            #[track_caller]
            pub(crate) fn own(handle: DAT_HANDLE) -> Self {
                $name { handle: Some(Handle::of(handle)), made: Location::caller() }
            }

            pub(crate) fn h(&self) -> DAT_HANDLE {
                self.handle.expect("the handle is set until `free` or `leak`").h()
            }

            /// Frees the object, which must succeed. Returns the stale handle.
            #[track_caller]
            pub(crate) fn free(self) -> DAT_HANDLE {
                let handle = self.leak();
                ok($free(handle));
                handle
            }

            /// Returns the handle without freeing it.
            pub(crate) fn leak(mut self) -> DAT_HANDLE {
                self.handle.take().expect("the handle is set until `free` or `leak`").h()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                let Some(handle) = self.handle.take() else { return };
                let code = $free(handle.h());
                if code != DAT_SUCCESS && !std::thread::panicking() {
                    let words = names::of_code(code);
                    panic!("{} of the object created at {}: {words}", stringify!($free), self.made);
                }
            }
        }
    )* };
}

objects! {
    Pz by dat_pz_free;
    Evd by dat_evd_free;
    Cno by dat_cno_free;
    Ep by dat_ep_free;
    Psp by dat_psp_free;
    Rsp by dat_rsp_free;
    /// A memory registration. [`Memory`] is a registration with its buffer.
    Lmr by dat_lmr_free;
    /// A memory window (RMR).
    Rmr by dat_rmr_free;
    Srq by dat_srq_free;
}

/// An open adapter. Clones share it. The drop of the last clone closes it gracefully, which detects objects that a case
/// has not freed. If the case has failed, it closes the adapter abruptly.
#[derive(Clone)]
pub(crate) struct Ia(Arc<Opened>);

struct Opened {
    handle: Handle,
    errors: Handle,
    made: &'static Location<'static>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let is_failing = std::thread::panicking();
        let flag = if is_failing { DAT_CLOSE_ABRUPT_FLAG } else { DAT_CLOSE_GRACEFUL_FLAG };
        let code = dat_ia_close(self.handle.h(), flag);
        if code != DAT_SUCCESS && !is_failing {
            panic!("dat_ia_close of the IA opened at {}: {}", self.made, names::of_code(code));
        }
    }
}

/// The IA that both roles share in a case with `shares_ia`.
static SHARED: Mutex<Weak<Opened>> = Mutex::new(Weak::new());

impl Ctx {
    /// Opens the adapter under test. In a case with `shares_ia`, returns the adapter that this or the other role has
    /// opened, while it is open.
    #[track_caller]
    pub(crate) fn ia(&self) -> Ia {
        if !self.shares_ia {
            return Ia::open(&self.provider, 8);
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = shared.upgrade() {
            return Ia(open);
        }
        let ia = Ia::open(&self.provider, 8);
        *shared = Arc::downgrade(&ia.0);
        ia
    }

    /// The adapter's name for `dat_ia_openv`. Must outlive the use of its pointer.
    pub(crate) fn name(&self) -> CString {
        CString::new(self.provider.as_str()).expect("the name has no NUL")
    }
}

impl Ia {
    /// Opens this adapter, with a separate EVD for asynchronous errors.
    #[track_caller]
    pub(crate) fn open(name: &str, qlen: DAT_COUNT) -> Self {
        let name = CString::new(name).expect("the name has no NUL");
        let (mut errors, mut ia) = (DAT_HANDLE_NULL, DAT_HANDLE_NULL);
        let (major, minor) = (DAT_VERSION_MAJOR, DAT_VERSION_MINOR);
        ok(dat_ia_openv(name.as_ptr().cast_mut(), qlen, &mut errors, &mut ia, major, minor, DAT_THREADSAFE));
        Ia(Arc::new(Opened { handle: Handle::of(ia), errors: Handle::of(errors), made: Location::caller() }))
    }

    pub(crate) fn h(&self) -> DAT_IA_HANDLE {
        self.0.handle.h()
    }

    /// Closes the adapter gracefully, which must succeed. The caller must hold the last clone. Returns the stale
    /// handle.
    #[track_caller]
    pub(crate) fn close(self) -> DAT_IA_HANDLE {
        let handle = self.leak();
        ok(dat_ia_close(handle, DAT_CLOSE_GRACEFUL_FLAG));
        handle
    }

    /// Returns the handle without closing it.
    pub(crate) fn leak(self) -> DAT_IA_HANDLE {
        let handle = self.h();
        std::mem::forget(self);
        handle
    }

    /// The EVD for asynchronous errors.
    pub(crate) fn errors(&self) -> DAT_EVD_HANDLE {
        self.0.errors.h()
    }

    /// Returns the adapter's attributes.
    #[track_caller]
    pub(crate) fn attr(&self) -> DAT_IA_ATTR {
        filled(|out| dat_ia_query(self.h(), null_mut(), DAT_IA_FIELD_ALL, out, 0, null_mut()))
    }

    /// Returns the provider's attributes.
    #[track_caller]
    pub(crate) fn provider_attr(&self) -> DAT_PROVIDER_ATTR {
        filled(|out| dat_ia_query(self.h(), null_mut(), 0, null_mut(), DAT_PROVIDER_FIELD_ALL, out))
    }

    #[track_caller]
    pub(crate) fn pz(&self) -> Pz {
        Pz::own(filled(|out| dat_pz_create(self.h(), out)))
    }

    /// Creates an EVD without a CNO.
    #[track_caller]
    pub(crate) fn evd(&self, qlen: DAT_COUNT, flags: DAT_EVD_FLAGS) -> Evd {
        Evd::own(filled(|out| dat_evd_create(self.h(), qlen, DAT_HANDLE_NULL, flags, out)))
    }

    #[track_caller]
    pub(crate) fn evd_on(&self, cno: &Cno, qlen: DAT_COUNT, flags: DAT_EVD_FLAGS) -> Evd {
        Evd::own(filled(|out| dat_evd_create(self.h(), qlen, cno.h(), flags, out)))
    }

    /// Creates a CNO without an agent.
    #[track_caller]
    pub(crate) fn cno(&self) -> Cno {
        self.cno_with(NO_AGENT)
    }

    #[track_caller]
    pub(crate) fn cno_with(&self, agent: DAT_OS_WAIT_PROXY_AGENT) -> Cno {
        Cno::own(filled(|out| dat_cno_create(self.h(), agent, out)))
    }

    /// Creates an EP with [`ep_attr`].
    #[track_caller]
    pub(crate) fn ep(&self, pz: &Pz, recv: &Evd, request: &Evd, connect: &Evd) -> Ep {
        self.ep_with(pz, recv, request, connect, &ep_attr())
    }

    #[track_caller]
    pub(crate) fn ep_with(&self, pz: &Pz, recv: &Evd, request: &Evd, connect: &Evd, attr: &DAT_EP_ATTR) -> Ep {
        Ep::own(filled(|out| dat_ep_create(self.h(), pz.h(), recv.h(), request.h(), connect.h(), attr, out)))
    }

    /// Creates an EP that receives from a shared queue.
    #[track_caller]
    pub(crate) fn ep_on(&self, srq: &Srq, pz: &Pz, recv: &Evd, request: &Evd, connect: &Evd) -> Ep {
        let (ia, pz, recv, request, connect) = (self.h(), pz.h(), recv.h(), request.h(), connect.h());
        let attr = ep_attr();
        Ep::own(filled(|out| dat_ep_create_with_srq(ia, pz, recv, request, connect, srq.h(), &attr, out)))
    }

    #[track_caller]
    pub(crate) fn srq(&self, pz: &Pz, recvs: DAT_COUNT, segments: DAT_COUNT) -> Srq {
        let mut attr = DAT_SRQ_ATTR { max_recv_dtos: recvs, max_recv_iov: segments, low_watermark: 0 };
        Srq::own(filled(|out| dat_srq_create(self.h(), pz.h(), &mut attr, out)))
    }

    /// Listens on a qualifier with a PSP for which the consumer creates the EPs.
    #[track_caller]
    pub(crate) fn psp(&self, qual: DAT_CONN_QUAL, evd: &Evd) -> Psp {
        Psp::own(filled(|out| dat_psp_create(self.h(), qual, evd.h(), DAT_PSP_CONSUMER_FLAG, out)))
    }

    /// Reserves an EP for one connection on a qualifier.
    #[track_caller]
    pub(crate) fn rsp(&self, qual: DAT_CONN_QUAL, ep: &Ep, evd: &Evd) -> Rsp {
        Rsp::own(filled(|out| dat_rsp_create(self.h(), qual, ep.h(), evd.h(), out)))
    }

    /// Creates a zeroed buffer, registered with all privileges.
    #[track_caller]
    pub(crate) fn memory(&self, pz: &Pz, length: usize) -> Memory {
        Memory::register(self, pz, length, DAT_MEM_PRIV_ALL_FLAG)
    }

    /// Creates a zeroed buffer, registered with these privileges.
    #[track_caller]
    pub(crate) fn memory_with(&self, pz: &Pz, length: usize, privileges: DAT_MEM_PRIV_FLAGS) -> Memory {
        Memory::register(self, pz, length, privileges)
    }
}

impl Pz {
    #[track_caller]
    pub(crate) fn rmr(&self) -> Rmr {
        Rmr::own(filled(|out| dat_rmr_create(self.h(), out)))
    }
}

impl Ep {
    /// Returns the state from `dat_ep_get_status`.
    #[track_caller]
    pub(crate) fn state(&self) -> DAT_EP_STATE {
        filled(|out| dat_ep_get_status(self.h(), out, null_mut(), null_mut()))
    }

    /// Queries all parameters of the EP.
    #[track_caller]
    pub(crate) fn param(&self) -> DAT_EP_PARAM {
        filled(|out| dat_ep_query(self.h(), DAT_EP_FIELD_ALL, out))
    }

    /// Checks that the EP is in this state.
    #[track_caller]
    pub(crate) fn expect_state(&self, wanted: DAT_EP_STATE) {
        let state = self.state();
        assert!(state == wanted, "the EP is in {}, wanted {}", state_name(state), state_name(wanted));
    }
}

impl Evd {
    /// Queries all parameters.
    #[track_caller]
    pub(crate) fn param(&self) -> DAT_EVD_PARAM {
        filled(|out| dat_evd_query(self.h(), DAT_EVD_FIELD_ALL, out))
    }

    /// Posts a software event with this pointer.
    #[track_caller]
    pub(crate) fn post(&self, pointer: usize) {
        ok(dat_evd_post_se(self.h(), &software_event(pointer)));
    }
}

/// The null agent: the CNO only wakes waiters.
pub(crate) const NO_AGENT: DAT_OS_WAIT_PROXY_AGENT =
    DAT_OS_WAIT_PROXY_AGENT { instance_data: null_mut(), proxy_agent_func: None };

/// EP attributes that every provider supports, far below any limit.
pub(crate) fn ep_attr() -> DAT_EP_ATTR {
    DAT_EP_ATTR {
        service_type: DAT_SERVICE_TYPE_RC,
        max_message_size: 0x1_0000,
        max_rdma_size: 0x1_0000,
        max_recv_dtos: 16,
        max_request_dtos: 16,
        max_recv_iov: 4,
        max_request_iov: 4,
        max_rdma_read_in: 4,
        max_rdma_read_out: 4,
        max_rdma_read_iov: 4,
        max_rdma_write_iov: 4,
        ..zeroed()
    }
}

/// Converts a number to a cookie or context.
pub(crate) fn cookie(number: u64) -> DAT_CONTEXT {
    DAT_CONTEXT { as_64: number }
}

/// Returns the name of an EP state.
pub(crate) fn state_name(state: DAT_EP_STATE) -> &'static str {
    crate::names::EP_STATES.iter().find(|(known, _)| *known == state).map_or("unknown state", |(_, name)| name)
}
