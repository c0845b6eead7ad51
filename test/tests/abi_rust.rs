//! The crate `dat-abi` against the recorded facts, in both directions: what the facts name is in the tables below, what
//! the tables name is a fact, and what the crate defines is in the tables.
//!
//! The tables are written out so that a reader sees what is compared; the compiler fills in sizes, offsets and types.
//! The C half of the contract is `abi.rs`.

use std::any::type_name;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{align_of, offset_of, size_of};
use std::path::Path;

use dat_abi::*;
use serde_json::Value;

/// A type: its name in C, what it is in Rust, size, alignment.
struct Type {
    name: &'static str,
    rust: &'static str,
    size: usize,
    align: usize,
}

/// An enumeration: its type, and the value of each constant.
struct Enum {
    of: Type,
    constants: Vec<(&'static str, i64)>,
}

/// A field: its place and its type.
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

/// The type of the field that `project` leads to. `project` is never called.
fn field_of<R, F>(name: &'static str, offset: usize, _project: fn(*const R) -> *const F) -> Field {
    Field { name, offset, of: type_of::<F>(name) }
}

macro_rules! types {
    ($($name:ident),* $(,)?) => { vec![$(type_of::<$name>(stringify!($name))),*] };
}

macro_rules! integers {
    ($($name:ident),* $(,)?) => { vec![$((stringify!($name), $name as i64)),*] };
}

macro_rules! enumeration {
    ($name:ident { $($constant:ident),* $(,)? }) => {
        Enum {
            of: type_of::<$name>(stringify!($name)),
            // Bound to the type first, so that a constant of another type does not compile.
            constants: vec![$((stringify!($constant), { let value: $name = $constant; value as i64 })),*],
        }
    };
}

macro_rules! record {
    ($name:ident { $($field:ident),* $(,)? }) => {
        Record {
            of: type_of::<$name>(stringify!($name)),
            fields: vec![$(field_of::<$name, _>(
                stringify!($field),
                offset_of!($name, $field),
                // SAFETY: never run, see `field_of`: only the type of the closure is looked at.
                |record| unsafe { &raw const (*record).$field },
            )),*],
        }
    };
}

fn facts() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("abi/dat-1.2.json");
    let text = std::fs::read_to_string(path).expect("the facts are in the repository");
    serde_json::from_str(&text).expect("the facts are JSON")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("no list {key} in the facts"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no text {key} in {value}"))
}

fn number(value: &Value, key: &str) -> i64 {
    value[key].as_i64().unwrap_or_else(|| panic!("no number {key} in {value}"))
}

/// Both sides name the same things in the same order.
fn same_names<'a>(facts: impl Iterator<Item = &'a str>, table: impl Iterator<Item = &'a str>) {
    assert_eq!(facts.collect::<Vec<_>>(), table.collect::<Vec<_>>());
}

/// Translates a resolved C type into the name of the Rust type.
struct Translation {
    records: BTreeMap<String, &'static str>,
    typedefs: BTreeMap<String, String>,
}

impl Translation {
    fn new(facts: &Value) -> Self {
        let mut known = BTreeMap::from([
            ("struct sockaddr".to_owned(), type_name::<DAT_SOCK_ADDR>()),
            ("struct sockaddr_in6".to_owned(), type_name::<DAT_SOCK_ADDR6>()),
        ]);
        for (fact, record) in list(facts, "records").iter().zip(records()) {
            known.insert(format!("{} {}", text(fact, "kind"), text(fact, "tag")), record.of.rust);
        }
        let typedefs = list(facts, "typedefs").iter();
        let typedefs = typedefs.map(|fact| (text(fact, "name").to_owned(), text(fact, "canonical").to_owned()));
        Translation { records: known, typedefs: typedefs.collect() }
    }

    /// A type as C writes it, typedef or not.
    fn rust(&self, c_type: &str) -> String {
        let c_type = c_type.trim();
        // `char (*)[40]`, the one pointer to an array.
        if let Some((element, length)) = c_type.split_once(" (*)[") {
            return format!("*mut [{}; {}", self.rust(element), length);
        }
        if let Some((result, params)) = c_type.split_once(" (*)(") {
            return self.function(result, params.strip_suffix(')').expect("a list of parameters ends"));
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
        // const has no meaning for a parameter by value.
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
            _ => self.records.get(plain).unwrap_or_else(|| panic!("no Rust for {plain}")).to_string(),
        }
    }

    fn function(&self, result: &str, params: &str) -> String {
        let params: Vec<String> = params.split(", ").map(|param| self.rust(param)).collect();
        let result = if result == "void" { String::new() } else { format!(" -> {}", self.rust(result)) };
        format!("unsafe extern \"C\" fn({}){result}", params.join(", "))
    }
}

/// `C-unwind` is `C` to every caller; the waits use it because a thread may be cancelled inside them.
fn plain(rust: &str) -> String {
    rust.replace("extern \"C-unwind\"", "extern \"C\"")
}

fn agrees(table: &Type, fact: &Value) {
    assert_eq!(table.size as i64, number(fact, "size"), "size of {}", table.name);
    assert_eq!(table.align as i64, number(fact, "align"), "alignment of {}", table.name);
}

#[test]
fn enumerations_keep_the_facts() {
    let facts = facts();
    let (facts, table) = (list(&facts, "enums"), enums());
    same_names(facts.iter().map(|fact| text(fact, "typedef")), table.iter().map(|entry| entry.of.name));
    for (fact, entry) in facts.iter().zip(&table) {
        agrees(&entry.of, fact);
        assert_eq!(entry.of.rust, "u32", "{} holds whatever C puts there", entry.of.name);
        let constants =
            list(fact, "constants").iter().map(|constant| (text(constant, "name"), number(constant, "value")));
        assert_eq!(constants.collect::<Vec<_>>(), entry.constants, "{}", entry.of.name);
    }
}

#[test]
fn integer_macros_keep_the_facts() {
    let facts = facts();
    let macros = list(&facts["macros"], "integer").iter().map(|fact| (text(fact, "name"), number(fact, "value")));
    assert_eq!(macros.collect::<Vec<_>>(), integers());
}

#[test]
fn pointers_and_strings_keep_the_facts() {
    let facts = facts();
    let pointers = list(&facts["macros"], "pointer").iter().map(|fact| (text(fact, "name"), number(fact, "value")));
    let table = [
        ("DAT_HANDLE_NULL", DAT_HANDLE_NULL as i64),
        ("DAT_EVD_ASYNC_EXISTS", DAT_EVD_ASYNC_EXISTS as i64),
        ("DAT_EVD_OUT_OF_SCOPE", DAT_EVD_OUT_OF_SCOPE as i64),
    ];
    assert_eq!(pointers.collect::<Vec<_>>(), table);
    let strings = list(&facts["macros"], "string").iter().map(|fact| (text(fact, "name"), text(fact, "value")));
    let table = [
        ("DAT_PROVIDER_INIT_FUNC_STR", DAT_PROVIDER_INIT_FUNC_STR.to_str().expect("ASCII")),
        ("DAT_PROVIDER_FINI_FUNC_STR", DAT_PROVIDER_FINI_FUNC_STR.to_str().expect("ASCII")),
    ];
    assert_eq!(strings.collect::<Vec<_>>(), table);
}

