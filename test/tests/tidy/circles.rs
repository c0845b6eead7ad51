//! Import cycles: sets of files in which each file imports all others, directly or through files of the set.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, expand};

/// Path of a module; empty for the crate root.
type Module = Vec<String>;

/// Import cycles of more than `most` files, as module paths. Imports between a module and its own submodules do not
/// count.
pub(crate) fn larger_than(most: usize, folder: &str, files: &[Source]) -> Vec<Vec<String>> {
    let modules: BTreeMap<Module, &Source> =
        files.iter().filter_map(|file| Some((module(file.path.strip_prefix(folder)?), file))).collect();
    let direct: BTreeMap<&Module, BTreeSet<&Module>> =
        modules.iter().map(|(module, file)| (module, targets(module, &file.product_code(), &modules))).collect();
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        direct.keys().map(|module| (*module, reachable(module, &direct))).collect();
    let mut circles = BTreeSet::new();
    for (module, others) in &reached {
        let circle: Vec<&Module> = others.iter().copied().filter(|other| reached[other].contains(module)).collect();
        if circle.len() > most {
            circles.insert(circle);
        }
    }
    circles.into_iter().map(|circle| circle.into_iter().map(|module| module.join("/")).collect()).collect()
}

fn module(path: &str) -> Module {
    let mut parts: Module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// The modules that a file imports through `crate::` and `super::`.
fn targets<'m>(own: &Module, code: &str, modules: &'m BTreeMap<Module, &Source>) -> BTreeSet<&'m Module> {
    let mut paths = super::source::imports(code);
    for (at, _) in code.match_indices("super::") {
        if code[..at].ends_with("super::") {
            continue;
        }
        let mut rest = &code[at..];
        let mut prefix = own.clone();
        while let Some(below) = rest.strip_prefix("super::") {
            rest = below;
            prefix.pop();
        }
        expand(&mut rest, &mut prefix, &mut paths);
    }
    let nearest = |path: Module| {
        (1..=path.len()).rev().find_map(|length| modules.get_key_value(&path[..length])).map(|(module, _)| module)
    };
    let is_apart = |other: &&Module| !other.starts_with(own) && !own.starts_with(other);
    paths.into_iter().filter_map(nearest).filter(is_apart).collect()
}

fn reachable<'m>(from: &Module, direct: &BTreeMap<&'m Module, BTreeSet<&'m Module>>) -> BTreeSet<&'m Module> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&Module> = direct[from].iter().copied().collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(&direct[module]);
        }
    }
    found
}

#[test]
fn import_cycle_through_several_files_is_found() {
    let file = |path: &str, text: &str| Source { path: format!("x/src/{path}"), text: text.to_owned() };
    let files = [
        file("lib.rs", "use crate::a::A;"),
        file("a/mod.rs", "use crate::b::B; mod part;"),
        file("a/part.rs", "use super::A;"),
        file("b.rs", "use super::c::{C, D};"),
        file("c.rs", "fn f() { crate::a::g() } // crate::d"),
        file("d.rs", "use crate::a::A;"),
    ];
    assert_eq!(larger_than(2, "x/src/", &files), [["a", "b", "c"]]);
    assert!(larger_than(3, "x/src/", &files).is_empty());
}
