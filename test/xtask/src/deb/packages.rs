//! Which packages there are, and which items go into each. Pure.
#![forbid(unsafe_code)]

/// The shared library; the others depend on it.
pub(crate) const LIBRARY: &str = "libdat1";

/// A binary package.
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: &'static str,
    /// Of the archive.
    pub(crate) section: &'static str,
    /// Whether packages of several architectures can be installed together.
    pub(crate) is_multi_arch: bool,
    /// Dependencies besides linked libraries; `{version}` is this version.
    pub(crate) depends: &'static [&'static str],
    /// Recommended packages.
    pub(crate) recommends: &'static [&'static str],
    /// Suggested packages.
    pub(crate) suggests: &'static [&'static str],
    /// One-line description.
    pub(crate) summary: &'static str,
    /// And in more of them.
    pub(crate) description: &'static [&'static str],
    /// Paths: a final `*` matches anything, `@` is the directory of libraries.
    files: &'static [&'static str],
    /// The provider's drop-in for dat.conf: its name, and how its lines of the sample begin.
    pub(crate) drop_in: Option<(&'static str, &'static str)>,
    /// lintian overrides with reasons.
    pub(crate) overrides: &'static [(&'static str, &'static str)],
}

/// Reasons: a provider's library is named by its transport and not by its package, and has no symbols file.
const PLUGIN: [(&str, &str); 3] = [
    ("package-name-doesnt-match-sonames", "A plugin of libdat.so.1, opened by name and never linked with."),
    ("no-symbols-control-file", "As above: no program is built against it."),
    ("no-shlibs", "As above."),
];

/// All of them, the library first.
pub(crate) const PACKAGES: [Package; 6] = [
    Package {
        name: LIBRARY,
        section: "libs",
        is_multi_arch: true,
        depends: &[],
        recommends: &["libdapl1-sm", "libdapl1-usnic"],
        suggests: &["libdapl1-verbs", "dapl1-utils"],
        summary: "Direct Access Transport API 1.2 (uDAPL), shared library",
        description: &[
            "uDAPL is an interface to networks that move data by themselves (RDMA).",
            "This library finds a provider for each interface adapter that dat.conf",
            "names, for programs that are linked with libdat.so.1.",
        ],
        files: &["@/libdat.so.1*", "/usr/share/man/man5/*", "/usr/share/man/man7/udapl.7"],
        drop_in: None,
        overrides: &[],
    },
    Package {
        name: "libdat-dev",
        section: "libdevel",
        is_multi_arch: true,
        depends: &["libdat1 (= {version})"],
        recommends: &[],
        suggests: &[],
        summary: "Direct Access Transport API 1.2 (uDAPL), development files",
        description: &[
            "Headers, what pkg-config needs, and manual pages of all functions, to build",
            "programs that use uDAPL 1.2.",
        ],
        files: &[
            "/usr/include/*",
            "@/libdat.so",
            "@/pkgconfig/*",
            "/usr/share/man/man3/*",
            "/usr/share/man/man7/dat_*",
        ],
        drop_in: None,
        overrides: &[],
    },
    Package {
        name: "libdapl1-sm",
        section: "libs",
        is_multi_arch: true,
        depends: &[],
        recommends: &[],
        suggests: &[],
        summary: "uDAPL 1.2 provider over shared memory",
        description: &["Connects processes of one user on one host, without any RDMA hardware."],
        files: &["@/libdaplsm.so.1", "/usr/share/man/man7/dapl_sm.7"],
        drop_in: Some(("sm", "sm0")),
        overrides: &PLUGIN,
    },
    Package {
        name: "libdapl1-usnic",
        section: "libs",
        is_multi_arch: true,
        depends: &[],
        recommends: &[],
        suggests: &[],
        summary: "uDAPL 1.2 provider over UDP",
        description: &["Connects processes of any hosts, without any RDMA hardware."],
        files: &["@/libdaplusnic.so.1", "/usr/share/man/man7/dapl_usnic.7"],
        drop_in: Some(("usnic", "usnic0")),
        overrides: &PLUGIN,
    },
    Package {
        name: "libdapl1-verbs",
        section: "libs",
        is_multi_arch: true,
        // Loaded at run time, so not among what the library is linked with.
        depends: &["libibverbs1 (>= 32.0)", "librdmacm1 (>= 32.0)"],
        recommends: &["ibverbs-providers"],
        suggests: &[],
        summary: "uDAPL 1.2 provider over rdma-core",
        description: &[
            "Connects hosts over InfiniBand, RoCE and iWARP. Lines of dat.conf that name",
            "libdaplcma or libdaplscm open it as well.",
        ],
        files: &["@/libdaplverbs.so.1", "@/libdaplcma.so*", "@/libdaplscm.so*", "/usr/share/man/man7/dapl_verbs.7"],
        drop_in: Some(("verbs", "#verbs")),
        overrides: &[
            PLUGIN[0],
            PLUGIN[1],
            PLUGIN[2],
            ("lacks-unversioned-link-to-shared-library", "As above."),
            ("link-to-shared-library-in-wrong-package", "Old dat.conf files name the library so."),
        ],
    },
    Package {
        name: "dapl1-utils",
        section: "net",
        is_multi_arch: false,
        depends: &[],
        recommends: &["libdapl1-sm"],
        suggests: &[],
        summary: "uDAPL 1.2 test programs",
        description: &["Programs that try out uDAPL 1.2 providers, between processes and between hosts."],
        files: &["/usr/bin/*1", "/usr/bin/datinfo", "/usr/share/man/man1/*"],
        drop_in: None,
        overrides: &[],
    },
];

impl Package {
    /// Whether an item that will be used at `path` belongs to it.
    pub(crate) fn has(&self, path: &str, libdir: &str) -> bool {
        self.files.iter().any(|pattern| {
            let pattern = pattern.replace('@', libdir);
            match pattern.split_once('*') {
                Some((start, end)) => {
                    path.len() >= start.len() + end.len() && path.starts_with(start) && path.ends_with(end)
                }
                None => path == pattern,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_one_package() {
        let owners = |path: &str| -> Vec<&str> {
            PACKAGES.iter().filter(|package| package.has(path, "/usr/lib/x")).map(|package| package.name).collect()
        };
        for (path, owner) in [
            ("/usr/lib/x/libdat.so.1.2.0", &["libdat1"][..]),
            ("/usr/lib/x/libdat.so", &["libdat-dev"]),
            ("/usr/include/dat/udat.h", &["libdat-dev"]),
            ("/usr/lib/x/libdaplcma.so", &["libdapl1-verbs"]),
            ("/usr/bin/dtest1", &["dapl1-utils"]),
            // Others have programs of these names.
            ("/usr/bin/dtest", &[]),
            ("/usr/lib/x/libdaplsm.so", &[]),
        ] {
            assert_eq!(owners(path), owner, "{path}");
        }
    }
}
