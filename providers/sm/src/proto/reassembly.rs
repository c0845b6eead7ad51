//! Reassembly of sends that do not fit in a slot: the sender numbers the messages, and the receiver checks that each
//! fragment continues the message in progress (CM-2, CM-3, CM-7).
//!
//! The data header of a fragment contains the message number, the connection ids and the generation. An invalid header
//! ends the connection. A ring preserves order, so one message is in progress at a time. This module does not access
//! the bytes.
#![forbid(unsafe_code)]

use super::message::{Data, Header};

/// Sender, receiver and generation of a connection. The data header of each fragment contains them, so the receiver
/// detects a fragment of another connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Route {
    /// The sender's generation, from its handshake.
    pub(crate) generation: u16,
    /// Id of the connection at the sender.
    pub(crate) source: u32,
    /// Id of the connection at the receiver.
    pub(crate) destination: u32,
}

/// Numbers the messages that are sent in fragments, and creates the fragments' headers.
pub(crate) struct Numbering {
    route: Route,
    /// Number of the last message; wraps around.
    message: u16,
}

impl Numbering {
    pub(crate) fn new(route: Route) -> Self {
        Numbering { route, message: 0 }
    }

    /// Returns the header of the next fragment. `first`: the fragment begins a message of `size` bytes.
    pub(crate) fn next(&mut self, first: bool, size: u64) -> Data {
        self.message = self.message.wrapping_add(u16::from(first));
        let Route { generation, source, destination } = self.route;
        Data { generation, message: self.message, source, destination, size }
    }
}

/// Position of a fragment in its message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FragmentPosition {
    /// Offset of the fragment in the message.
    pub(crate) offset: u64,
    /// Length of the whole message.
    pub(crate) size: u64,
}

/// State of the receiver: the message in progress.
pub(crate) struct Reassembly {
    route: Route,
    /// Number of the last message of which a fragment was received.
    message: u16,
    /// Position of the next fragment of the message in progress; `None` between messages.
    under_way: Option<FragmentPosition>,
}

impl Reassembly {
    pub(crate) fn new(route: Route) -> Self {
        Reassembly { route, message: 0, under_way: None }
    }

