//! Messages between client and server before and after a test: encoding and decoding, without I/O.
//!
//! Values from a peer are validated here: lengths, counts, numbers. All numbers are in network byte order. Trailing
//! bytes make a message invalid.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::amounts::Extent;
use crate::cpu::CpuTime;
use crate::dat::RemoteBuffer;
use crate::operation::{self, MAX_OPERATIONS, Operation, Side, Transfer};

#[cfg(test)]
mod tests;

/// Maximum length of a message in bytes.
pub(crate) const MAX_MESSAGE: usize = 16 * 1024;
/// Version of the protocol. Peers with different major versions refuse each other.
pub(crate) const VERSION: (u16, u16) = (2, 0);

/// First bytes of each message.
const MAGIC: [u8; 4] = *b"dplt";
/// Maximum numbers of threads and endpoints of a transaction.
const MAX_THREADS: usize = 256;
const MAX_ENDPOINTS: u32 = 4096;
/// Maximum length of a text in bytes.
const MAX_TEXT: usize = 4096;
/// Maximum number of requests in flight.
const MAX_PIPELINE: u32 = 16_384;

/// Parameters of a transaction test, sent by the client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Transaction {
    pub(crate) threads: u32,
    /// Endpoints per thread.
    pub(crate) endpoints: u32,
    pub(crate) iterations: u32,
    pub(crate) validates: bool,
    pub(crate) polls: bool,
    pub(crate) is_notified: bool,
    pub(crate) operations: Vec<Operation>,
}

impl Transaction {
    /// Refuses invalid parameters.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.threads == 0 || self.threads as usize > MAX_THREADS {
            return Err(format!("-t {}: the number of threads must be from 1 to {MAX_THREADS}", self.threads));
        }
        if self.endpoints == 0 || self.endpoints > MAX_ENDPOINTS {
            return Err(format!("-w {}: the number of endpoints must be from 1 to {MAX_ENDPOINTS}", self.endpoints));
        }
        if self.iterations == 0 {
            return Err("-i 0: the number of iterations must be 1 or more".to_owned());
        }
        if self.polls && self.is_notified {
            return Err("-P and -Q cannot be used together".to_owned());
        }
        operation::check(&self.operations)?;
        let sends =
            |side| self.operations.iter().any(|operation| operation.transfer == Transfer::Send && operation.by == side);
        let both_send = sends(Side::Client) && sends(Side::Server);
        if !self.validates && !both_send {
            return Err(
                "without -V, client and server must each do at least one SR, so that neither runs ahead; add an \
                 SR or -V"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// Parameters of a performance test, sent by the client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Performance {
    pub(crate) extent: Extent,
    /// Number of operations before the measured ones.
    pub(crate) warm_up: u32,
    /// Maximum number of operations in flight; 0 selects a default within the adapter's maximum.
    pub(crate) pipeline: u32,
    pub(crate) polls: bool,
    /// Whether both sides start operations at the same time.
    pub(crate) is_bidirectional: bool,
    pub(crate) operation: Operation,
}

impl Performance {
    /// Refuses invalid parameters.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.extent.check()?;
        if self.pipeline > MAX_PIPELINE {
            return Err(format!("-p {}: at most {MAX_PIPELINE} operations can be in flight", self.pipeline));
        }
        if self.operation.by != Side::Client {
            return Err("a performance test has an operation of the client, not of the server".to_owned());
        }
        self.operation.check()
    }
}

/// Figures of one side of a performance test: operations and their time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Figures {
    /// Measured operations that this side started. A side that started none counts the messages that it received or
    /// the connections that it accepted; 0 for the target of RDMA.
    pub(crate) operations: u64,
    pub(crate) time: Duration,
    pub(crate) cpu: CpuTime,
}

