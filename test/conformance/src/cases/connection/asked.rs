//! Helpers for pending connection requests and their requesters.
#![forbid(unsafe_code)]

use crate::cases::ep::scene::{ConnectionRequest, silent_listener};
use crate::kit::*;

use super::call::Call;

/// A pending connection request with its requester and its listener, and an EP that can accept it.
pub(super) struct PendingRequest {
    pub(super) request: ConnectionRequest,
    pub(super) client: Conn,
    pub(super) server: Conn,
    pub(super) psp: Psp,
    pub(super) requests: Evd,
    pub(super) ia: Ia,
}

#[track_caller]
pub(super) fn asked(ctx: &Ctx, data: &[u8]) -> PendingRequest {
    let ia = ctx.ia();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, psp) = silent_listener(ctx, &ia, 0);
    ok(Call::to(&ia, ctx.qual(0)).carrying(data).make(client.ep.h()));
    PendingRequest { request: ConnectionRequest::arrives(&requests), client, server, psp, requests, ia }
}

#[track_caller]
pub(super) fn accepted(request: ConnectionRequest, client: &Conn, server: &Conn) {
    request.accept(&server.ep);
    established(client, server);
}

#[track_caller]
pub(super) fn data_of(request: &ConnectionRequest) -> Vec<u8> {
    let param = request.param();
    bytes_at(param.private_data, param.private_data_size as usize)
}

pub(super) fn pattern(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|at| (at as u8).wrapping_mul(3).wrapping_add(seed) | 1).collect()
}
