//! Adds assertions about types, enumerations, structures, prototypes, and the table of functions to the generated
//! program.

use serde_json::Value;

use super::program::{Program, Tongue};
use super::{list, number, text};

/// The function type `ret (params)`, or with `star` the pointer type `ret (*)(params)`.
fn signature(function: &Value, star: &str) -> String {
    let params: Vec<&str> = list(function, "params").iter().map(|p| text(p, "c_type")).collect();
    let mut params = if params.is_empty() { "void".to_owned() } else { params.join(", ") };
    if function["variadic"] == true {
        params.push_str(", ...");
    }
    format!("{} {star}({params})", text(function, "return_type"))
}

pub(super) fn typedefs(program: &mut Program, facts: &Value) {
    for fact in list(facts, "typedefs") {
        let name = text(fact, "name");
        // C has no other name for this type than va_list.
        let canonical = text(fact, "canonical").replace("struct __va_list_tag *", "va_list");
        let same = program.tongue.same(name, &canonical);
        program.holds(&same, &format!("{name} is {}", text(fact, "canonical")));
        program.size_align(name, fact);
    }
}

pub(super) fn enums(program: &mut Program, facts: &Value) {
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

pub(super) fn records(program: &mut Program, facts: &Value) {
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

pub(super) fn functions(program: &mut Program, facts: &Value) {
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

pub(super) fn table(program: &mut Program, facts: &Value) {
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
