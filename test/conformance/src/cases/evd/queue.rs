//! Events in the queue of an EVD: software events are posted and dequeued, a full queue refuses posts, the events of a
//! stream keep their order, and each event is returned once. Also EVDs with several streams.
#![forbid(unsafe_code)]

use std::ptr::{null, null_mut};

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 2.7": evd_post_without_the_software_stream_returns_invalid_arg1,
        "spec/events 2.7": evd_post_without_an_event_returns_invalid_arg2,
        "spec/events 2.7": evd_post_of_an_event_that_is_no_software_event_returns_invalid_arg2,
        "spec/events 2.7": evd_post_on_a_full_queue_returns_queue_full,
        "spec/events 2.7": evd_post_on_a_full_queue_keeps_the_queued_events,
        "spec/events 2.7": evd_post_succeeds_as_often_as_the_queried_length,
        "spec/events 2.7": evd_post_succeeds_again_after_an_event_is_removed,
        "spec/events 2.7": evd_post_keeps_the_pointer_and_ignores_the_evd_handle_of_the_event,
        "spec/events 2.7": evd_post_from_many_threads_loses_no_event,
        "spec/events 2.4": evd_software_event_is_returned_with_its_pointer,
        "spec/events 2.6": evd_dequeue_of_an_empty_queue_returns_queue_empty_without_subtype,
        "spec/events 2.6": evd_dequeue_without_out_pointer_returns_invalid_arg2,
        "spec/events 2.6": evd_dequeue_without_out_pointer_dequeues_nothing,
        "spec/events 2.6": evd_dequeue_fills_the_whole_event,
        "spec/events 2.6": evd_dequeue_of_a_dto_puts_the_ep_handle_first_in_the_event_data,
        "spec/events 1.1": evd_events_of_a_stream_keep_their_order,
        "spec/events 1.1": evd_concurrent_dequeues_return_each_event_once,
        "spec/events 1.1": evd_established_comes_before_the_first_receive => pair(client_sends_after_established, server_receives_in_order),
        "spec/events 1.1": evd_receives_come_before_disconnected => pair(client_sends_and_disconnects, server_receives_all_before_the_end),
        "spec/consumers 5": evd_with_all_streams_gets_cr_connection_dto_and_software_events,
        "spec/events 2.6": evd_shared_by_receives_and_requests_returns_both_completions,
        "spec/events 1.4": evd_smaller_than_the_posted_work_loses_no_completion,
        "spec/events 1.4": evd_of_length_1_queues_many_connection_requests,
        "spec/events 1.2": evd_bind_completions_come_on_the_request_evd => local(binds).needs(Need::Rmr),
    ]
}

fn pointers(evd: &Evd) -> Vec<usize> {
    drain(evd.h()).iter().map(|event| event.software().addr()).collect()
}

