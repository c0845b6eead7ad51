//! Tests of an adapter over the loopback interface, with fake queue pairs and a fake object layer: connection set-up,
//! requests forwarded between IAs that share a port, pre-shared keys, path probes, delivery errors, unmatched packets
//! and shutdown.

#[path = "backlog.rs"]
mod backlog;
#[path = "engine_sleep.rs"]
mod engine_sleep;
#[path = "fakes.rs"]
mod fakes;
#[path = "polling.rs"]
mod polling;
#[path = "unmatched_packets.rs"]
mod unmatched_packets;

use std::sync::Arc;
use std::time::Duration;

use dapl::error::{AddressProblem, Error};
use dapl::provider::{ConnectSpec, IaSpec, PeerAddress};
use dapl::runtime::handle::ObjectId;
use zerocopy::IntoBytes;

use self::fakes::*;
use crate::adapter::Adapter;
use crate::device::now;
use crate::net::errors::DeliveryErrorKind;
use crate::proto::schedule::PendingWork;
use crate::proto::setup::packets::RejectReason;
use crate::proto::wire::{Kind, PacketHeader};

#[test]
fn connection_is_requested_accepted_and_carries_packets() {
    let ((client, ours), (server, theirs)) = connected("");
    theirs.post(&server.device, b"back");
    assert_eq!(ours.events.wait(packet).0, b"back");
    let (a, b) = (ours.opened.lock().unwrap(), theirs.opened.lock().unwrap());
    let (a, b) = (&a.as_ref().unwrap().agreed.terms, &b.as_ref().unwrap().agreed.terms);
    assert_eq!((a.our_conn, a.our_token, a.first_psn), (b.peer_conn, b.peer_token, b.peer_first_psn));
    assert_eq!((a.ord, a.ird, a.active, b.active), (2, 2, true, false));
    assert_eq!((a.peer, b.peer), (server.device.socket.local, client.device.socket.local));
}

#[test]
fn confirm_packet_is_sent_before_the_established_event() {
    let (here, there) = addresses();
    let (client, server) = (Ia::open(&here, ""), Ia::open(&there, ""));
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    let ours = client.connect(&server, 7, conn(1));
    server.accept(conn(2));
    client.object_layer.events.wait(established);
    assert!(ours.events.has(|event| (*event == Recorded::Served).then_some(())).is_some());
}

#[test]
fn fin_of_one_connection_is_not_processed_before_the_confirm_of_another() {
    let (here, there) = addresses();
    let client = Ia::open(&here, "");
    let server = Ia::without_engine(FakeObjectLayer::default(), &there, "");
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    let pairs = [1, 3].map(|attempt| {
        let ours = client.connect(&server, 7, conn(attempt));
        server.step_until(|| server.object_layer.requests.lock().unwrap().first().map(drop));
        let theirs = server.accept(conn(attempt + 1));
        server.step_until(|| client.object_layer.events.has(established));
        ours.wait_until_open();
        if attempt == 1 {
            ours.post(&client.device, b"first");
            server.step_until(|| server.object_layer.events.has(established));
            theirs.events.wait(packet);
        }
        (ours, theirs)
    });
    let [(ended, ended_there), (started, _)] = &pairs;
    let arrived = |ours: &FakeQp, kind| {
        ours.events.recorded.lock().unwrap().clear();
        ours.post_kind(kind, &client.device, b"");
        ours.events.wait(|event| matches!(event, Recorded::Served).then_some(()));
    };
    arrived(started, Kind::Confirm);
    arrived(ended, Kind::Fin);
    // The connection manager has not run, so the second connection is not open: passes queue its packets.
    while !server.progress.run_pass(now()) {}
    while server.progress.run_pass(now()) {}
    assert!(ended_there.events.has(packet).is_none());
    server.cm.process(false);
    assert_eq!(server.object_layer.events.has(established).map(|it| it.0), Some((conn(4), Vec::new())));
    assert!(ended_there.events.has(packet).is_some());
}

