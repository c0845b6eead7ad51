//! Tests of the high watermarks (limits on the number of receives) of EPs with and without an SRQ.

use super::sharing::*;
use super::*;

#[test]
fn watermarks_of_an_ep_with_srq_count_receives_taken_from_the_srq() {
    let world = World::new(c"srq marks");
    let srq = srq(&world);
    let server = Create::new(&world, srq).marks(1, 2).ep(&world);
    let client = connect(&world, server, 5);
    world.connection_events();
    world.opened.ia.provider.slow_down();
    for n in 0..8 {
        assert_eq!(post(srq, n), SUCCESS);
    }
    send_silently(client, 0);
    assert_eq!(errors(&world), []);
    send_silently(client, 1);
    let soft = (INTERNAL, server, SOFT_HIGH);
    assert_eq!((errors(&world), counts(srq)), (vec![soft], (6, 8)));
    arrive(server);
    assert_eq!(completed(world.dto).len(), 2);
    for n in 2..4 {
        send_silently(client, n);
    }
    assert_eq!(errors(&world), [], "the soft watermark is reported once");
    assert_eq!(call!(dapl_ep_set_watermark(server, 1, 2)), SUCCESS);
    assert_eq!(errors(&world), [soft], "set again, reported again");
    send_silently(client, 4);
    let mut reported = world.connection_events();
    reported.sort_unstable();
    let mut wanted = [(server, DAT_CONNECTION_EVENT_BROKEN), (client, DAT_CONNECTION_EVENT_DISCONNECTED)];
    wanted.sort_unstable();
    assert_eq!((reported, state(server)), (wanted.to_vec(), DAT_EP_STATE_DISCONNECTED));
    assert_eq!(errors(&world), [broken(server)]);
    let flushed: Vec<_> = (2..5).map(|n| (server, n, FLUSHED)).collect();
    assert_eq!((completed(world.dto), counts(srq)), (flushed, (3, 3)));
    end(world, &[client, server], &[srq]);
}

#[test]
fn watermarks_of_an_ep_without_srq_count_posted_receives() {
    let world = World::new(c"marks");
    let (client, server) = world.pair(5);
    let watch = |soft, hard| call!(dapl_ep_set_watermark(server, soft, hard));
    let soft = (INTERNAL, server, SOFT_HIGH);
    assert_eq!(call!(dapl_ep_set_watermark(world.pz, 1, 1)), bad(Handle::Ep));
    assert_eq!((watch(-2, -2), watch(-1, -2), watch(1, -1)), (wrong(2), wrong(3), SUCCESS));
    assert_eq!(query(server).ep_attr.max_recv_dtos, 16, "not an attribute of an ep without srq");
    let (mut held, mut span) = (9, 9);
    for n in 0..3 {
        assert_eq!(recv(server, n), SUCCESS);
    }
    assert_eq!(call!(dapl_ep_recv_query(world.pz, &mut held, null_mut())), bad(Handle::Ep));
    assert_eq!(call!(dapl_ep_recv_query(server, null_mut(), null_mut())), SUCCESS);
    assert_eq!(call!(dapl_ep_recv_query(server, &mut held, &mut span)), SUCCESS);
    assert_eq!((held, span, errors(&world)), (3, 3, vec![soft]));
    assert_eq!((watch(-1, 3), world.connection_events()), (SUCCESS, vec![]));
    assert_eq!(
        (recv(server, 3), world.connection_events().len(), state(server)),
        (SUCCESS, 2, DAT_EP_STATE_DISCONNECTED)
    );
    assert_eq!(errors(&world), [], "no EP_BROKEN without an srq");
    assert_eq!(world.completions().len(), 4);

    // This watermark is set before the connection is established, so the connection breaks as soon as it is
    // established.
    let (early, late) = (world.ep(), world.psp(6));
    assert_eq!(call!(dapl_ep_set_watermark(early, 0, 0)), SUCCESS);
    assert_eq!((recv(early, 1), errors(&world).len(), world.connection_events()), (SUCCESS, 1, vec![]));
    let other = world.ep();
    world.connect(early, 6, &[]);
    assert_eq!(world.accept(world.request(), other, &[]), SUCCESS);
    let reported: Vec<_> =
        world.connection_events().into_iter().filter(|(ep, _)| *ep == early).map(|(_, reported)| reported).collect();
    assert_eq!(reported, [DAT_CONNECTION_EVENT_ESTABLISHED, DAT_CONNECTION_EVENT_BROKEN]);
    world.completions();
    finish(world, &[client, server, early, other], &[(late, free_psp)]);
}

#[test]
fn reported_soft_watermark_stays_reported_after_queue_pair_replacement() {
    let world = World::new(c"marks stay");
    let (ep, mut pz) = (world.ep(), null_mut());
    assert_eq!(call!(dapl_pz_create(world.ia(), &mut pz)), SUCCESS);
    assert_eq!(call!(dapl_ep_set_watermark(ep, 0, -1)), SUCCESS);
    assert_eq!((recv(ep, 1), errors(&world).len()), (SUCCESS, 1));
    let mut param = query(ep);
    param.pz_handle = pz;
    assert_eq!(call!(dapl_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param)), SUCCESS);
    assert_eq!((recv(ep, 2), errors(&world).len()), (SUCCESS, 0));
    assert_eq!(call!(dapl_ep_set_watermark(ep, 1, -1)), SUCCESS);
    param.pz_handle = world.pz;
    assert_eq!(call!(dapl_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param)), SUCCESS);
    assert_eq!((recv(ep, 3), recv(ep, 4), errors(&world).len()), (SUCCESS, SUCCESS, 1), "not exceeded before");
    assert_eq!(call!(dapl_ep_free(ep)), SUCCESS);
    assert_eq!(call!(dapl_pz_free(pz)), SUCCESS);
    finish(world, &[], &[]);
}
