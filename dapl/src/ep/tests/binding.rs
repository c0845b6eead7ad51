//! Tests of RMR binds: their checks and completions, what queries return, when an LMR can be freed, and that a failed
//! bind breaks the connection.

use super::*;
use crate::error::{AccessKind, Resource};
use crate::lmr::dapl_lmr::*;
use crate::rmr::dapl_rmr::*;

const WRITE: DAT_MEM_PRIV_FLAGS = DAT_MEM_PRIV_REMOTE_WRITE_FLAG;
const READ: DAT_MEM_PRIV_FLAGS = DAT_MEM_PRIV_REMOTE_READ_FLAG;
static BYTES: [u8; 128] = [0; 128];

impl World {
    fn rmr(&self) -> H {
        let mut rmr = null_mut();
        assert_eq!(call!(dapl_rmr_create(self.pz, &mut rmr)), DAT_SUCCESS);
        rmr
    }

    /// Registers all of `BYTES` in `pz`. Returns the handle and the local context.
    fn lmr(&self, pz: H, rights: DAT_MEM_PRIV_FLAGS) -> (H, u32) {
        let (mut lmr, mut context) = (null_mut(), 0);
        let region = DAT_REGION_DESCRIPTION { for_va: BYTES.as_ptr().cast_mut().cast() };
        let none = null_mut();
        let code = call!(dapl_lmr_create(
            self.ia(),
            DAT_MEM_TYPE_VIRTUAL,
            region,
            128,
            pz,
            rights,
            &mut lmr,
            &mut context,
            none,
            null_mut(),
            null_mut(),
        ));
        assert_eq!(code, DAT_SUCCESS);
        (lmr, context)
    }

    /// Dequeues the bind completions. Returns their cookies, RMRs and statuses.
    fn binds(&self) -> Vec<(u64, H, DAT_DTO_COMPLETION_STATUS)> {
        self.deliver();
        std::iter::from_fn(|| next(self.dto))
            .map(|event| {
                assert_eq!(event.event_number, DAT_RMR_BIND_COMPLETION_EVENT);
                // SAFETY: the event number selects the union member; every union member of a cookie has eight bytes,
                // and any bits are a valid integer.
                unsafe {
                    let done = event.event_data.rmr_completion_event_data;
                    (done.user_cookie.as_64, done.rmr_handle, done.status)
                }
            })
            .collect()
    }
}

fn part(context: u32, offset: u64, length: u64) -> DAT_LMR_TRIPLET {
    let virtual_address = (BYTES.as_ptr() as u64).wrapping_add(offset);
    DAT_LMR_TRIPLET { lmr_context: context, pad: 0xBAD, virtual_address, segment_length: length }
}

/// Binds the RMR with these rights and flags. Returns the new context or the error.
fn bind_with(rmr: H, part: DAT_LMR_TRIPLET, rights: u32, ep: H, cookie: u64, flags: u32) -> Result<u32, DAT_RETURN> {
    let mut context = 0xABCD;
    match call!(dapl_rmr_bind(rmr, &part, rights, ep, DAT_CONTEXT { as_64: cookie }, flags, &mut context)) {
        DAT_SUCCESS => Ok(context),
        code => {
            assert_eq!(context, 0xABCD, "not written on failure");
            Err(code)
        }
    }
}

fn bind(rmr: H, part: DAT_LMR_TRIPLET, ep: H, cookie: u64) -> Result<u32, DAT_RETURN> {
    bind_with(rmr, part, READ | WRITE, ep, cookie, 0)
}

fn unbind(rmr: H, ep: H, cookie: u64) -> DAT_RETURN {
    let nothing = part(0xFFFF_FFFF, 7, 0);
    call!(dapl_rmr_bind(rmr, &nothing, 0xFF, ep, DAT_CONTEXT { as_64: cookie }, 0, null_mut()))
}

