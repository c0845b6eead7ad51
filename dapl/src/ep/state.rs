//! The state machine of endpoints: states, steps, and the event of each transition.
//!
//! The modules `dapls_ep` and `dapli_*` make a transition under the EP's lock, and then queue its event. The tables are
//! those of spec/endpoints 4.1 and 4.2. A table in the tests below shows the result of each step in each state that an
//! EP can enter.
#![forbid(unsafe_code)]

use dat_abi::*;

use crate::error::{Error, Result, State};
use crate::provider::{ConnectionEvent, ConnectionEvent as E};

/// Defines the states. Each line has the state, its DAT number, and the subtype of `INVALID_STATE` for the state.
macro_rules! states {
    ($(#[$about:meta])* $($state:ident = $number:ident, $subtype:ident;)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum EpState { $($state,)* }

        impl EpState {
            /// All states, indexed by `self as usize`.
            pub const ALL: [EpState; 9] = [$(EpState::$state,)*];

            /// DAT's number of the state.
            pub fn number(self) -> DAT_EP_STATE {
                match self { $(EpState::$state => $number,)* }
            }

            /// DAT's name of the state.
            pub fn dat_name(self) -> &'static str {
                match self { $(EpState::$state => stringify!($number),)* }
            }

            /// The subtype of `INVALID_STATE` for this state.
            pub fn subtype(self) -> State {
                match self { $(EpState::$state => State::$subtype,)* }
            }
        }
    };
}

states! {
    /// The states of an EP. The four "unconfigured" states of the specification are not used: an EP without a PZ or EVD
    /// has the same state as a configured EP, and a call that needs the missing object returns an error.
    Unconnected = DAT_EP_STATE_UNCONNECTED, EpUnconnected;
    Reserved = DAT_EP_STATE_RESERVED, EpReserved;
    PassivePending = DAT_EP_STATE_PASSIVE_CONNECTION_PENDING, EpPassivePending;
    ActivePending = DAT_EP_STATE_ACTIVE_CONNECTION_PENDING, EpActivePending;
    TentativePending = DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING, EpTentativePending;
    Connected = DAT_EP_STATE_CONNECTED, EpConnected;
    DisconnectPending = DAT_EP_STATE_DISCONNECT_PENDING, EpDisconnectPending;
    Disconnected = DAT_EP_STATE_DISCONNECTED, EpDisconnected;
    CompletionPending = DAT_EP_STATE_COMPLETION_PENDING, EpCompletionPending;
}

/// A step of the state machine: a call, an event from the provider, or a timeout.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EpStep {
    /// An RSP reserves the EP.
    Reserve,
    /// The RSP is freed, or failed to listen.
    Release,
    /// A connection request has arrived at the RSP.
    Request,
    /// That request could not be reported to the consumer: there is no CR, or its event was not queued.
    RequestLost,
    /// The request that the EP belongs to was rejected or handed off.
    Decline,
    /// `dat_ep_connect`.
    Connect,
    /// The provider failed to start the connection.
    ConnectRefused,
    /// `dat_cr_accept` with this EP.
    Accept,
    /// `dat_cr_accept` of a request that this EP belongs to.
    AcceptOwn,
    /// The provider failed to accept the request into this EP.
    AcceptRefused,
    /// `dat_ep_disconnect`, graceful.
    Drain,
    /// `dat_ep_disconnect`, abrupt.
    Abort,
    /// `dat_ep_reset`.
    Reset,
    /// `dat_ep_free`.
    Free,
    /// An abrupt close of the IA, or the free of an EP that was created for a request that was not accepted.
    Close,
    /// An event reported by the provider, the connect timeout, or (as `Broken`) a failed transfer.
    Event(ConnectionEvent),
    /// The connection is established, but its event could not be queued.
    EstablishedLost,
}

