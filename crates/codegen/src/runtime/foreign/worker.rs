//! The other side of a library's calls: opens a compiler that is a shared library, asks it, and writes down what it says.
//!
//! This file is compiled twice: as a part of resat, which reads and writes the same messages (and calls libraries itself for
//! functions that can't leave their process), and by `build.rs` as the small program that libraries crash in place of resat. It
//! uses nothing but the standard library and the C library.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io::{Read, Write},
    ptr,
};

/// What is asked for.
pub(crate) mod ask {
    pub(crate) const HELLO: u32 = 1;
    pub(crate) const PATTERNS: u32 = 2;
    pub(crate) const RULES: u32 = 3;
    pub(crate) const SUPPORTS: u32 = 4;
    pub(crate) const COST: u32 = 5;
    pub(crate) const COMPILE: u32 = 6;
    pub(crate) const RUN: u32 = 7;
}

/// The version of `include/resat_compiler.h`.
pub(crate) const ABI: u32 = 1;

/// More than anything that a library can mean.
const MOST: u32 = 1 << 16;

// Messages: numbers as they lie in memory, texts and bytes with their length before and a NUL behind.

/// Writes a message.
#[derive(Default)]
pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn u32(&mut self, x: u32) {
        self.0.extend(x.to_ne_bytes());
    }

    pub(crate) fn u64(&mut self, x: u64) {
        self.0.extend(x.to_ne_bytes());
    }

    pub(crate) fn f64(&mut self, x: f64) {
        self.0.extend(x.to_ne_bytes());
    }

    pub(crate) fn bytes(&mut self, x: &[u8]) {
        self.u64(x.len() as u64);
        self.0.extend(x);
        self.0.push(0);
    }

    pub(crate) fn ty(&mut self, dtype: &str, shape: &[i64]) {
        self.bytes(dtype.as_bytes());
        self.u32(shape.len() as u32);
        shape.iter().for_each(|&n| self.u64(n as u64));
    }
}

/// Reads a message. What ends too early reads as zeros and empty texts; [`In::whole`] tells.
pub(crate) struct In<'a> {
    rest: &'a [u8],
    short: bool,
}

impl<'a> In<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> In<'a> {
        In { rest, short: false }
    }

    fn take(&mut self, n: usize) -> &'a [u8] {
        match self.rest.split_at_checked(n) {
            Some((head, tail)) => {
                self.rest = tail;
                head
            }
            None => {
                self.short = true;
                self.rest = &[];
                &[]
            }
        }
    }

    pub(crate) fn u32(&mut self) -> u32 {
        self.take(4).try_into().map_or(0, u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.take(8).try_into().map_or(0, u64::from_ne_bytes)
    }

    pub(crate) fn f64(&mut self) -> f64 {
        self.take(8).try_into().map_or(0.0, f64::from_ne_bytes)
    }

    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let n = usize::try_from(self.u64()).unwrap_or(usize::MAX);
        let all = self.take(n.saturating_add(1));
        &all[..all.len().saturating_sub(1)]
    }

    pub(crate) fn text(&mut self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// A text for C: the NUL is in the message.
    fn c_text(&mut self) -> *const c_char {
        let text = self.bytes();
        if text.is_empty() { c"".as_ptr() } else { text.as_ptr().cast() }
    }

    /// Whether nothing was missing.
    pub(crate) fn whole(&self) -> bool {
        !self.short
    }
}

// The structs of the header.

#[repr(C)]
struct RawType {
    dtype: *const c_char,
    rank: u32,
    shape: *const i64,
}

#[repr(C)]
struct RawCall {
    op: *const c_char,
    attrs: *const c_char,
    arg_count: u32,
    args: *const RawType,
    result_count: u32,
    results: *const RawType,
}

#[repr(C)]
struct RawValue {
    ty: RawType,
    data: *const c_void,
}

#[repr(C)]
struct RawNode {
    op: *const c_char,
    attrs: *const c_char,
    composite: *const c_char,
    group: u32,
    arg_count: u32,
    args: *const u32,
    result_count: u32,
    results: *const u32,
}

