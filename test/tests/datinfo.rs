//! `datinfo`: lists, checks, explanations, the doctor, and the command line. The registries are valid, broken or
//! missing; the providers work, refuse, crash or hang. Commands that edit dat.conf are in `datinfo_edit`, `top` is in
//! `datinfo_top`, and impaired paths between hosts are in `datinfo_path`.
//!
//! Most cases have their own dat.conf and providers (`registry/case.rs`). Exit status and output are checked. With
//! `--json` all output must be JSON, whatever a provider prints.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use case::Case;
use dapl_test::run::{Finished, Run};
use dapl_test::stage::{Profile, built, stage_with};
use serde_json::Value;

#[path = "registry/case.rs"]
#[allow(dead_code, reason = "the registry's suite uses the rest")]
mod case;
#[path = "datinfo/command_line.rs"]
mod command_line;

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Six registry lines: one adapter that opens, and five that fail for different reasons.
const SIX_LINES: &str = "fine u1.2 nonthreadsafe default {}/libfine.so.1 dapl.1.2 \"eth0 0\" \"\"\n\
                   gone u1.2 threadsafe default {}/libgone.so.1 dapl.1.2 \"\" \"\"\n\
                   later u2.0 threadsafe default {}/libfine.so.1 dapl.2.0 \"\" \"\"\n\
                   older u1.1 threadsafe default {}/libfine.so.1 dapl.1.1 \"\" \"\"\n\
                   closed u1.2 threadsafe default {}/libclosed.so.1 dapl.1.2 \"\" \"\"\n\
                   dead u1.2 threadsafe default {}/libdead.so.1 dapl.1.2 \"\" \"\"\n";

fn program() -> PathBuf {
    built("datinfo", Profile::Dev)
}

/// The `datinfo` command, with the case's variables in place of the `DAT_` and `DAPL_` variables of this process.
fn command(case: &Case, words: &str) -> Command {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DAT_") || name.to_string_lossy().starts_with("DAPL_") {
            command.env_remove(name);
        }
    }
    command.env("LD_LIBRARY_PATH", &case::stage().lib).envs(case.environment.iter().cloned());
    command.args(words.split_whitespace());
    command
}

fn datinfo(case: &Case, words: &str) -> Finished {
    let finished = Run::start(command(case, words)).finish(TIMEOUT);
    let place = case.directory.to_str().unwrap();
    let text = |text: &str| text.replace(place, "{}");
    Finished { stdout: text(&finished.stdout), stderr: text(&finished.stderr), status: finished.status }
}

#[track_caller]
fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:#?}"))
}

/// Creates a case with [`SIX_LINES`] in its own directory, because tests run in parallel.
fn six(test: &str) -> Case {
    let case = Case::new(&format!("datinfo-six-{test}"), SIX_LINES).provider("libfine.so.1", &[]);
    case.provider("libclosed.so.1", &["OPEN_CODE=0x80030003"]).provider("libdead.so.1", &["OPEN_DIES"])
}

#[test]
fn each_entry_is_listed_with_its_line_and_why_it_does_not_open() {
    let finished = datinfo(&six("listing"), "");
    assert_eq!(finished.status.code(), Some(0), "{finished:#?}");
    let paragraphs: Vec<&str> = finished.stdout.split("\n\n").collect();
    let flat = |paragraph: &str| paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(flat(paragraphs[0]), "fine opens DAT 1.2 nonthreadsafe: {}/libfine.so.1 \"eth0 0\" {}/dat.conf:1");
    assert_eq!(
        flat(paragraphs[1]),
        "gone does not open (DAT_PROVIDER_NOT_FOUND) DAT 1.2 threadsafe: {}/libgone.so.1 {}/dat.conf:2 {}/libgone.so.1: \
         cannot open shared object file: No such file or directory -> install that library, or correct lib_path"
    );
    assert!(flat(paragraphs[4]).contains("dead does not open"), "{finished:#?}");
    assert!(
        flat(paragraphs[4])
            .contains("the probe process was killed by signal 6 (SIGABRT) while opening or querying the adapter"),
        "{finished:#?}"
    );
    assert_eq!(paragraphs[5], "lines for DAT 2.0, not for libdat.so.1: 1 (later); --all shows them\n");
    assert_eq!(paragraphs.len(), 6);
    let is_long = |line: &&str| line.chars().count() > 80 && line.trim().contains(' ');
    assert_eq!(finished.stdout.lines().filter(is_long).count(), 0, "{finished:#?}");
    let named = datinfo(&six("json"), "--ia later");
    assert!(flat(&named.stdout).contains("wanted version 1.2, but this name has only 2.0"), "{named:#?}");
}

