//! Many concurrent connections, on one EVD or from many threads. Each is established, and then ends with one event.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::cases::ep::scene::ConnectionRequest;
use crate::kit::*;

use super::call::Call;
use super::disconnect::is_over;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 13.7": many_endpoints_on_one_evd_lose_no_event => pair(many_client, many_server).limit(60),
        "spec/endpoints 4.2": many_threads_connect_without_failure => pair(threads_client, threads_server).limit(60),
    ]
}

const COUNT: usize = 40;

/// Like dtestcm: a burst of connects. All EPs share a connect EVD with space for two events per connect, and a DTO EVD
/// of length one. The event loop frees the EPs.
fn many_client(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, dto) = (ia.pz(), ia.evd(1, DAT_EVD_DTO_FLAG));
    let events = ia.evd(2 * COUNT as DAT_COUNT, DAT_EVD_CONNECTION_FLAG);
    let address = ctx.receive_address();
    let mut eps: BTreeMap<DAT_EP_HANDLE, Ep> = (0..COUNT)
        .map(|_| {
            let ep = ia.ep(&pz, &dto, &dto, &events);
            (ep.h(), ep)
        })
        .collect();
    for ep in eps.values() {
        ok(Call { address: Some(address.clone()), ..Call::to(&ia, ctx.qual(0)) }.make(ep.h()));
    }
    let mut established = 0;
    while !eps.is_empty() {
        let event = expect_event(events.h(), SOON);
        if event.number() == DAT_CONNECTION_EVENT_ESTABLISHED {
            established += 1;
            ok(dat_ep_disconnect(event.connection().ep_handle, DAT_CLOSE_DEFAULT));
        } else {
            take_ended(&event, &mut eps).free();
        }
    }
    assert_eq!(established, COUNT, "a connection was never established");
    expect_nothing(events.h());
    events.free();
    ctx.meet();
}

/// Returns the EP that this DISCONNECTED event names.
fn take_ended(event: &Event, eps: &mut BTreeMap<DAT_EP_HANDLE, Ep>) -> Ep {
    event.is(DAT_CONNECTION_EVENT_DISCONNECTED);
    eps.remove(&event.connection().ep_handle).expect("each EP gets one event")
}

fn many_server(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, dto) = (ia.pz(), ia.evd(1, DAT_EVD_DTO_FLAG));
    let events = ia.evd(2 * COUNT as DAT_COUNT, DAT_EVD_CONNECTION_FLAG);
    let requests = ia.evd(COUNT as DAT_COUNT, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&ia);
    let mut eps = BTreeMap::new();
    for _ in 0..COUNT {
        let ep = ia.ep(&pz, &dto, &dto, &events);
        ConnectionRequest::arrives(&requests).accept(&ep);
        eps.insert(ep.h(), ep);
    }
    let mut established = 0;
    while !eps.is_empty() {
        let event = expect_event(events.h(), SOON);
        if event.number() == DAT_CONNECTION_EVENT_ESTABLISHED {
            established += 1;
        } else {
            take_ended(&event, &mut eps).free();
        }
    }
    assert_eq!(established, COUNT, "a connection was never established");
    psp.free();
    requests.free();
    expect_nothing(events.h());
    events.free();
    ctx.meet();
}

const THREADS: usize = 4;

const CONNECTIONS_PER_THREAD: usize = 20;

fn threads_client(ctx: &Ctx) {
    let ia = ctx.ia();
    let address = ctx.receive_address();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let conn = Conn::on(&ia);
                for _ in 0..CONNECTIONS_PER_THREAD {
                    conn.connect(&address, ctx.qual(0));
                    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
                    conn.disconnect();
                    ok(dat_ep_reset(conn.ep.h()));
                }
            });
        }
    });
    ctx.meet();
}

fn threads_server(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(64, DAT_EVD_CR_FLAG);
    let _psp = ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&ia);
    std::thread::scope(|scope| {
        for _ in 0..THREADS * CONNECTIONS_PER_THREAD {
            let request = Handle::of(ConnectionRequest::arrives(&requests).leak());
            scope.spawn({
                let ia = ia.clone();
                move || {
                    let conn = Conn::on(&ia);
                    ConnectionRequest::own(request.h()).accept(&conn.ep);
                    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
                    is_over(&conn);
                }
            });
        }
    });
    ctx.meet();
}
