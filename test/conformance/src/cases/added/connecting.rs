//! Common service points, the ports of listeners, and rejects with private data.

use std::ptr::null_mut;

use dat_abi::v2::{self, DAT_COMM};

use super::{argument, error};
use crate::api::added;
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 6": v2_common_service_point_receives_requests => pair(client_common_connect, server_common_listen),
        "spec/endpoints 6": v2_common_service_point_refuses_unsupported_protocols_and_addresses,
        "spec/endpoints 6": v2_second_listener_at_a_port_returns_port_in_use,
        "spec/endpoints 7.4": v2_private_data_of_a_reject_arrives_or_is_refused => pair(client_be_rejected, server_reject),
    ]
}

const TCP: DAT_COMM = DAT_COMM { domain: 2, r#type: 1, protocol: 0 };

/// The address of an IA with a port; `None` if it is not IPv4.
fn with_port(ia: &Ia, port: u16) -> Option<Address> {
    let mut bytes = address_at(ia.attr().ia_address_ptr);
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    (bytes[..2] == 2_u16.to_ne_bytes()).then(|| Address::of_bytes(&bytes))
}

/// An IPv4 address with a port.
fn with_bytes(ip: [u8; 4], port: u16) -> Address {
    let mut bytes = address_at(Address::ipv4(ip).pointer());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    Address::of_bytes(&bytes)
}

fn create(ia: &Ia, mut comm: DAT_COMM, address: &Address, evd: &Evd) -> Result<DAT_HANDLE, DAT_RETURN> {
    let mut csp = null_mut();
    match added::csp_create(ia.h(), &mut comm, address.pointer(), evd.h(), &mut csp) {
        DAT_SUCCESS => Ok(csp),
        code => Err(code),
    }
}

fn server_common_listen(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let port = ctx.qual(0) as u16;
    let address = with_port(&conn.ia, port).unwrap_or_else(|| ctx.unsupported("an IPv4 address"));
    let requests = conn.ia.evd(8, DAT_EVD_CR_FLAG);
    let csp = create(&conn.ia, TCP, &address, &requests).expect("the port is free");
    let mut param = zeroed::<v2::DAT_CSP_PARAM>();
    ok(added::csp_query(csp, v2::DAT_CSP_FIELD_ALL, &mut param));
    assert_eq!((param.ia_handle, param.evd_handle), (conn.ia.h(), requests.h()));
    assert_eq!(address_at(param.address_ptr)[2..4], port.to_be_bytes());
    expect(added::csp_query(csp, v2::DAT_CSP_FIELD_ALL + 1, &mut param), argument(2));
    expect(added::csp_query(csp, 0, null_mut()), argument(3));
    ctx.send_address(&conn.ia);
    ctx.send_number(port.into());
    let asked = expect_cr(requests.h());
    assert_eq!(asked.conn_qual, port.into());
    ok(dat_cr_accept(asked.cr_handle, conn.ep.h(), 0, null_mut()));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ok(added::csp_free(csp));
    post_empty_recv(&conn, 4);
    ctx.meet();
    expect_dto(conn.recv.h(), 4, DAT_DTO_SUCCESS, 0);
    ctx.meet();
}

fn client_common_connect(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let address = ctx.receive_address();
    let mut bytes = address_at(address.pointer());
    bytes[2..4].copy_from_slice(&(ctx.receive_number() as u16).to_be_bytes());
    let address = Address::of_bytes(&bytes);
    let code = added::ep_common_connect(conn.ep.h(), null_mut(), DAT_TIMEOUT_INFINITE, 0, null_mut());
    expect(code, argument(2));
    expect(added::ep_common_connect(conn.ep.h(), address.pointer(), 0, 0, null_mut()), argument(3));
    ok(added::ep_common_connect(conn.ep.h(), address.pointer(), DAT_TIMEOUT_INFINITE, 0, null_mut()));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
    post_empty_send(&conn, 3);
    expect_dto(conn.request.h(), 3, DAT_DTO_SUCCESS, 0);
    ctx.meet();
}

fn v2_common_service_point_refuses_unsupported_protocols_and_addresses(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, others) = (ia.evd(8, DAT_EVD_CR_FLAG), ia.evd(8, DAT_EVD_CONNECTION_FLAG));
    let port = ctx.qual(1) as u16;
    let (Some(address), Some(no_port)) = (with_port(&ia, port), with_port(&ia, 0)) else {
        ctx.unsupported("an IPv4 address")
    };
    let not_supported = Err(error(v2::DAT_COMM_NOT_SUPPORTED, 0));
    assert_eq!(create(&ia, DAT_COMM { domain: 1, ..TCP }, &address, &requests), not_supported);
    assert_eq!(create(&ia, DAT_COMM { r#type: 2, ..TCP }, &address, &requests), not_supported);
    assert_eq!(create(&ia, DAT_COMM { protocol: 17, ..TCP }, &address, &requests), not_supported);
    assert_eq!(create(&ia, TCP, &no_port, &requests), Err(argument(3)));
    // Addresses of another host, of multicast groups, and for broadcast.
    for bytes in [[203, 0, 113, 1], [224, 0, 0, 1], [239, 1, 2, 3], [255; 4], [127, 255, 255, 255]] {
        let elsewhere = with_bytes(bytes, port);
        assert_eq!(create(&ia, TCP, &elsewhere, &requests), Err(argument(3)), "address {bytes:?}");
    }
    let bad_evd = error(DAT_INVALID_HANDLE, v2::DAT_INVALID_HANDLE_EVD_CR);
    assert_eq!(create(&ia, TCP, &address, &others), Err(bad_evd));
    let (mut csp, mut comm) = (null_mut(), TCP);
    expect(added::csp_create(ia.h(), null_mut(), address.pointer(), requests.h(), &mut csp), argument(2));
    expect(added::csp_create(ia.h(), &mut comm, null_mut(), requests.h(), &mut csp), argument(3));
    expect(added::csp_create(ia.h(), &mut comm, address.pointer(), requests.h(), null_mut()), argument(5));
}

fn v2_second_listener_at_a_port_returns_port_in_use(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let port = ctx.qual(if ctx.is_client() { 2 } else { 3 }) as u16;
    let address = with_port(&ia, port).unwrap_or_else(|| ctx.unsupported("an IPv4 address"));
    let csp = create(&ia, TCP, &address, &requests).expect("the port is free");
    assert_eq!(create(&ia, TCP, &address, &requests), Err(error(v2::DAT_PORT_IN_USE, 0)));
    ok(added::csp_free(csp));
    expect(added::csp_free(csp), error(DAT_INVALID_HANDLE, v2::DAT_INVALID_HANDLE_CSP));
    let psp = ia.psp(port.into(), &requests);
    assert_eq!(
        create(&ia, TCP, &address, &requests),
        Err(error(v2::DAT_PORT_IN_USE, 0)),
        "TCP and IB service points do not share the port numbers"
    );
    psp.free();
}

const DATA: &[u8] = b"come again tomorrow";

fn server_reject(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let qual = ctx.qual(4);
    let psp = ia.psp(qual, &requests);
    ctx.send_address(&ia);
    for data in [DATA, &[]] {
        ctx.meet();
        let cr = expect_cr(requests.h()).cr_handle;
        expect(added::cr_reject_with(cr, &[0; 4096]), argument(2));
        // A transport that carries no reject data returns an error, and the request stays pending.
        match added::cr_reject_with(cr, data) {
            DAT_SUCCESS => ctx.send_number(data.len() as u64),
            code => {
                expect(code, argument(2));
                ctx.send_number(0);
                ok(added::cr_reject_with(cr, &[]));
            }
        }
    }
    ctx.meet();
    psp.free();
}

fn client_be_rejected(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let address = ctx.receive_address();
    for _ in 0..2 {
        conn.connect(&address, ctx.qual(4));
        ctx.meet();
        let wanted = ctx.receive_number() as usize;
        let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_PEER_REJECTED);
        // Some transports pad private data to a fixed length.
        let data = event.private_data();
        assert_eq!(data.get(..wanted), Some(&DATA[..wanted]));
        assert!(
            data[wanted..].iter().all(|byte| *byte == 0),
            "the bytes after the private data are not zero: {data:?}"
        );
        ok(dat_ep_reset(conn.ep.h()));
    }
    ctx.meet();
}