#[test]
fn lines_of_other_versions_are_summarized_in_one_line() {
    let others: String = (0..62)
        .map(|at| {
            format!("ofa-v2-mlx4_{at} u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"mlx4_{at} 1\" \"\"\n")
        })
        .collect();
    let line = "lines for DAT 2.0, not for libdat.so.1: 62 (ofa-v2-mlx4_0, ofa-v2-mlx4_1, ofa-v2-mlx4_2, ...)";
    let fine = SIX_LINES.lines().next().unwrap();
    let case = Case::new("datinfo-others", &format!("{others}{fine}\n")).provider("libfine.so.1", &[]);
    let listing = datinfo(&case, "");
    assert_eq!(listing.status.code(), Some(0), "{listing:#?}");
    let lines: Vec<_> = listing.stdout.lines().collect();
    assert_eq!((lines[0], lines[lines.len() - 3]), ("fine  opens", ""), "{lines:#?}");
    assert!(lines[lines.len() - 2..].join(" ").starts_with(line), "{lines:#?}");
    assert_eq!(datinfo(&case, "list").stdout, "fine\n");
    assert_eq!(datinfo(&case, "-l --all").stdout.lines().count(), 63);
    let second = datinfo(&case, "list --api 2.0");
    assert_eq!(second.stdout.lines().next(), Some("ofa-v2-mlx4_0"), "{second:#?}");
    assert_eq!(json(&datinfo(&case, "list --json")), serde_json::json!({"names": ["fine"]}));
    let doctor = datinfo(&case, "doctor").stdout;
    assert_eq!(doctor.lines().filter(|line| line.contains("ofa-v2")).count(), 1, "{doctor}");
    let library = doctor.lines().filter_map(|line| Some(line.split_once("DAT 2.0: libdaplofa.so.2, ")?.1));
    let found = library.filter_map(|line| line.strip_prefix("named in 62 lines of dat.conf, "));
    // Whether the library exists depends on the machine.
    assert_eq!(
        found.filter(|found| found.starts_with("is ") || found.starts_with("does not exist")).count(),
        1,
        "{doctor}"
    );
    assert!(doctor.contains(&format!("note     registry: {line}\n")), "{doctor}");
    let settings = datinfo(&case, "-c").stdout;
    assert_eq!(settings.lines().filter(|line| line.contains("ofa-v2")).count(), 1, "{settings}");
    let document = json(&datinfo(&case, "--json"));
    assert_eq!(document["adapters"].as_array().unwrap().len(), 63, "the JSON output lists all adapters");
    let refusal = datinfo(&case, "--ia unknown").stdout;
    assert!(refusal.replace("\n ", "").contains("open one of these: fine\n"), "{refusal}");
}

