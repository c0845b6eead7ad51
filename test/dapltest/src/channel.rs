//! The control connection between client and server: sends and receives messages, each with a time limit.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dat_abi::*;

use crate::dat::raw::Post;
use crate::dat::{Address, Ep, Event, Handle, Ia, Memory, WaitMethod, WaitPolicy, connected, drain, status_word};
use crate::failure::{Failure, Result};
use crate::shared_objects::{Needs, SharedObjects};
use crate::wire::{MAX_MESSAGE, Message, VERSION};

/// Number of posted receives. A side sends at most two messages (`Ready` and `Over`) before it waits for the peer's
/// next message.
const RECEIVES: usize = 4;
/// Time to wait for the connection event that explains a failed transfer.
const CAUSE_LIMIT: Duration = Duration::from_millis(500);

/// One endpoint of the control connection.
pub(crate) struct Channel {
    ep: Ep,
    /// Receive buffers, followed by the send buffer.
    memory: Memory,
    shared: SharedObjects,
    received: usize,
    wait_policy: WaitPolicy,
    is_over: AtomicBool,
    /// A completion that `has_message` has already dequeued.
    pending: Option<Event>,
}

impl Channel {
    /// Connects to a server.
    pub(crate) fn connect(ia: &Ia, to: Address, port: u64, qos: DAT_QOS, limit: Duration) -> Result<Self> {
        let channel = Channel::new(ia, limit)?;
        channel.shared.connect(&channel.ep, to, port, qos, channel.wait_policy)?;
        Ok(channel)
    }

    /// Accepts a client.
    pub(crate) fn accept(ia: &Ia, cr: Handle, limit: Duration) -> Result<Self> {
        let channel = Channel::new(ia, limit)?;
        channel.ep.accept(cr)?;
        connected(&channel.shared.conn, channel.ep.handle(), channel.wait_policy)?;
        Ok(channel)
    }

    fn new(ia: &Ia, limit: Duration) -> Result<Self> {
        let needs = Needs {
            endpoints: 1,
            receives: RECEIVES,
            requests: 2,
            segments: 1,
            length: MAX_MESSAGE,
            shares_evd: false,
        };
        let shared = SharedObjects::new(ia, needs, false)?;
        let memory = Memory::new(ia, &shared.pz, (RECEIVES + 1) * MAX_MESSAGE)?;
        let ep = shared.ep(ia, needs)?;
        let wait_policy = WaitPolicy { how: WaitMethod::Sleep, limit };
        let channel =
            Channel { ep, memory, shared, received: 0, wait_policy, is_over: AtomicBool::new(false), pending: None };
        // Posted before the connection is made, since a message needs a posted receive.
        (0..RECEIVES).try_for_each(|number| channel.post_receive(number))?;
        Ok(channel)
    }

    fn post_receive(&self, number: usize) -> Result {
        let slot = number % RECEIVES;
        self.ep.post(Post::Recv, &mut self.memory.segments(slot * MAX_MESSAGE, MAX_MESSAGE, 1), number as u64)?;
        Ok(())
    }

    /// Exchanges protocol versions, and refuses a peer of another major version.
    pub(crate) fn greet(&mut self, limit: Duration) -> Result {
        self.send(&Message::Hello { version: VERSION })?;
        match self.receive_within(limit)? {
            Message::Hello { version } if version.0 == VERSION.0 => Ok(()),
            Message::Hello { version: (major, minor) } => {
                let (ours, our_minor) = VERSION;
                let reason = format!("version {major}.{minor} is incompatible with version {ours}.{our_minor}");
                // The peer may have disconnected already, so a failed send is ignored.
                let _ = self.send(&Message::Refused(reason.clone()));
                Failure::with_message(format!("the peer's {reason}"))
            }
            message => Failure::with_message(format!("the peer sent {message:?}; expected its version (Hello)")),
        }
    }

    /// Sends a message, and waits for its completion.
    pub(crate) fn send(&mut self, message: &Message) -> Result {
        let bytes = message.encode();
        let at = RECEIVES * MAX_MESSAGE;
        self.memory.fill(at, bytes.len(), |i| bytes[i]);
        self.ep.post(Post::Send, &mut self.memory.segments(at, bytes.len(), 1), 0)?;
        match self.wait_policy.next(&self.shared.request, "the completion of a send")? {
            Event::Dto { status: DAT_DTO_SUCCESS, .. } => Ok(()),
            event => self.lost("a message to the peer", event),
        }
    }

    /// Sends the peer a refusal with this reason, and returns the reason as an error.
    pub(crate) fn refuse(mut self, failure: Failure) -> Result {
        self.send(&Message::Refused(failure.to_string()))?;
        // Waits until the client has read the refusal and disconnected. The refusal is returned even if this fails.
        let _ = self.await_end();
        Err(failure)
    }

    /// Receives the peer's next message.
    pub(crate) fn receive(&mut self) -> Result<Message> {
        self.receive_within(self.wait_policy.limit)
    }

    /// Receives the peer's next message within `limit`.
    pub(crate) fn receive_within(&mut self, limit: Duration) -> Result<Message> {
        let wait_policy = WaitPolicy { limit, ..self.wait_policy };
        let event = match self.pending.take() {
            Some(event) => event,
            None => wait_policy.next(&self.shared.recv, "a message of the peer")?,
        };
        let length = match event {
            Event::Dto { status: DAT_DTO_SUCCESS, length, .. } => length,
            event => return self.lost("a message of the peer", event),
        };
        let slot = self.received % RECEIVES;
        let length = usize::try_from(length).unwrap_or(MAX_MESSAGE).min(MAX_MESSAGE);
        let bytes = self.memory.copy(slot * MAX_MESSAGE, length);
        self.post_receive(self.received + RECEIVES)?;
        self.received += 1;
        Message::decode(&bytes).map_err(Failure::Message)
    }

    /// Whether the next `receive` returns without waiting: a message or the end of the connection is queued.
    pub(crate) fn has_message(&mut self) -> Result<bool> {
        if self.pending.is_none() {
            self.pending = WaitPolicy { limit: Duration::ZERO, ..self.wait_policy }.look(&self.shared.recv)?;
        }
        Ok(self.pending.is_some())
    }

    fn lost<T>(&self, what: &str, event: Event) -> Result<T> {
        let fate = self.shared.connection_failure(WaitPolicy { how: WaitMethod::Sleep, limit: CAUSE_LIMIT });
        match event {
            Event::Dto { status, .. } => Failure::with_message(format!("{what}: {}{fate}", status_word(status))),
            event => Failure::with_message(format!("{what}: {event:?}{fate}")),
        }
    }

    /// Whether the connection has ended.
    pub(crate) fn is_over(&self) -> bool {
        if !drain(&self.shared.conn).is_empty() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        self.is_over.load(Ordering::Relaxed)
    }

    /// Disconnects, and waits for the disconnect event.
    pub(crate) fn end(self) -> Result {
        self.ep.disconnect(DAT_CLOSE_GRACEFUL_FLAG)?;
        self.await_end()
    }

    /// Waits until the peer has disconnected.
    pub(crate) fn await_end(self) -> Result {
        if self.is_over() {
            return Ok(());
        }
        match self.wait_policy.next(&self.shared.conn, "the end of the connection")? {
            // The connection is broken if the peer exits right after its last message.
            Event::Connection { number: DAT_CONNECTION_EVENT_DISCONNECTED | DAT_CONNECTION_EVENT_BROKEN, .. } => Ok(()),
            event => Failure::with_message(format!("{event:?}, expected the end of the connection")),
        }
    }
}