#[repr(C)]
struct RawRegion {
    symbol: *const c_char,
    relay: *const c_char,
    triple: *const c_char,
    cpu: *const c_char,
    features: *const c_char,
    value_count: u32,
    values: *const RawValue,
    input_count: u32,
    node_count: u32,
    nodes: *const RawNode,
    output_count: u32,
    outputs: *const u32,
}

/// `resat_context`.
#[repr(C)]
pub(crate) struct RawContext {
    parallel_for:
        unsafe extern "C" fn(*const RawContext, unsafe extern "C" fn(*mut c_void, i64, i64), *mut c_void, i64),
    pool: *const c_void,
    threads: i64,
}

/// `resat_function`.
pub(crate) type Function = unsafe extern "C" fn(*const RawContext, *const *mut c_void, *mut c_void);

#[repr(C)]
struct RawCompiled {
    kind: u32,
    code: *const c_void,
    code_bytes: u64,
    function: Option<Function>,
    workspace_bytes: u64,
    output_count: u32,
    outputs: *const RawType,
    libraries: *const c_char,
    error: *const c_char,
}

#[repr(C)]
struct RawComposite {
    name: *const c_char,
    pattern: *const c_char,
}

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

const RTLD_NOW: c_int = 2;

fn open(path: &str) -> Result<*mut c_void, String> {
    let c_path = CString::new(path).map_err(|_| "its path holds a NUL".to_owned())?;
    // SAFETY: a path and a flag; the library's initializers are what the caller wants to run.
    let handle = unsafe { dlopen(c_path.as_ptr(), RTLD_NOW) };
    if handle.is_null() {
        // SAFETY: after a failure it is a text, which lives until the next call.
        let why = unsafe { dlerror() };
        return Err(text(why).unwrap_or_else(|_| "it can't be loaded".into()));
    }
    Ok(handle)
}

/// A text that a library gave.
fn text(s: *const c_char) -> Result<String, String> {
    if s.is_null() {
        return Err("NULL instead of a text".into());
    }
    // SAFETY: it is not null, and the header says that texts end with a NUL.
    let s = unsafe { CStr::from_ptr(s) };
    s.to_str().map(str::to_owned).map_err(|e| format!("a text that is no UTF-8 at byte {}", e.valid_up_to()))
}

/// As many elements as a library says that there are.
fn elements<'a, T>(at: *const T, count: u32, what: &str) -> Result<&'a [T], String> {
    match (at.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, n) => Err(format!("NULL instead of {n} {what}")),
        (_, n) if n > MOST => Err(format!("{n} {what}, more than can be")),
        // SAFETY: the library says that so many are there, and that they live until they are freed.
        (_, n) => Ok(unsafe { std::slice::from_raw_parts(at, n as usize) }),
    }
}

/// The types and lists that raw structs point at, which stay where they are while messages grow around them.
#[derive(Default)]
struct Arena {
    shapes: Vec<Box<[i64]>>,
    types: Vec<Box<[RawType]>>,
    numbers: Vec<Box<[u32]>>,
}

impl Arena {
    fn ty(&mut self, m: &mut In<'_>) -> RawType {
        let (dtype, rank) = (m.c_text(), m.u32());
        let shape: Box<[i64]> = (0..rank.min(MOST)).map(|_| m.u64() as i64).collect();
        let raw = RawType { dtype, rank: shape.len() as u32, shape: shape.as_ptr() };
        self.shapes.push(shape);
        raw
    }

    fn types(&mut self, m: &mut In<'_>) -> (u32, *const RawType) {
        let n = m.u32();
        let all: Box<[RawType]> = (0..n).map_while(|_| m.whole().then(|| self.ty(m))).collect();
        let raw = (all.len() as u32, all.as_ptr());
        self.types.push(all);
        raw
    }

    fn numbers(&mut self, m: &mut In<'_>) -> (u32, *const u32) {
        let n = m.u32();
        let all: Box<[u32]> = (0..n).map_while(|_| m.whole().then(|| m.u32())).collect();
        let raw = (all.len() as u32, all.as_ptr());
        self.numbers.push(all);
        raw
    }
}

/// Memory for constants and arguments, aligned as code wants it.
struct Aligned(Vec<u128>);

const ALIGN: usize = 64;

impl Aligned {
    fn new(bytes: usize) -> Aligned {
        Aligned(vec![0; (bytes + ALIGN).div_ceil(16) + 1])
    }