fn query_rmr(rmr: H) -> DAT_RMR_PARAM {
    let mut param = MaybeUninit::uninit();
    assert_eq!(call!(dapl_rmr_query(rmr, DAT_RMR_FIELD_ALL, param.as_mut_ptr())), DAT_SUCCESS);
    // SAFETY: the call has succeeded, so it has written the record.
    unsafe { param.assume_init() }
}

fn is_unbound(rmr: H) -> bool {
    let param = query_rmr(rmr);
    let segment = &param.lmr_triplet;
    (segment.lmr_context, segment.virtual_address, segment.segment_length) == (0, 0, 0)
        && (param.mem_priv, param.rmr_context) == (0, 0)
}

fn free_lmr(lmr: H) -> DAT_RETURN {
    call!(dapl_lmr_free(lmr))
}

fn free_rmr(rmr: H) -> DAT_RETURN {
    call!(dapl_rmr_free(rmr))
}

const ALL: u32 = DAT_MEM_PRIV_ALL_FLAG;

#[test]
fn bind_can_be_queried_moved_and_undone() {
    let world = World::new(c"bind");
    let (client, server) = world.pair(5);
    let rmr = world.rmr();
    assert!(is_unbound(rmr));
    let ((one, first), (other, second)) =
        (world.lmr(world.pz, ALL), world.lmr(world.pz, DAT_MEM_PRIV_LOCAL_WRITE_FLAG));
    let context = bind(rmr, part(first, 8, 64), client, 1).unwrap();
    assert_eq!(world.binds(), [(1, rmr, DAT_RMR_BIND_SUCCESS)]);
    let param = query_rmr(rmr);
    assert_eq!((param.ia_handle, param.pz_handle, param.rmr_context), (world.ia(), world.pz, context));
    assert_eq!((param.lmr_triplet.lmr_context, param.lmr_triplet.segment_length), (first, 64));
    assert_eq!((param.lmr_triplet.virtual_address, param.mem_priv), (BYTES.as_ptr() as u64 + 8, READ | WRITE));

    assert_eq!(free_lmr(one), in_state(State::LmrInUse));
    let again = bind_with(rmr, part(second, 0, 128), WRITE | DAT_MEM_PRIV_LOCAL_READ_FLAG, client, 2, 0).unwrap();
    assert_ne!(again, context);
    assert_eq!(query_rmr(rmr).mem_priv, WRITE | DAT_MEM_PRIV_LOCAL_READ_FLAG);
    assert_eq!(free_lmr(other), in_state(State::LmrInUse));
    assert_eq!(free_lmr(one), DAT_SUCCESS, "the RMR is bound elsewhere now");

    assert_eq!(unbind(rmr, client, 3), DAT_SUCCESS);
    assert_eq!(world.binds(), [(2, rmr, DAT_RMR_BIND_SUCCESS), (3, rmr, DAT_RMR_BIND_SUCCESS)]);
    assert!(is_unbound(rmr));
    assert_eq!(free_lmr(other), DAT_SUCCESS);
    assert_eq!(unbind(rmr, client, 4), DAT_SUCCESS, "an unbound RMR can be bound too");
    assert_eq!(call!(dapl_pz_free(world.pz)), in_state(State::PzInUse));
    assert_eq!(free_rmr(rmr), DAT_SUCCESS);
    assert_eq!(free_rmr(rmr), bad(Handle::Rmr));
    world.binds();
    finish(world, &[client, server], &[]);
}

