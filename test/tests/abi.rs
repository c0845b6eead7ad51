//! The C headers against the recorded ABI (`test/abi/dat-1.2.json` and `dat-2.0.json`): every size, offset, value,
//! type, prototype, table entry and macro becomes an assertion, in C and in C++.
//!
//! The test generates a program from the JSON and compiles it under four standards. The program checks at run time
//! what a compiler cannot: strings, the function that a macro calls, and its arguments. `abi_rust.rs` checks the Rust
//! declarations. No libdat is needed: the program defines its own `dat_ia_openv`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use program::{Program, Tongue, V1, V2, Version};
use serde_json::Value;

#[path = "abi/extensions.rs"]
mod extensions;
#[path = "abi/program.rs"]
mod program;

/// Compiler flags without warnings from the headers.
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

/// The function type `ret (params)`, or with `star` the pointer type `ret (*)(params)`.
fn signature(function: &Value, star: &str) -> String {
    let params: Vec<&str> = list(function, "params").iter().map(|p| text(p, "c_type")).collect();
    let mut params = if params.is_empty() { "void".to_owned() } else { params.join(", ") };
    if function["variadic"] == true {
        params.push_str(", ...");
    }
    format!("{} {star}({params})", text(function, "return_type"))
}

fn typedefs(program: &mut Program, facts: &Value) {
    for fact in list(facts, "typedefs") {
        let name = text(fact, "name");
        // C has no other name for this type than va_list.
        let canonical = text(fact, "canonical").replace("struct __va_list_tag *", "va_list");
        let same = program.tongue.same(name, &canonical);
        program.holds(&same, &format!("{name} is {}", text(fact, "canonical")));
        program.size_align(name, fact);
    }
}

fn enums(program: &mut Program, facts: &Value) {
    for fact in list(facts, "enums") {
        let name = text(fact, "typedef");
        let same = program.tongue.same(name, &format!("enum {}", text(fact, "tag")));
        program.holds(&same, &format!("{name} names its enum"));
        program.size_align(name, fact);
        assert_eq!(text(fact, "representation"), "unsigned int");
        match program.tongue {
            Tongue::C => program.holds(&format!("({name})-1 > ({name})0"), &format!("{name} is unsigned")),
            Tongue::Cxx => program.holds(
                &format!("(std::is_same<std::underlying_type<{name}>::type, unsigned int>::value)"),
                &format!("{name} is unsigned"),
            ),
        }
        for constant in list(fact, "constants") {
            let (name, value) = (text(constant, "name"), number(constant, "value"));
            program.holds(&format!("(long long){name} == {value}LL"), &format!("{name} = {value}"));
        }
    }
}

fn fields(program: &mut Program, record: &str, facts: &[Value]) {
    for field in facts {
        if let Some(members) = field["members"].as_array() {
            let members = members_of(program, record, field, members);
            fields(program, record, &members);
            continue;
        }
        let name = text(field, "name");
        let lvalue = format!("{}->{name}", program.tongue.null(record));
        program.holds(
            &format!("offsetof({record}, {name}) == {}", number(field, "offset")),
            &format!("offset of {record}.{name}"),
        );
        program.holds(&format!("sizeof({lvalue}) == {}", number(field, "size")), &format!("size of {record}.{name}"));
        let typing = program.tongue.type_of(&lvalue);
        let align = match program.tongue {
            Tongue::C => format!("_Alignof({typing})"),
            Tongue::Cxx => format!("alignof(std::remove_reference<decltype(({lvalue}))>::type)"),
        };
        program.holds(&format!("{align} == {}", number(field, "align")), &format!("alignment of {record}.{name}"));
        let same = program.tongue.same_object(&lvalue, text(field, "c_type"));
        program.holds(&same, &format!("type of {record}.{name}"));
        if let Some(dimensions) = field["array_dims"].as_array() {
            let elements: i64 = dimensions.iter().map(|n| n.as_i64().expect("array dimensions are integers")).product();
            program.holds(
                &format!("sizeof({lvalue}) == {elements} * {}", number(field, "element_size")),
                &format!("elements of {record}.{name}"),
            );
        }
    }
}

