//! Cases of `tests/udapl.rs`: options of transfers, shared receive queues, CNOs over several EVDs, memory windows,
//! shared memory, queries.

use std::os::fd::AsFd;

use udapl::{Cno, PostFlags, Segment, SharedMemory, Srq};

use super::*;

fn segment(buffer: Buffer, range: std::ops::Range<usize>) -> Segment {
    Segment::new(buffer, range).unwrap()
}

#[test]
fn message_is_gathered_and_scattered() {
    over_each("objects::message_is_gathered_and_scattered", |adapter| {
        let pair = Pair::connected(adapter);
        let empty = || Buffer::new(&pair.pz, 8).unwrap();
        pair.server.recv_with(segment(empty(), 0..3), vec![segment(empty(), 2..8)]).unwrap();
        let segments = vec![segment(pair.buffer(b"xcdefx"), 1..5), segment(pair.buffer(b"gh"), 0..1)];
        pair.client.send_with(segment(pair.buffer(b"ab"), 0..2), segments, PostFlags::empty()).unwrap();
        for _ in 0..2 {
            let done = pair.completion();
            assert_eq!(done.result, Ok(7));
            if done.op == Op::Recv {
                assert_eq!((&done.buffer[..3], &done.more[0][2..6]), (&b"abc"[..], &b"defg"[..]));
            } else {
                assert_eq!(done.more.len(), 2, "a buffer of the send was not returned");
            }
        }
        let five = (0..4).map(|_| segment(pair.buffer(b"x"), 0..1)).collect();
        let refused = pair.client.send_with(segment(pair.buffer(b"x"), 0..1), five, PostFlags::empty()).unwrap_err();
        assert_eq!(refused.more.len(), 4, "{refused}");
    });
}

#[test]
fn buffers_of_suppressed_requests_return_with_a_later_completion() {
    over_each("objects::buffers_of_suppressed_requests_return_with_a_later_completion", |adapter| {
        let pair = Pair::connected(adapter);
        let window = Window::new(&pair.pz, 100, Access::READ | Access::WRITE).unwrap();
        let remote = Remote::from_bytes(&window.ticket().to_bytes());
        let write = |text: &[u8], offset, flags| {
            let whole = segment(pair.buffer(text), 0..text.len());
            pair.client.write_with(whole, Vec::new(), &remote, offset, flags).unwrap()
        };
        let first = write(b"ab", 0, PostFlags::SUPPRESS);
        let second = write(b"cd", 2, PostFlags::SUPPRESS);
        let whole = Segment::new(Buffer::new(&pair.pz, 4).unwrap(), ..).unwrap();
        let read = pair.client.read_with(whole, Vec::new(), &remote, 0, PostFlags::FENCE).unwrap();
        let done = pair.completion();
        assert_eq!((done.id, done.result, &done.buffer[..]), (read, Ok(4), &b"abcd"[..]));
        let earlier: Vec<_> =
            done.earlier.iter().map(|finished| (finished.id, finished.op, &finished.buffer[..])).collect();
        assert_eq!(earlier, [(first, Op::Write, &b"ab"[..]), (second, Op::Write, &b"cd"[..])]);
        assert_eq!(pair.client.posted(), 0);
    });
}

/// Creates a second pair of endpoints on the same EVDs. Its server consumes receives from `srq`.
fn connect_to(pair: &Pair, srq: &Srq) -> (Ep, Ep) {
    let client = pair.pz.ep(&pair.events).unwrap();
    let server = pair.pz.ep_with(&EpSpec { srq: Some(srq), ..EpSpec::new(&pair.events) }).unwrap();
    let listener = pair.ia.listen_any(&pair.events).unwrap();
    let to = pair.ia.address().unwrap_or(Ipv4Addr::LOCALHOST.into());
    client.connect(to, listener.qualifier(), TIMEOUT, b"").unwrap();
    let Event::Request(request) = pair.next() else { panic!("wanted a connection request") };
    request.accept(&server, b"").unwrap();
    for _ in 0..2 {
        assert!(matches!(pair.next(), Event::Established { .. }));
    }
    (client, server)
}

