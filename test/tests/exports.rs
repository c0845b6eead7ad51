//! The built `libdat.so.1` and `libdat2.so.2` have what old programs were linked against: soname, symbols, symbol
//! version, dependencies. Provider libraries export two symbols, and depend on `libdat.so.1`. No library is unloaded by
//! dlclose.
//!
//! The ELF parser is in this file: small enough to be reviewed, and independent of other tools.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use dapl_test::stage::{PROVIDERS, Profile, stage, stage_with, workspace};

#[test]
fn libdat_exports_exactly_the_names_of_the_reference() {
    let library = Elf::libdat();
    let facts = fs::read(workspace().join("test/abi/dat-1.2-symbols.json")).unwrap();
    let facts: serde_json::Value = serde_json::from_slice(&facts).unwrap();
    let facts = &facts["linux"]["libdat"];
    let names = facts["exported"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
    let node = facts["version_node"].as_str().unwrap();
    let wanted: BTreeSet<_> = names.map(|name| (name, node.to_owned())).collect();
    assert_eq!(wanted.len(), 73);
    // The version node itself is an absolute symbol with the name of the version.
    let found: BTreeSet<_> = library.exports().into_iter().filter(|(name, _)| name != node).collect();
    assert_eq!(found, wanted);
    assert_eq!(library.dynamic_names(SONAME), [facts["soname"].as_str().unwrap()]);
}

#[test]
fn libdat2_exports_exactly_the_names_of_the_reference() {
    let library = Elf::libdat2();
    let facts = fs::read(workspace().join("test/abi/dat-2.0-symbols.json")).unwrap();
    let facts: serde_json::Value = serde_json::from_slice(&facts).unwrap();
    let facts = &facts["libraries"]["libdat2.so.2"];
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let names = facts["exported"].as_array().unwrap().iter();
    let wanted: BTreeSet<_> = names.map(|entry| (text(&entry["name"]), text(&entry["version"]))).collect();
    assert_eq!(wanted.len(), 74);
    let nodes: BTreeSet<String> = facts["version_nodes"].as_array().unwrap().iter().map(text).collect();
    assert_eq!(nodes, ["DAT_2.0".to_owned()].into());
    let found: BTreeSet<_> = library.exports().into_iter().filter(|(name, _)| !nodes.contains(name)).collect();
    assert_eq!(found, wanted);
    assert_eq!(library.dynamic_names(SONAME), [facts["soname"].as_str().unwrap()]);
}

#[test]
fn libdats_depend_only_on_the_c_library() {
    let allowed = ["libc.so.6", "libgcc_s.so.1", "libm.so.6", "libdl.so.2", "libpthread.so.0"];
    for needed in [Elf::libdat(), Elf::libdat2()].iter().flat_map(|library| library.dynamic_names(NEEDED)) {
        assert!(allowed.contains(&needed.as_str()) || needed.starts_with("ld-linux"), "{needed}");
    }
}

#[test]
fn libdats_are_linked_nodelete_and_bound_at_load() {
    for flags in [Elf::libdat(), Elf::libdat2()].iter().map(Elf::flags) {
        assert_ne!(flags & FLAG_NODELETE, 0, "not linked nodelete");
        assert_ne!(flags & FLAG_NOW, 0, "not bound at load");
    }
}

/// Symbol version of a provider's exports.
const PROVIDER_NODE: &str = "DAPL_PROVIDER_1";

#[test]
fn providers_export_two_versioned_names_and_are_linked_nodelete() {
    let stage = stage(Profile::Dev);
    for provider in PROVIDERS {
        let name = format!("lib{provider}.so.1");
        let library = Elf::read(&stage.lib.join(&name));
        // The version node itself is also a symbol.
        let exported: BTreeSet<_> = library.exports().into_iter().filter(|(name, _)| name != PROVIDER_NODE).collect();
        let wanted = ["dat_provider_fini", "dat_provider_init"].map(|name| (name.to_owned(), PROVIDER_NODE.to_owned()));
        assert_eq!(exported, wanted.into(), "{name}");
        assert_eq!(library.dynamic_names(SONAME), [name.as_str()]);
        assert!(library.dynamic_names(NEEDED).contains(&"libdat.so.1".to_owned()), "{name} does not need libdat");
        assert_ne!(library.flags() & FLAG_NODELETE, 0, "{name} is not linked nodelete");
    }
}

/// rdma-core is loaded only when an adapter is opened, so the provider library loads without rdma-core.
#[test]
fn verbs_provider_is_not_linked_to_libibverbs_or_librdmacm() {
    let verbs = Elf::read(&stage(Profile::Dev).lib.join(dapl_test::stage::VERBS)).dynamic_names(NEEDED);
    assert!(!verbs.iter().any(|name| name.contains("ibverbs") || name.contains("rdmacm")), "{verbs:?}");
}

/// The bytes of a shared object (64-bit, little-endian).
struct Elf(Vec<u8>);

/// The required fields of a section header.
struct Section {
    kind: u32,
    offset: usize,
    size: usize,
    link: usize,
}

impl Elf {
    fn libdat() -> Self {
        Self::read(&stage_with(Profile::Dev, &[]).lib.join("libdat.so.1"))
    }

    fn libdat2() -> Self {
        Self::read(&stage_with(Profile::Dev, &[]).lib.join("libdat2.so.2"))
    }

    fn read(library: &Path) -> Self {
        let bytes = fs::read(library).unwrap();
        assert_eq!(bytes[..6], *b"\x7fELF\x02\x01", "the file is no ELF file of 64 bits, little-endian");
        Self(bytes)
    }

    fn number<const N: usize>(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(&self.0[at..at + N]);
        u64::from_le_bytes(bytes)
    }

    fn text(&self, at: usize) -> String {
        let end = self.0[at..].iter().position(|byte| *byte == 0).unwrap();
        String::from_utf8(self.0[at..at + end].to_vec()).unwrap()
    }

    fn sections(&self) -> Vec<Section> {
        let (start, count) = (self.number::<8>(0x28) as usize, self.number::<2>(0x3c) as usize);
        let header = |index: usize| {
            let at = start + index * 64;
            Section {
                kind: self.number::<4>(at + 4) as u32,
                offset: self.number::<8>(at + 24) as usize,
                size: self.number::<8>(at + 32) as usize,
                link: self.number::<4>(at + 40) as usize,
            }
        };
        (0..count).map(header).collect()
    }

    fn section(&self, kind: u32) -> (Section, usize) {
        let sections = self.sections();
        let strings = |section: &Section| sections[section.link].offset;
        let (at, strings) = sections
            .iter()
            .enumerate()
            .find(|(_, section)| section.kind == kind)
            .map(|(at, section)| (at, strings(section)))
            .unwrap_or_else(|| panic!("no section of kind {kind:#x}"));
        (self.sections().swap_remove(at), strings)
    }

    fn dynamic(&self, tag: u64) -> Vec<u64> {
        let (section, _) = self.section(SHT_DYNAMIC);
        let entries = (section.offset..section.offset + section.size).step_by(16);
        entries.filter(|at| self.number::<8>(*at) == tag).map(|at| self.number::<8>(at + 8)).collect()
    }

    fn dynamic_names(&self, tag: u64) -> Vec<String> {
        let (_, strings) = self.section(SHT_DYNAMIC);
        self.dynamic(tag).into_iter().map(|offset| self.text(strings + offset as usize)).collect()
    }

    fn flags(&self) -> u64 {
        self.dynamic(FLAGS_1).iter().sum()
    }

    /// Defined symbols with their versions.
    fn exports(&self) -> Vec<(String, String)> {
        let (symbols, strings) = self.section(SHT_DYNSYM);
        let (versions, _) = self.section(SHT_GNU_VERSYM);
        let defined = (0..symbols.size / 24).filter_map(|index| {
            let at = symbols.offset + index * 24;
            let undefined = self.number::<2>(at + 6) == 0;
            let version = self.number::<2>(versions.offset + index * 2) & 0x7fff;
            (!undefined).then(|| (self.text(strings + self.number::<4>(at) as usize), self.version_name(version)))
        });
        defined.collect()
    }

    fn version_name(&self, version: u64) -> String {
        if version == GLOBAL {
            return String::new();
        }
        let (section, strings) = self.section(SHT_GNU_VERDEF);
        let mut at = section.offset;
        loop {
            let (index, aux, next) =
                (self.number::<2>(at + 4), self.number::<4>(at + 12) as usize, self.number::<4>(at + 16) as usize);
            if index == version {
                return self.text(strings + self.number::<4>(at + aux) as usize);
            }
            assert_ne!(next, 0, "version {version} has no name");
            at += next;
        }
    }
}

const SHT_DYNAMIC: u32 = 6;
const SHT_DYNSYM: u32 = 11;
const SHT_GNU_VERDEF: u32 = 0x6fff_fffd;
const SHT_GNU_VERSYM: u32 = 0x6fff_ffff;
const NEEDED: u64 = 1;
const SONAME: u64 = 14;
const FLAGS_1: u64 = 0x6fff_fffb;
/// The version number of an unversioned symbol.
const GLOBAL: u64 = 1;
const FLAG_NOW: u64 = 0x1;
const FLAG_NODELETE: u64 = 0x8;