/// The members of a union without a tag, as fields of the record: `union.member`, or `member` if the union has no name.
fn members_of(program: &mut Program, record: &str, union: &Value, members: &[Value]) -> Vec<Value> {
    if let Some(name) = union["name"].as_str() {
        program.holds(
            &format!("offsetof({record}, {name}) == {}", number(union, "offset")),
            &format!("offset of {record}.{name}"),
        );
        let lvalue = format!("{}->{name}", program.tongue.null(record));
        program.holds(&format!("sizeof({lvalue}) == {}", number(union, "size")), &format!("size of {record}.{name}"));
    }
    let member_of = |member: &Value| {
        let mut field = member.clone();
        if let Some(name) = union["name"].as_str() {
            field["name"] = format!("{name}.{}", text(member, "name")).into();
        }
        field["offset"] = (number(union, "offset") + number(member, "offset")).into();
        field
    };
    members.iter().map(member_of).collect()
}

fn records(program: &mut Program, facts: &Value) {
    for fact in list(facts, "records") {
        let name = text(fact, "typedef");
        let tagged = format!("{} {}", text(fact, "kind"), text(fact, "tag"));
        let same = program.tongue.same(name, &tagged);
        program.holds(&same, &format!("{name} is {tagged}"));
        program.size_align(name, fact);
        fields(program, name, list(fact, "fields"));
        // A further member makes the record larger, unless the member fits in the padding.
        if text(fact, "kind") == "struct" && program.tongue == Tongue::C {
            let last = list(fact, "fields").last().expect("a record has at least one field");
            let end = number(last, "offset") + number(last, "size");
            let align = number(fact, "align");
            program.holds(
                &format!("sizeof({name}) == {}", (end + align - 1) / align * align),
                &format!("{name} ends with {}", last["name"]).replace('"', ""),
            );
        }
    }
}

fn macros(program: &mut Program, facts: &Value) {
    let macros = &facts["macros"];
    for fact in list(macros, "integer") {
        let (name, value) = (text(fact, "name"), number(fact, "value"));
        program.defined(name);
        program.holds(&format!("(long long)({name}) == {value}LL"), &format!("{name} = {value}"));
        // An alias of an enum constant has type int only in C.
        let typing = text(fact, "expr_type");
        if program.tongue == Tongue::C || typing != "int" {
            let same = program.tongue.same(&program.tongue.type_of(name), typing);
            program.holds(&same, &format!("{name} is of type {typing}"));
        }
        if let Some(alias) = fact["alias_of"].as_str() {
            program.holds(&format!("({name}) == ({alias})"), &format!("{name} stands for {alias}"));
        }
    }
    for fact in list(macros, "pointer") {
        let (name, value) = (text(fact, "name"), text(fact, "hex"));
        program.defined(name);
        let same = program.tongue.same(&program.tongue.type_of(name), "void *");
        program.holds(&same, &format!("{name} is a handle"));
        program.check(&format!("(uintptr_t)({name}) == (uintptr_t){value}"), &format!("{name} = {value}"));
    }
    for fact in list(macros, "string") {
        let (name, value) = (text(fact, "name"), text(fact, "value"));
        program.holds(&format!("sizeof({name}) == {}", value.len() + 1), &format!("length of {name}"));
        program.check(&format!("strcmp({name}, \"{value}\") == 0"), &format!("{name} is {value}"));
    }
    for fact in list(macros, "identifier_alias") {
        let (name, target) = (text(fact, "name"), text(fact, "target"));
        program.defined(name);
        program.check(&format!("strcmp(TEXT({name}), \"{target}\") == 0"), &format!("{name} stands for {target}"));
    }
    for fact in list(macros, "empty") {
        let name = text(fact, "name");
        program.defined(name);
        program.holds(&format!("sizeof(TEXT({name})) == 1"), &format!("{name} is empty"));
    }
}

