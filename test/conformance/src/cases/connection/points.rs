//! Helpers for the cases of public and reserved service points: an EVD for requests, requesters, a message over a new
//! connection, a check that no program listens.
#![forbid(unsafe_code)]

use crate::kit::*;

/// The code for a qualifier in use, except for a second PSP of one IA. It lacks the error class bit, as programs that
/// search for a free port expect.
pub(super) const BARE_IN_USE: DAT_RETURN = DAT_CONN_QUAL_IN_USE;

pub(super) fn cr_evd(ia: &Ia) -> Evd {
    ia.evd(8, DAT_EVD_CR_FLAG)
}

/// Connects a new EP to a qualifier of this IA, without waiting.
pub(super) fn requester(ia: &Ia, qual: DAT_CONN_QUAL) -> Conn {
    let conn = Conn::on(ia);
    conn.connect(&ia.address(), qual);
    conn
}

#[track_caller]
pub(super) fn carries(client: &Conn, server: &Conn) {
    post_empty_recv(server, 31);
    post_empty_send(client, 32);
    expect_dto(server.recv.h(), 31, DAT_DTO_SUCCESS, 0);
    expect_dto(client.request.h(), 32, DAT_DTO_SUCCESS, 0);
}

/// Checks that no program listens on the qualifier.
#[track_caller]
pub(super) fn expect_no_listener(ia: &Ia, qual: DAT_CONN_QUAL) {
    requester(ia, qual).expect(DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
}