#[test]
fn types_keep_the_facts() {
    let facts = facts();
    let translation = Translation::new(&facts);
    let is_function = |fact: &&Value| fact["see"] == "function_pointer_types";
    let plain_facts: Vec<&Value> = list(&facts, "typedefs").iter().filter(|fact| !is_function(fact)).collect();
    let table = typedefs();
    same_names(plain_facts.iter().map(|fact| text(fact, "name")), table.iter().map(|entry| entry.name));
    for (fact, entry) in plain_facts.iter().zip(&table) {
        agrees(entry, fact);
        assert_eq!(entry.rust, translation.rust(text(fact, "canonical")), "{}", entry.name);
    }
}

#[test]
fn function_types_keep_the_facts() {
    let facts = facts();
    let translation = Translation::new(&facts);
    let (types, table) = (list(&facts, "function_pointer_types"), function_types());
    same_names(types.iter().map(|fact| text(fact, "name")), table.iter().map(|entry| entry.name));
    for (fact, entry) in types.iter().zip(&table) {
        let params: Vec<&str> = list(fact, "params").iter().map(|param| text(param, "c_type")).collect();
        let wanted = translation.function(text(fact, "return_type"), &params.join(", "));
        assert_eq!(plain(entry.rust), wanted, "{}", entry.name);
        let typedef = list(&facts, "typedefs").iter().find(|typedef| typedef["name"] == entry.name);
        agrees(entry, typedef.expect("a function type has a typedef"));
    }
}

#[test]
fn records_keep_the_facts() {
    let facts = facts();
    let translation = Translation::new(&facts);
    let (types, table) = (list(&facts, "records"), records());
    let functions: BTreeMap<&str, &str> = function_types().iter().map(|entry| (entry.name, entry.rust)).collect();
    same_names(types.iter().map(|fact| text(fact, "typedef")), table.iter().map(|entry| entry.of.name));
    for (fact, record) in types.iter().zip(&table) {
        agrees(&record.of, fact);
        let fields = list(fact, "fields");
        same_names(fields.iter().map(|field| text(field, "name")), record.fields.iter().map(|field| field.name));
        for (fact, field) in fields.iter().zip(&record.fields) {
            let what = format!("{}.{}", record.of.name, field.name);
            assert_eq!(field.offset as i64, number(fact, "offset"), "offset of {what}");
            agrees(&field.of, fact);
            // A C function pointer may be null, so the Rust type is an option.
            let wanted = match functions.get(text(fact, "c_type")) {
                Some(function) => format!("core::option::Option<{function}>"),
                None => translation.rust(text(fact, "c_type")),
            };
            assert_eq!(field.of.rust, wanted, "type of {what}");
        }
    }
}

#[test]
fn table_slots_keep_the_order_of_the_facts() {
    let facts = facts();
    let table = records().into_iter().find(|record| record.of.name == "DAT_PROVIDER").expect("it is a record");
    let entries = list(&facts["provider_table"], "entries");
    same_names(entries.iter().map(|entry| text(entry, "field")), table.fields.iter().map(|field| field.name));
    for (entry, field) in entries.iter().zip(&table.fields) {
        assert_eq!(number(entry, "offset"), field.offset as i64);
        assert_eq!(number(entry, "index"), (field.offset / size_of::<usize>()) as i64);
    }
    // Every slot has a prototype of the same shape, except for the version arguments of open.
    for entry in entries.iter().filter(|entry| entry["same_signature"] == true) {
        let function = list(&facts, "functions").iter().find(|fact| fact["name"] == entry["function"]);
        let typing = list(&facts, "function_pointer_types").iter().find(|fact| fact["name"] == entry["c_type"]);
        let shape = |fact: Option<&Value>| -> Vec<String> {
            let params = list(fact.expect("named by the table"), "params");
            params.iter().map(|param| text(param, "c_type").to_owned()).collect()
        };
        assert_eq!(shape(function), shape(typing), "{}", entry["field"]);
    }
}

#[test]
fn crate_defines_nothing_beside_the_facts() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dat/abi/src");
    let (mut constants, mut types) = (BTreeSet::new(), BTreeSet::new());
    for entry in std::fs::read_dir(sources).expect("the crate is in the repository") {
        let path = entry.expect("a readable directory").path();
        // The hook is private to this project; it has no fact.
        if path.ends_with("hook.rs") {
            continue;
        }
        for line in std::fs::read_to_string(path).expect("a text").lines() {
            let word = |rest: &str| rest.split([' ', ':', ';', '=']).next().expect("a name").to_owned();
            if let Some(rest) = line.strip_prefix("pub const ") {
                constants.insert(word(rest));
            }
            for keyword in ["pub type ", "pub struct ", "pub union "] {
                types.extend(line.strip_prefix(keyword).map(word));
            }
        }
    }
    let facts = facts();
    let mut known: BTreeSet<String> = integers().iter().map(|(name, _)| (*name).to_owned()).collect();
    known.extend(enums().iter().flat_map(|entry| entry.constants.iter().map(|(name, _)| (*name).to_owned())));
    for key in ["pointer", "string"] {
        known.extend(list(&facts["macros"], key).iter().map(|fact| text(fact, "name").to_owned()));
    }
    assert_eq!(constants, known);
    let known: BTreeSet<String> = list(&facts, "typedefs").iter().map(|fact| text(fact, "name").to_owned()).collect();
    assert_eq!(types, known);
}

