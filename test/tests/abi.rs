//! The C headers against the recorded ABI (`test/abi/dat-1.2.json` and `dat-2.0.json`), in C and in C++: sizes,
//! offsets, values, types, prototypes, table entries and macros. Also checks each header alone, and that the recorded
//! prototypes and exports agree.
//!
//! The test generates a program from the JSON and compiles it under two standards of each language. The program checks
//! at run time what a compiler cannot: strings, the function that a macro calls, and its arguments. `abi_rust.rs`
//! checks the Rust declarations. No libdat is needed: the program defines the functions that macros call
//! (`dat_ia_openv`, in 2.0 also `dat_extension_op`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use program::{Program, Tongue, V1, V2, Version};
use serde_json::Value;

#[path = "abi/declarations.rs"]
mod declarations;
#[path = "abi/extensions.rs"]
mod extensions;
#[path = "abi/macros.rs"]
mod macros;
#[path = "abi/program.rs"]
mod program;

/// Compiler flags with which the headers must not cause a warning.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package directory is below the workspace root")
        .to_path_buf()
}

fn headers() -> PathBuf {
    root().join("dat/include")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("test/abi has no list {key}"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("test/abi: no text {key} in {value}"))
}

fn number(value: &Value, key: &str) -> i64 {
    value[key].as_i64().unwrap_or_else(|| panic!("test/abi: no number {key} in {value}"))
}

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("abi-{name}"));
    std::fs::create_dir_all(&dir).expect("the target directory is writable");
    dir
}

fn program(version: Version, tongue: Tongue) -> Program {
    let facts = version.facts();
    let mut program = Program::new(version, tongue);
    declarations::typedefs(&mut program, &facts);
    declarations::enums(&mut program, &facts);
    declarations::records(&mut program, &facts);
    macros::macros(&mut program, &facts);
    declarations::functions(&mut program, &facts);
    declarations::table(&mut program, &facts);
    macros::redirections(&mut program, &facts);
    macros::macros_in_words(&mut program, &facts);
    macros::api_macros(&mut program, &facts);
    if version == V2 {
        extensions::program(&mut program, &facts);
    }
    macros::old_names(&mut program, &facts);
    program
}

fn headers_keep_the_facts(version: Version, tongue: Tongue, standards: &[&str]) {
    let program = program(version, tongue);
    for standard in standards {
        let dir = scratch(&format!("{}-{standard}", version.folder()));
        let (source, binary) = (dir.join("abi").with_extension(tongue.extension()), dir.join("abi"));
        std::fs::write(&source, program.text()).expect("the target directory is writable");
        let out = tongue.compile(standard, &STRICT, &source, Some(&binary));
        assert!(out.status.success(), "{standard}: {}", String::from_utf8_lossy(&out.stderr));
        let out = Command::new(&binary).output().expect("the compiled program starts");
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{standard}: {}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(said, format!("{} checks\n", program.checks), "{standard}");
        println!("{standard}: {} static assertions and {} checks hold", program.statics, program.checks);
    }
    assert!(
        program.statics > 2400 && program.checks > 70,
        "only {} static checks and {} run-time checks",
        program.statics,
        program.checks
    );
}

#[test]
fn headers_match_the_recorded_abi_in_c() {
    headers_keep_the_facts(V1, Tongue::C, &["gnu11", "c11"]);
}

#[test]
fn headers_match_the_recorded_abi_in_cxx() {
    headers_keep_the_facts(V1, Tongue::Cxx, &["c++11", "c++17"]);
}

#[test]
fn headers_of_version_2_match_the_recorded_abi_in_c() {
    headers_keep_the_facts(V2, Tongue::C, &["gnu11", "c11"]);
}

#[test]
fn headers_of_version_2_match_the_recorded_abi_in_cxx() {
    headers_keep_the_facts(V2, Tongue::Cxx, &["c++11", "c++17"]);
}

