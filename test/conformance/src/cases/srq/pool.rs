//! Helpers for the SRQ cases: a server role that receives from a shared queue, and a client role that executes its
//! commands.
//!
//! The body of such a case is the server role. It owns the queue and requests every step through its [`Peer`], so it
//! knows the whole sequence of events. A reply means that the client role has executed the step; a send may still be
//! incomplete.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

/// Bytes of each receive of a [`Pool`].
pub(super) const SLOT: usize = 256;

/// A case whose server role has a queue of 16, and whose client role executes commands.
pub(super) fn served(body: fn(&Ctx, &Peer, &Pool)) -> Case {
    served_with(16, body)
}

/// Same as `served`, with another length of the queue.
pub(super) fn served_with(recvs: DAT_COUNT, body: fn(&Ctx, &Peer, &Pool)) -> Case {
    let server = move |ctx: &Ctx| {
        let pool = Pool::new(&ctx.ia(), recvs);
        let peer = Peer::listen(ctx, &pool);
        body(ctx, &peer, &pool);
        peer.dismiss();
    };
    pair(obey, server).needs(Need::Srq)
}

/// A shared queue, and all objects that EPs on it need.
pub(super) struct Pool {
    pub(super) srq: Srq,
    /// One slot per receive.
    pub(super) memory: Memory,
    pub(super) recv: Evd,
    pub(super) request: Evd,
    pub(super) events: Evd,
    pub(super) requests: Evd,
    pub(super) pz: Pz,
    pub(super) ia: Ia,
}

impl Pool {
    #[track_caller]
    pub(super) fn new(ia: &Ia, recvs: DAT_COUNT) -> Self {
        let pz = ia.pz();
        let requests = ia.evd(16, DAT_EVD_CR_FLAG);
        let events = ia.evd(16, DAT_EVD_CONNECTION_FLAG);
        let request = ia.evd(64, DAT_EVD_DTO_FLAG);
        let recv = ia.evd(64, DAT_EVD_DTO_FLAG);
        let memory = ia.memory(&pz, recvs as usize * SLOT);
        let srq = ia.srq(&pz, recvs, 4);
        Pool { srq, memory, recv, request, events, requests, pz, ia: ia.clone() }
    }

    /// Returns the segment of a slot.
    pub(super) fn slot(&self, at: u64) -> DAT_LMR_TRIPLET {
        self.memory.segment(at as usize * SLOT, SLOT)
    }

    /// Posts a slot; its number is the cookie.
    #[track_caller]
    pub(super) fn post(&self, at: u64) {
        ok(self.post_as(at, &mut [self.slot(at)]));
    }

    /// Posts several slots.
    #[track_caller]
    pub(super) fn post_all(&self, slots: impl IntoIterator<Item = u64>) {
        for at in slots {
            self.post(at);
        }
    }

    /// Posts any segments.
    pub(super) fn post_as(&self, id: u64, segments: &mut [DAT_LMR_TRIPLET]) -> DAT_RETURN {
        dat_srq_post_recv(self.srq.h(), segments.len() as DAT_COUNT, segments.as_mut_ptr(), cookie(id))
    }

    /// An EP on the queue, without watermarks.
    #[track_caller]
    pub(super) fn ep(&self) -> Ep {
        self.ep_with(&unmarked())
    }

    #[track_caller]
    pub(super) fn ep_with(&self, attr: &DAT_EP_ATTR) -> Ep {
        self.ep_in(&self.pz, &self.recv, attr)
    }

    /// Same as `ep_with`, with another zone and another receive EVD.
    #[track_caller]
    pub(super) fn ep_in(&self, pz: &Pz, recv: &Evd, attr: &DAT_EP_ATTR) -> Ep {
        let (ia, pz, srq) = (self.ia.h(), pz.h(), self.srq.h());
        let (recv, request, events) = (recv.h(), self.request.h(), self.events.h());
        Ep::own(filled(|out| dat_ep_create_with_srq(ia, pz, recv, request, events, srq, attr, out)))
    }

