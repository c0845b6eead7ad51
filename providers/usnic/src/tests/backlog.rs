//! Tests a listener that gets more simultaneous requests than the limit of half-open requests.

use super::*;

/// Number of connection attempts.
const CLIENTS: u32 = 2_500;
/// Number of half-open requests when the server begins to accept: the limit of one /24 network.
const PENDING: usize = 2_048;

#[test]
fn requests_beyond_the_half_open_limit_wait_and_all_connect() {
    let (here, there) = addresses();
    let (client, server) = (Ia::open(&here, ""), Ia::open(&there, ""));
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(|attempt| client.connect(&server, 7, conn(attempt))).collect();
    // The server accepts nothing until the limit of half-open requests is reached.
    let mut requests: Vec<_> = (0..PENDING).map(|_| server.request()).collect();
    for attempt in 0..CLIENTS {
        let request = requests.pop().unwrap_or_else(|| server.request());
        request.accept_into(Arc::new(FakeQp::default()), b"you may", conn(CLIENTS + attempt), CAPS).unwrap();
        let (conn, _) = client.object_layer.events.wait(established).0;
        let established = &clients[conn.attempt as usize];
        established.wait_until_open();
        // The client's first packet confirms the connection, so the server frees the table entry of the request.
        established.post(&client.device, b"first");
    }
    assert_eq!(client.object_layer.events.has(event), None, "no connect may be rejected");
}
