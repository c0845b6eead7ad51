//! Files that hide others.
//!
//! Part of `tests/registry.rs`.

use std::process::Command;

use crate::case::probe;

/// Runs the probe where `/etc` has these files and no others; none where that needs more rights than there are.
fn with_files_in_etc(files: &[(&str, &str)], words: &str, debug: &str) -> Option<String> {
    let mut script = "set -e; mount -t tmpfs none /etc; mkdir -p /etc/rdma /etc/dat.conf.d".to_owned();
    for (name, line) in files {
        script += &format!("; printf '%s\\n' '{line}' > /etc/{name}");
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", &format!("{script}; exec \"$0\" \"$@\"")]);
    command.arg(probe("registry_probe")).args(words.split(' ')).env_remove("DAT_OVERRIDE").env("DAT_DBG_TYPE", debug);
    let output = command.output().ok()?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    if !out.starts_with("open: ") {
        println!("skipped: no mount name space of one's own here: {err}");
        return None;
    }
    Some(err)
}

fn line(name: &str) -> String {
    format!("{name} u1.2 nonthreadsafe default libgone.so.1 dapl.1.2 \"\" \"\"")
}

#[test]
fn a_name_in_a_hidden_file_is_refused_with_its_place() {
    let (one, two) = (line("one"), line("two"));
    let files = [("dat.conf", one.as_str()), ("rdma/dat.conf", two.as_str())];
    let Some(err) = with_files_in_etc(&files, "open two 1 2 0 open three 1 2 0", "1") else { return };
    let lines: Vec<_> = err.lines().collect();
    assert_eq!(
        lines[0],
        "libdat: cannot open \"two\": no interface adapter of this name in /etc/dat.conf; /etc/rdma/dat.conf:1 has it, \
         but was not read: only the first dat.conf that exists counts; copy that line to /etc/dat.conf, or set \
         DAT_OVERRIDE=/etc/rdma/dat.conf"
    );
    let rest = "no other name can be opened either: add a line for it";
    assert_eq!(
        lines[1],
        format!("libdat: cannot open \"three\": no interface adapter of this name in /etc/dat.conf; {rest}")
    );
    assert_eq!(lines.len(), 2, "{lines:#?}");
}