    fn at(&mut self) -> *mut u8 {
        let start = self.0.as_mut_ptr().cast::<u8>();
        // SAFETY: `new` left room for the alignment.
        unsafe { start.add(start.align_offset(ALIGN)) }
    }

    fn of(bytes: &[u8]) -> Aligned {
        let mut own = Aligned::new(bytes.len());
        // SAFETY: there is room for so many bytes, and nobody else knows of it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), own.at(), bytes.len()) };
        own
    }
}

/// Reads the region of a message and calls `f` on it, whose pointers live as long as that.
fn with_region<T>(message: &[u8], f: impl FnOnce(&RawRegion) -> T) -> Result<T, String> {
    let m = &mut In::new(message);
    let mut arena = Arena::default();
    let mut constants = Vec::new();
    let [symbol, relay, triple, cpu, features] = [(); 5].map(|()| m.c_text());
    let mut values = Vec::new();
    for _ in 0..m.u32() {
        if !m.whole() {
            break;
        }
        let ty = arena.ty(m);
        let data = match m.u32() {
            0 => ptr::null(),
            _ => {
                constants.push(Aligned::of(m.bytes()));
                constants.last_mut().expect("it was pushed").at().cast_const().cast()
            }
        };
        values.push(RawValue { ty, data });
    }
    let input_count = m.u32();
    let mut nodes = Vec::new();
    for _ in 0..m.u32() {
        if !m.whole() {
            break;
        }
        let (op, attrs) = (m.c_text(), m.c_text());
        let composite = m.c_text();
        let group = m.u32();
        let composite = if group == 0 { ptr::null() } else { composite };
        let ((arg_count, args), (result_count, results)) = (arena.numbers(m), arena.numbers(m));
        nodes.push(RawNode { op, attrs, composite, group, arg_count, args, result_count, results });
    }
    let (output_count, outputs) = arena.numbers(m);
    if !m.whole() {
        return Err("the message of a region ends too early".into());
    }
    let region = RawRegion {
        symbol,
        relay,
        triple,
        cpu,
        features,
        value_count: values.len() as u32,
        values: values.as_ptr(),
        input_count,
        node_count: nodes.len() as u32,
        nodes: nodes.as_ptr(),
        output_count,
        outputs,
    };
    Ok(f(&region))
}

/// A compiler that is a shared library.
pub(crate) struct Library {
    name: unsafe extern "C" fn() -> *const c_char,
    supports: unsafe extern "C" fn(*const RawCall) -> c_int,
    compile: unsafe extern "C" fn(*const RawRegion, *mut RawCompiled) -> c_int,
    free: unsafe extern "C" fn(*mut RawCompiled),
    patterns: Option<unsafe extern "C" fn(*mut *const RawComposite) -> u32>,
    rules: Option<unsafe extern "C" fn() -> *const c_char>,
    cost: Option<unsafe extern "C" fn(*const RawRegion) -> f64>,
    keeps_constants: Option<unsafe extern "C" fn() -> c_int>,
}

