//! How programs find and address the peer (spec/consumers 6 to 8).
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::ptr::null_mut;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/consumers 6": consumers_6_qualifier_of_64_bits_is_delivered_unchanged => pair(client_connects_to_rank, server_listens_as_rank),
        "spec/consumers 6": consumers_6_qualifiers_that_differ_in_high_bits_are_distinct,
        "spec/consumers 6": consumers_6_search_for_a_free_qualifier_succeeds,
        "spec/consumers 6": consumers_6_qualifiers_of_psp_create_any_fit_16_bits,
        "spec/consumers 6": consumers_6_qualifier_of_psp_create_any_is_reached_by_its_low_16_bits => pair(client_connects_to_any, server_listens_on_any),
        "spec/consumers 6": consumers_6_port_of_the_address_is_ignored,
        "spec/consumers 7": consumers_7_address_is_ipv4_with_zero_padding,
        "spec/consumers 7": consumers_7_address_is_unchanged_after_a_connection,
        "spec/consumers 7": consumers_7_address_is_copied_by_connect,
        "spec/consumers 7": consumers_7_connect_to_each_address_of_the_resolver_succeeds,
        "spec/consumers 7": consumers_7_connect_to_the_address_of_the_outgoing_interface_succeeds,
        "spec/consumers 8": consumers_8_connect_of_an_ia_to_itself_succeeds,
        "spec/consumers 8": consumers_8_four_concurrent_connects_of_an_ia_to_itself_succeed,
    ]
}

/// Connects without a timeout.
#[track_caller]
pub(super) fn connect_to(ep: &Ep, address: &Address, qual: DAT_CONN_QUAL) {
    connect_with(ep, address, qual, DAT_TIMEOUT_INFINITE, &mut []);
}

/// Connects with a timeout and private data.
#[track_caller]
pub(super) fn connect_with(ep: &Ep, address: &Address, qual: DAT_CONN_QUAL, limit: DAT_TIMEOUT, data: &mut [u8]) {
    let (size, pointer) = (data.len() as DAT_COUNT, if data.is_empty() { null_mut() } else { data.as_mut_ptr() });
    let flags = DAT_CONNECT_DEFAULT_FLAG;
    ok(dat_ep_connect(ep.h(), address.pointer(), qual, limit, size, pointer.cast(), DAT_QOS_BEST_EFFORT, flags));
}

/// Both endpoints of a connection of an IA to itself, and the EVD on which the case's listener receives the request.
struct ListenerAndClient {
    server: Conn,
    client: Conn,
    requests: Evd,
    ia: Ia,
}

impl ListenerAndClient {
    fn new(ia: &Ia) -> Self {
        let requests = ia.evd(8, DAT_EVD_CR_FLAG);
        let [client, server] = [0, 1].map(|_| Conn::unconnected(ia, &Setup::default()));
        ListenerAndClient { server, client, requests, ia: ia.clone() }
    }

    /// Connects to this address and qualifier, on which the listener must exist.
    #[track_caller]
    fn connect(&self, address: &Address, qual: DAT_CONN_QUAL) {
        connect_to(&self.client.ep, address, qual);
        let arrival = expect_cr(self.requests.h());
        assert_eq!(arrival.conn_qual, qual);
        ok(dat_cr_accept(arrival.cr_handle, self.server.ep.h(), 0, null_mut()));
        self.client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        self.server.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    }
}

/// A qualifier computed from the rank of a process, as MPI libraries do.
fn rank_qual(ctx: &Ctx, n: u64) -> DAT_CONN_QUAL {
    ctx.qual(n) << 35 | 0x7_0000_1234
}