/// Every enumeration and its constants.
fn enums() -> Vec<Enum> {
    vec![
        enumeration!(DAT_MEM_TYPE { DAT_MEM_TYPE_VIRTUAL, DAT_MEM_TYPE_LMR, DAT_MEM_TYPE_SHARED_VIRTUAL }),
        enumeration!(DAT_HANDLE_TYPE {
            DAT_HANDLE_TYPE_CR,
            DAT_HANDLE_TYPE_EP,
            DAT_HANDLE_TYPE_EVD,
            DAT_HANDLE_TYPE_IA,
            DAT_HANDLE_TYPE_LMR,
            DAT_HANDLE_TYPE_PSP,
            DAT_HANDLE_TYPE_PZ,
            DAT_HANDLE_TYPE_RMR,
            DAT_HANDLE_TYPE_RSP,
            DAT_HANDLE_TYPE_CNO,
            DAT_HANDLE_TYPE_SRQ,
        }),
        enumeration!(DAT_EVD_STATE {
            DAT_EVD_STATE_ENABLED,
            DAT_EVD_STATE_DISABLED,
            DAT_EVD_STATE_WAITABLE,
            DAT_EVD_STATE_UNWAITABLE,
            DAT_EVD_STATE_CONFIG_NOTIFY,
            DAT_EVD_STATE_CONFIG_SOLICITED,
            DAT_EVD_STATE_CONFIG_THRESHOLD,
        }),
        enumeration!(DAT_EVD_PARAM_MASK {
            DAT_EVD_FIELD_IA_HANDLE,
            DAT_EVD_FIELD_EVD_QLEN,
            DAT_EVD_FIELD_EVD_STATE,
            DAT_EVD_FIELD_CNO,
            DAT_EVD_FIELD_EVD_FLAGS,
            DAT_EVD_FIELD_ALL,
        }),
        enumeration!(DAT_RETURN_TYPE {
            DAT_SUCCESS,
            DAT_ABORT,
            DAT_CONN_QUAL_IN_USE,
            DAT_INSUFFICIENT_RESOURCES,
            DAT_INTERNAL_ERROR,
            DAT_INVALID_HANDLE,
            DAT_INVALID_PARAMETER,
            DAT_INVALID_STATE,
            DAT_LENGTH_ERROR,
            DAT_MODEL_NOT_SUPPORTED,
            DAT_PROVIDER_NOT_FOUND,
            DAT_PRIVILEGES_VIOLATION,
            DAT_PROTECTION_VIOLATION,
            DAT_QUEUE_EMPTY,
            DAT_QUEUE_FULL,
            DAT_TIMEOUT_EXPIRED,
            DAT_PROVIDER_ALREADY_REGISTERED,
            DAT_PROVIDER_IN_USE,
            DAT_INVALID_ADDRESS,
            DAT_INTERRUPTED_CALL,
            DAT_CONN_QUAL_UNAVAILABLE,
            DAT_NOT_IMPLEMENTED,
        }),
        enumeration!(DAT_RETURN_SUBTYPE {
            DAT_NO_SUBTYPE,
            DAT_SUB_INTERRUPTED,
            DAT_RESOURCE_MEMORY,
            DAT_RESOURCE_DEVICE,
            DAT_RESOURCE_TEP,
            DAT_RESOURCE_TEVD,
            DAT_RESOURCE_PROTECTION_DOMAIN,
            DAT_RESOURCE_MEMORY_REGION,
            DAT_RESOURCE_ERROR_HANDLER,
            DAT_RESOURCE_CREDITS,
            DAT_RESOURCE_SRQ,
            DAT_INVALID_HANDLE_IA,
            DAT_INVALID_HANDLE_EP,
            DAT_INVALID_HANDLE_LMR,
            DAT_INVALID_HANDLE_RMR,
            DAT_INVALID_HANDLE_PZ,
            DAT_INVALID_HANDLE_PSP,
            DAT_INVALID_HANDLE_RSP,
            DAT_INVALID_HANDLE_CR,
            DAT_INVALID_HANDLE_CNO,
            DAT_INVALID_HANDLE_EVD_CR,
            DAT_INVALID_HANDLE_EVD_REQUEST,
            DAT_INVALID_HANDLE_EVD_RECV,
            DAT_INVALID_HANDLE_EVD_CONN,
            DAT_INVALID_HANDLE_EVD_ASYNC,
            DAT_INVALID_HANDLE_SRQ,
            DAT_INVALID_HANDLE1,
            DAT_INVALID_HANDLE2,
            DAT_INVALID_HANDLE3,
            DAT_INVALID_HANDLE4,
            DAT_INVALID_HANDLE5,
            DAT_INVALID_HANDLE6,
            DAT_INVALID_HANDLE7,
            DAT_INVALID_HANDLE8,
            DAT_INVALID_HANDLE9,
            DAT_INVALID_HANDLE10,
            DAT_INVALID_ARG1,
            DAT_INVALID_ARG2,
            DAT_INVALID_ARG3,
            DAT_INVALID_ARG4,
            DAT_INVALID_ARG5,
            DAT_INVALID_ARG6,
            DAT_INVALID_ARG7,
            DAT_INVALID_ARG8,
            DAT_INVALID_ARG9,
            DAT_INVALID_ARG10,
            DAT_INVALID_STATE_EP_UNCONNECTED,
            DAT_INVALID_STATE_EP_ACTCONNPENDING,
            DAT_INVALID_STATE_EP_PASSCONNPENDING,
            DAT_INVALID_STATE_EP_TENTCONNPENDING,
            DAT_INVALID_STATE_EP_CONNECTED,
            DAT_INVALID_STATE_EP_DISCONNECTED,
            DAT_INVALID_STATE_EP_RESERVED,
            DAT_INVALID_STATE_EP_COMPLPENDING,
            DAT_INVALID_STATE_EP_DISCPENDING,
            DAT_INVALID_STATE_EP_PROVIDERCONTROL,
            DAT_INVALID_STATE_EP_NOTREADY,
            DAT_INVALID_STATE_EP_RECV_WATERMARK,
            DAT_INVALID_STATE_EP_PZ,
            DAT_INVALID_STATE_EP_EVD_REQUEST,
            DAT_INVALID_STATE_EP_EVD_RECV,
            DAT_INVALID_STATE_EP_EVD_CONNECT,
            DAT_INVALID_STATE_EP_UNCONFIGURED,
            DAT_INVALID_STATE_EP_UNCONFRESERVED,
            DAT_INVALID_STATE_EP_UNCONFPASSIVE,
            DAT_INVALID_STATE_EP_UNCONFTENTATIVE,
            DAT_INVALID_STATE_CNO_IN_USE,
            DAT_INVALID_STATE_CNO_DEAD,
            DAT_INVALID_STATE_EVD_OPEN,
            DAT_INVALID_STATE_EVD_ENABLED,
            DAT_INVALID_STATE_EVD_DISABLED,
            DAT_INVALID_STATE_EVD_WAITABLE,
            DAT_INVALID_STATE_EVD_UNWAITABLE,
            DAT_INVALID_STATE_EVD_IN_USE,
            DAT_INVALID_STATE_EVD_CONFIG_NOTIFY,
            DAT_INVALID_STATE_EVD_CONFIG_SOLICITED,
            DAT_INVALID_STATE_EVD_CONFIG_THRESHOLD,
            DAT_INVALID_STATE_EVD_WAITER,
            DAT_INVALID_STATE_EVD_ASYNC,
            DAT_INVALID_STATE_IA_IN_USE,
            DAT_INVALID_STATE_LMR_IN_USE,
            DAT_INVALID_STATE_LMR_FREE,
            DAT_INVALID_STATE_PZ_IN_USE,
            DAT_INVALID_STATE_PZ_FREE,
            DAT_INVALID_STATE_SRQ_OPERATIONAL,
            DAT_INVALID_STATE_SRQ_ERROR,
            DAT_INVALID_STATE_SRQ_IN_USE,
            DAT_PRIVILEGES_READ,
            DAT_PRIVILEGES_WRITE,
            DAT_PRIVILEGES_RDMA_READ,
            DAT_PRIVILEGES_RDMA_WRITE,
            DAT_PROTECTION_READ,
            DAT_PROTECTION_WRITE,
            DAT_PROTECTION_RDMA_READ,
            DAT_PROTECTION_RDMA_WRITE,
            DAT_INVALID_ADDRESS_UNSUPPORTED,
            DAT_INVALID_ADDRESS_UNREACHABLE,
            DAT_INVALID_ADDRESS_MALFORMED,
            DAT_NAME_NOT_REGISTERED,
            DAT_MAJOR_NOT_FOUND,
            DAT_MINOR_NOT_FOUND,
            DAT_THREAD_SAFETY_NOT_FOUND,
        }),
        enumeration!(DAT_BOOLEAN { DAT_FALSE, DAT_TRUE }),
        enumeration!(DAT_COMPLETION_FLAGS {
            DAT_COMPLETION_DEFAULT_FLAG,
            DAT_COMPLETION_SUPPRESS_FLAG,
            DAT_COMPLETION_SOLICITED_WAIT_FLAG,
            DAT_COMPLETION_UNSIGNALLED_FLAG,
            DAT_COMPLETION_BARRIER_FENCE_FLAG,
            DAT_COMPLETION_EVD_THRESHOLD_FLAG,
        }),
        enumeration!(DAT_QOS {
            DAT_QOS_BEST_EFFORT,
            DAT_QOS_HIGH_THROUGHPUT,
            DAT_QOS_LOW_LATENCY,
            DAT_QOS_ECONOMY,
            DAT_QOS_PREMIUM,
        }),
        enumeration!(DAT_CONNECT_FLAGS { DAT_CONNECT_DEFAULT_FLAG, DAT_CONNECT_MULTIPATH_FLAG }),
        enumeration!(DAT_CLOSE_FLAGS { DAT_CLOSE_ABRUPT_FLAG, DAT_CLOSE_GRACEFUL_FLAG }),
        enumeration!(DAT_EVD_FLAGS {
            DAT_EVD_SOFTWARE_FLAG,
            DAT_EVD_CR_FLAG,
            DAT_EVD_DTO_FLAG,
            DAT_EVD_CONNECTION_FLAG,
            DAT_EVD_RMR_BIND_FLAG,
            DAT_EVD_ASYNC_FLAG,
            DAT_EVD_DEFAULT_FLAG,
        }),
        enumeration!(DAT_PSP_FLAGS { DAT_PSP_CONSUMER_FLAG, DAT_PSP_PROVIDER_FLAG }),
        enumeration!(DAT_MEM_PRIV_FLAGS {
            DAT_MEM_PRIV_NONE_FLAG,
            DAT_MEM_PRIV_LOCAL_READ_FLAG,
            DAT_MEM_PRIV_REMOTE_READ_FLAG,
            DAT_MEM_PRIV_LOCAL_WRITE_FLAG,
            DAT_MEM_PRIV_REMOTE_WRITE_FLAG,
            DAT_MEM_PRIV_ALL_FLAG,
        }),
        enumeration!(DAT_LMR_PARAM_MASK {
            DAT_LMR_FIELD_IA_HANDLE,
            DAT_LMR_FIELD_MEM_TYPE,
            DAT_LMR_FIELD_REGION_DESC,
            DAT_LMR_FIELD_LENGTH,
            DAT_LMR_FIELD_PZ_HANDLE,
            DAT_LMR_FIELD_MEM_PRIV,
            DAT_LMR_FIELD_LMR_CONTEXT,
            DAT_LMR_FIELD_RMR_CONTEXT,
            DAT_LMR_FIELD_REGISTERED_SIZE,
            DAT_LMR_FIELD_REGISTERED_ADDRESS,
            DAT_LMR_FIELD_ALL,
        }),
        enumeration!(DAT_RMR_PARAM_MASK {
            DAT_RMR_FIELD_IA_HANDLE,
            DAT_RMR_FIELD_PZ_HANDLE,
            DAT_RMR_FIELD_LMR_TRIPLET,
            DAT_RMR_FIELD_MEM_PRIV,
            DAT_RMR_FIELD_RMR_CONTEXT,
            DAT_RMR_FIELD_ALL,
        }),
        enumeration!(DAT_IOV_OWNERSHIP { DAT_IOV_CONSUMER, DAT_IOV_PROVIDER_NOMOD, DAT_IOV_PROVIDER_MOD }),
        enumeration!(DAT_EP_CREATOR_FOR_PSP {
            DAT_PSP_CREATES_EP_NEVER,
            DAT_PSP_CREATES_EP_IFASKED,
            DAT_PSP_CREATES_EP_ALWAYS,
        }),
        enumeration!(DAT_SERVICE_TYPE { DAT_SERVICE_TYPE_RC }),
        enumeration!(DAT_EP_STATE {
            DAT_EP_STATE_UNCONNECTED,
            DAT_EP_STATE_UNCONFIGURED_UNCONNECTED,
            DAT_EP_STATE_RESERVED,
            DAT_EP_STATE_UNCONFIGURED_RESERVED,
            DAT_EP_STATE_PASSIVE_CONNECTION_PENDING,
            DAT_EP_STATE_UNCONFIGURED_PASSIVE,
            DAT_EP_STATE_ACTIVE_CONNECTION_PENDING,
            DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING,
            DAT_EP_STATE_UNCONFIGURED_TENTATIVE,
            DAT_EP_STATE_CONNECTED,
            DAT_EP_STATE_DISCONNECT_PENDING,
            DAT_EP_STATE_DISCONNECTED,
            DAT_EP_STATE_COMPLETION_PENDING,
        }),
        enumeration!(DAT_SRQ_STATE { DAT_SRQ_STATE_OPERATIONAL, DAT_SRQ_STATE_ERROR }),
        enumeration!(DAT_SRQ_PARAM_MASK {
            DAT_SRQ_FIELD_IA_HANDLE,
            DAT_SRQ_FIELD_SRQ_STATE,
            DAT_SRQ_FIELD_PZ_HANDLE,
            DAT_SRQ_FIELD_MAX_RECV_DTO,
            DAT_SRQ_FIELD_MAX_RECV_IOV,
            DAT_SRQ_FIELD_LOW_WATERMARK,
            DAT_SRQ_FIELD_AVAILABLE_DTO_COUNT,
            DAT_SRQ_FIELD_OUTSTANDING_DTO_COUNT,
            DAT_SRQ_FIELD_ALL,
        }),
        enumeration!(DAT_PZ_PARAM_MASK { DAT_PZ_FIELD_IA_HANDLE, DAT_PZ_FIELD_ALL }),
        enumeration!(DAT_PSP_PARAM_MASK {
            DAT_PSP_FIELD_IA_HANDLE,
            DAT_PSP_FIELD_CONN_QUAL,
            DAT_PSP_FIELD_EVD_HANDLE,
            DAT_PSP_FIELD_PSP_FLAGS,
            DAT_PSP_FIELD_ALL,
        }),
        enumeration!(DAT_RSP_PARAM_MASK {
            DAT_RSP_FIELD_IA_HANDLE,
            DAT_RSP_FIELD_CONN_QUAL,
            DAT_RSP_FIELD_EVD_HANDLE,
            DAT_RSP_FIELD_EP_HANDLE,
            DAT_RSP_FIELD_ALL,
        }),
        enumeration!(DAT_CR_PARAM_MASK {
            DAT_CR_FIELD_REMOTE_IA_ADDRESS_PTR,
            DAT_CR_FIELD_REMOTE_PORT_QUAL,
            DAT_CR_FIELD_PRIVATE_DATA_SIZE,
            DAT_CR_FIELD_PRIVATE_DATA,
            DAT_CR_FIELD_LOCAL_EP_HANDLE,
            DAT_CR_FIELD_ALL,
        }),
        enumeration!(DAT_DTO_COMPLETION_STATUS {
            DAT_DTO_SUCCESS,
            DAT_DTO_ERR_FLUSHED,
            DAT_DTO_ERR_LOCAL_LENGTH,
            DAT_DTO_ERR_LOCAL_EP,
            DAT_DTO_ERR_LOCAL_PROTECTION,
            DAT_DTO_ERR_BAD_RESPONSE,
            DAT_DTO_ERR_REMOTE_ACCESS,
            DAT_DTO_ERR_REMOTE_RESPONDER,
            DAT_DTO_ERR_TRANSPORT,
            DAT_DTO_ERR_RECEIVER_NOT_READY,
            DAT_DTO_ERR_PARTIAL_PACKET,
            DAT_RMR_OPERATION_FAILED,
        }),
        enumeration!(DAT_IA_ASYNC_ERROR_REASON { DAT_IA_CATASTROPHIC_ERROR, DAT_IA_OTHER_ERROR }),
        enumeration!(DAT_EP_ASYNC_ERROR_REASON {
            DAT_EP_TRANSFER_TO_ERROR,
            DAT_EP_OTHER_ERROR,
            DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT,
        }),
        enumeration!(DAT_EVD_ASYNC_ERROR_REASON { DAT_EVD_OVERFLOW_ERROR, DAT_EVD_OTHER_ERROR }),
        enumeration!(DAT_SRQ_ASYNC_ERROR_REASON {
            DAT_SRQ_TRANSFER_TO_ERROR,
            DAT_SRQ_OTHER_ERROR,
            DAT_SRQ_LOW_WATERMARK_EVENT,
        }),
        enumeration!(DAT_LMR_ASYNC_ERROR_REASON { DAT_LMR_OTHER_ERROR }),
        enumeration!(DAT_RMR_ASYNC_ERROR_REASON { DAT_RMR_OTHER_ERROR }),
        enumeration!(DAT_PZ_ASYNC_ERROR_REASON { DAT_PZ_OTHER_ERROR }),
        enumeration!(DAT_EVENT_NUMBER {
            DAT_DTO_COMPLETION_EVENT,
            DAT_RMR_BIND_COMPLETION_EVENT,
            DAT_CONNECTION_REQUEST_EVENT,
            DAT_CONNECTION_EVENT_ESTABLISHED,
            DAT_CONNECTION_EVENT_PEER_REJECTED,
            DAT_CONNECTION_EVENT_NON_PEER_REJECTED,
            DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR,
            DAT_CONNECTION_EVENT_DISCONNECTED,
            DAT_CONNECTION_EVENT_BROKEN,
            DAT_CONNECTION_EVENT_TIMED_OUT,
            DAT_CONNECTION_EVENT_UNREACHABLE,
            DAT_ASYNC_ERROR_EVD_OVERFLOW,
            DAT_ASYNC_ERROR_IA_CATASTROPHIC,
            DAT_ASYNC_ERROR_EP_BROKEN,
            DAT_ASYNC_ERROR_TIMED_OUT,
            DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR,
            DAT_SOFTWARE_EVENT,
        }),
        enumeration!(DAT_CNO_PARAM_MASK { DAT_CNO_FIELD_IA_HANDLE, DAT_CNO_FIELD_AGENT, DAT_CNO_FIELD_ALL }),
        enumeration!(DAT_PZ_SUPPORT { DAT_PZ_UNIQUE, DAT_PZ_SHAREABLE }),
    ]
}

