//! Relay text 0.0.5: what TVM's `astext` prints, read and printed.
//!
//! Reading keeps sharing (`%0 = …;` is one expression, however often it is used), gives every expression its place in
//! the source, and reports as many errors at once as make sense. Nothing here recurses over expressions, so nesting has
//! no limit; types, patterns and attribute values may nest [`DEEPEST`] levels.
//!
//! The printer's text is canonical: it parses back to the same program and prints again as the same text. Constants that
//! no literal stands for go to the `#[metadata]` section, in TVM's own format.

mod attrs;
mod expr;
mod literal;
mod names;
mod operand;
mod parser;
mod pattern;
mod pieces;
mod places;
mod printer;
mod types;

pub use super::DEEPEST;
use super::lexer;
use crate::{
    diag::Refused,
    ir::{Expr, ExprId, Function, Module, free_vars},
};

/// What a text holds.
#[derive(Clone, Debug)]
pub enum Parsed {
    /// Definitions.
    Module(Module),
    /// One expression, in a module that defines nothing. Its free variables have no binder.
    Expr(Module, ExprId),
}

impl Parsed {
    /// The program as canonical text, in the form that it was read in.
    pub fn print(&self) -> String {
        match self {
            Parsed::Module(m) => print_module(m),
            Parsed::Expr(m, e) => print_expr(m, *e),
        }
    }

    /// The program as a module. An expression that is a function becomes `@main`; another one becomes the body of a
    /// `@main` whose parameters are its free variables, in order of first use.
    pub fn into_module(self) -> Module {
        match self {
            Parsed::Module(m) => m,
            Parsed::Expr(mut m, e) => {
                let main = match m[e] {
                    Expr::Func(_) => e,
                    _ => {
                        let params = free_vars(&m, e);
                        let span = m.span(e).cloned();
                        m.add_at(Expr::Func(Box::new(Function::new(params, e, None))), span)
                    }
                };
                m.define("main", main);
                m
            }
        }
    }
}

/// Reads a module or one expression (which needs no version line). `name` stands for the text in messages.
pub fn parse(name: &str, text: &str) -> Result<Parsed, Refused> {
    parser::parse(name, text)
}

/// Reads a program as a module; see [`Parsed::into_module`] for a text that is one expression.
pub fn parse_module(name: &str, text: &str) -> Result<Module, Refused> {
    parse(name, text).map(Parsed::into_module)
}

/// The module as canonical text.
pub fn print_module(m: &Module) -> String {
    printer::module(m)
}

/// The module as text for people: of constants that no literal stands for, their types and a digest of what they hold. Equal constants have
/// equal digests, whatever else the module holds, so that texts of a program before and after a pass can be compared. It can't be read
/// back.
pub fn print_brief(m: &Module) -> String {
    printer::brief(m)
}

/// One expression as canonical text; its free variables are declared by `free_var`.
pub fn print_expr(m: &Module, e: ExprId) -> String {
    printer::expr(m, e)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn main_body(text: &str) -> (Module, ExprId) {
        let m = parse_module("test", text).unwrap_or_else(|e| panic!("{e}"));
        let body = m.function("main").map(|f| f.body).expect("an expression becomes `@main`");
        (m, body)
    }

    fn refused(text: &str) -> String {
        parse("test", text).expect_err("the text is wrong").to_string()
    }

    #[test]
    fn a_dotted_name_is_a_variable_where_one_is_bound() {
        let (m, e) = main_body("fn (%a.b.0, %a) { (%a.b.0, %a.0, %a.b.0.1) }");
        let Expr::Tuple(items) = &m[e] else { panic!("{:?}", m[e]) };
        assert!(matches!(m[items[0]], Expr::Var(_)));
        assert!(matches!(m[items[1]], Expr::Proj(_, 0)));
        assert!(matches!(m[items[2]], Expr::Proj(_, 1)));
    }

    #[test]
    fn nesting_has_no_limit() {
        let n = 20_000;
        main_body(&format!("{}1{}", "(".repeat(n), ")".repeat(n)));
        main_body(&format!("{}1f{}", "exp(".repeat(n), ")".repeat(n)));
        main_body(&format!("{}1", "let %x = 1;\n".repeat(n)));
        main_body(&format!("{}1{}", "if (True) { 0 } else {".repeat(n), "}".repeat(n)));
        assert!(refused(&"(".repeat(n)).contains("the end of the text"));
    }

    #[test]
    fn types_and_patterns_nest_to_a_limit() {
        let n = 5_000;
        let text = format!("fn (%x: {}int32{}) {{ %x }}", "(".repeat(n), ",)".repeat(n));
        assert!(refused(&text).contains("types may nest"));
        let text = format!("match (1) {{ {}_{} => 1 }}", "(".repeat(n), ",)".repeat(n));
        assert!(refused(&text).contains("patterns may nest"));
        let text = format!("f(1, a={}", "[".repeat(n));
        assert!(refused(&text).contains("attribute values may nest"));
    }

    #[test]
    fn a_definition_ends_with_its_brace() {
        let message = refused("#[version = \"0.0.5\"]\ndef @f(%x) { %x }\n(1)");
        assert!(message.contains("test:3:1: expected"), "{message}");
    }

    #[test]
    fn several_errors_are_reported_with_their_places_and_near_names() {
        let text = "#[version = \"0.0.5\"]\ndef @main(%data: Tensor[(1), float23]) {\n  1\n}\ndef @f(%data) {\n  nn.desne(%dta, @mian())\n}\n";
        let message = refused(text);
        for part in [
            "test:2:30: element type `float23` is not defined (did you mean `float32`?)",
            "test:6:3: operator `nn.desne` is not known (did you mean `nn.dense`?)",
            "test:6:12: variable `%dta` is not defined (did you mean `%data`?)",
        ] {
            assert!(message.contains(part), "{part}\nis not in\n{message}");
        }
    }

    #[test]
    fn truncation_anywhere_does_not_panic() {
        let text = "#[version = \"0.0.5\"]\ntype L[A] { C(A, L[A]), N }\ndef @f[A](%x.0: L[A], a=[1, {\"k\"=\"v\"}]) -> fn (A) -> ref(int32) {\n  let %y: _ = (ref(-1f), if (True) { {1} } else { 2 }); /* a /* b */ */\n  %0 = match? (%x.0) { C(%h, (_, %t)) => %y.0.1, N => N };\n  ref_write(%0, exp(1.5f64 * -%y)); meta[relay.Constant][0]\n}\n#[metadata]\n{\"root\": 1}";
        for end in (0..text.len()).filter(|&i| text.is_char_boundary(i)) {
            drop(parse("test", &text[..end]));
        }
    }
}
