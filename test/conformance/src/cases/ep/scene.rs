//! Helpers that bring an EP into a given state, with all objects that the EP needs. Only COMPLETION_PENDING needs a
//! second process, which is stopped; for the other states DAT calls in one process suffice. Also helpers for requests,
//! listeners and full EVDs.
#![forbid(unsafe_code)]

use std::fs;
use std::process::Command;
use std::ptr::null_mut;

use crate::kit::*;

/// The EP states that a consumer can observe (spec/endpoints 4.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EpState {
    Unconnected,
    Reserved,
    Passive,
    Tentative,
    Active,
    Completing,
    Connected,
    Disconnecting,
    Disconnected,
}

use EpState::*;

impl EpState {
    pub(crate) const ALL: [EpState; 9] =
        [Unconnected, Reserved, Passive, Tentative, Active, Completing, Connected, Disconnecting, Disconnected];

    /// Name of the state in names of cases.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Unconnected => "unconnected",
            Reserved => "reserved",
            Passive => "passive_pending",
            Tentative => "tentative",
            Active => "active_pending",
            Completing => "completion_pending",
            Connected => "connected",
            Disconnecting => "disconnect_pending",
            Disconnected => "disconnected",
        }
    }

    pub(crate) fn number(self) -> DAT_EP_STATE {
        match self {
            Unconnected => DAT_EP_STATE_UNCONNECTED,
            Reserved => DAT_EP_STATE_RESERVED,
            Passive => DAT_EP_STATE_PASSIVE_CONNECTION_PENDING,
            Tentative => DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING,
            Active => DAT_EP_STATE_ACTIVE_CONNECTION_PENDING,
            Completing => DAT_EP_STATE_COMPLETION_PENDING,
            Connected => DAT_EP_STATE_CONNECTED,
            Disconnecting => DAT_EP_STATE_DISCONNECT_PENDING,
            Disconnected => DAT_EP_STATE_DISCONNECTED,
        }
    }

    /// Subtype of `DAT_INVALID_STATE` in this state.
    pub(crate) fn subtype(self) -> DAT_RETURN_SUBTYPE {
        match self {
            Unconnected => DAT_INVALID_STATE_EP_UNCONNECTED,
            Reserved => DAT_INVALID_STATE_EP_RESERVED,
            Passive => DAT_INVALID_STATE_EP_PASSCONNPENDING,
            Tentative => DAT_INVALID_STATE_EP_TENTCONNPENDING,
            Active => DAT_INVALID_STATE_EP_ACTCONNPENDING,
            Completing => DAT_INVALID_STATE_EP_COMPLPENDING,
            Connected => DAT_INVALID_STATE_EP_CONNECTED,
            Disconnecting => DAT_INVALID_STATE_EP_DISCPENDING,
            Disconnected => DAT_INVALID_STATE_EP_DISCONNECTED,
        }
    }
}

/// Creates a case with an EP in this state, passed to `body`. COMPLETION_PENDING ends when the requester's library
/// receives the accept, so there the requester is a separate, stopped process. All other states need one process.
pub(crate) fn in_state(at: EpState, body: impl Fn(&Ctx, Scene) + Send + Sync + 'static) -> Case {
    match at {
        Completing => pair(stopped_requester, move |ctx| {
            let (scene, stopped) = completing(ctx);
            body(ctx, scene);
            drop(stopped);
            ctx.meet();
        })
        .only_two(),
        Tentative => local(move |ctx| body(ctx, Scene::new(ctx, at))).needs(Need::ProviderEp),
        _ => local(move |ctx| body(ctx, Scene::new(ctx, at))),
    }
}

/// A pending connection request. The drop rejects the request if it was neither accepted nor rejected.
pub(crate) struct ConnectionRequest(Option<Handle>);

impl ConnectionRequest {
    /// Waits for the next connection request.
    #[track_caller]
    pub(crate) fn arrives(evd: &Evd) -> Self {
        ConnectionRequest::own(expect_cr(evd.h()).cr_handle)
    }

    pub(crate) fn own(cr: DAT_CR_HANDLE) -> Self {
        ConnectionRequest(Some(Handle::of(cr)))
    }

    pub(crate) fn h(&self) -> DAT_CR_HANDLE {
        self.0.expect("the handle is set until the request is answered").h()
    }

    /// Returns the handle; the caller must accept or reject the request.
    pub(crate) fn leak(mut self) -> DAT_CR_HANDLE {
        self.0.take().expect("the handle is set until the request is answered").h()
    }

    /// Accepts the request into this EP, without private data.
    #[track_caller]
    pub(crate) fn accept(self, ep: &Ep) {
        ok(dat_cr_accept(self.leak(), ep.h(), 0, null_mut()));
    }