#[test]
fn invalid_binds_are_refused() {
    let world = World::new(c"bind errors");
    let (client, server) = world.pair(5);
    let (rmr, mut out) = (world.rmr(), null_mut());
    assert_eq!(call!(dapl_rmr_create(world.dto, &mut out)), bad(Handle::Pz));
    assert_eq!(call!(dapl_rmr_create(world.pz, null_mut())), wrong(2));
    assert_eq!(call!(dapl_rmr_query(world.pz, 0, null_mut())), bad(Handle::Rmr));
    assert_eq!(call!(dapl_rmr_query(rmr, 0x20, null_mut())), wrong(2));
    assert_eq!(call!(dapl_rmr_query(rmr, 0x1F, null_mut())), wrong(3));

    let mut other_pz = null_mut();
    assert_eq!(call!(dapl_pz_create(world.ia(), &mut other_pz)), DAT_SUCCESS);
    let (lmr, key) = world.lmr(world.pz, ALL);
    let (read_only, read_key) = world.lmr(world.pz, 0);
    let (foreign, foreign_key) = world.lmr(other_pz, ALL);
    let fine = part(key, 0, 128);
    let (none, cookie) = (null_mut(), DAT_CONTEXT { as_64: 1 });
    assert_eq!(bind(lmr, fine, client, 1), Err(bad(Handle::Rmr)));
    assert_eq!(bind(rmr, fine, rmr, 1), Err(bad(Handle::Ep)));
    assert_eq!(call!(dapl_rmr_bind(rmr, null(), 0, client, cookie, 0, none)), wrong(2));
    assert_eq!(call!(dapl_rmr_bind(rmr, &fine, 0x40, client, cookie, 0, none)), wrong(7), "pointers first");
    assert_eq!(bind_with(rmr, fine, 0x40, client, 1, 0), Err(wrong(3)));
    assert_eq!(bind_with(rmr, fine, READ, client, 1, 0x20), Err(wrong(6)));
    assert_eq!(bind_with(rmr, fine, READ, client, 1, DAT_COMPLETION_UNSIGNALLED_FLAG), Err(wrong(6)));
    for bad in [part(99, 0, 1), part(key, 0, 129), part(key, 1, 128), part(key, 64, u64::MAX), part(key, u64::MAX, 1)] {
        assert_eq!(bind(rmr, bad, client, 1), Err(wrong(2)));
    }
    let protection = |way| Err(Error::Protection(way).code());
    assert_eq!(bind(rmr, part(foreign_key, 0, 1), client, 1), protection(AccessKind::Write));
    let elsewhere = world.ep_with(other_pz, world.dto, world.conn);
    assert_eq!(bind_with(rmr, fine, READ, elsewhere, 1, 0), protection(AccessKind::Read), "before the EP's state");
    assert_eq!(unbind(rmr, elsewhere, 1), Error::Protection(AccessKind::Read).code());
    let privileges = Err(Error::Privileges(AccessKind::Write).code());
    assert_eq!(bind_with(rmr, part(read_key, 0, 8), WRITE, client, 1, 0), privileges);
    let idle = world.ep();
    assert_eq!(bind(rmr, fine, idle, 1), Err(in_state(State::EpUnconnected)));
    assert!(is_unbound(rmr) && world.binds().is_empty());

    assert!(
        bind_with(rmr, part(read_key, 0, 8), READ, client, 2, 0).is_ok(),
        "a bind for reads needs no right of the LMR"
    );
    assert_eq!(free_rmr(rmr), DAT_SUCCESS, "while bound");
    for lmr in [lmr, read_only, foreign] {
        assert_eq!(free_lmr(lmr), DAT_SUCCESS);
    }
    assert_eq!(call!(dapl_ep_free(elsewhere)), DAT_SUCCESS);
    assert_eq!(call!(dapl_pz_free(other_pz)), DAT_SUCCESS);
    world.binds();
    finish(world, &[client, server, idle], &[]);
}

