//! The crate `dat-abi` against the recorded ABI, in both directions: the tables in `v1` and `v2` list exactly the names
//! in the JSON, and the crate defines exactly the names in the tables.
//!
//! The tables are written out, so that a reader sees the compared names. The compiler supplies sizes, offsets and
//! types. `abi.rs` checks the C headers.

use std::any::type_name;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{align_of, size_of};
use std::path::Path;

use serde_json::Value;

macro_rules! types {
    ($($name:ident),* $(,)?) => { vec![$(type_of::<$name>(stringify!($name))),*] };
}

macro_rules! integers {
    ($($name:ident),* $(,)?) => { vec![$((stringify!($name), $name as i64)),*] };
}

macro_rules! strings {
    ($($name:ident),* $(,)?) => { vec![$((stringify!($name), $name.to_str().expect("attribute names are ASCII"))),*] };
}

macro_rules! enumeration {
    ($name:ident { $($constant:ident),* $(,)? }) => {
        Enum {
            of: type_of::<$name>(stringify!($name)),
            // The typed binding makes a constant of another type fail to compile.
            constants: vec![$((stringify!($constant), { let value: $name = $constant; value as i64 })),*],
        }
    };
}

macro_rules! record {
    ($name:ident { $($field:ident),* $(,)? }) => {
        Record {
            of: type_of::<$name>(stringify!($name)),
            fields: vec![$(field_of::<$name, _>(
                stringify!($field).trim_start_matches("r#"),
                offset_of!($name, $field),
                // SAFETY: this closure is never called; `field_of` only uses its type.
                |record| unsafe { &raw const (*record).$field },
            )),*],
        }
    };
}

#[path = "abi_rust/v1.rs"]
mod v1;
#[path = "abi_rust/v2.rs"]
mod v2;