fn evd_post_without_the_software_stream_returns_invalid_arg1(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [DAT_EVD_CR_FLAG, DAT_EVD_DTO_FLAG, DAT_EVD_DEFAULT_FLAG] {
        let evd = ia.evd(8, flags);
        refused(dat_evd_post_se(evd.h(), &software_event(1)), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
        expect_nothing(evd.h());
    }
    refused(dat_evd_post_se(ia.errors(), &software_event(1)), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
}

fn evd_post_without_an_event_returns_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    refused(dat_evd_post_se(evd.h(), null()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    expect_nothing(evd.h());
}

fn evd_post_of_an_event_that_is_no_software_event_returns_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let numbers = [0, DAT_DTO_COMPLETION_EVENT, DAT_CONNECTION_EVENT_ESTABLISHED, DAT_SOFTWARE_EVENT + 1, u32::MAX];
    for number in numbers {
        let event = DAT_EVENT { event_number: number, ..software_event(1) };
        refused(dat_evd_post_se(evd.h(), &event), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
    expect_nothing(evd.h());
}

/// Posts as many events as the EVD's length, and returns their number.
fn fill(evd: &Evd) -> usize {
    let length = evd.param().evd_qlen as usize;
    for number in 1..=length {
        ok(dat_evd_post_se(evd.h(), &software_event(number)));
    }
    length
}

fn evd_post_on_a_full_queue_returns_queue_full(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(4, DAT_EVD_SOFTWARE_FLAG);
    fill(&evd);
    for _ in 0..3 {
        refused(dat_evd_post_se(evd.h(), &software_event(0xbad)), DAT_QUEUE_FULL, DAT_NO_SUBTYPE);
    }
    // The post has returned the error to its caller, so no asynchronous event reports it.
    expect_quiet(ia.errors(), std::time::Duration::from_millis(50));
}

fn evd_post_on_a_full_queue_keeps_the_queued_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(4, DAT_EVD_SOFTWARE_FLAG);
    let length = fill(&evd);
    refused(dat_evd_post_se(evd.h(), &software_event(0xbad)), DAT_QUEUE_FULL, DAT_NO_SUBTYPE);
    assert_eq!(pointers(&evd), (1..=length).collect::<Vec<_>>());
}

fn evd_post_succeeds_as_often_as_the_queried_length(ctx: &Ctx) {
    let ia = ctx.ia();
    for asked in [1, 3, 64, 1000] {
        let evd = ia.evd(asked, DAT_EVD_SOFTWARE_FLAG);
        let length = fill(&evd);
        refused(dat_evd_post_se(evd.h(), &software_event(0xbad)), DAT_QUEUE_FULL, DAT_NO_SUBTYPE);
        assert_eq!(drain(evd.h()).len(), length);
    }
}

fn evd_post_succeeds_again_after_an_event_is_removed(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(2, DAT_EVD_SOFTWARE_FLAG);
    let length = fill(&evd);
    for round in 0..100 {
        assert_eq!(expect_event(evd.h(), SOON).software().addr(), round + 1);
        ok(dat_evd_post_se(evd.h(), &software_event(round + 1 + length)));
        refused(dat_evd_post_se(evd.h(), &software_event(0xbad)), DAT_QUEUE_FULL, DAT_NO_SUBTYPE);
    }
}

fn evd_post_keeps_the_pointer_and_ignores_the_evd_handle_of_the_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    for pointer in [0, 1, usize::MAX] {
        // The EVD handle that the consumer left in the event is ignored.
        let event = DAT_EVENT { evd_handle: ia.errors(), ..software_event(pointer) };
        ok(dat_evd_post_se(evd.h(), &event));
        let event = expect_event(evd.h(), SOON);
        assert_eq!((event.evd(), event.software().addr()), (evd.h(), pointer));
    }
}

fn evd_post_from_many_threads_loses_no_event(ctx: &Ctx) {
    const EVENTS_PER_THREAD: usize = 500;
    let ia = ctx.ia();
    let evd = ia.evd(4000, DAT_EVD_SOFTWARE_FLAG);
    let handle = Handle::of(evd.h());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for number in 0..EVENTS_PER_THREAD {
                    ok(dat_evd_post_se(handle.h(), &software_event(thread * EVENTS_PER_THREAD + number)));
                }
            });
        }
    });
    let mut all = pointers(&evd);
    for thread in 0..4 {
        let own: Vec<usize> = all.iter().copied().filter(|number| number / EVENTS_PER_THREAD == thread).collect();
        assert!(own.is_sorted(), "events of one thread are out of order");
    }
    all.sort_unstable();
    assert_eq!(all, (0..4 * EVENTS_PER_THREAD).collect::<Vec<_>>());
}

fn evd_software_event_is_returned_with_its_pointer(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(4, DAT_EVD_SOFTWARE_FLAG);
    ok(dat_evd_post_se(evd.h(), &software_event(0x1234)));
    let event = expect_event(evd.h(), SOON);
    assert_eq!(event.software().addr(), 0x1234);
    assert_eq!(event.evd(), evd.h());
    expect_nothing(evd.h());
}

fn evd_dequeue_of_an_empty_queue_returns_queue_empty_without_subtype(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [DAT_EVD_SOFTWARE_FLAG, DAT_EVD_DTO_FLAG, DAT_EVD_CR_FLAG, DAT_EVD_CONNECTION_FLAG] {
        let evd = ia.evd(8, flags);
        expect(untouched(|out| dat_evd_dequeue(evd.h(), out)), DAT_QUEUE_EMPTY);
    }
    expect(untouched(|out| dat_evd_dequeue(ia.errors(), out)), DAT_QUEUE_EMPTY);
}