#[test]
fn connections_work_over_ipv6() {
    let (client, server) = (Ia::open("::1", "port=19000"), Ia::open("::1", "port=19000"));
    let _listening = server.cm.listen(0x1_0000_0000 + u64::from(std::process::id()), ObjectId::default()).unwrap();
    let ours = client.connect(&server, 0x1_0000_0000 + u64::from(std::process::id()), conn(1));
    let theirs = server.accept(conn(2));
    client.object_layer.events.wait(established);
    ours.wait_until_open();
    ours.post(&client.device, b"first");
    assert_eq!(theirs.events.wait(packet).0, b"first");
}

#[test]
fn reject_and_missing_listener_give_different_events() {
    let (here, there) = addresses();
    let (client, server) = (Ia::open(&here, ""), Ia::open(&there, ""));
    let absent = client.connect(&server, 7, conn(1));
    assert_eq!(client.event(), (conn(1), "rejected"), "the port is closed");
    absent.events.wait(|event| matches!(event, Recorded::Ended(_)).then_some(()));
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    client.connect(&server, 8, conn(2));
    assert_eq!(client.event(), (conn(2), "rejected"), "the qualifier has no listener");
    client.connect(&server, 7, conn(3));
    server.request().send_result(RejectReason::Refused);
    assert_eq!(client.event(), (conn(3), "peer rejected"));
    client.connect(&server, 7, conn(4));
    drop(server.request());
    assert_eq!(client.event(), (conn(4), "peer rejected"), "a request that is dropped without a reply is rejected");
    assert_eq!(server.cm.listen(7, ObjectId::default()).err(), Some(Error::ConnQualTaken));
}

#[test]
fn open_on_an_absent_interface_or_address_is_refused() {
    for absent in ["no-such-interface", "203.0.113.77", "2001:db8::77"] {
        let spec = IaSpec { name: "test", params: absent, library: "" };
        let opened = Adapter::open(&spec, Arc::new(FakeObjectLayer::default()));
        assert_eq!(
            opened.err(),
            Some(Error::InvalidAddress(AddressProblem::Unreachable)),
            "an open on {absent} must fail"
        );
    }
}

#[test]
fn request_is_rejected_if_the_event_queue_is_full() {
    let (here, there) = addresses();
    let (client, server) =
        (Ia::open(&here, ""), Ia::with(FakeObjectLayer { is_full: true, ..FakeObjectLayer::default() }, &there, ""));
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    client.connect(&server, 7, conn(1));
    assert_eq!(client.event(), (conn(1), "rejected"));
}

#[test]
fn connect_to_a_host_that_does_not_reply_gets_unreachable() {
    let (here, there) = addresses();
    let client = Ia::open(&here, "give_up_ms=1000");
    let silent = std::net::UdpSocket::bind((there.as_str(), client.device.settings.port)).unwrap();
    client.try_connect(silent.local_addr().unwrap().ip(), 7, conn(1)).unwrap();
    assert_eq!(client.event(), (conn(1), "unreachable"));
}

#[test]
fn unusable_peer_address_fails_immediately() {
    let (here, _) = addresses();
    let client = Ia::open(&here, "");
    for ip in ["2001:db8::77", "0.0.0.0", "224.0.0.1", "203.0.113.77"] {
        let refused = client.try_connect(ip.parse().unwrap(), 7, conn(1)).err();
        assert_eq!(
            refused,
            Some(Error::InvalidAddress(AddressProblem::Unreachable)),
            "a connect to {ip} must fail immediately"
        );
    }
}

