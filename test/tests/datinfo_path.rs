//! `datinfo doctor HOST` over working paths, through a firewall, with a small MTU, and against a program that listens
//! over usnic instead of a second doctor.
//!
//! Each impaired path is the loopback interface of a network namespace with nft rules. Without namespaces, ip or nft,
//! those tests print a message and are skipped.
#![forbid(unsafe_code)]

use std::process::Command;
use std::time::Duration;

use dapl_test::run::{Finished, Run, Sandbox, USNIC0};
use dapl_test::stage::{Profile, built, stage};
use serde_json::Value;

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A finding of the report: its grade, its text, and the remedy.
fn finding(finished: &Finished, about: &str) -> [String; 3] {
    let document: Value =
        serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:#?}"));
    let findings = document["findings"].as_array().unwrap();
    let one = findings.iter().find(|finding| finding["about"] == about);
    let one = one.unwrap_or_else(|| panic!("{about}: {document:#}"));
    ["grade", "found", "remedy"].map(|field| one[field].as_str().unwrap().to_owned())
}

#[test]
fn datinfo_probe_is_answered_by_a_listening_usnic_program() {
    let sandbox = Sandbox::new(&stage(Profile::Dev), Some(USNIC0));
    let server = sandbox.start(built("dapltest", Profile::Dev), &["-D", "usnic0", "-T", "S"]);
    server.wait_for("listening", TIMEOUT);
    let datinfo = built("datinfo", Profile::Dev);
    let visit = || sandbox.start(&datinfo, &["doctor", "127.0.0.1", "--json"]).finish(TIMEOUT);
    let well = visit();
    assert_eq!(well.status.code(), Some(0), "{well:#?}");
    assert_eq!(finding(&well, "path")[0], "ok");
    assert_eq!(finding(&well, "versions")[0], "note");
    let large = finding(&well, "large datagrams");
    assert!(large[0] == "ok" && large[1].starts_with("datagrams of up to 65"), "{large:?}");
    drop(server);
    let gone = visit();
    assert_eq!(gone.status.code(), Some(1), "{gone:#?}");
    let [grade, found, remedy] = finding(&gone, "path");
    assert!(grade == "bad" && found.contains("no program listens on this port"), "{found}");
    assert!(
        remedy.contains("start the server on that host first") && remedy.contains("datinfo doctor --serve"),
        "{remedy}"
    );
}

/// Output of the doctor in a namespace with these nft rules and a server. `None`: namespaces are not available.
fn behind(rules: &str, mtu: u32) -> Option<Finished> {
    let shell = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rn", "sh", "-c", script, "sh"]).arg(built("datinfo", Profile::Dev));
        command
    };
    let is_there = shell("ip link set lo up && nft add table inet t").output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        println!("skipped: this machine permits no network namespace, or ip or nft is missing");
        return None;
    }
    let script = format!(
        "ip link set lo up mtu {mtu} && nft add table inet t && \
         nft 'add chain inet t i {{ type filter hook input priority 0; }}' && \
         nft 'add chain inet t o {{ type filter hook output priority 0; }}' && nft '{rules}' || exit 3
         said=$(mktemp); \"$1\" doctor --serve --port 4000 >\"$said\" & server=$!
         until grep -q listening \"$said\"; do kill -0 $server || exit 4; sleep 0.05; done
         \"$1\" doctor 127.0.0.1 --port 4000 --json; status=$?
         kill $server; rm \"$said\"; exit $status"
    );
    Some(Run::start(shell(&script)).finish(TIMEOUT))
}

#[test]
fn datinfo_names_the_effect_of_a_firewall() {
    let port = "add rule inet t i udp dport 4000";
    let cases = [
        (format!("{port} drop"), "a firewall drops UDP", "permit UDP to port 4000 in its firewall"),
        (format!("{port} reject with icmpx type admin-prohibited"), "a firewall rejects UDP", "ip route get 127.0.0.1"),
        (
            "add rule inet t o udp dport 4000 drop".to_owned(),
            "the firewall of this host",
            "permit outgoing UDP to port 4000",
        ),
    ];
    for (rules, found, remedy) in cases {
        let Some(finished) = behind(&rules, 65_536) else { return };
        assert_eq!(finished.status.code(), Some(1), "{rules}: {finished:#?}");
        let path = finding(&finished, "path");
        assert!(path[0] == "bad" && path[1].contains(found) && path[2].contains(remedy), "{rules}: {path:?}");
    }
}

#[test]
fn datinfo_finds_the_exact_size_above_which_a_path_drops_datagrams() {
    let Some(finished) = behind("add rule inet t i udp length > 1480 drop", 65_536) else { return };
    assert_eq!(finished.status.code(), Some(0), "a slow path is an error: {finished:#?}");
    let [grade, found, remedy] = finding(&finished, "large datagrams");
    assert!(grade == "warning" && found.contains("the path carries 1472, and a device on the path drops"), "{found}");
    assert!(remedy.contains("mtu=1472"), "{remedy}");
}

#[test]
fn datinfo_reports_a_smaller_mtu_of_the_return_path() {
    let Some(finished) = behind("add rule inet t i udp sport 4000 udp length > 1308 drop", 9_000) else { return };
    let [grade, found, remedy] = finding(&finished, "large datagrams");
    assert!(grade == "warning" && found.contains("in the other direction only 1300 bytes arrive"), "{found}");
    assert!(remedy.contains("set the same MTU on the interfaces of both hosts"), "{remedy}");
    let narrow = behind("add rule inet t i udp length > 1008 drop", 9_000).unwrap();
    assert_eq!(narrow.status.code(), Some(1), "{narrow:#?}");
    let [grade, _, remedy] = finding(&narrow, "large datagrams");
    assert!(grade == "bad" && remedy.contains("usnic needs datagrams of 1200 bytes"), "{remedy}");
}
