//! The C headers against the recorded facts: every size, offset, value, type, prototype, slot and macro of
//! `test/abi/dat-1.2.json` becomes an assertion, in C and in C++.
//!
//! A program is written from the facts and compiled under four standards; what a compiler cannot decide (strings, where
//! a macro's call lands, which arguments it passes) the program decides when it runs. The Rust half of the contract is
//! `abi_rust.rs`. Nothing here calls libdat: the program brings its own `dat_ia_openv`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Flags with which the headers must compile.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("test lies in the workspace").to_path_buf()
}

fn facts() -> Value {
    let text = std::fs::read_to_string(root().join("test/abi/dat-1.2.json")).expect("the facts are in the repository");
    serde_json::from_str(&text).expect("the facts are JSON")
}

fn headers() -> PathBuf {
    root().join("dat/include")
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

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("abi-{name}"));
    std::fs::create_dir_all(&dir).expect("the target directory is writable");
    dir
}

/// A dialect of C to speak.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Tongue {
    C,
    Cxx,
}

impl Tongue {
    fn compiler(self) -> Command {
        let (variable, default) = match self {
            Tongue::C => ("CC", "cc"),
            Tongue::Cxx => ("CXX", "c++"),
        };
        Command::new(std::env::var(variable).unwrap_or_else(|_| default.into()))
    }

    fn extension(self) -> &'static str {
        match self {
            Tongue::C => "c",
            Tongue::Cxx => "cc",
        }
    }

    /// An expression that is true when both are the same type, pointers compared with all their qualifiers.
    fn same(self, a: &str, b: &str) -> String {
        match self {
            Tongue::C => format!("__builtin_types_compatible_p({a}, {b})"),
            Tongue::Cxx => format!("(std::is_same<{a}, {b}>::value)"),
        }
    }

    /// As `same`, for the type of an lvalue: qualifiers of the object itself count too.
    fn same_object(self, lvalue: &str, c_type: &str) -> String {
        match self {
            Tongue::C => self.same(&format!("__typeof__(&{lvalue})"), &format!("__typeof__({c_type}) *")),
            Tongue::Cxx => self.same(&format!("std::remove_reference<decltype(({lvalue}))>::type"), c_type),
        }
    }

    fn type_of(self, expression: &str) -> String {
        match self {
            Tongue::C => format!("__typeof__({expression})"),
            Tongue::Cxx => format!("decltype({expression})"),
        }
    }

    fn null(self, record: &str) -> String {
        match self {
            Tongue::C => format!("(({record} *)0)"),
            Tongue::Cxx => format!("std::declval<{record} *>()"),
        }
    }

    fn compile(self, standard: &str, flags: &[&str], source: &Path, out: Option<&Path>) -> Output {
        let mut compiler = self.compiler();
        compiler.arg(format!("-std={standard}")).args(flags).arg("-I").arg(headers());
        match out {
            Some(path) => compiler.arg("-o").arg(path),
            None => compiler.arg("-fsyntax-only"),
        };
        compiler.arg(source).output().expect("a C and a C++ compiler are installed")
    }
}

/// The program under construction: assertions for the compiler, checks for the run, and how many there are.
struct Program {
    tongue: Tongue,
    top: String,
    run: String,
    statics: usize,
    checks: usize,
}

impl Program {
    fn new(tongue: Tongue) -> Self {
        Program { tongue, top: String::new(), run: String::new(), statics: 0, checks: 0 }
    }

    /// Has the compiler decide it.
    fn holds(&mut self, condition: &str, what: &str) {
        let keyword = if self.tongue == Tongue::C { "_Static_assert" } else { "static_assert" };
        writeln!(self.top, "{keyword}({condition}, \"{what}\");").expect("a String grows");
        self.statics += 1;
    }

    /// Has the running program decide it.
    fn check(&mut self, condition: &str, what: &str) {
        writeln!(self.run, "    check({condition}, \"{what}\");").expect("a String grows");
        self.checks += 1;
    }

