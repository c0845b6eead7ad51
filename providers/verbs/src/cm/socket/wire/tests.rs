//! Tests of messages in both wire formats: encoding and decoding of the bytes of the C implementation, messages
//! received in parts, and invalid messages. Also the TCP port of a qualifier.

use super::*;

fn params() -> ConnectParams {
    ConnectParams {
        lid: 0x0102,
        port: 3,
        number: 0x0A_0B0C,
        address: Some("192.0.2.7".parse().unwrap()),
        gid: std::array::from_fn(|n| 0xF0 | n as u8),
        limits: None,
        private_data: b"hello".to_vec(),
    }
}

/// Returns [`params`] with the fields that the format of 2.0 has.
fn params_2_0() -> ConnectParams {
    ConnectParams { port: 0, limits: Some(PathLimits { mtu: 3, reads: 4 }), ..params() }
}

/// Reads a message, `step` bytes at a time. Also returns the number of bytes that were not read.
fn read(bytes: &[u8], role: Role, step: usize) -> (Result<Option<Message>, DecodeError>, usize) {
    let (mut inbox, mut at) = (MessageReader::new(role), 0);
    loop {
        let length = inbox.wanted_bytes().min(step).min(bytes.len() - at);
        let taken = inbox.add_bytes(&bytes[at..at + length]);
        at += length;
        if length == 0 || !matches!(taken, Ok(None)) {
            return (taken, bytes.len() - at);
        }
    }
}

#[test]
fn layout_of_1_2_matches_the_c_implementation() {
    let bytes = Message::Request(params()).encode(Format::Dat12);
    let family = (libc::AF_INET as u16).to_ne_bytes();
    let mut expected = vec![0, 2, 0, 0, 1, 2, 0, 3, 0, 0x0A, 0x0B, 0x0C, 0, 0, 0, 5];
    expected.extend([family[0], family[1], 0, 0, 192, 0, 2, 7]);
    expected.extend([0; 24]);
    expected.extend(0xF0..=0xFF);
    expected.extend(b"hello");
    assert_eq!(bytes, expected);
    let mut rejection = [0; 64];
    rejection[..4].copy_from_slice(&[0, 2, 0, 28]);
    assert_eq!(Message::Rejection(b"lost".to_vec()).encode(Format::Dat12), rejection);
    assert!(Message::NotServed.encode(Format::Dat12).is_empty());
}

/// A request that `libdaploscm.so.2` of dapl 2.1.10 has sent on soft-RoCE: five bytes of private data, four reads, an
/// MTU of 1024. Only the LID was changed, because soft-RoCE has none.
fn observed() -> Vec<u8> {
    let mut bytes = vec![0; 148];
    let fields: [(usize, &[u8]); 9] = [
        (0, &[0, 9, 0, 1]),
        (16, &[0, 5]),
        (28, &[4]),
        (32, &[3]),
        (38, &[0xAB, 0xCD]),
        (40, &[0, 0, 0, 0x16]),
        (44, &[0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0xA8, 0xDC, 0xE4, 0xFF, 0xFE, 0xF7, 0x82, 0x51]),
        (60, &[0, 0, 0, 2]),
        (64, &[2, 0, 0xFB, 0xF0, 192, 0, 2, 1]),
    ];
    fields.iter().for_each(|(at, field)| bytes[*at..at + field.len()].copy_from_slice(field));
    bytes.extend([2, 9, 0x10, 0x17, 0x1E]);
    bytes
}

#[test]
fn observed_request_of_2_0_is_decoded_and_encoded() {
    let expected = ConnectParams {
        lid: 0xABCD,
        port: 0,
        number: 0x16,
        address: Some("192.0.2.1".parse().unwrap()),
        gid: [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0xA8, 0xDC, 0xE4, 0xFF, 0xFE, 0xF7, 0x82, 0x51],
        limits: Some(PathLimits { mtu: 3, reads: 4 }),
        private_data: vec![2, 9, 0x10, 0x17, 0x1E],
    };
    let (message, left) = read(&observed(), Role::Request, 1000);
    assert_eq!((message, left), (Ok(Some(Message::Request(expected.clone()))), 0));
    let mut without_port = observed();
    without_port[64..66].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    without_port[66..68].fill(0);
    assert_eq!(Message::Request(expected).encode(Format::Dat20), without_port);
}

#[test]
fn operation_field_distinguishes_accept_and_reject_in_replies_of_2_0() {
    let reply = |operation: u8, private_data: &[u8]| {
        let mut bytes = vec![0; 148];
        bytes[..4].copy_from_slice(&[0, 9, 0, operation]);
        bytes[17] = private_data.len() as u8;
        bytes.extend(private_data);
        bytes
    };
    let read = |bytes: &[u8]| read(bytes, Role::Reply(Format::Dat20), 1000).0.unwrap().unwrap();
    let rejection = Message::Rejection(b"sorry".to_vec());
    assert_eq!(rejection.encode(Format::Dat20), reply(3, b"sorry"));
    assert_eq!(read(&reply(3, b"sorry")), rejection);
    assert_eq!(Message::NotServed.encode(Format::Dat20), reply(4, b""));
    for operation in [0, 1, 4, 5, 6, 255] {
        assert_eq!(read(&reply(operation, b"ignored")), Message::NotServed, "{operation}");
    }
    let accept = Message::Accept(params_2_0());
    assert_eq!(accept.encode(Format::Dat20)[..4], [0, 9, 0, 2]);
    assert_eq!(read(&accept.encode(Format::Dat20)), accept);
}