    /// Accepts the next request into this EP.
    #[track_caller]
    pub(super) fn accept(&self, ep: &Ep) {
        ok(dat_cr_accept(expect_cr(self.requests.h()).cr_handle, ep.h(), 0, null_mut()));
        expect_conn(self.events.h(), ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    }

    #[track_caller]
    pub(super) fn param(&self) -> DAT_SRQ_PARAM {
        filled(|out| dat_srq_query(self.srq.h(), DAT_SRQ_FIELD_ALL, out))
    }

    /// Checks the counts of the queue: `available` receives are still queued. `outstanding` also includes receives
    /// whose completion was not dequeued.
    #[track_caller]
    pub(super) fn expect_counts(&self, available: DAT_COUNT, outstanding: DAT_COUNT) {
        let param = self.param();
        let counts = (param.available_dto_count, param.outstanding_dto_count);
        assert_eq!(counts, (available, outstanding), "the counts of available and outstanding receives are wrong");
    }

    /// Checks the next completion: of this EP and slot, with this pattern.
    #[track_caller]
    pub(super) fn expect(&self, ep: &Ep, at: u64, length: usize, seed: u8) {
        let data = expect_dto(self.recv.h(), at, DAT_DTO_SUCCESS, length as u64);
        assert!(data.ep_handle == ep.h(), "the completion names another EP");
        self.memory.expect_pattern(at as usize * SLOT, length, seed);
    }

    /// Dequeues the next completion of any EP: the EP, the slot, and the first byte of the message.
    #[track_caller]
    pub(super) fn next(&self) -> (Handle, u64, u8) {
        let data = expect_event(self.recv.h(), SOON).dto();
        assert!(data.status == DAT_DTO_SUCCESS, "completed: {}", status_name(data.status));
        let at = context_bits(data.user_cookie);
        (Handle::of(data.ep_handle), at, self.memory.byte(at as usize * SLOT))
    }

    /// Checks that the next connection event of this EP has this number, and that the EP is DISCONNECTED.
    #[track_caller]
    pub(super) fn expect_end(&self, ep: &Ep, number: DAT_EVENT_NUMBER) {
        expect_conn(self.events.h(), ep.h(), number);
        ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    }

    /// In 2.0, dequeues the event that the free of a connected EP queues (spec/endpoints 5.8).
    #[track_caller]
    pub(super) fn expect_end_of_freed(&self, ep: DAT_EP_HANDLE) {
        if is_2_0() {
            expect_conn(self.events.h(), ep, DAT_CONNECTION_EVENT_DISCONNECTED);
        }
    }

    /// Checks that the next asynchronous event is EP_BROKEN for this EP. The event reports that none of the EP's
    /// receives is outstanding any more.
    #[track_caller]
    pub(super) fn expect_ep_broken(&self, ep: &Ep) {
        expect_async(self.ia.errors(), DAT_ASYNC_ERROR_EP_BROKEN, ep.h(), DAT_EP_TRANSFER_TO_ERROR);
    }
}

/// Attributes of an EP on a queue, without watermarks.
pub(super) fn unmarked() -> DAT_EP_ATTR {
    marked(DAT_WATERMARK_INFINITE, DAT_WATERMARK_INFINITE)
}

/// Same as `unmarked`, with a soft and a hard watermark.
pub(super) fn marked(soft: DAT_COUNT, hard: DAT_COUNT) -> DAT_EP_ATTR {
    DAT_EP_ATTR { max_recv_dtos: hard, max_recv_iov: 0, srq_soft_hw: soft, max_request_dtos: 64, ..ep_attr() }
}

/// The client role, as the server role sees it. Each method sends one command and waits until the client role has
/// executed it, except `dies` and `dismiss`, which do not wait.
pub(super) struct Peer<'a> {
    ctx: &'a Ctx,
    _psp: Psp,
}

