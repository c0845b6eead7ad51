//! Tests of the host checks, most of them with the data of other machines.

use super::*;

fn grade(finding: &Finding) -> &'static str {
    finding.grade.grade_name()
}

#[test]
fn memlock_grade_depends_on_limit_privilege_and_devices() {
    let one = |limit, may_lock, devices| memlock(limit, 1 << 20, may_lock, devices);
    assert_eq!(grade(&one(Some(65_536), false, true)), "bad");
    assert!(one(Some(65_536), false, true).remedy.starts_with("ulimit -l 1024 "));
    assert_eq!(grade(&one(Some(65_536), false, false)), "note", "without a device no memory is locked");
    assert_eq!(grade(&one(Some(65_536), true, true)), "ok");
    assert_eq!([grade(&one(None, false, true)), grade(&one(Some(1 << 20), false, true))], ["ok", "ok"]);
}

#[test]
fn causes_of_refused_process_vm_copies_have_different_remedies() {
    let scopes = [None, Some(0), Some(1), Some(2), Some(3)].map(|scope| copy_finding(Ok(()), 0, scope));
    assert_eq!(scopes.each_ref().map(grade), ["ok", "ok", "warning", "warning", "warning"]);
    assert!(scopes[3].remedy.contains("sysctl") && scopes[4].remedy.starts_with("reboot"));
    assert!(scopes[2].remedy.starts_with("DAPL_SM_CMA=open") && !scopes[3].remedy.contains("DAPL_SM_CMA"));
    let filtered = copy_finding(Err("not permitted".to_owned()), 2, Some(0));
    assert!(filtered.found.contains("seccomp") && filtered.remedy.contains("process_vm_readv"), "{filtered:?}");
    assert!(!copy_finding(Err("no such call".to_owned()), 0, None).found.contains("seccomp"));
}

#[test]
fn low_buffer_limit_has_a_sysctl_remedy_and_low_space_is_a_warning() {
    let low = ceiling_finding("rmem_max", Some(212_992), 8 << 20);
    assert_eq!((grade(&low), low.remedy.as_str()), ("warning", "sysctl -w net.core.rmem_max=8388608"));
    assert_eq!(grade(&ceiling_finding("rmem_max", Some(8 << 20), 8 << 20)), "ok");
    assert_eq!(grade(&ceiling_finding("rmem_max", None, 8 << 20)), "note");
    assert_eq!([grade(&space("/s", 64 << 20)), grade(&space("/s", (64 << 20) - 1))], ["ok", "warning"]);
}

/// Returns the findings about RDMA devices for a machine with these files: `class/...` as in `/sys/class/infiniband`,
/// `dev/...` as in `/dev/infiniband`.
fn machine(name: &str, files: &[(&str, &str)]) -> Vec<Finding> {
    let root = std::env::temp_dir().join(format!("datinfo-host-{}-{name}", std::process::id()));
    for (file, text) in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut findings = Vec::new();
    devices(&root.join("class"), &root.join("dev"), &mut findings);
    let _ = fs::remove_dir_all(&root);
    findings
}

#[test]
fn doctor_reports_missing_device_nodes_links_and_gids() {
    assert_eq!(machine("none", &[]).iter().map(grade).collect::<Vec<_>>(), ["note"]);
    let good = [
        ("class/rxe0/device/infiniband_verbs/uverbs0/x", ""),
        ("class/rxe0/ports/1/state", "4: ACTIVE\n"),
        ("class/rxe0/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
        ("dev/rdma_cm", ""),
        ("dev/uverbs0", ""),
    ];
    assert_eq!(machine("good", &good).iter().map(grade).collect::<Vec<_>>(), ["ok", "ok", "ok"]);
    let down = [
        ("class/rxe0/ports/1/state", "1: DOWN\n"),
        ("class/rxe0/ports/2/state", "4: ACTIVE\n"),
        ("class/rxe0/ports/2/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
    ];
    let findings = machine("down", &down);
    let remedies: Vec<_> = findings.iter().map(|finding| (grade(finding), finding.remedy.as_str())).collect();
    assert_eq!(remedies.len(), 4, "{findings:?}");
    assert_eq!(remedies[0], ("bad", "modprobe ib_uverbs"));
    assert!(remedies[1].1.starts_with("bring its link up") && remedies[2].1.starts_with("give its network device"));
    assert_eq!(remedies[3], ("bad", "modprobe rdma_ucm"));
}

#[test]
fn doctor_reports_a_udp_port_in_use() {
    let taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let finding = port_finding(taken.local_addr().unwrap().port());
    assert!(finding.found.contains("is in use"), "{finding:?}");
}

#[test]
fn checks_of_a_missing_base_directory_use_its_first_existing_ancestor() {
    let missing = std::env::temp_dir().join(format!("datinfo-missing-{}/a/b", std::process::id()));
    let findings = base_directory(&missing);
    assert!(findings.iter().all(|finding| grade(finding) != "bad"), "{findings:?}");
    assert!(findings[0].found.starts_with(&std::env::temp_dir().display().to_string()), "{findings:?}");
    assert_eq!(grade(&base_directory(Path::new("/proc/missing/a"))[0]), "warning", "/proc has no space");
}
