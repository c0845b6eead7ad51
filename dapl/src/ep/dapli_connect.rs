//! Connects and disconnects an EP on behalf of the consumer.
//!
//! The provider is called with the EP's lock held. A connection event or a timeout that occurs meanwhile waits for that
//! lock, and then finds the new state and attempt number.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use super::state::{EpState, EpStep};
use super::{Ep, EpPeer};
use crate::error::{Error, Handle, Result, State};
use crate::provider::{ConnectSpec, Connection, PeerAddress, Provider};
use crate::runtime::consumer_memory;
use crate::runtime::handle::Ref;
use crate::runtime::timer::{self, OnExpiry};

/// Arguments of `dat_ep_connect`. An invalid argument is stored as an error, which is returned at its place in the
/// order of checks (spec/endpoints 5.4).
pub(super) struct ConnectArguments {
    pub(super) address: Result<PeerAddress>,
    pub(super) qual: u64,
    /// Connect timeout; `None` is infinite.
    pub(super) timeout: Result<Option<Duration>>,
    /// Whether the quality of service is best effort and no connect flags are set. Providers support nothing else.
    pub(super) is_best_effort: bool,
    pub(super) private_data: Result<Vec<u8>>,
}

/// `dat_ep_connect`, after its arguments are parsed.
pub(super) fn connect<P: Provider>(ep: &Ref<Ep<P>>, call: ConnectArguments) -> Result<()> {
    let mut core = ep.open()?;
    if !core.objects.has_live_connect_evd() {
        return Err(Error::InvalidHandle(Handle::EvdConn));
    }
    let timeout = call.timeout?;
    if core.objects.pz.is_none() || !core.objects.is_alive() {
        return Err(Error::InvalidState(State::EpNotReady));
    }
    core.state.after(EpStep::Connect)?;
    if !call.is_best_effort {
        return Err(Error::ModelNotSupported);
    }
    let private_data = call.private_data?;
    let address = call.address?;

    let conn = ep.next_attempt(&mut core);
    // The timeout is armed before the state changes, so that the connect can still fail without an event. A callback of
    // the timeout waits for the EP's lock, which this thread holds.
    let timeout = timeout.map(|after| {
        let target: Arc<dyn OnExpiry> = ep.to_arc();
        timer::arm(after, Arc::downgrade(&target), conn.attempt)
    });
    core.timeout = timeout.transpose()?;
    ep.step(&mut core, EpStep::Connect)?;
    ep.remote_address.write(&consumer_memory::peer_address(&address));
    core.kept_cr = None;

    let spec = ConnectSpec { address: &address, qual: call.qual, private_data: &private_data };
    let begun = ep.post_state().qp().and_then(|qp| qp.connect(&spec, conn));
    if let Err(error) = begun {
        ep.step(&mut core, EpStep::ConnectRefused)?;
        ep.remote_address.write(&[]);
        log::debug!("ep {:#x} cannot connect to {address:?}: {error}", ep.id.handle);
        return Err(error);
    }
    core.remote = Some(EpPeer { address, qual: call.qual });
    Ok(())
}

/// Returns the address and qualifier of the peer of `dup`, which must be connected.
pub(super) fn peer_of<P: Provider>(dup: &Ep<P>) -> Result<(PeerAddress, u64)> {
    let core = dup.open()?;
    match (core.state, &core.remote) {
        (EpState::Connected, Some(remote)) => Ok((remote.address.clone(), remote.qual)),
        (state, _) => Err(Error::InvalidState(state.subtype())),
    }
}

/// `dat_ep_disconnect`. Does not wait for the peer; the event DISCONNECTED reports the end of the connection. Has no
/// effect on an EP that is already disconnected.
pub(super) fn disconnect<P: Provider>(ep: &Ep<P>, graceful: bool) -> Result<()> {
    let mut core = ep.open()?;
    match (core.state, graceful) {
        (EpState::Unconnected, _) => ep.flush_unconnected(&mut core)?,
        (EpState::Connected, true) => {
            ep.step(&mut core, EpStep::Drain)?;
            ep.post_state().qp()?.drain();
        }
        (_, true) => ep.end(&mut core, EpStep::Drain)?,
        (_, false) => ep.end(&mut core, EpStep::Abort)?,
    }
    drop(core);
    ep.deliver();
    Ok(())
}