impl<'a> Peer<'a> {
    #[track_caller]
    pub(super) fn listen(ctx: &'a Ctx, pool: &Pool) -> Self {
        let psp = pool.ia.psp(ctx.qual(0), &pool.requests);
        ctx.send_address(&pool.ia);
        Peer { ctx, _psp: psp }
    }

    /// Connects the client role to a new EP on the queue. The connections are numbered from 0.
    #[track_caller]
    pub(super) fn connected(&self, pool: &Pool) -> Ep {
        self.connected_to(pool, pool.ep())
    }

    /// Connects the client role to this EP.
    #[track_caller]
    pub(super) fn connected_to(&self, pool: &Pool, ep: Ep) -> Ep {
        self.ask(DIAL, [0; 4]);
        pool.accept(&ep);
        ep
    }

    /// The client role resets its EP and connects again.
    #[track_caller]
    pub(super) fn redial(&self, conn: u64) {
        self.ask(REDIAL, [conn, 0, 0, 0]);
    }

    /// The client role posts a message of this length and pattern.
    #[track_caller]
    pub(super) fn send(&self, conn: u64, length: usize, seed: u8) {
        self.ask(SEND, [conn, length as u64, seed.into(), 1]);
    }

    /// The client role posts `count` messages of eight bytes, with patterns `first`, `first + 1` and so on.
    #[track_caller]
    pub(super) fn send_many(&self, conn: u64, count: u64, first: u8) {
        self.ask(SEND, [conn, 8, first.into(), count]);
    }

    /// Checks that the next `count` requests of the client role complete with this status.
    #[track_caller]
    pub(super) fn sees(&self, conn: u64, count: u64, status: DAT_DTO_COMPLETION_STATUS) {
        self.ask(SEES, [conn, count, status.into(), 0]);
    }

    /// Checks that no request of the client role has completed.
    #[track_caller]
    pub(super) fn sees_nothing(&self, conn: u64) {
        self.ask(NOTHING, [conn, 0, 0, 0]);
    }

    /// The client role writes eight bytes of a pattern into memory of the server role.
    #[track_caller]
    pub(super) fn write(&self, conn: u64, target: DAT_RMR_TRIPLET, seed: u8) {
        self.ask(WRITE, [conn, target.rmr_context.into(), target.target_address, seed.into()]);
    }

    /// The client role disconnects, and dequeues its event.
    #[track_caller]
    pub(super) fn disconnect(&self, conn: u64) {
        self.ask(DISCONNECT, [conn, 0, 0, 0]);
    }

    /// The client role dequeues one event that ends a connection: DISCONNECTED or BROKEN.
    #[track_caller]
    pub(super) fn gets_the_end(&self, conn: u64) {
        self.ask(ENDED, [conn, 0, 0, 0]);
    }

    /// The client role posts an empty receive.
    #[track_caller]
    pub(super) fn post_recv(&self, conn: u64) {
        self.ask(POST_RECV, [conn, 0, 0, 0]);
    }

    /// The process of the client role kills itself.
    pub(super) fn dies(self) {
        self.ctx.send(words(DIE, [0; 4]));
    }

    /// Ends the client role's command loop. Called when the body of a case has returned.
    fn dismiss(&self) {
        self.ctx.send(words(QUIT, [0; 4]));
    }

    #[track_caller]
    fn ask(&self, what: u64, with: [u64; 4]) {
        self.ctx.send(words(what, with));
        self.ctx.meet();
    }
}

const QUIT: u64 = 0;
const DIAL: u64 = 1;
const SEND: u64 = 2;
const SEES: u64 = 3;
const NOTHING: u64 = 4;
const DISCONNECT: u64 = 5;
const ENDED: u64 = 6;
const REDIAL: u64 = 7;
const WRITE: u64 = 8;
const POST_RECV: u64 = 9;
const DIE: u64 = 10;

