//! What a compiler gave, looked at before anything of it runs.

use object::{Object, ObjectSymbol};

use super::{Compiled, CompilerError, Region};
use crate::{
    codegen::compile_c,
    runtime::{Code, process_has},
};

/// The compiled region with its source compiled, or what is wrong with it: an object that is none, or of another machine, or
/// without the symbol, or that needs what is nowhere; tensors other than the region's.
pub fn check(region: &Region<'_>, compiled: Compiled) -> Result<Compiled, CompilerError> {
    if let Some(outputs) = &compiled.outputs {
        let wanted = region.outputs();
        let list = |all: &[crate::ir::TensorType]| all.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
        if outputs.len() != wanted.len() {
            let (n, w) = (outputs.len(), wanted.len());
            return Err(region.refuse(format!("it gives {n} outputs, but the region has {w}: {}", list(&wanted))));
        }
        if *outputs != wanted {
            return Err(region.refuse(format!(
                "it gives {}, but the region's result is {}",
                list(outputs),
                list(&wanted)
            )));
        }
    }
    let code = match compiled.code {
        Code::Source(text) => {
            Code::Object(compile_c(&text, region.target()).map_err(|e| region.refuse(e.to_string()))?)
        }
        code => code,
    };
    if let Code::Object(bytes) = &code {
        object(region, bytes, compiled.libraries.is_empty()).map_err(|e| region.refuse(e))?;
    }
    Ok(Compiled { code, ..compiled })
}

/// What is wrong with an object file. `complete` says that all that it needs is the C library, libm and the program's own.
fn object(region: &Region<'_>, bytes: &[u8], complete: bool) -> Result<(), String> {
    let file = object::File::parse(bytes).map_err(|e| format!("what it gives is no object file: {e}"))?;
    if file.kind() != object::ObjectKind::Relocatable {
        return Err("what it gives is no object file, but an executable or a library".into());
    }
    let arch = match region.target().arch() {
        "x86_64" => object::Architecture::X86_64,
        "aarch64" | "arm64" => object::Architecture::Aarch64,
        _ => object::Architecture::Unknown,
    };
    if arch != object::Architecture::Unknown && file.architecture() != arch {
        return Err(format!(
            "its object is for {:?}, but the target is {}",
            file.architecture(),
            region.target().triple
        ));
    }
    let defined = |name: &str| file.symbols().any(|s| s.is_definition() && s.is_global() && s.name() == Ok(name));
    if !defined(region.symbol()) {
        return Err(format!("its object has no function `{}`", region.symbol()));
    }
    for s in file.symbols().filter(|s| s.is_undefined() && !s.is_weak()) {
        let Ok(name) = s.name() else { continue };
        let known = name.is_empty() || name == "_GLOBAL_OFFSET_TABLE_" || defined(name) || process_has(name);
        if !known && complete {
            return Err(format!("its object needs `{name}`, which is nowhere"));
        }
    }
    Ok(())
}