#[test]
fn local_address_without_an_ia_reaches_the_listener_of_the_own_address() {
    let (here, there) = addresses();
    let (client, server) = (Ia::open(&here, ""), Ia::open(&here, ""));
    let listening = server.cm.listen(7, ObjectId::default()).unwrap();
    for (ip, attempt) in [("127.0.1.1", 1), (&there, 3), ("::1", 5)] {
        let ours = client.try_connect(ip.parse().unwrap(), 7, conn(attempt)).unwrap();
        let theirs = server.accept(conn(attempt + 1));
        assert_eq!(
            client.object_layer.events.wait(established).0,
            (conn(attempt), b"you may".to_vec()),
            "wrong result for the address {ip}"
        );
        ours.wait_until_open();
        ours.post(&client.device, b"by that address");
        assert_eq!(theirs.events.wait(packet).0, b"by that address", "wrong result for the address {ip}");
    }
    let other = Ia::open(&there, "");
    let _there = other.cm.listen(7, ObjectId::default()).unwrap();
    client.connect(&other, 7, conn(7));
    other.accept(conn(8));
    assert_eq!(client.object_layer.events.wait(established).0.0, conn(7));
    drop(listening);
    client.try_connect("127.0.1.1".parse().unwrap(), 7, conn(9)).unwrap();
    assert_eq!(client.event(), (conn(9), "rejected"), "a listener on another address gets no request");
}

#[test]
fn cancelled_attempt_reports_no_event() {
    let (here, _) = addresses();
    let client = Ia::open(&here, "");
    let spec = ConnectSpec { address: &PeerAddress::Ip(here.parse().unwrap()), qual: 7, private_data: b"" };
    for _ in 0..100 {
        let pair = Arc::new(FakeQp::default());
        let number = client.cm.connect(pair.clone(), &spec, conn(1), CAPS).unwrap();
        client.cm.cancel(number);
        // Only the attempt that was not cancelled reports an event.
        client.connect(&client, 7, conn(2));
        while client.event() != (conn(2), "rejected") {}
        assert!(client.device.table.lookup(number).is_none());
    }
}

#[test]
fn withdrawn_request_is_reported_to_the_server_only() {
    let (here, there) = addresses();
    let (client, server) = (Ia::open(&here, ""), Ia::open(&there, ""));
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    // The client withdraws its request before the server's consumer has decided.
    let pair = Arc::new(FakeQp::default());
    let address = PeerAddress::Ip(server.device.address().ip());
    let spec = ConnectSpec { address: &address, qual: 7, private_data: b"may I?" };
    let number = client.cm.connect(pair.clone(), &spec, conn(1), CAPS).unwrap();
    let request = server.request();
    client.cm.cancel(number);
    // The withdrawal may still be in flight. If it has arrived, the accept fails. Otherwise the client replies to the
    // accept with a Reset. In both cases the server's consumer gets an event.
    request.accept_into(Arc::new(FakeQp::default()), b"", conn(2), CAPS).unwrap();
    assert_eq!(server.event(), (conn(2), "accept failed"));
    assert!(client.object_layer.events.has(|_| Some(())).is_none() && pair.events.has(|_| Some(())).is_none());
}

#[test]
fn cancelled_accept_removes_the_connection_at_the_server() {
    let (here, there) = addresses();
    let (client, server) = (Ia::open(&here, ""), Ia::open(&there, ""));
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    client.connect(&server, 7, conn(1));
    let request = server.request();
    // The lock of passes can delay the engine, which then sends no accept before `cancel`. The test does not rely on
    // this.
    let number = {
        let progress = server.progress.pass.lock();
        let number = request.accept_into(Arc::new(FakeQp::default()), b"", conn(2), CAPS).unwrap();
        server.cm.cancel(number);
        drop(progress);
        number
    };
    assert!(server.device.table.lookup(number).is_none());
    let (event, _) = client.object_layer.events.wait(|event| match event {
        Recorded::Event(_, event) => Some(*event),
        Recorded::Established(..) => Some("established"),
        _ => None,
    });
    assert!(["peer rejected", "established"].contains(&event), "the client gets the message that arrived first");
}

