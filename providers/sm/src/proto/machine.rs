//! The connection machine of the seed (SHMCM): three states, a generation number, one table (transports.md CM-3, CM-4).
//!
//! `setup` and the engine feed it; it says what to send and what to tell the layer above, in that order. The carrier is not
//! its business: datagrams until the rings exist, the FIFO and the control line afterwards.
#![forbid(unsafe_code)]

/// Where a connection stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum State {
    #[default]
    Disconnected,
    Connecting,
    Connected,
}

/// What happens to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Input {
    /// The layer above wants it.
    Connect,
    /// The layer above is done with it.
    Disconnect,
    /// A request with the peer's generation.
    Req(u16),
    /// An answer with the peer's generation.
    Ack(u16),
    /// The peer ended it; the generation says which one.
    Rst(u16),
    /// A sign of life or data.
    Alive(u16),
    /// Nothing was heard for too long, or something broke on this side.
    Failure,
}

/// What to do, in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    SendReq,
    SendAck,
    SendRst,
    Connected,
    Disconnected,
    /// The peer lives: its silence begins anew.
    Heard,
}

/// One side of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Machine {
    state: State,
    /// Ours: raised before every request, carried in every packet.
    generation: u16,
    /// The peer's, as its request or answer told it.
    peer: u16,
}

impl Machine {
    /// Of an end point whose last request, or answer, was of this generation.
    pub(crate) fn after(generation: u16) -> Self {
        Machine { generation, ..Machine::default() }
    }

    /// The generation that the peer's packets carry.
    pub(crate) fn peer_generation(&self) -> u16 {
        self.peer
    }

    pub(crate) fn generation(&self) -> u16 {
        self.generation
    }

    /// The whole machine. What is not listed is ignored: an empty answer.
    pub(crate) fn handle(&mut self, input: Input) -> &'static [Action] {
        use Action::*;
        use State as S;
        let (next, actions): (S, &[Action]) = match (self.state, input) {
            (S::Disconnected, Input::Connect) => {
                self.generation = self.generation.wrapping_add(1);
                (S::Connecting, &[SendReq])
            }
            (S::Disconnected, Input::Disconnect) => (S::Disconnected, &[Disconnected]),
            (S::Connecting | S::Connected, Input::Disconnect) => (S::Disconnected, &[SendRst, Disconnected]),
            (S::Connecting, Input::Req(peer)) => {
                self.peer = peer;
                (S::Connected, &[SendAck, Connected])
            }
            (S::Connected, Input::Req(peer)) if peer == self.peer => (S::Connected, &[SendAck]),
            (S::Connected, Input::Req(_)) => (S::Disconnected, &[SendRst, Disconnected]),
            (S::Connecting, Input::Ack(peer)) => {
                self.peer = peer;
                (S::Connected, &[Connected])
            }
            (S::Connecting, Input::Rst(_)) => (S::Disconnected, &[Disconnected]),
            (S::Connected, Input::Rst(peer)) if peer == self.peer => (S::Disconnected, &[Disconnected]),
            (S::Connected, Input::Alive(peer)) if peer == self.peer => (S::Connected, &[Heard]),
            (S::Connecting, Input::Failure) => (S::Connecting, &[SendReq]),
            (S::Connected, Input::Failure) => (S::Disconnected, &[SendRst, Disconnected]),
            (state, _) => (state, &[]),
        };
        self.state = next;
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_state(state: State) -> Machine {
        Machine { state, generation: 7, peer: 3 }
    }

    #[test]
    fn the_table_is_the_seeds() {
        use State::*;
        let inputs = [
            Input::Connect,
            Input::Disconnect,
            Input::Req(3),
            Input::Req(4),
            Input::Ack(3),
            Input::Rst(3),
            Input::Rst(4),
            Input::Alive(3),
            Input::Alive(4),
            Input::Failure,
        ];
        let mut table = String::new();
        for state in [Disconnected, Connecting, Connected] {
            for input in inputs {
                let mut machine = in_state(state);
                let actions = machine.handle(input);
                if !actions.is_empty() {
                    table += &format!("{state:?} {input:?} -> {:?} {actions:?}\n", machine.state);
                }
            }
        }
        let golden = "\
Disconnected Connect -> Connecting [SendReq]
Disconnected Disconnect -> Disconnected [Disconnected]
Connecting Disconnect -> Disconnected [SendRst, Disconnected]
Connecting Req(3) -> Connected [SendAck, Connected]
Connecting Req(4) -> Connected [SendAck, Connected]
Connecting Ack(3) -> Connected [Connected]
Connecting Rst(3) -> Disconnected [Disconnected]
Connecting Rst(4) -> Disconnected [Disconnected]
Connecting Failure -> Connecting [SendReq]
Connected Disconnect -> Disconnected [SendRst, Disconnected]
Connected Req(3) -> Connected [SendAck]
Connected Req(4) -> Disconnected [SendRst, Disconnected]
Connected Rst(3) -> Disconnected [Disconnected]
Connected Alive(3) -> Connected [Heard]
Connected Failure -> Disconnected [SendRst, Disconnected]
";
        assert_eq!(table, golden);
    }

    #[test]
    fn generations_rise_with_every_connect_and_wrap() {
        let mut machine = Machine::after(u16::MAX);
        machine.handle(Input::Connect);
        assert_eq!(machine.generation(), 0);
        machine.handle(Input::Disconnect);
        machine.handle(Input::Connect);
        assert_eq!(machine.generation(), 1);
    }

    #[test]
    fn two_sides_meet_whoever_begins() {
        let (mut active, mut passive) = (Machine::default(), Machine::default());
        assert_eq!(active.handle(Input::Connect), [Action::SendReq]);
        assert_eq!(passive.handle(Input::Connect), [Action::SendReq], "accept is a connect with the request in hand");
        assert_eq!(passive.handle(Input::Req(active.generation())), [Action::SendAck, Action::Connected]);
        assert_eq!(active.handle(Input::Ack(passive.generation())), [Action::Connected]);
        assert_eq!(passive.handle(Input::Req(active.generation())), [Action::SendAck], "a repeated request");
        assert_eq!(active.handle(Input::Rst(passive.generation())), [Action::Disconnected]);
    }
}