fn evd_dequeue_without_out_pointer_returns_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    refused(dat_evd_dequeue(evd.h(), null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn evd_dequeue_without_out_pointer_dequeues_nothing(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    ok(dat_evd_post_se(evd.h(), &software_event(9)));
    refused(dat_evd_dequeue(evd.h(), null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    assert_eq!(pointers(&evd), [9]);
}

fn evd_dequeue_fills_the_whole_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let full = |byte: u8| {
        ok(dat_evd_post_se(evd.h(), &software_event(5)));
        let place = Buffer::new(size_of::<DAT_EVENT>());
        place.fill(byte);
        ok(dat_evd_dequeue(evd.h(), place.pointer().cast()));
        place.take(0, place.length())
    };
    assert_eq!(full(0), full(0xff), "a byte of the event was not written");
}

fn evd_dequeue_of_a_dto_puts_the_ep_handle_first_in_the_event_data(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let memory = client.memory(64);
    let other = server.memory(64);
    server.post_recv(1, other.segment(0, 8));
    client.post_send(2, memory.segment(0, 8));
    let event = expect_event(client.request.h(), SOON);
    assert_eq!((event.dto().ep_handle, event.evd()), (client.ep.h(), client.request.h()));
    // Some programs read the EP handle of a DTO event through the union's member for connection events.
    let bytes = bytes_at(std::ptr::from_ref(&event.0.event_data).cast(), 8);
    assert_eq!(bytes, client.ep.h().addr().to_ne_bytes());
    expect_dto(server.recv.h(), 1, DAT_DTO_SUCCESS, 8);
}

fn evd_events_of_a_stream_keep_their_order(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(1000, DAT_EVD_SOFTWARE_FLAG);
    for number in 0..1000 {
        ok(dat_evd_post_se(evd.h(), &software_event(number)));
    }
    for number in 0..1000 {
        let event = if number % 2 == 0 { expect_event(evd.h(), SOON) } else { polled_event(evd.h()) };
        assert_eq!(event.software().addr(), number);
    }
}

fn evd_concurrent_dequeues_return_each_event_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(4000, DAT_EVD_SOFTWARE_FLAG);
    for number in 0..4000 {
        ok(dat_evd_post_se(evd.h(), &software_event(number)));
    }
    let handle = Handle::of(evd.h());
    let takes = move || drain(handle.h()).iter().map(|event| event.software().addr()).collect::<Vec<_>>();
    let mut all: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(takes)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("the dequeuing thread does not panic")).collect()
    });
    all.sort_unstable();
    assert_eq!(all, (0..4000).collect::<Vec<_>>());
}

/// An EP whose three streams share one EVD.
fn on_one_evd(ia: &Ia, length: DAT_COUNT) -> Conn {
    let pz = ia.pz();
    let all = ia.evd(length, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_RMR_BIND_FLAG);
    let (recv, request) = (ia.evd(1, DAT_EVD_DTO_FLAG), ia.evd(1, DAT_EVD_DTO_FLAG));
    let ep = ia.ep(&pz, &all, &all, &all);
    Conn { ep, recv, request, events: all, pz, ia: ia.clone() }
}

fn client_sends_after_established(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let memory = conn.memory(64);
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    conn.post_send(1, memory.segment(0, 8));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 8);
    // The server polls after the first meeting, when its two events are queued. The client keeps the connection
    // until the second meeting.
    ctx.meet();
    ctx.meet();
}

fn server_receives_in_order(ctx: &Ctx) {
    let conn = on_one_evd(&ctx.ia(), 8);
    let memory = conn.memory(64);
    conn.post_recv(2, memory.segment(0, 64));
    conn.listen(ctx.qual(0), || ctx.send_address(&conn.ia));
    ctx.meet();
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    expect_dto(conn.events.h(), 2, DAT_DTO_SUCCESS, 8);
    ctx.meet();
}

fn client_sends_and_disconnects(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(64);
    ctx.meet();
    for number in 0..8 {
        conn.post_send(number, memory.segment(0, 8));
    }
    for number in 0..8 {
        expect_dto(conn.request.h(), number, DAT_DTO_SUCCESS, 8);
    }
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_GRACEFUL_FLAG));
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    ctx.meet();
}

fn server_receives_all_before_the_end(ctx: &Ctx) {
    let conn = on_one_evd(&ctx.ia(), 32);
    let memory = conn.memory(64);
    for number in 0..8 {
        conn.post_recv(number, memory.segment(8 * number as usize, 8));
    }
    conn.listen(ctx.qual(0), || ctx.send_address(&conn.ia));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
    ctx.meet();
    for number in 0..8 {
        expect_dto(conn.events.h(), number, DAT_DTO_SUCCESS, 8);
    }
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
}

