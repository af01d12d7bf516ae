//! The parser: its state, errors, and what stands at the top of a text.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{
    Parsed,
    lexer::{Kind, Token, Word, lex},
    names::{Mark, Scopes},
};
use crate::{
    diag::{Diagnostic, Refused, nearest},
    ir::{AdtDef, Constructor, Expr, ExprId, Module, Name, Source, Span, TypeVarId, VarId},
    relay::json::{Metadata, parse_metadata},
};

/// Errors beyond these are counted, not shown.
const MOST_ERRORS: usize = 20;

/// The text can't be read any further; what is wrong has been reported.
#[derive(Debug)]
pub(super) struct Stop;

pub(super) type Read<T> = Result<T, Stop>;

/// A parser in the middle of a text.
pub(super) struct Parser<'a> {
    pub source: Arc<Source>,
    pub text: &'a str,
    pub tokens: Vec<Token>,
    pub pos: usize,
    pub m: Module,
    errors: Vec<Diagnostic>,
    hidden_errors: usize,
    /// Local variables.
    pub vars: Scopes<'a, VarId>,
    /// Variables of `free_var`, which no scope ends.
    pub free: HashMap<&'a str, VarId>,
    /// `%0 = …` by number. TVM's printer uses a number wherever its first use was printed before, so no scope ends it.
    pub graph: HashMap<u64, ExprId>,
    pub type_vars: Scopes<'a, TypeVarId>,
    /// Number of fields of each constructor.
    pub constructors: HashMap<&'a str, usize>,
    pub metadata: Metadata,
    /// Whether the metadata section could not be read, so that nothing more need be said of what it lacks.
    pub metadata_damaged: bool,
    /// Names of all functions, those with errors included.
    declared: Vec<&'a str>,
    /// Uses of global functions and data types, checked when all definitions are known.
    pub global_uses: Vec<Token>,
    pub type_uses: Vec<(&'a str, Token)>,
    /// Number of the next `_` in a type.
    pub holes: u32,
}

/// Reads a module or one expression.
pub(super) fn parse(name: &str, text: &str) -> Result<Parsed, Refused> {
    if u32::try_from(text.len()).is_err() {
        return Err(Diagnostic::new(format!("`{name}` is larger than 4 GB")).into());
    }
    let source = Arc::new(Source { name: name.to_owned(), text: text.to_owned() });
    let (tokens, lex_errors) = lex(text);
    let mut p = Parser {
        source,
        text,
        tokens,
        pos: 0,
        m: Module::new(),
        errors: Vec::new(),
        hidden_errors: 0,
        vars: Scopes::new(),
        free: HashMap::new(),
        graph: HashMap::new(),
        type_vars: Scopes::new(),
        constructors: HashMap::new(),
        metadata: Metadata::new(),
        metadata_damaged: false,
        declared: Vec::new(),
        global_uses: Vec::new(),
        type_uses: Vec::new(),
        holes: 0,
    };
    for e in lex_errors {
        let span = p.span(e.start as u32, e.end as u32);
        let d = Diagnostic::new(e.message).at(Some(span));
        p.report(match e.help {
            Some(help) => d.help(help),
            None => d,
        });
    }
    let parsed = p.program();
    p.finish(parsed)
}

impl<'a> Parser<'a> {
    // Tokens.

    pub(super) fn peek(&self) -> Kind {
        self.tokens[self.pos].kind
    }

    /// The kind of the token after the next.
    pub(super) fn peek2(&self) -> Kind {
        self.tokens.get(self.pos + 1).map_or(Kind::End, |t| t.kind)
    }

    /// Takes the next token; the end of the text is never passed.
    pub(super) fn next(&mut self) -> Token {
        let t = self.tokens[self.pos];
        if t.kind != Kind::End {
            self.pos += 1;
        }
        t
    }

    pub(super) fn at(&self, sign: u8) -> bool {
        self.peek() == Kind::Sign(sign)
    }

    /// Takes the sign, where it is next.
    pub(super) fn eat(&mut self, sign: u8) -> bool {
        let found = self.at(sign);
        if found {
            self.pos += 1;
        }
        found
    }

    /// Takes the sign, or reports that `what` is missing.
    pub(super) fn expect(&mut self, sign: u8, what: &str) -> Read<Token> {
        match self.at(sign) {
            true => Ok(self.next()),
            false => Err(self.unexpected(&format!("`{}` {what}", sign as char))),
        }
    }