impl EpState {
    /// The transition table (spec/endpoints 4.1, 4.2). A step that is not listed for a state is refused. A refused
    /// event of the provider changes neither the state nor the connect EVD.
    pub fn after(self, step: EpStep) -> Result<Self> {
        use EpState::*;
        Ok(match (self, step) {
            (Unconnected, EpStep::Reserve) => Reserved,
            (Reserved, EpStep::Release) => Unconnected,
            (Reserved, EpStep::Request) => PassivePending,
            (PassivePending, EpStep::RequestLost) => Reserved,
            (PassivePending | TentativePending, EpStep::Decline) => Unconnected,

            (Unconnected, EpStep::Connect) => ActivePending,
            (ActivePending, EpStep::ConnectRefused) => Unconnected,
            (Unconnected, EpStep::Accept) => CompletionPending,
            (PassivePending | TentativePending, EpStep::AcceptOwn) => CompletionPending,
            (CompletionPending, EpStep::AcceptRefused) => Unconnected,

            (ActivePending | CompletionPending, EpStep::Event(E::Established)) => Connected,
            (Connected | DisconnectPending, EpStep::EstablishedLost) => Disconnected,
            (ActivePending, EpStep::Event(E::TimedOut)) => Disconnected,
            (CompletionPending, EpStep::Event(E::AcceptFailed)) => Disconnected,
            (ActivePending | CompletionPending, EpStep::Event(E::PeerRejected | E::Rejected)) => Disconnected,
            (
                ActivePending | CompletionPending | Connected | DisconnectPending,
                EpStep::Event(E::Unreachable | E::Disconnected | E::Broken),
            ) => Disconnected,

            (Connected, EpStep::Drain) => DisconnectPending,
            (DisconnectPending, EpStep::Drain) => return Err(Error::InvalidParameter(2)),
            (ActivePending | CompletionPending | Disconnected, EpStep::Drain) => Disconnected,
            (ActivePending | CompletionPending | Connected | DisconnectPending | Disconnected, EpStep::Abort) => {
                Disconnected
            }
            (Unconnected | Disconnected, EpStep::Reset) => Unconnected,
            (ActivePending | CompletionPending | Connected, EpStep::Free) => Disconnected,
            (Unconnected | DisconnectPending | Disconnected, EpStep::Free) => Disconnected,
            (_, EpStep::Close) => Disconnected,
            (state, _) => return Err(Error::InvalidState(state.subtype())),
        })
    }

    /// The connection event of an allowed step (spec/endpoints 4.2). A transition from a live state ([`Self::is_live`])
    /// to `Disconnected` ends the attempt and has one event, with three exceptions: `dat_ep_free` in the states
    /// `Connected` and `DisconnectPending`, an abrupt close of the IA, and [`EpStep::EstablishedLost`] have none.
    pub fn connection_event(self, step: EpStep) -> Option<ConnectionEvent> {
        use EpState::*;
        match (self, step) {
            (_, EpStep::Event(E::Established)) => Some(E::Established),
            (ActivePending, EpStep::Event(E::TimedOut)) => Some(E::TimedOut),
            (ActivePending, EpStep::Event(E::PeerRejected)) => Some(E::PeerRejected),
            (ActivePending, EpStep::Event(E::Rejected)) => Some(E::Rejected),
            (ActivePending, EpStep::Event(E::Unreachable)) => Some(E::Unreachable),
            (CompletionPending, EpStep::Event(E::PeerRejected | E::Rejected | E::Unreachable | E::AcceptFailed)) => {
                Some(E::AcceptFailed)
            }
            (Connected, EpStep::Event(E::Unreachable)) => Some(E::Broken),
            // The consumer requested the disconnect, so its event is DISCONNECTED. A request that fails meanwhile is
            // reported by its own completion.
            (DisconnectPending, EpStep::Event(E::Unreachable | E::Broken)) => Some(E::Disconnected),
            (ActivePending | CompletionPending | Connected, EpStep::Event(E::Broken)) => Some(E::Broken),
            (
                ActivePending | CompletionPending | Connected | DisconnectPending,
                EpStep::Event(E::Disconnected) | EpStep::Abort,
            ) => Some(E::Disconnected),
            (ActivePending | CompletionPending, EpStep::Drain | EpStep::Free) => Some(E::Disconnected),
            _ => None,
        }
    }

    /// Whether the provider has an attempt or a connection that can be aborted.
    pub fn is_live(self) -> bool {
        use EpState::*;
        matches!(self, ActivePending | CompletionPending | Connected | DisconnectPending)
    }