/// Uses one EVD for requests, connections, completions and software events of both endpoints of a connection.
fn evd_with_all_streams_gets_cr_connection_dto_and_software_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let every = DAT_EVD_DEFAULT_FLAG | DAT_EVD_SOFTWARE_FLAG;
    let evd = ia.evd(64, every);
    let memory = ia.memory(&pz, 64);
    let (client, server) = (ia.ep(&pz, &evd, &evd, &evd), ia.ep(&pz, &evd, &evd, &evd));
    let psp = ia.psp(ctx.qual(0), &evd);
    ok(dat_ep_post_recv(server.h(), 1, &mut memory.segment(32, 32), cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
    let (address, flags) = (ia.address(), DAT_CONNECT_DEFAULT_FLAG);
    let forever = DAT_TIMEOUT_INFINITE;
    ok(dat_ep_connect(client.h(), address.pointer(), ctx.qual(0), forever, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags));
    ok(dat_cr_accept(expect_cr(evd.h()).cr_handle, server.h(), 0, null_mut()));
    let ends: Vec<DAT_EP_HANDLE> = (0..2)
        .map(|_| {
            let event = expect_event(evd.h(), SOON);
            event.is(DAT_CONNECTION_EVENT_ESTABLISHED);
            event.connection().ep_handle
        })
        .collect();
    assert!(ends.contains(&client.h()) && ends.contains(&server.h()));
    ok(dat_ep_post_send(client.h(), 1, &mut memory.segment(0, 8), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
    let mut cookies: Vec<u64> = (0..2).map(|_| context_bits(expect_event(evd.h(), SOON).dto().user_cookie)).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, [1, 2]);
    ok(dat_evd_post_se(evd.h(), &software_event(3)));
    assert_eq!(expect_event(evd.h(), SOON).software().addr(), 3);
    expect_nothing(evd.h());
    psp.free();
}

fn evd_shared_by_receives_and_requests_returns_both_completions(ctx: &Ctx) {
    let ia = ctx.ia();
    let (client, server) = (on_one_evd(&ia, 64), Conn::on(&ia));
    server.listen(ctx.qual(0), || client.connect(&ia.address(), ctx.qual(0)));
    established(&client, &server);
    let (here, there) = (client.memory(64), server.memory(64));
    client.post_recv(1, here.segment(0, 8));
    server.post_recv(2, there.segment(0, 8));
    client.post_send(3, here.segment(8, 8));
    expect_dto(client.events.h(), 3, DAT_DTO_SUCCESS, 8);
    expect_dto(server.recv.h(), 2, DAT_DTO_SUCCESS, 8);
    server.post_send(4, there.segment(8, 8));
    expect_dto(client.events.h(), 1, DAT_DTO_SUCCESS, 8);
}

fn evd_smaller_than_the_posted_work_loses_no_completion(ctx: &Ctx) {
    let ia = ctx.ia();
    let (client, server) = ctx.loopback_with(&ia, &Setup { qlen: 1, ..Setup::default() });
    let (here, there) = (client.memory(64), server.memory(64));
    let count = 16;
    for number in 0..count {
        server.post_recv(number, there.segment(0, 8));
        client.post_send(100 + number, here.segment(0, 8));
    }
    for number in 0..count {
        expect_dto(server.recv.h(), number, DAT_DTO_SUCCESS, 8);
    }
    for number in 0..count {
        expect_dto(client.request.h(), 100 + number, DAT_DTO_SUCCESS, 8);
    }
    expect_nothing(ia.errors());
}

fn evd_of_length_1_queues_many_connection_requests(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let (dtos, events) = (ia.evd(8, DAT_EVD_DTO_FLAG), ia.evd(1, DAT_EVD_CONNECTION_FLAG));
    let requests = ia.evd(1, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &requests);
    let eps: Vec<Ep> = (0..20).map(|_| ia.ep(&pz, &dtos, &dtos, &events)).collect();
    let (address, forever, flags) = (ia.address(), DAT_TIMEOUT_INFINITE, DAT_CONNECT_DEFAULT_FLAG);
    for ep in &eps {
        let (ep, address, qual) = (ep.h(), address.pointer(), ctx.qual(0));
        ok(dat_ep_connect(ep, address, qual, forever, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags));
    }
    for _ in &eps {
        ok(dat_cr_reject(expect_cr(requests.h()).cr_handle));
    }
    for _ in &eps {
        expect_event(events.h(), SOON).is(DAT_CONNECTION_EVENT_PEER_REJECTED);
    }
    expect_nothing(ia.errors());
    psp.free();
}

fn binds(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let memory = client.memory(64);
    let rmr = client.pz.rmr();
    let (segment, rights) = (memory.segment(0, 64), DAT_MEM_PRIV_REMOTE_READ_FLAG);
    let flags = DAT_COMPLETION_DEFAULT_FLAG;
    let _: DAT_RMR_CONTEXT =
        filled(|out| dat_rmr_bind(rmr.h(), &segment, rights, client.ep.h(), cookie(7), flags, out));
    let event = expect_event(client.request.h(), SOON);
    let data = event.rmr();
    assert_eq!((event.evd(), data.rmr_handle, context_bits(data.user_cookie)), (client.request.h(), rmr.h(), 7));
    assert_eq!(data.status, DAT_RMR_BIND_SUCCESS);
}