/// Every integer macro.
fn integers() -> Vec<(&'static str, i64)> {
    integers![
        DAT_VERSION_MAJOR,
        DAT_VERSION_MINOR,
        DAT_THREADSAFE,
        DAT_OPTIMAL_ALIGNMENT,
        DAT_AF_INET,
        DAT_AF_INET6,
        DAT_CLASS_ERROR,
        DAT_CLASS_WARNING,
        DAT_CLASS_SUCCESS,
        DAT_TYPE_MASK,
        DAT_SUBTYPE_MASK,
        DAT_NAME_NOT_FOUND,
        DAT_NAME_MAX_LENGTH,
        DAT_TIMEOUT_INFINITE,
        DAT_CLOSE_DEFAULT,
        DAT_MEM_PRIV_READ_FLAG,
        DAT_MEM_PRIV_WRITE_FLAG,
        DAT_IA_FIELD_IA_MAX_MTU_SIZE,
        DAT_IA_FIELD_IA_ADAPTER_NAME,
        DAT_IA_FIELD_IA_VENDOR_NAME,
        DAT_IA_FIELD_IA_HARDWARE_MAJOR_VERSION,
        DAT_IA_FIELD_IA_HARDWARE_MINOR_VERSION,
        DAT_IA_FIELD_IA_FIRMWARE_MAJOR_VERSION,
        DAT_IA_FIELD_IA_FIRMWARE_MINOR_VERSION,
        DAT_IA_FIELD_IA_ADDRESS_PTR,
        DAT_IA_FIELD_IA_MAX_EPS,
        DAT_IA_FIELD_IA_MAX_DTO_PER_EP,
        DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN,
        DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT,
        DAT_IA_FIELD_IA_MAX_EVDS,
        DAT_IA_FIELD_IA_MAX_EVD_QLEN,
        DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_DTO,
        DAT_IA_FIELD_IA_MAX_LMRS,
        DAT_IA_FIELD_IA_MAX_LMR_BLOCK_SIZE,
        DAT_IA_FIELD_IA_MAX_LMR_VIRTUAL_ADDRESS,
        DAT_IA_FIELD_IA_MAX_PZS,
        DAT_IA_FIELD_IA_MAX_MESSAGE_SIZE,
        DAT_IA_FIELD_IA_MAX_RDMA_SIZE,
        DAT_IA_FIELD_IA_MAX_RMRS,
        DAT_IA_FIELD_IA_MAX_RMR_TARGET_ADDRESS,
        DAT_IA_FIELD_IA_MAX_SRQS,
        DAT_IA_FIELD_IA_MAX_EP_PER_SRQ,
        DAT_IA_FIELD_IA_MAX_RECV_PER_SRQ,
        DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_READ,
        DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_WRITE,
        DAT_IA_FIELD_IA_MAX_RDMA_READ_IN,
        DAT_IA_FIELD_IA_MAX_RDMA_READ_OUT,
        DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN_GUARANTEED,
        DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT_GUARANTEED,
        DAT_IA_FIELD_IA_NUM_TRANSPORT_ATTR,
        DAT_IA_FIELD_IA_TRANSPORT_ATTR,
        DAT_IA_FIELD_IA_NUM_VENDOR_ATTR,
        DAT_IA_FIELD_IA_VENDOR_ATTR,
        DAT_IA_ALL,
        DAT_IA_FIELD_ALL,
        DAT_IA_FIELD_NONE,
        DAT_EP_STATE_ERROR,
        DAT_EP_FIELD_IA_HANDLE,
        DAT_EP_FIELD_EP_STATE,
        DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR,
        DAT_EP_FIELD_LOCAL_PORT_QUAL,
        DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR,
        DAT_EP_FIELD_REMOTE_PORT_QUAL,
        DAT_EP_FIELD_PZ_HANDLE,
        DAT_EP_FIELD_RECV_EVD_HANDLE,
        DAT_EP_FIELD_REQUEST_EVD_HANDLE,
        DAT_EP_FIELD_CONNECT_EVD_HANDLE,
        DAT_EP_FIELD_SRQ_HANDLE,
        DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE,
        DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE,
        DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE,
        DAT_EP_FIELD_EP_ATTR_QOS,
        DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS,
        DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS,
        DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS,
        DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS,
        DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV,
        DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV,
        DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN,
        DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT,
        DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW,
        DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV,
        DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV,
        DAT_EP_FIELD_EP_ATTR_NUM_TRANSPORT_ATTR,
        DAT_EP_FIELD_EP_ATTR_TRANSPORT_SPECIFIC_ATTR,
        DAT_EP_FIELD_EP_ATTR_NUM_PROVIDER_ATTR,
        DAT_EP_FIELD_EP_ATTR_PROVIDER_SPECIFIC_ATTR,
        DAT_EP_FIELD_EP_ATTR_ALL,
        DAT_EP_FIELD_ALL,
        DAT_WATERMARK_INFINITE,
        DAT_HW_DEFAULT,
        DAT_SRQ_LW_DEFAULT,
        DAT_VALUE_UNKNOWN,
        DAT_DTO_LENGTH_ERROR,
        DAT_DTO_FAILURE,
        DAT_RMR_BIND_SUCCESS,
        DAT_RMR_BIND_FAILURE,
        DAT_LMR_COOKIE_SIZE,
        DAT_PROVIDER_FIELD_PROVIDER_NAME,
        DAT_PROVIDER_FIELD_PROVIDER_VERSION_MAJOR,
        DAT_PROVIDER_FIELD_PROVIDER_VERSION_MINOR,
        DAT_PROVIDER_FIELD_DAPL_VERSION_MAJOR,
        DAT_PROVIDER_FIELD_DAPL_VERSION_MINOR,
        DAT_PROVIDER_FIELD_LMR_MEM_TYPE_SUPPORTED,
        DAT_PROVIDER_FIELD_IOV_OWNERSHIP,
        DAT_PROVIDER_FIELD_DAT_QOS_SUPPORTED,
        DAT_PROVIDER_FIELD_COMPLETION_FLAGS_SUPPORTED,
        DAT_PROVIDER_FIELD_IS_THREAD_SAFE,
        DAT_PROVIDER_FIELD_MAX_PRIVATE_DATA_SIZE,
        DAT_PROVIDER_FIELD_SUPPORTS_MULTIPATH,
        DAT_PROVIDER_FIELD_EP_CREATOR,
        DAT_PROVIDER_FIELD_PZ_SUPPORT,
        DAT_PROVIDER_FIELD_OPTIMAL_BUFFER_ALIGNMENT,
        DAT_PROVIDER_FIELD_EVD_STREAM_MERGING_SUPPORTED,
        DAT_PROVIDER_FIELD_SRQ_SUPPORTED,
        DAT_PROVIDER_FIELD_SRQ_WATERMARKS_SUPPORTED,
        DAT_PROVIDER_FIELD_SRQ_EP_PZ_DIFFERENCE_SUPPORTED,
        DAT_PROVIDER_FIELD_SRQ_INFO_SUPPORTED,
        DAT_PROVIDER_FIELD_EP_RECV_INFO_SUPPORTED,
        DAT_PROVIDER_FIELD_LMR_SYNC_REQ,
        DAT_PROVIDER_FIELD_DTO_ASYNC_RETURN_GUARANTEED,
        DAT_PROVIDER_FIELD_RDMA_WRITE_FOR_RDMA_READ_REQ,
        DAT_PROVIDER_FIELD_NUM_PROVIDER_SPECIFIC_ATTR,
        DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR,
        DAT_PROVIDER_FIELD_ALL,
        DAT_PROVIDER_FIELD_NONE,
    ]
}

