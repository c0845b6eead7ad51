//! Datagrams between `datinfo doctor` on two hosts, in addition to the probes of `path`: a request for the version,
//! kernel release and socket buffer limits of the other host, and the answer. It does no I/O.
//!
//! `pair` sends the requests; `serve` answers with [`answer`]. Malformed requests get no answer, and an answer is not a
//! valid request, so two servers cannot answer each other endlessly. An answer is never longer than its request, so
//! that a forged source address cannot be used for amplification.
#![forbid(unsafe_code)]

/// First bytes of every datagram. The digit is the version of the protocol.
const MAGIC: &[u8; 8] = b"DATINFO2";
const QUESTION: u8 = 1;
const ANSWER: u8 = 129;
/// Length of a header: magic, kind, three bytes of zero, number.
const HEAD: usize = 8 + 4 + 8;
/// Length of a request, which is at least as long as every answer.
pub(super) const LEAST: usize = 512;

/// Builds a request for the version and limits of the other host.
pub(super) fn question(number: u64) -> Vec<u8> {
    let mut bytes = head(QUESTION, number);
    bytes.resize(LEAST, 0);
    bytes
}

/// Builds the answer to a datagram; `None` if the datagram is not a request. `description`, the result of
/// `serve::description`, is truncated to the maximum length of an answer.
pub(super) fn answer(datagram: &[u8], description: &str) -> Option<Vec<u8>> {
    let number = parse(datagram, QUESTION).filter(|_| datagram.len() >= LEAST)?;
    let mut bytes = head(ANSWER, number);
    bytes.extend_from_slice(&description.as_bytes()[..description.len().min(LEAST - HEAD)]);
    Some(bytes)
}

/// Returns the text in the answer to this request; `None` for any other datagram.
pub(super) fn answered(datagram: &[u8], number: u64) -> Option<&[u8]> {
    (parse(datagram, ANSWER)? == number).then(|| &datagram[HEAD..])
}

fn head(kind: u8, number: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&[kind, 0, 0, 0]);
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes
}

fn parse(datagram: &[u8], kind: u8) -> Option<u64> {
    let rest = datagram.strip_prefix(MAGIC)?;
    let (known, number) = (rest.first_chunk::<4>()?, rest.get(4..)?.first_chunk::<8>()?);
    (*known == [kind, 0, 0, 0]).then(|| u64::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_request_gets_a_reply_and_a_reply_gets_none() {
        let asked = question(7);
        let given = answer(&asked, "a b").unwrap();
        assert!(given.len() <= asked.len(), "{} bytes for {}", given.len(), asked.len());
        assert_eq!((answered(&given, 7), answered(&given, 8)), (Some(&b"a b"[..]), None));
        assert_eq!(answer(&given, "description"), None, "an answer is no question");
        assert_eq!(answered(&asked, 7), None, "a question is no answer");
    }

    #[test]
    fn malformed_doctor_requests_are_not_answered() {
        let good = question(1);
        for length in 0..LEAST {
            assert_eq!(answer(&good[..length], "f"), None, "{length} bytes");
        }
        for at in 0..12 {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert_eq!(answer(&bad, "f"), None, "byte {at}, bit {bit}");
            }
        }
        assert_eq!(answer(&[], "f"), None);
        assert_eq!(answer(&[b'D'; 65_507], "f"), None);
    }

    #[test]
    fn long_description_is_truncated_to_the_size_of_a_reply() {
        let given = answer(&question(1), &"x".repeat(100_000)).unwrap();
        assert_eq!(given.len(), LEAST);
    }
}