fn client_connects_to_rank(ctx: &Ctx) {
    let conn = Conn::unconnected(&ctx.ia(), &Setup::default());
    connect_to(&conn.ep, &ctx.receive_address(), rank_qual(ctx, 0));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn server_listens_as_rank(ctx: &Ctx) {
    let ia = ctx.ia();
    let (conn, requests) = (Conn::unconnected(&ia, &Setup::default()), ia.evd(8, DAT_EVD_CR_FLAG));
    let psp = ia.psp(rank_qual(ctx, 0), &requests);
    let param: DAT_PSP_PARAM = filled(|out| dat_psp_query(psp.h(), DAT_PSP_FIELD_ALL, out));
    assert_eq!(param.conn_qual, rank_qual(ctx, 0));
    ctx.send_address(&ia);
    let arrival = expect_cr(requests.h());
    assert_eq!(arrival.conn_qual, rank_qual(ctx, 0), "the qualifier was truncated");
    ok(dat_cr_accept(arrival.cr_handle, conn.ep.h(), 0, null_mut()));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn consumers_6_qualifiers_that_differ_in_high_bits_are_distinct(ctx: &Ctx) {
    let ia = ctx.ia();
    let quals = [0, 1 << 16, 1 << 32, 1 << 63].map(|high| ctx.qual(0) << 34 | high);
    let pairs = quals.map(|_| ListenerAndClient::new(&ia));
    let _psps: Vec<Psp> = quals.iter().zip(&pairs).map(|(qual, pair)| ia.psp(*qual, &pair.requests)).collect();
    for (qual, pair) in quals.iter().zip(&pairs) {
        pair.connect(&ia.address(), *qual);
        pairs.iter().for_each(|pair| expect_nothing(pair.requests.h()));
    }
}

fn consumers_6_search_for_a_free_qualifier_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let _taken = [0, 1, 2].map(|n| ia.psp(ctx.qual(n), &requests));
    // Tries the next qualifier until one is free.
    let mut qual = ctx.qual(0);
    let psp = loop {
        let mut psp = DAT_HANDLE_NULL;
        let code = dat_psp_create(ia.h(), qual, requests.h(), DAT_PSP_CONSUMER_FLAG, &mut psp);
        if code == DAT_SUCCESS {
            break Psp::own(psp);
        }
        assert_eq!(kind_of(code), error(DAT_CONN_QUAL_IN_USE, DAT_NO_SUBTYPE));
        qual += 1;
    };
    assert_eq!(qual, ctx.qual(3));
    drop(psp);
}

fn any_psp(ia: &Ia, requests: &Evd) -> (Psp, DAT_CONN_QUAL) {
    let mut qual = 0;
    let create = |out| dat_psp_create_any(ia.h(), &mut qual, requests.h(), DAT_PSP_CONSUMER_FLAG, out);
    let psp = Psp::own(filled(create));
    (psp, qual)
}

fn consumers_6_qualifiers_of_psp_create_any_fit_16_bits(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let all: Vec<_> = (0..10).map(|_| any_psp(&ia, &requests)).collect();
    let mut quals: Vec<_> = all.iter().map(|(_, qual)| *qual).collect();
    assert!(quals.iter().all(|qual| (1..1 << 16).contains(qual)), "a qualifier does not fit: {quals:?}");
    quals.sort_unstable();
    quals.dedup();
    assert_eq!(quals.len(), all.len(), "two service points have the same qualifier");
}

fn client_connects_to_any(ctx: &Ctx) {
    let conn = Conn::unconnected(&ctx.ia(), &Setup::default());
    let (address, port) = (ctx.receive_address(), ctx.receive_number() as u16);
    connect_to(&conn.ep, &address, port.into());
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn server_listens_on_any(ctx: &Ctx) {
    let ia = ctx.ia();
    let conn = Conn::unconnected(&ia, &Setup::default());
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let (psp, qual) = any_psp(&ia, &requests);
    ctx.send_address(&ia);
    ctx.send_number(qual);
    ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, conn.ep.h(), 0, null_mut()));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
    drop(psp);
}

fn consumers_6_port_of_the_address_is_ignored(ctx: &Ctx) {
    let ia = ctx.ia();
    for port in [1u16, 80, 0xffff, ctx.qual(1) as u16] {
        let pair = ListenerAndClient::new(&ia);
        let _psp = ia.psp(ctx.qual(0), &pair.requests);
        let mut bytes = address_at(ia.attr().ia_address_ptr);
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        pair.connect(&Address::of_bytes(&bytes), ctx.qual(0));
    }
}

fn consumers_7_address_is_ipv4_with_zero_padding(ctx: &Ctx) {
    let ia = ctx.ia();
    let bytes = address_at(ia.attr().ia_address_ptr);
    assert_eq!(bytes.len(), 16, "the address does not have 16 bytes");
    assert_eq!(bytes[..2], (libc::AF_INET as u16).to_ne_bytes());
    assert_eq!(bytes[8..], [0; 8], "the padding of the address is not zero");
    assert_ne!(bytes[4..8], [0; 4], "the address is INADDR_ANY");
}