fn words(what: u64, [a, b, c, d]: [u64; 4]) -> Vec<u8> {
    [what, a, b, c, d].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// One connection of the client role.
struct ClientConn {
    memory: Memory,
    conn: Conn,
    /// Offset of the next message in the memory.
    at: usize,
}

/// Bytes for messages of one connection: more than any case has in flight.
const SPACE: usize = 1 << 19;

impl ClientConn {
    fn new(ia: &Ia) -> Self {
        let attr = DAT_EP_ATTR { max_request_dtos: 512, ..ep_attr() };
        let conn = Conn::unconnected(ia, &Setup { attr, qlen: 512, qual: 0 });
        ClientConn { memory: conn.memory(SPACE), conn, at: 0 }
    }

    /// Writes the bytes of a message.
    fn message(&mut self, length: usize, seed: u8) -> DAT_LMR_TRIPLET {
        if self.at + length > SPACE {
            self.at = 0;
        }
        let at = self.at;
        self.at += length;
        self.memory.write_pattern(at, length, seed);
        self.memory.segment(at, length)
    }

    fn expect(&self, count: u64, status: u64) {
        for _ in 0..count {
            let data = expect_event(self.conn.request.h(), SOON).dto();
            let came = status_name(data.status);
            assert!(u64::from(data.status) == status, "completed: {came}, wanted {}", status_name(status as u32));
        }
    }
}

/// The client role: executes commands until the server role sends QUIT.
pub(super) fn obey(ctx: &Ctx) {
    let ia = ctx.ia();
    let address = ctx.receive_address();
    let mut lines: Vec<ClientConn> = Vec::new();
    loop {
        let bytes = ctx.receive();
        let words: Vec<u64> =
            bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("chunks are 8 bytes long"))).collect();
        let &[what, a, b, c, d] = &words[..] else { panic!("a command has five words") };
        match what {
            QUIT => break,
            DIE => ctx.die(),
            DIAL => {
                let line = ClientConn::new(&ia);
                line.conn.connect(&address, ctx.qual(0));
                lines.push(line);
            }
            _ => {
                let line = &mut lines[a as usize];
                one_command(ctx, line, &address, [what, b, c, d]);
            }
        }
        ctx.meet();
    }
}

fn one_command(ctx: &Ctx, line: &mut ClientConn, address: &Address, [what, b, c, d]: [u64; 4]) {
    match what {
        SEND => {
            // The message is sent after ESTABLISHED, which may not have arrived yet.
            if line.conn.ep.state() != DAT_EP_STATE_DISCONNECTED {
                until(|| line.conn.ep.state() == DAT_EP_STATE_CONNECTED);
            }
            for number in 0..d {
                let segment = line.message(b as usize, (c as u8).wrapping_add(number as u8));
                line.conn.post_send(number, segment);
            }
        }
        SEES => line.expect(b, c),
        NOTHING => expect_nothing(line.conn.request.h()),
        DISCONNECT => {
            ok(dat_ep_disconnect(line.conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
            line.await_the_end();
        }
        ENDED => line.await_the_end(),
        REDIAL => {
            ok(dat_ep_reset(line.conn.ep.h()));
            line.conn.connect(address, ctx.qual(0));
        }
        WRITE => {
            until(|| line.conn.ep.state() == DAT_EP_STATE_CONNECTED);
            let segment = line.message(8, d as u8);
            let (rmr_context, target_address) = (b as DAT_RMR_CONTEXT, c);
            line.conn.post_write(
                0,
                segment,
                DAT_RMR_TRIPLET { rmr_context, pad: 0, target_address, segment_length: 8 },
            );
        }
        POST_RECV => ok(dat_ep_post_recv(line.conn.ep.h(), 0, null_mut(), cookie(0), DAT_COMPLETION_DEFAULT_FLAG)),
        _ => panic!("an unknown command"),
    }
}

impl ClientConn {
    /// Dequeues events until one of them ends the connection.
    fn await_the_end(&self) {
        loop {
            let event = expect_event(self.conn.events.h(), SOON);
            if event.number() != DAT_CONNECTION_EVENT_ESTABLISHED {
                let is_end = [DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_BROKEN].contains(&event.number());
                assert!(is_end, "{} does not end a connection", number_name(event.number()));
                return;
            }
        }
    }
}
