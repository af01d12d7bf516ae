//! Programs whose extents, or whose results, are found out when they run, as C99.

use std::path::Path;

use super::{
    ExportError, ExportedC, SizedParts,
    c99::INLINE_WEIGHTS,
    sized::{ALONE, Constants, limits},
    source::{prefix, quoted},
    write_tensors,
};
use crate::output::WorkFolder;

/// Writes a program as C99 that needs a C compiler and libm: as [`export_c`](super::export_c) does of one of known extents. `kernels` is the text
/// of the functions that it calls, with what they rely on.
pub fn export_sized_c(name: &str, program: &SizedParts, kernels: &str, path: &Path) -> Result<ExportedC, ExportError> {
    let at = |p: &Path| {
        let p = p.to_owned();
        move |e| ExportError::Write(p, e)
    };
    let p = prefix(name);
    let mut constants = Constants::default();
    let body = program.text(&p, &mut constants);
    let bytes = constants.bytes();
    let apart = bytes > INLINE_WEIGHTS;
    let (header_path, weights_path) = (path.with_extension("h"), path.with_extension("weights"));
    let weights = match apart {
        true => {
            "static const unsigned char *weights;\n#define WEIGHTS weights\n#define WEIGHTS_MISSING (weights == NULL)\n"
                .to_owned()
        }
        false => {
            let mut text = format!(
                "static const union {{\n  unsigned char bytes[{}];\n  double aligned;\n}} weights = {{{{",
                bytes.max(1)
            );
            for piece in constants.pieces() {
                for (i, b) in piece.iter().enumerate() {
                    text += if i % 32 == 0 { "\n  " } else { "" };
                    text += &format!("{b},");
                }
            }
            text + if bytes == 0 { "0}};\n" } else { "}};\n" }
                + "#define WEIGHTS weights.bytes\n#define WEIGHTS_MISSING 0\n"
        }
    };
    let set = match apart {
        true => format!(
            "int {p}_set_weights(const void *all, uint64_t bytes) {{\n  if (!all || bytes != {bytes}) return RESAT_BAD_ARGUMENT;\n  \
             weights = (const unsigned char *)all;\n  return RESAT_OK;\n}}\n"
        ),
        false => String::new(),
    };
    let include = header_path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let text = format!(
        "#include {}\n#include <stdarg.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n{kernels}#define MODEL_NAME \
         {}\n{weights}{}{ALONE}{body}{set}",
        quoted(&include),
        quoted(name),
        limits(program.functions())
    );
    let size = if apart { bytes as u64 } else { 0 };
    let header = program.header(&p, Some(size));
    let work = WorkFolder::beside(path).map_err(at(path))?;
    std::fs::write(work.path().join("source"), text).map_err(at(path))?;
    std::fs::write(work.path().join("header"), header).map_err(at(&header_path))?;
    if apart {
        write_tensors(constants.all(), &work.path().join("weights")).map_err(at(&weights_path))?;
    }
    let parts = [("weights", &*weights_path), ("header", &header_path), ("source", path)];
    work.publish(&parts[usize::from(!apart)..]).map_err(|(p, e)| ExportError::Write(p, e))?;
    let weights = apart.then_some(weights_path);
    Ok(ExportedC { source: path.to_owned(), header: header_path, weights, unserved: None })
}
