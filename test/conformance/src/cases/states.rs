//! Every EP state and every call that may or may not be made in it. Cases only; what several files need goes into the kit.
#![forbid(unsafe_code)]

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    // A family from a table: one case per line, each with a name of its own.
    let states = [("unconnected", DAT_EP_STATE_UNCONNECTED), ("connected", DAT_EP_STATE_CONNECTED)];
    let named = states.map(|(word, state)| {
        local(move |ctx| is_reported(ctx, state)).named(format!("state_{word}_is_reported")).proves("endpoints 1")
    });
    named.into()
}

fn is_reported(ctx: &Ctx, state: DAT_EP_STATE) {
    let (near, _far) = match state {
        DAT_EP_STATE_UNCONNECTED => (Conn::unconnected(&ctx.ia(), &Setup::default()), None),
        _ => {
            let (near, far) = ctx.loopback();
            (near, Some(far))
        }
    };
    near.ep.expect_state(state);
    assert_eq!(near.ep.param().ep_state, state);
}
