//! Helpers: a call of `dat_ep_connect` as a value, and EPs that lack an object which the call needs.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

/// A call of `dat_ep_connect`, valid except for the field that the case changes.
#[derive(Clone)]
pub(super) struct Call<'a> {
    pub(super) address: Option<Address>,
    pub(super) qual: DAT_CONN_QUAL,
    pub(super) timeout: DAT_TIMEOUT,
    pub(super) size: DAT_COUNT,
    pub(super) data: &'a [u8],
    pub(super) qos: DAT_QOS,
    pub(super) flags: DAT_CONNECT_FLAGS,
}

impl<'a> Call<'a> {
    /// Sets private data.
    pub(super) fn carrying(self, data: &'a [u8]) -> Self {
        Call { size: data.len() as DAT_COUNT, data, ..self }
    }

    pub(super) fn to(ia: &Ia, qual: DAT_CONN_QUAL) -> Self {
        Call {
            address: Some(ia.address()),
            qual,
            timeout: DAT_TIMEOUT_INFINITE,
            size: 0,
            data: &[],
            qos: DAT_QOS_BEST_EFFORT,
            flags: DAT_CONNECT_DEFAULT_FLAG,
        }
    }

    pub(super) fn make(&self, ep: DAT_EP_HANDLE) -> DAT_RETURN {
        let address = self.address.as_ref().map_or(null_mut(), |address| address.pointer());
        let data = if self.data.is_empty() { null_mut() } else { self.data.as_ptr().cast_mut().cast() };
        dat_ep_connect(ep, address, self.qual, self.timeout, self.size, data, self.qos, self.flags)
    }
}

/// Creates an EP without a connect EVD.
pub(super) fn without_connect_evd(conn: &Conn) -> Ep {
    let (ia, pz, recv, request) = (conn.ia.h(), conn.pz.h(), conn.recv.h(), conn.request.h());
    Ep::own(filled(|out| dat_ep_create(ia, pz, recv, request, DAT_HANDLE_NULL, &ep_attr(), out)))
}

/// Creates an EP without a PZ.
pub(super) fn without_pz(conn: &Conn) -> Ep {
    let (ia, recv, request, events) = (conn.ia.h(), conn.recv.h(), conn.request.h(), conn.events.h());
    Ep::own(filled(|out| dat_ep_create(ia, DAT_HANDLE_NULL, recv, request, events, &ep_attr(), out)))
}

/// Checks that a refused call has left the EP unconnected and without a connection event.
#[track_caller]
pub(super) fn expect_unconnected(conn: &Conn) {
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    expect_nothing(conn.events.h());
}
