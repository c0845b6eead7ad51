//! Objects of the wrapped provider. Each is counted while it exists, and each call that can fail consults the plan
//! first.
//!
//! The wrapper creates the objects and dapl drops them. Apart from planned failures, their calls have the results of
//! the wrapped objects. Quick posts and empty checks are not passed on, so dapl uses the general calls. Counters and
//! disarms are not passed on either.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use dapl::error::{Error, Result};
use dapl::provider::*;

use crate::plan::{self, Op};

/// Kinds of provider objects whose live instances are counted, to detect leaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ObjectKind {
    Ia,
    Pd,
    Mr,
    Mw,
    Membership,
    Cq,
    Srq,
    Qp,
    Listener,
    Request,
}

/// Number of kinds.
pub const KINDS: usize = ObjectKind::Request as usize + 1;

static ALIVE: [AtomicI64; KINDS] = [const { AtomicI64::new(0) }; KINDS];

/// Number of live objects of each kind.
pub fn alive() -> [i64; KINDS] {
    std::array::from_fn(|kind| ALIVE[kind].load(SeqCst))
}

/// An object of the wrapped provider. It is counted until it is dropped.
pub struct CountedObject<T> {
    pub(crate) inner: T,
    _count: Count,
}

struct Count(ObjectKind);

impl Drop for Count {
    fn drop(&mut self) {
        ALIVE[self.0 as usize].fetch_sub(1, SeqCst);
    }
}

impl<T> CountedObject<T> {
    pub(crate) fn new(kind: ObjectKind, inner: T) -> Self {
        ALIVE[kind as usize].fetch_add(1, SeqCst);
        CountedObject { inner, _count: Count(kind) }
    }
}

impl<T: MemoryRegion> MemoryRegion for CountedObject<T> {
    fn local_key(&self) -> u32 {
        self.inner.local_key()
    }

    fn remote_key(&self) -> u32 {
        self.inner.remote_key()
    }
}

impl<T: MemoryWindow> MemoryWindow for CountedObject<T> {
    fn is_bound(&self) -> bool {
        self.inner.is_bound()
    }
}

impl<T: CompletionQueue> CompletionQueue for CountedObject<Arc<T>> {
    fn poll(&self, out: &mut [Completion]) -> usize {
        self.inner.poll(out)
    }

    fn ready(&self, out: &mut [Completion]) -> usize {
        self.inner.ready(out)
    }

    fn max_spin(&self) -> u32 {
        self.inner.max_spin()
    }

    fn arm(&self, mode: ArmMode) -> Result<bool> {
        plan::ask(Op::Arm)?;
        self.inner.arm(mode)
    }
}

impl<T: SharedReceiveQueue> SharedReceiveQueue for CountedObject<Arc<T>> {
    fn post_recv(&self, segments: &[Segment], cookie: u64) -> Result<()> {
        plan::ask(Op::SrqPostRecv)?;
        self.inner.post_recv(segments, cookie)
    }

    fn available(&self) -> u32 {
        self.inner.available()
    }

    fn resize(&self, max_recvs: u32) -> Result<()> {
        plan::ask(Op::SrqResize)?;
        self.inner.resize(max_recvs)
    }

    fn watch(&self, limit: u32) -> Result<()> {
        plan::ask(Op::SrqWatch)?;
        self.inner.watch(limit)
    }
}

impl<T: QueuePair> QueuePair for CountedObject<T> {
    type Mr = CountedObject<T::Mr>;
    type Mw = CountedObject<T::Mw>;

    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        plan::ask(Op::PostRecv)?;
        self.inner.post_recv(segments, token)
    }

    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        plan::ask(Op::PostSend)?;
        if plan::spoils() {
            return self.inner.post_send(&SendWr { segments: &[NOWHERE], ..*wr });
        }
        self.inner.post_send(wr)
    }

    fn post_bind(&self, mw: &Self::Mw, bind: Option<Bind<'_, Self::Mr>>, wr: &BindWr) -> Result<u32> {
        plan::ask(Op::PostBind)?;
        let bind = bind.map(|Bind { mr, region, access, kept }| Bind { mr: &mr.inner, region, access, kept });
        self.inner.post_bind(&mw.inner, bind, wr)
    }

    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        plan::ask(Op::WatchRecvs)?;
        self.inner.watch_recvs(soft, hard)
    }

    fn outstanding(&self) -> Outstanding {
        self.inner.outstanding()
    }

    fn flush_recvs(&self) {
        self.inner.flush_recvs();
    }
}

impl<T: Connection> Connection for CountedObject<T> {
    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        plan::ask(Op::Connect)?;
        self.inner.connect(spec, conn)
    }

    fn drain(&self) {
        self.inner.drain();
    }

    fn abort(&self) {
        self.inner.abort();
    }

    fn reset(&self) -> Result<()> {
        plan::ask(Op::Reset)?;
        self.inner.reset()
    }
}

/// Unregistered memory: 0 is never a valid key.
const NOWHERE: Segment = Segment { key: 0, pad: 0, address: 8, length: 8 };

impl<T: ConnRequest> ConnRequest for CountedObject<T> {
    type Qp = CountedObject<T::Qp>;

    fn accept(self, qp: &Self::Qp, private_data: &[u8], conn: ConnId) -> Result<()> {
        // A planned failure also consumes the request, whose drop rejects the peer.
        plan::ask(Op::Accept)?;
        self.inner.accept(&qp.inner, private_data, conn)
    }

    fn reject(self, private_data: &[u8]) {
        self.inner.reject(private_data);
    }

    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)> {
        if let Err(error) = plan::ask(Op::HandOff) {
            return Err((self, error));
        }
        let CountedObject { inner, _count } = self;
        inner.hand_off(qual).map_err(|(inner, error)| (CountedObject { inner, _count }, error))
    }
}
