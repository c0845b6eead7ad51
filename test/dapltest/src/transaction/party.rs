//! One thread of one side of a transaction: its endpoints, its memory and its events.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use dat_abi::*;

use super::plan::TransactionPlan;
use crate::channel::Channel;
use crate::dat::raw::Post;
use crate::dat::{Address, Ep, Event, Handle, Ia, Memory, WaitMethod, WaitPolicy, status_word};
use crate::failure::{Failure, Result};
use crate::operation::{Side, Transfer};
use crate::report::Latency;
use crate::shared_objects::{Listener, SharedObjects};
use crate::wire::Offer;

/// Time to wait for the connection event that explains a failed transfer.
const CAUSE_LIMIT: Duration = Duration::from_millis(500);

/// The objects of one thread of a test. The fields are dropped in the order of their declaration: each object after all
/// objects that use it.
pub(super) struct Party<'a> {
    pub(super) eps: Vec<Ep>,
    pub(super) memory: Memory,
    listener: Option<Listener>,
    shared: SharedObjects,
    pub(super) plan: &'a TransactionPlan,
    pub(super) side: Side,
    pub(super) number: usize,
    /// Maps the handle of an endpoint to its index.
    names: HashMap<Handle, usize>,
    /// Per endpoint: operation and length of each completed receive that no operation has consumed yet.
    arrived: Vec<VecDeque<(usize, u64)>>,
    /// Per endpoint: operations of the requests in flight.
    under_way: Vec<VecDeque<usize>>,
    wait_policy: WaitPolicy,
    /// Latencies of the iterations.
    pub(super) latency: Latency,
}

impl<'a> Party<'a> {
    /// Creates the objects of a thread, with all receives posted before the connection.
    pub(super) fn new(
        ia: &Ia,
        plan: &'a TransactionPlan,
        side: Side,
        number: usize,
        wait_policy: WaitPolicy,
    ) -> Result<Self> {
        let needs = plan.needs(side);
        let shared = SharedObjects::new(ia, needs, plan.test().is_notified)?;
        let listener = match side {
            Side::Server => Some(Listener::any(ia, needs.endpoints)?),
            Side::Client => None,
        };
        let memory = Memory::new(ia, &shared.pz, plan.length())?;
        let eps: Vec<Ep> = (0..needs.endpoints).map(|_| shared.ep(ia, needs)).collect::<std::result::Result<_, _>>()?;
        let names = eps.iter().enumerate().map(|(at, ep)| (ep.handle(), at)).collect();
        let (arrived, under_way) = (vec![VecDeque::new(); eps.len()], vec![VecDeque::new(); eps.len()]);
        let latency = Latency::default();
        let party = Party {
            eps,
            memory,
            listener,
            shared,
            plan,
            side,
            number,
            names,
            arrived,
            under_way,
            wait_policy,
            latency,
        };
        // The data is filled in before a peer can access it.
        if plan.test().validates {
            party.prepare(0);
        }
        for (at, operation) in plan.operations().iter().enumerate() {
            if operation.transfer == Transfer::Send && operation.by != side {
                (0..party.eps.len()).try_for_each(|endpoint| party.post_receive(endpoint, at))?;
            }
        }
        Ok(party)
    }

    /// Returns the data that the partner needs.
    pub(super) fn offer(&self) -> Offer {
        Offer { qual: self.listener.as_ref().map_or(0, |listener| listener.qual), place: self.memory.place() }
    }

    /// Connects all endpoints, in order.
    pub(super) fn connect(&self, to: Address, offer: &Offer, qos: DAT_QOS) -> Result {
        if offer.place.length < self.plan.length() as u64 {
            return Failure::with_message("the server offers less memory than the test needs");
        }
        self.eps.iter().try_for_each(|ep| self.shared.connect(ep, to, offer.qual, qos, self.sleeping()))
    }

    /// Accepts the partner's endpoints, in order.
    pub(super) fn accept(&self, client: &Channel) -> Result {
        let listener = self.listener.as_ref().expect("a party with the server role has a listener");
        self.eps.iter().try_for_each(|ep| listener.accept(ep, &self.shared, self.sleeping(), || client.is_over()))
    }