impl Library {
    /// Loads it and looks at its version. It stays loaded: what it made may be in use.
    pub(crate) fn open(path: &str) -> Result<Library, String> {
        let handle = open(path)?;
        let find = |name: &CStr| {
            // SAFETY: a handle that is open, and a name.
            let at = unsafe { dlsym(handle, name.as_ptr()) };
            if at.is_null() {
                return Err(format!("it has no `{}`: it is no compiler for resat", name.to_string_lossy()));
            }
            Ok(at)
        };
        // SAFETY: functions of these names have these types; the header says so.
        unsafe {
            let abi = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u32>(find(c"resat_compiler_abi")?)();
            if abi != ABI {
                return Err(format!("`resat_compiler_abi` says version {abi}, where {ABI} is known"));
            }
            Ok(Library {
                name: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(find(
                    c"resat_compiler_name",
                )?),
                supports: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const RawCall) -> c_int>(find(
                    c"resat_compiler_supports",
                )?),
                compile: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const RawRegion, *mut RawCompiled) -> c_int,
                >(find(c"resat_compiler_compile")?),
                free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut RawCompiled)>(find(
                    c"resat_compiler_free",
                )?),
                patterns: find(c"resat_compiler_patterns").ok().map(|f| {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut *const RawComposite) -> u32>(f)
                }),
                rules: find(c"resat_compiler_rules")
                    .ok()
                    .map(|f| std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(f)),
                cost: find(c"resat_compiler_cost")
                    .ok()
                    .map(|f| std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const RawRegion) -> f64>(f)),
                keeps_constants: find(c"resat_compiler_keeps_constants")
                    .ok()
                    .map(|f| std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(f)),
            })
        }
    }

    fn hello(&self, out: &mut Out) -> Result<(), String> {
        // SAFETY: the library's functions take what the header says, here and below.
        out.bytes(text(unsafe { (self.name)() }).map_err(|e| format!("`resat_compiler_name` gives {e}"))?.as_bytes());
        out.u32(self.keeps_constants.is_some_and(|f| unsafe { f() } != 0) as u32);
        out.u32(self.cost.is_some() as u32);
        Ok(())
    }

    fn patterns(&self, out: &mut Out) -> Result<(), String> {
        let mut all = ptr::null();
        // SAFETY: it fills a pointer.
        let count = self.patterns.map_or(0, |f| unsafe { f(&mut all) });
        let gives = |e| format!("`resat_compiler_patterns` gives {e}");
        let all = elements(all, count, "patterns").map_err(gives)?;
        out.u32(all.len() as u32);
        for c in all {
            out.bytes(text(c.name).map_err(gives)?.as_bytes());
            out.bytes(text(c.pattern).map_err(gives)?.as_bytes());
        }
        Ok(())
    }

    fn rules(&self, out: &mut Out) -> Result<(), String> {
        // SAFETY: it takes nothing.
        let rules = self.rules.map_or(ptr::null(), |f| unsafe { f() });
        let rules = match rules.is_null() {
            true => String::new(),
            false => text(rules).map_err(|e| format!("`resat_compiler_rules` gives {e}"))?,
        };
        out.bytes(rules.as_bytes());
        Ok(())
    }

    fn supports(&self, message: &[u8], out: &mut Out) -> Result<(), String> {
        let (m, mut arena) = (&mut In::new(message), Arena::default());
        let (op, attrs) = (m.c_text(), m.c_text());
        let ((arg_count, args), (result_count, results)) = (arena.types(m), arena.types(m));
        let call = RawCall { op, attrs, arg_count, args, result_count, results };
        // SAFETY: all that the call points at lives until the function returns.
        out.u32((unsafe { (self.supports)(&call) } != 0) as u32);
        Ok(())
    }

    fn cost(&self, message: &[u8], out: &mut Out) -> Result<(), String> {
        // SAFETY: as above.
        let cost = self.cost.map_or(Ok(-1.0), |f| with_region(message, |r| unsafe { f(r) }))?;
        out.f64(cost);
        Ok(())
    }

    /// Compiles the region of a message. The function, where it is one, lives as long as the library, which is for ever.
    pub(crate) fn compile(&self, message: &[u8], out: &mut Out) -> Result<Option<Function>, String> {
        let mut made = RawCompiled {
            kind: 0,
            code: ptr::null(),
            code_bytes: 0,
            function: None,
            workspace_bytes: 0,
            output_count: 0,
            outputs: ptr::null(),
            libraries: ptr::null(),
            error: ptr::null(),
        };
        // SAFETY: the region lives until the function returns, and what it fills is of the type that it fills.
        with_region(message, |r| {
            let status = unsafe { (self.compile)(r, &mut made) };
            // What it gives may point into what it was given.
            let answer = self.read(status, &made, out);
            // A function may need what would be freed.
            if !matches!(answer, Ok(Some(_))) {
                // SAFETY: what the library has filled, once.
                unsafe { (self.free)(&mut made) };
            }
            answer
        })?
    }

    fn read(&self, status: c_int, made: &RawCompiled, out: &mut Out) -> Result<Option<Function>, String> {
        let gives = |e: String| format!("`resat_compiler_compile` gives {e}");
        if status != 0 {
            let why = if made.error.is_null() {
                Ok(format!("it returned {status} without a word"))
            } else {
                text(made.error)
            };
            return Err(why.map_err(gives)?);
        }
        out.u32(made.kind);
        let code: &[u8] = match (made.kind, made.code.is_null(), made.function) {
            (1 | 2, true, _) => return Err(gives("NULL instead of code".into())),
            (1 | 2, ..) if made.code_bytes == 0 => return Err(gives("code of no bytes".into())),
            (1 | 2, ..) if made.code_bytes > MOST_CODE => {
                return Err(gives(format!("code of {} bytes", made.code_bytes)));
            }
            // SAFETY: the library says that so many bytes are there.
            (1 | 2, ..) => unsafe { std::slice::from_raw_parts(made.code.cast(), made.code_bytes as usize) },
            (3, _, None) => return Err(gives("NULL instead of a function".into())),
            (3, ..) => &[],
            (kind, ..) => return Err(gives(format!("code of kind {kind}, which there is not"))),
        };
        if made.workspace_bytes > MOST_CODE {
            return Err(gives(format!("a workspace of {} bytes", made.workspace_bytes)));
        }
        out.bytes(code);
        out.u64(made.workspace_bytes);
        let outputs = elements(made.outputs, made.output_count, "outputs").map_err(gives)?;
        out.u32(outputs.len() as u32);
        for t in outputs {
            out.ty(&text(t.dtype).map_err(gives)?, elements(t.shape, t.rank, "extents").map_err(gives)?);
        }
        let libraries = if made.libraries.is_null() { String::new() } else { text(made.libraries).map_err(gives)? };
        out.bytes(libraries.as_bytes());
        Ok(made.function.filter(|_| made.kind == 3))
    }
}

