//! Parses operations of the command line, such as `client SR 1024 4 -f server RR 2048`.
#![forbid(unsafe_code)]

/// Default size of a segment in bytes.
const DEFAULT_SIZE: u32 = 4096;
/// Maximum bytes of a segment and of an operation.
pub(crate) const MAX_BYTES: u32 = 1 << 30;
/// Maximum number of segments of an operation.
const MAX_SEGMENTS: u16 = 256;
/// Maximum number of operations of a transaction.
pub(crate) const MAX_OPERATIONS: usize = 128;

/// A side of a test: client or server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    /// The opposite side.
    pub(crate) fn peer(self) -> Self {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }

    /// Name on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }
}

/// Transfer of an operation: SR, RR or RW on the command line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Transfer {
    /// A send, which consumes a receive of the peer.
    Send,
    Read,
    Write,
}

impl Transfer {
    /// Name on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Transfer::Send => "SR",
            Transfer::Read => "RR",
            Transfer::Write => "RW",
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Operation {
    pub(crate) by: Side,
    pub(crate) transfer: Transfer,
    /// Bytes per segment.
    pub(crate) size: u32,
    pub(crate) segments: u16,
    /// With `-f`: the completion of a send is dequeued together with the next receive.
    pub(crate) is_deferred: bool,
    /// With `-p`: the completion is polled for.
    pub(crate) is_polled: bool,
}

impl Operation {
    /// A short message that synchronizes the two sides.
    pub(crate) fn signal(by: Side) -> Self {
        let transfer = Transfer::Send;
        Operation { by, transfer, size: 16, segments: 1, is_deferred: false, is_polled: false }
    }

    /// Total length in bytes.
    pub(crate) fn length(&self) -> usize {
        self.size as usize * usize::from(self.segments)
    }

    /// Refuses parameters that no test supports. Also applied to a peer's values.
    pub(crate) fn check(&self) -> Result<(), String> {
        let words = self.to_string();
        if self.size == 0 || self.segments == 0 || self.segments > MAX_SEGMENTS {
            return Err(format!(
                "{words}: the number of segments must be from 1 to {MAX_SEGMENTS}, with at least 1 byte each"
            ));
        }
        if self.length() > MAX_BYTES as usize {
            return Err(format!("{words}: {} bytes in all; the limit is {MAX_BYTES}", self.length()));
        }
        if self.is_deferred && self.transfer != Transfer::Send {
            return Err(format!("{words}: -f is allowed only for SR"));
        }
        Ok(())
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {} {} {}", self.by.word(), self.transfer.word(), self.size, self.segments)?;
        out.write_str(if self.is_deferred { " -f" } else { "" })?;
        out.write_str(if self.is_polled { " -p" } else { "" })
    }
}

/// Parses the operations of a transaction.
pub(crate) fn parse(words: &[String]) -> Result<Vec<Operation>, String> {
    let mut rest = words;
    let mut operations = Vec::new();
    while let Some((word, after)) = rest.split_first() {
        let by = match word.to_ascii_lowercase().as_str() {
            "client" => Side::Client,
            "server" => Side::Server,
            _ => return Err(format!("\"{word}\": an operation must begin with client or server")),
        };
        operations.push(transfer(by, after, &mut rest)?);
    }
    check(&operations)?;
    Ok(operations)
}

/// Parses the operation of a performance test.
pub(crate) fn parse_one(words: &[String]) -> Result<Operation, String> {
    let mut rest = words;
    let operation = transfer(Side::Client, words, &mut rest)?;
    if let Some(word) = rest.first() {
        return Err(format!("\"{word}\": only one operation is allowed, and options must precede it"));
    }
    if operation.is_deferred || operation.is_polled {
        return Err(
            "-f and -p after an operation are for transactions only; a performance test has -m and -p before it"
                .to_owned(),
        );
    }
    Ok(operation)
}

/// Checks a transaction: the number of operations, each operation, and that `-f` is on a client SR and on the server SR
/// that follows it.
pub(crate) fn check(operations: &[Operation]) -> Result<(), String> {
    if operations.is_empty() || operations.len() > MAX_OPERATIONS {
        return Err(format!("1 to {MAX_OPERATIONS} operations are needed, such as client SR 1024 1 server SR 1024 1"));
    }
    operations.iter().try_for_each(Operation::check)?;
    let sends: Vec<&Operation> = operations.iter().filter(|operation| operation.transfer == Transfer::Send).collect();
    for (at, operation) in sends.iter().enumerate().filter(|(_, operation)| operation.is_deferred) {
        let partner = match operation.by {
            Side::Client => sends.get(at + 1),
            Side::Server => at.checked_sub(1).and_then(|before| sends.get(before)),
        };
        if !partner.is_some_and(|partner| partner.by != operation.by && partner.is_deferred) {
            return Err(format!("{operation}: -f must be on a client SR and on the server SR that follows it"));
        }
    }
    Ok(())
}

/// Parses an operation after the token `client` or `server`. `rest` is set to the remaining tokens.
fn transfer<'a>(by: Side, words: &'a [String], rest: &mut &'a [String]) -> Result<Operation, String> {
    let Some((word, mut after)) = words.split_first() else {
        return Err("client or server must be followed by SR, RR or RW, and optionally bytes and segments".to_owned());
    };
    let transfer = match word.to_ascii_uppercase().as_str() {
        "SR" => Transfer::Send,
        "RR" => Transfer::Read,
        "RW" => Transfer::Write,
        _ => return Err(format!("\"{word}\" is not an operation; the operations are SR, RR and RW")),
    };
    let mut operation =
        Operation { by, transfer, size: DEFAULT_SIZE, segments: 1, is_deferred: false, is_polled: false };
    if let Some(size) = number(&mut after)? {
        operation.size = size;
        if let Some(segments) = number(&mut after)? {
            operation.segments = u16::try_from(segments).unwrap_or(u16::MAX);
        }
    }
    loop {
        match after.first().map(String::as_str) {
            Some("-f") => operation.is_deferred = true,
            Some("-p") => operation.is_polled = true,
            _ => break,
        }
        after = &after[1..];
    }
    *rest = after;
    operation.check()?;
    Ok(operation)
}