/// Checks for macros that the JSON describes only as text. A macro without a check fails the test.
fn macros_in_words(program: &mut Program, facts: &Value) {
    let names = |key: &str| -> BTreeSet<String> {
        list(&facts["macros"], key).iter().map(|fact| text(fact, "name").to_owned()).collect()
    };
    let known = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    let mut other =
        known(&["DAT_OS_WAIT_PROXY_AGENT_NULL", "DAT_PROVIDER_INIT_FUNC_NAME", "DAT_PROVIDER_FINI_FUNC_NAME"]);
    let mut helpers = known(&["DAT_IS_WARNING", "DAT_GET_TYPE", "DAT_GET_SUBTYPE", "DAT_HANDLE_TO_PROVIDER"]);
    if program.version == V2 {
        other.insert("DAT_IA_HA_RELATED".into());
        helpers.extend(known(&["DAT_IA_HANDLE_TO_UL", "DAT_UL_TO_IA_HANDLE"]));
        // Unlike in the reference's header, this macro can be used.
        program.check("DAT_IA_HA_RELATED(object, 0, 0) == 79", "DAT_IA_HA_RELATED calls its slot");
        program.check("DAT_IA_HANDLE_TO_UL((DAT_IA_HANDLE)7) == 7ul", "an IA handle as a number");
        program.check("DAT_UL_TO_IA_HANDLE(7) == (DAT_IA_HANDLE)7", "a number as an IA handle");
    }
    assert_eq!(names("other"), other);
    assert_eq!(names("helper_function_like"), helpers);
    program.check("strcmp(TEXT(DAT_PROVIDER_INIT_FUNC_NAME), \"dat_provider_init\") == 0", "init is a bare name");
    program.check("strcmp(TEXT(DAT_PROVIDER_FINI_FUNC_NAME), \"dat_provider_fini\") == 0", "fini is a bare name");
    program.run.push_str(
        "    DAT_OS_WAIT_PROXY_AGENT none = DAT_OS_WAIT_PROXY_AGENT_NULL;\n    DAT_PROVIDER *table = &the_table;\n",
    );
    program.check("none.instance_data == NULL", "the null agent has no data");
    program.check("none.proxy_agent_func == NULL", "the null agent has no function");
    program.check("DAT_HANDLE_TO_PROVIDER(&table) == &the_table", "the first word of an object is its table");

    program.holds("DAT_IS_WARNING(0xc0050001) == 0x40000000", "DAT_IS_WARNING gives the bit");
    program.holds("DAT_IS_WARNING(0x80050001) == 0", "DAT_IS_WARNING of an error");
    program.holds("DAT_GET_TYPE(0xc0050012) == DAT_INVALID_HANDLE + 0u", "DAT_GET_TYPE drops class and subtype");
    program.holds("DAT_GET_TYPE(DAT_NOT_IMPLEMENTED) == 0x3fff0000", "DAT_GET_TYPE of NOT_IMPLEMENTED");
    program.holds("DAT_GET_SUBTYPE(0xc0050012) == 0x12", "DAT_GET_SUBTYPE drops class and type");
    for call in ["DAT_IS_WARNING(0)", "DAT_GET_TYPE(0)", "DAT_GET_SUBTYPE(0)"] {
        let same = program.tongue.same(&program.tongue.type_of(call), "unsigned int");
        program.holds(&same, &format!("{call} is a DAT_UINT32"));
    }
}

fn functions(program: &mut Program, facts: &Value) {
    for fact in list(facts, "functions") {
        let name = text(fact, "name");
        let same = program.tongue.same(&program.tongue.type_of(name), &signature(fact, ""));
        program.holds(&same, &format!("prototype of {name}"));
    }
    for fact in list(facts, "function_pointer_types") {
        let name = text(fact, "name");
        let same = program.tongue.same(name, &signature(fact, "(*)"));
        program.holds(&same, &format!("type {name}"));
    }
}

fn table(program: &mut Program, facts: &Value) {
    let table = &facts["provider_table"];
    program.size_align(text(table, "struct"), table);
    program.size_align(text(table, "typedef"), table);
    let entries = list(table, "entries");
    let functions = entries.iter().filter(|entry| !entry["function_index"].is_null()).count();
    assert_eq!(functions as i64, number(table, "function_entries"));
    fields(program, "DAT_PROVIDER", entries_as_fields(entries).as_slice());
    for entry in entries {
        let field = text(entry, "field");
        program.holds(
            &format!("offsetof(DAT_PROVIDER, {field}) == {} * sizeof(void *)", number(entry, "index")),
            &format!("place of {field}"),
        );
        if entry["same_signature"] == true {
            let slot = program.tongue.type_of(&format!("{}->{field}", program.tongue.null("DAT_PROVIDER")));
            let slot = match program.tongue {
                Tongue::C => slot,
                Tongue::Cxx => format!("decltype(DAT_PROVIDER::{field})"),
            };
            let function = text(entry, "function");
            let same = program.tongue.same(&slot, &program.tongue.type_of(&format!("&{function}")));
            program.holds(&same, &format!("{field} takes {function}"));
        }
    }
}

