//! Relay text as tokens.
//!
//! The rules are TVM's, read generously where TVM's own printer writes what its tokenizer can't take back: dotted and
//! `::` names after `%`, names with signs in them (where a variable is bound it shows where its name ends, and uses are known
//! by that), `nan` and infinities of every width, escapes in strings.

/// What a token is. Names and literals are read from the text by the token's range.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// `nn.conv2d`, `Tensor`, `_`: a name, possibly dotted.
    Ident,
    /// A keyword.
    Word(Word),
    /// `True` or `False`.
    Bool(bool),
    /// `12`, `-3i64`: an integer literal with sign and suffix.
    Int,
    /// `1.5f`, `-inff`: a float literal with sign and suffix.
    Float,
    /// A string in quotes.
    Str,
    /// `%x`, `%features.0.weight`, `%0`, `%4.0`: a percent sign and all that may belong to its name.
    Local,
    /// `@f`.
    Global,
    /// `meta[relay.Constant][0]`.
    Meta,
    /// `#[version = "…"]`.
    Version,
    /// `#[metadata]` and the rest of the text.
    Metadata,
    /// A number that is none; that has been reported.
    Bad,
    /// One sign, such as `(` or `;`.
    Sign(u8),
    /// The end of the text.
    End,
}

/// A keyword.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Word {
    Let,
    Fn,
    Def,
    If,
    Else,
    Type,
    Match,
    PartialMatch,
    Extern,
    FreeVar,
    Ref,
    RefRead,
    RefWrite,
}

impl Word {
    fn of(s: &str) -> Option<Word> {
        Some(match s {
            "let" => Word::Let,
            "fn" => Word::Fn,
            "def" => Word::Def,
            "if" => Word::If,
            "else" => Word::Else,
            "type" => Word::Type,
            "match" => Word::Match,
            "extern" => Word::Extern,
            "free_var" => Word::FreeVar,
            "ref" => Word::Ref,
            "ref_read" => Word::RefRead,
            "ref_write" => Word::RefWrite,
            _ => return None,
        })
    }
}

/// A token and its bytes.
#[derive(Copy, Clone, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    pub start: u32,
    pub end: u32,
}

/// What is wrong with the text at a range of bytes: message, then advice.
#[derive(Debug)]
pub(super) struct LexError {
    pub message: String,
    pub help: Option<&'static str>,
    pub start: usize,
    pub end: usize,
}

fn is_name_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || c == b'_' || c >= 0x80
}

fn is_name(c: u8) -> bool {
    is_name_start(c) || c.is_ascii_digit()
}

/// What no name holds, however odd.
const NAME_ENDS: &[u8] = b" \t\r\n,(){}[];=<>%@\"";

/// A lexer in the middle of a text.
struct Lexer<'a> {
    text: &'a str,
    bytes: &'a [u8],
    pos: usize,
    tokens: Vec<Token>,
    errors: Vec<LexError>,
    /// Names with signs in them that were bound so far, with `%` or `@`; longer ones before their beginnings.
    odd: Vec<&'a str>,
}

/// Whether a name of an attribute or the like can be written as it is.
pub(super) fn is_identifier(name: &str) -> bool {
    let (tokens, errors) = lex(name);
    let is_whole = |t: &Token| t.kind == Kind::Ident && t.start == 0 && t.end as usize == name.len();
    errors.is_empty() && tokens.first().is_some_and(is_whole)
}

/// All tokens of a text, the last one being [`Kind::End`], and what could not be read. The text is shorter than 4 GB.
pub(super) fn lex(text: &str) -> (Vec<Token>, Vec<LexError>) {
    let tokens = Vec::with_capacity(text.len() / 8);
    let mut l = Lexer { text, bytes: text.as_bytes(), pos: 0, tokens, errors: Vec::new(), odd: Vec::new() };
    // Functions may be called before they are defined.
    for (at, def) in text.match_indices("def @") {
        let start = at + def.len() - 1;
        let run = text[start + 1..].bytes().take_while(|c| !NAME_ENDS.contains(c)).count();
        let plain = |c: u8| is_name(c) || matches!(c, b'.' | b':' | b'/');
        if !text[start + 1..][..run].bytes().all(plain) {
            l.odd.push(&text[start..start + 1 + run]);
        }
    }
    while l.pos < l.bytes.len() {
        l.token();
    }
    let end = text.len() as u32;
    l.tokens.push(Token { kind: Kind::End, start: end, end });
    (l.tokens, l.errors)
}