#[test]
fn datinfo_check_reports_bad_names_libraries_and_parameters() {
    let conf = "a u1.2 nonthreadsafe default {}/libfine.so.1 dapl.1.2 \"\" \"\"\n\
                a u1.2 nonthreadsafe default libc.so.6 dapl.1.2 \"\" \"\"\n\
                a u1.2 threadsafe default libc.so.6 dapl.1.2 \"\" \"\"\n\
                b u1.2 nonthreadsafe default {}/libgone.so.1 dapl.1.2 \"\" \"\"\n\
                c u1.2 nonthreadsafe default libgone.so.1 dapl.1.2 \"\" \"\"\n\
                d u1.2 nonthreadsafe default libdaplusnic.so.1 dapl.1.2 \"eth0 mtu=x colour=red\" \"\"\n\
                e u2.0 nonthreadsafe default libgone.so.2 dapl.2.0 \"\" \"\"\n";
    let case = Case::new("datinfo-warnings", conf).provider("libfine.so.1", &[]);
    let _ = stage_with(Profile::Dev, &["daplusnic"]);
    let finished = datinfo(&case, "check");
    assert_eq!(finished.status.code(), Some(1), "{finished:#?}");
    let warnings: Vec<_> = finished.stdout.lines().filter(|line| !line.contains(" is for DAT ")).collect();
    assert_eq!(
        warnings,
        [
            "read: {}/dat.conf (DAT_OVERRIDE)",
            "{}/dat.conf:2: ia_name: \"a\" 1.2 nonthreadsafe repeats the entry at {}/dat.conf:1; \
             this entry is used only if the library of that entry does not load or does not register the name",
            "{}/dat.conf:4: lib_path: {}/libgone.so.1 does not exist; install that library, or correct lib_path",
            "{}/dat.conf:5: lib_path: libgone.so.1 does not exist: neither in libdat's directory nor in the loader's search path; \
             install that library, or correct lib_path",
            "{}/dat.conf:6: ia_params: mtu: \"x\" is not a number from 1200 to 65507; the default is used",
            "{}/dat.conf:6: ia_params: \"colour=red\" is not understood; datinfo -c shows the settings of usnic",
            "entries: 7; errors and warnings: 5; invalid lines: 0",
        ]
    );
    let document = json(&datinfo(&case, "check --json"));
    let wrong: Vec<_> = document["diagnostics"].as_array().unwrap().iter().map(|one| one["wrong"] == true).collect();
    assert_eq!(wrong, [false, true, true, true, true], "a duplicate entry is only a warning");
    let twice = Case::new("datinfo-twice", &conf.lines().take(2).map(|line| format!("{line}\n")).collect::<String>());
    let twice = twice.provider("libfine.so.1", &[]);
    assert_eq!(datinfo(&twice, "check").status.code(), Some(0));
}

#[test]
fn six_causes_of_open_failure_are_distinct_in_json() {
    let case = six("doctor");
    let finished = datinfo(&case, "--json");
    let document = json(&finished);
    let reasons: Vec<_> = document["adapters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|adapter| {
            let reason = &adapter["reason"];
            (
                adapter["name"].as_str().unwrap(),
                reason["kind"].as_str().unwrap_or("-"),
                reason["number"].as_str().unwrap_or("-"),
            )
        })
        .collect();
    assert_eq!(
        reasons,
        [
            ("fine", "-", "-"),
            ("gone", "library", "0x800a0000"),
            ("later", "major-version", "0x800a0063"),
            ("older", "minor-version", "0x800a0064"),
            ("closed", "device", "0x80030003"),
            ("dead", "crash", ""),
        ]
    );
    let one = |words: &str| {
        let finished = datinfo(&case, &format!("--json {words}"));
        assert_eq!(finished.status.code(), Some(1), "{finished:#?}");
        json(&finished)["adapters"][0]["reason"].clone()
    };
    let (name, safety) = (one("--ia unknown"), one("--ia fine --thread-safe"));
    assert_eq!((name["kind"].as_str(), safety["kind"].as_str()), (Some("name"), Some("thread-safety")));
    for reason in
        document["adapters"].as_array().unwrap()[1..].iter().map(|adapter| &adapter["reason"]).chain([&name, &safety])
    {
        assert!(
            !reason["cause"].as_str().unwrap().is_empty() && !reason["remedy"].as_str().unwrap().is_empty(),
            "{reason}"
        );
    }
}

#[test]
fn hanging_provider_does_not_delay_other_providers() {
    let conf = "slow u1.2 threadsafe default {}/libslow.so.1 dapl.1.2 \"\" \"\"\n\
                stuck u1.2 threadsafe default {}/libstuck.so.1 dapl.1.2 \"\" \"\"\n\
                fine u1.2 threadsafe default {}/libfine.so.1 dapl.1.2 \"\" \"\"\n";
    let case = Case::new("datinfo-hang", conf).provider("libfine.so.1", &[]);
    let case = case.provider("libslow.so.1", &["OPEN_HANGS"]).provider("libstuck.so.1", &["CLOSE_HANGS"]);
    let finished = datinfo(&case, "--json --timeout 20");
    let document = json(&finished);
    let adapters = &document["adapters"];
    assert_eq!(adapters[0]["reason"]["kind"], "hang", "{document:#}");
    assert!(
        adapters[0]["reason"]["cause"]
            .as_str()
            .unwrap()
            .starts_with("no answer within 20 s while opening or querying the adapter")
    );
    assert_eq!((&adapters[1]["opens"], &adapters[2]["opens"]), (&Value::Bool(true), &Value::Bool(true)));
    assert!(adapters[1]["close"].as_str().unwrap().contains("while closing the adapter"), "{document:#}");
    assert_eq!(finished.status.code(), Some(0));
}