/// Data that each thread sends to its partner before a test.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Offer {
    /// Qualifier of the thread's listener; 0 for a client.
    pub(crate) qual: u64,
    pub(crate) place: RemoteBuffer,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Message {
    /// First message of both sides.
    Hello { version: (u16, u16) },
    /// From the client: end the server.
    Quit,
    /// From the client: run this test.
    Transaction(Transaction),
    /// From the client: run this test.
    Performance(Performance),
    /// From the server: ready. From the client: start. Both contain one offer per thread.
    Ready(Vec<Offer>),
    /// Refusal of a request, with the reason.
    Refused(String),
    /// The sender has finished its part of the test: success, or the reason of the failure. Also the server's reply to
    /// `Quit`.
    Over(Result<(), String>),
    /// From the server, instead of `Over`, after a successful performance test: its figures.
    Measured(Figures),
    /// From the client: run the test of connects. The server accepts each connect until the client sends `Over`.
    Connects,
}

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer(MAGIC.to_vec());
        match self {
            Message::Hello { version } => out.u8(1).u16(version.0).u16(version.1),
            Message::Quit => out.u8(2),
            Message::Transaction(test) => {
                out.u8(3).u32(test.threads).u32(test.endpoints).u32(test.iterations);
                out.bool(test.validates).bool(test.polls).bool(test.is_notified).u16(test.operations.len() as u16);
                test.operations.iter().fold(&mut out, Writer::operation)
            }
            Message::Performance(test) => {
                out.u8(4).extent(test.extent).u32(test.warm_up).u32(test.pipeline);
                out.bool(test.polls).bool(test.is_bidirectional).operation(&test.operation)
            }
            Message::Ready(offers) => {
                out.u8(5).u16(offers.len() as u16);
                offers.iter().fold(&mut out, |out, offer| {
                    out.u64(offer.qual).u32(offer.place.context).u64(offer.place.address).u64(offer.place.length)
                })
            }
            Message::Refused(reason) => out.u8(6).text(reason),
            Message::Over(Ok(())) => out.u8(7),
            Message::Over(Err(reason)) => out.u8(8).text(reason),
            Message::Measured(Figures { operations, time, cpu }) => {
                out.u8(9).u64(*operations).time(*time).time(cpu.user).time(cpu.system)
            }
            Message::Connects => out.u8(10),
        };
        out.0
    }

    /// Decodes a message. The error text is the reason why the message is invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut from = Reader(bytes);
        if from.bytes(MAGIC.len())? != MAGIC {
            return Err("not a message of dapltest".to_owned());
        }
        let message = match from.u8()? {
            1 => Message::Hello { version: (from.u16()?, from.u16()?) },
            2 => Message::Quit,
            3 => Message::Transaction(from.transaction()?),
            4 => Message::Performance(from.performance()?),
            5 => {
                let count = from.count(MAX_THREADS)?;
                Message::Ready((0..count).map(|_| from.offer()).collect::<Result<_, _>>()?)
            }
            6 => Message::Refused(from.text()?),
            7 => Message::Over(Ok(())),
            8 => Message::Over(Err(from.text()?)),
            9 => {
                let (operations, time) = (from.u64()?, from.time()?);
                let cpu = CpuTime { user: from.time()?, system: from.time()? };
                Message::Measured(Figures { operations, time, cpu })
            }
            10 => Message::Connects,
            kind => return Err(format!("the peer sent a message of unknown kind {kind}")),
        };
        if from.0.is_empty() {
            Ok(message)
        } else {
            Err(format!("the peer sent a message with extra bytes at its end: {}", from.0.len()))
        }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(value.into())
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_be_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_be_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_be_bytes())
    }

    /// Writes a time in nanoseconds, limited to 64 bits.
    fn time(&mut self, time: Duration) -> &mut Self {
        self.u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    fn extent(&mut self, extent: Extent) -> &mut Self {
        match extent {
            Extent::Operations(count) => self.bool(false).u64(count.into()),
            Extent::Time(time) => self.bool(true).time(time),
        }
    }

    /// Writes a text, truncated to the maximum length.
    fn text(&mut self, text: &str) -> &mut Self {
        let whole = (0..=text.len().min(MAX_TEXT)).rev().find(|at| text.is_char_boundary(*at));
        let text = &text[..whole.unwrap_or(0)];
        self.u16(text.len() as u16).put(text.as_bytes())
    }

    fn operation(&mut self, operation: &Operation) -> &mut Self {
        self.bool(operation.by == Side::Server);
        self.u8(match operation.transfer {
            Transfer::Send => 1,
            Transfer::Read => 2,
            Transfer::Write => 3,
        });
        self.u32(operation.size).u16(operation.segments).bool(operation.is_deferred).bool(operation.is_polled)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes(&mut self, length: usize) -> Result<&[u8], String> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or("the message is too short")?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.bytes(N)?.try_into().expect("`bytes(N)` returns N bytes"))
    }

    fn u8(&mut self) -> Result<u8, String> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, String> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_be_bytes)
    }

    fn bool(&mut self) -> Result<bool, String> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(format!("the peer sent the value {other} for a flag; expected 0 or 1")),
        }
    }

    fn time(&mut self) -> Result<Duration, String> {
        self.u64().map(Duration::from_nanos)
    }

    fn extent(&mut self) -> Result<Extent, String> {
        if self.bool()? {
            return self.time().map(Extent::Time);
        }
        let count = self.u64()?;
        u32::try_from(count)
            .map(Extent::Operations)
            .map_err(|_| format!("the peer sent a count of {count} operations; the maximum is {}", u32::MAX))
    }

    fn count(&mut self, most: usize) -> Result<usize, String> {
        match usize::from(self.u16()?) {
            count if count > most => Err(format!("the peer sent a count of {count}; at most {most} is allowed")),
            count => Ok(count),
        }
    }

    fn text(&mut self) -> Result<String, String> {
        let length = self.count(MAX_TEXT)?;
        let text = std::str::from_utf8(self.bytes(length)?)
            .map_err(|_| "the peer sent a text that is not UTF-8".to_owned())?;
        // The text is printed on a terminal, so control characters are replaced.
        Ok(text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect())
    }

    fn operation(&mut self) -> Result<Operation, String> {
        let by = if self.bool()? { Side::Server } else { Side::Client };
        let transfer = match self.u8()? {
            1 => Transfer::Send,
            2 => Transfer::Read,
            3 => Transfer::Write,
            other => return Err(format!("the peer sent the unknown operation {other}")),
        };
        let (size, segments) = (self.u32()?, self.u16()?);
        Ok(Operation { by, transfer, size, segments, is_deferred: self.bool()?, is_polled: self.bool()? })
    }

    fn transaction(&mut self) -> Result<Transaction, String> {
        let (threads, endpoints, iterations) = (self.u32()?, self.u32()?, self.u32()?);
        let (validates, polls, is_notified) = (self.bool()?, self.bool()?, self.bool()?);
        let count = self.count(MAX_OPERATIONS)?;
        let operations = (0..count).map(|_| self.operation()).collect::<Result<_, _>>()?;
        let test = Transaction { threads, endpoints, iterations, validates, polls, is_notified, operations };
        test.check()?;
        Ok(test)
    }

    fn performance(&mut self) -> Result<Performance, String> {
        let (extent, warm_up, pipeline) = (self.extent()?, self.u32()?, self.u32()?);
        let (polls, is_bidirectional, operation) = (self.bool()?, self.bool()?, self.operation()?);
        let test = Performance { extent, warm_up, pipeline, polls, is_bidirectional, operation };
        test.check()?;
        Ok(test)
    }

    fn offer(&mut self) -> Result<Offer, String> {
        let qual = self.u64()?;
        let place = RemoteBuffer { context: self.u32()?, address: self.u64()?, length: self.u64()? };
        Ok(Offer { qual, place })
    }
}
