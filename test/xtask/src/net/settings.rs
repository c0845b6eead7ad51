//! Settings of usnic (congestion control, buffer, ports, key): a transfer with each setting succeeds over a lossy link,
//! and a peer without the key gets no connection.
#![forbid(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::Check;
use super::flows::SUCCESS_LINE;
use super::rule::Rule;
use super::setting::{Environment, Family, LIMIT, Setting};
use super::wire::Wire;
use crate::Result;

/// Name of a check, and the variables that it sets on both sides.
const SETTINGS: [(&str, Environment<'static>); 2] =
    [("cubic", &[("DAPL_USNIC_CONGESTION", "cubic")]), ("small_buffers", &[("DAPL_USNIC_BUFFER", "65536")])];
pub(super) const KEY: &str = "DAPL_USNIC_KEY";

/// All checks of this module.
pub(super) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for (name, set) in SETTINGS {
        checks.push(Check::new(format!("set::{name}"), move |s, wire| lossy(s, wire, set)));
    }
    checks.push(Check::new("set::ports_that_a_firewall_lets_in", |s, wire| {
        let _firewall = wire.apply_to_both(Rule::Only { ports: "17000, 7000-7009" })?;
        lossy(s, wire, &[("DAPL_USNIC_PORT", "17000"), ("DAPL_USNIC_DATA_PORTS", "7000-7009")])
    }));
    checks.push(Check::new("key::shared", |s, wire| {
        let key = KeyFile::new("shared", "a secret that both sides of this test have")?;
        lossy(s, wire, &[(KEY, &key.path())])
    }));
    checks.push(Check::new("key::another", |s, wire| {
        let (ours, theirs) =
            (KeyFile::new("ours", "a secret that one side has")?, KeyFile::new("theirs", "another one, here")?);
        let set: [Environment<'_>; 2] = [&[(KEY, &ours.path())], &[(KEY, &theirs.path())]];
        without_key(s, wire, set, "sealed with another key than that in")
    }));
    checks.push(Check::new("key::none", |s, wire| {
        let key = KeyFile::new("servers", "a secret that only the server has")?;
        without_key(s, wire, [&[(KEY, &key.path())], &[]], "it is not sealed, and this adapter has key=")
    }));
    checks
}

/// Transfers over a lossy link, with the same settings on both sides.
fn lossy(setting: &Setting, wire: &Wire, set: Environment<'_>) -> Result {
    let _loss = wire.apply_to_both(Rule::Loss { per_mille: 10 })?;
    setting.flow_with(wire, Family::V4, &["-2"], [set, set]).end_well(SUCCESS_LINE)
}

/// Checks that the connect fails with an event, that the server's consumer gets no request, and that the server's log
/// names the cause.
fn without_key(setting: &Setting, wire: &Wire, set: [Environment<'_>; 2], cause: &str) -> Result {
    let pair = setting.begin(wire, Family::V4, &[], set);
    let client = pair.client.finish(LIMIT);
    let has_event = client.status.code() == Some(1) && client.stderr.contains("the connection: event");
    let log = pair.server.so_far();
    match has_event && log.contains(cause) && !pair.server.has_ended() && !pair.server.has_printed("flowing") {
        true => Ok(()),
        false => Err(format!(
            "the client must get a connection event and exit with status 1, and the server must get no request and log \
             {cause:?}; the client: {}\n{}{}\nthe server: {log}",
            client.status, client.stdout, client.stderr
        )),
    }
}

/// A key file that only its owner may read, removed when dropped.
pub(super) struct KeyFile(PathBuf);

impl KeyFile {
    pub(super) fn new(name: &str, secret: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("dapl-key-{}-{name}", std::process::id()));
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(secret.as_bytes()));
        written.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(KeyFile(path))
    }

    pub(super) fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        // A file that cannot be removed is harmless.
        let _ = fs::remove_file(&self.0);
    }
}