#[test]
fn messages_are_read_in_parts_of_any_size() {
    let long = |params: ConnectParams, format: Format| ConnectParams {
        private_data: (0..format.layout().most_in_request as u8).collect(),
        address: Some("2001:db8::7".parse().unwrap()),
        ..params
    };
    for (format, full) in [(Format::Dat12, params()), (Format::Dat20, params_2_0())] {
        let bare = ConnectParams { private_data: Vec::new(), address: None, ..full.clone() };
        for params in [long(full.clone(), format), bare, full] {
            let message = Message::Request(params);
            let mut bytes = message.encode(format);
            bytes.extend(format.layout().ready);
            for step in [1, 2, 3, 7, 63, 64, 147, 148, 1000] {
                let read = read(&bytes, Role::Request, step);
                assert_eq!(read, (Ok(Some(message.clone())), format.layout().ready.len()), "{format:?} {step}");
            }
        }
    }
}

#[test]
fn truncated_message_is_incomplete() {
    for bytes in [Message::Request(params()).encode(Format::Dat12), observed()] {
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length], Role::Request, 1000).0, Ok(None), "{length}");
        }
    }
}

#[test]
fn any_nonzero_reason_in_1_2_is_a_reject_without_private_data() {
    let mut bytes = vec![0xFF; 64];
    bytes[..4].copy_from_slice(&[0, 2, 0, 1]);
    let rejection = Message::Rejection(Vec::new());
    assert_eq!(read(&bytes, Role::Reply(Format::Dat12), 9), (Ok(Some(rejection)), 0));
}

#[test]
fn invalid_message_fields_are_reported_by_kind() {
    let with = |mut message: Vec<u8>, at: usize, bytes: &[u8]| {
        message[at..at + bytes.len()].copy_from_slice(bytes);
        read(&message, Role::Request, 1000).0.unwrap_err()
    };
    let old = || Message::Request(params()).encode(Format::Dat12);
    assert_eq!(with(old(), 0, &[0, 1]), DecodeError::Version(1));
    assert_eq!(with(old(), 0, &[2, 0]), DecodeError::Version(0x200), "swapped byte order");
    assert_eq!(with(old(), 12, &[0, 0, 0, 93]), DecodeError::Length(93));
    assert_eq!(with(old(), 12, &[0xFF; 4]), DecodeError::Length(u32::MAX));
    assert_eq!(with(old(), 8, &[1, 0, 0, 0]), DecodeError::Number(0x100_0000));
    assert_eq!(with(observed(), 0, &[0, 8]), DecodeError::Version(8));
    assert_eq!(with(observed(), 2, &[0, 2]), DecodeError::Operation(2), "an accept");
    assert_eq!(with(observed(), 16, &[0, 69]), DecodeError::Length(69));
    assert_eq!(with(observed(), 16, &[0xFF; 2]), DecodeError::Length(0xFFFF));
    assert_eq!(with(observed(), 40, &[1, 0, 0, 0]), DecodeError::Number(0x100_0000));
    assert_eq!(with(observed(), 63, &[4]), DecodeError::Datagram);
    let other = read(&old(), Role::Reply(Format::Dat20), 1000).0;
    assert_eq!(other, Err(DecodeError::Version(2)), "a reply has the request's format");
}

#[test]
fn random_bytes_do_not_panic_or_read_beyond_the_longest_message() {
    let mut seed = 1u64;
    for round in 0..4000 {
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        };
        let mut bytes: Vec<u8> = (0..400).map(|_| next()).collect();
        let (role, format) = [
            (Role::Request, Format::Dat12),
            (Role::Request, Format::Dat20),
            (Role::Reply(Format::Dat12), Format::Dat12),
            (Role::Reply(Format::Dat20), Format::Dat20),
        ][round % 4];
        match format {
            _ if round % 8 > 5 => {}
            Format::Dat12 => {
                bytes[..4].copy_from_slice(&[0, 2, 0, 0]);
                bytes[12..15].fill(0);
            }
            Format::Dat20 => {
                bytes[..3].copy_from_slice(&[0, 9, 0]);
                bytes[3] %= 6;
                bytes[16] = 0;
            }
        }
        let (read, left) = read(&bytes, role, 1 + round % 170);
        assert!(400 - left <= LONGEST, "{read:?} took {}", 400 - left);
    }
}

#[test]
fn port_is_the_qualifier_modulo_65536_plus_1000_in_2_0() {
    assert_eq!([45248, 70000, 0x1_0000_0001].map(|qual| Format::Dat12.port(qual)), [45248, 4464, 1]);
    assert_eq!([45248, 70000, 65000, u64::MAX].map(|qual| Format::Dat20.port(qual)), [46248, 5464, 464, 999]);
}
