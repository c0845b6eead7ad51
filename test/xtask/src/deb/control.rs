//! Metadata of packages: control file, symbols, changelog, copyright, and lintian overrides.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::Command;

use dapl_test::stage::{PROVIDERS, workspace};

use super::packages::{LIBRARY, Package};
use super::{release, write};
use crate::Result;
use crate::quiet::{run_quietly, text_of};

/// The source package.
const SOURCE: &str = "dapl-rs";
/// The maintainer: `DEBFULLNAME` and `DEBEMAIL` take precedence, as with Debian's own tools.
const MAINTAINER: (&str, &str) = ("dapl-rs packagers", "packages@dapl-rs.invalid");
/// The revision of the packaging.
const REVISION: &str = "1";

/// Data common to all packages of a build.
pub(super) struct Control {
    arch: String,
    version: String,
    maintainer: String,
    /// The time of the release, in seconds.
    pub(super) epoch: u64,
    /// The same as mails have it.
    date: String,
    changes: Vec<String>,
}

impl Control {
    /// For this architecture.
    pub(super) fn of(arch: &str) -> Result<Self> {
        let release = release::current()?;
        let date =
            |format: &str| text_of(Command::new("date").env("LC_ALL", "C").args(["-u", "-d", &release.date, format]));
        let env = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
        Ok(Control {
            arch: arch.to_owned(),
            version: format!("{}-{REVISION}", release.version),
            maintainer: format!("{} <{}>", env("DEBFULLNAME", MAINTAINER.0), env("DEBEMAIL", MAINTAINER.1)),
            epoch: date("+%s")?.trim().parse().map_err(|_| "date tells no seconds".to_owned())?,
            date: date("+%a, %d %b %Y %H:%M:%S +0000")?.trim().to_owned(),
            changes: release.changes,
        })
    }

    /// Of the finished package.
    pub(super) fn file_name(&self, package: &Package) -> String {
        format!("{}_{}_{}.deb", package.name, self.version, self.arch)
    }

    /// The section of the page of dat.conf, which must not be another package's file.
    pub(super) fn dat_conf_section(&self) -> &'static str {
        "5dat1"
    }

    /// Files below the package's root, to be packed by gzip but for the last ones.
    pub(super) fn documents(&self, package: &Package) -> Result<Vec<(String, String)>> {
        let place = format!("usr/share/doc/{}", package.name);
        let upstream = fs::read_to_string(workspace().join("docs/CHANGELOG.md")).map_err(|error| error.to_string())?;
        let mut all = vec![
            (format!("{place}/changelog"), upstream),
            (format!("{place}/changelog.Debian"), self.changelog()),
            (format!("{place}/copyright"), copyright()?),
        ];
        if !package.overrides.is_empty() {
            let overrides = package.overrides.iter().map(|(tag, why)| format!("# {why}\n{}: {tag}\n", package.name));
            all.push((format!("usr/share/lintian/overrides/{}", package.name), overrides.collect()));
        }
        Ok(all)
    }

    fn changelog(&self) -> String {
        let mut text = format!("{SOURCE} ({}) unstable; urgency=medium\n\n", self.version);
        for change in &self.changes {
            let mut line = "  *".to_owned();
            for word in change.replace('`', "").split(' ') {
                if line.len() + word.len() > 78 {
                    text += &(line + "\n");
                    line = "   ".to_owned();
                }
                line += &format!(" {word}");
            }
            text += &(line + "\n");
        }
        text + &format!("\n -- {}  {}\n", self.maintainer, self.date)
    }

    /// Writes the directory DEBIAN.
    pub(super) fn describe(&self, package: &Package, root: &Path) -> Result {
        let debian = root.join("DEBIAN");
        let put = |name: &str, text: &str| write(&debian.join(name), text).map_err(|error| error.to_string());
        let binaries = binaries(root)?;
        if package.name == LIBRARY {
            put("symbols", &self.symbols()?)?;
            put("shlibs", &format!("libdat 1 {LIBRARY}\n"))?;
        }
        if binaries.iter().any(|path| path.contains(".so.")) {
            put("triggers", "activate-noawait ldconfig\n")?;
        }
        if let Some((name, _)) = package.drop_in {
            put("conffiles", &format!("/etc/dat.conf.d/{name}.conf\n"))?;
        }
        let sums = "find . -path ./DEBIAN -prune -o -type f -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' md5sum";
        put("md5sums", &text_of(Command::new("sh").args(["-c", sums]).current_dir(root))?)?;
        let size = text_of(Command::new("sh").args(["-c", SIZE]).current_dir(root))?;
        let linked = self.linked(&binaries, root)?;
        put("control", &self.control(package, size.trim(), &linked))
    }

    fn control(&self, package: &Package, size: &str, linked: &[String]) -> String {
        let depends = package.depends.iter().map(|one| one.replace("{version}", &self.version));
        let depends: Vec<String> = depends.chain(linked.iter().cloned()).collect();
        let mut text = format!(
            "Package: {}\nSource: {SOURCE}\nVersion: {}\nArchitecture: {}\nMaintainer: {}\nInstalled-Size: {size}\n",
            package.name, self.version, self.arch, self.maintainer
        );
        let lists = [
            ("Depends", depends.join(", ")),
            ("Recommends", package.recommends.join(", ")),
            ("Suggests", package.suggests.join(", ")),
        ];
        for (field, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
            text += &format!("{field}: {list}\n");
        }
        text += &format!("Section: {}\nPriority: optional\n", package.section);
        if package.is_multi_arch {
            text += "Multi-Arch: same\n";
        }
        text += &format!("Description: {}\n", package.summary);
        package.description.iter().for_each(|line| text += &format!(" {line}\n"));
        text
    }

    /// All names of the library, since this version of the package.
    fn symbols(&self) -> Result<String> {
        let map = fs::read_to_string(workspace().join("dat/libdat.map")).map_err(|error| error.to_string())?;
        let since = self.version.split('-').next().unwrap_or_default();
        let mut names: Vec<&str> = map
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| word.starts_with("dat_") || word.starts_with("dats_"))
            .collect();
        names.sort_unstable();
        let lines = names.iter().map(|name| format!(" {name}@DAT_1.2 {since}\n"));
        Ok(format!("libdat.so.1 {LIBRARY} #MINVER#\n DAT_1.2@DAT_1.2 {since}\n") + &lines.collect::<String>())
    }

    /// The packages with what these are linked with, by Debian's own tool.
    fn linked(&self, binaries: &[String], root: &Path) -> Result<Vec<String>> {
        if binaries.is_empty() {
            return Ok(Vec::new());
        }
        // It wants a source package around it, and finds our library in the tree of its package.
        let work = root.parent().expect("packages lie side by side");
        let source = work.join("source");
        let text = format!("Source: {SOURCE}\n\nPackage: x\nArchitecture: any\n");
        write(&source.join("debian/control"), &text).map_err(|error| error.to_string())?;
        let mut tool = Command::new("dpkg-shlibdeps");
        tool.current_dir(&source).arg("-O").arg(format!("-S{}", work.join(LIBRARY).display()));
        let output = text_of(tool.args(binaries.iter().map(|path| format!("-e{}", root.join(path).display()))))?;
        let list = output.lines().find_map(|line| line.strip_prefix("shlibs:Depends=")).unwrap_or_default();
        let own = format!("{} ", root.file_name().unwrap_or_default().display());
        let list = list.split(", ").filter(|one| !one.is_empty() && !format!("{one} ").starts_with(&own));
        Ok(list.map(str::to_owned).collect())
    }
}