#[test]
fn flushed_bind_releases_the_lmr() {
    let world = World::new(c"bind flush");
    let (client, server) = world.pair(5);
    let rmr = world.rmr();
    let ((one, first), (other, second)) = (world.lmr(world.pz, ALL), world.lmr(world.pz, ALL));
    bind(rmr, part(first, 0, 8), client, 1).unwrap();
    assert_eq!(disconnect(client, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
    assert!(!is_unbound(rmr), "a binding outlives the connection");
    let context = bind(rmr, part(second, 0, 8), client, 2).unwrap();
    assert_ne!(context, 0);
    assert_eq!(world.binds(), [(1, rmr, DAT_RMR_BIND_SUCCESS), (2, rmr, DAT_RMR_BIND_FAILURE)]);
    assert!(is_unbound(rmr));
    assert_eq!((free_lmr(one), free_lmr(other), free_rmr(rmr)), (DAT_SUCCESS, DAT_SUCCESS, DAT_SUCCESS));
    assert_eq!(world.connection_events().len(), 2);
    finish(world, &[client, server], &[]);
}

#[test]
fn a_bind_that_fails_breaks_the_connection() {
    let world = World::new(c"bind failure");
    let (client, server) = world.pair(5);
    let rmr = world.rmr();
    let (lmr, key) = world.lmr(world.pz, ALL);
    bind(rmr, part(key, 0, 8), client, 1).unwrap();
    assert_eq!(world.binds().len(), 1);
    world.opened.ia.provider.make_binds_fail();
    bind_with(rmr, part(key, 0, 16), READ, client, 2, DAT_COMPLETION_SUPPRESS_FLAG).unwrap();
    assert_eq!(world.binds(), [(2, rmr, DAT_RMR_OPERATION_FAILED)]);
    assert_eq!(state(client), DAT_EP_STATE_DISCONNECTED);
    assert!(is_unbound(rmr));
    let reported = world.connection_events();
    assert!(reported.contains(&(client, DAT_CONNECTION_EVENT_BROKEN)) && reported.len() == 2, "{reported:?}");
    assert_eq!((free_lmr(lmr), free_rmr(rmr)), (DAT_SUCCESS, DAT_SUCCESS));
    finish(world, &[client, server], &[]);
}

#[test]
fn binds_during_an_accept_are_queued_up_to_max_request_dtos() {
    let world = World::new(c"bind held");
    let (client, server) = (world.ep(), world.ep());
    let (psp, rmr) = (world.psp(5), world.rmr());
    let (lmr, key) = world.lmr(world.pz, ALL);
    world.connect(client, 5, &[]);
    let cr = world.request();
    assert_eq!(call!(dapl_cr_accept(cr, server, 0, null_mut())), DAT_SUCCESS);
    assert_eq!(state(server), DAT_EP_STATE_COMPLETION_PENDING);
    let posted: Vec<_> = (0..64).map_while(|n| bind(rmr, part(key, n % 64, 8), server, n).ok()).collect();
    let distinct: std::collections::HashSet<_> = posted.iter().collect();
    assert!(posted.len() == 16 && distinct.len() == 16, "as many as the EP has requests: {posted:?}");
    assert_eq!(bind(rmr, part(key, 0, 8), server, 99), Err(Error::Exhausted(Resource::Memory).code()));
    assert_eq!(query_rmr(rmr).rmr_context, posted[15], "the last that was accepted");
    assert_eq!(free_lmr(lmr), in_state(State::LmrInUse));
    let wanted: Vec<_> = (0..16).map(|n| (n, rmr, DAT_RMR_BIND_SUCCESS)).collect();
    assert_eq!(world.binds(), wanted);
    assert_eq!(world.connection_events().len(), 2);
    assert_eq!((free_rmr(rmr), free_lmr(lmr)), (DAT_SUCCESS, DAT_SUCCESS));
    finish(world, &[client, server], &[(psp, free_psp)]);
}

#[test]
fn suppressed_bind_gives_no_event_and_abrupt_close_frees_bound_rmrs() {
    let world = World::new(c"bind quiet");
    let (client, _server) = world.pair(5);
    let rmr = world.rmr();
    let (lmr, key) = world.lmr(world.pz, ALL);
    bind_with(rmr, part(key, 0, 8), READ, client, 1, DAT_COMPLETION_SUPPRESS_FLAG).unwrap();
    assert_eq!(world.binds(), []);
    assert_eq!(call!(dapl_ia_close(world.ia(), DAT_CLOSE_GRACEFUL_FLAG)), in_state(State::IaInUse));
    assert_eq!(call!(dapl_ia_close(world.ia(), DAT_CLOSE_ABRUPT_FLAG)), DAT_SUCCESS);
    assert_eq!((free_rmr(rmr), free_lmr(lmr)), (bad(Handle::Rmr), bad(Handle::Lmr)));
}
