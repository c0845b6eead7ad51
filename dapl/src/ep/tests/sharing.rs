//! Tests of SRQs, and of EPs that use an SRQ.

use super::*;
use crate::ep::Ep;
use crate::runtime::handle::from_handle;
use crate::srq::dapl_srq::*;

const SRQ_ATTR: DAT_SRQ_ATTR = DAT_SRQ_ATTR { max_recv_dtos: 8, max_recv_iov: 2, low_watermark: DAT_SRQ_LW_DEFAULT };

/// Arguments of `dat_ep_create_with_srq`. `new` returns valid ones.
#[derive(Clone, Copy)]
pub(super) struct Create {
    pz: H,
    recv: H,
    request: H,
    conn: H,
    srq: H,
    attr: DAT_EP_ATTR,
}

impl Create {
    pub(super) fn new(world: &World, srq: H) -> Self {
        let plain = world.ep();
        let mut attr = query(plain).ep_attr;
        assert_eq!(call!(dapl_ep_free(plain)), DAT_SUCCESS);
        (attr.max_recv_dtos, attr.max_recv_iov, attr.srq_soft_hw) = (DAT_HW_DEFAULT, 0, DAT_HW_DEFAULT);
        Create { pz: world.pz, recv: world.dto, request: world.dto, conn: world.conn, srq, attr }
    }

    pub(super) fn marks(mut self, soft: i32, hard: i32) -> Self {
        (self.attr.srq_soft_hw, self.attr.max_recv_dtos) = (soft, hard);
        self
    }

    pub(super) fn call(&self, world: &World, attr: *const DAT_EP_ATTR, ep: *mut H) -> DAT_RETURN {
        let Create { pz, recv, request, conn, srq, .. } = *self;
        call!(dapl_ep_create_with_srq(world.ia(), pz, recv, request, conn, srq, attr, ep))
    }

    pub(super) fn refusal(&self, world: &World) -> DAT_RETURN {
        let mut ep = 7 as H;
        let code = self.call(world, &self.attr, &mut ep);
        assert!((code == DAT_SUCCESS) != (ep == 7 as H), "written only on success");
        code
    }

    pub(super) fn ep(&self, world: &World) -> H {
        let mut ep = null_mut();
        assert_eq!(self.call(world, &self.attr, &mut ep), DAT_SUCCESS);
        ep
    }
}

fn create(world: &World, attr: DAT_SRQ_ATTR) -> Result<H, DAT_RETURN> {
    let (mut attr, mut srq) = (attr, 7 as H);
    match call!(dapl_srq_create(world.ia(), world.pz, &mut attr, &mut srq)) {
        DAT_SUCCESS => Ok(srq),
        code => {
            assert_eq!(srq, 7 as H, "untouched");
            Err(code)
        }
    }
}

pub(super) fn srq(world: &World) -> H {
    create(world, SRQ_ATTR).unwrap()
}

pub(super) fn post(srq: H, cookie: u64) -> DAT_RETURN {
    call!(dapl_srq_post_recv(srq, 0, null_mut(), DAT_CONTEXT { as_64: cookie }))
}

fn query_srq(srq: H) -> DAT_SRQ_PARAM {
    let mut param = MaybeUninit::uninit();
    assert_eq!(call!(dapl_srq_query(srq, DAT_SRQ_FIELD_ALL, param.as_mut_ptr())), DAT_SUCCESS);
    // SAFETY: the call has succeeded, so it has written the record.
    unsafe { param.assume_init() }
}

/// Numbers of available and of outstanding receives.
pub(super) fn counts(srq: H) -> (i32, i32) {
    let param = query_srq(srq);
    (param.available_dto_count, param.outstanding_dto_count)
}

/// Dequeues all events of the async EVD. Returns their numbers, handles and reasons.
pub(super) fn errors(world: &World) -> Vec<(DAT_EVENT_NUMBER, H, i32)> {
    world.deliver();
    std::iter::from_fn(|| next(world.opened.async_evd))
        .map(|event| {
            // SAFETY: this EVD receives asynchronous errors only, so this union member is set.
            let error = unsafe { event.event_data.asynch_error_event_data };
            (event.event_number, error.dat_handle, error.reason)
        })
        .collect()
}