/// No machine has so much memory.
const MOST_CODE: u64 = 1 << 40;

/// Runs a function on the inputs of a message, twice, with different bytes in all that it should write.
fn run(last: Option<Function>, message: &[u8], out: &mut Out) -> Result<(), String> {
    let m = &mut In::new(message);
    let (path, symbol, workspace) = (m.text(), m.text(), m.u64() as usize);
    let function = match path.is_empty() {
        true => last.ok_or("no function was compiled before")?,
        false => {
            let name = CString::new(symbol).map_err(|_| "a symbol with a NUL".to_owned())?;
            // SAFETY: a handle that is open, and a name.
            let at = unsafe { dlsym(open(&path)?, name.as_ptr()) };
            if at.is_null() {
                return Err("the symbol is not in the library".into());
            }
            // SAFETY: whoever sends the message has had it compiled to this type.
            unsafe { std::mem::transmute::<*mut c_void, Function>(at) }
        }
    };
    let inputs: Vec<&[u8]> = (0..m.u32()).map_while(|_| m.whole().then(|| m.bytes())).collect();
    let sizes: Vec<usize> = (0..m.u32()).map_while(|_| m.whole().then(|| m.u64() as usize)).collect();
    let mut runs = Vec::new();
    for fill in [0x00, 0xff] {
        let mut args: Vec<Aligned> = inputs.iter().map(|i| Aligned::of(i)).collect();
        // Each output, and the workspace, with a border that must stay as it is.
        args.extend(sizes.iter().chain([&workspace]).map(|&n| {
            let mut own = Aligned::new(n + BORDER);
            // SAFETY: there is room for so many bytes.
            unsafe {
                own.at().write_bytes(fill, n);
                own.at().add(n).write_bytes(MARK, BORDER);
            }
            own
        }));
        let pointers: Vec<*mut c_void> = args.iter_mut().map(|a| a.at().cast()).collect();
        let (scratch, given) = pointers.split_last().ok_or("there is always a workspace")?;
        let context = RawContext { parallel_for: in_caller, pool: ptr::null(), threads: 1 };
        // SAFETY: a pointer for each input and output, to as many bytes as it has, and a workspace of the size asked for.
        unsafe { function(&context, given.as_ptr(), *scratch) };
        for (i, (own, &n)) in args[inputs.len()..].iter_mut().zip(sizes.iter().chain([&workspace])).enumerate() {
            // SAFETY: as above.
            let border = unsafe { std::slice::from_raw_parts(own.at().add(n), BORDER) };
            if border.iter().any(|&b| b != MARK) {
                let what = if i < sizes.len() { format!("output {i}") } else { "the workspace".into() };
                return Err(format!("it writes beyond the end of {what}"));
            }
        }
        for (i, (own, given)) in args.iter_mut().zip(&inputs).enumerate() {
            // SAFETY: as above.
            if unsafe { std::slice::from_raw_parts(own.at(), given.len()) } != *given {
                return Err(format!("it writes to input {i}"));
            }
        }
        // SAFETY: as above.
        let results = args[inputs.len()..].iter_mut().zip(&sizes);
        runs.push(results.map(|(a, &n)| unsafe { std::slice::from_raw_parts(a.at(), n) }.to_vec()).collect::<Vec<_>>());
    }
    out.u32(sizes.len() as u32);
    for (i, (a, b)) in runs[0].iter().zip(&runs[1]).enumerate() {
        if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
            return Err(format!("byte {at} of output {i} is not written, or differs from run to run"));
        }
        out.bytes(a);
    }
    Ok(())
}