#[test]
fn every_header_compiles_alone_and_twice_and_has_its_guard() {
    for version in [V1, V2] {
        let facts = version.facts();
        let guards: Vec<&str> = list(&facts, "include_guards")
            .iter()
            .map(|guard| guard.as_str().expect("names are JSON strings"))
            .collect();
        let (folder, dir) = (version.folder(), scratch(&format!("alone-{}", version.folder())));
        for header in list(&facts, "headers") {
            let header = header.as_str().expect("names are JSON strings");
            let guard = format!("_{}_", header.to_uppercase().replace('.', "_"));
            assert!(guards.contains(&guard.as_str()), "test/abi does not list the guard {guard}");
            let before =
                if header == "dat_registry.h" { format!("#include <{folder}/udat.h>\n") } else { String::new() };
            let text = format!(
                "{before}#include <{folder}/{header}>\n#include <{folder}/{header}>\n#ifndef {guard}\n#error \"no {guard}\"\n#endif\n\
                 typedef int nothing_else;\n"
            );
            for (tongue, standard) in
                [(Tongue::C, "c11"), (Tongue::C, "gnu11"), (Tongue::Cxx, "c++11"), (Tongue::Cxx, "c++17")]
            {
                let source = dir.join(header).with_extension(tongue.extension());
                std::fs::write(&source, &text).expect("the target directory is writable");
                let out = tongue.compile(standard, &STRICT, &source, None);
                assert!(out.status.success(), "{header} as {standard}: {}", String::from_utf8_lossy(&out.stderr));
            }
        }
    }
}

#[test]
fn registry_header_fails_to_compile_if_included_first() {
    for version in [V1, V2] {
        for tongue in [Tongue::C, Tongue::Cxx] {
            let source = scratch("first").join("registry").with_extension(tongue.extension());
            std::fs::write(&source, format!("#include <{}/dat_registry.h>\n", version.folder()))
                .expect("the target directory is writable");
            let out = tongue.compile(if tongue == Tongue::C { "c11" } else { "c++11" }, &[], &source, None);
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(!out.status.success() && said.contains("#error") && said.contains("udat.h"), "{said}");
        }
    }
}

#[test]
fn every_name_is_declared_in_its_recorded_header() {
    for version in [V1, V2] {
        let facts = version.facts();
        let mut kinds = vec![];
        for key in ["typedefs", "functions", "function_pointer_types", "redirection_macros"] {
            kinds.extend(list(&facts, key).iter().map(|fact| (text(fact, "name"), text(fact, "header"))));
        }
        for fact in list(&facts, "enums") {
            let constants = list(fact, "constants").iter().map(|constant| text(constant, "name"));
            kinds.extend(constants.chain([text(fact, "tag")]).map(|name| (name, text(fact, "header"))));
        }
        kinds.extend(list(&facts, "records").iter().map(|fact| (text(fact, "tag"), text(fact, "header"))));
        for list in facts["macros"].as_object().expect("\"macros\" is an object with a list per kind").values() {
            let list = list.as_array().expect("each kind of macros has a list");
            kinds.extend(list.iter().map(|fact| (text(fact, "name"), text(fact, "header"))));
        }
        kinds.push(("dat_ia_open", "dat.h"));
        for (name, header) in kinds {
            let text = std::fs::read_to_string(headers().join(version.folder()).join(header))
                .expect("each header named in test/abi exists");
            let found = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == name);
            assert!(found, "{name} is not in {header}");
        }
    }
}

/// Names in a list of exported symbols from the JSON.
fn exported(list: &[Value]) -> BTreeSet<&str> {
    list.iter().map(|entry| entry.as_str().unwrap_or_else(|| text(entry, "name"))).collect()
}

#[test]
fn prototypes_and_exports_agree() {
    for (version, count) in [(V1, 73), (V2, 74)] {
        let (facts, symbols) = (version.facts(), version.symbols());
        let exported = match version {
            V1 => exported(list(&symbols["linux"]["libdat"], "exported")),
            V2 => exported(list(&symbols["libraries"]["libdat2.so.2"], "exported")),
        };
        let mut declared: BTreeSet<&str> = list(&facts, "functions").iter().map(|fact| text(fact, "name")).collect();
        // The 2.0 headers declare functions that libdat2 does not export; the JSON lists them.
        if version == V2 {
            for name in list(&symbols["libraries"]["libdat2.so.2"], "declared_in_headers_but_not_exported") {
                assert!(declared.remove(name.as_str().expect("names are JSON strings")));
            }
        }
        // An export without a prototype in a public header.
        assert!(declared.insert("dats_get_ia_handle"));
        assert_eq!(declared, exported);
        assert_eq!(exported.len(), count);
    }
}