/// The size of all files, in KiB each, as policy counts it.
const SIZE: &str = "find . -path ./DEBIAN -prune -o -type f -printf '%s\\n' | awk '{ k += int(($1 + 1023) / 1024) } END { print k + 0 }'";

/// Programs and libraries below a package's root.
fn binaries(root: &Path) -> Result<Vec<String>> {
    let find = "find usr -type f \\( -path 'usr/bin/*' -o -name '*.so.*' \\) 2>/dev/null | LC_ALL=C sort";
    let list = text_of(Command::new("sh").args(["-c", find]).current_dir(root))?;
    Ok(list.lines().map(str::to_owned).collect())
}

/// Licences of this project and of all linked crates.
fn copyright() -> Result<String> {
    let read = |name: &str| fs::read_to_string(workspace().join(name)).map_err(|error| format!("{name}: {error}"));
    let mit = read("LICENSE-MIT")?;
    let holder = mit.lines().find_map(|line| line.strip_prefix("Copyright ")).unwrap_or("the dapl-rs authors");
    let indented = |text: &str| -> String {
        text.lines().map(|line| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") }).collect()
    };
    let terms = mit.split_once("\n\nPermission").map(|(_, rest)| format!("Permission{rest}")).unwrap_or(mit.clone());
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: {SOURCE}\nComment:\n \
         Linked into the libraries are these packages of crates.io, each under the\n licence that stands behind it:\n{}\n\
         Files: *\nCopyright: {holder}\nLicense: Expat or Apache-2.0\n\nLicense: Expat\n{}\nLicense: Apache-2.0\n On Debian \
         systems the text of this licence is in\n /usr/share/common-licenses/Apache-2.0.\n",
        indented(&crates()?),
        indented(&terms)
    ))
}

/// The packages that the libraries are made of besides our own, with their licences.
fn crates() -> Result<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).args(["tree", "--offline", "--locked", "--edges", "normal", "--prefix", "none"]);
    cargo.args(["--format", "{p} ({l})", "-p", "dat"]);
    for provider in PROVIDERS {
        cargo.args(["-p", provider]);
    }
    let output = run_quietly(&mut cargo)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<&str> = text
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty() && !line.contains("(/"))
        .collect();
    lines.sort_unstable();
    lines.dedup();
    Ok(lines.join("\n"))
}
