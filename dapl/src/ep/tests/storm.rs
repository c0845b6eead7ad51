//! Concurrency test of connection set-up. The client connects with short timeouts and disconnects, while other threads
//! accept or reject requests, deliver provider events, and post and query on the client's EP. The number of events that
//! end an attempt must equal the number of attempts.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const ROUNDS: usize = 300;

#[test]
fn every_connect_attempt_ends_once_under_concurrent_calls() {
    let world = World::new(c"storm");
    let (client, server, psp) = (world.ep(), world.ep(), world.psp(5));
    let ia = world.opened.ia.clone();
    let over = AtomicBool::new(false);
    let [client_at, server_at, requests] = [client, server, world.requests].map(|handle| handle as usize);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                if ia.provider.deliver() == 0 {
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(|| {
            for turn in 0_usize.. {
                let Some(event) = next(requests as H) else {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    std::thread::yield_now();
                    continue;
                };
                // SAFETY: this EVD receives connection requests only, so this union member is set.
                let cr = unsafe { event.event_data.cr_arrival_event_data.cr_handle };
                let server = server_at as H;
                if turn.is_multiple_of(3) || call!(dapl_cr_accept(cr, server, 0, null_mut())) != DAT_SUCCESS {
                    assert_eq!(call!(dapl_cr_reject(cr)), DAT_SUCCESS);
                }
                if turn % 5 == 1 {
                    disconnect(server, 0);
                }
                call!(dapl_ep_reset(server));
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let _ = query(client_at as H);
                recv(client_at as H, 1);
                send(client_at as H, 2);
                std::thread::yield_now();
            }
        });
        let mut address = ipv4([127, 0, 0, 1]);
        for round in 0..ROUNDS {
            let micros = 1 + (round as u32 % 7) * 40;
            let at = address.as_mut_ptr().cast();
            assert_eq!(call!(dapl_ep_connect(client, at, 5, micros, 0, null_mut(), 0, 0)), DAT_SUCCESS);
            for _ in 0..round % 11 {
                std::thread::yield_now();
            }
            assert_eq!(disconnect(client, 0), DAT_SUCCESS);
            assert_eq!(call!(dapl_ep_reset(client)), DAT_SUCCESS);
        }
        over.store(true, Ordering::SeqCst);
    });
    let of_client = world.connection_events().into_iter().filter(|(ep, _)| *ep == client);
    let ends = of_client.filter(|(_, number)| *number != DAT_CONNECTION_EVENT_ESTABLISHED).count();
    assert_eq!(ends, ROUNDS);
    for ep in [client, server] {
        assert_eq!(call!(dapl_ep_free(ep)), DAT_SUCCESS);
    }
    world.completions();
    finish(world, &[], &[(psp, free_psp)]);
}