    /// Whether requests may be posted in this state: in `Connected`, in `Disconnected` (they are flushed), and in
    /// `CompletionPending` (they wait for the connection). The last one is allowed because a server may post its first
    /// send right after the accept (spec/endpoints 4.1, note 1).
    #[inline(always)]
    pub fn takes_requests(self) -> Result<()> {
        const STATES: u32 =
            1 << EpState::Connected as u32 | 1 << EpState::Disconnected as u32 | 1 << EpState::CompletionPending as u32;
        if STATES >> self as u32 & 1 != 0 { Ok(()) } else { Err(Error::InvalidState(self.subtype())) }
    }

    /// Whether `dat_ep_modify` may change the PZ in this state (spec/endpoints 5.3).
    pub fn lets_modify_pz(self) -> Result<()> {
        match self {
            EpState::Unconnected | EpState::TentativePending => Ok(()),
            state => Err(Error::InvalidState(state.subtype())),
        }
    }

    /// Whether `dat_ep_modify` may change fields other than the PZ in this state.
    pub fn lets_modify(self) -> Result<()> {
        match self {
            EpState::Unconnected | EpState::Reserved | EpState::PassivePending | EpState::TentativePending => Ok(()),
            state => Err(Error::InvalidState(state.subtype())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [EpStep; 24] = [
        EpStep::Reserve,
        EpStep::Release,
        EpStep::Request,
        EpStep::RequestLost,
        EpStep::Decline,
        EpStep::Connect,
        EpStep::ConnectRefused,
        EpStep::Accept,
        EpStep::AcceptOwn,
        EpStep::AcceptRefused,
        EpStep::Drain,
        EpStep::Abort,
        EpStep::Reset,
        EpStep::Free,
        EpStep::Close,
        EpStep::Event(ConnectionEvent::Established),
        EpStep::EstablishedLost,
        EpStep::Event(ConnectionEvent::PeerRejected),
        EpStep::Event(ConnectionEvent::Rejected),
        EpStep::Event(ConnectionEvent::Unreachable),
        EpStep::Event(ConnectionEvent::AcceptFailed),
        EpStep::Event(ConnectionEvent::Disconnected),
        EpStep::Event(ConnectionEvent::Broken),
        EpStep::Event(ConnectionEvent::TimedOut),
    ];

    const SHOWN: [(EpState, &str); 9] = [
        (EpState::Unconnected, "UNC"),
        (EpState::Reserved, "RSV"),
        (EpState::PassivePending, "PCP"),
        (EpState::TentativePending, "TNP"),
        (EpState::ActivePending, "ACP"),
        (EpState::CompletionPending, "CMP"),
        (EpState::Connected, "CON"),
        (EpState::DisconnectPending, "DSP"),
        (EpState::Disconnected, "DIS"),
    ];

    fn short(state: EpState) -> &'static str {
        SHOWN.iter().find(|(s, _)| *s == state).map_or("?", |(_, name)| name)
    }

    fn event(notice: Option<ConnectionEvent>) -> &'static str {
        match notice {
            None => "",
            Some(ConnectionEvent::Established) => "!est",
            Some(ConnectionEvent::PeerRejected) => "!prej",
            Some(ConnectionEvent::Rejected) => "!nprej",
            Some(ConnectionEvent::AcceptFailed) => "!acerr",
            Some(ConnectionEvent::Disconnected) => "!disc",
            Some(ConnectionEvent::Broken) => "!brok",
            Some(ConnectionEvent::TimedOut) => "!time",
            Some(ConnectionEvent::Unreachable) => "!unre",
        }
    }

    fn name(step: EpStep) -> String {
        match step {
            EpStep::Event(event) => format!("{event:?}"),
            other => format!("{other:?}"),
        }
    }

    fn table() -> String {
        let mut text = format!("{:<16}", "");
        for (_, name) in SHOWN {
            text += &format!("{name:<11}");
        }
        for step in STEPS {
            text = text.trim_end().to_string() + &format!("\n{:<16}", name(step));
            for (state, _) in SHOWN {
                let cell = match state.after(step) {
                    Ok(next) => format!("{}{}", short(next), event(state.connection_event(step))),
                    Err(Error::InvalidParameter(n)) => format!("IP({n})"),
                    Err(_) => "-".into(),
                };
                text += &format!("{cell:<11}");
            }
        }
        text.trim_end().to_string()
    }

    #[test]
    fn ep_transitions_are_those_of_the_specification() {
        assert_eq!(format!("\n{}\n", table()), GOLDEN);
    }

    #[test]
    fn invalid_state_errors_name_the_ep_state() {
        for state in EpState::ALL {
            assert_eq!(state.after(EpStep::RequestLost).is_err(), state != EpState::PassivePending);
            if state != EpState::Unconnected {
                assert_eq!(state.after(EpStep::Connect), Err(Error::InvalidState(state.subtype())));
            }
        }
    }

    #[test]
    fn ep_states_have_the_numbers_of_the_specification() {
        let numbers = EpState::ALL.map(|state| (state as usize, state.number()));
        assert_eq!(numbers, [(0, 0), (1, 2), (2, 4), (3, 6), (4, 7), (5, 9), (6, 10), (7, 11), (8, 12)]);
        assert_eq!(EpState::Reserved.dat_name(), "DAT_EP_STATE_RESERVED");
    }

    #[test]
    fn every_ep_state_has_its_own_subtype() {
        for (n, a) in EpState::ALL.iter().enumerate() {
            assert!(EpState::ALL[n + 1..].iter().all(|b| a.subtype() != b.subtype()));
        }
    }

    #[test]
    fn each_connect_attempt_has_one_terminal_event() {
        use EpState::*;
        let without_event = [EpStep::Free, EpStep::Close, EpStep::EstablishedLost];
        for state in [ActivePending, CompletionPending, Connected, DisconnectPending] {
            for step in STEPS.into_iter().filter(|s| !without_event.contains(s)) {
                if state.after(step) == Ok(Disconnected) {
                    assert!(state.connection_event(step).is_some(), "{state:?} {step:?}");
                }
            }
        }
        let established = EpStep::Event(ConnectionEvent::Established);
        assert!(STEPS.into_iter().all(|step| step == established || Disconnected.connection_event(step).is_none()));
    }

    const GOLDEN: &str = "
                UNC        RSV        PCP        TNP        ACP        CMP        CON        DSP        DIS
Reserve         RSV        -          -          -          -          -          -          -          -
Release         -          UNC        -          -          -          -          -          -          -
Request         -          PCP        -          -          -          -          -          -          -
RequestLost     -          -          RSV        -          -          -          -          -          -
Decline         -          -          UNC        UNC        -          -          -          -          -
Connect         ACP        -          -          -          -          -          -          -          -
ConnectRefused  -          -          -          -          UNC        -          -          -          -
Accept          CMP        -          -          -          -          -          -          -          -
AcceptOwn       -          -          CMP        CMP        -          -          -          -          -
AcceptRefused   -          -          -          -          -          UNC        -          -          -
Drain           -          -          -          -          DIS!disc   DIS!disc   DSP        IP(2)      DIS
Abort           -          -          -          -          DIS!disc   DIS!disc   DIS!disc   DIS!disc   DIS
Reset           UNC        -          -          -          -          -          -          -          UNC
Free            DIS        -          -          -          DIS!disc   DIS!disc   DIS        DIS        DIS
Close           DIS        DIS        DIS        DIS        DIS        DIS        DIS        DIS        DIS
Established     -          -          -          -          CON!est    CON!est    -          -          -
EstablishedLost -          -          -          -          -          -          DIS        DIS        -
PeerRejected    -          -          -          -          DIS!prej   DIS!acerr  -          -          -
Rejected        -          -          -          -          DIS!nprej  DIS!acerr  -          -          -
Unreachable     -          -          -          -          DIS!unre   DIS!acerr  DIS!brok   DIS!disc   -
AcceptFailed    -          -          -          -          -          DIS!acerr  -          -          -
Disconnected    -          -          -          -          DIS!disc   DIS!disc   DIS!disc   DIS!disc   -
Broken          -          -          -          -          DIS!brok   DIS!brok   DIS!brok   DIS!disc   -
TimedOut        -          -          -          -          DIS!time   -          -          -          -
";
}
