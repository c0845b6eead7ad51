//! How the files of a package differ from those of `cargo xtask install`. Provider lines go to dat.conf.d, DAT 2.0
//! files to separate directories, programs have no library search path of their own, and the compiler flags come from
//! the environment (`CPPFLAGS`, `CFLAGS`, `LDFLAGS`).
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::Path;

use dapl_test::stage::{self, Profile, workspace};

use crate::Result;
use crate::layout::{self, InstallDirs, Item, ItemContent};
use crate::tree::Tree;

/// Files in dat.conf.d, and the start of their lines in the sample dat.conf.
const DROP_INS: [(&str, &str); 3] = [("sm", "sm0"), ("usnic", "usnic0"), ("verbs", "#verbs")];
/// Subdirectory for the DAT 2.0 libraries and headers.
const PRIVATE: &str = "dapl-rs";
/// The sample dat.conf, below the prefix.
const SAMPLE: &str = "share/dapl-rs/dat.conf";

/// Changes the items of an install into the items of a package.
pub(super) fn adapt(tree: &Tree, profile: Profile, places: &InstallDirs, items: &mut Vec<Item>) -> Result {
    let sample = places.prefix.join(SAMPLE);
    items.retain(|item| !matches!(item.what, ItemContent::Conf(_)) && item.path != sample);
    for (name, start) in DROP_INS {
        let path = places.sysconfdir.join(format!("dat.conf.d/{name}.conf"));
        let text = drop_in(start).map_err(|error| format!("{}: {error}", path.display()))?;
        items.push(Item { path, what: ItemContent::Text(text) });
    }
    move_version_2(places, items);
    let bin = tree.stage.root.join("bin");
    let (dtest, dapltest) = (bin.join("dtest.package"), bin.join("dapltest.package"));
    let flags = flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    tree.stage.compile(&dtest, &[&workspace().join("dtest/dtest.c")], &flags);
    let built = stage::built_for_package("dapltest", profile);
    stage::replace(&dapltest, |fresh| fs::copy(&built, fresh).map(drop)).map_err(|error| error.to_string())?;
    let anew: [(&Path, _); 2] = [(&tree.dtest, dtest), (&tree.dapltest, dapltest)];
    for item in items {
        if let ItemContent::File(from, _) = &mut item.what
            && let Some((_, program)) = anew.iter().find(|(staged, _)| from == staged)
        {
            from.clone_from(program);
        }
    }
    Ok(())
}

/// Moves DAT 2.0 files with names that other packages use into separate directories (docs/decisions/033). The dynamic
/// loader searches the separate library directory last.
fn move_version_2(places: &InstallDirs, items: &mut Vec<Item>) {
    let (include, private) = (places.prefix.join("include"), places.libdir.join(PRIVATE));
    for Item { path, what } in items.iter_mut() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.parent() == Some(&places.libdir) && layout::is_of_version_2(&name) {
            *path = private.join(&name);
            if let ItemContent::Yielding(target) = what {
                *what = ItemContent::Link(format!("../{target}"));
            }
        } else if let Ok(header) = path.strip_prefix(include.join("dat2")) {
            *path = include.join(PRIVATE).join("dat2").join(header);
        } else if let (ItemContent::Text(text), "dat2.pc") = (what, name.as_str()) {
            *text = text.replace("-L${libdir}", &format!("-L${{libdir}}/{PRIVATE}"));
            *text = text.replace("-I${includedir}", &format!("-I${{includedir}}/{PRIVATE}"));
        }
    }
    // The name contains the architecture, so that packages of several architectures can be installed. `zz` places the
    // directory after the standard library directories.
    let last = places.libdir.file_name().unwrap_or_default().to_string_lossy();
    let path = places.sysconfdir.join(format!("ld.so.conf.d/zz-{PRIVATE}-{last}.conf"));
    items.push(Item { path, what: ItemContent::Text(format!("{}\n", private.display())) });
}

/// Compiler flags for C programs. Debug information contains no path of this machine.
fn flags() -> Vec<String> {
    let set = ["CPPFLAGS", "CFLAGS", "LDFLAGS"].map(|name| std::env::var(name).unwrap_or_default());
    let set = set.iter().flat_map(|flags| flags.split_whitespace().map(str::to_owned));
    set.chain([format!("-ffile-prefix-map={}=.", workspace().display())]).collect()
}

/// Returns the lines of a provider in the sample dat.conf, with the comment above them.
fn drop_in(start: &str) -> io::Result<String> {
    let sample = fs::read_to_string(workspace().join("dat.conf"))?;
    let paragraph = sample.split("\n\n").find(|part| part.lines().any(|line| line.starts_with(start)));
    let paragraph = paragraph.ok_or_else(|| io::Error::other(format!("dat.conf has no line {start}")))?;
    Ok(format!("{}\n\n# dat.conf(5) explains the fields.\n", paragraph.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_dat_2_are_installed_in_separate_directories() {
        let places = InstallDirs { prefix: "/usr".into(), libdir: "/usr/lib/x".into(), sysconfdir: "/etc".into() };
        let item = |path: &str, what: ItemContent| Item { path: path.into(), what };
        let mut items = vec![
            item("/usr/lib/x/libdat.so.1", ItemContent::Link("libdat.so.1.2.0".into())),
            item("/usr/lib/x/libdat2.so.2", ItemContent::Link("libdat2.so.2.0.0".into())),
            item("/usr/lib/x/libdaplofa.so.2", ItemContent::Yielding("libdaplverbs.so.1".into())),
            item("/usr/include/dat2/udat.h", ItemContent::Text(String::new())),
            item("/usr/lib/x/pkgconfig/dat2.pc", ItemContent::Text("-L${libdir} -ldat2 -I${includedir}".into())),
        ];
        move_version_2(&places, &mut items);
        let expected = [
            item("/usr/lib/x/libdat.so.1", ItemContent::Link("libdat.so.1.2.0".into())),
            item("/usr/lib/x/dapl-rs/libdat2.so.2", ItemContent::Link("libdat2.so.2.0.0".into())),
            item("/usr/lib/x/dapl-rs/libdaplofa.so.2", ItemContent::Link("../libdaplverbs.so.1".into())),
            item("/usr/include/dapl-rs/dat2/udat.h", ItemContent::Text(String::new())),
            item(
                "/usr/lib/x/pkgconfig/dat2.pc",
                ItemContent::Text("-L${libdir}/dapl-rs -ldat2 -I${includedir}/dapl-rs".into()),
            ),
            item("/etc/ld.so.conf.d/zz-dapl-rs-x.conf", ItemContent::Text("/usr/lib/x/dapl-rs\n".into())),
        ];
        assert_eq!(items, expected);
    }

    #[test]
    fn each_provider_has_lines_in_the_sample_dat_conf() {
        for (name, start) in DROP_INS {
            let text = drop_in(start).unwrap();
            assert!(
                text.lines().any(|line| line.starts_with(start) && line.contains("nonthreadsafe")),
                "{name}: {text}"
            );
        }
    }
}