    fn sleeping(&self) -> WaitPolicy {
        WaitPolicy { how: WaitMethod::Sleep, ..self.wait_policy }
    }

    /// Disconnects all endpoints, which must still be connected.
    pub(super) fn disconnect(&mut self) -> Result {
        self.shared.is_quiet()?;
        for ep in &self.eps {
            ep.disconnect(DAT_CLOSE_GRACEFUL_FLAG)?;
        }
        for _ in &self.eps {
            match self.sleeping().next(&self.shared.conn, "the end of a connection")? {
                Event::Connection { number: DAT_CONNECTION_EVENT_DISCONNECTED, .. } => {}
                event => return Failure::with_message(format!("{event:?}, expected the end of a connection")),
            }
        }
        Ok(())
    }

    pub(super) fn post_receive(&self, endpoint: usize, operation: usize) -> Result {
        let what = &self.plan.operations()[operation];
        let at = self.plan.at(endpoint, operation);
        let mut segments = self.memory.segments(at, what.size as usize, what.segments.into());
        Ok(self.eps[endpoint].post(Post::Recv, &mut segments, operation as u64)?)
    }

    pub(super) fn post_request(&mut self, endpoint: usize, operation: usize, post: Post) -> Result {
        let what = &self.plan.operations()[operation];
        let at = self.plan.at(endpoint, operation);
        let mut segments = self.memory.segments(at, what.size as usize, what.segments.into());
        self.eps[endpoint].post(post, &mut segments, operation as u64)?;
        self.under_way[endpoint].push_back(operation);
        Ok(())
    }

    /// Waits until the receive of this operation has completed.
    pub(super) fn await_receive(&mut self, endpoint: usize, operation: usize) -> Result {
        let (came, length) = loop {
            if let Some(first) = self.arrived[endpoint].pop_front() {
                break first;
            }
            let event = self.wait_policy.next(&self.shared.recv, "a message of the peer")?;
            let (whose, number, length) = self.completion(event, "a receive")?;
            self.arrived[whose].push_back((number, length));
        };
        let wanted = self.plan.operations()[operation].length() as u64;
        if (came, length) != (operation, wanted) {
            let what = format!("endpoint {endpoint}: a receive of operation {came} with {length} bytes");
            return Failure::with_message(format!("{what}, expected operation {operation} with {wanted}"));
        }
        Ok(())
    }

    /// Waits until no request of this endpoint is in flight.
    pub(super) fn settle(&mut self, endpoint: usize, is_polled: bool) -> Result {
        let how = if is_polled { WaitMethod::Poll } else { self.wait_policy.how };
        while !self.under_way[endpoint].is_empty() {
            let event =
                WaitPolicy { how, ..self.wait_policy }.next(&self.shared.request, "the completion of an operation")?;
            let (whose, number, length) = self.completion(event, "an operation")?;
            let expected = self.under_way[whose].pop_front();
            let wanted = expected.map(|operation| (operation, self.plan.operations()[operation].length() as u64));
            if wanted != Some((number, length)) {
                let what = format!("endpoint {whose}: operation {number} completed with {length} bytes");
                let wanted = wanted.map_or("none in flight".to_owned(), |(operation, bytes)| {
                    format!("operation {operation} with {bytes} bytes")
                });
                return Failure::with_message(format!("{what}, expected {wanted}"));
            }
        }
        Ok(())
    }

    /// Returns endpoint, operation and length of a successful completion.
    fn completion(&self, event: Event, what: &str) -> Result<(usize, usize, u64)> {
        let Event::Dto { ep, cookie, status, length } = event else {
            return Failure::with_message(format!("{event:?}, expected the completion of {what}"));
        };
        let Some(endpoint) = self.names.get(&ep).copied() else {
            return Failure::with_message(format!("the completion of {what} names an unknown endpoint"));
        };
        if status != DAT_DTO_SUCCESS {
            let fate = self.shared.connection_failure(WaitPolicy { how: WaitMethod::Sleep, limit: CAUSE_LIMIT });
            return Failure::with_message(format!("endpoint {endpoint}: {what}: {}{fate}", status_word(status)));
        }
        Ok((endpoint, cookie as usize, length))
    }
}