#[test]
fn endpoints_share_the_receives_of_an_srq() {
    over_each("objects::endpoints_share_the_receives_of_an_srq", |adapter| {
        let pair = Pair::open(adapter);
        let srq = pair.pz.srq(8, 1).unwrap();
        let ids = [0, 1].map(|_| srq.recv(Buffer::new(&pair.pz, 16).unwrap(), ..).unwrap());
        assert_eq!(srq.available().unwrap(), 2);
        let ends = [connect_to(&pair, &srq), connect_to(&pair, &srq)];
        for (number, (client, server)) in ends.iter().enumerate() {
            client.send(pair.buffer(&[number as u8 + 7]), ..).unwrap();
            let mut received = None;
            for _ in 0..2 {
                let done = pair.completion();
                assert_eq!(done.result, Ok(1));
                if done.op == Op::Recv {
                    assert_eq!((done.ep, done.id), (server.id(), ids[number]));
                    received = Some(done.buffer[0]);
                }
            }
            assert_eq!(received, Some(number as u8 + 7));
        }
        assert_eq!(srq.available().unwrap(), 0);
        let refused = ends[0].1.recv(pair.buffer(b"x"), ..).unwrap_err();
        assert!(refused.to_string().contains("dat_ep_post_recv"), "{refused}");
    });
}

#[test]
fn endpoint_has_a_hard_watermark_only_if_one_is_given() {
    over_each("objects::endpoint_has_a_hard_watermark_only_if_one_is_given", |adapter| {
        let pair = Pair::open(adapter);
        let srq = pair.pz.srq(8, 1).unwrap();
        for max_recvs in [None, Some(3)] {
            let spec = EpSpec { srq: Some(&srq), max_recvs, ..EpSpec::new(&pair.events) };
            assert_eq!(pair.pz.ep_with(&spec).unwrap().info().unwrap().max_recvs, max_recvs);
        }
    });
}

#[test]
fn cno_wait_returns_the_evd_that_has_an_event() {
    over_each("objects::cno_wait_returns_the_evd_that_has_an_event", |adapter| {
        let ia = Library::load().unwrap().open(adapter).unwrap();
        let cno: Cno = ia.cno().unwrap();
        assert_eq!(cno.wait(Duration::ZERO).unwrap(), None);
        let requests = ia.evd_on(&cno, 8, Streams::REQUEST).unwrap();
        let events = ia.evd_on(&cno, 8, Streams::DTO | Streams::CONNECTION).unwrap();
        let listener = ia.listen_any(&requests).unwrap();
        let pz = ia.pz().unwrap();
        let (client, server) = (pz.ep(&events).unwrap(), pz.ep(&events).unwrap());
        let to = ia.address().unwrap_or(Ipv4Addr::LOCALHOST.into());
        client.connect(to, listener.qualifier(), TIMEOUT, b"").unwrap();
        assert_eq!(cno.wait(TIMEOUT).unwrap(), Some(requests.id()));
        let Some(Event::Request(request)) = requests.poll().unwrap() else { panic!("wanted a connection request") };
        request.accept(&server, b"").unwrap();
        assert_eq!(cno.wait(TIMEOUT).unwrap(), Some(events.id()));
        assert!(matches!(events.poll().unwrap(), Some(Event::Established { .. })));
        drop((cno, ia));
    });
}

