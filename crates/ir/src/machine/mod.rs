//! The machine that code is made for: processor families as rows of data, what is known of the machine at hand, and views of
//! both for LLVM ([`CodegenTarget`]) and for schedules ([`Core`]).

mod codegen;
mod core;
mod detect;
mod families;
mod known;
mod permission;
mod timing;

pub use self::core::Core;
pub use codegen::{CodegenTarget, EMULATED, TargetError, matrix_extension};
pub use detect::CacheShape;
pub use families::{Arch, FAMILIES, Family, X86_LEVELS, family, names};
pub use known::{Known, Origin, differs};
pub use permission::matrix_registers_permitted;
pub use timing::{CacheLevel, FACTS, Fact, Rate, TileRate, Timing, fact};