const BORDER: usize = 64;
const MARK: u8 = 0xa5;

/// `parallel_for` where there is one thread.
unsafe extern "C" fn in_caller(
    _: *const RawContext,
    body: unsafe extern "C" fn(*mut c_void, i64, i64),
    env: *mut c_void,
    n: i64,
) {
    if n > 0 {
        // SAFETY: `body` and `env` belong together, as whoever calls promises.
        unsafe { body(env, 0, n) }
    }
}

/// Answers messages until there are no more: the library of that path is asked; without one, only runs are answered.
pub(crate) fn serve(path: Option<&str>, mut from: impl Read, mut to: impl Write) {
    let library = path.map(Library::open);
    let mut last = None;
    loop {
        let mut head = [0; 12];
        if from.read_exact(&mut head).is_err() {
            return;
        }
        let mut h = In::new(&head);
        let (what, len) = (h.u32(), h.u64());
        let mut message = vec![0; len as usize];
        if from.read_exact(&mut message).is_err() {
            return;
        }
        let mut out = Out::default();
        let done = match (what, &library) {
            (ask::RUN, _) => run(last, &message, &mut out),
            (_, None) => Err("there is no library to ask".into()),
            (_, Some(Err(e))) => Err(e.clone()),
            (ask::HELLO, Some(Ok(l))) => l.hello(&mut out),
            (ask::PATTERNS, Some(Ok(l))) => l.patterns(&mut out),
            (ask::RULES, Some(Ok(l))) => l.rules(&mut out),
            (ask::SUPPORTS, Some(Ok(l))) => l.supports(&message, &mut out),
            (ask::COST, Some(Ok(l))) => l.cost(&message, &mut out),
            (ask::COMPILE, Some(Ok(l))) => l.compile(&message, &mut out).map(|f| last = f),
            _ => Err("an unknown message".into()),
        };
        let (status, body) = match done {
            Ok(()) => (0u32, out.0),
            Err(e) => (1, e.into_bytes()),
        };
        let mut frame = Out::default();
        frame.u32(status);
        frame.u64(body.len() as u64);
        frame.0.extend(body);
        if to.write_all(&frame.0).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}

/// The program: answers on what was its standard output. What libraries print goes to standard error.
pub(crate) fn main() {
    use std::os::fd::FromRawFd;
    unsafe extern "C" {
        fn dup(fd: c_int) -> c_int;
        fn dup2(from: c_int, to: c_int) -> c_int;
        fn signal(signal: c_int, handler: usize) -> usize;
    }
    const DEFAULT: usize = 0;
    const FATAL: [c_int; 2] = [7, 11];
    // Rust's own handlers of SIGBUS and SIGSEGV, which look for stacks that overflow, would let a library that raises these
    // signals by itself go on.
    for fatal in FATAL {
        // SAFETY: the default is what the system does by itself.
        let _ = unsafe { signal(fatal, DEFAULT) };
    }
    // SAFETY: the descriptors are this program's, which has done nothing yet; each file is made of one that is new.
    let (from, to) = unsafe {
        let (from, to) = (dup(0), dup(1));
        dup2(2, 1);
        (std::fs::File::from_raw_fd(from), std::fs::File::from_raw_fd(to))
    };
    let path = std::env::args().nth(1);
    serve(path.as_deref(), from, to);
}