#[test]
fn peer_accesses_a_window_until_it_is_unbound() {
    over_each("objects::peer_accesses_a_window_until_it_is_unbound", |adapter| {
        let ia = Library::load().unwrap().open(adapter).unwrap();
        let events = ia.evd(64, Streams::all()).unwrap();
        let pz = ia.pz().unwrap();
        let (client, server) = (pz.ep(&events).unwrap(), pz.ep(&events).unwrap());
        let pair = Pair { ia, pz, events, client, server };
        pair.ask().accept(&pair.server, b"").unwrap();
        for _ in 0..2 {
            assert!(matches!(pair.next(), Event::Established { .. }));
        }
        let window = Window::new(&pair.pz, 100, Access::READ | Access::WRITE).unwrap();
        let mut rmr = pair.pz.rmr().unwrap();
        let (bind, remote) = rmr.bind(&pair.server, &window, 10..20, Access::WRITE).unwrap();
        assert!(matches!(pair.next(), Event::Bound { id, result: Ok(()) } if id == bind));
        assert_eq!(remote.len(), 10);
        pair.client.write(pair.buffer(b"by window"), .., &remote, 1).unwrap();
        assert_eq!(pair.completion().result, Ok(9));
        let mut seen = [0; 11];
        window.read(10, &mut seen);
        assert_eq!(&seen, b"\0by window\0");
        let unbind = rmr.unbind(&pair.server).unwrap();
        assert!(matches!(pair.next(), Event::Bound { id, result: Ok(()) } if id == unbind));
        pair.client.write(pair.buffer(b"no"), .., &remote, 0).unwrap();
        assert_eq!(pair.completion_that_breaks().result, Err(TransferError::RemoteAccess));
        assert!(matches!(rmr.bind(&pair.server, &window, 5..5, Access::WRITE), Err(Error::Argument(_))));
    });
}

#[test]
fn shared_memory_is_registered_under_a_name() {
    over_each("objects::shared_memory_is_registered_under_a_name", |adapter| {
        let pair = Pair::connected(adapter);
        let memory = SharedMemory::create(4096).unwrap();
        let name = std::array::from_fn(|at| at as u8 + 1);
        let window = Window::shared(&pair.pz, &memory, &name, Access::WRITE).unwrap();
        let other = SharedMemory::from_fd(memory.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let view = Window::shared(&pair.pz, &other, &name, Access::READ).unwrap();
        let remote = Remote::from_bytes(&window.ticket().to_bytes());
        pair.client.write(pair.buffer(b"to all"), .., &remote, 4000).unwrap();
        assert_eq!(pair.completion().result, Ok(6));
        let mut seen = [0; 6];
        view.read(4000, &mut seen);
        assert_eq!(&seen, b"to all");
        let short = SharedMemory::create(100).unwrap();
        let refused = Window::shared(&pair.pz, &short, &name, Access::READ).unwrap_err();
        assert!(refused.to_string().contains("dat_lmr_create"), "{refused}");
    });
}

#[test]
fn ep_limits_counters_and_ia_attributes_can_be_queried() {
    over_each("objects::ep_limits_counters_and_ia_attributes_can_be_queried", |adapter| {
        let pair = Pair::connected(adapter);
        let info = pair.client.info().unwrap();
        assert!(info.remote.is_some() && info.max_recvs >= Some(16) && info.max_segments >= 4, "{info:?}");
        pair.server.recv(Buffer::new(&pair.pz, 8).unwrap(), ..).unwrap();
        pair.client.send(pair.buffer(b"counted"), ..).unwrap();
        drop((pair.completion(), pair.completion()));
        let counters = pair.client.counters().unwrap();
        assert!(
            counters.iter().any(|counter| counter.value == "7"),
            "no counter has the number of sent bytes: {counters:?}"
        );
        let alive = pair.ia.attributes().unwrap();
        let eps = alive.iter().find(|attribute| attribute.name == "alive.ep");
        assert_eq!(eps.map(|eps| eps.value.as_str()), Some("2"), "{alive:?}");
        assert!(pair.ia.limits().max_srqs > 0 && pair.ia.limits().max_rmrs > 0 && pair.ia.limits().max_segments > 1);
    });
}