#[test]
fn handoff_passes_a_request_to_another_listener() {
    let (here, there) = addresses();
    let (client, server) = (Ia::open(&here, ""), Ia::open(&there, ""));
    let _seven = server.cm.listen(7, ObjectId::default()).unwrap();
    client.connect(&server, 7, conn(1));
    let request = server.request().redirect(8).unwrap_err();
    let _eight = server.cm.listen(8, ObjectId::default()).unwrap();
    assert!(request.redirect(8).is_ok());
    server.accept(conn(2));
    assert_eq!(client.object_layer.events.wait(established).0, (conn(1), b"you may".to_vec()));
}

#[test]
fn ias_of_one_address_share_the_port_and_forward_requests() {
    let (here, there) = addresses();
    let client = Ia::open(&here, "");
    let servers = [Ia::open(&there, ""), Ia::open(&there, "")];
    let _listening: Vec<_> =
        servers.iter().zip([7, 8]).map(|(server, qual)| server.cm.listen(qual, ObjectId::default()).unwrap()).collect();
    for (server, qual, attempt) in [(&servers[0], 7, 1), (&servers[1], 8, 2), (&servers[0], 7, 3), (&servers[1], 8, 4)]
    {
        client.connect(server, qual, conn(attempt));
        server.accept(conn(attempt));
        assert_eq!(client.object_layer.events.wait(established).0, (conn(attempt), b"you may".to_vec()));
    }
    assert_eq!(servers[1].cm.listen(7, ObjectId::default()).err(), Some(Error::ConnQualTaken));
}

#[test]
fn closed_ia_frees_its_device_and_socket() {
    let ((client, ours), _server) = connected("");
    let (device, socket) = {
        let opened = ours.opened.lock().unwrap().take().unwrap();
        (Arc::downgrade(&client.device), Arc::downgrade(&opened.socket))
    };
    drop(client);
    ours.events.wait(|event| (*event == Recorded::Ended(0)).then_some(()));
    assert!(device.upgrade().is_none() && socket.upgrade().is_none());
}

#[test]
fn closing_ia_withdraws_its_requests() {
    let (here, there) = addresses();
    let (client, server) = (Ia::open(&here, ""), Ia::open(&there, ""));
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    client.connect(&server, 7, conn(1));
    let request = server.request();
    drop(client);
    request.accept_into(Arc::new(FakeQp::default()), b"", conn(2), CAPS).unwrap();
    assert_eq!(server.event(), (conn(2), "accept failed"));
}

#[test]
fn closed_port_of_the_peer_is_reported_to_the_handler() {
    let ((client, ours), (server, theirs)) = connected("");
    theirs.opened.lock().unwrap().take();
    drop(server);
    for _ in 0..1000 {
        ours.post(&client.device, b"is any?");
        ours.events.wait(|event| matches!(event, Recorded::Served).then_some(()));
        if ours
            .events
            .has(|event| (*event == Recorded::DeliveryError(DeliveryErrorKind::PortClosed)).then_some(()))
            .is_some()
        {
            return;
        }
        std::thread::yield_now();
    }
    ours.events.wait(|event| (*event == Recorded::DeliveryError(DeliveryErrorKind::PortClosed)).then_some(()));
}

#[test]
fn unmatched_packets_are_counted_and_dropped() {
    let ((client, ours), _server) = connected("");
    let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = client.device.socket.local;
    for bytes in [
        &[][..],
        &[1],
        &[7; 200],
        PacketHeader::new(Kind::Ack, 0, ours.number() ^ 1, 7).as_bytes(),
        PacketHeader::new(Kind::Ack, 0, ours.number() ^ 1 << 25, 7).as_bytes(),
        PacketHeader::new(Kind::Accept, 0, ours.number() ^ 1, 7).as_bytes(),
        PacketHeader::new(Kind::Request, 0, 0, 0).as_bytes(),
    ] {
        other.send_to(bytes, to).unwrap();
    }
    let mut left = LONG.as_millis();
    while client.device.unmatched() < 4 && left > 0 {
        std::thread::sleep(Duration::from_millis(1));
        left -= 1;
    }
    assert_eq!(client.device.unmatched(), 4);
    assert!(ours.events.has(packet).is_none());
}