fn entries_as_fields(entries: &[Value]) -> Vec<Value> {
    entries
        .iter()
        .map(|entry| {
            let mut field = entry.clone();
            field["name"] = entry["field"].clone();
            field["align"] = 8.into();
            field
        })
        .collect()
}

fn is_va_list(param: &Value) -> bool {
    param["c_type"] == "va_list"
}

/// Every table entry gets a stub that records its index and its arguments. Then the program calls every `DAT_*`
/// macro.
fn redirections(program: &mut Program, facts: &Value) {
    let types = list(facts, "function_pointer_types");
    program.top.push_str(
        "static DAT_PROVIDER the_table;\nstatic int called;\nstatic unsigned char seen[12][64];\nstatic size_t seen_size[12];\n",
    );
    program.run.push_str("    void *object[2] = { &the_table, 0 };\n");
    for entry in list(&facts["provider_table"], "entries") {
        let Some(typing) = types.iter().find(|t| t["name"] == entry["c_type"]) else { continue };
        let (slot, index) = (text(entry, "field"), number(entry, "index"));
        let params = list(typing, "params");
        let declared: Vec<String> = (0..params.len()).map(|i| format!("{} a{i}", text(&params[i], "c_type"))).collect();
        writeln!(program.top, "static DAT_RETURN stub_{slot}({})\n{{", declared.join(", ")).expect("a String grows");
        for (i, param) in params.iter().enumerate() {
            // A va_list is an array, so the parameter is a pointer.
            let size = if is_va_list(param) { "sizeof(void *)".to_owned() } else { format!("sizeof a{i}") };
            writeln!(program.top, "    memcpy(seen[{i}], (const void *)&a{i}, {size}); seen_size[{i}] = {size};")
                .expect("a String grows");
        }
        writeln!(program.top, "    called = {index};\n    return {index};\n}}").expect("a String grows");
        writeln!(program.run, "    the_table.{slot} = stub_{slot};").expect("a String grows");
    }
    for fact in list(facts, "redirection_macros") {
        let (name, slot) = (text(fact, "name"), text(fact, "table_field"));
        program.defined(name);
        let entry = list(&facts["provider_table"], "entries")
            .iter()
            .find(|entry| entry["field"] == slot)
            .expect("each API macro names a slot of the function table");
        let typing = types
            .iter()
            .find(|t| t["name"] == entry["c_type"])
            .expect("each slot has an entry in the list of function types");
        let names: Vec<&str> =
            list(fact, "params").iter().map(|p| p.as_str().expect("names are JSON strings")).collect();
        let args: Vec<&str> =
            list(fact, "call_args").iter().map(|p| p.as_str().expect("names are JSON strings")).collect();
        // The one correction of the JSON: `DAT_SRQ_CREATE` finds the table through its IA, because no SRQ exists yet.
        let dispatch = if name == "DAT_SRQ_CREATE" { "ia" } else { text(fact, "dispatch_param") };
        let mut call = format!("static int call_{name}(void *object)\n{{\n");
        let mut compare = String::new();
        for (i, (arg, param)) in args.iter().zip(list(typing, "params")).enumerate() {
            let plain = text(param, "c_type").trim_start_matches("const ").to_owned();
            // A `const T` variable cannot be assigned, and a const parameter has the same type as a plain one.
            let plain = if text(param, "c_type").ends_with('*') { text(param, "c_type").to_owned() } else { plain };
            let fill = if *arg == dispatch { "*&object".to_owned() } else { String::new() };
            if fill.is_empty() {
                writeln!(call, "    {plain} {arg};\n    memset((void *)&{arg}, {}, sizeof {arg});", i + 1)
            } else {
                writeln!(call, "    {plain} {arg} = object;")
            }
            .expect("a String grows");
            let (passed, size) = match is_va_list(param) {
                true => ("address".to_owned(), "sizeof(void *)".to_owned()),
                false => (arg.to_string(), format!("sizeof {arg}")),
            };
            if is_va_list(param) {
                writeln!(call, "    void *address = (void *){arg};").expect("a String grows");
            }
            write!(compare, " && seen_size[{i}] == {size} && memcmp(seen[{i}], (const void *)&{passed}, {size}) == 0")
                .expect("a String grows");
        }
        assert_eq!(args.len(), list(typing, "params").len(), "{name} does not pass every argument");
        let index = number(entry, "index");
        write!(
            call,
            "    called = -1; memset(seen, 0, sizeof seen); memset(seen_size, 0, sizeof seen_size);\n    \
             return {name}({}) == {index} && called == {index}{compare};\n}}\n",
            names.join(", ")
        )
        .expect("a String grows");
        program.top.push_str(&call);
        program.check(&format!("call_{name}(object)"), &format!("{name} calls {slot} with its arguments"));
    }
}