/// Every plain type.
fn typedefs() -> Vec<Type> {
    types![
        DAT_UINT32,
        DAT_UINT64,
        DAT_UVERYLONG,
        DAT_PVOID,
        DAT_COUNT,
        DAT_PADDR,
        DAT_SOCK_ADDR,
        DAT_SOCK_ADDR6,
        DAT_MEM_TYPE,
        DAT_HANDLE_TYPE,
        DAT_EVD_STATE,
        DAT_EVD_PARAM_MASK,
        DAT_PROVIDER_ATTR_MASK,
        DAT_RETURN_TYPE,
        DAT_RETURN,
        DAT_RETURN_SUBTYPE,
        DAT_NAME_PTR,
        DAT_NAMED_ATTR,
        DAT_BOOLEAN,
        DAT_CONTEXT,
        DAT_DTO_COOKIE,
        DAT_RMR_COOKIE,
        DAT_COMPLETION_FLAGS,
        DAT_TIMEOUT,
        DAT_HANDLE,
        DAT_CR_HANDLE,
        DAT_EP_HANDLE,
        DAT_EVD_HANDLE,
        DAT_IA_HANDLE,
        DAT_LMR_HANDLE,
        DAT_PSP_HANDLE,
        DAT_PZ_HANDLE,
        DAT_RMR_HANDLE,
        DAT_RSP_HANDLE,
        DAT_SRQ_HANDLE,
        DAT_IA_ADDRESS_PTR,
        DAT_CONN_QUAL,
        DAT_PORT_QUAL,
        DAT_QOS,
        DAT_CONNECT_FLAGS,
        DAT_CLOSE_FLAGS,
        DAT_EVD_FLAGS,
        DAT_PSP_FLAGS,
        DAT_LMR_CONTEXT,
        DAT_RMR_CONTEXT,
        DAT_VLEN,
        DAT_VADDR,
        DAT_PROVIDER_ATTR,
        DAT_EVD_PARAM,
        DAT_LMR_PARAM,
        DAT_LMR_TRIPLET,
        DAT_RMR_TRIPLET,
        DAT_MEM_PRIV_FLAGS,
        DAT_LMR_PARAM_MASK,
        DAT_RMR_PARAM,
        DAT_RMR_PARAM_MASK,
        DAT_IOV_OWNERSHIP,
        DAT_EP_CREATOR_FOR_PSP,
        DAT_IA_ATTR,
        DAT_IA_ATTR_MASK,
        DAT_SERVICE_TYPE,
        DAT_EP_ATTR,
        DAT_EP_STATE,
        DAT_EP_PARAM,
        DAT_EP_PARAM_MASK,
        DAT_SRQ_STATE,
        DAT_SRQ_ATTR,
        DAT_SRQ_PARAM,
        DAT_SRQ_PARAM_MASK,
        DAT_PZ_PARAM,
        DAT_PZ_PARAM_MASK,
        DAT_PSP_PARAM,
        DAT_PSP_PARAM_MASK,
        DAT_RSP_PARAM,
        DAT_RSP_PARAM_MASK,
        DAT_CR_PARAM,
        DAT_CR_PARAM_MASK,
        DAT_DTO_COMPLETION_STATUS,
        DAT_DTO_COMPLETION_EVENT_DATA,
        DAT_RMR_BIND_COMPLETION_EVENT_DATA,
        DAT_SP_HANDLE,
        DAT_CR_ARRIVAL_EVENT_DATA,
        DAT_CONNECTION_EVENT_DATA,
        DAT_ASYNCH_ERROR_EVENT_DATA,
        DAT_IA_ASYNC_ERROR_REASON,
        DAT_EP_ASYNC_ERROR_REASON,
        DAT_EVD_ASYNC_ERROR_REASON,
        DAT_SRQ_ASYNC_ERROR_REASON,
        DAT_LMR_ASYNC_ERROR_REASON,
        DAT_RMR_ASYNC_ERROR_REASON,
        DAT_PZ_ASYNC_ERROR_REASON,
        DAT_SOFTWARE_EVENT_DATA,
        DAT_EVENT_NUMBER,
        DAT_EVENT_DATA,
        DAT_EVENT,
        DAT_PROVIDER_INFO,
        DAT_CNO_HANDLE,
        DAT_LMR_COOKIE,
        DAT_OS_WAIT_PROXY_AGENT,
        DAT_SHARED_MEMORY,
        DAT_REGION_DESCRIPTION,
        DAT_CNO_PARAM,
        DAT_CNO_PARAM_MASK,
        DAT_PZ_SUPPORT,
        DAT_PROVIDER,
    ]
}