    fn defined(&mut self, name: &str) {
        writeln!(self.top, "#ifndef {name}\n#error \"{name} is not defined\"\n#endif").expect("a String grows");
        self.statics += 1;
    }

    fn size_align(&mut self, name: &str, fact: &Value) {
        let align = if self.tongue == Tongue::C { "_Alignof" } else { "alignof" };
        self.holds(&format!("sizeof({name}) == {}", number(fact, "size")), &format!("size of {name}"));
        self.holds(&format!("{align}({name}) == {}", number(fact, "align")), &format!("alignment of {name}"));
    }

    fn text(&self) -> String {
        let typing = if self.tongue == Tongue::C { "" } else { "#include <type_traits>\n#include <utility>\n" };
        format!(
            "/* Written by test/tests/abi.rs from test/abi/dat-1.2.json. */\n\
             #include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <string.h>\n#include <netinet/in.h>\n\
             {typing}#include <dat/udat.h>\n#include <dat/dat_registry.h>\n\
             #define TEXT_(x) #x\n#define TEXT(x) TEXT_(x)\n\
             static int failed, done;\n\
             static void check(int ok, const char *what) {{ done++; if (!ok) {{ failed++; fprintf(stderr, \"FAILED: %s\\n\", what); }} }}\n\
             {}\nint main(void) {{\n{}    printf(\"%d checks\\n\", done);\n    return failed != 0;\n}}\n",
            self.top, self.run
        )
    }
}

/// `ret (params)` as a type name, or `ret (*)(params)` with `star`.
fn signature(function: &Value, star: &str) -> String {
    let params: Vec<&str> = list(function, "params").iter().map(|p| text(p, "c_type")).collect();
    let params = if params.is_empty() { "void".to_owned() } else { params.join(", ") };
    format!("{} {star}({params})", text(function, "return_type"))
}

