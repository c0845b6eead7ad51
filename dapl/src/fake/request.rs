//! Listeners and connection requests of the fake provider. An accept, reject or handoff is reported when the test
//! delivers it.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::net::FakeNetwork;
use super::qp::{FakeQp, FakeQpCore, QpState};
use crate::error::{Error, Result};
use crate::provider::{ConnId, ConnRequest, ConnectionEvent, RequestInfo};
use crate::runtime::handle::ObjectId;

pub(crate) struct FakeListener {
    net: Arc<FakeNetwork>,
    qual: u64,
}

impl FakeListener {
    pub(super) fn new(net: &Arc<FakeNetwork>, qual: u64, id: ObjectId) -> Result<Self> {
        let mut listeners = net.listeners.lock();
        if listeners.contains_key(&qual) {
            return Err(Error::ConnQualTaken);
        }
        listeners.insert(qual, id);
        Ok(FakeListener { net: net.clone(), qual })
    }
}

impl Drop for FakeListener {
    fn drop(&mut self) {
        self.net.listeners.lock().remove(&self.qual);
    }
}

pub(crate) struct FakeRequest {
    /// The requester; removed by an accept, a reject or a handoff.
    pub(super) from: Option<(Arc<FakeQpCore>, ConnId)>,
    pub(super) info: RequestInfo,
}

impl ConnRequest for FakeRequest {
    type Qp = FakeQp;

    fn accept(mut self, qp: &FakeQp, private_data: &[u8], conn: ConnId) -> Result<()> {
        let Some((from, conn_of_requester)) = self.from.take() else { return Err(Error::Internal) };
        let (to, data) = (qp.0.clone(), private_data.to_vec());
        let asks = matches!(from.inner.lock().state, QpState::Connecting(conn) if conn == conn_of_requester);
        qp.0.net.report(move |sink| {
            if !asks {
                return sink.event(conn, ConnectionEvent::AcceptFailed, &[]);
            }
            sink.event(conn, ConnectionEvent::Established, &[]);
            sink.event(conn_of_requester, ConnectionEvent::Established, &data);
            to.establish(conn, &from);
            from.establish(conn_of_requester, &to);
        });
        Ok(())
    }

    fn hand_off(mut self, qual: u64) -> std::result::Result<(), (Self, Error)> {
        let Some((from, conn)) = self.from.take() else { return Ok(()) };
        let Some(listener) = from.net.listeners.lock().get(&qual).copied() else {
            self.from = Some((from, conn));
            return Err((self, Error::InvalidParameter(2)));
        };
        let (net, info) = (from.net.clone(), self.info.clone());
        let request = FakeRequest { from: Some((from, conn)), info: info.clone() };
        net.report(move |sink| drop(sink.request(listener, request, info)));
        Ok(())
    }

    fn reject(mut self, private_data: &[u8]) {
        if let Some((from, conn)) = self.from.take() {
            let data = private_data.to_vec();
            from.net.report(move |sink| sink.event(conn, ConnectionEvent::PeerRejected, &data));
        }
    }
}

impl Drop for FakeRequest {
    fn drop(&mut self) {
        if let Some((from, conn)) = self.from.take() {
            from.net.event(conn, ConnectionEvent::Rejected);
        }
    }
}