/// Every function type, by the name and by what it expands to.
fn function_types() -> Vec<Type> {
    types![
        DAT_AGENT_FUNC,
        DAT_LMR_CREATE_FUNC,
        DAT_EVD_CREATE_FUNC,
        DAT_EVD_MODIFY_CNO_FUNC,
        DAT_CNO_CREATE_FUNC,
        DAT_CNO_MODIFY_AGENT_FUNC,
        DAT_CNO_QUERY_FUNC,
        DAT_CNO_FREE_FUNC,
        DAT_CNO_WAIT_FUNC,
        DAT_EVD_ENABLE_FUNC,
        DAT_EVD_WAIT_FUNC,
        DAT_EVD_DISABLE_FUNC,
        DAT_EVD_SET_UNWAITABLE_FUNC,
        DAT_EVD_CLEAR_UNWAITABLE_FUNC,
        DAT_IA_OPEN_FUNC,
        DAT_IA_OPENV_FUNC,
        DAT_IA_CLOSE_FUNC,
        DAT_IA_QUERY_FUNC,
        DAT_SET_CONSUMER_CONTEXT_FUNC,
        DAT_GET_CONSUMER_CONTEXT_FUNC,
        DAT_GET_HANDLE_TYPE_FUNC,
        DAT_CR_QUERY_FUNC,
        DAT_CR_ACCEPT_FUNC,
        DAT_CR_REJECT_FUNC,
        DAT_CR_HANDOFF_FUNC,
        DAT_EVD_RESIZE_FUNC,
        DAT_EVD_POST_SE_FUNC,
        DAT_EVD_DEQUEUE_FUNC,
        DAT_EVD_FREE_FUNC,
        DAT_EVD_QUERY_FUNC,
        DAT_EP_CREATE_FUNC,
        DAT_EP_CREATE_WITH_SRQ_FUNC,
        DAT_EP_QUERY_FUNC,
        DAT_EP_MODIFY_FUNC,
        DAT_EP_CONNECT_FUNC,
        DAT_EP_DUP_CONNECT_FUNC,
        DAT_EP_DISCONNECT_FUNC,
        DAT_EP_POST_SEND_FUNC,
        DAT_EP_POST_RECV_FUNC,
        DAT_EP_POST_RDMA_READ_FUNC,
        DAT_EP_POST_RDMA_WRITE_FUNC,
        DAT_EP_GET_STATUS_FUNC,
        DAT_EP_FREE_FUNC,
        DAT_EP_RESET_FUNC,
        DAT_EP_RECV_QUERY_FUNC,
        DAT_EP_SET_WATERMARK_FUNC,
        DAT_LMR_FREE_FUNC,
        DAT_LMR_QUERY_FUNC,
        DAT_LMR_SYNC_RDMA_READ_FUNC,
        DAT_LMR_SYNC_RDMA_WRITE_FUNC,
        DAT_RMR_CREATE_FUNC,
        DAT_RMR_QUERY_FUNC,
        DAT_RMR_BIND_FUNC,
        DAT_RMR_FREE_FUNC,
        DAT_PSP_CREATE_FUNC,
        DAT_PSP_CREATE_ANY_FUNC,
        DAT_PSP_QUERY_FUNC,
        DAT_PSP_FREE_FUNC,
        DAT_RSP_CREATE_FUNC,
        DAT_RSP_QUERY_FUNC,
        DAT_RSP_FREE_FUNC,
        DAT_PZ_CREATE_FUNC,
        DAT_PZ_QUERY_FUNC,
        DAT_PZ_FREE_FUNC,
        DAT_SRQ_CREATE_FUNC,
        DAT_SRQ_SET_LW_FUNC,
        DAT_SRQ_FREE_FUNC,
        DAT_SRQ_QUERY_FUNC,
        DAT_SRQ_RESIZE_FUNC,
        DAT_SRQ_POST_RECV_FUNC,
        DAT_PROVIDER_INIT_FUNC,
        DAT_PROVIDER_FINI_FUNC,
    ]
}