    #[track_caller]
    pub(crate) fn reject(self) {
        ok(dat_cr_reject(self.leak()));
    }

    #[track_caller]
    pub(crate) fn param(&self) -> DAT_CR_PARAM {
        filled(|out| dat_cr_query(self.h(), DAT_CR_FIELD_ALL, out))
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        if let Some(cr) = self.0.take() {
            let _ = dat_cr_reject(cr.h());
        }
    }
}

/// An EP in a chosen state, with all objects that it needs. Fields are declared in the order in which they are
/// dropped.
pub(crate) struct Scene {
    /// The pending request. In PASSIVE_ and TENTATIVE_CONNECTION_PENDING the request owns the EP. In
    /// ACTIVE_CONNECTION_PENDING the EP sent it.
    pub(crate) request: Option<ConnectionRequest>,
    pub(crate) rsp: Option<Rsp>,
    pub(crate) psp: Option<Psp>,
    /// EVD for requests of the service point.
    pub(crate) requests: Evd,
    /// The EP under test: `own.ep`, except in TENTATIVE_CONNECTION_PENDING, where it is the EP that the service
    /// point created.
    pub(crate) subject: Handle,
    pub(crate) own: Conn,
    /// The peer endpoint, if it is in this process.
    pub(crate) other: Option<Conn>,
    /// Handle of the request that was accepted for the connection.
    pub(crate) answered: Option<Handle>,
}

impl Scene {
    /// Creates the scene in this process, on one IA. Uses the run's qualifier 0.
    #[track_caller]
    pub(crate) fn new(ctx: &Ctx, at: EpState) -> Self {
        let ia = ctx.ia();
        let scene = Scene::unconnected(&ia);
        let qual = ctx.qual(0);
        let scene = match at {
            Unconnected => scene,
            Reserved => scene.reserved(qual),
            Passive => scene.reserved(qual).requested(qual),
            Tentative => scene.tentative(qual),
            Active => scene.active(qual),
            Connected => scene.connected(qual),
            Disconnecting => scene.connected(qual).disconnecting(),
            Disconnected => scene.connected(qual).disconnected(),
            Completing => {
                panic!("COMPLETION_PENDING lasts only while the requester is a stopped process: use `completing`")
            }
        };
        scene.expect(at);
        scene
    }

    #[track_caller]
    fn unconnected(ia: &Ia) -> Self {
        let (own, requests) = (Conn::on(ia), ia.evd(8, DAT_EVD_CR_FLAG));
        let subject = Handle::of(own.ep.h());
        Scene { request: None, rsp: None, psp: None, subject, own, other: None, requests, answered: None }
    }

    fn reserved(mut self, qual: DAT_CONN_QUAL) -> Self {
        self.rsp = Some(self.own.ia.rsp(qual, &self.own.ep, &self.requests));
        self
    }

    fn requested(mut self, qual: DAT_CONN_QUAL) -> Self {
        let other = Conn::on(&self.own.ia);
        other.connect(&self.own.ia.address(), qual);
        self.other = Some(other);
        self.request = Some(ConnectionRequest::arrives(&self.requests));
        self
    }

    fn tentative(mut self, qual: DAT_CONN_QUAL) -> Self {
        let (ia, evd) = (self.own.ia.h(), self.requests.h());
        self.psp = Some(Psp::own(filled(|out| dat_psp_create(ia, qual, evd, DAT_PSP_PROVIDER_FLAG, out))));
        let scene = self.requested(qual);
        let made = scene.request.as_ref().expect("`requested` or `active` stored the request").param().local_ep_handle;
        Scene { subject: Handle::of(made), ..scene }
    }

    fn active(mut self, qual: DAT_CONN_QUAL) -> Self {
        self.psp = Some(self.own.ia.psp(qual, &self.requests));
        self.own.connect(&self.own.ia.address(), qual);
        self.request = Some(ConnectionRequest::arrives(&self.requests));
        self
    }

    fn connected(self, qual: DAT_CONN_QUAL) -> Self {
        let mut scene = self.active(qual);
        let other = Conn::on(&scene.own.ia);
        let request = scene.request.take().expect("`requested` or `active` stored the request");
        scene.answered = Some(Handle::of(request.h()));
        request.accept(&other.ep);
        scene.own.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        other.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        scene.psp = None;
        scene.other = Some(other);
        scene
    }

    /// Posts a send without a receive at the peer, which keeps the graceful disconnect pending.
    fn disconnecting(self) -> Self {
        post_empty_send(&self.own, WAITING_SEND);
        ok(dat_ep_disconnect(self.own.ep.h(), DAT_CLOSE_GRACEFUL_FLAG));
        self
    }