    pub(super) fn text_of(&self, t: Token) -> &'a str {
        &self.text[t.start as usize..t.end as usize]
    }

    /// Where the token that was taken last ends.
    pub(super) fn last_end(&self) -> u32 {
        self.tokens[self.pos.saturating_sub(1)].end
    }

    // Errors and places.

    pub(super) fn span(&self, start: u32, end: u32) -> Span {
        Span { source: self.source.clone(), start, end }
    }

    pub(super) fn token_span(&self, t: Token) -> Span {
        self.span(t.start, t.end)
    }

    pub(super) fn report(&mut self, d: Diagnostic) {
        match self.errors.len() < MOST_ERRORS {
            // A name that is unknown is so wherever it stands: once is enough.
            true if self.errors.iter().any(|e| e.message == d.message && e.help == d.help) => self.hidden_errors += 1,
            true => self.errors.push(d),
            false => self.hidden_errors += 1,
        }
    }

    /// Reports an error at a token.
    pub(super) fn error(&mut self, t: Token, message: impl Into<String>) {
        let span = self.token_span(t);
        self.report(Diagnostic::new(message).at(Some(span)));
    }

    /// Reports that a name is not known, with the nearest of those that are.
    pub(super) fn unknown<'n>(&mut self, t: Token, what: &str, name: &str, known: impl IntoIterator<Item = &'n str>) {
        let d = Diagnostic::new(format!("{what} `{name}` is not defined")).at(Some(self.token_span(t)));
        self.report(match nearest(name, known) {
            Some(near) => d.help(format!("did you mean `{near}`?")),
            None => d,
        });
    }

    /// Reports that the next token is not what should stand there.
    pub(super) fn unexpected(&mut self, wanted: &str) -> Stop {
        let t = self.tokens[self.pos];
        let found = match t.kind {
            Kind::End => "the end of the text".to_owned(),
            Kind::Metadata => "the metadata section".to_owned(),
            _ => format!("`{}`", self.text_of(t).lines().next().unwrap_or_default()),
        };
        self.error(t, format!("expected {wanted}, found {found}"));
        Stop
    }

    pub(super) fn add(&mut self, e: Expr, start: u32, end: u32) -> ExprId {
        let span = self.span(start, end);
        self.m.add_at(e, Some(span))
    }

    // Programs.

    fn program(&mut self) -> Read<Parsed> {
        if let Some(t) = self.tokens.iter().find(|t| t.kind == Kind::Metadata).copied() {
            self.read_metadata(t);
        }
        let versioned = self.version();
        match self.peek() {
            Kind::Word(Word::Def | Word::Type | Word::Extern) | Kind::End | Kind::Metadata => {
                if !versioned {
                    let t = self.tokens[self.pos];
                    let d = Diagnostic::new("a module must begin with its version").at(Some(self.token_span(t)));
                    self.report(d.help("write `#[version = \"0.0.5\"]` before the first definition"));
                }
                self.definitions();
                Ok(Parsed::Module(std::mem::take(&mut self.m)))
            }
            _ => {
                let e = self.expression()?;
                if !matches!(self.peek(), Kind::End | Kind::Metadata) {
                    return Err(self.unexpected("the end of the expression"));
                }
                Ok(Parsed::Expr(std::mem::take(&mut self.m), e))
            }
        }
    }

    fn finish(mut self, parsed: Read<Parsed>) -> Result<Parsed, Refused> {
        match parsed {
            Ok(parsed) if self.errors.is_empty() => Ok(parsed),
            _ => {
                self.errors.sort_by_key(|d| d.span.as_ref().map_or(0, |s| s.start));
                if self.hidden_errors > 0 {
                    self.errors.push(Diagnostic::new(format!("{} more of the like", self.hidden_errors)));
                }
                Err(Refused(self.errors))
            }
        }
    }

    /// Takes the version line, where there is one.
    fn version(&mut self) -> bool {
        if self.peek() != Kind::Version {
            return false;
        }
        let t = self.next();
        let inner = self.text_of(t).trim_start_matches("#[").trim_end_matches(']');
        let version = inner.split_once('=').map_or("", |(_, v)| v.trim());
        if version != "\"0.0.5\"" {
            let d = Diagnostic::new(format!("version {version} of Relay text is not supported"));
            self.report(d.at(Some(self.token_span(t))).help("the supported version is \"0.0.5\""));
        }
        true
    }

    fn read_metadata(&mut self, t: Token) {
        let json = &self.text[t.start as usize..];
        let json_start = t.start as usize + json.find(']').map_or(0, |i| i + 1);
        match parse_metadata("the metadata section", &self.text[json_start..]) {
            Ok(metadata) => self.metadata = metadata,
            Err(refused) => {
                self.metadata_damaged = true;
                let span = self.span(t.start, json_start as u32);
                for d in refused.0 {
                    self.report(d.at(Some(span.clone())));
                }
            }
        }
    }

    /// All definitions. Data types come first, wherever they stand, since constructors must be known as such.
    fn definitions(&mut self) {
        let first = self.pos;
        let mut types = HashMap::new();
        for i in first..self.tokens.len() {
            if self.tokens[i].kind == Kind::Word(Word::Type) {
                self.pos = i;
                let is_extern = i > first && self.tokens[i - 1].kind == Kind::Word(Word::Extern);
                match self.type_def(is_extern) {
                    Ok(()) => drop(types.insert(i, self.pos)),
                    Err(Stop) => {
                        self.skip_to_definition();
                        types.insert(i, self.pos);
                    }
                }
            }
        }
        self.pos = first;
        loop {
            let t = self.tokens[self.pos];
            match t.kind {
                Kind::Word(Word::Def) => {
                    if self.definition().is_err() {
                        self.skip_to_definition();
                    }
                }
                Kind::Word(Word::Extern) if self.peek2() == Kind::Word(Word::Type) => self.pos += 1,
                Kind::Word(Word::Type) => self.pos = types[&self.pos],
                Kind::Metadata | Kind::End => break,
                _ => {
                    self.unexpected("`def`, `type` or `extern type`");
                    self.pos += 1;
                    self.skip_to_definition();
                }
            }
        }
        for t in std::mem::take(&mut self.global_uses) {
            let name = &self.text_of(t)[1..];
            if !self.declared.contains(&name) {
                let declared = self.declared.clone();
                self.unknown(t, "function", name, declared);
            }
        }
        let types: Vec<Name> = self.m.adts().iter().map(|a| a.name.clone()).collect();
        for (name, t) in std::mem::take(&mut self.type_uses) {
            if !types.iter().any(|n| n.as_str() == name) {
                let known = types.iter().map(Name::as_str).chain(["Tensor", "float32", "int32", "int64", "bool"]);
                self.unknown(t, "type", name, known);
            }
        }
    }

    /// After an error: to where something can be read again.
    fn skip_to_definition(&mut self) {
        while !matches!(self.peek(), Kind::Word(Word::Def | Word::Type | Word::Extern) | Kind::Metadata | Kind::End) {
            self.pos += 1;
        }
        self.vars = Scopes::new();
        self.type_vars = Scopes::new();
    }

    /// `def @f[A](%x: T) -> R { … }`.
    fn definition(&mut self) -> Read<()> {
        let start = self.next().start;
        if self.peek() != Kind::Global {
            return Err(self.unexpected("the function's name, as in `def @main`"));
        }
        let t = self.next();
        let name = &self.text_of(t)[1..];
        if self.declared.contains(&name) {
            self.error(t, format!("function `@{name}` is already defined"));
        }
        self.declared.push(name);
        let f = self.function(start)?;
        self.m.define(name, f);
        Ok(())
    }

    /// `[A, B]`, where it is next: type parameters, bound until the scope that the mark stands for is left.
    pub(super) fn type_params(&mut self) -> Read<(Vec<TypeVarId>, Mark)> {
        let mark = self.type_vars.mark();
        let mut params = Vec::new();
        if self.eat(b'[') {
            while !self.eat(b']') {
                if self.peek() != Kind::Ident {
                    return Err(self.unexpected("the name of a type parameter"));
                }
                let t = self.next();
                let name = self.text_of(t);
                let v = self.m.new_type_var(name);
                self.type_vars.bind(name, v);
                params.push(v);
                if !self.eat(b',') && !self.at(b']') {
                    return Err(self.unexpected("`,` or `]` in the type parameters"));
                }
            }
        }
        Ok((params, mark))
    }

    /// `type List[A] { Cons(A, List[A]), Nil }`.
    fn type_def(&mut self, is_extern: bool) -> Read<()> {
        self.next();
        if self.peek() != Kind::Ident {
            return Err(self.unexpected("the data type's name"));
        }
        let name_token = self.next();
        let name = self.text_of(name_token);
        if self.m.adt(name).is_some() {
            self.error(name_token, format!("data type `{name}` is already defined"));
        }
        let (params, mark) = self.type_params()?;
        let mut constructors = Vec::new();
        if self.eat(b'{') {
            if is_extern && !self.at(b'}') {
                self.error(name_token, format!("extern type `{name}` may not have constructors"));
            }
            while !self.eat(b'}') {
                if self.peek() != Kind::Ident {
                    return Err(self.unexpected("a constructor's name"));
                }
                let t = self.next();
                let ctor = self.text_of(t);
                let mut fields = Vec::new();
                if self.eat(b'(') {
                    while !self.eat(b')') {
                        fields.push(self.ty(0)?);
                        if !self.eat(b',') && !self.at(b')') {
                            return Err(self.unexpected("`,` or `)` in the constructor's fields"));
                        }
                    }
                }
                if self.constructors.insert(ctor, fields.len()).is_some() {
                    let owner = self.m.constructor(ctor).map(|(adt, _)| adt.name.clone());
                    let d = Diagnostic::new(format!("constructor `{ctor}` is already defined"));
                    let d = d.at(Some(self.token_span(t)));
                    let owner = owner.map_or("this data type".into(), |adt| format!("data type `{adt}`"));
                    self.report(
                        d.help(format!("{owner} has it; constructors' names must differ in all of the module")),
                    );
                }
                constructors.push(Constructor { name: ctor.into(), fields });
                if !self.eat(b',') && !self.at(b'}') {
                    return Err(self.unexpected("`,` or `}` in the data type"));
                }
            }
        } else if self.eat(b';') {
            // An extern type's declaration may end in a semicolon.
        }
        self.type_vars.leave(mark);
        // A type that nothing makes is what TVM takes an extern one for, and Relay's JSON tells no difference.
        let is_extern = is_extern || constructors.is_empty();
        self.m.add_adt(AdtDef { name: name.into(), params, constructors, is_extern });
        Ok(())
    }
}
