//! The guide's production program (`test/c/production.c`): a client loses no reply while its server is killed and
//! restarted.
#![forbid(unsafe_code)]

use std::time::Duration;

use dapl_test::run::{self, SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

fn survives_its_server(adapter: &str, registry: &str) {
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(registry));
    let program = run::program(&stage, "test/c/production.c");
    let start_server = || {
        let server = sandbox.start(&program, &[adapter, "server", "4711"]);
        server.wait_for("server: ready", TIMEOUT);
        server
    };
    let mut server = start_server();
    let client = sandbox.start(&program, &[adapter, "client", "4711", "127.0.0.1", "20000"]);
    client.wait_for("1000 answered", TIMEOUT);
    server.kill();
    server.finish(TIMEOUT);
    let server = start_server();
    let client = client.finish(TIMEOUT);
    client.expect_success("client: OK, 20000 answers");
    assert!(
        !client.stdout.contains(" 0 reconnects"),
        "the client did not reconnect after the kill of the server: {client:#?}"
    );
    server.finish(TIMEOUT).expect_success("server: OK");
}

#[test]
fn client_loses_no_answer_when_its_server_is_killed_over_sm() {
    survives_its_server("sm0", SM0);
}

#[test]
fn client_loses_no_answer_when_its_server_is_killed_over_usnic() {
    survives_its_server("usnic0", USNIC0);
}