/// Dequeues all completions. Returns their EPs, cookies and statuses.
pub(super) fn completed(evd: H) -> Vec<(H, u64, DAT_DTO_COMPLETION_STATUS)> {
    std::iter::from_fn(|| next(evd))
        .map(|event| {
            // SAFETY: this EVD receives DTO completions only, so this union member is set.
            let done = unsafe { event.event_data.dto_completion_event_data };
            // SAFETY: every union member of a cookie has eight bytes, and any bits are a valid integer.
            (done.ep_handle, unsafe { done.user_cookie.as_64 }, done.status)
        })
        .collect()
}

/// Connects a new EP without an SRQ to `server`, and returns the new EP.
pub(super) fn connect(world: &World, server: H, qual: u64) -> H {
    let (client, psp) = (world.ep(), world.psp(qual));
    world.connect(client, qual, &[]);
    assert_eq!(world.accept(world.request(), server, &[]), DAT_SUCCESS);
    assert_eq!(call!(dapl_psp_free(psp)), DAT_SUCCESS);
    client
}

/// Posts a send with SUPPRESS, so that the sender gets no event.
pub(super) fn send_silently(ep: H, cookie: u64) {
    let code = call!(dapl_ep_post_send(ep, 0, null_mut(), DAT_CONTEXT { as_64: cookie }, DAT_COMPLETION_SUPPRESS_FLAG));
    assert_eq!(code, DAT_SUCCESS);
}

/// Completes the messages in transit to this EP, if the fake provider is in slow mode.
pub(super) fn arrive(ep: H) {
    from_handle::<Ep<FakeProvider>>(ep, Handle::Ep).unwrap().post_state().qp().unwrap().arrive();
}

pub(super) fn end(world: World, eps: &[H], srqs: &[H]) {
    for ep in eps {
        assert_eq!(call!(dapl_ep_free(*ep)), DAT_SUCCESS);
    }
    for srq in srqs {
        assert_eq!(call!(dapl_srq_free(*srq)), DAT_SUCCESS);
    }
    finish(world, &[], &[]);
}

const OK: DAT_DTO_COMPLETION_STATUS = DAT_DTO_SUCCESS;
pub(super) const FLUSHED: DAT_DTO_COMPLETION_STATUS = DAT_DTO_ERR_FLUSHED;
pub(super) const SUCCESS: DAT_RETURN = DAT_SUCCESS;
pub(super) const INTERNAL: DAT_EVENT_NUMBER = DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR;
// Both reasons are 2: SRQs and EPs have separate reason codes.
const LOW: i32 = DAT_SRQ_LOW_WATERMARK_EVENT as i32;
pub(super) const SOFT_HIGH: i32 = DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT as i32;

pub(super) fn broken(ep: H) -> (DAT_EVENT_NUMBER, H, i32) {
    (DAT_ASYNC_ERROR_EP_BROKEN, ep, 0)
}

#[test]
fn srq_create_checks_its_parameters() {
    let world = World::new(c"srq create");
    let (ia, pz, mut attr, mut out) = (world.ia(), world.pz, SRQ_ATTR, null_mut());
    assert_eq!(call!(dapl_srq_create(pz, pz, null_mut(), null_mut())), bad(Handle::Ia));
    assert_eq!(call!(dapl_srq_create(ia, null_mut(), null_mut(), null_mut())), bad(Handle::Pz));
    assert_eq!(call!(dapl_srq_create(ia, ia, null_mut(), null_mut())), bad(Handle::Pz));
    assert_eq!(call!(dapl_srq_create(ia, pz, null_mut(), null_mut())), wrong(3));
    attr.max_recv_dtos = 0;
    assert_eq!(call!(dapl_srq_create(ia, pz, &mut attr, null_mut())), wrong(4), "pointers before contents");
    let odd = std::ptr::from_mut(&mut attr).wrapping_byte_add(1);
    assert_eq!(call!(dapl_srq_create(ia, pz, odd, &mut out)), wrong(3));
    for (recvs, iov, low) in
        [(0, 1, 0), (-1, 1, 0), (65, 1, 0), (1, 0, 0), (1, -1, 0), (1, 5, 0), (1, 1, 1), (1, 1, -1)]
    {
        let attr = DAT_SRQ_ATTR { max_recv_dtos: recvs, max_recv_iov: iov, low_watermark: low };
        assert_eq!(create(&world, attr), Err(wrong(3)), "{recvs} {iov} {low}");
    }
    let most = DAT_SRQ_ATTR { max_recv_dtos: 64, max_recv_iov: 4, low_watermark: 0 };
    let srqs = [create(&world, most).unwrap(), srq(&world)];
    assert_eq!(create(&world, SRQ_ATTR), Err(Error::Exhausted(crate::error::Resource::Srq).code()), "the limit is 2");
    let param = query_srq(srqs[0]);
    assert_eq!((param.max_recv_dtos, param.max_recv_iov, param.low_watermark), (64, 4, 0));
    assert_eq!((param.srq_state, param.pz_handle, counts(srqs[0])), (DAT_SRQ_STATE_OPERATIONAL, pz, (0, 0)));
    assert_eq!(call!(dapl_pz_free(pz)), in_state(State::PzInUse));
    assert_eq!(call!(dapl_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG)), in_state(State::IaInUse));
    end(world, &[], &srqs);
}

