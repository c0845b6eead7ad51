//! Messages survive encoding and decoding; invalid bytes are refused.

use super::*;

fn transaction() -> Transaction {
    let operation =
        |by, transfer| Operation { by, transfer, size: 4096, segments: 2, is_deferred: false, is_polled: true };
    Transaction {
        threads: 2,
        endpoints: 4,
        iterations: 55_555,
        validates: true,
        polls: false,
        is_notified: true,
        operations: vec![
            operation(Side::Client, Transfer::Write),
            operation(Side::Server, Transfer::Read),
            operation(Side::Client, Transfer::Send),
        ],
    }
}

fn performance(extent: Extent, operation: Operation) -> Performance {
    Performance { extent, warm_up: 7, pipeline: 16_384, polls: true, is_bidirectional: true, operation }
}

fn all() -> Vec<Message> {
    let place = RemoteBuffer { context: 7, address: u64::MAX, length: 1 << 40 };
    let operation = Operation::signal(Side::Client);
    vec![
        Message::Hello { version: (1, 65_535) },
        Message::Quit,
        Message::Transaction(transaction()),
        Message::Performance(performance(Extent::Operations(1), operation)),
        Message::Performance(performance(Extent::Time(Duration::from_secs(86_400)), operation)),
        Message::Measured(Figures { operations: u64::MAX, time: Duration::from_nanos(7), cpu: CpuTime::default() }),
        Message::Connects,
        Message::Ready(Vec::new()),
        Message::Ready(vec![Offer { qual: u64::MAX, place }; MAX_THREADS]),
        Message::Refused("no".to_owned()),
        Message::Over(Ok(())),
        Message::Over(Err("sad \u{e4}".to_owned())),
    ]
}

#[test]
fn encoded_messages_decode_to_the_same_values() {
    for message in all() {
        let bytes = message.encode();
        assert!(bytes.len() <= MAX_MESSAGE, "{message:?}");
        assert_eq!(Message::decode(&bytes), Ok(message));
    }
}

#[test]
fn longest_messages_fit_into_the_wire_buffer() {
    let mut test = transaction();
    test.operations = vec![Operation::signal(Side::Client); MAX_OPERATIONS];
    assert!(Message::Transaction(test).encode().len() <= MAX_MESSAGE);
    let cut = Message::Refused("\u{20ac}".repeat(MAX_MESSAGE)).encode();
    assert!(cut.len() <= MAX_MESSAGE);
    assert!(matches!(Message::decode(&cut), Ok(Message::Refused(text)) if text.len() > MAX_TEXT - 4));
}

#[test]
fn truncated_and_too_long_messages_fail_to_decode() {
    for message in all() {
        let bytes = message.encode();
        for length in 0..bytes.len() {
            assert!(Message::decode(&bytes[..length]).is_err(), "{message:?} truncated to {length} bytes was decoded");
        }
        let more = [&bytes[..], &[0]].concat();
        assert_eq!(
            Message::decode(&more),
            Err("the peer sent a message with extra bytes at its end: 1".to_owned()),
            "{message:?}"
        );
    }
}

#[test]
fn no_single_changed_byte_yields_an_invalid_test() {
    for message in all() {
        let bytes = message.encode();
        for at in 0..bytes.len().min(64) {
            for value in 0..=u8::MAX {
                let mut spoilt = bytes.clone();
                spoilt[at] = value;
                // The result is another message or an error. A decoded test must be valid.
                match Message::decode(&spoilt) {
                    Ok(Message::Transaction(test)) => assert_eq!(test.check(), Ok(())),
                    Ok(Message::Performance(test)) => assert_eq!(test.check(), Ok(())),
                    Ok(Message::Ready(offers)) => assert!(offers.len() <= MAX_THREADS),
                    Ok(_) | Err(_) => {}
                }
            }
        }
    }
}

#[test]
fn invalid_dapltest_messages_are_refused() {
    let mut state = 1_u64;
    for length in 0..2000_usize {
        let rubbish: Vec<u8> = (0..length % 300)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        assert!(Message::decode(&rubbish).is_err());
        // With the magic number, the parser reaches the remaining bytes.
        let _ = Message::decode(&[&MAGIC[..], &rubbish].concat());
    }
    assert_eq!(Message::decode(b"GET / HTTP/1.0\r\n"), Err("not a message of dapltest".to_owned()));
}

#[test]
fn invalid_transaction_tests_are_refused() {
    let spoilt = |spoil: fn(&mut Transaction)| {
        let mut test = transaction();
        spoil(&mut test);
        Message::decode(&Message::Transaction(test).encode())
    };
    for spoil in [
        (|test| test.threads = 0) as fn(&mut Transaction),
        |test| test.threads = u32::MAX,
        |test| test.endpoints = 0,
        |test| test.endpoints = u32::MAX,
        |test| test.iterations = 0,
        |test| test.operations.clear(),
        |test| test.operations[0].size = 0,
        |test| test.operations[0].size = u32::MAX,
        |test| test.operations[0].segments = 0,
        |test| test.operations[0].is_deferred = true,
        |test| test.validates = false,
        |test| test.polls = true,
    ] {
        assert!(spoilt(spoil).is_err());
    }
}

#[test]
fn control_characters_in_peer_text_are_replaced() {
    let text = Message::Refused("a\u{1b}[2Jb\nc".to_owned()).encode();
    assert_eq!(Message::decode(&text), Ok(Message::Refused("a [2Jb\nc".to_owned())));
}
