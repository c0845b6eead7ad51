//! The macros of `dat_ib_extensions.h`: each calls `dat_extension_op` with its operation number and its arguments.
//!
//! The generated program defines `dat_extension_op`, which reads the arguments with the types recorded in
//! `test/abi/dat-2.0.json`, and compares them with the macro's arguments.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Program, Tongue, list, text};

/// Corrections of reference macros that do not compile or pass a wrong argument: macro, argument position (0 is the
/// handle), corrected value and type.
const CORRECTED: &[(&str, usize, &str, &str)] = &[
    ("dat_ib_start_counter", 2, "type", "DAT_IA_COUNTER_TYPE"),
    ("dat_ib_stop_counter", 2, "type", "DAT_IA_COUNTER_TYPE"),
    ("dat_ib_collective_set_clock", 1, "DAT_IB_COLLECTIVE_SET_CLOCK_OP", "DAT_IB_OP"),
    ("dat_ib_collective_set_clock", 3, "user_context", "DAT_CONTEXT"),
    ("dat_ib_collective_gatherv", 4, "recvbufs", "DAT_PVOID"),
    ("dat_ib_collective_alltoallv", 4, "senddspls", "DAT_COUNT *"),
];

/// An argument of `dat_extension_op`: value and type.
struct Argument {
    value: String,
    c_type: String,
}

fn arguments(fact: &Value) -> Vec<Argument> {
    let name = text(fact, "name");
    let one = |(at, arg): (usize, &Value)| {
        let corrected = CORRECTED.iter().find(|(of, position, ..)| *of == name && *position == at);
        let (value, c_type) = match corrected {
            Some((_, _, value, c_type)) => ((*value).to_owned(), (*c_type).to_owned()),
            // The only argument without a cast is the cookie.
            None => (text(arg, "value").to_owned(), arg["cast"].as_str().unwrap_or("DAT_DTO_COOKIE").to_owned()),
        };
        Argument { value, c_type: c_type.trim_start_matches("const ").to_owned() }
    };
    list(fact, "args").iter().enumerate().map(one).collect()
}

pub(super) fn program(program: &mut Program, facts: &Value) {
    let macros: Vec<&Value> =
        list(&facts["api_macros"], "function_like").iter().filter(|fact| fact["calls"] == "dat_extension_op").collect();
    assert!(macros.len() > 25, "{}", macros.len());
    let (mut variables, mut cases, mut calls) = (String::new(), String::new(), String::new());
    for (number, fact) in macros.iter().enumerate() {
        let (name, args) = (text(fact, "name"), arguments(fact));
        program.defined(name);
        for param in list(fact, "params") {
            let param = param.as_str().expect("names are JSON strings");
            let arg =
                args.iter().find(|arg| arg.value == param).unwrap_or_else(|| panic!("{name} does not pass {param}"));
            writeln!(variables, "static {} v{number}_{param};", arg.c_type).expect("a String grows");
            writeln!(calls, "    memset((void *)&v{number}_{param}, {}, sizeof v{number}_{param});", number % 100 + 1)
                .expect("a String grows");
        }
        let value_of = |arg: &Argument| match list(fact, "params").iter().any(|param| *param == arg.value.as_str()) {
            true => format!("v{number}_{}", arg.value),
            false => arg.value.clone(),
        };
        write!(cases, "    case {number}:\n        same = handle == {}", value_of(&args[0])).expect("a String grows");
        writeln!(cases, " && operation == (int){};", args[1].value).expect("a String grows");
        for arg in &args[2..] {
            // In C++ an enumeration is passed as int.
            let read = match list(facts, "enums").iter().any(|fact| fact["typedef"] == arg.c_type.as_str()) {
                true => format!("({})va_arg(rest, int)", arg.c_type),
                false => format!("va_arg(rest, {})", arg.c_type),
            };
            writeln!(
                cases,
                "        {{ {c_type} got = {read}; same = same && memcmp((void *)&got, (void *)&{value}, \
                 sizeof got) == 0; }}",
                c_type = arg.c_type,
                value = value_of(arg)
            )
            .expect("a String grows");
        }
        cases.push_str("        break;\n");
        let passed: Vec<String> = list(fact, "params")
            .iter()
            .map(|param| format!("v{number}_{}", param.as_str().expect("names are JSON strings")))
            .collect();
        writeln!(
            calls,
            "    wanted = {number}; same = 0;\n    check({name}({}) == 11 && same, \"{name} passes its arguments\");",
            passed.join(", ")
        )
        .expect("a String grows");
        program.checks += 1;
    }
    let language = if program.tongue == Tongue::Cxx { "extern \"C\" " } else { "" };
    write!(
        program.top,
        "static int wanted, same;\n{variables}\
         {language}DAT_RETURN dat_extension_op(DAT_HANDLE handle, DAT_EXTENDED_OP operation, ...)\n{{\n    \
         va_list rest;\n    va_start(rest, operation);\n    switch (wanted) {{\n{cases}    }}\n    \
         va_end(rest);\n    return 11;\n}}\n"
    )
    .expect("a String grows");
    program.run.push_str(&calls);
    words(program);
}

/// Checks the results of the two functions that the header defines.
fn words(program: &mut Program) {
    program.run.push_str("    const char *word = NULL;\n");
    for (call, result, word) in [
        ("dat_strerror_extension(DAT_IB_ERR, &word)", "DAT_SUCCESS", "DAT_IB_ERR"),
        ("dat_strerror_extension(DAT_IB_COLLECTIVE_ERR, &word)", "DAT_SUCCESS", "DAT_IB_COLLECTIVE_ERR"),
        (
            "dat_strerror_extension((DAT_IB_RETURN)7, &word)",
            "DAT_INVALID_PARAMETER",
            "unknown InfiniBand extension result",
        ),
        ("dat_strerror_ext_status(DAT_OP_SUCCESS, &word)", "DAT_SUCCESS", "DAT_OP_SUCCESS"),
        ("dat_strerror_ext_status(DAT_IB_OP_ERR, &word)", "DAT_SUCCESS", "DAT_IB_OP_ERR"),
        ("dat_strerror_ext_status(DAT_IB_COLL_COMP_ERR, &word)", "DAT_SUCCESS", "DAT_IB_COLL_COMP_ERR"),
        (
            "dat_strerror_ext_status((DAT_IB_STATUS)7, &word)",
            "DAT_INVALID_PARAMETER",
            "unknown InfiniBand extension status",
        ),
    ] {
        program.check(&format!("{call} == (DAT_RETURN){result} && strcmp(word, \"{word}\") == 0"), call);
    }
}
