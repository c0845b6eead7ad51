//! The structure rules: dependencies of packages, permitted imports, import cycles, files with unsafe code, reasons of
//! unsafe blocks, file heads, version scripts, the MIT licence, words and paths of a developer's machine that must not
//! be used, and type names that must have one meaning.
//!
//! The rules are tables in `rules`; the code here only compares. Each exception is in a table with its reason.
//! Exceptions for imports, unsafe code and words must still be needed. Reads sources only: nothing is built.
#![forbid(unsafe_code)]

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/words.rs"]
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use dapl_test::stage::workspace;
use rules::{
    CIRCLE_FOLDERS, FORBIDDEN_UNSAFE, LAYERS, MAX_CIRCLE, NOT_EXPORTED, PACKAGES, SHARED_NAMES, SHORT_NAMES,
    UNDECLARED, UNSAFE_FILES, UPWARD_IMPORTS,
};
use source::{Source, files, imports, word};

#[test]
fn packages_have_only_the_permitted_dependencies() {
    let manifests = files(&["toml"]).into_iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    let manifests: Vec<_> = manifests.filter(|file| !file.path.starts_with("test/fuzz/")).collect();
    let ours: BTreeSet<String> = manifests.iter().filter_map(|file| value(&file.text, "name")).collect();
    let mut wrong = Vec::new();
    for manifest in &manifests {
        let package = manifest.path.strip_suffix("/Cargo.toml").unwrap();
        let Some((_, allowed)) = PACKAGES.iter().find(|(name, _)| *name == package) else {
            wrong.push(format!("{package} is not in the table"));
            continue;
        };
        for name in dependencies(&manifest.text).into_iter().filter(|name| ours.contains(name)) {
            if !allowed.contains(&name.as_str()) {
                wrong.push(format!("{package} depends on {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(manifests.len(), PACKAGES.len(), "the table names a package that does not exist");
}

#[test]
fn modules_import_only_from_lower_layers() {
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for (folder, layers) in LAYERS {
        let mut found = BTreeSet::from(["entries".to_owned()]);
        for file in files(&["rs"]) {
            let Some(rest) = file.path.strip_prefix(folder) else { continue };
            let path: Vec<&str> = rest.trim_end_matches(".rs").split('/').collect();
            // lib.rs declares the modules, so it may import all; so may fakes, tests, and a mod.rs that only groups
            // modules.
            if path == ["lib"] || path[0] == "fake" || is_test(&file.path) || is_grouping(&path, layers) {
                continue;
            }
            let own = if is_entry(&file.path) { Some("entries".to_owned()) } else { module_of(&path, layers) };
            let Some(layer) = own.as_deref().and_then(|own| layer_of(layers, own)) else {
                wrong.push(format!("{}: its module is in no layer", file.path));
                continue;
            };
            let own = module_of(&path, layers);
            found.extend(own.clone());
            for target in imports(&file.product_code()) {
                let target: Vec<&str> = target.iter().map(String::as_str).collect();
                // `crate::Name` is the provider's root type, a type parameter of its event sinks. A module may import
                // its own root.
                if target[0].starts_with(char::is_uppercase) || target[0] == path[0] && target.len() == 1 {
                    continue;
                }
                let Some(target) = module_of(&target, layers) else {
                    wrong.push(format!("{} imports {}, which is in no layer", file.path, target.join("/")));
                    continue;
                };
                let known = UPWARD_IMPORTS.iter().position(|(path, to, _)| *path == file.path && *to == target);
                if own.as_ref() == Some(&target) || layer_of(layers, &target).is_some_and(|below| below < layer) {
                    continue;
                }
                match known {
                    Some(_) => drop(used.insert(known)),
                    None => wrong.push(format!("{} imports {target}, which is not below it", file.path)),
                }
            }
        }
        for module in layers.concat() {
            if !found.contains(module) {
                wrong.push(format!("{folder}{module} is in a layer, but has no file"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let idle: Vec<_> =
        (0..UPWARD_IMPORTS.len()).filter(|at| !used.contains(&Some(*at))).map(|at| UPWARD_IMPORTS[at]).collect();
    assert!(idle.is_empty(), "exceptions without an effect: {idle:#?}");
}

#[test]
fn import_cycles_contain_at_most_the_permitted_modules() {
    let mut sources = files(&["rs"]);
    sources.retain(|file| !is_test(&file.path) && !file.path.contains("/src/fake/"));
    let mut wrong = Vec::new();
    for folder in CIRCLE_FOLDERS {
        for circle in circles::larger_than(MAX_CIRCLE, folder, &sources) {
            wrong.push(format!("{folder}: {} import each other", circle.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_code_is_only_in_the_listed_files() {
    let sources = files(&["rs"]);
    let mut wrong = Vec::new();
    for file in &sources {
        let code = file.code();
        let is_allowed =
            is_entry(&file.path) || is_test(&file.path) || UNSAFE_FILES.iter().any(|(path, _)| *path == file.path);
        let places = word(&code, "unsafe");
        if !is_allowed && !places.is_empty() {
            let line = code[..places[0]].matches('\n').count() + 1;
            wrong.push(format!("{}:{line}: unsafe code outside its files", file.path));
        }
    }
    for (path, why) in UNSAFE_FILES {
        match sources.iter().find(|file| file.path == *path) {
            None => wrong.push(format!("{path} ({why}) is gone")),
            Some(file) if word(&file.code(), "unsafe").is_empty() => wrong.push(format!("{path} needs no unsafe code")),
            Some(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn listed_modules_forbid_unsafe_code() {
    let open = |path: &&&str| {
        let text = fs::read_to_string(workspace().join(path)).unwrap_or_default();
        !text.contains("#![forbid(unsafe_code)]")
    };
    let wrong: Vec<_> = FORBIDDEN_UNSAFE.iter().filter(open).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_blocks_have_a_reason() {
    /// Lines above an unsafe block that are searched for its reason, since the statement may begin earlier.
    const ABOVE: usize = 8;
    let mut wrong = Vec::new();
    for file in files(&["rs"]) {
        let code = file.code();
        let lines: Vec<&str> = file.text.lines().collect();
        for at in word(&code, "unsafe") {
            let opens = code[at + "unsafe".len()..].trim_start();
            if opens.starts_with('{') || opens.starts_with("impl") {
                let line = code[..at].matches('\n').count();
                let near = &lines[line.saturating_sub(ABOVE)..=line];
                if !near.iter().any(|line| line.contains("SAFETY")) {
                    wrong.push(format!("{}:{}: no SAFETY above", file.path, line + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_begin_with_a_doc_comment() {
    let has_head = |file: &Source| match file.path.ends_with(".rs") {
        true => file.text.starts_with("//! "),
        false => file.text.starts_with("/*") || file.text.starts_with("//"),
    };
    let wrong: Vec<_> = files(&["rs", "c", "cc", "h", "map"])
        .into_iter()
        .filter(|file| !has_head(file))
        .map(|file| file.path)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn mit_licence_has_its_complete_text() {
    let text = fs::read_to_string(workspace().join("LICENSE-MIT")).unwrap();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in rules::MIT_LICENCE {
        assert!(words.contains(part), "LICENSE-MIT lacks this text: {part}");
    }
}

#[test]
fn version_scripts_name_all_declared_functions() {
    for (map, headers, count) in
        [("dat/libdat.map", "dat/include/dat/", 73), ("dat/libdat2.map", "dat/include/dat2/", 74)]
    {
        let map = fs::read_to_string(workspace().join(map)).unwrap();
        let exported: BTreeSet<String> = map
            .lines()
            .filter_map(|line| Some(line.trim().strip_suffix(';')?.to_owned()))
            .filter(|name| name.starts_with("dat"))
            .collect();
        let mut declared = BTreeSet::from([UNDECLARED.to_owned()]);
        for header in files(&["h"]).into_iter().filter(|file| file.path.starts_with(headers)) {
            declared.extend(prototypes(&header.text).into_iter().filter(|name| !NOT_EXPORTED.contains(&name.as_str())));
        }
        assert_eq!(exported, declared);
        assert_eq!(exported.len(), count);
    }
}

/// Names of the functions that a header declares.
fn prototypes(header: &str) -> Vec<String> {
    let after = word(header, "DAT_RETURN").into_iter().map(|at| header[at + "DAT_RETURN".len()..].trim_start());
    let names = after.map(|text| text.chars().take_while(|c| *c != '(').collect::<String>());
    let is_prototype =
        |name: &String| name.starts_with("dat_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    names.filter(is_prototype).collect()
}

#[test]
fn no_file_names_a_path_of_a_developers_machine() {
    // Split, so that this file does not contain the forbidden text.
    let forbidden = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    let mut wrong = Vec::new();
    for file in files(&[]) {
        for (number, line) in file.text.lines().enumerate() {
            if forbidden.iter().any(|path| line.contains(path)) {
                wrong.push(format!("{}:{}: {line}", file.path, number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn private_words_are_not_used() {
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for file in files(&["rs", "c", "h", "md", "sh", "toml", "svg"]) {
        if file.path == "test/tests/tidy/words.rs" {
            continue;
        }
        for (line, word) in words::refused(&file.text) {
            match words::EXCEPTIONS.iter().position(|(path, exempt, _)| *path == file.path && *exempt == word) {
                Some(exception) => drop(used.insert(exception)),
                None => wrong.push(format!("{}:{line}: {word}; write: {}", file.path, words::instead(word))),
            }
        }
    }
    assert!(wrong.is_empty(), "{} private words:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(used.len(), words::EXCEPTIONS.len(), "an exception has no effect");
}

#[test]
fn short_type_names_have_one_meaning() {
    let mut defined: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in files(&["rs"]) {
        let is_product = ["dapl/src/", "dat/", "providers/"].iter().any(|folder| file.path.starts_with(folder));
        if !is_product || is_test(&file.path) || file.path.contains("fake") {
            continue;
        }
        for line in file.product_code().lines() {
            let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            let kind = words.iter().position(|word| ["struct", "enum", "trait", "union"].contains(word));
            let name =
                kind.and_then(|kind| words.get(kind + 1)).and_then(|name| SHORT_NAMES.iter().find(|n| *n == name));
            if let Some(name) = name.filter(|_| !line.starts_with(' ')) {
                defined.entry(name).or_default().push(file.path.clone());
            }
        }
    }
    let several: Vec<_> = defined.iter().filter(|(_, paths)| paths.len() > 1).collect();
    let several: Vec<_> = several
        .into_iter()
        .filter(|(name, paths)| !SHARED_NAMES.iter().any(|(n, of, _)| n == *name && *of == paths.as_slice()))
        .collect();
    assert!(several.is_empty(), "type names with several definitions: {several:#?}");
}

fn layer_of(layers: &[&[&str]], module: &str) -> Option<usize> {
    layers.iter().position(|layer| layer.contains(&module))
}

/// Name of a path's module in the layers: the first two parts, or else the first.
fn module_of(path: &[&str], layers: &[&[&str]]) -> Option<String> {
    let named = [path.get(..2).map(|two| two.join("/")), path.first().map(|one| (*one).to_owned())];
    named.into_iter().flatten().find(|name| layer_of(layers, name).is_some())
}

/// Whether a file is the `mod.rs` of a folder that only groups modules.
fn is_grouping(path: &[&str], layers: &[&[&str]]) -> bool {
    path.len() == 2 && path[1] == "mod" && module_of(path, layers).is_none()
}

/// Whether a file contains functions that C calls.
fn is_entry(path: &str) -> bool {
    path.starts_with("dapl/src/") && path.rsplit('/').next().is_some_and(|name| name.starts_with("dapl_"))
}

fn is_test(path: &str) -> bool {
    path.contains("/src/") && (path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs"))
}

/// Value of `key = "value"` in a manifest.
fn value(manifest: &str, key: &str) -> Option<String> {
    let value = manifest.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='))?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// The names in `[dependencies]` and `[build-dependencies]`; tests may depend on anything.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_wanted = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_wanted = line == "[dependencies]" || line == "[build-dependencies]";
        } else if is_wanted && line.contains('=') {
            found.push(line.split(['.', '=', ' ']).next().unwrap_or_default().to_owned());
        }
    }
    found
}