/// Parses the next token as a number if it begins with a digit.
fn number(words: &mut &[String]) -> Result<Option<u32>, String> {
    let Some((word, rest)) = words.split_first().filter(|(word, _)| word.starts_with(|c: char| c.is_ascii_digit()))
    else {
        return Ok(None);
    };
    *words = rest;
    word.parse().map(Some).map_err(|_| format!("{word}: not a number of bytes or segments"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn operations_of_the_manual_example_are_accepted() {
        let text = "client RW 4096 1 server RW 2048 4 client SR 1024 4 server SR 4096 2 client SR 1024 3 -f server SR 2048 1 -f";
        let operations = parse(&words(text)).unwrap();
        assert_eq!(operations.iter().map(Operation::to_string).collect::<Vec<_>>().join(" "), text);
        assert_eq!(operations[1].length(), 8192);
    }

    #[test]
    fn default_operation_is_4_kib_in_one_segment() {
        let operations = parse(&words("Client sr server RR 8 client RW 9 2 -p")).unwrap();
        assert_eq!((operations[0].size, operations[0].segments), (4096, 1));
        assert_eq!((operations[1].size, operations[1].segments), (8, 1));
        assert!(operations[2].is_polled && !operations[2].is_deferred);
    }

    #[test]
    fn invalid_operations_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "1 to 128 operations"),
            ("SR 1024", "client or server"),
            ("client", "SR, RR or RW"),
            ("client XX", "SR, RR and RW"),
            ("client SR 0", "at least 1 byte"),
            ("client SR 8 0", "at least 1 byte"),
            ("client SR 8 257", "1 to 256"),
            ("client SR 8 99999999", "1 to 256"),
            ("client SR 4294967296", "not a number"),
            ("client SR 12x", "not a number"),
            ("client SR 1073741824 2", "in all; the limit"),
            ("client RR 8 1 -f", "only for SR"),
            ("client SR 8 1 -f server SR 8 1", "must be on a client SR"),
            ("server SR 8 1 -f client SR 8 1 -f", "must be on a client SR"),
            ("client SR 8 1 -q", "client or server"),
            ("client SR 1 2 3", "client or server"),
        ] {
            let refused = parse(&words(text)).unwrap_err();
            assert!(refused.contains(reason), "{text}: {refused}");
        }
        assert!(parse(&words(&"client SR ".repeat(MAX_OPERATIONS + 1))).is_err());
    }

    #[test]
    fn a_performance_test_has_exactly_one_operation() {
        assert_eq!(parse_one(&words("RW 4096 2")).unwrap().to_string(), "client RW 4096 2");
        for text in ["", "client RW", "RW 1 1 RR", "RW 1 1 -i", "SR 8 1 -f"] {
            assert!(parse_one(&words(text)).is_err(), "{text}");
        }
    }
}