/// Whether `%` and the name are one token.
pub(super) fn is_local_name(name: &str) -> bool {
    let (tokens, errors) = lex(&format!("%{name}"));
    errors.is_empty() && tokens.len() == 2 && tokens[0].kind == Kind::Local
}

impl<'a> Lexer<'a> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.pos + ahead).copied().unwrap_or(0)
    }

    fn push(&mut self, kind: Kind, start: usize) {
        self.tokens.push(Token { kind, start: start as u32, end: self.pos as u32 });
    }

    fn error(&mut self, start: usize, end: usize, message: impl Into<String>, help: Option<&'static str>) {
        self.errors.push(LexError { message: message.into(), help, start, end });
    }

    fn token(&mut self) {
        let start = self.pos;
        match self.peek(0) {
            b' ' | b'\t' | b'\n' | b'\r' => self.pos += 1,
            b'/' if self.peek(1) == b'/' => {
                self.pos = self.text[start..].find('\n').map_or(self.bytes.len(), |i| start + i);
            }
            b'/' if self.peek(1) == b'*' => self.comment(),
            b'"' => self.string(),
            b'%' => self.local(),
            b'@' if is_name_start(self.peek(1)) => {
                self.pos += 1;
                self.name(true);
                self.odd_name(start);
                self.push(Kind::Global, start);
            }
            b'#' => self.attribute(),
            b'-' => self.minus(),
            b'0'..=b'9' => self.number(start),
            c if is_name_start(c) => self.word(),
            c @ (b'.' | b',' | b'=' | b';' | b':' | b'(' | b')' | b'+' | b'*' | b'/' | b'<' | b'>' | b'{' | b'}'
            | b'[' | b']' | b'!' | b'?') => {
                self.pos += 1;
                self.push(Kind::Sign(c), start);
            }
            _ => {
                let c = self.text[start..].chars().next().expect("a token starts within the text");
                self.pos += c.len_utf8();
                self.error(start, self.pos, format!("`{}` has no meaning in Relay text", c.escape_debug()), None);
            }
        }
    }

    /// A comment that may hold comments.
    fn comment(&mut self) {
        let start = self.pos;
        self.pos += 2;
        let mut depth = 1;
        while depth > 0 {
            match (self.peek(0), self.peek(1)) {
                (b'*', b'/') => {
                    depth -= 1;
                    self.pos += 2;
                }
                (b'/', b'*') => {
                    depth += 1;
                    self.pos += 2;
                }
                _ if self.pos >= self.bytes.len() => {
                    return self.error(start, start + 2, "this comment has no end", Some("close it with `*/`"));
                }
                _ => self.pos += 1,
            }
        }
    }

    fn string(&mut self) {
        let start = self.pos;
        self.pos += 1;
        loop {
            match self.peek(0) {
                b'"' => break,
                b'\\' if self.pos + 1 < self.bytes.len() => self.pos += 2,
                _ if self.pos >= self.bytes.len() => {
                    let line = self.text[start..].find('\n').map_or(self.bytes.len(), |i| start + i);
                    return self.error(start, line, "this string has no end", Some("close it with `\"`"));
                }
                _ => self.pos += 1,
            }
        }
        self.pos += 1;
        self.push(Kind::Str, start);
    }

    /// A name's letters, digits and slashes; where `dotted`, also `.name` and `::name` parts.
    fn name(&mut self, dotted: bool) {
        loop {
            match self.peek(0) {
                c if is_name(c) => self.pos += 1,
                b'/' if !matches!(self.peek(1), b'/' | b'*') => self.pos += 1,
                b'.' if dotted && is_name_start(self.peek(1)) => self.pos += 1,
                b':' if dotted && self.peek(1) == b':' && is_name(self.peek(2)) => self.pos += 2,
                _ => return,
            }
        }
    }

    /// `%` and the longest name that may follow it, numeric parts included: what part of it is the name depends on which
    /// names are bound.
    fn local(&mut self) {
        let start = self.pos;
        self.pos += 1;
        loop {
            match self.peek(0) {
                c if is_name(c) => self.pos += 1,
                b'/' if !matches!(self.peek(1), b'/' | b'*') => self.pos += 1,
                b'.' if is_name(self.peek(1)) => self.pos += 1,
                b':' if self.peek(1) == b':' && is_name(self.peek(2)) => self.pos += 2,
                _ => break,
            }
        }
        if self.odd_name(start) {
            while self.peek(0) == b'.' && self.peek(1).is_ascii_digit() {
                self.pos += 1;
                self.digits();
            }
        }
        if self.pos == start + 1 {
            return self.error(start, self.pos, "`%` must be followed by a name or a number", None);
        }
        self.push(Kind::Local, start);
    }

    /// Takes the rest of a name from `start` on that has signs in it, where it is bound here or was bound before.
    fn odd_name(&mut self, start: usize) -> bool {
        // Nearly always the name ends here by all rules.
        let next = self.peek(0);
        if NAME_ENDS.contains(&next) || (next == b':' && self.peek(1) == b' ') || self.pos >= self.bytes.len() {
            return false;
        }
        let after = |end: usize| &self.text[end..];
        let ends_here = |end: usize| !self.bytes.get(end).is_some_and(|&c| is_name(c));
        let known = |name: &&&str| after(start).starts_with(**name) && ends_here(start + name.len());
        if let Some(name) = self.odd.iter().find(known) {
            self.pos = start + name.len();
            return true;
        }
        let run = self.bytes[start + 1..].iter().take_while(|c| !NAME_ENDS.contains(c)).count();
        let end = start + 1 + run;
        let bound = match self.tokens.last().map(|t| t.kind) {
            // `let %x =`, `let %x: T =`.
            Some(Kind::Word(Word::Let)) => Some(end - after(start)[..end - start].ends_with(':') as usize),
            // `%x: T`, and the type that TVM notes of a variable without annotation.
            _ if after(start)[..end - start].ends_with(':') && after(end).starts_with(' ') => Some(end - 1),
            _ if after(end).starts_with(" /* ty=") => Some(end),
            _ => None,
        };
        let Some(end) = bound.filter(|&end| end > self.pos && !after(end).starts_with('.')) else { return false };
        let name: &'a str = &self.text[start..end];
        if name.contains("/*") || name.contains("//") {
            return false;
        }
        self.pos = end;
        self.odd.push(name);
        self.odd.sort_by_key(|n| std::cmp::Reverse(n.len()));
        true
    }

    fn word(&mut self) {
        let start = self.pos;
        self.name(true);
        let text = &self.text[start..self.pos];
        let kind = match text {
            "True" => Kind::Bool(true),
            "False" => Kind::Bool(false),
            "meta" if self.peek(0) == b'[' => return self.meta(start),
            "inff" | "inff16" | "inff32" | "inff64" | "nanf" | "nanf16" | "nanf32" | "nanf64" => Kind::Float,
            _ => match Word::of(text) {
                Some(Word::Match) if self.peek(0) == b'?' => {
                    self.pos += 1;
                    Kind::Word(Word::PartialMatch)
                }
                Some(word) => Kind::Word(word),
                None => Kind::Ident,
            },
        };
        self.push(kind, start);
    }

    /// `[key][index]` after `meta`.
    fn meta(&mut self, start: usize) {
        for _ in 0..2 {
            let close = self.text[self.pos..].find(']').filter(|_| self.peek(0) == b'[');
            match close {
                Some(i) => self.pos += i + 1,
                None => {
                    let help = Some("a reference into the metadata section is written `meta[relay.Constant][0]`");
                    return self.error(start, self.pos, "this metadata reference is not complete", help);
                }
            }
        }
        self.push(Kind::Meta, start);
    }

    /// `#[version = "…"]` or `#[metadata]`.
    fn attribute(&mut self) {
        let start = self.pos;
        let inner = self.text[start + 1..].strip_prefix('[').and_then(|t| t.split_once(']')).map(|(inner, _)| inner);
        let Some(inner) = inner else {
            self.pos += 1;
            return self.error(
                start,
                self.pos,
                "`#` must be followed by `[version = \"0.0.5\"]` or `[metadata]`",
                None,
            );
        };
        self.pos = start + inner.len() + 3;
        match inner.trim() {
            "metadata" => {
                self.pos = self.bytes.len();
                self.push(Kind::Metadata, start);
            }
            v if v.starts_with("version") => self.push(Kind::Version, start),
            v => self.error(start, self.pos, format!("`#[{v}]` is neither a version nor a metadata section"), None),
        }
    }

    /// Whether the token before ends an operand, so that a minus sign after it subtracts.
    fn after_operand(&self) -> bool {
        self.tokens.last().is_some_and(|t| match t.kind {
            Kind::Sign(c) => matches!(c, b')' | b'}' | b']'),
            Kind::Word(_) | Kind::Version | Kind::Metadata | Kind::End => false,
            Kind::Ident | Kind::Bool(_) | Kind::Int | Kind::Float | Kind::Bad | Kind::Str => true,
            Kind::Local | Kind::Global | Kind::Meta => true,
        })
    }

    /// A minus sign, or a negative literal where no operand stands before.
    fn minus(&mut self) {
        let start = self.pos;
        let signs = self.bytes[start..].iter().take_while(|&&c| c == b'-').count();
        let rest = &self.text[start + signs..];
        if !self.after_operand() {
            if rest.starts_with(|c: char| c.is_ascii_digit()) {
                self.pos += signs;
                return self.number(start);
            }
            if rest.starts_with("inff") || rest.starts_with("nanf") {
                self.pos += signs;
                self.word();
                if let Some(t) = self.tokens.last_mut() {
                    t.start = start as u32;
                }
                return;
            }
        }
        self.pos += 1;
        self.push(Kind::Sign(b'-'), start);
    }

    fn digits(&mut self) {
        while self.peek(0).is_ascii_digit() {
            self.pos += 1;
        }
    }

    /// A number whose sign, from `start` on, was read.
    fn number(&mut self, start: usize) {
        self.digits();
        let projection = self.tokens.last().is_some_and(|t| t.kind == Kind::Sign(b'.'));
        let mut fraction = false;
        if !projection {
            if self.peek(0) == b'.' {
                fraction = true;
                self.pos += 1;
                self.digits();
            }
            let sign = matches!(self.peek(1), b'+' | b'-') as usize;
            if matches!(self.peek(0), b'e' | b'E') && self.peek(1 + sign).is_ascii_digit() {
                fraction = true;
                self.pos += 1 + sign;
                self.digits();
            }
        }
        let suffix = self.peek(0);
        if matches!(suffix, b'f' | b'i') && !projection {
            self.pos += 1;
            self.digits();
        }
        if is_name(self.peek(0)) {
            while is_name(self.peek(0)) {
                self.pos += 1;
            }
            let text = &self.text[start..self.pos];
            self.push(Kind::Bad, start);
            let help = Some("numbers end in nothing, `i16`, `i64`, `f`, `f16` or `f64`");
            return self.error(start, self.pos, format!("`{text}` is not a number"), help);
        }
        if fraction && suffix != b'f' {
            let text = &self.text[start..self.pos];
            self.push(Kind::Bad, start);
            let help = Some("floating point numbers end in `f`, `f16` or `f64`, as in `1.5f`");
            return self.error(start, self.pos, format!("`{text}` is not an integer"), help);
        }
        self.push(if suffix == b'f' { Kind::Float } else { Kind::Int }, start);
    }
}