#[test]
fn datinfo_prints_attributes_with_their_units() {
    let stage = stage_with(Profile::Dev, &["daplsm"]);
    let place = format!("{}/libdaplsm.so.1", stage.lib.display());
    let case = Case::new("datinfo-sm", &format!("sm0 u1.2 threadsafe default {place} dapl.1.2 \"{{}}/sm\" \"\"\n"));
    let finished = datinfo(&case, "-v");
    assert_eq!(finished.status.code(), Some(0), "{finished:#?}");
    let row = |name: &str| {
        let line = finished.stdout.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {finished:#?}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("iov_ownership_on_return"), "iov_ownership_on_return DAT_IOV_CONSUMER");
    assert!(row("completion_flags_supported").contains(" DAT_COMPLETION_SUPPRESS_FLAG |"), "{finished:#?}");
    assert_eq!(row("evd_stream_merging_supported"), "evd_stream_merging_supported true for all combinations");
    let too_long = |line: &&str| line.len() > 80 && line.trim_start().contains(' ');
    assert_eq!(finished.stdout.lines().find(too_long), None, "{finished:#?}");
    assert_eq!(row("max_message_size"), "max_message_size 2147483648 bytes");
    assert_eq!((row("adapter_name"), row("is_thread_safe")), ("adapter_name sm0".into(), "is_thread_safe true".into()));
    let attributes = json(&datinfo(&case, "-v --json"))["adapters"][0]["attributes"].clone();
    let count = |list: &str| attributes[list].as_array().unwrap().len();
    // The lists leave out the address pointer, and count and pointer of each of the three lists of named attributes.
    // Their contents are printed separately.
    assert_eq!((count("ia"), count("provider")), (35 - 5, 26 - 2));
    assert!(count("provider_specific") > 0 && attributes["address"].is_string(), "{attributes:#}");
    let versions = datinfo(&case, "--version");
    for file in ["datinfo 0.1.0\n", "/libdat.so.1.2.0 0.1.0\n", "/libdaplsm.so.1 "] {
        assert!(versions.stdout.contains(file), "{file}: {versions:#?}");
    }
}

#[test]
fn datinfo_lists_every_variable_with_value_and_origin() {
    let case = Case::new("datinfo-env", "").with("DAPL_SPIN_US", "512").with("DAPL_USNIC_CONGESTION", "maybe");
    let case = case.with("DAPL_SPIN_UP", "1").with("DAPL_ACK_TIMER", "0x10");
    let finished = datinfo(&case, "-e --json");
    let document = json(&finished);
    let variables = document["variables"].as_array().unwrap();
    let page = std::fs::read_to_string(dapl_test::stage::workspace().join("docs/settings.md")).unwrap();
    for variable in variables {
        let name = variable["variable"].as_str().unwrap();
        assert!(page.contains(&format!("`{name}`")), "docs/settings.md has no {name}");
    }
    let one = |name: &str| {
        let found = variables.iter().find(|variable| variable["variable"] == name).unwrap();
        (found["value"].as_str().unwrap(), found["origin"].as_str().unwrap(), found["trouble"].is_string())
    };
    assert_eq!(one("DAPL_SPIN_US"), ("512", "environment", false));
    assert_eq!(one("DAPL_ACK_TIMER"), ("16", "environment", false));
    assert_eq!(
        (one("DAPL_USNIC_CONGESTION"), one("DAPL_SM_RMA")),
        (("bbr", "default", true), ("auto", "default", false))
    );
    assert_eq!(document["unknown"][0]["variable"], "DAPL_SPIN_UP");
    assert_eq!(document["unknown"][0]["nearest"], "DAPL_SPIN_US");
    let text = datinfo(&case, "-e").stdout;
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    assert!(text.contains("DAPL_SPIN_US=512 us  (environment; default 150)\n"), "{text}");
    assert!(text.contains("DAPL_SPIN_UP is set and has no effect; the nearest known name is DAPL_SPIN_US\n"));
}

#[test]
fn the_doctor_reports_a_variable_without_effect_and_its_replacement() {
    let doctor = datinfo(&Case::new("datinfo-idle", "").with("DAPL_WR_MAX", "500"), "doctor");
    let lines =
        "warning  variables: DAPL_WR_MAX is set and has no effect\n         -> use the attributes max_recv_dtos";
    assert!(doctor.stdout.contains(lines), "{doctor:#?}");
}

#[test]
fn datinfo_shows_that_ia_params_override_the_environment() {
    let conf = "u u1.2 threadsafe default libdaplusnic.so.1 dapl.1.2 \"eth7 mtu=1400 congestion=maybe x=y\" \"\"\n";
    let case = Case::new("datinfo-conf", conf).with("DAPL_USNIC_MTU", "9000").with("DAPL_USNIC_PORT", "99");
    let finished = datinfo(&case, "-c");
    for line in [
        "registry: {}/dat.conf (DAT_OVERRIDE)",
        "  address=eth7  (ia_params; default the first interface that is up and is not the loopback interface)",
        "  mtu=1400 bytes  (ia_params; default 65507)",
        "  port=99  (environment; default 17471)",
        "  congestion=bbr  (default)",
        "      ia_params: \"maybe\" is not bbr or cubic; the default is used",
        "  \"x=y\" in its ia_params is not understood",
    ] {
        assert!(
            finished.stdout.lines().any(|known| known.trim_end() == line.trim_end() || known.trim() == line.trim()),
            "{line}: {finished:#?}"
        );
    }
    let document = json(&datinfo(&case, "-c --json"));
    assert_eq!(document["adapters"][0]["not_understood"][0], "x=y");
}

#[test]
fn datinfo_explains_each_line_and_error_of_a_file() {
    let conf = "a u1.2 threadsafe default l dapl.1.2 \"p q\" \"\"\nb u1.2 ThreadSafe default l dapl.1.2 \"\" \"\"\n\
                c u1.2 threadsafe nondefault l dapl.1.2 \"\" \"\"\n\"\n";
    let case = Case::new("datinfo-check", conf);
    let file = case.directory.join("dat.conf");
    let finished = datinfo(&case, &format!("check {}", file.display()));
    assert_eq!(finished.status.code(), Some(1), "{finished:#?}");
    for text in [
        "{}/dat.conf:1: \"a\" is for DAT 1.2 programs, also those that request thread safety: library l, parameters \"p q\"\n",
        "{}/dat.conf:2:8: thread_safety: \"ThreadSafe\"; allowed is threadsafe or nonthreadsafe; this record is dropped\n",
        "{}/dat.conf:3: \"c\" is marked nondefault; write default instead\n",
        "entries: 1; ",
    ] {
        assert!(finished.stdout.contains(text), "{text}: {finished:#?}");
    }
    let document = json(&datinfo(&case, "check --json"));
    assert_eq!((document["well"].as_bool(), document["entries"][0]["name"].as_str()), (Some(false), Some("a")));
    let good = Case::new("datinfo-good", "a u1.2 threadsafe default libc.so.6 dapl.1.2 \"\" \"\"\n");
    assert_eq!(datinfo(&good, "check").status.code(), Some(0));
    let missing = datinfo(&good, "check /nonexistent/dat.conf");
    assert_eq!(missing.status.code(), Some(2));
    missing.expect_failure("/nonexistent/dat.conf: No such file or directory");
    assert_eq!(datinfo(&Case::new("datinfo-empty", ""), "check").status.code(), Some(1));
}

#[test]
fn datinfo_reports_an_unusable_registry_and_continues() {
    let missing = Case::new("datinfo-none", "").bare().with("DAT_OVERRIDE", "/nonexistent/dat.conf");
    let finished = datinfo(&missing, "");
    assert_eq!(finished.status.code(), Some(1), "{finished:#?}");
    assert!(
        finished.stdout.starts_with("cannot read /nonexistent/dat.conf (DAT_OVERRIDE): No such file"),
        "{finished:#?}"
    );
    let directory = Case::new("datinfo-directory", "").bare().with("DAT_OVERRIDE", "/proc/self");
    assert!(datinfo(&directory, "").stdout.contains("not a regular file"));
    let finished = datinfo(&missing, "discover");
    assert_eq!(finished.status.code(), Some(0), "{finished:#?}");
    let conf = dat::conf::parse(&"discovered".into(), finished.stdout.as_bytes());
    assert!(conf.diagnostics.is_empty() && conf.records.len() >= 2, "{conf:?}");
    assert_eq!(conf.records[0].key.name, b"sm0");
    assert!(
        conf.records.iter().all(|record| !record.key.thread_safe),
        "a line says threadsafe, which other libdats do not find: {conf:?}"
    );
}

#[test]
fn datinfo_explains_dat_numbers_and_names() {
    let case = Case::new("datinfo-explain", "");
    let finished = datinfo(&case, "explain 0x4005 -2146828189 DAT_DTO_ERR_REMOTE_ACCESS ETIMEDOUT");
    assert_eq!(finished.status.code(), Some(0), "{finished:#?}");
    let flat = finished.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        "0x4005 DAT_CONNECTION_EVENT_DISCONNECTED = 0x4005 (DAT_EVENT_NUMBER, DAT 1.2 and 2.0) either side has",
        "DAT_PROVIDER_NOT_FOUND DAT_MAJOR_NOT_FOUND = 0x800a0063 (return code, DAT 1.2 only)",
        "DAT_DTO_ERR_REMOTE_ACCESS = 0x6 (DAT_DTO_COMPLETION_STATUS, DAT 1.2 and 2.0) the peer does not permit",
        "ETIMEDOUT = 110 (errno) Connection timed out",
    ] {
        assert!(flat.contains(text), "{text}: {finished:#?}");
    }
    assert!(finished.stdout.lines().all(|line| line.len() <= 80), "{finished:#?}");
    let unknown = datinfo(&case, "explain DAT_DTO_ERR_REMOTE_ACESS 0x4006");
    assert_eq!(unknown.status.code(), Some(2));
    unknown.expect_failure("\"DAT_DTO_ERR_REMOTE_ACESS\" is not a name of DAT; similar: DAT_DTO_ERR_REMOTE_ACCESS");
    assert!(unknown.stdout.contains("DAT_CONNECTION_EVENT_BROKEN"), "{unknown:#?}");
    let document = json(&datinfo(&case, "explain --json 0x4005"));
    assert_eq!(document[0]["readings"][0]["versions"], serde_json::json!(["1.2", "2.0"]), "{document:#}");
}

#[test]
fn datinfo_doctor_names_faults_and_remedies() {
    let finished = datinfo(&six("closed"), "doctor --json");
    let document = json(&finished);
    let findings = document["findings"].as_array().unwrap();
    assert_eq!(finished.status.code(), Some(i32::from(document["well"] != true)), "{document:#}");
    let about = |about: &str| findings.iter().filter(|finding| finding["about"] == about).count();
    for subject in
        ["libdat", "adapter", "shared memory", "cross-memory copy", "locked memory", "socket buffers", "UDP port"]
    {
        assert!(about(subject) > 0, "{subject}: {document:#}");
    }
    for finding in findings.iter().filter(|finding| finding["grade"] == "bad") {
        assert!(!finding["remedy"].as_str().unwrap().is_empty(), "{finding}");
    }
    let none = datinfo(&Case::new("datinfo-doctor-none", ""), "doctor");
    assert_eq!(none.status.code(), Some(1));
    assert!(none.stdout.contains("no adapter opens\n         -> datinfo discover"), "{none:#?}");
}

#[test]
fn datinfo_doctor_probes_the_path_to_datinfo_doctor_serve() {
    let case = Case::new("datinfo-pair", "");
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let alone = datinfo(&case, &format!("doctor 127.0.0.1 --port {port}"));
    assert_eq!(alone.status.code(), Some(1), "{alone:#?}");
    assert!(alone.stdout.contains(&format!("run datinfo doctor --serve --port {port} on that host")), "{alone:#?}");
    let mut command = command(&case, &format!("doctor --serve --port {port}"));
    command.stderr(Stdio::inherit());
    let server = Run::start(command);
    server.wait_for("listening on UDP port", TIMEOUT);
    // An invalid datagram does not end the doctor.
    let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for noise in [&b""[..], b"x", &[0xff; 9000], b"DATINFO2", &[0; 65_507]] {
        other.send_to(noise, ("127.0.0.1", port)).unwrap();
    }
    let pair = datinfo(&case, &format!("doctor 127.0.0.1:{port} --json"));
    let document = json(&pair);
    assert_eq!((pair.status.code(), document["well"].as_bool()), (Some(0), Some(true)), "{document:#}");
    let large = document["findings"].as_array().unwrap().iter().filter(|finding| finding["about"] == "large datagrams");
    assert!(large.clone().count() == 1 && large.clone().all(|finding| finding["grade"] == "ok"), "{document:#}");
    other.set_nonblocking(true).unwrap();
    assert!(other.recv(&mut [0; 16]).is_err(), "invalid data got a reply");
}