/// `dat_ia_open` is a macro for `dat_ia_openv`, which this program defines.
fn api_macros(program: &mut Program, facts: &Value) {
    let macros = list(&facts["api_macros"], "function_like");
    assert_eq!(macros[0]["name"], "dat_ia_open", "the only macro over another function than dat_extension_op");
    program.defined("dat_ia_open");
    program.top.push_str(
        "static DAT_UINT32 opened[3];\n\
         static DAT_NAME_PTR opened_name; static DAT_COUNT opened_qlen; static void *opened_evd, *opened_ia;\n\
         DAT_RETURN dat_ia_openv(const DAT_NAME_PTR name, DAT_COUNT qlen, DAT_EVD_HANDLE *evd, DAT_IA_HANDLE *ia,\n\
         \u{20}   DAT_UINT32 major, DAT_UINT32 minor, DAT_BOOLEAN safe)\n\
         {\n    opened_name = name; opened_qlen = qlen; opened_evd = evd; opened_ia = ia;\n    \
         opened[0] = major; opened[1] = minor; opened[2] = safe;\n    return 7;\n}\n",
    );
    program.run.push_str(
        "    char open_name[] = \"sm0\"; DAT_EVD_HANDLE open_evd; DAT_IA_HANDLE open_ia;\n    \
         check(dat_ia_open(open_name, 8, &open_evd, &open_ia) == 7, \"dat_ia_open calls dat_ia_openv\");\n",
    );
    program.checks += 1;
    program.check(
        "opened_name == open_name && opened_qlen == 8 && opened_evd == &open_evd && opened_ia == &open_ia",
        "dat_ia_open passes its arguments on",
    );
    let asks = match program.version {
        V1 => "opened[0] == 1 && opened[1] == 2 && opened[2] == 0",
        V2 => "opened[0] == 2 && opened[1] == 0 && opened[2] == 0",
    };
    program.check(asks, "dat_ia_open asks for its own version, not thread-safe");
}

fn old_names(program: &mut Program, facts: &Value) {
    for fact in list(facts, "backward_compatibility_names") {
        let (name, meaning, kind) = (text(fact, "name"), text(fact, "stands_for"), text(fact, "what"));
        program.defined(name);
        if kind.contains("field") {
            program.holds(
                &format!("offsetof(DAT_IA_ATTR, {name}) == offsetof(DAT_IA_ATTR, {meaning})"),
                &format!("{name} is {meaning}"),
            );
        } else if list(&facts["macros"], "string").iter().any(|fact| fact["name"] == name) {
            program.check(&format!("strcmp({name}, {meaning}) == 0"), &format!("{name} is {meaning}"));
        } else if list(&facts["macros"], "identifier_alias").iter().any(|fact| fact["name"] == name) {
            // Function-like macros are checked by `api_macros`.
        } else {
            program.holds(&format!("({name}) == ({meaning})"), &format!("{name} is {meaning}"));
        }
    }
    program.holds(
        "offsetof(DAT_EP_ATTR, max_mtu_size) == offsetof(DAT_EP_ATTR, max_message_size)",
        "max_mtu_size of an EP",
    );
}

fn program(version: Version, tongue: Tongue) -> Program {
    let facts = version.facts();
    let mut program = Program::new(version, tongue);
    typedefs(&mut program, &facts);
    enums(&mut program, &facts);
    records(&mut program, &facts);
    macros(&mut program, &facts);
    functions(&mut program, &facts);
    table(&mut program, &facts);
    redirections(&mut program, &facts);
    macros_in_words(&mut program, &facts);
    api_macros(&mut program, &facts);
    if version == V2 {
        extensions::program(&mut program, &facts);
    }
    old_names(&mut program, &facts);
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

/// Names that the symbols list as exported.
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
        // In 2.0 a program calls these functions through the table.
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
