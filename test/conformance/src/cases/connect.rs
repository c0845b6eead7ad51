//! Service points, connecting, accepting, refusing, disconnecting, time-outs. Cases only; what several files need goes into the
//! kit.
#![forbid(unsafe_code)]

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases!["consumers 13": connect_one_end_disconnects_and_both_hear => pair(disconnects, hears)]
}

fn disconnects(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    conn.disconnect();
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
}

fn hears(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
}
