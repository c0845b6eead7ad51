//! Two connected endpoints of one adapter, each with its own EVDs for receives, requests and connection events.

use std::ptr::{null, null_mut};

use dat_abi::*;

use crate::entries::{Handle, address, dat, made, next, request, sure};

/// One endpoint. Its handles are stored as numbers, which any thread may use.
#[derive(Clone, Copy)]
pub(crate) struct End {
    ep: usize,
    received: usize,
    sent: usize,
    connected: usize,
}

const LENGTH: DAT_COUNT = 4096;

impl End {
    pub(crate) fn new(ia: Handle, pz: Handle) -> Self {
        let evd = |flags| sure(made!(evd_create_func(ia, LENGTH, null_mut(), flags)));
        let (received, sent) = (evd(DAT_EVD_DTO_FLAG), evd(DAT_EVD_DTO_FLAG));
        let connected = evd(DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG);
        let ep = sure(made!(ep_create_func(ia, pz, received, sent, connected, null())));
        let [ep, received, sent, connected] = [ep, received, sent, connected].map(|handle| handle as usize);
        End { ep, received, sent, connected }
    }

    pub(crate) fn ep(&self) -> Handle {
        self.ep as Handle
    }

    /// Returns the EVD of the receives.
    pub(crate) fn received(&self) -> Handle {
        self.received as Handle
    }

    /// Returns the EVD of the requests.
    pub(crate) fn sent(&self) -> Handle {
        self.sent as Handle
    }

    /// Returns the EVD of the connection events.
    pub(crate) fn connected(&self) -> Handle {
        self.connected as Handle
    }
}

/// Connects `active` to `passive`. Both must be new or reset.
pub(crate) fn connect(ia: Handle, active: End, passive: End) {
    let mut qual = 0;
    let psp = sure(made!(psp_create_any_func(ia, &mut qual, passive.connected(), DAT_PSP_CONSUMER_FLAG)));
    let code = dat!(ep_connect_func(
        active.ep(),
        address(ia),
        qual,
        DAT_TIMEOUT_INFINITE,
        0,
        null_mut(),
        DAT_QOS_BEST_EFFORT,
        DAT_CONNECT_DEFAULT_FLAG
    ));
    assert_eq!(code, DAT_SUCCESS, "{code:#x}");
    let cr = request(&next(passive.connected())).expect("a request");
    assert_eq!(dat!(cr_accept_func(cr, passive.ep(), 0, null_mut())), DAT_SUCCESS);
    for end in [active, passive] {
        assert_eq!(next(end.connected()).event_number, DAT_CONNECTION_EVENT_ESTABLISHED);
    }
    assert_eq!(dat!(psp_free_func(psp)), DAT_SUCCESS);
}
