//! Compilers that are shared libraries, as compilers like any other.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use hashbrown::HashMap;

use super::{Compiled, CompilerError, Composite, ExternalCompiler, Region, RuleText, compiler, register};
use crate::{
    diag::{Diagnostic, Refused},
    infer::infer_types,
    ir::{AttrValue, Attrs, Expr, ExprId, Module, OpId, TensorType, Type, VarId, reachable_outside},
    pass,
    runtime::{ForeignLibrary, ForeignNode, ForeignRegion, ForeignType, ForeignValue},
    tensor::DType,
};

/// How long a library may take for one answer, where the environment variable `RESAT_COMPILER_SECONDS` does not say.
const LIMIT: Duration = Duration::from_secs(60);

/// Makes a shared library with the interface of `include/resat_compiler.h` a compiler, for as long as the process lives.
///
/// Refuses, with the file and the function at fault, what is no such library; and a name that is taken. A file that was loaded
/// before is the compiler that it was.
pub fn load(path: &Path) -> Result<&'static dyn ExternalCompiler, Refused> {
    static LOADED: Mutex<Vec<(std::path::PathBuf, &'static dyn ExternalCompiler)>> = Mutex::new(Vec::new());
    let refuse = |why: String| Refused::from(Diagnostic::new(format!("{}: {why}", path.display())));
    let full = std::fs::canonicalize(path).map_err(|e| refuse(e.to_string()))?;
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, known)) = loaded.iter().find(|(p, _)| *p == full) {
        return Ok(*known);
    }
    let limit =
        match std::env::var("RESAT_COMPILER_SECONDS") {
            Ok(text) => text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()).ok_or_else(|| {
                refuse(format!("RESAT_COMPILER_SECONDS is `{text}`, but should be a number of seconds"))
            })?,
            Err(_) => LIMIT,
        };
    let library = ForeignLibrary::open(path, limit).map_err(|e| Refused::from(Diagnostic::new(e.to_string())))?;
    let patterns = library.patterns().map_err(|e| refuse(e.to_string()))?;
    let rules = library.rules().map_err(|e| refuse(e.to_string()))?;
    let rules = rules.map(|text| RuleText { file: path.display().to_string().into(), text: text.into() });
    let foreign = Foreign {
        library,
        patterns: patterns.into_iter().map(|(name, pattern)| Composite::new(name, pattern)).collect(),
        rules,
        asked: Mutex::default(),
        trouble: Mutex::default(),
    };
    let made = register(foreign).map_err(|e| refuse(e.to_string()))?;
    loaded.push((full, made));
    Ok(made)
}

/// The compiler that a text names: a registered one, or the shared library of that path, which is loaded.
pub fn find(text: &str) -> Result<&'static dyn ExternalCompiler, Refused> {
    if let Some(known) = compiler(text) {
        return Ok(known);
    }
    if text.contains('/') || text.ends_with(".so") {
        return load(Path::new(text));
    }
    let known = super::compilers();
    let d = Diagnostic::new(format!("there is no compiler `{text}`; there are {}", known.join(", ")));
    Err(match crate::diag::nearest(text, known) {
        Some(near) => d.help(format!("did you mean `{near}`?")),
        None => d.help("a shared library is named by its path, as ./mine.so"),
    }
    .into())
}

/// A library that compiles.
#[derive(Debug)]
struct Foreign {
    library: ForeignLibrary,
    patterns: Vec<Composite>,
    rules: Option<RuleText>,
    /// Calls that it was asked of.
    asked: Mutex<HashMap<Question, bool>>,
    trouble: Mutex<Option<String>>,
}

/// A call: operator, attributes, types of arguments and result.
type Question = (OpId, Attrs, Vec<Type>, Type);

impl Foreign {
    fn note(&self, why: String) {
        let why = format!("{}: {why}", self.library.path().display());
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }
}

impl ExternalCompiler for Foreign {
    fn name(&self) -> &str {
        self.library.name()
    }