/// One DAT version: its recorded ABI, and what the crate defines.
struct Contract {
    facts: Value,
    enums: Vec<Enum>,
    integers: Vec<(&'static str, i64)>,
    strings: Vec<(&'static str, &'static str)>,
    typedefs: Vec<Type>,
    function_types: Vec<Type>,
    records: Vec<Record>,
    /// Folder of the crate's sources for this version, relative to `test`.
    sources: &'static str,
    /// Unions without a name in C, by the field that contains them.
    unnamed: Vec<(&'static str, Record)>,
}

macro_rules! contract {
    ($tables:ident, $facts:literal, $sources:literal) => {
        Contract {
            facts: facts($facts),
            enums: $tables::enums(),
            integers: $tables::integers(),
            strings: $tables::strings(),
            typedefs: $tables::typedefs(),
            function_types: $tables::function_types(),
            records: $tables::records(),
            sources: $sources,
            unnamed: $tables::unnamed(),
        }
    };
}

fn contracts() -> [Contract; 2] {
    [contract!(v1, "dat-1.2", "../dat/abi/src"), contract!(v2, "dat-2.0", "../dat/abi/src/v2")]
}

/// A type: its C name, its Rust type name, size and alignment.
struct Type {
    name: &'static str,
    rust: &'static str,
    size: usize,
    align: usize,
}

/// An enumeration: its type, and the name and value of each constant.
struct Enum {
    of: Type,
    constants: Vec<(&'static str, i64)>,
}

/// A field: its offset and type.
struct Field {
    name: &'static str,
    offset: usize,
    of: Type,
}

/// A struct or union.
struct Record {
    of: Type,
    fields: Vec<Field>,
}

fn type_of<T>(name: &'static str) -> Type {
    Type { name, rust: type_name::<T>(), size: size_of::<T>(), align: align_of::<T>() }
}

/// Name, offset and type of a field. `project` only supplies the type and is never called.
fn field_of<R, F>(name: &'static str, offset: usize, _project: fn(*const R) -> *const F) -> Field {
    Field { name, offset, of: type_of::<F>(name) }
}

fn facts(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("abi/{name}.json"));
    let text = std::fs::read_to_string(path).expect("the JSON files of test/abi are readable");
    serde_json::from_str(&text).expect("the files of test/abi are valid JSON")
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

/// Checks that the JSON and the table list the same names in the same order.
fn same_names<'a>(facts: impl Iterator<Item = &'a str>, table: impl Iterator<Item = &'a str>) {
    assert_eq!(facts.collect::<Vec<_>>(), table.collect::<Vec<_>>());
}

/// Translates a resolved C type into the name of the Rust type.
struct Translation {
    records: BTreeMap<String, &'static str>,
    typedefs: BTreeMap<String, String>,
}

impl Translation {
    fn new(contract: &Contract) -> Self {
        let mut known = BTreeMap::from([
            ("struct sockaddr".to_owned(), type_name::<dat_abi::DAT_SOCK_ADDR>()),
            ("struct sockaddr_in6".to_owned(), type_name::<dat_abi::DAT_SOCK_ADDR6>()),
            // `va_list` on x86-64, and the address handle of verbs. Both are opaque in Rust.
            ("struct __va_list_tag".to_owned(), "core::ffi::c_void"),
            ("struct ibv_ah".to_owned(), "core::ffi::c_void"),
            ("va_list".to_owned(), type_name::<dat_abi::v2::va_list>()),
        ]);
        for (fact, record) in list(&contract.facts, "records").iter().zip(&contract.records) {
            known.insert(format!("{} {}", text(fact, "kind"), text(fact, "tag")), record.of.rust);
        }
        let typedefs = list(&contract.facts, "typedefs").iter();
        let typedefs = typedefs.map(|fact| (text(fact, "name").to_owned(), text(fact, "canonical").to_owned()));
        Translation { records: known, typedefs: typedefs.collect() }
    }

    /// Translates a C type, typedef or not, to Rust.
    fn rust(&self, c_type: &str) -> String {
        let c_type = c_type.trim();
        // `char (*)[40]`, the only pointer to an array.
        if let Some((element, length)) = c_type.split_once(" (*)[") {
            return format!("*mut [{}; {}", self.rust(element), length);
        }
        if let Some((result, params)) = c_type.split_once(" (*)(") {
            return self
                .function(result, params.strip_suffix(')').expect("the parameter list ends with a parenthesis"));
        }
        if let Some(element) = c_type.strip_suffix("[]") {
            return format!("*mut {}", self.rust(element));
        }
        if let Some((element, rest)) = c_type.split_once('[') {
            let dimensions: Vec<&str> = rest.trim_end_matches(']').split("][").collect();
            let element = self.rust(element.trim_start_matches("const "));
            return dimensions.iter().rev().fold(element, |inner, length| format!("[{inner}; {length}]"));
        }
        if let Some(target) = c_type.strip_suffix('*') {
            let target = target.trim();
            return match target.strip_prefix("const ") {
                Some(target) if !target.ends_with('*') => format!("*const {}", self.rust(target)),
                _ => format!("*mut {}", self.rust(target)),
            };
        }
        // const has no effect on a parameter passed by value.
        let plain = c_type.trim_start_matches("const ");
        if let Some(canonical) = self.typedefs.get(plain) {
            return if canonical == plain { plain.to_owned() } else { self.rust(canonical) };
        }
        match plain {
            "void" => "core::ffi::c_void".into(),
            "char" => "i8".into(),
            "int" => "i32".into(),
            "unsigned int" => "u32".into(),
            "unsigned long" | "unsigned long long" => "u64".into(),
            _ if plain.starts_with("enum ") => "u32".into(),
            _ => self.records.get(plain).unwrap_or_else(|| panic!("no Rust type for the C type {plain}")).to_string(),
        }
    }

    fn function(&self, result: &str, params: &str) -> String {
        let params: Vec<String> = params.split(", ").map(|param| self.rust(param)).collect();
        let result = if result == "void" { String::new() } else { format!(" -> {}", self.rust(result)) };
        format!("unsafe extern \"C\" fn({}){result}", params.join(", "))
    }
}

/// Replaces `C-unwind` by `C`, which is the same to a caller. The waits use `C-unwind` because a thread may be
/// cancelled inside them.
fn plain(rust: &str) -> String {
    rust.replace("extern \"C-unwind\"", "extern \"C\"")
}

fn agrees(table: &Type, fact: &Value) {
    assert_eq!(table.size as i64, number(fact, "size"), "size of {}", table.name);
    assert_eq!(table.align as i64, number(fact, "align"), "alignment of {}", table.name);
}

#[test]
fn rust_enumerations_match_the_recorded_abi() {
    for contract in contracts() {
        let (facts, table) = (list(&contract.facts, "enums"), &contract.enums);
        same_names(facts.iter().map(|fact| text(fact, "typedef")), table.iter().map(|entry| entry.of.name));
        for (fact, entry) in facts.iter().zip(table) {
            agrees(&entry.of, fact);
            assert_eq!(entry.of.rust, "u32", "{} must be u32: C code may store any value", entry.of.name);
            let constants =
                list(fact, "constants").iter().map(|constant| (text(constant, "name"), number(constant, "value")));
            assert_eq!(constants.collect::<Vec<_>>(), entry.constants, "{}", entry.of.name);
        }
    }
}

#[test]
fn rust_integer_macros_match_the_recorded_abi() {
    for contract in contracts() {
        let macros =
            list(&contract.facts["macros"], "integer").iter().map(|fact| (text(fact, "name"), number(fact, "value")));
        assert_eq!(macros.collect::<Vec<_>>(), contract.integers);
    }
}

#[test]
fn rust_pointer_and_string_macros_match_the_recorded_abi() {
    for contract in contracts() {
        let pointers =
            list(&contract.facts["macros"], "pointer").iter().map(|fact| (text(fact, "name"), number(fact, "value")));
        let table = [
            ("DAT_HANDLE_NULL", dat_abi::DAT_HANDLE_NULL as i64),
            ("DAT_EVD_ASYNC_EXISTS", dat_abi::DAT_EVD_ASYNC_EXISTS as i64),
            ("DAT_EVD_OUT_OF_SCOPE", dat_abi::DAT_EVD_OUT_OF_SCOPE as i64),
        ];
        assert_eq!(pointers.collect::<Vec<_>>(), table);
        let strings =
            list(&contract.facts["macros"], "string").iter().map(|fact| (text(fact, "name"), text(fact, "value")));
        assert_eq!(strings.collect::<Vec<_>>(), contract.strings);
    }
}

#[test]
fn rust_types_match_the_recorded_abi() {
    for contract in contracts() {
        let translation = Translation::new(&contract);
        let is_function = |fact: &&Value| fact["see"] == "function_pointer_types";
        let plain_facts: Vec<&Value> =
            list(&contract.facts, "typedefs").iter().filter(|fact| !is_function(fact)).collect();
        let table = &contract.typedefs;
        same_names(plain_facts.iter().map(|fact| text(fact, "name")), table.iter().map(|entry| entry.name));
        for (fact, entry) in plain_facts.iter().zip(table) {
            agrees(entry, fact);
            assert_eq!(entry.rust, translation.rust(text(fact, "canonical")), "{}", entry.name);
        }
    }
}

#[test]
fn rust_function_types_match_the_recorded_abi() {
    for contract in contracts() {
        let translation = Translation::new(&contract);
        let (types, table) = (list(&contract.facts, "function_pointer_types"), &contract.function_types);
        same_names(types.iter().map(|fact| text(fact, "name")), table.iter().map(|entry| entry.name));
        for (fact, entry) in types.iter().zip(table) {
            let params: Vec<&str> = list(fact, "params").iter().map(|param| text(param, "c_type")).collect();
            let wanted = translation.function(text(fact, "return_type"), &params.join(", "));
            assert_eq!(plain(entry.rust), wanted, "{}", entry.name);
            let typedef = list(&contract.facts, "typedefs").iter().find(|typedef| typedef["name"] == entry.name);
            agrees(entry, typedef.expect("the contract has a typedef for each function type"));
        }
    }
}

#[test]
fn rust_records_match_the_recorded_abi() {
    for contract in contracts() {
        let translation = Translation::new(&contract);
        let (types, table) = (list(&contract.facts, "records"), &contract.records);
        same_names(types.iter().map(|fact| text(fact, "typedef")), table.iter().map(|entry| entry.of.name));
        for (fact, record) in types.iter().zip(table) {
            agrees(&record.of, fact);
            same_fields(&contract, &translation, record, list(fact, "fields"));
        }
    }
}

/// Checks the fields of a record, or the members of a union without a name.
fn same_fields(contract: &Contract, translation: &Translation, record: &Record, facts: &[Value]) {
    let functions: BTreeMap<&str, &str> =
        contract.function_types.iter().map(|entry| (entry.name, entry.rust)).collect();
    // A field without a name in C is named `peer` in Rust.
    let name = |fact: &Value| fact["name"].as_str().unwrap_or("peer").to_owned();
    let names: Vec<&str> = record.fields.iter().map(|field| field.name).collect();
    assert_eq!(facts.iter().map(name).collect::<Vec<_>>(), names, "fields of {}", record.of.name);
    for (fact, field) in facts.iter().zip(&record.fields) {
        let what = format!("{}.{}", record.of.name, field.name);
        assert_eq!(field.offset as i64, number(fact, "offset"), "offset of {what}");
        agrees(&field.of, fact);
        if let Some(members) = fact["members"].as_array() {
            let (_, union) =
                contract.unnamed.iter().find(|(of, _)| *of == what).expect("the contract names each unnamed union");
            assert_eq!(field.of.rust, union.of.rust);
            same_fields(contract, translation, union, members);
            continue;
        }
        // A C function pointer may be null, so the Rust type is an option.
        let wanted = match functions.get(text(fact, "c_type")) {
            Some(function) => format!("core::option::Option<{function}>"),
            None => translation.rust(text(fact, "c_type")),
        };
        assert_eq!(field.of.rust, wanted, "type of {what}");
    }
}

#[test]
fn rust_table_slots_match_the_order_of_the_recorded_abi() {
    for contract in contracts() {
        let table = contract
            .records
            .iter()
            .find(|record| record.of.name == "DAT_PROVIDER")
            .expect("the contract has the record DAT_PROVIDER");
        let entries = list(&contract.facts["provider_table"], "entries");
        same_names(entries.iter().map(|entry| text(entry, "field")), table.fields.iter().map(|field| field.name));
        for (entry, field) in entries.iter().zip(&table.fields) {
            assert_eq!(number(entry, "offset"), field.offset as i64);
            assert_eq!(number(entry, "index"), (field.offset / size_of::<usize>()) as i64);
        }
        // Two table entries have other arguments than their functions, so the JSON excludes them: the open, and in 2.0
        // `dat_extension_op`.
        for entry in entries.iter().filter(|entry| entry["same_signature"] == true) {
            let function = list(&contract.facts, "functions").iter().find(|fact| fact["name"] == entry["function"]);
            let typing =
                list(&contract.facts, "function_pointer_types").iter().find(|fact| fact["name"] == entry["c_type"]);
            let shape = |fact: Option<&Value>| -> Vec<String> {
                let params = list(fact.expect("test/abi has a function for each slot of the table"), "params");
                params.iter().map(|param| text(param, "c_type").to_owned()).collect()
            };
            assert_eq!(shape(function), shape(typing), "{}", entry["field"]);
        }
    }
}

#[test]
fn crate_defines_nothing_beyond_the_recorded_abi() {
    for contract in contracts() {
        let (mut constants, mut types) = (BTreeSet::new(), BTreeSet::new());
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join(contract.sources);
        defined_below(&sources, &mut constants, &mut types);
        let mut known: BTreeSet<String> = contract.integers.iter().map(|(name, _)| (*name).to_owned()).collect();
        let of_enums = contract.enums.iter().flat_map(|entry| &entry.constants);
        known.extend(of_enums.map(|(name, _)| (*name).to_owned()));
        for key in ["pointer", "string"] {
            known.extend(list(&contract.facts["macros"], key).iter().map(|fact| text(fact, "name").to_owned()));
        }
        let typedefs = list(&contract.facts, "typedefs").iter();
        let mut known_types: BTreeSet<String> = typedefs.map(|fact| text(fact, "name").to_owned()).collect();
        known_types.extend(contract.unnamed.iter().map(|(_, union)| union.of.name.to_owned()));
        // The JSON has no typedef va_list, because the C library defines it.
        types.remove("va_list");
        assert_eq!(constants, known);
        assert_eq!(types, known_types);
    }
}

/// Adds the names that the sources in a folder define or re-export.
fn defined_below(folder: &Path, constants: &mut BTreeSet<String>, types: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("the source folder of the crate is readable") {
        let path = entry.expect("the entries of the source folder are readable").path();
        // hook.rs is private to this project and not part of the recorded ABI.
        if path.ends_with("hook.rs") {
            continue;
        }
        if path.is_dir() {
            // The names of 2.0 are checked separately.
            if !path.ends_with("v2") {
                defined_below(&path, constants, types);
            }
            continue;
        }
        defined_in(&path, constants, types);
    }
}

/// Adds the names that a source file defines, and those of the modules of 1.2 that it re-exports.
fn defined_in(file: &Path, constants: &mut BTreeSet<String>, types: &mut BTreeSet<String>) {
    let source = std::fs::read_to_string(file).expect("a source file is UTF-8 text");
    // Definitions in the body of a macro are indented. Those whose name is an argument of the macro contain ` $`.
    for line in source.lines().map(str::trim_start).filter(|line| !line.contains(" $")) {
        let word =
            |rest: &str| rest.split([' ', ':', ';', '=']).next().expect("`split` returns at least one part").to_owned();
        if let Some(rest) = line.strip_prefix("pub const ") {
            constants.insert(word(rest));
        }
        for keyword in ["pub type ", "pub struct ", "pub union "] {
            types.extend(line.strip_prefix(keyword).map(word));
        }
        if let Some(module) = line.strip_prefix("pub use crate::").and_then(|rest| rest.strip_suffix("::*;")) {
            let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dat/abi/src");
            defined_in(&sources.join(module).with_extension("rs"), constants, types);
        }
    }
}
