//! The reference of the rule language's guards and attribute functions, made of the tables that rules run by.

use super::{
    functions::{self, Function, Param},
    guards::{self, Guard},
};

/// What a parameter is called.
fn kind(p: Param) -> &'static str {
    match p {
        Param::Int => "INT",
        Param::Number => "NUMBER",
        Param::List => "LIST",
        Param::Str => "STRING",
        Param::Tensor => "TENSOR",
        Param::Any => "VALUE",
        Param::Class => "?x",
        Param::Classes => "?xs",
        Param::Rest => "VALUE …",
    }
}

/// How one is written: `(name INT ?x)`.
fn call(name: &str, params: &[Param]) -> String {
    let params: String = params.iter().map(|&p| format!(" {}", kind(p))).collect();
    format!("({name}{params})")
}

fn guard(g: &Guard) -> String {
    format!("`{}`: {}", call(g.name, g.params), g.doc)
}

fn function(f: &Function) -> String {
    format!("`{}` gives {}: {}", call(f.name, f.params), kind(f.gives), f.doc)
}

/// The names of all guards and functions, in alphabetical order.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> =
        guards::all().iter().map(|g| g.name).chain(functions::all().iter().map(|f| f.name)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What the guard and the function of a name are, a line each; none where there is neither.
pub fn entry(name: &str) -> Option<String> {
    let guards = guards::all().into_iter().filter(|g| g.name == name).map(guard);
    let functions = functions::all().into_iter().filter(|f| f.name == name).map(function);
    let lines: String = guards.chain(functions).map(|line| line + "\n").collect();
    (!lines.is_empty()).then_some(lines)
}

const HEAD: &str = "# Guards and attribute functions of the rule language

This file is made of the tables that rules run by (`resat rules doc > docs/rules.md`), and a test compares them. The language itself, with what
rules have to hold to, is in `rules/README.md`.

Parameters: INT, NUMBER, LIST, STRING, TENSOR are attribute values of that kind, VALUE is one of any kind; `?x` is a variable that stands for
a value of the program, `?xs` one that stands for a sequence of them. Programs may register their own: `rules::guards::register` and
`rules::functions::register`.
";

/// All of them, as Markdown.
pub fn markdown() -> String {
    let mut guards = guards::all();
    guards.sort_by_key(|g| g.name);
    let mut functions = functions::all();
    functions.sort_by_key(|f| f.name);
    let item = |line: String| format!("- {line}\n");
    let guards: String = guards.into_iter().map(guard).map(item).collect();
    let functions: String = functions.into_iter().map(function).map(item).collect();
    format!(
        "{HEAD}\n## Guards\n\nConditions after `:when`. One that does not know answers no, also under `not`.\n\n{guards}\n## Functions\n\nThey \
         compute attributes. One that does not apply gives nothing, and the rule does not fire.\n\n{functions}"
    )
}
