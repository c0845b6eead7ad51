//! Replies of a malicious peer to requests for a mapping.

use std::os::fd::BorrowedFd;

use super::*;
use crate::memory::mapped::segment_space;

/// A malicious peer with its own table of registrations, connected to the process under test.
struct Owner {
    client: TestClient,
    table: SharedMapping,
    /// Id of the connection at the malicious peer, and at the process under test.
    ids: (u32, u32),
    token: u64,
}

impl Owner {
    fn connect(base: &TestBase, victim: &Side, qp: &Qp) -> Self {
        let client = TestClient::new(base);
        let address = PeerAddress::Path(client.path.clone());
        qp.connect(&ConnectSpec { address: &address, qual: 7, private_data: &[] }, conn(1)).unwrap();
        let Datagram::Request { id, params: asked, .. } = client.answer() else { panic!() };
        let geometry = Geometry::LOCAL;
        let (table, table_fd) = SharedMapping::create("table", 16 * 64, false).unwrap();
        let area = |len| SharedMapping::create("area", len, false).unwrap().1;
        let fds = [area(geometry.area_len()), area(geometry.rma_len()), table_fd];
        let accepted = Some((params(asked.token, geometry), vec![]));
        let reply =
            Datagram::Reply { client: id, server: 3, token: asked.token, result: ReplyResult::Accepted, accepted };
        let path = victim.ia.device.endpoint.path();
        client.socket.send(path, &reply.encode(), &fds.each_ref().map(|fd| fd.as_fd())).unwrap();
        assert_eq!(victim.sink.next(conn(1)), SinkEvent::Established(vec![]));
        assert!(matches!(client.answer(), Datagram::Ack { .. }));
        Owner { client, table, ids: (3, id), token: asked.token }
    }

    /// Adds an entry under this key, with all access rights to a region except atomic operations.
    fn grant(&self, key: u32, region: Region) {
        let entry = (key >> 16) as usize * 64;
        let words = [u64::from(key), region.address, region.length, 1 << 32 | 0x1F];
        for (n, word) in words.into_iter().enumerate() {
            self.table.word(entry + n * 8).store(word, Ordering::SeqCst);
        }
    }

    fn export(&self, victim: &Side, datagram: &Datagram, fds: &[BorrowedFd<'_>]) {
        self.client.socket.send(victim.ia.device.endpoint.path(), &datagram.encode(), fds).unwrap();
    }
}

#[test]
fn invalid_mapping_replies_are_not_mapped() {
    let base = TestBase::new("export-invalid");
    let a = base.open();
    let victim = a.qp();
    let owner = Owner::connect(&base, &a, &victim);
    let (from, to) = owner.ids;
    let token = owner.token;
    let granted = Region { address: 0x10_0000, length: LENGTH as u64 };
    let good = ExportDescription {
        address: granted.address,
        length: granted.length,
        offset: 0,
        object: ExportedObject::Descriptor,
    };
    let space = segment_space().unwrap();
    let segment_id = |length| u32::try_from(segment_of(length).0).unwrap();
    let numbered = |id, space| ExportedObject::Segment { id, space };
    let loose = || memory(SealFlags::GROW, MemfdFlags::empty()).unwrap();
    let invalid: Vec<(&str, Option<ExportDescription>, Vec<OwnedFd>)> = vec![
        ("no", None, vec![sealed()]),
        ("another address", Some(ExportDescription { address: granted.address + 4096, ..good }), vec![sealed()]),
        ("a shorter region", Some(ExportDescription { length: 4096, ..good }), vec![sealed()]),
        ("beyond its end", Some(ExportDescription { offset: 1, ..good }), vec![sealed()]),
        ("an offset that wraps", Some(ExportDescription { offset: u64::MAX - 4095, ..good }), vec![sealed()]),
        ("no seals", Some(good), vec![loose()]),
        ("no descriptor", Some(good), vec![]),
        ("many descriptors", Some(good), vec![sealed(), sealed()]),
        ("a device", Some(good), vec![std::fs::File::open("/dev/zero").unwrap().into()]),
        (
            "a short segment",
            Some(ExportDescription { object: numbered(segment_id(LENGTH - 1), space), ..good }),
            vec![],
        ),
        (
            "another's segment",
            Some(ExportDescription { object: numbered(segment_id(LENGTH), space ^ 1), ..good }),
            vec![],
        ),
        ("no segment", Some(ExportDescription { object: numbered(u32::MAX - 1, space), ..good }), vec![]),
        (
            "an end that wraps",
            Some(ExportDescription { offset: u64::MAX, object: numbered(segment_id(LENGTH), space), ..good }),
            vec![],
        ),
    ];
    let local = [3u8; 8];
    let mr = a.register(&local);
    let peer = peer(&victim);
    let imports = peer.imports.as_ref().unwrap();
    let is_asked_for = |key| {
        owner.grant(key, granted);
        let remote = Remote { key, address: granted.address };
        victim.post_send(&wr(Op::Write(remote), &[segment(&mr, &local)], 1)).unwrap();
        assert_eq!(owner.client.answer(), Datagram::MappingRequest { from: to, to: from, token, key });
    };
    for (n, (what, export, fds)) in invalid.iter().enumerate() {
        let key = (n as u32 + 1) << 16 | 5;
        is_asked_for(key);
        // Replies with another token, with other connection ids, or for a key that was not requested are ignored: the
        // request stays outstanding.
        for (from, to, token, key) in
            [(from, to, token ^ 1, key), (from + 1, to, token, key), (from, to + 1, token, key)]
        {
            owner.export(&a, &Datagram::MappingReply { from, to, token, key, export: Some(good) }, &[sealed().as_fd()]);
        }
        owner.export(
            &a,
            &Datagram::MappingReply { from, to, token, key: key ^ 1, export: Some(good) },
            &[sealed().as_fd()],
        );
        assert!(imports.is_requested(key), "{what}");
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        owner.export(&a, &Datagram::MappingReply { from, to, token, key, export: *export }, &fds);
        until(what, || !imports.is_requested(key));
        assert_eq!(imports.mapped(), 0, "{what}");
    }
    // A valid reply is accepted, so the other replies were refused because of their defects. A repeated reply is
    // counted once.
    let key = 15 << 16 | 5;
    is_asked_for(key);
    for _ in 0..2 {
        owner.export(&a, &Datagram::MappingReply { from, to, token, key, export: Some(good) }, &[sealed().as_fd()]);
    }
    until("mapped", || imports.mapped() == 1);
    let key = 14 << 16 | 5;
    is_asked_for(key);
    let export = Some(ExportDescription { object: numbered(segment_id(LENGTH), space), ..good });
    owner.export(&a, &Datagram::MappingReply { from, to, token, key, export }, &[]);
    until("attached", || imports.mapped() == 2);
}