#[test]
fn packets_go_to_the_new_handler_until_the_connection_number_is_freed() {
    let ((client, ours), (server, theirs)) = connected("");
    let new_handler = Arc::new(FakeQp::default());
    client.device.replace_handler(ours.number(), new_handler.clone(), &PendingWork::default());
    theirs.post(&server.device, b"late");
    assert_eq!(new_handler.events.wait(packet).0, b"late");
    client.device.free_number(ours.number());
    let before = client.device.unmatched();
    theirs.post(&server.device, b"too late");
    let mut left = LONG.as_millis();
    while client.device.unmatched() == before && left > 0 {
        std::thread::sleep(Duration::from_millis(1));
        left -= 1;
    }
    assert_eq!(client.device.unmatched(), before + 1);
    assert!(new_handler.events.has(packet).is_none());
}

#[test]
fn only_hosts_with_the_same_key_connect() {
    let path = |name: &str| std::env::temp_dir().join(format!("daplusnic-{name}-{}", std::process::id()));
    let key = |name: &str| {
        use std::os::unix::fs::OpenOptionsExt;
        let path = path(name);
        let mut file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
        std::io::Write::write_all(&mut file, format!("a secret that is called {name}").as_bytes()).unwrap();
        format!("key={} give_up_ms=1000", path.display())
    };
    let (right, wrong) = (key("right"), key("wrong"));
    let (here, there) = addresses();
    let server = Ia::open(&there, &right);
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    for (params, attempt) in [(wrong.as_str(), 1), ("give_up_ms=1000", 2)] {
        let client = Ia::open(&here, params);
        client.connect(&server, 7, conn(attempt));
        assert_eq!(client.event(), (conn(attempt), "unreachable"));
    }
    assert!(server.cm.unreadable() >= 2, "each unreadable request is counted");
    assert_eq!(probe_path(&here, &server, 0, 100), None, "a host with another key gets no reply to an MTU probe");
    let client = Ia::open(&here, &right);
    let ours = client.connect(&server, 7, conn(3));
    server.accept(conn(4));
    client.object_layer.events.wait(established);
    ours.wait_until_open();
    assert!(ours.opened.lock().unwrap().as_ref().unwrap().agreed.seal.is_some());
    ["right", "wrong"].iter().for_each(|name| std::fs::remove_file(path(name)).unwrap());
}

/// Sends a path probe from a plain socket, and returns the reply.
fn probe_path(from: &str, to: &Ia, flags: u16, length: usize) -> Option<Vec<u8>> {
    let socket = std::net::UdpSocket::bind((from, 0)).unwrap();
    let mut packet = PacketHeader::new(Kind::Probe, flags, 0, 0xABCD).as_bytes().to_vec();
    packet.resize(length, 0);
    socket.send_to(&packet, to.device.address()).unwrap();
    let patience = if to.device.settings.key_file.is_some() { Duration::from_millis(100) } else { LONG };
    socket.set_read_timeout(Some(patience)).unwrap();
    let mut answer = vec![0; 1 << 16];
    let (length, by) = socket.recv_from(&mut answer).ok()?;
    assert_eq!(by, to.device.address(), "the echo reply must come from the port of the request");
    answer.truncate(length);
    Some(answer)
}

#[test]
fn listener_replies_to_path_probes() {
    let (here, there) = addresses();
    let server = Ia::open(&there, "");
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    for length in [20, 1472, 65_507] {
        let answer = probe_path(&here, &server, 0, length).unwrap();
        assert_eq!((answer.len(), answer[16..].to_vec()), (20, (length as u32).to_be_bytes().to_vec()));
        assert_eq!(probe_path(&here, &server, 1, length).unwrap().len(), length);
    }
}