#[test]
fn transport_without_srqs_refuses_srq_create() {
    let world = World::new(c"a transport without srqs");
    assert_eq!(create(&world, SRQ_ATTR), Err(Error::ModelNotSupported.code()));
    end(world, &[], &[]);
}

#[test]
fn srq_calls_check_handle_and_parameters() {
    let world = World::new(c"srq handles");
    let srq = srq(&world);
    let freed = {
        let other = create(&world, SRQ_ATTR).unwrap();
        assert_eq!(call!(dapl_srq_free(other)), SUCCESS);
        other
    };
    let mut param = MaybeUninit::uninit();
    for h in [null_mut(), world.pz, freed, 8 as H] {
        assert_eq!(call!(dapl_srq_query(h, 0, null_mut())), bad(Handle::Srq));
        assert_eq!(call!(dapl_srq_resize(h, 0)), bad(Handle::Srq));
        assert_eq!(call!(dapl_srq_set_lw(h, -1)), bad(Handle::Srq));
        assert_eq!(call!(dapl_srq_free(h)), bad(Handle::Srq));
        assert_eq!(post(h, 1), bad(Handle::Srq));
    }
    assert_eq!(call!(dapl_srq_query(srq, DAT_SRQ_FIELD_ALL, null_mut())), wrong(3));
    assert_eq!(call!(dapl_srq_query(srq, 0x100, param.as_mut_ptr())), wrong(2));
    let cookie = DAT_CONTEXT { as_64: 0 };
    assert_eq!(call!(dapl_srq_post_recv(srq, -1, null_mut(), cookie)), wrong(2));
    assert_eq!(call!(dapl_srq_post_recv(srq, 3, null_mut(), cookie)), wrong(2));
    assert_eq!(call!(dapl_srq_post_recv(srq, 2, null_mut(), cookie)), wrong(3));
    assert_eq!(counts(srq), (0, 0));
    end(world, &[], &[srq]);
}

#[test]
fn srq_counts_follow_a_receive_from_its_post_to_its_dequeued_completion() {
    let world = World::new(c"srq counts");
    let srq = srq(&world);
    let server = Create::new(&world, srq).ep(&world);
    let client = connect(&world, server, 5);
    for n in 1..=4 {
        assert_eq!(post(srq, n), SUCCESS);
    }
    assert_eq!(counts(srq), (4, 4));
    send_silently(client, 1);
    assert_eq!(counts(srq), (3, 4));
    assert_eq!(completed(world.dto), [(server, 1, OK)], "handle of the EP that took it, cookie of its post");
    assert_eq!(counts(srq), (3, 3));
    for n in 5..=9 {
        assert_eq!(post(srq, n), SUCCESS);
    }
    let full = Error::Exhausted(crate::error::Resource::Memory).code();
    assert_eq!(post(srq, 10), full);
    send_silently(client, 2);
    assert_eq!((counts(srq), post(srq, 10)), ((7, 8), full), "a completion that was not taken counts as outstanding");
    wait(world.dto);
    assert_eq!((counts(srq), post(srq, 10), counts(srq)), ((7, 7), SUCCESS, (8, 8)), "a wait reaps as well");
    end(world, &[client, server], &[srq]);
}