    fn disconnected(self) -> Self {
        self.own.disconnect();
        self.other().expect(DAT_CONNECTION_EVENT_DISCONNECTED);
        self
    }

    #[track_caller]
    pub(crate) fn other(&self) -> &Conn {
        self.other.as_ref().expect("the peer endpoint is in this process")
    }

    /// The EP under test.
    pub(crate) fn ep(&self) -> DAT_EP_HANDLE {
        self.subject.h()
    }

    /// State of the EP under test.
    #[track_caller]
    pub(crate) fn state(&self) -> DAT_EP_STATE {
        filled(|out| dat_ep_get_status(self.ep(), out, null_mut(), null_mut()))
    }

    /// Checks that `dat_ep_query` and `dat_ep_get_status` both return this state.
    #[track_caller]
    pub(crate) fn expect(&self, at: EpState) {
        let state = self.state();
        assert!(state == at.number(), "the EP is in {}, wanted {}", state_name(state), state_name(at.number()));
        let asked = filled(|out| dat_ep_query(self.ep(), DAT_EP_FIELD_EP_STATE, out)).ep_state;
        assert!(
            asked == at.number(),
            "dat_ep_query returned {}, wanted {}",
            state_name(asked),
            state_name(at.number())
        );
    }

    /// Checks that the state is unchanged and no connection event has arrived.
    #[track_caller]
    pub(crate) fn is_still(&self, at: EpState) {
        self.expect(at);
        expect_nothing(self.own.events.h());
    }
}

/// Cookie of the send that keeps the EP in DISCONNECT_PENDING.
pub(crate) const WAITING_SEND: u64 = 0xd5;

/// A process stopped by SIGSTOP; the drop continues it.
pub(crate) struct Stopped(u64);

impl Stopped {
    /// Stops the process, and waits until none of its threads runs.
    pub(crate) fn process(id: u64) -> Self {
        signal("-STOP", id);
        let stopped = Stopped(id);
        while !stopped.is_still() {
            std::thread::yield_now();
        }
        stopped
    }

    fn is_still(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.0)).expect("the process exists").flatten();
        let stat = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // In /proc/PID/stat the state follows the name, which is in parentheses.
        threads.map(stat).all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("-CONT", self.0);
    }
}

fn signal(name: &str, id: u64) {
    let status = Command::new("kill").args([name, &id.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill {name} {id} failed");
}

/// Connects to `completing` and is then stopped.
fn stopped_requester(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    ctx.send_number(std::process::id().into());
    ctx.meet();
}

/// Creates an EP in COMPLETION_PENDING: the requester's process is stopped.
pub(crate) fn completing(ctx: &Ctx) -> (Scene, Stopped) {
    let scene = Scene::unconnected(&ctx.ia());
    let psp = scene.own.ia.psp(ctx.qual(0), &scene.requests);
    ctx.send_address(&scene.own.ia);
    let request = ConnectionRequest::arrives(&scene.requests);
    let stopped = Stopped::process(ctx.receive_number());
    let answered = Some(Handle::of(request.h()));
    request.accept(&scene.own.ep);
    drop(psp);
    let scene = Scene { answered, ..scene };
    scene.expect(Completing);
    (scene, stopped)
}

/// Listens, and neither accepts nor rejects requests. The EVD comes first in the result, so that it is freed after the
/// PSP.
#[track_caller]
pub(crate) fn silent_listener(ctx: &Ctx, ia: &Ia, n: u64) -> (Evd, Psp) {
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(n), &requests);
    (requests, psp)
}

/// Fills an EVD until the IA reports an overflow, or with 100,000 events, because a queue may grow far beyond its
/// length. Dequeues the overflow event. Returns the EVD and the EP that filled it.
#[track_caller]
pub(crate) fn full_evd(ia: &Ia, pz: &Pz, flags: DAT_EVD_FLAGS) -> (Evd, Ep) {
    let evd = ia.evd(1, flags | DAT_EVD_CONNECTION_FLAG);
    let (none, attr) = (DAT_HANDLE_NULL, null_mut());
    let filler = Ep::own(filled(|out| dat_ep_create(ia.h(), pz.h(), none, none, evd.h(), attr, out)));
    for round in 0..100_000 {
        // Each disconnect of an unconnected EP with a posted receive queues one event, without a peer (spec/endpoints
        // 5.6).
        ok(dat_ep_post_recv(filler.h(), 0, null_mut(), cookie(0), DAT_COMPLETION_DEFAULT_FLAG));
        ok(dat_ep_disconnect(filler.h(), DAT_CLOSE_ABRUPT_FLAG));
        if round % 512 == 0 && !drain(ia.errors()).is_empty() {
            break;
        }
    }
    (evd, filler)
}
