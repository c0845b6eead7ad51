//! Adds assertions about macros to the generated program: constants, the functions that macros call, and names that
//! stand for others.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::program::{Program, Tongue, V1, V2};
use super::{list, number, text};

pub(super) fn macros(program: &mut Program, facts: &Value) {
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
pub(super) fn macros_in_words(program: &mut Program, facts: &Value) {
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

/// Every function of the table becomes a stub that records its index and its arguments. Then the program calls every
/// `DAT_*` macro that stands for such a function.
pub(super) fn redirections(program: &mut Program, facts: &Value) {
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
        // Corrects the JSON: `DAT_SRQ_CREATE` finds the table through its IA, because no SRQ exists yet.
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
pub(super) fn api_macros(program: &mut Program, facts: &Value) {
    let macros = list(&facts["api_macros"], "function_like");
    assert_eq!(macros[0]["name"], "dat_ia_open", "another macro than dat_ia_open comes first");
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

pub(super) fn old_names(program: &mut Program, facts: &Value) {
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
            // `macros` checks these names.
        } else {
            program.holds(&format!("({name}) == ({meaning})"), &format!("{name} is {meaning}"));
        }
    }
    program.holds(
        "offsetof(DAT_EP_ATTR, max_mtu_size) == offsetof(DAT_EP_ATTR, max_message_size)",
        "max_mtu_size of an EP",
    );
}

fn is_va_list(param: &Value) -> bool {
    param["c_type"] == "va_list"
}
