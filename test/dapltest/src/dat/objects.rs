//! Objects that are freed when dropped. A structure with several of them declares its fields in such an order that each
//! object is dropped after all objects that use it.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};
use std::{mem, thread};

use dat_abi::*;
use udapl::Address;

use super::raw::{self, CallResult, Handle, Post};

/// Time limit for a disconnected endpoint to flush its work requests.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// An object whose freeing may be refused.
pub(crate) trait Object: Sized {
    /// Frees the object before its drop. Returns the return code.
    fn free(self) -> CallResult;
}

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident: $free:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub(crate) struct $name(Handle);

            impl $name {
                /// Handle for calls into libdat.
                pub(crate) fn handle(&self) -> Handle {
                    self.0
                }
            }

            impl Object for $name {
                fn free(self) -> CallResult {
                    let handle = self.0;
                    mem::forget(self);
                    $free(handle)
                }
            }

            impl Drop for $name {
                fn drop(&mut self) {
                    // Callers that need the return code call `free` instead.
                    let _ = $free(self.0);
                }
            }
        )*
    };
}

objects! {
    /// An open adapter. When dropped it is closed abruptly.
    Ia: |ia| raw::ia_close(ia, DAT_CLOSE_ABRUPT_FLAG);
    Pz: raw::pz_free;
    /// A CNO that several EVDs may notify.
    Cno: raw::cno_free;
    /// An endpoint, without the steps that [`Ep`] takes before the free.
    EpHandle: raw::ep_free;
    Psp: raw::psp_free;
    Rsp: raw::rsp_free;
    /// A remote memory region (memory window).
    Rmr: raw::rmr_free;
    EvdHandle: raw::evd_free;
}

/// An endpoint. Before the free of an endpoint that was connected, it is disconnected if work requests are outstanding,
/// and the EVDs of its completions are emptied: some providers keep a pointer to the endpoint in each queued
/// completion.
#[derive(Debug)]
pub(crate) struct Ep {
    ep: EpHandle,
    /// EVDs on which its work requests complete.
    dtos: [Handle; 2],
}

/// An EVD, and the CNO that it notifies.
#[derive(Debug)]
pub(crate) struct Evd {
    evd: EvdHandle,
    pub(super) cno: Option<Handle>,
}

impl Ia {
    /// Opens an adapter by its name in dat.conf.
    pub(crate) fn open(name: &str) -> CallResult<Self> {
        raw::ia_open(name).map(|(ia, _)| Ia(ia))
    }

    /// Closes the adapter gracefully, which is refused while objects are left.
    pub(crate) fn close(self) -> CallResult {
        let ia = self.0;
        raw::ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG)?;
        mem::forget(self);
        Ok(())
    }

    pub(crate) fn pz(&self) -> CallResult<Pz> {
        raw::pz_create(self.0).map(Pz)
    }

    pub(crate) fn cno(&self) -> CallResult<Cno> {
        raw::cno_create(self.0).map(Cno)
    }

    /// Creates an EVD for `qlen` events of these kinds.
    pub(crate) fn evd(&self, qlen: usize, flags: DAT_EVD_FLAGS) -> CallResult<Evd> {
        self.evd_on(qlen, flags, None)
    }

    /// Creates an EVD that notifies this CNO, if one is given.
    pub(crate) fn evd_on(&self, qlen: usize, flags: DAT_EVD_FLAGS, cno: Option<&Cno>) -> CallResult<Evd> {
        let cno = cno.map(Cno::handle);
        let qlen = DAT_COUNT::try_from(qlen).unwrap_or(DAT_COUNT::MAX);
        let evd = raw::evd_create(self.0, qlen, cno.unwrap_or(Handle::NULL), flags)?;
        Ok(Evd { evd: EvdHandle(evd), cno })
    }

    /// Creates an endpoint with EVDs for receives, requests and connection events.
    pub(crate) fn ep(&self, pz: &Pz, evds: [&Evd; 3], attr: Option<&DAT_EP_ATTR>) -> CallResult<Ep> {
        let [recv, request, conn] = evds.map(Evd::handle);
        let ep = EpHandle(raw::ep_create(self.0, pz.handle(), [recv, request, conn], attr)?);
        Ok(Ep { ep, dtos: [recv, request] })
    }

    pub(crate) fn psp(&self, qual: DAT_CONN_QUAL, evd: &Evd) -> CallResult<Psp> {
        raw::psp_create(self.0, qual, evd.handle()).map(Psp)
    }

    /// Creates a service point at a free qualifier.
    pub(crate) fn psp_any(&self, evd: &Evd) -> CallResult<(Psp, DAT_CONN_QUAL)> {
        raw::psp_create_any(self.0, evd.handle()).map(|(psp, qual)| (Psp(psp), qual))
    }

    pub(crate) fn rsp(&self, qual: DAT_CONN_QUAL, ep: &Ep, evd: &Evd) -> CallResult<Rsp> {
        raw::rsp_create(self.0, qual, ep.handle(), evd.handle()).map(Rsp)
    }
}

impl Evd {
    pub(crate) fn handle(&self) -> Handle {
        self.evd.handle()
    }
}

impl Object for Evd {
    fn free(self) -> CallResult {
        self.evd.free()
    }
}

impl Object for Ep {
    fn free(self) -> CallResult {
        self.flush();
        let Ep { ep, .. } = &self;
        let answer = raw::ep_free(ep.handle());
        mem::forget(self);
        answer
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Pz {
    pub(crate) fn rmr(&self) -> CallResult<Rmr> {
        raw::rmr_create(self.0).map(Rmr)
    }
}

impl Ep {
    pub(crate) fn handle(&self) -> Handle {
        self.ep.handle()
    }

    /// If work requests are outstanding, disconnects, and dequeues completions until none is outstanding. Gives up
    /// after [`FLUSH_LIMIT`]. Returns at once if the endpoint is unconnected, because posted receives then never
    /// complete.
    fn flush(&self) {
        let deadline = Instant::now() + FLUSH_LIMIT;
        let mut is_connected = true;
        while let Ok((state, recv_idle, request_idle)) = raw::ep_status(self.handle()) {
            if state == DAT_EP_STATE_UNCONNECTED {
                return;
            }
            for evd in self.dtos {
                while raw::evd_dequeue(evd).is_ok() {}
            }
            if recv_idle && request_idle {
                return;
            }
            if is_connected {
                // An error is ignored: the state may have changed since the query.
                let _ = self.disconnect(DAT_CLOSE_ABRUPT_FLAG);
                is_connected = false;
            }
            if Instant::now() > deadline {
                let limit = FLUSH_LIMIT.as_secs();
                return eprintln!(
                    "dapltest: an endpoint still has work requests {limit} s after its disconnect; it is freed with them"
                );
            }
            thread::yield_now();
        }
    }

    /// Connects. An event on the connect EVD reports the result, at the latest after `microseconds`.
    pub(crate) fn connect(&self, to: Address, qual: DAT_CONN_QUAL, microseconds: u32, qos: DAT_QOS) -> CallResult {
        raw::ep_connect(self.handle(), to, qual, microseconds, qos)
    }

    pub(crate) fn accept(&self, cr: Handle) -> CallResult {
        raw::cr_accept(cr, self.handle())
    }

    pub(crate) fn disconnect(&self, flags: DAT_CLOSE_FLAGS) -> CallResult {
        raw::ep_disconnect(self.handle(), flags)
    }

    pub(crate) fn post(&self, post: Post, segments: &mut [DAT_LMR_TRIPLET], cookie: u64) -> CallResult {
        raw::post(self.handle(), post, segments, cookie)
    }
}
