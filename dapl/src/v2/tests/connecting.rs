//! Tests of common service points, of rejects with private data, of the disconnect events of freed EPs, and of connects
//! that request several paths.

use super::*;

const TCP: DAT_COMM = DAT_COMM { domain: libc::AF_INET, r#type: libc::SOCK_STREAM, protocol: 0 };

fn csp(world: &World, mut comm: DAT_COMM, mut address: [u8; 16], evd: H) -> Result<H, DAT_RETURN> {
    let mut out = null_mut();
    let code = call!(csp_create_func(world.ia(), &mut comm, address.as_mut_ptr().cast(), evd, &mut out));
    if code == DAT_SUCCESS { Ok(out) } else { Err(code) }
}

fn common_connect(ep: H, mut address: [u8; 16], data: &[u8]) -> DAT_RETURN {
    let (size, bytes) = (data.len() as i32, data.as_ptr().cast_mut().cast());
    call!(ep_common_connect_func(ep, address.as_mut_ptr().cast(), DAT_TIMEOUT_INFINITE, size, bytes))
}

#[test]
fn a_common_service_point_takes_requests_at_its_port() {
    let world = World::new(c"v2 csp");
    let csp_handle = csp(&world, TCP, ipv4(7001), world.requests).unwrap();
    let mut kind = 99;
    assert_eq!(call!(get_handle_type_func(csp_handle, &mut kind)), DAT_SUCCESS);
    assert_eq!(kind, DAT_HANDLE_TYPE_CSP);
    let (client, server) = (world.ep(), world.ep());
    assert_eq!(common_connect(client, ipv4(7001), b"hello"), DAT_SUCCESS);
    world.deliver();
    let asked = world.request();
    // SAFETY: all members of the union are handles.
    assert_eq!((unsafe { asked.sp_handle.csp_handle }, asked.conn_qual), (csp_handle, 7001));
    assert_eq!(asked.truncate_flag, DAT_FALSE);
    let param: DAT_CR_PARAM = written(|out| call!(cr_query_func(asked.cr_handle, DAT_CR_FIELD_ALL, out)));
    assert_eq!(param.private_data_size, 5);
    assert_eq!(call!(cr_accept_func(asked.cr_handle, server, 0, null_mut())), DAT_SUCCESS);
    assert_eq!(world.connection().0, DAT_CONNECTION_EVENT_ESTABLISHED);

    let param: DAT_CSP_PARAM = written(|out| call!(csp_query_func(csp_handle, DAT_CSP_FIELD_ALL, out)));
    assert_eq!(param.evd_handle, world.requests);
    // SAFETY: the library keeps the communicator and the address as long as the CSP exists.
    let (comm, port) = unsafe { (*param.comm, param.address_ptr.cast::<[u8; 4]>().read()) };
    assert_eq!((comm.domain, comm.r#type, comm.protocol), (libc::AF_INET, libc::SOCK_STREAM, 0));
    assert_eq!(u16::from_be_bytes([port[2], port[3]]), 7001);

    assert_eq!(csp(&world, TCP, ipv4(7001), world.requests), Err(error(DAT_PORT_IN_USE, 0)));
    assert_eq!(call!(csp_free_func(csp_handle)), DAT_SUCCESS);
    assert_eq!(call!(csp_free_func(csp_handle)), bad_handle(DAT_INVALID_HANDLE_CSP));
    let again = csp(&world, TCP, ipv4(7001), world.requests).expect("the port is free");
    assert_eq!(call!(csp_query_func(again, DAT_CSP_FIELD_ALL + 1, null_mut())), bad_argument(2));
    assert_eq!(call!(csp_query_func(again, 0, null_mut())), bad_argument(3));
    assert_eq!(call!(csp_query_func(client, 0, null_mut())), bad_handle(DAT_INVALID_HANDLE_CSP));
}

#[test]
fn a_common_service_point_refuses_invalid_arguments() {
    let world = World::new(c"v2 csp refusals");
    let not_supported = Err(error(DAT_COMM_NOT_SUPPORTED, 0));
    let ports = |comm| csp(&world, comm, ipv4(7002), world.requests);
    assert_eq!(ports(DAT_COMM { domain: libc::AF_UNIX, ..TCP }), not_supported);
    assert_eq!(ports(DAT_COMM { r#type: libc::SOCK_DGRAM, ..TCP }), not_supported);
    assert_eq!(ports(DAT_COMM { domain: libc::AF_INET6, ..TCP }), not_supported, "of another domain than the address");
    assert_eq!(csp(&world, TCP, ipv4(0), world.requests), Err(bad_argument(3)));
    let mut elsewhere = ipv4(7002);
    elsewhere[4..8].copy_from_slice(&[192, 0, 2, 1]);
    assert_eq!(csp(&world, TCP, elsewhere, world.requests), Err(bad_argument(3)));
    assert_eq!(csp(&world, TCP, ipv4(7002), world.conn), Err(bad_handle(DAT_INVALID_HANDLE_EVD_CR)));
    let (mut out, mut comm, mut address) = (null_mut(), TCP, ipv4(7002));
    let address = address.as_mut_ptr().cast();
    let create = |comm, address, out| call!(csp_create_func(world.ia(), comm, address, world.requests, out));
    assert_eq!(create(null_mut(), address, &mut out), bad_argument(2));
    assert_eq!(create(&mut comm, null_mut(), &mut out), bad_argument(3));
    assert_eq!(create(&mut comm, address, null_mut()), bad_argument(5));

    let ep = world.ep();
    assert_eq!(common_connect(ep, ipv4(0), &[]), bad_argument(2));
    assert_eq!(common_connect(ep, ipv4(7002), &[0; 200]), bad_argument(4));
    let code = call!(ep_common_connect_func(ep, null_mut(), DAT_TIMEOUT_INFINITE, 0, null_mut()));
    assert_eq!(code, bad_argument(2));
    assert_eq!(call!(ep_common_connect_func(ep, address, 0, 0, null_mut())), bad_argument(3));
    assert_eq!(common_connect(ep, [0; 16], &[]), error(DAT_COMM_NOT_SUPPORTED, 0));
}

#[test]
fn a_closed_ia_ends_its_common_service_points() {
    let world = World::new(c"v2 csp close");
    let csp_handle = csp(&world, TCP, ipv4(7003), world.requests).unwrap();
    let in_use = error(DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE);
    assert_eq!(call!(ia_close_func(world.ia(), DAT_CLOSE_GRACEFUL_FLAG)), in_use);
    assert_eq!(call!(ia_close_func(world.ia(), DAT_CLOSE_ABRUPT_FLAG)), DAT_SUCCESS);
    assert_eq!(call!(csp_free_func(csp_handle)), bad_handle(DAT_INVALID_HANDLE_CSP));
}

#[test]
fn private_data_of_a_reject_reaches_the_requester() {
    let world = World::new(c"v2 reject");
    let psp = written(|out| call!(psp_create_func(world.ia(), 30, world.requests, DAT_PSP_CONSUMER_FLAG, out)));
    for data in [&b"no place"[..], b""] {
        let client = world.ep();
        world.connect(client, 30);
        let cr = world.request().cr_handle;
        let (size, bytes) = (data.len() as i32, data.as_ptr().cast_mut().cast());
        assert_eq!(
            call!(cr_reject_func(cr, 197, bytes)),
            bad_argument(2),
            "more than the limit, and it can be answered"
        );
        assert_eq!(call!(cr_reject_func(cr, -1, bytes)), bad_argument(2));
        assert_eq!(call!(cr_reject_func(cr, 1, null_mut())), bad_argument(3));
        assert_eq!(call!(cr_reject_func(cr, size, bytes)), DAT_SUCCESS);
        assert_eq!(call!(cr_reject_func(cr, size, bytes)), bad_handle(DAT_INVALID_HANDLE_CR));
        let (kind, event) = world.connection();
        assert_eq!((kind, event.private_data_size), (DAT_CONNECTION_EVENT_PEER_REJECTED, size));
        // SAFETY: the event contains the address of `data.len()` bytes, or null for no data.
        assert_eq!(unsafe { crate::ffi::copy(event.private_data, data.len()) }, data);
        assert_eq!(event.private_data.is_null(), data.is_empty());
    }
    assert_eq!(call!(psp_free_func(psp)), DAT_SUCCESS);
}

#[test]
fn consumer_of_1_2_gets_no_private_data_of_a_reject() {
    let world = World::new(c"v2 reject to 1.2");
    let psp = written(|out| call!(psp_create_func(world.ia(), 31, world.requests, DAT_PSP_CONSUMER_FLAG, out)));
    let client = world.ep();
    world.connect(client, 31);
    let bytes = b"no".as_ptr().cast_mut().cast();
    assert_eq!(call!(cr_reject_func(world.request().cr_handle, 2, bytes)), DAT_SUCCESS);
    world.deliver();
    let mut event = MaybeUninit::<dat_abi::DAT_EVENT>::uninit();
    // SAFETY: the EVD is live, and the event of 1.2 is writable.
    let code = unsafe { crate::evd::dapl_evd::dapl_evd_dequeue::<FakeProvider>(world.conn, event.as_mut_ptr()) };
    assert_eq!(code, DAT_SUCCESS);
    // SAFETY: the call has written the event, and this EVD receives connection events only.
    let data = unsafe { event.assume_init().event_data.connect_event_data };
    assert_eq!((data.private_data_size, data.private_data), (0, null_mut()));
    assert_eq!(call!(psp_free_func(psp)), DAT_SUCCESS);
}

#[test]
fn free_of_a_connected_ep_queues_disconnected_in_2_0() {
    let world = World::new(c"v2 ep free");
    let (client, server) = world.pair(32);
    assert_eq!(call!(ep_free_func(client)), DAT_SUCCESS);
    let mut ends = [world.connection(), world.connection()];
    ends.sort_by_key(|(_, event)| event.ep_handle != client);
    let kinds: Vec<_> = ends.iter().map(|(kind, event)| (*kind, event.ep_handle)).collect();
    assert_eq!(kinds, [(DAT_CONNECTION_EVENT_DISCONNECTED, client), (DAT_CONNECTION_EVENT_DISCONNECTED, server)]);
    assert_eq!(call!(ep_free_func(server)), DAT_SUCCESS);
    assert!(next(world.conn).is_none(), "the connection had ended before this free");
    assert_eq!(call!(ep_free_func(server)), bad_handle(DAT_INVALID_HANDLE_EP));
}

#[test]
fn multipath_may_be_requested_but_not_required() {
    let world = World::new(c"v2 multipath");
    let (client, _server) = world.pair(33); // `World::connect` requests several paths
    assert_eq!(call!(ep_free_func(client)), DAT_SUCCESS);
    let mut address = ipv4(0);
    let to = address.as_mut_ptr().cast();
    let flags = DAT_CONNECT_MULTIPATH_REQUIRED_FLAG;
    let code = call!(ep_connect_func(world.ep(), to, 33, DAT_TIMEOUT_INFINITE, 0, null_mut(), 0, flags));
    assert_eq!(code, error(DAT_MODEL_NOT_SUPPORTED, 0));
}