#[test]
fn completions_dropped_by_a_freed_evd_count_as_dequeued() {
    let world = World::new(c"srq dropped");
    let (srq, recv) = (srq(&world), world.evd(DAT_EVD_DTO_FLAG));
    let server = Create { recv, ..Create::new(&world, srq) }.ep(&world);
    let client = connect(&world, server, 5);
    assert_eq!((post(srq, 1), post(srq, 2), post(srq, 3)), (SUCCESS, SUCCESS, SUCCESS));
    send_silently(client, 1);
    send_silently(client, 2);
    assert!(next(recv).is_some());
    assert_eq!(call!(dapl_ep_free(server)), SUCCESS);
    assert_eq!((counts(srq), call!(dapl_evd_free(recv)), counts(srq)), ((1, 2), SUCCESS, (1, 1)));
    end(world, &[client], &[srq]);
}

#[test]
fn srq_resize_respects_outstanding_receives_and_watermark() {
    let world = World::new(c"srq resize");
    let srq = srq(&world);
    let resize = |length| call!(dapl_srq_resize(srq, length));
    for n in 0..3 {
        assert_eq!(post(srq, n), SUCCESS);
    }
    assert_eq!([resize(0), resize(-1), resize(65)], [wrong(2); 3]);
    assert_eq!((resize(2), query_srq(srq).max_recv_dtos), (in_state(State::Plain), 8));
    assert_eq!((resize(3), query_srq(srq).max_recv_dtos), (SUCCESS, 3));
    assert_eq!(post(srq, 3), Error::Exhausted(crate::error::Resource::Memory).code());
    assert_eq!((resize(64), post(srq, 3), counts(srq)), (SUCCESS, SUCCESS, (4, 4)));
    assert_eq!(call!(dapl_srq_set_lw(srq, 20)), SUCCESS);
    assert_eq!((resize(19), resize(20)), (in_state(State::Plain), SUCCESS));
    end(world, &[], &[srq]);
}

#[test]
fn low_watermark_is_reported_once_also_if_already_reached_when_set() {
    let world = World::new(c"srq low");
    let srq = srq(&world);
    let low = |mark| call!(dapl_srq_set_lw(srq, mark));
    let server = Create::new(&world, srq).ep(&world);
    let client = connect(&world, server, 5);
    for n in 0..3 {
        assert_eq!(post(srq, n), SUCCESS);
    }
    assert_eq!((low(-1), low(9), query_srq(srq).low_watermark), (wrong(2), wrong(2), 0));
    assert_eq!((low(3), errors(&world), query_srq(srq).low_watermark), (SUCCESS, vec![], 3));
    send_silently(client, 1);
    assert_eq!(errors(&world), [(INTERNAL, srq, LOW)]);
    send_silently(client, 2);
    assert_eq!((errors(&world), query_srq(srq).low_watermark), (vec![], 3), "not again");
    assert_eq!((low(2), errors(&world).len()), (SUCCESS, 1), "fewer are available already");
    assert_eq!((low(0), errors(&world).len()), (SUCCESS, 0));
    send_silently(client, 3);
    assert_eq!(errors(&world).len(), 0);
    end(world, &[client, server], &[srq]);
}