    fn supports(&self, op: OpId, attrs: &Attrs, args: &[Type], result: &Type) -> bool {
        let flat = |types: &[Type]| -> Option<Vec<ForeignType>> {
            let all = types.iter().map(Type::flatten).collect::<Option<Vec<_>>>()?;
            Some(all.into_iter().flatten().map(|t| foreign_type(&t)).collect())
        };
        let (Some(given), Some(results)) = (flat(args), flat(std::slice::from_ref(result))) else { return false };
        let question = (op, attrs.clone(), args.to_vec(), result.clone());
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = asked.get(&question) {
            return known;
        }
        match self.library.supports(op.op().name(), &json(attrs).to_string(), &given, &results) {
            Ok(answer) => {
                asked.insert(question, answer);
                answer
            }
            Err(e) => {
                self.note(e.to_string());
                false
            }
        }
    }

    fn patterns(&self) -> Vec<Composite> {
        self.patterns.clone()
    }

    fn rules(&self) -> Option<RuleText> {
        self.rules.clone()
    }

    fn keeps_constants(&self) -> bool {
        self.library.keeps_constants()
    }

    fn cost(&self, region: &Region<'_>) -> Option<f64> {
        let cost = as_foreign(region).and_then(|r| self.library.cost(&r).map_err(|e| e.to_string()));
        cost.unwrap_or_else(|e| {
            self.note(e);
            None
        })
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn compile(&self, region: &Region<'_>) -> Result<Compiled, CompilerError> {
        let refuse = |e: String| region.refuse(format!("{}: {e}", self.library.path().display()));
        let compiled = |r: ForeignRegion| self.library.compile(&r).map_err(|e| e.to_string());
        let made = as_foreign(region).and_then(compiled).map_err(refuse)?;
        let ty = |t: &ForeignType| {
            let dtype: DType =
                t.dtype.parse().map_err(|e| format!("`resat_compiler_compile` gives an output of {e}"))?;
            Ok(TensorType::new(&t.shape, dtype))
        };
        let outputs = made.outputs.iter().map(ty).collect::<Result<Vec<_>, String>>().map_err(refuse)?;
        Ok(Compiled { code: made.code, workspace: made.workspace, outputs: Some(outputs), libraries: made.libraries })
    }
}

fn foreign_type(t: &TensorType) -> ForeignType {
    ForeignType { dtype: t.dtype.name().into(), shape: t.shape.iter().map(|d| d.known().unwrap_or(-1)).collect() }
}

/// Attributes as a JSON object.
fn json(attrs: &Attrs) -> serde_json::Value {
    attrs.iter().map(|(name, v)| (name.to_string(), json_value(v))).collect::<serde_json::Map<_, _>>().into()
}

fn json_value(v: &AttrValue) -> serde_json::Value {
    match v {
        AttrValue::None => serde_json::Value::Null,
        AttrValue::Bool(b) => (*b).into(),
        AttrValue::Int(i) => (*i).into(),
        // JSON has no infinities: they are texts.
        AttrValue::Float(f) if f.is_finite() => f.0.into(),
        AttrValue::Float(f) => f.to_string().into(),
        AttrValue::Str(s) => s.as_str().into(),
        AttrValue::DType(d) => d.name().into(),
        AttrValue::AnyDim => "?".into(),
        AttrValue::List(all) => all.iter().map(json_value).collect::<Vec<_>>().into(),
        AttrValue::Dict(all) => {
            all.iter().map(|(k, v)| (k.to_string(), json_value(v))).collect::<serde_json::Map<_, _>>().into()
        }
        AttrValue::Tensor(t) => t.0.to_f64_vec().into(),
        AttrValue::Type(t) => t.to_string().into(),
        AttrValue::Opaque(key, text) => format!("{key}({text})").into(),
    }
}

/// The numbers of values that an expression stands for, depth first.
#[derive(Clone)]
enum Slot {
    Value(u32),
    Tuple(Vec<Slot>),
}

impl Slot {
    fn flat(&self, out: &mut Vec<u32>) {
        match self {
            Slot::Value(n) => out.push(*n),
            Slot::Tuple(fields) => fields.iter().for_each(|f| f.flat(out)),
        }
    }
}

/// A region as a list of calls.
fn as_foreign(region: &Region<'_>) -> Result<ForeignRegion, String> {
    let relay = region.text();
    // Bindings become sharing; composites stay.
    let module = pass::inline(&region.alone()).and_then(infer_types).map_err(|e| e.to_string())?;
    let m = module.module();
    let main = m.function("main").ok_or("it has no function")?;
    let target = region.target();
    let mut w = Walk {
        typed: &module,
        out: ForeignRegion {
            symbol: region.symbol().into(),
            relay,
            target: [target.triple.clone(), target.cpu.clone(), target.features.clone()],
            ..ForeignRegion::default()
        },
        groups: 0,
    };
    let mut vars = HashMap::new();
    for &p in &main.params {
        vars.insert(p, w.values(module.var_ty(p))?);
    }
    w.out.inputs = w.out.values.len() as u32;
    let result = w.body(main.body, &vars, None)?;
    result.flat(&mut w.out.outputs);
    Ok(w.out)
}

struct Walk<'a> {
    typed: &'a crate::infer::TypedModule,
    out: ForeignRegion,
    groups: u32,
}

