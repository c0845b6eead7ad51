//! Tests of handshake datagrams: encoding and decoding, truncated and damaged datagrams, another version, and the size
//! of a connection's segments.

use super::*;

fn params() -> ConnectParams {
    ConnectParams {
        generation: 9,
        token: 0x1122_3344_5566_7788,
        endpoint: 5,
        qual: u64::MAX,
        geometry: Geometry::LOCAL,
        pd: 3,
        reads: 4,
        table_slots: 1 << 16,
        probe_address: 4096,
        probe_value: 77,
        barrier: true,
        ip: [7; 16],
    }
}

fn export(object: ExportedObject) -> ExportDescription {
    ExportDescription { address: 4096, length: u64::MAX, offset: 7, object }
}

fn all() -> Vec<Datagram> {
    let private_data = vec![5; 48];
    vec![
        Datagram::Request { id: 0xABCDEF, params: params(), private_data: private_data.clone() },
        Datagram::Reply {
            client: 1,
            server: 0xFFFFFF,
            token: params().token,
            result: ReplyResult::Accepted,
            accepted: Some((params(), private_data)),
        },
        Datagram::Reply { client: 1, server: 2, token: 3, result: ReplyResult::Pending, accepted: None },
        Datagram::Reply { client: 1, server: 2, token: 3, result: ReplyResult::HandedOff(u64::MAX), accepted: None },
        Datagram::Reply { client: 1, server: 2, token: 3, result: rejected(&[7; MAX_REJECT_DATA]), accepted: None },
        Datagram::Reply { client: 1, server: 2, token: 3, result: rejected(b"full"), accepted: None },
        Datagram::Reply { client: 1, server: 0, token: 0, result: ReplyResult::NotUnderstood, accepted: None },
        Datagram::Ack { client: 1, server: 2, token: 3 },
        Datagram::Reset { from: 1, to: 0, token: 3 },
        Datagram::MappingRequest { from: 1, to: 0xFFFFFF, token: 3, key: u32::MAX },
        Datagram::MappingReply { from: 1, to: 2, token: 3, key: 4, export: None },
        Datagram::MappingReply { from: 1, to: 2, token: 3, key: 4, export: Some(export(ExportedObject::Descriptor)) },
        Datagram::MappingReply {
            from: 1,
            to: 2,
            token: 3,
            key: 4,
            export: Some(export(ExportedObject::Segment { id: 0, space: 9 })),
        },
    ]
}

fn rejected(data: &[u8]) -> ReplyResult {
    ReplyResult::Rejected(data.to_vec())
}

#[test]
fn datagrams_round_trip_and_have_at_least_eight_bytes() {
    for datagram in all() {
        let bytes = datagram.encode();
        assert!(bytes.len() >= 8 && bytes.len() <= MAX_DATAGRAM);
        assert_eq!(Datagram::decode(&bytes), Ok(datagram));
    }
}

#[test]
fn damaged_datagrams_are_decoded_without_panic_and_with_valid_geometry() {
    for datagram in all() {
        let bytes = datagram.encode();
        for end in 0..bytes.len() {
            let _ = Datagram::decode(&bytes[..end]);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7F, 0xFF] {
                let mut changed = bytes.clone();
                changed[at] = value;
                if let Ok(Datagram::Request { params, .. }) = Datagram::decode(&changed) {
                    assert!(params.geometry.is_valid());
                }
            }
        }
    }
}

#[test]
fn request_of_another_version_is_a_version_error() {
    let mut bytes = all()[0].encode();
    bytes[1] = 2;
    assert_eq!(Datagram::decode(&bytes), Err(DecodeError::Version(2)));
}

#[test]
fn segments_of_a_connection_need_at_most_256_kib() {
    let ours = Geometry::LOCAL;
    assert!(ours.is_valid() && ours.area_len() + ours.rma_len() <= 256 << 10);
}