fn typedefs(program: &mut Program, facts: &Value) {
    for fact in list(facts, "typedefs") {
        let name = text(fact, "name");
        let same = program.tongue.same(name, text(fact, "canonical"));
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

fn fields(program: &mut Program, record: &str, fields: &[Value]) {
    for field in fields {
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
            let elements: i64 = dimensions.iter().map(|n| n.as_i64().expect("a dimension is a number")).product();
            program.holds(
                &format!("sizeof({lvalue}) == {elements} * {}", number(field, "element_size")),
                &format!("elements of {record}.{name}"),
            );
        }
    }
}

fn records(program: &mut Program, facts: &Value) {
    for fact in list(facts, "records") {
        let name = text(fact, "typedef");
        let tagged = format!("{} {}", text(fact, "kind"), text(fact, "tag"));
        let same = program.tongue.same(name, &tagged);
        program.holds(&same, &format!("{name} is {tagged}"));
        program.size_align(name, fact);
        fields(program, name, list(fact, "fields"));
        // One that has more members than these would still be larger, or fill its padding: initialise by position.
        if text(fact, "kind") == "struct" && program.tongue == Tongue::C {
            let last = list(fact, "fields").last().expect("a record has fields");
            let end = number(last, "offset") + number(last, "size");
            let align = number(fact, "align");
            program.holds(
                &format!("sizeof({name}) == {}", (end + align - 1) / align * align),
                &format!("{name} ends with {}", text(last, "name")),
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
        // An alias of an enum constant is an int in C alone.
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

/// The macros that the facts can only describe in words, put into code by hand; a new one fails the test.
fn macros_in_words(program: &mut Program, facts: &Value) {
    let names = |key: &str| -> BTreeSet<String> {
        list(&facts["macros"], key).iter().map(|fact| text(fact, "name").to_owned()).collect()
    };
    let known = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    assert_eq!(
        names("other"),
        known(&["DAT_OS_WAIT_PROXY_AGENT_NULL", "DAT_PROVIDER_INIT_FUNC_NAME", "DAT_PROVIDER_FINI_FUNC_NAME"])
    );
    assert_eq!(
        names("helper_function_like"),
        known(&["DAT_IS_WARNING", "DAT_GET_TYPE", "DAT_GET_SUBTYPE", "DAT_HANDLE_TO_PROVIDER"])
    );
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
        assert_eq!(fact["variadic"], false);
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

/// Every slot gets a stub that notes its index and arguments; every `DAT_*` macro is then called through it.
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
        for i in 0..params.len() {
            writeln!(
                program.top,
                "    memcpy(seen[{i}], (const void *)&a{i}, sizeof a{i}); seen_size[{i}] = sizeof a{i};"
            )
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
            .expect("a macro names a slot of the table");
        let typing = types.iter().find(|t| t["name"] == entry["c_type"]).expect("a slot has a type");
        let names: Vec<&str> = list(fact, "params").iter().map(|p| p.as_str().expect("a name")).collect();
        let args: Vec<&str> = list(fact, "call_args").iter().map(|p| p.as_str().expect("a name")).collect();
        // The one correction to the facts: an SRQ is created from its IA, there is no SRQ yet to start from.
        let dispatch = if name == "DAT_SRQ_CREATE" { "ia" } else { text(fact, "dispatch_param") };
        let mut call = format!("static int call_{name}(void *object)\n{{\n");
        let mut compare = String::new();
        for (i, (arg, param)) in args.iter().zip(list(typing, "params")).enumerate() {
            let plain = text(param, "c_type").trim_start_matches("const ").to_owned();
            // `const T` by value cannot be filled in; the parameter's own const is not part of the type anyway.
            let plain = if text(param, "c_type").ends_with('*') { text(param, "c_type").to_owned() } else { plain };
            let fill = if *arg == dispatch { "*&object".to_owned() } else { String::new() };
            if fill.is_empty() {
                writeln!(call, "    {plain} {arg};\n    memset((void *)&{arg}, {}, sizeof {arg});", i + 1)
            } else {
                writeln!(call, "    {plain} {arg} = object;")
            }
            .expect("a String grows");
            write!(
                compare,
                " && seen_size[{i}] == sizeof {arg} && memcmp(seen[{i}], (const void *)&{arg}, sizeof {arg}) == 0"
            )
            .expect("a String grows");
        }
        assert_eq!(args.len(), list(typing, "params").len(), "{name} passes every argument");
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

/// `dat_ia_open` is a macro over `dat_ia_openv`, which this program brings along.
fn api_macros(program: &mut Program, facts: &Value) {
    let macros = list(&facts["api_macros"], "function_like");
    assert_eq!((macros.len(), &macros[0]["name"]), (1, &Value::from("dat_ia_open")), "one macro is known here");
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
    program.check("opened[0] == 1 && opened[1] == 2 && opened[2] == 0", "dat_ia_open asks for 1.2, not thread-safe");
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
        } else if !kind.contains("cannot be used") {
            program.holds(&format!("({name}) == ({meaning})"), &format!("{name} is {meaning}"));
        }
    }
    program.holds(
        "offsetof(DAT_EP_ATTR, max_mtu_size) == offsetof(DAT_EP_ATTR, max_message_size)",
        "max_mtu_size of an EP",
    );
}

fn program(tongue: Tongue) -> Program {
    let facts = facts();
    let mut program = Program::new(tongue);
    typedefs(&mut program, &facts);
    enums(&mut program, &facts);
    records(&mut program, &facts);
    macros(&mut program, &facts);
    functions(&mut program, &facts);
    table(&mut program, &facts);
    redirections(&mut program, &facts);
    macros_in_words(&mut program, &facts);
    api_macros(&mut program, &facts);
    old_names(&mut program, &facts);
    program
}

fn headers_keep_the_facts(tongue: Tongue, standards: &[&str]) {
    let program = program(tongue);
    for standard in standards {
        let dir = scratch(standard);
        let (source, binary) = (dir.join("abi").with_extension(tongue.extension()), dir.join("abi"));
        std::fs::write(&source, program.text()).expect("the target directory is writable");
        let out = tongue.compile(standard, &STRICT, &source, Some(&binary));
        assert!(out.status.success(), "{standard}: {}", String::from_utf8_lossy(&out.stderr));
        let out = Command::new(&binary).output().expect("what was just built runs");
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{standard}: {}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(said, format!("{} checks\n", program.checks), "{standard}");
        println!("{standard}: {} static assertions and {} checks hold", program.statics, program.checks);
    }
    assert!(program.statics > 2400 && program.checks > 70, "{} and {}", program.statics, program.checks);
}

#[test]
fn headers_keep_the_facts_in_c() {
    headers_keep_the_facts(Tongue::C, &["gnu11", "c11"]);
}

#[test]
fn headers_keep_the_facts_in_cxx() {
    headers_keep_the_facts(Tongue::Cxx, &["c++11", "c++17"]);
}

#[test]
fn every_header_stands_alone_twice_and_behind_its_guard() {
    let facts = facts();
    let guards: Vec<&str> =
        list(&facts, "include_guards").iter().map(|guard| guard.as_str().expect("a name")).collect();
    let dir = scratch("alone");
    for header in list(&facts, "headers") {
        let header = header.as_str().expect("a name");
        let guard = format!("_{}_", header.to_uppercase().replace('.', "_"));
        assert!(guards.contains(&guard.as_str()), "{guard} is a fact");
        let before = if header == "dat_registry.h" { "#include <dat/udat.h>\n" } else { "" };
        let text = format!(
            "{before}#include <dat/{header}>\n#include <dat/{header}>\n#ifndef {guard}\n#error \"no {guard}\"\n#endif\n\
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

#[test]
fn registry_header_refuses_to_come_first() {
    for tongue in [Tongue::C, Tongue::Cxx] {
        let source = scratch("first").join("registry").with_extension(tongue.extension());
        std::fs::write(&source, "#include <dat/dat_registry.h>\n").expect("the target directory is writable");
        let out = tongue.compile(if tongue == Tongue::C { "c11" } else { "c++11" }, &[], &source, None);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains("#error") && said.contains("udat.h"), "{said}");
    }
}

#[test]
fn every_name_lives_in_the_header_of_the_facts() {
    let facts = facts();
    let mut kinds = vec![];
    for key in ["typedefs", "functions", "function_pointer_types", "redirection_macros"] {
        kinds.extend(list(&facts, key).iter().map(|fact| (text(fact, "name"), text(fact, "header"))));
    }
    for fact in list(&facts, "enums") {
        let constants = list(fact, "constants").iter().map(|constant| text(constant, "name"));
        kinds.extend(constants.chain([text(fact, "tag")]).map(|name| (name, text(fact, "header"))));
    }
    kinds.extend(list(&facts, "records").iter().map(|fact| (text(fact, "tag"), text(fact, "header"))));
    for list in facts["macros"].as_object().expect("macros by kind").values() {
        let list = list.as_array().expect("a list");
        kinds.extend(list.iter().map(|fact| (text(fact, "name"), text(fact, "header"))));
    }
    kinds.push(("dat_ia_open", "dat.h"));
    for (name, header) in kinds {
        let text = std::fs::read_to_string(headers().join("dat").join(header)).expect("the header exists");
        let found = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == name);
        assert!(found, "{name} is not in {header}");
    }
}

#[test]
fn prototypes_and_exports_agree() {
    let facts = facts();
    let text_of = std::fs::read_to_string(root().join("test/abi/dat-1.2-symbols.json")).expect("in the repository");
    let symbols: Value = serde_json::from_str(&text_of).expect("the facts are JSON");
    let exported = list(&symbols["linux"]["libdat"], "exported");
    let exported: BTreeSet<&str> = exported.iter().map(|name| name.as_str().expect("a name")).collect();
    let mut declared: BTreeSet<&str> = list(&facts, "functions").iter().map(|fact| text(fact, "name")).collect();
    // The one export that no public header declares.
    assert!(declared.insert("dats_get_ia_handle"));
    assert_eq!(declared, exported);
    assert_eq!(exported.len(), 73);
}
