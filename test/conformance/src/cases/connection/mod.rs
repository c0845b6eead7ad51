//! Connections: connect, listen, accept, reject, disconnect. Data transfer is in `transfer`.
#![forbid(unsafe_code)]

mod asked;
mod broken;
mod call;
mod connect;
mod cr;
mod cr_handoff;
mod cr_left;
mod deaths;
pub(crate) mod disconnect;
mod dup_connect;
mod many_connections;
mod points;
mod private_data;
mod psp;
mod psp_life;
mod rsp;
mod timeouts;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let modules = [
        connect::cases,
        dup_connect::cases,
        disconnect::cases,
        timeouts::cases,
        deaths::cases,
        broken::cases,
        many_connections::cases,
        psp::cases,
        psp_life::cases,
        rsp::cases,
        cr::cases,
        cr_left::cases,
        cr_handoff::cases,
        private_data::cases,
    ];
    modules.into_iter().flat_map(|module| module()).collect()
}
