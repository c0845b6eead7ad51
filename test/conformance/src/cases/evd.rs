//! EVDs: creation, waiting, software events, enabling, resizing, overflow. Cases only; what several files need goes into the
//! kit.
#![forbid(unsafe_code)]

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "events 2.5": evd_wait_zero_timeout_is_timeout_expired,
        "events 2.4": evd_software_event_comes_back_with_its_pointer,
    ]
}

fn evd_wait_zero_timeout_is_timeout_expired(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(4, DAT_EVD_DTO_FLAG);
    let mut more = 0;
    let code = untouched(|event| dat_evd_wait(evd.h(), 0, 1, event, &mut more));
    refused(code, DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
}

fn evd_software_event_comes_back_with_its_pointer(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(4, DAT_EVD_SOFTWARE_FLAG);
    ok(dat_evd_post_se(evd.h(), &software_event(0x1234)));
    let event = expect_event(evd.h(), SOON);
    assert_eq!(event.software().addr(), 0x1234);
    assert_eq!(event.evd(), evd.h());
    expect_nothing(evd.h());
}