#[test]
fn ep_create_with_srq_checks_its_arguments_in_order() {
    let world = World::new(c"srq ep");
    let srq = srq(&world);
    let good = Create::new(&world, srq);
    let (pz, dto, conn) = (world.pz, world.dto, world.conn);
    let mut out = 7 as H;
    let code = call!(dapl_ep_create_with_srq(pz, dto, conn, conn, dto, pz, null(), null_mut()));
    assert_eq!(code, bad(Handle::Ia));
    let mut call = Create { pz: dto, recv: conn, request: conn, conn: dto, srq: pz, ..good };
    let mut refusals = vec![call.call(&world, null(), null_mut())];
    call.pz = pz;
    refusals.push(call.call(&world, null(), null_mut()));
    call.conn = conn;
    refusals.push(call.call(&world, null(), null_mut()));
    call.recv = dto;
    refusals.push(call.call(&world, null(), null_mut()));
    call.request = dto;
    refusals.push(call.call(&world, null(), null_mut()));
    call.recv = null_mut();
    refusals.push(call.call(&world, null(), null_mut()));
    (call.recv, call.srq) = (dto, srq);
    refusals.push(call.call(&world, null(), null_mut()));
    call.attr.max_rdma_read_in = -1;
    refusals.push(call.call(&world, &call.attr, null_mut()));
    refusals.push(call.call(&world, &call.attr, &mut out));
    let handles = [Handle::Pz, Handle::EvdConn, Handle::EvdRecv, Handle::EvdRequest, Handle::Srq, Handle::EvdRecv];
    let wanted: Vec<_> = handles.map(bad).into_iter().chain([wrong(7), wrong(8), wrong(7)]).collect();
    assert_eq!((refusals, out), (wanted, 7 as H));
    let odd = std::ptr::from_ref(&good.attr).wrapping_byte_add(1);
    assert_eq!(good.call(&world, odd, &mut out), wrong(7));
    for bad_mark in [good.marks(-2, -1), good.marks(-1, -2)] {
        assert_eq!(bad_mark.refusal(&world), wrong(7));
    }
    let other = World::new(c"srq of another IA");
    assert_eq!(Create { srq, ..Create::new(&other, srq) }.refusal(&other), bad(Handle::Srq), "memory of another IA");
    end(other, &[], &[]);
    assert_eq!(call!(dapl_ia_close(world.ia(), DAT_CLOSE_ABRUPT_FLAG)), SUCCESS);
    assert_eq!(call!(dapl_srq_free(srq)), bad(Handle::Srq), "closed with its IA");
}

#[test]
fn ep_with_srq_refuses_post_recv_and_changes_of_receive_attributes() {
    let world = World::new(c"srq own");
    let srq = srq(&world);
    let mut pz = null_mut();
    assert_eq!(call!(dapl_pz_create(world.ia(), &mut pz)), SUCCESS);
    let ep = Create { pz, ..Create::new(&world, srq) }.marks(5, 6).ep(&world);
    let param = query(ep);
    assert_eq!((param.srq_handle, param.pz_handle), (srq, pz), "another PZ than the srq's");
    assert_eq!((param.ep_attr.srq_soft_hw, param.ep_attr.max_recv_dtos), (5, 6));
    assert_eq!(recv(ep, 1), in_state(State::SrqInUse));
    assert_eq!(call!(dapl_ep_post_recv(ep, -1, null_mut(), DAT_CONTEXT { as_64: 0 }, 0)), in_state(State::SrqInUse));
    let modify = |mask| call!(dapl_ep_modify(ep, mask, &query(ep)));
    assert_eq!(modify(DAT_EP_FIELD_SRQ_HANDLE), wrong(2));
    assert_eq!(modify(DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW), wrong(2));
    assert_eq!(modify(DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS), wrong(3));
    assert_eq!(modify(DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV), wrong(3));
    let mut without = query(ep);
    without.recv_evd_handle = null_mut();
    assert_eq!(
        call!(dapl_ep_modify(ep, DAT_EP_FIELD_RECV_EVD_HANDLE, &without)),
        wrong(3),
        "no EVD could take the completions"
    );
    assert_eq!(modify(DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE), SUCCESS);
    assert_eq!(call!(dapl_ep_set_watermark(ep, -1, 3)), SUCCESS);
    assert_eq!((query(ep).ep_attr.srq_soft_hw, query(ep).ep_attr.max_recv_dtos), (-1, 3));
    assert_eq!(call!(dapl_srq_free(srq)), in_state(State::SrqInUse));
    assert_eq!(call!(dapl_ep_free(ep)), SUCCESS);
    assert_eq!(call!(dapl_pz_free(pz)), SUCCESS);
    end(world, &[], &[srq]);
}

#[test]
fn messages_wait_for_receives_of_an_empty_srq_in_order() {
    let world = World::new(c"srq empty");
    let srq = srq(&world);
    let servers = [(); 2].map(|()| Create::new(&world, srq).ep(&world));
    let clients = [connect(&world, servers[0], 5), connect(&world, servers[1], 6)];
    for n in 0..2 {
        clients.into_iter().for_each(|client| send_silently(client, n));
    }
    assert_eq!(completed(world.dto), []);
    let mut receivers = Vec::new();
    for n in 0..4 {
        assert_eq!(post(srq, n), SUCCESS);
        receivers.extend(completed(world.dto).into_iter().map(|(ep, cookie, _)| (ep, cookie)));
    }
    let [a, b] = servers;
    assert_eq!(receivers, [(a, 0), (b, 1), (a, 2), (b, 3)]);
    assert_eq!(counts(srq), (0, 0));
    end(world, &[clients, servers].concat(), &[srq]);
}

