//! `libdaplfaulty.so.1`: wraps a provider (here sm) so that its calls fail, are delayed, or get invalid memory as
//! planned.
//!
//! With the wrapper the suites reach error paths of the object layer that a working provider never takes. This file
//! wraps the provider and its events, `counted` the objects; `plan` decides which call fails, `control` is the
//! interface for tests, `heap` counts memory. Without a plan, every wrapped call has the result of the provider. Some
//! optional calls are not wrapped, so they have the interface's defaults: quick posts, empty checks, disarms, counters,
//! memory windows for one QP. A call fails only as the provider interface permits: a failed call has no effect, but a
//! failed accept consumes its request.

pub mod control;
pub mod counted;
mod heap;
pub mod plan;

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use dapl::error::Result;
use dapl::provider::*;
use dapl::runtime::handle::ObjectId;

use counted::{CountedObject, ObjectKind};
use plan::Op;

// The unit test program already links the wrapped provider's export, so this one is left out.
#[cfg(not(test))]
dapl::export_provider!(Faulty<daplsm::Sm>);

/// A provider whose wrapped calls behave like those of `P`, unless the plan demands otherwise.
pub struct Faulty<P: Provider>(CountedObject<P>);

impl<P: Provider> Provider for Faulty<P> {
    type Listener = CountedObject<P::Listener>;
    type Request = CountedObject<P::Request>;

    const NAME: &'static str = "faulty";

    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self> {
        plan::ask(Op::Open)?;
        Ok(Faulty(CountedObject::new(ObjectKind::Ia, P::open(spec, Arc::new(Upwards(sink)))?)))
    }

    fn limits(&self) -> &Limits {
        self.0.inner.limits()
    }

    fn named_attributes(&self) -> Vec<(String, String)> {
        self.0.inner.named_attributes()
    }

    fn address(&self) -> SocketAddr {
        self.0.inner.address()
    }

    fn listen(&self, qual: u64, id: ObjectId) -> Result<Self::Listener> {
        plan::ask(Op::Listen)?;
        Ok(CountedObject::new(ObjectKind::Listener, self.0.inner.listen(qual, id)?))
    }

    fn close(&self) {
        self.0.inner.close();
        plan::report();
    }
}

impl<P: Provider> MemoryProvider for Faulty<P> {
    type Pd = CountedObject<P::Pd>;
    type Mr = CountedObject<P::Mr>;
    type Mw = CountedObject<P::Mw>;
    type Membership = CountedObject<P::Membership>;

    fn alloc_pd(&self) -> Result<Self::Pd> {
        plan::ask(Op::AllocPd)?;
        Ok(CountedObject::new(ObjectKind::Pd, self.0.inner.alloc_pd()?))
    }

    fn register(&self, pd: &Self::Pd, region: Region, access: Access) -> Result<Self::Mr> {
        plan::ask(Op::Register)?;
        Ok(CountedObject::new(ObjectKind::Mr, self.0.inner.register(&pd.inner, region, access)?))
    }

    fn register_shared(&self, pd: &Self::Pd, region: Region, access: Access) -> Result<Self::Mr> {
        plan::ask(Op::Register)?;
        Ok(CountedObject::new(ObjectKind::Mr, self.0.inner.register_shared(&pd.inner, region, access)?))
    }

    fn join(&self, cookie: &SharedCookie, length: u64) -> Result<Self::Membership> {
        plan::ask(Op::Join)?;
        Ok(CountedObject::new(ObjectKind::Membership, self.0.inner.join(cookie, length)?))
    }

    fn alloc_mw(&self, pd: &Self::Pd) -> Result<Self::Mw> {
        plan::ask(Op::AllocMw)?;
        Ok(CountedObject::new(ObjectKind::Mw, self.0.inner.alloc_mw(&pd.inner)?))
    }
}

impl<P: Provider> QueueProvider for Faulty<P> {
    type Cq = CountedObject<Arc<P::Cq>>;
    type Srq = CountedObject<Arc<P::Srq>>;
    type Qp = CountedObject<P::Qp>;

    fn create_srq(&self, pd: &Self::Pd, spec: SrqSpec) -> Result<Self::Srq> {
        plan::ask(Op::CreateSrq)?;
        Ok(CountedObject::new(ObjectKind::Srq, Arc::new(self.0.inner.create_srq(&pd.inner, spec)?)))
    }

    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<Self::Cq> {
        plan::ask(Op::CreateCq)?;
        Ok(CountedObject::new(ObjectKind::Cq, Arc::new(self.0.inner.create_cq(sink)?)))
    }

    fn create_qp(&self, pd: &Self::Pd, spec: QpSpec<Self>) -> Result<Self::Qp> {
        plan::ask(Op::CreateQp)?;
        let cq = |cq: Option<Arc<Self::Cq>>| cq.map(|cq| cq.inner.clone());
        let shared = spec.shared.map(|SharedRecvs { srq, token }| SharedRecvs { srq: srq.inner.clone(), token });
        let spec = QpSpec {
            ep: spec.ep,
            shared,
            recv_cq: cq(spec.recv_cq),
            request_cq: cq(spec.request_cq),
            max_recvs: spec.max_recvs,
            max_requests: spec.max_requests,
            max_recv_iov: spec.max_recv_iov,
            max_request_iov: spec.max_request_iov,
            max_reads_in: spec.max_reads_in,
            max_reads_out: spec.max_reads_out,
        };
        Ok(CountedObject::new(ObjectKind::Qp, self.0.inner.create_qp(&pd.inner, spec)?))
    }

    fn sleeps(&self) {
        self.0.inner.sleeps();
    }
}

/// Passes the wrapped provider's events on to the object layer.
struct Upwards<P: Provider>(Arc<dyn CmSink<Faulty<P>>>);

impl<P: Provider> CmSink<P> for Upwards<P> {
    fn request(
        &self,
        listener: ObjectId,
        request: P::Request,
        info: RequestInfo,
    ) -> std::result::Result<(), P::Request> {
        plan::wait(Op::Request);
        self.0.request(listener, CountedObject::new(ObjectKind::Request, request), info).map_err(|held| held.inner)
    }

    fn event(&self, conn: ConnId, event: ConnectionEvent, private_data: &[u8]) {
        plan::wait(Op::Event);
        self.0.event(conn, event, private_data);
    }

    fn many_recvs(&self, ep: ObjectId) {
        self.0.many_recvs(ep);
    }
}