/// Every record and its fields.
fn records() -> Vec<Record> {
    vec![
        record!(DAT_NAMED_ATTR { name, value }),
        record!(DAT_CONTEXT { as_ptr, as_64, as_index }),
        record!(DAT_LMR_TRIPLET { lmr_context, pad, virtual_address, segment_length }),
        record!(DAT_RMR_TRIPLET { rmr_context, pad, target_address, segment_length }),
        record!(DAT_RMR_PARAM { ia_handle, pz_handle, lmr_triplet, mem_priv, rmr_context }),
        record!(DAT_IA_ATTR {
            adapter_name,
            vendor_name,
            hardware_version_major,
            hardware_version_minor,
            firmware_version_major,
            firmware_version_minor,
            ia_address_ptr,
            max_eps,
            max_dto_per_ep,
            max_rdma_read_per_ep_in,
            max_rdma_read_per_ep_out,
            max_evds,
            max_evd_qlen,
            max_iov_segments_per_dto,
            max_lmrs,
            max_lmr_block_size,
            max_lmr_virtual_address,
            max_pzs,
            max_message_size,
            max_rdma_size,
            max_rmrs,
            max_rmr_target_address,
            max_srqs,
            max_ep_per_srq,
            max_recv_per_srq,
            max_iov_segments_per_rdma_read,
            max_iov_segments_per_rdma_write,
            max_rdma_read_in,
            max_rdma_read_out,
            max_rdma_read_per_ep_in_guaranteed,
            max_rdma_read_per_ep_out_guaranteed,
            num_transport_attr,
            transport_attr,
            num_vendor_attr,
            vendor_attr,
        }),
        record!(DAT_EP_ATTR {
            service_type,
            max_message_size,
            max_rdma_size,
            qos,
            recv_completion_flags,
            request_completion_flags,
            max_recv_dtos,
            max_request_dtos,
            max_recv_iov,
            max_request_iov,
            max_rdma_read_in,
            max_rdma_read_out,
            srq_soft_hw,
            max_rdma_read_iov,
            max_rdma_write_iov,
            ep_transport_specific_count,
            ep_transport_specific,
            ep_provider_specific_count,
            ep_provider_specific,
        }),
        record!(DAT_EP_PARAM {
            ia_handle,
            ep_state,
            local_ia_address_ptr,
            local_port_qual,
            remote_ia_address_ptr,
            remote_port_qual,
            pz_handle,
            recv_evd_handle,
            request_evd_handle,
            connect_evd_handle,
            srq_handle,
            ep_attr,
        }),
        record!(DAT_SRQ_ATTR { max_recv_dtos, max_recv_iov, low_watermark }),
        record!(DAT_SRQ_PARAM {
            ia_handle,
            srq_state,
            pz_handle,
            max_recv_dtos,
            max_recv_iov,
            low_watermark,
            available_dto_count,
            outstanding_dto_count,
        }),
        record!(DAT_PZ_PARAM { ia_handle }),
        record!(DAT_PSP_PARAM { ia_handle, conn_qual, evd_handle, psp_flags }),
        record!(DAT_RSP_PARAM { ia_handle, conn_qual, evd_handle, ep_handle }),
        record!(DAT_CR_PARAM {
            remote_ia_address_ptr,
            remote_port_qual,
            private_data_size,
            private_data,
            local_ep_handle,
        }),
        record!(DAT_DTO_COMPLETION_EVENT_DATA { ep_handle, user_cookie, status, transfered_length }),
        record!(DAT_RMR_BIND_COMPLETION_EVENT_DATA { rmr_handle, user_cookie, status }),
        record!(DAT_SP_HANDLE { rsp_handle, psp_handle }),
        record!(DAT_CR_ARRIVAL_EVENT_DATA { sp_handle, local_ia_address_ptr, conn_qual, cr_handle }),
        record!(DAT_CONNECTION_EVENT_DATA { ep_handle, private_data_size, private_data }),
        record!(DAT_ASYNCH_ERROR_EVENT_DATA { dat_handle, reason }),
        record!(DAT_SOFTWARE_EVENT_DATA { pointer }),
        record!(DAT_EVENT_DATA {
            dto_completion_event_data,
            rmr_completion_event_data,
            cr_arrival_event_data,
            connect_event_data,
            asynch_error_event_data,
            software_event_data,
        }),
        record!(DAT_EVENT { event_number, evd_handle, event_data }),
        record!(DAT_PROVIDER_INFO { ia_name, dapl_version_major, dapl_version_minor, is_thread_safe }),
        record!(DAT_EVD_PARAM { ia_handle, evd_qlen, evd_state, cno_handle, evd_flags }),
        record!(DAT_OS_WAIT_PROXY_AGENT { instance_data, proxy_agent_func }),
        record!(DAT_SHARED_MEMORY { virtual_address, shared_memory_id }),
        record!(DAT_REGION_DESCRIPTION { for_va, for_lmr_handle, for_shared_memory }),
        record!(DAT_LMR_PARAM {
            ia_handle,
            mem_type,
            region_desc,
            length,
            pz_handle,
            mem_priv,
            lmr_context,
            rmr_context,
            registered_size,
            registered_address,
        }),
        record!(DAT_CNO_PARAM { ia_handle, agent }),
        record!(DAT_PROVIDER_ATTR {
            provider_name,
            provider_version_major,
            provider_version_minor,
            dapl_version_major,
            dapl_version_minor,
            lmr_mem_types_supported,
            iov_ownership_on_return,
            dat_qos_supported,
            completion_flags_supported,
            is_thread_safe,
            max_private_data_size,
            supports_multipath,
            ep_creator,
            pz_support,
            optimal_buffer_alignment,
            evd_stream_merging_supported,
            srq_supported,
            srq_watermarks_supported,
            srq_ep_pz_difference_supported,
            srq_info_supported,
            ep_recv_info_supported,
            lmr_sync_req,
            dto_async_return_guaranteed,
            rdma_write_for_rdma_read_req,
            num_provider_specific_attr,
            provider_specific_attr,
        }),
        record!(DAT_PROVIDER {
            device_name,
            extension,
            ia_open_func,
            ia_query_func,
            ia_close_func,
            set_consumer_context_func,
            get_consumer_context_func,
            get_handle_type_func,
            cno_create_func,
            cno_modify_agent_func,
            cno_query_func,
            cno_free_func,
            cno_wait_func,
            cr_query_func,
            cr_accept_func,
            cr_reject_func,
            cr_handoff_func,
            evd_create_func,
            evd_query_func,
            evd_modify_cno_func,
            evd_enable_func,
            evd_disable_func,
            evd_wait_func,
            evd_resize_func,
            evd_post_se_func,
            evd_dequeue_func,
            evd_free_func,
            ep_create_func,
            ep_query_func,
            ep_modify_func,
            ep_connect_func,
            ep_dup_connect_func,
            ep_disconnect_func,
            ep_post_send_func,
            ep_post_recv_func,
            ep_post_rdma_read_func,
            ep_post_rdma_write_func,
            ep_get_status_func,
            ep_free_func,
            lmr_create_func,
            lmr_query_func,
            lmr_free_func,
            rmr_create_func,
            rmr_query_func,
            rmr_bind_func,
            rmr_free_func,
            psp_create_func,
            psp_query_func,
            psp_free_func,
            rsp_create_func,
            rsp_query_func,
            rsp_free_func,
            pz_create_func,
            pz_query_func,
            pz_free_func,
            psp_create_any_func,
            ep_reset_func,
            evd_set_unwaitable_func,
            evd_clear_unwaitable_func,
            lmr_sync_rdma_read_func,
            lmr_sync_rdma_write_func,
            ep_create_with_srq_func,
            ep_recv_query_func,
            ep_set_watermark_func,
            srq_create_func,
            srq_free_func,
            srq_post_recv_func,
            srq_query_func,
            srq_resize_func,
            srq_set_lw_func,
        }),
    ]
}