#[test]
fn disconnect_flushes_consumed_receives_and_keeps_the_others_in_the_srq() {
    for abrupt in [true, false] {
        let world = World::new(c"srq end");
        let srq = srq(&world);
        let server = Create::new(&world, srq).ep(&world);
        let client = connect(&world, server, 5);
        world.connection_events();
        world.opened.ia.provider.slow_down();
        assert_eq!((post(srq, 1), post(srq, 2)), (SUCCESS, SUCCESS));
        send_silently(client, 1);
        let (mut held, mut span, mut idle) = (9, 9, 9);
        assert_eq!(call!(dapl_ep_recv_query(server, &mut held, &mut span)), SUCCESS);
        assert_eq!(call!(dapl_ep_get_status(server, null_mut(), &mut idle, null_mut())), SUCCESS);
        assert_eq!((held, span, idle, counts(srq)), (1, 1, DAT_TRUE, (1, 2)));
        assert_eq!(errors(&world), []);
        let flags = if abrupt { DAT_CLOSE_ABRUPT_FLAG } else { DAT_CLOSE_GRACEFUL_FLAG };
        assert_eq!(disconnect(if abrupt { server } else { client }, flags), SUCCESS);
        assert_eq!(errors(&world), [broken(server)], "once, after all work is complete");
        assert_eq!((completed(world.dto), counts(srq)), (vec![(server, 1, FLUSHED)], (1, 1)));
        world.connection_events();

        assert_eq!(call!(dapl_ep_reset(server)), SUCCESS);
        assert_eq!((query(server).srq_handle, errors(&world)), (srq, vec![]), "the ep still uses the srq");
        let again = connect(&world, server, 6);
        world.connection_events();
        send_silently(again, 1);
        arrive(server);
        assert_eq!((completed(world.dto), counts(srq)), (vec![(server, 2, OK)], (0, 0)));
        assert_eq!(call!(dapl_ep_free(server)), SUCCESS);
        assert_eq!(errors(&world), [], "no event for a freed handle");
        end(world, &[client, again], &[srq]);
    }
}

#[test]
fn ep_broken_is_reported_after_a_failed_completion() {
    use crate::evd::Evd;
    use crate::provider::{Completion, ConnectionEvent, Status, Token};
    let world = World::new(c"srq failure");
    let srq = srq(&world);
    let server = Create::new(&world, srq).ep(&world);
    let client = connect(&world, server, 5);
    world.connection_events();
    let cq = from_handle::<Evd<FakeProvider>>(world.dto, Handle::Plain).unwrap().cq().unwrap();
    let token = Token { cookie: 1, ep: server as usize, ..Token::default() };
    cq.feed(Completion { token, status: Status::LocalLength, ..Completion::default() });
    assert_eq!((completed(world.dto).len(), state(server)), (1, DAT_EP_STATE_DISCONNECTED));
    assert_eq!(errors(&world), [], "other receives may still complete");
    crate::ep::dapls_ep::connection_event(
        &from_handle::<Ep<FakeProvider>>(server, Handle::Ep).unwrap(),
        1,
        ConnectionEvent::Broken,
        &[],
    );
    assert_eq!(errors(&world), [broken(server)]);
    end(world, &[client, server], &[srq]);
}

#[test]
fn pz_of_a_freed_srq_can_be_freed_while_the_srq_is_still_referenced() {
    let world = World::new(c"held queue");
    let (mut pz, mut srq, mut attr) = (null_mut(), null_mut(), SRQ_ATTR);
    assert_eq!(call!(dapl_pz_create(world.ia(), &mut pz)), SUCCESS);
    assert_eq!(call!(dapl_srq_create(world.ia(), pz, &mut attr, &mut srq)), SUCCESS);
    let held = from_handle::<crate::srq::Srq<FakeProvider>>(srq, Handle::Srq).unwrap().to_arc();
    assert_eq!(call!(dapl_pz_free(pz)), in_state(State::PzInUse));
    assert_eq!((call!(dapl_srq_free(srq)), call!(dapl_pz_free(pz))), (SUCCESS, SUCCESS));
    drop(held);
    finish(world, &[], &[]);
}