impl Walk<'_> {
    /// New values of a type.
    fn values(&mut self, ty: &Type) -> Result<Slot, String> {
        Ok(match ty {
            Type::Tensor(t) => {
                self.out.values.push(ForeignValue { ty: foreign_type(t), data: None });
                Slot::Value(self.out.values.len() as u32 - 1)
            }
            Type::Tuple(fields) => Slot::Tuple(fields.iter().map(|f| self.values(f)).collect::<Result<_, _>>()?),
            other => return Err(format!("it holds a value of type {other}, which is no tensor")),
        })
    }

    fn body(
        &mut self,
        body: ExprId,
        vars: &HashMap<VarId, Slot>,
        composite: Option<&(String, u32)>,
    ) -> Result<Slot, String> {
        let (typed, m): (_, &Module) = (self.typed, self.typed.module());
        let mut done: HashMap<ExprId, Slot> = HashMap::new();
        for e in within(m, body) {
            let slot = match &m[e] {
                Expr::Op(_) | Expr::Func(_) => continue,
                Expr::Var(v) => vars.get(v).cloned().ok_or_else(|| format!("`{}` is not bound", m.var(*v).name))?,
                Expr::Constant(t) => {
                    let ty = typed.ty(e).as_tensor().map(foreign_type).ok_or("a constant that is no tensor")?;
                    self.out.values.push(ForeignValue { ty, data: Some(t.clone()) });
                    Slot::Value(self.out.values.len() as u32 - 1)
                }
                Expr::Tuple(fields) => Slot::Tuple(fields.iter().map(|f| done[f].clone()).collect()),
                Expr::Proj(t, i) => match &done[t] {
                    Slot::Tuple(fields) => fields[*i].clone(),
                    Slot::Value(_) => unreachable!("inference allows projections of tuples only"),
                },
                Expr::Call { callee, args, .. } => match (m.op_call(e), &m[*callee]) {
                    (Some((op, args, attrs)), _) => {
                        let mut given = Vec::new();
                        args.iter().for_each(|a| done[a].flat(&mut given));
                        let slot = self.values(typed.ty(e))?;
                        let mut results = Vec::new();
                        slot.flat(&mut results);
                        self.out.nodes.push(ForeignNode {
                            op: op.op().name().into(),
                            attrs: json(attrs).to_string(),
                            composite: composite.cloned(),
                            args: given,
                            results,
                        });
                        slot
                    }
                    (None, Expr::Func(f)) => {
                        self.groups += 1;
                        let name = match f.attrs.get("Composite") {
                            Some(AttrValue::Str(s)) => s.to_string(),
                            _ => return Err("it calls a function that is no composite".into()),
                        };
                        let inner = f.params.iter().copied().zip(args.iter().map(|a| done[a].clone())).collect();
                        self.body(f.body, &inner, Some(&(name, self.groups)))?
                    }
                    _ => return Err("it calls something other than operators and composites".into()),
                },
                other => {
                    let kind = format!("{other:?}");
                    let kind = kind.split([' ', '(']).next().unwrap_or_default().to_owned();
                    return Err(format!("`{kind}` has no place in a region"));
                }
            };
            done.insert(e, slot);
        }
        Ok(done[&body].clone())
    }
}

/// What a body is made of, but for what is within functions; children before parents.
fn within(m: &Module, body: ExprId) -> Vec<ExprId> {
    reachable_outside(m, [body], |e| matches!(e, Expr::Func(_)))
}