fn consumers_7_address_is_unchanged_after_a_connection(ctx: &Ctx) {
    let ia = ctx.ia();
    let pointer = ia.attr().ia_address_ptr;
    let before = address_at(pointer);
    let (client, server) = ctx.loopback_with(&ia, &Setup::default());
    drop((client, server));
    assert_eq!(address_at(pointer), before);
    assert_eq!(address_at(ia.attr().ia_address_ptr), before);
}

fn consumers_7_address_is_copied_by_connect(ctx: &Ctx) {
    let pair = ListenerAndClient::new(&ctx.ia());
    let _psp = pair.ia.psp(ctx.qual(0), &pair.requests);
    let mut address = pair.ia.address();
    connect_to(&pair.client.ep, &address, ctx.qual(0));
    address.overwrite();
    ok(dat_cr_accept(expect_cr(pair.requests.h()).cr_handle, pair.server.ep.h(), 0, null_mut()));
    pair.client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    pair.server.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    let remote = address_at(pair.client.ep.param().remote_ia_address_ptr);
    assert_eq!(remote[4..8], address_at(pair.ia.attr().ia_address_ptr)[4..8], "the EP has another remote address");
}

/// Connects to each of these addresses, which must all reach this host.
fn connects_to_all(ctx: &Ctx, addresses: impl IntoIterator<Item = [u8; 4]>) {
    let ia = ctx.ia();
    for address in addresses {
        ctx.step(format!("{address:?}"));
        let pair = ListenerAndClient::new(&ia);
        let _psp = ia.psp(ctx.qual(0), &pair.requests);
        pair.connect(&Address::ipv4(address), ctx.qual(0));
    }
}

/// Connects to all IPv4 addresses that the resolver returns for this host's name and for `localhost`, and to two
/// loopback addresses.
fn consumers_7_connect_to_each_address_of_the_resolver_succeeds(ctx: &Ctx) {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let resolved = [name.trim(), "localhost"].map(|name| (name, 0).to_socket_addrs());
    let addresses = resolved.into_iter().flatten().flatten().filter_map(|address| match address {
        SocketAddr::V4(address) => Some(address.ip().octets()),
        SocketAddr::V6(_) => None,
    });
    connects_to_all(ctx, addresses.chain([[127, 0, 0, 1], [127, 0, 1, 1]]));
}

/// Connects to the address of the interface for outgoing packets, if there is a route. The UDP socket looks it up and
/// sends nothing.
fn consumers_7_connect_to_the_address_of_the_outgoing_interface_succeeds(ctx: &Ctx) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a UDP socket can be created");
    let own = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    let own = own.ok().and_then(|address| match address.ip() {
        IpAddr::V4(address) => Some(address.octets()),
        IpAddr::V6(_) => None,
    });
    connects_to_all(ctx, own);
}

fn consumers_8_connect_of_an_ia_to_itself_succeeds(ctx: &Ctx) {
    let pair = ListenerAndClient::new(&ctx.ia());
    let _psp = pair.ia.psp(ctx.qual(0), &pair.requests);
    pair.connect(&pair.ia.address(), ctx.qual(0));
    let memory = pair.ia.memory(&pair.client.pz, 64);
    let into = pair.server.memory(64);
    memory.write_pattern(0, 64, 3);
    pair.server.post_recv(1, into.segment(0, 64));
    pair.client.post_send(2, memory.segment(0, 64));
    expect_dto(pair.server.recv.h(), 1, DAT_DTO_SUCCESS, 64);
    expect_dto(pair.client.request.h(), 2, DAT_DTO_SUCCESS, 64);
    into.expect_pattern(0, 64, 3);
}

fn consumers_8_four_concurrent_connects_of_an_ia_to_itself_succeed(ctx: &Ctx) {
    let ia = ctx.ia();
    let pairs: Vec<ListenerAndClient> = (0..4).map(|_| ListenerAndClient::new(&ia)).collect();
    let psps: Vec<Psp> = (0..4).map(|n| ia.psp(ctx.qual(n), &pairs[n as usize].requests)).collect();
    for (n, pair) in pairs.iter().enumerate() {
        connect_to(&pair.client.ep, &ia.address(), ctx.qual(n as u64));
    }
    for pair in pairs.iter().rev() {
        ok(dat_cr_accept(expect_cr(pair.requests.h()).cr_handle, pair.server.ep.h(), 0, null_mut()));
    }
    for pair in &pairs {
        pair.client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        pair.server.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    }
    drop(psps);
}