    /// Checks the headers of a fragment, or of a message that fits in its slot, and returns its position. `words`
    /// returns the data header; it is not called for a message that fits in its slot. May be called again while the
    /// fragment waits for a receive. Errors: a description of the invalid data.
    #[inline]
    pub(crate) fn check_fragment(
        &self,
        header: &Header,
        words: impl FnOnce() -> [u64; Data::WORDS],
    ) -> Result<FragmentPosition, &'static str> {
        if header.inline {
            let whole = header.first && header.last && self.under_way.is_none();
            return whole
                .then_some(FragmentPosition { offset: 0, size: u64::from(header.length) })
                .ok_or("fragments of a message out of order");
        }
        self.check_continuation(header, &Data::decode(words()).ok_or("a data header with reserved bits set")?)
    }

    fn check_continuation(&self, header: &Header, data: &Data) -> Result<FragmentPosition, &'static str> {
        let Route { generation, source, destination } = self.route;
        if data.generation != generation {
            return Err("a fragment with another generation of the connection");
        }
        if (data.source, data.destination) != (source, destination) {
            return Err("a fragment of another connection");
        }
        let part = match (self.under_way, header.first) {
            (None, true) => FragmentPosition { offset: 0, size: data.size },
            (Some(part), false) => part,
            _ => return Err("fragments of a message out of order"),
        };
        if data.message != self.message.wrapping_add(u16::from(header.first)) || data.size != part.size {
            return Err("a fragment of another message");
        }
        let (length, left) = (u64::from(header.length), part.size - part.offset);
        // The last fragment must be marked as the last, and no fragment may be empty. Otherwise a message would never
        // end.
        if length == 0 || length > left || header.last != (length == left) {
            return Err("fragments that do not add up to the message");
        }
        Ok(part)
    }

    /// Whether no message is in progress.
    pub(crate) fn is_between(&self) -> bool {
        self.under_way.is_none()
    }

    /// Records that the bytes of a checked fragment were copied to its receive.
    #[inline]
    pub(crate) fn advance(&mut self, header: &Header, part: FragmentPosition) {
        if header.inline {
            return;
        }
        self.message = self.message.wrapping_add(u16::from(header.first));
        let next = FragmentPosition { offset: part.offset + u64::from(header.length), ..part };
        self.under_way = (!header.last).then_some(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::message::MessageKind;

    const ROUTE: Route = Route { generation: 7, source: 0x1_0002, destination: 5 };

    fn header(first: bool, last: bool, length: u32) -> Header {
        Header { kind: MessageKind::Send, first, last, inline: false, solicited: false, length }
    }

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Processes a fragment as the receive direction does.
    fn feed(reassembly: &mut Reassembly, header: Header, data: Data) -> Result<FragmentPosition, &'static str> {
        let part = reassembly.check_fragment(&header, || data.encode())?;
        assert_eq!(reassembly.check_fragment(&header, || data.encode()), Ok(part), "a check does not change the state");
        reassembly.advance(&header, part);
        Ok(part)
    }

    #[test]
    fn messages_are_reassembled_from_any_fragments() {
        let mut state = 0x9E37_79B9_7F4A_7C15;
        let (mut numbering, mut reassembly) = (Numbering::new(ROUTE), Reassembly::new(ROUTE));
        // The number of messages exceeds the range of message numbers.
        for message in 0..70_000u32 {
            if random(&mut state).is_multiple_of(4) {
                let inline = Header { inline: true, ..header(true, true, 8) };
                assert_eq!(
                    feed(&mut reassembly, inline, numbering.next(false, 0)),
                    Ok(FragmentPosition { offset: 0, size: 8 })
                );
            }
            let size = 1 + random(&mut state) % 100_000;
            let (mut sent, mut fragments) = (0, 0);
            while sent < size {
                let length = (1 + random(&mut state) % 40_000).min(size - sent);
                let fragment = header(sent == 0, sent + length == size, length as u32);
                let data = numbering.next(sent == 0, size);
                assert_eq!(
                    feed(&mut reassembly, fragment, data),
                    Ok(FragmentPosition { offset: sent, size }),
                    "message {message}"
                );
                (sent, fragments) = (sent + length, fragments + 1);
            }
            assert!(fragments > 0 && reassembly.under_way.is_none());
        }
    }

    #[test]
    fn invalid_fragment_header_is_an_error_without_effect() {
        type Violation = fn(&mut Header, &mut Data);
        let violations: [(&str, Violation); 10] = [
            ("a fragment with another generation of the connection", |_, data| data.generation = 6),
            ("a fragment of another connection", |_, data| data.source += 1),
            ("a fragment of another connection", |_, data| data.destination = 0),
            ("a fragment of another message", |_, data| data.message = data.message.wrapping_add(1)),
            ("a fragment of another message", |_, data| data.message = data.message.wrapping_sub(1)),
            ("fragments of a message out of order", |header, _| header.first = !header.first),
            ("fragments that do not add up to the message", |header, _| header.last = !header.last),
            ("fragments that do not add up to the message", |header, _| header.length = 0),
            ("fragments that do not add up to the message", |header, _| header.length = 101),
            ("fragments of a message out of order", |header, data| {
                (header.first, header.inline) = (data.message == 0, true);
            }),
        ];
        for (why, violation) in violations {
            let (mut numbering, mut reassembly) = (Numbering::new(ROUTE), Reassembly::new(ROUTE));
            for (n, offset) in [0, 40].into_iter().enumerate() {
                let valid = (header(n == 0, n == 1, if n == 0 { 40 } else { 60 }), numbering.next(n == 0, 100));
                let mut invalid = valid;
                violation(&mut invalid.0, &mut invalid.1);
                assert_eq!(reassembly.check_fragment(&invalid.0, || invalid.1.encode()), Err(why), "fragment {n}");
                assert_eq!(feed(&mut reassembly, valid.0, valid.1), Ok(FragmentPosition { offset, size: 100 }));
            }
        }
    }

    #[test]
    fn fragment_with_another_size_than_the_first_is_an_error() {
        let (mut numbering, mut reassembly) = (Numbering::new(ROUTE), Reassembly::new(ROUTE));
        feed(&mut reassembly, header(true, false, 40), numbering.next(true, 100)).unwrap();
        let changed = numbering.next(false, 1 << 40);
        let fragment = header(false, false, 60);
        assert_eq!(reassembly.check_fragment(&fragment, || changed.encode()), Err("a fragment of another message"));
    }

    #[test]
    fn random_fragment_headers_never_address_bytes_outside_a_message() {
        let mut state = 0xD1B5_4A32_D192_ED03;
        let mut reassembly = Reassembly::new(ROUTE);
        let mut taken = 0;
        for _ in 0..200_000 {
            let bits = random(&mut state);
            let fragment = header(bits & 1 != 0, bits & 2 != 0, (bits >> 8) as u32 % 50);
            let Route { generation, source, destination } = ROUTE;
            let message = reassembly.message.wrapping_add((bits >> 2) as u16 & 1);
            let size = match reassembly.under_way {
                Some(part) if bits & 8 != 0 => part.size,
                _ => (bits >> 40) % 100,
            };
            let data = Data { generation, message, source, destination, size };
            let Ok(part) = reassembly.check_fragment(&fragment, || data.encode()) else { continue };
            assert!(part.offset + u64::from(fragment.length) <= part.size);
            assert_eq!(fragment.last, part.offset + u64::from(fragment.length) == part.size);
            reassembly.advance(&fragment, part);
            taken += 1;
        }
        assert!(taken > 1000, "{taken}");
    }
}
