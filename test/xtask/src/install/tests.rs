//! Tests of `install` and `uninstall`: files that are replaced, kept and removed in a temporary directory, destination
//! paths, and names that the loader's cache already has.

use clap::Parser as _;

use super::*;

fn goal(name: &str) -> (PathBuf, InstallTarget) {
    let root = std::env::temp_dir().join(format!("dapl-install-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(root.join("p/lib")).unwrap();
    let goal = parse(&["--prefix", "/p", "--destdir", root.to_str().unwrap()]).unwrap();
    (root, goal)
}

fn arguments(words: &[&str]) -> Option<cli::Install> {
    match cli::Cli::try_parse_from([&["xtask", "install"], words].concat()).ok()?.command {
        cli::Command::Install(install) => Some(install),
        _ => None,
    }
}

fn parse(words: &[&str]) -> Option<InstallTarget> {
    InstallTarget::new(&arguments(words)?).ok()
}

fn item(path: &str, what: ItemContent) -> Item {
    Item { path: path.into(), what }
}

fn some() -> Vec<Item> {
    vec![
        item("/p/lib/a.so.1", ItemContent::Text("library".into())),
        item("/p/lib/a.so", ItemContent::Link("a.so.1".into())),
        item("/p/lib/old.so", ItemContent::Yielding("a.so.1".into())),
        item("/p/share/dapl-rs/dat.conf", ItemContent::Text("sample".into())),
        item("/p/etc/dat.conf", ItemContent::Conf("sample".into())),
    ]
}

fn everything(root: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            all.insert(entry.path().strip_prefix(root).unwrap().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            }
        }
    }
    all
}

fn uninstall_from(root: &Path) {
    uninstall(&arguments(&["--prefix", "/p", "--destdir", root.to_str().unwrap()]).unwrap()).unwrap();
}

#[test]
fn destdir_and_prefix_determine_the_installed_paths() {
    let goal = parse(&["--prefix", "/usr", "--destdir", "/tmp/pkg", "--sysconfdir", "/etc"]).unwrap();
    assert_eq!(goal.at(Path::new("/usr/lib")), Path::new("/tmp/pkg/usr/lib"));
    assert_eq!(parse(&["--prefix", "/opt/x"]).unwrap().places.sysconfdir, Path::new("/opt/x/etc"));
    assert!(parse(&["--prefix"]).is_none() && parse(&["--prefix", "here"]).is_none());
    assert!(parse(&["--colour", "red"]).is_none());
}

#[test]
fn uninstall_removes_installed_files_only() {
    let (root, goal) = goal("goes");
    fs::write(root.join("p/lib/other"), "another's").unwrap();
    put_all(&goal, &some()).unwrap();
    assert_eq!(fs::read_link(root.join("p/lib/old.so")).unwrap(), Path::new("a.so.1"));
    put_all(&goal, &some()).unwrap();
    uninstall_from(&root);
    assert_eq!(everything(&root), BTreeSet::from(["p", "p/lib", "p/lib/other"].map(str::to_owned)));
    assert!(uninstall(&arguments(&["--prefix", "/p", "--destdir", root.to_str().unwrap()]).unwrap()).is_err());
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn install_and_uninstall_keep_existing_files() {
    let (root, goal) = goal("taken");
    symlink("theirs.so.2", root.join("p/lib/old.so")).unwrap();
    fs::create_dir_all(root.join("p/etc")).unwrap();
    fs::write(root.join("p/etc/dat.conf"), "the administrator's").unwrap();
    put_all(&goal, &some()).unwrap();
    uninstall_from(&root);
    assert_eq!(fs::read_link(root.join("p/lib/old.so")).unwrap(), Path::new("theirs.so.2"));
    assert_eq!(fs::read_to_string(root.join("p/etc/dat.conf")).unwrap(), "the administrator's");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn other_installs_are_found_in_the_loader_cache() {
    let list = "2 libs found in cache `/etc/ld.so.cache'\n\
                \tlibdaplofa.so.2 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libdaplofa.so.2\n\
                \tlibdaplscm.so.1 (libc6,x86-64) => /usr/local/lib/libdaplscm.so.1\n";
    let own = Path::new("/usr/local/lib");
    assert_eq!(cached(list, "libdaplofa.so.2", own), Some("/usr/lib/x86_64-linux-gnu/libdaplofa.so.2"));
    assert_eq!(cached(list, "libdaplscm.so.1", own), None, "an entry of this install is reported");
    assert_eq!(cached(list, "libdaplofa.so", own), None);
}

#[test]
fn uninstall_keeps_a_changed_dat_conf() {
    let (root, goal) = goal("changed");
    put_all(&goal, &some()).unwrap();
    fs::write(root.join("p/etc/dat.conf"), "changed").unwrap();
    uninstall_from(&root);
    assert_eq!(fs::read_to_string(root.join("p/etc/dat.conf")).unwrap(), "changed");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn install_removes_files_that_the_new_release_lacks() {
    let (root, goal) = goal("newer");
    let mut items = some();
    items.push(item("/p/lib/gone.so", ItemContent::Text("old".into())));
    put_all(&goal, &items).unwrap();
    put_all(&goal, &some()).unwrap();
    assert!(!root.join("p/lib/gone.so").exists() && root.join("p/lib/a.so.1").exists());
    uninstall_from(&root);
    assert_eq!(everything(&root), BTreeSet::from(["p", "p/lib"].map(str::to_owned)));
    fs::remove_dir_all(root).unwrap();
}
